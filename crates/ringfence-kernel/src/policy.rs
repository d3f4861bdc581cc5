//! Policies: allow, ask or deny for a planned call.
//!
//! The policy sees what would happen, resolved, and never the arguments' text.
//!
//! Not here: asking (`approval.rs`), and the policies themselves (`preset.rs`, `layered_rules.rs`, `granted_rules.rs`).

use std::fmt;

use crate::grant::Grant;
use crate::resource::ResourceAccess;
use crate::rule_text::RuleText;
use crate::session::Session;
use crate::taint::{Taint, TaintSet};
use crate::verdict::{PolicyRevision, Verdict, strictest};

/// Decides about plans. Where it cannot decide, it asks.
pub trait Policy: Send + Sync + fmt::Debug {
    /// The decision about one of the accesses of a plan.
    fn evaluate(&self, access: &ResourceAccess, request: &PolicyRequest<'_>) -> Verdict;

    /// The decision about the whole plan: the strictest one about any of its accesses.
    fn decide(&self, request: &PolicyRequest<'_>) -> Verdict {
        let judged = request.accesses.iter().map(|access| self.evaluate(access, request));
        strictest(judged).unwrap_or_else(Verdict::unknown_effect)
    }

    /// The narrowest rule that would let this call happen from now on, where a person may grant one.
    fn narrowest_grant(&self, _: &PolicyRequest<'_>) -> Option<RuleText> {
        None
    }

    /// The revision of the decisions for this caller, whatever the accesses of the request. `None` where decisions may
    /// differ from one request to the next.
    fn revision(&self, _: &PolicyRequest<'_>) -> Option<PolicyRevision> {
        None
    }

    /// From now on these grants hold, and no others. False when they did already.
    fn set_grants(&self, _: &[Grant]) -> bool {
        false
    }
}

/// A planned call, as the policy sees it.
#[derive(Debug)]
pub struct PolicyRequest<'a> {
    /// The calling session.
    pub session: &'a Session,
    /// Name of the tool.
    pub tool: &'a str,
    /// Every access of the plan.
    pub accesses: &'a [ResourceAccess],
    /// The session's taint at the time of the request.
    pub taint: TaintSet,
    /// For each taint, the number of accesses that add it.
    added_counts: [usize; Taint::ALL.len()],
}

impl<'a> PolicyRequest<'a> {
    /// A request with the session's taint at this time.
    pub fn new(session: &'a Session, tool: &'a str, accesses: &'a [ResourceAccess], taint: TaintSet) -> Self {
        let raised: Vec<Taint> = accesses.iter().filter_map(Taint::from_access).collect();
        let added_counts = Taint::ALL.map(|taint| raised.iter().filter(|raised| **raised == taint).count());
        Self { session, tool, accesses, taint, added_counts }
    }

    /// The taint that the call adds.
    pub(crate) fn added_taint(&self) -> TaintSet {
        self.added_taint_except(None)
    }

    /// The session's taint after every access but this one.
    pub(crate) fn taint_without(&self, access: &ResourceAccess) -> TaintSet {
        match self.added_taint().is_empty() {
            true => self.taint,
            false => self.added_taint_except(Taint::from_access(access)).iter().fold(self.taint, TaintSet::with),
        }
    }

    fn added_taint_except(&self, less: Option<Taint>) -> TaintSet {
        let raised = Taint::ALL.into_iter().zip(self.added_counts);
        raised.filter(|(taint, count)| *count > usize::from(less == Some(*taint))).map(|(taint, _)| taint).collect()
    }
}
