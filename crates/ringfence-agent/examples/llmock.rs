//! Our clients against `llmock`, a server that breaks on demand and grades whoever talks to it.
//!
//! `cargo xtask llmock` starts the server and this. Each scenario has a right outcome, and `llmock` may have no complaint.
//! It expects failures to be tried again; the loop here is as small as can be, for the agent's own is not what is tried.
//!
//! Not here: the server, and anything about tools.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use ringfence_agent::provider::{Kind, Provider, Secret, Timeouts, open};
use ringfence_agent::{Answer, Ask, Message, Model, ModelError, Offered, Part, Trouble};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What llmock does, and what has to come of it.
struct Scenario {
    name: &'static str,
    behaviors: Value,
    right: fn(&Result<Answer, ModelError>) -> bool,
    /// It is about streams, and nothing else.
    streams_only: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: llmock HOST:PORT")?;
    let (mut tried, mut wrong) = (0, 0);
    for (kind, path) in [(Kind::OpenAi, "/v1"), (Kind::Anthropic, "/anthropic")] {
        for stream in [true, false] {
            let model = open(Provider {
                kind: kind.clone(),
                base_url: format!("http://{address}{path}"),
                model: "gpt-4o".to_owned(),
                key: Some(Secret::new("anything")),
                headers: Vec::new(),
                timeouts: Timeouts { idle: Duration::from_millis(700), ..Timeouts::default() },
                stream,
            })?;
            for scenario in scenarios().into_iter().filter(|scenario| stream || !scenario.streams_only) {
                tried += 1;
                let label = format!("{kind:?} {} {}", if stream { "stream" } else { "whole" }, scenario.name);
                let complaint = play(&address, &*model, &scenario).await?;
                say(&format!("{} {label}{complaint}", if complaint.is_empty() { "ok    " } else { "FAILED" }));
                wrong += usize::from(!complaint.is_empty());
            }
        }
    }
    say(&format!("llmock: {tried} scenarios, {wrong} failed"));
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn scenarios() -> Vec<Scenario> {
    fn called(answer: &Result<Answer, ModelError>) -> bool {
        answer.as_ref().is_ok_and(|answer| {
            answer.calls.first().is_some_and(|call| {
                call.name == "fs.read"
                    && serde_json::from_str::<Value>(&call.arguments).is_ok_and(|value| value.is_object())
            })
        })
    }
    fn fault(answer: &Result<Answer, ModelError>) -> Option<Trouble> {
        answer.as_ref().err().map(|error| error.trouble)
    }
    let scenario = |name, behaviors, right| Scenario { name, behaviors, right, streams_only: false };
    let stream = |name, behaviors, right| Scenario { name, behaviors, right, streams_only: true };
    let fail = |status: u16, times: u16| json!([{"type": "fail", "status": status, "times": times}]);
    let broken = |kind: &str, after: u16| json!([{"type": "stream_fault", "kind": kind, "after_chunks": after}]);
    vec![
        scenario("nothing", json!([{"type": "delay", "seconds": 0}]), called),
        scenario(
            "429 and Retry-After",
            json!([{"type": "fail", "status": 429, "retry_after": 0.4, "times": 2}]),
            called,
        ),
        scenario("408", fail(408, 1), called),
        scenario("409", fail(409, 1), called),
        scenario("500", fail(500, 2), called),
        scenario("502", fail(502, 2), called),
        scenario("503", fail(503, 3), called),
        scenario("504", fail(504, 1), called),
        scenario("529", fail(529, 2), called),
        scenario("outage", json!([{"type": "fail", "status": 503, "times": null}]), |answer| {
            matches!(fault(answer), Some(Trouble::Busy { .. }))
        }),
        scenario("400", fail(400, 9), |answer| fault(answer) == Some(Trouble::BadRequest)),
        scenario("401", fail(401, 9), |answer| fault(answer) == Some(Trouble::Denied)),
        scenario("403", fail(403, 9), |answer| fault(answer) == Some(Trouble::Denied)),
        scenario("404", fail(404, 9), |answer| fault(answer) == Some(Trouble::NoSuchModel)),
        scenario("422", fail(422, 9), |answer| fault(answer) == Some(Trouble::BadRequest)),
        scenario(
            "context overflow",
            json!([{"type": "fail", "status": 400, "code": "context_length_exceeded", "message": "prompt is too long"}]),
            |answer| fault(answer) == Some(Trouble::TooLong),
        ),
        scenario("delay", json!([{"type": "delay", "seconds": 1}]), called),
        stream("slow first token", json!([{"type": "slow_first_token", "seconds": 1}]), called),
        stream("disconnect at once", broken("disconnect", 0), called),
        stream("disconnect", broken("disconnect", 2), called),
        stream("truncate at once", broken("truncate", 0), called),
        stream("truncate", broken("truncate", 2), called),
        stream("malformed", broken("malformed", 1), called),
        stream("stall", json!([{"type": "stream_fault", "kind": "stall", "stall_seconds": 20}]), called),
        stream(
            "a call that is cut",
            json!([
                {"type": "reply", "tool_calls": [{"name": "fs-read", "arguments": {"path": "a"}}], "times": 2},
                {"type": "stream_fault", "kind": "truncate", "after_chunks": 2},
            ]),
            called,
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
async fn play(address: &str, model: &dyn Model, scenario: &Scenario) -> Result<String, Box<dyn Error>> {
    admin(address, "POST", "/_llmock/reset", &Value::Null).await?;
    admin(address, "POST", "/_llmock/scenario", &json!({"behaviors": scenario.behaviors})).await?;
    let answer = ask_patiently(model).await;
    let verdict = admin(address, "GET", "/_llmock/verdict", &Value::Null).await?;
    let mut complaint = String::new();
    if !(scenario.right)(&answer) {
        complaint.push_str(&format!("\n         came out as {answer:?}"));
    }
    for finding in verdict["findings"].as_array().ok_or("llmock gave no verdict")? {
        complaint.push_str(&format!("\n         {}: {}", finding["code"], finding["title"]));
    }
    Ok(complaint)
}

/// Asks again, a little later each time, where asking again may help.
async fn ask_patiently(model: &dyn Model) -> Result<Answer, ModelError> {
    let messages = [Message::User { text: "Read the file a, please.".to_owned() }];
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tools = [Offered { name: "fs.read".to_owned(), description: "Read a file.".to_owned(), parameters }];
    let ask = Ask { system: "Be brief.", messages: &messages, tools: &tools, temperature: None, max_tokens: Some(200) };
    let mut waits = [100, 250, 600].into_iter().map(Duration::from_millis);
    loop {
        let error = match model.answer(ask, &mut |_: Part<'_>| {}).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let retry_after = match error.trouble {
            Trouble::Busy { retry_after } => retry_after,
            Trouble::Unreachable | Trouble::Server | Trouble::Cut | Trouble::Stalled => None,
            _ => return Err(error),
        };
        let Some(wait) = waits.next() else { return Err(error) };
        tokio::time::sleep(retry_after.unwrap_or(wait)).await;
    }
}

/// One request to llmock itself.
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
