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
    /// What `plan` found and `run` needs: held descriptors, what was seen.
    type Prepared: Send + 'static;
    /// What happened.
    type Outcome: Send + 'static;

    /// Whether the tool honours `IoMode::NonBlocking`, and may therefore be tried on the caller's own thread.
    const SUPPORTS_NON_BLOCKING: bool = false;

    /// Everything that a call may ever do. A plan with any other verb is refused, so what callers are told by it is true.
    const ACTIONS: &'static [PolicyAction] = &PolicyAction::ALL;

    /// Whether the same call, made again, changes nothing more.
    const IDEMPOTENT: bool = false;

    /// Finds out what the call would do. Reads only, and within the limits.
    fn plan(&self, args: Self::Args, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError>;

    /// What a person is shown before it happens. Reads only; what it showed is kept in `work`, so that `run` can tell
    /// whether it is still there.
    fn preview(&self, work: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError>;

    /// Does what was planned.
    fn run(&self, work: Self::Prepared, ticket: &Ticket<'_>) -> Result<Self::Outcome, ToolError>;

    /// Whether a call that is to stop ends by itself and then has something to say. The road waits for that a while.
    const GRACEFUL_STOP: bool = false;

    /// How long a call may take, approval not counted.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.call_time
    }

    /// Why a person has to see it first, even where the policy allows it.
    fn required_review(&self, _: &Self::Prepared) -> Option<ReviewRequirement> {
        None
    }

    /// What is left to do after the run, where only the run could tell: it is judged, shown and run as a plan of its own.
    fn next_phase(&self, outcome: Self::Outcome) -> NextPhase<Self::Outcome, Self::Prepared> {
        NextPhase::Done(outcome)
    }

    /// Takes a decision about each group of what a run left, and returns what they come to together: a new directory, for
    /// example, is not kept without an entry that it was made for. Called before anything of it is shown or run.
    fn reconcile(&self, _: &mut Self::Prepared, wanted: Vec<KeepDecision>) -> Vec<KeepDecision> {
        wanted
    }

    /// What the call comes to where all of that was refused.
    fn abort(&self, _: Self::Prepared, refused: ToolError) -> Result<Self::Outcome, ToolError> {
        Err(refused)
    }
}

/// How far a run brought a call.
#[derive(Debug)]
pub enum NextPhase<O, W> {
    Done(O),
    /// Changes that wait, such as those that a program made in its jail.
    FollowUp(FollowUpPlan<W>),
}

/// What a run left to decide about, in groups that are decided one by one.
#[derive(Debug)]
pub struct FollowUpPlan<W> {
    pub groups: Vec<ChangeGroup>,
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
    pub accesses: Vec<ResourceAccess>,
    /// Why they cannot be kept, whatever the policy says.
    pub refusal: Option<ToolError>,
}

/// What becomes of a group of changes.
#[derive(Clone, Debug, PartialEq)]
pub enum KeepDecision {
    Keep,
    /// A person is asked first.
    Ask,
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

/// Why a call is looked at that would be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewRequirement {
    /// In words for a person and a model.
    pub reason: &'static str,
    /// What an answer must at least be.
    pub assurance: Assurance,
}

impl ReviewRequirement {
    /// Who called wants it.
    pub const REQUESTED_BY_CALLER: Self =
        Self { reason: "the call itself requests a review of its changes", assurance: Assurance::Relayed };
}

/// What a call would do.
#[derive(Debug)]
pub struct ToolPlan<W> {
    /// Everything that it would touch; the policy judges each.
    pub accesses: Vec<ResourceAccess>,
    pub prepared: W,
}

/// The names of the workspace as a mount: what most dialects call it, and what `crewagent` does. Whoever calls chooses the
/// dialect, so a rule means it by either name, and no other mount has one of them.
pub const WORKSPACE_MOUNTS: [&str; 2] = [Dialect::Standard.workspace_mount(), Dialect::Crewagent.workspace_mount()];

/// Whether two names are those of one mount.
pub(crate) fn is_same_mount(one: &str, other: &str) -> bool {
    one == other || (WORKSPACE_MOUNTS.contains(&one) && WORKSPACE_MOUNTS.contains(&other))
}

/// The mount that stands for the network: its paths are `host:port`, and `host:port/path` where the path is known.
pub const NET_MOUNT: &str = "net";

/// The mount that stands for the search engine that the user chose: its paths are `host:port`. What is asked there goes to
/// one host of their choice, so it is not one more host to be asked about.
pub const SEARCH_MOUNT: &str = "search";

/// The mount that stands for programs: its paths are languages.
pub const CODE_MOUNT: &str = "code";

/// The mount that stands for the tools of other programs: its paths are `server/tool`.
pub const MCP_MOUNT: &str = "mcp";

/// One thing done to one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceAccess {
    pub action: PolicyAction,
    pub resource: PolicyResource,
}

/// What is done to a place.
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
    /// It goes away, to be found at another place of the same call.
    Move,
    /// It goes away.
    Delete,
    /// A request leaves for a host; the mount is `NET_MOUNT` or `SEARCH_MOUNT`.
    Fetch,
    /// Contents go for good: nothing is kept to bring them back from.
    Lose,
    /// A program runs in a jail; the mount is `CODE_MOUNT`. What it changes waits there, and is judged by itself.
    Run,
    /// Another program's tool is called; the mount is `MCP_MOUNT`. Only that program knows what it does.
    External,
}

impl PolicyAction {
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

    /// Whether its places are files.
    pub fn is_file_action(self) -> bool {
        !matches!(self, Self::Fetch | Self::Run | Self::External)
    }

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

/// What a tool can do at all, whatever its arguments: the kernel's truth behind what protocols call annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCapabilities {
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
            .any(|verb| verb.changes_files() || matches!(verb, PolicyAction::Run | PolicyAction::External))
    }

    /// What is there may be gone or changed after it: more than new things come to be.
    pub fn is_destructive(self) -> bool {
        let takes = |verb: &PolicyAction| {
            (verb.changes_files() && *verb != PolicyAction::Create)
                || matches!(verb, PolicyAction::Run | PolicyAction::External)
        };
        self.actions.iter().any(takes)
    }

    /// It can reach what is not on this machine.
    pub fn is_open_world(self) -> bool {
        self.actions.iter().any(|verb| matches!(verb, PolicyAction::Fetch | PolicyAction::External))
    }
}

/// A path inside a mount, as given and, where a link or `..` made that another one, as resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyResource {
    pub mount: Arc<str>,
    /// As the caller spelled it, without the mount.
    pub requested_path: String,
    /// Where it really is, if that is not `given`.
    pub resolved_path: Option<String>,
    /// How replies and records spell it.
    pub display_path: String,
    /// What is known of it by what it is, whatever it is called here.
    pub sensitivity: Sensitivity,
    /// It is data of a git repository that was there before the call, such as an object or a branch, and what it leads to
    /// was judged: then its name alone does not make it a setting that other programs act on.
    pub repository_data: bool,
    pub name_sensitivity: CachedSensitivity,
}

/// What the names of a place say, once somebody asked. A copy is asked anew: it may get other names.
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

    /// Where it really is, as replies and records spell it, if that is not what it was called.
    pub fn resolved_display_path(&self) -> Option<String> {
        let resolved = self.resolved_path.as_deref().filter(|resolved| *resolved != self.requested_path)?;
        let mount = self.display_path.strip_suffix(self.requested_path.as_str()).unwrap_or_default();
        Some(format!("{mount}{resolved}"))
    }

    /// What is at `path` below it.
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

    /// What a link of this name gives another program to act on, by a name below it.
    pub fn settings_through_link(&self) -> Option<Self> {
        let rest = self.names().find_map(settings_through_link)?;
        Some(self.join(rest))
    }

    /// Why this deserves a second look, if it does: by its names, or by what it is.
    pub fn effective_sensitivity(&self) -> Sensitivity {
        let say = || self.names().map(sensitivity).fold(Sensitivity::default(), Sensitivity::union);
        let named = *self.name_sensitivity.0.get_or_init(say);
        self.sensitivity.union(Sensitivity { protected: named.protected && !self.repository_data, ..named })
    }
}

/// Whether work may wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// Only what the kernel can answer from memory: the caller's own thread does it.
    NonBlocking,
    /// A worker thread does it, and may wait.
    Blocking,
}

/// Who makes a call, for tools that keep a trace of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOrigin {
    pub session: String,
    pub call: String,
    pub tool: String,
    /// The principal may reverse changes of any session: a person.
    pub may_undo: bool,
}

/// What a tool knows about the call while it plans and runs.
#[derive(Debug)]
pub struct CallContext<'a> {
    pub limits: &'a CallLimits,
    pub io_mode: IoMode,
    origin: Option<&'a CallOrigin>,
    commit_state: &'a CommitState,
    blocked: Cell<bool>,
    services: Option<&'a dyn CallServices>,
    lookups: RefCell<Vec<Box<dyn LookupTarget>>>,
}

/// What a plan looks for. Where that fails, its place says whether the caller may know why.
pub trait LookupTarget: std::fmt::Debug {
    /// The place itself, then those that it leads to as a link.
    fn resources(&self) -> Vec<PolicyResource>;
}

/// What the road knows about the call that the tool does not.
pub(crate) trait CallServices: std::fmt::Debug {
    fn evaluate(&self, touch: &ResourceAccess) -> Verdict;
    fn add_taint(&self, bit: Taint);
    fn report_progress(&self, progress: &ProgressUpdate<'_>);
    fn record_connection(&self, touch: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), AuditSinkError>;
}

/// What a call has to say before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressUpdate<'a> {
    /// What it is a piece of: `stdout`, `stderr`.
    pub stream: &'static str,
    pub text: &'a str,
}

/// Hears how a call is getting on.
pub trait ProgressListener: Send + Sync + std::fmt::Debug {
    fn on_progress(&self, progress: &ProgressUpdate<'_>);
}

impl<'a> CallContext<'a> {
    pub fn new(limits: &'a CallLimits, io_mode: IoMode, commit_state: &'a CommitState) -> Self {
        let (blocked, lookups) = (Cell::new(false), RefCell::default());
        Self { limits, io_mode, origin: None, commit_state, blocked, services: None, lookups }
    }

    pub(crate) fn with_services(self, road: &'a dyn CallServices) -> Self {
        Self { services: Some(road), ..self }
    }

    /// What the policy says to something that the call comes upon, such as a file in a directory that is searched.
    pub fn evaluate(&self, touch: &ResourceAccess) -> Verdict {
        self.services.map_or_else(Verdict::unknown_effect, |road| road.evaluate(touch))
    }

    /// Says what the session has now been through. Only the tool knows whether what it saw was a stranger's.
    pub fn add_taint(&self, bit: Taint) {
        if let Some(road) = self.services {
            road.add_taint(bit);
        }
    }

    /// Tells whoever listens how far the call is.
    pub fn report_progress(&self, progress: &ProgressUpdate<'_>) {
        if let Some(road) = self.services {
            road.report_progress(progress);
        }
    }

    /// Records that the call reaches something while it runs, or wanted to and may not. No record, no connection.
    pub fn record_connection(&self, touch: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), ToolError> {
        let lost = |_| ToolError::new(ErrorKind::Internal, "cannot write to the audit log");
        self.services.map_or(Ok(()), |road| road.record_connection(touch, refused)).map_err(lost)
    }

    #[must_use]
    pub fn with_origin(self, origin: &'a CallOrigin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// Who makes the call. Nobody, where the host works for itself.
    pub fn origin(&self) -> Option<&'a CallOrigin> {
        self.origin
    }

    /// Fails once nobody waits for the call any more.
    pub fn check(&self) -> Result<(), ToolError> {
        self.commit_state.check()
    }

    /// Says that the quick attempt would have to wait. The road then starts the call again on a worker,
    /// and never shows this error.
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

    /// Whether the call is still wanted, for threads that help with it.
    pub fn commit_state(&self) -> &CommitState {
        self.commit_state
    }
}
