//! Message history of a session: each call with exactly one result.
//!
//! Every message is stored by a `TranscriptStore` before anything is done about it. The model can get less than what is
//! stored: over its limit, old results are omitted first, then old turns, with a note. A call is never sent without its
//! result, nor a result without its call.
//!
//! Not here: where messages are kept.

use std::fmt;

use ringfence_kernel::{Dialect, ErrorKind, ToolError};

use crate::message::{RequestedCall, ToolResultSummary, TranscriptMessage};

/// A result that is not longer than this is not worth leaving out.
const MIN_CUT_BYTES: usize = 160;

/// The transcript cannot be stored, and the run must not go on without it.
#[derive(Debug, thiserror::Error)]
#[error("the session cannot be saved")]
pub struct TranscriptError(#[source] pub std::io::Error);

/// Stores a transcript, message by message.
pub trait TranscriptStore: Send + Sync + fmt::Debug {
    fn append(&mut self, message: &TranscriptMessage) -> Result<(), TranscriptError>;
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoTranscript;

impl TranscriptStore for NoTranscript {
    fn append(&mut self, _: &TranscriptMessage) -> Result<(), TranscriptError> {
        Ok(())
    }
}

/// The messages of a session, as its model is shown them.
#[derive(Debug)]
pub struct MessageHistory {
    messages: Vec<TranscriptMessage>,
    store: Box<dyn TranscriptStore>,
    /// Of all messages.
    bytes: usize,
    /// Index of the current prompt.
    prompt_at: usize,
    /// Number of messages that are omitted for the model.
    omitted: usize,
}

/// Size of the omitted part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactionStats {
    pub(crate) results: usize,
    pub(crate) messages: usize,
}

/// An instruction for one answer. It is not part of the history.
#[must_use]
pub(crate) enum TransientNote {
    /// A message of its own.
    Message,
    /// Behind a message that was there: some templates want persons and models to take turns.
    Appended(usize),
}

impl MessageHistory {
    pub fn new(store: Box<dyn TranscriptStore>) -> Self {
        Self { messages: Vec::new(), store, bytes: 0, prompt_at: 0, omitted: 0 }
    }

    /// A session that goes on: calls that never got a result get one that says so, and are not made again.
    pub fn resume(
        messages: Vec<TranscriptMessage>,
        dialect: Dialect,
        memory: Box<dyn TranscriptStore>,
    ) -> Result<Self, TranscriptError> {
        let messages = complete_calls(messages, dialect);
        let bytes = messages.iter().map(size).sum();
        let mut history = Self { messages, store: memory, bytes, prompt_at: 0, omitted: 0 };
        history.ensure_closed("(interrupted before an answer)")?;
        Ok(history)
    }

    pub fn messages(&self) -> &[TranscriptMessage] {
        &self.messages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, message: TranscriptMessage) -> Result<(), TranscriptError> {
        self.store.append(&message)?;
        self.bytes += size(&message);
        self.messages.push(message);
        Ok(())
    }

    pub(crate) fn prompt(&mut self, text: &str) -> Result<(), TranscriptError> {
        self.prompt_at = self.messages.len();
        self.omitted = 0;
        self.push(TranscriptMessage::User { text: text.to_owned() })
    }

    /// Adds a permanent note of the host to the model.
    pub(crate) fn note(&mut self, text: &str) -> Result<(), TranscriptError> {
        self.push(TranscriptMessage::User { text: host_note(text) })
    }

    /// Ends the transcript with a message of the model, written by the host where there is none.
    pub(crate) fn ensure_closed(&mut self, text: &str) -> Result<(), TranscriptError> {
        match self.messages.last() {
            None => Ok(()),
            Some(TranscriptMessage::Assistant { calls, .. }) if calls.is_empty() => Ok(()),
            Some(_) => self.push(TranscriptMessage::answer(text)),
        }
    }

    /// Adds a note of the host for the next answer only.
    pub(crate) fn add_transient_note(&mut self, text: &str) -> TransientNote {
        let note = host_note(text);
        match self.messages.last_mut() {
            Some(TranscriptMessage::User { text }) => {
                let before = text.len();
                text.push_str("\n\n");
                text.push_str(&note);
                TransientNote::Appended(before)
            }
            _ => {
                self.messages.push(TranscriptMessage::User { text: note });
                TransientNote::Message
            }
        }
    }

    /// Removes the note, before anything else is added.
    pub(crate) fn remove_transient_note(&mut self, aside: TransientNote) {
        match (aside, self.messages.last_mut()) {
            (TransientNote::Message, _) => drop(self.messages.pop()),
            (TransientNote::Appended(before), Some(TranscriptMessage::User { text })) => text.truncate(before),
            (TransientNote::Appended(_), _) => {}
        }
    }

    /// Leaves out as much as it takes for the rest to have at most `most` bytes, if that can be done. Nothing where
    /// nothing could be left out.
    pub(crate) fn compact(&mut self, most: usize) -> Option<CompactionStats> {
        let mut done = CompactionStats::default();
        let last_step = self.last_step();
        for at in 0..last_step {
            if self.bytes <= most {
                break;
            }
            done.results += self.truncate_result(at, 0);
        }
        while self.bytes > most {
            let Some(range) = self.oldest_part() else { break };
            done.messages += range.len();
            self.omitted += range.len();
            if range.end <= self.prompt_at {
                self.prompt_at -= range.len();
            }
            self.bytes -= self.messages.drain(range).map(|message| size(&message)).sum::<usize>();
        }
        if done.messages > 0 {
            self.note_omissions();
        }
        let last_step = self.last_step();
        let results = self.messages.len().saturating_sub(last_step + 1).max(1);
        let over = self.bytes.saturating_sub(most);
        if over > 0 {
            let room: usize = self.messages[last_step.min(self.messages.len())..].iter().map(size).sum();
            // The omission note takes room too.
            let each = (room.saturating_sub(over) / results).saturating_sub(2 * MIN_CUT_BYTES);
            for at in last_step..self.messages.len() {
                done.results += self.truncate_result(at, each);
            }
        }
        (done != CompactionStats::default()).then_some(done)
    }

    /// Index of the last message with calls, or the end.
    fn last_step(&self) -> usize {
        let has_calls = |message: &TranscriptMessage| matches!(message, TranscriptMessage::Assistant { calls, .. } if !calls.is_empty());
        self.messages.iter().rposition(has_calls).unwrap_or(self.messages.len())
    }

    /// Cuts a result to its first bytes. How many results were cut: one or none.
    fn truncate_result(&mut self, at: usize, keep: usize) -> usize {
        let Some(TranscriptMessage::Tool { text, .. }) = self.messages.get_mut(at) else { return 0 };
        if text.len() <= keep.saturating_add(MIN_CUT_BYTES) {
            return 0;
        }
        let before = text.len();
        text.truncate(text.floor_char_boundary(keep));
        let left_out = before - text.len();
        text.push_str(&format!(
            "[{left_out} bytes of this result were removed to save context; call again to see them]"
        ));
        self.bytes -= before;
        self.bytes += text.len();
        1
    }

    /// The oldest turn before the prompt, or else the oldest step after it that is not the last one.
    fn oldest_part(&self) -> Option<std::ops::Range<usize>> {
        let begins_turn = |message: &TranscriptMessage| matches!(message, TranscriptMessage::User { .. });
        if self.prompt_at > 0 {
            let next = self.messages.iter().skip(1).position(begins_turn).map_or(self.prompt_at, |at| at + 1);
            return Some(0..next.min(self.prompt_at));
        }
        let begins_step = |message: &TranscriptMessage| matches!(message, TranscriptMessage::Assistant { .. });
        let mut steps = self.messages.iter().enumerate().skip(1).filter(|(_, message)| begins_step(message));
        let (first, _) = steps.next()?;
        let (second, _) = steps.next()?;
        (second <= self.last_step()).then_some(first..second)
    }

    fn note_omissions(&mut self) {
        const MARK: &str = "\n\n[ringfence: to save context, ";
        if let Some(TranscriptMessage::User { text }) = self.messages.get_mut(self.prompt_at) {
            self.bytes -= text.len();
            if let Some(at) = text.rfind(MARK).filter(|_| text.ends_with("left out here]")) {
                text.truncate(at);
            }
            text.push_str(&format!("{MARK}{} earlier messages of this session are left out here]", self.omitted));
            self.bytes += text.len();
        }
    }
}

/// A note of the host, marked as such.
fn host_note(text: &str) -> String {
    format!("[ringfence: {text}]")
}

fn size(message: &TranscriptMessage) -> usize {
    match message {
        TranscriptMessage::User { text } => text.len(),
        TranscriptMessage::Assistant { text, calls, reasoning } => {
            let call = |call: &RequestedCall| call.id.len() + call.name.len() + call.arguments.len();
            text.len() + calls.iter().map(call).sum::<usize>() + reasoning.size()
        }
        TranscriptMessage::Tool { call_id, name, text, .. } => call_id.len() + name.len() + text.len(),
    }
}

/// The same messages with one result for each call, in the order of the calls: a call that a crash left open gets an
/// error.
pub fn complete_calls(messages: Vec<TranscriptMessage>, dialect: Dialect) -> Vec<TranscriptMessage> {
    let mut made = Vec::with_capacity(messages.len());
    let mut left = messages.into_iter().peekable();
    while let Some(message) = left.next() {
        match &message {
            TranscriptMessage::Tool { .. } => {}
            TranscriptMessage::Assistant { calls, .. } if !calls.is_empty() => {
                let calls = calls.clone();
                made.push(message);
                let mut results = Vec::new();
                while let Some(result) = left.next_if(|message| matches!(message, TranscriptMessage::Tool { .. })) {
                    results.push(result);
                }
                for call in &calls {
                    let is_its = |message: &TranscriptMessage| matches!(message, TranscriptMessage::Tool { call_id, .. } if *call_id == call.id);
                    let found = results.iter().position(is_its).map(|at| results.swap_remove(at));
                    made.push(found.unwrap_or_else(|| interrupted(call, dialect)));
                }
            }
            _ => made.push(message),
        }
    }
    made
}

fn interrupted(call: &RequestedCall, dialect: Dialect) -> TranscriptMessage {
    let message = "interrupted; effects unknown: check before you call it again";
    let error = ToolError::new(ErrorKind::Cancelled, message).detail("committed", "unknown");
    TranscriptMessage::Tool {
        call_id: call.id.clone(),
        name: call.name.clone(),
        text: dialect.render_error(&error),
        is_error: true,
        summary: ToolResultSummary { created: false, text: Some(error.message) },
    }
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::Dialect;

    use super::{MessageHistory, NoTranscript, complete_calls};
    use crate::message::{ReasoningState, RequestedCall, TranscriptMessage};

    fn step(id: &str, result: &str) -> [TranscriptMessage; 2] {
        let call = RequestedCall { id: id.to_owned(), name: "read_file".to_owned(), arguments: "{}".to_owned() };
        let text = result.to_owned();
        [
            TranscriptMessage::Assistant {
                text: String::new(),
                calls: vec![call],
                reasoning: ReasoningState::default(),
            },
            TranscriptMessage::Tool {
                call_id: id.to_owned(),
                name: "read_file".to_owned(),
                text,
                is_error: false,
                summary: crate::ToolResultSummary::default(),
            },
        ]
    }

    fn user(text: &str) -> TranscriptMessage {
        TranscriptMessage::User { text: text.to_owned() }
    }

    fn assistant(text: &str) -> TranscriptMessage {
        TranscriptMessage::answer(text)
    }

    /// Every call has its result right behind it, and there is no other result.
    fn is_paired(messages: &[TranscriptMessage]) -> bool {
        complete_calls(messages.to_vec(), Dialect::Standard) == messages
    }

    fn long(turns: usize) -> MessageHistory {
        let mut history = MessageHistory::new(Box::new(NoTranscript));
        for turn in 0..turns {
            history.prompt(&format!("prompt {turn}")).unwrap();
            for number in 0..3 {
                for message in step(&format!("c{turn}-{number}"), &"x".repeat(1000)) {
                    history.push(message).unwrap();
                }
            }
            if turn + 1 < turns {
                history.push(assistant("done")).unwrap();
            }
        }
        history
    }

    #[test]
    fn a_call_without_a_result_gets_one_that_says_so() {
        let [call, _] = step("a", "");
        let messages = complete_calls(vec![user("hi"), call], Dialect::Standard);
        let TranscriptMessage::Tool { text, is_error: true, .. } = &messages[2] else { panic!("{messages:?}") };
        assert!(text.contains("interrupted; effects unknown"), "{text}");
        assert!(is_paired(&messages));
    }

    #[test]
    fn results_without_calls_and_second_results_go() {
        let [call, result] = step("a", "one");
        let [_, stray] = step("b", "two");
        let messages = vec![stray.clone(), user("hi"), call.clone(), result.clone(), result.clone(), stray];
        assert_eq!(complete_calls(messages, Dialect::Standard), [user("hi"), call, result]);
    }

    #[test]
    fn results_go_first_and_the_last_step_stays() {
        let mut history = long(2);
        let most = history.bytes() - 2000;
        let done = history.compact(most).unwrap();
        assert_eq!((done.messages, done.results), (0, 3));
        assert!(history.bytes() <= most && is_paired(history.messages()));
    }

    #[test]
    fn whatever_is_asked_for_pairs_stay_pairs_and_the_prompt_stays() {
        for turns in 1..4 {
            let whole_size = long(turns).bytes();
            for most in (0..whole_size).step_by(whole_size / 97) {
                let mut history = long(turns);
                history.compact(most);
                assert!(is_paired(history.messages()), "{turns} {most}");
                let is_prompt = |message: &TranscriptMessage| matches!(message, TranscriptMessage::User { text } if text.starts_with(&format!("prompt {}", turns - 1)));
                assert_eq!(history.messages().iter().filter(|message| is_prompt(message)).count(), 1);
                assert!(matches!(history.messages()[0], TranscriptMessage::User { .. }), "{turns} {most}");
                assert_eq!(history.bytes(), history.messages().iter().map(super::size).sum::<usize>());
                // Parts that cannot be omitted: the prompt, the last step, and a short omission note.
                assert!(history.bytes() <= most.max(600), "{turns} {most}: {}", history.bytes());
            }
        }
    }

    #[test]
    fn it_is_said_once_how_much_is_missing() {
        let mut history = long(3);
        history.compact(1000);
        history.compact(700);
        let TranscriptMessage::User { text } = &history.messages()[0] else { panic!() };
        assert_eq!(text.matches("[ringfence").count(), 1, "{text}");
    }

    #[test]
    fn an_aside_leaves_no_trace() {
        let mut history = long(1);
        for _ in 0..2 {
            let before = history.messages().to_vec();
            let aside = history.add_transient_note("be brief");
            assert_ne!(history.messages(), before);
            history.remove_transient_note(aside);
            assert_eq!(history.messages(), before);
            history.prompt("next").unwrap();
        }
    }

    #[test]
    fn a_session_that_was_cut_off_ends_with_a_word_of_the_model() {
        let [call, _] = step("a", "");
        let history =
            MessageHistory::resume(vec![user("hi"), call], Dialect::Miniclaw, Box::new(NoTranscript)).unwrap();
        assert!(
            matches!(history.messages().last(), Some(TranscriptMessage::Assistant { calls, .. }) if calls.is_empty())
        );
    }
}
