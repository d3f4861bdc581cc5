//! Workspace trust: whether the allow rules of a workspace's own file apply.
//!
//! Trust is in one file, by its hash, in one directory: a changed file, or the same one in another directory, is not
//! trusted. It is about rules and nothing else; the other keys of the file tighten.
//!
//! Not here: asking the person (`cli/approvals.rs`), and the scope of such a rule (the kernel's
//! `layered_rules.rs`).

use ringfence_kernel::{PolicyRule, StoreError};
use sha2::{Digest as _, Sha256};

use crate::config::WORKSPACE_FILE;
use crate::store::SqliteStore;

/// The rules by which a workspace's own file allows something.
#[derive(Debug)]
pub struct WorkspaceRules {
    /// Of the whole file.
    pub sha256: String,
    pub rules: Vec<PolicyRule>,
    pub trusted: bool,
}

impl WorkspaceRules {
    pub(crate) fn new(
        directory: &str,
        file: &[u8],
        rules: Vec<PolicyRule>,
        store: &SqliteStore,
    ) -> Result<Self, StoreError> {
        let sha256: String = Sha256::digest(file).iter().map(|byte| format!("{byte:02x}")).collect();
        let trusted = !rules.is_empty() && store.is_trusted(directory, &sha256)?;
        Ok(Self { sha256, rules, trusted })
    }

    /// The rules that hold.
    pub(crate) fn trusted_rules(&self) -> Vec<PolicyRule> {
        if self.trusted { self.rules.clone() } else { Vec::new() }
    }

    /// A warning for the user.
    pub(crate) fn warning(&self) -> Option<String> {
        let count = self.rules.len();
        (count > 0 && !self.trusted).then(|| {
            format!(
                "the workspace's {WORKSPACE_FILE} is not trusted, so its allow rules ({count}) are ignored: `ringfence policy \
                 trust` shows them"
            )
        })
    }
}
