//! `delete_file`: delete a file, a link or a directory.

use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, ModelText, PolicyAction, Preview, ResourceAccess, Ticket,
    Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, lenient,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::journal::{DisplacementPosition, FileIdentity, FileState, FileStateDepth, StagingName, TxnStep, cost};
use crate::lock::TreeLockMode;
use crate::mount::suggest;
use crate::mount::write_target::{WriteTarget, WriteTargetKind};
use crate::preview::{FileContents, check_previewed_at, fingerprint};
use crate::read::digest::Digest;
use crate::root::{check_directory_writable, stat};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::{FileKind, FileStat};
use crate::tools::change_note;
use crate::txn::manifest::{EntryReportReasons, RecursiveAccess, TreeManifest, accesses_below, scan_tree};
use crate::txn::recover::recover;
use crate::txn::run::{PlannedStep, Transaction};
use crate::txn::step::StepError;
use crate::txn::write::Removal;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry.register(
        DeleteFile { fence: fence.clone() },
        [ToolBinding::standard_with_text::<Args, Outcome>("delete_file")],
    )
}

struct DeleteFile {
    fence: Fence,
}

/// Delete a file or a directory. A link is removed, never its target.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Relative to the workspace.
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
    /// Delete a directory and its contents.
    #[serde(default, deserialize_with = "lenient::scalar")]
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

impl ModelText for Outcome {
    fn model_text(&self, _: Dialect) -> String {
        let first = self.deleted.first().map_or("", String::as_str);
        let inside = match self.count {
            ..=1 => String::new(),
            count => format!(" and {} entries in it", count - 1),
        };
        let mut text = format!("deleted {first}{inside}{}", change_note(&self.change));
        if self.leftover {
            text.push_str("\n[a part could not be removed and is kept hidden]");
        }
        text
    }
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
        // The contents of a directory are deleted as they were listed: nothing may change in there meanwhile.
        let tree = if manifest.is_some() { TreeLockMode::Exclusive } else { TreeLockMode::Shared };
        let _tree = target.lock_directory(tree, cx)?;
        check_directory_writable(parent, &target.shown)?;
        let lock = target.mount.locks.lock(seen.id, cx)?;
        recover(&target.mount, &lock)?;
        check_approved(&target, &seen, manifest.as_ref(), ticket)?;
        check_previewed_at(&target, shown, &seen, cx)?;
        target.judge_removal(ticket)?;
        let state = FileState::read_at(&target.mount, parent, &target.name, FileStateDepth::Recursive, cx)?;
        let state = state.ok_or_else(|| gone_error(&target))?;
        let identity = FileIdentity::at(FileRef { fd: parent, name: &target.name }, &target.stat()?.unwrap_or(seen));
        let Removal { step, effect, .. } =
            Removal::plan(&target, identity, state, DisplacementPosition::default(), ticket)?;
        let temporary = match &step {
            TxnStep::Exchange { staging: StagingName::Beside(name), .. } => Some(name.clone()),
            _ => None,
        };
        let transaction = Transaction {
            steps: vec![PlannedStep::new(target.entry(step), Some(parent), &target.shown)],
            effects: vec![effect],
            ..Transaction::default()
        };
        transaction.run(&target.mount, &[&lock], ticket, &|_, error| match error {
            StepError::Changed { conflict_copy } => replaced_error(&target, conflict_copy.as_deref()),
            StepError::NoExchange => errno_error(Errno::OPNOTSUPP, &target.shown),
            StepError::System(errno) => errno_error(errno, &target.shown),
            StepError::Tool(error) => error,
        })?;
        // The entry is deleted for every reader; contents that cannot be removed now are removed by the next holder of
        // the lock.
        let leftover = temporary.is_some_and(|name| !matches!(stat(parent, name.as_bytes()), Ok(None)));
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

fn gone_error(target: &WriteTarget) -> ToolError {
    let message = format!("`{}` was removed since the call was planned; nothing was deleted", target.shown);
    ToolError::new(ErrorKind::Conflict, message)
}

fn replaced_error(target: &WriteTarget, conflict_copy: Option<&str>) -> ToolError {
    let message = format!("`{}` was replaced concurrently by another program; nothing was changed", target.shown);
    let error = ToolError::new(ErrorKind::Conflict, message);
    match conflict_copy {
        Some(copy) => {
            let hint = format!("the previous file was kept as `{copy}` beside it");
            error.hint(&hint).detail("conflictCopy", copy)
        }
        None => error,
    }
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
