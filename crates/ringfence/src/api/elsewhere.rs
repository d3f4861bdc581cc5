//! Sessions of other fronts, for a person to look at: those of the agent at a terminal or in an editor, with what was said
//! in them, and those of clients of the Model Context Protocol, of which the audit log has the calls.
//!
//! Nothing here goes on with a session, ends one, or changes what is kept of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringfence_fs::read_records;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Api;
use super::houses::{Which, off_thread};
use super::problem::Problem;
use super::routes::{Nothing, Visit};
use crate::sessions::{Head, SessionError, Sessions};
use crate::sessions_text::entries_of;
use crate::wire::directory_of;

/// Sessions that are listed.
const MOST: usize = 200;

/// Bytes of a session that are shown: the newest.
const MOST_BYTES: usize = 4 << 20;

/// What ids of sessions begin with that the Model Context Protocol made.
const CLIENTS: [&str; 2] = ["mcp-", "http-"];

/// A session of another front.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionElsewhere {
    id: String,
    /// The workspace, where it is known.
    workspace: Option<String>,
    /// Who calls in it.
    principal: String,
    agent: Option<String>,
    dialect: String,
    /// The model that it is with.
    model: Option<String>,
    /// The first prompt, in one line.
    title: Option<String>,
    started: String,
    updated: String,
    /// Whether what was said is kept.
    has_transcript: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionsElsewhere {
    /// The one that was used last first.
    sessions: Vec<SessionElsewhere>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Transcript {
    session: SessionElsewhere,
    /// What was said, called and answered, and how each prompt ended; the oldest first.
    entries: Vec<Value>,
    /// How many older ones are not shown.
    left_out: usize,
}

/// What a record of the audit log says of its session.
#[derive(Debug, Deserialize)]
struct Recorded {
    ts: String,
    session: Option<String>,
    principal: Option<String>,
    dialect: Option<String>,
    agent: Option<String>,
}

impl SessionElsewhere {
    fn kept(workspace: &str, head: Head) -> Self {
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

    fn recorded(id: String, record: &Recorded) -> Self {
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

impl Api {
    /// The declared workspaces, by their names and by the name that no other directory has. One that is not there has no
    /// sessions.
    fn directories(&self) -> Vec<(String, String)> {
        let directory = |name: String| {
            let (settings, environment) = self.houses.settings(&Which::of(Some(&name))).ok()?;
            Some((name, directory_of(&settings, &environment).ok()?))
        };
        self.houses.names().into_iter().filter_map(directory).collect()
    }

    /// Sessions of the agent in declared workspaces that no run of the API began.
    fn of_the_agent(&self) -> Result<Vec<SessionElsewhere>, Problem> {
        let (own, sessions) = (self.runs.sessions(), Sessions::new(&self.state));
        let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
        for (name, directory) in self.directories() {
            // Two names may mean one directory.
            if !seen.insert(directory.clone()) {
                continue;
            }
            let heads = sessions.list(&directory)?.into_iter().filter(|head| !own.contains(&head.id));
            all.extend(heads.map(|head| SessionElsewhere::kept(&name, head)));
        }
        Ok(all)
    }

    /// Sessions of clients of the Model Context Protocol that called something.
    fn of_clients(&self) -> Result<Vec<SessionElsewhere>, Problem> {
        let mut all: BTreeMap<String, SessionElsewhere> = BTreeMap::new();
        let read = read_records(&self.state, |line| {
            let Ok(record) = serde_json::from_str::<Recorded>(line) else { return Ok(()) };
            let id = record.session.clone().filter(|id| CLIENTS.iter().any(|prefix| id.starts_with(prefix)));
            if let Some(id) = id {
                let known = all.entry(id.clone()).or_insert_with(|| SessionElsewhere::recorded(id, &record));
                known.updated = record.ts;
            }
            Ok(())
        });
        match read {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Problem::internal("the audit log cannot be read"))
            }
            _ => Ok(all.into_values().collect()),
        }
    }
}

pub(super) async fn list(api: Arc<Api>, _: Visit, _: Nothing) -> Result<SessionsElsewhere, Problem> {
    off_thread(move || {
        let mut sessions = api.of_the_agent()?;
        sessions.extend(api.of_clients()?);
        sessions.sort_by(|a, b| b.updated.cmp(&a.updated));
        sessions.truncate(MOST);
        Ok(SessionsElsewhere { sessions })
    })
    .await
}

/// One of them, with what was said in it where that is kept.
pub(super) async fn show(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Transcript, Problem> {
    let id = visit.name(0).to_owned();
    off_thread(move || {
        for (name, directory) in api.directories() {
            let (head, entries) = match entries_of(&Sessions::new(&api.state), &directory, &id) {
                Err(SessionError::Unknown(_)) => continue,
                found => found?,
            };
            let left_out = entries.len() - newest(&entries);
            let entries = entries.into_iter().skip(left_out).collect();
            return Ok(Transcript { session: SessionElsewhere::kept(&name, head), entries, left_out });
        }
        let found = api.of_clients()?.into_iter().find(|session| session.id == id);
        let session = found.ok_or_else(|| {
            Problem::missing("no other front has a session of that id; `GET /v1/history` lists those that there are")
        })?;
        Ok(Transcript { session, entries: Vec::new(), left_out: 0 })
    })
    .await
}

/// How many of the newest fit.
fn newest(entries: &[Value]) -> usize {
    let mut left = MOST_BYTES;
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

    use super::{MOST_BYTES, newest};

    #[test]
    fn of_a_long_session_the_newest_entries_are_shown() {
        let half = json!("x".repeat(MOST_BYTES / 2 - 2));
        assert_eq!(newest(&[]), 0);
        assert_eq!(newest(&[half.clone(), half.clone()]), 2);
        assert_eq!(newest(&[half.clone(), json!(1), half]), 2);
        assert_eq!(newest(&[json!(1), json!("x".repeat(MOST_BYTES))]), 0);
    }
}
