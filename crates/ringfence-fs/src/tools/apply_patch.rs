//! `apply_patch`: a unified diff over one or several files, or new values in the front matter of a run's state.
//!
//! A diff is applied to all of its files or to none. A hunk goes where it says or, if its lines are elsewhere and only
//! there, to that place, and the reply says how far that is. Nothing is guessed.

use std::collections::BTreeSet;

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Place, Plan, Preview, Registry, Sensitivity, Ticket, Tool, ToolError, Touch,
    Verb,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use super::patch_args::{Args, CrewagentArgs, DiffArgs, StandardArgs};
use super::{check_size, read_text};
use crate::Fence;
use crate::batch::{Goal, Target, change_all};
use crate::diff::{self, Change, FilePatch, Placed};
use crate::digest::{Digest, check_match};
use crate::fault::{fault, unreadable};
use crate::front_matter::{self, Update};
use crate::journal::cost;
use crate::mount::Spot;
use crate::preview::{Contents, Diffs, changed, check_still_there, fingerprint};
use crate::replace::{Body, Old, Written, replace};
use crate::repository::Repositories;
use crate::slot::{Meant, Parents, STATE_ALIAS, Slot};

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    let has_state = fence.mounts().iter().any(|mount| &*mount.alias == STATE_ALIAS);
    let standard = match has_state {
        true => Face::standard::<StandardArgs, Value>("apply_patch"),
        false => Face::standard::<DiffArgs, Value>("apply_patch"),
    };
    let crewagent = Face::crewagent::<CrewagentArgs, Fields>("fs.apply_patch");
    registry.register(ApplyPatch { fence: fence.clone() }, [standard, crewagent])
}

struct ApplyPatch {
    fence: Fence,
}

enum Work {
    Update(Box<Updating>),
    Diff(Patching),
}

struct Updating {
    target: Target,
    update: Update,
    if_match: Option<Digest>,
    /// What a person was shown of the old contents.
    shown: Option<Digest>,
}

struct Patching {
    targets: Vec<Target>,
    files: Vec<FilePatch>,
    if_match: Option<Digest>,
    /// What a person was shown of the old contents, file by file.
    shown: Vec<Option<Digest>>,
}

struct Outcome {
    files: Vec<Patched>,
    change: Option<String>,
}

/// What a patch returns in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
struct Value {
    /// Every file of the patch.
    files: Vec<Patched>,
    /// The id of this change; null if every file had these contents already.
    change: Option<String>,
}

/// One file that was changed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Patched {
    path: String,
    action: Action,
    /// Its size in bytes now.
    size: u64,
    /// SHA-256 of its contents before; null if it did not exist.
    sha256_before: Option<String>,
    /// SHA-256 of its contents now; null if it was deleted.
    sha256: Option<String>,
    /// Where each hunk went.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hunks: Vec<HunkPlace>,
}

/// Where a hunk went.
#[derive(Debug, Serialize, JsonSchema)]
struct HunkPlace {
    /// Which one, from 1.
    hunk: usize,
    /// The line that it begins at now.
    line: usize,
    /// How many lines further down than it said, if its header said where; less than zero is further up.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<i64>,
    added: usize,
    removed: usize,
}

impl From<Placed> for HunkPlace {
    fn from(Placed { hunk, line, offset, added, removed }: Placed) -> Self {
        Self { hunk, line, offset, added, removed }
    }
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
    Modified,
    Created,
    Deleted,
}

impl From<Outcome> for Value {
    fn from(Outcome { files, change }: Outcome) -> Self {
        Self { files, change }
    }
}

/// What a patch returns in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Fields {
    path: String,
    sha256_before: Option<String>,
    sha256_after: Option<String>,
}

impl From<Outcome> for Fields {
    fn from(outcome: Outcome) -> Self {
        let file = outcome.files.into_iter().next();
        let (path, sha256_before, sha256_after) =
            file.map(|file| (file.path, file.sha256_before, file.sha256)).unwrap_or_default();
        Self { path, sha256_before, sha256_after }
    }
}

/// Files that git would act on only together, each of them looked at once more.
fn pieces(targets: &[Target]) -> Vec<Touch> {
    let Some(Target { slot: first, .. }) = targets.first() else { return Vec::new() };
    let paths: Vec<Vec<u8>> = targets.iter().map(|target| target.slot.path()).collect();
    let mut repositories = Repositories::with(&first.mount, paths.iter().map(Vec::as_slice));
    let unseen = targets.iter().zip(&paths).filter(|(target, _)| !target.slot.place().sensitivity.protected);
    let found = unseen.filter(|(_, path)| repositories.have(path));
    let touch = |place: Place| Touch {
        verb: Verb::Create,
        place: Place { sensitivity: Sensitivity { protected: true, ..place.sensitivity }, ..place },
    };
    found.map(|(target, _)| touch(target.slot.place())).collect()
}

impl Tool for ApplyPatch {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::Read, Verb::Create, Verb::Overwrite, Verb::Delete, Verb::Lose];

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        match args {
            Args::Update { path, update, if_match } => {
                let spot = self.fence.locate_given(&path, cx)?;
                check_is_state(&spot)?;
                let (slot, seen) = Slot::find_existing(&spot, Meant::File)?;
                let touches = [Verb::Read, Verb::Overwrite].map(|verb| Touch { verb, place: slot.place() });
                let touches = touches.into_iter().chain(slot.loss(&seen, cx)?).collect();
                let target = Target { slot, seen: Some(seen) };
                Ok(Plan { touches, work: Work::Update(Box::new(Updating { target, update, if_match, shown: None })) })
            }
            Args::Diff { path, files, if_match } => {
                let (mut touches, mut targets, mut places) = (Vec::new(), Vec::new(), BTreeSet::new());
                let mut displaced = 0u64;
                for file in &files {
                    let named = self.path_of(file, path.as_deref(), files.len())?;
                    let (target, verbs) = aim(&self.fence.locate(&named, cx)?, file.change)?;
                    if !places.insert(target.slot.path()) {
                        let message = format!("two files of the patch are the same: `{}`", target.slot.shown);
                        return Err(ToolError::new(ErrorKind::InvalidArgs, message));
                    }
                    touches.extend(verbs.iter().map(|verb| Touch { verb: *verb, place: target.slot.place() }));
                    if let Some(seen) = &target.seen {
                        touches.extend(target.slot.loss_after(displaced, seen, cx)?);
                        displaced = displaced.saturating_add(cost(seen.size, 0));
                    }
                    targets.push(target);
                }
                check_one_mount(&targets)?;
                touches.extend(pieces(&targets));
                Ok(Plan { touches, work: Work::Diff(Patching { targets, files, if_match, shown: Vec::new() }) })
            }
        }
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        match work {
            Work::Update(updating) => updating.preview(cx),
            Work::Diff(patching) => patching.preview(cx),
        }
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let files = match work {
            Work::Update(updating) => vec![updating.run(ticket)?],
            Work::Diff(patching) => patching.run(ticket)?,
        };
        let changed = files.iter().any(|file| file.sha256.is_none() || file.sha256 != file.sha256_before);
        Ok(Outcome { files, change: changed.then(|| ticket.change().to_owned()) })
    }
}

/// The state of a run is what has a front matter that others go by.
fn check_is_state(spot: &Spot) -> Result<(), ToolError> {
    if &*spot.mount.alias == STATE_ALIAS {
        return Ok(());
    }
    let message = format!("`{}` is not in `@{STATE_ALIAS}`, and only there a front matter is updated", spot.shown);
    Err(ToolError::new(ErrorKind::InvalidPath, message))
}

impl ApplyPatch {
    /// The path of one file of a diff: its own, which must agree with one that the caller gave.
    fn path_of(&self, file: &FilePatch, given: Option<&str>, count: usize) -> Result<String, ToolError> {
        match (given, &file.path) {
            (Some(_), _) if count > 1 => Err(ToolError::invalid("path", "is for a patch of one file")),
            (Some(given), Some(named)) if given != named && !self.fence.is_same_place(given, named) => {
                Err(ToolError::invalid("path", "is not the file that the patch names").hint("leave one of them out"))
            }
            (Some(given), _) => Ok(given.to_owned()),
            (None, Some(named)) => Ok(named.clone()),
            (None, None) => Err(ToolError::invalid("path", "is missing, and the patch names no file either")),
        }
    }
}

/// Finds the place of one file of a diff, and what is done there.
fn aim(spot: &Spot, change: Change) -> Result<(Target, &'static [Verb]), ToolError> {
    match change {
        Change::Create => {
            let slot = Slot::find(spot, Meant::File, Parents::MayBeMade)?;
            if slot.look()?.is_some() {
                return Err(ToolError::new(ErrorKind::AlreadyExists, format!("`{}` exists already", slot.shown))
                    .hint("the patch says that it is new"));
            }
            Ok((Target { slot, seen: None }, &[Verb::Create]))
        }
        Change::Modify | Change::Delete => {
            // Without its target a link would be left that leads nowhere.
            let meant = if change == Change::Delete { Meant::FileItself } else { Meant::File };
            let (slot, seen) = Slot::find_existing(spot, meant)?;
            let verbs: &[Verb] = match change {
                Change::Delete => &[Verb::Read, Verb::Delete],
                _ => &[Verb::Read, Verb::Overwrite],
            };
            Ok((Target { slot, seen: Some(seen) }, verbs))
        }
    }
}

fn check_one_mount(targets: &[Target]) -> Result<(), ToolError> {
    let mut ids = targets.iter().map(|target| target.slot.mount.id);
    let first = ids.next();
    if ids.all(|id| Some(id) == first) {
        return Ok(());
    }
    let message = "the files of a patch must be on one mount, so that all or none can be changed";
    Err(ToolError::new(ErrorKind::InvalidArgs, message).hint("make one patch for each"))
}

impl Updating {
    fn preview(&mut self, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Target { slot, seen } = &self.target;
        let old = seen.map(|seen| Contents::at(slot, &seen, cx)).transpose()?;
        let mut diffs = Diffs::new();
        let mut failure = None;
        match old.as_ref().and_then(Contents::text).map(|text| front_matter::apply(text, &self.update)) {
            Some(Ok(updated)) => diffs.add(&slot.shown, old.as_ref(), Some(&Contents::given(updated.as_bytes()))),
            Some(Err(error)) => {
                let error = unreadable(&error, &slot.shown);
                diffs.say(&format!("this will be refused: {error}"));
                failure = Some(error);
            }
            None => diffs.say("this will be refused: it is not text that can be read"),
        }
        let known = old.as_ref().filter(|old| old.digest.is_some());
        if let Some(Err(error)) = known.map(|old| check_match(&slot.shown, self.if_match, old.digest)) {
            diffs.say(&format!("this will be refused: {error}"));
            failure = Some(error);
        }
        self.shown = old.and_then(|old| old.digest);
        let bound = fingerprint((seen, self.shown));
        let preview = Preview::new(&format!("update the front matter of `{}`", slot.shown), bound).fails_with(failure);
        Ok(preview.with(diffs.into_body()).secret_if(slot.place().sensitive().secret))
    }

    fn run(&self, ticket: &Ticket<'_>) -> Result<Patched, ToolError> {
        let (slot, cx) = (&self.target.slot, ticket.context());
        check_still_there(slot, self.target.seen.as_ref(), ticket)?;
        let mut before = None;
        let written = replace(slot, self.target.seen, ticket, |old| {
            let old = old.ok_or_else(|| fault(Errno::NOENT, &slot.shown))?;
            let text = read_text(slot, old, cx)?;
            let digest = Digest::of(text.as_bytes());
            check_match(&slot.shown, self.if_match, Some(digest))?;
            check_same(slot, self.shown, digest)?;
            before = Some(digest);
            let updated = front_matter::apply(&text, &self.update).map_err(|error| unreadable(&error, &slot.shown))?;
            check_size("the updated file", "max_edit_bytes", updated.len() as u64, cx.limits.edit_bytes)?;
            Ok(Body::Bytes(updated.into_bytes()))
        })?;
        slot.keep_known(slot.sensitivity);
        Ok(Patched::new(slot, before, Some(&written), Vec::new()))
    }
}

impl Patching {
    /// The patch as it would be applied: each hunk at the place where it goes.
    fn preview(&mut self, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let (mut diffs, mut failure) = (Diffs::new(), None);
        self.shown.clear();
        for (Target { slot, seen }, file) in self.targets.iter().zip(&self.files) {
            let old = seen.map(|seen| Contents::at(slot, &seen, cx)).transpose()?;
            cx.check()?;
            let text = old.as_ref().map_or(Some(""), Contents::text);
            match text.map(|text| diff::apply(text, file, &slot.shown)) {
                Some(Ok(_)) if file.change == Change::Delete => diffs.add(&slot.shown, old.as_ref(), None),
                Some(Ok(applied)) => {
                    diffs.add(&slot.shown, old.as_ref(), Some(&Contents::given(applied.text.as_bytes())));
                }
                Some(Err(error)) => {
                    diffs.say(&format!("this will be refused: {error}"));
                    failure.get_or_insert(error);
                }
                None => diffs.say(&format!("this will be refused: `{}` is not text that can be read", slot.shown)),
            }
            self.shown.push(old.and_then(|old| old.digest));
        }
        let names: Vec<String> = self.targets.iter().map(|target| format!("`{}`", target.slot.shown)).collect();
        let stamps: Vec<_> = self.targets.iter().map(|target| target.seen).collect();
        let bound = fingerprint((stamps, &self.shown));
        let preview = Preview::new(&format!("patch {}", names.join(", ")), bound).fails_with(failure);
        let secret = self.targets.iter().any(|target| target.slot.place().sensitive().secret);
        Ok(preview.with(diffs.into_body()).secret_if(secret))
    }

    fn run(&self, ticket: &Ticket<'_>) -> Result<Vec<Patched>, ToolError> {
        let Self { targets, files, if_match, shown } = self;
        for Target { slot, seen } in targets {
            check_still_there(slot, seen.as_ref(), ticket)?;
        }
        let shown = shown.iter().copied().chain(std::iter::repeat(None));
        let mut patches: Vec<Patch<'_>> = targets.iter().zip(files).zip(shown).map(Patch::new).collect();
        // One file alone can be replaced on any file system, and needs no note for the others.
        let written = match &mut patches[..] {
            [only] if only.file.change != Change::Delete => {
                let make = |old: Option<&Old>| only.contents(old, *if_match, ticket.context()).map(Body::Bytes);
                vec![Some(replace(&targets[0].slot, targets[0].seen, ticket, make)?)]
            }
            patches => {
                let mut left = ticket.context().limits.appended_file_bytes;
                change_all(targets, ticket, |index, old| {
                    let goal = patches[index].goal(old, *if_match, ticket.context())?;
                    left = left.checked_sub(goal.size()).ok_or_else(too_much_at_once)?;
                    Ok(goal)
                })?
            }
        };
        targets.iter().for_each(|Target { slot, .. }| slot.keep_known(slot.sensitivity));
        let done = patches.into_iter().zip(&written);
        Ok(done.map(|(patch, written)| Patched::new(patch.slot, patch.before, written.as_ref(), patch.hunks)).collect())
    }
}

/// What a person was shown is what is changed.
fn check_same(slot: &Slot, shown: Option<Digest>, now: Digest) -> Result<(), ToolError> {
    if shown.is_none_or(|shown| shown == now) { Ok(()) } else { Err(changed(&slot.shown)) }
}

/// What all files are to have is held until the last one is known.
fn too_much_at_once() -> ToolError {
    let message = "the patched files together exceed max_appended_file_bytes";
    ToolError::new(ErrorKind::WriteLimit, message).hint("patch fewer files at once")
}

/// One file of a diff on its way.
struct Patch<'a> {
    slot: &'a Slot,
    file: &'a FilePatch,
    shown: Option<Digest>,
    before: Option<Digest>,
    hunks: Vec<Placed>,
}

impl<'a> Patch<'a> {
    fn new(((target, file), shown): ((&'a Target, &'a FilePatch), Option<Digest>)) -> Self {
        Self { slot: &target.slot, file, shown, before: None, hunks: Vec::new() }
    }

    fn goal(&mut self, old: Option<&Old>, if_match: Option<Digest>, cx: &Context<'_>) -> Result<Goal, ToolError> {
        let contents = self.contents(old, if_match, cx)?;
        Ok(if self.file.change == Change::Delete { Goal::Nothing } else { Goal::Contents(Body::Bytes(contents)) })
    }

    fn contents(
        &mut self,
        old: Option<&Old>,
        if_match: Option<Digest>,
        cx: &Context<'_>,
    ) -> Result<Vec<u8>, ToolError> {
        let text = match (old, self.file.change) {
            (Some(old), _) => read_text(self.slot, old, cx)?,
            (None, Change::Create) => String::new(),
            (None, Change::Modify | Change::Delete) => return Err(fault(Errno::NOENT, &self.slot.shown)),
        };
        self.before = old.map(|_| Digest::of(text.as_bytes()));
        check_match(&self.slot.shown, if_match, self.before)?;
        if let Some(now) = self.before {
            check_same(self.slot, self.shown, now)?;
        }
        cx.check()?;
        let applied = diff::apply(&text, self.file, &self.slot.shown)?;
        check_size("the patched file", "max_edit_bytes", applied.text.len() as u64, cx.limits.edit_bytes)?;
        self.hunks = applied.hunks;
        Ok(applied.text.into_bytes())
    }
}

impl Patched {
    fn new(slot: &Slot, before: Option<Digest>, written: Option<&Written>, hunks: Vec<Placed>) -> Self {
        Self {
            path: slot.shown.clone(),
            action: match (before, written) {
                (_, None) => Action::Deleted,
                (None, Some(_)) => Action::Created,
                (Some(_), Some(_)) => Action::Modified,
            },
            size: written.map_or(0, |written| written.size),
            sha256_before: before.map(Digest::to_hex),
            sha256: written.and_then(|written| written.digest).map(Digest::to_hex),
            hunks: hunks.into_iter().map(HunkPlace::from).collect(),
        }
    }
}
