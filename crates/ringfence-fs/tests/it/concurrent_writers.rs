//! Concurrent writers: other programs write, cut, replace and create at the same time.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence_fs::MountAccess;
use ringfence_kernel::{ErrorKind, Preset};
use serde_json::json;

use crate::fixture::{FsFixture, FsFixtureConfig};

const SOME_TIME: Duration = Duration::from_millis(500);

/// Does something again and again beside calls that are checked one by one.
fn with_concurrent(disturb: impl Fn() + Sync, check: impl Fn()) {
    let over = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                disturb();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        // A check that panics ends the other thread too.
        let _stop = StopWriterOnDrop(&over);
        let started = Instant::now();
        while started.elapsed() < SOME_TIME || rounds.load(Ordering::Relaxed) < 10 {
            check();
        }
    });
}

struct StopWriterOnDrop<'a>(&'a AtomicBool);

impl Drop for StopWriterOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_grows_is_read_as_far_as_it_was_when_it_was_opened() {
    let world = FsFixture::new();
    world.write("log", "x".repeat(400 << 10));
    let grow = || {
        let mut file = std::fs::OpenOptions::new().append(true).open(world.root.join("log")).unwrap();
        file.write_all(&[b'y'; 4096]).unwrap();
        if file.metadata().unwrap().len() > 4 << 20 {
            file.set_len(400 << 10).unwrap();
        }
    };
    with_concurrent(grow, || {
        let value = world.value("read_file", &json!({"path": "log"}));
        let (content, size) = (value["content"].as_str().unwrap().len() as u64, value["size"].as_u64().unwrap());
        assert!(content <= size.min(1 << 20), "{content} of {size}");
        // The only line is longer than may be read, which ends the reading too.
        let window = json!({"path": "log", "startLine": 1, "endLine": 1});
        assert!(matches!(world.call("read_file", &window).error, None | Some(ErrorKind::ReadLimit)));
    });
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_short_and_nothing_worse() {
    let world = FsFixture::new();
    let path = world.root.join("f");
    world.write("f", "x".repeat(900 << 10));
    let cut = || {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(10).unwrap();
        file.set_len(900 << 10).unwrap();
    };
    with_concurrent(cut, || {
        // What is cut and grown again has NULs in it, which is not text.
        let answer = world.call("read_file", &json!({"path": "f"}));
        assert!(matches!(answer.error, None | Some(ErrorKind::NotText)), "{:?}", answer.error);
        world.value("read_file", &json!({"path": "f", "encoding": "base64"}));
    });
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_the_old_or_the_new() {
    let world = FsFixture::new();
    world.write("f", "a".repeat(800 << 10));
    let next = AtomicUsize::new(0);
    let replace = || {
        let letter = ["b", "a"][next.fetch_add(1, Ordering::Relaxed) % 2];
        std::fs::write(world.host_path().join("next"), letter.repeat(800 << 10)).unwrap();
        std::fs::rename(world.host_path().join("next"), world.root.join("f")).unwrap();
    };
    with_concurrent(replace, || {
        let value = world.value("read_file", &json!({"path": "f"}));
        let content = value["content"].as_str().unwrap();
        let first = content.chars().next().unwrap();
        assert!(content.len() == 800 << 10 && content.chars().all(|letter| letter == first), "two versions in one");
    });
}

#[test]
fn one_of_many_concurrent_creates_succeeds() {
    for round in 0..10 {
        let world = FsFixture::with(FsFixtureConfig { preset: Preset::Ask, ..FsFixtureConfig::default() });
        let path = format!("new-{round}");
        let made: Vec<String> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..8)
                .map(|number| {
                    let (world, path) = (&world, &path);
                    scope.spawn(move || {
                        let answer = world.call("write_file", &json!({"path": path, "content": format!("{number}")}));
                        match answer.error {
                            None => Some(format!("{number}")),
                            Some(ErrorKind::Conflict | ErrorKind::ApprovalDenied) => None,
                            other => panic!("{other:?}: {}", answer.text),
                        }
                    })
                })
                .collect();
            calls.into_iter().filter_map(|call| call.join().unwrap()).collect()
        });
        assert_eq!(made.len(), 1, "{made:?}");
        assert_eq!(world.read(&path), made[0]);
    }
}

#[test]
fn directories_that_many_make_at_once_are_made_for_all() {
    let world = FsFixture::new();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let world = &world;
            scope.spawn(move || {
                let arguments = json!({"path": format!("a/b/c/{number}"), "content": "x", "createDirs": true});
                world.value("write_file", &arguments);
            });
        }
    });
    assert_eq!(std::fs::read_dir(world.root.join("a/b/c")).unwrap().count(), 8);
}

#[test]
fn parents_that_another_program_creates_at_the_same_time_are_used() {
    let world = FsFixture::new();
    let round = AtomicUsize::new(0);
    let disturb = || {
        let directory = format!("new-{}/deep", round.load(Ordering::Relaxed));
        std::fs::create_dir_all(world.root.join(directory)).unwrap();
    };
    with_concurrent(disturb, || {
        let path = format!("new-{}/deep/file", round.load(Ordering::Relaxed));
        world.value("write_file", &json!({"path": path, "content": "x", "createDirs": true}));
        round.fetch_add(1, Ordering::Relaxed);
    });
}

#[test]
fn a_listing_beside_others_at_work_names_only_what_was_there() {
    let world = FsFixture::new();
    for number in 0..50 {
        world.write(&format!("d/steady-{number:02}"), "");
    }
    let churn = || {
        world.write("d/passing", "");
        std::fs::remove_file(world.root.join("d/passing")).unwrap();
    };
    with_concurrent(churn, || {
        let value = world.value("list_directory", &json!({"path": "d"}));
        let names: Vec<&str> =
            value["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
        assert!(names.is_sorted() && value["truncated"].is_null(), "{value}");
        assert_eq!(names.iter().filter(|name| name.starts_with("steady-")).count(), 50);
    });
}

#[test]
fn names_that_other_systems_would_not_tell_apart_are_pointed_out() {
    let world = FsFixture::new();
    world.write("caf\u{e9}.txt", "");
    world.write("straße", "");
    world.write("Makefile", "");
    let collision =
        |path: &str| world.value("write_file", &json!({"path": path, "content": ""}))["collidesWith"].clone();
    assert_eq!(collision("cafe\u{301}.txt"), "caf\u{e9}.txt");
    assert_eq!(collision("STRASSE"), "straße");
    assert_eq!(collision("makefile"), "Makefile");
    assert!(collision("other").is_null());
    // Overwriting makes no new name.
    assert!(collision("makefile").is_null());
}

#[test]
fn an_edit_that_mixes_the_endings_of_lines_says_so() {
    let world = FsFixture::new();
    world.write("crlf", "a\r\nb\r\n");
    let edit = |old: &str, new: &str| {
        let arguments = json!({"path": "crlf", "oldText": old, "newText": new});
        world.value("edit_file", &arguments)["mixedEol"].clone()
    };
    assert!(edit("b", "c\r\nd").is_null());
    assert_eq!(edit("d", "e\nf"), true);
    // It was mixed already.
    assert!(edit("f", "g").is_null());
}

#[test]
fn an_entry_with_the_name_of_a_mount_is_marked_and_reached_with_a_dot() {
    let setup = FsFixtureConfig { mounts: vec![("pkg", MountAccess::ReadOnly)], ..FsFixtureConfig::default() };
    let world = FsFixture::with(setup);
    world.write("@pkg/f", "of the workspace");
    let value = world.value("list_directory", &json!({"path": "."}));
    assert_eq!((&value["entries"][0]["name"], &value["entries"][0]["shadowed"]), (&json!("@pkg"), &json!(true)));
    assert_eq!(world.error("read_file", &json!({"path": "@pkg/f"})), ErrorKind::NotFound);
    assert_eq!(world.value("read_file", &json!({"path": "./@pkg/f"}))["content"], "of the workspace");
}

#[test]
fn concurrent_appends_and_patches_lose_nothing() {
    let world = FsFixture::new();
    world.write("f1", "one\n");
    world.write("f2", "two\n");
    let patch = |from: &str, to: &str| {
        let part = |file: &str, old: &str, new: &str| format!("--- {file}\n+++ {file}\n@@ -1 +1 @@\n-{old}\n+{new}\n");
        json!({"patch": part("f1", &format!("{from}ne"), &format!("{to}ne")) + &part("f2", "two", "2")})
    };
    let put_back = |by: &str| {
        std::fs::write(world.root.join(by), "two\n").unwrap();
        std::fs::rename(world.root.join(by), world.root.join("f2")).unwrap();
    };
    let over = AtomicBool::new(false);
    let (patched, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut acknowledged = 0;
    std::thread::scope(|scope| {
        // Another writer replaces the second file, so that patches are refused after the first file was changed.
        scope.spawn(|| {
            let tried = || patched.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed);
            while !over.load(Ordering::Relaxed) {
                // Every other patch is let through.
                if tried() / 2 % 2 == 0 {
                    put_back("f3");
                }
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (from, to) in [("o", "O"), ("O", "o")] {
                    put_back("f4");
                    let done = world.call("apply_patch", &patch(from, to)).error.is_none();
                    if done { &patched } else { &refused }.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let started = Instant::now();
        let both = || patched.load(Ordering::Relaxed) > 0 && refused.load(Ordering::Relaxed) > 0;
        while started.elapsed() < SOME_TIME * 2 || !both() {
            let line = json!({"path": "f1", "content": format!("line {acknowledged}\n")});
            if world.call("append_file", &line).error.is_none() {
                acknowledged += 1;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    println!("{acknowledged} lines, {patched:?} patches, {refused:?} refused");
    let lines: Vec<String> = world.read("f1").lines().skip(1).map(str::to_owned).collect();
    assert_eq!(lines, (0..acknowledged).map(|number| format!("line {number}")).collect::<Vec<_>>());
}
