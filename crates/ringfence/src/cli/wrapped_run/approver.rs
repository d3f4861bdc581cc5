//! Approver of a wrapped run: the command line approves its own start, and what comes later has an approver of its own.
//!
//! That one asks in place, on the program's terminal; without a terminal, or with `--raw-terminal`, a question waits for another
//! frontend; `--approve` may settle it without a question.
//!
//! Not here: the dialog on the program's terminal (`terminal_relay.rs`).

use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance,
};

use crate::process::messages::print_error;

/// The person who started a wrapped run.
#[derive(Debug)]
pub(crate) struct WrappedRunApprover {
    /// Whether the program runs: from then on the command line does not answer any more.
    pub(crate) is_running: Arc<AtomicBool>,
    pub(crate) during: Box<dyn Approver>,
}

/// Leaves the answer to another frontend.
#[derive(Debug)]
pub(crate) struct OtherFrontendApprover {
    /// Whether the person is told on standard error. On a terminal that the program draws on, it would be in the way.
    pub(crate) announces: bool,
}

impl Approver for OtherFrontendApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        if self.announces {
            let (summary, id) = (request.preview.summary(), &request.id);
            print_error(&format!("approval required: {summary}; run `ringfence approvals answer {id}` in a terminal"));
        }
        Box::pin(pending())
    }
}

impl Approver for WrappedRunApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        if !self.is_running.load(Ordering::Acquire) {
            let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
            let approval = Approval { assurance: Assurance::Person, by: None };
            return Box::pin(ready(ApproverReply::Decided(ApprovalDecision { response, approval })));
        }
        self.during.ask(request)
    }
}
