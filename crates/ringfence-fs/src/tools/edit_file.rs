//! `edit_file`: replace text in a file, or insert lines.
//!
//! Matching is exact, and relaxed only in the ways of `edit`, in the dialects that have them. Nothing is guessed; the
//! error names the likely reason of a mismatch.

use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Ticket, Tool,
    ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Fence;
use crate::edit::TextRelaxation;
use crate::mount::LocatedPath;
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::preview::{DiffPreview, FileContents, check_previewed, check_still_planned, fingerprint};
use crate::read::digest::{Digest, check_match};
use crate::sys::errno::errno_error;
use crate::sys::stat::FileStat;
use crate::tools::edit_args::{Args, ClaudeEditArgs, EditWork, GeminiReplaceArgs, MiniclawEditArgs, StandardEditArgs};
use crate::tools::text_edit::{EditedText, apply_all, has_mixed_endings};
use crate::tools::{ChangedFile, check_size, read_text, remember_contents, short_change_id};
use crate::txn::stage::FileBody;
use crate::txn::write::replace;

/// Most lines that a reply names.
const MOST_LINES: usize = 5;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard =
        ToolBinding::standard::<StandardEditArgs, StandardEditResult>("edit_file").with_model_text(Outcome::sentence);
    let miniclaw = ToolBinding::miniclaw::<MiniclawEditArgs, StandardEditResult>("edit_file", |outcome: &Outcome| {
        format!("ok: replaced {} match(es) in {}", outcome.replaced, outcome.changed.path)
    });
    let claude = ToolBinding::text::<ClaudeEditArgs, StandardEditResult>(Dialect::Claude, "Edit", Outcome::sentence);
    let gemini =
        ToolBinding::text::<GeminiReplaceArgs, StandardEditResult>(Dialect::Gemini, "replace", Outcome::sentence);
    registry.register(EditFile { fence: fence.clone() }, [standard, miniclaw, claude, gemini])
}

struct EditFile {
    fence: Fence,
}

struct EditFilePlan {
    target: WriteTarget,
    /// Nothing where the file is created.
    planned_stat: Option<FileStat>,
    work: EditWork,
    if_match: Option<Digest>,
    /// Digest of the previewed old contents.
    previewed: Option<Digest>,
}

struct Outcome {
    changed: ChangedFile,
    replaced: usize,
    mixed_endings: bool,
    lines: Vec<usize>,
    relaxations: Vec<TextRelaxation>,
}

/// Result in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
struct StandardEditResult {
    #[serde(flatten)]
    changed: ChangedFile,
    /// How many matches were replaced.
    replaced: usize,
    /// The line of the first new text.
    line: usize,
    /// How the text was matched, where it is not in the file exactly as it was sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    relaxed: Vec<&'static str>,
    /// True when the edit mixed CRLF and LF line endings.
    #[serde(rename = "mixedEol", skip_serializing_if = "std::ops::Not::not")]
    mixed_endings: bool,
}

impl From<Outcome> for StandardEditResult {
    fn from(Outcome { changed, replaced, mixed_endings, lines, relaxations }: Outcome) -> Self {
        let line = lines.first().copied().unwrap_or(1);
        let relaxed = relaxations.into_iter().map(TextRelaxation::describe).collect();
        Self { changed, replaced, line, relaxed, mixed_endings }
    }
}

impl Outcome {
    /// The reply to a model.
    fn sentence(&self) -> String {
        let ChangedFile { path, change, created, .. } = &self.changed;
        let Some(change) = change.as_deref().map(short_change_id) else {
            return format!("{path} has this text already; nothing was changed");
        };
        if *created {
            return format!("created {path} ({change})");
        }
        let place = match &self.lines[..] {
            [line] => format!("line {line}"),
            lines if self.replaced <= MOST_LINES => {
                let lines: Vec<String> = lines.iter().map(usize::to_string).collect();
                format!("lines {}", lines.join(", "))
            }
            _ => format!("in {} places", self.replaced),
        };
        let mut bent: Vec<&str> = self.relaxations.iter().map(|relaxation| relaxation.describe()).collect();
        bent.extend(self.mixed_endings.then_some("CRLF and LF are mixed now"));
        let bent = if bent.is_empty() { String::new() } else { format!(" [{}]", bent.join("; ")) };
        format!("edited {path} {place} ({change}){bent}")
    }
}

impl Tool for EditFile {
    type Args = Args;
    type Prepared = EditFilePlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::Read, PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Lose];

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<EditFilePlan>, ToolError> {
        let Args { path, work, if_match } = args;
        let located = self.fence.locate_arg(&path, cx)?;
        let (target, seen) = find_target(&located, &work)?;
        let plan = |accesses, target| ToolPlan {
            accesses,
            prepared: EditFilePlan { target, planned_stat: seen, work, if_match, previewed: None },
        };
        let Some(seen) = seen else {
            return Ok(plan(
                vec![ResourceAccess { action: PolicyAction::Create, resource: target.resource() }],
                target,
            ));
        };
        let accesses = [PolicyAction::Read, PolicyAction::Overwrite]
            .map(|action| ResourceAccess { action, resource: target.resource() });
        // One that is too large to be edited is refused for that.
        let loss = target.loss(&seen, cx)?.filter(|_| seen.size <= cx.limits.appended_file_bytes);
        Ok(plan(accesses.into_iter().chain(loss).collect(), target))
    }

    fn preview(&self, plan: &mut EditFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let EditFilePlan { target, planned_stat: seen, work, if_match, previewed: shown } = plan;
        let text = match work {
            EditWork::Change(edits) => {
                let unit = if edits.len() == 1 { "replacement" } else { "replacements" };
                format!("make {} {unit} in `{}`", edits.len(), target.shown)
            }
            EditWork::Create(content) => format!("create `{}` with {} bytes", target.shown, content.len()),
        };
        let old = seen.map(|seen| FileContents::read_target(target, &seen, cx)).transpose()?;
        let mut diffs = DiffPreview::new();
        let digest = old.as_ref().and_then(|old| old.digest);
        let edited = match old.as_ref().map_or(Some(""), FileContents::text) {
            Some(text) => check_match(&target.shown, *if_match, digest)
                .and_then(|()| work.apply(text, &target.shown, cx))
                .map_err(Some),
            None => Err(None),
        };
        let failure = match edited {
            Ok(edited) => {
                diffs.add(&target.shown, old.as_ref(), Some(&FileContents::from_bytes(edited.text.as_bytes())));
                None
            }
            Err(error) => {
                let why = error.as_ref().map_or("it is not readable text", |error| error.message.as_str());
                diffs.add_note(&format!("this will be refused: {why}"));
                error
            }
        };
        cx.check()?;
        *shown = digest;
        let failure = failure.or_else(|| target.replacement_failure());
        let preview = Preview::new(&text, fingerprint((*seen, *shown))).with_failure(failure);
        Ok(preview.with_body(diffs.into_body()).with_secret(target.resource().effective_sensitivity().secret))
    }

    fn run(&self, plan: EditFilePlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let EditFilePlan { target, planned_stat: seen, work, if_match, previewed: shown } = plan;
        check_still_planned(&target, seen.as_ref(), ticket)?;
        let cx = ticket.context();
        let (mut done, mut mixed_endings, mut is_seen) = (None, false, seen.is_none());
        let written = replace(&target, seen, ticket, |old| {
            let text = match (old, &work) {
                (Some(old), _) => {
                    check_previewed(&target, shown, Some(old), cx)?;
                    read_text(&target, old, cx)?
                }
                (None, EditWork::Create(_)) => String::new(),
                (None, EditWork::Change(_)) => return Err(errno_error(Errno::NOENT, &target.shown)),
            };
            let before = Digest::of(text.as_bytes());
            if if_match.is_some() {
                check_match(&target.shown, if_match, Some(before))?;
            }
            is_seen |= cx.memory().is_some_and(|memory| memory.seen.contains(&before.bytes()));
            let EditedText { text: edited, replaced, lines, relaxations } = work.apply(&text, &target.shown, cx)?;
            mixed_endings = !has_mixed_endings(&text) && has_mixed_endings(&edited);
            done = Some((replaced, lines, relaxations));
            Ok(FileBody::Bytes(edited.into_bytes()))
        })?;
        target.carry_sensitivity(target.sensitivity);
        let (replaced, lines, relaxations) = done.unwrap_or_default();
        if is_seen {
            remember_contents(&written, cx);
        }
        let changed = ChangedFile::new(target.shown, &written, ticket);
        Ok(Outcome { changed, replaced, mixed_endings, lines, relaxations })
    }
}

/// The file that is edited, or the name of the one that is created.
fn find_target(located: &LocatedPath, work: &EditWork) -> Result<(WriteTarget, Option<FileStat>), ToolError> {
    match work {
        EditWork::Change(_) => {
            WriteTarget::find_existing(located, WriteTargetKind::File).map(|(target, seen)| (target, Some(seen)))
        }
        EditWork::Create(_) => {
            let target = WriteTarget::find(located, WriteTargetKind::File, ParentDirPolicy::CreateMissing)?;
            let seen = target.found;
            Ok((target, seen))
        }
    }
}

impl EditWork {
    fn apply(&self, text: &str, shown: &str, cx: &CallContext<'_>) -> Result<EditedText, ToolError> {
        match self {
            Self::Change(edits) => apply_all(text, edits, shown, cx),
            Self::Create(_) if !text.is_empty() => {
                let message = format!("old_string is empty, which creates a file, but `{shown}` exists");
                let error = ToolError::new(ErrorKind::AlreadyExists, message);
                Err(error.hint("send the text to replace"))
            }
            Self::Create(content) => {
                check_size("new_string", "max_edit_bytes", content.len() as u64, cx.limits.edit_bytes)?;
                Ok(EditedText { text: content.clone(), replaced: 1, lines: vec![1], relaxations: Vec::new() })
            }
        }
    }
}
