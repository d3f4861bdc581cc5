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
pub mod agents_config;
mod api;
mod approvals_text;
pub mod approve;
mod changes_text;
pub mod cli;
mod command;
pub mod config;
mod dialog;
mod doctor;
mod environment;
mod foreign;
mod in_charge;
mod incoming;
mod init;
mod launch;
mod limits_config;
mod loader_variables;
mod lock;
pub mod log;
mod manual;
pub mod mcp;
pub mod mcp_config;
pub mod mode;
mod owner;
mod page;
mod pasts;
mod policy_text;
pub mod prompt;
mod request_rate;
mod request_source;
mod rules_config;
pub mod run;
pub mod run_log;
mod serving;
pub mod sessions;
mod sessions_text;
mod signals;
pub mod store;
mod strict_modes;
pub mod terminal;
mod token_slots;
pub mod tokens;
mod tool_listing;
pub mod trust;
mod waiting;
pub mod web_config;
pub mod wire;
pub mod workspace_choice;

pub use ringfence_sandbox::take_part;
