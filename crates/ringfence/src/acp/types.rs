//! ACP message types, and conversion of prompts to text.
//!
//! Version 1 of the wire. Its types are written here and not taken from the crate of the protocol, because that crate
//! makes every map of JSON in the whole program keep the order of insertion, and with it changes what all other fronts print.
//!
//! Not here: what is done about them (`server.rs`).

use std::path::Path;

use ringfence_agent::AgentStopReason;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::app::session_mode::SessionMode;
use crate::codec::jsonrpc::{INVALID_PARAMS, JsonRpcError};
use crate::codec::percent::percent_decode;

/// The version of the wire.
pub(super) const PROTOCOL_VERSION: u64 = 1;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcpNewSessionRequest {
    pub(super) cwd: String,
    #[serde(default)]
    pub(super) mcp_servers: Vec<Value>,
}

/// For `session/load` and `session/resume`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcpLoadSessionRequest {
    pub(super) session_id: String,
    #[serde(flatten)]
    pub(super) new: AcpNewSessionRequest,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct AcpListSessionsRequest {
    pub(super) cwd: Option<String>,
}

/// Parameters with nothing but a session.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcpSessionRequest {
    pub(super) session_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcpSetModeRequest {
    pub(super) session_id: String,
    pub(super) mode_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcpPromptRequest {
    pub(super) session_id: String,
    pub(super) prompt: Vec<AcpContentBlock>,
}

/// A part of a prompt.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum AcpContentBlock {
    Text {
        text: String,
    },
    ResourceLink {
        uri: String,
    },
    Resource {
        resource: AcpEmbeddedResource,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
pub(super) struct AcpEmbeddedResource {
    uri: String,
    text: Option<String>,
}

/// Reads the parameters of a request.
pub(super) fn parse_params<T: DeserializeOwned>(params: Value) -> Result<T, JsonRpcError> {
    serde_json::from_value(params)
        .map_err(|error| JsonRpcError::new(INVALID_PARAMS, format!("invalid params: {error}")))
}

/// Our capabilities.
pub(super) fn capabilities() -> Value {
    json!({
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": {"image": false, "audio": false, "embeddedContext": true},
            "mcpCapabilities": {"http": false, "sse": false},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
        },
        "agentInfo": {"name": "ringfence", "title": "Ringfence", "version": env!("CARGO_PKG_VERSION")},
        "authMethods": [],
    })
}

/// The modes that there are, and the one that holds.
pub(super) fn modes(now: SessionMode) -> Value {
    let mode = |mode: SessionMode| {
        let description = match mode {
            SessionMode::Configured => "Use the configured policy",
            SessionMode::Ask => "Also ask before every change",
            SessionMode::ReadOnly => "Refuse every change",
        };
        json!({"id": mode.name(), "name": mode.title(), "description": description})
    };
    json!({"currentModeId": now.name(), "availableModes": SessionMode::ALL.map(mode)})
}

/// The protocol's stop reason of a prompt; an end without one is a failure.
pub(super) fn stop_reason(end: &AgentStopReason) -> Option<&'static str> {
    match end {
        AgentStopReason::Answered
        | AgentStopReason::Empty
        | AgentStopReason::Repeated
        | AgentStopReason::Denied
        | AgentStopReason::BadCalls => Some("end_turn"),
        AgentStopReason::StepLimit | AgentStopReason::TimeLimit => Some("max_turn_requests"),
        AgentStopReason::Cancelled => Some("cancelled"),
        AgentStopReason::Refusal | AgentStopReason::Filter => Some("refusal"),
        AgentStopReason::Length | AgentStopReason::TokenLimit => Some("max_tokens"),
        AgentStopReason::Model(_) | AgentStopReason::Transcript(_) | AgentStopReason::Host(_) => None,
    }
}

/// A prompt as the model reads it. Files of the workspace are named by the paths that tools take.
pub(super) fn prompt_text(blocks: &[AcpContentBlock], root: &Path) -> Result<String, JsonRpcError> {
    let mut text = String::new();
    for block in blocks {
        match block {
            AcpContentBlock::Text { text: part } => text.push_str(part),
            AcpContentBlock::ResourceLink { uri } => text.push_str(&format!("`{}`", path_or_uri(uri, root))),
            AcpContentBlock::Resource { resource: AcpEmbeddedResource { uri, text: Some(contents) } } => {
                text.push_str(&format!("\n\n`{}`:\n````\n{}\n````\n", path_or_uri(uri, root), contents.trim_end()));
            }
            AcpContentBlock::Resource { resource: AcpEmbeddedResource { uri, text: None } } => {
                text.push_str(&format!("`{}` (binary content)", path_or_uri(uri, root)));
            }
            AcpContentBlock::Other => {
                return Err(JsonRpcError::new(
                    INVALID_PARAMS,
                    "a prompt may contain text, resources and resource links",
                ));
            }
        }
    }
    match text.trim().is_empty() {
        true => Err(JsonRpcError::new(INVALID_PARAMS, "the prompt is empty")),
        false => Ok(text),
    }
}

/// The path in the workspace that a link means, or the link.
fn path_or_uri(uri: &str, root: &Path) -> String {
    let path = uri.strip_prefix("file://").and_then(percent_decode);
    let inside = path.as_deref().and_then(|path| Path::new(path).strip_prefix(root).ok());
    match inside {
        Some(inside) => inside.display().to_string(),
        None => uri.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::{AcpContentBlock, prompt_text};

    #[track_caller]
    fn check(blocks: Value, expected: Result<&str, &str>) {
        let blocks: Vec<AcpContentBlock> = serde_json::from_value(blocks).unwrap();
        let text = prompt_text(&blocks, Path::new("/p"));
        assert_eq!(text.as_deref().map_err(|refusal| refusal.message.as_str()), expected);
    }

    #[test]
    fn a_prompt_names_files_as_tools_do() {
        let link = |uri: &str| json!({"type": "resource_link", "name": "a", "uri": uri});
        check(json!([{"type": "text", "text": "read "}, link("file:///p/a%20b.txt")]), Ok("read `a b.txt`"));
        check(json!([link("file:///elsewhere/a")]), Ok("`file:///elsewhere/a`"));
        let file = json!({"type": "resource", "resource": {"uri": "file:///p/a", "text": "one\n"}});
        check(json!([{"type": "text", "text": "look:"}, file]), Ok("look:\n\n`a`:\n````\none\n````\n"));
    }

    #[test]
    fn a_block_without_text_is_refused() {
        let image = json!([{"type": "image", "data": "", "mimeType": "image/png"}]);
        check(image, Err("a prompt may contain text, resources and resource links"));
        check(json!([{"type": "text", "text": " "}]), Err("the prompt is empty"));
    }
}
