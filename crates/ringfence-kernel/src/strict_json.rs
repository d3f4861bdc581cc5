//! Strict JSON parsing: no duplicate keys, and for a value that is kept no rounded numbers.
//!
//! Other parsers keep the last of two equal keys and say nothing. A check of the first one would then be evaded, so
//! a message with such a key is refused before they see it.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Characters of a key that an error quotes.
const MAX_QUOTED_KEY: usize = 64;

/// Whole numbers up to here are exact also where they are kept as floating point.
const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

/// What is wrong with a message, for the one who sent it.
#[derive(Debug, PartialEq, Eq)]
pub enum StrictJsonError {
    /// Not JSON, or not UTF-8.
    Syntax,
    /// The sentence says which key.
    DuplicateKey(String),
}

/// Fails where the text is not JSON, or has an object with the same key twice.
///
/// ```
/// use ringfence_kernel::{StrictJsonError, check_json};
///
/// assert_eq!(check_json(br#"{"path":"a"}"#), Ok(()));
/// let twice = check_json(br#"{"path":"a","path":"b"}"#);
/// assert_eq!(twice, Err(StrictJsonError::DuplicateKey("duplicate key `path` in an object".to_owned())));
/// ```
pub fn check_json(json: &[u8]) -> Result<(), StrictJsonError> {
    let mut parser = serde_json::Deserializer::from_slice(json);
    StrictJsonVisitor::Check.deserialize(&mut parser).and_then(|_| parser.end()).map_err(|error| {
        // Of what the walk meets, only a key that is there already is wrong about anything but the syntax.
        if !error.is_data() {
            return StrictJsonError::Syntax;
        }
        let text = error.to_string();
        StrictJsonError::DuplicateKey(
            text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned(),
        )
    })
}

/// A value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct StrictValue(pub Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StrictJsonVisitor::Build.deserialize(deserializer).map(Self)
    }
}

/// What becomes of a value that was read.
#[derive(Clone, Copy)]
enum StrictJsonVisitor {
    /// It is dropped: every value that comes back is null.
    Check,
    Build,
}

impl StrictJsonVisitor {
    fn value(self, value: impl FnOnce() -> Value) -> Value {
        match self {
            Self::Check => Value::Null,
            Self::Build => value(),
        }
    }

    fn duplicate_key<E: Error>(self, key: &str) -> E {
        match self {
            Self::Check => {
                let end = key.floor_char_boundary(MAX_QUOTED_KEY);
                E::custom(format_args!("duplicate key `{}` in an object", &key[..end]))
            }
            Self::Build => E::custom("duplicate key"),
        }
    }
}

impl<'de> DeserializeSeed<'de> for StrictJsonVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictJsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).filter(|_| value.abs() <= LARGEST_EXACT);
        match (self, number) {
            (Self::Check, _) => Ok(Value::Null),
            (Self::Build, Some(number)) => Ok(Value::Number(number)),
            (Self::Build, None) => Err(E::custom("a number is too large to be exact; send it as a string")),
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(self.value(|| Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            if matches!(self, Self::Build) {
                list.push(item);
            }
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = pairs.next_key::<String>()? {
            let value = pairs.next_value_seed(self)?;
            if map.contains_key(&key) {
                return Err(self.duplicate_key(&key));
            }
            map.insert(key, value);
        }
        Ok(self.value(|| Value::Object(map)))
    }
}

#[cfg(test)]
mod tests {
    use super::{StrictJsonError, StrictValue, check_json};

    #[test]
    fn a_key_that_stands_twice_is_found_at_any_depth() {
        let cases = [
            (r#"{"a":1,"a":2}"#, "a"),
            (r#"{"x":[1,{"y":{"path":"a","path":"b"}}]}"#, "path"),
            (r#"{"path":1,"p\u0061th":2}"#, "path"),
        ];
        for (json, key) in cases {
            let message = format!("duplicate key `{key}` in an object");
            assert_eq!(check_json(json.as_bytes()), Err(StrictJsonError::DuplicateKey(message)), "{json}");
        }
    }

    #[test]
    fn the_same_key_in_two_objects_is_fine() {
        for json in [r#"{"a":{"a":1},"b":[{"a":1},{"a":2}]}"#, "[]", "null", "1.5e3", r#""text""#, "-7", "true"] {
            assert_eq!(check_json(json.as_bytes()), Ok(()), "{json}");
        }
    }

    #[test]
    fn invalid_json_is_a_syntax_error() {
        let deep = "[".repeat(100_000);
        for json in [&b"{"[..], b"", b"{} {}", b"\"\xff\"", b"\xff", b"{\"a\":1e999}", b"nul", deep.as_bytes()] {
            assert_eq!(check_json(json), Err(StrictJsonError::Syntax), "{:?}", &json[..json.len().min(20)]);
        }
    }

    #[test]
    fn an_inexact_value_is_refused_at_any_depth() {
        let read = |text: &str| serde_json::from_str::<StrictValue>(text).map(|value| value.0.to_string());
        for good in ["null", "[1,-2,2.5]", r#"{"a":{"b":[true,"x"]}}"#, "18446744073709551615", "1e-8"] {
            assert_eq!(read(good).unwrap(), good);
        }
        for bad in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#, "123456789012345678901234567890", "-1e300"] {
            read(bad).unwrap_err();
        }
    }
}
