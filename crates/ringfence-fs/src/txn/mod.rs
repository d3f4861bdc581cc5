//! Write transactions: locks, records, staged replacement, batches, recovery and trash.

pub(crate) mod batch;
pub(crate) mod lock;
pub(crate) mod manifest;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod replace;
pub(crate) mod trash;
