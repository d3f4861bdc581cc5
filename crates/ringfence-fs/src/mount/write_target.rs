//! Write targets: a name in a held directory, which every change works on.
//!
//! A write target is resolved while planning. The directory is held from then on, so a concurrent rename of the path
//! cannot redirect the change. Missing directories are created with the change.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::{ErrorKind, IoMode, PolicyResource, Sensitivity, ToolError};
use rustix::fs::{Access, AtFlags, OFlags};
use rustix::io::Errno;

use crate::mount::repository::RepositoryDetector;
use crate::mount::{LocatedPath, Mount, RunStateMount, suggest};
use crate::path::guest::GuestPath;
use crate::path::name::{escape, fold_name, may_create, unescape};
use crate::root::resolver::PATH_ONLY;
use crate::root::{OpenFile, check_directory_writable, stat};
use crate::sys::errno::{errno_error, wrong_type};
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::names_in;
use crate::sys::stat::{FileId, FileKind, FileStat};
use crate::sys::syscall::accessat;

/// Retries of a parent lookup while other programs create and remove directories.
const PARENT_LOOKUPS: usize = 16;

/// One name, and the directory that has it or is to have it.
#[derive(Debug)]
pub(crate) struct WriteTarget {
    pub(crate) mount: Arc<Mount>,
    /// The deepest directory of the path that exists.
    base: OwnedFd,
    base_id: FileId,
    /// Directories below it that do not.
    missing: Vec<Vec<u8>>,
    pub(crate) name: Vec<u8>,
    pub(crate) shown: String,
    given_path: String,
    /// Resolved path of the directory, as bytes below the root, empty for the root.
    real_parent: Vec<u8>,
    resolved: Option<String>,
    /// Sensitivity of the current file.
    pub(crate) sensitivity: Sensitivity,
    /// The stat that the name had when the target was resolved.
    pub(crate) found: Option<FileStat>,
}

/// Whether the directory of a new file must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParentDirPolicy {
    MustExist,
    CreateMissing,
}

/// Handling of a path that ends in a slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteTargetKind {
    /// A file, also through a link that leads to it.
    File,
    /// A file that has this very name.
    FileNoFollow,
    Any,
}

impl WriteTarget {
    /// Resolves the target of a change that may create an entry. Reads only.
    pub(crate) fn find(
        located: &LocatedPath,
        meant: WriteTargetKind,
        parents: ParentDirPolicy,
    ) -> Result<Self, ToolError> {
        let target = Self::locate(located, meant, parents)?;
        if target.found.is_none() {
            for name in target.missing.iter().chain(std::iter::once(&target.name)) {
                may_create(name, target.mount.names)?;
            }
        }
        Ok(target)
    }

    /// Finds something that has to be there, whatever its name.
    pub(crate) fn find_existing(located: &LocatedPath, meant: WriteTargetKind) -> Result<(Self, FileStat), ToolError> {
        let target = Self::locate(located, meant, ParentDirPolicy::MustExist)?;
        let seen = target.found.ok_or_else(|| suggest::path_error(located, Errno::NOENT))?;
        Ok((target, seen))
    }

    fn locate(located: &LocatedPath, meant: WriteTargetKind, parents: ParentDirPolicy) -> Result<Self, ToolError> {
        located.check_writable()?;
        let target = Self::at(located, &located.path, meant, parents)?;
        let is_link = |found: Option<FileStat>| found.is_some_and(|stamp| stamp.kind == FileKind::Link);
        if meant == WriteTargetKind::Any || !is_link(target.found) {
            return Ok(target);
        }
        let linked_path = target.link_target(located, meant)?;
        let target = Self::at(located, &linked_path, meant, ParentDirPolicy::MustExist)?;
        // Another link came to stand there since: where that one leads was not looked at.
        if is_link(target.found) { Err(wrong_type(&located.shown, "a link that changes")) } else { Ok(target) }
    }

    /// The target at a path below the root, for what the caller called by the path of `located`.
    fn at(
        located: &LocatedPath,
        path: &GuestPath,
        meant: WriteTargetKind,
        parents: ParentDirPolicy,
    ) -> Result<Self, ToolError> {
        let Some((parent, name)) = path.split() else { return Err(no_name_error(located)) };
        let ExistingAncestor { fd: base, id: base_id, real: real_parent, missing } =
            open_existing_ancestor(located, parent, parents)?;
        let mut target = Self {
            mount: Arc::clone(&located.mount),
            resolved: Some(join_path(&real_parent, &missing, name))
                .filter(|real| real.as_slice() != located.path.as_bytes())
                .map(|real| escape(&real)),
            base,
            base_id,
            missing,
            name: name.to_vec(),
            shown: located.shown.clone(),
            given_path: located.path.display(),
            real_parent,
            sensitivity: Sensitivity::default(),
            found: None,
        };
        target.check_not_run_log()?;
        target.check_beside_guards()?;
        let found = target.stat()?;
        target.found = found;
        if let Some(found) = &found {
            let at = FileRef { fd: target.base(), name: &target.name };
            target.sensitivity = target.mount.classify(target.resource().effective_sensitivity(), at, found);
        }
        let path = target.path();
        target.sensitivity = target.sensitivity.union(target.mount.sensitive_files.linked().sensitivity(&path));
        target.sensitivity.protected |=
            RepositoryDetector::with_paths(&target.mount, std::iter::once(path.as_slice())).contains(&path);
        if located.path.must_be_directory()
            && found.is_none_or(|stamp| stamp.kind != FileKind::Directory)
            && meant == WriteTargetKind::Any
        {
            return Err(match found {
                Some(_) => wrong_type(&located.shown, "not a directory, but the path ends in `/`"),
                None => suggest::path_error(located, Errno::NOENT),
            });
        }
        if meant != WriteTargetKind::Any {
            target.check_regular_file(located, found)?;
        }
        Ok(target)
    }

    /// The log of a run is written by the host alone.
    fn check_not_run_log(&self) -> Result<(), ToolError> {
        let Some(RunStateMount { log_directory, .. }) = self.mount.run_state else { return Ok(()) };
        let real = fold_name(&self.path()).unwrap_or_default();
        if real.strip_prefix(log_directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            let message = format!("`{}` is the log of the run; it can be read but not changed", self.shown);
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        Ok(())
    }

    /// A file is written where a regular file is, or nothing.
    fn check_regular_file(&self, located: &LocatedPath, found: Option<FileStat>) -> Result<(), ToolError> {
        match found.map(|stamp| stamp.kind) {
            Some(FileKind::File | FileKind::Link) | None if located.path.must_be_directory() => {
                Err(wrong_type(&located.shown, "a directory path, because it ends in `/`, but a file is required"))
            }
            // Where a link leads is looked at by the caller.
            Some(FileKind::File | FileKind::Link) | None => Ok(()),
            Some(other) => Err(wrong_type(&located.shown, other.with_article())),
        }
    }

    /// The path of the file that a link leads to: the one that is changed, and judged, and has the lock. The link stays.
    fn link_target(&self, located: &LocatedPath, meant: WriteTargetKind) -> Result<GuestPath, ToolError> {
        let refused = |what| Err(wrong_type(&located.shown, what).hint("name a file"));
        match self.mount.lookup(&located.path, PATH_ONLY, IoMode::Blocking) {
            // The rule about a file is about its name, and the target has another.
            Ok(_) if meant == WriteTargetKind::FileNoFollow || self.is_guarded() => refused("a link"),
            Ok(OpenFile { stat: FileStat { kind: FileKind::File, .. }, resolved: Some(real), .. }) => {
                Ok(GuestPath::from_kernel(&unescape(&real)))
            }
            Ok(opened) => Err(wrong_type(&located.shown, opened.stat.kind.with_article())),
            Err(Errno::NOENT | Errno::NOTDIR) => refused("a link whose target does not exist"),
            Err(Errno::XDEV) => Err(suggest::path_error(located, Errno::XDEV)),
            Err(_) => refused("a link that does not lead to a file"),
        }
    }

    pub(crate) fn check_directory(&self) -> Result<(), ToolError> {
        // The root is held by the mount, wherever it is.
        if self.base_id == self.mount.id {
            return Ok(());
        }
        // The name is looked up again instead of read from `/proc`, which is not mounted everywhere.
        let named = self.mount.lookup(
            &GuestPath::from_kernel(&self.real_parent),
            PATH_ONLY | OFlags::DIRECTORY,
            IoMode::Blocking,
        );
        let moved = match named {
            Ok(found) => found.stat.id != self.base_id,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => true,
            Err(errno) => return Err(errno_error(errno, &self.shown)),
        };
        if moved {
            let message = format!(
                "the parent directory of `{}` was moved since the call was planned; nothing was changed",
                self.shown
            );
            return Err(ToolError::new(ErrorKind::Conflict, message));
        }
        Ok(())
    }

    /// Another name in the directory that case-insensitive or normalising systems would take for this one. A very large
    /// directory is not searched.
    pub(crate) fn collision(&self, parent: BorrowedFd<'_>) -> Option<String> {
        const MOST_NAMES: usize = 2000;
        let mine = fold_name(&self.name)?;
        let names = names_in(parent, MOST_NAMES).ok()?;
        names
            .into_iter()
            .find(|name| name.as_bytes() != self.name && fold_name(name.as_bytes()).as_deref() == Some(&mine))
    }

    /// Names below the deepest directory that did not exist when the call was planned.
    pub(crate) fn missing_names(&self) -> &[Vec<u8>] {
        &self.missing
    }

    /// Path of the deepest directory that existed when the call was planned, below the root.
    pub(crate) fn base_path(&self) -> &[u8] {
        &self.real_parent
    }

    /// Whether directories have to be made first.
    pub(crate) fn lacks_parents(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The error that an entry of this name cannot be created or removed with, where permissions forbid it now.
    pub(crate) fn directory_failure(&self) -> Option<ToolError> {
        let entered = accessat(&self.base, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        let allowed = check_directory_writable(self.base.as_fd(), &self.shown)
            .and_then(|()| entered.map_err(|errno| errno_error(errno, &self.shown)));
        allowed.err()
    }

    /// The same for new contents of the current file, if there is one.
    pub(crate) fn contents_failure(&self) -> Option<ToolError> {
        let current = self.stat().ok().flatten()?;
        let allowed = match current.denies_write() {
            true => Err(Errno::ACCESS),
            false => accessat(&self.base, self.name.as_slice(), Access::WRITE_OK, AtFlags::EACCESS),
        };
        allowed.map_err(|errno| errno_error(errno, &self.shown)).err()
    }

    /// The same for a file that takes the place of the current one, or is new.
    pub(crate) fn replacement_failure(&self) -> Option<ToolError> {
        self.directory_failure().or_else(|| self.contents_failure())
    }

    /// The stat of the current file.
    pub(crate) fn stat(&self) -> Result<Option<FileStat>, ToolError> {
        if self.missing.is_empty() { self.stat_in(self.base.as_fd()) } else { Ok(None) }
    }

    pub(crate) fn stat_in(&self, parent: BorrowedFd<'_>) -> Result<Option<FileStat>, ToolError> {
        stat(parent, &self.name).map_err(|errno| errno_error(errno, &self.shown))
    }

    pub(crate) fn resource(&self) -> PolicyResource {
        PolicyResource {
            mount: Arc::clone(&self.mount.alias),
            requested_path: self.given_path.clone(),
            resolved_path: self.resolved.clone(),
            display_path: self.shown.clone(),
            sensitivity: self.sensitivity,
            ..PolicyResource::default()
        }
    }

    /// The directory below the root, for the intent that recovery reads. Empty for the root.
    pub(crate) fn parent_path(&self) -> Vec<u8> {
        join_names(std::iter::once(&self.real_parent).chain(&self.missing))
    }

    /// Whether both are the same name in the same directory.
    pub(crate) fn same_name(&self, other: &Self) -> bool {
        self.name == other.name && self.base_id == other.base_id
    }

    /// The path below the root.
    pub(crate) fn path(&self) -> Vec<u8> {
        join_path(&self.real_parent, &self.missing, &self.name)
    }

    /// The directory itself, once nothing is missing.
    pub(crate) fn base(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }

    pub(crate) fn base_id(&self) -> FileId {
        self.base_id
    }

    /// Whether its directory is `id` or lies below it.
    pub(crate) fn is_below(&self, directory: FileId) -> Result<bool, ToolError> {
        let flags = PATH_ONLY | OFlags::DIRECTORY;
        let mut path = self.real_parent.clone();
        loop {
            let here = GuestPath::from_kernel(&path);
            let opened =
                self.mount.lookup(&here, flags, IoMode::Blocking).map_err(|errno| errno_error(errno, &self.shown))?;
            if opened.stat.id == directory {
                return Ok(true);
            }
            match path.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => path.truncate(slash),
                None if path.is_empty() => return Ok(false),
                None => path.clear(),
            }
        }
    }
}

impl WriteTarget {
    /// New contents are another file: it is as sensitive as the one before, or as the one that it was made from.
    pub(crate) fn carry_sensitivity(&self, sensitivity: Sensitivity) {
        if !sensitivity.is_any() {
            return;
        }
        // Directories that were missing are there now.
        let mut opened: Option<OwnedFd> = None;
        for name in &self.missing {
            let above = opened.as_ref().map_or(self.base(), AsFd::as_fd);
            let Ok(child) = self.mount.resolver.open_child(above, name) else { return };
            opened = Some(child);
        }
        let directory = opened.as_ref().map_or(self.base(), AsFd::as_fd);
        if let Ok(Some(stamp)) = self.stat_in(directory) {
            self.mount.classify(sensitivity, FileRef { fd: directory, name: &self.name }, &stamp);
        }
    }
}

/// The deepest directory of a path that exists.
struct ExistingAncestor {
    fd: OwnedFd,
    id: FileId,
    /// Its resolved path, empty for the root.
    real: Vec<u8>,
    /// The names below it that do not exist.
    missing: Vec<Vec<u8>>,
}

/// Opens the directory of a path, or as much of it as exists.
fn open_existing_ancestor(
    located: &LocatedPath,
    parent: GuestPath,
    parents: ParentDirPolicy,
) -> Result<ExistingAncestor, ToolError> {
    let flags = PATH_ONLY | OFlags::DIRECTORY;
    let mut here = parent.clone();
    let mut missing: Vec<Vec<u8>> = Vec::new();
    let mut lookups_left = PARENT_LOOKUPS;
    loop {
        match located.mount.lookup(&here, flags, IoMode::Blocking) {
            Ok(opened) => {
                let real = opened.resolved.map_or_else(|| here.as_bytes().to_vec(), |name| unescape(&name));
                let real = if real == b"." { Vec::new() } else { real };
                if let Some(first) = missing.last()
                    && let Some(found) =
                        stat(opened.fd.as_fd(), first).map_err(|errno| errno_error(errno, &located.shown))?
                {
                    // Either a link to nowhere, or another writer created the directory after its lookup.
                    lookups_left -= 1;
                    if lookups_left == 0 {
                        return Err(not_enterable_error(located, found.kind));
                    }
                    here = parent.clone();
                    missing.clear();
                    continue;
                }
                missing.reverse();
                return Ok(ExistingAncestor { fd: opened.fd, id: opened.stat.id, real, missing });
            }
            Err(Errno::NOENT) if parents == ParentDirPolicy::CreateMissing => {
                let Some((above, name)) = here.split() else { return Err(suggest::path_error(located, Errno::NOENT)) };
                missing.push(name.to_vec());
                here = above;
            }
            Err(Errno::NOENT) => {
                let message = format!("the parent directory of `{}` does not exist", located.shown);
                let error = ToolError::new(ErrorKind::NotFound, message);
                return Err(match suggest::leading_space_hint(located.path.as_bytes()) {
                    Some(advice) => error.hint(advice),
                    None => error,
                });
            }
            Err(errno) => return Err(suggest::path_error(located, errno)),
        }
    }
}

/// The name exists and could not be entered, however often it was looked up.
fn not_enterable_error(located: &LocatedPath, kind: FileKind) -> ToolError {
    match kind {
        FileKind::Link => {
            suggest::path_error(located, Errno::NOENT).hint("it goes through a link whose target does not exist")
        }
        _ => parents_changed_error(&located.shown),
    }
}

fn parents_changed_error(shown: &str) -> ToolError {
    let message = format!("the parent directories of `{shown}` were changed concurrently by another program");
    ToolError::new(ErrorKind::Conflict, message).hint("try again")
}

/// A path that ends in no name: the root, or something by way of `..`.
fn no_name_error(located: &LocatedPath) -> ToolError {
    if located.path.is_root() {
        return root_error(located);
    }
    let flags = PATH_ONLY;
    match located.mount.lookup(&located.path, flags, IoMode::Blocking) {
        Ok(opened) if opened.stat.id == located.mount.id => root_error(located),
        Ok(_) => {
            let message = format!("`{}` ends in `..`", located.shown);
            ToolError::new(ErrorKind::InvalidPath, message).hint("use a path without `..`")
        }
        Err(errno) => suggest::path_error(located, errno),
    }
}

fn root_error(located: &LocatedPath) -> ToolError {
    let of = if located.shown.starts_with('@') { "mount" } else { "workspace" };
    let message = format!("`{}` is the root of the {of}", located.shown);
    ToolError::new(ErrorKind::PermissionDenied, message).hint("it can only be listed")
}

fn join_path(parent: &[u8], missing: &[Vec<u8>], name: &[u8]) -> Vec<u8> {
    let name = name.to_vec();
    join_names([&parent.to_vec()].into_iter().chain(missing).chain([&name]))
}

fn join_names<'a>(parts: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut path = Vec::new();
    for part in parts.filter(|part| !part.is_empty()) {
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    path
}
