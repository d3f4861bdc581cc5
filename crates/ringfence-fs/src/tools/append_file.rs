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
use crate::mount::write_target::{ParentPolicy, TargetKind, WriteTarget};
use crate::path::name::escape;
use crate::preview::{DiffPreview, FileContents, check_previewed, check_still_planned, fingerprint};
use crate::read::content::read_up_to;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::CurrentFile;
use crate::sys::errno::{errno_error, sync_error};
use crate::sys::own_files::write_all;
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fchmod, fdatasync, fstat, ftruncate};
use crate::tools::{ChangedFile, check_size};
use crate::txn::replace::{FileBody, WriteResult, check_unchanged, lock_and_open, replace};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard::<StandardAppendArgs, ChangedFile>("append_file");
    let miniclaw = ToolBinding::miniclaw::<MiniclawAppendArgs>("append_file", |outcome: &Outcome| {
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
    parents: ParentPolicy,
}

impl From<StandardAppendArgs> for Args {
    fn from(args: StandardAppendArgs) -> Self {
        Self { path: PathArg::Standard(args.path), content: args.content, parents: ParentPolicy::MustExist }
    }
}

impl From<MiniclawAppendArgs> for Args {
    fn from(args: MiniclawAppendArgs) -> Self {
        Self {
            path: PathArg::workspace_unless_blank(args.path),
            content: args.content,
            parents: ParentPolicy::CreateMissing,
        }
    }
}

struct PreparedAppend {
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
    type Prepared = PreparedAppend;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Lose];

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<PreparedAppend>, ToolError> {
        let spot = self.fence.locate_arg(&args.path, cx)?;
        check_size("content", "max_append_bytes", args.content.len() as u64, cx.limits.append_bytes)?;
        let slot = WriteTarget::find(&spot, TargetKind::File, args.parents)?;
        let seen = slot.stat()?;
        let verb = if seen.is_some() { PolicyAction::Overwrite } else { PolicyAction::Create };
        let touches = vec![ResourceAccess { action: verb, resource: slot.resource() }];
        Ok(ToolPlan {
            accesses: touches,
            prepared: PreparedAppend {
                target: slot,
                planned_stat: seen,
                content: args.content.into_bytes(),
                previewed: None,
            },
        })
    }

    fn preview(&self, work: &mut PreparedAppend, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let PreparedAppend { target: slot, planned_stat: seen, content, previewed: shown } = work;
        let mut diffs = DiffPreview::new();
        let (text, digest) = match seen {
            Some(seen) => {
                let old = FileContents::read_target(slot, seen, cx)?;
                diffs.add_at_end(&slot.shown, &old, &String::from_utf8_lossy(content));
                (
                    format!("add {} bytes to the end of `{}` ({} bytes)", content.len(), slot.shown, seen.size),
                    old.digest,
                )
            }
            None => {
                diffs.add(&slot.shown, None, Some(&FileContents::from_bytes(content)));
                (format!("create `{}` with {} bytes", slot.shown, content.len()), None)
            }
        };
        *shown = digest;
        // A file grows in place, whatever its directory allows.
        let failure = if seen.is_some() { slot.contents_failure() } else { slot.directory_failure() };
        let preview = Preview::new(&text, fingerprint((*seen, digest))).with_failure(failure);
        Ok(preview.with_body(diffs.into_body()).with_secret(slot.resource().effective_sensitivity().secret))
    }

    fn run(&self, work: PreparedAppend, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let PreparedAppend { target: slot, planned_stat: seen, content, previewed: shown } = work;
        check_still_planned(&slot, seen.as_ref(), ticket)?;
        let added = content.len();
        let written = match seen {
            None => replace(&slot, seen, ticket, |_| Ok(FileBody::Bytes(content)))?,
            Some(_) => append(&slot, seen, &content, shown, ticket)?,
        };
        slot.carry_sensitivity(slot.sensitivity);
        // An access that may append to a secret may not read it, and could guess contents by hashes.
        let unread = !written.created && slot.resource().effective_sensitivity().secret;
        let changed = ChangedFile::new(slot.shown, &written, ticket);
        let sha256 = changed.sha256.clone().filter(|_| !unread);
        Ok(Outcome { changed: ChangedFile { sha256, ..changed }, added })
    }
}

fn append(
    slot: &WriteTarget,
    seen: Option<FileStat>,
    content: &[u8],
    shown: Option<Digest>,
    ticket: &Ticket<'_>,
) -> Result<WriteResult, ToolError> {
    let parent = slot.base();
    let place = slot.lock_directory(TreeLockMode::Shared, ticket.context())?;
    let (held, old) = lock_and_open(slot, parent, ticket.context())?;
    let Some(old) = old else {
        check_unchanged(slot, seen, None, ticket)?;
        drop((held, place));
        return replace(slot, None, ticket, |_| Ok(FileBody::Bytes(content.to_vec())));
    };
    check_unchanged(slot, seen, Some(old.stat), ticket)?;
    check_previewed(slot, shown, Some(&old), ticket.context())?;
    check_grown_size(slot, &old, content, ticket.context())?;
    if old.stat.links == 1 && !slot.is_guarded() {
        return append_in_place(slot, parent, &held, &old, content, ticket);
    }
    // The other names of this file may be outside: they keep what they had. A rule judges a file whole.
    drop((held, place));
    replace(slot, seen, ticket, |old| {
        check_previewed(slot, shown, old, ticket.context())?;
        let Some(old) = old else { return Ok(FileBody::Bytes(content.to_vec())) };
        check_grown_size(slot, old, content, ticket.context())?;
        let mut bytes =
            read_up_to(&old.fd, old.stat.size, ticket.context()).map_err(|errno| errno_error(errno, &slot.shown))?;
        bytes.extend_from_slice(content);
        Ok(FileBody::Bytes(bytes))
    })
}

fn check_grown_size(
    slot: &WriteTarget,
    old: &CurrentFile,
    content: &[u8],
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let size = old.stat.size.saturating_add(content.len() as u64);
    let what = format!("`{}` after appending", slot.shown);
    check_size(&what, "max_appended_file_bytes", size, cx.limits.appended_file_bytes)
}

fn append_in_place(
    slot: &WriteTarget,
    parent: BorrowedFd<'_>,
    held: &FileLock,
    old: &CurrentFile,
    content: &[u8],
    ticket: &Ticket<'_>,
) -> Result<WriteResult, ToolError> {
    let fail = |errno| errno_error(errno, &slot.shown);
    if old.stat.denies_write() {
        return Err(fail(Errno::ACCESS));
    }
    let file = slot.mount.open_at(parent, &slot.name, OFlags::WRONLY | OFlags::APPEND).map_err(fail)?;
    let now = FileStat::from_stat(&fstat(&file).map_err(fail)?);
    if now.id != old.stat.id || now.links != 1 {
        return Err(replaced_error(slot));
    }
    let before = now.size;
    let after = before + content.len() as u64;
    let (parent_path, name) = (slot.parent_path(), slot.name.clone());
    let hashed = hash_both(slot, old, content, ticket.context())?;
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
    held.log_intent_durably(&intent)?;
    let entered = slot.mount.begin_change(ticket, Vec::new(), vec![effect(slot, &now, after, hashed)])?;
    if let Err(given_up) = ticket.commit() {
        drop(entered);
        held.clear_intent();
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
        let size = FileStat::from_stat(&fstat(&file).map_err(|errno| sync_error(errno, &slot.shown))?).size;
        if size > after {
            entered.commit();
            held.clear_intent();
            return Err(sync_error(errno, &slot.shown));
        }
        ftruncate(&file, before).map_err(|errno| sync_error(errno, &slot.shown))?;
        drop(entered);
        held.clear_intent();
        return Err(fail(errno));
    }
    entered.commit();
    held.clear_intent();
    // The bytes are added, also when it cannot be determined whether the name still leads to the file.
    if slot.stat_in(parent).is_ok_and(|now| now.is_none_or(|now| now.id != old.stat.id)) {
        return Err(replaced_error(slot));
    }
    let digest = hashed.map(|(_, after)| after);
    Ok(WriteResult { unchanged: false, size: after, digest, created: false, links_broken: 0, collides_with: None })
}

/// Hashes the current and the new contents in one pass. `None` where the file may be written and not read.
fn hash_both(
    slot: &WriteTarget,
    old: &CurrentFile,
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
            return Err(errno_error(errno, &slot.shown));
        }
    };
    if bytes.len() as u64 != old.stat.size {
        return Err(replaced_error(slot));
    }
    let mut hasher = Sha256Hasher::default();
    hasher.update(&bytes);
    let before = hasher.clone().finish();
    hasher.update(content);
    Ok(Some((before, hasher.finish())))
}

fn effect(slot: &WriteTarget, now: &FileStat, size: u64, hashed: Option<(Digest, Digest)>) -> JournalEffect {
    let path = escape(&slot.path());
    let (before, after) = hashed.unzip();
    let before = FileState::of_file(now, before);
    // Its times are not known yet, and not compared where the hash is.
    let after = FileState { size, mode: now.mode & 0o777, ..FileState::of_file(now, after) };
    JournalEffect::Appended { path, before, after }
}

fn replaced_error(slot: &WriteTarget) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("`{}` was replaced concurrently by another program", slot.shown))
}
