//! `append_file`: append to a file.
//!
//! Bytes are added in place: a log of many megabytes is not copied for one line. An intent in the lock file has the old
//! length, so that a crash half way leaves nothing half added.

use std::os::fd::{AsFd, BorrowedFd};

use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Fence;
use crate::fence::PathArg;
use crate::journal::{FileState, JournalEffect};
use crate::lock::{FileLock, TreeLockMode, WriteIntent};
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::path::name::escape;
use crate::preview::{DiffPreview, FileContents, check_previewed, check_still_planned, fingerprint};
use crate::read::content::read_up_to;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::FileToReplace;
use crate::sys::errno::{errno_error, sync_error};
use crate::sys::own_files::write_all;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fchmod, fdatasync, fstat, ftruncate};
use crate::tools::{ChangedFile, check_size};
use crate::txn::replace::{FileBody, WriteResult, check_unchanged, lock_and_open, replace};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard::<StandardAppendArgs, ChangedFile>("append_file");
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
    /// Path of the file, relative to the workspace.
    path: String,
    /// Text to append.
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
    content: Vec<u8>,
    /// Digest of the previewed old contents.
    previewed: Option<Digest>,
}

struct Outcome {
    changed: ChangedFile,
    added: usize,
}

impl From<Outcome> for ChangedFile {
    fn from(outcome: Outcome) -> Self {
        outcome.changed
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
        let seen = target.stat()?;
        let action = if seen.is_some() { PolicyAction::Overwrite } else { PolicyAction::Create };
        let accesses = vec![ResourceAccess { action, resource: target.resource() }];
        Ok(ToolPlan {
            accesses,
            prepared: AppendFilePlan {
                target,
                planned_stat: seen,
                content: args.content.into_bytes(),
                previewed: None,
            },
        })
    }

    fn preview(&self, work: &mut AppendFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let AppendFilePlan { target, planned_stat: seen, content, previewed: shown } = work;
        let mut diffs = DiffPreview::new();
        let (text, digest) = match seen {
            Some(seen) => {
                let old = FileContents::read_target(target, seen, cx)?;
                diffs.add_at_end(&target.shown, &old, &String::from_utf8_lossy(content));
                (
                    format!("add {} bytes to the end of `{}` ({} bytes)", content.len(), target.shown, seen.size),
                    old.digest,
                )
            }
            None => {
                diffs.add(&target.shown, None, Some(&FileContents::from_bytes(content)));
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
            None => replace(&target, seen, ticket, |_| Ok(FileBody::Bytes(content)))?,
            Some(_) => append(&target, seen, &content, shown, ticket)?,
        };
        target.carry_sensitivity(target.sensitivity);
        // An access that may append to a secret may not read it, and could guess contents by hashes.
        let unread = !written.created && target.resource().effective_sensitivity().secret;
        let changed = ChangedFile::new(target.shown, &written, ticket);
        let sha256 = changed.sha256.clone().filter(|_| !unread);
        Ok(Outcome { changed: ChangedFile { sha256, ..changed }, added })
    }
}

fn append(
    target: &WriteTarget,
    seen: Option<FileStat>,
    content: &[u8],
    shown: Option<Digest>,
    ticket: &Ticket<'_>,
) -> Result<WriteResult, ToolError> {
    let parent = target.base();
    let place = target.lock_directory(TreeLockMode::Shared, ticket.context())?;
    let (lock, old) = lock_and_open(target, parent, ticket.context())?;
    let Some(old) = old else {
        check_unchanged(target, seen, None, ticket)?;
        drop((lock, place));
        return replace(target, None, ticket, |_| Ok(FileBody::Bytes(content.to_vec())));
    };
    check_unchanged(target, seen, Some(old.stat), ticket)?;
    check_previewed(target, shown, Some(&old), ticket.context())?;
    check_grown_size(target, &old, content, ticket.context())?;
    if old.stat.links == 1 && !target.is_guarded() {
        return append_in_place(target, parent, &lock, &old, content, ticket);
    }
    // The other names of this file may be outside: they keep what they had. A rule judges a file whole.
    drop((lock, place));
    replace(target, seen, ticket, |old| {
        check_previewed(target, shown, old, ticket.context())?;
        let Some(old) = old else { return Ok(FileBody::Bytes(content.to_vec())) };
        check_grown_size(target, old, content, ticket.context())?;
        let mut bytes =
            read_up_to(&old.fd, old.stat.size, ticket.context()).map_err(|errno| errno_error(errno, &target.shown))?;
        bytes.extend_from_slice(content);
        Ok(FileBody::Bytes(bytes))
    })
}

fn check_grown_size(
    target: &WriteTarget,
    old: &FileToReplace,
    content: &[u8],
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let size = old.stat.size.saturating_add(content.len() as u64);
    let what = format!("`{}` after appending", target.shown);
    check_size(&what, "max_appended_file_bytes", size, cx.limits.appended_file_bytes)
}

fn append_in_place(
    target: &WriteTarget,
    parent: BorrowedFd<'_>,
    lock: &FileLock,
    old: &FileToReplace,
    content: &[u8],
    ticket: &Ticket<'_>,
) -> Result<WriteResult, ToolError> {
    let fail = |errno| errno_error(errno, &target.shown);
    if old.stat.denies_write() {
        return Err(fail(Errno::ACCESS));
    }
    let file = target.mount.open_at(parent, &target.name, OFlags::WRONLY | OFlags::APPEND).map_err(fail)?;
    let now = FileStat::from_stat(&fstat(&file).map_err(fail)?);
    if now.id != old.stat.id || now.links != 1 {
        return Err(replaced_error(target));
    }
    let before = now.size;
    let after = before + content.len() as u64;
    let (parent_path, name) = (target.parent_path(), target.name.clone());
    let hashed = hash_both(target, old, content, ticket.context())?;
    if content.is_empty() {
        return Ok(WriteResult::no_change(before, hashed.map(|(_, after)| after)));
    }
    let intent = WriteIntent::Append {
        parent: parent_path,
        name,
        inode: now.id.inode,
        before,
        content: content.to_vec(),
        change: ticket.change_id().as_bytes().to_vec(),
    };
    // After a power cut the disk may have a part of the contents.
    lock.log_intent_durably(&intent)?;
    let entered = target.mount.begin_change(ticket, Vec::new(), vec![effect(target, &now, after, hashed)])?;
    if let Err(given_up) = ticket.commit() {
        drop(entered);
        lock.clear_intent();
        return Err(given_up);
    }
    let added = write_all(file.as_fd(), content)
        .and_then(|()| match now.mode & 0o7000 {
            0 => Ok(()),
            // Contents that another user chose must not run with the owner's rights.
            _ => fchmod(&file, Mode::from_raw_mode(now.mode & 0o777)),
        })
        .and_then(|()| fdatasync(&file));
    if let Err(errno) = added {
        // After an error the caller retries, and must not find the bytes there already. Bytes that another program
        // added behind them stay, and so do ours.
        let size = FileStat::from_stat(&fstat(&file).map_err(|errno| sync_error(errno, &target.shown))?).size;
        if size > after {
            entered.commit();
            lock.clear_intent();
            return Err(sync_error(errno, &target.shown));
        }
        ftruncate(&file, before).map_err(|errno| sync_error(errno, &target.shown))?;
        drop(entered);
        lock.clear_intent();
        return Err(fail(errno));
    }
    entered.commit();
    lock.clear_intent();
    // The bytes are added, also when it cannot be determined whether the name still leads to the file.
    if target.stat_in(parent).is_ok_and(|now| now.is_none_or(|now| now.id != old.stat.id)) {
        return Err(replaced_error(target));
    }
    let digest = hashed.map(|(_, after)| after);
    Ok(WriteResult { unchanged: false, size: after, digest, created: false, links_broken: 0, collides_with: None })
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
