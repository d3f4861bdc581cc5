//! What is to be run, who watches it, and how it ended.
//!
//! `Ended` says what happened to a program that was started; `Failure` that none was. A caller never has to guess
//! which: a program that could not be confined is not started.
//!
//! Not here: how any of it is done.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ringfence_kernel::View;

use crate::environment::EnvironmentError;
use crate::limits::JailLimits;
use crate::output::Captured;
use crate::toolchains::Toolchain;
use crate::walls::Wall;

/// One program to be run in a jail of its own.
#[derive(Debug)]
pub struct Job<'a> {
    /// The program and its arguments. It is looked up on the jail's own `PATH`.
    pub argv: Vec<OsString>,
    pub script: Script,
    /// The caller's variables, laid over the fixed ones.
    pub env: BTreeMap<String, String>,
    pub limits: JailLimits,
    /// What it sees of the files: the workspace at `/workspace`, the rest at `/mnt/<alias>`.
    pub view: &'a View,
    /// Read-only extras, where they are on the host.
    pub toolchains: &'a [Toolchain],
    /// The way out to the network, if one is granted.
    pub egress: Option<OwnedFd>,
    /// What it reads on standard input, for a program that is talked to. Nothing is there to be read without. Whoever
    /// talks to it bounds what it says, so that it may say as much as it likes altogether.
    pub input: Option<&'a OwnedFd>,
}

/// A file that the program finds at `/run/ringfence/<name>`.
#[derive(Clone, Debug)]
pub struct Script {
    pub name: &'static str,
    pub bytes: Vec<u8>,
}

/// Who looks on while a program runs.
pub trait Watch {
    /// Output, as it comes.
    fn output(&self, stream: Stream, bytes: &[u8]);

    /// Whether the program is to be ended. Asked at least every ten milliseconds.
    fn stopped(&self) -> bool;
}

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

impl Stream {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Out => "stdout",
            Self::Err => "stderr",
        }
    }
}

/// How a run ended. Nothing of it is alive any more.
#[derive(Debug)]
pub struct Ended {
    /// As a shell says it: the status, or 128 and the signal.
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub ended_by: EndedBy,
    /// Whether a process could not be started because there were too many. Known only where a cgroup counts them.
    pub crowded: bool,
    pub stdout: Captured,
    pub stderr: Captured,
    pub duration: Duration,
    /// The layer above the workspace with what the program changed, made by the program and therefore by nobody that is
    /// trusted. Nothing, where the run was ended before it had one.
    pub upper: Option<OwnedFd>,
    /// The walls that stood. None, where the run was ended before they did.
    pub walls: Vec<Wall>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Exit,
    Signal,
    Timeout,
    Cancelled,
    Memory,
    Cpu,
    Output,
}

impl EndedBy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Signal => "signal",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Output => "output",
        }
    }
}

/// Why nothing was run, or why nobody knows how it ended.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// This machine, or this workspace, cannot be confined.
    #[error("no jail here: {reason}; {hint}")]
    Unavailable { reason: String, hint: String },
    #[error("there is no program `{name}` in the jail")]
    NoProgram { name: String },
    /// A variable that a caller may not set.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// All that was in the jail is dead, but not by the program's doing or ours.
    #[error("{0} ended unexpectedly, and the run with it; try again")]
    Lost(&'static str),
    #[error("the jail could not {0}")]
    Io(&'static str, #[source] std::io::Error),
}

impl Failure {
    pub(crate) fn unavailable(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), hint: hint.into() }
    }

    /// For `map_err`: what could not be done.
    pub(crate) fn io<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::Io(what, cause.into())
    }
}
