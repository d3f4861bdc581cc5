//! Numbered lines: the text of a file for models, as `N<tab>text`, in pages.

use std::fmt::Write as _;
use std::ops::Range;

use ringfence_kernel::{Dialect, MODEL_TEXT_BYTES};

use crate::edit::line_body;

/// Bytes of a page that are for the lines below the text.
const NOTES_BYTES: usize = 400;

/// Bytes of a page that are for its lines.
const PAGE_BYTES: usize = MODEL_TEXT_BYTES - NOTES_BYTES;

/// Lines of a text, to be numbered.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberedText<'a> {
    pub(super) content: &'a str,
    /// Number of its first line.
    pub(super) first: u64,
    /// Number of lines of the whole text, where it is known.
    pub(super) total: Option<u64>,
    /// The content may end within a line, because it is a part.
    pub(super) truncated: bool,
    /// What it is: `file` or `output`.
    pub(super) noun: &'static str,
}

impl NumberedText<'_> {
    /// As many lines as fit, and a last line that says how to go on.
    pub(super) fn to_text(self, dialect: Dialect) -> String {
        let Self { content, first, total, noun, .. } = self;
        if content.is_empty() {
            return match total {
                Some(0) => format!("[the {noun} is empty]"),
                Some(total) => format!("[the {noun} has {total} lines; line {first} is past its end]"),
                None => format!("[line {first} is past the end of the {noun}]"),
            };
        }
        let mut text = String::with_capacity((content.len() + content.len() / 4).min(MODEL_TEXT_BYTES));
        let shown = self.whole_lines();
        let mut number = shown.end;
        for (number, line) in shown.zip(content.split_inclusive('\n')) {
            let _ = writeln!(text, "{number}\t{}", line_body(line));
        }
        let mut cut_line = None;
        if number == first {
            // A line that fits into no page is shown in part.
            let line = content.split_inclusive('\n').next().map_or("", line_body);
            let _ = write!(text, "{number}\t{line}");
            text.truncate(text.floor_char_boundary(PAGE_BYTES));
            let prefix = text.find('\t').map_or(0, |tab| tab + 1);
            cut_line = Some((number, text.len() - prefix));
            text.push('\n');
            number += 1;
        }
        if content.contains("\r\n") {
            text.push_str("[lines end in CRLF]\n");
        }
        if let Some((number, shown)) = cut_line {
            let rest = match command_tool(dialect) {
                Some(tool) if noun == "file" => {
                    format!("; the rest: `sed -n {number}p FILE | cut -b {}-` with {tool}", shown + 1)
                }
                _ => String::new(),
            };
            let _ =
                writeln!(text, "[line {number} is too long for a page; only its first {shown} bytes are shown{rest}]");
        }
        let last = number - 1;
        let next = format!("go on with {} {number}", first_line_argument(dialect));
        match total {
            Some(total) if last >= total => {}
            Some(total) => {
                let _ = writeln!(text, "[lines {first}–{last} of {total}; {next}]");
            }
            None => {
                let _ = writeln!(text, "[lines {first}–{last}; {next}]");
            }
        }
        text.truncate(text.trim_end_matches('\n').len().max(1));
        text
    }
}

impl NumberedText<'_> {
    /// The numbers of the lines that fit into a page whole.
    pub(super) fn whole_lines(self) -> Range<u64> {
        let (mut next, mut bytes) = (self.first, 0);
        for line in self.content.split_inclusive('\n') {
            let digits = next.checked_ilog10().unwrap_or(0) as usize + 1;
            // The number, a tab, the line and its end.
            bytes += digits + 1 + line_body(line).len() + 1;
            if bytes > PAGE_BYTES || (self.truncated && !line.ends_with('\n')) {
                break;
            }
            next += 1;
        }
        self.first..next
    }
}

/// The tool that runs a command.
fn command_tool(dialect: Dialect) -> Option<&'static str> {
    match dialect {
        Dialect::Claude => Some("Bash"),
        Dialect::Codex => Some("exec_command"),
        Dialect::Gemini => Some("run_shell_command"),
        Dialect::Standard => Some("run_code"),
        Dialect::Miniclaw | Dialect::Crewagent => None,
    }
}

/// Name of the argument for the first line.
fn first_line_argument(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Claude | Dialect::Codex => "offset",
        Dialect::Gemini => "start_line",
        Dialect::Standard | Dialect::Miniclaw | Dialect::Crewagent => "startLine",
    }
}

/// Number of lines in a text; a last line without newline counts.
pub(super) fn count_lines(text: &str) -> u64 {
    memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64 + u64::from(!text.is_empty() && !text.ends_with('\n'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringfence_kernel::{Dialect, MODEL_TEXT_BYTES};

    use super::{NumberedText, count_lines};

    #[track_caller]
    fn check(content: &str, first: u64, total: Option<u64>, expected: &str) {
        let lines = NumberedText { content, first, total, truncated: false, noun: "file" };
        assert_eq!(lines.to_text(Dialect::Claude), expected);
    }

    #[test]
    fn lines_have_numbers_and_a_part_says_how_to_go_on() {
        check("a\n\tb\n\nc", 1, Some(4), "1\ta\n2\t\tb\n3\t\n4\tc");
        check("a\nb\n", 1, Some(2), "1\ta\n2\tb");
        check("x\ny\n", 9, Some(40), "9\tx\n10\ty\n[lines 9–10 of 40; go on with offset 11]");
        check("x\n", 9, None, "9\tx\n[lines 9–9; go on with offset 10]");
        check("a\r\nb\r\n", 1, Some(2), "1\ta\n2\tb\n[lines end in CRLF]");
        check("", 1, Some(0), "[the file is empty]");
        check("", 7, Some(3), "[the file has 3 lines; line 7 is past its end]");
        check("\n", 1, Some(1), "1\t");
    }

    #[test]
    fn a_long_line_is_shown_in_part_and_named() {
        let content = format!("{}\nnext\n", "ü".repeat(20_000));
        let lines = NumberedText { content: &content, first: 3, total: Some(4), truncated: false, noun: "file" };
        let text = lines.to_text(Dialect::Gemini);
        let expected = "\n[line 3 is too long for a page; only its first 31598 bytes are shown; the rest: `sed -n 3p FILE | cut -b 31599-` with run_shell_command]\n[lines 3–3 of 4; go on with start_line 4]";
        assert!(text.ends_with(expected), "{}", &text[text.len() - 200..]);
    }

    #[test]
    fn a_part_ends_with_a_whole_line() {
        let part = |content| NumberedText { content, first: 1, total: Some(9), truncated: true, noun: "file" };
        assert_eq!(part("a\nb").to_text(Dialect::Claude), "1\ta\n[lines 1–1 of 9; go on with offset 2]");
        let expected = "1\ta\n[line 1 is too long for a page; only its first 1 bytes are shown; the rest: `sed -n 1p FILE | cut -b 2-` with Bash]\n[lines 1–1 of 9; go on with offset 2]";
        assert_eq!(part("a").to_text(Dialect::Claude), expected);
    }

    proptest! {
        #[test]
        fn the_pages_of_a_text_are_the_whole_text(lines in proptest::collection::vec("[aü]{0,900}", 1..300)) {
            let content = lines.join("\n");
            let total = count_lines(&content);
            let (mut first, mut read) = (1, Vec::new());
            while first <= total {
                let rest = content.split_inclusive('\n').skip(first as usize - 1).collect::<String>();
                let page = NumberedText { content: &rest, first, total: Some(total), truncated: false, noun: "file" };
                let text = page.to_text(Dialect::Standard);
                prop_assert!(text.len() <= MODEL_TEXT_BYTES);
                for line in text.lines().filter(|line| !line.starts_with('[')) {
                    let (number, line) = line.split_once('\t').unwrap();
                    read.push(line.to_owned());
                    prop_assert_eq!(number.parse::<usize>().unwrap(), read.len());
                }
                first = read.len() as u64 + 1;
            }
            let expected: Vec<String> = content.lines().map(str::to_owned).collect();
            prop_assert_eq!(read, expected);
        }
    }
}
