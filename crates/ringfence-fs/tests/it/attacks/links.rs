//! Attacks by symbolic and hard links.

use std::os::unix::fs::{MetadataExt, symlink};

use ringfence_kernel::ErrorKind::{
    self, AlreadyExists, ApprovalDenied, InvalidArgs, InvalidPath, NotFound, OutsideWorkspace, PermissionDenied,
    WrongType,
};
use serde_json::json;

use super::operations::PathUse;
use super::{FsAttackCase, case, check};
use crate::fixture::FsFixture;

/// A workspace with `other.txt` and some directories.
fn plain(name: impl Into<String>) -> FsAttackCase {
    case(name).file("other.txt", "other").file("d/e/f", "deep").file("d/f", "shallow")
}

/// The results for a final link that leads to no file. It is removed, moved and described itself.
fn at_link(to_read: ErrorKind, to_list: ErrorKind, to_write: ErrorKind) -> impl Fn(PathUse) -> Option<ErrorKind> {
    move |usage| match usage {
        PathUse::Read => Some(to_read),
        PathUse::List => Some(to_list),
        PathUse::Write | PathUse::Edit => Some(to_write),
        PathUse::MoveTo { overwrite: true } => Some(WrongType),
        PathUse::MoveTo { overwrite: false } | PathUse::MakeDirectory => Some(AlreadyExists),
        PathUse::Describe | PathUse::Delete | PathUse::MoveAway => None,
    }
}

/// Links that lead out of the workspace, from its root.
const OUT: [(&str, &str); 14] = [
    ("an absolute link to a file", "{HOST}/outside/secret"),
    ("a relative link to a file", "../outside/secret"),
    ("a link that goes down before it goes out", "d/../../outside/secret"),
    ("an absolute link back inside", "{ROOT}/other.txt"),
    ("an absolute link to the root", "{ROOT}"),
    ("a relative link out and back", "../ws/other.txt"),
    ("an absolute link to a directory", "{HOST}/outside"),
    ("a relative link to a directory", "../outside"),
    ("a link to the root of the host", "/"),
    ("a link to the parent of the root", ".."),
    ("a dangling link out", "../outside/nothing"),
    ("an absolute dangling link out", "{HOST}/outside/nothing"),
    ("a link to a link of the kernel's", "/proc/self/root/etc/passwd"),
    ("a link to an open file", "/proc/self/fd/0"),
];

#[test]
fn a_link_that_leads_out_is_not_followed() {
    check(|| {
        let mut cases = Vec::new();
        for (name, target) in OUT {
            let judge = at_link(OutsideWorkspace, OutsideWorkspace, OutsideWorkspace);
            cases.push(plain(name).link("l", target).refuses_every_operation("l", &judge));
            cases.push(
                plain(format!("{name}, in miniclaw")).miniclaw().link("l", target).refuses_every_operation("l", &judge),
            );
            for below in ["l/secret", "l/new", "l/a/b"] {
                let name = format!("{name}, with {below}");
                cases.push(plain(&name).link("l", target).refuses_every_operation(below, |_| Some(OutsideWorkspace)));
                let name = format!("{name}, in miniclaw");
                cases.push(
                    plain(name).miniclaw().link("l", target).refuses_every_operation(below, |_| Some(OutsideWorkspace)),
                );
            }
            cases.push(
                plain(format!("{name}, through another link"))
                    .link("l", target)
                    .given(|world| symlink("../l", world.root.join("d/l")).unwrap())
                    .refuses_every_operation("d/l", &judge),
            );
            cases.push(
                plain(format!("{name}, itself"))
                    .link("l", target)
                    .succeeds("get_file_info", json!({"path": "l"}), |_, value| {
                        assert_eq!((&value["type"], &value["sha256"]), (&json!("symlink"), &json!(null)));
                    })
                    .succeeds("move_file", json!({"from": "l", "to": "d/m"}), |world, _| {
                        assert!(world.root.join("d/m").is_symlink());
                    })
                    .succeeds("delete_file", json!({"path": "d/m", "recursive": true}), |world, value| {
                        assert!(!world.root.join("d/m").is_symlink());
                        assert_eq!(value["count"], 1);
                    }),
            );
        }
        cases
    });
}

#[test]
fn a_link_with_an_absolute_target_says_why_it_is_refused() {
    check(|| {
        vec![plain("the error says that it is absolute").link("l", "{ROOT}/other.txt").fails_saying(
            "read_file",
            json!({"path": "l"}),
            OutsideWorkspace,
            &["absolute target"],
        )]
    });
}

#[test]
fn a_link_inside_is_read_and_written_through() {
    check(|| {
        vec![
            plain("to a file")
                .link("l", "d/f")
                .succeeds("read_file", json!({"path": "l"}), |_, value| assert_eq!(value["content"], "shallow"))
                .refuses_every_operation("l", |usage| match usage {
                    PathUse::Read | PathUse::Write | PathUse::Edit => None,
                    other => at_link(NotFound, WrongType, WrongType)(other),
                })
                .succeeds("copy_file", json!({"from": "l", "to": "copy"}), |world, _| {
                    assert!(!world.root.join("copy").is_symlink());
                    assert_eq!(world.read("copy"), "shallow");
                })
                .succeeds("delete_file", json!({"path": "l"}), |world, _| assert_eq!(world.read("d/f"), "shallow")),
            plain("to a directory, as a parent")
                .link("l", "d/e")
                .succeeds("read_file", json!({"path": "l/f"}), |_, value| assert_eq!(value["content"], "deep"))
                .succeeds("write_file", json!({"path": "l/f", "content": "new"}), |world, _| {
                    assert_eq!(world.read("d/e/f"), "new");
                })
                .succeeds("write_file", json!({"path": "l/a/b", "content": "new", "createDirs": true}), |world, _| {
                    assert_eq!(world.read("d/e/a/b"), "new");
                })
                .succeeds("list_directory", json!({"path": "l"}), |_, value| {
                    assert_eq!(value["entries"].as_array().unwrap().len(), 2);
                })
                .fails("delete_file", json!({"path": "l/", "recursive": true}), WrongType)
                .succeeds("delete_file", json!({"path": "l", "recursive": true}), |world, value| {
                    assert_eq!((value["count"].as_u64(), world.read("d/e/f").as_str()), (Some(1), "new"));
                }),
            plain("in miniclaw")
                .miniclaw()
                .link("l", "d/f")
                .replies("read_file", json!({"path": "l"}), "ok: read 7 bytes from l\nshallow")
                .replies(
                    "list_dir",
                    json!({}),
                    "ok: listed 3 entries in .\n- d\tdir\t0\n- l\tfile\t3\n- other.txt\tfile\t5",
                )
                .replies("write_file", json!({"path": "l", "content": "x"}), "ok: wrote 1 bytes to l")
                .replies("append_file", json!({"path": "l", "content": "y"}), "ok: appended 1 bytes to l (size=2)")
                .replies(
                    "edit_file",
                    json!({"path": "l", "old_text": "xy", "new_text": "z"}),
                    "ok: replaced 1 match(es) in l",
                )
                .then(|world| {
                    assert!(world.root.join("l").is_symlink());
                    assert_eq!(world.read("d/f"), "z");
                }),
        ]
    });
}

#[test]
fn a_write_through_a_link_changes_the_target_file() {
    check(|| {
        let stays = |world: &FsFixture, content: &str| {
            assert!(world.root.join("d/l").is_symlink());
            assert_eq!(world.read("other.txt"), content);
        };
        let linked = |name| plain(name).link("d/l", "m").link("d/m", "../other.txt");
        let both = "--- a/d/l\n+++ b/d/l\n@@ -1 +1 @@\n-other\n\\ No newline at end of file\n+new\n\
                    --- a/d/f\n+++ b/d/f\n@@\n-shallow\n+new\n";
        let same = "--- a/d/l\n+++ b/d/l\n@@\n-other\n+new\n--- a/other.txt\n+++ b/other.txt\n@@\n-other\n+new\n";
        let delete = "--- a/d/l\n+++ /dev/null\n@@ -1 +0,0 @@\n-other\n\\ No newline at end of file\n";
        let create = "--- /dev/null\n+++ b/d/l\n@@ -0,0 +1 @@\n+new\n";
        vec![
            linked("written")
                .succeeds("write_file", json!({"path": "d/l", "content": "new"}), move |world, value| {
                    stays(world, "new");
                    assert_eq!((&value["path"], &value["created"]), (&json!("d/l"), &json!(false)));
                })
                .succeeds("undo", json!({}), move |world, value| {
                    stays(world, "other");
                    assert!(value.to_string().contains("other.txt"), "{value}");
                }),
            linked("appended to")
                .succeeds("append_file", json!({"path": "d/l", "content": "!"}), move |world, _| stays(world, "other!"))
                .succeeds("undo", json!({}), move |world, _| stays(world, "other")),
            linked("edited").succeeds(
                "edit_file",
                json!({"path": "d/l", "oldText": "other", "newText": "new"}),
                move |world, _| stays(world, "new"),
            ),
            linked("patched").succeeds(
                "apply_patch",
                json!({"path": "d/l", "patch": "@@\n-other\n+new\n"}),
                move |world, _| {
                    stays(world, "new");
                },
            ),
            linked("patched with another")
                .succeeds("apply_patch", json!({"patch": both}), move |world, _| stays(world, "new\n")),
            linked("copied to").succeeds(
                "copy_file",
                json!({"from": "d/f", "to": "d/l", "overwrite": true}),
                move |world, _| stays(world, "shallow"),
            ),
            linked("twice the same").fails("apply_patch", json!({"patch": same}), InvalidArgs),
            linked("not deleted by a patch").fails("apply_patch", json!({"patch": delete}), WrongType),
            linked("not created by a patch").fails("apply_patch", json!({"patch": create}), AlreadyExists),
            linked("copied to itself").fails(
                "copy_file",
                json!({"from": "other.txt", "to": "d/l", "overwrite": true}),
                InvalidArgs,
            ),
            plain("a secret").file(".env", "K=v").link("l", ".env").fails(
                "append_file",
                json!({"path": "l", "content": "x"}),
                ApprovalDenied,
            ),
            plain("what is protected").file(".git/hooks/pre-commit", "x").link("l", ".git/hooks/pre-commit").fails(
                "write_file",
                json!({"path": "l", "content": "x"}),
                ApprovalDenied,
            ),
            plain("by a name that is protected")
                .given(|world| {
                    std::fs::create_dir(world.root.join(".vscode")).unwrap();
                    symlink("../other.txt", world.root.join(".vscode/tasks.json")).unwrap();
                })
                .fails("write_file", json!({"path": ".vscode/tasks.json", "content": "x"}), ApprovalDenied),
            plain("a file that is closed")
                .file("closed", "x")
                .given(|world| {
                    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o444);
                    std::fs::set_permissions(world.root.join("closed"), closed).unwrap();
                })
                .link("l", "closed")
                .fails("write_file", json!({"path": "l", "content": "y"}), PermissionDenied),
        ]
    });
}

#[test]
fn a_link_to_nothing_is_said_to_be_one_and_nothing_comes_of_it() {
    check(|| {
        let words = &["is a link whose target does not exist"];
        let judge = at_link(NotFound, NotFound, WrongType);
        vec![
            plain("read").link("l", "nothing").fails_saying("read_file", json!({"path": "l"}), NotFound, words),
            plain("each use").link("l", "nothing").refuses_every_operation("l", &judge),
            plain("each use, in miniclaw").miniclaw().link("l", "nothing").refuses_every_operation("l", &judge),
            plain("below a directory that is not there").link("l", "a/b/c").refuses_every_operation("l", &judge),
            plain("as a parent").link("l", "nothing").refuses_every_operation("l/x", |_| Some(NotFound)),
            plain("as a parent, in miniclaw")
                .miniclaw()
                .link("l", "nothing")
                .refuses_every_operation("l/x/y", |_| Some(NotFound)),
        ]
    });
}

#[test]
fn a_walk_does_not_follow_links() {
    check(|| {
        let there = |case: FsAttackCase| {
            case.link("out", "../outside")
                .link("absolute", "{HOST}/outside")
                .link("self", ".")
                .link("root", "/")
                .link("d/up", "..")
                .link("d/e/up", "../..")
                .link("dir", "d")
        };
        let entries = 4 + 6 + 1 + 1;
        vec![
            there(plain("list"))
                .succeeds(
                    "list_directory",
                    json!({"path": ".", "recursive": true, "includeHidden": true}),
                    move |_, value| {
                        let listed = value["entries"].as_array().unwrap();
                        assert_eq!(listed.len(), entries, "{listed:?}");
                        let links = listed.iter().filter(|entry| entry["type"] == "symlink").count();
                        assert_eq!(links, 7);
                    },
                )
                .succeeds("find_files", json!({"path": ".", "glob": "**"}), move |_, value| {
                    assert_eq!(value["scanned"], entries);
                })
                .succeeds("find_files", json!({"path": ".", "glob": "secret"}), |_, value| {
                    assert_eq!(value["paths"], json!([]));
                }),
            there(plain("delete"))
                .succeeds("delete_file", json!({"path": "d", "recursive": true}), |_, value| {
                    assert_eq!(value["count"], 6);
                })
                .then(|world| assert_eq!(world.read("other.txt"), "other")),
            there(plain("move")).succeeds("move_file", json!({"from": "d", "to": "g"}), |world, _| {
                assert!(world.root.join("g/e/up").is_symlink());
            }),
        ]
    });
}

#[test]
fn link_cycles_and_endless_chains_of_links_are_refused() {
    check(|| {
        vec![
            plain("round")
                .link("l", "m")
                .link("m", "l")
                .refuses_every_operation("l", at_link(InvalidPath, InvalidPath, WrongType)),
            plain("round, as a parent").link("l", "l").refuses_every_operation("l/x", |_| Some(InvalidPath)),
            plain("a chain of fifty")
                .given(|world| {
                    for at in 0..50 {
                        let target = if at == 49 { "other.txt".to_owned() } else { format!("l{}", at + 1) };
                        symlink(target, world.root.join(format!("l{at}"))).unwrap();
                    }
                })
                .fails("read_file", json!({"path": "l0"}), InvalidPath)
                .succeeds("read_file", json!({"path": "l45"}), |_, value| assert_eq!(value["content"], "other")),
            plain("a target of the greatest length")
                .given(|world| symlink("d/".repeat(2047), world.root.join("l")).unwrap())
                .refused("read_file", json!({"path": "l"}), &[NotFound, InvalidPath])
                .refused("read_file", json!({"path": "l/x"}), &[NotFound, InvalidPath])
                .fails("write_file", json!({"path": "l", "content": "x"}), WrongType)
                .succeeds("get_file_info", json!({"path": "l"}), |_, value| assert_eq!(value["size"], 4094)),
            plain("a target with a name that is too long")
                .given(|world| symlink("n".repeat(300), world.root.join("l")).unwrap())
                .fails("read_file", json!({"path": "l"}), InvalidPath),
            plain("a target with a newline is shown with an escape")
                .given(|world| symlink("a\nb", world.root.join("l")).unwrap())
                .succeeds("get_file_info", json!({"path": "l"}), |_, value| assert_eq!(value["target"], "a\\x0ab"))
                .fails("read_file", json!({"path": "l"}), NotFound),
        ]
    });
}

#[test]
fn a_link_to_a_non_file_is_not_a_file() {
    check(|| {
        vec![
            plain("to a pipe")
                .given(|world| super::special_files::make_fifo(&world.root.join("pipe")))
                .link("l", "pipe")
                .refuses_every_operation("l", at_link(WrongType, WrongType, WrongType)),
            plain("to a socket")
                .given(|world| super::special_files::make_socket(&world.root.join("socket")))
                .link("l", "socket")
                .refuses_every_operation("l", at_link(WrongType, WrongType, WrongType)),
            plain("to a directory").link("l", "d").refuses_every_operation("l", |usage| {
                at_link(WrongType, NotFound, WrongType)(usage).filter(|_| usage != PathUse::List)
            }),
        ]
    });
}

#[test]
fn directories_are_not_made_through_a_link_that_leads_nowhere_or_out() {
    check(|| {
        let mut cases = Vec::new();
        for (target, kind) in [
            ("nothing", NotFound),
            ("../outside/nothing", OutsideWorkspace),
            ("../outside", OutsideWorkspace),
            ("{HOST}/outside/nothing", OutsideWorkspace),
            ("other.txt", WrongType),
        ] {
            cases.push(
                plain(format!("through a link to {target}"))
                    .link("l", target)
                    .fails("write_file", json!({"path": "l/a/b", "content": "x", "createDirs": true}), kind)
                    .fails("create_directory", json!({"path": "l/a"}), kind)
                    .fails("create_directory", json!({"path": "l/a/b"}), kind),
            );
            cases.push(
                plain(format!("through a link to {target}, in miniclaw"))
                    .miniclaw()
                    .link("l", target)
                    .fails("write_file", json!({"path": "l/a/b", "content": "x"}), kind)
                    .fails("append_file", json!({"path": "l/a/b", "content": "x"}), kind),
            );
        }
        cases
    });
}

/// A file with one name inside and one outside.
fn shared(name: &str) -> FsAttackCase {
    plain(name).given(|world| {
        std::fs::write(world.outside.join("shared"), "shared\n").unwrap();
        std::fs::hard_link(world.outside.join("shared"), world.root.join("f")).unwrap();
    })
}

#[test]
fn a_file_with_a_name_outside_is_replaced_and_never_changed() {
    check(|| {
        vec![
            shared("a read says that there are other names")
                .succeeds("read_file", json!({"path": "f"}), |_, value| assert_eq!(value["links"], 2))
                .succeeds("get_file_info", json!({"path": "f"}), |_, value| assert_eq!(value["links"], 2)),
            shared("a write breaks the link").succeeds(
                "write_file",
                json!({"path": "f", "content": "x"}),
                |world, value| {
                    assert_eq!((world.read("f").as_str(), &value["linksBroken"]), ("x", &json!(1)));
                },
            ),
            shared("an append breaks the link").succeeds(
                "append_file",
                json!({"path": "f", "content": "x"}),
                |world, value| {
                    assert_eq!((world.read("f").as_str(), &value["linksBroken"]), ("shared\nx", &json!(1)));
                },
            ),
            shared("an edit breaks the link").succeeds(
                "edit_file",
                json!({"path": "f", "oldText": "shared", "newText": "x"}),
                |world, value| assert_eq!((world.read("f").as_str(), &value["linksBroken"]), ("x\n", &json!(1))),
            ),
            shared("a copy onto it breaks the link").succeeds(
                "copy_file",
                json!({"from": "other.txt", "to": "f", "overwrite": true}),
                |world, _| assert_eq!(world.read("f"), "other"),
            ),
            shared("a delete takes the name").succeeds("delete_file", json!({"path": "f"}), |_, _| ()),
            shared("in miniclaw too").miniclaw().replies(
                "append_file",
                json!({"path": "f", "content": "x"}),
                "ok: appended 1 bytes to f (size=8)",
            ),
        ]
    });
}

#[test]
fn two_names_of_one_file_are_told_apart() {
    check(|| {
        let twice = |name: &str| {
            plain(name).given(|world| {
                std::fs::hard_link(world.root.join("other.txt"), world.root.join("second")).unwrap();
            })
        };
        vec![
            twice("a move of one onto the other leaves one name").succeeds(
                "move_file",
                json!({"from": "other.txt", "to": "second", "overwrite": true}),
                |world, _| {
                    assert!(!world.root.join("other.txt").exists());
                    assert_eq!(world.root.join("second").metadata().unwrap().nlink(), 1);
                },
            ),
            twice("without leave it is refused").fails(
                "move_file",
                json!({"from": "other.txt", "to": "second"}),
                AlreadyExists,
            ),
            twice("a copy onto itself is refused").fails(
                "copy_file",
                json!({"from": "other.txt", "to": "second", "overwrite": true}),
                InvalidArgs,
            ),
            plain("a move onto itself is refused").fails(
                "move_file",
                json!({"from": "other.txt", "to": "./other.txt", "overwrite": true}),
                InvalidArgs,
            ),
        ]
    });
}
