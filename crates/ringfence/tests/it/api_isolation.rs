//! Isolation between tokens of the API: every route of it, with a token that has no right to it, and limits on the
//! resources of one token.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use ringfence_testkit::patience::PATIENCE;
use serde_json::{Value, json};

use crate::api::scripted_model_config;
use crate::api_client::{ApiTestClient, ApiTestResponse, TestApiServer};
use crate::site::TestSite;

/// The response to a `call` token where the resource is another token's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteOutcome {
    /// It has no scope for this at all.
    Forbidden,
    /// To it, this does not exist.
    Missing,
    /// It is answered, and nothing of the other is in the answer.
    Own,
    /// The same, as a stream.
    OwnStream,
}

use RouteOutcome::{Forbidden, Missing, Own, OwnStream};

/// Every route, and the response to a token that names another's resource. A route that is not here fails the test.
const ROUTES: &[(&str, &str, RouteOutcome)] = &[
    ("get", "/v1/me", Own),
    ("get", "/v1/tools", Own),
    ("post", "/v1/sessions", Missing),
    ("get", "/v1/sessions", Own),
    ("get", "/v1/sessions/{session}", Missing),
    ("delete", "/v1/sessions/{session}", Missing),
    ("get", "/v1/jobs", Own),
    ("get", "/v1/sessions/{session}/jobs", Missing),
    ("post", "/v1/sessions/{session}/calls", Missing),
    ("post", "/v1/sessions/{session}/calls/resume", Missing),
    ("post", "/v1/sessions/{session}/calls/{call}/cancel", Missing),
    ("post", "/v1/sessions/{session}/messages", Missing),
    ("post", "/v1/sessions/{session}/resume", Forbidden),
    ("get", "/v1/sessions/{session}/events", Missing),
    ("get", "/v1/events", OwnStream),
    ("get", "/v1/approvals", Forbidden),
    ("get", "/v1/approvals/{request}", Forbidden),
    ("post", "/v1/approvals/{request}", Forbidden),
    ("post", "/v1/approvals/{request}/preview", Forbidden),
    ("get", "/v1/grants", Forbidden),
    ("delete", "/v1/grants/{grant}", Forbidden),
    ("get", "/v1/changes", Forbidden),
    ("get", "/v1/changes/{change}", Forbidden),
    ("post", "/v1/undo", Forbidden),
    ("post", "/v1/redo", Forbidden),
    ("get", "/v1/files", Forbidden),
    ("get", "/v1/files/text", Forbidden),
    ("get", "/v1/files/raw", Forbidden),
    ("get", "/v1/history", Forbidden),
    ("get", "/v1/history/{session}", Forbidden),
    ("post", "/v1/runs", Missing),
    ("get", "/v1/runs", Own),
    ("get", "/v1/runs/{run}", Missing),
    ("post", "/v1/runs/{run}/cancel", Missing),
    ("post", "/v1/runs/{run}/resume", Missing),
    ("get", "/v1/runs/{run}/events", Missing),
    ("get", "/v1/wrapped-runs", Missing),
    ("get", "/v1/wrapped-runs/{layer}", Missing),
    ("get", "/v1/wrapped-runs/{layer}/changes", Missing),
    ("post", "/v1/wrapped-runs/{layer}/stop", Missing),
    ("post", "/v1/wrapped-runs/{layer}/checkpoint", Missing),
    ("post", "/v1/wrapped-runs/{layer}/input", Missing),
    ("get", "/v1/audit", Forbidden),
    ("get", "/v1/audit/verify", Forbidden),
    ("get", "/v1/policy", Forbidden),
    ("post", "/v1/policy/explain", Forbidden),
    ("get", "/v1/doctor", Forbidden),
    ("get", "/metrics", Own),
];

/// A token with every kind of resource, and the IDs of all of them.
struct TokenFixture<'a> {
    caller: ApiTestClient<'a>,
    name: &'static str,
    session: String,
    run: String,
    /// The session of the run.
    history: String,
    /// A call that waits for a person, with what came with it.
    suspended: Value,
    change: String,
    grant: String,
    /// The number of an event of theirs.
    event: u64,
}

impl<'a> TokenFixture<'a> {
    /// Does one of everything, each with a word in it that is theirs alone.
    fn new(site: &TestSite, server: &'a TestApiServer, page: &ApiTestClient<'_>, name: &'static str) -> Self {
        let caller = server.agent(site, name);
        let session = caller.create_session(&json!({"label": format!("label-{name}")}));
        let mut events = caller.events("/v1/events");
        let file = format!("file-{name}.txt");
        caller.call(&session, "write_file", json!({"path": file, "content": format!("words-{name}\n")}));
        let event = events.next_of("end")["id"].as_u64().unwrap();
        // The whole model plays the same script, and its write is asked about.
        let run = caller.post("/v1/runs", &json!({"prompt": format!("prompt-{name}")})).json();
        let request = page.request_of(run["session"].as_str().unwrap());
        assert_eq!(page.answer(&request, &json!({"approved": true, "remember": true})).status, 200);
        // The answer is taken, and remembered, once the call goes on.
        events.next_of("end");
        let grants = page.get("/v1/grants")["grants"].clone();
        let change = page.get("/v1/changes")["changes"][0]["change"].as_str().unwrap().to_owned();
        let overwrite = json!({"path": file, "content": format!("more-{name}\n")});
        let call = json!({"id": format!("call-{name}"), "name": "write_file", "arguments": overwrite, "wait": 0});
        let suspended = caller.post(&format!("/v1/sessions/{session}/calls"), &call).json()["suspended"].clone();
        assert!(suspended["token"].is_string(), "{suspended}");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (id, history, grant) = (text(&run["id"]), text(&run["session"]), text(&grants[0]["id"]));
        Self { caller, name, session, run: id, history, suspended, change, grant, event }
    }

    /// Words by which anything of theirs is known.
    fn secrets(&self) -> Vec<String> {
        let words = ["label", "words", "more", "prompt", "file", "call"].map(|word| format!("{word}-{}", self.name));
        words.into_iter().chain([self.session.clone(), self.run.clone(), self.history.clone()]).collect()
    }

    fn fill_path(&self, path: &str) -> String {
        let names = [
            ("{session}", self.session.as_str()),
            ("{call}", self.suspended["call"].as_str().unwrap()),
            ("{request}", self.suspended["request"].as_str().unwrap()),
            ("{change}", &self.change),
            ("{grant}", &self.grant),
            ("{run}", &self.run),
            ("{layer}", "l-00000000000001"),
        ];
        names.iter().fold(path.to_owned(), |path, (name, id)| path.replace(name, id))
    }

    /// A body that would be taken, if it were theirs who sends it.
    fn body(&self, path: &str) -> Value {
        let write = json!({"path": "file.txt", "content": "x"});
        let function = json!({"name": "write_file", "arguments": write.to_string()});
        match path {
            "/v1/sessions" => json!({"workspace": "elsewhere"}),
            "/v1/sessions/{session}/calls" => json!({"name": "write_file", "arguments": write}),
            "/v1/sessions/{session}/calls/resume" => json!({
                "token": self.suspended["token"], "id": self.suspended["call"], "name": "write_file",
                "arguments": {"path": format!("file-{}.txt", self.name), "content": format!("more-{}\n", self.name)},
            }),
            "/v1/sessions/{session}/messages" => json!({"tool_calls": [{"id": "c", "function": function}]}),
            "/v1/approvals/{request}" => json!({"approved": true}),
            "/v1/approvals/{request}/preview" => json!({"modifiedArgs": {}}),
            "/v1/undo" => json!({"session": self.session, "force": true}),
            "/v1/redo" => json!({"change": self.change}),
            "/v1/runs" => json!({"prompt": "go on", "session": self.history}),
            "/v1/wrapped-runs/{layer}/input" => json!({"text": "x"}),
            "/v1/policy/explain" => json!({"tool": "read_file", "arguments": {"path": "file.txt"}}),
            _ => json!({}),
        }
    }
}

/// Requests every route with one token, with another token's IDs in it.
fn try_every_route(who: &ApiTestClient<'_>, other: &TokenFixture<'_>) {
    let document = who.server.send("GET", "/v1/openapi.json", &[], None).json();
    let methods = |methods: &Value| methods.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let paths = document["paths"].as_object().unwrap();
    let there: BTreeSet<(String, String)> =
        paths.iter().flat_map(|(path, of)| methods(of).into_iter().map(move |method| (method, path.clone()))).collect();
    let known = ROUTES.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(there, known, "each route says here what another token gets of it");
    for (method, path, fate) in ROUTES {
        let place = other.fill_path(path);
        let place = match *path {
            "/v1/files/text" | "/v1/files/raw" => format!("{place}?path=file-{}.txt", other.name),
            _ => place,
        };
        // Streams have no end; `listen` looks at them.
        if *fate == OwnStream {
            continue;
        }
        let body = (*method == "post").then(|| other.body(path));
        let got = who.send(&method.to_uppercase(), &place, body.as_ref());
        let said = String::from_utf8_lossy(&got.body).into_owned();
        let expected = match fate {
            Forbidden => 403,
            Missing => 404,
            Own | OwnStream => 200,
        };
        assert_eq!(got.status, expected, "{method} {place}: {said}");
        for mark in other.secrets() {
            assert!(!said.contains(&mark), "{method} {place} tells of {mark}: {said}");
        }
    }
}

/// No event of the other is visible, wherever in the stream a client begins.
fn check_streams(who: &TokenFixture<'_>, other: &TokenFixture<'_>) {
    let session = &who.session;
    for path in ["/v1/events".to_owned(), format!("/v1/sessions/{session}/events")] {
        // Behind an event of the other, before it, and by the header that a browser sends.
        let number = other.event.to_string();
        let earlier = (other.event.min(who.event) - 1).to_string();
        let mut streams = [
            who.caller.events(&format!("{path}?after={number}")),
            who.caller.events(&format!("{path}?after={earlier}")),
            who.caller.events_with(&path, &[("Last-Event-ID", &number)]),
        ];
        // The last event: a call of each.
        for holder in [other, who] {
            holder.caller.call(&holder.session, "read_file", json!({"path": format!("file-{}.txt", holder.name)}));
        }
        for stream in &mut streams {
            loop {
                let (kind, event) = stream.next();
                let said = event.to_string();
                for mark in other.secrets() {
                    assert!(!said.contains(&mark), "{path} tells of {mark}: {kind} {said}");
                }
                if kind == "end" && event["tool"] == "read_file" && said.contains(&format!("words-{}", who.name)) {
                    break;
                }
            }
        }
    }
}

#[test]
fn no_route_gives_a_token_what_is_anothers() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "old\n").unwrap();
    let config = scripted_model_config(&site);
    let server = TestApiServer::start(&site, &["--config", &config]);
    let page = server.page();
    let [one, other] = ["una", "bis"].map(|name| {
        let holder = TokenFixture::new(&site, &server, &page, name);
        // The next one is asked about the same file again.
        assert_eq!(page.send("DELETE", &format!("/v1/grants/{}", holder.grant), None).status, 200);
        std::fs::write(site.workspace.join("a.txt"), "old\n").unwrap();
        holder
    });
    try_every_route(&one.caller, &other);
    try_every_route(&other.caller, &one);
    check_streams(&one, &other);
    check_streams(&other, &one);
    // A token without any resource gets no more.
    try_every_route(&server.agent(&site, "nobody"), &one);
    // And all of it is still there.
    for holder in [&one, &other] {
        let kept = holder.caller.get(&format!("/v1/sessions/{}", holder.session));
        assert_eq!(kept["ended"], Value::Null, "{kept}");
        assert_eq!(
            std::fs::read_to_string(site.workspace.join(format!("file-{}.txt", holder.name))).unwrap(),
            format!("words-{}\n", holder.name)
        );
        let request = page.get(&format!("/v1/approvals/{}", holder.suspended["request"].as_str().unwrap()));
        assert_eq!(request["session"], holder.session.as_str(), "it still waits");
    }
}

#[test]
fn an_event_stream_ends_when_its_token_is_revoked() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let (gone, stays) = (server.agent(&site, "gone"), server.agent(&site, "stays"));
    let session = stays.create_session(&json!({}));
    let theirs = gone.create_session(&json!({}));
    let (mut all, mut one) = (gone.events("/v1/events"), gone.events(&format!("/v1/sessions/{theirs}/events")));
    let mut kept = stays.events("/v1/events");
    assert_eq!(site.run(&["token", "revoke", "gone"]).code, Some(0));
    // A stream that goes on says so every fifteen seconds.
    for stream in [&mut all, &mut one] {
        let rest = stream.rest();
        assert!(!rest.contains(": ping"), "{rest}");
    }
    stays.call(&session, "list_directory", json!({"path": "."}));
    assert_eq!(kept.next().0, "begin");
}

/// The lengths of the pieces in which a stream comes, and its text, until something is in it.
fn read_chunks(stream: TcpStream, until: &str) -> (Vec<usize>, String) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "there is no head");
    }
    let (mut lengths, mut text) = (Vec::new(), String::new());
    while !text.contains(until) {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let length = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("no length: {line}"));
        let mut piece = vec![0; length + 2];
        stream.read_exact(&mut piece).unwrap();
        text.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        lengths.push(length);
    }
    (lengths, text)
}

#[test]
fn a_stream_comes_in_pieces_that_have_a_bound_and_nothing_falls_between_them() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "x".repeat(4000)).unwrap();
    std::fs::write(site.workspace.join("last.txt"), "the last words").unwrap();
    let server = TestApiServer::start(&site, &[]);
    let agent = server.agent(&site, "agent");
    let session = agent.create_session(&json!({}));
    let mut events = agent.events("/v1/events");
    agent.call(&session, "read_file", json!({"path": "a.txt"}));
    let first = events.next_of("end")["id"].as_u64().unwrap();
    drop(events);
    let calls: Vec<Value> = (0..64)
        .map(|number| json!({"id": format!("c{number}"), "function": {"name": "read_file", "arguments": "{\"path\":\"a.txt\"}"}}))
        .collect();
    for _ in 0..4 {
        let got = agent.post(&format!("/v1/sessions/{session}/messages"), &json!({"tool_calls": calls}));
        assert_eq!(got.status, 200);
    }
    agent.call(&session, "read_file", json!({"path": "last.txt"}));
    let token = format!("Bearer {}", agent.token);
    let path = format!("/v1/sessions/{session}/events?after={first}");
    let (lengths, text) = read_chunks(server.open("GET", &path, &[("Authorization", &token)], None), "the last words");
    // The event with which a piece gets too long is still in it.
    let longest = lengths.iter().max().unwrap();
    assert!(text.len() > 3 * (256 << 10) && *longest < (256 << 10) + (16 << 10), "{lengths:?}");
    let ids: Vec<u64> = text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    let expected: Vec<u64> = (first + 1..).take(2 * (4 * 64 + 1)).collect();
    assert_eq!(ids, expected);
}

#[test]
fn requests_of_one_token_take_no_place_of_anothers() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--rate", "100000"]);
    let (greedy, other, page) = (server.agent(&site, "greedy"), server.agent(&site, "other"), server.page());
    let session = other.create_session(&json!({}));
    // Heads of requests whose bodies never come. Each holds a slot until its time is over.
    let mut held = Vec::new();
    let head = |stream: &mut TcpStream| {
        let host = &server.address;
        let token = &greedy.token;
        write!(
            stream,
            "POST /v1/sessions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 9000000\r\n\r\n"
        )
    };
    for _ in 0..256 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        head(&mut stream).unwrap();
        held.push(stream);
    }
    let status = || greedy.send("GET", "/v1/me", None).status;
    // They are taken one after the other.
    let refused = (0..10_000).map(|_| status()).find(|status| *status != 200);
    assert_eq!(refused, Some(429));
    assert_eq!(other.call(&session, "list_directory", json!({"path": "."}))["error"], Value::Null);
    assert_eq!(page.send("GET", "/v1/approvals", None).status, 200);
    let judged = json!({"tool": "read_file", "arguments": {"path": "a.txt"}});
    assert_eq!(page.post("/v1/policy/explain", &judged).status, 200);
    drop(held);
}

#[test]
fn a_login_body_is_bounded() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let login = |length: usize| -> ApiTestResponse {
        let body = json!({"code": "x".repeat(length)}).to_string();
        server.send("POST", "/v1/login", &[], Some(&body))
    };
    assert_eq!((login(4000).status, login(4200).status), (401, 413));
}

#[test]
fn requests_do_not_wait_for_another_workspaces_host() {
    // An MCP server that refuses clients, or keeps them waiting until it is released.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let is_slow = Arc::new(AtomicBool::new(false));
    let ((came, comes), (tell, told)) = (channel(), channel::<()>());
    std::thread::spawn({
        let is_slow = Arc::clone(&is_slow);
        move || {
            for mut stream in listener.incoming().flatten() {
                if is_slow.load(Ordering::SeqCst) {
                    let _ = came.send(());
                    let _ = told.recv();
                }
                let _ = stream.write_all(b"HTTP/1.1 500 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        }
    });
    let site = TestSite::new();
    let config = site.current.join("config.toml");
    std::fs::write(&config, format!("[agents.other]\n[mcp_servers.far]\nurl = \"http://{address}/mcp\"\n")).unwrap();
    let server = TestApiServer::start(&site, &["--config", config.to_str().unwrap()]);
    let agent = server.agent(&site, "agent");
    agent.create_session(&json!({}));
    is_slow.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| agent.create_session(&json!({"agent": "other"})));
        comes.recv_timeout(PATIENCE).unwrap();
        let session = agent.create_session(&json!({}));
        assert_eq!(agent.call(&session, "list_directory", json!({"path": "."}))["error"], Value::Null);
        assert!(!slow.is_finished(), "it was not waited for");
        is_slow.store(false, Ordering::SeqCst);
        tell.send(()).unwrap();
        let late = slow.join().unwrap();
        assert_eq!(agent.get(&format!("/v1/sessions/{late}"))["agent"], "other");
    });
}
