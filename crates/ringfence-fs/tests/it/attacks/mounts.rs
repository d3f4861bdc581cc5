//! Mount aliases: paths never cross from one mount to another.

use ringfence_fs::{Fence, FenceError, FenceOptions, MountAccess, MountSpec};
use ringfence_kernel::ErrorKind::{
    AlreadyExists, InvalidArgs, InvalidPath, NotFound, OutsideWorkspace, PermissionDenied, ReadOnly, WrongType,
};
use serde_json::json;

use super::operations::PathUse;
use super::{FsAttackCase, case, check};
use crate::fixture::FsFixture;

const MOUNTS: [(&str, MountAccess); 3] =
    [("project", MountAccess::ReadWrite), ("pkg", MountAccess::ReadOnly), ("state", MountAccess::ReadWrite)];

/// A workspace with three mounts, and a file `f` in each.
fn mounted(name: impl Into<String>) -> FsAttackCase {
    case(name).mounted(&MOUNTS).file("other.txt", "other").given(|world| {
        for alias in ["project", "pkg", "state"] {
            write_mounted(world, alias, "f", alias);
        }
    })
}

fn write_mounted(world: &FsFixture, alias: &str, path: &str, content: &str) {
    std::fs::write(world.host_path().join(format!("mount-{alias}")).join(path), content).unwrap();
}

fn read_mounted(world: &FsFixture, alias: &str, path: &str) -> String {
    std::fs::read_to_string(world.host_path().join(format!("mount-{alias}")).join(path)).unwrap()
}

#[test]
fn no_spelling_leads_from_one_mount_to_another() {
    check(|| {
        let outside = [
            "@project/../@pkg/f",
            "@project/..",
            "@project/../mount-pkg/f",
            "@project/../outside/secret",
            "@project/../../etc/passwd",
            "@project//etc/passwd",
            "@project//",
            "@project/{HOST}/outside/secret",
            "{HOST}/mount-project/f",
            "@workspace/../mount-state/f",
            "../mount-project/f",
        ];
        let unknown = [
            "@",
            "@/",
            "@/f",
            "@@project/f",
            "@project@pkg/f",
            "@project:pkg",
            "@Project/f",
            "@project /f",
            "@nothing/f",
            "@pkg\0/f",
            "@project/f\0",
            "@project\\f",
            "@..",
            "@../f",
            "@.",
            "@project/.ringfence-tmp-x",
            "@project/file:///etc/passwd",
        ];
        let mut cases = Vec::new();
        for path in outside {
            cases.push(mounted(format!("{path} is outside")).refuses_every_operation(path, |_| Some(OutsideWorkspace)));
            cases.push(
                mounted(format!("{path} in miniclaw"))
                    .miniclaw()
                    .refuses_every_operation(path, |_| Some(OutsideWorkspace)),
            );
        }
        for path in unknown {
            cases
                .push(mounted(format!("{path:?} is not a mount")).refuses_every_operation(path, |_| Some(InvalidPath)));
            cases.push(
                mounted(format!("{path:?} in miniclaw"))
                    .miniclaw()
                    .refuses_every_operation(path, |_| Some(InvalidPath)),
            );
        }
        cases
    });
}

#[test]
fn the_root_of_a_mount_can_be_listed_and_nothing_else() {
    check(|| {
        let mut cases = Vec::new();
        for path in ["@project", "@project/", "@project/.", "@project/d/.."] {
            cases.push(
                mounted(format!("{path} is a root"))
                    .given(|world| std::fs::create_dir(world.host_path().join("mount-project/d")).unwrap())
                    .refuses_every_operation(path, |usage| match usage {
                        PathUse::List | PathUse::Describe => None,
                        PathUse::Read => Some(WrongType),
                        _ => Some(PermissionDenied),
                    })
                    .succeeds("list_directory", json!({"path": path}), |_, value| {
                        assert_eq!(value["entries"].as_array().unwrap().len(), 2);
                    }),
            );
        }
        cases.push(mounted("and one that is read-only stays so").refuses_every_operation(
            "@pkg",
            |usage| match usage {
                PathUse::List | PathUse::Describe => None,
                PathUse::Read => Some(WrongType),
                _ => Some(ReadOnly),
            },
        ));
        cases
    });
}

#[test]
fn a_read_only_mount_is_read_and_never_changed() {
    check(|| {
        let reads = |usage| matches!(usage, PathUse::Read | PathUse::List | PathUse::Describe);
        vec![
            mounted("nothing is changed where a file is")
                .refuses_every_operation("@pkg/f", move |usage| (!reads(usage)).then_some(ReadOnly))
                .succeeds("read_file", json!({"path": "@pkg/f"}), |_, value| assert_eq!(value["content"], "pkg"))
                .succeeds("copy_file", json!({"from": "@pkg/f", "to": "@project/g"}), |world, value| {
                    assert_eq!(
                        (read_mounted(world, "project", "g").as_str(), &value["path"]),
                        ("pkg", &json!("@project/g"))
                    );
                }),
            mounted("nor where none is")
                .refuses_every_operation("@pkg/new", move |usage| (!reads(usage)).then_some(ReadOnly)),
            mounted("nor below what is missing")
                .refuses_every_operation("@pkg/a/b", move |usage| (!reads(usage)).then_some(ReadOnly)),
            mounted("nor in miniclaw")
                .miniclaw()
                .refuses_every_operation("@pkg/f", move |usage| (!reads(usage)).then_some(ReadOnly)),
            mounted("a move needs the right to delete and the right to write")
                .fails("move_file", json!({"from": "@project/f", "to": "@pkg/g"}), ReadOnly)
                .fails("move_file", json!({"from": "@pkg/f", "to": "@project/g"}), ReadOnly)
                .fails("move_file", json!({"from": "@pkg/f", "to": "@pkg/g"}), ReadOnly)
                .fails("copy_file", json!({"from": "@project/f", "to": "@pkg/g"}), ReadOnly),
        ]
    });
}

#[test]
fn a_move_between_mounts_is_refused_whole() {
    check(|| {
        vec![
            mounted("neither half of it happens")
                .fails("move_file", json!({"from": "@project/f", "to": "@state/g"}), InvalidArgs)
                .fails("move_file", json!({"from": "@project/f", "to": "@state/f", "overwrite": true}), InvalidArgs)
                .fails("move_file", json!({"from": "other.txt", "to": "@state/g"}), InvalidArgs)
                .succeeds("copy_file", json!({"from": "@project/f", "to": "@state/g"}), |world, _| {
                    assert_eq!(read_mounted(world, "state", "g"), "project");
                })
                .fails("copy_file", json!({"from": "@project/f", "to": "@state/f"}), AlreadyExists),
        ]
    });
}

#[test]
fn an_alias_stands_only_at_the_beginning_and_there_it_always_wins() {
    check(|| {
        vec![
            mounted("further on it is a name")
                .file("x/@pkg/f", "plain")
                .succeeds("read_file", json!({"path": "x/@pkg/f"}), |_, value| assert_eq!(value["content"], "plain"))
                .succeeds("write_file", json!({"path": "x/@pkg/f", "content": "new"}), |world, _| {
                    assert_eq!(
                        (world.read("x/@pkg/f").as_str(), read_mounted(world, "pkg", "f").as_str()),
                        ("new", "pkg")
                    );
                }),
            mounted("a directory of that name does not shadow it")
                .file("@pkg/f", "plain")
                .succeeds("read_file", json!({"path": "@pkg/f"}), |_, value| assert_eq!(value["content"], "pkg"))
                .succeeds("read_file", json!({"path": "./@pkg/f"}), |_, value| assert_eq!(value["content"], "plain"))
                .fails("write_file", json!({"path": "@pkg/f", "content": "new"}), ReadOnly)
                .succeeds("write_file", json!({"path": "./@pkg/f", "content": "new"}), |world, _| {
                    assert_eq!(
                        (world.read("@pkg/f").as_str(), read_mounted(world, "pkg", "f").as_str()),
                        ("new", "pkg")
                    );
                }),
            mounted("the workspace has a name too").succeeds(
                "read_file",
                json!({"path": "@workspace/other.txt"}),
                |_, value| {
                    assert_eq!(value["content"], "other");
                },
            ),
        ]
    });
}

#[test]
fn a_link_from_one_mount_into_another_is_not_followed() {
    check(|| {
        let link = |name: &'static str, target: &'static str| {
            mounted(format!("{target} leads out")).given(move |world| {
                let target = target.replace("{HOST}", world.host_path().to_str().unwrap());
                std::os::unix::fs::symlink(target, world.host_path().join("mount-project").join(name)).unwrap();
            })
        };
        let judge = |usage| match usage {
            PathUse::Read | PathUse::List | PathUse::Write | PathUse::Edit => Some(OutsideWorkspace),
            _ => None,
        };
        vec![
            link("l", "../mount-state/f").refuses_every_operation("@project/l", judge),
            link("l", "{HOST}/mount-state/f").refuses_every_operation("@project/l", judge),
            link("l", "../mount-project/f").refuses_every_operation("@project/l", judge),
            link("d", "../mount-state").refuses_every_operation("@project/d/f", |_| Some(OutsideWorkspace)),
            link("d", "../mount-state").refuses_every_operation("@project/d/new", |_| Some(OutsideWorkspace)),
        ]
    });
}

#[test]
fn mounts_that_overlap_are_refused_at_the_start() {
    let place = tempfile::tempdir().unwrap();
    let at = |path: &str| {
        std::fs::create_dir_all(place.path().join(path)).unwrap();
        place.path().join(path)
    };
    let mount = |alias: &str, path| MountSpec { alias: alias.to_owned(), path, rights: MountAccess::ReadWrite };
    let (outer, inner) = (at("w"), at("w/.state"));
    std::os::unix::fs::symlink(&inner, place.path().join("alias")).unwrap();
    for (one, other) in [
        (outer.clone(), inner.clone()),
        (inner.clone(), outer.clone()),
        (outer.clone(), outer.clone()),
        (outer.clone(), place.path().join("alias")),
        (outer.clone(), outer.join("../w/./.state")),
        (outer.join("../w"), inner.clone()),
    ] {
        let made = Fence::new(mount("w", one), vec![mount("s", other)], &at("own"), FenceOptions::default());
        assert!(matches!(made, Err(FenceError::Overlap(..))), "{made:?}");
    }
    for alias in ["", "a/b", "..", "@x", "a b", "é", "a\0"] {
        let made = Fence::new(mount("w", at("w")), vec![mount(alias, at("o"))], &at("own"), FenceOptions::default());
        assert!(matches!(made, Err(FenceError::Alias(_))), "{alias:?}: {made:?}");
    }
}

#[test]
fn a_root_that_was_renamed_or_replaced_says_so_and_the_newcomer_is_never_touched() {
    check(|| {
        let moved = |world: &FsFixture| std::fs::rename(&world.root, world.host_path().join("renamed")).unwrap();
        let back = |world: &FsFixture| {
            let _ = std::fs::remove_dir_all(&world.root).or_else(|_| std::fs::remove_file(&world.root));
            std::fs::rename(world.host_path().join("renamed"), &world.root).unwrap();
        };
        let calls = |case: FsAttackCase| {
            case.fails_saying("read_file", json!({"path": "f"}), NotFound, &["moved or replaced"])
                .fails("read_file", json!({"path": "secret"}), NotFound)
                .fails("list_directory", json!({"path": "."}), NotFound)
                .fails("search_files", json!({"path": ".", "pattern": "x"}), NotFound)
                .fails("write_file", json!({"path": "a/g", "content": "y", "createDirs": true}), NotFound)
                .fails("move_file", json!({"from": "f", "to": "g"}), NotFound)
                .fails("delete_file", json!({"path": "f"}), NotFound)
                .then(back)
                .succeeds("read_file", json!({"path": "f"}), |_, value| assert_eq!(value["content"], "x"))
        };
        vec![
            calls(case("renamed").file("f", "x").given(moved)),
            calls(case("replaced by another directory").file("f", "x").given(moved).given(|world| {
                std::fs::create_dir(&world.root).unwrap();
                std::fs::write(world.root.join("f"), "of the newcomer").unwrap();
            })),
            calls(case("replaced by a link that leads out").file("f", "x").given(moved).given(|world| {
                std::os::unix::fs::symlink("outside", &world.root).unwrap();
            })),
            case("a mount that was replaced, beside one that was not")
                .mounted(&[("pkg", MountAccess::ReadOnly)])
                .file("f", "x")
                .given(|world| {
                    let mount = world.host_path().join("mount-pkg");
                    std::fs::rename(&mount, world.host_path().join("renamed")).unwrap();
                    std::fs::create_dir(&mount).unwrap();
                    std::fs::write(mount.join("f"), "of the newcomer").unwrap();
                })
                .fails_saying("read_file", json!({"path": "@pkg/f"}), NotFound, &["the mount `@pkg`"])
                .succeeds("read_file", json!({"path": "f"}), |_, value| assert_eq!(value["content"], "x")),
        ]
    });
}

#[test]
fn a_root_that_was_deleted_is_gone() {
    check(|| {
        vec![
            case("the mount is lost, and says so")
                .given(|world| std::fs::remove_dir_all(&world.root).unwrap())
                .fails_saying("read_file", json!({"path": "f"}), NotFound, &["removed"])
                .fails("list_directory", json!({"path": "."}), NotFound)
                .fails("list_directory", json!({"path": ".", "recursive": true}), NotFound)
                .fails("find_files", json!({"path": ".", "glob": "*"}), NotFound)
                .fails("write_file", json!({"path": "f", "content": "x"}), NotFound)
                .fails("write_file", json!({"path": "a/f", "content": "x", "createDirs": true}), NotFound)
                .fails("append_file", json!({"path": "f", "content": "x"}), NotFound)
                .fails("create_directory", json!({"path": "d"}), NotFound)
                .fails("delete_file", json!({"path": "f"}), NotFound)
                .fails("move_file", json!({"from": "f", "to": "g"}), NotFound),
        ]
    });
}
