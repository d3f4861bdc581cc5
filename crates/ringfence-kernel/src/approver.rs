//! Approvers: who approval requests are sent to.
//!
//! Not here: how a person is asked. A frontend brings its own `Approver`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::approval::{ApprovalDecision, ApprovalRequest};
use crate::preset::Preset;
use crate::verdict::PolicyLayer;

/// Puts a request to a person and waits for the answer. It is dropped when another frontend was first, when the time is
/// over and when the call was cancelled.
///
/// An approver that approves what a client may approve for its user, and denies the rest:
///
/// ```
/// use std::future::{Future, ready};
/// use std::pin::Pin;
///
/// use ringfence_kernel::{
///     Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance, Principal,
/// };
///
/// #[derive(Debug)]
/// struct ClientApprover;
///
/// impl Approver for ClientApprover {
///     fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
///         let response =
///             ApprovalResponse { approved: request.assurance <= Assurance::Relayed, ..ApprovalResponse::default() };
///         let approval = Approval { assurance: Assurance::Relayed, by: Some(Principal::person("client user")) };
///         Box::pin(ready(ApproverReply::Decided(ApprovalDecision { response, approval })))
///     }
/// }
/// ```
pub trait Approver: Send + Sync + fmt::Debug {
    /// Asks about one request. Resolves with the reply; dropping the future withdraws the request.
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>>;

    /// Asks about a call that cannot be suspended: what its program left exists in this call only. A deferred answer
    /// means here that the caller does not wait any longer.
    fn ask_in_call<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        self.ask(request)
    }
}

/// An approver's reply.
#[derive(Clone, Debug)]
pub enum ApproverReply {
    /// An answer, which ends the request.
    Decided(ApprovalDecision),
    /// The answer comes later: the caller gets a token to resume the call with.
    Deferred,
    /// As `Deferred`, but only this process can resume the call: the request ends with it.
    DeferredInProcess,
}

/// No approver is available, so nothing is approved.
#[derive(Clone, Debug)]
pub struct DenyApprover {
    /// Advice for the caller, where a looser preset would allow the call.
    pub advice: String,
}

impl Approver for DenyApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        let reason = match (request.layer, request.rule.as_str()) {
            (PolicyLayer::Preset, Preset::ASK_RULE) => format!("no approver available; {}", self.advice),
            _ => "no approver available; run interactively to approve".to_owned(),
        };
        Box::pin(std::future::ready(ApproverReply::Decided(ApprovalDecision::automatic_denial(reason))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::{ApprovalRequest, Approver, ApproverReply, DenyApprover, PolicyLayer};
    use crate::preview::Preview;
    use crate::verdict::Assurance;

    async fn denial_reason(layer: PolicyLayer, rule: &str) -> String {
        let approver = DenyApprover { advice: "try another preset".to_owned() };
        let request = ApprovalRequest {
            id: "a".to_owned(),
            step_id: "1".to_owned(),
            session: "s".to_owned(),
            principal: "p".to_owned(),
            agent: None,
            tool: "t".to_owned(),
            args: serde_json::Value::Null,
            reason: String::new(),
            rule: rule.to_owned(),
            layer,
            assurance: Assurance::Relayed,
            preview: Preview::default(),
            grant: None,
            suspended: false,
            opened: SystemTime::UNIX_EPOCH,
            expires: SystemTime::UNIX_EPOCH,
        };
        let ApproverReply::Decided(answered) = approver.ask(&request).await else { panic!("the reply was deferred") };
        assert!(!answered.response.approved);
        assert_eq!(answered.approval.assurance, Assurance::None);
        answered.response.reason.unwrap()
    }

    #[tokio::test]
    async fn the_deny_approver_suggests_another_preset_only_where_it_would_help() {
        assert!(denial_reason(PolicyLayer::Preset, "preset ask").await.ends_with("; try another preset"));
        for (layer, rule) in
            [(PolicyLayer::Preset, "secret"), (PolicyLayer::Managed, "preset ask"), (PolicyLayer::User, "preset ask")]
        {
            assert!(denial_reason(layer, rule).await.ends_with("; run interactively to approve"), "{layer:?} {rule}");
        }
    }
}
