//! Server commands: `ringfence mcp`, `ringfence serve`, and `ringfence token` for their access tokens.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use ringfence_kernel::{AuditSink, AuthScope};
use ringfence_sandbox::limit_malloc_arenas;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::{ApiBuilder, ApiConfig};
use crate::app::{App, AppError, build_mcp_app, workspace_directory};
use crate::approval::approver_for;
use crate::approval::tty::{TtyApprover, stderr_is_terminal};
use crate::cli::CliError;
use crate::cli::approvals::CommandOutcome;
use crate::cli::args::seconds;
use crate::codec::io_text::IoText;
use crate::config::{AppSettings, CliFlags, Environment};
use crate::http::listener::{self, ConnectionLimits, UnauthenticatedLimits};
use crate::http::request_source::RequestSourceCheck;
use crate::http::request_source::{CidrBlock, PublicUrl, RequestSourceOptions, TrustedProxies};
use crate::mcp::install::clients::{ClientSettingsDirs, McpClientApp};
use crate::mcp::install::plan;
use crate::mcp::{CANCEL_GRACE, McpFrontend, McpHttpShared, ToolResultFormat};
use crate::process::messages::print_error;
use crate::process::signals::ShutdownSignals;
use crate::store::SqliteStore;
use crate::store::tokens::TokenStore;

/// More than a token has requests at once, since some clients keep a connection beside them.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits {
    total: 2048,
    per_token: 384,
    head_timeout: Duration::from_secs(30),
    unauthenticated: UnauthenticatedLimits { total: 256, per_address: 64, head_timeout: Duration::from_secs(10) },
};

const DEFAULT_ADDRESS: &str = "127.0.0.1:7431";

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// The address to listen on; port 0 picks a free port
    #[arg(long, visible_alias = "listen", value_name = "IP:PORT", default_value = DEFAULT_ADDRESS)]
    address: SocketAddr,
    /// Also accept requests from web pages of this origin, such as `http://localhost:6274` (repeatable)
    #[arg(long, value_name = "ORIGIN")]
    origin: Vec<String>,
    /// The URL at which a reverse proxy serves this server, such as `https://rf.example.org`
    #[arg(long, value_name = "URL")]
    public_url: Option<PublicUrl>,
    /// Trust `Forwarded` and `X-Forwarded-*` headers from this reverse proxy (repeatable)
    #[arg(long, value_name = "CIDR")]
    trusted_proxy: Vec<CidrBlock>,
    /// How long a call waits for approval before it is deferred and its client must call again
    #[arg(long, value_name = "SECONDS", default_value_t = 25, value_parser = seconds)]
    wait: u64,
    /// Requests per second allowed per token
    #[arg(long, value_name = "REQUESTS", default_value_t = 1000, value_parser = requests)]
    rate: u32,
    /// Return structured content with output schemas, for programs, instead of plain text for models
    #[arg(long)]
    structured: bool,
    /// Print the link to the web UI even if standard error is not a terminal. Anyone who sees the link can sign in as you
    #[arg(long)]
    print_link: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Add this server to a client's settings: shows the change, and writes it with `--yes`
    Install {
        /// The client to configure
        client: McpClientApp,
        /// Write the change
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print it; it cannot be shown again
    New {
        /// A name for the token, such as the agent's
        name: String,
        /// What the token may do (repeatable); any scope but `call` requires confirmation at this terminal
        #[arg(
            long, value_name = "SCOPE", default_values_t = [ScopeArg(AuthScope::Call)],
            value_parser = PossibleValuesParser::new(AuthScope::ALL.map(AuthScope::name)).try_map(ScopeArg::parse)
        )]
        scope: Vec<ScopeArg>,
    },
    /// Print a one-time sign-in link to the web UI of a running server; requires confirmation at this terminal
    Link {
        /// The address that the server listens on
        #[arg(long, value_name = "IP:PORT", default_value = DEFAULT_ADDRESS)]
        address: SocketAddr,
        /// The server's `--public-url`
        #[arg(long, value_name = "URL", conflicts_with = "address")]
        public_url: Option<PublicUrl>,
    },
    /// List the names of all tokens
    List,
    /// Revoke a token; takes effect with the next request
    Revoke {
        /// The token's name, from `ringfence token list`
        name: String,
    },
}

/// Serves until the client closes its side, or a signal comes.
pub(crate) fn serve_mcp(
    settings: AppSettings,
    environment: &Environment,
    wait: Duration,
    form: ToolResultFormat,
) -> Result<CommandOutcome, CliError> {
    check_client_directory(&settings, environment)?;
    let front = McpFrontend::new(wait).with_form(form);
    let (front, app) = build_frontend(settings, environment, front, None)?;
    run_until_signal(async |stop| front.serve_stdio(&app, stop).await)?;
    Ok(CommandOutcome::Print(String::new()))
}

/// An entry for every project has the client's own directory as its workspace. That of a client without a project open is
/// mostly the home directory, and all of it would be given to a model then.
fn check_client_directory(settings: &AppSettings, environment: &Environment) -> Result<(), CliError> {
    let workspace = settings.workspace.as_deref().map(str::trim).unwrap_or_default();
    if workspace.is_empty() || workspace.starts_with(['/', '~']) {
        return Ok(());
    }
    let Ok(directory) = environment.current.join(workspace).canonicalize() else { return Ok(()) };
    let home = environment.home.as_ref().and_then(|home| home.canonicalize().ok());
    match directory {
        directory if directory.parent().is_none() => Err(CliError::NotAProject("the root directory")),
        directory if Some(&directory) == home.as_ref() => Err(CliError::NotAProject("the home directory")),
        _ => Ok(()),
    }
}

/// Shows what would be written for a client, or writes it.
pub(crate) fn install_client(
    settings: &AppSettings,
    environment: &Environment,
    command: McpCommand,
) -> Result<CommandOutcome, CliError> {
    let McpCommand::Install { client, yes } = command;
    let workspace = workspace_directory(settings, environment)?;
    // The client is another program: our own name for ourselves would be its own there.
    let program = environment.program.canonicalize().unwrap_or_else(|_| environment.program.clone());
    let change = plan(client, &program, ClientSettingsDirs::from_environment(environment, Some(&workspace)))?;
    let shown = change.describe();
    if !yes && !change.is_up_to_date() {
        return Ok(CommandOutcome::Print(format!(
            "{shown}\nNothing was written; run again with `--yes` to write it.\n"
        )));
    }
    change.write()?;
    Ok(CommandOutcome::Print(shown))
}

/// Serves until a signal comes.
pub(crate) fn serve_http(
    settings: AppSettings,
    flags: CliFlags,
    environment: &Environment,
    options: ServeOptions,
) -> Result<CommandOutcome, CliError> {
    let ServeOptions { address, origin, public_url, trusted_proxy, wait, rate, structured, print_link } = options;
    let (tokens, wait) = (TokenStore::new(Arc::new(SqliteStore::new(&settings.state))), Duration::from_secs(wait));
    let ingredients = ApiConfig { flags, environment: environment.clone(), tokens: tokens.clone(), wait, rate };
    let api = ApiBuilder::new(ingredients);
    let proxies = TrustedProxies(trusted_proxy.into());
    let source = RequestSourceOptions { public_url: public_url.clone(), origins: origin, proxies };
    let server = HttpServer { address, source, tokens: tokens.clone() };
    let front_end = McpFrontend::new(wait).with_form(result_form(structured));
    let (front, app) = build_frontend(settings, environment, front_end, Some(api.tap()))?;
    let listens = |address| {
        print_error(&format!("serving http://{address}/mcp"));
        if let Some(warning) = plain_http_warning(address, public_url.as_ref()) {
            print_error(&format!("warning: {warning}"));
        }
        if !print_link && !stderr_is_terminal() {
            print_error("run `ringfence token link` at a terminal for a link to the web UI");
            return;
        }
        match tokens.create_login_code() {
            Ok(code) => print_error(&format!(
                "open the web UI (one-time link): {}",
                login_link(&server_url(address, public_url.as_ref()), &code)
            )),
            Err(error) => print_error(&format!("cannot create a link to the web UI: {error}")),
        }
    };
    run_until_signal(async |stop| server.run(&front, &app, api, stop, listens).await)??;
    Ok(CommandOutcome::Print(String::new()))
}

/// The API, its web UI and MCP, behind one listener.
#[derive(Debug)]
struct HttpServer {
    address: SocketAddr,
    source: RequestSourceOptions,
    tokens: TokenStore,
}

impl HttpServer {
    /// Serves until `stop` is cancelled. Calls `listens` with the address once it listens.
    async fn run(
        self,
        front: &McpFrontend,
        app: &App,
        api: ApiBuilder,
        stop: CancellationToken,
        listens: impl FnOnce(SocketAddr),
    ) -> Result<(), ServeError> {
        let listener = TcpListener::bind(self.address).await?;
        let address = listener.local_addr()?;
        let (source, proxies) = (RequestSourceCheck::new(address, self.source.clone()), self.source.proxies);
        let shared = McpHttpShared {
            tokens: self.tokens,
            source: source.clone(),
            rate: api.rate(),
            sessions: api.token_sessions(),
        };
        let mcp = front.http_router(app, shared, &stop);
        let api = api.open(app, source, stop.clone()).await?;
        let router = mcp.merge(api.router.clone());
        listens(address);
        let serving = listener::serve(listener, router, CONNECTION_LIMITS, proxies, stop.clone());
        let ended = async {
            stop.cancelled().await;
            tokio::time::sleep(CANCEL_GRACE).await;
        };
        tokio::select! {
            () = serving => {}
            // A client that holds a connection open does not keep the server running.
            () = ended => {}
        }
        Ok(())
    }
}

/// Failure to start the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("cannot listen on the address: {}", IoText(.0))]
    Listen(#[from] std::io::Error),
    #[error(transparent)]
    Wire(#[from] AppError),
}

/// The warning about tokens on unencrypted connections, if it applies.
fn plain_http_warning(address: SocketAddr, public_url: Option<&PublicUrl>) -> Option<String> {
    match public_url {
        Some(url) if !url.is_encrypted() => {
            Some(format!("{} is plain HTTP: tokens are sent unencrypted; use an https URL", url.origin()))
        }
        Some(_) => None,
        None if address.ip().is_loopback() => None,
        None => Some(format!(
            "{address} is plain HTTP and not loopback: tokens are sent unencrypted, and the web UI cannot be reached by any \
             other name; use a reverse proxy with TLS and set `--public-url https://NAME`"
        )),
    }
}

/// URL of the server for a browser.
fn server_url(address: SocketAddr, public_url: Option<&PublicUrl>) -> String {
    let port = address.port();
    match (public_url, address) {
        (Some(url), _) => url.origin(),
        (None, SocketAddr::V4(v4)) if v4.ip().is_unspecified() => format!("http://127.0.0.1:{port}"),
        (None, SocketAddr::V6(v6)) if v6.ip().is_unspecified() => format!("http://[::1]:{port}"),
        (None, address) => format!("http://{address}"),
    }
}

fn login_link(origin: &str, code: &str) -> String {
    format!("{origin}/#login={code}")
}

pub(crate) fn run_token_command(
    settings: &AppSettings,
    environment: &Environment,
    command: TokenCommand,
) -> Result<CommandOutcome, CliError> {
    let tokens = TokenStore::new(Arc::new(SqliteStore::new(&settings.state)));
    let confirm = |shown: &str| {
        let terminal = TtyApprover::new(settings, environment);
        terminal.confirm(shown, "create it?").map_err(|_| CliError::NotInteractive)
    };
    Ok(CommandOutcome::Print(match command {
        TokenCommand::New { name, scope } => {
            let scopes: BTreeSet<AuthScope> = scope.into_iter().map(|ScopeArg(scope)| scope).collect();
            if scopes.iter().any(|scope| *scope != AuthScope::Call) {
                let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
                if !confirm(&format!("token `{name}` with scopes: {}\n", names.join(", ")))? {
                    return Ok(CommandOutcome::Unanswered);
                }
            }
            tokens.create(&name, scopes)? + "\n"
        }
        TokenCommand::Link { address, public_url } => {
            if !confirm("a one-time link to the web UI; the first to open it is signed in as you\n")? {
                return Ok(CommandOutcome::Unanswered);
            }
            login_link(&server_url(address, public_url.as_ref()), &tokens.create_login_code()?) + "\n"
        }
        TokenCommand::List => tokens.list()?,
        TokenCommand::Revoke { name } => {
            tokens.revoke(&name)?;
            format!("revoked {name}\n")
        }
    }))
}

fn requests(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected a number of requests per second".to_owned())
}

/// A scope as it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScopeArg(AuthScope);

impl std::fmt::Display for ScopeArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl ScopeArg {
    fn parse(name: String) -> Result<Self, &'static str> {
        AuthScope::from_name(&name).map(Self).ok_or("unknown scope")
    }
}

/// The form of results that a flag asks for.
pub(crate) fn result_form(structured: bool) -> ToolResultFormat {
    if structured { ToolResultFormat::Structured } else { ToolResultFormat::Plain }
}

fn build_frontend(
    settings: AppSettings,
    environment: &Environment,
    front: McpFrontend,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<(McpFrontend, App), CliError> {
    limit_malloc_arenas();
    let approver = approver_for(&settings, || front.approver());
    let app = build_mcp_app(settings, environment, approver, front.roots(), tap)?;
    app.print_warnings();
    Ok((front, app))
}

fn run_until_signal<T>(work: impl AsyncFnOnce(CancellationToken) -> T) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let done = runtime.block_on(async {
        let stop = CancellationToken::new();
        if let Ok(signals) = ShutdownSignals::install() {
            tokio::spawn(signals.cancel_on_signal(stop.clone()));
        }
        work(stop).await
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    Ok(done)
}
