//! `run_program`: a wrapped program, such as a whole agent, from its start to its end as one call.
//!
//! The program works on layers on disk: one for the workspace and one for its home directory. Nothing of it is kept by this
//! call; a person decides about the layer afterwards, with calls of its own. Only the command line of a person offers
//! this tool, with a setup that no argument can change.
//!
//! Not here: decisions about layers (`ringfence-fs`), profiles of agents and the person's terminal (`ringfence`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use ringfence_kernel::{
    CallContext, CallLimits, ConnectionDecider, DuplicateToolError, EgressChannel, ErrorKind, HomeFile,
    LayerDescription, LayerSummary, NET_MOUNT, PolicyAction, PolicyResource, Preview, Principal, ResourceAccess,
    Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call_recorder::{CallSink, pass_on_records};
use crate::job::{ExitReason, JailJob, OutputCapture, OutputStream, ProgramObserver, RunResult, StartedProgram};
use crate::layer_disk_bound::LayerDiskBound;
use crate::limits::JailLimits;
use crate::mounted_overlay::MountedOverlay;
use crate::port_offers::{ProgramPorts, listen_access};
use crate::program_runner::{ProgramRunner, tool_error};
use crate::published_ports::PublishedPort;
use crate::refusals_file::RefusalsFile;
use crate::terminal::{TerminalRelay, TerminalSize};
use crate::tool_caches::ToolCache;
use crate::toolchains::Toolchain;
use crate::workspace_follower::{RunNews, WorkspaceFollower};
use crate::wrapped_environment::{
    PlacedFile, RecordedCalls, WrappedCache, WrappedEnvironment, WrappedTerminal, WrappedUser,
};

/// Name of the tool, for rules.
pub const RUN_PROGRAM: &str = "run_program";

/// A run lasts as long as its person wants.
const LONGEST_RUN: Duration = Duration::from_secs(10_000 * 3600);

/// What a wrapped program gets from its person's command line.
#[derive(Debug)]
pub struct WrappedRunSetup {
    /// The program, where it is found inside, and its arguments.
    pub command: Vec<OsString>,
    /// Name of the program for records, without a path.
    pub program: String,
    /// Name of the profile.
    pub profile: String,
    pub workspace_path: PathBuf,
    pub identity: WrappedUser,
    pub env: BTreeMap<String, String>,
    pub files: Vec<PlacedFile>,
    pub home_files: Vec<HomeFile>,
    /// Directories of programs, besides the toolchains of every run.
    pub toolchains: Vec<Toolchain>,
    /// Hosts that the person or the profile allows, each with a port if it is not 443.
    pub hosts: Vec<String>,
    /// Hosts that toolchains may reach. Unlike the others, one that is denied does not keep the program from starting.
    pub host_groups: Vec<HostGroup>,
    /// Ports of this machine that lead to ports of the program.
    pub published_ports: Vec<PublishedPort>,
    /// Ports of this machine's `127.0.0.1` that the program reaches at the same address.
    pub connected_ports: Vec<u16>,
    /// Gets the calls of a run that are recorded, while it runs.
    pub calls: Option<Arc<dyn CallSink>>,
    /// Caches of toolchains below the home directory.
    pub caches: Vec<ToolCache>,
    pub limits: JailLimits,
    pub io: WrappedIo,
    /// Whether some of its changes land in the workspace while it runs.
    pub has_checkpoints: bool,
    /// Set when the program is about to start: from then on its command line approves nothing more.
    pub is_running: Arc<AtomicBool>,
    /// Signals of the person for the program.
    pub signals: Arc<dyn SignalSource>,
    /// News for the person while the program runs.
    pub news: Arc<dyn RunNews>,
    /// Persons who look at the program from elsewhere.
    pub attachments: Arc<dyn RunAttachments>,
}

/// Hosts that are named as one, such as those of a package registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGroup {
    pub name: String,
    pub hosts: Vec<String>,
}

/// Standard input and output of a wrapped program.
#[derive(Debug)]
pub enum WrappedIo {
    /// A terminal of the jail's own, relayed to the person's.
    Terminal { size: TerminalSize, relay: Arc<dyn TerminalRelay + Send + Sync> },
    /// Pipes: input, if there is one, and a sink for the output.
    Pipes { input: Option<OwnedFd>, output: Arc<dyn WrappedOutput> },
}

/// Signals that are passed on to a wrapped program.
pub trait SignalSource: Send + Sync + std::fmt::Debug {
    /// The next one for its foreground process group.
    fn next_signal(&self) -> Option<i32>;

    /// Whether the program is to be ended at once.
    fn should_end(&self) -> bool;
}

/// Persons who attach to a wrapped program from elsewhere.
pub trait RunAttachments: Send + Sync + std::fmt::Debug {
    /// The program runs, on this layer.
    fn on_started(&self, layer: &str);

    /// Has each person recorded who wants to type. One who is not recorded does not type.
    fn record_writers(&self, record: &dyn Fn(&Principal) -> Result<(), ToolError>);
}

/// Sink of a wrapped program's output.
pub trait WrappedOutput: Send + Sync + std::fmt::Debug {
    fn write(&self, stream: OutputStream, bytes: &[u8]);
}

/// Run a program in the sandbox. Its changes are kept in a layer until a person decides about them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunProgramArgs {}

/// The end of a wrapped program.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunProgramReply {
    /// Exit status as a shell says it.
    pub exit_code: i32,
    /// The layer with its changes. Absent if it changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// New files and directories in the workspace.
    pub created: u64,
    /// Files with other contents.
    pub changed: u64,
    /// Deleted files and directories.
    pub deleted: u64,
    /// Changes that cannot be kept.
    pub conflicts: u64,
    /// Limit that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// Registers the tool, with the program for the one session that runs one. In others it runs nothing, and rules about it
/// are checked all the same.
pub fn register_run_program(
    registry: &mut ToolRegistry,
    runner: Arc<ProgramRunner>,
    setup: Option<WrappedRunSetup>,
) -> Result<(), DuplicateToolError> {
    let binding = ToolBinding::standard::<RunProgramArgs, RunProgramReply>(RUN_PROGRAM).for_persons();
    registry.register(RunProgramTool { runner, setup }, [binding])
}

#[derive(Debug)]
struct RunProgramTool {
    runner: Arc<ProgramRunner>,
    setup: Option<WrappedRunSetup>,
}

/// Hosts as the policy knows them.
#[derive(Debug)]
struct PlannedProgram {
    hosts: Vec<String>,
}

impl Tool for RunProgramTool {
    type Args = RunProgramArgs;
    type Prepared = PlannedProgram;
    type Outcome = RunProgramReply;
    const GRACEFUL_STOP: bool = true;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Run, PolicyAction::Fetch, PolicyAction::Listen];

    fn plan(&self, _: RunProgramArgs, cx: &CallContext<'_>) -> Result<ToolPlan<PlannedProgram>, ToolError> {
        let setup = self.setup()?;
        cx.set_subject(&setup.program);
        let hosts = self.runner.canonical_hosts(&setup.hosts)?;
        let mut accesses = vec![self.runner.run_access(&setup.program, cx)?];
        if !setup.connected_ports.is_empty() && self.runner.setup.egress.is_none() {
            let message = "network access is disabled; run it without `--connect`";
            return Err(ToolError::new(ErrorKind::Unavailable, message));
        }
        accesses.extend(setup.connected_ports.iter().map(|port| fetch_access(&loopback_address(*port))));
        accesses.extend(setup.published_ports.iter().copied().map(listen_access));
        // A record has the first accesses of a long list: ports come before hosts.
        accesses.extend(hosts.iter().map(|host| fetch_access(host)));
        Ok(ToolPlan { accesses, prepared: PlannedProgram { hosts } })
    }

    fn preview(&self, work: &mut PlannedProgram, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let mut preview = Preview::new(&format!("run `{}` in the sandbox", self.setup()?.program), "");
        for host in &work.hosts {
            preview = preview.with_line(&format!("it may reach {host}"));
        }
        for HostGroup { name, hosts } in &self.setup()?.host_groups {
            preview = preview.with_line(&format!("for `{name}` it may reach {}", hosts.join(", ")));
        }
        for port in &self.setup()?.connected_ports {
            preview = preview.with_line(&format!("it may reach port {port} of this machine"));
        }
        for port in &self.setup()?.published_ports {
            preview = preview.with_line(&format!("its port {} is published at `{}`", port.inside, port.outside));
        }
        Ok(preview)
    }

    fn run(&self, _: PlannedProgram, ticket: &Ticket<'_>) -> Result<RunProgramReply, ToolError> {
        let setup = self.setup()?;
        setup.is_running.store(true, Ordering::Release);
        self.run_in_layer(setup, ticket.context())
    }

    fn time_limit(_: &CallLimits) -> Duration {
        LONGEST_RUN
    }
}

fn fetch_access(host: &str) -> ResourceAccess {
    let resource = PolicyResource {
        mount: Arc::from(NET_MOUNT),
        requested_path: host.to_owned(),
        display_path: host.to_owned(),
        ..PolicyResource::default()
    };
    ResourceAccess { action: PolicyAction::Fetch, resource }
}

/// The address of a port of this machine, as the policy knows it.
pub fn loopback_address(port: u16) -> String {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string()
}

impl RunProgramTool {
    fn setup(&self) -> Result<&WrappedRunSetup, ToolError> {
        let message = "only `ringfence run` starts programs with this tool";
        self.setup.as_ref().ok_or_else(|| ToolError::new(ErrorKind::Unavailable, message))
    }

    fn run_in_layer(&self, setup: &WrappedRunSetup, cx: &CallContext<'_>) -> Result<RunProgramReply, ToolError> {
        let sandbox = self.runner.sandbox()?;
        let ports = ProgramPorts::open(&setup.published_ports, &setup.connected_ports);
        let ports = ports.map_err(|failure| tool_error(&failure))?;
        if setup.has_checkpoints {
            self.runner.setup.workspace.create_staging(cx)?;
        }
        let view = self.runner.setup.workspace.view(cx)?;
        let about = LayerDescription {
            program: setup.program.clone(),
            profile: setup.profile.clone(),
            home_files: setup.home_files.clone(),
            caches: setup.caches.iter().map(|cache| cache.path.clone()).collect(),
        };
        let layer = self.runner.setup.workspace.create_layer(&view, &about, cx)?;
        let egress = self.runner.setup.egress.as_ref();
        let mut egress = egress.map(|egress| egress.open_judged(&setup.connected_ports, cx)).transpose()?;
        let toolchains: Vec<Toolchain> =
            self.runner.setup.toolchains.iter().chain(&setup.toolchains).cloned().collect();
        let (home_start, home_layer) = layer.home();
        let (terminal, stdin) = match &setup.io {
            WrappedIo::Terminal { size, relay } => (Some(WrappedTerminal { size: *size, relay: &**relay }), None),
            WrappedIo::Pipes { input, .. } => (None, input.as_ref()),
        };
        let wrapped = WrappedEnvironment {
            workspace_path: setup.workspace_path.clone(),
            identity: setup.identity.clone(),
            workspace_layer: layer.workspace(),
            home_start,
            home_layer,
            caches: setup
                .caches
                .iter()
                .zip(layer.caches())
                .map(|(cache, layer)| WrappedCache { cache, layer })
                .collect(),
            files: setup.files.clone(),
            terminal,
            recorded: setup.calls.as_ref().map_or(RecordedCalls::default(), |calls| calls.recorded()),
        };
        let job = JailJob {
            argv: setup.command.clone(),
            files: Vec::new(),
            masked: Vec::new(),
            env: setup.env.clone(),
            limits: setup.limits.clone(),
            view: &view,
            toolchains: &toolchains,
            egress: egress.as_mut().and_then(|egress| egress.socket()),
            stdin,
            output: OutputCapture::StreamedSeparately,
            directory_report: None,
            network: None,
            wrapped: Some(&wrapped),
        };
        let (refusals, records) = (RefusalsFile::default(), RefCell::default());
        let connections = ConnectionDecider::new(cx).with_refusal_listener(|error| refusals.add(&error.message));
        let uppers = [&layer.workspace().upper, &home_layer.upper].map(AsFd::as_fd);
        let caches = layer.caches().into_iter().map(|cache| cache.upper.as_fd()).collect();
        let disk = LayerDiskBound::new(uppers.to_vec(), setup.limits.disk_bytes).with_caches(caches);
        let lower = WorkspaceFollower::new(&*layer, &*setup.news, cx);
        let observer = WrappedObserver {
            cx,
            layer: layer.id(),
            egress: egress.as_deref(),
            connections,
            refusals: &refusals,
            records: &records,
            ports,
            setup,
            disk: &disk,
            lower,
        };
        let (is_over, over) = channel();
        let ended = std::thread::scope(|scope| {
            let bound = &disk;
            scope.spawn(move || bound.watch(over));
            let ended = sandbox.run(&job, &observer);
            drop(is_over);
            ended
        });
        // A request that was refused right before the end is on record too.
        if let Some(channel) = observer.egress {
            observer.connections.finish(channel);
        }
        let is_full = disk.is_exceeded();
        // Its ports are closed, and with it goes the last descriptor of the overlay, whose directories are read now.
        drop(observer);
        pass_on(&records, setup);
        drop(job);
        let ended = match ended {
            Ok(ended) => ended,
            Err(failure) => {
                // The program did not start, or all of it is dead: what it wrote can still be reviewed.
                let _ = layer.finish(NO_EXIT_CODE, cx);
                return Err(tool_error(&failure));
            }
        };
        let id = layer.id().to_owned();
        let summary = layer.finish(ended.exit_code, cx)?;
        let limit = if is_full { Some(DISK_LIMIT) } else { exceeded_limit(&ended) };
        Ok(reply(&ended, id, &summary, limit))
    }
}

/// Passes on the calls that were recorded so far.
fn pass_on(records: &RefCell<Option<OwnedFd>>, setup: &WrappedRunSetup) {
    if let (Some(sink), Some(records)) = (&setup.calls, &*records.borrow()) {
        pass_on_records(records, &**sink);
    }
}

/// Exit code of a program that has none.
const NO_EXIT_CODE: i32 = 125;

/// Name of the limit on what the layers hold.
const DISK_LIMIT: &str = "disk";

fn exceeded_limit(ended: &RunResult) -> Option<&'static str> {
    match ended.exit_reason {
        ExitReason::Exit | ExitReason::Signal | ExitReason::Cancelled => None,
        reason => Some(reason.name()),
    }
}

fn reply(ended: &RunResult, layer: String, summary: &LayerSummary, limit: Option<&str>) -> RunProgramReply {
    RunProgramReply {
        exit_code: ended.exit_code,
        layer: (!summary.is_empty()).then_some(layer),
        created: summary.created,
        changed: summary.changed,
        deleted: summary.deleted,
        conflicts: summary.conflicts,
        limit: limit.map(str::to_owned),
    }
}

/// Passes on output and signals, and has connections decided.
struct WrappedObserver<'a> {
    cx: &'a CallContext<'a>,
    layer: &'a str,
    egress: Option<&'a dyn EgressChannel>,
    connections: ConnectionDecider<'a>,
    refusals: &'a RefusalsFile,
    records: &'a RefCell<Option<OwnedFd>>,
    ports: ProgramPorts,
    setup: &'a WrappedRunSetup,
    disk: &'a LayerDiskBound<'a>,
    lower: WorkspaceFollower<'a>,
}

impl ProgramObserver for WrappedObserver<'_> {
    fn on_output(&self, stream: OutputStream, bytes: &[u8]) {
        if let WrappedIo::Pipes { output, .. } = &self.setup.io {
            output.write(stream, bytes);
        }
    }

    fn should_stop(&self) -> bool {
        match self.egress {
            Some(channel) => self.connections.poll(channel),
            None => self.connections.poll_held(),
        }
        self.lower.update();
        pass_on(self.records, self.setup);
        self.ports.poll(&self.connections);
        self.setup.attachments.record_writers(&|writer| self.cx.record_terminal_writer(writer));
        self.cx.check().is_err() || self.setup.signals.should_end() || self.disk.is_exceeded()
    }

    fn on_started(&self, started: StartedProgram) {
        self.refusals.open(started.refusals);
        self.ports.start(started.network);
        self.records.replace(started.records);
        self.setup.attachments.on_started(self.layer);
    }

    fn signal(&self) -> Option<i32> {
        self.setup.signals.next_signal()
    }

    fn on_mounted(&self, mount: MountedOverlay) {
        self.lower.start(mount);
    }

    fn wake_source(&self) -> Option<Arc<OwnedFd>> {
        self.lower.wake_source()
    }

    fn on_wake(&self) {
        self.lower.wake();
    }
}
