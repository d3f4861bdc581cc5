//! Chat completion bodies as servers write them, right and wrong. Each is read whole and cut at every byte.

use expect_test::{Expect, expect};

use super::{check, read_openai};

/// A stream of these events and the end.
pub(super) fn stream(chunks: &[&str]) -> String {
    let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    format!("{events}data: [DONE]\n\n")
}

/// A stream of these pieces of the first choice, then the reason to stop.
pub(super) fn pieces(deltas: &[&str], finish: &str) -> String {
    let mut chunks: Vec<String> =
        deltas.iter().map(|delta| format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#)).collect();
    chunks.push(format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{finish}"}}]}}"#));
    stream(&chunks.iter().map(String::as_str).collect::<Vec<_>>())
}

#[track_caller]
pub(super) fn assert_reads(body: &str, expected: Expect) {
    check(read_openai, body.as_bytes(), expected);
}

#[test]
fn text_comes_in_pieces_or_whole() {
    assert_reads(
        &pieces(&[r#"{"role":"assistant","content":"Hel"}"#, r#"{"content":"lo 👍"}"#], "stop"),
        expect![[r#"
        Stop
        text "Hello 👍""#]],
    );
    assert_reads(
        r#"{"choices":[{"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}]}"#,
        expect![[r#"
        Stop
        text "Hello""#]],
    );
    assert_reads(
        &pieces(
            &[
                r#"{"content":[{"type":"text","text":"a"},{"type":"image"},{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}"#,
            ],
            "stop",
        ),
        expect![[r#"
            Stop
            text "a"
            reasoning "hm"
            odd: content that is not text was ignored"#]],
    );
}

#[test]
fn a_cut_by_length_is_said() {
    assert_reads(
        &pieces(
            &[r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"read_file","arguments":"{\"pa"}}]}"#],
            "length",
        ),
        expect![[r#"
            Length
            call a read_file {"pa"#]],
    );
}

#[test]
fn an_empty_answer_is_one() {
    assert_reads(&pieces(&[], "stop"), expect!["Stop"]);
    assert_reads(r#"{"choices":[{"message":{"content":null},"finish_reason":"stop"}]}"#, expect!["Stop"]);
}

#[test]
fn reasoning_is_kept_apart() {
    assert_reads(
        &pieces(
            &[r#"{"reasoning_content":"hm, ","reasoning":"hm, "}"#, r#"{"reasoning":"well","content":""}"#],
            "stop",
        ),
        expect![[r#"
            Stop
            reasoning "hm, well""#]],
    );
}

#[test]
fn refusals_are_told() {
    assert_reads(
        &pieces(&[r#"{"refusal":"I can"}"#, r#"{"refusal":"not"}"#], "stop"),
        expect![[r#"
        Refusal
        refusal "I cannot""#]],
    );
    assert_reads(
        &pieces(&[r#"{"content":"no"}"#], "refusal"),
        expect![[r#"
        Refusal
        text "no""#]],
    );
    assert_reads(
        &pieces(&[r#"{"content":"no"}"#], "content_filter"),
        expect![[r#"
        Filter
        text "no""#]],
    );
}

#[test]
fn an_error_in_disguise_is_an_error() {
    assert_reads(
        r#"{"error":{"message":"model crashed","type":"server_error"}}"#,
        expect!["Server: the server sent an error: model crashed"],
    );
    assert_reads(
        r#"{"error":{"message":"Rate limited","code":429}}"#,
        expect!["Busy { retry_after: None }: the server sent an error: Rate limited"],
    );
    assert_reads(
        r#"{"object":"error","message":"This model's maximum context length is 8 tokens"}"#,
        expect![
            "TooLong: the server sent an error: This model's maximum context length is 8 tokens; the conversation exceeds the model's context length"
        ],
    );
    assert_reads(r#"{"detail":"Not authenticated"}"#, expect!["Server: the server sent an error: Not authenticated"]);
    assert_reads(
        &stream(&[r#"{"choices":[{"delta":{"content":"a"}}]}"#, r#"{"error":{"message":"overloaded","code":"502"}}"#]),
        expect!["Server: the server sent an error: overloaded"],
    );
    assert_reads(
        "event: error\ndata: {\"message\":\"it broke\"}\n\n",
        expect!["Server: the server sent an error: it broke"],
    );
    assert_reads("event: error\ndata: it broke\n\n", expect!["Server: the server sent an error: it broke"]);
    assert_reads(
        &stream(&[
            r#"{"choices":[{"delta":{"content":""},"finish_reason":"error","error":{"code":502,"message":"gone"}}]}"#,
        ]),
        expect!["Server: the server sent an error: gone"],
    );
    assert_reads(
        &pieces(&[r#"{"content":"half"}"#], "error"),
        expect!["Server: the server failed while the model was answering"],
    );
}

#[test]
fn without_a_finish_nothing_counts() {
    let call = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read_file","arguments":"{}"}}]}}]}"#;
    assert_reads(&stream(&[call]), expect!["Cut: the answer ended before the model finished, and was discarded"]);
    assert_reads(
        &format!("data: {call}\n\n"),
        expect!["Cut: the answer ended before the model finished, and was discarded"],
    );
    assert_reads(
        &format!("data: {call}\n\ndata: {{\"choices\":[{{\"finish_rea"),
        expect!["Cut: the answer ended before the model finished, and was discarded"],
    );
    assert_reads(": ping\n\n", expect!["Cut: the answer ended before the model finished, and was discarded"]);
    assert_reads(
        &stream(&[call, r#"{"choices":[{"delta""#]),
        expect![[
            r#"Cut: the answer ended at an event that cannot be parsed (EOF while parsing an object at line 1 column 20): `{"choices":[{"delta"`"#
        ]],
    );
    assert_reads(
        r#"{"choices":[{"message":{"content":"whole"}}]}"#,
        expect!["Cut: the answer ended before the model finished, and was discarded"],
    );
    assert_reads(r#"{"choices":[{"message":{"content":"who"#, expect!["Cut: the answer is truncated JSON"]);
    assert_reads(r#"{"choices":[]}"#, expect!["Cut: the answer ended before the model finished, and was discarded"]);
    assert_reads("", expect!["Cut: answered with an empty body"]);
    assert_reads(" \n\n", expect!["Cut: answered with an empty body"]);
}

#[test]
fn the_end_may_be_missing() {
    let body = pieces(&[r#"{"content":"hi"}"#], "stop");
    assert_reads(
        body.strip_suffix("data: [DONE]\n\n").unwrap(),
        expect![[r#"
        Stop
        text "hi""#]],
    );
}

#[test]
fn data_after_the_end_is_ignored() {
    let body = pieces(&[r#"{"content":"hi"}"#], "stop");
    assert_reads(
        &format!("{body}data: {{\"choices\":[{{\"delta\":{{\"content\":\"more\"}}}}]}}\n\ndata: junk\n\n"),
        expect![[r#"
            Stop
            text "hi""#]],
    );
}

#[test]
fn lines_may_be_written_in_any_way() {
    let body = pieces(&[r#"{"content":"grüße 漢"}"#], "stop");
    let plain = read_openai(&[body.as_bytes()]);
    let events = body.replace("data: {", "id: 1\nevent: message\ndata:{").replace("\n\n", "\n: ping\n\n");
    let lines = body.replace("\"choices\":", "\ndata: \"choices\":\ndata:");
    for other in [body.replace('\n', "\r\n"), body.replace('\n', "\r"), format!("\u{feff}{body}"), events, lines] {
        assert_eq!(read_openai(&[other.as_bytes()]), plain, "{other}");
        check(
            read_openai,
            other.as_bytes(),
            expect![[r#"
            Stop
            text "grüße 漢""#]],
        );
    }
    check(
        read_openai,
        b"data: {\"choices\":[{\"delta\":{\"content\":\"a\xffb\"},\"finish_reason\":\"stop\"}]}\n\n",
        expect![[r#"
            Stop
            text "a�b"
            odd: invalid UTF-8 was replaced"#]],
    );
}

#[test]
fn only_the_first_choice_counts() {
    assert_reads(
        &stream(&[
            r#"{"choices":[{"index":1,"delta":{"content":"other"}}]}"#,
            r#"{"choices":[{"index":1,"delta":{"content":"other"}},{"index":0,"delta":{"content":"mine"}}]}"#,
            r#"{"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        ]),
        expect![[r#"
            Stop
            text "mine""#]],
    );
    assert_reads(
        r#"{"choices":[{"message":{"content":"mine"},"finish_reason":"stop"},{"message":{"content":"other"},"finish_reason":"length"}]}"#,
        expect![[r#"
            Stop
            text "mine""#]],
    );
}

#[test]
fn missing_fields_are_tolerated() {
    assert_reads(
        &stream(&[
            r#"{"choices":[],"prompt_filter_results":[{"x":1}]}"#,
            r#"{"choices":null}"#,
            "{}",
            r#"{"choices":[{"delta":null}]}"#,
            r#"{"choices":[{"delta":{"content":"hi","new":{"field":[1]}},"logprobs":null,"finish_reason":""}]}"#,
            r#"{"choices":[{"finish_reason":"stop"}]}"#,
        ]),
        expect![[r#"
            Stop
            text "hi""#]],
    );
}

#[test]
fn an_unknown_finish_is_kept() {
    assert_reads(
        &pieces(&[r#"{"content":"hi"}"#], "eos_token\\u001b"),
        expect![[r#"
        Other("eos_token\\u{1b}")
        text "hi""#]],
    );
}

#[test]
fn usage_is_what_the_server_says_if_it_can_be() {
    let usage = |usages: &[&str]| {
        let mut chunks =
            vec![r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}],"usage":null}"#.to_owned()];
        chunks.extend(usages.iter().map(|usage| format!(r#"{{"choices":[],"usage":{usage}}}"#)));
        stream(&chunks.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_reads(
        &usage(&[
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":3}}"#,
        ]),
        expect![[r#"
            Stop
            text "hi"
            usage 10 + 5 = 15, 3 4 0"#]],
    );
    assert_reads(
        &usage(&[r#"{"prompt_tokens":10,"completion_tokens":5}"#, r#"{"prompt_tokens":10,"completion_tokens":2}"#]),
        expect![[r#"
            Stop
            text "hi"
            usage 10 + 5 = 15, 0 0 0
            odd: the token usage decreased"#]],
    );
    assert_reads(
        &usage(&[r#"{"prompt_tokens":-10,"completion_tokens":5.9,"total_tokens":1e300}"#]),
        expect![[r#"
        Stop
        text "hi"
        usage 0 + 5 = 18446744073709551615, 0 0 0"#]],
    );
    assert_reads(
        &usage(&[r#"{"prompt_tokens":18446744073709551615,"completion_tokens":18446744073709551615}"#]),
        expect![[r#"
        Stop
        text "hi"
        usage 18446744073709551615 + 18446744073709551615 = 18446744073709551615, 0 0 0"#]],
    );
    assert_reads(
        &usage(&[r#"{"prompt_tokens":"many"}"#, "[]", "7", "{}"]),
        expect![[r#"
        Stop
        text "hi""#]],
    );
    assert_reads(
        &stream(&[
            r#"{"choices":[{"delta":{"content":"hi","usage":{"input_tokens":1,"output_tokens":2}},"finish_reason":"stop"}]}"#,
        ]),
        expect![[r#"
            Stop
            text "hi"
            usage 1 + 2 = 3, 0 0 0"#]],
    );
    assert_reads(
        &stream(&[
            r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop","usage":{"prompt_tokens":1,"completion_tokens":2}}]}"#,
        ]),
        expect![[r#"
            Stop
            text "hi"
            usage 1 + 2 = 3, 0 0 0"#]],
    );
}

#[test]
fn the_model_that_served_is_told() {
    assert_reads(
        r#"{"model":"tiny-2026\u202e","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#,
        expect![[r#"
            Stop
            text "hi"
            served by tiny-2026\u{202e}"#]],
    );
}

#[test]
fn other_bodies_are_rejected() {
    assert_reads(
        "<!DOCTYPE html><title>Log in\u{1b}[2J</title>",
        expect![[
            r#"Garbled: answered with a page: `<!DOCTYPE html><title>Log in\u{1b}[2J</title>`; is this the URL of a model API?"#
        ]],
    );
    assert_reads(
        "internal error",
        expect![
            "Garbled: answered with something other than an answer: `internal error`; is this the URL of a model API?"
        ],
    );
    assert_reads(
        "OK",
        expect!["Garbled: answered with something other than an answer: `OK`; is this the URL of a model API?"],
    );
    assert_reads(
        "[1,2]",
        expect!["Garbled: answered with JSON that is not a completion: `[1,2]`; is this the URL of a model API?"],
    );
    assert_reads(
        r#"{"hello":"world"}"#,
        expect![[
            r#"Garbled: answered with JSON that is not a completion: `{"hello":"world"}`; is this the URL of a model API?"#
        ]],
    );
    assert_reads(
        r#"{"choices":"none"}"#,
        expect![[
            r#"Garbled: answered with JSON that is not a completion: `{"choices":"none"}`; is this the URL of a model API?"#
        ]],
    );
    assert_reads(
        "{\"choices\":[]}\n{\"choices\":[]}",
        expect![[
            r#"Garbled: answered with JSON that is not a completion: `{"choices":[]}\u{a}{"choices":[]}`; is this the URL of a model API?"#
        ]],
    );
}
