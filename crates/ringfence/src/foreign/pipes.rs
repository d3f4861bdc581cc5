//! A server on the other end of two pipes: one message a line.
//!
//! Nobody here waits for ever: a thread writes, so that a server that does not read holds up that thread alone, and who
//! asks looks at the clock. A server that says too much at once is ended. When the last owner lets go, so is it.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::line::{Line, Patience, Trouble};
use super::speech::{self, Lines, Refusal, Said};

/// How often it is asked whether anybody still waits.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// How many messages wait for a server to read them.
const MOST_WAITING: usize = 16;

/// What a server said, sorted to who waits for it.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    news: Condvar,
    /// What is to be written. Nothing, once it is over.
    out: Mutex<Option<SyncSender<Vec<u8>>>>,
}

#[derive(Debug, Default)]
struct State {
    lines: Lines,
    /// Who waits, and what came for them.
    waiting: HashMap<u64, Option<Result<Value, Refusal>>>,
    over: Option<Trouble>,
}

impl Inbox {
    /// With what is to be written to the server.
    pub(crate) fn new() -> (Arc<Self>, Receiver<Vec<u8>>) {
        let (out, to_write) = sync_channel(MOST_WAITING);
        let inbox = Self { state: Mutex::default(), news: Condvar::new(), out: Mutex::new(Some(out)) };
        (Arc::new(inbox), to_write)
    }

    /// Takes in what the server printed.
    pub(crate) fn hear(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.over.is_some() {
            return;
        }
        let Ok(lines) = state.lines.push(bytes) else {
            drop(state);
            return self.end(Trouble::TooLong);
        };
        for line in lines {
            match speech::read(&line) {
                Said::Answer { id, result } => {
                    if let Some(place) = state.waiting.get_mut(&id) {
                        place.get_or_insert(result);
                    }
                }
                // Whether that can be said is the server's own trouble.
                Said::Asks { id, method } => drop(self.send(speech::reply(&id, &method))),
                Said::Else => {}
            }
        }
        self.news.notify_all();
    }

    /// Nothing comes any more. The first reason counts.
    pub(crate) fn end(&self, why: Trouble) {
        self.state().over.get_or_insert(why);
        *self.out.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.news.notify_all();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    fn send(&self, mut message: Vec<u8>) -> Result<(), Trouble> {
        message.push(b'\n');
        match &*self.out.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(out) => out.try_send(message).map_err(|_| Trouble::Busy),
            None => Err(Trouble::Ended("it is gone".to_owned())),
        }
    }

    fn wait_for(&self, id: u64, patience: &Patience<'_>) -> Result<Value, Trouble> {
        let mut state = self.state();
        loop {
            if let Some(Some(result)) = state.waiting.get_mut(&id).map(Option::take) {
                return result.map_err(Trouble::Refused);
            }
            if let Some(why) = &state.over {
                return Err(why.clone());
            }
            let left = patience.left();
            if left.is_zero() {
                return Err(Trouble::Slow);
            }
            let waited = self.news.wait_timeout(state, left.min(ASK_EVERY));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            (patience.check)().map_err(Trouble::Unwanted)?;
        }
    }

    /// A panic elsewhere cannot leave this half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what is to be written, until the server is gone.
pub(crate) fn write_all(to_write: &Receiver<Vec<u8>>, mut input: impl Write) {
    for message in to_write {
        if input.write_all(&message).and_then(|()| input.flush()).is_err() {
            return;
        }
    }
}

/// Whoever ends a program when it is dropped.
pub(crate) trait Hold: Send + Sync + fmt::Debug {}

/// A program and the pipes to it.
#[derive(Debug)]
pub(crate) struct Pipes {
    inbox: Arc<Inbox>,
    next: AtomicU64,
    _program: Box<dyn Hold>,
}

impl Pipes {
    pub(crate) fn new(inbox: Arc<Inbox>, program: Box<dyn Hold>) -> Self {
        Self { inbox, next: AtomicU64::new(1), _program: program }
    }
}

impl Line for Pipes {
    fn ask(&self, method: &str, params: &Value, patience: &Patience<'_>) -> Result<Value, Trouble> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.inbox.state().waiting.insert(id, None);
        let answer =
            self.inbox.send(speech::write(Some(id), method, params)).and_then(|()| self.inbox.wait_for(id, patience));
        self.inbox.state().waiting.remove(&id);
        if matches!(answer, Err(Trouble::Slow | Trouble::Unwanted(_))) {
            // Where that cannot be said, it is not read either.
            let stop = json!({"requestId": id, "reason": "nobody waits any more"});
            let _ = self.inbox.send(speech::write(None, "notifications/cancelled", &stop));
        }
        answer
    }

    fn tell(&self, method: &str, params: &Value, _: &Patience<'_>) -> Result<(), Trouble> {
        self.inbox.send(speech::write(None, method, params))
    }

    fn is_over(&self) -> bool {
        self.inbox.is_over()
    }
}
