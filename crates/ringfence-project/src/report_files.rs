//! Report files of a run: from what the jail gave back to a test report.
//!
//! Not here: the formats, each of which has a file of its own.

use crate::go_report;
use crate::js_reports::{read_jest, read_mocha, read_rspec};
use crate::junit_runners::{self, JunitRunner};
use crate::libtest;
use crate::source_paths::{SourcePaths, WORKSPACE};
use crate::test_report::{ReportError, TestReport};
use crate::test_runner::{TestCommand, TestProject, TestRunner};

/// What a run gave back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOutput<'a> {
    /// The reports, each after a line with its size and its path, and before a NUL.
    pub(crate) reports: &'a str,
    /// Whether the middle of the reports or of the text is missing.
    pub(crate) truncated: bool,
    /// What the runner and the tests printed.
    pub(crate) text: &'a str,
}

/// The report of a run; `None` for a command that has none.
pub(crate) fn read_report(project: &TestProject, output: RunOutput<'_>) -> Option<Result<TestReport, ReportError>> {
    let runner = match &project.command {
        TestCommand::Runner(TestRunner::NpmScript) | TestCommand::Shell(_) => return None,
        TestCommand::Runner(runner) => *runner,
    };
    let mut report = TestReport::default();
    Some(read_files(runner, project, output, &mut report).map(|()| report))
}

fn read_files(
    runner: TestRunner,
    project: &TestProject,
    output: RunOutput<'_>,
    report: &mut TestReport,
) -> Result<(), ReportError> {
    let paths = SourcePaths { directory: project.source_directory.clone() };
    if runner == TestRunner::CargoTest {
        if output.truncated {
            return Err(ReportError::Truncated);
        }
        return libtest::read(output.text, &paths, report);
    }
    let mut files = report_files(output.reports).peekable();
    if files.peek().is_none() {
        // Code that does not compile has only the compiler's report.
        return match runner {
            TestRunner::Nextest => libtest::read(output.text, &paths, report).map_err(|_| ReportError::Missing),
            _ => Err(ReportError::Missing),
        };
    }
    for ReportFile { path, size, text } in files {
        if output.truncated && size != text.len() {
            return Err(ReportError::Truncated);
        }
        match runner {
            TestRunner::Vitest | TestRunner::Jest => read_jest(text, &paths, report)?,
            TestRunner::Mocha => read_mocha(text, &paths, report)?,
            TestRunner::Rspec => read_rspec(text, &paths, report)?,
            TestRunner::GoTest => go_report::read(text, output.text, &project.module, &paths, report)?,
            TestRunner::Pytest => junit_runners::read(JunitRunner::Pytest, text, &paths, report)?,
            TestRunner::NodeTest => junit_runners::read(JunitRunner::Node, text, &paths, report)?,
            TestRunner::Ctest => junit_runners::read(JunitRunner::Ctest, text, &paths, report)?,
            TestRunner::Phpunit => junit_runners::read(JunitRunner::Phpunit, text, &paths, report)?,
            TestRunner::Maven | TestRunner::Gradle => {
                let paths = SourcePaths { directory: module_directory(path, &project.directory) };
                junit_runners::read(JunitRunner::Surefire, text, &paths, report)?;
            }
            TestRunner::CargoTest | TestRunner::Nextest | TestRunner::NpmScript => {
                junit_runners::read(JunitRunner::Nextest, text, &paths, report)?;
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct ReportFile<'a> {
    path: &'a str,
    /// In the jail.
    size: usize,
    text: &'a str,
}

fn report_files(reports: &str) -> impl Iterator<Item = ReportFile<'_>> {
    let file = |file| {
        let (header, text): (&str, &str) = str::split_once(file, '\n')?;
        let (size, path) = header.trim_start().split_once(' ')?;
        (!text.trim().is_empty()).then_some(ReportFile { path, size: size.parse().unwrap_or(usize::MAX), text })
    };
    reports.split('\0').filter_map(file)
}

/// The module whose report lies at `./MODULE/target/surefire-reports/…`.
fn module_directory(report: &str, project: &str) -> String {
    let module = ["/target/surefire-reports/", "/build/test-results/"].iter().find_map(|part| report.split_once(part));
    let module = module.map_or("", |(module, _)| module.trim_start_matches(WORKSPACE).trim_start_matches("./"));
    let module = if module == "." { "" } else { module };
    [project, module].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// The output for people: Go has it in its report alone.
pub(crate) fn plain_output(project: &TestProject, output: RunOutput<'_>) -> String {
    match project.command {
        TestCommand::Runner(TestRunner::GoTest) => {
            let events: String = report_files(output.reports).map(|file| go_report::plain_output(file.text)).collect();
            events + output.text
        }
        _ => output.text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::{RunOutput, plain_output, read_report};
    use crate::report_text::report_text;
    use crate::test_runner::{TestCommand, TestProject, TestRunner};

    fn project(runner: TestRunner, directory: &str) -> TestProject {
        TestProject {
            command: TestCommand::Runner(runner),
            directory: directory.to_owned(),
            source_directory: directory.to_owned(),
            program_directories: Vec::new(),
            python: "python3".to_owned(),
            module: "example.test/basket".to_owned(),
            others: Vec::new(),
        }
    }

    fn stream(files: &[(&str, &str)]) -> String {
        files.iter().map(|(path, text)| format!("{} {path}\n{text}\0", text.len())).collect()
    }

    #[track_caller]
    fn check_output(runner: TestRunner, output: RunOutput<'_>, expected: Expect) {
        let text = match read_report(&project(runner, ""), output).unwrap() {
            Ok(report) => report_text(&report, Duration::from_secs(2)),
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&text);
    }

    #[track_caller]
    fn check(runner: TestRunner, report: &str, expected: Expect) {
        let reports = stream(&[("/tmp/ringfence-reports/report", report)]);
        check_output(runner, RunOutput { reports: &reports, truncated: false, text: "" }, expected);
    }

    #[test]
    fn cargo_test() {
        let text = include_str!("fixtures/cargo-test.txt");
        check_output(
            TestRunner::CargoTest,
            RunOutput { reports: "", truncated: false, text },
            expect![[r#"
            3 failed, 6 passed, 1 skipped in 0.2 s

            src/lib.rs:50 tests::an_amount_without_cents_is_whole
            called `Option::unwrap()` on a `None` value

            src/lib.rs:45 tests::an_amount_has_two_digits_of_cents
            assertion `left == right` failed
              left: Some(305)
             right: Some(350)

            tests/till.rs:4 a_sale_is_rounded_up
            assertion `left == right` failed: [99] less 50 %
              left: 50
             right: 49"#]],
        );
    }

    #[test]
    fn nextest() {
        check(
            TestRunner::Nextest,
            include_str!("fixtures/nextest.xml"),
            expect![[r#"
            3 failed, 6 passed in 0.4 s

            src/lib.rs:45 tests::an_amount_has_two_digits_of_cents
            assertion `left == right` failed
              left: Some(305)
             right: Some(350)

            src/lib.rs:50 tests::an_amount_without_cents_is_whole
            called `Option::unwrap()` on a `None` value

            tests/till.rs:4 a_sale_is_rounded_up
            assertion `left == right` failed: [99] less 50 %
              left: 50
             right: 49"#]],
        );
    }

    #[test]
    fn pytest() {
        check(
            TestRunner::Pytest,
            include_str!("fixtures/pytest.xml"),
            expect![[r#"
            3 failed, 1 error, 6 passed, 1 skipped in 0.1 s

            tests/test_basket.py:17 test_an_amount_has_two_digits_of_cents
            assert parse("3.5") == 350  # fails
            AssertionError: assert 305 == 350
             +  where 305 = parse('3.5')

            basket.py:13 test_an_amount_without_cents_is_whole
            whole, cents = amount.split(".")  # fails
            ValueError: not enough values to unpack (expected 2, got 1)
            from tests/test_basket.py:21

            tests/test_basket.py:30 TestTill::test_a_sale_is_rounded_down
            assert discounted(total(prices), 50) == 49  # fails
            assert 50 == 49
             +  where 50 = discounted(99, 50)
             +    where 99 = total([99])

            tests/test_basket.py:40 test_the_till_is_open
            raise RuntimeError("the till is closed")  # fails
            RuntimeError: the till is closed"#]],
        );
    }

    #[test]
    fn vitest() {
        check(
            TestRunner::Vitest,
            include_str!("fixtures/vitest.json"),
            expect![[r#"
            3 failed, 1 passed, 1 skipped in 0.6 s

            test/basket.test.js:17 basket > has two digits of cents
            AssertionError: expected 305 to deeply equal 350

            src/basket.js:14 basket > takes an amount without cents as whole
            Error: no cents in 3
            from test/basket.test.js:21

            test/basket.test.js:32 till > rounds down
            AssertionError: expected 50 to deeply equal 49"#]],
        );
    }

    #[test]
    fn jest() {
        check(
            TestRunner::Jest,
            include_str!("fixtures/jest.json"),
            expect![[r#"
            3 failed, 1 passed, 1 skipped in 0.6 s

            test/basket.test.js:15 basket > has two digits of cents
            Error: expect(received).toEqual(expected) // deep equality
            Expected: 350
            Received: 305

            src/basket.js:14 basket > takes an amount without cents as whole
            Error: no cents in 3
            from test/basket.test.js:19

            test/basket.test.js:30 till > rounds down
            Error: expect(received).toEqual(expected) // deep equality
            Expected: 49
            Received: 50"#]],
        );
    }

    #[test]
    fn mocha() {
        check(
            TestRunner::Mocha,
            include_str!("fixtures/mocha.json"),
            expect![[r#"
            3 failed, 1 passed, 1 skipped in 0.00 s

            test/basket.js:17 basket has two digits of cents
            AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:
            305 !== 350

            src/basket.js:14 basket takes an amount without cents as whole
            Error: no cents in 3
            from test/basket.js:21

            test/basket.js:32 till rounds down
            AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:
            50 !== 49"#]],
        );
    }

    #[test]
    fn node() {
        check(
            TestRunner::NodeTest,
            include_str!("fixtures/node.xml"),
            expect![[r#"
            3 failed, 1 passed, 1 skipped in 0.01 s

            test/basket.test.js:18 basket > has two digits of cents
            AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:
            305 !== 350

            src/basket.js:14 basket > takes an amount without cents as whole
            Error: no cents in 3
            from test/basket.test.js:22

            test/basket.test.js:33 till > rounds down
            AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:
            50 !== 49"#]],
        );
    }

    #[test]
    fn go() {
        check(
            TestRunner::GoTest,
            include_str!("fixtures/go.jsonl"),
            expect![[r#"
            3 failed, 2 passed, 1 skipped in 0.01 s

            basket_test.go:35 TestCents/two_digits
            Parse(3.5) = 305, want 350

            till/till_test.go:11 TestSale
            a sale of 99 at half price is 50, want 49

            basket.go:27 TestWhole
            panic: runtime error: index out of range [1] with length 1
            from till/till_test.go:16"#]],
        );
    }

    #[test]
    fn maven() {
        let reports = stream(&[
            (
                "./shop/target/surefire-reports/TEST-shop.BasketTest.xml",
                include_str!("fixtures/surefire-BasketTest.xml"),
            ),
            ("./target/surefire-reports/TEST-shop.TillTest.xml", include_str!("fixtures/surefire-TillTest.xml")),
        ]);
        let output = RunOutput { reports: &reports, truncated: false, text: "" };
        check_output(
            TestRunner::Maven,
            output,
            expect![[r#"
            2 failed, 1 error, 4 passed, 1 skipped in 0.08 s

            shop/src/test/java/shop/BasketTest.java:31 BasketTest.anAmountWithoutCentsIsWhole
            ArrayIndexOutOfBoundsException: Index 1 out of bounds for length 1

            shop/src/test/java/shop/BasketTest.java:26 BasketTest.anAmountHasTwoDigitsOfCents
            AssertionFailedError: expected: <350> but was: <305>

            src/test/java/shop/TillTest.java:15 TillTest.aSaleIsRoundedDown
            AssertionFailedError: a sale of 99 at half price ==> expected: <49> but was: <50>"#]],
        );
    }

    #[test]
    fn ctest() {
        check(
            TestRunner::Ctest,
            include_str!("fixtures/ctest.xml"),
            expect![[r#"
            2 failed, 2 passed in 2.0 s

            cents.c:10 cents
            checking cents
            cents: /workspace/cents.c:10: main: Assertion `total(prices, 2) == discounted(350, 0)' failed.

            sale.c:17 sale
            /workspace/sale.c:17: Failure: got 50, want 49"#]],
        );
    }

    #[test]
    fn rspec() {
        check(
            TestRunner::Rspec,
            include_str!("fixtures/rspec.json"),
            expect![[r#"
            3 failed, 1 skipped in 0.01 s

            spec/basket_spec.rb:9 Basket has two digits of cents
            expected: 350
                 got: 305
            (compared using ==)

            lib/basket.rb:13 Basket takes an amount without cents as whole
            no cents in 3
            from spec/basket_spec.rb:13

            spec/basket_spec.rb:17 Basket rounds down
            expected: 49
                 got: 50
            (compared using ==)"#]],
        );
    }

    #[test]
    fn phpunit() {
        check(
            TestRunner::Phpunit,
            include_str!("fixtures/phpunit.xml"),
            expect![[r#"
            2 failed, 1 error, 1 passed, 1 skipped in 0.01 s

            tests/BasketTest.php:19 BasketTest::testAnAmountHasTwoDigitsOfCents
            Failed asserting that 305 is identical to 350.

            src/Basket.php:19 BasketTest::testAnAmountWithoutCentsIsWhole
            InvalidArgumentException: no cents in 3
            from tests/BasketTest.php:24

            tests/BasketTest.php:29 BasketTest::testASaleIsRoundedDown
            a sale of 99 at half price
            Failed asserting that 50 is identical to 49."#]],
        );
    }

    #[test]
    fn what_does_not_compile_is_an_error() {
        let text = "   Compiling basket v0.1.0 (/workspace)\nerror[E0308]: mismatched types\n  --> src/lib.rs:5:5\n   |\n\
                    4 | fn a() -> u32 {\n  |           --- expected `u32`\n5 |     \"b\"\n  |     ^^^ expected `u32`, found `&str`\n\n\
                    warning: unused\n --> src/lib.rs:1:1\n\nerror: could not compile `basket` (lib test) due to 1 previous error\n";
        let output = RunOutput { reports: "", truncated: false, text };
        check_output(
            TestRunner::CargoTest,
            output,
            expect![[r#"
            1 error in 2.0 s

            src/lib.rs:5 error[E0308]
            mismatched types
            4 | fn a() -> u32 {
              |           --- expected `u32`
            5 |     "b"
              |     ^^^ expected `u32`, found `&str`"#]],
        );
        let report = |runner| read_report(&project(runner, ""), output);
        assert_eq!(report(TestRunner::Nextest), report(TestRunner::CargoTest));
        check_output(
            TestRunner::GoTest,
            RunOutput {
                reports: &stream(&[(
                    "go.json",
                    "{\"Action\":\"output\",\"Package\":\"example.test/basket/till\",\"Output\":\"FAIL\\texample.test/basket/till [build failed]\\n\"}\n\
                     {\"Action\":\"fail\",\"Package\":\"example.test/basket/till\",\"Elapsed\":0}\n",
                )]),
                truncated: false,
                text: "# example.test/basket/till [example.test/basket/till.test]\ntill/till_test.go:9:7: undefined: x\n",
            },
            expect![[r#"
                1 error in 2.0 s

                till/till_test.go:9 example.test/basket/till
                till/till_test.go:9:7: undefined: x"#]],
        );
    }

    #[test]
    fn a_program_that_died_is_an_error() {
        let text = "running 2 tests\ntest a ... ok\nerror: test failed, to rerun pass `--lib`\n\nCaused by:\n  \
                    process didn't exit successfully: `/workspace/target/debug/deps/a-1` (signal: 6, SIGABRT: process abort signal)\n";
        check_output(
            TestRunner::CargoTest,
            RunOutput { reports: "", truncated: false, text },
            expect![[r#"
            1 error in 2.0 s

            a program of tests
            it ended by itself: signal: 6, SIGABRT: process abort signal"#]],
        );
    }

    /// `std::process::exit(0)` in a test ends the program of all of them, and cargo takes that for a pass.
    #[test]
    fn a_program_that_exits_before_its_result_is_an_error() {
        let whole = "\nrunning 1 test\ntest b ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";
        for text in [format!("running 2 tests\ntest a ... {whole}"), format!("{whole}running 2 tests\ntest a ... ok\n")]
        {
            let output = RunOutput { reports: "", truncated: false, text: &text };
            check_output(
                TestRunner::CargoTest,
                output,
                expect![[r#"
                    1 error, 1 passed in 2.0 s

                    a program of tests
                    it ended before its result: 1 of 2 programs have one"#]],
            );
        }
    }

    /// A package is looked up in what the compiler printed, and there may be many of both.
    #[test]
    fn a_report_of_many_packages_is_read_in_linear_time() {
        let package = |number| format!("{{\"Action\":\"fail\",\"Package\":\"p{number}\"}}\n");
        let events: String = (0..20_000).map(package).collect();
        let printed = "# other\nx\n".repeat(200_000);
        let reports = stream(&[("go.json", &events)]);
        let started = std::time::Instant::now();
        let output = RunOutput { reports: &reports, truncated: false, text: &printed };
        let report = read_report(&project(TestRunner::GoTest, ""), output).unwrap().unwrap();
        assert_eq!(report.counts.errors, 20_000);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }

    #[test]
    fn reports_that_cannot_be_read_are_told_apart() {
        let missing = RunOutput { reports: "", truncated: false, text: "x" };
        check_output(TestRunner::Pytest, missing, expect!["the runner wrote no report"]);
        check_output(TestRunner::Nextest, missing, expect!["the runner wrote no report"]);
        check_output(TestRunner::CargoTest, missing, expect!["the report has no test results"]);
        check(TestRunner::Jest, "{\"testResults\":[", expect!["the report is not valid JSON"]);
        check(TestRunner::Jest, &"[".repeat(100_000), expect!["the report is not valid JSON"]);
        check(TestRunner::Mocha, "{}", expect!["the report is not valid JSON"]);
        check(TestRunner::GoTest, "no test files", expect!["the report is not valid JSON"]);
        check(TestRunner::NodeTest, "<testsuites>", expect!["the report is not well-formed XML"]);
        let reports = "100 /tmp/a.xml\n<testsuites/>\0";
        let cut = RunOutput { reports, truncated: true, text: "" };
        check_output(
            TestRunner::Pytest,
            cut,
            expect!["the report was longer than the limit and its middle is missing"],
        );
        check_output(
            TestRunner::CargoTest,
            cut,
            expect!["the report was longer than the limit and its middle is missing"],
        );
        let whole = RunOutput { reports: "13 /tmp/a.xml\n<testsuites/>\0", truncated: true, text: "" };
        check_output(TestRunner::Pytest, whole, expect![" in 2.0 s"]);
    }

    #[test]
    fn the_output_of_go_is_in_its_report() {
        let reports =
            stream(&[("go.json", "{\"Action\":\"output\",\"Output\":\"ok\\n\"}\nplain\n{\"Action\":\"pass\"}\n")]);
        let output = RunOutput { reports: &reports, truncated: false, text: "error\n" };
        assert_eq!(plain_output(&project(TestRunner::GoTest, ""), output), "ok\nplain\nerror\n");
        assert_eq!(plain_output(&project(TestRunner::Jest, ""), output), "error\n");
    }

    #[test]
    fn many_failures_are_named() {
        let case = |number| format!("<testcase name='t{number}'><failure message='m'/></testcase>");
        let report = format!("<testsuite>{}</testsuite>", (0..600).map(case).collect::<String>());
        let reports = stream(&[("a", &report)]);
        let report =
            read_report(&project(TestRunner::Ctest, ""), RunOutput { reports: &reports, truncated: false, text: "" });
        let text = report_text(&report.unwrap().unwrap(), Duration::from_millis(1));
        assert!(text.starts_with("600 failed in 0.00 s\n\nt0\nm\n\nt1\nm\n"), "{text}");
        assert!(
            text.contains("\n\nt19\nm\n\n580 more:\nt20\nt21\n") && text.ends_with("\nt119\n[480 without a name here]"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_report_is_read_or_refused(
            runner in proptest::sample::select(TestRunner::ALL.to_vec()),
            report in "(\\{|\\}|\\[|\\]|:|,|\"|Action|Output|Test|fail|pass|testResults|stats|failures|examples|thread 'a' panicked at |src/a.rs:1:1|---- a stdout ----|test result: |FAILED. 1 passed; 2 failed|error: |--> a.rs:9|failures:|E  |>|# a|panic: |\ngoroutine |\n|\u{1b}\\[|ü|[0-9. ]){0,60}",
        ) {
            let reports = stream(&[("a", &report)]);
            let output = RunOutput { reports: &reports, truncated: false, text: &report };
            let project = project(runner, "d");
            if let Some(Ok(report)) = read_report(&project, output) {
                report_text(&report, Duration::ZERO);
            }
            plain_output(&project, output);
        }
    }
}
