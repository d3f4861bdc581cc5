//! What is said to a request that could not be served: what happened, to which thing, what to do next.

use axum::http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ringfence_kernel::{DeskError, Fatal, StoreLost};
use schemars::JsonSchema;
use serde::Serialize;

use super::reply::json;
use crate::run::RunError;
use crate::sessions::SessionError;
use crate::wire::WireError;

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// The methods that a path has, where it does not have the one that was used.
    allow: Option<String>,
}

/// What every error looks like.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ErrorBody {
    error: ErrorWords,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ErrorWords {
    /// For programs.
    kind: &'static str,
    /// For people.
    message: String,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), allow: None }
    }

    /// The request is not one that could be meant.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// Nobody known asks.
    pub(super) fn stranger(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// Whoever asks may not have it.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// What is asked for may be a secret, and that it is wanted all the same was not said.
    pub(super) fn secret(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "secret", message)
    }

    pub(super) fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn method(allowed: String) -> Self {
        let message = format!("this path has {allowed}");
        Self { allow: Some(allowed), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message) }
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(super) fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "gone", message)
    }

    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    pub(super) fn late(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// A body that is not said to be JSON.
    pub(super) fn no_json() -> Self {
        let message = "say `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// The right request to the wrong server: it is for another host.
    pub(super) fn misdirected(message: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", message)
    }

    pub(super) fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", message)
    }

    /// This cannot be done now, or not with these settings.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    /// What should not happen.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, kind, message, allow } = self;
        let mut response = json(status, &ErrorBody { error: ErrorWords { kind, message } });
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

impl From<DeskError> for Problem {
    fn from(error: DeskError) -> Self {
        let message = error.to_string();
        match error {
            DeskError::MayNotApprove(_)
            | DeskError::MayNotAdmin(_)
            | DeskError::Own(_)
            | DeskError::OwnSession(_)
            | DeskError::NeedsPerson => Self::forbidden(message),
            DeskError::Unknown(_) => Self::missing(message),
            DeskError::Already(_) | DeskError::CallerAway(_) => Self::conflict(message),
            DeskError::Entropy => Self::internal(message),
            DeskError::Expired(_) => Self::gone(message),
            DeskError::NotForGood => Self::bad(message),
            DeskError::Store(lost) => lost.into(),
        }
    }
}

impl From<StoreLost> for Problem {
    fn from(lost: StoreLost) -> Self {
        Self::internal(lost.to_string())
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<Fatal> for Problem {
    fn from(fatal: Fatal) -> Self {
        Self::internal(fatal.to_string())
    }
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Run(RunError::Unknown(_)) => Self::missing(error.to_string()),
            WireError::Run(RunError::Id(_)) => Self::bad(error.to_string()),
            // What the request named does not go with what is configured.
            WireError::Config(_) | WireError::Tools(_) => Self::bad(error.to_string()),
            _ => Self::unavailable(error.to_string()),
        }
    }
}
