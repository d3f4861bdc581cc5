//! Type names: how many are shared, how many are a single word, and which of those are not nouns.

use std::collections::BTreeMap;

use super::lexer::{Token, without_tests};

/// A struct, enum, union, trait or type alias, where it is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypeDefinition {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: usize,
    /// `pub` without a restriction such as `pub(crate)`.
    pub(crate) is_public: bool,
}

/// Figures about a list of type definitions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NameFigures {
    pub(crate) definitions: usize,
    pub(crate) one_word_percent: f64,
    /// Definitions that share their name with another one.
    pub(crate) shared_percent: f64,
    pub(crate) mean_length: f64,
    /// Participles, pronouns, adverbs and prepositions that stand alone as a name.
    pub(crate) not_nouns: Vec<String>,
    /// Names of two or more `pub` types, with where they are.
    pub(crate) shared_public: Vec<(String, Vec<String>)>,
    /// The names with the most definitions, most first.
    pub(crate) most_shared: Vec<(String, usize)>,
}

/// The type definitions of a file, without those of its tests, associated types, and the arguments and outcomes that
/// every tool has.
pub(crate) fn definitions(file: &str, tokens: &[Token]) -> Vec<TypeDefinition> {
    let tokens = without_tests(tokens);
    let is_tool = implements_tool(&tokens);
    let mut found = Vec::new();
    let mut blocks: Vec<BlockKind> = Vec::new();
    let mut opens = BlockKind::Other;
    for (at, token) in tokens.iter().enumerate() {
        let is_item = at == 0 || begins_item(&tokens[at - 1]);
        match token.ident() {
            Some("impl" | "trait") if is_item => opens = BlockKind::Associated,
            Some("fn" | "mod" | "struct" | "enum" | "union") if is_item => opens = BlockKind::Other,
            _ if token.is_punct('{') => blocks.push(std::mem::replace(&mut opens, BlockKind::Other)),
            _ if token.is_punct('}') => {
                blocks.pop();
            }
            _ => {}
        }
        let is_associated = blocks.last() == Some(&BlockKind::Associated);
        let Some(name) = defined_name(&tokens, at, is_item).filter(|_| !is_associated) else { continue };
        if is_tool && (name.ends_with("Args") || name.ends_with("Outcome")) {
            continue;
        }
        let is_public = at > 0 && tokens[at - 1].is_ident("pub");
        found.push(TypeDefinition { name: name.to_owned(), file: file.to_owned(), line: token.line, is_public });
    }
    found
}

#[derive(Debug, PartialEq, Eq)]
enum BlockKind {
    /// Of an `impl` or a `trait`: a `type` in it is an associated one.
    Associated,
    Other,
}

/// Whether an item can begin behind this token. The `)` is that of `pub(crate)`, the `]` that of an attribute.
fn begins_item(before: &Token) -> bool {
    ['}', '{', ';', ']', ')'].iter().any(|c| before.is_punct(*c))
        || ["pub", "unsafe", "async", "const", "auto"].iter().any(|word| before.is_ident(word))
}

fn defined_name(tokens: &[Token], at: usize, is_item: bool) -> Option<&str> {
    let keyword = tokens[at].ident()?;
    let name = tokens.get(at + 1)?.ident()?;
    let is_type = ["struct", "enum", "union", "trait", "type"].contains(&keyword);
    (is_item && is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

fn implements_tool(tokens: &[Token]) -> bool {
    tokens.windows(3).any(|w| w[0].is_ident("impl") && w[1].is_ident("Tool") && w[2].is_ident("for"))
}

pub(crate) fn figures(definitions: &[TypeDefinition]) -> NameFigures {
    let mut by_name: BTreeMap<&str, Vec<&TypeDefinition>> = BTreeMap::new();
    for definition in definitions {
        by_name.entry(&definition.name).or_default().push(definition);
    }
    let shared: usize = by_name.values().map(Vec::len).filter(|count| *count > 1).sum();
    let one_word = definitions.iter().filter(|definition| is_one_word(&definition.name)).count();
    let letters: usize = definitions.iter().map(|definition| definition.name.chars().count()).sum();
    let shared_public = by_name.iter().filter_map(|(name, definitions)| {
        let public: Vec<String> = definitions
            .iter()
            .filter(|definition| definition.is_public)
            .map(|definition| format!("{}:{}", definition.file, definition.line))
            .collect();
        (public.len() > 1).then(|| ((*name).to_owned(), public))
    });
    let mut most_shared: Vec<(String, usize)> =
        by_name.iter().map(|(name, all)| ((*name).to_owned(), all.len())).filter(|(_, count)| *count > 1).collect();
    most_shared.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    NameFigures {
        definitions: definitions.len(),
        one_word_percent: percent(one_word, definitions.len()),
        shared_percent: percent(shared, definitions.len()),
        mean_length: ratio(letters, definitions.len()),
        not_nouns: definitions.iter().map(|it| it.name.clone()).filter(|name| is_not_a_noun(name)).collect(),
        shared_public: shared_public.collect(),
        most_shared,
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * ratio(part, whole)
}

fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn is_one_word(name: &str) -> bool {
    name.chars().filter(|c| c.is_uppercase()).count() <= 1
}

/// Whether a name is one word, and that a participle, a pronoun, an adverb or a preposition.
pub(crate) fn is_not_a_noun(name: &str) -> bool {
    let listed = |list: &str| list.split_whitespace().any(|word| word == name);
    let by_ending = ["ed", "en", "ing"].iter().any(|ending| name.ends_with(ending)) && !listed(NOT_PARTICIPLES);
    is_one_word(name) && (by_ending || listed(IRREGULAR_PARTICIPLES) || listed(FUNCTION_WORDS))
}

/// Other words that end like participles.
const NOT_PARTICIPLES: &str = "\
    Binding Embed Encoding Feed Finding Framing Heading Listing Mapping Need Open Padding Ping Pricing Ring \
    Screen Seed Setting Speed Spelling String Thing Timing Token Tracing Warden Warning Wording";

const IRREGULAR_PARTICIPLES: &str = "\
    Begun Bought Bound Brought Built Caught Come Cut Done Drawn Felt Found Gone Got Grown Heard Held Kept Known \
    Laid Learnt Led Left Lent Lost Made Meant Met Paid Ran Read Said Seen Sent Shown Shut Sold Sought Spent \
    Stood Stuck Sworn Taught Thought Thrown Told Torn Understood Went Withdrawn Won Worn";

/// Pronouns, question words, adverbs, prepositions and conjunctions.
const FUNCTION_WORDS: &str = "\
    About Above After Afterwards Again Ago All Alone Along Already Always Among Anew Another Any Anybody \
    Anything Apart Around As Aside At Away Before Behind Below Beneath Beside Besides Between Beyond Both But By \
    Down During Each Either Else Elsewhere Enough Every Everybody Everything From Here How In Inside Instead \
    Into It Its Later Meanwhile Mine Neither Never Nobody Nothing Now Of Off On Once Only Onto Onward Other \
    Others Ours Out Outside Over Own Rather Since So Some Somebody Something Soon Still Such That Theirs Then \
    There These They This Those Through Thus To Together Too Towards Under Until Up Upon Us Via We What Whatever \
    When Where Whether Which Whichever While Who Whoever Whom Whose Why With Within Without Yet";

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::{definitions, figures, is_not_a_noun};

    fn names(source: &str) -> Vec<(String, bool)> {
        definitions("a.rs", &tokens(source)).into_iter().map(|it| (it.name, it.is_public)).collect()
    }

    #[test]
    fn every_kind_of_type_is_a_definition_once() {
        let source = "
            pub struct A<T: Clone>(T);
            pub(crate) enum B { One, Two { type_: u8 } }
            #[derive(Debug)] trait C: Send { type Work; fn f(&self) -> impl Iterator<Item = u8> { struct Inner; } }
            impl C for A<u8> { type Work = B; }
            unsafe impl Send for B {}
            pub type D = Box<dyn C>;
            mod nested { pub union E { a: u8 } }
            fn f() where u8: Copy { enum F {} }
            #[cfg(test)] mod tests { struct Hidden; }
            // struct Comment;
            const S: &str = \"struct Text;\";
        ";
        let wanted =
            [("A", true), ("B", false), ("C", false), ("Inner", false), ("D", true), ("E", true), ("F", false)];
        assert_eq!(names(source), wanted.map(|(name, public)| (name.to_owned(), public)));
    }

    #[test]
    fn the_arguments_and_outcomes_of_tools_are_left_out_in_tools_alone() {
        let types = "struct StandardArgs; struct Args; struct Outcome; struct ReadFile;";
        let tool = format!("{types} impl Tool for ReadFile {{ type Args = Args; }}");
        assert_eq!(names(&tool), [("ReadFile".to_owned(), false)]);
        assert_eq!(names(types).len(), 4);
    }

    #[test]
    fn figures_count_definitions_and_not_names() {
        let source =
            "pub struct Line; struct Line; enum Said {} pub struct Host; pub trait Host {} struct WriteTarget;";
        let found = figures(&definitions("a.rs", &tokens(source)));
        assert_eq!(found.definitions, 6);
        assert!((found.shared_percent - 400.0 / 6.0).abs() < 0.01, "{}", found.shared_percent);
        assert!((found.one_word_percent - 500.0 / 6.0).abs() < 0.01, "{}", found.one_word_percent);
        assert!((found.mean_length - 31.0 / 6.0).abs() < 0.01, "{}", found.mean_length);
        assert_eq!(found.not_nouns, ["Said"]);
        assert_eq!(found.shared_public, [("Host".to_owned(), vec!["a.rs:1".to_owned(); 2])]);
        assert_eq!(found.most_shared, [("Host".to_owned(), 2), ("Line".to_owned(), 2)]);
    }

    #[test]
    fn participles_pronouns_and_adverbs_are_told_from_nouns() {
        for name in ["Asked", "Taken", "Waiting", "Said", "Held", "Whose", "Afterwards", "Beyond", "Nobody"] {
            assert!(is_not_a_noun(name), "{name}");
        }
        for name in ["Token", "Warning", "Encoding", "Host", "PendingApproval", "WriteTarget", "Nobodies"] {
            assert!(!is_not_a_noun(name), "{name}");
        }
    }
}
