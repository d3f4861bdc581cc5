//! Front matter syntax tree with source spans. Offsets are bytes of the block.
//!
//! Not here: how it is built, what plain words mean, and any change.

use std::borrow::Cow;
use std::ops::Range;

use granit_parser::{ScalarStyle, StructureStyle};
use serde_json::{Map, Value};

use crate::scalar;

#[derive(Debug)]
pub(super) struct YamlTree<'t> {
    pub(super) root: YamlMapping<'t>,
    /// For each alias where its anchor is, and where it is itself.
    pub(super) aliases: Vec<(usize, usize)>,
}

#[derive(Debug)]
pub(super) struct YamlMapping<'t> {
    pub(super) style: StructureStyle,
    pub(super) start: usize,
    pub(super) pairs: Vec<YamlPair<'t>>,
}

#[derive(Debug)]
pub(super) struct YamlPair<'t> {
    pub(super) name: String,
    /// The line of the file that the key is in.
    pub(super) line: usize,
    pub(super) key_end: usize,
    /// Right behind the colon. A key without a value may have none.
    pub(super) colon: Option<usize>,
    pub(super) value: YamlNode<'t>,
}

#[derive(Debug)]
pub(super) struct YamlNode<'t> {
    /// Range of its contents. A block style starts at its indicator instead; see `YamlPair::opening`.
    pub(super) range: Range<usize>,
    pub(super) anchor_end: Option<usize>,
    pub(super) kind: YamlNodeKind<'t>,
}

#[derive(Debug)]
pub(super) enum YamlNodeKind<'t> {
    /// Nothing is written there, and that is null.
    Empty,
    Scalar(Cow<'t, str>, ScalarStyle),
    Sequence(StructureStyle, Vec<YamlNode<'t>>),
    Mapping(YamlMapping<'t>),
    Alias(Value),
}

impl YamlTree<'_> {
    /// Whether an alias outside of a range stands for something in it.
    pub(super) fn is_referred_to(&self, range: &Range<usize>) -> bool {
        self.aliases.iter().any(|(anchor, alias)| range.contains(anchor) && !range.contains(alias))
    }
}

impl<'t> YamlMapping<'t> {
    pub(super) fn pair(&self, name: &str) -> Option<&YamlPair<'t>> {
        self.pairs.iter().find(|pair| pair.name == name)
    }

    pub(super) fn end_of_last(&self) -> Option<usize> {
        self.pairs.last().map(|last| last.value.range.end)
    }

    pub(super) fn to_json(&self) -> Map<String, Value> {
        self.pairs.iter().map(|pair| (pair.name.clone(), pair.value.to_json())).collect()
    }
}

impl YamlPair<'_> {
    /// Right behind the colon, or the anchor if there is one.
    pub(super) fn opening(&self) -> Option<usize> {
        self.value.anchor_end.or(self.colon)
    }
}

impl YamlNode<'_> {
    pub(super) fn to_json(&self) -> Value {
        match &self.kind {
            YamlNodeKind::Empty => Value::Null,
            YamlNodeKind::Scalar(text, ScalarStyle::Plain) => scalar::resolve(text),
            YamlNodeKind::Scalar(text, _) => Value::String(text.to_string()),
            YamlNodeKind::Sequence(_, items) => items.iter().map(YamlNode::to_json).collect(),
            YamlNodeKind::Mapping(mapping) => Value::Object(mapping.to_json()),
            YamlNodeKind::Alias(value) => value.clone(),
        }
    }
}

/// Offset of the next character that is neither white space nor in a comment.
pub(super) fn skip_blank(block: &str, from: usize) -> usize {
    let mut rest = block.get(from..).unwrap_or_default();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if !rest.starts_with('#') {
            return block.len() - rest.len();
        }
        rest = rest.find('\n').and_then(|end| rest.get(end..)).unwrap_or_default();
    }
}

/// An end without the white space before it.
pub(super) fn trimmed(block: &str, end: usize) -> usize {
    block.get(..end).unwrap_or_default().trim_end_matches([' ', '\t', '\r', '\n']).len()
}
