//! What a person allows for good.
//!
//! A grant is the narrowest rule that covers one call: this tool, this effect, these very places, on this directory and
//! no other of the same alias, until a day. It is offered only where it would be enough and where nothing but the
//! preset asks: no secret, no protected path, no host, nothing that the machine's owner or the workspace wants asked. One
//! about another program's tool is bound to what that program said about the tool.
//!
//! Not here: keeping them (`store.rs`), and who may take one back (`desk.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::pattern::path_pattern;
use crate::rule::Seen;
use crate::{Decision, Layer, MCP, Policy, Question, Rule, RuleText, Rules, Touch, Verb, Verdict};

/// How long a grant holds.
pub const GRANT_TIME: Duration = Duration::from_hours(30 * 24);

/// More places than this are no longer taken in at one look.
const MOST_PLACES: usize = 8;

/// A rule that a person added by an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub id: String,
    pub rule: RuleText,
    /// The directory that it is about, whatever its alias, or the definition of the tool: see `Host::with_grants`.
    pub directory: String,
    /// Who granted it.
    pub by: String,
    #[serde(with = "crate::gate::time")]
    pub since: SystemTime,
    #[serde(with = "crate::gate::time")]
    pub until: SystemTime,
}

impl Grant {
    /// The rule, where the text still says one.
    pub fn checked(&self) -> Option<Rule> {
        Rule::new(self.rule.clone(), &self.id).ok().filter(|rule| rule.decision == Decision::Allow)
    }

    /// Whether it is about one of these directories, by the alias that its rule names.
    pub fn is_about(&self, directories: &BTreeMap<String, String>) -> bool {
        subject(&self.rule).is_some_and(|subject| directories.get(&subject) == Some(&self.directory))
    }
}

/// What a grant is bound to, as `Host::with_grants` calls it: the mount, or the one tool of another program.
pub(crate) fn subject(rule: &RuleText) -> Option<String> {
    let [mount] = rule.mount.as_deref()? else { return None };
    if rule.effect.as_deref() != Some(&[Verb::External.as_str().to_owned()]) {
        return Some(mount.clone());
    }
    let [tool] = rule.path.as_deref()? else { return None };
    Some(format!("{MCP}/{tool}"))
}

/// The same for what a grant would be about.
pub(crate) fn subject_of(touch: &Touch) -> String {
    match touch.verb {
        Verb::External => format!("{MCP}/{}", touch.place.given),
        _ => touch.place.mount.to_string(),
    }
}

/// The rules of config, and what was granted since.
#[derive(Debug)]
pub struct GrantedRules {
    config: Rules,
    now: RwLock<Now>,
}

#[derive(Clone, Debug)]
struct Now {
    ids: Vec<String>,
    rules: Arc<Rules>,
}

impl GrantedRules {
    pub fn new(config: Rules) -> Self {
        let now = Now { ids: Vec::new(), rules: Arc::new(config.clone()) };
        Self { config, now: RwLock::new(now) }
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).rules)
    }
}

impl Policy for GrantedRules {
    fn judge(&self, touch: &Touch, question: &Question<'_>) -> Verdict {
        self.rules().judge(touch, question)
    }

    fn decide(&self, question: &Question<'_>) -> Verdict {
        self.rules().decide(question)
    }

    fn grant_for(&self, question: &Question<'_>) -> Option<RuleText> {
        self.rules().grant_for(question)
    }

    fn hold_grants(&self, grants: &[Grant]) -> bool {
        let ids: Vec<String> = grants.iter().map(|grant| grant.id.clone()).collect();
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        if now.ids == ids {
            return false;
        }
        let rules = grants.iter().filter_map(Grant::checked).collect();
        *now = Now { ids, rules: Arc::new(self.config.clone().with(Layer::Grants, rules)) };
        true
    }
}

/// The narrowest rule that would let the call happen, if it may be granted and is enough.
pub(crate) fn narrowest(rules: &Rules, question: &Question<'_>) -> Option<RuleText> {
    let mut asking = Vec::new();
    for touch in question.touches {
        let verdict = rules.judge(touch, question);
        match verdict.decision {
            Decision::Allow => {}
            Decision::Ask if may_be_granted(touch, &verdict) => asking.push(touch),
            _ => return None,
        }
    }
    let (first, rest) = asking.split_first()?;
    let alike = |touch: &&Touch| touch.verb == first.verb && touch.place.mount == first.place.mount;
    if !rest.iter().all(alike) || asking.len() > MOST_PLACES {
        return None;
    }
    let mut path: Vec<String> = asking.iter().flat_map(|touch| touch.place.names()).map(path_pattern).collect();
    path.dedup();
    let text = RuleText {
        decision: Decision::Allow.name().to_owned(),
        tool: Some(vec![question.tool.to_owned()]),
        effect: Some(vec![first.verb.as_str().to_owned()]),
        mount: Some(vec![first.place.mount.to_string()]),
        path: Some(path),
        agent: question.session.agent.clone().map(|agent| vec![agent]),
        ..RuleText::default()
    };
    let rule = Rule::new(text.clone(), "granted").ok()?;
    let granted = rules.clone().with(Layer::Grants, vec![rule]).decide(question);
    (granted.decision == Decision::Allow).then_some(text)
}

/// A rule as it is shown to who would grant it.
pub(crate) fn rule_line(text: &RuleText) -> Option<String> {
    let rule = Rule::new(text.clone(), "granted").ok()?;
    Some(format!("{{ decision = \"{}\", {} }}", rule.decision.name(), rule.scope()))
}

fn may_be_granted(touch: &Touch, verdict: &Verdict) -> bool {
    let seen = Seen::of(touch);
    let ordinary =
        !seen.is_secret() && !seen.is_protected() && (touch.verb.is_about_files() || touch.verb == Verb::External);
    ordinary && verdict.layer == Layer::Preset && verdict.grant.is_some()
}
