//! `cargo xtask bench search`: our search and ripgrep's, on the same tree, in one interleaved run.
//!
//! Both are started as programs, read the same files by the same ignore rules, and give matches in the order of paths
//! with a line before and after; ripgrep is Debian's, installed where it is missing and can be. The tree is the source of
//! the crates that cargo has fetched, or one that is named.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::external_tools::{has_program, install_debian_packages};

const ROUNDS: usize = 15;

/// Patterns with fewer matches than our tool returns at most, so that neither stops early.
const PATTERNS: [SearchPattern; 5] = [
    SearchPattern { title: "literal, no match", text: "no such text anywhere", regex: false, ignore_case: false },
    SearchPattern { title: "literal", text: "unsafe impl Sync for Shared", regex: false, ignore_case: false },
    SearchPattern { title: "literal, ignoring case", text: "BILLION LAUGHS", regex: false, ignore_case: true },
    SearchPattern { title: "regex", text: r"fn\s+\w+_unchecked_mut\s*\(", regex: true, ignore_case: false },
    SearchPattern { title: "regex, alternatives", text: r"(todo|fixme):? remove", regex: true, ignore_case: true },
];

struct SearchPattern {
    title: &'static str,
    text: &'static str,
    regex: bool,
    ignore_case: bool,
}

/// False if the bench could not be run.
pub(crate) fn run(tree: Option<&str>) -> bool {
    let Some(tree) = tree.map(PathBuf::from).or_else(fetched_sources) else {
        crate::print_status("there is no tree to search: name a directory");
        return false;
    };
    let has_rg = has_program("rg") || install_debian_packages(&["ripgrep"]);
    if !has_rg {
        crate::print_status(
            "ripgrep (`rg`) is not here and could not be installed (that takes root and Debian): ours alone",
        );
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default();
    if !crate::run_cargo(&["build", "--release", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let ours = root.join("target/release/ringfence");
    let state = root.join("target/tmp/bench-search");
    for pattern in &PATTERNS {
        let mut ours_taken = Vec::new();
        let mut rg_taken = Vec::new();
        for _ in 0..ROUNDS {
            ours_taken.push(time_command(&mut pattern.ringfence_command(&ours, &tree, &state)));
            if has_rg {
                rg_taken.push(time_command(&mut pattern.ripgrep_command(&tree)));
            }
        }
        let (our_best, our_median) = best_and_median(ours_taken);
        let mut line = format!("{:<24} ours best {our_best:>7.1?} median {our_median:>7.1?}", pattern.title);
        if has_rg {
            let (best, median) = best_and_median(rg_taken);
            let ratio = |ours: Duration, theirs: Duration| ours.as_secs_f64() / theirs.as_secs_f64();
            line += &format!(
                "   rg best {best:>7.1?} median {median:>7.1?}   ratio {:.2} / {:.2}",
                ratio(our_best, best),
                ratio(our_median, median)
            );
        }
        crate::print_status(&line);
    }
    true
}

impl SearchPattern {
    fn ringfence_command(&self, program: &Path, tree: &Path, state: &Path) -> Command {
        let quoted = self.text.replace('\\', "\\\\").replace('"', "\\\"");
        let arguments = format!(
            r#"{{"path":".","pattern":"{quoted}","regex":{},"ignoreCase":{},"maxMatches":200}}"#,
            self.regex, self.ignore_case
        );
        let mut command = Command::new(program);
        command.args(["call", "search_files", &arguments, "--workspace"]).arg(tree).env("RINGFENCE_STATE_DIR", state);
        command
    }

    fn ripgrep_command(&self, tree: &Path) -> Command {
        let mut command = Command::new("rg");
        command.args([
            "--no-config",
            "--no-require-git",
            "--sort=path",
            "--line-number",
            "--column",
            "--context=1",
            "--crlf",
        ]);
        if !self.regex {
            command.arg("--fixed-strings");
        }
        if self.ignore_case {
            command.arg("--ignore-case");
        }
        command.args(["-e", self.text]).arg(tree);
        command
    }
}

fn time_command(command: &mut Command) -> Duration {
    let started = Instant::now();
    // A search that finds nothing is an answer too.
    let _ = command.output();
    started.elapsed()
}

fn best_and_median(mut taken: Vec<Duration>) -> (Duration, Duration) {
    taken.sort();
    (taken.first().copied().unwrap_or_default(), taken.get(taken.len() / 2).copied().unwrap_or_default())
}

/// Directory of the sources that cargo has fetched.
pub(crate) fn fetched_sources() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")))?;
    let sources = home.join("registry/src");
    sources.is_dir().then_some(sources)
}
