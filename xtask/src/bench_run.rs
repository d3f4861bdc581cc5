//! `cargo xtask bench run`: programs bare, in `ringfence run`, in `bwrap` and in srt, interleaved.
//!
//! Start is a program that does nothing, as a command of its own: config, audit record, layer, jail, comparison of the
//! layer. The other rows are real work in a workspace on disk. `bwrap` and srt are left out where they are missing; neither
//! has a layer, records or policy.
//!
//! Not here: `run_code` (`bench_sandbox.rs`), and agents (`clients/wrapped.rs`).

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

/// Files of the repository for `git status`.
const FILES: usize = 100_000;
const FILES_PER_DIRECTORY: usize = 250;

/// A row: a command line, how often it runs, and what is aimed at beside the bare command.
struct RunRow {
    name: &'static str,
    script: &'static str,
    rounds: usize,
    goal: RunGoal,
}

#[derive(Clone, Copy)]
enum RunGoal {
    /// Most milliseconds more than bare.
    Over(f64),
    /// Most times the time of bare.
    Ratio(f64),
}

const ROWS: [RunRow; 4] = [
    RunRow { name: "start of `true`", script: "true", rounds: 60, goal: RunGoal::Over(15.0) },
    RunRow {
        name: "`git status`, 100,000 files",
        script: "git -C repository status --short",
        rounds: 9,
        goal: RunGoal::Ratio(1.15),
    },
    RunRow {
        name: "10,000 processes",
        script: "i=0; while [ $i -lt 10000 ]; do /bin/true; i=$((i+1)); done",
        rounds: 3,
        goal: RunGoal::Ratio(1.15),
    },
    RunRow {
        name: "200 MB written and read",
        script: "dd if=/dev/zero of=big bs=1M count=200 2>/dev/null; cat big > /dev/null; rm big",
        rounds: 7,
        goal: RunGoal::Ratio(1.15),
    },
];

/// A way to run a command line.
struct Runner {
    name: &'static str,
    command: Box<dyn Fn(&str) -> Command>,
}

/// False if the bench could not be run. A missed target is a figure, not a failure.
pub(crate) fn run() -> bool {
    let Some(release) = build_release() else { return false };
    let dir = root().join("target/tmp/bench-run");
    let workspace = dir.join("workspace");
    if let Err(error) = make_workspace(&dir, &workspace) {
        print_status(&format!("the workspace for the bench cannot be made: {error}"));
        return false;
    }
    let runners = runners(&dir, &workspace, release);
    let titles: Vec<&str> = runners.iter().map(|runner| runner.name).collect();
    print_status(&format!("medians in milliseconds, interleaved\n\n| | {} | goal |", titles.join(" | ")));
    print_status(&format!("|---|{}---|", "---:|".repeat(titles.len())));
    for row in &ROWS {
        let mut times: Vec<Vec<f64>> = titles.iter().map(|_| Vec::new()).collect();
        for round in 0..=row.rounds {
            for (runner, times) in runners.iter().zip(&mut times) {
                let started = Instant::now();
                let ended = (runner.command)(row.script).output();
                let time = started.elapsed().as_secs_f64() * 1e3;
                match ended {
                    // The first of each fills caches.
                    Ok(ended) if ended.status.success() && round > 0 => times.push(time),
                    Ok(ended) if ended.status.success() => {}
                    Ok(ended) => {
                        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
                        print_status(&format!("{}, {}: {}: {said}", row.name, runner.name, ended.status));
                        return false;
                    }
                    Err(error) => {
                        print_status(&format!("{}: {error}", runner.name));
                        return false;
                    }
                }
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
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
        let cells: Vec<String> = medians.iter().map(|time| format!("{time:.1}")).collect();
        print_status(&format!("| {} | {} | {verdict} |", row.name, cells.join(" | ")));
    }
    let echoing: Vec<_> =
        runners.iter().take(2).map(|runner| (runner.name, (runner.command)(bench_keystrokes::COPY_INPUT))).collect();
    match bench_keystrokes::run(&echoing) {
        Ok(()) => true,
        Err(error) => {
            print_status(&format!("keystrokes: {error}"));
            false
        }
    }
}

fn runners(dir: &Path, workspace: &Path, release: PathBuf) -> Vec<Runner> {
    let shell = |mut command: Command, workspace: &Path| {
        command.current_dir(workspace).stdin(Stdio::null());
        command
    };
    let bare = {
        let workspace = workspace.to_owned();
        Runner {
            name: "bare",
            command: Box::new(move |script| {
                let mut command = Command::new("sh");
                command.args(["-c", script]);
                shell(command, &workspace)
            }),
        }
    };
    let ours = {
        let (workspace, home, state) = (workspace.to_owned(), dir.join("home"), dir.join("state"));
        Runner {
            name: "ringfence run",
            command: Box::new(move |script| {
                let mut command = Command::new(&release);
                command.env("HOME", &home).env("RINGFENCE_STATE_DIR", &state).args(["--workspace", "."]);
                command.args(["run", "--profile", "none", "--end", "drop", "--", "sh", "-c", script]);
                shell(command, &workspace)
            }),
        }
    };
    let mut all = vec![bare, ours];
    if has_program("bwrap") {
        let workspace = workspace.to_owned();
        all.push(Runner {
            name: "bwrap",
            command: Box::new(move |script| {
                let mut command = Command::new("bwrap");
                command.args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]);
                command.args(["--proc", "/proc", "--tmpfs", "/tmp", "--bind"]).arg(&workspace).arg(&workspace);
                command.args(["--", "sh", "-c", script]);
                shell(command, &workspace)
            }),
        });
    }
    let srt_dir = dir.join("srt");
    if fs::create_dir_all(&srt_dir).is_ok()
        && let Some(modules) = fetch_node_packages(&srt_dir, &[SRT_PACKAGE])
    {
        let (workspace, program) = (workspace.to_owned(), modules.join(".bin/srt"));
        let srt = Runner {
            name: "srt",
            command: Box::new(move |script| {
                let mut command = Command::new(&program);
                command.args(["sh", "-c", &format!("'{}'", script.replace('\'', "'\\''"))]);
                shell(command, &workspace)
            }),
        };
        if (srt.command)("true").output().is_ok_and(|ended| ended.status.success()) {
            all.push(srt);
        } else {
            print_status("srt does not run here, and is left out");
        }
    }
    all
}

fn make_workspace(dir: &Path, workspace: &Path) -> io::Result<()> {
    let repository = workspace.join("repository");
    for made in [dir.join("home"), dir.join("state"), repository.clone()] {
        fs::create_dir_all(made)?;
    }
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
