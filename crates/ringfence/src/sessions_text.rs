//! `ringfence sessions`: the sessions of the agent in a workspace, as lists, as text and as files to keep.
//!
//! What a call was cut off in is said here as the model is told it.
//!
//! Not here: where they are kept (`sessions.rs`), and printing (`cli.rs`).

use clap::{Subcommand, ValueEnum};
use ringfence_agent::{Ledger, Message, whole};
use ringfence_kernel::{Dialect, visible_json, visible_line};
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::config::{Environment, Settings};
use crate::in_charge::Done;
use crate::sessions::{Entry, Head, SessionError, Sessions};
use crate::wire::directory_of;

#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// Print the sessions of this workspace, the last one first.
    List {
        /// As a list of JSON objects.
        #[arg(long)]
        json: bool,
    },
    /// Print what was said and done in one.
    Show { id: String },
    /// Print all of one, to be kept elsewhere.
    Export {
        id: String,
        #[arg(long, value_enum, default_value_t = Format::Json)]
        format: Format,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Every message, and how each prompt ended.
    Json,
    /// For people, as Markdown.
    Md,
}

pub(crate) fn sessions(
    settings: &Settings,
    environment: &Environment,
    command: SessionsCommand,
) -> Result<Done, Failure> {
    let sessions = Sessions::new(&settings.state);
    let directory = directory_of(settings, environment)?;
    Ok(Done::Print(match command {
        SessionsCommand::List { json: false } => list(&sessions.list(&directory)?),
        SessionsCommand::List { json: true } => pretty(&json!(sessions.list(&directory)?)),
        SessionsCommand::Show { id } => {
            let (head, entries) = sessions.show(&directory, &id)?;
            show(&head, &closed(&head, entries))
        }
        SessionsCommand::Export { id, format: Format::Json } => {
            let (head, entries) = entries_of(&sessions, &directory, &id)?;
            pretty(&json!({"session": head, "entries": entries}))
        }
        SessionsCommand::Export { id, format: Format::Md } => {
            let (head, entries) = sessions.show(&directory, &id)?;
            markdown(&head, &closed(&head, entries))
        }
    }))
}

/// A session, and every message and how each prompt ended as JSON.
pub(crate) fn entries_of(sessions: &Sessions, directory: &str, id: &str) -> Result<(Head, Vec<Value>), SessionError> {
    let (head, entries) = sessions.show(directory, id)?;
    let entry = |entry: &Entry| match entry {
        Entry::Message(message) => json!(message),
        Entry::Outcome(outcome) => json!({"role": "host", "outcome": outcome}),
    };
    let entries = closed(&head, entries).iter().map(entry).collect();
    Ok((head, entries))
}

/// The entries with one result for each call.
fn closed(head: &Head, entries: Vec<Entry>) -> Vec<Entry> {
    let dialect = Dialect::named(&head.dialect).unwrap_or_default();
    let mut closed = Vec::with_capacity(entries.len());
    let mut said = Vec::new();
    let close = |said: &mut Vec<Message>, closed: &mut Vec<Entry>| {
        closed.extend(whole(std::mem::take(said), dialect).into_iter().map(Entry::Message));
    };
    for entry in entries {
        match entry {
            Entry::Message(message) => said.push(message),
            Entry::Outcome(_) => {
                close(&mut said, &mut closed);
                closed.push(entry);
            }
        }
    }
    close(&mut said, &mut closed);
    closed
}

fn list(heads: &[Head]) -> String {
    let line = |head: &Head| {
        let updated = humantime::format_rfc3339_seconds(head.updated);
        format!("{}  {updated}  {}  {}\n", head.id, visible_line(&head.model), visible_line(&head.title))
    };
    heads.iter().map(line).collect()
}

fn pretty(value: &Value) -> String {
    visible_json(&serde_json::to_string_pretty(value).unwrap_or_default()) + "\n"
}

fn show(head: &Head, entries: &[Entry]) -> String {
    let mut text = format!("session {} with {}\n", head.id, visible_line(&head.model));
    for entry in entries {
        text.push('\n');
        match entry {
            Entry::Message(Message::User { text: said }) => text.push_str(&format!("> {said}\n")),
            Entry::Message(Message::Assistant { text: said, calls, .. }) => {
                if !said.trim().is_empty() {
                    text.push_str(&format!("{said}\n"));
                }
                for call in calls {
                    text.push_str(&format!("* {} {}\n", call.name, call.arguments));
                }
            }
            Entry::Message(Message::Tool { text: said, .. }) => text.push_str(&format!("  {said}\n")),
            Entry::Outcome(outcome) => text.push_str(&done(outcome)),
        }
    }
    text
}

fn markdown(head: &Head, entries: &[Entry]) -> String {
    let started = humantime::format_rfc3339_seconds(head.started);
    let mut text = format!("# {}\n\nSession `{}` with `{}`, {started}.\n", head.title, head.id, head.model);
    for entry in entries {
        match entry {
            Entry::Message(Message::User { text: said }) => text.push_str(&format!("\n## Prompt\n\n{said}\n")),
            Entry::Message(Message::Assistant { text: said, calls, .. }) => {
                if !said.trim().is_empty() {
                    text.push_str(&format!("\n{said}\n"));
                }
                for call in calls {
                    text.push_str(&format!("\n`{}`\n\n{}\n", call.name, fenced(&call.arguments)));
                }
            }
            Entry::Message(Message::Tool { text: said, .. }) => text.push_str(&format!("\n{}\n", fenced(said))),
            Entry::Outcome(outcome) => text.push_str(&format!("\n{}\n", fenced(&done(outcome)))),
        }
    }
    text
}

/// How a prompt ended, and what was truly done.
fn done(outcome: &Value) -> String {
    let ledger: Ledger = serde_json::from_value(outcome["ledger"].clone()).unwrap_or_default();
    let lines: String = ledger.lines().iter().map(|line| format!("  {line}\n")).collect();
    format!("ended: {}\nwhat was done:\n{lines}", outcome["why"].as_str().unwrap_or_default())
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
