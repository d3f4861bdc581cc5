//! `move_file`: move or rename a file, a link or a directory.

use std::os::fd::{AsFd as _, OwnedFd};

use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, IoMode, ModelText, PolicyAction, Preview, ResourceAccess,
    Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, lenient,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::journal::{
    DisplacedFileAction, DisplacementPosition, EscapedPath, FileIdentity, FileState, FileStateDepth, JournalEffect,
    TxnStep,
};
use crate::lock::{HeldLock, TreeLockMode};
use crate::mount::repository::is_repository_entry;
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::path::guest::GuestPath;
use crate::path::name::{escape, may_create};
use crate::preview::{DiffPreview, FileContents, check_previewed_at, fingerprint};
use crate::read::digest::Digest;
use crate::root::resolver::PATH_ONLY;
use crate::root::symlinks::{PathRelocation, check_links_stay_inside};
use crate::root::{FileToReplace, check_directory_writable, reopen_for_listing};
use crate::sys::errno::{errno_error, wrong_type};
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::tools::change_note;
use crate::txn::manifest::{EntryReportReasons, RecursiveAccess, TreeManifest, accesses_below, scan_tree};
use crate::txn::recover::recover;
use crate::txn::run::{PlannedStep, Transaction};
use crate::txn::step::StepError;
use crate::txn::write::DisplacedFile;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry
        .register(MoveFile { fence: fence.clone() }, [ToolBinding::standard_with_text::<Args, Outcome>("move_file")])
}

struct MoveFile {
    fence: Fence,
}

/// Move or rename a file, link or directory. `to` is the new path itself, not a directory to move into.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Old path.
    from: String,
    /// New path.
    to: String,
    /// Replace a file at `to`.
    #[serde(default, deserialize_with = "lenient::scalar")]
    overwrite: bool,
}

struct MoveFilePlan {
    from: WriteTarget,
    to: WriteTarget,
    planned_stat: FileStat,
    /// The file that goes, if one is overwritten.
    overwritten_stat: Option<FileStat>,
    manifest: Option<TreeManifest>,
    /// Digests of the previewed contents: of the source, and of the file that is overwritten.
    previewed: (Option<Digest>, Option<Digest>),
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    from: String,
    to: String,
    /// True when a file at `to` was replaced.
    overwritten: bool,
    /// The id of this change.
    change: String,
}

impl ModelText for Outcome {
    fn model_text(&self, _: Dialect) -> String {
        let over = if self.overwritten { ", replacing the file there" } else { "" };
        format!("moved {} to {}{over}{}", self.from, self.to, change_note(&self.change))
    }
}

impl Tool for MoveFile {
    type Args = Args;
    type Prepared = MoveFilePlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::Read, PolicyAction::Move, PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Lose];

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<MoveFilePlan>, ToolError> {
        let (source, goal) = (self.fence.locate(&args.from, cx)?, self.fence.locate(&args.to, cx)?);
        let (from, seen) = WriteTarget::find_existing(&source, WriteTargetKind::Any)?;
        let to = WriteTarget::find(&goal.allow_slash_for(seen.kind), WriteTargetKind::Any, ParentDirPolicy::MustExist)?;
        if from.mount.id != to.mount.id {
            let message = "from and to are on different mounts";
            return Err(ToolError::new(ErrorKind::InvalidArgs, message).hint("copy the file, then delete the old one"));
        }
        may_create(&to.name, to.mount.names)?;
        if seen.kind != FileKind::File {
            from.check_nothing_guarded_inside()?;
            to.check_nothing_guarded_inside()?;
        }
        let target = to.found;
        check_target(&from, &to, &seen, target.as_ref(), args.overwrite)?;
        let at = (from.base(), from.name.as_slice());
        check_links_stay_inside(&from.mount, PathRelocation { at, from: &from.path(), to: &to.path() }, cx)?;
        let (away, there) = (from.resource(), to.resource());
        let mut accesses = vec![
            ResourceAccess { action: PolicyAction::Move, resource: away.clone() },
            ResourceAccess {
                action: if target.is_some() { PolicyAction::Overwrite } else { PolicyAction::Create },
                resource: there.clone(),
            },
        ];
        accesses.extend(target.as_ref().map(|target| to.loss(target, cx)).transpose()?.flatten());
        if seen.kind == FileKind::Link {
            accesses.extend(
                there
                    .settings_through_link()
                    .map(|place| ResourceAccess { action: PolicyAction::Create, resource: place }),
            );
        }
        let mut manifest = None;
        // A link to a directory gives what is in there another name too.
        let leads_to_directory =
            || from.mount.lookup(&source.path, OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, IoMode::Blocking);
        if seen.kind == FileKind::Directory || (seen.kind == FileKind::Link && leads_to_directory().is_ok()) {
            let directory = open_tree(&from, &seen)?;
            let wholes = [
                RecursiveAccess::new(PolicyAction::Move, &away, cx),
                RecursiveAccess::new(PolicyAction::Create, &there, cx),
            ];
            let classify = |path: &str| EntryReportReasons::of(&wholes, path, cx);
            let found = scan_tree(&from.mount, directory, &from.shown, classify, cx)?;
            accesses.extend(accesses_below(&away, &found.sensitive, PolicyAction::Move));
            accesses.extend(accesses_below(&there, &found.sensitive, PolicyAction::Create));
            manifest = Some(found);
        }
        Ok(ToolPlan {
            accesses,
            prepared: MoveFilePlan {
                from,
                to,
                planned_stat: seen,
                overwritten_stat: target,
                manifest,
                previewed: (None, None),
            },
        })
    }

    fn preview(&self, work: &mut MoveFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let MoveFilePlan { from, to, planned_stat: seen, overwritten_stat: target, manifest, previewed: shown } = work;
        let mut text = format!("move `{}` to `{}`", from.shown, to.shown);
        if let Some(target) = target {
            text.push_str(&format!(", replacing the file of {} bytes there", target.size));
        }
        if let Some(TreeManifest { entries, bytes, .. }) = manifest {
            text.push_str(&format!(", with {entries} entries ({bytes} bytes)"));
        }
        let new = FileContents::read_target(from, seen, cx)?;
        let old = target.map(|target| FileContents::read_target(to, &target, cx)).transpose()?;
        let body = match (&old, manifest.as_ref()) {
            (Some(old), _) => {
                let mut diffs = DiffPreview::new();
                diffs.add(&to.shown, Some(old), Some(&new));
                diffs.into_body()
            }
            (None, Some(manifest)) => manifest.to_body(),
            (None, None) => ringfence_kernel::PreviewBody::None,
        };
        let inside = manifest.as_ref().map(|manifest| manifest.digest);
        *shown = (new.digest, old.as_ref().and_then(|old| old.digest));
        let bound = fingerprint((*seen, *target, *shown, inside));
        let secret = old.is_some()
            && (from.resource().effective_sensitivity().secret || to.resource().effective_sensitivity().secret);
        let failure = from.directory_failure().or_else(|| to.directory_failure());
        let failure = failure.or_else(|| target.and_then(|_| to.contents_failure()));
        Ok(Preview::new(&text, bound).with_failure(failure).with_body(body).with_secret(secret))
    }

    fn run(&self, work: MoveFilePlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let MoveFilePlan { from, to, planned_stat: seen, overwritten_stat: target, .. } = &work;
        // A directory takes what is in it along: nothing may come to be in there while it moves.
        let alone = work.manifest.is_some() || is_repository_entry(&to.name);
        let tree = if alone { TreeLockMode::Exclusive } else { TreeLockMode::Shared };
        let _tree = from.lock_directory(tree, ticket.context())?;
        to.check_directory()?;
        check_directory_writable(from.base(), &from.shown)?;
        check_directory_writable(to.base(), &to.shown)?;
        let ids = [seen.id, target.map_or(seen.id, |target| target.id)];
        let locks = from.mount.locks.lock_all(&ids, ticket.context())?;
        locks.iter().try_for_each(|lock| recover(&from.mount, lock))?;
        check_unmoved(&work, ticket)?;
        from.judge_removal(ticket)?;
        to.judge_arrival(from, ticket)?;
        let (effects, image) = effects(&work, ticket)?;
        let now = from.stat()?.ok_or_else(|| changed_error(&from.shown))?;
        let over = if target.is_some() { to.stat()? } else { None };
        let step = TxnStep::Move {
            entry: FileIdentity::at(FileRef { fd: from.base(), name: &from.name }, &now),
            to: EscapedPath(to.path()),
            to_directory: Some(to.base_id().inode),
            over: over.map(|over| FileIdentity::from_stat(&over)),
            image,
        };
        let transaction = Transaction {
            steps: vec![PlannedStep::new(from.entry(step), Some(from.base()), &to.shown)],
            effects,
            ..Transaction::default()
        };
        let held: Vec<&HeldLock> = locks.iter().collect();
        transaction.run(&from.mount, &held, ticket, &|_, error| match error {
            StepError::Changed { .. } if from.stat().is_ok_and(|now| now.is_none_or(|now| now.id != seen.id)) => {
                changed_error(&from.shown)
            }
            StepError::Changed { .. } => changed_error(&to.shown),
            StepError::NoExchange => errno_error(Errno::OPNOTSUPP, &to.shown),
            StepError::System(errno) => errno_error(errno, &to.shown),
            StepError::Tool(error) => error,
        })?;
        Ok(Outcome {
            from: from.shown.clone(),
            to: to.shown.clone(),
            overwritten: target.is_some(),
            change: ticket.change_id().to_owned(),
        })
    }
}

/// Effects for the journal, with the overwritten file's name in the image store. One that has other hard links is
/// copied there.
fn effects(work: &MoveFilePlan, ticket: &Ticket<'_>) -> Result<(Vec<JournalEffect>, Option<String>), ToolError> {
    let MoveFilePlan { from, to, overwritten_stat: target, .. } = work;
    let state = |target: &WriteTarget| {
        let state =
            FileState::read_at(&target.mount, target.base(), &target.name, FileStateDepth::Shallow, ticket.context())?;
        state.ok_or_else(|| changed_error(&target.shown))
    };
    let (path, mut effects, mut fate) = (escape(&to.path()), Vec::new(), DisplacedFileAction::Discarded);
    if let Some(target) = target {
        let fd = to.mount.open_at(to.base(), &to.name, OFlags::RDONLY);
        let fd = fd.or_else(|_| to.mount.resolver.open_named(to.base(), &to.name, PATH_ONLY));
        let old = FileToReplace { fd: fd.map_err(|errno| errno_error(errno, &to.shown))?, stat: *target };
        // It is moved to the image store from the source's directory.
        let displaced = DisplacedFile::new(to, from.base_id().device, &old, DisplacementPosition::default(), ticket)?;
        effects.push(match &displaced.disposition {
            DisplacedFileAction::Discarded => JournalEffect::Lost { path: path.clone() },
            DisplacedFileAction::Stored { image } | DisplacedFileAction::Copied { image } => JournalEffect::Removed {
                path: path.clone(),
                before: displaced.state,
                image: image.clone(),
                copied: displaced.disposition.image().is_none(),
            },
        });
        fate = displaced.disposition;
    }
    effects.push(JournalEffect::Moved { from: escape(&from.path()), to: path, state: state(from)? });
    Ok((effects, fate.image().map(str::to_owned)))
}

/// The directory that moves, or that the link leads to which moves.
fn open_tree(from: &WriteTarget, seen: &FileStat) -> Result<OwnedFd, ToolError> {
    let opened = match seen.kind {
        FileKind::Link => {
            let path = GuestPath::from_kernel(&from.path());
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
            from.mount
                .lookup(&path, flags, IoMode::Blocking)
                .map(|opened| opened.fd)
                .and_then(|fd| reopen_for_listing(fd.as_fd()))
        }
        _ => from.mount.resolver.open_child(from.base(), &from.name),
    };
    opened.map_err(|errno| errno_error(errno, &from.shown))
}

fn check_target(
    from: &WriteTarget,
    to: &WriteTarget,
    seen: &FileStat,
    target: Option<&FileStat>,
    overwrite: bool,
) -> Result<(), ToolError> {
    if seen.kind == FileKind::Directory && to.is_below(seen.id)? {
        return Err(ToolError::invalid("to", "must not be inside the directory that is moved"));
    }
    let Some(target) = target else { return Ok(()) };
    if target.id == seen.id && from.same_name(to) {
        return Err(ToolError::invalid("to", "is the same as from"));
    }
    if !overwrite {
        let error = ToolError::new(ErrorKind::AlreadyExists, format!("`{}` already exists", to.shown));
        return Err(match target.kind {
            FileKind::Directory => error.hint("to move into that directory, include the file name in the new path"),
            _ => error.hint("set overwrite to replace it"),
        });
    }
    match (seen.kind, target.kind) {
        (FileKind::File, FileKind::File) if target.denies_write() => Err(errno_error(Errno::ACCESS, &to.shown)),
        (FileKind::File, FileKind::File) => Ok(()),
        (_, FileKind::Link) => Err(wrong_type(&to.shown, "a link, which cannot be overwritten")),
        (FileKind::File, other) => {
            Err(wrong_type(&to.shown, other.with_article()).hint("only a file can be overwritten"))
        }
        (other, _) => Err(wrong_type(&from.shown, other.with_article()).hint("only a file can overwrite another")),
    }
}

fn check_unmoved(work: &MoveFilePlan, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let MoveFilePlan { from, to, planned_stat: seen, overwritten_stat: target, manifest, previewed: shown } = work;
    let differs = |now: Option<FileStat>, seen: Option<&FileStat>| match (now, seen) {
        (None, None) => false,
        (Some(now), Some(seen)) => now.id != seen.id || (ticket.is_approved() && now != *seen),
        _ => true,
    };
    if differs(from.stat()?, Some(seen)) {
        return Err(changed_error(&from.shown));
    }
    if differs(to.stat()?, target.as_ref()) {
        return Err(changed_error(&to.shown));
    }
    check_previewed_at(from, shown.0, seen, ticket.context())?;
    if let Some(target) = target {
        check_previewed_at(to, shown.1, target, ticket.context())?;
    }
    // The policy judged what was in there, so that is what moves.
    if let Some(manifest) = manifest {
        let directory = open_tree(from, seen)?;
        if scan_tree(&from.mount, directory, &from.shown, |_| EntryReportReasons::default(), ticket.context())?.digest
            != manifest.digest
        {
            return Err(changed_error(&from.shown));
        }
    }
    Ok(())
}

fn changed_error(shown: &str) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("`{shown}` changed since the call was planned; nothing was moved"))
}
