//! `cargo xtask vocabulary`: figures about names, modules and words of this repository, with the limits that they have.
//!
//! The limits in [`ENFORCED`] are tests too (`tidy.rs`); the others are printed with how far away they are.
//!
//! Not here: the reading of Rust (`lexer.rs`) and the figures themselves (`names.rs`, `modules.rs`, `words.rs`), which know no
//! files.

mod lexer;
mod modules;
mod names;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lexer::Token;
#[cfg(test)]
use modules::ModuleEdges;
pub(crate) use modules::largest_cycle;
use modules::{ImportGraph, imports_between};
use names::NameFigures;
use words::WordHit;

use crate::{print_status, root};

const MAX_SHARED_PUBLIC_NAMES: usize = 0;
const MAX_SHARED_PERCENT: usize = 12;
const MAX_NOT_NOUNS: usize = 5;
const MAX_MODULE_CYCLE: usize = 3;
const MAX_FACADE_ENTRIES: usize = 15;
const MAX_FRONT_IMPORTS: usize = 0;
const MAX_WORD_HITS: usize = 0;

/// The limits that `cargo test -p xtask` holds. A limit joins them when it is met.
pub(crate) const ENFORCED: &[Limit] = &[
    Limit::SharedPublicNames,
    Limit::SharedNames,
    Limit::NotNouns,
    Limit::ModuleCycle,
    Limit::FacadeEntries,
    Limit::FrontImports,
    Limit::WordHits,
];

/// The modules of `crates/ringfence` that face the outside. Code that two of them share belongs to a module of its own.
const FRONTS: &[&str] = &["mcp", "acp", "api", "cli"];

/// The front that starts the others.
const COMPOSITION_ROOT: &str = "cli";

const FACADE: &str = "crates/ringfence/src";

/// A limited figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    SharedPublicNames,
    SharedNames,
    NotNouns,
    ModuleCycle,
    FacadeEntries,
    FrontImports,
    WordHits,
}

/// A figure beside its limit.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) limit: Limit,
    pub(crate) title: &'static str,
    pub(crate) value: f64,
    pub(crate) most: usize,
    /// The parts of the value, a line each.
    pub(crate) details: Vec<String>,
}

impl Measurement {
    pub(crate) fn holds(&self) -> bool {
        self.value <= self.most as f64
    }
}

/// Prints every figure. False if the repository cannot be read.
pub(crate) fn run(options: &[&str]) -> bool {
    let repository = match Repository::read(&root()) {
        Ok(repository) => repository,
        Err(error) => {
            print_status(&format!("the repository cannot be read: {error}"));
            return false;
        }
    };
    print_lines(&repository.summary());
    for measurement in repository.measurements() {
        let Measurement { title, value, most, details, .. } = &measurement;
        let status = match (measurement.holds(), ENFORCED.contains(&measurement.limit)) {
            (true, true) => "held",
            (true, false) => "met",
            (false, _) => "over",
        };
        print_lines(&[format!("{status:<5}{title:<58}{value:>7.1}   limit {most}")]);
        let shown = if options.contains(&"--details") { details.len() } else { details.len().min(12) };
        print_lines(&details[..shown].iter().map(|line| format!("       {line}")).collect::<Vec<_>>());
        if shown < details.len() {
            print_lines(&[format!("       … and {} more (--details)", details.len() - shown)]);
        }
    }
    true
}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
fn print_lines(lines: &[String]) {
    for line in lines {
        println!("{line}");
    }
}

/// The figures of the repository.
pub(crate) struct Repository {
    names: NameFigures,
    /// The import graph of every crate, by its name.
    graphs: BTreeMap<String, ImportGraph>,
    facade_entries: usize,
    /// Files with phrases of the word list.
    word_hits: Vec<(String, Vec<WordHit>)>,
}

impl Repository {
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut definitions = Vec::new();
        let mut graphs = BTreeMap::new();
        let mut word_hits = Vec::new();
        for name in sorted_entries(&root.join("crates"))? {
            let files = source_files(&root.join("crates").join(&name).join("src"))?;
            for (path, tokens) in &files {
                let file = format!("crates/{name}/src/{path}");
                definitions.extend(names::definitions(&file, tokens));
                // Literals of tests are data, and so are those of their fixtures.
                if name != "ringfence-testkit" {
                    word_hits.push((file, words::hits_in_literals(tokens)));
                }
            }
            graphs.insert(name, modules::import_graph(&files));
        }
        for (path, tokens) in source_files(&root.join("xtask/src"))? {
            // The lists themselves have every phrase.
            if !path.starts_with("vocabulary/") {
                word_hits.push((format!("xtask/src/{path}"), words::hits_in_literals(&tokens)));
            }
        }
        for path in rust_sources(root)? {
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            word_hits.push((file, words::hits_in_comments(&fs::read_to_string(&path)?)));
        }
        for path in texts(root)? {
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let text = fs::read_to_string(&path)?;
            let is_script = file.ends_with(".js") || file.ends_with(".css");
            let read = if is_script { words::without_comment_marks(&text) } else { text };
            word_hits.push((file, words::hits(&read)));
        }
        word_hits.retain(|(_, hits)| !hits.is_empty());
        word_hits.sort_by_key(|(file, hits)| (std::cmp::Reverse(hits.len()), file.clone()));
        let facade_entries = sorted_entries(&root.join(FACADE))?.len();
        Ok(Repository { names: names::figures(&definitions), graphs, facade_entries, word_hits })
    }

    /// The imports between the modules of a crate, with those through its root. None for an unknown crate.
    #[cfg(test)]
    pub(crate) fn imports(&self, name: &str) -> Option<&ModuleEdges> {
        self.graphs.get(name).map(|graph| &graph.through_root)
    }

    /// Figures without a limit.
    fn summary(&self) -> Vec<String> {
        let names = &self.names;
        let mut lines = vec![
            format!("type definitions                       {}", names.definitions),
            format!("mean length of their names             {:.1}", names.mean_length),
            format!("names of one word                      {:.1} %", names.one_word_percent),
            format!(
                "names with the most definitions        {}",
                names.most_shared.iter().take(8).map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
            ),
        ];
        for (name, graph) in &self.graphs {
            let (direct, through) = (largest_cycle(&graph.direct).len(), largest_cycle(&graph.through_root).len());
            let nested = graph.nested.values().map(|edges| largest_cycle(edges).len()).max().unwrap_or(0);
            let more = format!("({through} with re-exports of the root; {nested} inside a module)");
            lines.push(format!("largest module cycle of {name:<23}{direct} {more}"));
        }
        lines
    }

    pub(crate) fn measurements(&self) -> Vec<Measurement> {
        let shared_public =
            self.names.shared_public.iter().map(|(name, places)| format!("{name}: {}", places.join(", ")));
        let most_shared = self.names.most_shared.iter().map(|(name, count)| format!("{name} {count}"));
        let cycle = largest_cycle_of_all(&self.graphs);
        let facade = self.graphs.get("ringfence").cloned().unwrap_or_default();
        let mut fronts = imports_between(&facade.through_root, FRONTS);
        fronts.retain(|(from, _)| from != COMPOSITION_ROOT);
        let words = self.word_hits.iter().map(|(file, hits)| {
            let places: Vec<String> = hits.iter().map(|hit| format!("{} `{}`", hit.line, hit.phrase)).collect();
            format!("{:>4}  {file}: {}", hits.len(), places.join(", "))
        });
        let word_count = self.word_hits.iter().map(|(_, hits)| hits.len()).sum();
        let count = |limit, title, value: usize, most, details| {
            let value = value as f64;
            Measurement { limit, title, value, most, details }
        };
        vec![
            count(
                Limit::SharedPublicNames,
                "names that two or more `pub` types have",
                self.names.shared_public.len(),
                MAX_SHARED_PUBLIC_NAMES,
                shared_public.collect(),
            ),
            Measurement {
                limit: Limit::SharedNames,
                title: "definitions that share their name, in percent",
                value: self.names.shared_percent,
                most: MAX_SHARED_PERCENT,
                details: most_shared.collect(),
            },
            count(
                Limit::NotNouns,
                "type names that are a participle, pronoun or adverb",
                self.names.not_nouns.len(),
                MAX_NOT_NOUNS,
                vec![self.names.not_nouns.join(" ")],
            ),
            count(
                Limit::ModuleCycle,
                "modules in the largest import cycle of a crate",
                cycle.as_ref().map_or(0, |(_, modules)| modules.len()),
                MAX_MODULE_CYCLE,
                cycle.into_iter().map(|(name, modules)| format!("{name}: {}", modules.join(" "))).collect(),
            ),
            count(
                Limit::FacadeEntries,
                "entries of crates/ringfence/src",
                self.facade_entries,
                MAX_FACADE_ENTRIES,
                vec![],
            ),
            count(
                Limit::FrontImports,
                "imports of one front by another",
                fronts.len(),
                MAX_FRONT_IMPORTS,
                fronts.into_iter().map(|(from, to)| format!("{from} imports {to}")).collect(),
            ),
            count(Limit::WordHits, "phrases of the word list", word_count, MAX_WORD_HITS, words.collect()),
        ]
    }
}

/// The largest cycle between the modules of a crate, with imports of items that its root re-exports, or between the children
/// of a module; and the crate or the module that has it.
fn largest_cycle_of_all(graphs: &BTreeMap<String, ImportGraph>) -> Option<(String, Vec<String>)> {
    let all = graphs.iter().flat_map(|(name, graph)| {
        let nested = graph.nested.iter().map(move |(module, edges)| (format!("{name}::{module}"), edges));
        std::iter::once((name.clone(), &graph.through_root)).chain(nested)
    });
    all.map(|(owner, edges)| (owner, largest_cycle(edges))).max_by_key(|(_, modules)| modules.len())
}

/// The Rust files below a directory, by their paths below it, without those that are tests as a whole.
fn source_files(directory: &Path) -> io::Result<Vec<(String, Vec<Token>)>> {
    let mut found: Vec<(String, Vec<Token>)> = Vec::new();
    for path in files_below(directory, &["rs"])? {
        let name = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
        found.push((name, lexer::tokens(&fs::read_to_string(&path)?)));
    }
    let tests: Vec<String> = found
        .iter()
        .flat_map(|(file, tokens)| {
            let inside = file.trim_end_matches(".rs").trim_end_matches("mod").trim_end_matches('/');
            let inside = if ["lib", "main", ""].contains(&inside) { String::new() } else { format!("{inside}/") };
            lexer::test_modules(tokens).into_iter().map(move |module| format!("{inside}{module}"))
        })
        .collect();
    let is_test = |file: &str| {
        tests.iter().any(|module| file == format!("{module}.rs") || file.starts_with(&format!("{module}/")))
    };
    found.retain(|(file, _)| !is_test(file));
    Ok(found)
}

/// The Rust files below every `src`, tests included.
fn rust_sources(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = files_below(&root.join("xtask/src"), &["rs"])?;
    for name in sorted_entries(&root.join("crates"))? {
        found.extend(files_below(&root.join("crates").join(name).join("src"), &["rs"])?);
    }
    Ok(found)
}

/// The files that people read: every page, the example configs, what packages bring, and the page of the server. Help texts
/// are read as pages of `docs/reference`, which are made of them.
fn texts(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in sorted_entries(root)? {
        if name.ends_with(".md") {
            found.push(root.join(name));
        }
    }
    for (directory, endings) in [
        (".github", &["md", "yml"][..]),
        ("docs", &["md"]),
        ("config", &["toml", "json"]),
        ("packaging", &["Dockerfile", "service"]),
        ("examples", &["md", "toml"]),
        ("crates", &["html", "js", "css", "md"]),
    ] {
        found.extend(files_below(&root.join(directory), endings)?);
    }
    found.retain(|path| !path.components().any(|part| part.as_os_str() == "tests"));
    Ok(found)
}

/// The files below a directory whose names are or end with one of these, sorted. None where there is no directory.
fn files_below(directory: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop().filter(|directory| directory.is_dir()) {
        for name in sorted_entries(&directory)? {
            let path = directory.join(&name);
            if path.is_dir() {
                left.push(path);
            } else if endings.iter().any(|ending| name == *ending || name.ends_with(&format!(".{ending}"))) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn sorted_entries(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = entries.collect::<io::Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::lexer::tokens;
    use super::modules::{import_graph, largest_cycle};
    use super::{MAX_MODULE_CYCLE, largest_cycle_of_all};

    #[test]
    fn a_cycle_by_way_of_the_root_is_over_the_limit() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A; pub use b::B; pub use c::C; pub use d::D;"),
            ("a.rs", "use crate::B;"),
            ("b.rs", "use crate::C;"),
            ("c.rs", "use crate::{D, other};"),
            ("d.rs", "fn f(_: crate::A) {}"),
        ];
        let graph = import_graph(&files.map(|(path, text)| (path.to_owned(), tokens(text))));
        assert!(largest_cycle(&graph.direct).is_empty());
        let (owner, cycle) = largest_cycle_of_all(&BTreeMap::from([("one".to_owned(), graph)])).unwrap();
        assert_eq!((owner.as_str(), cycle.join(" ").as_str()), ("one", "a b c d"));
        assert!(cycle.len() > MAX_MODULE_CYCLE);
    }
}
