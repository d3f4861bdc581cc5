//! A `ringfence serve` process, and clients of its API.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use ringfence_testkit::patience::{PATIENCE, wait_for};
use serde_json::{Value, json};

use crate::site::TestSite;

/// A server process.
pub(crate) struct TestApiServer {
    pub(crate) child: Child,
    pub(crate) address: String,
    /// The part of the page's link behind `#login=`.
    pub(crate) code: String,
}

impl Drop for TestApiServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct ApiTestResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl ApiTestResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        Some(self.head.lines().find(named)?.split_once(':')?.1.trim())
    }
}

impl TestApiServer {
    pub(crate) fn start(site: &TestSite, arguments: &[&str]) -> Self {
        Self::start_at(site, "127.0.0.1:0", arguments)
    }

    pub(crate) fn start_at(site: &TestSite, address: &str, arguments: &[&str]) -> Self {
        let mut command = site.command(&[&["serve", "--print-link", "--address", address], arguments].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let (mut address, mut code) = (None, None);
        while address.is_none() || code.is_none() {
            let mut line = String::new();
            assert!(said.read_line(&mut line).unwrap() > 0, "the server ended before it listened");
            if let Some(rest) = line.split("http://").nth(1) {
                address.get_or_insert(rest.split('/').next().unwrap().to_owned());
                code = rest.split("#login=").nth(1).map(|code| code.trim().to_owned()).or(code);
            }
        }
        // Later output is not lost in a pipe without a reader.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Self { child, address: address.unwrap(), code: code.unwrap() }
    }

    /// A token of an agent.
    pub(crate) fn agent<'a>(&'a self, site: &TestSite, name: &str) -> ApiTestClient<'a> {
        let said = site.run(&["token", "new", name]);
        assert_eq!(said.code, Some(0), "{said:?}");
        ApiTestClient { server: self, token: said.out.trim().to_owned() }
    }

    /// The page, logged in by the link.
    pub(crate) fn page(&self) -> ApiTestClient<'_> {
        let got = self.send("POST", "/v1/login", &[], Some(&json!({"code": self.code}).to_string()));
        assert_eq!(got.status, 200, "{got:?}");
        ApiTestClient { server: self, token: got.json()["token"].as_str().unwrap().to_owned() }
    }

    pub(crate) fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
                head += "Content-Type: application/json\r\n";
            }
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        stream.write_all((head + "\r\n").as_bytes()).unwrap();
        // A server that has seen enough does not read the rest.
        let _ = stream.write_all(body.unwrap_or_default().as_bytes());
        stream
    }

    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> ApiTestResponse {
        let mut bytes = Vec::new();
        let _ = self.open(method, path, headers, body).read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("no head: {bytes:?}"));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        ApiTestResponse { status, body: dechunk(&head, &bytes[end + 4..]), head }
    }
}

/// The body, whichever way it was sent.
fn dechunk(head: &str, mut body: &[u8]) -> Vec<u8> {
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return body.to_vec();
    }
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            break;
        }
        whole.extend(&body[end + 2..end + 2 + length]);
        body = &body[end + 4 + length..];
    }
    whole
}

/// A client with a token.
#[derive(Clone)]
pub(crate) struct ApiTestClient<'a> {
    pub(crate) server: &'a TestApiServer,
    pub(crate) token: String,
}

impl ApiTestClient<'_> {
    pub(crate) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> ApiTestResponse {
        let token = format!("Bearer {}", self.token);
        let body = body.map(Value::to_string);
        self.server.send(method, path, &[("Authorization", &token)], body.as_deref())
    }

    /// A resource, which must be returned successfully.
    pub(crate) fn get(&self, path: &str) -> Value {
        let got = self.send("GET", path, None);
        assert_eq!(got.status, 200, "{path}: {}", String::from_utf8_lossy(&got.body));
        got.json()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> ApiTestResponse {
        self.send("POST", path, Some(body))
    }

    /// Begins a session, and gives its id.
    pub(crate) fn create_session(&self, like: &Value) -> String {
        let got = self.post("/v1/sessions", like);
        assert_eq!(got.status, 201, "{}", String::from_utf8_lossy(&got.body));
        got.json()["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn call(&self, session: &str, name: &str, arguments: Value) -> Value {
        let got = self.post(&format!("/v1/sessions/{session}/calls"), &json!({"name": name, "arguments": arguments}));
        assert_eq!(got.status, 200, "{}", String::from_utf8_lossy(&got.body));
        got.json()
    }

    /// Waits until a request waits, and gives it.
    pub(crate) fn request(&self) -> Value {
        self.wait_for_request(|_| true)
    }

    /// The same for a request of one session.
    pub(crate) fn request_of(&self, session: &str) -> Value {
        self.wait_for_request(|request| request["session"] == session)
    }

    fn wait_for_request(&self, is_it: impl Fn(&Value) -> bool) -> Value {
        wait_for("an approval request", || {
            let all = self.get("/v1/approvals")["requests"].clone();
            all.as_array().unwrap().iter().find(|request| is_it(request)).cloned()
        })
    }

    pub(crate) fn answer(&self, request: &Value, word: &Value) -> ApiTestResponse {
        self.post(&format!("/v1/approvals/{}", request["id"].as_str().unwrap()), word)
    }

    /// A stream of events, to be read.
    pub(crate) fn events(&self, path: &str) -> ApiTestEvents {
        self.events_with(path, &[])
    }

    pub(crate) fn events_with(&self, path: &str, headers: &[(&str, &str)]) -> ApiTestEvents {
        let token = format!("Bearer {}", self.token);
        let headers = [&[("Authorization", token.as_str())], headers].concat();
        let stream = self.server.open("GET", path, &headers, None);
        let mut lines = BufReader::new(stream);
        let mut status = String::new();
        lines.read_line(&mut status).unwrap();
        assert!(status.contains(" 200 "), "{status}");
        let mut events = ApiTestEvents { lines };
        // The first piece comes at once: from then on nothing is missed.
        while !events.line().starts_with("retry:") {}
        events
    }
}

/// A stream of events.
pub(crate) struct ApiTestEvents {
    lines: BufReader<TcpStream>,
}

impl ApiTestEvents {
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream ended");
        line.trim_end().to_owned()
    }

    /// The next event: its kind and what it says.
    pub(crate) fn next(&mut self) -> (String, Value) {
        let mut kind = String::new();
        loop {
            let line = self.line();
            if let Some(rest) = line.strip_prefix("event: ") {
                kind = rest.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (kind, serde_json::from_str(data).unwrap());
            }
        }
    }

    /// The rest until the stream ends, or has a keep-alive.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        while self.lines.read_line(&mut rest).unwrap() > 0 && !rest.contains(": ping") {}
        rest
    }

    /// The next event of a kind.
    pub(crate) fn next_of(&mut self, kind: &str) -> Value {
        loop {
            let (found, data) = self.next();
            if found == kind {
                return data;
            }
        }
    }
}
