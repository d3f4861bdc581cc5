//! The web for agents: requests that cannot be turned inward, searches, and the jail's way out.
//!
//! Every connection goes by `net.rs`, which knows which addresses may be reached. Nothing here decides whether a host may
//! be asked: the kernel's policy does, before anything is looked up.

mod address;
mod call;
mod client;
mod decompress;
mod error;
mod html;
mod net;
mod page;
mod target;
mod web_fetch;

use std::sync::Arc;

use ringfence_kernel::{NameTaken, Registry};

pub use net::{Net, Resolver, SystemResolver, Trust};
pub use target::PrivateHosts;

/// Gives the web's tools to a registry.
pub fn register(registry: &mut Registry, net: &Arc<Net>) -> Result<(), NameTaken> {
    web_fetch::register(registry, Arc::clone(net))
}
