//! Write transactions: records, staged replacement, batches and recovery.

pub(crate) mod batch;
pub(crate) mod directories;
pub(crate) mod guarded;
pub(crate) mod manifest;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod replace;
pub(crate) mod step;
