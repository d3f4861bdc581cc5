//! Journal log: growth, compaction, and several writers.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

use ringfence_kernel::ErrorKind;
use ringfence_testkit::world::WorldDir;
use serde_json::{Value, json};

use super::journal_of;
use crate::fixture::{FsFixture, FsFixtureConfig};

#[test]
fn a_long_log_is_compacted_and_its_changes_can_be_undone() {
    let world = FsFixture::new();
    world.write("f", "one");
    let change = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let undo = world.undo(&change)["change"].as_str().unwrap().to_owned();
    let log = journal_of(&world).join("log");
    let mut text = std::fs::read_to_string(&log).unwrap();
    let lines = text.lines().count();
    for number in 0..100_000 {
        let intent = json!({"record": "intent", "change": format!("v-{number}"), "at": "2026-01-01T00:00:00.000Z",
            "session": "test", "call": "1", "tool": "write_file", "effects": []});
        text += &format!("{intent}\n{}\n", json!({"record": "void", "change": format!("v-{number}")}));
    }
    std::fs::write(&log, text).unwrap();
    world.restart();
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), lines);
    // A process that had the old one open switches to the new.
    world.value("redo", &json!({"change": undo}));
    assert_eq!(world.read("f"), "two");
    world.undo(&change);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn a_long_log_keeps_every_change_of_which_something_is_kept() {
    let world = FsFixture::new();
    for name in ["f", "g"] {
        world.write(name, "one");
    }
    let change = |name: &str| world.change("write_file", &json!({"path": name, "content": "two"}));
    let (mine, over) = (change("f"), change("g"));
    let log = journal_of(&world).join("log");
    // The second is of a session that is long over.
    let mut text = String::new();
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if line["change"] == json!(over) && line["record"] == "intent" {
            line["session"] = json!("old");
            line["at"] = json!("2020-01-01T00:00:00.000Z");
        }
        text += &format!("{line}\n");
    }
    text += &many_changes(0, 100_000);
    std::fs::write(&log, text).unwrap();
    world.restart();
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 2 * 10_001);
    let kept = || {
        let names = std::fs::read_dir(world.root.join(".ringfence")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(|name| name != ".gitignore")
    };
    assert_eq!(kept().collect::<Vec<_>>(), [format!("{mine}-0")]);
    world.undo(&mine);
    assert_eq!(world.read("f"), "one");
    assert_eq!(world.error("undo", &json!({"change": over})), ErrorKind::NotFound);
}

/// Lines of `count` old changes without images.
fn many_changes(from: usize, count: usize) -> String {
    changes_with("1", from..from + count)
}

/// Enough of them for a long log are few.
fn long_changes(from: usize, count: usize) -> String {
    changes_with(&"1".repeat(800), from..from + count)
}

fn changes_with(call: &str, numbers: Range<usize>) -> String {
    let mut text = String::new();
    for number in numbers {
        let intent = json!({"record": "intent", "change": format!("n-{number}"), "at": "2026-01-01T00:00:00.000Z",
            "session": "many", "call": call, "tool": "create_directory", "effects": []});
        text += &format!("{intent}\n{}\n", json!({"record": "done", "change": format!("n-{number}")}));
    }
    text
}

/// Adds lines to the log, as another process does.
fn add_lines(world: &FsFixture, text: &str) {
    let journal = journal_of(world);
    let lock = File::open(journal.join("lock")).unwrap();
    lock.lock().unwrap();
    let mut log = OpenOptions::new().append(true).open(journal.join("log")).unwrap();
    log.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_running_server_compacts_a_log_that_becomes_long() {
    let world = FsFixture::new();
    world.write("f", "one");
    let first = world.change("write_file", &json!({"path": "f", "content": "two"}));
    let log = journal_of(&world).join("log");
    let lines = || std::fs::read_to_string(&log).unwrap().lines().count();
    for round in 0..2 {
        add_lines(&world, &many_changes(round * 100_000, 100_000));
        let content = format!("round {round}");
        let change = world.change("write_file", &json!({"path": "g", "content": content}));
        // The first, of which something is kept, and the last 10,000.
        assert_eq!(lines(), 2 * 10_001);
        assert_eq!(world.value("show_change", &json!({"change": change}))["change"], json!(change));
    }
    world.undo(&first);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn an_undone_and_redone_change_holds_after_compaction() {
    let world = FsFixture::new();
    world.write("f", "one");
    let first = world.change("write_file", &json!({"path": "f", "content": "two"}));
    world.undo(&first);
    world.value("redo", &json!({}));
    add_lines(&world, &many_changes(0, 100_000));
    world.change("write_file", &json!({"path": "g", "content": "x"}));
    assert!(std::fs::read_to_string(journal_of(&world).join("log")).unwrap().lines().count() < 21_000);
    let world = world.reopened(FsFixtureConfig::default());
    assert_eq!(world.read("f"), "two");
    world.undo(&first);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn a_long_log_that_cannot_become_shorter_stays_until_it_can() {
    let world = FsFixture::new();
    world.write("f", "one");
    let log = journal_of(&world).join("log");
    // One change that is long by itself, and among the last.
    let long = json!({"record": "intent", "change": "long", "at": "2026-01-01T00:00:00.000Z", "session": "many",
        "call": "1".repeat(17 << 20), "tool": "create_directory", "effects": []});
    add_lines(&world, &format!("{long}\n{}\n", json!({"record": "done", "change": "long"})));
    let inode = || std::fs::metadata(&log).unwrap().ino();
    let before = inode();
    let first = world.change("write_file", &json!({"path": "f", "content": "two"}));
    assert_eq!(inode(), before, "it was written anew, with all that it had");
    add_lines(&world, &many_changes(0, 100_000));
    world.change("write_file", &json!({"path": "f", "content": "three"}));
    assert_ne!(inode(), before, "it is as long as before");
    assert!(std::fs::metadata(&log).unwrap().len() < 4 << 20);
    world.value("undo", &json!({}));
    world.undo(&first);
    assert_eq!(world.read("f"), "one");
}

#[test]
fn changes_of_several_processes_stay_listed_while_one_of_them_shortens_the_log() {
    let world = FsFixture::new();
    let log = journal_of(&world).join("log");
    let other = |_| FsFixture::at(WorldDir::Existing(world.host_path().to_owned()), FsFixtureConfig::default());
    let others: Vec<FsFixture> = (0..3).map(other).collect();
    // What is made keeps nothing, and what is replaced does.
    (0..3).for_each(|number| world.write(&format!("f{number}"), "as it was"));
    let lines: Vec<String> = (0..3).map(|round| long_changes(round * 20_000, 20_000)).collect();
    let inode = || std::fs::metadata(&log).unwrap().ino();
    let added = AtomicBool::new(false);
    let made: Vec<String> = std::thread::scope(|scope| {
        let work = |(number, world): (usize, &FsFixture)| {
            let content = |round: usize| json!({"path": format!("f{number}"), "content": format!("{round}")});
            let rounds = (0..).take_while(|round| *round < 30 || !added.load(Ordering::SeqCst));
            rounds.map(|round| world.change("write_file", &content(round))).collect::<Vec<_>>()
        };
        let working: Vec<_> = others.iter().enumerate().map(|each| scope.spawn(move || work(each))).collect();
        for lines in &lines {
            let before = inode();
            add_lines(&world, lines);
            while inode() == before && !working.iter().any(ScopedJoinHandle::is_finished) {
                std::thread::yield_now();
            }
            assert_ne!(inode(), before, "nobody wrote it anew");
        }
        added.store(true, Ordering::SeqCst);
        working.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(made.len() >= 90);
    let text = std::fs::read_to_string(&log).unwrap();
    let ours: Vec<Value> =
        text.lines().filter(|line| line.contains("c-")).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut listed: Vec<_> =
        ours.iter().map(|line| (line["change"].as_str().unwrap(), line["record"].as_str().unwrap())).collect();
    let mut wanted: Vec<_> =
        made.iter().flat_map(|change| ["intent", "done"].map(|record| (change.as_str(), record))).collect();
    listed.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
}

#[test]
fn a_line_that_was_cut_goes_and_others_stay() {
    let world = FsFixture::new();
    let change = world.change("write_file", &json!({"path": "f", "content": "x"}));
    let log = journal_of(&world).join("log");
    let whole = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, format!("{whole}{{\"record\":\"inte")).unwrap();
    world.value("write_file", &json!({"path": "g", "content": "x"}));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.starts_with(&whole) && text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    world.undo(&change);
    assert!(!world.root.join("f").exists());
}
