//! Guest paths: a path from a caller, parsed once.
//!
//! Nothing below this type sees the caller's string. `.` and doubled slashes are gone, a trailing slash is
//! remembered and removed, `..` is left for the kernel: with a link in front of it, only the kernel knows.
//!
//! Not here: whether it leads outside. That is decided when it is opened.

use std::path::{Component, Path};

use ringfence_kernel::{ErrorKind, ToolError};

use crate::path::name::{escape, is_reserved, unescape};

pub(crate) const LONGEST_PATH: usize = 4095;
const LONGEST_NAME: usize = 255;

/// A path below the root of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestPath {
    /// Names joined by `/`; empty for the root itself.
    bytes: Vec<u8>,
    /// It ended in a slash, so it can only mean a directory.
    directory: bool,
    /// It has a `..` in it.
    has_dotdot: bool,
}

impl GuestPath {
    /// Parses the part of a path below a mount: relative already.
    pub(crate) fn parse(text: &str) -> Result<Self, ToolError> {
        check_text(text)?;
        if text.starts_with('/') {
            return Err(outside_error(text));
        }
        check_scheme(text)?;
        Self::parse_names(text)
    }

    /// Parses a path that may be absolute, if it begins with one of the names that the mount's root has on the host.
    pub(crate) fn parse_beneath(text: &str, roots: &[impl AsRef<Path>]) -> Result<Self, ToolError> {
        if !text.starts_with('/') {
            return Self::parse(text);
        }
        check_text(text)?;
        // POSIX leaves the meaning of exactly two slashes to the system.
        if text.starts_with("//") {
            return Err(outside_error(text));
        }
        let inside = roots.iter().find_map(|root| relative_to(text, root.as_ref()));
        Self::parse_names(inside.ok_or_else(|| outside_error(text))?)
    }

    /// Whether an absolute path begins with `root`, name by name.
    pub(crate) fn is_beneath(text: &str, root: &Path) -> bool {
        text.starts_with('/') && !text.starts_with("//") && relative_to(text, root).is_some()
    }

    /// A path that the kernel gave us, below the root: nothing in it is a caller's to explain.
    pub(crate) fn from_kernel(bytes: &[u8]) -> Self {
        let bytes = if bytes == b"." { &[][..] } else { bytes };
        Self { bytes: bytes.to_vec(), directory: false, has_dotdot: false }
    }

    fn parse_names(text: &str) -> Result<Self, ToolError> {
        let bytes = unescape(text);
        let mut path = Self { bytes: Vec::with_capacity(bytes.len()), directory: false, has_dotdot: false };
        for name in bytes.split(|byte| *byte == b'/') {
            path.directory = matches!(name, b"" | b"." | b"..");
            if matches!(name, b"" | b".") {
                continue;
            }
            if name.contains(&0) {
                return Err(ToolError::new(ErrorKind::InvalidPath, "the path contains a NUL byte"));
            }
            if name.len() > LONGEST_NAME {
                let message = format!("a name in the path has {} bytes; the limit is {LONGEST_NAME}", name.len());
                return Err(ToolError::new(ErrorKind::InvalidPath, message));
            }
            if is_reserved(name) {
                let message = format!("`{}` is reserved by the host", escape(name));
                return Err(ToolError::new(ErrorKind::InvalidPath, message));
            }
            path.has_dotdot |= name == b"..";
            if !path.bytes.is_empty() {
                path.bytes.push(b'/');
            }
            path.bytes.extend_from_slice(name);
        }
        Ok(path)
    }

    /// The path as syscalls take it.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        if self.bytes.is_empty() { b"." } else { &self.bytes }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn has_dotdot(&self) -> bool {
        self.has_dotdot
    }

    pub(crate) fn must_be_directory(&self) -> bool {
        self.directory
    }

    pub(crate) fn drop_trailing_slash(&mut self) {
        self.directory = false;
    }

    /// As replies say it.
    pub(crate) fn display(&self) -> String {
        escape(self.as_bytes())
    }

    /// The directory that holds the last name, and that name. `None` where the path does not end in a name:
    /// the root, and anything that ends in `..`.
    pub(crate) fn split(&self) -> Option<(Self, &[u8])> {
        let (parent, name) = match self.bytes.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&self.bytes[..slash], &self.bytes[slash + 1..]),
            None => (&[][..], &self.bytes[..]),
        };
        if matches!(name, b"" | b"..") {
            return None;
        }
        Some((Self { bytes: parent.to_vec(), directory: true, has_dotdot: self.has_dotdot }, name))
    }
}

/// The rest of an absolute path below `root`, compared by components.
fn relative_to<'t>(text: &'t str, root: &Path) -> Option<&'t str> {
    let mut rest = text;
    for component in root.components() {
        let Component::Normal(name) = component else { continue };
        rest = rest.trim_start_matches('/').strip_prefix(name.to_str()?)?;
        if !(rest.is_empty() || rest.starts_with('/')) {
            return None;
        }
    }
    Some(rest)
}

fn check_text(text: &str) -> Result<(), ToolError> {
    let problem = if text.is_empty() {
        "path must not be empty".to_owned()
    } else if text.len() > LONGEST_PATH {
        format!("the path has {} bytes; the limit is {LONGEST_PATH}", text.len())
    } else if text.contains('\0') {
        "the path contains a NUL byte".to_owned()
    } else {
        return Ok(());
    };
    Err(ToolError::new(ErrorKind::InvalidPath, problem))
}

/// Drive letters, network shares and addresses are never paths here, even where Linux would take them as names.
fn check_scheme(text: &str) -> Result<(), ToolError> {
    let drive = matches!(text.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    let address = text.split_once(':').is_some_and(|(scheme, rest)| {
        let is_scheme = scheme.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'.' | b'-'));
        let known = ["file", "http", "https", "ftp", "data", "fd", "ssh", "git", "blob", "urn"];
        is_scheme && (rest.starts_with("//") || known.iter().any(|known| known.eq_ignore_ascii_case(scheme)))
    });
    if drive || address || text.starts_with("\\\\") {
        let message = format!("`{}` is not a path inside the workspace", truncate_text(text));
        return Err(ToolError::new(ErrorKind::InvalidPath, message).hint("give a path relative to the workspace"));
    }
    Ok(())
}

/// The caller's own absolute path is not repeated: it may be a host path that they only guessed.
fn outside_error(_: &str) -> ToolError {
    ToolError::new(ErrorKind::OutsideWorkspace, "an absolute path must be inside the workspace; use a relative one")
}

fn truncate_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

#[cfg(test)]
mod tests {
    use super::GuestPath;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let said = match GuestPath::parse_beneath(text, &["/ws", "/real/ws"]) {
            Ok(path) => {
                let slash = if path.must_be_directory() && !path.is_root() { "/" } else { "" };
                format!("{}{slash}", path.display())
            }
            Err(error) => format!("{:?}", error.kind),
        };
        assert_eq!(said, expected, "{text:?}");
    }

    #[test]
    fn dots_and_slashes_are_tidied_and_dotdot_is_kept() {
        check("a/b", "a/b");
        check("./a//./b", "a/b");
        check("a/b/", "a/b/");
        check("a/.", "a/");
        check(".", ".");
        check("./", ".");
        check("a/../b", "a/../b");
        check("..", "../");
        check("...", "...");
        check(" a ", " a ");
        check("~/x", "~/x");
        check("%2e%2e/x", "%2e%2e/x");
    }

    #[test]
    fn absolute_paths_lose_their_root_by_components() {
        check("/ws/a", "a");
        check("/ws", ".");
        check("/ws//a/", "a/");
        check("/real/ws/a", "a");
        check("/ws-evil/a", "OutsideWorkspace");
        check("/w", "OutsideWorkspace");
        check("//ws/a", "OutsideWorkspace");
        check("/etc/passwd", "OutsideWorkspace");
        check("/ws/../etc/passwd", "../etc/passwd");
    }

    #[test]
    fn an_invalid_path_is_refused() {
        for text in [
            "",
            "a\0b",
            "C:\\x",
            "C:x",
            "\\\\srv\\share",
            "\\\\?\\C:\\x",
            "file:///etc/passwd",
            "http://a/b",
            "data:,x",
            "fd:3",
        ] {
            check(text, "InvalidPath");
        }
        check(&"a/".repeat(3000), "InvalidPath");
        check(&"n".repeat(256), "InvalidPath");
        check(".ringfence-tmp-00/x", "InvalidPath");
        check(".ringfence", "InvalidPath");
        check("a/.ringfence/x", "InvalidPath");
        check("notes: draft.md", "notes: draft.md");
    }

    #[test]
    fn only_a_path_that_ends_in_a_name_splits() {
        let split =
            |text: &str| GuestPath::parse(text).unwrap().split().map(|(dir, name)| (dir.display(), name.to_vec()));
        assert_eq!(split("a"), Some((".".to_owned(), b"a".to_vec())));
        assert_eq!(split("a/b/c"), Some(("a/b".to_owned(), b"c".to_vec())));
        assert_eq!(split("."), None);
        assert_eq!(split(".."), None);
        assert_eq!(split("a/.."), None);
    }
}
