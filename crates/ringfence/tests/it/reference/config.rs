//! `docs/reference/config.md`: the example config, its comments as prose and its keys as entries; and that it has every key.

use std::path::Path;

use ringfence::config::{CliFlags, load};

use super::{check_page, head, opening, row};
use crate::site::TestSite;

/// A part of the example.
#[derive(Debug, PartialEq)]
enum ExamplePart {
    /// A line of a comment; an empty one ends a paragraph.
    Prose(String),
    /// A table; one in a comment is an example.
    Table { name: String, holds: bool },
    /// One in a comment has no default, and shows what it may be.
    Key { name: String, value: String, note: String, holds: bool },
    /// The meaning of a value, in a list of them.
    Term { names: String, meaning: String },
}

fn example() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/ringfence.example.toml");
    std::fs::read_to_string(file).unwrap()
}

/// A table or a key, if a line is one.
fn setting(line: &str, holds: bool) -> Option<ExamplePart> {
    if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return Some(ExamplePart::Table { name: name.trim_matches(['[', ']']).to_owned(), holds });
    }
    let (name, rest) = line.split_once(" = ")?;
    let plain = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    let (value, note) = rest.split_once('#').unwrap_or((rest, ""));
    plain.then(|| ExamplePart::Key {
        name: name.to_owned(),
        value: value.trim().to_owned(),
        note: note.trim().to_owned(),
        holds,
    })
}

/// The example, taken apart.
fn example_parts(text: &str) -> Vec<ExamplePart> {
    let mut found: Vec<ExamplePart> = Vec::new();
    for line in text.lines() {
        let Some(comment) = line.strip_prefix('#') else {
            found.push(setting(line, true).unwrap_or_else(|| ExamplePart::Prose(String::new())));
            continue;
        };
        let indent = comment.len() - comment.trim_start().len();
        let words = comment.trim();
        // A key behind a bare `#` has its default there, which need not be repeated.
        if let Some(setting) = setting(words, indent == 0) {
            found.push(setting);
        } else if let (true, Some(ExamplePart::Term { meaning, .. })) = (indent > 3, found.last_mut()) {
            meaning.push_str(&format!(" {words}"));
        } else if let (3, Some((names, meaning))) = (indent, words.split_once("  ")) {
            found.push(ExamplePart::Term { names: names.to_owned(), meaning: meaning.trim().to_owned() });
        } else {
            found.push(ExamplePart::Prose(words.to_owned()));
        }
    }
    found
}

fn page(pieces: &[ExamplePart]) -> String {
    let what = "\
Every key, with its default. An unknown key is an error that suggests the nearest one.
[config/ringfence.example.toml](../../config/ringfence.example.toml) has the same content as a file, and `ringfence policy
show` prints the effective policy.
";
    let mut text = opening("Config", "`config/ringfence.example.toml`", what);
    let mut before: Option<&ExamplePart> = None;
    let mut in_example = false;
    for piece in pieces {
        match piece {
            ExamplePart::Prose(words) if words.is_empty() && text.ends_with("\n\n") => {}
            ExamplePart::Prose(words) => {
                if matches!(
                    before,
                    Some(ExamplePart::Key { .. } | ExamplePart::Term { .. } | ExamplePart::Table { .. })
                ) {
                    text.push('\n');
                }
                text.push_str(&format!("{words}\n"));
            }
            ExamplePart::Table { name, holds } => {
                in_example = !holds;
                let (depth, what) = if *holds { ("##", "") } else { ("###", ", an example") };
                let name = if name == "rules" { "[[rules]]".to_owned() } else { format!("[{name}]") };
                text.push_str(&format!("\n{depth} `{name}`{what}\n"));
            }
            ExamplePart::Key { name, value, note, holds } => {
                if !matches!(before, Some(ExamplePart::Key { .. })) {
                    text.push_str(&head(["key", if in_example { "such as" } else { "default" }, ""]));
                }
                let value = format!("`{value}`");
                let value = if *holds || in_example { value } else { format!("none; such as {value}") };
                text.push_str(&row([&format!("`{name}`"), &value, note]));
            }
            ExamplePart::Term { names, meaning } => {
                if !matches!(before, Some(ExamplePart::Term { .. })) {
                    text.push_str(&head(["key of a rule", "meaning"]));
                }
                let names: Vec<String> = names.split(", ").map(|name| format!("`{name}`")).collect();
                text.push_str(&row([&names.join(", "), meaning]));
            }
        }
        before = Some(piece);
    }
    let mut text = text.replace("\n\n\n", "\n\n");
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[test]
fn the_reference_of_the_config_is_the_example() {
    check_page("config.md", page(&example_parts(&example())));
}

/// The keys that a table takes, as the types say where one is unknown.
fn keys_of(site: &TestSite, table: &str) -> Vec<String> {
    let file = site.root().join("config.toml");
    std::fs::write(&file, format!("{table}\nnot_a_key = 1\n")).unwrap();
    let environment = site.environment();
    let error = load(&CliFlags { config: Some(file), ..CliFlags::default() }, &environment).unwrap_err().to_string();
    let (_, keys) =
        error.split_once("unknown field `not_a_key`, expected ").unwrap_or_else(|| panic!("{table}: {error}"));
    let keys = keys.split("; did you mean").next().unwrap();
    keys.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_example_has_every_key_that_the_types_have() {
    let site = TestSite::new();
    let pieces = example_parts(&example());
    // A table of the types, and the tables of the example that show its keys.
    let tables = [
        ("", &[""][..]),
        ("[agents.a]", &["agents.defaults", "agents.writer"]),
        ("[agents.a.tools]", &["agents.writer.tools"]),
        ("[agents.a.tools.fs]", &["agents.writer.tools.fs", "policy.fs"]),
        ("[agents.a.limits]", &["limits"]),
        ("[mounts.a]", &["mounts.pkg"]),
        ("[policy]", &[]),
        ("[policy.fs]", &["policy.fs"]),
        ("[limits]", &["limits"]),
        ("[run_code]", &["run_code"]),
        ("[run]", &["run"]),
        ("[[credentials]]", &["credentials"]),
        ("[project]", &["project"]),
        ("[web]", &["web"]),
        ("[web.search]", &["web.search"]),
        ("[git]", &[]),
        ("[git.hosts.a]", &["git.hosts.\"github.com\""]),
        ("[mcp_servers.a]", &["mcp_servers.clock", "mcp_servers.wiki"]),
        ("[tools]", &["tools"]),
        ("[approval]", &["approval"]),
        ("[[rules]]", &["rules"]),
    ];
    let mut missing = Vec::new();
    for (table, shown_in) in tables {
        let above = table.trim_matches(['[', ']']).replace(".a", ".");
        for key in keys_of(&site, table) {
            let mut within = "";
            let shown = pieces.iter().any(|piece| {
                match piece {
                    ExamplePart::Table { name, .. } => {
                        within = name;
                        // A table is a key of the one above it.
                        let path = format!("{above}.{key}");
                        let path = path.trim_start_matches('.').replace("..", ".writer.");
                        name == &path || name.starts_with(&format!("{path}."))
                    }
                    ExamplePart::Key { name, .. } => *name == key && shown_in.contains(&within),
                    ExamplePart::Term { names, .. } => {
                        table == "[[rules]]" && names.split(", ").any(|name| name == key)
                    }
                    ExamplePart::Prose(_) => false,
                }
            });
            if !shown {
                missing.push(format!("{table} {key}"));
            }
        }
    }
    assert!(missing.is_empty(), "config/ringfence.example.toml does not show: {missing:#?}");
}
