//! Lenient argument decoding: numbers, flags and lists that a model sent as strings.
//!
//! For `#[serde(deserialize_with)]` on the arguments of `standard` and of the dialects of model families. A string is
//! accepted only where it is exactly what the field would be: `"2"` is 2, and `"two"` is refused. The schema still asks
//! for the right type.
//!
//! Not here: other names of an argument, which are `#[serde(alias)]` on its field.

use serde::de::{DeserializeOwned, Error, Unexpected};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A number or a flag that has a default, or the same in a string. Null means the default.
pub fn scalar<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(T::default()),
        value => parse_value(value).map_err(D::Error::custom),
    }
}

fn parse_value<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    let parsed = match &value {
        Value::String(text) => parse_scalar(text),
        _ => None,
    };
    serde_json::from_value(parsed.unwrap_or(value))
}

/// The same for an argument that can be left out. Null and an empty string mean that it was.
pub fn optional_scalar<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        value => parse_value(value).map(Some).map_err(D::Error::custom),
    }
}

/// A list of strings, the same as JSON in a string, or one string.
pub fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let value = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(Vec::new()),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(list @ Value::Array(_)) => list,
            _ => return Ok(vec![text]),
        },
        value @ Value::Array(_) => value,
        _ => return Err(D::Error::invalid_type(Unexpected::Other("no list"), &"a list of strings")),
    };
    serde_json::from_value(value).map_err(D::Error::custom)
}

/// A number or a flag as JSON writes it; models of Python write `True` and `False`.
fn parse_scalar(text: &str) -> Option<Value> {
    match text.trim() {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        text => serde_json::from_str(text).ok().filter(|value: &Value| value.is_number() || value.is_boolean()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Args {
        #[serde(deserialize_with = "optional_scalar")]
        limit: Option<u64>,
        #[serde(deserialize_with = "scalar")]
        all: bool,
        #[serde(deserialize_with = "strings")]
        paths: Vec<String>,
    }

    fn check(arguments: Value, expected: Option<Args>) {
        assert_eq!(serde_json::from_value::<Args>(arguments.clone()).ok(), expected, "{arguments}");
    }

    #[test]
    fn a_string_is_accepted_where_it_is_exactly_the_value() {
        let limit = |limit| Some(Args { limit, ..Args::default() });
        check(json!({"limit": 2}), limit(Some(2)));
        check(json!({"limit": "2"}), limit(Some(2)));
        check(json!({"limit": " 2 "}), limit(Some(2)));
        check(json!({"limit": null}), limit(None));
        check(json!({"limit": ""}), limit(None));
        for wrong in [json!("two"), json!("-2"), json!("2.5"), json!(true), json!("true"), json!([2])] {
            check(json!({"limit": wrong}), None);
        }
        let all = |all| Some(Args { all, ..Args::default() });
        check(json!({"all": "true"}), all(true));
        check(json!({"all": "False"}), all(false));
        check(json!({"all": null}), all(false));
        check(json!({"all": "yes"}), None);
        check(json!({"all": "1"}), None);
    }

    #[test]
    fn a_list_may_be_json_in_a_string_or_one_string() {
        let paths = |paths: &[&str]| {
            Some(Args { paths: paths.iter().map(|path| (*path).to_owned()).collect(), ..Args::default() })
        };
        check(json!({"paths": ["a", "b"]}), paths(&["a", "b"]));
        check(json!({"paths": "[\"a\", \"b\"]"}), paths(&["a", "b"]));
        check(json!({"paths": "a"}), paths(&["a"]));
        check(json!({"paths": "[a"}), paths(&["[a"]));
        check(json!({"paths": null}), paths(&[]));
        check(json!({"paths": [1]}), None);
        check(json!({"paths": 1}), None);
    }
}
