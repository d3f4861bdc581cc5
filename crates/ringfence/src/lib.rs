//! Ringfence as a library: configuration, the application that wires a host, and its frontends.
//!
//! [`config`] loads what the user configured, [`app`] builds a host from it, `cli`, `mcp`, `api` and `acp` are frontends.
//!
//! One call through the policy, approvals, the audit log and the undo journal. [`config::Environment::read`] uses the config
//! and state of the user; this one uses a directory of its own:
//!
//! ```
//! use ringfence::app::build_app;
//! use ringfence::approval::deny_all;
//! use ringfence::config::{CliFlags, Environment, load};
//! use ringfence_kernel::ToolCall;
//! use tokio_util::sync::CancellationToken;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let workspace = directory.path().join("workspace");
//! std::fs::create_dir(&workspace)?;
//! std::fs::write(workspace.join("notes.md"), "milk\n")?;
//!
//! let environment = Environment::isolated(directory.path(), "/proc/self/exe");
//! let flags = CliFlags { workspace: workspace.to_str().map(str::to_owned), ..CliFlags::default() };
//! let app = build_app(load(&flags, &environment)?, &environment, Box::new(deny_all()))?;
//! let arguments = r#"{"path":"notes.md"}"#.to_owned();
//! let call = ToolCall { id: "call-1".to_owned(), name: "read_file".to_owned(), arguments };
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new()))?;
//! assert!(reply.error_kind().is_none());
//! assert!(reply.text.contains(r#""content":"milk\n""#));
//! # Ok(())
//! # }
//! ```
//!
//! A session has the tools of its settings. In the format of chat completions:
//!
//! ```
//! # use ringfence::app::build_app;
//! # use ringfence::approval::deny_all;
//! # use ringfence::config::{CliFlags, Environment, load};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let environment = Environment::isolated(directory.path(), "/proc/self/exe");
//! # let workspace = directory.path().join("workspace").to_str().map(str::to_owned);
//! let flags = CliFlags { workspace, allow: vec!["read_file".to_owned()], ..CliFlags::default() };
//! let app = build_app(load(&flags, &environment)?, &environment, Box::new(deny_all()))?;
//! let tools = app.session.catalog.openai_tools();
//! assert_eq!(tools.len(), 1);
//! assert_eq!(tools[0]["function"]["name"], "read_file");
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
