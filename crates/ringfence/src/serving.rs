//! The commands that serve agents: `ringfence mcp`, `ringfence serve`, and `ringfence token` for who may come.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Subcommand};
use ringfence_sandbox::bound_memory;
use tokio_util::sync::CancellationToken;

use crate::approve::by_setting;
use crate::cli::{Failure, complain, warn_of};
use crate::config::{Environment, Settings};
use crate::in_charge::Done;
use crate::mcp::clients::{Client, Places};
use crate::mcp::install::{Setting, plan};
use crate::mcp::{Front, Listening};
use crate::signals::Signals;
use crate::tokens::Tokens;
use crate::wire::{Wired, wire_mcp, workspace_of};

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7431")]
    address: SocketAddr,
    /// A page that may call, such as `http://localhost:6274`, beside those of this server.
    #[arg(long, value_name = "ORIGIN")]
    origin: Vec<String>,
    /// How long a call waits for a person before its client is told to come again.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    wait: u64,
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
    New { name: String },
    /// Print the names of the tokens that there are.
    List,
    /// Take one back, from the next request on.
    Revoke { name: String },
}

/// Serves until the client closes its side, or a signal comes.
pub(crate) fn mcp(settings: Settings, environment: &Environment, wait: Duration) -> Result<Done, Failure> {
    let (front, wired) = front(settings, environment, wait)?;
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
pub(crate) fn serve(settings: Settings, environment: &Environment, options: ServeOptions) -> Result<Done, Failure> {
    let ServeOptions { address, origin, wait } = options;
    let listening = Listening { address, origins: origin, tokens: Tokens::new(&settings.state) };
    listening.tokens.check_any()?;
    let (front, wired) = front(settings, environment, Duration::from_secs(wait))?;
    let listens = |address| complain(&format!("serving http://{address}/mcp"));
    serving(async |stop| front.serve_http(&wired, listening, stop, listens).await)?.map_err(Failure::Serve)?;
    Ok(Done::Print(String::new()))
}

pub(crate) fn token(settings: &Settings, command: TokenCommand) -> Result<Done, Failure> {
    let tokens = Tokens::new(&settings.state);
    Ok(Done::Print(match command {
        TokenCommand::New { name } => tokens.make(&name)? + "\n",
        TokenCommand::List => tokens.list()?,
        TokenCommand::Revoke { name } => {
            tokens.revoke(&name)?;
            format!("revoked {name}\n")
        }
    }))
}

fn front(settings: Settings, environment: &Environment, wait: Duration) -> Result<(Front, Wired), Failure> {
    bound_memory();
    let front = Front::new(wait);
    let approver = by_setting(&settings, || front.approver());
    let wired = wire_mcp(settings, environment, approver, front.roots())?;
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
