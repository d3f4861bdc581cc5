//! The policy that config writes: rules, in layers.
//!
//! A deny anywhere is final. Else the first layer that has a matching rule decides, and within it the strictest rule:
//! the machine's owner, the user, what was granted, what a workspace says that a person trusts, the preset. What any
//! other workspace says about itself is added on top and can only tighten. Every touch is judged by itself, and the
//! strictest one decides about the call.
//!
//! Not here: what a rule matches (`rule.rs`), and how rules are read (config).

use serde::{Deserialize, Serialize};

use crate::grants::narrowest;
use crate::pattern::{host_pattern, path_pattern};
use crate::rule::{Seen, quoted};
use crate::{
    Assurance, Bit, BitSet, Decision, Policy, Preset, Question, Rule, RuleText, Touch, Verb, Verdict, acting_program,
};

/// Whose rule it is. The first that has something to say decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The owner of the machine's.
    Managed,
    User,
    /// What a person once allowed for good.
    Grants,
    /// What a workspace allows, where a person trusts it to. It reaches secrets and protected paths only by saying so.
    Trusted,
    /// What holds where nobody said otherwise.
    Preset,
    /// What a workspace says about itself: it holds on top of what the others decide, and never allows.
    Workspace,
}

impl Layer {
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

    /// Whose rule it is, in words that follow its name.
    const fn owner(self) -> &'static str {
        match self {
            Self::Managed => "set by this machine's owner",
            Self::User => "of your config",
            Self::Grants => "that was granted",
            Self::Preset => "of the preset",
            Self::Trusted | Self::Workspace => "of the workspace's ringfence.toml",
        }
    }
}

/// Every rule that holds.
#[derive(Clone, Debug)]
pub struct Rules {
    /// In the order in which they are asked; the preset is the last.
    layers: Vec<(Layer, Vec<Rule>)>,
    /// On top of what the others decide.
    workspace: Vec<Rule>,
    /// What asks even where a layer allows, unless the rule that does says it knows.
    guard: Vec<Rule>,
}

impl Rules {
    /// The preset by itself.
    pub fn of(preset: Preset) -> Self {
        Self { layers: vec![(Layer::Preset, preset.rules())], workspace: Vec::new(), guard: third_bit() }
    }

    /// Adds rules to a layer. What is added to one layer twice is asked one after the other.
    #[must_use]
    pub fn with(mut self, layer: Layer, rules: Vec<Rule>) -> Self {
        match layer {
            Layer::Workspace => {
                self.workspace.extend(rules.into_iter().filter(|rule| rule.decision != Decision::Allow))
            }
            _ => {
                let after = self.layers.partition_point(|(other, _)| *other <= layer);
                self.layers.insert(after, (layer, rules));
            }
        }
        self
    }

    /// What the owner of the machine chose as preset: nobody below can allow what it asks about.
    #[must_use]
    pub fn with_managed_preset(self, preset: Preset) -> Self {
        let strict = preset.rules().into_iter().filter(|rule| rule.decision != Decision::Allow);
        self.with(Layer::Managed, strict.collect())
    }

    /// What a workspace chose as preset: it holds on top, as far as it is stricter than the others.
    #[must_use]
    pub fn with_workspace_preset(self, preset: Preset) -> Self {
        self.with(Layer::Workspace, preset.own_rules())
    }

    /// The layers that have rules, in the order in which they decide.
    pub fn layers(&self) -> impl Iterator<Item = (Layer, Vec<&Rule>)> {
        let workspace = std::iter::once((Layer::Workspace, self.workspace.iter().collect()));
        let guard = |layer: Layer| if layer == Layer::Preset { self.guard.as_slice() } else { &[] };
        let decide =
            self.layers.iter().map(move |(layer, rules)| (*layer, guard(*layer).iter().chain(rules).collect()));
        workspace.chain(decide).filter(|(_, rules): &(Layer, Vec<&Rule>)| !rules.is_empty())
    }

    /// Every rule that denies, wherever it is.
    fn denials(&self) -> impl Iterator<Item = (Layer, &Rule)> {
        let layered = self.layers.iter().flat_map(|(layer, rules)| rules.iter().map(move |rule| (*layer, rule)));
        let workspace = self.workspace.iter().map(|rule| (Layer::Workspace, rule));
        layered.chain(workspace).filter(|(_, rule)| rule.decision == Decision::Deny)
    }
}

impl Policy for Rules {
    fn judge(&self, touch: &Touch, question: &Question<'_>) -> Verdict {
        let (seen, bits) = (Seen::of(touch), question.bits_besides(touch));
        let judge = |layer: Layer, rule: &Rule| verdict(layer, rule, touch, &seen, question.tool);
        let about = |rule: &&Rule| rule.is_about(&seen, question, bits);
        if let Some((layer, rule)) = self.denials().find(|(_, rule)| about(rule)) {
            return judge(layer, rule);
        }
        let guard = self.guard.iter().find(about);
        // A workspace that is trusted with its files is not yet trusted with what is among them by chance.
        let names = |rule: &Rule| {
            (!seen.is_secret() || rule.secret == Some(true)) && (!seen.is_protected() || rule.protected == Some(true))
        };
        // Where the third bit would come up, only a rule that says it knows can allow, and a grant cannot know.
        let counts = |layer: Layer, rule: &Rule| {
            let knows = |guard: &Rule| layer <= Layer::User && rule.when.has_all(guard.when);
            rule.decision != Decision::Allow || (guard.is_none_or(knows) && (layer != Layer::Trusted || names(rule)))
        };
        let decided = self.layers.iter().find_map(|(layer, rules)| {
            let matching = rules.iter().filter(|rule| counts(*layer, rule)).filter(about);
            strictest(matching.map(|rule| judge(*layer, rule)))
        });
        let allowed = decided.as_ref().is_some_and(|verdict| verdict.decision == Decision::Allow);
        let guard = guard.filter(|_| !allowed).map(|rule| judge(Layer::Preset, rule));
        let tightened = self.workspace.iter().filter(about).map(|rule| judge(Layer::Workspace, rule));
        // What is said first is what people are told where both ask.
        strictest(guard.into_iter().chain(decided).chain(tightened)).unwrap_or_else(Verdict::unknown_effect)
    }

    fn decide(&self, question: &Question<'_>) -> Verdict {
        let judged = question.touches.iter().map(|touch| self.judge(touch, question));
        if let Some(verdict) = strictest(judged) {
            return verdict;
        }
        let denial = self.denials().find(|(_, rule)| rule.is_about_any_touch(question));
        denial.map_or_else(Verdict::unknown_effect, |(layer, rule)| Verdict {
            decision: Decision::Deny,
            rule: rule.name.clone(),
            layer,
            reason: sentence(layer, rule, rule.because.as_deref(), "it is not known what this would touch"),
            assurance: Assurance::None,
            grant: None,
        })
    }

    fn grant_for(&self, question: &Question<'_>) -> Option<RuleText> {
        narrowest(self, question)
    }
}

/// The strictest, and among equals the first.
pub(crate) fn strictest(verdicts: impl Iterator<Item = Verdict>) -> Option<Verdict> {
    verdicts.reduce(|strictest, next| if next.strictness() > strictest.strictness() { next } else { strictest })
}

/// Data leaks where a secret, a stranger's words and a way out come together. Two of them make the third ask.
fn third_bit() -> Vec<Rule> {
    let rule = |bits: [Bit; 2], because: &str| Rule {
        when: BitSet::from_iter(bits),
        ..Rule::ours("third bit", Some(because))
    };
    vec![
        Rule {
            effects: vec![Verb::Fetch, Verb::External],
            ..rule(
                [Bit::ReadSecret, Bit::SawUntrusted],
                "and this session has read a secret and seen content that strangers wrote",
            )
        },
        Rule {
            effects: vec![Verb::Read, Verb::MoveAway],
            secret: Some(true),
            ..rule(
                [Bit::SawUntrusted, Bit::HasEgress],
                "which may hold secrets, and this session has seen content that strangers wrote and can send data out",
            )
        },
    ]
}

fn verdict(layer: Layer, rule: &Rule, touch: &Touch, seen: &Seen<'_>, tool: &str) -> Verdict {
    let would = || match touch.verb {
        Verb::External => format!("this would call the external tool `{}`", touch.place.shown),
        verb => format!("this would {} `{}`", verb.as_str(), touch.place.shown),
    };
    let grant = grant(layer, rule, touch, tool);
    let because = named_program(rule, touch).or_else(|| rule.because.clone());
    let (reason, assurance) = match rule.decision {
        Decision::Allow => (because.unwrap_or_default(), Assurance::None),
        Decision::Ask => (
            sentence(layer, rule, because.as_deref(), &would()),
            rule.assurance.unwrap_or_else(|| least_assurance(touch, seen)),
        ),
        Decision::Deny => {
            let place = if layer == Layer::Preset { "instead" } else { "in that rule" };
            let lifted = grant.as_ref().map(|grant| format!("; `{grant}` {place} would lift this"));
            (sentence(layer, rule, because.as_deref(), &would()) + &lifted.unwrap_or_default(), Assurance::None)
        }
    };
    Verdict { decision: rule.decision, rule: rule.name.clone(), layer, reason, assurance, grant }
}

/// An answer that a client may have given by itself is enough for changes that can be taken back, and for no more.
fn least_assurance(touch: &Touch, seen: &Seen<'_>) -> Assurance {
    let gives_away = matches!(touch.verb, Verb::Fetch | Verb::Lose | Verb::Run | Verb::External)
        || (seen.is_secret() && touch.verb != Verb::List);
    if gives_away || (seen.is_protected() && touch.verb.changes()) { Assurance::Person } else { Assurance::Relayed }
}

/// The reason of our rule about protected paths, where the name tells which program acts on it.
fn named_program(rule: &Rule, touch: &Touch) -> Option<String> {
    let because = rule.because.as_deref().filter(|_| rule.is_ours && rule.protected == Some(true))?;
    let program = touch.place.names().find_map(acting_program)?;
    Some(format!("{because} ({program})"))
}

/// Why, for a person and a model.
fn sentence(layer: Layer, rule: &Rule, because: Option<&str>, would: &str) -> String {
    let owner = layer.owner();
    if rule.is_ours {
        let because = because.map(|because| format!(", {because}")).unwrap_or_default();
        let owner = if layer == Layer::Preset { String::new() } else { format!("; the preset is one {owner}") };
        return format!("{would}{because}{owner}");
    }
    let does = if rule.decision == Decision::Deny { "denies it" } else { "wants it asked" };
    let because = because.map(|because| format!(" ({because})")).unwrap_or_default();
    let mut text = format!("{would}, and the rule `{}` {owner} {does}{because}", rule.name);
    if rule.decision == Decision::Deny {
        let scope = rule.scope();
        let about = if scope.is_empty() { "everything".to_owned() } else { format!("`{scope}`, and nothing else") };
        text.push_str(&format!("; it is about {about}"));
    }
    text
}

/// The line of config that would let this touch happen without asking, where a user may write one.
fn grant(layer: Layer, rule: &Rule, touch: &Touch, tool: &str) -> Option<String> {
    match layer {
        _ if rule.decision == Decision::Allow => None,
        Layer::User => rule.exception(touch),
        Layer::Preset if rule.decision == Decision::Deny => {
            Some(format!("preset = {}", quoted(&[Preset::instead(touch.verb).name()])))
        }
        // What is asked because of its name, or because of what happened before, is not to be waved through.
        Layer::Preset if rule.secret.is_some() || rule.protected.is_some() || !rule.when.is_empty() => None,
        Layer::Preset => allowing(touch, tool),
        Layer::Managed | Layer::Grants | Layer::Trusted | Layer::Workspace => None,
    }
}

/// The rule that allows a tool this very place, where one can be written.
fn allowing(touch: &Touch, tool: &str) -> Option<String> {
    let names: Vec<String> = match touch.verb {
        Verb::Fetch => touch.place.names().map(host_pattern).collect::<Option<_>>()?,
        _ => touch.place.names().map(path_pattern).collect(),
    };
    let place = match touch.verb {
        Verb::Run => return Some(format!("{{ decision = \"allow\", tool = {} }}", quoted(&[tool]))),
        Verb::Fetch => format!("host = {}", quoted(&names)),
        Verb::External => format!("effect = \"external\", path = {}", quoted(&names)),
        _ => format!("mount = {}, path = {}", quoted(&[&touch.place.mount]), quoted(&names)),
    };
    Some(format!("{{ decision = \"allow\", tool = {}, {place} }}", quoted(&[tool])))
}
