//! Mounted file systems: inside the workspace, where they are not part of it, and under it.
//!
//! Needs root. Each test runs in a process that has its mounts to itself.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use ringfence_fs::{MountAccess, ResolverBackend};
use ringfence_kernel::ErrorKind::{
    self, AlreadyExists, InvalidPath, Io, OutsideWorkspace, PermissionDenied, WrongType,
};
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::json;

use super::operations::PathUse;
use super::subprocess::{TestSubprocess, is_child, is_root};
use super::{FsAttackCase, case, check, prepare, run};
use crate::fixture::FsFixture;

/// Runs the rest of a test where it may mount. Says whether this is there.
fn runs_in_mount_namespace(test: &str) -> bool {
    if is_child() {
        return true;
    }
    if is_root() && Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
        TestSubprocess::new().run_with_mounts(test);
    } else {
        skip_without(Requirement::MountNamespaces, "only root mounts, in a namespace of its own");
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

/// A mount at `inner` can be listed and not entered, and not removed.
fn at_mount(usage: PathUse) -> Option<ErrorKind> {
    match usage {
        PathUse::Read | PathUse::List => Some(OutsideWorkspace),
        PathUse::Write | PathUse::MoveTo { overwrite: true } => Some(WrongType),
        PathUse::MoveTo { overwrite: false } => Some(AlreadyExists),
        _ => None,
    }
}

/// Cases around something that is mounted at `inner`, with a file `it` in it.
fn mounted_cases(name: &'static str, it: &'static str, make: fn(&FsFixture)) -> Vec<FsAttackCase> {
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
    let done = |case: FsAttackCase| case.then(|world| unmount(&world.root.join("inner")));
    vec![
        done(there("it is not entered").refuses_every_operation("inner", at_mount)),
        done(there("nor what is in it").refuses_every_operation(&it, |_| Some(OutsideWorkspace))),
        done(there("nor what could be").refuses_every_operation("inner/new", |_| Some(OutsideWorkspace))),
        done(there("in miniclaw").miniclaw().refuses_every_operation(&it, |_| Some(OutsideWorkspace))),
        done(
            there("through a link")
                .given(move |world| symlink(&linked, world.root.join("l")).unwrap())
                .refuses_every_operation("l", |usage| match usage {
                    PathUse::Read | PathUse::List | PathUse::Write | PathUse::Edit => Some(OutsideWorkspace),
                    _ => None,
                }),
        ),
        done(
            there("a walk passes it over")
                .succeeds("list_directory", json!({"path": ".", "recursive": true}), |_, value| {
                    assert_eq!(value["entries"].as_array().unwrap().len(), 5);
                    assert_eq!(value["unreadable"], 1);
                })
                .succeeds("find_files", json!({"path": ".", "glob": "secret"}), |_, value| {
                    assert_eq!(value["paths"], json!([]));
                })
                .refused("delete_file", json!({"path": "inner", "recursive": true}), &[OutsideWorkspace, WrongType])
                .refused("move_file", json!({"from": "inner", "to": "x"}), &[OutsideWorkspace, WrongType, Io]),
        ),
    ]
}

#[test]
fn a_bind_mount_in_the_workspace_is_outside_it() {
    if runs_in_mount_namespace("attacks::real_mounts::a_bind_mount_in_the_workspace_is_outside_it") {
        check(|| {
            mounted_cases("a bind mount of the same file system", "secret", |world| {
                mount(&["--bind", world.outside.to_str().unwrap()], &world.root.join("inner"));
            })
        });
    }
}

#[test]
fn a_pseudo_file_system_in_the_workspace_is_outside_it() {
    if runs_in_mount_namespace("attacks::real_mounts::a_pseudo_file_system_in_the_workspace_is_outside_it") {
        check(|| {
            let mut cases =
                mounted_cases("procfs", "version", |world| mount(&["-t", "proc", "proc"], &world.root.join("inner")));
            cases.extend(mounted_cases("tmpfs", "secret", |world| {
                mount(&["-t", "tmpfs", "tmpfs"], &world.root.join("inner"));
                std::fs::write(world.root.join("inner/secret"), "SECRET").unwrap();
            }));
            cases
        });
    }
}

#[test]
fn a_directory_with_a_mount_in_it_neither_goes_nor_moves() {
    if runs_in_mount_namespace("attacks::real_mounts::a_directory_with_a_mount_in_it_neither_goes_nor_moves") {
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
                    .refuses_every_operation("f", |usage| match usage {
                        PathUse::Read => Some(OutsideWorkspace),
                        PathUse::MoveTo { overwrite: false } | PathUse::MakeDirectory => Some(AlreadyExists),
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
fn check_at(arguments: &[&str], rights: MountAccess, case: impl Fn() -> FsAttackCase) {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("mount-there");
        std::fs::create_dir(&target).unwrap();
        mount(arguments, &target);
        let case = case().mounted(&[("there", rights)]);
        let world = FsFixture::at(directory, case.setup.clone().on(backend));
        prepare(&world, &case);
        run(&world, &case);
        drop(world);
        unmount(&target);
    }
}

#[test]
fn a_disk_that_is_really_full_leaves_what_was_there() {
    if runs_in_mount_namespace("attacks::real_mounts::a_disk_that_is_really_full_leaves_what_was_there") {
        let large = "x".repeat(300_000);
        check_at(&["-t", "tmpfs", "-o", "size=256k", "tmpfs"], MountAccess::ReadWrite, || {
            case("a small disk")
                .file("big", "x".repeat(300_000))
                .succeeds("write_file", json!({"path": "@there/f", "content": "old other"}), |_, _| ())
                .fails("write_file", json!({"path": "@there/f", "content": large}), Io)
                .fails("write_file", json!({"path": "@there/a/b/f", "content": large, "createDirs": true}), Io)
                .fails("append_file", json!({"path": "@there/f", "content": large}), Io)
                .fails("append_file", json!({"path": "@there/g", "content": large}), Io)
                .fails("edit_file", json!({"path": "@there/f", "oldText": "old", "newText": large}), Io)
                .fails("copy_file", json!({"from": "big", "to": "@there/f", "overwrite": true}), Io)
                .succeeds("read_file", json!({"path": "@there/f"}), |_, value| {
                    assert_eq!(value["content"], "old other")
                })
                .succeeds("append_file", json!({"path": "@there/f", "content": "!"}), |_, value| {
                    assert_eq!(value["size"], 10);
                })
        });
        check_at(&["-t", "tmpfs", "-o", "nr_inodes=4", "tmpfs"], MountAccess::ReadWrite, || {
            case("a disk without room for names")
                .succeeds("write_file", json!({"path": "@there/f", "content": "x"}), |_, _| ())
                .fails("write_file", json!({"path": "@there/a/b/c/d", "content": "x", "createDirs": true}), Io)
                .succeeds("write_file", json!({"path": "@there/f", "content": "new"}), |_, _| ())
        });
    }
}

#[test]
fn mount_options_are_honoured() {
    if runs_in_mount_namespace("attacks::real_mounts::mount_options_are_honoured") {
        check_at(&["-t", "tmpfs", "-o", "noexec,nosuid,nodev", "tmpfs"], MountAccess::ReadWrite, || {
            case("what may not be run may be written")
                .succeeds("write_file", json!({"path": "@there/f", "content": "x"}), |_, _| ())
                .succeeds("edit_file", json!({"path": "@there/f", "oldText": "x", "newText": "y"}), |_, _| ())
                .succeeds("move_file", json!({"from": "@there/f", "to": "@there/g"}), |_, _| ())
                .succeeds("delete_file", json!({"path": "@there/g"}), |_, _| ())
        });
        check_at(&["-t", "tmpfs", "-o", "ro", "tmpfs"], MountAccess::ReadWrite, || {
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
                .succeeds("list_directory", json!({"path": "@there"}), |_, value| {
                    assert_eq!(value["entries"], json!([]))
                })
        });
    }
}

#[test]
fn files_that_claim_no_size_are_read_and_links_of_the_kernels_are_not_followed() {
    if runs_in_mount_namespace(
        "attacks::real_mounts::files_that_claim_no_size_are_read_and_links_of_the_kernels_are_not_followed",
    ) {
        check_at(&["-t", "proc", "proc"], MountAccess::ReadOnly, || {
            let mut case = case("procfs as a mount of its own")
                .succeeds("read_file", json!({"path": "@there/version"}), |_, value| {
                    assert!(value["content"].as_str().unwrap().starts_with("Linux version"), "{value}");
                })
                .succeeds(
                    "read_file",
                    json!({"path": "@there/filesystems", "startLine": 1, "endLine": 1}),
                    |_, value| {
                        assert!(!value["content"].as_str().unwrap().is_empty(), "{value}");
                    },
                );
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
