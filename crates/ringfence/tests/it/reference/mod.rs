//! The generated pages in `docs/reference`: each is made from the program itself and compared with the file.
//!
//! `cargo xtask docs` regenerates them; they are not edited by hand.

mod api;
mod cli;
mod config;
mod errors;
mod presets;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Pages by their paths below `docs/reference`.
type ReferencePages = BTreeMap<String, String>;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

/// Compares pages with the files, or, for `cargo xtask docs`, makes the files so.
#[track_caller]
fn check(pages: &ReferencePages) {
    for (name, text) in pages {
        let file = directory().join(name);
        if std::env::var_os("RINGFENCE_UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, text).unwrap();
        }
        let there = std::fs::read_to_string(&file).unwrap_or_default();
        let differs = text.lines().zip(there.lines()).find(|(made, there)| made != there);
        assert!(
            there == *text,
            "docs/reference/{name} is out of date: run `cargo xtask docs`\n\
             first line that differs, expected and found: {differs:?}"
        );
    }
}

/// One page.
#[track_caller]
fn check_page(name: &str, text: String) {
    check(&ReferencePages::from([(name.to_owned(), text)]));
}

/// The opening of a page: its title, its source, and its subject.
fn opening(title: &str, source: &str, what: &str) -> String {
    format!("# {title}\n\n<!-- Made by `cargo xtask docs` from {source}. -->\n\n{}\n", what.trim_end())
}

/// A row of a table. A cell is one line, and no bar of it ends it early.
fn row<const N: usize>(cells: [&str; N]) -> String {
    let cells = cells.map(|cell| cell.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |")
}

/// The first rows of a table.
fn head<const N: usize>(names: [&str; N]) -> String {
    format!("\n{}{}", row(names), row(["---"; N]).replace(' ', ""))
}
