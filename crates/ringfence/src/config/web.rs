//! Web config: allowed private hosts and the search engine.
//!
//! Only the owner of the machine and the user say these: a workspace cannot.

use ringfence_web::{PrivateHosts, SearchEngine, SearchEngineKind, WebApiKey};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WebConfigSection {
    allow_private: Option<Vec<String>>,
    search: WebSearchConfigSection,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WebSearchConfigSection {
    engine: Option<String>,
    url: Option<String>,
    key_env: Option<String>,
}

/// Settings of the web tools.
#[derive(Clone, Debug, Default)]
pub struct WebSettings {
    /// Hosts and ranges of addresses that are not public and may be reached all the same.
    pub private: PrivateHosts,
    pub engine: Option<SearchEngine>,
}

/// Merges two layers, with warnings for the user. `variable` looks up the environment. Fails with the invalid key.
pub(crate) fn merge_web(
    managed: &WebConfigSection,
    user: &WebConfigSection,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(WebSettings, Option<String>), String> {
    let private = managed.allow_private.as_deref().or(user.allow_private.as_deref()).unwrap_or_default();
    let private =
        PrivateHosts::parse_with_ranges(private).map_err(|problem| format!("`web.allow_private`: {problem}"))?;
    let search = if managed.search.engine.is_some() { &managed.search } else { &user.search };
    let named = search.key_env.as_deref();
    let key = named.and_then(&variable);
    if let Some(name) = named.filter(|_| key.is_none()) {
        let warning = format!(
            "`web_search` is unavailable: the environment variable `{name}`, named by `web.search.key_env`, is not set"
        );
        return Ok((WebSettings { private, engine: None }, Some(warning)));
    }
    let engine = engine(search, key).map_err(|problem| format!("`web.search`: {problem}"))?;
    Ok((WebSettings { private, engine }, None))
}

fn engine(keys: &WebSearchConfigSection, key: Option<String>) -> Result<Option<SearchEngine>, String> {
    let kind = match keys.engine.as_deref() {
        None if keys.url.is_some() || keys.key_env.is_some() => return Err("`engine` is missing".to_owned()),
        None | Some("none") => return Ok(None),
        Some(name) => SearchEngineKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = SearchEngineKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("unknown `engine` `{name}`; expected one of none, {}", known.join(", "))
        })?,
    };
    SearchEngine::new(kind, keys.url.as_deref(), key.map(WebApiKey::new)).map(Some)
}
