//! System prompt text about the tools, paths and limits.
//!
//! It is made from the session itself, so that the prompt, the offered tools and the enforced rules cannot differ.

use ringfence_agent::{LOAD_TOOLS, ToolLoading};
use ringfence_crewagent::STATE_ALIAS;
use ringfence_fs::MountAccess;
use ringfence_kernel::{Dialect, MODEL_TEXT_BYTES, Session, ToolDefinition};
use ringfence_sandbox::command_time;

use crate::config::AppSettings;

/// The tools of a session, where they reach, and the limits that hold.
pub fn tool_prompt(session: &Session, settings: &AppSettings, loading: ToolLoading) -> String {
    let (tools, deferred) = loading.split(&session.catalog);
    if tools.is_empty() {
        return "You have no tools for files.".to_owned();
    }
    let mut lines = vec!["You have these tools for files:".to_owned()];
    lines.extend(tools.iter().map(|tool| format!("- {}: {}", tool.name, first_sentence(tool.description()))));
    if !deferred.is_empty() {
        lines.push(format!("- {LOAD_TOOLS}: List and load {} further tools.", deferred.len()));
    }
    lines.push(path_rules(session, settings));
    let limits = &session.limits;
    // Reads for a model come in parts, whatever the limit of one is.
    let read_bytes = match session.dialect.is_model_family() {
        true => limits.read_bytes.min(MODEL_TEXT_BYTES as u64),
        false => limits.read_bytes,
    };
    lines.push(format!(
        "One read returns at most {read_bytes} bytes and one write takes at most {}{}.",
        limits.write_bytes,
        large_file_hint(&tools)
    ));
    lines.push(format!("A call is stopped after {} seconds{}.", limits.call_time.as_secs(), run_time_note(session)));
    lines.join("\n")
}

/// The time of programs, which is not that of other calls.
fn run_time_note(session: &Session) -> String {
    let limits = &session.limits;
    let (tool, text) = match session.dialect {
        Dialect::Standard => ("run_code", format!(", a program after {}", limits.run_time.as_secs())),
        Dialect::Claude => ("Bash", format!(", a command after {}", command_time(limits).as_secs())),
        Dialect::Gemini => ("run_shell_command", format!(", a command after {}", command_time(limits).as_secs())),
        Dialect::Codex => ("exec_command", "; a command goes on in the background".to_owned()),
        Dialect::Miniclaw | Dialect::Crewagent => return String::new(),
    };
    session.catalog.get(tool).map(|_| text).unwrap_or_default()
}

/// Advice for files that are larger than one read, by the offered tools.
fn large_file_hint(tools: &[&ToolDefinition]) -> &'static str {
    let has = |tool: &ToolDefinition, argument: &str| tool.parameters()["properties"].get(argument).is_some();
    let searches = |tool: &&ToolDefinition| tool.capabilities.is_read_only() && has(tool, "pattern");
    let reads_lines = |tool: &&ToolDefinition| {
        tool.capabilities.is_read_only()
            && !has(tool, "pattern")
            && ["startLine", "start_line", "offset"].iter().any(|argument| has(tool, argument))
    };
    match (tools.iter().copied().any(|tool| searches(&tool)), tools.iter().copied().any(|tool| reads_lines(&tool))) {
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
