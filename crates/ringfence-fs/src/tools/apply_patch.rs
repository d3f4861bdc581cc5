//! `apply_patch`: apply a unified diff or a V4A patch, or update the front matter of a run's state.
//!
//! A patch is applied to all of its files or to none. A hunk is applied at its stated line or, if its lines occur
//! exactly once at another line, there, and the reply has the offset. Nothing is guessed.

use std::collections::BTreeSet;

use ringfence_front_matter::FrontMatterUpdate;
use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, PolicyAction, PolicyResource, Preview, ResourceAccess,
    Sensitivity, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Fence;
use crate::edit::TextRelaxation;
use crate::journal::cost;
use crate::mount::LocatedPath;
use crate::mount::repository::RepositoryDetector;
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::patch::{self, FilePatch, HunkPlacement, PatchKind};
use crate::preview::{DiffPreview, FileContents, changed_error, check_still_planned, fingerprint};
use crate::read::digest::{Digest, check_match};
use crate::root::FileToReplace;
use crate::sys::errno::errno_error;
use crate::tools::patch_args::{Args, CodexPatchArgs, CrewagentPatchArgs, DiffPatchArgs, StandardPatchArgs};
use crate::tools::{check_size, read_bytes, read_text, short_change_id};
use crate::txn::stage::FileBody;
use crate::txn::write::{BatchTarget, DesiredContents, change_all};
use crate::txn::write::{WriteResult, replace};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let has_state = fence.mounts().iter().any(|mount| mount.run_state.is_some());
    let standard = match has_state {
        true => ToolBinding::standard::<StandardPatchArgs, StandardPatchResult>("apply_patch"),
        false => ToolBinding::standard::<DiffPatchArgs, StandardPatchResult>("apply_patch"),
    };
    let standard = standard.with_model_text(Outcome::lines);
    let crewagent = ToolBinding::crewagent::<CrewagentPatchArgs, CrewagentPatchResult>("fs.apply_patch");
    let codex = ToolBinding::text::<CodexPatchArgs, StandardPatchResult>(Dialect::Codex, "apply_patch", Outcome::lines);
    registry.register(ApplyPatch { fence: fence.clone() }, [standard, crewagent, codex])
}

struct ApplyPatch {
    fence: Fence,
}

enum ApplyPatchPlan {
    Update(Box<FrontMatterUpdatePlan>),
    Diff(DiffPatchPlan),
}

struct FrontMatterUpdatePlan {
    target: BatchTarget,
    update: FrontMatterUpdate,
    if_match: Option<Digest>,
    /// Digest of the previewed old contents.
    previewed: Option<Digest>,
}

struct DiffPatchPlan {
    targets: Vec<BatchTarget>,
    /// For each target.
    parts: Vec<PatchPart>,
    files: Vec<FilePatch>,
    if_match: Option<Digest>,
    /// Digests of the previewed old contents, file by file.
    previewed: Vec<Option<Digest>>,
}

/// The part that a target has in a file's patch.
#[derive(Clone, Copy, Debug)]
struct PatchPart {
    /// Index of the file in the patch.
    file: usize,
    role: PatchRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchRole {
    InPlace,
    /// Its contents go to the target that follows.
    MoveSource,
    MoveDestination,
}

struct Outcome {
    files: Vec<PatchedFile>,
    change: Option<String>,
}

/// Result in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
struct StandardPatchResult {
    /// Every file of the patch.
    files: Vec<PatchedFile>,
    /// The id of this change; null if every file had these contents already.
    change: Option<String>,
}

/// One file that was changed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PatchedFile {
    path: String,
    action: PatchAction,
    /// Its size in bytes now.
    size: u64,
    /// SHA-256 of its contents before; null if it did not exist.
    sha256_before: Option<String>,
    /// SHA-256 of its contents now; null if it was deleted.
    sha256: Option<String>,
    /// Where each hunk was applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hunks: Vec<HunkReport>,
}

/// Where a hunk went.
#[derive(Debug, Serialize, JsonSchema)]
struct HunkReport {
    /// Number of the hunk, from 1.
    hunk: usize,
    /// The line where it starts now.
    line: usize,
    /// Offset in lines from the position in its header, if it has one; negative is further up.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<i64>,
    added: usize,
    removed: usize,
    /// How its lines were matched, where they are not in the file exactly as they are in the patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    relaxed: Option<&'static str>,
}

impl From<HunkPlacement> for HunkReport {
    fn from(HunkPlacement { hunk, line, offset, added, removed, relaxation }: HunkPlacement) -> Self {
        Self { hunk, line, offset, added, removed, relaxed: relaxation.map(TextRelaxation::describe) }
    }
}

impl Outcome {
    /// The reply to a model: a line for each file.
    fn lines(&self) -> String {
        let line = |file: &PatchedFile| {
            let mark = match file.action {
                PatchAction::Modified => 'M',
                PatchAction::Created => 'A',
                PatchAction::Deleted => 'D',
            };
            let bent = file.hunks.iter().filter_map(|hunk| Some((hunk.hunk, hunk.relaxed?)));
            let bent: Vec<String> = bent.map(|(hunk, how)| format!("hunk {hunk} {how}")).collect();
            let bent = if bent.is_empty() { String::new() } else { format!(" [{}]", bent.join("; ")) };
            format!("{mark} {}{bent}", file.path)
        };
        match self.change.as_deref().map(short_change_id) {
            Some(change) => format!("{} ({change})", self.files.iter().map(line).collect::<Vec<_>>().join("\n")),
            None => "the files have these contents already; nothing was changed".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum PatchAction {
    Modified,
    Created,
    Deleted,
}

impl From<Outcome> for StandardPatchResult {
    fn from(Outcome { files, change }: Outcome) -> Self {
        Self { files, change }
    }
}

/// Result in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CrewagentPatchResult {
    path: String,
    sha256_before: Option<String>,
    sha256_after: Option<String>,
}

impl From<Outcome> for CrewagentPatchResult {
    fn from(outcome: Outcome) -> Self {
        let file = outcome.files.into_iter().next();
        let (path, sha256_before, sha256_after) =
            file.map(|file| (file.path, file.sha256_before, file.sha256)).unwrap_or_default();
        Self { path, sha256_before, sha256_after }
    }
}

/// Files that git would act on only together, each of them looked at once more.
fn repository_accesses(targets: &[BatchTarget]) -> Vec<ResourceAccess> {
    let Some(BatchTarget { target: first, .. }) = targets.first() else { return Vec::new() };
    let paths: Vec<Vec<u8>> = targets.iter().map(|target| target.target.path()).collect();
    let mut repositories = RepositoryDetector::with_paths(&first.mount, paths.iter().map(Vec::as_slice));
    let unseen = targets.iter().zip(&paths).filter(|(target, _)| !target.target.resource().sensitivity.protected);
    let found = unseen.filter(|(_, path)| repositories.contains(path));
    let access = |place: PolicyResource| ResourceAccess {
        action: PolicyAction::Create,
        resource: PolicyResource { sensitivity: Sensitivity { protected: true, ..place.sensitivity }, ..place },
    };
    found.map(|(target, _)| access(target.target.resource())).collect()
}

impl Tool for ApplyPatch {
    type Args = Args;
    type Prepared = ApplyPatchPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] =
        &[PolicyAction::Read, PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Delete, PolicyAction::Lose];

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<ApplyPatchPlan>, ToolError> {
        match args {
            Args::Update { path, update, if_match } => {
                let located = self.fence.locate_arg(&path, cx)?;
                check_is_state(&self.fence, &located)?;
                let (target, seen) = WriteTarget::find_existing(&located, WriteTargetKind::File)?;
                let accesses = [PolicyAction::Read, PolicyAction::Overwrite]
                    .map(|action| ResourceAccess { action, resource: target.resource() });
                let accesses = accesses.into_iter().chain(target.loss(&seen, cx)?).collect();
                let target = BatchTarget { target, planned_stat: Some(seen) };
                Ok(ToolPlan {
                    accesses,
                    prepared: ApplyPatchPlan::Update(Box::new(FrontMatterUpdatePlan {
                        target,
                        update,
                        if_match,
                        previewed: None,
                    })),
                })
            }
            Args::Diff { path, files, if_match } => {
                let (mut accesses, mut targets, mut places) = (Vec::new(), Vec::new(), BTreeSet::new());
                let mut displaced = 0u64;
                let mut parts = Vec::new();
                for (named, change, part) in self.target_names(&files, path.as_deref())? {
                    let (target, actions) = locate_target(&self.fence.locate(&named, cx)?, change)?;
                    parts.push(part);
                    if !places.insert(target.target.path()) {
                        let message = format!("the patch has the same file twice: `{}`", target.target.shown);
                        return Err(ToolError::new(ErrorKind::InvalidArgs, message));
                    }
                    accesses.extend(
                        actions
                            .iter()
                            .map(|action| ResourceAccess { action: *action, resource: target.target.resource() }),
                    );
                    if let Some(seen) = &target.planned_stat {
                        accesses.extend(target.target.loss_after(displaced, seen, cx)?);
                        displaced = displaced.saturating_add(cost(seen.size, 0));
                    }
                    targets.push(target);
                }
                check_one_mount(&targets)?;
                accesses.extend(repository_accesses(&targets));
                Ok(ToolPlan {
                    accesses,
                    prepared: ApplyPatchPlan::Diff(DiffPatchPlan {
                        targets,
                        parts,
                        files,
                        if_match,
                        previewed: Vec::new(),
                    }),
                })
            }
        }
    }

    fn preview(&self, work: &mut ApplyPatchPlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            ApplyPatchPlan::Update(updating) => updating.preview(cx),
            ApplyPatchPlan::Diff(patching) => patching.preview(cx),
        }
    }

    fn run(&self, work: ApplyPatchPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let files = match work {
            ApplyPatchPlan::Update(updating) => vec![updating.run(ticket)?],
            ApplyPatchPlan::Diff(patching) => patching.run(ticket)?,
        };
        let changed = files.iter().any(|file| file.sha256.is_none() || file.sha256 != file.sha256_before);
        Ok(Outcome { files, change: changed.then(|| ticket.change_id().to_owned()) })
    }
}

/// The state of a run is what has a front matter that others go by.
fn check_is_state(fence: &Fence, located: &LocatedPath) -> Result<(), ToolError> {
    if located.mount.run_state.is_some() {
        return Ok(());
    }
    let state =
        fence.run_state().map_or_else(|| "the state of a run".to_owned(), |state| format!("`@{}`", state.alias));
    let message = format!("`{}` is not in {state}; front matter can only be updated there", located.shown);
    Err(ToolError::new(ErrorKind::InvalidPath, message))
}

impl ApplyPatch {
    /// The path of every target, what happens to it, and its part in the patch.
    fn target_names(
        &self,
        files: &[FilePatch],
        given: Option<&str>,
    ) -> Result<Vec<(String, PatchKind, PatchPart)>, ToolError> {
        let mut names = Vec::new();
        for (file, patch) in files.iter().enumerate() {
            let named = self.path_of(patch, given, files.len())?;
            match &patch.moved_to {
                None => names.push((named, patch.change, PatchPart { file, role: PatchRole::InPlace })),
                Some(to) => {
                    names.push((named, PatchKind::Delete, PatchPart { file, role: PatchRole::MoveSource }));
                    let part = PatchPart { file, role: PatchRole::MoveDestination };
                    names.push((to.clone(), PatchKind::Create, part));
                }
            }
        }
        Ok(names)
    }

    /// The path of one file of a diff: its own, which must agree with one that the caller gave.
    fn path_of(&self, file: &FilePatch, given: Option<&str>, count: usize) -> Result<String, ToolError> {
        match (given, &file.path) {
            (Some(_), _) if count > 1 => Err(ToolError::invalid("path", "requires a patch of one file")),
            (Some(given), Some(named)) if given != named && !self.fence.is_same_place(given, named) => {
                Err(ToolError::invalid("path", "is not the file that the patch names").hint("omit one of them"))
            }
            (Some(given), _) => Ok(given.to_owned()),
            (None, Some(named)) => Ok(named.clone()),
            (None, None) => Err(ToolError::invalid("path", "is missing, and the patch names no file")),
        }
    }
}

/// Finds the write target of one file of a diff, and the actions on it.
fn locate_target(
    located: &LocatedPath,
    change: PatchKind,
) -> Result<(BatchTarget, &'static [PolicyAction]), ToolError> {
    match change {
        PatchKind::Create => {
            let target = WriteTarget::find(located, WriteTargetKind::File, ParentDirPolicy::CreateMissing)?;
            if target.found.is_some() {
                return Err(ToolError::new(ErrorKind::AlreadyExists, format!("`{}` already exists", target.shown))
                    .hint("the patch creates it"));
            }
            Ok((BatchTarget { target, planned_stat: None }, &[PolicyAction::Create]))
        }
        PatchKind::Modify | PatchKind::Delete => {
            // Without its target a link would be left that leads nowhere.
            let meant = if change == PatchKind::Delete { WriteTargetKind::FileNoFollow } else { WriteTargetKind::File };
            let (target, seen) = WriteTarget::find_existing(located, meant)?;
            let actions: &[PolicyAction] = match change {
                PatchKind::Delete => &[PolicyAction::Read, PolicyAction::Delete],
                _ => &[PolicyAction::Read, PolicyAction::Overwrite],
            };
            Ok((BatchTarget { target, planned_stat: Some(seen) }, actions))
        }
    }
}

fn check_one_mount(targets: &[BatchTarget]) -> Result<(), ToolError> {
    let mut ids = targets.iter().map(|target| target.target.mount.id);
    let first = ids.next();
    if ids.all(|id| Some(id) == first) {
        return Ok(());
    }
    let message = "all files of a patch must be on one mount";
    Err(ToolError::new(ErrorKind::InvalidArgs, message).hint("make one patch per mount"))
}

impl FrontMatterUpdatePlan {
    fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let BatchTarget { target, planned_stat: seen } = &self.target;
        let old = seen.map(|seen| FileContents::read_target(target, &seen, cx)).transpose()?;
        let mut diffs = DiffPreview::new();
        let mut failure = None;
        match old.as_ref().and_then(FileContents::text).map(|text| ringfence_front_matter::apply(text, &self.update)) {
            Some(Ok(updated)) => {
                diffs.add(&target.shown, old.as_ref(), Some(&FileContents::from_bytes(updated.as_bytes())))
            }
            Some(Err(error)) => {
                let error = error.to_tool_error(&target.shown);
                diffs.add_note(&format!("this will be refused: {error}"));
                failure = Some(error);
            }
            None => diffs.add_note("this will be refused: it is not readable text"),
        }
        let known = old.as_ref().filter(|old| old.digest.is_some());
        if let Some(Err(error)) = known.map(|old| check_match(&target.shown, self.if_match, old.digest)) {
            diffs.add_note(&format!("this will be refused: {error}"));
            failure = Some(error);
        }
        self.previewed = old.and_then(|old| old.digest);
        let failure = failure.or_else(|| target.replacement_failure());
        let bound = fingerprint((seen, self.previewed));
        let preview =
            Preview::new(&format!("update the front matter of `{}`", target.shown), bound).with_failure(failure);
        Ok(preview.with_body(diffs.into_body()).with_secret(target.resource().effective_sensitivity().secret))
    }

    fn run(&self, ticket: &Ticket<'_>) -> Result<PatchedFile, ToolError> {
        let (target, cx) = (&self.target.target, ticket.context());
        check_still_planned(target, self.target.planned_stat.as_ref(), ticket)?;
        let mut before = None;
        let written = replace(target, self.target.planned_stat, ticket, |old| {
            let old = old.ok_or_else(|| errno_error(Errno::NOENT, &target.shown))?;
            let text = read_text(target, old, cx)?;
            let digest = Digest::of(text.as_bytes());
            check_match(&target.shown, self.if_match, Some(digest))?;
            check_previewed_digest(target, self.previewed, digest)?;
            before = Some(digest);
            let updated = ringfence_front_matter::apply(&text, &self.update)
                .map_err(|error| error.to_tool_error(&target.shown))?;
            check_size("the updated file", "max_edit_bytes", updated.len() as u64, cx.limits.edit_bytes)?;
            Ok(FileBody::Bytes(updated.into_bytes()))
        })?;
        target.carry_sensitivity(target.sensitivity);
        Ok(PatchedFile::new(target, before, Some(&written), Vec::new()))
    }
}

impl DiffPatchPlan {
    /// The patch as it would be applied: each hunk at its line.
    fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let (mut diffs, mut failure) = (DiffPreview::new(), None);
        self.previewed.clear();
        let mut moved: Option<Vec<u8>> = None;
        for (BatchTarget { target, planned_stat: seen }, part) in self.targets.iter().zip(&self.parts) {
            let file = &self.files[part.file];
            if part.role == PatchRole::MoveDestination {
                if let Some(bytes) = moved.take() {
                    diffs.add(&target.shown, None, Some(&FileContents::from_bytes(&bytes)));
                }
                self.previewed.push(None);
                continue;
            }
            let old = seen.map(|seen| FileContents::read_target(target, &seen, cx)).transpose()?;
            cx.check()?;
            // Nothing of it is shown, or has to be text.
            if let Some(bytes) = old.as_ref().and_then(FileContents::bytes).filter(|_| file.takes_any_contents()) {
                diffs.add(&target.shown, old.as_ref(), None);
                moved = (part.role == PatchRole::MoveSource).then(|| bytes.to_vec());
                failure = failure.or_else(|| target.replacement_failure());
                self.previewed.push(old.and_then(|old| old.digest));
                continue;
            }
            let text = old.as_ref().map_or(Some(""), FileContents::text);
            match text.map(|text| patch::apply(text, file, &target.shown)) {
                Some(Ok(_)) if file.change == PatchKind::Delete => diffs.add(&target.shown, old.as_ref(), None),
                Some(Ok(applied)) if part.role == PatchRole::MoveSource => {
                    diffs.add(&target.shown, old.as_ref(), None);
                    moved = Some(applied.text.into_bytes());
                }
                Some(Ok(applied)) => {
                    diffs.add(&target.shown, old.as_ref(), Some(&FileContents::from_bytes(applied.text.as_bytes())));
                }
                Some(Err(error)) => {
                    diffs.add_note(&format!("this will be refused: {error}"));
                    failure.get_or_insert(error);
                }
                None => diffs.add_note(&format!("this will be refused: `{}` is not readable text", target.shown)),
            }
            failure = failure.or_else(|| target.replacement_failure());
            self.previewed.push(old.and_then(|old| old.digest));
        }
        let names: Vec<String> = self.targets.iter().map(|target| format!("`{}`", target.target.shown)).collect();
        let stamps: Vec<_> = self.targets.iter().map(|target| target.planned_stat).collect();
        let bound = fingerprint((stamps, &self.previewed));
        let preview = Preview::new(&format!("patch {}", names.join(", ")), bound).with_failure(failure);
        let secret = self.targets.iter().any(|target| target.target.resource().effective_sensitivity().secret);
        Ok(preview.with_body(diffs.into_body()).with_secret(secret))
    }

    fn run(&self, ticket: &Ticket<'_>) -> Result<Vec<PatchedFile>, ToolError> {
        let Self { targets, parts, files, if_match, previewed: shown } = self;
        for BatchTarget { target, planned_stat: seen } in targets {
            check_still_planned(target, seen.as_ref(), ticket)?;
        }
        let shown = shown.iter().copied().chain(std::iter::repeat(None));
        let patched = targets.iter().zip(parts).zip(shown);
        let mut patches: Vec<FilePatcher<'_>> = patched
            .map(|((target, part), previewed)| FilePatcher {
                target: &target.target,
                file: &files[part.file],
                role: part.role,
                previewed,
                before: None,
                hunks: Vec::new(),
            })
            .collect();
        // One file alone can be replaced on any file system, and needs no note for the others.
        let written = match &mut patches[..] {
            [only] if only.file.change != PatchKind::Delete && only.role == PatchRole::InPlace => {
                let make =
                    |old: Option<&FileToReplace>| only.contents(old, *if_match, ticket.context()).map(FileBody::Bytes);
                vec![Some(replace(&targets[0].target, targets[0].planned_stat, ticket, make)?)]
            }
            patches => {
                let mut left = ticket.context().limits.appended_file_bytes;
                let mut moved = None;
                change_all(targets, ticket, |index, old| {
                    let patch = &mut patches[index];
                    let goal = match patch.role {
                        PatchRole::InPlace => patch.desired_contents(old, *if_match, ticket.context())?,
                        PatchRole::MoveSource => {
                            let bytes = patch.contents(old, *if_match, ticket.context())?;
                            moved = old.map(|old| FileBody::MovedBytes { bytes, mode: old.stat.mode });
                            DesiredContents::Absent
                        }
                        PatchRole::MoveDestination => {
                            let contents = moved.take().filter(|_| old.is_none());
                            let contents = contents.ok_or_else(|| changed_error(&patch.target.shown))?;
                            DesiredContents::Contents(contents)
                        }
                    };
                    left = left.checked_sub(goal.size()).ok_or_else(total_size_error)?;
                    Ok(goal)
                })?
            }
        };
        // A secret is one under its new name too.
        let mut carried = Sensitivity::default();
        for (BatchTarget { target, .. }, part) in targets.iter().zip(parts) {
            match part.role {
                PatchRole::InPlace => target.carry_sensitivity(target.sensitivity),
                PatchRole::MoveSource => carried = target.resource().effective_sensitivity(),
                PatchRole::MoveDestination => {
                    let secret = Sensitivity { protected: false, ..std::mem::take(&mut carried) };
                    target.carry_sensitivity(target.sensitivity.union(secret));
                }
            }
        }
        let done = patches.into_iter().zip(&written);
        Ok(done
            .map(|(patch, written)| PatchedFile::new(patch.target, patch.before, written.as_ref(), patch.hunks))
            .collect())
    }
}

/// Fails unless the current contents are those that were previewed.
fn check_previewed_digest(target: &WriteTarget, shown: Option<Digest>, now: Digest) -> Result<(), ToolError> {
    if shown.is_none_or(|shown| shown == now) { Ok(()) } else { Err(changed_error(&target.shown)) }
}

/// The error for new contents that exceed the limit in total: all are in memory until the last one is known.
fn total_size_error() -> ToolError {
    let message = "the patched files together exceed max_appended_file_bytes";
    ToolError::new(ErrorKind::WriteLimit, message).hint("patch fewer files at once")
}

/// One file of a diff on its way.
struct FilePatcher<'a> {
    target: &'a WriteTarget,
    file: &'a FilePatch,
    role: PatchRole,
    previewed: Option<Digest>,
    before: Option<Digest>,
    hunks: Vec<HunkPlacement>,
}

impl FilePatcher<'_> {
    fn desired_contents(
        &mut self,
        old: Option<&FileToReplace>,
        if_match: Option<Digest>,
        cx: &CallContext<'_>,
    ) -> Result<DesiredContents, ToolError> {
        let contents = self.contents(old, if_match, cx)?;
        Ok(if self.file.change == PatchKind::Delete {
            DesiredContents::Absent
        } else {
            DesiredContents::Contents(FileBody::Bytes(contents))
        })
    }

    fn contents(
        &mut self,
        old: Option<&FileToReplace>,
        if_match: Option<Digest>,
        cx: &CallContext<'_>,
    ) -> Result<Vec<u8>, ToolError> {
        if let (Some(old), true) = (old, self.file.takes_any_contents()) {
            let bytes = read_bytes(self.target, old, cx)?;
            self.check_before(Digest::of(&bytes), if_match)?;
            return Ok(bytes);
        }
        let text = match (old, self.file.change) {
            (Some(old), _) => read_text(self.target, old, cx)?,
            (None, PatchKind::Create) => String::new(),
            (None, PatchKind::Modify | PatchKind::Delete) => return Err(errno_error(Errno::NOENT, &self.target.shown)),
        };
        match old {
            Some(_) => self.check_before(Digest::of(text.as_bytes()), if_match)?,
            None => check_match(&self.target.shown, if_match, None)?,
        }
        cx.check()?;
        let applied = patch::apply(&text, self.file, &self.target.shown)?;
        check_size("the patched file", "max_edit_bytes", applied.text.len() as u64, cx.limits.edit_bytes)?;
        self.hunks = applied.hunks;
        Ok(applied.text.into_bytes())
    }
}

impl FilePatcher<'_> {
    /// The old contents are those that the caller and the approver mean.
    fn check_before(&mut self, before: Digest, if_match: Option<Digest>) -> Result<(), ToolError> {
        self.before = Some(before);
        check_match(&self.target.shown, if_match, self.before)?;
        check_previewed_digest(self.target, self.previewed, before)
    }
}

impl PatchedFile {
    fn new(
        target: &WriteTarget,
        before: Option<Digest>,
        written: Option<&WriteResult>,
        hunks: Vec<HunkPlacement>,
    ) -> Self {
        Self {
            path: target.shown.clone(),
            action: match (before, written) {
                (_, None) => PatchAction::Deleted,
                (None, Some(_)) => PatchAction::Created,
                (Some(_), Some(_)) => PatchAction::Modified,
            },
            size: written.map_or(0, |written| written.size),
            sha256_before: before.map(Digest::to_hex),
            sha256: written.and_then(|written| written.digest).map(Digest::to_hex),
            hunks: hunks.into_iter().map(HunkReport::from).collect(),
        }
    }
}
