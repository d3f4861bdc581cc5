//! Test fixture: a workspace in a temporary directory, files outside of it, and a host.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_fs::{
    Fence, FenceOptions, MountAccess, MountSpec, ResolverBackend, STATE_ALIAS, WORKFLOW_FILE, WorkflowGraphSource,
    WorkflowGuard,
};
use ringfence_kernel::{
    AuditSink, CallLimits, DenyApprover, Dialect, ErrorKind, Host, HostConfig, LayeredRules, MemoryStore,
    NullAuditSink, PolicyLayer, PolicyRule, Preset, Principal, Session, SessionTaint, ToolCall, ToolFilter,
    ToolRegistry,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::scripted_approver::ScriptedApprover;
use crate::trace_sink::TraceSink;

/// Setup of a fixture.
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
    /// The audit sink, if any.
    pub(crate) trace: Option<TraceSink>,
    pub(crate) workers: usize,
    /// The approver, if any.
    pub(crate) person: Option<ScriptedApprover>,
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
            extra: None,
        }
    }

    pub(crate) fn on(mut self, backend: ResolverBackend) -> Self {
        self.options.backend = backend;
        self
    }
}

/// A workspace and a host.
#[derive(Debug)]
pub(crate) struct FsFixture {
    directory: FixtureDir,
    /// The workspace.
    pub(crate) root: PathBuf,
    /// A directory beside it, where nothing may ever happen. It has a file `secret` with the word SECRET in it.
    pub(crate) outside: PathBuf,
    pub(crate) host: Host,
    pub(crate) session: Arc<Session>,
    pub(crate) backend: &'static str,
    pub(crate) fence: Fence,
}

/// Directory of a fixture: one that goes with it, or an existing one.
#[derive(Debug)]
pub(crate) enum FixtureDir {
    Temporary(tempfile::TempDir),
    Existing(PathBuf),
}

impl FixtureDir {
    fn path(&self) -> &Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Existing(path) => path,
        }
    }
}

impl Drop for FixtureDir {
    fn drop(&mut self) {
        // Root removes what is closed too.
        if let Self::Temporary(directory) = self
            && !rustix::process::geteuid().is_root()
        {
            unlock(directory.path());
        }
    }
}

/// Lets the owner remove everything below a directory.
pub(crate) fn unlock(directory: &Path) {
    let _ = std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755));
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        unlock(&entry.path());
    }
}

impl From<tempfile::TempDir> for FixtureDir {
    fn from(directory: tempfile::TempDir) -> Self {
        Self::Temporary(directory)
    }
}

/// The reply of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FixtureReply {
    pub(crate) text: String,
    pub(crate) error: Option<ErrorKind>,
}

impl FsFixture {
    pub(crate) fn new() -> Self {
        Self::with(FsFixtureConfig::default())
    }

    pub(crate) fn with(setup: FsFixtureConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::at(directory, setup)
    }

    /// In memory if possible: for tests that do very much.
    pub(crate) fn in_memory(setup: FsFixtureConfig) -> Self {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self::at(directory.unwrap(), setup)
    }

    pub(crate) fn at(directory: impl Into<FixtureDir>, setup: FsFixtureConfig) -> Self {
        let directory = directory.into();
        let (root, outside) = (directory.path().join("ws"), directory.path().join("outside"));
        for made in [&root, &outside] {
            std::fs::create_dir_all(made).unwrap();
        }
        std::fs::write(outside.join("secret"), "SECRET\n").unwrap();
        let mount = |(alias, rights): &(&str, MountAccess)| {
            let path = directory.path().join(format!("mount-{alias}"));
            std::fs::create_dir_all(&path).unwrap();
            MountSpec { alias: (*alias).to_owned(), path, rights: *rights }
        };
        let others = setup.mounts.iter().map(mount).collect();
        let workspace = MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: MountAccess::ReadWrite };
        let mut fence = Fence::new(workspace, others, &directory.path().join("state"), setup.options).unwrap();
        if setup.mounts.iter().any(|(alias, _)| *alias == STATE_ALIAS) {
            let graph = setup.graph.map(|path| WorkflowGraphSource::new(&fence, path).unwrap());
            fence.guard(STATE_ALIAS, WORKFLOW_FILE, Arc::new(WorkflowGuard { graph })).unwrap();
        }
        let (host, session) = serve(&fence, setup);
        Self { directory, root, outside, host, session: Arc::new(session), backend: fence.backend(), fence }
    }

    /// Serves an existing fence.
    pub(crate) fn with_fence(fence: Fence, setup: FsFixtureConfig) -> Self {
        let directory = FixtureDir::Temporary(tempfile::tempdir().unwrap());
        let (root, outside) = (directory.path().to_owned(), directory.path().to_owned());
        let (host, session) = serve(&fence, setup);
        Self { directory, root, outside, host, session: Arc::new(session), backend: fence.backend(), fence }
    }

    /// Opens the workspace once more, as the next process would: what a dead one left is cleaned up.
    pub(crate) fn restart(&self) {
        let workspace =
            MountSpec { alias: "workspace".to_owned(), path: self.root.clone(), rights: MountAccess::ReadWrite };
        Fence::new(workspace, Vec::new(), &self.directory.path().join("state"), FenceOptions::default()).unwrap();
    }

    /// The same workspace as the next process finds it.
    pub(crate) fn reopened(self, setup: FsFixtureConfig) -> Self {
        Self::at(self.directory, setup)
    }

    /// The host path that must never be in a reply.
    pub(crate) fn host_path(&self) -> &Path {
        self.directory.path()
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
        FixtureReply { text: reply.text, error: reply.error }
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
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap()
    }
}

/// A host and a session with every tool of a fence.
fn serve(fence: &Fence, setup: FsFixtureConfig) -> (Host, Session) {
    let mut registry = ToolRegistry::new();
    ringfence_fs::register(&mut registry, fence).unwrap();
    if let Some(register) = setup.extra {
        register(&mut registry, fence);
    }
    let session = Session {
        id: "test".to_owned(),
        principal: Principal::agent("test"),
        dialect: setup.dialect,
        agent: None,
        limits: setup.limits,
        catalog: registry.catalog(setup.dialect, &ToolFilter::default()).unwrap(),
        taint: SessionTaint::default(),
    };
    let host = Host::new(HostConfig {
        policy: Box::new(LayeredRules::from_preset(setup.preset).with_layer(PolicyLayer::User, setup.rules)),
        approver: match setup.person {
            Some(person) => Box::new(person),
            None => Box::new(DenyApprover { advice: "this is a test".to_owned() }),
        },
        audit: setup.trace.map_or_else(|| Box::new(NullAuditSink) as Box<dyn AuditSink>, |trace| Box::new(trace)),
        store: Box::new(MemoryStore::default()),
        workers: setup.workers,
    });
    (host, session)
}
