//! Git packfiles, with an index of version 2, and deltas.

use std::io::Read;
use std::os::fd::AsFd as _;

use flate2::read::ZlibDecoder;

use crate::git::object::{GitObject, GitObjectKind, GitObjectStore, MOST_OBJECT_BYTES};
use crate::git::{GitFile, GitOid, GitReadBudget, GitReadError, RepositoryFiles};
use crate::sys::syscall::pread;

/// Chains of deltas are no longer than this; git makes them of 50, or 4,095 on request.
const LONGEST_CHAIN: usize = 512;

/// Most packs that are searched.
const MOST_PACKS: usize = 1000;

const FANOUT: u64 = 8;
const OID_TABLE: u64 = FANOUT + 256 * 4;

const PACK_UNREADABLE: GitReadError = GitReadError("a pack cannot be read");

pub(super) struct GitPack {
    index: GitFile,
    pack: GitFile,
    count: u64,
}

impl GitPack {
    pub(super) fn open_all(files: &dyn RepositoryFiles, budget: &GitReadBudget<'_>) -> Result<Vec<Self>, GitReadError> {
        let names = files.names(b"objects/pack")?;
        let stems = names.iter().filter_map(|name| std::str::from_utf8(name).ok()?.strip_suffix(".idx"));
        let mut packs = Vec::new();
        for stem in stems {
            if packs.len() == MOST_PACKS {
                return Err(GitReadError("there are too many packs"));
            }
            packs.extend(Self::open(files, stem, budget)?);
        }
        Ok(packs)
    }

    pub(super) fn open(
        files: &dyn RepositoryFiles,
        stem: &str,
        budget: &GitReadBudget<'_>,
    ) -> Result<Option<Self>, GitReadError> {
        let file = |suffix: &str| files.open(format!("objects/pack/{stem}.{suffix}").as_bytes());
        let (Some(index), Some(pack)) = (file("idx")?, file("pack")?) else { return Ok(None) };
        let head = index.read_at(0, 8, budget)?;
        let pack_head = pack.read_at(0, 8, budget)?;
        if head != b"\xfftOc\0\0\0\x02" || pack_head != b"PACK\0\0\0\x02" {
            return Err(GitReadError("unsupported pack version"));
        }
        let mut opened = Self { index, pack, count: 0 };
        opened.count = u64::from(opened.read_u32(FANOUT + 255 * 4, budget)?);
        Ok(Some(opened))
    }

    fn read_u32(&self, offset: u64, budget: &GitReadBudget<'_>) -> Result<u32, GitReadError> {
        let bytes = self.index.read_at(offset, 4, budget)?;
        bytes.try_into().map(u32::from_be_bytes).map_err(|_| PACK_UNREADABLE)
    }

    /// Offset of an object, if it is in the pack.
    pub(super) fn find(&self, oid: &GitOid, budget: &GitReadBudget<'_>) -> Result<Option<u64>, GitReadError> {
        let first = u64::from(oid[0]);
        let from = if first == 0 { 0 } else { u64::from(self.read_u32(FANOUT + (first - 1) * 4, budget)?) };
        let to = u64::from(self.read_u32(FANOUT + first * 4, budget)?);
        if from > to || to > self.count {
            return Err(PACK_UNREADABLE);
        }
        let length = usize::try_from((to - from) * 20).map_err(|_| PACK_UNREADABLE)?;
        let names = self.index.read_at(OID_TABLE + from * 20, length, budget)?;
        let (names, _) = names.as_chunks::<20>();
        let Ok(at) = names.binary_search(oid) else { return Ok(None) };
        self.offset(from + at as u64, budget).map(Some)
    }

    fn offset(&self, at: u64, budget: &GitReadBudget<'_>) -> Result<u64, GitReadError> {
        let offsets = OID_TABLE + self.count * 24;
        let short = self.read_u32(offsets + at * 4, budget)?;
        if short & 0x8000_0000 == 0 {
            return Ok(u64::from(short));
        }
        let long = offsets + self.count * 4 + u64::from(short & 0x7fff_ffff) * 8;
        let bytes = self.index.read_at(long, 8, budget)?;
        bytes.try_into().map(u64::from_be_bytes).map_err(|_| PACK_UNREADABLE)
    }

    /// Whether every object that the index names is present and has the hash it is named by.
    pub(super) fn is_intact(
        &self,
        store: &GitObjectStore<'_>,
        budget: &GitReadBudget<'_>,
    ) -> Result<bool, GitReadError> {
        for at in 0..self.count {
            budget.spend_object()?;
            let name = self.index.read_at(OID_TABLE + at * 20, 20, budget)?;
            let object = self.read(self.offset(at, budget)?, store, budget, 0)?;
            if object.oid() != name.as_slice() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn read(
        &self,
        offset: u64,
        store: &GitObjectStore<'_>,
        budget: &GitReadBudget<'_>,
        depth: usize,
    ) -> Result<GitObject, GitReadError> {
        let mut deltas = Vec::new();
        let mut offset = offset;
        let mut base = loop {
            if depth + deltas.len() > LONGEST_CHAIN {
                return Err(GitReadError("a delta chain is too long"));
            }
            let entry = self.entry(offset, budget)?;
            let data = || self.inflate(entry.data, entry.size, budget);
            match entry.kind {
                GitPackEntryKind::Object(kind) => break GitObject { kind, data: data()? },
                GitPackEntryKind::OffsetDelta(back) => {
                    deltas.push(data()?);
                    offset = offset.checked_sub(back).filter(|base| *base < offset).ok_or(PACK_UNREADABLE)?;
                }
                GitPackEntryKind::NamedDelta(oid) => {
                    deltas.push(data()?);
                    break store.find(&oid, depth + deltas.len())?.ok_or(GitReadError("an object is missing"))?;
                }
            }
        };
        for delta in deltas.iter().rev() {
            base.data = apply_delta(&base.data, delta, budget)?;
        }
        Ok(base)
    }

    fn entry(&self, offset: u64, budget: &GitReadBudget<'_>) -> Result<GitPackEntry, GitReadError> {
        let head = self.pack.read_at(offset, 64, budget)?;
        let mut bytes = head.iter().copied();
        let mut next = || bytes.next().ok_or(PACK_UNREADABLE);
        let mut byte = next()?;
        let (code, mut size, mut shift, mut used) = (byte >> 4 & 7, u64::from(byte & 15), 4u32, 1u64);
        while byte & 0x80 != 0 {
            byte = next()?;
            size |= u64::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 60).ok_or(PACK_UNREADABLE)?;
            (shift, used) = (shift + 7, used + 1);
        }
        let kind = match code {
            1 => GitPackEntryKind::Object(GitObjectKind::Commit),
            2 => GitPackEntryKind::Object(GitObjectKind::Tree),
            3 => GitPackEntryKind::Object(GitObjectKind::Blob),
            4 => GitPackEntryKind::Object(GitObjectKind::Tag),
            6 => {
                byte = next()?;
                used += 1;
                let mut back = u64::from(byte & 0x7f);
                while byte & 0x80 != 0 {
                    byte = next()?;
                    used += 1;
                    let more = (back + 1).checked_mul(128).ok_or(PACK_UNREADABLE)?;
                    back = more | u64::from(byte & 0x7f);
                }
                GitPackEntryKind::OffsetDelta(back)
            }
            7 => {
                let at = usize::try_from(used).map_err(|_| PACK_UNREADABLE)?;
                let oid = head.get(at..at + 20).and_then(|oid| GitOid::try_from(oid).ok()).ok_or(PACK_UNREADABLE)?;
                used += 20;
                GitPackEntryKind::NamedDelta(oid)
            }
            _ => return Err(PACK_UNREADABLE),
        };
        Ok(GitPackEntry { kind, size, data: offset + used })
    }

    fn inflate(&self, offset: u64, size: u64, budget: &GitReadBudget<'_>) -> Result<Vec<u8>, GitReadError> {
        if size > MOST_OBJECT_BYTES {
            return Err(GitReadError("an object is too large"));
        }
        budget.spend(size)?;
        let mut data = Vec::new();
        let mut decoder = ZlibDecoder::new(GitFileReader { file: &self.pack, offset });
        decoder.by_ref().take(size + 1).read_to_end(&mut data).map_err(|_| PACK_UNREADABLE)?;
        if data.len() as u64 == size { Ok(data) } else { Err(PACK_UNREADABLE) }
    }
}

struct GitPackEntry {
    kind: GitPackEntryKind,
    /// Bytes that it has when it is inflated.
    size: u64,
    /// Offset of the entries.
    data: u64,
}

enum GitPackEntryKind {
    Object(GitObjectKind),
    OffsetDelta(u64),
    NamedDelta(GitOid),
}

struct GitFileReader<'a> {
    file: &'a GitFile,
    offset: u64,
}

impl Read for GitFileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = pread(self.file.fd.as_fd(), buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The object that a delta makes of another one.
fn apply_delta(base: &[u8], delta: &[u8], budget: &GitReadBudget<'_>) -> Result<Vec<u8>, GitReadError> {
    let mut bytes = delta.iter().copied();
    let from = varint(&mut bytes)?;
    let size = varint(&mut bytes)?;
    if from != base.len() as u64 || size > MOST_OBJECT_BYTES {
        return Err(PACK_UNREADABLE);
    }
    budget.spend(size)?;
    let mut made = Vec::new();
    while let Some(code) = bytes.next() {
        if code & 0x80 == 0 {
            let inserted: Vec<u8> = bytes.by_ref().take(usize::from(code)).collect();
            if code == 0 || inserted.len() != usize::from(code) {
                return Err(PACK_UNREADABLE);
            }
            made.extend_from_slice(&inserted);
            continue;
        }
        let mut number = |bits: std::ops::Range<u32>| -> Result<usize, GitReadError> {
            let mut value = 0;
            for (place, bit) in bits.enumerate() {
                if code & (1 << bit) != 0 {
                    value |= usize::from(bytes.next().ok_or(PACK_UNREADABLE)?) << (8 * place);
                }
            }
            Ok(value)
        };
        let offset = number(0..4)?;
        let length = match number(4..7)? {
            0 => 0x10000,
            length => length,
        };
        made.extend_from_slice(base.get(offset..offset + length).ok_or(PACK_UNREADABLE)?);
        if made.len() as u64 > size {
            return Err(PACK_UNREADABLE);
        }
    }
    if made.len() as u64 == size { Ok(made) } else { Err(PACK_UNREADABLE) }
}

fn varint(bytes: &mut impl Iterator<Item = u8>) -> Result<u64, GitReadError> {
    let (mut value, mut shift) = (0u64, 0u32);
    loop {
        let byte = bytes.next().ok_or(PACK_UNREADABLE)?;
        value |= u64::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 60).ok_or(PACK_UNREADABLE)?;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
        shift += 7;
    }
}
