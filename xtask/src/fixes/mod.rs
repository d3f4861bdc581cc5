//! `cargo xtask fixes`: bug fixes of public projects, done over the real MCP server by its tools alone.
//!
//! Each trial takes two consecutive releases of a package from its registry. The first is the workspace; the difference to the
//! second is what an agent would write: first the tests, which must fail, then the fix, with which they must pass. It is formatted
//! and committed, and then everything is undone, to the byte. Rows are kept below `target/tmp/fixes`, and a run goes on where the last
//! one ended; with names, those are tried again.
//!
//! Not here: fetching releases (`release.rs`), their difference (`difference.rs`), and the calls (`trial.rs`).

mod difference;
mod release;
mod trial;

use std::fs;

use crate::{doc_markers, print_status, root};

use self::release::PackageRegistry;

/// A bug fix that is tried.
struct FixTrial {
    /// Name of the package.
    package: &'static str,
    registry: PackageRegistry,
    /// The release with the bug, and the one without it.
    releases: [&'static str; 2],
    dialect: &'static str,
    /// Sources and tests that are taken from the difference: these files, and those below these directories.
    sources: &'static str,
    tests: &'static str,
    /// The tests that are run, for `run_tests`.
    path: &'static str,
    /// What the tests need, from the same registry.
    needs: &'static [&'static str],
    /// Files that are written over those of the release: how its tests are run.
    settings: &'static [(&'static str, &'static str)],
}

const TRIALS: [FixTrial; 6] = [
    FixTrial {
        package: "smallvec",
        registry: PackageRegistry::Cargo,
        releases: ["1.6.0", "1.6.1"],
        dialect: "standard",
        sources: "src/lib.rs",
        tests: "src/tests.rs",
        path: "",
        needs: &[],
        settings: &[],
    },
    FixTrial {
        package: "bytes",
        registry: PackageRegistry::Cargo,
        releases: ["1.10.0", "1.10.1"],
        dialect: "claude",
        sources: "src",
        tests: "tests",
        path: "tests/test_bytes.rs",
        needs: &[],
        settings: &[],
    },
    FixTrial {
        package: "sqlparse",
        registry: PackageRegistry::Python,
        releases: ["0.5.0", "0.5.1"],
        dialect: "standard",
        sources: "sqlparse",
        tests: "tests",
        path: "tests",
        needs: &["pytest==9.2.0"],
        settings: &[],
    },
    FixTrial {
        package: "humanize",
        registry: PackageRegistry::Python,
        releases: ["4.12.2", "4.12.3"],
        dialect: "claude",
        sources: "src/humanize/filesize.py",
        tests: "tests/test_filesize.py",
        path: "tests/test_filesize.py",
        needs: &["pytest==9.2.0"],
        settings: &[],
    },
    FixTrial {
        package: "flat",
        registry: PackageRegistry::Node,
        releases: ["5.0.0", "5.0.1"],
        dialect: "standard",
        sources: "index.js",
        tests: "test",
        path: "",
        needs: &["mocha@12.0.3", "is-buffer@2.0.5"],
        settings: &[
            (
                "package.json",
                "{\"name\": \"flat\", \"main\": \"index.js\", \"bin\": \"cli.js\", \"scripts\": {\"test\": \"mocha\"}}\n",
            ),
            (".mocharc.json", "{\"ui\": \"tdd\"}\n"),
        ],
    },
    FixTrial {
        package: "shell-quote",
        registry: PackageRegistry::Node,
        releases: ["1.7.2", "1.7.3"],
        dialect: "claude",
        sources: "index.js",
        tests: "test",
        path: "",
        needs: &["tape@4"],
        settings: &[("package.json", "{\"name\": \"shell-quote\", \"scripts\": {\"test\": \"node --test test/\"}}\n")],
    },
];

/// False if a fix was not done, or was not undone.
pub(crate) fn run(names: &[&str]) -> bool {
    if let Some(unknown) = names.iter().find(|name| !TRIALS.iter().any(|trial| trial.package == **name)) {
        let known: Vec<&str> = TRIALS.iter().map(|trial| trial.package).collect();
        print_status(&format!("unknown package `{unknown}`; available: {}", known.join(", ")));
        return false;
    }
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let (mut table, mut failed) = (String::new(), Vec::new());
    for trial in TRIALS.iter().filter(|trial| names.is_empty() || names.contains(&trial.package)) {
        let kept = root().join("target/tmp/fixes").join(trial.package).join("row");
        let done = fs::read_to_string(&kept).ok().filter(|_| names.is_empty());
        let row = done.map_or_else(|| trial::try_fix(trial).map(|result| result.row(trial)), Ok);
        match row {
            Ok(row) => {
                let _ = fs::write(kept, &row);
                table.push_str(&row);
            }
            Err(problem) => {
                print_status(&format!("{}: {problem}", trial.package));
                failed.push(trial.package);
            }
        }
    }
    let head =
        "| fix | dialect | tests before | after | formatted | committed | undone |\n|---|---|---|---|---|---|---|\n";
    let table = format!("{head}{table}");
    print_status(&table);
    if !failed.is_empty() {
        print_status(&format!("failed: {}", failed.join(", ")));
        return false;
    }
    !names.is_empty() || doc_markers::write("docs/project.md", "fixes", &table)
}
