//! A host with one scripted tool, a policy that goes by names, and somebody to ask.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ringfence_kernel::{
    Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, ArgumentDraft, Assurance, AuditLost, AuditSink,
    Bits, Body, Choice, Context, Decision, Dialect, ErrorKind, Face, Fatal, Grant, Host, Layer, Limits, MemoryStore,
    Moment, NET, Noes, Parts, Place, Plan, Policy, Preview, Principal, Put, Question, Record, Registry, Reply, Session,
    Store, StoreLost, SuspendLifetime, Ticket, Tool, ToolCall, ToolError, Touch, Verb, Verdict, Word,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Do something to a path.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Args {
    pub(crate) path: String,
    /// `read`, `overwrite`, `fetch`, `lose` (which overwrites too) or `nothing`.
    #[serde(default)]
    pub(crate) verb: Option<String>,
}

impl Args {
    pub(crate) fn touches(&self) -> Vec<Touch> {
        let verb = match self.verb.as_deref() {
            Some("read") => Verb::Read,
            Some("fetch") => Verb::Fetch,
            Some("nothing") => return Vec::new(),
            _ => Verb::Overwrite,
        };
        let verbs = if self.verb.as_deref() == Some("lose") { vec![verb, Verb::Lose] } else { vec![verb] };
        let mount = if verb == Verb::Fetch { NET } else { "workspace" };
        let place =
            Place { mount: Arc::from(mount), given: self.path.clone(), shown: self.path.clone(), ..Place::default() };
        verbs.into_iter().map(|verb| Touch { verb, place: place.clone() }).collect()
    }
}

/// What the tool says it did.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Did {
    pub(crate) path: String,
    pub(crate) approved: bool,
}

type PlanHook = Box<dyn Fn(&Args, &Context<'_>) -> Result<(), ToolError> + Send + Sync>;
type RunHook = Box<dyn Fn(&Args, &Ticket<'_>) -> Result<(), ToolError> + Send + Sync>;

/// What the tool does besides saying so.
pub(crate) struct Script {
    pub(crate) plan: PlanHook,
    pub(crate) run: RunHook,
}

impl Default for Script {
    fn default() -> Self {
        Self { plan: Box::new(|_, _| Ok(())), run: Box::new(|_, ticket| ticket.commit()) }
    }
}

impl Script {
    pub(crate) fn run(run: impl Fn(&Args, &Ticket<'_>) -> Result<(), ToolError> + Send + Sync + 'static) -> Self {
        Self { run: Box::new(run), ..Self::default() }
    }

    pub(crate) fn plan(plan: impl Fn(&Args, &Context<'_>) -> Result<(), ToolError> + Send + Sync + 'static) -> Self {
        Self { plan: Box::new(plan), ..Self::default() }
    }
}

struct Scripted<const QUICK: bool> {
    script: Script,
    /// How often `run` was entered.
    runs: Arc<AtomicUsize>,
}

impl<const QUICK: bool> Tool for Scripted<QUICK> {
    type Args = Args;
    type Work = Args;
    type Outcome = Did;
    const QUICK: bool = QUICK;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Args>, ToolError> {
        cx.name_subject(&args.path);
        (self.script.plan)(&args, cx)?;
        Ok(Plan { touches: args.touches(), work: args })
    }

    fn preview(&self, work: &mut Args, _: &Context<'_>) -> Result<Preview, ToolError> {
        // What is called so is something else at every look.
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let fingerprint = match work.path.strip_suffix("moving") {
            Some(above) => format!("{above}{}", LOOKS.fetch_add(1, Ordering::SeqCst)),
            None => work.path.clone(),
        };
        let preview = Preview::new(&format!("act on `{}`", work.path), fingerprint);
        let secret = work.path.contains("secret");
        Ok(preview.with(Body::Text(format!("all of {}", work.path))).secret_if(secret))
    }

    fn run(&self, work: Args, ticket: &Ticket<'_>) -> Result<Did, ToolError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.script.run)(&work, ticket)?;
        Ok(Did { path: work.path, approved: ticket.approved() })
    }
}

/// A path with `deny` in it is denied, one with `ask` in it is asked about, and so is what has no path.
#[derive(Debug)]
pub(crate) struct ByName;

impl Policy for ByName {
    fn judge(&self, touch: &Touch, _: &Question<'_>) -> Verdict {
        let named = |word: &str| touch.place.given.contains(word);
        let decision = if named("deny") {
            Decision::Deny
        } else if named("ask") {
            Decision::Ask
        } else {
            Decision::Allow
        };
        Verdict {
            decision,
            rule: Arc::from("by name"),
            layer: Layer::User,
            reason: "the name says so".to_owned(),
            assurance: if named("person") { Assurance::Person } else { Assurance::Relayed },
            grant: None,
        }
    }
}

/// Somebody who answers what the test wrote down, in order, and then no more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Somebody {
    pub(crate) answers: Arc<Mutex<VecDeque<Answered>>>,
    /// Puts off what is not written down.
    pub(crate) puts_off: bool,
    pub(crate) asked: Arc<Mutex<Vec<ApprovalRequest>>>,
    /// One more question was put.
    pub(crate) bell: Arc<Notify>,
}

impl Somebody {
    pub(crate) fn saying(answers: impl IntoIterator<Item = Answered>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
    }

    pub(crate) fn questions(&self) -> Vec<Value> {
        self.asked.lock().unwrap().iter().map(|request| request.args["path"].clone()).collect()
    }
}

impl Approver for Somebody {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        self.asked.lock().unwrap().push(request.clone());
        self.bell.notify_one();
        match self.answers.lock().unwrap().pop_front() {
            Some(answer) => Box::pin(std::future::ready(Word::Now(answer))),
            None if self.puts_off => Box::pin(std::future::ready(Word::Later)),
            None => Box::pin(std::future::pending()),
        }
    }
}

pub(crate) fn yes() -> Answered {
    by_person(ApprovalResponse { approved: true, ..ApprovalResponse::default() })
}

pub(crate) fn no() -> Answered {
    by_person(ApprovalResponse { reason: Some("I do not like it".to_owned()), ..ApprovalResponse::default() })
}

pub(crate) fn change(arguments: Value) -> Answered {
    by_person(ApprovalResponse { approved: true, modified_args: Some(arguments), ..ApprovalResponse::default() })
}

/// An answer that somebody gave at a terminal of ours.
pub(crate) fn by_person(response: ApprovalResponse) -> Answered {
    Answered { response, approval: Approval { assurance: Assurance::Person, by: Some(Principal::person("somebody")) } }
}

type StoreHook = Box<dyn Fn(&str) -> Result<(), StoreLost> + Send + Sync>;

/// A store that others hold too, and something that happens before each of its steps.
pub(crate) struct Hooked {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) before: StoreHook,
}

impl Hooked {
    pub(crate) fn shared(store: &Arc<dyn Store>) -> Box<Self> {
        Self::new(store, |_| Ok(()))
    }

    pub(crate) fn new(
        store: &Arc<dyn Store>,
        before: impl Fn(&str) -> Result<(), StoreLost> + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self { store: Arc::clone(store), before: Box::new(before) })
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

impl Store for Hooked {
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreLost> {
        (self.before)("open_request")?;
        self.store.open_request(request)
    }

    fn request(&self, id: &str) -> Result<Option<ApprovalRequest>, StoreLost> {
        (self.before)("request")?;
        self.store.request(id)
    }

    fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, StoreLost> {
        (self.before)("pending")?;
        self.store.pending(now)
    }

    fn answer(&self, id: &str, answered: &Answered, now: SystemTime) -> Result<Put, StoreLost> {
        (self.before)("answer")?;
        self.store.answer(id, answered, now)
    }

    fn answer_of(&self, id: &str) -> Result<Option<Answered>, StoreLost> {
        (self.before)("answer_of")?;
        self.store.answer_of(id)
    }

    fn close(&self, id: &str) -> Result<(), StoreLost> {
        (self.before)("close")?;
        self.store.close(id)
    }

    fn leave(&self, id: &str, lifetime: SuspendLifetime) -> Result<(), StoreLost> {
        (self.before)("leave")?;
        self.store.leave(id, lifetime)
    }

    fn set_draft(&self, id: &str, draft: &ArgumentDraft) -> Result<bool, StoreLost> {
        (self.before)("set_draft")?;
        self.store.set_draft(id, draft)
    }

    fn draft_of(&self, id: &str) -> Result<Option<ArgumentDraft>, StoreLost> {
        (self.before)("draft_of")?;
        self.store.draft_of(id)
    }

    fn count_no(&self, session: &str, principal: &str, now: SystemTime) -> Result<(), StoreLost> {
        (self.before)("count_no")?;
        self.store.count_no(session, principal, now)
    }

    fn noes(&self) -> Result<Vec<Noes>, StoreLost> {
        (self.before)("noes")?;
        self.store.noes()
    }

    fn forget_noes(&self, session: &str) -> Result<bool, StoreLost> {
        (self.before)("forget_noes")?;
        self.store.forget_noes(session)
    }

    fn add_grant(&self, grant: &Grant) -> Result<(), StoreLost> {
        (self.before)("add_grant")?;
        self.store.add_grant(grant)
    }

    fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, StoreLost> {
        (self.before)("grants")?;
        self.store.grants(now)
    }

    fn revoke(&self, id: &str) -> Result<bool, StoreLost> {
        (self.before)("revoke")?;
        self.store.revoke(id)
    }

    fn use_once(&self, nonce: &str, expires: SystemTime, now: SystemTime) -> Result<bool, StoreLost> {
        (self.before)("use_once")?;
        self.store.use_once(nonce, expires, now)
    }

    fn key(&self) -> Result<[u8; 32], StoreLost> {
        (self.before)("key")?;
        self.store.key()
    }
}

/// Keeps records as short lines. After `room` of them the sink is full and fails.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    lines: Arc<Mutex<Vec<String>>>,
    /// Of each begin, the layer and the rule, and who approved.
    pub(crate) permissions: Arc<Mutex<Vec<String>>>,
    room: usize,
    news: Arc<Notify>,
}

impl Trace {
    pub(crate) fn with_room(room: usize) -> Self {
        Self { lines: Arc::default(), permissions: Arc::default(), room, news: Arc::default() }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until there are so many.
    pub(crate) async fn reaches(&self, count: usize) -> Vec<String> {
        while self.lines().len() < count {
            self.news.notified().await;
        }
        self.lines()
    }
}

impl AuditSink for Trace {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        let what = match &record.moment {
            Moment::Begin { approved, change, .. } => {
                let change = if change.is_empty() { "" } else { " change" };
                format!("begin{}{change}", if approved.is_some() { " approved" } else { "" })
            }
            Moment::Reached { refused: None } => "reached".to_owned(),
            Moment::Reached { refused: Some(error) } => format!("kept from {:?}", error.kind),
            Moment::NotKept { error } => format!("not kept {:?}", error.kind),
            Moment::ReachedUnlisted { made, refused } => format!("reached {made} more, kept from {refused} more"),
            Moment::End { error: None, .. } => "end ok".to_owned(),
            Moment::End { error: Some(error), .. } => format!("end {:?}", error.kind),
            Moment::Refused { error, .. } => format!("refused {:?}", error.kind),
            Moment::Overdue { error, .. } => format!("overdue {:?}", error.kind),
        };
        let subject = record.subject.filter(|_| record.touches.is_empty());
        let touched = record.touches.iter().map(|touch| touch.place.shown.as_str()).chain(subject);
        let line = std::iter::once(what.as_str()).chain(touched).collect::<Vec<_>>().join(" ");
        let mut lines = self.lines.lock().unwrap();
        if let Moment::Begin { rule, layer, approved, .. } = &record.moment {
            let by = approved.and_then(|approval| approval.by.as_ref()).map_or("nobody", |by| by.name.as_str());
            self.permissions.lock().unwrap().push(format!("{} {rule} {by}", layer.name()));
        }
        if lines.len() == self.room {
            return Err(AuditLost(std::io::Error::other("the disk is full")));
        }
        lines.push(line);
        self.news.notify_one();
        Ok(())
    }
}

/// How a road is made.
pub(crate) struct Setup {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) script: Script,
    pub(crate) quick: bool,
    pub(crate) somebody: Somebody,
    pub(crate) trace: Trace,
    pub(crate) store: Box<dyn Store>,
    pub(crate) principal: Principal,
    pub(crate) session: &'static str,
    pub(crate) bits: Bits,
    pub(crate) workers: usize,
    /// What the workspace is, where something may be granted on it.
    pub(crate) directory: Option<&'static str>,
    pub(crate) limits: Limits,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            policy: Box::new(ByName),
            script: Script::default(),
            quick: false,
            somebody: Somebody::default(),
            trace: Trace::with_room(usize::MAX),
            store: Box::new(MemoryStore::default()),
            principal: Principal::agent("test"),
            session: "test",
            bits: Bits::default(),
            workers: 4,
            directory: None,
            limits: Limits::of(Dialect::Standard),
        }
    }
}

impl Setup {
    pub(crate) fn of(script: Script) -> Self {
        Self { script, ..Self::default() }
    }

    pub(crate) fn answering(answers: impl IntoIterator<Item = Answered>) -> Self {
        Self { somebody: Somebody::saying(answers), ..Self::default() }
    }

    pub(crate) fn road(self) -> Road {
        let runs = Arc::new(AtomicUsize::new(0));
        let mut registry = Registry::new();
        let counted = Arc::clone(&runs);
        if self.quick {
            let tool = Scripted::<true> { script: self.script, runs: counted };
            registry.register(tool, [Face::standard::<Args, Did>("act")]).unwrap();
        } else {
            let tool = Scripted::<false> { script: self.script, runs: counted };
            registry.register(tool, [Face::standard::<Args, Did>("act")]).unwrap();
        }
        let session = Session {
            id: self.session.to_owned(),
            principal: self.principal,
            dialect: Dialect::Standard,
            agent: None,
            limits: self.limits,
            catalog: registry.catalog(Dialect::Standard, &Choice::default()).unwrap(),
            bits: self.bits,
        };
        let host = Host::new(Parts {
            policy: self.policy,
            approver: Box::new(self.somebody.clone()),
            audit: Box::new(self.trace.clone()),
            store: self.store,
            workers: self.workers,
        });
        let directories = self.directory.map(|directory| ("workspace".to_owned(), directory.to_owned()));
        let host = host.with_grants(directories.into_iter().collect());
        Road { host, session: Arc::new(session), somebody: self.somebody, trace: self.trace, runs }
    }
}

/// A host, and everything that shows what happened on it.
#[derive(Clone)]
pub(crate) struct Road {
    pub(crate) host: Host,
    pub(crate) session: Arc<Session>,
    pub(crate) somebody: Somebody,
    pub(crate) trace: Trace,
    runs: Arc<AtomicUsize>,
}

impl Road {
    pub(crate) async fn call(&self, arguments: &Value) -> Reply {
        self.try_call("act", &arguments.to_string(), &CancellationToken::new()).await.unwrap()
    }

    pub(crate) async fn try_call(
        &self,
        tool: &str,
        arguments: &str,
        cancel: &CancellationToken,
    ) -> Result<Reply, Fatal> {
        let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_owned() };
        self.host.call(&self.session, call, cancel).await
    }

    /// A call on a task of its own, for tests that do something meanwhile.
    pub(crate) fn start(&self, arguments: &Value, cancel: &CancellationToken) -> tokio::task::JoinHandle<Reply> {
        let (road, arguments, cancel) = (self.clone(), arguments.to_string(), cancel.clone());
        tokio::spawn(async move { road.try_call("act", &arguments, &cancel).await.unwrap() })
    }

    /// The requests that wait for somebody.
    pub(crate) fn pending(&self) -> Vec<ApprovalRequest> {
        let somebody = Principal::person("somebody");
        self.host.desk(&somebody).pending(SystemTime::now()).unwrap()
    }

    /// How often the tool ran.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// The reply as JSON, which a success and an error both are.
pub(crate) fn json(reply: &Reply) -> Value {
    serde_json::from_str(&reply.text).unwrap()
}

#[track_caller]
pub(crate) fn assert_error(reply: &Reply, kind: ErrorKind) {
    assert_eq!(reply.error, Some(kind), "{}", reply.text);
    assert_eq!(json(reply)["ok"], false);
}
