//! Pending approval: a plan that waits for a decision, and the prompt of its request.
//!
//! Not here: asking (`ask_approval.rs`), and what happens after the answer (`invocation.rs`, `follow_up.rs`).

use std::sync::Arc;

use crate::approval::ApprovalOutcome;
use crate::layered_rules::is_rule_name;
use crate::resume_token::ResumeToken;
use crate::tool_binding::{ErasedPlan, ErasedTool};
use crate::{
    ApprovalDecision, ApprovalRequest, ChangeGroup, Decision, Preview, ResourceAccess, RuleText, TaintSet, Verdict,
};

/// A plan that waits for a person.
pub(crate) struct PendingApproval {
    /// The tool, which can plan the call again.
    pub(crate) tool: Arc<dyn ErasedTool>,
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) accesses: Vec<ResourceAccess>,
    /// The session's taint at that time.
    pub(crate) taint: TaintSet,
    pub(crate) prompt: ApprovalPrompt,
}

/// Changes that a run left and that wait for a person. They exist in this call only, so it can neither be planned again
/// nor suspended.
pub(crate) struct PendingReview {
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) changes: PendingChangeGroups,
    pub(crate) prompt: ApprovalPrompt,
}

/// The visible part of a plan. The plan itself stays out: it is not `Sync`, and a waiting call must be able to move
/// between threads.
#[derive(Debug)]
pub(crate) struct ApprovalPrompt {
    pub(crate) verdict: Verdict,
    pub(crate) preview: Preview,
    /// The rule that "always" would add.
    pub(crate) grant: Option<RuleText>,
}

/// Changes of a run, some of which wait for approval.
pub(crate) struct PendingChangeGroups {
    /// Accesses of the run itself.
    pub(crate) run_accesses: Vec<ResourceAccess>,
    pub(crate) groups: Vec<ChangeGroup>,
    /// The decision about each group. `None` for one that cannot be kept at all.
    pub(crate) verdicts: Vec<Option<Verdict>>,
}

impl PendingChangeGroups {
    pub(crate) fn accesses_of(&self, indices: &[usize]) -> Vec<ResourceAccess> {
        let groups = indices.iter().filter_map(|index| self.groups.get(*index));
        groups.flat_map(|group| group.accesses.iter().cloned()).collect()
    }
}

/// Changes that a run left, before the policy decides about them.
pub(crate) struct UndecidedChanges {
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) groups: Vec<ChangeGroup>,
    /// Accesses of the run itself.
    pub(crate) run_accesses: Vec<ResourceAccess>,
}

/// Outcome of an approval request.
pub(crate) enum ApprovalRequestOutcome {
    Answered(ApprovalOutcome),
    Suspended(SuspendedCall),
}

/// A call that waits for its answer, for frontends that can resume it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspendedCall {
    /// To be given to `Host::resume`, once.
    pub token: String,
    /// The id of the request that has to be answered first.
    pub request_id: String,
}

/// A suspended call with the answer to its request.
pub(crate) struct ResumedCall {
    pub(crate) token: ResumeToken,
    pub(crate) request: ApprovalRequest,
    pub(crate) decision: ApprovalDecision,
}

impl ResumedCall {
    /// Whether a plan is the one that was shown, and requires approval for the same reason, if at all.
    pub(crate) fn matches_plan(&self, pending: &PendingApproval) -> bool {
        let (verdict, request) = (&pending.prompt.verdict, &self.request);
        let same_reason = is_rule_name(&verdict.rule, &request.rule)
            && verdict.layer == request.layer
            && verdict.reason == request.reason;
        pending.prompt.preview.fingerprint() == self.token.fingerprint
            && (verdict.decision == Decision::Allow || same_reason)
    }
}
