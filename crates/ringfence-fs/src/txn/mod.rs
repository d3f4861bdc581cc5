//! Transactions on files: one log, one kind of step, one roll-back.

pub(crate) mod directories;
pub(crate) mod guarded;
pub(crate) mod manifest;
pub(crate) mod recover;
pub(crate) mod run;
pub(crate) mod stage;
pub(crate) mod step;
pub(crate) mod write;
