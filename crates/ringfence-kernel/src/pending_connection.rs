//! Pending questions about connections, as the run that waits for them has them.
//!
//! Not here: asking (`connection_approval.rs`), and what an answer means for a connection (`connection_decider.rs`).

use std::fmt;
use std::sync::Arc;

use crate::approval::Approval;
use crate::error::ToolError;
use crate::sync::Mutex;

/// The answer to the question about a connection.
pub(crate) type ConnectionAnswer = Result<Approval, ToolError>;

/// A question about a connection. It is open until it is answered or dropped.
pub(crate) struct PendingConnection {
    answer: Arc<Mutex<Option<ConnectionAnswer>>>,
    withdraw: Option<Box<dyn FnOnce() + Send>>,
}

impl PendingConnection {
    /// A question whose answer will be put into `answer`.
    pub(crate) fn new(answer: Arc<Mutex<Option<ConnectionAnswer>>>, withdraw: impl FnOnce() + Send + 'static) -> Self {
        Self { answer, withdraw: Some(Box::new(withdraw)) }
    }

    /// A question that cannot be asked.
    pub(crate) fn refused(error: ToolError) -> Self {
        Self { answer: Arc::new(Mutex::new(Some(Err(error)))), withdraw: None }
    }

    pub(crate) fn answer(&self) -> Option<ConnectionAnswer> {
        self.answer.lock().clone()
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        if let Some(withdraw) = self.withdraw.take() {
            withdraw();
        }
    }
}

impl fmt::Debug for PendingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingConnection").field("answer", &self.answer).finish_non_exhaustive()
    }
}
