//! How a server is started: in the jail, outside of it where the user said so, or not at all because it runs elsewhere.
//!
//! Wherever it starts, no file of the workspace is found by a name that its command or an interpreter looks up.
//!
//! In the jail it has no network and no file of the user's: it sees an empty workspace, and what it writes is gone with it.
//! One that was given more has it while it works on a call, and only then: what it sees of the workspace is what the policy
//! lets programs see at that moment, and every connection is recorded with the call.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use ringfence_kernel::{Context, Egress, ErrorKind, Shown, ToolError, View, Workspace};
use ringfence_sandbox::{Ended, Failure, JailLimits, Job, Sandbox, Script, Stream, Watch};
use ringfence_web::{Endpoint, Net};
use rustix::pipe::{PipeFlags, pipe_with};

use super::line::{Line, Trouble};
use super::pipes::{Hold, Inbox, Pipes, write_all};
use super::posts::Posts;
use crate::config::{Environment, Settings, Variables};
use crate::launch::{Launched, ProgramLauncher};
use crate::mcp_config::{Files, Program, Way};
use crate::wire::jails;

/// Below the state directory: what servers in the jail see as their workspace. It stays empty.
const EMPTY: &str = "mcp-empty";

/// Programs of the jail start in the workspace, where `python3 -m NAME` or `npx NAME` would run a file of it. A server goes to
/// the jail's own `/tmp` first, which is empty and its alone.
const IN_EMPTY_DIRECTORY: [&str; 4] = ["/bin/sh", "-c", "cd /tmp && exec \"$@\"", "sh"];

/// What a shell ends with that finds no program.
const NO_PROGRAM: [i32; 2] = [126, 127];

/// A server may be there as long as we are.
const LIFETIME: Duration = Duration::from_hours(10_000);

/// Bytes of output that the jail keeps. We have read it by then.
const KEPT: u64 = 4 << 10;

/// What servers can be given: the workspace, and a way out.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    pub(crate) workspace: Option<Arc<dyn Workspace>>,
    pub(crate) egress: Option<Arc<dyn Egress>>,
}

/// A server that was started for one call.
#[derive(Debug)]
pub(crate) struct ForCall {
    pub(crate) line: Arc<dyn Line>,
    /// The way out that it has. It is open as long as this is there.
    pub(crate) way: Option<Box<dyn ringfence_kernel::Way>>,
}

/// What servers are started with.
#[derive(Debug)]
pub(crate) struct Starter {
    reach: Reach,
    jails: ringfence_sandbox::Settings,
    limits: JailLimits,
    empty: PathBuf,
    /// One for all servers, from the first on that needs it.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
    launcher: ProgramLauncher,
    net: Net,
}

impl Starter {
    pub(crate) fn new(settings: &Settings, environment: &Environment, reach: Reach) -> Self {
        let limits = &settings.limits;
        Self {
            reach,
            jails: ringfence_sandbox::Settings { pool: 0, ..jails(settings, environment) },
            limits: JailLimits {
                wall: LIFETIME,
                cpu: limits.run_cpu_time,
                memory_bytes: limits.run_memory_bytes,
                processes: limits.run_processes,
                open_files: limits.run_open_files,
                file_bytes: limits.run_file_bytes,
                disk_bytes: limits.run_disk_bytes,
                tmp_bytes: limits.run_tmp_bytes,
                output_bytes: KEPT,
            },
            empty: settings.state.join(EMPTY),
            sandbox: Mutex::default(),
            launcher: ProgramLauncher::new(settings, environment),
            net: Net::of_system(settings.web.private.clone()),
        }
    }

    /// A line to a server that was just started.
    pub(crate) fn open(&self, way: &Way) -> Result<Arc<dyn Line>, Trouble> {
        match way {
            Way::Program(program) if program.jail => self.jail(program, self.empty_view()?, None),
            Way::Program(program) => self.launch(program),
            Way::Url { url, key } => {
                let endpoint = Endpoint::new(&self.net, url, key.clone());
                let endpoint = endpoint.map_err(|problem| Trouble::Start(format!("its `url` is wrong: {problem}")))?;
                Ok(Arc::new(Posts::new(endpoint)))
            }
        }
    }

    /// Hosts as rules know them, however they were spelled.
    pub(crate) fn known_hosts(&self, hosts: &[String]) -> Result<Vec<String>, ToolError> {
        let known = |host: &String| match &self.reach.egress {
            Some(egress) => egress.known_as(host),
            None => Ok(host.clone()),
        };
        hosts.iter().map(known).collect()
    }

    /// A line to a server that was just started with what it was given, for the call that this is about.
    pub(crate) fn open_for_call(&self, program: &Program, cx: &Context<'_>) -> Result<ForCall, Trouble> {
        let missing = |what: &str| {
            let message = format!("there is no {what} that a program could be given here");
            Trouble::NotStarted(ToolError::new(ErrorKind::Unavailable, message))
        };
        let view = match (program.files, &self.reach.workspace) {
            (Files::None, _) => self.empty_view()?,
            (Files::Read, None) => return Err(missing("workspace")),
            // The other mounts are not its business.
            (Files::Read, Some(workspace)) => {
                View { beside: Vec::new(), ..workspace.view(cx).map_err(Trouble::NotStarted)? }
            }
        };
        let mut way = match (program.network.as_slice(), &self.reach.egress) {
            ([], _) => None,
            (_, None) => return Err(missing("network")),
            (hosts, Some(egress)) => Some(egress.open(hosts, cx).map_err(Trouble::NotStarted)?),
        };
        let egress = way.as_mut().and_then(|way| way.socket());
        Ok(ForCall { line: self.jail(program, view, egress)?, way })
    }

    fn empty_view(&self) -> Result<View, Trouble> {
        let workspace = Shown {
            alias: "workspace".to_owned(),
            directory: self.empty_directory().map_err(start("make its empty workspace"))?,
            path: self.empty.clone(),
            masked: Vec::new(),
            hidden: Vec::new(),
        };
        Ok(View { workspace, beside: Vec::new(), started: SystemTime::now() })
    }

    fn jail(&self, program: &Program, view: View, egress: Option<OwnedFd>) -> Result<Arc<dyn Line>, Trouble> {
        let sandbox = self.sandbox()?;
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(start("make a pipe"))?;
        let (inbox, to_write) = Inbox::new();
        let work = Jailing {
            sandbox,
            program: Program { env: Variables(self.launcher.safe(&program.env.0)), ..program.clone() },
            limits: self.limits.clone(),
            view,
            toolchains: self.jails.toolchains.clone(),
            input: theirs,
            inbox: Arc::clone(&inbox),
            stop: Arc::default(),
            spoke: AtomicBool::new(false),
        };
        let stop = Arc::clone(&work.stop);
        spawn("mcp-writer", move || write_all(&to_write, File::from(ours)))?;
        let thread = Some(spawn("mcp-jail", move || work.run(egress))?);
        Ok(Arc::new(Pipes::new(inbox, Box::new(Jailed { stop, thread }))))
    }

    fn launch(&self, program: &Program) -> Result<Arc<dyn Line>, Trouble> {
        let Program { command, args, env, .. } = program;
        let (launched, input, mut output) = self.launcher.serve(command, args, env).map_err(|cause| {
            // What we found out ourselves says what to do; what the system says is its kind.
            match cause.get_ref() {
                Some(why) => Trouble::Start(why.to_string()),
                None => start("start the program")(cause),
            }
        })?;
        let (inbox, to_write) = Inbox::new();
        let held = Arc::new(launched);
        let (ear, reader) = (Arc::clone(&inbox), Arc::clone(&held));
        spawn("mcp-writer", move || write_all(&to_write, input))?;
        spawn("mcp-reader", move || {
            let mut buffer = [0; 64 << 10];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                ear.hear(buffer.get(..length).unwrap_or_default());
                if ear.is_over() {
                    break;
                }
            }
            ear.end(Trouble::Ended("its output is closed".to_owned()));
            reader.end(Duration::ZERO);
        })?;
        Ok(Arc::new(Pipes::new(Arc::clone(&inbox), Box::new(Outside { inbox, held }))))
    }

    fn sandbox(&self) -> Result<Arc<Sandbox>, Trouble> {
        let mut sandbox = self.sandbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = sandbox.as_ref() {
            return Ok(Arc::clone(sandbox));
        }
        let started = Sandbox::start(self.jails.clone()).map_err(|failure| Trouble::Start(failure.to_string()))?;
        Ok(Arc::clone(sandbox.insert(Arc::new(started))))
    }

    fn empty_directory(&self) -> std::io::Result<OwnedFd> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.empty)?;
        Ok(File::open(&self.empty)?.into())
    }
}

fn start<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Trouble {
    move |cause| Trouble::Start(format!("we could not {what} ({})", cause.into().kind()))
}

/// Whoever spawns one of these ends it by closing what it reads.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Trouble> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(start("make a thread"))
}

/// A server in the jail, as the thread that follows it has it.
struct Jailing {
    sandbox: Arc<Sandbox>,
    program: Program,
    limits: JailLimits,
    view: View,
    toolchains: Vec<ringfence_sandbox::Toolchain>,
    input: OwnedFd,
    inbox: Arc<Inbox>,
    stop: Arc<AtomicBool>,
    /// Whether it printed anything.
    spoke: AtomicBool,
}

impl Jailing {
    fn run(self, egress: Option<OwnedFd>) {
        let Program { command, args, env, .. } = &self.program;
        let words = std::iter::once(command).chain(args).map(String::as_str);
        let job = Job {
            argv: IN_EMPTY_DIRECTORY.into_iter().chain(words).map(Into::into).collect(),
            script: Script { name: "none", bytes: Vec::new() },
            env: env.0.clone(),
            limits: self.limits.clone(),
            view: &self.view,
            toolchains: &self.toolchains,
            egress,
            input: Some(&self.input),
        };
        let why = match self.sandbox.run(&job, &self) {
            Ok(Ended { exit_code, .. }) if NO_PROGRAM.contains(&exit_code) && !self.spoke.load(Ordering::Relaxed) => {
                no_program()
            }
            Ok(Ended { ended_by, exit_code, .. }) => Trouble::Ended(format!("{}, {exit_code}", ended_by.name())),
            Err(Failure::NoProgram { .. }) => no_program(),
            Err(failure) => Trouble::Start(failure.to_string()),
        };
        self.inbox.end(why);
    }
}

fn no_program() -> Trouble {
    let hint = "there is no such program in the jail, which has the system's and those of `run_code.toolchains`";
    Trouble::Start(hint.to_owned())
}

impl Watch for Jailing {
    fn output(&self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Out {
            self.spoke.store(true, Ordering::Relaxed);
            self.inbox.hear(bytes);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.inbox.is_over()
    }
}

/// A server in the jail. It has nothing to lose.
#[derive(Debug)]
struct Jailed {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hold for Jailed {}

impl Drop for Jailed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A server outside of the jail. It may have something to put in order.
#[derive(Debug)]
struct Outside {
    inbox: Arc<Inbox>,
    held: Arc<Launched>,
}

impl Hold for Outside {}

impl Drop for Outside {
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(500);
        self.inbox.end(Trouble::Ended("the session is over".to_owned()));
        self.held.end(PATIENCE);
    }
}
