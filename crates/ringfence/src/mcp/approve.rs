//! Asking through a client.
//!
//! A client can answer by itself, so its word is a relayed one: it is asked about what such a word is enough for, and
//! nothing it says is remembered or changes a call. Everything else waits for a person at ringfence's own terminal or
//! page, and the client is told how they answer.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use ringfence_kernel::{
    Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, Assurance, Principal, Scope, Word,
};
use rmcp::RoleServer;
use rmcp::model::{
    BooleanSchema, CancelledNotification, CancelledNotificationParam, ClientResult, ElicitRequest, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationSchema, RequestId, ServerNotification, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, ServiceError};
use tokio::time::sleep;

use super::callers::{Caller, Callers};
use super::client::Road;

/// What the user is asked for.
const FIELD: &str = "approve";

/// Bytes of a preview that are sent to a client.
const LONGEST_PREVIEW: usize = 16 << 10;

/// Asks the client that made a call, where its answer counts.
#[derive(Debug)]
pub(super) struct ThroughClient {
    pub(super) callers: Callers,
    /// How long a person is waited for.
    pub(super) patience: Duration,
}

impl Approver for ThroughClient {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        Box::pin(async move {
            // A call that came back with an answer, and has another question, is not known by its first id any more.
            let Some(caller) = self.callers.find(&request.session, &request.step_id) else {
                return later(self.patience).await;
            };
            let word = async {
                match caller.client.road(request.assurance) {
                    Road::Result => Word::Later,
                    Road::Nowhere => {
                        let reason = "resources are read without asking; call the tool `read_file` instead";
                        Word::Now(Answered::no(reason.to_owned()))
                    }
                    Road::Form => Word::Now(by_form(&caller, request).await),
                    Road::Person => {
                        caller.news.notice(how_to_answer(&request.id));
                        later(self.patience).await
                    }
                }
            };
            tokio::select! {
                word = word => word,
                () = caller.gone.cancelled() => Word::Now(Answered::no("the client is gone".to_owned())),
            }
        })
    }
}

/// The client is told to come again. Only this process knows then which call it means.
async fn later(patience: Duration) -> Word {
    sleep(patience).await;
    Word::LaterInProcess
}

/// What a person does about a request that waits.
pub(super) fn how_to_answer(request: &str) -> String {
    format!("this waits for a person: `ringfence approvals answer {request}` at a terminal of this machine")
}

/// The question, for the client's user to read.
pub(super) fn question(request: &ApprovalRequest) -> ElicitRequestParams {
    let request = request.relayed();
    let end = request.preview.floor_char_boundary(LONGEST_PREVIEW);
    let mut message = format!("Ringfence asks, because {}:\n\n{}", request.reason, &request.preview[..end]);
    if end < request.preview.len() {
        let more = request.preview.len() - end;
        message.push_str(&format!("\n… {more} bytes more: `ringfence approvals show {}`", request.id));
    }
    let yes = || BooleanSchema::new().title("Allow it").description("Whether this may be done now, this once.");
    let requested_schema = ElicitationSchema::builder().required_bool_property(FIELD, |_| yes()).build_unchecked();
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }
}

/// What the client answered. Only a yes is a yes, and clients also decline without asking anyone.
pub(super) fn answer(result: &ElicitResult) -> Answered {
    let said = result.content.as_ref().and_then(|content| content.get(FIELD)).and_then(|field| field.as_bool());
    let reason = match (&result.action, said) {
        (ElicitationAction::Accept, Some(true)) => {
            let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
            return Answered { response, approval: relayed() };
        }
        (ElicitationAction::Accept, Some(false)) => {
            let response = ApprovalResponse { reason: Some("no".to_owned()), ..ApprovalResponse::default() };
            return Answered { response, approval: relayed() };
        }
        (ElicitationAction::Accept, None) => "the client accepted the request without an answer",
        (ElicitationAction::Cancel, _) => "the client dismissed the request; no person is known to have answered",
        _ => "the client declined the request; no person is known to have answered",
    };
    Answered::no(reason.to_owned())
}

fn relayed() -> Approval {
    let by = Principal { name: "the user of the MCP client".to_owned(), scopes: BTreeSet::from([Scope::Approve]) };
    Approval { assurance: Assurance::Relayed, by: Some(by) }
}

async fn by_form(caller: &Caller, request: &ApprovalRequest) -> Answered {
    let asked = ServerRequest::ElicitRequest(ElicitRequest::new(question(request)));
    match ask(&caller.peer, asked).await {
        Ok(ClientResult::ElicitResult(result)) => answer(&result),
        Ok(_) | Err(_) => Answered::no("the client could not ask its user".to_owned()),
    }
}

/// Sends a request to the client. Dropped before there is an answer, it takes the question back.
async fn ask(peer: &Peer<RoleServer>, request: ServerRequest) -> Result<ClientResult, ServiceError> {
    let handle = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    let mut open = Open { peer: peer.clone(), id: Some(handle.id.clone()) };
    let answered = handle.await_response().await;
    open.id = None;
    answered
}

/// A question that is still on the client's screen.
struct Open {
    peer: Peer<RoleServer>,
    id: Option<RequestId>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let reason = "the question is settled".to_owned();
        let notification = CancelledNotification::new(CancelledNotificationParam::new(Some(id), Some(reason)));
        let peer = self.peer.clone();
        // It ends with the connection, at the latest.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = peer.send_notification(ServerNotification::CancelledNotification(notification)).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::Assurance;
    use rmcp::model::ElicitResult;
    use serde_json::json;

    use super::answer;

    #[test]
    fn only_a_yes_is_a_yes() {
        let cases = [
            (json!({"action": "accept", "content": {"approve": true}}), true),
            (json!({"action": "accept", "content": {"approve": false}}), false),
            (json!({"action": "accept", "content": {"approve": "true"}}), false),
            (json!({"action": "accept", "content": {}}), false),
            (json!({"action": "accept"}), false),
            (json!({"action": "decline", "content": {"approve": true}}), false),
            (json!({"action": "cancel", "content": {"approve": true}}), false),
        ];
        for (said, approved) in cases {
            let result: ElicitResult = serde_json::from_value(said.clone()).unwrap();
            let answered = answer(&result);
            assert_eq!(answered.response.approved, approved, "{said}");
            assert!(answered.approval.assurance < Assurance::Person, "{said}");
            assert!(answered.response.modified_args.is_none() && !answered.response.remember);
        }
    }
}
