//! Disk bound of wrapped programs: a thread that measures their layers while they run.
//!
//! Layers are ordinary directories, which have no quota for a user without privileges. What they hold is measured again
//! whenever the file system lost enough space that the bound may be reached. A program that fills the disk is ended too, even
//! if its layers cannot be measured because it closed its directories.
//!
//! Not here: ending the program (`run_program.rs`).

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstatvfs, openat, statat};

/// Interval at which the free space is looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// Free space that is left to others.
const LEAST_FREE: u64 = 512 << 20;

/// Deeper directories are not measured: each level takes a descriptor.
const MOST_DEPTH: usize = 128;

/// Unit of `st_blocks`.
const BLOCK: u64 = 512;

/// The bound of the layers of one program.
#[derive(Debug)]
pub(crate) struct LayerDiskBound<'a> {
    uppers: Vec<BorrowedFd<'a>>,
    /// Of these, only what comes is measured: they are caches, with what earlier programs downloaded.
    caches: Vec<BorrowedFd<'a>>,
    most: u64,
    is_exceeded: AtomicBool,
}

impl<'a> LayerDiskBound<'a> {
    pub(crate) fn new(uppers: Vec<BorrowedFd<'a>>, most: u64) -> Self {
        Self { uppers, caches: Vec::new(), most, is_exceeded: AtomicBool::new(false) }
    }

    #[must_use]
    pub(crate) fn with_caches(self, caches: Vec<BorrowedFd<'a>>) -> Self {
        Self { caches, ..self }
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Acquire)
    }

    /// Measures until the sender of `ended` is dropped.
    pub(crate) fn watch(&self, ended: Receiver<()>) {
        // More than this has to be lost before the bound can be reached.
        let most = self.most.saturating_add(measure(&self.caches));
        let mut headroom = most.saturating_sub(self.measure());
        let mut free_then = self.free_bytes();
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(INTERVAL) {
            let free = self.free_bytes();
            if free < LEAST_FREE.min(self.most) {
                return self.is_exceeded.store(true, Ordering::Release);
            }
            // Others free space too, so half of it counts.
            if free_then.saturating_sub(free) < headroom / 2 {
                free_then = free_then.max(free);
                continue;
            }
            let used = self.measure();
            if used > most {
                return self.is_exceeded.store(true, Ordering::Release);
            }
            (headroom, free_then) = (most - used, free);
        }
    }

    fn free_bytes(&self) -> u64 {
        let free = |upper: &BorrowedFd<'_>| fstatvfs(upper).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
        self.uppers.iter().filter_map(|upper| free(upper).ok()).min().unwrap_or(u64::MAX)
    }

    fn measure(&self) -> u64 {
        measure(&self.uppers) + measure(&self.caches)
    }
}

/// Bytes on disk of everything that can be listed, each file once.
fn measure(uppers: &[BorrowedFd<'_>]) -> u64 {
    let mut seen = HashSet::new();
    uppers.iter().map(|upper| tree_bytes(*upper, &mut seen)).sum()
}

fn tree_bytes(top: BorrowedFd<'_>, seen: &mut HashSet<(u64, u64)>) -> u64 {
    let mut bytes = 0;
    let mut open: Vec<(OwnedFd, Vec<Vec<u8>>)> = Vec::new();
    let enter = |parent: BorrowedFd<'_>, name: &[u8], bytes: &mut u64, seen: &mut HashSet<(u64, u64)>| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, name, flags, Mode::empty()).ok()?;
        let below = list(&directory, bytes, seen);
        Some((directory, below))
    };
    open.extend(enter(top, b".", &mut bytes, seen));
    while let Some((directory, left)) = open.last_mut() {
        let Some(name) = left.pop() else {
            open.pop();
            continue;
        };
        let entered = enter(directory.as_fd(), &name, &mut bytes, seen);
        if open.len() < MOST_DEPTH {
            open.extend(entered);
        }
    }
    bytes
}

/// Adds the files of a directory, and returns the directories in it.
fn list(directory: &OwnedFd, bytes: &mut u64, seen: &mut HashSet<(u64, u64)>) -> Vec<Vec<u8>> {
    let mut below = Vec::new();
    for entry in Dir::read_from(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(found) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => below.push(name.to_bytes().to_vec()),
            _ if found.st_nlink > 1 && !seen.insert((found.st_dev, found.st_ino)) => {}
            _ => *bytes += u64::try_from(found.st_blocks).unwrap_or_default() * BLOCK,
        }
    }
    below
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::sync::mpsc::channel;

    use super::LayerDiskBound;

    #[test]
    fn each_file_is_measured_once_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("layer/a/b/c")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        fs::write(at("outside/large"), vec![1; 8 << 20]).unwrap();
        fs::write(at("layer/a/b/c/file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(at("layer/a/b/c/file"), at("layer/again")).unwrap();
        std::os::unix::fs::symlink("../outside", at("layer/way")).unwrap();
        let layer = fs::File::open(at("layer")).unwrap();
        let measured = LayerDiskBound::new(vec![layer.as_fd()], 0).measure();
        assert!((1 << 20..2 << 20).contains(&measured), "{measured}");
    }

    #[test]
    fn the_end_of_the_program_ends_the_measuring() {
        let directory = tempfile::tempdir().unwrap();
        let layer = fs::File::open(directory.path()).unwrap();
        let bound = LayerDiskBound::new(vec![layer.as_fd()], u64::MAX);
        let (sender, ended) = channel();
        drop(sender);
        bound.watch(ended);
        assert!(!bound.is_exceeded());
    }
}
