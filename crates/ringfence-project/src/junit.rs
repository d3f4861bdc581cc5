//! JUnit XML: test cases as pytest, nextest, node, surefire, ctest, PHPUnit and others write them.
//!
//! The reader is a pull parser: no document type, no entities but the five of XML, a bounded depth, and bounded texts.
//!
//! Not here: what a runner means by its attributes (`junit_runners.rs`).

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::test_report::{MAX_FAILURES, MAX_TESTS, ReportError};

const MAX_DEPTH: usize = 64;

/// Bytes of the text of one element, and of one attribute.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Bytes of the name of a suite, which every case in it has.
const MAX_SUITE_BYTES: usize = 300;

/// A test case.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JunitCase {
    /// Names of the suites around it, the outermost first.
    pub(crate) suites: Vec<String>,
    pub(crate) class: String,
    pub(crate) name: String,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) outcome: JunitOutcome,
    /// The attribute of the failure.
    pub(crate) message: String,
    pub(crate) kind: String,
    /// The text in the failure.
    pub(crate) text: String,
    /// What the test printed.
    pub(crate) output: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum JunitOutcome {
    #[default]
    Passed,
    Failed,
    Error,
    Skipped,
}

/// The cases of a report, and its time in seconds.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct JunitReport {
    /// Those that failed; at most 500.
    pub(crate) cases: Vec<JunitCase>,
    pub(crate) further_failures: u64,
    pub(crate) passed: u64,
    pub(crate) skipped: u64,
    pub(crate) seconds: Option<f64>,
}

impl JunitReport {
    fn tests(&self) -> u64 {
        self.passed + self.skipped + self.further_failures + self.cases.len() as u64
    }
}

/// An element that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenElement {
    Suites,
    Suite,
    Case,
    Failure,
    Output,
    Other,
}

struct DocumentReader<'a> {
    report: &'a mut JunitReport,
    open: Vec<OpenElement>,
    suites: Vec<String>,
    case: Option<JunitCase>,
    has_total_time: bool,
}

/// Parses a document. Cases that passed or were skipped are counted, not kept.
pub(crate) fn parse(text: &str) -> Result<JunitReport, ReportError> {
    let mut xml = Reader::from_str(text);
    let mut report = JunitReport::default();
    let mut document =
        DocumentReader { report: &mut report, open: Vec::new(), suites: Vec::new(), case: None, has_total_time: false };
    let mut has_root = false;
    loop {
        match xml.read_event().map_err(|_| ReportError::Xml)? {
            Event::Start(start) => {
                has_root = true;
                document.enter(&start)?;
            }
            Event::Empty(start) => {
                has_root = true;
                document.enter(&start)?;
                document.leave()?;
            }
            Event::End(_) => document.leave()?,
            Event::Text(text) => document.push(&text.xml10_content()),
            Event::CData(text) => document.push(&text.xml10_content()),
            Event::GeneralRef(reference) => match reference.resolve_char_ref() {
                Ok(Some(c)) => document.push(c.encode_utf8(&mut [0; 4])),
                _ => document.push(predefined_entity(&reference.xml10_content()).ok_or(ReportError::Xml)?),
            },
            // Nothing that writes reports needs one, and entities are declared in it.
            Event::DocType(_) => return Err(ReportError::Xml),
            Event::Comment(_) | Event::PI(_) | Event::Decl(_) => {}
            Event::Eof => break,
        }
    }
    if has_root && document.open.is_empty() { Ok(report) } else { Err(ReportError::Xml) }
}

fn predefined_entity(name: &str) -> Option<&'static str> {
    Some(match name {
        "lt" => "<",
        "gt" => ">",
        "amp" => "&",
        "quot" => "\"",
        "apos" => "'",
        _ => return None,
    })
}

impl DocumentReader<'_> {
    fn enter(&mut self, start: &BytesStart<'_>) -> Result<(), ReportError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(ReportError::TooDeep);
        }
        let in_case = self.case.is_some();
        let element = match start.local_name().as_ref() {
            "testsuites" if !in_case => OpenElement::Suites,
            "testsuite" if !in_case => OpenElement::Suite,
            "testcase" if !in_case => OpenElement::Case,
            "failure" | "error" | "skipped" => self.enter_outcome(start),
            "system-out" | "system-err" if in_case => OpenElement::Output,
            _ => OpenElement::Other,
        };
        match element {
            OpenElement::Suites => self.add_time(start, true),
            OpenElement::Suite => {
                // The time of an outer one has that of those in it.
                if self.suites.is_empty() && !self.has_total_time {
                    self.add_time(start, false);
                }
                let mut name = attribute(start, "name").unwrap_or_default();
                name.truncate(name.floor_char_boundary(MAX_SUITE_BYTES));
                self.suites.push(name);
            }
            OpenElement::Case => {
                if self.report.tests() >= MAX_TESTS {
                    return Err(ReportError::TooLong);
                }
                self.case = Some(JunitCase {
                    class: attribute(start, "classname").or_else(|| attribute(start, "class")).unwrap_or_default(),
                    name: attribute(start, "name").unwrap_or_default(),
                    file: attribute(start, "file"),
                    line: attribute(start, "line").and_then(|line| line.parse().ok()),
                    ..JunitCase::default()
                });
            }
            OpenElement::Failure | OpenElement::Output | OpenElement::Other => {}
        }
        self.open.push(element);
        Ok(())
    }

    /// An outcome inside a case, or inside a suite that has no case for it.
    fn enter_outcome(&mut self, start: &BytesStart<'_>) -> OpenElement {
        let outcome = match start.local_name().as_ref() {
            "failure" => JunitOutcome::Failed,
            "error" => JunitOutcome::Error,
            _ => JunitOutcome::Skipped,
        };
        match &mut self.case {
            // A failure is not made good by what follows it.
            Some(case) if case.outcome == JunitOutcome::Passed || case.outcome == JunitOutcome::Skipped => {
                case.outcome = outcome;
                case.message = attribute(start, "message").unwrap_or_default();
                case.kind = attribute(start, "type").unwrap_or_default();
                OpenElement::Failure
            }
            Some(_) => OpenElement::Other,
            None if outcome == JunitOutcome::Skipped || self.suites.is_empty() => OpenElement::Other,
            None => {
                let message = attribute(start, "message").unwrap_or_default();
                let name = self.suites.last().cloned().unwrap_or_default();
                self.keep(JunitCase { name, outcome: JunitOutcome::Error, message, ..JunitCase::default() });
                OpenElement::Other
            }
        }
    }

    fn leave(&mut self) -> Result<(), ReportError> {
        match self.open.pop().ok_or(ReportError::Xml)? {
            OpenElement::Suite => {
                self.suites.pop();
            }
            OpenElement::Case => {
                if let Some(case) = self.case.take() {
                    match case.outcome {
                        JunitOutcome::Passed => self.report.passed += 1,
                        JunitOutcome::Skipped => self.report.skipped += 1,
                        JunitOutcome::Failed | JunitOutcome::Error => self.keep(case),
                    }
                }
            }
            OpenElement::Suites | OpenElement::Failure | OpenElement::Output | OpenElement::Other => {}
        }
        Ok(())
    }

    /// Suites are copied here alone: a report can have many cases, and long names around them.
    fn keep(&mut self, case: JunitCase) {
        match self.report.cases.len() < MAX_FAILURES {
            true => self.report.cases.push(JunitCase { suites: self.suites.clone(), ..case }),
            false => self.report.further_failures += 1,
        }
    }

    fn push(&mut self, text: &str) {
        let Some(case) = &mut self.case else { return };
        let target = match self.open.last() {
            Some(OpenElement::Failure) => &mut case.text,
            Some(OpenElement::Output) => &mut case.output,
            _ => return,
        };
        let room = MAX_TEXT_BYTES.saturating_sub(target.len());
        target.push_str(&text[..text.floor_char_boundary(room)]);
    }

    fn add_time(&mut self, start: &BytesStart<'_>, is_total: bool) {
        let seconds = attribute(start, "time").and_then(|time| time.replace(',', "").parse::<f64>().ok());
        if let Some(seconds) = seconds.filter(|seconds| seconds.is_finite()) {
            *self.report.seconds.get_or_insert(0.0) += seconds;
            self.has_total_time |= is_total;
        }
    }
}

fn attribute(start: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = start.try_get_attribute(name).ok().flatten()?;
    let value = attribute.normalized_value(XmlVersion::Implicit1_0).ok()?;
    Some(value[..value.floor_char_boundary(MAX_TEXT_BYTES)].to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{JunitOutcome, JunitReport, parse};
    use crate::test_report::ReportError;

    fn summary(report: &JunitReport) -> String {
        let cases: Vec<String> = report
            .cases
            .iter()
            .map(|case| {
                let outcome = if case.outcome == JunitOutcome::Failed { "F" } else { "E" };
                format!(" {outcome} {}/{} [{}] [{}]", case.suites.join("/"), case.name, case.message, case.text)
            })
            .collect();
        format!("{} passed {} skipped{}", report.passed, report.skipped, cases.concat())
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(parse(text).as_ref().map(summary).unwrap_or_else(ToString::to_string), expected, "{text}");
    }

    #[test]
    fn cases_are_counted_and_failures_kept() {
        check(
            "<?xml version='1.0'?><testsuites><testsuite name='s'><testcase name='a'/><testcase name='b'><skipped/></testcase>\
             <testcase name='c'><failure message='x&#10;&lt;y'>1 &lt; 2 &#x41; <![CDATA[<&>]]></failure></testcase>\
             <testsuite name='t'><testcase name='d'><error>late</error></testcase></testsuite></testsuite></testsuites>",
            "1 passed 1 skipped F s/c [x\n<y] [1 < 2 A <&>] E s/t/d [] [late]",
        );
        check("<testsuites/>", "0 passed 0 skipped");
    }

    #[test]
    fn a_failure_stays_a_failure() {
        let case = |children: &str| format!("<testsuite name='s'><testcase name='a'>{children}</testcase></testsuite>");
        check(&case("<failure/><skipped/>"), "0 passed 0 skipped F s/a [] []");
        check(&case("<skipped/><failure message='m'/>"), "0 passed 0 skipped F s/a [m] []");
        check(&case("<failure message='1'/><failure message='2'/>"), "0 passed 0 skipped F s/a [1] []");
        check(&case("<testcase name='b'/>"), "1 passed 0 skipped");
        // nextest and surefire: a test that passed when it was run again.
        check(&case("<flakyFailure message='m'/>"), "1 passed 0 skipped");
        check(
            "<testsuite name='s'><error message='no tests in file'/></testsuite>",
            "0 passed 0 skipped E s/s [no tests in file] []",
        );
    }

    #[test]
    fn what_is_not_a_report_is_refused() {
        for (text, error) in [
            ("", ReportError::Xml),
            ("no XML", ReportError::Xml),
            ("<testsuite>", ReportError::Xml),
            ("<testsuite></testsuites>", ReportError::Xml),
            ("<testsuite/></testsuite>", ReportError::Xml),
            ("<!DOCTYPE a [<!ENTITY b 'c'>]><testsuite/>", ReportError::Xml),
            ("<testsuite><testcase><failure>&b;</failure></testcase></testsuite>", ReportError::Xml),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        assert_eq!(parse(&"<testsuite>".repeat(10_000)), Err(ReportError::TooDeep));
    }

    #[test]
    fn texts_are_bounded() {
        let long = "ü".repeat(1 << 20);
        let text = format!(
            "<testsuite><testcase name='{long}'><failure message='{long}'>{long}</failure><system-out>{long}</system-out></testcase></testsuite>"
        );
        let case = parse(&text).unwrap().cases.remove(0);
        let lengths = [case.name.len(), case.message.len(), case.text.len(), case.output.len()];
        assert!(lengths.iter().all(|length| *length <= 64 << 10), "{lengths:?}");
    }

    /// Names of suites are in every case below them, and a report can have many of both.
    #[test]
    fn a_report_is_not_larger_in_memory_than_it_was() {
        let open = format!("<testsuite name='{}'>", "n".repeat(60 << 10)).repeat(60);
        let cases = "<testcase><failure/></testcase>".repeat(100);
        let text = format!("{open}{cases}{}", "</testsuite>".repeat(60));
        let report = parse(&text).unwrap();
        let names: usize = report.cases.iter().flat_map(|case| &case.suites).map(String::len).sum();
        assert!(names <= text.len(), "{names} bytes of names from {} of text", text.len());
    }

    #[test]
    fn failures_are_counted_beyond_those_that_are_kept() {
        let report =
            parse(&format!("<testsuite>{}</testsuite>", "<testcase><failure/></testcase>".repeat(600))).unwrap();
        assert_eq!((report.cases.len(), report.further_failures), (500, 100));
    }

    #[test]
    fn time_is_counted_once() {
        let seconds = |text: &str| parse(text).unwrap().seconds;
        assert_eq!(seconds("<testsuites time='1.5'><testsuite time='9'/></testsuites>"), Some(1.5));
        assert_eq!(
            seconds(
                "<testsuites><testsuite time='1'><testsuite time='1'/></testsuite><testsuite time='2'/></testsuites>"
            ),
            Some(3.0)
        );
        assert_eq!(seconds("<testsuite time='1,234.5'/>"), Some(1234.5));
        assert_eq!(seconds("<testsuite time='inf'/>"), None);
        assert_eq!(seconds("<testsuite/>"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(<testsuite>|</testsuite>|<testcase name='a'>|</testcase>|<failure>|</failure>|&lt;|&#0;|&x;|<!\\[CDATA\\[|\\]\\]>|<!--|'|\"|<|>|/|[a-z\0 ])*") {
            let _ = parse(&text);
        }
    }
}
