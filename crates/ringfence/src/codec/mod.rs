//! Wire formats: JSON that is parsed strictly.

pub(crate) mod strict_json;
