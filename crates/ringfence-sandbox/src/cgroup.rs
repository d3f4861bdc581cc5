//! Cgroup limits on a process tree: memory and processes.
//!
//! Version 2 where we sit in a part of the hierarchy that is ours to divide, version 1 for root, else none. Nothing is
//! left behind: what a run used goes when its `RunCgroup` goes, and what a process of ours left that died is removed by the
//! next one that looks. A group is in use while its directory is locked (`flock`): process ids mean nothing across PID
//! namespaces, which share these directories.
//!
//! Not here: ending a run in time. The jail's own init does that; `kill` is for what it leaves.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ringfence_kernel::sync::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup_paths::{CgroupHierarchy, CgroupMounts};
use crate::limits::JailLimits;

/// Our control groups are called so, then by the process that made them, for people, and a number. Earlier versions named
/// theirs otherwise, do not lock them, and remove none of these.
const PREFIX: &str = "ringfence-run-";

/// Groups of version 1 that wait for the next run. Making and removing one costs more than most runs do.
const SLOTS: usize = 8;

/// Memory that a reusable group may still have. More than that belongs to files that are kept.
const MAX_REUSABLE_BYTES: u64 = 1 << 20;

/// Retries of a removal, because the kernel needs a while after the last process is gone.
const REMOVE_RETRIES: u32 = 200;

/// The parent of new cgroups on this machine.
#[derive(Clone, Debug)]
pub(crate) struct CgroupManager {
    pool: Option<Arc<CgroupPool>>,
}

#[derive(Debug)]
struct CgroupPool {
    hierarchy: CgroupHierarchy,
    /// Groups of this process begin so.
    name: String,
    next: AtomicU64,
    /// Groups that are empty and may be used again.
    slots: Mutex<Vec<LockedCgroup>>,
}

/// A group that no other process removes.
#[derive(Debug)]
struct LockedCgroup {
    name: String,
    /// Its directories, one in each hierarchy, locked while they are open.
    _locks: Vec<OwnedFd>,
}

/// The cgroup version that enforces the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CgroupVersion {
    V1,
    V2,
}

impl CgroupManager {
    /// Finds a writable hierarchy, tries it, and removes groups that crashed processes of ours left there.
    pub(crate) fn detect() -> Self {
        let read = |name: &str| fs::read_to_string(name).unwrap_or_default();
        let hierarchies = CgroupMounts::read(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let kinds = [hierarchies.v2(), hierarchies.v1()];
        kinds.into_iter().flatten().map(Self::with_hierarchy).find(Self::is_usable).unwrap_or(Self { pool: None })
    }

    fn with_hierarchy(kind: CgroupHierarchy) -> Self {
        let name = format!("{PREFIX}{}-", std::process::id());
        Self {
            pool: Some(Arc::new(CgroupPool {
                hierarchy: kind,
                name,
                next: AtomicU64::new(0),
                slots: Mutex::default(),
            })),
        }
    }

    fn is_usable(&self) -> bool {
        let Some(pool) = &self.pool else { return false };
        pool.sweep();
        // A group like any other; it is a slot afterwards, or gone.
        self.create(&JailLimits::default()).is_ok()
    }

    pub(crate) fn version(&self) -> Option<CgroupVersion> {
        self.pool.as_ref().map(|pool| match pool.hierarchy {
            CgroupHierarchy::V1 { .. } => CgroupVersion::V1,
            CgroupHierarchy::V2 { .. } => CgroupVersion::V2,
        })
    }

    /// A group with these limits, or nothing where the machine gives none.
    pub(crate) fn create(&self, limits: &JailLimits) -> io::Result<Option<RunCgroup>> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let slot = pool.slots.lock().pop();
        if let Some(group) = slot {
            // An administrator may have removed it meanwhile.
            if let Ok(group) = RunCgroup::prepare(pool, group, limits) {
                return Ok(Some(group));
            }
        }
        let group = pool.create()?;
        RunCgroup::prepare(pool, group, limits).map(Some)
    }
}

impl CgroupPool {
    /// A new group under an unused name. Another jail of this process, or a process of another PID namespace with the same
    /// number, may have made one of that name.
    fn create(&self) -> io::Result<LockedCgroup> {
        loop {
            let name = format!("{}{}", self.name, self.next.fetch_add(1, Ordering::Relaxed));
            match self.create_all(&name) {
                // Taken, or swept before it was locked.
                Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::WouldBlock) => {}
                result => return result.map(|locks| LockedCgroup { name, _locks: locks }),
            }
        }
    }

    /// In every hierarchy or in none.
    fn create_all(&self, name: &str) -> io::Result<Vec<OwnedFd>> {
        let (mut made, mut locks): (Vec<PathBuf>, Vec<OwnedFd>) = (Vec::new(), Vec::new());
        for base in self.hierarchy.bases() {
            let group = base.join(name);
            let created = fs::create_dir(&group);
            if created.is_ok() {
                made.push(group.clone());
            }
            match created.and_then(|()| lock(&group)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())) {
                Ok(locked) => locks.push(locked),
                Err(error) => {
                    made.iter().for_each(|group| drop(fs::remove_dir(group)));
                    return Err(error);
                }
            }
        }
        Ok(locks)
    }

    /// Removes groups that no process holds. One that still has processes stays: the kernel sees to that.
    fn sweep(&self) {
        for base in self.hierarchy.bases() {
            for entry in fs::read_dir(base).into_iter().flatten().flatten() {
                let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
                if is_ours && let Ok(Some(_lock)) = lock(&entry.path()) {
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
    }

    fn remove(&self, name: &str) {
        for base in self.hierarchy.bases() {
            for _ in 0..REMOVE_RETRIES {
                match fs::remove_dir(base.join(name)) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    _ => break,
                }
            }
        }
    }
}

impl Drop for CgroupPool {
    fn drop(&mut self) {
        let slots = std::mem::take(self.slots.get_mut());
        slots.iter().for_each(|group| self.remove(&group.name));
    }
}

/// Locks a group's directory, if no other process has. The lock lasts until the descriptor is closed, by the end of the
/// process at the latest.
fn lock(group: &Path) -> io::Result<Option<OwnedFd>> {
    let opened = open(group, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = match opened {
        Ok(directory) => directory,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(other) => return Err(other.into()),
    };
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(other) => return Err(other.into()),
    }
    // A sweep may have removed it in between, and another process made one of this name.
    let held = fstat(&directory)?;
    let is_there = stat(group).is_ok_and(|there| (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino));
    Ok(is_there.then_some(directory))
}

/// One run's group.
#[derive(Debug)]
pub(crate) struct RunCgroup {
    pool: Arc<CgroupPool>,
    /// Nothing while this is being dropped.
    group: Option<LockedCgroup>,
    procs_files: Vec<OwnedFd>,
    /// The counts of what the kernel did to earlier runs in this group.
    oom_kills_before: u64,
    fork_failures_before: u64,
}

impl RunCgroup {
    fn prepare(pool: &Arc<CgroupPool>, group: LockedCgroup, limits: &JailLimits) -> io::Result<Self> {
        let mut group = Self {
            pool: Arc::clone(pool),
            group: Some(group),
            procs_files: Vec::new(),
            oom_kills_before: 0,
            fork_failures_before: 0,
        };
        group.set_limits(limits)?;
        for base in pool.hierarchy.bases() {
            let cgroup_fd = base.join(group.name()).join("cgroup.procs");
            group.procs_files.push(OpenOptions::new().write(true).open(cgroup_fd)?.into());
        }
        (group.oom_kills_before, group.fork_failures_before) = (group.oom_kill_count(), group.fork_failure_count());
        Ok(group)
    }

    fn name(&self) -> &str {
        self.group.as_ref().map_or("", |group| &group.name)
    }

    /// Other limits than it was made with.
    pub(crate) fn set_limits(&self, limits: &JailLimits) -> io::Result<()> {
        let memory = limits.memory_bytes.to_string();
        match &self.pool.hierarchy {
            CgroupHierarchy::V2 { base } => {
                let group = base.join(self.name());
                set(&group, "memory.max", &memory)?;
                set_if_present(&group, "memory.swap.max", "0")?;
                set_if_present(&group, "memory.oom.group", "1")?;
                set(&group, "pids.max", &limits.processes.to_string())
            }
            CgroupHierarchy::V1 { memory: base, pids } => {
                let group = base.join(self.name());
                // Memory with swap is never less than memory, on the way to either.
                set_if_present(&group, "memory.memsw.limit_in_bytes", "-1")?;
                set(&group, "memory.limit_in_bytes", &memory)?;
                set_if_present(&group, "memory.memsw.limit_in_bytes", &memory)?;
                // Buffers of TCP have an account of their own in this version.
                set_if_present(&group, "memory.kmem.tcp.limit_in_bytes", &memory)?;
                set(&pids.join(self.name()), "pids.max", &limits.processes.to_string())
            }
        }
    }

    /// A process that writes `0` to each of these is in the group, with all that it starts.
    pub(crate) fn procs_files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.procs_files.iter().map(AsFd::as_fd)
    }

    /// Whether the kernel ended a process because the run had no memory left.
    pub(crate) fn oom_killed(&self) -> bool {
        self.oom_kill_count() > self.oom_kills_before
    }

    /// Whether a process could not be started because there were too many.
    pub(crate) fn pids_limit_hit(&self) -> bool {
        self.fork_failure_count() > self.fork_failures_before
    }

    /// Ends every process that is in the group.
    pub(crate) fn kill(&self) {
        match &self.pool.hierarchy {
            CgroupHierarchy::V2 { base } if set(&base.join(self.name()), "cgroup.kill", "1").is_ok() => {}
            // Processes that start others while we count are there at the next count.
            _ => (0..REMOVE_RETRIES).take_while(|_| self.kill_once() > 0).for_each(|_| thread::yield_now()),
        }
    }

    fn kill_once(&self) -> usize {
        let processes = self.processes();
        for process in &processes {
            let _ = kill_process(*process, Signal::KILL);
        }
        processes.len()
    }

    fn processes(&self) -> Vec<Pid> {
        let pids = self.read_file("pids", "cgroup.procs");
        pids.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
    }

    fn oom_kill_count(&self) -> u64 {
        match self.pool.hierarchy {
            CgroupHierarchy::V2 { .. } => read_count(&self.read_file("memory", "memory.events"), "oom_kill"),
            CgroupHierarchy::V1 { .. } => read_count(&self.read_file("memory", "memory.oom_control"), "oom_kill"),
        }
    }

    fn fork_failure_count(&self) -> u64 {
        read_count(&self.read_file("pids", "pids.events"), "max")
    }

    /// Empty where it cannot be read.
    fn read_file(&self, controller: &str, name: &str) -> String {
        let base = match &self.pool.hierarchy {
            CgroupHierarchy::V2 { base } => base,
            CgroupHierarchy::V1 { memory, .. } if controller == "memory" => memory,
            CgroupHierarchy::V1 { pids, .. } => pids,
        };
        fs::read_to_string(base.join(self.name()).join(name)).unwrap_or_default()
    }

    /// Whether the next run may have it as if it were new.
    fn is_reusable(&self) -> bool {
        let CgroupHierarchy::V1 { memory, .. } = &self.pool.hierarchy else { return false };
        let group = memory.join(self.name());
        let _ = set(&group, "memory.force_empty", "0");
        let used = self.read_file("memory", "memory.usage_in_bytes").trim().parse().unwrap_or(u64::MAX);
        used <= MAX_REUSABLE_BYTES && self.processes().is_empty() && !self.procs_files.is_empty()
    }
}

impl Drop for RunCgroup {
    fn drop(&mut self) {
        self.kill();
        let is_reusable = self.is_reusable();
        let Some(group) = self.group.take() else { return };
        let mut slots = self.pool.slots.lock();
        if is_reusable && slots.len() < SLOTS {
            slots.push(group);
        } else {
            drop(slots);
            self.pool.remove(&group.name);
        }
    }
}

fn set(group: &Path, file: &str, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(group.join(file))?.write_all(value.as_bytes())
}

/// Some kernels are built without.
fn set_if_present(group: &Path, file: &str, value: &str) -> io::Result<()> {
    match set(group, file, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The number after a word, in a file with one word and number a line.
fn read_count(text: &str, key: &str) -> u64 {
    let number = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output, Stdio};

    use ringfence_testkit::requirement::{Requirement, skip_without};

    use super::{CgroupHierarchy, CgroupManager, CgroupVersion, LockedCgroup, PREFIX, RunCgroup};
    use crate::limits::JailLimits;

    const MIB: u64 = 1 << 20;

    /// Directories of our own at the roots of version 1, where that can be had.
    struct TestCgroupHierarchy(CgroupHierarchy);

    impl TestCgroupHierarchy {
        fn new(name: &str) -> Option<Self> {
            let base = |controller: &str| {
                let path = PathBuf::from(format!("/sys/fs/cgroup/{controller}/test-{}-{name}", std::process::id()));
                fs::create_dir(&path).is_ok().then_some(path)
            };
            let made = (|| Some(Self(CgroupHierarchy::V1 { memory: base("memory")?, pids: base("pids")? })))();
            if made.is_none() {
                skip_without(Requirement::CgroupV1, "no control groups of version 1 can be created");
            }
            made
        }

        fn groups(&self) -> Vec<PathBuf> {
            let bases = self.0.bases();
            let entries = bases.iter().flat_map(|base| fs::read_dir(base).unwrap().flatten());
            entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect()
        }
    }

    impl Drop for TestCgroupHierarchy {
        fn drop(&mut self) {
            for base in self.0.bases() {
                let _ = fs::remove_dir(base);
            }
        }
    }

    fn run(group: &RunCgroup, script: &str) -> Output {
        let cgroup_fds: Vec<i32> = group.procs_files().map(|cgroup_fd| cgroup_fd.as_raw_fd()).collect();
        let mut command = Command::new("python3");
        command.args(["-c", script]).stdin(Stdio::null());
        // SAFETY: the child only writes a byte to descriptors that are open.
        unsafe {
            command.pre_exec(move || {
                let entered = cgroup_fds.iter().all(|cgroup_fd| libc::write(*cgroup_fd, c"0".as_ptr().cast(), 1) == 1);
                if entered { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        command.output().unwrap()
    }

    #[test]
    fn a_run_that_takes_too_much_memory_is_ended_and_that_is_known() {
        let Some(base) = TestCgroupHierarchy::new("memory") else { return };
        let groups = CgroupManager::with_hierarchy(base.0.clone());
        let group = groups.create(&JailLimits { memory_bytes: 48 * MIB, ..JailLimits::default() }).unwrap().unwrap();
        let ended = run(&group, "print(len(bytearray(8 << 20)))");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "8388608\n", "{}", String::from_utf8_lossy(&ended.stderr));
        assert!(!group.oom_killed());
        assert_eq!(run(&group, "bytearray(b'x') * (200 << 20)").status.signal(), Some(libc::SIGKILL));
        assert!(group.oom_killed());
        drop(group);
        // The next run does not hear of it.
        let next = groups.create(&JailLimits::default()).unwrap().unwrap();
        assert!(!next.oom_killed());
        assert!(run(&next, "bytearray(b'x') * (200 << 20)").status.success());
        drop((next, groups));
        assert_eq!(base.groups(), Vec::<PathBuf>::new());
    }

    #[test]
    fn too_many_processes_are_not_started_and_none_is_left() {
        let Some(base) = TestCgroupHierarchy::new("pids") else { return };
        let groups = CgroupManager::with_hierarchy(base.0.clone());
        let group = groups.create(&JailLimits { processes: 8, ..JailLimits::default() }).unwrap().unwrap();
        let script = "
import os, signal
os.close(1); os.close(2)
count = 1
try:
    while count < 40:
        if os.fork() == 0: os.setsid(); signal.pause()
        count += 1
except OSError: os._exit(count)
os._exit(0)";
        assert_eq!(run(&group, script).status.code(), Some(8));
        assert!(group.pids_limit_hit());
        assert_eq!(group.processes().len(), 7);
        group.kill();
        drop((group, groups));
        assert_eq!(base.groups(), Vec::<PathBuf>::new());
    }

    #[test]
    fn groups_are_used_again() {
        let Some(base) = TestCgroupHierarchy::new("slots") else { return };
        let groups = CgroupManager::with_hierarchy(base.0.clone());
        let make = || groups.create(&JailLimits::default()).unwrap().unwrap();
        let first = make().name().to_owned();
        assert_eq!(make().name(), first);
        let (one, two) = (make(), make());
        assert_ne!(one.name(), two.name());
        drop((one, two));
        // A removed group is made again.
        base.groups().iter().for_each(|group| fs::remove_dir(group).unwrap());
        drop(make());
        drop(groups);
        assert_eq!(base.groups(), Vec::<PathBuf>::new());
    }

    #[test]
    fn groups_of_dead_processes_are_removed() {
        let Some(base) = TestCgroupHierarchy::new("sweep") else { return };
        let groups = CgroupManager::with_hierarchy(base.0.clone());
        let living = groups.create(&JailLimits::default()).unwrap().unwrap();
        let CgroupHierarchy::V1 { memory, .. } = &base.0 else { return };
        let dead = memory.join(format!("{PREFIX}{}-99", std::process::id()));
        fs::create_dir(&dead).unwrap();
        assert!(CgroupManager::with_hierarchy(base.0.clone()).is_usable());
        assert!(!dead.exists());
        assert_eq!(base.groups().len(), 2, "{:?}", base.groups());
        drop((living, groups));
        assert_eq!(base.groups(), Vec::<PathBuf>::new());
    }

    /// The other process sees no process by our number, or another one, and its own number may be ours.
    #[test]
    fn a_process_of_another_pid_namespace_sweeps_nothing_of_ours() {
        const BASE: &str = "base=";
        let args: Vec<String> = std::env::args().collect();
        let bases: Vec<PathBuf> = args.iter().filter_map(|key| key.strip_prefix(BASE)).map(PathBuf::from).collect();
        if let [memory, pids] = &bases[..] {
            return assert!(
                CgroupManager::with_hierarchy(CgroupHierarchy::V1 { memory: memory.clone(), pids: pids.clone() })
                    .is_usable()
            );
        }
        let Some(base) = TestCgroupHierarchy::new("namespaces") else { return };
        let groups = CgroupManager::with_hierarchy(base.0.clone());
        // One that a run has and that no process entered yet, and one that waits for the next.
        let group = groups.create(&JailLimits::default()).unwrap().unwrap();
        drop(groups.create(&JailLimits::default()).unwrap().unwrap());
        let before = base.groups();
        let name = "cgroup::tests::a_process_of_another_pid_namespace_sweeps_nothing_of_ours";
        let mut other = Command::new("unshare");
        other.args(["--pid", "--fork", "--mount-proc"]).arg(std::env::current_exe().unwrap()).args([name, "--exact"]);
        other.args(base.0.bases().into_iter().map(|base| format!("{BASE}{}", base.display())));
        let other = other.output().unwrap();
        let printed = String::from_utf8_lossy(&other.stdout) + String::from_utf8_lossy(&other.stderr);
        assert!(other.status.success() && printed.contains("1 passed"), "{printed}");
        assert_eq!(base.groups(), before);
        assert!(run(&group, "print('in it')").status.success());
        drop((group, groups));
        assert_eq!(base.groups(), Vec::<PathBuf>::new());
    }

    /// Mount point of version 2, beside version 1 or alone, if root may make groups there.
    fn mounted_v2() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
        let base = Path::new(&mount).join(format!("test-{}-two", std::process::id()));
        fs::create_dir(&base).is_ok().then_some(base)
    }

    /// With the kernel's own files: entering, ending all at once, and going. Controllers may be version 1's here, so that
    /// limits are for the next test.
    #[test]
    fn a_group_of_version_two_is_entered_ended_and_removed() {
        let Some(base) = mounted_v2() else {
            return skip_without(Requirement::CgroupV2, "no control groups of version 2 can be created");
        };
        let groups = CgroupManager::with_hierarchy(CgroupHierarchy::V2 { base: base.clone() });
        let pool = groups.pool.clone().unwrap();
        let group = pool.create().unwrap();
        let name = group.name.clone();
        let cgroup_fd = fs::OpenOptions::new().write(true).open(base.join(&name).join("cgroup.procs")).unwrap();
        let group = RunCgroup {
            pool,
            group: Some(group),
            procs_files: vec![cgroup_fd.into()],
            oom_kills_before: 0,
            fork_failures_before: 0,
        };
        let daemons = "import os, signal\nos.close(1); os.close(2)\n\
                       for _ in range(5):\n    if os.fork() == 0: os.setsid(); signal.pause()";
        assert!(run(&group, daemons).status.success());
        assert_eq!(group.processes().len(), 5);
        group.kill();
        drop((group, groups));
        assert!(!base.join(name).exists());
        fs::remove_dir(base).unwrap();
    }

    /// The rest of it, with plain files instead of the kernel's.
    #[test]
    fn limits_of_version_two_are_written_and_its_counts_read() {
        let directory = tempfile::tempdir().unwrap();
        let group = directory.path().join("ringfence-1-2-3");
        fs::create_dir(&group).unwrap();
        let file = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        for name in ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cgroup.procs"] {
            file(name, "");
        }
        file("memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n");
        file("pids.events", "max 4\n");
        let groups = CgroupManager::with_hierarchy(CgroupHierarchy::V2 { base: directory.path().to_owned() });
        let pool = groups.pool.clone().unwrap();
        let limits = JailLimits { memory_bytes: 48 * MIB, processes: 9, ..JailLimits::default() };
        let locked = LockedCgroup { name: "ringfence-1-2-3".to_owned(), _locks: Vec::new() };
        let made = RunCgroup::prepare(&pool, locked, &limits).unwrap();
        let read = |name: &str| fs::read_to_string(group.join(name)).unwrap();
        let written = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max"].map(read);
        assert_eq!(written, ["50331648", "0", "1", "9"]);
        assert!(!made.oom_killed() && !made.pids_limit_hit(), "what earlier runs did is not this one's");
        file("memory.events", "oom_kill 4\n");
        file("pids.events", "max 5\n");
        assert!(made.oom_killed() && made.pids_limit_hit());
        assert!(!made.is_reusable());
        // Without swap, or on an older kernel, the group is still usable; without a memory limit it is not.
        fs::remove_file(group.join("memory.swap.max")).unwrap();
        assert!(made.set_limits(&limits).is_ok());
        fs::remove_file(group.join("memory.max")).unwrap();
        assert!(made.set_limits(&limits).is_err());
    }

    #[test]
    fn looking_leaves_nothing() {
        let groups = CgroupManager::detect();
        println!("{:?}", groups.version());
        let pool = groups.pool.clone();
        let bases: Vec<PathBuf> =
            pool.iter().flat_map(|pool| pool.hierarchy.bases().into_iter().map(Path::to_owned)).collect();
        if groups.version() == Some(CgroupVersion::V2) {
            assert!(groups.create(&JailLimits::default()).unwrap().is_some());
        }
        let name = pool.as_ref().map(|pool| pool.name.clone()).unwrap_or_default();
        drop((pool, groups));
        for base in bases {
            let left = fs::read_dir(base).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
            assert_eq!(left.filter(|group| group.starts_with(&name)).collect::<Vec<_>>(), Vec::<String>::new());
        }
    }
}
