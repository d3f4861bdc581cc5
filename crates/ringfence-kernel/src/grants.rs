//! Persistent grants: rules that a person adds by approving a call.
//!
//! A grant is the narrowest rule that covers one call: this tool, this action, exactly these resources, on this
//! directory and no other of the same alias, until it expires. It is offered only where it would be enough and where
//! nothing but the preset requires approval: no secret, no protected path, no host, nothing that the machine's owner or
//! the workspace requires approval for. A grant for an MCP tool is bound to the server's definition of the tool.
//!
//! Not here: storing them (`store.rs`), and who may revoke one (`inbox.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::pattern::path_pattern;
use crate::rule::RuleSubject;
use crate::{
    Decision, LayeredRules, MCP_MOUNT, Policy, PolicyAction, PolicyLayer, PolicyRequest, PolicyRule, ResourceAccess,
    RuleText, Verdict,
};

/// Lifetime of a grant.
pub const GRANT_LIFETIME: Duration = Duration::from_hours(30 * 24);

/// Most resources of a grant: a person reviews no more at one look.
const MAX_GRANT_ACCESSES: usize = 8;

/// A rule that a person added by an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Unique ID, which revokes it.
    pub id: String,
    /// The rule that it adds.
    pub rule: RuleText,
    /// The directory that it is about, whatever its alias, or the definition of the tool: see `Host::with_grants`.
    pub directory: String,
    /// The person who granted it.
    pub by: String,
    /// The time of the approval.
    #[serde(with = "crate::approval::time")]
    pub since: SystemTime,
    /// The time of expiry.
    #[serde(with = "crate::approval::time")]
    pub until: SystemTime,
}

impl Grant {
    /// The rule, where the text still says one.
    pub fn parse_rule(&self) -> Option<PolicyRule> {
        PolicyRule::new(self.rule.clone(), &self.id).ok().filter(|rule| rule.decision == Decision::Allow)
    }

    /// Whether it is about one of these directories, by the alias that its rule names.
    pub fn applies_to(&self, directories: &BTreeMap<String, String>) -> bool {
        grant_subject(&self.rule).is_some_and(|subject| directories.get(&subject) == Some(&self.directory))
    }
}

/// The subject of a grant, as `Host::with_grants` names it: the mount, or the one MCP tool.
pub(crate) fn grant_subject(rule: &RuleText) -> Option<String> {
    let [mount] = rule.mount.as_deref()? else { return None };
    if rule.effect.as_deref() != Some(&[PolicyAction::External.as_str().to_owned()]) {
        return Some(mount.clone());
    }
    let [tool] = rule.path.as_deref()? else { return None };
    Some(format!("{MCP_MOUNT}/{tool}"))
}

/// The same for what a grant would be about.
pub(crate) fn access_subject(access: &ResourceAccess) -> String {
    match access.action {
        PolicyAction::External => format!("{MCP_MOUNT}/{}", access.resource.requested_path),
        _ => access.resource.mount.to_string(),
    }
}

/// The rules of config, and what was granted since.
#[derive(Debug)]
pub struct GrantedRules {
    config: LayeredRules,
    active: RwLock<ActiveRules>,
}

#[derive(Clone, Debug)]
struct ActiveRules {
    grant_ids: Vec<String>,
    rules: Arc<LayeredRules>,
}

impl GrantedRules {
    /// The rules of config, without any grant yet.
    pub fn new(config: LayeredRules) -> Self {
        let now = ActiveRules { grant_ids: Vec::new(), rules: Arc::new(config.clone()) };
        Self { config, active: RwLock::new(now) }
    }

    fn rules(&self) -> Arc<LayeredRules> {
        Arc::clone(&self.active.read().unwrap_or_else(PoisonError::into_inner).rules)
    }
}

impl Policy for GrantedRules {
    fn evaluate(&self, access: &ResourceAccess, question: &PolicyRequest<'_>) -> Verdict {
        self.rules().evaluate(access, question)
    }

    fn decide(&self, question: &PolicyRequest<'_>) -> Verdict {
        self.rules().decide(question)
    }

    fn narrowest_grant(&self, question: &PolicyRequest<'_>) -> Option<RuleText> {
        self.rules().narrowest_grant(question)
    }

    fn set_grants(&self, grants: &[Grant]) -> bool {
        let ids: Vec<String> = grants.iter().map(|grant| grant.id.clone()).collect();
        let mut now = self.active.write().unwrap_or_else(PoisonError::into_inner);
        if now.grant_ids == ids {
            return false;
        }
        let rules = grants.iter().filter_map(Grant::parse_rule).collect();
        *now =
            ActiveRules { grant_ids: ids, rules: Arc::new(self.config.clone().with_layer(PolicyLayer::Grants, rules)) };
        true
    }
}

/// The narrowest rule that would let the call happen, if it may be granted and is enough.
pub(crate) fn narrowest_grant(rules: &LayeredRules, question: &PolicyRequest<'_>) -> Option<RuleText> {
    let mut asking = Vec::new();
    for access in question.accesses {
        let verdict = rules.evaluate(access, question);
        match verdict.decision {
            Decision::Allow => {}
            Decision::Ask if is_grantable(access, &verdict) => asking.push(access),
            _ => return None,
        }
    }
    let (first, rest) = asking.split_first()?;
    let alike =
        |access: &&ResourceAccess| access.action == first.action && access.resource.mount == first.resource.mount;
    if !rest.iter().all(alike) || asking.len() > MAX_GRANT_ACCESSES {
        return None;
    }
    let mut path: Vec<String> = asking.iter().flat_map(|access| access.resource.names()).map(path_pattern).collect();
    path.dedup();
    let text = RuleText {
        decision: Decision::Allow.name().to_owned(),
        tool: Some(vec![question.tool.to_owned()]),
        effect: Some(vec![first.action.as_str().to_owned()]),
        mount: Some(vec![first.resource.mount.to_string()]),
        path: Some(path),
        agent: question.session.agent.clone().map(|agent| vec![agent]),
        ..RuleText::default()
    };
    let rule = PolicyRule::new(text.clone(), "granted").ok()?;
    let granted = rules.clone().with_layer(PolicyLayer::Grants, vec![rule]).decide(question);
    (granted.decision == Decision::Allow).then_some(text)
}

/// A rule as it is shown to who would grant it.
pub(crate) fn format_rule_line(text: &RuleText) -> Option<String> {
    let rule = PolicyRule::new(text.clone(), "granted").ok()?;
    Some(format!("{{ decision = \"{}\", {} }}", rule.decision.name(), rule.scope_text()))
}

fn is_grantable(access: &ResourceAccess, verdict: &Verdict) -> bool {
    let seen = RuleSubject::from_access(access);
    let ordinary = !seen.is_secret()
        && !seen.is_protected()
        && (access.action.is_file_action() || access.action == PolicyAction::External);
    ordinary && verdict.layer == PolicyLayer::Preset && verdict.grant.is_some()
}
