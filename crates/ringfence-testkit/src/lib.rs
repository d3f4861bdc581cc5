//! Fixtures that the tests of the Ringfence crates share.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a fixture that cannot be made fails the test")]

pub mod executable;
