//! Composition root: builds workspace, mounts, tools, policy, host and session from the settings.

pub mod audit_sinks;
pub(crate) mod isolation_report;
mod patch_command;
pub(crate) mod policy_text;
pub mod roots;
pub(crate) mod run_hosts;
pub(crate) mod session;
pub mod session_mode;
pub(crate) mod tool_listing;
pub mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_audit::{AuditLog, AuditOpenError, BeginDurability};
use ringfence_code_search::{CodeSearchSetup, embedded_model};
use ringfence_crewagent::{
    RUN_STATE, STATE_ALIAS, WORKFLOW_FILE, WorkflowGraphError, WorkflowGraphSource, WorkflowGuard, WorkflowRunError,
    WorkflowRunLog, WorkflowStart, create_run, run_graph, run_state,
};
use ringfence_fs::{
    CHECKPOINT_LAYER, Fence, FenceError, FenceOptions, FollowedWatches, JournalMode, MountAccess, MountSpec,
    PLAIN_FILE_FLAGS, ResolverBackend, StagingMode, WorkspaceResolveError, content_id, find_workspace, resolve_mount,
    resolve_workspace,
};
use ringfence_git::GitSetup;
use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalRequest, ApprovalResponse, ApprovalStore as _, Approver, ApproverReply,
    Assurance, AuditSink, Dialect, DuplicateToolError, Egress, Grant, GrantedRules, Host, HostConfig, Policy as _,
    PolicyRule, Principal, ReplyForm, Session, SessionMemory, SessionTaint, StoreError, TaintSet, ToolError,
    ToolFilter, ToolRegistry, UnknownToolError, UnknownToolsetError, WORKSPACE_MOUNTS, Workspace,
};

use ringfence_project::ProjectSetup;
use ringfence_sandbox::{
    CommandSessions, ProgramRunner, RUN_PROGRAM, RunCodeSetup, WrappedRunSetup, loopback_address, register_run_program,
};
use ringfence_sys::commit_log::CommitLog;
use ringfence_web::{EgressProxy, TlsInterceptor, WebConnector};

use crate::app::audit_sinks::{CallLog, FanoutSink};
use crate::app::roots::{McpRootsPolicy, McpSessionRoots};
use crate::app::run_hosts::RunHostsPolicy;
use crate::app::session_mode::{ModePolicy, SharedSessionMode};
use crate::app::trust::WorkspaceRules;
use crate::codec::io_text::IoText;
use crate::config::host::{git_identity, jail_settings, person_git_identity, reserved_paths};
use crate::config::{AppSettings, ConfigError, Environment, LogTarget, MAX_FILE_BYTES, MountSetting, WORKSPACE_FILE};
use crate::mcp_client::{McpServerGrants, McpStartup, register_tools};
use crate::process::messages::print_error;
use crate::store::{SqliteStore, refuse_earlier_versions, refuse_newer_store};

/// Below the state directory: what git sees as its workspace when it fetches and pushes. It stays empty.
const GIT_COURIER_DIR: &str = "git-courier";

/// Most calls that run concurrently.
const WORKERS: usize = 16;

/// A host with a workspace, and a session of an agent on it.
#[derive(Debug)]
pub struct App {
    pub host: Host,
    pub session: Arc<Session>,
    /// Settings after the workspace had its say.
    pub settings: AppSettings,
    /// The workspace, by a name that no other directory has.
    pub workspace_id: String,
    /// Allow rules of the workspace's own file, not trusted yet.
    pub workspace_rules: Option<WorkspaceRules>,
    /// Every directory that tools reach; the first is the workspace.
    pub mounts: Vec<MountSpec>,
    /// Background jobs of the sessions.
    pub commands: Arc<CommandSessions>,
    /// Warnings for the user about MCP servers.
    pub warnings: Vec<String>,
}

impl App {
    /// Prints warnings about the workspace's own config.
    pub(crate) fn print_warnings(&self) {
        for warning in
            self.workspace_rules.iter().filter_map(WorkspaceRules::warning).chain(self.warnings.iter().cloned())
        {
            print_error(&format!("warning: {warning}"));
        }
    }
}

/// Failure to build a host.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Workspace(#[from] WorkspaceResolveError),
    #[error(transparent)]
    Run(#[from] WorkflowRunError),
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("`{0}` is reserved for the workspace; choose another alias for the mount")]
    MountName(String),
    #[error(
        "`@{STATE_ALIAS}` is reserved for the state of a workflow run: remove that mount, and start with `--workflow-run ID` \
         (`ringfence workflow new` creates one)"
    )]
    StateMount,
    #[error("invalid {WORKSPACE_FILE} in the workspace: {0}")]
    WorkspaceFile(ToolError),
    #[error("invalid {WORKSPACE_FILE} in the workspace: {0}")]
    WorkspaceTools(UnknownToolError),
    #[error(transparent)]
    Tools(#[from] UnknownToolError),
    #[error(transparent)]
    Toolsets(#[from] UnknownToolsetError),
    #[error("{rule}: {error}")]
    RuleTool { rule: String, error: UnknownToolError },
    #[error(transparent)]
    Registry(#[from] DuplicateToolError),
    #[error("cannot open the redo log of the state directory: {}", IoText(.0))]
    CommitLog(std::io::Error),
    #[error(transparent)]
    Audit(#[from] AuditOpenError),
    #[error(transparent)]
    Graph(ToolError),
    #[error(transparent)]
    GraphFile(#[from] WorkflowGraphError),
    #[error("`--graph` requires `--workflow-run ID`")]
    GraphWithoutRun,
    #[error("cannot open the run's log: {}", IoText(.0))]
    RunLog(std::io::Error),
    #[error("cannot open the file for audit log heads: {}", IoText(.0))]
    Heads(std::io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("invalid host of the run: {0}")]
    Host(ToolError),
    #[error("cannot open the log file: {}", IoText(.0))]
    Log(std::io::Error),
}

/// Makes a run of the workflow in the workspace, and gives its id.
pub fn create_workflow_run(settings: &AppSettings, environment: &Environment) -> Result<String, AppError> {
    let project = resolve_workspace(settings.workspace.as_deref(), &reserved_paths(settings, environment))?;
    let entry = match &settings.graph {
        None => String::new(),
        Some(graph) => {
            let commit_log = CommitLog::open(&settings.state).map_err(AppError::CommitLog)?;
            let fence = fence(settings, mounts(settings, environment, &project, None)?, &commit_log)?;
            WorkflowGraphSource::new(&fence, graph)?.load().map_err(AppError::Graph)?.entry_node_id
        }
    };
    refuse_newer_store(&settings.state)?;
    let start = WorkflowStart { graph: settings.graph.clone(), entry };
    Ok(create_run(&settings.state, &project, settings.run.as_deref(), &start)?)
}

/// The directory that tools would work in.
pub fn workspace_directory(settings: &AppSettings, environment: &Environment) -> Result<PathBuf, AppError> {
    Ok(resolve_workspace(settings.workspace.as_deref(), &reserved_paths(settings, environment))?)
}

/// The same, if it is there: nothing is made.
pub(crate) fn existing_workspace(settings: &AppSettings, environment: &Environment) -> Option<PathBuf> {
    find_workspace(settings.workspace.as_deref(), &reserved_paths(settings, environment)).ok()
}

/// The workspace, by a name that no other directory has.
pub fn workspace_id(settings: &AppSettings, environment: &Environment) -> Result<String, AppError> {
    Ok(content_id(workspace_directory(settings, environment)?.as_os_str().as_encoded_bytes()))
}

/// Options of a session of our own agent.
#[derive(Debug, Default)]
pub struct AgentSessionOptions {
    /// The session that goes on, and what it has been through.
    pub resumed: Option<(String, TaintSet)>,
    /// The taint of the session, where it is shared with others.
    pub taint: SessionTaint,
    /// Hears every record, once the audit log has it.
    pub tap: Option<Box<dyn AuditSink>>,
    /// The mode of the session, which can change while it goes on.
    pub mode: SharedSessionMode,
}

/// Kind of the session's principal.
#[derive(Debug)]
enum SessionKind {
    Agent,
    OwnAgent(OwnAgentSession),
    /// An agent behind a client of the Model Context Protocol.
    McpClient(McpSessionRoots),
    /// A person at the command line, who is also the approver.
    Person,
    /// A whole agent in the jail.
    Wrapped(Box<WrappedSession>),
}

/// Our own agent.
#[derive(Debug)]
struct OwnAgentSession {
    /// The session that it goes on with.
    resumed: Option<String>,
    taint: SessionTaint,
    mode: SharedSessionMode,
}

/// A session with one tool, which runs a wrapped agent.
#[derive(Debug)]
struct WrappedSession {
    /// Until the tool has it.
    setup: Option<WrappedRunSetup>,
    interceptor: Option<Arc<TlsInterceptor>>,
    /// Hosts that it may reach, once they are spelled as rules know them.
    hosts: BTreeSet<String>,
    /// Ports of this machine that are published for it.
    ports: BTreeSet<String>,
}

impl SessionKind {
    /// Prefix of the IDs of its sessions.
    fn prefix(&self) -> &'static str {
        match self {
            Self::Agent | Self::Person => "cli",
            Self::OwnAgent(_) => "agent",
            Self::McpClient(_) => "mcp",
            Self::Wrapped(_) => "run",
        }
    }
}

/// Puts a host together for an agent, that asks this approver.
pub fn build_app(
    settings: AppSettings,
    environment: &Environment,
    approver: Box<dyn Approver>,
) -> Result<App, AppError> {
    build_app_for(SessionKind::Agent, settings, environment, AppHooks { approver, tap: None })
}

/// The same, with a sink for every record.
pub fn build_app_with_tap(
    settings: AppSettings,
    environment: &Environment,
    approver: Box<dyn Approver>,
    tap: Box<dyn AuditSink>,
) -> Result<App, AppError> {
    build_app_for(SessionKind::Agent, settings, environment, AppHooks { approver, tap: Some(tap) })
}

/// Puts a host together for our own agent.
pub fn build_agent_app(
    settings: AppSettings,
    environment: &Environment,
    approver: Box<dyn Approver>,
    options: AgentSessionOptions,
) -> Result<App, AppError> {
    let AgentSessionOptions { resumed, taint, tap, mode } = options;
    let resumed = resumed.map(|(id, earlier_taint)| {
        earlier_taint.iter().for_each(|bit| taint.add(bit));
        id
    });
    build_app_for(
        SessionKind::OwnAgent(OwnAgentSession { resumed, taint, mode }),
        settings,
        environment,
        AppHooks { approver, tap },
    )
}

/// Puts a host together for clients of the Model Context Protocol, whose roots narrow what their sessions reach.
pub fn build_mcp_app(
    settings: AppSettings,
    environment: &Environment,
    approver: Box<dyn Approver>,
    roots: McpSessionRoots,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<App, AppError> {
    build_app_for(SessionKind::McpClient(roots), settings, environment, AppHooks { approver, tap })
}

/// Builds a host for a person who views and undoes changes. They have every tool of the standard dialect, whatever
/// agents have.
pub fn build_person_app(
    settings: AppSettings,
    environment: &Environment,
    assurance: Assurance,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<App, AppError> {
    let settings = AppSettings {
        dialect: Dialect::Standard,
        named_tools: Vec::new(),
        tools: ToolFilter::for_persons(),
        ..settings
    };
    build_app_for(
        SessionKind::Person,
        settings,
        environment,
        AppHooks { approver: Box::new(PreapprovingApprover(assurance)), tap },
    )
}

/// Builds a host for a wrapped agent. Its tools are the one that runs it and the one that makes checkpoints.
pub(crate) fn build_wrapped_app(
    settings: AppSettings,
    environment: &Environment,
    setup: WrappedRunSetup,
    interceptor: Option<Arc<TlsInterceptor>>,
    approver: Box<dyn Approver>,
) -> Result<App, AppError> {
    let settings = AppSettings {
        dialect: Dialect::Standard,
        agent: Some(setup.profile.clone()),
        named_tools: Vec::new(),
        tools: wrapped_tools(settings.tools),
        mcp_servers: Vec::new(),
        ..settings
    };
    let who = SessionKind::Wrapped(Box::new(WrappedSession {
        setup: Some(setup),
        interceptor,
        hosts: BTreeSet::new(),
        ports: BTreeSet::new(),
    }));
    build_app_for(who, settings, environment, AppHooks { approver, tap: None })
}

/// The tools of a wrapped session, if no policy denies them: one runs the program, the other one keeps some of its changes
/// meanwhile.
fn wrapped_tools(settings: ToolFilter) -> ToolFilter {
    ToolFilter {
        allow: Some([RUN_PROGRAM, CHECKPOINT_LAYER].map(str::to_owned).into()),
        deny: settings.deny,
        ..ToolFilter::for_persons()
    }
}

/// Connections to the hosts that the settings allow.
pub(crate) fn web_connector(settings: &AppSettings) -> Arc<WebConnector> {
    Arc::new(WebConnector::with_system_defaults(settings.web.private.clone()))
}

/// A front's approver and audit sinks.
struct AppHooks {
    approver: Box<dyn Approver>,
    tap: Option<Box<dyn AuditSink>>,
}

fn build_app_for(
    mut who: SessionKind,
    mut settings: AppSettings,
    environment: &Environment,
    ends: AppHooks,
) -> Result<App, AppError> {
    let around = reserved_paths(&settings, environment);
    let path = match &who {
        SessionKind::Agent | SessionKind::OwnAgent(_) | SessionKind::McpClient(_) | SessionKind::Wrapped(_) => {
            resolve_workspace(settings.workspace.as_deref(), &around)?
        }
        // Where there is no workspace, there are no changes either.
        SessionKind::Person => find_workspace(settings.workspace.as_deref(), &around)?,
    };
    let run = settings.run.as_deref().map(|run| run_state(&settings.state, &path, run)).transpose()?;
    let mounts = mounts(&settings, environment, &path, run.as_deref())?;
    let (mut directories, directory) = (mount_ids(&mounts), mount_id(&mounts.0));
    let every_mount = std::iter::once(&mounts.0).chain(&mounts.1).cloned().collect();
    // Before anything reads the journals or the audit log: it gives back what a power cut took from them.
    let commit_log = CommitLog::open(&settings.state).map_err(AppError::CommitLog)?;
    let mut fence = fence(&settings, mounts, &commit_log)?;
    let mut unknown_agent = None;
    let graph = guard_workflow(&mut fence, &settings, run.as_deref())?;
    if let (Some(graph), None, false) = (graph, &settings.agent, matches!(who, SessionKind::Person)) {
        match graph.current_agent(&fence) {
            Ok(agent) => agent.into_iter().for_each(|id| settings.apply_agent(id)),
            // An invalid graph or state refuses every step of the run.
            Err(error) => unknown_agent = Some(error.message),
        }
    }
    let mut registry = ToolRegistry::new();
    ringfence_fs::register(&mut registry, &fence)?;
    let home = environment.home.clone();
    let home = home.filter(|_| matches!(who, SessionKind::Person) && settings.wrapped.keep_home);
    ringfence_fs::register_home(&mut registry, &fence, home)?;
    let net = web_connector(&settings);
    let commands = Arc::new(CommandSessions::default());
    let wrapped = match &mut who {
        SessionKind::Wrapped(wrapped) => wrapped.setup.take(),
        _ => None,
    };
    let interceptor = match &who {
        SessionKind::Wrapped(wrapped) => wrapped.interceptor.clone(),
        _ => None,
    };
    let egress = EgressProxy::new(Arc::clone(&net));
    let egress: Arc<dyn Egress> = Arc::new(match interceptor {
        Some(interceptor) => egress.with_interceptor(interceptor),
        None => egress,
    });
    if let (SessionKind::Wrapped(session), Some(setup)) = (&mut who, &wrapped) {
        let named = setup.hosts.iter().chain(setup.host_groups.iter().flat_map(|group| &group.hosts));
        let hosts = named.map(|host| egress.canonical_host(host));
        session.hosts = hosts.collect::<Result<_, _>>().map_err(AppError::Host)?;
        session.hosts.extend(setup.connected_ports.iter().map(|port| loopback_address(*port)));
        session.ports = setup.published_ports.iter().map(|port| port.outside.to_string()).collect();
    }
    let workspace = match wrapped {
        Some(_) if settings.wrapped.follow_workspace => {
            fence.followed_workspace(workspace_alias(&settings), FollowedWatches::default())
        }
        _ => fence.workspace(workspace_alias(&settings)),
    };
    if let Some(workspace) = workspace {
        let jail = jail(workspace, &settings, environment, egress, &commands);
        let workspace = Arc::clone(&jail.workspace);
        let runner = Arc::new(ProgramRunner::new(jail));
        ringfence_sandbox::register(&mut registry, Arc::clone(&runner))?;
        register_run_program(&mut registry, Arc::clone(&runner), wrapped)?;
        let identity = match &who {
            SessionKind::Person => person_git_identity(environment),
            _ => git_identity(&settings, environment),
        };
        let (credentials, scratch) = (settings.git_credentials.clone(), settings.state.join(GIT_COURIER_DIR));
        let setup = GitSetup { fence: fence.clone(), runner: Arc::clone(&runner), identity, credentials, scratch };
        ringfence_git::register(&mut registry, setup)?;
        let settings = settings.project.clone();
        ringfence_project::register(&mut registry, ProjectSetup { runner, workspace, settings })?;
        registry.forward(patch_command::FORWARD);
    }
    let code_search = CodeSearchSetup { fence: fence.clone(), state: settings.state.clone(), model: embedded_model };
    ringfence_code_search::register(&mut registry, code_search)?;
    ringfence_web::register(&mut registry, &net, settings.web.engine.clone())?;
    let joined = match who {
        SessionKind::Person | SessionKind::Wrapped(_) => McpStartup::default(),
        SessionKind::Agent | SessionKind::OwnAgent(_) | SessionKind::McpClient(_) => {
            let egress: Arc<dyn Egress> = Arc::new(EgressProxy::new(Arc::clone(&net)));
            let reach =
                McpServerGrants { workspace: fence.workspace(workspace_alias(&settings)), egress: Some(egress) };
            register_tools(&mut registry, &settings, environment, reach)?
        }
    };
    registry.require(settings.dialect, &settings.named_tools)?;
    registry.require_toolsets(&settings.tools.toolsets)?;
    let mut catalog = registry.catalog(settings.dialect, &settings.tools)?;
    let store = SqliteStore::new(&settings.state);
    let mut offered = None;
    if let Some(bytes) = fence.read(WORKSPACE_FILE, MAX_FILE_BYTES).map_err(AppError::WorkspaceFile)? {
        let rules = settings.tighten(&bytes)?;
        let found = WorkspaceRules::new(&directory, &bytes, rules, &store)?;
        settings.trusted_rules = found.trusted_rules();
        offered = Some(found);
        if matches!(who, SessionKind::Person) {
            settings.tools = ToolFilter::for_persons();
        }
        if matches!(who, SessionKind::Wrapped(_)) {
            settings.tools = wrapped_tools(settings.tools);
        }
        catalog = registry.catalog(settings.dialect, &settings.tools).map_err(AppError::WorkspaceTools)?;
    }
    let rules = settings.rules();
    // Untrusted rules are checked too: they are shown before they are trusted.
    let would_hold = offered.iter().flat_map(|offered| &offered.rules);
    for rule in rules.layers().flat_map(|(_, rules)| rules).chain(would_hold) {
        check_tools(rule, &registry, settings.dialect)?;
    }
    let (resumed, taint) = match &mut who {
        SessionKind::OwnAgent(own) => (own.resumed.take(), own.taint.clone()),
        SessionKind::Agent | SessionKind::McpClient(_) | SessionKind::Person | SessionKind::Wrapped(_) => {
            (None, SessionTaint::default())
        }
    };
    let session = Session {
        id: resumed.unwrap_or_else(|| new_session_id(who.prefix())),
        principal: match &who {
            SessionKind::Agent => Principal::agent("command line"),
            SessionKind::OwnAgent(_) => Principal::agent("agent"),
            SessionKind::McpClient(_) => Principal::agent("MCP client"),
            SessionKind::Person => Principal::person("person at the command line"),
            SessionKind::Wrapped(_) => Principal::agent("wrapped agent"),
        },
        dialect: settings.dialect,
        agent: settings.agent.clone(),
        limits: settings.limits.clone(),
        catalog,
        taint,
        memory: SessionMemory::default(),
        replies: ReplyForm::default(),
    };
    let session = if matches!(who, SessionKind::OwnAgent(_)) { session.for_model() } else { session };
    directories.extend(joined.definitions);
    let policy = GrantedRules::new(rules);
    let mut grants = store.grants(SystemTime::now())?;
    grants.retain(|grant| grant.applies_to(&directories));
    policy.set_grants(&grants);
    settings.grants = grants.iter().filter_map(Grant::parse_rule).collect();
    let host = Host::new(HostConfig {
        policy: match who {
            SessionKind::McpClient(roots) => Box::new(McpRootsPolicy { policy, roots }),
            SessionKind::OwnAgent(OwnAgentSession { mode: modes, .. }) => Box::new(ModePolicy { policy, mode: modes }),
            SessionKind::Wrapped(wrapped) => {
                Box::new(RunHostsPolicy { policy, hosts: wrapped.hosts, ports: wrapped.ports })
            }
            SessionKind::Agent | SessionKind::Person => Box::new(policy),
        },
        approver: ends.approver,
        audit: audit_sink(&settings, commit_log, run.as_deref(), ends.tap)?,
        store: Box::new(store),
        workers: WORKERS,
    });
    let host = host.with_grants(directories);
    let warnings = joined.warnings.into_iter().chain(unknown_agent).collect();
    Ok(App {
        host,
        session: Arc::new(session),
        settings,
        workspace_id: directory,
        workspace_rules: offered,
        mounts: every_mount,
        commands,
        warnings,
    })
}

/// A number of the system would come back in the next container.
fn new_session_id(prefix: &str) -> String {
    let now = format!("{:?} {}", SystemTime::now(), std::process::id());
    format!("{prefix}-{}", &content_id(now.as_bytes())[..16])
}

/// The command is the answer, as sure as it is who gave it.
#[derive(Debug)]
struct PreapprovingApprover(Assurance);

impl Approver for PreapprovingApprover {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
        let approval = Approval { assurance: self.0, by: None };
        Box::pin(std::future::ready(ApproverReply::Decided(ApprovalDecision { response, approval })))
    }
}

/// The workspace, the mounts that were declared, and the state of the run.
fn mounts(
    settings: &AppSettings,
    environment: &Environment,
    workspace: &Path,
    run: Option<&Path>,
) -> Result<(MountSpec, Vec<MountSpec>), AppError> {
    let alias = workspace_alias(settings);
    let mount = |alias: &str, path: PathBuf, rights| MountSpec { alias: alias.to_owned(), path, rights };
    let mut others = Vec::new();
    for MountSetting { alias, path, rights } in &settings.mounts {
        if WORKSPACE_MOUNTS.contains(&alias.as_str()) {
            return Err(AppError::MountName(alias.clone()));
        }
        if alias == STATE_ALIAS {
            return Err(AppError::StateMount);
        }
        others.push(mount(alias, resolve_mount(path, &reserved_paths(settings, environment))?, *rights));
    }
    others.extend(run.map(|path| mount(STATE_ALIAS, path.to_owned(), MountAccess::ReadWrite)));
    Ok((mount(alias, workspace.to_owned(), MountAccess::ReadWrite), others))
}

/// A name for each directory by its alias: what is granted on one does not hold for the next that is called the same.
fn mount_ids((workspace, others): &(MountSpec, Vec<MountSpec>)) -> BTreeMap<String, String> {
    let named = |mount: &MountSpec| (mount.alias.clone(), mount_id(mount));
    std::iter::once(workspace).chain(others).map(named).collect()
}

fn mount_id(mount: &MountSpec) -> String {
    content_id(mount.path.as_os_str().as_encoded_bytes())
}

fn fence(
    settings: &AppSettings,
    (workspace, others): (MountSpec, Vec<MountSpec>),
    commit_log: &Arc<CommitLog>,
) -> Result<Fence, AppError> {
    let options = FenceOptions {
        backend: ResolverBackend::Best,
        durability: settings.durability,
        start_writeback: Some(ringfence_sandbox::start_writeback),
        staging: StagingMode::Unnamed,
        names: settings.names,
        journal: JournalMode::On,
        run_state: Some(RUN_STATE),
    };
    Ok(Fence::with_commit_log(workspace, others, &settings.state, options, Arc::clone(commit_log))?)
}

/// The jail for programs on the workspace. The first program starts it.
fn jail(
    workspace: Arc<dyn Workspace>,
    settings: &AppSettings,
    environment: &Environment,
    egress: Arc<dyn Egress>,
    commands: &Arc<CommandSessions>,
) -> RunCodeSetup {
    let jails = jail_settings(settings, environment);
    let toolchains = jails.toolchains.clone();
    let sessions = Arc::clone(commands);
    RunCodeSetup { workspace, settings: jails, toolchains, egress: Some(egress), sessions }
}

const fn workspace_alias(settings: &AppSettings) -> &'static str {
    settings.dialect.workspace_mount()
}

/// Checks every write of `@state/workflow.md`, in any dialect, against its schema and its graph. Returns the graph.
fn guard_workflow(
    fence: &mut Fence,
    settings: &AppSettings,
    run: Option<&Path>,
) -> Result<Option<WorkflowGraphSource>, AppError> {
    let Some(run) = run else {
        return if settings.graph.is_some() { Err(AppError::GraphWithoutRun) } else { Ok(None) };
    };
    let graph = run_graph(run, settings.graph.as_deref())?;
    let graph = graph.map(|path| WorkflowGraphSource::new(fence, &path)).transpose()?;
    fence.guard(STATE_ALIAS, WORKFLOW_FILE, Arc::new(WorkflowGuard { graph: graph.clone() }))?;
    Ok(graph)
}

/// A rule about a tool that does not exist would never hold.
fn check_tools(rule: &PolicyRule, registry: &ToolRegistry, dialect: Dialect) -> Result<(), AppError> {
    registry.require_in_any_dialect(dialect, rule.tool_names()).map_err(|error| {
        let source = rule.source().map(|source| format!("{source}, in ")).unwrap_or_default();
        AppError::RuleTool { rule: format!("{source}the rule `{}`", rule.name()), error }
    })
}

/// The audit log, the log of the run if there is one, the log lines where they are enabled, and further sinks.
fn audit_sink(
    settings: &AppSettings,
    commit_log: Arc<CommitLog>,
    run: Option<&Path>,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<Box<dyn AuditSink>, AppError> {
    refuse_newer_store(&settings.state)?;
    let mut chain = AuditLog::open(&settings.state)?
        .with_commit_log(commit_log, BeginDurability::Deferred)
        .with_close_report(|error| {
            print_error(&format!("cannot sign the end of the audit log: {}", IoText(error)));
        });
    refuse_earlier_versions(&settings.state)?;
    if let Some(heads) = &settings.audit_heads {
        chain = chain.with_head_copy(open_log(heads).map_err(AppError::Heads)?);
    }
    let mut sinks: Vec<Box<dyn AuditSink>> = vec![Box::new(chain)];
    if let Some(run) = run {
        sinks.push(Box::new(WorkflowRunLog::open(run).map_err(AppError::RunLog)?));
    }
    match &settings.log {
        LogTarget::Discard => {}
        LogTarget::StandardError => sinks.push(Box::new(CallLog::new(Box::new(std::io::stderr())))),
        LogTarget::File(path) => {
            sinks.push(Box::new(CallLog::new(Box::new(open_log(path).map_err(AppError::Log)?))));
        }
    }
    sinks.extend(tap);
    Ok(Box::new(FanoutSink(sinks)))
}

fn open_log(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).custom_flags(PLAIN_FILE_FLAGS).open(path)
}
