//! Lines of the approval dialog: arguments and previews, styled, escaped and wrapped.
//!
//! Not here: the dialog and its keys (`dialog.rs`).

use ringfence_kernel::{DiffLineChange, DiffPart, FileDiff, Preview, PreviewBody, UNTERMINATED_NOTE, sanitize_line};
use serde_json::Value;
use unicode_width::UnicodeWidthChar as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialogStyle {
    Plain,
    Title,
    Faint,
    Added,
    Removed,
    Hunk,
    Prompt,
}

/// A line that fits the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialogLine {
    pub(crate) style: DialogStyle,
    pub(crate) text: String,
}

pub(crate) fn styled_line(style: DialogStyle, text: String) -> DialogLine {
    DialogLine { style, text }
}

pub(crate) fn json_lines(args: &Value) -> Vec<DialogLine> {
    let text = serde_json::to_string_pretty(args).unwrap_or_default();
    escaped_lines(&text).into_iter().map(|text| styled_line(DialogStyle::Plain, text)).collect()
}

/// The preview; a diff has its colours.
pub(crate) fn preview_lines(preview: &Preview) -> Vec<DialogLine> {
    let plain = |text: &str| -> Vec<DialogLine> {
        let lines = escaped_lines(text.trim_end_matches('\n')).into_iter();
        lines.map(|text| styled_line(DialogStyle::Plain, text)).collect()
    };
    let PreviewBody::Diff(diff) = preview.body() else { return plain(&preview.text()) };
    let mut lines = plain(preview.summary());
    lines.extend(preview.lines().iter().flat_map(|line| plain(line)));
    for part in &diff.parts {
        match part {
            DiffPart::Note { text } => lines.extend(plain(text)),
            DiffPart::File(file) => lines.extend(file_diff_lines(file)),
        }
    }
    lines
}

fn file_diff_lines(file: &FileDiff) -> Vec<DialogLine> {
    let [old, new] = file.names();
    let mut lines = vec![(DialogStyle::Removed, format!("--- {old}")), (DialogStyle::Added, format!("+++ {new}"))];
    for hunk in &file.hunks {
        lines.push((DialogStyle::Hunk, hunk.to_string()));
        for line in &hunk.lines {
            let style = match line.change {
                DiffLineChange::Unchanged => DialogStyle::Plain,
                DiffLineChange::Removed => DialogStyle::Removed,
                DiffLineChange::Added => DialogStyle::Added,
            };
            lines.push((style, format!("{}{}", line.change.sign(), line.text)));
            if line.unterminated {
                lines.push((DialogStyle::Plain, UNTERMINATED_NOTE.to_owned()));
            }
        }
    }
    let escaped = |(style, text): (DialogStyle, String)| styled_line(style, escaped_lines(&text).concat());
    lines.into_iter().map(escaped).collect()
}

/// Lines that are wider than the window go on in the next.
pub(crate) fn wrap_lines(lines: Vec<DialogLine>, width: usize) -> Vec<DialogLine> {
    let mut fitted = Vec::new();
    for DialogLine { style, text } in lines {
        let (mut part, mut used) = (String::new(), 0);
        for c in text.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > width {
                fitted.push(styled_line(style, std::mem::take(&mut part)));
                used = 0;
            }
            part.push(c);
            used += wide;
        }
        fitted.push(styled_line(style, part));
    }
    fitted
}

/// Each line of a text by itself, without anything that is not seen.
pub(crate) fn escaped_lines(text: &str) -> Vec<String> {
    text.split('\n').map(|line| sanitize_line(&line.replace('\t', "    "))).collect()
}
