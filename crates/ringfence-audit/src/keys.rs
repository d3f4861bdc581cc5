//! Audit log keys: one signs heads, one keys the hashes of contents.
//!
//! They are made at the first use, in a file that only its owner may read. With them one can forge a log; a head that
//! was copied to another system before cannot be changed by that.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ringfence_sys::own_files::write_all;
use ringfence_sys::syscall::{fsync, renameat};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sha2::Sha256;

use crate::{PUBLIC_KEY, SECRET_KEY, SignedHead, open_file};

const KEY_BYTES: usize = 32;

pub(super) struct AuditKeys {
    signing_key: SigningKey,
    hmac_key: [u8; KEY_BYTES],
}

impl AuditKeys {
    /// The keys of this log, made if it has none. To be called under its lock.
    pub(super) fn load(directory: &OwnedFd) -> io::Result<Self> {
        let mut bytes = Vec::new();
        match open_file(directory, SECRET_KEY, OFlags::RDONLY) {
            Ok(file) => {
                File::from(file).take(1024).read_to_end(&mut bytes)?;
            }
            Err(Errno::NOENT) => bytes = Self::generate(directory)?,
            Err(errno) => return Err(errno.into()),
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the key of the audit log is damaged");
        let (signing, hiding) = bytes.split_at_checked(KEY_BYTES).ok_or_else(damaged)?;
        let signing: &[u8; KEY_BYTES] = signing.try_into().map_err(|_| damaged())?;
        Ok(Self { signing_key: SigningKey::from_bytes(signing), hmac_key: hiding.try_into().map_err(|_| damaged())? })
    }

    fn generate(directory: &OwnedFd) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 2 * KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|_| io::Error::other("the system's random number generator failed"))?;
        // Whole or not at all: a truncated key would make every later start fail.
        let put = |name: &str, bytes: &[u8]| {
            let fresh = format!("{name}.new");
            let file = open_file(directory, &fresh, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
            write_all(file.as_fd(), bytes)?;
            fsync(&file)?;
            renameat(directory, &fresh, directory, name)
        };
        let signing: &[u8; KEY_BYTES] = bytes[..KEY_BYTES].try_into().map_err(|_| Errno::INVAL)?;
        // The public half first: a secret key without it would be taken as complete.
        put(PUBLIC_KEY, to_hex(SigningKey::from_bytes(signing).verifying_key().as_bytes()).as_bytes())?;
        put(SECRET_KEY, &bytes)?;
        Ok(bytes)
    }

    pub(super) fn sign(&self, seq: u64, hash: &str, ts: &str) -> SignedHead {
        let signature = self.signing_key.sign(SignedHead::message(seq, hash, ts).as_bytes());
        SignedHead { seq, hash: hash.to_owned(), ts: ts.to_owned(), sig: to_hex(&signature.to_bytes()) }
    }

    /// A keyed hash: equal contents can be compared, contents cannot be guessed without the key.
    pub(super) fn hmac(&self, text: &str) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.hmac_key) else { return String::new() };
        mac.update(text.as_bytes());
        let mut hex = to_hex(&mac.finalize().into_bytes());
        hex.truncate(32);
        hex
    }
}

/// The public key that heads are verified with.
pub(super) fn public_key(directory: &OwnedFd) -> io::Result<VerifyingKey> {
    let mut hex = String::new();
    File::from(open_file(directory, PUBLIC_KEY, OFlags::RDONLY)?).take(1024).read_to_string(&mut hex)?;
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the public key of the audit log is damaged");
    let bytes = from_hex::<KEY_BYTES>(hex.trim()).ok_or_else(damaged)?;
    VerifyingKey::from_bytes(&bytes).map_err(|_| damaged())
}

pub(super) fn is_signature_valid(head: &SignedHead, key: &VerifyingKey) -> bool {
    let Some(signature) = from_hex::<64>(&head.sig) else { return false };
    let message = SignedHead::message(head.seq, &head.hash, &head.ts);
    key.verify_strict(message.as_bytes(), &Signature::from_bytes(&signature)).is_ok()
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    // One spelling only: a letter in the other case is another file.
    if text.len() != 2 * N || !text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
