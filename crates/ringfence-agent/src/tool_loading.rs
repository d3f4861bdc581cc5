//! Deferred tool definitions: the core tools are sent with every request, the others after the model asked for them.
//!
//! Few tools to choose from make better choices, and every request pays for each definition. A model lists the others with
//! `load_tools`, or loads some by name; their definitions are in the answer and in every request from then on. The tool is
//! answered here: it reads nothing but the session's catalog. What was loaded follows from the history, so a session that
//! goes on has the same tools.
//!
//! Not here: what a call may do. A tool of the catalog can be called whether it is loaded or not.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use ringfence_kernel::{Dialect, ErrorKind, ReplyValue, ToolCatalog, ToolDefinition, ToolError, ToolReply};
use serde::Deserialize;
use serde_json::json;

use crate::message::{RequestedCall, TranscriptMessage};
use crate::model::ToolSpec;

/// Name of the tool that lists and loads the others.
pub const LOAD_TOOLS: &str = "load_tools";

/// Fewer other tools are sent at once: the list of them would cost as much.
const MIN_DEFERRED: usize = 4;

/// Names in the description of the tool; the list has the others.
const MAX_NAMES: usize = 40;

/// The tool definitions that the first request has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolLoading {
    /// All of them.
    #[default]
    All,
    /// Those of the core tools, and `load_tools` for the others.
    CoreFirst,
}

impl ToolLoading {
    /// The tools of a catalog whose definitions are sent from the start, and those that wait.
    pub fn split(self, catalog: &ToolCatalog) -> (Vec<&ToolDefinition>, Vec<&ToolDefinition>) {
        let (core, others): (Vec<_>, Vec<_>) =
            catalog.list().partition(|tool| self == Self::All || tool.dialect.is_core_tool(&tool.name));
        match core.is_empty() || others.len() < MIN_DEFERRED || catalog.get(LOAD_TOOLS).is_some() {
            true => (catalog.list().collect(), Vec::new()),
            false => (core, others),
        }
    }
}

/// Arguments of `load_tools`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadToolsArgs {
    #[serde(default)]
    names: Vec<String>,
}

/// The tools of a run: those that are sent, and those that can be loaded.
#[derive(Debug)]
pub(crate) struct OfferedTools {
    dialect: Dialect,
    /// Every tool of the catalog, with `load_tools` where others wait.
    pub(crate) all: Arc<[ToolSpec]>,
    /// Those that the next request has.
    pub(crate) sent: Arc<[ToolSpec]>,
    /// Those that are not core tools, in the order of the catalog.
    deferred: Vec<ToolSpec>,
    loaded: BTreeSet<String>,
}

impl OfferedTools {
    pub(crate) fn new(
        catalog: &ToolCatalog,
        dialect: Dialect,
        loading: ToolLoading,
        history: &[TranscriptMessage],
    ) -> Self {
        let (core, others) = loading.split(catalog);
        let specs = |tools: Vec<&ToolDefinition>| tools.into_iter().map(tool_spec).collect::<Vec<_>>();
        let (mut all, deferred) = (specs(core), specs(others));
        if !deferred.is_empty() {
            all.push(load_tools_spec(&deferred));
        }
        let sent = Arc::from(all.clone());
        all.extend(deferred.iter().cloned());
        let mut tools = Self { dialect, all: Arc::from(all), sent, deferred, loaded: BTreeSet::new() };
        for message in history {
            if let TranscriptMessage::Assistant { calls, .. } = message {
                for call in calls {
                    tools.load(call);
                }
            }
        }
        tools
    }

    /// Whether a call is answered here.
    pub(crate) fn is_load_call(&self, call: &RequestedCall) -> bool {
        !self.deferred.is_empty() && call.name == LOAD_TOOLS
    }

    /// Sends the tools that a call names, or that it calls, with the next requests. True if there are new ones.
    pub(crate) fn load(&mut self, call: &RequestedCall) -> bool {
        let names = match self.is_load_call(call) {
            true => parse(call).map(|args| args.names).unwrap_or_default(),
            false => vec![call.name.clone()],
        };
        let before = self.loaded.len();
        self.loaded.extend(names.into_iter().filter(|name| self.deferred.iter().any(|tool| tool.name == *name)));
        if self.loaded.len() == before {
            return false;
        }
        let is_sent =
            |tool: &&ToolSpec| !self.deferred.iter().any(|it| it.name == tool.name) || self.loaded.contains(&tool.name);
        self.sent = self.all.iter().filter(is_sent).cloned().collect();
        true
    }

    /// The reply to `load_tools`: the list, or the definitions of the named tools.
    pub(crate) fn load_reply(&self, call: &RequestedCall) -> ToolReply {
        let text = match parse(call).and_then(|args| self.describe(&args.names)) {
            Ok(text) => text,
            Err(error) => return ToolReply::from_error(&call.id, error, self.dialect),
        };
        let outcome = Ok(ReplyValue::new(json!({"content": text})));
        ToolReply { call_id: call.id.clone(), outcome, text, suspended: None }
    }

    fn describe(&self, names: &[String]) -> Result<String, ToolError> {
        if names.is_empty() {
            return Ok(self.deferred.iter().map(|tool| format!("{}: {}\n", tool.name, first_line(tool))).collect());
        }
        let mut text = String::new();
        for name in names {
            let Some(tool) = self.all.iter().find(|tool| tool.name == *name && name != LOAD_TOOLS) else {
                let message = format!("there is no tool `{name}`; call {LOAD_TOOLS} without names for the list");
                return Err(ToolError::new(ErrorKind::InvalidArgs, message));
            };
            let _ = writeln!(
                text,
                "{}",
                json!({"name": name, "description": tool.description, "parameters": tool.parameters})
            );
        }
        Ok(text + "These tools can be called from now on.")
    }
}

fn parse(call: &RequestedCall) -> Result<LoadToolsArgs, ToolError> {
    let problem = |error: serde_json::Error| ToolError::new(ErrorKind::InvalidArgs, format!("{LOAD_TOOLS}: {error}"));
    serde_json::from_str(&call.arguments).map_err(problem)
}

fn tool_spec(tool: &ToolDefinition) -> ToolSpec {
    ToolSpec {
        name: tool.name.to_string(),
        description: tool.description().to_owned(),
        parameters: tool.parameters().clone(),
    }
}

fn load_tools_spec(deferred: &[ToolSpec]) -> ToolSpec {
    let names: Vec<&str> = deferred.iter().take(MAX_NAMES).map(|tool| tool.name.as_str()).collect();
    let more = match deferred.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let description = format!(
        "Load further tools by their names before you call them. Without names, list them with a line each. There are: {}{more}.",
        names.join(", ")
    );
    let names = json!({"type": "array", "items": {"type": "string"}, "description": "Tools to load."});
    ToolSpec {
        name: LOAD_TOOLS.to_owned(),
        description,
        parameters: json!({"type": "object", "properties": {"names": names}}),
    }
}

/// The first sentence of a description.
fn first_line(tool: &ToolSpec) -> String {
    let text = &tool.description;
    let end = text.find(". ").or_else(|| text.find(".\n")).map_or(text.len(), |at| at + 1);
    text[..end].split_whitespace().collect::<Vec<_>>().join(" ")
}
