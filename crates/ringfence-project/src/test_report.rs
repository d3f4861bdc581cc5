//! Test reports: counts, and failures with the line that failed.
//!
//! Every parser of this crate makes one of these, within limits: what a runner reports was written by the tests it ran.
//!
//! Not here: the formats (`junit.rs` and its siblings), and whether a report is to be believed (`verdict.rs`).

use std::time::Duration;

/// Failures that are kept with their text; further ones are counted.
pub(crate) const MAX_FAILURES: usize = 500;

/// Bytes and lines of one message.
const MAX_MESSAGE_BYTES: usize = 900;
const MAX_MESSAGE_LINES: usize = 12;

/// Bytes of the name of a test.
const MAX_NAME_BYTES: usize = 300;

/// Characters of a text for the terminal in an escape sequence.
const MAX_ESCAPE_CHARS: usize = 4096;

/// The outcomes of a run's tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCounts {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that were not run.
    pub(crate) skipped: u64,
    /// What went wrong outside of a test: a file that does not compile, a fixture, a process that died.
    pub(crate) errors: u64,
}

impl TestCounts {
    /// Tests that were run, and errors in place of some.
    pub(crate) fn ran(self) -> u64 {
        self.passed.saturating_add(self.failed).saturating_add(self.errors)
    }
}

/// A line of a source file, by its path in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceLine {
    /// Path of the file, relative to the workspace.
    pub(crate) file: String,
    /// Number of the line, from 1.
    pub(crate) line: u32,
}

/// A test that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestFailure {
    /// Name of the test, or of what failed in place of one.
    pub(crate) name: String,
    /// The line that failed, where that is known.
    pub(crate) at: Option<SourceLine>,
    /// What the runner says about it.
    pub(crate) message: String,
    /// Lines of the project that led there, the nearest first.
    pub(crate) called_from: Vec<SourceLine>,
}

impl TestFailure {
    /// A failure with a name and a message within limits.
    pub(crate) fn new(name: &str, message: &str) -> Self {
        let name = without_escapes(&name.trim().replace(['\n', '\r'], " "));
        Self { name: shortened(&name, MAX_NAME_BYTES), message: shorten_message(message), ..Self::default() }
    }

    /// The same at the first of these lines.
    pub(crate) fn with_lines(mut self, lines: Vec<SourceLine>) -> Self {
        const MAX_CALLERS: usize = 3;
        let mut lines = lines.into_iter();
        self.at = lines.next();
        for line in lines {
            if Some(&line) != self.at.as_ref() && !self.called_from.contains(&line) {
                self.called_from.push(line);
            }
            if self.called_from.len() == MAX_CALLERS {
                break;
            }
        }
        self
    }
}

/// The report of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestReport {
    /// The counts.
    pub(crate) counts: TestCounts,
    /// Time of the run, as the runner has it.
    pub(crate) duration: Option<Duration>,
    /// The failures and errors; at most 500.
    pub(crate) failures: Vec<TestFailure>,
}

impl TestReport {
    pub(crate) fn pass(&mut self) {
        self.counts.passed += 1;
    }

    pub(crate) fn skip(&mut self) {
        self.counts.skipped += 1;
    }

    pub(crate) fn fail(&mut self, failure: TestFailure) {
        self.counts.failed += 1;
        self.keep(failure);
    }

    pub(crate) fn error(&mut self, failure: TestFailure) {
        self.counts.errors += 1;
        self.keep(failure);
    }

    pub(crate) fn keep(&mut self, failure: TestFailure) {
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(failure);
        }
    }

    pub(crate) fn add_seconds(&mut self, seconds: f64) {
        if let Ok(time) = Duration::try_from_secs_f64(seconds) {
            self.duration = Some(self.duration.unwrap_or_default().saturating_add(time));
        }
    }
}

/// A report that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("the runner wrote no report")]
    Missing,
    #[error("the report is not well-formed XML")]
    Xml,
    #[error("the report is not valid JSON")]
    Json,
    #[error("the report is nested too deeply")]
    TooDeep,
    #[error("the report has more than {} tests", MAX_TESTS)]
    TooLong,
    #[error("the report was longer than the limit and its middle is missing")]
    Truncated,
    #[error("the report has no test results")]
    Empty,
}

/// Tests that a report may have.
pub(crate) const MAX_TESTS: u64 = 1_000_000;

/// A text of at most `most` bytes, and a mark where it goes on.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => format!("{}…", &text[..text.floor_char_boundary(most)]),
    }
}

/// A message without escape sequences, empty lines and more lines than matter.
fn shorten_message(message: &str) -> String {
    let plain = without_escapes(message);
    let mut kept: Vec<&str> = plain.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let cut = kept.len() > MAX_MESSAGE_LINES;
    kept.truncate(MAX_MESSAGE_LINES);
    let text = shortened(&kept.join("\n"), MAX_MESSAGE_BYTES);
    if cut && !text.ends_with('…') { text + "\n…" } else { text }
}

/// A text without the escape sequences by which terminals colour it.
pub(crate) fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                // Parameters, then one final letter.
                Some('[') => {
                    chars.by_ref().take(64).find(|c| ('@'..='~').contains(c));
                }
                // A title, a link or an image: a text up to BEL or `ESC \`. One that does not end is not a sequence.
                Some(']' | 'P' | 'X' | '^' | '_') => {
                    let mut rest = chars.clone();
                    let end = rest.by_ref().take(MAX_ESCAPE_CHARS).find(|c| matches!(c, '\u{7}' | '\u{1b}' | '\n'));
                    if end == Some('\u{7}') || (end == Some('\u{1b}') && rest.next() == Some('\\')) {
                        chars = rest;
                    }
                }
                _ => {}
            },
            '\n' | '\t' => plain.push(c),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{MAX_FAILURES, SourceLine, TestFailure, TestReport};

    #[track_caller]
    fn check(message: &str, expected: &str) {
        assert_eq!(TestFailure::new("a", message).message, expected);
    }

    #[test]
    fn messages_are_plain_and_short() {
        check("", "");
        check("\n\n  left: 1\n\n\n right: 2 \n\n", "  left: 1\n right: 2");
        check("\u{1b}[31mred\u{1b}[0m\u{7}", "red");
        check("\u{1b}[", "");
        check(&"x\n".repeat(14), &("x\n".repeat(12) + "…"));
        check(&"ü".repeat(1000), &format!("{}…", "ü".repeat(450)));
    }

    #[test]
    fn names_are_plain_and_short() {
        for (name, expected) in [
            ("a\nb", "a b"),
            ("\u{1b}[2Ja\u{7}\u{9b}31m", "a31m"),
            ("\u{1b}]0;title\u{7}a", "a"),
            ("\u{1b}Pq\u{1b}\\a", "a"),
        ] {
            assert_eq!(TestFailure::new(name, name).name, expected, "{name:?}");
        }
        check("\u{1b}]8;;http://evil\u{1b}\\link", "link");
    }

    #[test]
    fn failures_are_counted_beyond_those_that_are_kept() {
        let mut report = TestReport::default();
        (0..MAX_FAILURES + 7).for_each(|number| report.fail(TestFailure::new(&number.to_string(), "")));
        assert_eq!((report.counts.failed, report.failures.len()), (507, 500));
    }

    #[test]
    fn the_first_line_is_where_it_failed() {
        let line = |file: &str, line| SourceLine { file: file.to_owned(), line };
        let lines =
            vec![line("a", 1), line("b", 2), line("a", 1), line("b", 2), line("c", 3), line("d", 4), line("e", 5)];
        let failure = TestFailure::new("a", "").with_lines(lines);
        assert_eq!(failure.at, Some(line("a", 1)));
        assert_eq!(failure.called_from, [line("b", 2), line("c", 3), line("d", 4)]);
    }
}
