//! Source locations in the output of test runners: `file:line`, by paths of the workspace.
//!
//! A runner prints absolute paths of its jail, or paths relative to where it ran. Only files of the project count: a
//! frame in a library says nothing about where a test failed.
//!
//! Not here: which of several locations is the one that failed. Each parser knows that.

use crate::test_report::SourceLine;

/// The workspace in the jail.
pub(crate) const WORKSPACE: &str = "/workspace";

/// Locations of one text.
const MAX_LOCATIONS: usize = 64;

/// Directories of libraries.
const LIBRARIES: [&str; 7] = ["node_modules", "site-packages", "dist-packages", ".venv", "venv", ".tox", ".cargo"];

/// Endings of source files. Others could be host names, such as `example.com:443`.
const EXTENSIONS: [&str; 46] = [
    "bats", "c", "cc", "cjs", "clj", "cpp", "cs", "cts", "cxx", "dart", "erl", "ex", "exs", "feature", "fs", "go",
    "groovy", "h", "hh", "hpp", "hs", "java", "jl", "js", "jsx", "kt", "kts", "lua", "m", "mjs", "ml", "mm", "mts",
    "php", "pl", "py", "pyi", "rb", "rs", "scala", "sh", "svelte", "swift", "ts", "tsx", "vue",
];

/// The directory that a runner's relative paths start at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourcePaths {
    /// Relative to the workspace; empty for the workspace itself.
    pub(crate) directory: String,
}

impl SourcePaths {
    /// The path in the workspace of a file of the project, from the path that a runner printed.
    pub(crate) fn project_file(&self, printed: &str) -> Option<String> {
        let absolute = printed.starts_with('/').then(|| printed.trim_start_matches('/'));
        let (base, rest) = match absolute {
            Some(path) => ("", path.strip_prefix(&WORKSPACE[1..])?.strip_prefix('/')?),
            None => (self.directory.as_str(), printed),
        };
        let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
        for part in rest.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop()?;
                }
                part => parts.push(part),
            }
        }
        let is_strange = |part: &str| LIBRARIES.contains(&part) || part.chars().any(char::is_control);
        let is_own = !parts.is_empty() && !parts.iter().any(|part| is_strange(part));
        is_own.then(|| parts.join("/"))
    }

    /// A location from a path and a line that a report has in fields of their own.
    pub(crate) fn line(&self, printed: &str, line: u32) -> Option<SourceLine> {
        (line > 0).then_some(())?;
        Some(SourceLine { file: self.project_file(printed)?, line })
    }

    /// Every location in a text, in its order: `file:line` and `File "file", line N`.
    pub(crate) fn find(&self, text: &str) -> Vec<SourceLine> {
        let mut found = Vec::new();
        for line in text.lines() {
            match traceback_line(line) {
                Some((file, number)) => found.extend(self.line(file, number)),
                None => found.extend(colon_locations(line).filter_map(|(file, number)| self.line(file, number))),
            }
            if found.len() >= MAX_LOCATIONS {
                break;
            }
        }
        found.truncate(MAX_LOCATIONS);
        found
    }
}

/// `File "tests/test_a.py", line 12, in test_b`.
fn traceback_line(line: &str) -> Option<(&str, u32)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    Some((file, leading_number(rest)?))
}

/// Every `path:number` in a line.
pub(crate) fn colon_locations(line: &str) -> impl Iterator<Item = (&str, u32)> {
    line.match_indices(':').filter_map(|(at, _)| {
        let number = leading_number(&line[at + 1..])?;
        let path = &line[..at];
        let is_end = |c: char| {
            c.is_whitespace() || matches!(c, ':' | '(' | ')' | '[' | ']' | '\'' | '"' | '`' | '=' | '<' | '>' | ',')
        };
        let path =
            path.rfind(is_end).map_or(path, |end| &path[end..][path[end..].chars().next().map_or(0, char::len_utf8)..]);
        let extension = path.rsplit('/').next()?.rsplit_once('.').filter(|(stem, _)| !stem.is_empty())?.1;
        EXTENSIONS.contains(&extension).then_some((path, number))
    })
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::SourcePaths;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let paths = SourcePaths { directory: "web".to_owned() };
        let found: Vec<String> =
            paths.find(text).iter().map(|found| format!("{}:{}", found.file, found.line)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn locations_are_found_by_their_form() {
        check("at parse (src/basket.js:14:11)", &["web/src/basket.js:14"]);
        check("at file:///workspace/web/test/a.test.ts:3:4", &["web/test/a.test.ts:3"]);
        check("thread 'a' (12) panicked at src/lib.rs:45:9:", &["web/src/lib.rs:45"]);
        check("\t/workspace/basket.go:27 +0xa5", &["basket.go:27"]);
        check("  File \"/workspace/lib.py\", line 12, in parse", &["lib.py:12"]);
        check("cents: /workspace/c/cents.c:10: main: Assertion", &["c/cents.c:10"]);
        check("a.py:1 b.py:2\n../c.py:3", &["web/a.py:1", "web/b.py:2", "c.py:3"]);
        check("»src/ü.rs:7«", &["web/»src/ü.rs:7"]);
    }

    #[test]
    fn what_is_not_in_the_project_is_left_out() {
        check("at node:internal/timers:483:21 and 127.0.0.1:80 and example.com:443 at 12:30", &[]);
        check("/usr/lib/go/src/testing.go:1396 and /rustc/x/lib.rs:1", &[]);
        check("/workspaces/a.py:1 ../../a.py:1 a.py:0 a.py:99999999999 .py:1 :1", &[]);
        check("/workspace/web/node_modules/x/y.js:1 .venv/lib/a.py:3", &[]);
        check("File \"\u{1b}[2Ja.py\", line 1", &[]);
    }

    #[test]
    fn a_long_text_has_so_many_locations() {
        assert_eq!(SourcePaths::default().find(&"a.py:1\n".repeat(1000)).len(), 64);
        assert_eq!(SourcePaths::default().find(&"a.py:1 ".repeat(1000)).len(), 64);
    }
}
