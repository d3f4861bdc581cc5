//! Deferred approval: an answer holds for what was shown, where it was shown, and nothing else.

use std::os::unix::fs::symlink;
use std::time::SystemTime;

use ringfence_kernel::{ApprovalResponse, Assurance, ErrorKind, Preset, Principal, ToolCall, ToolReply};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::snapshot::snapshot;

/// Target of the links: creating files there needs approval.
const HERE: &str = ".vscode";
const THERE: &str = ".idea";

/// Calls that go through the link `way`, or the link `cfg`.
fn calls() -> Vec<(&'static str, Value)> {
    let patch = "--- /dev/null\n+++ b/way/new\n@@ -0,0 +1 @@\n+x\n";
    vec![
        ("read_file", json!({"path": "cfg"})),
        ("search_files", json!({"path": "cfg", "pattern": "KEY"})),
        ("write_file", json!({"path": "way/new", "content": "x"})),
        ("write_file", json!({"path": "way/deep/new", "content": "x", "createDirs": true})),
        ("append_file", json!({"path": "way/new", "content": "x"})),
        ("edit_file", json!({"path": "way/old", "oldText": "old", "newText": "new"})),
        ("create_directory", json!({"path": "way/new"})),
        ("apply_patch", json!({"patch": patch})),
        ("move_file", json!({"from": "mine", "to": "way/new"})),
        ("copy_file", json!({"from": "mine", "to": "way/new"})),
        ("delete_file", json!({"path": "way/old"})),
    ]
}

fn fixture_with_links(person: &ScriptedApprover) -> FsFixture {
    let setup = FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..FsFixtureConfig::default() };
    let world = FsFixture::with(setup);
    for place in [HERE, THERE] {
        world.write(&format!("{place}/old"), "old");
        world.write(&format!(".env{place}"), format!("KEY={place}"));
    }
    world.write("mine", "m");
    point_links_at(&world, HERE);
    world
}

/// Both links lead there from now on.
fn point_links_at(world: &FsFixture, place: &str) {
    for (link, target) in [("way", place.to_owned()), ("cfg", format!(".env{place}"))] {
        let _ = std::fs::remove_file(world.root.join(link));
        symlink(target, world.root.join(link)).unwrap();
    }
}

/// Makes a call that is deferred, retargets the links or not, approves, and resumes the call.
fn defer_and_resume(
    person: &ScriptedApprover,
    world: &FsFixture,
    (tool, arguments): &(&str, Value),
    place: &str,
) -> ToolReply {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let cancel = CancellationToken::new();
    let call = ToolCall { id: "1".to_owned(), name: (*tool).to_owned(), arguments: arguments.to_string() };
    let put_off = runtime.block_on(world.host.call(&world.session, call, &cancel)).unwrap();
    let suspended = put_off.suspended.unwrap_or_else(|| panic!("{tool}: {}", put_off.text));
    point_links_at(world, place);
    let yes = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
    let somebody = Principal::person("somebody");
    world.host.inbox(&somebody).answer(&suspended.request_id, yes, Assurance::Person, SystemTime::now()).unwrap();
    assert_eq!(person.last_request().id, suspended.request_id);
    runtime.block_on(world.host.resume(&world.session, &suspended.token, &cancel)).unwrap()
}

#[test]
fn a_resumed_call_with_unchanged_links_runs() {
    for call in calls() {
        let person = ScriptedApprover::deferring();
        let world = fixture_with_links(&person);
        let reply = defer_and_resume(&person, &world, &call, HERE);
        assert_eq!(reply.error_kind(), None, "{call:?}: {}", reply.text);
    }
}

#[test]
fn a_resumed_call_with_changed_links_is_refused() {
    for call in calls() {
        let person = ScriptedApprover::deferring();
        let world = fixture_with_links(&person);
        let reply = defer_and_resume(&person, &world, &call, THERE);
        assert_eq!(reply.error_kind(), Some(ErrorKind::Conflict), "{call:?}: {}", reply.text);
        assert!(!reply.text.contains("KEY="), "{}", reply.text);
        let now = snapshot(&world.root).into_keys().map(|path| path.to_str().unwrap().to_owned());
        let now: Vec<String> = now.filter(|path| !path.starts_with(".ringfence")).collect();
        let was =
            ["", ".env.idea", ".env.vscode", ".idea", ".idea/old", ".vscode", ".vscode/old", "cfg", "mine", "way"];
        assert_eq!(now, was, "{call:?}");
        assert!([HERE, THERE].iter().all(|place| world.read(&format!("{place}/old")) == "old"), "{call:?}");
    }
}

#[test]
fn an_approval_prompt_names_the_link_target() {
    for call in calls() {
        let person = ScriptedApprover::deferring();
        let world = fixture_with_links(&person);
        defer_and_resume(&person, &world, &call, HERE);
        let request = person.last_request();
        let (link, real) =
            if request.preview.summary().contains("cfg") { ("cfg", ".env.vscode") } else { ("way/", ".vscode/") };
        let said =
            request.preview.summary().split_once("; `").unwrap_or_else(|| panic!("{}", request.preview.summary())).1;
        assert!(said.starts_with(link) && said.contains(&format!("` is `{real}")), "{}", request.preview.summary());
        assert!(request.preview.text().starts_with(request.preview.summary()), "{}", request.preview.text());
    }
}
