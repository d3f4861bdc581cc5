//! The book and its links, as tests: every page can be found, and every link leads somewhere.

use std::fs;
use std::path::{Path, PathBuf};

use crate::root;

/// Every page of the repository, by its path from the root.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let name = entry.unwrap().file_name();
            let path = directory.join(&name);
            let hidden = name.to_string_lossy().starts_with('.');
            if root().join(&path).is_dir() {
                if !hidden && name != "target" {
                    left.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// The text without code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// Targets of the links of a page, but for those to other hosts.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let spoken: String = line.split('`').step_by(2).collect();
        for rest in spoken.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            if !target.contains("://") {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The anchors of a page. A heading that stands there again has a number behind it.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let plain = anchor(heading.trim_start_matches('#'));
        let numbered = (1..).map(|number| format!("{plain}-{number}"));
        let free = std::iter::once(plain.clone()).chain(numbered).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// A path without `..`, as a reader of the link would walk it.
fn normalized(path: &Path) -> PathBuf {
    let mut walked = PathBuf::new();
    for part in path.components() {
        match part.as_os_str().to_str() {
            Some("..") => assert!(walked.pop(), "{} leaves the repository", path.display()),
            Some(".") => {}
            _ => walked.push(part),
        }
    }
    walked
}

/// The target of a link of a page: a file, and the anchor in it.
fn target(page: &Path, link: &str) -> (PathBuf, Option<String>) {
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (link, None),
    };
    let file = if path.is_empty() { page.to_owned() } else { normalized(&page.parent().unwrap().join(path)) };
    (file, anchor)
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    let mut count = 0;
    for page in pages() {
        for link in links(&read(&page)) {
            count += 1;
            let (file, anchor) = target(&page, &link);
            let there =
                root().join(&file).exists() && anchor.is_none_or(|anchor| anchors(&read(&file)).contains(&anchor));
            if !there {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 100, "found only {count} links");
    assert!(dead.is_empty(), "broken links:\n{}", dead.join("\n"));
}

#[test]
fn every_page_of_the_docs_is_in_the_book() {
    let summary = Path::new("docs/SUMMARY.md");
    let listed: Vec<PathBuf> = links(&read(summary)).iter().map(|link| target(summary, link).0).collect();
    for page in pages() {
        let belongs = page.starts_with("docs") && page != summary;
        assert!(!belongs || listed.contains(&page), "{} is not in docs/SUMMARY.md", page.display());
    }
    for page in &listed {
        assert_eq!(listed.iter().filter(|other| *other == page).count(), 1, "{} is there twice", page.display());
    }
}

/// A figure of the README, and the page with the measurement that it rounds.
const README_FIGURES: [(&str, &str, &str); 4] = [
    ("43 of 43 kinds of attack", "docs/security.md", "**43 of 43 held**"),
    ("undone in 1.4 s", "docs/benchmarks.md", "| undo the change of each | 1334 ms | 1370 ms |"),
    ("29,067 injected kills", "docs/faults.md", "29067 faults"),
    ("takes 0.12 ms", "docs/benchmarks.md", "| read 4 KiB | ringfence | 8968/s | 8779/s | 117.6 µs |"),
];

#[test]
fn figures_of_the_readme_are_measured_ones() {
    let readme = read(Path::new("README.md"));
    for (figure, page, measured) in README_FIGURES {
        assert!(readme.contains(figure), "README.md does not have `{figure}`");
        assert!(read(Path::new(page)).contains(measured), "{page} does not have `{measured}`");
    }
    let policy = read(Path::new("docs/policy.md"));
    let (_, table) = policy.split_once("<!-- presets").unwrap();
    let effects =
        table.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    assert!(readme.contains(&format!("{} effects", effects.count())));
}

#[test]
fn links_and_anchors_are_read_as_a_browser_reads_them() {
    let text = "# A `b`, c!\n[x](a.md#b) `[no](code)` [y](https://a.org)\n```\n# no\n[no](block)\n```\n## A b c\n";
    assert_eq!(links(text), ["a.md#b"]);
    assert_eq!(anchors(text), ["a-b-c", "a-b-c-1"]);
    assert_eq!(target(Path::new("docs/a/b.md"), "../c.md#d"), (PathBuf::from("docs/c.md"), Some("d".to_owned())));
    assert_eq!(target(Path::new("docs/b.md"), "#d"), (PathBuf::from("docs/b.md"), Some("d".to_owned())));
}
