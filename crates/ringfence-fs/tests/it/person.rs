//! Somebody who is asked.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ringfence_kernel::{Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, Assurance};

/// Says no to everything.
#[derive(Clone, Debug)]
pub(crate) struct Person {
    asked: Arc<Mutex<Vec<ApprovalRequest>>>,
}

impl Person {
    pub(crate) fn saying_no() -> Self {
        Self { asked: Arc::default() }
    }

    /// The last request.
    #[track_caller]
    pub(crate) fn last(&self) -> ApprovalRequest {
        self.asked.lock().unwrap().last().expect("nobody was asked").clone()
    }
}

impl Approver for Person {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Answered> + Send + 'a>> {
        self.asked.lock().unwrap().push(request.clone());
        let approval = Approval { assurance: Assurance::Person, by: None };
        Box::pin(ready(Answered { response: ApprovalResponse::default(), approval }))
    }
}
