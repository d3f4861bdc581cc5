//! Memory accounting of a jail without a cgroup.
//!
//! The kernel keeps no sum for such a jail, so one is made here every few milliseconds, of everything that a program
//! can have the kernel hold for it: its pages, swapped ones and page tables too; mappings; files in memory and their
//! inodes; System V objects; shared anonymous memory; buffers of sockets and pipes. Each part is an upper bound. Memory that could be hidden from
//! the sum is refused by the filter of system calls (`seccomp.rs`).
//!
//! Not here: ending the run (`init.rs`).

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, MemfdFlags, Mode, OFlags, fstat, major, memfd_create, minor, open, openat, statat, statvfs,
};
use rustix::io::Errno;

use crate::bwrap::JailBackend;
use crate::protocol::RunSpec;

/// Interval between two counts.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);

/// Memory that an open descriptor may hold, most of all a pipe: two pages of contents, which every pipe has beyond
/// those that the kernel bounds by user, and its own structures.
const DESCRIPTOR_BYTES: u64 = 10 << 10;

/// A semaphore, with the undo entries that every process may have for it.
const SEMAPHORE_BYTES: u64 = 640;

/// A message queue and each message in it, besides their contents.
const MESSAGE_BYTES: u64 = 64;

/// Inode of a file in memory with its directory entry and short contents, those of the overlay too.
const INODE_BYTES: u64 = 2560;

/// A mapping: its area, its part of the tree of areas, its name, and its private pages' owner.
const MAPPING_BYTES: u64 = 640;

/// Link of a mapping to an owner of its private pages. A forked process has one for itself and each living ancestor, of
/// which there are no more than processes; parents do not tell, because orphans get another one.
const MAPPING_LINK_BYTES: u64 = 64;

/// Mappings that one count looks at. Reading them takes time, in which memory is not counted, so that a process with
/// mappings beyond these counts with as many as it could have.
const MAX_MAPPINGS_READ: u64 = 1 << 18;

/// Source of the processes of a jail.
#[derive(Clone, Copy)]
pub(crate) enum ProcessSource<'a> {
    /// The jail's own `/proc` shows them and no others.
    JailProc,
    /// It has none. The spawner's shows them as what this process started, and what that started.
    SpawnerProc(&'a OwnedFd),
}

/// Mount points of files that are kept in memory: the layer on the workspace is, unless the program is a wrapped one.
pub(crate) fn memory_mounts(spec: &RunSpec, backend: JailBackend) -> &'static [&'static str] {
    match (backend, &spec.wrapped) {
        (JailBackend::Native, None) => &["/tmp", "/dev/shm", "/workspace"],
        (JailBackend::Bwrap, _) | (_, Some(_)) => &["/tmp", "/dev/shm"],
    }
}

/// The memory of one jail.
pub(crate) struct MemoryMonitor<'a> {
    limit: u64,
    processes: ProcessSource<'a>,
    /// Mount points of files that are kept in memory.
    memory_mounts: &'static [&'static str],
    counted_at: Instant,
    /// Lengths of shared anonymous mappings that were asked for, but for those known to be gone. Such memory stays as long
    /// as one page of it is mapped, and no mapping tells how much that is.
    shared_mappings: Vec<u64>,
    /// Mappings that the kernel permits to a process, once known.
    max_mappings: Option<u64>,
}

impl<'a> MemoryMonitor<'a> {
    pub(crate) fn new(limit: u64, processes: ProcessSource<'a>, memory_mounts: &'static [&'static str]) -> Self {
        let counted_at = Instant::now();
        Self { limit, processes, memory_mounts, counted_at, shared_mappings: Vec::new(), max_mappings: None }
    }

    /// Time until the next count.
    pub(crate) fn next_count(&self) -> Duration {
        COUNT_INTERVAL.saturating_sub(self.counted_at.elapsed())
    }

    /// Counts a mapping of shared anonymous memory of this length.
    pub(crate) fn add_shared(&mut self, length: u64) {
        self.shared_mappings.push(length);
    }

    /// Counts, if it is time to, and says whether the jail has more than its limit.
    pub(crate) fn is_exceeded(&mut self) -> bool {
        if self.next_count() > Duration::ZERO {
            return false;
        }
        // Processes that end during a look leave their share of common pages to those that are looked at after them, so that
        // the pages count more than once: a second look tells.
        let exceeded = self.directory().is_some_and(|proc| self.exceeds_limit(&proc) && self.exceeds_limit(&proc));
        self.counted_at = Instant::now();
        exceeded
    }

    fn directory(&self) -> Option<OwnedFd> {
        match self.processes {
            ProcessSource::JailProc => open("/proc", DIRECTORY, Mode::empty()).ok(),
            ProcessSource::SpawnerProc(proc) => proc.try_clone().ok(),
        }
    }

    fn exceeds_limit(&mut self, proc: &OwnedFd) -> bool {
        let processes = match self.processes {
            ProcessSource::JailProc => numeric_entries(proc, Path::new(".")),
            ProcessSource::SpawnerProc(_) => descendants(proc),
        };
        let processes: Vec<PathBuf> = processes.into_iter().map(|process| living_task(proc, process)).collect();
        let kernel =
            self.files_in_memory() + sysv_bytes(proc) + socket_bytes(proc) + descriptor_bytes(proc, &processes);
        let max_mappings = *self.max_mappings.get_or_insert_with(|| max_mappings(proc));
        let mapping = MAPPING_BYTES + processes.len() as u64 * MAPPING_LINK_BYTES;
        let (own, mappings): (Vec<u64>, Vec<u64>) =
            processes.iter().map(|process| own_bytes_and_max_mappings(proc, process, max_mappings)).unzip();
        let counted = kernel + own.iter().sum::<u64>() + self.shared_mappings.iter().sum::<u64>();
        if counted.saturating_add(mappings.iter().sum::<u64>().saturating_mul(mapping)) <= self.limit {
            return false;
        }
        // So far each process has all the mappings that it could have.
        let kernel = kernel.saturating_add(count_all_mappings(proc, &processes, &mappings).saturating_mul(mapping));
        let counted = kernel.saturating_add(own.iter().sum::<u64>() + self.shared_mappings.iter().sum::<u64>());
        if counted <= self.limit {
            return false;
        }
        // Pages do not matter any more, and a look at them takes long where there are many mappings.
        if kernel > self.limit {
            return true;
        }
        // So far pages count with each process that has them, and shared memory that is gone. To know better takes a look
        // at every page and every mapping.
        let own: u64 =
            processes.iter().zip(own).map(|(process, own)| own.min(proportional_bytes(proc, process, own))).sum();
        if !self.shared_mappings.is_empty()
            && let Some(living) = shared_objects(proc, &processes)
        {
            self.shared_mappings.sort_unstable_by(|one, other| other.cmp(one));
            self.shared_mappings.truncate(living);
        }
        kernel.saturating_add(own + self.shared_mappings.iter().sum::<u64>()) > self.limit
    }

    fn files_in_memory(&self) -> u64 {
        let used = |mount: &&str| {
            statvfs(*mount).map_or(0, |fs| {
                let contents = fs.f_blocks.saturating_sub(fs.f_bfree) * fs.f_frsize;
                contents + fs.f_files.saturating_sub(fs.f_ffree) * INODE_BYTES
            })
        };
        self.memory_mounts.iter().map(used).sum()
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Private pages of a process, wherever they are, with its page tables, and the most mappings that it can have.
fn own_bytes_and_max_mappings(proc: &OwnedFd, process: &Path, max_mappings: u64) -> (u64, u64) {
    let status = read_text(proc, &process.join("status"));
    let own = ["RssAnon:", "VmSwap:", "VmPTE:", "HugetlbPages:"].iter().map(|name| kilobytes(&status, name)).sum();
    let pages = kilobytes(&status, "VmSize:") / rustix::param::page_size() as u64;
    (own, pages.min(max_mappings))
}

/// Mappings that the kernel permits to a process.
fn max_mappings(proc: &OwnedFd) -> u64 {
    read_text(proc, Path::new("sys/vm/max_map_count")).trim().parse().unwrap_or(u64::MAX)
}

/// Number of mappings of these processes. `most` has what each can have; it counts where a process hides its mappings, and
/// where there are too many to read.
fn count_all_mappings(proc: &OwnedFd, processes: &[PathBuf], most: &[u64]) -> u64 {
    let mut unread = MAX_MAPPINGS_READ;
    let counts =
        processes.iter().zip(most).map(|(process, most)| count_mappings(proc, process, &mut unread).unwrap_or(*most));
    counts.sum()
}

/// Number of mappings of a process, which are taken from `unread`. `None` if there are more than that, or if it hides them.
fn count_mappings(proc: &OwnedFd, process: &Path, unread: &mut u64) -> Option<u64> {
    let file = match openat(proc, process.join("maps"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::SRCH) => return Some(0),
        Err(_) => return None,
    };
    let (mut buffer, mut count) = ([0; 16 << 10], 0);
    loop {
        let lines = match rustix::io::read(&file, &mut buffer) {
            Ok(0) | Err(Errno::SRCH) => return Some(count),
            Ok(length) => buffer.iter().take(length).filter(|byte| **byte == b'\n').count() as u64,
            Err(_) => return None,
        };
        count += lines;
        *unread = unread.checked_sub(lines)?;
    }
}

/// The same with pages that forked processes still share counted in parts. All of it, where a process hides that.
fn proportional_bytes(proc: &OwnedFd, process: &Path, own: u64) -> u64 {
    let rollup = read_text(proc, &process.join("smaps_rollup"));
    if !rollup.contains("Pss_Anon:") {
        return own;
    }
    let status = read_text(proc, &process.join("status"));
    let rest: u64 = ["VmPTE:", "HugetlbPages:"].iter().map(|name| kilobytes(&status, name)).sum();
    kilobytes(&rollup, "Pss_Anon:") + kilobytes(&rollup, "SwapPss:") + rest
}

/// Number of objects of shared anonymous memory that these processes have. `None` where a process hides its mappings.
fn shared_objects(proc: &OwnedFd, processes: &[PathBuf]) -> Option<usize> {
    let sample = fstat(memfd_create("sample", MemfdFlags::CLOEXEC).ok()?).ok()?;
    let device = format!("{:02x}:{:02x}", major(sample.st_dev), minor(sample.st_dev));
    let mut objects = HashSet::new();
    for process in processes {
        let file = openat(proc, process.join("maps"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let maps = match file.map(std::fs::File::from).map(std::io::read_to_string) {
            Ok(Ok(maps)) => maps,
            Ok(Err(cause)) if cause.raw_os_error() == Some(libc::ESRCH) => continue,
            Err(Errno::NOENT | Errno::SRCH) => continue,
            _ => return None,
        };
        for line in maps.lines() {
            let mut fields = line.split_ascii_whitespace().skip(3);
            let (Some(at), Some(inode)) = (fields.next(), fields.next()) else { continue };
            let is_sysv = fields.next().is_some_and(|path| path.starts_with("/SYSV"));
            if at == device && !is_sysv {
                objects.insert(inode.to_owned());
            }
        }
    }
    Some(objects.len())
}

/// System V shared memory that is resident or swapped, messages, and semaphores.
fn sysv_bytes(proc: &OwnedFd) -> u64 {
    let rows = |name: &str| -> Vec<Vec<u64>> {
        let table = read_text(proc, &Path::new("sysvipc").join(name));
        let row = |line: &str| line.split_ascii_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
        table.lines().skip(1).map(row).collect()
    };
    let at = |row: &[u64], column: usize| row.get(column).copied().unwrap_or_default();
    let memory: u64 = rows("shm").iter().map(|row| at(row, 14) + at(row, 15) + 512).sum();
    let messages: u64 = rows("msg").iter().map(|row| at(row, 3) + (at(row, 4) + 8) * MESSAGE_BYTES).sum();
    let semaphores: u64 = rows("sem").iter().map(|row| (at(row, 3) + 1) * SEMAPHORE_BYTES).sum();
    memory + messages + semaphores
}

/// Memory that the sockets of the jail's network may hold. One whose owner closed it counts while a message of it is
/// unread.
fn socket_bytes(proc: &OwnedFd) -> u64 {
    let sockets = read_text(proc, Path::new("self/net/sockstat"));
    let used = sockets.lines().find_map(|line| line.strip_prefix("sockets: used ")?.trim().parse::<u64>().ok());
    let Some(used) = used.filter(|used| *used > 0) else { return 0 };
    let setting = |name: &str| -> u64 {
        let value = read_text(proc, &Path::new("sys/net").join(name));
        value.split_ascii_whitespace().next_back().and_then(|last| last.parse().ok()).unwrap_or_default()
    };
    let streams = setting("ipv4/tcp_rmem") + setting("ipv4/tcp_wmem");
    let messages = setting("core/wmem_default").max(setting("core/rmem_default"));
    // Where a container keeps us from lowering the first, they are bounded for the whole machine only.
    let each = if streams > MAX_TCP_BUFFER { messages } else { streams.max(messages) };
    used * (each + setting("core/optmem_max"))
}

/// Buffers of a TCP connection of a jail, both directions together (`jail.rs` sets it).
const MAX_TCP_BUFFER: u64 = 384 << 10;

fn descriptor_bytes(proc: &OwnedFd, processes: &[PathBuf]) -> u64 {
    let open = |process: &PathBuf| statat(proc, process.join("fd"), AtFlags::empty()).map_or(0, |fd| fd.st_size as u64);
    processes.iter().map(open).sum::<u64>() * DESCRIPTOR_BYTES
}

/// A line of what the kernel tells of a process, such as `RssAnon:    120 kB`, in bytes.
fn kilobytes(state: &str, name: &str) -> u64 {
    let line = state.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    number.unwrap_or_default() << 10
}

/// A process, as a thread of it that runs: once the first thread has ended, what the kernel tells of the process is empty.
fn living_task(proc: &OwnedFd, process: PathBuf) -> PathBuf {
    if statat(proc, process.join("fd"), AtFlags::empty()).is_ok_and(|table| table.st_size > 0) {
        return process;
    }
    let mut tasks = numeric_entries(proc, &process.join("task")).into_iter();
    let living = tasks.find(|task| read_text(proc, &task.join("status")).contains("VmPTE:"));
    living.unwrap_or(process)
}

/// Every process that lost its parent is this one's child.
fn descendants(proc: &OwnedFd) -> Vec<PathBuf> {
    let mut left = children_of(proc, Path::new("self"));
    let mut all = Vec::new();
    while let Some(process) = left.pop() {
        left.extend(children_of(proc, &process));
        all.push(process);
    }
    all
}

fn children_of(proc: &OwnedFd, process: &Path) -> Vec<PathBuf> {
    let lists =
        numeric_entries(proc, &process.join("task")).into_iter().map(|task| read_text(proc, &task.join("children")));
    lists.flat_map(|list| list.split_whitespace().map(PathBuf::from).collect::<Vec<_>>()).collect()
}

/// Entries of a directory that are numbers.
fn numeric_entries(proc: &OwnedFd, directory: &Path) -> Vec<PathBuf> {
    let entries = openat(proc, directory, DIRECTORY, Mode::empty()).and_then(Dir::new).into_iter().flatten().flatten();
    let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    let numbers = names.filter(|name| name.as_bytes().iter().all(u8::is_ascii_digit));
    numbers.map(|name| directory.join(name)).collect()
}

/// Nothing, where there is none any more.
fn read_text(proc: &OwnedFd, path: &Path) -> String {
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(std::fs::File::from);
    file.ok().and_then(|file| std::io::read_to_string(file).ok()).unwrap_or_default()
}
