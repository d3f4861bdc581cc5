//! The program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let refused = ringfence::cli::refuse_elevation();
    refused.or_else(ringfence::take_part).unwrap_or_else(ringfence::cli::main)
}
