//! Web UI login by a one-time link, which is printed where the server was started.
//!
//! The link has a code behind `#`, which browsers do not send. The page exchanges it for a token of its own and keeps that
//! in its origin's storage; there are no cookies, which every other port of this host would get too.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_FRAME_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::hosts::run_blocking;
use crate::api::json::{json_response, response_with};
use crate::api::routes::read_body;
use crate::api::ui;
use crate::store::tokens::PAGE_TOKEN_LIFETIME;

const PAGE_CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginBody {
    code: String,
}

#[derive(Debug, Serialize)]
struct LoginResponse {
    token: String,
    name: String,
    scopes: Vec<&'static str>,
    /// Until when the token holds.
    until: String,
}

/// Exchanges a code for a token.
pub(super) async fn exchange_code(State(api): State<Arc<ApiState>>, request: Request) -> Result<Response, ApiError> {
    let client = api.auth.check_source(request.headers(), request.extensions())?;
    let (parts, body) = request.into_parts();
    let LoginBody { code } = read_body(&parts.headers, &api.auth.read_login(client, body).await?)?;
    let tokens = api.tokens.clone();
    let made =
        run_blocking(move || tokens.redeem(&code).map_err(|error| ApiError::internal(error.to_string()))).await?;
    let Some((token, owner)) = made else {
        return Err(ApiError::unauthorized(
            "this link was already used or has expired; `ringfence token link` creates a new one",
        ));
    };
    let scopes = owner.scopes.iter().map(|scope| scope.name()).collect();
    let until = humantime::format_rfc3339_seconds(SystemTime::now() + PAGE_TOKEN_LIFETIME).to_string();
    let answer = LoginResponse { token, name: owner.name.to_string(), scopes, until };
    Ok(json_response(StatusCode::OK, &answer))
}

pub(super) async fn index_page(State(api): State<Arc<ApiState>>, request: Request) -> Result<Response, ApiError> {
    serve_asset(&api, &request, "index.html")
}

pub(super) async fn asset(
    State(api): State<Arc<ApiState>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    serve_asset(&api, &request, &name)
}

fn serve_asset(api: &ApiState, request: &Request, name: &str) -> Result<Response, ApiError> {
    api.auth.check_source(request.headers(), request.extensions())?;
    let asset = ui::asset(name).ok_or_else(|| ApiError::not_found("the web UI has no such file"))?;
    let mut response = response_with(StatusCode::OK, asset.content_type, Body::from(asset.bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_CSP));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}
