//! What a tool is: it plans, and it runs what was planned.
//!
//! `plan` looks and never changes anything. `run` gets exactly what was planned, with a `Ticket` that says
//! it may go ahead; a tool cannot be run without one.
//!
//! Not here: how a dialect names a tool and its arguments (`face.rs`).

use std::cell::Cell;
use std::sync::Arc;

use crate::{ErrorKind, Limits, Signal, Ticket, ToolError};

/// One thing that an agent can do.
pub trait Tool: Send + Sync + 'static {
    /// The kernel's arguments, the same for every dialect.
    type Args: Send + 'static;
    /// What `plan` found and `run` needs: held descriptors, what was seen.
    type Work: Send + 'static;
    /// What happened.
    type Outcome: Send + 'static;

    /// Whether the tool honours `Pace::Quick`, and may therefore be tried on the caller's own thread.
    const QUICK: bool = false;

    /// Finds out what the call would do. Reads only, and within the limits.
    fn plan(&self, args: Self::Args, cx: &Context<'_>) -> Result<Plan<Self::Work>, ToolError>;

    /// What a person is shown before it happens.
    fn preview(&self, work: &Self::Work) -> Preview;

    /// Does what was planned.
    fn run(&self, work: Self::Work, ticket: &Ticket<'_>) -> Result<Self::Outcome, ToolError>;
}

/// What a call would do.
#[derive(Debug)]
pub struct Plan<W> {
    /// Everything that it would touch; the policy judges each.
    pub touches: Vec<Touch>,
    pub work: W,
}

/// One thing done to one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    pub verb: Verb,
    pub place: Place,
}

/// What is done to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Names, types, sizes and times are seen.
    List,
    /// Contents are seen.
    Read,
    /// Something comes to be where nothing was.
    Create,
    /// Contents that were there are no longer.
    Overwrite,
    /// It goes away, to be found at another place of the same call.
    MoveAway,
    /// It goes away.
    Delete,
    /// Contents go for good: nothing is kept to bring them back from.
    Lose,
}

impl Verb {
    pub fn changes(self) -> bool {
        !matches!(self, Self::List | Self::Read)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Create => "create",
            Self::Overwrite => "overwrite",
            Self::MoveAway => "move",
            Self::Delete => "delete",
            Self::Lose => "lose",
        }
    }
}

/// A path inside a mount, as given and, where a link or `..` made that another one, as resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub mount: Arc<str>,
    /// As the caller spelled it, without the mount.
    pub given: String,
    /// Where it really is, if that is not `given`.
    pub resolved: Option<String>,
    /// How replies and records spell it.
    pub shown: String,
}

impl Place {
    /// Every name that a rule has to be asked about.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.given.as_str()).chain(self.resolved.as_deref())
    }
}

/// What a person is shown of a plan, and what binds their answer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    pub text: String,
    /// Changes when what the preview shows is no longer what would happen.
    pub fingerprint: String,
}

/// Whether work may wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Only what the kernel can answer from memory: the caller's own thread does it.
    Quick,
    /// A worker thread does it, and may wait.
    Patient,
}

/// Who makes a call, for tools that keep a trace of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub session: String,
    pub call: String,
    pub tool: String,
    /// The principal may reverse changes of any session: a person.
    pub may_undo: bool,
}

/// What a tool knows about the call while it plans and runs.
#[derive(Debug)]
pub struct Context<'a> {
    pub limits: &'a Limits,
    pub pace: Pace,
    origin: Option<&'a Origin>,
    signal: &'a Signal,
    stalled: Cell<bool>,
}

impl<'a> Context<'a> {
    pub fn new(limits: &'a Limits, pace: Pace, signal: &'a Signal) -> Self {
        Self { limits, pace, origin: None, signal, stalled: Cell::new(false) }
    }

    #[must_use]
    pub fn made_by(self, origin: &'a Origin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// Who makes the call. Nobody, where the host works for itself.
    pub fn origin(&self) -> Option<&'a Origin> {
        self.origin
    }

    /// Fails once nobody waits for the call any more.
    pub fn check(&self) -> Result<(), ToolError> {
        self.signal.check()
    }

    /// Says that the quick attempt would have to wait. The road then starts the call again on a worker,
    /// and never shows this error.
    pub fn stall(&self) -> ToolError {
        self.stalled.set(true);
        ToolError::new(ErrorKind::Internal, "a quick call had to wait")
    }

    /// Says what the call is about, as replies spell it, so that a call that fails early leaves a trace with a name.
    pub fn name_subject(&self, shown: &str) {
        self.signal.name_subject(shown);
    }

    pub(crate) fn stalled(&self) -> bool {
        self.stalled.get()
    }

    /// Whether the call is still wanted, for threads that help with it.
    pub fn signal(&self) -> &Signal {
        self.signal
    }
}
