//! Attacks on moving, deleting, listing and finding.

use ringfence_fs::ResolverBackend;
use ringfence_kernel::ErrorKind::{
    AlreadyExists, ApprovalDenied, InvalidArgs, InvalidPath, NotFound, OutsideWorkspace, PermissionDenied, ReadLimit,
    WrongType,
};
use serde_json::{Value, json};

use super::{FsAttackCase, case, check};
use crate::fixture::{FsFixture, FsFixtureConfig};

fn plain(name: &str) -> FsAttackCase {
    case(name).file("f", "f").file("g", "g").file("d/e/h", "h").directory("empty").directory("d2/empty")
}

fn names(value: &Value) -> Vec<String> {
    let entries = value["entries"].as_array().unwrap().iter();
    entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn nothing_is_moved_over_what_is_there_unless_a_file_is_to_be_overwritten_by_a_file() {
    check(|| {
        let to = |from: &str, to: &str| json!({"from": from, "to": to});
        let over = |from: &str, to: &str| json!({"from": from, "to": to, "overwrite": true});
        vec![
            plain("without leave")
                .fails("move_file", to("f", "g"), AlreadyExists)
                .fails("move_file", to("f", "empty"), AlreadyExists)
                .fails("move_file", to("f", "d"), AlreadyExists)
                .fails("move_file", to("d", "f"), AlreadyExists)
                .fails("move_file", to("d", "empty"), AlreadyExists)
                .fails("move_file", to("d", "empty/"), AlreadyExists)
                .fails("copy_file", to("f", "g"), AlreadyExists),
            plain("with leave")
                .fails("move_file", over("f", "empty"), WrongType)
                .fails("move_file", over("d", "f"), WrongType)
                .fails("move_file", over("d", "empty"), WrongType)
                .fails("copy_file", over("f", "empty"), WrongType)
                .succeeds("move_file", over("f", "g"), |world, value| {
                    assert_eq!((world.read("g").as_str(), &value["overwritten"]), ("f", &json!(true)));
                    assert!(!world.root.join("f").exists());
                }),
            plain("onto nothing")
                .succeeds("move_file", to("d", "new"), |world, _| assert_eq!(world.read("new/e/h"), "h"))
                .succeeds("move_file", to("new/", "newer/"), |world, _| assert_eq!(world.read("newer/e/h"), "h"))
                .succeeds("move_file", to("newer/e/h", "d2/h"), |world, _| assert_eq!(world.read("d2/h"), "h"))
                .succeeds("move_file", to("f", "F"), |world, _| assert_eq!(world.read("F"), "f"))
                .fails("move_file", to("f", "x"), NotFound)
                .fails("move_file", to("g", "nothing/x"), NotFound)
                .fails("copy_file", to("nothing", "x"), NotFound)
                .fails("copy_file", to("d2", "x"), WrongType),
        ]
    });
}

#[test]
fn a_directory_is_not_moved_into_itself_and_a_root_not_at_all() {
    check(|| {
        let mut cases = vec![
            plain("into itself")
                .link("l", "d/e")
                .fails("move_file", json!({"from": "d", "to": "d/x"}), InvalidArgs)
                .fails("move_file", json!({"from": "d", "to": "d/e/x"}), InvalidArgs)
                .fails("move_file", json!({"from": "d", "to": "l/x"}), InvalidArgs)
                .fails("move_file", json!({"from": "d", "to": "d2/../d/x"}), InvalidArgs)
                .fails("move_file", json!({"from": "d", "to": "d"}), InvalidArgs)
                .fails("move_file", json!({"from": "d", "to": "d", "overwrite": true}), InvalidArgs)
                .fails("move_file", json!({"from": "d", "to": "./d/"}), InvalidArgs)
                .fails("move_file", json!({"from": "f", "to": "./f"}), InvalidArgs),
        ];
        for root in [".", "./", "d/..", "{ROOT}"] {
            cases.push(
                plain("a root")
                    .fails("move_file", json!({"from": root, "to": "x"}), PermissionDenied)
                    .fails("move_file", json!({"from": root, "to": "d/x"}), PermissionDenied)
                    .fails("move_file", json!({"from": "f", "to": root}), PermissionDenied)
                    .fails("move_file", json!({"from": "f", "to": root, "overwrite": true}), PermissionDenied)
                    .fails("delete_file", json!({"path": root}), PermissionDenied)
                    .fails("delete_file", json!({"path": root, "recursive": true}), PermissionDenied),
            );
        }
        cases.push(
            plain("an empty path is not the root")
                .fails("delete_file", json!({"path": "", "recursive": true}), InvalidPath)
                .fails("move_file", json!({"from": "", "to": "x"}), InvalidPath)
                .fails("move_file", json!({"from": "f", "to": ""}), InvalidPath),
        );
        cases.push(
            plain("by way of `..`")
                .refused("delete_file", json!({"path": "d/e/..", "recursive": true}), &[InvalidPath, WrongType])
                .refused("move_file", json!({"from": "d/e/..", "to": "x"}), &[InvalidPath, WrongType]),
        );
        cases
    });
}

#[test]
fn a_delete_takes_what_was_named_and_nothing_else() {
    check(|| {
        vec![
            plain("a directory with something in it needs leave")
                .fails("delete_file", json!({"path": "d"}), WrongType)
                .fails("delete_file", json!({"path": "d/"}), WrongType)
                .fails("delete_file", json!({"path": "d", "recursive": false}), WrongType)
                .succeeds("delete_file", json!({"path": "empty"}), |_, value| assert_eq!(value["count"], 1))
                .succeeds("delete_file", json!({"path": "d", "recursive": true}), |world, value| {
                    assert_eq!(value["deleted"], json!(["d", "d/e", "d/e/h"]));
                    assert!(!world.root.join("d").exists());
                })
                .succeeds("delete_file", json!({"path": "f", "recursive": true}), |_, value| {
                    assert_eq!(value["count"], 1)
                })
                .fails("delete_file", json!({"path": "f"}), NotFound),
            plain("links in a directory go, and what they lead to stays")
                .link("d/out", "../../outside")
                .link("d/secret", "../../outside/secret")
                .link("d/in", "../d2")
                .succeeds("delete_file", json!({"path": "d", "recursive": true}), |world, value| {
                    assert_eq!(value["count"], 6);
                    assert!(world.root.join("d2/empty").is_dir());
                }),
            plain("a file that is open somewhere is gone all the same").then(|world| {
                let open = std::fs::File::open(world.root.join("f")).unwrap();
                world.value("delete_file", &json!({"path": "f"}));
                assert!(!world.root.join("f").exists());
                drop(open);
            }),
            plain("what is protected in it is asked about")
                .file("d/.git/config", "x")
                .fails("delete_file", json!({"path": "d", "recursive": true}), ApprovalDenied)
                .fails("move_file", json!({"from": "d", "to": "x"}), ApprovalDenied),
            plain("what is protected deep in it is asked about")
                .file("d/1/2/3/4/5/6/.github/workflows/ci.yml", "x")
                .file("d2/1/2/3/4/5/6/.aws/credentials", "x")
                .fails("delete_file", json!({"path": "d", "recursive": true}), ApprovalDenied)
                .fails("delete_file", json!({"path": "d2", "recursive": true}), ApprovalDenied)
                .fails("move_file", json!({"from": "d", "to": "x"}), ApprovalDenied)
                .fails("delete_file", json!({"path": "d/1/2/3/4/5/6/.github", "recursive": true}), ApprovalDenied)
                .fails(
                    "delete_file",
                    json!({"path": "d/1/2/3/4/5/6/.github/workflows", "recursive": true}),
                    ApprovalDenied,
                ),
            case("a long list of names is cut and counted").given(|world| many(world, 1500)).succeeds(
                "delete_file",
                json!({"path": "many", "recursive": true}),
                |_, value| {
                    assert_eq!((value["deleted"].as_array().unwrap().len(), &value["count"]), (1000, &json!(1501)));
                },
            ),
        ]
    });
}

fn many(world: &FsFixture, count: usize) {
    std::fs::create_dir(world.root.join("many")).unwrap();
    for at in 0..count {
        std::fs::write(world.root.join(format!("many/{at:05}")), "").unwrap();
    }
}

#[test]
fn a_list_is_sorted_by_bytes_and_cut_where_it_is_too_long() {
    check(|| {
        vec![
            case("a large directory")
                .given(|world| many(world, 1500))
                .succeeds("list_directory", json!({"path": "many"}), |_, value| {
                    let names = names(value);
                    assert_eq!((names.len(), &value["truncated"], &value["total"]), (1000, &json!(true), &json!(1500)));
                    assert_eq!((names[0].as_str(), names[999].as_str()), ("00000", "00999"));
                })
                .succeeds("list_directory", json!({"path": ".", "recursive": true}), |_, value| {
                    assert_eq!((names(value).len(), &value["total"]), (1000, &json!(1501)));
                })
                .succeeds("find_files", json!({"path": ".", "glob": "*"}), |_, value| {
                    assert_eq!((value["paths"].as_array().unwrap().len(), &value["truncated"]), (1000, &json!(true)));
                })
                .succeeds("find_files", json!({"path": ".", "glob": "*", "maxResults": 3}), |_, value| {
                    assert_eq!(value["paths"], json!(["many/", "many/00000", "many/00001"]));
                }),
            case("more than a call may visit")
                .set(|setup| setup.limits.walk_entries = 100)
                .given(|world| many(world, 101))
                .fails("list_directory", json!({"path": "many"}), ReadLimit)
                .fails("list_directory", json!({"path": ".", "recursive": true}), ReadLimit)
                .fails("find_files", json!({"path": ".", "glob": "x"}), ReadLimit)
                .fails("delete_file", json!({"path": "many", "recursive": true}), ReadLimit),
            case("miniclaw").miniclaw().given(|world| many(world, 501)).then(|world| {
                let text = world.call("list_dir", &json!({"path": "many"})).text;
                assert!(
                    text.starts_with("ok: listed 500 entries in many (truncated from 501)\n- 00000\tfile\t0\n"),
                    "{text}"
                );
                assert_eq!(text.lines().count(), 501);
            }),
            case("the order is that of bytes")
                .file("b", "")
                .file("B", "")
                .file("a", "")
                .file(".h", "")
                .file("é", "")
                .file("z", "")
                .succeeds("list_directory", json!({"path": ".", "includeHidden": true}), |_, value| {
                    assert_eq!(names(value), [".h", "B", "a", "b", "z", "é"]);
                })
                .succeeds("list_directory", json!({"path": "."}), |_, value| {
                    assert_eq!(names(value), ["B", "a", "b", "z", "é"]);
                })
                .succeeds("list_directory", json!({"path": ".", "recursive": true}), |_, value| {
                    assert_eq!(names(value), ["B", "a", "b", "z", "é"]);
                }),
            case("temporary files of ours are not seen")
                .file(".ringfence-tmp-0", "x")
                .file("d/.ringfence-tmp-1", "x")
                .succeeds(
                    "list_directory",
                    json!({"path": ".", "recursive": true, "includeHidden": true}),
                    |_, value| {
                        assert_eq!(names(value), ["d"]);
                    },
                )
                .succeeds("find_files", json!({"path": ".", "glob": "**"}), |_, value| {
                    assert_eq!(value["paths"], json!(["d/"]));
                }),
            case("nothing there").fails("list_directory", json!({"path": "d"}), NotFound).fails(
                "find_files",
                json!({"path": "d", "glob": "*"}),
                NotFound,
            ),
        ]
    });
}

#[test]
fn a_pattern_matches_names_below_and_nothing_else() {
    check(|| {
        let mut bad = plain("refused");
        let glob = |glob: &str| json!({"path": ".", "glob": glob});
        for pattern in
            ["", "../*", "..", "**/../..", "**/../../outside/*", "d/../../*", "/etc/*", "/", "[", "{a", "a{b,{c"]
        {
            bad = bad.fails("find_files", glob(pattern), InvalidArgs);
        }
        bad = bad
            .fails("find_files", glob(&"a".repeat(1025)), InvalidArgs)
            .fails("find_files", json!({"path": ".", "glob": "*", "maxResults": 0}), InvalidArgs)
            .fails("find_files", json!({"path": ".", "glob": "*", "maxResults": -1}), InvalidArgs);
        let mut none = plain("of no harm").link("out", "../outside").file(&"a".repeat(200).leak()[..], "");
        for pattern in ["secret", "**/secret", "out/*", "out/**", "\\.\\./*", "[.][.]/**", "*a".repeat(300).as_str()] {
            none = none.succeeds("find_files", glob(pattern), |_, value| assert_eq!(value["paths"], json!([])));
        }
        vec![
            bad,
            none,
            plain("found")
                .succeeds("find_files", glob("**/h"), |_, value| assert_eq!(value["paths"], json!(["d/e/h"])))
                .succeeds("find_files", glob("*/e"), |_, value| assert_eq!(value["paths"], json!(["d/e/"])))
                .succeeds("find_files", json!({"path": "d", "glob": "*"}), |_, value| {
                    assert_eq!(value["paths"], json!(["e/", "e/h"]));
                }),
        ]
    });
}

#[test]
fn a_link_is_not_moved_to_where_it_leads_out() {
    let to = |from: &str, to: &str| json!({"from": from, "to": to});
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        let world = FsFixture::with(FsFixtureConfig::default().on(backend));
        world.write("a/b/f", "f");
        world.write("f", "f");
        let link = |target: &str, path: &str| std::os::unix::fs::symlink(target, world.root.join(path)).unwrap();
        link("../../f", "a/b/up");
        link("../f", "a/one");
        link("f", "a/b/beside");
        link("../b/f", "a/b/around");
        link("/nowhere", "a/b/absolute");
        for (from, there) in [("a/b/up", "up"), ("a/b/up", "a/up"), ("a/b", "b"), ("a/one", "one")] {
            let answer = world.call("move_file", &to(from, there));
            assert_eq!(answer.error, Some(OutsideWorkspace), "{from} {there}: {}", answer.text);
            assert!(answer.text.contains("would lead outside"), "{}", answer.text);
        }
        for (from, there) in
            [("a/b/beside", "beside"), ("a/b/around", "a/around"), ("a/b/absolute", "absolute"), ("a/b/up", "a/b/up2")]
        {
            world.value("move_file", &to(from, there));
        }
        world.value("move_file", &to("a", "c"));
        // An undo moves what came into the directory meanwhile, too.
        let world = FsFixture::with(FsFixtureConfig::default().on(backend));
        world.write("d/f", "f");
        world.write("x/y/f", "f");
        let change = world.value("move_file", &to("d", "x/y/d"))["change"].clone();
        std::os::unix::fs::symlink("../../../f", world.root.join("x/y/d/up")).unwrap();
        assert_eq!(world.error("undo", &json!({"change": change})), OutsideWorkspace);
    }
}
