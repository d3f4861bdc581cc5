//! The import graphs between the modules of a crate, and their cycles.
//!
//! An edge is a path `crate::module::…`, in a `use` or in code, or the same by `super::`. An item that `lib.rs` re-exports
//! (`crate::Item`) is an edge to its module only in [`ImportGraph::through_root`].

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{Token, without_tests};

/// Imports of each module.
pub(crate) type ModuleEdges = BTreeMap<String, BTreeSet<String>>;

/// The imports of a crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportGraph {
    /// Between top-level modules, by the path of the module.
    pub(crate) direct: ModuleEdges,
    /// The same, with imports of items that the root of the crate re-exports.
    pub(crate) through_root: ModuleEdges,
    /// Between the children of each module, by its path.
    pub(crate) nested: BTreeMap<String, ModuleEdges>,
}

/// The graph of a crate, from its files below `src`: their paths below it, and their tokens.
pub(crate) fn import_graph(files: &[(String, Vec<Token>)]) -> ImportGraph {
    let modules: BTreeSet<Vec<String>> = files
        .iter()
        .map(|(path, _)| module_path(path))
        .flat_map(|parts| (1..=parts.len()).map(move |length| parts[..length].to_vec()))
        .collect();
    let root = files.iter().find(|(path, _)| path == "lib.rs");
    let reexports = root.map(|(_, tokens)| reexports(tokens, &modules)).unwrap_or_default();
    let mut graph = ImportGraph::default();
    for (path, tokens) in files {
        let from = module_path(path);
        for to in crate_paths(&without_tests(tokens), &from) {
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            let is_module = to.get(..=common).is_some_and(|sibling| modules.contains(sibling));
            if common >= from.len() {
                continue;
            }
            if is_module {
                let edges = match common {
                    0 => &mut graph.direct,
                    _ => graph.nested.entry(from[..common].join("::")).or_default(),
                };
                add_edge(edges, &from[common], &to[common]);
            }
            let target = if is_module { to.first() } else { to.first().and_then(|item| reexports.get(item)) };
            if let Some(target) = target.filter(|target| common == 0 && **target != from[0]) {
                add_edge(&mut graph.through_root, &from[0], target);
            }
        }
    }
    graph
}

fn add_edge(edges: &mut ModuleEdges, from: &str, to: &str) {
    edges.entry(from.to_owned()).or_default().insert(to.to_owned());
}

/// The largest group of modules that all reach each other, sorted. Empty where there is no cycle.
pub(crate) fn largest_cycle(edges: &ModuleEdges) -> Vec<String> {
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
pub(crate) fn imports_between(edges: &ModuleEdges, modules: &[&str]) -> Vec<(String, String)> {
    let pairs = edges.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from.clone(), to.clone())));
    pairs.filter(|(from, to)| modules.contains(&from.as_str()) && modules.contains(&to.as_str())).collect()
}

fn reachable_from<'a>(start: &String, edges: &'a ModuleEdges) -> BTreeSet<&'a String> {
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

/// All paths that a module reaches by `crate::` or `super::`, from the root of the crate.
fn crate_paths(tokens: &[Token], module: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let supers = (0..).take_while(|n| segment(tokens, at + 3 * n, "super")).count();
        let (base, skip) = match supers {
            0 if segment(tokens, at, "crate") => (&module[..0], 3),
            0 => (module, 0),
            supers => (&module[..module.len().saturating_sub(supers)], 3 * supers),
        };
        at += skip.max(1);
        if skip > 0 {
            let (paths, _) = use_tree(&tokens[at..]);
            found.extend(paths.into_iter().map(|path| [base, &path].concat()));
        }
    }
    found
}

/// Whether `name::` stands here.
fn segment(tokens: &[Token], at: usize, name: &str) -> bool {
    let punct = |at: usize| tokens.get(at).is_some_and(|token| token.is_punct(':'));
    tokens.get(at).is_some_and(|token| token.is_ident(name)) && punct(at + 1) && punct(at + 2)
}

/// The paths of a path or group such as `a::{b::c, d}`, and how many tokens it has.
fn use_tree(tokens: &[Token]) -> (Vec<Vec<String>>, usize) {
    let Some(first) = tokens.first() else { return (Vec::new(), 0) };
    let Some(name) = first.ident() else {
        return if first.is_punct('{') { use_group(tokens) } else { (vec![Vec::new()], 1) };
    };
    let goes_on = tokens.get(3).is_some_and(|next| next.ident().is_some() || next.is_punct('{'));
    if !segment(tokens, 0, name) || !goes_on {
        return (vec![vec![name.to_owned()]], 1);
    }
    let (mut paths, count) = use_tree(&tokens[3..]);
    for path in &mut paths {
        path.insert(0, name.to_owned());
    }
    (paths, count + 3)
}

fn use_group(tokens: &[Token]) -> (Vec<Vec<String>>, usize) {
    let (mut paths, mut at) = (Vec::new(), 1);
    while at < tokens.len() && !tokens[at].is_punct('}') {
        let (inner, count) = use_tree(&tokens[at..]);
        paths.extend(inner);
        at += count;
        // Over `as name`, up to the next path.
        while at < tokens.len() && !tokens[at].is_punct(',') && !tokens[at].is_punct('}') {
            at += 1;
        }
        at += usize::from(tokens.get(at).is_some_and(|token| token.is_punct(',')));
    }
    (paths, at + 1)
}

/// The items that `lib.rs` re-exports from its modules, by their names at the root.
fn reexports(tokens: &[Token], modules: &BTreeSet<Vec<String>>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for start in (0..tokens.len()).filter(|at| tokens[*at].is_ident("use")) {
        let Some(module) =
            tokens.get(start + 1).and_then(Token::ident).filter(|name| modules.contains(&[(*name).to_owned()][..]))
        else {
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
    fn cycles_inside_a_module_are_found_below_it() {
        let found = graph(&[
            ("lib.rs", ""),
            ("a/mod.rs", "use crate::a::b::X;"),
            ("a/b.rs", "use super::{c::{Y as Z, W}, own}; use crate::d::D;"),
            ("a/c/mod.rs", "use crate::{a::{b, own}, d};"),
            ("a/c/deep.rs", "use super::super::b::X;"),
            ("d.rs", "fn f() { crate::a::c::g::<u8>() }"),
        ]);
        assert_eq!(largest_cycle(&found.direct), ["a", "d"]);
        assert_eq!(found.nested.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(largest_cycle(&found.nested["a"]), ["b", "c"]);
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
