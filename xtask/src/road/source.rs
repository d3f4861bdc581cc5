//! Functions in the source: the file of a symbol, and the lines of its body.
//!
//! The source is formatted, so the brace that closes a function or an `impl` has the indentation of its first line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::symbol::SymbolPath;

/// A function that a person wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceFunction {
    name: String,
    /// The first line of the `impl` or `trait` that it is in.
    owner: Option<String>,
    /// Lines between its braces.
    pub(super) body_lines: usize,
}

/// The functions of files that were read.
#[derive(Debug)]
pub(super) struct SourceIndex {
    root: PathBuf,
    files: BTreeMap<PathBuf, Vec<SourceFunction>>,
}

impl SourceIndex {
    /// An index of the workspace in this directory.
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), files: BTreeMap::new() }
    }

    /// The file and the source of a function of this workspace. Nothing for code that a macro or a derive wrote.
    pub(super) fn find(&mut self, path: &SymbolPath) -> Option<(PathBuf, SourceFunction)> {
        for file in self.module_files(&path.modules) {
            let read =
                || fs::read_to_string(self.root.join(&file)).map(|text| list_functions(&text)).unwrap_or_default();
            let functions = self.files.entry(file.clone()).or_insert_with(read);
            let is_it = |function: &&SourceFunction| {
                function.name == path.function
                    && match (&path.owner, &function.owner) {
                        (Some(owner), Some(header)) => has_word(header, owner),
                        (None, None) => true,
                        // An `impl` for a type without a name, such as a function or a slice.
                        (None, Some(_)) => true,
                        (Some(_), None) => false,
                    }
            };
            if let Some(function) = functions.iter().find(is_it) {
                return Some((file, function.clone()));
            }
        }
        None
    }

    /// The files that a module may be in, the likeliest first. A module within a file is in the file of its parent.
    fn module_files(&self, modules: &[String]) -> Vec<PathBuf> {
        let Some((name, inner)) = modules.split_first() else { return Vec::new() };
        let source = PathBuf::from("crates").join(name.replace('_', "-")).join("src");
        let mut files = Vec::new();
        for depth in (0..=inner.len()).rev() {
            let directory = inner[..depth].iter().fold(source.clone(), |path, module| path.join(module));
            match depth {
                0 => files.extend(["lib.rs", "main.rs"].map(|file| source.join(file))),
                _ => files.extend([directory.with_extension("rs"), directory.join("mod.rs")]),
            }
        }
        files.retain(|file| self.root.join(file).is_file());
        files
    }
}

fn list_functions(text: &str) -> Vec<SourceFunction> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    let mut owner: Option<(usize, String)> = None;
    for (at, line) in lines.iter().enumerate() {
        let start = line.trim_start();
        if owner.as_ref().is_some_and(|(outer, _)| indent(line) == *outer && start.starts_with('}')) {
            owner = None;
        }
        if ["impl ", "impl<", "trait ", "pub trait ", "pub(crate) trait "].iter().any(|word| start.starts_with(word)) {
            owner = (!start.ends_with('}')).then(|| (indent(line), start.to_owned()));
        }
        let Some(name) = function_name(start) else { continue };
        // The signature ends with the line that opens the body, or with a semicolon where there is none.
        let opened =
            lines[at..].iter().position(|line| line.ends_with('{') || line.ends_with(';') || line.ends_with('}'));
        let Some(opened) = opened.map(|lines| at + lines) else { continue };
        let body_lines = match lines[opened] {
            one if one.ends_with('}') => 1,
            none if none.ends_with(';') => continue,
            _ => {
                let is_end = |line: &&str| indent(line) == indent(lines[at]) && line.trim_start() == "}";
                let Some(length) = lines[opened + 1..].iter().position(is_end) else { continue };
                length
            }
        };
        let header = owner.as_ref().filter(|(outer, _)| *outer < indent(line)).map(|(_, header)| header.clone());
        found.push(SourceFunction { name, owner: header, body_lines });
    }
    found
}

/// The name of the function that a line begins.
fn function_name(line: &str) -> Option<String> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub(")
    };
    let end = after.find(['(', '<'])?;
    before.split_whitespace().all(is_qualifier).then(|| after[..end].to_owned())
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::{SourceFunction, list_functions};

    #[test]
    fn functions_are_listed_with_their_types_and_lines() {
        let text = "fn plain() {\n    one();\n}\n\nimpl A for B {\n    const fn short(&self) -> u8 { 1 }\n\n    pub(crate) async fn long<T>(\n        &self,\n    ) -> u8 {\n        let a = 1;\n        if a > 0 {\n        }\n        a\n    }\n}\n\ntrait C {\n    fn declared(&self);\n}\n";
        let function = |name: &str, owner: Option<&str>, body_lines| SourceFunction {
            name: name.to_owned(),
            owner: owner.map(str::to_owned),
            body_lines,
        };
        let header = Some("impl A for B {");
        let expected = [function("plain", None, 1), function("short", header, 1), function("long", header, 4)];
        assert_eq!(list_functions(text), expected);
    }
}
