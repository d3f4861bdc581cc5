//! Who may do what.
//!
//! A `Ticket` proves that one call was allowed. Only the road makes one and a tool cannot run without one,
//! so there is no way around the gate: the compiler keeps it, not the callers.
//!
//! Not here: how a person is asked. A front brings its own `Approver`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Assurance, Context, ErrorKind, Layer, Preset, Principal, Scope, ToolError, Touch, Verb, Verdict};

/// The right to run one planned call.
#[derive(Debug)]
pub struct Ticket<'a> {
    cx: &'a Context<'a>,
    change: String,
    approval: Option<&'a Approval>,
    touches: &'a [Touch],
}

impl<'a> Ticket<'a> {
    pub(crate) fn new(
        cx: &'a Context<'a>,
        change: String,
        approval: Option<&'a Approval>,
        touches: &'a [Touch],
    ) -> Self {
        Self { cx, change, approval, touches }
    }

    pub fn context(&self) -> &'a Context<'a> {
        self.cx
    }

    /// The id of the change that this call makes. Empty for a call that changes nothing.
    pub fn change(&self) -> &str {
        &self.change
    }

    /// Whether somebody saw this plan and said yes. Then what they saw is what must happen, and a target
    /// that moved meanwhile is a conflict.
    pub fn approved(&self) -> bool {
        self.approval.is_some()
    }

    /// Who said yes, and how sure that is.
    pub fn approval(&self) -> Option<&'a Approval> {
        self.approval
    }

    /// Whether it was decided that something may go for good: the plan said so, and nothing else is meant by a yes.
    pub fn may_lose(&self) -> bool {
        self.touches.iter().any(|touch| touch.verb == Verb::Lose)
    }

    /// What the plan said that it touches: the policy judged this, and nothing else.
    pub fn touches(&self) -> &'a [Touch] {
        self.touches
    }

    /// To be called right before the world changes. An error means that nobody waits any more: stop.
    pub fn commit(&self) -> Result<(), ToolError> {
        self.cx.check()?;
        self.cx.signal().commit()
    }
}

/// What a person is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequest {
    pub id: String,
    /// The call that waits.
    pub step_id: String,
    pub session: String,
    /// Whose call it is. They never answer it.
    pub principal: String,
    pub agent: Option<String>,
    pub tool: String,
    /// In the words of whoever calls, which is a model.
    pub args: Value,
    pub reason: String,
    /// The rule that wants it asked.
    pub rule: String,
    /// Whose rule it is.
    pub layer: Layer,
    /// What an answer must at least be.
    pub assurance: Assurance,
    /// What would happen, as text.
    pub preview: String,
    /// The same in one line.
    pub summary: String,
    /// The preview shows what is or shall be in a secret.
    pub secret: bool,
    /// What the preview showed; another one is another request.
    pub fingerprint: String,
    /// The very rule that an answer to be remembered adds, where one may be added.
    pub grant: Option<String>,
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
    pub fn relayed(&self) -> Self {
        if !self.secret {
            return self.clone();
        }
        Self { preview: self.summary.clone(), args: Value::Null, secret: false, ..self.clone() }
    }
}

/// What they said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalResponse {
    pub approved: bool,
    /// Arguments to use instead of the ones asked about.
    #[serde(default)]
    pub modified_args: Option<Value>,
    /// Allow the same from now on, by the rule that the request shows.
    #[serde(default)]
    pub remember: bool,
    #[serde(default)]
    pub reason: Option<String>,
}

/// An answer, and what the front that brings it knows about who gave it. None of this comes from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    pub response: ApprovalResponse,
    pub approval: Approval,
}

impl Answered {
    /// A no that nobody said.
    pub fn no(reason: String) -> Self {
        let response = ApprovalResponse { reason: Some(reason), ..ApprovalResponse::default() };
        Self { response, approval: Approval { assurance: Assurance::None, by: None } }
    }
}

/// Who said yes, and how sure that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub assurance: Assurance,
    /// Where it is known who. They need the scope to approve.
    pub by: Option<Principal>,
}

/// What an answer comes to, once it is known whether it counts.
pub(crate) enum Answer {
    Yes(Approval),
    /// Yes, and from now on.
    Always(Approval),
    Changed(String, Approval),
    No(ToolError),
}

/// Which question an answer is to.
pub(crate) struct Asker<'a> {
    pub(crate) verdict: &'a Verdict,
    /// Who asked.
    pub(crate) principal: &'a Principal,
    /// Whether the answer may be remembered.
    pub(crate) may_grant: bool,
}

impl Answer {
    pub(crate) fn of(answered: Answered, asker: &Asker<'_>) -> Self {
        let Answered { response, approval } = answered;
        let verdict = asker.verdict;
        let no = |reason: &str| {
            let and = if reason.is_empty() { "" } else { ", and " };
            let message = format!("not approved: {}{and}{reason}", verdict.reason);
            Self::No(explained(ToolError::new(ErrorKind::ApprovalDenied, message), verdict))
        };
        if !response.approved {
            return no(response.reason.as_deref().unwrap_or_default());
        }
        if let Some(stranger) = approval.by.as_ref().filter(|by| !by.may(Scope::Approve)) {
            return no(&format!("`{}` may not approve calls", stranger.name));
        }
        if let Some(own) = approval.by.as_ref().filter(|by| by.name == asker.principal.name) {
            return no(&format!("`{}` cannot approve a call of its own", own.name));
        }
        if approval.assurance < verdict.assurance {
            return no(match verdict.assurance {
                Assurance::Person => "the answer must be a person's at ringfence's own terminal or page",
                _ => "the answer must come from somebody",
            });
        }
        let by_person = approval.assurance == Assurance::Person;
        match (response.modified_args, response.remember) {
            (None, false) => Self::Yes(approval),
            (Some(_), _) if !by_person => {
                no("only a person at ringfence's own terminal or page may change the arguments")
            }
            (_, true) if !by_person => no("only a person at ringfence's own terminal or page may allow it for good"),
            (Some(_), true) => no("what is allowed for good is the call as it was shown, and not a changed one"),
            (None, true) if !asker.may_grant => no("it cannot be allowed for good"),
            (None, true) => Self::Always(approval),
            (Some(args), false) => Self::Changed(args.to_string(), approval),
        }
    }
}

/// An error with the rule that led to it, for programs.
pub(crate) fn explained(error: ToolError, verdict: &Verdict) -> ToolError {
    let error = error.detail("rule", &*verdict.rule).detail("layer", verdict.layer.name());
    match &verdict.grant {
        Some(grant) => error.detail("grant", grant.as_str()),
        None => error,
    }
}

/// What an approver has to say.
#[derive(Clone, Debug)]
pub enum Word {
    Now(Answered),
    /// The answer comes later: the caller gets a token that brings the call back.
    Later,
}

/// Puts a request to a person and waits for the answer. It is dropped when another front was first, when the time is
/// over and when the call was cancelled.
pub trait Approver: Send + Sync + fmt::Debug {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>>;
}

/// Nobody is there to be asked, so nothing is approved.
#[derive(Clone, Debug)]
pub struct Nobody {
    /// What the caller can do instead, where a looser preset would do.
    pub advice: String,
}

impl Approver for Nobody {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        let reason = match (request.layer, request.rule.as_str()) {
            (Layer::Preset, Preset::ASKS) => format!("nobody is here to approve it; {}", self.advice),
            _ => "nobody is here to approve it; a person has to do this".to_owned(),
        };
        Box::pin(std::future::ready(Word::Now(Answered::no(reason))))
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

    use super::{ApprovalRequest, Approver, Assurance, Layer, Nobody, Word};

    async fn said(layer: Layer, rule: &str) -> String {
        let nobody = Nobody { advice: "try another preset".to_owned() };
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
            opened: SystemTime::UNIX_EPOCH,
            expires: SystemTime::UNIX_EPOCH,
        };
        let Word::Now(answered) = nobody.ask(&request).await else { panic!("nobody answers later") };
        assert!(!answered.response.approved);
        assert_eq!(answered.approval.assurance, Assurance::None);
        answered.response.reason.unwrap()
    }

    #[tokio::test]
    async fn nobody_advises_another_preset_only_where_it_would_help() {
        assert!(said(Layer::Preset, "preset ask").await.ends_with("; try another preset"));
        for (layer, rule) in [(Layer::Preset, "secret"), (Layer::Managed, "preset ask"), (Layer::User, "preset ask")] {
            assert!(said(layer, rule).await.ends_with("; a person has to do this"), "{layer:?} {rule}");
        }
    }
}
