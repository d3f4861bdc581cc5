//! Tool definitions on demand: the core tools first, the others when the model asks for them or calls them.

use ringfence_agent::{LOAD_TOOLS, ToolLoading};
use ringfence_kernel::Dialect;
use serde_json::{Value, json};

use crate::fixture::{AgentFixture, AgentSetup, call, is_answered, text};

const CORE: [&str; 6] = ["read_file", "write_file", "list_directory", "edit_file", "find_files", "search_files"];

fn fixture(script: &[Value]) -> AgentFixture {
    AgentFixture::new(AgentSetup { tool_loading: ToolLoading::CoreFirst, ..AgentSetup::default() }, script)
}

/// The tools of each request.
fn sent(world: &AgentFixture) -> Vec<Vec<String>> {
    world.model.recorded().into_iter().map(|request| request.tools).collect()
}

#[tokio::test]
async fn the_first_request_has_the_core_tools_and_the_tool_that_loads_others() {
    let mut world = fixture(&[text("done")]);
    world.prompt("go").await;
    let expected: Vec<&str> = CORE.into_iter().chain([LOAD_TOOLS]).collect();
    assert_eq!(sent(&world), [expected]);
}

#[tokio::test]
async fn a_list_names_the_others_and_loads_nothing() {
    let mut world = fixture(&[call(LOAD_TOOLS, json!({})), text("done")]);
    world.prompt("go").await;
    let list = &world.results()[0];
    assert!(list.contains("delete_file: Delete a file or a directory.\n"), "{list}");
    assert!(CORE.iter().all(|name| !list.contains(&format!("{name}:"))), "{list}");
    assert_eq!(sent(&world)[0], sent(&world)[1]);
}

#[tokio::test]
async fn a_loaded_tool_is_sent_from_then_on_also_with_the_next_prompt() {
    let load = call(LOAD_TOOLS, json!({"names": ["delete_file", "read_file"]}));
    let delete = call("delete_file", json!({"path": "a.txt"}));
    let mut world = fixture(&[load, delete, text("done"), text("again")]);
    world.write("a.txt", "old");
    assert!(is_answered(&world.prompt("go").await));
    let results = world.results();
    assert!(results[0].contains("\"parameters\"") && results[0].contains("\"name\":\"delete_file\""), "{}", results[0]);
    assert_eq!(world.file("a.txt"), None, "{results:?}");
    world.prompt("and now?").await;
    let has = |tools: &Vec<String>| tools.iter().any(|name| name == "delete_file");
    assert_eq!(sent(&world).iter().map(has).collect::<Vec<_>>(), [false, true, true, true]);
    assert!(sent(&world).iter().all(|tools| !tools.contains(&"move_file".to_owned())));
}

#[tokio::test]
async fn a_tool_that_is_called_without_being_loaded_works_and_is_sent() {
    let mut world = fixture(&[call("create_directory", json!({"path": "made"})), text("done")]);
    world.prompt("go").await;
    assert!(world.root.join("made").is_dir());
    assert!(sent(&world)[1].contains(&"create_directory".to_owned()));
}

#[tokio::test]
async fn an_unknown_name_is_refused_with_the_way_to_the_list() {
    let script = [
        call(LOAD_TOOLS, json!({"names": ["no_such_tool"]})),
        call(LOAD_TOOLS, json!({"names": [LOAD_TOOLS]})),
        call(LOAD_TOOLS, json!({"tools": ["undo"]})),
        text("done"),
    ];
    let mut world = fixture(&script);
    world.prompt("go").await;
    for result in world.results() {
        assert!(result.contains("INVALID_ARGS"), "{result}");
    }
    assert!(world.results()[0].contains("call load_tools without names"), "{:?}", world.results());
    assert_eq!(sent(&world)[0], sent(&world)[2]);
}

#[tokio::test]
async fn a_small_catalog_and_a_script_get_all_tools_at_once() {
    for (dialect, loading) in [
        (Dialect::Claude, ToolLoading::CoreFirst),
        (Dialect::Codex, ToolLoading::CoreFirst),
        (Dialect::Miniclaw, ToolLoading::CoreFirst),
        (Dialect::Standard, ToolLoading::All),
    ] {
        let setup = AgentSetup { dialect, tool_loading: loading, ..AgentSetup::default() };
        let mut world = AgentFixture::new(setup, &[call(LOAD_TOOLS, json!({})), text("done")]);
        world.prompt("go").await;
        let all: Vec<String> = world.agent.session.catalog.list().map(|tool| tool.name.to_string()).collect();
        assert_eq!(sent(&world)[0], all, "{dialect:?}");
        // Nothing waits, so there is no such tool.
        assert!(world.observer.has_event("result load_tools Some(UnknownTool)"), "{dialect:?}");
    }
}
