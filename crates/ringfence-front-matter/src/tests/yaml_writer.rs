//! YAML generator: the same values in many styles, with comments.
//!
//! A stream of choices decides, so that a failing case shrinks to the plainest text that fails.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::scalar;

/// Placement of comments. A value that an update may replace takes those inside of it along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommentPlacement {
    Inside,
    Behind,
    Nowhere,
}

impl CommentPlacement {
    /// For the parts of a value.
    fn within(self) -> Self {
        match self {
            Self::Inside => Self::Inside,
            Self::Behind | Self::Nowhere => Self::Nowhere,
        }
    }

    /// For the value of a key.
    fn of(self, key: &str, parent: &str) -> Self {
        let replaced = parent == "variables" || matches!(key, "currentNodeId" | "updatedAt");
        if replaced && self == Self::Inside { Self::Behind } else { self }
    }
}

#[derive(Debug)]
pub(super) struct YamlWriter {
    choices: Vec<u8>,
    comments: usize,
    anchors: usize,
}

impl YamlWriter {
    pub(super) fn new(mut choices: Vec<u8>) -> Self {
        choices.reverse();
        Self { choices, comments: 0, anchors: 0 }
    }

    /// Number of comments: `#c0;`, `#c1;` and so on.
    pub(super) fn comments(&self) -> usize {
        self.comments
    }

    /// The block, in pieces: one for each key of the top, or one for all.
    pub(super) fn write(&mut self, json: &Map<String, Value>) -> Vec<String> {
        if self.one_in(8) {
            let mapping = self.flow_mapping("", json, 0, CommentPlacement::Inside);
            return vec![format!("{mapping}{}\n", self.comment(CommentPlacement::Behind))];
        }
        let indent = if self.one_in(4) { 3 } else { 0 };
        let mut piece = |(key, value): (&String, &Value)| {
            let comments = CommentPlacement::Inside.of(key, "");
            self.blank_lines(indent, CommentPlacement::Inside) + &self.pair(key, value, indent, comments)
        };
        json.iter().map(&mut piece).collect()
    }

    /// Zero when the choices have run out.
    fn choose(&mut self, options: u8) -> u8 {
        self.choices.pop().unwrap_or_default() % options
    }

    fn one_in(&mut self, options: u8) -> bool {
        self.choose(options) == options - 1
    }

    fn comment(&mut self, comments: CommentPlacement) -> String {
        if comments == CommentPlacement::Nowhere || !self.one_in(4) {
            return String::new();
        }
        self.comments += 1;
        format!(" #c{};", self.comments - 1)
    }

    fn blank_lines(&mut self, indent: usize, comments: CommentPlacement) -> String {
        let mut lines = String::new();
        while self.one_in(6) {
            let _ = writeln!(lines, "{}{}", " ".repeat(indent), self.comment(comments.within()).trim_start());
        }
        lines
    }

    fn anchor(&mut self) -> String {
        if !self.one_in(8) {
            return String::new();
        }
        self.anchors += 1;
        format!(" &a{}", self.anchors)
    }

    /// A pair of a block mapping, with the end of its last line.
    fn pair(&mut self, key: &str, value: &Value, indent: usize, comments: CommentPlacement) -> String {
        let margin = " ".repeat(indent);
        let name = self.key(key);
        if self.one_in(12) {
            let value = self.flow(key, value, indent + 2, comments);
            return format!(
                "{margin}? {name}{}\n{margin}: {value}{}\n",
                self.comment(comments),
                self.comment(comments)
            );
        }
        format!("{margin}{name}:{}", self.block(key, value, indent, comments))
    }

    fn key(&mut self, key: &str) -> String {
        let plain =
            key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(|c| c.is_ascii_alphanumeric());
        if plain && !self.one_in(4) { key.to_owned() } else { self.quoted(key) }
    }

    /// A value behind the colon of a key or the dash of an item, to the end of its last line.
    fn block(&mut self, key: &str, value: &Value, indent: usize, comments: CommentPlacement) -> String {
        let anchor = self.anchor();
        let within = comments.within();
        match value {
            Value::Null if self.one_in(2) => format!("{anchor}{}\n", self.comment(comments)),
            Value::String(text) if is_literal(text) && self.one_in(2) => {
                format!("{anchor} {}", self.literal(text, indent, comments))
            }
            Value::Array(items) if !items.is_empty() && !self.one_in(3) => {
                let indent = if key.is_empty() || self.one_in(2) { indent + 2 } else { indent };
                let mut lines = format!("{anchor}{}\n", self.comment(comments));
                for item in items {
                    lines += &self.blank_lines(indent, comments);
                    lines += &format!("{}-{}", " ".repeat(indent), self.block("", item, indent, within));
                }
                lines
            }
            Value::Object(pairs) if !pairs.is_empty() && !self.one_in(3) => {
                let indent = indent + 1 + usize::from(self.choose(3));
                let mut lines = format!("{anchor}{}\n", self.comment(comments));
                for (name, value) in pairs {
                    lines += &self.blank_lines(indent, comments);
                    lines += &self.pair(name, value, indent, within.of(name, key));
                }
                lines
            }
            value => {
                let gap = if self.one_in(6) { format!("\n{}", " ".repeat(indent + 2)) } else { " ".to_owned() };
                format!("{anchor}{gap}{}{}\n", self.flow(key, value, indent + 1, comments), self.comment(comments))
            }
        }
    }

    fn literal(&mut self, text: &str, indent: usize, comments: CommentPlacement) -> String {
        let content = text.trim_end_matches('\n');
        let chomp = match text.len() - content.len() {
            0 => "-",
            1 => "",
            _ => "+",
        };
        let mut lines = format!("|{chomp}{}\n", self.comment(comments));
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            let margin = if line.is_empty() { 0 } else { indent + 2 };
            let _ = writeln!(lines, "{}{line}", " ".repeat(margin));
        }
        // Without it, blank lines that follow would be part of the text.
        lines += if chomp == "+" { "# end\n" } else { "" };
        lines
    }

    /// A value on one line, or on several where that is allowed between brackets.
    fn flow(&mut self, key: &str, value: &Value, indent: usize, comments: CommentPlacement) -> String {
        match value {
            Value::Null => ["null", "~", "Null"][usize::from(self.choose(3))].to_owned(),
            Value::Bool(true) => ["true", "True"][usize::from(self.choose(2))].to_owned(),
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                let items = items.iter().map(|item| self.flow("", item, indent, comments.within())).collect();
                format!("[{}]", self.listed(items, indent, comments.within()))
            }
            Value::Object(pairs) => self.flow_mapping(key, pairs, indent, comments.within()),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
        }
    }

    /// `key` is the one that has the mapping for its value.
    fn flow_mapping(
        &mut self,
        key: &str,
        pairs: &Map<String, Value>,
        indent: usize,
        comments: CommentPlacement,
    ) -> String {
        let mut listed = Vec::new();
        for (name, value) in pairs {
            let value = match value {
                Value::Null if self.one_in(2) => String::new(),
                value => self.flow(name, value, indent, comments.of(name, key)),
            };
            listed.push(format!("{}: {value}", self.key(name)));
        }
        format!("{{{}}}", self.listed(listed, indent, comments))
    }

    fn listed(&mut self, items: Vec<String>, indent: usize, comments: CommentPlacement) -> String {
        let count = items.len();
        let mut out = String::new();
        for (index, item) in items.into_iter().enumerate() {
            let comma = index + 1 < count || self.one_in(4);
            out += &item;
            out += if comma { "," } else { "" };
            if self.one_in(4) {
                let _ = write!(out, "{}\n{}", self.comment(comments), " ".repeat(indent));
            } else if comma {
                out.push(' ');
            }
        }
        out
    }

    fn text(&mut self, text: &str) -> String {
        let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_/.".contains(c))
            && scalar::resolve(text).is_string();
        if is_word && !self.one_in(3) { text.to_owned() } else { self.quoted(text) }
    }

    fn quoted(&mut self, text: &str) -> String {
        if !text.chars().any(is_unseen) && self.one_in(2) {
            return format!("'{}'", text.replace('\'', "''"));
        }
        let escaped = |c: char| if is_unseen(c) { format!("\\U{:08x}", u32::from(c)) } else { c.to_string() };
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").chars().map(escaped).collect::<String>())
    }
}

fn is_unseen(c: char) -> bool {
    c.is_control() || matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn is_literal(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with([' ', '\n'])
        && !text.chars().any(|c| is_unseen(c) && c != '\n')
        && text.split('\n').all(|line| !line.starts_with(' ') && (line.is_empty() || !line.trim().is_empty()))
}
