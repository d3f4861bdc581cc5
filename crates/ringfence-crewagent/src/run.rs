//! Workflow runs: the state directory of one execution.
//!
//! A run belongs to a project, and its state is a directory of its own below ours. It is reached as `@state`.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ringfence_fs::content_id;
use serde::{Deserialize, Serialize};

use crate::{LOG_DIRECTORY, WORKFLOW_FILE};

const MAX_ID_CHARS: usize = 64;

/// Beside the state of a run.
const METADATA_FILE: &str = "run.json";

/// Failure to open a run.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowRunError {
    #[error("invalid run id `{0}`: use up to {MAX_ID_CHARS} letters, digits, `-`, `_` and `.`")]
    Id(String),
    #[error("this project has no run `{0}`; create it with `ringfence workflow new --workflow-run {0}`")]
    Unknown(String),
    #[error("this project already has a run `{0}`")]
    AlreadyExists(String),
    #[error("cannot create the run's directory")]
    Create(#[source] io::Error),
    #[error("cannot read the run's metadata")]
    Read(#[source] io::Error),
    #[error("this run uses the graph `{0}`; `--graph {1}` cannot change it")]
    GraphMismatch(String, String),
}

/// Initial state of a run.
#[derive(Clone, Debug, Default)]
pub struct WorkflowStart {
    /// The graph that it goes along, as tools name it.
    pub graph: Option<String>,
    /// The node that it stands at; empty for the entry.
    pub entry: String,
}

/// Metadata of a run beside its state, out of reach of tools.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkflowRunMetadata {
    graph: Option<String>,
}

/// The state directory of a run that exists.
pub fn run_state(state: &Path, project: &Path, run: &str) -> Result<PathBuf, WorkflowRunError> {
    let directory = run_directory(state, project, run)?;
    if directory.is_dir() { Ok(directory) } else { Err(WorkflowRunError::Unknown(run.to_owned())) }
}

/// The graph that a run goes along: the one that it was made with, else the one that is wanted now.
pub fn run_graph(run: &Path, wanted: Option<&str>) -> Result<Option<String>, WorkflowRunError> {
    let facts = std::fs::read(run.with_file_name(METADATA_FILE)).map_err(WorkflowRunError::Read)?;
    let kept = serde_json::from_slice::<WorkflowRunMetadata>(&facts)
        .map_err(|error| WorkflowRunError::Read(error.into()))?
        .graph;
    match (kept, wanted) {
        (Some(kept), Some(wanted)) if kept != wanted => Err(WorkflowRunError::GraphMismatch(kept, wanted.to_owned())),
        (kept, wanted) => Ok(kept.or_else(|| wanted.map(str::to_owned))),
    }
}

/// Makes the state directory of a new run, with a `workflow.md` that stands at the entry of its workflow. Gives the id
/// of the run, which is made up if none is wanted.
pub fn create_run(
    state: &Path,
    project: &Path,
    run: Option<&str>,
    start: &WorkflowStart,
) -> Result<String, WorkflowRunError> {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let run = match run {
        Some(run) => run.to_owned(),
        None => format!("{}-{:04x}", now.replace([':', '-'], "").to_lowercase(), std::process::id() & 0xffff),
    };
    let directory = run_directory(state, project, &run)?;
    let whole = directory.parent().unwrap_or(&directory);
    let private = || {
        let mut private = std::fs::DirBuilder::new();
        private.mode(0o700);
        private
    };
    private().recursive(true).create(whole.parent().unwrap_or(whole)).map_err(WorkflowRunError::Create)?;
    // Two who want the same id at once do not both get it.
    private().create(whole).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => WorkflowRunError::AlreadyExists(run.clone()),
        _ => WorkflowRunError::Create(error),
    })?;
    // The run's settings are written before its state, which cannot be used without them.
    let facts = WorkflowRunMetadata { graph: start.graph.clone() };
    let facts = serde_json::to_vec(&facts).map_err(|error| WorkflowRunError::Create(error.into()))?;
    std::fs::write(whole.join(METADATA_FILE), facts).map_err(WorkflowRunError::Create)?;
    private().create(&directory).map_err(WorkflowRunError::Create)?;
    private().create(directory.join(LOG_DIRECTORY)).map_err(WorkflowRunError::Create)?;
    // JSON strings are YAML strings too.
    let entry = serde_json::to_string(&start.entry).map_err(|error| WorkflowRunError::Create(error.into()))?;
    let text = format!(
        "---\nschemaVersion: \"1.1\"\nworkflowType: \"workflow\"\nrunId: \"{run}\"\ncurrentNodeId: {entry}\n\
         stepsCompleted: []\nvariables: {{}}\ndecisionLog: []\nartifacts: []\nupdatedAt: \"{now}\"\n---\n"
    );
    std::fs::write(directory.join(WORKFLOW_FILE), text).map_err(WorkflowRunError::Create)?;
    Ok(run)
}

fn run_directory(state: &Path, project: &Path, run: &str) -> Result<PathBuf, WorkflowRunError> {
    let letters = run.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'));
    if run.is_empty() || run.len() > MAX_ID_CHARS || run.starts_with('.') || !letters {
        return Err(WorkflowRunError::Id(run[..run.floor_char_boundary(MAX_ID_CHARS)].to_owned()));
    }
    let project = content_id(project.as_os_str().as_encoded_bytes());
    Ok(state.join("projects").join(project).join("runs").join(run).join("state"))
}
