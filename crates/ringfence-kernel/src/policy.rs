//! Policies: allow, ask or deny for a planned call.
//!
//! The policy sees what would happen, resolved, and never the arguments' text. `Preset` is the plain policy: one word
//! for the whole workspace, and a few rules behind it.
//!
//! Not here: asking (`approval.rs`), and rules that people write (`layered_rules.rs`).

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::layered_rules::strictest;
use crate::{
    Grant, LayeredRules, NET_MOUNT, PolicyAction, PolicyLayer, PolicyRule, ResourceAccess, ReviewRequirement, RuleText,
    SEARCH_MOUNT, Session, Taint, TaintSet,
};

/// Decides about plans. Where it cannot decide, it asks.
pub trait Policy: Send + Sync + fmt::Debug {
    /// The decision about one of the accesses of a plan.
    fn evaluate(&self, access: &ResourceAccess, question: &PolicyRequest<'_>) -> Verdict;

    /// The decision about the whole plan: the strictest one about any of its accesses.
    fn decide(&self, question: &PolicyRequest<'_>) -> Verdict {
        let judged = question.accesses.iter().map(|access| self.evaluate(access, question));
        strictest(judged).unwrap_or_else(Verdict::unknown_effect)
    }

    /// The narrowest rule that would let this call happen from now on, where a person may grant one.
    fn narrowest_grant(&self, _: &PolicyRequest<'_>) -> Option<RuleText> {
        None
    }

    /// From now on these grants hold, and no others. False when they did already.
    fn set_grants(&self, _: &[Grant]) -> bool {
        false
    }
}

/// A planned call, as the policy sees it.
#[derive(Debug)]
pub struct PolicyRequest<'a> {
    /// The calling session.
    pub session: &'a Session,
    /// Name of the tool.
    pub tool: &'a str,
    /// Every access of the plan.
    pub accesses: &'a [ResourceAccess],
    /// The session's taint at the time of the request.
    pub taint: TaintSet,
    /// For each taint, the number of accesses that add it.
    added_counts: [usize; Taint::ALL.len()],
}

impl<'a> PolicyRequest<'a> {
    /// A request with the session's taint at this time.
    pub fn new(session: &'a Session, tool: &'a str, accesses: &'a [ResourceAccess], taint: TaintSet) -> Self {
        let raised: Vec<Taint> = accesses.iter().filter_map(Taint::from_access).collect();
        let added_counts = Taint::ALL.map(|taint| raised.iter().filter(|raised| **raised == taint).count());
        Self { session, tool, accesses, taint, added_counts }
    }

    /// The taint that the call adds.
    pub(crate) fn added_taint(&self) -> TaintSet {
        self.added_taint_except(None)
    }

    /// The session's taint after every access but this one.
    pub(crate) fn taint_without(&self, access: &ResourceAccess) -> TaintSet {
        match self.added_taint().is_empty() {
            true => self.taint,
            false => self.added_taint_except(Taint::from_access(access)).iter().fold(self.taint, TaintSet::with),
        }
    }

    fn added_taint_except(&self, less: Option<Taint>) -> TaintSet {
        let raised = Taint::ALL.into_iter().zip(self.added_counts);
        raised.filter(|(taint, count)| *count > usize::from(less == Some(*taint))).map(|(taint, _)| taint).collect()
    }
}

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

    /// An allowed call that requires a review all the same.
    pub(crate) fn requiring_review(self, ReviewRequirement { reason, assurance }: ReviewRequirement) -> Self {
        Self {
            decision: Decision::Ask,
            rule: Arc::from(Self::REVIEW),
            reason: reason.to_owned(),
            assurance,
            grant: None,
            ..self
        }
    }

    /// The larger, the stricter.
    pub fn strictness(&self) -> (Decision, Assurance) {
        (self.decision, self.assurance)
    }
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

/// The policy that one word describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// Changes inside the workspace go ahead; secrets, protected paths and hosts are asked about.
    Edits,
    /// As `edits`, and whatever would be lost is asked about: overwriting and deleting.
    Ask,
    /// Nothing changes.
    ReadOnly,
}

impl Preset {
    /// The rule by which only this preset asks: a looser one would not.
    pub(crate) const ASK_RULE: &str = "preset ask";

    /// Every preset, from the loosest to the strictest.
    pub const ALL: [Self; 3] = [Self::Edits, Self::Ask, Self::ReadOnly];

    /// Name of the preset in config and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Edits => "edits",
            Self::Ask => "ask",
            Self::ReadOnly => "read-only",
        }
    }

    /// The preset of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Everything that the preset says, as rules.
    pub(crate) fn rules(self) -> Vec<PolicyRule> {
        let ordinary = [
            PolicyAction::List,
            PolicyAction::Read,
            PolicyAction::Create,
            PolicyAction::Overwrite,
            PolicyAction::Move,
            PolicyAction::Delete,
            PolicyAction::Run,
        ];
        let anything_else = PolicyRule {
            decision: Decision::Allow,
            actions: ordinary.to_vec(),
            ..PolicyRule::built_in("preset", None)
        };
        [
            sensitive_name_rules(),
            self.additional_rules(),
            vec![unlisted_host_rule(), search_engine_rule(), irreversible_rule(), external_tool_rule(), anything_else],
        ]
        .concat()
    }

    /// The preset's rules that a looser one does not have.
    pub(crate) fn additional_rules(self) -> Vec<PolicyRule> {
        match self {
            Self::Edits => Vec::new(),
            Self::Ask => {
                vec![PolicyRule {
                    actions: vec![PolicyAction::Overwrite, PolicyAction::Delete],
                    ..PolicyRule::built_in(Self::ASK_RULE, None)
                }]
            }
            Self::ReadOnly => vec![PolicyRule {
                decision: Decision::Deny,
                // An MCP tool cannot be known to change nothing.
                actions: PolicyAction::ALL
                    .into_iter()
                    .filter(|action| action.changes_files() || *action == PolicyAction::External)
                    .collect(),
                ..PolicyRule::built_in(
                    "preset read-only",
                    Some("and the preset `read-only` allows no changes, only listing and reading"),
                )
            }],
        }
    }

    /// The word to write instead of `read-only`, so that this is no longer denied.
    pub(crate) fn looser_preset_for(action: PolicyAction) -> Self {
        if matches!(action, PolicyAction::Overwrite | PolicyAction::Delete) { Self::Edits } else { Self::Ask }
    }
}

/// Permanent losses need approval: the journal cannot undo them.
fn irreversible_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::Lose],
        ..PolicyRule::built_in("cannot be undone", Some("and the current contents are not kept"))
    }
}

/// Effects of an MCP tool are not in the journal, whatever its annotations.
fn external_tool_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::External],
        ..PolicyRule::built_in("external", Some("which cannot be undone"))
    }
}

/// Names that deserve a second look, whatever the preset.
fn sensitive_name_rules() -> Vec<PolicyRule> {
    let changes = PolicyAction::ALL.into_iter().filter(|action| action.changes_files()).collect();
    vec![
        PolicyRule {
            actions: vec![PolicyAction::Read, PolicyAction::Overwrite, PolicyAction::Move, PolicyAction::Delete],
            secret: Some(true),
            ..PolicyRule::built_in("secret", Some("which may hold secrets"))
        },
        PolicyRule {
            actions: changes,
            protected: Some(true),
            ..PolicyRule::built_in("protected path", Some("a setting that other programs act on"))
        },
    ]
}

/// A host is reached without asking only where a rule allows it.
fn unlisted_host_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::Fetch],
        mounts: vec![NET_MOUNT.to_owned()],
        ..PolicyRule::built_in("other host", Some("a host that no rule allows"))
    }
}

/// A configured search engine is meant to be used.
fn search_engine_rule() -> PolicyRule {
    PolicyRule {
        decision: Decision::Allow,
        actions: vec![PolicyAction::Fetch],
        mounts: vec![SEARCH_MOUNT.to_owned()],
        ..PolicyRule::built_in("search", None)
    }
}

impl Policy for Preset {
    fn evaluate(&self, access: &ResourceAccess, question: &PolicyRequest<'_>) -> Verdict {
        static RULES: LazyLock<[LayeredRules; 3]> = LazyLock::new(|| Preset::ALL.map(LayeredRules::from_preset));
        let [edits, ask, read_only] = &*RULES;
        let rules = match self {
            Self::Edits => edits,
            Self::Ask => ask,
            Self::ReadOnly => read_only,
        };
        rules.evaluate(access, question)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Decision, Policy, PolicyRequest, Preset};
    use crate::{
        CallLimits, Dialect, PolicyAction, PolicyResource, Principal, ResourceAccess, Sensitivity, Session,
        SessionTaint, TaintSet, ToolCatalog,
    };

    fn access(action: PolicyAction, given: &str, resolved: Option<&str>) -> ResourceAccess {
        let resource = PolicyResource {
            mount: Arc::from("workspace"),
            requested_path: given.to_owned(),
            resolved_path: resolved.map(str::to_owned),
            display_path: given.to_owned(),
            ..PolicyResource::default()
        };
        ResourceAccess { action, resource }
    }

    fn session() -> Session {
        Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: None,
            limits: CallLimits::for_dialect(Dialect::Standard),
            catalog: ToolCatalog::default(),
            taint: SessionTaint::default(),
        }
    }

    fn decide(preset: Preset, accesses: &[ResourceAccess]) -> Decision {
        preset.decide(&PolicyRequest::new(&session(), "t", accesses, TaintSet::default())).decision
    }

    #[track_caller]
    fn check(action: PolicyAction, path: &str, [edits, ask, read_only]: [Decision; 3]) {
        let accesses = [access(action, path, None)];
        let expected = [(Preset::Edits, edits), (Preset::Ask, ask), (Preset::ReadOnly, read_only)];
        for (preset, expected) in expected {
            assert_eq!(decide(preset, &accesses), expected, "{} {path} under {}", action.as_str(), preset.name());
        }
    }

    #[test]
    fn each_preset_decides_each_action() {
        use Decision::{Allow, Ask, Deny};
        check(PolicyAction::List, "a", [Allow, Allow, Allow]);
        check(PolicyAction::Read, "a", [Allow, Allow, Allow]);
        check(PolicyAction::Create, "a", [Allow, Allow, Deny]);
        check(PolicyAction::Overwrite, "a", [Allow, Ask, Deny]);
        check(PolicyAction::Move, "a", [Allow, Allow, Deny]);
        check(PolicyAction::Delete, "a", [Allow, Ask, Deny]);
        check(PolicyAction::Lose, "a", [Ask, Ask, Deny]);
        check(PolicyAction::Read, ".env", [Ask, Ask, Ask]);
        check(PolicyAction::List, ".env", [Allow, Allow, Allow]);
        check(PolicyAction::Create, ".env", [Allow, Allow, Deny]);
        check(PolicyAction::Move, ".env", [Ask, Ask, Deny]);
        check(PolicyAction::Read, ".git/config", [Allow, Allow, Allow]);
        check(PolicyAction::Create, ".git/hooks/pre-commit", [Ask, Ask, Deny]);
        check(PolicyAction::Fetch, "docs.rs:443", [Ask, Ask, Ask]);
        check(PolicyAction::Run, "python", [Allow, Allow, Allow]);
        check(PolicyAction::Run, ".env", [Allow, Allow, Allow]);
        check(PolicyAction::Fetch, "server.pem:443", [Ask, Ask, Ask]);
        check(PolicyAction::External, "github/create_issue", [Ask, Ask, Deny]);
    }

    #[test]
    fn the_strictest_access_decides_and_the_resolved_name_counts() {
        let innocent = access(PolicyAction::Read, "notes.txt", Some("config/.env"));
        assert_eq!(decide(Preset::Edits, &[innocent]), Decision::Ask);
        let mixed = [
            access(PolicyAction::Read, "a", None),
            access(PolicyAction::Delete, "b", None),
            access(PolicyAction::Create, "c", None),
        ];
        assert_eq!(decide(Preset::Ask, &mixed), Decision::Ask);
        assert_eq!(decide(Preset::ReadOnly, &mixed), Decision::Deny);
    }

    #[test]
    fn a_preset_has_one_name() {
        for preset in Preset::ALL {
            assert_eq!(Preset::from_name(preset.name()), Some(preset));
        }
        assert_eq!(Preset::from_name("yolo"), None);
    }

    #[test]
    fn a_file_s_own_sensitivity_counts_whatever_its_name() {
        let mut linked = access(PolicyAction::Read, "notes.txt", None);
        linked.resource.sensitivity = Sensitivity { secret: true, protected: false };
        assert_eq!(decide(Preset::Edits, &[linked]), Decision::Ask);
        let mut moved = access(PolicyAction::Overwrite, "notes.txt", None);
        moved.resource.sensitivity = Sensitivity { secret: false, protected: true };
        assert_eq!(decide(Preset::Edits, &[moved]), Decision::Ask);
    }

    #[test]
    fn a_preset_by_itself_grants_nothing() {
        let (session, accesses) = (session(), [access(PolicyAction::Overwrite, "a", None)]);
        let question = PolicyRequest::new(&session, "t", &accesses, TaintSet::default());
        assert!(Preset::Ask.narrowest_grant(&question).is_none());
        assert!(!Preset::Ask.set_grants(&[]));
    }

    #[test]
    fn a_plan_without_accesses_is_asked_about() {
        for preset in Preset::ALL {
            assert_eq!(decide(preset, &[]), Decision::Ask);
        }
    }
}
