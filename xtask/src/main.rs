//! The commands of this repository: `cargo xtask test`, `bench`, `mutants`, `screenshots`, `mcp-clients`,
//! `conformance`, `llmock` and `acpx`.
//!
//! They install nothing that cargo does not, but for what the last ones need, which goes below `target`, for the browser
//! that `test --full` and `screenshots` want (`browser.rs`), and for the search engine that `test --full` asks.

mod acpx;
mod bench_builds;
mod bench_http;
mod bench_mcp;
mod bench_search;
mod browser;
mod conformance;
mod live_model;
mod llmock;
mod mcp_clients;
mod mutants;
mod schemathesis;
mod searxng;
mod server;
#[cfg(test)]
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str =
    "usage: cargo xtask test [--full | --model URL NAME] | bench [PART…] | bench layer | bench sandbox [--builds [PROJECT…]] |
                   bench search [DIR] | bench http | bench mcp | bench agent | mutants | mcp-clients | conformance | llmock |
                   acpx | schemathesis | screenshots

  acpx         a foreign client of the Agent Client Protocol against our agent; fetches it on the first run
  test         format, lints, every test, doc tests
  test --full  the same with long races, many property cases, every crash point, a real search engine and a real
               browser, which it installs where it can
  test --model a live model of an OpenAI-compatible server makes, reads and edits a file through the agent
  bench        what the fence costs; PART is read, write, list or large
  bench layer  showing programs the workspace, and committing what they left
  bench agent  the loop's own cost of a step, and the memory of a long session
  bench http   the API of the server beside the call in one process, with one session and with many
  bench mcp    our MCP server and two others with the same client
  bench sandbox
               starting programs: bare, in our jail, in other sandboxes
  bench sandbox --builds [PROJECT…]
               building and testing real projects, bare and in the jail; committing 10,000 files
  bench search our search and ripgrep's on the same tree
  conformance  the official suite of the Model Context Protocol against our server; fetches it on the first run
  llmock       our clients of models against a server that breaks on demand and grades them; fetches it on the first run
  mcp-clients  the official Python SDK and the Inspector against our server; fetches them on the first run
  mutants      whether the tests notice when a decision of the gate is changed
  schemathesis the API of the server against a grader that makes requests of its document; fetches it on the first run
  screenshots  pictures of the page for the README, into docs/images";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["test"] => test(&[]),
        ["test", "--model", url, name] => live_model::run(url, name),
        ["test", "--full"] => {
            browser::install();
            searxng::install();
            test(&[("RINGFENCE_RACE_SECONDS", "10"), ("PROPTEST_CASES", "2000"), ("RINGFENCE_FULL", "1")])
        }
        ["acpx"] => acpx::run(),
        ["bench", "agent"] => run(&["bench", "-p", "ringfence", "--bench", "agent"], &[]),
        ["bench", "http"] => bench_http::run(),
        ["bench", "mcp"] => bench_mcp::run(),
        ["bench", "search"] => bench_search::run(None),
        ["bench", "search", tree] => bench_search::run(Some(tree)),
        ["conformance"] => conformance::run(),
        ["schemathesis"] => schemathesis::run(),
        ["llmock"] => llmock::run(),
        ["mcp-clients"] => mcp_clients::run(),
        ["mutants"] => mutants::run(),
        ["screenshots"] => browser::screenshots(),
        ["bench", "layer"] => run(&["bench", "-p", "ringfence-fs", "--bench", "layer"], &[]),
        ["bench", "sandbox"] => run(&["bench", "-p", "ringfence-sandbox", "--bench", "jail"], &[]),
        ["bench", "sandbox", "--builds", ref projects @ ..] => bench_builds::run(projects),
        ["bench", ref parts @ ..] => {
            run(&[&["bench", "-p", "ringfence-fs", "--bench", "fence", "--"], parts].concat(), &[])
        }
        _ => {
            say(USAGE);
            return ExitCode::from(2);
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn test(settings: &[(&str, &str)]) -> bool {
    run(&["fmt", "--all", "--check"], &[])
        && run(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
        && run(&["test", "--workspace", "--locked"], settings)
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Runs cargo; false if it failed.
fn run(arguments: &[&str], settings: &[(&str, &str)]) -> bool {
    say(&format!("cargo {}", arguments.join(" ")));
    match cargo().args(arguments).envs(settings.iter().copied()).status() {
        Ok(status) => status.success(),
        Err(error) => {
            say(&format!("cargo cannot be run: {error}"));
            false
        }
    }
}

/// The very program that started us.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[expect(clippy::print_stderr, reason = "this is what a command is for")]
fn say(text: &str) {
    eprintln!("{text}");
}
