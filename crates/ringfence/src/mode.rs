//! Modes: what the user of a front tightens a session to while it goes on.
//!
//! A mode stands in front of the policy and never allows what that does not. Going back to `configured` gives what the
//! config gave at the start, and nothing more, so the word of a client is enough to change it.
//!
//! Not here: who changes it. Nothing that a model says does.

use std::sync::{Arc, PoisonError, RwLock};

use ringfence_kernel::{Assurance, Decision, Grant, Layer, Policy, Question, RuleText, Touch, Verb, Verdict};

/// What is asked beyond what the config says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    Configured,
    /// Every change is asked about.
    Ask,
    /// No change is made.
    ReadOnly,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Configured, Self::Ask, Self::ReadOnly];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Ask => "ask",
            Self::ReadOnly => "read-only",
        }
    }

    /// For people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Configured => "As configured",
            Self::Ask => "Ask about every change",
            Self::ReadOnly => "Read only",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The mode of a session, shared by who changes it and who goes by it.
#[derive(Clone, Debug, Default)]
pub struct Modes(Arc<RwLock<Mode>>);

impl Modes {
    pub fn now(&self) -> Mode {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn change(&self, mode: Mode) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = mode;
    }
}

/// A policy, with the mode of the session in front of it.
#[derive(Debug)]
pub struct Tightened<P> {
    pub policy: P,
    pub modes: Modes,
}

impl<P: Policy> Tightened<P> {
    fn tightened(&self, verdict: Verdict, touches: &[Touch]) -> Verdict {
        let mode = self.modes.now();
        let acts = |verb: Verb| verb.changes() || verb == Verb::External;
        if !touches.iter().any(|touch| acts(touch.verb)) {
            return verdict;
        }
        let because = |decision, reason: &str| Verdict {
            decision,
            rule: Arc::from(format!("mode {}", mode.name())),
            layer: Layer::Workspace,
            reason: reason.to_owned(),
            assurance: verdict.assurance.max(Assurance::Relayed),
            grant: None,
        };
        match (mode, verdict.decision) {
            (Mode::ReadOnly, Decision::Allow | Decision::Ask) => {
                because(Decision::Deny, "the session is in the mode `read-only`, which allows no change")
            }
            (Mode::Ask, Decision::Allow) => {
                because(Decision::Ask, "the session is in the mode `ask`, in which every change is asked about")
            }
            _ => verdict,
        }
    }
}

impl<P: Policy> Policy for Tightened<P> {
    fn judge(&self, touch: &Touch, question: &Question<'_>) -> Verdict {
        self.tightened(self.policy.judge(touch, question), std::slice::from_ref(touch))
    }

    fn decide(&self, question: &Question<'_>) -> Verdict {
        self.tightened(self.policy.decide(question), question.touches)
    }

    fn grant_for(&self, question: &Question<'_>) -> Option<RuleText> {
        self.policy.grant_for(question).filter(|_| self.modes.now() == Mode::Configured)
    }

    fn hold_grants(&self, grants: &[Grant]) -> bool {
        self.policy.hold_grants(grants)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringfence_kernel::{
        BitSet, Bits, Catalog, Decision, Dialect, Limits, Place, Policy, Preset, Principal, Question, Session, Touch,
        Verb,
    };

    use super::{Mode, Modes, Tightened};

    fn touch(verb: Verb, path: &str) -> Touch {
        let place =
            Place { mount: Arc::from("workspace"), given: path.to_owned(), shown: path.to_owned(), ..Place::default() };
        Touch { verb, place }
    }

    #[test]
    fn no_mode_allows_what_the_policy_does_not() {
        let session = Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: None,
            limits: Limits::of(Dialect::Standard),
            catalog: Catalog::default(),
            bits: Bits::default(),
        };
        for (preset, mode) in Preset::ALL.into_iter().flat_map(|preset| Mode::ALL.map(|mode| (preset, mode))) {
            let modes = Modes::default();
            modes.change(mode);
            let tightened = Tightened { policy: preset, modes };
            for (verb, path) in
                Verb::ALL.into_iter().flat_map(|verb| ["a.txt", ".env", ".git/config"].map(|path| (verb, path)))
            {
                let touches = [touch(Verb::Read, "b.txt"), touch(verb, path)];
                let question = Question::new(&session, "t", &touches, BitSet::default());
                let (before, after) = (preset.decide(&question), tightened.decide(&question));
                assert!(after.strictness() >= before.strictness(), "{preset:?} {mode:?} {verb:?} {path}");
                assert_eq!(after.decision, tightened.judge(&touches[1], &question).decision);
                let acts = verb.changes() || verb == Verb::External;
                match mode {
                    Mode::Configured => assert_eq!(after, before),
                    Mode::Ask if acts => assert!(after.decision > Decision::Allow),
                    Mode::ReadOnly if acts => assert_eq!(after.decision, Decision::Deny),
                    Mode::Ask | Mode::ReadOnly => assert_eq!(after, before),
                }
            }
        }
    }
}
