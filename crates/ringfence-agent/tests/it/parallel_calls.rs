//! Calls of one answer: those that only read are made at the same time, the others in order.

use std::sync::{Arc, Barrier};

use ringfence_kernel::{
    CallContext, PolicyAction, PolicyResource, Preview, ResourceAccess, Ticket, Tool, ToolBinding, ToolError, ToolPlan,
    ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fixture::{AgentFixture, AgentSetup, text};

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
    let setup = AgentSetup { preset: ringfence_kernel::Preset::Edits, ..AgentSetup::default() };
    let mut world = AgentFixture::new(setup, &[calls, text("done")]);
    world.write("a.txt", "old");
    world.prompt("go").await;
    let results = world.results();
    assert!(results[0].contains("old") && results[2].contains("new"), "{results:?}");
}
