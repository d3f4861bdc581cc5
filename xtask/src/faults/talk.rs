//! A program that answers lines of JSON with lines of JSON: our servers, and the control.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::site::PATIENCE;

#[derive(Debug)]
pub(super) struct Talk {
    child: Child,
    /// Lines for the program, which may stand still and take none for a while.
    input: Option<Sender<String>>,
    lines: Receiver<Value>,
    last_id: u64,
}

/// What came of a request.
#[derive(Debug)]
pub(super) enum Heard {
    Answer(Value),
    /// The program is gone, and said nothing.
    Ended,
    Hung,
}

impl Talk {
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
            // Who is gone does not hear it, and then does not answer.
            to_tell.iter().try_for_each(|line| input.write_all(line.as_bytes()))
        });
        Ok(Self { child, input: Some(told), lines, last_id: 0 })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn tell(&mut self, message: &Value) {
        if let Some(input) = &self.input {
            // Who is gone does not hear it, and then does not answer.
            let _ = input.send(format!("{message}\n"));
        }
    }

    /// Asks, and does not wait.
    pub(super) fn ask(&mut self, method: &str, params: &Value) {
        self.last_id += 1;
        self.tell(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
    }

    pub(super) fn request(&mut self, method: &str, params: &Value) -> Heard {
        self.ask(method, params);
        self.answer()
    }

    /// The answer to the last question.
    pub(super) fn answer(&self) -> Heard {
        let until = Instant::now() + Duration::from_secs(PATIENCE);
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) if self.is_answer(&message) => return Heard::Answer(message),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Heard::Ended,
                Err(RecvTimeoutError::Timeout) => return Heard::Hung,
            }
        }
    }

    /// What came of it by now, if something did.
    pub(super) fn answered(&self) -> Option<Heard> {
        loop {
            match self.lines.try_recv() {
                Ok(message) if self.is_answer(&message) => return Some(Heard::Answer(message)),
                Ok(_) => {}
                Err(TryRecvError::Disconnected) => return Some(Heard::Ended),
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
    pub(super) fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        self.input = None;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(PATIENCE) {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(None)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.kill();
    }
}
