//! Who is asked: a person at the terminal, nobody, or nobody because the user wants it so.
//!
//! A yes that nobody gave is only ever said where the user's own config has `unattended = true`, and never counts as a
//! person's: secrets and protected paths stay refused.
//!
//! Not here: the terminal itself (`terminal.rs`).

use std::future::{Future, ready};
use std::pin::Pin;

use ringfence_kernel::{
    Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, Assurance, Nobody, Principal, Word,
};

use crate::config::{Environment, Settings};
use crate::terminal::Terminal;

/// What happens where the policy wants somebody asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approve {
    /// A person at the terminal is; without one it is denied.
    #[default]
    Ask,
    /// It is denied, whoever is there.
    Never,
    /// Only what a rule or a grant allows is done.
    Policy,
    /// It is done, as far as nobody in person is needed.
    Always,
}

impl Approve {
    pub const ALL: [Self; 4] = [Self::Ask, Self::Never, Self::Policy, Self::Always];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Never => "never",
            Self::Policy => "policy",
            Self::Always => "always",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|approve| approve.name() == name)
    }
}

/// The approver of a front whose terminal is the user's own.
pub fn at_terminal(settings: &Settings, environment: &Environment) -> Box<dyn Approver> {
    by_setting(settings, || Box::new(Terminal::new(settings, environment)))
}

/// The approver that the settings want, which asks in the front's own way where they want somebody asked.
pub fn by_setting(settings: &Settings, ask: impl FnOnce() -> Box<dyn Approver>) -> Box<dyn Approver> {
    match settings.approve {
        Approve::Ask => ask(),
        Approve::Never => Box::new(Silent("approval requests are turned off here")),
        Approve::Policy => Box::new(Silent("only what a rule allows is done here")),
        Approve::Always => Box::new(Unattended),
    }
}

/// Says no where nobody can be asked, and how it could be allowed.
pub fn nobody() -> Nobody {
    Nobody { advice: "at a terminal the user is asked".to_owned() }
}

/// Says no, and why.
#[derive(Debug)]
struct Silent(&'static str);

impl Approver for Silent {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        Box::pin(ready(Word::Now(Answered::no(self.0.to_owned()))))
    }
}

/// Says yes for a user who is not there and wanted it so.
#[derive(Debug)]
struct Unattended;

impl Approver for Unattended {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
        Box::pin(ready(Word::Now(Answered { response, approval: unattended() })))
    }
}

/// How sure an answer is that a program gave on behalf of the user.
pub(crate) fn unattended() -> Approval {
    Approval { assurance: Assurance::Relayed, by: Some(Principal::person("unattended")) }
}
