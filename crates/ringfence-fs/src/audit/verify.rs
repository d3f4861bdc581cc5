//! Checking the chain: every link, every signed head, the end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::keys::{is_signed, public_key};
use super::writer::{hold, release};
use super::{
    ANCHOR, DIRECTORY, HEADS, Head, LOCK, Link, NOTHING, hash_of, open_file, open_state, segment_name, segments,
};
use crate::again::fstat;
use crate::fence::open_own;
use crate::stamp::Stamp;

/// What was found to be true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub records: u64,
    /// The last record that a signed head covers.
    pub signed: u64,
    /// The hash of the last record, to be kept elsewhere together with its number.
    pub hash: String,
}

/// A head that was kept elsewhere: a record's number and hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHead {
    pub number: u64,
    pub hash: String,
}

/// The first thing that is not true.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("{file}, line {line}: {problem}")]
    Record { file: String, line: u64, problem: &'static str },
    #[error("signed head {0}: {1}")]
    Head(u64, &'static str),
    #[error("the log ends at record {end}, and a head says that it reached {head}: the end was cut off")]
    Cut { end: u64, head: u64 },
    #[error("the second place has no head at all")]
    NoHeads,
    #[error("the audit log cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// Checks the log below `state`. `known` are heads that were kept elsewhere.
pub fn verify(state: &Path, known: &[KnownHead]) -> Result<Verified, Broken> {
    let directory = open_own(state, DIRECTORY)?;
    // Before the log itself: a process that appends meanwhile adds to both.
    let anchored = read_anchor(state)?;
    let Snapshot { segments, heads } = Snapshot::take(&directory)?;
    let mut wanted: HashMap<u64, Vec<String>> = HashMap::new();
    let signed = heads.iter().map(|head| head.seq).max().unwrap_or(0);
    let heads = heads.into_iter().map(|head| KnownHead { number: head.seq, hash: head.hash });
    for KnownHead { number, hash } in heads.chain(anchored).chain(known.iter().cloned()) {
        wanted.entry(number).or_default().push(hash);
    }
    let mut chain = Chain { seq: 0, hash: NOTHING.to_owned(), wanted };
    for (index, (segment, length)) in segments.into_iter().enumerate() {
        let file = segment_name(segment);
        if segment != index as u64 + 1 {
            return Err(Broken::Record { file, line: 1, problem: "a segment before this one is missing" });
        }
        chain.read(&directory, &file, length)?;
    }
    let furthest = chain.wanted.keys().copied().max().unwrap_or(0);
    if furthest > chain.seq {
        return Err(Broken::Cut { end: chain.seq, head: furthest });
    }
    Ok(Verified { records: chain.seq, signed, hash: chain.hash })
}

/// The heads that stand beside the log. None where an earlier version wrote it, or where there never was one.
fn read_anchor(state: &Path) -> Result<Vec<KnownHead>, Broken> {
    match open_file(&open_state(state)?, ANCHOR, OFlags::RDONLY) {
        Err(Errno::NOENT) => Ok(Vec::new()),
        Err(errno) => Err(Broken::Read(errno.into())),
        Ok(file) => match read_known_heads(BufReader::new(File::from(file))) {
            // It is made before its first line is.
            Err(Broken::NoHeads) => Ok(Vec::new()),
            read => read,
        },
    }
}

/// Reads heads that were sent to a second place, a line each. They are compared with the log as they are: whoever could
/// write the log anew could sign it anew too.
pub fn read_known_heads(mut second: impl BufRead) -> Result<Vec<KnownHead>, Broken> {
    let mut heads = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        second.read_until(b'\n', &mut line)?;
        // A dying process may have left the last one incomplete; it says nothing.
        let Some(text) = line.strip_suffix(b"\n") else { break };
        if !text.is_empty() {
            let head: Head = serde_json::from_slice(text).map_err(|_| Broken::Head(number, "it is not a head"))?;
            heads.push(KnownHead { number: head.seq, hash: head.hash });
        }
    }
    if heads.is_empty() { Err(Broken::NoHeads) } else { Ok(heads) }
}

/// What there is at one moment between two records, so that calls can go on while it is checked.
struct Snapshot {
    /// Numbers and lengths.
    segments: Vec<(u64, u64)>,
    heads: Vec<Head>,
}

impl Snapshot {
    fn take(directory: &OwnedFd) -> Result<Self, Broken> {
        let lock = open_file(directory, LOCK, OFlags::RDWR | OFlags::CREATE).map_err(io::Error::from)?;
        hold(&lock)?;
        let length = |number: u64| {
            let file = open_file(directory, &segment_name(number), OFlags::RDONLY)?;
            Ok((number, Stamp::of(&fstat(&file)?).size))
        };
        let segments = segments(directory).and_then(|numbers| numbers.into_iter().map(length).collect());
        let heads = read_heads(directory);
        release(&lock);
        Ok(Self { segments: segments?, heads: heads? })
    }
}

struct Chain {
    seq: u64,
    hash: String,
    /// Records that somebody vouched for.
    wanted: HashMap<u64, Vec<String>>,
}

impl Chain {
    fn read(&mut self, directory: &OwnedFd, file: &str, length: u64) -> Result<(), Broken> {
        let opened = open_file(directory, file, OFlags::RDONLY).map_err(io::Error::from)?;
        let mut reader = BufReader::new(File::from(opened).take(length));
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let broken = |problem| Broken::Record { file: file.to_owned(), line: number, problem };
            let Some(text) = line.strip_suffix(b"\n") else { return Err(broken("it is not complete")) };
            let link: Link = serde_json::from_slice(text).map_err(|_| broken("it is not a record"))?;
            if link.seq != self.seq + 1 {
                return Err(broken("its number does not follow the one before"));
            }
            if link.prev != self.hash {
                return Err(broken("it does not follow from the one before, which was changed"));
            }
            self.seq = link.seq;
            self.hash = hash_of(text);
            if self.wanted.get(&self.seq).is_some_and(|hashes| hashes.iter().any(|hash| *hash != self.hash)) {
                return Err(broken("it is not the record that the signed head is about"));
            }
        }
        Ok(())
    }
}

fn read_heads(directory: &OwnedFd) -> Result<Vec<Head>, Broken> {
    let opened = match open_file(directory, HEADS, OFlags::RDONLY) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(Broken::Read(errno.into())),
    };
    let key = public_key(directory)?;
    let mut heads: Vec<Head> = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(File::from(opened)).lines()) {
        let head: Head = serde_json::from_str(&line?).map_err(|_| Broken::Head(number, "it is not a head"))?;
        if !is_signed(&head, &key) {
            return Err(Broken::Head(number, "its signature is not ours"));
        }
        if heads.last().is_some_and(|before| before.seq > head.seq) {
            return Err(Broken::Head(number, "it is older than the one before"));
        }
        heads.push(head);
    }
    Ok(heads)
}
