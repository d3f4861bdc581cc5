//! JUnit cases by runner: where a test failed, and the words for it.
//!
//! Each runner has its own idea of a name, of a line and of a failure's text.
//!
//! Not here: the XML (`junit.rs`).

use crate::junit::{self, JunitCase, JunitOutcome};
use crate::libtest::read_panic;
use crate::source_paths::{SourcePaths, colon_locations};
use crate::stack_trace::{message_before_frames, project_frames};
use crate::test_report::{ReportError, SourceLine, TestFailure, TestReport};

/// The runner that wrote a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JunitRunner {
    Pytest,
    Nextest,
    Node,
    /// Maven's surefire and Gradle.
    Surefire,
    Ctest,
    Phpunit,
}

/// Lines of what a program printed that a failure shows.
const MAX_OUTPUT_LINES: usize = 10;

/// Adds a document to a report.
pub(crate) fn read(
    runner: JunitRunner,
    text: &str,
    paths: &SourcePaths,
    report: &mut TestReport,
) -> Result<(), ReportError> {
    let junit = junit::parse(text)?;
    report.counts.passed += junit.passed;
    report.counts.skipped += junit.skipped;
    report.counts.failed += junit.further_failures;
    if let Some(seconds) = junit.seconds {
        report.add_seconds(seconds);
    }
    for case in &junit.cases {
        let failure = match runner {
            JunitRunner::Pytest => pytest(case, paths),
            JunitRunner::Nextest => nextest(case, paths),
            JunitRunner::Node => node(case, paths),
            JunitRunner::Surefire => surefire(case, paths),
            JunitRunner::Ctest => ctest(case, paths),
            JunitRunner::Phpunit => phpunit(case, paths),
        };
        match case.outcome {
            JunitOutcome::Error => report.error(failure),
            _ => report.fail(failure),
        }
    }
    Ok(())
}

/// The text has the source with `>` before the line that failed, `E` before what is wrong with it, and a line
/// `file:line: Error` after each frame, the innermost last.
fn pytest(case: &JunitCase, paths: &SourcePaths) -> TestFailure {
    let lines: Vec<&str> = case.text.lines().collect();
    let source = lines.iter().rposition(|line| line.starts_with('>'));
    let problem: Vec<&str> = lines[source.unwrap_or(0)..].iter().filter_map(|line| line.strip_prefix("E ")).collect();
    let indent = problem.first().map_or(0, |first| first.len() - first.trim_start().len());
    let dedented = |line: &&str| {
        line.split_at_checked(indent)
            .filter(|(blank, _)| blank.trim().is_empty())
            .map_or(line.trim_start(), |(_, rest)| rest)
            .to_owned()
    };
    let mut message: Vec<String> = source.map(|at| lines[at][1..].trim().to_owned()).into_iter().collect();
    match problem.is_empty() {
        true => message.push(case.message.clone()),
        false => message.extend(problem.iter().map(dedented)),
    }
    let frame = |line: &&str| {
        let (file, number) = colon_locations(line).next().filter(|(file, _)| line.starts_with(file))?;
        paths.line(file, number)
    };
    let mut frames: Vec<SourceLine> = lines.iter().filter_map(frame).collect();
    if frames.is_empty() {
        frames = paths.find(&case.text);
    }
    frames.reverse();
    if frames.is_empty() {
        // The report counts lines from zero.
        let line = case.line.and_then(|line| line.checked_add(1)).unwrap_or(1);
        frames.extend(case.file.as_deref().and_then(|file| paths.line(file, line)));
    }
    TestFailure::new(&pytest_name(case), &message.join("\n")).with_lines(frames)
}

/// As `-k` and people name it: the classes, and the function.
fn pytest_name(case: &JunitCase) -> String {
    let module = case.file.as_deref().and_then(|file| file.strip_suffix(".py")).unwrap_or_default().replace('/', ".");
    let classes = case.class.strip_prefix(module.as_str()).unwrap_or_default().trim_start_matches('.');
    match classes {
        "" => case.name.clone(),
        classes => format!("{}::{}", classes.replace('.', "::"), case.name),
    }
}

fn nextest(case: &JunitCase, paths: &SourcePaths) -> TestFailure {
    let panic = [&case.text, &case.output].into_iter().find_map(|text| read_panic(text, &case.name, paths));
    match panic {
        Some(panic) => TestFailure::new(&case.name, &panic.message).with_lines(panic.lines),
        None => {
            let text = if case.text.trim().is_empty() { &case.message } else { &case.text };
            let message = format!("{}\n{text}", case.kind);
            TestFailure::new(&case.name, &message).with_lines(paths.find(text))
        }
    }
}

/// The stack is that of the cause, behind the runner's own error.
fn node(case: &JunitCase, paths: &SourcePaths) -> TestFailure {
    let suites = case.suites.iter().filter(|suite| !suite.is_empty());
    let name: Vec<&str> = suites.map(String::as_str).chain([case.name.as_str()]).collect();
    let cause = case.text.split_once("cause: ").map(|(_, cause)| cause);
    let message = match cause.map(message_before_frames) {
        Some(message) if !message.is_empty() => dedented(&message),
        _ => case.message.clone(),
    };
    let mut frames = project_frames(cause.unwrap_or(&case.text), paths);
    if frames.is_empty() {
        frames.extend(case.file.as_deref().and_then(|file| paths.line(file, case.line.unwrap_or(1))));
    }
    TestFailure::new(&name.join(" > "), &message).with_lines(frames)
}

fn dedented(text: &str) -> String {
    let line = |line: &str| line.strip_prefix("  ").unwrap_or(line).to_owned();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Frames name a class and a file without its directory. That of the test class is in the module's test sources.
fn surefire(case: &JunitCase, paths: &SourcePaths) -> TestFailure {
    let class = case.class.split(['$', '(']).next().unwrap_or_default();
    let (package, simple) = class.rsplit_once('.').unwrap_or(("", class));
    let line = case.text.lines().find_map(|line| {
        let frame = line.trim_start().strip_prefix("at ")?;
        let frame = frame.rsplit_once('/').map_or(frame, |(_, frame)| frame);
        let (method, location) = frame.split_once('(')?;
        let of_class = method.strip_prefix(class)?;
        of_class.starts_with(['.', '$']).then_some(())?;
        let (file, number) = location.strip_suffix(')')?.split_once(':')?;
        let sources = match file.rsplit_once('.')?.1 {
            "kt" => "kotlin",
            "groovy" => "groovy",
            "scala" => "scala",
            _ => "java",
        };
        let directory = package.replace('.', "/");
        let path = ["src/test", sources, directory.as_str(), file].into_iter().filter(|part| !part.is_empty());
        paths.line(&path.collect::<Vec<_>>().join("/"), number.parse().ok()?)
    });
    let kind = case.kind.rsplit('.').next().unwrap_or_default();
    let first = case.text.trim().lines().next().unwrap_or_default();
    let message = match (kind, case.message.trim()) {
        (_, "") => first.to_owned(),
        ("", message) => message.to_owned(),
        (kind, message) => format!("{kind}: {}", message.strip_prefix(&format!("{}: ", case.kind)).unwrap_or(message)),
    };
    TestFailure::new(&format!("{simple}.{}", case.name), &message).with_lines(line.into_iter().collect())
}

/// A test is a program; what it printed says where it failed, if anything does.
fn ctest(case: &JunitCase, paths: &SourcePaths) -> TestFailure {
    let lines: Vec<&str> = case.output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(MAX_OUTPUT_LINES)..];
    let message: Vec<&str> =
        [case.message.as_str()].into_iter().filter(|line| !line.is_empty()).chain(last.iter().copied()).collect();
    TestFailure::new(&case.name, &message.join("\n")).with_lines(paths.find(&case.output))
}

/// The text begins with the name of the test, and ends with its frames, one in a line.
fn phpunit(case: &JunitCase, paths: &SourcePaths) -> TestFailure {
    let is_frame =
        |line: &str| colon_locations(line).next().is_some_and(|(file, _)| line.trim_start().starts_with(file));
    let lines: Vec<&str> = case.text.lines().skip(1).collect();
    let frames: Vec<&str> = lines.iter().copied().filter(|line| is_frame(line)).collect();
    let words: Vec<&str> = lines.iter().copied().filter(|line| !is_frame(line)).collect();
    let mut lines = paths.find(&frames.join("\n"));
    if lines.is_empty() {
        lines.extend(case.file.as_deref().and_then(|file| paths.line(file, case.line.unwrap_or(1))));
    }
    let class = case.class.rsplit(['.', '\\']).next().unwrap_or_default();
    TestFailure::new(&format!("{class}::{}", case.name), &words.join("\n")).with_lines(lines)
}
