//! Workflow graphs: which node may follow which.

use std::collections::BTreeSet;

use ringfence_fs::{Fence, HostFile, MountAccess};
use ringfence_kernel::{ErrorKind, ToolError, sanitize_line};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::schema::{WorkflowSchema, violations};
use crate::state::WorkflowState;
use crate::{STATE_ALIAS, WORKFLOW_FILE};

/// No graph is larger than this.
const MAX_GRAPH_BYTES: u64 = 1 << 20;

/// Location of a workflow graph.
#[derive(Clone, Debug)]
pub struct WorkflowGraphSource {
    file: HostFile,
}

/// Why a graph cannot bind a run.
#[derive(Debug, thiserror::Error)]
#[error("the workflow graph `{path}` cannot be used: {problem}")]
pub struct WorkflowGraphError {
    pub path: String,
    pub problem: String,
}

/// A graph that was checked.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowGraph {
    pub entry_node_id: String,
    nodes: Vec<WorkflowNode>,
    edges: Vec<WorkflowEdge>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowNode {
    id: String,
    agent_id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowEdge {
    from: String,
    to: String,
    label: String,
    is_default: Option<bool>,
    condition_text: Option<String>,
}

impl WorkflowGraphSource {
    /// A file on a read-only mount: a graph that the agent could rewrite would not bind it.
    pub fn new(fence: &Fence, path: &str) -> Result<Self, WorkflowGraphError> {
        let refuse = |problem: String| WorkflowGraphError { path: path.to_owned(), problem };
        let file = fence.host_file(path).map_err(|error| refuse(error.message))?;
        match file.rights() {
            MountAccess::ReadOnly => Ok(Self { file }),
            MountAccess::ReadWrite => {
                Err(refuse("it must be on a read-only mount, where no tool can change it".to_owned()))
            }
        }
    }

    /// Reads the graph and checks it.
    pub fn load(&self) -> Result<WorkflowGraph, ToolError> {
        let refuse = |problem: &str| {
            let message = format!("the workflow graph `{}` cannot be used: {problem}", self.file.shown());
            ToolError::new(ErrorKind::Schema, message).detail("graph", self.file.shown())
        };
        let bytes = read_whole(&self.file).map_err(|error| refuse(&error.message))?;
        WorkflowGraph::parse(&bytes).map_err(|problem| refuse(&problem))
    }
}

impl WorkflowGraphSource {
    /// The agent of the node that the run stands at, where the graph names one.
    pub fn current_agent(&self, fence: &Fence) -> Result<Option<String>, ToolError> {
        let file = fence.host_file(&format!("@{STATE_ALIAS}/{WORKFLOW_FILE}"))?;
        let unknown = |error: ToolError| ToolError {
            message: format!("the run has no agent; set it with `--agent ID`: {error}"),
            ..error
        };
        let state = match read_whole(&file) {
            Ok(bytes) => WorkflowState::read(&bytes, file.shown()).map_err(unknown)?,
            // A run that has no state yet stands at the entry.
            Err(error) if error.kind == ErrorKind::NotFound => WorkflowState::default(),
            Err(error) => return Err(unknown(error)),
        };
        let graph = self.load().map_err(unknown)?;
        let node = graph.node_of(&state);
        let found = graph.nodes.iter().find(|known| known.id == node);
        Ok(found.and_then(|node| node.agent_id.clone()).filter(|agent| !agent.trim().is_empty()))
    }
}

/// A file of ours, if it is not too large.
fn read_whole(file: &HostFile) -> Result<Vec<u8>, ToolError> {
    let too_large = || ToolError::new(ErrorKind::ReadLimit, format!("it exceeds {MAX_GRAPH_BYTES} bytes"));
    file.read(MAX_GRAPH_BYTES)?.ok_or_else(too_large)
}

impl WorkflowGraph {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| format!("it is not JSON (line {}, column {})", error.line(), error.column()))?;
        if let Some(first) = violations(WorkflowSchema::Graph, &value).into_iter().next() {
            return Err(first);
        }
        let graph: Self = serde_json::from_value(value).map_err(|_| "it is not a graph".to_owned())?;
        let mut ids = BTreeSet::new();
        for node in &graph.nodes {
            if !ids.insert(node.id.as_str()) {
                return Err(format!("duplicate node `{}`", node.id));
            }
        }
        let ends = graph.edges.iter().flat_map(|edge| [&edge.from, &edge.to]);
        if let Some(unknown) = ends.chain([&graph.entry_node_id]).find(|id| !ids.contains(id.as_str())) {
            return Err(format!("unknown node `{unknown}`"));
        }
        Ok(graph)
    }

    /// The current node of a run: the node that it names, or the entry.
    fn node_of<'a>(&'a self, state: &'a WorkflowState) -> &'a str {
        match state.current_node.trim() {
            "" => &self.entry_node_id,
            named => named,
        }
    }

    /// A run begins at the entry.
    pub(super) fn check_entry(&self, new: &WorkflowState, shown: &str) -> Result<(), ToolError> {
        let to = self.node_of(new);
        if to == self.entry_node_id {
            return Ok(());
        }
        let message = format!(
            "a new `{shown}` must start at the entry node `{}`, not at `{}`",
            self.entry_node_id,
            clip_name(to)
        );
        let mut entry = Map::new();
        entry.insert("to".to_owned(), self.entry_node_id.as_str().into());
        entry.insert("label".to_owned(), "entry".into());
        Err(transition(message, Value::Null, to, vec![entry]))
    }

    /// Without a state before it, any node will do that exists.
    pub(super) fn check_known(&self, new: &WorkflowState, shown: &str) -> Result<(), ToolError> {
        let to = self.node_of(new);
        if self.nodes.iter().any(|node| node.id == to) {
            return Ok(());
        }
        Err(transition(
            format!("`{shown}` names the node `{}`, which is not in the graph", clip_name(to)),
            Value::Null,
            to,
            Vec::new(),
        ))
    }

    /// A run goes along an edge, or stays.
    pub(super) fn check_step(&self, old: &WorkflowState, new: &WorkflowState, shown: &str) -> Result<(), ToolError> {
        let (from, to) = (self.node_of(old), self.node_of(new));
        let (from_shown, to_shown) = (clip_name(from), clip_name(to));
        if from == to || self.edges.iter().any(|edge| edge.from == from && edge.to == to) {
            return Ok(());
        }
        let next: Vec<&WorkflowEdge> = self.edges.iter().filter(|edge| edge.from == from).collect();
        let mut message =
            format!("`{shown}` cannot go from `{from_shown}` to `{to_shown}`: the workflow graph has no such edge");
        if next.is_empty() {
            message.push_str("; that node has no successors");
        } else {
            let names: Vec<String> = next.iter().map(|edge| format!("`{}` ({})", edge.to, edge.label)).collect();
            message.push_str(&format!("; allowed next: {}", names.join(", ")));
        }
        Err(transition(message, from_shown.into(), to, next.into_iter().map(WorkflowEdge::describe).collect()))
    }
}

impl WorkflowEdge {
    fn describe(&self) -> Map<String, Value> {
        let mut next = Map::new();
        next.insert("to".to_owned(), self.to.as_str().into());
        next.insert("label".to_owned(), self.label.as_str().into());
        next.extend(self.is_default.map(|is_default| ("isDefault".to_owned(), is_default.into())));
        next.extend(self.condition_text.as_deref().map(|text| ("conditionText".to_owned(), text.into())));
        next
    }
}

fn transition(message: String, from: Value, to: &str, allowed_next: Vec<Map<String, Value>>) -> ToolError {
    let allowed_next: Vec<Value> = allowed_next.into_iter().map(Value::Object).collect();
    ToolError::new(ErrorKind::Transition, message)
        .detail("from", from)
        .detail("to", clip_name(to))
        .detail("allowedNext", allowed_next)
}

/// A node's name for a message, in one line and of limited length: it is untrusted.
fn clip_name(name: &str) -> String {
    const LONGEST: usize = 100;
    let cut = &name[..name.floor_char_boundary(LONGEST)];
    sanitize_line(cut) + if cut.len() < name.len() { "…" } else { "" }
}
