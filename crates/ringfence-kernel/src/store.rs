//! What outlives a call: the requests that wait for a person.
//!
//! A request is in the store before anyone is asked and leaves it with its answer, so that a front can show
//! what is pending and a store on disk can bring it back after a restart.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::{ApprovalRequest, ApprovalResponse};

/// The store is gone; nothing may be asked without it.
#[derive(Debug, thiserror::Error)]
#[error("the store cannot be used")]
pub struct StoreLost(#[source] pub std::io::Error);

/// Keeps pending requests.
pub trait Store: Send + Sync + fmt::Debug {
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreLost>;
    fn close_request(&self, id: &str, response: &ApprovalResponse) -> Result<(), StoreLost>;
    fn pending(&self) -> Result<Vec<ApprovalRequest>, StoreLost>;
}

/// A store that ends with its process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    pending: Mutex<BTreeMap<String, ApprovalRequest>>,
}

impl Store for MemoryStore {
    fn open_request(&self, request: &ApprovalRequest) -> Result<(), StoreLost> {
        self.lock().insert(request.id.clone(), request.clone());
        Ok(())
    }

    fn close_request(&self, id: &str, _: &ApprovalResponse) -> Result<(), StoreLost> {
        self.lock().remove(id);
        Ok(())
    }

    fn pending(&self) -> Result<Vec<ApprovalRequest>, StoreLost> {
        Ok(self.lock().values().cloned().collect())
    }
}

impl MemoryStore {
    /// A panic elsewhere cannot leave the map half changed: each change is one call.
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, ApprovalRequest>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
