//! Workflow guard: a run's `workflow.md` changes only along the graph of its workflow.
//!
//! New contents are parsed, then checked against the schema of the front matter, then against the graph, in this order
//! and before anything is on disk. With no graph selected, the first two are all.
//!
//! Not here: asking this rule (`ringfence-fs`), and how front matter is read (`ringfence-front-matter`).

mod graph;
mod schema;

use std::collections::BTreeSet;

use ringfence_front_matter::FrontMatter;
use ringfence_fs::{ChangeRule, GuardedChange, RunStateMount};
use ringfence_kernel::{ErrorKind, ToolError};
use serde_json::{Map, Value};

pub use graph::{WorkflowGraph, WorkflowGraphError, WorkflowGraphSource};

use self::schema::{WorkflowSchema, violations};

/// The mount that has the state of a run.
pub const STATE_ALIAS: &str = "state";

/// That mount, as the file tools have to know it.
pub const RUN_STATE: RunStateMount = RunStateMount {
    alias: STATE_ALIAS,
    log_directory: "logs",
    absence_hint: "it belongs to a run: start with `--run ID`",
};

/// The file that a run keeps its place in.
pub const WORKFLOW_FILE: &str = "workflow.md";

/// The rule about `workflow.md`.
#[derive(Debug)]
pub struct WorkflowGuard {
    /// Where the graph is, if one was selected. It is read for every change: what cannot be read refuses.
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

/// What a `workflow.md` says about its run.
#[derive(Debug, Default)]
struct WorkflowState {
    steps_completed: Vec<String>,
    current_node: String,
}

impl WorkflowState {
    fn read(bytes: &[u8], shown: &str) -> Result<Self, ToolError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| ToolError::new(ErrorKind::Frontmatter, format!("`{shown}` is not UTF-8 text")))?;
        let front = FrontMatter::read(text).map_err(|error| error.to_tool_error(shown))?.to_json();
        let broken = violations(WorkflowSchema::FrontMatter, &Value::Object(front.clone()));
        if let Some((first, _)) = broken.split_first() {
            let mut message = format!("the front matter of `{shown}` is not valid: {first}");
            if broken.len() > 1 {
                message.push_str(&format!(", and {} more", broken.len() - 1));
            }
            return Err(ToolError::new(ErrorKind::Schema, message).detail("errors", broken));
        }
        Ok(Self { steps_completed: strings(&front, "stepsCompleted"), current_node: string(&front, "currentNodeId") })
    }

    /// Steps that were completed stay completed.
    fn check_steps_kept(&self, new: &Self, shown: &str) -> Result<(), ToolError> {
        let kept: BTreeSet<&str> = new.steps_completed.iter().map(String::as_str).collect();
        let mut removed: Vec<&str> = self.steps_completed.iter().map(String::as_str).collect();
        removed.retain(|step| !kept.contains(step));
        if removed.is_empty() {
            return Ok(());
        }
        let message =
            format!("stepsCompleted of `{shown}` can only grow; steps that would be removed: {}", removed.len());
        Err(ToolError::new(ErrorKind::Schema, message).detail("removed", removed))
    }
}

fn string(front: &Map<String, Value>, key: &str) -> String {
    front.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn strings(front: &Map<String, Value>, key: &str) -> Vec<String> {
    let items = front.get(key).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}
