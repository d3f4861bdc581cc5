//! YAML front matter of markdown files.
//!
//! One parser judges it and locates its bytes, so two parsers cannot disagree. Its cost is limited before it is parsed.
//! An update changes the bytes that have to change and no others, and is parsed again before it is accepted.
//!
//! Not here: files, and what the keys mean. That is the tool's and the workflow guard's.

#[cfg(test)]
mod fuzz;
mod parse;
mod render;
mod scalar;
#[cfg(test)]
mod tests;
mod tree;
mod update;

pub use update::{FrontMatterUpdate, apply};

use std::borrow::Cow;

use ringfence_kernel::{ErrorKind, ToolError};
use serde_json::{Map, Value};
use thiserror::Error;

use tree::YamlTree;

/// The longest front matter, without the lines that open and close it.
const MOST_BYTES: usize = 64 * 1024;

/// A front matter cannot be read or updated. Lines are counted in the file, and messages have no contents.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FrontMatterError {
    #[error("no front matter: the first line must be exactly `---`")]
    Missing,
    #[error("the front matter is not closed: another line must be exactly `---`")]
    Unclosed,
    #[error("the front matter has {bytes} bytes; the limit is {MOST_BYTES}")]
    TooLarge { bytes: usize },
    #[error("line {line} of the front matter: {reason}")]
    Invalid { line: usize, reason: Cow<'static, str> },
    /// The current value cannot take the update.
    #[error("`{key}` in line {line} of the front matter {reason}")]
    Target { key: String, line: usize, reason: &'static str },
    #[error("the update would make the front matter invalid: {0}")]
    ResultInvalid(Box<FrontMatterError>),
    /// The edited text does not parse to the expected value. It is discarded.
    #[error("the front matter cannot be updated in place; rewrite the file")]
    EditMismatch,
}

impl FrontMatterError {
    fn invalid(line: usize, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { line, reason: reason.into() }
    }

    /// The error of a tool for the file that replies call `shown`.
    #[must_use]
    pub fn to_tool_error(&self, shown: &str) -> ToolError {
        let kind = match self {
            // It can be read, and is not of the shape that the update needs.
            Self::Target { .. } => ErrorKind::Schema,
            _ => ErrorKind::Frontmatter,
        };
        ToolError::new(kind, format!("`{shown}`: {self}"))
    }
}

/// A front matter that was read. The four parts of its text, in order, are the file.
#[derive(Debug)]
pub struct FrontMatter<'t> {
    opening: &'t str,
    block: &'t str,
    closing: &'t str,
    body: &'t str,
    tree: YamlTree<'t>,
}

impl<'t> FrontMatter<'t> {
    /// Reads the front matter at the start of a file. The first line must be exactly `---`; the first line after it
    /// that is exactly `---` or `...` closes it.
    pub fn read(text: &'t str) -> Result<Self, FrontMatterError> {
        let (opening, rest) = next_line(text);
        if !opening.ends_with('\n') || without_end(opening) != "---" {
            return Err(FrontMatterError::Missing);
        }
        let (block, closing, body) = split_at_closing(rest).ok_or(FrontMatterError::Unclosed)?;
        if block.len() > MOST_BYTES {
            return Err(FrontMatterError::TooLarge { bytes: block.len() });
        }
        check_characters(block)?;
        Ok(Self { opening, block, closing, body, tree: parse::parse(block)? })
    }

    /// Its value, by the core schema of YAML 1.2.
    pub fn to_json(&self) -> Map<String, Value> {
        self.tree.root.to_json()
    }

    /// Everything after the line that closes it.
    pub fn body(&self) -> &'t str {
        self.body
    }

    /// Its line ending.
    fn line_end(&self) -> &'static str {
        if self.opening.ends_with("\r\n") { "\r\n" } else { "\n" }
    }
}

/// The value of a whole file of YAML, if it is a mapping and within the same limits.
pub fn yaml_mapping(text: &str) -> Option<Map<String, Value>> {
    let is_short = text.len() <= MOST_BYTES;
    let tree = is_short.then(|| check_characters(text).and_then(|()| parse::parse(text)))?;
    Some(tree.ok()?.root.to_json())
}

/// The block, the line that closes it, and what comes after.
fn split_at_closing(text: &str) -> Option<(&str, &str, &str)> {
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = next_line(rest);
        if matches!(without_end(line), "---" | "...") {
            return Some((text.strip_suffix(rest)?, line, after));
        }
        rest = after;
    }
    None
}

/// The first line with its end, and the rest.
fn next_line(text: &str) -> (&str, &str) {
    match text.find('\n') {
        Some(newline) => text.split_at(newline + 1),
        None => (text, ""),
    }
}

fn without_end(line: &str) -> &str {
    let Some(line) = line.strip_suffix('\n') else { return line };
    line.strip_suffix('\r').unwrap_or(line)
}

/// Rejects characters that readers of YAML do not agree on, or that are invisible.
fn check_characters(block: &str) -> Result<(), FrontMatterError> {
    for (index, line) in block.split_terminator('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.chars().any(is_forbidden) {
            let reason = "a control character; write it as an escape in double quotes";
            return Err(FrontMatterError::invalid(index + 2, reason));
        }
        // Some readers end the front matter at whatever begins like its end.
        if line.starts_with("---") || line.starts_with("...") {
            return Err(FrontMatterError::invalid(index + 2, "it starts like the line that closes the front matter"));
        }
    }
    Ok(())
}

/// A tab is judged where it stands. A carriage return alone, and the separators of lines and paragraphs, end a line for
/// some and not for others.
fn is_forbidden(c: char) -> bool {
    (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}
