//! Freshness: every call finds the tree as it is.

use std::fs::{File, FileTimes, remove_file, rename};

use serde_json::json;

use crate::fixture::SearchWorld;

#[test]
fn a_change_of_a_moment_ago_is_found() {
    let world = SearchWorld::new();
    world.write("a.rs", "fn first() {}\n");
    let host = world.host();
    assert_eq!(host.hits("first"), ["a.rs:1 first"]);
    world.write("a.rs", "\nfn other() {}\n");
    assert_eq!(host.hits("first"), [""; 0]);
    assert_eq!(host.hits("other"), ["a.rs:2 other"]);
    world.write("b.rs", "fn first() {}\n");
    assert_eq!(host.hits("first"), ["b.rs:1 first"]);
    rename(world.world.workspace.join("b.rs"), world.world.workspace.join("c.rs")).unwrap();
    assert_eq!(host.hits("first"), ["c.rs:1 first"]);
    remove_file(world.world.workspace.join("c.rs")).unwrap();
    assert_eq!(host.hits("first"), [""; 0]);
}

#[test]
fn a_change_that_keeps_size_and_time_is_found() {
    let world = SearchWorld::new();
    let path = world.world.workspace.join("a.rs");
    world.write("a.rs", "fn first() {}\n");
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let host = world.host();
    for (name, other) in [("again", "first"), ("third", "again"), ("first", "third")].into_iter().cycle().take(30) {
        world.write("a.rs", format!("fn {name}() {{}}\n"));
        File::options().write(true).open(&path).unwrap().set_times(FileTimes::new().set_modified(before)).unwrap();
        assert_eq!(host.hits(name), [format!("a.rs:1 {name}")]);
        assert_eq!(host.hits(other), [""; 0]);
    }
}

#[test]
fn files_of_a_large_tree_are_found_before_and_after_they_are_indexed() {
    let world = SearchWorld::new();
    // Lines without words, so that the test is quick.
    let filler = "//////////////////////////////////////////////////////////////////////\n".repeat(12_000);
    for number in 0..6 {
        world.write(&format!("src/part{number}.rs"), format!("fn part_{number}() {{}}\n{filler}"));
    }
    world.write("src/wanted.rs", "fn renew_lease() {}\n");
    let host = world.host();
    assert_eq!(host.hits("renew the lease"), ["src/wanted.rs:1 renew_lease"]);
    // The rest is indexed in the background.
    let query = json!({"query": "part"});
    for attempt in 0.. {
        let value = host.value(&query);
        assert!(!value["hits"].as_array().unwrap().is_empty());
        if value["pendingFiles"] == json!(0) {
            break;
        }
        assert!(attempt < 10_000);
        std::thread::yield_now();
    }
    assert_eq!(host.hits("part").len(), 6);
    world.write("src/part3.rs", "fn moved_away() {}\n");
    assert_eq!(host.hits("part").len(), 6, "`part3.rs` is named so");
    assert_eq!(host.hits("moved away"), ["src/part3.rs:1 moved_away"]);
}
