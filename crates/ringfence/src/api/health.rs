//! Health check, Prometheus metrics and the OpenAPI document.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::hosts::{HostPoolKey, run_blocking};
use crate::api::json::{json_response as say, response_with};
use crate::api::routes::{ApiRequestContext, EmptyRequest};

/// The process serves requests.
pub(super) async fn liveness() -> Response {
    say(StatusCode::OK, &json!({"status": "ok"}))
}

/// Calls could be made: the workspace is there and the store answers.
pub(super) async fn readiness(State(api): State<Arc<ApiState>>) -> Result<Response, ApiError> {
    api.hosts
        .agent_host(HostPoolKey::for_workspace(None))
        .await
        .map_err(|_| ApiError::unavailable("the workspace is not usable"))?;
    api.paused().await.map_err(|_| ApiError::unavailable("cannot read the store"))?;
    Ok(say(StatusCode::OK, &json!({"status": "ready"})))
}

pub(super) async fn openapi_document(State(api): State<Arc<ApiState>>) -> Response {
    say(StatusCode::OK, &api.document)
}

pub(super) async fn metrics(api: Arc<ApiState>, _: ApiRequestContext, _: EmptyRequest) -> Result<Response, ApiError> {
    let store = Arc::clone(&api.store);
    let waiting = run_blocking(move || {
        let reader = ringfence_kernel::Principal::person("server");
        let inbox = ringfence_kernel::ApprovalInbox { store: store.as_ref(), principal: &reader };
        Ok(inbox.pending(std::time::SystemTime::now())?.len())
    });
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed).to_string();
    let figures = [
        ("ringfence_requests_total", "counter", "Requests served.", count(&api.counts.requests)),
        (
            "ringfence_failures_total",
            "counter",
            "Requests that failed with a server error.",
            count(&api.counts.failures),
        ),
        ("ringfence_sessions", "gauge", "Open sessions.", api.sessions.count().to_string()),
        ("ringfence_streams", "gauge", "Open event streams.", api.streams.count().to_string()),
        ("ringfence_requests_waiting", "gauge", "Pending approval requests.", waiting.await?.to_string()),
        ("ringfence_calls_started_total", "counter", "Calls started.", count(&api.feed.counts().begun)),
        (
            "ringfence_calls_begun_total",
            "counter",
            "Deprecated: use ringfence_calls_started_total.",
            count(&api.feed.counts().begun),
        ),
        ("ringfence_calls_failed_total", "counter", "Calls that ended in an error.", count(&api.feed.counts().failed)),
        ("ringfence_calls_refused_total", "counter", "Calls that never ran.", count(&api.feed.counts().refused)),
    ];
    let lines = figures
        .map(|(name, kind, help, value)| format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"));
    Ok(response_with(StatusCode::OK, "text/plain; version=0.0.4", Body::from(lines.concat())))
}
