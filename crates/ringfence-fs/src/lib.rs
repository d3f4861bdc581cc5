//! The fence: file tools that cannot leave their workspace.
//!
//! A mount is a held directory descriptor. Every path is resolved below it by the kernel, every decision is made
//! from what was opened, every change replaces a file whole. `register` gives the tools to a host.
//!
//! Not here: processes, sockets, and the environment.

mod again;
mod audit;
mod batch;
mod batch_note;
mod content;
mod credentials;
mod diff;
mod digest;
mod fault;
mod fence;
mod front_matter;
mod git;
mod guard;
mod ignore_rules;
mod journal;
mod known;
mod layer;
mod linked_directories;
mod links;
mod locks;
mod missing;
mod mount;
mod name;
mod path;
mod preview;
mod recover;
mod replace;
mod repository;
mod resolve;
mod search;
mod slot;
mod stamp;
mod tools;
mod trash;
mod walk;
mod workflow;
mod workspace;

pub use audit::{AuditError, AuditLog, Broken, KnownHead, Verified, read_known_heads, read_records, verify};
pub use digest::content_id;
pub use fence::{Backend, Fence, FenceError, Journaling, MountSpec, Options};
pub use front_matter::yaml_mapping;
pub use guard::{Change, ChangeRule};
pub use mount::{Durability, Rights};
pub use name::NameRule;
pub use resolve::PLAIN_FILE_FLAGS;
pub use slot::STATE_ALIAS;
pub use tools::register;
pub use workflow::{Graph, GraphSource, WORKFLOW_FILE, WorkflowGuard};
pub use workspace::{
    Surroundings, WorkspaceDiscovery, WorkspaceError, discover_workspace, find_workspace, real_path, resolve_mount,
    resolve_workspace, workspace_path,
};
