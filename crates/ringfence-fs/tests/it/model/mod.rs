//! Model-based tests: the workspace and each reply are what a model says.
//!
//! `PROPTEST_CASES` sets the number of cases of each property.

mod any_path;
mod any_text;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use ringfence_fs::ResolverBackend;
use ringfence_kernel::ErrorKind;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::fixture::{FixtureReply, FsFixture, FsFixtureConfig};
use crate::snapshot::{SnapshotEntryKind, snapshot};

/// Checks a property on `cases` cases, or as many as the environment sets.
pub(crate) fn check<S: Strategy>(cases: u32, strategy: &S, property: impl Fn(S::Value)) {
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
enum FsModelNode {
    File { content: String, mode: u32 },
    Directory(BTreeMap<String, FsModelNode>),
}

impl FsModelNode {
    fn is_directory(&self) -> bool {
        matches!(self, Self::Directory(_))
    }

    fn is_read_only(&self) -> bool {
        matches!(self, Self::File { mode, .. } if mode & 0o222 == 0)
    }

    /// Number of files and directories below.
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
struct SpelledPath {
    text: String,
    /// Its names, with `..` and without what means nothing.
    names: Vec<String>,
    /// It can only mean a directory.
    slashed: bool,
}

fn spelled() -> impl Strategy<Value = SpelledPath> {
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
        SpelledPath {
            text: parts.join("/"),
            slashed: matches!(parts.last(), Some(&("" | "." | ".."))),
            names: parts.iter().filter(|part| !matches!(**part, "" | ".")).map(|part| (*part).to_owned()).collect(),
        }
    })
}

#[derive(Clone, Debug)]
enum FsModelCall {
    Write {
        path: SpelledPath,
        content: String,
        create_dirs: bool,
    },
    Append {
        path: SpelledPath,
        content: String,
    },
    Edit {
        path: SpelledPath,
        old: String,
        new: String,
        all: bool,
    },
    Copy {
        from: SpelledPath,
        to: SpelledPath,
        overwrite: bool,
    },
    Move {
        from: SpelledPath,
        to: SpelledPath,
        overwrite: bool,
    },
    Delete {
        path: SpelledPath,
        recursive: bool,
    },
    CreateDirectory {
        path: SpelledPath,
    },
    Read {
        path: SpelledPath,
    },
    List {
        path: SpelledPath,
        recursive: bool,
    },
    Info {
        path: SpelledPath,
    },
    Find {
        path: SpelledPath,
    },
    /// Not a tool: another program sets the permissions of a file.
    SetMode {
        path: SpelledPath,
        mode: u32,
    },
}

fn op() -> impl Strategy<Value = FsModelCall> {
    let content = || "[xy\n]{0,6}";
    prop_oneof![
        4 => (spelled(), content(), any::<bool>())
            .prop_map(|(path, content, create_dirs)| FsModelCall::Write { path, content, create_dirs }),
        2 => (spelled(), content()).prop_map(|(path, content)| FsModelCall::Append { path, content }),
        3 => (spelled(), "[xy\n]{1,2}", "[xyz]{0,2}", any::<bool>())
            .prop_map(|(path, old, new, all)| FsModelCall::Edit { path, old, new, all }),
        3 => (spelled(), spelled(), any::<bool>())
            .prop_map(|(from, to, overwrite)| FsModelCall::Copy { from, to, overwrite }),
        4 => (spelled(), spelled(), any::<bool>())
            .prop_map(|(from, to, overwrite)| FsModelCall::Move { from, to, overwrite }),
        2 => (spelled(), any::<bool>()).prop_map(|(path, recursive)| FsModelCall::Delete { path, recursive }),
        3 => spelled().prop_map(|path| FsModelCall::CreateDirectory { path }),
        2 => spelled().prop_map(|path| FsModelCall::Read { path }),
        1 => (spelled(), any::<bool>()).prop_map(|(path, recursive)| FsModelCall::List { path, recursive }),
        2 => spelled().prop_map(|path| FsModelCall::Info { path }),
        1 => spelled().prop_map(|path| FsModelCall::Find { path }),
        1 => (spelled(), select(vec![0o600, 0o644, 0o755, 0o640, 0o444]))
            .prop_map(|(path, mode)| FsModelCall::SetMode { path, mode }),
    ]
}

impl FsModelCall {
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
type FsModelResult = Result<Value, ErrorKind>;

/// The workspace as it should be.
#[derive(Clone, Debug)]
struct FsModel(FsModelNode);

/// Target of a file or directory: its parent directory, and its name there.
struct FsModelTarget {
    parent: Vec<String>,
    name: String,
    /// Directories on the way that are to be made.
    missing: Vec<String>,
}

impl FsModelTarget {
    fn path(&self) -> Vec<String> {
        self.parent.iter().chain(&self.missing).chain([&self.name]).cloned().collect()
    }
}

impl FsModel {
    fn new() -> Self {
        Self(FsModelNode::Directory(BTreeMap::new()))
    }

    fn node(&self, path: &[String]) -> Option<&FsModelNode> {
        path.iter().try_fold(&self.0, |node, name| match node {
            FsModelNode::Directory(names) => names.get(name),
            FsModelNode::File { .. } => None,
        })
    }

    fn names_mut(&mut self, path: &[String]) -> &mut BTreeMap<String, FsModelNode> {
        let mut node = &mut self.0;
        for name in path {
            let FsModelNode::Directory(names) = node else { panic!("{path:?} goes through a file") };
            node = names.entry(name.clone()).or_insert_with(|| FsModelNode::Directory(BTreeMap::new()));
        }
        let FsModelNode::Directory(names) = node else { panic!("{path:?} is a file") };
        names
    }

    /// Resolves names, one after the other, as a kernel would.
    fn resolve(&self, names: &[String]) -> Result<Vec<String>, ErrorKind> {
        let mut path: Vec<String> = Vec::new();
        for name in names {
            if !self.node(&path).is_some_and(FsModelNode::is_directory) {
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
        if self.node(&path).is_some_and(FsModelNode::is_directory) { Ok(path) } else { Err(ErrorKind::WrongType) }
    }

    /// The file that is read.
    fn file(&self, path: &SpelledPath) -> Result<(Vec<String>, String, u32), ErrorKind> {
        let found = self.resolve(&path.names)?;
        match self.node(&found) {
            Some(FsModelNode::File { content, mode }) if !path.slashed => Ok((found, content.clone(), *mode)),
            _ => Err(ErrorKind::WrongType),
        }
    }

    /// The target of a change.
    fn place(&self, path: &SpelledPath, make_parents: bool) -> Result<FsModelTarget, ErrorKind> {
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
                    return Ok(FsModelTarget { parent, name: name.clone(), missing });
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

    /// The target of a write, and its current file.
    fn file_place(
        &self,
        path: &SpelledPath,
        make_parents: bool,
    ) -> Result<(FsModelTarget, Option<&FsModelNode>), ErrorKind> {
        let place = self.place(path, make_parents)?;
        let there = self.node(&place.path());
        if path.slashed || there.is_some_and(FsModelNode::is_directory) {
            return Err(ErrorKind::WrongType);
        }
        Ok((place, there))
    }

    /// The target of any entry, which must be a directory if the path ends in a slash.
    fn any_place(&self, path: &SpelledPath) -> Result<(FsModelTarget, Option<&FsModelNode>), ErrorKind> {
        let place = self.place(path, false)?;
        match self.node(&place.path()) {
            None if path.slashed => Err(ErrorKind::NotFound),
            Some(FsModelNode::File { .. }) if path.slashed => Err(ErrorKind::WrongType),
            there => Ok((place, there)),
        }
    }

    fn put(&mut self, place: &FsModelTarget, node: FsModelNode) {
        let above: Vec<String> = place.parent.iter().chain(&place.missing).cloned().collect();
        self.names_mut(&above).insert(place.name.clone(), node);
    }

    fn take(&mut self, place: &FsModelTarget) -> FsModelNode {
        self.names_mut(&place.parent).remove(&place.name).unwrap()
    }

    /// Sets the contents of a target; an existing file keeps its mode.
    fn put_file(&mut self, place: &FsModelTarget, content: String, new_mode: u32) -> FsModelResult {
        let (mode, created) = match self.node(&place.path()) {
            Some(node) if node.is_read_only() => return Err(ErrorKind::PermissionDenied),
            Some(FsModelNode::File { mode, .. }) => (*mode, false),
            _ => (new_mode, true),
        };
        let sha256 = sha256(content.as_bytes());
        let said = json!({"size": content.len(), "sha256": sha256, "created": created});
        self.put(place, FsModelNode::File { content, mode });
        Ok(said)
    }

    fn apply(&mut self, op: &FsModelCall) -> FsModelResult {
        match op {
            FsModelCall::Write { path, content, create_dirs } => {
                let (place, _) = self.file_place(path, *create_dirs)?;
                self.put_file(&place, content.clone(), 0o644)
            }
            FsModelCall::Append { path, content } => {
                let (place, there) = self.file_place(path, false)?;
                let old = if let Some(FsModelNode::File { content, .. }) = there { content.as_str() } else { "" };
                let content = format!("{old}{content}");
                self.put_file(&place, content, 0o644)
            }
            FsModelCall::Edit { path, old, new, all } => {
                let (place, there) = self.file_place(path, false)?;
                let Some(FsModelNode::File { content, .. }) = there else { return Err(ErrorKind::NotFound) };
                if there.is_some_and(FsModelNode::is_read_only) {
                    return Err(ErrorKind::PermissionDenied);
                }
                let exactly = edited(content, old, new, *all, OverlapCounting::Count);
                // All places are those that match exactly.
                let may_relax = exactly == Err(ErrorKind::EditNotFound) && !all;
                let relaxed = relaxed_edit(content, old, new).filter(|_| may_relax);
                let relaxations = relaxed.iter().map(|_| "matched without trailing blanks").collect::<Vec<_>>();
                let (content, replaced) = relaxed.map_or(exactly, |content| Ok((content, 1)))?;
                let mut said = self.put_file(&place, content, 0)?;
                said["replaced"] = json!(replaced);
                said["relaxed"] = if relaxations.is_empty() { Value::Null } else { json!(relaxations) };
                Ok(said)
            }
            FsModelCall::Copy { from, to, overwrite } => {
                let (source, content, mode) = self.file(from)?;
                let (place, there) = self.file_place(to, false)?;
                if there.is_some() && place.path() == source {
                    return Err(ErrorKind::InvalidArgs);
                }
                if there.is_some() && !overwrite {
                    return Err(ErrorKind::AlreadyExists);
                }
                // The owner of a copy may write it.
                self.put_file(&place, content, mode | 0o600)
            }
            FsModelCall::Move { from, to, overwrite } => self.apply_move(from, to, *overwrite),
            FsModelCall::Delete { path, recursive } => {
                let (place, there) = self.any_place(path)?;
                let entries = there.ok_or(ErrorKind::NotFound)?.entries();
                if entries > 0 && !recursive {
                    return Err(ErrorKind::WrongType);
                }
                self.take(&place);
                Ok(json!({"count": entries + 1}))
            }
            FsModelCall::CreateDirectory { path } => {
                let place = self.place(path, true)?;
                match self.node(&place.path()) {
                    Some(FsModelNode::File { .. }) => Err(ErrorKind::AlreadyExists),
                    Some(FsModelNode::Directory(_)) => Ok(json!({"created": false})),
                    None => {
                        self.put(&place, FsModelNode::Directory(BTreeMap::new()));
                        Ok(json!({"created": true}))
                    }
                }
            }
            FsModelCall::Read { path } => {
                let (_, content, _) = self.file(path)?;
                let (size, sha256) = (content.len(), sha256(content.as_bytes()));
                Ok(json!({"content": content, "size": size, "sha256": sha256, "truncated": false}))
            }
            FsModelCall::List { path, recursive } => {
                let found = self.resolve_directory(&path.names)?;
                let entries = self.paths(&found).into_iter().filter(|(path, _)| *recursive || !path.contains('/'));
                let entry = |(path, is_directory)| json!([path, if is_directory { "directory" } else { "file" }]);
                Ok(json!({"entries": entries.map(entry).collect::<Vec<_>>()}))
            }
            FsModelCall::Info { path } => self.apply_info(path),
            FsModelCall::Find { path } => {
                let found = self.resolve_directory(&path.names)?;
                let path = |(path, is_directory)| format!("{path}{}", if is_directory { "/" } else { "" });
                let paths: Vec<String> = self.paths(&found).into_iter().map(path).collect();
                Ok(json!({"truncated": false, "scanned": paths.len(), "paths": paths}))
            }
            FsModelCall::SetMode { path, mode: new_mode } => {
                let (found, content, _) = self.file(path)?;
                let (name, parent) = found.split_last().unwrap();
                self.names_mut(parent).insert(name.clone(), FsModelNode::File { content, mode: *new_mode });
                Ok(json!({}))
            }
        }
    }

    fn apply_move(&mut self, from: &SpelledPath, to: &SpelledPath, overwrite: bool) -> FsModelResult {
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

    fn apply_info(&self, path: &SpelledPath) -> FsModelResult {
        let found = self.resolve(&path.names)?;
        match self.node(&found) {
            Some(FsModelNode::File { content, mode }) if !path.slashed => Ok(json!({
                "type": "file",
                "size": content.len(),
                "mode": format!("{mode:04o}"),
                "sha256": sha256(content.as_bytes()),
            })),
            Some(FsModelNode::Directory(_)) => Ok(json!({"type": "directory", "size": 0, "mode": "0755"})),
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
enum OverlapCounting {
    Count,
    Ignore,
}

/// The plain way to edit.
fn edited(
    text: &str,
    old: &str,
    new: &str,
    all: bool,
    overlaps: OverlapCounting,
) -> Result<(String, usize), ErrorKind> {
    let disjoint = text.matches(old).count();
    let overlapping = text.char_indices().filter(|(at, _)| text[*at..].starts_with(old)).count();
    let matches = if overlaps == OverlapCounting::Count { overlapping } else { disjoint };
    match matches {
        0 => Err(ErrorKind::EditNotFound),
        2.. if !all => Err(ErrorKind::AmbiguousEdit),
        _ => Ok((text.replace(old, new), disjoint)),
    }
}

/// The edit of a text that is not there exactly. These texts have no blanks but newlines, so nothing else is relaxed than
/// the one that the file lacks at its end: the last line is replaced, and the file still lacks it.
fn relaxed_edit(text: &str, old: &str, new: &str) -> Option<String> {
    let line = old.strip_suffix('\n').filter(|line| !line.is_empty() && !line.contains('\n'))?;
    let above = text.strip_suffix(line).filter(|above| above.is_empty() || above.ends_with('\n'))?;
    Some(above.to_owned() + new)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The actual tree, as a model.
fn actual(root: &Path) -> FsModelNode {
    let mut model = FsModel::new();
    for (path, seen) in snapshot(root) {
        let names: Vec<String> = path.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
        let Some((name, above)) = names.split_last() else { continue };
        let node = match seen.kind {
            SnapshotEntryKind::Directory => {
                assert_eq!(seen.mode, 0o755, "{}", path.display());
                FsModelNode::Directory(BTreeMap::new())
            }
            SnapshotEntryKind::File(content) => {
                FsModelNode::File { content: String::from_utf8(content).unwrap(), mode: seen.mode }
            }
            other => panic!("{} is {other:?}", path.display()),
        };
        model.names_mut(above).insert(name.clone(), node);
    }
    model.0
}

fn reply(answer: &FixtureReply) -> Value {
    let reply: Value = serde_json::from_str(&answer.text).unwrap_or_else(|_| panic!("not JSON: {}", answer.text));
    assert_eq!(reply["ok"], answer.error.is_none(), "{}", answer.text);
    reply
}

/// The value of a reply, with entries as pairs of name and type.
fn value(answer: &FixtureReply) -> Value {
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
    let strategy = (vec(op(), 1..30), select(vec![ResolverBackend::Best, ResolverBackend::CapStd]));
    check(192, &strategy, |(ops, backend)| {
        let world = FsFixture::in_memory(FsFixtureConfig::default().on(backend));
        let outside = snapshot(&world.outside);
        let mut model = FsModel::new();
        for op in &ops {
            let before = model.clone();
            let expected = model.apply(op);
            let Some((tool, arguments)) = op.call() else {
                if let (FsModelCall::SetMode { path, mode }, Ok(_)) = (op, &expected) {
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
