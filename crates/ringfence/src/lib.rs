//! Ringfence as a library: config, application builder and interfaces.
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
//! A program that runs other programs in the jail calls [`run_helper_if_requested`] first in `main`; `docs/library.md` has a whole one.

mod acp;
pub mod agent;
pub mod agents_config;
mod api;
pub mod app;
pub mod approval;
mod approval_commands;
mod approvals_text;
mod args;
pub mod audit_sinks;
mod changes_text;
pub mod cli;
mod completions;
pub mod config;
mod dialog;
mod doctor;
mod environment;
mod init;
mod limits_config;
mod loader_variables;
mod lock;
pub mod mcp;
mod mcp_client;
pub mod mcp_config;
mod page;
mod policy_text;
mod process_lock;
mod program_launcher;
mod progress;
mod request_auth;
mod request_rate;
mod request_source;
mod rules_config;
pub mod run;
pub mod run_log;
mod serve;
pub mod session_mode;
mod session_owners;
mod sessions_text;
mod signals;
pub mod store;
mod strict_modes;
mod taint;
mod token_slots;
pub mod tokens;
mod tool_listing;
pub mod tool_prompt;
pub mod transcripts;
pub mod trust;
pub mod tty;
pub mod web_config;
pub mod workspace_choice;

pub use ringfence_sandbox::run_helper_if_requested;
