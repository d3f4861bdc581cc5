//! Integration tests of the file tools, through `Host::call`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says so"
)]
#![allow(clippy::disallowed_methods, reason = "tests look at the disk behind the fence's back")]

mod attacks;
mod basics;
mod concurrent_writers;
mod deadlines;
mod deferred_approval;
mod existence_leaks;
mod fixture;
mod fuzz;
mod identity;
mod layers;
mod model;
mod model_dialects;
mod model_edits;
mod model_patches;
mod no_op_changes;
mod overlay;
mod paths;
mod previews;
mod races;
mod regressions;
mod repositories;
mod search;
mod snapshot;
mod undo;
