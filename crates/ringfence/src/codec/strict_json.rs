//! Strict JSON parsing that rejects duplicate keys.
//!
//! The SDK's parser silently keeps the last of two equal keys. A check of the first one could be bypassed that way, so
//! a message with such a key is refused before the SDK sees it.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Characters of a key that an error quotes.
const MAX_QUOTED_KEY: usize = 64;

/// A malformed message, described for its sender.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StrictJsonError {
    /// Not JSON, or not UTF-8.
    Syntax,
    /// The sentence says which key.
    DuplicateKey(String),
}

/// Fails where the text is not JSON, or has an object with the same key twice.
pub(crate) fn check_json(json: &[u8]) -> Result<(), StrictJsonError> {
    let mut parser = serde_json::Deserializer::from_slice(json);
    DuplicateKeyVisitor.deserialize(&mut parser).and_then(|()| parser.end()).map_err(|error| {
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

struct DuplicateKeyVisitor;

impl<'de> DeserializeSeed<'de> for DuplicateKeyVisitor {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DuplicateKeyVisitor {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(DuplicateKeyVisitor)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(DuplicateKeyVisitor)?;
            if seen.contains(&key) {
                let end = key.floor_char_boundary(MAX_QUOTED_KEY);
                return Err(A::Error::custom(format_args!("duplicate key `{}` in an object", &key[..end])));
            }
            seen.insert(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{StrictJsonError, check_json};

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
}
