//! Symlink races: parts of a path are exchanged for links, pipes and nothing while every tool works on it.
//!
//! What is outside is never read, never named and never changed, and nothing hangs. Beside each race runs a
//! control that checks a path and then uses it, as many tools do: if that one did not leak, the race would prove
//! nothing.
//!
//! `RINGFENCE_RACE_SECONDS` makes each race longer than its one second.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence_fs::ResolverBackend;
use ringfence_kernel::{ErrorKind, ToolCall};
use ringfence_testkit::patience::PATIENCE;
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, fstat, mknodat, open, openat, renameat_with};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::snapshot::{SnapshotEntryKind, TreeSnapshot, snapshot};

/// The contents of every file outside.
const SECRET: &str = "SECRET\n";

/// A name that only exists outside.
const OUTSIDE_NAME: &str = "only-outside";

/// Number of threads that call tools.
const WORKERS: usize = 3;

/// Fewer swaps do not race.
const MIN_SWAPS: u64 = 100;

/// The entries that are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwapPattern {
    /// A directory in the middle of the path, for a link to its twin outside.
    Middle,
    /// The file or directory that the path ends in, for a link to its twin outside.
    Last,
    /// A directory that the path climbs out of is moved out of the workspace and back.
    Climb,
    /// A file, for a pipe without readers and writers.
    Pipe,
    /// A link to a file inside, for a link to its twin outside.
    Link,
}

impl SwapPattern {
    /// Builds what is exchanged, also where a tool took a part of it away. Files outside are made once.
    fn build(self, root: &Path, outside: &Path) -> std::io::Result<()> {
        match self {
            Self::Middle => {
                std::fs::create_dir_all(root.join("a"))?;
                remove(&root.join("a/b"))?;
                remove(&root.join("a/l"))?;
                place(root, "a/b", |at| tree(at, "inside\n"))?;
                std::os::unix::fs::symlink("../../outside/twin", root.join("a/l"))
            }
            Self::Last => {
                for name in ["f.txt", "f.link", "b", "b.link"] {
                    remove(&root.join(name))?;
                }
                place(root, "f.txt", |at| std::fs::write(at, "inside\n"))?;
                place(root, "b", |at| tree(at, "inside\n"))?;
                std::os::unix::fs::symlink(outside.join("twin/f.txt"), root.join("f.link"))?;
                std::os::unix::fs::symlink("../outside/twin", root.join("b.link"))
            }
            Self::Climb => {
                tree(&root.join("mid"), "inside\n")?;
                // Deeper than a walk holds directories open, so that it has to climb back.
                std::fs::create_dir_all(root.join("mid/dir").join("d/".repeat(80)))
            }
            Self::Pipe => {
                for name in ["f.txt", "pipe"] {
                    remove(&root.join(name))?;
                }
                place(root, "f.txt", |at| std::fs::write(at, "inside\n"))?;
                Ok(mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
            }
            Self::Link => {
                for name in ["f.txt", "f.link"] {
                    remove(&root.join(name))?;
                }
                if !root.join("b").is_dir() {
                    place(root, "b", |at| tree(at, "inside\n"))?;
                }
                std::os::unix::fs::symlink("b/f.txt", root.join("f.txt"))?;
                std::os::unix::fs::symlink("../outside/twin/f.txt", root.join("f.link"))
            }
        }
    }

    /// One exchange. False where there is nothing to exchange.
    fn swap(self, root: &Path, outside: &Path) -> bool {
        let exchange =
            |one: &str, other: &str| renameat_with(CWD, root.join(one), CWD, root.join(other), RenameFlags::EXCHANGE);
        match self {
            Self::Middle => exchange("a/b", "a/l").is_ok(),
            Self::Last => {
                let file = exchange("f.txt", "f.link").is_ok();
                exchange("b", "b.link").is_ok() && file
            }
            Self::Climb => {
                let (here, there) = (root.join("mid/dir"), outside.join("twin/dir"));
                let out = std::fs::rename(&here, &there).is_ok();
                std::fs::rename(there, here).is_ok() && out
            }
            Self::Pipe => exchange("f.txt", "pipe").is_ok(),
            Self::Link => exchange("f.txt", "f.link").is_ok(),
        }
    }

    /// Whether there is still one of each to exchange.
    fn is_whole(self, root: &Path) -> bool {
        let kind = |name: &str| std::fs::symlink_metadata(root.join(name)).map(|meta| meta.file_type());
        let one_link = |one: &str, other: &str| matches!((kind(one), kind(other)), (Ok(one), Ok(other)) if one.is_symlink() != other.is_symlink());
        match self {
            Self::Middle => one_link("a/b", "a/l"),
            Self::Last => one_link("f.txt", "f.link") && one_link("b", "b.link"),
            Self::Climb => true,
            Self::Pipe => matches!(
                (kind("f.txt"), kind("pipe")),
                (Ok(one), Ok(other)) if one.is_file() != other.is_file()
            ),
            Self::Link => matches!(
                (kind("f.txt"), kind("f.link")),
                (Ok(one), Ok(other)) if one.is_symlink() && other.is_symlink()
            ),
        }
    }

    /// Every tool, through the part of the path that is exchanged.
    fn calls(self) -> Vec<(&'static str, Value)> {
        let (directory, file) = match self {
            Self::Middle => ("a/b", "a/b/f.txt"),
            Self::Last => ("b", "f.txt"),
            Self::Climb => ("mid/dir/d/../../sub", "mid/dir/../f.txt"),
            Self::Pipe => (".", "f.txt"),
            Self::Link => ("b", "f.txt"),
        };
        let top = if self == Self::Climb { "mid" } else { "." };
        let below = |name: &str| format!("{directory}/{name}");
        let (new, copy, moved, sub) = (below("new.txt"), below("copy.txt"), below("moved.txt"), below("sub"));
        let mut calls = vec![
            ("read_file", json!({"path": file})),
            ("read_file", json!({"path": file, "encoding": "base64"})),
            ("read_file", json!({"path": file, "startLine": 1})),
            ("list_directory", json!({"path": directory, "recursive": true})),
            ("list_directory", json!({"path": top, "recursive": true, "includeHidden": true})),
            ("get_file_info", json!({"path": file})),
            ("get_file_info", json!({"path": directory})),
            ("find_files", json!({"path": directory, "glob": "*"})),
            ("find_files", json!({"path": top, "glob": "**/*.txt"})),
            ("write_file", json!({"path": file, "content": "inside\n"})),
            ("write_file", json!({"path": new, "content": "inside\n", "createDirs": true})),
            ("append_file", json!({"path": file, "content": "inside\n"})),
            ("append_file", json!({"path": new, "content": "inside\n"})),
            ("edit_file", json!({"path": file, "oldText": "inside", "newText": "inside too", "replaceAll": true})),
            ("write_file", json!({"path": file, "content": "inside\n"})),
            ("search_files", json!({"path": directory, "pattern": "inside"})),
            ("search_files", json!({"path": top, "pattern": "inside"})),
            ("search_files", json!({"path": file, "pattern": "inside"})),
            ("apply_patch", json!({"path": file, "patch": "@@ -1 +1 @@\n-inside\n+within\n"})),
            ("write_file", json!({"path": file, "content": "inside\n"})),
            ("apply_patch", json!({"patch": both(file, &new)})),
            ("copy_file", json!({"from": file, "to": copy, "overwrite": true})),
            ("copy_file", json!({"from": file, "to": "taken.txt", "overwrite": true})),
            ("read_file", json!({"path": "taken.txt"})),
            ("copy_file", json!({"from": "taken.txt", "to": file, "overwrite": true})),
            ("move_file", json!({"from": copy, "to": moved, "overwrite": true})),
            ("move_file", json!({"from": moved, "to": "pulled.txt", "overwrite": true})),
            ("move_file", json!({"from": "pulled.txt", "to": file, "overwrite": true})),
            ("create_directory", json!({"path": format!("{sub}/deeper")})),
            ("write_file", json!({"path": format!("{sub}/g.txt"), "content": "inside\n", "createDirs": true})),
            ("delete_file", json!({"path": sub, "recursive": true})),
            ("delete_file", json!({"path": file})),
            ("write_file", json!({"path": file, "content": "inside\n", "createDirs": true})),
        ];
        if self == Self::Link {
            // A link is moved and deleted as itself, and nothing is moved onto it.
            calls.retain(|(tool, _)| !matches!(*tool, "move_file" | "delete_file"));
        }
        if matches!(self, Self::Middle | Self::Last) {
            // The exchanged thing itself goes and is built again, so this is done more rarely than the rest.
            calls.push(("delete_file", json!({"path": directory, "recursive": true})));
            calls.push(("move_file", json!({"from": directory, "to": "elsewhere"})));
            calls.push(("list_directory", json!({"path": "elsewhere", "recursive": true})));
            calls.push(("delete_file", json!({"path": "elsewhere", "recursive": true})));
        }
        calls
    }
}

/// Makes an entry under another name and renames it: a link that a tool put back there meanwhile must not redirect the
/// test's own writes.
fn place(root: &Path, name: &str, make: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let stage = root.with_file_name("stage");
    remove(&stage)?;
    make(&stage)?;
    std::fs::rename(stage, root.join(name))
}

fn tree(at: &Path, content: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(at.join("sub"))?;
    for name in ["f.txt", "new.txt", "sub/g.txt"] {
        std::fs::write(at.join(name), content)?;
    }
    Ok(())
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

/// A fixture with entries to exchange, in memory if possible: more races in the same time.
fn race_fixture(pattern: SwapPattern, backend: ResolverBackend) -> FsFixture {
    let mut setup = FsFixtureConfig::default().on(backend);
    setup.limits.call_time = PATIENCE;
    let world = FsFixture::in_memory(setup);
    tree(&world.outside.join("twin"), SECRET).unwrap();
    std::fs::write(world.outside.join("twin").join(OUTSIDE_NAME), SECRET).unwrap();
    pattern.build(&world.root, &world.outside).unwrap();
    world
}

/// The tree outside, less the directory that the race itself moves there and back.
fn outside_of(world: &FsFixture, pattern: SwapPattern) -> TreeSnapshot {
    let mut found = snapshot(&world.outside);
    if pattern == SwapPattern::Climb {
        found.retain(|path, _| !path.starts_with("twin/dir") && path != Path::new("twin"));
        let names = std::fs::read_dir(world.outside.join("twin")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.filter(|name| name != "dir").collect();
        names.sort();
        assert_eq!(names, ["f.txt", "new.txt", OUTSIDE_NAME, "sub"]);
    }
    found
}

/// Exchanges until it is told to stop, and counts.
fn swap_until(stop: &AtomicBool, swaps: &AtomicU64, pattern: SwapPattern, root: &Path, outside: &Path) {
    for turn in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let swapped = pattern.swap(root, outside);
        swaps.fetch_add(u64::from(swapped), Ordering::Relaxed);
        if (!swapped || turn % 256 == 0) && !pattern.is_whole(root) {
            // A tool may be making the same names now; then the next round tries again.
            let _ = pattern.build(root, outside);
        }
    }
}

/// Observations of the workers of one race.
#[derive(Debug, Default)]
struct RaceReport {
    /// Successes and failures by tool.
    by_tool: BTreeMap<&'static str, (u64, u64)>,
    errors: BTreeMap<String, u64>,
    violations: Vec<String>,
}

impl RaceReport {
    fn add(&mut self, other: Self) {
        for (tool, (good, bad)) in other.by_tool {
            let sum = self.by_tool.entry(tool).or_default();
            *sum = (sum.0 + good, sum.1 + bad);
        }
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
        self.violations.extend(other.violations);
    }
}

fn race_time() -> Duration {
    let seconds = std::env::var("RINGFENCE_RACE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// Races every tool against the swapper.
fn race(pattern: SwapPattern, backend: ResolverBackend) {
    let world = race_fixture(pattern, backend);
    let before = outside_of(&world, pattern);
    let stop = AtomicBool::new(false);
    let calls = pattern.calls();
    let succeeded: Vec<AtomicU64> = calls.iter().map(|_| AtomicU64::new(0)).collect();
    let swaps = AtomicU64::new(0);
    let is_tested =
        || swaps.load(Ordering::Relaxed) > MIN_SWAPS && succeeded.iter().all(|count| count.load(Ordering::Relaxed) > 0);
    let tally = std::thread::scope(|scope| {
        scope.spawn(|| swap_until(&stop, &swaps, pattern, &world.root, &world.outside));
        let workers: Vec<_> = (0..WORKERS)
            .map(|first| {
                scope.spawn({
                    let (world, calls, succeeded, is_tested) = (&world, &calls, &succeeded, &is_tested);
                    move || work(world, calls, succeeded, is_tested, first)
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        let mut tally = RaceReport::default();
        for worker in ended {
            tally.add(worker.unwrap());
        }
        tally
    });
    let swaps = swaps.into_inner();
    let (good, bad) = tally.by_tool.values().fold((0, 0), |sum, (good, bad)| (sum.0 + good, sum.1 + bad));
    println!("{pattern:?} on {}: {good} calls succeeded, {bad} did not, {swaps} swaps", world.backend);
    println!("  {:?}\n  {:?}", tally.by_tool, tally.errors);
    assert_eq!(tally.violations, Vec::<String>::new());
    assert_eq!(outside_of(&world, pattern), before, "something outside changed");
    // A directory that was filled while it was taken apart is left for the next start to clean up.
    world.restart();
    for (path, seen) in snapshot(&world.root) {
        let leaked =
            matches!(&seen.kind, SnapshotEntryKind::File(content) if content.windows(6).any(|part| part == b"SECRET"));
        assert!(!leaked, "{} has what was outside", path.display());
        let hidden = path.to_string_lossy().contains(".ringfence-tmp-");
        assert!(!hidden, "{} was left behind: {seen:?}", path.display());
    }
    for forbidden in [ErrorKind::Internal, ErrorKind::Timeout, ErrorKind::Cancelled] {
        assert!(!tally.errors.contains_key(&format!("{forbidden:?}")), "{:?}", tally.errors);
    }
    assert!(swaps > MIN_SWAPS, "only {swaps} swaps");
    for ((tool, arguments), count) in calls.iter().zip(&succeeded) {
        assert!(count.load(Ordering::Relaxed) > 0, "{tool} {arguments} never succeeded, so it was not tested");
    }
}

/// Calls one tool after the other until the time is up and every call was tested, which a busy machine may take longer for.
fn work(
    world: &FsFixture,
    calls: &[(&'static str, Value)],
    succeeded: &[AtomicU64],
    is_tested: &(impl Fn() -> bool + Sync),
    first: usize,
) -> RaceReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let digest: String = Sha256::digest(SECRET).iter().map(|byte| format!("{byte:02x}")).collect();
    let host_path = world.host_path().to_str().unwrap();
    // U0VDUkVU is SECRET in base64.
    let forbidden = ["SECRET", "U0VDUkVU", OUTSIDE_NAME, digest.as_str(), host_path];
    let started = Instant::now();
    let mut tally = RaceReport::default();
    for turn in first * calls.len() / WORKERS.. {
        let passed = started.elapsed();
        if (passed > race_time() && is_tested()) || passed > race_time() + PATIENCE {
            break;
        }
        let at = turn % calls.len();
        let (tool, arguments) = &calls[at];
        let call = ToolCall { id: "1".to_owned(), name: (*tool).to_owned(), arguments: arguments.to_string() };
        let reply = runtime.block_on(world.host.call(&world.session, call, &CancellationToken::new())).unwrap();
        if let Some(word) = forbidden.iter().find(|word| reply.text.contains(**word)) {
            tally.violations.push(format!("{tool} {arguments} gave away {word}: {}", reply.text));
        }
        let sum = tally.by_tool.entry(tool).or_default();
        match reply.error_kind() {
            None => {
                sum.0 += 1;
                succeeded[at].fetch_add(1, Ordering::Relaxed);
            }
            Some(kind) => {
                sum.1 += 1;
                *tally.errors.entry(format!("{kind:?}")).or_default() += 1;
            }
        }
        if reply.error_kind() == Some(ErrorKind::Timeout) {
            tally.violations.push(format!("{tool} {arguments} hung"));
            break;
        }
    }
    // A thread that hangs would keep us here too.
    runtime.shutdown_background();
    tally
}

/// Races something unsafe against the same swapper, until it leaks.
fn check_unsafe_leaks(pattern: SwapPattern, leaks: impl Fn(&FsFixture) -> bool) {
    let world = race_fixture(pattern, ResolverBackend::Best);
    let stop = AtomicBool::new(false);
    let (started, swaps) = (Instant::now(), AtomicU64::new(0));
    let (tries, leaked) = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| swap_until(&stop, &swaps, pattern, &world.root, &world.outside));
        let mut tries = 0u64;
        let mut leaked = false;
        while !leaked && started.elapsed() < PATIENCE {
            tries += 1;
            leaked = leaks(&world);
        }
        stop.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
        (tries, leaked)
    });
    println!("control of {pattern:?}: leaked {leaked} at try {tries} after {:?}", started.elapsed());
    assert!(leaked, "the control did not leak in {tries} tries, so the race proves nothing");
}

/// The insufficient check: the path leads inside at present.
fn leads_inside(world: &FsFixture, path: &str) -> bool {
    let real = std::fs::canonicalize(world.root.join(path));
    real.is_ok_and(|real| real.starts_with(std::fs::canonicalize(&world.root).unwrap()))
}

fn unsafe_read(world: &FsFixture, path: &str) -> bool {
    leads_inside(world, path) && std::fs::read_to_string(world.root.join(path)).is_ok_and(|text| text == SECRET)
}

fn unsafe_write(world: &FsFixture, path: &str) -> bool {
    leads_inside(world, path)
        && std::fs::write(world.root.join(path), "inside\n").is_ok()
        && std::fs::read_to_string(world.outside.join("twin/f.txt")).is_ok_and(|text| text != SECRET)
}

/// A patch of two files at once.
fn both(one: &str, other: &str) -> String {
    let part = |path: &str| format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-inside\n+within\n");
    part(one) + &part(other)
}

#[test]
fn a_directory_swapped_for_a_link_out_is_never_followed() {
    race(SwapPattern::Middle, ResolverBackend::Best);
}

#[test]
fn a_directory_swapped_for_a_link_out_is_never_followed_by_cap_std() {
    race(SwapPattern::Middle, ResolverBackend::CapStd);
}

#[test]
fn a_last_name_swapped_for_a_link_out_is_never_followed() {
    race(SwapPattern::Last, ResolverBackend::Best);
}

#[test]
fn a_last_name_swapped_for_a_link_out_is_never_followed_by_cap_std() {
    race(SwapPattern::Last, ResolverBackend::CapStd);
}

#[test]
fn a_directory_moved_out_does_not_take_a_climbing_path_along() {
    race(SwapPattern::Climb, ResolverBackend::Best);
}

#[test]
fn a_directory_moved_out_does_not_take_a_climbing_path_along_with_cap_std() {
    race(SwapPattern::Climb, ResolverBackend::CapStd);
}

#[test]
fn a_file_swapped_for_a_pipe_never_hangs_a_call() {
    race(SwapPattern::Pipe, ResolverBackend::Best);
}

#[test]
fn a_file_swapped_for_a_pipe_never_hangs_a_call_with_cap_std() {
    race(SwapPattern::Pipe, ResolverBackend::CapStd);
}

#[test]
fn a_link_swapped_for_a_link_out_is_never_written_through() {
    race(SwapPattern::Link, ResolverBackend::Best);
}

#[test]
fn a_link_swapped_for_a_link_out_is_never_written_through_with_cap_std() {
    race(SwapPattern::Link, ResolverBackend::CapStd);
}

#[test]
fn a_checked_link_that_is_then_written_through_leaks() {
    check_unsafe_leaks(SwapPattern::Link, |world| unsafe_write(world, "f.txt"));
}

#[test]
fn a_checked_path_that_is_then_read_leaks_through_a_swapped_directory() {
    check_unsafe_leaks(SwapPattern::Middle, |world| unsafe_read(world, "a/b/f.txt"));
}

#[test]
fn a_checked_path_that_is_then_written_leaks_through_a_swapped_directory() {
    check_unsafe_leaks(SwapPattern::Middle, |world| unsafe_write(world, "a/b/f.txt"));
}

#[test]
fn a_checked_path_that_is_then_read_leaks_through_a_swapped_last_name() {
    check_unsafe_leaks(SwapPattern::Last, |world| unsafe_read(world, "f.txt"));
}

#[test]
fn a_checked_path_that_is_then_written_leaks_through_a_swapped_last_name() {
    check_unsafe_leaks(SwapPattern::Last, |world| unsafe_write(world, "f.txt"));
}

#[test]
fn a_walk_that_climbs_by_itself_leaks_from_a_directory_moved_out() {
    check_unsafe_leaks(SwapPattern::Climb, |world| {
        let Ok(directory) = open(world.root.join("mid/dir"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
            return false;
        };
        let Ok(file) = openat(directory, "../f.txt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return false;
        };
        std::io::read_to_string(std::fs::File::from(file)).is_ok_and(|text| text == SECRET)
    });
}

#[test]
fn a_checked_file_that_is_then_opened_may_be_a_pipe() {
    check_unsafe_leaks(SwapPattern::Pipe, |world| {
        let path = world.root.join("f.txt");
        if !std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
            return false;
        }
        // Without NONBLOCK this would wait for ever.
        let Ok(file) = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) else {
            return false;
        };
        fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
    });
}
