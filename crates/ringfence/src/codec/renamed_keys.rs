//! Renamed keys of replies: the names that clients of version 0.1 read, sent beside the new ones for one release.
//!
//! Remove this file, and its uses, in the release after 0.2.

use schemars::Schema;
use serde_json::{Value, json};

/// New and old names.
const RENAMED_KEYS: [(&str, &str); 7] = [
    ("readOnly", "onlyReads"),
    ("destructive", "destroys"),
    ("openWorld", "reachesOut"),
    ("idempotent", "sameAgain"),
    ("isolation", "walls"),
    ("mechanism", "wall"),
    ("available", "stands"),
];

/// An object with its renamed keys under both names. Objects in it are left as they are.
pub(crate) fn with_old_keys(mut value: Value) -> Value {
    if let Value::Object(object) = &mut value {
        for (new, old) in RENAMED_KEYS {
            if let Some(found) = object.get(new).cloned() {
                object.insert(old.to_owned(), found);
            }
        }
    }
    value
}

/// Documents the old keys of a schema as deprecated.
pub(crate) fn document_old_keys(schema: &mut Schema) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (new, old) in RENAMED_KEYS {
        if let Some(mut property) = properties.get(new).cloned() {
            property["description"] =
                json!(format!("The same as `{new}`. Deprecated: it will be removed in the next release."));
            property["deprecated"] = json!(true);
            properties.insert(old.to_owned(), property);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_key_has_both_names_and_other_objects_stay() {
        let value = with_old_keys(json!({"available": false, "note": "", "parameters": {"readOnly": true}}));
        assert_eq!(value, json!({"available": false, "stands": false, "note": "", "parameters": {"readOnly": true}}));
    }

    #[test]
    fn an_old_key_is_documented_as_deprecated() {
        let mut schema =
            schemars::json_schema!({"properties": {"mechanism": {"type": "string"}, "note": {"type": "string"}}});
        document_old_keys(&mut schema);
        let properties = &schema.as_value()["properties"];
        assert_eq!(properties["wall"]["deprecated"], true);
        assert_eq!(properties["wall"]["type"], "string");
        assert!(properties["mechanism"].get("deprecated").is_none());
        assert_eq!(properties.as_object().unwrap().len(), 3);
    }
}
