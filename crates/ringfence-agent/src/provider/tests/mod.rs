//! Provider tests against servers that misbehave, on a real socket and in the real wire format.
//!
//! Which test has which misbehaviour of models and their servers; what is not in it is about the loop, the kernel or the
//! terminal, and tested there.
//!
//! | misbehaviour | test |
//! |---|---|
//! | malformed, concatenated, nested or doubled arguments: passed on as they are, for the kernel | `calls::arguments_stay_the_models_own_words` |
//! | arguments as an object | `calls::arguments_may_come_as_an_object` |
//! | empty arguments | `calls::arguments_stay_the_models_own_words` |
//! | a name that is nearly one, or empty, or not offered | `calls::a_name_that_is_not_offered_stays` |
//! | missing ids, ids twice | `calls::ids_are_made_unique` |
//! | missing index, index from 1, one index with two ids, huge index | `calls::an_index_is_only_a_name` |
//! | a name in every piece, a name in pieces | `calls::names_are_set_once_or_put_together` |
//! | interleaved pieces of several calls | `calls::pieces_of_several_calls_are_sorted` |
//! | pieces after the end, repeated pieces | `calls::repeated_pieces_are_ignored` |
//! | empty or null `tool_calls` | `calls::no_calls_are_no_calls` |
//! | text and calls together | `calls::text_and_calls_are_both_kept` |
//! | finish that does not fit the calls | `calls::the_calls_are_trusted_and_not_the_reason` |
//! | 200 calls | `calls::calls_beyond_the_bound_are_counted`, `anthropic::calls_beyond_the_bound_are_counted` |
//! | legacy `function_call` | `calls::the_old_function_call_is_a_call` |
//! | cut by length | `openai::a_cut_by_length_is_said` |
//! | empty answer, reasoning only | `openai::an_empty_answer_is_one`, `openai::reasoning_is_kept_apart` |
//! | refusal, content filter | `openai::refusals_are_told`, `anthropic::refusals_are_told` |
//! | connection refused, no such host, TLS failure | `transport::a_server_that_is_not_there_is_unreachable`, `transport::a_server_without_tls_is_unreachable` |
//! | 429 with Retry-After, 5xx, empty message, context length, 401, 403, 404 | `fault::tests`, `transport::an_error_names_the_place_and_no_key` |
//! | a page, a wrong content type | `transport::an_html_page_is_an_error` |
//! | an error with status 200, an error in a stream | `openai::an_error_in_disguise_is_an_error`, `anthropic::an_error_in_a_stream_is_an_error` |
//! | the server ignores `stream` | `transport::an_unrequested_body_format_is_accepted` |
//! | empty body | `transport::an_empty_body_is_cut` |
//! | cut in arguments, in a line, no `[DONE]` | `openai::without_a_finish_nothing_counts`, `openai::the_end_may_be_missing`, `transport::a_dropped_connection_is_cut` |
//! | stall, slow prefill, pings | `transport::silence_has_an_end`, `transport::pings_are_life_and_no_progress`, `http::tests` |
//! | CR LF, comments, several `data` lines, BOM, `event` lines, UTF-8 in two | `sse::tests` of `ringfence-net`, `openai::lines_may_be_written_in_any_way` |
//! | other choices | `openai::only_the_first_choice_counts` |
//! | empty choices, unknown fields, missing fields | `openai::missing_fields_are_tolerated` |
//! | unknown finish | `openai::an_unknown_finish_is_kept` |
//! | usage missing, null, in the last piece, going down, negative | `openai::usage_is_what_the_server_says_if_it_can_be` |
//! | data after `[DONE]` | `openai::data_after_the_end_is_ignored` |
//! | redirects, another model | `transport::a_redirect_to_elsewhere_is_not_followed`, `openai::the_model_that_served_is_told` |
//! | gzip bomb | `transport::packed_contents_are_refused`, `transport::an_endless_answer_is_given_up` |
//! | optional fields that a server refuses, reasoning that it wants back | `next_request` |
//! | halves of characters | `next_request::halves_of_characters_cost_neither_the_answer_nor_the_arguments`, `surrogates::tests` |
//! | cancelled while connecting, waiting, streaming | `transport::a_dropped_answer_closes_the_connection` |

mod anthropic;
mod calls;
mod canned_server;
mod fuzz;
mod next_request;
mod openai;
mod property;
mod seed;
mod transport;

use std::fmt::Write as _;

use expect_test::Expect;
use ringfence_testkit::patience::PATIENCE;
use serde_json::json;

use super::anthropic::AnthropicParser;
use super::body_reader::{BodyReader, ResponseParser};
use super::error::ProviderError;
use super::openai::OpenAiParser;
use super::{ModelProvider, ProviderProtocol, ProviderTimeouts, SecretString, open};
use crate::message::{ReasoningState, RequestedCall, TranscriptMessage};
use crate::model::{LanguageModel, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ResponsePart, ToolSpec};

pub(super) const KEY: &str = "sk-very-secret-0123456789";

/// The tools of every test.
fn tools() -> Vec<ToolSpec> {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tool = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: format!("Does {name}."),
        parameters: schema.clone(),
    };
    vec![tool("read_file"), tool("write_file"), tool("fs.list")]
}

/// A history in which a tool was used.
fn history() -> Vec<TranscriptMessage> {
    let call = |id: &str, name: &str, arguments: &str| RequestedCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let result = |id: &str, name: &str, text: &str, is_error: bool| TranscriptMessage::Tool {
        call_id: id.to_owned(),
        name: name.to_owned(),
        text: text.to_owned(),
        is_error,
        summary: crate::ToolResultSummary::default(),
    };
    vec![
        TranscriptMessage::User { text: "What is in a.txt?".to_owned() },
        TranscriptMessage::Assistant {
            text: String::new(),
            calls: vec![call("old_1", "fs.list", r#"{"path":"."}"#), call("functions.x:1", "no such", "{broken")],
            reasoning: ReasoningState::default(),
        },
        result("old_1", "fs.list", "a.txt", false),
        result("functions.x:1", "no such", "unknown tool", true),
    ]
}

fn model_request<'a>(messages: &'a [TranscriptMessage], tools: &'a [ToolSpec]) -> ModelRequest<'a> {
    ModelRequest { system: "Be brief.", messages, tools, temperature: Some(0.5), max_tokens: Some(100) }
}

/// A provider that gives up when a test would.
fn provider(kind: ProviderProtocol, base_url: &str) -> ModelProvider {
    ModelProvider {
        kind,
        base_url: base_url.to_owned(),
        model: "tiny".to_owned(),
        key: Some(SecretString::new(KEY)),
        headers: Vec::new(),
        timeouts: ProviderTimeouts { connect: PATIENCE, first_byte: PATIENCE, idle: PATIENCE, answer: None },
        stream: true,
    }
}

/// Asks a model, and checks that the parts are the answer.
async fn ask(model: &dyn LanguageModel) -> Result<ModelResponse, ModelError> {
    let (messages, tools) = (history(), tools());
    let (mut text, mut reasoning) = (String::new(), String::new());
    let mut hear = |part: ResponsePart<'_>| match part {
        ResponsePart::Text(piece) => text.push_str(piece),
        ResponsePart::Reasoning(piece) => reasoning.push_str(piece),
        ResponsePart::Call(_) => {}
    };
    let answer = model.respond(model_request(&messages, &tools), &mut hear).await;
    if let Ok(answer) = &answer {
        assert_eq!((&text, &reasoning), (&answer.text, &answer.reasoning), "the parts are the whole");
    }
    if let Err(error) = &answer {
        assert!(!error.message.contains(KEY), "{}", error.message);
    }
    answer
}

/// Reads a body that comes in these pieces.
fn read<W: ResponseParser>(wire: W, pieces: &[&[u8]]) -> Result<ModelResponse, ProviderError> {
    let mut intake = BodyReader::new(wire);
    let ignore = &mut |_: ResponsePart<'_>| {};
    for piece in pieces {
        intake.push(piece, ignore)?;
    }
    intake.end(None, ignore)
}

fn read_openai(pieces: &[&[u8]]) -> Result<ModelResponse, ProviderError> {
    read(OpenAiParser::new("tiny", &model_request(&history(), &tools())), pieces)
}

fn read_anthropic(pieces: &[&[u8]]) -> Result<ModelResponse, ProviderError> {
    read(AnthropicParser::new("tiny", &model_request(&history(), &tools())), pieces)
}

/// Reads a body in every split, with the same outcome.
#[track_caller]
fn check(read: fn(&[&[u8]]) -> Result<ModelResponse, ProviderError>, body: &[u8], expected: Expect) {
    let whole = read(&[body]);
    expected.assert_eq(&outcome(&whole));
    // Long bodies are made of equal parts, and cut in the first and the last.
    let cuts = (0..body.len()).filter(|at| body.len() < 4096 || *at < 1024 || *at + 1024 > body.len());
    for at in cuts {
        let (head, tail) = body.split_at(at);
        assert_eq!(read(&[head, tail]), whole, "cut at {at}");
    }
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(read(&bytes), whole, "byte by byte");
}

/// An outcome in a few lines, without empty fields.
fn outcome(answer: &Result<ModelResponse, ProviderError>) -> String {
    match answer {
        Ok(answer) => describe_answer(answer),
        Err(fault) => format!("{:?}: {}", fault.kind, fault.text),
    }
}

fn describe_answer(answer: &ModelResponse) -> String {
    let mut description = format!("{:?}", answer.finish);
    for (what, text) in
        [("text", Some(&answer.text)), ("reasoning", Some(&answer.reasoning)), ("refusal", answer.refusal.as_ref())]
    {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            let _ = write!(description, "\n{what} {text:?}");
        }
    }
    for call in &answer.calls {
        let _ = write!(description, "\ncall {} {} {}", call.id, call.name, call.arguments);
    }
    if answer.calls_dropped > 0 {
        let _ = write!(description, "\ndropped {}", answer.calls_dropped);
    }
    if let Some(usage) = answer.usage {
        let _ = write!(description, "\nusage {} + {} = {}", usage.input, usage.output, usage.total);
        let _ = write!(description, ", {} {} {}", usage.reasoning, usage.cache_read, usage.cache_write);
    }
    if let Some(model) = &answer.served_by {
        let _ = write!(description, "\nserved by {model}");
    }
    for oddity in &answer.warnings {
        let _ = write!(description, "\nodd: {oddity}");
    }
    description
}

#[track_caller]
fn error_kind(answer: Result<ModelResponse, ModelError>) -> ModelErrorKind {
    answer.unwrap_err().kind
}
