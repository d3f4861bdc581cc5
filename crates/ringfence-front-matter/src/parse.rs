//! Front matter parsing: from YAML events to a tree.
//!
//! The result is bounded: levels, values and text, each with aliases expanded. YAML features that a front matter must
//! not have are refused here, by their line.
//!
//! Not here: the lines that open and close it, and characters that are refused everywhere.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, StrInput, StructureStyle, options};
use serde_json::Value;

use crate::FrontMatterError;
use crate::tree::{YamlMapping, YamlNode, YamlNodeKind, YamlPair, YamlTree, skip_blank, trimmed};

const MOST_LEVELS: usize = 64;
const MOST_NODES: usize = 10_000;
/// Bytes of text in all values together. Only aliases can make it more than the block has.
const MOST_TEXT: usize = 256 * 1024;
const LONGEST_KEY: usize = 1024;

const TOO_DEEP: &str = "more than 64 levels deep, counting what aliases repeat";
const TAB_INDENT: &str = "a tab in the indentation; indent with spaces";

pub(super) fn parse(block: &str) -> Result<YamlTree<'_>, FrontMatterError> {
    let options = options! {
        disallow_directives: true,
        emit_anchor_events: true,
        emit_comments: false,
        simple_key_max_lookahead: LONGEST_KEY,
        flow_nesting_limit: MOST_LEVELS,
        block_nesting_limit: MOST_LEVELS,
    };
    let mut builder = YamlTreeBuilder {
        block,
        parser: Parser::new_from_str_with_options(block, options),
        tabbed: tabbed_lines(block),
        used: YamlSize::default(),
        anchors: HashMap::new(),
        aliases: Vec::new(),
    };
    let root = builder.document()?;
    Ok(YamlTree { root, aliases: builder.aliases })
}

/// Numbers of the lines that begin with white space that has a tab in it.
fn tabbed_lines(block: &str) -> Vec<usize> {
    let is_tabbed = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    block.lines().enumerate().filter(|(_, line)| is_tabbed(line)).map(|(index, _)| index + 1).collect()
}

struct YamlTreeBuilder<'t> {
    block: &'t str,
    parser: Parser<'t, StrInput<'t>>,
    tabbed: Vec<usize>,
    used: YamlSize,
    anchors: HashMap<usize, YamlAnchor>,
    aliases: Vec<(usize, usize)>,
}

/// Size of a document, with aliases expanded.
#[derive(Clone, Copy, Debug, Default)]
struct YamlSize {
    nodes: usize,
    text: usize,
}

/// A value that aliases can stand for.
#[derive(Debug)]
struct YamlAnchor {
    offset: usize,
    value: Value,
    size: YamlSize,
}

impl<'t> YamlTreeBuilder<'t> {
    /// The one document that there is. None at all is an empty mapping.
    fn document(&mut self) -> Result<YamlMapping<'t>, FrontMatterError> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            let is_mark = match event {
                Event::StreamStart => false,
                Event::StreamEnd => break,
                Event::DocumentStart(explicit, _) => explicit || root.is_some(),
                Event::DocumentEnd => !self.range(span)?.is_empty(),
                event => {
                    root = Some((self.node(event, span, 1)?.kind, span));
                    false
                }
            };
            if is_mark {
                return Err(invalid_at(span, "a second document, or an end marker; front matter is one document"));
            }
        }
        match root {
            None => Ok(YamlMapping { style: StructureStyle::Block, start: 0, pairs: Vec::new() }),
            Some((YamlNodeKind::Mapping(mapping), _)) => Ok(mapping),
            Some((_, span)) => Err(invalid_at(span, "not a mapping; write `key: value`")),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, level: usize) -> Result<YamlNode<'t>, FrontMatterError> {
        self.check_node(&event, span, level)?;
        let mut range = self.range(span)?;
        let before = self.used;
        let id = event.anchor_id();
        let anchor = id.map(|_| self.anchor()).transpose()?;
        self.spend(span, YamlSize { nodes: 1, text: 0 })?;
        let kind = match event {
            Event::Scalar(_, ScalarStyle::Plain, ..) if range.is_empty() => YamlNodeKind::Empty,
            Event::Scalar(text, style, ..) => {
                self.spend(span, YamlSize { nodes: 0, text: text.len() })?;
                if matches!(style, ScalarStyle::Literal | ScalarStyle::Folded) && !keeps_blank(&text) {
                    range.end = trimmed(self.block, range.end);
                }
                YamlNodeKind::Scalar(text, style)
            }
            Event::SequenceStart(style, ..) => {
                let (items, end) = self.items(style, level)?;
                range.end = end;
                YamlNodeKind::Sequence(style, items)
            }
            Event::MappingStart(style, ..) => {
                let (pairs, end) = self.pairs(style, level)?;
                range.end = end;
                YamlNodeKind::Mapping(YamlMapping { style, start: range.start, pairs })
            }
            Event::Alias(id) => YamlNodeKind::Alias(self.alias(id, span, level)?),
            _ => return Err(invalid_at(span, "unsupported YAML")),
        };
        let node = YamlNode { range, anchor_end: anchor.as_ref().map(|anchor| anchor.end), kind };
        if let (Some(id), Some(anchor)) = (id, anchor) {
            let size = YamlSize { nodes: self.used.nodes - before.nodes, text: self.used.text - before.text };
            self.anchors.insert(id, YamlAnchor { offset: anchor.start, value: node.to_json(), size });
        }
        Ok(node)
    }

    fn check_node(&self, event: &Event<'t>, span: Span, level: usize) -> Result<(), FrontMatterError> {
        if level > MOST_LEVELS {
            return Err(invalid_at(span, TOO_DEEP));
        }
        if event.tag().is_some() {
            return Err(invalid_at(span, "a tag (`!`); front matter has plain values only"));
        }
        // The text of a block scalar may begin with a tab, behind its indentation.
        let text = matches!(event, Event::Scalar(_, ScalarStyle::Literal | ScalarStyle::Folded, ..));
        if !text && self.tabbed.binary_search(&span.start.line()).is_ok() {
            return Err(invalid_at(span, TAB_INDENT));
        }
        Ok(())
    }

    /// Items up to the end of a sequence, and where that is.
    fn items(&mut self, style: StructureStyle, level: usize) -> Result<(Vec<YamlNode<'t>>, usize), FrontMatterError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, span) => {
                    let end = self.end(style, span, items.last())?;
                    return Ok((items, end));
                }
                (event, span) => items.push(self.node(event, span, level + 1)?),
            }
        }
    }

    /// Pairs up to the end of a mapping, and where that is.
    fn pairs(&mut self, style: StructureStyle, level: usize) -> Result<(Vec<YamlPair<'t>>, usize), FrontMatterError> {
        let mut pairs: Vec<YamlPair<'t>> = Vec::new();
        let mut names = HashSet::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                let end = self.end(style, span, pairs.last().map(|pair| &pair.value))?;
                return Ok((pairs, end));
            }
            let pair = self.pair(event, span, level + 1)?;
            if !names.insert(pair.name.clone()) {
                return Err(invalid_at(span, "a duplicate key"));
            }
            pairs.push(pair);
        }
    }

    /// A flow style ends with its bracket, a block style with the last thing in it.
    fn end(&self, style: StructureStyle, span: Span, last: Option<&YamlNode<'t>>) -> Result<usize, FrontMatterError> {
        match (style, last) {
            (StructureStyle::Block, Some(last)) => Ok(last.range.end),
            _ => Ok(self.range(span)?.end),
        }
    }

    fn pair(&mut self, event: Event<'t>, span: Span, level: usize) -> Result<YamlPair<'t>, FrontMatterError> {
        let key = self.node(event, span, level)?;
        let name = match key.kind {
            YamlNodeKind::Empty => String::new(),
            YamlNodeKind::Scalar(text, _) => text.into_owned(),
            YamlNodeKind::Sequence(..) | YamlNodeKind::Mapping(_) | YamlNodeKind::Alias(_) => {
                return Err(invalid_at(span, "a key that is not a scalar"));
            }
        };
        if name.len() > LONGEST_KEY {
            return Err(invalid_at(span, "a key of more than 1024 bytes"));
        }
        // Some readers merge its value into the mapping, and others do not.
        if name == "<<" {
            return Err(invalid_at(span, "a merge key; write the values out"));
        }
        let key_end = key.range.end;
        let behind = skip_blank(self.block, key_end);
        let colon = if self.block.as_bytes().get(behind) == Some(&b':') { Some(behind + 1) } else { None };
        let (event, value_span) = self.next()?;
        let mut value = self.node(event, value_span, level)?;
        if matches!(value.kind, YamlNodeKind::Empty) && value.anchor_end.is_none() {
            // The parser says where the key ends or where the next one starts.
            let at = colon.unwrap_or(key_end);
            value.range = at..at;
        }
        Ok(YamlPair { name, line: span.start.line() + 1, key_end, colon, value })
    }

    /// The anchor that the parser tells of behind its node.
    fn anchor(&mut self) -> Result<Range<usize>, FrontMatterError> {
        match self.next()? {
            (Event::Anchor(..), span) => self.range(span),
            (_, span) => Err(invalid_at(span, "an anchor without a name")),
        }
    }

    fn alias(&mut self, id: usize, span: Span, level: usize) -> Result<Value, FrontMatterError> {
        let target = self.anchors.get(&id).ok_or_else(|| invalid_at(span, "an alias inside its own anchor"))?;
        if level + levels(&target.value) > MOST_LEVELS + 1 {
            return Err(invalid_at(span, TOO_DEEP));
        }
        let (anchor, value, size) = (target.offset, target.value.clone(), target.size);
        self.spend(span, size)?;
        self.aliases.push((anchor, self.range(span)?.start));
        Ok(value)
    }

    fn spend(&mut self, span: Span, size: YamlSize) -> Result<(), FrontMatterError> {
        self.used.nodes += size.nodes;
        self.used.text += size.text;
        if self.used.nodes > MOST_NODES {
            return Err(invalid_at(span, "more than 10000 values, counting what aliases repeat"));
        }
        if self.used.text > MOST_TEXT {
            return Err(invalid_at(span, "aliases that make more than 256 KiB of text"));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), FrontMatterError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(self.explain(&error)),
            None => Err(FrontMatterError::invalid(1, "it ends unexpectedly")),
        }
    }

    fn explain(&self, error: &ScanError) -> FrontMatterError {
        let line = error.marker().line();
        let reason = match error.kind() {
            ErrorKind::RecursionLimitExceeded => TOO_DEEP.into(),
            ErrorKind::UnknownAnchor => "an alias without an anchor".into(),
            ErrorKind::MappingValueNotAllowed => {
                "a `:` after something that cannot be a key; quote text that contains `: `, and keep keys short".into()
            }
            ErrorKind::UnexpectedCharacter { .. } => "a character that cannot start a value".into(),
            ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabInPlainScalar => {
                // The parser may tell of the line where the value started.
                let tabbed = self.tabbed.iter().find(|tabbed| **tabbed >= line).unwrap_or(&line);
                return FrontMatterError::invalid(tabbed + 1, TAB_INDENT);
            }
            _ => error.info().into(),
        };
        FrontMatterError::Invalid { line: line + 1, reason }
    }

    fn range(&self, span: Span) -> Result<Range<usize>, FrontMatterError> {
        let range = span.byte_range().filter(|range| self.block.get(range.clone()).is_some());
        range.ok_or_else(|| invalid_at(span, "an unknown position"))
    }
}

fn invalid_at(span: Span, reason: &'static str) -> FrontMatterError {
    FrontMatterError::invalid(span.start.line() + 1, reason)
}

/// Whether the white space behind a block scalar is part of its text. The parser goes on to what comes next.
fn keeps_blank(text: &str) -> bool {
    let last = text.strip_suffix('\n').unwrap_or(text);
    last.ends_with([' ', '\t', '\n']) || (last.is_empty() && !text.is_empty())
}

fn levels(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(items) => items.iter().map(levels).max(),
        Value::Object(pairs) => pairs.values().map(levels).max(),
        _ => None,
    };
    1 + deepest.unwrap_or(0)
}
