//! Source languages: which file is of which language, and how its symbols are found.
//!
//! A language is known by the extension of its file's name. Seven are parsed; the symbols of the others are found by their lines.
//!
//! Not here: the symbols (`extract.rs`, `outline.rs`).

use tree_sitter::Language;

/// The language of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceLanguage {
    Rust,
    Python,
    JavaScript,
    TypeScript,
    Go,
    Java,
    C,
    /// One without a parser, by its name.
    Outlined(&'static str),
}

/// Languages without a parser, with the extensions of their files.
const OUTLINED: &[(&str, &[&str])] = &[
    ("cpp", &["cc", "cpp", "cxx", "hh", "hpp", "hxx", "inl"]),
    ("csharp", &["cs"]),
    ("clojure", &["clj", "cljc", "cljs"]),
    ("dart", &["dart"]),
    ("elixir", &["ex", "exs"]),
    ("erlang", &["erl", "hrl"]),
    ("fsharp", &["fs", "fsi"]),
    ("groovy", &["groovy", "gradle"]),
    ("haskell", &["hs"]),
    ("julia", &["jl"]),
    ("kotlin", &["kt", "kts"]),
    ("lua", &["lua"]),
    ("nim", &["nim"]),
    ("objective-c", &["m", "mm"]),
    ("ocaml", &["ml", "mli"]),
    ("perl", &["pl", "pm"]),
    ("php", &["php"]),
    ("powershell", &["ps1", "psm1"]),
    ("protobuf", &["proto"]),
    ("r", &["r"]),
    ("ruby", &["rb", "rake"]),
    ("scala", &["sc", "scala"]),
    ("shell", &["bash", "sh", "zsh"]),
    ("sql", &["sql"]),
    ("svelte", &["svelte"]),
    ("swift", &["swift"]),
    ("vue", &["vue"]),
    ("zig", &["zig"]),
];

/// Other names of languages, as callers write them.
const ALIASES: &[(&str, &str)] = &[
    ("bash", "shell"),
    ("c#", "csharp"),
    ("c++", "cpp"),
    ("cs", "csharp"),
    ("golang", "go"),
    ("js", "javascript"),
    ("jsx", "javascript"),
    ("kt", "kotlin"),
    ("objc", "objective-c"),
    ("py", "python"),
    ("rb", "ruby"),
    ("rs", "rust"),
    ("sh", "shell"),
    ("ts", "typescript"),
    ("tsx", "typescript"),
];

const PARSED: [SourceLanguage; 7] = [
    SourceLanguage::Rust,
    SourceLanguage::Python,
    SourceLanguage::JavaScript,
    SourceLanguage::TypeScript,
    SourceLanguage::Go,
    SourceLanguage::Java,
    SourceLanguage::C,
];

impl SourceLanguage {
    /// The language of the file with this path. `None` for a file that is not source code.
    pub fn of_path(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let (stem, extension) = name.rsplit_once('.')?;
        if stem.is_empty() {
            return None;
        }
        let extension = extension.to_ascii_lowercase();
        match extension.as_str() {
            "rs" => Some(Self::Rust),
            "py" | "pyi" | "pyw" => Some(Self::Python),
            "cjs" | "js" | "jsx" | "mjs" => Some(Self::JavaScript),
            "cts" | "mts" | "ts" | "tsx" => Some(Self::TypeScript),
            "go" => Some(Self::Go),
            "java" => Some(Self::Java),
            "c" | "h" => Some(Self::C),
            other => {
                let found = OUTLINED.iter().find(|(_, extensions)| extensions.contains(&other));
                found.map(|(name, _)| Self::Outlined(name))
            }
        }
    }

    /// The language that a caller names.
    pub fn by_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name.as_str(), |(_, name)| name);
        Self::all().find(|language| language.name() == name)
    }

    /// Every language.
    pub fn all() -> impl Iterator<Item = Self> {
        PARSED.into_iter().chain(OUTLINED.iter().map(|(name, _)| Self::Outlined(name)))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Go => "go",
            Self::Java => "java",
            Self::C => "c",
            Self::Outlined(name) => name,
        }
    }

    /// Its parser. One grammar serves JavaScript and TypeScript with and without JSX: a cast in angle brackets, which only it
    /// reads as markup, costs a node, and a grammar of its own would cost 1.4 MB.
    pub(crate) fn grammar(self) -> Option<Language> {
        match self {
            Self::Rust => Some(tree_sitter_rust::LANGUAGE.into()),
            Self::Python => Some(tree_sitter_python::LANGUAGE.into()),
            Self::JavaScript | Self::TypeScript => Some(tree_sitter_typescript::LANGUAGE_TSX.into()),
            Self::Go => Some(tree_sitter_go::LANGUAGE.into()),
            Self::Java => Some(tree_sitter_java::LANGUAGE.into()),
            Self::C => Some(tree_sitter_c::LANGUAGE.into()),
            Self::Outlined(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_known_by_extension_and_name() {
        for (path, name) in [
            ("src/main.rs", Some("rust")),
            ("a/b.test.TSX", Some("typescript")),
            ("x.h", Some("c")),
            ("x.cc", Some("cpp")),
            ("lib/a.rb", Some("ruby")),
            ("Makefile", None),
            (".rs", None),
            ("a.rs/readme.txt", None),
            ("", None),
        ] {
            assert_eq!(SourceLanguage::of_path(path).map(SourceLanguage::name), name, "{path}");
        }
        for (name, found) in
            [("Rust", Some("rust")), ("c++", Some("cpp")), ("tsx", Some("typescript")), ("cobol", None)]
        {
            assert_eq!(SourceLanguage::by_name(name).map(SourceLanguage::name), found, "{name}");
        }
    }

    #[test]
    fn every_grammar_fits_the_parser() {
        for grammar in PARSED.into_iter().filter_map(SourceLanguage::grammar) {
            tree_sitter::Parser::new().set_language(&grammar).unwrap();
        }
    }
}
