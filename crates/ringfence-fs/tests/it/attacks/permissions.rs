//! Modes, owners and attributes, as root and as the user `nobody`.
//!
//! For root the fence itself enforces the mode bits; for `nobody` the kernel does. The same table holds for both.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use ringfence_kernel::ErrorKind::{NotFound, PermissionDenied, Unavailable, WriteLimit};
use ringfence_kernel::Preset;
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::fs::{CWD, Mode, OFlags, XattrFlags, fgetxattr, fsetxattr, openat};
use serde_json::json;

use super::operations::PathUse;
use super::subprocess::{NOBODY, TestSubprocess, is_child, is_root, system};
use super::{AttackBackend, FsAttackCase, case, check, temp_dir_for};
use crate::fixture::{FsFixture, FsFixtureConfig};

fn chmod(world: &FsFixture, path: &str, mode: u32) {
    std::fs::set_permissions(world.root.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(world: &FsFixture, path: &str) -> u32 {
    world.root.join(path).metadata().unwrap().mode() & 0o7777
}

/// A file of some mode, beside `other.txt`.
fn file_of(mode: u32, name: &str) -> FsAttackCase {
    case(format!("a file of mode {mode:04o} {name}"))
        .file("other.txt", "other")
        .file("f", "old other")
        .given(move |world| chmod(world, "f", mode))
}

/// A directory of some mode with a file in it. It is opened up again at the end, to be cleared away.
fn directory_of(mode: u32, name: &str, calls: impl FnOnce(FsAttackCase) -> FsAttackCase) -> FsAttackCase {
    let before = case(format!("a directory of mode {mode:04o} {name}"))
        .file("other.txt", "other")
        .file("d/f", "old other")
        .directory("d/e")
        .given(move |world| chmod(world, "d", mode));
    calls(before).then(|world| chmod(world, "d", 0o755))
}

fn mode_cases() -> Vec<FsAttackCase> {
    let changes = |usage| matches!(usage, PathUse::Write | PathUse::Edit | PathUse::MoveTo { overwrite: true });
    let reads = |usage| usage == PathUse::Read;
    let denied = |yes: bool| yes.then_some(PermissionDenied);
    vec![
        file_of(0o000, "is neither read nor written")
            .refuses_every_operation("f", move |usage| denied(reads(usage) || changes(usage)))
            .succeeds("get_file_info", json!({"path": "f"}), |_, value| {
                assert_eq!((&value["mode"], &value["sha256"]), (&json!("0000"), &json!(null)));
            }),
        file_of(0o000, "in miniclaw")
            .miniclaw()
            .refuses_every_operation("f", move |usage| denied(reads(usage) || changes(usage))),
        file_of(0o000, "is moved and deleted: that is the directory's to allow")
            .succeeds("move_file", json!({"from": "f", "to": "g"}), |_, _| ())
            .succeeds("delete_file", json!({"path": "g"}), |_, _| ()),
        file_of(0o444, "is read and not replaced")
            .refuses_every_operation("f", move |usage| denied(changes(usage)))
            .succeeds("read_file", json!({"path": "f"}), |_, value| assert_eq!(value["content"], "old other")),
        file_of(0o444, "in miniclaw").miniclaw().refuses_every_operation("f", move |usage| denied(changes(usage))),
        file_of(0o222, "is written and not read")
            .refuses_every_operation("f", move |usage| denied(reads(usage) || usage == PathUse::Edit))
            .succeeds("write_file", json!({"path": "f", "content": "new"}), |world, _| {
                assert_eq!(mode(world, "f"), 0o222);
            })
            .succeeds("append_file", json!({"path": "f", "content": "er"}), |world, value| {
                assert_eq!((mode(world, "f"), &value["size"]), (0o222, &json!(5)));
            }),
        directory_of(0o555, "gets no new names and loses none", |case| {
            case.fails("write_file", json!({"path": "d/new", "content": "x"}), PermissionDenied)
                .fails("write_file", json!({"path": "d/a/b", "content": "x", "createDirs": true}), PermissionDenied)
                .fails("write_file", json!({"path": "d/f", "content": "x"}), PermissionDenied)
                .fails("append_file", json!({"path": "d/new", "content": "x"}), PermissionDenied)
                .fails("edit_file", json!({"path": "d/f", "oldText": "old", "newText": "x"}), PermissionDenied)
                .fails("copy_file", json!({"from": "other.txt", "to": "d/new"}), PermissionDenied)
                .fails("copy_file", json!({"from": "other.txt", "to": "d/f", "overwrite": true}), PermissionDenied)
                .fails("move_file", json!({"from": "other.txt", "to": "d/new"}), PermissionDenied)
                .fails("move_file", json!({"from": "other.txt", "to": "d/f", "overwrite": true}), PermissionDenied)
                .fails("move_file", json!({"from": "d/f", "to": "new"}), PermissionDenied)
                .fails("delete_file", json!({"path": "d/f"}), PermissionDenied)
                .fails("delete_file", json!({"path": "d/e"}), PermissionDenied)
                .fails("create_directory", json!({"path": "d/new"}), PermissionDenied)
                .fails("create_directory", json!({"path": "d/a/b"}), PermissionDenied)
                .fails("delete_file", json!({"path": "d", "recursive": true}), PermissionDenied)
                .succeeds("read_file", json!({"path": "d/f"}), |_, value| assert_eq!(value["content"], "old other"))
                .succeeds("append_file", json!({"path": "d/f", "content": "!"}), |world, _| {
                    assert_eq!(world.read("d/f"), "old other!");
                })
        }),
        directory_of(0o555, "in miniclaw", |case| {
            case.miniclaw().fails("write_file", json!({"path": "d/new", "content": "x"}), PermissionDenied).fails(
                "write_file",
                json!({"path": "d/a/b/c", "content": "x"}),
                PermissionDenied,
            )
        }),
        directory_of(0o333, "is not listed", |case| {
            case.fails("list_directory", json!({"path": "d"}), PermissionDenied)
                .fails("list_directory", json!({"path": "d", "recursive": true}), PermissionDenied)
                .fails("find_files", json!({"path": "d", "glob": "*"}), PermissionDenied)
                .succeeds("read_file", json!({"path": "d/f"}), |_, value| assert_eq!(value["content"], "old other"))
        }),
        directory_of(0o000, "is not listed and nothing comes into it", |case| {
            case.fails("list_directory", json!({"path": "d"}), PermissionDenied)
                .fails("write_file", json!({"path": "d/new", "content": "x"}), PermissionDenied)
                .fails("write_file", json!({"path": "d/f", "content": "x"}), PermissionDenied)
                .fails("delete_file", json!({"path": "d/f"}), PermissionDenied)
                .fails("delete_file", json!({"path": "d", "recursive": true}), PermissionDenied)
        }),
        directory_of(0o000, "is passed over in a walk", |case| {
            case.succeeds("list_directory", json!({"path": ".", "recursive": true}), |_, value| {
                let names: Vec<_> = value["entries"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
                assert_eq!((names, &value["unreadable"]), (vec![&json!("d"), &json!("other.txt")], &json!(1)));
            })
            .succeeds("find_files", json!({"path": ".", "glob": "**"}), |_, value| {
                assert_eq!(value["paths"], json!(["d/", "other.txt"]));
            })
        }),
        directory_of(0o000, "is not entered", |case| {
            case.fails("read_file", json!({"path": "d/f"}), PermissionDenied)
                .fails("get_file_info", json!({"path": "d/f"}), PermissionDenied)
                .fails("copy_file", json!({"from": "d/f", "to": "new"}), PermissionDenied)
                .fails("append_file", json!({"path": "d/f", "content": "x"}), PermissionDenied)
                .fails("list_directory", json!({"path": "d/e"}), PermissionDenied)
        }),
        directory_of(0o666, "is not entered", |case| {
            case.fails("read_file", json!({"path": "d/f"}), PermissionDenied)
                .fails("append_file", json!({"path": "d/f", "content": "x"}), PermissionDenied)
                .fails("write_file", json!({"path": "d/f", "content": "x"}), PermissionDenied)
                .fails("write_file", json!({"path": "d/new", "content": "x"}), PermissionDenied)
        }),
    ]
}

fn metadata_cases() -> Vec<FsAttackCase> {
    let mut cases = Vec::new();
    for (before, after) in
        [(0o4755, 0o755), (0o2755, 0o755), (0o6777, 0o777), (0o1644, 0o644), (0o640, 0o640), (0o600, 0o600)]
    {
        let kept = move |world: &FsFixture| assert_eq!(mode(world, "f"), after, "{before:o}");
        cases.push(file_of(before, "loses what is more than permissions when it is written").succeeds(
            "write_file",
            json!({"path": "f", "content": "new"}),
            move |world, _| kept(world),
        ));
        cases.push(file_of(before, "and when it is appended to").succeeds(
            "append_file",
            json!({"path": "f", "content": "new"}),
            move |world, _| kept(world),
        ));
        cases.push(file_of(before, "and when it is edited").succeeds(
            "edit_file",
            json!({"path": "f", "oldText": "old", "newText": "x"}),
            move |world, _| kept(world),
        ));
        cases.push(file_of(before, "and when it is copied").succeeds(
            "copy_file",
            json!({"from": "f", "to": "g"}),
            move |world, _| {
                // The copy is never more open than the original.
                assert_eq!((mode(world, "f"), mode(world, "g") & !after), (before, 0));
            },
        ));
    }
    cases.push(
        case("attributes of users stay, and what grants rights goes")
            .file("f", "x")
            .given(|world| {
                let file = openat(CWD, world.root.join("f"), OFlags::RDWR, Mode::empty()).unwrap();
                if fsetxattr(&file, "user.note", b"kept", XattrFlags::empty()).is_err() {
                    skip_without(Requirement::UserXattrs, "this file system has no attributes of users");
                }
            })
            .succeeds("write_file", json!({"path": "f", "content": "y"}), |world, _| {
                let file = openat(CWD, world.root.join("f"), OFlags::RDWR, Mode::empty()).unwrap();
                if fsetxattr(&file, "user.other", b"", XattrFlags::empty()).is_ok() {
                    let mut value = [0; 16];
                    assert_eq!(fgetxattr(&file, "user.note", &mut value[..]), Ok(4));
                    assert_eq!(&value[..4], b"kept");
                }
            }),
    );
    cases
}

#[test]
fn mode_bits_hold_for_root_and_users() {
    check(mode_cases);
    if is_root() && !is_child() {
        TestSubprocess::new().run_as(NOBODY, "attacks::permissions::mode_bits_hold_for_root_and_users");
    }
}

/// A person is not asked about a change that the file system then refuses.
#[test]
fn a_change_that_permissions_forbid_is_not_asked_about() {
    let patch = |path: &str| format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-old\n+new\n");
    let cases = [
        ("write_file", json!({"path": "f", "content": "x"})),
        ("append_file", json!({"path": "f", "content": "x"})),
        ("edit_file", json!({"path": "f", "oldText": "old", "newText": "x"})),
        ("apply_patch", json!({"patch": patch("f")})),
        ("copy_file", json!({"from": "other.txt", "to": "f", "overwrite": true})),
        ("move_file", json!({"from": "other.txt", "to": "f", "overwrite": true})),
        ("write_file", json!({"path": "d/new", "content": "x"})),
        ("write_file", json!({"path": "d/a/b", "content": "x", "createDirs": true})),
        ("write_file", json!({"path": "d/f", "content": "x"})),
        ("append_file", json!({"path": "d/new", "content": "x"})),
        ("edit_file", json!({"path": "d/f", "oldText": "old", "newText": "x"})),
        ("apply_patch", json!({"patch": patch("d/f")})),
        ("copy_file", json!({"from": "other.txt", "to": "d/new"})),
        ("move_file", json!({"from": "other.txt", "to": "d/new"})),
        ("move_file", json!({"from": "d/f", "to": "new"})),
        ("delete_file", json!({"path": "d/f"})),
        ("delete_file", json!({"path": "d/e"})),
        ("create_directory", json!({"path": "d/new"})),
    ];
    for (tool, arguments) in cases {
        let person = ScriptedApprover::approving();
        let world = FsFixture::with(FsFixtureConfig {
            preset: Preset::Ask,
            person: Some(person.clone()),
            ..FsFixtureConfig::default()
        });
        for path in ["f", "d/f", "other.txt"] {
            world.write(path, "old\n");
        }
        std::fs::create_dir(world.root.join("d/e")).unwrap();
        chmod(&world, "f", 0o444);
        chmod(&world, "d", 0o555);
        let (kind, count) = (world.error(tool, &arguments), person.count());
        chmod(&world, "d", 0o755);
        assert_eq!((kind, count), (PermissionDenied, 0), "{tool} {arguments}");
    }
    if is_root() && !is_child() {
        TestSubprocess::new()
            .run_as(NOBODY, "attacks::permissions::a_change_that_permissions_forbid_is_not_asked_about");
    }
}

#[test]
fn a_change_keeps_a_files_mode_and_drops_what_lets_it_run_as_another() {
    check(metadata_cases);
    if is_root() && !is_child() {
        TestSubprocess::new()
            .run_as(NOBODY, "attacks::permissions::a_change_keeps_a_files_mode_and_drops_what_lets_it_run_as_another");
    }
}

#[test]
fn a_file_of_another_owner_keeps_its_owner() {
    if !is_root() {
        return skip_without(Requirement::Root, "only root gives a file to another user");
    }
    check(|| {
        let given = |name: &str| {
            file_of(0o644, name).given(|world| {
                std::os::unix::fs::chown(world.root.join("f"), Some(1234), Some(2345)).unwrap();
            })
        };
        let kept = |world: &FsFixture| {
            let found = world.root.join("f").metadata().unwrap();
            assert_eq!((found.uid(), found.gid()), (1234, 2345));
        };
        vec![
            given("written").succeeds("write_file", json!({"path": "f", "content": "x"}), move |world, _| kept(world)),
            given("appended to")
                .succeeds("append_file", json!({"path": "f", "content": "x"}), move |world, _| kept(world)),
            given("edited").succeeds(
                "edit_file",
                json!({"path": "f", "oldText": "old", "newText": "x"}),
                move |world, _| {
                    kept(world);
                },
            ),
        ]
    });
}

/// Nothing of a workspace is changed, and what is there can be read.
#[track_caller]
fn check_stopped(world: &FsFixture, change: &str) {
    for (tool, arguments) in [
        ("write_file", json!({"path": "f", "content": "x"})),
        ("write_file", json!({"path": "new", "content": "x"})),
        ("append_file", json!({"path": "f", "content": "x"})),
        ("create_directory", json!({"path": "d"})),
        ("delete_file", json!({"path": "f"})),
        ("undo", json!({"change": change})),
    ] {
        let answer = world.call(tool, &arguments);
        let refused = answer.error == Some(Unavailable) || (tool == "undo" && answer.error == Some(NotFound));
        assert!(refused, "{tool} {arguments}: {}", answer.text);
    }
    assert_eq!(world.value("read_file", &json!({"path": "f"}))["content"], "two");
}

#[test]
fn a_keep_that_others_may_enter_stops_every_change() {
    let world = FsFixture::new();
    world.write("f", "one");
    let change = world.value("write_file", &json!({"path": "f", "content": "two"}))["change"].clone();
    let change = change.as_str().unwrap();
    for open in [0o770, 0o707, 0o720, 0o702, 0o701, 0o1777] {
        chmod(&world, ".ringfence", open);
        check_stopped(&world, change);
    }
    chmod(&world, ".ringfence", 0o700);
    if is_root() {
        let give = |owner| std::os::unix::fs::chown(world.root.join(".ringfence"), Some(owner), None).unwrap();
        give(1234);
        check_stopped(&world, change);
        give(0);
    }
    world.value("undo", &json!({"change": change}));
    assert_eq!(world.read("f"), "one");
    if is_root() && !is_child() {
        TestSubprocess::new().run_as(NOBODY, "attacks::permissions::a_keep_that_others_may_enter_stops_every_change");
    }
}

#[test]
fn a_keep_of_another_owner_is_not_ours() {
    let name = "workspace-with-a-keep-of-root";
    if !is_child() {
        if !is_root() {
            return skip_without(Requirement::Root, "only root makes a directory that is root's");
        }
        let elsewhere = TestSubprocess::new();
        let workspace = elsewhere.temporary().join(name);
        std::fs::create_dir_all(workspace.join(".ringfence")).unwrap();
        std::fs::set_permissions(workspace.join(".ringfence"), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&workspace, Some(NOBODY), Some(NOBODY)).unwrap();
        return elsewhere.run_as(NOBODY, "attacks::permissions::a_keep_of_another_owner_is_not_ours");
    }
    let world = FsFixture::new();
    std::fs::remove_dir(&world.root).unwrap();
    std::fs::rename(std::env::temp_dir().join(name), &world.root).unwrap();
    let world = world.reopened(FsFixtureConfig::default());
    world.write("f", "two");
    check_stopped(&world, "c-1");
}

/// Files of root's, made by root for the test that runs as `nobody`.
const OF_ROOT: &str = "RINGFENCE_OF_ROOT";

#[test]
fn a_file_whose_owner_cannot_be_kept_is_not_replaced() {
    if !is_child() {
        if !is_root() {
            return skip_without(Requirement::Root, "only root makes a file that is root's");
        }
        let elsewhere = TestSubprocess::new();
        for at in 0..6 {
            let path = elsewhere.temporary().join(format!("{OF_ROOT}-{at}"));
            std::fs::write(&path, "old other").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        return elsewhere.run_as(NOBODY, "attacks::permissions::a_file_whose_owner_cannot_be_kept_is_not_replaced");
    }
    check(|| {
        vec![
            case("anybody may write to it, and nobody can own it")
                .file("other.txt", "other")
                .given(|world| {
                    let taken = (0..6).any(|at| {
                        let name = std::env::temp_dir().join(format!("{OF_ROOT}-{at}"));
                        std::fs::rename(name, world.root.join("f")).is_ok()
                    });
                    assert!(taken);
                    assert_eq!(world.root.join("f").metadata().unwrap().uid(), 0);
                })
                .fails("write_file", json!({"path": "f", "content": "x"}), PermissionDenied)
                .fails("edit_file", json!({"path": "f", "oldText": "old", "newText": "x"}), PermissionDenied)
                .fails("copy_file", json!({"from": "other.txt", "to": "f", "overwrite": true}), PermissionDenied)
                .succeeds("append_file", json!({"path": "f", "content": "!"}), |world, _| {
                    assert_eq!(world.root.join("f").metadata().unwrap().uid(), 0);
                    assert_eq!(world.read("f"), "old other!");
                }),
        ]
    });
}

#[test]
fn a_file_that_can_only_grow_is_appended_to_and_not_replaced() {
    let can_mark = |way| {
        let place = temp_dir_for(way);
        let path = place.path().join("f");
        std::fs::write(&path, "").unwrap();
        system("chattr", &["+a"], &path) && system("chattr", &["-a"], &path)
    };
    if !is_root() || !can_mark(AttackBackend::Openat2) || !can_mark(AttackBackend::CapStd) {
        return skip_without(
            Requirement::AppendOnlyFiles,
            "append-only files need root, `chattr` and a file system that has them",
        );
    }
    check(|| {
        let flagged = |flag: &'static str, calls: fn(FsAttackCase) -> FsAttackCase| {
            let there =
                case(format!("chattr {flag}")).file("other.txt", "other").file("f", "old other").given(move |world| {
                    assert!(system("chattr", &[flag], &world.root.join("f")));
                });
            calls(there).then(move |world| {
                assert!(system("chattr", &[&flag.replace('+', "-")], &world.root.join("f")));
            })
        };
        vec![
            flagged("+a", |case| {
                case.succeeds("append_file", json!({"path": "f", "content": "!"}), |world, _| {
                    assert_eq!(world.read("f"), "old other!");
                })
                .fails("write_file", json!({"path": "f", "content": "x"}), PermissionDenied)
                .fails("edit_file", json!({"path": "f", "oldText": "old", "newText": "x"}), PermissionDenied)
                .fails("copy_file", json!({"from": "other.txt", "to": "f", "overwrite": true}), PermissionDenied)
                .fails("move_file", json!({"from": "other.txt", "to": "f", "overwrite": true}), PermissionDenied)
                .fails("move_file", json!({"from": "f", "to": "g"}), PermissionDenied)
                .fails("delete_file", json!({"path": "f"}), PermissionDenied)
            }),
            flagged("+i", |case| {
                case.fails("append_file", json!({"path": "f", "content": "!"}), PermissionDenied)
                    .fails("write_file", json!({"path": "f", "content": "x"}), PermissionDenied)
                    .fails("edit_file", json!({"path": "f", "oldText": "old", "newText": "x"}), PermissionDenied)
                    .fails("move_file", json!({"from": "f", "to": "g"}), PermissionDenied)
                    .fails("delete_file", json!({"path": "f"}), PermissionDenied)
            }),
        ]
    });
}

#[test]
fn new_files_and_directories_are_as_open_whatever_the_umask() {
    if !is_child() {
        for mask in ["000", "022", "027", "077"] {
            TestSubprocess::new().run_after(
                &format!("umask {mask}"),
                "attacks::permissions::new_files_and_directories_are_as_open_whatever_the_umask",
            );
        }
        return;
    }
    check(|| {
        let look = |world: &FsFixture, paths: [&str; 2]| {
            assert_eq!((mode(world, paths[0]), mode(world, paths[1])), (0o755, 0o644));
        };
        let patch = "--- /dev/null\n+++ b/p/q/f\n@@ -0,0 +1 @@\n+x\n--- /dev/null\n+++ b/p/g\n@@ -0,0 +1 @@\n+x\n";
        vec![
            case("in the standard dialect")
                .succeeds(
                    "write_file",
                    json!({"path": "a/b/f", "content": "x", "createDirs": true}),
                    move |world, _| {
                        look(world, ["a/b", "a/b/f"]);
                    },
                )
                .succeeds("append_file", json!({"path": "a/g", "content": "x"}), move |world, _| {
                    look(world, ["a", "a/g"])
                })
                .succeeds("copy_file", json!({"from": "a/g", "to": "a/h"}), move |world, _| look(world, ["a", "a/h"]))
                .succeeds("create_directory", json!({"path": "c/d"}), move |world, _| look(world, ["c/d", "a/h"]))
                .succeeds("apply_patch", json!({"patch": patch}), move |world, _| {
                    look(world, ["p", "p/g"]);
                    look(world, ["p/q", "p/q/f"]);
                })
                .then(move |world| look(world, ["c", "a/h"])),
            case("in miniclaw")
                .miniclaw()
                .replies("append_file", json!({"path": "a/f", "content": "x"}), "ok: appended 1 bytes to a/f (size=1)")
                .then(move |world| look(world, ["a", "a/f"])),
        ]
    });
}

#[test]
fn a_file_past_the_limit_of_the_process_is_too_large() {
    if !is_child() {
        // Half a kilobyte a block: 64 KiB. The signal is ignored, as the program does.
        return TestSubprocess::new().run_after(
            "trap '' XFSZ; ulimit -f 128",
            "attacks::permissions::a_file_past_the_limit_of_the_process_is_too_large",
        );
    }
    check(|| {
        let large = "x".repeat(200_000);
        vec![
            case("what was there stays")
                .file("f", "old")
                .fails("write_file", json!({"path": "f", "content": large}), WriteLimit)
                .fails("write_file", json!({"path": "a/g", "content": large, "createDirs": true}), WriteLimit)
                .fails("append_file", json!({"path": "f", "content": large}), WriteLimit)
                .fails("append_file", json!({"path": "g", "content": large}), WriteLimit)
                .succeeds("write_file", json!({"path": "f", "content": "new"}), |world, _| {
                    assert_eq!(world.read("f"), "new");
                }),
        ]
    });
}
