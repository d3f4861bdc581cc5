//! Wrapped runs: a whole agent in the jail, from its command line to the review of what it changed.
//!
//! The program works on layers; its keys stay outside; its terminal is one of the jail's own. All of it is one call of
//! `run_program` on the host, and each decision about its layer is a call of its own.
//!
//! Not here: the jail (`ringfence-sandbox`), layers (`ringfence-fs`), and the commands (`cli/run.rs`).

mod approver;
mod attach_peer;
pub(crate) mod attach_server;
#[cfg(test)]
mod attach_tests;
pub(crate) mod attached_terminal;
pub(crate) mod call_records;
mod credentials;
mod detach_key;
pub(crate) mod detached_run;
#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod fuzz;
pub(crate) mod live_checkpoints;
mod login_file;
mod login_setting;
mod logins;
mod output_filter;
mod person_terminal;
mod profile;
pub(crate) mod profile_files;
mod program_location;
#[cfg(test)]
mod relay_fixture;
mod relay_loop;
mod relay_signals;
#[cfg(test)]
mod relay_tests;
pub(crate) mod review;
pub(crate) mod review_screen;
mod run_environment;
mod run_limits;
mod run_messages;
mod run_toolchains;
mod screen_model;
mod sequence_policy;
mod terminal_modes;
mod terminal_relay;
mod toolchain_profile;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use ringfence_kernel::{Preset, ToolCall};
use ringfence_sandbox::{
    OutputStream, PROXY_PORT, PlacedFile, PublishedPort, RUN_PROGRAM, RunProgramReply, TerminalRelay, TerminalSize,
    WrappedIo, WrappedOutput, WrappedRunSetup, WrappedUser,
};
use ringfence_web::{
    InterceptedCredentials, TlsInterceptor, ca_environment, java_environment, java_trust_store, merge_ca_bundle,
};
use rustix::fs::FileType;

use crate::app::{App, AppError, build_wrapped_app, workspace_directory};
use crate::approval::tty::TtyApprover;
use crate::approval::{approver_for, deny_all};
use crate::cli::wrapped_run::approver::{OtherFrontendApprover, WrappedRunApprover};
use crate::cli::wrapped_run::attach_server::{AttachServer, AttachedRunInfo};
use crate::cli::wrapped_run::call_records::CallRecords;
use crate::cli::wrapped_run::credentials::{CredentialError, RunCredentials};
use crate::cli::wrapped_run::detached_run::open_detached_terminal;
use crate::cli::wrapped_run::logins::RunLogins;
use crate::cli::wrapped_run::person_terminal::PersonTerminal;
use crate::cli::wrapped_run::profile::{AgentProfile, NO_PROFILE};
use crate::cli::wrapped_run::profile_files::{ProfileError, is_profile_file, not_allowed};
use crate::cli::wrapped_run::program_location::{ProgramLookupError, ProgramSearch};
use crate::cli::wrapped_run::relay_signals::{SignalInbox, SignalThread};
use crate::cli::wrapped_run::run_environment::{RunEnvironment, git_config, kept_home_files, reviewed_home_files};
use crate::cli::wrapped_run::run_limits::run_limits;
use crate::cli::wrapped_run::run_messages::RunMessages;
use crate::cli::wrapped_run::run_toolchains::RunToolchains;
use crate::cli::wrapped_run::sequence_policy::FilterOptions;
use crate::cli::wrapped_run::terminal_relay::{InPlaceApprover, RelaySession};
use crate::cli::wrapped_run::toolchain_profile::{ToolchainChoice, ToolchainProfile};
use crate::codec::io_text::IoText;
use crate::config::host::{jail_settings, person_git_identity};
use crate::config::workspace::WorkspaceSource;
use crate::config::{AppSettings, Environment};
use crate::process::program_launcher::ProgramLauncher;

/// Where every jail finds certificates to trust.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Other names of the same file.
const CA_BUNDLE_ALIASES: [&str; 2] = ["/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt"];

/// The same certificates for Java.
const JAVA_TRUST_STORE: &str = "/etc/ssl/ringfence.jks";

/// The kind of terminal of a detached run whose starter has none.
const USUAL_TERMINAL: &str = "xterm-256color";

/// The size of the screen of a run without a terminal.
const PIPES_SIZE: TerminalSize = TerminalSize { rows: 50, columns: 120 };

/// Ports of each kind that a run may have.
const MAX_PORTS: usize = 8;

/// What the command line says about a run.
#[derive(Debug)]
pub(crate) struct WrappedRunOptions {
    pub(crate) profile: Option<String>,
    /// Names of toolchains, instead of those that the workspace chooses.
    pub(crate) toolchains: Vec<String>,
    pub(crate) command: Vec<OsString>,
    /// Hosts, each with a port if it is not 443.
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) published_ports: Vec<PublishedPort>,
    pub(crate) connected_ports: Vec<u16>,
    /// Whether it is to find out what the program needs: nothing is asked without a terminal.
    pub(crate) learns: bool,
    /// Gets the programs that are started.
    pub(crate) exec_log: Option<File>,
    pub(crate) memory: Option<u64>,
    pub(crate) processes: Option<u64>,
    pub(crate) disk: Option<u64>,
    pub(crate) seconds: Option<u64>,
    pub(crate) raw_terminal: bool,
    /// Longest time between two checkpoints, if there are any.
    pub(crate) checkpoints: Option<Duration>,
    /// The size of its terminal, if this process is that of a detached run.
    pub(crate) detached: Option<TerminalSize>,
}

/// A run that could not be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrappedRunError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Program(#[from] ProgramLookupError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("cannot prepare the keys of the run: {0}")]
    Interceptor(String),
    #[error("the name of the program or an argument is not UTF-8")]
    NotText,
    #[error("no home directory: set HOME")]
    NoHome,
    #[error("at most {MAX_PORTS} ports can be given with `--publish`, and with `--connect`, to one run")]
    TooManyPorts,
    #[error("port {PROXY_PORT} is that of the sandbox's own proxy; have the service listen at another port")]
    ProxyPort,
    #[error("cannot use the terminal: {}", IoText(.0))]
    Terminal(std::io::Error),
    #[error(transparent)]
    App(Box<AppError>),
}

impl From<AppError> for WrappedRunError {
    fn from(error: AppError) -> Self {
        Self::App(Box::new(error))
    }
}

/// Files of the home layer that go back into the person's home directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct HomeKeepRequest {
    pub(crate) profile: String,
    /// Patterns of what goes back without a question. Empty where nothing does.
    pub(crate) files: Vec<String>,
    /// Files that agents act on, whose changes a person reviews.
    pub(crate) reviewed: Vec<String>,
}

impl HomeKeepRequest {
    /// What a profile names for a workspace. Nothing where the config closes the person's home directory.
    fn new(profile: &AgentProfile, workspace: &Path, settings: &AppSettings) -> Self {
        let name = profile.name.clone();
        if !settings.wrapped.keep_home {
            return Self { profile: name, ..Self::default() };
        }
        let (files, reviewed) = (kept_home_files(profile, workspace), reviewed_home_files(profile, workspace));
        Self { profile: name, files, reviewed }
    }

    /// For a profile by its name.
    pub(crate) fn of_profile(
        name: &str,
        settings: &AppSettings,
        environment: &Environment,
    ) -> Result<Self, WrappedRunError> {
        let workspace = workspace_directory(settings, environment)?;
        let profile = find_profile(Some(name), "", &workspace, settings, environment)?;
        Ok(Self::new(&profile, &workspace, settings))
    }
}

/// A run that has ended, and what it recorded besides the audit log.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRun {
    pub(crate) session: String,
    /// The person's.
    pub(crate) home: PathBuf,
    pub(crate) calls: Arc<CallRecords>,
}

/// A run that is ready to start.
#[derive(Debug)]
pub(crate) struct WrappedRun {
    pub(crate) app: App,
    /// For the person, before it starts.
    pub(crate) notes: Vec<String>,
    /// What goes back into the person's home directory.
    pub(crate) home_keep: HomeKeepRequest,
    /// What is recorded of its calls.
    pub(crate) recorded: Option<RecordedRun>,
    /// The person's terminal, if the program has one.
    relay: Option<Arc<RelaySession>>,
    pub(crate) signals: Arc<SignalInbox>,
    messages: Arc<RunMessages>,
    interceptor: Option<Arc<TlsInterceptor>>,
    /// Those who attach.
    pub(crate) attachments: Arc<AttachServer>,
    /// Longest time between two checkpoints, if there are any.
    pub(crate) checkpoints: Option<Duration>,
}

impl WrappedRun {
    pub(crate) fn prepare(
        mut settings: AppSettings,
        environment: &Environment,
        mut options: WrappedRunOptions,
    ) -> Result<Self, WrappedRunError> {
        // What lands is a change of the workspace, and not one of others.
        settings.wrapped.follow_workspace &= options.checkpoints.is_none();
        // The run is in a jail of its own kind: none that is made ahead would be used.
        settings.run_code.waiting_jails = 0;
        let words = options.command.iter().map(|word| word.to_str().map(str::to_owned));
        let words: Vec<String> = words.collect::<Option<_>>().ok_or(WrappedRunError::NotText)?;
        let named = words.first().map(String::as_str).unwrap_or_default();
        let program = Path::new(named).file_name().and_then(|name| name.to_str()).unwrap_or(named).to_owned();
        let workspace = workspace_directory(&settings, environment)?;
        let profile = find_profile(options.profile.as_deref(), &program, &workspace, &settings, environment)?;
        let home = environment.home.clone().ok_or(WrappedRunError::NoHome)?;
        let toolchains = jail_settings(&settings, environment).toolchains;
        let search = ProgramSearch {
            path: environment.variables.0.get("PATH").map_or("", String::as_str).as_ref(),
            current: &environment.current,
            home: &home,
            workspace: &workspace,
            toolchains: &toolchains,
        };
        let location = search.find(named)?;
        let wanted_toolchains = find_toolchains(&options, &workspace, &settings, environment)?;
        let run_toolchains = RunToolchains::new(&wanted_toolchains, &search, environment);
        let launcher = ProgramLauncher::new(&settings, environment);
        let own =
            profile.credentials.iter().filter(|known| !settings.credentials.iter().any(|set| set.name == known.name));
        let mut wanted: Vec<_> = settings.credentials.iter().chain(own).cloned().collect();
        for credential in wanted_toolchains.iter().flat_map(|toolchain| &toolchain.credentials) {
            if !wanted.iter().any(|known| known.name == credential.name) {
                wanted.push(credential.clone());
            }
        }
        let credentials = RunCredentials::read(&wanted, environment, &launcher)?;
        let user = wrapped_user(environment, home.clone());
        let git_config = git_config(&person_git_identity(environment), &user);
        let mut run = RunEnvironment::new(&profile, &credentials, environment, git_config, &workspace);
        let home_keep = HomeKeepRequest::new(&profile, &workspace, &settings);
        let logins = RunLogins::new(&profile.logins, &home, &settings.state);
        let intercepted = InterceptedCredentials {
            bindings: credentials.bindings,
            logins: logins.bindings()?,
            ..InterceptedCredentials::default()
        };
        let interceptor = intercept(intercepted, &settings, &mut run)?;
        let inside = interceptor.as_ref().map(|interceptor| logins.inside(interceptor)).unwrap_or_default();
        run.notes.extend(inside.notes);
        run.add_logins(inside.files);
        run.notes.extend(run_toolchains.notes);
        run.files.extend(run_toolchains.files);
        // The agent's profile says more than that of a toolchain.
        for (name, value) in run_toolchains.variables {
            run.variables.entry(name).or_insert(value);
        }
        let named = profile.hosts.iter().chain(wanted.iter().flat_map(|credential| &credential.hosts));
        let named = named.chain(&inside.hosts);
        let mut hosts: Vec<String> = named.chain(&options.allowed_hosts).map(|host| with_default_port(host)).collect();
        hosts.sort();
        hosts.dedup();
        if options.detached.is_some() {
            // Who attaches has a terminal, also where the starter has none.
            run.variables.entry("TERM".to_owned()).or_insert_with(|| USUAL_TERMINAL.to_owned());
        }
        let ports = RunPorts::new(&profile, &options)?;
        let calls = CallRecords::new(options.learns, options.exec_log.take()).map(Arc::new);
        let is_running = Arc::new(AtomicBool::new(false));
        let attachments = start_attach_server(&settings, options.detached).map_err(WrappedRunError::Terminal)?;
        let viewers = options.detached.is_none().then(|| Arc::clone(&attachments));
        let (io, relay) = attach(options.raw_terminal, viewers).map_err(WrappedRunError::Terminal)?;
        let signals = match &relay {
            Some(relay) => relay.signals(),
            None => Arc::new(SignalInbox::new().map_err(WrappedRunError::Terminal)?),
        };
        let messages = Arc::new(RunMessages::new(relay.clone()));
        let arguments = profile.arguments.iter().chain(words.get(1..).unwrap_or_default());
        let command = std::iter::once(location.path.display().to_string()).chain(arguments.cloned());
        let setup = WrappedRunSetup {
            command: enter_directory(command.map(OsString::from).collect(), &environment.current, &workspace),
            program: program.clone(),
            profile: profile.name.clone(),
            workspace_path: workspace,
            identity: user,
            env: run.variables,
            files: run.files,
            home_files: run.home_files,
            toolchains: location.packages.into_iter().chain(run_toolchains.programs).collect(),
            hosts,
            host_groups: run_toolchains.host_groups,
            published_ports: ports.published,
            connected_ports: ports.connected,
            calls: calls.clone().map(|calls| calls as _),
            caches: run_toolchains.caches,
            limits: run_limits(&options, &settings),
            io,
            has_checkpoints: options.checkpoints.is_some(),
            is_running: Arc::clone(&is_running),
            signals: Arc::clone(&signals) as _,
            news: Arc::clone(&messages) as _,
            attachments: Arc::clone(&attachments) as _,
        };
        let (program, profile) = (setup.program.clone(), setup.profile.clone());
        let has_terminal = relay.is_some();
        let asked = relay.clone().filter(|_| !options.raw_terminal);
        let during = approver_for(&settings, || match asked {
            Some(relay) => Box::new(InPlaceApprover::new(relay, TtyApprover::new(&settings, environment))),
            None if options.learns => Box::new(deny_all()),
            None => Box::new(OtherFrontendApprover { announces: !has_terminal }),
        });
        let approver = Box::new(WrappedRunApprover { is_running, during });
        let app = build_wrapped_app(settings, environment, setup, interceptor.clone(), approver)?;
        let recorded = calls.map(|calls| {
            let session = app.session.id.clone();
            RecordedRun { session, home, calls }
        });
        let checkpoints = options.checkpoints;
        attachments.describe(AttachedRunInfo {
            session: app.session.id.clone(),
            program,
            profile,
            makes_checkpoints: checkpoints.is_some(),
            signals: Arc::clone(&signals),
        });
        if checkpoints.is_some() {
            signals.take_checkpoint_keys();
            run.notes.extend(preset_note(app.settings.preset));
        }
        Ok(Self {
            app,
            notes: run.notes,
            home_keep,
            recorded,
            relay,
            signals,
            messages,
            interceptor,
            attachments,
            checkpoints,
        })
    }

    /// Takes the signals of this process, for as long as the result is there. The terminal is restored when it is dropped.
    pub(crate) fn attach_person(&self) -> std::io::Result<AttachedPerson> {
        if let Some(relay) = &self.relay {
            relay.start()?;
            return Ok(AttachedPerson { relay: Some(Arc::clone(relay)), _signals: None });
        }
        let signals = SignalThread::start(Arc::clone(&self.signals))?;
        Ok(AttachedPerson { relay: None, _signals: Some(signals) })
    }

    /// Waits for logins whose new tokens are on their way.
    pub(crate) fn finish_logins(&self) {
        if let Some(interceptor) = &self.interceptor {
            interceptor.finish_token_exchanges();
        }
    }

    /// Prints what came up while the program had the terminal. The terminal is restored by now.
    pub(crate) fn print_messages(&self) {
        self.messages.print_held();
    }

    pub(crate) fn has_terminal(&self) -> bool {
        self.relay.is_some()
    }

    /// The call that runs it. It has no arguments: everything is in the setup.
    pub(crate) fn call(&self) -> ToolCall {
        ToolCall { id: "call-1".to_owned(), name: RUN_PROGRAM.to_owned(), arguments: "{}".to_owned() }
    }
}

/// What a person may not expect of checkpoints with a preset.
fn preset_note(preset: Preset) -> Option<String> {
    (preset == Preset::Ask).then(|| {
        "with the preset `ask`, only new files land while the program runs; with `--preset edits` changes and deletions do too"
            .to_owned()
    })
}

/// Where no workspace is named or found, it is the directory that the person is in.
pub(crate) fn in_current_directory(settings: AppSettings, environment: &Environment) -> AppSettings {
    if !matches!(settings.workspace_source, WorkspaceSource::Default(_)) {
        return settings;
    }
    let workspace = environment.current.to_str().map(str::to_owned);
    AppSettings { workspace, workspace_source: WorkspaceSource::Named, ..settings }
}

/// The ports of a run, from its profile and its command line.
#[derive(Debug)]
struct RunPorts {
    published: Vec<PublishedPort>,
    connected: Vec<u16>,
}

impl RunPorts {
    fn new(profile: &AgentProfile, options: &WrappedRunOptions) -> Result<Self, WrappedRunError> {
        let published: BTreeSet<_> = profile.publish.iter().chain(&options.published_ports).copied().collect();
        let connected: BTreeSet<_> = profile.connect.iter().chain(&options.connected_ports).copied().collect();
        if published.len() > MAX_PORTS || connected.len() > MAX_PORTS {
            return Err(WrappedRunError::TooManyPorts);
        }
        if connected.contains(&PROXY_PORT) || published.iter().any(|port| port.inside == PROXY_PORT) {
            return Err(WrappedRunError::ProxyPort);
        }
        Ok(Self { published: published.into_iter().collect(), connected: connected.into_iter().collect() })
    }
}

/// The profile of a run, if the machine's owner allows it.
fn find_profile(
    named: Option<&str>,
    program: &str,
    workspace: &Path,
    settings: &AppSettings,
    environment: &Environment,
) -> Result<AgentProfile, ProfileError> {
    if let Some(file) = named.filter(|named| is_profile_file(named)) {
        if !settings.wrapped.own_profiles {
            return Err(not_allowed::<AgentProfile>(file, settings.wrapped.profiles.as_ref()));
        }
        let path = environment.current.join(file);
        if std::fs::canonicalize(&path).is_ok_and(|path| path.starts_with(workspace)) {
            return Err(ProfileError::InWorkspace);
        }
    }
    let without_own = (!settings.wrapped.own_profiles).then(|| Environment { config: None, ..environment.clone() });
    let profile = AgentProfile::find(named, program, without_own.as_ref().unwrap_or(environment))?;
    let used = std::iter::once(&profile.name).chain(&profile.base);
    match used.into_iter().find(|name| !settings.wrapped.allows_profile(name)) {
        None => Ok(profile),
        Some(closed) => Err(not_allowed::<AgentProfile>(closed, settings.wrapped.profiles.as_ref())),
    }
}

/// The toolchains of a run: those of the command line, else those that the workspace has files of. Who asks for no profile
/// gets no hosts, so no toolchain either.
fn find_toolchains(
    options: &WrappedRunOptions,
    workspace: &Path,
    settings: &AppSettings,
    environment: &Environment,
) -> Result<Vec<ToolchainProfile>, ProfileError> {
    let without_own = (!settings.wrapped.own_profiles).then(|| Environment { config: None, ..environment.clone() });
    let current = std::fs::canonicalize(&environment.current).unwrap_or_else(|_| environment.current.clone());
    // From the workspace down to where the person is.
    let between = current.ancestors().filter(|directory| *directory != workspace && directory.starts_with(workspace));
    let directories: Vec<&Path> = std::iter::once(workspace).chain(between).collect();
    let choice = match (options.toolchains.as_slice(), options.profile.as_deref()) {
        ([], Some(NO_PROFILE)) => ToolchainChoice::Named(&[]),
        ([], _) => ToolchainChoice::ByFiles(&directories),
        (named, _) => ToolchainChoice::Named(named),
    };
    ToolchainProfile::find(choice, &settings.wrapped, without_own.as_ref().unwrap_or(environment))
}

/// The reply of the call, as a value.
pub(crate) fn parse_reply(value: serde_json::Value) -> Option<RunProgramReply> {
    serde_json::from_value(value).ok()
}

/// Ends TLS for the hosts of keys, and has the program trust that.
fn intercept(
    credentials: InterceptedCredentials,
    settings: &AppSettings,
    run: &mut RunEnvironment,
) -> Result<Option<Arc<TlsInterceptor>>, WrappedRunError> {
    if credentials.bindings.is_empty() && credentials.logins.is_empty() {
        return Ok(None);
    }
    let connector = crate::app::web_connector(settings);
    let interceptor = TlsInterceptor::new(credentials, connector, SystemTime::now())
        .map_err(|error| WrappedRunError::Interceptor(error.to_string()))?;
    let system =
        std::iter::once(CA_BUNDLE).chain(CA_BUNDLE_ALIASES).find_map(|path| std::fs::read_to_string(path).ok());
    let bundle = merge_ca_bundle(system.as_deref().unwrap_or_default(), interceptor.ca_certificate_pem());
    for path in std::iter::once(CA_BUNDLE).chain(CA_BUNDLE_ALIASES) {
        run.files.push(PlacedFile { path: path.into(), contents: bundle.clone().into_bytes() });
    }
    let trust_store = PlacedFile { path: JAVA_TRUST_STORE.into(), contents: java_trust_store(&bundle) };
    run.files.push(trust_store);
    run.variables.extend(ca_environment(CA_BUNDLE).into_iter().chain([java_environment(JAVA_TRUST_STORE)]));
    Ok(Some(Arc::new(interceptor)))
}

/// The server for those who attach. A detached run gets the terminal that its program is relayed to.
fn start_attach_server(settings: &AppSettings, detached: Option<TerminalSize>) -> std::io::Result<Arc<AttachServer>> {
    let (terminal, notice) = detached.map(open_detached_terminal).transpose()?.unzip();
    let server = AttachServer::start(&settings.state, detached.unwrap_or(PIPES_SIZE), terminal)?;
    notice.into_iter().for_each(|notice| server.notify_at_start(notice));
    Ok(Arc::new(server))
}

/// The terminal of the person, or pipes. `viewers` see the output too, where the terminal is not theirs.
fn attach(
    raw_terminal: bool,
    viewers: Option<Arc<AttachServer>>,
) -> std::io::Result<(WrappedIo, Option<Arc<RelaySession>>)> {
    let Some(terminal) = PersonTerminal::open() else {
        let output = Arc::new(StandardOutput { viewers });
        return Ok((WrappedIo::Pipes { input: piped_input(), output }, None));
    };
    let size = terminal.size();
    let size = TerminalSize { rows: size.ws_row, columns: size.ws_col };
    // Notices are seen; what is put on the clipboard may be pasted into a shell.
    let filter = (!raw_terminal).then_some(FilterOptions { clipboard_writes: false, notifications: true });
    let relay = Arc::new(RelaySession::new(terminal, filter, viewers)?);
    let for_jail: Arc<dyn TerminalRelay + Send + Sync> = Arc::clone(&relay) as _;
    Ok((WrappedIo::Terminal { size, relay: for_jail }, Some(relay)))
}

/// The person's signals and terminal, while the program has them.
#[derive(Debug)]
pub(crate) struct AttachedPerson {
    relay: Option<Arc<RelaySession>>,
    _signals: Option<SignalThread>,
}

impl Drop for AttachedPerson {
    fn drop(&mut self) {
        if let Some(relay) = &self.relay {
            // The terminal is restored in any case.
            let _ = relay.finish();
        }
    }
}

/// Our standard input, if it is a pipe or a file: a terminal or a socket of the host would lead out of the jail.
fn piped_input() -> Option<OwnedFd> {
    let input = rustix::stdio::stdin();
    let kind = rustix::fs::fstat(input).map(|stat| FileType::from_raw_mode(stat.st_mode)).ok()?;
    let is_plain = matches!(kind, FileType::Fifo | FileType::RegularFile);
    is_plain.then(|| input.as_fd().try_clone_to_owned().ok()).flatten()
}

/// Standard output and error of this process.
#[derive(Debug)]
struct StandardOutput {
    viewers: Option<Arc<AttachServer>>,
}

impl WrappedOutput for StandardOutput {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        // A reader that is gone is for the program to notice, which goes on without one.
        let _ = match stream {
            OutputStream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            OutputStream::Err => std::io::stderr().lock().write_all(bytes),
        };
        if let Some(viewers) = &self.viewers {
            // A terminal needs to be told that a line begins at its start.
            viewers.feed(&bytes.split_inclusive(|byte| *byte == b'\n').flat_map(as_terminal_line).collect::<Vec<u8>>());
        }
    }
}

fn as_terminal_line(line: &[u8]) -> impl Iterator<Item = u8> {
    let (text, end): (&[u8], &[u8]) = match line.strip_suffix(b"\n") {
        Some(text) => (text, b"\r\n"),
        None => (line, b""),
    };
    text.iter().chain(end).copied()
}

/// A command that starts where the person is, if that is in the workspace.
fn enter_directory(command: Vec<OsString>, current: &Path, workspace: &Path) -> Vec<OsString> {
    match std::fs::canonicalize(current) {
        Ok(current) if current != workspace && current.starts_with(workspace) => {
            let enter = ["/bin/sh", "-c", "cd -- \"$0\" && exec \"$@\""].map(OsString::from);
            enter.into_iter().chain([current.into_os_string()]).chain(command).collect()
        }
        _ => command,
    }
}

/// The person, as the program sees them. Root is a plain user inside.
fn wrapped_user(environment: &Environment, home: PathBuf) -> WrappedUser {
    const PLAIN_ID: u32 = 1000;
    let plain = |id: u32| if id == 0 { PLAIN_ID } else { id };
    let is_plain_name = |name: &&String| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let shell = environment.variables.0.get("SHELL").map(PathBuf::from).filter(|shell| shell.is_absolute());
    WrappedUser {
        name: environment.user.as_ref().filter(is_plain_name).cloned().unwrap_or_else(|| "user".to_owned()),
        home,
        shell: shell.unwrap_or_else(|| PathBuf::from("/bin/sh")),
        uid: plain(rustix::process::geteuid().as_raw()),
        gid: plain(rustix::process::getegid().as_raw()),
    }
}

/// A host with a port: that of TLS where it has none.
fn with_default_port(host: &str) -> String {
    // The colons of an address are in brackets.
    let after_address = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    if after_address.contains(':') { host.to_owned() } else { format!("{host}:443") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CliFlags, load};

    #[test]
    fn a_host_without_a_port_has_that_of_tls() {
        for (host, expected) in [
            ("api.example.org", "api.example.org:443"),
            ("api.example.org:8443", "api.example.org:8443"),
            ("[2001:db8::1]", "[2001:db8::1]:443"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(with_default_port(host), expected);
        }
    }

    #[test]
    fn the_owner_of_the_machine_closes_profiles() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("config");
        let environment =
            Environment { config: Some(config.clone()), ..Environment::isolated(directory.path(), "/proc/self/exe") };
        std::fs::create_dir_all(config.join("profiles")).unwrap();
        std::fs::write(config.join("profiles/mine.toml"), "hosts = [\"mine.example\"]\n").unwrap();
        let find = |name: &str| {
            let settings = load(&CliFlags::default(), &environment).unwrap();
            find_profile(Some(name), "", directory.path(), &settings, &environment).map(|profile| profile.name)
        };
        assert_eq!(find("mine").unwrap(), "mine");
        std::fs::create_dir_all(&environment.managed).unwrap();
        let closed = "[run]\nprofiles = [\"codex\", \"mine\"]\nown_profiles = false\n";
        std::fs::write(environment.managed.join("config.toml"), closed).unwrap();
        assert_eq!(find("codex").unwrap(), "codex");
        assert_eq!(
            find("claude").unwrap_err().to_string(),
            "the machine's managed config does not allow the profile `claude`; it allows `codex`, `mine`"
        );
        assert!(find("mine").unwrap_err().to_string().starts_with("unknown profile `mine`"));
    }
}
