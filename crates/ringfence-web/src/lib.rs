//! Web tools for agents: SSRF-safe requests, searches, and the jail's egress proxy.
//!
//! Every connection goes by `connector.rs`, which says which addresses may be reached. Nothing here decides whether a host may
//! be asked: the kernel's policy does, before anything is looked up.

mod answer_filter;
mod blocking;
mod ca_environment;
mod captured_connection;
mod client_hello;
mod connector;
mod credential;
mod dns_message;
mod egress_proxy;
mod endpoint;
mod error;
mod fetch_target;
#[cfg(test)]
mod fuzz;
mod hop_by_hop;
mod html;
mod http_client;
mod intercepted_connection;
mod interception_record;
mod interceptor;
mod leak_scanner;
mod name_server;
mod name_table;
mod oauth_login;
mod pack_commits;
mod private_hosts;
mod proxy_forward;
mod receive_pack;
mod request_body;
mod request_guard;
mod request_path;
mod response_body;
mod run_ca;
mod search_engine;
mod tls_greeting;
mod token_message;
mod web_fetch;
mod web_search;
mod websocket_relay;

use std::sync::Arc;

use ringfence_kernel::{DuplicateToolError, ToolRegistry};

pub use ca_environment::{CA_VARIABLES_TO_REMOVE, ca_environment, java_environment, java_trust_store, merge_ca_bundle};
pub use connector::WebConnector;
pub use credential::{
    AskedRequest, CredentialBinding, CredentialError, CredentialHeader, HostPathRule, SecretText, placeholder_like,
};
pub use egress_proxy::EgressProxy;
pub use endpoint::{EndpointRequest, HttpEndpoint, HttpResponseHead};
pub use interceptor::{
    InterceptedCredentials, InterceptionObserver, InterceptorError, RequestDecision, RequestQuestion, RequestRecorded,
    TlsInterceptor,
};
pub use oauth_login::{
    LoginRefresh, LoginStore, LoginStoreError, OAuthLoginBinding, OAuthPlaceholders, OAuthTokenShapes, OAuthTokens,
    RefreshedTokens,
};
pub use private_hosts::PrivateHosts;
pub use request_path::PathPatternError;
pub use ringfence_net::{NameResolver, SystemResolver, TlsTrust};
pub use run_ca::{RunCaError, RunCertificateAuthority};
pub use search_engine::{SearchEngine, SearchEngineKind, WebApiKey};

use web_search::SearchBackend;

/// Gives the web's tools to a registry. Without an engine there is nothing to search with.
pub fn register(
    registry: &mut ToolRegistry,
    net: &Arc<WebConnector>,
    engine: Option<SearchEngine>,
) -> Result<(), DuplicateToolError> {
    web_fetch::register(registry, Arc::clone(net))?;
    let searching = engine.map(|engine| SearchBackend { net: Arc::new(net.allowing(&engine.url)), engine });
    web_search::register(registry, searching)
}
