//! Tool-calling probe: does a model call tools when asked to?
//!
//! A server that does not know tools refuses them, or leaves them out and says nothing; a model that does not know them
//! writes calls as text, or none. One question tells these apart. Nothing is done with what comes back.

use serde_json::json;

use crate::message::TranscriptMessage;
use crate::model::{FinishReason, LanguageModel, ModelError, ModelRequest, ResponsePart, ToolSpec};
use crate::text_calls;

const TOOL: &str = "report_ready";
const PROMPT: &str = "Call the tool `report_ready` once, with the word `ready`. Say nothing else.";

/// Enough for a call, and for a model that thinks first.
const MAX_TOKENS: u64 = 1024;

/// Support of a model for tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolCallSupport {
    /// It calls them as they are declared.
    Supported,
    /// It calls something, and not what was asked for.
    WrongCall,
    /// It writes calls as text, which are never run.
    CallsAsText,
    /// It answered without a call.
    NoCall,
    /// Its response was empty or truncated.
    NoAnswer,
}

impl ToolCallSupport {
    /// The consequence, for a person.
    pub fn explain(self) -> &'static str {
        match self {
            Self::Supported => "it calls tools",
            Self::WrongCall => {
                "it calls tools, but not as instructed: expect many refused calls, or choose a larger model"
            }
            Self::CallsAsText => {
                "it writes its calls as text, which is never executed: its server does not parse tool calls. Start \
                 llama.cpp with `--jinja`, vLLM with `--enable-auto-tool-choice` and the `--tool-call-parser` of this model; \
                 or set `repair_tool_calls = true` to execute answers that are nothing but calls"
            }
            Self::NoCall => {
                "it was asked to call a tool and called none: its server silently ignores `tools`, or the model does not \
                 support them. The agent needs tools: choose a model that supports them, and start llama.cpp with `--jinja`"
            }
            Self::NoAnswer => {
                "it was asked to call a tool and returned nothing: try again, or raise the token limit above its reasoning"
            }
        }
    }
}

/// Asks a model to call a tool, and says what came of it.
pub async fn probe(model: &dyn LanguageModel) -> Result<ToolCallSupport, ModelError> {
    let tools = [ToolSpec {
        name: TOOL.to_owned(),
        description: "Report that you are ready.".to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word `ready`."}},
            "required": ["word"],
            "additionalProperties": false,
        }),
    }];
    let messages = [TranscriptMessage::User { text: PROMPT.to_owned() }];
    let ask = ModelRequest {
        system: "You call tools when you are asked to.",
        messages: &messages,
        tools: &tools,
        temperature: Some(0.0),
        max_tokens: Some(MAX_TOKENS),
    };
    let answer = model.respond(ask, &mut |_: ResponsePart<'_>| {}).await?;
    let has_word = |arguments: &str| {
        serde_json::from_str::<serde_json::Value>(arguments).is_ok_and(|arguments| arguments["word"].is_string())
    };
    Ok(match answer.calls.first() {
        Some(_) if answer.finish == FinishReason::Length => ToolCallSupport::NoAnswer,
        Some(call) if call.name == TOOL && has_word(&call.arguments) => ToolCallSupport::Supported,
        Some(_) => ToolCallSupport::WrongCall,
        None if text_calls::has_call(&answer.text, &[TOOL]) => ToolCallSupport::CallsAsText,
        None if answer.text.trim().is_empty() => ToolCallSupport::NoAnswer,
        None => ToolCallSupport::NoCall,
    })
}
