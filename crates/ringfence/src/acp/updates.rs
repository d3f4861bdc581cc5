//! ACP session updates: streamed text, reasoning and tool calls.
//!
//! Calls are made one at a time, so there is one card that is open. Cards have ids of ours: a model may use an id twice.
//! Paths are absolute here, because the protocol wants it so and the editor is the user's own; no model sees them.
//!
//! Not here: asking (`permission.rs`).

use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::{MutexGuard, OnceLock};

use ringfence_agent::{
    AgentEvent, AgentObserver, AgentOutcome, Ledger, RequestedCall, ToolResultSummary, TranscriptMessage,
};
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ToolReply, WORKSPACE_MOUNTS, sanitize_line, sanitize_text};
use serde_json::{Value, json};

use crate::acp::connection::AcpClientConnection;
use crate::acp::diff::{self, AcpHunk};
use crate::agent::cards;

/// Bytes of a reply or of a program's output that a card shows.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// The output of a program is shown again when there is so much more of it.
const OUTPUT_STEP: usize = 512;

/// The side of a session that an editor sees.
#[derive(Debug)]
pub(super) struct AcpSessionUpdates {
    client: AcpClientConnection,
    /// The workspace.
    root: PathBuf,
    session: OnceLock<String>,
    state: Mutex<AcpUpdateState>,
}

#[derive(Debug, Default)]
struct AcpUpdateState {
    call_count: u64,
    current_call: Option<AcpToolCall>,
    /// The model sent text in this prompt.
    has_text: bool,
}

/// A call on the screen.
#[derive(Debug)]
struct AcpToolCall {
    id: String,
    call_id: String,
    diffs: Vec<Value>,
    output: String,
    output_shown: usize,
    /// The result is for the model alone.
    hidden: bool,
}

/// The result of a call, for its card.
struct AcpToolResult<'a> {
    text: &'a str,
    is_error: bool,
    /// The call created a file.
    created: bool,
}

impl AcpSessionUpdates {
    pub(super) fn new(client: AcpClientConnection, root: PathBuf) -> Self {
        Self { client, root, session: OnceLock::new(), state: Mutex::default() }
    }

    /// From now on it is known which session this is.
    pub(super) fn set_session(&self, session: &str) {
        let _ = self.session.set(session.to_owned());
    }

    /// Replays a transcript.
    pub(super) fn replay(&self, messages: &[TranscriptMessage]) {
        let mut calls: Vec<RequestedCall> = Vec::new();
        for message in messages {
            match message {
                TranscriptMessage::User { text } => self.send_chunk("user_message_chunk", text),
                TranscriptMessage::Assistant { text, calls: asked, .. } => {
                    if !text.is_empty() {
                        self.send_chunk("agent_message_chunk", text);
                    }
                    calls.clone_from(asked);
                }
                TranscriptMessage::Tool { call_id, text, is_error, summary, .. } => {
                    if let Some(call) = calls.iter().find(|call| call.id == *call_id) {
                        self.start_tool_call(call);
                        // It is no longer known what of it was secret.
                        if matches!(tool_kind(&call.name), "read" | "search") {
                            self.hide_reply();
                        }
                        let shown = summary.text.as_ref().unwrap_or(text);
                        self.finish_tool_call(
                            call,
                            AcpToolResult { text: shown, is_error: *is_error, created: summary.created },
                        );
                    }
                }
            }
        }
    }

    /// The card of the call that is made now, with what is known about it since.
    pub(super) fn tool_call_update(&self, diffs: Vec<Value>, fields: Value) -> Value {
        let mut shown = self.state();
        let mut update = fields;
        update["toolCallId"] = match &mut shown.current_call {
            Some(card) => {
                if !diffs.is_empty() {
                    card.diffs = diffs;
                }
                card.id.as_str().into()
            }
            None => {
                shown.call_count += 1;
                format!("card-{}", shown.call_count).into()
            }
        };
        update
    }

    /// Hides the result of the current call: an editor stores what it shows.
    pub(super) fn hide_reply(&self) {
        if let Some(card) = &mut self.state().current_call {
            card.hidden = true;
        }
    }

    /// Asks the user of the editor about the card that is open; nothing where they cannot be asked.
    pub(super) async fn request_permission(&self, card: Value, options: Value) -> Option<String> {
        let params = json!({"sessionId": self.session(), "toolCall": card, "options": options});
        let reply = self.client.request("session/request_permission", &params).await?;
        let outcome = &reply["outcome"];
        match outcome["outcome"].as_str()? {
            "selected" => Some(outcome["optionId"].as_str()?.to_owned()),
            "cancelled" => Some(String::new()),
            _ => None,
        }
    }

    pub(super) fn send_tool_call_update(&self, mut card: Value) {
        card["sessionUpdate"] = "tool_call_update".into();
        self.send_update(&card);
    }

    /// A remark of the host.
    pub(super) fn note(&self, text: &str) {
        self.send_chunk("agent_thought_chunk", &format!("({})\n", sanitize_line(text)));
    }

    /// Hunks as the editor shows them.
    pub(super) fn diff_contents(&self, hunks: &[AcpHunk]) -> Vec<Value> {
        let diff = |hunk: &AcpHunk| {
            let path = self.host_path(&hunk.path)?;
            Some(json!({"type": "diff", "path": path, "oldText": hunk.old, "newText": hunk.new}))
        };
        hunks.iter().filter_map(diff).collect()
    }

    fn send_chunk(&self, kind: &str, text: &str) {
        self.send_update(&json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}));
    }

    fn start_tool_call(&self, call: &RequestedCall) {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        let diffs = self.diff_contents(&argument_hunks(&arguments));
        let locations: Vec<Value> = ["path", "from", "to"]
            .into_iter()
            .filter_map(|key| self.host_path(arguments[key].as_str()?))
            .map(|path| json!({ "path": path }))
            .collect();
        let id = {
            let mut shown = self.state();
            shown.call_count += 1;
            let id = format!("card-{}", shown.call_count);
            shown.current_call = Some(AcpToolCall {
                id: id.clone(),
                call_id: call.id.clone(),
                diffs: diffs.clone(),
                output: String::new(),
                output_shown: 0,
                hidden: false,
            });
            id
        };
        self.send_update(&json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": cards::call_line(call), "kind": tool_kind(&call.name),
            "status": "in_progress", "locations": locations, "content": diffs, "rawInput": arguments,
        }));
    }

    fn finish_tool_call(&self, call: &RequestedCall, result: AcpToolResult<'_>) {
        let AcpToolResult { text, is_error, created } = result;
        let is_open = self.state().current_call.as_ref().is_some_and(|card| card.call_id == call.id);
        if !is_open {
            self.start_tool_call(call);
        }
        let Some(mut card) = self.state().current_call.take() else { return };
        if card.diffs.is_empty() && created {
            card.diffs = self.diff_contents(&created_file_hunks(call));
        }
        let mut content = std::mem::take(&mut card.diffs);
        if card.hidden && !is_error {
            content = vec![text_content("(result not shown)")];
        } else if content.is_empty() || is_error {
            content.push(text_content(&truncate_text(text)));
        }
        let status = if is_error { "failed" } else { "completed" };
        self.send_tool_call_update(json!({"toolCallId": card.id, "status": status, "content": content}));
    }

    fn append_output(&self, call_id: &str, text: &str) {
        let mut shown = self.state();
        let Some(card) = shown.current_call.as_mut().filter(|card| card.call_id == call_id) else { return };
        let left = MAX_TEXT_BYTES.saturating_sub(card.output.len());
        card.output.push_str(&text[..text.floor_char_boundary(left)]);
        let is_first = card.output_shown == 0 && !card.output.is_empty();
        if !is_first && card.output.len() < card.output_shown + OUTPUT_STEP {
            return;
        }
        card.output_shown = card.output.len();
        let update = json!({"toolCallId": card.id, "content": [text_content(&sanitize_text(&card.output))]});
        drop(shown);
        self.send_tool_call_update(update);
    }

    /// Sends the rest: the host's own text, and the recorded effects.
    fn send_summary(&self, outcome: &AgentOutcome) {
        let spoke = self.state().has_text;
        let mut last = String::new();
        if outcome.by_host || !spoke {
            last.push_str(if spoke { "\n\n" } else { "" });
            last.push_str(&outcome.text);
        }
        let Ledger { files, commands, network, denied, .. } = &outcome.ledger;
        let did_something = !(files.is_empty() && commands.is_empty() && network.is_empty() && denied.is_empty());
        if did_something && !outcome.by_host {
            let lines: String = outcome.ledger.lines().iter().map(|line| format!("- {line}\n")).collect();
            last.push_str(&format!("\n\nActions taken:\n{lines}"));
        }
        if !last.is_empty() {
            self.send_chunk("agent_message_chunk", &last);
        }
    }

    fn send_update(&self, update: &Value) {
        self.client.notify("session/update", &json!({"sessionId": self.session(), "update": update}));
    }

    fn session(&self) -> &str {
        self.session.get().map_or("", String::as_str)
    }

    /// Host path of a call's path, if that is in the workspace.
    fn host_path(&self, given: &str) -> Option<PathBuf> {
        let inside = match given.strip_prefix('@') {
            None => given,
            Some(named) => WORKSPACE_MOUNTS.iter().find_map(|alias| named.strip_prefix(alias))?.trim_start_matches('/'),
        };
        let inside = Path::new(inside);
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        plain.then(|| self.root.join(inside).components().collect())
    }

    fn state(&self) -> MutexGuard<'_, AcpUpdateState> {
        self.state.lock()
    }
}

impl AgentObserver for AcpSessionUpdates {
    fn on_event(&self, event: &AgentEvent<'_>) {
        match event {
            AgentEvent::Step { step: 1 } => self.state().has_text = false,
            AgentEvent::Text { text } => {
                self.state().has_text = true;
                self.send_chunk("agent_message_chunk", text);
            }
            AgentEvent::Reasoning { text } => self.send_chunk("agent_thought_chunk", text),
            AgentEvent::Retrying { why, wait, attempt } => {
                let wait = wait.as_secs_f64();
                self.note(&format!(
                    "the partial response was discarded: {why}; retrying in {wait:.1} s, attempt {attempt}"
                ));
            }
            AgentEvent::Note { text } => self.note(text),
            AgentEvent::Call { call } => self.start_tool_call(call),
            AgentEvent::Output { call_id, text, .. } => self.append_output(call_id, text),
            AgentEvent::Result { call, reply, .. } => {
                let ToolResultSummary { created, text } = ToolResultSummary::from_reply(reply);
                let text = text.or_else(|| file_contents(reply));
                let text = text.as_ref().unwrap_or(&reply.text);
                self.finish_tool_call(call, AcpToolResult { text, is_error: reply.outcome.is_err(), created });
            }
            AgentEvent::Compacted { results, messages } => {
                self.note(&cards::compaction_note(*results, *messages));
            }
            AgentEvent::Finished { outcome } => self.send_summary(outcome),
            AgentEvent::Step { .. }
            | AgentEvent::CallStarted { .. }
            | AgentEvent::ResponseComplete { .. }
            | AgentEvent::AwaitingApproval { .. }
            | AgentEvent::Usage { .. } => {}
        }
    }

    fn confirm_continue<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(async move {
            let card = self.tool_call_update(Vec::new(), json!({"title": sanitize_line(why), "kind": "other"}));
            let options = json!([
                {"optionId": CONTINUE_OPTION, "name": "Continue", "kind": "allow_once"},
                {"optionId": "stop", "name": "Stop", "kind": "reject_once"},
            ]);
            let reply = self.request_permission(card, options).await?;
            Some(reply == CONTINUE_OPTION)
        })
    }
}

const CONTINUE_OPTION: &str = "go-on";

/// Text in a card.
pub(super) fn text_content(text: &str) -> Value {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

/// The contents of a file that was read.
fn file_contents(reply: &ToolReply) -> Option<String> {
    let value = reply.outcome.as_ref().ok()?.to_value();
    value["content"].as_str().map(str::to_owned)
}

fn truncate_text(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT_BYTES);
    let more = if end < text.len() { format!("\n… {} more bytes", text.len() - end) } else { String::new() };
    format!("{}{more}", sanitize_text(&text[..end]))
}

/// Hunks from the arguments of a call.
fn argument_hunks(arguments: &Value) -> Vec<AcpHunk> {
    if let Some(patch) = arguments["patch"].as_str() {
        return diff::parse_diffs(&sanitize_text(patch)).hunks;
    }
    let Some(path) = arguments["path"].as_str() else { return Vec::new() };
    let text = |value: &Value, keys: [&str; 2]| keys.iter().find_map(|key| value[*key].as_str()).map(sanitize_text);
    let hunk = |edit: &Value| {
        let old = text(edit, ["oldText", "old_text"])?;
        Some(AcpHunk { path: path.to_owned(), line: 1, old: Some(old), new: text(edit, ["newText", "new_text"])? })
    };
    match arguments["edits"].as_array() {
        Some(edits) => edits.iter().filter_map(hunk).collect(),
        None => hunk(arguments).into_iter().collect(),
    }
}

/// A file that was not there before.
fn created_file_hunks(call: &RequestedCall) -> Vec<AcpHunk> {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let (Some(path), Some(content)) = (arguments["path"].as_str(), arguments["content"].as_str()) else {
        return Vec::new();
    };
    vec![AcpHunk { path: path.to_owned(), line: 1, old: None, new: truncate_text(content) }]
}

/// The ACP kind of a tool, which editors have an icon for.
pub(super) fn tool_kind(tool: &str) -> &'static str {
    match tool.strip_prefix("fs.").unwrap_or(tool) {
        "read_file" | "read" | "list_directory" | "list_dir" | "list" | "get_file_info" | "list_changes"
        | "show_change" => "read",
        "search_files" | "search" | "find_files" => "search",
        "write_file" | "write" | "append_file" | "edit_file" | "apply_patch" | "copy_file" | "create_directory"
        | "undo" | "redo" => "edit",
        "delete_file" => "delete",
        "move_file" => "move",
        "run_code"
        | "Bash"
        | "exec_command"
        | "run_shell_command"
        | "job_output"
        | "stop_job"
        | "TaskOutput"
        | "TaskStop"
        | "write_stdin"
        | "read_background_output"
        | "stop_background_command" => "execute",
        "web_fetch" | "web_search" => "fetch",
        _ => "other",
    }
}
