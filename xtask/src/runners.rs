//! `cargo xtask runners`: real test runners on small projects, by `run_tests` in the jail and by themselves.
//!
//! Each project of `xtask/runners` is copied below `target/tmp/runners`, with the runner's packages beside it, which are fetched on
//! the first run. It is tested as it is, with failing tests, then with those tests that pass, then with a file that does not compile.
//! The lines that fail are marked with `fails` in the sources, so that they are not written down twice.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::external_tools::{fetch_node_packages, has_program, install_debian_packages, succeeds};
use crate::surface::{SurfaceServer, TOKENIZER, count_tokens};
use crate::{doc_markers, print_status, root};

/// Share of failures whose file and line must be right, and most of the runner's own tokens, in percent.
const MIN_RIGHT_LINES: usize = 95;
const MAX_TOKENS: u64 = 50;

/// A runner that is tried.
struct RunnerTrial {
    name: &'static str,
    packages: RunnerPackages,
    /// The command that people type, for a shell.
    command: &'static str,
    /// What the command has in addition, to run tests that pass only, and the name that does the same in our call.
    passing: (&'static str, &'static str),
    /// A file of tests, which does not compile with a line of nonsense.
    test_file: &'static str,
}

enum RunnerPackages {
    /// The program is there, or is not.
    Program(&'static str),
    Node(&'static str),
    Python(&'static str),
    /// A program of Debian packages.
    Debian(&'static str, &'static [&'static str]),
}

const TRIALS: [RunnerTrial; 11] = [
    RunnerTrial {
        name: "cargo",
        packages: RunnerPackages::Program("cargo"),
        command: "cargo test --no-fail-fast",
        passing: ("discount", "discount"),
        test_file: "tests/till.rs",
    },
    RunnerTrial {
        name: "nextest",
        packages: RunnerPackages::Program("cargo-nextest"),
        command: "cargo nextest run --no-fail-fast",
        passing: ("discount", "discount"),
        test_file: "tests/till.rs",
    },
    RunnerTrial {
        name: "pytest",
        packages: RunnerPackages::Python("pytest==9.2.0"),
        command: ".venv/bin/python -m pytest",
        passing: ("-k discount", "discount"),
        test_file: "tests/test_basket.py",
    },
    RunnerTrial {
        name: "vitest",
        packages: RunnerPackages::Node("vitest@4.1.12"),
        command: "node_modules/.bin/vitest run",
        passing: ("-t discount", "discount"),
        test_file: "test/basket.test.js",
    },
    RunnerTrial {
        name: "jest",
        packages: RunnerPackages::Node("jest@30.5.2"),
        command: "node_modules/.bin/jest",
        passing: ("-t discount", "discount"),
        test_file: "test/basket.test.js",
    },
    RunnerTrial {
        name: "mocha",
        packages: RunnerPackages::Node("mocha@12.0.3"),
        command: "node_modules/.bin/mocha",
        passing: ("--fgrep discount", "discount"),
        test_file: "test/basket.js",
    },
    RunnerTrial {
        name: "node",
        packages: RunnerPackages::Program("node"),
        command: "node --test",
        passing: ("--test-name-pattern=discount", "discount"),
        test_file: "test/basket.test.js",
    },
    RunnerTrial {
        name: "go",
        packages: RunnerPackages::Debian("go", &["golang-go"]),
        command: "go test ./...",
        passing: ("-run Discount", "Discount"),
        test_file: "till/till_test.go",
    },
    RunnerTrial {
        name: "maven",
        packages: RunnerPackages::Debian(
            "mvn",
            &[
                "maven",
                "libmaven-compiler-plugin-java",
                "libmaven-resources-plugin-java",
                "libsurefire-java",
                "junit5",
                "default-jdk-headless",
            ],
        ),
        command: "mvn -B -o test",
        passing: ("-Dtest=*Test#*iscount*", "*Test#*iscount*"),
        test_file: "src/test/java/shop/TillTest.java",
    },
    RunnerTrial {
        name: "ctest",
        packages: RunnerPackages::Debian("cmake", &["cmake", "gcc"]),
        command: "cmake -S . -B build && cmake --build build && ctest --test-dir build --output-on-failure",
        passing: ("-R discount", "discount"),
        test_file: "total.c",
    },
    RunnerTrial {
        name: "rspec",
        packages: RunnerPackages::Debian("rspec", &["ruby-rspec"]),
        command: "rspec",
        passing: ("-e adds", "adds"),
        test_file: "spec/basket_spec.rb",
    },
];

/// What a runner was found to do.
#[derive(Default)]
struct TrialResult {
    verdicts: usize,
    right_verdicts: usize,
    lines: usize,
    right_lines: usize,
    own_tokens: u64,
    our_tokens: u64,
}

/// False if a runner that is there was not reported as it should be.
pub(crate) fn run(names: &[&str]) -> bool {
    if let Some(unknown) = names.iter().find(|name| !TRIALS.iter().any(|trial| trial.name == **name)) {
        let known: Vec<&str> = TRIALS.iter().map(|trial| trial.name).collect();
        print_status(&format!("unknown runner `{unknown}`; available: {}", known.join(", ")));
        return false;
    }
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let Some(modules) = fetch_node_packages(&root().join("target/tmp/surface"), &[TOKENIZER]) else { return false };
    let (mut total, mut table, mut skipped) = (TrialResult::default(), String::new(), Vec::new());
    for trial in TRIALS.iter().filter(|trial| names.is_empty() || names.contains(&trial.name)) {
        print_status(&format!("{}…", trial.name));
        let Some(result) = try_runner(trial, &modules) else {
            skipped.push(trial.name);
            continue;
        };
        table.push_str(&table_row(trial.name, &result));
        total.verdicts += result.verdicts;
        total.right_verdicts += result.right_verdicts;
        total.lines += result.lines;
        total.right_lines += result.right_lines;
        total.own_tokens += result.own_tokens;
        total.our_tokens += result.our_tokens;
    }
    let head = "| runner | verdict equals exit status | file and line right | tokens of the runner | of `run_tests` | |\n\
                |---|---:|---:|---:|---:|---:|\n";
    let table = format!("{head}{table}{}", table_row("all", &total));
    print_status(&table);
    if !skipped.is_empty() {
        print_status(&format!("skipped: {}", skipped.join(", ")));
    }
    let are_met = total.right_verdicts == total.verdicts
        && total.right_lines * 100 >= total.lines * MIN_RIGHT_LINES
        && total.our_tokens * 100 <= total.own_tokens * MAX_TOKENS;
    let met = if are_met { "met" } else { "missed" };
    print_status(&format!(
        "100 % of verdicts, {MIN_RIGHT_LINES} % of lines, at most {MAX_TOKENS} % of the tokens: {met}"
    ));
    let is_whole = names.is_empty() && skipped.is_empty();
    are_met && (!is_whole || doc_markers::write("docs/project.md", "runners", &table))
}

fn table_row(name: &str, result: &TrialResult) -> String {
    let percent = (result.our_tokens * 100).checked_div(result.own_tokens).unwrap_or_default();
    format!(
        "| {name} | {} of {} | {} of {} | {} | {} | {percent} % |\n",
        result.right_verdicts, result.verdicts, result.right_lines, result.lines, result.own_tokens, result.our_tokens
    )
}

/// `None` if the runner is not there.
fn try_runner(trial: &RunnerTrial, modules: &Path) -> Option<TrialResult> {
    let base = root().join("target/tmp/runners").join(trial.name);
    let files = base.join("files");
    let source = root().join("xtask/runners").join(trial.name);
    copy_files(&source, &files).ok()?;
    if !install(trial, &files) {
        print_status(&format!("skipped {}: it is not installed, and cannot be", trial.name));
        return None;
    }
    let mut server = start_server(trial, &base)?;
    let mut result = TrialResult::default();
    // The first run builds, which only some runners tell about.
    run_alone(trial, &files, "")?;
    let (own, exit_is_pass) = run_alone(trial, &files, "")?;
    let failing = call(&mut server, &json!({"timeout": 600}))?;
    result.check_verdict(trial.name, "as it is", exit_is_pass, &failing);
    result.check_lines(trial.name, &marked_lines(&source), &failing.text);
    let counts = count_tokens(&[own, failing.text], modules)?;
    (result.own_tokens, result.our_tokens) = (counts[0], counts[1]);
    let (_, exit_is_pass) = run_alone(trial, &files, trial.passing.0)?;
    let passing = call(&mut server, &json!({"timeout": 600, "name": trial.passing.1}))?;
    result.check_verdict(trial.name, "tests that pass", exit_is_pass, &passing);
    let test_file = files.join(trial.test_file);
    let text = fs::read_to_string(&test_file).ok()?;
    fs::write(&test_file, format!("{text}\n)(\n")).ok()?;
    let (_, exit_is_pass) = run_alone(trial, &files, "")?;
    let broken = call(&mut server, &json!({"timeout": 600}))?;
    result.check_verdict(trial.name, "a file that does not compile", exit_is_pass, &broken);
    fs::write(&test_file, text).ok()?;
    Some(result)
}

/// The reply to a call.
struct RunnerReply {
    text: String,
    is_error: bool,
}

impl RunnerReply {
    /// The first line counts the tests: without a failure, they passed.
    fn is_pass(&self) -> bool {
        let first = self.text.lines().next().unwrap_or_default();
        !self.is_error && first.contains(" passed") && !first.contains("failed") && !first.contains("error")
    }
}

impl TrialResult {
    fn check_verdict(&mut self, name: &str, variant: &str, exit_is_pass: bool, reply: &RunnerReply) {
        self.verdicts += 1;
        if reply.is_pass() == exit_is_pass {
            self.right_verdicts += 1;
        } else {
            print_status(&format!("{name}, {variant}: exit 0 is {exit_is_pass}, and the reply is\n{}", reply.text));
        }
    }

    fn check_lines(&mut self, name: &str, marked: &BTreeSet<(String, usize)>, text: &str) {
        let found: BTreeSet<(String, usize)> = text.split("\n\n").skip(1).filter_map(failure_line).collect();
        self.lines += marked.len().max(found.len());
        self.right_lines += marked.intersection(&found).count();
        if *marked != found {
            print_status(&format!("{name}: {marked:?} are marked, {found:?} were found in\n{text}"));
        }
    }
}

/// `tests/test_basket.py:17 test_name`.
fn failure_line(block: &str) -> Option<(String, usize)> {
    let (file, rest) = block.split_once(':')?;
    let (line, _) = rest.split_once(' ')?;
    Some((file.to_owned(), line.parse().ok()?))
}

/// The lines of a project that are marked as failing.
fn marked_lines(project: &Path) -> BTreeSet<(String, usize)> {
    let mut marked = BTreeSet::new();
    for file in project_files(project) {
        let text = fs::read_to_string(project.join(&file)).unwrap_or_default();
        for (index, line) in text.lines().enumerate() {
            if ["// fails", "# fails", "/* fails */"].iter().any(|mark| line.ends_with(mark)) {
                marked.insert((file.display().to_string(), index + 1));
            }
        }
    }
    marked
}

fn project_files(project: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![project.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if let Ok(file) = path.strip_prefix(project) {
                found.push(file.to_owned());
            }
        }
    }
    found
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    for file in project_files(from) {
        let target = to.join(&file);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from.join(&file), target)?;
    }
    Ok(())
}

fn install(trial: &RunnerTrial, files: &Path) -> bool {
    match trial.packages {
        RunnerPackages::Program(program) => has_program(program),
        RunnerPackages::Node(package) => {
            files.join("node_modules/.bin").is_dir() || fetch_node_packages(files, &[package]).is_some()
        }
        RunnerPackages::Python(package) => {
            let environment = files.join(".venv");
            environment.join("bin/pytest").is_file()
                || succeeds(Command::new("python3").args(["-m", "venv"]).arg(&environment))
                    && succeeds(
                        Command::new(environment.join("bin/python")).args(["-m", "pip", "install", "--quiet", package]),
                    )
        }
        RunnerPackages::Debian(program, packages) => has_program(program) || install_debian_packages(packages),
    }
}

/// The runner without us: what it prints, and whether it exits with 0.
fn run_alone(trial: &RunnerTrial, files: &Path, more: &str) -> Option<(String, bool)> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("({} {more}) 2>&1", trial.command)).current_dir(files).stdin(Stdio::null());
    command.env("CI", "1").env("NO_COLOR", "1").env("CARGO_TERM_COLOR", "never").env_remove("RUST_BACKTRACE");
    let output = command.output().ok()?;
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}

/// A server on the project, with the toolchains of this user.
fn start_server(trial: &RunnerTrial, base: &Path) -> Option<SurfaceServer> {
    let config = base.join("config.toml");
    let toolchains: Vec<String> = match trial.name {
        "maven" => vec![maven_home(base)?.display().to_string()],
        "nextest" => nextest_toolchain(base).into_iter().map(|path| path.display().to_string()).collect(),
        _ => Vec::new(),
    };
    fs::write(&config, format!("[run_code]\ntoolchains = {toolchains:?}\n")).ok()?;
    let mut command = Command::new(root().join("target/debug/ringfence"));
    command.args(["mcp", "--preset", "edits", "--dialect", "claude", "--toolset", "project", "--config"]).arg(config);
    command.arg("--workspace").arg(base.join("files")).env("RINGFENCE_STATE_DIR", base.join("state"));
    SurfaceServer::start_by(command)
}

/// Debian's Maven has its settings in `/etc`, which the jail does not have: a copy has them beside its programs.
fn maven_home(base: &Path) -> Option<PathBuf> {
    let home = base.join("maven");
    let is_there = home.join("bin/mvn").is_file()
        || succeeds(Command::new("cp").args(["-rL", "/usr/share/maven"]).arg(&home).stderr(Stdio::null()))
        || home.join("bin/mvn").is_file();
    // Settings may hold passwords, so the jail shows an empty file, which is not one that Maven takes.
    let _ = fs::remove_file(home.join("conf/settings.xml"));
    is_there.then_some(home)
}

/// A directory with the program alone, where it is not beside cargo.
fn nextest_toolchain(base: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let program = std::env::split_paths(&path).map(|path| path.join("cargo-nextest")).find(|path| path.is_file())?;
    let toolchain = base.join("nextest");
    fs::create_dir_all(toolchain.join("bin")).ok()?;
    fs::copy(program, toolchain.join("bin/cargo-nextest")).ok()?;
    Some(toolchain)
}

fn call(server: &mut SurfaceServer, arguments: &Value) -> Option<RunnerReply> {
    let reply = server.request("tools/call", &json!({"name": "run_tests", "arguments": arguments}))?;
    let blocks = reply["content"].as_array()?;
    let text = blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n");
    Some(RunnerReply { text, is_error: reply["isError"] == true })
}
