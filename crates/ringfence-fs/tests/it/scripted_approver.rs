//! Scripted approver, which can act on the workspace before it answers.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance,
};

type BeforeAnswer = Box<dyn FnOnce() + Send>;

/// Says yes to everything, or no, or that the answer comes later.
#[derive(Clone)]
pub(crate) struct ScriptedApprover {
    approves: bool,
    defers: bool,
    requests: Arc<Mutex<Vec<ApprovalRequest>>>,
    before_answer: Arc<Mutex<Option<BeforeAnswer>>>,
}

impl ScriptedApprover {
    pub(crate) fn approving() -> Self {
        Self { approves: true, defers: false, requests: Arc::default(), before_answer: Arc::default() }
    }

    pub(crate) fn deferring() -> Self {
        Self { defers: true, ..Self::approving() }
    }

    pub(crate) fn denying() -> Self {
        Self { approves: false, ..Self::approving() }
    }

    /// Does this before the next answer.
    pub(crate) fn before_answer(&self, act: impl FnOnce() + Send + 'static) {
        *self.before_answer.lock().unwrap() = Some(Box::new(act));
    }

    /// The last request.
    #[track_caller]
    pub(crate) fn last_request(&self) -> ApprovalRequest {
        self.requests.lock().unwrap().last().expect("nobody was asked").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

impl Approver for ScriptedApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        self.requests.lock().unwrap().push(request.clone());
        if let Some(act) = self.before_answer.lock().unwrap().take() {
            act();
        }
        if self.defers {
            return Box::pin(ready(ApproverReply::Deferred));
        }
        let approval = Approval { assurance: Assurance::Person, by: None };
        let response = ApprovalResponse { approved: self.approves, ..ApprovalResponse::default() };
        Box::pin(ready(ApproverReply::Decided(ApprovalDecision { response, approval })))
    }
}

impl fmt::Debug for ScriptedApprover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Person").field("approves", &self.approves).finish_non_exhaustive()
    }
}
