//! Resource limits of one run.
//!
//! The defaults are for users of the jail as a library. A host's own limits, which config sets and a call can only
//! tighten, are the kernel's.
//!
//! Not here: who keeps them. Resource limits hold each process, a cgroup the whole tree, the jail's mounts the disk, and
//! the one who waits the time and the output.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit};
use serde::{Deserialize, Serialize};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// More processes than a jail has of its own.
const JAIL_OVERHEAD_PROCESSES: u64 = 8;

/// The bounds of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JailLimits {
    /// From the start of the command to the end of its last process.
    pub wall: Duration,
    /// Time on a processor that each process may use, all its threads together.
    pub cpu: Duration,
    /// Memory of all processes together, and of the files they write where those are kept in memory.
    pub memory_bytes: u64,
    /// Processes and threads at one time.
    pub processes: u64,
    /// Open descriptors of each process.
    pub open_files: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes that the run may add to the workspace.
    pub disk_bytes: u64,
    /// Bytes in the private `/tmp`.
    pub tmp_bytes: u64,
    /// Bytes that are kept of each output stream.
    pub output_bytes: u64,
}

impl Default for JailLimits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(60),
            // A compiler on several cores uses more of this in a minute than a minute.
            cpu: Duration::from_secs(300),
            memory_bytes: 2 * GIB,
            processes: 256,
            open_files: 1024,
            file_bytes: GIB,
            disk_bytes: GIB,
            tmp_bytes: 512 * MIB,
            output_bytes: 256 * KIB,
        }
    }
}

impl JailLimits {
    /// The resource limits to set in the process that asks, none above what it has. Memory is not among them where a
    /// cgroup keeps it: only there is it what the whole tree uses, and programs map much more than they use.
    pub(crate) fn rlimits(&self, memory: MemoryLimiter) -> Vec<(Resource, Rlimit)> {
        let cpu = self.cpu.as_secs().max(1);
        // The limit counts the jail's own processes too, and exceeding it is not reported: where a cgroup counts, that
        // is to be first.
        let processes = match memory {
            MemoryLimiter::Cgroup => self.processes.saturating_add(JAIL_OVERHEAD_PROCESSES),
            MemoryLimiter::Rlimit => self.processes,
        };
        let mut wanted = vec![
            (Resource::Fsize, self.file_bytes, self.file_bytes),
            (Resource::Nofile, self.open_files, self.open_files),
            (Resource::Nproc, processes, processes),
            (Resource::Memlock, 64 * KIB, 64 * KIB),
            (Resource::Nice, 0, 0),
            (Resource::Rtprio, 0, 0),
        ];
        if self.cpu != Duration::MAX {
            // The second in between is for the signal that says why it ends.
            wanted.push((Resource::Cpu, cpu, cpu.saturating_add(1)));
        }
        if memory == MemoryLimiter::Rlimit {
            wanted.push((Resource::Data, self.memory_bytes, self.memory_bytes));
        }
        let lowered =
            wanted.into_iter().map(|(resource, soft, hard)| (resource, lower_rlimit(getrlimit(resource), soft, hard)));
        lowered.chain([(Resource::Core, core_rlimit(getrlimit(Resource::Core)))]).collect()
    }

    /// The limit of open files of a wrapped program, after the others are set: a shell's low default is not a limit of the
    /// person's, and is raised as far as it may be.
    pub(crate) fn raised_open_files(&self) -> Rlimit {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        Rlimit { current: maximum, maximum }
    }
}

/// No core, neither as a file nor for the program that collects the machine's cores, which is root's and runs outside. With
/// a limit of zero that program would still be started; with one byte it is not.
fn core_rlimit(now: Rlimit) -> Rlimit {
    let most = now.maximum.map_or(1, |most| most.min(1));
    Rlimit { current: Some(most), maximum: Some(most) }
}

/// The mechanism that limits the memory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimiter {
    /// A cgroup, all processes together.
    Cgroup,
    /// `RLIMIT_DATA`, each process alone. It counts private memory that can be written, so that what is reserved without
    /// being usable, as the runtimes of Go, Java and Node do by the gigabyte, costs nothing.
    Rlimit,
}

/// Nothing stands for no bound.
fn lower_rlimit(now: Rlimit, soft: u64, hard: u64) -> Rlimit {
    let hard = now.maximum.map_or(hard, |most| most.min(hard));
    let soft = now.current.map_or(soft, |most| most.min(soft)).min(hard);
    Rlimit { current: Some(soft), maximum: Some(hard) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Resource, Rlimit, getrlimit};

    use super::{JailLimits, MemoryLimiter, core_rlimit, lower_rlimit};

    #[test]
    fn a_resource_limit_is_only_lowered() {
        let now = |current, maximum| Rlimit { current, maximum };
        assert_eq!(lower_rlimit(now(None, None), 5, 6), now(Some(5), Some(6)));
        assert_eq!(lower_rlimit(now(Some(3), Some(100)), 5, 6), now(Some(3), Some(6)));
        assert_eq!(lower_rlimit(now(Some(3), Some(4)), 5, 6), now(Some(3), Some(4)));
        let most = JailLimits { open_files: u64::MAX, ..JailLimits::default() };
        for (resource, limit) in most.rlimits(MemoryLimiter::Rlimit) {
            let now = getrlimit(resource);
            assert!(now.maximum.is_none_or(|most| limit.maximum.unwrap() <= most), "{resource:?}");
        }
    }

    #[test]
    fn a_core_is_one_byte_and_therefore_none() {
        let found = JailLimits::default().rlimits(MemoryLimiter::Cgroup);
        let cores: Vec<_> = found.iter().filter(|(resource, _)| *resource == Resource::Core).collect();
        assert_eq!(cores.len(), 1);
        let now = |current, maximum| Rlimit { current, maximum };
        assert_eq!(core_rlimit(now(Some(0), None)), now(Some(1), Some(1)));
        assert_eq!(core_rlimit(now(Some(0), Some(0))), now(Some(0), Some(0)));
    }

    #[test]
    fn processor_time_ends_with_a_signal_that_says_so() {
        let limits = JailLimits { cpu: Duration::from_millis(10), ..JailLimits::default() };
        let found = limits.rlimits(MemoryLimiter::Cgroup);
        assert!(found.contains(&(Resource::Cpu, Rlimit { current: Some(1), maximum: Some(2) })), "{found:?}");
        assert!(!found.iter().any(|(resource, _)| *resource == Resource::Data));
    }
}
