//! File stat: identity, type, size and times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat};

/// One look at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub id: FileId,
    pub kind: FileKind,
    /// Permission bits, with the setuid, setgid and sticky ones.
    pub mode: u32,
    pub owner: (u32, u32),
    pub links: u64,
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i128,
    pub changed: i128,
}

/// Identity of a file, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Link,
    Fifo,
    Socket,
    Device,
}

impl FileKind {
    pub fn from_file_type(kind: FileType) -> Option<Self> {
        Some(match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => Self::Device,
            FileType::Unknown => return None,
        })
    }

    /// With its article, for messages.
    pub fn with_article(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Link => "a link",
            Self::Fifo => "a pipe and not a regular file",
            Self::Socket => "a socket and not a regular file",
            Self::Device => "a device and not a regular file",
        }
    }

    /// As the standard dialect names types.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

impl FileStat {
    #[expect(
        clippy::cast_sign_loss,
        clippy::unnecessary_cast,
        reason = "field types differ between architectures; sizes are never negative"
    )]
    pub fn from_stat(stat: &Stat) -> Self {
        let nanos = |seconds: i128, nanos: i128| seconds * 1_000_000_000 + nanos;
        Self {
            id: FileId { device: stat.st_dev as u64, inode: stat.st_ino as u64 },
            kind: FileKind::from_file_type(FileType::from_raw_mode(stat.st_mode)).unwrap_or(FileKind::Device),
            mode: stat.st_mode & 0o7777,
            owner: (stat.st_uid, stat.st_gid),
            links: stat.st_nlink as u64,
            size: stat.st_size as u64,
            modified: nanos(stat.st_mtime as i128, stat.st_mtime_nsec as i128),
            changed: nanos(stat.st_ctime as i128, stat.st_ctime_nsec as i128),
        }
    }

    /// The version of an entry with this name: any later change of it has another.
    pub fn version(&self) -> String {
        format!("{}:{:o}:{}:{}:{}", self.id.inode, self.mode, self.size, self.modified, self.changed)
    }

    /// Whether contents can be the same. Renaming a file changes neither.
    pub fn same_content(&self, other: &Self) -> bool {
        self.id == other.id && self.size == other.size && self.modified == other.modified
    }

    /// No user may read it, the owner included. Root could, and does not.
    pub fn denies_read(&self) -> bool {
        self.mode & 0o444 == 0
    }

    /// A directory that no user may search.
    pub fn denies_search(&self) -> bool {
        self.kind == FileKind::Directory && self.mode & 0o111 == 0
    }

    pub fn denies_write(&self) -> bool {
        self.mode & 0o222 == 0
    }
}

/// A time in nanoseconds since 1970 as RFC 3339, to the millisecond.
pub fn timestamp(nanos: i128) -> String {
    let millis = u64::try_from((nanos / 1_000_000).max(0)).unwrap_or(u64::MAX);
    // A time past the year 9999, which the formatter cannot write, is not a real file time.
    let latest = Duration::from_millis(253_402_300_799_000);
    let time: SystemTime = UNIX_EPOCH + Duration::from_millis(millis).min(latest);
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn times_are_written_whatever_the_clock_said() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(1_700_000_000_123_456_789), "2023-11-14T22:13:20.123Z");
        assert_eq!(timestamp(-5), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(i128::from(i64::MAX) * 1_000_000_000), "9999-12-31T23:59:59.000Z");
    }
}
