//! Resources and accesses: what a call does, as the policy sees it.
//!
//! Not here: who decides about an access (`policy.rs`), and which names are sensitive (`sensitive/`).

use std::sync::{Arc, OnceLock};

use crate::dialect::Dialect;
use crate::sensitive::{Sensitivity, sensitivity, settings_through_link};

/// One action on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceAccess {
    /// The action.
    pub action: PolicyAction,
    /// The resource that it is on.
    pub resource: PolicyResource,
}

/// An action on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Names, types, sizes and times are listed.
    List,
    /// Contents are read.
    Read,
    /// A new entry is created.
    Create,
    /// Existing contents are replaced.
    Overwrite,
    /// The entry is moved to another path of the same call.
    Move,
    /// The entry is deleted.
    Delete,
    /// A request is sent to a host; the mount is `NET_MOUNT`, `SEARCH_MOUNT` or `REGISTRY_MOUNT`.
    Fetch,
    /// Contents are deleted permanently, without a pre-image.
    Lose,
    /// A program runs in a jail; the mount is `CODE_MOUNT`. Its changes wait there, and are judged by themselves.
    Run,
    /// Another program's tool is called; the mount is `MCP_MOUNT`. Only that program knows what it does.
    External,
    /// Contents of the workspace are sent to a host and cannot be recalled; the mount is `NET_MOUNT`.
    Send,
    /// Connections to a port of this machine are accepted, and lead to a running program; the mount is `NET_MOUNT`.
    Listen,
}

impl PolicyAction {
    /// Every action.
    pub const ALL: [Self; 12] = [
        Self::List,
        Self::Read,
        Self::Create,
        Self::Overwrite,
        Self::Move,
        Self::Delete,
        Self::Fetch,
        Self::Lose,
        Self::Run,
        Self::External,
        Self::Send,
        Self::Listen,
    ];

    /// Whether files are no longer what they were.
    pub fn changes_files(self) -> bool {
        self.is_file_action() && !matches!(self, Self::List | Self::Read)
    }

    /// Whether its resources are files.
    pub fn is_file_action(self) -> bool {
        !matches!(self, Self::Fetch | Self::Run | Self::External | Self::Send | Self::Listen)
    }

    /// Whether its resources are hosts, or ports of this machine.
    pub fn is_host_action(self) -> bool {
        matches!(self, Self::Fetch | Self::Send | Self::Listen)
    }

    /// Name of the action in rules and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Create => "create",
            Self::Overwrite => "overwrite",
            Self::Move => "move",
            Self::Delete => "delete",
            Self::Fetch => "fetch",
            Self::Lose => "lose",
            Self::Run => "run",
            Self::External => "external",
            Self::Send => "send",
            Self::Listen => "listen",
        }
    }
}

/// A path inside a mount, as given and, where a link or `..` made that another one, as resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyResource {
    /// Alias of the mount, or a pseudo-mount such as `NET_MOUNT` or `CODE_MOUNT`.
    pub mount: Arc<str>,
    /// As the caller spelled it, without the mount.
    pub requested_path: String,
    /// Its resolved path, if that is not `given`.
    pub resolved_path: Option<String>,
    /// Its display form in replies and records.
    pub display_path: String,
    /// Its sensitivity by identity, independent of its name.
    pub sensitivity: Sensitivity,
    /// It is data of a git repository that was there before the call, such as an object or a branch, and what it leads to
    /// was judged: then its name alone does not make it a setting that other programs act on.
    pub repository_data: bool,
    /// Its sensitivity by its names, cached.
    pub name_sensitivity: CachedSensitivity,
}

impl PolicyResource {
    /// Every name that a rule has to be asked about.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.requested_path.as_str()).chain(self.resolved_path.as_deref())
    }

    /// Display form of its resolved path, if that is not the given one.
    pub fn resolved_display_path(&self) -> Option<String> {
        let resolved = self.resolved_path.as_deref().filter(|resolved| *resolved != self.requested_path)?;
        let mount = self.display_path.strip_suffix(self.requested_path.as_str()).unwrap_or_default();
        Some(format!("{mount}{resolved}"))
    }

    /// The resource at `path` below it.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        let join = |above: &str| if above == "." { path.to_owned() } else { format!("{above}/{path}") };
        Self {
            mount: Arc::clone(&self.mount),
            requested_path: join(&self.requested_path),
            resolved_path: self.resolved_path.as_deref().map(join),
            display_path: join(&self.display_path),
            ..Self::default()
        }
    }

    /// The settings that a link of this name exposes to other programs, by a name below it.
    pub fn settings_through_link(&self) -> Option<Self> {
        let rest = self.names().find_map(settings_through_link)?;
        Some(self.join(rest))
    }

    /// Its sensitivity, by its names or by its identity.
    pub fn effective_sensitivity(&self) -> Sensitivity {
        let by_names = || self.names().map(sensitivity).fold(Sensitivity::default(), Sensitivity::union);
        let named = *self.name_sensitivity.0.get_or_init(by_names);
        self.sensitivity.union(Sensitivity { protected: named.protected && !self.repository_data, ..named })
    }
}

/// The sensitivity of a resource by its names, computed on first use. A copy starts empty: it may get other names.
#[derive(Debug, Default)]
pub struct CachedSensitivity(OnceLock<Sensitivity>);

impl Clone for CachedSensitivity {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// It follows from the names, which are compared themselves.
impl PartialEq for CachedSensitivity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CachedSensitivity {}

/// Names of the workspace as a mount: in most dialects, and in `crewagent`. The caller chooses the dialect, so a rule
/// means it by either name, and no other mount has one of them.
pub const WORKSPACE_MOUNTS: [&str; 2] = [Dialect::Standard.workspace_mount(), Dialect::Crewagent.workspace_mount()];

/// Whether two names are those of one mount.
pub(crate) fn is_same_mount(one: &str, other: &str) -> bool {
    one == other || (WORKSPACE_MOUNTS.contains(&one) && WORKSPACE_MOUNTS.contains(&other))
}

/// The mount that stands for the network: its paths are `host:port`, and `host:port/path` where the path is known. To
/// listen, they are `address:port` of this machine.
pub const NET_MOUNT: &str = "net";

/// The mount that stands for the search engine that the user chose: its paths are `host:port`. Queries go to one host
/// of their choice, which needs no approval of its own.
pub const SEARCH_MOUNT: &str = "search";

/// The mount that stands for the package registries of the config: its paths are `host:port`. A request tells them the name
/// of a package, and what they send is shown to a person before it is kept.
pub const REGISTRY_MOUNT: &str = "registry";

/// The mount that stands for programs: its paths are languages.
pub const CODE_MOUNT: &str = "code";

/// The mount that stands for the tools of other programs: its paths are `server/tool`.
pub const MCP_MOUNT: &str = "mcp";

/// The mount that stands for the kept outputs of the session itself: its paths are their IDs.
pub const OUTPUT_MOUNT: &str = "output";

/// The mount that stands for kept layers: its paths are their IDs.
pub const LAYER_MOUNT: &str = "layer";

/// The mount that stands for a person's home directory where files of a wrapped program go back: its paths are below it.
pub const HOME_MOUNT: &str = "home";
