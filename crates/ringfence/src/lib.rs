//! Ringfence as a library: config, wiring and fronts.
//!
//! `config` hears what people want, `wire` puts a host together from it, `cli` is the front on the command line.

pub mod cli;
pub mod config;
pub mod log;
mod policy_text;
pub mod prompt;
mod rules_config;
pub mod run;
pub mod run_log;
pub mod store;
pub mod wire;
