//! File lock budget of one run.
//!
//! Locks are memory of the kernel that neither a process nor a cgroup is charged for, and no file tells reliably how many
//! there are: open file descriptions that are in flight or only mapped keep theirs. So the calls that can add locks are
//! counted, and when their locks could take as much memory as the run may have, further calls fail.
//!
//! Not here: which calls these are (`seccomp_rules.rs`).

use rustix::io::Errno;

/// Kernel memory that one call can add: two locks, if it splits one, and the list of locks of a file.
const CALL_BYTES: u64 = 512;

/// Number of calls that may still lock a file. Released locks do not return to it.
pub(crate) struct FileLockBudget {
    calls_left: u64,
}

impl FileLockBudget {
    pub(crate) fn within(memory_bytes: u64) -> Self {
        Self { calls_left: memory_bytes / CALL_BYTES }
    }

    /// One call, or the error that the kernel has for too many locks.
    pub(crate) fn take(&mut self) -> Result<(), Errno> {
        self.calls_left = self.calls_left.checked_sub(1).ok_or(Errno::NOLCK)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::FileLockBudget;

    #[test]
    fn a_budget_ends_where_locks_could_fill_the_memory() {
        let mut budget = FileLockBudget::within(3 * 512 + 511);
        let taken: Vec<_> = (0..5).map(|_| budget.take()).collect();
        assert_eq!(taken, [Ok(()), Ok(()), Ok(()), Err(Errno::NOLCK), Err(Errno::NOLCK)]);
    }
}
