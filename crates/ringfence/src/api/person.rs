//! What a person looks at and takes back: changes, files. Each is a call of a tool on the road, made for them.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_kernel::{ErrorKind, Scope, Session, ToolCall};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Api;
use super::problem::Problem;
use super::reply::reply;
use super::routes::Visit;
use super::views::{ChangeDetails, ChangeList, DirectoryListing, Documented, FileText, UndoResult};
use crate::session_owners::SessionOwnership;
use crate::tokens::Owner;
use crate::wire::Wired;

/// Which changes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichChanges {
    workspace: Option<String>,
    /// Only those of this session.
    session: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct In {
    workspace: Option<String>,
}

/// What to take back: a change, all of a session, or all since a time; the last one where nothing is named.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Undo {
    #[serde(skip_serializing)]
    workspace: Option<String>,
    change: Option<String>,
    session: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    since: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Take back also what was changed since.
    #[serde(default)]
    force: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Redo {
    workspace: Option<String>,
    /// The undo; the last one where it is left out.
    change: Option<String>,
}

/// A path in a workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct At {
    workspace: Option<String>,
    /// `.` where it is left out.
    #[schemars(length(min = 1))]
    path: Option<String>,
    /// Give the contents of a file that may hold secrets too.
    #[serde(default)]
    reveal: bool,
}

/// The host by which a person looks, and their session on it for one call.
#[derive(Debug)]
struct PersonSeat {
    wired: Arc<Wired>,
    session: Arc<Session>,
    _owner: SessionOwnership,
}

impl Api {
    /// The host by which somebody looks, and their session on it.
    async fn seat(&self, who: &Owner, workspace: Option<&str>) -> Result<PersonSeat, Problem> {
        let wired = self.houses.person(workspace, who.assurance).await?;
        // What the path wanted was checked; to look and to undo are calls.
        let mut caller = who.principal();
        caller.scopes.insert(Scope::Call);
        let session = Arc::new(Session { agent: None, ..wired.session.like(&wired.session.id, caller) });
        let _owner = self.feed.owners().register(&session, &who.id);
        Ok(PersonSeat { wired, session, _owner })
    }

    /// Whether a call would show what may be a secret. What cannot be planned shows nothing.
    async fn shows_secret(
        &self,
        who: &Owner,
        workspace: Option<&str>,
        tool: &str,
        arguments: &Value,
    ) -> Result<bool, Problem> {
        let PersonSeat { wired, session, _owner } = self.seat(who, workspace).await?;
        let call = ToolCall { id: "page".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
        let explained = wired.host.explain(&session, call).await;
        Ok(explained.is_ok_and(|found| found.touches.iter().any(|each| each.touch.place.sensitive().secret)))
    }

    /// A read for the page, which shows a secret only where that is wanted.
    async fn read_revealed(&self, who: &Owner, at: &At, arguments: Value) -> Result<Value, Problem> {
        let workspace = at.workspace.as_deref();
        if !at.reveal && self.shows_secret(who, workspace, "read_file", &arguments).await? {
            return Err(Problem::secret("this file may hold secrets; `reveal=true` gives its contents"));
        }
        self.ask(who, workspace, "read_file", arguments).await
    }

    /// As `ask`, and says whether the reply shows a secret.
    async fn ask_marked(
        &self,
        who: &Owner,
        workspace: Option<&str>,
        tool: &str,
        arguments: Value,
    ) -> Result<Value, Problem> {
        let secret = self.shows_secret(who, workspace, tool, &arguments).await?;
        let mut value = self.ask(who, workspace, tool, arguments).await?;
        if secret && value.is_object() {
            value["secret"] = json!(true);
        }
        Ok(value)
    }

    /// Makes a call for a person, and gives its value.
    async fn ask(&self, who: &Owner, workspace: Option<&str>, tool: &str, arguments: Value) -> Result<Value, Problem> {
        let PersonSeat { wired, session, _owner } = self.seat(who, workspace).await?;
        let call = ToolCall { id: "page".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
        let reply = wired.host.call(&session, call, &CancellationToken::new()).await?;
        let mut said: Value = serde_json::from_str(&reply.text).unwrap_or_default();
        let Some(kind) = reply.error else { return Ok(said["value"].take()) };
        let error = &said["error"];
        let mut message = error["message"].as_str().unwrap_or(&reply.text).to_owned();
        for conflict in error["details"]["conflicts"].as_array().into_iter().flatten() {
            let text = |key: &str| conflict[key].as_str().unwrap_or_default();
            let (path, expected, found) = (text("path"), text("expected"), text("found"));
            message.push_str(&format!("; {path}: {expected} was expected, {found} is there"));
        }
        Err(match kind {
            ErrorKind::NotFound => Problem::missing(message),
            ErrorKind::Conflict | ErrorKind::AlreadyExists => Problem::conflict(message),
            ErrorKind::PermissionDenied
            | ErrorKind::ApprovalDenied
            | ErrorKind::ApprovalPending
            | ErrorKind::ReadOnly => Problem::forbidden(message),
            ErrorKind::Unavailable | ErrorKind::Timeout => Problem::unavailable(message),
            ErrorKind::Internal | ErrorKind::Io => Problem::internal(message),
            _ => Problem::bad(message),
        })
    }
}

pub(super) async fn changes(
    api: Arc<Api>,
    visit: Visit,
    which: WhichChanges,
) -> Result<Documented<ChangeList>, Problem> {
    let WhichChanges { workspace, session } = which;
    api.ask(&visit.who, workspace.as_deref(), "list_changes", json!({"session": session})).await.map(Documented::from)
}

pub(super) async fn change(api: Arc<Api>, visit: Visit, at: In) -> Result<Documented<ChangeDetails>, Problem> {
    let which = json!({"change": visit.name(0)});
    api.ask_marked(&visit.who, at.workspace.as_deref(), "show_change", which).await.map(Documented::from)
}

pub(super) async fn undo(api: Arc<Api>, visit: Visit, undo: Undo) -> Result<Documented<UndoResult>, Problem> {
    api.ask_marked(&visit.who, undo.workspace.as_deref(), "undo", json!(undo)).await.map(Documented::from)
}

pub(super) async fn redo(api: Arc<Api>, visit: Visit, redo: Redo) -> Result<Documented<UndoResult>, Problem> {
    api.ask(&visit.who, redo.workspace.as_deref(), "redo", json!({"change": redo.change})).await.map(Documented::from)
}

pub(super) async fn files(api: Arc<Api>, visit: Visit, at: At) -> Result<Documented<DirectoryListing>, Problem> {
    let path = at.path.as_deref().unwrap_or(".");
    let arguments = json!({"path": path, "includeHidden": true});
    api.ask(&visit.who, at.workspace.as_deref(), "list_directory", arguments).await.map(Documented::from)
}

pub(super) async fn text(api: Arc<Api>, visit: Visit, at: At) -> Result<Documented<FileText>, Problem> {
    let path = at.path.as_deref().unwrap_or(".");
    api.read_revealed(&visit.who, &at, json!({"path": path})).await.map(Documented::from)
}

/// The bytes of a file, to be saved. A browser never shows them as a page.
pub(super) async fn raw(api: Arc<Api>, visit: Visit, at: At) -> Result<Response, Problem> {
    let path = at.path.as_deref().unwrap_or(".");
    let arguments = json!({"path": path, "encoding": "base64"});
    let value = api.read_revealed(&visit.who, &at, arguments).await?;
    let bytes = STANDARD.decode(value["content"].as_str().unwrap_or_default());
    let bytes = bytes.map_err(|_| Problem::internal("the contents cannot be decoded"))?;
    let mut response = reply(StatusCode::OK, "application/octet-stream", Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if value["truncated"] == true {
        headers.insert(HeaderName::from_static("ringfence-truncated"), HeaderValue::from_static("true"));
    }
    Ok(response)
}
