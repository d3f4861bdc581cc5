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

/// The form of a change's ID in texts for models: its first 8 digits. `undo` takes it as long as it is not ambiguous.
///
/// ```
/// assert_eq!(ringfence_kernel::short_change_id("c-1906185f8c2e44d07a11"), "c-1906185f");
/// ```
pub fn short_change_id(id: &str) -> &str {
    const DIGITS: usize = 8;
    let start = id.find('-').map_or(0, |at| at + 1);
    &id[..id.floor_char_boundary(start + DIGITS)]
}
