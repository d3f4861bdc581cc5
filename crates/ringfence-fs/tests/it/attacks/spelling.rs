//! Path spellings, each with every operation.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use ringfence_fs::ResolverBackend;
use ringfence_kernel::Dialect;
use ringfence_kernel::ErrorKind::{
    AlreadyExists, ApprovalDenied, InvalidArgs, InvalidPath, NotFound, OutsideWorkspace, PermissionDenied, WrongType,
};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::json;

use super::operations::{PathUse, operations};
use super::subprocess::{TestSubprocess, is_child};
use super::{FsAttackCase, case, check};
use crate::fixture::{FsFixture, FsFixtureConfig};

#[test]
fn no_spelling_of_a_path_leads_out() {
    check(|| refused(OutsideWorkspace, &OUTSIDE));
}

const OUTSIDE: [&str; 29] = [
    "..",
    "../",
    "../.",
    "../..",
    "../x",
    "./../x",
    ".//..//x",
    "../outside/secret",
    "../outside",
    "d/../../outside/secret",
    "d/../..",
    // Out and back in is out.
    "../ws/other.txt",
    "../ws",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "///etc",
    "{HOST}",
    "{HOST}/outside/secret",
    // A string that begins like the root is not below it.
    "{ROOT}-evil/f",
    "{ROOT}x",
    "{ROOT}.",
    "{ROOT}/../outside/secret",
    "{ROOT}/..",
    "/{ROOT}/other.txt",
    // What the host has of its own.
    "/proc/self/root/etc/passwd",
    "/proc/self/cwd/Cargo.toml",
    "/dev/fd/0",
    "/dev/stdin",
];

#[test]
fn host_files_are_outside_the_workspace() {
    check(|| {
        refused(
            OutsideWorkspace,
            &["/proc/self/fd/3", "/proc/1/root", "/dev/tty", "/sys/kernel/notes", "/dev/null", "/proc/self/mem"],
        )
    });
}

#[test]
fn an_invalid_path_is_refused_before_any_open() {
    check(|| {
        let mut spellings: Vec<String> = [
            "other.txt\0",
            "other.txt\0../../etc/passwd",
            "\0",
            "\\x00",
            "other.txt\\x00",
            "C:\\x",
            "C:x",
            "C:/x",
            "c:",
            "\\\\srv\\share",
            "\\\\?\\C:\\x",
            "\\\\.\\PhysicalDrive0",
            "file:///etc/passwd",
            "file://localhost/etc/passwd",
            "FILE:///etc/passwd",
            "file:other.txt",
            "http://example.org/x",
            "https://example.org/x",
            "data:text/plain,x",
            "fd:3",
            "x+y://z",
            ".ringfence-tmp-0123456789abcdef0123456789abcdef",
            "d/.ringfence-tmp-x",
            ".ringfence-tmp-x/y",
        ]
        .map(str::to_owned)
        .into();
        spellings.push("n".repeat(256));
        spellings.push(format!("d/{}", "n".repeat(256)));
        spellings.push("n".repeat(4096));
        spellings.push("d/".repeat(2100));
        spellings.push("../".repeat(2100));
        spellings.push(format!("./{}", "/".repeat(5000)));
        let spellings: Vec<&str> = spellings.iter().map(String::as_str).collect();
        let mut cases = refused(InvalidPath, &spellings);
        // `list_dir` takes an empty path for the workspace; all else needs one.
        let mut empty = refused(InvalidPath, &[""]);
        cases.push(empty.swap_remove(0));
        cases.push(
            case("the empty path means the workspace to `list_dir`, and nothing to other tools")
                .miniclaw()
                .file("other.txt", "other")
                .replies("list_dir", json!({"path": ""}), "ok: listed 1 entries in .\n- other.txt\tfile\t5")
                .fails_with_text("read_file", json!({"path": ""}), InvalidPath, "invalid_path: path must not be empty")
                .fails_with_text(
                    "write_file",
                    json!({"path": "", "content": ""}),
                    InvalidPath,
                    "invalid_path: path must not be empty",
                ),
        );
        cases
    });
}

#[test]
fn a_path_of_many_megabytes_is_refused_by_its_length() {
    check(|| {
        let long = || "a/".repeat(5 << 20);
        vec![
            case("ten megabytes of path")
                .fails_on("read_file", move || json!({"path": long()}), InvalidPath, &["4095"])
                .fails_on(
                    "write_file",
                    move || json!({"path": long(), "content": "", "createDirs": true}),
                    InvalidPath,
                    &[],
                )
                .fails_on("create_directory", move || json!({"path": long()}), InvalidPath, &[])
                .fails_on("delete_file", move || json!({"path": long()}), InvalidPath, &[]),
        ]
    });
}

/// Every operation of each dialect without mounts on each of these is refused in the same way.
fn refused(kind: ringfence_kernel::ErrorKind, spellings: &[&str]) -> Vec<FsAttackCase> {
    let mut cases = Vec::new();
    for spelling in spellings {
        let name = format!("{:?} is {kind:?}", &spelling[..spelling.len().min(60)]);
        let plain = case(name).file("other.txt", "other").directory("d");
        cases.push(plain.refuses_every_operation(spelling, |_| Some(kind)));
        let name = format!("{:?} is {kind:?} in miniclaw", &spelling[..spelling.len().min(60)]);
        let plain = case(name).miniclaw().file("other.txt", "other").directory("d");
        cases.push(plain.refuses_every_operation(spelling, |usage| {
            (usage != PathUse::List || !spelling.is_empty()).then_some(kind)
        }));
        for dialect in [Dialect::Claude, Dialect::Codex, Dialect::Gemini] {
            let name = format!("{:?} is {kind:?} in {}", &spelling[..spelling.len().min(60)], dialect.name());
            let plain = case(name).with_dialect(dialect).file("other.txt", "other").directory("d");
            cases.push(plain.refuses_every_operation(spelling, |_| Some(kind)));
        }
    }
    cases
}

#[test]
fn the_root_can_be_listed_and_nothing_else() {
    check(|| {
        let mut cases = Vec::new();
        for root in [".", "./", "./.", "d/..", "d/../", "d/./..", "d/e/../..", "{ROOT}", "{ROOT}/", "{ROOT}/d/.."] {
            let there = || case(format!("{root} is the root")).file("other.txt", "other").directory("d/e");
            let judge = |usage| match usage {
                PathUse::List | PathUse::Describe => None,
                PathUse::Read => Some(WrongType),
                _ => Some(PermissionDenied),
            };
            cases.push(
                there()
                    .refuses_every_operation(root, judge)
                    .succeeds("list_directory", json!({"path": root}), |_, value| {
                        assert_eq!(value["entries"].as_array().unwrap().len(), 2);
                    })
                    .succeeds("find_files", json!({"path": root, "glob": "*.txt"}), |_, value| {
                        assert_eq!(value["paths"], json!(["other.txt"]));
                    })
                    .succeeds("get_file_info", json!({"path": root}), |_, value| {
                        assert_eq!((&value["type"], &value["size"]), (&json!("directory"), &json!(0)));
                    }),
            );
            cases.push(there().miniclaw().refuses_every_operation(root, judge));
        }
        cases
    });
}

#[test]
fn dotdot_goes_where_the_kernel_says_and_not_where_the_text_does() {
    check(|| {
        vec![
            case("`..` that stays inside is resolved")
                .file("a/x", "of a")
                .file("b", "of the root")
                .succeeds("read_file", json!({"path": "a/../b"}), |_, value| {
                    assert_eq!(value["content"], "of the root")
                })
                .succeeds("write_file", json!({"path": "a/../b", "content": "new"}), |world, value| {
                    assert_eq!((world.read("b").as_str(), &value["path"]), ("new", &json!("a/../b")));
                })
                .succeeds("move_file", json!({"from": "a/../b", "to": "a/../a/c"}), |world, _| {
                    assert_eq!(world.read("a/c"), "new");
                }),
            case("`..` behind a link is the parent of where the link leads")
                .file("a/b/f", "deep")
                .file("a/x", "of a")
                .file("x", "of the root")
                .link("l", "a/b")
                .succeeds("read_file", json!({"path": "l/../x"}), |_, value| assert_eq!(value["content"], "of a"))
                .succeeds("write_file", json!({"path": "l/../x", "content": "new"}), |world, _| {
                    assert_eq!((world.read("a/x"), world.read("x")), ("new".to_owned(), "of the root".to_owned()));
                })
                .succeeds("append_file", json!({"path": "l/../x", "content": "er"}), |world, _| {
                    assert_eq!(world.read("a/x"), "newer");
                })
                .succeeds("create_directory", json!({"path": "l/../d"}), |world, _| {
                    assert!(world.root.join("a/d").is_dir());
                })
                .succeeds("copy_file", json!({"from": "l/../x", "to": "l/../y"}), |world, _| {
                    assert_eq!(world.read("a/y"), "newer");
                })
                .succeeds("move_file", json!({"from": "l/../y", "to": "l/../z"}), |world, _| {
                    assert_eq!(world.read("a/z"), "newer");
                })
                .succeeds("delete_file", json!({"path": "l/../x"}), |world, _| {
                    assert!(!world.root.join("a/x").exists() && world.root.join("x").exists());
                }),
            case("`..` behind what does not exist does not exist")
                .file("other.txt", "other")
                .refuses_every_operation("nonexist/../other.txt", |_| Some(NotFound)),
            case("nor in miniclaw")
                .miniclaw()
                .file("other.txt", "other")
                .refuses_every_operation("nonexist/../other.txt", |_| Some(NotFound)),
            case("`..` behind a file is behind no directory")
                .file("other.txt", "other")
                .file("f", "f")
                .refuses_every_operation("f/../other.txt", |_| Some(WrongType))
                .refuses_every_operation("f/..", |_| Some(WrongType)),
        ]
    });
}

#[test]
fn a_trailing_slash_does_not_make_a_file_a_directory() {
    check(|| {
        let mut cases = Vec::new();
        for path in ["f/", "f//", "f/.", "f/./", "./f/"] {
            // A directory is made where none is; what is there already is there already.
            let judge = |usage| Some(if usage == PathUse::MakeDirectory { AlreadyExists } else { WrongType });
            // Without overwriting, either check comes first, for an existing entry or for its type: both refuse.
            let judge = move |usage| judge(usage).filter(|_| usage != PathUse::MoveTo { overwrite: false });
            cases.push(
                case(format!("`{path}` is not a directory"))
                    .file("f", "f")
                    .file("other.txt", "other")
                    .refuses_every_operation(path, judge),
            );
            cases.push(
                case(format!("`{path}` in miniclaw")).miniclaw().file("f", "f").refuses_every_operation(path, judge),
            );
            cases.push(
                case(format!("nothing is moved onto `{path}`")).file("f", "f").file("other.txt", "other").refused(
                    "move_file",
                    json!({"from": "other.txt", "to": path}),
                    &[WrongType, AlreadyExists],
                ),
            );
        }
        cases.push(
            case("a file is not written where the path says directory")
                .file("other.txt", "other")
                .fails("write_file", json!({"path": "new/", "content": "x"}), WrongType)
                .fails("write_file", json!({"path": "new/.", "content": "x", "createDirs": true}), WrongType)
                .fails("append_file", json!({"path": "new/", "content": "x"}), WrongType)
                .fails("copy_file", json!({"from": "other.txt", "to": "new/"}), WrongType)
                .refused("move_file", json!({"from": "other.txt", "to": "new/"}), &[WrongType, NotFound])
                .succeeds("create_directory", json!({"path": "new/"}), |world, _| {
                    assert!(world.root.join("new").is_dir());
                }),
        );
        cases
    });
}

#[test]
fn a_path_is_the_same_with_dots_and_slashes_in_it() {
    check(|| {
        let mut cases = Vec::new();
        for path in ["f", "./f", "././f", ".//f", "{ROOT}/f", "{ROOT}//f", "{ROOT}/./f", "d/../f"] {
            let shown = if path.starts_with('d') { "d/../f" } else { "f" };
            cases.push(
                case(format!("{path} is f"))
                    .directory("d")
                    .succeeds("write_file", json!({"path": path, "content": "x"}), move |world, value| {
                        assert_eq!((world.read("f").as_str(), &value["path"]), ("x", &json!(shown)));
                    })
                    .succeeds("append_file", json!({"path": path, "content": "y"}), |world, _| {
                        assert_eq!(world.read("f"), "xy");
                    })
                    .succeeds("edit_file", json!({"path": path, "oldText": "xy", "newText": "z"}), |world, _| {
                        assert_eq!(world.read("f"), "z");
                    })
                    .succeeds("read_file", json!({"path": path}), |_, value| assert_eq!(value["content"], "z"))
                    .succeeds("get_file_info", json!({"path": path}), move |_, value| assert_eq!(value["path"], shown))
                    .succeeds("copy_file", json!({"from": path, "to": "g"}), |world, _| {
                        assert_eq!(world.read("g"), "z")
                    })
                    .succeeds("move_file", json!({"from": path, "to": "h"}), |world, _| {
                        assert_eq!(world.read("h"), "z")
                    })
                    .succeeds("move_file", json!({"from": "h", "to": path}), |world, _| {
                        assert_eq!(world.read("f"), "z")
                    })
                    .succeeds("delete_file", json!({"path": path}), |world, _| assert!(!world.root.join("f").exists())),
            );
        }
        cases.push(
            case("miniclaw says the path as it was given, tidied")
                .miniclaw()
                .directory("d")
                .replies("write_file", json!({"path": ".//d/./f", "content": "x"}), "ok: wrote 1 bytes to d/f")
                .replies("write_file", json!({"path": "{ROOT}/d//f", "content": "xy"}), "ok: wrote 2 bytes to d/f")
                .replies("read_file", json!({"path": "{ROOT}/d/f"}), "ok: read 2 bytes from d/f\nxy")
                .replies("list_dir", json!({"path": "{ROOT}"}), "ok: listed 1 entries in .\n- d\tdir\t0")
                .replies("list_dir", json!({"path": "./d/"}), "ok: listed 1 entries in d\n- f\tfile\t2"),
        );
        cases
    });
}

/// Names with a special meaning on other systems, and none here.
const LITERAL: [&str; 55] = [
    "...",
    "....",
    ".. ",
    ". .",
    "%2e%2e/x",
    "%2e%2e%2fx",
    "%252e%252e%252f",
    "..%c0%af",
    "%c0%ae%c0%ae/x",
    "..%2f..%2fx",
    "f.",
    "f ",
    " f",
    "   ",
    "~",
    "~/x",
    "~root/x",
    "$HOME/x",
    "${PWD}",
    "%USERPROFILE%",
    "`id`",
    "$(id)",
    "-rf",
    "--help",
    "．．/x",
    "․․/x",
    "‥/x",
    "a∕b",
    "a⁄b",
    "a／b",
    "x/@pkg/f",
    "@pkg/f",
    "@",
    "@@project/f",
    "CON",
    "nul.txt",
    "COM1",
    "COM¹",
    "LPT²",
    "aux ",
    "file.txt::$DATA",
    "dir:$I30",
    "..\\x",
    "a\\b",
    "\\x2e\\x2e",
    "\\x2e\\x2e\\x2fx",
    "*",
    "?",
    "[a-z]",
    "{a,b}",
    "\u{e9}",
    "e\u{301}",
    "ß",
    "\u{212a}",
    "#'\"&;|<>!",
];

#[test]
fn a_name_that_means_something_elsewhere_is_only_a_name_here() {
    check(|| {
        LITERAL
            .into_iter()
            .map(|name| {
                let read = move |world: &FsFixture| world.read(name);
                case(format!("{name:?} is a name like any other"))
                    .file("other.txt", "other")
                    .fails("read_file", json!({"path": name}), NotFound)
                    .succeeds(
                        "write_file",
                        json!({"path": name, "content": "x", "createDirs": true}),
                        move |world, _| {
                            assert_eq!(read(world), "x");
                        },
                    )
                    .succeeds("append_file", json!({"path": name, "content": "y"}), move |world, _| {
                        assert_eq!(read(world), "xy");
                    })
                    .succeeds(
                        "edit_file",
                        json!({"path": name, "oldText": "xy", "newText": "z"}),
                        move |world, value| {
                            assert_eq!((read(world).as_str(), &value["path"]), ("z", &json!(name)));
                        },
                    )
                    .succeeds("read_file", json!({"path": name}), |_, value| assert_eq!(value["content"], "z"))
                    .succeeds("get_file_info", json!({"path": name}), |_, value| assert_eq!(value["type"], "file"))
                    .succeeds(
                        "list_directory",
                        json!({"path": ".", "recursive": true, "includeHidden": true}),
                        move |_, value| {
                            let entries = value["entries"].as_array().unwrap();
                            assert!(entries.iter().any(|entry| entry["name"] == name), "{entries:?}");
                        },
                    )
                    .succeeds("move_file", json!({"from": name, "to": "away"}), move |world, _| {
                        assert_eq!(world.read("away"), "z");
                    })
                    .succeeds("move_file", json!({"from": "away", "to": name}), move |world, _| {
                        assert_eq!(read(world), "z");
                    })
                    .succeeds(
                        "copy_file",
                        json!({"from": "other.txt", "to": name, "overwrite": true}),
                        move |world, _| {
                            assert_eq!(read(world), "other");
                        },
                    )
                    .succeeds("delete_file", json!({"path": name}), move |world, _| {
                        assert!(!world.root.join(name).exists());
                    })
                    .succeeds("create_directory", json!({"path": name}), move |world, _| {
                        assert!(world.root.join(name).is_dir());
                    })
                    .succeeds("list_directory", json!({"path": name}), |_, value| {
                        assert_eq!(value["entries"], json!([]))
                    })
            })
            .collect()
    });
}

#[test]
fn names_that_look_alike_are_two_files() {
    check(|| {
        let pairs = [
            ("\u{e9}", "e\u{301}"),
            ("ß", "ss"),
            ("ﬀ", "ff"),
            ("\u{212a}", "k"),
            ("İ", "i"),
            ("a", "A"),
            ("a", "a\u{200b}"),
        ];
        pairs
            .into_iter()
            .map(|(one, other)| {
                case(format!("{one:?} is not {other:?}"))
                    .succeeds("write_file", json!({"path": one, "content": "one"}), |_, _| ())
                    .fails("read_file", json!({"path": other}), NotFound)
                    .succeeds("write_file", json!({"path": other, "content": "other"}), |_, value| {
                        assert_eq!(value["created"], true);
                    })
                    .succeeds("read_file", json!({"path": one}), |_, value| assert_eq!(value["content"], "one"))
                    .succeeds("delete_file", json!({"path": one}), move |world, _| {
                        assert_eq!(world.read(other), "other");
                    })
            })
            .collect()
    });
}

/// Names that other systems read as something else: refused where a workspace is to be portable.
const NOT_PORTABLE: [&str; 26] = [
    "...",
    "....",
    ".. ",
    "f.",
    "f ",
    "   ",
    "CON",
    "con",
    "nul.txt",
    "COM1",
    "COM¹",
    "LPT²",
    "aux ",
    "PRN.tar.gz",
    "CONIN$",
    "file.txt::$DATA",
    "dir:$I30",
    "．．",
    "․․",
    "‥",
    "a∕b",
    "a⁄b",
    "a／b",
    "a\\b",
    "a?b",
    "..\\x",
];

#[test]
fn a_portable_workspace_gets_no_name_that_other_systems_misread() {
    check(|| {
        let mut cases = Vec::new();
        for name in NOT_PORTABLE {
            let below = format!("{name}/x");
            cases.push(
                case(format!("{name:?} is not portable"))
                    .portable()
                    .file("other.txt", "other")
                    .fails("write_file", json!({"path": name, "content": "x"}), InvalidPath)
                    .fails("write_file", json!({"path": below, "content": "x", "createDirs": true}), InvalidPath)
                    .fails("append_file", json!({"path": name, "content": "x"}), InvalidPath)
                    .fails("copy_file", json!({"from": "other.txt", "to": name}), InvalidPath)
                    .fails("move_file", json!({"from": "other.txt", "to": name}), InvalidPath)
                    .fails("create_directory", json!({"path": name}), InvalidPath)
                    .fails("create_directory", json!({"path": below}), InvalidPath)
                    .then(move |world| world.write(name, "there already"))
                    .succeeds("read_file", json!({"path": name}), |_, value| {
                        assert_eq!(value["content"], "there already");
                    })
                    .succeeds("delete_file", json!({"path": name}), |_, _| ()),
            );
            cases.push(
                case(format!("{name:?} is not portable in miniclaw"))
                    .miniclaw()
                    .portable()
                    .fails("write_file", json!({"path": name, "content": "x"}), InvalidPath)
                    .fails("append_file", json!({"path": below, "content": "x"}), InvalidPath),
            );
        }
        cases
    });
}

#[test]
fn names_that_hide_what_they_are_are_reached_and_not_made() {
    check(|| {
        let mut cases = Vec::new();
        for name in [
            "f\nname",
            "f\r",
            "..\t",
            "f\u{1b}[2J",
            "f\u{7f}",
            "f\u{85}",
            "a\u{202e}txt.exe",
            "a\u{2066}b",
            "a\u{200f}b",
        ] {
            let below = format!("{name}/x");
            cases.push(
                case(format!("{name:?} is not made"))
                    .file("other.txt", "other")
                    .fails("write_file", json!({"path": name, "content": "x"}), InvalidPath)
                    .fails("write_file", json!({"path": below, "content": "x", "createDirs": true}), InvalidPath)
                    .fails("append_file", json!({"path": name, "content": "x"}), InvalidPath)
                    .fails("copy_file", json!({"from": "other.txt", "to": name}), InvalidPath)
                    .fails("move_file", json!({"from": "other.txt", "to": name}), InvalidPath)
                    .fails("create_directory", json!({"path": name}), InvalidPath)
                    .fails("create_directory", json!({"path": below}), InvalidPath)
                    .then(move |world| world.write(name, "there already"))
                    .succeeds("read_file", json!({"path": name}), |_, value| {
                        assert_eq!(value["content"], "there already");
                    })
                    .succeeds("write_file", json!({"path": name, "content": "new"}), move |world, _| {
                        assert_eq!(world.read(name), "new");
                    })
                    .succeeds("move_file", json!({"from": name, "to": "plain"}), |_, _| ()),
            );
        }
        cases.push(
            case("a name with a newline is listed on one line, and understood as it was listed")
                .miniclaw()
                .file("f\nname", "x")
                .replies("list_dir", json!({}), "ok: listed 1 entries in .\n- f\\x0aname\tfile\t1")
                .replies("read_file", json!({"path": "f\\x0aname"}), "ok: read 1 bytes from f\\x0aname\nx"),
        );
        cases
    });
}

#[test]
fn a_non_utf8_name_is_listed_with_escapes_and_accepted_so() {
    check(|| {
        let make = |world: &FsFixture| {
            std::fs::write(world.root.join(OsStr::from_bytes(b"\xff\xfe")), "x").unwrap();
            // Not shortest form: a slash and two dots to a careless decoder.
            std::fs::write(world.root.join(OsStr::from_bytes(b"..\xc0\xafx")), "y").unwrap();
        };
        vec![
            case("escapes go both ways")
                .given(make)
                .succeeds("list_directory", json!({"path": ".", "includeHidden": true}), |_, value| {
                    let names: Vec<_> =
                        value["entries"].as_array().unwrap().iter().map(|e| (&e["name"], &e["nonUtf8"])).collect();
                    assert_eq!(names, [(&json!("..\\xc0\\xafx"), &json!(true)), (&json!("\\xff\\xfe"), &json!(true))]);
                })
                .succeeds("read_file", json!({"path": "\\xff\\xfe"}), |_, value| assert_eq!(value["content"], "x"))
                .succeeds("read_file", json!({"path": "..\\xc0\\xafx"}), |_, value| assert_eq!(value["content"], "y"))
                .succeeds("find_files", json!({"path": ".", "glob": "*"}), |_, value| {
                    assert_eq!(value["paths"], json!(["..\\xc0\\xafx", "\\xff\\xfe"]));
                })
                .succeeds("edit_file", json!({"path": "\\xff\\xfe", "oldText": "x", "newText": "z"}), |world, _| {
                    assert_eq!(std::fs::read(world.root.join(OsStr::from_bytes(b"\xff\xfe"))).unwrap(), b"z");
                })
                .succeeds("move_file", json!({"from": "\\xff\\xfe", "to": "plain"}), |world, _| {
                    assert_eq!(world.read("plain"), "z");
                })
                .succeeds("delete_file", json!({"path": "..\\xc0\\xafx"}), |_, _| ()),
            case("no such name is made")
                .file("other.txt", "other")
                .fails("write_file", json!({"path": "\\xff", "content": "x"}), InvalidPath)
                .fails("write_file", json!({"path": "\\xff/x", "content": "x", "createDirs": true}), InvalidPath)
                .fails("create_directory", json!({"path": "a/\\xc0\\xae"}), InvalidPath)
                .fails("copy_file", json!({"from": "other.txt", "to": "\\xff"}), InvalidPath)
                .fails("move_file", json!({"from": "other.txt", "to": "\\xff"}), InvalidPath),
            case("miniclaw lists them in the same words").miniclaw().given(make).replies(
                "list_dir",
                json!({}),
                "ok: listed 2 entries in .\n- ..\\xc0\\xafx\tfile\t1\n- \\xff\\xfe\tfile\t1",
            ),
        ]
    });
}

#[test]
fn invisible_characters_and_letter_case_do_not_hide_what_is_protected() {
    check(|| {
        let mut cases = Vec::new();
        for name in ["\u{200b}.git", ".g\u{200c}it", ".GIT", ".git ", ".gi\u{feff}t", ".git."] {
            let below = format!("{name}/hooks/pre-commit");
            cases.push(
                case(format!("{name:?} is protected like .git"))
                    .file("other.txt", "other")
                    .fails("write_file", json!({"path": below, "content": "x", "createDirs": true}), ApprovalDenied)
                    .fails("create_directory", json!({"path": below}), ApprovalDenied)
                    .fails("create_directory", json!({"path": name}), ApprovalDenied)
                    .fails("write_file", json!({"path": name, "content": "x"}), ApprovalDenied)
                    .fails("append_file", json!({"path": name, "content": "x"}), ApprovalDenied)
                    .fails("copy_file", json!({"from": "other.txt", "to": name}), ApprovalDenied)
                    .fails("move_file", json!({"from": "other.txt", "to": name}), ApprovalDenied),
            );
            cases.push(case(format!("{name:?} is protected in miniclaw")).miniclaw().fails(
                "write_file",
                json!({"path": below, "content": "x"}),
                ApprovalDenied,
            ));
        }
        cases
    });
}

#[test]
fn white_space_is_not_trimmed_and_the_near_name_is_told() {
    check(|| {
        let mut cases = Vec::new();
        for path in [" notes.txt", "notes.txt ", " notes.txt ", "notes.txt\n", "\tnotes.txt"] {
            let there = || case(format!("{path:?} is not notes.txt")).file("notes.txt", "x");
            let words = &["did you mean `notes.txt`?"];
            cases.push(
                there()
                    .fails_saying("read_file", json!({"path": path}), NotFound, words)
                    .fails_saying("delete_file", json!({"path": path}), NotFound, words)
                    .fails_saying("move_file", json!({"from": path, "to": "away"}), NotFound, words)
                    .fails_saying("edit_file", json!({"path": path, "oldText": "x", "newText": "y"}), NotFound, words),
            );
            cases.push(there().miniclaw().fails_saying("read_file", json!({"path": path}), NotFound, words));
        }
        cases
    });
}

#[test]
fn a_non_string_path_is_refused_by_every_tool() {
    check(|| {
        let mut cases = Vec::new();
        for dialect in Dialect::ALL {
            let plain = || {
                let case = case(format!("{} takes only strings", dialect.name())).file("other.txt", "other");
                case.with_dialect(dialect)
            };
            for bad in [
                "5",
                "null",
                "[\"other.txt\"]",
                "{}",
                "true",
                "1e999",
                "\"\\ud800\"",
                "\"\\udc00\\ud800\"",
                "NaN",
                "'x'",
            ] {
                let mut case = plain();
                for operation in operations(dialect, "PATH") {
                    // A path in a patch is text in any case.
                    if operation.arguments.get("input").is_some() {
                        continue;
                    }
                    if bad == "null" && operation.defaults_to_workspace() {
                        continue;
                    }
                    let arguments =
                        operation.arguments.to_string().replace("@workspace/PATH", "PATH").replace("\"PATH\"", bad);
                    case = case.fails(operation.tool, arguments, InvalidArgs);
                }
                cases.push(case);
            }
            let mut case = plain();
            for operation in operations(dialect, "PATH") {
                let twice = operation.arguments.to_string();
                let keys = ["path", "file_path", "dir_path", "input"];
                let key = keys.into_iter().find(|key| twice.contains(&format!("\"{key}\":"))).unwrap_or("to");
                let twice = format!("{},\"{key}\":\"elsewhere\"}}", twice.trim_end_matches('}'));
                case = case.fails_saying(operation.tool, twice, InvalidArgs, &["duplicate field"]);
            }
            cases.push(case);
        }
        cases
    });
}

/// Makes a tree of directories in each other, deeper than a path can say.
fn make_deep(world: &FsFixture, name: &str, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut here = openat(CWD, &world.root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&here, name, Mode::RWXU).unwrap();
        here = openat(&here, name, flags, Mode::empty()).unwrap();
    }
}

#[test]
fn a_tree_deeper_than_a_path_can_say_is_walked_and_deleted() {
    const NAME: &str = "directory-in-directory";
    const DEPTH: usize = 200;
    check(|| {
        vec![
            case("a deep tree")
                .given(|world| make_deep(world, NAME, DEPTH))
                .fails("read_file", json!({"path": format!("{NAME}/").repeat(DEPTH)}), InvalidPath)
                .succeeds("list_directory", json!({"path": ".", "recursive": true}), |_, value| {
                    // As far as a path can say; what is deeper is counted as not looked into.
                    let entries = value["entries"].as_array().unwrap();
                    assert_eq!((entries.len(), &value["unreadable"]), (4095 / (NAME.len() + 1) + 1, &json!(1)));
                })
                .succeeds("find_files", json!({"path": ".", "glob": "x"}), |_, value| {
                    assert_eq!((&value["paths"], &value["scanned"]), (&json!([]), &json!(4095 / (NAME.len() + 1) + 1)));
                })
                .fails("delete_file", json!({"path": NAME}), WrongType)
                .succeeds("move_file", json!({"from": NAME, "to": "moved"}), |_, _| ())
                .succeeds("delete_file", json!({"path": "moved", "recursive": true}), |world, value| {
                    assert_eq!(value["count"], DEPTH);
                    assert!(!world.root.join("moved").exists());
                }),
        ]
    });
}

#[test]
fn a_tree_of_thousands_of_levels_takes_few_descriptors() {
    const DEPTH: usize = 2500;
    if !is_child() {
        return TestSubprocess::new()
            .run_after("ulimit -n 128", "attacks::spelling::a_tree_of_thousands_of_levels_takes_few_descriptors");
    }
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        // In memory where possible: a disk is slow for many nested directories.
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let world = FsFixture::at(place, FsFixtureConfig::default().on(backend));
        make_deep(&world, "d", DEPTH);
        assert_eq!(world.value("find_files", &json!({"path": ".", "glob": "x"}))["scanned"], 4095 / 2 + 2);
        assert_eq!(world.value("delete_file", &json!({"path": "d", "recursive": true}))["count"], DEPTH);
        let left = std::fs::read_dir(&world.root).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.filter(|name| name != ".ringfence").count(), 0);
    }
}
