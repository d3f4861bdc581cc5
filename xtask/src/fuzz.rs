//! `cargo xtask fuzz [TARGET…] [--seconds N] [--write]`: every fuzz target for longer than the tests have time for.
//!
//! A target is a directory `tests/corpus/TARGET` of a crate, and a test in a module `fuzz` there. Each runs in a process of
//! its own, as many at once as there are processors, so that one that ends its process or never comes back is found too. A
//! failing input is in the corpus afterwards, and makes the command fail. `--write` puts the figures into `docs/fuzzing.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ringfence_fuzz::{FuzzReport, REPORTS, SECONDS, TARGET};
use serde_json::{Value, json};

use crate::{doc_markers, report};

/// Default duration of each target.
const DEFAULT_SECONDS: u64 = 60;

/// A target may take so much longer than it was given: its fixtures are set up, and a failing input is made small.
const GRACE: Duration = Duration::from_secs(90);

/// A target and the crate that it is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FuzzRunTarget {
    name: String,
    crate_dir: PathBuf,
}

/// The result of a target.
enum FuzzResult {
    Passed(FuzzReport),
    /// The output of the test.
    Failed(Option<FuzzReport>, String),
}

/// False if any target failed.
pub(crate) fn run(words: &[&str]) -> bool {
    let Some(FuzzOptions { names, seconds, write }) = parse_options(words) else {
        crate::print_status("usage: cargo xtask fuzz [TARGET…] [--seconds N] [--write]");
        return false;
    };
    let all = targets();
    let known: BTreeSet<&str> = all.iter().map(|target| target.name.as_str()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(*name)) {
        crate::print_status(&format!("unknown target `{unknown}`; available: {}", Vec::from_iter(known).join(", ")));
        return false;
    }
    let chosen: Vec<FuzzRunTarget> =
        all.iter().filter(|target| names.is_empty() || names.contains(&target.name.as_str())).cloned().collect();
    let reports = crate::root().join("target/fuzz");
    if let Err(error) = fs::create_dir_all(&reports) {
        crate::print_status(&format!("cannot create {}: {error}", reports.display()));
        return false;
    }
    let Some(tests) = build_test_programs() else { return false };
    let machine = report::machine();
    let ended = Mutex::new(BTreeMap::new());
    let waiting = Mutex::new(chosen.iter().collect::<Vec<_>>());
    let hands = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..hands {
            scope.spawn(|| {
                while let Some(target) = lock(&waiting).pop() {
                    let programs = tests.get(&target.crate_dir).map(Vec::as_slice).unwrap_or_default();
                    let end = run_target(target, programs, &reports, seconds);
                    lock(&ended).insert(target.clone(), end);
                }
            });
        }
    });
    let ended = lock(&ended);
    let table = table(&ended);
    crate::print_status(&table);
    let is_written = !write || {
        let head = format!("`cargo xtask fuzz {}`, on {machine}:", words.join(" "));
        doc_markers::write("docs/fuzzing.md", "fuzz", &format!("{head}\n\n{table}"))
    };
    print_failures(&ended) && is_written
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Options of the command line.
struct FuzzOptions<'w> {
    /// None is all.
    names: Vec<&'w str>,
    seconds: u64,
    write: bool,
}

fn parse_options<'w>(words: &[&'w str]) -> Option<FuzzOptions<'w>> {
    let mut wanted = FuzzOptions { names: Vec::new(), seconds: DEFAULT_SECONDS, write: false };
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--seconds" => wanted.seconds = rest.next()?.parse().ok()?,
            "--write" => wanted.write = true,
            name if name.starts_with('-') => return None,
            name => wanted.names.push(name),
        }
    }
    Some(wanted)
}

/// Every directory of inputs is a target.
fn targets() -> Vec<FuzzRunTarget> {
    let below = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let in_crate = |home: PathBuf| {
        let named = |corpus: PathBuf| {
            Some(FuzzRunTarget { name: corpus.file_name()?.to_str()?.to_owned(), crate_dir: home.clone() })
        };
        below(&home.join("tests/corpus")).into_iter().filter_map(named).collect::<Vec<_>>()
    };
    let mut found: Vec<FuzzRunTarget> = below(&crate::root().join("crates")).into_iter().flat_map(in_crate).collect();
    found.sort();
    found
}

/// The test programs of each crate, by its directory. All are built at once, as the tests build them: a crate alone would have
/// other features of its dependencies, and build those again.
fn build_test_programs() -> Option<BTreeMap<PathBuf, Vec<PathBuf>>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["test", "--no-run", "--locked", "--message-format", "json", "--workspace"];
    let output =
        Command::new(cargo).args(arguments).current_dir(crate::root()).stderr(Stdio::inherit()).output().ok()?;
    if !output.status.success() {
        crate::print_status("cannot build the tests");
        return None;
    }
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let home = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let has_targets = message["target"]["kind"] == json!(["lib"]) || message["target"]["name"] == "it";
        let is_test = message["profile"]["test"].as_bool()? && has_targets;
        is_test.then_some((home, PathBuf::from(message["executable"].as_str()?)))
    };
    let mut programs: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for (home, program) in String::from_utf8_lossy(&output.stdout).lines().filter_map(program) {
        programs.entry(home).or_default().push(program);
    }
    Some(programs)
}

/// Runs one target to its end.
fn run_target(target: &FuzzRunTarget, programs: &[PathBuf], reports: &Path, seconds: u64) -> FuzzResult {
    let FuzzRunTarget { name, crate_dir: home } = target;
    let (done, last) = (reports.join(format!("{name}.done")), reports.join(format!("{name}.last")));
    // Reports of an earlier run are not results of this one.
    for old in [&done, &last] {
        let _ = fs::remove_file(old);
    }
    let until = Instant::now() + Duration::from_secs(seconds) + GRACE;
    for program in programs {
        let printed = reports.join(format!("{name}.log"));
        let ended = start(program, target, reports, seconds, &printed).and_then(|mut child| wait(&mut child, until));
        let report = fs::read_to_string(&done).ok().and_then(|line| FuzzReport::parse(&line));
        let printed = fs::read_to_string(&printed).unwrap_or_default();
        match ended {
            Ok(Some(status)) if status.success() => match report {
                Some(report) => return FuzzResult::Passed(report),
                // It is in another program of the crate.
                None => continue,
            },
            Ok(_) if report.is_some() => return FuzzResult::Failed(report, printed),
            Ok(ended) => {
                let how = ended.map_or("it did not return".to_owned(), |status| format!("its process ended: {status}"));
                let kept = home.join("tests/corpus").join(name).join("found-last");
                let where_ = match fs::copy(&last, &kept) {
                    Ok(_) => format!("the input is stored as tests/corpus/{name}/found-last"),
                    Err(_) => "it had no input yet".to_owned(),
                };
                return FuzzResult::Failed(None, format!("{how}; {where_}\n{printed}"));
            }
            Err(error) => return FuzzResult::Failed(None, format!("cannot run {}: {error}", program.display())),
        }
    }
    FuzzResult::Failed(None, "there is a corpus of this name, and no test".to_owned())
}

fn start(
    program: &Path,
    target: &FuzzRunTarget,
    reports: &Path,
    seconds: u64,
    printed: &Path,
) -> std::io::Result<Child> {
    let print = fs::File::create(printed)?;
    Command::new(program)
        .arg("fuzz::")
        .current_dir(&target.crate_dir)
        .env(TARGET, &target.name)
        .env(SECONDS, seconds.to_string())
        .env(REPORTS, reports)
        .env("RUST_BACKTRACE", "0")
        .stdout(print.try_clone()?)
        .stderr(print)
        .spawn()
}

/// Nothing where it had to be ended.
fn wait(child: &mut Child, until: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn table(ended: &BTreeMap<FuzzRunTarget, FuzzResult>) -> String {
    let mut table = "| target | runs | runs/s | outcomes | failures |\n|---|---:|---:|---:|---:|\n".to_owned();
    for (FuzzRunTarget { name, .. }, end) in ended {
        let (FuzzResult::Passed(report) | FuzzResult::Failed(Some(report), _)) = end else {
            table += &format!("| `{name}` | ? | ? | ? | 1 |\n");
            continue;
        };
        let FuzzReport { runs, time, outcomes, failures } = report;
        let a_second = *runs as f64 / time.as_secs_f64().max(0.001);
        table += &format!("| `{name}` | {runs} | {a_second:.0} | {outcomes} | {failures} |\n");
    }
    table
}

/// True if nothing failed.
fn print_failures(ended: &BTreeMap<FuzzRunTarget, FuzzResult>) -> bool {
    let mut fine = true;
    for (FuzzRunTarget { name, .. }, end) in ended {
        if let FuzzResult::Failed(_, printed) = end {
            fine = false;
            crate::print_status(&format!("\n{name} failed:\n{}", printed.trim()));
        }
    }
    fine
}
