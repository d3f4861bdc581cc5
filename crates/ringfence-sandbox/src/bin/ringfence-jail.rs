//! Standalone spawner program, for the tests and benchmarks of this crate.
//!
//! Not here: anything. `ringfence` is its own spawner.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfence_sandbox::run_helper_if_requested().unwrap_or(ExitCode::FAILURE)
}
