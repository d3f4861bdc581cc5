//! Patch fuzzing: parsing keeps what the patch says, and applying agrees with a simpler program.

use ringfence_fuzz::FuzzTarget;
use ringfence_kernel::{ErrorKind, ToolError};

use crate::edit::TextRelaxation;
use crate::patch::apply::with_line_endings_of;
use crate::patch::tests::without_final_newline;
use crate::patch::{FilePatch, HunkPlacement, PatchFormat, PatchHunk, PatchKind, apply, parse};

const TOKENS: &[&str] = &[
    "--- a/f\n+++ b/f\n",
    "--- /dev/null\n",
    "+++ /dev/null\n",
    "@@ -1 +1 @@\n",
    "@@ -1,2 +1,3 @@ fn x\n",
    "@@ -0,0 +1 @@\n",
    "diff --git a/f b/f\n",
    "new file mode 100644\n",
    "deleted file mode 100644\n",
    "rename from f\n",
    "similarity index 90%\n",
    "GIT binary patch\n",
    "\\ No newline at end of file\n",
    "+",
    "-",
    " ",
    "\r\n",
    "\n",
    "\"a/\\303\\244\"",
    "\t2024-01-01",
    "```diff\n",
    "*** Begin Patch\n",
    "*** Update File: f\n",
    "*** Add File: f\n",
    "*** Delete File: f\n",
    "*** Move to: g\n",
    "*** End of File\n",
    "*** End Patch\n",
    "@@ fn x\n",
];

fn kind(error: &ToolError) -> String {
    // Lines and counts differ in every input.
    error.message.split([' ', '`']).filter(|word| word.parse::<u64>().is_err()).take(8).collect()
}

/// Checks that a parsed patch is consistent.
fn check_read(file: &FilePatch) {
    for hunk in &file.hunks {
        for side in [&hunk.old, &hunk.new] {
            assert_eq!(side.lines, side.text.split_inclusive('\n').count(), "{hunk:?}");
        }
        assert_eq!(hunk.old.lines + hunk.added, hunk.new.lines + hunk.removed, "{hunk:?}");
    }
    assert!(file.path.as_ref().is_none_or(|path| !path.is_empty()), "{file:?}");
    assert!(file.change != PatchKind::Modify || !file.hunks.is_empty() || file.moved_to.is_some(), "{file:?}");
}

#[test]
fn no_patch_is_read_as_what_it_does_not_say() {
    FuzzTarget::new("patch", env!("CARGO_MANIFEST_DIR")).tokens(TOKENS).check(|bytes| {
        let patch = String::from_utf8_lossy(bytes);
        let files = parse(&patch).map_err(|error| {
            assert_eq!((error.kind, error.field), (ErrorKind::InvalidArgs, Some("patch")));
            kind(&error)
        })?;
        assert!(!files.is_empty());
        files.iter().for_each(check_read);
        Ok::<_, String>(files.iter().map(|file| (file.change as u8, file.hunks.len())).collect::<Vec<_>>())
    });
}

/// Lines out, lines in, from the last hunk to the first. Nothing where a hunk is relaxed, or the end of the file is not the
/// one of the hunk.
fn simply_applied(text: &str, hunks: &[(&HunkPlacement, PatchHunk)], lines_before: &[usize]) -> Option<String> {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    for ((placed, hunk), before) in hunks.iter().zip(lines_before).rev() {
        let (from, to) = (*before, before + hunk.old.lines);
        let there = lines[from..to].concat();
        if placed.relaxation.is_some_and(|relaxation| relaxation != TextRelaxation::ContextMark) {
            assert_eq!(loosely(&there), loosely(&hunk.old.text), "other lines were taken out");
            return None;
        }
        if there != hunk.old.text && to == lines.len() {
            assert_eq!(
                without_final_newline(&there),
                without_final_newline(&hunk.old.text),
                "other lines were taken out"
            );
            return None;
        }
        assert_eq!(there, hunk.old.text, "other lines were taken out");
        lines.splice(from..to, hunk.new.text.split_inclusive('\n'));
    }
    Some(lines.concat())
}

/// Lines without blanks around them and without typographic characters.
fn loosely(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().chars().filter(char::is_ascii_alphanumeric).collect()).collect()
}

#[test]
fn an_applied_patch_matches_the_reference_implementation() {
    FuzzTarget::new("apply", env!("CARGO_MANIFEST_DIR")).tokens(TOKENS).check(|bytes| {
        let input = String::from_utf8_lossy(bytes);
        // A file, a line that ends it, and the patch.
        let (text, patch) = input.split_once("%%\n").unwrap_or(("a\nb\nc\n", &input));
        let files = parse(patch).map_err(|error| kind(&error))?;
        let apply_one = |file: &FilePatch| {
            let applied = apply(text, file, "f").map_err(|error| kind(&error))?;
            if file.format == PatchFormat::V4a && file.change == PatchKind::Delete {
                assert_eq!(applied.text, "");
                return Ok(Vec::new());
            }
            // A position is counted in the new text: the text before it has grown.
            let (mut grown, mut before) = (0, Vec::new());
            let mut hunks: Vec<_> = applied
                .hunks
                .iter()
                .zip(&*with_line_endings_of(text, &file.hunks))
                .map(|(placed, hunk)| match placed.relaxation {
                    Some(TextRelaxation::ContextMark) => (placed, hunk.with_marks_as_text().unwrap()),
                    _ => (placed, hunk.clone()),
                })
                .collect();
            hunks.sort_by_key(|(placed, _)| placed.line);
            for (placed, hunk) in &hunks {
                before.push(usize::try_from((placed.line - 1).cast_signed() - grown).unwrap());
                grown += hunk.added.cast_signed() - hunk.removed.cast_signed();
            }
            assert_eq!(applied.hunks.len(), file.hunks.len());
            if let Some(simply) = simply_applied(text, &hunks, &before) {
                assert_eq!(applied.text, simply);
            }
            assert!(file.change != PatchKind::Delete || applied.text.is_empty());
            Ok::<_, String>(applied.hunks.iter().map(|placed| placed.offset.map(i64::signum)).collect::<Vec<_>>())
        };
        Ok::<_, String>(files.iter().map(apply_one).collect::<Vec<_>>())
    });
}
