//! The rules of config, with the grants that hold now as one more layer.
//!
//! Not here: storing grants (`store.rs`), and who may revoke one (`inbox.rs`).

use std::sync::Arc;

use crate::grant::Grant;
use crate::layered_rules::LayeredRules;
use crate::policy::{Policy, PolicyRequest};
use crate::resource::ResourceAccess;
use crate::rule::PolicyRule;
use crate::rule_text::RuleText;
use crate::sync::RwLock;
use crate::verdict::{Decision, PolicyLayer, Verdict};

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
        Arc::clone(&self.active.read().rules)
    }
}

impl Policy for GrantedRules {
    fn evaluate(&self, access: &ResourceAccess, request: &PolicyRequest<'_>) -> Verdict {
        self.rules().evaluate(access, request)
    }

    fn decide(&self, request: &PolicyRequest<'_>) -> Verdict {
        self.rules().decide(request)
    }

    fn narrowest_grant(&self, request: &PolicyRequest<'_>) -> Option<RuleText> {
        self.rules().narrowest_grant(request)
    }

    fn set_grants(&self, grants: &[Grant]) -> bool {
        let ids: Vec<String> = grants.iter().map(|grant| grant.id.clone()).collect();
        let mut now = self.active.write();
        if now.grant_ids == ids {
            return false;
        }
        let rules = grants.iter().filter_map(Grant::parse_rule).collect();
        *now =
            ActiveRules { grant_ids: ids, rules: Arc::new(self.config.clone().with_layer(PolicyLayer::Grants, rules)) };
        true
    }
}

/// Its rule, as a policy applies it.
impl Grant {
    /// The rule, where the text still says one.
    pub fn parse_rule(&self) -> Option<PolicyRule> {
        PolicyRule::new(self.rule.clone(), &self.id).ok().filter(|rule| rule.decision == Decision::Allow)
    }
}

/// A rule as it is shown to who would grant it.
pub(crate) fn format_rule_line(text: &RuleText) -> Option<String> {
    let rule = PolicyRule::new(text.clone(), "granted").ok()?;
    Some(format!("{{ decision = \"{}\", {} }}", rule.decision.name(), rule.scope_text()))
}
