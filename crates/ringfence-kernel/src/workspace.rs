//! Workspace views: what a program sees of the files, and how its changes are committed.
//!
//! The jail knows nothing of mounts, policy and journal; the fence knows nothing of processes. They meet in
//! `Workspace`: a jail shows its program a `WorkspaceView`, and gives back the upper directory of its overlay.
//!
//! Not here: any file. `ringfence-fs` implements this, `ringfence-sandbox` uses it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use std::{fmt, io};

use crate::{
    Approval, CallContext, ChangeGroup, ChangeGroupDecision, ErrorKind, Preview, ResourceAccess, Ticket, ToolError,
};

/// The files that programs may work on.
pub trait Workspace: Send + Sync + fmt::Debug {
    /// Makes the directory in which changes of the workspace are staged, if there is none. A program that is given a view
    /// after this does not see it, although the workspace changes while it runs.
    fn create_staging(&self, cx: &CallContext<'_>) -> Result<(), ToolError>;

    /// The view of a program that starts now.
    fn view(&self, cx: &CallContext<'_>) -> Result<WorkspaceView, ToolError>;

    /// A secret that programs can read from the objects of a repository, although the file is masked. As replies spell it.
    /// Only what the index of a repository names is known: a secret that was committed and removed since is not.
    fn committed_secret(&self, cx: &CallContext<'_>) -> Result<Option<String>, ToolError>;

    /// The changes of a program. `upper` is the upper directory of an overlay above the view's directory, made by the
    /// program and therefore untrusted. Reads only.
    fn changes(
        &self,
        view: &WorkspaceView,
        upper: OwnedFd,
        cx: &CallContext<'_>,
    ) -> Result<Box<dyn WorkspaceChanges>, ToolError>;

    /// A layer on disk for the changes of a wrapped program. It is kept until a person decides about it.
    fn create_layer(
        &self,
        view: &WorkspaceView,
        about: &LayerDescription,
        cx: &CallContext<'_>,
    ) -> Result<Box<dyn WorkspaceLayer>, ToolError>;
}

/// The wrapped program that a layer is made for.
#[derive(Clone, Debug, Default)]
pub struct LayerDescription {
    /// Name of the program, without its arguments: they may contain secrets.
    pub program: String,
    /// Name of its profile. Runs of one profile in one workspace share a home directory.
    pub profile: String,
    /// Files that the home directory starts with, where the program has not changed them.
    pub home_files: Vec<HomeFile>,
    /// Caches of toolchains, relative to the home directory: each gets a layer that runs of the profile in the workspace
    /// share.
    pub caches: Vec<PathBuf>,
}

/// A file that a home directory starts with.
#[derive(Clone, PartialEq, Eq)]
pub struct HomeFile {
    /// Relative to the home directory, of plain names.
    pub path: PathBuf,
    /// All of it.
    pub contents: Vec<u8>,
    /// Whether it takes the place of what programs of earlier runs made of it.
    pub is_renewed: bool,
}

impl fmt::Debug for HomeFile {
    /// Without the contents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A layer on disk: the directories that the overlays of a wrapped program write to. They are the program's and
/// therefore untrusted. If it is dropped without `finish`, as after a crash, the layer is found again as interrupted.
pub trait WorkspaceLayer: Send + fmt::Debug {
    /// Its id, as commands spell it.
    fn id(&self) -> &str;

    /// For the overlay on the workspace.
    fn workspace(&self) -> &OverlayDirectories;

    /// The home directory: what it starts with, and the directories for the overlay on that.
    fn home(&self) -> (&OwnedFd, &OverlayDirectories);

    /// For the overlays on the caches, in the order of the description.
    fn caches(&self) -> Vec<&OverlayDirectories>;

    /// Follows changes of others in the workspace while the program works on this mount of the overlay. Once: it takes over
    /// the watches of the view. `None` where the workspace is not one whose changes are to be followed.
    fn follow_lower(&self, mount: Box<dyn OverlayMount>) -> Result<Option<Box<dyn LowerSync>>, ToolError>;

    /// Says how the program ended. A layer without changes is removed. The mount of the overlay is gone by then.
    fn finish(self: Box<Self>, exit_code: i32, cx: &CallContext<'_>) -> Result<LayerSummary, ToolError>;
}

/// The overlay that a running program works on, from outside of its jail.
pub trait OverlayMount: Send + fmt::Debug {
    /// Its root. What is opened below it goes through the overlay, as for the program.
    fn root(&self) -> BorrowedFd<'_>;

    /// Drops every entry that the kernel keeps of it and that no process uses, so that it is looked up in the layers again.
    fn drop_cached_entries(&self) -> io::Result<()>;

    /// Renames an entry of a directory below the root to a free name, as the program could.
    fn rename_entry(&self, directory: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> io::Result<()>;
}

/// Overlay synchronisation: what others change in the workspace while a program works on an overlay over it is seen inside,
/// and what both changed is a conflict.
pub trait LowerSync: Send + fmt::Debug {
    /// Readable when something changed. `None` where nothing is watched.
    fn wake_source(&self) -> Option<Arc<OwnedFd>>;

    /// Takes the reports of changes. `wake_source` is readable.
    fn wake(&mut self);

    /// Brings the overlay up to date, if there is something to do by now. To be called every ten milliseconds or so. Returns
    /// news for the person.
    fn update(&mut self, cx: &CallContext<'_>) -> Vec<LowerSyncNotice>;
}

/// News of an overlay synchronisation, for the person and the audit log.
#[derive(Clone, Debug)]
pub enum LowerSyncNotice {
    /// The program and another process changed the same path. Both versions are kept.
    Conflict(ResourceAccess),
    /// A file was changed or removed that a process of the program holds open, and is seen in its old state until it is
    /// closed.
    InUse(ResourceAccess),
    /// A secret that came later is hidden.
    Masked(ResourceAccess),
    /// A secret that came later could not be hidden, for example in a directory of another user.
    Exposed(ResourceAccess),
    /// Changes are not followed any more, for this reason.
    NotFollowed(String),
}

/// Held directories of an overlay, on one file system.
#[derive(Debug)]
pub struct OverlayDirectories {
    /// What the program wrote.
    pub upper: OwnedFd,
    /// The kernel's own.
    pub work: OwnedFd,
}

/// A layer after its program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerSummary {
    /// New entries.
    pub created: u64,
    /// Entries with other contents, modes or targets.
    pub changed: u64,
    /// Entries that are gone.
    pub deleted: u64,
    /// Changes that cannot be kept, such as files that others changed meanwhile.
    pub conflicts: u64,
}

impl LayerSummary {
    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The files that a program sees.
#[derive(Debug)]
pub struct WorkspaceView {
    /// The workspace, which the program may change in an overlay of its own.
    pub workspace: ExposedDir,
    /// Further mounts, which it may read.
    pub read_only_mounts: Vec<ExposedDir>,
    /// Later changes in the workspace itself were not made by the program.
    pub started: SystemTime,
}

/// One directory that a program sees.
#[derive(Debug)]
pub struct ExposedDir {
    /// Its alias, without `@`.
    pub alias: String,
    /// The directory itself, held.
    pub directory: OwnedFd,
    /// Its path, to find it again in another mount namespace. The directory there counts only if it is the held one.
    pub path: PathBuf,
    /// Files and directories below it that the program must find empty: secrets.
    pub masked: Vec<PathBuf>,
    /// Files and directories below it that are not the program's business at all, such as the trash.
    pub hidden: Vec<PathBuf>,
}

/// A program's changes in the workspace, in groups that are kept or discarded as one: each is judged, and those that
/// may be kept are committed together.
pub trait WorkspaceChanges: Send + fmt::Debug {
    /// For the policy. Nothing, where nothing changed.
    fn groups(&self) -> Vec<ChangeGroup>;

    /// Makes one group of all of them: all or nothing.
    fn merge(&mut self);

    /// For the reply: every path, with its group.
    fn changed_paths(&self) -> Vec<ChangedPath>;

    /// Takes a decision about each group, and returns what they come to together.
    fn reconcile(&mut self, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision>;

    /// For a person: the groups that need approval. Digests of the previewed files are kept, so that `commit` can check
    /// them.
    fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError>;

    /// Commits every group that is to be kept to the workspace, as one change. A group whose files changed there in the
    /// meantime is withheld, and reported to the ticket.
    fn commit(self: Box<Self>, ticket: &Ticket<'_>) -> Result<(), ToolError>;
}

/// One path that a program changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPath {
    /// As replies spell it.
    pub path: String,
    /// The kind of change.
    pub kind: ChangeKind,
    /// Bytes that are there now. Nothing for what has no contents.
    pub size: Option<u64>,
    /// Index of its group.
    pub group: usize,
}

/// The kind of change to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A new file or directory.
    Created,
    /// New contents.
    Modified,
    /// The path does not exist any more.
    Deleted,
    /// The same contents are at another path now.
    Renamed {
        /// The old path, in its display form.
        from: String,
    },
    /// Only the permissions are others.
    Mode,
    /// A symbolic link, new or with a new target.
    Link,
}

/// The way out to the network that a program may be granted.
pub trait Egress: Send + Sync + fmt::Debug {
    /// A way to these hosts (`host:port` each), and to no others.
    fn open(&self, hosts: &[String], cx: &CallContext<'_>) -> Result<Box<dyn EgressChannel>, ToolError>;

    /// A way on which each connection is decided when the program wants it. Its attempts are undecided: see
    /// [`ConnectionDecider`](crate::ConnectionDecider). Programs find these ports of this machine's `127.0.0.1` at the same
    /// address of their own.
    fn open_judged(&self, loopback_ports: &[u16], cx: &CallContext<'_>) -> Result<Box<dyn EgressChannel>, ToolError>;

    /// A host (`host:port`) in the one way in which it is judged, however it was spelled: rules know no other.
    fn canonical_host(&self, host: &str) -> Result<String, ToolError>;
}

/// A way out that is open as long as this is there.
pub trait EgressChannel: Send + fmt::Debug {
    /// The jail's end, once: a socket on which it hands over the socket that it listens on for its programs. When all
    /// copies of it are closed, so is the channel.
    fn socket(&mut self) -> Option<OwnedFd>;

    /// The next connection request. The runner of the call records it, and then lets it go ahead.
    fn next_attempt(&self) -> Option<ConnectionAttempt>;
}

/// A connection that a program wants.
pub struct ConnectionAttempt {
    /// The access that the connection needs.
    pub access: ResourceAccess,
    /// The refusal, if it is not made. It is recorded all the same.
    pub refusal: Option<ToolError>,
    /// What a person is shown who is asked about it, if its host does not say all.
    pub(crate) preview: Option<Preview>,
    is_undecided: bool,
    reply: Box<dyn FnOnce(Result<(), ToolError>) + Send>,
}

impl ConnectionAttempt {
    /// One that is decided. `go` is called when it was recorded.
    pub fn new(access: ResourceAccess, refusal: Option<ToolError>, go: impl FnOnce() + Send + 'static) -> Self {
        Self { access, refusal, preview: None, is_undecided: false, reply: Box::new(|_| go()) }
    }

    /// One that the policy has to decide about. `reply` gets the decision when that was recorded.
    pub fn undecided(access: ResourceAccess, reply: impl FnOnce(Result<(), ToolError>) + Send + 'static) -> Self {
        Self { access, refusal: None, preview: None, is_undecided: true, reply: Box::new(reply) }
    }

    /// The same, with what a person is shown.
    #[must_use]
    pub fn with_preview(self, preview: Preview) -> Self {
        Self { preview: Some(preview), ..self }
    }

    /// The host and port, as rules and records spell them.
    pub fn host(&self) -> &str {
        &self.access.resource.display_path
    }

    /// Whether it is not decided yet. Others are only recorded, such as a request on a connection that was
    /// decided before.
    pub(crate) fn is_undecided(&self) -> bool {
        self.is_undecided
    }

    /// Records it, and lets it go ahead. Without a record it is not made. One that is undecided is refused: nothing here
    /// decides about it.
    pub fn record(self, cx: &CallContext<'_>) {
        if self.is_undecided {
            let message = format!("connection to `{}` is not allowed", self.host());
            return self.refuse(ToolError::new(ErrorKind::PermissionDenied, message), cx);
        }
        if cx.record_connection(&self.access, self.refusal.as_ref()).is_ok() {
            (self.reply)(Ok(()));
        }
    }

    /// Records that it is made, with the approval if one was required, and lets it go ahead.
    pub fn allow(self, approval: Option<&Approval>, cx: &CallContext<'_>) {
        if cx.record_judged_connection(&self.access, Ok(approval)).is_ok() {
            (self.reply)(Ok(()));
        }
    }

    /// Records that it is refused, and says so.
    pub fn refuse(self, error: ToolError, cx: &CallContext<'_>) {
        if cx.record_judged_connection(&self.access, Err(&error)).is_ok() {
            (self.reply)(Err(error));
        }
    }
}

impl fmt::Debug for ConnectionAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionAttempt")
            .field("access", &self.access)
            .field("refusal", &self.refusal)
            .field("is_undecided", &self.is_undecided)
            .finish_non_exhaustive()
    }
}
