//! MCP server launch: in the jail, outside it if the user configured that, or not at all for a remote server.
//!
//! In any case, no file of the workspace is found by a name that its command or an interpreter looks up.
//!
//! In the jail it has no network and no file of the user's: its workspace is empty, and its writes are discarded. A
//! server with grants has them during a call, and only then: its view of the workspace is the one that the policy
//! allows programs at that time, and every connection is recorded with the call.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallContext, Egress, ErrorKind, ExposedDir, ToolError, Workspace, WorkspaceView};
use ringfence_sandbox::{
    JailError, JailJob, JailLimits, OutputCapture, OutputStream, ProgramObserver, RunResult, Sandbox,
};
use ringfence_web::{HttpEndpoint, WebConnector};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::config::host::jail_settings;
use crate::config::mcp_servers::{McpServerProgram, McpServerTransport, ServerWorkspaceAccess};
use crate::config::{AppSettings, Environment, EnvironmentVariables};
use crate::mcp_client::http::HttpTransport;
use crate::mcp_client::stdio::{McpResponseRouter, ProcessGuard, StdioTransport, write_messages};
use crate::mcp_client::transport::{McpClientError, McpTransport};
use crate::process::program_launcher::{LaunchedProgram, ProgramLauncher};

/// Below the state directory: what servers in the jail see as their workspace. It stays empty.
const EMPTY_WORKSPACE: &str = "mcp-empty";

/// Programs of the jail start in the workspace, where `python3 -m NAME` or `npx NAME` would run a file of it. A server goes to
/// the jail's own `/tmp` first, which is empty and its alone.
const IN_EMPTY_DIRECTORY: [&str; 4] = ["/bin/sh", "-c", "cd /tmp && exec \"$@\"", "sh"];

/// Exit codes of a shell that finds no program.
const PROGRAM_NOT_FOUND: [i32; 2] = [126, 127];

/// A server may be there as long as we are.
const MAX_LIFETIME: Duration = Duration::from_hours(10_000);

/// Bytes of output that the jail keeps. We have read it by then.
const OUTPUT_BYTES: u64 = 4 << 10;

/// Grants of a server: the workspace, and egress.
#[derive(Debug, Default)]
pub(crate) struct McpServerGrants {
    pub(crate) workspace: Option<Arc<dyn Workspace>>,
    pub(crate) egress: Option<Arc<dyn Egress>>,
}

/// A server that was started for one call.
#[derive(Debug)]
pub(crate) struct PerCallMcpServer {
    pub(crate) transport: Arc<dyn McpTransport>,
    /// The way out that it has. It is open as long as this is there.
    pub(crate) channel: Option<Box<dyn ringfence_kernel::EgressChannel>>,
}

/// Environment that servers are started with.
#[derive(Debug)]
pub(crate) struct ServerLauncher {
    grants: McpServerGrants,
    jail_settings: ringfence_sandbox::SandboxSettings,
    limits: JailLimits,
    empty: PathBuf,
    /// One for all servers, from the first on that needs it.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
    launcher: ProgramLauncher,
    net: WebConnector,
}

impl ServerLauncher {
    pub(crate) fn new(settings: &AppSettings, environment: &Environment, grants: McpServerGrants) -> Self {
        let limits = &settings.limits;
        Self {
            grants,
            jail_settings: ringfence_sandbox::SandboxSettings { pool: 0, ..jail_settings(settings, environment) },
            limits: JailLimits {
                wall: MAX_LIFETIME,
                cpu: limits.run_cpu_time,
                memory_bytes: limits.run_memory_bytes,
                processes: limits.run_processes,
                open_files: limits.run_open_files,
                file_bytes: limits.run_file_bytes,
                disk_bytes: limits.run_disk_bytes,
                tmp_bytes: limits.run_tmp_bytes,
                output_bytes: OUTPUT_BYTES,
            },
            empty: settings.state.join(EMPTY_WORKSPACE),
            sandbox: Mutex::default(),
            launcher: ProgramLauncher::new(settings, environment),
            net: WebConnector::with_system_defaults(settings.web.private.clone()),
        }
    }

    /// A line to a server that was just started.
    pub(crate) fn open(&self, transport: &McpServerTransport) -> Result<Arc<dyn McpTransport>, McpClientError> {
        match transport {
            McpServerTransport::Program(program) if program.jail => self.jail(program, self.empty_view()?, None),
            McpServerTransport::Program(program) => self.launch(program),
            McpServerTransport::Url { url, key } => {
                let endpoint = HttpEndpoint::new(&self.net, url, key.clone());
                let endpoint =
                    endpoint.map_err(|problem| McpClientError::Start(format!("invalid `url`: {problem}")))?;
                Ok(Arc::new(HttpTransport::new(endpoint)))
            }
        }
    }

    /// Hosts as rules know them, however they were spelled.
    pub(crate) fn canonical_hosts(&self, hosts: &[String]) -> Result<Vec<String>, ToolError> {
        let known = |host: &String| match &self.grants.egress {
            Some(egress) => egress.canonical_host(host),
            None => Ok(host.clone()),
        };
        hosts.iter().map(known).collect()
    }

    /// A line to a server that was just started with what it was given, for the call that this is about.
    pub(crate) fn open_for_call(
        &self,
        program: &McpServerProgram,
        cx: &CallContext<'_>,
    ) -> Result<PerCallMcpServer, McpClientError> {
        let missing = |what: &str| {
            let message = format!("cannot grant {what} to a program here");
            McpClientError::NotStarted(ToolError::new(ErrorKind::Unavailable, message))
        };
        let view = match (program.workspace, &self.grants.workspace) {
            (ServerWorkspaceAccess::None, _) => self.empty_view()?,
            (ServerWorkspaceAccess::Read, None) => return Err(missing("workspace")),
            // The other mounts are not its business.
            (ServerWorkspaceAccess::Read, Some(workspace)) => WorkspaceView {
                read_only_mounts: Vec::new(),
                ..workspace.view(cx).map_err(McpClientError::NotStarted)?
            },
        };
        let mut transport = match (program.network.as_slice(), &self.grants.egress) {
            ([], _) => None,
            (_, None) => return Err(missing("network")),
            (hosts, Some(egress)) => Some(egress.open(hosts, cx).map_err(McpClientError::NotStarted)?),
        };
        let egress = transport.as_mut().and_then(|transport| transport.socket());
        Ok(PerCallMcpServer { transport: self.jail(program, view, egress)?, channel: transport })
    }

    fn empty_view(&self) -> Result<WorkspaceView, McpClientError> {
        let workspace = ExposedDir {
            alias: "workspace".to_owned(),
            directory: self.empty_directory().map_err(start_error("create its empty workspace"))?,
            path: self.empty.clone(),
            masked: Vec::new(),
            hidden: Vec::new(),
        };
        Ok(WorkspaceView { workspace, read_only_mounts: Vec::new(), started: SystemTime::now() })
    }

    fn jail(
        &self,
        program: &McpServerProgram,
        view: WorkspaceView,
        egress: Option<OwnedFd>,
    ) -> Result<Arc<dyn McpTransport>, McpClientError> {
        let sandbox = self.sandbox()?;
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(start_error("create a pipe"))?;
        let (inbox, to_write) = McpResponseRouter::new();
        let work = JailedServerRun {
            sandbox,
            program: McpServerProgram {
                env: EnvironmentVariables(self.launcher.safe_variables(&program.env.0)),
                ..program.clone()
            },
            limits: self.limits.clone(),
            view,
            toolchains: self.jail_settings.toolchains.clone(),
            input: theirs,
            router: Arc::clone(&inbox),
            stop: Arc::default(),
            has_output: AtomicBool::new(false),
        };
        let stop = Arc::clone(&work.stop);
        spawn("mcp-writer", move || write_messages(&to_write, File::from(ours)))?;
        let thread = Some(spawn("mcp-jail", move || work.run(egress))?);
        Ok(Arc::new(StdioTransport::new(inbox, Box::new(JailedServerGuard { stop, thread }))))
    }

    fn launch(&self, program: &McpServerProgram) -> Result<Arc<dyn McpTransport>, McpClientError> {
        let McpServerProgram { command, args, env, .. } = program;
        let (launched, input, mut output) = self.launcher.spawn_server(command, args, env).map_err(|cause| {
            // Our own errors have advice; those of the system only their kind.
            match cause.get_ref() {
                Some(why) => McpClientError::Start(why.to_string()),
                None => start_error("start the program")(cause),
            }
        })?;
        let (inbox, to_write) = McpResponseRouter::new();
        let held = Arc::new(launched);
        let (ear, reader) = (Arc::clone(&inbox), Arc::clone(&held));
        spawn("mcp-writer", move || write_messages(&to_write, input))?;
        spawn("mcp-reader", move || {
            let mut buffer = [0; 64 << 10];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                ear.receive(buffer.get(..length).unwrap_or_default());
                if ear.is_closed() {
                    break;
                }
            }
            ear.close(McpClientError::Exited("it closed its output".to_owned()));
            reader.stop(Duration::ZERO);
        })?;
        Ok(Arc::new(StdioTransport::new(
            Arc::clone(&inbox),
            Box::new(UnjailedServerGuard { router: inbox, program: held }),
        )))
    }

    fn sandbox(&self) -> Result<Arc<Sandbox>, McpClientError> {
        let mut sandbox = self.sandbox.lock();
        if let Some(sandbox) = sandbox.as_ref() {
            return Ok(Arc::clone(sandbox));
        }
        let started =
            Sandbox::start(self.jail_settings.clone()).map_err(|failure| McpClientError::Start(failure.to_string()))?;
        Ok(Arc::clone(sandbox.insert(Arc::new(started))))
    }

    fn empty_directory(&self) -> std::io::Result<OwnedFd> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.empty)?;
        Ok(File::open(&self.empty)?.into())
    }
}

fn start_error<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> McpClientError {
    move |cause| McpClientError::Start(format!("cannot {what} ({})", cause.into().kind()))
}

/// Spawns a thread, which ends when its input is closed.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, McpClientError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(start_error("create a thread"))
}

/// A server in the jail, as the thread that follows it has it.
struct JailedServerRun {
    sandbox: Arc<Sandbox>,
    program: McpServerProgram,
    limits: JailLimits,
    view: WorkspaceView,
    toolchains: Vec<ringfence_sandbox::Toolchain>,
    input: OwnedFd,
    router: Arc<McpResponseRouter>,
    stop: Arc<AtomicBool>,
    /// Whether it printed anything.
    has_output: AtomicBool,
}

impl JailedServerRun {
    fn run(self, egress: Option<OwnedFd>) {
        let McpServerProgram { command, args, env, .. } = &self.program;
        let words = std::iter::once(command).chain(args).map(String::as_str);
        let job = JailJob {
            argv: IN_EMPTY_DIRECTORY.into_iter().chain(words).map(Into::into).collect(),
            files: Vec::new(),
            masked: Vec::new(),
            env: env.0.clone(),
            limits: self.limits.clone(),
            view: &self.view,
            toolchains: &self.toolchains,
            egress,
            stdin: Some(&self.input),
            output: OutputCapture::Separate,
            directory_report: None,
            network: None,
            wrapped: None,
        };
        let why = match self.sandbox.run(&job, &self) {
            Ok(RunResult { exit_code, .. })
                if PROGRAM_NOT_FOUND.contains(&exit_code) && !self.has_output.load(Ordering::Relaxed) =>
            {
                program_not_found()
            }
            Ok(RunResult { exit_reason: ended_by, exit_code, .. }) => {
                McpClientError::Exited(format!("{}, {exit_code}", ended_by.name()))
            }
            Err(JailError::ProgramNotFound { .. }) => program_not_found(),
            Err(failure) => McpClientError::Start(failure.to_string()),
        };
        self.router.close(why);
    }
}

fn program_not_found() -> McpClientError {
    let hint =
        "program not found in the sandbox, which contains the system's programs and those in `run_code.toolchains`";
    McpClientError::Start(hint.to_owned())
}

impl ProgramObserver for JailedServerRun {
    fn on_output(&self, stream: OutputStream, bytes: &[u8]) {
        if stream == OutputStream::Stdout {
            self.has_output.store(true, Ordering::Relaxed);
            self.router.receive(bytes);
        }
    }

    fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.router.is_closed()
    }
}

/// A server in the jail. It has nothing to lose.
#[derive(Debug)]
struct JailedServerGuard {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProcessGuard for JailedServerGuard {}

impl Drop for JailedServerGuard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A server outside of the jail. It may have something to put in order.
#[derive(Debug)]
struct UnjailedServerGuard {
    router: Arc<McpResponseRouter>,
    program: Arc<LaunchedProgram>,
}

impl ProcessGuard for UnjailedServerGuard {}

impl Drop for UnjailedServerGuard {
    fn drop(&mut self) {
        const STOP_TIMEOUT: Duration = Duration::from_millis(500);
        self.router.close(McpClientError::Exited("the session has ended".to_owned()));
        self.program.stop(STOP_TIMEOUT);
    }
}
