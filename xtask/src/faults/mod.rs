//! `cargo xtask faults`: every tool that changes something, with a fault in the middle of its call.
//!
//! A program of ours is started, and waits. Then its call is made, and at one of its system calls it is killed, or the
//! call fails, or the power goes, the disk turns read-only or the clock jumps; or the disk is nearly full. `trial.rs`
//! has the checks afterwards. A naive write goes through the same trials and must fail them: else they prove nothing.
//!
//! It needs `strace`, and permission to trace other processes. Disks that break need root and a loop device; a clock
//! that jumps needs `faketime`, which is installed where possible. Faults that cannot be tried are reported.

mod fault_disk;
mod figures;
mod json_lines;
mod operations;
mod site;
pub(crate) mod strace;
mod trial;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{fs, io, thread};

use fault_disk::FaultDisk;
use figures::FaultFigures;
use operations::{FAKE_CLOCK, FaultFrontend, FaultOperation, operations};
use strace::SyscallPoint;
use trial::{BaselineRun, InjectedFault, TrialEnvironment, record_baseline, run_trial};

use crate::{print_status, root};

/// Without `--every`, one of this number of points is tried.
const DEFAULT_SAMPLING: usize = 40;

const ERRORS: [&str; 5] = ["ENOSPC", "EIO", "EMFILE", "EINTR", "EDQUOT"];

/// Bytes that are left on a full disk.
const FREE_BYTES: [u64; 5] = [0, 4 << 10, 32 << 10, 256 << 10, 2 << 20];

/// The clock goes on by more than a year, and back by as much.
const CLOCK_JUMPS: [&str; 2] = ["+400d", "-400d"];

/// Number of faults between two progress messages.
const PROGRESS_INTERVAL: usize = 100;

/// Directory in memory, if there is one.
const TMPFS_DIR: &str = "/dev/shm";

/// Says that this is the mount namespace of its own.
const IN_NAMESPACE_FLAG: &str = "--inside";

const USAGE: &str = "usage: cargo xtask faults [--every N | --full] [--only TOOL] [--json]";

#[derive(Debug)]
struct FaultOptions {
    every: usize,
    only: Option<String>,
    json: bool,
}

/// Faults that this machine supports.
#[derive(Clone, Copy, Debug)]
struct FaultCapabilities {
    disks: bool,
    clock: bool,
}

#[derive(Debug)]
struct FaultTrial {
    operation: usize,
    fault: InjectedFault,
}

/// False if something was wrong after a fault, or nothing was wrong with the control.
pub(crate) fn run(words: &[&str]) -> bool {
    let (is_inside, words) = match words {
        [first, words @ ..] if *first == IN_NAMESPACE_FLAG => (true, words),
        words => (false, words),
    };
    let Some(options) = FaultOptions::parse(words) else {
        print_status(USAGE);
        return false;
    };
    if !is_inside && is_root() {
        return run_in_namespace(words);
    }
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let memory = Some(Path::new(TMPFS_DIR)).filter(|memory| memory.is_dir()).map(Path::to_owned);
    let dir =
        memory.unwrap_or_else(|| root().join("target/tmp")).join(format!("ringfence-faults-{}", std::process::id()));
    let done = run_all(&options, &dir);
    // A directory that cannot be removed does no harm.
    let _ = fs::remove_dir_all(&dir);
    done.unwrap_or_else(|error| {
        print_status(&format!("cannot run the fault trials: {error}"));
        false
    })
}

/// Runs this in a mount namespace of its own: its disks are invisible to other processes, and go with it.
fn run_in_namespace(words: &[&str]) -> bool {
    let this = std::env::current_exe().unwrap_or_else(|_| "xtask".into());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(this).args(["faults", IN_NAMESPACE_FLAG]).args(words);
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            print_status(&format!("cannot run unshare: {error}"));
            false
        }
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

impl FaultOptions {
    fn parse(words: &[&str]) -> Option<Self> {
        let mut options = Self { every: DEFAULT_SAMPLING, only: None, json: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--full" => options.every = 1,
                "--every" => options.every = words.next()?.parse().ok().filter(|every| *every > 0)?,
                "--only" => options.only = Some((*words.next()?).to_owned()),
                "--json" => options.json = true,
                _ => return None,
            }
        }
        Some(options)
    }

    /// The command line, for repeating the run.
    fn command(&self) -> String {
        match self.every {
            DEFAULT_SAMPLING => "cargo xtask faults".to_owned(),
            1 => "cargo xtask faults --full".to_owned(),
            every => format!("cargo xtask faults --every {every}"),
        }
    }
}

fn run_all(options: &FaultOptions, dir: &Path) -> io::Result<bool> {
    let begun = Instant::now();
    let program = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let program = program.join("debug/ringfence");
    let means = FaultCapabilities::detect()?;
    fs::create_dir_all(dir)?;
    let mut operations = operations();
    operations.retain(|operation| options.only.as_ref().is_none_or(|only| operation.name == only));
    let here = TrialEnvironment { memory: dir, disk: None, program: &program };
    let known: Vec<BaselineRun> =
        operations.iter().map(|operation| record_baseline(operation, here)).collect::<io::Result<_>>()?;
    let trials: VecDeque<FaultTrial> = known
        .iter()
        .enumerate()
        .flat_map(|(number, known)| {
            plan_faults(&known.points, options.every, means)
                .into_iter()
                .map(move |fault| FaultTrial { operation: number, fault })
        })
        .collect();
    let points: usize = known.iter().map(|known| known.points.len()).sum();
    print_status(&format!("{points} system calls in {} calls; {} faults to try", operations.len(), trials.len()));
    let figures =
        Mutex::new(FaultFigures::new(operations.iter().map(|operation| (operation.name, operation.front)).collect()));
    let trials = Mutex::new(trials);
    // Each waits for its programs more than it works.
    let workers = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let work = |number: usize| {
            let (operations, known, figures, trials, program) = (&operations, &known, &figures, &trials, &program);
            let dir = dir.join(format!("worker-{number}"));
            scope.spawn(move || run_worker(&dir, program, means, (operations, known), trials, figures))
        };
        let workers: Vec<_> = (0..workers).map(work).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker failed"))))
    })?;
    let figures = figures.into_inner().unwrap_or_else(PoisonError::into_inner);
    print_status(&format!("{} seconds", begun.elapsed().as_secs()));
    figures::print_figures(&figures, &options.command(), options.json)?;
    let is_written = options.only.is_some() || figures::write_figures(&figures, &options.command(), means.missing());
    Ok(is_written && figures.passed(means.disks))
}

/// Tries one fault after the other until none is left.
fn run_worker(
    dir: &Path,
    program: &Path,
    means: FaultCapabilities,
    (operations, known): (&[FaultOperation], &[BaselineRun]),
    trials: &Mutex<VecDeque<FaultTrial>>,
    figures: &Mutex<FaultFigures>,
) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let disk = means.disks.then(|| FaultDisk::new(&dir.join("disk"))).transpose()?;
    let here = TrialEnvironment { memory: dir, disk: disk.as_ref(), program };
    loop {
        let (next, left) = {
            let mut trials = trials.lock().unwrap_or_else(PoisonError::into_inner);
            (trials.pop_front(), trials.len())
        };
        let Some(trial) = next else { return Ok(()) };
        if left % PROGRESS_INTERVAL == 0 {
            print_status(&format!("{left} faults left"));
        }
        let operation = &operations[trial.operation];
        let met = run_trial(operation, &known[trial.operation], &trial.fault, here)
            .map_err(|error| io::Error::other(format!("{}: {:?}: {error}", operation.name, trial.fault)))?;
        let Some(found) = met else { continue };
        if operation.front != FaultFrontend::Control {
            found.iter().for_each(|(wrong, why)| {
                print_status(&format!("{}: {:?}: {wrong:?}: {why}", operation.name, trial.fault))
            });
        }
        figures.lock().unwrap_or_else(PoisonError::into_inner).count(trial.operation, trial.fault.name(), &found);
    }
}

/// The faults of one call, at one of `every` points.
fn plan_faults(points: &[SyscallPoint], every: usize, means: FaultCapabilities) -> Vec<InjectedFault> {
    let some = |offset: usize| points.iter().skip(offset % every).step_by(every).cloned();
    let on_files: Vec<&SyscallPoint> = points.iter().filter(|point| point.on_file).collect();
    let mut faults: Vec<InjectedFault> = some(0).map(InjectedFault::Kill).collect();
    for (number, error) in ERRORS.into_iter().enumerate() {
        let offset = number * every / ERRORS.len();
        faults.extend(
            on_files.iter().skip(offset).step_by(every).map(|point| InjectedFault::Fail((*point).clone(), error)),
        );
    }
    if means.disks {
        faults.extend(some(every / 2).map(InjectedFault::PowerCut));
        faults.push(InjectedFault::PowerCutAfterReply);
        faults.extend(FREE_BYTES.map(InjectedFault::DiskFull));
        faults.extend(some(every / 3).map(InjectedFault::ReadOnly));
    }
    if means.clock {
        let jumps = CLOCK_JUMPS.into_iter().enumerate();
        faults.extend(jumps.flat_map(|(number, jump)| {
            some(every / 4 + number * every / 2).map(move |point| InjectedFault::ClockJump(point, jump))
        }));
    }
    faults
}

impl FaultCapabilities {
    fn detect() -> io::Result<Self> {
        if !has("strace", &["-V"]) {
            return Err(io::Error::other("strace not found: install it with `apt-get install strace`"));
        }
        let is_root = is_root();
        if is_root && !Path::new(FAKE_CLOCK).exists() {
            // Whether it is there is what counts.
            let _ = has("apt-get", &["install", "-y", "--no-install-recommends", "faketime"]);
        }
        let disks = is_root && has("mkfs.ext4", &["-V"]) && has("losetup", &["--version"]) && has("perl", &["-v"]);
        let means = Self { disks, clock: Path::new(FAKE_CLOCK).exists() };
        means.missing().iter().for_each(|missing| print_status(missing));
        Ok(means)
    }

    fn missing(self) -> Vec<&'static str> {
        let disks = "skipped: power cuts, full disks and disks that turn read-only, which require root, ext4, loop devices and perl";
        let clock = "skipped: a clock that jumps, which requires faketime";
        [(self.disks, disks), (self.clock, clock)]
            .into_iter()
            .filter(|(is_had, _)| !is_had)
            .map(|(_, what)| what)
            .collect()
    }
}

fn has(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
