//! Every operation on a path: what the spelling, the links and the special files are crossed with.
//!
//! `other.txt` has to be there, and `fresh` must not.

use ringfence_kernel::{Dialect, ErrorKind};
use serde_json::{Value, json};

use super::Case;

/// What an operation wants of the path that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
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
    /// Where something is moved to, with leave to overwrite or without.
    MoveTo {
        overwrite: bool,
    },
    MakeDirectory,
}

/// One call on a path.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) tool: &'static str,
    pub(crate) arguments: Value,
    pub(crate) usage: Use,
}

/// Every operation of a dialect, on one path.
pub(crate) fn operations(dialect: Dialect, path: &str) -> Vec<Operation> {
    let list = |(tool, arguments, usage)| Operation { tool, arguments, usage };
    match dialect {
        Dialect::Standard => vec![
            ("read_file", json!({"path": path}), Use::Read),
            ("read_file", json!({"path": path, "startLine": 1, "endLine": 2}), Use::Read),
            ("read_file", json!({"path": path, "encoding": "base64"}), Use::Read),
            ("copy_file", json!({"from": path, "to": "fresh"}), Use::Read),
            ("list_directory", json!({"path": path}), Use::List),
            ("list_directory", json!({"path": path, "recursive": true, "includeHidden": true}), Use::List),
            ("find_files", json!({"path": path, "glob": "**"}), Use::List),
            ("get_file_info", json!({"path": path}), Use::Describe),
            ("write_file", json!({"path": path, "content": "new"}), Use::Write),
            ("write_file", json!({"path": path, "content": "new", "createDirs": true}), Use::Write),
            ("append_file", json!({"path": path, "content": "new"}), Use::Write),
            ("copy_file", json!({"from": "other.txt", "to": path, "overwrite": true}), Use::Write),
            ("edit_file", json!({"path": path, "oldText": "other", "newText": "new"}), Use::Edit),
            ("apply_patch", json!({"path": path, "patch": "@@ -1 +1 @@\n-other\n+new\n"}), Use::Edit),
            ("move_file", json!({"from": "other.txt", "to": path}), Use::MoveTo { overwrite: false }),
            ("move_file", json!({"from": "other.txt", "to": path, "overwrite": true}), Use::MoveTo { overwrite: true }),
            ("create_directory", json!({"path": path}), Use::MakeDirectory),
            ("move_file", json!({"from": path, "to": "fresh"}), Use::MoveAway),
            ("delete_file", json!({"path": path}), Use::Delete),
            ("delete_file", json!({"path": path, "recursive": true}), Use::Delete),
        ],
        Dialect::Miniclaw => vec![
            ("read_file", json!({"path": path}), Use::Read),
            ("list_dir", json!({"path": path}), Use::List),
            ("write_file", json!({"path": path, "content": "new"}), Use::Write),
            ("append_file", json!({"path": path, "content": "new"}), Use::Write),
            ("edit_file", json!({"path": path, "old_text": "other", "new_text": "new"}), Use::Edit),
        ],
        Dialect::Crewagent => {
            let path = format!("@workspace/{path}");
            vec![
                ("fs.read", json!({"path": path}), Use::Read),
                ("fs.list", json!({"path": path}), Use::List),
                ("fs.write", json!({"path": path, "content": "new"}), Use::Write),
            ]
        }
    }
    .into_iter()
    .map(list)
    .collect()
}

impl Case {
    /// Every operation on `path` is refused, with the kind that `judge` has for its use; those without one are left out.
    pub(crate) fn every(mut self, path: &str, judge: impl Fn(Use) -> Option<ErrorKind>) -> Self {
        for Operation { tool, arguments, usage } in operations(self.setup.dialect, path) {
            if let Some(kind) = judge(usage) {
                self = self.fails(tool, arguments, kind);
            }
        }
        self
    }
}
