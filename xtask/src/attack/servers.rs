//! The servers under attack, and how each of them is asked for the same thing.
//!
//! Ours runs with the preset `edits`, so that what holds is the fence and not a question that nobody answers. Not here: how
//! the others are fetched (`bench_mcp.rs`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::stage::LINE;
use crate::bench_mcp;

/// Which words a server understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Ours,
    Node,
    Rust,
    Control,
}

/// A server, without the workspace that it is started for.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) title: String,
    pub(crate) words: Vec<PathBuf>,
    pub(crate) dialect: Dialect,
}

/// What the control does before it opens a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    Unchecked,
    /// It resolves the path, compares it with the workspace, and then opens it by its name.
    Checked,
}

/// Ours first, the control last; and a note on each one that could not be had.
pub(crate) fn programs(ours: &Path, control: Control) -> (Vec<Program>, Vec<String>) {
    let words = |program: &Path, more: &[&str]| {
        std::iter::once(program.to_owned()).chain(more.iter().map(PathBuf::from)).collect::<Vec<_>>()
    };
    let mut all = vec![Program {
        title: "ringfence".to_owned(),
        // Nobody is here to be asked, and so there is nothing to wait for.
        words: words(ours, &["mcp", "--wait", "0", "--preset", "edits", "--workspace"]),
        dialect: Dialect::Ours,
    }];
    let mut notes = Vec::new();
    for (title, program) in bench_mcp::others(&crate::root().join("target/tmp/bench-mcp")) {
        match program {
            Some(program) if title == bench_mcp::RUST => {
                all.push(Program {
                    title: title.to_owned(),
                    words: words(&program, &["--allow-write"]),
                    dialect: Dialect::Rust,
                });
            }
            Some(program) => {
                all.push(Program { title: title.to_owned(), words: words(&program, &[]), dialect: Dialect::Node })
            }
            None => notes.push(format!("skipped: `{title}`, which cannot be fetched here")),
        }
    }
    let (title, mode) = match control {
        Control::Unchecked => ("control: no check", "unchecked"),
        Control::Checked => ("control: check, then open", "checked"),
    };
    match std::env::current_exe() {
        Ok(this) => all.push(Program {
            title: title.to_owned(),
            words: words(&this, &["attack", "--control", mode]),
            dialect: Dialect::Control,
        }),
        Err(error) => notes.push(format!("without the control, which shows nothing: {error}")),
    }
    (all, notes)
}

/// What a server is asked to do with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
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
    Take,
    /// Moves `inside.txt` there.
    Put,
}

impl Act {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Info => "info",
            Self::List => "list",
            Self::Find => "find",
            Self::Search => "search",
            Self::Write => "write",
            Self::Edit => "edit",
            Self::MakeDirectory => "mkdir",
            Self::Take => "move from",
            Self::Put => "move to",
        }
    }
}

/// The call by which a server does it; nothing where it has no such tool.
pub(crate) fn phrase(dialect: Dialect, act: Act, path: &str, workspace: &Path) -> Option<(&'static str, Value)> {
    let ours = dialect == Dialect::Ours;
    let within = |name: &str| if ours { name.to_owned() } else { workspace.join(name).display().to_string() };
    let moved = |from: &str, to: &str| match ours {
        true => json!({"from": from, "to": to}),
        false => json!({"source": from, "destination": to}),
    };
    Some(match act {
        Act::Read if ours => ("read_file", json!({"path": path})),
        Act::Read => ("read_text_file", json!({"path": path})),
        Act::Info => ("get_file_info", json!({"path": path})),
        Act::List => ("list_directory", json!({"path": path})),
        Act::Find if ours => ("find_files", json!({"path": path, "glob": "**/canary*"})),
        Act::Find => ("search_files", json!({"path": path, "pattern": "**/canary*"})),
        Act::Search if ours => ("search_files", json!({"path": path, "pattern": LINE})),
        Act::Search if dialect != Dialect::Node => {
            ("search_files_content", json!({"path": path, "pattern": "**/*", "query": LINE}))
        }
        Act::Search => return None,
        Act::Write => ("write_file", json!({"path": path, "content": "written by the attack\n"})),
        Act::Edit => edit(dialect, path, LINE, "edited by the attack"),
        Act::MakeDirectory => ("create_directory", json!({"path": path})),
        Act::Take => ("move_file", moved(path, &within("stolen"))),
        Act::Put => ("move_file", moved(&within("inside.txt"), path)),
    })
}

pub(crate) fn edit(dialect: Dialect, path: &str, old: &str, new: &str) -> (&'static str, Value) {
    match dialect {
        Dialect::Ours => ("edit_file", json!({"path": path, "oldText": old, "newText": new})),
        _ => ("edit_file", json!({"path": path, "edits": [{"oldText": old, "newText": new}]})),
    }
}
