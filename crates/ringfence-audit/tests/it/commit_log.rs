//! Audit log on a redo log: which records survive a power cut that takes everything the segment was not flushed for.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_audit::{AuditLog, BeginDurability, verify};
use ringfence_kernel::{
    AuditEvent, AuditSink as _, CallRecord, Dialect, PolicyAction, PolicyLayer, PolicyResource, ReplyValue,
    ResourceAccess, Session,
};
use ringfence_sys::commit_log::CommitLog;
use ringfence_testkit::host::session_without_tools;

const SEGMENT: &str = "audit/000001.jsonl";

fn open(state: &Path, durability: BeginDurability) -> (Arc<CommitLog>, AuditLog) {
    let commit_log = CommitLog::open(state).unwrap();
    let log = AuditLog::open(state).unwrap().with_commit_log(Arc::clone(&commit_log), durability);
    (commit_log, log)
}

fn begin(log: &AuditLog, actions: &[PolicyAction]) {
    let access = |action: &PolicyAction| ResourceAccess { action: *action, resource: PolicyResource::default() };
    let event = AuditEvent::Begin { rule: "preset", layer: PolicyLayer::Preset, approved: None, change: "c-1" };
    record(log, &actions.iter().map(access).collect::<Vec<_>>(), event);
}

fn record(log: &AuditLog, accesses: &[ResourceAccess], event: AuditEvent<'_>) {
    let session = Session { id: "s".to_owned(), ..session_without_tools(Dialect::Standard) };
    let record = CallRecord {
        time: SystemTime::now(),
        session: &session,
        call_id: "1",
        tool: "write_file",
        arguments: "{}",
        subject: None,
        accesses,
        event,
    };
    log.record(&record).unwrap();
}

fn length(state: &Path) -> u64 {
    fs::metadata(state.join(SEGMENT)).unwrap().len()
}

/// Cuts the segment, and opens the redo log as the next process does. Returns the length afterwards.
fn lose_and_replay(state: &Path, length_left: u64) -> u64 {
    OpenOptions::new().write(true).open(state.join(SEGMENT)).unwrap().set_len(length_left).unwrap();
    drop(CommitLog::open(state).unwrap());
    length(state)
}

#[test]
fn a_begin_is_flushed_at_once_unless_the_file_engine_flushes_it() {
    for action in PolicyAction::ALL {
        for durability in [BeginDurability::Immediate, BeginDurability::Deferred] {
            let state = tempfile::tempdir().unwrap();
            let (commit_log, log) = open(state.path(), durability);
            begin(&log, &[PolicyAction::Create]);
            commit_log.begin_flush().wait().unwrap();
            let flushed = length(state.path());
            begin(&log, &[PolicyAction::Create, action]);
            let written = length(state.path());
            drop((log, commit_log));
            let is_deferred = durability == BeginDurability::Deferred && action.is_file_action();
            let left = if is_deferred { flushed } else { written };
            assert_eq!(lose_and_replay(state.path(), flushed), left, "{action:?} {durability:?}");
        }
    }
}

#[test]
fn a_deferred_begin_is_durable_with_the_next_flush() {
    let state = tempfile::tempdir().unwrap();
    let (commit_log, log) = open(state.path(), BeginDurability::Deferred);
    begin(&log, &[PolicyAction::Create]);
    commit_log.begin_flush().wait().unwrap();
    let flushed = length(state.path());
    begin(&log, &[PolicyAction::Overwrite]);
    commit_log.begin_flush().wait().unwrap();
    let written = length(state.path());
    drop((log, commit_log));
    assert_eq!(lose_and_replay(state.path(), flushed), written);
    assert_eq!(verify(state.path(), &[]).unwrap().records, 3);
}

#[test]
fn a_log_that_lost_records_is_restored_and_continued() {
    let state = tempfile::tempdir().unwrap();
    let (commit_log, log) = open(state.path(), BeginDurability::Immediate);
    begin(&log, &[PolicyAction::Create]);
    let flushed = length(state.path());
    record(&log, &[], AuditEvent::End { outcome: Ok(&ReplyValue::default()), reply: "", duration: Duration::ZERO });
    begin(&log, &[PolicyAction::Delete]);
    drop((log, commit_log));
    // In the middle of a line, as a block of the disk ends.
    lose_and_replay(state.path(), flushed + 7);
    let (commit_log, log) = open(state.path(), BeginDurability::Immediate);
    begin(&log, &[PolicyAction::Create]);
    drop((log, commit_log));
    assert_eq!(verify(state.path(), &[]).unwrap().records, 5);
}

#[test]
fn processes_with_and_without_a_redo_log_share_one_chain() {
    let state = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for with_commit_log in [true, true, false] {
            let path = state.path();
            scope.spawn(move || {
                let commit_log = with_commit_log.then(|| CommitLog::open(path).unwrap());
                let log = AuditLog::open(path).unwrap().with_segment_bytes(8 << 10);
                let log = match commit_log {
                    Some(commit_log) => log.with_commit_log(commit_log, BeginDurability::Immediate),
                    None => log,
                };
                (0..40).for_each(|_| begin(&log, &[PolicyAction::Create]));
            });
        }
    });
    let before = verify(state.path(), &[]).unwrap().records;
    drop(CommitLog::open(state.path()).unwrap());
    assert_eq!(verify(state.path(), &[]).unwrap().records, before);
    assert!(before > 120, "{before}");
}
