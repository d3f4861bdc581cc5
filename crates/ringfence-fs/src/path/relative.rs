//! Paths below a root as bytes: split, join and remainder.

/// The directory and the name of a path below the root.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// The rest of a path below a directory; `None` for the directory itself.
pub(crate) fn relative_to<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(directory)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// The range of the paths below a directory, in the order of bytes: from the first, up to the second.
pub(crate) fn range_below(directory: &[u8]) -> (Vec<u8>, Vec<u8>) {
    // `0` follows the slash.
    ([directory, b"/"].concat(), [directory, b"0"].concat())
}

/// A path below a directory. Each may be empty.
pub(crate) fn join(directory: &[u8], rest: &[u8]) -> Vec<u8> {
    match (directory, rest) {
        (directory, b"") => directory.to_vec(),
        (b"", rest) => rest.to_vec(),
        (directory, rest) => [directory, b"/", rest].concat(),
    }
}
