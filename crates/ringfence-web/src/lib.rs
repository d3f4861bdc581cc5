//! The web for agents: requests that cannot be turned inward, searches, and the jail's way out.
//!
//! Every connection goes by `net.rs`, which knows which addresses may be reached. Nothing here decides whether a host may
//! be asked: the kernel's policy does, before anything is looked up.

mod address;
mod call;
mod client;
mod decompress;
mod egress;
mod endpoint;
mod engine;
mod error;
#[cfg(test)]
mod fuzz;
mod hello;
mod html;
mod net;
mod page;
mod private_hosts;
mod target;
mod web_fetch;
mod web_search;

use std::sync::Arc;

use ringfence_kernel::{NameTaken, Registry};

pub use egress::Proxy;
pub use endpoint::{Endpoint, Head, Message};
pub use engine::{Engine, Key, Kind};
pub use net::{Net, Resolver, SystemResolver, Trust};
pub use private_hosts::PrivateHosts;

use web_search::Searching;

/// Gives the web's tools to a registry. Without an engine there is nothing to search with.
pub fn register(registry: &mut Registry, net: &Arc<Net>, engine: Option<Engine>) -> Result<(), NameTaken> {
    web_fetch::register(registry, Arc::clone(net))?;
    let searching = engine.map(|engine| Searching { net: Arc::new(net.also_to(&engine.url)), engine });
    web_search::register(registry, searching)
}
