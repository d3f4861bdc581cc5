//! Front matter tests: tables for reading and updating, and random cases for both.

mod appending;
mod random;
mod reading;
mod setting;
mod yaml_writer;

use expect_test::Expect;
use serde_json::{Value, json};

use crate::{FrontMatterError, FrontMatterUpdate, apply};

/// An update as the tool would get it.
fn update(json: &Value) -> FrontMatterUpdate {
    let texts = |key: &str| json.get(key).map_or_else(Vec::new, |list| serde_json::from_value(list.clone()).unwrap());
    let text = |key: &str| json.get(key).map(|text| text.as_str().unwrap().to_owned());
    FrontMatterUpdate {
        steps_completed_append: texts("stepsCompleted"),
        artifacts_append: texts("artifacts"),
        variables_set: json.get("variables").map_or_else(Default::default, |set| set.as_object().unwrap().clone()),
        decision_log_append: json
            .get("decisionLog")
            .map_or_else(Vec::new, |log| serde_json::from_value(log.clone()).unwrap()),
        current_node_id: text("currentNodeId"),
        updated_at: text("updatedAt"),
    }
}

fn apply_json(text: &str, asked: &Value) -> Result<String, FrontMatterError> {
    apply(text, &update(asked))
}

/// The block after an update, or why there is none. With CRLF it must be the same change.
fn check(block: &str, asked: Value, expected: Expect) {
    let text = format!("---\n{block}\n---\n# Body\n\n---\nstepsCompleted: [no]\n");
    let shown = match apply_json(&text, &asked) {
        Ok(updated) => {
            let with_returns = apply_json(&text.replace('\n', "\r\n"), &asked).unwrap();
            assert_eq!(with_returns, updated.replace('\n', "\r\n"));
            let updated = updated.strip_suffix("---\n# Body\n\n---\nstepsCompleted: [no]\n").unwrap();
            updated.strip_prefix("---\n").unwrap().to_owned()
        }
        Err(error) => error.to_string().replace(" of the front matter", ""),
    };
    expected.assert_eq(&shown);
}

fn steps() -> Value {
    json!({"stepsCompleted": ["b", "c"]})
}
