//! Mounts: a root with its locks, journal, digests, known files and guards.
//!
//! Lookups are those of the root (`root/`). What needs more than one of the others is here.

pub(crate) mod change;
pub(crate) mod guards;
pub(crate) mod ignored;
pub(crate) mod images;
pub(crate) mod node_source;
pub(crate) mod repository;
pub(crate) mod repository_files;
pub(crate) mod suggest;
pub(crate) mod tree_conditions;
pub(crate) mod write_target;

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringfence_kernel::{CallContext, ErrorKind, IoMode, LookupTarget, PolicyResource, Sensitivity, ToolError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::guard::GuardedFile;
use crate::journal::Journal;
use crate::lock::LockTable;
use crate::path::guest::GuestPath;
use crate::path::name::unescape;
use crate::read::digest::DigestCache;
use crate::root::resolver::PATH_ONLY;
use crate::root::{MountAccess, MountRoot, OpenFile};
use crate::sensitive::files::SensitiveFiles;
use crate::sys::errno::{errno_error, wrong_type};
use crate::sys::file_ref::FileRef;
use crate::sys::own_files::SAFE_OPEN;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::openat;

/// A directory that tools may reach, with what is kept about it.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) base: MountRoot,
    pub(crate) locks: LockTable,
    /// The write-ahead log. A read-only mount has none.
    pub(crate) journal: Option<Journal>,
    pub(crate) journal_mode: JournalMode,
    pub(crate) digests: DigestCache,
    /// Files that deserve a second look whatever they are called.
    pub(crate) sensitive_files: SensitiveFiles,
    /// Files whose contents have rules of their own.
    pub(crate) guards: Vec<GuardedFile>,
    /// Set for the mount that has the state of a run.
    pub(crate) run_state: Option<RunStateMount>,
}

/// The mount that has the state of a run: programs do not see it, and front matter is updated only there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunStateMount {
    pub alias: &'static str,
    /// A directory that the host alone changes.
    pub log_directory: &'static str,
    /// For a path on that mount where there is no run.
    pub absence_hint: &'static str,
}

impl Deref for Mount {
    type Target = MountRoot;

    fn deref(&self) -> &MountRoot {
        &self.base
    }
}

/// A path on a mount: where a caller pointed.
#[derive(Clone, Debug)]
pub(crate) struct LocatedPath {
    pub(crate) mount: Arc<Mount>,
    pub(crate) path: GuestPath,
    /// As replies say it.
    pub(crate) shown: String,
}

impl LookupTarget for LocatedPath {
    /// With links followed as far as there is something: they do not lead around a rule about what is behind them. The
    /// last one is followed to its target, whether there is something or not.
    fn resources(&self) -> Vec<PolicyResource> {
        const MOST_LINKS: usize = 8;
        let mut places = Vec::new();
        let mut next = Some(self.path.clone());
        while let Some(path) = next.take().filter(|_| places.len() <= MOST_LINKS) {
            let (real, target) = self.mount.real_parent(&path).unzip();
            places.push(self.resource(real.filter(|real| *real != self.path.display())));
            next = target.flatten();
        }
        places
    }
}

impl LocatedPath {
    /// The only function that opens contents. It opens regular files that may be read, and nothing else: opening a pipe
    /// or a device has side effects.
    pub(crate) fn open_content(&self, cx: &CallContext<'_>) -> Result<OpenFile, ToolError> {
        let found = self.open(PATH_ONLY, cx)?;
        match found.stat.kind {
            FileKind::File if self.path.must_be_directory() => {
                return Err(wrong_type(&self.shown, "a file and not a directory"));
            }
            FileKind::File if found.stat.denies_read() => return Err(errno_error(Errno::ACCESS, &self.shown)),
            FileKind::File => {}
            other => return Err(wrong_type(&self.shown, other.with_article())),
        }
        let by_name = |flags| self.mount.lookup(&self.path, flags, cx.io_mode).map(|opened| opened.fd);
        match self.mount.open_regular(&found.fd, &found.stat, OFlags::RDONLY, by_name) {
            Ok(fd) => Ok(OpenFile { fd, ..found }),
            Err(Errno::AGAIN) if cx.io_mode == IoMode::NonBlocking => Err(cx.would_block()),
            Err(errno) => Err(errno_error(errno, &self.shown)),
        }
    }

    /// A directory, to be listed.
    pub(crate) fn open_directory(&self, cx: &CallContext<'_>) -> Result<OpenFile, ToolError> {
        let opened = self.open(OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, cx)?;
        if opened.stat.denies_read() || opened.stat.denies_search() {
            return Err(errno_error(Errno::ACCESS, &self.shown));
        }
        // `cap-std` gives a descriptor that cannot be listed; for others this is one cheap call more.
        let fd = openat(&opened.fd, c".", OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty());
        Ok(OpenFile { fd: fd.map_err(|errno| errno_error(errno, &self.shown))?, ..opened })
    }

    fn open(&self, flags: OFlags, cx: &CallContext<'_>) -> Result<OpenFile, ToolError> {
        if cx.io_mode == IoMode::NonBlocking && !self.mount.supports_non_blocking {
            return Err(cx.would_block());
        }
        match self.mount.lookup(&self.path, flags, cx.io_mode) {
            Ok(opened) => Ok(opened),
            // Only a patient call looks around for what may have been meant.
            Err(Errno::AGAIN | Errno::NOENT) if cx.io_mode == IoMode::NonBlocking => Err(cx.would_block()),
            Err(errno) => Err(suggest::path_error(self, errno)),
        }
    }

    pub(crate) fn resource(&self, resolved: Option<String>) -> PolicyResource {
        let real = resolved.as_deref().map_or_else(|| self.path.as_bytes().to_vec(), unescape);
        PolicyResource {
            sensitivity: self.mount.sensitive_files.linked().sensitivity(&real),
            mount: Arc::clone(&self.mount.alias),
            requested_path: self.path.display(),
            resolved_path: resolved,
            display_path: self.shown.clone(),
            ..PolicyResource::default()
        }
    }

    /// The policy resource of a file whose contents are requested.
    pub(crate) fn resource_of(&self, file: &mut OpenFile, cx: &CallContext<'_>) -> Result<PolicyResource, ToolError> {
        let mut place = self.resource(file.resolved.take());
        let (named, at) = (place.effective_sensitivity(), FileRef::open(&file.fd));
        let real = place.resolved_path.as_deref().unwrap_or(&place.requested_path);
        let name = real.rsplit('/').next().unwrap_or_default().as_bytes();
        let sensitivity = match cx.io_mode {
            IoMode::Blocking => self.mount.sensitive_files.classify_named(&self.mount, name, named, at, &file.stat),
            IoMode::NonBlocking => self
                .mount
                .sensitive_files
                .classify_non_blocking(&self.mount, name, named, at, &file.stat)
                .ok_or_else(|| cx.would_block())?,
        };
        place.sensitivity = sensitivity;
        Ok(place)
    }

    /// A slash at the end of a path is fine where a directory is going to be.
    #[must_use]
    pub(crate) fn allow_slash_for(mut self, kind: FileKind) -> Self {
        if kind == FileKind::Directory {
            self.path.drop_trailing_slash();
        }
        self
    }

    /// Fails before anything else does where nothing may be changed.
    pub(crate) fn check_writable(&self) -> Result<(), ToolError> {
        match self.mount.rights {
            MountAccess::ReadWrite => self.mount.check_image_store(),
            MountAccess::ReadOnly => {
                Err(ToolError::new(ErrorKind::ReadOnly, format!("`{}` is on a read-only mount", self.shown)))
            }
        }
    }
}

/// Whether changes can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalMode {
    #[default]
    On,
    /// Displaced files are deleted permanently, as with any other program.
    Off,
}

impl Mount {
    /// The journal, if it keeps pre-images to undo changes with.
    pub(crate) fn undo_journal(&self) -> Option<&Journal> {
        self.journal.as_ref().filter(|_| self.journal_mode == JournalMode::On)
    }

    /// Sensitivity of a file by its current and earlier names. The verdict by its current names is remembered.
    pub(crate) fn classify(&self, named: Sensitivity, at: FileRef<'_>, stamp: &FileStat) -> Sensitivity {
        self.sensitive_files.classify(self, named, at, stamp)
    }

    /// Remembers an entry that a walk or a listing came across, if its name says something. `path` is where it is below
    /// the root, or at least its last names.
    pub(crate) fn observe(&self, path: &str, directory: BorrowedFd<'_>, name: &[u8]) {
        self.sensitive_files.observe(self, path, directory, name);
    }

    /// The same where the sensitivity of the name is known.
    pub(crate) fn observe_named(&self, named: Sensitivity, directory: BorrowedFd<'_>, name: &[u8]) {
        self.sensitive_files.observe_named(self, named, directory, name);
    }

    /// Before a call: looks at what usually is at the root of a workspace, if that changed.
    pub(crate) fn scan_root(&self, cx: &CallContext<'_>) -> Result<(), ToolError> {
        self.sensitive_files.scan_root(self, cx)
    }
}
