//! Whether a planned call goes ahead, is asked about, or is refused.
//!
//! The policy sees what would happen, resolved, and never the arguments' text. `Preset` is the plain policy: one word
//! for the whole workspace, and a few rules behind it.
//!
//! Not here: asking (`gate.rs`), and rules that people write (`rules.rs`).

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::rules::strictest;
use crate::{Bit, BitSet, Grant, Layer, NET, Review, Rule, RuleText, Rules, SEARCH, Session, Touch, Verb};

/// Decides about plans. Where it cannot decide, it asks.
pub trait Policy: Send + Sync + fmt::Debug {
    /// About one of the touches of a plan.
    fn judge(&self, touch: &Touch, question: &Question<'_>) -> Verdict;

    /// About the whole plan: as about the touch that is judged most strictly.
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let judged = question.touches.iter().map(|touch| self.judge(touch, question));
        strictest(judged).unwrap_or_else(Verdict::unknown_effect)
    }

    /// The narrowest rule that would let this call happen from now on, where a person may grant one.
    fn grant_for(&self, _: &Question<'_>) -> Option<RuleText> {
        None
    }

    /// From now on these grants hold, and no others. False when they did already.
    fn hold_grants(&self, _: &[Grant]) -> bool {
        false
    }
}

/// A planned call, as the policy sees it.
#[derive(Debug)]
pub struct Question<'a> {
    pub session: &'a Session,
    pub tool: &'a str,
    pub touches: &'a [Touch],
    /// What the session has been through, at the moment of the question.
    pub bits: BitSet,
    /// For each bit, how many of the touches raise it.
    raising: [usize; Bit::ALL.len()],
}

impl<'a> Question<'a> {
    pub fn new(session: &'a Session, tool: &'a str, touches: &'a [Touch], bits: BitSet) -> Self {
        let raised: Vec<Bit> = touches.iter().filter_map(Bit::raised_by).collect();
        let raising = Bit::ALL.map(|bit| raised.iter().filter(|raised| **raised == bit).count());
        Self { session, tool, touches, bits, raising }
    }

    /// The bits that the call raises.
    pub(crate) fn raises(&self) -> BitSet {
        self.raised(None)
    }

    /// The bits that are up when everything was touched but this one of the touches.
    pub(crate) fn bits_besides(&self, touch: &Touch) -> BitSet {
        match self.raises().is_empty() {
            true => self.bits,
            false => self.raised(Bit::raised_by(touch)).iter().fold(self.bits, BitSet::with),
        }
    }

    fn raised(&self, less: Option<Bit>) -> BitSet {
        let raised = Bit::ALL.into_iter().zip(self.raising);
        raised.filter(|(bit, count)| *count > usize::from(less == Some(*bit))).map(|(bit, _)| bit).collect()
    }
}

/// A decision, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    /// The rule that decided, as records name it.
    pub rule: Arc<str>,
    /// Whose rule it is.
    pub layer: Layer,
    /// Why, in words for a person and a model.
    pub reason: String,
    /// What an answer must at least be, where somebody is asked.
    pub assurance: Assurance,
    /// The line of config that would make it allowed, where a user may write one.
    pub grant: Option<String>,
}

impl Verdict {
    /// A plan that says it touches nothing is one that we do not understand.
    pub(crate) fn unknown_effect() -> Self {
        Self {
            decision: Decision::Ask,
            rule: Arc::from("unknown effect"),
            layer: Layer::Preset,
            reason: "it is not known what this would touch".to_owned(),
            assurance: Assurance::Person,
            grant: None,
        }
    }

    const REVIEW: &str = "review";

    /// Whether it is asked only because the call itself wants to be looked at.
    pub(crate) fn is_review(&self) -> bool {
        self.decision == Decision::Ask && &*self.rule == Self::REVIEW && self.grant.is_none()
    }

    /// What was allowed, for a call that wants to be looked at all the same.
    pub(crate) fn for_review(self, Review { reason, assurance }: Review) -> Self {
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
    Allow,
    Ask,
    Deny,
}

impl Decision {
    pub const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// How sure it is that a person gave an answer. The later, the surer.
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
    pub(crate) const ASKS: &str = "preset ask";

    pub const ALL: [Self; 3] = [Self::Edits, Self::Ask, Self::ReadOnly];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Edits => "edits",
            Self::Ask => "ask",
            Self::ReadOnly => "read-only",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Everything that the preset says, as rules.
    pub(crate) fn rules(self) -> Vec<Rule> {
        let ordinary = [Verb::List, Verb::Read, Verb::Create, Verb::Overwrite, Verb::MoveAway, Verb::Delete, Verb::Run];
        let anything_else =
            Rule { decision: Decision::Allow, effects: ordinary.to_vec(), ..Rule::ours("preset", None) };
        [
            sensitive_names(),
            self.own_rules(),
            vec![other_hosts(), own_search(), no_way_back(), other_programs(), anything_else],
        ]
        .concat()
    }

    /// What the preset says that a looser one does not.
    pub(crate) fn own_rules(self) -> Vec<Rule> {
        match self {
            Self::Edits => Vec::new(),
            Self::Ask => {
                vec![Rule { effects: vec![Verb::Overwrite, Verb::Delete], ..Rule::ours(Self::ASKS, None) }]
            }
            Self::ReadOnly => vec![Rule {
                decision: Decision::Deny,
                // Nobody can promise that another program's tool changes nothing.
                effects: Verb::ALL.into_iter().filter(|verb| verb.changes() || *verb == Verb::External).collect(),
                ..Rule::ours(
                    "preset read-only",
                    Some("and the preset `read-only` allows no change; listing and reading is allowed"),
                )
            }],
        }
    }

    /// The word to write instead of `read-only`, so that this is no longer denied.
    pub(crate) fn instead(verb: Verb) -> Self {
        if matches!(verb, Verb::Overwrite | Verb::Delete) { Self::Edits } else { Self::Ask }
    }
}

/// What the journal cannot keep is gone for good.
fn no_way_back() -> Rule {
    Rule { effects: vec![Verb::Lose], ..Rule::ours("cannot be undone", Some("and what is there now is not kept")) }
}

/// What another program does is not in the journal, whatever it says about itself.
fn other_programs() -> Rule {
    Rule { effects: vec![Verb::External], ..Rule::ours("external", Some("which cannot be undone")) }
}

/// Names that deserve a second look, whatever the preset.
fn sensitive_names() -> Vec<Rule> {
    let changes = Verb::ALL.into_iter().filter(|verb| verb.changes()).collect();
    vec![
        Rule {
            effects: vec![Verb::Read, Verb::Overwrite, Verb::MoveAway, Verb::Delete],
            secret: Some(true),
            ..Rule::ours("secret", Some("which may hold secrets"))
        },
        Rule {
            effects: changes,
            protected: Some(true),
            ..Rule::ours("protected path", Some("a setting that other programs act on"))
        },
    ]
}

/// A host is reached without asking only where a rule allows it.
fn other_hosts() -> Rule {
    Rule {
        effects: vec![Verb::Fetch],
        mounts: vec![NET.to_owned()],
        ..Rule::ours("other host", Some("a host that no rule allows"))
    }
}

/// Who chose a search engine wants it used.
fn own_search() -> Rule {
    Rule {
        decision: Decision::Allow,
        effects: vec![Verb::Fetch],
        mounts: vec![SEARCH.to_owned()],
        ..Rule::ours("search", None)
    }
}

impl Policy for Preset {
    fn judge(&self, touch: &Touch, question: &Question<'_>) -> Verdict {
        static RULES: LazyLock<[Rules; 3]> = LazyLock::new(|| Preset::ALL.map(Rules::of));
        let [edits, ask, read_only] = &*RULES;
        let rules = match self {
            Self::Edits => edits,
            Self::Ask => ask,
            Self::ReadOnly => read_only,
        };
        rules.judge(touch, question)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Decision, Policy, Preset, Question};
    use crate::{BitSet, Bits, Catalog, Dialect, Limits, Place, Principal, Sensitivity, Session, Touch, Verb};

    fn touch(verb: Verb, given: &str, resolved: Option<&str>) -> Touch {
        let place = Place {
            mount: Arc::from("workspace"),
            given: given.to_owned(),
            resolved: resolved.map(str::to_owned),
            shown: given.to_owned(),
            ..Place::default()
        };
        Touch { verb, place }
    }

    fn session() -> Session {
        Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: None,
            limits: Limits::of(Dialect::Standard),
            catalog: Catalog::default(),
            bits: Bits::default(),
        }
    }

    fn decide(preset: Preset, touches: &[Touch]) -> Decision {
        preset.decide(&Question::new(&session(), "t", touches, BitSet::default())).decision
    }

    #[track_caller]
    fn check(verb: Verb, path: &str, [edits, ask, read_only]: [Decision; 3]) {
        let touches = [touch(verb, path, None)];
        let expected = [(Preset::Edits, edits), (Preset::Ask, ask), (Preset::ReadOnly, read_only)];
        for (preset, expected) in expected {
            assert_eq!(decide(preset, &touches), expected, "{} {path} under {}", verb.as_str(), preset.name());
        }
    }

    #[test]
    fn each_preset_decides_each_verb() {
        use Decision::{Allow, Ask, Deny};
        check(Verb::List, "a", [Allow, Allow, Allow]);
        check(Verb::Read, "a", [Allow, Allow, Allow]);
        check(Verb::Create, "a", [Allow, Allow, Deny]);
        check(Verb::Overwrite, "a", [Allow, Ask, Deny]);
        check(Verb::MoveAway, "a", [Allow, Allow, Deny]);
        check(Verb::Delete, "a", [Allow, Ask, Deny]);
        check(Verb::Lose, "a", [Ask, Ask, Deny]);
        check(Verb::Read, ".env", [Ask, Ask, Ask]);
        check(Verb::List, ".env", [Allow, Allow, Allow]);
        check(Verb::Create, ".env", [Allow, Allow, Deny]);
        check(Verb::MoveAway, ".env", [Ask, Ask, Deny]);
        check(Verb::Read, ".git/config", [Allow, Allow, Allow]);
        check(Verb::Create, ".git/hooks/pre-commit", [Ask, Ask, Deny]);
        check(Verb::Fetch, "docs.rs:443", [Ask, Ask, Ask]);
        check(Verb::Run, "python", [Allow, Allow, Allow]);
        check(Verb::Run, ".env", [Allow, Allow, Allow]);
        check(Verb::Fetch, "server.pem:443", [Ask, Ask, Ask]);
        check(Verb::External, "github/create_issue", [Ask, Ask, Deny]);
    }

    #[test]
    fn the_strictest_touch_decides_and_the_resolved_name_counts() {
        let innocent = touch(Verb::Read, "notes.txt", Some("config/.env"));
        assert_eq!(decide(Preset::Edits, &[innocent]), Decision::Ask);
        let mixed = [touch(Verb::Read, "a", None), touch(Verb::Delete, "b", None), touch(Verb::Create, "c", None)];
        assert_eq!(decide(Preset::Ask, &mixed), Decision::Ask);
        assert_eq!(decide(Preset::ReadOnly, &mixed), Decision::Deny);
    }

    #[test]
    fn a_preset_has_one_name() {
        for preset in Preset::ALL {
            assert_eq!(Preset::named(preset.name()), Some(preset));
        }
        assert_eq!(Preset::named("yolo"), None);
    }

    #[test]
    fn what_a_file_is_counts_whatever_it_is_called() {
        let mut linked = touch(Verb::Read, "notes.txt", None);
        linked.place.sensitivity = Sensitivity { secret: true, protected: false };
        assert_eq!(decide(Preset::Edits, &[linked]), Decision::Ask);
        let mut moved = touch(Verb::Overwrite, "notes.txt", None);
        moved.place.sensitivity = Sensitivity { secret: false, protected: true };
        assert_eq!(decide(Preset::Edits, &[moved]), Decision::Ask);
    }

    #[test]
    fn a_preset_by_itself_grants_nothing() {
        let (session, touches) = (session(), [touch(Verb::Overwrite, "a", None)]);
        let question = Question::new(&session, "t", &touches, BitSet::default());
        assert!(Preset::Ask.grant_for(&question).is_none());
        assert!(!Preset::Ask.hold_grants(&[]));
    }

    #[test]
    fn a_plan_without_touches_is_asked_about() {
        for preset in Preset::ALL {
            assert_eq!(decide(preset, &[]), Decision::Ask);
        }
    }
}
