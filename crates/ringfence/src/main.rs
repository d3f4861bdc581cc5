//! The program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfence::cli::main()
}
