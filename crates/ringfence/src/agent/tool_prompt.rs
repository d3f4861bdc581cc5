//! System prompt text about the tools, paths and limits.
//!
//! It is made from the session itself, so that the prompt, the offered tools and the enforced rules cannot differ.

use ringfence_crewagent::STATE_ALIAS;
use ringfence_fs::MountAccess;
use ringfence_kernel::{Dialect, Session, ToolDefinition};

use crate::config::AppSettings;

/// The tools of a session, where they reach, and the limits that hold.
pub fn tool_prompt(session: &Session, settings: &AppSettings) -> String {
    let tools: Vec<_> = session.catalog.list().collect();
    if tools.is_empty() {
        return "You have no tools for files.".to_owned();
    }
    let mut lines = vec!["You have these tools for files:".to_owned()];
    lines.extend(tools.iter().map(|tool| format!("- {}: {}", tool.name, first_sentence(&tool.description))));
    lines.push(path_rules(session, settings));
    let limits = &session.limits;
    lines.push(format!(
        "One read returns at most {} bytes and one write takes at most {}{}.",
        limits.read_bytes,
        limits.write_bytes,
        large_file_hint(&tools)
    ));
    lines.push(format!("A call is stopped after {} seconds.", limits.call_time.as_secs()));
    lines.join("\n")
}

/// Advice for files that are larger than one read, by the offered tools.
fn large_file_hint(tools: &[&ToolDefinition]) -> &'static str {
    let has = |argument: &str| tools.iter().any(|tool| tool.parameters["properties"].get(argument).is_some());
    match (has("pattern"), has("startLine")) {
        (true, true) => "; search larger files, or read them by lines",
        (true, false) => "; search larger files",
        (false, true) => "; read larger files by lines",
        (false, false) => "; larger files cannot be read",
    }
}

/// Rules about paths, and about the writable ones.
fn path_rules(session: &Session, settings: &AppSettings) -> String {
    let declared = settings.mounts.iter().map(|mount| (format!("@{}", mount.alias), mount.rights));
    let state = settings.run.iter().map(|_| (format!("@{STATE_ALIAS}"), MountAccess::ReadWrite));
    let mounts: Vec<String> = declared
        .chain(state)
        .map(|(alias, rights)| match rights {
            MountAccess::ReadOnly => format!("`{alias}` (read-only)"),
            MountAccess::ReadWrite => format!("`{alias}`"),
        })
        .collect();
    match session.dialect {
        Dialect::Crewagent => {
            let workspace = format!("`@{}`", session.dialect.workspace_mount());
            let all: Vec<String> = std::iter::once(workspace).chain(mounts).collect();
            format!("Every path begins with one of {}.", all.join(", "))
        }
        _ if mounts.is_empty() => "Paths are relative to the workspace.".to_owned(),
        _ => format!("Paths are relative to the workspace, or begin with {}.", mounts.join(", ")),
    }
}

pub(crate) fn first_sentence(text: &str) -> String {
    let end = text.find(". ").or_else(|| text.find(".\n")).map_or(text.len(), |at| at + 1);
    text[..end].split_whitespace().collect::<Vec<_>>().join(" ")
}
