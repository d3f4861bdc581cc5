//! Landlock ruleset: the second access control of files.
//!
//! Everything may be read and executed, only the given paths may be written, and no device is ever made. It enforces
//! the same as the mounts of the jail, in other code of the kernel: one mistake does not open both. Signals and
//! abstract sockets stay among the program's own processes.
//!
//! Not here: the network. A jail has a namespace of its own, or shares one with other programs of its session: servers on
//! that loopback are meant to be reached. Abstract sockets are not, so below ABI 6, which does not scope them, a jail in a
//! shared network has no named Unix sockets at all (`spawner.rs`).

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, LandlockStatus, PathBeneath, PathFd, PathFdError, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The requested ABI. An older kernel supports less of it, and that is reported.
const WANTED_ABI: ABI = ABI::V6;

/// Devices that every program may write to, where the jail has them. `/dev/zero` is not among them: a shared mapping of it
/// is memory that cannot be counted.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"];

/// Extent to which the kernel enforces the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LandlockEnforcement {
    /// All of it holds.
    Full,
    /// An older kernel: what its version of Landlock has, holds. Below 2, no file moves between directories; below 3,
    /// truncating is not held back; below 6, neither signals nor abstract sockets are.
    Partial { abi: u8 },
    /// No Landlock in this kernel, or it is switched off.
    None,
}

/// A failure to build or enforce the ruleset.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LandlockError {
    #[error("cannot open a directory that the program may write to")]
    OpenPath { path: PathBuf, source: PathFdError },
    #[error("the kernel rejected the Landlock rules")]
    Ruleset(#[from] RulesetError),
}

/// Rules that are not enforced yet.
#[derive(Debug)]
pub(crate) struct LandlockRules(RulesetCreated);

/// Everything may be read, and only what is below these paths written.
pub(crate) fn writable_rules(writable: &[&Path]) -> Result<LandlockRules, LandlockError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED_ABI))?
        .scope(Scope::from_all(WANTED_ABI))?
        .create()?
        .add_rule(PathBeneath::new(open(Path::new("/"))?, AccessFs::from_read(WANTED_ABI)))?;
    for device in DEVICES {
        if let Ok(device) = PathFd::new(device) {
            let access = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate;
            ruleset = allow(ruleset, device, access | AccessFs::IoctlDev)?;
        }
    }
    LandlockRules(ruleset).allow_writes(writable)
}

impl LandlockRules {
    /// Adds writable paths.
    pub(crate) fn allow_writes(self, writable: &[&Path]) -> Result<Self, LandlockError> {
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
        let access = AccessFs::from_all(WANTED_ABI) & !devices & !AccessFs::IoctlDev;
        let mut ruleset = self.0;
        for path in writable {
            ruleset = allow(ruleset, open(path)?, access)?;
        }
        Ok(Self(ruleset))
    }

    /// Enforces the rules permanently, for this thread and its children. Sets `no_new_privs`.
    pub(crate) fn restrict_self(self) -> Result<LandlockEnforcement, LandlockError> {
        Ok(enforcement_of(&self.0.restrict_self()?))
    }
}

fn open(path: &Path) -> Result<PathFd, LandlockError> {
    PathFd::new(path).map_err(|source| LandlockError::OpenPath { path: path.to_owned(), source })
}

/// Removes the rights that only directories have.
fn allow(ruleset: RulesetCreated, path: PathFd, access: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    let is_directory = rustix::fs::fstat(&path)
        .is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory);
    let access = if is_directory { access } else { access & AccessFs::from_file(WANTED_ABI) };
    ruleset.add_rule(PathBeneath::new(path, access))
}

fn enforcement_of(status: &RestrictionStatus) -> LandlockEnforcement {
    match (&status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => LandlockEnforcement::Full,
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            LandlockEnforcement::Partial { abi: effective_abi as u8 }
        }
        _ => LandlockEnforcement::None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::path::Path;
    use std::process::Command;
    use std::thread;

    use ringfence_testkit::requirement::{Requirement, skip_without};

    use super::{LandlockEnforcement, writable_rules};

    /// Landlock holds for the calling thread and its children.
    fn run_confined<T: Send + 'static>(writable: &Path, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let writable = writable.to_owned();
        let thread = thread::spawn(move || match writable_rules(&[&writable]).unwrap().restrict_self().unwrap() {
            LandlockEnforcement::None => None,
            LandlockEnforcement::Partial { .. } | LandlockEnforcement::Full => Some(work()),
        });
        let result = thread.join().unwrap();
        if result.is_none() {
            skip_without(Requirement::Landlock, "the kernel does not enforce Landlock");
        }
        result
    }

    #[test]
    fn only_the_given_place_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (inside, outside) = (directory.path().join("in"), directory.path().join("out"));
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        let path = inside.clone();
        run_confined(&path, move || {
            fs::write(inside.join("a/file"), "longer").unwrap();
            fs::write(inside.join("a/file"), "new").unwrap();
            fs::rename(inside.join("a/file"), inside.join("a/b/file")).unwrap();
            fs::hard_link(inside.join("a/b/file"), inside.join("link")).unwrap();
            std::os::unix::fs::symlink("link", inside.join("symlink")).unwrap();
            fs::remove_dir_all(inside.join("a")).unwrap();

            assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
            let refused = [
                fs::write(outside.join("new"), ""),
                fs::write(outside.join("file"), ""),
                fs::OpenOptions::new().append(true).open(outside.join("file")).map(drop),
                fs::remove_file(outside.join("file")),
                fs::create_dir(outside.join("directory")),
                fs::rename(outside.join("file"), inside.join("file")),
                fs::hard_link(outside.join("file"), inside.join("file")),
                fs::write("/proc/self/oom_score_adj", "1000"),
            ];
            for (number, result) in refused.into_iter().enumerate() {
                let kind = result.unwrap_err().kind();
                assert!(matches!(kind, ErrorKind::PermissionDenied | ErrorKind::CrossesDevices), "{number}: {kind:?}");
            }
            // Devices that every program writes to stay writable.
            fs::write("/dev/null", "x").unwrap();
        });
    }

    #[test]
    fn a_program_can_still_print() {
        let directory = tempfile::tempdir().unwrap();
        run_confined(directory.path(), || {
            let ended = Command::new("bash").args(["-c", "echo out > /dev/stdout; echo err > /dev/stderr"]).output();
            let ended = ended.unwrap();
            assert_eq!((ended.stdout, ended.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
        });
    }

    #[test]
    fn processes_outside_hear_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let address = SocketAddr::from_abstract_name(format!("ringfence-test-{}", std::process::id())).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        UnixStream::connect_addr(&address).unwrap();
        let kill = ["-c", "kill -0 $PPID"];
        assert!(Command::new("bash").args(kill).status().unwrap().success());
        let path = directory.path().to_owned();
        let thread = thread::spawn(move || {
            if writable_rules(&[&path]).unwrap().restrict_self().unwrap() != LandlockEnforcement::Full {
                return skip_without(Requirement::LandlockScopes, "Landlock does not restrict signals and sockets");
            }
            assert_eq!(UnixStream::connect_addr(&address).unwrap_err().kind(), ErrorKind::PermissionDenied);
            assert!(!Command::new("bash").args(kill).output().unwrap().status.success());
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_place_that_is_not_there_is_an_error() {
        let result = thread::spawn(|| writable_rules(&[Path::new("/nonexistent")])).join().unwrap();
        assert_eq!(result.unwrap_err().to_string(), "cannot open a directory that the program may write to");
    }
}
