//! Attacks on writing, appending and editing.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use ringfence_kernel::ErrorKind::{
    AmbiguousEdit, Conflict, EditNotFound, InvalidArgs, InvalidPath, NotFound, WriteLimit, WrongType,
};
use serde_json::json;

use super::{case, check};
use crate::fixture::{FsFixture, FsFixtureConfig};

const MIB: usize = 1 << 20;

/// Of `abc`.
const SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn non_string_content_is_refused() {
    check(|| {
        let mut standard = case("standard").file("f", "old");
        let mut miniclaw = case("miniclaw").miniclaw().file("f", "old");
        for bad in ["5", "null", "[]", "{}", "true", "\"\\ud800\"", "\"\\uDC00x\"", "\"unfinished"] {
            let content = format!(r#"{{"path":"f","content":{bad}}}"#);
            let edit = format!(r#"{{"path":"f","oldText":"old","newText":{bad}}}"#);
            standard = standard
                .fails("write_file", &content, InvalidArgs)
                .fails("append_file", &content, InvalidArgs)
                .fails("edit_file", edit, InvalidArgs);
            let edit = format!(r#"{{"path":"f","old_text":"old","new_text":{bad}}}"#);
            miniclaw = miniclaw
                .fails_saying("write_file", &content, InvalidArgs, &["invalid parameters: "])
                .fails_saying("append_file", &content, InvalidArgs, &["invalid parameters: "])
                .fails_saying("edit_file", edit, InvalidArgs, &["invalid parameters: "]);
        }
        for bad in ["%%%", "YQ", "YQ==\n", "a b="] {
            let arguments = json!({"path": "f", "content": bad, "encoding": "base64"});
            standard = standard.fails("write_file", arguments, InvalidArgs);
        }
        standard = standard
            .fails("write_file", json!({"path": "f", "content": "x", "encoding": "utf-16"}), InvalidArgs)
            .succeeds("write_file", json!({"path": "f", "content": "AP8=", "encoding": "base64"}), |world, _| {
                assert_eq!(std::fs::read(world.root.join("f")).unwrap(), b"\0\xff");
            });
        vec![standard, miniclaw]
    });
}

#[test]
fn directories_are_made_where_asked_and_not_left_behind_by_a_change_that_fails() {
    check(|| {
        vec![
            case("asked").succeeds(
                "write_file",
                json!({"path": "a/b/c/f", "content": "x", "createDirs": true}),
                |world, _| {
                    assert_eq!(world.read("a/b/c/f"), "x");
                    assert_eq!(world.root.join("a/b").metadata().unwrap().mode() & 0o777, 0o755);
                },
            ),
            case("not asked")
                .file("other.txt", "other")
                .fails("write_file", json!({"path": "a/f", "content": "x"}), NotFound)
                .fails("append_file", json!({"path": "a/f", "content": "x"}), NotFound)
                .fails("copy_file", json!({"from": "other.txt", "to": "a/f"}), NotFound)
                .fails("move_file", json!({"from": "other.txt", "to": "a/f"}), NotFound),
            case("miniclaw always makes them")
                .miniclaw()
                .replies("write_file", json!({"path": "a/b/f", "content": "x"}), "ok: wrote 1 bytes to a/b/f")
                .replies(
                    "append_file",
                    json!({"path": "c/d/f", "content": "x"}),
                    "ok: appended 1 bytes to c/d/f (size=1)",
                ),
            case("a change that fails leaves none")
                .file("f", "x")
                .fails("write_file", json!({"path": "a/b/n\u{7}", "content": "x", "createDirs": true}), InvalidPath)
                .fails("write_file", json!({"path": "a/\u{7}/n", "content": "x", "createDirs": true}), InvalidPath)
                .fails("write_file", json!({"path": "f/a/b", "content": "x", "createDirs": true}), WrongType)
                .fails("create_directory", json!({"path": "f/a/b"}), WrongType)
                .fails("create_directory", json!({"path": "a/b/\u{7}"}), InvalidPath)
                .fails(
                    "write_file",
                    json!({"path": "a/b", "content": "x", "createDirs": true, "ifMatchSha256": SHA}),
                    Conflict,
                )
                .fails_on(
                    "write_file",
                    || json!({"path": "a/b", "content": "x".repeat(11 * MIB), "createDirs": true}),
                    WriteLimit,
                    &["max_write_bytes"],
                ),
        ]
    });
}

#[test]
fn nothing_grows_past_its_limit() {
    check(|| {
        vec![
            case("standard")
                .file("f", "old")
                .fails_on(
                    "write_file",
                    || json!({"path": "f", "content": "x".repeat(10 * MIB + 1)}),
                    WriteLimit,
                    &["10485760"],
                )
                .fails_on(
                    "append_file",
                    || json!({"path": "f", "content": "x".repeat(MIB + 1)}),
                    WriteLimit,
                    &["1048576"],
                )
                .fails_on("append_file", || json!({"path": "new", "content": "x".repeat(MIB + 1)}), WriteLimit, &[]),
            case("miniclaw")
                .miniclaw()
                .file("f", "old")
                .fails_on(
                    "write_file",
                    || json!({"path": "f", "content": "x".repeat(MIB + 1)}),
                    WriteLimit,
                    &["io_error: "],
                )
                .fails_on(
                    "append_file",
                    || json!({"path": "f", "content": "x".repeat(MIB + 1)}),
                    WriteLimit,
                    &["io_error: "],
                )
                .fails_on(
                    "edit_file",
                    || json!({"path": "f", "old_text": "old", "new_text": "x".repeat(MIB + 1)}),
                    WriteLimit,
                    &["io_error: "],
                ),
            case("a file that is appended to again and again")
                .set(|setup| setup.limits.appended_file_bytes = 10)
                .file("f", "12345")
                .succeeds("append_file", json!({"path": "f", "content": "67890"}), |_, value| {
                    assert_eq!(value["size"], 10)
                })
                .fails("append_file", json!({"path": "f", "content": "x"}), WriteLimit)
                .succeeds("append_file", json!({"path": "f", "content": ""}), |_, value| assert_eq!(value["size"], 10)),
            case("an edit that blows up")
                .file("f", "x".repeat(100_000))
                .fails_on(
                    "edit_file",
                    || json!({"path": "f", "oldText": "x", "newText": "y".repeat(MIB), "replaceAll": true}),
                    WriteLimit,
                    &["max_edit_bytes"],
                )
                .fails_on(
                    "edit_file",
                    || {
                        let double = json!({"oldText": "x", "newText": "xx", "replaceAll": true});
                        json!({"path": "f", "edits": vec![double; 40]})
                    },
                    WriteLimit,
                    &["max_edit_bytes"],
                ),
            case("arguments as large as nobody needs").file("f", "old").fails_on(
                "write_file",
                || json!({"path": "f", "content": "x".repeat(33 * MIB)}),
                InvalidArgs,
                &["33554432"],
            ),
        ]
    });
}

#[test]
fn an_append_adds_exactly_what_it_is_given() {
    check(|| {
        vec![
            case("no newline is made up")
                .file("f", "no newline")
                .succeeds("append_file", json!({"path": "f", "content": "x"}), |world, _| {
                    assert_eq!(world.read("f"), "no newlinex");
                })
                .succeeds("append_file", json!({"path": "f", "content": "\r\n\u{feff}"}), |world, value| {
                    assert_eq!((world.read("f").as_str(), &value["size"]), ("no newlinex\r\n\u{feff}", &json!(16)));
                }),
            case("also after bytes that are not text").given(|world| world.write("f", b"\xff\0")).succeeds(
                "append_file",
                json!({"path": "f", "content": "x"}),
                |world, _| {
                    assert_eq!(std::fs::read(world.root.join("f")).unwrap(), b"\xff\0x");
                },
            ),
        ]
    });
}

#[test]
fn an_edit_matches_exactly_and_says_why_it_did_not() {
    check(|| {
        let edit = |old: &str, new: &str| json!({"path": "f", "oldText": old, "newText": new});
        vec![
            case("nothing cannot be replaced")
                .file("f", "abc")
                .fails("edit_file", edit("", "x"), InvalidArgs)
                .fails("edit_file", json!({"path": "f", "oldText": "", "newText": "x", "replaceAll": true}), InvalidArgs)
                .fails("edit_file", json!({"path": "f", "edits": []}), InvalidArgs)
                .fails("edit_file", json!({"path": "f", "edits": [{"oldText": "", "newText": "x"}]}), InvalidArgs)
                .fails("edit_file", json!({"path": "f", "oldText": "a"}), InvalidArgs)
                .fails("edit_file", json!({"path": "f"}), InvalidArgs)
                .fails("edit_file", json!({"path": "f", "oldText": "a", "newText": "b", "edits": []}), InvalidArgs),
            case("nor in miniclaw").miniclaw().file("f", "abc").fails_with_text(
                "edit_file",
                json!({"path": "f", "old_text": "", "new_text": "x"}),
                InvalidArgs,
                "invalid_path: old_text must not be empty",
            ),
            case("not found, with a hint at the line")
                .file("f", "fn main() {\n\tprintln!(\"x\");\n}\n")
                .fails_saying("edit_file", edit("    println!(\"x\");", "y"), EditNotFound, &["line 2"])
                .fails_saying("edit_file", edit("FN MAIN() {", "y"), EditNotFound, &["line 1", "case"])
                .fails("edit_file", edit("nowhere", "y"), EditNotFound),
            case("not found in miniclaw").miniclaw().file("f", "abc").fails_saying(
                "edit_file",
                json!({"path": "f", "old_text": "x", "new_text": "y"}),
                EditNotFound,
                &["edit_not_found: old_text not found in `f`"],
            ),
            case("line ends are those of the file, and said to be")
                .file("f", "one\r\ntwo\r\n")
                .succeeds("edit_file", edit("one\ntwo", "1\n2"), |world, value| {
                    assert_eq!(world.read("f"), "1\r\n2\r\n");
                    assert_eq!(value["relaxed"], json!(["matched with the file's line endings"]));
                })
                .succeeds("edit_file", edit("1\r\n2", "3\r\n4"), |world, _| assert_eq!(world.read("f"), "3\r\n4\r\n")),
            case("line ends are not guessed in miniclaw")
                .miniclaw()
                .file("f", "one\r\ntwo\r\n")
                .fails_saying(
                    "edit_file",
                    json!({"path": "f", "old_text": "one\ntwo", "new_text": "x"}),
                    EditNotFound,
                    &["CRLF"],
                ),
            case("letters with accents are not guessed")
                .file("f", "cafe\u{301}\n")
                .fails_saying("edit_file", edit("caf\u{e9}", "x"), EditNotFound, &["accented letters"]),
            case("more than one match is not guessed")
                .file("f", "x\ny\nx\n")
                .fails_saying("edit_file", edit("x", "z"), AmbiguousEdit, &["2 matches", "1, 3"])
                .succeeds("edit_file", json!({"path": "f", "oldText": "x", "newText": "z", "replaceAll": true}), |world, value| {
                    assert_eq!((world.read("f").as_str(), &value["replaced"]), ("z\ny\nz\n", &json!(2)));
                }),
            case("nor in miniclaw")
                .miniclaw()
                .file("f", "x\ny\nx\n")
                .fails("edit_file", json!({"path": "f", "old_text": "x", "new_text": "z"}), AmbiguousEdit)
                .replies(
                    "edit_file",
                    json!({"path": "f", "old_text": "x", "new_text": "z", "replace_all": true}),
                    "ok: replaced 2 match(es) in f",
                ),
            case("matches that overlap are two")
                .file("f", "aaa")
                .fails("edit_file", edit("aa", "b"), AmbiguousEdit)
                .succeeds("edit_file", json!({"path": "f", "oldText": "aa", "newText": "b", "replaceAll": true}), |world, _| {
                    assert_eq!(world.read("f"), "ba");
                }),
            case("and one in miniclaw, which counts them apart").miniclaw().file("f", "aaa").replies(
                "edit_file",
                json!({"path": "f", "old_text": "aa", "new_text": "b"}),
                "ok: replaced 1 match(es) in f",
            ),
            case("several edits are made all or none")
                .file("f", "one two")
                .fails(
                    "edit_file",
                    json!({"path": "f", "edits": [{"oldText": "one", "newText": "1"}, {"oldText": "three", "newText": "3"}]}),
                    EditNotFound,
                )
                .succeeds(
                    "edit_file",
                    json!({"path": "f", "edits": [{"oldText": "one", "newText": "1"}, {"oldText": "1 two", "newText": "3"}]}),
                    |world, _| assert_eq!(world.read("f"), "3"),
                ),
            case("what is not there is not edited")
                .fails("edit_file", edit("a", "b"), NotFound)
                .fails("edit_file", json!({"path": "a/f", "oldText": "a", "newText": "b"}), NotFound),
        ]
    });
}

#[test]
fn a_change_of_something_else_than_was_read_is_a_conflict() {
    check(|| {
        let other = "0".repeat(64);
        let mut bad = case("malformed").file("f", "abc");
        for sha in ["", "abc", &SHA[1..], &format!("sha256:{SHA}"), &format!("{SHA}0"), &SHA.replace('b', "g")] {
            bad =
                bad.fails("write_file", json!({"path": "f", "content": "x", "ifMatchSha256": sha}), InvalidArgs).fails(
                    "edit_file",
                    json!({"path": "f", "oldText": "a", "newText": "x", "ifMatchSha256": sha}),
                    InvalidArgs,
                );
        }
        vec![
            bad,
            case("stale, and the present one is told")
                .file("f", "abc")
                .fails_saying(
                    "write_file",
                    json!({"path": "f", "content": "x", "ifMatchSha256": other}),
                    Conflict,
                    &[SHA],
                )
                .fails_saying(
                    "edit_file",
                    json!({"path": "f", "oldText": "a", "newText": "x", "ifMatchSha256": other}),
                    Conflict,
                    &[SHA],
                )
                .fails("write_file", json!({"path": "new", "content": "x", "ifMatchSha256": other}), Conflict),
            case("in either letter case")
                .file("f", "abc")
                .succeeds(
                    "edit_file",
                    json!({"path": "f", "oldText": "a", "newText": "a", "ifMatchSha256": SHA}),
                    |_, _| (),
                )
                .succeeds(
                    "write_file",
                    json!({"path": "f", "content": "x", "ifMatchSha256": SHA.to_uppercase()}),
                    |world, _| {
                        assert_eq!(world.read("f"), "x");
                    },
                ),
        ]
    });
}

#[test]
fn one_of_many_changes_to_the_same_version_succeeds() {
    for backend in [ringfence_fs::ResolverBackend::Best, ringfence_fs::ResolverBackend::CapStd] {
        let world = Arc::new(FsFixture::with(FsFixtureConfig::default().on(backend)));
        for round in 0..5 {
            world.write("f", "abc");
            let together = Arc::new(std::sync::Barrier::new(6));
            let racers: Vec<_> = (0..6)
                .map(|racer| {
                    let (world, together) = (Arc::clone(&world), Arc::clone(&together));
                    std::thread::spawn(move || {
                        let arguments = if racer % 2 == 0 {
                            json!({"path": "f", "oldText": "abc", "newText": format!("{racer}"), "ifMatchSha256": SHA})
                        } else {
                            json!({"path": "f", "content": format!("{racer}"), "ifMatchSha256": SHA})
                        };
                        together.wait();
                        (racer, world.call(if racer % 2 == 0 { "edit_file" } else { "write_file" }, &arguments).error)
                    })
                })
                .collect();
            let ended: Vec<_> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
            let won: Vec<_> = ended.iter().filter(|(_, error)| error.is_none()).collect();
            assert_eq!(won.len(), 1, "round {round}: {ended:?}");
            assert!(ended.iter().all(|(_, error)| error.is_none_or(|kind| kind == Conflict)), "{ended:?}");
            assert_eq!(world.read("f"), won[0].0.to_string());
        }
    }
}
