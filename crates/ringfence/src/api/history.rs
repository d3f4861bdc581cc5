//! Session history of other clients, read-only: agent sessions at a terminal or in an editor, with their transcripts, and
//! sessions of MCP clients, whose calls are in the audit log.
//!
//! Nothing here continues, ends or changes a session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringfence_audit::read_records;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::hosts::{HostPoolKey, run_blocking};
use crate::api::routes::{ApiRequestContext, EmptyRequest};
use crate::app::workspace_id;
use crate::store::transcripts::{SqliteTranscriptError, SqliteTranscripts, TranscriptHeader, entries_of};

/// Sessions that are listed.
const MAX_SESSIONS: usize = 200;

/// Bytes of a session that are shown: the newest.
const MAX_BYTES: usize = 4 << 20;

/// Prefixes of the IDs of MCP sessions.
const MCP_ID_PREFIXES: [&str; 2] = ["mcp-", "http-"];

/// A session of another client.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistorySession {
    id: String,
    /// The workspace, if known.
    workspace: Option<String>,
    /// The principal that makes the calls.
    principal: String,
    agent: Option<String>,
    dialect: String,
    /// The model.
    model: Option<String>,
    /// The first prompt, on one line.
    title: Option<String>,
    started: String,
    updated: String,
    /// Whether a transcript is stored.
    has_transcript: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HistoryList {
    /// Most recently used first.
    sessions: Vec<HistorySession>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryTranscript {
    session: HistorySession,
    /// Messages, calls, results and the outcome of each prompt, oldest first.
    entries: Vec<Value>,
    /// The number of older entries that are not shown.
    left_out: usize,
}

/// Session fields of an audit record.
#[derive(Debug, Deserialize)]
struct AuditSessionFields {
    ts: String,
    session: Option<String>,
    principal: Option<String>,
    dialect: Option<String>,
    agent: Option<String>,
}

impl HistorySession {
    fn from_transcript(workspace: &str, head: TranscriptHeader) -> Self {
        let at = |time| humantime::format_rfc3339_millis(time).to_string();
        Self {
            id: head.id,
            workspace: Some(workspace.to_owned()),
            principal: "agent".to_owned(),
            agent: head.agent,
            dialect: head.dialect,
            model: Some(head.model),
            title: Some(head.title),
            started: at(head.started),
            updated: at(head.updated),
            has_transcript: true,
        }
    }

    fn from_audit(id: String, record: &AuditSessionFields) -> Self {
        Self {
            id,
            workspace: None,
            principal: record.principal.clone().unwrap_or_default(),
            agent: record.agent.clone(),
            dialect: record.dialect.clone().unwrap_or_default(),
            model: None,
            title: None,
            started: record.ts.clone(),
            updated: record.ts.clone(),
            has_transcript: false,
        }
    }
}

impl ApiState {
    /// The declared workspaces, by their names and by the name that no other directory has. One that is not there has no
    /// sessions.
    fn declared_directories(&self) -> Vec<(String, String)> {
        let directory = |name: String| {
            let (settings, environment) = self.hosts.settings(&HostPoolKey::for_workspace(Some(&name))).ok()?;
            Some((name, workspace_id(&settings, &environment).ok()?))
        };
        self.hosts.names().into_iter().filter_map(directory).collect()
    }

    /// Sessions of the agent in declared workspaces that no run of the API began.
    fn agent_sessions(&self) -> Result<Vec<HistorySession>, ApiError> {
        let (own, sessions) = (self.runs.sessions(), SqliteTranscripts::new(Arc::clone(&self.store)));
        let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
        for (name, directory) in self.declared_directories() {
            // Two names may mean one directory.
            if !seen.insert(directory.clone()) {
                continue;
            }
            let heads = sessions.list(&directory)?.into_iter().filter(|head| !own.contains(&head.id));
            all.extend(heads.map(|head| HistorySession::from_transcript(&name, head)));
        }
        Ok(all)
    }

    /// Sessions of clients of the Model Context Protocol that called something.
    fn mcp_sessions(&self) -> Result<Vec<HistorySession>, ApiError> {
        let mut all: BTreeMap<String, HistorySession> = BTreeMap::new();
        let read = read_records(&self.state, |line| {
            let Ok(record) = serde_json::from_str::<AuditSessionFields>(line) else { return Ok(()) };
            let id = record.session.clone().filter(|id| MCP_ID_PREFIXES.iter().any(|prefix| id.starts_with(prefix)));
            if let Some(id) = id {
                let known = all.entry(id.clone()).or_insert_with(|| HistorySession::from_audit(id, &record));
                known.updated = record.ts;
            }
            Ok(())
        });
        match read {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ApiError::internal("cannot read the audit log"))
            }
            _ => Ok(all.into_values().collect()),
        }
    }
}

pub(super) async fn list(api: Arc<ApiState>, _: ApiRequestContext, _: EmptyRequest) -> Result<HistoryList, ApiError> {
    run_blocking(move || {
        let mut sessions = api.agent_sessions()?;
        sessions.extend(api.mcp_sessions()?);
        sessions.sort_by(|a, b| b.updated.cmp(&a.updated));
        sessions.truncate(MAX_SESSIONS);
        Ok(HistoryList { sessions })
    })
    .await
}

/// One session, with its transcript where that is stored.
pub(super) async fn show(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<HistoryTranscript, ApiError> {
    let id = context.path_param(0).to_owned();
    run_blocking(move || {
        for (name, directory) in api.declared_directories() {
            let (head, entries) = match entries_of(&SqliteTranscripts::new(Arc::clone(&api.store)), &directory, &id) {
                Err(SqliteTranscriptError::Unknown(_)) => continue,
                found => found?,
            };
            let left_out = entries.len() - newest_that_fit(&entries);
            let entries = entries.into_iter().skip(left_out).collect();
            return Ok(HistoryTranscript { session: HistorySession::from_transcript(&name, head), entries, left_out });
        }
        let found = api.mcp_sessions()?.into_iter().find(|session| session.id == id);
        let session = found.ok_or_else(|| {
            ApiError::not_found("no session of another client with that id; `GET /v1/history` lists them")
        })?;
        Ok(HistoryTranscript { session, entries: Vec::new(), left_out: 0 })
    })
    .await
}

/// Answers requests to the former paths of this room, for clients of version 0.1.0.
pub(super) async fn renamed() -> ApiError {
    ApiError::gone("`/v1/elsewhere` was renamed; use `GET /v1/history` or `GET /v1/history/{session}`")
}

/// How many of the newest entries fit.
fn newest_that_fit(entries: &[Value]) -> usize {
    let mut left = MAX_BYTES;
    let fits = |entry: &&Value| {
        let size = entry.to_string().len();
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    };
    entries.iter().rev().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{MAX_BYTES, newest_that_fit};

    #[test]
    fn of_a_long_session_the_newest_entries_are_shown() {
        let half = json!("x".repeat(MAX_BYTES / 2 - 2));
        assert_eq!(newest_that_fit(&[]), 0);
        assert_eq!(newest_that_fit(&[half.clone(), half.clone()]), 2);
        assert_eq!(newest_that_fit(&[half.clone(), json!(1), half]), 2);
        assert_eq!(newest_that_fit(&[json!(1), json!("x".repeat(MAX_BYTES))]), 0);
    }
}
