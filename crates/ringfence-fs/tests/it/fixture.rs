//! Test fixture: a workspace in a temporary directory, files outside of it, and a host.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_crewagent::{RUN_STATE, STATE_ALIAS, WORKFLOW_FILE, WorkflowGraphSource, WorkflowGuard};
use ringfence_fs::{Fence, FenceOptions, MountAccess, MountSpec, ResolverBackend, StagingMode};
use ringfence_kernel::{
    CallLimits, Dialect, ErrorKind, Host, HostConfig, LayeredRules, PolicyLayer, PolicyRule, Preset, Principal,
    Session, ToolCall, ToolFilter, ToolRegistry,
};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::audit_trace::AuditTrace;
use ringfence_testkit::host::{test_host_config, test_session};
use ringfence_testkit::world::{TestWorld, WorldDir};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// How a world is made.
#[derive(Clone, Debug)]
pub(crate) struct FsFixtureConfig {
    pub(crate) dialect: Dialect,
    pub(crate) preset: Preset,
    /// Rules of the user, before those of the preset.
    pub(crate) rules: Vec<PolicyRule>,
    pub(crate) options: FenceOptions,
    pub(crate) limits: CallLimits,
    /// Further mounts, by alias, made below the temporary directory.
    pub(crate) mounts: Vec<(&'static str, MountAccess)>,
    /// The graph of the workflow whose state `@state` has.
    pub(crate) graph: Option<&'static str>,
    /// Who takes the records, if anybody.
    pub(crate) trace: Option<AuditTrace>,
    pub(crate) workers: usize,
    /// The approver, if any.
    pub(crate) person: Option<ScriptedApprover>,
    /// A person calls, who is offered the tools for persons.
    pub(crate) by_person: bool,
    /// Tools that only a test has.
    pub(crate) extra: Option<fn(&mut ToolRegistry, &Fence)>,
}

impl Default for FsFixtureConfig {
    fn default() -> Self {
        Self::of(Dialect::Standard)
    }
}

impl FsFixtureConfig {
    pub(crate) fn of(dialect: Dialect) -> Self {
        Self {
            dialect,
            preset: Preset::Edits,
            rules: Vec::new(),
            options: FenceOptions::default(),
            // Tests say no as often as they like.
            limits: CallLimits { denials_in_a_row: u64::MAX, ..CallLimits::for_dialect(dialect) },
            mounts: Vec::new(),
            graph: None,
            trace: None,
            workers: 8,
            person: None,
            by_person: false,
            extra: None,
        }
    }

    /// The second backend also stages files under a name, as on file systems that have no other way.
    pub(crate) fn on(mut self, backend: ResolverBackend) -> Self {
        self.options.backend = backend;
        self.options.staging = match backend {
            ResolverBackend::Best => StagingMode::Unnamed,
            ResolverBackend::CapStd => StagingMode::Named,
        };
        self
    }
}

/// A workspace and a host.
#[derive(Debug)]
pub(crate) struct FsFixture {
    world: TestWorld,
    /// The workspace.
    pub(crate) root: PathBuf,
    /// A directory beside it, where nothing may ever happen. It has a file `secret` with the word SECRET in it.
    pub(crate) outside: PathBuf,
    pub(crate) host: Host,
    pub(crate) session: Arc<Session>,
    pub(crate) backend: &'static str,
    pub(crate) fence: Fence,
}

/// What a call said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FixtureReply {
    pub(crate) text: String,
    pub(crate) error: Option<ErrorKind>,
    /// The text of a value for models, which MCP shows.
    pub(crate) for_model: Option<String>,
}

impl FsFixture {
    pub(crate) fn new() -> Self {
        Self::with(FsFixtureConfig::default())
    }

    pub(crate) fn with(setup: FsFixtureConfig) -> Self {
        Self::in_world(TestWorld::new(), setup)
    }

    /// In memory if possible: for tests that do very much.
    pub(crate) fn in_memory(setup: FsFixtureConfig) -> Self {
        Self::in_world(TestWorld::in_memory(), setup)
    }

    pub(crate) fn at(directory: impl Into<WorldDir>, setup: FsFixtureConfig) -> Self {
        Self::in_world(TestWorld::at(directory), setup)
    }

    fn in_world(world: TestWorld, setup: FsFixtureConfig) -> Self {
        let (root, outside) = (world.workspace.clone(), world.outside.clone());
        let mount = |(alias, rights): &(&str, MountAccess)| {
            let path = world.path().join(format!("mount-{alias}"));
            std::fs::create_dir_all(&path).unwrap();
            MountSpec { alias: (*alias).to_owned(), path, rights: *rights }
        };
        let others = setup.mounts.iter().map(mount).collect();
        let workspace = MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: MountAccess::ReadWrite };
        let options = FenceOptions { run_state: Some(RUN_STATE), ..setup.options };
        let mut fence = Fence::new(workspace, others, &world.state, options).unwrap();
        if setup.mounts.iter().any(|(alias, _)| *alias == STATE_ALIAS) {
            let graph = setup.graph.map(|path| WorkflowGraphSource::new(&fence, path).unwrap());
            fence.guard(STATE_ALIAS, WORKFLOW_FILE, Arc::new(WorkflowGuard { graph })).unwrap();
        }
        let (host, session) = serve(&fence, setup);
        Self { world, root, outside, host, session: Arc::new(session), backend: fence.backend(), fence }
    }

    /// Serves an existing fence.
    pub(crate) fn with_fence(fence: Fence, setup: FsFixtureConfig) -> Self {
        let world = TestWorld::new();
        let (root, outside) = (world.path().to_owned(), world.path().to_owned());
        let (host, session) = serve(&fence, setup);
        Self { world, root, outside, host, session: Arc::new(session), backend: fence.backend(), fence }
    }

    /// Opens the workspace once more, as the next process would: what a dead one left is cleaned up.
    pub(crate) fn restart(&self) {
        let workspace =
            MountSpec { alias: "workspace".to_owned(), path: self.root.clone(), rights: MountAccess::ReadWrite };
        Fence::new(workspace, Vec::new(), &self.world.state, FenceOptions::default()).unwrap();
    }

    /// The same workspace as the next process finds it.
    pub(crate) fn reopened(self, setup: FsFixtureConfig) -> Self {
        Self::at(self.world.into_directory(), setup)
    }

    /// The host path that must never be in a reply.
    pub(crate) fn host_path(&self) -> &Path {
        self.world.path()
    }

    /// Makes a call and waits for the reply.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> FixtureReply {
        self.call_text(tool, &arguments.to_string())
    }

    /// The same with arguments as text, for those that are not valid JSON.
    pub(crate) fn call_text(&self, tool: &str, arguments: &str) -> FixtureReply {
        self.call_until(tool, arguments, None)
    }

    /// The same, cancelled after a while.
    pub(crate) fn call_until(&self, tool: &str, arguments: &str, cancel_after: Option<Duration>) -> FixtureReply {
        let cancel = CancellationToken::new();
        self.call_beside(&self.session, (tool, arguments), &cancel, async {
            if let Some(after) = cancel_after {
                tokio::time::sleep(after).await;
                cancel.cancel();
            }
        })
    }

    /// The same, with a token to cancel.
    pub(crate) fn call_with(&self, tool: &str, arguments: &Value, cancel: &CancellationToken) -> FixtureReply {
        self.call_within(self.session.limits.call_time, tool, arguments, cancel)
    }

    /// The same with another limit on its time.
    pub(crate) fn call_within(
        &self,
        call_time: Duration,
        tool: &str,
        arguments: &Value,
        cancel: &CancellationToken,
    ) -> FixtureReply {
        let like = self.session.for_principal(&*self.session.id, self.session.principal.clone());
        let limits = CallLimits { call_time, ..like.limits.clone() };
        let session = Arc::new(Session { limits, taint: self.session.taint.clone(), ..like });
        self.call_beside(&session, (tool, &arguments.to_string()), cancel, async {})
    }

    fn call_beside(
        &self,
        session: &Arc<Session>,
        (tool, arguments): (&str, &str),
        cancel: &CancellationToken,
        beside: impl Future<Output = ()>,
    ) -> FixtureReply {
        let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_owned() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let reply = runtime.block_on(async {
            let call = self.host.call(session, call, cancel);
            tokio::pin!(call, beside);
            tokio::select! {
                biased;
                reply = &mut call => reply,
                () = beside => call.await,
            }
        });
        runtime.shutdown_background();
        let reply = reply.unwrap();
        let for_model = reply.outcome.as_ref().ok().and_then(|value| value.model_text(session.dialect));
        FixtureReply { error: reply.error_kind(), text: reply.text, for_model }
    }

    /// A call that must succeed; its value, in the standard dialect.
    #[track_caller]
    pub(crate) fn value(&self, tool: &str, arguments: &Value) -> Value {
        let answer = self.call(tool, arguments);
        assert_eq!(answer.error, None, "{tool} {arguments}: {}", answer.text);
        let reply: Value = serde_json::from_str(&answer.text).unwrap();
        reply["value"].clone()
    }

    /// A call that must fail, and its kind of error.
    #[track_caller]
    pub(crate) fn error(&self, tool: &str, arguments: &Value) -> ErrorKind {
        let answer = self.call(tool, arguments);
        answer.error.unwrap_or_else(|| panic!("{tool} {arguments} succeeded: {}", answer.text))
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        self.world.write(path, content);
    }

    pub(crate) fn read(&self, path: &str) -> String {
        self.world.read(path)
    }
}

/// A host and a session with every tool of a fence.
fn serve(fence: &Fence, setup: FsFixtureConfig) -> (Host, Session) {
    let mut registry = ToolRegistry::new();
    ringfence_fs::register(&mut registry, fence).unwrap();
    if let Some(register) = setup.extra {
        register(&mut registry, fence);
    }
    let mut session = Session { limits: setup.limits, ..test_session(&registry, setup.dialect) };
    if setup.by_person {
        session.principal = Principal::person("person");
        session.catalog = registry.catalog(setup.dialect, &ToolFilter::for_persons()).unwrap();
    }
    let defaults = test_host_config();
    let host = Host::new(HostConfig {
        policy: Box::new(LayeredRules::from_preset(setup.preset).with_layer(PolicyLayer::User, setup.rules)),
        approver: setup.person.map_or(defaults.approver, |person| Box::new(person)),
        audit: setup.trace.map_or(defaults.audit, |trace| Box::new(trace)),
        store: defaults.store,
        workers: setup.workers,
    });
    (host, session)
}
