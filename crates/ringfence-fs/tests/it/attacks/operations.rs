//! Path operations: every tool call that spellings, links and special files are crossed with.
//!
//! `other.txt` has to be there, and `fresh` must not.

use ringfence_kernel::{Dialect, ErrorKind};
use serde_json::{Value, json};

use super::FsAttackCase;

/// An operation's use of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathUse {
    /// The contents of a file.
    Read,
    /// The names in a directory.
    List,
    Describe,
    /// New contents for a file that may be there or not.
    Write,
    /// New contents for a file that has to be there.
    Edit,
    Delete,
    MoveAway,
    /// The destination of a move, with overwriting or without.
    MoveTo {
        overwrite: bool,
    },
    MakeDirectory,
}

/// One call on a path.
#[derive(Clone, Debug)]
pub(crate) struct PathOperation {
    pub(crate) tool: &'static str,
    pub(crate) arguments: Value,
    pub(crate) usage: PathUse,
}

impl PathOperation {
    /// Whether no path at all means the workspace.
    pub(crate) fn defaults_to_workspace(&self) -> bool {
        matches!(self.tool, "list_dir" | "list_directory" | "find_files" | "Grep" | "Glob" | "grep_search" | "glob")
    }
}

/// Every operation of a dialect, on one path.
pub(crate) fn operations(dialect: Dialect, path: &str) -> Vec<PathOperation> {
    let list = |(tool, arguments, usage)| PathOperation { tool, arguments, usage };
    match dialect {
        Dialect::Standard => vec![
            ("read_file", json!({"path": path}), PathUse::Read),
            ("read_file", json!({"path": path, "startLine": 1, "endLine": 2}), PathUse::Read),
            ("read_file", json!({"path": path, "encoding": "base64"}), PathUse::Read),
            ("copy_file", json!({"from": path, "to": "fresh"}), PathUse::Read),
            ("list_directory", json!({"path": path}), PathUse::List),
            ("list_directory", json!({"path": path, "recursive": true, "includeHidden": true}), PathUse::List),
            ("find_files", json!({"path": path, "glob": "**"}), PathUse::List),
            ("get_file_info", json!({"path": path}), PathUse::Describe),
            ("write_file", json!({"path": path, "content": "new"}), PathUse::Write),
            ("write_file", json!({"path": path, "content": "new", "createDirs": true}), PathUse::Write),
            ("append_file", json!({"path": path, "content": "new"}), PathUse::Write),
            ("copy_file", json!({"from": "other.txt", "to": path, "overwrite": true}), PathUse::Write),
            ("edit_file", json!({"path": path, "oldText": "other", "newText": "new"}), PathUse::Edit),
            ("apply_patch", json!({"path": path, "patch": "@@ -1 +1 @@\n-other\n+new\n"}), PathUse::Edit),
            ("move_file", json!({"from": "other.txt", "to": path}), PathUse::MoveTo { overwrite: false }),
            (
                "move_file",
                json!({"from": "other.txt", "to": path, "overwrite": true}),
                PathUse::MoveTo { overwrite: true },
            ),
            ("create_directory", json!({"path": path}), PathUse::MakeDirectory),
            ("move_file", json!({"from": path, "to": "fresh"}), PathUse::MoveAway),
            ("delete_file", json!({"path": path}), PathUse::Delete),
            ("delete_file", json!({"path": path, "recursive": true}), PathUse::Delete),
        ],
        Dialect::Claude => vec![
            ("Read", json!({"file_path": path}), PathUse::Read),
            ("Read", json!({"file_path": path, "offset": 1, "limit": 2}), PathUse::Read),
            ("Grep", json!({"path": path, "pattern": "x"}), PathUse::Read),
            ("Glob", json!({"path": path, "pattern": "**"}), PathUse::List),
            ("Write", json!({"file_path": path, "content": "new"}), PathUse::Write),
            ("Edit", json!({"file_path": path, "old_string": "other", "new_string": "new"}), PathUse::Edit),
            ("Edit", json!({"file_path": path, "insert_line": 0, "new_string": "new"}), PathUse::Edit),
        ],
        Dialect::Codex => {
            let patch = format!("*** Begin Patch\n*** Update File: {path}\n@@\n-other\n+new\n*** End Patch\n");
            let delete = format!("*** Begin Patch\n*** Delete File: {path}\n*** End Patch\n");
            vec![
                ("read_file", json!({"path": path}), PathUse::Read),
                ("view_image", json!({"path": path}), PathUse::Read),
                ("apply_patch", json!({"input": patch}), PathUse::Edit),
                ("apply_patch", json!({"input": delete}), PathUse::Delete),
            ]
        }
        Dialect::Gemini => vec![
            ("read_file", json!({"file_path": path}), PathUse::Read),
            ("list_directory", json!({"dir_path": path}), PathUse::List),
            ("grep_search", json!({"dir_path": path, "pattern": "x"}), PathUse::Read),
            ("glob", json!({"dir_path": path, "pattern": "**"}), PathUse::List),
            ("write_file", json!({"file_path": path, "content": "new"}), PathUse::Write),
            ("replace", json!({"file_path": path, "old_string": "other", "new_string": "new"}), PathUse::Edit),
        ],
        Dialect::Miniclaw => vec![
            ("read_file", json!({"path": path}), PathUse::Read),
            ("list_dir", json!({"path": path}), PathUse::List),
            ("write_file", json!({"path": path, "content": "new"}), PathUse::Write),
            ("append_file", json!({"path": path, "content": "new"}), PathUse::Write),
            ("edit_file", json!({"path": path, "old_text": "other", "new_text": "new"}), PathUse::Edit),
        ],
        Dialect::Crewagent => {
            let path = format!("@workspace/{path}");
            vec![
                ("fs.read", json!({"path": path}), PathUse::Read),
                ("fs.list", json!({"path": path}), PathUse::List),
                ("fs.write", json!({"path": path, "content": "new"}), PathUse::Write),
            ]
        }
    }
    .into_iter()
    .map(list)
    .collect()
}

impl FsAttackCase {
    /// Every operation on `path` is refused, with the kind that `judge` has for its use; those without one are left out.
    pub(crate) fn refuses_every_operation(mut self, path: &str, judge: impl Fn(PathUse) -> Option<ErrorKind>) -> Self {
        for PathOperation { tool, arguments, usage } in operations(self.setup.dialect, path) {
            if let Some(kind) = judge(usage) {
                self = self.fails(tool, arguments, kind);
            }
        }
        self
    }
}
