//! One client of the Model Context Protocol for every server under attack.
//!
//! A call always comes back: with a reply, with silence after a time, or with the news that the server is gone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use ringfence_testkit::stdio_process::StdioProcess;
use serde_json::{Value, json};

use super::peer_servers::ServerProgram;

/// Time of one call before a server counts as hung.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum AttackReply {
    /// The result, or an error.
    Message(Value),
    TimedOut,
    Exited,
}

impl AttackReply {
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Self::Message(message) if message["result"].is_object() && message["result"]["isError"] != true)
    }

    /// Everything that a client learns.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Message(message) => message.to_string(),
            Self::TimedOut | Self::Exited => String::new(),
        }
    }
}

/// A server that shook hands.
#[derive(Debug)]
pub(crate) struct AttackClient {
    process: StdioProcess,
    last_id: u64,
    timeout: Duration,
}

impl AttackClient {
    /// Nothing if it does not start or does not answer.
    pub(crate) fn start(program: &ServerProgram, base: &Path) -> Option<Self> {
        let mut command = Command::new(program.command.first()?);
        let workspace = base.join("ws");
        command.args(&program.command[1..]).arg(&workspace).current_dir(&workspace);
        command.env("HOME", base.join("outside")).env("RINGFENCE_STATE_DIR", base.join("state"));
        command.env("XDG_CONFIG_HOME", base.join("config"));
        Self::connect(command)
    }

    /// Starts a server and shakes hands with it.
    pub(crate) fn connect(mut command: Command) -> Option<Self> {
        let process = StdioProcess::start(command.stderr(Stdio::null())).ok()?;
        let mut client = Self { process, last_id: 0, timeout: START_TIMEOUT };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "attack", "version": "1"}});
        if !client.call_method("initialize", &hello).is_success() {
            return None;
        }
        client.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client.timeout = CALL_TIMEOUT;
        Some(client)
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> AttackReply {
        self.call_method("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Sends calls without waiting in between, and then waits for all. Which of them succeeded.
    pub(crate) fn call_concurrently(&mut self, calls: &[(&str, Value)]) -> Vec<bool> {
        let first = self.last_id + 1;
        for (tool, arguments) in calls {
            self.last_id += 1;
            self.send_request(self.last_id, "tools/call", &json!({"name": tool, "arguments": arguments}).to_string());
        }
        let mut done = vec![false; calls.len()];
        let asked = Instant::now();
        for _ in calls {
            let AttackReply::Message(message) = self.wait_for_message(asked, |message| message["id"].is_u64()) else {
                break;
            };
            let at = message["id"].as_u64().and_then(|id| usize::try_from(id.checked_sub(first)?).ok());
            if let Some(slot) = at.and_then(|at| done.get_mut(at)) {
                *slot = AttackReply::Message(message).is_success();
            }
        }
        done
    }

    /// A line that may be anything.
    pub(crate) fn send(&mut self, line: &str) {
        self.process.send(format!("{line}\n"));
    }

    fn call_method(&mut self, method: &str, parameters: &Value) -> AttackReply {
        self.call_method_raw(method, &parameters.to_string())
    }

    /// With parameters that no JSON value could hold, such as a key twice.
    pub(crate) fn call_method_raw(&mut self, method: &str, parameters: &str) -> AttackReply {
        self.last_id += 1;
        let id = self.last_id;
        self.send_request(id, method, parameters);
        self.wait_for_message(Instant::now(), |message| message["id"] == id && message.get("method").is_none())
    }

    fn send_request(&mut self, id: u64, method: &str, parameters: &str) {
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{parameters}}}"#));
    }

    fn wait_for_message(&self, asked: Instant, is_it: impl Fn(&Value) -> bool) -> AttackReply {
        loop {
            match self.process.receive(self.timeout.saturating_sub(asked.elapsed())) {
                Ok(line) => {
                    let message: Value = serde_json::from_str(&line).unwrap_or_default();
                    if is_it(&message) {
                        return AttackReply::Message(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return AttackReply::TimedOut,
                Err(RecvTimeoutError::Disconnected) => return AttackReply::Exited,
            }
        }
    }
}
