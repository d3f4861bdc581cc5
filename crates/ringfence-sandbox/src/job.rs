//! Run jobs: the command, its observer, and its result.
//!
//! `RunResult` says what happened to a program that was started; `JailError` that none was. A caller never has to guess
//! which: a program that could not be confined is not started.
//!
//! Not here: how any of it is done.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::WorkspaceView;

use crate::environment::RunEnvironmentError;
use crate::isolation_status::Isolation;
use crate::limits::JailLimits;
use crate::mounted_overlay::MountedOverlay;
use crate::output::CapturedOutput;
use crate::program_network::ProgramNetwork;
use crate::toolchains::Toolchain;
use crate::wrapped_environment::WrappedEnvironment;

/// One program to be run in a jail of its own.
#[derive(Debug)]
pub struct JailJob<'a> {
    /// The program and its arguments. It is looked up on the jail's own `PATH`.
    pub argv: Vec<OsString>,
    /// Files of the run itself, such as a script.
    pub files: Vec<JailFile>,
    /// Paths below the workspace that it finds empty, besides those of the view.
    pub masked: Vec<PathBuf>,
    /// The caller's variables, laid over the fixed ones.
    pub env: BTreeMap<String, String>,
    pub limits: JailLimits,
    /// Its view of the files: the workspace at `/workspace`, the rest at `/mnt/<alias>`.
    pub view: &'a WorkspaceView,
    /// Read-only extras, where they are on the host.
    pub toolchains: &'a [Toolchain],
    /// The way out to the network, if one is granted.
    pub egress: Option<OwnedFd>,
    /// Standard input of an interactive program; `None` for an empty one. Its total output has no limit, because the
    /// reader at the other end bounds it.
    pub stdin: Option<&'a OwnedFd>,
    /// Capture of its output.
    pub output: OutputCapture,
    /// Descriptor 9 of the program, for a shell that reports its final directory.
    pub directory_report: Option<&'a OwnedFd>,
    /// A network that it shares with other programs of the same name for it; `None` for one of its own.
    pub network: Option<u64>,
    /// The place of a wrapped program: real paths, the person's identity, layers on disk, a terminal. `env` is its whole
    /// environment then, and `network` is not used.
    pub wrapped: Option<&'a WrappedEnvironment<'a>>,
}

/// Capture of a program's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputCapture {
    /// Both streams, each by itself.
    #[default]
    Separate,
    /// Both streams as one, in the order of writing, as standard output.
    Merged,
    /// As `Merged`, of a program that may print any amount: the observer bounds it.
    Streamed,
    /// As `Separate`, of a program that may print any amount: the observer bounds it.
    StreamedSeparately,
}

/// A read-only file that the program finds at `/run/ringfence/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JailFile {
    pub name: String,
    pub bytes: Vec<u8>,
    /// A file below the workspace that it is mounted over as well. Nothing happens where there is none.
    pub over: Option<PathBuf>,
}

impl JailFile {
    pub fn new(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), bytes: bytes.into(), over: None }
    }
}

/// Observer of a running program.
pub trait ProgramObserver {
    /// Output, as it comes.
    fn on_output(&self, stream: OutputStream, bytes: &[u8]);

    /// Whether the program is to be ended. Asked at least every ten milliseconds.
    fn should_stop(&self) -> bool;

    /// A wrapped program runs.
    fn on_started(&self, _: StartedProgram) {}

    /// A signal for the program, once: it goes to its foreground process group. Asked as often as `should_stop`, for a
    /// wrapped program only.
    fn signal(&self) -> Option<i32> {
        None
    }

    /// The overlay on the workspace of a wrapped program, which is about to start.
    fn on_mounted(&self, _mount: MountedOverlay) {}

    /// Something that is watched beside the program.
    fn wake_source(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// `wake_source` is readable.
    fn on_wake(&self) {}
}

/// What the host has of a wrapped program that runs.
#[derive(Debug)]
pub struct StartedProgram {
    pub network: ProgramNetwork,
    /// The program finds what is written here at `/run/ringfence/refused`.
    pub refusals: File,
    /// Records of its calls, if there are any.
    pub records: Option<OwnedFd>,
}

/// Output stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Err,
}

impl OutputStream {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Err => "stderr",
        }
    }
}

/// The result of a run. None of its processes is alive any more.
#[derive(Debug)]
pub struct RunResult {
    /// As a shell says it: the status, or 128 and the signal.
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub exit_reason: ExitReason,
    /// Whether a process could not be started because there were too many. Known only where a cgroup counts them.
    pub process_limit_hit: bool,
    pub stdout: CapturedOutput,
    pub stderr: CapturedOutput,
    pub duration: Duration,
    /// The upper directory of the workspace's overlay, made by the program and therefore untrusted: that of the layer, if
    /// the program was a wrapped one. `None` where the run ended before it had one.
    pub upper: Option<OwnedFd>,
    /// The isolation in effect. Empty where the run ended before it was.
    pub isolation: Vec<Isolation>,
}

/// Exit reason of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    Exit,
    Signal,
    Timeout,
    Cancelled,
    Memory,
    Cpu,
    Output,
}

impl ExitReason {
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

/// A run that did not start, or whose result is unknown.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// This machine, or this workspace, cannot be confined.
    #[error("sandbox unavailable: {reason}; {hint}")]
    Unavailable { reason: String, hint: String },
    /// A port of this machine that cannot be published.
    #[error("{reason}; {hint}")]
    Port { reason: String, hint: String },
    #[error("program `{name}` not found in the sandbox")]
    ProgramNotFound { name: String },
    /// A variable that a caller may not set.
    #[error(transparent)]
    Environment(#[from] RunEnvironmentError),
    /// All that was in the jail is dead, but not by the program's doing or ours.
    #[error("{0} exited unexpectedly, which ended the run; try again")]
    UnexpectedExit(&'static str),
    #[error("the sandbox could not {0}")]
    Io(&'static str, #[source] std::io::Error),
}

impl JailError {
    pub(crate) fn unavailable(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), hint: hint.into() }
    }

    pub(crate) fn port(reason: String, hint: String) -> Self {
        Self::Port { reason, hint }
    }

    /// For `map_err`: what could not be done.
    pub(crate) fn io<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::Io(what, cause.into())
    }
}
