//! `cargo xtask bench run`: programs bare, in `ringfence run`, in `bwrap` and in srt, interleaved.
//!
//! Start is a program that does nothing, as a command of its own: config, audit record, layer, jail, comparison of the
//! layer. The other rows are real work in a workspace on disk. `bwrap` and srt are left out where they are missing; neither
//! has a layer, records or policy.
//!
//! Not here: `run_code` (`bench_sandbox.rs`), and agents (`clients/wrapped.rs`).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::bench_keystrokes;
use crate::external_tools::{fetch_node_packages, has_program};
use crate::process_cost::median;
use crate::{build_release, print_status, root};

const SRT_PACKAGE: &str = "@anthropic-ai/sandbox-runtime@0.0.83";

/// It may write where it is started, and reach nothing.
const SRT_SETTINGS: &str = r#"{"network": {"allowedDomains": [], "deniedDomains": []},
"filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []}}"#;

/// Files of the repository for `git status`.
const FILES: usize = 100_000;
const FILES_PER_DIRECTORY: usize = 250;

/// A row: a command line, how often it runs, and what is aimed at beside the bare command.
struct RunRow {
    name: &'static str,
    script: &'static str,
    workspace: &'static str,
    rounds: usize,
    goal: RunGoal,
    /// For work with caches: its toolchain, and a directory of the workspace that is removed before each round. `bwrap` and
    /// srt are left out, because caches are read-only in them.
    cached: Option<CachedWork>,
    /// Whether `ringfence run` logs the programs that are started.
    has_exec_log: bool,
}

#[derive(Clone, Copy)]
struct CachedWork {
    toolchain: &'static str,
    made: &'static str,
}

#[derive(Clone, Copy)]
enum RunGoal {
    /// Most milliseconds more than bare.
    Over(f64),
    /// Most times the time of bare.
    Ratio(f64),
}

/// Workspaces: with the repository, with the projects, and with a single file.
const LARGE: &str = "workspace";
const PROJECTS: &str = "projects";
const SMALL: &str = "small";

/// Starts of programs in a row, and most microseconds that the log of each may cost.
const STARTS: f64 = 1e4;
const EXEC_LOG_GOAL: f64 = 50.0;

const ROWS: [RunRow; 9] = [
    RunRow {
        name: "start of `true`",
        script: "true",
        workspace: SMALL,
        rounds: 60,
        goal: RunGoal::Over(15.0),
        cached: None,
        has_exec_log: false,
    },
    RunRow {
        name: "start of `true`, 200,000 files",
        script: "true",
        workspace: LARGE,
        rounds: 30,
        goal: RunGoal::Over(15.0),
        cached: None,
        has_exec_log: false,
    },
    RunRow {
        name: "`git status`, 100,000 files",
        script: "git -C repository status --short",
        workspace: LARGE,
        rounds: 9,
        goal: RunGoal::Ratio(1.15),
        cached: None,
        has_exec_log: false,
    },
    RunRow {
        name: "10,000 processes",
        script: "i=0; while [ $i -lt 10000 ]; do /bin/true; i=$((i+1)); done",
        workspace: SMALL,
        rounds: 3,
        goal: RunGoal::Ratio(1.15),
        cached: None,
        has_exec_log: false,
    },
    RunRow {
        name: "10,000 processes, exec log",
        script: "i=0; while [ $i -lt 10000 ]; do /bin/true; i=$((i+1)); done",
        workspace: SMALL,
        rounds: 3,
        goal: RunGoal::Ratio(1.15),
        cached: None,
        has_exec_log: true,
    },
    RunRow {
        name: "2 GB written and read",
        script: "dd if=/dev/zero of=big bs=1M count=2000 2>/dev/null; cat big > /dev/null; rm big",
        workspace: SMALL,
        rounds: 7,
        goal: RunGoal::Ratio(1.15),
        cached: None,
        has_exec_log: false,
    },
    RunRow {
        name: "`npm ci`, warm",
        script: "cd node && npm ci --offline --no-audit --no-fund --silent",
        workspace: PROJECTS,
        rounds: 5,
        goal: RunGoal::Ratio(1.15),
        cached: Some(CachedWork { toolchain: "node", made: "node/node_modules" }),
        has_exec_log: false,
    },
    RunRow {
        name: "`cargo build`, warm cache",
        script: "cd rust && cargo build --offline --quiet",
        workspace: PROJECTS,
        rounds: 3,
        goal: RunGoal::Ratio(1.15),
        cached: Some(CachedWork { toolchain: "rust", made: "rust/target" }),
        has_exec_log: false,
    },
    RunRow {
        name: "`pytest`",
        script: "cd python && venv/bin/python -m pytest -q -p no:cacheprovider",
        workspace: PROJECTS,
        rounds: 5,
        goal: RunGoal::Ratio(1.15),
        cached: Some(CachedWork { toolchain: "python", made: "python/made" }),
        has_exec_log: false,
    },
];

/// Where directories wait for their removal.
const ASIDE: &str = "aside";

const NODE_PACKAGE: &str =
    r#"{"name": "bench", "version": "1.0.0", "dependencies": {"express": "4", "lodash": "4", "semver": "7"}}"#;

const RUST_PACKAGE: &str = "[package]\nname = \"bench\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n\n\
    [dependencies]\nregex = \"1\"\nserde_json = \"1\"\nsemver = \"1\"\n";

const PYTHON_TESTS: &str = "import json

import pytest


@pytest.mark.parametrize('n', range(300))
def test_files(tmp_path, n):
    (tmp_path / 'a').write_text(json.dumps({'n': n}))
    assert json.loads((tmp_path / 'a').read_text()) == {'n': n}
";

/// A way to run a command line.
struct Runner {
    name: &'static str,
    command: Box<dyn Fn(&RunRow) -> Command>,
}

/// False if the bench could not be run. A missed target is a figure, not a failure.
pub(crate) fn run() -> bool {
    let Some(release) = build_release() else { return false };
    let dir = root().join("target/tmp/bench-run");
    let workspace = dir.join(LARGE);
    if let Err(error) = make_workspace(&dir, &workspace) {
        print_status(&format!("the workspaces for the bench cannot be made: {error}"));
        return false;
    }
    let tools = match make_cached_work(&dir) {
        Ok(tools) => Some(tools),
        Err(error) => {
            print_status(&format!("rows with caches are left out: {error}"));
            None
        }
    };
    let runners = runners(&dir, release, tools.clone().unwrap_or_default());
    let titles: Vec<&str> = runners.iter().map(|runner| runner.name).collect();
    print_status(&format!("medians in milliseconds, interleaved\n\n| | {} | goal |", titles.join(" | ")));
    print_status(&format!("|---|{}---|", "---:|".repeat(titles.len())));
    let mut unlogged = f64::NAN;
    for row in ROWS.iter().filter(|row| row.cached.is_none() || tools.is_some()) {
        let runners = if row.cached.is_some() { &runners[..2] } else { &runners[..] };
        let mut times: Vec<Vec<f64>> = runners.iter().map(|_| Vec::new()).collect();
        let mut failed = vec![false; runners.len()];
        for round in 0..=row.rounds {
            for (at, (runner, times)) in runners.iter().zip(&mut times).enumerate() {
                if failed[at] {
                    continue;
                }
                if let Some(work) = row.cached {
                    set_aside(&dir, &[&dir.join(PROJECTS).join(work.made), &dir.join("state/layers")]);
                }
                let started = Instant::now();
                let ended = (runner.command)(row).output();
                let time = started.elapsed().as_secs_f64() * 1e3;
                match ended {
                    // The first of each fills caches.
                    Ok(ended) if ended.status.success() && round > 0 => times.push(time),
                    Ok(ended) if ended.status.success() => {}
                    Ok(ended) => {
                        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
                        print_status(&format!("{}, {}: {}: {said}", row.name, runner.name, ended.status));
                        // Of another sandbox, there is no figure then.
                        if at < 2 {
                            return false;
                        }
                        failed[at] = true;
                    }
                    Err(error) => {
                        print_status(&format!("{}: {error}", runner.name));
                        return false;
                    }
                }
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        let cell = |(time, failed): (&f64, &bool)| if *failed { "–".to_owned() } else { format!("{time:.1}") };
        let (bare, ours) = (medians[0], medians[1]);
        let verdict = match row.goal {
            RunGoal::Over(most) => {
                let met = if ours - bare <= most { "met" } else { "missed" };
                format!("{:.1} ms over bare, goal {most} ms: {met}", ours - bare)
            }
            RunGoal::Ratio(most) => {
                let met = if ours <= bare * most { "met" } else { "missed" };
                format!("{:.2} × bare, goal {most} ×: {met}", ours / bare)
            }
        };
        let mut cells: Vec<String> = medians.iter().zip(&failed).map(cell).collect();
        cells.resize(titles.len(), "–".to_owned());
        let verdict = if row.has_exec_log {
            let each = (ours - unlogged) * 1e3 / STARTS;
            let met = if each <= EXEC_LOG_GOAL { "met" } else { "missed" };
            format!("{each:.0} µs more a start than without, goal {EXEC_LOG_GOAL} µs: {met}")
        } else {
            verdict
        };
        unlogged = ours;
        print_status(&format!("| {} | {} | {verdict} |", row.name, cells.join(" | ")));
    }
    let row = RunRow {
        name: "keystrokes",
        script: bench_keystrokes::COPY_INPUT,
        workspace: SMALL,
        rounds: 1,
        goal: RunGoal::Over(bench_keystrokes::GOAL),
        cached: None,
        has_exec_log: false,
    };
    let echoing: Vec<_> = runners.iter().take(2).map(|runner| (runner.name, (runner.command)(&row))).collect();
    let measured = bench_keystrokes::run(&echoing);
    let _ = fs::remove_dir_all(dir.join(ASIDE));
    match measured {
        Ok(()) => true,
        Err(error) => {
            print_status(&format!("keystrokes: {error}"));
            false
        }
    }
}

/// Moves directories away that each round creates. They are removed when nothing is measured any more: ext4 does not use
/// the number of a file again for minutes, and looks for others meanwhile.
fn set_aside(dir: &Path, made: &[&Path]) {
    let aside = dir.join(ASIDE);
    let count = fs::read_dir(&aside).map_or(0, Iterator::count);
    for (at, made) in made.iter().enumerate() {
        // Nothing is there before the first round.
        let _ = fs::create_dir_all(&aside).and_then(|()| fs::rename(made, aside.join((count + at).to_string())));
    }
}

/// Directories of the compiler and the interpreter that both sides use.
#[derive(Clone, Default)]
struct BenchTools {
    rust: PathBuf,
    python: PathBuf,
}

impl BenchTools {
    fn search_path(&self) -> OsString {
        let own = [&self.rust, &self.python].map(|prefix| prefix.join("bin"));
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        std::env::join_paths(own.into_iter().chain(std::env::split_paths(&inherited))).unwrap_or(inherited)
    }
}

fn runners(dir: &Path, release: PathBuf, tools: BenchTools) -> Vec<Runner> {
    let shell = |mut command: Command, workspace: &Path| {
        // Else that of the bench's own cargo.
        command.env_remove("CARGO_HOME").current_dir(workspace).stdin(Stdio::null());
        command
    };
    let bare = {
        let (workspaces, home, tools) = (dir.to_owned(), dir.join("home"), tools.clone());
        Runner {
            name: "bare",
            command: Box::new(move |row| {
                let mut command = Command::new("sh");
                command.args(["-c", row.script]);
                if row.cached.is_some() {
                    command.env("HOME", &home).env("PATH", tools.search_path());
                }
                shell(command, &workspaces.join(row.workspace))
            }),
        }
    };
    let ours = {
        let (workspaces, home, state) = (dir.to_owned(), dir.join("home"), dir.join("state"));
        let config = dir.join("config.toml");
        Runner {
            name: "ringfence run",
            command: Box::new(move |row| {
                let mut command = Command::new(&release);
                command.env("HOME", &home).env("RINGFENCE_STATE_DIR", &state).args(["--workspace", "."]);
                let log = state.with_extension("jsonl");
                // Nothing is there before the first round.
                let _ = fs::remove_file(&log);
                if let Some(work) = row.cached {
                    command.env("PATH", tools.search_path()).arg("--config").arg(&config);
                    // A person decides about what was installed later: to drop it is not part of the work.
                    command.args(["run", "--toolchain", work.toolchain, "--end", "later"]);
                } else {
                    command.args(["run", "--end", "drop"]);
                }
                if row.has_exec_log {
                    command.arg("--exec-log").arg(&log);
                }
                command.args(["--profile", "none", "--", "sh", "-c", row.script]);
                shell(command, &workspaces.join(row.workspace))
            }),
        }
    };
    let mut all = vec![bare, ours];
    if has_program("bwrap") {
        let workspaces = dir.to_owned();
        all.push(Runner {
            name: "bwrap",
            command: Box::new(move |row| {
                let mut command = Command::new("bwrap");
                command.args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]);
                let workspace = workspaces.join(row.workspace);
                command.args(["--proc", "/proc", "--tmpfs", "/tmp", "--bind"]).arg(&workspace).arg(&workspace);
                command.args(["--", "sh", "-c", row.script]);
                shell(command, &workspaces.join(row.workspace))
            }),
        });
    }
    let srt_dir = dir.join("srt");
    if fs::create_dir_all(&srt_dir).is_ok()
        && let Some(modules) = fetch_node_packages(&srt_dir, &[SRT_PACKAGE])
    {
        let (workspaces, program, settings) = (dir.to_owned(), modules.join(".bin/srt"), dir.join("srt.json"));
        // Without it, srt does not start, and is left out.
        let _ = fs::write(&settings, SRT_SETTINGS);
        let srt = Runner {
            name: "srt",
            command: Box::new(move |row| {
                let mut command = Command::new(&program);
                command.arg("--settings").arg(&settings).args(["-c", row.script]);
                shell(command, &workspaces.join(row.workspace))
            }),
        };
        if (srt.command)(&ROWS[0]).output().is_ok_and(|ended| ended.status.success()) {
            all.push(srt);
        } else {
            print_status("srt does not run here, and is left out");
        }
    }
    all
}

fn make_workspace(dir: &Path, workspace: &Path) -> io::Result<()> {
    let repository = workspace.join("repository");
    for made in [dir.join("home"), dir.join("state"), dir.join(SMALL), repository.clone()] {
        fs::create_dir_all(made)?;
    }
    fs::write(dir.join(SMALL).join("README.md"), "# Small\n")?;
    if repository.join(".git/index").is_file() {
        return Ok(());
    }
    for number in 0..FILES / FILES_PER_DIRECTORY {
        let directory = repository.join(format!("d{number}"));
        fs::create_dir_all(&directory)?;
        for file in 0..FILES_PER_DIRECTORY {
            fs::write(directory.join(format!("f{file}.txt")), format!("{number} {file}\n"))?;
        }
    }
    for words in [
        &["init", "--quiet"][..],
        &["add", "-A"],
        &["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "all"],
    ] {
        if !Command::new("git").arg("-C").arg(&repository).args(words).status()?.success() {
            return Err(io::Error::other("git failed"));
        }
    }
    Ok(())
}

/// Projects whose dependencies are in caches of a home directory of the bench, and the config that shows their tools.
fn make_cached_work(dir: &Path) -> io::Result<BenchTools> {
    let printed = |program: &str, arguments: &[&str]| -> io::Result<PathBuf> {
        let output = Command::new(program).args(arguments).output()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() { Ok(text.into()) } else { Err(io::Error::other(format!("{program} failed"))) }
    };
    let tools = BenchTools {
        rust: printed("rustc", &["--print", "sysroot"])?,
        python: printed("python3", &["-c", "import sys; print(sys.base_prefix)"])?,
    };
    let config =
        format!("[run_code]\ndetect_toolchains = false\ntoolchains = [{:?}, {:?}]\n", tools.rust, tools.python);
    fs::write(dir.join("config.toml"), config)?;
    let [node, rust, python] = ["node", "rust", "python"].map(|name| dir.join(PROJECTS).join(name));
    let run = |directory: &Path, words: &[&str]| -> io::Result<()> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(directory);
        command.env("HOME", dir.join("home")).env("PATH", tools.search_path()).env_remove("CARGO_HOME");
        if command.status()?.success() { Ok(()) } else { Err(io::Error::other(format!("{} failed", words[0]))) }
    };
    if !node.join("package-lock.json").is_file() {
        fs::create_dir_all(&node)?;
        fs::write(node.join("package.json"), NODE_PACKAGE)?;
        run(&node, &["npm", "install", "--silent", "--no-audit", "--no-fund"])?;
    }
    if !rust.join("Cargo.lock").is_file() {
        fs::create_dir_all(rust.join("src"))?;
        fs::write(rust.join("Cargo.toml"), RUST_PACKAGE)?;
        fs::write(rust.join("src/lib.rs"), "")?;
        run(&rust, &["cargo", "fetch", "--quiet"])?;
    }
    if !python.join("venv/bin/pytest").is_file() {
        fs::create_dir_all(&python)?;
        fs::write(python.join("test_files.py"), PYTHON_TESTS)?;
        run(&python, &["python3", "-m", "venv", "venv"])?;
        run(&python, &["venv/bin/python", "-m", "pip", "install", "--quiet", "pytest"])?;
    }
    Ok(tools)
}
