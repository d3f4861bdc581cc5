//! Approvers, their replies, and the rights of a principal.
//!
//! A `Ticket` proves that one call was allowed. Only the kernel makes one and a tool cannot run without one,
//! so there is no way around the gate: the compiler keeps it, not the callers.
//!
//! Not here: how a person is asked. A front brings its own `Approver`.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Assurance, AuthScope, CallContext, ErrorKind, PolicyAction, PolicyLayer, Preset, Principal, ResourceAccess,
    ToolError, Verdict,
};

/// The right to run one planned call.
#[derive(Debug)]
pub struct Ticket<'a> {
    cx: &'a CallContext<'a>,
    change_id: String,
    approval: Option<&'a Approval>,
    accesses: &'a [ResourceAccess],
    /// Groups of changes that turned out not to be possible.
    withheld: RefCell<Vec<(usize, ToolError)>>,
}

impl<'a> Ticket<'a> {
    pub(crate) fn new(
        cx: &'a CallContext<'a>,
        change_id: String,
        approval: Option<&'a Approval>,
        accesses: &'a [ResourceAccess],
    ) -> Self {
        Self { cx, change_id, approval, accesses, withheld: RefCell::default() }
    }

    /// The context of the call, with its limits and its cancellation.
    pub fn context(&self) -> &'a CallContext<'a> {
        self.cx
    }

    /// The id of the change that this call makes. Empty for a call that changes nothing.
    pub fn change_id(&self) -> &str {
        &self.change_id
    }

    /// Whether a person approved this plan. Then the run must do exactly what was previewed, and a target that moved
    /// meanwhile is a conflict.
    pub fn is_approved(&self) -> bool {
        self.approval.is_some()
    }

    /// The approval of this plan; `None` where the policy allowed it without one.
    pub fn approval(&self) -> Option<&'a Approval> {
        self.approval
    }

    /// Whether the decision covers permanent loss: the plan declared it, and an approval of anything else does not.
    pub fn may_lose(&self) -> bool {
        self.accesses.iter().any(|access| access.action == PolicyAction::Lose)
    }

    /// The accesses that the plan declared: the policy judged these, and nothing else.
    pub fn accesses(&self) -> &'a [ResourceAccess] {
        self.accesses
    }

    /// Says that a group of the changes that the ticket is for is not made, because it turned out that it cannot be.
    pub fn withhold(&self, group: usize, why: ToolError) {
        self.withheld.borrow_mut().push((group, why));
    }

    /// Every group that was withheld.
    pub fn withheld(&self) -> Vec<(usize, ToolError)> {
        self.withheld.borrow().clone()
    }

    /// Commits the call; call it right before the first change. An error means that the caller stopped waiting: stop.
    pub fn commit(&self) -> Result<(), ToolError> {
        self.cx.check()?;
        self.cx.commit_state().commit()
    }
}

/// An approval request, as an approver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequest {
    /// Unique ID of the request.
    pub id: String,
    /// The call that waits.
    pub step_id: String,
    /// ID of the calling session.
    pub session: String,
    /// The calling principal, who may never answer it.
    pub principal: String,
    /// Name of the agent that the principal calls for, where the dialect has agents.
    pub agent: Option<String>,
    /// Name of the tool.
    pub tool: String,
    /// The arguments as the caller wrote them.
    pub args: Value,
    /// The reason of the rule that requires approval.
    pub reason: String,
    /// The rule that wants it asked.
    pub rule: String,
    /// The layer of the rule.
    pub layer: PolicyLayer,
    /// Required assurance of the answer.
    pub assurance: Assurance,
    /// Preview of the effects, as text.
    pub preview: String,
    /// The same in one line.
    pub summary: String,
    /// The preview shows what is or shall be in a secret.
    pub secret: bool,
    /// Fingerprint of the preview; a different one makes a different request.
    pub fingerprint: String,
    /// The very rule that an answer to be remembered adds, where one may be added.
    pub grant: Option<String>,
    /// The call returned to its caller, and goes on only when the caller calls again.
    #[serde(default)]
    pub suspended: bool,
    /// The time at which approval was requested.
    #[serde(with = "time")]
    pub opened: SystemTime,
    /// Until when an answer counts.
    #[serde(with = "time")]
    pub expires: SystemTime,
}

impl ApprovalRequest {
    /// The request for a channel that others hear: of a secret only the line that says what would happen. The arguments
    /// can have its contents in them too.
    #[must_use]
    pub fn redacted_for_relay(&self) -> Self {
        if !self.secret {
            return self.clone();
        }
        Self { preview: self.summary.clone(), args: Value::Null, secret: false, ..self.clone() }
    }
}

/// An approver's response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalResponse {
    /// True for an approval, false for a denial.
    pub approved: bool,
    /// Arguments to use instead of the ones asked about.
    #[serde(default)]
    pub modified_args: Option<Value>,
    /// Allow the same from now on, by the rule that the request shows.
    #[serde(default)]
    pub remember: bool,
    /// The approver's explanation, which the caller sees.
    #[serde(default)]
    pub reason: Option<String>,
}

/// An answer, and what the front that brings it knows about who gave it. None of this comes from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    /// The answer itself.
    pub response: ApprovalResponse,
    /// The author of the answer, with the assurance of the front.
    pub approval: Approval,
}

impl ApprovalDecision {
    /// A denial that no person gave, such as a timeout.
    pub fn automatic_denial(reason: String) -> Self {
        let response = ApprovalResponse { reason: Some(reason), ..ApprovalResponse::default() };
        Self { response, approval: Approval { assurance: Assurance::None, by: None } }
    }
}

/// An approval, with its assurance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Assurance that a person gave the answer.
    pub assurance: Assurance,
    /// The approving principal, if known. They need the scope to approve.
    pub by: Option<Principal>,
}

/// An answer after the checks of who gave it and how.
pub(crate) enum ApprovalOutcome {
    Approved(Approval),
    /// Yes, and from now on.
    ApprovedAlways(Approval),
    ApprovedWithChanges(String, Approval),
    Denied(ApprovalDenial),
}

/// Why approval was not given.
#[derive(Clone, Debug)]
pub(crate) enum ApprovalDenial {
    /// The decision in words. One answer can be about several actions, and each error names its own.
    Decision(String),
    /// The same error for every action, such as that of a cancelled call.
    Error(ToolError),
}

impl ApprovalDenial {
    /// The error for the action that a verdict is about.
    pub(crate) fn error(&self, verdict: &Verdict) -> ToolError {
        match self {
            Self::Decision(words) => {
                let message = format!("{words} ({})", action_text(&verdict.reason));
                with_rule_details(ToolError::new(ErrorKind::ApprovalDenied, message), verdict)
            }
            Self::Error(error) => error.clone(),
        }
    }
}

/// The request that an answer belongs to.
pub(crate) struct ApprovalContext<'a> {
    pub(crate) verdict: &'a Verdict,
    /// The calling principal.
    pub(crate) principal: &'a Principal,
    /// Whether the answer may be remembered.
    pub(crate) may_grant: bool,
}

impl ApprovalOutcome {
    pub(crate) fn from_decision(answered: ApprovalDecision, asker: &ApprovalContext<'_>) -> Self {
        let ApprovalDecision { response, approval } = answered;
        let verdict = asker.verdict;
        if !response.approved {
            return Self::Denied(ApprovalDenial::Decision(denial_words(&response, &approval)));
        }
        let no = |why: &str| Self::Denied(ApprovalDenial::Decision(format!("not approved: {why}")));
        if let Some(unauthorized) = approval.by.as_ref().filter(|by| !by.has_scope(AuthScope::Approve)) {
            return no(&format!("`{}` may not approve calls", unauthorized.name));
        }
        if let Some(own) = approval.by.as_ref().filter(|by| by.name == asker.principal.name) {
            return no(&format!("`{}` cannot approve a call of its own", own.name));
        }
        if approval.assurance < verdict.assurance {
            return no(match verdict.assurance {
                Assurance::Person => "approval must come from a person at Ringfence's own terminal or page",
                _ => "approval must come from an approver",
            });
        }
        let by_person = approval.assurance == Assurance::Person;
        match (response.modified_args, response.remember) {
            (None, false) => Self::Approved(approval),
            (Some(_), _) if !by_person => {
                no("only a person at Ringfence's own terminal or page may change the arguments")
            }
            (_, true) if !by_person => {
                no("only a person at Ringfence's own terminal or page may grant it persistently")
            }
            (Some(_), true) => no("only the call as shown can be granted persistently, not one with changed arguments"),
            (None, true) if !asker.may_grant => no("it cannot be granted persistently"),
            (None, true) => Self::ApprovedAlways(approval),
            (Some(args), false) => Self::ApprovedWithChanges(args.to_string(), approval),
        }
    }
}

/// The message of a refusal: who refused, in their words, and which action.
pub(crate) fn denial_message(asked_for: &str, response: &ApprovalResponse, approval: &Approval) -> String {
    format!("{} ({})", denial_words(response, approval), action_text(asked_for))
}

/// Who refused, in their words.
fn denial_words(response: &ApprovalResponse, approval: &Approval) -> String {
    let reason = response.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
    let by = match approval {
        Approval { assurance: Assurance::Person, .. } => Some("the user"),
        Approval { by, .. } => by.as_ref().map(|by| by.name.as_str()),
    };
    match (by, reason) {
        (Some(by), Some(reason)) => format!("denied by {by}: \"{reason}\""),
        (Some(by), None) => format!("denied by {by}"),
        // An automatic denial: the text is the program's own.
        (None, Some(reason)) => format!("not approved: {reason}"),
        (None, None) => "not approved".to_owned(),
    }
}

/// The action of a call, from the reason for its approval request.
fn action_text(asked_for: &str) -> &str {
    asked_for.strip_prefix("this would ").unwrap_or(asked_for)
}

/// An error with the rule that led to it, for programs.
pub(crate) fn with_rule_details(error: ToolError, verdict: &Verdict) -> ToolError {
    let error = error.detail("rule", &*verdict.rule).detail("layer", verdict.layer.name());
    match &verdict.grant {
        Some(grant) => error.detail("grant", grant.as_str()),
        None => error,
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

/// Puts a request to a person and waits for the answer. It is dropped when another front was first, when the time is
/// over and when the call was cancelled.
pub trait Approver: Send + Sync + fmt::Debug {
    /// Asks about one request. Resolves with the reply; dropping the future withdraws the question.
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

/// Points in time as texts, for stores, tokens and pages.
pub(crate) mod time {
    use std::time::SystemTime;

    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_nanos(*time))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::{
        Approval, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance, DenyApprover, PolicyLayer,
        Principal, denial_message,
    };

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
            preview: String::new(),
            summary: String::new(),
            secret: false,
            fingerprint: String::new(),
            grant: None,
            suspended: false,
            opened: SystemTime::UNIX_EPOCH,
            expires: SystemTime::UNIX_EPOCH,
        };
        let ApproverReply::Decided(answered) = approver.ask(&request).await else { panic!("nobody answers later") };
        assert!(!answered.response.approved);
        assert_eq!(answered.approval.assurance, Assurance::None);
        answered.response.reason.unwrap()
    }

    #[test]
    fn a_refusal_quotes_who_refused_and_cannot_be_read_as_its_opposite() {
        let check = |assurance, by: Option<&str>, reason: Option<&str>, expected: &str| {
            let response = ApprovalResponse { reason: reason.map(str::to_owned), ..ApprovalResponse::default() };
            let approval = Approval { assurance, by: by.map(Principal::person) };
            assert_eq!(denial_message("this would delete `README.md`", &response, &approval), expected);
        };
        let (person, relayed, none) = (Assurance::Person, Assurance::Relayed, Assurance::None);
        check(
            person,
            Some("ann"),
            Some("keep the readme"),
            "denied by the user: \"keep the readme\" (delete `README.md`)",
        );
        check(person, Some("ann"), Some("  "), "denied by the user (delete `README.md`)");
        check(relayed, Some("ci"), Some("no"), "denied by ci: \"no\" (delete `README.md`)");
        check(
            none,
            None,
            Some("the approval request timed out"),
            "not approved: the approval request timed out (delete `README.md`)",
        );
        check(none, None, None, "not approved (delete `README.md`)");
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
