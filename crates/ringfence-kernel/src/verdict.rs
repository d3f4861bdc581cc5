//! Verdicts: a decision, what led to it, and the assurance that an approval needs.
//!
//! Not here: who decides (`policy.rs`).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A decision, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The decision itself.
    pub decision: Decision,
    /// The rule that decided, as records name it.
    pub rule: Arc<str>,
    /// The layer of the rule.
    pub layer: PolicyLayer,
    /// Why, in words for a person and a model.
    pub reason: String,
    /// Required assurance of the answer, where approval is required.
    pub assurance: Assurance,
    /// The line of config that would make it allowed, where a user may write one.
    pub grant: Option<String>,
}

impl Verdict {
    /// The decision about a plan without accesses: its effects are unknown.
    pub(crate) fn unknown_effect() -> Self {
        Self {
            decision: Decision::Ask,
            rule: Arc::from("unknown effect"),
            layer: PolicyLayer::Preset,
            reason: "the effects of this call are unknown".to_owned(),
            assurance: Assurance::Person,
            grant: None,
        }
    }

    const REVIEW: &str = "review";

    /// Whether it is asked only because the call itself wants to be looked at.
    pub(crate) fn is_review(&self) -> bool {
        self.decision == Decision::Ask && &*self.rule == Self::REVIEW && self.grant.is_none()
    }

    /// The verdict about a call that requires a review, whatever a rule allows. A call that is asked about anyway needs at
    /// least the assurance of the review.
    pub(crate) fn requiring_review(self, ReviewRequirement { reason, assurance }: ReviewRequirement) -> Self {
        match self.decision {
            Decision::Deny => self,
            Decision::Ask => Self { assurance: self.assurance.max(assurance), ..self },
            Decision::Allow => Self {
                decision: Decision::Ask,
                rule: Arc::from(Self::REVIEW),
                reason: reason.to_owned(),
                assurance,
                grant: None,
                ..self
            },
        }
    }

    /// The larger, the stricter.
    pub fn strictness(&self) -> (Decision, Assurance) {
        (self.decision, self.assurance)
    }
}

/// Identifies the decisions of a policy for one caller: while the revision is the same, so is the decision about the same
/// access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRevision(String);

impl PolicyRevision {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The revision of a policy that decides by this one and by a state of its own.
    #[must_use]
    pub fn with_state(mut self, state: &dyn fmt::Debug) -> Self {
        self.0.push_str(&format!("; {state:?}"));
        self
    }
}

/// The strictest, and among equals the first.
pub(crate) fn strictest(verdicts: impl Iterator<Item = Verdict>) -> Option<Verdict> {
    verdicts.reduce(|strictest, next| if next.strictness() > strictest.strictness() { next } else { strictest })
}

/// The later, the stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// The call runs.
    Allow,
    /// A person must approve the call.
    Ask,
    /// The call is refused.
    Deny,
}

impl Decision {
    /// Every decision, from the loosest to the strictest.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    /// Name of the decision in config and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// Assurance that a person gave an answer. The later, the surer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Assurance {
    /// Not at all.
    None,
    /// The agent's own client says so, and could answer by itself.
    Relayed,
    /// At a terminal or a page of ours.
    Person,
}

impl Assurance {
    /// Name of the assurance in config and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Relayed => "relayed",
            Self::Person => "person",
        }
    }
}

/// The layer of a rule. The first with a matching rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyLayer {
    /// The owner of the machine's.
    Managed,
    /// Rules of the user's own config.
    User,
    /// Persistent grants.
    Grants,
    /// Rules of a trusted workspace. They cover secrets and protected paths only explicitly.
    Trusted,
    /// Defaults, where no other layer decides.
    Preset,
    /// Rules of an untrusted workspace: they are added to the others' decision, and never allow.
    Workspace,
}

impl PolicyLayer {
    /// Name of the layer in messages and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Managed => "managed",
            Self::User => "user",
            Self::Grants => "grants",
            Self::Trusted => "trusted",
            Self::Preset => "preset",
            Self::Workspace => "workspace",
        }
    }

    /// The owner of a layer's rules, as a phrase that follows its name.
    pub(crate) const fn owner_text(self) -> &'static str {
        match self {
            Self::Managed => "set by the administrator of this machine",
            Self::User => "of your config",
            Self::Grants => "that was granted",
            Self::Preset => "of the preset",
            Self::Trusted | Self::Workspace => "of the workspace's ringfence.toml",
        }
    }
}

/// A required review of a call that would be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewRequirement {
    /// In words for a person and a model.
    pub reason: &'static str,
    /// Required assurance of the answer.
    pub assurance: Assurance,
}

impl ReviewRequirement {
    /// The caller requested it.
    pub const REQUESTED_BY_CALLER: Self =
        Self { reason: "the call itself requests a review of its changes", assurance: Assurance::Relayed };
}

#[cfg(test)]
mod tests {
    use super::{Assurance, Decision, ReviewRequirement, Verdict};

    #[test]
    fn a_review_raises_the_assurance_of_what_is_asked_anyway_and_lifts_no_denial() {
        let review = ReviewRequirement { reason: "it cannot be recalled", assurance: Assurance::Person };
        for (decision, assurance, expected) in [
            (Decision::Allow, Assurance::None, (Decision::Ask, Assurance::Person)),
            (Decision::Ask, Assurance::Relayed, (Decision::Ask, Assurance::Person)),
            (Decision::Ask, Assurance::Person, (Decision::Ask, Assurance::Person)),
            (Decision::Deny, Assurance::None, (Decision::Deny, Assurance::None)),
        ] {
            let verdict = Verdict { decision, assurance, ..Verdict::unknown_effect() };
            assert_eq!(verdict.requiring_review(review).strictness(), expected, "{decision:?} {assurance:?}");
        }
    }
}
