//! The body of an answer, taken in as it comes: events, or one JSON text, whichever the server chose to send.
//!
//! What it is, is seen from its first byte and not from what the server calls it. The outcome does not depend on where the
//! bytes were cut, and there is an answer only if the model said that it had finished.
//!
//! Not here: sockets and clocks (`http.rs`), and what events mean (`openai.rs`, `anthropic.rs`).

use super::fault::Fault;
use super::sse::{Decoder, Event};
use crate::model::{Answer, Parts, Trouble};

/// The most that one answer may have, decoded.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// How much of the begin is kept to be shown.
const HEAD: usize = 400;

/// How one provider's answers are read.
pub(crate) trait Wire {
    fn event(&mut self, event: &Event, parts: &mut Parts<'_>) -> Result<Heard, Fault>;

    /// An answer that came in one piece.
    fn whole(&mut self, body: &str, parts: &mut Parts<'_>) -> Result<(), Fault>;

    /// Whether the model said that it had finished.
    fn is_finished(&self) -> bool;

    /// Nothing if it never did.
    fn answer(self) -> Option<Answer>;
}

/// What some bytes were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    /// A sign of life.
    Life,
    /// A part of the answer.
    Progress,
    /// The end: nothing that follows counts.
    End,
}

/// A body that is still coming.
#[derive(Debug)]
pub(crate) struct Intake<W> {
    wire: W,
    form: Form,
    head: Vec<u8>,
    taken: usize,
    heard: Heard,
}

#[derive(Debug)]
enum Form {
    /// Only space so far.
    Unknown(Vec<u8>),
    Events(Decoder),
    Whole(Vec<u8>),
    /// Nothing that a model says. Its begin is waited for, to be shown.
    Wrong,
}

impl<W: Wire> Intake<W> {
    pub(crate) fn new(wire: W) -> Self {
        Self { wire, form: Form::Unknown(Vec::new()), head: Vec::new(), taken: 0, heard: Heard::Life }
    }

    /// Takes more bytes.
    pub(crate) fn push(&mut self, bytes: &[u8], parts: &mut Parts<'_>) -> Result<Heard, Fault> {
        self.taken = self.taken.saturating_add(bytes.len());
        if self.taken > MOST_BYTES {
            let text = format!("the answer is longer than {} MiB, and was given up", MOST_BYTES / 1024 / 1024);
            return Err(Fault::new(Trouble::Garbled, text));
        }
        let room = HEAD.saturating_sub(self.head.len());
        self.head.extend(bytes.iter().take(room));
        match &mut self.form {
            Form::Unknown(start) => {
                start.extend_from_slice(bytes);
                let Some(form) = form_of(start) else { return Ok(Heard::Life) };
                let start = std::mem::take(start);
                // Of one JSON text, its begin is the only progress that can be seen.
                let begun = if matches!(form, Form::Whole(_)) { Heard::Progress } else { Heard::Life };
                self.form = form;
                self.take(&start, parts).map(|heard| heard.max(begun))
            }
            _ => self.take(bytes, parts),
        }
    }

    /// The body ended. `cut` says that it did so before its time, and how.
    pub(crate) fn end(mut self, cut: Option<Fault>, parts: &mut Parts<'_>) -> Result<Answer, Fault> {
        match &self.form {
            Form::Unknown(_) => {
                return Err(cut.unwrap_or_else(|| Fault::new(Trouble::Cut, "answered with an empty body")));
            }
            Form::Wrong => return Err(Fault::wrong_body(looks_like(&self.head), &self.head)),
            Form::Events(_) if !self.wire.is_finished() && !is_event_stream(&self.head) => {
                return Err(Fault::wrong_body("something that is no answer", &self.head));
            }
            Form::Events(_) => {}
            Form::Whole(body) => {
                let body = String::from_utf8_lossy(body.strip_prefix(MARK).unwrap_or(body)).into_owned();
                let read = self.wire.whole(&body, parts);
                // What is broken because it was cut is cut.
                read.map_err(|fault| cut.clone().filter(|_| fault.trouble == Trouble::Cut).unwrap_or(fault))?;
            }
        }
        let void = "the answer ended before the model had finished, and nothing of it counts";
        self.wire.answer().ok_or_else(|| cut.unwrap_or_else(|| Fault::new(Trouble::Cut, void)))
    }

    /// Whether the answer is whole, whatever may follow.
    pub(crate) fn is_finished(&self) -> bool {
        self.wire.is_finished()
    }

    fn take(&mut self, bytes: &[u8], parts: &mut Parts<'_>) -> Result<Heard, Fault> {
        match &mut self.form {
            Form::Events(decoder) => {
                let (wire, last) = (&mut self.wire, &mut self.heard);
                let mut most = Heard::Life;
                decoder.push(bytes, &mut |event: Event| {
                    if *last != Heard::End {
                        *last = wire.event(&event, parts)?;
                        most = most.max(*last);
                    }
                    Ok(())
                })?;
                Ok(most)
            }
            Form::Whole(body) => {
                body.extend_from_slice(bytes);
                Ok(Heard::Life)
            }
            Form::Wrong if self.head.len() >= HEAD => Err(Fault::wrong_body(looks_like(&self.head), &self.head)),
            Form::Wrong | Form::Unknown(_) => Ok(Heard::Life),
        }
    }
}

/// What may stand before a text.
const MARK: &[u8] = b"\xEF\xBB\xBF";

fn form_of(start: &[u8]) -> Option<Form> {
    if MARK.starts_with(start) {
        return None;
    }
    let first = start.strip_prefix(MARK).unwrap_or(start).trim_ascii_start().first()?;
    Some(match first {
        b'{' | b'[' => Form::Whole(Vec::new()),
        // `: comment`, `data`, `event`, `id`, `retry`.
        b':' | b'd' | b'e' | b'i' | b'r' => Form::Events(Decoder::default()),
        _ => Form::Wrong,
    })
}

fn is_event_stream(head: &[u8]) -> bool {
    let head = head.strip_prefix(MARK).unwrap_or(head).trim_ascii_start();
    [&b":"[..], b"data:", b"event:", b"id:", b"retry:"]
        .iter()
        .any(|field| head.starts_with(&field[..field.len().min(head.len())]))
}

fn looks_like(head: &[u8]) -> &'static str {
    let is_page = head.strip_prefix(MARK).unwrap_or(head).trim_ascii_start().starts_with(b"<");
    if is_page { "a page" } else { "something that is no answer" }
}
