//! Malformed and hostile input from MCP clients.

use ringfence_testkit::mcp_client::StdioMcpClient;
use ringfence_testkit::patience::{wait_for, wait_until};
use serde_json::{Value, json};

use crate::site::TestSite;

fn client(site: &TestSite) -> StdioMcpClient {
    StdioMcpClient::with_handshake(site, &["--preset", "edits"], json!({}))
}

/// It is still there, and says nothing else before.
fn check_alive(client: &mut StdioMcpClient) {
    let id = client.send_request("ping", json!({}));
    let said = client.next_message();
    assert_eq!((&said["id"], &said["result"]), (&json!(id), &json!({})), "{said}");
}

#[test]
fn an_invalid_line_gets_a_parse_error() {
    let site = TestSite::new();
    let mut client = client(&site);
    let cases: [(&[u8], i64); 11] = [
        (b"this is not JSON\n", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":900,\"method\"\n", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":900,\"method\":\"p\xffng\"}\n", -32700),
        (b"\xff\xfe\x00\n", -32700),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":900,\"method\":\"ping\"}]\n", -32600),
        (b"{}\n", -32600),
        (b"7\n", -32600),
        (b"null\n", -32600),
        (b"{\"jsonrpc\":\"1.0\",\"id\":900,\"method\":\"ping\"}\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}\n", -32600),
    ];
    for (line, code) in cases {
        client.send_raw(line);
        let said = client.next_message();
        assert_eq!(said["error"]["code"], code, "{}: {said}", String::from_utf8_lossy(line));
        check_alive(&mut client);
    }
}

#[test]
fn empty_lines_are_nothing() {
    let site = TestSite::new();
    let mut client = client(&site);
    client.send_raw(b"\n   \n\r\n");
    check_alive(&mut client);
}

#[test]
fn deep_nesting_is_refused() {
    let site = TestSite::new();
    let mut client = client(&site);
    let deep = "[".repeat(200_000);
    client.send_raw(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{deep}"#).as_bytes());
    client.send_raw(b"\n");
    assert_eq!(client.next_message()["error"]["code"], -32700);
    check_alive(&mut client);
}

#[test]
fn a_key_that_stands_twice_is_refused_with_its_name() {
    let site = TestSite::new();
    site.write("a", "1");
    site.write("b", "2");
    let mut client = client(&site);
    client.send_raw(
        concat!(
            r#"{"jsonrpc":"2.0","id":50,"method":"tools/call","#,
            r#""params":{"name":"delete_file","arguments":{"path":"a","path":"b"}}}"#,
            "\n"
        )
        .as_bytes(),
    );
    let said = client.next_message();
    assert_eq!((&said["id"], &said["error"]["code"]), (&json!(50), &json!(-32600)), "{said}");
    assert!(said["error"]["message"].as_str().unwrap().contains("`path`"), "{said}");
    assert_eq!((site.read("a"), site.read("b")), ("1".to_owned(), "2".to_owned()));
}

#[test]
fn a_line_that_is_too_long_is_refused_and_the_next_one_is_served() {
    let site = TestSite::new();
    let mut client = client(&site);
    client.send_raw(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":""#);
    let part = vec![b'x'; 1 << 20];
    (0..34).for_each(|_| client.send_raw(&part));
    client.send_raw(b"\n");
    let said = client.next_message();
    assert_eq!(said["error"]["code"], -32600, "{said}");
    check_alive(&mut client);
}

#[test]
fn a_path_of_a_megabyte_is_an_error_like_any_other() {
    let site = TestSite::new();
    let mut client = client(&site);
    let result = client.call("read_file", json!({"path": "x/".repeat(1 << 19)}));
    assert_eq!(result["isError"], true);
    assert!(result.to_string().len() < 10_000);
}

#[test]
fn half_a_message_at_the_end_is_told_so() {
    let site = TestSite::new();
    let mut client = client(&site);
    client.send_raw(br#"{"jsonrpc":"2.0","id":1,"meth"#);
    let (code, rest, _) = client.close();
    assert_eq!((code, &rest[0]["error"]["code"]), (Some(0), &json!(-32700)), "{rest:?}");
}

#[test]
fn unexpected_notifications_and_responses_are_ignored() {
    let site = TestSite::new();
    let mut client = StdioMcpClient::start(&site, &[]);
    client.notify("notifications/cancelled", json!({"requestId": 77}));
    client.notify("notifications/no_such", json!({}));
    client.send(&json!({"jsonrpc": "2.0", "id": 5, "result": {}}));
    client.send(&json!({"jsonrpc": "2.0", "id": 5, "error": {"code": 1, "message": "x"}}));
    assert_eq!(client.initialize("2025-11-25", json!({}))["result"]["serverInfo"]["name"], "ringfence");
}

/// A tree that takes long to be searched.
pub(crate) fn create_large_tree(site: &TestSite) {
    site.write("first", "lorem ipsum dolor sit amet consetetur sadipscing elitr\n".repeat(20_000));
    for number in 0..600 {
        std::fs::hard_link(site.workspace.join("first"), site.workspace.join(number.to_string())).unwrap();
    }
}

/// The arguments of a search in it that finds nothing.
pub(crate) fn slow_search() -> Value {
    json!({"path": ".", "pattern": "(?-u)(?:[a-z]{1,30} ?){1,20}[0-9]{3}", "regex": true})
}

#[test]
fn a_long_call_holds_up_neither_ping_nor_other_reads() {
    let site = TestSite::in_memory();
    create_large_tree(&site);
    site.write("a", "1");
    let mut client = client(&site);
    let long = client.send_tool_call("search_files", slow_search());
    for _ in 0..20 {
        let id = client.send_request("ping", json!({}));
        client.answer(id);
        assert_eq!(client.call("read_file", json!({"path": "a"}))["isError"], false);
    }
    assert!(!client.received().iter().any(|message| message["id"] == long), "the long call was over before the others");
    client.notify("notifications/cancelled", json!({"requestId": long}));
    check_alive(&mut client);
}

#[test]
fn a_cancelled_call_ends_its_work_and_is_not_answered() {
    let site = TestSite::in_memory();
    create_large_tree(&site);
    let mut client = client(&site);
    let long = client.send_tool_call("search_files", slow_search());
    let id = client.send_request("ping", json!({}));
    client.answer(id);
    client.notify("notifications/cancelled", json!({"requestId": long}));
    // The record says how it ended.
    wait_until("the record of the cancelled call", || {
        let shown = site.run(&["audit", "show", "--json"]).out;
        shown.lines().any(|line| line.contains("search_files") && line.contains("CANCELLED"))
    });
    check_alive(&mut client);
    assert!(!client.received().iter().any(|message| message["id"] == long));
}

#[test]
fn an_id_that_is_in_use_is_refused() {
    let site = TestSite::in_memory();
    create_large_tree(&site);
    let mut client = client(&site);
    let long = client.send_tool_call("search_files", slow_search());
    client.send(&json!({"jsonrpc": "2.0", "id": long, "method": "ping"}));
    let said = client.answer(long);
    assert_eq!(said["error"]["code"], -32600, "{said}");
    client.notify("notifications/cancelled", json!({"requestId": long}));
    check_alive(&mut client);
}

#[test]
fn a_flood_of_calls_is_answered_one_by_one_or_refused() {
    let site = TestSite::in_memory();
    site.write("a", "1");
    let mut client = client(&site);
    let mut lines = String::new();
    for id in 1000..6000 {
        let params = json!({"name": "read_file", "arguments": {"path": "a"}});
        lines += &format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }
    client.send_raw(lines.as_bytes());
    let mut answered: Vec<i64> = (0..5000)
        .map(|_| {
            let said = client.next_message();
            let fine = said["result"]["isError"] == false || said["error"]["code"] == -32000;
            assert!(fine, "{said}");
            said["id"].as_i64().unwrap()
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (1000..6000).collect::<Vec<i64>>());
    check_alive(&mut client);
}

#[test]
fn it_opens_no_terminal() {
    let site = TestSite::new();
    site.write("a", "1");
    // This client cannot show an approval request, so a call that needs one would open a terminal.
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], json!({}));
    let fds = format!("/proc/{}/fd", client.process.child.id());
    client.send_tool_call("delete_file", json!({"path": "a"}));
    wait_for_request(&site);
    let names = std::fs::read_dir(fds).unwrap().filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let terminals: Vec<_> = names.filter(|name| name.starts_with("/dev/tty") || name.starts_with("/dev/pts")).collect();
    assert!(terminals.is_empty(), "{terminals:?}");
}

/// Returns when a request waits for its answer: its id.
pub(crate) fn wait_for_request(site: &TestSite) -> String {
    wait_for("an approval request", || {
        let listed = site.run(&["approvals", "list", "--json"]);
        let requests: Vec<Value> = serde_json::from_str(&listed.out).unwrap_or_default();
        Some(requests.first()?["id"].as_str().unwrap().to_owned())
    })
}
