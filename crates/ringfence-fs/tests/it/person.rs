//! Somebody who is asked, and what happens while they think.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ringfence_kernel::{Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, Assurance, Word};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// Says yes to everything, or no, or that the answer comes later.
#[derive(Clone)]
pub(crate) struct Person {
    approves: bool,
    puts_off: bool,
    asked: Arc<Mutex<Vec<ApprovalRequest>>>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

impl Person {
    pub(crate) fn saying_yes() -> Self {
        Self { approves: true, puts_off: false, asked: Arc::default(), meanwhile: Arc::default() }
    }

    pub(crate) fn putting_off() -> Self {
        Self { puts_off: true, ..Self::saying_yes() }
    }

    pub(crate) fn saying_no() -> Self {
        Self { approves: false, ..Self::saying_yes() }
    }

    /// Does this before the next answer.
    pub(crate) fn meanwhile(&self, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(act));
    }

    /// The last request.
    #[track_caller]
    pub(crate) fn last(&self) -> ApprovalRequest {
        self.asked.lock().unwrap().last().expect("nobody was asked").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Approver for Person {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        self.asked.lock().unwrap().push(request.clone());
        if let Some(act) = self.meanwhile.lock().unwrap().take() {
            act();
        }
        if self.puts_off {
            return Box::pin(ready(Word::Later));
        }
        let approval = Approval { assurance: Assurance::Person, by: None };
        let response = ApprovalResponse { approved: self.approves, ..ApprovalResponse::default() };
        Box::pin(ready(Word::Now(Answered { response, approval })))
    }
}

impl fmt::Debug for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Person").field("approves", &self.approves).finish_non_exhaustive()
    }
}
