//! What the loop promises, whatever the model does.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "tests set up what the agent sees")]

mod any_model;
mod bounds;
mod cancel;
mod ledger;
mod misbehaviours;
mod repairs;
mod retries;
mod world;
