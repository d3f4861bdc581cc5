//! Providers against servers that misbehave.
