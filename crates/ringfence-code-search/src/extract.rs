//! Symbol extraction: the definitions in one source file.
//!
//! Any bytes have symbols, or none: what is read, how deep, for how long and how many are bounded. The syntax tree is
//! walked without recursion.
//!
//! Not here: which nodes of a tree define something (`syntax.rs`), and languages without a parser (`outline.rs`).

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use tree_sitter::{Node, ParseOptions, Parser, Tree, TreeCursor};

use crate::language::SourceLanguage;
use crate::outline::outline_symbols;
use crate::symbol::{CodeSymbol, SymbolKind};
use crate::syntax::{DefinitionNode, NodeRole, SyntaxScope, classify, docstring};

/// Bytes of a signature.
pub(crate) const MAX_SIGNATURE_BYTES: usize = 400;

/// Constants and macros of a file. More are a table that a program wrote, such as the bindings of a library.
const MAX_VALUES: usize = 100;

/// Bytes of a definition whose value is a part of its signature.
const MAX_SHORT_DEFINITION: usize = 120;

/// Bytes of a name, and of an owner.
const MAX_NAME_BYTES: usize = 120;

/// Bytes of documentation.
const MAX_DOC_BYTES: usize = 4 << 10;

/// Bytes of a body.
pub(crate) const MAX_BODY_BYTES: usize = 16 << 10;

/// A file with a longer line was written by a program.
const LONGEST_LINE: usize = 20_000;

/// Bytes that show whether a file is text.
const TEXT_PROBE: usize = 8 << 10;

/// Bounds of an extraction.
#[derive(Clone, Copy, Debug)]
pub struct ExtractionLimits {
    /// Longer files have no symbols.
    pub file_bytes: usize,
    /// Symbols of a file.
    pub symbols: usize,
    /// Levels of the syntax tree that are entered.
    pub depth: usize,
    /// Time for parsing one file. After it the symbols are found by lines.
    pub parse_time: Duration,
}

impl Default for ExtractionLimits {
    fn default() -> Self {
        Self { file_bytes: 1 << 20, symbols: 5000, depth: 400, parse_time: Duration::from_secs(1) }
    }
}

/// The symbols of a file, in its order.
pub fn extract_symbols(language: SourceLanguage, source: &[u8], limits: &ExtractionLimits) -> Vec<CodeSymbol> {
    if source.len() > limits.file_bytes || !is_source_text(source) {
        return Vec::new();
    }
    match parse(language, source, limits) {
        Some(tree) => symbols_of_tree(language, &tree, source, limits),
        None => outline_symbols(&String::from_utf8_lossy(source), limits),
    }
}

/// Whether it is text that people wrote.
pub(crate) fn is_source_text(source: &[u8]) -> bool {
    let start = &source[..source.len().min(TEXT_PROBE)];
    !start.contains(&0) && source.split(|byte| *byte == b'\n').all(|line| line.len() <= LONGEST_LINE)
}

fn parse(language: SourceLanguage, source: &[u8], limits: &ExtractionLimits) -> Option<Tree> {
    let mut parser = Parser::new();
    parser.set_language(&language.grammar()?).ok()?;
    let started = Instant::now();
    let mut on_progress = |_: &tree_sitter::ParseState| match started.elapsed() > limits.parse_time {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let options = ParseOptions::new().progress_callback(&mut on_progress);
    parser.parse_with_options(&mut |at, _| source.get(at..).unwrap_or_default(), None, Some(options))
}

/// A symbol as ranges of its file.
struct SymbolSpan {
    definition: DefinitionNode,
    owner: String,
    /// Comments before it that are documentation, and those that are not.
    doc: Vec<Range<usize>>,
    comments: Vec<Range<usize>>,
    docstring: Option<Range<usize>>,
    rows: (usize, usize),
}

impl SymbolSpan {
    /// Where the definition begins, with its comments.
    fn outer_start(&self) -> usize {
        let comments = self.doc.iter().chain(&self.comments).map(|range| range.start);
        comments.min().unwrap_or(self.definition.range.start).min(self.definition.range.start)
    }
}

/// Comments that stand before the next definition.
#[derive(Default)]
struct PendingComments {
    doc: Vec<Range<usize>>,
    other: Vec<Range<usize>>,
    last_row: usize,
}

impl PendingComments {
    fn push(&mut self, node: Node<'_>, is_doc: bool) {
        self.keep_if_adjacent(node);
        if is_doc { &mut self.doc } else { &mut self.other }.push(node.byte_range());
        self.last_row = node.end_position().row;
    }

    /// A blank line ends the text that belongs to the definition.
    fn keep_if_adjacent(&mut self, node: Node<'_>) {
        if node.start_position().row > self.last_row + 1 {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.doc.clear();
        self.other.clear();
    }
}

/// The end of a container, and the name for what is in it.
struct OpenContainer {
    end: usize,
    scope: SyntaxScope,
}

fn symbols_of_tree(language: SourceLanguage, tree: &Tree, source: &[u8], limits: &ExtractionLimits) -> Vec<CodeSymbol> {
    let mut spans: Vec<SymbolSpan> = Vec::new();
    let mut open: Vec<OpenContainer> = Vec::new();
    let mut pending = PendingComments::default();
    let mut cursor = tree.walk();
    let mut depth = 0;
    loop {
        let node = cursor.node();
        while open.last().is_some_and(|container| node.start_byte() >= container.end) {
            open.pop();
        }
        let outside = SyntaxScope::default();
        let scope = open.last().map_or(&outside, |container| &container.scope);
        let role = if node.is_named() { classify(language, node, source, scope, depth) } else { NodeRole::Mark };
        let mut enters = false;
        match role {
            NodeRole::Mark => {}
            NodeRole::Comment { is_doc } => pending.push(node, is_doc),
            // What stands between a definition and its comments.
            NodeRole::Attribute => pending.last_row = pending.last_row.max(node.end_position().row),
            NodeRole::Skip => pending.clear(),
            NodeRole::Descend => {
                pending.keep_if_adjacent(node);
                enters = true;
            }
            NodeRole::Container(inside) => {
                pending.clear();
                open.push(OpenContainer { end: node.end_byte(), scope: inside });
                enters = true;
            }
            NodeRole::Definition { definition, inside } => {
                pending.keep_if_adjacent(node);
                let owner = definition.owner.clone().unwrap_or_else(|| scope.owner.clone());
                spans.push(SymbolSpan {
                    owner,
                    doc: std::mem::take(&mut pending.doc),
                    comments: std::mem::take(&mut pending.other),
                    docstring: docstring(language, node),
                    rows: rows_of(node),
                    definition: *definition,
                });
                if spans.len() >= limits.symbols {
                    break;
                }
                if let Some(inside) = inside {
                    open.push(OpenContainer { end: node.end_byte(), scope: inside });
                    enters = true;
                }
            }
        }
        if enters && depth < limits.depth && cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        if !advance(&mut cursor, &mut depth) {
            break;
        }
    }
    let mut values = 0;
    let mut is_kept = |symbol: &CodeSymbol| {
        values += usize::from(matches!(symbol.kind, SymbolKind::Constant | SymbolKind::Macro));
        !symbol.name.is_empty()
            && (values <= MAX_VALUES || !matches!(symbol.kind, SymbolKind::Constant | SymbolKind::Macro))
    };
    (0..spans.len()).map(|at| to_symbol(&spans, at, source)).filter(|symbol| is_kept(symbol)).collect()
}

/// The first and the last row with a part of the node.
fn rows_of(node: Node<'_>) -> (usize, usize) {
    let (start, end) = (node.start_position().row, node.end_position());
    // The line end belongs to some nodes.
    (start, if end.column == 0 { end.row.saturating_sub(1).max(start) } else { end.row })
}

/// Goes to the next node after this one and all that is in it.
fn advance(cursor: &mut TreeCursor<'_>, depth: &mut usize) -> bool {
    while !cursor.goto_next_sibling() {
        if !cursor.goto_parent() {
            return false;
        }
        *depth -= 1;
    }
    true
}

fn to_symbol(spans: &[SymbolSpan], at: usize, source: &[u8]) -> CodeSymbol {
    let span = &spans[at];
    let DefinitionNode { kind, name, prefix, range, body, .. } = &span.definition;
    let text = |range: Range<usize>| String::from_utf8_lossy(source.get(range).unwrap_or_default());
    // A short alias or constant says more with its value.
    let is_short = matches!(kind, SymbolKind::Constant | SymbolKind::TypeAlias) && range.len() <= MAX_SHORT_DEFINITION;
    let signature_end = body.as_ref().filter(|_| !is_short).map_or(range.end, |body| body.start);
    let signature = one_line(&format!("{prefix}{}", text(range.start..signature_end)));
    let mut content = BodyText::default();
    for comment in &span.comments {
        content.push(&text(comment.clone()));
    }
    let mut from = signature_end;
    let nested = spans[at + 1..].iter().take_while(|next| next.definition.range.start < range.end);
    let nested = nested.map(|next| (next.outer_start()..next.definition.range.end, next.definition.name.as_str()));
    // A docstring stands before everything that is defined in the body.
    let docstring = span.docstring.iter().map(|range| (range.clone(), ""));
    for (hole, name) in docstring.chain(nested) {
        if hole.start >= from {
            content.push(&text(from..hole.start));
            content.push(name);
            from = hole.end;
        }
    }
    if from < range.end {
        content.push(&text(from..range.end));
    }
    let mut doc = String::new();
    for range in span.doc.iter().cloned().chain(span.docstring.clone()) {
        add_comment(&mut doc, &text(range));
    }
    CodeSymbol {
        kind: *kind,
        name: clip(name, MAX_NAME_BYTES).to_owned(),
        owner: clip(&span.owner, MAX_NAME_BYTES).to_owned(),
        signature,
        start_line: line_number(span.rows.0),
        end_line: line_number(span.rows.1),
        doc: clip(doc.trim(), MAX_DOC_BYTES).to_owned(),
        body: content.text,
    }
}

/// The pieces of a body within its limit.
#[derive(Default)]
struct BodyText {
    text: String,
}

impl BodyText {
    fn push(&mut self, piece: &str) {
        let piece = clip(piece, MAX_BODY_BYTES.saturating_sub(self.text.len()));
        if !piece.is_empty() {
            self.text.push_str(piece);
            self.text.push('\n');
        }
    }
}

/// A row of the parser as a line.
pub(crate) fn line_number(row: usize) -> u32 {
    u32::try_from(row).unwrap_or(u32::MAX).saturating_add(1)
}

/// A text on one line, without what introduces a body.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.len() + word.len() >= MAX_SIGNATURE_BYTES {
            line.push_str(" …");
            return line;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line.truncate(line.trim_end_matches(['{', ':', '=', ' ', ';']).len());
    line
}

/// The start of a text, of at most `most` bytes.
pub(crate) fn clip(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Adds the text of a comment or a docstring, without the signs that make it one.
fn add_comment(doc: &mut String, comment: &str) {
    let comment = comment.trim_start_matches(['r', 'R', 'u', 'U', 'b', 'B']).trim_matches(['"', '\'']);
    for line in comment.lines() {
        let line = line.trim().trim_start_matches(['/', '*', '!', '#']).trim_end_matches(['/', '*']).trim();
        if doc.len() < MAX_DOC_BYTES {
            doc.push_str(line);
            doc.push('\n');
        }
    }
}
