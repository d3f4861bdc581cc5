//! `ringfence sessions`: list, show and export the agent sessions of a workspace.
//!
//! A call that was cut off is described as it is to the model.
//!
//! Not here: storing them (`store/transcripts.rs`), and printing (`mod.rs`).

use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use ringfence_agent::{Ledger, TranscriptMessage};
use ringfence_kernel::{sanitize_json, sanitize_line};
use serde_json::{Value, json};

use crate::app::workspace_id;
use crate::cli::CliError;
use crate::cli::approvals::CommandOutcome;
use crate::config::{AppSettings, Environment};
use crate::store::SqliteStore;
use crate::store::transcripts::{SqliteTranscripts, TranscriptEntry, TranscriptHeader, close_open_calls, entries_of};

#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List the sessions of this workspace, newest first
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the transcript of a session
    Show {
        /// The session's id, from `ringfence sessions list`
        id: String,
    },
    /// Export a whole session to standard output
    Export {
        /// The session's id, from `ringfence sessions list`
        id: String,
        /// The output format: every message and the outcome of each prompt, or text for people
        #[arg(long, value_enum, default_value_t = ExportFormat::Json)]
        format: ExportFormat,
    },
}

// The help of `export` describes them: a description of a value switches the whole help to a longer layout.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ExportFormat {
    Json,
    Md,
}

pub(crate) fn run_sessions_command(
    settings: &AppSettings,
    environment: &Environment,
    command: SessionsCommand,
) -> Result<CommandOutcome, CliError> {
    let sessions = SqliteTranscripts::new(Arc::new(SqliteStore::new(&settings.state)));
    let directory = workspace_id(settings, environment)?;
    Ok(CommandOutcome::Print(match command {
        SessionsCommand::List { json: false } => format_list(&sessions.list(&directory)?),
        SessionsCommand::List { json: true } => pretty(&json!(sessions.list(&directory)?)),
        SessionsCommand::Show { id } => {
            let (head, entries) = sessions.show(&directory, &id)?;
            format_transcript(&head, &close_open_calls(&head, entries))
        }
        SessionsCommand::Export { id, format: ExportFormat::Json } => {
            let (head, entries) = entries_of(&sessions, &directory, &id)?;
            pretty(&json!({"session": head, "entries": entries}))
        }
        SessionsCommand::Export { id, format: ExportFormat::Md } => {
            let (head, entries) = sessions.show(&directory, &id)?;
            markdown(&head, &close_open_calls(&head, entries))
        }
    }))
}

fn format_list(heads: &[TranscriptHeader]) -> String {
    let line = |head: &TranscriptHeader| {
        let updated = humantime::format_rfc3339_seconds(head.updated);
        format!("{}  {updated}  {}  {}\n", head.id, sanitize_line(&head.model), sanitize_line(&head.title))
    };
    heads.iter().map(line).collect()
}

fn pretty(value: &Value) -> String {
    sanitize_json(&serde_json::to_string_pretty(value).unwrap_or_default()) + "\n"
}

fn format_transcript(head: &TranscriptHeader, entries: &[TranscriptEntry]) -> String {
    let mut text = format!("session {} with {}\n", head.id, sanitize_line(&head.model));
    for entry in entries {
        text.push('\n');
        match entry {
            TranscriptEntry::Message(TranscriptMessage::User { text: message }) => {
                text.push_str(&format!("> {message}\n"))
            }
            TranscriptEntry::Message(TranscriptMessage::Assistant { text: message, calls, .. }) => {
                if !message.trim().is_empty() {
                    text.push_str(&format!("{message}\n"));
                }
                for call in calls {
                    text.push_str(&format!("* {} {}\n", call.name, call.arguments));
                }
            }
            TranscriptEntry::Message(TranscriptMessage::Tool { text: message, .. }) => {
                text.push_str(&format!("  {message}\n"))
            }
            TranscriptEntry::Outcome(outcome) => text.push_str(&format_outcome(outcome)),
        }
    }
    text
}

fn markdown(head: &TranscriptHeader, entries: &[TranscriptEntry]) -> String {
    let started = humantime::format_rfc3339_seconds(head.started);
    let mut text = format!("# {}\n\nSession `{}` with `{}`, {started}.\n", head.title, head.id, head.model);
    for entry in entries {
        match entry {
            TranscriptEntry::Message(TranscriptMessage::User { text: message }) => {
                text.push_str(&format!("\n## Prompt\n\n{message}\n"))
            }
            TranscriptEntry::Message(TranscriptMessage::Assistant { text: message, calls, .. }) => {
                if !message.trim().is_empty() {
                    text.push_str(&format!("\n{message}\n"));
                }
                for call in calls {
                    text.push_str(&format!("\n`{}`\n\n{}\n", call.name, fenced(&call.arguments)));
                }
            }
            TranscriptEntry::Message(TranscriptMessage::Tool { text: message, .. }) => {
                text.push_str(&format!("\n{}\n", fenced(message)))
            }
            TranscriptEntry::Outcome(outcome) => text.push_str(&format!("\n{}\n", fenced(&format_outcome(outcome)))),
        }
    }
    text
}

/// The end of a prompt, and its recorded effects.
fn format_outcome(outcome: &Value) -> String {
    let ledger: Ledger = serde_json::from_value(outcome["ledger"].clone()).unwrap_or_default();
    let lines: String = ledger.lines().iter().map(|line| format!("  {line}\n")).collect();
    format!("ended: {}\nactions taken:\n{lines}", outcome["why"].as_str().unwrap_or_default())
}

/// In a fence that nothing in the text closes.
fn fenced(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::fenced;

    #[test]
    fn nothing_in_a_text_closes_its_fence() {
        assert_eq!(fenced("a\n"), "```\na\n```");
        assert_eq!(fenced("```\nx\n```"), "````\n```\nx\n```\n````");
    }
}
