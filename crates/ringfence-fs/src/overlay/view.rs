//! Overlay views: the files of a mount that a program may see, as of its start.
//!
//! Every secret below the mount is found, by its name and by what it is, and everything that the policy does not simply let
//! be read, or the program does not start: what was passed over would be read.
//!
//! Not here: making a program see it. The jail does.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringfence_kernel::{CallContext, ExposedDir, ToolError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::mount::Mount;
use crate::overlay::mask_scan::ViewMasks;
use crate::overlay::watched_masks::{MaskCache, MaskWatches, WatchedMasks};
use crate::path::name::escape;
use crate::root::path_of;
use crate::sys::directory_watch::WatchScope;
use crate::sys::errno::errno_error;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fchmod, fstat, openat};

/// The coarsest clock of a common kernel ticks ten times in this.
const MAX_CLOCK_TICK: Duration = Duration::from_millis(100);

/// A mount that programs see, with what is known about its entries.
#[derive(Debug)]
pub(super) struct MountView {
    pub(super) mount: Arc<Mount>,
    masks: MaskCache,
}

impl MountView {
    pub(super) fn new(mount: Arc<Mount>) -> Self {
        Self::with_watches(mount, MaskWatches { scope: WatchScope::Entries, most: None })
    }

    /// The same with watches of another scope, for a program during which they are read.
    pub(super) fn with_watches(mount: Arc<Mount>, watches: MaskWatches) -> Self {
        Self { mount, masks: MaskCache::new(watches) }
    }

    /// Whether changes are followed while a program runs.
    pub(super) fn is_followed(&self) -> bool {
        self.masks.watches().scope == WatchScope::Contents
    }

    /// The masks of the last view with their watches, if everything is watched.
    pub(super) fn take_masks(&self) -> Option<Box<WatchedMasks>> {
        self.masks.take()
    }

    /// The mount as a program may see it now.
    pub(super) fn expose(&self, cx: &CallContext<'_>) -> Result<ExposedDir, ToolError> {
        let directory = self.mount.root.try_clone().map_err(|_| errno_error(Errno::MFILE, "."))?;
        let own_path = path_of(&directory)?;
        let path = |path: &[u8]| Path::new(OsStr::from_bytes(path)).to_owned();
        let (masked, hidden) = self.with_masks(&own_path, cx, |masks| {
            (masks.masked().into_iter().map(path).collect(), masks.hidden().map(path).collect())
        })?;
        Ok(ExposedDir { alias: self.mount.alias.to_string(), directory, path: own_path, masked, hidden })
    }

    /// A secret that a program can read from a repository of the mount, as replies spell it.
    pub(super) fn committed_secret(&self, cx: &CallContext<'_>) -> Result<Option<String>, ToolError> {
        let path = path_of(&self.mount.root)?;
        let found = self.with_masks(&path, cx, |masks| masks.committed.first().map(escape))?;
        Ok(found.map(|path| self.mount.display_path(&path)))
    }

    fn with_masks<T>(
        &self,
        path: &Path,
        cx: &CallContext<'_>,
        use_masks: impl FnOnce(&ViewMasks) -> T,
    ) -> Result<T, ToolError> {
        self.mount.scan_root(cx)?;
        self.masks.with_masks(&self.mount, path.as_os_str().as_bytes(), cx, use_masks)
    }
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
