//! CPU time, system calls and flushes of a server under test, by `/proc` and `strace`.
//!
//! CPU time is that of all threads of a process and of its children, in user and kernel mode, as the scheduler counts it, so
//! neither the disk nor other programs move it much. System calls are counted without those that wait for locks or
//! manage memory, whose number depends on timing.

use std::collections::BTreeMap;
use std::fs;

/// System calls whose number depends on timing and not on the work.
const UNCOUNTED_SYSCALLS: &[&str] =
    &["brk", "futex", "madvise", "mmap", "mprotect", "mremap", "munmap", "restart_syscall", "sched_yield"];

/// System calls that wait until something is on the disk.
const FLUSH_SYSCALLS: &[&str] = &["fdatasync", "fsync", "msync", "sync", "sync_file_range", "syncfs"];

/// CPU time of each thread of a process and of its children, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct CpuTimes(BTreeMap<String, u64>);

impl CpuTimes {
    pub(crate) fn of(process: u32) -> Self {
        let mut times = Self::default();
        times.add_process(&process.to_string());
        times
    }

    fn add_process(&mut self, process: &str) {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return };
        for thread in threads.flatten() {
            let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let time = read("schedstat").split_whitespace().next().and_then(|time| time.parse().ok());
            self.0.extend(time.map(|time| (thread.file_name().to_string_lossy().into_owned(), time)));
            read("children").split_whitespace().for_each(|child| self.add_process(child));
        }
    }

    /// Nanoseconds since an earlier look at the same process. Threads that ended in between are not counted.
    pub(crate) fn since(&self, earlier: &Self) -> u64 {
        let used = |(thread, time): (&String, &u64)| time.saturating_sub(earlier.0.get(thread).copied().unwrap_or(0));
        self.0.iter().map(used).sum()
    }
}

/// System calls and flushes in a log of `strace -f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyscallCount {
    pub(crate) syscalls: usize,
    pub(crate) flushes: usize,
}

impl SyscallCount {
    /// Counts every call once: the second half of one that another thread interrupted is not a call.
    pub(crate) fn in_log(log: &str) -> Self {
        let names = log.lines().filter_map(|line| Some(line.split_whitespace().nth(1)?.split_once('(')?.0));
        let mut count = Self { syscalls: 0, flushes: 0 };
        for name in names.filter(|name| !name.is_empty() && !UNCOUNTED_SYSCALLS.contains(name)) {
            count.syscalls += 1;
            count.flushes += usize::from(FLUSH_SYSCALLS.contains(&name));
        }
        count
    }
}

/// The middle of the values; not a number where there is none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_counted_once_and_without_locks_and_memory() {
        let log = "\
12 read(0, \"x\", 1) = 1
13 futex(0x1, FUTEX_WAIT) = 0
12 openat(3, \"f\" <unfinished ...>
13 write(1<pipe:[1]>, \"y\", 1) = 1
14 fdatasync(5 <unfinished ...>
12 <... openat resumed>) = 4
14 <... fdatasync resumed>) = 0
12 fsync(4</f>) = 0
12 mmap(NULL, 4096) = 0x1
12 +++ killed by SIGKILL +++
";
        assert_eq!(SyscallCount::in_log(log), SyscallCount { syscalls: 5, flushes: 2 });
    }

    #[test]
    fn the_median_is_the_middle_of_the_values() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn cpu_time_of_threads_is_counted_from_the_earlier_look() {
        let times =
            |times: &[(&str, u64)]| CpuTimes(times.iter().map(|&(name, time)| (name.to_owned(), time)).collect());
        let (earlier, later) = (times(&[("1", 10), ("2", 5)]), times(&[("1", 25), ("3", 7)]));
        assert_eq!(later.since(&earlier), 22);
        assert!(!CpuTimes::of(std::process::id()).0.is_empty());
    }
}
