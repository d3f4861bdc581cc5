//! Cleaning up after a process that died in the middle of a change.
//!
//! A note says what it was about to do. Every step here is safe to repeat, and touches only what the note names.

use std::os::fd::AsFd;

use ringfence_kernel::{Context, Dialect, Limits, Pace, Signal};
use rustix::fs::{AtFlags, OFlags, fstat, unlinkat};

use crate::again::{fsync, ftruncate};
use crate::locks::{Held, Intent};
use crate::mount::{Mount, look, open_at};
use crate::name::show;
use crate::path::GuestPath;
use crate::resolve::CAREFUL;
use crate::stamp::{Kind, Stamp};
use crate::trash::{keep_as_conflict, purge};

/// Finishes or undoes what a note says, then forgets it.
pub(crate) fn recover(mount: &Mount, held: &Held, intent: &Intent) {
    // What cannot be cleaned up now, because it moved or is not ours to remove, is not tried for ever.
    let _ = attempt(mount, intent);
    held.settle();
}

/// Cleans up whatever dead processes left on a mount.
pub(crate) fn recover_all(mount: &Mount) {
    for (held, intent) in mount.locks.abandoned() {
        recover(mount, &held, &intent);
    }
}

fn attempt(mount: &Mount, intent: &Intent) -> Option<()> {
    let (Intent::Remove { parent, name, .. } | Intent::Append { parent, name, .. }) = intent;
    let path = GuestPath::parse(&show(if parent.is_empty() { b"." } else { parent })).ok()?;
    let parent = mount.lookup(&path, OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL, Pace::Patient).ok()?.fd;
    let found = look(parent.as_fd(), name).ok()??;
    match intent {
        Intent::Remove { inodes, .. } if !inodes.is_empty() && !inodes.contains(&found.id.inode) => {
            keep_as_conflict(parent.as_fd(), name).ok().map(drop)
        }
        Intent::Remove { .. } if found.kind == Kind::Directory => {
            let (signal, limits) = (Signal::new(), Limits::of(Dialect::Standard));
            purge(mount, parent.as_fd(), name, &Context::new(&limits, Pace::Patient, &signal)).ok()
        }
        Intent::Remove { .. } => unlinkat(&parent, name.as_slice(), AtFlags::empty()).ok(),
        Intent::Append { inode, before, after, .. } => {
            let file = open_at(parent.as_fd(), name, OFlags::WRONLY).ok()?;
            let now = Stamp::of(&fstat(&file).ok()?);
            if now.id.inode == *inode && (before + 1..*after).contains(&now.size) {
                ftruncate(&file, *before).ok()?;
                fsync(&file).ok()?;
            }
            Some(())
        }
    }
}
