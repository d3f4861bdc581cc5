//! Scripted approver: answers what a test wrote down, and remembers what it was asked.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance, Principal,
};
use serde_json::Value;
use tokio::sync::Notify;

type BeforeAnswer = Box<dyn FnOnce() + Send>;

/// What an approver says when there are no more answers.
#[derive(Clone, Debug, Default)]
pub enum AfterAnswers {
    /// Nothing: the request waits.
    #[default]
    Wait,
    /// That the answer comes later.
    Defer,
    /// The same, again and again.
    Repeat(ApprovalDecision),
}

/// Gives its answers in order. Clones share everything.
#[derive(Clone, Default)]
pub struct ScriptedApprover {
    /// The answers that are left.
    pub answers: Arc<Mutex<VecDeque<ApprovalDecision>>>,
    /// Every request, in order.
    pub asked: Arc<Mutex<Vec<ApprovalRequest>>>,
    /// Notified of every request.
    pub asked_notify: Arc<Notify>,
    after: AfterAnswers,
    before_answer: Arc<Mutex<Option<BeforeAnswer>>>,
}

impl ScriptedApprover {
    /// Gives these answers, and then none: further requests wait.
    pub fn with_answers(answers: impl IntoIterator<Item = ApprovalDecision>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
    }

    /// Gives one answer to every request.
    #[must_use]
    pub fn always(answer: ApprovalDecision) -> Self {
        Self { after: AfterAnswers::Repeat(answer), ..Self::default() }
    }

    /// Approves everything.
    #[must_use]
    pub fn approving() -> Self {
        Self::always(approve())
    }

    /// Denies everything, without a reason.
    #[must_use]
    pub fn denying() -> Self {
        Self::always(decision_by_person(ApprovalResponse::default()))
    }

    /// Says of everything that the answer comes later.
    #[must_use]
    pub fn deferring() -> Self {
        Self { after: AfterAnswers::Defer, ..Self::default() }
    }

    /// Does this before the next answer.
    ///
    /// # Panics
    /// If a test panicked while it was asked.
    pub fn before_answer(&self, act: impl FnOnce() + Send + 'static) {
        *self.before_answer.lock().unwrap() = Some(Box::new(act));
    }

    /// The last request.
    ///
    /// # Panics
    /// If there was none.
    #[must_use]
    #[track_caller]
    pub fn last_request(&self) -> ApprovalRequest {
        self.asked.lock().unwrap().last().expect("there was no request").clone()
    }

    /// How many requests there were.
    ///
    /// # Panics
    /// If a test panicked while it was asked.
    #[must_use]
    pub fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The `path` argument of every request.
    ///
    /// # Panics
    /// If a test panicked while it was asked.
    #[must_use]
    pub fn asked_paths(&self) -> Vec<Value> {
        self.asked.lock().unwrap().iter().map(|request| request.args["path"].clone()).collect()
    }
}

impl Approver for ScriptedApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        self.asked.lock().unwrap().push(request.clone());
        self.asked_notify.notify_one();
        if let Some(act) = self.before_answer.lock().unwrap().take() {
            act();
        }
        match (self.answers.lock().unwrap().pop_front(), &self.after) {
            (Some(answer), _) => Box::pin(ready(ApproverReply::Decided(answer))),
            (None, AfterAnswers::Repeat(answer)) => Box::pin(ready(ApproverReply::Decided(answer.clone()))),
            (None, AfterAnswers::Defer) => Box::pin(ready(ApproverReply::Deferred)),
            (None, AfterAnswers::Wait) => Box::pin(pending()),
        }
    }
}

impl fmt::Debug for ScriptedApprover {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScriptedApprover").field("after", &self.after).finish_non_exhaustive()
    }
}

/// Approved.
#[must_use]
pub fn approve() -> ApprovalDecision {
    decision_by_person(ApprovalResponse { approved: true, ..ApprovalResponse::default() })
}

/// Denied, with a reason.
#[must_use]
pub fn deny() -> ApprovalDecision {
    decision_by_person(ApprovalResponse { reason: Some("I do not like it".to_owned()), ..ApprovalResponse::default() })
}

/// Approved with other arguments.
#[must_use]
pub fn approve_with_changes(arguments: Value) -> ApprovalDecision {
    decision_by_person(ApprovalResponse {
        approved: true,
        modified_args: Some(arguments),
        ..ApprovalResponse::default()
    })
}

/// An answer that a person gave at a terminal of ours.
#[must_use]
pub fn decision_by_person(response: ApprovalResponse) -> ApprovalDecision {
    ApprovalDecision {
        response,
        approval: Approval { assurance: Assurance::Person, by: Some(Principal::person("the approver")) },
    }
}
