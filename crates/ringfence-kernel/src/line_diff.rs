//! Line diffs: the files, hunks and lines of a change.
//!
//! A diff stays a value until a frontend draws it; as text it is a unified diff. Everything in it was sanitized when it was
//! put into a preview.
//!
//! Not here: comparing texts. The tools that change files do that.

use std::fmt::{self, Write as _};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sanitize::{sanitize_line, sanitize_text};

/// The line of a unified diff that follows an unterminated one.
pub const UNTERMINATED_NOTE: &str = "\\ No newline at end of file";

/// Changes of files, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LineDiff {
    /// The parts, in the order in which they are read.
    pub parts: Vec<DiffPart>,
}

/// A part of a diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum DiffPart {
    /// A file that changes.
    File(FileDiff),
    /// Words about what cannot be shown line by line.
    Note {
        /// The words.
        text: String,
    },
}

/// The changes of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileDiff {
    /// Display path of the file before the change; null for one that is created.
    pub old_path: Option<String>,
    /// Display path of the file after the change; null for one that is deleted.
    pub new_path: Option<String>,
    /// The stretches that change.
    pub hunks: Vec<DiffHunk>,
}

/// One stretch of a file that changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffHunk {
    /// Lines of the old file.
    pub old: DiffRange,
    /// Lines of the new file.
    pub new: DiffRange,
    /// The lines, with some around them that stay. A diff that was cut has fewer than the ranges say.
    pub lines: Vec<DiffLine>,
}

/// A range of lines, as the header of a hunk has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffRange {
    /// Number of the first line, from 1; the line before, for an empty range.
    pub first: u64,
    /// Number of lines.
    pub count: u64,
}

/// A line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiffLine {
    /// Whether it goes, comes or stays.
    pub change: DiffLineChange,
    /// The line without its newline.
    pub text: String,
    /// The last line of a file that does not end with a newline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unterminated: bool,
}

/// The fate of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DiffLineChange {
    /// It stays.
    Unchanged,
    /// It is in the old file only.
    Removed,
    /// It is in the new file only.
    Added,
}

impl LineDiff {
    /// Whether any lines are compared in it.
    pub fn has_hunks(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, DiffPart::File(file) if !file.hunks.is_empty()))
    }

    /// The same with nothing in it that a terminal would obey, reorder or leave out.
    #[must_use]
    pub(crate) fn sanitized(mut self) -> Self {
        for part in &mut self.parts {
            match part {
                DiffPart::Note { text } => *text = sanitize_text(text),
                DiffPart::File(FileDiff { old_path, new_path, hunks }) => {
                    for path in [old_path, new_path].into_iter().flatten() {
                        *path = sanitize_line(path);
                    }
                    for line in hunks.iter_mut().flat_map(|hunk| &mut hunk.lines) {
                        // With its sign, as it is shown: a long line is cut by what is shown of it.
                        let shown = sanitize_text(&format!("{}{}", line.change.sign(), line.text));
                        line.text = shown.get(1..).unwrap_or_default().to_owned();
                    }
                }
            }
        }
        self
    }
}

impl FileDiff {
    /// The names of both sides in a unified diff.
    pub fn names(&self) -> [String; 2] {
        [("a", &self.old_path), ("b", &self.new_path)].map(|(side, path)| match path {
            Some(path) => format!("{side}/{path}"),
            None => "/dev/null".to_owned(),
        })
    }
}

impl DiffHunk {
    /// The old or the new text of this stretch: its unchanged lines, and those with `change`.
    pub fn side(&self, change: DiffLineChange) -> String {
        let mut text = String::new();
        for line in self.lines.iter().filter(|line| line.change == DiffLineChange::Unchanged || line.change == change) {
            text.push_str(&line.text);
            if !line.unterminated {
                text.push('\n');
            }
        }
        text
    }
}

impl DiffLineChange {
    /// The first character of such a line in a unified diff.
    pub fn sign(self) -> char {
        match self {
            Self::Unchanged => ' ',
            Self::Removed => '-',
            Self::Added => '+',
        }
    }
}

/// A unified diff, without the newline at its end.
impl fmt::Display for LineDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                DiffPart::Note { text: note } => {
                    let _ = writeln!(text, "{note}");
                }
                DiffPart::File(file) => write_file(&mut text, file)?,
            }
        }
        f.write_str(text.strip_suffix('\n').unwrap_or(&text))
    }
}

impl fmt::Display for DiffHunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { old, new, .. } = self;
        write!(f, "@@ -{},{} +{},{} @@", old.first, old.count, new.first, new.count)
    }
}

fn write_file(text: &mut String, file: &FileDiff) -> fmt::Result {
    let [old, new] = file.names();
    writeln!(text, "--- {old}\n+++ {new}")?;
    for hunk in &file.hunks {
        writeln!(text, "{hunk}")?;
        for DiffLine { change, text: line, unterminated } in &hunk.lines {
            writeln!(text, "{}{line}", change.sign())?;
            if *unterminated {
                writeln!(text, "{UNTERMINATED_NOTE}")?;
            }
        }
    }
    Ok(())
}
