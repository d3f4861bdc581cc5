//! The spawner as a program of its own, for the tests and measurements of this crate.
//!
//! Not here: anything. `ringfence` is its own spawner.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfence_sandbox::run_helper_if_requested().unwrap_or(ExitCode::FAILURE)
}
