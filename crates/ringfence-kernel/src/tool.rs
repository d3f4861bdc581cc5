//! What a tool is: it plans, and it runs what was planned.
//!
//! `plan` looks and never changes anything. `run` gets exactly what was planned, with a `Ticket` that says
//! it may go ahead; a tool cannot be run without one.
//!
//! Not here: how a dialect names a tool and its arguments (`face.rs`).

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::sensitive::{Sensitivity, sensitivity, settings_through_link};
use crate::{Assurance, AuditLost, Bit, ErrorKind, Limits, Preview, Signal, Ticket, ToolError, Verdict};

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

    /// Everything that a call may ever do. A plan with any other verb is refused, so what callers are told by it is true.
    const VERBS: &'static [Verb] = &Verb::ALL;

    /// Whether the same call, made again, changes nothing more.
    const SAME_AGAIN: bool = false;

    /// Finds out what the call would do. Reads only, and within the limits.
    fn plan(&self, args: Self::Args, cx: &Context<'_>) -> Result<Plan<Self::Work>, ToolError>;

    /// What a person is shown before it happens. Reads only; what it showed is kept in `work`, so that `run` can tell
    /// whether it is still there.
    fn preview(&self, work: &mut Self::Work, cx: &Context<'_>) -> Result<Preview, ToolError>;

    /// Does what was planned.
    fn run(&self, work: Self::Work, ticket: &Ticket<'_>) -> Result<Self::Outcome, ToolError>;

    /// Whether a call that is to stop ends by itself and then has something to say. The road waits for that a while.
    const STOPS_ITSELF: bool = false;

    /// How long a call may take, approval not counted.
    fn time(limits: &Limits) -> Duration {
        limits.call_time
    }

    /// Why a person has to see it first, even where the policy allows it.
    fn wants_review(&self, _: &Self::Work) -> Option<Review> {
        None
    }

    /// What is left to do after the run, where only the run could tell: it is judged, shown and run as a plan of its own.
    fn follow(&self, outcome: Self::Outcome) -> Next<Self::Outcome, Self::Work> {
        Next::Done(outcome)
    }

    /// Takes a decision about each group of what a run left, and returns what they come to together: a new directory, for
    /// example, is not kept without an entry that it was made for. Called before anything of it is shown or run.
    fn settle(&self, _: &mut Self::Work, wanted: Vec<KeepDecision>) -> Vec<KeepDecision> {
        wanted
    }

    /// What the call comes to where all of that was refused.
    fn leave(&self, _: Self::Work, refused: ToolError) -> Result<Self::Outcome, ToolError> {
        Err(refused)
    }
}

/// How far a run brought a call.
#[derive(Debug)]
pub enum Next<O, W> {
    Done(O),
    /// Changes that wait, such as those that a program made in its jail.
    Rest(Remainder<W>),
}

/// What a run left to decide about, in groups that are decided one by one.
#[derive(Debug)]
pub struct Remainder<W> {
    pub groups: Vec<ChangeGroup>,
    pub work: W,
}

impl<W> From<Plan<W>> for Remainder<W> {
    /// All of it, or nothing.
    fn from(Plan { touches, work }: Plan<W>) -> Self {
        Self { groups: vec![ChangeGroup { touches, refused: None }], work }
    }
}

/// Changes that stand or fall together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeGroup {
    pub touches: Vec<Touch>,
    /// Why they cannot be kept, whatever the policy says.
    pub refused: Option<ToolError>,
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
pub struct Review {
    /// In words for a person and a model.
    pub reason: &'static str,
    /// What an answer must at least be.
    pub assurance: Assurance,
}

impl Review {
    /// Who called wants it.
    pub const WISHED: Self =
        Self { reason: "the call itself asks for a review of what it changed", assurance: Assurance::Relayed };
}

/// What a call would do.
#[derive(Debug)]
pub struct Plan<W> {
    /// Everything that it would touch; the policy judges each.
    pub touches: Vec<Touch>,
    pub work: W,
}

/// The names of the workspace as a mount: what most dialects call it, and what `crewagent` does. Whoever calls chooses the
/// dialect, so a rule means it by either name, and no other mount has one of them.
pub const WORKSPACE: [&str; 2] = ["workspace", "project"];

/// Whether two names are those of one mount.
pub(crate) fn is_same_mount(one: &str, other: &str) -> bool {
    one == other || (WORKSPACE.contains(&one) && WORKSPACE.contains(&other))
}

/// The mount that stands for the network: its paths are `host:port`, and `host:port/path` where the path is known.
pub const NET: &str = "net";

/// The mount that stands for the search engine that the user chose: its paths are `host:port`. What is asked there goes to
/// one host of their choice, so it is not one more host to be asked about.
pub const SEARCH: &str = "search";

/// The mount that stands for programs: its paths are languages.
pub const CODE: &str = "code";

/// The mount that stands for the tools of other programs: its paths are `server/tool`.
pub const MCP: &str = "mcp";

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
    /// A request leaves for a host; the mount is `NET` or `SEARCH`.
    Fetch,
    /// Contents go for good: nothing is kept to bring them back from.
    Lose,
    /// A program runs in a jail; the mount is `CODE`. What it changes waits there, and is judged by itself.
    Run,
    /// Another program's tool is called; the mount is `MCP`. Nobody but that program knows what it does.
    External,
}

impl Verb {
    pub const ALL: [Self; 10] = [
        Self::List,
        Self::Read,
        Self::Create,
        Self::Overwrite,
        Self::MoveAway,
        Self::Delete,
        Self::Fetch,
        Self::Lose,
        Self::Run,
        Self::External,
    ];

    /// Whether files are no longer what they were.
    pub fn changes(self) -> bool {
        !matches!(self, Self::List | Self::Read | Self::Fetch | Self::Run | Self::External)
    }

    /// Whether its places are files.
    pub fn is_about_files(self) -> bool {
        !matches!(self, Self::Fetch | Self::Run | Self::External)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Create => "create",
            Self::Overwrite => "overwrite",
            Self::MoveAway => "move",
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
pub struct Effect {
    pub verbs: &'static [Verb],
    /// The same call, made again, changes nothing more.
    pub same_again: bool,
}

impl Effect {
    /// Nothing is ever changed, and no program runs that could.
    pub fn only_reads(self) -> bool {
        !self.verbs.iter().any(|verb| verb.changes() || matches!(verb, Verb::Run | Verb::External))
    }

    /// What is there may be gone or changed after it: more than new things come to be.
    pub fn destroys(self) -> bool {
        let takes =
            |verb: &Verb| (verb.changes() && *verb != Verb::Create) || matches!(verb, Verb::Run | Verb::External);
        self.verbs.iter().any(takes)
    }

    /// It can reach what is not on this machine.
    pub fn reaches_out(self) -> bool {
        self.verbs.iter().any(|verb| matches!(verb, Verb::Fetch | Verb::External))
    }
}

/// A path inside a mount, as given and, where a link or `..` made that another one, as resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub mount: Arc<str>,
    /// As the caller spelled it, without the mount.
    pub given: String,
    /// Where it really is, if that is not `given`.
    pub resolved: Option<String>,
    /// How replies and records spell it.
    pub shown: String,
    /// What is known of it by what it is, whatever it is called here.
    pub sensitivity: Sensitivity,
    /// It is data of a git repository that was there before the call, such as an object or a branch, and what it leads to
    /// was judged: then its name alone does not make it a setting that other programs act on.
    pub repository_data: bool,
    pub named: Named,
}

/// What the names of a place say, once somebody asked. A copy is asked anew: it may get other names.
#[derive(Debug, Default)]
pub struct Named(OnceLock<Sensitivity>);

impl Clone for Named {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// It follows from the names, which are compared themselves.
impl PartialEq for Named {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Named {}

impl Place {
    /// Every name that a rule has to be asked about.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.given.as_str()).chain(self.resolved.as_deref())
    }

    /// Where it really is, as replies and records spell it, if that is not what it was called.
    pub fn real(&self) -> Option<String> {
        let resolved = self.resolved.as_deref().filter(|resolved| *resolved != self.given)?;
        let mount = self.shown.strip_suffix(self.given.as_str()).unwrap_or_default();
        Some(format!("{mount}{resolved}"))
    }

    /// What is at `path` below it.
    #[must_use]
    pub fn below(&self, path: &str) -> Self {
        let join = |above: &str| if above == "." { path.to_owned() } else { format!("{above}/{path}") };
        Self {
            mount: Arc::clone(&self.mount),
            given: join(&self.given),
            resolved: self.resolved.as_deref().map(join),
            shown: join(&self.shown),
            ..Self::default()
        }
    }

    /// What a link of this name gives another program to act on, by a name below it.
    pub fn through_link(&self) -> Option<Self> {
        let rest = self.names().find_map(settings_through_link)?;
        Some(self.below(rest))
    }

    /// Why this deserves a second look, if it does: by its names, or by what it is.
    pub fn sensitive(&self) -> Sensitivity {
        let say = || self.names().map(sensitivity).fold(Sensitivity::default(), Sensitivity::or);
        let named = *self.named.0.get_or_init(say);
        self.sensitivity.or(Sensitivity { protected: named.protected && !self.repository_data, ..named })
    }
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
    road: Option<&'a dyn Road>,
    sought: RefCell<Vec<Box<dyn Sought>>>,
}

/// What a plan looks for. Where that fails, its place says whether the caller may know why.
pub trait Sought: std::fmt::Debug {
    /// The place itself, then those that it leads to as a link.
    fn whereabouts(&self) -> Vec<Place>;
}

/// What the road knows about the call that the tool does not.
pub(crate) trait Road: std::fmt::Debug {
    fn judge(&self, touch: &Touch) -> Verdict;
    fn raise(&self, bit: Bit);
    fn report(&self, progress: &Progress<'_>);
    fn reached(&self, touch: &Touch, refused: Option<&ToolError>) -> Result<(), AuditLost>;
}

/// What a call has to say before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// What it is a piece of: `stdout`, `stderr`.
    pub stream: &'static str,
    pub text: &'a str,
}

/// Hears how a call is getting on.
pub trait Listener: Send + Sync + std::fmt::Debug {
    fn hear(&self, progress: &Progress<'_>);
}

impl<'a> Context<'a> {
    pub fn new(limits: &'a Limits, pace: Pace, signal: &'a Signal) -> Self {
        let (stalled, sought) = (Cell::new(false), RefCell::default());
        Self { limits, pace, origin: None, signal, stalled, road: None, sought }
    }

    pub(crate) fn on_road(self, road: &'a dyn Road) -> Self {
        Self { road: Some(road), ..self }
    }

    /// What the policy says to something that the call comes upon, such as a file in a directory that is searched.
    pub fn judge(&self, touch: &Touch) -> Verdict {
        self.road.map_or_else(Verdict::unknown_effect, |road| road.judge(touch))
    }

    /// Says what the session has now been through. Only the tool knows whether what it saw was a stranger's.
    pub fn raise(&self, bit: Bit) {
        if let Some(road) = self.road {
            road.raise(bit);
        }
    }

    /// Tells whoever listens how far the call is.
    pub fn report(&self, progress: &Progress<'_>) {
        if let Some(road) = self.road {
            road.report(progress);
        }
    }

    /// Records that the call reaches something while it runs, or wanted to and may not. No record, no connection.
    pub fn reached(&self, touch: &Touch, refused: Option<&ToolError>) -> Result<(), ToolError> {
        let lost = |_| ToolError::new(ErrorKind::Internal, "the audit log cannot be written");
        self.road.map_or(Ok(()), |road| road.reached(touch, refused)).map_err(lost)
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

    /// Says what is looked for, before it is.
    pub fn seek(&self, sought: impl Sought + 'static) {
        self.sought.borrow_mut().push(Box::new(sought));
    }

    pub(crate) fn sought(&self) -> Vec<Place> {
        self.sought.borrow().iter().flat_map(|sought| sought.whereabouts()).collect()
    }

    pub(crate) fn stalled(&self) -> bool {
        self.stalled.get()
    }

    /// Whether the call is still wanted, for threads that help with it.
    pub fn signal(&self) -> &Signal {
        self.signal
    }
}
