//! Where everything meets: settings become a workspace, a fence, tools, a policy, a host and a session.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use ringfence_fs::{
    AuditError, AuditLog, Backend, Fence, FenceError, MountSpec, Options, PLAIN_FILE_FLAGS, Rights, Surroundings,
    WorkspaceError, resolve_mount, resolve_workspace,
};
use ringfence_kernel::{
    AuditSink, Dialect, Host, MemoryStore, NameTaken, NoSuchTool, Nobody, Parts, Principal, Registry, Session,
    ToolError,
};

use crate::config::{ConfigError, Environment, LONGEST_FILE, LogTo, Mounted, Settings, WORKSPACE_FILE};
use crate::log::{All, LogLines};
use crate::run::{RunError, new_run, run_state};
use crate::run_log::RunLog;

/// How many calls are at work at once.
const WORKERS: usize = 16;

/// A host with a workspace, and a session of an agent on it.
#[derive(Debug)]
pub struct Wired {
    pub host: Host,
    pub session: Arc<Session>,
    /// Settings after the workspace had its say.
    pub settings: Settings,
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
    #[error("the workspace's {WORKSPACE_FILE} cannot be used: {0}")]
    WorkspaceFile(ToolError),
    #[error("the workspace's {WORKSPACE_FILE} cannot be used: {0}")]
    WorkspaceTools(NoSuchTool),
    #[error(transparent)]
    Tools(#[from] NoSuchTool),
    #[error(transparent)]
    Registry(#[from] NameTaken),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("the log of the run cannot be opened: {0}")]
    RunLog(std::io::Error),
    #[error("the log file cannot be opened: {0}")]
    Log(std::io::Error),
}

/// Makes a run of the workflow in the workspace, and gives its id.
pub fn new_workflow(settings: &Settings, environment: &Environment) -> Result<String, WireError> {
    let project = resolve_workspace(settings.workspace.as_deref(), &surroundings(settings, environment))?;
    Ok(new_run(&settings.state, &project, settings.run.as_deref())?)
}

/// Puts a host together.
pub fn wire(mut settings: Settings, environment: &Environment) -> Result<Wired, WireError> {
    let around = surroundings(&settings, environment);
    let path = resolve_workspace(settings.workspace.as_deref(), &around)?;
    let alias = match settings.dialect {
        Dialect::Standard | Dialect::Miniclaw => "workspace",
        Dialect::Crewagent => "project",
    };
    let mut others = Vec::new();
    for Mounted { alias, path, rights } in &settings.mounts {
        others.push(MountSpec { alias: alias.clone(), path: resolve_mount(path, &around)?, rights: *rights });
    }
    let run = settings.run.as_deref().map(|run| run_state(&settings.state, &path, run)).transpose()?;
    others.extend(run.clone().map(|path| MountSpec { alias: "state".to_owned(), path, rights: Rights::ReadWrite }));
    let workspace = MountSpec { alias: alias.to_owned(), path, rights: Rights::ReadWrite };
    let options = Options { backend: Backend::Best, durability: settings.durability, names: settings.names };
    let fence = Fence::new(workspace, others, &settings.state, options)?;
    let mut registry = Registry::new();
    ringfence_fs::register(&mut registry, &fence)?;
    registry.require(settings.dialect, &settings.named_tools)?;
    let mut catalog = registry.catalog(settings.dialect, &settings.tools)?;
    if let Some(bytes) = fence.read(WORKSPACE_FILE, LONGEST_FILE).map_err(WireError::WorkspaceFile)? {
        settings.tighten(&bytes)?;
        catalog = registry.catalog(settings.dialect, &settings.tools).map_err(WireError::WorkspaceTools)?;
    }
    let session = Session {
        id: format!("cli-{}", std::process::id()),
        principal: Principal::agent("command line"),
        dialect: settings.dialect,
        agent: settings.agent.clone(),
        limits: settings.limits.clone(),
        catalog,
    };
    let host = Host::new(Parts {
        policy: Box::new(settings.preset),
        approver: Box::new(Nobody { advice: "`--preset edits` allows changes inside the workspace".to_owned() }),
        audit: audit(&settings, run.as_deref())?,
        store: Box::new(MemoryStore::default()),
        workers: WORKERS,
    });
    Ok(Wired { host, session: Arc::new(session), settings })
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
            .cloned()
            .collect(),
    }
}

/// The chain, the log of the run if there is one, and the log lines where they are wanted.
fn audit(settings: &Settings, run: Option<&Path>) -> Result<Box<dyn AuditSink>, WireError> {
    let mut sinks: Vec<Box<dyn AuditSink>> = vec![Box::new(AuditLog::open(&settings.state)?)];
    if let Some(run) = run {
        sinks.push(Box::new(RunLog::open(run).map_err(WireError::RunLog)?));
    }
    match &settings.log {
        LogTo::Nowhere => {}
        LogTo::StandardError => sinks.push(Box::new(LogLines::new(Box::new(std::io::stderr())))),
        LogTo::File(path) => {
            let mut options = OpenOptions::new();
            options.create(true).append(true).custom_flags(PLAIN_FILE_FLAGS);
            sinks.push(Box::new(LogLines::new(Box::new(options.open(path).map_err(WireError::Log)?))));
        }
    }
    Ok(Box::new(All(sinks)))
}
