//! `append_file`: more at the end of a file.
//!
//! Bytes are added in place: a log of many megabytes is not copied for one line. A note beside the lock says
//! how long the file was, so that a process that dies half way leaves nothing half added.

use std::os::fd::{AsFd, BorrowedFd};

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Changed, check_size};
use crate::Fence;
use crate::again::{fchmod, fdatasync, fstat, ftruncate};
use crate::content::read_up_to;
use crate::digest::{Digest, Hasher};
use crate::fault::{fault, unsynced};
use crate::fence::Given;
use crate::journal::{Effect, State};
use crate::locks::{Held, Intent, Tree};
use crate::name::show;
use crate::preview::{Contents, Diffs, check_shown, check_still_there, fingerprint};
use crate::replace::{Body, Old, Written, check_unmoved, replace, take, write_all};
use crate::slot::{Meant, Parents, Slot};
use crate::stamp::Stamp;

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    let standard = Face::standard::<StandardArgs, Changed>("append_file");
    let miniclaw = Face::miniclaw::<MiniclawArgs>("append_file", |outcome: &Outcome| {
        let Outcome { changed, added } = outcome;
        format!("ok: appended {added} bytes to {} (size={})", changed.path, changed.size)
    });
    registry.register(AppendFile { fence: fence.clone() }, [standard, miniclaw])
}

struct AppendFile {
    fence: Fence,
}

/// Append text to a file; the file is created if it is missing. `content` is added as it is: begin it with a newline if
/// the file does not end in one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StandardArgs {
    /// The file, by its path relative to the workspace.
    path: String,
    /// Text to append.
    content: String,
}

/// Append text to a file in the workspace. The file and missing directories are created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawArgs {
    /// The file, by its path relative to the workspace.
    path: String,
    /// What to add.
    content: String,
}

struct Args {
    path: Given,
    content: String,
    parents: Parents,
}

impl From<StandardArgs> for Args {
    fn from(args: StandardArgs) -> Self {
        Self { path: Given::Standard(args.path), content: args.content, parents: Parents::MustExist }
    }
}

impl From<MiniclawArgs> for Args {
    fn from(args: MiniclawArgs) -> Self {
        Self { path: Given::unless_blank(args.path), content: args.content, parents: Parents::MayBeMade }
    }
}

struct Work {
    slot: Slot,
    seen: Option<Stamp>,
    content: Vec<u8>,
    /// What a person was shown of the old contents.
    shown: Option<Digest>,
}

struct Outcome {
    changed: Changed,
    added: usize,
}

impl From<Outcome> for Changed {
    fn from(outcome: Outcome) -> Self {
        outcome.changed
    }
}

impl Tool for AppendFile {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::Create, Verb::Overwrite, Verb::Lose];

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let spot = self.fence.locate_given(&args.path, cx)?;
        check_size("content", "max_append_bytes", args.content.len() as u64, cx.limits.append_bytes)?;
        let slot = Slot::find(&spot, Meant::File, args.parents)?;
        let seen = slot.look()?;
        let verb = if seen.is_some() { Verb::Overwrite } else { Verb::Create };
        let touches = vec![Touch { verb, place: slot.place() }];
        Ok(Plan { touches, work: Work { slot, seen, content: args.content.into_bytes(), shown: None } })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Work { slot, seen, content, shown } = work;
        let mut diffs = Diffs::new();
        let (text, digest) = match seen {
            Some(seen) => {
                let old = Contents::at(slot, seen, cx)?;
                diffs.add_at_end(&slot.shown, &old, &String::from_utf8_lossy(content));
                (
                    format!("add {} bytes to the end of `{}` ({} bytes)", content.len(), slot.shown, seen.size),
                    old.digest,
                )
            }
            None => {
                diffs.add(&slot.shown, None, Some(&Contents::given(content)));
                (format!("create `{}` with {} bytes", slot.shown, content.len()), None)
            }
        };
        *shown = digest;
        let preview = Preview::new(&text, fingerprint((*seen, digest)));
        Ok(preview.with(diffs.into_body()).secret_if(slot.place().sensitive().secret))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { slot, seen, content, shown } = work;
        check_still_there(&slot, seen.as_ref(), ticket)?;
        let added = content.len();
        let written = match seen {
            None => replace(&slot, seen, ticket, |_| Ok(Body::Bytes(content)))?,
            Some(_) => append(&slot, seen, &content, shown, ticket)?,
        };
        slot.keep_known(slot.sensitivity);
        // Who may add to a secret was not told what is in it, and could try out hashes.
        let unread = !written.created && slot.place().sensitive().secret;
        let changed = Changed::new(slot.shown, &written, ticket);
        let sha256 = changed.sha256.clone().filter(|_| !unread);
        Ok(Outcome { changed: Changed { sha256, ..changed }, added })
    }
}

fn append(
    slot: &Slot,
    seen: Option<Stamp>,
    content: &[u8],
    shown: Option<Digest>,
    ticket: &Ticket<'_>,
) -> Result<Written, ToolError> {
    let parent = slot.base();
    let place = slot.hold_place(Tree::Shared, ticket.context())?;
    let (held, old) = take(slot, parent, ticket.context())?;
    let Some(old) = old else {
        check_unmoved(slot, seen, None, ticket)?;
        drop((held, place));
        return replace(slot, None, ticket, |_| Ok(Body::Bytes(content.to_vec())));
    };
    check_unmoved(slot, seen, Some(old.stamp), ticket)?;
    check_shown(slot, shown, Some(&old), ticket.context())?;
    check_grown_size(slot, &old, content, ticket.context())?;
    if old.stamp.links == 1 && !slot.is_guarded() {
        return append_in_place(slot, parent, &held, &old, content, ticket);
    }
    // The other names of this file may be outside: they keep what they had. A rule judges a file whole.
    drop((held, place));
    replace(slot, seen, ticket, |old| {
        check_shown(slot, shown, old, ticket.context())?;
        let Some(old) = old else { return Ok(Body::Bytes(content.to_vec())) };
        check_grown_size(slot, old, content, ticket.context())?;
        let mut bytes =
            read_up_to(&old.fd, old.stamp.size, ticket.context()).map_err(|errno| fault(errno, &slot.shown))?;
        bytes.extend_from_slice(content);
        Ok(Body::Bytes(bytes))
    })
}

fn check_grown_size(slot: &Slot, old: &Old, content: &[u8], cx: &Context<'_>) -> Result<(), ToolError> {
    let size = old.stamp.size.saturating_add(content.len() as u64);
    let what = format!("`{}` with what is added", slot.shown);
    check_size(&what, "max_appended_file_bytes", size, cx.limits.appended_file_bytes)
}

fn append_in_place(
    slot: &Slot,
    parent: BorrowedFd<'_>,
    held: &Held,
    old: &Old,
    content: &[u8],
    ticket: &Ticket<'_>,
) -> Result<Written, ToolError> {
    let fail = |errno| fault(errno, &slot.shown);
    if old.stamp.closed_to_writers() {
        return Err(fail(Errno::ACCESS));
    }
    let file = slot.mount.open_at(parent, &slot.name, OFlags::WRONLY | OFlags::APPEND).map_err(fail)?;
    let now = Stamp::of(&fstat(&file).map_err(fail)?);
    if now.id != old.stamp.id || now.links != 1 {
        return Err(replaced(slot));
    }
    let before = now.size;
    let after = before + content.len() as u64;
    let (parent_path, name) = (slot.parent_path(), slot.name.clone());
    let hashed = hash_both(slot, old, content, ticket.context())?;
    if content.is_empty() {
        return Ok(Written::kept(before, hashed.map(|(_, after)| after)));
    }
    let intent = Intent::Append {
        parent: parent_path,
        name,
        inode: now.id.inode,
        before,
        content: content.to_vec(),
        change: ticket.change().as_bytes().to_vec(),
    };
    // What the disk has of the contents after a power cut may be a part.
    held.intend_on_disk(&intent)?;
    let entered = slot.mount.enter(ticket, Vec::new(), vec![effect(slot, &now, after, hashed)])?;
    if let Err(given_up) = ticket.commit() {
        drop(entered);
        held.settle();
        return Err(given_up);
    }
    let added = write_all(file.as_fd(), content)
        .and_then(|()| match now.mode & 0o7000 {
            0 => Ok(()),
            // Contents that somebody else chose must not run with the owner's rights.
            _ => fchmod(&file, Mode::from_raw_mode(now.mode & 0o777)),
        })
        .and_then(|()| fdatasync(&file));
    if let Err(errno) = added {
        // Who is told that it failed will try again, and must not find it there already. What another program added
        // behind it stays, and so does ours.
        let size = Stamp::of(&fstat(&file).map_err(|errno| unsynced(errno, &slot.shown))?).size;
        if size > after {
            entered.done();
            held.settle();
            return Err(unsynced(errno, &slot.shown));
        }
        ftruncate(&file, before).map_err(|errno| unsynced(errno, &slot.shown))?;
        drop(entered);
        held.settle();
        return Err(fail(errno));
    }
    entered.done();
    held.settle();
    // What is added is added, also when nobody can tell whether the name still leads there.
    if slot.look_in(parent).is_ok_and(|now| now.is_none_or(|now| now.id != old.stamp.id)) {
        return Err(replaced(slot));
    }
    let digest = hashed.map(|(_, after)| after);
    Ok(Written { unchanged: false, size: after, digest, created: false, links_broken: 0, collides_with: None })
}

/// What the file has now and what it will have, read once. Nothing where it may be written and not read.
fn hash_both(slot: &Slot, old: &Old, content: &[u8], cx: &Context<'_>) -> Result<Option<(Digest, Digest)>, ToolError> {
    let after = old.stamp.size + content.len() as u64;
    if old.stamp.closed_to_readers() || after > cx.limits.hash_bytes {
        return Ok(None);
    }
    let bytes = match read_up_to(&old.fd, old.stamp.size, cx) {
        Ok(bytes) => bytes,
        // A descriptor that only names it.
        Err(Errno::BADF) => return Ok(None),
        Err(errno) => {
            cx.check()?;
            // Without its hash, the change could not be told from any other and taken back.
            return Err(fault(errno, &slot.shown));
        }
    };
    if bytes.len() as u64 != old.stamp.size {
        return Err(replaced(slot));
    }
    let mut hasher = Hasher::default();
    hasher.update(&bytes);
    let before = hasher.clone().finish();
    hasher.update(content);
    Ok(Some((before, hasher.finish())))
}

fn effect(slot: &Slot, now: &Stamp, size: u64, hashed: Option<(Digest, Digest)>) -> Effect {
    let path = show(&slot.path());
    let (before, after) = hashed.unzip();
    let before = State::of_file(now, before);
    // Its times are not known yet, and not compared where the hash is.
    let after = State { size, mode: now.mode & 0o777, ..State::of_file(now, after) };
    Effect::Appended { path, before, after }
}

fn replaced(slot: &Slot) -> ToolError {
    ToolError::new(ErrorKind::Conflict, format!("`{}` was replaced by another program at the same moment", slot.shown))
}
