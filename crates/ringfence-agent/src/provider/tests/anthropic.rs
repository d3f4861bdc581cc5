//! Anthropic response bodies as servers write them. Each is read whole and cut at every byte.

use expect_test::{Expect, expect};

use super::{check, read_anthropic};

/// Events, named by their type.
fn stream(events: &[&str]) -> String {
    let kind = |event: &str| {
        let value: serde_json::Value = serde_json::from_str(event).unwrap();
        value["type"].as_str().unwrap().to_owned()
    };
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", kind(event))).collect()
}

const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"tiny","content":[],"stop_reason":null,"usage":{"input_tokens":10,"cache_creation_input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;

fn message_delta(reason: &str) -> String {
    format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{"output_tokens":20}}}}"#
    )
}

#[track_caller]
fn assert_reads(body: &str, expected: Expect) {
    check(read_anthropic, body.as_bytes(), expected);
}

#[test]
fn text_thinking_and_calls_come_in_pieces() {
    assert_reads(
        &stream(&[
            START,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"I look. 👍"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"fs-list","input":{}}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"path\": "}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"\".\"}"}}"#,
            r#"{"type":"content_block_stop","index":2}"#,
            r#"{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_1","name":"read_file","input":{}}}"#,
            &message_delta("tool_use"),
            STOP,
        ]),
        expect![[r#"
            Calls
            text "I look. 👍"
            reasoning "hm"
            call toolu_1 fs.list {"path": "."}
            call call_1 read_file {}
            usage 17 + 20 = 37, 0 4 3
            odd: a call with the id toolu_1 was given the id call_1"#]],
    );
}

#[test]
fn a_message_may_come_whole() {
    assert_reads(
        r#"{"id":"msg_1","type":"message","role":"assistant","model":"tiny-2","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"I look."},{"type":"tool_use","id":"a","name":"read_file","input":{"path":"a", "path":"b"}},{"type":"server_tool_use","id":"b"}],"stop_reason":"tool_use","usage":{"input_tokens":10,"output_tokens":20}}"#,
        expect![[r#"
            Calls
            text "I look."
            reasoning "hm"
            call a read_file {"path":"a", "path":"b"}
            usage 10 + 20 = 30, 0 0 0
            served by tiny-2
            odd: a block of the kind `server_tool_use` was ignored"#]],
    );
}

#[test]
fn reasons_to_stop_are_told() {
    for reason in ["end_turn", "stop_sequence"] {
        assert_reads(
            &stream(&[START, &message_delta(reason), STOP]),
            expect![[r#"
            Stop
            usage 17 + 20 = 37, 0 4 3"#]],
        );
    }
    assert_reads(
        &stream(&[START, &message_delta("max_tokens"), STOP]),
        expect![[r#"
        Length
        usage 17 + 20 = 37, 0 4 3"#]],
    );
    assert_reads(
        &stream(&[START, &message_delta("pause_turn"), STOP]),
        expect![[r#"
        Other("pause_turn")
        usage 17 + 20 = 37, 0 4 3"#]],
    );
}

#[test]
fn refusals_are_told() {
    assert_reads(
        &stream(&[START, &message_delta("refusal"), STOP]),
        expect![[r#"
        Refusal
        usage 17 + 20 = 37, 0 4 3"#]],
    );
}

#[test]
fn calls_beyond_the_bound_are_counted() {
    let begin = |index: usize| {
        format!(
            r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"c{index}","name":"read_file","input":{{}}}}}}"#
        )
    };
    let piece = |index: usize| {
        format!(
            r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"input_json_delta","partial_json":"{{\"path\":1}}"}}}}"#
        )
    };
    let mut events = vec![START.to_owned()];
    events.extend((0..200).flat_map(|index| [begin(index), piece(index)]));
    events.extend([message_delta("tool_use"), STOP.to_owned()]);
    let body = stream(&events.iter().map(String::as_str).collect::<Vec<_>>());
    let answer = read_anthropic(&[body.as_bytes()]).unwrap();
    assert_eq!((answer.calls.len(), answer.calls_dropped), (64, 136));
    assert!(answer.calls.iter().all(|call| call.arguments == r#"{"path":1}"#));
}

#[test]
fn an_error_in_a_stream_is_an_error() {
    let error = |kind: &str| format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"No."}}}}"#);
    assert_reads(
        &stream(&[START, &error("overloaded_error")]),
        expect!["Busy { retry_after: None }: the server sent an error: No."],
    );
    assert_reads(&stream(&[&error("api_error")]), expect!["Server: the server sent an error: No."]);
    assert_reads(&error("rate_limit_error"), expect!["Busy { retry_after: None }: the server sent an error: No."]);
    assert_reads(
        &error("authentication_error"),
        expect!["Denied: the server sent an error: No.; check this provider's API key and its permissions"],
    );
    assert_reads(
        &error("not_found_error"),
        expect!["NoSuchModel: the server sent an error: No.; check the name of the model and the base URL"],
    );
    assert_reads(&error("invalid_request_error"), expect!["BadRequest: the server sent an error: No."]);
}

#[test]
fn without_a_reason_nothing_counts() {
    let call = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"read_file","input":{}}}"#;
    assert_reads(
        &stream(&[START, call]),
        expect!["Cut: the answer ended before the model finished, and was discarded"],
    );
    assert_reads(
        &stream(&[START, call, STOP]),
        expect!["Cut: the answer ended before the model finished, and was discarded"],
    );
    assert_reads(
        &format!("{}data: {{\"type\":\"mess", stream(&[START])),
        expect!["Cut: the answer ended before the model finished, and was discarded"],
    );
    assert_reads(
        &format!("{}data: junk\n\n", stream(&[START])),
        expect!["Cut: the answer ended at an event that cannot be parsed (expected value at line 1 column 1): `junk`"],
    );
    assert_reads(
        r#"{"type":"message","content":[{"type":"text","text":"hi"}],"stop_reason":null}"#,
        expect!["Cut: the answer ended before the model finished, and was discarded"],
    );
    assert_reads(r#"{"type":"message","content":[{"type":"te"#, expect!["Cut: the answer is truncated JSON"]);
    assert_reads(
        r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#,
        expect![[
            r#"Garbled: answered with JSON that is not a message: `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}`; is this the URL of a model API?"#
        ]],
    );
}

#[test]
fn pieces_that_fit_nowhere_are_odd() {
    assert_reads(
        &stream(&[
            r#"{"type":"content_block_delta","index":7,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#,
            r#"{"type":"brand_new_event","x":1}"#,
            &message_delta("end_turn"),
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" more"}}"#,
        ]),
        expect![[r#"
            Stop
            text "hi"
            usage 0 + 20 = 20, 0 0 0
            odd: arguments of a call that never started were ignored
            odd: text after the end was ignored"#]],
    );
}
