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
use crate::verdict::{Decision, PolicyLayer, PolicyRevision, Verdict};

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

    fn revision(&self, request: &PolicyRequest<'_>) -> Option<PolicyRevision> {
        self.rules().revision(request)
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

#[cfg(test)]
mod tests {
    use super::GrantedRules;
    use crate::{
        CallLimits, Dialect, LayeredRules, Policy, PolicyLayer, PolicyRequest, PolicyRevision, PolicyRule, Preset,
        Principal, ReplyForm, RuleText, Session, SessionMemory, SessionTaint, Taint, TaintSet, ToolCatalog,
    };

    fn session(agent: Option<&str>) -> Session {
        Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: agent.map(str::to_owned),
            limits: CallLimits::for_dialect(Dialect::Standard),
            catalog: ToolCatalog::default(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        }
    }

    fn rule(agent: Option<&str>) -> PolicyRule {
        let agent = agent.map(|agent| vec![agent.to_owned()]);
        PolicyRule::new(RuleText { decision: "deny".to_owned(), agent, ..RuleText::default() }, "rule").unwrap()
    }

    fn revision(policy: &dyn Policy, session: &Session, taint: &[Taint]) -> PolicyRevision {
        let taint: TaintSet = taint.iter().copied().collect();
        policy.revision(&PolicyRequest::new(session, "run_code", &[], taint)).unwrap()
    }

    #[test]
    fn the_revision_differs_where_decisions_may() {
        let rules = LayeredRules::from_preset(Preset::Ask).with_layer(PolicyLayer::User, vec![rule(Some("a"))]);
        let policy = GrantedRules::new(rules.clone());
        let (plain, a, b) = (session(None), session(Some("a")), session(Some("b")));
        let first = revision(&policy, &plain, &[]);
        assert_eq!(first, revision(&policy, &plain, &[]));
        // No rule is about this agent, or about this taint alone.
        assert_eq!(first, revision(&policy, &b, &[]));
        assert_eq!(first, revision(&policy, &plain, &[Taint::ReadSecret]));
        assert_ne!(first, revision(&policy, &a, &[]));
        assert_ne!(first, revision(&policy, &plain, &[Taint::SawUntrusted, Taint::HasEgress]));
        assert_ne!(first, revision(&Preset::Ask, &plain, &[]));
        assert_ne!(first, revision(&rules.with_layer(PolicyLayer::User, vec![rule(None)]), &plain, &[]));
    }
}
