//! Search engine clients: requests and result parsing.
//!
//! Every engine is queried over the same connections as any other host, and redirects are not followed. Responses are
//! parsed leniently, because engines change them, and results are cleaned: text without markup, http and https links.
//!
//! Not here: the tool (`web_search.rs`).

use std::fmt;

use ringfence_net::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use ringfence_net::{Bytes, HttpResponse, Method, StatusCode};
use serde_json::{Value, json};
use url::Url;

use crate::error::WebError;
use crate::html::plain_text;
use crate::http_client::FetchRequest;

/// Titles and snippets are cut to this.
const MAX_TITLE_CHARS: usize = 300;
const MAX_SNIPPET_CHARS: usize = 2_000;

/// Kind of a search engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEngineKind {
    SearXng,
    Brave,
    Tavily,
    /// Any that answers with a list of results in JSON.
    Generic,
}

impl SearchEngineKind {
    pub const ALL: [Self; 4] = [Self::SearXng, Self::Brave, Self::Tavily, Self::Generic];

    pub const fn name(self) -> &'static str {
        match self {
            Self::SearXng => "searxng",
            Self::Brave => "brave",
            Self::Tavily => "tavily",
            Self::Generic => "generic",
        }
    }

    /// Default URL, where there is only one.
    const fn default_url(self) -> Option<&'static str> {
        match self {
            Self::SearXng | Self::Generic => None,
            Self::Brave => Some("https://api.search.brave.com/res/v1/web/search"),
            Self::Tavily => Some("https://api.tavily.com/search"),
        }
    }

    const fn needs_key(self) -> bool {
        matches!(self, Self::Brave | Self::Tavily)
    }
}

/// A key that no text ever shows.
#[derive(Clone, PartialEq, Eq)]
pub struct WebApiKey(pub(crate) String);

impl WebApiKey {
    pub fn new(key: String) -> Self {
        Self(key)
    }
}

impl fmt::Debug for WebApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The search engine that the user chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchEngine {
    pub(crate) kind: SearchEngineKind,
    pub(crate) url: Url,
    key: Option<WebApiKey>,
}

impl SearchEngine {
    /// Fails where something is missing, and says what to set.
    pub fn new(kind: SearchEngineKind, url: Option<&str>, key: Option<WebApiKey>) -> Result<Self, String> {
        let url = url.or(kind.default_url());
        let url = url.ok_or_else(|| format!("the engine `{}` needs `url`", kind.name()))?;
        let url = Url::parse(url).map_err(|cause| format!("`url` is not valid: {cause}"))?;
        let plain = url.username().is_empty() && url.password().is_none() && url.host().is_some();
        if !matches!(url.scheme(), "http" | "https") || !plain {
            return Err("`url` must be an `https://` or `http://` URL without a user name or password".to_owned());
        }
        if kind == SearchEngineKind::Generic
            && !url.as_str().contains("%7Bquery%7D")
            && !url.as_str().contains("{query}")
        {
            return Err("`url` of the engine `generic` must contain `{query}` in place of the query".to_owned());
        }
        if kind.needs_key() && key.is_none() {
            return Err(format!(
                "the engine `{}` needs an API key: set `key_env` to the environment variable that holds it",
                kind.name()
            ));
        }
        Ok(Self { kind, url, key })
    }

    /// The request for a query, with its URL.
    pub(crate) fn build_request(&self, query: &str, count: usize) -> Result<(Url, FetchRequest), WebError> {
        let mut url = self.url.clone();
        let (mut method, mut headers, mut body) = (Method::GET, HeaderMap::new(), Bytes::new());
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        match self.kind {
            SearchEngineKind::SearXng => {
                if !url.path().ends_with("/search") {
                    let path = format!("{}/search", url.path().trim_end_matches('/'));
                    url.set_path(&path);
                }
                url.query_pairs_mut().append_pair("q", query).append_pair("format", "json");
                self.add_key_header(&mut headers, &AUTHORIZATION)?;
            }
            SearchEngineKind::Brave => {
                url.query_pairs_mut().append_pair("q", query).append_pair("count", &count.to_string());
                self.add_key_header(&mut headers, &HeaderName::from_static("x-subscription-token"))?;
            }
            SearchEngineKind::Tavily => {
                method = Method::POST;
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                body = Bytes::from(json!({"query": query, "max_results": count}).to_string());
                self.add_key_header(&mut headers, &AUTHORIZATION)?;
            }
            SearchEngineKind::Generic => {
                let encoded: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
                let filled = url.as_str().replace("%7B", "{").replace("%7D", "}");
                let filled = filled.replace("{query}", &encoded).replace("{count}", &count.to_string());
                url = Url::parse(&filled).map_err(|cause| WebError::Url(cause.to_string()))?;
                self.add_key_header(&mut headers, &AUTHORIZATION)?;
            }
        }
        Ok((url, FetchRequest { method, headers, body }))
    }

    fn add_key_header(&self, headers: &mut HeaderMap, name: &HeaderName) -> Result<(), WebError> {
        let Some(WebApiKey(key)) = &self.key else { return Ok(()) };
        let text = if *name == AUTHORIZATION { format!("Bearer {key}") } else { key.clone() };
        let mut value = HeaderValue::try_from(text)
            .map_err(|_| WebError::Backend("the search engine's API key has an invalid character".to_owned()))?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(())
    }

    /// Parses the results of a response.
    pub(crate) fn parse_response(&self, answer: &HttpResponse, count: usize) -> Result<WebSearchResults, WebError> {
        if answer.status != StatusCode::OK {
            return Err(WebError::Backend(self.status_error(answer)));
        }
        let body: Value = serde_json::from_slice(&answer.body).map_err(|_| {
            WebError::Backend(format!("the search engine `{}` did not respond with JSON", self.kind.name()))
        })?;
        // The answer may be the list itself.
        let list = ["", "/results", "/web/results", "/data/results", "/items", "/organic", "/data"]
            .iter()
            .find_map(|path| body.pointer(path)?.as_array())
            .ok_or_else(|| {
                WebError::Backend(format!("the search engine `{}` returned no result list", self.kind.name()))
            })?;
        let mut results: Vec<WebSearchResult> = Vec::new();
        for hit in list.iter().filter_map(WebSearchResult::parse) {
            if results.len() < count && !results.iter().any(|known| known.url == hit.url) {
                results.push(hit);
            }
        }
        let silent = body.pointer("/unresponsive_engines").and_then(Value::as_array);
        let silent: Vec<String> = silent.into_iter().flatten().filter_map(unresponsive_engine).collect();
        if results.is_empty() && !silent.is_empty() {
            return Err(WebError::Backend(format!(
                "no results, because engines did not respond: {}",
                silent.join(", ")
            )));
        }
        Ok(WebSearchResults { results, unresponsive_engines: silent })
    }

    /// The message for an unsuccessful status, with advice.
    fn status_error(&self, answer: &HttpResponse) -> String {
        let (name, status) = (self.kind.name(), answer.status.as_u16());
        let after = answer.headers.get(RETRY_AFTER).map(|after| String::from_utf8_lossy(after.as_bytes()));
        let after =
            after.map(|after| format!(" after {} s", after.chars().take(16).collect::<String>())).unwrap_or_default();
        let advice = match status {
            403 if self.kind == SearchEngineKind::SearXng => "add `json` to its `search.formats`".to_owned(),
            401 | 403 => "it rejected the API key; check the environment variable named by `key_env`".to_owned(),
            429 | 432 | 433 => format!("too many requests, or the quota is used up; try again{after}"),
            400 | 422 => "it rejected the query; use a shorter or simpler one".to_owned(),
            300..400 => "it redirects to another URL; set `url` to that".to_owned(),
            _ => format!("try again{after}"),
        };
        format!("the search engine `{name}` returned status {status}: {advice}")
    }
}

fn unresponsive_engine(entry: &Value) -> Option<String> {
    let name = entry.as_str().or_else(|| entry.get(0)?.as_str())?;
    let why = entry.get(1).and_then(Value::as_str).map(|why| format!(" ({why})")).unwrap_or_default();
    Some(plain_text(&format!("{name}{why}"), 100))
}

/// Results of a search engine.
#[derive(Debug)]
pub(crate) struct WebSearchResults {
    pub(crate) results: Vec<WebSearchResult>,
    /// Engines behind it that did not answer.
    pub(crate) unresponsive_engines: Vec<String>,
}

/// One result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WebSearchResult {
    pub(crate) title: String,
    pub(crate) url: String,
    pub(crate) snippet: String,
    pub(crate) published: Option<String>,
}

impl WebSearchResult {
    /// Nothing where there is no link that can be followed.
    fn parse(entry: &Value) -> Option<Self> {
        let text =
            |names: &[&str]| names.iter().find_map(|name| entry.get(name)?.as_str().filter(|text| !text.is_empty()));
        let mut url = Url::parse(text(&["url", "link", "href"])?).ok()?;
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some() {
            return None;
        }
        url.set_fragment(None);
        let clean = |names: &[&str], most| plain_text(text(names).unwrap_or_default(), most);
        Some(Self {
            title: clean(&["title", "name"], MAX_TITLE_CHARS),
            url: url.into(),
            snippet: clean(&["content", "description", "snippet", "text", "body"], MAX_SNIPPET_CHARS),
            published: text(&["publishedDate", "published_date", "page_age", "date"]).map(|date| plain_text(date, 40)),
        })
    }
}
