//! A client of the Model Context Protocol for tests: lines out, lines in, and nothing clever in between.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::site::TestSite;

/// Longer than any answer takes, on a machine that is busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const LAST_HANDSHAKE: &str = "2025-11-25";
pub(crate) const STATELESS: &str = "2026-07-28";

/// A server process, and our end of its pipes.
#[derive(Debug)]
pub(crate) struct TestMcpClient {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// Came in while something else was waited for.
    aside: VecDeque<Value>,
    last_id: i64,
    /// Metadata of every request of a stateless client.
    meta: Option<Value>,
}

impl TestMcpClient {
    /// Starts a server, and says nothing to it yet.
    pub(crate) fn start(site: &TestSite, arguments: &[&str]) -> Self {
        Self::start_by(site.command(&[&["mcp"], arguments].concat()))
    }

    /// The same in a directory of its own, as a client starts it.
    pub(crate) fn start_in(site: &TestSite, directory: &Path, arguments: &[&str]) -> Self {
        let mut command = site.program_without_arguments();
        command.arg("mcp").args(arguments).current_dir(directory);
        Self::start_by(command)
    }

    fn start_by(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line:.300}"));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines, aside: VecDeque::new(), last_id: 0, meta: None }
    }

    /// A server that shook hands with a client that can do this.
    pub(crate) fn with_handshake(site: &TestSite, arguments: &[&str], capabilities: Value) -> Self {
        let mut client = Self::start(site, arguments);
        let hello = client.initialize(LAST_HANDSHAKE, capabilities);
        assert_eq!(hello["result"]["protocolVersion"], LAST_HANDSHAKE, "{hello}");
        client
    }

    /// A server for a client that says in each request that it can do this.
    pub(crate) fn stateless(site: &TestSite, arguments: &[&str], capabilities: Value) -> Self {
        let mut client = Self::start(site, arguments);
        client.meta = Some(json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }));
        client
    }

    pub(crate) fn initialize(&mut self, version: &str, capabilities: Value) -> Value {
        self.initialize_as("test", version, capabilities)
    }

    /// By another name.
    pub(crate) fn initialize_as(&mut self, name: &str, version: &str, capabilities: Value) -> Value {
        let client = json!({"name": name, "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": client});
        let said = self.request("initialize", params);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        said
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_raw(format!("{message}\n").as_bytes());
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Sends a request, and gives its id.
    pub(crate) fn send_request(&mut self, method: &str, mut params: Value) -> i64 {
        self.last_id += 1;
        if let Some(meta) = &self.meta {
            let mut meta = meta.clone();
            if let Some(Value::Object(own)) = params.get("_meta") {
                meta.as_object_mut().unwrap().extend(own.clone());
            }
            params["_meta"] = meta;
        }
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
        self.last_id
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params);
        self.answer(id)
    }

    pub(crate) fn send_tool_call(&mut self, name: &str, arguments: Value) -> i64 {
        self.send_request("tools/call", json!({"name": name, "arguments": arguments}))
    }

    /// The result of a call.
    pub(crate) fn call(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.send_tool_call(name, arguments);
        self.result(id)
    }

    pub(crate) fn result(&mut self, id: i64) -> Value {
        let said = self.answer(id);
        assert!(said.get("error").is_none(), "{said}");
        said["result"].clone()
    }

    pub(crate) fn answer(&mut self, id: i64) -> Value {
        self.until(|message| message["id"] == id && message.get("method").is_none())
    }

    /// The next message of this method.
    pub(crate) fn next_of_method(&mut self, method: &str) -> Value {
        self.until(|message| message["method"] == method)
    }

    /// The first message that is like this. The others wait.
    pub(crate) fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.aside.iter().position(&is_it) {
            return self.aside.remove(at).unwrap();
        }
        loop {
            let message = self.next();
            if is_it(&message) {
                return message;
            }
            self.aside.push_back(message);
        }
    }

    /// The next message, whatever it is.
    pub(crate) fn next(&mut self) -> Value {
        match self.lines.recv_timeout(TEST_TIMEOUT) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => panic!("nothing was said in time; aside: {:?}", self.aside),
            Err(RecvTimeoutError::Disconnected) => panic!("the server is gone; aside: {:?}", self.aside),
        }
    }

    /// Queued messages, and those that have come since.
    pub(crate) fn received(&mut self) -> Vec<Value> {
        self.aside.extend(self.lines.try_iter());
        self.aside.iter().cloned().collect()
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Ends as a client that is killed together with its server.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Closes our end, and waits for the server to end: its exit code, its last messages, and its standard error.
    pub(crate) fn close(mut self) -> (Option<i32>, Vec<Value>, String) {
        drop(self.input.take());
        let mut complaints = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut errors, &mut complaints).unwrap();
        let code = self.child.wait().unwrap().code();
        (code, self.lines.iter().collect(), complaints)
    }
}

impl Drop for TestMcpClient {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text of a result.
pub(crate) fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}
