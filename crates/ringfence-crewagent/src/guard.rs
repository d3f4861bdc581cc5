//! Workflow guard: a run's `workflow.md` changes only along the graph of its workflow.
//!
//! New contents are parsed, then checked against the schema of the front matter, then against the graph, in this order
//! and before anything is on disk. With no graph selected, the first two are all.
//!
//! Not here: asking this rule (`ringfence-fs`), and how front matter is read (`ringfence-front-matter`).

use ringfence_fs::{ChangeRule, GuardedChange};
use ringfence_kernel::{ErrorKind, ToolError};

use crate::graph::WorkflowGraphSource;
use crate::state::WorkflowState;

/// The rule about `workflow.md`.
#[derive(Debug)]
pub struct WorkflowGuard {
    /// Location of the graph, if one was selected. It is read for every change; an unreadable one refuses the change.
    pub graph: Option<WorkflowGraphSource>,
}

impl ChangeRule for WorkflowGuard {
    fn judge(&self, change: &GuardedChange<'_>) -> Result<(), ToolError> {
        let GuardedChange { shown, before, after, by_person } = *change;
        let Some(after) = after else {
            let message = format!("`{shown}` is the state of the run; it can be changed but not removed");
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        };
        let new = WorkflowState::read(after, shown)?;
        let Some(source) = &self.graph else { return Ok(()) };
        let graph = source.load()?;
        let Some(before) = before else { return graph.check_entry(&new, shown) };
        match WorkflowState::read(before, shown) {
            Ok(old) => {
                old.check_steps_kept(&new, shown)?;
                graph.check_step(&old, &new, shown)
            }
            Err(_) if by_person => graph.check_known(&new, shown),
            Err(error) => Err(ToolError {
                message: format!("the current `{shown}` is damaged, and only a person can replace it: {error}"),
                ..error
            }),
        }
    }
}
