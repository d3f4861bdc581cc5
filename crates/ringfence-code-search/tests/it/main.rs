//! The tool `search_code` on a host: hits, freshness, secrecy and the index on disk.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise, and says so"
)]
#![allow(clippy::disallowed_methods, reason = "tests look at the disk behind the fence's back")]

mod finding;
mod fixture;
mod freshness;
mod secrecy;
mod storage;
