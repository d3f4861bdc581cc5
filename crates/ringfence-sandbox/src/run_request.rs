//! Run request: a program to be run, from the arguments of any dialect to the job of a jail.
//!
//! Not here: the arguments themselves (`run_code.rs`, `command_args.rs`), and running it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{
    CallLimits, ErrorKind, FollowUpMode, NET_MOUNT, PolicyAction, PolicyResource, Preview, PreviewBody, ResourceAccess,
    ToolError,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::job::JailFile;
use crate::limits::JailLimits;
use crate::program::ProgramChanges;
use crate::shell::{COMMAND_FILE, DirectoryEntry, Shell, StartDirectory};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScriptLanguage {
    Python,
    Bash,
}

impl ScriptLanguage {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
        }
    }

    /// The interpreter, and the file that it is given.
    const fn interpreter(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python3", "code.py"),
            Self::Bash => ("bash", "code.sh"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunCodeMode {
    #[default]
    Auto,
    Review,
    Discard,
}

impl From<RunCodeMode> for FollowUpMode {
    fn from(mode: RunCodeMode) -> Self {
        match mode {
            RunCodeMode::Auto => Self::Policy,
            RunCodeMode::Review => Self::Review,
            RunCodeMode::Discard => Self::Discard,
        }
    }
}

impl From<RunCodeMode> for ProgramChanges {
    fn from(mode: RunCodeMode) -> Self {
        match mode {
            RunCodeMode::Auto => Self::Keep,
            RunCodeMode::Review => Self::Review,
            RunCodeMode::Discard => Self::Discard,
        }
    }
}

/// The program to run.
#[derive(Clone, Debug)]
pub(crate) struct RunCodeProgram {
    pub(crate) language: ScriptLanguage,
    pub(crate) code: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) network: Vec<String>,
    pub(crate) mode: RunCodeMode,
    /// For a command line; `None` for a script.
    pub(crate) command: Option<CommandLine>,
    pub(crate) attendance: RunAttendance,
}

/// Time limit of a command line, if neither the call nor the config says more.
const COMMAND_TIME: Duration = Duration::from_secs(120);

/// Run time of a command tool's command, where the call does not set one.
pub fn command_time(limits: &CallLimits) -> Duration {
    limits.run_time.max(COMMAND_TIME).min(limits.longest_run_time)
}

/// What a command line has besides its text.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) start: StartDirectory,
    /// Its purpose, in the words of the caller.
    pub(crate) description: Option<String>,
    /// Most bytes of output in the reply.
    pub(crate) max_output: usize,
}

/// How long a call stays with its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunAttendance {
    /// Until it ends.
    ToTheEnd,
    /// Until it ends or this time is over; then it is a background job.
    Yield { after: Duration, stdin: JobStdin },
    /// It is a background job from the start.
    Background { stdin: JobStdin },
}

/// Standard input of a background job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobStdin {
    Empty,
    /// Written by later calls.
    Open,
}

impl RunCodeProgram {
    /// Hosts that the program may connect to, each with its port.
    pub(crate) fn hosts(&self) -> Result<Vec<String>, ToolError> {
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

    /// The access of each host.
    pub(crate) fn host_accesses(&self) -> Result<Vec<ResourceAccess>, ToolError> {
        let access = |host: &String| ResourceAccess {
            action: PolicyAction::Fetch,
            resource: PolicyResource {
                mount: Arc::from(NET_MOUNT),
                requested_path: host.clone(),
                display_path: host.clone(),
                ..PolicyResource::default()
            },
        };
        Ok(self.hosts()?.iter().map(access).collect())
    }

    pub(crate) fn limits(&self, limits: &CallLimits) -> Result<JailLimits, ToolError> {
        let longest = limits.longest_run_time;
        let wall = match self.attendance {
            RunAttendance::ToTheEnd => {
                let usual = if self.command.is_some() { command_time(limits) } else { limits.run_time.min(longest) };
                self.timeout.unwrap_or(usual)
            }
            RunAttendance::Yield { .. } | RunAttendance::Background { .. } => {
                return Ok(jail_limits(limits, limits.job_time));
            }
        };
        if wall > longest {
            let problem = format!("must be at most {} seconds", longest.as_secs_f64());
            return Err(ToolError::invalid("timeout", &problem));
        }
        Ok(jail_limits(limits, wall))
    }

    /// A background job has no network: connections are recorded by a call, and its call is over. A command that could become
    /// one is attended to its end. No call stays longer than a run may take.
    pub(crate) fn check_attendance(&mut self, limits: &CallLimits) -> Result<(), ToolError> {
        match &mut self.attendance {
            RunAttendance::Background { .. } if !self.network.is_empty() => {
                let message = "a background job has no network; run it in the foreground, or without `network`";
                return Err(ToolError::new(ErrorKind::InvalidArgs, message));
            }
            RunAttendance::Yield { .. } if !self.network.is_empty() => self.attendance = RunAttendance::ToTheEnd,
            RunAttendance::Yield { after, .. } => *after = limits.longest_run_time.min(*after),
            RunAttendance::ToTheEnd | RunAttendance::Background { .. } => {}
        }
        Ok(())
    }

    /// For a program that starts in this directory of the jail.
    pub(crate) fn argv(&self, directory: &str) -> Vec<OsString> {
        if let Some(command) = &self.command {
            let entry = match (&command.start, self.attendance) {
                (StartDirectory::Carried, RunAttendance::ToTheEnd) => DirectoryEntry::Reported,
                // A job ends after other commands of the session began.
                (StartDirectory::Carried, _) => DirectoryEntry::Fallback,
                (StartDirectory::Given(_), _) => DirectoryEntry::Strict,
            };
            return Shell::detect().argv(directory, entry);
        }
        let (interpreter, file) = self.language.interpreter();
        let words = [interpreter.to_owned(), format!("/run/ringfence/{file}")];
        words.into_iter().chain(self.args.iter().cloned()).map(OsString::from).collect()
    }

    pub(crate) fn script(&self) -> JailFile {
        let name = if self.command.is_some() { COMMAND_FILE } else { self.language.interpreter().1 };
        JailFile::new(name, self.code.as_bytes())
    }

    /// The caller's, and what lets a program find the modules beside it.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        if self.language == ScriptLanguage::Python {
            env.entry("PYTHONPATH".to_owned()).or_insert_with(|| "/workspace".to_owned());
        }
        env
    }

    /// The preview: hosts are in the first line, before anything that could be long, and all of them are shown.
    pub(crate) fn preview(&self, limits: &JailLimits) -> Preview {
        let lines = self.code.lines().count();
        let unit = if lines == 1 { "line" } else { "lines" };
        let mut summary = format!("run {lines} {unit} of {} code", self.language.name());
        let time = describe_time(limits.wall);
        let stdin = match self.attendance {
            RunAttendance::ToTheEnd => JobStdin::Empty,
            RunAttendance::Yield { stdin, .. } => {
                let _ = write!(summary, ", for up to {time}");
                stdin
            }
            RunAttendance::Background { stdin } => {
                let _ = write!(summary, " in the background, for up to {time}");
                stdin
            }
        };
        let mut hosts = wrap_hosts(&self.network).into_iter();
        if let Some(first) = hosts.next() {
            let _ = write!(summary, ", which may reach {}", first.join(", "));
            let more: usize = hosts.as_slice().iter().map(|hosts| hosts.len()).sum();
            if more > 0 {
                let _ = write!(summary, " and {more} more");
            }
        }
        let mut preview = Preview::new(&summary, "");
        for more in hosts {
            preview = preview.with_line(&format!("and may reach {}", more.join(", ")));
        }
        if stdin == JobStdin::Open {
            preview = preview.with_line("later calls may write to its standard input");
        }
        if !self.args.is_empty() {
            preview = preview.with_line(&format!("with the arguments {:?}", self.args));
        }
        if !self.env.is_empty() {
            preview = preview.with_line(&format!("with the variables {:?}", self.env));
        }
        if let Some(command) = &self.command {
            if let StartDirectory::Given(directory) = &command.start {
                preview = preview.with_line(&format!("in `{directory}`"));
            }
            if let Some(description) = &command.description {
                preview = preview.with_line(&format!("described by the agent as: {description}"));
            }
        }
        preview.with_body(PreviewBody::Code(self.code.clone()))
    }
}

/// A time limit in the largest unit that it is a multiple of.
fn describe_time(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0 => return format!("{} seconds", time.as_secs_f64()),
        _ if seconds.is_multiple_of(3600) => (seconds / 3600, "hour"),
        _ if seconds.is_multiple_of(60) => (seconds / 60, "minute"),
        _ => (seconds, "second"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Hosts, as many in a line as are shown of one.
fn wrap_hosts(hosts: &[String]) -> Vec<&[String]> {
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

pub(crate) fn jail_limits(limits: &CallLimits, wall: Duration) -> JailLimits {
    JailLimits {
        wall,
        cpu: limits.run_cpu_time,
        memory_bytes: limits.run_memory_bytes,
        processes: limits.run_processes,
        open_files: limits.run_open_files,
        file_bytes: limits.run_file_bytes,
        disk_bytes: limits.run_disk_bytes,
        tmp_bytes: limits.run_tmp_bytes,
        output_bytes: limits.run_output_bytes,
    }
}
