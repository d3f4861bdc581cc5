//! The command line: `ringfence call`, `agent`, `acp`, `mcp`, `serve`, `tools`, `approvals`, `policy`, `audit`, `workflow`, and what a person does
//! with changes: `log`, `diff`, `undo` and `redo`.
//!
//! The reply goes to standard output exactly as a model would get it. Exit code 0 is a success reply, 1 an error
//! reply, 2 bad usage or config.

use std::fs::File;
use std::io::{BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ringfence_fs::{Broken, KnownHead, Verified, read_known_heads, read_records, verify};
use ringfence_kernel::{Assurance, Bit, DeskError, Dialect, Fatal, Preset, Reply, StoreLost, ToolCall, visible};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::acp::{AcpOptions, Pipes, acp};
use crate::agent::{AgentOptions, NoModel, SessionError, Voice, agent};
use crate::approve::{Approve, at_terminal, nobody};
use crate::config::{ConfigError, Environment, Flags, Mounted, RunCode, Settings, load};
use crate::doctor::examine;
use crate::foreign::check;
use crate::in_charge::{ApprovalsCommand, Done, GrantsCommand, approvals, distrust, grants, trust};
use crate::mcp::ServeError;
use crate::mcp::clients::{Places, find};
use crate::mcp::install::InstallError;
use crate::prompt::{first_sentence, prompt};
use crate::serving::{McpCommand, ServeOptions, TokenCommand, install, mcp, serve, token};
use crate::sessions_text::{SessionsCommand, sessions};
use crate::signals::Signals;
use crate::tokens::TokenError;
use crate::trust::Offered;
use crate::wire::{WireError, Wired, new_workflow, wire, wire_for_person, workspace_of};
use crate::{changes_text, policy_text};

const SUCCESS: u8 = 0;
const ERROR_REPLY: u8 = 1;
const BAD_USAGE: u8 = 2;

/// The tool host between an AI agent and a machine.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    options: CommonOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make one tool call and print the reply.
    Call {
        /// The tool, such as `read_file`.
        tool: String,
        /// Its arguments as a JSON object; `-` reads them from standard input.
        #[arg(default_value = "{}")]
        json: String,
    },
    /// Let a model work on a prompt with the tools; without one, talk with it here. Exit code 0 is an answer, 1 a run that
    /// ended without one, 3 a model that cannot be had, 130 a cancelled run.
    Agent(AgentOptions),
    /// Serve the agent to an editor over the Agent Client Protocol, on standard input and output.
    Acp(AcpOptions),
    #[command(flatten)]
    Changes(ChangesCommand),
    /// See the calls that wait for a person's answer, and answer them.
    Approvals {
        #[command(subcommand)]
        command: ApprovalsCommand,
    },
    /// Try every wall that stands between programs and this machine, see which clients go around the fence with tools of
    /// their own, and say what to do about it.
    Doctor {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Look at the trace of every call, and check that nobody changed it.
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Serve the tools to an agent over the Model Context Protocol, on standard input and output.
    #[command(args_conflicts_with_subcommands = true)]
    Mcp {
        #[command(subcommand)]
        command: Option<McpCommand>,
        /// How long a call waits for a person before its client is told to come again. Most clients give up on a call
        /// after a minute.
        #[arg(long, value_name = "SECONDS", default_value_t = 25)]
        wait: u64,
    },
    /// Serve the tools to agents over HTTP, for those who show a token.
    Serve(ServeOptions),
    /// Make and take back the tokens that `serve` wants to see.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// See what was said and done in sessions of the agent, and keep it elsewhere.
    Sessions {
        #[command(subcommand)]
        command: SessionsCommand,
    },
    /// Make and look after runs of a workflow.
    Workflow {
        #[command(subcommand)]
        command: WorkflowCommand,
    },
    /// See what may be done without asking, and why.
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Print the tools of a dialect.
    Tools {
        /// The form to print them in.
        #[arg(long, value_enum, default_value_t = Format::List)]
        format: Format,
    },
}

/// What a person asks about changes, or wants done about them.
#[derive(Debug, Subcommand)]
enum ChangesCommand {
    /// List the changes that were made in the workspace, the newest first.
    Log {
        /// Only those of this session.
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// As a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show what one change did.
    Diff {
        /// The change, as `ringfence log` lists it.
        change: String,
    },
    /// Take back the last change, or those that are named: all of it, or, where something was changed since, nothing.
    Undo {
        /// The change, as `ringfence log` lists it.
        #[arg(conflicts_with_all = ["session", "since"])]
        change: Option<String>,
        /// Every change of a session.
        #[arg(long, value_name = "ID", conflicts_with = "since")]
        session: Option<String>,
        /// Every change since a time, such as `2026-01-31T12:00:00Z`.
        #[arg(long, value_name = "TIME", value_parser = time)]
        since: Option<String>,
        /// Only say what would be done.
        #[arg(long)]
        dry_run: bool,
        /// Take back also what was changed since. What is there now is kept, and `redo` brings it back, unless it is too
        /// large to be kept.
        #[arg(long)]
        force: bool,
    },
    /// Bring back what the last undo took back, or the one that is named.
    Redo {
        /// The undo, as `ringfence log` lists it.
        change: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Print the records, the oldest first.
    Show {
        /// As they are in the log, a JSON object a line.
        #[arg(long)]
        json: bool,
        /// Go on printing as calls are made.
        #[arg(long)]
        follow: bool,
    },
    /// Check every record, link and signed head. Exit code 1 and the first bad one if something was changed.
    Verify {
        /// A head that was kept elsewhere, as `ringfence audit head` printed it.
        #[arg(long, value_name = "NUMBER:HASH", value_parser = known_head)]
        head: Option<KnownHead>,
        /// A file that signed heads were sent to, as `audit_heads` in the config says.
        #[arg(long, value_name = "FILE")]
        heads: Option<PathBuf>,
    },
    /// Print how far the log reaches, to be kept elsewhere.
    Head,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Say what would be decided about a call, by which rule, without making it.
    Explain {
        /// The tool, such as `write_file`.
        tool: String,
        /// Its arguments as a JSON object; `-` reads them from standard input.
        #[arg(default_value = "{}")]
        json: String,
        /// As in a session that has been through this: read-secret, saw-untrusted or has-egress.
        #[arg(long, value_name = "BIT", value_parser = bit)]
        when: Vec<Bit>,
    },
    /// Print every rule, in the order in which they decide.
    Show,
    /// See what was allowed for good by an answer, and take it back.
    Grants {
        #[command(subcommand)]
        command: Option<GrantsCommand>,
    },
    /// Let the rules of the workspace's own ringfence.toml allow what they say, until it changes. Shows them, and asks you
    /// at this terminal.
    Trust {
        /// Take the trust back.
        #[arg(long)]
        revoke: bool,
    },
}

#[derive(Debug, Subcommand)]
enum WorkflowCommand {
    /// Make a run of the project, by the id that `--run` gives or a new one, and print its id. With `--graph` it stands
    /// at the entry of that workflow, and goes along its edges from there.
    New,
}

#[derive(Debug, Args)]
struct CommonOptions {
    /// The directory that tools work in. Created if it is missing.
    #[arg(long, global = true, value_name = "DIR")]
    workspace: Option<String>,
    /// A further directory that tools reach as `@ALIAS/…`: read-only, or `rw` to be written too.
    #[arg(long, global = true, value_name = "ALIAS=DIR[:ro|rw]", value_parser = Mounted::parse)]
    mount: Vec<Mounted>,
    /// The run whose state is `@state`.
    #[arg(long, global = true, value_name = "ID")]
    run: Option<String>,
    /// The graph that the run goes along, on a read-only mount. A run that was made with one keeps it.
    #[arg(long, global = true, value_name = "@PKG/FILE")]
    graph: Option<String>,
    /// The agent on whose behalf tools are called; its limits are those of the config.
    #[arg(long, global = true, value_name = "ID")]
    agent: Option<String>,
    /// The tool system to speak: standard, miniclaw or crewagent.
    #[arg(long, global = true, value_name = "NAME", value_parser = dialect)]
    dialect: Option<Dialect>,
    /// The config file to use instead of the user's own.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What may be done without asking: ask, edits or read-only.
    #[arg(long, global = true, value_name = "NAME", value_parser = preset)]
    preset: Option<Preset>,
    /// Where somebody has to be asked: ask at the terminal, never, only what the policy allows, or always.
    #[arg(long, global = true, value_name = "HOW", value_parser = approve)]
    approve: Option<Approve>,
    /// Allow no change at all; the same as `--preset read-only`.
    #[arg(long, global = true, conflicts_with = "preset")]
    read_only: bool,
    /// Offer only this tool, and others that are named so too.
    #[arg(long, global = true, value_name = "TOOL")]
    allow_tool: Vec<String>,
    /// Do not offer this tool.
    #[arg(long, global = true, value_name = "TOOL")]
    deny_tool: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// The list that OpenAI's chat completions take as `tools`.
    Openai,
    /// The bare functions: name, description, parameters.
    Functions,
    /// A line each, for people.
    List,
    /// What a model is told about them at the start: the tools, where they reach, and the limits that hold.
    Prompt,
}

/// Why a command did not get as far as a reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Fatal(#[from] Fatal),
    #[error(transparent)]
    Audit(#[from] Broken),
    #[error("the file with the heads cannot be read: {0}")]
    Heads(std::io::Error),
    #[error(transparent)]
    Desk(#[from] DeskError),
    #[error("there is no terminal here to answer at; `--yes` and `--no` need `unattended = true` in your config")]
    NoTerminal,
    #[error("this needs a person at a terminal, and there is none here")]
    NobodyHere,
    #[error(transparent)]
    Store(#[from] StoreLost),
    #[error("the arguments on standard input cannot be read: {0}")]
    Input(std::io::Error),
    #[error("the arguments on standard input have more than {0} bytes")]
    TooMuchInput(u64),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("there is no prompt, and no terminal to talk at: `ringfence agent PROMPT`")]
    NoPrompt,
    #[error(transparent)]
    Model(#[from] NoModel),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("the runtime cannot start: {0}")]
    Runtime(std::io::Error),
    #[error("the reply cannot be printed: {0}")]
    Output(std::io::Error),
}

/// Runs the program.
pub fn main() -> ExitCode {
    // What is printed of a bug of ours names no file of the machine that it was built on.
    std::panic::set_hook(Box::new(|_| complain("internal error: this should not have happened")));
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            complain(&chain(&failure));
            ExitCode::from(BAD_USAGE)
        }
    }
}

fn run(cli: Cli) -> Result<u8, Failure> {
    let environment = Environment::read()?;
    let settings = load(&cli.options.flags(), &environment)?;
    for warning in &settings.warnings {
        complain(&format!("warning: {warning}"));
    }
    match cli.command {
        Command::Call { tool, json } => {
            let approver = at_terminal(&settings, &environment);
            let settings = Settings { run_code: RunCode { waiting_jails: 0, ..settings.run_code }, ..settings };
            let wired = wire(settings, &environment, approver)?;
            warn_of(&wired);
            call(&wired, tool, json)
        }
        Command::Agent(options) => agent(settings, &environment, options, Voice::real()),
        Command::Acp(options) => {
            let pipes = Pipes { input: Box::new(std::io::stdin()), output: Box::new(std::io::stdout()) };
            acp(settings, &environment, options, pipes).map(|()| SUCCESS)
        }
        Command::Doctor { json } => {
            let workspace = workspace_of(&settings, &environment).ok();
            let clients = find(Places::of(&environment, workspace.as_deref()));
            let (text, well) = examine(
                &environment.program,
                settings.run_code.fallback,
                &clients,
                &check(&settings, &environment),
                json,
            );
            print(&(text + "\n"), if well { SUCCESS } else { ERROR_REPLY })
        }
        Command::Mcp { command: None, wait } => tell(mcp(settings, &environment, Duration::from_secs(wait))?),
        Command::Mcp { command: Some(command), .. } => tell(install(&settings, &environment, command)?),
        Command::Serve(options) => tell(serve(settings, cli.options.flags(), &environment, options)?),
        Command::Token { command } => tell(token(&settings, &environment, command)?),
        Command::Sessions { command } => tell_safely(sessions(&settings, &environment, command)?),
        Command::Tools { format } => print(&(tools(&unasked(settings, &environment)?, format) + "\n"), SUCCESS),
        Command::Approvals { command } => tell(approvals(&settings, &environment, command)?),
        Command::Policy { command: PolicyCommand::Explain { tool, json, when } } => {
            let wired = unasked(settings, &environment)?;
            when.into_iter().for_each(|bit| wired.session.bits.raise(bit));
            explain(&wired, tool, json)
        }
        Command::Policy { command: PolicyCommand::Show } => {
            print(&policy_text::show(&unasked(alone(settings), &environment)?.settings.rules()), SUCCESS)
        }
        Command::Changes(command) => {
            changes(&wire_for_person(settings, &environment, Assurance::Person, None)?, command)
        }
        Command::Policy { command: PolicyCommand::Grants { command } } => {
            tell(grants(&settings, &environment, command)?)
        }
        Command::Policy { command: PolicyCommand::Trust { revoke } } => {
            let wired = wire(alone(settings), &environment, Box::new(nobody()))?;
            tell(if revoke { distrust(&wired)? } else { trust(&wired, &environment)? })
        }
        Command::Audit { command } => audit(&settings.state, command),
        Command::Workflow { command: WorkflowCommand::New } => {
            print(&(new_workflow(&settings, &environment)? + "\n"), SUCCESS)
        }
    }
}

/// Makes the call that the command stands for, and says in plain words what came of it.
fn changes(wired: &Wired, command: ChangesCommand) -> Result<u8, Failure> {
    let (tool, arguments, form): (_, _, fn(&Value) -> String) = match command {
        ChangesCommand::Log { session, json: true } => {
            ("list_changes", json!({"session": session}), |value| format!("{value}\n"))
        }
        ChangesCommand::Log { session, json: false } => {
            ("list_changes", json!({"session": session}), changes_text::listed)
        }
        ChangesCommand::Diff { change } => ("show_change", json!({"change": change}), changes_text::diff),
        ChangesCommand::Undo { change, session, since, dry_run, force } => {
            let which =
                json!({"change": change, "session": session, "since": since, "dryRun": dry_run, "force": force});
            ("undo", which, changes_text::undone)
        }
        ChangesCommand::Redo { change } => ("redo", json!({"change": change}), changes_text::undone),
    };
    let reply = make_call(wired, tool.to_owned(), arguments.to_string())?;
    let said: Value = serde_json::from_str(&reply.text).unwrap_or_default();
    if reply.error.is_some() {
        let error = &said["error"];
        complain(error["message"].as_str().unwrap_or(&reply.text));
        for conflict in error["details"]["conflicts"].as_array().into_iter().flatten() {
            let text = |key: &str| conflict[key].as_str().unwrap_or_default().to_owned();
            complain(&format!("  {}: {} was expected, {} is there", text("path"), text("expected"), text("found")));
        }
        return Ok(ERROR_REPLY);
    }
    let text = form(&said["value"]);
    // For a person's eyes nothing hides in it; programs get it as it is.
    print(&if std::io::stdout().is_terminal() { visible(&text) } else { text }, SUCCESS)
}

/// Without the tools of other programs, for what does not need them started.
fn alone(settings: Settings) -> Settings {
    Settings { mcp_servers: Vec::new(), ..settings }
}

/// A host that makes no call, and so asks nobody.
fn unasked(settings: Settings, environment: &Environment) -> Result<Wired, WireError> {
    let wired = wire(settings, environment, Box::new(nobody()))?;
    warn_of(&wired);
    Ok(wired)
}

/// Says what the workspace's own file brought up.
pub(crate) fn warn_of(wired: &Wired) {
    for warning in wired.offered.iter().filter_map(Offered::warning).chain(wired.warnings.iter().cloned()) {
        complain(&format!("warning: {warning}"));
    }
}

/// Prints what somebody else wrote: for a person's eyes nothing hides in it, programs get it as it is.
fn tell_safely(done: Done) -> Result<u8, Failure> {
    tell(match done {
        Done::Print(text) if std::io::stdout().is_terminal() => Done::Print(visible(&text)),
        done => done,
    })
}

/// Prints what came of a command.
fn tell(done: Done) -> Result<u8, Failure> {
    match done {
        Done::Print(text) => print(&text, SUCCESS),
        Done::Refused(why) => {
            complain(&why);
            Ok(ERROR_REPLY)
        }
        Done::Nothing => Ok(ERROR_REPLY),
    }
}

/// Waits for something, unless a signal ends it first.
pub(crate) fn until_cancelled<T>(work: impl Future<Output = T>) -> Result<Option<T>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    Ok(runtime.block_on(async {
        let cancel = CancellationToken::new();
        if let Ok(signals) = Signals::take() {
            tokio::spawn(signals.cancel(cancel.clone()));
        }
        tokio::select! {
            done = work => Some(done),
            () = cancel.cancelled() => None,
        }
    }))
}

fn call(wired: &Wired, name: String, json: String) -> Result<u8, Failure> {
    let ToolCall { name, arguments, .. } = tool_call(wired, name, json)?;
    let reply = make_call(wired, name, arguments)?;
    print(&reply.text, if reply.error.is_some() { ERROR_REPLY } else { SUCCESS })
}

/// Makes a call, unless a signal ends it first.
pub(crate) fn make_call(wired: &Wired, name: String, arguments: String) -> Result<Reply, Failure> {
    let call = ToolCall { id: "call-1".to_owned(), name, arguments };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let reply = runtime.block_on(async {
        let cancel = CancellationToken::new();
        if let Ok(signals) = Signals::take() {
            tokio::spawn(signals.cancel(cancel.clone()));
        }
        wired.host.call(&wired.session, call, &cancel).await
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    Ok(reply?)
}

fn tool_call(wired: &Wired, name: String, json: String) -> Result<ToolCall, Failure> {
    let arguments = if json == "-" { standard_input(wired.session.limits.argument_bytes)? } else { json };
    Ok(ToolCall { id: "call-1".to_owned(), name, arguments })
}

fn explain(wired: &Wired, name: String, json: String) -> Result<u8, Failure> {
    let call = tool_call(wired, name, json)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let explained = runtime.block_on(wired.host.explain(&wired.session, call));
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    match explained {
        Ok(explanation) => print(&policy_text::explain(&explanation), SUCCESS),
        Err(error) => print(&wired.session.dialect.render_error(&error), ERROR_REPLY),
    }
}

fn audit(state: &Path, command: AuditCommand) -> Result<u8, Failure> {
    match command {
        AuditCommand::Show { json, follow } => show(state, json, follow),
        AuditCommand::Head => {
            let Verified { records, hash, .. } = verify(state, &[])?;
            print(&format!("{records}:{hash}\n"), SUCCESS)
        }
        AuditCommand::Verify { head, heads } => {
            let known = match heads {
                Some(file) => read_known_heads(BufReader::new(File::open(file).map_err(Failure::Heads)?)),
                None => Ok(Vec::new()),
            };
            let checked = known.and_then(|known| verify(state, &known.into_iter().chain(head).collect::<Vec<_>>()));
            match checked {
                Ok(Verified { records, signed, .. }) => {
                    print(&format!("ok: {records} records, signed up to {signed}\n"), SUCCESS)
                }
                Err(Broken::Read(error)) => Err(Failure::Audit(Broken::Read(error))),
                Err(broken) => print(&format!("broken: {broken}\n"), ERROR_REPLY),
            }
        }
    }
}

/// Prints records until there are no more, or for ever.
fn show(state: &Path, json: bool, follow: bool) -> Result<u8, Failure> {
    const PAUSE: Duration = Duration::from_millis(200);
    let mut shown = 0;
    loop {
        let mut number = 0;
        let mut out = std::io::stdout().lock();
        let printed = read_records(state, |line| {
            number += 1;
            if number <= shown {
                return Ok(());
            }
            if json { writeln!(out, "{line}") } else { writeln!(out, "{}", for_people(line)) }
        });
        printed.and_then(|()| out.flush()).map_err(Failure::Output)?;
        drop(out);
        shown = number;
        if !follow {
            return Ok(SUCCESS);
        }
        std::thread::sleep(PAUSE);
    }
}

/// A record in one line of text.
fn for_people(line: &str) -> String {
    let Ok(record) = serde_json::from_str::<Value>(line) else { return line.to_owned() };
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    let paths = record["touches"].as_array().into_iter().flatten();
    let paths = paths.map(|touch| format!("{} {}", touch["verb"].as_str().unwrap_or(""), touch["path"]));
    let about = record["about"].as_str().map(|about| format!("{about:?}"));
    let what = paths.chain(about).collect::<Vec<_>>().join(", ");
    let words = [text("ts"), record["seq"].to_string(), text("moment"), text("tool"), what, text("error")];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ")
}

fn tools(wired: &Wired, format: Format) -> String {
    let catalog = &wired.session.catalog;
    let json = |tools| serde_json::to_string_pretty(&Value::Array(tools)).unwrap_or_default();
    match format {
        Format::Openai => json(catalog.openai_tools()),
        Format::Functions => json(catalog.openai_functions()),
        Format::Prompt => prompt(&wired.session, &wired.settings),
        Format::List => {
            let width = catalog.list().map(|tool| tool.name.len()).max().unwrap_or(0);
            let line = |name: &str, text: &str| format!("{name:width$}  {}", first_sentence(text));
            catalog.list().map(|tool| line(&tool.name, &tool.description)).collect::<Vec<_>>().join("\n")
        }
    }
}

fn standard_input(most: u64) -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().lock().take(most.saturating_add(1)).read_to_string(&mut text).map_err(Failure::Input)?;
    if text.len() as u64 > most {
        return Err(Failure::TooMuchInput(most));
    }
    Ok(text)
}

/// Programs get the bytes of the reply and no others; a person also gets their prompt on a new line.
fn print(text: &str, code: u8) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    let end = if out.is_terminal() && !text.ends_with('\n') { "\n" } else { "" };
    write!(out, "{text}{end}").and_then(|()| out.flush()).map_err(Failure::Output)?;
    Ok(code)
}

impl Voice {
    /// The program's own.
    fn real() -> Self {
        let at_terminal = std::io::stdout().is_terminal();
        let can_talk = at_terminal && std::io::stdin().is_terminal();
        Self { out: Box::new(std::io::stdout()), err: Box::new(std::io::stderr()), at_terminal, can_talk }
    }
}

/// Standard error is for people; if they closed it, there is nobody to tell.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "ringfence: {text}");
}

/// An error with its causes, for the person in charge.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

impl CommonOptions {
    fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            workspace: self.workspace.clone(),
            dialect: self.dialect,
            preset: if self.read_only { Some(Preset::ReadOnly) } else { self.preset },
            allow: self.allow_tool.clone(),
            deny: self.deny_tool.clone(),
            mounts: self.mount.clone(),
            agent: self.agent.clone(),
            run: self.run.clone(),
            graph: self.graph.clone(),
            approve: self.approve,
        }
    }
}

fn known_head(text: &str) -> Result<KnownHead, String> {
    let parsed = text.trim().split_once(':').and_then(|(number, hash)| Some((number.parse().ok()?, hash)));
    match parsed {
        Some((number @ 1.., hash)) if hash.len() == 64 => Ok(KnownHead { number, hash: hash.to_owned() }),
        _ => Err("it looks like what `ringfence audit head` prints".to_owned()),
    }
}

fn time(text: &str) -> Result<String, String> {
    match humantime::parse_rfc3339_weak(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("it is a time such as `2026-01-31T12:00:00Z`".to_owned()),
    }
}

fn dialect(name: &str) -> Result<Dialect, String> {
    Dialect::named(name).ok_or_else(|| one_of(Dialect::ALL.map(Dialect::name)))
}

fn approve(name: &str) -> Result<Approve, String> {
    Approve::named(name).ok_or_else(|| one_of(Approve::ALL.map(Approve::name)))
}

fn bit(name: &str) -> Result<Bit, String> {
    Bit::named(name).ok_or_else(|| one_of(Bit::ALL.map(Bit::name)))
}

fn preset(name: &str) -> Result<Preset, String> {
    Preset::named(name).ok_or_else(|| one_of(Preset::ALL.map(Preset::name)))
}

fn one_of<const N: usize>(names: [&str; N]) -> String {
    format!("it is one of {}", names.join(", "))
}
