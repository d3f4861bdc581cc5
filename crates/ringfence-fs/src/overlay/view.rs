//! Overlay views: the files of a mount that a program may see, as of its start.
//!
//! Every secret below the mount is found, by its name and by what it is, and everything that the policy does not simply let
//! be read, or the program does not start: what was passed over would be read.
//!
//! Not here: making a program see it. The jail does.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringfence_kernel::{
    CallContext, Decision, ErrorKind, ExposedDir, IoMode, PolicyAction, ResourceAccess, ToolError, sensitivity,
};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::mount::Mount;
use crate::overlay::compare::resource_at;
use crate::path::guest::GuestPath;
use crate::path::name::{escape, is_reserved, unescape};
use crate::root::resolver::PATH_ONLY;
use crate::root::walk::{TempVisibility, TreeWalk, WalkEntry, WalkStep};
use crate::sensitive::credentials::may_hold_credential;
use crate::sensitive::files::last_names;
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fchmod, fstat, openat, readlinkat};

/// The coarsest clock of a common kernel ticks ten times in this.
const MAX_CLOCK_TICK: Duration = Duration::from_millis(100);

/// A mount as a program may see it.
pub(super) fn mount_view(mount: &Mount, cx: &CallContext<'_>) -> Result<ExposedDir, ToolError> {
    let fail = |errno| errno_error(errno, ".");
    mount.scan_root(cx)?;
    let directory = mount.root.try_clone().map_err(|_| fail(Errno::MFILE))?;
    let name = readlinkat(CWD, format!("/proc/self/fd/{}", directory.as_raw_fd())).map_err(fail)?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes()));
    let mut found = ViewMasks::default();
    found.walk(mount, cx)?;
    if found.has_hard_links {
        // A secret has other names, and they may have been passed before it was known as one.
        found.walk(mount, cx)?;
    }
    let paths =
        |found: BTreeSet<Vec<u8>>| found.iter().map(|path| Path::new(OsStr::from_bytes(path)).to_owned()).collect();
    Ok(ExposedDir {
        alias: mount.alias.to_string(),
        directory,
        path,
        masked: paths(found.masked),
        hidden: paths(found.hidden),
    })
}

/// Paths that a program must not see.
#[derive(Default)]
struct ViewMasks {
    masked: BTreeSet<Vec<u8>>,
    hidden: BTreeSet<Vec<u8>>,
    /// A secret was met that has other names.
    has_hard_links: bool,
}

impl ViewMasks {
    fn walk(&mut self, mount: &Mount, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let known = mount.sensitive_files.secret_inodes();
        let start = openat(&mount.root, c".", OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty());
        let start = start.map_err(|errno| errno_error(errno, "."))?;
        let mut walk =
            TreeWalk::with_temp_visibility(TempVisibility::Visible, mount, start, ".", cx).map_err(too_many_error)?;
        while let Some(step) = walk.next()? {
            let WalkStep::Entry(entry) = step else { continue };
            let path = walk.path_of(&entry.name);
            if is_reserved(&entry.name) {
                self.hidden.insert(path);
            } else if self.is_secret(mount, &walk, &entry, &path, &known)?
                || is_denied(mount, &walk, &entry, &path, cx)?
            {
                self.mask(mount, &walk, &entry, path)?;
            } else if walk.is_directory(&entry)? {
                match walk.descend(&entry).map_err(too_many_error)? {
                    Ok(()) => {}
                    // A directory that cannot be read may have anything in it, and the program may get there. So may
                    // one that was removed just now.
                    Err(
                        Errno::ACCESS
                        | Errno::PERM
                        | Errno::NAMETOOLONG
                        | Errno::XDEV
                        | Errno::NOENT
                        | Errno::NOTDIR
                        | Errno::LOOP,
                    ) => {
                        self.masked.insert(path);
                    }
                    // A program that finds it covered would be wrong about it.
                    Err(errno) => return Err(errno_error(errno, &escape(&path))),
                }
            }
        }
        Ok(())
    }

    fn is_secret(
        &mut self,
        mount: &Mount,
        walk: &TreeWalk<'_>,
        entry: &WalkEntry,
        path: &[u8],
        known: &HashSet<u64>,
    ) -> Result<bool, ToolError> {
        let named = sensitivity(last_names(&escape(path)));
        // Only a local file system is sure to tell the same inode in a listing as everywhere else.
        let maybe_known = !known.is_empty() && (!mount.supports_non_blocking || known.contains(&entry.inode));
        if !named.secret && !maybe_known && !may_hold_credential(&entry.name) {
            return Ok(false);
        }
        let Some(stamp) = walk.stat(entry)? else { return Ok(false) };
        let is_secret = mount.classify(named, FileRef { fd: walk.directory()?, name: &entry.name }, &stamp).secret;
        self.has_hard_links |= is_secret && stamp.links > 1 && !known.contains(&stamp.id.inode);
        Ok(is_secret || named.secret)
    }

    /// A link cannot be covered: what it leads to is, if that is in the workspace.
    fn mask(&mut self, mount: &Mount, walk: &TreeWalk<'_>, entry: &WalkEntry, path: Vec<u8>) -> Result<(), ToolError> {
        match walk.stat(entry)?.map(|stamp| stamp.kind) {
            Some(FileKind::Link) => {
                if let Ok(opened) = mount.lookup(&GuestPath::from_kernel(&path), PATH_ONLY, IoMode::Blocking)
                    && matches!(opened.stat.kind, FileKind::File | FileKind::Directory)
                    && let Ok(Some(real)) = mount.real_name(opened.fd.as_fd())
                {
                    if real == "." {
                        let message = format!("`{}` has the name of a secret and links to the whole", escape(&path));
                        return Err(ToolError::new(ErrorKind::Unavailable, message).hint("remove the link"));
                    }
                    self.masked.insert(unescape(&real));
                }
            }
            Some(_) => {
                self.masked.insert(path);
            }
            None => {}
        }
        Ok(())
    }
}

/// Whether the policy has anything but a plain allow for the read. Single files of a program are not submitted for
/// approval, so files that would need one are masked too. Where the host works for itself there is no policy.
fn is_denied(
    mount: &Mount,
    walk: &TreeWalk<'_>,
    entry: &WalkEntry,
    path: &[u8],
    cx: &CallContext<'_>,
) -> Result<bool, ToolError> {
    if cx.origin().is_none() {
        return Ok(false);
    }
    let allows = |action| {
        let access = ResourceAccess { action, resource: resource_at(mount, path) };
        cx.evaluate(&access).decision == Decision::Allow
    };
    Ok(!allows(PolicyAction::Read) || (walk.is_directory(entry)? && !allows(PolicyAction::List)))
}

fn too_many_error(error: ToolError) -> ToolError {
    if error.kind != ErrorKind::ReadLimit {
        return error;
    }
    let message = "the workspace has more entries than can be searched for secrets, so programs cannot run in it";
    ToolError::new(ErrorKind::ReadLimit, message).hint("use a smaller directory as the workspace")
}

/// The current time by the clock of the mount's own file system: earlier changes have an earlier time, later changes
/// this one or a later.
///
/// File times have the resolution of the kernel's tick, so a hidden file is changed until its time differs from the one
/// before.
pub(super) fn start_time(mount: &Mount) -> Result<SystemTime, ToolError> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | SAFE_OPEN;
    let Ok(file) = openat(&mount.root, c".", flags, Mode::RUSR | Mode::WUSR) else { return Ok(start_time_by_clock()) };
    let now = || Ok(FileStat::from_stat(&fstat(&file)?).changed);
    let first = now().map_err(|errno: Errno| errno_error(errno, "."))?;
    let until = Instant::now() + MAX_CLOCK_TICK;
    loop {
        let touched = fchmod(&file, Mode::RUSR | Mode::WUSR).and_then(|()| now());
        let later = touched.map_err(|errno| errno_error(errno, "."))?;
        if later > first || Instant::now() > until {
            return Ok(system_time(later));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The same where such a file cannot be made: by the clock that the kernel gives files their times from.
fn start_time_by_clock() -> SystemTime {
    let now = || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    let (first, until) = (now(), Instant::now() + MAX_CLOCK_TICK);
    while now() <= first && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
    system_time(now())
}

fn system_time(nanos: i128) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}
