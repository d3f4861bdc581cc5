//! Integration tests of the audit log.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says so"
)]
#![allow(clippy::disallowed_methods, reason = "tests change the log behind its back")]

mod audit;
mod commit_log;
