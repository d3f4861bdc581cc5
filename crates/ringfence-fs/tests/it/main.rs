//! What the fence promises, tested through `Host::call` as every caller reaches it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says so"
)]
#![allow(clippy::disallowed_methods, reason = "tests look at the disk behind the fence's back")]

mod acting;
mod attacks;
mod audit;
mod basics;
mod blocked;
mod cpu_share;
mod found;
mod fuzz;
mod hidden;
mod identity;
mod later;
mod layer;
mod meanwhile;
mod model;
mod paths;
mod person;
mod previews;
mod races;
mod search;
mod slow;
mod snapshot;
mod trace;
mod unchanged;
mod undo;
mod world;
