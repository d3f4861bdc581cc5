//! Hosts and ports of a wrapped run: what its command line and its profile allow needs no further approval during the run.
//!
//! Denials hold: only a decision that approval is required becomes one that allows, and only about these hosts and ports.
//!
//! Not here: who names them (`cli/wrapped_run/mod.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use ringfence_kernel::{
    Decision, Grant, NET_MOUNT, Policy, PolicyAction, PolicyLayer, PolicyRequest, PolicyRevision, ResourceAccess,
    RuleText, Verdict,
};

/// A policy, with the hosts of the run in front of it.
#[derive(Debug)]
pub(crate) struct RunHostsPolicy<P> {
    pub(crate) policy: P,
    /// In the one spelling that rules know, such as `api.example.org:443`.
    pub(crate) hosts: BTreeSet<String>,
    /// Ports of this machine that are published, such as `127.0.0.1:8080`.
    pub(crate) ports: BTreeSet<String>,
}

impl<P: Policy> RunHostsPolicy<P> {
    fn is_allowed(&self, access: &ResourceAccess) -> bool {
        let allowed = match access.action {
            PolicyAction::Fetch => &self.hosts,
            PolicyAction::Listen => &self.ports,
            _ => return false,
        };
        &*access.resource.mount == NET_MOUNT && allowed.contains(&access.resource.requested_path)
    }
}

impl<P: Policy> Policy for RunHostsPolicy<P> {
    fn evaluate(&self, access: &ResourceAccess, request: &PolicyRequest<'_>) -> Verdict {
        let verdict = self.policy.evaluate(access, request);
        if verdict.decision != Decision::Ask || !self.is_allowed(access) {
            return verdict;
        }
        Verdict {
            decision: Decision::Allow,
            rule: Arc::from("hosts of the run"),
            layer: PolicyLayer::User,
            reason: "the command line or the profile of the run allows it".to_owned(),
            ..verdict
        }
    }

    fn narrowest_grant(&self, request: &PolicyRequest<'_>) -> Option<RuleText> {
        self.policy.narrowest_grant(request)
    }

    fn revision(&self, request: &PolicyRequest<'_>) -> Option<PolicyRevision> {
        self.policy.revision(request)
    }

    fn set_grants(&self, grants: &[Grant]) -> bool {
        self.policy.set_grants(grants)
    }
}
