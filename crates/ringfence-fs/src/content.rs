//! Reading, within bounds.
//!
//! Contents are read from one descriptor, at most as much as was asked for, and never by the size that the
//! file claims. Memory does not grow with the file.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use ringfence_kernel::{Context, ErrorKind, Pace, ToolError};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::again::{fstat, fstatfs, pread};
use crate::digest::{Digest, Hasher};
use crate::fault::fault;
use crate::mount::{Mount, Opened};
use crate::stamp::Stamp;

const CHUNK: usize = 256 << 10;

/// More than this is no work for the caller's own thread.
pub(crate) const QUICK_BYTES: u64 = 256 << 10;

/// Lines of a file, counted from one, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) bytes: Vec<u8>,
    /// The file has more than this, and it was cut for being too much.
    pub(crate) truncated: bool,
    /// Of the whole file, where that was asked for and it is not too large.
    pub(crate) digest: Option<Digest>,
    /// Lines in the whole file, where it was read to its end.
    pub(crate) lines: Option<u64>,
    /// The file was written to while it was read.
    pub(crate) unsteady: bool,
}

/// Whether the digest of the whole file is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hashing {
    /// Where the file is not too large to be hashed.
    Wanted,
    /// A file that is too large to be hashed cannot be read.
    Required,
    Unwanted,
}

impl Hashing {
    fn check(self, file: &Opened, shown: &str, cx: &Context<'_>) -> Result<(), ToolError> {
        if self == Self::Required && file.stamp.size > cx.limits.hash_bytes {
            let message = format!("`{shown}` has more than the {} bytes that may be hashed", cx.limits.hash_bytes);
            return Err(ToolError::new(ErrorKind::ReadLimit, message));
        }
        Ok(())
    }
}

/// Reads a file from its start, up to the limit.
pub(crate) fn read_start(
    mount: &Mount,
    file: &Opened,
    hashing: Hashing,
    shown: &str,
    cx: &Context<'_>,
) -> Result<Part, ToolError> {
    let fail = |errno| match errno {
        Errno::AGAIN if cx.pace == Pace::Quick => cx.stall(),
        other => fault(other, shown),
    };
    hashing.check(file, shown, cx)?;
    let Stamp { size, .. } = file.stamp;
    if cx.pace == Pace::Quick && size > QUICK_BYTES {
        return Err(cx.stall());
    }
    let limit = cx.limits.read_bytes;
    // A size of nothing is what pseudo files claim; then the end is where reading ends.
    let wanted = if size == 0 { limit } else { size.min(limit) };
    let bytes = read_up_to(&file.fd, wanted, cx).map_err(fail)?;
    let truncated = size > limit || (size == 0 && bytes.len() as u64 == limit);
    let digest = match hashing {
        Hashing::Unwanted => None,
        Hashing::Wanted | Hashing::Required if !truncated => Some(Digest::of(&bytes)),
        Hashing::Wanted | Hashing::Required => hash(mount, file, shown, cx)?,
    };
    // One read sees one state of the file; several may see several.
    let unsteady = bytes.len() > CHUNK && !Stamp::of(&fstat(&file.fd).map_err(fail)?).same_content(&file.stamp);
    Ok(Part { bytes, truncated, digest, lines: None, unsteady })
}

/// Reads some lines of a file. More bytes in them than the limit is an error.
pub(crate) fn read_window(
    mount: &Mount,
    file: &Opened,
    window: Window,
    hashing: Hashing,
    shown: &str,
    cx: &Context<'_>,
) -> Result<Part, ToolError> {
    if cx.pace == Pace::Quick {
        return Err(cx.stall());
    }
    let fail = |errno| fault(errno, shown);
    hashing.check(file, shown, cx)?;
    let whole = hashing != Hashing::Unwanted && file.stamp.size <= cx.limits.hash_bytes;
    let known = if whole { mount.digests.recall(&file.stamp) } else { None };
    let mut hasher = (whole && known.is_none()).then(Hasher::default);
    let mut lines = LineCounter::new(window, cx.limits.read_bytes);
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    let mut ended = false;
    // What is appended while we read does not keep us here. A size of nothing is what pseudo files claim.
    let end = if file.stamp.size == 0 { cx.limits.hash_bytes } else { file.stamp.size };
    while hasher.is_some() || !lines.past() {
        cx.check()?;
        let length = read_chunk(std::os::fd::AsFd::as_fd(&file.fd), &mut chunk, offset, cx).map_err(fail)?;
        let length = length.min(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX));
        if length == 0 {
            ended = true;
            break;
        }
        lines.take(&chunk[..length], shown)?;
        if let Some(hasher) = &mut hasher {
            hasher.update(&chunk[..length]);
        }
        offset += length as u64;
    }
    let unsteady = !Stamp::of(&fstat(&file.fd).map_err(fail)?).same_content(&file.stamp);
    let digest = known.or(hasher.map(Hasher::finish));
    if let (Some(digest), true, false) = (digest, whole, unsteady) {
        mount.digests.remember(&file.stamp, digest);
    }
    let total = (ended || offset == file.stamp.size).then(|| lines.total());
    Ok(Part { bytes: lines.captured, truncated: false, digest, lines: total, unsteady })
}

/// The digest of a whole file, or nothing if it is too large to be hashed.
pub(crate) fn hash(mount: &Mount, file: &Opened, shown: &str, cx: &Context<'_>) -> Result<Option<Digest>, ToolError> {
    if file.stamp.size > cx.limits.hash_bytes {
        return Ok(None);
    }
    if let Some(digest) = mount.digests.recall(&file.stamp) {
        return Ok(Some(digest));
    }
    if cx.pace == Pace::Quick {
        return Err(cx.stall());
    }
    let digest = hash_up_to(std::os::fd::AsFd::as_fd(&file.fd), file.stamp.size, shown, cx)?;
    let now = Stamp::of(&fstat(&file.fd).map_err(|errno| fault(errno, shown))?);
    if now == file.stamp {
        mount.digests.remember(&file.stamp, digest);
    }
    Ok(Some(digest))
}

/// The digest of the first `size` bytes of a descriptor.
pub(crate) fn hash_up_to(fd: BorrowedFd<'_>, size: u64, shown: &str, cx: &Context<'_>) -> Result<Digest, ToolError> {
    let mut hasher = Hasher::default();
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        cx.check()?;
        let length = read_chunk(fd, &mut chunk, offset, cx).map_err(|errno| fault(errno, shown))?;
        if length == 0 {
            break;
        }
        let length = length.min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        hasher.update(&chunk[..length]);
        offset += length as u64;
    }
    Ok(hasher.finish())
}

/// Reads at most `most` bytes from the start of a descriptor.
pub(crate) fn read_up_to(fd: impl std::os::fd::AsFd, most: u64, cx: &Context<'_>) -> Result<Vec<u8>, Errno> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut bytes = vec![0; most.min(CHUNK)];
    let mut filled = 0;
    while filled < most {
        if filled == bytes.len() {
            if cx.check().is_err() {
                return Err(Errno::INTR);
            }
            bytes.resize((filled * 2).min(most), 0);
        }
        match read_chunk(fd.as_fd(), &mut bytes[filled..], filled as u64, cx)? {
            0 => break,
            length => filled += length,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// One read. A quick one takes what is in memory, or says that it would have to wait.
pub(crate) fn read_chunk(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64, cx: &Context<'_>) -> Result<usize, Errno> {
    loop {
        let result = match cx.pace {
            Pace::Patient => pread(fd, &mut *buffer, offset),
            Pace::Quick => match preadv2(fd, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if is_memory(fd) => pread(fd, &mut *buffer, offset),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(Errno::AGAIN),
                result => result,
            },
        };
        match result {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Whether a file system has its files in memory and nowhere else. It waits for nothing, and does not say so.
fn is_memory(fd: BorrowedFd<'_>) -> bool {
    const TMPFS: i128 = 0x0102_1994;
    const RAMFS: i128 = 0x8584_58f6;
    fstatfs(fd).is_ok_and(|found| [TMPFS, RAMFS].contains(&i128::from(found.f_type)))
}

/// Text, if that is what the bytes are.
pub(crate) fn text_of(bytes: Vec<u8>, truncated: bool, shown: &str) -> Result<String, ToolError> {
    let not_text = |why: &str| Err(ToolError::new(ErrorKind::NotText, format!("`{shown}` {why}")));
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return not_text("appears to be UTF-16, and only UTF-8 text is read");
    }
    if memchr::memchr(0, &bytes).is_some() {
        return not_text("appears to be binary: it has a NUL byte");
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        // A character that the limit cut through is not the file's fault.
        Err(error) if truncated && error.utf8_error().error_len().is_none() => {
            let whole = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(whole);
            String::from_utf8(bytes).or_else(|_| not_text("is not valid UTF-8"))
        }
        Err(_) => not_text("appears to be binary: it is not valid UTF-8"),
    }
}

/// Counts lines as chunks go by, and keeps those that are asked for.
struct LineCounter {
    window: Window,
    limit: u64,
    /// The line that the next byte belongs to.
    line: u64,
    /// The last byte was a newline, or there was none yet.
    at_start: bool,
    captured: Vec<u8>,
}

impl LineCounter {
    fn new(window: Window, limit: u64) -> Self {
        Self { window, limit, line: 1, at_start: true, captured: Vec::new() }
    }

    fn past(&self) -> bool {
        self.line > self.window.last
    }

    fn take(&mut self, chunk: &[u8], shown: &str) -> Result<(), ToolError> {
        let mut start = 0;
        while start < chunk.len() {
            let end = memchr::memchr(b'\n', &chunk[start..]).map_or(chunk.len(), |at| start + at + 1);
            if (self.window.first..=self.window.last).contains(&self.line) {
                self.captured.extend_from_slice(&chunk[start..end]);
                if self.captured.len() as u64 > self.limit {
                    let message = format!(
                        "the lines asked for of `{shown}` have more than the {} bytes that may be read",
                        self.limit
                    );
                    return Err(ToolError::new(ErrorKind::ReadLimit, message).hint("ask for fewer lines"));
                }
            } else if self.past() {
                // Only the count still matters.
                let rest = &chunk[start..];
                self.line += memchr::memchr_iter(b'\n', rest).count() as u64;
                self.at_start = rest.ends_with(b"\n");
                return Ok(());
            }
            self.at_start = chunk[end - 1] == b'\n';
            self.line += u64::from(self.at_start);
            start = end;
        }
        Ok(())
    }

    /// Lines so far. An empty file has none; a last line without newline counts.
    fn total(&self) -> u64 {
        if self.at_start { self.line - 1 } else { self.line }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::path::Path;

    use ringfence_kernel::{Context, Dialect, Limits, Pace, Signal};

    use super::{LineCounter, Window, is_memory, read_chunk, text_of};

    #[track_caller]
    fn check(text: &str, first: u64, last: u64, captured: &str, total: u64) {
        for size in [1, 2, 3, 100] {
            let mut lines = LineCounter::new(Window { first, last }, 1000);
            for chunk in text.as_bytes().chunks(size) {
                lines.take(chunk, "f").unwrap();
            }
            assert_eq!(
                (String::from_utf8(lines.captured.clone()).unwrap().as_str(), lines.total()),
                (captured, total),
                "chunks of {size}"
            );
        }
    }

    #[test]
    fn a_window_is_exact_whatever_the_chunks() {
        check("a\nb\nc\n", 1, 1, "a\n", 3);
        check("a\nb\nc\n", 2, 3, "b\nc\n", 3);
        check("a\nb\nc", 3, 9, "c", 3);
        check("a\r\nb\r\n", 2, 2, "b\r\n", 2);
        check("", 1, 5, "", 0);
        check("\n", 1, 5, "\n", 1);
        check("a\nb\n", 7, 9, "", 2);
        check("a\u{2028}b\rc\n", 1, 1, "a\u{2028}b\rc\n", 1);
    }

    #[test]
    fn a_line_longer_than_the_limit_is_refused() {
        let mut lines = LineCounter::new(Window { first: 1, last: 1 }, 10);
        lines.take(b"0123456789", "f").unwrap();
        lines.take(b"x", "f").unwrap_err();
    }

    #[test]
    fn text_is_utf8_without_nul_and_a_cut_character_is_dropped() {
        assert_eq!(text_of(b"a\xc3".to_vec(), true, "f").unwrap(), "a");
        for (bytes, truncated) in
            [(&b"a\xc3"[..], false), (b"a\xffb", true), (b"a\0b", false), (b"\xff\xfea\0", false), (b"\xc0\xaf", false)]
        {
            text_of(bytes.to_vec(), truncated, "f").unwrap_err();
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the file is made and opened without any mount")]
    fn what_is_in_memory_is_read_without_a_worker() {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let path = directory.path().join("f");
        std::fs::write(&path, "in memory").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let (signal, limits) = (Signal::new(), Limits::of(Dialect::Standard));
        let cx = Context::new(&limits, Pace::Quick, &signal);
        let mut buffer = [0; 64];
        assert_eq!(read_chunk(file.as_fd(), &mut buffer, 3, &cx), Ok(6), "{}", is_memory(file.as_fd()));
        assert_eq!(buffer[..6], *b"memory");
    }
}
