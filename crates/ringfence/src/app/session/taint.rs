//! Taint per token and workspace of a server.
//!
//! A client that may start one session may start another, and would shed the taint of the first. So all sessions of a
//! token on a workspace share their taint, in any front and dialect. A token that a person creates later starts clean,
//! also under the name of a revoked one.
//!
//! Not here: the taints (the kernel's `taint.rs`), and storing them beyond the server's lifetime: a restored session
//! counts as fully tainted.

use std::collections::HashMap;
use std::sync::Arc;

use ringfence_kernel::SessionTaint;
use ringfence_kernel::sync::Mutex;

/// Taint by token ID and workspace. There are as many entries as tokens that were used.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenTaint(Arc<Mutex<HashMap<(String, String), SessionTaint>>>);

impl TokenTaint {
    /// The taint of every session of a token on a workspace, which is identified by the unique name of its directory.
    pub(crate) fn for_token(&self, token: &str, directory: &str) -> SessionTaint {
        self.0.lock().entry((token.to_owned(), directory.to_owned())).or_default().clone()
    }
}
