//! `delete_file`: a file, a link or a directory goes away.

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::manifest::{Class, Manifest, Whole, survey, touches_below};
use crate::Fence;
use crate::again::fsync;
use crate::digest::Digest;
use crate::fault::{fault, unsynced};
use crate::journal::{Effect, Look, State, Turn, cost};
use crate::locks::{Intent, Noted, Tree};
use crate::missing;
use crate::mount::Durability;
use crate::name::show;
use crate::preview::{Contents, check_shown_at, fingerprint};
use crate::recover::recover;
use crate::replace::temporary_name;
use crate::slot::{Meant, Slot, check_directory_writable, listing};
use crate::stamp::{Kind, Stamp};
use crate::trash::{purge, rename_away};

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(DeleteFile { fence: fence.clone() }, [Face::standard::<Args, Outcome>("delete_file")])
}

struct DeleteFile {
    fence: Fence,
}

/// Delete a file or a directory of the workspace. A link is removed, never what it leads to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// What to delete, by its path relative to the workspace.
    path: String,
    /// Delete a directory with everything in it.
    #[serde(default)]
    recursive: bool,
}

struct Work {
    slot: Slot,
    seen: Stamp,
    manifest: Option<Manifest>,
    /// What a person was shown of a file.
    shown: Option<Digest>,
}

/// What a delete returns.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    /// What was deleted; for a directory also what was in it, as far as it fits.
    deleted: Vec<String>,
    /// How many files, links and directories were deleted in all.
    count: u64,
    /// True when a part could not be removed and is kept aside, out of sight.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    leftover: bool,
    /// The id of this change.
    change: String,
}

impl Tool for DeleteFile {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::Delete, Verb::Lose];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let spot = self.fence.locate(&args.path, cx)?;
        let (slot, seen) = Slot::find_existing(&spot, Meant::Anything)?;
        if seen.kind == Kind::Directory {
            slot.check_nothing_guarded_inside()?;
        }
        let place = slot.place();
        let manifest = match seen.kind {
            Kind::Directory => {
                let directory = slot.mount.resolver.open_child(slot.base(), &slot.name);
                let directory = directory.map_err(|errno| missing::explain(&spot, errno))?;
                let whole = [Whole::new(Verb::Delete, &place, cx)];
                Some(survey(&slot.mount, directory, &slot.shown, |path| Class::of(&whole, path, cx), cx)?)
            }
            _ => None,
        };
        if let Some(Manifest { entries: 1.., .. }) = &manifest
            && !args.recursive
        {
            let message = format!("`{}` is a directory that is not empty", slot.shown);
            return Err(
                ToolError::new(ErrorKind::WrongType, message).hint("set recursive to delete it with everything in it")
            );
        }
        if let Some(Manifest { locked: Some(locked), .. }) = &manifest {
            // Begun, it could not be finished.
            let inner = if locked.is_empty() { slot.shown.clone() } else { format!("{}/{locked}", slot.shown) };
            return Err(fault(Errno::ACCESS, &inner));
        }
        let mut touches = vec![Touch { verb: Verb::Delete, place: place.clone() }];
        touches.extend(manifest.iter().flat_map(|manifest| touches_below(&place, &manifest.sensitive, Verb::Delete)));
        let (bytes, below) = manifest.as_ref().map_or((seen.size, 0), |manifest| (manifest.bytes, manifest.entries));
        touches.extend(slot.loss_of_all(cost(bytes, below), cx)?);
        Ok(Plan { touches, work: Work { slot, seen, manifest, shown: None } })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Work { slot, seen, manifest, shown } = work;
        let Some(manifest) = manifest else {
            if seen.kind != Kind::File {
                let text = format!("delete `{}`, which is {}", slot.shown, seen.kind.described());
                return Ok(Preview::new(&text, fingerprint(*seen)));
            }
            let text = format!("delete `{}` ({} bytes)", slot.shown, seen.size);
            let old = Contents::at(slot, seen, cx)?;
            *shown = old.digest;
            let preview = Preview::new(&text, fingerprint((*seen, *shown))).with(old.beginning());
            return Ok(preview.secret_if(slot.place().sensitive().secret));
        };
        let Manifest { entries, bytes, digest, .. } = manifest;
        let text = format!("delete the directory `{}` with {entries} entries ({bytes} bytes)", slot.shown);
        Ok(Preview::new(&text, fingerprint((*seen, digest))).with(manifest.to_body()))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { slot, seen, manifest, shown } = work;
        let cx = ticket.context();
        let parent = slot.base();
        let fail = |errno| fault(errno, &slot.shown);
        // What is in a directory goes as it was seen: nothing may change in there meanwhile.
        let tree = if manifest.is_some() { Tree::Alone } else { Tree::Shared };
        let _place = slot.hold_place(tree, cx)?;
        check_directory_writable(parent, &slot.shown)?;
        let (held, left) = slot.mount.locks.hold(seen.id, cx)?;
        recover(&slot.mount, &held, &left)?;
        check_same(&slot, &seen, manifest.as_ref(), ticket)?;
        check_shown_at(&slot, shown, &seen, cx)?;
        slot.judge_removal(ticket)?;
        // Once it has happened, nothing that can be had before may fail.
        let directory = match slot.mount.durability {
            Durability::Full => Some(listing(parent).map_err(fail)?),
            Durability::Ordered => None,
        };
        let state = State::at(&slot.mount, parent, &slot.name, Look::Whole, cx)?;
        let state = state.ok_or_else(|| gone(&slot))?;
        let away = match slot.mount.removal_image(&state, parent, Turn::default(), ticket)? {
            Some(image) => Away::Kept(image),
            None => Away::Temporary(temporary_name().map_err(fail)?),
        };
        let path = show(&slot.path());
        let (note, effect) = match &away {
            Away::Kept(image) => (
                Intent::OneStep { change: ticket.change().as_bytes().to_vec() },
                Effect::Removed { path, before: state, image: image.clone(), copied: false },
            ),
            Away::Temporary(name) => {
                let (parent, name, inodes) = (slot.parent_path(), name.clone(), vec![seen.id.inode]);
                let journal = Noted::new(ticket.change(), None);
                (Intent::Remove { parent, name, inodes, journal }, Effect::Lost { path })
            }
        };
        match &away {
            Away::Kept(_) => held.intend(&note)?,
            Away::Temporary(_) => held.intend_on_disk(&note)?,
        }
        let entered = slot.mount.enter(ticket, Vec::new(), vec![effect])?;
        ticket.commit()?;
        match &away {
            Away::Kept(image) => {
                let keep = slot.mount.keep().ok_or_else(|| fail(Errno::NOENT))?;
                let kept = (keep.fd(), image.as_bytes());
                rename_away((parent, &slot.name), kept, seen.id, &slot.shown)?;
            }
            Away::Temporary(name) => rename_away((parent, &slot.name), (parent, name), seen.id, &slot.shown)?,
        }
        entered.done();
        let synced = directory.map_or(Ok(()), fsync).map_err(|errno| unsynced(errno, &slot.shown));
        // It is gone for everybody; what cannot be taken apart now is tried again by the next who holds the lock.
        let leftover = match &away {
            Away::Kept(_) => false,
            Away::Temporary(name) => purge(&slot.mount, parent, name, cx).is_err(),
        };
        if !leftover {
            held.settle();
        }
        synced?;
        let below =
            manifest.iter().flat_map(|manifest| &manifest.listed).map(|entry| format!("{}/{}", slot.shown, entry.path));
        let deleted: Vec<String> = std::iter::once(slot.shown.clone()).chain(below).collect();
        let most = usize::try_from(cx.limits.delete_names).unwrap_or(usize::MAX);
        let count = 1 + manifest.as_ref().map_or(0, |manifest| manifest.entries);
        Ok(Outcome {
            deleted: deleted.into_iter().take(most).collect(),
            count,
            leftover,
            change: ticket.change().to_owned(),
        })
    }
}

/// Where it goes.
enum Away {
    /// To the journal's keep, under this name.
    Kept(String),
    /// Beside where it was, to be taken apart.
    Temporary(Vec<u8>),
}

fn gone(slot: &Slot) -> ToolError {
    let message = format!("`{}` went away since the call was planned; nothing was deleted", slot.shown);
    ToolError::new(ErrorKind::Conflict, message)
}

/// What a person approved is what goes; without a person, it must at least be the same thing.
fn check_same(slot: &Slot, seen: &Stamp, manifest: Option<&Manifest>, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let changed = || {
        let message = format!("`{}` changed since the call was planned; nothing was deleted", slot.shown);
        ToolError::new(ErrorKind::Conflict, message)
    };
    let now = slot.look()?.ok_or_else(changed)?;
    if now.id != seen.id || (ticket.approved() && now != *seen) {
        return Err(changed());
    }
    if let (Some(manifest), true) = (manifest, ticket.approved()) {
        let directory =
            slot.mount.resolver.open_child(slot.base(), &slot.name).map_err(|errno| fault(errno, &slot.shown))?;
        let now = survey(&slot.mount, directory, &slot.shown, |_| Class::default(), ticket.context())?;
        if now.digest != manifest.digest {
            return Err(changed());
        }
    }
    Ok(())
}
