//! What the road promises, whatever the tools on it do.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod approvals;
mod bits;
mod deadlines;
mod effects;
mod explained;
mod fuzz;
mod granted;
mod records;
mod rests;
mod returned;
mod road;
mod rules;
mod store_suite;
mod stores;
mod suspended;
mod turns;
