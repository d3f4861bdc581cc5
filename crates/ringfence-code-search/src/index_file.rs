//! Index files: an index of symbols in the state directory.
//!
//! A file is read whole or not at all: its checksum covers everything. It is replaced at once, under a lock, by a process that
//! has a better one, so any number of processes can use one state directory. A file of a newer version is left alone.
//!
//! Not here: which files of a workspace are indexed (`workspace_index.rs`).

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use ringfence_fs::SourceStamp;
use ringfence_sys::own_files::{names_in, open_own_file, open_state_dir, write_all};
use ringfence_sys::syscall::{flock, ftruncate, renameat, statat, unlinkat};
use rustix::fs::{AtFlags, FlockOperation, OFlags};

use crate::corpus::{CorpusFile, CorpusSymbol, SymbolCorpus};
use crate::language::SourceLanguage;
use crate::model::DIMENSIONS;
use crate::posting_list::{Posting, PostingList};
use crate::symbol::SymbolKind;
use crate::workspace_index::{IndexEntry, WorkspaceIndex};

/// Directory of the indexes, below the state directory.
const DIRECTORY: &str = "code-search";

const MAGIC: &[u8; 8] = b"RFCSINDX";

/// The version of the format. Another parser or tokenizer is another version too.
const VERSION: u32 = 1;

/// Bytes of a file.
const MAX_BYTES: u64 = 400 << 20;

/// Indexes in a state directory. The one that was written longest ago goes.
const MAX_INDEXES: usize = 32;

/// Where indexes are kept.
#[derive(Clone, Debug)]
pub(crate) struct IndexDirectory {
    state: PathBuf,
}

/// What is in the state directory for a workspace.
#[derive(Debug)]
pub(crate) enum StoredIndex {
    Found(Box<WorkspaceIndex>),
    /// None, or one that cannot be used and is replaced.
    Missing,
    /// One of a newer version, which is not replaced.
    Newer,
}

/// Failure to decode.
#[derive(Debug, PartialEq, Eq)]
struct DamagedIndex;

impl IndexDirectory {
    pub(crate) fn new(state: PathBuf) -> Self {
        Self { state }
    }

    /// Reads the index of a mount that was made with this model.
    pub(crate) fn load(&self, mount_id: &str, model_id: u32) -> StoredIndex {
        let read = || -> io::Result<Vec<u8>> {
            let file = open_own_file(&self.open()?, Path::new(&file_name(mount_id)), OFlags::empty())?;
            let mut bytes = Vec::new();
            File::from(file).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let Ok(bytes) = read() else { return StoredIndex::Missing };
        match decode(&bytes, mount_id, model_id) {
            Ok(stored) => stored,
            Err(DamagedIndex) => StoredIndex::Missing,
        }
    }

    /// Tells one stored index from a later one.
    pub(crate) fn stamp(&self, mount_id: &str) -> Option<(u64, i64, i64)> {
        let stat = statat(self.open().ok()?, file_name(mount_id), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        #[expect(clippy::useless_conversion, reason = "types differ between architectures")]
        Some((stat.st_ino.into(), stat.st_mtime.into(), stat.st_mtime_nsec.try_into().ok()?))
    }

    /// Replaces the index of a mount. False if another process is doing that.
    pub(crate) fn save(&self, mount_id: &str, model_id: u32, index: &WorkspaceIndex) -> io::Result<bool> {
        let directory = self.open()?;
        let lock = open_own_file(&directory, Path::new("lock"), OFlags::CREATE)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        let temporary = Path::new("new");
        let file = open_own_file(&directory, temporary, OFlags::CREATE)?;
        ftruncate(&file, 0)?;
        write_all(file.as_fd(), &encode(index, mount_id, model_id))?;
        // What a power cut leaves of it has another checksum.
        renameat(&directory, temporary, &directory, file_name(mount_id))?;
        forget_oldest(&directory);
        Ok(true)
    }

    fn open(&self) -> io::Result<OwnedFd> {
        open_state_dir(&self.state, DIRECTORY)
    }
}

fn file_name(mount_id: &str) -> String {
    format!("{mount_id}.index")
}

/// Removes what is too many.
fn forget_oldest(directory: &OwnedFd) {
    let names = names_in(directory.as_fd(), 10_000).unwrap_or_default();
    let modified = |name: &str| statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| stat.st_mtime);
    let mut indexes: Vec<_> =
        names.into_iter().filter(|name| name.ends_with(".index")).map(|name| (modified(&name), name)).collect();
    indexes.sort();
    for (_, name) in indexes.iter().take(indexes.len().saturating_sub(MAX_INDEXES)) {
        // The next process tries again.
        let _ = unlinkat(directory, name.as_str(), AtFlags::empty());
    }
}

/// Symbol kinds by their numbers.
const KINDS: [SymbolKind; 13] = [
    SymbolKind::Function,
    SymbolKind::Method,
    SymbolKind::Struct,
    SymbolKind::Enum,
    SymbolKind::Union,
    SymbolKind::Trait,
    SymbolKind::Interface,
    SymbolKind::Class,
    SymbolKind::Module,
    SymbolKind::TypeAlias,
    SymbolKind::Constant,
    SymbolKind::Macro,
    SymbolKind::Definition,
];

/// Bytes before the payload: magic, version, checksum.
const HEADER: usize = 16;

fn encode(index: &WorkspaceIndex, mount_id: &str, model_id: u32) -> Vec<u8> {
    let mut writer = IndexWriter { bytes: Vec::new() };
    let WorkspaceIndex { corpus, entries, .. } = index;
    writer.text(mount_id);
    writer.number(u64::from(model_id));
    writer.length(corpus.stems.texts.len());
    corpus.stems.texts.iter().for_each(|stem| writer.text(stem));
    // Files and symbols that were removed are left out, and the others get new numbers.
    let files: Vec<(&CorpusFile, &IndexEntry)> = entries
        .values()
        .filter_map(|entry| Some((corpus.files.get(entry.file)?, entry)))
        .filter(|(file, _)| file.is_live)
        .collect();
    let mut numbers: Vec<Option<u32>> = vec![None; corpus.symbols.len()];
    let mut next = 0_u32;
    writer.length(files.len());
    let mut vectors = Vec::new();
    for (file, entry) in &files {
        writer.text(&file.path);
        writer.text(file.language.name());
        let SourceStamp { device, inode, size, modified, changed } = entry.stamp;
        for number in [device, inode, size, time_bits(modified), time_bits(changed), u64::from(entry.is_settled)] {
            writer.number(number);
        }
        let range = file.symbols.start as usize..file.symbols.end as usize;
        writer.length(range.len());
        for at in range.clone() {
            numbers[at] = Some(next);
            next += 1;
            let CorpusSymbol { name, owner, signature, kind, start_line, end_line, lengths, .. } = &corpus.symbols[at];
            [name, owner, signature].into_iter().for_each(|text| writer.text(text));
            writer.length(KINDS.iter().position(|known| known == kind).unwrap_or_default());
            writer.number(u64::from(*start_line));
            writer.number(u64::from(end_line.saturating_sub(*start_line)));
            lengths.iter().for_each(|length| writer.number(u64::from(*length)));
        }
        if !corpus.vectors.is_empty() {
            vectors.extend_from_slice(&corpus.vectors[range.start * DIMENSIONS..range.end * DIMENSIONS]);
        }
    }
    writer.length(vectors.len());
    writer.bytes.extend(vectors.iter().map(|value| value.cast_unsigned()));
    for at in 0..corpus.stems.texts.len() {
        let renumbered = |posting: Posting| Some((numbers[posting.symbol as usize]?, posting.packed));
        let lists = corpus.postings.get(at).into_iter();
        let mut kept: Vec<(u32, u32)> = lists.flat_map(PostingList::iter).filter_map(renumbered).collect();
        kept.sort_unstable();
        writer.length(kept.len());
        let mut before = 0;
        for (symbol, packed) in kept {
            writer.number(u64::from(symbol - before));
            writer.number(u64::from(packed));
            before = symbol;
        }
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(crc32fast::hash(&writer.bytes).to_le_bytes());
    bytes.append(&mut writer.bytes);
    bytes
}

fn decode(bytes: &[u8], mount_id: &str, model_id: u32) -> Result<StoredIndex, DamagedIndex> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if bytes.get(..MAGIC.len()) != Some(MAGIC) {
        return Err(DamagedIndex);
    }
    match word(MAGIC.len()) {
        Some(VERSION) => {}
        Some(newer) if newer > VERSION => return Ok(StoredIndex::Newer),
        _ => return Err(DamagedIndex),
    }
    let payload = bytes.get(HEADER..).ok_or(DamagedIndex)?;
    if word(MAGIC.len() + 4) != Some(crc32fast::hash(payload)) {
        return Err(DamagedIndex);
    }
    let mut reader = IndexReader { rest: payload };
    if reader.text()? != mount_id || reader.number()? != u64::from(model_id) {
        return Err(DamagedIndex);
    }
    let mut index = WorkspaceIndex::default();
    let WorkspaceIndex { corpus, entries, .. } = &mut index;
    let stems = reader.length()?;
    for _ in 0..stems {
        let stem = reader.text()?;
        corpus.stems.get_or_add(stem);
    }
    let files = reader.length()?;
    for _ in 0..files {
        read_file(&mut reader, corpus, entries)?;
    }
    let vectors = reader.length()?;
    if vectors != 0 && vectors != corpus.symbols.len() * DIMENSIONS {
        return Err(DamagedIndex);
    }
    corpus.vectors = reader.take(vectors)?.iter().map(|byte| byte.cast_signed()).collect();
    for _ in 0..stems {
        let count = reader.length()?;
        let mut list = PostingList::default();
        let mut symbol = 0_u32;
        for _ in 0..count {
            let step = u32::try_from(reader.number()?).map_err(|_| DamagedIndex)?;
            symbol = symbol.checked_add(step).ok_or(DamagedIndex)?;
            if symbol as usize >= corpus.symbols.len() {
                return Err(DamagedIndex);
            }
            let packed = u32::try_from(reader.number()?).map_err(|_| DamagedIndex)?;
            corpus.posted += list.push(Posting { symbol, packed });
        }
        corpus.postings.push(list);
    }
    if corpus.stems.texts.len() == stems && reader.rest.is_empty() {
        Ok(StoredIndex::Found(Box::new(index)))
    } else {
        Err(DamagedIndex)
    }
}

fn read_file(
    reader: &mut IndexReader<'_>,
    corpus: &mut SymbolCorpus,
    entries: &mut std::collections::HashMap<Box<str>, IndexEntry>,
) -> Result<(), DamagedIndex> {
    let path: Box<str> = reader.text()?.into();
    let language = SourceLanguage::by_name(reader.text()?).ok_or(DamagedIndex)?;
    let stamp = SourceStamp {
        device: reader.number()?,
        inode: reader.number()?,
        size: reader.number()?,
        modified: time_of(reader.number()?),
        changed: time_of(reader.number()?),
    };
    let is_settled = reader.number()? == 1;
    let first = corpus.next_symbol();
    let file = u32::try_from(corpus.files.len()).map_err(|_| DamagedIndex)?;
    for _ in 0..reader.length()? {
        let [name, owner, signature] = [reader.text()?, reader.text()?, reader.text()?].map(Box::from);
        let kind = *KINDS.get(reader.length()?).ok_or(DamagedIndex)?;
        let number = |reader: &mut IndexReader<'_>| u32::try_from(reader.number()?).map_err(|_| DamagedIndex);
        let start_line = number(reader)?;
        let end_line = start_line.checked_add(number(reader)?).ok_or(DamagedIndex)?;
        let mut lengths = [0; crate::symbol::FIELD_COUNT];
        for length in &mut lengths {
            *length = u16::try_from(reader.number()?).map_err(|_| DamagedIndex)?;
        }
        corpus.symbols.push(CorpusSymbol { name, owner, signature, kind, start_line, end_line, file, lengths });
    }
    let symbols = first..corpus.next_symbol();
    let file = corpus.push_file(CorpusFile { path: path.clone(), language, symbols, is_live: true });
    match entries.insert(path, IndexEntry { stamp, is_settled, file }) {
        None => Ok(()),
        Some(_) => Err(DamagedIndex),
    }
}

/// Times before 1970 count as the time itself.
fn time_bits(nanos: i128) -> u64 {
    u64::try_from(nanos).unwrap_or_default()
}

fn time_of(bits: u64) -> i128 {
    i128::from(bits)
}

struct IndexWriter {
    bytes: Vec<u8>,
}

impl IndexWriter {
    /// Seven bits a byte, the low ones first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn length(&mut self, length: usize) {
        self.number(length as u64);
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

struct IndexReader<'a> {
    rest: &'a [u8],
}

impl<'a> IndexReader<'a> {
    fn number(&mut self) -> Result<u64, DamagedIndex> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(DamagedIndex)?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DamagedIndex)
    }

    /// A number of things that follow, each of which has a byte at least.
    fn length(&mut self) -> Result<usize, DamagedIndex> {
        let length = usize::try_from(self.number()?).map_err(|_| DamagedIndex)?;
        if length <= self.rest.len() { Ok(length) } else { Err(DamagedIndex) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DamagedIndex> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(DamagedIndex)?;
        self.rest = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<&'a str, DamagedIndex> {
        let length = self.length()?;
        std::str::from_utf8(self.take(length)?).map_err(|_| DamagedIndex)
    }
}
