//! Approval requests, their answers, and what an answer comes to.
//!
//! Not here: who is asked (`approver.rs`), and what an approved call may do (`ticket.rs`).

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ErrorKind, ToolError};
use crate::preview::Preview;
use crate::principal::{AuthScope, Principal};
use crate::verdict::{Assurance, PolicyLayer, Verdict};

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
    /// Preview of the effects. Another fingerprint makes another request.
    #[serde(flatten)]
    pub preview: Preview,
    /// The very rule that an answer to be remembered adds, where one may be added.
    pub grant: Option<String>,
    /// The call returned to its caller, and goes on only when the caller calls again.
    #[serde(default)]
    pub suspended: bool,
    /// The time at which approval was requested.
    #[serde(with = "crate::timestamp")]
    pub opened: SystemTime,
    /// Until when an answer counts.
    #[serde(with = "crate::timestamp")]
    pub expires: SystemTime,
}

impl ApprovalRequest {
    /// The request for a channel that others hear: of a secret only the line that says what would happen. The arguments
    /// can have its contents in them too.
    #[must_use]
    pub fn redacted_for_relay(&self) -> Self {
        match self.preview.is_secret() {
            true => Self { preview: self.preview.redacted(), args: Value::Null, ..self.clone() },
            false => self.clone(),
        }
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

/// An answer, and what the frontend that brings it knows about its author. None of this comes from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    /// The answer itself.
    pub response: ApprovalResponse,
    /// The author of the answer, with the assurance of the frontend.
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

#[cfg(test)]
mod tests {
    use super::{Approval, ApprovalResponse, Assurance, Principal, denial_message};

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
}
