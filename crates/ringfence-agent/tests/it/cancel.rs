//! Cancelling: it ends a run that waits for something that never comes, and leaves a session that can go on.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_agent::{AgentLimits, TranscriptMessage};
use ringfence_kernel::{
    CallContext, PolicyAction, PolicyResource, Preset, Preview, ResourceAccess, Ticket, Tool, ToolBinding, ToolError,
    ToolPlan, ToolRegistry,
};
use ringfence_testkit::approver::ScriptedApprover;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::{AgentFixture, AgentSetup, assert_ended, call, is_answered, text, write};

/// How often it is tried.
const ROUNDS: usize = 5;

/// Cancels when this is heard, again and again. The last world is to go on.
async fn check(make: impl Fn() -> AgentFixture, when: &str) -> AgentFixture {
    for _ in 1..ROUNDS {
        cancel_when(make(), when).await;
    }
    cancel_when(make(), when).await
}

async fn cancel_when(mut world: AgentFixture, when: &str) -> AgentFixture {
    let cancel = CancellationToken::new();
    let front = Arc::clone(&world.observer);
    let (outcome, ()) = tokio::join!(world.prompt_until("do it", &cancel), async {
        front.wait_for(when).await;
        cancel.cancel();
    });
    assert_ended(&outcome, "cancelled");
    world
}

/// A tool that reads something that does not come.
struct StuckTool(Mutex<Receiver<()>>);

/// Waits for what does not come.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StuckArgs {}

#[derive(Debug, Serialize, JsonSchema)]
struct StuckReply {}

impl From<()> for StuckReply {
    fn from((): ()) -> Self {
        Self {}
    }
}

impl From<StuckArgs> for () {
    fn from(_: StuckArgs) -> Self {}
}

impl Tool for StuckTool {
    type Args = ();
    type Prepared = ();
    type Outcome = ();

    fn plan(&self, (): (), _: &CallContext<'_>) -> Result<ToolPlan<()>, ToolError> {
        let place = PolicyResource {
            requested_path: "x".to_owned(),
            display_path: "x".to_owned(),
            ..PolicyResource::default()
        };
        Ok(ToolPlan { accesses: vec![ResourceAccess { action: PolicyAction::Read, resource: place }], prepared: () })
    }

    fn preview(&self, (): &mut (), _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("wait", String::new()))
    }

    fn run(&self, (): (), _: &Ticket<'_>) -> Result<(), ToolError> {
        let _ = self.0.lock().unwrap().recv();
        Ok(())
    }
}

#[tokio::test]
async fn while_the_model_thinks() {
    check(|| AgentFixture::new(AgentSetup::default(), &[json!({"stall": true})]), "step 1").await;
}

#[tokio::test]
async fn while_an_answer_comes() {
    let world =
        || AgentFixture::new(AgentSetup::default(), &[json!({"text": "I thi", "stall": true}), text("hello again")]);
    let mut world = check(world, "text thi").await;
    // What came of it counts for nothing.
    assert_eq!(world.history.messages().len(), 2);
    assert!(is_answered(&world.prompt("go on").await));
}

#[tokio::test]
async fn while_a_busy_server_is_left_alone() {
    let bounds = || AgentLimits { max_wait: Duration::from_secs(3600), ..AgentLimits::default() };
    let busy = json!({"error": "busy", "retry_after": 3_000_000});
    let world =
        || AgentFixture::new(AgentSetup { bounds: bounds(), ..AgentSetup::default() }, std::slice::from_ref(&busy));
    check(world, "again 1").await;
}

#[tokio::test]
async fn while_a_file_system_does_not_answer_and_the_rest_is_not_made() {
    let releases = Mutex::new(Vec::new());
    let calls = json!({"calls": [
        {"name": "stuck", "arguments": {}}, {"name": "write_file", "arguments": {"path": "late", "content": ""}},
    ]});
    let world = || {
        let (release, stuck) = channel();
        releases.lock().unwrap().push(release);
        let extra = Box::new(|registry: &mut ToolRegistry| {
            registry
                .register(StuckTool(Mutex::new(stuck)), [ToolBinding::standard::<StuckArgs, StuckReply>("stuck")])
                .unwrap();
        });
        AgentFixture::new(AgentSetup { extra: Some(extra), ..AgentSetup::default() }, &[calls.clone(), text("hello")])
    };
    let mut world = check(world, "call stuck").await;
    let results = world.results();
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|result| result.contains("CANCELLED")), "{results:?}");
    assert!(results[1].contains("not made"));
    assert_eq!(world.file("late"), None);
    assert!(is_answered(&world.prompt("go on").await));
    drop(releases);
}

#[tokio::test]
async fn while_it_searches() {
    let search = call("search_files", json!({"path": ".", "pattern": "(a+)+b|x.*y.*z", "regex": true}));
    let world = || {
        let world = AgentFixture::new(AgentSetup::default(), std::slice::from_ref(&search));
        for directory in 0..20 {
            std::fs::create_dir(world.root.join(format!("d{directory}"))).unwrap();
            for file in 0..100 {
                world.write(&format!("d{directory}/f{file}"), &"x aaaaaaaaaaaaaaaaaaaaaaaa y\n".repeat(400));
            }
        }
        world
    };
    check(world, "call search_files").await;
}

#[tokio::test]
async fn while_an_approval_is_pending() {
    let world = || {
        let setup = AgentSetup {
            preset: Preset::Ask,
            approver: Box::new(ScriptedApprover::default()),
            ..AgentSetup::default()
        };
        let world = AgentFixture::new(setup, &[write("notes", "new")]);
        world.write("notes", "old");
        world
    };
    let world = check(world, "call write_file").await;
    assert_eq!(world.file("notes").as_deref(), Some("old"));
}

#[tokio::test]
async fn a_run_that_is_cancelled_before_it_starts_sends_no_request() {
    let mut world = AgentFixture::new(AgentSetup::default(), &[text("never")]);
    let cancel = CancellationToken::new();
    cancel.cancel();
    assert_ended(&world.prompt_until("hi", &cancel).await, "cancelled");
    assert!(world.model.recorded().is_empty());
    assert!(matches!(&world.history.messages()[0], TranscriptMessage::User { text } if text == "hi"));
}

#[tokio::test]
async fn every_call_of_a_long_answer_has_its_result_wherever_it_is_cancelled() {
    for after in 1..6 {
        let one =
            |number: usize| json!({"name": "write_file", "arguments": {"path": format!("f{number}"), "content": ""}});
        let many: Vec<Value> = (0..6).map(one).collect();
        let mut world = AgentFixture::new(AgentSetup::default(), &[json!({ "calls": many })]);
        let cancel = CancellationToken::new();
        world.observer.cancel_after_results(after, &cancel);
        assert_ended(&world.prompt_until("go", &cancel).await, "cancelled");
        let made = world.results().iter().filter(|result| result.contains("\"ok\":true")).count();
        assert_eq!((world.results().len(), made), (6, after));
    }
}
