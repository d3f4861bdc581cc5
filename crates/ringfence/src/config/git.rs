//! Git config: tokens for fetch and push, by host.
//!
//! Only the owner of the machine and the user say these: a workspace cannot.

use std::collections::BTreeMap;

use ringfence_git::{GitCredential, GitCredentials};
use serde::Deserialize;

/// The user name that goes with a token, if the config does not set another: most hosts take any.
const DEFAULT_USER: &str = "git";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GitConfigSection {
    hosts: BTreeMap<String, GitHostConfigSection>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GitHostConfigSection {
    token_env: String,
    user: Option<String>,
}

/// Merges two layers, with a warning for each host without its token. `variable` looks up the environment. Fails with the
/// invalid key.
pub(crate) fn merge_git(
    managed: &GitConfigSection,
    user: &GitConfigSection,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(GitCredentials, Vec<String>), String> {
    let (mut credentials, mut warnings) = (BTreeMap::new(), Vec::new());
    let of_user = user.hosts.iter().filter(|(host, _)| !managed.hosts.contains_key(*host));
    for (host, keys) in managed.hosts.iter().chain(of_user) {
        let is_plain = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:".contains(c));
        if !is_plain {
            return Err(format!("`git.hosts`: invalid host `{host}`; expected one such as `example.org`"));
        }
        let user = keys.user.clone().unwrap_or_else(|| DEFAULT_USER.to_owned());
        match variable(&keys.token_env) {
            Some(token) if !format!("{user}{token}").chars().any(char::is_control) => {
                credentials.insert(host.to_ascii_lowercase(), GitCredential { user, token });
            }
            Some(_) => {
                return Err(format!("`git.hosts.\"{host}\"`: the user name or the token has control characters"));
            }
            None => warnings.push(format!(
                "git has no token for {host}: the environment variable `{}`, named by `git.hosts`, is not set",
                keys.token_env
            )),
        }
    }
    Ok((GitCredentials(credentials), warnings))
}
