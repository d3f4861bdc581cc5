//! `Idempotency-Key` support: a repeated request returns the stored reply.
//!
//! The reply of a keyed request is on disk before it goes out. The same key with the same body gives that reply, with
//! another body it is a conflict, and so it is while the first one is under way. A key belongs to its token and path, and is
//! kept for a day. A keyed request goes on when its client hangs up, which is when a client sends it again.
//!
//! Not here: ids of calls. A provider's tool-call id and a JSON-RPC id are never a key.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::hosts::run_blocking;
use crate::api::json::response_with;
use crate::store::IdempotencyState;
use crate::store::tokens::hash;

const HEADER: &str = "idempotency-key";

/// Characters of a key.
const MAX_KEY_CHARS: usize = 255;

/// Identity of a request with an idempotency key.
#[derive(Clone, Debug)]
pub(super) struct IdempotencyKey {
    scope: String,
    key: String,
    /// Of the body, however it is spelled.
    digest: String,
}

/// A reply that is kept.
#[derive(Debug, Serialize, Deserialize)]
struct StoredReply {
    status: u16,
    body: String,
}

impl IdempotencyKey {
    /// The key that a request shows, if it shows one.
    pub(super) fn from_headers(
        headers: &HeaderMap,
        token: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Option<Self>, ApiError> {
        let mut shown = headers.get_all(HEADER).iter();
        let Some(key) = shown.next() else { return Ok(None) };
        let invalid = || {
            ApiError::bad_request(format!(
                "`Idempotency-Key` must be a single header of 1 to {MAX_KEY_CHARS} visible ASCII characters"
            ))
        };
        let key = key.to_str().map_err(|_| invalid())?.trim();
        if shown.next().is_some()
            || key.is_empty()
            || key.len() > MAX_KEY_CHARS
            || !key.bytes().all(|c| c.is_ascii_graphic())
        {
            return Err(invalid());
        }
        let digest = match serde_json::from_slice::<Value>(body) {
            Ok(value) => hash(&canonical(&value)),
            Err(_) => hash(&String::from_utf8_lossy(body)),
        };
        Ok(Some(Self { scope: format!("{token}\n{path}"), key: key.to_owned(), digest }))
    }
}

/// The same text for the same JSON, whatever the order of keys.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, String> = fields.iter().map(|(key, value)| (key, canonical(value))).collect();
            let fields: Vec<String> = sorted.iter().map(|(key, value)| format!("{:?}:{value}", key)).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

impl ApiState {
    /// Answers a keyed request once, and gives the same reply from then on.
    pub(super) async fn run_once<F>(self: &Arc<Self>, key: IdempotencyKey, answering: F) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let (store, claimed) = (Arc::clone(&self.store), key.clone());
        let claim = move || Ok(store.claim_key(&claimed.scope, &claimed.key, &claimed.digest, SystemTime::now())?);
        match run_blocking(claim).await? {
            IdempotencyState::New => {}
            IdempotencyState::Conflict => {
                return Err(ApiError::conflict("this `Idempotency-Key` was used with a different body; use a new key"));
            }
            IdempotencyState::InProgress => {
                let message =
                    "a request with this `Idempotency-Key` is in flight, or was interrupted and its outcome is unknown";
                return Err(ApiError::conflict(message));
            }
            IdempotencyState::Done(kept) => return replay(&kept),
        }
        let api = Arc::clone(self);
        // It ends when the request does, also if the client is gone.
        let answered = tokio::spawn(async move {
            let answered = answering.await;
            api.store_reply(key, answered).await
        });
        answered.await.unwrap_or_else(|_| Err(ApiError::internal("internal server error")))
    }

    async fn store_reply(
        &self,
        key: IdempotencyKey,
        answered: Result<Response, ApiError>,
    ) -> Result<Response, ApiError> {
        let store = Arc::clone(&self.store);
        let response = match answered {
            Ok(response) => response,
            Err(problem) => {
                // A refused request may be tried again. The effects of a failed one are unknown, so the key stays
                // taken.
                if !problem.status().is_server_error() {
                    run_blocking(move || Ok(store.release_key(&key.scope, &key.key)?)).await?;
                }
                return Err(problem);
            }
        };
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.map_err(|_| ApiError::internal("cannot read the reply"))?;
        let kept = StoredReply { status: parts.status.as_u16(), body: String::from_utf8_lossy(&bytes).into_owned() };
        let kept = serde_json::to_string(&kept).map_err(|_| ApiError::internal("cannot store the reply"))?;
        run_blocking(move || Ok(store.save_reply(&key.scope, &key.key, &kept)?)).await?;
        Ok(Response::from_parts(parts, Body::from(bytes)))
    }
}

fn replay(kept: &str) -> Result<Response, ApiError> {
    let broken = || ApiError::internal("cannot read the stored reply");
    let StoredReply { status, body } = serde_json::from_str(kept).map_err(|_| broken())?;
    let status = StatusCode::from_u16(status).map_err(|_| broken())?;
    let mut response = response_with(status, "application/json", Body::from(body));
    response.headers_mut().insert(HeaderName::from_static("idempotency-replayed"), HeaderValue::from_static("true"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};

    use super::IdempotencyKey;

    #[test]
    fn a_body_is_the_same_however_its_keys_are_ordered_and_no_other_is() {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("k"));
        let digest =
            |body: &str| IdempotencyKey::from_headers(&headers, "t", "/p", body.as_bytes()).unwrap().unwrap().digest;
        assert_eq!(digest(r#"{"a":1,"b":[{"c":2,"d":3}]}"#), digest(r#" { "b" : [{"d":3,"c":2}], "a":1 }"#));
        for other in [r#"{"a":1,"b":[{"c":2,"d":"3"}]}"#, r#"{"a":1}"#, r#"{"a":1,"b":[]}"#, ""] {
            assert_ne!(digest(r#"{"a":1,"b":[{"c":2,"d":3}]}"#), digest(other), "{other}");
        }
    }

    #[test]
    fn a_key_is_visible_and_there_once() {
        let check = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("idempotency-key", HeaderValue::from_static(value));
            }
            IdempotencyKey::from_headers(&headers, "t", "/p", b"{}").map(|key| key.is_some())
        };
        assert!(!check(&[]).unwrap());
        assert!(check(&["0b8f3c1e-4a6e"]).unwrap());
        let long: &'static str = "x".repeat(256).leak();
        for bad in [&[""] as &[_], &["a b"], &["a", "a"], &[long]] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
