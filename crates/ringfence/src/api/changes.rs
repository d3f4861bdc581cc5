//! API routes for changes and files. Each is a tool call through `Host::call`, made for the person.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_kernel::{AuthScope, ErrorKind, Session, ToolCall, ToolError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::json::response_with;
use crate::api::routes::ApiRequestContext;
use crate::api::views::{ChangeDetails, ChangeList, DirectoryListing, DocumentedValue, FileText, UndoResult};
use crate::app::App;
use crate::app::session::owners::SessionOwnership;
use crate::store::tokens::TokenIdentity;

/// Filter for changes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesQuery {
    workspace: Option<String>,
    /// Only changes of this session.
    session: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkspaceQuery {
    pub(super) workspace: Option<String>,
}

/// What to undo: one change, all changes of a session, or all changes since a time; by default the last change.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct UndoBody {
    #[serde(skip_serializing)]
    workspace: Option<String>,
    change: Option<String>,
    session: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    since: Option<String>,
    /// Only report what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Undo even if the files changed since.
    #[serde(default)]
    force: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedoBody {
    workspace: Option<String>,
    /// The undo to redo; the last one if omitted.
    change: Option<String>,
}

/// A path in a workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileQuery {
    workspace: Option<String>,
    /// `.` if omitted.
    #[schemars(length(min = 1))]
    path: Option<String>,
    /// Return the contents even if the file may contain secrets.
    #[serde(default)]
    reveal: bool,
}

/// The host by which a person looks, and their session on it for one call.
#[derive(Debug)]
struct PersonSession {
    app: Arc<App>,
    session: Arc<Session>,
    _owner: SessionOwnership,
}

impl ApiState {
    /// The host and session with which a person views a workspace.
    async fn person_session(&self, who: &TokenIdentity, workspace: Option<&str>) -> Result<PersonSession, ApiError> {
        let app = self.hosts.person_host(workspace, who.assurance).await?;
        // The route's scopes were checked; views and undos are calls.
        let mut caller = who.principal();
        caller.scopes.insert(AuthScope::Call);
        let session = Arc::new(Session { agent: None, ..app.session.for_principal(&app.session.id, caller) });
        let _owner = self.feed.owners().register(&session, &who.id);
        Ok(PersonSession { app, session, _owner })
    }

    /// Whether a call would show a possible secret. A call without a plan shows nothing.
    async fn shows_secret(
        &self,
        who: &TokenIdentity,
        workspace: Option<&str>,
        tool: &str,
        arguments: &Value,
    ) -> Result<bool, ApiError> {
        let PersonSession { app, session, _owner } = self.person_session(who, workspace).await?;
        let explained = app.host.explain(&session, page_call(tool, arguments)).await;
        Ok(explained
            .is_ok_and(|found| found.accesses.iter().any(|each| each.access.resource.effective_sensitivity().secret)))
    }

    /// A read for the page, which shows a secret only on request.
    async fn read_unless_secret<R: From<Value>>(
        &self,
        who: &TokenIdentity,
        at: &FileQuery,
        arguments: Value,
    ) -> Result<R, ApiError> {
        let workspace = at.workspace.as_deref();
        if !at.reveal && self.shows_secret(who, workspace, "read_file", &arguments).await? {
            return Err(ApiError::secret_hidden(
                "this file may contain secrets; use `reveal=true` to get its contents",
            ));
        }
        self.call_tool(who, workspace, "read_file", arguments).await
    }

    /// As `call_tool`, with a mark where the reply shows a secret.
    async fn call_tool_marking_secrets<R: From<Value>>(
        &self,
        who: &TokenIdentity,
        workspace: Option<&str>,
        tool: &str,
        arguments: Value,
    ) -> Result<R, ApiError> {
        let secret = self.shows_secret(who, workspace, tool, &arguments).await?;
        let mut value: Value = self.call_tool(who, workspace, tool, arguments).await?;
        if secret && value.is_object() {
            value["secret"] = json!(true);
        }
        Ok(value.into())
    }

    /// Makes a call for a person, and returns its value.
    pub(super) async fn call_tool<R: From<Value>>(
        &self,
        who: &TokenIdentity,
        workspace: Option<&str>,
        tool: &str,
        arguments: Value,
    ) -> Result<R, ApiError> {
        let PersonSession { app, session, _owner } = self.person_session(who, workspace).await?;
        let reply = app.host.call(&session, page_call(tool, &arguments), &CancellationToken::new()).await?;
        let ToolError { kind, mut message, details, .. } = match reply.outcome {
            Ok(value) => return Ok(value.to_value().into()),
            Err(error) => error,
        };
        for conflict in details.get("conflicts").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| conflict[key].as_str().unwrap_or_default();
            let (path, expected, found) = (text("path"), text("expected"), text("found"));
            message.push_str(&format!("; {path}: expected {expected}, found {found}"));
        }
        Err(match kind {
            ErrorKind::NotFound => ApiError::not_found(message),
            ErrorKind::Conflict | ErrorKind::AlreadyExists => ApiError::conflict(message),
            ErrorKind::PermissionDenied
            | ErrorKind::ApprovalDenied
            | ErrorKind::ApprovalPending
            | ErrorKind::ReadOnly => ApiError::forbidden(message),
            ErrorKind::Unavailable | ErrorKind::Timeout => ApiError::unavailable(message),
            ErrorKind::Internal | ErrorKind::Io => ApiError::internal(message),
            _ => ApiError::bad_request(message),
        })
    }
}

fn page_call(tool: &str, arguments: &Value) -> ToolCall {
    ToolCall { id: "page".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() }
}

pub(super) async fn changes(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    which: ChangesQuery,
) -> Result<DocumentedValue<ChangeList>, ApiError> {
    let ChangesQuery { workspace, session } = which;
    api.call_tool(&context.identity, workspace.as_deref(), "list_changes", json!({"session": session})).await
}

pub(super) async fn change(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    at: WorkspaceQuery,
) -> Result<DocumentedValue<ChangeDetails>, ApiError> {
    let which = json!({"change": context.path_param(0)});
    api.call_tool_marking_secrets(&context.identity, at.workspace.as_deref(), "show_change", which).await
}

pub(super) async fn undo(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    undo: UndoBody,
) -> Result<DocumentedValue<UndoResult>, ApiError> {
    api.call_tool_marking_secrets(&context.identity, undo.workspace.as_deref(), "undo", json!(undo)).await
}

pub(super) async fn redo(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    redo: RedoBody,
) -> Result<DocumentedValue<UndoResult>, ApiError> {
    api.call_tool(&context.identity, redo.workspace.as_deref(), "redo", json!({"change": redo.change})).await
}

pub(super) async fn files(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    at: FileQuery,
) -> Result<DocumentedValue<DirectoryListing>, ApiError> {
    let path = at.path.as_deref().unwrap_or(".");
    let arguments = json!({"path": path, "includeHidden": true});
    api.call_tool(&context.identity, at.workspace.as_deref(), "list_directory", arguments).await
}

pub(super) async fn file_text(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    at: FileQuery,
) -> Result<DocumentedValue<FileText>, ApiError> {
    let path = at.path.as_deref().unwrap_or(".");
    api.read_unless_secret(&context.identity, &at, json!({"path": path})).await
}

/// The bytes of a file, to be saved. A browser never shows them as a page.
pub(super) async fn raw_file(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    at: FileQuery,
) -> Result<Response, ApiError> {
    let path = at.path.as_deref().unwrap_or(".");
    let arguments = json!({"path": path, "encoding": "base64"});
    let value: Value = api.read_unless_secret(&context.identity, &at, arguments).await?;
    let bytes = STANDARD.decode(value["content"].as_str().unwrap_or_default());
    let bytes = bytes.map_err(|_| ApiError::internal("cannot decode the contents"))?;
    let mut response = response_with(StatusCode::OK, "application/octet-stream", Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if value["truncated"] == true {
        headers.insert(HeaderName::from_static("ringfence-truncated"), HeaderValue::from_static("true"));
    }
    Ok(response)
}
