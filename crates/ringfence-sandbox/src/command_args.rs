//! Arguments of the command tools of model families: `Bash`, `exec_command` and `run_shell_command`.
//!
//! Not here: what a command becomes (`run_request.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use ringfence_kernel::ToolError;
use ringfence_kernel::lenient::{optional_scalar, scalar, strings};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::command_text::MAX_OUTPUT_BYTES;
use crate::run_request::{CommandLine, JobStdin, RunAttendance, RunCodeMode, RunCodeProgram, ScriptLanguage};
use crate::shell::StartDirectory;

/// Time that `exec_command` waits, if the call says nothing.
const YIELD_TIME: Duration = Duration::from_secs(10);

/// Longest time that a call waits for a command that may go on without it.
pub(crate) const MAX_YIELD_TIME: Duration = Duration::from_secs(600);

/// Bytes of a token, as models count them.
const TOKEN_BYTES: u64 = 4;

/// Run a bash command in a sandbox. The working directory is kept between calls; variables and /tmp are not. No network
/// except the hosts in `network`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashArgs {
    #[serde(alias = "cmd", alias = "code")]
    command: String,
    /// Milliseconds, default 120000, at most 600000.
    #[serde(default, deserialize_with = "optional_scalar")]
    timeout: Option<u64>,
    #[serde(default)]
    description: Option<String>,
    /// For servers and watchers.
    #[serde(default, deserialize_with = "scalar")]
    run_in_background: bool,
    /// Hosts to reach by HTTPS.
    #[serde(default, deserialize_with = "strings")]
    network: Vec<String>,
}

/// Run a bash command in a sandbox. Returns its output, or a session_id if it is still running after yield_time_ms. To
/// search, use `rg --heading -n`, or `grep -rn` without rg. No network except the hosts in `network`.
// Models of this family search by commands. Grouped by file, matches cost a quarter less than with the path in each line.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecCommandArgs {
    #[serde(alias = "command", alias = "code")]
    cmd: String,
    /// Relative to the workspace.
    #[serde(default, alias = "cwd", alias = "dir_path")]
    workdir: Option<String>,
    #[serde(default, deserialize_with = "optional_scalar")]
    yield_time_ms: Option<u64>,
    #[serde(default, deserialize_with = "optional_scalar")]
    max_output_tokens: Option<u64>,
    /// Keep stdin open for write_stdin.
    #[serde(default, deserialize_with = "scalar")]
    tty: bool,
    /// Hosts to reach by HTTPS.
    #[serde(default, deserialize_with = "strings")]
    network: Vec<String>,
    #[serde(default, rename = "shell")]
    #[schemars(skip)]
    _shell: IgnoredAny,
    #[serde(default, rename = "login")]
    #[schemars(skip)]
    _login: IgnoredAny,
}

/// Run a bash command in a sandbox, in the workspace. No network except the hosts in `network`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunShellCommandArgs {
    #[serde(alias = "cmd", alias = "code")]
    command: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default, alias = "directory", alias = "path")]
    dir_path: Option<String>,
    /// For servers and watchers.
    #[serde(default, deserialize_with = "scalar")]
    is_background: bool,
    /// Hosts to reach by HTTPS.
    #[serde(default, deserialize_with = "strings")]
    network: Vec<String>,
    #[serde(default, rename = "delay_ms")]
    #[schemars(skip)]
    _delay_ms: IgnoredAny,
}

impl TryFrom<BashArgs> for RunCodeProgram {
    type Error = ToolError;

    fn try_from(args: BashArgs) -> Result<Self, ToolError> {
        let timeout = args.timeout.map(milliseconds).transpose()?;
        let attendance = match args.run_in_background {
            true => RunAttendance::Background { stdin: JobStdin::Empty },
            false => RunAttendance::ToTheEnd,
        };
        let line =
            CommandLine { start: StartDirectory::Carried, description: args.description, max_output: MAX_OUTPUT_BYTES };
        Ok(Self { timeout, ..command_program(args.command, args.network, line, attendance)? })
    }
}

impl TryFrom<ExecCommandArgs> for RunCodeProgram {
    type Error = ToolError;

    fn try_from(args: ExecCommandArgs) -> Result<Self, ToolError> {
        let after = args.yield_time_ms.map_or(YIELD_TIME, Duration::from_millis).min(MAX_YIELD_TIME);
        let stdin = if args.tty { JobStdin::Open } else { JobStdin::Empty };
        let line = CommandLine {
            start: given_directory(args.workdir),
            description: None,
            max_output: output_bytes(args.max_output_tokens),
        };
        command_program(args.cmd, args.network, line, RunAttendance::Yield { after, stdin })
    }
}

impl TryFrom<RunShellCommandArgs> for RunCodeProgram {
    type Error = ToolError;

    fn try_from(args: RunShellCommandArgs) -> Result<Self, ToolError> {
        let attendance = match args.is_background {
            true => RunAttendance::Background { stdin: JobStdin::Empty },
            false => RunAttendance::ToTheEnd,
        };
        let line = CommandLine {
            start: given_directory(args.dir_path),
            description: args.description,
            max_output: MAX_OUTPUT_BYTES,
        };
        command_program(args.command, args.network, line, attendance)
    }
}

/// Least bytes of output that a caller may ask for: less would be the note about the rest and nothing else.
const MIN_OUTPUT_BYTES: usize = 1000;

/// Most bytes of output that a caller asks for.
pub(crate) fn output_bytes(max_output_tokens: Option<u64>) -> usize {
    let bytes = max_output_tokens.map(|tokens| tokens.saturating_mul(TOKEN_BYTES));
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(MAX_OUTPUT_BYTES);
    bytes.clamp(MIN_OUTPUT_BYTES, MAX_OUTPUT_BYTES)
}

fn command_program(
    command: String,
    network: Vec<String>,
    line: CommandLine,
    attendance: RunAttendance,
) -> Result<RunCodeProgram, ToolError> {
    let has_nul = |text: &str| text.contains('\0');
    if has_nul(&command) || matches!(&line.start, StartDirectory::Given(directory) if has_nul(directory)) {
        return Err(ToolError::invalid("command", "must not contain a NUL byte"));
    }
    Ok(RunCodeProgram {
        language: ScriptLanguage::Bash,
        code: command,
        args: Vec::new(),
        env: BTreeMap::new(),
        timeout: None,
        network,
        mode: RunCodeMode::Auto,
        command: Some(line),
        attendance,
    })
}

fn milliseconds(timeout: u64) -> Result<Duration, ToolError> {
    match timeout {
        0 => Err(ToolError::invalid("timeout", "must be a positive number of milliseconds")),
        _ => Ok(Duration::from_millis(timeout)),
    }
}

fn given_directory(path: Option<String>) -> StartDirectory {
    StartDirectory::Given(path.filter(|path| !path.is_empty()).unwrap_or_else(|| ".".to_owned()))
}
