//! The jail: programs that see the workspace and nothing else.
//!
//! Not here: policy, journal and the files themselves. The jail gets a `View` and gives back what the program left.

mod cgroup;
mod claim;
mod denied;
mod environment;
mod etc;
mod filter;
mod init;
mod jail;
mod job;
mod limits;
mod lockdown;
mod message;
mod mounts;
mod output;
mod ruleset;
mod run;
mod sandbox;
mod spawner;
mod sys;
mod toolchains;
mod walls;
mod warden;

pub use denied::{Barrier, Denied, WRITABLE, explain};
pub use environment::EnvironmentError;
pub use job::{Ended, EndedBy, Failure, Job, Script, Stream, Watch};
pub use limits::{JailLimits, LONGEST_WALL};
pub use output::{Captured, HeadTail};
pub use sandbox::{Sandbox, Settings};
pub use spawner::spawner_main;
pub use toolchains::{Toolchain, detect};
pub use walls::{Standing, Wall, probe, probe_main};
