//! Test runners: the command that makes each of them write a report.
//!
//! Reports are written to a directory of the jail, so that the workspace stays clean. The command is a script for a shell:
//! every part that a caller gave is quoted.
//!
//! Not here: which runner a project has (`detect.rs`), and reading reports (`report_files.rs`).

use std::fmt::Write as _;

/// Directory of the reports in the jail.
pub(crate) const REPORT_DIRECTORY: &str = "/tmp/ringfence-reports";

/// A program that runs tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TestRunner {
    CargoTest,
    Nextest,
    Pytest,
    Vitest,
    Jest,
    Mocha,
    NodeTest,
    GoTest,
    Maven,
    Gradle,
    Ctest,
    Rspec,
    Phpunit,
    /// The script of a package, whatever it runs.
    NpmScript,
}

impl TestRunner {
    pub(crate) const ALL: [Self; 14] = [
        Self::CargoTest,
        Self::Nextest,
        Self::Pytest,
        Self::Vitest,
        Self::Jest,
        Self::Mocha,
        Self::NodeTest,
        Self::GoTest,
        Self::Maven,
        Self::Gradle,
        Self::Ctest,
        Self::Rspec,
        Self::Phpunit,
        Self::NpmScript,
    ];

    /// Name of the runner in the config and in replies.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CargoTest => "cargo-test",
            Self::Nextest => "cargo-nextest",
            Self::Pytest => "pytest",
            Self::Vitest => "vitest",
            Self::Jest => "jest",
            Self::Mocha => "mocha",
            Self::NodeTest => "node-test",
            Self::GoTest => "go-test",
            Self::Maven => "maven",
            Self::Gradle => "gradle",
            Self::Ctest => "ctest",
            Self::Rspec => "rspec",
            Self::Phpunit => "phpunit",
            Self::NpmScript => "npm-test",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|runner| runner.name() == name)
    }

    /// Endings of the files that its tests are in.
    pub(crate) const fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::CargoTest | Self::Nextest => &["rs"],
            Self::Pytest => &["py"],
            Self::Vitest | Self::Jest | Self::Mocha | Self::NodeTest | Self::NpmScript => {
                &["js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts", "vue", "svelte"]
            }
            Self::GoTest => &["go"],
            Self::Maven | Self::Gradle => &["java", "kt", "groovy", "scala"],
            Self::Ctest => &["c", "cc", "cpp", "cxx", "h", "hpp"],
            Self::Rspec => &["rb"],
            Self::Phpunit => &["php"],
        }
    }
}

/// The tests of a project, and where they are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProject {
    pub(crate) command: TestCommand,
    /// The directory that it is run in, relative to the workspace; empty for the workspace itself.
    pub(crate) directory: String,
    /// The directory that its relative paths start at.
    pub(crate) source_directory: String,
    /// Directories of programs that the project has itself, relative to the workspace.
    pub(crate) program_directories: Vec<String>,
    /// The interpreter of a Python project.
    pub(crate) python: String,
    /// The name of a Go module.
    pub(crate) module: String,
    /// Other runners that the same directory has.
    pub(crate) others: Vec<TestRunner>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TestCommand {
    Runner(TestRunner),
    /// A command line of the config.
    Shell(String),
}

/// The tests that a call selects. Neither part begins with a hyphen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestSelection {
    /// A file, or a directory below the project's, relative to the project's directory.
    pub(crate) path: Option<String>,
    /// Part of the name of tests.
    pub(crate) name: Option<String>,
}

impl TestProject {
    /// The script that runs the tests. The reports are its standard output, each after a line with its size and its path, and before a
    /// NUL;
    /// everything else is its standard error.
    pub(crate) fn script(&self, selection: &TestSelection) -> String {
        let mut script = String::from("exec 3>&1 1>&2\n");
        let _ = writeln!(script, "mkdir -p {REPORT_DIRECTORY}");
        let directory = match self.directory.as_str() {
            "" => "/workspace".to_owned(),
            directory => quoted(&format!("/workspace/{directory}")),
        };
        let _ = writeln!(script, "cd {directory} || exit 126");
        if !self.program_directories.is_empty() {
            let own: Vec<String> =
                self.program_directories.iter().map(|own| quoted(&format!("/workspace/{own}"))).collect();
            let _ = writeln!(script, "PATH={}:$PATH", own.join(":"));
        }
        script.push_str("export PATH CI=1 NO_COLOR=1 PYTHONDONTWRITEBYTECODE=1 CARGO_TERM_COLOR=never\n");
        let _ = writeln!(script, "(\n{}\n) 3>&-", self.run_lines(selection).join("\n"));
        script.push_str("status=$?\n");
        let reports = match self.command {
            TestCommand::Runner(TestRunner::Maven) => "find . -path '*/target/surefire-reports/TEST-*.xml' -type f",
            TestCommand::Runner(TestRunner::Gradle) => "find . -path '*/build/test-results/*/TEST-*.xml' -type f",
            _ => "find /tmp/ringfence-reports -type f",
        };
        let _ = writeln!(
            script,
            "{reports} | sort | while IFS= read -r report; do\n  printf '%s %s\\n' \"$(wc -c < \"$report\")\" \"$report\"\n  \
             cat \"$report\"\n  printf '\\0'\ndone >&3"
        );
        script.push_str("exit $status\n");
        script
    }

    fn run_lines(&self, selection: &TestSelection) -> Vec<String> {
        let runner = match &self.command {
            TestCommand::Runner(runner) => *runner,
            TestCommand::Shell(line) => return vec![line.clone()],
        };
        let path = selection.path.as_deref();
        let name = selection.name.as_deref();
        let report = |file: &str| format!("{REPORT_DIRECTORY}/{file}");
        let mut words: Vec<String> = Vec::new();
        let mut before: Vec<String> = Vec::new();
        let mut add = |all: &[&str]| words.extend(all.iter().map(|word| quoted(word)));
        match runner {
            TestRunner::CargoTest | TestRunner::Nextest => {
                if runner == TestRunner::CargoTest {
                    add(&["cargo", "test", "--no-fail-fast"]);
                } else {
                    let config = "/tmp/ringfence-nextest.toml";
                    let settings = format!(
                        "[profile.default.junit]\\npath = \"{}\"\\nstore-failure-output = true\\n",
                        report("junit.xml")
                    );
                    before.push(format!("printf '{settings}' > {config}"));
                    let tool = format!("ringfence:{config}");
                    add(&["cargo", "nextest", "run", "--no-fail-fast", "--no-tests=pass", "--tool-config-file", &tool]);
                }
                // A file of `tests` is a program of its own.
                let target = path.and_then(|path| path.strip_prefix("tests/")?.strip_suffix(".rs"));
                if let Some(target) = target.filter(|target| !target.contains('/')) {
                    add(&["--test", target]);
                }
                name.into_iter().for_each(|name| add(&[name]));
            }
            TestRunner::Pytest => {
                let junit = format!("--junitxml={}", report("junit.xml"));
                let options = ["-p", "no:cacheprovider", "-o", "junit_family=xunit1", "--color=no", &junit];
                add(&[&self.python, "-m", "pytest"]);
                add(&options);
                name.into_iter().for_each(|name| add(&["-k", name]));
                path.into_iter().for_each(|path| add(&[path]));
            }
            TestRunner::Vitest => {
                let json = format!("--outputFile.json={}", report("vitest.json"));
                add(&["vitest", "run", "--reporter=default", "--reporter=json", &json, "--passWithNoTests"]);
                name.into_iter().for_each(|name| add(&["-t", &escaped_pattern(name)]));
                path.into_iter().for_each(|path| add(&[path]));
            }
            TestRunner::Jest => {
                let json = format!("--outputFile={}", report("jest.json"));
                add(&["jest", "--ci", "--json", &json, "--passWithNoTests"]);
                name.into_iter().for_each(|name| add(&["-t", &escaped_pattern(name)]));
                path.into_iter().for_each(|path| add(&[&escaped_pattern(path)]));
            }
            TestRunner::Mocha => {
                let output = format!("output={}", report("mocha.json"));
                add(&["mocha", "--reporter", "json", "--reporter-option", &output]);
                name.into_iter().for_each(|name| add(&["--fgrep", name]));
                path.into_iter().for_each(|path| add(&[path]));
            }
            TestRunner::NodeTest => {
                let junit = format!("--test-reporter-destination={}", report("junit.xml"));
                add(&["node", "--test", "--test-reporter=spec", "--test-reporter-destination=stdout"]);
                add(&["--test-reporter=junit", &junit]);
                name.into_iter().for_each(|name| add(&[&format!("--test-name-pattern={}", escaped_pattern(name))]));
                path.into_iter().for_each(|path| add(&[path]));
            }
            TestRunner::GoTest => {
                add(&["go", "test", "-json"]);
                // Go spells the blanks of a subtest as underscores.
                name.into_iter().for_each(|name| add(&["-run", &escaped_pattern(name).replace(' ', "_")]));
                add(&[&go_packages(path)]);
                words.push(format!("> {}", report("go.json")));
            }
            TestRunner::Maven => {
                before.push("find . -path '*/target/surefire-reports/TEST-*.xml' -type f -delete".to_owned());
                add(&["mvn", "-B", "-o", "-Dstyle.color=never"]);
                if let Some(name) = name {
                    add(&[
                        &format!("-Dtest={name}"),
                        "-DfailIfNoTests=false",
                        "-Dsurefire.failIfNoSpecifiedTests=false",
                    ]);
                }
                add(&["test"]);
            }
            TestRunner::Gradle => {
                before.push("find . -path '*/build/test-results/*/TEST-*.xml' -type f -delete".to_owned());
                add(&["gradle", "--offline", "--console=plain", "--continue", "test"]);
                name.into_iter().for_each(|name| add(&["--tests", name]));
            }
            TestRunner::Ctest => {
                before.push("cmake -S . -B /tmp/ringfence-build || exit".to_owned());
                before.push("cmake --build /tmp/ringfence-build --parallel 2 || exit".to_owned());
                let junit = report("junit.xml");
                add(&["ctest", "--test-dir", "/tmp/ringfence-build", "--output-on-failure", "--no-tests=ignore"]);
                add(&["--output-junit", &junit]);
                name.into_iter().for_each(|name| add(&["-R", &escaped_pattern(name)]));
            }
            TestRunner::Rspec => {
                let json = report("rspec.json");
                add(&["rspec", "--no-color", "--format", "progress", "--format", "json", "--out", &json]);
                name.into_iter().for_each(|name| add(&["-e", name]));
                path.into_iter().for_each(|path| add(&[path]));
            }
            TestRunner::Phpunit => {
                let junit = report("junit.xml");
                add(&["phpunit", "--colors=never", "--log-junit", &junit]);
                name.into_iter().for_each(|name| add(&["--filter", name]));
                path.into_iter().for_each(|path| add(&[path]));
            }
            TestRunner::NpmScript => add(&["npm", "test", "--silent"]),
        }
        before.push(words.join(" "));
        before
    }

    /// The program that runs, for the policy.
    pub(crate) fn program(&self) -> &'static str {
        match &self.command {
            TestCommand::Runner(runner) => runner.name(),
            TestCommand::Shell(_) => "sh",
        }
    }

    /// As replies and approvers name it.
    pub(crate) fn display_name(&self) -> &str {
        match &self.command {
            TestCommand::Runner(runner) => runner.name(),
            TestCommand::Shell(line) => line,
        }
    }
}

/// The packages below a directory, or the package of a file.
fn go_packages(path: Option<&str>) -> String {
    match path {
        None => "./...".to_owned(),
        Some(file) if file.ends_with(".go") => match file.rsplit_once('/') {
            Some((directory, _)) => format!("./{directory}"),
            None => ".".to_owned(),
        },
        Some(directory) => format!("./{directory}/..."),
    }
}

/// A text as a regular expression that matches it.
fn escaped_pattern(text: &str) -> String {
    let special =
        |c: char| matches!(c, '\\' | '^' | '$' | '.' | '|' | '?' | '*' | '+' | '(' | ')' | '[' | ']' | '{' | '}');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// A word of a shell, in quotes where it needs them.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '=' | ',' | '@' | '+');
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::{TestCommand, TestProject, TestRunner, TestSelection, quoted};

    fn project(command: TestCommand) -> TestProject {
        TestProject {
            command,
            directory: "web app".to_owned(),
            source_directory: String::new(),
            program_directories: Vec::new(),
            python: "python3".to_owned(),
            module: String::new(),
            others: Vec::new(),
        }
    }

    #[track_caller]
    fn check(runner: TestRunner, path: &str, name: &str, expected: &str) {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let selection = TestSelection { path: given(path), name: given(name) };
        let lines = project(TestCommand::Runner(runner)).run_lines(&selection).join("\n");
        assert_eq!(lines.replace("/tmp/ringfence-reports", "R"), expected);
    }

    #[test]
    fn every_runner_writes_a_report() {
        use TestRunner::*;
        check(CargoTest, "tests/till.rs", "sale", "cargo test --no-fail-fast --test till sale");
        check(CargoTest, "src/lib.rs", "", "cargo test --no-fail-fast");
        check(
            Nextest,
            "",
            "sale",
            "printf '[profile.default.junit]\\npath = \"R/junit.xml\"\\nstore-failure-output = true\\n' > /tmp/ringfence-nextest.toml\n\
             cargo nextest run --no-fail-fast --no-tests=pass --tool-config-file ringfence:/tmp/ringfence-nextest.toml sale",
        );
        check(
            Pytest,
            "tests/test_a.py",
            "cents and not slow",
            "python3 -m pytest -p no:cacheprovider -o junit_family=xunit1 --color=no --junitxml=R/junit.xml -k 'cents and not slow' tests/test_a.py",
        );
        check(
            Vitest,
            "",
            "a (b)",
            "vitest run --reporter=default --reporter=json --outputFile.json=R/vitest.json --passWithNoTests -t 'a \\(b\\)'",
        );
        check(Jest, "a.test.js", "", "jest --ci --json --outputFile=R/jest.json --passWithNoTests 'a\\.test\\.js'");
        check(
            Mocha,
            "test/a.js",
            "it's",
            "mocha --reporter json --reporter-option output=R/mocha.json --fgrep 'it'\\''s' test/a.js",
        );
        check(
            NodeTest,
            "",
            "$x",
            "node --test --test-reporter=spec --test-reporter-destination=stdout --test-reporter=junit --test-reporter-destination=R/junit.xml '--test-name-pattern=\\$x'",
        );
        check(GoTest, "", "", "go test -json ./... > R/go.json");
        check(GoTest, "till/till_test.go", "TestA/b c", "go test -json -run TestA/b_c ./till > R/go.json");
        check(GoTest, "till", "", "go test -json ./till/... > R/go.json");
        check(Rspec, "", "", "rspec --no-color --format progress --format json --out R/rspec.json");
        check(Phpunit, "tests", "", "phpunit --colors=never --log-junit R/junit.xml tests");
        check(NpmScript, "", "", "npm test --silent");
    }

    #[test]
    fn reports_are_the_output_and_the_rest_is_the_error_stream() {
        let script = project(TestCommand::Shell("make check".to_owned())).script(&TestSelection::default());
        let expected = "exec 3>&1 1>&2\nmkdir -p /tmp/ringfence-reports\ncd '/workspace/web app' || exit 126\n";
        assert!(script.starts_with(expected), "{script}");
        assert!(
            script.contains("(\nmake check\n) 3>&-\nstatus=$?\n") && script.ends_with("exit $status\n"),
            "{script}"
        );
    }

    #[test]
    fn names_are_names() {
        for runner in TestRunner::ALL {
            assert_eq!(TestRunner::from_name(runner.name()), Some(runner));
        }
        assert_eq!(TestRunner::from_name("make check"), None);
        assert_eq!([quoted(""), quoted("a b"), quoted("$(x)"), quoted("a.b")], ["''", "'a b'", "'$(x)'", "a.b"]);
    }
}
