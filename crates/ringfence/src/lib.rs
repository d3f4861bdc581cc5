//! Ringfence as a library: config, wiring and fronts.
//!
//! `config` hears what people want, `wire` puts a host together from it, `cli` is the front on the command line,
//! `mcp` the one for agents and `acp` the one for editors.
//!
//! One call through the policy, approvals, the audit log and the undo journal of the user's config:
//!
//! ```no_run
//! use ringfence::approve::nobody;
//! use ringfence::config::{Environment, Flags, load};
//! use ringfence::wire::wire;
//! use ringfence_kernel::ToolCall;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn read() -> Result<(), Box<dyn std::error::Error>> {
//! let environment = Environment::read()?;
//! let settings = load(&Flags { workspace: Some("demo".to_owned()), ..Flags::default() }, &environment)?;
//! let wired = wire(settings, &environment, Box::new(nobody()))?;
//! let arguments = r#"{"path":"notes.md"}"#.to_owned();
//! let call = ToolCall { id: "call-1".to_owned(), name: "read_file".to_owned(), arguments };
//! let reply = wired.host.call(&wired.session, call, &CancellationToken::new()).await?;
//! println!("{}", reply.text);
//! # Ok(())
//! # }
//! ```
//!
//! A program that runs other programs in the jail calls [`take_part`] first in `main`; `docs/library.md` has a whole one.

mod acp;
pub mod agent;
mod api;
pub mod app;
pub mod approval;
pub mod cli;
mod codec;
pub mod config;
mod http;
pub mod mcp;
mod mcp_client;
mod process;
pub mod store;

pub use ringfence_sandbox::run_helper_if_requested;
