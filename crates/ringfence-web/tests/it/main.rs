//! Integration tests of the web tools, through `Host::call`, against local servers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says so"
)]
#![allow(clippy::disallowed_methods, reason = "tests start themselves again, and an engine to search with")]

mod egress;
mod harness;
mod host_approval;
mod response_bodies;
mod search_engines;
mod searxng;
mod ssrf;
mod tls;
