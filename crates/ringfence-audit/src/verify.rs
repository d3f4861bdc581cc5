//! Audit log verification: every link, every signed head, the end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use ringfence_sys::own_files::{acquire_lock, open_state, open_state_dir, release_lock};
use ringfence_sys::stat::FileStat;
use ringfence_sys::syscall::fstat;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::keys::{is_signature_valid, public_key};
use crate::{
    ANCHOR, ChainLink, DIRECTORY, GENESIS_HASH, HEADS, LOCK, SignedHead, line_hash, open_file, segment_name, segments,
};

/// A successful verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditVerification {
    pub records: u64,
    /// The last record that a signed head covers.
    pub last_signed: u64,
    /// The hash of the last record, to be stored on another system together with its number.
    pub hash: String,
}

/// A head that was stored on another system: a record's number and hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAuditHead {
    pub number: u64,
    pub hash: String,
}

/// The first thing that is not true.
#[derive(Debug, thiserror::Error)]
pub enum AuditChainError {
    #[error("{file}, line {line}: {problem}")]
    Record { file: String, line: u64, problem: &'static str },
    #[error("signed head {0}: {1}")]
    Head(u64, &'static str),
    #[error("the log ends at record {end}, but a signed head is at record {head}: the end was cut off")]
    Truncated { end: u64, head: u64 },
    #[error("the second location has no signed heads")]
    NoHeads,
    #[error("the audit log cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// Checks the log below `state`. `known` are heads that were stored on another system.
pub fn verify(state: &Path, known: &[ExternalAuditHead]) -> Result<AuditVerification, AuditChainError> {
    let directory = open_state_dir(state, DIRECTORY)?;
    // Before the log itself: a process that appends meanwhile adds to both.
    let anchored = read_anchor(state)?;
    let AuditSnapshot { segments, heads } = AuditSnapshot::take(&directory)?;
    let mut wanted: HashMap<u64, Vec<String>> = HashMap::new();
    let signed = heads.iter().map(|head| head.seq).max().unwrap_or(0);
    let heads = heads.into_iter().map(|head| ExternalAuditHead { number: head.seq, hash: head.hash });
    for ExternalAuditHead { number, hash } in heads.chain(anchored).chain(known.iter().cloned()) {
        wanted.entry(number).or_default().push(hash);
    }
    let mut chain = ChainVerifier { seq: 0, hash: GENESIS_HASH.to_owned(), expected_hashes: wanted };
    for (index, (segment, length)) in segments.into_iter().enumerate() {
        let file = segment_name(segment);
        if segment != index as u64 + 1 {
            return Err(AuditChainError::Record { file, line: 1, problem: "the previous segment is missing" });
        }
        chain.read(&directory, &file, length)?;
    }
    let furthest = chain.expected_hashes.keys().copied().max().unwrap_or(0);
    if furthest > chain.seq {
        return Err(AuditChainError::Truncated { end: chain.seq, head: furthest });
    }
    Ok(AuditVerification { records: chain.seq, last_signed: signed, hash: chain.hash })
}

/// The heads that stand beside the log. None where an earlier version wrote it, or where there never was one.
fn read_anchor(state: &Path) -> Result<Vec<ExternalAuditHead>, AuditChainError> {
    match open_file(&open_state(state)?, ANCHOR, OFlags::RDONLY) {
        Err(Errno::NOENT) => Ok(Vec::new()),
        Err(errno) => Err(AuditChainError::Read(errno.into())),
        Ok(file) => match read_known_heads(BufReader::new(File::from(file))) {
            // It is made before its first line is.
            Err(AuditChainError::NoHeads) => Ok(Vec::new()),
            read => read,
        },
    }
}

/// Reads copies of heads, a line each. They are compared with the log as they are: a party that could rewrite the log
/// could sign it again too.
pub fn read_known_heads(mut second: impl BufRead) -> Result<Vec<ExternalAuditHead>, AuditChainError> {
    let mut heads = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        second.read_until(b'\n', &mut line)?;
        // A dying process may have left the last one incomplete; it says nothing.
        let Some(text) = line.strip_suffix(b"\n") else { break };
        if !text.is_empty() {
            let head: SignedHead =
                serde_json::from_slice(text).map_err(|_| AuditChainError::Head(number, "not a head"))?;
            heads.push(ExternalAuditHead { number: head.seq, hash: head.hash });
        }
    }
    if heads.is_empty() { Err(AuditChainError::NoHeads) } else { Ok(heads) }
}

/// A snapshot of the log between two records, so that calls can go on while it is checked.
struct AuditSnapshot {
    /// Numbers and lengths.
    segments: Vec<(u64, u64)>,
    heads: Vec<SignedHead>,
}

impl AuditSnapshot {
    fn take(directory: &OwnedFd) -> Result<Self, AuditChainError> {
        let lock = open_file(directory, LOCK, OFlags::RDWR | OFlags::CREATE).map_err(io::Error::from)?;
        acquire_lock(&lock)?;
        let length = |number: u64| {
            let file = open_file(directory, &segment_name(number), OFlags::RDONLY)?;
            Ok((number, FileStat::from_stat(&fstat(&file)?).size))
        };
        let segments = segments(directory).and_then(|numbers| numbers.into_iter().map(length).collect());
        let heads = read_heads(directory);
        release_lock(&lock);
        Ok(Self { segments: segments?, heads: heads? })
    }
}

struct ChainVerifier {
    seq: u64,
    hash: String,
    /// Hashes of records that heads attest.
    expected_hashes: HashMap<u64, Vec<String>>,
}

impl ChainVerifier {
    fn read(&mut self, directory: &OwnedFd, file: &str, length: u64) -> Result<(), AuditChainError> {
        let opened = open_file(directory, file, OFlags::RDONLY).map_err(io::Error::from)?;
        let mut reader = BufReader::new(File::from(opened).take(length));
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let broken = |problem| AuditChainError::Record { file: file.to_owned(), line: number, problem };
            let Some(text) = line.strip_suffix(b"\n") else { return Err(broken("the record is incomplete")) };
            let link = ChainLink::parse(text).map_err(|error| match error.kind() {
                io::ErrorKind::Unsupported => AuditChainError::Read(error),
                _ => broken("not a record"),
            })?;
            if link.seq != self.seq + 1 {
                return Err(broken("the sequence number does not follow the previous record"));
            }
            if link.prev != self.hash {
                return Err(broken("the hash does not match the previous record, which was changed"));
            }
            self.seq = link.seq;
            self.hash = line_hash(text);
            if self.expected_hashes.get(&self.seq).is_some_and(|hashes| hashes.iter().any(|hash| *hash != self.hash)) {
                return Err(broken("the record does not match its signed head"));
            }
        }
        Ok(())
    }
}

fn read_heads(directory: &OwnedFd) -> Result<Vec<SignedHead>, AuditChainError> {
    let opened = match open_file(directory, HEADS, OFlags::RDONLY) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(AuditChainError::Read(errno.into())),
    };
    let key = public_key(directory)?;
    let mut heads: Vec<SignedHead> = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(File::from(opened)).lines()) {
        let head: SignedHead = serde_json::from_str(&line?).map_err(|_| AuditChainError::Head(number, "not a head"))?;
        if !is_signature_valid(&head, &key) {
            return Err(AuditChainError::Head(number, "the signature is not valid"));
        }
        if heads.last().is_some_and(|before| before.seq > head.seq) {
            return Err(AuditChainError::Head(number, "it is older than the previous head"));
        }
        heads.push(head);
    }
    Ok(heads)
}
