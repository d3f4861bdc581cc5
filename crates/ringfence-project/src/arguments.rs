//! Arguments that both tools take: paths of the workspace, words for a program, and times.

use std::time::Duration;

use ringfence_kernel::ToolError;

use crate::source_paths::WORKSPACE;

/// Longest path or name, in bytes.
const MAX_BYTES: usize = 4096;

/// A path relative to the workspace, as programs are given it; empty for the workspace itself.
pub(crate) fn workspace_path(field: &'static str, path: &str) -> Result<String, ToolError> {
    let inner = match path.strip_prefix(WORKSPACE) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
        _ if path.starts_with(['/', '~', '@']) => {
            return Err(ToolError::invalid(field, "must be relative to the workspace, such as `src/app`"));
        }
        _ => path,
    };
    let parts: Vec<&str> = inner.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(ToolError::invalid(field, "must not contain `..`; give the path from the workspace"));
    }
    plain_word(field, &parts.join("/"))
}

/// A word that no program takes for an option, and that has nothing but text in it.
pub(crate) fn plain_word(field: &'static str, word: &str) -> Result<String, ToolError> {
    if word.starts_with('-') {
        return Err(ToolError::invalid(field, "must not begin with `-`"));
    }
    if word.chars().any(char::is_control) {
        return Err(ToolError::invalid(field, "must not contain control characters"));
    }
    if word.len() > MAX_BYTES {
        return Err(ToolError::invalid(field, "must have at most 4096 bytes"));
    }
    Ok(word.to_owned())
}

pub(crate) fn seconds(timeout: f64) -> Result<Duration, ToolError> {
    let time = Duration::try_from_secs_f64(timeout).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| ToolError::invalid("timeout", "must be a positive number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::{seconds, workspace_path};

    #[track_caller]
    fn check(path: &str, expected: &str) {
        let found = workspace_path("path", path).unwrap_or_else(|error| error.message);
        assert_eq!(found, expected, "{path:?}");
    }

    #[test]
    fn paths_are_of_the_workspace() {
        check("", "");
        check(".", "");
        check("./a//b/", "a/b");
        check("/workspace", "");
        check("/workspace/a", "a");
        check("/workspaces/a", "path must be relative to the workspace, such as `src/app`");
        check("/etc", "path must be relative to the workspace, such as `src/app`");
        check("@docs/a", "path must be relative to the workspace, such as `src/app`");
        check("a/../b", "path must not contain `..`; give the path from the workspace");
        check("./-rf", "path must not begin with `-`");
        check("a\nb", "path must not contain control characters");
        check(&"a".repeat(5000), "path must have at most 4096 bytes");
    }

    #[test]
    fn times_are_positive() {
        assert!(seconds(0.5).is_ok());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
