//! Output store: long texts of a session's calls, kept for its read tool.
//!
//! A text that is longer than a model takes is cut, and the whole of it can be read as `@output/ID`. The store is in
//! memory, bounded, and gone with its session. No other session has it, so none can read from it.
//!
//! Not here: reading an output by lines, which is the read tool's.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::sync::Mutex;

/// Bytes of a result for a model: every client that was measured shows that much whole.
pub const MODEL_TEXT_BYTES: usize = 32_000;

/// Prefix of the path of an output.
pub const OUTPUT_PREFIX: &str = "@output/";

const MAX_OUTPUTS: usize = 16;
const MAX_TOTAL_BYTES: usize = 8 << 20;

/// Longest note about an omission.
const NOTE_BYTES: usize = 200;

/// The kept outputs of a session.
///
/// ```
/// use ringfence_kernel::OutputStore;
///
/// let outputs = OutputStore::default();
/// assert_eq!(outputs.bounded("short".to_owned(), 1000), "short");
/// let id = outputs.keep("one\ntwo\n");
/// assert_eq!(&*outputs.get(&id.to_string()).unwrap().text, "one\ntwo\n");
/// ```
#[derive(Debug, Default)]
pub struct OutputStore {
    /// The oldest first.
    kept: Mutex<VecDeque<KeptOutput>>,
}

/// The ID of a kept output; it displays as the path that the read tool takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputId(u32);

/// A kept output.
#[derive(Clone, Debug)]
pub struct KeptOutput {
    id: OutputId,
    /// The text; of one that is too long for the store, the end.
    pub text: Arc<str>,
    /// The time at which it was kept.
    pub time: SystemTime,
}

impl OutputStore {
    /// Keeps a text. The oldest ones go where there are too many.
    pub fn keep(&self, text: &str) -> OutputId {
        let text = &text[text.ceil_char_boundary(text.len().saturating_sub(MAX_TOTAL_BYTES))..];
        let mut kept = self.kept.lock();
        let id = new_output_id(&kept);
        kept.push_back(KeptOutput { id, text: Arc::from(text), time: SystemTime::now() });
        while kept.len() > MAX_OUTPUTS || total_bytes(&kept) > MAX_TOTAL_BYTES {
            kept.pop_front();
        }
        id
    }

    /// The output of a path `@output/ID`, if it is still kept.
    pub fn get(&self, path: &str) -> Option<KeptOutput> {
        let id = OutputId::from_path(path)?;
        self.kept.lock().iter().find(|output| output.id == id).cloned()
    }

    /// A text of at most `limit` bytes for the output of a program: of a longer one the first quarter, a line that names
    /// the whole, and the last three quarters. Both parts are whole lines, unless a line is very long.
    pub fn bounded(&self, text: String, limit: usize) -> String {
        if text.len() <= limit {
            return text;
        }
        let id = self.keep(&text);
        let room = limit.saturating_sub(NOTE_BYTES);
        let head = start_of_lines(&text, room / 4);
        let tail = end_of_lines(&text, room - room / 4);
        let omitted = text.len() - head.len() - tail.len();
        let gap = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
        format!("{head}{gap}[{omitted} bytes omitted; the whole output is {id}]\n{tail}")
    }

    /// A text of at most `limit` bytes: of a longer one the start, and a line that says where to go on.
    pub fn bounded_start(&self, text: String, limit: usize) -> String {
        if text.len() <= limit {
            return text;
        }
        let id = self.keep(&text);
        let head = start_of_lines(&text, limit.saturating_sub(NOTE_BYTES));
        let (shown, total) = (head.lines().count(), text.lines().count());
        if head.ends_with('\n') {
            return format!("{head}[lines 1–{shown} of {total}; go on in {id} from line {}]", shown + 1);
        }
        format!("{head}\n[the first {} of {} bytes; the whole text is {id}]", head.len(), text.len())
    }
}

impl OutputId {
    /// The ID in a path `@output/ID`.
    pub fn from_path(path: &str) -> Option<Self> {
        let digits = path.strip_prefix(OUTPUT_PREFIX)?;
        let is_id = digits.len() == 8 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u32::from_str_radix(digits, 16).ok().filter(|_| is_id).map(Self)
    }
}

impl fmt::Display for OutputId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{OUTPUT_PREFIX}{:08x}", self.0)
    }
}

/// Random, so that an ID of an earlier session is not the ID of another text. Nothing depends on its being secret, and
/// where the system has no random bytes the next number does.
fn new_output_id(kept: &VecDeque<KeptOutput>) -> OutputId {
    let mut bytes = [0; 4];
    let random = getrandom::fill(&mut bytes).map(|()| u32::from_ne_bytes(bytes));
    let mut id = random.unwrap_or_else(|_| kept.back().map_or(1, |last| last.id.0.wrapping_add(1)));
    while kept.iter().any(|output| output.id.0 == id) {
        id = id.wrapping_add(1);
    }
    OutputId(id)
}

fn total_bytes(kept: &VecDeque<KeptOutput>) -> usize {
    kept.iter().map(|output| output.text.len()).sum()
}

/// At most `most` bytes from the start: whole lines, where those are not too few.
fn start_of_lines(text: &str, most: usize) -> &str {
    let start = &text[..text.floor_char_boundary(most)];
    match start.rfind('\n') {
        Some(end) if end >= start.len() / 2 => &start[..=end],
        _ => start,
    }
}

/// At most `most` bytes from the end: whole lines, where those are not too few.
fn end_of_lines(text: &str, most: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(most));
    let end = &text[from..];
    if from == 0 || text[..from].ends_with('\n') {
        return end;
    }
    match end.find('\n') {
        Some(at) if at < end.len() / 2 => &end[at + 1..],
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{MAX_OUTPUTS, MAX_TOTAL_BYTES, OutputStore};

    #[test]
    fn both_ends_of_a_long_output_are_shown_and_the_whole_is_kept() {
        let outputs = OutputStore::default();
        let text: String = (1..=200).map(|number| format!("line {number}\n")).collect();
        let shown = outputs.bounded(text.clone(), 600);
        let path = shown.split_once("the whole output is ").unwrap().1.split(']').next().unwrap();
        assert_eq!(&*outputs.get(path).unwrap().text, text);
        let expected = format!(
            "{}[{} bytes omitted; the whole output is {path}]\n{}",
            text[..text.find("line 14\n").unwrap()].to_owned(),
            text.len() - 95 - 297,
            &text[text.find("line 168\n").unwrap()..]
        );
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_start_of_a_long_text_says_where_to_go_on() {
        let outputs = OutputStore::default();
        let text: String = (1..=200).map(|number| format!("line {number}\n")).collect();
        let shown = outputs.bounded_start(text, 300);
        let (lines, note) = shown.rsplit_once('\n').unwrap();
        assert_eq!(lines.lines().last(), Some("line 13"));
        assert!(
            note.starts_with("[lines 1–13 of 200; go on in @output/") && note.ends_with(" from line 14]"),
            "{note}"
        );
        let shown = outputs.bounded_start("x".repeat(1000), 300);
        assert!(shown.starts_with(&format!("{}\n[the first 100 of 1000 bytes; the whole", "x".repeat(100))), "{shown}");
    }

    #[test]
    fn the_oldest_outputs_go_first() {
        let outputs = OutputStore::default();
        let ids: Vec<_> = (0..=MAX_OUTPUTS).map(|number| outputs.keep(&number.to_string())).collect();
        assert!(outputs.get(&ids[0].to_string()).is_none());
        assert_eq!(&*outputs.get(&ids[1].to_string()).unwrap().text, "1");
        let long = outputs.keep(&format!("{}end", "ü".repeat(MAX_TOTAL_BYTES)));
        assert!(outputs.get(&ids[MAX_OUTPUTS].to_string()).is_none());
        let kept = outputs.get(&long.to_string()).unwrap().text;
        assert!(kept.len() <= MAX_TOTAL_BYTES && kept.ends_with("üend"));
    }

    #[test]
    fn only_a_path_of_an_output_opens_one() {
        let outputs = OutputStore::default();
        let path = outputs.keep("x").to_string();
        for wrong in
            ["", "@output/", "@output/0", "@output/+0000001", &path[1..], &format!("{path}/"), &format!("./{path}")]
        {
            assert!(outputs.get(wrong).is_none(), "{wrong}");
        }
        assert!(OutputStore::default().get(&path).is_none(), "of another session");
    }

    proptest! {
        #[test]
        fn a_bounded_text_fits_and_is_made_of_its_ends(text in "[aü\n]{0,900}", limit in 250_usize..800) {
            let outputs = OutputStore::default();
            let shown = outputs.bounded(text.clone(), limit);
            prop_assert!(shown.len() <= limit);
            match shown.split_once(" bytes omitted; the whole output is ") {
                None => prop_assert_eq!(&shown, &text),
                Some((before, after)) => {
                    let (head, omitted) = before.rsplit_once('[').unwrap();
                    let (_, tail) = after.split_once("]\n").unwrap();
                    prop_assert!(text.starts_with(head) || text.starts_with(head.trim_end_matches('\n')));
                    prop_assert!(text.ends_with(tail));
                    prop_assert!(omitted.parse::<usize>().unwrap() < text.len());
                }
            }
            prop_assert!(outputs.bounded_start(text, limit).len() <= limit);
        }
    }
}
