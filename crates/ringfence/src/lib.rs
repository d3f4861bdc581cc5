//! Ringfence as a library: configuration, the application that wires a host, and its frontends.
//!
//! [`config`] loads what the user configured, [`app`] builds a host from it, `cli`, `mcp`, `api` and `acp` are frontends.
//!
//! One call through the policy, approvals, the audit log and the undo journal of the user's config:
//!
//! ```no_run
//! use ringfence::app::build_app;
//! use ringfence::approval::deny_all;
//! use ringfence::config::{CliFlags, Environment, load};
//! use ringfence_kernel::ToolCall;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn read() -> Result<(), Box<dyn std::error::Error>> {
//! let environment = Environment::read()?;
//! let settings = load(&CliFlags { workspace: Some("demo".to_owned()), ..CliFlags::default() }, &environment)?;
//! let app = build_app(settings, &environment, Box::new(deny_all()))?;
//! let arguments = r#"{"path":"notes.md"}"#.to_owned();
//! let call = ToolCall { id: "call-1".to_owned(), name: "read_file".to_owned(), arguments };
//! let reply = app.host.call(&app.session, call, &CancellationToken::new()).await?;
//! println!("{}", reply.text);
//! # Ok(())
//! # }
//! ```
//!
//! A program that runs other programs in the jail calls [`run_helper_if_requested`] first in `main`; `docs/library.md` has a
//! complete example.

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
