//! Model misbehaviours: a script, the end of the run, and the host's notes to the model.

use ringfence_agent::{AgentLimits, TranscriptMessage};
use ringfence_kernel::{Dialect, Preset};
use serde_json::{Value, json};

use crate::fixture::{AgentFixture, AgentSetup, assert_ended, call, is_answered, read, text, write};

/// One row.
struct MisbehaviourCase {
    name: &'static str,
    script: Vec<Value>,
    stop_reason: &'static str,
    /// Parts of the results, in their order.
    results: &'static [&'static str],
    /// A note of the host, to the model or about it.
    expected_note: &'static str,
}

fn cases() -> Vec<MisbehaviourCase> {
    let row = |what, script, end, results, noted| MisbehaviourCase {
        name: what,
        script,
        stop_reason: end,
        results,
        expected_note: noted,
    };
    let raw = |arguments: &str| json!({"calls": [{"name": "write_file", "arguments": arguments}]});
    let done = || text("done");
    vec![
        row("malformed arguments", vec![raw(r#"{"path": "x"#), done()], "answered", &["INVALID_ARGS"], ""),
        row(
            "two objects in one",
            vec![raw(r#"{"path":"x","content":"1"}{"path":"y","content":"2"}"#), done()],
            "answered",
            &["INVALID_ARGS"],
            "",
        ),
        row("no arguments", vec![raw("  "), done()], "answered", &["missing field `path`"], ""),
        row(
            "a number as a text",
            vec![raw(r#"{"path": 3, "content": "x"}"#), done()],
            "answered",
            &["INVALID_ARGS"],
            "",
        ),
        row(
            "a key twice",
            vec![raw(r#"{"path":"x","path":"y","content":"z"}"#), done()],
            "answered",
            &["duplicate field"],
            "",
        ),
        row(
            "deep nesting",
            vec![raw(&format!(r#"{{"path":"x","content":{}"#, "[".repeat(100_000))), done()],
            "answered",
            &["INVALID_ARGS"],
            "",
        ),
        row("arguments that are a list", vec![raw("[1]"), done()], "answered", &["must be a JSON object"], ""),
        row(
            "a name that is nearly right",
            vec![call("write-file", json!({"path": "x", "content": "y"})), done()],
            "answered",
            &["did you mean `write_file`?"],
            "",
        ),
        row(
            "a name in another case",
            vec![call("Write_File", json!({"path": "x", "content": "y"})), done()],
            "answered",
            &["UNKNOWN_TOOL"],
            "",
        ),
        row(
            "a name with something before it",
            vec![call("functions.write_file:", json!({"path": "x", "content": "y"})), done()],
            "answered",
            &["UNKNOWN_TOOL"],
            "",
        ),
        row("no name", vec![call("", json!({})), done()], "answered", &["UNKNOWN_TOOL"], ""),
        row(
            "a call as text",
            vec![
                text("```json\n{\"name\":\"write_file\",\"arguments\":{\"path\":\"x\",\"content\":\"y\"}}\n```"),
                done(),
            ],
            "answered",
            &[],
            "which is never executed",
        ),
        row(
            "a call as text, again and again",
            vec![text("<tool_call>{}</tool_call>"), text("<tool_call>{}</tool_call>")],
            "answered",
            &[],
            "which is never executed",
        ),
        row("an empty answer", vec![text(""), done()], "answered", &[], "your answer was empty"),
        row("two empty answers", vec![text(" "), text("")], "empty_response", &[], "your answer was empty"),
        row(
            "only reasoning",
            vec![json!({"reasoning": "hm"}), json!({"reasoning": "hm, hm"})],
            "empty_response",
            &[],
            "",
        ),
        row("a refusal", vec![json!({"refusal": "I will not"})], "refusal", &[], ""),
        row("a refusal by its finish", vec![json!({"text": "no", "finish": "refusal"})], "refusal", &[], ""),
        row("a filter", vec![json!({"text": "As", "finish": "filter"})], "content_filter", &[], ""),
        row(
            "a filter with a call",
            vec![
                json!({"finish": "filter", "calls": [{"name": "write_file", "arguments": {"path": "x", "content": ""}}]}),
            ],
            "content_filter",
            &[],
            "",
        ),
        row(
            "cut by length in a call",
            vec![
                json!({"finish": "length", "calls": [{"name": "write_file", "arguments": {"path": "x", "content": ""}}]}),
                done(),
            ],
            "answered",
            &[],
            "no call in it was made",
        ),
        row(
            "cut by length, twice",
            vec![json!({"text": "a long", "finish": "length"}), json!({"text": "still long", "finish": "length"})],
            "length",
            &[],
            "no call in it was made",
        ),
        row("an unknown finish", vec![json!({"text": "hi", "finish": "eos_token"})], "answered", &[], ""),
        row("said to have calls, and has none", vec![json!({"text": "hi", "finish": "calls"})], "answered", &[], ""),
        row(
            "calls, and said to have stopped",
            vec![json!({"finish": "stop", "calls": [{"name": "list_directory", "arguments": {"path": "."}}]}), done()],
            "answered",
            &["\"ok\":true"],
            "",
        ),
        row(
            "text and calls",
            vec![json!({"text": "I look", "calls": [{"name": "list_directory", "arguments": {"path": "."}}]}), done()],
            "answered",
            &["\"ok\":true"],
            "",
        ),
        row(
            "the same call three times",
            vec![read("no"), read("no"), read("no"), done()],
            "repeated_call",
            &["FILE_NOT_FOUND", "FILE_NOT_FOUND", "FILE_NOT_FOUND"],
            "3 times in a row",
        ),
        row(
            "the same call three times in one answer",
            vec![
                json!({"calls": [
                    {"name": "read_file", "arguments": {"path": "no"}}, {"name": "read_file", "arguments": {"path": "no"}},
                    {"name": "read_file", "arguments": {"path": "no"}}, {"name": "list_directory", "arguments": {"path": "."}},
                ]}),
                done(),
            ],
            "answered",
            &["FILE_NOT_FOUND", "FILE_NOT_FOUND", "FILE_NOT_FOUND", "\"ok\":true"],
            "",
        ),
        row(
            "the same call twice in each of three answers",
            vec![
                json!({"calls": [
                    {"name": "read_file", "arguments": {"path": "no"}}, {"name": "read_file", "arguments": {"path": "no"}},
                ]}),
                read("no"),
                read("no"),
                done(),
            ],
            "repeated_call",
            &["FILE_NOT_FOUND", "FILE_NOT_FOUND", "FILE_NOT_FOUND", "FILE_NOT_FOUND"],
            "3 times in a row",
        ),
        row(
            "two calls in turn",
            vec![read("a"), read("b"), read("a"), read("b"), done()],
            "repeated_call",
            &["FILE_NOT_FOUND", "FILE_NOT_FOUND", "FILE_NOT_FOUND", "FILE_NOT_FOUND"],
            "alternately",
        ),
        row(
            "no ids, and one id twice",
            vec![
                json!({"calls": [
                    {"id": "", "name": "list_directory", "arguments": {"path": "."}}, {"id": "a", "name": "read_file", "arguments": {"path": "no"}},
                    {"id": "a", "name": "list_directory", "arguments": {"path": "."}},
                ]}),
                done(),
            ],
            "answered",
            &["\"ok\":true", "FILE_NOT_FOUND", "\"ok\":true"],
            "had no unique id; it was given `call-1-3`",
        ),
        row(
            "an id that would steer a log",
            vec![
                json!({"calls": [{"id": "a\n\u{1b}[2J", "name": "list_directory", "arguments": {"path": "."}}]}),
                done(),
            ],
            "answered",
            &["\"ok\":true"],
            "",
        ),
        row(
            "out of the workspace",
            vec![read("../secret"), read("/etc/passwd"), read("~/x"), done()],
            "answered",
            &["INVALID_PATH", "INVALID_PATH", ""],
            "",
        ),
        row(
            "more calls than were passed on",
            vec![
                json!({"calls": [{"name": "list_directory", "arguments": {"path": "."}}], "calls_dropped": 136}),
                done(),
            ],
            "answered",
            &["\"ok\":true"],
            "too_many_calls: 136",
        ),
    ]
}

#[tokio::test]
async fn every_misbehaviour_has_its_right_outcome() {
    for row in cases() {
        let mut world = AgentFixture::new(AgentSetup::default(), &row.script);
        let outcome = world.prompt("do it").await;
        assert_eq!(outcome.stop_reason.name(), row.stop_reason, "{}: {outcome:?}", row.name);
        let results = world.results();
        assert_eq!(results.len(), row.results.len(), "{}: {results:?}", row.name);
        for (result, expected) in results.iter().zip(row.results) {
            assert!(result.contains(expected), "{}: no `{expected}` in {result}", row.name);
        }
        assert!(
            world.observer.has_event(row.expected_note),
            "{}: no `{}` in {:?}",
            row.name,
            row.expected_note,
            world.observer.events()
        );
        assert_eq!(world.file("x"), None, "{}: something was run on doubt", row.name);
        assert!(!outcome.ledger.has_changes(), "{}", row.name);
    }
}

#[tokio::test]
async fn two_hundred_calls_are_capped_and_each_has_a_result() {
    let one = |number: usize| json!({"name": "write_file", "arguments": {"path": format!("f{number}"), "content": ""}});
    let many: Vec<Value> = (0..200).map(one).collect();
    let mut world = AgentFixture::new(AgentSetup::default(), &[json!({ "calls": many }), text("done")]);
    let outcome = world.prompt("go").await;
    assert!(is_answered(&outcome));
    let results = world.results();
    assert_eq!(results.len(), 200);
    assert_eq!(results.iter().filter(|text| text.contains("too_many_calls")).count(), 136);
    assert_eq!(outcome.ledger.files.len(), 64);
    assert_eq!(outcome.ledger.commands.len(), 0);
}

#[tokio::test]
async fn denials_are_counted_and_stop_the_run() {
    let script: Vec<Value> = (0..9).map(|number| write(&format!("f{number}"), "x")).collect();
    let bounds = AgentLimits { steps: 20, denials: 4, ..AgentLimits::default() };
    let mut world =
        AgentFixture::new(AgentSetup { preset: Preset::ReadOnly, bounds, ..AgentSetup::default() }, &script);
    let outcome = world.prompt("write").await;
    assert_ended(&outcome, "too_many_denials");
    assert_eq!((outcome.steps, outcome.ledger.denied.len()), (4, 4));
    assert!(outcome.by_host && outcome.text.contains("no files changed"), "{}", outcome.text);
}

#[tokio::test]
async fn calls_that_are_none_are_counted_in_a_row() {
    let bad = |number: usize| call(&format!("no_such_{number}"), json!({}));
    let bounds = AgentLimits { steps: 20, bad_answers: 3, ..AgentLimits::default() };
    let script = [bad(1), bad(2), read("x"), bad(3), bad(4), bad(5), text("never")];
    let mut world = AgentFixture::new(AgentSetup { bounds, ..AgentSetup::default() }, &script);
    let outcome = world.prompt("go").await;
    assert_ended(&outcome, "invalid_calls");
    assert_eq!(outcome.steps, 6);
}

#[tokio::test]
async fn a_run_ends_only_after_the_model_saw_what_was_wrong() {
    // Each makes as many bad calls in its first answer as would end a run, and does better once it saw that.
    let invalid = |number: usize| json!({"name": "read_file", "arguments": {"paths": number}});
    let denied =
        |number: usize| json!({"name": "write_file", "arguments": {"path": format!("f{number}"), "content": ""}});
    for preset in [Preset::Edits, Preset::ReadOnly] {
        let many: Vec<Value> =
            (0..12).map(|number| if preset == Preset::Edits { invalid(number) } else { denied(number) }).collect();
        let script = [json!({ "calls": many }), text("I see")];
        let mut world = AgentFixture::new(AgentSetup { preset, ..AgentSetup::default() }, &script);
        let outcome = world.prompt("go").await;
        assert!(is_answered(&outcome), "{outcome:?}");
        assert_eq!((outcome.text.as_str(), world.results().len()), ("I see", 12));
    }
}

#[tokio::test]
async fn no_arguments_are_none_however_a_model_writes_that() {
    for written in [json!(null), json!(""), json!(" "), json!("null"), json!({})] {
        let script = [json!({"calls": [{"name": "list_directory", "arguments": written}]}), text("done")];
        let mut world = AgentFixture::new(AgentSetup { dialect: Dialect::Standard, ..AgentSetup::default() }, &script);
        assert!(is_answered(&world.prompt("go").await));
        let result = &world.results()[0];
        assert!(!result.contains("must be a JSON object") && !result.contains("not valid JSON"), "{written}: {result}");
    }
    // Half a character is refused, with a message.
    let script = [json!({"calls": [{"name": "read_file", "arguments": "{\"path\":\"\\ud83d\"}"}]}), text("done")];
    let mut world = AgentFixture::new(AgentSetup::default(), &script);
    assert!(is_answered(&world.prompt("go").await));
    assert!(world.results()[0].contains("INVALID_ARGS"), "{:?}", world.results());
}

#[tokio::test]
async fn a_person_can_let_it_go_on() {
    let script = [read("a"), read("a"), read("a"), read("a"), text("found nothing")];
    let mut world = AgentFixture::new(AgentSetup { confirm_continue: Some(true), ..AgentSetup::default() }, &script);
    let outcome = world.prompt("look").await;
    assert!(is_answered(&outcome));
    assert!(world.observer.has_event("asked `read_file` was called 3 times"));
    let mut world = AgentFixture::new(AgentSetup { confirm_continue: Some(false), ..AgentSetup::default() }, &script);
    assert_ended(&world.prompt("look").await, "repeated_call");
}

#[tokio::test]
async fn a_transient_note_is_not_kept() {
    let mut world = AgentFixture::new(AgentSetup::default(), &[text(""), text("hello")]);
    assert!(is_answered(&world.prompt("hi").await));
    let asked = world.model.recorded();
    let TranscriptMessage::User { text } = &asked[1].messages[0] else { panic!() };
    assert!(text.starts_with("hi\n\n[ringfence: your answer was empty"), "{text}");
    assert_eq!(world.history.messages()[0], TranscriptMessage::User { text: "hi".to_owned() });
    assert_eq!(world.history.messages().len(), 2);
}

#[tokio::test]
async fn every_dialect_says_errors_in_its_own_words() {
    for (dialect, tool, expected) in [
        (Dialect::Miniclaw, "read-file", "tool not found: read-file. Available tools: read_file"),
        (Dialect::Crewagent, "fs_read", "TOOL_NOT_AVAILABLE"),
    ] {
        let script = [call(tool, json!({"path": "a"})), text("done")];
        let mut world = AgentFixture::new(AgentSetup { dialect, ..AgentSetup::default() }, &script);
        assert!(is_answered(&world.prompt("go").await));
        assert!(world.results()[0].contains(expected), "{:?}", world.results());
    }
}
