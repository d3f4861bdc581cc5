//! `Idempotency-Key`: a request that is sent again does nothing again.

use serde_json::{Value, json};

use crate::api_client::{ApiTestClient, ApiTestResponse, TestApiServer};
use crate::site::TestSite;

fn send_keyed(caller: &ApiTestClient<'_>, path: &str, key: &str, body: &Value) -> ApiTestResponse {
    let token = format!("Bearer {}", caller.token);
    let headers = [("Authorization", token.as_str()), ("Idempotency-Key", key)];
    caller.server.send("POST", path, &headers, Some(&body.to_string()))
}

fn append(text: &str) -> Value {
    json!({"name": "append_file", "arguments": {"path": "log.txt", "content": text}})
}

#[test]
fn the_same_key_and_body_give_the_reply_of_the_first_and_do_nothing_again() {
    let site = TestSite::new();
    let config = site.current.join("config.toml");
    std::fs::write(&config, "preset = \"edits\"\n").unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let server = TestApiServer::start(&site, &arguments);
    let agent = server.agent(&site, "agent");
    let session = agent.create_session(&json!({}));
    let path = format!("/v1/sessions/{session}/calls");
    let first = send_keyed(&agent, &path, "k1", &append("x"));
    assert_eq!((first.status, first.header("idempotency-replayed")), (200, None));
    let again = send_keyed(&agent, &path, "k1", &append("x"));
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(site.read("log.txt"), "x");
    // Other arguments are another request.
    assert_eq!(send_keyed(&agent, &path, "k1", &append("y")).status, 409);
    // Another key, no key, another session or another token: each is a request of its own, whatever the id of the call.
    let with_id = json!({"id": "same", "name": "append_file", "arguments": {"path": "log.txt", "content": "x"}});
    assert_eq!(send_keyed(&agent, &path, "k2", &append("x")).status, 200);
    assert_eq!(agent.post(&path, &with_id).status, 200);
    assert_eq!(agent.post(&path, &with_id).status, 200, "the id of a call is not a key");
    let second = agent.create_session(&json!({}));
    assert_eq!(send_keyed(&agent, &format!("/v1/sessions/{second}/calls"), "k1", &append("x")).status, 200);
    let other = server.agent(&site, "other");
    let theirs = other.create_session(&json!({}));
    assert_eq!(send_keyed(&other, &format!("/v1/sessions/{theirs}/calls"), "k1", &append("x")).status, 200);
    assert_eq!(site.read("log.txt"), "xxxxxx");
    // What was refused may be tried again with the same key.
    let nowhere = send_keyed(&agent, "/v1/sessions/none/calls", "k3", &append("x"));
    assert_eq!((nowhere.status, send_keyed(&agent, "/v1/sessions/none/calls", "k3", &append("x")).status), (404, 404));
    assert_eq!(send_keyed(&agent, &path, "two words", &append("x")).status, 400);
    // It holds after a restart.
    let token = agent.token.clone();
    drop(server);
    let server = TestApiServer::start(&site, &arguments);
    let agent = ApiTestClient { server: &server, token };
    let late = send_keyed(&agent, &path, "k1", &append("x"));
    assert_eq!((late.status, &late.body), (200, &first.body));
    assert_eq!(site.read("log.txt"), "xxxxxx");
}

#[test]
fn the_same_key_at_once_runs_once() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--preset", "edits"]);
    let agent = server.agent(&site, "agent");
    let session = agent.create_session(&json!({}));
    let path = format!("/v1/sessions/{session}/calls");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let sent: Vec<_> =
            (0..8).map(|_| scope.spawn(|| send_keyed(&agent, &path, "k", &append("x")).status)).collect();
        sent.into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    assert!(statuses.contains(&200) && statuses.iter().all(|status| [200, 409].contains(status)), "{statuses:?}");
    assert_eq!(site.read("log.txt"), "x");
}
