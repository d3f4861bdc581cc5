//! The wire formats of model providers, as far as a scripted model needs them.
//!
//! Anthropic messages, OpenAI chat completions, OpenAI responses and Gemini `generateContent`: what a request offers and
//! brings back is read, and a tool call or a last text is written, streamed or whole.

use serde_json::{Value, json};

/// A format, by the path that clients post to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireFormat {
    Anthropic,
    Chat,
    Responses,
    Gemini,
}

/// A tool as a request offers it.
#[derive(Clone, Debug)]
pub(super) struct OfferedTool {
    pub(super) name: String,
    /// Some clients put the tools of a server into a namespace.
    pub(super) namespace: Option<String>,
    pub(super) has_schema: bool,
    /// Called with a text instead of an object: the `input` of the arguments.
    pub(super) is_freeform: bool,
}

/// The model's next turn.
#[derive(Clone, Debug)]
pub(super) enum ModelTurn {
    Call {
        tool: OfferedTool,
        arguments: Value,
        number: usize,
    },
    /// A search for tools that the client keeps back; Responses only.
    SearchTools {
        query: String,
    },
    Text(String),
}

impl WireFormat {
    pub(super) fn from_path(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or_default();
        match path {
            path if path.ends_with("/messages") => Some(Self::Anthropic),
            path if path.ends_with("/chat/completions") => Some(Self::Chat),
            path if path.ends_with("/responses") => Some(Self::Responses),
            path if path.to_ascii_lowercase().contains("generatecontent") => Some(Self::Gemini),
            _ => None,
        }
    }

    pub(super) fn tools(self, request: &Value) -> Vec<OfferedTool> {
        let mut found = Vec::new();
        for tool in list(&request["tools"]) {
            match self {
                Self::Gemini => {
                    list(&tool["functionDeclarations"]).for_each(|each| found.extend(parse_offered_tool(each, None)))
                }
                Self::Chat => found.extend(parse_offered_tool(&tool["function"], None)),
                Self::Responses => found.extend(responses_tools(tool)),
                Self::Anthropic => found.extend(parse_offered_tool(tool, None)),
            }
        }
        if self == Self::Responses {
            let listed = list(&request["input"]).filter(|item| item["type"] == "tool_search_output");
            found.extend(listed.flat_map(|item| list(&item["tools"])).flat_map(responses_tools));
        }
        found
    }

    /// Whether the client keeps tools back and has not listed them yet.
    pub(super) fn can_search_tools(self, request: &Value) -> bool {
        self == Self::Responses
            && list(&request["tools"]).any(|tool| tool["type"] == "tool_search")
            && !list(&request["input"]).any(|item| item["type"] == "tool_search_output")
    }

    /// The results of tool calls that a request brings back, oldest first.
    pub(super) fn results(self, request: &Value) -> Vec<Value> {
        let is_output = |item: &&Value| item["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output"));
        match self {
            Self::Anthropic => list(&request["messages"])
                .flat_map(|message| list(&message["content"]))
                .filter(|block| block["type"] == "tool_result")
                .cloned()
                .collect(),
            Self::Chat => list(&request["messages"]).filter(|message| message["role"] == "tool").cloned().collect(),
            Self::Responses => list(&request["input"]).filter(is_output).cloned().collect(),
            Self::Gemini => list(&request["contents"])
                .flat_map(|content| list(&content["parts"]))
                .filter(|part| part.get("functionResponse").is_some())
                .cloned()
                .collect(),
        }
    }

    /// Whether the client wants a stream of events.
    pub(super) fn is_streamed(self, path: &str, request: &Value) -> bool {
        match self {
            Self::Gemini => path.contains("stream"),
            _ => request["stream"] == true,
        }
    }

    /// The answer as one value.
    pub(super) fn full_response(self, request: &Value, turn: &ModelTurn) -> Value {
        match self {
            Self::Anthropic => anthropic(request, &[anthropic_block(turn)], Some(anthropic_stop(turn))),
            Self::Chat => {
                let choice = json!({"index": 0, "message": chat_message(turn), "finish_reason": chat_stop(turn)});
                chat("chat.completion", &json!([choice]), &chat_usage())
            }
            Self::Responses => response("completed", &[response_item(turn)]),
            Self::Gemini => gemini(turn),
        }
    }

    /// The answer as a stream of server-sent events.
    pub(super) fn event_stream(self, request: &Value, turn: &ModelTurn) -> String {
        let named = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
        let bare = |event: &Value| format!("data: {event}\n\n");
        match self {
            Self::Anthropic => anthropic_events(request, turn).iter().map(named).collect(),
            Self::Responses => response_events(turn).iter().map(named).collect(),
            Self::Chat => chat_events(turn).iter().map(bare).collect::<String>() + "data: [DONE]\n\n",
            Self::Gemini => bare(&gemini(turn)),
        }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A tool, or those of a namespace.
fn responses_tools(tool: &Value) -> Vec<OfferedTool> {
    match tool["type"] == "namespace" {
        true => list(&tool["tools"]).filter_map(|each| parse_offered_tool(each, tool["name"].as_str())).collect(),
        false => parse_offered_tool(tool, None).into_iter().collect(),
    }
}

fn parse_offered_tool(tool: &Value, namespace: Option<&str>) -> Option<OfferedTool> {
    let schema = ["input_schema", "parameters", "parametersJsonSchema"].iter().find_map(|key| tool.get(key));
    Some(OfferedTool {
        name: tool["name"].as_str()?.to_owned(),
        namespace: namespace.map(str::to_owned),
        has_schema: schema.is_some_and(|schema| schema.get("properties").is_some()),
        is_freeform: tool["type"] == "custom",
    })
}

fn anthropic(request: &Value, content: &[Value], stop: Option<&str>) -> Value {
    let model = request["model"].as_str().unwrap_or("scripted");
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": stop, "stop_sequence": null, "usage": {"input_tokens": 10, "output_tokens": 5},
    })
}

fn anthropic_stop(turn: &ModelTurn) -> &'static str {
    if matches!(turn, ModelTurn::Call { .. }) { "tool_use" } else { "end_turn" }
}

fn anthropic_block(turn: &ModelTurn) -> Value {
    match turn {
        ModelTurn::Call { tool, arguments, number } => {
            json!({"type": "tool_use", "id": format!("toolu_{number}"), "name": tool.name, "input": arguments})
        }
        ModelTurn::SearchTools { query } | ModelTurn::Text(query) => json!({"type": "text", "text": query}),
    }
}

fn anthropic_events(request: &Value, turn: &ModelTurn) -> Vec<Value> {
    let mut start = anthropic_block(turn);
    let delta = match turn {
        ModelTurn::Call { arguments, .. } => {
            start["input"] = json!({});
            json!({"type": "input_json_delta", "partial_json": arguments.to_string()})
        }
        ModelTurn::SearchTools { query: text } | ModelTurn::Text(text) => {
            start["text"] = json!("");
            json!({"type": "text_delta", "text": text})
        }
    };
    vec![
        json!({"type": "message_start", "message": anthropic(request, &[], None)}),
        json!({"type": "content_block_start", "index": 0, "content_block": start}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({
            "type": "message_delta", "delta": {"stop_reason": anthropic_stop(turn), "stop_sequence": null},
            "usage": {"output_tokens": 5},
        }),
        json!({"type": "message_stop"}),
    ]
}

fn chat(object: &str, choices: &Value, usage: &Value) -> Value {
    json!({"id": "c_1", "object": object, "created": 1, "model": "scripted", "choices": choices, "usage": usage})
}

fn chat_usage() -> Value {
    json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
}

fn chat_stop(turn: &ModelTurn) -> &'static str {
    if matches!(turn, ModelTurn::Call { .. }) { "tool_calls" } else { "stop" }
}

fn chat_message(turn: &ModelTurn) -> Value {
    match turn {
        ModelTurn::Call { tool, arguments, number } => {
            let function = json!({"name": tool.name, "arguments": arguments.to_string()});
            let call = json!({"index": 0, "id": format!("call_{number}"), "type": "function", "function": function});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        }
        ModelTurn::SearchTools { query: text } | ModelTurn::Text(text) => {
            json!({"role": "assistant", "content": text})
        }
    }
}

fn chat_events(turn: &ModelTurn) -> Vec<Value> {
    let event = |choices: Value, usage: Value| chat("chat.completion.chunk", &choices, &usage);
    vec![
        event(json!([{"index": 0, "delta": chat_message(turn), "finish_reason": null}]), Value::Null),
        event(json!([{"index": 0, "delta": {}, "finish_reason": chat_stop(turn)}]), Value::Null),
        event(json!([]), chat_usage()),
    ]
}

fn response(status: &str, output: &[Value]) -> Value {
    json!({
        "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "scripted", "output": output,
        "usage": {
            "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15,
        },
    })
}

fn response_item(turn: &ModelTurn) -> Value {
    match turn {
        ModelTurn::SearchTools { query } => json!({
            "type": "tool_search_call", "id": "ts_1", "call_id": "search_1", "execution": "client", "status": "completed",
            "arguments": {"query": query, "limit": 50},
        }),
        ModelTurn::Call { tool, arguments, number } if tool.is_freeform => json!({
            "type": "custom_tool_call", "id": format!("ctc_{number}"), "call_id": format!("call_{number}"),
            "name": tool.name, "input": arguments["input"], "status": "completed",
        }),
        ModelTurn::Call { tool, arguments, number } => {
            let mut item = json!({
                "type": "function_call", "id": format!("fc_{number}"), "call_id": format!("call_{number}"),
                "name": tool.name, "arguments": arguments.to_string(), "status": "completed",
            });
            if let Some(namespace) = &tool.namespace {
                item["namespace"] = json!(namespace);
            }
            item
        }
        ModelTurn::Text(text) => json!({
            "type": "message", "id": "m_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }),
    }
}

fn response_events(turn: &ModelTurn) -> Vec<Value> {
    let item = response_item(turn);
    vec![
        json!({"type": "response.created", "response": response("in_progress", &[])}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": item}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": response("completed", &[item])}),
    ]
}

fn gemini(turn: &ModelTurn) -> Value {
    let part = match turn {
        ModelTurn::Call { tool, arguments, .. } => json!({"functionCall": {"name": tool.name, "args": arguments}}),
        ModelTurn::SearchTools { query: text } | ModelTurn::Text(text) => json!({"text": text}),
    };
    let candidate = json!({"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0});
    json!({
        "candidates": [candidate], "modelVersion": "scripted",
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
    })
}
