//! Follow-up requests: state that is sent back, and fields that a server does not accept.

use std::time::Duration;

use serde_json::{Value, json};

use super::canned_server::{AfterReply, CannedReply, CannedServer, reply};
use super::{
    ProviderProtocol, ProviderTimeouts, ask, model_request, open, provider, read_anthropic, read_openai, tools,
};
use crate::message::TranscriptMessage;
use crate::model::{ModelErrorKind, ModelResponse};

const JSON: &str = "application/json";
const HELLO: &[u8] = br#"{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}"#;
const HELLO_ANTHROPIC: &[u8] =
    br#"{"type":"message","content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn"}"#;

/// The body that a history with this answer is sent as, after its calls got their results. It goes through a transcript.
async fn next_request_body(kind: ProviderProtocol, hello: &[u8], answer: ModelResponse) -> Value {
    let server = CannedServer::with_body("200 OK", JSON, hello).await;
    let model = open(provider(kind, &server.url)).unwrap();
    let ModelResponse { text, calls, reasoning_state: reasoning, .. } = answer;
    let results = calls.clone().into_iter().map(|call| TranscriptMessage::Tool {
        call_id: call.id,
        name: call.name,
        text: "done".to_owned(),
        is_error: false,
        summary: crate::ToolResultSummary::default(),
    });
    let mut messages = vec![
        TranscriptMessage::User { text: "go".to_owned() },
        TranscriptMessage::Assistant { text, calls, reasoning },
    ];
    messages.extend(results);
    let kept = serde_json::to_string(&messages).unwrap();
    let messages: Vec<TranscriptMessage> = serde_json::from_str(&kept).unwrap();
    model.respond(model_request(&messages, &tools()), &mut |_| {}).await.unwrap();
    server.last_body()["messages"].clone()
}

fn events(chunks: &[Value]) -> Vec<u8> {
    let mut body: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    body.push_str("data: [DONE]\n\n");
    body.into_bytes()
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

#[tokio::test]
async fn reasoning_is_sent_back_with_its_calls() {
    let call = json!({"index": 0, "id": "c1", "function": {"name": "read_file", "arguments": "{\"path\":\"a\"}"},
                      "extra_content": {"google": {"thought_signature": "c2ln"}}});
    let body = events(&[
        delta(json!({"reasoning_content": "I should "})),
        delta(
            json!({"reasoning_content": "look", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}),
        ),
        delta(json!({"tool_calls": [call]})),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
    ]);
    let answer = read_openai(&[&body]).unwrap();
    assert_eq!(answer.reasoning, "I should look");
    let sent = next_request_body(ProviderProtocol::OpenAi, HELLO, answer.clone()).await;
    let first_message = sent.as_array().unwrap().iter().find(|message| message["role"] == "assistant").unwrap();
    assert_eq!(first_message["reasoning_content"], "I should look");
    assert_eq!(first_message["reasoning_details"], json!([{"type": "reasoning.encrypted", "data": "x"}]));
    assert_eq!(first_message["tool_calls"][0]["extra_content"]["google"]["thought_signature"], "c2ln");
    // Another kind of provider gets nothing of it.
    let sent = next_request_body(ProviderProtocol::Anthropic, HELLO_ANTHROPIC, answer).await.to_string();
    assert!(!sent.contains("look") && !sent.contains("c2ln"), "{sent}");
}

#[tokio::test]
async fn an_answer_without_calls_takes_no_thoughts_along() {
    let body = br#"{"choices":[{"message":{"content":"hello","reasoning_content":"hm"},"finish_reason":"stop"}]}"#;
    let sent = next_request_body(ProviderProtocol::OpenAi, HELLO, read_openai(&[body]).unwrap()).await.to_string();
    assert!(!sent.contains("hm"), "{sent}");
}

#[tokio::test]
async fn signed_blocks_go_back_in_front_of_the_calls_and_unsigned_ones_do_not() {
    let blocks = json!([
        {"type": "thinking", "thinking": "signed", "signature": "EqQB"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "redacted_thinking", "data": "b64"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}},
    ]);
    let whole = json!({"type": "message", "content": blocks, "stop_reason": "tool_use"}).to_string();
    let streamed: String = [
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "sig"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "ned"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "EqQB"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "b64"}}),
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": "I look."}}),
        json!({"type": "content_block_start", "index": 3, "content_block": {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        json!({"type": "message_stop"}),
    ]
    .iter()
    .map(|event| format!("data: {event}\n\n"))
    .collect();
    for body in [whole, streamed] {
        let sent = next_request_body(
            ProviderProtocol::Anthropic,
            HELLO_ANTHROPIC,
            read_anthropic(&[body.as_bytes()]).unwrap(),
        )
        .await;
        let kinds: Vec<&str> =
            sent[1]["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["thinking", "redacted_thinking", "text", "tool_use"], "{sent}");
        assert_eq!(sent[1]["content"][0], json!({"type": "thinking", "thinking": "signed", "signature": "EqQB"}));
    }
}

fn bad_request(body: &str) -> CannedReply {
    reply("400 Bad Request", JSON, body.as_bytes(), AfterReply::Close)
}

#[tokio::test]
async fn a_field_that_a_server_does_not_take_is_left_out_and_it_is_asked_again() {
    for (refusal, gone, instead) in [
        (
            r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens"}}"#,
            "max_tokens",
            Some("max_completion_tokens"),
        ),
        (r#"{"error":{"message":"Unsupported value","param":"temperature"}}"#, "temperature", None),
        (
            r#"{"detail":[{"loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}"#,
            "stream_options",
            None,
        ),
        ("unknown field `stream_options`", "stream_options", None),
    ] {
        let again = || reply("200 OK", JSON, HELLO, AfterReply::Close);
        let server = CannedServer::start(vec![bad_request(refusal), again(), again()]).await;
        let model = open(provider(ProviderProtocol::OpenAi, &server.url)).unwrap();
        let answer = ask(&*model).await.unwrap();
        assert_eq!(answer.text, "hello");
        assert!(answer.warnings.iter().any(|odd| odd.contains(&format!("`{gone}`"))), "{:?}", answer.warnings);
        // It is not tried again with the next answer.
        ask(&*model).await.unwrap();
        assert_eq!(server.requests().len(), 3, "{refusal}");
        let asked = server.last_body();
        assert!(asked.get(gone).is_none(), "{asked}");
        assert_eq!(instead.map(|name| asked[name].clone()), instead.map(|_| json!(100)), "{asked}");
        for other in ["temperature", "stream_options", "tools"].iter().filter(|name| **name != gone) {
            assert!(asked.get(*other).is_some(), "{other} is gone too: {asked}");
        }
    }
}

#[tokio::test]
async fn a_refusal_of_something_else_is_told_at_once_and_one_that_stays_is_told_too() {
    let server =
        CannedServer::start(vec![bad_request(r#"{"error":{"message":"tools[0].parameters is not a schema"}}"#)]).await;
    let error = ask(&*open(provider(ProviderProtocol::OpenAi, &server.url)).unwrap()).await.unwrap_err();
    assert_eq!((error.kind, server.requests().len()), (ModelErrorKind::BadRequest, 1));
    let stubborn = || bad_request(r#"{"error":{"message":"temperature is wrong","param":"temperature"}}"#);
    let server = CannedServer::start(vec![stubborn(), stubborn()]).await;
    let error = ask(&*open(provider(ProviderProtocol::OpenAi, &server.url)).unwrap()).await.unwrap_err();
    assert_eq!((error.kind, server.requests().len()), (ModelErrorKind::BadRequest, 2));
}

#[tokio::test]
async fn a_signature_of_another_server_is_left_out() {
    let server = CannedServer::start(vec![
        bad_request(r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}"#),
        reply("200 OK", JSON, HELLO_ANTHROPIC, AfterReply::Close),
    ])
    .await;
    let model = open(provider(ProviderProtocol::Anthropic, &server.url)).unwrap();
    let whole = json!({"content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "t1", "name": "read_file", "input": {}}], "stop_reason": "tool_use"});
    let ModelResponse { text, calls, reasoning_state: reasoning, .. } =
        read_anthropic(&[whole.to_string().as_bytes()]).unwrap();
    let messages =
        [TranscriptMessage::User { text: "go".to_owned() }, TranscriptMessage::Assistant { text, calls, reasoning }];
    assert_eq!(model.respond(model_request(&messages, &tools()), &mut |_| {}).await.unwrap().text, "hello");
    assert!(!server.last_body().to_string().contains("thinking"), "{}", server.last_body());
}

#[test]
fn halves_of_characters_cost_neither_the_answer_nor_the_arguments() {
    let say = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let call = |text: &str| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":0,\"id\":\"a\",\"function\":{{\"name\":\"read_file\",\"arguments\":\"{text}\"}}}}]}}}}]}}\n\n"
        )
    };
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n";
    let body =
        [say(r"a\ud83d"), say(r"\ude00 \udc00"), call(r#"{\"path\":\"\ud83d"#), call(r#"\ude00\"}"#), end.to_owned()]
            .concat();
    let answer = read_openai(&[body.as_bytes()]).unwrap();
    assert_eq!((answer.text.as_str(), answer.calls[0].arguments.as_str()), ("a😀 \u{fffd}", r#"{"path":"😀"}"#));
    // One that stays alone is left for the argument check, and never lost.
    let body = [call(r#"{\"path\":\"\ud83d\"}"#).as_str(), end].concat();
    assert_eq!(read_openai(&[body.as_bytes()]).unwrap().calls[0].arguments, r#"{"path":"\ud83d"}"#);
}

#[tokio::test]
async fn an_answer_may_not_take_longer_than_it_may() {
    let body = b"data: {\"choices\":[{\"delta\":{\"content\":\"h\"}}]}\n\n";
    let server = CannedServer::start(vec![reply("200 OK", "text/event-stream", body, AfterReply::Ping)]).await;
    let mut provider = provider(ProviderProtocol::OpenAi, &server.url);
    provider.timeouts = ProviderTimeouts { answer: Some(Duration::from_millis(50)), ..provider.timeouts };
    let error = ask(&*open(provider).unwrap()).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Stalled);
    assert!(error.message.contains("the answer took longer than 0.1 s (`answer_timeout`)"), "{error}");
}
