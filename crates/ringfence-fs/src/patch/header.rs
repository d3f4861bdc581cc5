//! File headers of a unified diff.
//!
//! It has one name for both sides, and is about a plain file. Whatever else it can say is refused, not overlooked.

use ringfence_kernel::ToolError;

use crate::patch::PatchKind;
use crate::patch::lines::{PatchLineCursor, syntax_error};
use crate::path::name::escape;

/// `diff --git` and the lines below it.
pub(super) struct GitHeader {
    pub(super) change: Option<PatchKind>,
    /// Unless the two names differ.
    pub(super) path: Option<String>,
}

impl GitHeader {
    pub(super) fn read(lines: &mut PatchLineCursor<'_>) -> Result<Self, ToolError> {
        let number = lines.number;
        let names = lines.next().and_then(|line| line.strip_prefix("diff --git ")).unwrap_or_default();
        let path = match split_equal_names(names.trim_end_matches(['\r', '\n'])) {
            Some((old, new)) => same_name(&read_name(old, number)?, &read_name(new, number)?),
            None => None,
        };
        let mut header = Self { change: None, path };
        while let Some(line) = lines.peek()
            && header.parse_line(line, lines.number)?
        {
            lines.next();
        }
        Ok(header)
    }

    /// Takes in a line of the header, if it is one.
    fn parse_line(&mut self, line: &str, number: usize) -> Result<bool, ToolError> {
        let value = |key: &str| line.strip_prefix(key).map(str::trim_end);
        if let Some(mode) = value("new file mode ") {
            check_mode("create", mode, &["100644"], number)?;
            self.set(PatchKind::Create, number)?;
        } else if let Some(mode) = value("deleted file mode ") {
            check_mode("delete", mode, &["100644", "100755"], number)?;
            self.set(PatchKind::Delete, number)?;
        } else if let Some(index) = value("index ") {
            let mode = index.split_once(' ').map_or("100644", |(_, mode)| mode);
            check_mode("change", mode, &["100644", "100755"], number)?;
        } else if value("old mode ").or(value("new mode ")).is_some() {
            return Err(syntax_error(number, "a patch cannot change modes; remove `old mode` and `new mode`"));
        } else if value("rename ").or(value("copy ")).is_some() {
            return Err(names_differ_error(number));
        } else {
            return Ok(value("similarity index ").or(value("dissimilarity index ")).is_some());
        }
        Ok(true)
    }

    fn set(&mut self, change: PatchKind, number: usize) -> Result<(), ToolError> {
        match self.change.replace(change) {
            None => Ok(()),
            Some(_) => Err(syntax_error(number, "a file can be either created or deleted, and only once")),
        }
    }

    /// The change by `---` and `+++`, if this header does not contradict it.
    pub(super) fn confirm(self, said: (PatchKind, Option<String>)) -> Option<(PatchKind, Option<String>)> {
        let agrees = self.change.is_none_or(|change| change == said.0) && (self.path.is_none() || self.path == said.1);
        agrees.then_some(said)
    }
}

/// Names that are the same are of the same length, even with spaces in them.
fn split_equal_names(names: &str) -> Option<(&str, &str)> {
    let (old, new) = names.split_at_checked(names.len() / 2)?;
    Some((old, new.strip_prefix(' ')?))
}

fn check_mode(verb: &str, mode: &str, allowed: &[&str], number: usize) -> Result<(), ToolError> {
    if allowed.contains(&mode) {
        return Ok(());
    }
    Err(syntax_error(number, format!("a patch can {verb} only a plain file, of mode {}", allowed.join(" or "))))
}

/// `---` and `+++`: what they do, to which file.
pub(super) fn read_names(lines: &mut PatchLineCursor<'_>) -> Result<(PatchKind, Option<String>), ToolError> {
    let number = lines.number;
    let mut read =
        |start| read_name(lines.next().and_then(|line| line.strip_prefix(start)).unwrap_or_default(), number);
    let (old, new) = (read("--- ")?, read("+++ ")?);
    let without = |prefix, name: &str| name.strip_prefix(prefix).unwrap_or(name).to_owned();
    let (change, path) = match (old.as_str(), new.as_str()) {
        ("/dev/null", "/dev/null") => return Err(syntax_error(number, "one of the two sides must be a file")),
        ("/dev/null", new) => (PatchKind::Create, without("b/", new)),
        (old, "/dev/null") => (PatchKind::Delete, without("a/", old)),
        (old, new) => (PatchKind::Modify, same_name(old, new).ok_or_else(|| names_differ_error(number))?),
    };
    Ok((change, Some(path)))
}

/// The one name that both sides have, with or without `a/` and `b/`.
fn same_name(old: &str, new: &str) -> Option<String> {
    let bare = old.strip_prefix("a/").zip(new.strip_prefix("b/"));
    let (old, new) = bare.unwrap_or((old, new));
    (old == new).then(|| new.to_owned())
}

pub(super) fn names_differ_error(number: usize) -> ToolError {
    syntax_error(number, "the old and the new name differ, but a patch cannot rename or copy")
        .hint("use move_file first, and use the same name on both sides")
}

/// A name in a header, which ends at a tab, or at its quote.
fn read_name(text: &str, number: usize) -> Result<String, ToolError> {
    let text = text.trim_end_matches(['\r', '\n']);
    let Some(quoted) = text.strip_prefix('"') else {
        return Ok(text.split('\t').next().unwrap_or_default().to_owned());
    };
    let problem = "the name in quotes is not closed, not UTF-8, or has an escape that git does not write";
    unquote(quoted).ok_or_else(|| syntax_error(number, problem))
}

/// The name that git wrote as C would, in the spelling that tools have for it.
fn unquote(quoted: &str) -> Option<String> {
    let mut name = Vec::new();
    let mut bytes = quoted.bytes();
    loop {
        name.push(match bytes.next()? {
            b'"' => break,
            b'\\' => unescape(&mut bytes)?,
            plain => plain,
        });
    }
    let closed = matches!(bytes.next(), None | Some(b'\t'));
    (closed && std::str::from_utf8(&name).is_ok()).then(|| escape(&name))
}

fn unescape(bytes: &mut impl Iterator<Item = u8>) -> Option<u8> {
    let octal = |digit: u8| matches!(digit, b'0'..=b'7').then(|| digit - b'0');
    Some(match bytes.next()? {
        plain @ (b'"' | b'\\') => plain,
        b'a' => 0x07,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'r' => b'\r',
        high @ b'0'..=b'3' => octal(high)? << 6 | octal(bytes.next()?)? << 3 | octal(bytes.next()?)?,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use crate::patch::tests::{check_read as check, read};

    /// A header, with a hunk that suits it.
    #[track_caller]
    fn check_names(old: &str, new: &str, expected: Expect) {
        let hunk = match (old.starts_with("/dev/null"), new.starts_with("/dev/null")) {
            (true, _) => "@@ -0,0 +1 @@\n+y\n",
            (_, true) => "@@ -1 +0,0 @@\n-x\n",
            _ => "@@ -1 +1 @@\n-x\n+y\n",
        };
        check(&format!("--- {old}\n+++ {new}\n{hunk}"), expected);
    }

    #[test]
    fn names_lose_their_prefixes_and_times() {
        check_names("a/x", "b/x", expect![[r#"Modify x, 1: "x\n" -> "y\n""#]]);
        check_names("x", "x", expect![[r#"Modify x, 1: "x\n" -> "y\n""#]]);
        check_names("a/b/x", "b/b/x", expect![[r#"Modify b/x, 1: "x\n" -> "y\n""#]]);
        check_names(
            "a/x\t2026-01-02 03:04:05",
            "b/x\t2026-01-02 03:04:06",
            expect![[r#"Modify x, 1: "x\n" -> "y\n""#]],
        );
        check_names("a/with space\t", "b/with space\t", expect![[r#"Modify with space, 1: "x\n" -> "y\n""#]]);
        check_names("/dev/null", "b/x", expect![[r#"Create x, 0: "" -> "y\n""#]]);
        check_names("/dev/null\t1970-01-01", "x", expect![[r#"Create x, 0: "" -> "y\n""#]]);
        check_names("/dev/null", "a/x", expect![[r#"Create a/x, 0: "" -> "y\n""#]]);
        check_names("a/x", "/dev/null", expect![[r#"Delete x, 1: "x\n" -> """#]]);
        check_names("../x", "../x", expect![[r#"Modify ../x, 1: "x\n" -> "y\n""#]]);
        check_names("a/x\r", "b/x\r", expect![[r#"Modify x, 1: "x\n" -> "y\n""#]]);
    }

    #[test]
    fn names_in_quotes_are_those_that_git_meant() {
        check_names(r#""a/\303\244.txt""#, r#""b/\303\244.txt""#, expect![[r#"Modify ä.txt, 1: "x\n" -> "y\n""#]]);
        check_names(r#""a/q\"\\w""#, r#""b/q\"\\w""#, expect![[r#"Modify q"\w, 1: "x\n" -> "y\n""#]]);
        check_names(r#""a/t\tn\n""#, r#""b/t\tn\n""#, expect![[r#"Modify t\x09n\x0a, 1: "x\n" -> "y\n""#]]);
        check_names(r#""a/looks\\xff""#, r#""b/looks\\xff""#, expect![[r#"Modify looks\x5cxff, 1: "x\n" -> "y\n""#]]);
        check_names(r#""a/x"	now"#, r#"b/x"#, expect![[r#"Modify x, 1: "x\n" -> "y\n""#]]);
        for bad in [r#""a/\377""#, r#""a/\400""#, r#""a/\08""#, r#""a/\x41""#, r#""a/x"#, r#""a/x"y"#, r#""a/x\"#] {
            let said = read(&format!("--- {bad}\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n"));
            assert!(said.starts_with("line 1 of the patch: the name in quotes "), "{bad}: {said}");
        }
    }

    #[test]
    fn other_names_are_refused() {
        check_names(
            "a/x",
            "b/y",
            expect!["line 1 of the patch: the old and the new name differ, but a patch cannot rename or copy"],
        );
        check_names(
            "a/x",
            "x",
            expect!["line 1 of the patch: the old and the new name differ, but a patch cannot rename or copy"],
        );
        check_names(
            "x.orig",
            "x",
            expect!["line 1 of the patch: the old and the new name differ, but a patch cannot rename or copy"],
        );
        check_names("/dev/null", "/dev/null", expect!["line 1 of the patch: one of the two sides must be a file"]);
        check_names("a/", "b/", expect!["line 1 of the patch: the file has no name"]);
        check_names("", "", expect!["line 1 of the patch: the file has no name"]);
    }

    #[test]
    fn a_git_header_must_agree_with_the_file_names() {
        let hunk = "@@ -1 +1 @@\n-x\n+y\n";
        check(
            &format!("diff --git a/f b/f\nindex 1..2 100755\n--- a/f\n+++ b/f\n{hunk}"),
            expect![[r#"Modify f, 1: "x\n" -> "y\n""#]],
        );
        check(&format!("diff --git a/f b/f\n{hunk}"), expect![[r#"Modify f, 1: "x\n" -> "y\n""#]]);
        check(
            &format!("diff --git a/f b/f\n--- a/g\n+++ b/g\n{hunk}"),
            expect!["line 1 of the patch: `diff --git` and the lines below it contradict `---` and `+++`"],
        );
        check(
            &format!("diff --git a/f b/f\nnew file mode 100644\n--- a/f\n+++ b/f\n{hunk}"),
            expect!["line 1 of the patch: `diff --git` and the lines below it contradict `---` and `+++`"],
        );
        check(
            &format!("diff --git a/f b/f\nnew file mode 100644\n{hunk}"),
            expect!["line 3 of the patch: a created file has one hunk, `@@ -0,0 +1,n @@`, and no old lines"],
        );
        check(
            "diff --git a/f b/f\nnew file mode 100644\ndeleted file mode 100644\n",
            expect!["line 3 of the patch: a file can be either created or deleted, and only once"],
        );
        check(
            &format!("--- /dev/null\n+++ b/f\n{hunk}"),
            expect!["line 3 of the patch: a created file has one hunk, `@@ -0,0 +1,n @@`, and no old lines"],
        );
        check(
            &format!("--- a/f\n+++ /dev/null\n{hunk}"),
            expect!["line 3 of the patch: a deleted file has no new lines, `@@ -1,n +0,0 @@`"],
        );
    }

    #[test]
    fn empty_files_come_and_go_by_the_word_of_git() {
        check(
            "diff --git a/one file b/one file\nnew file mode 100644\nindex 0000000..e69de29\n\
             diff --git \"a/\\303\\244\" \"b/\\303\\244\"\ndeleted file mode 100755\nindex e69de29..0000000\n-- \n2.47.3\n",
            expect!["Create one file; Delete ä"],
        );
        check(
            "diff --git a/f b/f\nnew file mode 100644\n+x\n",
            expect!["line 1 of the patch: no hunk follows the header of the file"],
        );
        check(
            "diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n+x\n",
            expect!["line 1 of the patch: no hunk follows the header of the file"],
        );
        check(
            "diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n",
            expect!["line 1 of the patch: no hunk follows the header of the file"],
        );
        check(
            "--- /dev/null\n+++ b/f\nIndex: g\n",
            expect!["line 1 of the patch: no hunk follows the header of the file"],
        );
        check(
            "diff --git a/f b/g\nnew file mode 100644\n",
            expect!["line 1 of the patch: the old and the new name differ, but a patch cannot rename or copy"],
        );
        check(
            "diff --git a/f b/f\nindex 1..2 100644\n",
            expect!["line 1 of the patch: no hunk follows the header of the file"],
        );
    }
}
