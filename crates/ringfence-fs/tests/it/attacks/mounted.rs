//! File systems that are really mounted: inside the workspace, where they are no part of it, and under it.
//!
//! Needs root. Each test runs in a process that has its mounts to itself.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use ringfence_fs::{Backend, Rights};
use ringfence_kernel::ErrorKind::{
    self, AlreadyExists, InvalidPath, Io, OutsideWorkspace, PermissionDenied, WrongType,
};
use serde_json::json;

use super::elsewhere::{Elsewhere, here, is_root, left_out};
use super::every::Use;
use super::{Case, case, check, prepare, run};
use crate::world::World;

/// Runs the rest of a test where it may mount. Says whether this is there.
fn there(test: &str) -> bool {
    if here() {
        return true;
    }
    if is_root() && Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
        Elsewhere::new().run_with_mounts(test);
    } else {
        left_out("only root can mount");
    }
    false
}

fn mount(arguments: &[&str], target: &Path) {
    let output = Command::new("mount").args(arguments).arg(target).output().unwrap();
    assert!(output.status.success(), "mount {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn unmount(target: &Path) {
    // Whatever still holds it open keeps it until it lets go.
    assert!(Command::new("umount").arg("-l").arg(target).status().unwrap().success());
}

/// What is mounted at `inner` can be seen and not entered, and not taken away.
fn at_mount(usage: Use) -> Option<ErrorKind> {
    match usage {
        Use::Read | Use::List => Some(OutsideWorkspace),
        Use::Write | Use::MoveTo { overwrite: true } => Some(WrongType),
        Use::MoveTo { overwrite: false } => Some(AlreadyExists),
        _ => None,
    }
}

/// Cases around something that is mounted at `inner`, with a file `it` in it.
fn inner(name: &'static str, it: &'static str, make: fn(&World)) -> Vec<Case> {
    let there = |what: &str| {
        case(format!("{name}: {what}"))
            .file("other.txt", "other")
            .file("d/f", "f")
            .directory("d/inner")
            .directory("inner")
            .given(make)
    };
    let it = format!("inner/{it}");
    let linked = it.clone();
    let done = |case: Case| case.then(|world| unmount(&world.root.join("inner")));
    vec![
        done(there("it is not entered").every("inner", at_mount)),
        done(there("nor what is in it").every(&it, |_| Some(OutsideWorkspace))),
        done(there("nor what could be").every("inner/new", |_| Some(OutsideWorkspace))),
        done(there("in miniclaw").miniclaw().every(&it, |_| Some(OutsideWorkspace))),
        done(there("through a link").given(move |world| symlink(&linked, world.root.join("l")).unwrap()).every(
            "l",
            |usage| match usage {
                Use::Read | Use::List | Use::Write | Use::Edit => Some(OutsideWorkspace),
                _ => None,
            },
        )),
        done(
            there("a walk passes it over")
                .works("list_directory", json!({"path": ".", "recursive": true}), |_, value| {
                    assert_eq!(value["entries"].as_array().unwrap().len(), 5);
                    assert_eq!(value["unreadable"], 1);
                })
                .works("find_files", json!({"path": ".", "glob": "secret"}), |_, value| {
                    assert_eq!(value["paths"], json!([]));
                })
                .refused("delete_file", json!({"path": "inner", "recursive": true}), &[OutsideWorkspace, WrongType])
                .refused("move_file", json!({"from": "inner", "to": "x"}), &[OutsideWorkspace, WrongType, Io]),
        ),
    ]
}

#[test]
fn a_directory_that_is_bound_into_the_workspace_is_no_part_of_it() {
    if there("attacks::mounted::a_directory_that_is_bound_into_the_workspace_is_no_part_of_it") {
        check(|| {
            inner("a bind mount of the same file system", "secret", |world| {
                mount(&["--bind", world.outside.to_str().unwrap()], &world.root.join("inner"));
            })
        });
    }
}

#[test]
fn a_pseudo_file_system_in_the_workspace_is_no_part_of_it() {
    if there("attacks::mounted::a_pseudo_file_system_in_the_workspace_is_no_part_of_it") {
        check(|| {
            let mut cases =
                inner("procfs", "version", |world| mount(&["-t", "proc", "proc"], &world.root.join("inner")));
            cases.extend(inner("tmpfs", "secret", |world| {
                mount(&["-t", "tmpfs", "tmpfs"], &world.root.join("inner"));
                std::fs::write(world.root.join("inner/secret"), "SECRET").unwrap();
            }));
            cases
        });
    }
}

#[test]
fn a_directory_with_a_mount_in_it_neither_goes_nor_moves() {
    if there("attacks::mounted::a_directory_with_a_mount_in_it_neither_goes_nor_moves") {
        check(|| {
            vec![
                case("the mount would go along")
                    .file("d/f", "f")
                    .directory("d/inner")
                    .given(|world| mount(&["--bind", world.outside.to_str().unwrap()], &world.root.join("d/inner")))
                    .fails("delete_file", json!({"path": "d", "recursive": true}), WrongType)
                    .fails("move_file", json!({"from": "d", "to": "x"}), WrongType)
                    .then(|world| unmount(&world.root.join("d/inner"))),
                case("a single file that is bound over another")
                    .file("f", "f")
                    .file("other.txt", "other")
                    .given(|world| {
                        mount(&["--bind", world.outside.join("secret").to_str().unwrap()], &world.root.join("f"));
                    })
                    .every("f", |usage| match usage {
                        Use::Read => Some(OutsideWorkspace),
                        Use::MoveTo { overwrite: false } | Use::MakeDirectory => Some(AlreadyExists),
                        _ => None,
                    })
                    .refused("write_file", json!({"path": "f", "content": "x"}), &[OutsideWorkspace, Io])
                    .refused("append_file", json!({"path": "f", "content": "x"}), &[OutsideWorkspace, Io])
                    .refused("edit_file", json!({"path": "f", "oldText": "S", "newText": "x"}), &[OutsideWorkspace, Io])
                    .refused("delete_file", json!({"path": "f"}), &[OutsideWorkspace, Io])
                    .refused("move_file", json!({"from": "f", "to": "x"}), &[OutsideWorkspace, Io])
                    .refused(
                        "move_file",
                        json!({"from": "other.txt", "to": "f", "overwrite": true}),
                        &[OutsideWorkspace, Io],
                    )
                    .then(|world| unmount(&world.root.join("f"))),
            ]
        });
    }
}

/// Checks a case in a world whose mount `@there` is made before the world is.
fn check_at(arguments: &[&str], rights: Rights, case: impl Fn() -> Case) {
    for backend in [Backend::Best, Backend::CapStd] {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("mount-there");
        std::fs::create_dir(&target).unwrap();
        mount(arguments, &target);
        let case = case().mounted(&[("there", rights)]);
        let world = World::at(directory, case.setup.clone().on(backend));
        prepare(&world, &case);
        run(&world, &case);
        drop(world);
        unmount(&target);
    }
}

#[test]
fn a_disk_that_is_really_full_leaves_what_was_there() {
    if there("attacks::mounted::a_disk_that_is_really_full_leaves_what_was_there") {
        let large = "x".repeat(300_000);
        check_at(&["-t", "tmpfs", "-o", "size=256k", "tmpfs"], Rights::ReadWrite, || {
            case("a small disk")
                .file("big", "x".repeat(300_000))
                .works("write_file", json!({"path": "@there/f", "content": "old other"}), |_, _| ())
                .fails("write_file", json!({"path": "@there/f", "content": large}), Io)
                .fails("write_file", json!({"path": "@there/a/b/f", "content": large, "createDirs": true}), Io)
                .fails("append_file", json!({"path": "@there/f", "content": large}), Io)
                .fails("append_file", json!({"path": "@there/g", "content": large}), Io)
                .fails("edit_file", json!({"path": "@there/f", "oldText": "old", "newText": large}), Io)
                .fails("copy_file", json!({"from": "big", "to": "@there/f", "overwrite": true}), Io)
                .works("read_file", json!({"path": "@there/f"}), |_, value| assert_eq!(value["content"], "old other"))
                .works("append_file", json!({"path": "@there/f", "content": "!"}), |_, value| {
                    assert_eq!(value["size"], 10);
                })
        });
        check_at(&["-t", "tmpfs", "-o", "nr_inodes=4", "tmpfs"], Rights::ReadWrite, || {
            case("a disk without room for names")
                .works("write_file", json!({"path": "@there/f", "content": "x"}), |_, _| ())
                .fails("write_file", json!({"path": "@there/a/b/c/d", "content": "x", "createDirs": true}), Io)
                .works("write_file", json!({"path": "@there/f", "content": "new"}), |_, _| ())
        });
    }
}

#[test]
fn how_a_disk_is_mounted_is_honoured_where_it_matters() {
    if there("attacks::mounted::how_a_disk_is_mounted_is_honoured_where_it_matters") {
        check_at(&["-t", "tmpfs", "-o", "noexec,nosuid,nodev", "tmpfs"], Rights::ReadWrite, || {
            case("what may not be run may be written")
                .works("write_file", json!({"path": "@there/f", "content": "x"}), |_, _| ())
                .works("edit_file", json!({"path": "@there/f", "oldText": "x", "newText": "y"}), |_, _| ())
                .works("move_file", json!({"from": "@there/f", "to": "@there/g"}), |_, _| ())
                .works("delete_file", json!({"path": "@there/g"}), |_, _| ())
        });
        check_at(&["-t", "tmpfs", "-o", "ro", "tmpfs"], Rights::ReadWrite, || {
            case("what is mounted to be read is not written")
                .file("other.txt", "other")
                .fails("write_file", json!({"path": "@there/f", "content": "x"}), PermissionDenied)
                .fails(
                    "write_file",
                    json!({"path": "@there/a/f", "content": "x", "createDirs": true}),
                    PermissionDenied,
                )
                .fails("append_file", json!({"path": "@there/f", "content": "x"}), PermissionDenied)
                .fails("copy_file", json!({"from": "other.txt", "to": "@there/f"}), PermissionDenied)
                .fails("create_directory", json!({"path": "@there/d"}), PermissionDenied)
                .works("list_directory", json!({"path": "@there"}), |_, value| assert_eq!(value["entries"], json!([])))
        });
    }
}

#[test]
fn files_that_claim_no_size_are_read_and_links_of_the_kernels_are_not_followed() {
    if there("attacks::mounted::files_that_claim_no_size_are_read_and_links_of_the_kernels_are_not_followed") {
        check_at(&["-t", "proc", "proc"], Rights::ReadOnly, || {
            let mut case = case("procfs as a mount of its own")
                .works("read_file", json!({"path": "@there/version"}), |_, value| {
                    assert!(value["content"].as_str().unwrap().starts_with("Linux version"), "{value}");
                })
                .works("read_file", json!({"path": "@there/filesystems", "startLine": 1, "endLine": 1}), |_, value| {
                    assert!(!value["content"].as_str().unwrap().is_empty(), "{value}");
                });
            for path in [
                "self/root/etc/passwd",
                "self/cwd/tests",
                "self/exe",
                "self/fd/0",
                "1/root/etc/passwd",
                "thread-self/root",
                "self/task/../root/etc/passwd",
            ] {
                // Whether we may look at the first process is up to the machine.
                let refused = [InvalidPath, OutsideWorkspace, PermissionDenied];
                case = case.refused("read_file", json!({"path": format!("@there/{path}")}), &refused);
                case = case.refused("list_directory", json!({"path": format!("@there/{path}")}), &refused);
            }
            case
        });
    }
}
