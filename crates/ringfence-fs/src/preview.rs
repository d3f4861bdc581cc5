//! Content previews: the diff of a change, for a person to judge before it happens.
//!
//! Old contents are read in the directory that the plan holds, within the limits of the call. The preview is bound to
//! them: their digest is part of the fingerprint, and an approved change checks that they are still the same.
//!
//! Not here: what shall be there. Each tool makes its own.

use std::borrow::Cow;
use std::fmt::{Debug, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use ringfence_kernel::{
    CallContext, DiffHunk, DiffLine, DiffLineChange, DiffPart, DiffRange, ErrorKind, FileDiff, LineDiff, PreviewBody,
    Ticket, ToolError,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use similar::{Change, ChangeTag, TextDiff};

use crate::mount::write_target::WriteTarget;
use crate::read::content::{hash_up_to, read_up_to};
use crate::read::digest::Digest;
use crate::root::FileToReplace;
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::fstat;

/// Looking for the shortest diff ends after this; a longer one is as true.
const DIFF_TIMEOUT: Duration = Duration::from_millis(200);

/// Texts that are longer are not compared line by line.
const LONGEST_TEXT: u64 = 1 << 20;

/// Largest diff that is shown in full, in lines.
const MOST_LINES: usize = 4000;

/// Lines around a change.
const CONTEXT_LINES: usize = 3;

/// Lines of a file that show which one it is.
const FIRST_LINES: usize = 20;

/// The contents of a file, as far as a preview needs them.
#[derive(Debug)]
pub(crate) struct FileContents<'a> {
    size: u64,
    /// Nothing where they may not be read, or are too large.
    pub(crate) digest: Option<Digest>,
    bytes: Option<Cow<'a, [u8]>>,
}

impl<'a> FileContents<'a> {
    /// The contents of a write target, which must be the file that the plan found.
    pub(crate) fn read_target(target: &WriteTarget, seen: &FileStat, cx: &CallContext<'_>) -> Result<Self, ToolError> {
        if seen.kind != FileKind::File || seen.denies_read() {
            return Ok(Self { size: seen.size, digest: None, bytes: None });
        }
        let fd = match target.mount.open_at(target.base(), &target.name, OFlags::RDONLY) {
            Ok(fd) => fd,
            Err(Errno::ACCESS) => return Ok(Self { size: seen.size, digest: None, bytes: None }),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Err(changed_error(&target.shown)),
            Err(errno) => return Err(errno_error(errno, &target.shown)),
        };
        if FileStat::from_stat(&fstat(&fd).map_err(|errno| errno_error(errno, &target.shown))?) != *seen {
            return Err(changed_error(&target.shown));
        }
        Self::read_file(fd.as_fd(), seen, &target.shown, cx)
    }

    /// The contents of an open file.
    pub(crate) fn read_file(
        fd: BorrowedFd<'_>,
        stamp: &FileStat,
        shown: &str,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        let size = stamp.size;
        if size > cx.limits.hash_bytes {
            return Ok(Self { size, digest: None, bytes: None });
        }
        if size > cx.limits.appended_file_bytes {
            return Ok(Self { size, digest: Some(hash_up_to(fd, size, shown, cx)?), bytes: None });
        }
        let bytes = read_up_to(fd, size, cx);
        cx.check()?;
        let bytes = bytes.map_err(|errno| errno_error(errno, shown))?;
        Ok(Self { size, digest: Some(Digest::of(&bytes)), bytes: Some(Cow::Owned(bytes)) })
    }

    /// The first bytes of an open file, so far as they could be shown.
    pub(crate) fn read_head(
        fd: BorrowedFd<'_>,
        size: u64,
        shown: &str,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        if size > LONGEST_TEXT {
            return Ok(Self::of_size(size));
        }
        let bytes = read_up_to(fd, size, cx);
        cx.check()?;
        let bytes = bytes.map_err(|errno| errno_error(errno, shown))?;
        Ok(Self { size, digest: Some(Digest::of(&bytes)), bytes: Some(Cow::Owned(bytes)) })
    }

    /// Contents known by their size alone, which were not read.
    pub(crate) fn of_size(size: u64) -> Self {
        Self { size, digest: None, bytes: None }
    }

    /// New contents.
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Self {
        Self { size: bytes.len() as u64, digest: Some(Digest::of(bytes)), bytes: Some(Cow::Borrowed(bytes)) }
    }

    /// The bytes, if they were read.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    pub(crate) fn text(&self) -> Option<&str> {
        let text = std::str::from_utf8(self.bytes.as_deref()?).ok()?;
        if text.contains('\0') { None } else { Some(text) }
    }

    /// The first lines, or a description of contents that have none.
    pub(crate) fn head(&self) -> PreviewBody {
        let Some(text) = self.text() else { return PreviewBody::Text(format!("not text: {}", self.describe())) };
        let lines: Vec<&str> = text.lines().take(FIRST_LINES).collect();
        let more = text.lines().count() - lines.len();
        let mut shown = lines.join("\n");
        if more > 0 {
            let _ = write!(shown, "\n… and {more} more lines");
        }
        if shown.is_empty() { PreviewBody::None } else { PreviewBody::Text(shown) }
    }

    fn describe(&self) -> String {
        match self.digest {
            Some(digest) => format!("{} bytes (SHA-256 {})", self.size, digest.to_hex()),
            None => format!("{} bytes, not read", self.size),
        }
    }
}

/// Binds an answer to what was shown.
pub(crate) fn fingerprint(of: impl Debug) -> String {
    Digest::of(format!("{of:?}").as_bytes()).to_hex()
}

/// Fails where the file at a write target was swapped since approval was requested. Call it before anything is opened
/// for the change, so that the error names the swap and not a fault of the other file.
pub(crate) fn check_still_planned(
    target: &WriteTarget,
    seen: Option<&FileStat>,
    ticket: &Ticket<'_>,
) -> Result<(), ToolError> {
    if !ticket.is_approved() || target.stat()?.as_ref() == seen {
        return Ok(());
    }
    Err(changed_error(&target.shown))
}

/// Fails where the file that is to be replaced no longer has the contents that were previewed. Times can be set back,
/// contents cannot. Without an approval there is no preview to compare with.
pub(crate) fn check_previewed(
    target: &WriteTarget,
    shown: Option<Digest>,
    old: Option<&FileToReplace>,
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let Some(shown) = shown else { return Ok(()) };
    let now = old.map(|old| hash_up_to(old.fd.as_fd(), old.stat.size, &target.shown, cx)).transpose()?;
    if now == Some(shown) { Ok(()) } else { Err(changed_error(&target.shown)) }
}

/// The same for a file that goes or moves as it is.
pub(crate) fn check_previewed_at(
    target: &WriteTarget,
    shown: Option<Digest>,
    seen: &FileStat,
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    if shown.is_none() || FileContents::read_target(target, seen, cx)?.digest == shown {
        Ok(())
    } else {
        Err(changed_error(&target.shown))
    }
}

/// The diffs of one preview, within the time and the length that one may have.
#[derive(Debug)]
pub(crate) struct DiffPreview {
    until: Instant,
    diff: LineDiff,
    lines: usize,
}

impl DiffPreview {
    pub(crate) fn new() -> Self {
        Self { until: Instant::now() + DIFF_TIMEOUT, diff: LineDiff::default(), lines: 0 }
    }

    /// Adds a file's old and new contents; `None` for one that is created or deleted.
    pub(crate) fn add(&mut self, shown: &str, old: Option<&FileContents<'_>>, new: Option<&FileContents<'_>>) {
        let text = |side: Option<&FileContents<'_>>| match side {
            None => Some(String::new()),
            Some(contents) => contents.text().map(str::to_owned),
        };
        let (Some(before), Some(after)) = (text(old), text(new)) else {
            let said =
                |side: Option<&FileContents<'_>>| side.map_or_else(|| "nothing".to_owned(), FileContents::describe);
            return self.add_note(&format!("`{shown}` is not shown as text: {} become {}", said(old), said(new)));
        };
        let name = |side: Option<&FileContents<'_>>| side.map(|_| shown.to_owned());
        self.compare([name(old), name(new)], [&before, &after], 0);
    }

    /// Adds text appended to a file, below the file's last lines.
    pub(crate) fn add_at_end(&mut self, shown: &str, old: &FileContents<'_>, added: &str) {
        let names = [Some(shown.to_owned()), Some(shown.to_owned())];
        let Some(text) = old.text() else {
            self.add_note(&format!("`{shown}` is not shown as text: {}", old.describe()));
            return self.compare(names, ["", added], 0);
        };
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let above = lines.len().saturating_sub(CONTEXT_LINES);
        let last = lines[above..].concat();
        self.compare(names, [&last, &format!("{last}{added}")], above);
    }

    pub(crate) fn add_note(&mut self, words: &str) {
        self.diff.parts.push(DiffPart::Note { text: words.to_owned() });
    }

    /// Whether more would not be shown.
    pub(crate) fn is_full(&self) -> bool {
        self.lines > MOST_LINES
    }

    pub(crate) fn into_text(self) -> String {
        if self.diff.parts.is_empty() { String::new() } else { format!("{}\n", self.diff) }
    }

    pub(crate) fn into_body(self) -> PreviewBody {
        match self.diff.has_hunks() {
            _ if self.diff.parts.is_empty() => PreviewBody::None,
            false => PreviewBody::Text(self.diff.to_string()),
            true => PreviewBody::Diff(self.diff),
        }
    }

    /// Compares the old and the new text of a file that `above` lines stand before.
    fn compare(&mut self, [old_path, new_path]: [Option<String>; 2], [old, new]: [&str; 2], above: usize) {
        if old == new {
            return self.add_note("the contents do not change");
        }
        if old.len().max(new.len()) as u64 > LONGEST_TEXT {
            return self.add_note(&format!("too long to compare line by line: {}", describe_extent(old, new, above)));
        }
        let lines = |text| str::split_inclusive(text, '\n').collect::<Vec<&str>>();
        let (old_lines, new_lines) = (lines(old), lines(new));
        let diff = TextDiff::configure().deadline(self.until).diff_slices(&old_lines, &new_lines);
        let mut file = FileDiff { old_path, new_path, hunks: Vec::new() };
        let mut is_cut = false;
        for group in diff.grouped_ops(CONTEXT_LINES) {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
            let (was, is) =
                (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end);
            let changes = group.iter().flat_map(|op| diff.iter_changes(op));
            let left = MOST_LINES.saturating_sub(self.lines);
            let mut lines: Vec<DiffLine> = changes.take(left + 1).map(|change| diff_line(&change)).collect();
            self.lines += lines.len();
            is_cut = lines.len() > left;
            lines.truncate(left);
            file.hunks.push(DiffHunk { old: diff_range(&was, above), new: diff_range(&is, above), lines });
            if is_cut {
                break;
            }
        }
        self.diff.parts.push(DiffPart::File(file));
        if is_cut {
            self.add_note(&format!("… the diff is cut here: {}", describe_extent(old, new, above)));
        }
    }
}

fn diff_line(change: &Change<&str>) -> DiffLine {
    let kind = match change.tag() {
        ChangeTag::Equal => DiffLineChange::Unchanged,
        ChangeTag::Delete => DiffLineChange::Removed,
        ChangeTag::Insert => DiffLineChange::Added,
    };
    let text = change.value().strip_suffix('\n');
    DiffLine { change: kind, text: text.unwrap_or(change.value()).to_owned(), unterminated: text.is_none() }
}

/// Lines as the header of a hunk counts them.
fn diff_range(lines: &std::ops::Range<usize>, above: usize) -> DiffRange {
    let first = if lines.is_empty() { lines.start } else { lines.start + 1 };
    DiffRange { first: (above + first) as u64, count: lines.len() as u64 }
}

/// Sizes of two texts, and the range of lines in which they differ.
fn describe_extent(old: &str, new: &str, above: usize) -> String {
    let same = |(one, other): &(&str, &str)| one == other;
    let first = old.split_inclusive('\n').zip(new.split_inclusive('\n')).take_while(same).count();
    let backwards = |text| str::split_inclusive(text, '\n').rev();
    let alike = backwards(old).zip(backwards(new)).take_while(same).count();
    let last = new.split_inclusive('\n').count().saturating_sub(alike).max(first + 1);
    format!(
        "{} bytes become {}, and the first line that differs is {}, the last {}",
        old.len(),
        new.len(),
        above + first + 1,
        above + last
    )
}

/// The error for a file that is not the one that was planned with or previewed.
pub(crate) fn changed_error(shown: &str) -> ToolError {
    let message = format!("`{shown}` changed since the call was planned; nothing was changed");
    ToolError::new(ErrorKind::Conflict, message)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ringfence_kernel::PreviewBody;
    use ringfence_testkit::cpu_share::thread_cpu_time;

    use super::{DiffPreview, FileContents};

    #[track_caller]
    fn check(old: Option<&str>, new: Option<&str>, expected: Expect) {
        let (old, new) = (old.map(|text| FileContents::from_bytes(text.as_bytes())), new.map(|text| text.as_bytes()));
        let mut diffs = DiffPreview::new();
        diffs.add("f", old.as_ref(), new.map(FileContents::from_bytes).as_ref());
        expected.assert_eq(&text(diffs));
    }

    fn text(diffs: DiffPreview) -> String {
        match diffs.into_body() {
            PreviewBody::Diff(diff) => format!("diff\n{diff}"),
            PreviewBody::Text(text) => format!("text\n{text}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_diff_has_the_changed_lines_and_those_around_them() {
        check(
            Some("1\n2\n3\n4\n5\n6\n7\n8\n9\n"),
            Some("1\n2\n3\n4\nfive\n6\n7\n8\n9"),
            expect![[r"
                diff
                --- a/f
                +++ b/f
                @@ -2,8 +2,8 @@
                 2
                 3
                 4
                -5
                +five
                 6
                 7
                 8
                -9
                +9
                \ No newline at end of file"]],
        );
    }

    #[test]
    fn a_created_or_deleted_file_has_one_side() {
        check(
            None,
            Some("a\n"),
            expect![[r#"
                diff
                --- /dev/null
                +++ b/f
                @@ -0,0 +1,1 @@
                +a"#]],
        );
        check(
            Some("a\n"),
            None,
            expect![[r"
            diff
            --- a/f
            +++ /dev/null
            @@ -1,1 +0,0 @@
            -a"]],
        );
        check(
            Some("a"),
            Some("a"),
            expect![[r"
            text
            the contents do not change"]],
        );
    }

    #[test]
    fn binary_content_is_described() {
        check(
            Some("a\0"),
            Some("b"),
            expect![[r"
            text
            `f` is not shown as text: 2 bytes (SHA-256 ffe9aaeaa2a2d5048174df0b80599ef0197ec024c4b051bc9860cff58ef7f9f3) become 1 bytes (SHA-256 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d)"]],
        );
    }

    #[test]
    fn appended_lines_follow_the_last_lines() {
        let mut diffs = DiffPreview::new();
        diffs.add_at_end("log", &FileContents::from_bytes(b"1\n2\n3\n4\n5"), " and more\n6\n");
        expect![[r"
            diff
            --- a/log
            +++ b/log
            @@ -3,3 +3,4 @@
             3
             4
            -5
            \ No newline at end of file
            +5 and more
            +6"]]
        .assert_eq(&text(diffs));
    }

    #[test]
    fn a_very_long_diff_says_where_it_begins_and_ends() {
        let old: String = (0..9000).map(|line| format!("{line}\n")).collect();
        let new = old.replace("00\n", "oo\n").replace('7', "seven");
        let mut diffs = DiffPreview::new();
        diffs.add(
            "f",
            Some(&FileContents::from_bytes(old.as_bytes())),
            Some(&FileContents::from_bytes(new.as_bytes())),
        );
        let shown = text(diffs);
        assert!(shown.lines().count() < 5000);
        let last = shown.lines().last().unwrap();
        assert!(last.starts_with("… the diff is cut here: 43890 bytes become "), "{last}");
        assert!(last.ends_with(", and the first line that differs is 8, the last 8998"), "{last}");
        let (old, new) = ("x\n".repeat(600_000), format!("{}y\n", "x\n".repeat(599_999)));
        check(
            Some(&old),
            Some(&new),
            expect![[r"
            text
            too long to compare line by line: 1200000 bytes become 1200000, and the first line that differs is 600000, the last 600000"]],
        );
    }

    #[test]
    fn texts_that_have_nothing_in_common_are_compared_in_time() {
        let lines =
            |seed: u64| (0..100_000u64).map(|n| format!("{}\n", n.wrapping_mul(seed) % 9973)).collect::<String>();
        let (old, new) = (lines(7919), lines(104_729));
        let started = thread_cpu_time();
        let mut diffs = DiffPreview::new();
        diffs.add(
            "f",
            Some(&FileContents::from_bytes(old.as_bytes())),
            Some(&FileContents::from_bytes(new.as_bytes())),
        );
        assert!(matches!(diffs.into_body(), PreviewBody::Diff(_)));
        let took = thread_cpu_time() - started;
        assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    }
}
