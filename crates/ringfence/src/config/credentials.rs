//! `[[credentials]]` of the config and of profiles: keys that wrapped programs use and never see.
//!
//! Only the owner of the machine, the user and the profiles say these: a workspace cannot.
//!
//! Not here: reading the key (`cli/wrapped_run/credentials.rs`), and its use (`ringfence-web`).

use std::path::{Path, PathBuf};

use ringfence_web::{AskedRequest, CredentialHeader};
use serde::Deserialize;

/// One credential, as it is written down.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialSetting {
    /// Its name, for records and messages.
    pub name: String,
    /// Hosts that get the key.
    pub hosts: Vec<String>,
    /// Paths of requests that get it, such as `/v1/**`; all of them if there are none.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Paths at which a connection may become a WebSocket.
    #[serde(default)]
    pub websocket_paths: Vec<String>,
    /// Headers that carry it.
    pub headers: Vec<String>,
    /// Requests that a person is asked about, such as `POST api.example.org/**`.
    #[serde(default)]
    pub ask: Vec<String>,
    /// Where the key is, the first that has one.
    pub source: Vec<String>,
    /// Environment variable of the program that has the placeholder.
    #[serde(default)]
    pub variable: Option<String>,
    /// Further variables that have it.
    #[serde(default)]
    pub also: Vec<String>,
    /// The characters that a key of this kind begins with.
    #[serde(default)]
    pub placeholder: String,
}

/// Where a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CredentialSource {
    /// An environment variable.
    Variable(String),
    /// A file, or the text at a dotted key of a JSON file.
    File { path: PathBuf, key: Option<String> },
    /// The first line that a program of the operator prints.
    Command(Vec<String>),
}

impl CredentialSource {
    /// Parses `env:NAME`, `file:PATH#key`, `command:PROGRAM ARGS…` or `keyring:SERVICE/ACCOUNT`.
    pub(crate) fn parse(text: &str, home: Option<&Path>) -> Result<Self, String> {
        let wrong = || {
            format!(
                "invalid source `{text}`; expected `env:NAME`, `file:PATH#key`, `command:PROGRAM ARGUMENTS` or \
                 `keyring:SERVICE/ACCOUNT`"
            )
        };
        let (kind, rest) = text.split_once(':').filter(|(_, rest)| !rest.trim().is_empty()).ok_or_else(wrong)?;
        match kind {
            "env" => Ok(Self::Variable(rest.to_owned())),
            "file" => {
                let (path, key) = match rest.split_once('#') {
                    Some((path, key)) => (path, Some(key.to_owned())),
                    None => (rest, None),
                };
                let path = match (path.strip_prefix("~/"), home) {
                    (Some(below), Some(home)) => home.join(below),
                    _ => PathBuf::from(path),
                };
                if path.is_absolute() { Ok(Self::File { path, key }) } else { Err(wrong()) }
            }
            "command" => Ok(Self::Command(rest.split_whitespace().map(str::to_owned).collect())),
            "keyring" => {
                let (service, account) = rest.split_once('/').ok_or_else(wrong)?;
                let words = ["secret-tool", "lookup", "service", service, "username", account];
                Ok(Self::Command(words.map(str::to_owned).to_vec()))
            }
            _ => Err(wrong()),
        }
    }
}

impl CredentialSetting {
    /// Fails with what is wrong about it.
    pub(crate) fn check(&self, home: Option<&Path>) -> Result<(), String> {
        let named = |problem: String| format!("credential `{}`: {problem}", self.name);
        if !is_plain(&self.name) {
            return Err(named("`name` must have only letters, digits, `-`, `_` and `.`".to_owned()));
        }
        if self.hosts.is_empty() || !self.hosts.iter().all(|host| is_host(host)) {
            return Err(named("`hosts` must list host names such as `api.example.org`".to_owned()));
        }
        self.sources(home).map_err(named)?;
        self.asked_requests().map_err(named)?;
        self.header_kinds().map(drop).map_err(named)
    }

    pub(crate) fn sources(&self, home: Option<&Path>) -> Result<Vec<CredentialSource>, String> {
        if self.source.is_empty() {
            return Err("`source` is empty".to_owned());
        }
        self.source.iter().map(|text| CredentialSource::parse(text, home)).collect()
    }

    /// The requests that a person is asked about, in the form of the interceptor.
    pub(crate) fn asked_requests(&self) -> Result<Vec<AskedRequest>, String> {
        let parse = |text: &String| {
            let parsed = AskedRequest::parse(text).filter(|asked| self.hosts.contains(&asked.host));
            parsed.ok_or_else(|| {
                format!("invalid `ask` entry `{text}`; expected a method, and one of its hosts with a path: `POST api.example.org/**`")
            })
        };
        self.ask.iter().map(parse).collect()
    }

    /// The headers, in the form of the interceptor.
    pub(crate) fn header_kinds(&self) -> Result<Vec<CredentialHeader>, String> {
        if self.headers.is_empty() {
            return Err("`headers` is empty; expected one such as `x-api-key` or `authorization: Bearer`".to_owned());
        }
        self.headers.iter().map(|text| header_kind(text)).collect()
    }

    /// The variables that have the placeholder.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.variable.iter().chain(&self.also).map(String::as_str)
    }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether it is a host name, with a port or not.
pub(crate) fn is_host(text: &str) -> bool {
    let (name, port) = text.split_once(':').unwrap_or((text, "443"));
    is_plain(name) && port.parse::<std::num::NonZeroU16>().is_ok()
}

/// A header that carries a credential, in the form of the interceptor.
pub(crate) fn header_kind(text: &str) -> Result<CredentialHeader, String> {
    let lower = text.to_ascii_lowercase();
    let parts = lower.split_once(':').map(|(name, scheme)| (name.trim(), scheme.trim()));
    match parts {
        Some(("authorization", "bearer")) => Ok(CredentialHeader::Bearer),
        Some(("authorization", "token")) => Ok(CredentialHeader::Token),
        Some(("authorization", "basic")) => Ok(CredentialHeader::Basic),
        None if !lower.is_empty() && lower.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
            Ok(CredentialHeader::Header(lower))
        }
        _ => Err(format!(
            "invalid header `{text}`; expected `authorization: Bearer`, `authorization: token`, `authorization: Basic` or a name such as `x-api-key`"
        )),
    }
}

/// The credentials of both layers. One of the machine's owner holds over one of the same name of the user.
pub(crate) fn merge_credentials(
    managed: &[CredentialSetting],
    user: &[CredentialSetting],
    home: Option<&Path>,
) -> Result<Vec<CredentialSetting>, String> {
    let of_user = user.iter().filter(|own| !managed.iter().any(|owner| owner.name == own.name));
    let all: Vec<CredentialSetting> = managed.iter().chain(of_user).cloned().collect();
    all.iter()
        .try_for_each(|credential| credential.check(home).map_err(|problem| format!("`credentials`: {problem}")))?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_parsed_or_refused_with_the_forms() {
        let home = Path::new("/home/ada");
        let parsed = |text: &str| CredentialSource::parse(text, Some(home));
        let file =
            |path: &str, key: Option<&str>| CredentialSource::File { path: path.into(), key: key.map(str::to_owned) };
        let words = |words: &[&str]| CredentialSource::Command(words.iter().map(|&word| word.to_owned()).collect());
        for (text, expected) in [
            ("env:KEY", CredentialSource::Variable("KEY".to_owned())),
            ("file:/etc/key", file("/etc/key", None)),
            ("file:~/.a.json#x.y", file("/home/ada/.a.json", Some("x.y"))),
            ("command:pass show openai", words(&["pass", "show", "openai"])),
            ("keyring:openai/ada", words(&["secret-tool", "lookup", "service", "openai", "username", "ada"])),
        ] {
            assert_eq!(parsed(text), Ok(expected), "{text}");
        }
        for text in ["", "KEY", "env:", "env: ", "file:relative", "keyring:openai", "http://x"] {
            assert!(parsed(text).unwrap_err().starts_with(&format!("invalid source `{text}`; expected")), "{text}");
        }
    }

    #[test]
    fn a_setting_is_checked_before_it_is_used() {
        let setting = |name: &str, host: &str, header: &str| CredentialSetting {
            name: name.to_owned(),
            hosts: vec![host.to_owned()],
            paths: Vec::new(),
            websocket_paths: Vec::new(),
            headers: vec![header.to_owned()],
            ask: Vec::new(),
            source: vec!["env:KEY".to_owned()],
            variable: None,
            also: Vec::new(),
            placeholder: String::new(),
        };
        assert_eq!(setting("a", "api.example.org", "Authorization: bearer").check(None), Ok(()));
        assert_eq!(setting("a", "api.example.org", "x-api-key").check(None), Ok(()));
        for (ask, is_valid) in [("POST h/**", true), ("POST other/**", false), ("POST /**", false), ("h/**", false)] {
            let asking = CredentialSetting { ask: vec![ask.to_owned()], ..setting("a", "h", "x") };
            assert_eq!(asking.check(None).is_ok(), is_valid, "{ask}");
        }
        for (name, host, header, problem) in [
            ("a b", "h", "x", "`name` must"),
            ("a", "https://h", "x", "`hosts` must"),
            ("a", "h", "cookie: x", "invalid header `cookie: x`"),
            ("a", "h", "", "invalid header ``"),
        ] {
            let error = setting(name, host, header).check(None).unwrap_err();
            assert!(error.starts_with(&format!("credential `{name}`: {problem}")), "{error}");
        }
    }
}
