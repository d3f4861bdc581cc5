//! API routes: request, response and required scope of each path. The router and the OpenAPI document are built from the
//! same table, so that they cannot disagree.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{Query, RawPathParams, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use ringfence_kernel::{Assurance, AuthScope};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::api::ApiState;
use crate::api::auth::check_json;
use crate::api::error::{ApiError, ApiErrorBody};
use crate::api::idempotency::IdempotencyKey;
use crate::api::json;
use crate::http::token_slots::TokenSlotPermit;
use crate::store::tokens::TokenIdentity;

/// Access requirement of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessRequirement {
    /// Any token.
    Token,
    Scope(AuthScope),
    /// Any of these.
    OneOf(&'static [AuthScope]),
    /// A page that a person opened.
    Person,
    /// This one. For a token that answers no approvals there are no wrapped runs.
    WrappedRun(AuthScope),
}

impl AccessRequirement {
    fn check(self, who: &TokenIdentity) -> Result<(), ApiError> {
        let (may, what) = match self {
            Self::Token => return Ok(()),
            Self::WrappedRun(_) if !who.has_scope(AuthScope::Approve) => {
                return Err(ApiError::not_found("not found; `GET /v1/openapi.json` lists the available paths"));
            }
            Self::Scope(scope) | Self::WrappedRun(scope) => (who.has_scope(scope), scope.name().to_owned()),
            Self::OneOf(scopes) => {
                let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
                (scopes.iter().any(|scope| who.has_scope(*scope)), names.join("` or `"))
            }
            Self::Person => {
                return match who.assurance == Assurance::Person && who.has_scope(AuthScope::Admin) {
                    true => Ok(()),
                    false => Err(ApiError::forbidden("this requires a person signed in to the web UI")),
                };
            }
        };
        match may {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!("`{}` lacks the scope `{what}`", who.name))),
        }
    }

    fn describe_access(self) -> String {
        match self {
            Self::Token => "Requires any token.".to_owned(),
            Self::Scope(scope) => format!("Requires a token with the scope `{}`.", scope.name()),
            Self::WrappedRun(AuthScope::Approve) => {
                "Requires a token with the scope `approve`; for others it does not exist.".to_owned()
            }
            Self::WrappedRun(scope) => format!(
                "Requires a token with the scopes `approve` and `{}`; without `approve` it does not exist.",
                scope.name()
            ),
            Self::OneOf(scopes) => {
                let names: Vec<String> = scopes.iter().map(|scope| format!("`{}`", scope.name())).collect();
                format!("Requires a token with one of the scopes {}.", names.join(", "))
            }
            Self::Person => "Requires the token of a web UI session.".to_owned(),
        }
    }
}

/// One path and method.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) access: AccessRequirement,
    /// Of what goes well.
    pub(super) status: StatusCode,
    pub(super) summary: &'static str,
}

impl Route {
    pub(super) fn new(method: Method, path: &'static str, access: AccessRequirement, summary: &'static str) -> Self {
        Self { method, path, access, status: StatusCode::OK, summary }
    }

    pub(super) fn created(self) -> Self {
        Self { status: StatusCode::CREATED, ..self }
    }
}

/// Identity and parameters of a request.
#[derive(Debug)]
pub(super) struct ApiRequestContext {
    pub(super) identity: TokenIdentity,
    /// Values of the path parameters, in their order.
    path_params: Vec<String>,
    pub(super) headers: HeaderMap,
    /// Idempotency key of the request.
    idempotency_key: Option<IdempotencyKey>,
}

impl ApiRequestContext {
    pub(super) fn path_param(&self, index: usize) -> &str {
        self.path_params.get(index).map_or("", String::as_str)
    }
}

/// An empty request body.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyRequest {}

/// An empty response body.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EmptyResponse {}

/// The paths so far.
pub(super) struct RouteTable {
    methods: BTreeMap<&'static str, (MethodRouter<Arc<ApiState>>, Vec<Method>)>,
    schemas: SchemaGenerator,
    document: BTreeMap<&'static str, Map<String, Value>>,
}

impl RouteTable {
    pub(super) fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self { methods: BTreeMap::new(), schemas: settings.into_generator(), document: BTreeMap::new() }
    }

    /// A path that takes JSON (or a query, where there is no body) and gives JSON.
    pub(super) fn json<A, R, H, F>(mut self, line: Route, handler: H) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: Serialize + JsonSchema + 'static,
        H: Fn(Arc<ApiState>, ApiRequestContext, A) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<R, ApiError>> + Send + 'static,
    {
        let reply_schema = self.schemas.subschema_for::<R>();
        self.describe::<A>(&line, json!({"application/json": {"schema": reply_schema}}));
        let status = line.status;
        self.add_handler(line, move |api, context, asked: A| {
            let answering = handler(api, context, asked);
            async move { answering.await.map(|value| json::json_response(status, &value)) }
        })
    }

    /// A route whose response is not JSON.
    pub(super) fn non_json<A, H, F>(mut self, line: Route, content_type: &'static str, handler: H) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        H: Fn(Arc<ApiState>, ApiRequestContext, A) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        self.describe::<A>(&line, json!({content_type: {}}));
        self.add_handler(line, handler)
    }

    fn add_handler<A, H, F>(mut self, line: Route, handler: H) -> Self
    where
        A: DeserializeOwned + Send + 'static,
        H: Fn(Arc<ApiState>, ApiRequestContext, A) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let (need, method) = (line.access, line.method);
        let serve = move |State(api): State<Arc<ApiState>>, names: RawPathParams, request: Request| {
            let handler = handler.clone();
            let names = names.iter().map(|(_, value)| value.to_owned()).collect();
            async move {
                let served = async {
                    let (mut context, asked, slot) = admit(&api, need, names, request).await?;
                    let key = context.idempotency_key.take();
                    let answering = handler(Arc::clone(&api), context, asked);
                    match key {
                        Some(key) => {
                            let answering = async move {
                                let _slot = slot;
                                answering.await
                            };
                            api.run_once(key, answering).await
                        }
                        None => answering.await,
                    }
                };
                let response = served.await.unwrap_or_else(|problem: ApiError| {
                    if problem.status().is_server_error() {
                        api.counts.failures.fetch_add(1, Ordering::Relaxed);
                    }
                    problem.into_response()
                });
                api.counts.requests.fetch_add(1, Ordering::Relaxed);
                response
            }
        };
        let (router, methods) = self.methods.remove(line.path).unwrap_or_default();
        let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::TRACE);
        let methods = methods.into_iter().chain([method]).collect();
        self.methods.insert(line.path, (router.merge(on(filter, serve)), methods));
        self
    }

    /// The router, and the document that describes it.
    pub(super) fn finish(mut self) -> (Router<Arc<ApiState>>, Value) {
        let mut router = Router::new();
        for (path, (methods, names)) in std::mem::take(&mut self.methods) {
            let names = names.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
            let refuse = move || {
                let names = names.clone();
                async move { ApiError::method_not_allowed(names) }
            };
            router = router.route(path, methods.fallback(refuse));
        }
        let _ = self.schemas.subschema_for::<ApiErrorBody>();
        let mut schemas = self.schemas.take_definitions(true);
        schemas.values_mut().for_each(without_boolean_schemas);
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Ringfence",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "File, shell and web tools for AI agents that stay inside a workspace, ask first and can be undone. Every request needs a token: \
                                `Authorization: Bearer …`; create one with `ringfence token new NAME`.",
            },
            "servers": [{"url": "/", "description": "The server that serves this document."}],
            "paths": self.document,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}],
        });
        (router, document)
    }

    fn describe<A: JsonSchema + DeserializeOwned>(&mut self, line: &Route, content: Value) {
        let mut parameters: Vec<Value> = path_params_in(line.path)
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}))
            .collect();
        let takes_body = takes_body(&line.method);
        let mut operation = json!({
            "summary": line.summary,
            "description": line.access.describe_access(),
            "operationId": operation_id(line),
        });
        if takes_body {
            parameters.push(json!({
                "name": "Idempotency-Key",
                "in": "header",
                "required": false,
                "description": "A repeated request with the same key and body returns the first reply; a different body returns 409.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }));
            let schema = self.schemas.subschema_for::<A>();
            // Nothing is an empty object, where that says enough.
            let required = serde_json::from_str::<A>("{}").is_err();
            operation["requestBody"] =
                json!({"required": required, "content": {"application/json": {"schema": schema}}});
        } else {
            parameters.extend(query_parameters(&self.schemas.root_schema_for::<A>()));
        }
        operation["parameters"] = json!(parameters);
        let error = json!({"application/json": {"schema": {"$ref": "#/components/schemas/ApiErrorBody"}}});
        let mut responses = Map::new();
        responses.insert(line.status.as_str().to_owned(), json!({"description": "Success.", "content": content}));
        for (status, text) in ERROR_RESPONSES {
            responses.insert((*status).to_owned(), json!({"description": text, "content": error}));
        }
        operation["responses"] = json!(responses);
        self.document.entry(line.path).or_default().insert(line.method.as_str().to_lowercase(), operation);
    }
}

/// Error responses of every route.
const ERROR_RESPONSES: &[(&str, &str)] = &[
    ("400", "The request is invalid."),
    ("401", "The token is missing or unknown."),
    ("403", "The token lacks the required scope."),
    ("404", "Not found."),
    ("408", "The request timed out."),
    ("409", "The request conflicts with the current state."),
    ("410", "The resource is no longer active."),
    ("413", "The request body is too large."),
    ("415", "The content type is not JSON."),
    ("421", "The request names another host."),
    ("429", "Too many requests."),
    ("500", "Internal server error."),
    ("503", "Unavailable now, or with the current settings."),
];

fn takes_body(method: &Method) -> bool {
    *method == Method::POST || *method == Method::PUT
}

fn path_params_in(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn operation_id(line: &Route) -> String {
    let segments = line.path.split('/').filter(|segment| !segment.is_empty() && *segment != "v1");
    let segments: Vec<&str> = segments.map(|segment| segment.trim_matches(['{', '}'])).collect();
    format!("{}_{}", line.method.as_str().to_lowercase(), segments.join("_").replace('.', "_"))
}

/// The fields of a type, as what a query may have.
fn query_parameters(schema: &Schema) -> Vec<Value> {
    let empty = Map::new();
    let fields = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required = |name: &str| {
        schema.get("required").and_then(Value::as_array).is_some_and(|all| all.iter().any(|each| each == name))
    };
    let parameter = |(name, field): (&String, &Value)| {
        let mut field = field.clone();
        let description = field.as_object_mut().and_then(|field| field.shift_remove("description"));
        // A query has no null: what is not there is left out.
        if let Some(Value::Array(types)) = field.get_mut("type") {
            types.retain(|each| each != "null");
            if let [one] = types.as_slice() {
                field["type"] = one.clone();
            }
        }
        without_boolean_schemas(&mut field);
        let mut parameter = json!({"name": name, "in": "query", "required": required(name), "schema": field});
        if let Some(description) = description {
            parameter["description"] = description;
        }
        parameter
    };
    fields.iter().map(parameter).collect()
}

/// Makes schemas of what takes any value objects: generators of clients do not know the others.
fn without_boolean_schemas(schema: &mut Value) {
    const ITEM_PATHS: [&str; 3] = ["items", "not", "contains"];
    const LIST_PATHS: [&str; 3] = ["anyOf", "oneOf", "allOf"];
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    let Some(fields) = schema.as_object_mut() else { return };
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("properties" | "$defs" | "patternProperties", Value::Object(each)) => {
                each.values_mut().for_each(without_boolean_schemas);
            }
            (name, Value::Array(each)) if LIST_PATHS.contains(&name) => {
                each.iter_mut().for_each(without_boolean_schemas)
            }
            (name, value) if ITEM_PATHS.contains(&name) => without_boolean_schemas(value),
            ("additionalProperties", value) if value.is_object() => without_boolean_schemas(value),
            _ => {}
        }
    }
}

/// Lets a request in, and reads it.
async fn admit<A: DeserializeOwned>(
    api: &ApiState,
    need: AccessRequirement,
    names: Vec<String>,
    request: Request,
) -> Result<(ApiRequestContext, A, TokenSlotPermit), ApiError> {
    api.auth.check_source(request.headers(), request.extensions())?;
    let who = api.auth.authenticate(request.headers(), request.extensions()).await?;
    need.check(&who)?;
    let slot = api.auth.request_slot(&who)?;
    let (parts, body) = request.into_parts();
    let mut key = None;
    let asked = if takes_body(&parts.method) {
        let body = api.auth.read(&who, body).await?;
        key = IdempotencyKey::from_headers(&parts.headers, &who.id, parts.uri.path(), &body)?;
        read_body(&parts.headers, &body)?
    } else {
        Query::<A>::try_from_uri(&parts.uri).map_err(|rejected| ApiError::bad_request(rejected.body_text()))?.0
    };
    Ok((
        ApiRequestContext { identity: who, path_params: names, headers: parts.headers, idempotency_key: key },
        asked,
        slot,
    ))
}

pub(super) fn read_body<A: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<A, ApiError> {
    let body = if body.is_empty() { b"{}" } else { body };
    let text = headers.get(CONTENT_TYPE).and_then(|text| text.to_str().ok()).unwrap_or("application/json");
    let is_json = text.split(';').next().is_some_and(|text| text.trim().eq_ignore_ascii_case("application/json"));
    if !is_json {
        return Err(ApiError::unsupported_media_type());
    }
    check_json(body)?;
    // A list of values in the order of fields would be accepted as well, which is never intended.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::bad_request("the body is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(error.to_string()))
}
