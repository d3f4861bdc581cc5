//! MCP session: a client's session with the host, and its protocol state.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use axum::http::request::Parts;
use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{AuthScope, CallLimits, Host, Principal, Session};
use rmcp::RoleServer;
use rmcp::model::ErrorData;
use rmcp::service::RequestContext;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::app::session::live::{LiveSession, TokenSessions};
use crate::mcp::client_info::ProtocolEra;
use crate::mcp::deferred::DeferredCalls;
use crate::mcp::tools::ToolResultFormat;
use crate::process::messages::{error_chain, print_error};
use crate::store::tokens::TokenIdentity;

/// A session of an HTTP client ends when it was idle for this long; of one whose protocol has no sessions, its background jobs
/// end.
pub(super) const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);

/// State of the client's roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum McpRootsState {
    Unknown,
    Known,
}

/// A live session with the protocol state of its client.
#[derive(Debug)]
pub(super) struct McpSession {
    pub(super) live: Arc<LiveSession>,
    pub(super) deferred: DeferredCalls,
    /// Roots that the session is narrowed to.
    pub(super) roots: AsyncMutex<McpRootsState>,
}

impl McpSession {
    pub(super) fn new(live: Arc<LiveSession>) -> Arc<Self> {
        let roots = AsyncMutex::new(McpRootsState::Unknown);
        Arc::new(Self { live, deferred: DeferredCalls::default(), roots })
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.live.session
    }

    /// Bytes that a message to the client may have.
    pub(super) fn max_message_bytes(&self) -> usize {
        usize::try_from(self.session().limits.reply_bytes).unwrap_or(usize::MAX)
    }
}

impl Drop for McpSession {
    fn drop(&mut self) {
        if !self.deferred.is_empty()
            && let Err(error) = self.live.withdraw_requests()
        {
            print_error(&format!("cannot withdraw the approval requests of a session: {}", error_chain(&error)));
        }
    }
}

/// The authenticated token of a client.
#[derive(Clone, Debug)]
pub(super) struct McpTokenId {
    /// The id of the token.
    token: Arc<str>,
    name: Arc<str>,
    /// Answers that its client gives count as relayed from a person, and not as the agent's own.
    may_relay: bool,
}

impl McpTokenId {
    pub(super) fn new(owner: &TokenIdentity) -> Self {
        Self {
            token: Arc::clone(&owner.id),
            name: Arc::clone(&owner.name),
            may_relay: owner.has_scope(AuthScope::Relay),
        }
    }

    fn from_context(context: &RequestContext<RoleServer>) -> Option<&Self> {
        context.extensions.get::<Parts>()?.extensions.get()
    }
}

/// Sessions of HTTP clients.
#[derive(Clone, Debug)]
pub(super) struct McpSessions {
    /// Template of a session.
    template: Arc<Session>,
    limits: CallLimits,
    form: ToolResultFormat,
    /// The workspace, by a name that no other directory has.
    workspace_id: Arc<str>,
    tokens: TokenSessions,
    /// Of those whose protocol has no sessions: one each.
    stateless: Arc<StatelessSessions>,
    host: Host,
}

/// Stateless sessions by token.
type StatelessSessions = Mutex<HashMap<Arc<str>, StatelessSession>>;

/// The session of a token whose clients open none.
#[derive(Debug)]
struct StatelessSession {
    session: Arc<McpSession>,
    last_use: Instant,
    /// A task ends its background jobs when it is idle.
    is_watched: bool,
}

impl McpSessions {
    pub(super) fn new(app: &App, limits: CallLimits, form: ToolResultFormat, tokens: TokenSessions) -> Self {
        let (template, workspace_id) = (Arc::clone(&app.session), Arc::from(app.workspace_id.as_str()));
        Self { template, limits, form, workspace_id, tokens, stateless: Arc::default(), host: app.host.clone() }
    }

    /// Opens a session of a client.
    fn open_session(&self, client: &McpTokenId, id: String) -> Arc<McpSession> {
        let limits = self.limits.clone();
        let session = Session { limits, ..self.template.for_principal(id, Principal::agent(&*client.name)) };
        let session = self.form.apply_to(session);
        McpSession::new(self.tokens.open(&client.token, &self.workspace_id, &self.host, session))
    }

    /// The one stateless session of a token. There are as many as there are tokens.
    fn stateless_session(&self, client: &McpTokenId) -> Arc<McpSession> {
        let mut mcp_sessions = self.stateless.lock();
        let entry = mcp_sessions.entry(Arc::clone(&client.token)).or_insert_with(|| StatelessSession {
            session: self.open_session(client, format!("http-{}", client.token)),
            last_use: Instant::now(),
            is_watched: false,
        });
        entry.last_use = Instant::now();
        if !std::mem::replace(&mut entry.is_watched, true) {
            let watched = Arc::downgrade(&self.stateless);
            tokio::spawn(end_idle_tools(watched, Arc::clone(&client.token), SESSION_IDLE));
        }
        Arc::clone(&entry.session)
    }
}

/// Ends the background jobs of a stateless session that no request used for this long: no client says that it is over. Returns then, or when the server is over; the next request starts it again.
async fn end_idle_tools(sessions: Weak<StatelessSessions>, token: Arc<str>, idle: Duration) {
    loop {
        let left = {
            let Some(sessions) = sessions.upgrade() else { return };
            let mut sessions = sessions.lock();
            let Some(entry) = sessions.get_mut(&token) else { return };
            // A request in flight has the session too.
            let is_in_use = Arc::strong_count(&entry.session) > 1;
            match idle.saturating_sub(entry.last_use.elapsed()) {
                left if !left.is_zero() => left,
                _ if is_in_use => idle,
                _ => {
                    entry.is_watched = false;
                    return entry.session.live.end_tools();
                }
            }
        };
        sleep(left).await;
    }
}

/// Source of a connection's session.
#[derive(Debug)]
pub(super) enum McpSessionSource {
    /// There is one client, and it is known.
    Stdio(Arc<McpSession>),
    /// An authenticated HTTP client.
    Http(Box<McpHttpConnection>),
}

/// An authenticated HTTP connection.
#[derive(Debug)]
pub(super) struct McpHttpConnection {
    pub(super) sessions: McpSessions,
    /// The token whose connection it is, where it has a session of its own.
    pub(super) session: OnceLock<(Arc<str>, Arc<McpSession>)>,
}

impl McpSessionSource {
    /// The session that a request belongs to.
    pub(super) fn session(
        &self,
        era: ProtocolEra,
        context: &RequestContext<RoleServer>,
    ) -> Result<Arc<McpSession>, ErrorData> {
        let guest = match self {
            Self::Stdio(mcp_session) => return Ok(Arc::clone(mcp_session)),
            Self::Http(guest) => guest,
        };
        let client = McpTokenId::from_context(context);
        let client = client.ok_or_else(|| ErrorData::internal_error("the request was not authenticated", None))?;
        if era == ProtocolEra::Stateless {
            return Ok(guest.sessions.stateless_session(client));
        }
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|_| ErrorData::internal_error("the system's random number generator failed", None))?;
        let id = format!("http-{:016x}", u64::from_ne_bytes(bytes));
        let new = || (Arc::clone(&client.token), guest.sessions.open_session(client, id));
        match guest.session.get_or_init(new) {
            (owner, mcp_session) if *owner == client.token => Ok(Arc::clone(mcp_session)),
            _ => Err(ErrorData::invalid_request("this session belongs to another token", None)),
        }
    }

    /// Whether the client's own answer to an approval request counts. On standard input and output the user started the
    /// client; over HTTP the client is the agent, unless its token says otherwise.
    pub(super) fn may_relay(&self, context: &RequestContext<RoleServer>) -> bool {
        match self {
            Self::Stdio(_) => true,
            Self::Http(_) => McpTokenId::from_context(context).is_some_and(|client| client.may_relay),
        }
    }

    /// Template of the sessions here.
    pub(super) fn template(&self) -> &Session {
        match self {
            Self::Stdio(mcp_session) => mcp_session.session(),
            Self::Http(guest) => &guest.sessions.template,
        }
    }

    /// The session that ends with this connection, if one does.
    pub(super) fn own_session(&self) -> Option<&McpSession> {
        match self {
            Self::Stdio(mcp_session) => Some(mcp_session),
            Self::Http(guest) => guest.session.get().map(|(_, mcp_session)| mcp_session.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ringfence_kernel::{
        CallContext, Dialect, PhasedTool, Preview, Ticket, ToolBinding, ToolError, ToolPhaseResult, ToolPlan,
        ToolRegistry,
    };
    use ringfence_testkit::host::{test_host_config, test_session};
    use serde_json::{Map, Value};

    use super::*;

    /// Counts the sessions that ended.
    struct EndCounter(Arc<AtomicUsize>);

    impl PhasedTool for EndCounter {
        type Args = Map<String, Value>;
        type Prepared = ();
        type Outcome = String;

        fn plan(&self, _: Self::Args, _: &CallContext<'_>) -> Result<ToolPlan<()>, ToolError> {
            Ok(ToolPlan { accesses: Vec::new(), prepared: () })
        }

        fn preview(&self, (): &mut (), _: &CallContext<'_>) -> Result<Preview, ToolError> {
            Ok(Preview::new("", ""))
        }

        fn run_phase(&self, (): (), _: &Ticket<'_>) -> Result<ToolPhaseResult<String, ()>, ToolError> {
            Ok(ToolPhaseResult::Done(String::new()))
        }

        fn end_session(&self, _: &str) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn jobs_of_a_stateless_session_end_when_no_request_uses_it() {
        let ended = Arc::<AtomicUsize>::default();
        let mut registry = ToolRegistry::new();
        let binding = ToolBinding::standard::<Map<String, Value>, String>("count");
        registry.register(EndCounter(Arc::clone(&ended)), [binding]).unwrap();
        let session = Arc::new(test_session(&registry, Dialect::Standard));
        let in_use = McpSession::new(LiveSession::new(session, Host::new(test_host_config())));
        let token: Arc<str> = "tok.1".into();
        let entry = StatelessSession { session: Arc::clone(&in_use), last_use: Instant::now(), is_watched: true };
        let sessions = Arc::new(StatelessSessions::new(HashMap::from([(Arc::clone(&token), entry)])));
        let watch = end_idle_tools(Arc::downgrade(&sessions), Arc::clone(&token), Duration::ZERO);
        tokio::pin!(watch);
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(watch.as_mut().poll(cx).is_pending())).await;
        assert!(first && ended.load(Ordering::SeqCst) == 0, "a request has it");
        drop(in_use);
        watch.await;
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        assert!(!sessions.lock()[&token].is_watched, "the next request watches it again");
    }
}
