//! The command line: what each command of `command.rs` does.
//!
//! The reply goes to standard output exactly as a model would get it. Exit code 0 is a success reply, 1 an error
//! reply, 2 bad usage or config.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use ringfence_fs::{Broken, KnownHead, Verified, read_known_heads, read_records, verify};
use ringfence_kernel::{
    Assurance, DeskError, Fatal, Reply, StoreLost, ToolCall, visible, visible_json, visible_line, visible_whole,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::acp::{Pipes, acp};
use crate::agent::{DemoError, NoModel, SessionError, Voice, agent, demo};
use crate::approve::{at_terminal, nobody};
use crate::command::{
    AuditCommand, ChangesCommand, Cli, Command, FirstSteps, Format, PolicyCommand, Typed, WorkflowCommand,
};
use crate::config::{ConfigError, Environment, Flags, RunCode, Settings, load};
use crate::doctor::examine;
use crate::foreign::check;
use crate::in_charge::{Done, approvals, distrust, grants, trust};
use crate::init::{InitError, init};
use crate::manual::{ManualError, completions, manual};
use crate::mcp::ServeError;
use crate::mcp::clients::{Places, find};
use crate::mcp::install::InstallError;
use crate::prompt::{first_sentence, prompt};
use crate::serving::{install, mcp, result_form, serve, token};
use crate::sessions_text::sessions;
use crate::signals::Signals;
use crate::tokens::TokenError;
use crate::tool_listing::full_listing;
use crate::trust::Offered;
use crate::waiting::Waiting;
use crate::wire::{WireError, Wired, new_workflow, wire, wire_for_person, workspace_of};
use crate::{changes_text, policy_text};

const SUCCESS: u8 = 0;
const ERROR_REPLY: u8 = 1;
const BAD_USAGE: u8 = 2;

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
    #[error(
        "the client started this server in {0}, which is not a project: start the client in a project, or name one with \
         `--workspace DIR`"
    )]
    NotAProject(&'static str),
    #[error("there is no prompt, and no terminal to talk at: `ringfence agent PROMPT`")]
    NoPrompt,
    #[error(transparent)]
    Model(#[from] NoModel),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Demo(#[from] DemoError),
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Manual(#[from] ManualError),
    #[error("the runtime cannot start: {0}")]
    Runtime(std::io::Error),
    #[error("the reply cannot be printed: {0}")]
    Output(std::io::Error),
}

/// Runs the program.
/// Fails where the program has other rights than whoever started it: as a setuid or setgid file it would read config, start
/// programs and change files for its owner at the word of anybody.
pub fn refuse_elevation() -> Option<ExitCode> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    if getuid() == geteuid() && getgid() == getegid() {
        return None;
    }
    complain(
        "this file is setuid or setgid, and ringfence does not run with rights that its user does not have; `chmod ug-s` it",
    );
    Some(ExitCode::from(BAD_USAGE))
}

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
    let flags = cli.options.flags();
    match cli.command {
        Typed::First(command) => first_steps(command, &flags, &environment),
        Typed::Command(command) => command_with(load(&flags, &environment)?, command, flags, &environment),
    }
}

/// What needs no config, and is none the worse for a wrong one.
fn first_steps(command: FirstSteps, flags: &Flags, environment: &Environment) -> Result<u8, Failure> {
    match command {
        FirstSteps::Demo(options) => demo(environment, &options, Voice::real()),
        FirstSteps::Init(options) => tell(init(flags, environment, &options)?),
        FirstSteps::Completions { shell } => print(&completions(shell)?, SUCCESS),
        FirstSteps::Man { directory } => tell(manual(&directory)?),
    }
}

fn command_with(settings: Settings, command: Command, flags: Flags, environment: &Environment) -> Result<u8, Failure> {
    for warning in &settings.warnings {
        complain(&format!("warning: {warning}"));
    }
    if let Some(note) = settings.workspace_source.note().filter(|_| command.works_in_workspace()) {
        complain(note);
    }
    match command {
        Command::Call { tool, json } => {
            let approver = at_terminal(&settings, environment);
            let settings = Settings { run_code: RunCode { waiting_jails: 0, ..settings.run_code }, ..settings };
            let wired = wire(settings, environment, approver)?;
            warn_of(&wired);
            call(&wired, tool, json)
        }
        Command::Agent(options) => agent(settings, environment, options, Voice::real()),
        Command::Acp(options) => {
            let pipes = Pipes { input: Box::new(std::io::stdin()), output: Box::new(std::io::stdout()) };
            acp(settings, environment, options, pipes).map(|()| SUCCESS)
        }
        Command::Doctor { json } => {
            let waiting = Waiting::on("looking at this machine");
            let workspace = workspace_of(&settings, environment).ok();
            let clients = find(Places::of(environment, workspace.as_deref()));
            let (text, well) = examine(
                &environment.program,
                settings.run_code.fallback,
                &clients,
                &check(&settings, environment),
                json,
            );
            drop(waiting);
            print(&(text + "\n"), if well { SUCCESS } else { ERROR_REPLY })
        }
        Command::Mcp { command: None, wait, structured } => {
            tell(mcp(settings, environment, Duration::from_secs(wait), result_form(structured))?)
        }
        Command::Mcp { command: Some(command), .. } => tell(install(&settings, environment, command)?),
        Command::Serve(options) => tell(serve(settings, flags, environment, options)?),
        Command::Token { command } => tell(token(&settings, environment, command)?),
        Command::Sessions { command } => tell_safely(sessions(&settings, environment, command)?),
        Command::Tools { format } => print(&(tools(&unasked(settings, environment)?, format) + "\n"), SUCCESS),
        Command::Approvals { command } => tell(approvals(&settings, environment, command)?),
        Command::Policy { command: PolicyCommand::Explain { tool, json, when } } => {
            let wired = unasked(settings, environment)?;
            when.into_iter().for_each(|bit| wired.session.bits.raise(bit));
            explain(&wired, tool, json)
        }
        Command::Policy { command: PolicyCommand::Show } => {
            print(&policy_text::show(&unasked(alone(settings), environment)?.settings.rules()), SUCCESS)
        }
        Command::Changes(command) => {
            changes(&wire_for_person(settings, environment, Assurance::Person, None)?, command)
        }
        Command::Policy { command: PolicyCommand::Grants { command } } => {
            tell(grants(&settings, environment, command)?)
        }
        Command::Policy { command: PolicyCommand::Trust { revoke } } => {
            let wired = wire(alone(settings), environment, Box::new(nobody()))?;
            tell(if revoke { distrust(&wired)? } else { trust(&wired, environment)? })
        }
        Command::Audit { command } => audit(&settings.state, command),
        Command::Workflow { command: WorkflowCommand::New } => {
            print(&(new_workflow(&settings, environment)? + "\n"), SUCCESS)
        }
    }
}

/// Makes the call that the command stands for, and says in plain words what came of it.
fn changes(wired: &Wired, command: ChangesCommand) -> Result<u8, Failure> {
    let (tool, arguments, form): (_, _, fn(&Value) -> String) = match command {
        ChangesCommand::Log { session, json: true } => {
            ("list_changes", json!({"session": session}), |value| visible_json(&value.to_string()) + "\n")
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
    let _waiting = Waiting::on(&visible_line(&name));
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
    let verify = |heads: &[KnownHead]| {
        let _waiting = Waiting::on("reading the audit log");
        verify(state, heads)
    };
    match command {
        AuditCommand::Show { json, follow } => show(state, json, follow),
        AuditCommand::Head => {
            let Verified { records, hash, .. } = verify(&[])?;
            print(&format!("{records}:{hash}\n"), SUCCESS)
        }
        AuditCommand::Verify { head, heads } => {
            let known = match heads {
                Some(file) => read_known_heads(BufReader::new(File::open(file).map_err(Failure::Heads)?)),
                None => Ok(Vec::new()),
            };
            let checked = known.and_then(|known| verify(&known.into_iter().chain(head).collect::<Vec<_>>()));
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
            if json { writeln!(out, "{}", visible_json(line)) } else { writeln!(out, "{}", for_people(line)) }
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
    let Ok(record) = serde_json::from_str::<Value>(line) else { return visible_line(line) };
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    let paths = record["touches"].as_array().into_iter().flatten();
    let real = |touch: &Value| touch["real"].as_str().map(|real| format!(" (that is {real:?})")).unwrap_or_default();
    let paths = paths.map(|touch| format!("{} {}{}", touch["verb"].as_str().unwrap_or(""), touch["path"], real(touch)));
    let about = record["about"].as_str().map(|about| format!("{about:?}"));
    let what = paths.chain(about).collect::<Vec<_>>().join(", ");
    let count = record["count"].as_u64().map(|count| count.to_string()).unwrap_or_default();
    let words = [text("ts"), record["seq"].to_string(), text("moment"), text("tool"), what, count, text("error")];
    let line = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ");
    // Callers make up names, and terminals obey what is in them.
    visible_line(&line)
}

fn tools(wired: &Wired, format: Format) -> String {
    let catalog = &wired.session.catalog;
    let json = |tools| serde_json::to_string_pretty(&Value::Array(tools)).unwrap_or_default();
    match format {
        Format::Openai => json(catalog.openai_tools()),
        Format::Functions => json(catalog.openai_functions()),
        Format::Full => json(full_listing(wired)),
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

/// Programs get the bytes of the reply and no others. A person also gets their prompt on a new line, and whatever it is,
/// nothing in it that a terminal would obey.
fn print(text: &str, code: u8) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    let text = match out.is_terminal() {
        true => Cow::Owned(visible_whole(text) + if text.ends_with('\n') { "" } else { "\n" }),
        false => Cow::Borrowed(text),
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)?;
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

/// Standard error is for people; if they closed it, there is nobody to tell. What is said can have words of strangers in it,
/// such as a line of a workspace's own file.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "ringfence: {}", visible(text));
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
