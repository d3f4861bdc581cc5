//! Special files: pipes, sockets, devices; and directories and files swapped for each other.

use std::path::Path;

use ringfence_fs::ResolverBackend;
use ringfence_kernel::ErrorKind::{self, AlreadyExists, WrongType};
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::fs::{CWD, FileType, Mode, inotify, makedev, mknodat};
use serde_json::{Value, json};

use super::operations::PathUse;
use super::subprocess::is_root;
use super::{FsAttackCase, case, check};
use crate::fixture::{FsFixture, FsFixtureConfig};

pub(crate) fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

pub(crate) fn make_socket(path: &Path) {
    mknodat(CWD, path, FileType::Socket, Mode::from_raw_mode(0o644), 0).unwrap();
}

/// Its type is one that no tool reads or writes; it can only be described, moved and deleted.
fn judge(usage: PathUse) -> Option<ErrorKind> {
    match usage {
        PathUse::Read | PathUse::List | PathUse::Write | PathUse::Edit | PathUse::MoveTo { overwrite: true } => {
            Some(WrongType)
        }
        PathUse::MoveTo { overwrite: false } | PathUse::MakeDirectory => Some(AlreadyExists),
        PathUse::Describe | PathUse::Delete | PathUse::MoveAway => None,
    }
}

fn cases(kind: &'static str, make: fn(&Path)) -> Vec<FsAttackCase> {
    let there = |name: &str| {
        case(format!("a {kind} {name}")).file("other.txt", "other").given(move |world| make(&world.root.join("it")))
    };
    vec![
        there("is not a file").refuses_every_operation("it", judge),
        there("is not a file in miniclaw").miniclaw().refuses_every_operation("it", judge),
        there("is not a directory").refuses_every_operation("it/x", |_| Some(WrongType)),
        there("is described, listed, moved and deleted without being opened")
            .succeeds("get_file_info", json!({"path": "it"}), move |_, value| {
                assert_eq!((&value["type"], &value["sha256"]), (&json!(kind), &Value::Null));
            })
            .succeeds("list_directory", json!({"path": "."}), move |_, value| {
                assert_eq!(value["entries"][0]["type"], kind);
            })
            .fails("move_file", json!({"from": "it", "to": "other.txt", "overwrite": true}), WrongType)
            .succeeds("move_file", json!({"from": "it", "to": "d"}), |_, _| ())
            .succeeds("delete_file", json!({"path": "d"}), |world, _| assert!(!world.root.join("d").exists())),
    ]
}

/// Names of the workspace that were opened since the watch began, and not only looked at.
fn opened(watch: &rustix::fd::OwnedFd) -> Vec<String> {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    let mut names = Vec::new();
    while let Ok(event) = events.next() {
        names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    names
}

#[test]
fn a_special_file_is_never_opened() {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        let world = FsFixture::with(FsFixtureConfig::default().on(backend));
        world.write("other.txt", "other");
        make_fifo(&world.root.join("pipe"));
        make_socket(&world.root.join("socket"));
        let device = world.root.join("device");
        let made = mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 5));
        let names = ["pipe", "socket", "device", "link"];
        std::os::unix::fs::symlink("pipe", world.root.join("link")).unwrap();
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, &world.root, inotify::WatchFlags::OPEN).unwrap();
        for name in names.into_iter().filter(|name| *name != "device" || made.is_ok()) {
            let patch = "@@ -1 +1 @@\n-x\n+y\n";
            for (tool, arguments) in [
                ("read_file", json!({"path": name})),
                ("read_file", json!({"path": name, "startLine": 1})),
                ("write_file", json!({"path": name, "content": "x"})),
                ("append_file", json!({"path": name, "content": "x"})),
                ("edit_file", json!({"path": name, "oldText": "x", "newText": "y"})),
                ("apply_patch", json!({"path": name, "patch": patch})),
                ("search_files", json!({"path": name, "pattern": "x"})),
                ("search_files", json!({"path": ".", "pattern": "x", "includeIgnored": true})),
                ("copy_file", json!({"from": name, "to": "copy"})),
                ("copy_file", json!({"from": "other.txt", "to": name, "overwrite": true})),
                ("move_file", json!({"from": "other.txt", "to": name, "overwrite": true})),
                ("get_file_info", json!({"path": name})),
                ("list_directory", json!({"path": name})),
                ("list_directory", json!({"path": ".", "recursive": true})),
                ("find_files", json!({"path": ".", "glob": "*"})),
                ("read_file", json!({"path": format!("{name}x")})),
            ] {
                world.call(tool, &arguments);
                let opened = opened(&watch);
                assert!(
                    !opened.iter().any(|opened| names.contains(&opened.as_str())),
                    "{tool} {arguments}: {opened:?}"
                );
            }
        }
        // The watch sees what is opened.
        world.value("read_file", &json!({"path": "other.txt"}));
        assert!(opened(&watch).contains(&"other.txt".to_owned()));
    }
}

#[test]
fn a_pipe_is_refused_at_once() {
    check(|| cases("fifo", make_fifo));
}

#[test]
fn a_socket_is_refused() {
    check(|| cases("socket", make_socket));
}

#[test]
fn a_device_is_refused() {
    let make = |path: &Path| mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 5));
    let place = tempfile::tempdir().unwrap();
    if !is_root() || make(&place.path().join("zero")).is_err() {
        return skip_without(Requirement::Devices, "only root makes a device");
    }
    check(|| {
        cases("device", |path| {
            mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 5)).unwrap();
        })
    });
}

#[test]
fn a_block_device_is_refused() {
    let make = |path: &Path| mknodat(CWD, path, FileType::BlockDevice, Mode::from_raw_mode(0o666), makedev(7, 200));
    let place = tempfile::tempdir().unwrap();
    if !is_root() || make(&place.path().join("loop")).is_err() {
        return skip_without(Requirement::Devices, "only root makes a device");
    }
    check(|| {
        cases("device", |path| {
            mknodat(CWD, path, FileType::BlockDevice, Mode::from_raw_mode(0o666), makedev(7, 200)).unwrap();
        })
    });
}

#[test]
fn files_and_directories_are_not_interchangeable() {
    check(|| {
        let there = |name: &str| case(name).file("other.txt", "other").file("d/f", "f").directory("empty");
        let on_directory = |usage| match usage {
            PathUse::Read | PathUse::Write | PathUse::Edit | PathUse::MoveTo { overwrite: true } => Some(WrongType),
            PathUse::MoveTo { overwrite: false } => Some(AlreadyExists),
            _ => None,
        };
        let mut cases = Vec::new();
        for path in ["d", "d/", "empty"] {
            cases.push(there(&format!("{path} is not a file")).refuses_every_operation(path, on_directory));
            cases.push(
                there(&format!("{path} is not a file in miniclaw"))
                    .miniclaw()
                    .refuses_every_operation(path, on_directory),
            );
        }
        for path in ["other.txt/x", "other.txt/x/y", "d/f/x", "other.txt/."] {
            let judge = |usage| (usage != PathUse::MakeDirectory || !path.ends_with('.')).then_some(WrongType);
            let judge = |usage| judge(usage).filter(|_| !matches!(usage, PathUse::MoveTo { .. }));
            cases.push(there(&format!("{path} is below a file")).refuses_every_operation(path, judge));
            cases.push(
                there(&format!("{path} is below a file in miniclaw")).miniclaw().refuses_every_operation(path, judge),
            );
        }
        cases.push(
            there("nothing is moved below a file")
                .fails("move_file", json!({"from": "d", "to": "other.txt/x"}), WrongType)
                .fails("move_file", json!({"from": "d/f", "to": "other.txt/x"}), WrongType),
        );
        cases.push(
            there("a file cannot be listed")
                .fails("list_directory", json!({"path": "other.txt"}), WrongType)
                .fails("find_files", json!({"path": "other.txt", "glob": "*"}), WrongType)
                .fails("create_directory", json!({"path": "other.txt"}), AlreadyExists)
                .succeeds("create_directory", json!({"path": "d"}), |world, value| {
                    assert_eq!((&value["created"], world.read("d/f").as_str()), (&json!(false), "f"));
                }),
        );
        cases
    });
}
