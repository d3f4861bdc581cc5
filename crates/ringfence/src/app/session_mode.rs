//! Session modes: a user can tighten the policy of a running session.
//!
//! A mode stands in front of the policy and never allows what that does not. Going back to `configured` gives what the
//! config gave at the start, and nothing more, so the word of a client is enough to change it.
//!
//! Not here: who changes it. Nothing that a model says does.

use std::sync::Arc;

use ringfence_kernel::sync::RwLock;
use ringfence_kernel::{
    Assurance, Decision, Grant, Policy, PolicyAction, PolicyLayer, PolicyRequest, PolicyRevision, ResourceAccess,
    RuleText, Verdict,
};

/// Restriction of a session beyond the config.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionMode {
    /// Nothing.
    #[default]
    Configured,
    /// Every change is asked about.
    Ask,
    /// No change is made.
    ReadOnly,
}

impl SessionMode {
    pub const ALL: [Self; 3] = [Self::Configured, Self::Ask, Self::ReadOnly];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Ask => "ask",
            Self::ReadOnly => "read-only",
        }
    }

    /// The error message, for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Configured => "As configured",
            Self::Ask => "Ask before every change",
            Self::ReadOnly => "Read only",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The mode of a session, shared by who changes it and who goes by it.
#[derive(Clone, Debug, Default)]
pub struct SharedSessionMode(Arc<RwLock<SessionMode>>);

impl SharedSessionMode {
    pub fn get(&self) -> SessionMode {
        *self.0.read()
    }

    pub fn set(&self, mode: SessionMode) {
        *self.0.write() = mode;
    }
}

/// A policy, with the mode of the session in front of it.
#[derive(Debug)]
pub struct ModePolicy<P> {
    pub policy: P,
    pub mode: SharedSessionMode,
}

impl<P: Policy> ModePolicy<P> {
    fn apply_mode(&self, verdict: Verdict, accesses: &[ResourceAccess]) -> Verdict {
        let mode = self.mode.get();
        let acts = |action: PolicyAction| {
            action.changes_files() || matches!(action, PolicyAction::External | PolicyAction::Send)
        };
        if !accesses.iter().any(|access| acts(access.action)) {
            return verdict;
        }
        let because = |decision, reason: &str| Verdict {
            decision,
            rule: Arc::from(format!("mode {}", mode.name())),
            layer: PolicyLayer::Workspace,
            reason: reason.to_owned(),
            assurance: verdict.assurance.max(Assurance::Relayed),
            grant: None,
        };
        match (mode, verdict.decision) {
            (SessionMode::ReadOnly, Decision::Allow | Decision::Ask) => {
                because(Decision::Deny, "the session is in `read-only` mode, which allows no changes")
            }
            (SessionMode::Ask, Decision::Allow) => {
                because(Decision::Ask, "the session is in `ask` mode, which requires approval for every change")
            }
            _ => verdict,
        }
    }
}

impl<P: Policy> Policy for ModePolicy<P> {
    fn evaluate(&self, access: &ResourceAccess, question: &PolicyRequest<'_>) -> Verdict {
        self.apply_mode(self.policy.evaluate(access, question), std::slice::from_ref(access))
    }

    fn decide(&self, question: &PolicyRequest<'_>) -> Verdict {
        self.apply_mode(self.policy.decide(question), question.accesses)
    }

    fn narrowest_grant(&self, question: &PolicyRequest<'_>) -> Option<RuleText> {
        self.policy.narrowest_grant(question).filter(|_| self.mode.get() == SessionMode::Configured)
    }

    fn revision(&self, question: &PolicyRequest<'_>) -> Option<PolicyRevision> {
        Some(self.policy.revision(question)?.with_state(&self.mode.get().name()))
    }

    fn set_grants(&self, grants: &[Grant]) -> bool {
        self.policy.set_grants(grants)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringfence_kernel::{
        CallLimits, Decision, Dialect, Policy, PolicyAction, PolicyRequest, PolicyResource, Preset, Principal,
        ReplyForm, ResourceAccess, Session, SessionMemory, SessionTaint, TaintSet, ToolCatalog,
    };

    use super::{ModePolicy, SessionMode, SharedSessionMode};

    fn access(action: PolicyAction, path: &str) -> ResourceAccess {
        let resource = PolicyResource {
            mount: Arc::from("workspace"),
            requested_path: path.to_owned(),
            display_path: path.to_owned(),
            ..PolicyResource::default()
        };
        ResourceAccess { action, resource }
    }

    #[test]
    fn no_mode_allows_what_the_policy_does_not() {
        let session = Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: None,
            limits: CallLimits::for_dialect(Dialect::Standard),
            catalog: ToolCatalog::default(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        };
        for (preset, mode) in Preset::ALL.into_iter().flat_map(|preset| SessionMode::ALL.map(|mode| (preset, mode))) {
            let modes = SharedSessionMode::default();
            modes.set(mode);
            let tightened = ModePolicy { policy: preset, mode: modes };
            for (action, path) in PolicyAction::ALL
                .into_iter()
                .flat_map(|action| ["a.txt", ".env", ".git/config"].map(|path| (action, path)))
            {
                let accesses = [access(PolicyAction::Read, "b.txt"), access(action, path)];
                let question = PolicyRequest::new(&session, "t", &accesses, TaintSet::default());
                let (before, after) = (preset.decide(&question), tightened.decide(&question));
                assert!(after.strictness() >= before.strictness(), "{preset:?} {mode:?} {action:?} {path}");
                assert_eq!(after.decision, tightened.evaluate(&accesses[1], &question).decision);
                let acts = action.changes_files() || matches!(action, PolicyAction::External | PolicyAction::Send);
                match mode {
                    SessionMode::Configured => assert_eq!(after, before),
                    SessionMode::Ask if acts => assert!(after.decision > Decision::Allow),
                    SessionMode::ReadOnly if acts => assert_eq!(after.decision, Decision::Deny),
                    SessionMode::Ask | SessionMode::ReadOnly => assert_eq!(after, before),
                }
            }
        }
    }
}
