//! Verdict of a test run: the report and the exit code together.
//!
//! A run has passed only where both say so and a test was run. Where they disagree, neither is believed.

use crate::test_report::{ReportError, TestReport};
use crate::test_runner::{TestCommand, TestRunner};

/// What a run of tests came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TestVerdict {
    Passed(TestReport),
    Failed(TestReport),
    /// No test was found, or none that the call selected.
    NoTests,
    /// The report and the exit code do not agree.
    Disagreement {
        problem: String,
        report: TestReport,
    },
    /// Without a report: the exit code and the text decide.
    TextOnly {
        problem: Option<ReportError>,
    },
}

/// Judges a run that ended by itself.
pub(crate) fn judge(
    command: &TestCommand,
    report: Option<Result<TestReport, ReportError>>,
    exit_code: i32,
) -> TestVerdict {
    let report = match report {
        None => return TestVerdict::TextOnly { problem: None },
        // Both write a file for each class of tests, and none where there is no class.
        Some(Err(ReportError::Missing))
            if exit_code == 0 && matches!(command, TestCommand::Runner(TestRunner::Maven | TestRunner::Gradle)) =>
        {
            return TestVerdict::NoTests;
        }
        Some(Err(problem)) => return TestVerdict::TextOnly { problem: Some(problem) },
        Some(Ok(report)) => report,
    };
    let failures = report.counts.failed.saturating_add(report.counts.errors);
    let found_none =
        exit_code == 0 || (exit_code == NO_TESTS_OF_PYTEST && *command == TestCommand::Runner(TestRunner::Pytest));
    match (report.counts.ran(), failures, exit_code) {
        (0, _, _) if found_none => TestVerdict::NoTests,
        (_, 0, 0) => TestVerdict::Passed(report),
        (_, 0, code) => {
            let problem = format!("the runner exited with {code}, but its report has no failure");
            TestVerdict::Disagreement { problem, report }
        }
        (_, _, 0) => {
            let problem = "the runner exited with 0, but its report has failures".to_owned();
            TestVerdict::Disagreement { problem, report }
        }
        _ => TestVerdict::Failed(report),
    }
}

/// The exit code of pytest where it collected nothing.
const NO_TESTS_OF_PYTEST: i32 = 5;

#[cfg(test)]
mod tests {
    use super::{TestVerdict, judge};
    use crate::test_report::{ReportError, TestCounts, TestReport};
    use crate::test_runner::{TestCommand, TestRunner};

    #[track_caller]
    fn check(runner: TestRunner, (passed, failed, errors): (u64, u64, u64), exit_code: i32, expected: &str) {
        let report = TestReport { counts: TestCounts { passed, failed, skipped: 1, errors }, ..TestReport::default() };
        let verdict = match judge(&TestCommand::Runner(runner), Some(Ok(report)), exit_code) {
            TestVerdict::Passed(_) => "passed".to_owned(),
            TestVerdict::Failed(_) => "failed".to_owned(),
            TestVerdict::NoTests => "no tests".to_owned(),
            TestVerdict::Disagreement { problem, .. } => problem,
            TestVerdict::TextOnly { .. } => "text".to_owned(),
        };
        assert_eq!(verdict, expected);
    }

    #[test]
    fn a_pass_is_a_pass_of_both() {
        use TestRunner::{Jest, Pytest};
        check(Pytest, (1, 0, 0), 0, "passed");
        check(Pytest, (1, 1, 0), 1, "failed");
        check(Pytest, (0, 0, 1), 1, "failed");
        check(Pytest, (1, 1, 0), 0, "the runner exited with 0, but its report has failures");
        check(Pytest, (1, 0, 0), 1, "the runner exited with 1, but its report has no failure");
        check(Pytest, (0, 0, 0), 0, "no tests");
        check(Pytest, (0, 0, 0), 5, "no tests");
        check(Jest, (0, 0, 0), 5, "the runner exited with 5, but its report has no failure");
    }

    #[test]
    fn without_a_report_nothing_is_counted() {
        let maven = TestCommand::Runner(TestRunner::Maven);
        let jest = TestCommand::Runner(TestRunner::Jest);
        assert_eq!(judge(&maven, Some(Err(ReportError::Missing)), 0), TestVerdict::NoTests);
        assert_eq!(
            judge(&jest, Some(Err(ReportError::Json)), 0),
            TestVerdict::TextOnly { problem: Some(ReportError::Json) }
        );
        assert_eq!(judge(&TestCommand::Shell("make".to_owned()), None, 0), TestVerdict::TextOnly { problem: None });
    }
}
