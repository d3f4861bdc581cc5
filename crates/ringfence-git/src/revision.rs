//! Revisions as callers write them.
//!
//! A revision is one argument behind `--end-of-options`, and never one that begins with `-`. It names commits and nothing
//! else: in the difference of two trees below the root, paths are not those that the policy knows.

use std::ffi::OsString;

use ringfence_kernel::ToolError;

/// Longest revision, in bytes.
const MAX_BYTES: usize = 1000;

/// A revision or a range of them, such as `HEAD~2`, `v1.0` or `main..feature`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GitRevision(String);

impl GitRevision {
    pub(crate) fn parse(text: String) -> Result<Self, ToolError> {
        let problem = match &text {
            text if text.trim().is_empty() => "must not be empty; leave it out to mean none",
            text if text.starts_with('-') => {
                "must be a revision such as `HEAD~2` or `main..feature`, and not an option"
            }
            text if text.len() > MAX_BYTES => "is too long",
            text if text.chars().any(char::is_control) => "must not contain control characters",
            text if has_path(text) => "must name commits; give files and directories in `paths`",
            _ => return Ok(Self(text)),
        };
        Err(ToolError::invalid("range", problem))
    }

    /// The same for an argument that may be left out.
    pub(crate) fn parse_optional(text: Option<String>) -> Result<Option<Self>, ToolError> {
        text.map(Self::parse).transpose()
    }

    /// Both ends as commits. git refuses one that is a tree or the contents of a file.
    pub(crate) fn argument(&self) -> OsString {
        let text = &self.0;
        let Some((dots, at)) = ["...", ".."].iter().find_map(|dots| Some((dots, text.find(dots)?))) else {
            return if has_parents(text) { text.clone() } else { commit(text) }.into();
        };
        [&commit(&text[..at]), *dots, &commit(&text[at + dots.len()..])].concat().into()
    }
}

/// Whether a revision is of a commit's parents: `HEAD^!`, `HEAD^@`, `HEAD^-` or `HEAD^-2`. Git takes these only of commits, and
/// not as an end of a range, where the same letters are part of a name.
fn has_parents(text: &str) -> bool {
    let without_number = text.trim_end_matches(|c: char| c.is_ascii_digit());
    text.ends_with("^!") || text.ends_with("^@") || without_number.ends_with("^-")
}

/// Whether a revision has a `:`, other than in a time in braces: what follows it is a path, or a text to search for.
fn has_path(text: &str) -> bool {
    let mut depth = 0_usize;
    text.chars().any(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ':' && depth == 0
    })
}

/// One end of a range as a commit. An end that is left out is `HEAD`.
fn commit(end: &str) -> String {
    if end.is_empty() { String::new() } else { format!("{end}^{{commit}}") }
}

#[cfg(test)]
mod tests {
    use super::GitRevision;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let argument = GitRevision::parse(text.to_owned()).ok().map(|revision| revision.argument());
        assert_eq!(argument.as_deref().and_then(|argument| argument.to_str()), expected, "{text:?}");
    }

    #[test]
    fn a_revision_is_of_commits() {
        check("HEAD~2", Some("HEAD~2^{commit}"));
        check("main..feature/x", Some("main^{commit}..feature/x^{commit}"));
        check("a...b", Some("a^{commit}...b^{commit}"));
        check("main..", Some("main^{commit}.."));
        check("@{upstream}", Some("@{upstream}^{commit}"));
        check("HEAD@{2 days ago}", Some("HEAD@{2 days ago}^{commit}"));
        check("HEAD@{12:30}", Some("HEAD@{12:30}^{commit}"));
        check("v1^{}", Some("v1^{}^{commit}"));
        check("^a", Some("^a^{commit}"));
        for text in ["HEAD^!", "HEAD^@", "HEAD^-", "HEAD^-2"] {
            check(text, Some(text));
        }
        check("HEAD..x^--g12ab", Some("HEAD^{commit}..x^--g12ab^{commit}"));
        check("x^--g12ab", Some("x^--g12ab^{commit}"));
        check("HEAD@{now ^-}^{tree}", Some("HEAD@{now ^-}^{tree}^{commit}"));
        for text in ["HEAD:.env", "HEAD~1:sub..HEAD:sub", ":/fix", ":0:f", "HEAD^{tree}:sub"] {
            check(text, None);
        }
    }

    #[test]
    fn a_revision_is_never_an_option() {
        for text in ["", " ", "-p", "--output=x", "a\nb", "a\0b", &"x".repeat(1001)] {
            check(text, None);
        }
    }
}
