//! The git index, versions 2 to 4: staged entries, and flags that hide changes.
//!
//! An index can have the same data twice: cached trees, and offsets of its entries. Git trusts both, so they are
//! checked against the entries, and an index that contradicts itself is an error.

use std::collections::BTreeMap;

use crate::git::object::{EMPTY_BLOB, oid_of};
use crate::git::{GitOid, GitReadError};

const INDEX_UNREADABLE: GitReadError = GitReadError("the index cannot be read");

const ASSUME_VALID: u16 = 0x8000;
const EXTENDED: u16 = 0x4000;
const SKIP_WORKTREE: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;

/// Staged entries, by path and stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GitIndex {
    pub(crate) entries: BTreeMap<(Vec<u8>, u8), GitIndexEntry>,
    /// Extensions that decide what git looks at, by their names.
    pub(crate) caches: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GitIndexEntry {
    pub(crate) mode: u32,
    pub(crate) oid: GitOid,
    /// Git does not look whether the file changed.
    pub(crate) is_hidden: bool,
    intent_to_add: bool,
}

impl GitIndex {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, GitReadError> {
        let end = bytes.len().checked_sub(20).ok_or(INDEX_UNREADABLE)?;
        let mut reader = GitIndexReader::new(bytes.get(..end).ok_or(INDEX_UNREADABLE)?);
        let (version, count) = reader.header()?;
        let (mut entries, mut starts, mut previous) = (BTreeMap::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            let offset = reader.position;
            let (key, entry) = reader.entry(version, &previous)?;
            starts.push(GitIndexEntryStart { offset, is_whole: reader.shared_prefix == 0 });
            previous.clone_from(&key.0);
            // Sorted, each once: where git searches, it finds what is read here.
            if entries.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(INDEX_UNREADABLE);
            }
            entries.insert(key, entry);
        }
        let mut index = Self { entries, caches: BTreeMap::new() };
        index.read_extensions(&mut reader, &starts)?;
        Ok(index)
    }

    /// The first path of a staged file that is not empty and that `is_wanted`. Only entries are read: what an index has
    /// twice is not compared. An index that leaves its entries to another file is an error.
    pub(crate) fn find_file(bytes: &[u8], is_wanted: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>, GitReadError> {
        let mut reader = GitIndexReader::new(bytes.get(..bytes.len().saturating_sub(20)).unwrap_or_default());
        let (version, count) = reader.header()?;
        let mut previous = Vec::new();
        for _ in 0..count {
            let ((path, _), entry) = reader.entry(version, &previous)?;
            if entry.mode & 0o170_000 == 0o100_000 && entry.oid != EMPTY_BLOB && is_wanted(&path) {
                return Ok(Some(path));
            }
            previous = path;
        }
        while reader.position < reader.bytes.len() {
            let name = reader.take(4)?;
            let size = usize::try_from(reader.read_u32()?).map_err(|_| INDEX_UNREADABLE)?;
            if name == b"link" {
                return Err(GitReadError("the index is split"));
            }
            reader.take(size)?;
        }
        Ok(None)
    }

    /// Whether the entries are the same, and caches of the same names are there, whatever is in these.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        self.entries == other.entries && self.caches.keys().eq(other.caches.keys())
    }

    /// The directory that the cache of untracked files in these bytes is for. Git uses it in no other one.
    pub(crate) fn untracked_cache_location(data: &[u8]) -> Option<&[u8]> {
        let mut reader = GitIndexReader::new(data);
        reader.read_varint().ok()?;
        let system = |ident: &&[u8]| ident.windows(9).rposition(|text| text == b", system ");
        let ident = reader.take_until(0).ok()?.strip_prefix(b"Location ")?;
        ident.get(..system(&ident)?)
    }

    fn read_extensions(
        &mut self,
        reader: &mut GitIndexReader<'_>,
        starts: &[GitIndexEntryStart],
    ) -> Result<(), GitReadError> {
        let entries_end = reader.position;
        while reader.position < reader.bytes.len() {
            let name = reader.take(4)?.to_vec();
            let size = usize::try_from(reader.read_u32()?).map_err(|_| INDEX_UNREADABLE)?;
            let data = reader.take(size)?;
            match name.as_slice() {
                b"TREE" => self.check_cached_trees(data)?,
                b"REUC" => {}
                b"EOIE" => {
                    let said = data.get(..4).and_then(|said| said.try_into().ok()).map(u32::from_be_bytes);
                    if said.map(|said| said as usize) != Some(entries_end) {
                        return Err(INDEX_UNREADABLE);
                    }
                }
                b"IEOT" => check_blocks(data, starts)?,
                // Which of two git takes is not defined.
                b"UNTR" | b"FSMN" if self.caches.contains_key(&name) => return Err(INDEX_UNREADABLE),
                b"UNTR" | b"FSMN" => _ = self.caches.insert(name, data.to_vec()),
                _ => return Err(GitReadError("the index has an unknown extension")),
            }
        }
        Ok(())
    }

    /// Git commits a cached tree without looking at the entries that it stands for.
    fn check_cached_trees(&self, data: &[u8]) -> Result<(), GitReadError> {
        let staged: Vec<(&[u8], &GitIndexEntry)> = self
            .entries
            .iter()
            .filter(|((_, stage), entry)| *stage == 0 && !entry.intent_to_add)
            .map(|((path, _), entry)| (path.as_slice(), entry))
            .collect();
        let mut trees = BTreeMap::new();
        hash_tree(&staged, b"", &mut trees)?;
        let mut reader = GitIndexReader::new(data);
        check_cached(&mut reader, &mut Vec::new(), &trees, 0)?;
        if reader.position == data.len() { Ok(()) } else { Err(INDEX_UNREADABLE) }
    }
}

/// The trees that entries make, by path. Entries are sorted as bytes, so those of one directory are together.
fn hash_tree(
    entries: &[(&[u8], &GitIndexEntry)],
    prefix: &[u8],
    trees: &mut BTreeMap<Vec<u8>, GitOid>,
) -> Result<GitOid, GitReadError> {
    if prefix.iter().filter(|byte| **byte == b'/').count() > 256 {
        return Err(GitReadError("the index is too deep"));
    }
    let mut children: Vec<(Vec<u8>, u32, GitOid)> = Vec::new();
    let mut at = 0;
    while let Some((path, entry)) = entries.get(at) {
        let name = path.get(prefix.len()..).ok_or(INDEX_UNREADABLE)?;
        match name.iter().position(|byte| *byte == b'/') {
            None => {
                children.push((name.to_vec(), entry.mode, entry.oid));
                at += 1;
            }
            Some(slash) => {
                let below = path.get(..=prefix.len() + slash).ok_or(INDEX_UNREADABLE)?;
                let count = entries.iter().skip(at).take_while(|(path, _)| path.starts_with(below)).count();
                let oid = hash_tree(entries.get(at..at + count).ok_or(INDEX_UNREADABLE)?, below, trees)?;
                children.push((name.get(..slash).ok_or(INDEX_UNREADABLE)?.to_vec(), 0o040_000, oid));
                at += count;
            }
        }
    }
    let key = |(name, mode, _): &(Vec<u8>, u32, GitOid)| {
        let mut key = name.clone();
        if *mode == 0o040_000 {
            key.push(b'/');
        }
        key
    };
    children.sort_by_key(key);
    let mut data = Vec::new();
    for (name, mode, oid) in children {
        data.extend_from_slice(format!("{mode:o} ").as_bytes());
        data.extend_from_slice(&name);
        data.push(0);
        data.extend_from_slice(&oid);
    }
    let oid = oid_of("tree", &data);
    trees.insert(prefix.to_vec(), oid);
    Ok(oid)
}

fn check_cached(
    reader: &mut GitIndexReader<'_>,
    prefix: &mut Vec<u8>,
    trees: &BTreeMap<Vec<u8>, GitOid>,
    depth: usize,
) -> Result<(), GitReadError> {
    if depth > 256 {
        return Err(INDEX_UNREADABLE);
    }
    let length = prefix.len();
    let name = reader.take_until(0)?;
    prefix.extend_from_slice(name);
    if depth > 0 {
        prefix.push(b'/');
    }
    let number =
        |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()).ok_or(INDEX_UNREADABLE);
    let count = number(reader.take_until(b' ')?)?;
    let children = number(reader.take_until(b'\n')?)?;
    // One that is not valid any more has a count below zero, and no tree.
    if count >= 0 {
        let said = reader.take(20)?;
        if trees.get(prefix.as_slice()).is_none_or(|tree| tree != said) {
            return Err(GitReadError("the index caches a tree that does not match its entries"));
        }
    }
    for _ in 0..children {
        check_cached(reader, prefix, trees, depth + 1)?;
    }
    prefix.truncate(length);
    Ok(())
}

/// Offset of an entry.
struct GitIndexEntryStart {
    offset: usize,
    /// Its path has nothing in common with the one before.
    is_whole: bool,
}

/// Git reads blocks of entries side by side where the index says that they begin, and the first path of a block without
/// what it has in common with the path before.
fn check_blocks(data: &[u8], starts: &[GitIndexEntryStart]) -> Result<(), GitReadError> {
    let mut reader = GitIndexReader::new(data);
    if reader.read_u32()? != 1 {
        return Err(INDEX_UNREADABLE);
    }
    let mut at = 0usize;
    while reader.position < data.len() {
        let (offset, count) = (reader.read_u32()?, reader.read_u32()?);
        if !starts.get(at).is_some_and(|start| start.is_whole && usize::try_from(offset) == Ok(start.offset)) {
            return Err(INDEX_UNREADABLE);
        }
        at += count as usize;
    }
    if at == starts.len() { Ok(()) } else { Err(INDEX_UNREADABLE) }
}

struct GitIndexReader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Bytes that the last path shares with the one before.
    shared_prefix: usize,
}

impl<'a> GitIndexReader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, shared_prefix: 0 }
    }

    /// The version, and the number of entries.
    fn header(&mut self) -> Result<(u32, u32), GitReadError> {
        if self.take(4)? != b"DIRC" {
            return Err(INDEX_UNREADABLE);
        }
        let version = self.read_u32()?;
        if !(2..=4).contains(&version) {
            return Err(GitReadError("unsupported index version"));
        }
        Ok((version, self.read_u32()?))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], GitReadError> {
        let end = self.position.checked_add(length).ok_or(INDEX_UNREADABLE)?;
        let taken = self.bytes.get(self.position..end).ok_or(INDEX_UNREADABLE)?;
        self.position = end;
        Ok(taken)
    }

    fn take_until(&mut self, end: u8) -> Result<&'a [u8], GitReadError> {
        let rest = self.bytes.get(self.position..).ok_or(INDEX_UNREADABLE)?;
        let length = rest.iter().position(|byte| *byte == end).ok_or(INDEX_UNREADABLE)?;
        self.position += length + 1;
        rest.get(..length).ok_or(INDEX_UNREADABLE)
    }

    fn read_u32(&mut self) -> Result<u32, GitReadError> {
        self.take(4)?.try_into().map(u32::from_be_bytes).map_err(|_| INDEX_UNREADABLE)
    }

    fn read_u16(&mut self) -> Result<u16, GitReadError> {
        self.take(2)?.try_into().map(u16::from_be_bytes).map_err(|_| INDEX_UNREADABLE)
    }

    fn entry(&mut self, version: u32, previous: &[u8]) -> Result<((Vec<u8>, u8), GitIndexEntry), GitReadError> {
        let start = self.position;
        self.take(24)?;
        let mode = self.read_u32()?;
        self.take(12)?;
        let oid = GitOid::try_from(self.take(20)?).map_err(|_| INDEX_UNREADABLE)?;
        let flags = self.read_u16()?;
        // Git reads these flags in an index of any version, and writes them in the later ones alone.
        let extended = if flags & EXTENDED != 0 { self.read_u16()? } else { 0 };
        if flags & EXTENDED != 0 && version < 3 || extended & !(SKIP_WORKTREE | INTENT_TO_ADD) != 0 {
            return Err(INDEX_UNREADABLE);
        }
        let path = match version {
            4 => {
                let removed = usize::try_from(self.read_varint()?).map_err(|_| INDEX_UNREADABLE)?;
                self.shared_prefix = previous.len().checked_sub(removed).ok_or(INDEX_UNREADABLE)?;
                let suffix = self.take_until(0)?;
                [previous.get(..self.shared_prefix).ok_or(INDEX_UNREADABLE)?, suffix].concat()
            }
            _ => {
                let path = self.take_until(0)?.to_vec();
                // Up to eight bytes end an entry at a multiple of eight.
                let length = (self.position - 1 - start + 8) & !7;
                self.position = start + length;
                path
            }
        };
        let said = usize::from(flags & 0xfff);
        let is_known = matches!(mode, 0o100_644 | 0o100_755 | 0o120_000 | 0o160_000);
        if path.is_empty() || !is_known || (said < 0xfff && said != path.len()) {
            return Err(INDEX_UNREADABLE);
        }
        let stage = u8::try_from(flags >> 12 & 3).map_err(|_| INDEX_UNREADABLE)?;
        let is_hidden = flags & ASSUME_VALID != 0 || extended & SKIP_WORKTREE != 0;
        let entry = GitIndexEntry { mode, oid, is_hidden, intent_to_add: extended & INTENT_TO_ADD != 0 };
        Ok(((path, stage), entry))
    }

    fn read_varint(&mut self) -> Result<u64, GitReadError> {
        let mut byte = *self.take(1)?.first().ok_or(INDEX_UNREADABLE)?;
        let mut value = u64::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            byte = *self.take(1)?.first().ok_or(INDEX_UNREADABLE)?;
            value = (value + 1).checked_mul(128).ok_or(INDEX_UNREADABLE)? | u64::from(byte & 0x7f);
        }
        Ok(value)
    }
}
