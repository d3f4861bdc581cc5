//! The mount set of a host, and path lookup in it.

use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_kernel::{
    CallCommitState, CallContext, CallLimits, Dialect, ErrorKind, IoMode, LookupTarget as _, PolicyResource, ToolError,
    nearest_name,
};
use ringfence_sys::commit_log::CommitLog;
use rustix::fs::{CWD, Mode, OFlags, StatFs};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::guard::{ChangeRule, GuardedFile};
use crate::journal::{ChangeSequenceCounter, Journal, JournalEntry, journal_read_error};
use crate::lock::{LockTable, StateVersionCheck};
use crate::mount::suggest::leading_space_hint;
use crate::mount::{JournalMode, LocatedPath, Mount, RunStateMount};
use crate::path::guest::GuestPath;
use crate::path::name::NameRule;
use crate::path::workspace::WORKSPACE_OF_PROGRAMS;
use crate::read::content::{DigestMode, read_start};
use crate::read::digest::DigestCache;
use crate::root::directory_flush::DirectoryFlushes;
use crate::root::resolver::{CapStdResolver, LinkPolicy, OpenHow, Openat2Resolver, PATH_ONLY, PathResolver};
use crate::root::{Durability, MountAccess, MountRoot, StagingMode, StartWriteback, rename_noreplace, stat};
use crate::sensitive::files::SensitiveFiles;
use crate::sys::file_ref::{BirthTime, FileRef};
use crate::sys::own_files::{SAFE_OPEN, open_private_dir, open_state_dir};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fstat, fstatfs, openat, statfs};
use crate::txn::recover::recover_all;

/// Every directory that tools may reach. There is no other way to a file.
#[derive(Clone, Debug)]
pub struct Fence {
    /// The workspace comes first.
    mounts: Vec<Arc<Mount>>,
    run_state: Option<RunStateMount>,
    /// The state directory. Never shown.
    state: PathBuf,
}

/// A file that the host itself goes by.
#[derive(Clone, Debug)]
pub struct HostFile {
    located: LocatedPath,
}

/// A path in the workspace.
#[derive(Clone, Debug)]
pub struct WorkspacePath {
    /// Below the workspace; empty for the workspace itself.
    pub path: Vec<u8>,
    /// For the policy: the resource itself, then those that it leads to as a link.
    pub resources: Vec<PolicyResource>,
}

/// A directory to be mounted.
#[derive(Clone, Debug)]
pub struct MountSpec {
    /// `data` for what callers write as `@data/…`.
    pub alias: String,
    pub path: PathBuf,
    pub rights: MountAccess,
}

/// A mount, and every change of it.
pub(crate) type MountJournalEntries = (Arc<Mount>, Vec<JournalEntry>);

/// A path as a caller gave it, and how their dialect reads it.
#[derive(Clone, Debug)]
pub(crate) enum PathArg {
    /// Relative to the workspace, absolute inside it, or `@mount/…` where further mounts are declared.
    Workspace(String),
    /// The same, and `/workspace/…`, the path that programs see, is the workspace too.
    Standard(String),
    /// Always `@mount/…`, without `..`, and shown so.
    Mounted(String),
}

/// Options of the fence.
#[derive(Clone, Copy, Debug, Default)]
pub struct FenceOptions {
    pub backend: ResolverBackend,
    pub durability: Durability,
    /// Begins to write staged contents while their change is planned, so that its fsync has less to wait for.
    pub start_writeback: Option<StartWriteback>,
    pub staging: StagingMode,
    pub names: NameRule,
    pub journal: JournalMode,
    /// The mount for the state of a run, whether there is a run or not.
    pub run_state: Option<RunStateMount>,
}

/// Implementation of path resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResolverBackend {
    /// The kernel where it can, `cap-std` where it cannot.
    #[default]
    Best,
    CapStd,
}

/// Failure to set up a fence.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    #[error("cannot open the {what}")]
    Open { what: String, source: std::io::Error },
    #[error("the mounts `{0}` and `{1}` overlap; one must not contain the other")]
    Overlap(String, String),
    #[error("invalid mount name `{0}`: use letters, digits, `-` and `_`")]
    Alias(String),
    #[error("two mounts are named `{0}`")]
    AliasTaken(String),
    #[error(
        "the state of the mount `{0}` was written by a newer version of Ringfence; install the newer version, or use another \
         state directory"
    )]
    NewerState(String),
    #[error(
        "an earlier version of Ringfence was interrupted in a change of the mount `{0}`; start that version once, which \
         recovers it"
    )]
    InterruptedVersion(String),
    #[error("an earlier version of Ringfence is changing the mount `{0}`; stop it, then try again")]
    EarlierVersionBusy(String),
    #[error("cannot guard `{0}`: unknown mount, or already in use")]
    Guard(String),
}

impl PathArg {
    /// A path of the workspace; blank text counts as none.
    pub(crate) fn workspace_unless_blank(text: String) -> Self {
        Self::Workspace(if text.trim().is_empty() { String::new() } else { text })
    }

    /// A directory of the standard dialect; the workspace where none is given.
    pub(crate) fn directory(text: Option<String>) -> Self {
        Self::Standard(text.unwrap_or_else(|| ".".to_owned()))
    }
}

impl Fence {
    /// Opens the workspace and further mounts. Locks go into `state`, a directory of our own. Each journal is flushed by
    /// itself.
    pub fn new(
        workspace: MountSpec,
        others: Vec<MountSpec>,
        state: &Path,
        options: FenceOptions,
    ) -> Result<Self, FenceError> {
        Self::open(workspace, others, state, options, None)
    }

    /// The same with journals that are flushed together with the other files of a redo log of the same state directory.
    pub fn with_commit_log(
        workspace: MountSpec,
        others: Vec<MountSpec>,
        state: &Path,
        options: FenceOptions,
        commit_log: Arc<CommitLog>,
    ) -> Result<Self, FenceError> {
        Self::open(workspace, others, state, options, Some(commit_log))
    }

    fn open(
        workspace: MountSpec,
        others: Vec<MountSpec>,
        state: &Path,
        options: FenceOptions,
        commit_log: Option<Arc<CommitLog>>,
    ) -> Result<Self, FenceError> {
        let fail = |source| FenceError::Open { what: "state directory".to_owned(), source };
        let own = StateDirs {
            locks: open_state_dir(state, "locks").map_err(fail)?,
            journal: open_state_dir(state, JOURNALS).map_err(fail)?,
            clock: Arc::default(),
            commit_log,
        };
        let mut mounts: Vec<Arc<Mount>> = Vec::new();
        for (spec, named) in std::iter::once((workspace, false)).chain(others.into_iter().map(|spec| (spec, true))) {
            if spec.alias.is_empty()
                || !spec.alias.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
            {
                return Err(FenceError::Alias(spec.alias));
            }
            let mount = open_mount(spec, named, &own, options)?;
            for other in &mounts {
                if other.alias == mount.alias {
                    return Err(FenceError::AliasTaken(mount.alias.to_string()));
                }
                if overlap(other, &mount) {
                    return Err(FenceError::Overlap(other.alias.to_string(), mount.alias.to_string()));
                }
            }
            if mount.rights == MountAccess::ReadWrite {
                recover_all(&mount).map_err(|_| FenceError::NewerState(mount.alias.to_string()))?;
            }
            mounts.push(Arc::new(mount));
        }
        Ok(Self { mounts, run_state: options.run_state, state: state.to_owned() })
    }

    /// Binds a rule to a file: from now on no change of it goes without the rule. Only before the fence is shared.
    pub fn guard(&mut self, alias: &str, path: &str, rule: Arc<dyn ChangeRule>) -> Result<(), FenceError> {
        let mount = self.mounts.iter_mut().find(|mount| &*mount.alias == alias).and_then(Arc::get_mut);
        let mount = mount.ok_or_else(|| FenceError::Guard(format!("@{alias}/{path}")))?;
        mount.guards.push(GuardedFile { path: path.as_bytes().to_vec(), rule });
        Ok(())
    }

    /// The directory of our own that the fence keeps its state in.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    pub(crate) fn mounts(&self) -> &[Arc<Mount>] {
        &self.mounts
    }

    /// Implementation of path resolution on the workspace: `openat2` or `cap-std`.
    pub fn backend(&self) -> &'static str {
        self.mounts[0].resolver.name()
    }

    /// A file of the workspace that the host itself goes by, such as its settings: all of it, or an error if it has
    /// more than `most` bytes. `None` if there is none.
    pub fn read(&self, path: &str, most: u64) -> Result<Option<Vec<u8>>, ToolError> {
        let file = self.host_file(path)?;
        match file.read(most) {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) => Err(ToolError::new(ErrorKind::ReadLimit, format!("`{}` exceeds {most} bytes", file.shown()))),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A path of the standard dialect in the workspace, for tools of other crates that pass it on to a program. It does not
    /// have to exist, and has no `..`: a program would not read that as the fence does.
    pub fn workspace_path(&self, text: &str, cx: &CallContext<'_>) -> Result<WorkspacePath, ToolError> {
        let located = self.locate(text, cx)?;
        if located.path.has_dotdot() {
            return Err(ToolError::new(ErrorKind::InvalidPath, format!("`{}` contains `..`", located.shown)));
        }
        if !self.mounts.first().is_some_and(|workspace| Arc::ptr_eq(workspace, &located.mount)) {
            let message = format!("`{}` is not in the workspace", located.shown);
            return Err(ToolError::new(ErrorKind::OutsideWorkspace, message));
        }
        let path = if located.path.is_root() { Vec::new() } else { located.path.as_bytes().to_vec() };
        Ok(WorkspacePath { path, resources: located.resources() })
    }

    /// A file that the host itself goes by. It does not have to exist.
    pub fn host_file(&self, path: &str) -> Result<HostFile, ToolError> {
        Ok(HostFile { located: self.find(path)? })
    }

    pub(crate) fn run_state(&self) -> Option<RunStateMount> {
        self.run_state
    }

    /// Resolves a path of the standard dialect: to the workspace, or to the mount that it names.
    pub(crate) fn locate(&self, text: &str, cx: &CallContext<'_>) -> Result<LocatedPath, ToolError> {
        announce_lookup(self.find_standard(text)?, cx)
    }

    /// The same, for tools that several dialects offer.
    pub(crate) fn locate_arg(&self, given: &PathArg, cx: &CallContext<'_>) -> Result<LocatedPath, ToolError> {
        let located = match given {
            PathArg::Workspace(text) => self.find(text)?,
            PathArg::Standard(text) => self.find_standard(text)?,
            PathArg::Mounted(text) => self.find_mounted(text)?,
        };
        announce_lookup(located, cx)
    }

    /// Whether two paths of the standard dialect are equal after normalisation by text.
    pub(crate) fn is_same_place(&self, one: &str, other: &str) -> bool {
        match (self.find_standard(one), self.find_standard(other)) {
            (Ok(one), Ok(other)) => Arc::ptr_eq(&one.mount, &other.mount) && one.path == other.path,
            _ => false,
        }
    }

    /// A directory that really is at the path that programs see is meant before the workspace is.
    fn find_standard(&self, text: &str) -> Result<LocatedPath, ToolError> {
        let real = |mount: &Mount| mount.host_roots.iter().any(|root| GuestPath::is_beneath(text, root));
        let [workspace, others @ ..] = &self.mounts[..] else { return self.find(text) };
        if !GuestPath::is_beneath(text, Path::new(WORKSPACE_OF_PROGRAMS)) || real(workspace) {
            return self.find(text);
        }
        match others.iter().find(|mount| real(mount)) {
            Some(mount) => {
                Ok(located_path(mount, GuestPath::parse_beneath(text, &mount.host_roots)?, PathDisplayStyle::WithAlias))
            }
            None => Ok(located_path(
                workspace,
                GuestPath::parse_beneath(text, &[WORKSPACE_OF_PROGRAMS])?,
                PathDisplayStyle::Bare,
            )),
        }
    }

    fn find_mounted(&self, text: &str) -> Result<LocatedPath, ToolError> {
        let Some(named) = text.strip_prefix('@') else {
            let aliases: Vec<String> = self.mounts.iter().map(|mount| format!("@{}", mount.alias)).collect();
            let message = format!("a path must begin with a mount: {}", aliases.join(", "));
            let error = ToolError::new(ErrorKind::InvalidPath, message);
            return Err(match leading_space_hint(text.as_bytes()) {
                Some(advice) => error.hint(advice),
                None => error,
            });
        };
        let (mount, path) = self.beneath_alias(&with_single_slash(named), "")?;
        if path.has_dotdot() {
            return Err(ToolError::new(ErrorKind::OutsideWorkspace, "a path must not contain `..`"));
        }
        Ok(located_path(mount, path, PathDisplayStyle::WithAlias))
    }

    pub(crate) fn find(&self, text: &str) -> Result<LocatedPath, ToolError> {
        if let Some(named) = text.strip_prefix('@')
            && self.mounts.len() > 1
        {
            let (mount, path) = self.beneath_alias(named, "; for a directory of that name, put `./` in front")?;
            return Ok(located_path(
                mount,
                path,
                if mount.shows_alias { PathDisplayStyle::WithAlias } else { PathDisplayStyle::Bare },
            ));
        }
        let mount = &self.mounts[0];
        Ok(located_path(mount, GuestPath::parse_beneath(text, &mount.host_roots)?, PathDisplayStyle::Bare))
    }

    /// The mount that a path names after its `@`, and the path below it. `advice` is for names that no mount has.
    fn beneath_alias(&self, named: &str, advice: &str) -> Result<(&Arc<Mount>, GuestPath), ToolError> {
        let (alias, rest) = named.split_once('/').unwrap_or((named, ""));
        let mount = self.mounts.iter().find(|mount| &*mount.alias == alias);
        let mount = mount.ok_or_else(|| self.unknown_alias_error(alias, advice))?;
        Ok((mount, GuestPath::parse(if rest.is_empty() { "." } else { rest })?))
    }

    /// The journal of each mount, the oldest change first.
    pub(crate) fn mount_changes(&self) -> Result<Vec<MountJournalEntries>, ToolError> {
        let unreadable = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::Unsupported => journal_read_error(error),
            _ => ToolError::new(ErrorKind::Unavailable, "cannot read the journal"),
        };
        let journals = self.mounts.iter().filter_map(|mount| Some((mount, mount.journal.as_ref()?)));
        journals.map(|(mount, journal)| Ok((Arc::clone(mount), journal.entries().map_err(unreadable)?))).collect()
    }

    /// Names that mean a mount where they stand at the start of a path, so that an entry of that name is not meant.
    pub(crate) fn shadowing_aliases(&self, located: &LocatedPath) -> Vec<String> {
        let at_start = located.path.is_root() && Arc::ptr_eq(&located.mount, &self.mounts[0]) && self.mounts.len() > 1;
        if at_start { self.mounts.iter().map(|mount| format!("@{}", mount.alias)).collect() } else { Vec::new() }
    }

    fn unknown_alias_error(&self, alias: &str, advice: &str) -> ToolError {
        let alias = &alias[..alias.floor_char_boundary(64)];
        let error = ToolError::new(ErrorKind::InvalidPath, format!("unknown mount `@{alias}`"));
        let run_state = self.run_state.filter(|state| state.alias == alias);
        match nearest_name(alias, self.mounts.iter().map(|mount| &*mount.alias)) {
            Some(guess) => error.hint(&format!("did you mean `@{guess}`?")),
            None if run_state.is_some() => error.hint(run_state.map_or("", |state| state.absence_hint)),
            None => {
                let aliases: Vec<String> = self.mounts.iter().map(|mount| format!("@{}", mount.alias)).collect();
                error.hint(&format!("there are {}{advice}", aliases.join(", ")))
            }
        }
    }
}

impl HostFile {
    /// The file, as replies spell it.
    pub fn shown(&self) -> &str {
        &self.located.shown
    }

    /// What may be done on its mount.
    pub fn rights(&self) -> MountAccess {
        self.located.mount.rights
    }

    /// All of it. `None` if it has more than `most` bytes.
    pub fn read(&self, most: u64) -> Result<Option<Vec<u8>>, ToolError> {
        let limits = CallLimits { read_bytes: most, ..CallLimits::for_dialect(Dialect::Standard) };
        let signal = CallCommitState::new();
        let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
        let file = self.located.open_content(&cx)?;
        let part = read_start(&self.located.mount.digests, &file, DigestMode::Skip, &self.located.shown, &cx)?;
        Ok((!part.truncated).then_some(part.bytes))
    }
}

/// A path from its mount on with one slash after the mount, as crewagent reads it. A backslash there means that
/// backslashes separate directories too.
fn with_single_slash(named: &str) -> Cow<'_, str> {
    match named.split_once(['/', '\\']) {
        Some((alias, rest)) if named[alias.len()..].starts_with('\\') => {
            Cow::Owned(format!("{alias}/{}", rest.replace('\\', "/").trim_start_matches('/')))
        }
        Some((alias, rest)) if rest.starts_with('/') => Cow::Owned(format!("{alias}/{}", rest.trim_start_matches('/'))),
        _ => Cow::Borrowed(named),
    }
}

/// Says where a call looks, to those who have to know before it does.
fn announce_lookup(located: LocatedPath, cx: &CallContext<'_>) -> Result<LocatedPath, ToolError> {
    cx.set_subject(&located.shown);
    cx.add_lookup(located.clone());
    located.mount.check_in_place(cx.io_mode)?;
    located.mount.scan_root(cx)?;
    Ok(located)
}

/// Whether replies have the mount of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathDisplayStyle {
    Bare,
    WithAlias,
}

fn located_path(mount: &Arc<Mount>, path: GuestPath, how: PathDisplayStyle) -> LocatedPath {
    let shown = match (how, path.is_root()) {
        (PathDisplayStyle::Bare, _) => path.display(),
        (PathDisplayStyle::WithAlias, true) => format!("@{}", mount.alias),
        (PathDisplayStyle::WithAlias, false) => format!("@{}/{}", mount.alias, path.display()),
    };
    LocatedPath { mount: Arc::clone(mount), path, shown }
}

/// Directories of our own that every mount has a part of.
struct StateDirs {
    locks: OwnedFd,
    journal: OwnedFd,
    clock: Arc<ChangeSequenceCounter>,
    commit_log: Option<Arc<CommitLog>>,
}

/// Directory of the journals, below the state directory.
const JOURNALS: &str = "journal";

#[expect(clippy::disallowed_methods, reason = "the name of the root, only to understand absolute paths")]
fn open_mount(spec: MountSpec, named: bool, own: &StateDirs, options: FenceOptions) -> Result<Mount, FenceError> {
    let what =
        if named { format!("directory of the mount `{}`", spec.alias) } else { "workspace directory".to_owned() };
    let fail = |error: std::io::Error| FenceError::Open { what: what.clone(), source: error };
    let root = openat(CWD, &spec.path, OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty())
        .map_err(|errno| fail(errno.into()))?;
    let stamp = FileStat::from_stat(&fstat(&root).map_err(|errno| fail(errno.into()))?);
    let mut host_roots = vec![spec.path.clone()];
    host_roots.extend(std::fs::canonicalize(&spec.path).ok().filter(|real| *real != spec.path));
    let resolver: Box<dyn PathResolver> = match options.backend {
        ResolverBackend::Best if has_openat2(&root) => Box::new(Openat2Resolver),
        _ => Box::new(CapStdResolver::new(root.as_fd()).map_err(fail)?),
    };
    let quick = fstatfs(&root).is_ok_and(|found| supports_cached_lookup(&found)) && is_local(&spec.path);
    let stripes = format!("{:x}-{:x}", stamp.id.device, stamp.id.inode);
    let locks = open_private_dir(&own.locks, stripes.as_bytes())
        .map_err(|errno| FenceError::Open { what: "lock directory".to_owned(), source: errno.into() })?;
    let state_error = |what: &str, error: std::io::Error| match error.kind() {
        std::io::ErrorKind::Unsupported => FenceError::NewerState(spec.alias.clone()),
        std::io::ErrorKind::InvalidData => FenceError::InterruptedVersion(spec.alias.clone()),
        std::io::ErrorKind::ResourceBusy => FenceError::EarlierVersionBusy(spec.alias.clone()),
        _ => FenceError::Open { what: what.to_owned(), source: error },
    };
    StateVersionCheck::default().check(locks.as_fd()).map_err(|error| state_error("lock directory", error))?;
    let locks = LockTable::new(locks);
    let journal = match spec.rights {
        MountAccess::ReadWrite => {
            let born = FileRef::open(&root).birth_time();
            let directory = open_journal(&own.journal, &stripes, born).map_err(std::io::Error::from);
            Some(directory.and_then(|(name, directory)| {
                locks.migrate(&[directory.as_fd()])?;
                let path = Path::new(JOURNALS).join(name);
                Journal::open(path, directory, &own.clock, own.commit_log.clone())
            }))
        }
        MountAccess::ReadOnly => None,
    };
    let journal = journal.transpose().map_err(|error| state_error("journal", error))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | SAFE_OPEN;
    let note = openat(locks.directory(), c"secrets", flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| FenceError::Open { what: "list of secret files".to_owned(), source: errno.into() })?;
    let run_state = options.run_state.filter(|state| state.alias == spec.alias);
    let base = MountRoot {
        alias: Arc::from(spec.alias),
        shows_alias: named,
        id: stamp.id,
        host_roots,
        rights: spec.rights,
        privileged: geteuid().is_root(),
        names: options.names,
        durability: options.durability,
        directory_flushes: DirectoryFlushes::default(),
        start_writeback: options.start_writeback,
        staging: options.staging,
        resolver,
        supports_non_blocking: quick,
        proc_self_fd: openat(CWD, c"/proc/self/fd", PATH_ONLY | OFlags::DIRECTORY, Mode::empty()).ok(),
        root,
    };
    Ok(Mount {
        base,
        locks,
        journal,
        journal_mode: options.journal,
        digests: DigestCache::default(),
        sensitive_files: SensitiveFiles::read(note),
        guards: Vec::new(),
        run_state,
    })
}

/// One lookup tells whether the kernel, or a sandbox around us, lets `openat2` through.
fn has_openat2(root: &OwnedFd) -> bool {
    let how = OpenHow { flags: PATH_ONLY, links: LinkPolicy::Refuse, pace: IoMode::Blocking };
    Openat2Resolver.open(root.as_fd(), b".", how).is_ok()
}

/// Local file systems open and stat what is in memory without asking a daemon or a network.
#[expect(clippy::cast_sign_loss, reason = "a magic number has no sign")]
fn supports_cached_lookup(found: &StatFs) -> bool {
    const EXT: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    const F2FS: u64 = 0xf2f5_2010;
    matches!(found.f_type as u64, EXT | XFS | BTRFS | TMPFS | F2FS)
}

/// Whether the name of a root can be looked up without a daemon or a network: every directory above it is local. A
/// container's root is an overlay of local directories.
fn is_local(path: &Path) -> bool {
    const OVERLAY: u64 = 0x794c_7630;
    #[expect(clippy::cast_sign_loss, reason = "a magic number has no sign")]
    let local = |found: StatFs| supports_cached_lookup(&found) || found.f_type as u64 == OVERLAY;
    path.ancestors().skip(1).all(|above| statfs(above).is_ok_and(local))
}

/// One directory inside the other, or the same: then the weaker rights would be no rights.
fn overlap(a: &Mount, b: &Mount) -> bool {
    let within = |inner: &Mount, outer: &Mount| {
        inner.host_roots.iter().any(|inner| outer.host_roots.iter().any(|outer| inner.starts_with(outer)))
    };
    a.id == b.id || within(a, b) || within(b, a)
}

/// The directory of a mount's journal. An inode is given out again: one that was made at another time has another journal.
fn open_journal(parent: &OwnedFd, id: &str, born: BirthTime) -> Result<(String, OwnedFd), Errno> {
    let Some(born) = born else { return Ok((id.to_owned(), open_private_dir(parent, id.as_bytes())?)) };
    let name = format!("{id}-{born}");
    let [before, now] = [id, &name].map(|name| (parent.as_fd(), name.as_bytes()));
    // Earlier versions did not say when.
    if stat(before.0, before.1)?.is_some() {
        match rename_noreplace(before, now) {
            Ok(()) | Err(Errno::NOENT | Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    let directory = open_private_dir(parent, now.1)?;
    Ok((name, directory))
}

#[cfg(test)]
mod tests {
    use super::{Arc, Fence, FenceOptions, MountAccess, MountSpec};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the directories are made before there is a mount")]
    fn a_directory_that_really_is_where_programs_see_the_workspace_is_meant_first() {
        let home = tempfile::tempdir().unwrap();
        let spec = |alias: &str| {
            let path = home.path().join(alias);
            std::fs::create_dir(&path).unwrap();
            MountSpec { alias: alias.to_owned(), path, rights: MountAccess::ReadWrite }
        };
        let (workspace, data) = (spec("workspace"), spec("data"));
        let mut fence = Fence::new(workspace, vec![data], &home.path().join("state"), FenceOptions::default()).unwrap();
        let mut stand_at = |roots: [&str; 2]| {
            for (mount, root) in fence.mounts.iter_mut().zip(roots) {
                Arc::get_mut(mount).unwrap().base.host_roots = vec![root.into()];
            }
            let found = |path: &str| fence.find_standard(path).map_or("refused".to_owned(), |located| located.shown);
            ["/workspace/a", "/workspace/one/a", "/workspace/data/a", "/workspaces/a"].map(found)
        };
        assert_eq!(stand_at(["/home/x", "/srv/y"]), ["a", "one/a", "data/a", "refused"]);
        assert_eq!(stand_at(["/workspace", "/srv/y"]), ["a", "one/a", "data/a", "refused"]);
        assert_eq!(stand_at(["/workspace/one", "/workspace/data"]), ["a", "a", "@data/a", "refused"]);
        assert_eq!(stand_at(["/home/x", "/workspace"]), ["@data/a", "@data/one/a", "@data/data/a", "refused"]);
    }
}
