//! Taint per token and workspace of a server.
//!
//! Whoever may begin one session may begin another, and would leave behind what the first one has seen. So all sessions
//! of a token on a workspace have the same bits, by whatever front and in whatever dialect they were begun. A token that a
//! person makes later starts clean, also under the name of a revoked one.
//!
//! Not here: what the taints are (the kernel's `taint.rs`), and keeping them after the server: a session that comes back counts
//! as having been through everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ringfence_kernel::SessionTaint;

use crate::process::lock::lock;

/// Bits by token id and workspace. There are as many as tokens have called with.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenTaint(Arc<Mutex<HashMap<(String, String), SessionTaint>>>);

impl TokenTaint {
    /// The bits of every session of a token on a workspace, which goes by the name that no other directory has.
    pub(crate) fn for_token(&self, token: &str, directory: &str) -> SessionTaint {
        lock(&self.0).entry((token.to_owned(), directory.to_owned())).or_default().clone()
    }
}
