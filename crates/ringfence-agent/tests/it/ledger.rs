//! Action ledger: what was done, and not what the model says.

use std::time::Duration;

use expect_test::{Expect, expect};
use ringfence_agent::LedgerSink;
use ringfence_kernel::{
    AuditEvent, AuditSink as _, CallRecord, ErrorKind, PolicyAction, PolicyLayer, PolicyResource, Preset, ReplyValue,
    ResourceAccess, Session, ToolError,
};
use serde_json::{Value, json};

use crate::fixture::{AgentFixture, AgentSetup, call, text};

async fn check(preset: Preset, calls: &[(&str, Value)], expected: Expect) {
    let mut script: Vec<Value> = calls.iter().map(|(name, arguments)| call(name, arguments.clone())).collect();
    script.push(text("I have deleted everything and created world.txt."));
    let mut setup = AgentSetup { preset, ..AgentSetup::default() };
    setup.bounds.steps = 20;
    let mut world = AgentFixture::new(setup, &script);
    world.write("old.txt", "old\n");
    world.write("other.txt", "other\n");
    let outcome = world.prompt("go").await;
    let mut said = outcome.ledger.lines().join("\n");
    said.push('\n');
    expected.assert_eq(&said);
    let written = serde_json::to_value(&outcome.ledger).unwrap();
    assert_eq!(serde_json::from_value::<ringfence_agent::Ledger>(written).unwrap(), outcome.ledger);
}

#[tokio::test]
async fn files_are_created_changed_deleted_and_moved() {
    let calls = [
        ("write_file", json!({"path": "new.txt", "content": "1"})),
        ("edit_file", json!({"path": "new.txt", "oldText": "1", "newText": "2"})),
        ("append_file", json!({"path": "old.txt", "content": "more\n"})),
        ("move_file", json!({"from": "other.txt", "to": "moved.txt"})),
        ("write_file", json!({"path": "brief.txt", "content": "x"})),
        ("delete_file", json!({"path": "brief.txt"})),
        ("create_directory", json!({"path": "d"})),
    ];
    check(
        Preset::Edits,
        &calls,
        expect![[r#"
            created  brief.txt, then deleted it
            created  d
            moved    other.txt to moved.txt
            created  new.txt
            changed  old.txt
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_file_deleted_and_recreated_is_changed() {
    let calls = [
        ("delete_file", json!({"path": "old.txt"})),
        ("write_file", json!({"path": "old.txt", "content": "new\n"})),
        ("delete_file", json!({"path": "other.txt"})),
    ];
    check(
        Preset::Edits,
        &calls,
        expect![[r#"
            changed  old.txt
            deleted  other.txt
        "#]],
    )
    .await;
}

#[tokio::test]
async fn denied_and_failed_calls_are_listed_and_false_claims_are_not() {
    let calls = [
        ("delete_file", json!({"path": "old.txt"})),
        ("read_file", json!({"path": "nowhere.txt"})),
        ("read_file", json!({"path": "../outside"})),
        ("no_such_tool", json!({})),
    ];
    check(Preset::ReadOnly, &calls, expect![[r#"
        no files changed
        denied   delete_file old.txt: this would delete `old.txt`, and the preset `read-only` allows no changes, only listing and reading; `preset = "edits"` instead would lift this
        failed   read_file nowhere.txt: `nowhere.txt` does not exist
        failed   read_file ../outside: `../outside` leads outside the workspace
        failed   no_such_tool: unknown tool `no_such_tool`
    "#]]).await;
}

#[tokio::test]
async fn a_name_that_would_steer_a_terminal_is_shown_as_what_it_is() {
    let calls = [("read_file", json!({"path": "a\u{1b}[2Jb"}))];
    check(
        Preset::ReadOnly,
        &calls,
        expect![[r#"
        no files changed
        failed   read_file a\x1b[2Jb: `a\x1b[2Jb` does not exist
    "#]],
    )
    .await;
}

/// Records as the kernel makes them.
struct RecordFeeder {
    tap: LedgerSink,
    session: std::sync::Arc<Session>,
}

impl RecordFeeder {
    fn new() -> Self {
        let world = AgentFixture::new(AgentSetup::default(), &[]);
        Self { tap: LedgerSink::default(), session: world.agent.session }
    }

    fn record(&self, call: &str, tool: &str, accesses: &[(PolicyAction, &str)], moment: AuditEvent<'_>) {
        let access = |(action, path): &(PolicyAction, &str)| ResourceAccess {
            action: *action,
            resource: PolicyResource {
                requested_path: (*path).to_owned(),
                display_path: (*path).to_owned(),
                ..PolicyResource::default()
            },
        };
        let accesses: Vec<ResourceAccess> = accesses.iter().map(access).collect();
        let record = CallRecord {
            time: std::time::SystemTime::UNIX_EPOCH,
            session: &self.session,
            call_id: call,
            tool,
            arguments: "{}",
            subject: None,
            accesses: &accesses,
            event: moment,
        };
        self.tap.record(&record).unwrap();
    }

    fn begin(&self, call: &str, tool: &str, accesses: &[(PolicyAction, &str)], change: &str) {
        self.record(
            call,
            tool,
            accesses,
            AuditEvent::Begin { rule: "r", layer: PolicyLayer::Preset, approved: None, change },
        );
    }

    fn end(&self, call: &str, tool: &str, reply: &Value) {
        let value = ReplyValue::new(reply["value"].clone());
        let moment = AuditEvent::End { outcome: Ok(&value), reply: "", duration: Duration::ZERO };
        self.record(call, tool, &[], moment);
    }

    fn lines(&self) -> Vec<String> {
        self.tap.ledger().lines()
    }
}

#[test]
fn a_call_whose_end_is_not_known_is_said_to_be_so_until_it_is() {
    let road = RecordFeeder::new();
    road.begin("a", "write_file", &[(PolicyAction::Create, "late.txt")], "c-1");
    let error = ToolError::new(ErrorKind::Timeout, "the call timed out").detail("committed", "unknown");
    let overdue = AuditEvent::Overdue { error: &error, reply: "", duration: Duration::ZERO };
    road.record("a", "write_file", &[], overdue);
    assert_eq!(road.lines()[0], "unknown  late.txt: a call was interrupted while changing it");
    // Its end comes while the next prompt is worked on, and is that one's.
    road.tap.reset();
    road.end("a", "write_file", &json!({"ok": true}));
    assert_eq!(road.lines(), ["created  late.txt"]);
    assert_eq!(road.tap.ledger().changes, ["c-1"]);
}

#[test]
fn a_programs_changes_count_only_when_kept() {
    let road = RecordFeeder::new();
    for (call, committed) in [("a", "all"), ("b", "none")] {
        road.begin(call, "run_code", &[(PolicyAction::Run, "bash"), (PolicyAction::Fetch, "pypi.org:443")], "");
        road.begin(call, "run_code", &[(PolicyAction::Overwrite, &format!("{call}.txt"))], &format!("c-{call}"));
        road.end(
            call,
            "run_code",
            &json!({"ok": true, "value": {"exitCode": 1, "committed": committed, "totalChanges": 1}}),
        );
    }
    assert_eq!(
        road.lines(),
        [
            "changed  a.txt",
            "ran      bash code: exit code 1",
            "ran      bash code: exit code 1, no changes kept",
            "reached  pypi.org:443",
        ]
    );
    assert_eq!(road.tap.ledger().changes, ["c-a"]);
}

#[test]
fn a_program_that_was_ended_has_no_exit_code() {
    let road = RecordFeeder::new();
    road.begin("a", "run_code", &[(PolicyAction::Run, "python")], "");
    let error = ToolError::new(ErrorKind::Timeout, "the program was terminated after 60 s");
    road.record("a", "run_code", &[], AuditEvent::End { outcome: Err(&error), reply: "{}", duration: Duration::ZERO });
    assert_eq!(road.lines()[1], "ran      python code: TIMEOUT, no changes kept");
    assert_eq!(road.tap.ledger().failed.len(), 1);
}

#[test]
fn a_program_whose_changes_were_discarded_kept_nothing() {
    let road = RecordFeeder::new();
    for (call, value) in [
        ("a", json!({"exitCode": 0, "committed": "none", "totalChanges": 1, "discarded": true})),
        ("b", json!({"exitCode": 0, "committed": "none", "totalChanges": 0, "discarded": true})),
        ("c", json!({"exitCode": 0, "committed": "none", "totalChanges": 0})),
    ] {
        road.begin(call, "run_code", &[(PolicyAction::Run, "bash")], "");
        road.end(call, "run_code", &json!({"ok": true, "value": value}));
    }
    let kept: Vec<bool> = road.tap.ledger().commands.iter().map(|command| command.kept).collect();
    assert_eq!(kept, [false, false, true]);
}

#[test]
fn refused_changes_of_a_program_are_listed_as_denied() {
    let road = RecordFeeder::new();
    road.begin("a", "run_code", &[(PolicyAction::Run, "bash")], "");
    let error = ToolError::new(ErrorKind::ApprovalDenied, "not kept: `old.txt`")
        .detail("committed", "some")
        .detail("exitCode", 3);
    road.record(
        "a",
        "run_code",
        &[(PolicyAction::Overwrite, "old.txt")],
        AuditEvent::ChangesDiscarded { error: &error },
    );
    road.begin("a", "run_code", &[(PolicyAction::Create, "new.txt"), (PolicyAction::Overwrite, "late.txt")], "c-1");
    let late = ToolError::new(ErrorKind::Conflict, "changed meanwhile");
    road.record(
        "a",
        "run_code",
        &[(PolicyAction::Overwrite, "late.txt")],
        AuditEvent::ChangesDiscarded { error: &late },
    );
    let end = AuditEvent::End { outcome: Err(&error), reply: "", duration: Duration::ZERO };
    road.record("a", "run_code", &[(PolicyAction::Create, "new.txt")], end);
    assert_eq!(
        road.lines(),
        [
            "created  new.txt",
            "ran      bash code: exit code 3, not kept: old.txt, late.txt",
            "denied   run_code old.txt: not kept: `old.txt`",
        ]
    );
    assert_eq!(road.tap.ledger().changes, ["c-1"]);
}

#[test]
fn a_change_that_is_made_and_may_not_survive_a_power_cut_is_made() {
    let road = RecordFeeder::new();
    road.begin("a", "write_file", &[(PolicyAction::Create, "a.txt")], "c-1");
    let error = ToolError::new(ErrorKind::Io, "it is made, but could not be put on disk").detail("committed", true);
    road.record("a", "write_file", &[], AuditEvent::End { outcome: Err(&error), reply: "", duration: Duration::ZERO });
    assert_eq!(road.lines()[0], "created  a.txt");
}
