//! Tool calls through the API: one call, or those of an assistant message. Each goes to `Host::call`, and the reply is the
//! dialect's own bytes.

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{ErrorKind, ReplyCard, ReplyValue, ResumeRequest, ToolCall, ToolReply};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::routes::{ApiRequestContext, EmptyRequest, EmptyResponse};
use crate::app::session::live::{InFlightWork, LiveSession};

/// Characters of an id that a caller gives.
const MAX_ID_CHARS: usize = 128;

/// Seconds that a call may wait for a person.
const MAX_WAIT_SECONDS: u64 = 600;

/// Calls of one message.
const MAX_CALLS: usize = 64;

/// A call to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NewCallBody {
    /// Unique among the running calls; generated if omitted.
    #[schemars(regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]{1,128}$"))]
    id: Option<String>,
    /// The tool.
    name: String,
    /// The arguments: an object, or its JSON text.
    #[serde(default)]
    arguments: Value,
    /// How many seconds to wait for approval before the call is deferred.
    wait: Option<u64>,
}

/// A deferred call to resume.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ResumeCallBody {
    /// The token from the reply that deferred the call.
    token: String,
    #[schemars(regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]{1,128}$"))]
    id: String,
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// The outcome of a call.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallResponse {
    call_id: String,
    /// The result text for the model, in the session's dialect.
    reply: String,
    /// The error code.
    error: Option<&'static str>,
    /// For people: the result of tests, of git and of formatters, as the web UI draws it. Its texts are untrusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<ReplyCard>,
    #[serde(skip_serializing_if = "Option::is_none")]
    suspended: Option<ApiSuspendedCall>,
}

/// A call that waits for approval.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApiSuspendedCall {
    /// The call.
    call: String,
    /// The approval request to be answered.
    request: String,
    /// The single-use token to resume the call.
    token: String,
}

/// An assistant message in the chat completions format. Only its tool calls are used.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ChatCompletionMessage {
    tool_calls: Vec<ChatCompletionCall>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ChatCompletionCall {
    id: String,
    function: ChatCompletionFunction,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ChatCompletionFunction {
    name: String,
    /// JSON text.
    arguments: String,
}

/// A tool message in the chat completions format.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChatToolMessage {
    role: &'static str,
    tool_call_id: String,
    content: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChatToolMessages {
    /// One message per call, in the order of the calls.
    messages: Vec<ChatToolMessage>,
    /// Calls that wait for approval and can be resumed.
    suspended: Vec<ApiSuspendedCall>,
}

pub(super) async fn call(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    new: NewCallBody,
) -> Result<CallResponse, ApiError> {
    let live = live_session(&api, &context)?;
    let id = check_id(new.id.unwrap_or_else(|| live.next_call_id()))?;
    let call = ToolCall { id, name: new.name, arguments: arguments_json(new.arguments) };
    let work = begin_call(&live, &call.id)?;
    run_call(&api, &live, call, new.wait.map(|seconds| Duration::from_secs(seconds.min(MAX_WAIT_SECONDS))), &work).await
}

pub(super) async fn resume(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    back: ResumeCallBody,
) -> Result<CallResponse, ApiError> {
    let live = live_session(&api, &context)?;
    let call = ToolCall { id: check_id(back.id)?, name: back.name, arguments: arguments_json(back.arguments) };
    let work = begin_call(&live, &call.id)?;
    let _turn = live.change_turn(&call.name, &call.arguments, &work.cancel).await;
    let listener = Some(api.feed.listener(&live.session, &call.id));
    let returned = ResumeRequest { token: back.token, call, decision: None, listener };
    Ok(call_response(live.host.resume_call(&live.session, returned, &work.cancel).await?))
}

pub(super) async fn cancel(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<EmptyResponse, ApiError> {
    match live_session(&api, &context)?.cancel(context.path_param(1)) {
        true => Ok(EmptyResponse {}),
        false => Err(ApiError::not_found("no running call with that id")),
    }
}

pub(super) async fn run_message(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    message: ChatCompletionMessage,
) -> Result<ChatToolMessages, ApiError> {
    let live = live_session(&api, &context)?;
    if message.tool_calls.len() > MAX_CALLS {
        return Err(ApiError::bad_request(format!("a message may have at most {MAX_CALLS} calls")));
    }
    let mut ids = std::collections::HashSet::new();
    if !message.tool_calls.iter().all(|call| ids.insert(call.id.as_str())) {
        return Err(ApiError::bad_request("two calls in the message have the same id"));
    }
    let (mut messages, mut suspended) = (Vec::new(), Vec::new());
    for ChatCompletionCall { id, function: ChatCompletionFunction { name, arguments } } in message.tool_calls {
        let call = ToolCall { id: check_id(id)?, name, arguments };
        let work = begin_call(&live, &call.id)?;
        let CallResponse { call_id, reply, suspended: put_off, .. } = run_call(&api, &live, call, None, &work).await?;
        messages.push(ChatToolMessage { role: "tool", tool_call_id: call_id, content: reply });
        suspended.extend(put_off);
    }
    Ok(ChatToolMessages { messages, suspended })
}

async fn run_call(
    api: &ApiState,
    live: &LiveSession,
    call: ToolCall,
    wait: Option<Duration>,
    work: &InFlightWork,
) -> Result<CallResponse, ApiError> {
    let _waiting = api.approver.override_wait(&live.session.id, &call.id, wait);
    let listener = api.feed.listener(&live.session, &call.id);
    let _turn = live.change_turn(&call.name, &call.arguments, &work.cancel).await;
    Ok(call_response(live.host.call_with_progress(&live.session, call, &work.cancel, Some(listener)).await?))
}

fn call_response(reply: ToolReply) -> CallResponse {
    let error = reply.error_kind().map(ErrorKind::code);
    let card = reply.outcome.as_ref().ok().and_then(ReplyValue::card);
    let ToolReply { call_id, text, suspended, .. } = reply;
    let put_off = suspended.map(|put_off| ApiSuspendedCall {
        call: call_id.clone(),
        request: put_off.request_id,
        token: put_off.token,
    });
    CallResponse { call_id, reply: text, error, card, suspended: put_off }
}

fn live_session(api: &ApiState, context: &ApiRequestContext) -> Result<Arc<LiveSession>, ApiError> {
    Ok(Arc::clone(&api.session_for(context)?.live))
}

fn begin_call(live: &Arc<LiveSession>, call: &str) -> Result<InFlightWork, ApiError> {
    live.begin(call).ok_or_else(|| ApiError::conflict("a call with that id is already running"))
}

fn check_id(id: String) -> Result<String, ApiError> {
    let fits = !id.is_empty() && id.chars().count() <= MAX_ID_CHARS && !id.contains(char::is_control);
    if fits {
        Ok(id)
    } else {
        Err(ApiError::bad_request(format!("a call id must have 1 to {MAX_ID_CHARS} characters")))
    }
}

/// The arguments as JSON text for the kernel, which reports errors in them itself.
fn arguments_json(arguments: Value) -> String {
    match arguments {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}
