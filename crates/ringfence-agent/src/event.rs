//! Agent events and the observer of a run.
//!
//! Events come in order, one at a time for a run, but for the output of programs, which comes from their own threads.
//! Text of the model in them is shown and never obeyed.
//!
//! Not here: how they look. A terminal, a line of JSON and an editor each have their own way.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{ApprovalRequest, Approver, ApproverReply, ToolReply};

use crate::message::RequestedCall;
use crate::model::TokenUsage;
use crate::outcome::AgentOutcome;

/// Something that happened in a run.
#[derive(Clone, Copy, Debug)]
pub enum AgentEvent<'a> {
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
    CallStarted {
        name: &'a str,
    },
    /// The response failed. Its parts are discarded, and the request is repeated.
    Retrying {
        why: &'a str,
        wait: Duration,
        attempt: u32,
    },
    /// The answer is whole.
    ResponseComplete {
        text: &'a str,
    },
    /// A note of the host: an oddity, or a message to the model.
    Note {
        text: &'a str,
    },
    /// A call is made now.
    Call {
        call: &'a RequestedCall,
    },
    /// Output of a program.
    Output {
        call_id: &'a str,
        stream: &'a str,
        text: &'a str,
    },
    /// The call waits for a person.
    AwaitingApproval {
        request: &'a ApprovalRequest,
    },
    /// The reply to a call, with the text that the model gets.
    Result {
        call: &'a RequestedCall,
        reply: &'a ToolReply,
        duration: Duration,
    },
    /// Something was left out of what the model is shown, because it takes no more.
    Compacted {
        results: usize,
        messages: usize,
    },
    /// Tokens used so far.
    Usage {
        total: TokenUsage,
        estimated: bool,
    },
    Finished {
        outcome: &'a AgentOutcome,
    },
}

/// Observer of a run, which also decides whether a repeating run goes on.
pub trait AgentObserver: Send + Sync + fmt::Debug {
    fn on_event(&self, event: &AgentEvent<'_>);

    /// Whether to go on all the same. `None` where there is no user to decide.
    fn confirm_continue<'a>(&'a self, _why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        Box::pin(ready(None))
    }
}

/// Ignores every event, without a user.
#[derive(Clone, Copy, Debug)]
pub struct SilentObserver;

impl AgentObserver for SilentObserver {
    fn on_event(&self, _: &AgentEvent<'_>) {}
}

/// An approver that tells the front before it asks.
#[derive(Debug)]
pub struct AnnouncingApprover {
    pub approver: Box<dyn Approver>,
    pub observer: Arc<dyn AgentObserver>,
}

impl Approver for AnnouncingApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        self.observer.on_event(&AgentEvent::AwaitingApproval { request });
        self.approver.ask(request)
    }
}
