//! Strict JSON values: no duplicate names, no rounded numbers.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Whole numbers up to here are exact also where they are kept as floating point.
const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

/// A value as it was written.
pub(super) struct StrictValue(pub(super) Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictValueVisitor).map(Self)
    }
}

struct StrictValueVisitor;

impl<'de> Visitor<'de> for StrictValueVisitor {
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
        number.map(Value::Number).ok_or_else(|| E::custom("a number is too large to be exact; send it as a string"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(StrictValue(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, StrictValue(value))) = pairs.next_entry::<String, _>()? {
            if map.insert(name, value).is_some() {
                return Err(A::Error::custom("duplicate key"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::StrictValue;

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
