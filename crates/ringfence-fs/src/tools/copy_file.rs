//! `copy_file`: copy a file.

use std::os::fd::AsFd as _;

use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Sensitivity, Ticket, Tool,
    ToolBinding, ToolError, ToolPlan, ToolRegistry, lenient,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Fence;
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::preview::{DiffPreview, FileContents, changed_error, check_previewed, check_still_planned, fingerprint};
use crate::read::digest::Digest;
use crate::root::OpenFile;
use crate::sys::stat::FileStat;
use crate::tools::{ChangedFile, check_size};
use crate::txn::stage::FileBody;
use crate::txn::write::replace;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry.register(
        CopyFile { fence: fence.clone() },
        [ToolBinding::standard_with_text::<Args, ChangedFile>("copy_file")],
    )
}

struct CopyFile {
    fence: Fence,
}

/// Copy a file. `to` is the path of the copy itself, not a directory to copy into.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Source path.
    from: String,
    /// Target path.
    to: String,
    /// Replace a file at `to`.
    #[serde(default, deserialize_with = "lenient::scalar")]
    overwrite: bool,
}

struct CopyFilePlan {
    from: OpenFile,
    from_shown: String,
    from_secret: bool,
    to: WriteTarget,
    overwritten_stat: Option<FileStat>,
    /// Digests of the previewed contents: of the source, and of the file that is overwritten.
    previewed: (Option<Digest>, Option<Digest>),
}

impl Tool for CopyFile {
    type Args = Args;
    type Prepared = CopyFilePlan;
    type Outcome = ChangedFile;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::Read, PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Lose];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<CopyFilePlan>, ToolError> {
        let (source, goal) = (self.fence.locate(&args.from, cx)?, self.fence.locate(&args.to, cx)?);
        let mut from = source.open_content(cx)?;
        check_size(&format!("`{}`", source.shown), "max_copy_bytes", from.stat.size, cx.limits.copy_bytes)?;
        let to = WriteTarget::find(&goal, WriteTargetKind::File, ParentDirPolicy::MustExist)?;
        let target = to.found;
        match target {
            Some(target) if target.id == from.stat.id => {
                return Err(ToolError::invalid("to", "is the same file as from"));
            }
            Some(_) if !args.overwrite => {
                let error = ToolError::new(ErrorKind::AlreadyExists, format!("`{}` already exists", to.shown));
                return Err(error.hint("set overwrite to replace it"));
            }
            _ => {}
        }
        let read = source.resource_of(&mut from, cx)?;
        let from_secret = read.effective_sensitivity().secret;
        let mut accesses = vec![
            ResourceAccess { action: PolicyAction::Read, resource: read },
            ResourceAccess {
                action: if target.is_some() { PolicyAction::Overwrite } else { PolicyAction::Create },
                resource: to.resource(),
            },
        ];
        accesses.extend(target.map(|target| to.loss(&target, cx)).transpose()?.flatten());
        Ok(ToolPlan {
            accesses,
            prepared: CopyFilePlan {
                from,
                from_shown: source.shown,
                from_secret,
                to,
                overwritten_stat: target,
                previewed: (None, None),
            },
        })
    }

    fn preview(&self, work: &mut CopyFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let CopyFilePlan { from, from_shown, from_secret, to, overwritten_stat: target, previewed: shown } = work;
        let mut text = format!("copy `{from_shown}` ({} bytes) to `{}`", from.stat.size, to.shown);
        let new = FileContents::read_file(from.fd.as_fd(), &from.stat, from_shown, cx)?;
        let old = target.map(|target| FileContents::read_target(to, &target, cx)).transpose()?;
        let mut diffs = DiffPreview::new();
        if let (Some(old), Some(target)) = (&old, &target) {
            text.push_str(&format!(", replacing the file of {} bytes there", target.size));
            diffs.add(&to.shown, Some(old), Some(&new));
        }
        *shown = (new.digest, old.and_then(|old| old.digest));
        let bound = fingerprint((from.stat, *target, *shown));
        let secret = *from_secret || to.resource().effective_sensitivity().secret;
        let preview = Preview::new(&text, bound).with_failure(to.replacement_failure());
        Ok(preview.with_body(diffs.into_body()).with_secret(secret))
    }

    fn run(&self, work: CopyFilePlan, ticket: &Ticket<'_>) -> Result<ChangedFile, ToolError> {
        let CopyFilePlan { from, from_shown, from_secret, to, overwritten_stat: target, previewed: shown } = work;
        check_still_planned(&to, target.as_ref(), ticket)?;
        let written = replace(&to, target, ticket, |old| {
            let cx = ticket.context();
            check_previewed(&to, shown.1, old, cx)?;
            if shown.0.is_some()
                && shown.0 != FileContents::read_file(from.fd.as_fd(), &from.stat, &from_shown, cx)?.digest
            {
                return Err(changed_error(&from_shown));
            }
            Ok(FileBody::File { from: from.fd, stamp: from.stat })
        })?;
        to.carry_sensitivity(Sensitivity { secret: from_secret, protected: false });
        Ok(ChangedFile::new(to.shown, &written, ticket))
    }
}
