//! Workspace discovery: the default workspace directory, and the note that names it.
//!
//! A name on the command line or in the config always holds. Else it is the nearest directory, from the current one upwards,
//! that has a `ringfence.toml` or is a git repository, and else the default one.
//!
//! Not here: whether a directory may be a workspace (`ringfence-fs`).

use std::path::{Component, Path};

use ringfence_fs::{HostPaths, WorkspaceDiscovery, discover_workspace, real_path};
use ringfence_kernel::sanitize_line;

use crate::config::Environment;

/// Source of the workspace setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkspaceSource {
    /// On the command line or in the config.
    Named,
    /// Found from the current directory upwards; what to say about it.
    Discovered(String),
    /// `~/.ringfence/workspace`; what to say about it.
    Default(String),
}

impl WorkspaceSource {
    /// One line for a person who named no workspace.
    pub fn note(&self) -> Option<&str> {
        match self {
            Self::Named => None,
            Self::Discovered(note) | Self::Default(note) => Some(note),
        }
    }
}

/// The workspace that holds: the one that was named, or the one that is found.
pub(crate) fn choose_workspace(named: Option<String>, environment: &Environment) -> (Option<String>, WorkspaceSource) {
    if let Some(named) = named.filter(|named| !named.trim().is_empty()) {
        return (Some(named), WorkspaceSource::Named);
    }
    let around =
        HostPaths { home: environment.home.clone(), current_dir: environment.current.clone(), reserved: Vec::new() };
    let default = |why: &str| {
        let note = format!(
            "the workspace is `~/.ringfence/workspace`{why}; choose another with `--workspace DIR`, or run `ringfence init` in it"
        );
        (None, WorkspaceSource::Default(note))
    };
    match discover_workspace(&around) {
        WorkspaceDiscovery::None => default(""),
        WorkspaceDiscovery::Foreign { path, marker } => {
            let name = relative_name(&path, environment);
            default(&format!(": {name} has `{marker}`, but belongs to another user"))
        }
        WorkspaceDiscovery::Found { path, marker } => match path.to_str() {
            None => default(": the name of the directory here is not UTF-8"),
            Some(text) => {
                let note = format!("the workspace is {}, which has `{marker}`", relative_name(&path, environment));
                (Some(text.to_owned()), WorkspaceSource::Discovered(note))
            }
        },
    }
}

/// A directory at or above the current one, by its name and the way up to it.
fn relative_name(path: &Path, environment: &Environment) -> String {
    let current = real_path(&environment.current);
    let below = current.strip_prefix(path).map(Path::components).into_iter().flatten();
    let up = below.filter(|part| matches!(part, Component::Normal(_))).map(|_| "..").collect::<Vec<_>>().join("/");
    let name = path.file_name().map(|name| sanitize_line(&name.to_string_lossy())).unwrap_or_default();
    match up.is_empty() {
        true => format!("this directory (`{name}`)"),
        false => format!("`{name}` (`{up}`)"),
    }
}
