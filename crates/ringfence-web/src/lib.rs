//! Web tools for agents: SSRF-safe requests, searches, and the jail's egress proxy.
//!
//! Every connection goes by `connector.rs`, which says which addresses may be reached. Nothing here decides whether a host may
//! be asked: the kernel's policy does, before anything is looked up.

mod blocking;
mod captured_connection;
mod client_hello;
mod connector;
mod dns_message;
mod egress_proxy;
mod endpoint;
mod error;
mod fetch_target;
#[cfg(test)]
mod fuzz;
mod html;
mod http_client;
mod name_server;
mod name_table;
mod private_hosts;
mod proxy_forward;
mod response_body;
mod search_engine;
mod tls_greeting;
mod web_fetch;
mod web_search;

use std::sync::Arc;

use ringfence_kernel::{DuplicateToolError, ToolRegistry};

pub use connector::WebConnector;
pub use egress_proxy::EgressProxy;
pub use endpoint::{EndpointRequest, HttpEndpoint, HttpResponseHead};
pub use private_hosts::PrivateHosts;
pub use ringfence_net::{NameResolver, SystemResolver, TlsTrust};
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
