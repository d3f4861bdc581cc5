//! Front matter fuzzing: reading never panics, and an update changes nothing else.

use ringfence_fuzz::FuzzTarget;
use serde_json::{Map, Value, json};

use crate::{FrontMatter, FrontMatterError, FrontMatterUpdate, apply, yaml_mapping};

const TOKENS: &[&str] = &[
    "---\n",
    "...\n",
    ": ",
    "- ",
    "  - ",
    "# note\n",
    "stepsCompleted:",
    "artifacts: []",
    "variables: {}",
    "variables:\n  a: 1\n",
    "decisionLog:",
    "currentNodeId: n\n",
    "updatedAt: x\n",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "|\n  ",
    ">-\n  ",
    "\"\\u263a\"",
    "''",
    "{a: 1,",
    "[1,",
    "]",
    "}",
    "? ",
    "~",
    "%YAML 1.2\n",
    "\r\n",
    "\t",
    "null",
    "0x1f",
];

/// One of several updates, with these words.
fn update(choice: u8, word: &str) -> FrontMatterUpdate {
    let (one, none) = (vec![word.to_owned()], Vec::new);
    let mut update = FrontMatterUpdate::default();
    if choice & 1 != 0 {
        update.steps_completed_append = one.clone();
    }
    update.artifacts_append = if choice & 2 != 0 { one } else { none() };
    if choice & 4 != 0 {
        update.variables_set = Map::from_iter([(word.to_owned(), json!({"x": [word, 1, null]}))]);
    }
    if choice & 8 != 0 {
        update.decision_log_append = vec![Map::from_iter([("why".to_owned(), Value::from(word))])];
    }
    update.current_node_id = (choice & 16 != 0).then(|| word.to_owned());
    update.updated_at = (choice & 32 != 0).then(|| "2026-01-01T00:00:00Z".to_owned());
    update
}

/// Keys of updates.
const KEYS: [&str; 6] = ["stepsCompleted", "artifacts", "variables", "decisionLog", "currentNodeId", "updatedAt"];

fn cause(error: &FrontMatterError) -> String {
    let error = error.to_string();
    error.split_whitespace().filter(|word| word.parse::<u64>().is_err()).take(12).collect()
}

#[test]
fn an_update_says_what_it_should_and_leaves_the_rest() {
    FuzzTarget::new("front-matter", env!("CARGO_MANIFEST_DIR")).tokens(TOKENS).check(|bytes| {
        // The first byte selects the update, the first line has its value.
        let (&choice, rest) = bytes.split_first().unwrap_or((&63, b""));
        let rest = String::from_utf8_lossy(rest);
        let (word, text) = rest.split_once('\n').unwrap_or(("w", &rest));
        yaml_mapping(text);
        let front = FrontMatter::read(text).map_err(|error| cause(&error))?;
        let said = [front.opening, front.block, front.closing, front.body].concat();
        assert_eq!(said, text, "the parts are not the file");
        let before = front.to_json();
        let update = update(choice, word);
        let updated = apply(text, &update).map_err(|error| cause(&error))?;
        let after = FrontMatter::read(&updated).unwrap();
        assert_eq!(after.body, front.body);
        assert_eq!(after.opening, front.opening);
        let now = after.to_json();
        for (key, value) in before.iter().filter(|(key, _)| !KEYS.contains(&key.as_str())) {
            assert_eq!(now.get(key), Some(value), "{key} changed");
        }
        // Comments are kept.
        let comments = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("# ")).count();
        if !front.block.contains(['|', '>', '"', '\'']) {
            assert!(comments(after.block) >= comments(front.block), "a comment is gone");
        }
        if choice & 16 != 0 {
            assert_eq!(now.get("currentNodeId"), Some(&Value::from(word)));
        }
        if choice & 4 != 0 {
            assert_eq!(now["variables"][word]["x"][0], word);
        }
        // Once more, what is there already is not added again, but for the log.
        let again = apply(&updated, &FrontMatterUpdate { decision_log_append: Vec::new(), ..update }).unwrap();
        assert_eq!(again, updated);
        Ok::<_, String>((choice & 63, updated.len().abs_diff(text.len()).min(64)))
    });
}
