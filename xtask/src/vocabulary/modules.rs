//! The import graph between the top-level modules of a crate, and its cycles.
//!
//! An edge is a path `crate::module::…`, in a `use` or in code, or the same by `super::`. An item that `lib.rs` re-exports
//! (`crate::Item`) is an edge to its module only in [`ImportGraph::through_root`].

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{Token, without_tests};

/// Which module imports which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportGraph {
    /// Imports by the path of the module.
    pub(crate) direct: BTreeMap<String, BTreeSet<String>>,
    /// The same, with imports of items that the root of the crate re-exports.
    pub(crate) through_root: BTreeMap<String, BTreeSet<String>>,
}

/// The graph of a crate, from its files below `src`: their paths below it, and their tokens.
pub(crate) fn import_graph(files: &[(String, Vec<Token>)]) -> ImportGraph {
    let modules: BTreeSet<String> = files.iter().filter_map(|(path, _)| module_path(path).into_iter().next()).collect();
    let root = files.iter().find(|(path, _)| path == "lib.rs");
    let reexports = root.map(|(_, tokens)| reexports(tokens, &modules)).unwrap_or_default();
    let mut graph = ImportGraph::default();
    for (path, tokens) in files {
        let parts = module_path(path);
        let Some(from) = parts.first() else { continue };
        for head in crate_path_heads(&without_tests(tokens), parts.len()) {
            let module = modules.contains(&head).then_some(&head);
            let targets =
                [(&mut graph.direct, module), (&mut graph.through_root, module.or_else(|| reexports.get(&head)))];
            for (edges, to) in targets {
                if let Some(to) = to.filter(|to| *to != from) {
                    edges.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
    }
    graph
}

/// The largest group of modules that all reach each other, sorted. Empty where there is no cycle.
pub(crate) fn largest_cycle(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reachable: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|module| (module, reachable_from(module, edges))).collect();
    let group = |module: &String| -> Vec<String> {
        let reached = reachable[module].iter();
        let mutual = reached.filter(|other| reachable.get(*other).is_some_and(|back| back.contains(module)));
        mutual.map(|other| (*other).clone()).collect()
    };
    edges.keys().map(group).max_by_key(Vec::len).unwrap_or_default()
}

/// Imports between two of these modules.
pub(crate) fn imports_between(edges: &BTreeMap<String, BTreeSet<String>>, modules: &[&str]) -> Vec<(String, String)> {
    let pairs = edges.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from.clone(), to.clone())));
    pairs.filter(|(from, to)| modules.contains(&from.as_str()) && modules.contains(&to.as_str())).collect()
}

fn reachable_from<'a>(start: &String, edges: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&String> = edges.get(start).into_iter().flatten().collect();
    while let Some(module) = left.pop() {
        if reached.insert(module) {
            left.extend(edges.get(module).into_iter().flatten());
        }
    }
    reached
}

/// The module of a file below `src`: `a/b.rs` is `[a, b]`, `a/mod.rs` is `[a]`. Roots and binaries have none.
fn module_path(path: &str) -> Vec<String> {
    let mut parts: Vec<String> = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.first().is_some_and(|first| ["lib", "main", "bin"].contains(&first.as_str())) {
        return Vec::new();
    }
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// The first names of all paths that begin at the root of the crate, in a module so many levels below it.
fn crate_path_heads(tokens: &[Token], depth: usize) -> Vec<String> {
    let mut heads = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let supers = (0..).take_while(|n| segment(tokens, at + 3 * n, "super")).count();
        if supers > 0 {
            at += 3 * supers;
        } else if segment(tokens, at, "crate") {
            at += 3;
        } else {
            at += 1;
            continue;
        }
        if supers == 0 || supers == depth {
            heads.extend(use_tree_heads(&tokens[at..]));
        }
    }
    heads
}

/// Whether `name::` stands here.
fn segment(tokens: &[Token], at: usize, name: &str) -> bool {
    let punct = |at: usize| tokens.get(at).is_some_and(|token| token.is_punct(':'));
    tokens.get(at).is_some_and(|token| token.is_ident(name)) && punct(at + 1) && punct(at + 2)
}

/// The first names of a path, or of every path of a group `{a::b, c}`.
fn use_tree_heads(tokens: &[Token]) -> Vec<String> {
    if let Some(name) = tokens.first().and_then(Token::ident) {
        return vec![name.to_owned()];
    }
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut is_start = false;
    for token in tokens {
        match token.ident() {
            Some(name) if depth == 1 && is_start => heads.push(name.to_owned()),
            None if token.is_punct('{') => depth += 1,
            None if token.is_punct('}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        is_start = depth == 1 && (token.is_punct('{') || token.is_punct(','));
    }
    heads
}

/// The items that `lib.rs` re-exports from its modules, by their names at the root.
fn reexports(tokens: &[Token], modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for start in (0..tokens.len()).filter(|at| tokens[*at].is_ident("use")) {
        let Some(module) = tokens.get(start + 1).and_then(Token::ident).filter(|name| modules.contains(*name)) else {
            continue;
        };
        let names = tokens[start + 2..].iter().take_while(|token| !token.is_punct(';')).filter_map(Token::ident);
        found.extend(names.map(|name| (name.to_owned(), module.to_owned())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokens;
    use super::{import_graph, imports_between, largest_cycle, module_path};

    fn graph(files: &[(&str, &str)]) -> super::ImportGraph {
        let files: Vec<_> = files.iter().map(|(path, text)| ((*path).to_owned(), tokens(text))).collect();
        import_graph(&files)
    }

    #[test]
    fn a_cycle_is_found_over_uses_groups_paths_and_supers() {
        let ring = graph(&[
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use d::Deed;"),
            ("a.rs", "use crate::{b::X, std_like};"),
            ("b/mod.rs", "fn f() { crate::c::g() }"),
            ("b/inner.rs", "use super::local; use crate::b::own;"),
            ("c/deep.rs", "use super::super::a::{Y, Z};"),
            ("d.rs", "use crate::a::Y;"),
        ]);
        assert_eq!(largest_cycle(&ring.direct), ["a", "b", "c"]);
        assert_eq!(largest_cycle(&ring.through_root), ["a", "b", "c"]);
    }

    #[test]
    fn a_cycle_by_way_of_the_root_is_told_apart() {
        let files = [("lib.rs", "pub use a::{A, B as C};"), ("a.rs", "use crate::b::X;"), ("b.rs", "use crate::C;")];
        let found = graph(&files);
        assert!(largest_cycle(&found.direct).is_empty(), "{found:?}");
        assert_eq!(largest_cycle(&found.through_root), ["a", "b"]);
    }

    #[test]
    fn tests_and_own_modules_make_no_edges() {
        let found = graph(&[
            ("lib.rs", ""),
            ("a.rs", "use crate::a::X; #[cfg(test)] mod tests { use crate::b::Y; }"),
            ("b.rs", "use crate::a::X;"),
        ]);
        assert_eq!(found.direct.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn imports_between_fronts_are_named() {
        let found = graph(&[
            ("mcp/mod.rs", "use crate::cli::print; use crate::config::load;"),
            ("cli.rs", "use crate::config::load;"),
            ("config.rs", ""),
        ]);
        assert_eq!(imports_between(&found.direct, &["mcp", "cli"]), [("mcp".to_owned(), "cli".to_owned())]);
    }

    #[test]
    fn files_are_mapped_to_modules() {
        for (path, wanted) in
            [("lib.rs", vec![]), ("a.rs", vec!["a"]), ("a/mod.rs", vec!["a"]), ("a/b.rs", vec!["a", "b"])]
        {
            assert_eq!(module_path(path), wanted, "{path}");
        }
        assert!(module_path("bin/x.rs").is_empty());
    }
}
