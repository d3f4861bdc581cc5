//! Helper process that renames one directory for a program.
//!
//! It is a fork of the init process with no more power than the program has: its user and root, no capability, its
//! cgroups, resource limits, Landlock rules and seccomp filter, and no descriptor but the two directories to which
//! the paths are relative. So a program that changes a path meanwhile gains nothing: it could have done the same itself.
//! Programs cannot signal it or look into it, because it is in a Landlock domain of its own and not dumpable.
//!
//! Not here: how a directory is renamed (`tree_rename.rs`), and which calls are asked about (`rename_requests.rs`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitStatus, setrlimit};

use crate::limits::{JailLimits, MemoryLimiter};
use crate::lockdown;
use crate::protocol::RunSpec;
use crate::seccomp::SeccompFilters;
use crate::sys::{self, ForkResult};
use crate::tree_rename::{self, RenameArgs, TreeRenameLimits};

const TREE_LIMITS: TreeRenameLimits = TreeRenameLimits { entries: 100_000, depth: 200, time: Duration::from_secs(20) };

/// The walls around the program of one run, for its helpers.
pub(crate) struct HelperIsolation<'a> {
    cgroup_fds: &'a [OwnedFd],
    filter: &'a SeccompFilters,
    limits: JailLimits,
    memory: MemoryLimiter,
    /// Directories with a layer, which programs may write to.
    layers: Vec<PathBuf>,
}

impl<'a> HelperIsolation<'a> {
    pub(crate) fn new(spec: &RunSpec, cgroup_fds: &'a [OwnedFd], filter: &'a SeccompFilters) -> Self {
        let memory = if spec.memory_by_cgroup { MemoryLimiter::Cgroup } else { MemoryLimiter::Rlimit };
        let layers = lockdown::writable_layers(spec).into_iter().map(Path::to_owned).collect();
        Self { cgroup_fds, filter, limits: spec.limits.clone(), memory, layers }
    }

    /// Starts a helper. Its exit status has the result (`result_of`).
    pub(crate) fn start(&self, args: &RenameArgs) -> Result<Pid, Errno> {
        // SAFETY: the init process has one thread.
        match unsafe { sys::clone_into(0) }? {
            ForkResult::Parent(child) => Ok(child.pid),
            ForkResult::Child => sys::exit_with(self.run(args).err().map_or(0, Errno::raw_os_error)),
        }
    }

    fn run(&self, args: &RenameArgs) -> Result<(), Errno> {
        self.confine(args).map_err(|_| Errno::XDEV)?;
        let (old_base, new_base) = (sys::inherited_fd(0), sys::inherited_fd(1));
        let (old_path, new_path) = (args.old_path.clone(), args.new_path.clone());
        tree_rename::rename(&RenameArgs { old_base, old_path, new_base, new_path, flags: args.flags }, TREE_LIMITS)
    }

    fn confine(&self, args: &RenameArgs) -> Result<(), Errno> {
        for cgroup_fd in self.cgroup_fds {
            rustix::io::write(cgroup_fd, b"0")?;
        }
        sys::keep_only(&[args.old_base.as_fd(), args.new_base.as_fd()])?;
        for (resource, limit) in self.limits.rlimits(self.memory) {
            setrlimit(resource, limit)?;
        }
        // A file that is too large is to be an error, after which the rename is rolled back.
        sys::ignore_signal(libc::SIGXFSZ);
        lockdown::restrict_files(&self.layers)?;
        self.filter.install_without_listener().map_err(|failure| failure.errno())
    }
}

/// What a helper reported. Nothing is known of one that was killed: the kernel's own error stands for that.
pub(crate) fn result_of(status: WaitStatus) -> Result<(), Errno> {
    match status.exit_status() {
        Some(0) => Ok(()),
        Some(errno) => Err(Errno::from_raw_os_error(errno)),
        None => Err(Errno::XDEV),
    }
}
