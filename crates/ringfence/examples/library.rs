//! Ringfence as a library: one tool call, by a program of one's own.
//!
//! `cargo run --example library -- DIR PATH` reads a file below a directory.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is what the program is for")]

use std::error::Error;
use std::process::ExitCode;

use ringfence::app::build_app;
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, Environment, load};
use ringfence_kernel::ToolCall;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    // Jails are made by this program, started once more. So this comes first, before any thread.
    if let Some(code) = ringfence::run_helper_if_requested() {
        return code;
    }
    match read() {
        Ok(reply) => {
            println!("{reply}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The reply that a model would get.
fn read() -> Result<String, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (workspace, path) = (words.next(), words.next().ok_or("usage: library DIR PATH")?);
    let environment = Environment::read()?;
    let settings = load(&CliFlags { workspace, ..CliFlags::default() }, &environment)?;
    // Denies what the policy would ask about: this program has no approver.
    let app = build_app(settings, &environment, Box::new(deny_all()))?;
    let arguments = serde_json::json!({ "path": path }).to_string();
    let call = ToolCall { id: "call-1".to_owned(), name: "read_file".to_owned(), arguments };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new()))?;
    Ok(reply.text)
}
