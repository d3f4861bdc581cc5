//! Redo log slot: one file with a header and a chain of checksummed records.
//!
//! The file is recycled, not truncated, and grows ahead of its records: a new generation begins at its start, so that
//! most flushes overwrite blocks that the file has already. Each checksum is seeded with the one before it, the first with the header's; records of an
//! earlier generation, or behind a torn one, do not continue the chain and are not read.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::syscall::{pread, pwrite};

/// A slot is recycled before it grows past this.
pub(super) const SLOT_BYTES: u64 = 1 << 20;

/// A slot grows by so much, of which most is zero at first. A flush that changes no size leaves the file system's own
/// journal alone.
const GROWTH_BYTES: u64 = 64 << 10;

/// The format: a name, and a version of two digits.
const MAGIC: &[u8; 8] = b"rfredo01";
const MAGIC_NAME: usize = 6;

/// Magic, generation, checksum of both, and the mark of a failed flush, which the chain does not depend on.
const HEADER_BYTES: usize = 24;
const FAILED_AT: usize = 20;

/// Length and checksum of a record.
const FRAME_BYTES: usize = 8;

/// Inode, offset, and the lengths of the context and of the path.
const FIXED_BYTES: usize = 20;

const CHUNK: usize = 64 << 10;

/// A file below the state directory. A file that replaced another has the same path and another inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RedoFileKey {
    pub(super) path: PathBuf,
    pub(super) inode: u64,
}

/// Bytes of an append-only file: first some that it had before, which show where the others belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedoRecord {
    pub(super) file: RedoFileKey,
    /// Of the context.
    pub(super) offset: u64,
    /// Number of bytes that were durable already.
    pub(super) context: u16,
    pub(super) bytes: Vec<u8>,
}

impl RedoRecord {
    /// Where the new bytes begin.
    pub(super) fn data_start(&self) -> u64 {
        self.offset + u64::from(self.context)
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    pub(super) fn encoded_bytes(&self) -> u64 {
        (FRAME_BYTES + FIXED_BYTES + self.file.path.as_os_str().len() + self.bytes.len()) as u64
    }

    /// Appends it to `out`. Returns its checksum, the seed of the next one.
    fn encode(&self, seed: u32, out: &mut Vec<u8>) -> Result<u32, Errno> {
        let path = self.file.path.as_os_str().as_bytes();
        let path_bytes = u16::try_from(path.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let length = u32::try_from(FIXED_BYTES + path.len() + self.bytes.len()).map_err(|_| Errno::FBIG)?;
        let mut body = Vec::with_capacity(length as usize);
        body.extend_from_slice(&self.file.inode.to_le_bytes());
        body.extend_from_slice(&self.offset.to_le_bytes());
        body.extend_from_slice(&self.context.to_le_bytes());
        body.extend_from_slice(&path_bytes.to_le_bytes());
        body.extend_from_slice(path);
        body.extend_from_slice(&self.bytes);
        let sum = checksum(seed, &[&length.to_le_bytes(), &body]);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&sum.to_le_bytes());
        out.append(&mut body);
        Ok(sum)
    }

    /// The record in a body whose checksum matched; none if it is not one.
    fn decode(body: &[u8]) -> Option<Self> {
        let (inode, rest) = body.split_first_chunk::<8>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (context, rest) = rest.split_first_chunk::<2>()?;
        let (path_bytes, rest) = rest.split_first_chunk::<2>()?;
        let (path, bytes) = rest.split_at_checked(usize::from(u16::from_le_bytes(*path_bytes)))?;
        let (offset, context) = (u64::from_le_bytes(*offset), u16::from_le_bytes(*context));
        let path = PathBuf::from(OsStr::from_bytes(path));
        let is_bounded = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= i64::MAX as u64);
        let file = RedoFileKey { path, inode: u64::from_le_bytes(*inode) };
        let is_whole = is_bounded && usize::from(context) <= bytes.len() && is_below(&file.path);
        is_whole.then(|| Self { file, offset, context, bytes: bytes.to_vec() })
    }
}

/// Whether a path names something below the directory that it is relative to.
pub(super) fn is_below(path: &Path) -> bool {
    let mut parts = path.components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// A slot, open for appending.
#[derive(Debug)]
pub(super) struct RedoSlot {
    pub(super) fd: OwnedFd,
    generation: u64,
    /// Checksum of the last record, or of the header.
    seed: u32,
    /// End of the chain; 0 where the next record begins a new generation.
    position: u64,
    /// Bytes of the file that are known to be there.
    size: u64,
}

/// The contents of a slot.
#[derive(Debug)]
pub(super) struct LoadedSlot {
    pub(super) slot: RedoSlot,
    pub(super) records: Vec<RedoRecord>,
    /// A flush of it failed: what is read here may not be what is on disk.
    pub(super) has_failed: bool,
    /// It was never written.
    pub(super) is_new: bool,
}

impl RedoSlot {
    /// Reads a slot up to the end of its chain. None if a newer version wrote it.
    pub(super) fn load(fd: OwnedFd) -> Result<Option<LoadedSlot>, Errno> {
        let mut reader = SlotReader { fd: &fd, bytes: Vec::new(), is_at_end: false };
        let header = reader.get(0, HEADER_BYTES)?.and_then(<[u8]>::first_chunk::<HEADER_BYTES>).copied();
        let is_ours = |magic: &[u8]| magic.get(..MAGIC_NAME) == MAGIC.get(..MAGIC_NAME);
        let found = header.filter(|header| header.starts_with(MAGIC));
        if found.is_none() && header.is_some_and(|header| is_ours(&header)) {
            return Ok(None);
        }
        let parsed = found.and_then(|header| parse_header(&header));
        let Some((generation, mut seed, has_failed)) = parsed else {
            let slot = Self { fd, generation: 0, seed: 0, position: 0, size: 0 };
            return Ok(Some(LoadedSlot { slot, records: Vec::new(), has_failed: false, is_new: true }));
        };
        let (mut position, mut records) = (HEADER_BYTES, Vec::new());
        while let Some((sum, record)) = reader.record(position, seed)? {
            position += FRAME_BYTES + FIXED_BYTES + record.file.path.as_os_str().len() + record.bytes.len();
            seed = sum;
            records.push(record);
        }
        let size = reader.bytes.len() as u64;
        let slot = Self { fd, generation, seed, position: position as u64, size };
        Ok(Some(LoadedSlot { slot, records, has_failed, is_new: false }))
    }

    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.position.max(HEADER_BYTES as u64).saturating_add(bytes) <= SLOT_BYTES
    }

    /// Begins a new generation with the next records.
    pub(super) fn recycle(&mut self) {
        self.position = 0;
    }

    /// Writes records behind the others, without a flush. After an error they are not part of the chain.
    pub(super) fn append(&mut self, records: &[RedoRecord]) -> Result<(), Errno> {
        let (mut out, mut seed, mut generation) = (Vec::new(), self.seed, self.generation);
        if self.position == 0 {
            generation = generation.wrapping_add(1);
            seed = checksum(0, &[MAGIC, &generation.to_le_bytes()]);
            out.extend_from_slice(MAGIC);
            out.extend_from_slice(&generation.to_le_bytes());
            out.extend_from_slice(&seed.to_le_bytes());
            out.extend_from_slice(&[0; HEADER_BYTES - FAILED_AT]);
        }
        for record in records {
            seed = record.encode(seed, &mut out)?;
        }
        let (length, end) = (out.len(), self.position + out.len() as u64);
        if end > self.size {
            let grown = end.next_multiple_of(GROWTH_BYTES);
            out.resize(usize::try_from(grown - self.position).map_err(|_| Errno::FBIG)?, 0);
        }
        match write_at(&self.fd, &out, self.position) {
            // There may be room for the records alone.
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) if out.len() > length => {
                out.truncate(length);
                write_at(&self.fd, &out, self.position)?;
            }
            written => written?,
        }
        self.size = self.size.max(self.position + out.len() as u64);
        self.position = end;
        (self.seed, self.generation) = (seed, generation);
        Ok(())
    }

    /// Says that a flush failed. The mark needs no flush: after a power cut the disk has what it has, and until then
    /// every process sees the mark.
    pub(super) fn mark_failed(&self) {
        // An error leaves a slot whose next flush fails too, most likely; its caller does not trust it either way.
        let _ = write_at(&self.fd, &1u32.to_le_bytes(), FAILED_AT as u64);
    }
}

/// Generation, seed of the chain, and whether a flush failed.
fn parse_header(header: &[u8; HEADER_BYTES]) -> Option<(u64, u32, bool)> {
    let rest = header.strip_prefix(MAGIC)?;
    let (generation, rest) = rest.split_first_chunk::<8>()?;
    let (sum, failed) = rest.split_first_chunk::<4>()?;
    let seed = checksum(0, &[MAGIC, generation]);
    (u32::from_le_bytes(*sum) == seed).then(|| (u64::from_le_bytes(*generation), seed, failed.iter().any(|b| *b != 0)))
}

/// Reads a slot as far as the chain goes.
struct SlotReader<'a> {
    fd: &'a OwnedFd,
    bytes: Vec<u8>,
    is_at_end: bool,
}

impl SlotReader<'_> {
    /// Bytes of the slot, none where it is shorter.
    fn get(&mut self, start: usize, length: usize) -> Result<Option<&[u8]>, Errno> {
        let Some(end) = start.checked_add(length).filter(|end| *end as u64 <= SLOT_BYTES) else { return Ok(None) };
        while self.bytes.len() < end && !self.is_at_end {
            let filled = self.bytes.len();
            self.bytes.resize(filled + CHUNK, 0);
            let count = pread(self.fd, self.bytes.get_mut(filled..).unwrap_or_default(), filled as u64)?;
            self.bytes.truncate(filled + count);
            self.is_at_end = count == 0;
        }
        Ok(self.bytes.get(start..end))
    }

    /// The record at a position, with its checksum, if it continues the chain.
    fn record(&mut self, position: usize, seed: u32) -> Result<Option<(u32, RedoRecord)>, Errno> {
        let frame = self.get(position, FRAME_BYTES)?.and_then(<[u8]>::first_chunk::<FRAME_BYTES>).copied();
        let Some([l0, l1, l2, l3, s0, s1, s2, s3]) = frame else { return Ok(None) };
        let (length, sum) = ([l0, l1, l2, l3], u32::from_le_bytes([s0, s1, s2, s3]));
        let body = self.get(position + FRAME_BYTES, u32::from_le_bytes(length) as usize)?;
        let body = body.filter(|body| checksum(seed, &[&length, body]) == sum);
        Ok(body.and_then(RedoRecord::decode).map(|record| (sum, record)))
    }
}

fn checksum(seed: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Bytes of a file, fewer where it ends.
pub(super) fn read_at(fd: &OwnedFd, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let (mut bytes, mut filled) = (vec![0; length], 0);
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(fd, rest, offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

pub(super) fn write_at(fd: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(fd, bytes, offset)? {
            0 => return Err(Errno::NOSPC),
            count => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset += count as u64;
            }
        }
    }
    Ok(())
}
