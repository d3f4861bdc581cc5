//! The jail: programs that see the workspace and nothing else.
//!
//! Not here: policy, journal and the files themselves. The jail gets a `View` and gives back what the program left.

use std::process::ExitCode;

mod bwrap;
mod cargo_home;
mod cgroup;
mod cgroup_paths;
mod claim;
mod denied;
mod environment;
mod etc;
mod filter;
mod filter_rules;
mod init;
mod inmate;
mod jail;
mod job;
mod launcher;
mod limits;
mod lock_budget;
mod lockdown;
mod memory_watch;
mod message;
mod mounts;
mod output;
mod report;
mod ruleset;
mod run;
mod run_code;
mod sandbox;
mod spawner;
mod sys;
mod toolchain_secrets;
mod toolchains;
mod walls;
mod warden;

pub use bwrap::{Fallback, falls_back};
pub use denied::{Barrier, Denied, WRITABLE, WRITABLE_BY_BWRAP, crowded, explain};
pub use environment::EnvironmentError;
pub use job::{Ended, EndedBy, Failure, Job, Script, Stream, Watch};
pub use limits::JailLimits;
pub use output::{Captured, HeadTail};
pub use run_code::{Jail, register};
pub use sandbox::{Sandbox, Settings};
pub use toolchains::{Toolchain, detect};
pub use walls::{Standing, Wall, probe};

/// For a server that runs for long: workers come and go, each on a heap of its own, and glibc gives little of those back.
pub fn bound_memory() {
    const HEAPS: i32 = 2;
    sys::bound_heaps(HEAPS);
}

/// For the first line of `main` of a program that runs others in jails: it is started again as one of its helpers.
/// Something, if this process is one; it has done its work then.
pub fn take_part() -> Option<ExitCode> {
    spawner::spawner_main().or_else(launcher::launcher_main).or_else(inmate::inmate_main).or_else(walls::probe_main)
}
