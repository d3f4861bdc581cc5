//! Who may do what.
//!
//! A `Ticket` proves that one call was allowed. Only the road makes one and a tool cannot run without one,
//! so there is no way around the gate: the compiler keeps it, not the callers.
//!
//! Not here: how a person is asked. A front brings its own `Approver`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Context, Preset, ToolError};

/// The right to run one planned call.
#[derive(Debug)]
pub struct Ticket<'a> {
    cx: &'a Context<'a>,
    change: String,
    approved: bool,
}

impl<'a> Ticket<'a> {
    pub(crate) fn new(cx: &'a Context<'a>, change: String, approved: bool) -> Self {
        Self { cx, change, approved }
    }

    pub fn context(&self) -> &'a Context<'a> {
        self.cx
    }

    /// The id of the change that this call makes. Empty for a call that changes nothing.
    pub fn change(&self) -> &str {
        &self.change
    }

    /// Whether a person saw this plan and said yes. Then what they saw is what must happen, and a target
    /// that moved meanwhile is a conflict.
    pub fn approved(&self) -> bool {
        self.approved
    }

    /// To be called right before the world changes. An error means that nobody waits any more: stop.
    pub fn commit(&self) -> Result<(), ToolError> {
        self.cx.signal().commit()
    }
}

/// What a person is asked.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequest {
    pub id: String,
    /// The call that waits.
    pub step_id: String,
    pub session: String,
    pub tool: String,
    pub args: Value,
    pub reason: String,
    /// The rule that wants it asked.
    pub rule: &'static str,
    pub preview: String,
    /// What the preview showed; another one is another request.
    pub fingerprint: String,
}

/// What they said.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalResponse {
    pub approved: bool,
    /// Arguments to use instead of the ones asked about.
    #[serde(default)]
    pub modified_args: Option<Value>,
    #[serde(default)]
    pub reason: Option<String>,
}

/// Puts a request to a person and waits for the answer.
pub trait Approver: Send + Sync + fmt::Debug {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApprovalResponse> + Send + 'a>>;
}

/// Nobody is there to be asked, so nothing is approved.
#[derive(Clone, Debug)]
pub struct Nobody {
    /// What the caller can do instead, where a looser preset would do.
    pub advice: String,
}

impl Approver for Nobody {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApprovalResponse> + Send + 'a>> {
        let reason = match request.rule {
            Preset::ASKS => format!("nobody is here to approve it; {}", self.advice),
            _ => "nobody is here to approve it; a person has to do this".to_owned(),
        };
        let reason = Some(reason);
        Box::pin(std::future::ready(ApprovalResponse { reason, ..ApprovalResponse::default() }))
    }
}
