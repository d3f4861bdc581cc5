//! The lines of the first seed that are about the client of a model: health, tools attached to a question, the history
//! with its steps, the step without tools, calls that are not repaired, usage. Streaming and not, in both dialects.

use expect_test::expect;
use serde_json::{Value, json};

use super::canned_server::{AfterReply, CannedServer, reply};
use super::{KEY, ProviderProtocol, ask, describe_answer, model_request, open, provider};
use crate::message::TranscriptMessage;
use crate::model::ModelErrorKind;

const JSON: &str = "application/json";
const OPENAI: &str = r#"{"model":"tiny","choices":[{"message":{"content":"I look.","tool_calls":[{"id":"n1","type":"function","function":{"name":"fs-list","arguments":"{\"path\": broken"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"completion_tokens_details":{"reasoning_tokens":2},"prompt_tokens_details":{"cached_tokens":4}}}"#;
const OPENAI_STREAM: &str = concat!(
    "data: {\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"I look.\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"n1\",\"type\":\"function\",\"function\":{\"name\":\"fs-list\",\"arguments\":\"{\\\"path\\\"\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\": broken\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,\"total_tokens\":15,\"completion_tokens_details\":{\"reasoning_tokens\":2},\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
    "data: [DONE]\n\n",
);
const ANTHROPIC: &str = r#"{"type":"message","model":"tiny","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"n1","name":"fs-list","input":{"path":"."}}],"stop_reason":"tool_use","usage":{"input_tokens":6,"cache_read_input_tokens":4,"output_tokens":5}}"#;
const ANTHROPIC_STREAM: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"tiny\",\"usage\":{\"input_tokens\":6,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"I look.\"}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"n1\",\"name\":\"fs-list\",\"input\":{}}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"path\\\":\\\".\\\"}\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":5}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

/// A model, asked once, and what its server was asked.
async fn ask_once(kind: ProviderProtocol, stream: bool) -> (String, Value, String) {
    let (content, body) = match (&kind, stream) {
        (ProviderProtocol::OpenAi, true) => ("text/event-stream", OPENAI_STREAM),
        (ProviderProtocol::OpenAi, false) => (JSON, OPENAI),
        (_, true) => ("text/event-stream", ANTHROPIC_STREAM),
        (_, false) => (JSON, ANTHROPIC),
    };
    let server = CannedServer::with_body("200 OK", content, body.as_bytes()).await;
    let mut provider = provider(kind, &format!("{}/v1", server.url));
    provider.stream = stream;
    let answer = ask(&*open(provider).unwrap()).await.unwrap();
    (describe_answer(&answer), server.last_body(), server.requests()[0].clone())
}

#[tokio::test]
async fn seed_tools_are_attached_to_the_question() {
    for stream in [true, false] {
        let (_, body, _) = ask_once(ProviderProtocol::OpenAi, stream).await;
        let names: Vec<&Value> =
            body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
        assert_eq!(names, ["read_file", "write_file", "fs-list"]);
        assert_eq!(body["tools"][0]["function"]["parameters"]["required"], json!(["path"]));
        assert_eq!((&body["temperature"], &body["max_tokens"]), (&json!(0.5), &json!(100)));
        let (_, body, _) = ask_once(ProviderProtocol::Anthropic, stream).await;
        assert_eq!(body["tools"][2]["name"], "fs-list");
        assert_eq!(body["tools"][0]["input_schema"]["required"], json!(["path"]));
    }
}

#[tokio::test]
async fn seed_history_has_the_messages_of_every_step() {
    let (_, body, head) = ask_once(ProviderProtocol::OpenAi, true).await;
    expect![[r#"
        [
          {
            "role": "system",
            "content": "Be brief."
          },
          {
            "role": "user",
            "content": "What is in a.txt?"
          },
          {
            "role": "assistant",
            "content": null,
            "tool_calls": [
              {
                "id": "old_1",
                "type": "function",
                "function": {
                  "name": "fs-list",
                  "arguments": "{\"path\":\".\"}"
                }
              },
              {
                "id": "functions.x:1",
                "type": "function",
                "function": {
                  "name": "no-such",
                  "arguments": "{\"not_a_json_object\":\"{broken\"}"
                }
              }
            ]
          },
          {
            "role": "tool",
            "tool_call_id": "old_1",
            "content": "a.txt"
          },
          {
            "role": "tool",
            "tool_call_id": "functions.x:1",
            "content": "unknown tool"
          }
        ]"#]]
    .assert_eq(&serde_json::to_string_pretty(&body["messages"]).unwrap());
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
    assert!(head.contains(&format!("authorization: Bearer {KEY}\r\n")));
    let (_, body, head) = ask_once(ProviderProtocol::Anthropic, true).await;
    expect![[r#"
        [
          {
            "role": "user",
            "content": [
              {
                "type": "text",
                "text": "What is in a.txt?"
              }
            ]
          },
          {
            "role": "assistant",
            "content": [
              {
                "type": "tool_use",
                "id": "old_1",
                "name": "fs-list",
                "input": {
                  "path": "."
                }
              },
              {
                "type": "tool_use",
                "id": "functions_2e_x_3a_1",
                "name": "no-such",
                "input": {
                  "not_a_json_object": "{broken"
                }
              }
            ]
          },
          {
            "role": "user",
            "content": [
              {
                "type": "tool_result",
                "tool_use_id": "old_1",
                "content": "a.txt",
                "is_error": false
              },
              {
                "type": "tool_result",
                "tool_use_id": "functions_2e_x_3a_1",
                "content": "unknown tool",
                "is_error": true,
                "cache_control": {
                  "type": "ephemeral"
                }
              }
            ]
          }
        ]"#]]
    .assert_eq(&serde_json::to_string_pretty(&body["messages"]).unwrap());
    assert!(head.starts_with("POST /v1/messages HTTP/1.1\r\n"));
    assert!(head.contains(&format!("x-api-key: {KEY}\r\n")) && head.contains("anthropic-version: 2023-06-01\r\n"));
}

#[tokio::test]
async fn seed_usage_is_extracted_and_calls_are_not_repaired() {
    for stream in [true, false] {
        expect![[r#"
            Calls
            text "I look."
            call n1 fs.list {"path": broken
            usage 10 + 5 = 15, 2 4 0"#]]
        .assert_eq(&ask_once(ProviderProtocol::OpenAi, stream).await.0);
        expect![[r#"
            Calls
            text "I look."
            call n1 fs.list {"path":"."}
            usage 10 + 5 = 15, 0 4 0"#]]
        .assert_eq(&ask_once(ProviderProtocol::Anthropic, stream).await.0);
    }
}

#[tokio::test]
async fn seed_the_step_that_ends_a_run_offers_no_tools() {
    for kind in [ProviderProtocol::OpenAi, ProviderProtocol::Anthropic] {
        let body = if kind == ProviderProtocol::OpenAi { OPENAI } else { ANTHROPIC };
        let server = CannedServer::with_body("200 OK", JSON, body.as_bytes()).await;
        let model = open(provider(kind, &server.url)).unwrap();
        let messages = [TranscriptMessage::User { text: "Sum up.".to_owned() }];
        let mut ignore = |_: crate::model::ResponsePart<'_>| {};
        let answer = model.respond(model_request(&messages, &[]), &mut ignore).await.unwrap();
        assert_eq!(server.last_body().get("tools"), None);
        // A hallucinated call is passed on as the model wrote it, for the loop to refuse.
        assert_eq!(answer.calls[0].name, "fs-list");
    }
}

#[tokio::test]
async fn seed_existing_prompts_work_without_tools() {
    for (stream, body) in [
        (true, "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"),
        (false, r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#),
    ] {
        let server = CannedServer::with_body("200 OK", JSON, body.as_bytes()).await;
        let mut provider = provider(ProviderProtocol::OpenAi, &server.url);
        provider.stream = stream;
        assert_eq!(ask(&*open(provider).unwrap()).await.unwrap().text, "hi");
    }
}

#[tokio::test]
async fn seed_health_says_whether_the_model_is_there() {
    let list = br#"{"object":"list","data":[{"id":"tiny:latest"},{"id":"big"}]}"#;
    let cases: [(&str, &[u8], Option<ModelErrorKind>); 7] = [
        ("200 OK", list, None),
        ("200 OK", br#"{"data":[{"id":"big"}]}"#, Some(ModelErrorKind::NoSuchModel)),
        ("200 OK", br#"{"data":[{"id":"some.gguf","owned_by":"llamacpp"}]}"#, None),
        ("200 OK", b"<html>", Some(ModelErrorKind::Garbled)),
        ("401 No", b"", Some(ModelErrorKind::Denied)),
        ("404 No", b"", Some(ModelErrorKind::NoSuchModel)),
        ("503 Wait", b"", Some(ModelErrorKind::Busy { retry_after: None })),
    ];
    for (status, body, expected) in cases {
        let server = CannedServer::with_body(status, JSON, body).await;
        let model = open(provider(ProviderProtocol::OpenAi, &format!("{}/v1", server.url))).unwrap();
        assert_eq!(model.health().await.err().map(|error| error.kind), expected, "{status}");
        assert!(server.requests()[0].starts_with("GET /v1/models HTTP/1.1\r\n"));
    }
    let server = CannedServer::start(vec![
        reply("200 OK", JSON, br#"{"type":"model","id":"tiny"}"#, AfterReply::Close),
        reply(
            "404 No",
            JSON,
            br#"{"type":"error","error":{"type":"not_found_error","message":"model: tiny"}}"#,
            AfterReply::Close,
        ),
    ])
    .await;
    let model = open(provider(ProviderProtocol::Anthropic, &server.url)).unwrap();
    assert_eq!(model.health().await, Ok(()));
    assert_eq!(model.health().await.unwrap_err().kind, ModelErrorKind::NoSuchModel);
    assert!(server.requests()[0].starts_with("GET /v1/models/tiny HTTP/1.1\r\n"));
}
