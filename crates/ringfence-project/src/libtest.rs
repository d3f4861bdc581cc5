//! Rust's test harness: its text, and panics.
//!
//! libtest has no stable report but its text, which `cargo test` prints once for each program of tests. Where nothing could be
//! compiled, the compiler's errors are the failures.
//!
//! Not here: nextest's report (`junit_runners.rs`), which has the same panics.

use crate::source_paths::SourcePaths;
use crate::test_report::{ReportError, SourceLine, TestFailure, TestReport, without_escapes};

/// Lines that a failed test printed before its panic which are shown.
const MAX_PRINTED_LINES: usize = 5;

/// A panic in the output of a test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PanicText {
    pub(crate) message: String,
    /// Where it panicked, if that is in the project, and the frames of a backtrace.
    pub(crate) lines: Vec<SourceLine>,
}

/// Adds the text of `cargo test` to a report.
pub(crate) fn read(text: &str, paths: &SourcePaths, report: &mut TestReport) -> Result<(), ReportError> {
    let text = without_escapes(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut has_results = false;
    let (mut programs, mut results) = (0_u64, 0_u64);
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        if let Some(name) = block_name(line) {
            let end = lines[at..].iter().position(|line| ends_block(line)).map_or(lines.len(), |end| at + end);
            report.keep(failed_test(name, &lines[at..end].join("\n"), paths));
            at = end;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let is_result = add_result(result, report);
            has_results |= is_result;
            results += u64::from(is_result);
        } else if is_start(line) {
            programs += 1;
        } else if let Some(death) = line.trim_start().strip_prefix("process didn't exit successfully: ")
            && !death.contains("(exit status: 101)")
        {
            let reason = death.rsplit_once(" (").map_or(death, |(_, reason)| reason.trim_end_matches(')'));
            report.error(TestFailure::new("a program of tests", &format!("it ended by itself: {reason}")));
            has_results = true;
            results += 1;
        }
    }
    // A test that ends its process with 0 takes those that were not run with it, and cargo sees nothing wrong.
    if has_results && results < programs {
        let message = format!("it ended before its result: {results} of {programs} programs have one");
        report.error(TestFailure::new("a program of tests", &message));
    }
    let errors = compiler_errors(&lines, paths);
    // Those of a crate that does not compile. Warnings and errors of tests' own output are not among them.
    if !errors.is_empty() && lines.iter().any(|line| line.starts_with("error: could not compile ")) {
        has_results = true;
        errors.into_iter().for_each(|error| report.error(error));
    }
    if has_results { Ok(()) } else { Err(ReportError::Empty) }
}

/// `---- tests::name stdout ----`.
fn block_name(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" ----")?.strip_suffix(" stdout")
}

/// `running 2 tests`.
fn is_start(line: &str) -> bool {
    let count =
        line.strip_prefix("running ").and_then(|rest| rest.strip_suffix(" tests").or(rest.strip_suffix(" test")));
    count.is_some_and(|count| count.parse::<u32>().is_ok())
}

fn ends_block(line: &str) -> bool {
    block_name(line).is_some() || line == "failures:" || line.starts_with("test result: ")
}

/// `FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.14s`.
fn add_result(result: &str, report: &mut TestReport) -> bool {
    let Some((_, counts)) = result.split_once(". ") else { return false };
    for part in counts.split("; ") {
        let number = |word: &str| part.strip_suffix(word)?.trim_end().parse::<u32>().ok().map(u64::from);
        if let Some(passed) = number("passed").or(number("measured")) {
            report.counts.passed += passed;
        } else if let Some(failed) = number("failed") {
            report.counts.failed += failed;
        } else if let Some(ignored) = number("ignored") {
            report.counts.skipped += ignored;
        } else if let Some(seconds) = part.strip_prefix("finished in ").and_then(|time| time.strip_suffix('s')) {
            report.add_seconds(seconds.parse().unwrap_or_default());
        }
    }
    true
}

fn failed_test(name: &str, block: &str, paths: &SourcePaths) -> TestFailure {
    // A documentation test has its place in its name: `src/lib.rs - total (line 5)`.
    let doc_line = name.rsplit_once(" (line ").and_then(|(item, line)| {
        let file = item.split(" - ").next()?;
        paths.line(file, line.strip_suffix(')')?.parse().ok()?)
    });
    let (message, mut lines) = match read_panic(block, name, paths) {
        Some(panic) => (panic.message, panic.lines),
        None => (block.to_owned(), paths.find(block)),
    };
    if let Some(line) = doc_line {
        lines.insert(0, line);
    }
    TestFailure::new(name, &message).with_lines(lines)
}

/// The panic of a test in its output: that of its own thread, or the first.
pub(crate) fn read_panic(text: &str, test: &str, paths: &SourcePaths) -> Option<PanicText> {
    let lines: Vec<&str> = text.lines().collect();
    let is_panic = |line: &&str| line.starts_with("thread '") && line.contains("panicked at ");
    let of_test = |line: &&str| is_panic(line) && line.contains(&format!("'{test}'"));
    let at = lines.iter().position(of_test).or_else(|| lines.iter().position(is_panic))?;
    let (_, place) = lines[at].split_once("panicked at ")?;
    let is_end = |line: &&str| {
        line.starts_with("note: run with `RUST_BACKTRACE") || **line == *"stack backtrace:" || is_panic(line)
    };
    let rest: Vec<&str> = lines[at + 1..].iter().copied().take_while(|line| !is_end(line)).collect();
    // Before Rust 1.73 the message came first, in quotes.
    let message = match place.strip_prefix('\'').and_then(|place| place.rsplit_once("', ")) {
        Some((message, _)) => message.to_owned(),
        None => rest.join("\n"),
    };
    let printed: Vec<&str> = lines[..at].iter().copied().filter(|line| !line.trim().is_empty()).collect();
    let printed = &printed[printed.len().saturating_sub(MAX_PRINTED_LINES)..];
    let message = match printed {
        [] => message,
        printed => format!("{}\nprinted before:\n{}", message.trim_end(), printed.join("\n")),
    };
    let mut found = paths.find(place);
    found.extend(paths.find(&lines[at + 1 + rest.len()..].join("\n")));
    Some(PanicText { message, lines: found })
}

/// `error[E0308]: mismatched types`, and the line of the source that follows.
fn compiler_errors(lines: &[&str], paths: &SourcePaths) -> Vec<TestFailure> {
    const MAX_SOURCE_LINES: usize = 6;
    let error = |at: usize| {
        let line = lines[at];
        let (code, message) = line.strip_prefix("error")?.split_once(": ")?;
        (code.is_empty() || code.starts_with('[')).then_some(())?;
        let place = lines.get(at + 1)?.trim_start().strip_prefix("--> ")?;
        let source = lines[at + 2..].iter().take(MAX_SOURCE_LINES).take_while(|line| line.contains('|'));
        let marked: Vec<&str> = source.copied().filter(|line| !line.trim_end().ends_with('|')).collect();
        let name = format!("error{code}");
        Some(TestFailure::new(&name, &format!("{message}\n{}", marked.join("\n"))).with_lines(paths.find(place)))
    };
    (0..lines.len()).filter_map(error).collect()
}
