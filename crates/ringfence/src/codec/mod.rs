//! Wire formats: percent-encoding.

pub(crate) mod percent;
