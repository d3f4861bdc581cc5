//! The store: layers and home directories in the state directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use ringfence_fs::{LayerCollectionMode, LayerCollectionPolicy, LayerState, LayerStore, LayerStoreEntryKind};
use ringfence_kernel::{ErrorKind, HomeFile, LayerDescription, LayerSummary};
use serde_json::json;

use super::{LayerFixture, create_layer, description, layers_of, setup, with_context};
use crate::fixture::FsFixture;

fn listed_states(world: &FsFixture) -> Vec<String> {
    let listed = world.value("list_layers", &json!({}));
    listed["layers"].as_array().unwrap().iter().map(|layer| layer["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_layer_runs_ends_and_is_dropped() {
    let mut layer = LayerFixture::new(&[("a", "a"), ("b", "b")]);
    layer.write("a", "new").write("n", "n").whiteout("b");
    assert_eq!(listed_states(&layer.world), ["running"]);
    for tool in ["keep_layer", "drop_layer"] {
        assert_eq!(layer.world.error(tool, &json!({"layer": layer.id})), ErrorKind::Conflict);
    }
    assert_eq!(layer.finish(3), LayerSummary { created: 1, changed: 1, deleted: 1, conflicts: 0 });
    let listed = layer.world.value("list_layers", &json!({}))["layers"][0].clone();
    assert_eq!((&listed["state"], &listed["exitCode"]), (&json!("ended"), &json!(3)));
    assert_eq!(listed["counts"], json!({"created": 1, "changed": 1, "deleted": 1, "conflicts": 0}));
    let before = layer.tree();
    let dropped = layer.world.value("drop_layer", &json!({"layer": &layer.id[..8]}));
    assert_eq!(dropped["layer"], json!(layer.id));
    assert_eq!(layer.tree(), before);
    assert_eq!(fs::read_dir(layers_of(&layer.world)).unwrap().count(), 0);
    assert_eq!(layer.world.error("drop_layer", &json!({"layer": layer.id})), ErrorKind::NotFound);
}

#[test]
fn a_layer_without_changes_is_removed_at_its_end() {
    let mut layer = LayerFixture::new(&[("a", "a")]);
    layer.write("a", "a");
    assert!(layer.finish(0).is_empty());
    assert!(!layer.has_layer());
}

#[test]
fn a_layer_whose_program_died_is_interrupted_and_can_be_kept() {
    let mut layer = LayerFixture::new(&[("a", "a")]);
    layer.write("a", "new");
    fs::write(layer.upper.parent().unwrap().join("work/half"), "half").unwrap();
    drop(layer.running.take());
    assert_eq!(listed_states(&layer.world), ["interrupted"]);
    assert_eq!(layer.listed(), ["changes modified a"]);
    layer.keep_paths(&["a"]);
    assert_eq!(layer.world.read("a"), "new");
    assert!(!layer.has_layer());
}

#[test]
fn closed_directories_keep_their_modes_and_go() {
    let layer = LayerFixture::new(&[("a", "a")]);
    layer.write("n/deep/x", "x").write("k/x", "x").mode("n/deep", 0).mode("k/x", 0o200);
    fs::set_permissions(layer.upper.parent().unwrap().join("work"), fs::Permissions::from_mode(0o0)).unwrap();
    let layer = layer.ended();
    for _ in 0..2 {
        assert_eq!(layer.listed().len(), 5);
    }
    layer.keep_paths(&["n"]);
    let mode = fs::metadata(layer.world.root.join("n/deep")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o500, "its owner looks into it");
    layer.world.value("drop_layer", &json!({"layer": layer.id}));
    assert_eq!(fs::read_dir(layers_of(&layer.world)).unwrap().count(), 0);
}

#[test]
fn a_layer_deeper_than_a_path_is_dropped() {
    let layer = LayerFixture::new(&[]);
    let mut at = rustix::fs::open(&layer.upper, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    let name = "d".repeat(200);
    for _ in 0..100 {
        rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::RWXU).unwrap();
        rustix::fs::mkdirat(&at, "removed-0", rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &name, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    }
    rustix::fs::symlinkat(layer.world.outside.as_os_str(), &at, "out").unwrap();
    let layer = {
        let mut layer = layer;
        drop(layer.running.take());
        layer
    };
    layer.world.value("drop_layer", &json!({"layer": layer.id}));
    assert_eq!(fs::read_dir(layers_of(&layer.world)).unwrap().count(), 0);
    assert!(layer.world.outside.join("secret").exists());
}

#[test]
fn a_foreign_directory_is_refused() {
    let world = FsFixture::in_memory(setup());
    let state = world.host_path().join("state");
    let layers = state.join("layers");
    std::os::unix::fs::symlink(&world.outside, &layers).unwrap();
    assert_eq!(create_layer(&world, &description()).unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(world.error("list_layers", &json!({})), ErrorKind::Unavailable);
    fs::remove_file(&layers).unwrap();
    fs::create_dir(&layers).unwrap();
    fs::set_permissions(&layers, fs::Permissions::from_mode(0o755)).unwrap();
    let error = create_layer(&world, &description()).unwrap_err();
    assert!(error.message.contains("`layers` in the state directory"), "{error}");
    assert!(!error.to_string().contains(world.host_path().to_str().unwrap()));
    fs::set_permissions(&layers, fs::Permissions::from_mode(0o700)).unwrap();
    create_layer(&world, &description()).unwrap();
}

#[test]
fn another_workspace_does_not_see_a_layer() {
    let layer = LayerFixture::new(&[("a", "a")]);
    layer.write("a", "b");
    let layer = layer.ended();
    let record = layer.upper.parent().unwrap().join("about.json");
    let text = fs::read_to_string(&record).unwrap();
    let mut about: serde_json::Value = serde_json::from_str(&text).unwrap();
    about["workspace"] = json!("0-0");
    fs::write(&record, about.to_string()).unwrap();
    assert!(listed_states(&layer.world).is_empty());
    assert_eq!(layer.world.error("review_layer", &json!({"layer": layer.id})), ErrorKind::NotFound);
    about["version"] = json!(2);
    fs::write(&record, about.to_string()).unwrap();
    assert!(listed_states(&layer.world).is_empty());
}

fn homes_of(world: &FsFixture) -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> =
        fs::read_dir(world.host_path().join("state/homes")).unwrap().map(|entry| entry.unwrap().path()).collect();
    homes.sort();
    homes
}

#[test]
fn runs_of_a_profile_share_a_home_and_two_at_once_do_not() {
    let world = FsFixture::in_memory(setup());
    let about = |text: &str| LayerDescription {
        home_files: vec![HomeFile { path: ".config/tool/settings".into(), contents: text.into(), is_renewed: false }],
        ..description()
    };
    let first = create_layer(&world, &about("one")).unwrap();
    let home = homes_of(&world)[0].clone();
    let settings = home.join("start/.config/tool/settings");
    assert_eq!(fs::read_to_string(&settings).unwrap(), "one");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&settings), mode(settings.parent().unwrap())), (0o600, 0o700));
    fs::write(home.join("upper/history"), "kept").unwrap();
    let second = create_layer(&world, &about("two")).unwrap();
    let homes = homes_of(&world);
    assert_eq!(homes.len(), 2);
    assert!(homes[1].to_str().unwrap().ends_with("-2"));
    assert!(!homes[1].join("upper/history").exists());
    with_context(|cx| first.finish(0, cx)).unwrap();
    drop(second);
    // The files are written anew, and what the program wrote is kept.
    let third = create_layer(&world, &about("three")).unwrap();
    assert_eq!(fs::read_to_string(&settings).unwrap(), "three");
    assert_eq!(fs::read_to_string(home.join("upper/history")).unwrap(), "kept");
    drop(third);
    let other = LayerDescription { profile: "other".to_owned(), ..description() };
    drop(create_layer(&world, &other).unwrap());
    assert_eq!(homes_of(&world).len(), 3);
    for path in ["../x", "/x", ""] {
        let file = HomeFile { path: path.into(), contents: Vec::new(), is_renewed: false };
        let about = LayerDescription { home_files: vec![file], ..description() };
        assert_eq!(create_layer(&world, &about).unwrap_err().kind, ErrorKind::InvalidPath);
    }
}

/// Whatever a program did to it, or put in its way.
#[test]
fn a_renewed_file_takes_the_place_of_what_programs_left() {
    let world = FsFixture::in_memory(setup());
    let about = |is_renewed| LayerDescription {
        home_files: vec![HomeFile { path: ".tool/login".into(), contents: b"new".into(), is_renewed }],
        ..description()
    };
    drop(create_layer(&world, &about(true)).unwrap());
    let home = homes_of(&world)[0].clone();
    let (upper, outside) = (home.join("upper"), world.host_path().join("of-the-person"));
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("login"), "of the person").unwrap();
    let write = |path: &str| {
        fs::create_dir_all(upper.join(path).parent().unwrap()).unwrap();
        fs::write(upper.join(path), "old").unwrap();
    };
    let prepare: [&dyn Fn(); 6] = [
        &|| write(".tool/login"),
        &|| write(".tool/login/deep/er"),
        &|| {
            fs::create_dir_all(upper.join(".tool")).unwrap();
            std::os::unix::fs::symlink(outside.join("login"), upper.join(".tool/login")).unwrap();
        },
        &|| {
            write(".tool/login");
            fs::set_permissions(upper.join(".tool"), fs::Permissions::from_mode(0o000)).unwrap();
        },
        &|| write(".tool"),
        &|| std::os::unix::fs::symlink(&outside, upper.join(".tool")).unwrap(),
    ];
    for (number, prepare) in prepare.iter().enumerate() {
        let _ = fs::remove_dir_all(upper.join(".tool"));
        let _ = fs::remove_file(upper.join(".tool"));
        prepare();
        drop(create_layer(&world, &about(true)).unwrap());
        assert_eq!(fs::read_to_string(home.join("start/.tool/login")).unwrap(), "new", "{number}");
        // Where their directory is there, it may be all that is seen.
        match fs::symlink_metadata(upper.join(".tool")) {
            Ok(_) => assert_eq!(fs::read_to_string(upper.join(".tool/login")).unwrap(), "new", "{number}"),
            Err(error) => assert_eq!((error.kind(), number >= 4), (std::io::ErrorKind::NotFound, true), "{number}"),
        }
        assert_eq!(fs::read_to_string(outside.join("login")).unwrap(), "of the person", "{number}");
    }
    let _ = fs::remove_file(upper.join(".tool"));
    write(".tool/login");
    drop(create_layer(&world, &about(false)).unwrap());
    assert_eq!(fs::read_to_string(upper.join(".tool/login")).unwrap(), "old", "other files stay as they are");
}

/// What a collection leaves that removes only what is older than this.
fn policy(age: Duration) -> LayerCollectionPolicy {
    LayerCollectionPolicy { keep_homes: age, keep_caches: age, max_bytes: u64::MAX }
}

const DAY: Duration = Duration::from_hours(24);

fn with_caches(caches: &[&str]) -> LayerDescription {
    LayerDescription { caches: caches.iter().map(PathBuf::from).collect(), ..description() }
}

/// Says that a kept directory was last used so many days ago.
fn age(directory: &std::path::Path, days: u32) {
    let about = directory.join("about.json");
    let mut record: serde_json::Value = serde_json::from_str(&fs::read_to_string(&about).unwrap()).unwrap();
    record["used"] = json!(0);
    fs::write(&about, record.to_string()).unwrap();
    let lock = fs::File::options().write(true).open(directory.join("lock")).unwrap();
    lock.set_modified(SystemTime::now() - DAY * days).unwrap();
}

#[test]
fn a_collection_never_removes_an_undecided_layer() {
    let layer = LayerFixture::new(&[("a", "a")]);
    layer.write("a", "12345");
    let layer = layer.ended();
    let state = layer.world.host_path().join("state");
    let store = LayerStore::new(&state);
    let running = create_layer(&layer.world, &LayerDescription { profile: "p".to_owned(), ..description() }).unwrap();
    fs::create_dir_all(layers_of(&layer.world).join("decided-l-0/upper")).unwrap();
    fs::set_permissions(layers_of(&layer.world).join("decided-l-0"), fs::Permissions::from_mode(0o700)).unwrap();
    let usage = store.usage().unwrap();
    let kinds: Vec<LayerStoreEntryKind> = usage.iter().map(|entry| entry.kind).collect();
    use LayerStoreEntryKind::{Home, Layer, Remains};
    assert_eq!(kinds, [Layer(LayerState::Ended), Layer(LayerState::Running), Home, Home, Remains]);
    assert!(usage[0].bytes >= 5);
    let collect = |mode, policy: LayerCollectionPolicy| -> Vec<LayerStoreEntryKind> {
        store.collect(&policy, mode).unwrap().removed.into_iter().map(|entry| entry.kind).collect()
    };
    let all = || LayerCollectionPolicy { max_bytes: 0, ..policy(Duration::ZERO) };
    assert_eq!(collect(LayerCollectionMode::DryRun, policy(DAY)), [Remains]);
    // A home with a program is not idle.
    assert_eq!(collect(LayerCollectionMode::DryRun, all()), [Home, Remains]);
    assert_eq!(store.usage().unwrap(), usage);
    let collected = store.collect(&all(), LayerCollectionMode::Remove).unwrap();
    assert_eq!(collected.removed.iter().map(|entry| entry.kind).collect::<Vec<_>>(), [Home, Remains]);
    assert_eq!(collected.left.len(), 3);
    assert!(collected.bytes_left() >= 5, "the layer is beyond the bound, and stays");
    drop(running);
    assert_eq!(collect(LayerCollectionMode::Remove, all()), [Home]);
    assert_eq!(listed_states(&layer.world), ["ended", "interrupted"]);
    layer.keep_paths(&["a"]);
    assert_eq!(layer.world.read("a"), "12345");
}

#[test]
fn runs_of_a_profile_share_cache_layers_and_two_at_once_do_not() {
    let world = FsFixture::in_memory(setup());
    let about = with_caches(&[".npm/_cacache", ".cache/pip"]);
    let first = create_layer(&world, &about).unwrap();
    assert_eq!(first.caches().len(), 2);
    let names = || {
        let entries = fs::read_dir(world.host_path().join("state/caches")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let one = names();
    assert_eq!(one.len(), 2);
    let upper = world.host_path().join("state/caches").join(&one[0]).join("upper");
    fs::write(upper.join("package"), "downloaded").unwrap();
    let second = create_layer(&world, &about).unwrap();
    assert_eq!(names().len(), 4, "the second run has layers of its own");
    drop((first, second));
    let third = create_layer(&world, &about).unwrap();
    assert_eq!(names().len(), 4);
    assert_eq!(fs::read_to_string(upper.join("package")).unwrap(), "downloaded");
    drop(third);
    // Another profile does not see what this one downloaded.
    drop(create_layer(&world, &LayerDescription { profile: "other".to_owned(), ..about.clone() }).unwrap());
    assert_eq!(names().len(), 6);
    let usage = LayerStore::new(&world.host_path().join("state")).usage().unwrap();
    let mut caches: Vec<(String, String)> = usage
        .into_iter()
        .filter(|entry| entry.kind == LayerStoreEntryKind::Cache)
        .map(|entry| (entry.program, entry.path))
        .collect();
    caches.sort();
    caches.dedup();
    let expected = [("agent", ".cache/pip"), ("agent", ".npm/_cacache"), ("other", ".cache/pip")];
    assert_eq!(caches[..3], expected.map(|(profile, path)| (profile.to_owned(), path.to_owned())));
}

#[test]
fn old_caches_go_and_beyond_the_bound_those_that_were_not_used_for_longest() {
    let world = FsFixture::in_memory(setup());
    let caches = world.host_path().join("state/caches");
    let make = |profile: &str, days: u32| {
        let about = LayerDescription { profile: profile.to_owned(), ..with_caches(&[".npm/_cacache"]) };
        drop(create_layer(&world, &about).unwrap());
        let made = fs::read_dir(&caches).unwrap().map(|entry| entry.unwrap().path());
        let made = made.into_iter().find(|path| {
            let text = fs::read_to_string(path.join("about.json")).unwrap();
            text.contains(&format!("\"profile\":\"{profile}\""))
        });
        fs::write(made.as_ref().unwrap().join("upper/data"), vec![1; 1000]).unwrap();
        age(&made.unwrap(), days);
    };
    for (profile, days) in [("a", 40), ("b", 20), ("c", 10), ("d", 5)] {
        make(profile, days);
    }
    // The running one is not removed, however old it is.
    let running = {
        let about = LayerDescription { profile: "d".to_owned(), ..with_caches(&[".npm/_cacache"]) };
        create_layer(&world, &about).unwrap()
    };
    let store = LayerStore::new(&world.host_path().join("state"));
    let removed = |max_bytes, mode| -> Vec<String> {
        let policy = LayerCollectionPolicy { keep_homes: DAY * 365, keep_caches: DAY * 30, max_bytes };
        let collection = store.collect(&policy, mode).unwrap();
        let caches = collection.removed.into_iter().filter(|entry| entry.kind == LayerStoreEntryKind::Cache);
        caches.map(|entry| entry.program).collect()
    };
    assert_eq!(removed(u64::MAX, LayerCollectionMode::DryRun), ["a"]);
    let all: u64 = store.usage().unwrap().iter().map(|entry| entry.bytes).sum();
    // Without the oldest it is 1000 bytes and some more too much.
    assert_eq!(removed(all - 2000, LayerCollectionMode::DryRun), ["a", "b"]);
    assert_eq!(removed(all - 2000, LayerCollectionMode::Remove), ["a", "b"]);
    assert_eq!(removed(0, LayerCollectionMode::Remove), ["c"]);
    drop(running);
    assert_eq!(removed(0, LayerCollectionMode::Remove), ["d"]);
}

#[test]
fn a_collection_that_is_not_asked_for_is_made_once_a_day() {
    let world = FsFixture::in_memory(setup());
    let state = world.host_path().join("state");
    let remains = || {
        fs::create_dir_all(layers_of(&world).join("decided-l-0/upper")).unwrap();
        fs::set_permissions(layers_of(&world).join("decided-l-0"), fs::Permissions::from_mode(0o700)).unwrap();
    };
    drop(create_layer(&world, &description()).unwrap());
    let store = LayerStore::new(&state);
    remains();
    let removed = || store.collect_if_due(&policy(DAY), DAY).unwrap().map(|collection| collection.removed.len());
    assert_eq!(removed(), Some(1));
    remains();
    assert_eq!(removed(), None);
    let stamp = fs::File::options().write(true).open(state.join("collected")).unwrap();
    stamp.set_modified(SystemTime::now() - DAY * 2).unwrap();
    assert_eq!(removed(), Some(1));
    remains();
    assert_eq!(removed(), None);
}
