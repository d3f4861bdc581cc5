//! `[[logins]]` of profiles: OAuth logins of a person that wrapped programs use and never see.
//!
//! A setting says where the tokens are in a file of the person, which client may refresh them too, and which requests they
//! are for. Only profiles say these.
//!
//! Not here: the file (`login_file.rs`), and the exchange of tokens (`ringfence-web`).

use ringfence_web::OAuthTokenShapes;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cli::wrapped_run::profile_files::is_below;
use crate::config::credentials::{header_kind, is_host};

/// One login, as it is written down. Places in the file are JSON pointers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginSetting {
    /// Its name, for records and messages.
    pub(crate) name: String,
    /// JSON file below the home directory.
    pub(crate) file: String,
    /// File that the person's own client locks (`flock`) while it refreshes.
    #[serde(default)]
    pub(crate) lock_file: Option<String>,
    /// Directory that it makes meanwhile, and touches until it is done.
    #[serde(default)]
    pub(crate) lock_directory: Option<String>,
    /// Hosts that take the access token.
    pub(crate) hosts: Vec<String>,
    /// Paths of requests that get it; all of them if there are none.
    #[serde(default)]
    pub(crate) paths: Vec<String>,
    /// Paths at which a connection may become a WebSocket.
    #[serde(default)]
    pub(crate) websocket_paths: Vec<String>,
    /// Headers that carry it.
    pub(crate) headers: Vec<String>,
    /// `HOST/PATH` at which tokens are refreshed.
    pub(crate) token_endpoint: String,
    /// Members of its answer that programs may have, besides placeholders of the tokens.
    #[serde(default)]
    pub(crate) answer: Vec<String>,
    pub(crate) access_token: String,
    pub(crate) refresh_token: String,
    #[serde(default)]
    pub(crate) id_token: Option<String>,
    /// Milliseconds since 1970 until which the access token is valid.
    #[serde(default)]
    pub(crate) expires_at: Option<String>,
    /// The same for the refresh token.
    #[serde(default)]
    pub(crate) refresh_expires_at: Option<String>,
    /// Time of the last refresh (RFC 3339).
    #[serde(default)]
    pub(crate) refreshed_at: Option<String>,
    /// Values of the file that programs may have.
    #[serde(default)]
    pub(crate) copied: Vec<String>,
    /// The characters that tokens begin with.
    #[serde(default)]
    pub(crate) placeholders: TokenPrefixes,
    /// Claims of tokens that are JSON web tokens which programs may have.
    #[serde(default)]
    pub(crate) claims: Vec<String>,
}

/// The characters that tokens of a login begin with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TokenPrefixes {
    pub(crate) access_token: String,
    pub(crate) refresh_token: String,
}

impl LoginSetting {
    /// Fails with what is wrong about it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let named = |problem: String| format!("login `{}`: {problem}", self.name);
        let is_plain =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !is_plain(&self.name) {
            return Err(named("`name` must have only letters, digits, `-`, `_` and `.`".to_owned()));
        }
        if self.hosts.is_empty() || !self.hosts.iter().all(|host| is_host(host)) {
            return Err(named("`hosts` must list host names such as `api.example.org`".to_owned()));
        }
        let endpoint = self.endpoint().filter(|(host, path)| is_host(host) && !path.contains(['*', '?', '#']));
        if endpoint.is_none() {
            return Err(named(
                "`token_endpoint` must be a host and a path, such as `auth.example.org/token`".to_owned(),
            ));
        }
        let files = [Some(&self.file), self.lock_file.as_ref(), self.lock_directory.as_ref()];
        if let Some(path) = files.into_iter().flatten().find(|path| !is_below(path)) {
            return Err(named(format!("`{path}` must be a path below the home directory")));
        }
        let optional = [&self.id_token, &self.expires_at, &self.refresh_expires_at, &self.refreshed_at];
        let mut pointers = [&self.access_token, &self.refresh_token]
            .into_iter()
            .chain(optional.into_iter().flatten())
            .chain(&self.copied);
        if let Some(pointer) = pointers.find(|pointer| !is_pointer(pointer)) {
            return Err(named(format!("`{pointer}` must be a JSON pointer, such as `/tokens/access`")));
        }
        if self.headers.is_empty() {
            return Err(named("`headers` is empty".to_owned()));
        }
        self.headers.iter().try_for_each(|header| header_kind(header).map(drop)).map_err(named)
    }

    /// Host and path of the token endpoint.
    pub(crate) fn endpoint(&self) -> Option<(&str, &str)> {
        self.token_endpoint.find('/').map(|at| self.token_endpoint.split_at(at))
    }

    /// Hosts that a program with this login needs.
    pub(crate) fn all_hosts(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(String::as_str).chain(self.endpoint().map(|(host, _)| host))
    }

    pub(crate) fn shapes(&self) -> OAuthTokenShapes {
        OAuthTokenShapes {
            access: self.placeholders.access_token.clone(),
            refresh: self.placeholders.refresh_token.clone(),
            claims: self.claims.clone(),
        }
    }
}

/// Whether it names members of objects: no escapes, so that it is also what a value is put at.
fn is_pointer(text: &str) -> bool {
    text.strip_prefix('/').is_some_and(|names| names.split('/').all(|name| !name.is_empty() && !name.contains('~')))
}

/// Puts a value at a pointer, with the objects around it.
pub(crate) fn put_at(root: &mut Value, pointer: &str, value: Value) {
    let mut place = root;
    for name in pointer.split('/').skip(1) {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Some(members) = place.as_object_mut() else { return };
        place = members.entry(name).or_insert(Value::Null);
    }
    *place = value;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The smallest login.
    pub(crate) const SMALL: &str = "name = \"login\"\nfile = \".agent/login.json\"\nhosts = [\"api.example.org\"]\n\
        headers = [\"authorization: Bearer\"]\ntoken_endpoint = \"auth.example.org/token\"\n\
        access_token = \"/tokens/access\"\nrefresh_token = \"/tokens/refresh\"\n";

    fn check(text: &str) -> Result<(), String> {
        toml::from_str::<LoginSetting>(text).map_err(|error| error.message().to_owned())?.check()
    }

    #[test]
    fn a_setting_is_checked_before_it_is_used() {
        assert_eq!(check(SMALL), Ok(()));
        assert_eq!(check(&SMALL.replace("auth.example.org/", "localhost:8443/")), Ok(()));
        for (from, to, problem) in [
            ("\"login\"", "\"a b\"", "login `a b`: `name` must"),
            (".agent/login.json", "/etc/x", "login `login`: `/etc/x` must be a path below"),
            (".agent/login.json", "../x", "login `login`: `../x` must be a path below"),
            ("[\"api.example.org\"]", "[]", "login `login`: `hosts` must"),
            ("auth.example.org/token", "auth.example.org", "login `login`: `token_endpoint` must"),
            ("auth.example.org/token", "https://auth.example.org/token", "login `login`: `token_endpoint` must"),
            ("auth.example.org/token", "auth.example.org/**", "login `login`: `token_endpoint` must"),
            ("/tokens/access", "tokens.access", "login `login`: `tokens.access` must be a JSON pointer"),
            ("/tokens/access", "/a~1b", "login `login`: `/a~1b` must be a JSON pointer"),
            ("authorization: Bearer", "cookie: x", "login `login`: invalid header"),
            ("headers =", "header =", "unknown field `header`"),
        ] {
            let error = check(&SMALL.replace(from, to)).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }

    #[test]
    fn a_value_is_put_where_its_pointer_leads() {
        let mut value = serde_json::json!({"a": 1, "b": {"c": 2}});
        put_at(&mut value, "/a/x", Value::from(3));
        put_at(&mut value, "/b/d", Value::from(4));
        put_at(&mut value, "/e/f", Value::from(5));
        assert_eq!(value, serde_json::json!({"a": {"x": 3}, "b": {"c": 2, "d": 4}, "e": {"f": 5}}));
    }
}
