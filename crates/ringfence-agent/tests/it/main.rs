//! Integration tests of the agent loop: its guarantees, whatever the model does.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "tests set up what the agent sees")]

mod cancel;
mod fixture;
mod ledger;
mod limits;
mod misbehaviours;
mod parallel_calls;
mod random_answers;
mod repairs;
mod retries;
mod tool_loading;
