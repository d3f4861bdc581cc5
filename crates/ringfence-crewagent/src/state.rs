//! The state of a run, as the front matter of its `workflow.md` has it.

use std::collections::BTreeSet;

use ringfence_front_matter::FrontMatter;
use ringfence_kernel::{ErrorKind, ToolError};
use serde_json::{Map, Value};

use crate::schema::{WorkflowSchema, violations};

/// The state of a run, from its `workflow.md`.
#[derive(Debug, Default)]
pub(super) struct WorkflowState {
    steps_completed: Vec<String>,
    pub(super) current_node: String,
}

impl WorkflowState {
    pub(super) fn read(bytes: &[u8], shown: &str) -> Result<Self, ToolError> {
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
    pub(super) fn check_steps_kept(&self, new: &Self, shown: &str) -> Result<(), ToolError> {
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
