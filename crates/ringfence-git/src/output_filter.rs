//! Output filter: patches and lists of git without what the policy does not let be read.
//!
//! Objects have every version of every file, also of those that are masked in the jail. So the contents of a file are shown
//! only where reading it is allowed. A part of a patch without its header belongs to an unknown file, so only the output
//! before an omission is used.
//!
//! Not here: the formats of each command.

use std::collections::BTreeMap;

use ringfence_kernel::{CallContext, Decision, MODEL_TEXT_BYTES, PolicyAction, ResourceAccess};

use crate::repository::GitTarget;

/// Most bytes of output in a reply: the rest is for the lines around it.
const MAX_OUTPUT_BYTES: usize = MODEL_TEXT_BYTES - 2000;

/// Decides which files of a repository are shown, and remembers which are not.
pub(crate) struct ReadFilter<'a> {
    target: &'a GitTarget,
    cx: &'a CallContext<'a>,
    decided: BTreeMap<String, bool>,
}

impl<'a> ReadFilter<'a> {
    pub(crate) fn new(target: &'a GitTarget, cx: &'a CallContext<'a>) -> Self {
        Self { target, cx, decided: BTreeMap::new() }
    }

    /// Whether a file, by its path in the repository, may be read without approval.
    pub(crate) fn permits(&mut self, path: &str) -> bool {
        if let Some(decided) = self.decided.get(path) {
            return *decided;
        }
        let permitted = self.target.resources_of(path).all(|resource| {
            let access = ResourceAccess { action: PolicyAction::Read, resource };
            self.cx.evaluate(&access).decision == Decision::Allow
        });
        self.decided.insert(path.to_owned(), permitted);
        permitted
    }

    /// Paths whose contents were not shown.
    pub(crate) fn hidden(self) -> Vec<String> {
        self.decided.into_iter().filter(|(_, permitted)| !permitted).map(|(path, _)| path).collect()
    }

    /// A patch, or a log with patches, without the contents of files that may not be read.
    pub(crate) fn patch(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut lines = text.split_inclusive('\n').peekable();
        while let Some(line) = lines.next() {
            if !is_file_header(line) {
                shown.push_str(line);
                continue;
            }
            let mut section = vec![line];
            while let Some(next) = lines.next_if(|next| !is_file_header(next) && !next.starts_with("commit ")) {
                section.push(next);
            }
            let paths = paths_of(&section);
            if !paths.is_empty() && paths.iter().all(|path| self.permits(path)) {
                section.into_iter().for_each(|line| shown.push_str(line));
                continue;
            }
            shown.push_str(line.trim_end());
            shown.push_str("\n[contents not shown: the file may not be read without approval]\n");
            // A log has an empty line before the next commit.
            if section.len() > 1 && section.last().is_some_and(|last| last.trim().is_empty()) {
                shown.push('\n');
            }
        }
        shown
    }
}

/// A text for a model, within its bounds. The whole of a longer one is kept for the session.
pub(crate) fn bound_text(text: String, cx: &CallContext<'_>) -> String {
    match cx.memory() {
        Some(memory) => memory.outputs.bounded_start(text, MAX_OUTPUT_BYTES),
        None => text[..text.floor_char_boundary(MAX_OUTPUT_BYTES)].to_owned(),
    }
}

/// Lines of a patch's contents begin with a sign, so this is one of its headers.
pub(crate) fn is_file_header(line: &str) -> bool {
    ["diff --git ", "diff --cc ", "diff --combined "].iter().any(|start| line.starts_with(start))
}

/// The paths that a section of a patch is about; none, if its headers do not say.
fn paths_of(section: &[&str]) -> Vec<String> {
    let Some((header, rest)) = section.split_first() else { return Vec::new() };
    let header = header.trim_end_matches('\n');
    if let Some(combined) = header.strip_prefix("diff --cc ").or_else(|| header.strip_prefix("diff --combined ")) {
        return unquote(combined).into_iter().collect();
    }
    let headers = rest.iter().map(|line| line.trim_end_matches('\n')).take_while(|line| !line.starts_with("@@"));
    let moved = |start: &str| headers.clone().find_map(|line| unquote(line.strip_prefix(start)?));
    let from = moved("rename from ").or_else(|| moved("copy from "));
    match (from, moved("rename to ").or_else(|| moved("copy to "))) {
        (Some(from), Some(to)) => vec![from, to],
        // The first line of a moved file can be that of another one: `a/X b/Y b/X b/Y` is also of the file `X b/Y`.
        (None, None) if !headers.clone().any(|line| line.starts_with("similarity index ")) => {
            same_path(header.strip_prefix("diff --git ").unwrap_or_default()).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The path of `a/PATH b/PATH`. It may have spaces, so both halves are compared.
fn same_path(names: &str) -> Option<String> {
    let middle = names.len() / 2;
    let (first, second) = (names.get(..middle)?, names.get(middle..)?.strip_prefix(' ')?);
    let (first, second) = (unquote(first)?, unquote(second)?);
    let path = first.strip_prefix("a/")?;
    (second.strip_prefix("b/")? == path).then(|| path.to_owned())
}

/// A name without the quotes that git puts around one with unusual characters.
pub(crate) fn unquote(name: &str) -> Option<String> {
    let Some(quoted) = name.strip_prefix('"') else { return Some(name.to_owned()) };
    let mut bytes = Vec::new();
    let mut rest = quoted.strip_suffix('"')?.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            c @ (b'"' | b'\\') => c,
            first @ b'0'..=b'3' => {
                let mut digit = || rest.next().filter(|c| (b'0'..=b'7').contains(c)).map(|c| c - b'0');
                (first - b'0') << 6 | digit()? << 3 | digit()?
            }
            _ => return None,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_of_a_section_say_whose_it_is() {
        let check = |section: &[&str], expected: &[&str]| assert_eq!(paths_of(section), expected, "{section:?}");
        check(&["diff --git a/src/x.rs b/src/x.rs\n", "index 1..2\n"], &["src/x.rs"]);
        check(&["diff --git a/a b/c b/a b/c\n"], &["a b/c"]);
        check(&["diff --git \"a/q\\\"\\303\\244\" \"b/q\\\"\\303\\244\"\n"], &["q\"ä"]);
        check(
            &["diff --git a/.env b/x\n", "similarity index 90%\n", "rename from .env\n", "rename to x\n"],
            &[".env", "x"],
        );
        check(&["diff --git a/a b/b\n", "copy from a\n", "copy to b\n"], &["a", "b"]);
        check(&["diff --cc conflicted\n"], &["conflicted"]);
        let ambiguous = "diff --git a/.env b/Q b/.env b/Q\n";
        check(&[ambiguous, "rename from .env\n", "rename to Q b/.env b/Q\n"], &[".env", "Q b/.env b/Q"]);
        check(&[ambiguous, "similarity index 90%\n", "rename from \"broken\n"], &[]);
        check(&[ambiguous, "index 1..2\n"], &[".env b/Q"]);
        check(&["diff --git a/a b/b\n", "@@ -1 +1 @@\n", "rename from x\n", "rename to y\n"], &[]);
        check(&["diff --git broken\n"], &[]);
    }

    #[test]
    fn quotes_are_those_of_git() {
        for (quoted, plain) in [
            ("plain name", Some("plain name")),
            ("\"a\\tb\\\\c\"", Some("a\tb\\c")),
            ("\"\\303\\244\"", Some("ä")),
            ("\"\\377\"", None),
            ("\"open", None),
            ("\"\\x\"", None),
            ("\"\\40\"", None),
        ] {
            assert_eq!(unquote(quoted).as_deref(), plain, "{quoted}");
        }
    }
}
