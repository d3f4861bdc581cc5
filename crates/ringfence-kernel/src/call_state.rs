//! States of a call and their transitions.
//!
//! ```text
//!  Found ─────► Planned ─┬─────────────► Running ─┬──────────► Done
//!    ▲             │     │                 ▲      └► Finishing ─┤
//!    │ changed     │     ▼                 │            │       │
//!    │ arguments   │  WaitingForApproval ──┼► Approved  │       │
//!    └─────────────┼──┘  ▲      │  └───────┼► Declined ─┼───────┤
//!  Resumed ────────┼─────┘      │          │            │       │
//!                  └────────────┴──────────┴── error ───┴───────┘
//! ```
//!
//! `Invocation::drive` owns the call: it asks, waits, and hands the other states to a thread. `Invocation::advance` takes
//! those as far as that thread can. A thread whose caller gave up, or that would have to wait where it must not, ends in
//! `Abandoned`: then the reply is not its to give.
//!
//! Not here: the driver (`call.rs`), and what a step does (`invocation.rs`, `follow_up.rs`, `ask_approval.rs`,
//! `approval_turn.rs`).

use std::sync::Arc;

use crate::approval::ApprovalDenial;
use crate::pending_approval::{PendingApproval, UndecidedChanges};
use crate::tool_binding::{ErasedPlan, ErasedTool};
use crate::{Approval, ResourceAccess, ToolReply, Verdict};

/// State of a call between two steps.
pub(crate) enum CallState {
    /// The tool is known, and nothing was looked at.
    Found(Arc<dyn ErasedTool>),
    /// Suspended before and answered since. It is planned again and compared with what was approved.
    Resumed(Arc<dyn ErasedTool>),
    /// The accesses are known, and the policy has not decided.
    Planned(Plan),
    /// A rule requires approval. The call waits for its turn in the session, then for an answer.
    WaitingForApproval(Box<PendingApproval>),
    /// Approved, and to be decided once more by the rules that hold now.
    Approved(Box<PendingApproval>, Approval),
    /// Declined after a run: what needed no approval is kept.
    Declined(Box<PendingApproval>, ApprovalDenial),
    /// Authorized, with the begin record still to be written.
    Running(AuthorizedPlan),
    /// The run left changes to decide about.
    Finishing(UndecidedChanges),
    /// The end is recorded.
    Done(ToolReply),
    /// The reply is not this thread's to give.
    Abandoned,
}

/// What a call would do.
pub(crate) struct Plan {
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) accesses: Vec<ResourceAccess>,
}

/// A plan that may run, and why.
pub(crate) struct AuthorizedPlan {
    pub(crate) plan: Box<dyn ErasedPlan>,
    pub(crate) accesses: Vec<ResourceAccess>,
    pub(crate) verdict: Verdict,
    pub(crate) approval: Option<Approval>,
}
