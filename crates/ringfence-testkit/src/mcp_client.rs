//! Model Context Protocol client over stdio: lines out, lines in, and nothing clever in between.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;

use serde_json::{Value, json};

use crate::patience::PATIENCE;
use crate::stdio_process::StdioProcess;

/// The last version of the protocol that begins with a handshake.
pub const LAST_HANDSHAKE: &str = "2025-11-25";
/// A version in which every request says what the client can do.
pub const STATELESS: &str = "2026-07-28";

/// A place with a server that can be started there.
pub trait McpServerCommand {
    /// The command that starts the server with these arguments.
    fn mcp_command(&self, arguments: &[&str]) -> Command;
}

/// A server process, and a client of it.
#[derive(Debug)]
pub struct StdioMcpClient {
    /// The server.
    pub process: StdioProcess,
    /// Came in while something else was waited for.
    aside: VecDeque<Value>,
    last_id: i64,
    /// What every request of a stateless client carries.
    meta: Option<Value>,
}

impl StdioMcpClient {
    /// Starts a server, and says nothing to it yet.
    pub fn start(site: &impl McpServerCommand, arguments: &[&str]) -> Self {
        Self::start_by(site.mcp_command(arguments))
    }

    /// The same with any command.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_by(mut command: Command) -> Self {
        let process = StdioProcess::start(command.stderr(Stdio::piped())).expect("a server that starts");
        Self { process, aside: VecDeque::new(), last_id: 0, meta: None }
    }

    /// A server that shook hands with a client that can do this.
    ///
    /// # Panics
    /// If it wants another version of the protocol.
    pub fn with_handshake(site: &impl McpServerCommand, arguments: &[&str], capabilities: Value) -> Self {
        let mut client = Self::start(site, arguments);
        let hello = client.initialize(LAST_HANDSHAKE, capabilities);
        assert_eq!(hello["result"]["protocolVersion"], LAST_HANDSHAKE, "{hello}");
        client
    }

    /// A server for a client that says in each request that it can do this.
    pub fn stateless(site: &impl McpServerCommand, arguments: &[&str], capabilities: Value) -> Self {
        let mut client = Self::start(site, arguments);
        client.meta = Some(json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }));
        client
    }

    /// Shakes hands.
    pub fn initialize(&mut self, version: &str, capabilities: Value) -> Value {
        self.initialize_as("test", version, capabilities)
    }

    /// Shakes hands as a client of another name.
    pub fn initialize_as(&mut self, name: &str, version: &str, capabilities: Value) -> Value {
        let client = json!({"name": name, "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": client});
        let said = self.request("initialize", params);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        said
    }

    /// Sends any message.
    pub fn send(&mut self, message: &Value) {
        self.send_raw(format!("{message}\n").as_bytes());
    }

    /// Sends any bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.process.send(bytes);
    }

    /// Sends a request, and gives its id.
    ///
    /// # Panics
    /// If the parameters are not an object.
    pub fn send_request(&mut self, method: &str, mut params: Value) -> i64 {
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

    /// Sends a request, and waits for its answer.
    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params);
        self.answer(id)
    }

    /// Calls a tool, and gives the id of the request.
    pub fn send_tool_call(&mut self, name: &str, arguments: Value) -> i64 {
        self.send_request("tools/call", json!({"name": name, "arguments": arguments}))
    }

    /// The result of a call of a tool.
    #[track_caller]
    pub fn call(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.send_tool_call(name, arguments);
        self.result(id)
    }

    /// The result of a request, which must not fail.
    ///
    /// # Panics
    /// If it does.
    #[track_caller]
    pub fn result(&mut self, id: i64) -> Value {
        let said = self.answer(id);
        assert!(said.get("error").is_none(), "{said}");
        said["result"].clone()
    }

    /// The answer to a request.
    #[track_caller]
    pub fn answer(&mut self, id: i64) -> Value {
        self.until(|message| message["id"] == id && message.get("method").is_none())
    }

    /// The next message of this method.
    #[track_caller]
    pub fn next_of_method(&mut self, method: &str) -> Value {
        self.until(|message| message["method"] == method)
    }

    /// The first message that is like this. The others wait.
    #[track_caller]
    pub fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(message) = self.aside.iter().position(&is_it).and_then(|at| self.aside.remove(at)) {
            return message;
        }
        loop {
            let message = self.next_message();
            if is_it(&message) {
                return message;
            }
            self.aside.push_back(message);
        }
    }

    /// The next message, whatever it is.
    ///
    /// # Panics
    /// If none comes, or a line is not a message.
    #[track_caller]
    pub fn next_message(&mut self) -> Value {
        match self.process.receive(PATIENCE) {
            Ok(line) => parse(&line),
            Err(RecvTimeoutError::Timeout) => panic!("nothing was said in {PATIENCE:?}; aside: {:?}", self.aside),
            Err(RecvTimeoutError::Disconnected) => panic!("the server is gone; aside: {:?}", self.aside),
        }
    }

    /// What was set aside, and what has come since.
    pub fn received(&mut self) -> Vec<Value> {
        self.aside.extend(self.process.received().map(|line| parse(&line)));
        self.aside.iter().cloned().collect()
    }

    /// Sends a notification.
    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Ends as a client that is killed together with its server.
    ///
    /// # Panics
    /// If the server cannot be killed.
    pub fn kill(mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
    }

    /// Closes our end, and waits for the server to end: its exit code, what it still said, and what it complained about.
    ///
    /// # Panics
    /// If a line is not a message or not text.
    pub fn close(mut self) -> (Option<i32>, Vec<Value>, String) {
        self.process.close_input();
        let mut complaints = String::new();
        let mut errors = self.process.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut errors, &mut complaints).unwrap();
        let code = self.process.child.wait().unwrap().code();
        (code, self.process.rest().map(|line| parse(&line)).collect(), complaints)
    }
}

#[track_caller]
fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|_| panic!("not a message: {line:.300}"))
}

/// The text of a result.
///
/// # Panics
/// If it has none.
#[must_use]
#[track_caller]
pub fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}
