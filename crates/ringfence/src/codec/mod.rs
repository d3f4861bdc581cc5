//! Wire formats: percent-encoding, renamed keys.

pub(crate) mod percent;
pub(crate) mod renamed_keys;
