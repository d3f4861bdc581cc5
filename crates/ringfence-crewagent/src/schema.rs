//! Schemas of front matter and graph, and their violations in words.
//!
//! A schema is a constant, and its rules are the few that both files need: a rule that the validator does not know cannot be
//! written. Properties that a schema does not name are allowed, except where it is closed.
//!
//! Not here: JSON Schema. No schema of a file or of another program is read.

use ringfence_kernel::sanitize_line;
use serde_json::{Map, Value};

/// Most violations that are reported.
const MOST_VIOLATIONS: usize = 10;

/// Longest text of a violation, in bytes.
const LONGEST_VIOLATION: usize = 300;

/// Schema of a workflow file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkflowSchema {
    FrontMatter,
    Graph,
}

/// Violations of a schema, a sentence each, without the values. Empty if there are none.
pub(super) fn violations(shape: WorkflowSchema, value: &Value) -> Vec<String> {
    let schema = match shape {
        WorkflowSchema::FrontMatter => &FRONT_MATTER,
        WorkflowSchema::Graph => &GRAPH,
    };
    let mut validation = SchemaValidation::default();
    validation.check(schema, value);
    validation.violations
}

/// The values that a schema accepts.
enum ValueSchema {
    Any,
    Boolean,
    Text(TextRule),
    /// A list of items of one kind, with its least length.
    List(usize, &'static ValueSchema),
    Object(ObjectSchema),
}

enum TextRule {
    Any,
    NotEmpty,
    OneOf(&'static [&'static str]),
    /// A regular expression for the reader, and the same as a function.
    Pattern(&'static str, fn(&str) -> bool),
    /// RFC 3339.
    DateTime,
}

struct ObjectSchema {
    required: &'static [&'static str],
    properties: &'static [(&'static str, ValueSchema)],
    /// No other properties are allowed.
    is_closed: bool,
}

const TEXT: ValueSchema = ValueSchema::Text(TextRule::Any);
const OBJECT: ValueSchema = ValueSchema::Object(ObjectSchema { required: &[], properties: &[], is_closed: false });

/// The front matter of a run's `workflow.md`.
static FRONT_MATTER: ValueSchema = ValueSchema::Object(ObjectSchema {
    required: &["schemaVersion", "workflowType", "stepsCompleted", "currentNodeId"],
    properties: &[
        ("schemaVersion", ValueSchema::Text(TextRule::Pattern(r"^1\.1(\.[0-9]+)?$", is_supported_version))),
        ("workflowType", ValueSchema::Text(TextRule::NotEmpty)),
        ("stepsCompleted", ValueSchema::List(0, &TEXT)),
        ("currentNodeId", TEXT),
        ("runId", TEXT),
        ("project_name", TEXT),
        ("user_name", TEXT),
        ("date", TEXT),
        ("updatedAt", ValueSchema::Text(TextRule::DateTime)),
        ("variables", OBJECT),
        ("artifacts", ValueSchema::List(0, &TEXT)),
        (
            "decisionLog",
            ValueSchema::List(
                0,
                &ValueSchema::Object(ObjectSchema {
                    required: &["from", "to", "label"],
                    properties: &[("from", TEXT), ("to", TEXT), ("label", TEXT), ("reason", TEXT), ("decidedAt", TEXT)],
                    is_closed: true,
                }),
            ),
        ),
    ],
    is_closed: false,
});

/// The graph of a workflow.
static GRAPH: ValueSchema = ValueSchema::Object(ObjectSchema {
    required: &["schemaVersion", "entryNodeId", "nodes", "edges"],
    properties: &[
        ("schemaVersion", ValueSchema::Text(TextRule::NotEmpty)),
        ("entryNodeId", ValueSchema::Text(TextRule::NotEmpty)),
        ("nodes", ValueSchema::List(1, &NODE)),
        ("edges", ValueSchema::List(0, &EDGE)),
        ("metadata", OBJECT),
    ],
    is_closed: false,
});

static NODE: ValueSchema = ValueSchema::Object(ObjectSchema {
    required: &["id", "type", "file"],
    properties: &[
        ("id", ValueSchema::Text(TextRule::Pattern(r"^\S(.*\S)?$", is_trimmed_line))),
        ("type", ValueSchema::Text(TextRule::OneOf(&["step", "decision", "merge", "end", "subworkflow"]))),
        ("file", TEXT),
        ("title", TEXT),
        ("description", TEXT),
        ("agentId", TEXT),
        ("inputs", ValueSchema::List(0, &ValueSchema::Any)),
        ("outputs", ValueSchema::List(0, &ValueSchema::Any)),
    ],
    is_closed: false,
});

static EDGE: ValueSchema = ValueSchema::Object(ObjectSchema {
    required: &["from", "to", "label"],
    properties: &[
        ("id", TEXT),
        ("from", TEXT),
        ("to", TEXT),
        ("label", TEXT),
        ("isDefault", ValueSchema::Boolean),
        ("conditionText", TEXT),
        ("conditionExpr", ValueSchema::Any),
    ],
    is_closed: false,
});

fn is_supported_version(text: &str) -> bool {
    let is_number = |patch: &str| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix("1.1").is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(is_number))
}

fn is_trimmed_line(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.contains('\n')
}

/// RFC 3339, section 5.6. A leap second is one of UTC.
fn is_date_time(text: &str) -> bool {
    parse_date_time(text).is_some()
}

fn parse_date_time(text: &str) -> Option<()> {
    let number = |text: &str, most: u32| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| digits && *number <= most)
    };
    let (date, time) = text.split_once(['T', 't'])?;
    let [year, month, day] = date.splitn(3, '-').collect::<Vec<_>>().try_into().ok()?;
    let is_year = year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit());
    let (year, month) = (year.parse::<u32>().ok().filter(|_| is_year)?, number(month, 12)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        0 => return None,
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    number(day, days).filter(|day| *day > 0)?;
    let (time, offset) = match time.strip_suffix(['Z', 'z']) {
        Some(time) => (time, 0),
        None => {
            let sign = time.rfind(['+', '-'])?;
            let (hours, minutes) = time[sign + 1..].split_once(':')?;
            let offset = i64::from(number(hours, 23)? * 60 + number(minutes, 59)?);
            (&time[..sign], if time[sign..].starts_with('-') { -offset } else { offset })
        }
    };
    let [hour, minute, second] = time.splitn(3, ':').collect::<Vec<_>>().try_into().ok()?;
    let second = match second.split_once('.') {
        Some((second, fraction)) if !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit()) => {
            second
        }
        Some(_) => return None,
        None => second,
    };
    let minute_of_day = i64::from(number(hour, 23)? * 60 + number(minute, 59)?) - offset;
    let is_last_minute = minute_of_day.rem_euclid(24 * 60) == 24 * 60 - 1;
    number(second, if is_last_minute { 60 } else { 59 }).map(|_| ())
}

/// A value that is being checked.
#[derive(Default)]
struct SchemaValidation {
    /// Names and positions from the top to the value.
    path: Vec<String>,
    violations: Vec<String>,
}

impl SchemaValidation {
    fn check(&mut self, schema: &ValueSchema, value: &Value) {
        match (schema, value) {
            (ValueSchema::Any, _) | (ValueSchema::Boolean, Value::Bool(_)) => {}
            (ValueSchema::Text(rule), Value::String(text)) => self.check_text(rule, text),
            (ValueSchema::List(least, item), Value::Array(values)) => {
                if values.len() < *least {
                    self.report(format!("has fewer than {least} items"));
                }
                for (index, value) in values.iter().enumerate() {
                    self.check_below(index.to_string(), item, value);
                }
            }
            (ValueSchema::Object(schema), Value::Object(value)) => self.check_object(schema, value),
            // What is not text is not one of these texts either.
            (ValueSchema::Text(rule @ TextRule::OneOf(_)), _) => self.check_text(rule, ""),
            (schema, _) => self.report(format!("is not {}", schema.type_name())),
        }
    }

    fn check_object(&mut self, schema: &ObjectSchema, value: &Map<String, Value>) {
        for name in schema.required.iter().filter(|name| !value.contains_key(**name)) {
            self.report(format!("is missing `{name}`"));
        }
        let is_named = |name: &str| schema.properties.iter().any(|(known, _)| *known == name);
        let unknown: Vec<&str> = value.keys().map(String::as_str).filter(|name| !is_named(name)).collect();
        if schema.is_closed && !unknown.is_empty() {
            self.report(format!("has unknown properties: {}", unknown.join(", ")));
        }
        for (name, schema) in schema.properties {
            if let Some(value) = value.get(*name) {
                self.check_below((*name).to_owned(), schema, value);
            }
        }
    }

    fn check_text(&mut self, rule: &TextRule, text: &str) {
        match rule {
            TextRule::NotEmpty if text.is_empty() => self.report("must not be empty".to_owned()),
            TextRule::OneOf(words) if !words.contains(&text) => {
                self.report(format!("must be one of {}", words.join(", ")));
            }
            TextRule::Pattern(pattern, matches) if !matches(text) => self.report(format!("must match {pattern}")),
            TextRule::DateTime if !is_date_time(text) => self.report("must be a date-time".to_owned()),
            _ => {}
        }
    }

    fn check_below(&mut self, name: String, schema: &ValueSchema, value: &Value) {
        if self.violations.len() < MOST_VIOLATIONS {
            self.path.push(name);
            self.check(schema, value);
            self.path.pop();
        }
    }

    /// One line of limited length: names are untrusted.
    fn report(&mut self, problem: String) {
        if self.violations.len() == MOST_VIOLATIONS {
            return;
        }
        let place = if self.path.is_empty() { "it".to_owned() } else { format!("`{}`", self.path.join("/")) };
        let text = sanitize_line(&format!("{place} {problem}"));
        let cut = &text[..text.floor_char_boundary(LONGEST_VIOLATION)];
        self.violations.push(if cut.len() < text.len() { format!("{cut}…") } else { text });
    }
}

impl ValueSchema {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Any => "a value",
            Self::Boolean => "a boolean",
            Self::Text(_) => "a string",
            Self::List(..) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{MOST_VIOLATIONS, WorkflowSchema, is_date_time, is_supported_version, is_trimmed_line, violations};

    fn front_matter() -> Value {
        json!({"schemaVersion": "1.1", "workflowType": "w", "stepsCompleted": [], "currentNodeId": ""})
    }

    fn graph() -> Value {
        json!({"schemaVersion": "1.1", "entryNodeId": "a", "edges": [{"from": "a", "to": "a", "label": "x"}],
            "nodes": [{"id": "a", "type": "step", "file": "steps/a.md"}]})
    }

    #[test]
    fn each_rule_says_what_is_wrong() {
        let check = |schema, pointer: &str, value: Value, expected: &[&str]| {
            let mut document = match schema {
                WorkflowSchema::FrontMatter => front_matter(),
                WorkflowSchema::Graph => graph(),
            };
            let (above, name) = pointer.rsplit_once('/').unwrap();
            let target = document.pointer_mut(above).unwrap();
            match (target, value) {
                (Value::Object(object), Value::Null) => _ = object.remove(name),
                (Value::Object(object), value) => _ = object.insert(name.to_owned(), value),
                (target, _) => panic!("{target}"),
            }
            assert_eq!(violations(schema, &document), expected, "{pointer}");
        };
        check(WorkflowSchema::FrontMatter, "/anything", json!({"else": 1}), &[]);
        check(WorkflowSchema::FrontMatter, "/workflowType", Value::Null, &["it is missing `workflowType`"]);
        check(WorkflowSchema::FrontMatter, "/workflowType", json!(""), &["`workflowType` must not be empty"]);
        check(
            WorkflowSchema::FrontMatter,
            "/schemaVersion",
            json!("2"),
            &[r"`schemaVersion` must match ^1\.1(\.[0-9]+)?$"],
        );
        check(WorkflowSchema::FrontMatter, "/stepsCompleted", json!(["a", 1]), &["`stepsCompleted/1` is not a string"]);
        check(WorkflowSchema::FrontMatter, "/stepsCompleted", json!("a"), &["`stepsCompleted` is not a list"]);
        check(WorkflowSchema::FrontMatter, "/updatedAt", json!("yesterday"), &["`updatedAt` must be a date-time"]);
        check(WorkflowSchema::FrontMatter, "/variables", json!([]), &["`variables` is not an object"]);
        let logged = json!([{"from": "a", "to": "b", "label": "x", "why": "y"}, {"from": "a", "to": "b"}]);
        let expected = ["`decisionLog/0` has unknown properties: why", "`decisionLog/1` is missing `label`"];
        check(WorkflowSchema::FrontMatter, "/decisionLog", logged, &expected);
        check(WorkflowSchema::Graph, "/nodes", json!([]), &["`nodes` has fewer than 1 items"]);
        let types = "`nodes/0/type` must be one of step, decision, merge, end, subworkflow";
        check(WorkflowSchema::Graph, "/nodes/0/type", json!("stop"), &[types]);
        check(WorkflowSchema::Graph, "/nodes/0/type", json!(1), &[types]);
        check(WorkflowSchema::Graph, "/nodes/0/id", json!(" a"), &[r"`nodes/0/id` must match ^\S(.*\S)?$"]);
        check(WorkflowSchema::Graph, "/nodes/0/inputs", json!([1, "a", null]), &[]);
        check(WorkflowSchema::Graph, "/edges/0/isDefault", json!("yes"), &["`edges/0/isDefault` is not a boolean"]);
        check(WorkflowSchema::Graph, "/edges/0/conditionExpr", json!(1), &[]);
        check(WorkflowSchema::Graph, "/metadata", json!(1), &["`metadata` is not an object"]);
        assert_eq!(violations(WorkflowSchema::Graph, &json!(1)), ["it is not an object"]);
    }

    #[test]
    fn violations_are_few_and_short() {
        let mut front = front_matter();
        front["stepsCompleted"] = json!(vec![1; 100]);
        assert_eq!(violations(WorkflowSchema::FrontMatter, &front).len(), MOST_VIOLATIONS);
        front = front_matter();
        front["decisionLog"] = json!([{"from": "a", "to": "b", "label": "c", "x\u{1b}[2J".repeat(200): 1}]);
        let said = violations(WorkflowSchema::FrontMatter, &front);
        assert!(said[0].len() <= 303 && !said[0].contains('\u{1b}'), "{said:?}");
    }

    #[test]
    fn texts_match_their_patterns() {
        for (text, expected) in [("1.1", true), ("1.1.20", true), ("1.1.", false), ("1.10", false), ("1.1.x", false)] {
            assert_eq!(is_supported_version(text), expected, "{text}");
        }
        for (text, expected) in
            [("a", true), ("a b", true), ("", false), (" a", false), ("a\t", false), ("a\nb", false)]
        {
            assert_eq!(is_trimmed_line(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_date_time_is_one_of_rfc_3339() {
        for text in [
            "1985-04-12T23:20:50.52Z",
            "1996-12-19T16:39:57-08:00",
            "1990-12-31T23:59:60Z",
            "1990-12-31T15:59:60-08:00",
            "2024-02-29t00:00:00z",
            "2000-02-29T00:00:00+23:59",
        ] {
            assert!(is_date_time(text), "{text}");
        }
        for text in [
            "",
            "2024-02-29",
            "2023-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2024-04-31T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-01-00T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:60Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00+8:00",
            "2024-01-01T00:00:00+24:00",
            "24-01-01T00:00:00Z",
            "2024-1-01T00:00:00Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:+1Z",
            "2024-01-01T00:00:00Zé",
        ] {
            assert!(!is_date_time(text), "{text}");
        }
    }
}
