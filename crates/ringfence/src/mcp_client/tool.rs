//! External MCP tool as a `Tool` of the host.
//!
//! Its effects are unknown here, so its one access is `external`, and the approval request says that it cannot be
//! undone. Where the server's definition changed since the last use, a person has to approve again, whatever rules
//! allow. Its result is bounded and untrusted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_kernel::{
    Assurance, CallContext, CallLimits, Decision, Dialect, ErrorKind, MCP_MOUNT, ModelText, NET_MOUNT, PolicyAction,
    PolicyResource, Preview, PreviewBody, ResourceAccess, ReviewRequirement, Taint, Ticket, Tool, ToolError, ToolPlan,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Map;

use crate::mcp_client::definition::McpToolDefinition;
use crate::mcp_client::server::McpServerHandle;
use crate::mcp_client::transport::{McpDeadline, truncate_line};
use crate::store::SqliteStore;

/// A tool, and the server that has it.
#[derive(Debug)]
pub(crate) struct McpTool {
    pub(crate) server: Arc<McpServerHandle>,
    pub(crate) definition: McpToolDefinition,
    pub(crate) store: Arc<SqliteStore>,
}

/// A call that may be made.
#[derive(Debug)]
pub(crate) struct McpToolCallPlan {
    arguments: Map<String, serde_json::Value>,
    definition: DefinitionState,
}

/// The stored state of the tool's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefinitionState {
    /// It was never used.
    New,
    Same,
    Changed,
}

/// The server's result.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ToolCallResult {
    text: String,
    structured: Option<serde_json::Value>,
    left_out: Vec<String>,
    truncated: bool,
}

impl Tool for McpTool {
    type Args = Map<String, serde_json::Value>;
    type Prepared = McpToolCallPlan;
    type Outcome = ToolCallResult;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::External];
    /// It notifies the server of the cancellation.
    const GRACEFUL_STOP: bool = true;

    fn plan(&self, arguments: Self::Args, cx: &CallContext<'_>) -> Result<ToolPlan<McpToolCallPlan>, ToolError> {
        let McpToolDefinition { rule_name, digest, .. } = &self.definition;
        cx.set_subject(rule_name);
        self.check_hosts(cx)?;
        let known = match self.store.definition(rule_name).map_err(store_error)? {
            None => DefinitionState::New,
            Some(known) if known == *digest => DefinitionState::Same,
            Some(_) => DefinitionState::Changed,
        };
        let resource = PolicyResource {
            mount: MCP_MOUNT.into(),
            requested_path: rule_name.clone(),
            display_path: rule_name.clone(),
            ..PolicyResource::default()
        };
        Ok(ToolPlan {
            accesses: vec![ResourceAccess { action: PolicyAction::External, resource }],
            prepared: McpToolCallPlan { arguments, definition: known },
        })
    }

    fn preview(&self, work: &mut McpToolCallPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let McpToolDefinition { remote_name: called, description, digest, .. } = &self.definition;
        let changed = match work.definition {
            DefinitionState::Changed => "; its definition changed since it was last used",
            DefinitionState::New | DefinitionState::Same => "",
        };
        let summary =
            format!("call `{called}` of the MCP server `{}`, which cannot be undone{changed}", self.server.name());
        let arguments = serde_json::Value::Object(work.arguments.clone());
        let text = format!(
            "{}\n\nThe server runs {}. Its description of the tool:\n{description}\n",
            serde_json::to_string_pretty(&arguments).unwrap_or_default(),
            self.server.location(),
        );
        Ok(Preview::new(&summary, digest.as_str()).with_body(PreviewBody::Text(text)))
    }

    fn run(&self, work: McpToolCallPlan, ticket: &Ticket<'_>) -> Result<ToolCallResult, ToolError> {
        let McpToolDefinition { rule_name, digest, .. } = &self.definition;
        let cx = ticket.context();
        // Any result is untrusted content.
        cx.add_taint(Taint::SawUntrusted);
        // A changed definition is stored only after a person's approval.
        let person = ticket.approval().is_some_and(|approval| approval.assurance == Assurance::Person);
        if work.definition == DefinitionState::New || (work.definition == DefinitionState::Changed && person) {
            self.store.remember_definition(rule_name, digest).map_err(store_error)?;
        }
        let within = self.server.call_timeout(cx.limits.mcp_time);
        let deadline = McpDeadline { until: Instant::now() + within, check: &|| cx.check() };
        let answer = self.server.call(&self.definition, &work.arguments, &deadline, cx);
        let answer = answer.map_err(|trouble| trouble.into_tool_error(self.server.name()))?;
        let most = usize::try_from(cx.limits.mcp_bytes).unwrap_or(usize::MAX);
        let is_error = answer["isError"] == true;
        let answered = ToolCallResult::parse(answer, most);
        match is_error {
            false => Ok(answered),
            true => {
                let reply_text = truncate_line(&answered.text);
                let message = format!("the MCP server `{}` reported an error: {reply_text}", self.server.name());
                Err(ToolError::new(ErrorKind::Execution, message))
            }
        }
    }

    /// With some time for what comes before and after the call itself.
    fn time_limit(limits: &CallLimits) -> Duration {
        limits.mcp_time + limits.call_time
    }

    fn required_review(&self, work: &McpToolCallPlan) -> Option<ReviewRequirement> {
        let reason = "the definition of this tool changed since it was last used";
        (work.definition == DefinitionState::Changed)
            .then_some(ReviewRequirement { reason, assurance: Assurance::Person })
    }
}

impl McpTool {
    /// The config gives the server its hosts, and still a deny is final.
    fn check_hosts(&self, cx: &CallContext<'_>) -> Result<(), ToolError> {
        for host in self.server.network()? {
            let resource = PolicyResource {
                mount: NET_MOUNT.into(),
                requested_path: host.clone(),
                display_path: host.clone(),
                ..PolicyResource::default()
            };
            if cx.evaluate(&ResourceAccess { action: PolicyAction::Fetch, resource }).decision == Decision::Deny {
                let name = self.server.name();
                let message = format!("the policy denies `{host}`, which the MCP server `{name}` can reach");
                return Err(ToolError::new(ErrorKind::PermissionDenied, message));
            }
        }
        Ok(())
    }
}

fn store_error(_: ringfence_kernel::StoreError) -> ToolError {
    ToolError::new(ErrorKind::Internal, "cannot check whether this tool's definition changed: the store is unavailable")
}

impl ToolCallResult {
    /// The text of the result, truncated to the limit.
    fn parse(mut answer: serde_json::Value, most: usize) -> Self {
        let mut found = Self::default();
        for part in answer["content"].as_array().into_iter().flatten() {
            let text = part["text"].as_str().or_else(|| part["resource"]["text"].as_str());
            match text {
                Some(text) => found.push(text, most),
                None if found.left_out.len() < MAX_NOTES => {
                    let kind = part["type"].as_str().unwrap_or("something");
                    let mime = part["mimeType"].as_str().unwrap_or_default();
                    found.left_out.push(truncate_line(format!("{kind} {mime}").trim_end()));
                }
                None => found.truncated = true,
            }
        }
        let structured = answer.get_mut("structuredContent").map(serde_json::Value::take);
        if let Some(structured) = structured.filter(|structured| !structured.is_null()) {
            let fits = structured.to_string().len() + found.text.len() <= most;
            found.truncated |= !fits;
            found.structured = fits.then_some(structured);
        }
        found
    }

    fn push(&mut self, text: &str, most: usize) {
        if self.text.len() >= most {
            self.truncated |= !text.is_empty();
            return;
        }
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let kept = text.floor_char_boundary(most.saturating_sub(self.text.len()));
        self.text.push_str(&text[..kept]);
        self.truncated |= kept < text.len();
    }
}

/// Most parts other than text that are named.
const MAX_NOTES: usize = 16;

/// The result of an external tool. It is untrusted data, never an instruction.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct McpToolValue {
    text: String,
    /// The structured result, if the tool returned one.
    #[serde(skip_serializing_if = "Option::is_none")]
    structured: Option<serde_json::Value>,
    /// Non-text parts, such as images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
    /// True if the result was truncated.
    truncated: bool,
}

impl From<ToolCallResult> for McpToolValue {
    fn from(answered: ToolCallResult) -> Self {
        let ToolCallResult { text, structured, left_out, truncated } = answered;
        Self { text, structured, left_out, truncated }
    }
}

impl ModelText for McpToolValue {
    /// Its text. The structured result is mostly the same.
    fn model_text(&self, _: Dialect) -> String {
        let data = self.structured.as_ref().filter(|_| self.text.is_empty()).map(ToString::to_string);
        let mut text = data.unwrap_or_else(|| self.text.clone());
        if !self.left_out.is_empty() {
            text.push_str(&format!("\n[left out: {}]", self.left_out.join(", ")));
        }
        if self.truncated {
            text.push_str("\n[truncated: only the first part of the result]");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ToolCallResult;

    #[test]
    fn an_answer_is_text_and_no_longer_than_it_may_be() {
        let answer = json!({
            "content": [
                {"type": "text", "text": "one"},
                {"type": "image", "mimeType": "image/png", "data": "AAAA"},
                {"type": "resource", "resource": {"uri": "x:y", "text": "two"}},
            ],
            "structuredContent": {"a": 1},
        });
        let found = ToolCallResult::parse(answer.clone(), 100);
        let left_out = vec!["image image/png".to_owned()];
        let expected = ToolCallResult {
            text: "one\ntwo".to_owned(),
            structured: Some(json!({"a": 1})),
            left_out,
            truncated: false,
        };
        assert_eq!(found, expected);
        let found = ToolCallResult::parse(answer, 5);
        assert_eq!((found.text.as_str(), found.structured, found.truncated), ("one\nt", None, true));
        let found = ToolCallResult::parse(json!({"content": [{"type": "text", "text": "é".repeat(10)}]}), 5);
        assert_eq!((found.text.as_str(), found.truncated), ("éé", true));
        assert_eq!(ToolCallResult::parse(json!("nonsense"), 5), ToolCallResult::default());
    }
}
