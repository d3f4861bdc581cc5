//! The store: layers and home directories in the state directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_fs::{LayerCollectionMode, LayerState, LayerStore, LayerStoreEntryKind};
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
    for (tool, arguments) in [
        ("keep_layer", json!({"layer": layer.id})),
        ("drop_layer", json!({"layer": layer.id})),
        ("review_layer", json!({"layer": layer.id})),
    ] {
        assert_eq!(layer.world.error(tool, &arguments), ErrorKind::Conflict);
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
        home_files: vec![HomeFile { path: ".config/tool/settings".into(), contents: text.into() }],
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
        let file = HomeFile { path: path.into(), contents: Vec::new() };
        let about = LayerDescription { home_files: vec![file], ..description() };
        assert_eq!(create_layer(&world, &about).unwrap_err().kind, ErrorKind::InvalidPath);
    }
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
    let day = Duration::from_secs(24 * 60 * 60);
    let names = |mode, age| -> Vec<LayerStoreEntryKind> {
        store.collect(age, mode).unwrap().into_iter().map(|entry| entry.kind).collect()
    };
    assert_eq!(names(LayerCollectionMode::DryRun, day), [Remains]);
    // A home with a program is not idle.
    assert_eq!(names(LayerCollectionMode::DryRun, Duration::ZERO), [Home, Remains]);
    assert_eq!(store.usage().unwrap(), usage);
    assert_eq!(names(LayerCollectionMode::Remove, Duration::ZERO), [Home, Remains]);
    drop(running);
    assert_eq!(names(LayerCollectionMode::Remove, Duration::ZERO), [Home]);
    assert_eq!(listed_states(&layer.world), ["ended", "interrupted"]);
    layer.keep_paths(&["a"]);
    assert_eq!(layer.world.read("a"), "12345");
}
