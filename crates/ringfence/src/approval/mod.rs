//! Approval modes: ask at the terminal, or decide without asking.
//!
//! Unattended approval requires `unattended = true` in the user's own config, and never counts as a
//! person's: secrets and protected paths stay refused.
//!
//! Not here: the terminal itself (`tty.rs`).

pub(crate) mod dialog;
pub(crate) mod dialog_lines;
pub(crate) mod dialog_screen;
pub(crate) mod terminal_keys;
pub mod tty;

use std::future::{Future, ready};
use std::pin::Pin;

use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, Approver, ApproverReply, Assurance, DenyApprover,
    Principal,
};

use crate::approval::tty::TtyApprover;
use crate::config::{AppSettings, ApprovalMode, Environment};

/// The approver of a front whose terminal is the user's own.
pub fn tty_approver(settings: &AppSettings, environment: &Environment) -> Box<dyn Approver> {
    approver_for(settings, || Box::new(TtyApprover::new(settings, environment)))
}

/// The approver of the settings; `ask` makes the front's own one where they require it.
pub fn approver_for(settings: &AppSettings, ask: impl FnOnce() -> Box<dyn Approver>) -> Box<dyn Approver> {
    match settings.approve {
        ApprovalMode::Ask => ask(),
        ApprovalMode::Never => Box::new(RefusingApprover("approval requests are disabled")),
        ApprovalMode::Policy => Box::new(RefusingApprover("only calls that the policy allows are run")),
        ApprovalMode::Always => Box::new(UnattendedApprover),
    }
}

/// Denies everything where no approver is available, with advice.
pub fn deny_all() -> DenyApprover {
    DenyApprover { advice: "run it on a terminal to approve it".to_owned() }
}

/// Says no, and why.
#[derive(Debug)]
struct RefusingApprover(&'static str);

impl Approver for RefusingApprover {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        Box::pin(ready(ApproverReply::Decided(ApprovalDecision::automatic_denial(self.0.to_owned()))))
    }
}

/// Says yes for a user who is not there and wanted it so.
#[derive(Debug)]
struct UnattendedApprover;

impl Approver for UnattendedApprover {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
        Box::pin(ready(ApproverReply::Decided(ApprovalDecision { response, approval: unattended_approval() })))
    }
}

/// Assurance of an answer that a program gave on behalf of the user.
pub(crate) fn unattended_approval() -> Approval {
    Approval { assurance: Assurance::Relayed, by: Some(Principal::person("unattended")) }
}
