//! One client of the Model Context Protocol for every server under attack.
//!
//! A call always comes back: with a reply, with silence after a time, or with the news that the server is gone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::servers::Program;

/// How long a server may take for one call before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take to start.
const FIRST_PATIENCE: Duration = Duration::from_secs(60);

/// What came of a call.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The result, or an error.
    Said(Value),
    Silence,
    Gone,
}

impl Reply {
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Self::Said(said) if said["result"].is_object() && said["result"]["isError"] != true)
    }

    /// Everything that a client learns.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Said(said) => said.to_string(),
            Self::Silence | Self::Gone => String::new(),
        }
    }
}

/// A server that shook hands.
#[derive(Debug)]
pub(crate) struct Client {
    child: Child,
    /// To a thread that writes: one who does not read would keep us for ever.
    to: Sender<String>,
    from: Receiver<String>,
    last_id: u64,
    patience: Duration,
}

impl Client {
    /// Nothing if it does not start or does not answer.
    pub(crate) fn start(program: &Program, base: &Path) -> Option<Self> {
        let mut command = Command::new(program.words.first()?);
        let workspace = base.join("ws");
        command.args(&program.words[1..]).arg(&workspace).current_dir(&workspace);
        command.env("HOME", base.join("outside")).env("RINGFENCE_STATE_DIR", base.join("state"));
        command.env("XDG_CONFIG_HOME", base.join("config"));
        Self::greet(command)
    }

    /// Starts a server and shakes hands with it.
    pub(crate) fn greet(mut command: Command) -> Option<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let (mut input, output) = (child.stdin.take()?, child.stdout.take()?);
        let ((to, lines), (said, from)) = (channel::<String>(), channel());
        // Both end with the server, which ends with the client.
        std::thread::spawn(move || lines.iter().all(|line| input.write_all(line.as_bytes()).is_ok()));
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.take_while(|line| said.send(line.clone()).is_ok()).for_each(drop);
        });
        let mut client = Self { child, to, from, last_id: 0, patience: FIRST_PATIENCE };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "attack", "version": "1"}});
        if !client.ask("initialize", &hello).is_success() {
            return None;
        }
        client.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client.patience = PATIENCE;
        Some(client)
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Reply {
        self.ask("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Sends calls without waiting in between, and then waits for all. Which of them succeeded.
    pub(crate) fn call_at_once(&mut self, calls: &[(&str, Value)]) -> Vec<bool> {
        let first = self.last_id + 1;
        for (tool, arguments) in calls {
            self.last_id += 1;
            self.request(self.last_id, "tools/call", &json!({"name": tool, "arguments": arguments}).to_string());
        }
        let mut done = vec![false; calls.len()];
        let asked = Instant::now();
        for _ in calls {
            let Reply::Said(said) = self.next(asked, |said| said["id"].is_u64()) else { break };
            let at = said["id"].as_u64().and_then(|id| usize::try_from(id.checked_sub(first)?).ok());
            if let Some(slot) = at.and_then(|at| done.get_mut(at)) {
                *slot = Reply::Said(said).is_success();
            }
        }
        done
    }

    /// A line that may be anything.
    pub(crate) fn send(&mut self, line: &str) {
        // One who is gone is found out by the next call.
        let _ = self.to.send(format!("{line}\n"));
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Reply {
        self.ask_as_written(method, &parameters.to_string())
    }

    /// With parameters that no JSON value could hold, such as a key twice.
    pub(crate) fn ask_as_written(&mut self, method: &str, parameters: &str) -> Reply {
        self.last_id += 1;
        let id = self.last_id;
        self.request(id, method, parameters);
        self.next(Instant::now(), |said| said["id"] == id && said.get("method").is_none())
    }

    fn request(&mut self, id: u64, method: &str, parameters: &str) {
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{parameters}}}"#));
    }

    fn next(&self, asked: Instant, is_it: impl Fn(&Value) -> bool) -> Reply {
        loop {
            match self.from.recv_timeout(self.patience.saturating_sub(asked.elapsed())) {
                Ok(line) => {
                    let said: Value = serde_json::from_str(&line).unwrap_or_default();
                    if is_it(&said) {
                        return Reply::Said(said);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Reply::Silence,
                Err(RecvTimeoutError::Disconnected) => return Reply::Gone,
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
