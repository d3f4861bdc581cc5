//! SHA-256 digests, and a cache of them.
//!
//! A large file is hashed once and remembered by its identity, size and times. A file that was changed within
//! the last seconds is not remembered: its times could stay the same through the next change.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ErrorKind, ToolError};
use sha2::{Digest as _, Sha256};

use crate::sys::stat::{FileId, FileStat};

/// Times are trusted when they are older than this, in nanoseconds.
const TRUSTED_AGE_NANOS: i128 = 2_000_000_000;

/// More files than this and the oldest memories go.
const MAX_CACHED: usize = 4096;

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(crate) fn bytes(self) -> [u8; 32] {
        self.0
    }

    pub(crate) fn to_hex(self) -> String {
        Self::hex(&self.0)
    }

    /// Bytes as lower-case hexadecimal digits.
    pub(crate) fn hex(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }

    /// Parses what a caller gave as `field`. Upper case is taken too.
    pub(crate) fn from_hex(field: &'static str, text: &str) -> Result<Self, ToolError> {
        let mut digest = [0u8; 32];
        let valid = text.len() == 64
            && text.as_bytes().chunks(2).zip(&mut digest).all(|(pair, byte)| {
                let digits = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|c| c.is_ascii_hexdigit()));
                digits.and_then(|pair| u8::from_str_radix(pair, 16).ok()).map(|value| *byte = value).is_some()
            });
        if valid { Ok(Self(digest)) } else { Err(ToolError::invalid(field, "must be 64 hexadecimal digits")) }
    }
}

/// A short name for bytes, the same for the same bytes: half of their SHA-256.
pub fn content_id(bytes: &[u8]) -> String {
    let mut hex = Digest::of(bytes).to_hex();
    hex.truncate(32);
    hex
}

/// A digest in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sha256Hasher(Sha256);

impl Sha256Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// The digests of large files that were hashed before.
#[derive(Debug, Default)]
pub(crate) struct DigestCache {
    cache: Mutex<HashMap<FileId, (FileStat, Digest)>>,
}

impl DigestCache {
    pub(crate) fn lookup(&self, stamp: &FileStat) -> Option<Digest> {
        let known = self.cache.lock();
        known.get(&stamp.id).filter(|(of, _)| of == stamp).map(|(_, digest)| *digest)
    }

    pub(crate) fn insert(&self, stamp: &FileStat, digest: Digest) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos().cast_signed());
        if now - stamp.modified.max(stamp.changed) < TRUSTED_AGE_NANOS {
            return;
        }
        let mut known = self.cache.lock();
        if known.len() >= MAX_CACHED {
            known.clear();
        }
        known.insert(stamp.id, (*stamp, digest));
    }
}

/// Refuses a change whose caller saw other contents than there are.
pub(crate) fn check_match(shown: &str, expected: Option<Digest>, current: Option<Digest>) -> Result<(), ToolError> {
    let Some(expected) = expected else { return Ok(()) };
    if current == Some(expected) {
        return Ok(());
    }
    let message = match current {
        Some(_) => format!("`{shown}` does not match ifMatchSha256: it changed since it was read"),
        None => format!("`{shown}` does not exist, but ifMatchSha256 is set"),
    };
    let error = ToolError::new(ErrorKind::Conflict, message).hint("read it again");
    Err(match current {
        Some(current) => error.detail("sha256", current.to_hex()),
        None => error,
    })
}

#[cfg(test)]
mod tests {
    use super::{Digest, Sha256Hasher};

    #[test]
    fn a_digest_is_read_back_in_either_case_and_nothing_else_is() {
        let digest = Digest::of(b"abc");
        let hex = digest.to_hex();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::from_hex("f", &hex).unwrap(), digest);
        assert_eq!(Digest::from_hex("f", &hex.to_uppercase()).unwrap(), digest);
        for bad in [
            "",
            "abc",
            &hex[1..],
            &format!("sha256:{hex}"),
            &hex.replace('b', "g"),
            &hex.replace("ba", "+a"),
            &"é".repeat(32),
        ] {
            Digest::from_hex("f", bad).unwrap_err();
        }
    }

    #[test]
    fn parts_hash_like_the_whole() {
        let mut hasher = Sha256Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish(), Digest::of(b"abc"));
    }
}
