//! Roots, resources, progress and log messages of `ringfence mcp`.

use ringfence_testkit::mcp_client::{StdioMcpClient, text};
use serde_json::{Value, json};

use crate::site::TestSite;

fn site() -> TestSite {
    let site = TestSite::new();
    site.write("src/a.txt", "one\n");
    site.write("doc/b.txt", "two\n");
    site.write("picture", [0xff, 0xd8, 0x00]);
    site.write(".env", "KEY=hidden\n");
    site
}

/// A client with these roots, which it was asked for when it made its first call.
fn with_roots(site: &TestSite, roots: &[String]) -> StdioMcpClient {
    let mut client =
        StdioMcpClient::with_handshake(site, &["--preset", "edits"], json!({"roots": {"listChanged": true}}));
    let id = client.send_tool_call("get_file_info", json!({"path": "."}));
    send_roots(&mut client, roots);
    client.answer(id);
    client
}

fn send_roots(client: &mut StdioMcpClient, roots: &[String]) {
    let asked = client.next_of_method("roots/list");
    let roots: Vec<Value> = roots.iter().map(|uri| json!({"uri": uri})).collect();
    client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": roots}}));
}

fn can_read(client: &mut StdioMcpClient, path: &str) -> bool {
    client.call("read_file", json!({"path": path}))["isError"] == false
}

fn uri(site: &TestSite, below: &str) -> String {
    format!("file://{}{below}", site.workspace.display())
}

#[test]
fn roots_narrow_what_a_session_reaches_and_never_widen_it() {
    let site = site();
    let cases: [(Vec<String>, bool, bool); 7] = [
        (vec![], true, true),
        (vec![uri(&site, "")], true, true),
        (vec!["file:///".to_owned()], true, true),
        (vec![uri(&site, "/src")], true, false),
        (vec![uri(&site, "/s%72c/"), uri(&site, "/doc")], true, true),
        (vec![format!("file://{}", site.outside.display())], false, false),
        (vec![uri(&site, "/no-such"), "https://example.com".to_owned()], false, false),
    ];
    for (roots, src, doc) in cases {
        let mut client = with_roots(&site, &roots);
        assert_eq!((can_read(&mut client, "src/a.txt"), can_read(&mut client, "doc/b.txt")), (src, doc), "{roots:?}");
        assert!(!can_read(&mut client, "../outside/secret"));
        assert!(!can_read(&mut client, "src/../../outside/secret"));
        let said = client.request("resources/read", json!({"uri": "ringfence:///doc/b.txt"}));
        assert_eq!(said.get("result").is_some(), doc, "{roots:?}: {said}");
        let written = client.call("write_file", json!({"path": "doc/new.txt", "content": "x"}));
        assert_eq!(written["isError"], !doc, "{roots:?}");
    }
}

#[test]
fn a_search_of_a_part_does_not_look_beyond_it() {
    let site = site();
    let mut client = with_roots(&site, &[uri(&site, "/src")]);
    let found = client.call("search_files", json!({"path": "src", "pattern": "o"}));
    assert!(text(&found).contains("a.txt"), "{found}");
    let beyond = client.call("search_files", json!({"path": ".", "pattern": "o"}));
    assert_eq!(beyond["isError"], true, "{beyond}");
    assert!(text(&beyond).contains("`src`"), "{beyond}");
}

#[test]
fn roots_that_change_are_asked_for_again() {
    let site = site();
    let mut client = with_roots(&site, &[uri(&site, "/src")]);
    assert!(!can_read(&mut client, "doc/b.txt"));
    client.notify("notifications/roots/list_changed", json!({}));
    let id = client.send_tool_call("read_file", json!({"path": "doc/b.txt"}));
    send_roots(&mut client, &[uri(&site, "/doc")]);
    assert_eq!(client.result(id)["isError"], false);
    assert!(!can_read(&mut client, "src/a.txt"));
}

#[test]
fn files_are_read_as_resources_by_the_same_rules() {
    let site = site();
    for start in [StdioMcpClient::with_handshake, StdioMcpClient::stateless] {
        let mut client = start(&site, &[], json!({"elicitation": {}}));
        let templates = client.request("resources/templates/list", json!({}));
        assert_eq!(templates["result"]["resourceTemplates"][0]["uriTemplate"], "ringfence:///{+path}");
        assert_eq!(client.request("resources/list", json!({}))["result"]["resources"], json!([]));
        let read = |client: &mut StdioMcpClient, path: &str| {
            client.request("resources/read", json!({"uri": format!("ringfence:///{path}")}))
        };
        assert_eq!(read(&mut client, "src/a%2Etxt")["result"]["contents"][0]["text"], "one\n");
        assert_eq!(read(&mut client, "picture")["result"]["contents"][0]["blob"], "/9gA");
        // Reading a resource never requests approval.
        for path in ["../outside/secret", "%2e%2e/outside/secret", ".env", "src", "%ff", ""] {
            let said = read(&mut client, path);
            assert_eq!(said["error"]["code"], -32602, "{path}: {said}");
            assert!(!said.to_string().contains("hidden") && !said.to_string().contains("SECRET"));
        }
        let missing = read(&mut client, "missing")["error"]["code"].as_i64().unwrap();
        assert!([-32002, -32602].contains(&missing), "{missing}");
    }
}

#[test]
fn a_long_call_reports_progress_that_goes_up() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &[], json!({}));
    // It waits for a person, who does not come.
    let params = json!({"name": "read_file", "arguments": {"path": ".env"}, "_meta": {"progressToken": "t"}});
    client.send_request("tools/call", params);
    let mut last = 0.0;
    for words in ["requires a person's approval", "running for"] {
        let told = client.next_of_method("notifications/progress")["params"].clone();
        assert_eq!(told["progressToken"], "t");
        assert!(told["progress"].as_f64().unwrap() > last && told.to_string().contains(words), "{told}");
        last = told["progress"].as_f64().unwrap();
    }
    assert!(!client.received().iter().any(|message| message["id"] == 2), "it is not over");
}

#[test]
fn a_client_hears_what_its_level_lets_through() {
    let site = site();
    let logged = |client: &mut StdioMcpClient| {
        let said = client.received();
        said.iter().filter(|message| message["method"] == "notifications/message").count()
    };
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "read-only"], json!({}));
    client.call("read_file", json!({"path": "src/a.txt"}));
    assert_eq!(logged(&mut client), 0);
    client.call("write_file", json!({"path": "x", "content": "x"}));
    assert_eq!(logged(&mut client), 1, "a refusal is a warning");
    assert_eq!(client.request("logging/setLevel", json!({"level": "info"}))["result"], json!({}));
    client.call("read_file", json!({"path": "src/a.txt"}));
    assert_eq!(logged(&mut client), 2);
    client.request("logging/setLevel", json!({"level": "emergency"}));
    client.call("write_file", json!({"path": "x", "content": "x"}));
    assert_eq!(logged(&mut client), 2);
    let mut client = StdioMcpClient::stateless(&site, &["--preset", "read-only"], json!({}));
    client.call("write_file", json!({"path": "x", "content": "x"}));
    assert_eq!(logged(&mut client), 0, "it did not ask for any");
    let meta = json!({"io.modelcontextprotocol/logLevel": "warning"});
    let params = json!({"name": "write_file", "arguments": {"path": "x", "content": "x"}, "_meta": meta});
    client.request("tools/call", params);
    assert_eq!(logged(&mut client), 1);
}
