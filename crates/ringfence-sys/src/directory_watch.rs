//! Directory watches: inotify, with one watch for each directory.
//!
//! A watch reports each entry of its directory that is created, removed, renamed or, for directories, gets other permissions, and
//! if it is asked to, files that are written. Reports that the kernel could not queue are never passed over: the reader is told that
//! some were lost.
//!
//! Not here: contents that change through a mapping, or by a name in another directory, which is not reported. A network file system,
//! where other machines change entries, has no reports at all: whether a file system can be watched is for the caller to know.

use std::collections::HashSet;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::own_files::SAFE_OPEN;
use crate::syscall::{openat, pread};

/// Reports of a watch. Each of these events has the name of an entry.
const REPORTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR);

/// What a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchScope {
    /// Entries that come and go, and permissions of directories.
    Entries,
    /// The same, and files that are written or get other permissions.
    Contents,
}

/// The watches of a user are shared by all of their programs. One instance takes at most this part of them.
const SHARE_OF_USER: usize = 4;

/// Watches of a user on old kernels, where the limit cannot be read.
const LEAST_USER_WATCHES: usize = 8192;

/// Watched directories, and the queue of their reports.
#[derive(Debug)]
pub struct DirectoryWatch {
    queue: Arc<OwnedFd>,
    scope: WatchScope,
    most: usize,
    watched: HashSet<WatchId>,
}

/// A watched directory, by its inode: the same for as long as it is watched, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId(i32);

/// Reports since the last reading.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchReports {
    /// Every entry that changed, as often as it did.
    Entries(Vec<(WatchId, Vec<u8>)>),
    /// The queue was full, or a file system was unmounted: any entry may have changed.
    Lost,
}

impl DirectoryWatch {
    /// Watches nothing yet. Fails where the user has too many instances.
    pub fn new(scope: WatchScope) -> Result<Self, Errno> {
        Self::with_limit(scope, user_watches() / SHARE_OF_USER)
    }

    /// The same with another limit on the watches.
    pub fn with_limit(scope: WatchScope, most: usize) -> Result<Self, Errno> {
        let queue = retry_on_intr(|| inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK))?;
        Ok(Self { queue: Arc::new(queue), scope, most, watched: HashSet::new() })
    }

    /// Readable when there is a report.
    pub fn queue(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.queue)
    }

    /// Watches a directory from now on. A directory that is watched already keeps its ID. `NOSPC` beyond the share of the
    /// user's watches.
    pub fn add(&mut self, directory: BorrowedFd<'_>) -> Result<WatchId, Errno> {
        // By its descriptor: its name may be another directory's by now.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let reported = match self.scope {
            WatchScope::Entries => REPORTED,
            WatchScope::Contents => REPORTED.union(WatchFlags::MODIFY),
        };
        let id = WatchId(retry_on_intr(|| inotify::add_watch(&*self.queue, &*path, reported))?);
        if self.watched.insert(id) && self.watched.len() > self.most {
            self.remove(id);
            return Err(Errno::NOSPC);
        }
        Ok(id)
    }

    /// Ends a watch. Reports of it that are queued are still read.
    pub fn remove(&mut self, id: WatchId) {
        if self.watched.remove(&id) {
            // A directory that was removed is not watched any more.
            let _ = retry_on_intr(|| inotify::remove_watch(&*self.queue, id.0));
        }
    }

    /// Reads every queued report, without waiting for one.
    pub fn read(&mut self) -> Result<WatchReports, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); 64 << 10];
        let mut reader = inotify::Reader::new(&*self.queue, &mut buffer);
        let (mut entries, mut lost) = (Vec::new(), false);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno),
            };
            let events = event.events();
            lost |= events.intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT);
            // Of a file, other permissions and a new link are reported too.
            let is_noise = self.scope == WatchScope::Entries
                && events.contains(ReadFlags::ATTRIB)
                && !events.contains(ReadFlags::ISDIR);
            if let Some(name) = event.file_name().filter(|_| !is_noise) {
                entries.push((WatchId(event.wd()), name.to_bytes().to_vec()));
            }
        }
        Ok(if lost { WatchReports::Lost } else { WatchReports::Entries(entries) })
    }
}

/// The lines of the mount table whose mount points are below a directory, given by its path. A mount hides the
/// directory that it covers, and is not reported by a watch.
pub fn mounts_below(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let escaped: Vec<u8> = path.iter().flat_map(|byte| escape_mount_byte(*byte)).collect();
    let table = read_proc_file(c"/proc/self/mountinfo")?;
    let is_below = |line: &&[u8]| {
        let point = line.split(|byte| *byte == b' ').nth(4);
        point.and_then(|point| point.strip_prefix(&*escaped)).is_some_and(|rest| rest.starts_with(b"/"))
    };
    Ok(table.split(|byte| *byte == b'\n').filter(is_below).collect::<Vec<_>>().join(&b'\n'))
}

/// A byte of a path as the mount table writes it.
fn escape_mount_byte(byte: u8) -> Vec<u8> {
    match byte {
        b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![byte],
    }
}

fn user_watches() -> usize {
    let text = read_proc_file(c"/proc/sys/fs/inotify/max_user_watches").unwrap_or_default();
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    number.unwrap_or(LEAST_USER_WATCHES)
}

fn read_proc_file(path: &CStr) -> Result<Vec<u8>, Errno> {
    let file = openat(CWD, path, OFlags::RDONLY | SAFE_OPEN, Mode::empty())?;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match pread(&file, &mut buffer, bytes.len() as u64)? {
            0 => return Ok(bytes),
            length => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "another program changes the directory")]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::{DirectoryWatch, WatchReports, WatchScope, escape_mount_byte, mounts_below};

    #[test]
    fn the_queue_reports_each_entry_and_then_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut watch = DirectoryWatch::new(WatchScope::Entries).unwrap();
        let opened = std::fs::File::open(directory.path()).unwrap();
        let id = watch.add(opened.as_fd()).unwrap();
        assert_eq!(watch.add(opened.as_fd()), Ok(id));
        std::fs::create_dir(directory.path().join("d")).unwrap();
        std::fs::rename(directory.path().join("d"), directory.path().join("e")).unwrap();
        let expected = ["d", "d", "e"].map(|name| (id, name.as_bytes().to_vec())).to_vec();
        assert_eq!(watch.read(), Ok(WatchReports::Entries(expected)));
        assert_eq!(watch.read(), Ok(WatchReports::Entries(Vec::new())));
        watch.remove(id);
        std::fs::create_dir(directory.path().join("f")).unwrap();
        assert_eq!(watch.read(), Ok(WatchReports::Entries(Vec::new())));
    }

    #[test]
    fn written_files_are_reported_where_contents_are_watched() {
        for (scope, expected) in [(WatchScope::Entries, 0), (WatchScope::Contents, 2)] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("f");
            std::fs::write(&file, "1").unwrap();
            let mut watch = DirectoryWatch::new(scope).unwrap();
            watch.add(std::fs::File::open(directory.path()).unwrap().as_fd()).unwrap();
            std::fs::OpenOptions::new().append(true).open(&file).and_then(|file| (&file).write_all(b"2")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            let Ok(WatchReports::Entries(entries)) = watch.read() else { panic!("reports were lost") };
            assert_eq!(entries.len(), expected, "{scope:?}: {entries:?}");
        }
    }

    #[test]
    fn a_mount_is_below_the_root_and_not_below_another_directory() {
        let text = |path: &str| String::from_utf8(mounts_below(path.as_bytes()).unwrap()).unwrap();
        assert!(text("").lines().any(|line| line.contains(" /proc ")), "{}", text(""));
        assert_eq!(text("/proc/self/nothing"), "");
        assert_eq!("a b#c".bytes().flat_map(escape_mount_byte).collect::<Vec<_>>(), b"a\\040b\\043c");
    }
}
