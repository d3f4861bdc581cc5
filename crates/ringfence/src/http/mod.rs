//! HTTP plumbing shared by the API and MCP: listener, authentication, rate limits, slots.

pub(crate) mod listener;
pub(crate) mod request_auth;
pub(crate) mod request_rate;
pub(crate) mod request_source;
pub(crate) mod token_slots;

/// Bytes of a message besides its arguments.
pub(crate) const ENVELOPE_BYTES: u64 = 64 << 10;
