//! Random identifiers: unique, and impossible to guess.

use std::fmt::Write as _;

/// A prefix and 80 random bits: enough that ids of all processes on a machine never collide.
pub(crate) fn new_id(prefix: &str) -> Result<String, getrandom::Error> {
    let mut bytes = [0u8; 10];
    getrandom::fill(&mut bytes)?;
    let mut id = String::with_capacity(prefix.len() + 1 + 2 * bytes.len());
    id.push_str(prefix);
    id.push('-');
    for byte in bytes {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}
