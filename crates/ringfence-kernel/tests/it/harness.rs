//! Test harness: a host with one scripted tool, a policy that goes by names, and a fake approver.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalAnswerStatus, ApprovalDecision, ApprovalRequest, ApprovalStore, ArgumentDraft, Assurance, CallContext,
    CallForward, CallLimits, Decision, DenialStreak, Dialect, ErrorKind, Grant, Host, HostConfig, HostError,
    InMemoryApprovalStore, NET_MOUNT, Policy, PolicyAction, PolicyLayer, PolicyRequest, PolicyResource, Preview,
    PreviewBody, Principal, ResourceAccess, Session, SessionTaint, StoreError, SuspendLifetime, Ticket, Tool,
    ToolBinding, ToolCall, ToolError, ToolPlan, ToolRegistry, ToolReply, Verdict,
};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::audit_trace::AuditTrace;
use ringfence_testkit::host::test_session;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Do something to a path.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Args {
    pub(crate) path: String,
    /// `read`, `overwrite`, `fetch`, `lose` (which overwrites too) or `nothing`.
    #[serde(default)]
    pub(crate) action: Option<String>,
}

impl Args {
    pub(crate) fn accesses(&self) -> Vec<ResourceAccess> {
        let action = match self.action.as_deref() {
            Some("read") => PolicyAction::Read,
            Some("fetch") => PolicyAction::Fetch,
            Some("nothing") => return Vec::new(),
            _ => PolicyAction::Overwrite,
        };
        let actions =
            if self.action.as_deref() == Some("lose") { vec![action, PolicyAction::Lose] } else { vec![action] };
        let mount = if action == PolicyAction::Fetch { NET_MOUNT } else { "workspace" };
        let resource = PolicyResource {
            mount: Arc::from(mount),
            requested_path: self.path.clone(),
            display_path: self.path.clone(),
            ..PolicyResource::default()
        };
        actions.into_iter().map(|action| ResourceAccess { action, resource: resource.clone() }).collect()
    }
}

/// The outcome that the tool returns.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ScriptedToolOutcome {
    pub(crate) path: String,
    pub(crate) approved: bool,
}

type PlanHook = Box<dyn Fn(&Args, &CallContext<'_>) -> Result<(), ToolError> + Send + Sync>;
type RunHook = Box<dyn Fn(&Args, &Ticket<'_>) -> Result<(), ToolError> + Send + Sync>;

/// Side effects of the tool.
pub(crate) struct ToolScript {
    pub(crate) plan: PlanHook,
    pub(crate) run: RunHook,
}

impl Default for ToolScript {
    fn default() -> Self {
        Self { plan: Box::new(|_, _| Ok(())), run: Box::new(|_, ticket| ticket.commit()) }
    }
}

impl ToolScript {
    pub(crate) fn run(run: impl Fn(&Args, &Ticket<'_>) -> Result<(), ToolError> + Send + Sync + 'static) -> Self {
        Self { run: Box::new(run), ..Self::default() }
    }

    pub(crate) fn plan(
        plan: impl Fn(&Args, &CallContext<'_>) -> Result<(), ToolError> + Send + Sync + 'static,
    ) -> Self {
        Self { plan: Box::new(plan), ..Self::default() }
    }
}

struct ScriptedTool<const QUICK: bool> {
    script: ToolScript,
    /// Number of calls of `run`.
    runs: Arc<AtomicUsize>,
}

impl<const QUICK: bool> Tool for ScriptedTool<QUICK> {
    type Args = Args;
    type Prepared = Args;
    type Outcome = ScriptedToolOutcome;
    const SUPPORTS_NON_BLOCKING: bool = QUICK;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<Args>, ToolError> {
        cx.set_subject(&args.path);
        (self.script.plan)(&args, cx)?;
        Ok(ToolPlan { accesses: args.accesses(), prepared: args })
    }

    fn preview(&self, work: &mut Args, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        // What is called so is something else at every look.
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let fingerprint = match work.path.strip_suffix("moving") {
            Some(above) => format!("{above}{}", LOOKS.fetch_add(1, Ordering::SeqCst)),
            None => work.path.clone(),
        };
        let preview = Preview::new(&format!("act on `{}`", work.path), fingerprint);
        let secret = work.path.contains("secret");
        Ok(preview.with_body(PreviewBody::Text(format!("all of {}", work.path))).with_secret(secret))
    }

    fn run(&self, work: Args, ticket: &Ticket<'_>) -> Result<ScriptedToolOutcome, ToolError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.script.run)(&work, ticket)?;
        Ok(ScriptedToolOutcome { path: work.path, approved: ticket.is_approved() })
    }
}

/// A path with `deny` in it is denied, one with `ask` in it is asked about, and so is what has no path.
#[derive(Debug)]
pub(crate) struct PathWordPolicy;

impl Policy for PathWordPolicy {
    fn evaluate(&self, access: &ResourceAccess, _: &PolicyRequest<'_>) -> Verdict {
        let named = |word: &str| access.resource.requested_path.contains(word);
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
            layer: PolicyLayer::User,
            reason: "the name says so".to_owned(),
            assurance: if named("person") { Assurance::Person } else { Assurance::Relayed },
            grant: None,
        }
    }
}

type StoreHook = Box<dyn Fn(&str) -> Result<(), StoreError> + Send + Sync>;

/// A store that others hold too, and something that happens before each of its steps.
pub(crate) struct HookedStore {
    pub(crate) store: Arc<dyn ApprovalStore>,
    pub(crate) before: StoreHook,
}

impl HookedStore {
    pub(crate) fn shared(store: &Arc<dyn ApprovalStore>) -> Box<Self> {
        Self::new(store, |_| Ok(()))
    }

    pub(crate) fn new(
        store: &Arc<dyn ApprovalStore>,
        before: impl Fn(&str) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self { store: Arc::clone(store), before: Box::new(before) })
    }
}

impl std::fmt::Debug for HookedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

impl ApprovalStore for HookedStore {
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreError> {
        (self.before)("open_request")?;
        self.store.open_request(request)
    }

    fn request(&self, id: &str) -> Result<Option<ApprovalRequest>, StoreError> {
        (self.before)("request")?;
        self.store.request(id)
    }

    fn pending(&self, now: SystemTime) -> Result<Vec<ApprovalRequest>, StoreError> {
        (self.before)("pending")?;
        self.store.pending(now)
    }

    fn answer(
        &self,
        id: &str,
        answered: &ApprovalDecision,
        now: SystemTime,
    ) -> Result<ApprovalAnswerStatus, StoreError> {
        (self.before)("answer")?;
        self.store.answer(id, answered, now)
    }

    fn answer_of(&self, id: &str) -> Result<Option<ApprovalDecision>, StoreError> {
        (self.before)("answer_of")?;
        self.store.answer_of(id)
    }

    fn close_request(&self, id: &str) -> Result<(), StoreError> {
        (self.before)("close_request")?;
        self.store.close_request(id)
    }

    fn detach(&self, id: &str, lifetime: SuspendLifetime) -> Result<(), StoreError> {
        (self.before)("detach")?;
        self.store.detach(id, lifetime)
    }

    fn set_draft(&self, id: &str, draft: &ArgumentDraft) -> Result<bool, StoreError> {
        (self.before)("set_draft")?;
        self.store.set_draft(id, draft)
    }

    fn draft_of(&self, id: &str) -> Result<Option<ArgumentDraft>, StoreError> {
        (self.before)("draft_of")?;
        self.store.draft_of(id)
    }

    fn record_denial(&self, session: &str, principal: &str, now: SystemTime) -> Result<(), StoreError> {
        (self.before)("record_denial")?;
        self.store.record_denial(session, principal, now)
    }

    fn denial_streaks(&self) -> Result<Vec<DenialStreak>, StoreError> {
        (self.before)("denial_streaks")?;
        self.store.denial_streaks()
    }

    fn reset_denials(&self, session: &str) -> Result<bool, StoreError> {
        (self.before)("reset_denials")?;
        self.store.reset_denials(session)
    }

    fn add_grant(&self, grant: &Grant) -> Result<(), StoreError> {
        (self.before)("add_grant")?;
        self.store.add_grant(grant)
    }

    fn grants(&self, now: SystemTime) -> Result<Vec<Grant>, StoreError> {
        (self.before)("grants")?;
        self.store.grants(now)
    }

    fn revoke_grant(&self, id: &str) -> Result<bool, StoreError> {
        (self.before)("revoke_grant")?;
        self.store.revoke_grant(id)
    }

    fn consume_nonce(&self, nonce: &str, expires: SystemTime, now: SystemTime) -> Result<bool, StoreError> {
        (self.before)("consume_nonce")?;
        self.store.consume_nonce(nonce, expires, now)
    }

    fn sealing_key(&self) -> Result<[u8; 32], StoreError> {
        (self.before)("sealing_key")?;
        self.store.sealing_key()
    }
}

/// Settings of a test host.
pub(crate) struct HostSetup {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) script: ToolScript,
    pub(crate) non_blocking: bool,
    pub(crate) approver: ScriptedApprover,
    pub(crate) trace: AuditTrace,
    pub(crate) store: Box<dyn ApprovalStore>,
    pub(crate) principal: Principal,
    pub(crate) session: &'static str,
    pub(crate) taint: SessionTaint,
    pub(crate) workers: usize,
    /// Identity of the workspace, where grants on it are possible.
    pub(crate) directory: Option<&'static str>,
    pub(crate) limits: CallLimits,
    /// Calls that mean another.
    pub(crate) forward: Option<CallForward>,
}

impl Default for HostSetup {
    fn default() -> Self {
        Self {
            policy: Box::new(PathWordPolicy),
            script: ToolScript::default(),
            non_blocking: false,
            approver: ScriptedApprover::default(),
            trace: AuditTrace::default(),
            store: Box::new(InMemoryApprovalStore::default()),
            principal: Principal::agent("test"),
            session: "test",
            taint: SessionTaint::default(),
            workers: 4,
            directory: None,
            forward: None,
            limits: CallLimits::for_dialect(Dialect::Standard),
        }
    }
}

impl HostSetup {
    pub(crate) fn with_script(script: ToolScript) -> Self {
        Self { script, ..Self::default() }
    }

    pub(crate) fn with_answers(answers: impl IntoIterator<Item = ApprovalDecision>) -> Self {
        Self { approver: ScriptedApprover::with_answers(answers), ..Self::default() }
    }

    pub(crate) fn build(self) -> TestHost {
        let runs = Arc::new(AtomicUsize::new(0));
        let mut registry = ToolRegistry::new();
        let counted = Arc::clone(&runs);
        if self.non_blocking {
            let tool = ScriptedTool::<true> { script: self.script, runs: counted };
            registry.register(tool, [ToolBinding::standard::<Args, ScriptedToolOutcome>("act")]).unwrap();
        } else {
            let tool = ScriptedTool::<false> { script: self.script, runs: counted };
            registry.register(tool, [ToolBinding::standard::<Args, ScriptedToolOutcome>("act")]).unwrap();
        }
        if let Some(forward) = self.forward {
            registry.forward(forward);
        }
        let session = Session {
            id: self.session.to_owned(),
            principal: self.principal,
            limits: self.limits,
            taint: self.taint,
            ..test_session(&registry, Dialect::Standard)
        };
        let host = Host::new(HostConfig {
            policy: self.policy,
            approver: Box::new(self.approver.clone()),
            audit: Box::new(self.trace.clone()),
            store: self.store,
            workers: self.workers,
        });
        let directories = self.directory.map(|directory| ("workspace".to_owned(), directory.to_owned()));
        let host = host.with_grants(directories.into_iter().collect());
        TestHost { host, session: Arc::new(session), approver: self.approver, trace: self.trace, runs }
    }
}

/// A host, and everything that shows what happened on it.
#[derive(Clone)]
pub(crate) struct TestHost {
    pub(crate) host: Host,
    pub(crate) session: Arc<Session>,
    pub(crate) approver: ScriptedApprover,
    pub(crate) trace: AuditTrace,
    runs: Arc<AtomicUsize>,
}

impl TestHost {
    pub(crate) async fn call(&self, arguments: &Value) -> ToolReply {
        self.try_call("act", &arguments.to_string(), &CancellationToken::new()).await.unwrap()
    }

    pub(crate) async fn try_call(
        &self,
        tool: &str,
        arguments: &str,
        cancel: &CancellationToken,
    ) -> Result<ToolReply, HostError> {
        let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_owned() };
        self.host.call(&self.session, call, cancel).await
    }

    /// A call on a task of its own, for tests that do something meanwhile.
    pub(crate) fn start(&self, arguments: &Value, cancel: &CancellationToken) -> tokio::task::JoinHandle<ToolReply> {
        let (test_host, arguments, cancel) = (self.clone(), arguments.to_string(), cancel.clone());
        tokio::spawn(async move { test_host.try_call("act", &arguments, &cancel).await.unwrap() })
    }

    /// The pending requests.
    pub(crate) fn pending(&self) -> Vec<ApprovalRequest> {
        let person = Principal::person("ann");
        self.host.inbox(&person).pending(SystemTime::now()).unwrap()
    }

    /// Number of runs of the tool.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// The reply as JSON, which a success and an error both are.
pub(crate) fn reply_json(reply: &ToolReply) -> Value {
    serde_json::from_str(&reply.text).unwrap()
}

#[track_caller]
pub(crate) fn assert_error(reply: &ToolReply, kind: ErrorKind) {
    assert_eq!(reply.error_kind(), Some(kind), "{}", reply.text);
    assert_eq!(reply_json(reply)["ok"], false);
}
