//! Text of a test report for models.
//!
//! ```text
//! 1 failed, 57 passed in 0.1 s
//!
//! tests/test_basket.py:17 test_cents
//! assert parse("3.5") == 350
//! AssertionError: assert 305 == 350
//! ```

use std::fmt::Write as _;
use std::time::Duration;

use crate::test_report::{TestFailure, TestReport};

/// Failures that are shown with their message.
pub(crate) const MAX_SHOWN: usize = 20;

/// Further failures that are named.
const MAX_NAMED: usize = 100;

/// The text of a report. `duration` is the time of the run, for a runner that tells none.
pub(crate) fn report_text(report: &TestReport, duration: Duration) -> String {
    let mut text = summary_line(report, duration);
    for failure in report.failures.iter().take(MAX_SHOWN) {
        let _ = write!(text, "\n\n{}", failure_line(failure));
        if !failure.message.is_empty() {
            let _ = write!(text, "\n{}", failure.message);
        }
        if let Some(caller) = failure.called_from.first() {
            let _ = write!(text, "\nfrom {}:{}", caller.file, caller.line);
        }
    }
    let total = report.counts.failed.saturating_add(report.counts.errors);
    let more = total.saturating_sub(report.failures.len().min(MAX_SHOWN) as u64);
    if more > 0 {
        let _ = write!(text, "\n\n{more} more:");
        let named = report.failures.iter().skip(MAX_SHOWN).take(MAX_NAMED);
        let count = named.clone().count() as u64;
        for failure in named {
            let _ = write!(text, "\n{}", failure_line(failure));
        }
        if count < more {
            let _ = write!(text, "\n[{} without a name here]", more - count);
        }
    }
    text
}

/// `3 failed, 57 passed in 0.1 s`.
pub(crate) fn summary_line(report: &TestReport, duration: Duration) -> String {
    let counts = report.counts;
    let errors = if counts.errors == 1 { "error" } else { "errors" };
    let parts =
        [(counts.failed, "failed"), (counts.errors, errors), (counts.passed, "passed"), (counts.skipped, "skipped")];
    let words: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    let time = report.duration.filter(|time| !time.is_zero()).unwrap_or(duration);
    format!("{} in {}", words.join(", "), seconds(time))
}

/// A time with one digit, and more for a short one.
pub(crate) fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 0.1 => format!("{seconds:.1} s"),
        seconds => format!("{seconds:.2} s"),
    }
}

fn failure_line(failure: &TestFailure) -> String {
    match &failure.at {
        Some(at) => format!("{}:{} {}", at.file, at.line, failure.name),
        None => failure.name.clone(),
    }
}
