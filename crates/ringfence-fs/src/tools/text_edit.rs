//! Edits of a text: replacements that are matched, and lines that are inserted.
//!
//! The preview and the run of an edit both call this, so that what was shown is what is done.
//!
//! Not here: the relaxations themselves (`edit`).

use std::borrow::Cow;

use memchr::memmem;
use ringfence_kernel::{CallContext, ErrorKind, ToolError};

use crate::edit::{TextMatch, TextMatchError, TextRelaxation, find_relaxed, nearest_lines, replacement_with_endings};
use crate::tools::check_size;

/// Most line numbers that a message has.
const MOST_LINES: usize = 20;

/// One edit.
pub(super) struct TextEdit {
    kind: TextEditKind,
    /// The argument's name, in the caller's dialect, of the text to replace or of the line.
    field: &'static str,
}

enum TextEditKind {
    Replace {
        old: String,
        new: String,
        all: bool,
        mode: MatchMode,
    },
    /// Adds lines after as many lines of the file.
    Insert {
        after: usize,
        text: String,
    },
}

/// How the text to replace is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchMode {
    /// Byte for byte. Occurrences that overlap, such as `aa` in `aaa`, count as one.
    ExactDisjoint,
    /// Exactly, or else by the first relaxation that matches one place. Occurrences that overlap count as two.
    Relaxed,
    /// The same, and an exact match is also replaced with the line endings of the file.
    RelaxedWithFileEndings,
}

/// A text after its edits.
pub(super) struct EditedText {
    pub(super) text: String,
    /// How many matches were replaced.
    pub(super) replaced: usize,
    /// The first line of each new text, as the edit left it.
    pub(super) lines: Vec<usize>,
    pub(super) relaxations: Vec<TextRelaxation>,
}

impl TextEdit {
    pub(super) fn replacement(old: String, new: String, all: bool, mode: MatchMode, field: &'static str) -> Self {
        Self { kind: TextEditKind::Replace { old, new, all, mode }, field }
    }

    pub(super) fn insertion(after: usize, text: String, field: &'static str) -> Self {
        Self { kind: TextEditKind::Insert { after, text }, field }
    }

    fn apply(&self, text: &str, shown: &str, cx: &CallContext<'_>) -> Result<EditedText, ToolError> {
        let field = self.field;
        match &self.kind {
            TextEditKind::Insert { after, text: inserted } => insert(text, *after, inserted, field, shown, cx),
            TextEditKind::Replace { old, new, all, mode } => {
                Replacement { text, old, new, field, shown }.apply(*all, *mode, cx)
            }
        }
    }
}

/// Makes one edit after the other.
pub(super) fn apply_all(
    text: &str,
    edits: &[TextEdit],
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<EditedText, ToolError> {
    let mut done = EditedText { text: text.to_owned(), replaced: 0, lines: Vec::new(), relaxations: Vec::new() };
    for edit in edits {
        cx.check()?;
        let EditedText { text, replaced, lines, relaxations } = edit.apply(&done.text, shown, cx)?;
        done.text = text;
        done.replaced += replaced;
        done.lines.extend(lines);
        done.relaxations.extend(relaxations);
    }
    done.relaxations.sort_unstable();
    done.relaxations.dedup();
    Ok(done)
}

/// One text to replace.
struct Replacement<'a> {
    text: &'a str,
    old: &'a str,
    new: &'a str,
    field: &'static str,
    shown: &'a str,
}

impl Replacement<'_> {
    fn apply(&self, all: bool, mode: MatchMode, cx: &CallContext<'_>) -> Result<EditedText, ToolError> {
        let Self { text, old, new, .. } = *self;
        let found: Vec<usize> = memmem::find_iter(text.as_bytes(), old.as_bytes()).collect();
        let Some(&first) = found.first() else {
            return match mode {
                MatchMode::ExactDisjoint => Err(self.not_found_error()),
                MatchMode::Relaxed | MatchMode::RelaxedWithFileEndings => self.apply_relaxed(all, cx),
            };
        };
        let count = match mode {
            MatchMode::Relaxed | MatchMode::RelaxedWithFileEndings if found.len() == 1 => {
                count_overlapping(text, old, first)
            }
            _ => found.len(),
        };
        if count > 1 && !all {
            return Err(self.ambiguous_error(count));
        }
        let new = match mode {
            MatchMode::RelaxedWithFileEndings if !old.contains('\n') => replacement_with_endings(text, new),
            _ => Cow::Borrowed(new),
        };
        let places: Vec<_> = found.iter().map(|at| (*at, at + old.len())).collect();
        let relaxed = matches!(new, Cow::Owned(_)).then_some(TextRelaxation::LineEndings);
        replace_places(text, &places, &new, relaxed.into_iter().collect(), cx)
    }

    fn apply_relaxed(&self, all: bool, cx: &CallContext<'_>) -> Result<EditedText, ToolError> {
        match find_relaxed(self.text, self.old, self.new) {
            Ok(TextMatch { start, end, new, relaxations }) if !all => {
                replace_places(self.text, &[(start, end)], &new, relaxations, cx)
            }
            Err(TextMatchError::Ambiguous { relaxation, lines }) if !all => {
                Err(self.ambiguous_relaxed_error(relaxation, &lines))
            }
            Err(TextMatchError::TooLarge) => {
                let message = format!(
                    "{} is not in `{}` as it is written, and the file is too large for relaxed matching",
                    self.field, self.shown
                );
                Err(ToolError::new(ErrorKind::EditNotFound, message).hint("copy the text exactly"))
            }
            _ => Err(self.with_nearest_lines(self.not_found_error())),
        }
    }

    fn ambiguous_error(&self, count: usize) -> ToolError {
        let starts = memmem::find_iter(self.text.as_bytes(), self.old.as_bytes());
        let mut lines: Vec<usize> = starts.take(MOST_LINES).map(|at| line_of(self.text, at)).collect();
        lines.dedup();
        let message = format!(
            "{} matched multiple locations in `{}`: {count} matches, in {} {}",
            self.field,
            self.shown,
            if lines.len() == 1 { "line" } else { "lines" },
            line_list(&lines)
        );
        ToolError::new(ErrorKind::AmbiguousEdit, message)
            .hint("include more of the surrounding text, or replace all")
            .detail("matches", count)
            .detail("lines", lines)
    }

    fn ambiguous_relaxed_error(&self, relaxation: TextRelaxation, lines: &[usize]) -> ToolError {
        let message = format!(
            "{} is not in `{}` as it is written; {} it would be at lines {}",
            self.field,
            self.shown,
            relaxation.describe(),
            line_list(lines)
        );
        ToolError::new(ErrorKind::AmbiguousEdit, message)
            .hint("include more of the surrounding text, copied exactly")
            .detail("lines", lines)
    }

    /// Says what may be wrong with text that is nearly there, by its line and never by its contents.
    fn not_found_error(&self) -> ToolError {
        let Self { text, old, .. } = *self;
        let error = ToolError::new(ErrorKind::EditNotFound, format!("{} not found in `{}`", self.field, self.shown));
        let crlf = text.contains("\r\n");
        if crlf && !old.contains('\r') && text.replace("\r\n", "\n").contains(old) {
            return error.hint("the file has CRLF line endings: write \\r\\n for each newline");
        }
        if !crlf && old.contains("\r\n") && text.contains(&old.replace("\r\n", "\n")) {
            return error.hint("the file has LF line endings, not CRLF");
        }
        if let Some(hint) = near_line(text, old) {
            return error.hint(&hint);
        }
        if !old.is_ascii() {
            return error.hint("accented letters have two encodings that look the same; copy the text from read_file");
        }
        error.hint("read the file again and copy the text exactly")
    }

    /// The plan of an edit has the right to read the file, and the lines save the caller that call.
    fn with_nearest_lines(&self, error: ToolError) -> ToolError {
        match nearest_lines(self.text, self.old) {
            Some(lines) => ToolError { message: format!("{}; the nearest lines are\n{lines}", error.message), ..error },
            None => error,
        }
    }
}

fn replace_places(
    text: &str,
    places: &[(usize, usize)],
    new: &str,
    relaxations: Vec<TextRelaxation>,
    cx: &CallContext<'_>,
) -> Result<EditedText, ToolError> {
    let removed: usize = places.iter().map(|(start, end)| end - start).sum();
    let size = (text.len() - removed) as u64 + places.len() as u64 * new.len() as u64;
    check_size("the result of the edit", "max_edit_bytes", size, cx.limits.edit_bytes)?;
    let mut edited = String::with_capacity(usize::try_from(size).unwrap_or_default());
    let (mut copied, mut line) = (0, 1);
    let mut lines = Vec::new();
    let newlines = |text: &str| memchr::memchr_iter(b'\n', text.as_bytes()).count();
    for &(start, end) in places {
        line += newlines(&text[copied..start]);
        edited.push_str(&text[copied..start]);
        if lines.len() <= MOST_LINES {
            lines.push(line);
        }
        line += newlines(new);
        edited.push_str(new);
        copied = end;
    }
    edited.push_str(&text[copied..]);
    Ok(EditedText { text: edited, replaced: places.len(), lines, relaxations })
}

/// Adds whole lines, with the line endings of the file.
fn insert(
    text: &str,
    after: usize,
    inserted: &str,
    field: &'static str,
    shown: &str,
    cx: &CallContext<'_>,
) -> Result<EditedText, ToolError> {
    let count = text.split_inclusive('\n').count();
    if after > count {
        let unit = if count == 1 { "line" } else { "lines" };
        return Err(ToolError::invalid(field, &format!("is {after}, but `{shown}` has {count} {unit}")));
    }
    let at: usize = text.split_inclusive('\n').take(after).map(str::len).sum();
    let eol = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut lines = replacement_with_endings(text, inserted).into_owned();
    if !lines.ends_with('\n') {
        lines.push_str(eol);
    }
    if at > 0 && !text[..at].ends_with('\n') {
        // The last line gets its end, and the new last one has none, as before.
        lines = [eol, lines.strip_suffix(eol).unwrap_or(&lines)].concat();
    }
    let mut edited = replace_places(text, &[(at, at)], &lines, Vec::new(), cx)?;
    edited.lines = vec![after + 1];
    Ok(edited)
}

pub(super) fn has_mixed_endings(text: &str) -> bool {
    let with_return = memmem::find_iter(text.as_bytes(), b"\r\n").count();
    with_return > 0 && with_return < memchr::memchr_iter(b'\n', text.as_bytes()).count()
}

/// Matches that may overlap, counted as far as the second, where there is one match that does not: another one begins in it.
fn count_overlapping(text: &str, old: &str, first: usize) -> usize {
    let next = first + text[first..].chars().next().map_or(1, char::len_utf8);
    let end = text.ceil_char_boundary((first + 2 * old.len()).min(text.len()));
    if text[next..end].contains(old) { 2 } else { 1 }
}

/// A line that is nearly the first one of the text that was not found. Looked for only as far as it is quickly done.
fn near_line(text: &str, old: &str) -> Option<String> {
    const LONGEST_WANTED: usize = 1000;
    const MOST_LINES: usize = 100_000;
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = old.lines().find(|line| !line.trim().is_empty())?;
    if first.len() > LONGEST_WANTED {
        return None;
    }
    let wanted = squeezed(first);
    let lower = wanted.to_lowercase();
    let near = |matches: &dyn Fn(&str) -> bool| {
        let lines = text.lines().take(MOST_LINES).enumerate().filter(|(_, line)| line.len() <= 2 * LONGEST_WANTED);
        lines
            .map(|(number, line)| (number + 1, squeezed(line)))
            .find(|(_, line)| matches(line))
            .map(|(number, _)| number)
    };
    if let Some(line) = near(&|line| line == wanted || (wanted.len() > 8 && line.contains(&wanted))) {
        return Some(format!("line {line} differs only in white space or trailing text; read it again"));
    }
    let line = near(&|line| line.to_lowercase() == lower)?;
    Some(format!("line {line} differs only in letter case"))
}

fn line_of(text: &str, at: usize) -> usize {
    memchr::memchr_iter(b'\n', &text.as_bytes()[..at]).count() + 1
}

fn line_list(lines: &[usize]) -> String {
    lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
