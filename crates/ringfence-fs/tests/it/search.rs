//! `search_files`: complete, in order, and without what may not be searched.

use ringfence_kernel::ErrorKind;
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};

/// Matches as `path:line:column:text`.
#[track_caller]
fn check(world: &FsFixture, arguments: Value, expected: &[&str]) -> Value {
    let value = world.value("search_files", &arguments);
    let line = |found: &Value| {
        let text = |key: &str| found[key].as_str().unwrap().to_owned();
        format!("{}:{}:{}:{}", text("path"), found["line"], found["column"], text("text"))
    };
    let found: Vec<String> = value["matches"].as_array().unwrap().iter().map(line).collect();
    assert_eq!(found, expected, "{arguments}");
    value
}

fn world() -> FsFixture {
    let world = FsFixture::new();
    world.write("a.txt", "one\nTwo\nthree two\n");
    world.write("b/c.txt", "two\r\nfour\r\n");
    world.write("b/deep/er/d.md", "é two\n");
    world.write(".hidden", "two\n");
    world.write(".git/config", "two\n");
    world.write(".env", "two\n");
    world.write("binary", b"two\0two\n");
    world
}

#[test]
fn matches_come_in_the_order_of_paths_and_lines() {
    let world = world();
    let value = check(
        &world,
        json!({"path": ".", "pattern": "two"}),
        &["a.txt:3:7:three two", "b/c.txt:1:1:two", "b/deep/er/d.md:1:3:é two"],
    );
    assert_eq!(value["stats"], json!({"filesScanned": 3, "matchesFound": 3, "skippedBinary": 1}));
    check(&world, json!({"path": "b", "pattern": "two"}), &["b/c.txt:1:1:two", "b/deep/er/d.md:1:3:é two"]);
    check(
        &world,
        json!({"path": "a.txt", "pattern": "TWO", "ignoreCase": true}),
        &["a.txt:2:1:Two", "a.txt:3:7:three two"],
    );
    check(&world, json!({"path": ".", "pattern": "two", "glob": "*.md"}), &["b/deep/er/d.md:1:3:é two"]);
    check(
        &world,
        json!({"path": ".", "pattern": "^t[wh]\\w+$", "regex": true, "ignoreCase": true}),
        &["a.txt:2:1:Two", "b/c.txt:1:1:two"],
    );
    check(&world, json!({"path": ".", "pattern": "t.o"}), &[]);
}

#[test]
fn lines_around_a_match_are_its_own_even_when_matches_are_close() {
    let world = FsFixture::new();
    world.write("f", "1\n2\nx3\nx4\n5\n6\nx7\n");
    let value = world.value("search_files", &json!({"path": "f", "pattern": "x", "before": 2, "after": 1}));
    let around = |index: usize| (value["matches"][index]["before"].clone(), value["matches"][index]["after"].clone());
    assert_eq!(around(0), (json!(["1", "2"]), json!(["x4"])));
    assert_eq!(around(1), (json!(["2", "x3"]), json!(["5"])));
    assert_eq!(around(2), (json!(["5", "6"]), json!([])));
}

#[test]
fn a_search_that_stops_early_stops_at_the_same_match_every_time() {
    let world = FsFixture::new();
    for file in 0..60 {
        world.write(&format!("{}/{file:02}.txt", file % 7), "hit\nmiss\nhit\n".repeat(file % 5));
    }
    let arguments = json!({"path": ".", "pattern": "hit", "maxMatches": 37});
    let first = world.value("search_files", &arguments);
    assert_eq!((first["matches"].as_array().unwrap().len(), &first["truncated"]), (37, &json!(true)));
    for _ in 0..20 {
        assert_eq!(world.value("search_files", &arguments), first);
    }
}

#[test]
fn ignore_files_are_heeded_above_and_below_unless_told_otherwise() {
    let world = FsFixture::new();
    world.write(".gitignore", "target\n*.log\n!keep.log\n/a/only-here\n");
    world.write("a/.gitignore", "*.tmp\n");
    for file in ["target/x", "a/target/x", "a/x.log", "a/keep.log", "a/x.tmp", "x.tmp", "a/only-here", "b/only-here"] {
        world.write(file, "hit\n");
    }
    check(
        &world,
        json!({"path": ".", "pattern": "hit"}),
        &["a/keep.log:1:1:hit", "b/only-here:1:1:hit", "x.tmp:1:1:hit"],
    );
    check(&world, json!({"path": "a", "pattern": "hit"}), &["a/keep.log:1:1:hit"]);
    let all = world.value("search_files", &json!({"path": ".", "pattern": "hit", "includeIgnored": true}));
    assert_eq!(all["matches"].as_array().unwrap().len(), 8);
}

#[test]
fn secrets_are_searched_only_when_asked_for_and_links_not_at_all() {
    let world = world();
    std::os::unix::fs::symlink(&world.outside, world.root.join("way-out")).unwrap();
    std::os::unix::fs::symlink(world.outside.join("secret"), world.root.join("file-out")).unwrap();
    let value = world.value("search_files", &json!({"path": ".", "pattern": "SECRET", "includeIgnored": true}));
    assert_eq!((&value["matches"], &value["stats"]["skippedSecret"]), (&json!([]), &json!(1)));
    assert_eq!(world.error("search_files", &json!({"path": ".env", "pattern": "two"})), ErrorKind::ApprovalDenied);
    assert_eq!(world.error("search_files", &json!({"path": "way-out", "pattern": "x"})), ErrorKind::OutsideWorkspace);
    assert_eq!(world.error("search_files", &json!({"path": "file-out", "pattern": "x"})), ErrorKind::OutsideWorkspace);
    assert_eq!(world.error("search_files", &json!({"path": "nowhere", "pattern": "x"})), ErrorKind::NotFound);
}

#[test]
fn patterns_that_make_no_sense_are_refused_and_none_can_hang() {
    let world = FsFixture::new();
    world.write("a", "a".repeat(100_000));
    let refused = |pattern: &str| world.error("search_files", &json!({"path": ".", "pattern": pattern, "regex": true}));
    for pattern in ["", "(", "a\nb", "(?:a{1000}){1000}", &"x".repeat(5000)] {
        assert_eq!(refused(pattern), ErrorKind::InvalidArgs, "{pattern:.20}");
    }
    check(&world, json!({"path": ".", "pattern": "(a+)+$b", "regex": true}), &[]);
    check(&world, json!({"path": ".", "pattern": "(a*)*c", "regex": true}), &[]);
    let refused = |arguments: Value| world.error("search_files", &arguments);
    assert_eq!(refused(json!({"path": ".", "pattern": "a", "maxMatches": 0})), ErrorKind::InvalidArgs);
    assert_eq!(refused(json!({"path": ".", "pattern": "a", "before": 21})), ErrorKind::InvalidArgs);
    assert_eq!(refused(json!({"path": ".", "pattern": "a", "glob": "../*"})), ErrorKind::InvalidArgs);
}

#[test]
fn a_long_line_is_shown_around_its_match_and_a_reply_stays_within_its_bytes() {
    let world = FsFixture::new();
    world.write("min.js", format!("{}needle{}", "é".repeat(40_000), "x".repeat(40_000)));
    let value = world.value("search_files", &json!({"path": ".", "pattern": "needle"}));
    let text = value["matches"][0]["text"].as_str().unwrap();
    assert!(text.len() < 1100 && text.contains("needle") && text.starts_with('…') && text.ends_with('…'), "{text}");
    assert_eq!(value["matches"][0]["column"], 40_001);
    let mut setup = FsFixtureConfig::default();
    setup.limits.search_bytes = 100;
    let world = FsFixture::with(setup);
    world.write("f", "0123456789 hit\n".repeat(30));
    let value = world.value("search_files", &json!({"path": ".", "pattern": "hit"}));
    assert_eq!(value["truncated"], true);
    assert!(value["matches"].as_array().unwrap().len() < 7);
}
