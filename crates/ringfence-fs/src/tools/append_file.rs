//! `append_file`: append to a file.
//!
//! Bytes are added in place: a log of many megabytes is not copied for one line. The intent has the old length and the
//! bytes, so that a crash half way leaves nothing half added.

use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Fence;
use crate::fence::PathArg;
use crate::journal::{FileState, JournalEffect, TxnStep};
use crate::lock::{HeldLock, TreeLockMode};
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::path::name::escape;
use crate::preview::{DiffPreview, FileContents, check_previewed, check_still_planned, fingerprint};
use crate::read::content::read_up_to;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::FileToReplace;
use crate::sys::errno::errno_error;
use crate::sys::stat::FileStat;
use crate::tools::{ChangedFile, check_size, remember_contents};
use crate::txn::run::{PlannedStep, Transaction};
use crate::txn::stage::FileBody;
use crate::txn::step::StepError;
use crate::txn::write::{WriteResult, WriteSite, check_unchanged, lock_and_open, replace};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<StandardAppendArgs, ChangedFile>("append_file");
    let miniclaw = ToolBinding::miniclaw::<MiniclawAppendArgs, ChangedFile>("append_file", |outcome: &Outcome| {
        let Outcome { changed, added } = outcome;
        format!("ok: appended {added} bytes to {} (size={})", changed.path, changed.size)
    });
    registry.register(AppendFile { fence: fence.clone() }, [standard, miniclaw])
}

struct AppendFile {
    fence: Fence,
}

/// Append text to a file; the file is created if missing. `content` is appended unchanged: start it with a newline
/// if the file does not end with one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StandardAppendArgs {
    /// Relative to the workspace.
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
    /// Appended text.
    content: String,
}

/// Append text to a file in the workspace. The file and missing directories are created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawAppendArgs {
    /// Path of the file, relative to the workspace.
    path: String,
    /// Text to append.
    content: String,
}

struct Args {
    path: PathArg,
    content: String,
    parents: ParentDirPolicy,
}

impl From<StandardAppendArgs> for Args {
    fn from(args: StandardAppendArgs) -> Self {
        Self { path: PathArg::Standard(args.path), content: args.content, parents: ParentDirPolicy::MustExist }
    }
}

impl From<MiniclawAppendArgs> for Args {
    fn from(args: MiniclawAppendArgs) -> Self {
        Self {
            path: PathArg::workspace_unless_blank(args.path),
            content: args.content,
            parents: ParentDirPolicy::CreateMissing,
        }
    }
}

struct AppendFilePlan {
    target: WriteTarget,
    planned_stat: Option<FileStat>,
    content: String,
    /// Digest of the previewed old contents.
    previewed: Option<Digest>,
}

struct Outcome {
    changed: ChangedFile,
    added: usize,
}

impl From<Outcome> for ChangedFile {
    fn from(outcome: Outcome) -> Self {
        outcome.changed.with_verb("appended to")
    }
}

impl Tool for AppendFile {
    type Args = Args;
    type Prepared = AppendFilePlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Lose];

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<AppendFilePlan>, ToolError> {
        let located = self.fence.locate_arg(&args.path, cx)?;
        check_size("content", "max_append_bytes", args.content.len() as u64, cx.limits.append_bytes)?;
        let target = WriteTarget::find(&located, WriteTargetKind::File, args.parents)?;
        let seen = target.found;
        let action = if seen.is_some() { PolicyAction::Overwrite } else { PolicyAction::Create };
        let accesses = vec![ResourceAccess { action, resource: target.resource() }];
        Ok(ToolPlan {
            accesses,
            prepared: AppendFilePlan { target, planned_stat: seen, content: args.content, previewed: None },
        })
    }

    fn preview(&self, work: &mut AppendFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let AppendFilePlan { target, planned_stat: seen, content, previewed: shown } = work;
        let mut diffs = DiffPreview::new();
        let (text, digest) = match seen {
            Some(seen) => {
                let old = FileContents::read_target(target, seen, cx)?;
                diffs.add_at_end(&target.shown, &old, content);
                (
                    format!("add {} bytes to the end of `{}` ({} bytes)", content.len(), target.shown, seen.size),
                    old.digest,
                )
            }
            None => {
                diffs.add(&target.shown, None, Some(&FileContents::from_bytes(content.as_bytes())));
                (format!("create `{}` with {} bytes", target.shown, content.len()), None)
            }
        };
        *shown = digest;
        // A file grows in place, whatever its directory allows.
        let failure = if seen.is_some() { target.contents_failure() } else { target.directory_failure() };
        let preview = Preview::new(&text, fingerprint((*seen, digest))).with_failure(failure);
        Ok(preview.with_body(diffs.into_body()).with_secret(target.resource().effective_sensitivity().secret))
    }

    fn run(&self, work: AppendFilePlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let AppendFilePlan { target, planned_stat: seen, content, previewed: shown } = work;
        check_still_planned(&target, seen.as_ref(), ticket)?;
        let added = content.len();
        let written = match seen {
            None => replace(&target, seen, ticket, |_| Ok(FileBody::Bytes(content.into_bytes())))?,
            Some(_) => append(&target, seen, &content, shown, ticket)?,
        };
        target.carry_sensitivity(target.sensitivity);
        // An access that may append to a secret may not read it, and could guess contents by hashes.
        let unread = !written.created && target.resource().effective_sensitivity().secret;
        if written.created {
            remember_contents(&written, ticket.context());
        }
        let changed = ChangedFile::new(target.shown, &written, ticket);
        let sha256 = changed.sha256.clone().filter(|_| !unread);
        Ok(Outcome { changed: ChangedFile { sha256, ..changed }, added })
    }
}

fn append(
    target: &WriteTarget,
    seen: Option<FileStat>,
    content: &str,
    shown: Option<Digest>,
    ticket: &Ticket<'_>,
) -> Result<WriteResult, ToolError> {
    let cx = ticket.context();
    let tree = target.lock_directory(TreeLockMode::Shared, cx)?;
    let (lock, old) = lock_and_open(&WriteSite::find(target)?, cx)?;
    let Some(old) = old else {
        check_unchanged(target, seen, None, ticket)?;
        drop((lock, tree));
        return replace(target, None, ticket, |_| Ok(FileBody::Bytes(content.into())));
    };
    check_unchanged(target, seen, Some(old.stat), ticket)?;
    check_previewed(target, shown, Some(&old), cx)?;
    check_grown_size(target, &old, content, cx)?;
    if old.stat.links == 1 && !target.is_guarded() {
        return append_in_place(target, &lock, &old, content, ticket);
    }
    // The other names of this file may be outside: they keep what they had. A rule judges a file whole.
    drop((lock, tree));
    replace(target, seen, ticket, |old| {
        check_previewed(target, shown, old, cx)?;
        let Some(old) = old else { return Ok(FileBody::Bytes(content.into())) };
        check_grown_size(target, old, content, cx)?;
        let mut bytes = read_up_to(&old.fd, old.stat.size, cx).map_err(|errno| errno_error(errno, &target.shown))?;
        bytes.extend_from_slice(content.as_bytes());
        Ok(FileBody::Bytes(bytes))
    })
}

fn check_grown_size(
    target: &WriteTarget,
    old: &FileToReplace,
    content: &str,
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let size = old.stat.size.saturating_add(content.len() as u64);
    let what = format!("`{}` after appending", target.shown);
    check_size(&what, "max_appended_file_bytes", size, cx.limits.appended_file_bytes)
}

fn append_in_place(
    target: &WriteTarget,
    lock: &HeldLock,
    old: &FileToReplace,
    content: &str,
    ticket: &Ticket<'_>,
) -> Result<WriteResult, ToolError> {
    let parent = target.base();
    let fail = |errno| errno_error(errno, &target.shown);
    if old.stat.denies_write() {
        return Err(fail(Errno::ACCESS));
    }
    // Fails here where it may not be written, before anything is logged.
    target.mount.open_at(parent, &target.name, OFlags::WRONLY | OFlags::APPEND).map_err(fail)?;
    let before = old.stat.size;
    let hashed = hash_both(target, old, content.as_bytes(), ticket.context())?;
    if content.is_empty() {
        return Ok(WriteResult::no_change(before, hashed.map(|(_, after)| after)));
    }
    let step = TxnStep::Append { inode: old.stat.id.inode, before, content: content.to_owned() };
    let size = before + content.len() as u64;
    let transaction = Transaction {
        steps: vec![PlannedStep::new(target.entry(step), Some(parent), &target.shown)],
        effects: vec![effect(target, &old.stat, size, hashed)],
        ..Transaction::default()
    };
    transaction.run(&target.mount, &[lock], ticket, &|_, error| match error {
        StepError::System(errno) => fail(errno),
        StepError::Tool(error) => error,
        StepError::Changed { .. } | StepError::NoExchange => replaced_error(target),
    })?;
    // The bytes are added, also when it cannot be determined whether the name still leads to the file.
    if target.stat_in(parent).is_ok_and(|now| now.is_none_or(|now| now.id != old.stat.id)) {
        return Err(replaced_error(target));
    }
    let digest = hashed.map(|(_, after)| after);
    Ok(WriteResult { unchanged: false, size, digest, created: false, links_broken: 0, collides_with: None })
}

/// Hashes the current and the new contents in one pass. `None` where the file may be written and not read.
fn hash_both(
    target: &WriteTarget,
    old: &FileToReplace,
    content: &[u8],
    cx: &CallContext<'_>,
) -> Result<Option<(Digest, Digest)>, ToolError> {
    let after = old.stat.size + content.len() as u64;
    if old.stat.denies_read() || after > cx.limits.hash_bytes {
        return Ok(None);
    }
    let bytes = match read_up_to(&old.fd, old.stat.size, cx) {
        Ok(bytes) => bytes,
        // A descriptor that only names it.
        Err(Errno::BADF) => return Ok(None),
        Err(errno) => {
            cx.check()?;
            // Without its hash, the change could not be distinguished from another and undone.
            return Err(errno_error(errno, &target.shown));
        }
    };
    if bytes.len() as u64 != old.stat.size {
        return Err(replaced_error(target));
    }
    let mut hasher = Sha256Hasher::default();
    hasher.update(&bytes);
    let before = hasher.clone().finish();
    hasher.update(content);
    Ok(Some((before, hasher.finish())))
}

fn effect(target: &WriteTarget, now: &FileStat, size: u64, hashed: Option<(Digest, Digest)>) -> JournalEffect {
    let path = escape(&target.path());
    let (before, after) = hashed.unzip();
    let before = FileState::of_file(now, before);
    // Its times are not known yet, and not compared where the hash is.
    let after = FileState { size, mode: now.mode & 0o777, ..FileState::of_file(now, after) };
    JournalEffect::Appended { path, before, after }
}

fn replaced_error(target: &WriteTarget) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("`{}` was replaced concurrently by another program", target.shown))
}
