//! Audit log: every change is detected, and no acknowledged record is missing.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use ringfence_audit::{AuditLog, ExternalAuditHead, read_known_heads, read_records, to_current_vocabulary, verify};
use ringfence_kernel::{
    AuditEvent, AuditSink as _, CallRecord, Dialect, ErrorKind, PolicyAction, PolicyLayer, PolicyResource, Principal,
    ReplyValue, ResourceAccess, Session, ToolError,
};
use ringfence_testkit::host::session_without_tools;
use serde_json::{Value, json};

fn session() -> Session {
    Session { id: "s".to_owned(), ..session_without_tools(Dialect::Standard) }
}

/// Records one call: a begin and an end.
fn call(log: &AuditLog, id: &str) {
    let place = PolicyResource {
        mount: "w".into(),
        requested_path: "a".to_owned(),
        display_path: "a".to_owned(),
        ..PolicyResource::default()
    };
    let accesses = [ResourceAccess { action: PolicyAction::Create, resource: place }];
    let events = [
        AuditEvent::Begin { rule: "preset", layer: PolicyLayer::Preset, approved: None, change: "c-1" },
        AuditEvent::End { outcome: Ok(&ReplyValue::default()), reply: "CONTENTS", duration: Duration::from_millis(1) },
    ];
    for event in events {
        record(log, id, &accesses, event);
    }
}

fn refuse(log: &AuditLog, id: &str) {
    let error = ToolError::new(ErrorKind::NotFound, "no");
    record(log, id, &[], AuditEvent::Refused { error: &error, reply: "no", duration: Duration::ZERO });
}

fn record(log: &AuditLog, id: &str, accesses: &[ResourceAccess], event: AuditEvent<'_>) {
    let session = session();
    let record = CallRecord {
        time: SystemTime::now(),
        session: &session,
        call_id: id,
        tool: "write_file",
        arguments: "ARGUMENTS",
        subject: None,
        accesses,
        event,
    };
    log.record(&record).unwrap();
}

#[test]
fn a_last_head_that_cannot_be_signed_is_reported() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap().with_close_report(|_| REPORTED.store(true, Ordering::Relaxed));
    call(&log, "c1");
    std::fs::rename(state.path().join("audit"), state.path().join("moved")).unwrap();
    assert!(!REPORTED.load(Ordering::Relaxed));
    drop(log);
    assert!(REPORTED.load(Ordering::Relaxed));
}

/// A log of three calls, closed.
fn sample() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    for id in ["1", "2", "3"] {
        call(&log, id);
    }
    drop(log);
    let audit = state.path().join("audit");
    (state, audit.join("000001.jsonl"), audit.join("heads.jsonl"))
}

fn records(state: &Path) -> Vec<Value> {
    let mut records = Vec::new();
    read_records(state, |line| {
        records.push(serde_json::from_str(line).unwrap());
        Ok(())
    })
    .unwrap();
    records
}

fn events(state: &Path) -> Vec<String> {
    let event = |record| to_current_vocabulary(record)["event"].as_str().unwrap().to_owned();
    records(state).into_iter().map(event).collect()
}

#[test]
fn an_untouched_log_verifies() {
    let (state, log, _) = sample();
    let verified = verify(state.path(), &[]).unwrap();
    assert_eq!((verified.records, verified.last_signed), (7, 7));
    assert_eq!(events(state.path()), ["genesis", "begin", "end", "begin", "end", "begin", "end"]);
    let text = std::fs::read_to_string(log).unwrap();
    assert!(!text.contains("CONTENTS") && !text.contains("ARGUMENTS"), "{text}");
    verify(state.path(), &[known_head(7, &verified.hash)]).unwrap();
    verify(state.path(), &[known_head(6, &verified.hash)]).unwrap_err();
    verify(state.path(), &[known_head(8, &verified.hash)]).unwrap_err();
}

#[test]
fn any_byte_that_is_flipped_is_found() {
    let (state, log, heads) = sample();
    for file in [log, heads] {
        let good = std::fs::read(&file).unwrap();
        for at in 0..good.len() {
            for flip in [1, 0x20, 0x80] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                std::fs::write(&file, &bad).unwrap();
                assert!(verify(state.path(), &[]).is_err(), "byte {at} of {} by {flip}", file.display());
            }
        }
        std::fs::write(&file, &good).unwrap();
        verify(state.path(), &[]).unwrap();
    }
}

#[test]
fn any_line_that_is_dropped_doubled_or_swapped_and_any_end_that_is_cut_is_found() {
    let (state, log, _) = sample();
    let good = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = good.split_inclusive('\n').collect();
    let check = |what: String, bad: String| {
        std::fs::write(&log, bad).unwrap();
        assert!(verify(state.path(), &[]).is_err(), "{what}");
    };
    for at in 0..lines.len() {
        let mut dropped = lines.clone();
        dropped.remove(at);
        check(format!("line {at} dropped"), dropped.concat());
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        check(format!("line {at} doubled"), doubled.concat());
        for other in at + 1..lines.len() {
            let mut swapped = lines.clone();
            swapped.swap(at, other);
            check(format!("lines {at} and {other} swapped"), swapped.concat());
        }
    }
    for end in 0..good.len() {
        check(format!("cut at {end}"), good[..end].to_owned());
    }
}

#[test]
fn a_rewritten_log_is_detected_by_a_known_head() {
    let (state, _, _) = sample();
    let known = verify(state.path(), &[]).unwrap();
    std::fs::remove_dir_all(state.path().join("audit")).unwrap();
    std::fs::remove_file(state.path().join(ANCHOR)).unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    for id in ["1", "2", "3", "4"] {
        call(&log, id);
    }
    drop(log);
    verify(state.path(), &[]).unwrap();
    verify(state.path(), &[known_head(known.records, &known.hash)]).unwrap_err();
}

/// The file beside the log.
const ANCHOR: &str = "audit-heads.jsonl";

#[test]
fn a_log_that_was_removed_or_replaced_takes_no_record_and_is_missed() {
    type LogTampering = fn(&Path);
    let cases: [(&str, LogTampering); 6] = [
        ("the directory removed", |state| std::fs::remove_dir_all(state.join("audit")).unwrap()),
        ("the directory moved", |state| std::fs::rename(state.join("audit"), state.join("elsewhere")).unwrap()),
        ("the directory replaced", |state| {
            std::fs::rename(state.join("audit"), state.join("elsewhere")).unwrap();
            std::fs::create_dir(state.join("audit")).unwrap();
            for name in ["key", "key.pub", "lock"] {
                std::fs::copy(state.join("elsewhere").join(name), state.join("audit").join(name)).unwrap();
            }
        }),
        ("the segment removed", |state| std::fs::remove_file(state.join("audit/000001.jsonl")).unwrap()),
        ("the segment replaced", |state| {
            let segment = state.join("audit/000001.jsonl");
            let text = std::fs::read(&segment).unwrap();
            std::fs::remove_file(&segment).unwrap();
            std::fs::write(&segment, &text[..text.len() / 2]).unwrap();
        }),
        ("the lock removed", |state| std::fs::remove_file(state.join("audit/lock")).unwrap()),
    ];
    for (what, harm) in cases {
        let (state, _, _) = sample();
        let log = AuditLog::open(state.path()).unwrap();
        call(&log, "4");
        harm(state.path());
        let session = session();
        let record = CallRecord {
            time: SystemTime::now(),
            session: &session,
            call_id: "5",
            tool: "write_file",
            arguments: "",
            subject: None,
            accesses: &[],
            event: AuditEvent::Begin { rule: "preset", layer: PolicyLayer::Preset, approved: None, change: "" },
        };
        let lost = log.record(&record).unwrap_err();
        assert!(format!("{lost:?}").contains("removed or replaced"), "{what}: {lost:?}");
        drop(log);
        if what == "the lock removed" {
            continue;
        }
        verify(state.path(), &[]).expect_err(what);
        // A log without its records is not begun again, and one that is continued does not hide it.
        match AuditLog::open(state.path()) {
            Err(refused) => {
                assert_ne!(what, "the segment replaced");
                let cause = refused.source().unwrap().to_string();
                assert!(cause.contains("move `audit` and `audit-heads.jsonl` elsewhere together"), "{what}: {cause}");
            }
            Ok(log) => {
                assert_eq!(what, "the segment replaced");
                (0..9).for_each(|id| call(&log, &id.to_string()));
            }
        }
        verify(state.path(), &[]).expect_err(what);
        // Moved away together, there is a new log.
        let _ = std::fs::rename(state.path().join("audit"), state.path().join("old"));
        std::fs::rename(state.path().join(ANCHOR), state.path().join("old-heads")).unwrap();
        call(&AuditLog::open(state.path()).unwrap(), "1");
        verify(state.path(), &[]).unwrap();
    }
}

#[test]
fn a_log_that_was_just_begun_is_missed_too() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    call(&log, "1");
    // As a process that was killed: no head was signed in the log itself.
    std::mem::forget(log);
    verify(state.path(), &[]).unwrap();
    std::fs::remove_dir_all(state.path().join("audit")).unwrap();
    verify(state.path(), &[]).unwrap_err();
}

#[test]
fn a_log_of_an_earlier_version_has_no_heads_beside_it() {
    let (state, _, _) = sample();
    std::fs::remove_file(state.path().join(ANCHOR)).unwrap();
    verify(state.path(), &[]).unwrap();
    call(&AuditLog::open(state.path()).unwrap(), "4");
    verify(state.path(), &[]).unwrap();
    std::fs::remove_dir_all(state.path().join("audit")).unwrap();
    verify(state.path(), &[]).unwrap_err();
}

#[test]
fn nothing_hides_in_a_line() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    record(
        &log,
        "a\u{9b}2J\u{202e}b\u{7f}",
        &[],
        AuditEvent::End { outcome: Ok(&ReplyValue::default()), reply: "", duration: Duration::ZERO },
    );
    drop(log);
    let text = std::fs::read_to_string(state.path().join("audit/000001.jsonl")).unwrap();
    assert!(text.is_ascii() && text.contains(r"a\u009b2J\u202eb\u007f"), "{text}");
    assert_eq!(records(state.path())[1]["call"], "a\u{9b}2J\u{202e}b\u{7f}");
    verify(state.path(), &[]).unwrap();
}

fn known_head(number: u64, hash: &str) -> ExternalAuditHead {
    ExternalAuditHead { number, hash: hash.to_owned() }
}

#[test]
fn copied_heads_detect_a_truncated_or_rewritten_log() {
    let state = tempfile::tempdir().unwrap();
    let second = state.path().join("second");
    let open = || {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&second).unwrap();
        AuditLog::open(state.path()).unwrap().with_head_copy(file)
    };
    for id in ["1", "2", "3"] {
        call(&open(), id);
    }
    let read = || read_known_heads(std::fs::read(&second).unwrap().as_slice());
    let heads = read().unwrap();
    assert_eq!(heads.iter().map(|head| head.number).collect::<Vec<_>>(), [3, 5, 7]);
    verify(state.path(), &heads).unwrap();
    // A party with the key and all the files writes a log of its own, signed and complete.
    std::fs::remove_dir_all(state.path().join("audit")).unwrap();
    std::fs::remove_file(state.path().join(ANCHOR)).unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    for id in ["1", "2", "3", "4"] {
        call(&log, id);
    }
    drop(log);
    verify(state.path(), &[]).unwrap();
    verify(state.path(), &heads).unwrap_err();
    std::fs::write(&second, "no head\n").unwrap();
    read().unwrap_err();
}

#[test]
fn a_line_that_a_dying_process_left_incomplete_is_dropped_and_reported() {
    let (state, log, heads) = sample();
    let mut text = std::fs::read_to_string(&log).unwrap();
    text.push_str("{\"v\":1,\"seq\":8,\"ts\":");
    std::fs::write(&log, &text).unwrap();
    let mut torn = std::fs::read_to_string(&heads).unwrap();
    torn.push_str("{\"seq\"");
    std::fs::write(&heads, torn).unwrap();
    verify(state.path(), &[]).unwrap_err();
    let log = AuditLog::open(state.path()).unwrap();
    call(&log, "4");
    drop(log);
    assert_eq!(verify(state.path(), &[]).unwrap().records, 10);
    let after = records(state.path());
    assert_eq!((&after[7]["event"], &after[7]["bytes"]), (&"repaired".into(), &20.into()));
}

#[test]
fn several_logs_append_to_one_chain_and_segments_follow_each_other() {
    let state = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = state.path();
            scope.spawn(move || {
                let log = AuditLog::open(path).unwrap().with_segment_bytes(8 << 10);
                for round in 0..50 {
                    call(&log, &format!("{thread}-{round}"));
                }
            });
        }
    });
    let verified = verify(state.path(), &[]).unwrap();
    let records = records(state.path());
    let ends = records.iter().filter(|record| record["event"] == "end").count();
    let segments = records.iter().filter(|record| record["event"] == "genesis").count();
    assert_eq!((ends, verified.records as usize), (200, records.len()));
    assert!(segments > 5, "only {segments} segments");
    // A segment that is gone is a gap.
    std::fs::remove_file(state.path().join("audit/000002.jsonl")).unwrap();
    verify(state.path(), &[]).unwrap_err();
}

#[test]
fn a_next_segment_that_cannot_be_opened_is_tried_again() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap().with_segment_bytes(1);
    let next = state.path().join("audit/000002.jsonl");
    std::fs::create_dir(&next).unwrap();
    let fails = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(&log, "1"))).is_err();
    assert!(fails() && fails());
    std::fs::remove_dir(&next).unwrap();
    call(&log, "2");
    drop(log);
    let verified = verify(state.path(), &[]).unwrap();
    assert_eq!(verified.records as usize, records(state.path()).len());
    assert!(next.exists());
}

#[test]
fn caller_supplied_text_is_truncated_in_a_record() {
    let state = tempfile::tempdir().unwrap();
    let long = "\u{1}".repeat(3 << 20);
    let place = PolicyResource {
        mount: "w".into(),
        requested_path: long.clone(),
        display_path: long.clone(),
        ..PolicyResource::default()
    };
    let accesses: Vec<ResourceAccess> =
        (0..30).map(|_| ResourceAccess { action: PolicyAction::Read, resource: place.clone() }).collect();
    let error = ToolError::new(ErrorKind::NotFound, "no");
    let session = session();
    for accesses in [&accesses[..], &[]] {
        // One process after another: each has to find the end of what the last one wrote.
        let log = AuditLog::open(state.path()).unwrap();
        let made_up = CallRecord {
            time: SystemTime::now(),
            session: &session,
            call_id: &long,
            tool: &long,
            arguments: &long,
            subject: Some(&long),
            accesses,
            event: AuditEvent::Refused { error: &error, reply: "no", duration: Duration::ZERO },
        };
        log.record(&made_up).unwrap();
    }
    call(&AuditLog::open(state.path()).unwrap(), "1");
    verify(state.path(), &[]).unwrap();
    assert_eq!(events(state.path()), ["genesis", "refused", "refused", "begin", "end"]);
    let longest = std::fs::read(state.path().join("audit/000001.jsonl")).unwrap();
    let longest = longest.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap();
    assert!(longest < 1 << 20, "{longest}");
}

#[test]
fn a_log_whose_last_line_is_long_is_gone_on_with() {
    let state = tempfile::tempdir().unwrap();
    drop(AuditLog::open(state.path()).unwrap());
    let file = state.path().join("audit/000001.jsonl");
    let first = format!(
        r#"{{"v":1,"seq":1,"ts":"2026-01-01T00:00:00Z","moment":"genesis","tool":"{}","prev":"{}"}}"#,
        "x".repeat(3 << 20),
        "0".repeat(64)
    );
    for torn in ["", "half a li"] {
        std::fs::write(&file, format!("{first}\n{torn}")).unwrap();
        for heads in ["audit/heads.jsonl", ANCHOR] {
            let _ = std::fs::remove_file(state.path().join(heads));
        }
        call(&AuditLog::open(state.path()).unwrap(), "1");
        verify(state.path(), &[]).unwrap();
        let expected =
            if torn.is_empty() { &["genesis", "begin", "end"][..] } else { &["genesis", "repaired", "begin", "end"] };
        assert_eq!(events(state.path()), expected);
    }
}

#[test]
fn refused_calls_past_a_number_are_counted_and_not_listed() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    for number in 0..1000 {
        refuse(&log, &number.to_string());
    }
    call(&log, "1");
    drop(log);
    verify(state.path(), &[]).unwrap();
    let records = records(state.path());
    let refused = records.iter().filter(|record| record["event"] == "refused").count();
    let unlisted = records.iter().find(|record| record["event"] == "refused-unlisted").unwrap();
    assert_eq!((refused, &unlisted["count"]), (100, &900.into()));
}

#[test]
fn a_record_has_the_real_place_where_the_caller_called_it_otherwise() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    let place = |resolved: Option<&str>| PolicyResource {
        mount: "w".into(),
        requested_path: "way/f".to_owned(),
        resolved_path: resolved.map(str::to_owned),
        display_path: "@w/way/f".to_owned(),
        ..PolicyResource::default()
    };
    let accesses = [None, Some("real/f")]
        .map(|resolved| ResourceAccess { action: PolicyAction::Create, resource: place(resolved) });
    record(
        &log,
        "1",
        &accesses,
        AuditEvent::Begin { rule: "r", layer: PolicyLayer::Preset, approved: None, change: "c-1" },
    );
    drop(log);
    let begin = records(state.path()).into_iter().find(|record| record["event"] == "begin").unwrap();
    let wanted = json!([
        {"action": "create", "path": "@w/way/f"},
        {"action": "create", "path": "@w/way/f", "real": "@w/real/f"},
    ]);
    assert_eq!(begin["accesses"], wanted);
}

#[test]
fn new_records_have_the_current_vocabulary() {
    let state = tempfile::tempdir().unwrap();
    let log = AuditLog::open(state.path()).unwrap();
    call(&log, "1");
    let error = ToolError::new(ErrorKind::NotFound, "no");
    for event in [
        AuditEvent::Connection { refused: None, approved: None },
        AuditEvent::ChangesDiscarded { error: &error },
        AuditEvent::LayerConflict { error: &error },
        AuditEvent::TerminalWriter { by: &Principal::person("ana at the terminal") },
        AuditEvent::UnlistedConnections { made: 2, refused: 1 },
    ] {
        record(&log, "1", &[], event);
    }
    drop(log);
    let records = records(state.path());
    let events: Vec<&Value> = records.iter().map(|record| &record["event"]).collect();
    let expected =
        ["genesis", "begin", "end", "access", "discarded", "layer-conflict", "terminal-writer", "access-unlisted"];
    assert_eq!(events, expected);
    assert_eq!(records[6]["writer"], "ana at the terminal");
    assert_eq!(records[1]["accesses"], json!([{"action": "create", "path": "a"}]));
    for record in records {
        assert_eq!(record["v"], 2);
        assert_eq!(to_current_vocabulary(record.clone()), record);
    }
}

/// Appends a record of a version with a vocabulary of its own.
fn append_record_of_version(version: u64, state: &Path, file: &Path) -> String {
    let end = verify(state, &[]).unwrap();
    let foreign = json!({"v": version, "seq": end.records + 1, "what": "another vocabulary", "prev": end.hash});
    let text = format!("{}{foreign}\n", std::fs::read_to_string(file).unwrap());
    std::fs::write(file, &text).unwrap();
    text
}

#[test]
fn a_log_of_an_earlier_version_verifies_and_is_appended_to() {
    for version in [1, 2] {
        let (state, file, _) = sample();
        let former = append_record_of_version(version, state.path(), &file);
        assert_eq!(verify(state.path(), &[]).unwrap().records, 8);
        call(&AuditLog::open(state.path()).unwrap(), "4");
        assert_eq!(verify(state.path(), &[]).unwrap().records, 10);
        assert!(std::fs::read_to_string(&file).unwrap().starts_with(&former), "version {version}");
    }
}

/// Every file below a directory, with its contents.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

const NEWER: &str = "it has records of version 3, and this ringfence supports up to 2; install the newer version, or use \
                     another state directory";

#[test]
fn a_log_of_a_newer_version_is_not_opened_and_not_called_damaged() {
    for torn in ["", "{\"v\":3,\"se"] {
        let (state, file, _) = sample();
        append_record_of_version(3, state.path(), &file);
        let text = std::fs::read_to_string(&file).unwrap() + torn;
        std::fs::write(&file, text).unwrap();
        // A newer version may do without this file.
        std::fs::remove_file(state.path().join(ANCHOR)).unwrap();
        let before = contents(state.path());
        let refused = AuditLog::open(state.path()).unwrap_err();
        assert_eq!(refused.source().unwrap().to_string(), NEWER);
        let unread = verify(state.path(), &[]).unwrap_err();
        assert_eq!(unread.to_string(), format!("the audit log cannot be read: {NEWER}"));
        assert_eq!(contents(state.path()), before);
    }
}

#[test]
fn an_open_log_that_a_newer_version_continued_takes_no_record() {
    let (state, file, _) = sample();
    let log = AuditLog::open(state.path()).unwrap();
    call(&log, "4");
    append_record_of_version(3, state.path(), &file);
    let before = contents(state.path());
    let session = session();
    let record = CallRecord {
        time: SystemTime::now(),
        session: &session,
        call_id: "5",
        tool: "write_file",
        arguments: "",
        subject: None,
        accesses: &[],
        event: AuditEvent::Begin { rule: "preset", layer: PolicyLayer::Preset, approved: None, change: "" },
    };
    let lost = log.record(&record).unwrap_err();
    assert!(format!("{lost:?}").contains(NEWER), "{lost:?}");
    drop(log);
    assert_eq!(contents(state.path()), before);
}

#[test]
fn a_segment_that_a_dying_process_left_empty_continues_the_chain() {
    for torn in ["", "{\"v\":2,\"se"] {
        let (state, _, _) = sample();
        std::fs::write(state.path().join("audit/000002.jsonl"), torn).unwrap();
        call(&AuditLog::open(state.path()).unwrap(), "4");
        verify(state.path(), &[]).unwrap();
        assert_eq!(records(state.path())[7]["event"], "genesis");
    }
}
