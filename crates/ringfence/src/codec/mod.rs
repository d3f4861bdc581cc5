//! Wire formats: strict JSON and percent-encoding.

pub(crate) mod percent;
pub(crate) mod strict_json;
