//! Where everything meets: settings become a workspace, a fence, tools, a policy, a host and a session.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_fs::{
    AuditError, AuditLog, Backend, Fence, FenceError, GraphSource, Journaling, MountSpec, Options, PLAIN_FILE_FLAGS,
    Rights, STATE_ALIAS, Surroundings, WORKFLOW_FILE, WorkflowGuard, WorkspaceError, content_id, find_workspace,
    resolve_mount, resolve_workspace, workspace_path,
};
use ringfence_kernel::{
    Answered, Approval, ApprovalRequest, ApprovalResponse, Approver, Assurance, AuditSink, BitSet, Bits, Choice,
    Dialect, Egress, Grant, GrantedRules, Host, NameTaken, NoSuchTool, Parts, Policy as _, Principal, Registry, Rule,
    Session, Store as _, StoreLost, ToolError, WORKSPACE, Word,
};

use ringfence_sandbox::{Jail, Toolchain};
use ringfence_web::{Net, Proxy};

use crate::config::{ConfigError, Environment, LONGEST_FILE, LogTo, Mounted, RunCode, Settings, WORKSPACE_FILE};
use crate::foreign::{Joined, Reach, join};
use crate::log::{All, LogLines};
use crate::mcp::roots::{Narrowed, Roots};
use crate::mode::{Modes, Tightened};
use crate::run::{RunError, Start, graph_of, new_run, run_state};
use crate::run_log::RunLog;
use crate::store::SqliteStore;
use crate::trust::Offered;

/// How many calls are at work at once.
const WORKERS: usize = 16;

/// A host with a workspace, and a session of an agent on it.
#[derive(Debug)]
pub struct Wired {
    pub host: Host,
    pub session: Arc<Session>,
    /// Settings after the workspace had its say.
    pub settings: Settings,
    /// The workspace, by a name that no other directory has.
    pub directory: String,
    /// What the workspace's own file would allow.
    pub offered: Option<Offered>,
    /// Every directory that tools reach; the first is the workspace.
    pub mounts: Vec<MountSpec>,
    /// What the user should know about the servers whose tools were to join.
    pub warnings: Vec<String>,
}

/// Why a host could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("`{0}` is a name of the workspace itself; call the other mount something else")]
    MountName(String),
    #[error(
        "`@{STATE_ALIAS}` is the state of a run, with its log and its guard: leave that mount out, and start with `--run ID` \
         (`ringfence workflow new` makes one)"
    )]
    StateMount,
    #[error("the workspace's {WORKSPACE_FILE} cannot be used: {0}")]
    WorkspaceFile(ToolError),
    #[error("the workspace's {WORKSPACE_FILE} cannot be used: {0}")]
    WorkspaceTools(NoSuchTool),
    #[error(transparent)]
    Tools(#[from] NoSuchTool),
    #[error("{rule}: {error}")]
    RuleTool { rule: String, error: NoSuchTool },
    #[error(transparent)]
    Registry(#[from] NameTaken),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Graph(ToolError),
    #[error("a graph is for a run: start with `--run ID` too")]
    GraphAlone,
    #[error("the log of the run cannot be opened: {0}")]
    RunLog(std::io::Error),
    #[error("the file for the heads of the audit log cannot be opened: {0}")]
    Heads(std::io::Error),
    #[error(transparent)]
    Store(#[from] StoreLost),
    #[error("the log file cannot be opened: {0}")]
    Log(std::io::Error),
}

/// Makes a run of the workflow in the workspace, and gives its id.
pub fn new_workflow(settings: &Settings, environment: &Environment) -> Result<String, WireError> {
    let project = resolve_workspace(settings.workspace.as_deref(), &surroundings(settings, environment))?;
    let entry = match &settings.graph {
        None => String::new(),
        Some(graph) => {
            let fence = fence(settings, mounts(settings, environment, &project, None)?)?;
            GraphSource::new(&fence, graph)?.load().map_err(WireError::Graph)?.entry_node_id
        }
    };
    let start = Start { graph: settings.graph.clone(), entry };
    Ok(new_run(&settings.state, &project, settings.run.as_deref(), &start)?)
}

/// The directory that tools would work in.
pub fn workspace_of(settings: &Settings, environment: &Environment) -> Result<PathBuf, WireError> {
    Ok(resolve_workspace(settings.workspace.as_deref(), &surroundings(settings, environment))?)
}

/// The same, if it is there: nothing is made.
pub(crate) fn existing_workspace(settings: &Settings, environment: &Environment) -> Option<PathBuf> {
    find_workspace(settings.workspace.as_deref(), &surroundings(settings, environment)).ok()
}

/// Every directory that agents may work in, or whose contents come from strangers, by its real name: workspaces and mounts.
pub(crate) fn agent_directories(settings: &Settings, environment: &Environment) -> Vec<PathBuf> {
    let around = surroundings(settings, environment);
    let named = settings.workspaces.values().map(|path| Some(path.as_str())).chain([settings.workspace.as_deref()]);
    // One that is not there yet may be made before a program starts.
    let workspaces = named.filter_map(|path| workspace_path(path, &around));
    let mounts = settings.mounts.iter().filter_map(|mount| resolve_mount(&mount.path, &around).ok());
    workspaces.chain(mounts).collect()
}

/// The workspace, by a name that no other directory has.
pub fn directory_of(settings: &Settings, environment: &Environment) -> Result<String, WireError> {
    Ok(content_id(workspace_of(settings, environment)?.as_os_str().as_encoded_bytes()))
}

/// What our own agent brings to its host.
#[derive(Debug, Default)]
pub struct Seat {
    /// The session that goes on, and what it has been through.
    pub resumed: Option<(String, BitSet)>,
    /// The bits of the session, where it shares them with others.
    pub bits: Bits,
    /// Hears every record, once the audit log has it.
    pub ear: Option<Box<dyn AuditSink>>,
    /// What the session is tightened to, while it goes on.
    pub modes: Modes,
}

/// Who works with the host.
#[derive(Debug)]
enum Who {
    Agent,
    Own(Own),
    /// An agent behind a client of the Model Context Protocol.
    Client(Roots),
    /// Somebody who typed a command, and is the one who would be asked about it.
    Person,
}

/// Our own agent.
#[derive(Debug)]
struct Own {
    /// The session that it goes on with.
    resumed: Option<String>,
    bits: Bits,
    modes: Modes,
}

impl Who {
    /// What the ids of its sessions begin with.
    fn prefix(&self) -> &'static str {
        match self {
            Self::Agent | Self::Person => "cli",
            Self::Own(_) => "agent",
            Self::Client(_) => "mcp",
        }
    }
}

/// Puts a host together for an agent, that asks this approver.
pub fn wire(settings: Settings, environment: &Environment, approver: Box<dyn Approver>) -> Result<Wired, WireError> {
    wire_for(Who::Agent, settings, environment, Ends { approver, tap: None })
}

/// The same, with somebody who hears every record.
pub fn wire_heard(
    settings: Settings,
    environment: &Environment,
    approver: Box<dyn Approver>,
    tap: Box<dyn AuditSink>,
) -> Result<Wired, WireError> {
    wire_for(Who::Agent, settings, environment, Ends { approver, tap: Some(tap) })
}

/// Puts a host together for our own agent.
pub fn wire_own(
    settings: Settings,
    environment: &Environment,
    approver: Box<dyn Approver>,
    seat: Seat,
) -> Result<Wired, WireError> {
    let Seat { resumed, bits, ear, modes } = seat;
    let resumed = resumed.map(|(id, been_through)| {
        been_through.iter().for_each(|bit| bits.raise(bit));
        id
    });
    wire_for(Who::Own(Own { resumed, bits, modes }), settings, environment, Ends { approver, tap: ear })
}

/// Puts a host together for clients of the Model Context Protocol, whose roots narrow what their sessions reach.
pub fn wire_mcp(
    settings: Settings,
    environment: &Environment,
    approver: Box<dyn Approver>,
    roots: Roots,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<Wired, WireError> {
    wire_for(Who::Client(roots), settings, environment, Ends { approver, tap })
}

/// Puts a host together for a person who looks at changes and takes them back. They have every tool of the standard
/// dialect, whatever agents have.
pub fn wire_for_person(
    settings: Settings,
    environment: &Environment,
    word: Assurance,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<Wired, WireError> {
    let settings =
        Settings { dialect: Dialect::Standard, named_tools: Vec::new(), tools: Choice::default(), ..settings };
    wire_for(Who::Person, settings, environment, Ends { approver: Box::new(OwnWord(word)), tap })
}

/// What a front brings: who is asked, and who hears of everything.
struct Ends {
    approver: Box<dyn Approver>,
    tap: Option<Box<dyn AuditSink>>,
}

fn wire_for(mut who: Who, mut settings: Settings, environment: &Environment, ends: Ends) -> Result<Wired, WireError> {
    let around = surroundings(&settings, environment);
    let path = match &who {
        Who::Agent | Who::Own(_) | Who::Client(_) => resolve_workspace(settings.workspace.as_deref(), &around)?,
        // Where there is no workspace, there are no changes either.
        Who::Person => find_workspace(settings.workspace.as_deref(), &around)?,
    };
    let run = settings.run.as_deref().map(|run| run_state(&settings.state, &path, run)).transpose()?;
    let mounts = mounts(&settings, environment, &path, run.as_deref())?;
    let (mut directories, directory) = (directories(&mounts), name_of(&mounts.0));
    let every_mount = std::iter::once(&mounts.0).chain(&mounts.1).cloned().collect();
    let mut fence = fence(&settings, mounts)?;
    let mut unknown_agent = None;
    let graph = guard_workflow(&mut fence, &settings, run.as_deref())?;
    if let (Some(graph), None, false) = (graph, &settings.agent, matches!(who, Who::Person)) {
        match graph.current_agent(&fence) {
            Ok(agent) => agent.into_iter().for_each(|id| settings.hold_to_agent(id)),
            // What is wrong about the graph or the state refuses every step of the run.
            Err(error) => unknown_agent = Some(error.message),
        }
    }
    let mut registry = Registry::new();
    ringfence_fs::register(&mut registry, &fence)?;
    let net = Arc::new(Net::of_system(settings.web.private.clone()));
    if let Some(jail) = jail(&fence, &settings, environment, &net) {
        ringfence_sandbox::register(&mut registry, jail)?;
    }
    ringfence_web::register(&mut registry, &net, settings.web.engine.clone())?;
    let joined = match who {
        Who::Person => Joined::default(),
        Who::Agent | Who::Own(_) | Who::Client(_) => {
            let egress: Arc<dyn Egress> = Arc::new(Proxy::new(Arc::clone(&net)));
            let reach = Reach { workspace: fence.workspace(workspace_alias(&settings)), egress: Some(egress) };
            join(&mut registry, &settings, environment, reach)?
        }
    };
    registry.require(settings.dialect, &settings.named_tools)?;
    let mut catalog = registry.catalog(settings.dialect, &settings.tools)?;
    let store = SqliteStore::new(&settings.state);
    let mut offered = None;
    if let Some(bytes) = fence.read(WORKSPACE_FILE, LONGEST_FILE).map_err(WireError::WorkspaceFile)? {
        let rules = settings.tighten(&bytes)?;
        let found = Offered::new(&directory, &bytes, rules, &store)?;
        settings.trusted_rules = found.holding();
        offered = Some(found);
        if matches!(who, Who::Person) {
            settings.tools = Choice::default();
        }
        catalog = registry.catalog(settings.dialect, &settings.tools).map_err(WireError::WorkspaceTools)?;
    }
    let rules = settings.rules();
    // What is not trusted yet is checked too: it is shown to whoever might.
    let would_hold = offered.iter().flat_map(|offered| &offered.rules);
    for rule in rules.layers().flat_map(|(_, rules)| rules).chain(would_hold) {
        check_tools(rule, &registry, settings.dialect)?;
    }
    let (resumed, bits) = match &mut who {
        Who::Own(own) => (own.resumed.take(), own.bits.clone()),
        Who::Agent | Who::Client(_) | Who::Person => (None, Bits::default()),
    };
    let session = Session {
        id: resumed.unwrap_or_else(|| new_session_id(who.prefix())),
        principal: match &who {
            Who::Agent => Principal::agent("command line"),
            Who::Own(_) => Principal::agent("agent"),
            Who::Client(_) => Principal::agent("MCP client"),
            Who::Person => Principal::person("person at the command line"),
        },
        dialect: settings.dialect,
        agent: settings.agent.clone(),
        limits: settings.limits.clone(),
        catalog,
        bits,
    };
    directories.extend(joined.definitions);
    let policy = GrantedRules::new(rules);
    let mut grants = store.grants(SystemTime::now())?;
    grants.retain(|grant| grant.is_about(&directories));
    policy.hold_grants(&grants);
    settings.grants = grants.iter().filter_map(Grant::checked).collect();
    let host = Host::new(Parts {
        policy: match who {
            Who::Client(roots) => Box::new(Narrowed { policy, roots }),
            Who::Own(Own { modes, .. }) => Box::new(Tightened { policy, modes }),
            Who::Agent | Who::Person => Box::new(policy),
        },
        approver: ends.approver,
        audit: audit(&settings, run.as_deref(), ends.tap)?,
        store: Box::new(store),
        workers: WORKERS,
    });
    let host = host.with_grants(directories);
    let warnings = joined.warnings.into_iter().chain(unknown_agent).collect();
    Ok(Wired { host, session: Arc::new(session), settings, directory, offered, mounts: every_mount, warnings })
}

/// A number of the system would come back in the next container.
fn new_session_id(prefix: &str) -> String {
    let now = format!("{:?} {}", SystemTime::now(), std::process::id());
    format!("{prefix}-{}", &content_id(now.as_bytes())[..16])
}

/// The command is the answer, as sure as it is who gave it.
#[derive(Debug)]
struct OwnWord(Assurance);

impl Approver for OwnWord {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        let response = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
        let approval = Approval { assurance: self.0, by: None };
        Box::pin(std::future::ready(Word::Now(Answered { response, approval })))
    }
}

/// The workspace, the mounts that were declared, and the state of the run.
fn mounts(
    settings: &Settings,
    environment: &Environment,
    workspace: &Path,
    run: Option<&Path>,
) -> Result<(MountSpec, Vec<MountSpec>), WireError> {
    let alias = workspace_alias(settings);
    let mount = |alias: &str, path: PathBuf, rights| MountSpec { alias: alias.to_owned(), path, rights };
    let mut others = Vec::new();
    for Mounted { alias, path, rights } in &settings.mounts {
        if WORKSPACE.contains(&alias.as_str()) {
            return Err(WireError::MountName(alias.clone()));
        }
        if alias == STATE_ALIAS {
            return Err(WireError::StateMount);
        }
        others.push(mount(alias, resolve_mount(path, &surroundings(settings, environment))?, *rights));
    }
    others.extend(run.map(|path| mount(STATE_ALIAS, path.to_owned(), Rights::ReadWrite)));
    Ok((mount(alias, workspace.to_owned(), Rights::ReadWrite), others))
}

/// A name for each directory by its alias: what is granted on one does not hold for the next that is called the same.
fn directories((workspace, others): &(MountSpec, Vec<MountSpec>)) -> BTreeMap<String, String> {
    let named = |mount: &MountSpec| (mount.alias.clone(), name_of(mount));
    std::iter::once(workspace).chain(others).map(named).collect()
}

fn name_of(mount: &MountSpec) -> String {
    content_id(mount.path.as_os_str().as_encoded_bytes())
}

fn fence(settings: &Settings, (workspace, others): (MountSpec, Vec<MountSpec>)) -> Result<Fence, WireError> {
    let options = Options {
        backend: Backend::Best,
        durability: settings.durability,
        names: settings.names,
        journal: Journaling::On,
    };
    Ok(Fence::new(workspace, others, &settings.state, options)?)
}

/// Where programs run on the workspace. The first one starts it.
fn jail(fence: &Fence, settings: &Settings, environment: &Environment, net: &Arc<Net>) -> Option<Jail> {
    let jails = jails(settings, environment);
    let toolchains = jails.toolchains.clone();
    let egress: Arc<dyn Egress> = Arc::new(Proxy::new(Arc::clone(net)));
    let workspace = fence.workspace(workspace_alias(settings))?;
    Some(Jail { workspace, settings: jails, toolchains, egress: Some(egress) })
}

/// What jails are made of.
pub(crate) fn jails(settings: &Settings, environment: &Environment) -> ringfence_sandbox::Settings {
    let RunCode { waiting_jails, detect_toolchains, toolchains: declared, fallback } = &settings.run_code;
    let home = environment.home.as_deref().filter(|_| *detect_toolchains);
    let mut toolchains = home.map(ringfence_sandbox::detect).unwrap_or_default();
    toolchains.extend(declared.iter().map(|directory| Toolchain::declared(directory)));
    let (program, pool) = (environment.program.clone(), *waiting_jails);
    ringfence_sandbox::Settings { program, pool, toolchains, fallback: *fallback }
}

const fn workspace_alias(settings: &Settings) -> &'static str {
    let [usual, crewagent] = WORKSPACE;
    match settings.dialect {
        Dialect::Standard | Dialect::Miniclaw => usual,
        Dialect::Crewagent => crewagent,
    }
}

/// Whoever writes `@state/workflow.md`, in whatever dialect, goes by its schema and its graph. Gives the graph.
fn guard_workflow(
    fence: &mut Fence,
    settings: &Settings,
    run: Option<&Path>,
) -> Result<Option<GraphSource>, WireError> {
    let Some(run) = run else {
        return if settings.graph.is_some() { Err(WireError::GraphAlone) } else { Ok(None) };
    };
    let graph = graph_of(run, settings.graph.as_deref())?;
    let graph = graph.map(|path| GraphSource::new(fence, &path)).transpose()?;
    fence.guard(STATE_ALIAS, WORKFLOW_FILE, Arc::new(WorkflowGuard { graph: graph.clone() }))?;
    Ok(graph)
}

/// A rule about a tool that does not exist would never hold.
fn check_tools(rule: &Rule, registry: &Registry, dialect: Dialect) -> Result<(), WireError> {
    registry.require_anywhere(dialect, rule.tool_names()).map_err(|error| {
        let source = rule.source().map(|source| format!("{source}, in ")).unwrap_or_default();
        WireError::RuleTool { rule: format!("{source}the rule `{}`", rule.name()), error }
    })
}

fn surroundings(settings: &Settings, environment: &Environment) -> Surroundings {
    // What an agent could rewrite would not bind it, and a log that it could rewrite would say what it likes.
    let log = match &settings.log {
        LogTo::File(path) => Some(environment.current.join(path)),
        LogTo::Nowhere | LogTo::StandardError => None,
    };
    Surroundings {
        home: environment.home.clone(),
        current: environment.current.clone(),
        ours: [&settings.state, &environment.managed]
            .into_iter()
            .chain(&environment.config)
            .chain(&settings.config_file)
            .chain(&log)
            .chain(&settings.audit_heads)
            .cloned()
            .collect(),
    }
}

/// The chain, the log of the run if there is one, the log lines where they are wanted, and whoever else listens.
fn audit(
    settings: &Settings,
    run: Option<&Path>,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<Box<dyn AuditSink>, WireError> {
    let mut chain = AuditLog::open(&settings.state)?;
    if let Some(heads) = &settings.audit_heads {
        chain = chain.with_heads_to(open_log(heads).map_err(WireError::Heads)?);
    }
    let mut sinks: Vec<Box<dyn AuditSink>> = vec![Box::new(chain)];
    if let Some(run) = run {
        sinks.push(Box::new(RunLog::open(run).map_err(WireError::RunLog)?));
    }
    match &settings.log {
        LogTo::Nowhere => {}
        LogTo::StandardError => sinks.push(Box::new(LogLines::new(Box::new(std::io::stderr())))),
        LogTo::File(path) => {
            sinks.push(Box::new(LogLines::new(Box::new(open_log(path).map_err(WireError::Log)?))));
        }
    }
    sinks.extend(tap);
    Ok(Box::new(All(sinks)))
}

fn open_log(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).custom_flags(PLAIN_FILE_FLAGS).open(path)
}
