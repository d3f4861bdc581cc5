//! Whether a planned call goes ahead, is asked about, or is refused.
//!
//! The policy sees what would happen, resolved, and never the arguments' text. `Preset` is the plain policy:
//! one word for the whole workspace.
//!
//! Not here: asking (`gate.rs`), and rules from config.

use std::fmt;

use crate::sensitive::{Sensitivity, sensitivity};
use crate::{Session, Touch, Verb};

/// Decides about plans. Where it cannot decide, it asks.
pub trait Policy: Send + Sync + fmt::Debug {
    fn decide(&self, question: &Question<'_>) -> Verdict;
}

/// A planned call, as the policy sees it.
#[derive(Debug)]
pub struct Question<'a> {
    pub session: &'a Session,
    pub tool: &'a str,
    pub touches: &'a [Touch],
}

/// A decision, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    /// The rule that decided, as records name it.
    pub rule: &'static str,
    /// Why, in words for a person and a model.
    pub reason: String,
}

/// The later, the stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    Allow,
    Ask,
    Deny,
}

/// The policy that one word describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// Changes inside the workspace go ahead; secrets and protected paths are asked about.
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

    fn judge(self, touch: &Touch) -> Verdict {
        let shown = &touch.place.shown;
        if self == Self::ReadOnly && touch.verb.changes() {
            return Verdict {
                decision: Decision::Deny,
                rule: "preset read-only",
                reason: format!(
                    "the preset `read-only` allows no change, and this would {} `{shown}`",
                    touch.verb.as_str()
                ),
            };
        }
        if touch.verb == Verb::Lose {
            let reason = format!("the change of `{shown}` cannot be undone: what is there now is not kept");
            return Verdict { decision: Decision::Ask, rule: "cannot be undone", reason };
        }
        let Sensitivity { secret, protected } =
            touch.place.names().map(sensitivity).fold(Sensitivity::default(), |all, one| Sensitivity {
                secret: all.secret || one.secret,
                protected: all.protected || one.protected,
            });
        if secret && matches!(touch.verb, Verb::Read | Verb::MoveAway | Verb::Delete | Verb::Overwrite) {
            let reason = format!("`{shown}` may hold secrets");
            return Verdict { decision: Decision::Ask, rule: "secret", reason };
        }
        if protected && touch.verb.changes() {
            let reason = format!("`{shown}` is a setting that other programs act on");
            return Verdict { decision: Decision::Ask, rule: "protected path", reason };
        }
        if self == Self::Ask && matches!(touch.verb, Verb::Overwrite | Verb::Delete) {
            return Verdict {
                decision: Decision::Ask,
                rule: Self::ASKS,
                reason: format!("this would {} `{shown}`", touch.verb.as_str()),
            };
        }
        Verdict { decision: Decision::Allow, rule: "preset", reason: String::new() }
    }
}

impl Policy for Preset {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let verdicts = question.touches.iter().map(|touch| self.judge(touch));
        verdicts.reduce(|strictest, next| if next.decision > strictest.decision { next } else { strictest }).unwrap_or(
            // A plan that says it touches nothing is one that we do not understand.
            Verdict {
                decision: Decision::Ask,
                rule: "unknown effect",
                reason: "it is not known what this would touch".to_owned(),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Decision, Policy, Preset, Question};
    use crate::{Catalog, Dialect, Limits, Place, Principal, Session, Touch, Verb};

    fn touch(verb: Verb, given: &str, resolved: Option<&str>) -> Touch {
        let place = Place {
            mount: Arc::from("workspace"),
            given: given.to_owned(),
            resolved: resolved.map(str::to_owned),
            shown: given.to_owned(),
        };
        Touch { verb, place }
    }

    fn decide(preset: Preset, touches: &[Touch]) -> Decision {
        let session = Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: None,
            limits: Limits::of(Dialect::Standard),
            catalog: Catalog::default(),
        };
        preset.decide(&Question { session: &session, tool: "t", touches }).decision
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
    fn a_plan_without_touches_is_asked_about() {
        for preset in Preset::ALL {
            assert_eq!(decide(preset, &[]), Decision::Ask);
        }
    }
}
