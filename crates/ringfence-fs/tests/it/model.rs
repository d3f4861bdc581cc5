//! The tools against a model: whatever the calls, the workspace is what the model says, and so is each reply.
//!
//! `PROPTEST_CASES` sets the number of cases of each property.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use ringfence_fs::Backend;
use ringfence_kernel::{Dialect, ErrorKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::snapshot::{Snapshot, What, snapshot};
use crate::world::{Answer, Setup, World};

/// Checks a property on so many cases, or as many as the environment says.
fn check<S: Strategy>(cases: u32, strategy: &S, property: impl Fn(S::Value)) {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let outcome = TestRunner::new(config).run(strategy, |value| {
        property(value);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A file or directory of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    File { content: String, mode: u32 },
    Directory(BTreeMap<String, Node>),
}

impl Node {
    fn is_directory(&self) -> bool {
        matches!(self, Self::Directory(_))
    }

    fn is_read_only(&self) -> bool {
        matches!(self, Self::File { mode, .. } if mode & 0o222 == 0)
    }

    /// How many files and directories are below.
    fn entries(&self) -> usize {
        match self {
            Self::File { .. } => 0,
            Self::Directory(names) => names.values().map(|node| 1 + node.entries()).sum(),
        }
    }

    /// Every path below, a directory before what is in it.
    fn paths(&self, above: &str, found: &mut Vec<(String, bool)>) {
        let Self::Directory(names) = self else { return };
        for (name, node) in names {
            let path = format!("{above}{name}");
            found.push((path.clone(), node.is_directory()));
            node.paths(&format!("{path}/"), found);
        }
    }
}

/// A path as a caller spells it.
#[derive(Clone, Debug)]
struct Spelled {
    text: String,
    /// Its names, with `..` and without what means nothing.
    names: Vec<String>,
    /// It can only mean a directory.
    slashed: bool,
}

fn spelled() -> impl Strategy<Value = Spelled> {
    let part = prop_oneof![
        12 => select(vec!["a", "b", "c"]),
        1 => Just("."),
        1 => Just(""),
        1 => Just(".."),
    ];
    vec(part, 1..=4).prop_map(|mut parts| {
        if parts[0].is_empty() {
            // An absolute path is another property's business.
            parts[0] = ".";
        }
        Spelled {
            text: parts.join("/"),
            slashed: matches!(parts.last(), Some(&("" | "." | ".."))),
            names: parts.iter().filter(|part| !matches!(**part, "" | ".")).map(|part| (*part).to_owned()).collect(),
        }
    })
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        path: Spelled,
        content: String,
        create_dirs: bool,
    },
    Append {
        path: Spelled,
        content: String,
    },
    Edit {
        path: Spelled,
        old: String,
        new: String,
        all: bool,
    },
    Copy {
        from: Spelled,
        to: Spelled,
        overwrite: bool,
    },
    Move {
        from: Spelled,
        to: Spelled,
        overwrite: bool,
    },
    Delete {
        path: Spelled,
        recursive: bool,
    },
    CreateDirectory {
        path: Spelled,
    },
    Read {
        path: Spelled,
    },
    List {
        path: Spelled,
        recursive: bool,
    },
    Info {
        path: Spelled,
    },
    Find {
        path: Spelled,
    },
    /// Not a tool: somebody else sets the permissions of a file.
    SetMode {
        path: Spelled,
        mode: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let content = || "[xy\n]{0,6}";
    prop_oneof![
        4 => (spelled(), content(), any::<bool>())
            .prop_map(|(path, content, create_dirs)| Op::Write { path, content, create_dirs }),
        2 => (spelled(), content()).prop_map(|(path, content)| Op::Append { path, content }),
        3 => (spelled(), "[xy\n]{1,2}", "[xyz]{0,2}", any::<bool>())
            .prop_map(|(path, old, new, all)| Op::Edit { path, old, new, all }),
        3 => (spelled(), spelled(), any::<bool>())
            .prop_map(|(from, to, overwrite)| Op::Copy { from, to, overwrite }),
        4 => (spelled(), spelled(), any::<bool>())
            .prop_map(|(from, to, overwrite)| Op::Move { from, to, overwrite }),
        2 => (spelled(), any::<bool>()).prop_map(|(path, recursive)| Op::Delete { path, recursive }),
        3 => spelled().prop_map(|path| Op::CreateDirectory { path }),
        2 => spelled().prop_map(|path| Op::Read { path }),
        1 => (spelled(), any::<bool>()).prop_map(|(path, recursive)| Op::List { path, recursive }),
        2 => spelled().prop_map(|path| Op::Info { path }),
        1 => spelled().prop_map(|path| Op::Find { path }),
        1 => (spelled(), select(vec![0o600, 0o644, 0o755, 0o640, 0o444]))
            .prop_map(|(path, mode)| Op::SetMode { path, mode }),
    ]
}

impl Op {
    fn call(&self) -> Option<(&'static str, Value)> {
        Some(match self {
            Self::Write { path, content, create_dirs } => {
                ("write_file", json!({"path": path.text, "content": content, "createDirs": create_dirs}))
            }
            Self::Append { path, content } => ("append_file", json!({"path": path.text, "content": content})),
            Self::Edit { path, old, new, all } => {
                ("edit_file", json!({"path": path.text, "oldText": old, "newText": new, "replaceAll": all}))
            }
            Self::Copy { from, to, overwrite } => {
                ("copy_file", json!({"from": from.text, "to": to.text, "overwrite": overwrite}))
            }
            Self::Move { from, to, overwrite } => {
                ("move_file", json!({"from": from.text, "to": to.text, "overwrite": overwrite}))
            }
            Self::Delete { path, recursive } => ("delete_file", json!({"path": path.text, "recursive": recursive})),
            Self::CreateDirectory { path } => ("create_directory", json!({"path": path.text})),
            Self::Read { path } => ("read_file", json!({"path": path.text})),
            Self::List { path, recursive } => ("list_directory", json!({"path": path.text, "recursive": recursive})),
            Self::Info { path } => ("get_file_info", json!({"path": path.text})),
            Self::Find { path } => ("find_files", json!({"path": path.text, "glob": "*"})),
            Self::SetMode { .. } => return None,
        })
    }
}

/// The part of a reply's value that the model knows.
type Expected = Result<Value, ErrorKind>;

/// The workspace as it should be.
#[derive(Clone, Debug)]
struct Model(Node);

/// A place for a file or directory: the directory that is to have it, and its name there.
struct Place {
    parent: Vec<String>,
    name: String,
    /// Directories on the way that are to be made.
    missing: Vec<String>,
}

impl Place {
    fn path(&self) -> Vec<String> {
        self.parent.iter().chain(&self.missing).chain([&self.name]).cloned().collect()
    }
}

impl Model {
    fn new() -> Self {
        Self(Node::Directory(BTreeMap::new()))
    }

    fn node(&self, path: &[String]) -> Option<&Node> {
        path.iter().try_fold(&self.0, |node, name| match node {
            Node::Directory(names) => names.get(name),
            Node::File { .. } => None,
        })
    }

    fn names_mut(&mut self, path: &[String]) -> &mut BTreeMap<String, Node> {
        let mut node = &mut self.0;
        for name in path {
            let Node::Directory(names) = node else { panic!("{path:?} goes through a file") };
            node = names.entry(name.clone()).or_insert_with(|| Node::Directory(BTreeMap::new()));
        }
        let Node::Directory(names) = node else { panic!("{path:?} is a file") };
        names
    }

    /// Where names lead, one after the other, as a kernel would go.
    fn resolve(&self, names: &[String]) -> Result<Vec<String>, ErrorKind> {
        let mut path: Vec<String> = Vec::new();
        for name in names {
            if !self.node(&path).is_some_and(Node::is_directory) {
                return Err(ErrorKind::WrongType);
            }
            if name == ".." {
                path.pop().ok_or(ErrorKind::OutsideWorkspace)?;
            } else {
                path.push(name.clone());
                self.node(&path).ok_or(ErrorKind::NotFound)?;
            }
        }
        Ok(path)
    }

    fn resolve_directory(&self, names: &[String]) -> Result<Vec<String>, ErrorKind> {
        let path = self.resolve(names)?;
        if self.node(&path).is_some_and(Node::is_directory) { Ok(path) } else { Err(ErrorKind::WrongType) }
    }

    /// The file that is read.
    fn file(&self, path: &Spelled) -> Result<(Vec<String>, String, u32), ErrorKind> {
        let found = self.resolve(&path.names)?;
        match self.node(&found) {
            Some(Node::File { content, mode }) if !path.slashed => Ok((found, content.clone(), *mode)),
            _ => Err(ErrorKind::WrongType),
        }
    }

    /// The place of a change.
    fn place(&self, path: &Spelled, make_parents: bool) -> Result<Place, ErrorKind> {
        let Some((name, above)) = path.names.split_last().filter(|(name, _)| *name != "..") else {
            // The root, by whatever name, is never changed; another directory is not named by `..`.
            let found = self.resolve(&path.names)?;
            return Err(if found.is_empty() { ErrorKind::PermissionDenied } else { ErrorKind::InvalidPath });
        };
        let mut above = above;
        let mut missing = Vec::new();
        loop {
            match self.resolve_directory(above) {
                Ok(parent) => {
                    missing.reverse();
                    return Ok(Place { parent, name: name.clone(), missing });
                }
                Err(ErrorKind::NotFound) if make_parents => match above.split_last() {
                    Some((last, rest)) if last != ".." => {
                        missing.push(last.clone());
                        above = rest;
                    }
                    _ => return Err(ErrorKind::NotFound),
                },
                Err(kind) => return Err(kind),
            }
        }
    }

    /// The place where a file is written, and what is there.
    fn file_place(&self, path: &Spelled, make_parents: bool) -> Result<(Place, Option<&Node>), ErrorKind> {
        let place = self.place(path, make_parents)?;
        let there = self.node(&place.path());
        if path.slashed || there.is_some_and(Node::is_directory) {
            return Err(ErrorKind::WrongType);
        }
        Ok((place, there))
    }

    /// The place of anything, which must be a directory if the path says so.
    fn any_place(&self, path: &Spelled) -> Result<(Place, Option<&Node>), ErrorKind> {
        let place = self.place(path, false)?;
        match self.node(&place.path()) {
            None if path.slashed => Err(ErrorKind::NotFound),
            Some(Node::File { .. }) if path.slashed => Err(ErrorKind::WrongType),
            there => Ok((place, there)),
        }
    }

    fn put(&mut self, place: &Place, node: Node) {
        let above: Vec<String> = place.parent.iter().chain(&place.missing).cloned().collect();
        self.names_mut(&above).insert(place.name.clone(), node);
    }

    fn take(&mut self, place: &Place) -> Node {
        self.names_mut(&place.parent).remove(&place.name).unwrap()
    }

    /// Puts contents at a place; a file that is there keeps its mode.
    fn put_file(&mut self, place: &Place, content: String, new_mode: u32) -> Expected {
        let (mode, created) = match self.node(&place.path()) {
            Some(node) if node.is_read_only() => return Err(ErrorKind::PermissionDenied),
            Some(Node::File { mode, .. }) => (*mode, false),
            _ => (new_mode, true),
        };
        let sha256 = sha256(content.as_bytes());
        let said = json!({"size": content.len(), "sha256": sha256, "created": created});
        self.put(place, Node::File { content, mode });
        Ok(said)
    }

    fn apply(&mut self, op: &Op) -> Expected {
        match op {
            Op::Write { path, content, create_dirs } => {
                let (place, _) = self.file_place(path, *create_dirs)?;
                self.put_file(&place, content.clone(), 0o644)
            }
            Op::Append { path, content } => {
                let (place, there) = self.file_place(path, false)?;
                let old = if let Some(Node::File { content, .. }) = there { content.as_str() } else { "" };
                let content = format!("{old}{content}");
                self.put_file(&place, content, 0o644)
            }
            Op::Edit { path, old, new, all } => {
                let (place, there) = self.file_place(path, false)?;
                let Some(Node::File { content, .. }) = there else { return Err(ErrorKind::NotFound) };
                if there.is_some_and(Node::is_read_only) {
                    return Err(ErrorKind::PermissionDenied);
                }
                let (content, replaced) = edited(content, old, new, *all, Overlaps::Count)?;
                let mut said = self.put_file(&place, content, 0)?;
                said["replaced"] = json!(replaced);
                Ok(said)
            }
            Op::Copy { from, to, overwrite } => {
                let (source, content, mode) = self.file(from)?;
                let (place, there) = self.file_place(to, false)?;
                if there.is_some() && place.path() == source {
                    return Err(ErrorKind::InvalidArgs);
                }
                if there.is_some() && !overwrite {
                    return Err(ErrorKind::AlreadyExists);
                }
                // Whoever copies a file may write the copy.
                self.put_file(&place, content, mode | 0o600)
            }
            Op::Move { from, to, overwrite } => self.apply_move(from, to, *overwrite),
            Op::Delete { path, recursive } => {
                let (place, there) = self.any_place(path)?;
                let entries = there.ok_or(ErrorKind::NotFound)?.entries();
                if entries > 0 && !recursive {
                    return Err(ErrorKind::WrongType);
                }
                self.take(&place);
                Ok(json!({"count": entries + 1}))
            }
            Op::CreateDirectory { path } => {
                let place = self.place(path, true)?;
                match self.node(&place.path()) {
                    Some(Node::File { .. }) => Err(ErrorKind::AlreadyExists),
                    Some(Node::Directory(_)) => Ok(json!({"created": false})),
                    None => {
                        self.put(&place, Node::Directory(BTreeMap::new()));
                        Ok(json!({"created": true}))
                    }
                }
            }
            Op::Read { path } => {
                let (_, content, _) = self.file(path)?;
                let (size, sha256) = (content.len(), sha256(content.as_bytes()));
                Ok(json!({"content": content, "size": size, "sha256": sha256, "truncated": false}))
            }
            Op::List { path, recursive } => {
                let found = self.resolve_directory(&path.names)?;
                let entries = self.paths(&found).into_iter().filter(|(path, _)| *recursive || !path.contains('/'));
                let entry = |(path, is_directory)| json!([path, if is_directory { "directory" } else { "file" }]);
                Ok(json!({"entries": entries.map(entry).collect::<Vec<_>>()}))
            }
            Op::Info { path } => self.apply_info(path),
            Op::Find { path } => {
                let found = self.resolve_directory(&path.names)?;
                let path = |(path, is_directory)| format!("{path}{}", if is_directory { "/" } else { "" });
                let paths: Vec<String> = self.paths(&found).into_iter().map(path).collect();
                Ok(json!({"truncated": false, "scanned": paths.len(), "paths": paths}))
            }
            Op::SetMode { path, mode: new_mode } => {
                let (found, content, _) = self.file(path)?;
                let (name, parent) = found.split_last().unwrap();
                self.names_mut(parent).insert(name.clone(), Node::File { content, mode: *new_mode });
                Ok(json!({}))
            }
        }
    }

    fn apply_move(&mut self, from: &Spelled, to: &Spelled, overwrite: bool) -> Expected {
        let (source, seen) = self.any_place(from)?;
        let seen = seen.ok_or(ErrorKind::NotFound)?;
        // Where a directory is going to be, a slash at the end is fine.
        let (goal, target) = if seen.is_directory() {
            let goal = self.place(to, false)?;
            let target = self.node(&goal.path());
            (goal, target)
        } else {
            self.any_place(to)?
        };
        if seen.is_directory() && goal.parent.starts_with(&source.path()) {
            return Err(ErrorKind::InvalidArgs);
        }
        if let Some(target) = target {
            if goal.path() == source.path() {
                return Err(ErrorKind::InvalidArgs);
            }
            if !overwrite {
                return Err(ErrorKind::AlreadyExists);
            }
            if seen.is_directory() || target.is_directory() {
                return Err(ErrorKind::WrongType);
            }
            if target.is_read_only() {
                return Err(ErrorKind::PermissionDenied);
            }
        }
        let overwritten = target.is_some();
        let moved = self.take(&source);
        self.put(&goal, moved);
        Ok(json!({"overwritten": overwritten}))
    }

    fn apply_info(&self, path: &Spelled) -> Expected {
        let found = self.resolve(&path.names)?;
        match self.node(&found) {
            Some(Node::File { content, mode }) if !path.slashed => Ok(json!({
                "type": "file",
                "size": content.len(),
                "mode": format!("{mode:04o}"),
                "sha256": sha256(content.as_bytes()),
            })),
            Some(Node::Directory(_)) => Ok(json!({"type": "directory", "size": 0, "mode": "0755"})),
            _ => Err(ErrorKind::WrongType),
        }
    }

    fn paths(&self, below: &[String]) -> Vec<(String, bool)> {
        let mut found = Vec::new();
        self.node(below).unwrap().paths("", &mut found);
        found
    }
}

/// Whether `aa` is in `aaa` once or twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overlaps {
    Count,
    Ignore,
}

/// The plain way to edit.
fn edited(text: &str, old: &str, new: &str, all: bool, overlaps: Overlaps) -> Result<(String, usize), ErrorKind> {
    let disjoint = text.matches(old).count();
    let overlapping = text.char_indices().filter(|(at, _)| text[*at..].starts_with(old)).count();
    let matches = if overlaps == Overlaps::Count { overlapping } else { disjoint };
    match matches {
        0 => Err(ErrorKind::EditNotFound),
        2.. if !all => Err(ErrorKind::AmbiguousEdit),
        _ => Ok((text.replace(old, new), disjoint)),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is really there, as a model.
fn actual(root: &Path) -> Node {
    let mut model = Model::new();
    for (path, seen) in snapshot(root) {
        let names: Vec<String> = path.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
        let Some((name, above)) = names.split_last() else { continue };
        let node = match seen.what {
            What::Directory => {
                assert_eq!(seen.mode, 0o755, "{}", path.display());
                Node::Directory(BTreeMap::new())
            }
            What::File(content) => Node::File { content: String::from_utf8(content).unwrap(), mode: seen.mode },
            other => panic!("{} is {other:?}", path.display()),
        };
        model.names_mut(above).insert(name.clone(), node);
    }
    model.0
}

fn reply(answer: &Answer) -> Value {
    let reply: Value = serde_json::from_str(&answer.text).unwrap_or_else(|_| panic!("not JSON: {}", answer.text));
    assert_eq!(reply["ok"], answer.error.is_none(), "{}", answer.text);
    reply
}

/// The value of a reply, with entries as pairs of name and type.
fn value(answer: &Answer) -> Value {
    let mut value = reply(answer)["value"].take();
    if let Some(entries) = value.get_mut("entries").and_then(Value::as_array_mut) {
        for entry in entries {
            *entry = json!([entry["name"], entry["type"]]);
        }
    }
    value
}

#[test]
fn any_sequence_of_calls_does_what_the_model_does() {
    let strategy = (vec(op(), 1..30), select(vec![Backend::Best, Backend::CapStd]));
    check(192, &strategy, |(ops, backend)| {
        let world = World::in_memory(Setup::default().on(backend));
        let outside = snapshot(&world.outside);
        let mut model = Model::new();
        for op in &ops {
            let before = model.clone();
            let expected = model.apply(op);
            let Some((tool, arguments)) = op.call() else {
                if let (Op::SetMode { path, mode }, Ok(_)) = (op, &expected) {
                    let found = before.resolve(&path.names).unwrap().join("/");
                    let mode = std::fs::Permissions::from_mode(*mode);
                    std::fs::set_permissions(world.root.join(found), mode).unwrap();
                }
                continue;
            };
            let answer = world.call(tool, &arguments);
            let about = || format!("{tool} {arguments} on {:?}: {}", before.0, answer.text);
            match expected {
                Err(kind) => assert_eq!(answer.error, Some(kind), "{}", about()),
                Ok(known) => {
                    assert_eq!(answer.error, None, "{}", about());
                    let value = value(&answer);
                    for (field, known) in known.as_object().unwrap() {
                        assert_eq!(&value[field], known, "{field} of {}", about());
                    }
                }
            }
            assert_eq!(actual(&world.root), model.0, "after {}", about());
        }
        assert_eq!(snapshot(&world.outside), outside);
    });
}

/// Every tool with a path in each place where it takes one.
fn calls_with(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read_file", json!({"path": path})),
        ("read_file", json!({"path": path, "startLine": 1, "endLine": 2})),
        ("list_directory", json!({"path": path, "recursive": true, "includeHidden": true})),
        ("get_file_info", json!({"path": path})),
        ("find_files", json!({"path": path, "glob": "**/*"})),
        ("find_files", json!({"path": ".", "glob": path})),
        ("append_file", json!({"path": path, "content": "x"})),
        ("edit_file", json!({"path": path, "oldText": "x", "newText": "y", "replaceAll": true})),
        ("search_files", json!({"path": path, "pattern": "x"})),
        ("apply_patch", json!({"path": path, "patch": "@@ -1 +1 @@\n-x\n+y\n"})),
        ("apply_patch", json!({"patch": format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-x\n+y\n")})),
        ("copy_file", json!({"from": path, "to": "copy", "overwrite": true})),
        ("copy_file", json!({"from": "f.txt", "to": path, "overwrite": true})),
        ("move_file", json!({"from": path, "to": "moved", "overwrite": true})),
        ("move_file", json!({"from": "moved", "to": path, "overwrite": true})),
        ("create_directory", json!({"path": path})),
        ("delete_file", json!({"path": path, "recursive": true})),
        ("write_file", json!({"path": path, "content": "x", "createDirs": true})),
    ]
}

/// Paths that somebody could mean harm by, and any others.
fn nasty() -> impl Strategy<Value = String> {
    let parts = vec![
        "..",
        ".",
        "",
        "/",
        "f.txt",
        "d",
        "out",
        "out-file",
        "abs",
        "dangling",
        "loop",
        "outside",
        "secret",
        "ws",
        "\0",
        "\n",
        "\u{202e}",
        "\\",
        "\\x2e\\x2e",
        "\\xff",
        "\\x00",
        "~",
        "@workspace",
        "@",
        "C:",
        "file:",
        "*",
        "{a,b}",
        "[",
        "proc",
        "self",
        "root",
        "etc",
        "passwd",
        ".env",
        ".git",
        ".ringfence-tmp-0",
        "é",
        "ﬁ",
        "${HOME}",
        "%2e%2e",
        "．．",
        " ",
        "-rf",
    ];
    let separator = select(vec!["/", "/", "/", "//", "\\", "/./", ""]);
    let made = vec((select(parts), separator), 1..8)
        .prop_map(|parts| parts.into_iter().flat_map(|(part, separator)| [part, separator]).collect::<String>());
    let bytes = vec(any::<u8>(), 0..40).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    prop_oneof![8 => made, 2 => any::<String>(), 1 => bytes, 1 => "[a-z./]{200,5000}"]
}

/// A world with ways out of it, none of which may work.
fn world_with_ways_out(backend: Backend) -> World {
    let world = World::in_memory(Setup::default().on(backend));
    world.write("f.txt", "x");
    world.write("d/g.txt", "x");
    let link = |target: &Path, name: &str| std::os::unix::fs::symlink(target, world.root.join(name)).unwrap();
    link(Path::new("../outside"), "out");
    link(Path::new("../outside/secret"), "out-file");
    link(&world.outside, "abs");
    link(Path::new("../outside/none"), "dangling");
    link(Path::new("loop"), "loop");
    world
}

/// Everything but the workspace and the host's own notes.
fn beside(world: &World) -> Snapshot {
    let mut found = snapshot(world.host_path());
    found.retain(|path, _| !path.starts_with("ws") && !path.starts_with("state"));
    found
}

#[test]
fn no_path_whatever_leads_out_breaks_a_call_or_shows_where_the_workspace_is() {
    // As it is, and below each directory that an absolute path could begin with.
    let start = select(vec!["", "", "", "", "/", "{host}/ws/", "{host}/", "{host}/ws/../"]);
    let strategy = (nasty(), start, select(vec![Backend::Best, Backend::CapStd]));
    check(128, &strategy, |(path, start, backend)| {
        let world = world_with_ways_out(backend);
        let before = beside(&world);
        let host_path = world.host_path().to_str().unwrap();
        let path = start.replace("{host}", host_path) + &path;
        for (tool, arguments) in calls_with(&path) {
            let answer = world.call(tool, &arguments);
            reply(&answer);
            assert_ne!(answer.error, Some(ErrorKind::Internal), "{tool} {arguments}: {}", answer.text);
            assert!(!answer.text.contains(host_path), "{tool} {arguments}: {}", answer.text);
            assert!(!answer.text.contains("SECRET"), "{tool} {arguments}: {}", answer.text);
            assert_eq!(beside(&world), before, "{tool} {arguments}");
        }
    });
}

#[test]
fn no_arguments_whatever_break_a_call() {
    let world = World::in_memory(Setup::default());
    let outside = snapshot(&world.outside);
    let tools: Vec<String> = world.session.catalog.list().map(|definition| definition.name.to_string()).collect();
    let word = r#"[{}\[\]":,a-z0-9\\ue+. -]{0,40}"#;
    let text = prop_oneof![any::<String>(), word, word.prop_map(|word| format!(r#"{{"path":"f.txt",{word}}}"#))];
    check(256, &(select(tools), text), |(tool, arguments)| {
        let answer = world.call_text(&tool, &arguments);
        reply(&answer);
        assert_ne!(answer.error, Some(ErrorKind::Internal), "{tool} {arguments}: {}", answer.text);
    });
    assert_eq!(snapshot(&world.outside), outside);
}

/// Text in which things occur more than once, and any other.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[aab\r\n é]{0,40}", 3 => "a{0,5}b{0,2}a{0,3}", 1 => any::<String>()]
}

#[derive(Clone, Debug)]
struct OneEdit {
    old: String,
    new: String,
    all: bool,
}

fn one_edit() -> impl Strategy<Value = OneEdit> {
    let old = prop_oneof![3 => "[ab\r\n é]{1,3}", 3 => "a{1,4}", 1 => any::<String>()];
    (old, text(), any::<bool>()).prop_map(|(old, new, all)| OneEdit { old, new, all })
}

/// Edits in order, all or none, the plain way.
fn edit_all(text: &str, edits: &[OneEdit], overlaps: Overlaps) -> Result<(String, usize), ErrorKind> {
    if edits.iter().any(|edit| edit.old.is_empty()) {
        return Err(ErrorKind::InvalidArgs);
    }
    if text.contains('\0') {
        return Err(ErrorKind::NotText);
    }
    edits.iter().try_fold((text.to_owned(), 0), |(text, replaced), OneEdit { old, new, all }| {
        let (text, more) = edited(&text, old, new, *all, overlaps)?;
        Ok((text, replaced + more))
    })
}

#[test]
fn editing_any_text_is_the_same_as_replacing_in_a_string() {
    let world = World::in_memory(Setup::default());
    check(256, &(text(), vec(one_edit(), 1..4)), |(text, edits)| {
        world.write("f", &text);
        let list: Vec<Value> = edits
            .iter()
            .map(|OneEdit { old, new, all }| json!({"oldText": old, "newText": new, "replaceAll": all}))
            .collect();
        let answer = world.call("edit_file", &json!({"path": "f", "edits": list}));
        match edit_all(&text, &edits, Overlaps::Count) {
            Ok((expected, replaced)) => {
                assert_eq!(answer.error, None, "{}", answer.text);
                assert_eq!(world.read("f"), expected);
                let value = value(&answer);
                assert_eq!((&value["replaced"], &value["size"]), (&json!(replaced), &json!(expected.len())));
                assert_eq!(value["sha256"], sha256(expected.as_bytes()));
            }
            Err(kind) => {
                assert_eq!(answer.error, Some(kind), "{}", answer.text);
                assert_eq!(world.read("f"), text);
            }
        }
    });
}

#[test]
fn editing_any_text_in_miniclaw_counts_matches_that_do_not_overlap() {
    let world = World::in_memory(Setup::of(Dialect::Miniclaw));
    check(128, &(text(), one_edit()), |(text, edit)| {
        world.write("f", &text);
        let OneEdit { old, new, all } = &edit;
        let arguments = json!({"path": "f", "old_text": old, "new_text": new, "replace_all": all});
        let answer = world.call("edit_file", &arguments);
        let (content, said) = match edit_all(&text, std::slice::from_ref(&edit), Overlaps::Ignore) {
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
    let world = World::in_memory(Setup::default());
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
    let world = World::in_memory(Setup::default());
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
    let mut setup = Setup::default();
    setup.limits.read_bytes = 64;
    let world = World::in_memory(setup);
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
        let world = World::in_memory(Setup::default());
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
            .map(|(path, seen)| (path.to_str().unwrap().to_owned(), seen.what == What::Directory))
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
