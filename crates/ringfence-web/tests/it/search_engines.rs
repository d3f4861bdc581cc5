//! Search engines: requests, result parsing, and errors.

use ringfence_kernel::Taint;
use ringfence_web::{SearchEngine, SearchEngineKind, WebApiKey};
use serde_json::{Value, json};

use crate::harness::{TestHttpServer, WebTestHost, WebTestSetup, response_with_type};

fn key() -> Option<WebApiKey> {
    Some(WebApiKey::new("k-secret".to_owned()))
}

/// An engine that always answers so.
fn world(kind: SearchEngineKind, path: &str, answer: String) -> (WebTestHost, TestHttpServer) {
    let server = TestHttpServer::with_answer("127.0.0.1:0", &answer);
    let url = format!("http://{}{path}", server.address);
    let engine = SearchEngine::new(kind, Some(&url), key()).unwrap();
    (WebTestSetup { engine: Some(engine), rules: Vec::new(), ..WebTestSetup::default() }.build(), server)
}

fn search(world: &WebTestHost) -> Value {
    world.call("web_search", &json!({"query": "ring  fence & co", "numResults": 2}))
}

const SEARXNG: &str = r#"{"query": "q", "results": [
    {"url": "https://a.org/x#y", "title": "<b>A</b> &amp; B", "content": "one <em>two</em><script>x</script>", "publishedDate": "2026-01-02", "engine": "e"},
    {"url": "https://a.org/x#z", "title": "again", "content": ""},
    {"url": "javascript:alert(1)", "title": "no", "content": ""},
    {"title": "no link"},
    {"url": "https://b.org/", "title": "C", "content": null},
    {"url": "https://c.org/", "title": "too many"}], "unresponsive_engines": [["slow", "timeout"]]}"#;

#[test]
fn each_engine_is_asked_in_its_own_way_and_answers_in_ours() {
    let brave = r#"{"web": {"results": [{"title": "<strong>A</strong> &amp; B", "url": "https://a.org/x", "description": "one <em>two</em>", "page_age": "2026-01-02"}, {"title": "C", "url": "https://b.org/"}]}}"#;
    let tavily = r#"{"results": [{"title": "A & B", "url": "https://a.org/x", "content": "one two", "published_date": "2026-01-02"}, {"title": "C", "url": "https://b.org/", "content": ""}]}"#;
    let generic = r#"{"items": [{"name": "A & B", "link": "https://a.org/x", "snippet": "one two", "date": "2026-01-02"}, {"name": "C", "link": "https://b.org/"}]}"#;
    let bare = r#"[{"title": "A & B", "url": "https://a.org/x", "description": "one two", "date": "2026-01-02"}, {"title": "C", "url": "https://b.org/"}]"#;
    for (kind, path, answer, head, header) in [
        (
            SearchEngineKind::SearXng,
            "",
            SEARXNG,
            "GET /search?q=ring+fence+%26+co&format=json HTTP/1.1",
            "authorization: Bearer k-secret",
        ),
        (
            SearchEngineKind::SearXng,
            "/searx/search",
            SEARXNG,
            "GET /searx/search?q=ring+fence+%26+co&format=json HTTP/1.1",
            "",
        ),
        (
            SearchEngineKind::Brave,
            "/res",
            brave,
            "GET /res?q=ring+fence+%26+co&count=2 HTTP/1.1",
            "x-subscription-token: k-secret",
        ),
        (
            SearchEngineKind::Tavily,
            "/search",
            tavily,
            "POST /search HTTP/1.1",
            r#"{"query":"ring fence & co","max_results":2}"#,
        ),
        (
            SearchEngineKind::Generic,
            "/s?q={query}&n={count}",
            generic,
            "GET /s?q=ring+fence+%26+co&n=2 HTTP/1.1",
            "accept: application/json",
        ),
        (SearchEngineKind::Generic, "/s?q={query}", bare, "GET /s?q=ring+fence+%26+co HTTP/1.1", ""),
    ] {
        let (world, server) = world(kind, path, response_with_type("application/json", answer));
        let reply = search(&world);
        let expected = json!([
            {"title": "A & B", "url": "https://a.org/x", "snippet": "one two", "published": "2026-01-02"},
            {"title": "C", "url": "https://b.org/", "snippet": ""},
        ]);
        assert_eq!(reply["value"]["results"], expected, "{kind:?}: {reply}");
        assert_eq!(reply["value"]["engine"], kind.name());
        let asked = server.heads().remove(0);
        assert!(asked.starts_with(head) && asked.contains(header), "{kind:?}: {asked}");
        assert!(world.asked.lock().unwrap().is_empty(), "nobody is asked about the engine of their choice");
        assert!(world.session.taint.contains(Taint::SawUntrusted) && world.session.taint.contains(Taint::HasEgress));
        assert_eq!(world.trace.event_paths()[0], format!("begin {}", server.address));
    }
}

#[test]
fn unresponsive_engines_are_reported() {
    let (world, _) = world(SearchEngineKind::SearXng, "", response_with_type("application/json", SEARXNG));
    assert_eq!(search(&world)["value"]["silent"], json!(["slow (timeout)"]));
    let empty = r#"{"results": [], "unresponsive_engines": [["slow", "timeout"], "other"]}"#;
    let (world, _) = self::world(SearchEngineKind::SearXng, "", response_with_type("application/json", empty));
    let reply = search(&world);
    assert_eq!(reply["error"]["message"], "no results, because engines did not respond: slow (timeout), other");
    let (world, _) =
        self::world(SearchEngineKind::SearXng, "", response_with_type("application/json", r#"{"results": []}"#));
    assert_eq!(search(&world)["value"]["results"], json!([]));
}

#[test]
fn an_engine_that_refuses_says_what_to_do() {
    let status = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    for (kind, answer, message) in [
        (SearchEngineKind::SearXng, status("403 x"), "status 403: add `json` to its `search.formats`"),
        (SearchEngineKind::Brave, status("401 x"), "status 401: it rejected the API key"),
        (SearchEngineKind::Tavily, status("429 x\r\nRetry-After: 7"), "try again after 7 s"),
        (SearchEngineKind::Tavily, status("432 x"), "quota"),
        (SearchEngineKind::Brave, status("422 x"), "shorter or simpler"),
        (SearchEngineKind::SearXng, status("502 x"), "status 502: try again"),
        (SearchEngineKind::SearXng, status("302 x\r\nLocation: http://127.0.0.1/"), "redirects to another URL"),
        (SearchEngineKind::SearXng, response_with_type("text/html", "<html>"), "did not respond with JSON"),
        (SearchEngineKind::Generic, response_with_type("application/json", "{}"), "returned no result list"),
    ] {
        let path = if kind == SearchEngineKind::Generic { "/{query}" } else { "" };
        let (world, server) = world(kind, path, answer);
        let reply = search(&world);
        assert_eq!(reply["error"]["code"], "NETWORK_ERROR", "{message}: {reply}");
        let said = reply["error"]["message"].as_str().unwrap();
        assert!(said.contains(message), "{message}: {said}");
        assert!(!reply.to_string().contains("k-secret"));
        assert_eq!(server.hits(), 1);
    }
}

#[test]
fn without_an_engine_the_tool_is_listed_and_says_what_to_set() {
    let world = WebTestSetup::default().build();
    let listed = world.session.catalog.get("web_search").unwrap();
    assert!(listed.description().contains("Unavailable: no search engine"), "{}", listed.description());
    let reply = search(&world);
    assert_eq!(reply["error"]["code"], "UNAVAILABLE");
    assert!(reply["error"]["message"].as_str().unwrap().contains("[web.search]"), "{reply}");
}

#[test]
fn an_engine_on_this_machine_is_the_searches_alone() {
    let (world, server) = world(SearchEngineKind::SearXng, "", response_with_type("application/json", SEARXNG));
    let (code, _) = world.error(json!({"url": format!("http://{}/", server.address)}));
    assert_eq!(code, "NETWORK_ERROR");
    assert_eq!(server.hits(), 0);
}

#[test]
fn an_invalid_query_is_refused() {
    let (world, server) = world(SearchEngineKind::SearXng, "", response_with_type("application/json", SEARXNG));
    for wrong in [
        json!({"query": " "}),
        json!({"query": "x".repeat(401)}),
        json!({"query": "x", "numResults": 0}),
        json!({"query": "x", "numResults": 21}),
    ] {
        assert_eq!(world.call("web_search", &wrong)["error"]["code"], "INVALID_ARGS", "{wrong}");
    }
    assert_eq!(server.hits(), 0);
}

#[test]
fn an_engine_that_cannot_be_used_says_what_is_missing() {
    for (kind, url, key, missing) in [
        (SearchEngineKind::SearXng, None, None, "needs `url`"),
        (SearchEngineKind::Generic, Some("https://a.org/"), None, "{query}"),
        (SearchEngineKind::Brave, None, None, "key_env"),
        (SearchEngineKind::Tavily, None, None, "key_env"),
        (SearchEngineKind::SearXng, Some("ftp://a.org/"), None, "must be an `https://` or `http://` URL"),
        (SearchEngineKind::SearXng, Some("https://a:b@c.org/"), None, "user name or password"),
        (SearchEngineKind::SearXng, Some("nonsense"), None, "is not valid"),
    ] {
        assert!(SearchEngine::new(kind, url, key).unwrap_err().contains(missing), "{kind:?} {url:?}");
    }
    assert!(!format!("{:?}", SearchEngine::new(SearchEngineKind::Brave, None, key()).unwrap()).contains("k-secret"));
}
