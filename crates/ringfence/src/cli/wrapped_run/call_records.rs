//! Calls of a run that are recorded besides the audit log: paths that it looked for in vain, and programs that it started.
//!
//! Starts are written to a file of the person's as they happen, a line of JSON each. An argument that looks like a key is left out.
//! It is a log to look at, and no evidence: a program can change what it starts while the call is recorded.
//!
//! Not here: how calls are recorded (`ringfence-sandbox`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::UNIX_EPOCH;

use ringfence_fs::has_credential;
use ringfence_kernel::sync::Mutex;
use ringfence_sandbox::{CallSink, ObservedCall, PathLookup, ProgramStart, RecordedCalls};
use serde_json::json;

/// Most starts of a run that are written, and most programs that are counted.
const MAX_STARTS: u64 = 1_000_000;
const MAX_PROGRAMS: usize = 1_000;

/// What is recorded of a run.
#[derive(Debug)]
pub(crate) struct CallRecords {
    lookups: Option<Mutex<Vec<PathLookup>>>,
    starts: Option<Mutex<StartLog>>,
}

/// The programs that a run started.
#[derive(Debug)]
struct StartLog {
    file: File,
    counts: StartCounts,
}

/// How often programs were started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StartCounts {
    pub(crate) programs: BTreeMap<String, u64>,
    /// All starts, also those that were not written.
    pub(crate) total: u64,
    /// Starts that are not in the file: there were too many, too fast, or the file could not be written.
    pub(crate) missing: u64,
    /// A container answers calls of its programs itself, so that none are recorded.
    pub(crate) is_unavailable: bool,
}

impl CallRecords {
    /// Nothing, if no calls are recorded.
    pub(crate) fn new(learns: bool, log: Option<File>) -> Option<Self> {
        let lookups = learns.then(Mutex::default);
        let starts = log.map(|file| Mutex::new(StartLog { file, counts: StartCounts::default() }));
        (lookups.is_some() || starts.is_some()).then_some(Self { lookups, starts })
    }

    pub(crate) fn lookups(&self) -> Vec<PathLookup> {
        self.lookups.as_ref().map(|lookups| lookups.lock().clone()).unwrap_or_default()
    }

    /// Nothing, if starts are not recorded.
    pub(crate) fn start_counts(&self) -> Option<StartCounts> {
        self.starts.as_ref().map(|starts| starts.lock().counts.clone())
    }
}

impl CallSink for CallRecords {
    fn recorded(&self) -> RecordedCalls {
        RecordedCalls { lookups: self.lookups.is_some(), starts: self.starts.is_some() }
    }

    fn record(&self, record: ObservedCall) {
        match (record, &self.lookups, &self.starts) {
            (ObservedCall::Lookup(lookup), Some(lookups), _) => lookups.lock().push(lookup),
            (ObservedCall::Start(start), _, Some(starts)) => starts.lock().add(&start),
            // Lookups are few, so that these are starts.
            (ObservedCall::Lost(count), _, Some(starts)) => starts.lock().counts.lose(count),
            (ObservedCall::Unavailable, _, Some(starts)) => starts.lock().counts.is_unavailable = true,
            _ => {}
        }
    }
}

impl StartLog {
    fn add(&mut self, start: &ProgramStart) {
        let is_written = self.counts.total < MAX_STARTS && self.file.write_all(&line(start)).is_ok();
        self.counts.total += 1;
        self.counts.missing += u64::from(!is_written);
        let program = start.program.to_string_lossy().into_owned();
        if self.counts.programs.len() < MAX_PROGRAMS || self.counts.programs.contains_key(&program) {
            *self.counts.programs.entry(program).or_default() += 1;
        }
    }
}

impl StartCounts {
    fn lose(&mut self, count: u64) {
        self.total += count;
        self.missing += count;
    }
}

fn line(start: &ProgramStart) -> Vec<u8> {
    let arguments: Vec<&str> = start
        .arguments
        .iter()
        .map(|argument| if has_credential(argument) { "[left out: may be a key]" } else { argument.as_str() })
        .collect();
    let mut line = json!({
        "time": humantime::format_rfc3339_millis(UNIX_EPOCH + start.time).to_string(), "pid": start.pid,
        "program": start.program.to_string_lossy(), "arguments": arguments,
    });
    if start.is_truncated {
        line["truncated"] = true.into();
    }
    (line.to_string() + "\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    fn start(program: &str, arguments: &[&str]) -> ProgramStart {
        ProgramStart {
            time: Duration::from_millis(1_700_000_000_123),
            pid: 7,
            program: program.into(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            is_truncated: false,
        }
    }

    #[test]
    fn starts_are_lines_without_keys() {
        let mut file = tempfile::tempfile().unwrap();
        let records = CallRecords::new(false, Some(file.try_clone().unwrap())).unwrap();
        records.record(ObservedCall::Start(start("/usr/bin/git", &["git", "log\n\u{1b}[2J"])));
        records.record(ObservedCall::Start(start("/usr/bin/git", &["git", "https://ada:geheim12345@example.org/r"])));
        records.record(ObservedCall::Lost(3));
        records.record(ObservedCall::Start(ProgramStart { is_truncated: true, ..start("./x", &[]) }));
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let time = "2023-11-14T22:13:20.123Z";
        let git = |argument| json!({"time": time, "pid": 7, "program": "/usr/bin/git", "arguments": ["git", argument]});
        let cut = json!({"time": time, "pid": 7, "program": "./x", "arguments": [], "truncated": true});
        assert_eq!(lines, [git("log\n\u{1b}[2J"), git("[left out: may be a key]"), cut]);
        let programs = [("./x".to_owned(), 1), ("/usr/bin/git".to_owned(), 2)].into();
        assert_eq!(records.start_counts(), Some(StartCounts { programs, total: 6, missing: 3, is_unavailable: false }));
    }

    #[test]
    fn only_what_is_asked_for_is_recorded() {
        assert!(CallRecords::new(false, None).is_none());
        let records = CallRecords::new(true, None).unwrap();
        assert_eq!(records.recorded(), RecordedCalls { lookups: true, starts: false });
        assert_eq!(records.start_counts(), None);
        let lookup = PathLookup { path: "/a".into(), program: "sh".to_owned() };
        records.record(ObservedCall::Lookup(lookup.clone()));
        assert_eq!(records.lookups(), [lookup]);
    }
}
