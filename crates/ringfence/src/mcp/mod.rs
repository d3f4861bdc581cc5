//! Model Context Protocol server: the tools of a session, for existing agents.
//!
//! `ringfence mcp` speaks on standard input and output, and on nothing else: it opens no terminal. Clients of both eras
//! are served, those with a handshake (up to 2025-11-25) and those without (2026-07-28). It ends when its input closes.
//!
//! Not here: what a call does. Every call goes to `Host::call`.

mod callers;
mod catch_panic;
mod client_info;
#[cfg(feature = "conformance")]
mod conformance;
mod deferred;
mod elicitation;
#[cfg(test)]
mod fuzz;
mod handler;
mod http;
mod in_flight;
pub(crate) mod install;
mod instructions;
mod plain_text;
mod progress;
pub(crate) mod resources;
mod session;
mod tools;
mod transport;
mod truncate;

use std::sync::Arc;
use std::time::Duration;

use ringfence_fs::MountSpec;
use ringfence_kernel::{Approver, Host};
use rmcp::service::serve_directly_with_ct;
use rmcp::transport::stdio_pipes;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::callers::WaitingMcpClients;
use self::catch_panic::CatchPanicService;
use self::elicitation::ElicitationApprover;
use self::handler::McpServerHandler;
pub(crate) use self::http::McpHttpShared;
use self::in_flight::InFlightRequests;
use self::session::{McpSession, McpSessionSource};
pub(crate) use self::tools::ToolResultFormat;
use self::transport::StdioServerTransport;
use crate::app::App;
use crate::app::roots::McpSessionRoots;
use crate::app::session::live::LiveSession;
use crate::http::ENVELOPE_BYTES;

/// Grace time of cancelled calls.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_secs(6);

/// State that every server of a front shares.
#[derive(Clone, Debug)]
struct McpServerContext {
    front: McpFrontend,
    host: Host,
    mounts: Arc<[MountSpec]>,
}

impl McpServerContext {
    fn new(front: &McpFrontend, app: &App) -> Self {
        Self { front: front.clone(), host: app.host.clone(), mounts: app.mounts.clone().into() }
    }
}

/// Clients, and the calls of theirs that are under way.
#[derive(Clone, Debug)]
pub struct McpFrontend {
    callers: WaitingMcpClients,
    /// How long a call waits for approval before it is deferred and its client must call again
    wait: Duration,
    roots: McpSessionRoots,
    form: ToolResultFormat,
}

impl McpFrontend {
    pub fn new(wait: Duration) -> Self {
        Self {
            callers: WaitingMcpClients::default(),
            wait,
            roots: McpSessionRoots::default(),
            form: ToolResultFormat::default(),
        }
    }

    /// Sends results in another form than plain text.
    #[must_use]
    pub(crate) fn with_form(self, form: ToolResultFormat) -> Self {
        Self { form, ..self }
    }

    /// An approver that asks the calling client, as far as its assurance is enough.
    pub fn approver(&self) -> Box<dyn Approver> {
        Box::new(ElicitationApprover { callers: self.callers.clone(), wait: self.wait })
    }

    /// The roots of clients' sessions, for the policy that enforces them.
    pub fn roots(&self) -> McpSessionRoots {
        self.roots.clone()
    }

    /// Serves one client on standard input and output until it closes them, or `stop` is cancelled.
    pub async fn serve_stdio(&self, app: &App, stop: CancellationToken) {
        let session = app.session.for_principal(&app.session.id, app.session.principal.clone());
        let session = Arc::new(self.form.apply_to(session));
        let gone = CancellationToken::new();
        let in_flight = InFlightRequests::default();
        let longest =
            usize::try_from(session.limits.argument_bytes.saturating_add(ENVELOPE_BYTES)).unwrap_or(usize::MAX);
        let (input, output) = stdio_pipes();
        let wire = StdioServerTransport::new(input, output, longest, in_flight.clone(), gone.clone());
        let server = McpServerHandler::new(
            McpServerContext::new(self, app),
            McpSessionSource::Stdio(McpSession::new(LiveSession::new(session, app.host.clone()))),
            gone,
        );
        let running = serve_directly_with_ct(CatchPanicService(server), wire, None, stop.clone());
        // The result is only whether it was stopped.
        let _ = running.waiting().await;
        stop.cancel();
        let _ = timeout(CANCEL_GRACE, in_flight.wait_until_idle()).await;
    }
}
