//! The Model Context Protocol: the tools of a session, for the agents that people already have.
//!
//! `ringfence mcp` speaks on standard input and output, and on nothing else: it opens no terminal. Clients of both eras
//! are served, those with a handshake (up to 2025-11-25) and those without (2026-07-28). It ends when its input closes.
//!
//! Not here: what a call does. Every call goes to `Host::call`.

mod approve;
mod callers;
mod client;
pub(crate) mod clients;
pub(crate) mod connections;
mod fit;
#[cfg(feature = "conformance")]
mod fixtures;
#[cfg(test)]
mod fuzz;
mod guarded;
mod http;
mod in_flight;
pub(crate) mod install;
mod instructions;
mod jsonc;
pub(crate) mod keys;
mod lines;
mod news;
mod own_tools;
mod plain;
mod put_off;
mod resources;
pub mod roots;
mod server;
mod settings_file;
mod talk;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use ringfence_fs::MountSpec;
use ringfence_kernel::{Approver, Host};
use rmcp::service::serve_directly_with_ct;
use rmcp::transport::stdio_pipes;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::approve::ThroughClient;
use self::callers::Callers;
use self::guarded::Guarded;
pub use self::http::{Listening, ServeError};
use self::in_flight::InFlight;
use self::lines::Wire;
pub(crate) use self::resources::unescaped;
use self::roots::Roots;
use self::server::Server;
use self::talk::{Source, Talk};
pub(crate) use self::tools::ResultForm;
use crate::wire::Wired;

/// What a message has beside its arguments.
pub(crate) const ENVELOPE: u64 = 64 << 10;

/// How long calls that were given up are waited for.
const LAST: Duration = Duration::from_secs(6);

/// What every server of a front shares.
#[derive(Clone, Debug)]
struct Served {
    front: Front,
    host: Host,
    mounts: Arc<[MountSpec]>,
}

impl Served {
    fn new(front: &Front, wired: &Wired) -> Self {
        Self { front: front.clone(), host: wired.host.clone(), mounts: wired.mounts.clone().into() }
    }
}

/// Clients, and the calls of theirs that are under way.
#[derive(Clone, Debug)]
pub struct Front {
    callers: Callers,
    /// How long a call waits for a person before its client is told to come again.
    patience: Duration,
    roots: Roots,
    form: ResultForm,
}

impl Front {
    pub fn new(patience: Duration) -> Self {
        Self { callers: Callers::default(), patience, roots: Roots::default(), form: ResultForm::default() }
    }

    /// Sends results in another form than plain text.
    #[must_use]
    pub(crate) fn with_form(self, form: ResultForm) -> Self {
        Self { form, ..self }
    }

    /// An approver that asks whoever made the call, as far as their client's word goes.
    pub fn approver(&self) -> Box<dyn Approver> {
        Box::new(ThroughClient { callers: self.callers.clone(), patience: self.patience })
    }

    /// What clients narrow their sessions to, for the policy that sees to it.
    pub fn roots(&self) -> Roots {
        self.roots.clone()
    }

    /// Serves one client on standard input and output until it closes them, or `stop` is told.
    pub async fn serve_stdio(&self, wired: &Wired, stop: CancellationToken) {
        let session = Arc::clone(&wired.session);
        let gone = CancellationToken::new();
        let in_flight = InFlight::default();
        let longest = usize::try_from(session.limits.argument_bytes.saturating_add(ENVELOPE)).unwrap_or(usize::MAX);
        let (input, output) = stdio_pipes();
        let wire = Wire::new(input, output, longest, in_flight.clone(), gone.clone());
        let server =
            Server::new(Served::new(self, wired), Source::Given(Talk::new(session, wired.host.clone(), None)), gone);
        let running = serve_directly_with_ct(Guarded(server), wire, None, stop.clone());
        // What it says is whether it was stopped, which is not news.
        let _ = running.waiting().await;
        stop.cancel();
        let _ = timeout(LAST, in_flight.all_over()).await;
    }
}
