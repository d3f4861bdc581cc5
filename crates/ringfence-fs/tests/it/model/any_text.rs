//! Property tests of reading, editing, appending and listing, for any text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use ringfence_kernel::{Dialect, ErrorKind};
use serde_json::{Value, json};

use super::{OverlapCounting, check, edited, sha256, value};
use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::snapshot::{SnapshotEntryKind, snapshot};

/// Text in which things occur more than once, and any other.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[aab\r\n é]{0,40}", 3 => "a{0,5}b{0,2}a{0,3}", 1 => any::<String>()]
}

#[derive(Clone, Debug)]
struct ModelEdit {
    old: String,
    new: String,
    all: bool,
}

fn one_edit() -> impl Strategy<Value = ModelEdit> {
    let old = prop_oneof![3 => "[ab\r\n é]{1,3}", 3 => "a{1,4}", 1 => any::<String>()];
    (old, text(), any::<bool>()).prop_map(|(old, new, all)| ModelEdit { old, new, all })
}

/// Edits in order, all or none, the plain way.
fn edit_all(text: &str, edits: &[ModelEdit], overlaps: OverlapCounting) -> Result<(String, usize), ErrorKind> {
    if edits.iter().any(|edit| edit.old.is_empty()) {
        return Err(ErrorKind::InvalidArgs);
    }
    if text.contains('\0') {
        return Err(ErrorKind::NotText);
    }
    edits.iter().try_fold((text.to_owned(), 0), |(text, replaced), ModelEdit { old, new, all }| {
        let (text, more) = edited(&text, old, new, *all, overlaps)?;
        Ok((text, replaced + more))
    })
}

#[test]
fn editing_any_text_is_the_same_as_replacing_in_a_string_or_names_its_relaxation() {
    let world = FsFixture::in_memory(FsFixtureConfig::default());
    check(256, &(text(), vec(one_edit(), 1..4)), |(text, edits)| {
        world.write("f", &text);
        let list: Vec<Value> = edits
            .iter()
            .map(|ModelEdit { old, new, all }| json!({"oldText": old, "newText": new, "replaceAll": all}))
            .collect();
        let answer = world.call("edit_file", &json!({"path": "f", "edits": list}));
        match edit_all(&text, &edits, OverlapCounting::Count) {
            Ok((expected, replaced)) => {
                assert_eq!(answer.error, None, "{}", answer.text);
                assert_eq!(world.read("f"), expected);
                let value = value(&answer);
                assert_eq!((&value["replaced"], &value["size"]), (&json!(replaced), &json!(expected.len())));
                assert_eq!(value["sha256"], sha256(expected.as_bytes()));
            }
            // A text that is not there exactly may be matched by a relaxation, which the reply names.
            Err(ErrorKind::EditNotFound) if answer.error.is_none() => {
                assert!(value(&answer)["relaxed"].is_array(), "{}", answer.text);
            }
            Err(kind) => {
                let relaxed = kind == ErrorKind::EditNotFound && answer.error == Some(ErrorKind::AmbiguousEdit);
                assert!(relaxed || answer.error == Some(kind), "{kind:?}: {}", answer.text);
                assert_eq!(world.read("f"), text);
            }
        }
    });
}

#[test]
fn editing_any_text_in_miniclaw_counts_matches_that_do_not_overlap() {
    let world = FsFixture::in_memory(FsFixtureConfig::of(Dialect::Miniclaw));
    check(128, &(text(), one_edit()), |(text, edit)| {
        world.write("f", &text);
        let ModelEdit { old, new, all } = &edit;
        let arguments = json!({"path": "f", "old_text": old, "new_text": new, "replace_all": all});
        let answer = world.call("edit_file", &arguments);
        let (content, said) = match edit_all(&text, std::slice::from_ref(&edit), OverlapCounting::Ignore) {
            Ok((expected, replaced)) => (expected, Ok(format!("ok: replaced {replaced} match(es) in f"))),
            Err(kind) => (text, Err(kind)),
        };
        assert_eq!(world.read("f"), content);
        match said {
            Ok(said) => assert_eq!(answer.text, said),
            Err(kind) => assert_eq!(answer.error, Some(kind), "{}", answer.text),
        }
    });
}

#[test]
fn appending_any_text_to_any_file_adds_exactly_that() {
    let world = FsFixture::in_memory(FsFixtureConfig::default());
    let strategy = (proptest::option::of(vec(any::<u8>(), 0..100)), any::<String>(), any::<bool>());
    check(256, &strategy, |(before, added, linked)| {
        let (path, other) = (world.root.join("f"), world.root.join("other"));
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_file(&other);
        if let Some(before) = &before {
            std::fs::write(&path, before).unwrap();
            if linked {
                std::fs::hard_link(&path, &other).unwrap();
            }
        }
        let said = world.value("append_file", &json!({"path": "f", "content": added}));
        let expected = [before.clone().unwrap_or_default().as_slice(), added.as_bytes()].concat();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert_eq!((&said["size"], &said["created"]), (&json!(expected.len()), &json!(before.is_none())));
        assert_eq!(said["sha256"], sha256(&expected));
        if let (Some(before), true) = (before, linked) {
            assert_eq!(std::fs::read(&other).unwrap(), before, "another name of the file changed");
        }
    });
}

#[test]
fn reading_by_windows_and_joining_them_gives_the_file() {
    let world = FsFixture::in_memory(FsFixtureConfig::default());
    check(128, &("[ab\r\n\u{2028}é]{0,60}", 1u64..5), |(text, step)| {
        world.write("f", &text);
        let lines = text.split_inclusive('\n').count() as u64;
        let mut joined = String::new();
        for start in (1..=lines.max(1)).step_by(usize::try_from(step).unwrap()) {
            let end = start + step - 1;
            let window = world.value("read_file", &json!({"path": "f", "startLine": start, "endLine": end}));
            assert_eq!(window["totalLines"], lines);
            assert_eq!(window["sha256"], sha256(text.as_bytes()));
            joined.push_str(window["content"].as_str().unwrap());
        }
        assert_eq!(joined, text);
        assert_eq!(world.value("read_file", &json!({"path": "f"}))["content"], text);
        let past = world.value("read_file", &json!({"path": "f", "startLine": lines + 1}));
        assert_eq!(past["content"], "");
    });
}

#[test]
fn reading_any_bytes_gives_them_or_as_many_as_may_be_read() {
    let mut setup = FsFixtureConfig::default();
    setup.limits.read_bytes = 64;
    let world = FsFixture::in_memory(setup);
    check(256, &(vec(any::<u8>(), 0..130), any::<bool>()), |(bytes, as_text)| {
        let bytes = if as_text { String::from_utf8_lossy(&bytes).replace('\0', "0").into_bytes() } else { bytes };
        world.write("f", &bytes);
        let raw = world.value("read_file", &json!({"path": "f", "encoding": "base64"}));
        let content = STANDARD.decode(raw["content"].as_str().unwrap()).unwrap();
        let cut = bytes.len().min(64);
        assert_eq!(content, bytes[..cut]);
        assert_eq!((&raw["truncated"], &raw["size"]), (&json!(bytes.len() > 64), &json!(bytes.len())));
        assert_eq!(raw["sha256"], sha256(&bytes));
        if as_text && !bytes.starts_with("\u{feff}".as_bytes()) {
            let text = String::from_utf8(bytes.clone()).unwrap();
            let whole = &text[..text.floor_char_boundary(64)];
            assert_eq!(world.value("read_file", &json!({"path": "f"}))["content"], whole);
        }
    });
}

/// A name, hidden or not, alike another or not.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-c.A]{1,3}", 1 => "[é~ \\-]{1,2}", 1 => Just(".git".to_owned())]
        .prop_filter("a name", |name| !matches!(name.as_str(), "." | ".."))
}

#[test]
fn lists_and_finds_are_sorted_and_complete() {
    let strategy = btree_set(vec(name(), 1..4), 0..20);
    check(96, &strategy, |files| {
        let world = FsFixture::in_memory(FsFixtureConfig::default());
        let mut made = 0;
        for file in &files {
            let path = world.root.join(file.join("/"));
            // Where one file's name is another's directory, the first one wins.
            if std::fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir() {
                std::fs::write(&path, "").unwrap();
                made += 1;
            }
        }
        assert!(made > 0 || files.is_empty());
        // Compared name by name, as the paths of a snapshot are.
        let all: Vec<(String, bool)> = snapshot(&world.root)
            .into_iter()
            .skip(1)
            .map(|(path, seen)| (path.to_str().unwrap().to_owned(), seen.kind == SnapshotEntryKind::Directory))
            .collect();
        let list = |arguments: &Value| -> Vec<(String, bool)> {
            let value = world.value("list_directory", arguments);
            let entry = |entry: &Value| (entry["name"].as_str().unwrap().to_owned(), entry["type"] == "directory");
            value["entries"].as_array().unwrap().iter().map(entry).collect()
        };
        let every = list(&json!({"path": ".", "recursive": true, "includeHidden": true}));
        assert_eq!(every, all);
        let is_hidden = |path: &str| path.split('/').any(|name| name.starts_with('.'));
        let shown: Vec<_> = all.iter().filter(|(path, _)| !is_hidden(path)).cloned().collect();
        assert_eq!(list(&json!({"path": ".", "recursive": true})), shown);
        let top: Vec<_> = shown.iter().filter(|(path, _)| !path.contains('/')).cloned().collect();
        assert_eq!(list(&json!({"path": "."})), top);
        let in_git = |path: &str| path.starts_with(".git/") || path.contains("/.git/");
        let find = |glob: &str, wanted: &dyn Fn(&str) -> bool| {
            let value = world.value("find_files", &json!({"path": ".", "glob": glob}));
            let found: Vec<&str> =
                value["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
            let wanted = all.iter().filter(|(path, _)| !in_git(path) && wanted(path));
            let wanted: Vec<String> =
                wanted.map(|(path, directory)| format!("{path}{}", if *directory { "/" } else { "" })).collect();
            assert_eq!(found, wanted, "{glob}");
        };
        let last = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        find("*", &|_| true);
        find("**/*", &|_| true);
        find("a*", &|path| last(path).starts_with('a'));
        find("*/*", &|path| path.matches('/').count() == 1);
        find("a/**", &|path| path.starts_with("a/"));
    });
}
