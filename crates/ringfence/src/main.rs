//! The program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfence::take_part().unwrap_or_else(ringfence::cli::main)
}
