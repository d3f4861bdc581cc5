//! Sandbox for programs: they see the workspace and nothing else. We call it the jail.
//!
//! Not here: policy, journal and the files themselves. The jail gets a `WorkspaceView` and gives back what the program left.

use std::os::fd::BorrowedFd;
use std::process::ExitCode;

mod background_job;
mod bwrap;
mod bwrap_init;
mod bwrap_launcher;
mod call_recorder;
mod cargo_home;
mod cgroup;
mod cgroup_paths;
mod command_args;
mod command_session;
mod command_text;
mod diagnose;
mod environment;
mod etc;
mod init;
mod isolation;
mod isolation_status;
mod jail;
mod job;
mod job_slots;
mod job_tool;
mod landlock_rules;
mod layer_disk_bound;
mod layer_source;
mod limits;
mod lock_budget;
mod lockdown;
mod memory_monitor;
mod mount_points;
mod mounted_overlay;
mod mounts;
mod name_network;
mod output;
mod port_offers;
mod program;
mod program_control;
mod program_network;
mod program_runner;
mod protocol;
mod published_ports;
mod refusals_file;
mod rename_helper;
mod rename_requests;
mod report;
mod rtnetlink;
mod run;
mod run_code;
mod run_mounts;
mod run_program;
mod run_request;
mod sandbox;
mod scratch;
mod seccomp;
mod seccomp_rules;
mod shell;
mod spawner;
mod spawner_handle;
mod sys;
mod terminal;
mod tool_caches;
mod toolchain_secrets;
mod toolchains;
mod tree_rename;
mod workspace_follower;
mod wrapped;
mod wrapped_environment;
mod wrapped_mounts;

pub use bwrap::{JailFallback, needs_bwrap_fallback};
pub use call_recorder::{CallSink, ObservedCall, PathLookup, ProgramStart};
pub use command_session::{CommandSessions, JobStatus};
pub use diagnose::{
    SandboxDenial, SandboxDenialKind, WRITABLE, WRITABLE_BY_BWRAP, diagnose_stderr, process_limit_denial,
};
pub use environment::{PROXY_PORT, RunEnvironmentError};
pub use isolation::probe;
pub use isolation_status::{Isolation, IsolationStatus};
pub use job::{
    ExitReason, JailError, JailFile, JailJob, OutputCapture, OutputStream, ProgramObserver, RunResult, StartedProgram,
};
pub use limits::JailLimits;
pub use mounted_overlay::MountedOverlay;
pub use output::{CapturedOutput, HeadTailBuffer};
pub use program::{JailProgram, OtherChanges, ProgramChanges};
pub use program_network::ProgramNetwork;
pub use program_runner::{FinishedRun, ProgramPhase, ProgramRunner};
pub use published_ports::{PublishedPort, PublishedPortError};
pub use report::ProgramReport;
pub use run_code::{RunCodeSetup, register};
pub use run_program::{
    HostGroup, RUN_PROGRAM, RunAttachments, RunProgramReply, SignalSource, WrappedIo, WrappedOutput, WrappedRunSetup,
    loopback_address, register_run_program,
};
pub use run_request::command_time;
pub use sandbox::{Sandbox, SandboxSettings};
pub use scratch::{empty_view, read_upper_file};
pub use terminal::{TerminalRelay, TerminalSize};
pub use tool_caches::{ToolCache, ToolCacheProblem};
pub use toolchains::{Toolchain, detect};
pub use workspace_follower::RunNews;
pub use wrapped_environment::{
    PlacedFile, RecordedCalls, WrappedCache, WrappedEnvironment, WrappedTerminal, WrappedUser,
};

/// For a server that runs for long: workers come and go, each on a heap of its own, and glibc gives little of those back.
pub fn limit_malloc_arenas() {
    const HEAPS: i32 = 2;
    sys::set_malloc_arenas(HEAPS);
}

/// Has the kernel begin to write the contents of a file to the disk, without waiting for that. It says nothing about success:
/// an error is one of the next fsync.
pub fn start_writeback(file: BorrowedFd<'_>) {
    sys::start_writeback(file);
}

/// For the first line of `main` of a program that runs others in jails: it is started again as one of its helpers.
/// Something, if this process is one; it has done its work then.
pub fn run_helper_if_requested() -> Option<ExitCode> {
    spawner::spawner_main()
        .or_else(bwrap_launcher::launcher_main)
        .or_else(bwrap_init::bwrap_init_main)
        .or_else(isolation::probe_main)
}
