//! The web for agents: requests that cannot be turned inward, searches, and the jail's way out.

mod address;
mod error;
mod target;
