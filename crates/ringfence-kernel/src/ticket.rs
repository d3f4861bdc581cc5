//! Tickets: the right to run one planned call.
//!
//! Only the kernel makes a `Ticket` and a tool cannot run without one, so there is no way around the gate: the compiler
//! keeps it, not the callers.
//!
//! Not here: who is given one (`invocation.rs`).

use std::cell::RefCell;

use crate::approval::Approval;
use crate::call_context::CallContext;
use crate::error::ToolError;
use crate::resource::{PolicyAction, ResourceAccess};

/// The right to run one planned call.
#[derive(Debug)]
pub struct Ticket<'a> {
    cx: &'a CallContext<'a>,
    change_id: String,
    approval: Option<&'a Approval>,
    accesses: &'a [ResourceAccess],
    /// Groups of changes that turned out not to be possible.
    withheld: RefCell<Vec<(usize, ToolError)>>,
}

impl<'a> Ticket<'a> {
    pub(crate) fn new(
        cx: &'a CallContext<'a>,
        change_id: String,
        approval: Option<&'a Approval>,
        accesses: &'a [ResourceAccess],
    ) -> Self {
        Self { cx, change_id, approval, accesses, withheld: RefCell::default() }
    }

    /// The context of the call, with its limits and its cancellation.
    pub fn context(&self) -> &'a CallContext<'a> {
        self.cx
    }

    /// The id of the change that this call makes. Empty for a call that changes nothing.
    pub fn change_id(&self) -> &str {
        &self.change_id
    }

    /// Whether a person approved this plan. Then the run must do exactly what was previewed, and a target that moved
    /// meanwhile is a conflict.
    pub fn is_approved(&self) -> bool {
        self.approval.is_some()
    }

    /// The approval of this plan; `None` where the policy allowed it without one.
    pub fn approval(&self) -> Option<&'a Approval> {
        self.approval
    }

    /// Whether the decision covers permanent loss: the plan declared it, and an approval of anything else does not.
    pub fn may_lose(&self) -> bool {
        self.accesses.iter().any(|access| access.action == PolicyAction::Lose)
    }

    /// The accesses that the plan declared: the policy judged these, and nothing else.
    pub fn accesses(&self) -> &'a [ResourceAccess] {
        self.accesses
    }

    /// Says that a group of the changes that the ticket is for is not made, because it turned out that it cannot be.
    pub fn withhold(&self, group: usize, why: ToolError) {
        self.withheld.borrow_mut().push((group, why));
    }

    /// Every group that was withheld.
    pub fn withheld(&self) -> Vec<(usize, ToolError)> {
        self.withheld.borrow().clone()
    }

    /// Commits the call; call it right before the first change. An error means that the caller stopped waiting: stop.
    pub fn commit(&self) -> Result<(), ToolError> {
        self.cx.check()?;
        self.cx.commit_state().commit()
    }
}
