//! `edit_file`: replace exact text in a file.
//!
//! Matching is exact, byte for byte. Nothing is guessed; the error names the likely reason of a mismatch.

use std::borrow::Cow;

use memchr::memmem;
use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::write_target::{WriteTarget, WriteTargetKind};
use crate::preview::{DiffPreview, FileContents, check_previewed, check_still_planned, fingerprint};
use crate::read::digest::{Digest, check_match};
use crate::sys::errno::errno_error;
use crate::sys::stat::FileStat;
use crate::tools::{ChangedFile, check_size, read_text};
use crate::txn::stage::FileBody;
use crate::txn::write::replace;

/// Most line numbers that a message has.
const MOST_LINES: usize = 20;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard::<StandardEditArgs, StandardEditResult>("edit_file");
    let miniclaw = ToolBinding::miniclaw::<MiniclawEditArgs, StandardEditResult>("edit_file", |outcome: &Outcome| {
        format!("ok: replaced {} match(es) in {}", outcome.replaced, outcome.changed.path)
    });
    registry.register(EditFile { fence: fence.clone() }, [standard, miniclaw])
}

struct EditFile {
    fence: Fence,
}

/// Replace text in a file. Send all of `path`, `oldText` and `newText`. `oldText` must occur in the file exactly once,
/// including white space, unless `replaceAll` is true. Put further replacements in the same file into `edits`;
/// they are applied after the first, in order, all or none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardEditArgs {
    /// Path of the file, relative to the workspace.
    path: String,
    /// The text to replace.
    #[schemars(required)]
    old_text: Option<String>,
    /// The replacement; empty removes the text.
    #[schemars(required)]
    new_text: Option<String>,
    /// Replace every match.
    replace_all: Option<bool>,
    /// Further replacements in the same file.
    edits: Option<Vec<StandardEdit>>,
    /// Only if the file has this SHA-256 now.
    if_match_sha256: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardEdit {
    /// The text to replace.
    old_text: String,
    /// The replacement.
    new_text: String,
    /// Replace every match.
    #[serde(default)]
    replace_all: bool,
}

/// Replace exact text in a file in the workspace. Without `replace_all` the text must match exactly once.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawEditArgs {
    /// Path of the file, relative to the workspace.
    path: String,
    /// The text to replace.
    old_text: String,
    /// The replacement.
    new_text: String,
    /// Replace every match.
    #[serde(default)]
    replace_all: bool,
}

struct Args {
    path: PathArg,
    edits: Vec<TextEdit>,
    if_match: Option<Digest>,
}

struct TextEdit {
    old: String,
    new: String,
    all: bool,
    matching: MatchCounting,
    /// The argument's name, in the caller's dialect, of the text to replace.
    field: &'static str,
}

/// Whether overlapping occurrences, such as `aa` in `aaa`, count as two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchCounting {
    Disjoint,
    Overlapping,
}

impl TextEdit {
    fn new(edit: StandardEdit, matching: MatchCounting, field: &'static str) -> Result<Self, ToolError> {
        let StandardEdit { old_text, new_text, replace_all } = edit;
        if old_text.is_empty() {
            return Err(ToolError::invalid(field, "must not be empty"));
        }
        Ok(Self { old: old_text, new: new_text, all: replace_all, matching, field })
    }
}

impl TryFrom<StandardEditArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardEditArgs) -> Result<Self, ToolError> {
        if args.edits.as_ref().is_some_and(Vec::is_empty) {
            return Err(ToolError::invalid("edits", "must not be empty"));
        }
        let edits = match (args.old_text, args.new_text, args.edits) {
            (Some(old_text), Some(new_text), more) => {
                let first = StandardEdit { old_text, new_text, replace_all: args.replace_all.unwrap_or(false) };
                std::iter::once(first).chain(more.unwrap_or_default()).collect()
            }
            (None, None, Some(edits)) if args.replace_all.is_none() => edits,
            (Some(_), None, _) => {
                return Err(ToolError::invalid(
                    "newText",
                    "is missing: send path, oldText and newText (empty to remove the text)",
                ));
            }
            (None, Some(_), _) => {
                return Err(ToolError::invalid("oldText", "is missing: send path, oldText and newText"));
            }
            (None, None, None) => {
                let message = "nothing to edit was sent: send path, oldText and newText";
                return Err(ToolError::new(ErrorKind::InvalidArgs, message));
            }
            (None, None, Some(_)) => {
                return Err(ToolError::invalid("replaceAll", "must be set in each of edits instead"));
            }
        };
        Ok(Self {
            path: PathArg::Standard(args.path),
            edits: edits
                .into_iter()
                .map(|edit| TextEdit::new(edit, MatchCounting::Overlapping, "oldText"))
                .collect::<Result<_, _>>()?,
            if_match: args.if_match_sha256.map(|hex| Digest::from_hex("ifMatchSha256", &hex)).transpose()?,
        })
    }
}

impl TryFrom<MiniclawEditArgs> for Args {
    type Error = ToolError;

    fn try_from(args: MiniclawEditArgs) -> Result<Self, ToolError> {
        let MiniclawEditArgs { path, old_text, new_text, replace_all } = args;
        let edit = StandardEdit { old_text, new_text, replace_all };
        Ok(Self {
            path: PathArg::workspace_unless_blank(path),
            edits: vec![TextEdit::new(edit, MatchCounting::Disjoint, "old_text")?],
            if_match: None,
        })
    }
}

struct EditFilePlan {
    target: WriteTarget,
    planned_stat: FileStat,
    edits: Vec<TextEdit>,
    if_match: Option<Digest>,
    /// Digest of the previewed old contents.
    previewed: Option<Digest>,
}

struct Outcome {
    changed: ChangedFile,
    replaced: usize,
    mixed_endings: bool,
}

/// Result in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
struct StandardEditResult {
    #[serde(flatten)]
    changed: ChangedFile,
    /// How many matches were replaced.
    replaced: usize,
    /// True when the edit mixed CRLF and LF line endings.
    #[serde(rename = "mixedEol", skip_serializing_if = "std::ops::Not::not")]
    mixed_endings: bool,
}

impl From<Outcome> for StandardEditResult {
    fn from(Outcome { changed, replaced, mixed_endings }: Outcome) -> Self {
        Self { changed, replaced, mixed_endings }
    }
}

impl Tool for EditFile {
    type Args = Args;
    type Prepared = EditFilePlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read, PolicyAction::Overwrite, PolicyAction::Lose];

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<EditFilePlan>, ToolError> {
        let Args { path, edits, if_match } = args;
        let located = self.fence.locate_arg(&path, cx)?;
        let (target, seen) = WriteTarget::find_existing(&located, WriteTargetKind::File)?;
        let accesses = [PolicyAction::Read, PolicyAction::Overwrite]
            .map(|action| ResourceAccess { action, resource: target.resource() });
        // One that is too large to be edited is refused for that.
        let loss = target.loss(&seen, cx)?.filter(|_| seen.size <= cx.limits.appended_file_bytes);
        let accesses = accesses.into_iter().chain(loss).collect();
        Ok(ToolPlan {
            accesses,
            prepared: EditFilePlan { target, planned_stat: seen, edits, if_match, previewed: None },
        })
    }

    fn preview(&self, work: &mut EditFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let EditFilePlan { target, planned_stat: seen, edits, if_match, previewed: shown } = work;
        let unit = if edits.len() == 1 { "replacement" } else { "replacements" };
        let text = format!("make {} {unit} in `{}`", edits.len(), target.shown);
        let old = FileContents::read_target(target, seen, cx)?;
        let mut diffs = DiffPreview::new();
        let edited = match old.text() {
            Some(text) => check_match(&target.shown, *if_match, old.digest)
                .and_then(|()| apply_all(text, edits, &target.shown, cx))
                .map_err(Some),
            None => Err(None),
        };
        let failure = match edited {
            Ok(edited) => {
                diffs.add(&target.shown, Some(&old), Some(&FileContents::from_bytes(edited.text.as_bytes())));
                None
            }
            Err(error) => {
                let why = error.as_ref().map_or("it is not readable text", |error| error.message.as_str());
                diffs.add_note(&format!("this will be refused: {why}"));
                error
            }
        };
        cx.check()?;
        *shown = old.digest;
        let failure = failure.or_else(|| target.replacement_failure());
        let preview = Preview::new(&text, fingerprint((*seen, *shown))).with_failure(failure);
        Ok(preview.with_body(diffs.into_body()).with_secret(target.resource().effective_sensitivity().secret))
    }

    fn run(&self, work: EditFilePlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let EditFilePlan { target, planned_stat: seen, edits, if_match, previewed: shown } = work;
        check_still_planned(&target, Some(&seen), ticket)?;
        let (mut replaced, mut mixed_endings) = (0, false);
        let written = replace(&target, Some(seen), ticket, |old| {
            let Some(old) = old else { return Err(errno_error(Errno::NOENT, &target.shown)) };
            check_previewed(&target, shown, Some(old), ticket.context())?;
            let text = read_text(&target, old, ticket.context())?;
            if if_match.is_some() {
                check_match(&target.shown, if_match, Some(Digest::of(text.as_bytes())))?;
            }
            let edited = apply_all(&text, &edits, &target.shown, ticket.context())?;
            replaced = edited.replaced;
            mixed_endings = !has_mixed_endings(&text) && has_mixed_endings(&edited.text);
            Ok(FileBody::Bytes(edited.text.into_bytes()))
        })?;
        target.carry_sensitivity(target.sensitivity);
        Ok(Outcome { changed: ChangedFile::new(target.shown, &written, ticket), replaced, mixed_endings })
    }
}

/// A text after its edits.
struct EditedText {
    text: String,
    /// How many matches were replaced.
    replaced: usize,
}

/// Makes one edit after the other.
fn apply_all(text: &str, edits: &[TextEdit], shown: &str, cx: &CallContext<'_>) -> Result<EditedText, ToolError> {
    let (mut edited, mut replaced) = (Cow::Borrowed(text), 0);
    for edit in edits {
        let (next, count) = apply(&edited, edit, shown, cx)?;
        (edited, replaced) = (Cow::Owned(next), replaced + count);
    }
    Ok(EditedText { text: edited.into_owned(), replaced })
}

fn apply(text: &str, edit: &TextEdit, shown: &str, cx: &CallContext<'_>) -> Result<(String, usize), ToolError> {
    cx.check()?;
    let found: Vec<usize> = memmem::find_iter(text.as_bytes(), edit.old.as_bytes()).collect();
    let Some(&first) = found.first() else { return Err(not_found_error(text, edit, shown)) };
    if !edit.all {
        let count = match edit.matching {
            MatchCounting::Disjoint => found.len(),
            MatchCounting::Overlapping if found.len() == 1 => count_overlapping(text, &edit.old, first),
            MatchCounting::Overlapping => 2,
        };
        if count > 1 {
            return Err(ambiguous_error(text, edit, count, shown));
        }
    }
    let removed = found.len() * edit.old.len();
    let added = found.len() as u64 * edit.new.len() as u64;
    let size = (text.len() - removed) as u64 + added;
    check_size("the result of the edit", "max_edit_bytes", size, cx.limits.edit_bytes)?;
    let mut edited = String::with_capacity(usize::try_from(size).unwrap_or_default());
    let mut copied = 0;
    for &at in &found {
        edited.push_str(&text[copied..at]);
        edited.push_str(&edit.new);
        copied = at + edit.old.len();
    }
    edited.push_str(&text[copied..]);
    Ok((edited, found.len()))
}

fn has_mixed_endings(text: &str) -> bool {
    let with_return = memmem::find_iter(text.as_bytes(), b"\r\n").count();
    with_return > 0 && with_return < memchr::memchr_iter(b'\n', text.as_bytes()).count()
}

/// Matches that may overlap, counted as far as the second, where there is one match that does not: another one begins in it.
fn count_overlapping(text: &str, old: &str, first: usize) -> usize {
    let next = first + text[first..].chars().next().map_or(1, char::len_utf8);
    let end = text.ceil_char_boundary((first + 2 * old.len()).min(text.len()));
    if text[next..end].contains(old) { 2 } else { 1 }
}

fn ambiguous_error(text: &str, edit: &TextEdit, count: usize, shown: &str) -> ToolError {
    let starts = memmem::find_iter(text.as_bytes(), edit.old.as_bytes());
    let mut lines: Vec<usize> = starts.take(MOST_LINES).map(|at| line_of(text, at)).collect();
    lines.dedup();
    let at_least = count.max(memmem::find_iter(text.as_bytes(), edit.old.as_bytes()).count());
    let message = format!(
        "{} matched multiple locations in `{shown}`: {at_least} matches, in {} {}",
        edit.field,
        if lines.len() == 1 { "line" } else { "lines" },
        line_list(&lines)
    );
    ToolError::new(ErrorKind::AmbiguousEdit, message)
        .hint("include more of the surrounding text, or replace all")
        .detail("matches", at_least)
        .detail("lines", lines)
}

/// Says what may be wrong with text that is nearly there, by its line and never by its contents.
fn not_found_error(text: &str, edit: &TextEdit, shown: &str) -> ToolError {
    let error = ToolError::new(ErrorKind::EditNotFound, format!("{} not found in `{shown}`", edit.field));
    let crlf = text.contains("\r\n");
    if crlf && !edit.old.contains('\r') && text.replace("\r\n", "\n").contains(&edit.old) {
        return error.hint("the file has CRLF line endings: write \\r\\n for each newline");
    }
    if !crlf && edit.old.contains("\r\n") && text.contains(&edit.old.replace("\r\n", "\n")) {
        return error.hint("the file has LF line endings, not CRLF");
    }
    if let Some(hint) = near_line(text, &edit.old) {
        return error.hint(&hint);
    }
    if !edit.old.is_ascii() {
        return error.hint("accented letters have two encodings that look the same; copy the text from read_file");
    }
    error.hint("read the file again and copy the text exactly")
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

#[cfg(test)]
mod tests {
    use super::{Args, StandardEditArgs};

    #[track_caller]
    fn check(arguments: &str, message: &str) {
        let arguments: StandardEditArgs = serde_json::from_str(arguments).unwrap();
        assert_eq!(Args::try_from(arguments).err().map(|error| error.message).as_deref(), Some(message));
    }

    #[test]
    fn an_incomplete_edit_gets_an_error_that_names_the_missing_field() {
        check(
            r#"{"path": "a", "oldText": "x"}"#,
            "newText is missing: send path, oldText and newText (empty to remove the text)",
        );
        check(r#"{"path": "a", "newText": "x"}"#, "oldText is missing: send path, oldText and newText");
        check(r#"{"path": "a"}"#, "nothing to edit was sent: send path, oldText and newText");
        let edits = r#""edits": [{"oldText": "x", "newText": "y"}]"#;
        check(
            &format!(r#"{{"path": "a", "replaceAll": true, {edits}}}"#),
            "replaceAll must be set in each of edits instead",
        );
        check(
            &format!(r#"{{"path": "a", "oldText": "x", {edits}}}"#),
            "newText is missing: send path, oldText and newText (empty to remove the text)",
        );
    }
}
