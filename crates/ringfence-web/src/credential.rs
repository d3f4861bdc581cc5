//! Credential bindings: a secret of the operator, the hosts and paths that it is for, and the placeholder that programs see.
//!
//! A program has the placeholder only. The secret takes its place outside of the jail, in one header of a request to one of its hosts.
//!
//! Not here: where the secret is read from (the configuration), and the requests (`request_guard.rs`).

use std::fmt;

use hyper::header::{AUTHORIZATION, HeaderName};
use ringfence_net::TargetHost;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::request_path::{PathPattern, PathPatternError};

/// Shorter secrets would be found in answers that do not contain them.
const MIN_SECRET_BYTES: usize = 8;

/// Shorter placeholders would be found in requests that do not contain them.
const MIN_PLACEHOLDER_BYTES: usize = 16;

/// No longer secret or placeholder fits a header.
const MAX_BYTES: usize = 8 << 10;

/// The port of a host that is bound without one.
const HTTPS_PORT: u16 = 443;

/// Characters at the end of a placeholder that depend on its prefix alone. Clients that ask whether a key may be used
/// remember this many.
const FIXED_CHARS: usize = 20;

/// Characters of placeholders.
const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// A secret that no text ever shows. Its memory is overwritten when it is dropped.
#[derive(Clone)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// Takes the secret.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text itself, for the request that it is for and the place where it is kept.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

/// A header that carries a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialHeader {
    /// The value of this header, such as `x-api-key`.
    Header(String),
    /// `authorization: Bearer …`.
    Bearer,
    /// `authorization: token …`, as GitHub has it.
    Token,
    /// `authorization: Basic …`, as its password, or as its user without a password.
    Basic,
}

impl CredentialHeader {
    pub(crate) fn name(&self) -> Option<HeaderName> {
        match self {
            Self::Header(name) => name.parse().ok(),
            Self::Bearer | Self::Token | Self::Basic => Some(AUTHORIZATION),
        }
    }
}

/// A credential, and the requests that it is for.
#[derive(Clone, Debug)]
pub struct CredentialBinding {
    /// Name in the configuration and in records.
    pub name: String,
    /// Host names, with a port where it is not 443.
    pub hosts: Vec<String>,
    /// Globs such as `/v1/**`. Empty: all paths.
    pub paths: Vec<String>,
    /// Globs of the paths that may become a WebSocket.
    pub websocket_paths: Vec<String>,
    /// The headers that may carry it.
    pub headers: Vec<CredentialHeader>,
    /// Requests that a person is asked about.
    pub asked: Vec<AskedRequest>,
    /// The text that programs have in place of the secret.
    pub placeholder: String,
    /// The secret.
    pub secret: SecretText,
}

/// Requests of one method that a person is asked about, such as pushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedRequest {
    /// Such as `POST`.
    pub method: String,
    /// Host name, with a port where it is not 443.
    pub host: String,
    /// A glob such as `/repos/**`.
    pub path: String,
}

impl AskedRequest {
    /// Parses `METHOD HOST[:PORT]/PATH`.
    pub fn parse(text: &str) -> Option<Self> {
        let (method, rest) = text.split_once(' ')?;
        let (host, path) = rest.split_at(rest.find('/')?);
        let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        let (host, path) = (host.to_owned(), path.to_owned());
        is_method.then(|| Self { method: method.to_owned(), host, path })
    }
}

/// A host of which programs may request these paths only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPathRule {
    /// Host name, with a port where it is not 443.
    pub host: String,
    /// Globs such as `/v1/**`. Empty: all paths.
    pub paths: Vec<String>,
    /// Globs of the paths that may become a WebSocket.
    pub websocket_paths: Vec<String>,
}

/// Invalid credential binding or path rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The host is not a name, or its port is not a number.
    #[error("`{owner}`: invalid host `{host}`: write a name such as `api.example.org`")]
    Host {
        /// The binding or the rule.
        owner: String,
        /// The host.
        host: String,
    },
    /// A binding without hosts or headers is never used.
    #[error("credential `{0}` names no {1}")]
    Empty(String, &'static str),
    /// The path pattern is invalid.
    #[error("`{owner}`: {cause}")]
    Path {
        /// The binding or the rule.
        owner: String,
        /// The cause.
        cause: PathPatternError,
    },
    /// The header cannot be sent.
    #[error("credential `{0}`: invalid header name `{1}`")]
    Header(String, String),
    /// The method of an asked request cannot be sent.
    #[error("credential `{0}`: invalid method `{1}`")]
    Method(String, String),
    /// The secret does not fit a header, or is too short to be recognised.
    #[error("credential `{0}`: the secret must have 8 to 8192 visible ASCII characters")]
    Secret(String),
    /// The placeholder does not fit a header, or is too short to be recognised.
    #[error("credential `{0}`: the placeholder must have 16 to 8192 visible ASCII characters")]
    Placeholder(String),
    /// Placeholders and secrets would be mistaken for each other.
    #[error("credentials `{0}` and `{1}`: a placeholder must not contain another one or a secret")]
    Ambiguous(String, String),
}

/// A host of a binding, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundHost {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl BoundHost {
    pub(crate) fn parse(owner: &str, text: &str) -> Result<Self, CredentialError> {
        let wrong = || CredentialError::Host { owner: owner.to_owned(), host: text.to_owned() };
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?),
            None => (text, HTTPS_PORT),
        };
        let TargetHost::Name(name) = TargetHost::from_authority(name) else { return Err(wrong()) };
        let is_label = |label: &str| {
            let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=63).contains(&label.len()) && label.bytes().all(is_known)
        };
        let ends_in_number = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        match name.len() <= 253 && name.split('.').all(is_label) && !ends_in_number {
            true => Ok(Self { name, port }),
            false => Err(wrong()),
        }
    }
}

/// Reads the patterns of a binding or rule.
pub(crate) fn parse_patterns(owner: &str, texts: &[String]) -> Result<Vec<PathPattern>, CredentialError> {
    let parse = |text: &String| {
        PathPattern::parse(text).map_err(|cause| CredentialError::Path { owner: owner.to_owned(), cause })
    };
    texts.iter().map(parse).collect()
}

fn fits(text: &str, least: usize) -> bool {
    (least..=MAX_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether a secret can be sent in a header, and is long enough to be recognised.
pub(crate) fn fits_header(secret: &str) -> bool {
    fits(secret, MIN_SECRET_BYTES)
}

/// Fails for a binding that cannot be kept.
pub(crate) fn check_bindings(bindings: &[CredentialBinding]) -> Result<(), CredentialError> {
    for binding in bindings {
        let name = || binding.name.clone();
        if binding.hosts.is_empty() {
            return Err(CredentialError::Empty(name(), "host"));
        }
        if binding.headers.is_empty() {
            return Err(CredentialError::Empty(name(), "header"));
        }
        for header in &binding.headers {
            if let (CredentialHeader::Header(text), None) = (header, header.name()) {
                return Err(CredentialError::Header(name(), text.clone()));
            }
        }
        if !fits_header(binding.secret.expose()) {
            return Err(CredentialError::Secret(name()));
        }
        if !fits(&binding.placeholder, MIN_PLACEHOLDER_BYTES) {
            return Err(CredentialError::Placeholder(name()));
        }
    }
    for (index, binding) in bindings.iter().enumerate() {
        for (at, other) in bindings.iter().enumerate() {
            let (mine, theirs) = (binding.placeholder.as_str(), other.placeholder.as_str());
            let secret = other.secret.expose();
            let mixed = mine.contains(secret) || secret.contains(mine) || (at != index && mine.contains(theirs));
            if mixed {
                return Err(CredentialError::Ambiguous(binding.name.clone(), other.name.clone()));
            }
        }
    }
    Ok(())
}

/// A placeholder of the shape of a secret that begins with `secret_prefix`, such as `sk-ant-api03-`: the prefix, a character
/// for each random byte, and 20 characters that depend on the prefix alone.
pub fn placeholder_like(secret_prefix: &str, random: &[u8]) -> String {
    let letter = |byte: &u8| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]);
    let digest = Sha256::digest(format!("ringfence placeholder {secret_prefix}"));
    let fixed = digest.iter().take(FIXED_CHARS).map(letter);
    secret_prefix.chars().chain("rf".chars()).chain(random.iter().map(letter)).chain(fixed).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        AskedRequest, BoundHost, CredentialBinding, CredentialHeader, SecretText, check_bindings, placeholder_like,
    };

    pub(crate) fn binding(name: &str, placeholder: &str, secret: &str) -> CredentialBinding {
        CredentialBinding {
            name: name.to_owned(),
            hosts: vec!["api.example.org".to_owned()],
            paths: Vec::new(),
            websocket_paths: Vec::new(),
            headers: vec![CredentialHeader::Bearer],
            asked: Vec::new(),
            placeholder: placeholder.to_owned(),
            secret: SecretText::new(secret.to_owned()),
        }
    }

    #[test]
    fn a_placeholder_has_the_prefix_random_characters_and_a_fixed_end() {
        let (one, two) = (placeholder_like("sk-ant-api03-", &[1; 60]), placeholder_like("sk-ant-api03-", &[2; 60]));
        assert!(one.starts_with("sk-ant-api03-rf"), "{one}");
        assert_eq!(one.len(), "sk-ant-api03-rf".len() + 60 + 20);
        assert_ne!(one, two);
        assert_eq!(one[one.len() - 20..], two[two.len() - 20..]);
        assert_ne!(one[one.len() - 20..], placeholder_like("ghp_", &[1; 60])[19..][..20]);
    }

    #[test]
    fn an_asked_request_is_a_method_a_host_and_a_path() {
        let parse = |text: &str| AskedRequest::parse(text).map(|asked| (asked.method, asked.host, asked.path));
        let expected = ("POST".to_owned(), "a.org:8443".to_owned(), "/x/**".to_owned());
        assert_eq!(parse("POST a.org:8443/x/**"), Some(expected));
        for wrong in ["", "POST", "post a.org/x", "POST a.org", "/x", " a.org/x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let text = format!("{:?}", binding("a", "placeholder-12345", "hunter2-hunter2"));
        assert!(!text.contains("hunter2") && text.contains("SecretText(..)"), "{text}");
    }

    #[test]
    fn a_host_is_a_name_with_an_optional_port() {
        let read = |text: &str| BoundHost::parse("x", text).map(|host| (host.name, host.port)).ok();
        assert_eq!(read("API.example.org"), Some(("api.example.org".to_owned(), 443)));
        assert_eq!(read("api.example.org:8443"), Some(("api.example.org".to_owned(), 8443)));
        for wrong in ["", "10.0.0.1", "[::1]", "*.example.org", "a b", "a/b", "a.org:0", "a.org:x", "a..org", "a.1"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bindings_that_could_be_mistaken_for_each_other_are_refused() {
        let text = |bindings: &[CredentialBinding]| check_bindings(bindings).map_err(|error| error.to_string());
        let good = binding("a", "placeholder-12345", "hunter2-hunter2");
        assert_eq!(text(std::slice::from_ref(&good)), Ok(()));
        for (other, said) in [
            (binding("b", "placeholder-123456", "hunter3-hunter3"), "must not contain another"),
            (binding("b", "other-hunter2-hunter2", "hunter3-hunter3"), "must not contain another"),
            (binding("b", "too-short", "hunter3-hunter3"), "placeholder must have"),
            (binding("b", "other-placeholder", "short"), "secret must have"),
            (binding("b", "other-placeholder", "with a space"), "secret must have"),
            (CredentialBinding { hosts: Vec::new(), ..good.clone() }, "names no host"),
            (CredentialBinding { headers: Vec::new(), ..good.clone() }, "names no header"),
            (
                CredentialBinding { headers: vec![CredentialHeader::Header("a b".to_owned())], ..good.clone() },
                "invalid header name",
            ),
        ] {
            let error = text(&[good.clone(), other]).unwrap_err();
            assert!(error.contains(said) && !error.contains("hunter"), "{error}");
        }
    }
}
