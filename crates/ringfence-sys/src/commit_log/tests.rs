//! Power cuts on a modelled disk: a sync keeps a copy of the file, and a cut leaves any mixture of that and the present.

#![allow(clippy::disallowed_methods, reason = "tests set up files by path")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc;

use proptest::prelude::*;

use super::slot::{SLOT_BYTES, write_at};
use super::*;

const FILES: [&str; 2] = ["audit/000001.jsonl", "journal-log"];

/// What survives a power cut, by inode.
#[derive(Debug, Default)]
struct ModelDisk {
    durable: BTreeMap<u64, Vec<u8>>,
    /// The inodes of files, in the order of their syncs.
    syncs: Vec<u64>,
    failing: HashSet<u64>,
}

/// A state directory on a modelled disk, with two append-only files.
struct ModelState {
    dir: tempfile::TempDir,
    disk: Arc<Mutex<ModelDisk>>,
    lines: u64,
}

impl ModelState {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("audit")).unwrap();
        for name in FILES {
            File::create(dir.path().join(name)).unwrap();
        }
        Self { dir, disk: Arc::default(), lines: 0 }
    }

    fn open(&self) -> Arc<CommitLog> {
        let disk = Arc::clone(&self.disk);
        let sync = move |fd: &OwnedFd| {
            let stat = FileStat::from_stat(&fstat(fd)?);
            let mut disk = lock(&disk);
            disk.syncs.push(stat.id.inode);
            if disk.failing.contains(&stat.id.inode) {
                return Err(Errno::IO);
            }
            let bytes = read_at(fd, 0, usize::try_from(stat.size).unwrap())?;
            disk.durable.insert(stat.id.inode, bytes);
            Ok(())
        };
        CommitLog::with_sync(self.dir.path(), Box::new(sync)).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn inode(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).unwrap().ino()
    }

    fn contents(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn covered(&self, name: &str) -> CoveredFile {
        let file = OpenOptions::new().read(true).append(true).open(self.path(name)).unwrap();
        CoveredFile::new(name, Arc::new(file.into())).unwrap()
    }

    /// Appends a line that no other equals.
    fn append(&mut self, name: &str, bytes: usize) -> Vec<u8> {
        self.lines += 1;
        let line = format!("{:08} {}\n", self.lines, "x".repeat(bytes)).into_bytes();
        OpenOptions::new().append(true).open(self.path(name)).unwrap().write_all(&line).unwrap();
        line
    }

    fn cover_all(&self, log: &CommitLog) {
        for name in FILES {
            log.cover(&self.covered(name), self.contents(name).len() as u64).unwrap();
        }
    }

    fn flush_all(&self, log: &CommitLog) -> io::Result<()> {
        self.cover_all(log);
        log.begin_flush().wait()
    }

    fn syncs(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.disk).syncs)
    }

    /// Leaves of a file what was durable, and beyond that what `pick` chooses of the present bytes.
    fn lose(&self, name: &str, mut pick: impl FnMut(usize) -> u64) {
        let now = self.contents(name);
        let durable = lock(&self.disk).durable.get(&self.inode(name)).cloned().unwrap_or_default();
        let longest = now.len().max(durable.len());
        let shortest = now.len().min(durable.len());
        let length = shortest + usize::try_from(pick(longest - shortest + 1)).unwrap();
        let byte = |of: &[u8], at: usize| of.get(at).copied().unwrap_or(0);
        let mut left = Vec::with_capacity(length);
        for sector in (0..length).step_by(512) {
            let source = if pick(2) == 0 { &durable } else { &now };
            left.extend((sector..length.min(sector + 512)).map(|at| byte(source, at)));
        }
        fs::write(self.path(name), &left).unwrap();
        lock(&self.disk).durable.insert(self.inode(name), left);
    }

    fn cut_power(&self, mut pick: impl FnMut(usize) -> u64) {
        let slots = fs::read_dir(self.path(DIRECTORY)).unwrap().map(|entry| entry.unwrap().file_name());
        let slots = slots.map(|name| format!("{DIRECTORY}/{}", name.display())).filter(|name| !name.ends_with(LOCK));
        for name in FILES.map(str::to_owned).into_iter().chain(slots) {
            self.lose(&name, &mut pick);
        }
    }

    /// Cuts the power with the greatest loss.
    fn cut_power_completely(&self) {
        self.cut_power(|_| 0);
    }
}

fn slot_name(number: u32) -> String {
    format!("{DIRECTORY}/{number}")
}

#[test]
fn a_slot_grows_ahead_of_its_records() {
    let mut state = ModelState::new();
    let log = state.open();
    let mut flush = |bytes| {
        state.append(FILES[0], bytes);
        state.flush_all(&log).unwrap();
        fs::metadata(state.path(&slot_name(0))).unwrap().len()
    };
    // The first flush is of the files themselves, and the slot has their ends.
    let size = flush(100);
    assert!((0..20).all(|_| flush(100) == size), "most flushes change no size");
    assert!(flush(usize::try_from(size).unwrap()) > size);
}

#[test]
fn one_flush_makes_two_files_durable_and_the_next_process_continues_with_it() {
    let mut state = ModelState::new();
    for name in FILES {
        state.append(name, 10);
    }
    state.flush_all(&state.open()).unwrap();
    assert_eq!(state.syncs().len(), 2, "files that the slot does not know are flushed themselves");
    for _ in 0..3 {
        for name in FILES {
            state.append(name, 10);
        }
        state.flush_all(&state.open()).unwrap();
        assert_eq!(state.syncs(), [state.inode(&slot_name(0))]);
    }
    let before = FILES.map(|name| state.contents(name));
    state.cut_power_completely();
    assert!(FILES.iter().zip(&before).all(|(name, before)| state.contents(name).len() < before.len()));
    drop(state.open());
    assert_eq!(FILES.map(|name| state.contents(name)), before);
    state.syncs();
    drop(state.open());
    assert_eq!(FILES.map(|name| state.contents(name)), before);
    assert_eq!(state.syncs(), [], "a second replay changes nothing");
}

#[test]
fn calls_that_arrive_during_a_flush_share_the_next() {
    let mut state = ModelState::new();
    let (entered, has_entered) = mpsc::channel();
    let (proceed, may_proceed) = mpsc::channel();
    let may_proceed = Mutex::new(may_proceed);
    let sync = move |_: &OwnedFd| {
        entered.send(()).unwrap();
        lock(&may_proceed).recv().unwrap();
        Ok(())
    };
    let log = CommitLog::with_sync(state.dir.path(), Box::new(sync)).unwrap();
    let file = state.covered(FILES[1]);
    let mut cover = || {
        state.append(FILES[1], 10);
        log.cover(&file, state.contents(FILES[1]).len() as u64).unwrap();
        log.begin_flush()
    };
    let first = cover();
    has_entered.recv().unwrap();
    let shared: Vec<PendingFlush> = (0..8).map(|_| cover()).collect();
    proceed.send(()).unwrap();
    first.wait().unwrap();
    has_entered.recv().unwrap();
    proceed.send(()).unwrap();
    shared.into_iter().for_each(|flush| flush.wait().unwrap());
    log.begin_flush().wait().unwrap();
    drop(log);
    assert_eq!(has_entered.iter().count(), 0, "two flushes for nine calls");
}

#[test]
fn a_failed_flush_fails_its_group_and_the_next_does_not_trust_the_slot() {
    let mut state = ModelState::new();
    let log = state.open();
    state.flush_all(&log).unwrap();
    let slot = state.inode(&slot_name(0));
    state.append(FILES[0], 10);
    lock(&state.disk).failing.insert(slot);
    state.cover_all(&log);
    let busy = lock(&log.shared.writer);
    let group = [log.begin_flush(), log.begin_flush()];
    drop(busy);
    assert_eq!(group.map(|flush| flush.wait().unwrap_err().raw_os_error()), [Some(Errno::IO.raw_os_error()); 2]);
    lock(&state.disk).failing.clear();
    state.syncs();
    // Without a further append: the caller of a cover in a group that failed for others waits for the files.
    log.begin_flush().wait().unwrap();
    let mut synced = state.syncs();
    synced.sort_unstable();
    let mut files = FILES.map(|name| state.inode(name));
    files.sort_unstable();
    assert_eq!(synced, files);
    state.append(FILES[0], 10);
    state.flush_all(&log).unwrap();
    assert_eq!(state.syncs(), [slot], "a new generation");
    drop(log);
    let before = state.contents(FILES[0]);
    state.cut_power_completely();
    drop(state.open());
    assert_eq!(state.contents(FILES[0]), before);
}

#[test]
fn the_next_process_does_not_trust_a_slot_whose_flush_failed() {
    let mut state = ModelState::new();
    let log = state.open();
    state.flush_all(&log).unwrap();
    state.append(FILES[0], 10);
    lock(&state.disk).failing.insert(state.inode(&slot_name(0)));
    state.flush_all(&log).unwrap_err();
    drop(log);
    lock(&state.disk).failing.clear();
    state.syncs();
    state.flush_all(&state.open()).unwrap();
    assert!(!state.syncs().contains(&state.inode(&slot_name(0))));
    let before = state.contents(FILES[0]);
    state.cut_power_completely();
    drop(state.open());
    assert_eq!(state.contents(FILES[0]), before);
}

#[test]
fn after_a_failed_flush_of_a_file_nothing_is_said_to_be_durable() {
    let mut state = ModelState::new();
    let log = state.open();
    state.append(FILES[0], 10);
    lock(&state.disk).failing.insert(state.inode(FILES[0]));
    state.flush_all(&log).unwrap_err();
    lock(&state.disk).failing.clear();
    log.begin_flush().wait().unwrap_err();
    log.cover(&state.covered(FILES[1]), 0).unwrap_err();
}

#[test]
fn a_flush_that_was_started_ends_when_the_log_is_closed() {
    let mut state = ModelState::new();
    let log = state.open();
    state.append(FILES[0], 10);
    state.cover_all(&log);
    let flush = log.begin_flush();
    drop(log);
    flush.wait().unwrap();
    assert_eq!(state.syncs().len(), 2);
}

#[test]
fn slots_of_ended_processes_are_replayed_and_emptied() {
    let mut state = ModelState::new();
    let logs = [state.open(), state.open()];
    for log in &logs {
        state.flush_all(log).unwrap();
    }
    state.append(FILES[0], 10);
    state.flush_all(&logs[1]).unwrap();
    drop(logs);
    let before = state.contents(FILES[0]);
    state.cut_power_completely();
    assert_eq!(state.contents(FILES[0]), b"");
    let log = state.open();
    assert_eq!(state.contents(FILES[0]), before);
    state.syncs();
    drop(log);
    drop(state.open());
    assert_eq!(state.syncs(), [], "the other slot has no records any more");
}

#[test]
fn a_slot_that_a_process_has_is_left_alone() {
    let mut state = ModelState::new();
    let log = state.open();
    state.flush_all(&log).unwrap();
    state.append(FILES[0], 10);
    state.flush_all(&log).unwrap();
    let slot = state.contents(&slot_name(0));
    let other = state.open();
    state.flush_all(&other).unwrap();
    assert_eq!(state.contents(&slot_name(0)), slot);
    assert_ne!(state.contents(&slot_name(1)), b"");
}

#[test]
fn a_file_in_the_place_of_another_gets_no_bytes_of_it() {
    let mut state = ModelState::new();
    let log = state.open();
    state.flush_all(&log).unwrap();
    state.append(FILES[0], 10);
    state.flush_all(&log).unwrap();
    drop(log);
    // Both exist at once, so that they have different inodes.
    fs::write(state.path("new"), b"").unwrap();
    fs::rename(state.path("new"), state.path(FILES[0])).unwrap();
    fs::remove_file(state.path(FILES[1])).unwrap();
    fs::create_dir(state.path(FILES[1])).unwrap();
    drop(state.open());
    assert_eq!(state.contents(FILES[0]), b"");
}

#[test]
fn what_a_version_without_a_redo_log_appends_is_kept() {
    let mut state = ModelState::new();
    let log = state.open();
    state.append(FILES[0], 200);
    state.flush_all(&log).unwrap();
    let durable = state.contents(FILES[0]).len();
    state.append(FILES[0], 50);
    state.flush_all(&log).unwrap();
    // Its lines between ours are part of our next record.
    state.append(FILES[0], 60);
    state.append(FILES[0], 70);
    state.flush_all(&log).unwrap();
    let before = state.contents(FILES[0]);
    drop(log);
    state.cut_power_completely();
    drop(state.open());
    assert_eq!(state.contents(FILES[0]), before);
    // It is the first to see what the next power cut left, and goes on from there, with lines of the same lengths.
    let file = OpenOptions::new().write(true).open(state.path(FILES[0])).unwrap();
    file.set_len(durable as u64).unwrap();
    for bytes in [50, 60] {
        state.append(FILES[0], bytes);
    }
    let theirs = state.contents(FILES[0]);
    let log = state.open();
    assert_eq!(state.contents(FILES[0]), theirs);
    state.append(FILES[0], 20);
    state.flush_all(&log).unwrap();
    drop(log);
    let after = state.contents(FILES[0]);
    state.cut_power_completely();
    drop(state.open());
    assert_eq!(state.contents(FILES[0]), after);
}

#[test]
fn a_slot_of_a_newer_version_is_left_alone() {
    let mut state = ModelState::new();
    drop(state.open());
    let newer = b"rfredo02 and a format that is not known".to_vec();
    fs::write(state.path(&slot_name(0)), &newer).unwrap();
    let log = state.open();
    state.append(FILES[0], 10);
    state.flush_all(&log).unwrap();
    assert_eq!(state.contents(&slot_name(0)), newer);
    assert_ne!(state.contents(&slot_name(1)), b"");
}

#[test]
fn files_and_directory_are_private() {
    let state = ModelState::new();
    state.flush_all(&state.open()).unwrap();
    let mode = |name: &str| fs::metadata(state.path(name)).unwrap().mode() & 0o777;
    assert_eq!([mode(DIRECTORY), mode(&slot_name(0))], [0o700, 0o600]);
}

#[test]
fn a_path_outside_of_the_state_directory_cannot_be_covered() {
    let state = ModelState::new();
    let fd = Arc::clone(&state.covered(FILES[0]).fd);
    for path in ["", "/etc/passwd", "../log", "audit/../log"] {
        assert_eq!(CoveredFile::new(path, Arc::clone(&fd)).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path}");
    }
}

/// A step of two processes on two files.
#[derive(Clone, Debug)]
enum ModelStep {
    Append { file: usize, bytes: usize },
    Flush { process: usize },
    FailFlush { process: usize },
    Restart { process: usize },
    CutPower { seed: u64 },
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let bytes = prop_oneof![6 => 0..300usize, 2 => 20_000..90_000usize, 1 => Just(300_000usize)];
    let step = prop_oneof![
        8 => (0..2usize, bytes).prop_map(|(file, bytes)| ModelStep::Append { file, bytes }),
        6 => (0..2usize).prop_map(|process| ModelStep::Flush { process }),
        1 => (0..2usize).prop_map(|process| ModelStep::FailFlush { process }),
        2 => (0..2usize).prop_map(|process| ModelStep::Restart { process }),
        2 => any::<u64>().prop_map(|seed| ModelStep::CutPower { seed }),
    ];
    prop::collection::vec(step, 1..60)
}

/// A few random numbers.
fn picker(mut seed: u64) -> impl FnMut(usize) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below as u64
    }
}

/// Each case has many steps on a real file system.
fn fewer_cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { failure_persistence: None, cases: usual.cases / 8, ..usual }
}

proptest! {
    #![proptest_config(fewer_cases())]

    #[test]
    fn every_flushed_byte_survives_power_cuts(steps in steps()) {
        let mut state = ModelState::new();
        let mut logs = [Some(state.open()), Some(state.open())];
        let mut written: [Vec<Vec<u8>>; 2] = Default::default();
        let mut flushed = [0, 0];
        for step in steps {
            match step {
                ModelStep::Append { file, bytes } => written[file].push(state.append(FILES[file], bytes)),
                ModelStep::Flush { process } => {
                    state.flush_all(logs[process].as_ref().unwrap()).unwrap();
                    flushed = [written[0].len(), written[1].len()];
                }
                ModelStep::FailFlush { process } => {
                    // Only slots: the loss of a file ends its log, as another test shows.
                    let slots = (0..3).filter_map(|slot| fs::metadata(state.path(&slot_name(slot))).ok());
                    lock(&state.disk).failing.extend(slots.map(|slot| slot.ino()));
                    if state.flush_all(logs[process].as_ref().unwrap()).is_ok() {
                        flushed = [written[0].len(), written[1].len()];
                    }
                    lock(&state.disk).failing.clear();
                }
                ModelStep::Restart { process } => {
                    logs[process] = None;
                    logs[process] = Some(state.open());
                }
                ModelStep::CutPower { seed } => {
                    drop(logs);
                    state.cut_power(picker(seed));
                    logs = [Some(state.open()), Some(state.open())];
                    for (file, name) in FILES.iter().enumerate() {
                        let found = state.contents(name);
                        let mut kept = 0;
                        let whole = written[file].iter().take_while(|line| {
                            let is_there = found.get(kept..kept + line.len()) == Some(line.as_slice());
                            kept += if is_there { line.len() } else { 0 };
                            is_there
                        });
                        let count = whole.count();
                        prop_assert!(count >= flushed[file], "{name} has {count} of {} lines", flushed[file]);
                        // Its owner drops what is behind the last whole line.
                        written[file].truncate(count);
                        let file = OpenOptions::new().write(true).open(state.path(name)).unwrap();
                        file.set_len(kept as u64).unwrap();
                        lock(&state.disk).durable.insert(state.inode(name), state.contents(name));
                    }
                }
            }
            prop_assert!(fs::metadata(state.path(&slot_name(0))).map_or(0, |slot| slot.len()) <= SLOT_BYTES);
        }
    }

    #[test]
    fn a_damaged_slot_never_harms_a_file(
        garbage in prop::collection::vec(any::<u8>(), 0..400),
        at in any::<prop::sample::Index>(),
        keeps_header: bool,
    ) {
        let mut state = ModelState::new();
        let log = state.open();
        state.flush_all(&log).unwrap();
        for bytes in [10, 300, 40] {
            state.append(FILES[0], bytes);
            state.flush_all(&log).unwrap();
        }
        drop(log);
        let before = state.contents(FILES[0]);
        let slot = OpenOptions::new().write(true).open(state.path(&slot_name(0))).unwrap();
        let offset = if keeps_header { 24 + at.index(600) } else { 0 };
        write_at(&slot.into(), &garbage, offset as u64).unwrap();
        File::options().write(true).open(state.path(FILES[0])).unwrap().set_len(0).unwrap();
        let log = state.open();
        let found = state.contents(FILES[0]);
        prop_assert!(before.starts_with(&found));
        fs::write(state.path(FILES[0]), &before).unwrap();
        state.flush_all(&log).unwrap();
    }
}
