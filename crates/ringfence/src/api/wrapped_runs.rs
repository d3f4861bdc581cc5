//! API routes for wrapped runs that go on: their screen, their changes so far, and what a person does about them.
//!
//! A run is a process of its own, on this machine and of this user; it is asked over its attach socket. Tokens that answer
//! approvals view runs, those of administrators type and end them, and for others there are none.
//!
//! Not here: starting a run, which needs a command line, and what was decided about its hosts, which is in the audit log.

use std::sync::Arc;

use ringfence_kernel::AuthScope;
use ringfence_sandbox::TerminalSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::ApiState;
use crate::api::changes::WorkspaceQuery;
use crate::api::error::ApiError;
use crate::api::hosts::run_blocking;
use crate::api::routes::{ApiRequestContext, EmptyRequest, EmptyResponse};
use crate::api::views::DocumentedValue;
use crate::process::attach::connection::{AttachError, request_run, running_layers, type_to_run};
use crate::process::attach::protocol::{RunRequest, RunStatus};

/// Most bytes that are typed at once.
const MOST_TYPED: usize = 16 << 10;

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WrappedRunList {
    runs: Vec<WrappedRunEntry>,
}

/// A wrapped run that goes on.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WrappedRunEntry {
    /// The layer that its program works on.
    layer: String,
    /// Its session, in the audit log and in approval requests.
    session: String,
    program: String,
    profile: String,
    /// It was started with `--detach`: who attaches may type.
    detached: bool,
    /// It was started with `--live`: checkpoints can be requested.
    checkpoints: bool,
    /// Who attached and types.
    writer: Option<String>,
    /// The number of those who attached.
    viewers: usize,
}

/// A wrapped run with its screen.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WrappedRunView {
    #[serde(flatten)]
    run: WrappedRunEntry,
    rows: u16,
    columns: u16,
    /// The lines on its screen as text, without colours and trailing spaces.
    screen: Vec<String>,
}

/// The changes in the layer of a wrapped run.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
#[serde(rename_all = "camelCase")]
pub(super) struct LayerChanges {
    /// The layer, with its state and counts.
    layer: Value,
    /// `acts_later`, `conflicts`, `deletions`, `changes` and `additions`, in this order, each with its changed files and their
    /// hunks.
    sections: Vec<Value>,
    /// Trees that the workspace ignores.
    derived: Vec<Value>,
    /// Further ones that are not listed.
    derived_omitted: u64,
}

/// Keys to type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TypedText {
    /// The keys, as a terminal would send them: Enter is `\r`.
    #[schemars(length(min = 1))]
    text: String,
}

impl From<RunStatus> for WrappedRunEntry {
    fn from(status: RunStatus) -> Self {
        Self {
            layer: status.layer,
            session: status.session,
            program: status.program,
            profile: status.profile,
            detached: status.is_detached,
            checkpoints: status.makes_checkpoints,
            writer: status.writer,
            viewers: status.viewers,
        }
    }
}

impl From<AttachError> for ApiError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::NotRunning(_) | AttachError::Ambiguous(_) => Self::not_found(error.to_string()),
            AttachError::Refused(reason) => Self::conflict(reason),
            AttachError::Io(_) | AttachError::Protocol(_) => Self::unavailable(error.to_string()),
        }
    }
}

impl ApiState {
    /// Makes a request of the run that a path names.
    async fn request_run(&self, context: &ApiRequestContext, request: RunRequest) -> Result<RunStatus, ApiError> {
        let (state, person) = (self.state.clone(), context.identity.principal().name);
        let layer = context.path_param(0).to_owned();
        run_blocking(move || Ok(request_run(&state, &layer, &person, request)?)).await
    }
}

pub(super) async fn list(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<WrappedRunList, ApiError> {
    let (state, person) = (api.state.clone(), context.identity.principal().name);
    run_blocking(move || {
        let layers = running_layers(&state)?;
        // One that ends meanwhile, or that was killed, is not listed.
        let status = |layer: &String| request_run(&state, layer, &person, RunRequest::Status).ok();
        Ok(WrappedRunList { runs: layers.iter().filter_map(status).map(WrappedRunEntry::from).collect() })
    })
    .await
}

pub(super) async fn show(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<WrappedRunView, ApiError> {
    let mut status = api.request_run(&context, RunRequest::Status).await?;
    let (TerminalSize { rows, columns }, screen) = (status.size, std::mem::take(&mut status.screen));
    Ok(WrappedRunView { run: status.into(), rows, columns, screen })
}

pub(super) async fn changes(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    at: WorkspaceQuery,
) -> Result<DocumentedValue<LayerChanges>, ApiError> {
    let which = json!({"layer": context.path_param(0)});
    // The route's scope was checked, and a review changes nothing.
    let mut viewer = context.identity.clone();
    viewer.scopes.insert(AuthScope::Undo);
    api.call_tool(&viewer, at.workspace.as_deref(), "review_layer", which).await
}

pub(super) async fn stop(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<EmptyResponse, ApiError> {
    api.request_run(&context, RunRequest::Stop).await?;
    Ok(EmptyResponse {})
}

pub(super) async fn checkpoint(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<EmptyResponse, ApiError> {
    api.request_run(&context, RunRequest::Checkpoint).await?;
    Ok(EmptyResponse {})
}

pub(super) async fn input(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    typed: TypedText,
) -> Result<EmptyResponse, ApiError> {
    if typed.text.is_empty() || typed.text.len() > MOST_TYPED {
        return Err(ApiError::bad_request(format!("type between 1 and {MOST_TYPED} bytes")));
    }
    let (state, person) = (api.state.clone(), context.identity.principal().name);
    let layer = context.path_param(0).to_owned();
    run_blocking(move || Ok(type_to_run(&state, &layer, &person, typed.text.into_bytes())?)).await?;
    Ok(EmptyResponse {})
}
