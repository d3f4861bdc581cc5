//! The difference between two releases, as the calls that an agent makes for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Lines around a change: enough that a text is in its file once.
const CONTEXT_LINES: usize = 8;

/// A file that differs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChangedFile {
    /// Below the root of the release.
    pub(super) path: String,
    /// `None` for a new file.
    hunks: Option<Vec<FileHunk>>,
    text: String,
}

/// A part of a unified diff: its first line, and the others.
#[derive(Debug, PartialEq, Eq)]
struct FileHunk {
    header: String,
    lines: Vec<String>,
}

/// The name of a tool, and its arguments.
pub(super) type FixCall = (&'static str, Value);

/// Files at or below a path that are changed or new in the second release, in the order of their paths.
pub(super) fn changed_files(old: &Path, new: &Path, below: &str) -> Result<Vec<ChangedFile>, String> {
    let mut found = Vec::new();
    for path in files_below(new, below) {
        let read = |root: &Path| fs::read(root.join(&path)).ok();
        let (before, after) = (read(old), read(new));
        if before == after {
            continue;
        }
        // Sources are text.
        let Some(text) = after.and_then(|bytes| String::from_utf8(bytes).ok()) else { continue };
        let hunks = match before {
            None => None,
            Some(_) => Some(parse_hunks(&unified_diff(&old.join(&path), &new.join(&path))?)),
        };
        found.push(ChangedFile { path, hunks, text });
    }
    Ok(found)
}

fn files_below(root: &Path, below: &str) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![root.join(below)]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if let Ok(file) = path.strip_prefix(root)
            && path.is_file()
        {
            found.insert(file.display().to_string());
        }
    }
    found
}

fn unified_diff(old: &Path, new: &Path) -> Result<String, String> {
    let mut command = Command::new("git");
    command.args(["diff", "--no-index", "--no-color", "--no-ext-diff", &format!("--unified={CONTEXT_LINES}"), "--"]);
    let output = command.arg(old).arg(new).output().map_err(|error| format!("git: {error}"))?;
    String::from_utf8(output.stdout).map_err(|_| "a diff is not text".to_owned())
}

fn parse_hunks(diff: &str) -> Vec<FileHunk> {
    let mut hunks: Vec<FileHunk> = Vec::new();
    for line in diff.split_inclusive('\n') {
        if line.starts_with("@@ ") {
            hunks.push(FileHunk { header: line.to_owned(), lines: Vec::new() });
        } else if let Some(hunk) = hunks.last_mut() {
            hunk.lines.push(line.to_owned());
        }
    }
    hunks
}

impl FileHunk {
    /// The text of one side: the lines that stay, and those with this sign.
    fn side(&self, sign: char) -> String {
        let lines = self.lines.iter().filter_map(|line| {
            line.strip_prefix(' ').or_else(|| line.strip_prefix(sign)).or_else(|| (line == "\n").then_some("\n"))
        });
        lines.collect()
    }
}

impl ChangedFile {
    /// The calls that make the change, in a dialect.
    pub(super) fn calls(&self, dialect: &str) -> Vec<FixCall> {
        let Self { path, hunks, text } = self;
        match (dialect, hunks) {
            ("claude", None) => vec![("Write", json!({"file_path": path, "content": text}))],
            ("claude", Some(hunks)) => {
                let edit = |hunk: &FileHunk| {
                    let (old, new) = (hunk.side('-'), hunk.side('+'));
                    ("Edit", json!({"file_path": path, "old_string": old, "new_string": new}))
                };
                std::iter::once(("Read", json!({"file_path": path}))).chain(hunks.iter().map(edit)).collect()
            }
            (_, None) => vec![("write_file", json!({"path": path, "content": text}))],
            (_, Some(hunks)) => {
                let hunks: String = hunks.iter().flat_map(|hunk| [hunk.header.clone(), hunk.lines.concat()]).collect();
                vec![("apply_patch", json!({"patch": format!("--- a/{path}\n+++ b/{path}\n{hunks}")}))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_becomes_the_calls_of_a_dialect() {
        let diff =
            "diff --git a/x b/x\nindex 1..2\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@ fn\n a\n-b\n+c\n\n@@ -9 +9 @@\n-d\n+e\n";
        let file = ChangedFile { path: "x".to_owned(), hunks: Some(parse_hunks(diff)), text: String::new() };
        let calls = file.calls("claude");
        assert_eq!(calls.iter().map(|(tool, _)| *tool).collect::<Vec<_>>(), ["Read", "Edit", "Edit"]);
        assert_eq!(calls[1].1, json!({"file_path": "x", "old_string": "a\nb\n\n", "new_string": "a\nc\n\n"}));
        let patch = "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@ fn\n a\n-b\n+c\n\n@@ -9 +9 @@\n-d\n+e\n";
        assert_eq!(file.calls("standard"), [("apply_patch", json!({"patch": patch}))]);
        let new = ChangedFile { path: "y".to_owned(), hunks: None, text: "z\n".to_owned() };
        assert_eq!(new.calls("standard"), [("write_file", json!({"path": "y", "content": "z\n"}))]);
        assert_eq!(new.calls("claude"), [("Write", json!({"file_path": "y", "content": "z\n"}))]);
    }
}
