//! JSON reports of jest, vitest and mocha.
//!
//! Not here: stacks (`stack_trace.rs`).

use serde::Deserialize;

use crate::source_paths::SourcePaths;
use crate::stack_trace::{message_before_frames, project_frames};
use crate::test_report::{ReportError, SourceLine, TestFailure, TestReport, without_escapes};

/// The report of jest, which vitest writes too.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JestReport {
    #[serde(default)]
    start_time: Option<f64>,
    test_results: Vec<JestFile>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JestFile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    end_time: Option<f64>,
    #[serde(default)]
    assertion_results: Vec<JestTest>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JestTest {
    #[serde(default)]
    ancestor_titles: Vec<String>,
    #[serde(default)]
    title: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    failure_messages: Option<Vec<String>>,
}

/// Adds a report of jest or vitest.
pub(crate) fn read_jest(text: &str, paths: &SourcePaths, report: &mut TestReport) -> Result<(), ReportError> {
    let jest: JestReport = serde_json::from_str(text).map_err(|_| ReportError::Json)?;
    let mut end: f64 = 0.0;
    for file in &jest.test_results {
        end = end.max(file.end_time.unwrap_or_default());
        for test in &file.assertion_results {
            match test.status.as_str() {
                "passed" => report.pass(),
                "failed" => report.fail(jest_failure(test, paths)),
                _ => report.skip(),
            }
        }
        // A file that could not be loaded has no tests.
        if file.status == "failed" && !file.assertion_results.iter().any(|test| test.status == "failed") {
            let message = without_escapes(file.message.as_deref().unwrap_or_default());
            let name = paths.project_file(&file.name).unwrap_or_else(|| "a test file".to_owned());
            let mut lines = project_frames(&message, paths);
            if lines.is_empty() {
                lines = paths.find(&message);
            }
            report.error(TestFailure::new(&name, &message_before_frames(&message)).with_lines(lines));
        }
    }
    if let Some(start) = jest.start_time.filter(|start| end > *start) {
        report.add_seconds((end - start) / 1000.0);
    }
    Ok(())
}

fn jest_failure(test: &JestTest, paths: &SourcePaths) -> TestFailure {
    let titles = test.ancestor_titles.iter().map(String::as_str).chain([test.title.as_str()]);
    let name = titles.filter(|title| !title.is_empty()).collect::<Vec<_>>().join(" > ");
    let stack = test.failure_messages.as_deref().and_then(|messages| messages.first()).map(String::as_str);
    js_failure(&name, &without_escapes(stack.unwrap_or_default()), paths, None)
}

fn js_failure(name: &str, stack: &str, paths: &SourcePaths, file: Option<SourceLine>) -> TestFailure {
    let mut lines = project_frames(stack, paths);
    if lines.is_empty() {
        lines.extend(file);
    }
    TestFailure::new(name, &message_before_frames(stack)).with_lines(lines)
}

#[derive(Debug, Deserialize)]
struct MochaReport {
    stats: MochaStats,
    passes: Vec<serde::de::IgnoredAny>,
    pending: Vec<serde::de::IgnoredAny>,
    failures: Vec<MochaTest>,
}

#[derive(Debug, Deserialize)]
struct MochaStats {
    #[serde(default)]
    duration: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MochaTest {
    #[serde(default)]
    full_title: String,
    #[serde(default)]
    file: Option<String>,
    #[serde(default)]
    err: MochaError,
}

#[derive(Debug, Default, Deserialize)]
struct MochaError {
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    stack: Option<String>,
}

/// Adds a report of mocha.
pub(crate) fn read_mocha(text: &str, paths: &SourcePaths, report: &mut TestReport) -> Result<(), ReportError> {
    let mocha: MochaReport = serde_json::from_str(text).map_err(|_| ReportError::Json)?;
    report.counts.passed += mocha.passes.len() as u64;
    report.counts.skipped += mocha.pending.len() as u64;
    for test in &mocha.failures {
        let stack = test.err.stack.as_deref().or(test.err.message.as_deref()).unwrap_or_default();
        let file = test.file.as_deref().and_then(|file| paths.line(file, 1));
        report.fail(js_failure(&test.full_title, &without_escapes(stack), paths, file));
    }
    report.add_seconds(mocha.stats.duration / 1000.0);
    Ok(())
}

#[derive(Debug, Deserialize)]
struct RspecReport {
    examples: Vec<RspecExample>,
    #[serde(default)]
    summary: RspecSummary,
    /// What went wrong outside of an example.
    #[serde(default)]
    messages: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct RspecSummary {
    #[serde(default)]
    duration: f64,
    #[serde(default)]
    errors_outside_of_examples_count: u64,
}

#[derive(Debug, Deserialize)]
struct RspecExample {
    #[serde(default)]
    full_description: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    file_path: String,
    #[serde(default)]
    line_number: u32,
    #[serde(default)]
    exception: Option<RspecException>,
}

#[derive(Debug, Deserialize)]
struct RspecException {
    #[serde(default)]
    message: String,
    #[serde(default)]
    backtrace: Option<Vec<String>>,
}

/// Adds a report of RSpec.
pub(crate) fn read_rspec(text: &str, paths: &SourcePaths, report: &mut TestReport) -> Result<(), ReportError> {
    let rspec: RspecReport = serde_json::from_str(text).map_err(|_| ReportError::Json)?;
    for example in &rspec.examples {
        match example.status.as_str() {
            "passed" => report.pass(),
            "failed" => {
                let (message, backtrace) = match &example.exception {
                    Some(exception) => (exception.message.as_str(), exception.backtrace.clone().unwrap_or_default()),
                    None => ("", Vec::new()),
                };
                let mut lines = paths.find(&backtrace.join("\n"));
                if lines.is_empty() {
                    lines.extend(paths.line(&example.file_path, example.line_number));
                }
                report.fail(TestFailure::new(&example.full_description, message).with_lines(lines));
            }
            _ => report.skip(),
        }
    }
    if rspec.summary.errors_outside_of_examples_count > 0 {
        let message = without_escapes(&rspec.messages.join("\n"));
        report.error(TestFailure::new("outside of examples", &message).with_lines(paths.find(&message)));
    }
    report.add_seconds(rspec.summary.duration);
    Ok(())
}
