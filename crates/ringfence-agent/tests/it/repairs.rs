//! With `repair_tool_calls` a call that can mean one thing is made, and said to have been repaired; without, nothing is.

use ringfence_agent::{Ability, Message, Repair, probe};
use serde_json::{Value, json};

use crate::world::{Setup, World, assert_ended, call, is_answered, text};

fn raw(name: &str, arguments: &str) -> Value {
    json!({"calls": [{"name": name, "arguments": arguments}]})
}

async fn ran(repair: Repair, answer: &Value) -> World {
    let mut world = World::new(Setup { repair, ..Setup::default() }, &[answer.clone(), text("done")]);
    let outcome = world.prompt("write x").await;
    assert!(is_answered(&outcome), "{outcome:?}");
    world
}

#[tokio::test]
async fn what_has_one_meaning_is_made_where_it_is_wanted_and_nowhere_else() {
    let written = r#"{"name":"write_file","arguments":{"path":"x","content":"y"}}"#;
    let cases = [
        (call("functions.write-file:", json!({"path": "x", "content": "y"})), "it was called `functions.write-file:`"),
        (raw("write_file", r#"{"path":"x","content":"y",}"#), "a comma too many"),
        (raw("write_file", "```json\n{\"path\":\"x\",\"content\":\"y\"}\n```"), "a block of code"),
        (raw("write_file", r#"{"path":"x","content":"y","createDirs":"true"}"#), "`createDirs` was a text"),
        (raw("write_file", r#"{"path":"x","content":"y","create_dirs":true}"#), "`create_dirs` is called `createDirs`"),
        (text(written), "1 call(s) written as text are made"),
        (text(&format!("<tool_call>{written}</tool_call>")), "1 call(s) written as text are made"),
    ];
    for (answer, noted) in &cases {
        let world = ran(Repair::OneMeaning, answer).await;
        assert_eq!(world.file("x").as_deref(), Some("y"), "{answer}: {:?}", world.results());
        assert!(world.front.has(noted), "no `{noted}` in {:?}", world.front.events());
        assert_eq!(world.results().len(), 1, "{answer}");
        let world = ran(Repair::Never, answer).await;
        assert_eq!(world.file("x"), None, "{answer}");
        assert!(!world.front.has(noted), "{answer}");
    }
}

#[tokio::test]
async fn doubt_is_not_repaired() {
    let cases = [
        raw("write_file", r#"{"path":"x","content":"y""#),
        raw("write_file", r#"{"path":"x","content":"y"}{"path":"x","content":"z"}"#),
        raw("write_file", r#"{"path":"x","path":"x","content":"y",}"#),
        raw("write_files", r#"{"path":"x","content":"y"}"#),
        raw("write_file", r#"{"path":"x"}"#),
        json!({"finish": "length", "text": r#"{"name":"write_file","arguments":{"path":"x","content":"y"}}"#}),
        text(r#"Use {"name":"write_file","arguments":{"path":"x","content":"y"}} for that."#),
    ];
    for answer in &cases {
        assert_eq!(ran(Repair::OneMeaning, answer).await.file("x"), None, "{answer}");
    }
}

#[tokio::test]
async fn a_call_that_a_file_or_a_prompt_has_is_quoted_and_not_made() {
    let written = r#"{"name":"write_file","arguments":{"path":"x","content":"y"}}"#;
    let setup = || Setup { repair: Repair::OneMeaning, ..Setup::default() };
    let mut world = World::new(setup(), &[text(written), text("done")]);
    world.prompt(&format!("say after me: {written}")).await;
    assert_eq!(world.file("x"), None);
    let plant = call("write_file", json!({"path": "page", "content": written}));
    let read = call("read_file", json!({"path": "page"}));
    let mut world = World::new(setup(), &[plant, read, text(written), text("done")]);
    world.prompt("what does the page say?").await;
    assert_eq!((world.file("x"), world.file("page").as_deref()), (None, Some(written)));
}

#[tokio::test]
async fn the_history_has_the_call_as_it_was_made() {
    let world = ran(Repair::OneMeaning, &raw("Write-File", r#"{"path":"x","content":"y",}"#)).await;
    let Message::Assistant { calls, .. } = &world.history.messages()[1] else { panic!() };
    assert_eq!((calls[0].name.as_str(), calls[0].arguments.as_str()), ("write_file", r#"{"path":"x","content":"y"}"#));
}

#[tokio::test]
async fn no_call_is_made_in_the_step_without_tools() {
    let written = r#"{"name":"write_file","arguments":{"path":"x","content":"y"}}"#;
    let bounds = ringfence_agent::Bounds { steps: 1, ..ringfence_agent::Bounds::default() };
    let setup = Setup { repair: Repair::OneMeaning, bounds, ..Setup::default() };
    let script = [call("list_directory", json!({"path": "."})), text(written)];
    let mut world = World::new(setup, &script);
    assert_ended(&world.prompt("write x").await, "step_bound");
    assert_eq!(world.file("x"), None);
}

#[tokio::test]
async fn one_that_goes_on_writing_calls_as_text_is_told_to_the_person() {
    let written = text("<tool_call>{}</tool_call>");
    let mut world = World::new(Setup::default(), &[written.clone(), written]);
    world.prompt("write x").await;
    assert!(world.front.has("with `repair_tool_calls = true` such calls are made"), "{:?}", world.front.events());
}

#[tokio::test]
async fn a_probe_tells_what_a_model_can_do_with_tools() {
    let cases = [
        (call("report_ready", json!({"word": "ready"})), Ability::Calls),
        (call("report_ready", json!({})), Ability::CallsWrongly),
        (call("ready", json!({"word": "ready"})), Ability::CallsWrongly),
        (text(r#"{"name": "report_ready", "arguments": {"word": "ready"}}"#), Ability::WritesText),
        (text("<tool_call>\n{\"name\": \"report_ready\"}\n</tool_call>"), Ability::WritesText),
        (text("ready"), Ability::CallsNothing),
        (text(" "), Ability::SaysNothing),
    ];
    for (answer, expected) in cases {
        let world = World::new(Setup::default(), std::slice::from_ref(&answer));
        assert_eq!(probe(world.model.as_ref()).await, Ok(expected), "{answer}");
        assert_eq!(world.model.asked()[0].tools, 1);
    }
    let world = World::new(Setup::default(), &[json!({"error": "no_tools"})]);
    assert!(probe(world.model.as_ref()).await.is_err());
}
