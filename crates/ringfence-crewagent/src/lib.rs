//! Workflow runs of crewagent: their state, the rule about it, and their logs.
//!
//! The state of a run is a mount, and the file tools know it by [`RUN_STATE`].

mod graph;
mod guard;
mod run;
mod run_log;
mod schema;
mod state;

pub use graph::{WorkflowGraph, WorkflowGraphError, WorkflowGraphSource};
pub use guard::WorkflowGuard;
pub use run::{WorkflowRunError, WorkflowStart, create_run, run_graph, run_state};
pub use run_log::WorkflowRunLog;

use ringfence_fs::RunStateMount;

/// The mount that has the state of a run.
pub const STATE_ALIAS: &str = "state";

/// The file with the state of a run.
pub const WORKFLOW_FILE: &str = "workflow.md";

/// The log of a run, in its state.
const LOG_DIRECTORY: &str = "logs";

/// The mount of a run's state, as the file tools have to know it.
pub const RUN_STATE: RunStateMount = RunStateMount {
    alias: STATE_ALIAS,
    log_directory: LOG_DIRECTORY,
    absence_hint: "it belongs to a run: start with `--workflow-run ID`",
};
