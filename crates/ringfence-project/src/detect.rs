//! Detection of a project's test runner: the nearest manifest upward from a path.
//!
//! Not here: the commands (`test_runner.rs`), and how files are read. A `ProjectFiles` does that.

use serde_json::Value;

use crate::test_runner::{TestCommand, TestProject, TestRunner, TestSelection};

/// The files of a workspace that detection reads, by paths relative to it.
pub(crate) trait ProjectFiles {
    /// The text of a file; `None` if there is none, it may not be read, or it is too long.
    fn read(&self, path: &str) -> Option<String>;
    /// The kind of an entry; `None` if there is none.
    fn kind(&self, path: &str) -> Option<EntryKind>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Directory,
}

/// Failure to find out how a project is tested.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DetectError {
    #[error("`{0}` does not exist")]
    NoPath(String),
    #[error(
        "no test runner found: neither `{0}` nor a directory above it has a Cargo.toml, go.mod, pyproject.toml, pytest.ini, \
         package.json with tests, pom.xml, build.gradle, CMakeLists.txt, .rspec or phpunit.xml; give the path of a project, \
         or set `test` under `[project]` in the config"
    )]
    NoRunner(String),
}

/// The project of a path, and what of it the path selects. `setting` is `test` of the config.
pub(crate) fn detect(
    files: &dyn ProjectFiles,
    path: &str,
    setting: Option<&str>,
) -> Result<(TestProject, TestSelection), DetectError> {
    let path = path.trim_matches('/');
    let path = if path == "." { "" } else { path };
    let kind = if path.is_empty() { Some(EntryKind::Directory) } else { files.kind(path) };
    let start = match kind {
        None => return Err(DetectError::NoPath(path.to_owned())),
        Some(EntryKind::Directory) => path,
        Some(EntryKind::File) => parent(path).unwrap_or_default(),
    };
    let extension = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, extension)| extension);
    let wanted = setting.map(|setting| match TestRunner::from_name(setting) {
        Some(runner) => TestCommand::Runner(runner),
        None => TestCommand::Shell(setting.to_owned()),
    });
    let (command, directory, others) = match wanted {
        Some(TestCommand::Shell(line)) => (TestCommand::Shell(line), String::new(), Vec::new()),
        Some(TestCommand::Runner(runner)) => {
            let of_runner = |directory: &&str| has_manifest(files, directory, runner);
            let directory = ancestors(start).find(of_runner).unwrap_or_default().to_owned();
            (TestCommand::Runner(runner), directory, Vec::new())
        }
        None => {
            let found = ancestors(start).find_map(|directory| {
                let mut runners = runners_in(files, directory);
                // The language of the path decides between several.
                let fits =
                    |runner: &TestRunner| extension.is_some_and(|extension| runner.extensions().contains(&extension));
                runners.sort_by_key(|runner| !fits(runner));
                let first = *runners.first()?;
                Some((TestCommand::Runner(first), directory.to_owned(), runners.split_off(1)))
            });
            found.ok_or_else(|| DetectError::NoRunner(if path.is_empty() { "." } else { path }.to_owned()))?
        }
    };
    let below = match directory.as_str() {
        "" => Some(path),
        directory => path.strip_prefix(directory).map(|rest| rest.trim_start_matches('/')),
    };
    let selected = below.filter(|below| !below.is_empty()).map(str::to_owned);
    let project = TestProject {
        source_directory: source_directory(files, &directory, &command),
        program_directories: program_directories(files, &directory, &command),
        python: python(files, &directory),
        module: go_module(files, &directory).unwrap_or_default(),
        command,
        directory,
        others,
    };
    Ok((project, TestSelection { path: selected, name: None }))
}

/// A directory and those above it, up to the workspace.
pub(crate) fn ancestors(directory: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(directory), |directory| match *directory {
        "" => None,
        directory => Some(parent(directory).unwrap_or_default()),
    })
}

fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent)
}

pub(crate) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn is_file(files: &dyn ProjectFiles, directory: &str, name: &str) -> bool {
    files.kind(&join(directory, name)) == Some(EntryKind::File)
}

/// The manifests of a runner, but for those that share one.
fn has_manifest(files: &dyn ProjectFiles, directory: &str, runner: TestRunner) -> bool {
    let names: &[&str] = match runner {
        TestRunner::CargoTest | TestRunner::Nextest => &["Cargo.toml"],
        TestRunner::Pytest => PYTHON_FILES,
        TestRunner::Vitest | TestRunner::Jest | TestRunner::Mocha | TestRunner::NodeTest | TestRunner::NpmScript => {
            &["package.json"]
        }
        TestRunner::GoTest => &["go.mod"],
        TestRunner::Maven => &["pom.xml"],
        TestRunner::Gradle => &["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"],
        TestRunner::Ctest => &["CMakeLists.txt"],
        TestRunner::Rspec => &[".rspec"],
        TestRunner::Phpunit => &["phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml"],
    };
    names.iter().any(|name| is_file(files, directory, name))
}

const PYTHON_FILES: &[&str] = &[
    "pytest.ini",
    ".pytest.ini",
    "pyproject.toml",
    "tox.ini",
    "setup.cfg",
    "setup.py",
    "conftest.py",
    "requirements.txt",
];

/// The runners that a directory names, the most specific first.
fn runners_in(files: &dyn ProjectFiles, directory: &str) -> Vec<TestRunner> {
    let mut found = Vec::new();
    let has = |runner| has_manifest(files, directory, runner);
    if has(TestRunner::CargoTest) {
        let root = cargo_root(files, directory);
        let names_nextest = is_file(files, &join(directory, ".config"), "nextest.toml")
            || is_file(files, &join(&root, ".config"), "nextest.toml");
        found.push(if names_nextest { TestRunner::Nextest } else { TestRunner::CargoTest });
    }
    found.extend([TestRunner::GoTest, TestRunner::Maven].into_iter().filter(|runner| has(*runner)));
    if is_file(files, directory, "build.gradle") || is_file(files, directory, "build.gradle.kts") {
        found.push(TestRunner::Gradle);
    }
    found.extend(package_runner(files, directory));
    // A `pyproject.toml` may be there for a tool of another language, and comes after those that name a runner.
    found.extend(has(TestRunner::Pytest).then_some(TestRunner::Pytest));
    found.extend([TestRunner::Phpunit, TestRunner::Rspec, TestRunner::Ctest].into_iter().filter(|runner| has(*runner)));
    found
}

/// The runner that a `package.json` names in its script, else in its dependencies.
fn package_runner(files: &dyn ProjectFiles, directory: &str) -> Option<TestRunner> {
    let text = files.read(&join(directory, "package.json"))?;
    let package: Value = serde_json::from_str(&text).ok()?;
    let script = package.pointer("/scripts/test").and_then(Value::as_str).unwrap_or_default();
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let words: Vec<&str> = script.split(|c| !is_word(c)).collect();
    let named = [("vitest", TestRunner::Vitest), ("jest", TestRunner::Jest), ("mocha", TestRunner::Mocha)];
    if let Some((_, runner)) = named.iter().find(|(name, _)| words.contains(name)) {
        return Some(*runner);
    }
    if words.contains(&"node") && words.contains(&"--test") {
        return Some(TestRunner::NodeTest);
    }
    // The script that `npm init` writes.
    if !script.is_empty() && !script.contains("no test specified") {
        return Some(TestRunner::NpmScript);
    }
    let depends = |name: &str| {
        let tables = ["devDependencies", "dependencies"];
        tables.iter().any(|table| package.get(table).and_then(|table| table.get(name)).is_some())
    };
    named.iter().find(|(name, _)| depends(name)).map(|(_, runner)| *runner)
}

/// The directory of the Cargo workspace that a package is in: the compiler names files from there.
fn cargo_root(files: &dyn ProjectFiles, directory: &str) -> String {
    let has_workspace = |directory: &&str| {
        let manifest = files.read(&join(directory, "Cargo.toml"));
        manifest.and_then(|text| text.parse::<toml::Table>().ok()).is_some_and(|table| table.contains_key("workspace"))
    };
    ancestors(directory).find(has_workspace).unwrap_or(directory).to_owned()
}

fn source_directory(files: &dyn ProjectFiles, directory: &str, command: &TestCommand) -> String {
    match command {
        TestCommand::Runner(TestRunner::CargoTest | TestRunner::Nextest) => cargo_root(files, directory),
        _ => directory.to_owned(),
    }
}

/// Where package managers put programs.
fn program_directories(files: &dyn ProjectFiles, directory: &str, command: &TestCommand) -> Vec<String> {
    let name = match command {
        TestCommand::Runner(TestRunner::Phpunit) => "vendor/bin",
        _ => "node_modules/.bin",
    };
    let found = ancestors(directory).map(|directory| join(directory, name));
    found.filter(|path| !path.contains(':') && files.kind(path) == Some(EntryKind::Directory)).collect()
}

/// The interpreter of the project's own environment, else that of the system.
pub(crate) fn python(files: &dyn ProjectFiles, directory: &str) -> String {
    let own = ancestors(directory).flat_map(|directory| [".venv", "venv"].map(|name| join(directory, name)));
    let mut own = own.filter(|environment| is_file(files, environment, "pyvenv.cfg"));
    own.next().map_or_else(|| "python3".to_owned(), |environment| format!("/workspace/{environment}/bin/python"))
}

fn go_module(files: &dyn ProjectFiles, directory: &str) -> Option<String> {
    let text = files.read(&join(directory, "go.mod"))?;
    let name = text.lines().find_map(|line| line.trim().strip_prefix("module "))?;
    Some(name.split("//").next().unwrap_or_default().trim().trim_matches('"').to_owned())
}

/// Files by path, for tests.
#[cfg(test)]
pub(crate) struct TestFiles(pub(crate) &'static [(&'static str, &'static str)]);

#[cfg(test)]
impl ProjectFiles for TestFiles {
    fn read(&self, path: &str) -> Option<String> {
        self.0.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
    }

    fn kind(&self, path: &str) -> Option<EntryKind> {
        let is_below = |name: &str| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        match self.0.iter().find(|(name, _)| *name == path || is_below(name))? {
            (name, _) if *name == path => Some(EntryKind::File),
            _ => Some(EntryKind::Directory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TestFiles, detect};

    #[track_caller]
    fn check_with(files: &'static [(&'static str, &'static str)], path: &str, setting: Option<&str>, expected: &str) {
        let found = match detect(&TestFiles(files), path, setting) {
            Ok((project, selection)) => {
                let others: Vec<&str> = project.others.iter().map(|other| other.name()).collect();
                let others = if others.is_empty() { String::new() } else { format!(", also {}", others.join(" ")) };
                let selected = selection.path.map_or_else(String::new, |path| format!(" [{path}]"));
                format!("{} in `{}`{selected}{others}", project.display_name(), project.directory)
            }
            Err(error) => error.to_string().split(" has a ").next().unwrap().to_owned(),
        };
        assert_eq!(found, expected);
    }

    #[track_caller]
    fn check(files: &'static [(&'static str, &'static str)], path: &str, expected: &str) {
        check_with(files, path, None, expected);
    }

    #[test]
    fn the_nearest_manifest_decides() {
        const FILES: &[(&str, &str)] = &[
            ("Cargo.toml", "[workspace]"),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", ""),
            ("tools/pyproject.toml", ""),
            ("tools/tests/test_a.py", ""),
        ];
        check(FILES, "", "cargo-test in ``");
        check(FILES, ".", "cargo-test in ``");
        check(FILES, "crates", "cargo-test in `` [crates]");
        check(FILES, "crates/a/src/lib.rs", "cargo-test in `crates/a` [src/lib.rs]");
        check(FILES, "tools/tests/test_a.py", "pytest in `tools` [tests/test_a.py]");
        check(FILES, "tools/", "pytest in `tools`");
        check(FILES, "nothing", "`nothing` does not exist");
        check(&[("README.md", "")], "", "no test runner found: neither `.` nor a directory above it");
    }

    #[test]
    fn a_package_names_its_runner() {
        let cases: [(&'static [(&'static str, &'static str)], &str); 8] = [
            (&[("package.json", r#"{"scripts":{"test":"vitest run"}}"#)], "vitest in ``"),
            (&[("package.json", r#"{"scripts":{"test":"NODE_ENV=test npx jest --coverage"}}"#)], "jest in ``"),
            (&[("package.json", r#"{"scripts":{"test":"nyc mocha"}}"#)], "mocha in ``"),
            (&[("package.json", r#"{"scripts":{"test":"node --test"}}"#)], "node-test in ``"),
            (&[("package.json", r#"{"scripts":{"test":"ng test"},"devDependencies":{"jest":"1"}}"#)], "npm-test in ``"),
            (&[("package.json", r#"{"devDependencies":{"mocha":"1"}}"#)], "mocha in ``"),
            (
                &[("package.json", r#"{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}"#)],
                "no test runner found: neither `.` nor a directory above it",
            ),
            (&[("package.json", "not JSON")], "no test runner found: neither `.` nor a directory above it"),
        ];
        for (files, expected) in cases {
            check(files, "", expected);
        }
    }

    #[test]
    fn the_language_of_the_path_decides_between_several() {
        const FILES: &[(&str, &str)] = &[
            ("package.json", r#"{"scripts":{"test":"jest"}}"#),
            ("pyproject.toml", ""),
            ("a.test.js", ""),
            ("test_a.py", ""),
        ];
        check(FILES, "", "jest in ``, also pytest");
        check(FILES, "test_a.py", "pytest in `` [test_a.py], also jest");
        check(FILES, "a.test.js", "jest in `` [a.test.js], also pytest");
    }

    #[test]
    fn the_config_overrides() {
        const FILES: &[(&str, &str)] = &[("Cargo.toml", ""), ("py/setup.py", ""), ("py/a/b.py", "")];
        check_with(FILES, "", Some("cargo-nextest"), "cargo-nextest in ``");
        check_with(FILES, "py/a", Some("pytest"), "pytest in `py` [a]");
        check_with(FILES, "py", Some("make check"), "make check in `` [py]");
    }

    #[test]
    fn the_projects_own_programs_come_first() {
        const FILES: &[(&str, &str)] = &[
            ("node_modules/.bin/jest", ""),
            ("web/package.json", r#"{"scripts":{"test":"jest"}}"#),
            ("web/node_modules/.bin/x", ""),
            ("py/.venv/pyvenv.cfg", ""),
            ("py/setup.py", ""),
            ("go.mod", "// x\nmodule example.test/a // y\n"),
            (".config/nextest.toml", ""),
            ("Cargo.toml", "[workspace]"),
            ("rust/Cargo.toml", ""),
        ];
        let project = |path| detect(&TestFiles(FILES), path, None).unwrap().0;
        assert_eq!(project("web").program_directories, ["web/node_modules/.bin", "node_modules/.bin"]);
        assert_eq!(project("py").python, "/workspace/py/.venv/bin/python");
        assert_eq!((project("rust").display_name(), project("rust").source_directory.as_str()), ("cargo-nextest", ""));
        assert_eq!(project("").module, "example.test/a");
    }
}
