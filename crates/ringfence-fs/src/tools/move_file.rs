//! `move_file`: another name, or another directory, for what is there.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Pace, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use rustix::fs::{AtFlags, OFlags, RenameFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::manifest::{Class, Manifest, Whole, survey, touches_below};
use crate::Fence;
use crate::again::{fsync, linkat, renameat, renameat_with, unlinkat};
use crate::digest::Digest;
use crate::fault::{fault, unsynced, wrong_type};
use crate::journal::{Effect, Fate, Look, State, Turn};
use crate::links::{Relocation, check_links_stay_inside};
use crate::locks::{Intent, Noted, Place, Tree};
use crate::mount::{Durability, look, rename_onto_nothing};
use crate::name::{may_create, show};
use crate::path::GuestPath;
use crate::preview::{Contents, Diffs, check_shown_at, fingerprint};
use crate::recover::recover;
use crate::replace::{Displaced, Old};
use crate::repository::is_repository_piece;
use crate::resolve::{CAREFUL, PLACE};
use crate::slot::{Meant, Parents, Slot, check_directory_writable, listing};
use crate::stamp::{FileId, Kind, Stamp};

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(MoveFile { fence: fence.clone() }, [Face::standard::<Args, Outcome>("move_file")])
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
    #[serde(default)]
    overwrite: bool,
}

struct Work {
    from: Slot,
    to: Slot,
    seen: Stamp,
    /// The file that goes, if one is overwritten.
    target: Option<Stamp>,
    manifest: Option<Manifest>,
    /// What a person was shown of the file that moves, and of the one that goes.
    shown: (Option<Digest>, Option<Digest>),
}

/// What a move returns.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    from: String,
    to: String,
    /// True when a file at `to` was replaced.
    overwritten: bool,
    /// The id of this change.
    change: String,
}

impl Tool for MoveFile {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::Read, Verb::MoveAway, Verb::Create, Verb::Overwrite, Verb::Lose];

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let (source, goal) = (self.fence.locate(&args.from, cx)?, self.fence.locate(&args.to, cx)?);
        let (from, seen) = Slot::find_existing(&source, Meant::Anything)?;
        let to = Slot::find(&goal.slashed_if(seen.kind), Meant::Anything, Parents::MustExist)?;
        if from.mount.id != to.mount.id {
            let message = "from and to are on different mounts";
            return Err(ToolError::new(ErrorKind::InvalidArgs, message).hint("copy the file and delete the old one"));
        }
        may_create(&to.name, to.mount.names)?;
        if seen.kind != Kind::File {
            from.check_nothing_guarded_inside()?;
            to.check_nothing_guarded_inside()?;
        }
        let target = to.look()?;
        check_target(&from, &to, &seen, target.as_ref(), args.overwrite)?;
        let at = (from.base(), from.name.as_slice());
        check_links_stay_inside(&from.mount, Relocation { at, from: &from.path(), to: &to.path() }, cx)?;
        let (away, there) = (from.place(), to.place());
        let mut touches = vec![
            Touch { verb: Verb::MoveAway, place: away.clone() },
            Touch { verb: if target.is_some() { Verb::Overwrite } else { Verb::Create }, place: there.clone() },
        ];
        touches.extend(target.as_ref().map(|target| to.loss(target, cx)).transpose()?.flatten());
        if seen.kind == Kind::Link {
            touches.extend(there.through_link().map(|place| Touch { verb: Verb::Create, place }));
        }
        let mut manifest = None;
        // A link to a directory gives what is in there another name too.
        let leads_to_directory =
            || from.mount.lookup(&source.path, OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, Pace::Patient);
        if seen.kind == Kind::Directory || (seen.kind == Kind::Link && leads_to_directory().is_ok()) {
            let directory = open_tree(&from, &seen)?;
            let wholes = [Whole::new(Verb::MoveAway, &away, cx), Whole::new(Verb::Create, &there, cx)];
            let classify = |path: &str| Class::of(&wholes, path, cx);
            let found = survey(&from.mount, directory, &from.shown, classify, cx)?;
            touches.extend(touches_below(&away, &found.sensitive, Verb::MoveAway));
            touches.extend(touches_below(&there, &found.sensitive, Verb::Create));
            manifest = Some(found);
        }
        Ok(Plan { touches, work: Work { from, to, seen, target, manifest, shown: (None, None) } })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Work { from, to, seen, target, manifest, shown } = work;
        let mut text = format!("move `{}` to `{}`", from.shown, to.shown);
        if let Some(target) = target {
            text.push_str(&format!(", replacing the file of {} bytes there", target.size));
        }
        if let Some(Manifest { entries, bytes, .. }) = manifest {
            text.push_str(&format!(", with {entries} entries ({bytes} bytes)"));
        }
        let new = Contents::at(from, seen, cx)?;
        let old = target.map(|target| Contents::at(to, &target, cx)).transpose()?;
        let body = match (&old, manifest.as_ref()) {
            (Some(old), _) => {
                let mut diffs = Diffs::new();
                diffs.add(&to.shown, Some(old), Some(&new));
                diffs.into_body()
            }
            (None, Some(manifest)) => manifest.to_body(),
            (None, None) => ringfence_kernel::Body::None,
        };
        let inside = manifest.as_ref().map(|manifest| manifest.digest);
        *shown = (new.digest, old.as_ref().and_then(|old| old.digest));
        let bound = fingerprint((*seen, *target, *shown, inside));
        let secret = old.is_some() && (from.place().sensitive().secret || to.place().sensitive().secret);
        Ok(Preview::new(&text, bound).with(body).secret_if(secret))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { from, to, seen, target, .. } = &work;
        // A directory takes what is in it along: nothing may come to be in there while it moves.
        let alone = work.manifest.is_some() || is_repository_piece(&to.name);
        let tree = if alone { Tree::Alone } else { Tree::Shared };
        let _place = from.hold_place(tree, ticket.context())?;
        to.check_place()?;
        check_directory_writable(from.base(), &from.shown)?;
        check_directory_writable(to.base(), &to.shown)?;
        let held = from.mount.locks.hold_both(seen.id, target.map_or(seen.id, |target| target.id), ticket.context())?;
        for (held, left) in &held {
            recover(&from.mount, held, left)?;
        }
        check_unmoved(&work, ticket)?;
        from.judge_removal(ticket)?;
        to.judge_arrival(from, ticket)?;
        // Once it has happened, nothing that can be had before may fail.
        let listings = match from.mount.durability {
            Durability::Full => vec![
                listing(to.base()).map_err(|errno| fault(errno, &to.shown))?,
                listing(from.base()).map_err(|errno| fault(errno, &from.shown))?,
            ],
            Durability::Ordered => Vec::new(),
        };
        let (effects, image) = effects(&work, ticket)?;
        let Some((held, _)) = held.first() else { return Err(changed(&from.shown)) };
        let note = |slot: &Slot, inode| Place { parent: slot.parent_path(), name: slot.name.clone(), inode };
        let intent = match target {
            Some(target) => Intent::Overwrite {
                from: note(from, seen.id.inode),
                to: note(to, target.id.inode),
                journal: Noted::new(ticket.change(), image.as_deref()),
            },
            None => Intent::OneStep { change: ticket.change().as_bytes().to_vec() },
        };
        match (target, from.mount.durability) {
            (Some(_), Durability::Full) => held.intend_on_disk(&intent)?,
            _ => held.intend(&intent)?,
        }
        let moved = from.mount.enter(ticket, Vec::new(), effects).and_then(|entered| {
            ticket.commit()?;
            match target {
                Some(target) => exchange(&work, target, image.as_deref())?,
                None => rename(&work)?,
            }
            entered.done();
            Ok(())
        });
        // Done or refused, what it is about stands where it should.
        held.settle();
        moved?;
        for directory in &listings {
            fsync(directory).map_err(|errno| unsynced(errno, &to.shown))?;
        }
        Ok(Outcome {
            from: from.shown.clone(),
            to: to.shown.clone(),
            overwritten: target.is_some(),
            change: ticket.change().to_owned(),
        })
    }
}

/// For the journal, with the name that an overwritten file gets in the keep. One that has other names is copied there.
fn effects(work: &Work, ticket: &Ticket<'_>) -> Result<(Vec<Effect>, Option<String>), ToolError> {
    let Work { from, to, target, .. } = work;
    let state = |slot: &Slot| {
        let state = State::at(&slot.mount, slot.base(), &slot.name, Look::Itself, ticket.context())?;
        state.ok_or_else(|| changed(&slot.shown))
    };
    let (path, mut effects, mut fate) = (show(&to.path()), Vec::new(), Fate::Gone);
    if let Some(target) = target {
        let fd = to.mount.open_at(to.base(), &to.name, OFlags::RDONLY);
        let fd = fd.or_else(|_| to.mount.resolver.open_named(to.base(), &to.name, PLACE));
        let old = Old { fd: fd.map_err(|errno| fault(errno, &to.shown))?, stamp: *target };
        // It is brought to the keep from where the other one came from.
        let displaced = Displaced::new(to, from.base(), &old, Turn::default(), ticket)?;
        effects.push(match &displaced.fate {
            Fate::Gone => Effect::Lost { path: path.clone() },
            Fate::Kept { image } | Fate::Copied { image } => Effect::Removed {
                path: path.clone(),
                before: displaced.state,
                image: image.clone(),
                copied: displaced.fate.image().is_none(),
            },
        });
        fate = displaced.fate;
    }
    effects.push(Effect::Moved { from: show(&from.path()), to: path, state: state(from)? });
    Ok((effects, fate.image().map(str::to_owned)))
}

/// The directory that moves, or that the link leads to which moves.
fn open_tree(from: &Slot, seen: &Stamp) -> Result<OwnedFd, ToolError> {
    let opened = match seen.kind {
        Kind::Link => {
            let path = GuestPath::real(&from.path());
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL;
            from.mount.lookup(&path, flags, Pace::Patient).map(|opened| opened.fd).and_then(|fd| listing(fd.as_fd()))
        }
        _ => from.mount.resolver.open_child(from.base(), &from.name),
    };
    opened.map_err(|errno| fault(errno, &from.shown))
}

fn check_target(
    from: &Slot,
    to: &Slot,
    seen: &Stamp,
    target: Option<&Stamp>,
    overwrite: bool,
) -> Result<(), ToolError> {
    if seen.kind == Kind::Directory && to.is_below(seen.id)? {
        return Err(ToolError::invalid("to", "must not lie inside the directory that is moved"));
    }
    let Some(target) = target else { return Ok(()) };
    if target.id == seen.id && from.same_name(to)? {
        return Err(ToolError::invalid("to", "is the same as from"));
    }
    if !overwrite {
        let error = ToolError::new(ErrorKind::AlreadyExists, format!("`{}` exists already", to.shown));
        return Err(match target.kind {
            Kind::Directory => error.hint("to move into that directory, give the new path with the name"),
            _ => error.hint("set overwrite to replace it"),
        });
    }
    match (seen.kind, target.kind) {
        (Kind::File, Kind::File) if target.closed_to_writers() => Err(fault(Errno::ACCESS, &to.shown)),
        (Kind::File, Kind::File) => Ok(()),
        (_, Kind::Link) => Err(wrong_type(&to.shown, "a link, and is not overwritten")),
        (Kind::File, other) => Err(wrong_type(&to.shown, other.described()).hint("only a file is overwritten")),
        (other, _) => Err(wrong_type(&from.shown, other.described()).hint("only a file overwrites another")),
    }
}

fn check_unmoved(work: &Work, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    let Work { from, to, seen, target, manifest, shown } = work;
    let differs = |now: Option<Stamp>, seen: Option<&Stamp>| match (now, seen) {
        (None, None) => false,
        (Some(now), Some(seen)) => now.id != seen.id || (ticket.approved() && now != *seen),
        _ => true,
    };
    if differs(from.look()?, Some(seen)) {
        return Err(changed(&from.shown));
    }
    if differs(to.look()?, target.as_ref()) {
        return Err(changed(&to.shown));
    }
    check_shown_at(from, shown.0, seen, ticket.context())?;
    if let Some(target) = target {
        check_shown_at(to, shown.1, target, ticket.context())?;
    }
    // The policy judged what was in there, so that is what moves.
    if let Some(manifest) = manifest {
        let directory = open_tree(from, seen)?;
        if survey(&from.mount, directory, &from.shown, |_| Class::default(), ticket.context())?.digest
            != manifest.digest
        {
            return Err(changed(&from.shown));
        }
    }
    Ok(())
}

/// Moves onto nothing.
fn rename(work: &Work) -> Result<(), ToolError> {
    let Work { from, to, seen, .. } = work;
    let (here, there) = ((from.base(), from.name.as_slice()), (to.base(), to.name.as_slice()));
    match rename_onto_nothing(here, there) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(changed(&to.shown)),
        Err(Errno::NOENT) => return Err(changed(&from.shown)),
        Err(errno) => return Err(fault(errno, &to.shown)),
    }
    if is_at(to.base(), &to.name, seen.id) {
        return Ok(());
    }
    // Something else stood there in the last moment: it goes back to where it was.
    rename_onto_nothing(there, here).map_err(|errno| fault(errno, &from.shown))?;
    Err(changed(&from.shown))
}

/// Moves onto a file: the two change places, then the one that was overwritten goes.
fn exchange(work: &Work, target: &Stamp, image: Option<&str>) -> Result<(), ToolError> {
    let Work { from, to, seen, .. } = work;
    let keep = image.map(|image| Ok((from.mount.find_keep()?.ok_or(Errno::NOENT)?, image))).transpose();
    let keep = keep.map_err(|errno| fault(errno, &to.shown))?;
    let clear = || match &keep {
        Some((keep, image)) => keep.take(from.base(), &from.name, image),
        None => unlinkat(from.base(), from.name.as_slice(), AtFlags::empty()),
    };
    let swap =
        || renameat_with(from.base(), from.name.as_slice(), to.base(), to.name.as_slice(), RenameFlags::EXCHANGE);
    match swap() {
        Ok(()) => {}
        Err(Errno::NOENT) => return Err(changed(&to.shown)),
        // No exchange on this file system: what was looked at a moment ago is replaced.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if let Some((keep, image)) = &keep {
                linkat(to.base(), to.name.as_slice(), keep.fd(), *image, AtFlags::empty())
                    .map_err(|errno| fault(errno, &to.shown))?;
            }
            return renameat(from.base(), from.name.as_slice(), to.base(), to.name.as_slice())
                .map_err(|errno| fault(errno, &to.shown));
        }
        Err(errno) => return Err(fault(errno, &to.shown)),
    }
    if is_at(to.base(), &to.name, seen.id) && is_at(from.base(), &from.name, target.id) {
        let Err(errno) = clear() else { return Ok(()) };
        swap().map_err(|errno| fault(errno, &to.shown))?;
        return Err(fault(errno, &from.shown));
    }
    swap().map_err(|errno| fault(errno, &to.shown))?;
    Err(changed(&to.shown))
}

fn is_at(parent: BorrowedFd<'_>, name: &[u8], id: FileId) -> bool {
    matches!(look(parent, name), Ok(Some(found)) if found.id == id)
}

fn changed(shown: &str) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("`{shown}` changed since the call was planned; nothing was moved"))
}
