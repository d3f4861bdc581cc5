//! Bounded reads of file contents.
//!
//! Contents are read from one descriptor, at most as much as was asked for, and never by the size that the
//! file claims. Memory does not grow with the file.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use ringfence_kernel::{CallContext, ErrorKind, IoMode, ToolError};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::read::digest::{Digest, DigestCache, Sha256Hasher};
use crate::root::OpenFile;
use crate::sys::errno::errno_error;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fstat, fstatfs, pread};

const CHUNK: usize = 256 << 10;

/// Reads larger than this do not run on the caller's own thread.
pub(crate) const NONBLOCKING_BYTES: u64 = 256 << 10;

/// Lines of a file, counted from one, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineRange {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// The part of a file that was read.
#[derive(Debug)]
pub(crate) struct FileExcerpt {
    pub(crate) bytes: Vec<u8>,
    /// The file has more than this, and it was cut for being too much.
    pub(crate) truncated: bool,
    /// Of the whole file, where that was asked for and it is not too large.
    pub(crate) digest: Option<Digest>,
    /// Lines in the whole file, where it was read to its end.
    pub(crate) lines: Option<u64>,
    /// The file was written to while it was read.
    pub(crate) changed_during_read: bool,
}

/// Handling of requested lines that have more bytes than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowOverflow {
    /// They are an error.
    Refuse,
    /// As many bytes as this are read.
    Truncate(u64),
}

/// Mode of hashing the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestMode {
    /// If the file is not too large to be hashed.
    BestEffort,
    /// A file that is too large to be hashed cannot be read.
    Required,
    Skip,
}

impl DigestMode {
    fn check(self, file: &OpenFile, shown: &str, cx: &CallContext<'_>) -> Result<(), ToolError> {
        if self == Self::Required && file.stat.size > cx.limits.hash_bytes {
            let message = format!("`{shown}` exceeds the {} bytes that may be hashed", cx.limits.hash_bytes);
            return Err(ToolError::new(ErrorKind::ReadLimit, message));
        }
        Ok(())
    }
}

/// Reads a file from its start, up to the limit.
pub(crate) fn read_start(
    digests: &DigestCache,
    file: &OpenFile,
    hashing: DigestMode,
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<FileExcerpt, ToolError> {
    let fail = |errno| match errno {
        Errno::AGAIN if cx.io_mode == IoMode::NonBlocking => cx.would_block(),
        other => errno_error(other, shown),
    };
    hashing.check(file, shown, cx)?;
    let FileStat { size, .. } = file.stat;
    if cx.io_mode == IoMode::NonBlocking && size > NONBLOCKING_BYTES {
        return Err(cx.would_block());
    }
    let limit = cx.limits.read_bytes;
    // A size of nothing is what pseudo files claim; then the end is where reading ends.
    let wanted = if size == 0 { limit } else { size.min(limit) };
    let bytes = read_up_to(&file.fd, wanted, cx).map_err(fail)?;
    let truncated = size > limit || (size == 0 && bytes.len() as u64 == limit);
    let digest = match hashing {
        DigestMode::Skip => None,
        DigestMode::BestEffort | DigestMode::Required if !truncated => Some(Digest::of(&bytes)),
        DigestMode::BestEffort | DigestMode::Required => hash(digests, file, shown, cx)?,
    };
    // One read sees one state of the file; several may see several.
    let unsteady =
        bytes.len() > CHUNK && !FileStat::from_stat(&fstat(&file.fd).map_err(fail)?).same_content(&file.stat);
    Ok(FileExcerpt { bytes, truncated, digest, lines: None, changed_during_read: unsteady })
}

/// Reads some lines of a file.
pub(crate) fn read_window(
    digests: &DigestCache,
    file: &OpenFile,
    (window, overflow): (LineRange, WindowOverflow),
    hashing: DigestMode,
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<FileExcerpt, ToolError> {
    if cx.io_mode == IoMode::NonBlocking {
        return Err(cx.would_block());
    }
    let fail = |errno| errno_error(errno, shown);
    hashing.check(file, shown, cx)?;
    let whole = hashing != DigestMode::Skip && file.stat.size <= cx.limits.hash_bytes;
    let known = if whole { digests.lookup(&file.stat) } else { None };
    let mut hasher = (whole && known.is_none()).then(Sha256Hasher::default);
    let mut lines = LineCounter::new(window, cx.limits.read_bytes, overflow);
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    let mut ended = false;
    // Bytes that are appended during the read are not read. Pseudo files report a size of 0.
    let end = if file.stat.size == 0 { cx.limits.hash_bytes } else { file.stat.size };
    while hasher.is_some() || !lines.is_past_range() {
        cx.check()?;
        let length = read_chunk(std::os::fd::AsFd::as_fd(&file.fd), &mut chunk, offset, cx).map_err(fail)?;
        let length = length.min(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX));
        if length == 0 {
            ended = true;
            break;
        }
        lines.push_chunk(&chunk[..length], shown)?;
        if let Some(hasher) = &mut hasher {
            hasher.update(&chunk[..length]);
        }
        offset += length as u64;
    }
    let unsteady = !FileStat::from_stat(&fstat(&file.fd).map_err(fail)?).same_content(&file.stat);
    let digest = known.or(hasher.map(Sha256Hasher::finish));
    if let (Some(digest), true, false) = (digest, whole, unsteady) {
        digests.insert(&file.stat, digest);
    }
    let total = (ended || offset == file.stat.size).then(|| lines.total());
    let truncated = lines.overflowed;
    Ok(FileExcerpt { bytes: lines.captured, truncated, digest, lines: total, changed_during_read: unsteady })
}

/// The digest of a whole file, or nothing if it is too large to be hashed.
pub(crate) fn hash(
    digests: &DigestCache,
    file: &OpenFile,
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<Option<Digest>, ToolError> {
    if file.stat.size > cx.limits.hash_bytes {
        return Ok(None);
    }
    if let Some(digest) = digests.lookup(&file.stat) {
        return Ok(Some(digest));
    }
    if cx.io_mode == IoMode::NonBlocking {
        return Err(cx.would_block());
    }
    let digest = hash_up_to(std::os::fd::AsFd::as_fd(&file.fd), file.stat.size, shown, cx)?;
    let now = FileStat::from_stat(&fstat(&file.fd).map_err(|errno| errno_error(errno, shown))?);
    if now == file.stat {
        digests.insert(&file.stat, digest);
    }
    Ok(Some(digest))
}

/// The digest of the first `size` bytes of a descriptor.
pub(crate) fn hash_up_to(
    fd: BorrowedFd<'_>,
    size: u64,
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<Digest, ToolError> {
    let mut hasher = Sha256Hasher::default();
    let mut chunk = vec![0; usize::try_from(size).unwrap_or(CHUNK).min(CHUNK)];
    let mut offset = 0;
    while offset < size {
        cx.check()?;
        let length = read_chunk(fd, &mut chunk, offset, cx).map_err(|errno| errno_error(errno, shown))?;
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
pub(crate) fn read_up_to(fd: impl std::os::fd::AsFd, most: u64, cx: &CallContext<'_>) -> Result<Vec<u8>, Errno> {
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
pub(crate) fn read_chunk(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    offset: u64,
    cx: &CallContext<'_>,
) -> Result<usize, Errno> {
    loop {
        let result = match cx.io_mode {
            IoMode::Blocking => pread(fd, &mut *buffer, offset),
            IoMode::NonBlocking => match preadv2(fd, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if is_memory_fs(fd) => pread(fd, &mut *buffer, offset),
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
fn is_memory_fs(fd: BorrowedFd<'_>) -> bool {
    const TMPFS: i128 = 0x0102_1994;
    const RAMFS: i128 = 0x8584_58f6;
    fstatfs(fd).is_ok_and(|found| [TMPFS, RAMFS].contains(&i128::from(found.f_type)))
}

/// Text, if that is what the bytes are.
pub(crate) fn decode_text(bytes: Vec<u8>, truncated: bool, shown: &str) -> Result<String, ToolError> {
    let not_text = |why: &str| Err(ToolError::new(ErrorKind::NotText, format!("`{shown}` {why}")));
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return not_text("appears to be UTF-16; only UTF-8 text is supported");
    }
    if memchr::memchr(0, &bytes).is_some() {
        return not_text("appears to be binary: it contains a NUL byte");
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
    window: LineRange,
    limit: u64,
    overflow: WindowOverflow,
    /// There were more bytes in the lines than are read.
    overflowed: bool,
    /// The line that the next byte belongs to.
    line: u64,
    /// The last byte was a newline, or there was none yet.
    at_start: bool,
    captured: Vec<u8>,
}

impl LineCounter {
    fn new(window: LineRange, limit: u64, overflow: WindowOverflow) -> Self {
        let limit = match overflow {
            WindowOverflow::Refuse => limit,
            WindowOverflow::Truncate(most) => limit.min(most),
        };
        Self { window, limit, overflow, overflowed: false, line: 1, at_start: true, captured: Vec::new() }
    }

    fn is_past_range(&self) -> bool {
        self.line > self.window.last || self.overflowed
    }

    fn push_chunk(&mut self, chunk: &[u8], shown: &str) -> Result<(), ToolError> {
        let mut start = 0;
        while start < chunk.len() {
            let end = memchr::memchr(b'\n', &chunk[start..]).map_or(chunk.len(), |at| start + at + 1);
            if (self.window.first..=self.window.last).contains(&self.line) && !self.overflowed {
                self.captured.extend_from_slice(&chunk[start..end]);
                if self.captured.len() as u64 > self.limit && self.overflow != WindowOverflow::Refuse {
                    self.captured.truncate(usize::try_from(self.limit).unwrap_or(usize::MAX));
                    self.overflowed = true;
                } else if self.captured.len() as u64 > self.limit {
                    let message =
                        format!("the requested lines of `{shown}` exceed the {} bytes that may be read", self.limit);
                    return Err(ToolError::new(ErrorKind::ReadLimit, message).hint("request fewer lines"));
                }
            } else if self.is_past_range() {
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

    use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode};

    use super::{LineCounter, LineRange, WindowOverflow, decode_text, is_memory_fs, read_chunk};

    #[track_caller]
    fn check(text: &str, first: u64, last: u64, captured: &str, total: u64) {
        for size in [1, 2, 3, 100] {
            let mut lines = LineCounter::new(LineRange { first, last }, 1000, WindowOverflow::Refuse);
            for chunk in text.as_bytes().chunks(size) {
                lines.push_chunk(chunk, "f").unwrap();
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
        let mut lines = LineCounter::new(LineRange { first: 1, last: 1 }, 10, WindowOverflow::Refuse);
        lines.push_chunk(b"0123456789", "f").unwrap();
        lines.push_chunk(b"x", "f").unwrap_err();
    }

    #[test]
    fn lines_beyond_the_limit_of_a_model_are_counted_and_not_read() {
        for size in [1, 3, 100] {
            let mut lines = LineCounter::new(LineRange { first: 2, last: 9 }, 1000, WindowOverflow::Truncate(5));
            b"a\nbb\ncccc\nd\n".chunks(size).for_each(|chunk| lines.push_chunk(chunk, "f").unwrap());
            assert_eq!((&*lines.captured, lines.overflowed, lines.total()), (&b"bb\ncc"[..], true, 4));
        }
    }

    #[test]
    fn text_is_utf8_without_nul_and_a_cut_character_is_dropped() {
        assert_eq!(decode_text(b"a\xc3".to_vec(), true, "f").unwrap(), "a");
        for (bytes, truncated) in
            [(&b"a\xc3"[..], false), (b"a\xffb", true), (b"a\0b", false), (b"\xff\xfea\0", false), (b"\xc0\xaf", false)]
        {
            decode_text(bytes.to_vec(), truncated, "f").unwrap_err();
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the file is made and opened without any mount")]
    fn cached_content_is_read_without_a_worker() {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let path = directory.path().join("f");
        std::fs::write(&path, "in memory").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let (signal, limits) = (CallCommitState::new(), CallLimits::for_dialect(Dialect::Standard));
        let cx = CallContext::new(&limits, IoMode::NonBlocking, &signal);
        let mut buffer = [0; 64];
        assert_eq!(read_chunk(file.as_fd(), &mut buffer, 3, &cx), Ok(6), "{}", is_memory_fs(file.as_fd()));
        assert_eq!(buffer[..6], *b"memory");
    }
}
