//! The program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let refused = ringfence::cli::refuse_elevation();
    refused.or_else(ringfence::run_helper_if_requested).unwrap_or_else(ringfence::cli::main)
}
