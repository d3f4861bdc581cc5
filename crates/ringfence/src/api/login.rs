//! How a person's page comes in: by a link that is printed where the server was started, once.
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

use super::Api;
use super::houses::off_thread;
use super::problem::Problem;
use super::reply::{json, reply};
use super::routes::read_body;
use crate::page;
use crate::tokens::PAGE_TIME;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Code {
    code: String,
}

#[derive(Debug, Serialize)]
struct LoggedIn {
    token: String,
    name: String,
    scopes: Vec<&'static str>,
    /// Until when the token holds.
    until: String,
}

/// Exchanges a code for a token.
pub(super) async fn login(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let client = api.door.check_source(request.headers(), request.extensions())?;
    let (parts, body) = request.into_parts();
    let Code { code } = read_body(&parts.headers, &api.door.read_login(client, body).await?)?;
    let tokens = api.tokens.clone();
    let made = off_thread(move || tokens.redeem(&code).map_err(|error| Problem::internal(error.to_string()))).await?;
    let Some((token, owner)) = made else {
        return Err(Problem::stranger(
            "this link was used already, or is too old; `ringfence token link` makes another",
        ));
    };
    let scopes = owner.scopes.iter().map(|scope| scope.name()).collect();
    let until = humantime::format_rfc3339_seconds(SystemTime::now() + PAGE_TIME).to_string();
    let answer = LoggedIn { token, name: owner.name.to_string(), scopes, until };
    Ok(json(StatusCode::OK, &answer))
}

pub(super) async fn page(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    serve(&api, &request, "index.html")
}

pub(super) async fn asset(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    serve(&api, &request, &name)
}

fn serve(api: &Api, request: &Request, name: &str) -> Result<Response, Problem> {
    api.door.check_source(request.headers(), request.extensions())?;
    let asset = page::asset(name).ok_or_else(|| Problem::missing("the page has no such part"))?;
    let mut response = reply(StatusCode::OK, asset.content_type, Body::from(asset.bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}
