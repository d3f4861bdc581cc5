//! JSON schemas of front matter and graph, and their violations in words.

use std::sync::LazyLock;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use ringfence_kernel::sanitize_line;
use serde_json::Value;

/// Most violations that are reported.
const MOST_VIOLATIONS: usize = 10;

/// Schema of a workflow file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkflowSchema {
    FrontMatter,
    Graph,
}

static FRONT_MATTER: LazyLock<Option<Validator>> = LazyLock::new(|| compile(include_str!("front_matter.schema.json")));
static GRAPH: LazyLock<Option<Validator>> = LazyLock::new(|| compile(include_str!("graph.schema.json")));

/// Violations of a schema, a sentence each, without the values. Empty if there are none.
pub(super) fn violations(shape: WorkflowSchema, value: &Value) -> Vec<String> {
    let validator = match shape {
        WorkflowSchema::FrontMatter => &*FRONT_MATTER,
        WorkflowSchema::Graph => &*GRAPH,
    };
    match validator {
        Some(validator) => validator.iter_errors(value).take(MOST_VIOLATIONS).map(|error| describe(&error)).collect(),
        // A schema of ours that does not compile must not let anything through; a test keeps it from happening.
        None => vec!["the schema itself is invalid".to_owned()],
    }
}

fn compile(schema: &str) -> Option<Validator> {
    let schema = serde_json::from_str(schema).ok()?;
    jsonschema::options().should_validate_formats(true).build(&schema).ok()
}

/// A violation in one line of limited length: keys are untrusted.
fn describe(error: &ValidationError<'_>) -> String {
    const LONGEST: usize = 300;
    let said = sanitize_line(&explain(error));
    let cut = &said[..said.floor_char_boundary(LONGEST)];
    if cut.len() < said.len() { format!("{cut}…") } else { said }
}

fn explain(error: &ValidationError<'_>) -> String {
    let place = error.instance_path().to_string();
    let place = place.trim_start_matches('/');
    let at = |problem: String| if place.is_empty() { problem } else { format!("`{place}` {problem}") };
    match error.kind() {
        ValidationErrorKind::Required { property } => at(format!("is missing {property}")),
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            at(format!("has unknown properties: {}", unexpected.join(", ")))
        }
        ValidationErrorKind::Pattern { pattern } => at(format!("must match {pattern}")),
        ValidationErrorKind::Format { format } => at(format!("must be a {format}")),
        ValidationErrorKind::Enum { options } => at(format!("must be one of {options}")),
        ValidationErrorKind::MinLength { .. } => at("must not be empty".to_owned()),
        // The library's own words, with the value left out.
        _ if place.is_empty() => error.masked_with("it").to_string(),
        _ => error.masked_with(format!("`{place}`")).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{WorkflowSchema, violations};

    #[test]
    fn both_schemas_compile_and_say_what_is_wrong() {
        let good = json!({"schemaVersion": "1.1", "workflowType": "w", "stepsCompleted": [], "currentNodeId": ""});
        assert_eq!(violations(WorkflowSchema::FrontMatter, &good), [""; 0]);
        let graph = json!({"schemaVersion": "1.1", "entryNodeId": "a", "edges": [],
            "nodes": [{"id": "a", "type": "step", "file": "steps/a.md"}]});
        assert_eq!(violations(WorkflowSchema::Graph, &graph), [""; 0]);
    }
}
