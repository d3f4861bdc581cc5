//! Journal checkpoint: how far the log needs no recovery, so that a start does not read all of it.
//!
//! The file says up to which offset every change is settled, and the sequence number of the newest one. It is a hint:
//! without it, or where it is about another log, the log is read from the start.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::journal::line::JournalLine;
use crate::sys::own_files::{SAFE_OPEN, write_all};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fstat, openat, pread, renameat};

const CHECKPOINT: &str = "checkpoint";
const NEW: &str = "checkpoint.new";

/// A new one is written when the log has grown by this much.
pub(super) const INTERVAL_BYTES: u64 = 64 << 10;

/// A point in the log before which every change is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JournalCheckpoint {
    /// Inode of the log.
    pub(super) inode: u64,
    pub(super) offset: u64,
    /// Sequence number of the newest change.
    pub(super) newest: u64,
}

impl JournalCheckpoint {
    /// The checkpoint of this log, or its start.
    pub(super) fn load(directory: &OwnedFd, log: &OwnedFd) -> io::Result<Self> {
        let stat = FileStat::from_stat(&fstat(log)?);
        let start = Self { inode: stat.id.inode, ..Self::default() };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN;
        let file = match openat(directory, CHECKPOINT, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(start),
            file => file?,
        };
        let mut text = [0u8; 128];
        let length = pread(&file, &mut text, 0)?;
        let found = std::str::from_utf8(&text[..length]).ok().and_then(Self::parse);
        let is_line_end = |offset: u64| {
            let mut byte = [0u8; 1];
            offset > 0 && pread(log, &mut byte, offset - 1).is_ok_and(|read| read == 1 && byte == *b"\n")
        };
        Ok(found.filter(|it| it.inode == stat.id.inode && is_line_end(it.offset)).unwrap_or(start))
    }

    pub(super) fn store(self, directory: &OwnedFd) -> io::Result<()> {
        let Self { inode, offset, newest } = self;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | SAFE_OPEN;
        let file = openat(directory, NEW, flags, Mode::RUSR | Mode::WUSR)?;
        write_all(file.as_fd(), format!("{inode} {offset} {newest}\n").as_bytes())?;
        Ok(renameat(directory, NEW, directory, CHECKPOINT)?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_suffix('\n')?.split(' ').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let found = Self { inode: next()?, offset: next()?, newest: next()? };
        next().is_none().then_some(found)
    }
}

/// What the end of a log says.
#[derive(Debug, Default)]
pub(super) struct LogTail {
    /// IDs of changes without an outcome.
    pub(super) pending: Vec<String>,
    /// Whether images were evicted, which may still be there.
    pub(super) has_evictions: bool,
    /// Sequence number of its newest change.
    pub(super) newest: u64,
}

impl LogTail {
    pub(super) fn apply(&mut self, line: JournalLine) {
        match line {
            JournalLine::Intent(change) => {
                self.newest = self.newest.max(change.sequence());
                self.pending.push(change.change);
            }
            JournalLine::Done { change } | JournalLine::Void { change } => {
                self.pending.retain(|pending| *pending != change);
            }
            JournalLine::Evicted { .. } => self.has_evictions = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::JournalCheckpoint;

    #[test]
    fn a_checkpoint_is_whole_or_none() {
        let checkpoint = JournalCheckpoint { inode: 7, offset: 65_600, newest: 1_700_000_000_123 };
        assert_eq!(JournalCheckpoint::parse("7 65600 1700000000123\n"), Some(checkpoint));
        for text in ["", "7 65600 17", "7 65600\n", "7 65600 17 8\n", "7  65600 17\n", "seven 1 2\n"] {
            assert_eq!(JournalCheckpoint::parse(text), None, "{text:?}");
        }
    }
}
