//! Approval through ACP permission requests.
//!
//! An editor can answer by itself, so its word is a relayed one: it is asked about what such a word is enough for, and
//! nothing that it says is remembered or changes a call. Everything else waits for a person at ringfence's own terminal
//! or page, and the card says how they answer.

use std::collections::BTreeSet;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance, AuthScope,
    DiffPart, LineDiff, Preview, PreviewBody, Principal,
};
use serde_json::{Value, json};

use crate::acp::diff;
use crate::acp::updates::{AcpSessionUpdates, text_content, tool_kind};

/// Bytes of a preview that an editor is sent.
const MAX_PREVIEW_BYTES: usize = 256 << 10;

const ALLOW: &str = "allow";

/// Requests approval from the editor's user.
#[derive(Debug)]
pub(super) struct AcpApprover {
    pub(super) updates: Arc<AcpSessionUpdates>,
}

impl Approver for AcpApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        Box::pin(async move {
            let question = PermissionRequest::from_approval(request, &self.updates);
            let card = self.updates.tool_call_update(question.diffs.clone(), question.tool_call_fields(request));
            let needs_person = request.assurance > Assurance::Relayed;
            if request.preview.is_secret() || (needs_person && matches!(tool_kind(&request.tool), "read" | "search")) {
                self.updates.hide_reply();
            }
            if needs_person {
                let how = format!(
                    "this requires a person's approval: run `ringfence approvals answer {}` in a terminal on this machine, or use the web UI",
                    request.id
                );
                self.updates.note(&how);
                self.updates.send_tool_call_update(with_text(card, &how));
                // Until another front answered, the time is over, or the prompt is cancelled.
                return pending().await;
            }
            self.updates.send_tool_call_update(card.clone());
            let options = json!([
                {"optionId": ALLOW, "name": "Allow once", "kind": "allow_once"},
                {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
            ]);
            let option = self.updates.request_permission(card.clone(), options).await;
            let answered = decision_from_option(option.as_deref());
            if answered.response.approved {
                self.updates.send_tool_call_update(json!({"toolCallId": card["toolCallId"], "status": "in_progress"}));
            }
            ApproverReply::Decided(answered)
        })
    }
}

/// The decision of the editor's user. Only an explicit approval is one.
fn decision_from_option(option: Option<&str>) -> ApprovalDecision {
    let reason = match option {
        Some(ALLOW) => {
            let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
            return ApprovalDecision { response, approval: relayed_approval() };
        }
        None => "the editor could not show the approval request",
        Some("") => "the editor dismissed the request without a recorded answer",
        Some(_) => return ApprovalDecision { response: ApprovalResponse::default(), approval: relayed_approval() },
    };
    ApprovalDecision::automatic_denial(reason.to_owned())
}

fn relayed_approval() -> Approval {
    let by = Principal { name: "the user of the editor".to_owned(), scopes: BTreeSet::from([AuthScope::Approve]) };
    Approval { assurance: Assurance::Relayed, by: Some(by) }
}

/// A request, as a card shows it.
struct PermissionRequest {
    text: String,
    diffs: Vec<Value>,
}

impl PermissionRequest {
    fn from_approval(request: &ApprovalRequest, screen: &AcpSessionUpdates) -> Self {
        let request = request.redacted_for_relay();
        let asks = format!("Ringfence requires approval: {}\n\n", request.reason);
        let preview = request.preview.text();
        let end = preview.floor_char_boundary(MAX_PREVIEW_BYTES);
        if end < preview.len() {
            let more = preview.len() - end;
            let rest = format!("\n… {more} bytes more: `ringfence approvals show {}`", request.id);
            return Self { text: format!("{asks}{}{rest}", &preview[..end]), diffs: Vec::new() };
        }
        let PreviewBody::Diff(diff) = request.preview.body() else {
            let text = preview.lines().fold(asks, |text, line| text + line + "\n");
            return Self { text, diffs: Vec::new() };
        };
        let hunks = diff::hunks_of(diff);
        let diffs = screen.diff_contents(&hunks);
        // A file outside of the workspace has no path in the editor: everything is text then.
        match diffs.len() == hunks.len() {
            true => Self { text: asks + &text_without_hunks(&request.preview, diff), diffs },
            false => Self { text: asks + &preview, diffs: Vec::new() },
        }
    }

    fn tool_call_fields(&self, request: &ApprovalRequest) -> Value {
        let mut content = vec![text_content(&self.text)];
        content.extend(self.diffs.iter().cloned());
        json!({"title": request.preview.summary(), "kind": tool_kind(&request.tool), "status": "pending", "content": content})
    }
}

/// Everything of a preview that is not in a hunk, a line each.
fn text_without_hunks(preview: &Preview, diff: &LineDiff) -> String {
    let notes = diff.parts.iter().filter_map(|part| match part {
        DiffPart::Note { text } => Some(text.as_str()),
        DiffPart::File(_) => None,
    });
    let lines = preview.lines().iter().map(String::as_str);
    std::iter::once(preview.summary()).chain(lines).chain(notes).map(|line| format!("{line}\n")).collect()
}

fn with_text(mut card: Value, text: &str) -> Value {
    if let Some(content) = card["content"].as_array_mut() {
        content.push(text_content(text));
    }
    card
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::Assurance;

    use super::decision_from_option;

    #[test]
    fn only_a_yes_is_a_yes() {
        let cases =
            [(Some("allow"), true), (Some("reject"), false), (Some(""), false), (Some("always"), false), (None, false)];
        for (option, approved) in cases {
            let answered = decision_from_option(option);
            assert_eq!(answered.response.approved, approved, "{option:?}");
            assert!(answered.approval.assurance < Assurance::Person, "{option:?}");
            assert!(answered.response.modified_args.is_none() && !answered.response.remember);
        }
    }
}
