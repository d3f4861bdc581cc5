//! A program that answers lines of JSON with lines of JSON: our servers, and the control.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::site::HANG_SECONDS;

#[derive(Debug)]
pub(super) struct JsonLineClient {
    child: Child,
    /// Lines for the program, which may stand still and take none for a while.
    input: Option<Sender<String>>,
    lines: Receiver<Value>,
    last_id: u64,
}

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum JsonLineReply {
    Answer(Value),
    /// The program exited without an answer.
    Exited,
    TimedOut,
}

impl JsonLineClient {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().map(BufReader::new).ok_or_else(|| io::Error::other("no pipe"))?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let messages = output.lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok());
            messages.map_while(|message| sender.send(message).ok()).for_each(drop);
        });
        let mut input = child.stdin.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let (told, to_tell) = channel::<String>();
        std::thread::spawn(move || {
            // A closed pipe means that there will be no answer.
            to_tell.iter().try_for_each(|line| input.write_all(line.as_bytes()))
        });
        Ok(Self { child, input: Some(told), lines, last_id: 0 })
    }

    pub(super) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn send(&mut self, message: &Value) {
        if let Some(input) = &self.input {
            // A closed pipe means that there will be no answer.
            let _ = input.send(format!("{message}\n"));
        }
    }

    /// Asks, and does not wait.
    pub(super) fn send_request(&mut self, method: &str, params: &Value) {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
    }

    pub(super) fn request(&mut self, method: &str, params: &Value) -> JsonLineReply {
        self.send_request(method, params);
        self.answer()
    }

    /// The answer to the last question.
    pub(super) fn answer(&self) -> JsonLineReply {
        let until = Instant::now() + Duration::from_secs(HANG_SECONDS);
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) if self.is_answer(&message) => return JsonLineReply::Answer(message),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return JsonLineReply::Exited,
                Err(RecvTimeoutError::Timeout) => return JsonLineReply::TimedOut,
            }
        }
    }

    /// The outcome so far, if there is one.
    pub(super) fn try_answer(&self) -> Option<JsonLineReply> {
        loop {
            match self.lines.try_recv() {
                Ok(message) if self.is_answer(&message) => return Some(JsonLineReply::Answer(message)),
                Ok(_) => {}
                Err(TryRecvError::Disconnected) => return Some(JsonLineReply::Exited),
                Err(TryRecvError::Empty) => return None,
            }
        }
    }

    fn is_answer(&self, message: &Value) -> bool {
        message["id"] == self.last_id && message.get("method").is_none()
    }

    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Closes our end, and waits for the program to end. Nothing where it does not.
    pub(super) fn close(&mut self) -> io::Result<Option<ExitStatus>> {
        self.input = None;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(HANG_SECONDS) {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(None)
    }
}

impl Drop for JsonLineClient {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.kill();
    }
}
