//! Real programs in real jails, as root and as a plain user.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops at the first surprise, and says so")]

mod abuse;
mod attempts;
mod endings;
mod escapes;
mod files;
mod lives;
mod world;
