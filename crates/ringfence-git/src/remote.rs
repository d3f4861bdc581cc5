//! Remotes: the URL of one, its host and the credential for it.
//!
//! A URL is shown to the person who approves a call, so it is plain: `https` or `http`, without a user name. The alias of a
//! remote is looked up in the repository's config as data, on the host, and no program reads that config.
//!
//! Not here: connecting (`courier.rs`).

use std::collections::BTreeMap;
use std::fmt;

use ringfence_kernel::{ErrorKind, ToolError};

/// Credentials by host, as the person configured them.
#[derive(Clone, Debug, Default)]
pub struct GitCredentials(pub BTreeMap<String, GitCredential>);

/// A user name and a token. Nothing shows the token.
#[derive(Clone)]
pub struct GitCredential {
    pub user: String,
    pub token: String,
}

impl fmt::Debug for GitCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitCredential").field("user", &self.user).finish_non_exhaustive()
    }
}

impl GitCredential {
    /// As git's credential helpers print it.
    pub(crate) fn to_answer(&self) -> String {
        format!("username={}\npassword={}\n", self.user, self.token)
    }
}

/// The URL of a remote repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteUrl {
    text: String,
    /// Scheme, host and port: what a credential is for.
    origin: String,
    host: String,
    port: u16,
    is_encrypted: bool,
}

impl RemoteUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, ToolError> {
        let refuse = |problem: &str| Err(ToolError::new(ErrorKind::InvalidArgs, problem.to_owned()));
        let (is_encrypted, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => {
                return refuse(
                    "the URL of the remote is not an https URL; set one such as `https://example.org/x.git`",
                );
            }
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return refuse(
                "the URL of the remote contains a user name or a password; remove it, and set a token in the config",
            );
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => match port.parse() {
                Ok(port) => (host, port),
                Err(_) => return refuse("the URL of the remote has an invalid port"),
            },
            None => (authority, if is_encrypted { 443 } else { 80 }),
        };
        let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._~-+%@".contains(c);
        if !is_host || host.starts_with('-') || !path.chars().all(plain) || text.len() > 500 {
            return refuse("the URL of the remote has characters that are not supported");
        }
        let scheme = if is_encrypted { "https" } else { "http" };
        let host = host.to_ascii_lowercase();
        Ok(Self { text: text.to_owned(), origin: format!("{scheme}://{authority}"), host, port, is_encrypted })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// `host:port`, for the egress.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The credential for it, which is sent over TLS or to this machine only.
    pub(crate) fn credential<'a>(&self, credentials: &'a GitCredentials) -> Option<&'a GitCredential> {
        let is_local = matches!(self.host.as_str(), "localhost" | "127.0.0.1");
        let found = credentials.0.get(&self.host).or_else(|| credentials.0.get(&self.endpoint()));
        found.filter(|_| self.is_encrypted || is_local)
    }
}

/// The name of a remote or a branch: one that no command takes for anything else.
pub(crate) fn check_name(field: &'static str, name: &str) -> Result<(), ToolError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.' | '-' | '+' | '#');
    let parts_are_plain =
        name.split('/').all(|part| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock"));
    let is_plain = name.len() <= 200 && name.chars().all(plain) && parts_are_plain && !name.contains("..");
    match is_plain && !name.ends_with('.') {
        true => Ok(()),
        false => Err(ToolError::invalid(field, "must be a plain name such as `main` or `feature/x`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_plain_and_says_where_it_leads() {
        let check = |text: &str, endpoint: Option<&str>| {
            let parsed = RemoteUrl::parse(text).ok().map(|url| url.endpoint());
            assert_eq!(parsed.as_deref(), endpoint, "{text}");
        };
        check("https://example.org/x.git", Some("example.org:443"));
        check("https://Example.org:8443/a/b", Some("example.org:8443"));
        check("http://127.0.0.1:8080/x", Some("127.0.0.1:8080"));
        for text in [
            "git@example.org:x.git",
            "ssh://example.org/x",
            "file:///etc",
            "ext::sh -c evil",
            "https://me:secret@example.org/x",
            "https:///x",
            "https://-x/x",
            "https://example.org:port/x",
            "https://example.org/x y",
            "https://example.org/x\n[core]",
            "https://exa\"mple.org/",
            "--upload-pack=evil",
            "",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn a_credential_is_for_its_host_and_never_sent_in_the_clear() {
        let credential = GitCredential { user: "git".to_owned(), token: "t".to_owned() };
        let credentials = ["example.org", "127.0.0.1:8080"].map(|host| (host.to_owned(), credential.clone()));
        let credentials = GitCredentials(credentials.into());
        for (url, expected) in [
            ("https://example.org/x", true),
            ("https://EXAMPLE.org/x", true),
            ("http://example.org/x", false),
            ("https://example.org.evil/x", false),
            ("http://127.0.0.1:8080/x", true),
            ("http://127.0.0.1:8081/x", false),
        ] {
            assert_eq!(RemoteUrl::parse(url).unwrap().credential(&credentials).is_some(), expected, "{url}");
        }
        assert!(!format!("{credentials:?}").contains("token"), "nothing shows it");
    }

    #[test]
    fn names_are_plain() {
        for name in ["main", "feature/x", "v1.0", "a_b-c", "fix#12"] {
            assert!(check_name("branch", name).is_ok(), "{name}");
        }
        for name in [
            "", "-x", "a/-x", "a//b", "/a", "a/", "a..b", "a b", ".hidden", "a/.b", "x.lock", "a:b", "+a b", "a~1",
            "x.",
        ] {
            assert!(check_name("branch", name).is_err(), "{name}");
        }
    }
}
