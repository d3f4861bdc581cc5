//! Symbols: definitions in source files, with the texts that a search goes by.
//!
//! Not here: finding them (`extract.rs`, `outline.rs`).

use std::collections::HashMap;

use crate::tokens::each_stem;

/// A definition in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeSymbol {
    pub kind: SymbolKind,
    pub name: String,
    /// Type, trait, class or module that it belongs to; empty for none. `Trait for Type` in an implementation.
    pub owner: String,
    /// The definition without its body, on one line.
    pub signature: String,
    /// First line of the definition, from 1.
    pub start_line: u32,
    pub end_line: u32,
    /// Its documentation, without the signs of comments.
    pub doc: String,
    /// What it holds, with comments, without definitions that are symbols of their own and without the documentation.
    pub body: String,
}

/// The kind of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SymbolKind {
    Function,
    Method,
    Struct,
    Enum,
    Union,
    Trait,
    Interface,
    Class,
    Module,
    TypeAlias,
    Constant,
    Macro,
    /// Found by its line.
    Definition,
}

impl SymbolKind {
    /// As answers have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Method => "method",
            Self::Struct => "struct",
            Self::Enum => "enum",
            Self::Union => "union",
            Self::Trait => "trait",
            Self::Interface => "interface",
            Self::Class => "class",
            Self::Module => "module",
            Self::TypeAlias => "type",
            Self::Constant => "constant",
            Self::Macro => "macro",
            Self::Definition => "definition",
        }
    }
}

/// A text of a symbol that a search goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolField {
    Name,
    Signature,
    Owner,
    Path,
    /// Body, comments and documentation.
    Body,
}

/// Number of fields.
pub const FIELD_COUNT: usize = 5;

/// Occurrences by field.
pub type FieldCounts = [u16; FIELD_COUNT];

/// The stems of a symbol with their occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolTerms {
    /// In the order of the stems.
    pub counts: Vec<(String, FieldCounts)>,
    /// Stems in each field.
    pub lengths: FieldCounts,
}

impl SymbolTerms {
    /// The stems of a symbol in the file with this path.
    pub fn new(path: &str, symbol: &CodeSymbol) -> Self {
        let mut counts: HashMap<String, FieldCounts> = HashMap::new();
        let mut lengths = FieldCounts::default();
        let mut take = |field: SymbolField, text: &str| {
            let field = field as usize;
            each_stem(text, |stem| {
                let count = match counts.get_mut(stem) {
                    Some(count) => count,
                    None => counts.entry(stem.to_owned()).or_default(),
                };
                count[field] = count[field].saturating_add(1);
                lengths[field] = lengths[field].saturating_add(1);
            });
        };
        take(SymbolField::Name, &symbol.name);
        take(SymbolField::Signature, &symbol.signature);
        take(SymbolField::Owner, &symbol.owner);
        take(SymbolField::Path, without_extension(path));
        take(SymbolField::Body, &symbol.doc);
        take(SymbolField::Body, &symbol.body);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable();
        Self { counts, lengths }
    }
}

/// A path without the extension of the file.
pub(crate) fn without_extension(path: &str) -> &str {
    match path.rsplit_once('.') {
        Some((stem, extension)) if !extension.contains('/') => stem,
        _ => path,
    }
}
