//! Provider clients against `llmock`, a server that breaks on demand and grades its client.
//!
//! `cargo xtask llmock` starts the server and this. Each scenario has a right outcome, and `llmock` may have no complaint.
//! It expects failures to be tried again; the loop here is as small as can be, for the agent's own is not what is tried.
//!
//! Not here: the server, and anything about tools.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use ringfence_agent::provider::{ModelProvider, ProviderProtocol, ProviderTimeouts, SecretString, open};
use ringfence_agent::{
    LanguageModel, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ResponsePart, ToolSpec, TranscriptMessage,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What llmock does, and what has to come of it.
struct LlmockScenario {
    name: &'static str,
    behaviors: Value,
    is_expected: fn(&Result<ModelResponse, ModelError>) -> bool,
    /// It is about streams, and nothing else.
    streams_only: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: llmock HOST:PORT")?;
    let (mut tried, mut wrong) = (0, 0);
    for (kind, path) in [(ProviderProtocol::OpenAi, "/v1"), (ProviderProtocol::Anthropic, "/anthropic")] {
        for stream in [true, false] {
            let model = open(ModelProvider {
                kind: kind.clone(),
                base_url: format!("http://{address}{path}"),
                model: "gpt-4o".to_owned(),
                key: Some(SecretString::new("anything")),
                headers: Vec::new(),
                timeouts: ProviderTimeouts { idle: Duration::from_millis(700), ..ProviderTimeouts::default() },
                stream,
            })?;
            for scenario in scenarios().into_iter().filter(|scenario| stream || !scenario.streams_only) {
                tried += 1;
                let label = format!("{kind:?} {} {}", if stream { "stream" } else { "whole" }, scenario.name);
                let complaint = run_scenario(&address, &*model, &scenario).await?;
                say(&format!("{} {label}{complaint}", if complaint.is_empty() { "ok    " } else { "FAILED" }));
                wrong += usize::from(!complaint.is_empty());
            }
        }
    }
    say(&format!("llmock: {tried} scenarios, {wrong} failed"));
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn scenarios() -> Vec<LlmockScenario> {
    fn has_call(answer: &Result<ModelResponse, ModelError>) -> bool {
        answer.as_ref().is_ok_and(|answer| {
            answer.calls.first().is_some_and(|call| {
                call.name == "fs.read"
                    && serde_json::from_str::<Value>(&call.arguments).is_ok_and(|value| value.is_object())
            })
        })
    }
    fn error_kind(answer: &Result<ModelResponse, ModelError>) -> Option<ModelErrorKind> {
        answer.as_ref().err().map(|error| error.kind)
    }
    let scenario = |name, behaviors, right| LlmockScenario { name, behaviors, is_expected: right, streams_only: false };
    let stream = |name, behaviors, right| LlmockScenario { name, behaviors, is_expected: right, streams_only: true };
    let fail = |status: u16, times: u16| json!([{"type": "fail", "status": status, "times": times}]);
    let broken = |kind: &str, after: u16| json!([{"type": "stream_fault", "kind": kind, "after_chunks": after}]);
    vec![
        scenario("nothing", json!([{"type": "delay", "seconds": 0}]), has_call),
        scenario(
            "429 and Retry-After",
            json!([{"type": "fail", "status": 429, "retry_after": 0.4, "times": 2}]),
            has_call,
        ),
        scenario("408", fail(408, 1), has_call),
        scenario("409", fail(409, 1), has_call),
        scenario("500", fail(500, 2), has_call),
        scenario("502", fail(502, 2), has_call),
        scenario("503", fail(503, 3), has_call),
        scenario("504", fail(504, 1), has_call),
        scenario("529", fail(529, 2), has_call),
        scenario("outage", json!([{"type": "fail", "status": 503, "times": null}]), |answer| {
            matches!(error_kind(answer), Some(ModelErrorKind::Busy { .. }))
        }),
        scenario("400", fail(400, 9), |answer| error_kind(answer) == Some(ModelErrorKind::BadRequest)),
        scenario("401", fail(401, 9), |answer| error_kind(answer) == Some(ModelErrorKind::Denied)),
        scenario("403", fail(403, 9), |answer| error_kind(answer) == Some(ModelErrorKind::Denied)),
        scenario("404", fail(404, 9), |answer| error_kind(answer) == Some(ModelErrorKind::NoSuchModel)),
        scenario("422", fail(422, 9), |answer| error_kind(answer) == Some(ModelErrorKind::BadRequest)),
        scenario(
            "context overflow",
            json!([{"type": "fail", "status": 400, "code": "context_length_exceeded", "message": "prompt is too long"}]),
            |answer| error_kind(answer) == Some(ModelErrorKind::TooLong),
        ),
        scenario("delay", json!([{"type": "delay", "seconds": 1}]), has_call),
        stream("slow first token", json!([{"type": "slow_first_token", "seconds": 1}]), has_call),
        stream("disconnect at once", broken("disconnect", 0), has_call),
        stream("disconnect", broken("disconnect", 2), has_call),
        stream("truncate at once", broken("truncate", 0), has_call),
        stream("truncate", broken("truncate", 2), has_call),
        stream("malformed", broken("malformed", 1), has_call),
        stream("stall", json!([{"type": "stream_fault", "kind": "stall", "stall_seconds": 20}]), has_call),
        stream(
            "a call that is cut",
            json!([
                {"type": "reply", "tool_calls": [{"name": "fs-read", "arguments": {"path": "a"}}], "times": 2},
                {"type": "stream_fault", "kind": "truncate", "after_chunks": 2},
            ]),
            has_call,
        ),
        scenario("malformed arguments", json!([{"type": "tool_fault", "kind": "malformed_arguments"}]), |answer| {
            // Anthropic's interface, whole, cannot even carry them.
            answer.as_ref().is_ok_and(|answer| answer.calls.len() == 1)
        }),
        scenario("unknown tool", json!([{"type": "tool_fault", "kind": "unknown_tool"}]), |answer| {
            answer
                .as_ref()
                .is_ok_and(|answer| answer.calls.len() == 1 && answer.calls.iter().all(|call| call.name != "fs.read"))
        }),
        scenario("text", json!([{"type": "reply", "text": "Hello, grüße 👍"}]), |answer| {
            answer.as_ref().is_ok_and(|answer| answer.text == "Hello, grüße 👍" && answer.calls.is_empty())
        }),
    ]
}

/// What there is to complain about.
async fn run_scenario(
    address: &str,
    model: &dyn LanguageModel,
    scenario: &LlmockScenario,
) -> Result<String, Box<dyn Error>> {
    admin(address, "POST", "/_llmock/reset", &Value::Null).await?;
    admin(address, "POST", "/_llmock/scenario", &json!({"behaviors": scenario.behaviors})).await?;
    let answer = ask_with_retries(model).await;
    let verdict = admin(address, "GET", "/_llmock/verdict", &Value::Null).await?;
    let mut complaint = String::new();
    if !(scenario.is_expected)(&answer) {
        complaint.push_str(&format!("\n         came out as {answer:?}"));
    }
    for finding in verdict["findings"].as_array().ok_or("llmock gave no verdict")? {
        complaint.push_str(&format!("\n         {}: {}", finding["code"], finding["title"]));
    }
    Ok(complaint)
}

/// Asks again, a little later each time, where asking again may help.
async fn ask_with_retries(model: &dyn LanguageModel) -> Result<ModelResponse, ModelError> {
    let messages = [TranscriptMessage::User { text: "Read the file a, please.".to_owned() }];
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tools = [ToolSpec { name: "fs.read".to_owned(), description: "Read a file.".to_owned(), parameters }];
    let ask = ModelRequest {
        system: "Be brief.",
        messages: &messages,
        tools: &tools,
        temperature: None,
        max_tokens: Some(200),
    };
    let mut waits = [100, 250, 600].into_iter().map(Duration::from_millis);
    loop {
        let error = match model.respond(ask, &mut |_: ResponsePart<'_>| {}).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let retry_after = match error.kind {
            ModelErrorKind::Busy { retry_after } => retry_after,
            ModelErrorKind::Unreachable | ModelErrorKind::Server | ModelErrorKind::Cut | ModelErrorKind::Stalled => {
                None
            }
            _ => return Err(error),
        };
        let Some(wait) = waits.next() else { return Err(error) };
        tokio::time::sleep(retry_after.unwrap_or(wait)).await;
    }
}

/// One request to llmock itself.
#[expect(clippy::disallowed_methods, reason = "the control port of the mock server is not part of the program")]
async fn admin(address: &str, method: &str, path: &str, body: &Value) -> Result<Value, Box<dyn Error>> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    let (head, body) = reply.split_once("\r\n\r\n").ok_or("llmock did not answer")?;
    if !head.starts_with("HTTP/1.1 20") {
        return Err(format!("llmock refused {path}: {body}").into());
    }
    Ok(serde_json::from_str(body)?)
}

#[expect(clippy::print_stdout, reason = "this is what an example is for")]
fn say(text: &str) {
    println!("{text}");
}
