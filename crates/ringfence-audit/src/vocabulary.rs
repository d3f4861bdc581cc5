//! Record versions: the vocabulary of each, and the translation of an earlier one.
//!
//! Records are never rewritten, so a log has records of every version that wrote to it. A reader translates what it read,
//! in memory, and knows the current vocabulary alone. A record of a later version is left as it is.

use serde_json::{Map, Value};

/// The version of new records, in their field `v`.
pub const RECORD_VERSION: u64 = 2;

/// Events of version 1, with their names in version 2. The others are called the same in both.
const RENAMED_EVENTS: [(&str, &str); 3] =
    [("reached", "access"), ("reached-unlisted", "access-unlisted"), ("not-kept", "discarded")];

/// A record of the log in the vocabulary of [`RECORD_VERSION`]. One of a later version, and what is not a record, stays
/// unchanged.
#[must_use]
pub fn to_current_vocabulary(mut record: Value) -> Value {
    if record["v"] == 1
        && let Some(fields) = record.as_object_mut()
    {
        rename(fields, "moment", "event");
        rename(fields, "touches", "accesses");
        if let Some(event) = fields.get_mut("event")
            && let Some((_, current)) = RENAMED_EVENTS.iter().find(|(former, _)| event == former)
        {
            *event = Value::from(*current);
        }
        let accesses = fields.get_mut("accesses").and_then(Value::as_array_mut);
        for access in accesses.into_iter().flatten().filter_map(Value::as_object_mut) {
            rename(access, "verb", "action");
        }
        fields.insert("v".to_owned(), Value::from(RECORD_VERSION));
    }
    record
}

fn rename(fields: &mut Map<String, Value>, former: &str, current: &str) {
    if let Some(value) = fields.remove(former) {
        fields.insert(current.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::to_current_vocabulary;

    #[track_caller]
    fn check(record: &Value, expected: &Value) {
        assert_eq!(to_current_vocabulary(record.clone()), *expected);
        assert_eq!(to_current_vocabulary(expected.clone()), *expected, "a translated record is translated again");
    }

    #[test]
    fn a_record_of_version_1_is_translated() {
        for (former, current) in [
            ("genesis", "genesis"),
            ("repaired", "repaired"),
            ("begin", "begin"),
            ("end", "end"),
            ("refused", "refused"),
            ("refused-unlisted", "refused-unlisted"),
            ("overdue", "overdue"),
            ("reached", "access"),
            ("reached-unlisted", "access-unlisted"),
            ("not-kept", "discarded"),
        ] {
            check(
                &json!({"v": 1, "seq": 7, "moment": former, "prev": "0"}),
                &json!({"v": 2, "seq": 7, "event": current, "prev": "0"}),
            );
        }
        check(
            &json!({"v": 1, "seq": 7, "moment": "begin", "tool": "reached", "about": "verb", "touches": [
                {"verb": "read", "path": "touches"}, {"verb": "move", "path": "a", "real": "b"},
            ]}),
            &json!({"v": 2, "seq": 7, "event": "begin", "tool": "reached", "about": "verb", "accesses": [
                {"action": "read", "path": "touches"}, {"action": "move", "path": "a", "real": "b"},
            ]}),
        );
    }

    #[test]
    fn a_record_of_another_version_stays_unchanged() {
        for version in [json!(2), json!(3), json!(0), json!("1"), json!(null)] {
            let record = json!({"v": version, "moment": "reached", "touches": [{"verb": "read"}]});
            check(&record, &record);
        }
    }

    #[test]
    fn other_json_stays_unchanged() {
        for value in [json!(null), json!(1), json!("v"), json!([{"v": 1, "moment": "reached"}]), json!({})] {
            check(&value, &value);
        }
        // Nothing in it has the type that a record has.
        check(
            &json!({"v": 1, "moment": 5, "touches": {"verb": "read"}}),
            &json!({"v": 2, "event": 5, "accesses": {"verb": "read"}}),
        );
        check(&json!({"v": 1, "touches": ["verb", null]}), &json!({"v": 2, "accesses": ["verb", null]}));
    }
}
