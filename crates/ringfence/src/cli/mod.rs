//! Command dispatch: runs the commands that `args.rs` parses.
//!
//! The reply goes to standard output exactly as a model would get it. Exit code 0 is a success reply, 1 an error
//! reply, 2 bad usage or config.

pub(crate) mod agent;
pub(crate) mod approvals;
pub(crate) mod approvals_text;
pub(crate) mod args;
pub(crate) mod changes_text;
pub(crate) mod chat;
pub(crate) mod common_options;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod gc;
pub(crate) mod init;
pub(crate) mod layers;
mod learn;
pub(crate) mod line_editor;
pub(crate) mod markdown;
pub(crate) mod observers;
mod output_file;
pub(crate) mod run;
mod run_report;
pub(crate) mod serve;
pub(crate) mod sessions;
mod why;
pub(crate) mod wrapped_run;

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ringfence_agent::ToolLoading;
use ringfence_audit::{
    AuditChainError, AuditVerification, ExternalAuditHead, RECORD_VERSION, read_known_heads, read_records,
    to_current_vocabulary, verify,
};
use ringfence_kernel::{
    Assurance, Dialect, HostError, InboxError, StoreError, ToolCall, ToolReply, sanitize_json, sanitize_line,
    sanitize_text, sanitize_untruncated,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::acp::{AcpStreams, serve_acp};
use crate::agent::tool_prompt::{first_sentence, tool_prompt};
use crate::agent::{AgentError, OpenModelError};
use crate::app::policy_text;
use crate::app::tool_listing::full_listing;
use crate::app::{App, AppError, build_app, build_person_app, create_workflow_run, workspace_directory};
use crate::approval::{deny_all, tty_approver};
use crate::cli::agent::{Console, run_agent};
use crate::cli::approvals::{CommandOutcome, approvals, distrust, grants, trust};
use crate::cli::args::{
    AuditCommand, ChangesCommand, CliArgs, CliCommand, ConfiguredCommand, PolicyCommand, StandaloneCommand,
    ToolListFormat, WorkflowCommand,
};
use crate::cli::completions::{ManualError, completions, write_man_pages};
use crate::cli::demo::{DemoError, run_demo};
use crate::cli::doctor::run_doctor;
use crate::cli::gc::collect_garbage;
use crate::cli::init::{InitError, init};
use crate::cli::layers::run_layers_command;
use crate::cli::run::run_wrapped;
use crate::cli::serve::ServeError;
use crate::cli::serve::{install_client, result_form, run_token_command, serve_http, serve_mcp};
use crate::cli::sessions::run_sessions_command;
use crate::cli::why::explain_run;
use crate::cli::wrapped_run::{WrappedRunError, in_current_directory};
use crate::codec::io_text::IoText;
use crate::config::{AppSettings, CliFlags, ConfigError, Environment, RunCodeSettings, load};
use crate::mcp::install::InstallError;
use crate::mcp::install::clients::{ClientSettingsDirs, detect_clients};
use crate::mcp_client::check_servers;
use crate::process::attach::connection::AttachError;
use crate::process::messages::{error_chain, print_error};
use crate::process::progress::ProgressIndicator;
use crate::process::signals::ShutdownSignals;
use crate::store::tokens::TokenError;
use crate::store::transcripts::SqliteTranscriptError;

const SUCCESS: u8 = 0;
const ERROR_REPLY: u8 = 1;
const BAD_USAGE: u8 = 2;

/// Failure of a command before it has a reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Audit(#[from] AuditChainError),
    #[error("cannot read the heads file: {}", IoText(.0))]
    Heads(std::io::Error),
    #[error("cannot read the audit log: {}", IoText(.0))]
    AuditRead(std::io::Error),
    #[error("cannot write the profile draft: {}", IoText(.0))]
    Draft(std::io::Error),
    #[error("{0} must be outside of the workspace, where programs cannot change it; name another file")]
    OutputInWorkspace(&'static str),
    #[error("cannot write the log of programs: {}", IoText(.0))]
    ExecLog(std::io::Error),
    #[error("the name of a profile draft must end in `.toml`")]
    DraftName,
    #[error("cannot write the report: {}", IoText(.0))]
    Report(std::io::Error),
    #[error("unknown format of a report `{0}`: use json, md or sarif")]
    ReportFormat(String),
    #[error("no run `{wanted}` in the audit log; the last ones: {known}")]
    UnknownRun { wanted: String, known: String },
    #[error("no run in the audit log; start one with `ringfence run`")]
    NoRun,
    #[error(transparent)]
    Inbox(#[from] InboxError),
    #[error("no terminal to answer at; `--yes` and `--no` require `unattended = true` in your config")]
    NoTerminal,
    #[error("this requires an interactive terminal")]
    NotInteractive,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot read the arguments from standard input: {}", IoText(.0))]
    Input(std::io::Error),
    #[error("the arguments on standard input are larger than {0} bytes")]
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
    #[error("no prompt and no terminal for a chat: use `ringfence agent PROMPT`")]
    NoPrompt,
    #[error(transparent)]
    Model(#[from] OpenModelError),
    #[error(transparent)]
    Session(#[from] SqliteTranscriptError),
    // `--resume` takes the next word as an ID, so it may be a prompt.
    #[error("this workspace has no session `{0}`; `ringfence sessions list` shows all; pass a prompt with `-p`")]
    UnknownSession(String),
    #[error(transparent)]
    Demo(#[from] DemoError),
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Run(#[from] WrappedRunError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("cannot start a detached run: {}", IoText(.0))]
    Detach(std::io::Error),
    #[error(
        "a detached run has no terminal for a review at its end; review its layer later, with `ringfence layers review ID`"
    )]
    DetachedReview,
    #[error("cannot read the review: {0}")]
    Review(String),
    #[error(transparent)]
    Manual(#[from] ManualError),
    #[error("cannot start the async runtime: {}", IoText(.0))]
    Runtime(std::io::Error),
    #[error("cannot write the reply: {}", IoText(.0))]
    Output(std::io::Error),
}

impl From<AgentError> for CliError {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::App(error) => Self::App(error),
            AgentError::Host(error) => Self::Host(error),
            AgentError::Model(error) => Self::Model(error),
            AgentError::Session(SqliteTranscriptError::Unknown(id)) => Self::UnknownSession(id),
            AgentError::Session(error) => Self::Session(error),
            AgentError::Runtime(error) => Self::Runtime(error),
        }
    }
}

/// Fails where the program has other rights than its caller: as a setuid or setgid file, or with file capabilities, it
/// would read config, start programs and change files with its own rights on behalf of any user.
pub fn refuse_elevation() -> Option<ExitCode> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    let why = if getuid() != geteuid() || getgid() != getegid() {
        "this executable is setuid or setgid; run `chmod ug-s` on it"
    } else if has_file_capabilities() {
        "this executable has file capabilities; run `setcap -r` on it"
    } else {
        return None;
    };
    print_error(&format!("refusing to run: {why}"));
    Some(ExitCode::from(BAD_USAGE))
}

/// Whether this process has capabilities from its executable. A user other than root has them from there, or from the
/// ambient set, which the caller passed on. Root has all of them anyway.
fn has_file_capabilities() -> bool {
    use rustix::thread::{capabilities, capability_is_in_ambient_set};
    if rustix::process::geteuid().is_root() {
        return false;
    }
    // Without an answer of the kernel, the executable does not count as harmless.
    let Ok(own) = capabilities(None) else { return true };
    own.permitted.iter().any(|capability| !capability_is_in_ambient_set(capability).unwrap_or(false))
}

pub fn main() -> ExitCode {
    // A panic message has no path of the build machine.
    std::panic::set_hook(Box::new(|_| print_error("internal error: please report this")));
    raise_open_files();
    let cli = CliArgs::parse_or_exit();
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            print_error(&error_chain(&failure));
            ExitCode::from(BAD_USAGE)
        }
    }
}

/// A change of many files holds several descriptors for each. The low limit that shells set is for programs that use `select`.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Under the lower one, a large change is refused.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn run(cli: CliArgs) -> Result<u8, CliError> {
    let environment = Environment::read()?;
    let flags = cli.options.flags();
    match cli.command {
        CliCommand::Standalone(command) => run_standalone(command, &flags, &environment),
        CliCommand::Configured(command) => run_configured(load(&flags, &environment)?, command, flags, &environment),
    }
}

/// Commands that need no config, and work with an invalid one.
fn run_standalone(command: StandaloneCommand, flags: &CliFlags, environment: &Environment) -> Result<u8, CliError> {
    match command {
        StandaloneCommand::Demo(options) => run_demo(environment, &options, Console::stdio()),
        StandaloneCommand::Init(options) => print_outcome(init(flags, environment, &options)?),
        StandaloneCommand::Completions { shell } => print(&completions(shell)?, SUCCESS),
        StandaloneCommand::Man { directory } => print_outcome(write_man_pages(&directory)?),
    }
}

fn run_configured(
    settings: AppSettings,
    command: ConfiguredCommand,
    flags: CliFlags,
    environment: &Environment,
) -> Result<u8, CliError> {
    let is_for_another_process =
        matches!(&command, ConfiguredCommand::Run(options) if options.is_for_another_process());
    for warning in settings.warnings.iter().filter(|_| !is_for_another_process) {
        print_error(&format!("warning: {warning}"));
    }
    let settings = match &command {
        ConfiguredCommand::Run(_) | ConfiguredCommand::Layers { .. } => in_current_directory(settings, environment),
        _ => settings,
    };
    let has_note = command.works_in_workspace() && !is_for_another_process;
    if let Some(note) = settings.workspace_source.note().filter(|_| has_note) {
        print_error(note);
    }
    match command {
        ConfiguredCommand::Call { tool, json } => {
            let approver = tty_approver(&settings, environment);
            let settings =
                AppSettings { run_code: RunCodeSettings { waiting_jails: 0, ..settings.run_code }, ..settings };
            let app = build_app(settings, environment, approver)?;
            app.print_warnings();
            call(&app, tool, json)
        }
        ConfiguredCommand::Agent(options) => run_agent(settings, environment, options, Console::stdio()),
        ConfiguredCommand::Run(options) => run_wrapped(settings, environment, *options),
        ConfiguredCommand::Layers { command } => run_layers_command(settings, environment, command),
        ConfiguredCommand::Gc(options) => collect_garbage(&settings, &options),
        ConfiguredCommand::Acp(options) => {
            let pipes = AcpStreams { input: Box::new(std::io::stdin()), output: Box::new(std::io::stdout()) };
            serve_acp(settings, environment, options, pipes)?;
            Ok(SUCCESS)
        }
        ConfiguredCommand::Doctor { json } => {
            let waiting = ProgressIndicator::start("checking this machine");
            let workspace = workspace_directory(&settings, environment).ok();
            let clients = detect_clients(ClientSettingsDirs::from_environment(environment, workspace.as_deref()));
            let (text, well) = run_doctor(
                &environment.program,
                settings.run_code.fallback,
                &clients,
                &check_servers(&settings, environment),
                json,
            );
            drop(waiting);
            print(&(text + "\n"), if well { SUCCESS } else { ERROR_REPLY })
        }
        ConfiguredCommand::Mcp { command: None, wait, structured, default_dialect } => {
            let mut settings = settings;
            settings.choose_dialect_for_client(default_dialect);
            if default_dialect.is_some() {
                print_error(&format!("tools of the dialect `{}`", settings.dialect.name()));
            }
            print_outcome(serve_mcp(settings, environment, Duration::from_secs(wait), result_form(structured))?)
        }
        ConfiguredCommand::Mcp { command: Some(command), .. } => {
            print_outcome(install_client(&settings, environment, command)?)
        }
        ConfiguredCommand::Serve(options) => print_outcome(serve_http(settings, flags, environment, options)?),
        ConfiguredCommand::Token { command } => print_outcome(run_token_command(&settings, environment, command)?),
        ConfiguredCommand::Sessions { command } => {
            print_outcome_escaped(run_sessions_command(&settings, environment, command)?)
        }
        ConfiguredCommand::Tools { format } => {
            print(&(tool_list(&app_without_approver(settings, environment)?, format) + "\n"), SUCCESS)
        }
        ConfiguredCommand::Approvals { command } => print_outcome(approvals(&settings, environment, command)?),
        ConfiguredCommand::Policy { command: PolicyCommand::Explain { tool, json, when } } => {
            let app = app_without_approver(settings, environment)?;
            when.into_iter().for_each(|bit| app.session.taint.add(bit));
            explain(&app, tool, json)
        }
        ConfiguredCommand::Policy { command: PolicyCommand::Show } => print(
            &policy_text::format_rules(
                &app_without_approver(without_mcp_servers(settings), environment)?.settings.rules(),
            ),
            SUCCESS,
        ),
        ConfiguredCommand::Changes(command) => {
            changes(&build_person_app(settings, environment, Assurance::Person, None)?, command)
        }
        ConfiguredCommand::Policy { command: PolicyCommand::Grants { command } } => {
            print_outcome(grants(&settings, environment, command)?)
        }
        ConfiguredCommand::Policy { command: PolicyCommand::Trust { revoke } } => {
            let app = build_app(without_mcp_servers(settings), environment, Box::new(deny_all()))?;
            print_outcome(if revoke { distrust(&app)? } else { trust(&app, environment)? })
        }
        ConfiguredCommand::Audit { command } => audit(&settings.state, command),
        ConfiguredCommand::Why(options) => print(&explain_run(&settings.state, &options)?, SUCCESS),
        ConfiguredCommand::Workflow { command: WorkflowCommand::New } => {
            print(&(create_workflow_run(&settings, environment)? + "\n"), SUCCESS)
        }
    }
}

/// Makes the call of a command, and prints its outcome as text.
fn changes(app: &App, command: ChangesCommand) -> Result<u8, CliError> {
    let (tool, arguments, form): (_, _, fn(&Value) -> String) = match command {
        ChangesCommand::Log { session, json: true } => {
            ("list_changes", json!({"session": session}), |value| sanitize_json(&value.to_string()) + "\n")
        }
        ChangesCommand::Log { session, json: false } => {
            ("list_changes", json!({"session": session}), changes_text::format_changes)
        }
        ChangesCommand::Diff { change } => ("show_change", json!({"change": change}), changes_text::format_diff),
        ChangesCommand::Undo { change, session, since, dry_run, force } => {
            let which =
                json!({"change": change, "session": session, "since": since, "dryRun": dry_run, "force": force});
            ("undo", which, changes_text::format_undo)
        }
        ChangesCommand::Redo { change } => ("redo", json!({"change": change}), changes_text::format_redo),
    };
    let reply = make_call(app, tool.to_owned(), arguments.to_string())?;
    let value = match reply.outcome {
        Ok(value) => value.to_value(),
        Err(error) => {
            print_error(&error.message);
            for conflict in error.details.get("conflicts").and_then(Value::as_array).into_iter().flatten() {
                let text = |key: &str| conflict[key].as_str().unwrap_or_default().to_owned();
                print_error(&format!("  {}: expected {}, found {}", text("path"), text("expected"), text("found")));
            }
            return Ok(ERROR_REPLY);
        }
    };
    let text = form(&value);
    // For a person's eyes nothing hides in it; programs get it as it is.
    print(&if std::io::stdout().is_terminal() { sanitize_text(&text) } else { text }, SUCCESS)
}

/// Without the tools of other programs, for what does not need them started.
fn without_mcp_servers(settings: AppSettings) -> AppSettings {
    AppSettings { mcp_servers: Vec::new(), ..settings }
}

/// A host that makes no call, and so needs no approver.
fn app_without_approver(settings: AppSettings, environment: &Environment) -> Result<App, AppError> {
    let app = build_app(settings, environment, Box::new(deny_all()))?;
    app.print_warnings();
    Ok(app)
}

/// Prints foreign text: sanitised on a terminal, unchanged for programs.
fn print_outcome_escaped(done: CommandOutcome) -> Result<u8, CliError> {
    print_outcome(match done {
        CommandOutcome::Print(text) if std::io::stdout().is_terminal() => CommandOutcome::Print(sanitize_text(&text)),
        done => done,
    })
}

/// Prints what came of a command.
fn print_outcome(done: CommandOutcome) -> Result<u8, CliError> {
    match done {
        CommandOutcome::Print(text) => print(&text, SUCCESS),
        CommandOutcome::Refused(why) => {
            print_error(&why);
            Ok(ERROR_REPLY)
        }
        CommandOutcome::Unanswered => Ok(ERROR_REPLY),
    }
}

/// Waits for something, unless a signal ends it first.
pub(crate) fn until_cancelled<T>(work: impl Future<Output = T>) -> Result<Option<T>, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    Ok(runtime.block_on(async {
        let cancel = CancellationToken::new();
        if let Ok(signals) = ShutdownSignals::install() {
            tokio::spawn(signals.cancel_on_signal(cancel.clone()));
        }
        tokio::select! {
            done = work => Some(done),
            () = cancel.cancelled() => None,
        }
    }))
}

fn call(app: &App, name: String, json: String) -> Result<u8, CliError> {
    let ToolCall { name, arguments, .. } = tool_call(app, name, json)?;
    let reply = make_call(app, name, arguments)?;
    print(&escape_reply(&reply.text, app.session.dialect), if reply.outcome.is_err() { ERROR_REPLY } else { SUCCESS })
}

/// A reply in which nothing hides, also where its bytes reach a terminal through a pipe. Some dialects reply in plain
/// text, in which an escape sequence would mean something else.
fn escape_reply(text: &str, dialect: Dialect) -> Cow<'_, str> {
    match dialect {
        Dialect::Standard | Dialect::Crewagent => Cow::Owned(sanitize_json(text)),
        Dialect::Miniclaw | Dialect::Claude | Dialect::Codex | Dialect::Gemini => Cow::Borrowed(text),
    }
}

/// Makes a call, unless a signal ends it first.
pub(crate) fn make_call(app: &App, name: String, arguments: String) -> Result<ToolReply, CliError> {
    let _waiting = ProgressIndicator::start(&sanitize_line(&name));
    let call = ToolCall { id: "call-1".to_owned(), name, arguments };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let reply = runtime.block_on(async {
        let cancel = CancellationToken::new();
        if let Ok(signals) = ShutdownSignals::install() {
            tokio::spawn(signals.cancel_on_signal(cancel.clone()));
        }
        app.host.call(&app.session, call, &cancel).await
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    Ok(reply?)
}

fn tool_call(app: &App, name: String, json: String) -> Result<ToolCall, CliError> {
    let arguments = if json == "-" { read_stdin(app.session.limits.argument_bytes)? } else { json };
    Ok(ToolCall { id: "call-1".to_owned(), name, arguments })
}

fn explain(app: &App, name: String, json: String) -> Result<u8, CliError> {
    let call = tool_call(app, name, json)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let explained = runtime.block_on(app.host.explain(&app.session, call));
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    match explained {
        Ok(explanation) => print(&policy_text::format_explanation(&explanation), SUCCESS),
        Err(error) => print(&escape_reply(&app.session.dialect.render_error(&error), app.session.dialect), ERROR_REPLY),
    }
}

fn audit(state: &Path, command: AuditCommand) -> Result<u8, CliError> {
    let verify = |heads: &[ExternalAuditHead]| {
        let _waiting = ProgressIndicator::start("reading the audit log");
        verify(state, heads)
    };
    match command {
        AuditCommand::Show { json, follow } => print_audit(state, json, follow),
        AuditCommand::Head => {
            let AuditVerification { records, hash, .. } = verify(&[])?;
            print(&format!("{records}:{hash}\n"), SUCCESS)
        }
        AuditCommand::Verify { head, heads } => {
            let known = match heads {
                Some(file) => read_known_heads(BufReader::new(File::open(file).map_err(CliError::Heads)?)),
                None => Ok(Vec::new()),
            };
            let checked = known.and_then(|known| verify(&known.into_iter().chain(head).collect::<Vec<_>>()));
            match checked {
                Ok(AuditVerification { records, last_signed: signed, .. }) => {
                    print(&format!("ok: {records} records, signed up to {signed}\n"), SUCCESS)
                }
                Err(AuditChainError::Read(error)) => Err(CliError::Audit(AuditChainError::Read(error))),
                Err(broken) => print(&format!("broken: {broken}\n"), ERROR_REPLY),
            }
        }
    }
}

/// Prints records until there are no more, or for ever.
fn print_audit(state: &Path, json: bool, follow: bool) -> Result<u8, CliError> {
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
            if json { writeln!(out, "{}", sanitize_json(line)) } else { writeln!(out, "{}", record_line(line)) }
        });
        printed.and_then(|()| out.flush()).map_err(CliError::Output)?;
        drop(out);
        shown = number;
        if !follow {
            return Ok(SUCCESS);
        }
        std::thread::sleep(PAUSE);
    }
}

/// A record in one line of text; as it is, if a later version wrote it.
fn record_line(line: &str) -> String {
    let record = serde_json::from_str(line).map(to_current_vocabulary).unwrap_or_default();
    if record["v"] != RECORD_VERSION {
        return sanitize_line(line);
    }
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    let paths = record["accesses"].as_array().into_iter().flatten();
    let real =
        |access: &Value| access["real"].as_str().map(|real| format!(" (resolves to {real:?})")).unwrap_or_default();
    let paths =
        paths.map(|access| format!("{} {}{}", access["action"].as_str().unwrap_or(""), access["path"], real(access)));
    let about = record["about"].as_str().map(|about| format!("{about:?}"));
    let what = paths.chain(about).collect::<Vec<_>>().join(", ");
    let count = record["count"].as_u64().map(|count| count.to_string()).unwrap_or_default();
    let words = [text("ts"), record["seq"].to_string(), text("event"), text("tool"), what, count, text("error")];
    let line = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ");
    // Callers make up names, and terminals obey what is in them.
    sanitize_line(&line)
}

fn tool_list(app: &App, format: ToolListFormat) -> String {
    let catalog = &app.session.catalog;
    let json = |tools| sanitize_json(&serde_json::to_string_pretty(&Value::Array(tools)).unwrap_or_default());
    match format {
        ToolListFormat::Openai => json(catalog.openai_tools()),
        ToolListFormat::Functions => json(catalog.openai_functions()),
        ToolListFormat::Full => json(full_listing(app)),
        ToolListFormat::Prompt => tool_prompt(&app.session, &app.settings, ToolLoading::All),
        ToolListFormat::List => {
            let width = catalog.list().map(|tool| tool.name.len()).max().unwrap_or(0);
            let line = |name: &str, text: &str| format!("{name:width$}  {}", first_sentence(text));
            catalog.list().map(|tool| line(&tool.name, tool.description())).collect::<Vec<_>>().join("\n")
        }
    }
}

fn read_stdin(most: u64) -> Result<String, CliError> {
    let mut text = String::new();
    std::io::stdin().lock().take(most.saturating_add(1)).read_to_string(&mut text).map_err(CliError::Input)?;
    if text.len() as u64 > most {
        return Err(CliError::TooMuchInput(most));
    }
    Ok(text)
}

/// Programs get the bytes of the reply and no others. A person also gets their prompt on a new line, and whatever it is,
/// nothing in it that a terminal would obey.
fn print(text: &str, code: u8) -> Result<u8, CliError> {
    let mut out = std::io::stdout().lock();
    let text = match out.is_terminal() {
        true => Cow::Owned(sanitize_untruncated(text) + if text.ends_with('\n') { "" } else { "\n" }),
        false => Cow::Borrowed(text),
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)?;
    Ok(code)
}

impl Console {
    /// The program's own.
    fn stdio() -> Self {
        let stdout_is_terminal = std::io::stdout().is_terminal();
        let is_interactive = stdout_is_terminal && std::io::stdin().is_terminal();
        Self { out: Box::new(std::io::stdout()), err: Box::new(std::io::stderr()), stdout_is_terminal, is_interactive }
    }
}
