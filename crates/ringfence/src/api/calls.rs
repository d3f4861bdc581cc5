//! Calls through the API: one, or those of an assistant's message. Every one goes to `Host::call`, and the reply is the
//! dialect's own bytes.

use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{Reply, Returned, ToolCall};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Api;
use super::problem::Problem;
use super::routes::{Done, Nothing, Visit};
use super::sessions::{Entered, Sitting};

/// Characters of an id that a caller gives.
const LONGEST_ID: usize = 128;

/// Seconds that a call may wait for a person.
const LONGEST_WAIT: u64 = 600;

/// Calls of one message.
const MOST_CALLS: usize = 64;

/// A call that is to be made.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NewCall {
    /// Unique among those that are under way; one is made where it is left out.
    #[schemars(regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]{1,128}$"))]
    id: Option<String>,
    /// The tool.
    name: String,
    /// Its arguments: an object, or JSON text of one.
    #[serde(default)]
    arguments: Value,
    /// How many seconds to wait for a person, where one is asked.
    wait: Option<u64>,
}

/// A call that was put off, and is to go on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ComingBack {
    /// What came with the reply that put it off.
    token: String,
    #[schemars(regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]{1,128}$"))]
    id: String,
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// What became of a call.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    call_id: String,
    /// What the model is told, in the words of the session's dialect.
    reply: String,
    /// The kind of an error, for programs.
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    suspended: Option<PutOff>,
}

/// A call that waits for a person.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PutOff {
    /// The call that is meant.
    call: String,
    /// The request that has to be answered first.
    request: String,
    /// For going on with the call, once.
    token: String,
}

/// What an assistant said, as chat completions have it. Only its calls matter here.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Said {
    tool_calls: Vec<SaidCall>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct SaidCall {
    id: String,
    function: SaidFunction,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct SaidFunction {
    name: String,
    /// JSON text.
    arguments: String,
}

/// A result, as chat completions have it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolMessage {
    role: &'static str,
    tool_call_id: String,
    content: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolMessages {
    /// One for each call, in their order.
    messages: Vec<ToolMessage>,
    /// Those that wait for a person, and can go on.
    suspended: Vec<PutOff>,
}

pub(super) async fn call(api: Arc<Api>, visit: Visit, new: NewCall) -> Result<Answer, Problem> {
    let sitting = api.sitting(&visit)?;
    let id = checked(new.id.unwrap_or_else(|| sitting.next_call()))?;
    let call = ToolCall { id, name: new.name, arguments: text_of(new.arguments) };
    let entered = enter(&sitting, &call.id)?;
    make(&api, &sitting, call, new.wait.map(|seconds| Duration::from_secs(seconds.min(LONGEST_WAIT))), &entered).await
}

pub(super) async fn go_on(api: Arc<Api>, visit: Visit, back: ComingBack) -> Result<Answer, Problem> {
    let sitting = api.sitting(&visit)?;
    let call = ToolCall { id: checked(back.id)?, name: back.name, arguments: text_of(back.arguments) };
    let entered = enter(&sitting, &call.id)?;
    let _turn = sitting.turn(&call.name).await;
    let listener = Some(api.feed.listener(&sitting.session, &call.id));
    let returned = Returned { token: back.token, call, answered: None, listener };
    Ok(answer(sitting.wired.host.resume_call(&sitting.session, returned, &entered.cancel).await?))
}

pub(super) async fn cancel(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Done, Problem> {
    match api.sitting(&visit)?.cancel(visit.name(1)) {
        true => Ok(Done {}),
        false => Err(Problem::missing("no call of that id is under way")),
    }
}

pub(super) async fn message(api: Arc<Api>, visit: Visit, said: Said) -> Result<ToolMessages, Problem> {
    let sitting = api.sitting(&visit)?;
    if said.tool_calls.len() > MOST_CALLS {
        return Err(Problem::bad(format!("a message has up to {MOST_CALLS} calls")));
    }
    let mut ids = std::collections::HashSet::new();
    if !said.tool_calls.iter().all(|call| ids.insert(call.id.as_str())) {
        return Err(Problem::bad("two calls of a message have the same id"));
    }
    let (mut messages, mut suspended) = (Vec::new(), Vec::new());
    for SaidCall { id, function: SaidFunction { name, arguments } } in said.tool_calls {
        let call = ToolCall { id: checked(id)?, name, arguments };
        let entered = enter(&sitting, &call.id)?;
        let Answer { call_id, reply, suspended: put_off, .. } = make(&api, &sitting, call, None, &entered).await?;
        messages.push(ToolMessage { role: "tool", tool_call_id: call_id, content: reply });
        suspended.extend(put_off);
    }
    Ok(ToolMessages { messages, suspended })
}

async fn make(
    api: &Api,
    sitting: &Arc<Sitting>,
    call: ToolCall,
    wait: Option<Duration>,
    entered: &Entered,
) -> Result<Answer, Problem> {
    let _waiting = api.waits.set(&sitting.session.id, &call.id, wait);
    let listener = api.feed.listener(&sitting.session, &call.id);
    let _turn = tokio::select! {
        turn = sitting.turn(&call.name) => turn,
        // The host says what becomes of a call that was cancelled.
        () = entered.cancel.cancelled() => None,
    };
    let made = sitting.wired.host.call_heard(&sitting.session, call, &entered.cancel, Some(listener)).await;
    Ok(answer(made?))
}

fn answer(reply: Reply) -> Answer {
    let Reply { call_id, text, error, suspended } = reply;
    let put_off =
        suspended.map(|put_off| PutOff { call: call_id.clone(), request: put_off.request, token: put_off.token });
    Answer { call_id, reply: text, error: error.map(ringfence_kernel::ErrorKind::name), suspended: put_off }
}

fn enter(sitting: &Arc<Sitting>, call: &str) -> Result<Entered, Problem> {
    sitting.enter(call).ok_or_else(|| Problem::conflict("a call of that id is under way"))
}

fn checked(id: String) -> Result<String, Problem> {
    let fits = !id.is_empty() && id.chars().count() <= LONGEST_ID && !id.contains(char::is_control);
    if fits { Ok(id) } else { Err(Problem::bad(format!("the id of a call has 1 to {LONGEST_ID} characters"))) }
}

/// The arguments as the road takes them. It says itself what is wrong with them.
fn text_of(arguments: Value) -> String {
    match arguments {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}
