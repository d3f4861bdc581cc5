//! Callers of running calls, so that an approval request reaches the client that made the call.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use ringfence_kernel::sync::Mutex;
use rmcp::RoleServer;
use rmcp::service::Peer;
use tokio_util::sync::CancellationToken;

use crate::mcp::client_info::McpClientInfo;
use crate::mcp::progress::ProgressSender;

/// The caller that waits for a call.
#[derive(Clone, Debug)]
pub(super) struct WaitingMcpClient {
    pub(super) client: McpClientInfo,
    pub(super) peer: Peer<RoleServer>,
    /// For what there is to say meanwhile.
    pub(super) progress: ProgressSender,
    /// Cancelled when the client closed the connection.
    pub(super) closed: CancellationToken,
}

/// All of them, by session and call.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingMcpClients(Arc<Mutex<HashMap<(String, String), WaitingMcpClient>>>);

/// Keeps a caller among them until it is dropped.
#[derive(Debug)]
pub(super) struct WaitingMcpClientGuard {
    callers: WaitingMcpClients,
    key: (String, String),
}

impl WaitingMcpClients {
    pub(super) fn register(&self, session: &str, call: &str, caller: WaitingMcpClient) -> WaitingMcpClientGuard {
        let key = (session.to_owned(), call.to_owned());
        self.lock().insert(key.clone(), caller);
        WaitingMcpClientGuard { callers: self.clone(), key }
    }

    pub(super) fn find(&self, session: &str, call: &str) -> Option<WaitingMcpClient> {
        self.lock().get(&(session.to_owned(), call.to_owned())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), WaitingMcpClient>> {
        self.0.lock()
    }
}

impl Drop for WaitingMcpClientGuard {
    fn drop(&mut self) {
        self.callers.lock().remove(&self.key);
    }
}
