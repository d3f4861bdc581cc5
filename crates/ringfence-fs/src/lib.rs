//! File tools that cannot leave their workspace: the fence.
//!
//! A mount is a held directory descriptor. Every path is resolved below it by the kernel, every decision is made
//! from what was opened, every change replaces a file whole. `register` gives the tools to a host.
//!
//! Not here: processes, sockets, and the environment.

mod edit;
mod fence;
mod git;
mod guard;
mod journal;
mod lock;
mod mount;
mod overlay;
mod patch;
mod path;
mod preview;
mod read;
mod root;
mod sensitive;
mod source_listing;
mod source_tree;
mod sys;
mod tools;
mod txn;
mod undo;

pub use fence::{Fence, FenceError, FenceOptions, HostFile, MountSpec, ResolverBackend, WorkspacePath};
pub use guard::{ChangeRule, GuardedChange};
pub use mount::{JournalMode, RunStateMount};
pub use overlay::{
    FollowedWatches, LayerActivity, LayerBranch, LayerBranchContents, LayerCollection, LayerCollectionMode,
    LayerCollectionPolicy, LayerItemChoice, LayerSelection, LayerState, LayerStore, LayerStoreEntry,
    LayerStoreEntryKind, LayerWatch, StagedBranch,
};
pub use path::name::NameRule;
pub use path::workspace::{
    HostPaths, WorkspaceDiscovery, WorkspaceResolveError, discover_workspace, find_workspace, real_path, resolve_mount,
    resolve_workspace, workspace_path,
};
pub use read::digest::content_id;
pub use root::resolver::PLAIN_FILE_FLAGS;
pub use root::{Durability, MountAccess, StagingMode, StartWriteback};
pub use sensitive::credentials::has_credential;
pub use source_listing::{KeptSourceListing, SourceListing};
pub use source_tree::{SourceContent, SourceEntry, SourceReader, SourceStamp, SourceTree};
pub use tools::{CHECKPOINT_LAYER, register, register_home};
