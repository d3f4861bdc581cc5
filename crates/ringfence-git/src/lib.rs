//! Git tools: the real git in the jail, on the workspace's repository.
//!
//! A repository's settings name programs that git runs: hooks, filters, drivers, monitors. The reading tools give git other
//! settings, so that none of them runs. A commit runs them in the jail, since a commit without its hooks is another commit,
//! and the policy decides about what they and git changed. A person also commits changes of a wrapped program's layer.
//!
//! Not here: running a program (`ringfence-sandbox`), and which files of a repository are data (`ringfence-fs`).

mod commit;
mod config;
mod courier;
mod diff;
mod fetch;
mod layer_branch;
mod log;
mod output_filter;
mod patch_diff;
mod push;
mod remote;
mod repository;
mod revision;
mod status;

use std::path::PathBuf;
use std::sync::Arc;

use ringfence_fs::Fence;
use ringfence_kernel::{DuplicateToolError, ToolRegistry};
use ringfence_sandbox::ProgramRunner;

pub use config::GitIdentity;
pub use remote::{GitCredential, GitCredentials};

use crate::repository::GitRunner;

/// The toolset of these tools.
pub const GIT_TOOLSET: &str = "git";

/// What the tools work with.
#[derive(Debug)]
pub struct GitSetup {
    pub fence: Fence,
    pub runner: Arc<ProgramRunner>,
    /// Author of commits where the repository does not say.
    pub identity: GitIdentity,
    /// Tokens for fetch and push.
    pub credentials: GitCredentials,
    /// An empty directory, for the courier.
    pub scratch: PathBuf,
}

/// Gives the tools to a registry.
pub fn register(registry: &mut ToolRegistry, setup: GitSetup) -> Result<(), DuplicateToolError> {
    let git = Arc::new(GitRunner { setup });
    status::register(registry, &git)?;
    diff::register(registry, &git)?;
    log::register(registry, &git)?;
    commit::register(registry, &git)?;
    fetch::register(registry, &git)?;
    push::register(registry, &git)?;
    layer_branch::register(registry, &git)
}
