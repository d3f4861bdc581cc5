//! Integration tests of the sandbox: real programs in real jails, as root and as a plain user.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops at the first surprise, and says so")]
#![allow(clippy::disallowed_methods, reason = "tests are the host too, with services that no program must reach")]

mod egress;
mod escapes;
mod exit_reasons;
mod fallback;
mod files;
mod fixture;
mod hidden_proc;
mod host_leaks;
mod isolation_between_runs;
mod memory;
mod name_network;
mod process_lifetimes;
mod programs;
mod renames;
mod resource_exhaustion;
mod shells;
mod terminal;
mod tool_caches;
mod wrapped;
mod wrapped_fixture;
