//! Timestamps as texts, for stores, tokens and pages: a module for `#[serde(with)]`.

use std::time::SystemTime;

use serde::{Deserialize as _, Deserializer, Serializer, de};

pub(crate) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_nanos(*time))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}
