//! Approval through MCP elicitation.
//!
//! A client can answer by itself, so its answer is a relayed one: it is asked only where that assurance is enough, and
//! its answers are neither remembered nor change a call. Everything else waits for a person at ringfence's own terminal
//! or page, and the client gets instructions for them.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance, AuthScope,
    Principal,
};
use rmcp::RoleServer;
use rmcp::model::{
    BooleanSchema, CancelledNotification, CancelledNotificationParam, ClientResult, ElicitRequest, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationSchema, RequestId, ServerNotification, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, ServiceError};
use tokio::time::sleep;

use crate::mcp::callers::{WaitingMcpClient, WaitingMcpClients};
use crate::mcp::client_info::ApprovalChannel;

/// Field of the elicitation.
const FIELD: &str = "approve";

/// Bytes of a preview that are sent to a client.
const MAX_PREVIEW_BYTES: usize = 16 << 10;

/// Asks the client that made a call, where its answer counts.
#[derive(Debug)]
pub(super) struct ElicitationApprover {
    pub(super) callers: WaitingMcpClients,
    /// Time to wait for a person.
    pub(super) wait: Duration,
}

impl Approver for ElicitationApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        Box::pin(async move {
            // A call that came back with an answer, and has another question, is not known by its first id any more.
            let Some(caller) = self.callers.find(&request.session, &request.step_id) else {
                return defer(self.wait).await;
            };
            let reply = async {
                match caller.client.approval_channel(request.assurance) {
                    ApprovalChannel::Result => ApproverReply::Deferred,
                    ApprovalChannel::Unavailable => {
                        let reason = "resources are read without asking; call the tool `read_file` instead";
                        ApproverReply::Decided(ApprovalDecision::automatic_denial(reason.to_owned()))
                    }
                    ApprovalChannel::Form => ApproverReply::Decided(elicit(&caller, request).await),
                    ApprovalChannel::Person => {
                        caller.progress.notice(answer_instructions(&request.id));
                        defer(self.wait).await
                    }
                }
            };
            tokio::select! {
                reply = reply => reply,
                () = caller.closed.cancelled() => disconnected(),
            }
        })
    }

    /// A client that would be asked in the result of its call is not asked here: a person is.
    fn ask_in_call<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        Box::pin(async move {
            let reply = self.ask(request).await;
            match self.callers.find(&request.session, &request.step_id) {
                Some(caller) if matches!(reply, ApproverReply::Deferred) => {
                    caller.progress.notice(answer_instructions(&request.id));
                    tokio::select! {
                        reply = defer(self.wait) => reply,
                        () = caller.closed.cancelled() => disconnected(),
                    }
                }
                _ => reply,
            }
        })
    }
}

fn disconnected() -> ApproverReply {
    ApproverReply::Decided(ApprovalDecision::automatic_denial("the client disconnected".to_owned()))
}

/// Defers the call. Only this process knows then which call a retry means.
async fn defer(delay: Duration) -> ApproverReply {
    sleep(delay).await;
    ApproverReply::DeferredInProcess
}

/// Instructions for a person about a pending request.
pub(super) fn answer_instructions(request: &str) -> String {
    format!(
        "this requires a person's approval: run `ringfence approvals answer {request}` in a terminal on this machine"
    )
}

/// The question, for the client's user to read.
pub(super) fn elicitation_params(request: &ApprovalRequest) -> ElicitRequestParams {
    let request = request.redacted_for_relay();
    let preview = request.preview.text();
    let end = preview.floor_char_boundary(MAX_PREVIEW_BYTES);
    let mut message = format!("Ringfence requires approval: {}\n\n{}", request.reason, &preview[..end]);
    if end < preview.len() {
        let more = preview.len() - end;
        message.push_str(&format!("\n… {more} bytes more: `ringfence approvals show {}`", request.id));
    }
    let yes = || BooleanSchema::new().title("Allow it").description("Allow this call once.");
    let requested_schema = ElicitationSchema::builder().required_bool_property(FIELD, |_| yes()).build_unchecked();
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }
}

/// The decision of a client's answer. Only an explicit approval is one, and clients also decline by themselves.
pub(super) fn decision_from_result(result: &ElicitResult) -> ApprovalDecision {
    let value = result.content.as_ref().and_then(|content| content.get(FIELD)).and_then(|field| field.as_bool());
    let reason = match (&result.action, value) {
        (ElicitationAction::Accept, Some(true)) => {
            let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
            return ApprovalDecision { response, approval: relayed_approval() };
        }
        (ElicitationAction::Accept, Some(false)) => {
            let response = ApprovalResponse { reason: Some("no".to_owned()), ..ApprovalResponse::default() };
            return ApprovalDecision { response, approval: relayed_approval() };
        }
        (ElicitationAction::Accept, None) => "the client accepted the request without an answer",
        (ElicitationAction::Cancel, _) => "the client dismissed the request without a recorded answer",
        _ => "the client declined the request without a recorded answer",
    };
    ApprovalDecision::automatic_denial(reason.to_owned())
}

fn relayed_approval() -> Approval {
    let by = Principal { name: "the user of the MCP client".to_owned(), scopes: BTreeSet::from([AuthScope::Approve]) };
    Approval { assurance: Assurance::Relayed, by: Some(by) }
}

async fn elicit(caller: &WaitingMcpClient, request: &ApprovalRequest) -> ApprovalDecision {
    let asked = ServerRequest::ElicitRequest(ElicitRequest::new(elicitation_params(request)));
    match send_request(&caller.peer, asked).await {
        Ok(ClientResult::ElicitResult(result)) => decision_from_result(&result),
        Ok(_) | Err(_) => {
            ApprovalDecision::automatic_denial("the client could not show the approval request".to_owned())
        }
    }
}

/// Sends a request to the client. Dropped before there is an answer, it takes the question back.
async fn send_request(peer: &Peer<RoleServer>, request: ServerRequest) -> Result<ClientResult, ServiceError> {
    let handle = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    let mut open = PendingElicitation { peer: peer.clone(), id: Some(handle.id.clone()) };
    let answered = handle.await_response().await;
    open.id = None;
    answered
}

/// A question that is still on the client's screen.
struct PendingElicitation {
    peer: Peer<RoleServer>,
    id: Option<RequestId>,
}

impl Drop for PendingElicitation {
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

    use super::decision_from_result;

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
        for (value, approved) in cases {
            let result: ElicitResult = serde_json::from_value(value.clone()).unwrap();
            let answered = decision_from_result(&result);
            assert_eq!(answered.response.approved, approved, "{value}");
            assert!(answered.approval.assurance < Assurance::Person, "{value}");
            assert!(answered.response.modified_args.is_none() && !answered.response.remember);
        }
    }
}
