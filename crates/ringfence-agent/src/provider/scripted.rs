//! Scripted model, for tests and for the demo.
//!
//! A script has one answer or error a line, as JSON, in the order in which they are given; empty lines and lines that begin
//! with `#` are passed over. A line can also say what it expects to be asked, and the run fails where that does not hold.

use std::time::Duration;

use ringfence_kernel::sync::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::quote_text;
use crate::message::{RequestedCall, TranscriptMessage};
use crate::model::{
    FinishReason, LanguageModel, ModelError, ModelErrorKind, ModelFuture, ModelRequest, ModelResponse, ResponsePart,
    ResponsePartSink, TokenUsage,
};

/// A script and how far it was played.
#[derive(Debug)]
pub(crate) struct ScriptedProvider {
    name: String,
    lines: Vec<(usize, ScriptedResponse)>,
    /// The line that is next, and how often it was played.
    next: Mutex<(usize, usize)>,
}

/// One line of a script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedResponse {
    #[serde(default)]
    text: String,
    #[serde(default)]
    reasoning: String,
    #[serde(default)]
    calls: Vec<ScriptedToolCall>,
    refusal: Option<String>,
    finish: Option<String>,
    usage: Option<TokenUsage>,
    error: Option<ScriptedErrorKind>,
    message: Option<String>,
    #[serde(alias = "retry_after")]
    retry_after_ms: Option<u64>,
    /// It says its text and then nothing more, for ever.
    #[serde(default)]
    stall: bool,
    /// Number of calls beyond the limit of a response.
    #[serde(default)]
    calls_dropped: usize,
    #[serde(default)]
    expect: ScriptedExpectation,
    /// Number of repetitions.
    #[serde(default = "once")]
    times: usize,
}

fn once() -> usize {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedToolCall {
    id: Option<String>,
    name: String,
    /// An object, or a text as a model would write it, right or wrong.
    arguments: Option<Box<RawValue>>,
}

/// Expected properties of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedExpectation {
    last_tool_contains: Option<String>,
    last_user_contains: Option<String>,
    system_contains: Option<String>,
    /// A tool that is offered.
    offers: Option<String>,
    /// Number of offered tools; 0 in the step that ends a run.
    tools: Option<usize>,
    messages: Option<usize>,
}

/// An error by its name.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScriptedErrorKind {
    Unreachable,
    Busy,
    Server,
    Cut,
    Stalled,
    Garbled,
    TooLong,
    Denied,
    NoSuchModel,
    NoTools,
    BadRequest,
}

impl ScriptedProvider {
    pub(crate) fn parse(name: &str, script: &str) -> Result<Self, ModelError> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(script.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let line: ScriptedResponse = serde_json::from_str(line).map_err(|error| {
                script_error(format!("invalid line {number} of the script: {}", quote_text(&error.to_string())))
            })?;
            lines.push((number, line));
        }
        Ok(Self { name: name.to_owned(), lines, next: Mutex::new((0, 0)) })
    }

    /// The next line of the script.
    fn next_line(&self) -> Result<&(usize, ScriptedResponse), ModelError> {
        let mut next = self.next.lock();
        let (mut at, mut played) = *next;
        while self.lines.get(at).is_some_and(|(_, line)| played >= line.times) {
            (at, played) = (at + 1, 0);
        }
        *next = (at, played + 1);
        self.lines.get(at).ok_or_else(|| script_error("the script has no further answer".to_owned()))
    }

    async fn next_response(
        &self,
        ask: &ModelRequest<'_>,
        parts: &mut ResponsePartSink<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let (number, line) = self.next_line()?;
        line.expect.check(ask).map_err(|what| script_error(format!("line {number} of the script expected {what}")))?;
        if let Some(error) = line.error {
            let message = line.message.clone().unwrap_or_else(|| format!("the script says: {}", error.name()));
            let retry_after = line.retry_after_ms.map(Duration::from_millis);
            return Err(ModelError { kind: error.kind(retry_after), message });
        }
        let answer = line.to_response(ask.messages.len(), parts);
        if line.stall {
            std::future::pending::<()>().await;
        }
        Ok(answer)
    }
}

impl LanguageModel for ScriptedProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn respond<'a>(
        &'a self,
        ask: ModelRequest<'a>,
        parts: &'a mut ResponsePartSink<'_>,
    ) -> ModelFuture<'a, ModelResponse> {
        Box::pin(async move { self.next_response(&ask, parts).await })
    }

    fn health(&self) -> ModelFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

impl ScriptedResponse {
    fn to_response(&self, messages: usize, parts: &mut ResponsePartSink<'_>) -> ModelResponse {
        if !self.reasoning.is_empty() {
            parts(ResponsePart::Reasoning(&self.reasoning));
        }
        for word in self.text.split_inclusive(' ') {
            parts(ResponsePart::Text(word));
        }
        let mut calls = Vec::new();
        for (number, call) in (1..).zip(&self.calls) {
            parts(ResponsePart::Call(&call.name));
            let id = call.id.clone().unwrap_or_else(|| format!("call_{messages}_{number}"));
            calls.push(RequestedCall { id, name: call.name.clone(), arguments: call.arguments() });
        }
        ModelResponse {
            text: self.text.clone(),
            reasoning: self.reasoning.clone(),
            finish: self.finish(),
            calls,
            refusal: self.refusal.clone(),
            calls_dropped: self.calls_dropped,
            usage: self
                .usage
                .map(|usage| TokenUsage { total: usage.total.max(usage.input.saturating_add(usage.output)), ..usage }),
            ..ModelResponse::default()
        }
    }

    fn finish(&self) -> FinishReason {
        match self.finish.as_deref() {
            None if self.refusal.is_some() => FinishReason::Refusal,
            None if !self.calls.is_empty() => FinishReason::Calls,
            None | Some("stop") => FinishReason::Stop,
            Some("calls") => FinishReason::Calls,
            Some("length") => FinishReason::Length,
            Some("filter") => FinishReason::Filter,
            Some("refusal") => FinishReason::Refusal,
            Some(other) => FinishReason::Other(other.to_owned()),
        }
    }
}

impl ScriptedToolCall {
    fn arguments(&self) -> String {
        let Some(raw) = &self.arguments else { return "{}".to_owned() };
        serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned())
    }
}

impl ScriptedExpectation {
    /// The failed expectation. The actual value may be contents of files, and is not in the message.
    fn check(&self, ask: &ModelRequest<'_>) -> Result<(), String> {
        let last =
            |pick: fn(&TranscriptMessage) -> Option<&str>| ask.messages.iter().rev().find_map(pick).unwrap_or_default();
        let tool = last(|message| if let TranscriptMessage::Tool { text, .. } = message { Some(text) } else { None });
        let user = last(|message| if let TranscriptMessage::User { text } = message { Some(text) } else { None });
        let texts = [
            ("the last result of a tool", tool, &self.last_tool_contains),
            ("the last message of the user", user, &self.last_user_contains),
            ("the system prompt", ask.system, &self.system_contains),
        ];
        for (what, text, wanted) in texts {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| !text.contains(*wanted)) {
                return Err(format!("{what} to contain `{}`", quote_text(wanted)));
            }
        }
        if let Some(name) = self.offers.as_deref().filter(|name| ask.tools.iter().all(|tool| tool.name != *name)) {
            return Err(format!("the tool `{}` to be offered", quote_text(name)));
        }
        let counts = [("tools", ask.tools.len(), self.tools), ("messages", ask.messages.len(), self.messages)];
        match counts.iter().find(|(_, count, wanted)| wanted.is_some_and(|wanted| wanted != *count)) {
            Some((what, count, wanted)) => Err(format!("{} {what}, and there are {count}", wanted.unwrap_or_default())),
            None => Ok(()),
        }
    }
}

impl ScriptedErrorKind {
    fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::Server => "server",
            Self::Cut => "cut",
            Self::Stalled => "stalled",
            Self::Garbled => "garbled",
            Self::TooLong => "too_long",
            Self::Denied => "denied",
            Self::NoSuchModel => "no_such_model",
            Self::NoTools => "no_tools",
            Self::BadRequest => "bad_request",
        }
    }

    fn kind(self, retry_after: Option<Duration>) -> ModelErrorKind {
        match self {
            Self::Unreachable => ModelErrorKind::Unreachable,
            Self::Busy => ModelErrorKind::Busy { retry_after },
            Self::Server => ModelErrorKind::Server,
            Self::Cut => ModelErrorKind::Cut,
            Self::Stalled => ModelErrorKind::Stalled,
            Self::Garbled => ModelErrorKind::Garbled,
            Self::TooLong => ModelErrorKind::TooLong,
            Self::Denied => ModelErrorKind::Denied,
            Self::NoSuchModel => ModelErrorKind::NoSuchModel,
            Self::NoTools => ModelErrorKind::NoTools,
            Self::BadRequest => ModelErrorKind::BadRequest,
        }
    }
}

/// An error that a retry would not fix.
fn script_error(message: String) -> ModelError {
    ModelError { kind: ModelErrorKind::BadRequest, message }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::ScriptedProvider;
    use crate::message::TranscriptMessage;
    use crate::model::{FinishReason, LanguageModel as _, ModelRequest, ResponsePart};

    /// Responses of a script to the same request, repeated until it fails.
    async fn play(script: &str) -> Vec<String> {
        let messages = [
            TranscriptMessage::User { text: "make a file".to_owned() },
            TranscriptMessage::Tool {
                call_id: "1".to_owned(),
                name: "x".to_owned(),
                text: "ok: wrote".to_owned(),
                is_error: false,
                summary: crate::ToolResultSummary::default(),
            },
        ];
        let ask = ModelRequest { system: "", messages: &messages, tools: &[], temperature: None, max_tokens: None };
        let model = ScriptedProvider::parse("demo", script).unwrap();
        let mut responses = Vec::new();
        loop {
            let mut parts = String::new();
            let mut hear = |part: ResponsePart<'_>| parts.push_str(&format!("{part:?} "));
            match model.respond(ask, &mut hear).await {
                Ok(answer) => {
                    responses.push(format!("{parts}{:?} {:?} {:?}", answer.finish, answer.calls, answer.usage))
                }
                Err(error) => {
                    responses.push(format!("{:?}: {error}", error.kind));
                    return responses;
                }
            }
        }
    }

    async fn check(script: &str, expected: Expect) {
        expected.assert_eq(&play(script).await.join("\n"));
    }

    #[tokio::test]
    async fn a_script_is_played_line_by_line() {
        let script = r##"
            # A comment.
            {"reasoning":"hm","text":"I write.","calls":[{"name":"write_file","arguments":{"path":"a", "path":"b"}},{"id":"x","name":"y","arguments":"{broken"}]}
            {"text":"Done.","usage":{"input":3,"output":4},"expect":{"last_tool_contains":"ok: wrote","last_user_contains":"file","tools":0,"messages":2}}
        "##;
        check(script, expect![[r#"
            Reasoning("hm") Text("I ") Text("write.") Call("write_file") Call("y") Calls [RequestedCall { id: "call_2_1", name: "write_file", arguments: "{\"path\":\"a\", \"path\":\"b\"}" }, RequestedCall { id: "x", name: "y", arguments: "{broken" }] None
            Text("Done.") Stop [] Some(TokenUsage { input: 3, output: 4, total: 7, reasoning: 0, cache_read: 0, cache_write: 0 })
            BadRequest: the script has no further answer"#]]).await;
    }

    #[tokio::test]
    async fn a_line_may_be_said_often_or_be_an_error() {
        check(
            "{\"text\":\"again\",\"times\":2}\n{\"error\":\"busy\",\"message\":\"later\",\"retry_after_ms\":20}",
            expect![[r#"
                Text("again") Stop [] None
                Text("again") Stop [] None
                Busy { retry_after: Some(20ms) }: later"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_failed_expectation_is_reported() {
        check(
            r#"{"text":"a","expect":{"last_tool_contains":"no such"}}"#,
            expect!["BadRequest: line 1 of the script expected the last result of a tool to contain `no such`"],
        )
        .await;
        check(
            r#"{"text":"a","expect":{"offers":"read_file"}}"#,
            expect!["BadRequest: line 1 of the script expected the tool `read_file` to be offered"],
        )
        .await;
        check(
            r#"{"text":"a","expect":{"tools":3}}"#,
            expect!["BadRequest: line 1 of the script expected 3 tools, and there are 0"],
        )
        .await;
        check(
            r#"{"text":"a","expect":{"system_contains":"brief"}}"#,
            expect!["BadRequest: line 1 of the script expected the system prompt to contain `brief`"],
        )
        .await;
    }

    #[test]
    fn a_wrong_line_is_told_by_its_number() {
        let error = ScriptedProvider::parse("demo", "{\"text\":\"a\"}\n\n{\"txt\":1}").unwrap_err();
        assert!(error.message.starts_with("invalid line 3 of the script: unknown field `txt`"), "{error}");
    }

    #[tokio::test]
    async fn a_finish_can_be_any() {
        for (word, finish) in [
            ("length", FinishReason::Length),
            ("filter", FinishReason::Filter),
            ("odd", FinishReason::Other("odd".to_owned())),
        ] {
            let model = ScriptedProvider::parse("demo", &format!(r#"{{"finish":"{word}"}}"#)).unwrap();
            let ask = ModelRequest { system: "", messages: &[], tools: &[], temperature: None, max_tokens: None };
            assert_eq!(model.respond(ask, &mut |_: ResponsePart<'_>| {}).await.unwrap().finish, finish);
        }
        assert_eq!(ScriptedProvider::parse("demo", "").unwrap().health().await, Ok(()));
    }
}
