//! Output store: long texts of a session's calls, kept for its read tool.
//!
//! A text that is longer than a model takes is cut, and the whole of it can be read as `@output/ID`. The store is in
//! memory, bounded, and gone with its session. No other session has it, so none can read from it.
//!
//! Not here: reading an output by lines, which is the read tool's.

use std::borrow::Cow;
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

/// Longest line of a kept text, in bytes: the read tool shows whole lines, and several of these fit into a result.
const MAX_LINE_BYTES: usize = 4000;

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
    /// Keeps a text; of one that is too long for the store, the end. Lines that no result has room for become several.
    /// The oldest texts go where there are too many.
    pub fn keep(&self, text: &str) -> OutputId {
        let text = with_short_lines(text);
        self.insert(&text[text.ceil_char_boundary(text.len().saturating_sub(MAX_TOTAL_BYTES))..])
    }

    fn insert(&self, text: &str) -> OutputId {
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
        let kept = if text.len() > MAX_TOTAL_BYTES { "the end of the output" } else { "the whole output" };
        format!("{head}{gap}[{omitted} bytes omitted; {kept} is {id}]\n{tail}")
    }

    /// A text of at most `limit` bytes: of a longer one the start, and a line that says where to go on. Of one that is too
    /// long for the store, the start is kept.
    pub fn bounded_start(&self, text: String, limit: usize) -> String {
        if text.len() <= limit {
            return text;
        }
        let text = with_short_lines(&text);
        let kept = if text.len() <= MAX_TOTAL_BYTES { &*text } else { start_of_lines(&text, MAX_TOTAL_BYTES) };
        let id = self.insert(kept);
        let head = start_of_lines(kept, limit.saturating_sub(NOTE_BYTES));
        let (shown, total) = (head.lines().count(), kept.lines().count());
        let more = if kept.len() < text.len() { " and more" } else { "" };
        if head.ends_with('\n') {
            return format!("{head}[lines 1–{shown} of {total}{more}; go on in {id} from line {}]", shown + 1);
        }
        format!("{head}\n[the first {} of {} bytes; the whole text is {id}]", head.len(), kept.len())
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

/// The text with newlines in lines that are too long.
fn with_short_lines(text: &str) -> Cow<'_, str> {
    if text.split_inclusive('\n').all(|line| line.len() <= MAX_LINE_BYTES) {
        return text.into();
    }
    let mut broken = String::with_capacity(text.len() + text.len() / MAX_LINE_BYTES + 1);
    for mut line in text.split_inclusive('\n') {
        // The newline of the line itself does not count.
        while line.len() > MAX_LINE_BYTES + 1 {
            let (start, rest) = line.split_at(line.floor_char_boundary(MAX_LINE_BYTES));
            broken.push_str(start);
            broken.push('\n');
            line = rest;
        }
        broken.push_str(line);
    }
    broken.into()
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

    use super::{MAX_LINE_BYTES, MAX_OUTPUTS, MAX_TOTAL_BYTES, OutputStore};

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
    fn a_line_that_no_result_has_room_for_is_kept_as_several() {
        let outputs = OutputStore::default();
        let text = format!("a\n{}\nb\n", "ü".repeat(20_000));
        let shown = outputs.bounded(text.clone(), 1000);
        let path = shown.split_once("the whole output is ").unwrap().1.split(']').next().unwrap();
        let kept = outputs.get(path).unwrap().text;
        assert!(kept.lines().all(|line| line.len() <= MAX_LINE_BYTES));
        assert_eq!(kept.lines().count(), 12);
        assert_eq!(kept.replace('\n', ""), text.replace('\n', ""));
        // A last line without its end is kept too, and the line to go on from is one of the kept text.
        let shown = outputs.bounded_start("line\n".repeat(100) + "end", 300);
        let id = shown.split_once("go on in ").unwrap().1.split(' ').next().unwrap();
        assert!(outputs.get(id).unwrap().text.ends_with("line\nend"));
        let shown = outputs.bounded_start(text, 32_000);
        let (lines, note) = shown.rsplit_once('\n').unwrap();
        assert!(note.starts_with("[lines 1–8 of 12; go on in @output/"), "{note}");
        assert_eq!(lines.lines().count(), 8);
    }

    #[test]
    fn of_a_text_that_is_too_long_the_part_is_kept_that_the_note_names() {
        let outputs = OutputStore::default();
        let text: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
        assert!(text.len() > MAX_TOTAL_BYTES);
        let shown = outputs.bounded_start(text.clone(), 1000);
        let (lines, note) = shown.rsplit_once('\n').unwrap();
        let count = lines.lines().count();
        let path = note.split_once("go on in ").unwrap().1.split(' ').next().unwrap();
        let kept = outputs.get(path).unwrap().text;
        assert!(note.contains(&format!(" of {} and more; ", kept.lines().count())), "{note}");
        assert!(note.ends_with(&format!(" from line {}]", count + 1)), "{note}");
        assert_eq!(kept.lines().nth(count).unwrap(), (count + 1).to_string());
        assert!(outputs.bounded(text, 1000).contains("bytes omitted; the end of the output is @output/"));
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
