//! What the fence promises, tested through `Host::call` as every caller reaches it.

mod basics;
mod world;
