//! What a front hears of a run while it goes on, and what it is asked.
//!
//! Events come in the order in which things happen, from one run one at a time, but for the output of programs, which
//! comes from their own threads. What the model says in them is shown and never obeyed.
//!
//! Not here: how they look. A terminal, a line of JSON and an editor each have their own way.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{ApprovalRequest, Approver, ErrorKind, Word};

use crate::message::RequestedCall;
use crate::model::Usage;
use crate::outcome::Outcome;

/// Something that happened in a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The model is asked, for the first time in this step.
    Step {
        step: u32,
    },
    /// A piece of an answer that is still coming.
    Text {
        text: &'a str,
    },
    Reasoning {
        text: &'a str,
    },
    /// A call is coming. Nothing is done with it until the answer is whole.
    CallComing {
        name: &'a str,
    },
    /// The answer failed on its way. What came of it counts for nothing, and it is asked for again.
    BeganAgain {
        why: &'a str,
        wait: Duration,
        attempt: u32,
    },
    /// The answer is whole.
    Answered {
        text: &'a str,
    },
    /// What the host found odd, or told the model.
    Note {
        text: &'a str,
    },
    /// A call is made now.
    Call {
        call: &'a RequestedCall,
    },
    /// What a program prints.
    Output {
        call_id: &'a str,
        stream: &'a str,
        text: &'a str,
    },
    /// The call waits for a person.
    Waiting {
        request: &'a ApprovalRequest,
    },
    /// What came of a call: the one result that the model gets for it.
    Result {
        call: &'a RequestedCall,
        text: &'a str,
        error: Option<ErrorKind>,
        duration: Duration,
    },
    /// Something was left out of what the model is shown, because it takes no more.
    Compacted {
        results: usize,
        messages: usize,
    },
    /// What was used so far.
    Usage {
        total: Usage,
        estimated: bool,
    },
    Finished {
        outcome: &'a Outcome,
    },
}

/// Who started the run: hears of it, and is asked where it goes in circles.
pub trait Front: Send + Sync + fmt::Debug {
    fn hear(&self, event: &Event<'_>);

    /// Whether to go on all the same. Nothing where nobody is there to say.
    fn go_on<'a>(&'a self, _why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(ready(None))
    }
}

/// Hears nothing, and nobody is there.
#[derive(Clone, Copy, Debug)]
pub struct Quiet;

impl Front for Quiet {
    fn hear(&self, _: &Event<'_>) {}
}

/// An approver that tells the front before it asks.
#[derive(Debug)]
pub struct Announced {
    pub approver: Box<dyn Approver>,
    pub front: Arc<dyn Front>,
}

impl Approver for Announced {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        self.front.hear(&Event::Waiting { request });
        self.approver.ask(request)
    }
}
