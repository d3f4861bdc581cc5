//! Queries: words of a question as stems, or the name of a symbol.
//!
//! Not here: finding something (`corpus.rs`).

use crate::tokens::each_stem;

/// Stems of a query.
const MAX_TERMS: usize = 64;

/// A query for symbols.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeQuery {
    /// Its stems, each once, in its order.
    pub terms: Vec<String>,
    /// The symbol that it names, where it is an identifier.
    pub identifier: Option<NamedSymbol>,
}

/// A symbol by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSymbol {
    /// `Host` of `Host::call`; empty for none.
    pub owner: String,
    pub name: String,
}

impl CodeQuery {
    /// A query as it was written.
    pub fn new(text: &str) -> Self {
        let mut terms: Vec<String> = Vec::new();
        each_stem(text, |stem| {
            if terms.len() < MAX_TERMS && !terms.iter().any(|known| known == stem) {
                terms.push(stem.to_owned());
            }
        });
        Self { terms, identifier: NamedSymbol::parse(text.trim()) }
    }
}

impl NamedSymbol {
    /// `name`, `Owner::name`, `Owner.name`, `Owner#name`, `owner->name`, each with or without `()`.
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix("()").unwrap_or(text);
        let is_part = |character: char| character.is_alphanumeric() || matches!(character, '_' | '$');
        let is_joint = |character: char| matches!(character, ':' | '.' | '#' | '-' | '>');
        if text.is_empty()
            || text.len() > 200
            || !text.chars().all(|character| is_part(character) || is_joint(character))
        {
            return None;
        }
        let mut parts = text.rsplit(is_joint).filter(|part| !part.is_empty());
        let name = parts.next()?.to_owned();
        let owner = parts.next().unwrap_or_default().to_owned();
        // Words with a hyphen are words.
        let is_word = text.contains('-') && !text.contains("->");
        (!is_word && name.chars().any(char::is_alphabetic)).then_some(Self { owner, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_every_spelling() {
        for (text, found) in [
            ("Host::call", Some("Host call")),
            ("call", Some(" call")),
            ("read_file()", Some(" read_file")),
            ("a.b.c", Some("b c")),
            ("list->next", Some("list next")),
            ("two words", None),
            ("well-known", None),
            ("42", None),
            ("::", None),
            ("", None),
        ] {
            let named = CodeQuery::new(text).identifier.map(|named| format!("{} {}", named.owner, named.name));
            assert_eq!(named.as_deref(), found, "{text}");
        }
    }
}
