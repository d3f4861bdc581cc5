//! Integration tests of the kernel: its guarantees, whatever the tools do.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod approval_queue;
mod approvals;
mod audit_records;
mod connection_decider;
mod deadlines;
mod declared_actions;
mod explain;
mod follow_up;
mod fuzz;
mod grants;
mod harness;
mod memory_store;
mod resume_call;
mod rules;
mod suspended_calls;
mod taint;
