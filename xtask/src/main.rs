//! The commands of this repository, as `USAGE` lists them.
//!
//! They install nothing that cargo does not, but for what the last ones need, which goes below `target`, for the browser
//! that `test --full` and `screenshots` want (`browser.rs`), and for the search engine that `test --full` asks.

mod acpx;
mod attack;
mod bench_builds;
mod bench_http;
mod bench_mcp;
mod bench_sandbox;
mod bench_search;
mod browser;
mod call_path;
mod clients;
mod conformance;
mod doc_markers;
#[cfg(test)]
mod docs_links;
mod external_tools;
mod faults;
mod fuzz;
mod live_model;
mod llmock;
mod mutants;
mod package;
mod report;
mod schemathesis;
mod searxng;
mod serve_process;
#[cfg(test)]
mod tidy;
mod vocabulary;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str =
    "usage: cargo xtask COMMAND

  acpx         a foreign client of the Agent Client Protocol against our agent; fetches it on the first run
  attack       attacks, races and escapes against ours, others and an unsafe control, into docs/security.md; PART is
               files, races, jails or web; fetches the others on the first run
  test         format, lints, dependencies (with cargo-deny), documentation, every test, doc tests
  test --full  the same with long races, many property cases, every crash point, a real search engine and a real
               browser, which it installs where it can
  test --model a live model of an OpenAI-compatible server makes, reads and edits a file through the agent
  bench fs     what the fence costs
  bench        the same; PART is read, write, list or large
  bench layer  showing programs the workspace, and committing what they left
  bench agent  the loop's own cost of a step, and the memory of a long session
  bench http   the API of the server beside the call in one process, with one session and with many
  bench mcp    our MCP server and two others with the same client
  bench sandbox
               starting programs: bare, in our jail, in other sandboxes
  bench sandbox --builds [PROJECT…]
               building and testing real projects, bare and in the jail; committing 10,000 files
  bench search our search and ripgrep's on the same tree
  bench … --json | --write
               the same, and then its figures as JSON on standard output, or in docs/benchmarks.md
  clients [mcp [NAME]]
               real clients with a scripted model, the official Python SDK and the Inspector against our server: whether
               files and errors reach the model; fetches them on the first run
  conformance  the official suite of the Model Context Protocol against our server; fetches it on the first run
  fuzz         every fuzz target, or those that are named, for a minute each or so many seconds; what fails is made small
               and put into its corpus
  faults       kills, failing system calls, power cuts and the like in the middle of every tool, and what is left after them;
               a sample in minutes, `--full` for every system call; the figures go into docs/faults.md
  docs         writes docs/reference anew, from the types, the example config, the help texts and the API's document
  llmock       our clients of models against a server that breaks on demand and grades them; fetches it on the first run
  mutants      whether the tests notice when a decision of the gate is changed
  package      archives, a Debian package and checksums, below target/package
  road         what somebody reads who follows one call from the command line to the disk
  schemathesis the API of the server against a grader that makes requests of its document; fetches it on the first run
  screenshots  pictures of the page for the README, into docs/images
  vocabulary   figures about type names, module cycles and the wording of texts, with their limits; `--details` lists
               every name and phrase";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    let flags = ["--json", "--write"].map(|flag| words.first() == Some(&"bench") && take_flag(&mut words, flag));
    let done = match words[..] {
        ["bench", ref bench @ ..] if flags != [false; 2] => report::report(bench, flags[0], flags[1]),
        ["test"] => run_tests(&[]),
        ["test", "--model", url, name] => live_model::run(url, name),
        ["test", "--full"] => {
            browser::install();
            searxng::install();
            run_tests(&[("RINGFENCE_RACE_SECONDS", "10"), ("PROPTEST_CASES", "2000"), ("RINGFENCE_FULL", "1")])
        }
        ["acpx"] => acpx::run(),
        ["attack", "--control", mode, directory] => attack::control(mode, directory),
        ["attack", "--inside", ours, stage] => attack::web_inside(ours, stage, None),
        ["attack", "--inside", ours, stage, fetch] => attack::web_inside(ours, stage, Some(fetch)),
        ["attack", ref options @ ..] => attack::run(options),
        ["bench", "agent"] => run_cargo(&["bench", "-p", "ringfence", "--bench", "agent"], &[]),
        ["bench", "http"] => bench_http::run(),
        ["bench", "mcp"] => bench_mcp::run(),
        ["bench", "search"] => bench_search::run(None),
        ["bench", "search", tree] => bench_search::run(Some(tree)),
        ["conformance"] => conformance::run(),
        ["fuzz", ref rest @ ..] => fuzz::run(rest),
        ["faults", ref words @ ..] => faults::run(words),
        ["docs"] => {
            let it = ["test", "-p", "ringfence", "--test", "it", "reference"];
            run_cargo(&it, &[("RINGFENCE_UPDATE_DOCS", "1")]) && run_cargo(&it, &[])
        }
        ["schemathesis"] => schemathesis::run(),
        ["llmock"] => llmock::run(),
        ["clients", ref words @ ..] => clients::run(words),
        // The name that it had.
        ["mcp-clients"] => clients::run(&["mcp"]),
        ["mutants"] => mutants::run(),
        ["road"] => call_path::run(),
        ["package"] => package::package(),
        ["screenshots"] => browser::screenshots(),
        ["vocabulary", ref options @ ..] => vocabulary::run(options),
        ["bench", "layer"] => run_cargo(&["bench", "-p", "ringfence-fs", "--bench", "layer"], &[]),
        ["bench", "sandbox"] => bench_sandbox::run(),
        ["bench", "sandbox", "--builds", ref projects @ ..] => bench_builds::run(projects),
        ["bench", "fs"] => run_cargo(&["bench", "-p", "ringfence-fs", "--bench", "fence"], &[]),
        ["bench", ref parts @ ..] => {
            run_cargo(&[&["bench", "-p", "ringfence-fs", "--bench", "fence", "--"], parts].concat(), &[])
        }
        _ => {
            print_status(USAGE);
            return ExitCode::from(2);
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether a flag was given; it is taken out.
fn take_flag(words: &mut Vec<&str>, flag: &str) -> bool {
    let before = words.len();
    words.retain(|word| *word != flag);
    words.len() < before
}

fn run_tests(settings: &[(&str, &str)]) -> bool {
    run_cargo(&["fmt", "--all", "--check"], &[])
        && check_dependencies()
        && run_cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
        && run_cargo(&["doc", "--workspace", "--no-deps", "--locked"], &[("RUSTDOCFLAGS", "-D warnings")])
        && run_cargo(&["test", "--workspace", "--locked"], settings)
}

/// The rules of `deny.toml`, but for advisories, which need a network. Skipped, with a line that says so, where `cargo-deny`
/// is not installed.
fn check_dependencies() -> bool {
    let installed = cargo().args(["deny", "--version"]).output().is_ok_and(|output| output.status.success());
    if !installed {
        print_status(
            "skipped: cargo deny check bans licenses sources (`cargo install --locked cargo-deny` installs it)",
        );
        return true;
    }
    run_cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"], &[])
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Runs cargo; false if it failed.
fn run_cargo(arguments: &[&str], settings: &[(&str, &str)]) -> bool {
    print_status(&format!("cargo {}", arguments.join(" ")));
    match cargo().args(arguments).envs(settings.iter().copied()).status() {
        Ok(status) => status.success(),
        Err(error) => {
            print_status(&format!("cargo cannot be run: {error}"));
            false
        }
    }
}

/// The very program that started us.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[expect(clippy::print_stderr, reason = "this is what a command is for")]
fn print_status(text: &str) {
    eprintln!("{text}");
}
