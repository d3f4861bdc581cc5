//! MCP roots: the directories that a client has open.
//!
//! They narrow the config and never widen it. A root inside the workspace leaves that part of it; a root above the
//! workspace, such as `/`, leaves all of it; where every root is outside, nothing is left. A mount that was declared
//! beside the workspace stays as it is, unless a root lies inside it. A client without any root changes nothing.
//!
//! Not here: requesting them from a client (`mcp/handler.rs`).

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ringfence_fs::MountSpec;
use ringfence_kernel::sync::RwLock;
use ringfence_kernel::{
    Assurance, CODE_MOUNT, Decision, Grant, Policy, PolicyLayer, PolicyRequest, PolicyResource, PolicyRevision,
    ResourceAccess, RuleText, Session, Verdict,
};

use crate::codec::percent::percent_decode;

/// Root scopes of the sessions of clients.
#[derive(Clone, Debug, Default)]
pub struct McpSessionRoots(Arc<RwLock<HashMap<String, McpRootScope>>>);

/// Roots that a client declared.
#[derive(Debug)]
pub(crate) enum McpDeclaredRoots {
    Undeclared,
    /// Directories by their real names.
    Directories(Vec<PathBuf>),
}

impl McpDeclaredRoots {
    /// A root that is not a directory of this machine leaves nothing by itself.
    pub(crate) fn from_uris<'a>(uris: impl IntoIterator<Item = &'a str>) -> Self {
        let mut uris = uris.into_iter().peekable();
        if uris.peek().is_none() {
            Self::Undeclared
        } else {
            Self::Directories(uris.filter_map(root_directory).collect())
        }
    }
}

/// For each mount that is narrowed, the paths that are left of it.
type McpRootScope = BTreeMap<String, Vec<PathBuf>>;

impl McpSessionRoots {
    /// From now on a session reaches only what the client has open.
    pub(crate) fn narrow(&self, session: &str, open: &McpDeclaredRoots, mounts: &[MountSpec]) {
        let reach = match open {
            McpDeclaredRoots::Undeclared => McpRootScope::new(),
            McpDeclaredRoots::Directories(roots) => root_scope(roots, mounts),
        };
        self.0.write().insert(session.to_owned(), reach);
    }

    /// Forgets a session that is over.
    pub(crate) fn remove_session(&self, session: &str) {
        self.0.write().remove(session);
    }

    /// The root scope of a session; empty where its client narrows nothing.
    fn scope_of(&self, session: &Session) -> McpRootScope {
        self.0.read().get(&session.id).cloned().unwrap_or_default()
    }

    /// The reason why a resource is outside of a session's roots, if it is.
    fn denial_reason(&self, session: &Session, resource: &PolicyResource) -> Option<String> {
        let all = self.0.read();
        let reach = all.get(&session.id).filter(|reach| !reach.is_empty())?;
        if resource.mount.as_ref() == CODE_MOUNT {
            let message = "programs see the whole workspace, but the client's roots cover only part of it";
            return Some(message.to_owned());
        }
        let left = reach.get(resource.mount.as_ref())?;
        let real = resource.resolved_path.as_deref().unwrap_or(&resource.requested_path);
        if left.iter().any(|root| is_below(Path::new(real), root)) {
            return None;
        }
        let names: Vec<String> = left.iter().map(|root| format!("`{}`", root.display())).collect();
        let which = if names.is_empty() { "nothing here".to_owned() } else { names.join(", ") };
        Some(format!("`{}` is outside the client's roots: {which}", resource.display_path))
    }
}

/// The accessible part of each mount. The first is the workspace.
fn root_scope(roots: &[PathBuf], mounts: &[MountSpec]) -> McpRootScope {
    let mut reach = McpRootScope::new();
    for (number, MountSpec { alias, path, .. }) in mounts.iter().enumerate() {
        if roots.iter().any(|root| path.starts_with(root)) {
            continue;
        }
        let inside = |root: &PathBuf| root.strip_prefix(path).ok().map(Path::to_owned);
        let left: Vec<PathBuf> = roots.iter().filter_map(inside).collect();
        if number == 0 || !left.is_empty() {
            reach.insert(alias.clone(), left);
        }
    }
    reach
}

/// Whether a path of a mount is a root or below it. A path that goes up is neither.
fn is_below(path: &Path, root: &Path) -> bool {
    let mut names = path.components().filter(|part| *part != Component::CurDir);
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    !goes_up && root.components().all(|part| names.next() == Some(part))
}

/// A policy, with the roots of clients in front of it.
#[derive(Debug)]
pub struct McpRootsPolicy<P> {
    pub policy: P,
    pub roots: McpSessionRoots,
}

impl<P: Policy> McpRootsPolicy<P> {
    fn denial(&self, access: &ResourceAccess, question: &PolicyRequest<'_>) -> Option<Verdict> {
        let reason = self.roots.denial_reason(question.session, &access.resource)?;
        let rule = Arc::from("roots of the client");
        let layer = PolicyLayer::Workspace;
        Some(Verdict { decision: Decision::Deny, rule, layer, reason, assurance: Assurance::Person, grant: None })
    }
}

impl<P: Policy> Policy for McpRootsPolicy<P> {
    fn evaluate(&self, access: &ResourceAccess, question: &PolicyRequest<'_>) -> Verdict {
        self.denial(access, question).unwrap_or_else(|| self.policy.evaluate(access, question))
    }

    fn decide(&self, question: &PolicyRequest<'_>) -> Verdict {
        let denied = question.accesses.iter().find_map(|access| self.denial(access, question));
        denied.unwrap_or_else(|| self.policy.decide(question))
    }

    fn narrowest_grant(&self, question: &PolicyRequest<'_>) -> Option<RuleText> {
        self.policy.narrowest_grant(question)
    }

    fn revision(&self, question: &PolicyRequest<'_>) -> Option<PolicyRevision> {
        Some(self.policy.revision(question)?.with_state(&self.roots.scope_of(question.session)))
    }

    fn set_grants(&self, grants: &[Grant]) -> bool {
        self.policy.set_grants(grants)
    }
}

/// The directory that a root names, if it is one of this machine that is there.
fn root_directory(uri: &str) -> Option<PathBuf> {
    let rest = uri.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    let path = PathBuf::from(percent_decode(path)?);
    // Mounts are known by their real names.
    let real = std::fs::canonicalize(&path).ok()?;
    path.is_absolute().then_some(real)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use ringfence_fs::{MountAccess, MountSpec};

    use super::{is_below, root_scope};

    fn check(roots: &[&str], workspace: Option<&[&str]>, docs: Option<&[&str]>) {
        let mount = |alias: &str, path: &str| MountSpec {
            alias: alias.to_owned(),
            path: PathBuf::from(path),
            rights: MountAccess::ReadWrite,
        };
        let mounts = [mount("workspace", "/home/u/project"), mount("docs", "/srv/docs")];
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let left = root_scope(&paths(roots), &mounts);
        assert_eq!(left.get("workspace").cloned(), workspace.map(paths), "{roots:?}");
        assert_eq!(left.get("docs").cloned(), docs.map(paths), "{roots:?}");
    }

    #[test]
    fn roots_narrow_and_never_widen() {
        check(&["/home/u/project"], None, None);
        check(&["/"], None, None);
        check(&["/home/u"], None, None);
        check(&["/home/u/project/src"], Some(&["src"]), None);
        check(&["/home/u/project/src", "/home/u/project/doc"], Some(&["src", "doc"]), None);
        check(&["/home/u/project/src", "/srv/docs/a"], Some(&["src"]), Some(&["a"]));
        check(&["/home/u/project", "/srv/docs/a"], None, Some(&["a"]));
        check(&["/elsewhere"], Some(&[]), None);
        check(&["/home/u/project-2"], Some(&[]), None);
    }

    #[test]
    fn a_path_is_below_a_root_by_whole_names() {
        for (path, below) in [
            ("src", true),
            ("src/main.rs", true),
            ("./src/main.rs", true),
            ("src2", false),
            (".", false),
            ("", false),
            ("src/../secret", false),
            ("a/src", false),
        ] {
            assert_eq!(is_below(Path::new(path), Path::new("src")), below, "{path}");
        }
    }
}
