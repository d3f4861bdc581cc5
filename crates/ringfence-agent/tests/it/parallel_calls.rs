//! Calls of one answer: those that only read are made at the same time, the others in order.

use std::sync::{Arc, Barrier};

use ringfence_kernel::{
    CallContext, PolicyAction, PolicyResource, Preset, Preview, ResourceAccess, Ticket, Tool, ToolBinding, ToolError,
    ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::{AgentFixture, AgentSetup, assert_ended, is_answered, text};

/// Ends when as many calls run as the barrier is for.
struct MeetTool(Arc<Barrier>);

/// Waits for the other calls.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MeetArgs {
    name: String,
}

impl From<MeetArgs> for String {
    fn from(args: MeetArgs) -> Self {
        args.name
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct MeetReply {
    met: String,
}

impl From<String> for MeetReply {
    fn from(met: String) -> Self {
        Self { met }
    }
}

impl Tool for MeetTool {
    type Args = String;
    type Prepared = String;
    type Outcome = String;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];

    fn plan(&self, name: String, _: &CallContext<'_>) -> Result<ToolPlan<String>, ToolError> {
        let resource =
            PolicyResource { requested_path: name.clone(), display_path: name.clone(), ..PolicyResource::default() };
        Ok(ToolPlan { accesses: vec![ResourceAccess { action: PolicyAction::Read, resource }], prepared: name })
    }

    fn preview(&self, _: &mut String, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("meet", String::new()))
    }

    fn run(&self, name: String, _: &Ticket<'_>) -> Result<String, ToolError> {
        self.0.wait();
        Ok(name)
    }
}

#[tokio::test]
async fn calls_that_only_read_are_made_at_the_same_time_and_answered_in_order() {
    let names = ["a", "b"];
    let calls: Vec<Value> = names.iter().map(|name| json!({"name": "meet", "arguments": {"name": name}})).collect();
    let extra = Box::new(move |registry: &mut ToolRegistry| {
        let tool = MeetTool(Arc::new(Barrier::new(names.len())));
        registry.register(tool, [ToolBinding::standard::<MeetArgs, MeetReply>("meet")]).unwrap();
    });
    let setup = AgentSetup { extra: Some(extra), ..AgentSetup::default() };
    let mut world = AgentFixture::new(setup, &[json!({"calls": calls}), text("done")]);
    world.prompt("go").await;
    let results = world.results();
    assert_eq!(results.len(), names.len());
    for (result, name) in results.iter().zip(names) {
        assert!(result.contains(&format!("\"met\":\"{name}\"")), "{result}");
    }
}

#[tokio::test]
async fn a_read_after_a_write_of_the_same_answer_sees_it() {
    let calls = json!({"calls": [
        {"name": "read_file", "arguments": {"path": "a.txt"}},
        {"name": "write_file", "arguments": {"path": "a.txt", "content": "new"}},
        {"name": "read_file", "arguments": {"path": "a.txt"}},
    ]});
    let setup = AgentSetup { preset: Preset::Edits, ..AgentSetup::default() };
    let mut world = AgentFixture::new(setup, &[calls, text("done")]);
    world.write("a.txt", "old");
    world.prompt("go").await;
    let results = world.results();
    assert!(results[0].contains("old") && results[2].contains("new"), "{results:?}");
}

#[tokio::test]
async fn a_denied_call_of_a_group_leaves_the_others_their_results() {
    let read = |path: &str| json!({"name": "read_file", "arguments": {"path": path}});
    let calls = json!({"calls": [read("a.txt"), read("../outside"), read(".env"), read("b.txt")]});
    let setup = AgentSetup { preset: Preset::Ask, ..AgentSetup::default() };
    let mut world = AgentFixture::new(setup, &[calls, text("done")]);
    world.write("a.txt", "first");
    world.write("b.txt", "last");
    world.write(".env", "KEY=SECRET");
    assert!(is_answered(&world.prompt("go").await));
    let results = world.results();
    assert_eq!(results.len(), 4);
    assert!(results[0].contains("first") && results[3].contains("last"), "{results:?}");
    assert!(results[1].contains("INVALID_PATH"), "{}", results[1]);
    assert!(results[2].contains("APPROVAL_DENIED") && !results[2].contains("SECRET"), "{}", results[2]);
}

/// A call that is under way when the run is cancelled ends with an error, as does the one after the group.
#[tokio::test]
async fn a_cancelled_group_has_one_result_for_each_call() {
    // One more than there are calls: nothing ends by itself.
    let barrier = Arc::new(Barrier::new(3));
    let shared = Arc::clone(&barrier);
    let meet = |name: &str| json!({"name": "meet", "arguments": {"name": name}});
    let late = json!({"name": "write_file", "arguments": {"path": "late", "content": ""}});
    let extra = Box::new(move |registry: &mut ToolRegistry| {
        registry.register(MeetTool(shared), [ToolBinding::standard::<MeetArgs, MeetReply>("meet")]).unwrap();
    });
    let setup = AgentSetup { extra: Some(extra), ..AgentSetup::default() };
    let mut world = AgentFixture::new(setup, &[json!({"calls": [meet("a"), meet("b"), late]}), text("again")]);
    let (cancel, observer) = (CancellationToken::new(), Arc::clone(&world.observer));
    let (outcome, ()) = tokio::join!(world.prompt_until("go", &cancel), async {
        observer.wait_for("call meet").await;
        cancel.cancel();
    });
    assert_ended(&outcome, "cancelled");
    let results = world.results();
    assert_eq!(results.len(), 3);
    assert!(results.iter().all(|result| result.contains("CANCELLED")), "{results:?}");
    assert!(results[2].contains("not made"), "{}", results[2]);
    assert_eq!(world.file("late"), None);
    // The workers end.
    barrier.wait();
    assert!(is_answered(&world.prompt("go on").await));
}
