//! The event stream of `go test -json`.
//!
//! A test with subtests is not counted beside them. What a test printed is where it failed; a package that does not build, or
//! a process that died, is an error in place of its tests.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::source_paths::{SourcePaths, colon_locations};
use crate::test_report::{MAX_TESTS, ReportError, SourceLine, TestFailure, TestReport};

/// Bytes of output that are kept of one test.
const MAX_OUTPUT_BYTES: usize = 64 << 10;

#[derive(Debug, Deserialize)]
struct GoEvent {
    #[serde(rename = "Action")]
    action: String,
    #[serde(rename = "Package", default)]
    package: String,
    #[serde(rename = "ImportPath", default)]
    import_path: String,
    #[serde(rename = "Test", default)]
    test: String,
    #[serde(rename = "Output", default)]
    output: String,
    #[serde(rename = "Elapsed", default)]
    elapsed: f64,
}

#[derive(Debug, Default)]
struct GoTest {
    end: Option<GoEnd>,
    output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoEnd {
    Pass,
    Fail,
    Skip,
}

/// The tests of a package by name; the empty name is the package itself.
type GoPackage = BTreeMap<String, GoTest>;

/// Adds an event stream. `module` is the name in `go.mod`; `errors` is what the go command printed besides.
pub(crate) fn read(
    text: &str,
    errors: &str,
    module: &str,
    paths: &SourcePaths,
    report: &mut TestReport,
) -> Result<(), ReportError> {
    let mut packages: BTreeMap<String, GoPackage> = BTreeMap::new();
    let (mut events, mut tests, mut build_output) = (0_u64, 0_u64, errors.to_owned());
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let event: GoEvent = serde_json::from_str(line).map_err(|_| ReportError::Json)?;
        events += 1;
        if event.action.starts_with("build-") {
            push_bounded(&mut build_output, &event.output);
            continue;
        }
        let package = if event.package.is_empty() { event.import_path } else { event.package };
        let package = packages.entry(package).or_default();
        if !package.contains_key(&event.test) {
            tests += 1;
            if tests > MAX_TESTS {
                return Err(ReportError::TooLong);
            }
        }
        let is_package = event.test.is_empty();
        let test = package.entry(event.test).or_default();
        match event.action.as_str() {
            "output" => push_bounded(&mut test.output, &event.output),
            "pass" => test.end = Some(GoEnd::Pass),
            "fail" => test.end = Some(GoEnd::Fail),
            "skip" => test.end = Some(GoEnd::Skip),
            _ => {}
        }
        if is_package && test.end.is_some() {
            report.add_seconds(event.elapsed);
        }
    }
    if events == 0 {
        return Err(if text.trim().is_empty() { ReportError::Missing } else { ReportError::Json });
    }
    let build_errors = errors_by_package(&build_output);
    for (name, package) in &packages {
        let directory = name.strip_prefix(module).map(|rest| rest.trim_start_matches('/')).unwrap_or_default();
        let joined = [paths.directory.as_str(), directory].into_iter().filter(|part| !part.is_empty());
        let paths_in_package = SourcePaths { directory: joined.collect::<Vec<_>>().join("/") };
        let errors = build_errors.get(name.as_str()).copied();
        add_package(name, package, errors, (&paths_in_package, paths), report);
    }
    Ok(())
}

fn add_package(
    name: &str,
    package: &GoPackage,
    build_errors: Option<&str>,
    (in_package, in_module): (&SourcePaths, &SourcePaths),
    report: &mut TestReport,
) {
    let has_failed = package.get("").is_some_and(|whole| whole.end == Some(GoEnd::Fail));
    let mut has_failure = false;
    for (test, result) in package.iter().filter(|(test, _)| !test.is_empty()) {
        let subtests = package.range(format!("{test}/")..format!("{test}0"));
        let mut ends = subtests.map(|(_, subtest)| subtest.end);
        let has_subtests = ends.clone().next().is_some();
        let end = match result.end {
            // Its process died with it.
            None if has_failed => GoEnd::Fail,
            None => continue,
            Some(end) => end,
        };
        let is_told_by_subtests = has_subtests
            && (end != GoEnd::Fail || ends.any(|end| end != Some(GoEnd::Pass) && end != Some(GoEnd::Skip)));
        if is_told_by_subtests {
            continue;
        }
        match end {
            GoEnd::Pass => report.pass(),
            GoEnd::Skip => report.skip(),
            GoEnd::Fail => {
                has_failure = true;
                report.fail(failed_test(test, &result.output, in_package));
            }
        }
    }
    if has_failed && !has_failure {
        let own = package.get("").map(|whole| whole.output.as_str()).unwrap_or_default();
        let text = build_errors.filter(|errors| !errors.trim().is_empty()).unwrap_or(own);
        report.error(TestFailure::new(name, &without_marks(text)).with_lines(in_module.find(text)));
    }
}

/// What the compiler printed about each package, below a line `# PACKAGE`, or `# PACKAGE_test [PACKAGE.test]` for its tests.
fn errors_by_package(output: &str) -> BTreeMap<&str, &str> {
    let mut packages = BTreeMap::new();
    for part in output.split("# ") {
        let (header, errors) = part.split_once('\n').unwrap_or((part, ""));
        let of_tests = header.split_once(" [").and_then(|(_, tested)| tested.strip_suffix(".test]"));
        let name = of_tests.or_else(|| header.split(' ').next()).unwrap_or_default();
        packages.entry(name).or_insert(errors);
    }
    packages
}

fn failed_test(name: &str, output: &str, paths: &SourcePaths) -> TestFailure {
    let text = without_marks(output);
    if let Some(at) = text.find("panic: ") {
        let (_, panic) = text.split_at(at);
        let (message, stack) = panic.split_once("\ngoroutine ").unwrap_or((panic, ""));
        let message = message.lines().next().unwrap_or_default().trim_end_matches(" [recovered]");
        return TestFailure::new(name, message).with_lines(frames(stack, paths));
    }
    let lines = paths.find(&text);
    let first = text.trim_start();
    // The place is in the line with the name.
    let message = match colon_locations(first.lines().next().unwrap_or_default()).next() {
        Some((file, line)) => first.strip_prefix(&format!("{file}:{line}: ")).unwrap_or(first),
        None => first,
    };
    TestFailure::new(name, message).with_lines(lines)
}

/// Frames of a goroutine: `\t/workspace/basket.go:27 +0xa5`.
fn frames(stack: &str, paths: &SourcePaths) -> Vec<SourceLine> {
    let lines: Vec<&str> = stack.lines().filter(|line| line.starts_with('\t')).collect();
    paths.find(&lines.join("\n"))
}

/// The output without the lines that say that a test began and ended.
fn without_marks(output: &str) -> String {
    let is_mark = |line: &str| {
        let line = line.trim_start();
        line.starts_with("=== ")
            || line.starts_with("--- ")
            || line == "FAIL"
            || line.starts_with("FAIL\t")
            || line.starts_with("exit status ")
    };
    output
        .lines()
        .filter(|line| !is_mark(line))
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

fn push_bounded(target: &mut String, text: &str) {
    let room = MAX_OUTPUT_BYTES.saturating_sub(target.len());
    target.push_str(&text[..text.floor_char_boundary(room)]);
}

/// What the tests and the go command printed, as people see it.
pub(crate) fn plain_output(text: &str) -> String {
    let mut plain = String::new();
    for line in text.lines() {
        match serde_json::from_str::<GoEvent>(line) {
            Ok(event) => plain.push_str(&event.output),
            Err(_) => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}
