//! Real programs in real jails, as root and as a plain user.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops at the first surprise, and says so")]
#![allow(clippy::disallowed_methods, reason = "tests are the host too, with services that no program must reach")]

mod abuse;
mod attempts;
mod between;
mod endings;
mod escapes;
mod fallback;
mod files;
mod hidden_proc;
mod lives;
mod memory;
mod programs;
mod told;
mod ways;
mod world;
