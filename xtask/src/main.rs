//! The commands of this repository, as `USAGE` lists them.
//!
//! They install nothing that cargo does not, but for what the last ones need, which goes below `target`, for the browser
//! that `test --full` and `screenshots` want (`browser.rs`), and for the search engine that `test --full` asks.

mod acpx;
mod attack;
mod bench_builds;
mod bench_code_search;
mod bench_http;
mod bench_keystrokes;
mod bench_mcp;
mod bench_program;
mod bench_run;
mod bench_sandbox;
mod bench_search;
mod bench_start;
mod bench_versions;
mod bench_write;
mod browser;
mod clients;
mod conformance;
mod diffs;
mod doc_markers;
#[cfg(test)]
mod docs_links;
mod external_tools;
mod faults;
mod fixes;
mod fuzz;
mod live_model;
mod llmock;
mod mutants;
mod package;
mod process_cost;
mod report;
mod road;
mod runners;
mod schemathesis;
mod searxng;
mod serve_process;
mod surface;
#[cfg(test)]
mod tidy;
mod train_search;
mod vocabulary;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ringfence_testkit::requirement;

/// Parts of `bench fs` that can be run alone.
const FS_BENCH_PARTS: [&str; 4] = ["read", "replace", "list", "large"];

const BENCHMARKS: &str = "fs, overlay, agent, code-search [--tool [BINARY]], http, mcp, program, run, sandbox [--builds [PROJECT…]], search [TREE], versions BINARY, start, write";

const USAGE: &str =
    "usage: cargo xtask COMMAND

  acpx         test our agent with a third-party Agent Client Protocol client; downloads it on the first run
  attack       run attacks, races and escapes against ours, others and an unsafe control; updates docs/security.md; PART is
               files, races, jails or web; downloads the others on the first run
  test         check format, lints, dependencies (with cargo-deny) and documentation; run all tests and doc tests
  test --full  the same with long races, many property cases, every crash point, a real search engine and a real
               browser, which it installs if possible
  test --model URL NAME [DIALECT…]
               run the agent with a live model on an OpenAI-compatible server: five tasks in each dialect, three tries
               each; results are kept below target, and a run goes on where the last one ended
  bench fs     cost of file tools
  bench        the same; PART is read, replace, list or large
  bench overlay
               cost of the overlay: mounting the workspace and committing changes
  bench agent  overhead of an agent step, and memory of a long session
  bench code-search
               quality of code search for questions in words, beside ripgrep and BM25F, on crates that training never saw
  bench code-search --tool [BINARY]
               the tool, of this version or of another binary, on a tree of 200 MB: first and later answers, a change of a moment ago, planted secrets
  bench http   the HTTP API compared with in-process calls, with one session and with many
  bench mcp    our MCP server and two others, with the same client
  bench program
               a program that does nothing, in an empty workspace and in one of 100,000 files; planted secrets
  bench run    `ringfence run` and the same programs bare, in bwrap and in srt
  bench sandbox
               start-up of programs: bare, in our jail, in other sandboxes
  bench sandbox --builds [PROJECT…]
               builds and tests of real projects, bare and in the jail; commit of 10,000 files
  bench search our search and ripgrep's on the same tree
  bench versions BINARY
               CPU time and system calls per call of this version and of another binary, in interleaved rounds
  bench start  cost of a start with a long history of changes, and of a fresh one
  bench write  durable writes by whole calls and by a bare atomic replacement, with one writer and with eight
  bench … --json | --write
               the same, with results as JSON on standard output, or in docs/benchmarks.md
  clients [mcp [NAME]]
               test our server with real clients and a scripted model, the official Python SDK and the Inspector: do
               tools, files and errors reach the model, and do calls of a client's own tools do the same to the files
               through ours; downloads them on the first run
  clients run [NAME | tui | time]
               real agents inside `ringfence run`, with a scripted model behind the names of their providers: is the task
               kept and undone to the byte, is the key never inside; tui is Claude Code's full screen in tmux, time its
               task beside the same one bare; needs root
  conformance  run the official MCP conformance suite against our server; downloads it on the first run
  diffs        apply changes of this repository's history, in the forms that models write diffs in, and compare the files
  fuzz         run all or the named fuzz targets, for a minute or N seconds each; failing inputs are minimized
               and added to the corpus
  faults       inject kills, failing system calls, power cuts and more into every tool, and check the state afterwards;
               a sample in minutes, `--full` for every system call; updates docs/faults.md
  fixes [NAME…]
               make bug fixes of public packages by our tools alone, over the real MCP server: test, fix, format, commit, undo;
               downloads the packages on the first run; updates docs/project.md
  docs         regenerate docs/reference from the types, the example config, the help texts and the OpenAPI document
  llmock       test our model clients against a fault-injecting server; downloads it on the first run
  mutants      mutation testing of the policy decisions
  package      build archives, a Debian package and checksums in target/package
  road         trace the functions that a call crosses, and hold them to their ceilings; takes another checkout too
  runners [NAME…]
               run real test runners on small projects by run_tests and by themselves: are verdicts and lines right, and how many
               tokens does it take; downloads some of them on the first run; updates docs/project.md
  schemathesis test the HTTP API with requests generated from its OpenAPI document; downloads it on the first run
  surface      count the tokens of tool definitions and results by dialect, and hold them to their limits; downloads the
               tokenizer on the first run
  screenshots  make screenshots of the web UI for the README, in docs/images
  train-search [--from STAGE]
               train the model of `search_code` from published packages, which it downloads on the first run; STAGE is
               fetch, pairs, table or ranker; takes about half an hour
  vocabulary   measure type names, module cycles and the wording of texts against their limits; `--details` lists
               every name and phrase";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    let flags = ["--json", "--write"].map(|flag| words.first() == Some(&"bench") && take_flag(&mut words, flag));
    let done = match words[..] {
        ["bench", ref bench @ ..] if flags != [false; 2] => report::report(bench, flags[0], flags[1]),
        ["test"] => run_tests(&[]),
        ["test", "--model", url, name, ref dialects @ ..] => live_model::run(url, name, dialects),
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
        ["bench", "code-search"] => bench_code_search::run(),
        ["bench", "code-search", "--tool"] => bench_code_search::run_tool(None),
        ["bench", "code-search", "--tool", binary] => bench_code_search::run_tool(Some(binary)),
        ["bench", "http"] => bench_http::run(),
        ["bench", "mcp"] => bench_mcp::run(),
        ["bench", "program"] => bench_program::run(),
        ["bench", "run"] => bench_run::run(),
        ["bench", "versions", binary] => bench_versions::run(binary),
        ["bench", "start"] => bench_start::run(),
        ["bench", "write"] => bench_write::run(),
        ["bench", "search"] => bench_search::run(None),
        ["bench", "search", tree] => bench_search::run(Some(tree)),
        ["conformance"] => conformance::run(),
        ["diffs"] => diffs::run(),
        ["fuzz", ref rest @ ..] => fuzz::run(rest),
        ["faults", ref words @ ..] => faults::run(words),
        ["fixes", ref names @ ..] => fixes::run(names),
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
        ["road", ref options @ ..] => road::run(options),
        ["surface"] => surface::run(),
        ["runners", ref names @ ..] => runners::run(names),
        ["package"] => package::package(),
        ["screenshots"] => browser::screenshots(),
        ["train-search", ref options @ ..] => train_search::run(options),
        ["vocabulary", ref options @ ..] => vocabulary::run(options),
        ["bench", "overlay"] => run_cargo(&["bench", "-p", "ringfence-fs", "--bench", "overlay"], &[]),
        ["bench", "sandbox"] => bench_sandbox::run(),
        ["bench", "sandbox", "--builds", ref projects @ ..] => bench_builds::run(projects),
        ["bench", "fs"] => run_cargo(&["bench", "-p", "ringfence-fs", "--bench", "fence"], &[]),
        ["bench", ref parts @ ..] if parts.iter().all(|part| FS_BENCH_PARTS.contains(part)) => {
            run_cargo(&[&["bench", "-p", "ringfence-fs", "--bench", "fence", "--"], parts].concat(), &[])
        }
        ["bench", ref words @ ..] => {
            print_status(&format!(
                "unknown benchmark `{}`; known: {BENCHMARKS}, and {} of `fs`",
                words.join(" "),
                FS_BENCH_PARTS.join(", ")
            ));
            return ExitCode::from(2);
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
    if let Err(error) = requirement::required() {
        print_status(&error);
        return false;
    }
    run_cargo(&["fmt", "--all", "--check"], &[])
        && check_dependencies()
        && run_cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
        && run_cargo(&["doc", "--workspace", "--no-deps", "--locked"], &[("RUSTDOCFLAGS", "-D warnings")])
        && run_every_test(settings)
}

/// Runs the tests, and says at the end what this machine lacks for some of them.
fn run_every_test(settings: &[(&str, &str)]) -> bool {
    let log = root().join(format!("target/skipped-tests-{}", std::process::id()));
    let mut settings = settings.to_vec();
    let log_name = log.display().to_string();
    settings.push((requirement::SKIP_LOG_VARIABLE, &log_name));
    let passed = run_cargo(&["test", "--workspace", "--locked"], &settings);
    for (missing, count) in requirement::count_skips(&log) {
        print_status(&format!("skipped without {missing}: {count}"));
    }
    let _ = std::fs::remove_file(log);
    passed
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

/// Builds the release binary, for a bench. Nothing if it does not build.
fn build_release() -> Option<PathBuf> {
    let built = run_cargo(&["build", "--release", "--quiet", "--package", "ringfence"], &[]);
    built.then(|| root().join("target/release/ringfence"))
}

/// Runs cargo; false if it failed.
fn run_cargo(arguments: &[&str], settings: &[(&str, &str)]) -> bool {
    print_status(&format!("cargo {}", arguments.join(" ")));
    match cargo().args(arguments).envs(settings.iter().copied()).status() {
        Ok(status) => status.success(),
        Err(error) => {
            print_status(&format!("cannot run cargo: {error}"));
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
