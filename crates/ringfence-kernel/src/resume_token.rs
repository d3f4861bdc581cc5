//! Resume tokens: authenticated, single-use references to a deferred call.
//!
//! A token holds the whole call and its preview. Its bearer can neither read nor change it: it is encrypted and
//! authenticated with the key of the store. Whether it is expired, used or another session's is checked once it is open
//! (`resume.rs`).

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};

/// The version is part of what is authenticated: a later form is never taken for this one.
const TOKEN_PREFIX: &str = "rf2.";
const NONCE_BYTES: usize = 24;

/// A call that waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResumeToken {
    /// The request in the store.
    pub(crate) request: String,
    pub(crate) call: String,
    pub(crate) tool: String,
    pub(crate) arguments: String,
    /// Of the plan that was shown, and of where it would happen.
    pub(crate) fingerprint: String,
    pub(crate) principal: String,
    pub(crate) session: String,
    #[serde(with = "crate::timestamp")]
    pub(crate) expires: SystemTime,
    /// Nonce for single use.
    pub(crate) nonce: String,
}

impl ResumeToken {
    /// The token. Nothing where the system gives no random bytes.
    pub(crate) fn seal(&self, key: &[u8; 32]) -> Option<String> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let text = serde_json::to_vec(self).ok()?;
        let payload = Payload { msg: &text, aad: TOKEN_PREFIX.as_bytes() };
        let hidden = XChaCha20Poly1305::new(key.into()).encrypt(&XNonce::from(nonce), payload).ok()?;
        Some(format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode([nonce.as_slice(), &hidden].concat())))
    }

    /// The contents of a token, if it was sealed with this key and is unchanged.
    pub(crate) fn open(token: &str, key: &[u8; 32]) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(token.strip_prefix(TOKEN_PREFIX)?).ok()?;
        let (nonce, hidden) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg: hidden, aad: TOKEN_PREFIX.as_bytes() };
        let text = XChaCha20Poly1305::new(key.into()).decrypt(&XNonce::from(*nonce), payload).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::ResumeToken;

    fn test_token() -> ResumeToken {
        ResumeToken {
            request: "a-1".to_owned(),
            call: "1".to_owned(),
            tool: "write_file".to_owned(),
            arguments: r#"{"path":"hidden file"}"#.to_owned(),
            fingerprint: "f".to_owned(),
            principal: "p".to_owned(),
            session: "s".to_owned(),
            expires: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            nonce: "n-1".to_owned(),
        }
    }

    #[test]
    fn a_sealed_token_opens_to_the_same_call() {
        let token = test_token().seal(&[7; 32]).unwrap();
        assert_eq!(ResumeToken::open(&token, &[7; 32]), Some(test_token()));
        assert_ne!(token, test_token().seal(&[7; 32]).unwrap());
    }

    #[test]
    fn a_token_is_unreadable_without_the_key() {
        use base64::Engine as _;
        let token = test_token().seal(&[7; 32]).unwrap();
        let bytes = super::URL_SAFE_NO_PAD.decode(token.trim_start_matches("rf2.")).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("hidden"));
        assert_eq!(ResumeToken::open(&token, &[8; 32]), None);
    }

    #[test]
    fn a_token_that_was_changed_or_cut_anywhere_does_not_open() {
        let token = test_token().seal(&[7; 32]).unwrap();
        for at in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(ResumeToken::open(std::str::from_utf8(&other).unwrap(), &[7; 32]), None, "{at}");
            assert_eq!(ResumeToken::open(&token[..at], &[7; 32]), None, "{at}");
        }
        assert_eq!(ResumeToken::open(&format!("{token}A"), &[7; 32]), None);
    }
}
