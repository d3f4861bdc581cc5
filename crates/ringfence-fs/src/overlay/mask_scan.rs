//! Mask scan: finds the entries of a mount that a program must not see.
//!
//! These are secrets, by name and by what they are, what the policy does not simply let be read, and directories that cannot be
//! looked into. Every directory is watched, if at all, before its entries are read: what appears later is reported.
//!
//! Not here: keeping what was found from one program to the next (`watched_masks.rs`).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_kernel::{
    CallContext, Decision, ErrorKind, IoMode, PolicyAction, ResourceAccess, ToolError, sensitivity,
};
use rustix::io::Errno;

use crate::mount::Mount;
use crate::overlay::committed_secrets::CommittedSecrets;
use crate::overlay::compare::resource_at;
use crate::path::guest::GuestPath;
use crate::path::name::{escape, is_reserved, unescape};
use crate::path::relative::{join, range_below};
use crate::root::resolver::PATH_ONLY;
use crate::root::walk::{TempVisibility, TreeWalk, WalkEntry, WalkStep, open_listable};
use crate::root::watched_directories::WatchedDirectories;
use crate::root::{reopen_for_listing, stat};
use crate::sensitive::credentials::may_hold_credential;
use crate::sensitive::files::last_names;
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::{FileKind, FileStat};

/// The entries that a program must not see, by their paths below the root.
#[derive(Debug, Default)]
pub(super) struct ViewMasks {
    found: BTreeMap<Vec<u8>, EntryMask>,
    /// Entries that can become secret, or cease to be, without a change of their directory: settings by their contents, links
    /// by their targets, and directories that could not be looked into.
    pub(super) volatile: BTreeSet<Vec<u8>>,
    /// A secret was found that has other names, which may have been passed before it was known as one.
    pub(super) has_hard_links: bool,
    /// Inodes of the secrets that have no other name.
    pub(super) single_names: HashSet<u64>,
    /// Secrets that a program can read from a repository.
    pub(super) committed: CommittedSecrets,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum EntryMask {
    /// Its path or, for a link, the path that it leads to is seen empty.
    Empty(Vec<u8>),
    /// It is not seen at all.
    Absent,
}

impl ViewMasks {
    /// Paths that a program sees empty.
    pub(super) fn masked(&self) -> BTreeSet<&[u8]> {
        let masks = self.found.values().filter_map(|mask| match mask {
            EntryMask::Empty(path) => Some(path.as_slice()),
            EntryMask::Absent => None,
        });
        masks.collect()
    }

    /// Paths that a program does not see.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &[u8]> {
        self.found.iter().filter(|(_, mask)| **mask == EntryMask::Absent).map(|(path, _)| path.as_slice())
    }

    /// Forgets an entry, and what was found below it.
    pub(super) fn forget(&mut self, path: &[u8]) {
        let (from, to) = range_below(path);
        self.found.remove(path);
        self.volatile.remove(path);
        self.committed.forget_below(path);
        let below: Vec<_> = self.found.range(from.clone()..to.clone()).map(|(path, _)| path.clone()).collect();
        below.iter().for_each(|path| _ = self.found.remove(path));
        let below: Vec<_> = self.volatile.range(from..to).cloned().collect();
        below.iter().for_each(|path| _ = self.volatile.remove(path));
    }
}

/// A scan under way.
pub(super) struct MaskScan<'a> {
    pub(super) mount: &'a Mount,
    pub(super) cx: &'a CallContext<'a>,
    /// Inodes that were known as secrets before the scan.
    pub(super) known: &'a HashSet<u64>,
    pub(super) masks: &'a mut ViewMasks,
    /// Directories that are scanned are watched first, where there is a watch.
    pub(super) directories: Option<&'a mut WatchedDirectories>,
}

impl MaskScan<'_> {
    /// Scans the whole mount.
    pub(super) fn scan_root(&mut self) -> Result<(), ToolError> {
        let root = reopen_for_listing(self.mount.root.as_fd()).map_err(|errno| errno_error(errno, "."))?;
        self.scan_tree(root, b"")
    }

    /// Scans the tree below a directory that is open already. `above` is its path.
    fn scan_tree(&mut self, start: OwnedFd, above: &[u8]) -> Result<(), ToolError> {
        let (mount, cx) = (self.mount, self.cx);
        self.watch(above, start.as_fd());
        let mut walk =
            TreeWalk::with_temp_visibility(TempVisibility::Visible, mount, start, ".", cx).map_err(too_many_error)?;
        while let Some(step) = walk.next()? {
            let WalkStep::Entry(entry) = step else { continue };
            let path = join(above, &walk.path_of(&entry.name));
            if self.passes(walk.directory()?, &entry, &path)? && walk.is_directory(&entry)? {
                let entered = walk.descend_after(&entry, |directory| self.watch(&path, directory));
                if let Err(errno) = entered.map_err(too_many_error)? {
                    self.mask_unlistable(path, errno)?;
                }
            }
        }
        Ok(())
    }

    /// Scans one entry of a directory, and what is below it.
    pub(super) fn scan_entry(
        &mut self,
        directory: BorrowedFd<'_>,
        stamp: &FileStat,
        name: &[u8],
        path: &[u8],
    ) -> Result<(), ToolError> {
        let entry = WalkEntry::from_stat(name, stamp);
        if !self.passes(directory, &entry, path)? || stamp.kind != FileKind::Directory {
            return Ok(());
        }
        match open_listable(self.mount, directory, name) {
            Ok(child) => self.scan_tree(child, path),
            Err(errno) => self.mask_unlistable(path.to_vec(), errno),
        }
    }

    fn watch(&mut self, path: &[u8], directory: BorrowedFd<'_>) {
        if let Some(directories) = &mut self.directories {
            directories.add(path, directory);
        }
    }

    /// Whether a program may see an entry. Where it may not, that is noted.
    fn passes(&mut self, directory: BorrowedFd<'_>, entry: &WalkEntry, path: &[u8]) -> Result<bool, ToolError> {
        if is_reserved(&entry.name) {
            self.masks.found.insert(path.to_vec(), EntryMask::Absent);
            return Ok(false);
        }
        if self.is_secret(directory, entry, path)? || self.is_denied(directory, entry, path)? {
            self.mask(directory, entry, path)?;
            return Ok(false);
        }
        if self.masks.committed.scan(self.mount, self.cx, directory, path)? {
            self.masks.volatile.insert(path.to_vec());
        }
        Ok(true)
    }

    fn is_secret(&mut self, directory: BorrowedFd<'_>, entry: &WalkEntry, path: &[u8]) -> Result<bool, ToolError> {
        let named = sensitivity(last_names(&escape(path)));
        // Only a local file system is sure to tell the same inode in a listing as everywhere else.
        let maybe_known =
            !self.known.is_empty() && (!self.mount.supports_non_blocking || self.known.contains(&entry.inode));
        let maybe_credential = may_hold_credential(&entry.name);
        if !named.secret && !maybe_known && !maybe_credential {
            return Ok(false);
        }
        let Some(stamp) = stat_entry(directory, entry)? else { return Ok(false) };
        let is_secret = self.mount.classify(named, FileRef { fd: directory, name: &entry.name }, &stamp).secret;
        if maybe_credential && stamp.kind == FileKind::File {
            self.masks.volatile.insert(path.to_vec());
        }
        if is_secret && stamp.links > 1 {
            self.masks.has_hard_links |= !self.known.contains(&stamp.id.inode);
        } else if is_secret {
            self.masks.single_names.insert(stamp.id.inode);
        }
        Ok(is_secret || named.secret)
    }

    /// Whether the policy has anything but a plain allow for the read. Single files of a program are not submitted for
    /// approval, so files that would need one are masked too. Where the host works for itself there is no policy.
    fn is_denied(&self, directory: BorrowedFd<'_>, entry: &WalkEntry, path: &[u8]) -> Result<bool, ToolError> {
        if self.cx.origin().is_none() {
            return Ok(false);
        }
        let allows = |action| {
            let access = ResourceAccess { action, resource: resource_at(self.mount, path) };
            self.cx.evaluate(&access).decision == Decision::Allow
        };
        let is_directory = entry.is_directory_in(directory).map_err(|errno| errno_error(errno, "."))?;
        Ok(!allows(PolicyAction::Read) || (is_directory && !allows(PolicyAction::List)))
    }

    /// A link cannot be covered: what it leads to is, if that is in the workspace.
    fn mask(&mut self, directory: BorrowedFd<'_>, entry: &WalkEntry, path: &[u8]) -> Result<(), ToolError> {
        match stat_entry(directory, entry)?.map(|stamp| stamp.kind) {
            Some(FileKind::Link) => {
                self.masks.volatile.insert(path.to_vec());
                if let Ok(opened) = self.mount.lookup(&GuestPath::from_kernel(path), PATH_ONLY, IoMode::Blocking)
                    && matches!(opened.stat.kind, FileKind::File | FileKind::Directory)
                    && let Ok(Some(real)) = self.mount.real_name(opened.fd.as_fd())
                {
                    if real == "." {
                        let message = format!("`{}` has the name of a secret and links to the whole", escape(path));
                        return Err(ToolError::new(ErrorKind::Unavailable, message).hint("remove the link"));
                    }
                    self.masks.found.insert(path.to_vec(), EntryMask::Empty(unescape(&real)));
                }
            }
            Some(_) => {
                self.masks.found.insert(path.to_vec(), EntryMask::Empty(path.to_vec()));
            }
            None => {}
        }
        Ok(())
    }

    /// A directory that cannot be read may have anything in it, and the program may get there. So may one that was removed
    /// just now.
    fn mask_unlistable(&mut self, path: Vec<u8>, errno: Errno) -> Result<(), ToolError> {
        let expected = matches!(
            errno,
            Errno::ACCESS | Errno::PERM | Errno::NAMETOOLONG | Errno::XDEV | Errno::NOENT | Errno::NOTDIR | Errno::LOOP
        );
        if !expected {
            // A program that finds it covered would be wrong about it.
            return Err(errno_error(errno, &escape(&path)));
        }
        self.masks.volatile.insert(path.clone());
        self.masks.found.insert(path.clone(), EntryMask::Empty(path));
        Ok(())
    }
}

fn stat_entry(directory: BorrowedFd<'_>, entry: &WalkEntry) -> Result<Option<FileStat>, ToolError> {
    stat(directory, &entry.name).map_err(|errno| errno_error(errno, "."))
}

fn too_many_error(error: ToolError) -> ToolError {
    if error.kind != ErrorKind::ReadLimit {
        return error;
    }
    let message = "the workspace has more entries than can be searched for secrets, so programs cannot run in it";
    ToolError::new(ErrorKind::ReadLimit, message).hint("use a smaller directory as the workspace")
}
