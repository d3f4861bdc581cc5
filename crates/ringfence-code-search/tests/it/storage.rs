//! The index on disk: kept outside of the workspace, private, and safe against damage and other processes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::fixture::SearchWorld;

/// A world whose index is stored, with files that did not change for a while.
fn world() -> SearchWorld {
    let world = SearchWorld::new();
    world.write("a.rs", "fn first() {}\n");
    world.write_large();
    assert_eq!(world.host().hits("first"), ["a.rs:1 first"]);
    world
}

#[test]
fn an_index_is_private_and_not_in_the_workspace() {
    let world = world();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&world.index()), mode(&world.indexes())), (0o600, 0o700));
    let names = fs::read_dir(&world.world.workspace).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.filter(|name| name != ".ringfence").collect();
    names.sort();
    assert_eq!(names, ["a.rs", "large.rs"]);
}

#[test]
fn a_damaged_index_is_made_again() {
    let world = world();
    let whole = fs::read(world.index()).unwrap();
    for damage in [0, 9, 13, 20, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[damage] ^= 1;
        // The version is a number, so that another one may be a newer one.
        damaged[8] = 1;
        fs::write(world.index(), &damaged).unwrap();
        assert_eq!(world.host().hits("first"), ["a.rs:1 first"], "byte {damage}");
    }
    for length in [0, 1, 15, 17, whole.len() / 2] {
        fs::write(world.index(), &whole[..length]).unwrap();
        assert_eq!(world.host().hits("first"), ["a.rs:1 first"], "{length} bytes");
    }
}

#[test]
fn an_index_of_a_newer_version_is_left_alone() {
    let world = world();
    let mut newer = fs::read(world.index()).unwrap();
    newer[8] = 200;
    fs::write(world.index(), &newer).unwrap();
    assert_eq!(world.host().hits("first"), ["a.rs:1 first"]);
    assert_eq!(fs::read(world.index()).unwrap(), newer);
}

#[test]
fn an_index_of_another_directory_is_not_used() {
    let (one, other) = (world(), SearchWorld::new());
    other.write("b.rs", "fn second() {}\n");
    other.write_large();
    assert_eq!(other.host().hits("second"), ["b.rs:1 second"]);
    fs::copy(one.index(), other.index()).unwrap();
    assert_eq!(other.host().hits("first"), [""; 0]);
    assert_eq!(other.host().hits("second"), ["b.rs:1 second"]);
}

#[test]
fn hosts_on_one_state_directory_find_the_same() {
    let world = world();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let world = &world;
            scope.spawn(move || {
                let host = world.host();
                for round in 0..5 {
                    let name = format!("own_{number}_{round}");
                    let filler = "fn ordinary_filler() { let filler = 1; }\n".repeat(400);
                    world.write(&format!("src/{name}.rs"), format!("fn {name}() {{}}\n{filler}"));
                    assert_eq!(
                        host.hits_of(&json!({"query": name, "maxResults": 1})),
                        [format!("src/{name}.rs:1 {name}")]
                    );
                }
            });
        }
    });
    let host = world.host();
    for number in 0..4 {
        let name = format!("own_{number}_4");
        assert_eq!(host.hits_of(&json!({"query": name, "maxResults": 1})), [format!("src/{name}.rs:1 {name}")]);
    }
    assert_eq!(fs::read_dir(world.indexes()).unwrap().count(), 2, "an index and its lock");
}

#[test]
fn a_clock_that_goes_wrong_does_not_hide_a_change() {
    let world = world();
    let path = world.world.workspace.join("a.rs");
    let host = world.host();
    for time in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_secs(1 << 32)] {
        world.write("a.rs", "fn again() {}\n");
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(host.hits("again"), ["a.rs:1 again"]);
        world.write("a.rs", "fn first() {}\n");
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(host.hits("first"), ["a.rs:1 first"]);
    }
}
