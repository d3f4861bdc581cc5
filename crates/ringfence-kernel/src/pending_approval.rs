//! Pending approval: a plan that waits for a decision, and the prompt of its request.
//!
//! Not here: asking (`ask_approval.rs`), and what happens after the answer (`invocation.rs`, `follow_up.rs`).

use crate::tool_binding::ErasedPlan;
use crate::{ChangeGroup, Preview, ResourceAccess, RuleText, TaintSet, Verdict};

/// A plan that waits for a person.
pub(crate) struct PendingApproval {
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) accesses: Vec<ResourceAccess>,
    /// What the session had been through then.
    pub(crate) taint: TaintSet,
    pub(crate) prompt: ApprovalPrompt,
    /// Where this is what a run left to decide about: all of it.
    pub(crate) follow_up: Option<PendingGroups>,
}

impl PendingApproval {
    pub(crate) fn is_follow_up(&self) -> bool {
        self.follow_up.is_some()
    }
}

/// What is shown of a plan. Only this goes in, not the plan itself: it is not `Sync`, and a call must be able to move
/// between threads while it waits.
#[derive(Debug)]
pub(crate) struct ApprovalPrompt {
    pub(crate) verdict: Verdict,
    pub(crate) preview: Preview,
    /// The rule that "always" would add.
    pub(crate) grant: Option<RuleText>,
}

/// What a run left, while a person is asked about some of it.
pub(crate) struct PendingGroups {
    /// What the run itself touched.
    pub(crate) run_accesses: Vec<ResourceAccess>,
    pub(crate) groups: Vec<ChangeGroup>,
    /// What the policy said to each. Nothing for a group that cannot be kept at all.
    pub(crate) verdicts: Vec<Option<Verdict>>,
}

impl PendingGroups {
    pub(crate) fn accesses_of(&self, indices: &[usize]) -> Vec<ResourceAccess> {
        let groups = indices.iter().filter_map(|index| self.groups.get(*index));
        groups.flat_map(|group| group.accesses.iter().cloned()).collect()
    }
}
