//! File tools that cannot leave their workspace: the fence.
//!
//! A mount is a held directory descriptor. Every path is resolved below it by the kernel, every decision is made
//! from what was opened, every change replaces a file whole. `register` gives the tools to a host.
//!
//! Not here: processes, sockets, and the environment.

mod audit;
mod batch;
mod content;
mod credentials;
mod digest;
mod errno;
mod fence;
mod front_matter;
mod git;
mod guard;
mod guest;
mod ignore_rules;
mod journal;
mod linked_directories;
mod lock;
mod mount;
mod name;
mod overlay;
mod patch;
mod preview;
mod record;
mod recover;
mod replace;
mod repository;
mod resolver;
mod search;
mod sensitive_files;
mod stat;
mod suggest;
mod symlinks;
mod syscall;
mod tools;
mod trash;
mod walk;
mod workflow;
mod workspace;
mod write_target;

pub use audit::{
    AuditChainError, AuditLog, AuditOpenError, AuditVerification, KnownHead, read_known_heads, read_records, verify,
};
pub use digest::content_id;
pub use fence::{Fence, FenceError, FenceOptions, JournalMode, MountSpec, ResolverBackend};
pub use front_matter::yaml_mapping;
pub use guard::{ChangeRule, GuardedChange};
pub use mount::{Durability, MountAccess};
pub use name::NameRule;
pub use resolver::PLAIN_FILE_FLAGS;
pub use tools::register;
pub use workflow::{WORKFLOW_FILE, WorkflowGraph, WorkflowGraphSource, WorkflowGuard};
pub use workspace::{
    HostPaths, WorkspaceDiscovery, WorkspaceError, discover_workspace, find_workspace, real_path, resolve_mount,
    resolve_workspace, workspace_path,
};
pub use write_target::STATE_ALIAS;
