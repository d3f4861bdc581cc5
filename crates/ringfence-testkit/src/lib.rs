//! Fixtures that the tests of the Ringfence crates share.
//!
//! Those that need the kernel or a FUSE library are behind a feature, so that a crate builds only what its tests use.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a fixture that cannot be made fails the test, and tells the person who runs it"
)]

#[cfg(feature = "kernel")]
pub mod approver;
#[cfg(feature = "kernel")]
pub mod audit_trace;
pub mod cpu_share;
pub mod escape_attempts;
pub mod escape_stage;
pub mod executable;
pub mod file_clock;
#[cfg(feature = "kernel")]
pub mod host;
pub mod mcp_client;
pub mod oauth_server;
pub mod patience;
pub mod requirement;
#[cfg(feature = "fuse")]
pub mod stalling_fs;
pub mod stdio_process;
#[cfg(feature = "kernel")]
pub mod store_suite;
pub mod subprocess;
pub mod swap_race;
pub mod world;
