//! Token identity: a new token with the name of a revoked one owns nothing of that one.

use ringfence::store::STORE_FILE;
use ringfence_testkit::mcp_client::LAST_HANDSHAKE;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::api::{scripted_model_config, wait_for_run};
use crate::api_client::{ApiTestClient, TestApiServer};
use crate::api_policy::{initialize_mcp, send_mcp};
use crate::site::TestSite;

const RULES: &str = "preset = \"edits\"\n\
                     [[rules]]\ndecision = \"allow\"\neffect = \"read\"\nsecret = true\n\
                     [[rules]]\ndecision = \"deny\"\neffect = \"create\"\nwhen = \"read-secret\"\n";

/// Form of the first token in the store.
#[derive(Clone, Copy, Debug)]
enum TokenEntry {
    Current,
    /// As it is imported from version 0.1.0: without an id.
    Legacy,
}

/// A site with a model and a file that may hold secrets, and its config.
fn prepare_site() -> (TestSite, String) {
    let site = TestSite::new();
    site.write(".env", "KEY=1\n");
    let config = scripted_model_config(&site);
    let model = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{RULES}{model}")).unwrap();
    (site, config)
}

fn make_token<'a>(server: &'a TestApiServer, site: &TestSite, entry: TokenEntry) -> ApiTestClient<'a> {
    let caller = server.agent(site, "agent");
    if let TokenEntry::Legacy = entry {
        let store = Connection::open(site.state.join(STORE_FILE)).unwrap();
        let query = "UPDATE tokens SET body = json_remove(body, '$.id') WHERE name = 'agent'";
        assert_eq!(store.execute(query, []).unwrap(), 1);
    }
    caller
}

fn begin_keyed(caller: &ApiTestClient<'_>) -> (String, bool) {
    let token = format!("Bearer {}", caller.token);
    let headers = [("Authorization", token.as_str()), ("Idempotency-Key", "k")];
    let got = caller.server.send("POST", "/v1/sessions", &headers, Some("{}"));
    assert_eq!(got.status, 201, "{got:?}");
    (got.json()["id"].as_str().unwrap().to_owned(), got.header("idempotency-replayed").is_some())
}

/// Resources that the first token leaves behind.
#[derive(Debug)]
struct TokenResources {
    session: String,
    mcp_session: String,
    run: String,
    first_event: u64,
}

fn leave_behind(caller: &ApiTestClient<'_>) -> TokenResources {
    let mut events = caller.events("/v1/events");
    let (session, _) = begin_keyed(caller);
    let first_event = events.next().1["id"].as_u64().unwrap();
    assert_eq!(caller.call(&session, "read_file", json!({"path": ".env"}))["error"], Value::Null);
    let denied = caller.call(&session, "write_file", json!({"path": "old", "content": ""}));
    assert_eq!(denied["error"], "PERMISSION_DENIED", "{denied}");
    let run = caller.post("/v1/runs", &json!({"prompt": "write it"})).json()["id"].as_str().unwrap().to_owned();
    wait_for_run(caller, &run);
    TokenResources { session, mcp_session: initialize_mcp(caller), run, first_event }
}

/// Nothing of it is there for this token.
fn check_inherits_nothing(caller: &ApiTestClient<'_>, left: &TokenResources) {
    assert_eq!(caller.get("/v1/sessions")["sessions"], json!([]));
    assert_eq!(caller.get("/v1/runs")["runs"], json!([]));
    let call = json!({"name": "read_file", "arguments": {"path": ".env"}});
    let (session, run) = (format!("/v1/sessions/{}", left.session), format!("/v1/runs/{}", left.run));
    for (method, path, body) in [
        ("GET", session.clone(), None),
        ("POST", format!("{session}/calls"), Some(&call)),
        ("DELETE", session, None),
        ("GET", run.clone(), None),
        ("POST", format!("{run}/cancel"), Some(&json!({}))),
    ] {
        assert_eq!(caller.send(method, &path, body).status, 404, "{method} {path}");
    }
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let headers = [("Mcp-Session-Id", left.mcp_session.as_str()), ("MCP-Protocol-Version", LAST_HANDSHAKE)];
    assert_eq!(send_mcp(caller, &headers, &message).status, 404);
}

#[test]
fn a_token_with_the_name_of_a_revoked_one_inherits_nothing() {
    for entry in [TokenEntry::Current, TokenEntry::Legacy] {
        let (site, config) = prepare_site();
        let server = TestApiServer::start(&site, &["--config", &config]);
        let old = make_token(&server, &site, entry);
        let left = leave_behind(&old);
        assert_eq!(site.run(&["token", "revoke", "agent"]).code, Some(0));
        let new = server.agent(&site, "agent");
        check_inherits_nothing(&new, &left);
        // The first event that it hears is about its own session.
        let mut events = new.events(&format!("/v1/events?after={}", left.first_event - 1));
        let (session, is_replayed) = begin_keyed(&new);
        assert!(!is_replayed && session != left.session, "{entry:?}");
        assert_eq!(events.next().1["session"]["id"], session, "{entry:?}");
        // It has read no secret, and people still see its name.
        let made = new.call(&session, "write_file", json!({"path": "new", "content": ""}));
        assert_eq!(made["error"], Value::Null, "{entry:?}: {made}");
        assert_eq!(events.next().1["principal"], "agent", "{entry:?}");
        assert_eq!(new.get(&format!("/v1/sessions/{session}"))["principal"], "agent", "{entry:?}");
        assert!(site.run(&["token", "list"]).out.contains("  agent  call"), "{entry:?}");
    }
}

#[test]
fn a_token_keeps_what_it_owns_after_a_restart_and_a_new_one_of_its_name_does_not_get_it() {
    for entry in [TokenEntry::Current, TokenEntry::Legacy] {
        let (site, config) = prepare_site();
        let server = TestApiServer::start(&site, &["--config", &config]);
        let old = make_token(&server, &site, entry);
        let (left, token) = (leave_behind(&old), old.token.clone());
        drop(server);
        let server = TestApiServer::start(&site, &["--config", &config]);
        let old = ApiTestClient { server: &server, token };
        assert_eq!(begin_keyed(&old), (left.session.clone(), true), "{entry:?}");
        assert_eq!(old.get("/v1/sessions")["sessions"][0]["id"], left.session, "{entry:?}");
        assert_eq!(old.get("/v1/runs")["runs"][0]["id"], left.run, "{entry:?}");
        assert_eq!(site.run(&["token", "revoke", "agent"]).code, Some(0));
        check_inherits_nothing(&server.agent(&site, "agent"), &left);
    }
}
