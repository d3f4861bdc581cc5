//! What an editor shows of a session: text as it comes, thoughts, and a card for every call.
//!
//! Calls are made one at a time, so there is one card that is open. Cards have ids of ours: a model may use an id twice.
//! Paths are absolute here, because the protocol wants it so and the editor is the user's own; no model sees them.
//!
//! Not here: asking (`approve.rs`).

use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ringfence_agent::{Event, Front, Ledger, Message, Outcome, RequestedCall};
use ringfence_kernel::{visible, visible_line};
use serde_json::{Value, json};

use super::diff::{self, Hunk};
use super::peer::Client;
use crate::agent::cards;

/// Bytes of a reply or of a program's output that a card shows.
const LONGEST_TEXT: usize = 16 << 10;

/// The output of a program is shown again when there is so much more of it.
const MORE_OUTPUT: usize = 512;

/// The side of a session that an editor sees.
#[derive(Debug)]
pub(super) struct Screen {
    client: Client,
    /// The workspace.
    root: PathBuf,
    session: OnceLock<String>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    cards: u64,
    card: Option<Card>,
    /// The model said something in this prompt.
    spoke: bool,
}

/// A call on the screen.
#[derive(Debug)]
struct Card {
    id: String,
    call_id: String,
    diffs: Vec<Value>,
    output: String,
    output_shown: usize,
    /// What comes back is for the model alone.
    hidden: bool,
}

impl Screen {
    pub(super) fn new(client: Client, root: PathBuf) -> Self {
        Self { client, root, session: OnceLock::new(), shown: Mutex::default() }
    }

    /// From now on it is known which session this is.
    pub(super) fn is_of(&self, session: &str) {
        let _ = self.session.set(session.to_owned());
    }

    /// Shows again what was said before.
    pub(super) fn replay(&self, messages: &[Message]) {
        let mut calls: Vec<RequestedCall> = Vec::new();
        for message in messages {
            match message {
                Message::User { text } => self.say("user_message_chunk", text),
                Message::Assistant { text, calls: asked, .. } => {
                    if !text.is_empty() {
                        self.say("agent_message_chunk", text);
                    }
                    calls.clone_from(asked);
                }
                Message::Tool { call_id, text, is_error, .. } => {
                    if let Some(call) = calls.iter().find(|call| call.id == *call_id) {
                        self.open_card(call);
                        // It is no longer known what of it was secret.
                        if matches!(kind(&call.name), "read" | "search") {
                            self.hide_reply();
                        }
                        self.close_card(call, text, *is_error);
                    }
                }
            }
        }
    }

    /// The card of the call that is made now, with what is known about it since.
    pub(super) fn on_card(&self, diffs: Vec<Value>, fields: Value) -> Value {
        let mut shown = self.shown();
        let mut update = fields;
        update["toolCallId"] = match &mut shown.card {
            Some(card) => {
                if !diffs.is_empty() {
                    card.diffs = diffs;
                }
                card.id.as_str().into()
            }
            None => {
                shown.cards += 1;
                format!("card-{}", shown.cards).into()
            }
        };
        update
    }

    /// What comes back from the call that is made now is not shown: an editor keeps what it shows.
    pub(super) fn hide_reply(&self) {
        if let Some(card) = &mut self.shown().card {
            card.hidden = true;
        }
    }

    /// Asks the user of the editor about the card that is open; nothing where they cannot be asked.
    pub(super) async fn ask(&self, card: Value, options: Value) -> Option<String> {
        let params = json!({"sessionId": self.session(), "toolCall": card, "options": options});
        let said = self.client.ask("session/request_permission", &params).await?;
        let outcome = &said["outcome"];
        match outcome["outcome"].as_str()? {
            "selected" => Some(outcome["optionId"].as_str()?.to_owned()),
            "cancelled" => Some(String::new()),
            _ => None,
        }
    }

    pub(super) fn update_card(&self, mut card: Value) {
        card["sessionUpdate"] = "tool_call_update".into();
        self.update(&card);
    }

    /// A remark of the host.
    pub(super) fn note(&self, text: &str) {
        self.say("agent_thought_chunk", &format!("({})\n", visible_line(text)));
    }

    /// Hunks as the editor shows them.
    pub(super) fn diffs(&self, hunks: &[Hunk]) -> Vec<Value> {
        let diff = |hunk: &Hunk| {
            let path = self.place(&hunk.path)?;
            Some(json!({"type": "diff", "path": path, "oldText": hunk.old, "newText": hunk.new}))
        };
        hunks.iter().filter_map(diff).collect()
    }

    fn say(&self, kind: &str, text: &str) {
        self.update(&json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}));
    }

    fn open_card(&self, call: &RequestedCall) {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        let diffs = self.diffs(&hunks_of(&arguments));
        let locations: Vec<Value> = ["path", "from", "to"]
            .into_iter()
            .filter_map(|key| self.place(arguments[key].as_str()?))
            .map(|path| json!({ "path": path }))
            .collect();
        let id = {
            let mut shown = self.shown();
            shown.cards += 1;
            let id = format!("card-{}", shown.cards);
            shown.card = Some(Card {
                id: id.clone(),
                call_id: call.id.clone(),
                diffs: diffs.clone(),
                output: String::new(),
                output_shown: 0,
                hidden: false,
            });
            id
        };
        self.update(&json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": cards::call(call), "kind": kind(&call.name),
            "status": "in_progress", "locations": locations, "content": diffs, "rawInput": arguments,
        }));
    }

    fn close_card(&self, call: &RequestedCall, text: &str, is_error: bool) {
        let is_open = self.shown().card.as_ref().is_some_and(|card| card.call_id == call.id);
        if !is_open {
            self.open_card(call);
        }
        let Some(mut card) = self.shown().card.take() else { return };
        let reply: Value = serde_json::from_str(text).unwrap_or_default();
        if card.diffs.is_empty() && reply["value"]["created"] == true {
            card.diffs = self.diffs(&created(call));
        }
        let mut content = std::mem::take(&mut card.diffs);
        if card.hidden && !is_error {
            content = vec![text_content("(what came back is not shown here)")];
        } else if content.is_empty() || is_error {
            content.push(text_content(&first_part(&gist(&reply).unwrap_or_else(|| text.to_owned()))));
        }
        let status = if is_error { "failed" } else { "completed" };
        self.update_card(json!({"toolCallId": card.id, "status": status, "content": content}));
    }

    fn output(&self, call_id: &str, text: &str) {
        let mut shown = self.shown();
        let Some(card) = shown.card.as_mut().filter(|card| card.call_id == call_id) else { return };
        let left = LONGEST_TEXT.saturating_sub(card.output.len());
        card.output.push_str(&text[..text.floor_char_boundary(left)]);
        let is_first = card.output_shown == 0 && !card.output.is_empty();
        if !is_first && card.output.len() < card.output_shown + MORE_OUTPUT {
            return;
        }
        card.output_shown = card.output.len();
        let update = json!({"toolCallId": card.id, "content": [text_content(&visible(&card.output))]});
        drop(shown);
        self.update_card(update);
    }

    /// What is not said yet: the host's own words, and what was truly done.
    fn last_words(&self, outcome: &Outcome) {
        let spoke = self.shown().spoke;
        let mut last = String::new();
        if outcome.by_host || !spoke {
            last.push_str(if spoke { "\n\n" } else { "" });
            last.push_str(&outcome.text);
        }
        let Ledger { files, commands, network, denied, .. } = &outcome.ledger;
        let did_something = !(files.is_empty() && commands.is_empty() && network.is_empty() && denied.is_empty());
        if did_something && !outcome.by_host {
            let lines: String = outcome.ledger.lines().iter().map(|line| format!("- {line}\n")).collect();
            last.push_str(&format!("\n\nWhat was done:\n{lines}"));
        }
        if !last.is_empty() {
            self.say("agent_message_chunk", &last);
        }
    }

    fn update(&self, update: &Value) {
        self.client.notify("session/update", &json!({"sessionId": self.session(), "update": update}));
    }

    fn session(&self) -> &str {
        self.session.get().map_or("", String::as_str)
    }

    /// Where a path of a call is on this machine, if that is in the workspace.
    fn place(&self, given: &str) -> Option<PathBuf> {
        let inside = match given.strip_prefix('@') {
            None => given,
            Some(named) => named.strip_prefix("workspace").or(named.strip_prefix("project"))?.trim_start_matches('/'),
        };
        let inside = Path::new(inside);
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        plain.then(|| self.root.join(inside).components().collect())
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Front for Screen {
    fn hear(&self, event: &Event<'_>) {
        match event {
            Event::Step { step: 1 } => self.shown().spoke = false,
            Event::Text { text } => {
                self.shown().spoke = true;
                self.say("agent_message_chunk", text);
            }
            Event::Reasoning { text } => self.say("agent_thought_chunk", text),
            Event::BeganAgain { why, wait, attempt } => {
                let wait = wait.as_secs_f64();
                self.note(&format!(
                    "what came so far counts for nothing: {why}; again in {wait:.1} s, attempt {attempt}"
                ));
            }
            Event::Note { text } => self.note(text),
            Event::Call { call } => self.open_card(call),
            Event::Output { call_id, text, .. } => self.output(call_id, text),
            Event::Result { call, text, error, .. } => self.close_card(call, text, error.is_some()),
            Event::Compacted { results, messages } => {
                self.note(&format!("{results} old result(s) and {messages} message(s) left out to save room"));
            }
            Event::Finished { outcome } => self.last_words(outcome),
            Event::Step { .. }
            | Event::CallComing { .. }
            | Event::Answered { .. }
            | Event::Waiting { .. }
            | Event::Usage { .. } => {}
        }
    }

    fn go_on<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(async move {
            let card = self.on_card(Vec::new(), json!({"title": visible_line(why), "kind": "other"}));
            let options = json!([
                {"optionId": GO_ON, "name": "Let it go on", "kind": "allow_once"},
                {"optionId": "stop", "name": "Stop", "kind": "reject_once"},
            ]);
            let said = self.ask(card, options).await?;
            Some(said == GO_ON)
        })
    }
}

const GO_ON: &str = "go-on";

/// Text in a card.
pub(super) fn text_content(text: &str) -> Value {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

/// What a person wants to see of a reply, where that is less than all of it.
fn gist(reply: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let value = &reply["value"];
    let printed = || Some(format!("{}{}", value["stdout"].as_str()?, value["stderr"].as_str()?));
    text(&reply["error"]["message"]).or_else(|| text(&value["content"])).or_else(printed)
}

fn first_part(text: &str) -> String {
    let end = text.floor_char_boundary(LONGEST_TEXT);
    let more = if end < text.len() { format!("\n… {} bytes more", text.len() - end) } else { String::new() };
    format!("{}{more}", visible(&text[..end]))
}

/// What the arguments themselves say about a change.
fn hunks_of(arguments: &Value) -> Vec<Hunk> {
    if let Some(patch) = arguments["patch"].as_str() {
        return diff::shown(&visible(patch)).hunks;
    }
    let Some(path) = arguments["path"].as_str() else { return Vec::new() };
    let text = |value: &Value, keys: [&str; 2]| keys.iter().find_map(|key| value[*key].as_str()).map(visible);
    let hunk = |edit: &Value| {
        let old = text(edit, ["oldText", "old_text"])?;
        Some(Hunk { path: path.to_owned(), line: 1, old: Some(old), new: text(edit, ["newText", "new_text"])? })
    };
    match arguments["edits"].as_array() {
        Some(edits) => edits.iter().filter_map(hunk).collect(),
        None => hunk(arguments).into_iter().collect(),
    }
}

/// A file that was not there before.
fn created(call: &RequestedCall) -> Vec<Hunk> {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let (Some(path), Some(content)) = (arguments["path"].as_str(), arguments["content"].as_str()) else {
        return Vec::new();
    };
    vec![Hunk { path: path.to_owned(), line: 1, old: None, new: first_part(content) }]
}

/// What an editor has a picture for.
pub(super) fn kind(tool: &str) -> &'static str {
    match tool.strip_prefix("fs.").unwrap_or(tool) {
        "read_file" | "read" | "list_directory" | "list_dir" | "list" | "get_file_info" | "list_changes"
        | "show_change" => "read",
        "search_files" | "search" | "find_files" => "search",
        "write_file" | "write" | "append_file" | "edit_file" | "apply_patch" | "copy_file" | "create_directory"
        | "undo" | "redo" => "edit",
        "delete_file" => "delete",
        "move_file" => "move",
        "run_code" => "execute",
        "web_fetch" | "web_search" => "fetch",
        _ => "other",
    }
}
