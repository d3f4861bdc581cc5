//! Transaction steps: made, rolled back and finalized, by this process or by the one that recovers.
//!
//! Each function looks at what is there first, and changes only entries that the step names by identity: one that
//! another program put there meanwhile stays, or gets a visible name. Rolling back and finalizing are safe to repeat.
//!
//! Not here: the order of the steps and their record (`run.rs`), and finding them after a crash (`recover.rs`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::ToolError;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::journal::{FileIdentity, PreImageStore, StagingName, TxnEntry, TxnStep};
use crate::mount::Mount;
use crate::mount::change::delete_entry;
use crate::path::relative::split;
use crate::root::attributes::{chmod_fd, chmod_past_umask};
use crate::root::resolver::PATH_ONLY;
use crate::root::trash::rename_visible;
use crate::root::{rename_noreplace, stat};
use crate::sys::own_files::{SAFE_OPEN, write_all};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{
    fchmod, fdatasync, fstat, fsync, ftruncate, linkat, mkdirat, openat, pread, renameat, renameat_with, unlinkat,
};
use crate::txn::directories::TxnDirectories;
use crate::txn::stage::StagedFile;

/// A name in a held directory.
type NameAt<'a> = (BorrowedFd<'a>, &'a [u8]);

/// Failure of a step, which left everything as it was.
#[derive(Debug)]
pub(crate) enum StepError {
    /// Another program was first. Its version of a file may be at a visible name beside it.
    Changed {
        conflict_copy: Option<String>,
    },
    /// The file system cannot exchange two entries atomically.
    NoExchange,
    System(Errno),
    Tool(ToolError),
}

impl From<Errno> for StepError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::EXIST | Errno::NOTDIR | Errno::LOOP => Self::CHANGED,
            other => Self::System(other),
        }
    }
}

impl StepError {
    pub(super) const CHANGED: Self = Self::Changed { conflict_copy: None };
}

/// How far a step came, by what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepProgress {
    NotMade,
    Made,
}

/// A step with the directory of its name, and the staging directory.
pub(crate) struct OpenStep<'a> {
    pub(crate) entry: &'a TxnEntry,
    pub(crate) parent: BorrowedFd<'a>,
    pub(crate) directories: &'a TxnDirectories<'a>,
    /// The image store, if there is one.
    pub(crate) store: Option<&'a PreImageStore>,
}

impl<'a> OpenStep<'a> {
    fn here(&self) -> NameAt<'a> {
        (self.parent, &self.entry.name.0)
    }

    fn mount(&self) -> &'a Mount {
        self.directories.mount
    }

    fn staging(&self, staging: &'a StagingName) -> Result<NameAt<'a>, Errno> {
        match staging {
            StagingName::Store(name) => Ok((self.store.ok_or(Errno::NOENT)?.fd(), name.as_bytes())),
            StagingName::Beside(name) => Ok((self.parent, name.as_bytes())),
        }
    }

    fn destination(&self, to: &'a [u8], inode: Option<u64>) -> Result<Option<OwnedFd>, Errno> {
        self.directories.open(split(to).0, inode).map_err(|_| Errno::IO)
    }

    /// Makes the step, or leaves everything as it was. `alone` says that the transaction has no other step, so that it
    /// is never rolled back once it is made.
    pub(crate) fn make(&self, staged: Option<&StagedFile>, alone: bool) -> Result<(), StepError> {
        let here = self.here();
        match &self.entry.step {
            TxnStep::Exchange { old, new, staging, discard, .. } => {
                let there = self.staging(staging)?;
                match (old, new) {
                    (None, None) => Ok(()),
                    (None, Some(_)) => match staged.filter(|staged| !staged.is_named()) {
                        Some(staged) => Ok(staged.link(here)?),
                        None => Ok(rename_noreplace(there, here)?),
                    },
                    (Some(old), None) => displace(here, there, old),
                    (Some(old), Some(new)) => {
                        staged.map_or(Ok(()), |staged| staged.link(there))?;
                        match exchange(here, there) {
                            Ok(()) => verify_exchange(here, there, old, new),
                            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if alone => {
                                replace_without_exchange(here, there, old, *discard)
                            }
                            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(StepError::NoExchange),
                            Err(errno) => Err(errno.into()),
                        }
                    }
                }
            }
            TxnStep::Move { entry, to, to_directory, over, image } => {
                let to_parent = self.destination(&to.0, *to_directory)?.ok_or(StepError::CHANGED)?;
                let there = (to_parent.as_fd(), split(&to.0).1);
                match over {
                    None => displace(here, there, entry),
                    Some(over) => self.move_over(here, there, (entry, over), image.as_deref()),
                }
            }
            TxnStep::Append { inode, content, .. } => self.append(*inode, content),
            TxnStep::MakeDirectory => self.make_directory(),
            TxnStep::Chmod { inode, from, to } => Ok(chmod_directory(here, *inode, [*from, *to])?),
        }
    }

    /// Whether the step was made, by what is there.
    pub(crate) fn progress(&self) -> Result<StepProgress, Errno> {
        let here = self.here();
        let is_made = match &self.entry.step {
            TxnStep::Exchange { old, new, staging, .. } => {
                let is_at = |it: &Option<FileIdentity>, at: Result<NameAt<'_>, Errno>| match (it, at) {
                    (Some(it), Ok(at)) => it.is_at(at),
                    _ => Ok(false),
                };
                let there = || self.staging(staging);
                if new.is_some() && is_at(new, there())? {
                    false
                } else if is_at(old, there())? || is_at(new, Ok(here))? {
                    true
                } else {
                    // An entry that was to be deleted may be gone by now.
                    new.is_none() && old.is_some() && !is_at(old, Ok(here))?
                }
            }
            TxnStep::Move { entry, to, to_directory, .. } => match self.destination(&to.0, *to_directory)? {
                Some(parent) => entry.is_at((parent.as_fd(), split(&to.0).1))?,
                None => false,
            },
            TxnStep::Append { inode, before, content } => stat(here.0, here.1)?
                .is_some_and(|found| found.id.inode == *inode && found.size >= before + content.len() as u64),
            TxnStep::MakeDirectory => stat(here.0, here.1)?.is_some_and(|found| found.kind == FileKind::Directory),
            TxnStep::Chmod { inode, to, .. } => {
                stat(here.0, here.1)?.is_some_and(|found| found.id.inode == *inode && found.mode == *to)
            }
        };
        Ok(if is_made { StepProgress::Made } else { StepProgress::NotMade })
    }

    /// Rolls the step back, however far it came.
    pub(crate) fn roll_back(&self) -> Result<(), Errno> {
        let here = self.here();
        match &self.entry.step {
            TxnStep::Exchange { old, new, staging, fresh, .. } => {
                let Ok(there) = self.staging(staging) else {
                    // Without the image store, a step that was made cannot be rolled back; any other has nothing there.
                    return if self.progress()? == StepProgress::Made { Err(Errno::NOENT) } else { Ok(()) };
                };
                let is_at = |it: &Option<FileIdentity>, at| it.as_ref().map_or(Ok(false), |it| it.is_at(at));
                if is_at(old, there)? {
                    if is_at(new, here)? {
                        exchange(here, there)?;
                        if !is_at(new, there)? {
                            // Another program replaced the name in between.
                            rename_visible(here.0, there).map(drop)?;
                        }
                    } else {
                        restore_name(there, here)?;
                    }
                } else if old.is_none() && is_at(new, here)? {
                    rename_noreplace(here, there)?;
                    if !is_at(new, there)? {
                        restore_name(there, here)?;
                    }
                }
                let is_reserved = old.is_none() && new.is_none() && stat(there.0, there.1)?.is_some();
                if *fresh && (is_reserved || is_at(new, there)?) {
                    delete_entry(self.mount(), there)?;
                }
                Ok(())
            }
            TxnStep::Move { entry, to, to_directory, over, .. } => {
                let Some(to_parent) = self.destination(&to.0, *to_directory)? else { return Ok(()) };
                let there = (to_parent.as_fd(), split(&to.0).1);
                if !entry.is_at(there)? {
                    return Ok(());
                }
                match over {
                    Some(over) if over.is_at(here)? => exchange(here, there),
                    // The overwritten file is in the image store already: the move was complete.
                    Some(_) => Ok(()),
                    None => rename_noreplace(there, here),
                }
            }
            TxnStep::Append { inode, before, content } => {
                let file = match self.mount().open_at(here.0, here.1, OFlags::RDWR) {
                    Err(Errno::NOENT | Errno::LOOP) => return Ok(()),
                    file => file?,
                };
                let now = FileStat::from_stat(&fstat(&file)?);
                if now.id.inode == *inode && is_partial_append(&file, *before, now.size, content.as_bytes())? {
                    ftruncate(&file, *before)?;
                    fsync(&file)?;
                }
                Ok(())
            }
            TxnStep::MakeDirectory => match unlinkat(here.0, here.1, AtFlags::REMOVEDIR) {
                // A directory that got entries meanwhile stays.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                done => done,
            },
            TxnStep::Chmod { inode, from, to } => match chmod_directory(here, *inode, [*to, *from]) {
                // It has the old mode, or one that another process set.
                Err(Errno::NOENT) => Ok(()),
                done => done,
            },
        }
    }

    /// Deletes or stores what the step displaced, once the transaction is committed.
    pub(crate) fn finalize(&self) -> Result<(), Errno> {
        match &self.entry.step {
            TxnStep::Exchange { old: Some(old), staging, discard: true, .. } => {
                let Ok(there) = self.staging(staging) else { return Ok(()) };
                match stat(there.0, there.1)? {
                    None => Ok(()),
                    Some(_) if old.is_at(there)? => delete_entry(self.mount(), there),
                    // One that was written to since it was displaced.
                    Some(_) => rename_visible(self.parent, there).map(drop),
                }
            }
            TxnStep::Move { over: Some(over), image, .. } if over.is_at(self.here())? => {
                self.store_overwritten(self.here(), image.as_deref())
            }
            _ => Ok(()),
        }
    }

    /// Moves a file onto another: the two are exchanged, and the transaction's end stores the one that was overwritten.
    fn move_over(
        &self,
        here: NameAt<'_>,
        there: NameAt<'_>,
        (entry, over): (&FileIdentity, &FileIdentity),
        image: Option<&str>,
    ) -> Result<(), StepError> {
        match exchange(here, there) {
            Ok(()) => {}
            // No exchange on this file system: the file that was inspected just before is replaced.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                if let (Some(image), Some(store)) = (image, self.store) {
                    linkat(there.0, there.1, store.fd(), image, AtFlags::empty())?;
                }
                return Ok(renameat(here.0, here.1, there.0, there.1)?);
            }
            Err(errno) => return Err(errno.into()),
        }
        if entry.is_at(there)? && over.is_at(here)? {
            // Before anything is acknowledged: a move that cannot be completed is not made.
            return match self.store_overwritten(here, image) {
                Ok(()) => Ok(()),
                Err(errno) => {
                    exchange(here, there)?;
                    Err(StepError::System(errno))
                }
            };
        }
        exchange(here, there)?;
        Err(StepError::CHANGED)
    }

    fn store_overwritten(&self, here: NameAt<'_>, image: Option<&str>) -> Result<(), Errno> {
        match image {
            Some(image) => self.store.ok_or(Errno::NOENT)?.store(here.0, here.1, image),
            None => unlinkat(here.0, here.1, AtFlags::empty()),
        }
    }

    /// Adds bytes to the end of a file. After an error the caller retries, and must not find the bytes there already.
    fn append(&self, inode: u64, content: &str) -> Result<(), StepError> {
        let here = self.here();
        let file = self.mount().open_at(here.0, here.1, OFlags::WRONLY | OFlags::APPEND)?;
        let now = FileStat::from_stat(&fstat(&file)?);
        if now.id.inode != inode || now.links != 1 {
            return Err(StepError::CHANGED);
        }
        let added = write_all(file.as_fd(), content.as_bytes())
            .and_then(|()| match now.mode & 0o7000 {
                0 => Ok(()),
                // Contents that another user chose must not run with the owner's rights.
                _ => fchmod(&file, Mode::from_raw_mode(now.mode & 0o777)),
            })
            .and_then(|()| fdatasync(&file));
        let Err(errno) = added else { return Ok(()) };
        // Bytes that another program added behind them stay, and so do ours.
        if FileStat::from_stat(&fstat(&file)?).size <= now.size + content.len() as u64 {
            ftruncate(&file, now.size)?;
        }
        Err(StepError::System(errno))
    }

    fn make_directory(&self) -> Result<(), StepError> {
        let here = self.here();
        match mkdirat(here.0, here.1, Mode::from_raw_mode(0o755)) {
            // Another program was faster, to the same end.
            Err(Errno::EXIST) if stat(here.0, here.1)?.is_some_and(|found| found.kind == FileKind::Directory) => {
                return Ok(());
            }
            made => made?,
        }
        // It is there by now: with a mode that the umask made, rather than as an error about something that was done.
        if let Ok(child) = self.mount().resolver.open_child(here.0, here.1) {
            let _ = chmod_past_umask(child.as_fd(), here.0, 0o755);
        }
        Ok(())
    }
}

/// Renames an entry away, and back if it is another than the expected one.
fn displace(here: NameAt<'_>, there: NameAt<'_>, expected: &FileIdentity) -> Result<(), StepError> {
    rename_noreplace(here, there)?;
    // One that cannot be inspected may be anything, and goes back as well.
    if expected.is_at(there).unwrap_or(false) {
        return Ok(());
    }
    match rename_noreplace(there, here) {
        Ok(()) => Err(StepError::CHANGED),
        // The name was taken again meanwhile.
        Err(_) => Err(StepError::Changed { conflict_copy: Some(rename_visible(here.0, there)?) }),
    }
}

/// Checks that an exchange displaced the entry that was meant, and undoes it if not.
fn verify_exchange(
    here: NameAt<'_>,
    there: NameAt<'_>,
    old: &FileIdentity,
    new: &FileIdentity,
) -> Result<(), StepError> {
    if old.is_at(there).unwrap_or(false) {
        return Ok(());
    }
    let is_restored = match exchange(here, there) {
        Ok(()) => new.is_at(there)? || stat(there.0, there.1)?.is_none(),
        // Ours is gone from there already: what it displaced gets the free name, or the next best.
        Err(Errno::NOENT) => rename_noreplace(there, here).is_ok(),
        Err(_) => false,
    };
    // Otherwise another program replaced the file between our two steps.
    let conflict_copy = if is_restored { None } else { Some(rename_visible(here.0, there)?) };
    Err(StepError::Changed { conflict_copy })
}

/// Replaces a file on a file system without an atomic exchange: the one that was inspected just before.
fn replace_without_exchange(
    here: NameAt<'_>,
    there: NameAt<'_>,
    old: &FileIdentity,
    discard: bool,
) -> Result<(), StepError> {
    if !old.is_at(here)? {
        return Err(StepError::CHANGED);
    }
    if discard {
        return Ok(renameat(there.0, there.1, here.0, here.1)?);
    }
    let aside = [there.1, b"-new"].concat();
    rename_noreplace(there, (there.0, &aside))?;
    linkat(here.0, here.1, there.0, there.1, AtFlags::empty())?;
    Ok(renameat(there.0, aside.as_slice(), here.0, here.1)?)
}

/// Gives an entry its name back, or a visible one beside it if the name was taken.
fn restore_name(there: NameAt<'_>, here: NameAt<'_>) -> Result<(), Errno> {
    rename_noreplace(there, here).or_else(|_| rename_visible(here.0, there).map(drop))
}

fn exchange(here: NameAt<'_>, there: NameAt<'_>) -> Result<(), Errno> {
    renameat_with(here.0, here.1, there.0, there.1, RenameFlags::EXCHANGE)
}

/// Gives a directory another mode, if it is the one that is meant and has the mode that it should have.
fn chmod_directory((parent, name): NameAt<'_>, inode: u64, [from, to]: [u32; 2]) -> Result<(), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let is_it = |stamp: &FileStat| stamp.kind == FileKind::Directory && stamp.id.inode == inode && stamp.mode == from;
    let fd = match openat(parent, name, OFlags::RDONLY | flags | SAFE_OPEN, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let place = openat(parent, name, PATH_ONLY | flags, Mode::empty())?;
            return if is_it(&FileStat::from_stat(&fstat(&place)?)) {
                chmod_fd(place.as_fd(), to)
            } else {
                Err(Errno::NOENT)
            };
        }
        opened => opened?,
    };
    if is_it(&FileStat::from_stat(&fstat(&fd)?)) { fchmod(&fd, Mode::from_raw_mode(to)) } else { Err(Errno::NOENT) }
}

/// Whether the bytes of a file past `before` are a proper prefix of `content`. Other bytes there belong to another
/// program.
fn is_partial_append(file: &OwnedFd, before: u64, size: u64, content: &[u8]) -> Result<bool, Errno> {
    let added = size.checked_sub(before).and_then(|added| usize::try_from(added).ok()).unwrap_or(0);
    if added == 0 || added >= content.len() {
        return Ok(false);
    }
    let mut found = vec![0; added];
    let mut filled = 0;
    while filled < added {
        match pread(file, &mut found[filled..], before + filled as u64)? {
            0 => return Ok(false),
            more => filled += more,
        }
    }
    Ok(found == content[..added])
}
