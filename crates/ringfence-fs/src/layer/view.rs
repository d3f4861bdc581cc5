//! What a program may see of a mount, and the moment at which it starts to.
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

use ringfence_kernel::{Context, Decision, ErrorKind, Pace, Shown, ToolError, Touch, Verb, sensitivity};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::compare::place;
use crate::again::{fchmod, fstat, openat, readlinkat};
use crate::credentials::may_hold_credential;
use crate::fault::fault;
use crate::known::{At, last_names};
use crate::mount::Mount;
use crate::name::{is_reserved, read_back, show};
use crate::path::GuestPath;
use crate::resolve::{CAREFUL, PLACE};
use crate::stamp::{Kind, Stamp};
use crate::walk::{Entry, Ours, Step, Walk};

/// The coarsest clock of a common kernel ticks ten times in this.
const LONGEST_TICK: Duration = Duration::from_millis(100);

/// A mount as a program may see it.
pub(super) fn show_mount(mount: &Mount, cx: &Context<'_>) -> Result<Shown, ToolError> {
    let fail = |errno| fault(errno, ".");
    mount.look_around(cx)?;
    let directory = mount.root.try_clone().map_err(|_| fail(Errno::MFILE))?;
    let name = readlinkat(CWD, format!("/proc/self/fd/{}", directory.as_raw_fd())).map_err(fail)?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes()));
    let mut found = Found::default();
    found.walk(mount, cx)?;
    if found.others {
        // A secret has other names, and they may have been passed before it was known as one.
        found.walk(mount, cx)?;
    }
    let paths =
        |found: BTreeSet<Vec<u8>>| found.iter().map(|path| Path::new(OsStr::from_bytes(path)).to_owned()).collect();
    Ok(Shown {
        alias: mount.alias.to_string(),
        directory,
        path,
        masked: paths(found.masked),
        hidden: paths(found.hidden),
    })
}

/// What a program must not see.
#[derive(Default)]
struct Found {
    masked: BTreeSet<Vec<u8>>,
    hidden: BTreeSet<Vec<u8>>,
    /// A secret was met that has other names.
    others: bool,
}

impl Found {
    fn walk(&mut self, mount: &Mount, cx: &Context<'_>) -> Result<(), ToolError> {
        let known = mount.known.secret_inodes();
        let start = openat(&mount.root, c".", OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, Mode::empty());
        let start = start.map_err(|errno| fault(errno, "."))?;
        let mut walk = Walk::seeing(Ours::Seen, mount, start, ".", cx).map_err(too_many)?;
        while let Some(step) = walk.next()? {
            let Step::Entry(entry) = step else { continue };
            let path = walk.path_of(&entry.name);
            if is_reserved(&entry.name) {
                self.hidden.insert(path);
            } else if self.is_secret(&walk, &entry, &path, &known)? || is_closed(&walk, &entry, &path, cx)? {
                self.mask(mount, &walk, &entry, path)?;
            } else if walk.is_directory(&entry)? {
                match walk.descend(&entry).map_err(too_many)? {
                    Ok(()) => {}
                    // What may not be looked into may have anything in it, and the program may get there. So may what went
                    // away in this moment.
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
                    Err(errno) => return Err(fault(errno, &show(&path))),
                }
            }
        }
        Ok(())
    }

    fn is_secret(
        &mut self,
        walk: &Walk<'_>,
        entry: &Entry,
        path: &[u8],
        known: &HashSet<u64>,
    ) -> Result<bool, ToolError> {
        let mount = walk.mount();
        let named = sensitivity(last_names(&show(path)));
        // Only a local file system is sure to tell the same inode in a listing as everywhere else.
        let maybe_known = !known.is_empty() && (!mount.quick || known.contains(&entry.inode));
        if !named.secret && !maybe_known && !may_hold_credential(&entry.name) {
            return Ok(false);
        }
        let Some(stamp) = walk.look(entry)? else { return Ok(false) };
        let is_secret = mount.weigh(named, At { fd: walk.directory()?, name: &entry.name }, &stamp).secret;
        self.others |= is_secret && stamp.links > 1 && !known.contains(&stamp.id.inode);
        Ok(is_secret || named.secret)
    }

    /// A link cannot be covered: what it leads to is, if that is in the workspace.
    fn mask(&mut self, mount: &Mount, walk: &Walk<'_>, entry: &Entry, path: Vec<u8>) -> Result<(), ToolError> {
        match walk.look(entry)?.map(|stamp| stamp.kind) {
            Some(Kind::Link) => {
                if let Ok(opened) = mount.lookup(&GuestPath::real(&path), PLACE, Pace::Patient)
                    && matches!(opened.stamp.kind, Kind::File | Kind::Directory)
                    && let Ok(Some(real)) = mount.real_name(opened.fd.as_fd())
                {
                    if real == "." {
                        let message = format!("`{}` has the name of a secret and leads to the whole", show(&path));
                        return Err(ToolError::new(ErrorKind::Unavailable, message).hint("remove the link"));
                    }
                    self.masked.insert(read_back(&real));
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

/// Whether the policy wants more than that somebody comes along to read it. Nobody is asked about each file of a program, so
/// what would be asked about is not read either. Where the host works for itself there is no policy.
fn is_closed(walk: &Walk<'_>, entry: &Entry, path: &[u8], cx: &Context<'_>) -> Result<bool, ToolError> {
    if cx.origin().is_none() {
        return Ok(false);
    }
    let allows = |verb| {
        let touch = Touch { verb, place: place(walk.mount(), path) };
        cx.judge(&touch).decision == Decision::Allow
    };
    Ok(!allows(Verb::Read) || (walk.is_directory(entry)? && !allows(Verb::List)))
}

fn too_many(error: ToolError) -> ToolError {
    if error.kind != ErrorKind::ReadLimit {
        return error;
    }
    let message = "the workspace has more entries than can be searched for secrets, so no program runs in it";
    ToolError::new(ErrorKind::ReadLimit, message).hint("use a smaller directory as the workspace")
}

/// A moment in the clock of the mount's own file system: what was changed before it has an earlier time, what is changed
/// from now on has this one or a later.
///
/// Times of files are those of the last tick. So a file that nobody sees is changed until it gets another time than it had.
pub(super) fn start(mount: &Mount) -> Result<SystemTime, ToolError> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | CAREFUL;
    let Ok(file) = openat(&mount.root, c".", flags, Mode::RUSR | Mode::WUSR) else { return Ok(start_by_clock()) };
    let now = || Ok(Stamp::of(&fstat(&file)?).changed);
    let first = now().map_err(|errno: Errno| fault(errno, "."))?;
    let until = Instant::now() + LONGEST_TICK;
    loop {
        let touched = fchmod(&file, Mode::RUSR | Mode::WUSR).and_then(|()| now());
        let later = touched.map_err(|errno| fault(errno, "."))?;
        if later > first || Instant::now() > until {
            return Ok(time(later));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The same where such a file cannot be made: by the clock that the kernel gives files their times from.
fn start_by_clock() -> SystemTime {
    let now = || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    let (first, until) = (now(), Instant::now() + LONGEST_TICK);
    while now() <= first && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
    time(now())
}

fn time(nanos: i128) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}
