//! `delete_file`: delete a file, a link or a directory.

use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Ticket, Tool, ToolBinding,
    ToolError, ToolPlan, ToolRegistry,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::journal::{DisplacementPosition, FileState, FileStateDepth, JournalEffect, cost};
use crate::lock::{JournalRef, TreeLockMode, WriteIntent};
use crate::mount::suggest;
use crate::mount::write_target::{WriteTarget, WriteTargetKind};
use crate::path::name::escape;
use crate::preview::{FileContents, check_previewed_at, fingerprint};
use crate::read::digest::Digest;
use crate::root::trash::{purge, rename_aside};
use crate::root::{Durability, check_directory_writable, reopen_for_listing};
use crate::sys::errno::{errno_error, sync_error};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::fsync;
use crate::txn::manifest::{EntryReportReasons, RecursiveAccess, TreeManifest, accesses_below, scan_tree};
use crate::txn::recover::recover;
use crate::txn::replace::temporary_name;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry.register(DeleteFile { fence: fence.clone() }, [ToolBinding::standard::<Args, Outcome>("delete_file")])
}

struct DeleteFile {
    fence: Fence,
}

/// Delete a file or a directory. A link is removed, never its target.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Path to delete, relative to the workspace.
    path: String,
    /// Delete a directory and its contents.
    #[serde(default)]
    recursive: bool,
}

struct DeleteFilePlan {
    target: WriteTarget,
    planned_stat: FileStat,
    manifest: Option<TreeManifest>,
    /// Digest of the previewed contents of a file.
    previewed: Option<Digest>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    /// The deleted paths; for a directory its contents too, as far as they fit.
    deleted: Vec<String>,
    /// How many files, links and directories were deleted in all.
    count: u64,
    /// True when a part could not be removed and is kept hidden.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    leftover: bool,
    /// The id of this change.
    change: String,
}

impl Tool for DeleteFile {
    type Args = Args;
    type Prepared = DeleteFilePlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Delete, PolicyAction::Lose];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<DeleteFilePlan>, ToolError> {
        let located = self.fence.locate(&args.path, cx)?;
        let (target, seen) = WriteTarget::find_existing(&located, WriteTargetKind::Any)?;
        if seen.kind == FileKind::Directory {
            target.check_nothing_guarded_inside()?;
        }
        let place = target.resource();
        let manifest = match seen.kind {
            FileKind::Directory => {
                let directory = target.mount.resolver.open_child(target.base(), &target.name);
                let directory = directory.map_err(|errno| suggest::path_error(&located, errno))?;
                let whole = [RecursiveAccess::new(PolicyAction::Delete, &place, cx)];
                Some(scan_tree(
                    &target.mount,
                    directory,
                    &target.shown,
                    |path| EntryReportReasons::of(&whole, path, cx),
                    cx,
                )?)
            }
            _ => None,
        };
        if let Some(TreeManifest { entries: 1.., .. }) = &manifest
            && !args.recursive
        {
            let message = format!("`{}` is a directory that is not empty", target.shown);
            return Err(
                ToolError::new(ErrorKind::WrongType, message).hint("set recursive to delete it and its contents")
            );
        }
        if let Some(TreeManifest { locked_directory: Some(locked), .. }) = &manifest {
            // Begun, it could not be finished.
            let inner = if locked.is_empty() { target.shown.clone() } else { format!("{}/{locked}", target.shown) };
            return Err(errno_error(Errno::ACCESS, &inner));
        }
        let mut accesses = vec![ResourceAccess { action: PolicyAction::Delete, resource: place.clone() }];
        accesses.extend(
            manifest.iter().flat_map(|manifest| accesses_below(&place, &manifest.sensitive, PolicyAction::Delete)),
        );
        let (bytes, below) = manifest.as_ref().map_or((seen.size, 0), |manifest| (manifest.bytes, manifest.entries));
        accesses.extend(target.loss_of_all(cost(bytes, below), cx)?);
        Ok(ToolPlan { accesses, prepared: DeleteFilePlan { target, planned_stat: seen, manifest, previewed: None } })
    }

    fn preview(&self, work: &mut DeleteFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let DeleteFilePlan { target, planned_stat: seen, manifest, previewed: shown } = work;
        let Some(manifest) = manifest else {
            if seen.kind != FileKind::File {
                let text = format!("delete `{}`, which is {}", target.shown, seen.kind.with_article());
                return Ok(Preview::new(&text, fingerprint(*seen)).with_failure(target.directory_failure()));
            }
            let text = format!("delete `{}` ({} bytes)", target.shown, seen.size);
            let old = FileContents::read_target(target, seen, cx)?;
            *shown = old.digest;
            let preview = Preview::new(&text, fingerprint((*seen, *shown))).with_body(old.head());
            let secret = target.resource().effective_sensitivity().secret;
            return Ok(preview.with_failure(target.directory_failure()).with_secret(secret));
        };
        let TreeManifest { entries, bytes, digest, .. } = manifest;
        let text = format!("delete the directory `{}` with {entries} entries ({bytes} bytes)", target.shown);
        let preview = Preview::new(&text, fingerprint((*seen, digest))).with_failure(target.directory_failure());
        Ok(preview.with_body(manifest.to_body()))
    }

    fn run(&self, work: DeleteFilePlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let DeleteFilePlan { target, planned_stat: seen, manifest, previewed: shown } = work;
        let cx = ticket.context();
        let parent = target.base();
        let fail = |errno| errno_error(errno, &target.shown);
        // The contents of a directory are deleted as they were listed: nothing may change in there meanwhile.
        let tree = if manifest.is_some() { TreeLockMode::Exclusive } else { TreeLockMode::Shared };
        let _place = target.lock_directory(tree, cx)?;
        check_directory_writable(parent, &target.shown)?;
        let (lock, left) = target.mount.locks.lock(seen.id, cx)?;
        recover(&target.mount, &lock, &left)?;
        check_approved(&target, &seen, manifest.as_ref(), ticket)?;
        check_previewed_at(&target, shown, &seen, cx)?;
        target.judge_removal(ticket)?;
        // Once it has happened, nothing that can be had before may fail.
        let directory = match target.mount.durability {
            Durability::Full => Some(reopen_for_listing(parent).map_err(fail)?),
            Durability::Ordered => None,
        };
        let state = FileState::read_at(&target.mount, parent, &target.name, FileStateDepth::Recursive, cx)?;
        let state = state.ok_or_else(|| gone_error(&target))?;
        let away = match target.mount.removal_image(&state, parent, DisplacementPosition::default(), ticket)? {
            Some(image) => RemovalDestination::Image(image),
            None => RemovalDestination::Temporary(temporary_name().map_err(fail)?),
        };
        let path = escape(&target.path());
        let (note, effect) = match &away {
            RemovalDestination::Image(image) => (
                WriteIntent::SingleSyscall { change: ticket.change_id().as_bytes().to_vec() },
                JournalEffect::Removed { path, before: state, image: image.clone(), copied: false },
            ),
            RemovalDestination::Temporary(name) => {
                let (parent, name, inodes) = (target.parent_path(), name.clone(), vec![seen.id.inode]);
                let journal = JournalRef::new(ticket.change_id(), None);
                (WriteIntent::Remove { parent, name, inodes, journal }, JournalEffect::Lost { path })
            }
        };
        match &away {
            RemovalDestination::Image(_) => lock.log_intent(&note)?,
            RemovalDestination::Temporary(_) => lock.log_intent_durably(&note)?,
        }
        let entered = target.mount.begin_change(ticket, Vec::new(), vec![effect])?;
        ticket.commit()?;
        match &away {
            RemovalDestination::Image(image) => {
                let keep = target.mount.image_store().ok_or_else(|| fail(Errno::NOENT))?;
                let kept = (keep.fd(), image.as_bytes());
                rename_aside((parent, &target.name), kept, seen.id, &target.shown)?;
            }
            RemovalDestination::Temporary(name) => {
                rename_aside((parent, &target.name), (parent, name), seen.id, &target.shown)?
            }
        }
        entered.commit();
        let synced = directory.map_or(Ok(()), fsync).map_err(|errno| sync_error(errno, &target.shown));
        // The entry is deleted for every reader; contents that cannot be removed now are removed by the next holder of
        // the lock.
        let leftover = match &away {
            RemovalDestination::Image(_) => false,
            RemovalDestination::Temporary(name) => purge(&target.mount, parent, name, cx).is_err(),
        };
        if !leftover {
            lock.clear_intent();
        }
        synced?;
        let below = manifest
            .iter()
            .flat_map(|manifest| &manifest.listed)
            .map(|entry| format!("{}/{}", target.shown, entry.path));
        let deleted: Vec<String> = std::iter::once(target.shown.clone()).chain(below).collect();
        let most = usize::try_from(cx.limits.delete_names).unwrap_or(usize::MAX);
        let count = 1 + manifest.as_ref().map_or(0, |manifest| manifest.entries);
        Ok(Outcome {
            deleted: deleted.into_iter().take(most).collect(),
            count,
            leftover,
            change: ticket.change_id().to_owned(),
        })
    }
}

/// Destination of the deleted entry.
enum RemovalDestination {
    /// The image store, under this name.
    Image(String),
    /// Beside where it was, to be taken apart.
    Temporary(Vec<u8>),
}

fn gone_error(target: &WriteTarget) -> ToolError {
    let message = format!("`{}` was removed since the call was planned; nothing was deleted", target.shown);
    ToolError::new(ErrorKind::Conflict, message)
}

/// Fails unless the entry is the one that was approved or, without an approval, the one that was planned with.
fn check_approved(
    target: &WriteTarget,
    seen: &FileStat,
    manifest: Option<&TreeManifest>,
    ticket: &Ticket<'_>,
) -> Result<(), ToolError> {
    let changed = || {
        let message = format!("`{}` changed since the call was planned; nothing was deleted", target.shown);
        ToolError::new(ErrorKind::Conflict, message)
    };
    let now = target.stat()?.ok_or_else(changed)?;
    if now.id != seen.id || (ticket.is_approved() && now != *seen) {
        return Err(changed());
    }
    if let (Some(manifest), true) = (manifest, ticket.is_approved()) {
        let directory = target
            .mount
            .resolver
            .open_child(target.base(), &target.name)
            .map_err(|errno| errno_error(errno, &target.shown))?;
        let now =
            scan_tree(&target.mount, directory, &target.shown, |_| EntryReportReasons::default(), ticket.context())?;
        if now.digest != manifest.digest {
            return Err(changed());
        }
    }
    Ok(())
}
