//! Argument decoding, from JSON text to a type, once.
//!
//! The policy and the tool see the same decoded value, because the text is parsed a single time: a key given
//! twice, an unknown key, a wrong type or a broken escape is refused here, with words that help to do it right.
//!
//! Not here: the meaning of a value. A tool binding converts, a tool plans.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::suggest::nearest_name;
use crate::{ErrorKind, ToolError};

/// Longest quote of the caller's own value in a message.
const MAX_MESSAGE_BYTES: usize = 300;

pub(crate) fn decode<A: DeserializeOwned + JsonSchema>(arguments: &str, limit: u64) -> Result<A, ToolError> {
    if arguments.len() as u64 > limit {
        let message = format!("the arguments have {} bytes; the limit is {limit}", arguments.len());
        return Err(ToolError::new(ErrorKind::InvalidArgs, message));
    }
    // Models write nothing where they mean no arguments.
    let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
    if !arguments.trim_start().starts_with('{') {
        return Err(ToolError::new(ErrorKind::InvalidArgs, "the arguments must be a JSON object"));
    }
    serde_json::from_str(arguments).map_err(|error| invalid_args_error::<A>(&error))
}

fn invalid_args_error<A: JsonSchema>(error: &serde_json::Error) -> ToolError {
    let text = error.to_string();
    let message = if error.is_data() {
        // The position says nothing to a model that never counted columns.
        without_synonyms::<A>(text.split(" at line ").next().unwrap_or(&text))
    } else {
        format!("the arguments are not valid JSON: {text}")
    };
    let guess = unknown_name(&message).and_then(|(word, known)| nearest_name(word, known.iter().copied()));
    let advice = guess.map(|name| format!("did you mean `{name}`?"));
    let error = ToolError::new(ErrorKind::InvalidArgs, truncate_message(&message));
    match advice {
        Some(advice) => error.hint(&advice),
        None => error,
    }
}

/// The message about an unknown argument, with the names that the schema has. Serde lists every name that it accepts.
fn without_synonyms<A: JsonSchema>(message: &str) -> String {
    let Some((word, known)) = unknown_name(message) else { return message.to_owned() };
    let schema = schemars::schema_for!(A);
    let properties = schema.get("properties").and_then(Value::as_object);
    let documented: BTreeSet<&str> =
        properties.into_iter().flat_map(|names| names.keys().map(String::as_str)).collect();
    // A field of a nested type has other names.
    if documented.is_empty() || !documented.iter().all(|name| known.contains(name)) {
        return message.to_owned();
    }
    let names: Vec<String> =
        known.iter().filter(|name| documented.contains(*name)).map(|name| format!("`{name}`")).collect();
    let expected = match names.as_slice() {
        [one] => one.clone(),
        [one, other] => format!("{one} or {other}"),
        _ => format!("one of {}", names.join(", ")),
    };
    format!("unknown field `{word}`, expected {expected}")
}

/// Serde says ``unknown field `a`, expected `b` or `c` ``; what stands in backquotes is the word and the known ones.
fn unknown_name(message: &str) -> Option<(&str, Vec<&str>)> {
    if !message.starts_with("unknown field") && !message.starts_with("unknown variant") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

fn truncate_message(message: &str) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message.to_owned();
    }
    format!("{}…", &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)])
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::decode;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the decoding is looked at")]
    struct Args {
        #[serde(alias = "file_path")]
        path: String,
        #[serde(default)]
        encoding: Option<DecodeTestEncoding>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum DecodeTestEncoding {
        #[serde(rename = "utf-8")]
        Utf8,
        Base64,
    }

    #[track_caller]
    fn check(arguments: &str, expected: Expect) {
        let outcome = match decode::<Args>(arguments, 1000) {
            Ok(args) => format!("{args:?}"),
            Err(error) => error.message,
        };
        expected.assert_eq(&outcome);
    }

    #[test]
    fn good_arguments_decode() {
        check(r#"{"path":"a","encoding":"utf-8"}"#, expect![[r#"Args { path: "a", encoding: Some(Utf8) }"#]]);
        check(r#"{"path":"a","encoding":"base64"}"#, expect![[r#"Args { path: "a", encoding: Some(Base64) }"#]]);
    }

    #[test]
    fn a_key_given_twice_is_refused() {
        check(r#"{"path":"a","path":"b"}"#, expect!["duplicate field `path`"]);
    }

    #[test]
    fn an_unknown_key_or_value_names_the_nearest() {
        check(r#"{"pat":"a"}"#, expect!["unknown field `pat`, expected `path` or `encoding`; did you mean `path`?"]);
        check(
            r#"{"path":"a","encoding":"utf8"}"#,
            expect!["unknown variant `utf8`, expected `utf-8` or `base64`; did you mean `utf-8`?"],
        );
    }

    #[test]
    fn arguments_that_are_not_an_object_are_refused() {
        check("", expect!["missing field `path`"]);
        check("[1]", expect!["the arguments must be a JSON object"]);
        check("\"path\"", expect!["the arguments must be a JSON object"]);
        check(
            r#"{"path":"a"}{"path":"b"}"#,
            expect!["the arguments are not valid JSON: trailing characters at line 1 column 13"],
        );
        check(
            r#"{"path":"a""#,
            expect!["the arguments are not valid JSON: EOF while parsing an object at line 1 column 11"],
        );
    }

    #[test]
    fn types_are_not_coerced() {
        check(r#"{"path":5}"#, expect!["invalid type: integer `5`, expected a string"]);
        check(r#"{"path":null}"#, expect!["invalid type: null, expected a string"]);
        check(r#"{"path":["a"]}"#, expect!["invalid type: sequence, expected a string"]);
    }

    #[test]
    fn a_lone_surrogate_is_an_error_and_never_replaced() {
        check(
            r#"{"path":"\ud800"}"#,
            expect!["the arguments are not valid JSON: unexpected end of hex escape at line 1 column 16"],
        );
    }

    #[test]
    fn length_and_depth_are_bounded_before_anything_else() {
        check(&"x".repeat(1001), expect!["the arguments have 1001 bytes; the limit is 1000"]);
        check(&format!(r#"{{"path":{}"#, "[".repeat(500)), expect!["invalid type: sequence, expected a string"]);
        let long = decode::<Args>(&format!(r#"{{"{}":1}}"#, "k".repeat(600)), 1000).unwrap_err();
        assert!(long.message.len() < 310, "{}", long.message.len());
    }
}
