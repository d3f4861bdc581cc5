//! MCP server `instructions`, which models get before their first call.
//!
//! Clients put them into the prompt, so they are short: how paths are written, what approval means, how to undo. They are
//! made from the session, so they name only what is there.

use std::fmt::Write as _;

use ringfence_fs::{MountAccess, MountSpec};
use ringfence_kernel::{Dialect, Session};

/// Some clients cut at 2,048 characters, and every session pays for each.
const MAX_CHARS: usize = 600;

/// As many mounts are named.
const MAX_MOUNTS: usize = 6;

pub(super) fn instructions(session: &Session, mounts: &[MountSpec]) -> String {
    let has = |tool: &str| session.catalog.list().any(|offered| offered.name == tool);
    let mut text = "Tools for files in one workspace; they cannot access anything outside it. ".to_owned();
    text.push_str(&path_rule(session.dialect, mounts));
    let Some(FamilyTools { run, undo }) = FamilyTools::of(session.dialect) else { return cut(text) };
    if has(run) {
        let _ = write!(text, " Programs run by {run} have no network except the hosts in `network`.");
    }
    text.push_str(
        " Some calls need the user's approval: when a result says that a call requires approval, tell the user, then \
         make the same call again. A refused call changed nothing; of a program, the result says which changes were \
         not kept.",
    );
    if has(undo) {
        let _ = write!(text, " {undo} reverts the last change");
        text.push_str(if has("list_changes") { "; list_changes shows earlier ones." } else { "." });
    }
    cut(text)
}

/// Tools that the advice names.
struct FamilyTools {
    run: &'static str,
    undo: &'static str,
}

impl FamilyTools {
    /// None for dialects whose texts are those of the systems that they come from.
    fn of(dialect: Dialect) -> Option<Self> {
        Some(match dialect {
            Dialect::Standard => Self { run: "run_code", undo: "undo" },
            Dialect::Claude => Self { run: "Bash", undo: "Undo" },
            Dialect::Codex => Self { run: "exec_command", undo: "undo" },
            Dialect::Gemini => Self { run: "run_shell_command", undo: "undo" },
            Dialect::Miniclaw | Dialect::Crewagent => return None,
        })
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_CHARS));
    text
}

fn path_rule(dialect: Dialect, mounts: &[MountSpec]) -> String {
    let alias = |mount: &MountSpec| match mount.rights {
        MountAccess::ReadOnly => format!("@{} (read-only)", mount.alias),
        MountAccess::ReadWrite => format!("@{}", mount.alias),
    };
    // The workspace comes first.
    let named: Vec<String> = mounts.iter().skip(1).take(MAX_MOUNTS).map(alias).collect();
    if dialect == Dialect::Crewagent {
        let workspace = format!("@{}", dialect.workspace_mount());
        let all: Vec<String> = std::iter::once(workspace).chain(named).collect();
        return format!("Every path begins with one of: {}.", all.join(", "));
    }
    let mut rule = "Paths are relative to the workspace, whose root is `.`".to_owned();
    if !named.is_empty() {
        let _ = write!(rule, ", or begin with a mount: {}", named.join(", "));
    }
    rule + "."
}
