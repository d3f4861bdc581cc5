//! Asking through an editor.
//!
//! An editor can answer by itself, so its word is a relayed one: it is asked about what such a word is enough for, and
//! nothing that it says is remembered or changes a call. Everything else waits for a person at ringfence's own terminal
//! or page, and the card says how they answer.

use std::collections::BTreeSet;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use ringfence_kernel::{
    Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, Assurance, Principal, Scope, Word,
};
use serde_json::{Value, json};

use super::diff;
use super::screen::{Screen, kind, text_content};

/// Bytes of a preview that an editor is sent.
const LONGEST_PREVIEW: usize = 256 << 10;

const ALLOW: &str = "allow";

/// Asks whoever sits at the editor.
#[derive(Debug)]
pub(super) struct ThroughEditor {
    pub(super) screen: Arc<Screen>,
}

impl Approver for ThroughEditor {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        Box::pin(async move {
            let question = Question::of(request, &self.screen);
            let card = self.screen.on_card(question.diffs.clone(), question.card(request));
            let needs_person = request.assurance > Assurance::Relayed;
            if request.secret || (needs_person && matches!(kind(&request.tool), "read" | "search")) {
                self.screen.hide_reply();
            }
            if needs_person {
                let how = format!(
                    "this waits for a person: `ringfence approvals answer {}` at a terminal of this machine, or the page",
                    request.id
                );
                self.screen.note(&how);
                self.screen.update_card(with_text(card, &how));
                // Until somebody answered elsewhere, the time is over, or the prompt is cancelled.
                return pending().await;
            }
            self.screen.update_card(card.clone());
            let options = json!([
                {"optionId": ALLOW, "name": "Allow once", "kind": "allow_once"},
                {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
            ]);
            let said = self.screen.ask(card.clone(), options).await;
            let answered = answer(said.as_deref());
            if answered.response.approved {
                self.screen.update_card(json!({"toolCallId": card["toolCallId"], "status": "in_progress"}));
            }
            Word::Now(answered)
        })
    }
}

/// What the editor's user said. Only a yes is a yes.
fn answer(said: Option<&str>) -> Answered {
    let reason = match said {
        Some(ALLOW) => {
            let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
            return Answered { response, approval: relayed() };
        }
        None => "the editor could not ask its user",
        Some("") => "the editor dismissed the request; no person is known to have answered",
        Some(_) => return Answered { response: ApprovalResponse::default(), approval: relayed() },
    };
    Answered::no(reason.to_owned())
}

fn relayed() -> Approval {
    let by = Principal { name: "the user of the editor".to_owned(), scopes: BTreeSet::from([Scope::Approve]) };
    Approval { assurance: Assurance::Relayed, by: Some(by) }
}

/// A request, as a card shows it.
struct Question {
    words: String,
    diffs: Vec<Value>,
}

impl Question {
    fn of(request: &ApprovalRequest, screen: &Screen) -> Self {
        let request = request.relayed();
        let asks = format!("Ringfence asks, because {}:\n\n", request.reason);
        let end = request.preview.floor_char_boundary(LONGEST_PREVIEW);
        if end < request.preview.len() {
            let more = request.preview.len() - end;
            let rest = format!("\n… {more} bytes more: `ringfence approvals show {}`", request.id);
            return Self { words: format!("{asks}{}{rest}", &request.preview[..end]), diffs: Vec::new() };
        }
        let shown = diff::shown(&request.preview);
        let diffs = screen.diffs(&shown.hunks);
        // A file outside of the workspace has no place in the editor: all of it is words then.
        match diffs.len() == shown.hunks.len() {
            true => Self { words: asks + &shown.words, diffs },
            false => Self { words: asks + &request.preview, diffs: Vec::new() },
        }
    }

    fn card(&self, request: &ApprovalRequest) -> Value {
        let mut content = vec![text_content(&self.words)];
        content.extend(self.diffs.iter().cloned());
        json!({"title": request.summary, "kind": kind(&request.tool), "status": "pending", "content": content})
    }
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

    use super::answer;

    #[test]
    fn only_a_yes_is_a_yes() {
        let cases =
            [(Some("allow"), true), (Some("reject"), false), (Some(""), false), (Some("always"), false), (None, false)];
        for (said, approved) in cases {
            let answered = answer(said);
            assert_eq!(answered.response.approved, approved, "{said:?}");
            assert!(answered.approval.assurance < Assurance::Person, "{said:?}");
            assert!(answered.response.modified_args.is_none() && !answered.response.remember);
        }
    }
}
