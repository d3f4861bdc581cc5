//! What a change would do to contents, for a person to judge before it happens.
//!
//! Old contents are read in the directory that the plan holds, so far and so long as the call may. What was read is what
//! the preview is bound to: its digest is part of the fingerprint, and a change that was approved makes sure that it is
//! still what is there.
//!
//! Not here: what shall be there. Each tool makes its own.

use std::borrow::Cow;
use std::fmt::{Debug, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use ringfence_kernel::{Body, Context, ErrorKind, Ticket, ToolError};
use rustix::fs::OFlags;
use rustix::io::Errno;
use similar::{ChangeTag, TextDiff};

use crate::again::fstat;
use crate::content::{hash_up_to, read_up_to};
use crate::digest::Digest;
use crate::fault::fault;
use crate::replace::Old;
use crate::slot::Slot;
use crate::stamp::{Kind, Stamp};

/// Looking for the shortest diff ends after this; a longer one is as true.
const PATIENCE: Duration = Duration::from_millis(200);

/// Texts that are longer are not compared line by line.
const LONGEST_TEXT: u64 = 1 << 20;

/// Lines of a diff that anybody could read before saying yes.
const MOST_LINES: usize = 4000;

/// Lines around a change.
const AROUND: usize = 3;

/// Lines of a file that show which one it is.
const FIRST_LINES: usize = 20;

/// The contents of a file, as far as a preview needs them.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    size: u64,
    /// Nothing where they may not be read, or are too large.
    pub(crate) digest: Option<Digest>,
    bytes: Option<Cow<'a, [u8]>>,
}

impl<'a> Contents<'a> {
    /// What stands at a slot, which must be what the plan found there.
    pub(crate) fn at(slot: &Slot, seen: &Stamp, cx: &Context<'_>) -> Result<Self, ToolError> {
        if seen.kind != Kind::File || seen.closed_to_readers() {
            return Ok(Self { size: seen.size, digest: None, bytes: None });
        }
        let fd = match slot.mount.open_at(slot.base(), &slot.name, OFlags::RDONLY) {
            Ok(fd) => fd,
            Err(Errno::ACCESS) => return Ok(Self { size: seen.size, digest: None, bytes: None }),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Err(changed(&slot.shown)),
            Err(errno) => return Err(fault(errno, &slot.shown)),
        };
        if Stamp::of(&fstat(&fd).map_err(|errno| fault(errno, &slot.shown))?) != *seen {
            return Err(changed(&slot.shown));
        }
        Self::of(fd.as_fd(), seen, &slot.shown, cx)
    }

    /// What an open file has.
    pub(crate) fn of(fd: BorrowedFd<'_>, stamp: &Stamp, shown: &str, cx: &Context<'_>) -> Result<Self, ToolError> {
        let size = stamp.size;
        if size > cx.limits.hash_bytes {
            return Ok(Self { size, digest: None, bytes: None });
        }
        if size > cx.limits.appended_file_bytes {
            return Ok(Self { size, digest: Some(hash_up_to(fd, size, shown, cx)?), bytes: None });
        }
        let bytes = read_up_to(fd, size, cx);
        cx.check()?;
        let bytes = bytes.map_err(|errno| fault(errno, shown))?;
        Ok(Self { size, digest: Some(Digest::of(&bytes)), bytes: Some(Cow::Owned(bytes)) })
    }

    /// The first bytes of an open file, so far as they could be shown.
    pub(crate) fn first(fd: BorrowedFd<'_>, size: u64, shown: &str, cx: &Context<'_>) -> Result<Self, ToolError> {
        if size > LONGEST_TEXT {
            return Ok(Self::unread(size));
        }
        let bytes = read_up_to(fd, size, cx);
        cx.check()?;
        let bytes = bytes.map_err(|errno| fault(errno, shown))?;
        Ok(Self { size, digest: Some(Digest::of(&bytes)), bytes: Some(Cow::Owned(bytes)) })
    }

    /// So many bytes that nobody looked at.
    pub(crate) fn unread(size: u64) -> Self {
        Self { size, digest: None, bytes: None }
    }

    /// What shall be there.
    pub(crate) fn given(bytes: &'a [u8]) -> Self {
        Self { size: bytes.len() as u64, digest: Some(Digest::of(bytes)), bytes: Some(Cow::Borrowed(bytes)) }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        let text = std::str::from_utf8(self.bytes.as_deref()?).ok()?;
        if text.contains('\0') { None } else { Some(text) }
    }

    /// The first lines, or what can be said of what has none.
    pub(crate) fn beginning(&self) -> Body {
        let Some(text) = self.text() else { return Body::Text(format!("not text: {}", self.described())) };
        let lines: Vec<&str> = text.lines().take(FIRST_LINES).collect();
        let more = text.lines().count() - lines.len();
        let mut shown = lines.join("\n");
        if more > 0 {
            let _ = write!(shown, "\n… and {more} more lines");
        }
        if shown.is_empty() { Body::None } else { Body::Text(shown) }
    }

    fn described(&self) -> String {
        match self.digest {
            Some(digest) => format!("{} bytes (SHA-256 {})", self.size, digest.to_hex()),
            None => format!("{} bytes that were not read", self.size),
        }
    }
}

/// Binds an answer to what was shown.
pub(crate) fn fingerprint(of: impl Debug) -> String {
    Digest::of(format!("{of:?}").as_bytes()).to_hex()
}

/// Fails where, since a person was asked, something else came to stand at a slot. To be called before anything is opened
/// for the change, so that they are told so and not what is wrong with the other thing.
pub(crate) fn check_still_there(slot: &Slot, seen: Option<&Stamp>, ticket: &Ticket<'_>) -> Result<(), ToolError> {
    if !ticket.approved() || slot.look()?.as_ref() == seen {
        return Ok(());
    }
    Err(changed(&slot.shown))
}

/// Fails where the file that is to be replaced no longer has the contents that a person was shown. Times can be set back,
/// contents cannot. Where nobody was asked, nothing was shown.
pub(crate) fn check_shown(
    slot: &Slot,
    shown: Option<Digest>,
    old: Option<&Old>,
    cx: &Context<'_>,
) -> Result<(), ToolError> {
    let Some(shown) = shown else { return Ok(()) };
    let now = old.map(|old| hash_up_to(old.fd.as_fd(), old.stamp.size, &slot.shown, cx)).transpose()?;
    if now == Some(shown) { Ok(()) } else { Err(changed(&slot.shown)) }
}

/// The same for a file that goes or moves as it is.
pub(crate) fn check_shown_at(
    slot: &Slot,
    shown: Option<Digest>,
    seen: &Stamp,
    cx: &Context<'_>,
) -> Result<(), ToolError> {
    if shown.is_none() || Contents::at(slot, seen, cx)?.digest == shown { Ok(()) } else { Err(changed(&slot.shown)) }
}

/// The diffs of one preview, within the time and the length that one may have.
#[derive(Debug)]
pub(crate) struct Diffs {
    until: Instant,
    text: String,
    lines: usize,
    hunks: usize,
}

impl Diffs {
    pub(crate) fn new() -> Self {
        Self { until: Instant::now() + PATIENCE, text: String::new(), lines: 0, hunks: 0 }
    }

    /// What a file has, and what it shall have; nothing for one that comes to be or goes.
    pub(crate) fn add(&mut self, shown: &str, old: Option<&Contents<'_>>, new: Option<&Contents<'_>>) {
        let text = |side: Option<&Contents<'_>>| match side {
            None => Some(String::new()),
            Some(contents) => contents.text().map(str::to_owned),
        };
        let (Some(before), Some(after)) = (text(old), text(new)) else {
            let said = |side: Option<&Contents<'_>>| side.map_or_else(|| "nothing".to_owned(), Contents::described);
            return self.say(&format!("`{shown}` is not shown as text: {} become {}", said(old), said(new)));
        };
        let names = (old.map_or_else(none, |_| format!("a/{shown}")), new.map_or_else(none, |_| format!("b/{shown}")));
        self.compare(&names, &before, &after, 0);
    }

    /// What is added to the end of a file, below the last lines that it has.
    pub(crate) fn add_at_end(&mut self, shown: &str, old: &Contents<'_>, added: &str) {
        let names = (format!("a/{shown}"), format!("b/{shown}"));
        let Some(text) = old.text() else {
            self.say(&format!("`{shown}` is not shown as text: {}", old.described()));
            return self.compare(&names, "", added, 0);
        };
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let above = lines.len().saturating_sub(AROUND);
        let last = lines[above..].concat();
        self.compare(&names, &last, &format!("{last}{added}"), above);
    }

    pub(crate) fn say(&mut self, words: &str) {
        self.text.push_str(words);
        self.text.push('\n');
    }

    /// Whether more would not be shown.
    pub(crate) fn is_full(&self) -> bool {
        self.lines > MOST_LINES
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    pub(crate) fn into_body(self) -> Body {
        let text = self.text.strip_suffix('\n').unwrap_or(&self.text).to_owned();
        match self.hunks {
            _ if text.is_empty() => Body::None,
            0 => Body::Text(text),
            _ => Body::Diff(text),
        }
    }

    /// Compares two texts that `above` lines stand before.
    fn compare(&mut self, names: &(String, String), old: &str, new: &str, above: usize) {
        if old == new {
            return self.say("the contents stay as they are");
        }
        if old.len().max(new.len()) as u64 > LONGEST_TEXT {
            return self.say(&format!("too long to be compared line by line: {}", extent(old, new, above)));
        }
        let lines = |text| str::split_inclusive(text, '\n').collect::<Vec<&str>>();
        let (old_lines, new_lines) = (lines(old), lines(new));
        let diff = TextDiff::configure().deadline(self.until).diff_slices(&old_lines, &new_lines);
        self.say(&format!("--- {}\n+++ {}", names.0, names.1));
        for group in diff.grouped_ops(AROUND) {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
            let (was, is) =
                (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end);
            self.say(&format!("@@ -{} +{} @@", span(&was, above), span(&is, above)));
            self.hunks += 1;
            for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
                self.lines += 1;
                if self.lines > MOST_LINES {
                    return self.say(&format!("… the diff is cut here: {}", extent(old, new, above)));
                }
                self.text.push(match change.tag() {
                    ChangeTag::Equal => ' ',
                    ChangeTag::Delete => '-',
                    ChangeTag::Insert => '+',
                });
                match change.value().strip_suffix('\n') {
                    Some(line) => self.say(line),
                    None => self.say(&format!("{}\n\\ No newline at end of file", change.value())),
                }
            }
        }
    }
}

fn none() -> String {
    "/dev/null".to_owned()
}

/// Lines as the header of a hunk counts them.
fn span(lines: &std::ops::Range<usize>, above: usize) -> String {
    let first = if lines.is_empty() { lines.start } else { lines.start + 1 };
    format!("{},{}", above + first, lines.len())
}

/// How large two texts are, and where they begin and cease to differ.
fn extent(old: &str, new: &str, above: usize) -> String {
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

/// What was shown, or was planned with, is not what is there.
pub(crate) fn changed(shown: &str) -> ToolError {
    let message = format!("`{shown}` changed since the call was planned; nothing was changed");
    ToolError::new(ErrorKind::Conflict, message)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ringfence_kernel::Body;

    use super::{Contents, Diffs};

    #[track_caller]
    fn check(old: Option<&str>, new: Option<&str>, expected: Expect) {
        let (old, new) = (old.map(|text| Contents::given(text.as_bytes())), new.map(|text| text.as_bytes()));
        let mut diffs = Diffs::new();
        diffs.add("f", old.as_ref(), new.map(Contents::given).as_ref());
        expected.assert_eq(&text(diffs));
    }

    fn text(diffs: Diffs) -> String {
        match diffs.into_body() {
            Body::Diff(text) => format!("diff\n{text}"),
            Body::Text(text) => format!("text\n{text}"),
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
    fn what_comes_to_be_and_what_goes_has_no_other_side() {
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
            the contents stay as they are"]],
        );
    }

    #[test]
    fn what_is_not_text_is_described() {
        check(
            Some("a\0"),
            Some("b"),
            expect![[r"
            text
            `f` is not shown as text: 2 bytes (SHA-256 ffe9aaeaa2a2d5048174df0b80599ef0197ec024c4b051bc9860cff58ef7f9f3) become 1 bytes (SHA-256 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d)"]],
        );
    }

    #[test]
    fn what_is_added_stands_below_the_last_lines() {
        let mut diffs = Diffs::new();
        diffs.add_at_end("log", &Contents::given(b"1\n2\n3\n4\n5"), " and more\n6\n");
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
        let mut diffs = Diffs::new();
        diffs.add("f", Some(&Contents::given(old.as_bytes())), Some(&Contents::given(new.as_bytes())));
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
            too long to be compared line by line: 1200000 bytes become 1200000, and the first line that differs is 600000, the last 600000"]],
        );
    }

    #[test]
    fn texts_that_have_nothing_in_common_are_compared_in_time() {
        let lines =
            |seed: u64| (0..100_000u64).map(|n| format!("{}\n", n.wrapping_mul(seed) % 9973)).collect::<String>();
        let (old, new) = (lines(7919), lines(104_729));
        let started = std::time::Instant::now();
        let mut diffs = Diffs::new();
        diffs.add("f", Some(&Contents::given(old.as_bytes())), Some(&Contents::given(new.as_bytes())));
        assert!(matches!(diffs.into_body(), Body::Diff(_)));
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
