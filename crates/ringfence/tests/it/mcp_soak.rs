//! A long day of `ringfence serve`: eight clients with calls of every kind, and what is left of the server after it.
//!
//! 2,000 calls, 50,000 with `RINGFENCE_FULL=1`, or as many as `RINGFENCE_CALLS` says, after as many as it takes to fill
//! the server's event feed. Half of the clients have sessions, which they end and begin again; the others have none.
//! The figures are printed (`--nocapture`).

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence_testkit::mcp_client::{LAST_HANDSHAKE, STATELESS};
use ringfence_testkit::patience::PATIENCE;
use serde_json::{Value, json};

use crate::mcp_http::{TestMcpServer, new_token};
use crate::site::TestSite;

const CLIENTS: usize = 8;

/// Files that are read, listed and searched.
const FILES: usize = 200;

/// Most growth of the server's memory between the first fifth of its calls and the end, and between half of them and
/// the end.
const GROWTH_KB: u64 = 8 << 10;
const LATE_GROWTH_KB: u64 = 4 << 10;

/// Calls after which the event feed is full: 4,096 events, or 4 MiB of them. Memory is measured from there on.
const WARMUP_CALLS: usize = 3_000;

/// Most growth until then: those events, and the growth allowed otherwise.
const WARMUP_KB: u64 = (4 << 10) + GROWTH_KB;

/// Calls of a session before it is ended and begun again.
const SESSION: usize = 50;

fn calls() -> usize {
    let wanted = std::env::var("RINGFENCE_CALLS").ok().and_then(|calls| calls.parse().ok());
    wanted.unwrap_or(if std::env::var_os("RINGFENCE_FULL").is_some() { 50_000 } else { 2_000 })
}

/// A connection that is kept.
struct SoakConnection {
    reader: BufReader<TcpStream>,
}

/// The head of an answer, and its body.
struct SoakReply {
    head: String,
    body: String,
}

impl SoakConnection {
    fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    fn send(&mut self, method: &str, headers: &[(&str, &str)], body: &str) {
        let mut text = format!("{method} /mcp HTTP/1.1\r\nContent-Type: application/json\r\n");
        text.push_str("Accept: application/json, text/event-stream\r\n");
        for (name, value) in headers {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        write!(text, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        self.reader.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn read_reply(&mut self) -> SoakReply {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.reader.read_line(&mut head).unwrap() > 0, "the server hung up: {head}");
        }
        let head = head.to_ascii_lowercase();
        let mut body = Vec::new();
        if head.contains("transfer-encoding: chunked") {
            while self.read_chunk(&mut body) {}
        } else if let Some((_, rest)) = head.split_once("content-length: ") {
            let length = rest.lines().next().unwrap().trim().parse().unwrap();
            (&mut self.reader).take(length).read_to_end(&mut body).unwrap();
        }
        SoakReply { head, body: String::from_utf8(body).unwrap() }
    }

    /// False if it was the last.
    fn read_chunk(&mut self, body: &mut Vec<u8>) -> bool {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let length = u64::from_str_radix(line.trim(), 16).unwrap();
        (&mut self.reader).take(length).read_to_end(body).unwrap();
        self.reader.read_line(&mut line).unwrap();
        length > 0
    }
}

impl SoakReply {
    fn message(&self) -> Value {
        let events = self.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        let found = events.chain([self.body.trim()]).filter_map(|text| serde_json::from_str::<Value>(text).ok());
        let is_answer = |message: &Value| message.get("result").is_some() || message.get("error").is_some();
        found.into_iter().find(is_answer).unwrap_or_else(|| panic!("no answer: {} {:.300}", self.head, self.body))
    }
}

/// Counts of a client.
#[derive(Debug, Default)]
struct SoakCounts {
    made: usize,
    refused: usize,
    cancelled: usize,
    sessions: usize,
    /// The edits that were acknowledged, each of which counts one up in the file.
    edits: usize,
    /// Contents of the last acknowledged write.
    written: String,
}

struct SoakClient<'a> {
    address: &'a str,
    bearer: String,
    number: usize,
    connection: SoakConnection,
    session: Option<String>,
    last_id: usize,
    counts: SoakCounts,
}

impl<'a> SoakClient<'a> {
    fn new(address: &'a str, token: &str, number: usize, tally: SoakCounts) -> Self {
        let line = SoakConnection::open(address);
        let bearer = format!("Bearer {token}");
        let mut client = Self { address, bearer, number, connection: line, session: None, last_id: 0, counts: tally };
        client.begin();
        client
    }

    fn has_sessions(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    fn begin(&mut self) {
        if !self.has_sessions() {
            return;
        }
        let info = json!({"name": "soak", "version": "1"});
        let hello = json!({"protocolVersion": LAST_HANDSHAKE, "capabilities": {}, "clientInfo": info});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).to_string();
        let bearer = self.bearer.clone();
        self.connection.send("POST", &[("Host", self.address), ("Authorization", &bearer)], &body);
        let said = self.connection.read_reply();
        let id = said.head.split_once("mcp-session-id: ").unwrap().1.lines().next().unwrap().to_owned();
        self.session = Some(id);
        self.counts.sessions += 1;
        self.post(None, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}), "");
        self.connection.read_reply();
    }

    fn end(&mut self) {
        let Some(session) = self.session.take() else { return };
        let headers = [
            ("Host", self.address),
            ("Authorization", self.bearer.as_str()),
            ("Mcp-Session-Id", &session),
            ("MCP-Protocol-Version", LAST_HANDSHAKE),
        ];
        self.connection.send("DELETE", &headers, "");
        let said = self.connection.read_reply();
        assert!(said.head.starts_with("http/1.1 204"), "{}", said.head);
    }

    /// Sends a message on a connection, or on our own.
    fn post(&mut self, line: Option<&mut SoakConnection>, message: &Value, tool: &str) {
        let method = message["method"].as_str().unwrap();
        let mut headers = vec![("Host", self.address), ("Authorization", self.bearer.as_str())];
        match &self.session {
            Some(session) => {
                headers.extend([("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", LAST_HANDSHAKE)]);
            }
            None => {
                headers.extend([("MCP-Protocol-Version", STATELESS), ("Mcp-Method", method), ("Mcp-Name", tool)]);
            }
        }
        line.unwrap_or(&mut self.connection).send("POST", &headers, &message.to_string());
    }

    fn request(&mut self, tool: &str, arguments: &Value) -> Value {
        self.last_id += 1;
        let mut params = json!({"name": tool, "arguments": arguments});
        if !self.has_sessions() {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientInfo": {"name": "soak", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        json!({"jsonrpc": "2.0", "id": self.last_id, "method": "tools/call", "params": params})
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let request = self.request(tool, &arguments);
        self.post(None, &request, tool);
        let message = self.connection.read_reply().message();
        assert_eq!(message["id"], self.last_id, "{message}");
        message
    }

    fn call_ok(&mut self, tool: &str, arguments: Value) {
        let said = self.call(tool, arguments);
        assert_eq!(said["result"]["isError"], false, "{tool}: {said:.600}");
    }

    fn call_refused(&mut self, tool: &str, arguments: Value) {
        let said = self.call(tool, arguments);
        assert!(said["result"]["isError"] == true || said["error"].is_object(), "{tool}: {said:.600}");
        self.counts.refused += 1;
    }

    /// Makes a call and does not wait for it: a client with a session says so, the other one hangs up.
    fn call_cancelled(&mut self, tool: &str, arguments: Value) {
        let request = self.request(tool, &arguments);
        let mut other = SoakConnection::open(self.address);
        self.post(Some(&mut other), &request, tool);
        if self.has_sessions() {
            let params = json!({"requestId": self.last_id, "reason": "soak"});
            let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
            self.post(None, &cancelled, "");
            self.connection.read_reply();
        }
        drop(other);
        self.counts.cancelled += 1;
    }

    fn run_round(&mut self) {
        let (mine, turn) = (self.number, self.counts.made);
        let file = format!("files/f{}", (turn * 7 + mine) % FILES);
        match turn % 20 {
            0 | 1 | 4 | 6 | 8 | 10 | 12 | 14 => self.call_ok("read_file", json!({"path": file})),
            2 | 11 => self.call_ok("list_directory", json!({"path": "files"})),
            3 | 9 | 16 => {
                let said = |count: usize| format!("client {mine}: {count} edits\n");
                let (old, new) = (said(self.counts.edits), said(self.counts.edits + 1));
                self.call_ok("edit_file", json!({"path": "shared", "oldText": old, "newText": new}));
                self.counts.edits += 1;
            }
            5 | 13 => {
                let content = format!("{turn} of {mine}\n").repeat(200);
                self.call_ok("write_file", json!({"path": format!("written-{mine}"), "content": content}));
                self.counts.written = content;
            }
            7 => self.call_ok("search_files", json!({"path": "files", "pattern": "needle"})),
            15 => self.call_refused("read_file", json!({"path": format!("none-{turn}")})),
            17 if turn % 3 == 0 => self.call_refused("read_file", json!({"path": "../outside/secret"})),
            17 if turn % 3 == 1 => {
                self.call_refused("edit_file", json!({"path": "shared", "oldText": "", "newText": ""}))
            }
            17 => self.call_refused(&format!("no-tool-{turn}"), json!({})),
            18 => self.call_cancelled("search_files", json!({"path": ".", "pattern": format!("no such {turn}")})),
            _ => self.call_cancelled("write_file", json!({"path": format!("maybe-{mine}"), "content": file})),
        }
        self.counts.made += 1;
        if self.counts.made.is_multiple_of(SESSION) {
            self.end();
            self.begin();
        }
    }
}

/// The kernel's figures about the server.
#[derive(Debug)]
struct ServerUsage {
    descriptors: usize,
    memory_kb: u64,
}

impl ServerUsage {
    fn measure(server: u32) -> Self {
        let descriptors = std::fs::read_dir(format!("/proc/{server}/fd")).unwrap().count();
        let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let memory_kb = memory.split_whitespace().next().unwrap().parse().unwrap();
        Self { descriptors, memory_kb }
    }

    /// Once it has no more descriptors than this, or when patience ends.
    fn once_idle(server: u32, descriptors: usize) -> Self {
        let started = Instant::now();
        loop {
            let held = Self::once_quiet(server);
            if held.descriptors <= descriptors || started.elapsed() > PATIENCE {
                return held;
            }
        }
    }

    /// Once it neither opened nor closed anything for half a second.
    fn once_quiet(server: u32) -> Self {
        let (mut held, mut looks) = (Self::measure(server), 0);
        while looks < 25 {
            std::thread::park_timeout(Duration::from_millis(20));
            let now = Self::measure(server);
            looks = if now.descriptors == held.descriptors { looks + 1 } else { 0 };
            held = now;
        }
        held
    }
}

/// All clients make calls until there were `calls`.
fn run_calls(clients: &mut [SoakClient<'_>], calls: usize) {
    let left = AtomicUsize::new(calls);
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    std::thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| {
                while take() {
                    client.run_round();
                }
            });
        }
    });
}

#[test]
fn a_long_day_leaves_nothing_behind_and_loses_nothing() {
    let site = TestSite::in_memory();
    for number in 0..FILES {
        let needle = if number % 20 == 0 { "needle\n" } else { "" };
        site.write(&format!("files/f{number}"), "hay ".repeat(256) + needle);
    }
    let counts: String = (0..CLIENTS).map(|number| format!("client {number}: 0 edits\n")).collect();
    site.write("shared", counts);
    let tokens: Vec<String> = (0..CLIENTS).map(|number| new_token(&site, &format!("client-{number}"))).collect();
    let served = TestMcpServer::start(&site, &["--preset", "edits"]);
    let server = served.child.id();
    let come = |tallies: Vec<SoakCounts>| -> Vec<SoakClient<'_>> {
        let all = tokens.iter().zip(tallies).enumerate();
        all.map(|(number, (token, tally))| SoakClient::new(&served.address, token, number, tally)).collect()
    };

    let mut clients = come((0..CLIENTS).map(|_| SoakCounts::default()).collect());
    // One of every kind for each, so that what is opened once is open.
    run_calls(&mut clients, CLIENTS * 20);
    let opened = ServerUsage::measure(server);
    run_calls(&mut clients, WARMUP_CALLS - CLIENTS * 20);
    let tallies = close_all(clients);
    let before = ServerUsage::once_quiet(server);

    let started = Instant::now();
    let mut clients = come(tallies);
    let tenths: Vec<ServerUsage> = (0..10)
        .map(|_| {
            run_calls(&mut clients, calls() / 10);
            ServerUsage::measure(server)
        })
        .collect();
    let [early, half, late] = [1, 4, 9].map(|tenth| &tenths[tenth]);
    let tallies = close_all(clients);
    let after = ServerUsage::once_idle(server, before.descriptors);

    let sum = |of: fn(&SoakCounts) -> usize| tallies.iter().map(of).sum::<usize>();
    println!(
        "{} calls in {:.1?}: {} edits acknowledged, {} refused, {} cancelled, {} sessions\n\
         opened {opened:?}\nbefore {before:?}\nafter each tenth {tenths:#?}\nidle after it {after:?}",
        sum(|tally| tally.made),
        started.elapsed(),
        sum(|tally| tally.edits),
        sum(|tally| tally.refused),
        sum(|tally| tally.cancelled),
        sum(|tally| tally.sessions),
    );
    assert!(after.descriptors <= before.descriptors, "descriptors are left: {before:?} {after:?}");
    assert!(before.memory_kb <= opened.memory_kb + WARMUP_KB, "more is kept than events: {opened:?} {before:?}");
    assert!(late.memory_kb <= early.memory_kb + GROWTH_KB, "memory grows: {early:?} {late:?}");
    assert!(late.memory_kb <= half.memory_kb + LATE_GROWTH_KB, "memory still grows: {half:?} {late:?}");
    for (number, tally) in tallies.iter().enumerate() {
        let line = format!("client {number}: {} edits\n", tally.edits);
        assert!(site.read("shared").contains(&line), "an edit is lost: {line}{}", site.read("shared"));
        assert_eq!(site.read(&format!("written-{number}")), tally.written, "a write is lost");
    }
    drop(served);
    let said = site.run(&["audit", "verify"]);
    println!("audit verify: {}", said.out.trim());
    assert!(said.code == Some(0) && said.out.starts_with("ok: "), "{said:?}");
    assert!(site.temp_files().is_empty());
}

/// Ends the sessions of clients, and their connections.
fn close_all(clients: Vec<SoakClient<'_>>) -> Vec<SoakCounts> {
    let ended = clients.into_iter().map(|mut client| {
        client.end();
        client.counts
    });
    ended.collect()
}
