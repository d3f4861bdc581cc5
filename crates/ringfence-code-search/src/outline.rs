//! Outline: definitions found by their lines, for languages without a parser.
//!
//! A definition is a line that begins with a keyword and a name, or a function's head; it ends where a later line is not
//! indented more. Takes time in proportion to the text.
//!
//! Not here: languages with a parser (`extract.rs`).

use crate::extract::{ExtractionLimits, MAX_BODY_BYTES, clip, line_number, one_line};
use crate::symbol::{CodeSymbol, SymbolKind};

/// A longer line defines nothing.
const LONGEST_LINE: usize = 400;

/// Lines of a definition.
const MAX_LINES: usize = 400;

/// Levels of owners.
const MAX_OWNERS: usize = 32;

/// Words before a keyword.
const MODIFIERS: &[&str] = &[
    "abstract",
    "async",
    "constexpr",
    "data",
    "default",
    "export",
    "extern",
    "final",
    "fileprivate",
    "friend",
    "implicit",
    "infix",
    "inline",
    "inner",
    "internal",
    "lazy",
    "local",
    "mutating",
    "noncomputable",
    "open",
    "operator",
    "override",
    "partial",
    "private",
    "protected",
    "pub",
    "public",
    "readonly",
    "sealed",
    "static",
    "suspend",
    "tailrec",
    "template",
    "unsafe",
    "virtual",
];

/// Words before a name.
const KEYWORDS: &[(&str, SymbolKind)] = &[
    ("actor", SymbolKind::Class),
    ("class", SymbolKind::Class),
    ("def", SymbolKind::Function),
    ("defmacro", SymbolKind::Macro),
    ("defmodule", SymbolKind::Module),
    ("defn", SymbolKind::Function),
    ("defp", SymbolKind::Function),
    ("enum", SymbolKind::Enum),
    ("extension", SymbolKind::Class),
    ("fn", SymbolKind::Function),
    ("fun", SymbolKind::Function),
    ("func", SymbolKind::Function),
    ("function", SymbolKind::Function),
    ("interface", SymbolKind::Interface),
    ("macro", SymbolKind::Macro),
    ("message", SymbolKind::Struct),
    ("method", SymbolKind::Method),
    ("module", SymbolKind::Module),
    ("namespace", SymbolKind::Module),
    ("newtype", SymbolKind::TypeAlias),
    ("object", SymbolKind::Class),
    ("package", SymbolKind::Module),
    ("proc", SymbolKind::Function),
    ("protocol", SymbolKind::Interface),
    ("record", SymbolKind::Struct),
    ("rpc", SymbolKind::Method),
    ("service", SymbolKind::Interface),
    ("struct", SymbolKind::Struct),
    ("sub", SymbolKind::Function),
    ("trait", SymbolKind::Trait),
    ("type", SymbolKind::TypeAlias),
    ("typealias", SymbolKind::TypeAlias),
    ("union", SymbolKind::Union),
];

/// Words between `create` and a name in SQL.
const CREATED: &[(&str, SymbolKind)] = &[
    ("function", SymbolKind::Function),
    ("index", SymbolKind::Definition),
    ("procedure", SymbolKind::Function),
    ("table", SymbolKind::Struct),
    ("trigger", SymbolKind::Function),
    ("type", SymbolKind::TypeAlias),
    ("view", SymbolKind::Struct),
];

/// Labels in a class that are indented like it.
const LABELS: &[&str] = &["public", "protected", "private", "signals", "slots"];

/// Words that a line with parentheses and a brace begins with, and defines nothing.
const CONTROL: &[&str] = &[
    "assert",
    "await",
    "begin",
    "case",
    "catch",
    "delete",
    "do",
    "elif",
    "else",
    "elsif",
    "except",
    "finally",
    "for",
    "foreach",
    "guard",
    "if",
    "in",
    "let",
    "lock",
    "loop",
    "match",
    "new",
    "not",
    "print",
    "return",
    "select",
    "switch",
    "synchronized",
    "throw",
    "try",
    "unless",
    "until",
    "using",
    "var",
    "when",
    "while",
    "with",
    "yield",
];

/// The definitions of a text, in its order.
pub(crate) fn outline_symbols(text: &str, limits: &ExtractionLimits) -> Vec<CodeSymbol> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found: Vec<LineDefinition<'_>> = Vec::new();
    for (row, line) in lines.iter().enumerate() {
        let trimmed = line.trim();
        if trimmed.len() > LONGEST_LINE || is_comment(trimmed) {
            continue;
        }
        let next = lines.get(row + 1).map_or("", |next| next.trim());
        if let Some(head) = definition_of(trimmed, next) {
            found.push(LineDefinition { head, row, indent: indent_of(line) });
            if found.len() >= limits.symbols {
                break;
            }
        }
    }
    let mut owners: Vec<(usize, &str)> = Vec::new();
    let mut symbols = Vec::with_capacity(found.len());
    for (at, definition) in found.iter().enumerate() {
        let LineDefinition { head, row, indent } = definition;
        owners.retain(|(outer, _)| outer < indent);
        let owner = if head.owner.is_empty() { owners.last().map_or("", |(_, name)| name) } else { head.owner };
        let next = found.get(at + 1).map_or(lines.len(), |next| next.row);
        let end = end_of(&lines, *row, *indent);
        let first = doc_start(&lines, *row);
        let doc: Vec<&str> =
            lines[first..*row].iter().map(|line| line.trim().trim_start_matches(COMMENT_SIGNS).trim()).collect();
        let body = lines[row + 1..=end.min(next.max(row + 1) - 1).max(*row)].join("\n");
        symbols.push(CodeSymbol {
            kind: head.kind,
            name: head.name.to_owned(),
            owner: owner.to_owned(),
            signature: one_line(lines[*row]),
            start_line: line_number(*row),
            end_line: line_number(end),
            doc: doc.join("\n"),
            body: clip(&body, MAX_BODY_BYTES).to_owned(),
        });
        if head.owns() && owners.len() < MAX_OWNERS {
            owners.push((*indent, head.name));
        }
    }
    symbols
}

/// A line that defines something.
struct LineDefinition<'a> {
    head: DefinitionHead<'a>,
    row: usize,
    indent: usize,
}

struct DefinitionHead<'a> {
    kind: SymbolKind,
    name: &'a str,
    owner: &'a str,
}

impl DefinitionHead<'_> {
    fn owns(&self) -> bool {
        use SymbolKind::{Class, Enum, Interface, Module, Struct, Trait};
        matches!(self.kind, Class | Enum | Interface | Module | Struct | Trait)
    }
}

const COMMENT_SIGNS: &[char] = &['/', '*', '#', '-', ';', '%', '!'];

fn is_comment(line: &str) -> bool {
    ["//", "#", "*", "/*", "--", ";", "%", "\""].into_iter().any(|sign| line.starts_with(sign)) || line.is_empty()
}

/// Blanks at the start of a line.
fn indent_of(line: &str) -> usize {
    let blanks = line.chars().take_while(|character| matches!(character, ' ' | '\t'));
    blanks.map(|character| if character == '\t' { 4 } else { 1 }).sum()
}

/// The last line of what begins at a row.
fn end_of(lines: &[&str], row: usize, indent: usize) -> usize {
    let mut end = row;
    for (at, line) in lines.iter().enumerate().skip(row + 1).take(MAX_LINES) {
        let trimmed = line.trim();
        if trimmed.is_empty() {
            continue;
        }
        if indent_of(line) <= indent {
            let is_label = trimmed.ends_with(':') && LABELS.iter().any(|label| trimmed.starts_with(label));
            if is_label {
                continue;
            }
            let closes = trimmed.starts_with(['}', ')', ']']) || trimmed.starts_with("end");
            let opens = trimmed == "{";
            match (closes, opens) {
                (true, _) => return at,
                (_, true) => {}
                _ => return end,
            }
        }
        end = at;
    }
    end
}

/// The first line of the comments right above a row.
fn doc_start(lines: &[&str], row: usize) -> usize {
    let above = lines[..row].iter().rev().take(30);
    row - above
        .take_while(|line| !line.trim().is_empty() && is_comment(line.trim()) && line.len() <= LONGEST_LINE)
        .count()
}

fn definition_of<'a>(line: &'a str, next: &str) -> Option<DefinitionHead<'a>> {
    let mut rest = line.trim_start_matches('(');
    loop {
        let (word, after) = first_word(rest);
        if word.is_empty() {
            break;
        }
        if word.eq_ignore_ascii_case("create") {
            return created(after);
        }
        if let Some((_, kind)) = KEYWORDS.iter().find(|(keyword, _)| *keyword == word) {
            // `enum class`, `data class`, `case object`.
            let (second, after_second) = first_word(after);
            let after = if KEYWORDS.iter().any(|(keyword, _)| *keyword == second) { after_second } else { after };
            return name_and_owner(after).map(|(name, owner)| DefinitionHead { kind: *kind, name, owner });
        }
        if !MODIFIERS.contains(&word) || !after.starts_with(char::is_whitespace) {
            break;
        }
        rest = after;
    }
    assigned_function(line).or_else(|| function_head(line, next))
}

/// The word that a text begins with, and what is after it.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let end = text.find(|character: char| !is_word(character)).unwrap_or(text.len());
    text.split_at(end)
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// `M.foo`, `self.foo` and `Foo::bar` as a name and its owner.
fn name_and_owner(text: &str) -> Option<(&str, &str)> {
    if !text.starts_with(|character: char| character.is_whitespace()) {
        return None;
    }
    let text = text.trim_start();
    let is_part = |character: char| is_word(character) || matches!(character, '.' | ':' | '-' | '?' | '!' | '~');
    let end = text.find(|character: char| !is_part(character)).unwrap_or(text.len());
    let name = text[..end].trim_end_matches([':', '.', '-']);
    let (owner, name) = match name.rfind([':', '.']) {
        Some(at) => (name[..at].trim_end_matches(':'), &name[at + 1..]),
        None => ("", name),
    };
    let is_name = name.starts_with(|character: char| character.is_alphabetic() || character == '_');
    is_name.then_some((name, if owner == "self" { "" } else { owner }))
}

/// The rest of `create or replace function name`.
fn created(text: &str) -> Option<DefinitionHead<'_>> {
    let mut rest = text;
    for _ in 0..6 {
        let (word, after) = first_word(rest);
        if let Some((_, kind)) = CREATED.iter().find(|(created, _)| created.eq_ignore_ascii_case(word)) {
            let mut after = after;
            while let (word @ ("if" | "IF" | "not" | "NOT" | "exists" | "EXISTS"), next) = first_word(after) {
                debug_assert!(!word.is_empty());
                after = next;
            }
            return name_and_owner(after).map(|(name, owner)| DefinitionHead { kind: *kind, name, owner });
        }
        rest = after;
    }
    None
}

/// `name <- function(` and `name = function(`.
fn assigned_function(line: &str) -> Option<DefinitionHead<'_>> {
    let at = line.find("function(").or_else(|| line.find("function ("))?;
    let target = line[..at].trim_end();
    let target = target.strip_suffix("<-").or_else(|| target.strip_suffix('='))?.trim();
    let name = target.rsplit(|character: char| !is_word(character)).next().filter(|name| !name.is_empty())?;
    let owner = target[..target.len() - name.len()].trim_end_matches(['.', ':']);
    Some(DefinitionHead { kind: SymbolKind::Function, name, owner: owner.rsplit(' ').next().unwrap_or_default() })
}

/// The head of a function without a keyword: `int Foo::bar(int x) {`, `name() {`.
fn function_head<'a>(line: &'a str, next: &str) -> Option<DefinitionHead<'a>> {
    let has_body = line.ends_with('{') || (line.ends_with(')') && next == "{");
    let (before, _) = line.split_once('(').filter(|_| has_body)?;
    let before = before.trim_end();
    if before.contains(['=', '"', '\'', '{', ';', '.', ',']) || CONTROL.contains(&first_word(before).0) {
        return None;
    }
    let name_start = before.rfind(|character: char| !is_word(character) && character != '~').map_or(0, |at| at + 1);
    let name_start = before.ceil_char_boundary(name_start);
    let name = before[name_start..].trim_start_matches('~');
    let is_name = name.starts_with(|character: char| character.is_alphabetic() || character == '_');
    let owner = before[..name_start].strip_suffix("::").map_or("", |owner| {
        owner.rsplit(|character: char| !is_word(character) && character != ':').next().unwrap_or_default()
    });
    is_name.then_some(DefinitionHead { kind: SymbolKind::Function, name, owner })
}
