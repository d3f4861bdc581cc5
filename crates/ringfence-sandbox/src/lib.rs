//! The jail: programs that see the workspace and nothing else.
//!
//! Not here: policy, journal and the files themselves. The jail gets a `View` and gives back what the program left.

#[cfg_attr(not(test), expect(dead_code, reason = "the jail comes next"))]
mod cgroup;
mod denied;
#[cfg_attr(not(test), expect(dead_code, reason = "the jail comes next"))]
mod environment;
#[cfg_attr(not(test), expect(dead_code, reason = "the jail comes next"))]
mod etc;
mod filter;
#[cfg_attr(not(test), expect(dead_code, reason = "the jail comes next"))]
mod limits;
mod output;
#[cfg_attr(not(test), expect(dead_code, reason = "the jail comes next"))]
mod ruleset;
mod toolchains;
mod walls;

pub use denied::{Barrier, Denied, WRITABLE, explain};
pub use environment::EnvironmentError;
pub use limits::{JailLimits, LONGEST_WALL};
pub use output::{Captured, HeadTail};
pub use toolchains::{Toolchain, detect};
pub use walls::{Standing, Wall, probe, probe_main};
