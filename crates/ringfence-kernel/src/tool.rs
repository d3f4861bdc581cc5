//! The tool interface: plan first, then run what was planned.
//!
//! `plan` looks and never changes anything. `run` gets exactly what was planned, with a `Ticket` that says
//! it may go ahead; a tool cannot be run without one.
//!
//! Not here: how a dialect names a tool and its arguments (`tool_binding.rs`).

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::sensitive::{Sensitivity, sensitivity, settings_through_link};
use crate::{
    Assurance, AuditSinkError, CallLimits, CommitState, Dialect, ErrorKind, Preview, Taint, Ticket, ToolError, Verdict,
};

/// One thing that an agent can do.
pub trait Tool: Send + Sync + 'static {
    /// The kernel's arguments, the same for every dialect.
    type Args: Send + 'static;
    /// The state that `plan` hands to `run`: held descriptors, stats.
    type Prepared: Send + 'static;
    /// The result of a run.
    type Outcome: Send + 'static;

    /// Whether the tool honours `IoMode::NonBlocking`, and may therefore be tried on the caller's own thread.
    const SUPPORTS_NON_BLOCKING: bool = false;

    /// Every action that a call may ever have. A plan with any other action is refused, so the annotations made from
    /// this are true.
    const ACTIONS: &'static [PolicyAction] = &PolicyAction::ALL;

    /// Whether the same call, made again, changes nothing more.
    const IDEMPOTENT: bool = false;

    /// Finds out what the call would do. Reads only, and within the limits.
    fn plan(&self, args: Self::Args, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError>;

    /// The preview for an approver. Reads only; digests of what it showed are kept in `work`, so that `run` can check
    /// that nothing changed.
    fn preview(&self, work: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError>;

    /// Does what was planned.
    fn run(&self, work: Self::Prepared, ticket: &Ticket<'_>) -> Result<Self::Outcome, ToolError>;

    /// Whether a cancelled call stops by itself and still has a result. The kernel waits for that a while.
    const GRACEFUL_STOP: bool = false;

    /// Time limit of a call, without approval.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time
    }

    /// The review that the call requires, even where the policy allows it.
    fn required_review(&self, _: &Self::Prepared) -> Option<ReviewRequirement> {
        None
    }
}

/// A tool whose run may leave something to decide about that only the run could tell, such as the changes of a program.
/// That is decided, shown and run as a plan of its own. Every `Tool` is one that leaves nothing.
pub trait PhasedTool: Send + Sync + 'static {
    /// See `Tool::Args`.
    type Args: Send + 'static;
    /// See `Tool::Prepared`; also the work of a later phase.
    type Prepared: Send + 'static;
    /// See `Tool::Outcome`.
    type Outcome: Send + 'static;

    /// See `Tool::SUPPORTS_NON_BLOCKING`.
    const SUPPORTS_NON_BLOCKING: bool = false;

    /// See `Tool::ACTIONS`. They hold for every phase.
    const ACTIONS: &'static [PolicyAction] = &PolicyAction::ALL;

    /// See `Tool::IDEMPOTENT`.
    const IDEMPOTENT: bool = false;

    /// See `Tool::GRACEFUL_STOP`.
    const GRACEFUL_STOP: bool = false;

    /// See `Tool::time_limit`. It holds for each phase.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time
    }

    /// See `Tool::plan`.
    fn plan(&self, args: Self::Args, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError>;

    /// See `Tool::preview`.
    fn preview(&self, work: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError>;

    /// See `Tool::required_review`.
    fn required_review(&self, _: &Self::Prepared) -> Option<ReviewRequirement> {
        None
    }

    /// Runs one phase.
    fn run_phase(
        &self,
        work: Self::Prepared,
        ticket: &Ticket<'_>,
    ) -> Result<NextPhase<Self::Outcome, Self::Prepared>, ToolError>;

    /// What the call itself says about the changes that its program leaves.
    fn follow_up(&self, _: &Self::Prepared) -> FollowUpMode {
        FollowUpMode::Policy
    }

    /// Takes a decision about each group that a phase left, and returns what they come to together: a new directory, for
    /// example, is not kept without an entry that it was made for. Called before anything of it is shown or run.
    fn reconcile(&self, _: &mut Self::Prepared, wanted: Vec<KeepDecision>) -> Vec<KeepDecision> {
        wanted
    }

    /// The outcome of a call where everything that a phase left was refused.
    fn abort(&self, _: Self::Prepared, refused: ToolError) -> Result<Self::Outcome, ToolError> {
        Err(refused)
    }
}

impl<T: Tool> PhasedTool for T {
    type Args = T::Args;
    type Prepared = T::Prepared;
    type Outcome = T::Outcome;
    const SUPPORTS_NON_BLOCKING: bool = T::SUPPORTS_NON_BLOCKING;
    const ACTIONS: &'static [PolicyAction] = T::ACTIONS;
    const IDEMPOTENT: bool = T::IDEMPOTENT;
    const GRACEFUL_STOP: bool = T::GRACEFUL_STOP;

    fn time_limit(limits: &CallLimits) -> Duration {
        T::time_limit(limits)
    }

    fn plan(&self, args: Self::Args, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        Tool::plan(self, args, cx)
    }

    fn preview(&self, work: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        Tool::preview(self, work, cx)
    }

    fn required_review(&self, work: &Self::Prepared) -> Option<ReviewRequirement> {
        Tool::required_review(self, work)
    }

    fn run_phase(
        &self,
        work: Self::Prepared,
        ticket: &Ticket<'_>,
    ) -> Result<NextPhase<Self::Outcome, Self::Prepared>, ToolError> {
        self.run(work, ticket).map(NextPhase::Done)
    }
}

/// The result of one phase of a call.
#[derive(Debug)]
pub enum NextPhase<O, W> {
    /// The call is complete.
    Done(O),
    /// Changes that wait, such as those that a program made in its jail.
    FollowUp(FollowUpPlan<W>),
}

/// The plan of a second phase, in groups that are decided one by one.
#[derive(Debug)]
pub struct FollowUpPlan<W> {
    /// The groups, which the policy judges one by one.
    pub groups: Vec<ChangeGroup>,
    /// The tool's own state for the second phase.
    pub prepared: W,
}

impl<W> From<ToolPlan<W>> for FollowUpPlan<W> {
    /// All of it, or nothing.
    fn from(ToolPlan { accesses, prepared }: ToolPlan<W>) -> Self {
        Self { groups: vec![ChangeGroup { accesses, refusal: None }], prepared }
    }
}

/// Changes that stand or fall together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeGroup {
    /// The accesses of the group; the strictest decision holds for all.
    pub accesses: Vec<ResourceAccess>,
    /// The error for changes that cannot be kept, whatever the policy decides.
    pub refusal: Option<ToolError>,
}

/// The decision about a group of changes.
#[derive(Clone, Debug, PartialEq)]
pub enum KeepDecision {
    /// The changes are committed.
    Keep,
    /// A person is asked first.
    Ask,
    /// The changes are discarded, for this reason.
    Refuse(ToolError),
}

impl KeepDecision {
    /// The stricter of two, and of two equal ones the first.
    #[must_use]
    pub fn or_stricter(self, other: &Self) -> Self {
        if other.strictness() > self.strictness() { other.clone() } else { self }
    }

    /// The larger, the stricter.
    pub fn strictness(&self) -> u8 {
        match self {
            Self::Keep => 0,
            Self::Ask => 1,
            Self::Refuse(_) => 2,
        }
    }
}

/// What becomes of the changes that a program leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUpMode {
    /// The policy decides about each group.
    Policy,
    /// All of them require approval, and all are kept or none.
    Review,
    /// None is kept.
    Discard,
}

/// A required review of a call that would be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewRequirement {
    /// In words for a person and a model.
    pub reason: &'static str,
    /// Required assurance of the answer.
    pub assurance: Assurance,
}

impl ReviewRequirement {
    /// The caller requested it.
    pub const REQUESTED_BY_CALLER: Self =
        Self { reason: "the call itself requests a review of its changes", assurance: Assurance::Relayed };
}

/// The plan of a call.
#[derive(Debug)]
pub struct ToolPlan<W> {
    /// Every access of the call; the policy judges each.
    pub accesses: Vec<ResourceAccess>,
    /// The tool's own state, which the run gets.
    pub prepared: W,
}

/// Names of the workspace as a mount: in most dialects, and in `crewagent`. The caller chooses the dialect, so a rule
/// means it by either name, and no other mount has one of them.
pub const WORKSPACE_MOUNTS: [&str; 2] = [Dialect::Standard.workspace_mount(), Dialect::Crewagent.workspace_mount()];

/// Whether two names are those of one mount.
pub(crate) fn is_same_mount(one: &str, other: &str) -> bool {
    one == other || (WORKSPACE_MOUNTS.contains(&one) && WORKSPACE_MOUNTS.contains(&other))
}

/// The mount that stands for the network: its paths are `host:port`, and `host:port/path` where the path is known.
pub const NET_MOUNT: &str = "net";

/// The mount that stands for the search engine that the user chose: its paths are `host:port`. Queries go to one host
/// of their choice, which needs no approval of its own.
pub const SEARCH_MOUNT: &str = "search";

/// The mount that stands for programs: its paths are languages.
pub const CODE_MOUNT: &str = "code";

/// The mount that stands for the tools of other programs: its paths are `server/tool`.
pub const MCP_MOUNT: &str = "mcp";

/// One action on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceAccess {
    /// The action.
    pub action: PolicyAction,
    /// The resource that it is on.
    pub resource: PolicyResource,
}

/// An action on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Names, types, sizes and times are seen.
    List,
    /// Contents are seen.
    Read,
    /// Something comes to be where nothing was.
    Create,
    /// Contents that were there are no longer.
    Overwrite,
    /// The entry is moved to another path of the same call.
    Move,
    /// It goes away.
    Delete,
    /// A request leaves for a host; the mount is `NET_MOUNT` or `SEARCH_MOUNT`.
    Fetch,
    /// Contents are deleted permanently, without a pre-image.
    Lose,
    /// A program runs in a jail; the mount is `CODE_MOUNT`. Its changes wait there, and are judged by themselves.
    Run,
    /// Another program's tool is called; the mount is `MCP_MOUNT`. Only that program knows what it does.
    External,
}

impl PolicyAction {
    /// Every action.
    pub const ALL: [Self; 10] = [
        Self::List,
        Self::Read,
        Self::Create,
        Self::Overwrite,
        Self::Move,
        Self::Delete,
        Self::Fetch,
        Self::Lose,
        Self::Run,
        Self::External,
    ];

    /// Whether files are no longer what they were.
    pub fn changes_files(self) -> bool {
        !matches!(self, Self::List | Self::Read | Self::Fetch | Self::Run | Self::External)
    }

    /// Whether its resources are files.
    pub fn is_file_action(self) -> bool {
        !matches!(self, Self::Fetch | Self::Run | Self::External)
    }

    /// Name of the action in rules and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Create => "create",
            Self::Overwrite => "overwrite",
            Self::Move => "move",
            Self::Delete => "delete",
            Self::Fetch => "fetch",
            Self::Lose => "lose",
            Self::Run => "run",
            Self::External => "external",
        }
    }
}

/// The actions that a tool can have, whatever its arguments: the source of the annotations of protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCapabilities {
    /// The actions that its plans may have.
    pub actions: &'static [PolicyAction],
    /// The same call, made again, changes nothing more.
    pub idempotent: bool,
}

impl ToolCapabilities {
    /// Nothing is ever changed, and no program runs that could.
    pub fn is_read_only(self) -> bool {
        !self
            .actions
            .iter()
            .any(|action| action.changes_files() || matches!(action, PolicyAction::Run | PolicyAction::External))
    }

    /// Whether existing entries may be deleted or changed.
    pub fn is_destructive(self) -> bool {
        let takes = |action: &PolicyAction| {
            (action.changes_files() && *action != PolicyAction::Create)
                || matches!(action, PolicyAction::Run | PolicyAction::External)
        };
        self.actions.iter().any(takes)
    }

    /// It can reach what is not on this machine.
    pub fn is_open_world(self) -> bool {
        self.actions.iter().any(|action| matches!(action, PolicyAction::Fetch | PolicyAction::External))
    }
}

/// A path inside a mount, as given and, where a link or `..` made that another one, as resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyResource {
    /// Alias of the mount, or a pseudo-mount such as `NET_MOUNT` or `CODE_MOUNT`.
    pub mount: Arc<str>,
    /// As the caller spelled it, without the mount.
    pub requested_path: String,
    /// Its resolved path, if that is not `given`.
    pub resolved_path: Option<String>,
    /// Its display form in replies and records.
    pub display_path: String,
    /// Its sensitivity by identity, independent of its name.
    pub sensitivity: Sensitivity,
    /// It is data of a git repository that was there before the call, such as an object or a branch, and what it leads to
    /// was judged: then its name alone does not make it a setting that other programs act on.
    pub repository_data: bool,
    /// Its sensitivity by its names, cached.
    pub name_sensitivity: CachedSensitivity,
}

/// The sensitivity of a resource by its names, computed on first use. A copy starts empty: it may get other names.
#[derive(Debug, Default)]
pub struct CachedSensitivity(OnceLock<Sensitivity>);

impl Clone for CachedSensitivity {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// It follows from the names, which are compared themselves.
impl PartialEq for CachedSensitivity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CachedSensitivity {}

impl PolicyResource {
    /// Every name that a rule has to be asked about.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.requested_path.as_str()).chain(self.resolved_path.as_deref())
    }

    /// Display form of its resolved path, if that is not the given one.
    pub fn resolved_display_path(&self) -> Option<String> {
        let resolved = self.resolved_path.as_deref().filter(|resolved| *resolved != self.requested_path)?;
        let mount = self.display_path.strip_suffix(self.requested_path.as_str()).unwrap_or_default();
        Some(format!("{mount}{resolved}"))
    }

    /// The resource at `path` below it.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        let join = |above: &str| if above == "." { path.to_owned() } else { format!("{above}/{path}") };
        Self {
            mount: Arc::clone(&self.mount),
            requested_path: join(&self.requested_path),
            resolved_path: self.resolved_path.as_deref().map(join),
            display_path: join(&self.display_path),
            ..Self::default()
        }
    }

    /// The settings that a link of this name exposes to other programs, by a name below it.
    pub fn settings_through_link(&self) -> Option<Self> {
        let rest = self.names().find_map(settings_through_link)?;
        Some(self.join(rest))
    }

    /// Its sensitivity, by its names or by its identity.
    pub fn effective_sensitivity(&self) -> Sensitivity {
        let say = || self.names().map(sensitivity).fold(Sensitivity::default(), Sensitivity::union);
        let named = *self.name_sensitivity.0.get_or_init(say);
        self.sensitivity.union(Sensitivity { protected: named.protected && !self.repository_data, ..named })
    }
}

/// Whether work may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// Only what the kernel can answer from memory: the caller's own thread does it.
    NonBlocking,
    /// A worker thread does it, and may wait.
    Blocking,
}

/// The origin of a call, for tools that keep records of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOrigin {
    /// ID of the session.
    pub session: String,
    /// ID of the call.
    pub call: String,
    /// Name of the tool.
    pub tool: String,
    /// The principal may reverse changes of any session: a person.
    pub may_undo: bool,
}

/// The context of a call while it is planned and run.
#[derive(Debug)]
pub struct CallContext<'a> {
    /// The limits of the session.
    pub limits: &'a CallLimits,
    /// Whether the call may block now.
    pub io_mode: IoMode,
    origin: Option<&'a CallOrigin>,
    commit_state: &'a CommitState,
    blocked: Cell<bool>,
    services: Option<&'a dyn CallServices>,
    lookups: RefCell<Vec<Box<dyn LookupTarget>>>,
}

/// The target of a lookup. Where that fails, its resource decides whether the caller may know why.
pub trait LookupTarget: std::fmt::Debug {
    /// The resource itself, then those that it leads to as a link.
    fn resources(&self) -> Vec<PolicyResource>;
}

/// Kernel services for a running call.
pub(crate) trait CallServices: std::fmt::Debug {
    fn evaluate(&self, access: &ResourceAccess) -> Verdict;
    fn add_taint(&self, taint: Taint);
    fn report_progress(&self, progress: &ProgressUpdate<'_>);
    fn record_connection(&self, access: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), AuditSinkError>;
}

/// Progress of a running call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressUpdate<'a> {
    /// The output stream: `stdout`, `stderr`.
    pub stream: &'static str,
    /// A piece of output, of any length and with any line breaks.
    pub text: &'a str,
}

/// Listener for the progress of a call.
pub trait ProgressListener: Send + Sync + std::fmt::Debug {
    /// Takes one update. Called on the thread of the call, so it must not block.
    fn on_progress(&self, progress: &ProgressUpdate<'_>);
}

impl<'a> CallContext<'a> {
    /// A context without origin and services: every decision is an ask, progress is dropped.
    pub fn new(limits: &'a CallLimits, io_mode: IoMode, commit_state: &'a CommitState) -> Self {
        let (blocked, lookups) = (Cell::new(false), RefCell::default());
        Self { limits, io_mode, origin: None, commit_state, blocked, services: None, lookups }
    }

    pub(crate) fn with_services(self, services: &'a dyn CallServices) -> Self {
        Self { services: Some(services), ..self }
    }

    /// The decision about an access that the call discovers, such as a file in a directory that is searched.
    pub fn evaluate(&self, access: &ResourceAccess) -> Verdict {
        self.services.map_or_else(Verdict::unknown_effect, |services| services.evaluate(access))
    }

    /// Adds taint to the session. Only the tool knows whether the content it saw was untrusted.
    pub fn add_taint(&self, taint: Taint) {
        if let Some(services) = self.services {
            services.add_taint(taint);
        }
    }

    /// Reports progress to the listener, if there is one.
    pub fn report_progress(&self, progress: &ProgressUpdate<'_>) {
        if let Some(services) = self.services {
            services.report_progress(progress);
        }
    }

    /// Records that the call reaches something while it runs, or wanted to and may not. No record, no connection.
    pub fn record_connection(&self, access: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), ToolError> {
        let lost = |_| ToolError::new(ErrorKind::Internal, "cannot write to the audit log");
        self.services.map_or(Ok(()), |services| services.record_connection(access, refused)).map_err(lost)
    }

    /// Sets the origin of the call.
    #[must_use]
    pub fn with_origin(self, origin: &'a CallOrigin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// The origin of the call. `None` where the host works for itself.
    pub fn origin(&self) -> Option<&'a CallOrigin> {
        self.origin
    }

    /// Fails once the call is cancelled or overdue.
    pub fn check(&self) -> Result<(), ToolError> {
        self.commit_state.check()
    }

    /// The error of a non-blocking attempt that would block. The kernel then starts the call again on a worker, and
    /// never shows this error.
    pub fn would_block(&self) -> ToolError {
        self.blocked.set(true);
        ToolError::new(ErrorKind::Internal, "a non-blocking call had to wait")
    }

    /// Says what the call is about, as replies spell it, so that a call that fails early leaves a trace with a name.
    pub fn set_subject(&self, shown: &str) {
        self.commit_state.set_subject(shown);
    }

    /// Says what is looked for, before it is.
    pub fn add_lookup(&self, sought: impl LookupTarget + 'static) {
        self.lookups.borrow_mut().push(Box::new(sought));
    }

    pub(crate) fn lookup_resources(&self) -> Vec<PolicyResource> {
        self.lookups.borrow().iter().flat_map(|sought| sought.resources()).collect()
    }

    pub(crate) fn has_blocked(&self) -> bool {
        self.blocked.get()
    }

    /// The commit state, for threads that help with the call.
    pub fn commit_state(&self) -> &CommitState {
        self.commit_state
    }
}
