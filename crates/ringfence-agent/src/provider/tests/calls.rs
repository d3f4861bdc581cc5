//! Tool calls in chat completions, as servers cut, number and name them. Each body is read whole and cut at every byte.

use expect_test::expect;

use super::openai::{assert_reads, pieces, stream};
use super::read_openai;

/// A stream of these entries of `tool_calls`, one a piece.
fn calls(entries: &[&str]) -> String {
    let deltas: Vec<String> = entries.iter().map(|entry| format!(r#"{{"tool_calls":[{entry}]}}"#)).collect();
    pieces(&deltas.iter().map(String::as_str).collect::<Vec<_>>(), "tool_calls")
}

#[test]
fn calls_come_in_pieces_or_whole() {
    assert_reads(
        &calls(&[
            r#"{"index":0,"id":"a","type":"function","function":{"name":"read_file","arguments":""}}"#,
            r#"{"index":0,"function":{"arguments":"{\"path\":"}}"#,
            r#"{"index":0,"function":{"arguments":"\"a.txt\"}"}}"#,
            r#"{"index":1,"id":"b","type":"function","function":{"name":"fs-list","arguments":"{}"}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {"path":"a.txt"}
            call b fs.list {}"#]],
    );
    assert_reads(
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"read_file","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"fs-list","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#,
        expect![[r#"
            Calls
            call a read_file {}
            call b fs.list {}
            usage 5 + 2 = 7, 0 0 0"#]],
    );
}

#[test]
fn arguments_stay_the_models_own_words() {
    for arguments in [r#"{\"path\": broken"#, r#"{}{}"#, r#"{\"a\":1,\"a\":2}"#, "", "  ", "[[[[1e999]]]]"] {
        let body =
            calls(&[&format!(r#"{{"index":0,"id":"a","function":{{"name":"read_file","arguments":"{arguments}"}}}}"#)]);
        let answer = read_openai(&[body.as_bytes()]).unwrap();
        assert_eq!(answer.calls[0].arguments, arguments.replace("\\\"", "\""));
    }
    // Two objects in two pieces: the first half is not the call.
    assert_reads(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":"{\"path\":\"a\"}"}}"#,
            r#"{"index":0,"function":{"arguments":"{\"path\":\"b\"}"}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {"path":"a"}{"path":"b"}"#]],
    );
}

#[test]
fn arguments_may_come_as_an_object() {
    assert_reads(
        &calls(&[r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":{"path":"a", "path":"b"}}}"#]),
        expect![[r#"
            Calls
            call a read_file {"path":"a", "path":"b"}"#]],
    );
    assert_reads(
        &calls(&[r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":null}}"#]),
        expect![[r#"
        Calls
        call a read_file "#]],
    );
}

#[test]
fn a_name_that_is_not_offered_stays() {
    for name in ["functions.read_file:", "read-file", "Read_File", "", "fs-lis"] {
        let body = calls(&[&format!(r#"{{"index":0,"id":"a","function":{{"name":"{name}","arguments":"{{}}"}}}}"#)]);
        assert_eq!(read_openai(&[body.as_bytes()]).unwrap().calls[0].name, name);
    }
    assert_reads(
        &calls(&[r#"{"index":0,"id":"a","function":{"arguments":"{}"}}"#, r#"{"index":1,"id":"b"}"#]),
        expect![[r#"
        Calls
        call a  {}
        call b  "#]],
    );
}

#[test]
fn ids_are_made_unique() {
    assert_reads(
        &calls(&[
            r#"{"index":0,"function":{"name":"read_file","arguments":"{}"}}"#,
            r#"{"index":1,"id":"","function":{"name":"read_file","arguments":"{}"}}"#,
            r#"{"index":2,"id":"x","function":{"name":"read_file","arguments":"{}"}}"#,
            r#"{"index":3,"id":"x","function":{"name":"read_file","arguments":"{}"}}"#,
            r#"{"index":4,"id":"old_1","function":{"name":"read_file","arguments":"{}"}}"#,
            r#"{"index":5,"id":"a\u001b[2J","function":{"name":"read_file","arguments":"{}"}}"#,
            r#"{"index":6,"id":7,"function":{"name":"read_file","arguments":"{}"}}"#,
        ]),
        expect![[r#"
            Calls
            call call_1 read_file {}
            call call_2 read_file {}
            call x read_file {}
            call call_3 read_file {}
            call call_4 read_file {}
            call call_5 read_file {}
            call call_6 read_file {}
            odd: a call without an id was given the id call_1
            odd: a call without an id was given the id call_2
            odd: a call with the id x was given the id call_3
            odd: a call with the id old_1 was given the id call_4
            odd: a call with the id a\u{1b}[2J was given the id call_5
            odd: a call without an id was given the id call_6"#]],
    );
    let same = r#"{"id":"x","function":{"name":"read_file","arguments":"{}"}}"#;
    assert_reads(
        &format!(r#"{{"choices":[{{"message":{{"tool_calls":[{same},{same}]}},"finish_reason":"tool_calls"}}]}}"#),
        expect![[r#"
            Calls
            call x read_file {}
            call call_1 read_file {}
            odd: a call with the id x was given the id call_1"#]],
    );
}

#[test]
fn an_index_is_only_a_name() {
    let call = |index: &str, id: &str, name: &str| {
        format!(r#"{{{index}{id}"function":{{"name":"{name}","arguments":"{{}}"}}}}"#)
    };
    // None at all.
    assert_reads(
        &calls(&[&call("", r#""id":"a","#, "read_file")]),
        expect![[r#"
        Calls
        call a read_file {}"#]],
    );
    assert_reads(
        &calls(&[&call("", "", "read_file"), &call("", "", "fs-list"), &call("", "", "fs-list")]),
        expect![[r#"
        Calls
        call call_1 read_file {}
        call call_2 fs.list {}
        odd: a call's arguments came twice
        odd: a call without an id was given the id call_1
        odd: a call without an id was given the id call_2"#]],
    );
    // Pieces without index and id belong to the call before them.
    assert_reads(
        &calls(&[
            r#"{"id":"a","function":{"name":"read_file","arguments":""}}"#,
            r#"{"function":{"arguments":"{\"path\":"}}"#,
            r#"{"function":{"arguments":"\"a\"}"}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {"path":"a"}"#]],
    );
    // From 1, and huge, and no number.
    assert_reads(
        &calls(&[&call(r#""index":1,"#, r#""id":"a","#, "read_file"), r#"{"index":1,"function":{"arguments":""}}"#]),
        expect![[r#"
            Calls
            call a read_file {}"#]],
    );
    assert_reads(
        &calls(&[
            &call(r#""index":18446744073709551615,"#, r#""id":"a","#, "read_file"),
            &call(r#""index":3000000,"#, r#""id":"b","#, "fs-list"),
        ]),
        expect![[r#"
            Calls
            call a read_file {}
            call b fs.list {}"#]],
    );
    assert_reads(
        &calls(&[
            &call(r#""index":-1,"#, r#""id":"a","#, "read_file"),
            &call(r#""index":"1","#, r#""id":"b","#, "fs-list"),
        ]),
        expect![[r#"
            Calls
            call a read_file {}
            call b fs.list {}"#]],
    );
    // One index, two calls.
    assert_reads(
        &calls(&[
            &call(r#""index":0,"#, r#""id":"a","#, "read_file"),
            &call(r#""index":0,"#, r#""id":"b","#, "write_file"),
            r#"{"index":0,"id":"b","function":{"arguments":" "}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {}
            call b write_file {} "#]],
    );
    assert_reads(
        &calls(&[&call(r#""index":0,"#, "", "read_file"), &call(r#""index":0,"#, "", "write_file")]),
        expect![[r#"
        Calls
        call call_1 read_file {}
        call call_2 write_file {}
        odd: a call without an id was given the id call_1
        odd: a call without an id was given the id call_2"#]],
    );
    // A new id in every piece of one call.
    assert_reads(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":"{\"path\":"}}"#,
            r#"{"index":0,"id":"b","function":{"arguments":"\"a\"}"}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {"path":"a"}
            odd: a call changed its id"#]],
    );
}

#[test]
fn names_are_set_once_or_put_together() {
    assert_reads(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":""}}"#,
            r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":"{\"path\":"}}"#,
            r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":"\"a\"}"}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {"path":"a"}"#]],
    );
    assert_reads(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"read"}}"#,
            r#"{"index":0,"function":{"name":"_file"}}"#,
            r#"{"index":0,"function":{"name":"","arguments":"{}"}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {}"#]],
    );
}

#[test]
fn pieces_of_several_calls_are_sorted() {
    assert_reads(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":"{\"pa"}},{"index":1,"id":"b","function":{"name":"fs-list","arguments":"{\"path"}}"#,
            r#"{"index":1,"function":{"arguments":"\":\"y\"}"}}"#,
            r#"{"index":0,"function":{"arguments":"th\":\"x\"}"}}"#,
        ]),
        expect![[r#"
            Calls
            call a read_file {"path":"x"}
            call b fs.list {"path":"y"}"#]],
    );
}

#[test]
fn repeated_pieces_are_ignored() {
    let call = r#"{"index":0,"id":"a","function":{"name":"read_file","arguments":"{\"path\":\"a\"}"}}"#;
    assert_reads(
        &calls(&[call, call]),
        expect![[r#"
        Calls
        call a read_file {"path":"a"}
        odd: a call's arguments came twice"#]],
    );
    let without_id = r#"{"index":0,"function":{"name":"read_file","arguments":"{\"path\":\"a\"}"}}"#;
    assert_reads(
        &calls(&[without_id, without_id]),
        expect![[r#"
        Calls
        call call_1 read_file {"path":"a"}
        odd: a call's arguments came twice
        odd: a call without an id was given the id call_1"#]],
    );
    // A message at the end that says everything again.
    let message =
        format!(r#"{{"choices":[{{"message":{{"content":"hi","tool_calls":[{call}]}},"finish_reason":"stop"}}]}}"#);
    let first_message = format!(r#"{{"choices":[{{"delta":{{"content":"hi","tool_calls":[{call}]}}}}]}}"#);
    assert_reads(
        &stream(&[&first_message, &message]),
        expect![[r#"
        Calls
        text "hi"
        call a read_file {"path":"a"}
        odd: a complete message after its deltas was ignored
        odd: the model stopped but made calls"#]],
    );
    assert_reads(
        &stream(&[&message]),
        expect![[r#"
        Calls
        text "hi"
        call a read_file {"path":"a"}
        odd: the model stopped but made calls"#]],
    );
    let late =
        format!(r#"{{"choices":[{{"delta":{{"content":"late","tool_calls":[{call}]}},"finish_reason":"length"}}]}}"#);
    assert_reads(
        &stream(&[r#"{"choices":[{"delta":{"content":"done"},"finish_reason":"stop"}]}"#, &late]),
        expect![[r#"
        Stop
        text "done"
        odd: text after the end was ignored
        odd: a call after the end was ignored"#]],
    );
}

#[test]
fn no_calls_are_no_calls() {
    for none in ["null", "[]"] {
        let body = pieces(&[&format!(r#"{{"content":"hi","tool_calls":{none}}}"#)], "stop");
        assert_reads(
            &body,
            expect![[r#"
            Stop
            text "hi""#]],
        );
    }
}

#[test]
fn text_and_calls_are_both_kept() {
    assert_reads(
        &pieces(
            &[
                r#"{"content":"I look.","tool_calls":[{"index":0,"id":"a","function":{"name":"read_file","arguments":"{}"}}]}"#,
            ],
            "tool_calls",
        ),
        expect![[r#"
            Calls
            text "I look."
            call a read_file {}"#]],
    );
}

#[test]
fn the_calls_are_trusted_and_not_the_reason() {
    let call = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"read_file","arguments":"{}"}}]}"#;
    assert_reads(
        &pieces(&[call], "stop"),
        expect![[r#"
        Calls
        call a read_file {}
        odd: the model stopped but made calls"#]],
    );
    assert_reads(
        &pieces(&[r#"{"content":"hi"}"#], "tool_calls"),
        expect![[r#"
        Stop
        text "hi"
        odd: the model stopped for calls but made none"#]],
    );
}

#[test]
fn calls_beyond_the_bound_are_counted() {
    let call = |index: usize| {
        format!(r#"{{"index":{index},"id":"c{index}","function":{{"name":"read_file","arguments":"{{"}}}}"#)
    };
    let rest = |index: usize| format!(r#"{{"index":{index},"function":{{"arguments":"}}"}}}}"#);
    let entries: Vec<String> = (0..200).flat_map(|index| [call(index), rest(index)]).collect();
    let body = calls(&entries.iter().map(String::as_str).collect::<Vec<_>>());
    let answer = read_openai(&[body.as_bytes()]).unwrap();
    assert_eq!((answer.calls.len(), answer.calls_dropped), (64, 136));
    assert!(answer.calls.iter().all(|call| call.arguments == "{}"));
    let whole = |index: usize| format!(r#"{{"id":"c{index}","function":{{"name":"read_file","arguments":"{{}}"}}}}"#);
    let all: Vec<String> = (0..200).map(whole).collect();
    let body =
        format!(r#"{{"choices":[{{"message":{{"tool_calls":[{}]}},"finish_reason":"tool_calls"}}]}}"#, all.join(","));
    let answer = read_openai(&[body.as_bytes()]).unwrap();
    assert_eq!((answer.calls.len(), answer.calls_dropped), (64, 136));
}

#[test]
fn the_old_function_call_is_a_call() {
    // It gives way to the new form, wherever that comes.
    assert_reads(
        &pieces(
            &[
                r#"{"function_call":{"name":"write_file","arguments":"{}"}}"#,
                r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"read_file","arguments":"{}"}}]}"#,
                r#"{"function_call":{"arguments":" "}}"#,
            ],
            "tool_calls",
        ),
        expect![[r#"
            Calls
            call a read_file {}
            odd: `function_call` beside `tool_calls` was ignored"#]],
    );
    assert_reads(
        &pieces(
            &[
                r#"{"function_call":{"name":"read_file","arguments":"{\"path\":"}}"#,
                r#"{"function_call":{"arguments":"\"a\"}"}}"#,
            ],
            "function_call",
        ),
        expect![[r#"
            Calls
            call call_1 read_file {"path":"a"}
            odd: a call without an id was given the id call_1"#]],
    );
    assert_reads(
        r#"{"choices":[{"message":{"content":null,"function_call":{"name":"read_file","arguments":"{}"},"tool_calls":[{"id":"a","function":{"name":"fs-list","arguments":"{}"}}]},"finish_reason":"stop"}]}"#,
        expect![[r#"
            Calls
            call a fs.list {}
            odd: `function_call` beside `tool_calls` was ignored
            odd: the model stopped but made calls"#]],
    );
}
