//! The tool interface: plan first, then run what was planned.
//!
//! `plan` looks and never changes anything. `run` gets exactly what was planned, with a `Ticket` that says
//! it may go ahead; a tool cannot be run without one.
//!
//! Not here: how a dialect names a tool and its arguments (`tool_binding.rs`).

use std::time::Duration;

use crate::call_context::CallContext;
use crate::error::ToolError;
use crate::limits::CallLimits;
use crate::preview::Preview;
use crate::resource::{PolicyAction, ResourceAccess};
use crate::ticket::Ticket;
use crate::verdict::ReviewRequirement;

/// One thing that an agent can do.
///
/// A tool that reads notes, registered and called:
///
/// ```
/// use std::sync::Arc;
///
/// use ringfence_kernel::{
///     CallContext, CallLimits, DenyApprover, Dialect, Host, HostConfig, InMemoryApprovalStore, NullAuditSink, PolicyAction,
///     PolicyResource, Preset, Preview, Principal, ResourceAccess, Session, ReplyForm, SessionMemory, SessionTaint, Ticket, Tool,
///     ToolBinding, ToolCall, ToolError, ToolFilter, ToolPlan, ToolRegistry,
/// };
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use tokio_util::sync::CancellationToken;
///
/// /// Read a note.
/// #[derive(Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct ReadNote {
///     /// Name of the note.
///     name: String,
/// }
///
/// #[derive(Serialize, JsonSchema)]
/// struct Note {
///     text: String,
/// }
///
/// struct Notebook;
///
/// impl Tool for Notebook {
///     type Args = ReadNote;
///     type Prepared = String;
///     type Outcome = Note;
///     const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
///
///     fn plan(&self, args: ReadNote, _: &CallContext<'_>) -> Result<ToolPlan<String>, ToolError> {
///         let resource = PolicyResource {
///             mount: Arc::from("notes"),
///             requested_path: args.name.clone(),
///             display_path: format!("@notes/{}", args.name),
///             ..PolicyResource::default()
///         };
///         let accesses = vec![ResourceAccess { action: PolicyAction::Read, resource }];
///         Ok(ToolPlan { accesses, prepared: args.name })
///     }
///
///     fn preview(&self, name: &mut String, _: &CallContext<'_>) -> Result<Preview, ToolError> {
///         Ok(Preview::new(&format!("read the note `{name}`"), name.clone()))
///     }
///
///     fn run(&self, name: String, _: &Ticket<'_>) -> Result<Note, ToolError> {
///         Ok(Note { text: format!("contents of {name}") })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut registry = ToolRegistry::new();
/// registry.register(Notebook, [ToolBinding::standard::<ReadNote, Note>("read_note")])?;
/// let catalog = registry.catalog(Dialect::Standard, &ToolFilter::default())?;
/// assert_eq!(catalog.get("read_note").map(|tool| tool.description()), Some("Read a note."));
///
/// let host = Host::new(HostConfig {
///     policy: Box::new(Preset::Edits),
///     approver: Box::new(DenyApprover { advice: "start with another preset".to_owned() }),
///     audit: Box::new(NullAuditSink),
///     store: Box::new(InMemoryApprovalStore::default()),
///     workers: 1,
/// });
/// let session = Arc::new(Session {
///     id: "session-1".to_owned(),
///     principal: Principal::agent("example"),
///     dialect: Dialect::Standard,
///     agent: None,
///     limits: CallLimits::for_dialect(Dialect::Standard),
///     catalog,
///     taint: SessionTaint::default(),
///     memory: SessionMemory::default(),
///     replies: ReplyForm::default(),
/// });
/// let arguments = r#"{"name":"todo"}"#.to_owned();
/// let call = ToolCall { id: "call-1".to_owned(), name: "read_note".to_owned(), arguments };
/// let reply = host.call(&session, call, &CancellationToken::new()).await?;
/// assert_eq!(reply.text, r#"{"ok":true,"value":{"text":"contents of todo"}}"#);
/// # Ok(())
/// # }
/// ```
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

    /// Whether its calls wait for a background job. No other call of the session waits for them, nor do they wait for
    /// others: a call that stops a job must not wait for one that waits for its end.
    const WAITS_FOR_JOB: bool = false;

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
    ) -> Result<ToolPhaseResult<Self::Outcome, Self::Prepared>, ToolError>;

    /// What the call itself says about the changes that its program leaves.
    fn follow_up(&self, _: &Self::Prepared) -> FollowUpMode {
        FollowUpMode::Policy
    }

    /// Takes a decision about each group that a phase left, and returns what they come to together: a new directory, for
    /// example, is not kept without an entry that it was made for. Called before anything of it is shown or run.
    fn reconcile(&self, _: &mut Self::Prepared, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        wanted
    }

    /// The outcome of a call where everything that a phase left was refused.
    fn abort(&self, _: Self::Prepared, refused: ToolError) -> Result<Self::Outcome, ToolError> {
        Err(refused)
    }

    /// The tool whose rules also hold for this plan, if that is another one of the session: input of a background job is code
    /// of the call that started it. For the changes of a later phase, they hold instead of this tool's own.
    fn acts_as<'a>(&self, _: &'a Self::Prepared) -> Option<&'a str> {
        None
    }

    /// A session of this ID is over. What the tool keeps for it ends with it, and no call of it comes any more.
    fn end_session(&self, _: &str) {}
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
    ) -> Result<ToolPhaseResult<Self::Outcome, Self::Prepared>, ToolError> {
        self.run(work, ticket).map(ToolPhaseResult::Done)
    }
}

/// The result of one phase of a call.
#[derive(Debug)]
pub enum ToolPhaseResult<O, W> {
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

/// The decision about a group of changes.
///
/// ```
/// use ringfence_kernel::ChangeGroupDecision;
///
/// assert_eq!(ChangeGroupDecision::Keep.or_stricter(&ChangeGroupDecision::Ask), ChangeGroupDecision::Ask);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeGroupDecision {
    /// The changes are committed.
    Keep,
    /// A person is asked first.
    Ask,
    /// The changes are discarded, for this reason.
    Refuse(ToolError),
}

impl ChangeGroupDecision {
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

/// The plan of a call.
#[derive(Debug)]
pub struct ToolPlan<W> {
    /// Every access of the call; the policy judges each.
    pub accesses: Vec<ResourceAccess>,
    /// The tool's own state, which the run gets.
    pub prepared: W,
}

/// The actions that a tool can have, whatever its arguments: the source of the annotations of protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCapabilities {
    /// The actions that its plans may have.
    pub actions: &'static [PolicyAction],
    /// The same call, made again, changes nothing more.
    pub idempotent: bool,
    /// Its calls wait for a background job, and have no order with other calls.
    pub waits_for_job: bool,
}

impl ToolCapabilities {
    /// Nothing is ever changed, and no program runs that could.
    pub fn is_read_only(self) -> bool {
        !self.actions.iter().any(|action| {
            action.changes_files() || matches!(action, PolicyAction::Run | PolicyAction::External | PolicyAction::Send)
        })
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
        self.actions.iter().any(|action| action.is_host_action() || *action == PolicyAction::External)
    }
}
