//! API error responses: what happened, to which thing, and what to do next.

use axum::http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ringfence_crewagent::WorkflowRunError;
use ringfence_kernel::{HostError, InboxError, StoreError};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::json::json_response;
use crate::app::AppError;
use crate::process::messages::{error_chain, print_error};
use crate::store::transcripts::SqliteTranscriptError;

/// An error response.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// The methods that a path has, where it does not have the one that was used.
    allow: Option<String>,
}

/// The body of every error response.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApiErrorBody {
    error: ApiErrorDetail,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ApiErrorDetail {
    /// The error code, for programs.
    kind: &'static str,
    /// The error message, for people.
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), allow: None }
    }

    /// The request is not one that could be meant.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// The request has no valid token.
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// The token lacks the right.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// The result may be a secret, and the request did not ask to show secrets.
    pub(super) fn secret_hidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "secret", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn method_not_allowed(allowed: String) -> Self {
        let message = format!("this path allows {allowed}");
        Self { allow: Some(allowed), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message) }
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(super) fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "gone", message)
    }

    pub(super) fn payload_too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    pub(super) fn request_timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// A body whose content type is not JSON.
    pub(super) fn unsupported_media_type() -> Self {
        let message = "send `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// The right request to the wrong server: it is for another host.
    pub(super) fn misdirected(message: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", message)
    }

    pub(super) fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", message)
    }

    /// This cannot be done now, or not with these settings.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    /// An internal error.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// An internal error with a cause: the client gets the sentence, the operator all of it.
    fn caused(error: &dyn std::error::Error) -> Self {
        print_error(&error_chain(error));
        Self::internal(error.to_string())
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, kind, message, allow } = self;
        let mut response = json_response(status, &ApiErrorBody { error: ApiErrorDetail { kind, message } });
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Some(allow) = allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        response
    }
}

impl From<InboxError> for ApiError {
    fn from(error: InboxError) -> Self {
        let message = error.to_string();
        match error {
            InboxError::MayNotApprove(_)
            | InboxError::MayNotAdmin(_)
            | InboxError::OwnRequest(_)
            | InboxError::OwnSession(_)
            | InboxError::NeedsPerson => Self::forbidden(message),
            InboxError::UnknownRequest(_) => Self::not_found(message),
            InboxError::AlreadyAnswered(_) | InboxError::CallerNotWaiting(_) => Self::conflict(message),
            InboxError::Entropy => Self::internal(message),
            InboxError::Expired(_) => Self::gone(message),
            InboxError::NotGrantable => Self::bad_request(message),
            InboxError::Store(lost) => lost.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(lost: StoreError) -> Self {
        Self::caused(&lost)
    }
}

impl From<SqliteTranscriptError> for ApiError {
    fn from(error: SqliteTranscriptError) -> Self {
        Self::caused(&error)
    }
}

impl From<HostError> for ApiError {
    fn from(fatal: HostError) -> Self {
        Self::caused(&fatal)
    }
}

impl From<AppError> for ApiError {
    fn from(error: AppError) -> Self {
        match error {
            AppError::Run(WorkflowRunError::Unknown(_)) => Self::not_found(error.to_string()),
            AppError::Run(WorkflowRunError::Id(_)) => Self::bad_request(error.to_string()),
            // The request does not fit the configuration.
            AppError::Config(_) | AppError::Tools(_) => Self::bad_request(error.to_string()),
            _ => {
                print_error(&error_chain(&error));
                Self::unavailable(error.to_string())
            }
        }
    }
}
