//! Grants: rules that a person adds by approving a call, as they are stored.
//!
//! A grant is the narrowest rule that covers one call: this tool, this action, exactly these resources, on this
//! directory and no other of the same alias, until it expires. It is offered only where it would be enough and where
//! nothing but the preset requires approval: no secret, no protected path, no host, nothing that the machine's owner or
//! the workspace requires approval for. A grant for an MCP tool is bound to the server's definition of the tool.
//!
//! Not here: which grant a call may get (`layered_rules.rs`), the grants that hold now (`granted_rules.rs`), storing them
//! (`store.rs`), and who may revoke one (`inbox.rs`).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::resource::{MCP_MOUNT, PolicyAction, ResourceAccess};
use crate::rule_text::RuleText;

/// Lifetime of a grant.
pub const GRANT_LIFETIME: Duration = Duration::from_hours(30 * 24);

/// A rule that a person added by an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Unique ID, which revokes it.
    pub id: String,
    /// The rule that it adds.
    pub rule: RuleText,
    /// The directory that it is about, whatever its alias, or the definition of the tool: see `Host::with_grants`.
    pub directory: String,
    /// The person who granted it.
    pub by: String,
    /// The time of the approval.
    #[serde(with = "crate::timestamp")]
    pub since: SystemTime,
    /// The time of expiry.
    #[serde(with = "crate::timestamp")]
    pub until: SystemTime,
}

impl Grant {
    /// Whether it is about one of these directories, by the alias that its rule names.
    pub fn applies_to(&self, directories: &BTreeMap<String, String>) -> bool {
        grant_subject(&self.rule).is_some_and(|subject| directories.get(&subject) == Some(&self.directory))
    }
}

/// The subject of a grant, as `Host::with_grants` names it: the mount, or the one MCP tool.
pub(crate) fn grant_subject(rule: &RuleText) -> Option<String> {
    let [mount] = rule.mount.as_deref()? else { return None };
    if rule.effect.as_deref() != Some(&[PolicyAction::External.as_str().to_owned()]) {
        return Some(mount.clone());
    }
    let [tool] = rule.path.as_deref()? else { return None };
    Some(format!("{MCP_MOUNT}/{tool}"))
}

/// The same for what a grant would be about.
pub(crate) fn access_subject(access: &ResourceAccess) -> String {
    match access.action {
        PolicyAction::External => format!("{MCP_MOUNT}/{}", access.resource.requested_path),
        _ => access.resource.mount.to_string(),
    }
}
