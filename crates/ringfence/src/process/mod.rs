//! Processes of this program: launching others, attaching to their runs, signals, locks, file modes.

pub(crate) mod attach;
pub(crate) mod loader_variables;
pub(crate) mod messages;
pub(crate) mod process_lock;
pub(crate) mod program_launcher;
pub(crate) mod progress;
pub(crate) mod signals;
