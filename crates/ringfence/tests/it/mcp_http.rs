//! `ringfence serve`: authentication, and the same rules as in the other fronts.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Instant;

use ringfence::store::SqliteStore;
use ringfence::store::tokens::TokenStore;
use ringfence_kernel::AuthScope;
use ringfence_testkit::mcp_client::{LAST_HANDSHAKE, STATELESS, text};
use ringfence_testkit::patience::PATIENCE;
use serde_json::{Value, json};

use crate::site::TestSite;

/// A server process, and a token for it.
pub(crate) struct TestMcpServer {
    pub(crate) child: Child,
    pub(crate) address: String,
    token: String,
}

impl Drop for TestMcpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A reply.
#[derive(Debug)]
struct McpHttpReply {
    status: u16,
    head: String,
    body: String,
}

impl McpHttpReply {
    /// The JSON-RPC message with an answer in it, from plain JSON or from a stream of events.
    fn message(&self) -> Value {
        let events = self.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        let found = events.chain([self.body.trim()]).filter_map(|text| serde_json::from_str::<Value>(text).ok());
        let is_answer = |message: &Value| message.get("result").is_some() || message.get("error").is_some();
        found.into_iter().find(is_answer).unwrap_or_else(|| panic!("no answer: {self:?}"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        Some(self.head.lines().find(named)?.split_once(':')?.1.trim())
    }
}

impl TestMcpServer {
    pub(crate) fn start(site: &TestSite, arguments: &[&str]) -> Self {
        let token = new_token(site, "agent");
        let mut command = site.command(&[&["serve", "--address", "127.0.0.1:0"], arguments].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap().split("/mcp").next().unwrap().to_owned();
        Self { child, address, token }
    }

    fn send(&self, headers: &[(&str, &str)], body: &[u8]) -> McpHttpReply {
        self.send_by("POST", headers, body)
    }

    fn send_by(&self, method: &str, headers: &[(&str, &str)], body: &[u8]) -> McpHttpReply {
        self.send_to("/mcp", method, headers, body)
    }

    /// A resource of the API beside it.
    fn get(&self, token: &str, path: &str) -> Value {
        let bearer = format!("Bearer {token}");
        let reply = self.send_to(path, "GET", &[("Authorization", &bearer)], b"");
        assert_eq!(reply.status, 200, "{reply:?}");
        serde_json::from_str(&reply.body).unwrap()
    }

    fn send_to(&self, path: &str, method: &str, headers: &[(&str, &str)], body: &[u8]) -> McpHttpReply {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n"
        );
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        // A server that has seen enough does not read the rest.
        let _ = stream.write_all(body);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let all = String::from_utf8_lossy(&bytes).into_owned();
        let (head, rest) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        McpHttpReply { status, head: head.to_owned(), body: if chunked { dechunk(rest) } else { rest.to_owned() } }
    }

    /// The response to a raw request, until the server closes the connection.
    fn until_closed(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.replace("HOST", &self.address).as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    }

    /// A request of a stateless client.
    fn ask(&self, token: &str, method: &str, mut params: Value) -> McpHttpReply {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        });
        let name = params["name"].as_str().unwrap_or("-").to_owned();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let bearer = format!("Bearer {token}");
        let mut headers =
            vec![("Authorization", bearer.as_str()), ("MCP-Protocol-Version", STATELESS), ("Mcp-Method", method)];
        if name != "-" {
            headers.push(("Mcp-Name", &name));
        }
        self.send(&headers, body.as_bytes())
    }

    fn call(&self, name: &str, arguments: Value) -> Value {
        let answer = self.ask(&self.token, "tools/call", json!({"name": name, "arguments": arguments}));
        answer.message()["result"].clone()
    }
}

/// The body without the marks of its pieces.
fn dechunk(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        if length == 0 {
            break;
        }
        body += &rest[..length];
        chunks = rest[length..].trim_start_matches("\r\n");
    }
    body
}

pub(crate) fn new_token(site: &TestSite, name: &str) -> String {
    let said = site.run(&["token", "new", name]);
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out.trim().to_owned()
}

fn ping() -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": LAST_HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
    .to_string()
    .into_bytes()
}

#[test]
fn a_request_without_a_token_is_rejected() {
    let site = TestSite::new();
    let served = TestMcpServer::start(&site, &[]);
    let good = format!("Bearer {}", served.token);
    assert_eq!(served.send(&[("Authorization", &good)], &ping()).status, 200);
    for bad in ["", "Bearer", "Bearer ", "Bearer rft_0000", &format!("Basic {}", served.token), &format!("{good}0")] {
        let answer = served.send(&[("Authorization", bad)], &ping());
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")), "{bad}: {answer:?}");
    }
    assert_eq!(served.send(&[], &ping()).status, 401);
    assert_eq!(site.run(&["token", "revoke", "agent"]).code, Some(0));
    assert_eq!(served.send(&[("Authorization", &good)], &ping()).status, 401, "a revoked token");
}

#[test]
fn requests_per_second_are_limited_here_too() {
    let site = TestSite::new();
    let served = TestMcpServer::start(&site, &["--rate", "1"]);
    let good = format!("Bearer {}", served.token);
    let statuses: Vec<u16> = (0..20).map(|_| served.send(&[("Authorization", &good)], b"{}").status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    let other = format!("Bearer {}", new_token(&site, "other"));
    assert_ne!(served.send(&[("Authorization", &other)], b"{}").status, 429);
}

#[test]
fn another_host_or_page_is_turned_away() {
    for public in [&[] as &[&str], &["--public-url", "https://rf.example.org"]] {
        let served_by = TestSite::new();
        let served = TestMcpServer::start(&served_by, &[public, &["--origin", "http://localhost:6274"]].concat());
        let good = format!("Bearer {}", served.token);
        let port = served.address.rsplit(':').next().unwrap();
        let if_public = if public.is_empty() { 403 } else { 200 };
        let cases = [
            ("Host", "evil.example".to_owned(), 403),
            ("Host", format!("localhost.evil.example:{port}"), 403),
            ("Host", format!("evil.example:{port}"), 403),
            ("Host", format!("localhost:{port}"), 200),
            ("Host", "localhost:8080".to_owned(), 200),
            ("Host", "rf.example.org".to_owned(), if_public),
            ("Host", "rf.example.org:8443".to_owned(), 403),
            ("Origin", "http://evil.example".to_owned(), 403),
            ("Origin", "null".to_owned(), 403),
            ("Origin", "http://localhost:1".to_owned(), 403),
            ("Origin", "http://127.0.0.1:1".to_owned(), 403),
            ("Origin", format!("http://localhost:{port}"), 403),
            ("Origin", format!("http://127.0.0.1:{port}"), 200),
            ("Origin", "http://localhost:6274".to_owned(), 200),
            ("Origin", "https://rf.example.org".to_owned(), if_public),
            ("Origin", "https://rf.example.org:8443".to_owned(), 403),
            ("Origin", "http://rf.example.org".to_owned(), 403),
        ];
        for (name, value, status) in cases {
            let answer = served.send(&[("Authorization", &good), (name, &value)], &ping());
            assert_eq!(answer.status, status, "{public:?} {name}: {value}: {answer:?}");
        }
        // Forwarding headers are ignored unless the operator trusts the proxy.
        let forged = [("X-Forwarded-Host", "rf.example.org"), ("X-Forwarded-Proto", "https"), ("Forwarded", "host=x")];
        let mut headers = vec![("Authorization", good.as_str()), ("Origin", "http://evil.example")];
        headers.extend(forged);
        assert_eq!(served.send(&headers, &ping()).status, 403);
    }
}

#[test]
fn bodies_are_bounded_and_say_everything_once() {
    let site = TestSite::new();
    let served = TestMcpServer::start(&site, &[]);
    let good = format!("Bearer {}", served.token);
    let twice = served.send(&[("Authorization", &good)], br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#);
    assert_eq!((twice.status, &twice.message()["error"]["code"]), (400, &json!(-32600)), "{twice:?}");
    let nonsense = served.send(&[("Authorization", &good)], b"{");
    assert_eq!((nonsense.status, &nonsense.message()["error"]["code"]), (400, &json!(-32700)));
    let huge = vec![b' '; 34 << 20];
    let answer = served.send(&[("Authorization", &good)], &huge);
    // Who is refused while still sending may not hear it.
    assert!([413, 0].contains(&answer.status), "{answer:?}");
    assert_eq!(served.send(&[("Authorization", &good)], &ping()).status, 200);
}

/// A token that a person made for a client whose user they trust to answer.
fn relaying_token(site: &TestSite, name: &str) -> String {
    let scopes = BTreeSet::from([AuthScope::Call, AuthScope::Relay]);
    TokenStore::new(Arc::new(SqliteStore::new(&site.state))).create(name, scopes).unwrap()
}

const YES: &str = r#"{"action": "accept", "content": {"approve": true}}"#;

#[test]
fn a_stateless_client_calls_and_is_asked() {
    let site = TestSite::new();
    site.write("a", "old\n");
    let mut served = TestMcpServer::start(&site, &["--preset", "ask"]);
    served.token = relaying_token(&site, "relaying");
    assert_eq!(served.call("read_file", json!({"path": "a"}))["content"], json!([{"type": "text", "text": "1\told"}]));
    let asked = served.call("write_file", json!({"path": "a", "content": "new\n"}));
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let yes = json!({"approval": serde_json::from_str::<Value>(YES).unwrap()});
    let params = json!({
        "name": "write_file", "arguments": {"path": "a", "content": "new\n"},
        "inputResponses": yes, "requestState": asked["requestState"],
    });
    // The state is for who got it.
    let other = relaying_token(&site, "other");
    let stranger = served.ask(&other, "tools/call", params.clone()).message()["result"].clone();
    assert_eq!((&stranger["isError"], site.read("a").as_str()), (&json!(true), "old\n"), "{stranger}");
    let done = served.ask(&served.token, "tools/call", params).message()["result"].clone();
    assert_eq!((&done["isError"], site.read("a").as_str()), (&json!(false), "new\n"), "{done}");
    let audit = site.run(&["audit", "show", "--json"]).out;
    assert!(audit.contains("the user of the MCP client") && audit.contains("relayed"), "{audit:.3000}");
}

#[test]
fn a_suspended_call_of_a_revoked_token_is_not_for_a_new_one_of_its_name() {
    let site = TestSite::new();
    site.write("a", "old\n");
    let served = TestMcpServer::start(&site, &["--preset", "ask"]);
    let write = |state: &Value| {
        let mut params = json!({"name": "write_file", "arguments": {"path": "a", "content": "new\n"}});
        if state.is_string() {
            params["inputResponses"] = json!({"approval": serde_json::from_str::<Value>(YES).unwrap()});
            params["requestState"] = state.clone();
        }
        params
    };
    let ask = |token: &str, state: &Value| served.ask(token, "tools/call", write(state)).message()["result"].clone();
    let asked = ask(&relaying_token(&site, "relaying"), &Value::Null);
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert_eq!(site.run(&["token", "revoke", "relaying"]).code, Some(0));
    let new = relaying_token(&site, "relaying");
    let refused = ask(&new, &asked["requestState"]);
    assert_eq!((&refused["isError"], site.read("a").as_str()), (&json!(true), "old\n"), "{refused}");
    // The request of the old one does not hold up its own.
    let asked = ask(&new, &Value::Null);
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let done = ask(&new, &asked["requestState"]);
    assert_eq!((&done["isError"], site.read("a").as_str()), (&json!(false), "new\n"), "{done}");
}

#[test]
fn an_agent_s_token_cannot_answer_its_own_request_by_declaring_forms() {
    let site = TestSite::new();
    site.write("a", "old\n");
    let served = TestMcpServer::start(&site, &["--preset", "ask", "--wait", "0"]);
    let write = json!({"name": "write_file", "arguments": {"path": "a", "content": "new\n"}});
    // Without a handshake: it is not asked, and what it answers all the same counts for nothing.
    let asked = served.ask(&served.token, "tools/call", write.clone()).message()["result"].clone();
    assert_eq!((&asked["isError"], &asked["requestState"]), (&json!(true), &Value::Null), "{asked}");
    let relaying = relaying_token(&site, "relaying");
    let theirs = served.ask(&relaying, "tools/call", write.clone()).message()["result"].clone();
    let state = theirs["requestState"].clone();
    assert!(state.is_string(), "{theirs}");
    let mut back = write.clone();
    back["inputResponses"] = json!({"approval": serde_json::from_str::<Value>(YES).unwrap()});
    for state in [json!("made up"), state] {
        back["requestState"] = state;
        let said = served.ask(&served.token, "tools/call", back.clone()).message()["result"].clone();
        assert_eq!((&said["isError"], site.read("a").as_str()), (&json!(true), "old\n"), "{said}");
    }
    // With one: it is never sent a form.
    let mut hello: Value = serde_json::from_slice(&ping()).unwrap();
    hello["params"]["capabilities"] = json!({"elicitation": {"form": {}}});
    let bearer = format!("Bearer {}", served.token);
    let hello = served.send(&[("Authorization", &bearer)], hello.to_string().as_bytes());
    let session = hello.header("mcp-session-id").unwrap();
    let headers =
        [("Authorization", bearer.as_str()), ("Mcp-Session-Id", session), ("MCP-Protocol-Version", LAST_HANDSHAKE)];
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": write});
    let answer = served.send(&headers, call.to_string().as_bytes());
    assert!(!answer.body.contains("elicitation/create"), "{answer:?}");
    assert_eq!(answer.message()["result"]["isError"], true, "{answer:?}");
    assert_eq!(site.read("a"), "old\n");
}

#[test]
fn a_body_that_breaks_off_is_not_called_too_long() {
    let site = TestSite::new();
    let served = TestMcpServer::start(&site, &[]);
    for path in ["/mcp", "/v1/sessions"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer {}\r\n", served.token);
        let pieces =
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\nno length\r\n";
        let said = served.until_closed(&format!("{head}{pieces}"));
        assert!(said.starts_with("HTTP/1.1 400") && said.contains("was interrupted"), "{path}: {said}");
    }
}

#[test]
fn a_reply_fits_into_a_message() {
    let site = TestSite::new();
    site.write("controls", "\u{1}".repeat(1 << 20));
    let served = TestMcpServer::start(&site, &[]);
    let params = json!({"name": "read_file", "arguments": {"path": "controls"}});
    let answer = served.ask(&served.token, "tools/call", params);
    let said = answer.message()["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert!(said.ends_with("bytes are shown; the rest: `sed -n 1p FILE | cut -b 31599-` with run_code]"), "{said}");
    assert!(answer.body.len() <= 1 << 20, "{}", answer.body.len());
}

#[test]
fn an_mcp_stream_ends_when_its_token_is_revoked() {
    let site = TestSite::new();
    let served = TestMcpServer::start(&site, &[]);
    let hello = served.send(&[("Authorization", &format!("Bearer {}", served.token))], &ping());
    let session = hello.header("mcp-session-id").unwrap();
    let mut stream = TcpStream::connect(&served.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /mcp HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nAuthorization: Bearer {}\r\n\
         Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {LAST_HANDSHAKE}\r\n\r\n",
        served.address, served.token
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    assert_eq!(site.run(&["token", "revoke", "agent"]).code, Some(0));
    // One that goes on has no last piece.
    let deadline = Instant::now() + PATIENCE;
    while line != "0\r\n" {
        assert!(Instant::now() < deadline, "it goes on");
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "it broke off");
    }
}

#[test]
fn a_session_of_another_token_does_not_exist_whatever_the_method() {
    let site = TestSite::new();
    site.write("a", "one\n");
    let served = TestMcpServer::start(&site, &[]);
    let other = new_token(&site, "other");
    let good = format!("Bearer {}", served.token);
    let hello = served.send(&[("Authorization", &good)], &ping());
    let session = hello.header("mcp-session-id").unwrap().to_owned();
    let message = |body: Value| {
        let mut body = body;
        body["jsonrpc"] = json!("2.0");
        body.to_string()
    };
    let call = json!({"name": "read_file", "arguments": {"path": "a"}});
    let cases = [
        ("POST", message(json!({"id": 2, "method": "tools/call", "params": call})), None),
        ("POST", message(json!({"id": 3, "method": "tools/list"})), None),
        ("POST", message(json!({"id": 0, "result": {"action": "accept", "content": {"approve": true}}})), None),
        ("POST", message(json!({"id": 0, "error": {"code": 1, "message": "x"}})), None),
        ("POST", message(json!({"method": "notifications/cancelled", "params": {"requestId": 2}})), None),
        (
            "POST",
            message(json!({"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}})),
            None,
        ),
        ("GET", String::new(), None),
        ("GET", String::new(), Some("0")),
        ("DELETE", String::new(), None),
    ];
    for (method, body, last_event) in &cases {
        let send = |token: &str, session: &str| {
            let bearer = format!("Bearer {token}");
            let mut headers = vec![
                ("Authorization", bearer.as_str()),
                ("Mcp-Session-Id", session),
                ("MCP-Protocol-Version", LAST_HANDSHAKE),
            ];
            headers.extend(last_event.map(|id| ("Last-Event-ID", id)));
            served.send_by(method, &headers, body.as_bytes())
        };
        let theirs = send(&other, &session);
        let unknown = send(&other, "11111111-1111-4111-8111-111111111111");
        assert_eq!(theirs.status, 404, "{method} {body}: {theirs:?}");
        assert_eq!((unknown.status, &unknown.body), (404, &theirs.body), "{method} {body}");
    }
    // It is still there for whose it is, and ends for them.
    let headers = [
        ("Authorization", good.as_str()),
        ("Mcp-Session-Id", session.as_str()),
        ("MCP-Protocol-Version", LAST_HANDSHAKE),
    ];
    let first = served.send(&headers, cases[0].1.as_bytes()).message();
    assert!(text(&first["result"]).contains("one"), "{first}");
    assert_eq!(served.send_by("DELETE", &headers, b"").status, 204);
    assert_eq!(served.send(&headers, cases[0].1.as_bytes()).status, 404);
}

#[test]
fn sessions_of_one_token_take_no_place_of_anothers() {
    let site = TestSite::new();
    let served = TestMcpServer::start(&site, &[]);
    let other = format!("Bearer {}", new_token(&site, "other"));
    let greedy = format!("Bearer {}", served.token);
    let open = |bearer: &str| served.send(&[("Authorization", bearer)], &ping());
    let mut opened = Vec::new();
    let refused = loop {
        let answer = open(&greedy);
        match answer.header("mcp-session-id") {
            Some(session) if opened.len() < 600 => opened.push(session.to_owned()),
            _ => break answer,
        }
    };
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(open(&other).status, 200);
    let headers = [("Authorization", greedy.as_str()), ("Mcp-Session-Id", opened[0].as_str())];
    assert_eq!(served.send_by("DELETE", &headers, b"").status, 204);
    assert_eq!(open(&greedy).status, 200, "the place of the one that ended");
}

#[test]
fn background_jobs_of_mcp_clients_are_listed_to_their_token() {
    let site = TestSite::new();
    let served = TestMcpServer::start(&site, &[]);
    let other = new_token(&site, "other");
    assert_eq!(served.get(&served.token, "/v1/jobs"), json!({"jobs": []}));
    let started = served.call("run_code", json!({"code": "sleep 1000", "background": true}));
    assert_eq!(started["isError"], false, "{started}");
    let jobs = served.get(&served.token, "/v1/jobs")["jobs"].clone();
    assert_eq!((&jobs[0]["command"], &jobs[0]["principal"]), (&json!("sleep 1000"), &json!("agent")), "{jobs}");
    let session = jobs[0]["session"].as_str().unwrap();
    assert_eq!(served.get(&served.token, &format!("/v1/jobs?session={session}"))["jobs"], jobs);
    assert_eq!(served.get(&served.token, "/v1/jobs?session=other"), json!({"jobs": []}));
    assert_eq!(served.get(&other, "/v1/jobs"), json!({"jobs": []}));
    assert_eq!(served.get(&other, &format!("/v1/jobs?session={session}")), json!({"jobs": []}));
}
