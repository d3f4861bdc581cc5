//! `run_code`: a program in a jail, and what it changed as one change of the workspace.
//!
//! The program works on a layer above the workspace. Only when it ended well is that layer read. What it changed is judged
//! group by group like the changes of other tools; what may be kept is committed as one, and the rest is dropped and named in
//! an error. Whatever becomes of it, the reply has what the program printed.
//!
//! Not here: the jail (`sandbox.rs`), and how changes are found and committed (the kernel's `Workspace`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringfence_kernel::{
    Bit, Body, CODE, Changes, Context, Egress, ErrorKind, Face, KeepDecision, Limits, NET, NameTaken, Next, Place,
    Plan, Preview, Progress, Registry, Remainder, Review, Ticket, Tool, ToolError, Touch, Verb, Way, Workspace,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::denied::Barrier;
use crate::job::{Ended, EndedBy, Failure, Job, Script, Stream, Watch};
use crate::limits::JailLimits;
use crate::report::{Printed, Report, StandardReply};
use crate::sandbox::{Sandbox, Settings};
use crate::toolchains::Toolchain;

/// What the tool is made of.
#[derive(Debug)]
pub struct Jail {
    pub workspace: Arc<dyn Workspace>,
    /// How the spawner is started. It is, with the first program.
    pub settings: Settings,
    pub toolchains: Vec<Toolchain>,
    /// The way out to the network, where there is one.
    pub egress: Option<Arc<dyn Egress>>,
}

/// Gives `run_code` to a registry.
pub fn register(registry: &mut Registry, jail: Jail) -> Result<(), NameTaken> {
    let tool = RunCode { jail, sandbox: Mutex::new(None) };
    registry.register(tool, [Face::standard::<StandardArgs, StandardReply>("run_code")])
}

/// Run Python or bash code in a sandbox, in the workspace. It sees the workspace and the system's programs, and no network
/// except the hosts that `network` lists. If it ends by itself, each changed file is judged like a change by any other tool:
/// what is kept is one change for `undo`, and an error names what was not kept. Only `/workspace` and `/tmp` are writable;
/// `/tmp` is empty in each run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StandardArgs {
    /// Interpreter.
    language: Language,
    /// Program text.
    code: String,
    /// Arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Seconds it may run.
    timeout: Option<f64>,
    /// Hosts to reach by HTTP or HTTPS, such as `pypi.org` or `pypi.org:80`.
    #[serde(default)]
    network: Vec<String>,
    /// `auto` keeps allowed changes, `review` asks a person and keeps all or none, `discard` drops them.
    #[serde(default)]
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Language {
    Python,
    Bash,
}

impl Language {
    const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
        }
    }

    /// The interpreter, and the file that it is given.
    const fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python3", "code.py"),
            Self::Bash => ("bash", "code.sh"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Auto,
    Review,
    Discard,
}

impl TryFrom<StandardArgs> for Program {
    type Error = ToolError;

    fn try_from(args: StandardArgs) -> Result<Self, ToolError> {
        let StandardArgs { language, code, args, env, timeout, network, mode } = args;
        if args.iter().any(|arg| arg.contains('\0')) {
            return Err(ToolError::invalid("args", "must not hold a NUL"));
        }
        let timeout = timeout.map(seconds).transpose()?;
        Ok(Self { language, code, args, env, timeout, network, mode })
    }
}

fn seconds(timeout: f64) -> Result<Duration, ToolError> {
    let time = Duration::try_from_secs_f64(timeout).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| ToolError::invalid("timeout", "must be a number of seconds above 0"))
}

/// What is to be run.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    language: Language,
    code: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    timeout: Option<Duration>,
    network: Vec<String>,
    mode: Mode,
}

impl Program {
    /// Where the program may connect to, each with its port.
    fn hosts(&self) -> Result<Vec<String>, ToolError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        let host = |host: &String| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            match host.chars().all(plain) {
                true if has_port => Ok(host.clone()),
                true => Ok(format!("{host}:443")),
                false => Err(ToolError::invalid("network", "must list hosts such as `pypi.org` or `pypi.org:80`")),
            }
        };
        self.network.iter().map(host).collect()
    }

    fn touches(&self) -> Result<Vec<Touch>, ToolError> {
        let touch = |verb, mount: &str, path: &str| Touch {
            verb,
            place: Place {
                mount: Arc::from(mount),
                given: path.to_owned(),
                shown: path.to_owned(),
                ..Place::default()
            },
        };
        let run = touch(Verb::Run, CODE, self.language.name());
        let hosts = self.hosts()?;
        Ok(std::iter::once(run).chain(hosts.iter().map(|host| touch(Verb::Fetch, NET, host))).collect())
    }

    fn limits(&self, limits: &Limits) -> Result<JailLimits, ToolError> {
        let longest = limits.longest_run_time;
        let wall = self.timeout.unwrap_or(limits.run_time.min(longest));
        if wall > longest {
            let problem = format!("must be at most {} seconds", longest.as_secs_f64());
            return Err(ToolError::invalid("timeout", &problem));
        }
        Ok(JailLimits {
            wall,
            cpu: limits.run_cpu_time,
            memory_bytes: limits.run_memory_bytes,
            processes: limits.run_processes,
            open_files: limits.run_open_files,
            file_bytes: limits.run_file_bytes,
            disk_bytes: limits.run_disk_bytes,
            tmp_bytes: limits.run_tmp_bytes,
            output_bytes: limits.run_output_bytes,
        })
    }

    fn argv(&self) -> Vec<OsString> {
        let (interpreter, file) = self.language.parts();
        let words = [interpreter.to_owned(), format!("/run/ringfence/{file}")];
        words.into_iter().chain(self.args.iter().cloned()).map(OsString::from).collect()
    }

    /// The caller's, and what lets a program find the modules beside it.
    fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        if self.language == Language::Python {
            env.entry("PYTHONPATH".to_owned()).or_insert_with(|| "/workspace".to_owned());
        }
        env
    }

    /// Where it may connect to stands in the first line, before anything that could be long, and all of it is shown.
    fn preview(&self) -> Preview {
        let lines = self.code.lines().count();
        let mut summary = format!("run {} code of {lines} line(s)", self.language.name());
        let mut hosts = lines_of(&self.network).into_iter();
        if let Some(first) = hosts.next() {
            let _ = write!(summary, ", which may reach {}", first.join(", "));
            let more: usize = hosts.as_slice().iter().map(|hosts| hosts.len()).sum();
            if more > 0 {
                let _ = write!(summary, " and {more} more");
            }
        }
        let mut preview = Preview::new(&summary, "");
        for more in hosts {
            preview = preview.line(&format!("and may reach {}", more.join(", ")));
        }
        if !self.args.is_empty() {
            preview = preview.line(&format!("with the arguments {:?}", self.args));
        }
        if !self.env.is_empty() {
            preview = preview.line(&format!("with the variables {:?}", self.env));
        }
        preview.with(Body::Code(self.code.clone()))
    }
}

/// Hosts, as many in a line as are shown of one.
fn lines_of(hosts: &[String]) -> Vec<&[String]> {
    const LONGEST: usize = 1500;
    let mut lines = Vec::new();
    let mut left = hosts;
    while !left.is_empty() {
        let mut length = 0;
        let fits = |host: &&String| {
            length += host.len() + 2;
            length <= LONGEST
        };
        // A host that is longer than a line has one of its own.
        let (line, rest) = left.split_at(left.iter().take_while(fits).count().max(1));
        lines.push(line);
        left = rest;
    }
    lines
}

/// The two halves of a call.
#[derive(Debug)]
pub(crate) enum Work {
    Start(Box<Program>, JailLimits),
    Keep(Box<Left>),
}

/// A program that ended, and changes that wait.
#[derive(Debug)]
pub(crate) struct Left {
    report: Report,
    changes: Box<dyn Changes>,
    review: bool,
    /// What becomes of each group of changes.
    decided: Vec<KeepDecision>,
}

#[derive(Debug)]
struct RunCode {
    jail: Jail,
    /// Started with the first program.
    sandbox: Mutex<Option<Arc<Sandbox>>>,
}

impl Tool for RunCode {
    type Args = Program;
    type Work = Work;
    type Outcome = Report;
    const STOPS_ITSELF: bool = true;
    const VERBS: &'static [Verb] = &[Verb::Run, Verb::Fetch, Verb::Create, Verb::Overwrite, Verb::Delete, Verb::Lose];

    fn plan(&self, mut program: Program, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        cx.name_subject(program.language.name());
        let limits = program.limits(cx.limits)?;
        program.network = match &self.jail.egress {
            Some(egress) => program.hosts()?.iter().map(|host| egress.known_as(host)).collect::<Result<_, _>>()?,
            None if program.network.is_empty() => Vec::new(),
            None => {
                let message = "programs have no network here; run it without `network`";
                return Err(ToolError::new(ErrorKind::Unavailable, message));
            }
        };
        Ok(Plan { touches: program.touches()?, work: Work::Start(Box::new(program), limits) })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        match work {
            Work::Start(program, _) => Ok(program.preview()),
            Work::Keep(left) => left.changes.preview(cx),
        }
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Report, ToolError> {
        match work {
            Work::Start(program, limits) => self.start(&program, limits, ticket.context()),
            Work::Keep(left) => left.keep(ticket),
        }
    }

    /// The program's own time, and that of a call for what comes before and after it.
    fn time(limits: &Limits) -> Duration {
        limits.longest_run_time + limits.call_time
    }

    fn wants_review(&self, work: &Work) -> Option<Review> {
        matches!(work, Work::Keep(left) if left.review).then_some(Review::WISHED)
    }

    fn follow(&self, mut report: Report) -> Next<Report, Work> {
        match report.rest.take() {
            None => Next::Done(report),
            Some((changes, review)) => {
                let groups = changes.groups();
                let decided = vec![KeepDecision::Ask; groups.len()];
                Next::Rest(Remainder { groups, work: Work::Keep(Box::new(Left { report, changes, review, decided })) })
            }
        }
    }

    fn settle(&self, work: &mut Work, wanted: Vec<KeepDecision>) -> Vec<KeepDecision> {
        match work {
            Work::Keep(left) => {
                left.decided = left.changes.settle(wanted);
                left.decided.clone()
            }
            Work::Start(..) => wanted,
        }
    }

    fn leave(&self, work: Work, refused: ToolError) -> Result<Report, ToolError> {
        match work {
            Work::Keep(left) => left.report.without(left.decided, refused),
            Work::Start(..) => Err(refused),
        }
    }
}

impl Left {
    fn keep(self, ticket: &Ticket<'_>) -> Result<Report, ToolError> {
        let Self { mut report, changes, mut decided, .. } = self;
        if let Err(error) = changes.commit(ticket) {
            return report.without(decided, error);
        }
        for (group, error) in ticket.withheld() {
            if let Some(decision) = decided.get_mut(group) {
                *decision = KeepDecision::Refuse(error);
            }
        }
        let change = decided.contains(&KeepDecision::Keep).then(|| ticket.change().to_owned());
        report.change = change;
        report.with(&decided)
    }
}

impl RunCode {
    fn start(&self, program: &Program, limits: JailLimits, cx: &Context<'_>) -> Result<Report, ToolError> {
        let sandbox = self.sandbox()?;
        let view = self.jail.workspace.view(cx)?;
        let mut way = match (&self.jail.egress, program.hosts()?.as_slice()) {
            (_, []) | (None, _) => None,
            (Some(egress), hosts) => Some(egress.open(hosts, cx)?),
        };
        let (_, name) = program.language.parts();
        let job = Job {
            argv: program.argv(),
            script: Script { name, bytes: program.code.clone().into_bytes() },
            env: program.environment(),
            limits,
            view: &view,
            toolchains: &self.jail.toolchains,
            egress: way.as_mut().and_then(|way| way.socket()),
            input: None,
        };
        let mut ended = sandbox.run(&job, &Keeper { cx, way: way.as_deref() }).map_err(|failure| failed(&failure))?;
        let upper = ended.upper.take();
        let limits = &job.limits;
        let mut printed = Printed::of(&ended, limits);
        // Who has a network is not told that there is none.
        printed.denied = printed.denied.filter(|denied| job.egress.is_none() || denied.wall != Barrier::Network);
        let report = match cut_short(&ended, limits) {
            Some(error) => return Err(printed.explain(error)),
            None => Report::new(printed, ended.exit_code),
        };
        match upper {
            Some(upper) => self.look(report, &view, upper, program.mode, cx),
            None => Ok(report),
        }
    }

    /// Finds out what the program changed.
    fn look(
        &self,
        mut report: Report,
        view: &ringfence_kernel::View,
        upper: OwnedFd,
        mode: Mode,
        cx: &Context<'_>,
    ) -> Result<Report, ToolError> {
        let most_named = usize::try_from(cx.limits.delete_names).unwrap_or(usize::MAX);
        (report.most_named, report.discarded) = (most_named, mode == Mode::Discard);
        let mut changes = match self.jail.workspace.changes(view, upper, cx) {
            Ok(changes) => changes,
            // What is dropped anyway need not be understood.
            Err(_) if report.discarded => return Ok(report),
            Err(error) => return report.without(Vec::new(), error),
        };
        if mode == Mode::Review {
            changes.merge();
        }
        report.changes = changes.list();
        let is_left = !report.changes.is_empty() && !report.discarded;
        report.rest = is_left.then_some((changes, mode == Mode::Review));
        Ok(report)
    }

    fn sandbox(&self) -> Result<Arc<Sandbox>, ToolError> {
        let mut sandbox = self.sandbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = &*sandbox {
            return Ok(Arc::clone(sandbox));
        }
        let started = Sandbox::start(self.jail.settings.clone()).map_err(|failure| failed(&failure))?;
        Ok(Arc::clone(sandbox.insert(Arc::new(started))))
    }
}

/// What a run that never came to an end means for the caller.
fn failed(failure: &Failure) -> ToolError {
    let kind = match failure {
        Failure::Unavailable { .. } | Failure::NoProgram { .. } => ErrorKind::Unavailable,
        Failure::Environment(_) => ErrorKind::InvalidArgs,
        Failure::Lost(_) | Failure::Io(..) => ErrorKind::Execution,
    };
    ToolError::new(kind, failure.to_string())
}

/// The error for a program that did not end by itself.
fn cut_short(ended: &Ended, limits: &JailLimits) -> Option<ToolError> {
    let error = |kind, message: String| Some(ToolError::new(kind, message));
    match ended.ended_by {
        EndedBy::Exit | EndedBy::Signal => None,
        EndedBy::Timeout => error(
            ErrorKind::Timeout,
            format!(
                "the program ran longer than {} s and was ended; its changes are dropped",
                limits.wall.as_secs_f64()
            ),
        ),
        EndedBy::Cancelled => error(ErrorKind::Cancelled, "the program was ended; its changes are dropped".to_owned()),
        EndedBy::Memory => error(
            ErrorKind::Execution,
            format!(
                "the program used more than {} bytes of memory and was ended; its changes are dropped",
                limits.memory_bytes
            ),
        ),
        EndedBy::Cpu => error(
            ErrorKind::Execution,
            format!(
                "the program used more than {} s of processor time and was ended; its changes are dropped",
                limits.cpu.as_secs_f64()
            ),
        ),
        EndedBy::Output => error(
            ErrorKind::Execution,
            "the program printed far more than is kept and was ended; its changes are dropped; write to a file instead"
                .to_owned(),
        ),
    }
}

/// Tells the caller what a program prints, records where it connects to, and tells the jail when nobody waits any more.
struct Keeper<'a> {
    cx: &'a Context<'a>,
    way: Option<&'a dyn Way>,
}

impl Watch for Keeper<'_> {
    fn output(&self, stream: Stream, bytes: &[u8]) {
        self.cx.report(&Progress { stream: stream.name(), text: &String::from_utf8_lossy(bytes) });
    }

    fn stopped(&self) -> bool {
        while let Some(attempt) = self.way.and_then(|way| way.next()) {
            // What the program hears there, strangers say.
            self.cx.raise(Bit::SawUntrusted);
            attempt.record(self.cx);
        }
        self.cx.check().is_err()
    }
}
