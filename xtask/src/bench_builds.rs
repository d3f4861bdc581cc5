//! `cargo xtask bench sandbox --builds`: whether programs that people really run work in the jail, and how long they take.
//!
//! Each is run bare and through `ringfence call run_code`, on a fresh copy of the same project, and must have the same
//! verdict: the exit code and the summary lines. The time of the jailed run is that of the whole command, from its
//! start to the committed change. Dependencies of a project are fetched once, bare, before anything is timed.
//!
//! Not here: the cost of starting a program that does nothing (`benches/jail.rs` of the sandbox).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{print_status, root, run_cargo as cargo};

const ROUNDS: usize = 3;

/// Popular crates whose own tests are in what cargo downloads.
const CRATES: [&str; 5] = ["bytes", "memchr", "semver", "smallvec", "strsim"];

/// Words by which a program says how it went.
const VERDICT_WORDS: [&str; 6] = ["test result:", " passed", " failed", "added ", "Successfully installed", "error"];

const PYTEST: &str = "import json
import os
import subprocess
import sys
import threading

import pytest


@pytest.mark.parametrize('n', range(50))
def test_numbers(n):
    assert json.loads(json.dumps({'n': n})) == {'n': n}


def test_files(tmp_path):
    (tmp_path / 'a').write_text('x')
    os.rename(tmp_path / 'a', tmp_path / 'b')
    assert os.listdir(tmp_path) == ['b']


def test_processes():
    assert subprocess.check_output([sys.executable, '-c', 'print(1)']) == b'1\\n'


def test_threads():
    seen = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(seen) == list(range(8))
";

const PACKAGE: &str =
    r#"{"name": "bench", "version": "1.0.0", "dependencies": {"express": "4", "lodash": "4", "semver": "7"}}"#;

/// Rules that a person who installs packages has to add once: some packages contain settings of other programs, which
/// only a person may allow.
const BENCH_CONFIG: &str = "[[rules]]
decision = \"allow\"
effect = \"change\"
path = \"node_modules/**\"
protected = true
";

/// With the projects of these names, or all. False if a program came to another verdict in the jail, or nothing could be tried.
pub(crate) fn run(only: &[&str]) -> bool {
    if !cargo(&["build", "--release", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    // Not below this repository, whose workspace and toolchain are not meant; and on a disk, where a sync means something.
    let stage = Path::new("/var/tmp").join(format!("ringfence-bench-{}", std::process::id()));
    let settings = fs::create_dir_all(&stage).and_then(|()| fs::write(stage.join("config.toml"), BENCH_CONFIG));
    if let Err(error) = settings {
        print_status(&format!("there is no room for the projects: {error}"));
        return false;
    }
    let bench = BuildBench { program: root().join("target/release/ringfence"), path: search_path(), stage };
    let wanted = |project: &BenchProject| only.is_empty() || only.contains(&project.title.as_str());
    let tried: Vec<ProjectMeasurement> =
        bench.projects().into_iter().filter(wanted).filter_map(|project| bench.measure(&project)).collect();
    let _ = fs::remove_dir_all(&bench.stage);
    table(&tried);
    !tried.is_empty() && tried.iter().all(|project| project.same_verdict)
}

fn table(measured: &[ProjectMeasurement]) {
    print_status(
        "\n| project | step | bare | sandboxed | ratio of the best | ratio of the medians |\n|---|---|---:|---:|---:|---:|",
    );
    for ProjectMeasurement { title, rows, .. } in measured {
        for StepTiming { step, best: [bare, jailed], ratios: [best, median] } in rows {
            print_status(&format!("| {title} | {step} | {bare:.2} s | {jailed:.2} s | {best:.2} | {median:.2} |"));
        }
    }
}

/// The measurements of a project.
struct ProjectMeasurement {
    title: String,
    rows: Vec<StepTiming>,
    /// Whether all verdicts were the same.
    same_verdict: bool,
}

/// A step: seconds bare and jailed, and the ratio of the best and of the medians.
struct StepTiming {
    step: &'static str,
    best: [f64; 2],
    ratios: [f64; 2],
}

/// A directory with something to build, and how.
struct BenchProject {
    title: String,
    /// Source directory, if the project is not made by `prepare` alone.
    source: Option<PathBuf>,
    files: &'static [(&'static str, &'static str)],
    /// Run once, bare and not timed. It may use the network.
    prepare: &'static str,
    /// Timed steps, one after the other, each on the result of the one before.
    steps: &'static [(&'static str, &'static str)],
}

struct BuildBench {
    program: PathBuf,
    path: OsString,
    stage: PathBuf,
}

impl BuildBench {
    fn projects(&self) -> Vec<BenchProject> {
        let crates = CRATES.iter().filter_map(|name| {
            let source = fetched_crate(name);
            if source.is_none() {
                print_status(&format!("{name}: cargo has not fetched its source, left out"));
            }
            Some(BenchProject {
                title: (*name).to_owned(),
                source: Some(source?),
                files: &[],
                prepare: "rm -f rust-toolchain rust-toolchain.toml; cargo fetch",
                steps: &[("cargo build", "cargo build --offline"), ("cargo test", "cargo test --offline")],
            })
        });
        let python = BenchProject {
            title: "pytest".to_owned(),
            source: None,
            files: &[("tests/test_small.py", PYTEST)],
            prepare: "python3 -m pip download --quiet --dest wheels pytest",
            steps: &[
                ("pip install --target", "python3 -m pip install --no-index --find-links wheels --target site pytest"),
                ("pytest", "PYTHONPATH=site python3 -m pytest -q tests"),
                (
                    "venv, pip install",
                    "python3 -m venv --copies venv && venv/bin/pip install --no-index --find-links wheels pytest",
                ),
                ("pytest in the venv", "venv/bin/python -m pytest -q tests"),
            ],
        };
        let node = BenchProject {
            title: "express".to_owned(),
            source: None,
            files: &[("package.json", PACKAGE)],
            prepare: "npm install --package-lock-only --omit-lockfile-registry-resolved=false --cache cache \
                && npm ci --cache cache --no-audit --no-fund && rm -rf node_modules",
            steps: &[
                ("npm ci", "npm ci --offline --cache cache --no-audit --no-fund"),
                ("node", "node -e \"require('express')(); console.log('1 passed')\""),
            ],
        };
        let files = BenchProject {
            title: "10000-files".to_owned(),
            source: None,
            files: &[],
            prepare: "true",
            steps: &[(
                "written by a script",
                "for d in d{0..99}; do mkdir $d; for f in {0..99}; do echo \"text of $d/$f\" > $d/$f; done; done",
            )],
        };
        crates.chain([python, node, files]).collect()
    }

    /// Nothing where the project could not be prepared.
    fn measure(&self, project: &BenchProject) -> Option<ProjectMeasurement> {
        let original = self.stage.join("original");
        if let Err(why) = self.prepare(project, &original) {
            print_status(&format!("{}: could not be prepared, left out: {why}", project.title));
            return None;
        }
        let mut times: Vec<[Vec<Duration>; 2]> = project.steps.iter().map(|_| [Vec::new(), Vec::new()]).collect();
        let mut same = true;
        for _ in 0..ROUNDS {
            let [bare, jailed] = ["bare", "jailed"].map(|name| self.stage.join(name));
            for copied in [&bare, &jailed] {
                let _ = fs::remove_dir_all(copied);
                copy(&original, copied).ok()?;
            }
            let _ = fs::remove_dir_all(self.stage.join("state"));
            for ((name, script), taken) in project.steps.iter().zip(&mut times) {
                let (bare_took, bare) = timed(|| self.run_bare(script, &bare));
                let (jailed_took, jailed) = timed(|| self.run_jailed(script, &jailed));
                taken[0].push(bare_took);
                taken[1].push(jailed_took);
                if bare.verdict() != jailed.verdict() || jailed.refusal.is_some() {
                    same = false;
                    print_status(&format!(
                        "{}, {name}: the verdicts differ\n bare: {bare}\n jailed: {jailed}",
                        project.title
                    ));
                }
            }
        }
        let row = |(&(step, _), mut taken): (&(&'static str, &str), [Vec<Duration>; 2])| {
            taken.iter_mut().for_each(|taken| taken.sort());
            let [bare, jailed] = &taken;
            let ratios = [0, ROUNDS / 2].map(|nth| seconds(jailed, nth) / seconds(bare, nth));
            StepTiming { step, best: [seconds(bare, 0), seconds(jailed, 0)], ratios }
        };
        let rows: Vec<StepTiming> = project.steps.iter().zip(times).map(row).collect();
        let verdict = if same { "same verdicts" } else { "NOT THE SAME VERDICTS" };
        print_status(&format!("{}: {} steps, {ROUNDS} times each, {verdict}", project.title, rows.len()));
        Some(ProjectMeasurement { title: project.title.clone(), rows, same_verdict: same })
    }

    fn prepare(&self, project: &BenchProject, at: &Path) -> Result<(), String> {
        let _ = fs::remove_dir_all(at);
        let made = match &project.source {
            Some(source) => copy(source, at),
            None => fs::create_dir_all(at),
        };
        made.map_err(|error| error.to_string())?;
        for (name, contents) in project.files {
            let path = at.join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(|error| error.to_string())?;
            fs::write(path, contents).map_err(|error| error.to_string())?;
        }
        let ended = self.run_bare(project.prepare, at);
        if ended.code == Some(0) { Ok(()) } else { Err(tail(&ended.printed).to_owned()) }
    }

    fn run_bare(&self, script: &str, project: &Path) -> BuildResult {
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(project).env("PATH", &self.path).env("PYTHONDONTWRITEBYTECODE", "1");
        BuildResult::from_bare(output(&mut command))
    }

    fn run_jailed(&self, script: &str, project: &Path) -> BuildResult {
        let arguments = json!({"language": "bash", "code": script, "timeout": 600}).to_string();
        let mut command = Command::new(&self.program);
        command
            .args(["call", "run_code", &arguments, "--preset", "edits", "--config"])
            .arg(self.stage.join("config.toml"))
            .arg("--workspace")
            .arg(project)
            .env("RINGFENCE_STATE_DIR", self.stage.join("state"));
        BuildResult::from_jailed(output(&mut command))
    }
}

/// The result of a program.
struct BuildResult {
    code: Option<i64>,
    printed: String,
    /// The reason for which a sandboxed run's changes were discarded.
    refusal: Option<String>,
}

impl BuildResult {
    fn from_bare(output: io::Result<Output>) -> Self {
        match output {
            Ok(output) => {
                Self { code: output.status.code().map(i64::from), printed: combined_output(&output), refusal: None }
            }
            Err(error) => Self { code: None, printed: error.to_string(), refusal: None },
        }
    }

    fn from_jailed(output: io::Result<Output>) -> Self {
        let Ok(output) = output else { return Self::from_bare(output) };
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let value = &reply["value"];
        let Some(code) = value["exitCode"].as_i64() else { return Self::from_bare(Ok(output)) };
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let printed = [text("stdout"), text("stderr")].join("\n");
        Self { code: Some(code), printed, refusal: value["refused"].as_str().map(str::to_owned) }
    }

    /// The code and the lines that tell, without how long it took.
    fn verdict(&self) -> (Option<i64>, Vec<&str>) {
        let lines = self.printed.lines().filter(|line| VERDICT_WORDS.iter().any(|word| line.contains(word)));
        (self.code, lines.map(|line| line.split(" in ").next().unwrap_or_default().trim()).collect())
    }
}

impl std::fmt::Display for BuildResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let refused = self.refusal.as_deref().unwrap_or_default();
        write!(f, "code {:?}, {}\n{refused}", self.code, tail(&self.printed))
    }
}

fn combined_output(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).join("\n")
}

fn tail(text: &str) -> &str {
    let text = text.trim_end();
    let start = text.char_indices().rev().nth(1500).map_or(0, |(at, _)| at);
    text.get(start..).unwrap_or_default()
}

fn output(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).output()
}

fn timed(act: impl FnOnce() -> BuildResult) -> (Duration, BuildResult) {
    let began = Instant::now();
    let ended = act();
    (began.elapsed(), ended)
}

fn seconds(taken: &[Duration], nth: usize) -> f64 {
    taken.get(nth).map_or(f64::NAN, Duration::as_secs_f64)
}

/// With its links as links.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    let status = Command::new("cp").arg("-a").args([from, to]).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("the copy failed")) }
}

/// The newest source of a crate that cargo has.
fn fetched_crate(name: &str) -> Option<PathBuf> {
    let registries = fs::read_dir(crate::bench_search::fetched_sources()?).ok()?.flatten();
    let all = registries.flat_map(|registry| fs::read_dir(registry.path()).into_iter().flatten().flatten());
    let is_it = |path: &PathBuf| {
        let found = path.file_name().and_then(|found| found.to_str()).and_then(|found| found.strip_prefix(name));
        found.and_then(|rest| rest.strip_prefix('-')).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    all.map(|entry| entry.path()).filter(is_it).max()
}

/// With the directory of the real interpreter in front: what is on the path may be a script that looks for it.
fn search_path() -> OsString {
    let mut asked = Command::new("python3");
    asked.args(["-c", "import sys; print(sys.base_prefix + '/bin')"]);
    let found = output(&mut asked).ok().filter(|output| output.status.success());
    let before = found.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = before.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(all).unwrap_or(path)
}
