//! The servers under attack, and how each of them is asked for the same thing.
//!
//! Ours runs with the preset `edits`, so that the fence is tested and not an approval request without an approver. Not
//! here: fetching the others (`bench_mcp.rs`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::testbed::SEARCHED_LINE;
use crate::bench_mcp;

/// Argument names of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerDialect {
    Ours,
    Node,
    Rust,
    Control,
}

/// A server, without the workspace that it is started for.
#[derive(Clone, Debug)]
pub(crate) struct ServerProgram {
    pub(crate) title: String,
    pub(crate) command: Vec<PathBuf>,
    pub(crate) dialect: ServerDialect,
}

/// The control's check before it opens a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlMode {
    Unchecked,
    /// It resolves the path, compares it with the workspace, and then opens it by its name.
    Checked,
}

/// Ours first, the control last; and a note on each one that could not be had.
pub(crate) fn programs(ours: &Path, control: ControlMode) -> (Vec<ServerProgram>, Vec<String>) {
    let words = |program: &Path, more: &[&str]| {
        std::iter::once(program.to_owned()).chain(more.iter().map(PathBuf::from)).collect::<Vec<_>>()
    };
    let mut all = vec![ServerProgram {
        title: "ringfence".to_owned(),
        // There is no approver, and so nothing to wait for.
        command: words(ours, &["mcp", "--wait", "0", "--preset", "edits", "--workspace"]),
        dialect: ServerDialect::Ours,
    }];
    let mut notes = Vec::new();
    for (title, program) in bench_mcp::fetch_peers(&crate::root().join("target/tmp/bench-mcp")) {
        match program {
            Some(program) if title == bench_mcp::RUST => {
                all.push(ServerProgram {
                    title: title.to_owned(),
                    command: words(&program, &["--allow-write"]),
                    dialect: ServerDialect::Rust,
                });
            }
            Some(program) => all.push(ServerProgram {
                title: title.to_owned(),
                command: words(&program, &[]),
                dialect: ServerDialect::Node,
            }),
            None => notes.push(format!("skipped: `{title}`, which cannot be fetched here")),
        }
    }
    let (title, mode) = match control {
        ControlMode::Unchecked => ("control: no check", "unchecked"),
        ControlMode::Checked => ("control: check, then open", "checked"),
    };
    match std::env::current_exe() {
        Ok(this) => all.push(ServerProgram {
            title: title.to_owned(),
            command: words(&this, &["attack", "--control", mode]),
            dialect: ServerDialect::Control,
        }),
        Err(error) => notes.push(format!("without the control, which shows nothing: {error}")),
    }
    (all, notes)
}

/// An operation on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOperation {
    Read,
    Info,
    List,
    /// By name, everything below.
    Find,
    /// By contents, everything below.
    Search,
    Write,
    Edit,
    MakeDirectory,
    /// Moves it to `stolen` in the workspace.
    MoveOut,
    /// Moves `inside.txt` there.
    MoveIn,
}

impl FileOperation {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Info => "info",
            Self::List => "list",
            Self::Find => "find",
            Self::Search => "search",
            Self::Write => "write",
            Self::Edit => "edit",
            Self::MakeDirectory => "mkdir",
            Self::MoveOut => "move from",
            Self::MoveIn => "move to",
        }
    }
}

/// The call by which a server does it; nothing where it has no such tool.
pub(crate) fn tool_call(
    dialect: ServerDialect,
    act: FileOperation,
    path: &str,
    workspace: &Path,
) -> Option<(&'static str, Value)> {
    let ours = dialect == ServerDialect::Ours;
    let within = |name: &str| if ours { name.to_owned() } else { workspace.join(name).display().to_string() };
    let moved = |from: &str, to: &str| match ours {
        true => json!({"from": from, "to": to}),
        false => json!({"source": from, "destination": to}),
    };
    Some(match act {
        FileOperation::Read if ours => ("read_file", json!({"path": path})),
        FileOperation::Read => ("read_text_file", json!({"path": path})),
        FileOperation::Info => ("get_file_info", json!({"path": path})),
        FileOperation::List => ("list_directory", json!({"path": path})),
        FileOperation::Find if ours => ("find_files", json!({"path": path, "glob": "**/canary*"})),
        FileOperation::Find => ("search_files", json!({"path": path, "pattern": "**/canary*"})),
        FileOperation::Search if ours => ("search_files", json!({"path": path, "pattern": SEARCHED_LINE})),
        FileOperation::Search if dialect != ServerDialect::Node => {
            ("search_files_content", json!({"path": path, "pattern": "**/*", "query": SEARCHED_LINE}))
        }
        FileOperation::Search => return None,
        FileOperation::Write => ("write_file", json!({"path": path, "content": "written by the attack\n"})),
        FileOperation::Edit => edit_call(dialect, path, SEARCHED_LINE, "edited by the attack"),
        FileOperation::MakeDirectory => ("create_directory", json!({"path": path})),
        FileOperation::MoveOut => ("move_file", moved(path, &within("stolen"))),
        FileOperation::MoveIn => ("move_file", moved(&within("inside.txt"), path)),
    })
}

pub(crate) fn edit_call(dialect: ServerDialect, path: &str, old: &str, new: &str) -> (&'static str, Value) {
    match dialect {
        ServerDialect::Ours => ("edit_file", json!({"path": path, "oldText": old, "newText": new})),
        _ => ("edit_file", json!({"path": path, "edits": [{"oldText": old, "newText": new}]})),
    }
}
