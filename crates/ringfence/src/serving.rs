//! The commands that serve agents: `ringfence mcp`, `ringfence serve`, and `ringfence token` for who may come.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Subcommand};
use ringfence_kernel::{AuditSink, Scope};
use ringfence_sandbox::bound_memory;
use tokio_util::sync::CancellationToken;

use crate::api::{Before, Ingredients};
use crate::approve::by_setting;
use crate::cli::{Failure, complain, warn_of};
use crate::config::{Environment, Flags, Settings};
use crate::in_charge::Done;
use crate::mcp::clients::{Client, Places};
use crate::mcp::install::{Setting, plan};
use crate::mcp::{Front, Listening};
use crate::signals::Signals;
use crate::terminal::{Terminal, is_watched};
use crate::tokens::Tokens;
use crate::wire::{Wired, wire_mcp, workspace_of};

const DEFAULT_ADDRESS: &str = "127.0.0.1:7431";

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, visible_alias = "listen", value_name = "IP:PORT", default_value = DEFAULT_ADDRESS)]
    address: SocketAddr,
    /// A page that may call, such as `http://localhost:6274`, beside those of this server.
    #[arg(long, value_name = "ORIGIN")]
    origin: Vec<String>,
    /// How long a call waits for a person before its client is told to come again.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    wait: u64,
    /// How many requests a second each token may make.
    #[arg(long, value_name = "REQUESTS", default_value_t = 1000)]
    rate: u32,
    /// Print the link to the page also where standard error is no terminal. Whoever reads it is you.
    #[arg(long)]
    print_link: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Put this server into the settings of a client: shows the change, and writes it with `--yes`.
    Install {
        client: Client,
        /// Write it.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token for an agent of this name, and print it this once.
    New {
        name: String,
        /// What it is good for: call, approve, undo or admin. More than `call` needs a person at this terminal.
        #[arg(long, value_name = "SCOPE", value_parser = scope, default_values_t = [Named(Scope::Call)])]
        scope: Vec<Named>,
    },
    /// Print a link that opens the page of a server that runs, logged in, once. Needs a person at this terminal.
    Link {
        /// Where the server listens.
        #[arg(long, value_name = "IP:PORT", default_value = DEFAULT_ADDRESS)]
        address: SocketAddr,
    },
    /// Print the names of the tokens that there are.
    List,
    /// Take one back, from the next request on.
    Revoke { name: String },
}

/// Serves until the client closes its side, or a signal comes.
pub(crate) fn mcp(settings: Settings, environment: &Environment, wait: Duration) -> Result<Done, Failure> {
    let (front, wired) = front(settings, environment, wait, None)?;
    serving(async |stop| front.serve_stdio(&wired, stop).await)?;
    Ok(Done::Print(String::new()))
}

/// Shows what would be written for a client, or writes it.
pub(crate) fn install(settings: &Settings, environment: &Environment, command: McpCommand) -> Result<Done, Failure> {
    let McpCommand::Install { client, yes } = command;
    let workspace = workspace_of(settings, environment)?;
    // The client is another program: our own name for ourselves would be its own there.
    let program = environment.program.canonicalize().unwrap_or_else(|_| environment.program.clone());
    let setting = Setting { program: &program, workspace: &workspace };
    let change = plan(client, &setting, Places::of(environment, Some(&workspace)))?;
    let shown = change.shown();
    if !yes {
        return Ok(Done::Print(format!("{shown}\nNothing was written; the same with `--yes` writes it.\n")));
    }
    change.write()?;
    Ok(Done::Print(shown))
}

/// Serves until a signal comes.
pub(crate) fn serve(
    settings: Settings,
    flags: Flags,
    environment: &Environment,
    options: ServeOptions,
) -> Result<Done, Failure> {
    let ServeOptions { address, origin, wait, rate, print_link } = options;
    let (tokens, wait) = (Tokens::new(&settings.state), Duration::from_secs(wait));
    let ingredients = Ingredients { flags, environment: environment.clone(), tokens: tokens.clone(), wait, rate };
    let api = Before::new(ingredients);
    let listening = Listening { address, origins: origin, tokens: tokens.clone() };
    let (front, wired) = front(settings, environment, wait, Some(api.tap()))?;
    let listens = |address| {
        complain(&format!("serving http://{address}/mcp"));
        if !print_link && !is_watched() {
            complain("`ringfence token link` at a terminal makes a link to the page");
            return;
        }
        match tokens.make_code() {
            Ok(code) => complain(&format!("the page, once: {}", link(address, &code))),
            Err(error) => complain(&format!("there is no link to the page: {error}")),
        }
    };
    serving(async |stop| front.serve_http(&wired, listening, api, stop, listens).await)??;
    Ok(Done::Print(String::new()))
}

fn link(address: SocketAddr, code: &str) -> String {
    format!("http://{address}/#login={code}")
}

pub(crate) fn token(settings: &Settings, environment: &Environment, command: TokenCommand) -> Result<Done, Failure> {
    let tokens = Tokens::new(&settings.state);
    let confirm = |shown: &str| {
        let terminal = Terminal::new(settings, environment);
        terminal.confirm(shown, "make it?").map_err(|_| Failure::NobodyHere)
    };
    Ok(Done::Print(match command {
        TokenCommand::New { name, scope } => {
            let scopes: BTreeSet<Scope> = scope.into_iter().map(|Named(scope)| scope).collect();
            if scopes.iter().any(|scope| *scope != Scope::Call) {
                let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
                if !confirm(&format!("a token `{name}` for: {}\n", names.join(", ")))? {
                    return Ok(Done::Nothing);
                }
            }
            tokens.make(&name, scopes)? + "\n"
        }
        TokenCommand::Link { address } => {
            if !confirm("a link to the page, for whoever opens it first\n")? {
                return Ok(Done::Nothing);
            }
            link(address, &tokens.make_code()?) + "\n"
        }
        TokenCommand::List => tokens.list()?,
        TokenCommand::Revoke { name } => {
            tokens.revoke(&name)?;
            format!("revoked {name}\n")
        }
    }))
}

/// A scope as it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named(Scope);

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

fn scope(name: &str) -> Result<Named, String> {
    let names = || Scope::ALL.map(Scope::name).join(", ");
    Scope::named(name).map(Named).ok_or_else(|| format!("it is one of {}", names()))
}

fn front(
    settings: Settings,
    environment: &Environment,
    wait: Duration,
    tap: Option<Box<dyn AuditSink>>,
) -> Result<(Front, Wired), Failure> {
    bound_memory();
    let front = Front::new(wait);
    let approver = by_setting(&settings, || front.approver());
    let wired = wire_mcp(settings, environment, approver, front.roots(), tap)?;
    warn_of(&wired);
    Ok((front, wired))
}

fn serving<T>(work: impl AsyncFnOnce(CancellationToken) -> T) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let done = runtime.block_on(async {
        let stop = CancellationToken::new();
        if let Ok(signals) = Signals::take() {
            tokio::spawn(signals.cancel(stop.clone()));
        }
        work(stop).await
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    Ok(done)
}
