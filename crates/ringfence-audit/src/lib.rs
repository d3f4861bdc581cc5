//! The audit log: a tamper-evident hash chain of records.
//!
//! Each line carries the hash of the exact bytes of the one before. Now and then, and when a process closes, the last
//! line's hash is signed: a chain alone could be truncated or rewritten from the start, which a copy of a signed head
//! on another system shows. Several processes append to one chain under a lock. A log that is removed or replaced while
//! it is open takes no further record, and so no further call is made.
//!
//! Not here: when a record is made (the kernel's `CallServices`), and how it is displayed (the fronts).

mod keys;
mod verify;
mod vocabulary;
mod writer;

pub use verify::{AuditChainError, AuditVerification, ExternalAuditHead, read_known_heads, verify};
pub use vocabulary::{RECORD_VERSION, to_current_vocabulary};
pub use writer::{AuditLog, AuditOpenError, BeginDurability};

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_sys::own_files::{SAFE_OPEN, names_in, open_state_dir};
use ringfence_sys::syscall::openat;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::keys::to_hex;

/// The files of the log, in a directory of our own.
const LOCK: &str = "lock";
const HEADS: &str = "heads.jsonl";
const SECRET_KEY: &str = "key";
const PUBLIC_KEY: &str = "key.pub";

/// The previous hash of the first line.
const GENESIS_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Directory of the log, below the state directory.
const DIRECTORY: &str = "audit";

/// Beside that directory: every signed head once more, so that a log that was removed or cut is missed.
const ANCHOR: &str = "audit-heads.jsonl";

/// Every record there is, a line each, the oldest first.
pub fn read_records(state: &Path, mut take: impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
    let directory = open_state_dir(state, DIRECTORY)?;
    for segment in segments(&directory)? {
        let file = open_file(&directory, &segment_name(segment), OFlags::RDONLY)?;
        for line in BufReader::new(File::from(file)).lines() {
            take(&line?)?;
        }
    }
    Ok(())
}

/// The numbers of the segments, in order.
fn segments(directory: &OwnedFd) -> io::Result<Vec<u64>> {
    let names = names_in(directory.as_fd(), usize::MAX)?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.strip_suffix(".jsonl")?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn segment_name(number: u64) -> String {
    format!("{number:06}.jsonl")
}

/// The fields of every line that link the chain.
#[derive(Debug, Deserialize)]
struct ChainLink {
    seq: u64,
    prev: String,
}

impl ChainLink {
    /// The link of a record. `Unsupported` if a newer version wrote it, whose fields may mean something else.
    fn parse(line: &[u8]) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct RecordVersion {
            v: u64,
        }
        if let Ok(RecordVersion { v: found }) = serde_json::from_slice(line)
            && found > RECORD_VERSION
        {
            let message = format!(
                "it has records of version {found}, and this ringfence supports up to {RECORD_VERSION}; install the newer \
                 version, or use another state directory"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        Ok(serde_json::from_slice(line)?)
    }
}

/// A signed word about how far the chain reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct SignedHead {
    seq: u64,
    hash: String,
    ts: String,
    sig: String,
}

impl SignedHead {
    fn message(seq: u64, hash: &str, ts: &str) -> String {
        format!("ringfence audit head v1\n{seq}\n{hash}\n{ts}\n")
    }
}

fn line_hash(line: &[u8]) -> String {
    to_hex(&Sha256::digest(line))
}

fn open_file(directory: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(directory, name, flags | OFlags::NOFOLLOW | SAFE_OPEN, Mode::RUSR | Mode::WUSR)
}
