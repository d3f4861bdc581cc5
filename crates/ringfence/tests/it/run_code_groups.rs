//! Commit of a program's changes, group by group: under every preset, with every answer, and its report.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use proptest::prelude::{Strategy as _, any, prop};
use proptest::test_runner::{Config, TestRunner};
use ringfence::app::build_app_with_tap;
use ringfence::config::{CliFlags, load};
use ringfence_agent::{Ledger, LedgerSink, NetFileChange};
use ringfence_kernel::{AuditEvent, AuditSink, AuditSinkError, CallRecord, Preset, ToolCall};
use ringfence_testkit::approver::{ScriptedApprover, decision_by_person};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::approval_table::answer;
use crate::run_code::{bash, run_with};
use crate::site::TestSite;

/// The result of a program's changes: `committed`, and the paths that were kept and discarded.
#[derive(Debug, PartialEq, Eq)]
struct CommitResult {
    committed: String,
    kept: Vec<String>,
    not_kept: Vec<String>,
}

fn paths(list: &Value) -> Vec<String> {
    let path = |change: &Value| change["path"].as_str().unwrap().to_owned();
    list.as_array().map(|list| list.iter().map(path).collect()).unwrap_or_default()
}

impl CommitResult {
    fn of(reply: &Value) -> Self {
        let (from, kept) = match reply["ok"] == true {
            true => (&reply["value"], "changes"),
            false => (&reply["error"]["details"], "kept"),
        };
        let committed = from["committed"].as_str().unwrap_or_else(|| panic!("no word in {reply}")).to_owned();
        Self { committed, kept: paths(&from[kept]), not_kept: paths(&from["notKept"]) }
    }
}

fn site() -> TestSite {
    let site = TestSite::in_memory();
    for path in ["a.md", "b.md", "d/one", "d/two", ".github/workflows/ci.yml"] {
        site.write(path, format!("what is in {path}\n"));
    }
    site
}

/// Runs a program without an approver, and compares the kept and the discarded paths.
#[track_caller]
fn check(preset: &str, code: &str, committed: &str, kept: &[&str], not_kept: &[&str]) {
    let site = site();
    let said = run_with(&site, &["--preset", preset], &bash(code));
    let reply = said.reply();
    let settled = CommitResult::of(&reply);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let expected = CommitResult { committed: committed.to_owned(), kept: words(kept), not_kept: words(not_kept) };
    assert_eq!(settled, expected, "{preset}: {code}: {reply}");
    assert_eq!(said.code, Some(i32::from(!not_kept.is_empty())), "{reply}");
    if let Some(first) = not_kept.first() {
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("not kept: `{first}`")), "{message}");
        assert_eq!(reply["error"]["details"]["exitCode"], 0, "{reply}");
    }
}

#[test]
fn under_ask_new_files_are_kept_and_what_overwrites_or_deletes_is_not() {
    check("ask", "echo x > new.md; echo x > a.md; rm b.md", "some", &["new.md"], &["a.md", "b.md"]);
    check("ask", "echo x > a.md", "none", &[], &["a.md"]);
    check("ask", "rm -r d", "none", &[], &["d"]);
    check("ask", "echo x > new.md; mkdir -p e/f; echo y > e/f/g", "all", &["e", "e/f", "e/f/g", "new.md"], &[]);
    check("ask", "chmod 600 a.md", "none", &[], &["a.md"]);
    check("ask", "true", "none", &[], &[]);
}

#[test]
fn under_edits_everything_reversible_is_kept_and_protected_paths_are_not() {
    check("edits", "echo x > a.md; rm b.md; rm -r d", "all", &["a.md", "b.md", "d"], &[]);
    check("edits", "echo x > a.md; echo x > .envrc", "some", &["a.md"], &[".envrc"]);
    check("edits", "rm -r .github; rm b.md", "some", &["b.md"], &[".github"]);
}

#[test]
fn under_read_only_nothing_is_kept() {
    check("read-only", "echo x > new.md; echo x > a.md", "none", &[], &["a.md", "new.md"]);
}

#[test]
fn both_ends_of_a_rename_stand_or_fall_together() {
    check("ask", "mv a.md c.md; echo x > new.md", "some", &["new.md"], &["c.md"]);
    check("ask", "mv d e", "none", &[], &["d", "e", "e/one", "e/two"]);
    check("edits", "mv d e", "all", &["d", "e", "e/one", "e/two"], &[]);
    check("edits", "mv a.md .envrc; mkdir n; mv b.md n/b.md", "some", &["n", "n/b.md"], &[".envrc"]);
}

/// By the call itself, which `mv` answers with a copy where it fails.
#[test]
fn a_renamed_directory_is_kept_or_discarded_as_a_whole() {
    let rename = "python3 -c 'import os; os.rename(\"d\", \"e\")'";
    check("ask", rename, "none", &[], &["d", "e", "e/one", "e/two"]);
    check("edits", rename, "all", &["d", "e", "e/one", "e/two"], &[]);
    let covered = "python3 -c 'import os; os.rename(\"d\", \".vscode\")'; rm b.md";
    check("edits", covered, "some", &["b.md"], &[".vscode", ".vscode/one", ".vscode/two", "d"]);
    let twice =
        format!("{rename}; python3 -c 'import os; os.rename(\"e\", \"f\"); os.mkdir(\"d\"); os.rename(\"f\", \"d\")'");
    check("ask", &twice, "none", &[], &[]);
}

#[test]
fn nothing_is_kept_without_the_directory_that_it_is_in_and_no_directory_that_is_hollow() {
    check(
        "edits",
        "mkdir -p p/.vscode; echo x > p/.vscode/tasks.json",
        "none",
        &[],
        &["p", "p/.vscode", "p/.vscode/tasks.json"],
    );
    check(
        "edits",
        "mkdir -p p/.vscode; echo x > p/.vscode/tasks.json; echo y > p/y",
        "some",
        &["p", "p/y"],
        &["p/.vscode", "p/.vscode/tasks.json"],
    );
    // A replacement is discarded with the entry that it replaces.
    check("ask", "rm a.md; mkdir a.md; echo x > a.md/x", "none", &[], &["a.md", "a.md/x"]);
    check("ask", "rm -r d; echo x > d", "none", &[], &["d"]);
}

#[test]
fn uncommittable_changes_are_left_out_alone() {
    check("edits", "mkfifo pipe; echo x > a.md", "some", &["a.md"], &["pipe"]);
    check("edits", "ln -s /etc/passwd out; echo x > a.md", "some", &["a.md"], &["out"]);
    check("edits", "ln -s out2 out1; ln -s ../outside out2; ln -s a.md in", "some", &["in"], &["out1", "out2"]);
    check("edits", "mkdir p; mkfifo p/pipe", "none", &[], &["p", "p/pipe"]);
    check("edits", "rm a.md; mkfifo a.md; rm b.md", "some", &["b.md"], &["a.md"]);
    // A directory that keeps a link from leading out is refused, and the link with it.
    let site = site();
    std::os::unix::fs::symlink("/etc", site.workspace.join("way")).unwrap();
    let code = "rm way; mkdir way; echo x > way/passwd; ln -s way/passwd innocent";
    let reply = run_with(&site, &["--preset", "ask"], &bash(code)).reply();
    assert_eq!(CommitResult::of(&reply).committed, "none", "{reply}");
}

#[test]
fn a_repository_is_not_completed_by_what_is_kept_of_a_change() {
    let site = site();
    site.write("bare/HEAD", "ref: refs/heads/x\n");
    site.write("bare/objects/x", "x");
    // With its `HEAD` gone it would be none; but that is asked about.
    let reply = run_with(&site, &["--preset", "ask"], &bash("rm bare/HEAD; mkdir bare/refs")).reply();
    assert_eq!(CommitResult::of(&reply).not_kept, ["bare/HEAD", "bare/refs"], "{reply}");
}

#[test]
fn each_path_that_is_not_kept_has_its_own_reason() {
    let site = site();
    let code = "echo x > a.md; rm b.md; echo x > .github/workflows/ci.yml; mkfifo pipe";
    let reply = run_with(&site, &["--preset", "ask"], &bash(code)).reply();
    let not_kept = reply["error"]["details"]["notKept"].as_array().unwrap();
    assert_eq!(not_kept.len(), 4, "{reply}");
    for item in not_kept {
        let (path, reason) = (item["path"].as_str().unwrap(), item["reason"].as_str().unwrap());
        assert!(reason.contains(&format!("`{path}`")), "{reply}");
        let others = not_kept.iter().filter_map(|other| other["path"].as_str()).filter(|other| *other != path);
        others.for_each(|other| assert!(!reason.contains(&format!("`{other}`")), "{other}: {reply}"));
    }
}

#[test]
fn a_review_is_all_or_nothing() {
    let site = site();
    let mut arguments = bash("echo x > new.md; mkfifo pipe");
    arguments["mode"] = json!("review");
    let reply = run_with(&site, &["--preset", "edits"], &arguments).reply();
    let settled = CommitResult::of(&reply);
    assert_eq!((settled.committed.as_str(), settled.kept.len(), settled.not_kept.len()), ("none", 0, 2), "{reply}");
}

#[test]
fn kept_changes_are_one_change_and_undone_as_one() {
    let site = site();
    let before = site.tree();
    let reply = run_with(&site, &["--preset", "ask"], &bash("echo x > n1; echo x > n2; echo x > a.md")).reply();
    let change = reply["error"]["details"]["change"].as_str().unwrap();
    assert_eq!(site.read("n1"), "x\n");
    assert_eq!(site.run(&["undo", change]).code, Some(0));
    assert_eq!(site.tree(), before);
}

#[test]
fn files_changed_during_approval_are_withheld() {
    let site = site();
    let environment = site.environment();
    let workspace = Some(site.workspace.to_str().unwrap().to_owned());
    let settings = load(&CliFlags { workspace, ..CliFlags::default() }, &environment).unwrap();
    let (meddler, ears) = (ScriptedApprover::approving(), LedgerRecorder::default());
    let changed = site.workspace.join("a.md");
    meddler.before_answer(move || std::fs::write(changed, "theirs\n").unwrap());
    let app = build_app_with_tap(settings, &environment, Box::new(meddler), Box::new(ears.clone())).unwrap();
    let code = bash("echo x > a.md; echo x > b.md; echo x > new.md");
    let call = ToolCall { id: "1".to_owned(), name: "run_code".to_owned(), arguments: code.to_string() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap();
    let reply: Value = serde_json::from_str(&reply.text).unwrap();
    let settled = CommitResult::of(&reply);
    assert_eq!(reply["error"]["code"], "CONFLICT", "{reply}");
    assert_eq!((settled.committed.as_str(), settled.kept), ("some", vec!["b.md".to_owned(), "new.md".to_owned()]));
    assert_eq!([site.read("a.md"), site.read("b.md")], ["theirs\n", "x\n"]);
    let ledger = ears.tap.ledger();
    assert_eq!(ledger.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["b.md", "new.md"]);
    assert_eq!(ledger.commands[0].not_kept, ["a.md"]);
}

/// A ledger, and every record that it was made of.
#[derive(Clone, Debug, Default)]
struct LedgerRecorder {
    tap: LedgerSink,
    not_kept: Arc<Mutex<BTreeSet<String>>>,
    made: Arc<Mutex<BTreeSet<String>>>,
}

impl AuditSink for LedgerRecorder {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        let paths = record.accesses.iter().filter(|touch| touch.action.changes_files());
        let paths: Vec<String> = paths.map(|touch| touch.resource.display_path.clone()).collect();
        match record.event {
            AuditEvent::ChangesDiscarded { .. } => self.not_kept.lock().unwrap().extend(paths),
            AuditEvent::End { .. } => self.made.lock().unwrap().extend(paths),
            _ => {}
        }
        self.tap.record(record)
    }
}

type GroupTree = Vec<(String, Option<Vec<u8>>)>;

/// The paths that are not what they were.
fn changed(before: &GroupTree, after: &GroupTree) -> BTreeSet<String> {
    let [old, new] = [before, after].map(|tree| tree.iter().collect::<BTreeSet<_>>());
    old.symmetric_difference(&new).map(|(path, _)| path.clone()).collect()
}

/// The ledger lists exactly the actual changes, path by path; entries of a deleted directory are covered by it.
#[track_caller]
fn check_ledger(ledger: &Ledger, before: &GroupTree, after: &GroupTree, code: &str) {
    let changed = changed(before, after);
    for path in &changed {
        let named = ledger.files.iter().any(|file| {
            file.path == *path || file.outcome == NetFileChange::Deleted && Path::new(path).starts_with(&file.path)
        });
        assert!(named, "`{path}` changed, and is not in {:?} after {code}", ledger.files);
    }
    for file in &ledger.files {
        assert!(changed.contains(&file.path), "{file:?} did not happen: {code}");
        let is_there = after.iter().any(|(path, _)| *path == file.path);
        assert_eq!(is_there, file.outcome != NetFileChange::Deleted, "{file:?}: {code}");
    }
}

#[test]
fn the_ledger_is_what_the_tree_and_the_records_say() {
    let step = (0..9u8, 0..6usize, 0..6usize);
    let programs = prop::collection::vec(step, 1..6);
    let cases = (programs, 0..3usize, any::<bool>(), 0..8u8);
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&cases.prop_map(|case| case), |(steps, preset, approves, mode)| {
        const NAMES: [&str; 6] = ["a.md", "b.md", "d/one", "n/x", ".envrc", "d/.vscode/settings.json"];
        let line = |(what, one, other): &(u8, usize, usize)| {
            let (one, other) = (NAMES[*one], NAMES[*other]);
            match what {
                0 | 1 => format!("mkdir -p $(dirname {one}); echo {other} >> {one}"),
                2 => format!("rm -f {one}"),
                3 => format!("mkdir -p $(dirname {other}); mv -f {one} {other}"),
                4 => "rm -rf d".to_owned(),
                5 => "mv d moved".to_owned(),
                6 => format!("rm -rf {one}; mkdir -p {one}/in; echo x > {one}/in/x"),
                7 => "mkfifo pipe".to_owned(),
                _ => format!("mkdir -p $(dirname {one}); ln -sf /etc/passwd {one}"),
            }
        };
        let code: Vec<String> = steps.iter().map(line).collect();
        let mut arguments = bash(&format!("({}) 2>/dev/null; exit 3", code.join("; ")));
        arguments["mode"] = json!(match mode {
            0 => "discard",
            1 => "review",
            _ => "auto",
        });
        let (site, ears) = (site(), LedgerRecorder::default());
        let environment = site.environment();
        let workspace = Some(site.workspace.to_str().unwrap().to_owned());
        let flags = CliFlags { workspace, preset: Some(Preset::ALL[preset]), ..CliFlags::default() };
        let settings = load(&flags, &environment).unwrap();
        let approver = ScriptedApprover::always(decision_by_person(answer(approves)));
        let app = build_app_with_tap(settings, &environment, Box::new(approver), Box::new(ears.clone())).unwrap();
        let before = site.tree();
        let call = ToolCall { id: "1".to_owned(), name: "run_code".to_owned(), arguments: arguments.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap();
        let (reply, after, ledger) =
            (serde_json::from_str::<Value>(&reply.text).unwrap(), site.tree(), ears.tap.ledger());
        let said = format!("{arguments} {:?} {approves}: {reply}", Preset::ALL[preset]);
        check_ledger(&ledger, &before, &after, &said);
        let settled = CommitResult::of(&reply);
        let [not_kept, made] = [&ears.not_kept, &ears.made].map(|paths| paths.lock().unwrap().clone());
        assert!(settled.not_kept.iter().all(|path| not_kept.contains(path)), "{not_kept:?} {said}");
        assert!(changed(&before, &after).is_empty() || !made.is_empty(), "{said}");
        let [command] = &ledger.commands[..] else { panic!("{said}") };
        let is_whole = settled.committed == "all" || mode != 0 && settled.kept.is_empty() && reply["ok"] == true;
        assert_eq!((command.kept, command.exit_code), (is_whole, Some(3)), "{ledger:?} {said}");
        assert_eq!(command.partly_kept, settled.committed == "some", "{said}");
        assert_eq!(ledger.denied.len() + ledger.failed.len(), usize::from(reply["ok"] == false), "{said}");
        Ok(())
    });
    outcome.unwrap();
}
