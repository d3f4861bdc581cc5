//! Workspace location: from a configured path to a directory that exists.
//!
//! Not here: reading the environment. Home and current directory are arguments.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Path of the workspace inside the jail.
pub(crate) const WORKSPACE_OF_PROGRAMS: &str = "/workspace";

/// Names that make a directory a workspace of its own: our file, and what git keeps.
const WORKSPACE_MARKERS: [&str; 2] = ["ringfence.toml", ".git"];

/// Directories of this host, for paths that a person wrote.
#[derive(Clone, Debug)]
pub struct HostPaths {
    pub home: Option<PathBuf>,
    pub current_dir: PathBuf,
    /// Files and directories of our own that no workspace may contain or lie in: config, state, tokens.
    pub reserved: Vec<PathBuf>,
}

/// Failure to resolve the directory of a workspace or a mount.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceResolveError {
    #[error("the workspace `{0}` is in the home directory, which is unknown")]
    NoHome(String),
    #[error("the root of the file system cannot be a workspace; choose a directory in it")]
    Root,
    #[error("the home directory, or one that contains it, cannot be a workspace; choose a directory in it")]
    Home,
    #[error(
        "the workspace or a mount contains, or is inside, Ringfence's own files, such as its config; choose another directory"
    )]
    Reserved,
    #[error("mount directory `{0}` not found")]
    MountMissing(String),
    #[error("cannot open the mount directory `{0}`")]
    OpenMount(String, #[source] std::io::Error),
    #[error("workspace `{0}` does not exist")]
    Missing(String),
    #[error("cannot open the workspace `{0}`")]
    Open(String, #[source] std::io::Error),
    #[error("cannot create the workspace `{0}`")]
    Make(String, #[source] std::io::Error),
}

/// Resolves what a person wrote, makes the directory if it is missing, and gives its absolute path.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where a person's path becomes a directory, before there is a mount"
)]
pub fn resolve_workspace(written: Option<&str>, around: &HostPaths) -> Result<PathBuf, WorkspaceResolveError> {
    let written = or_default(written);
    let path = around.current_dir.join(expand_home(written, around)?);
    // Once so that nothing is made where nothing may be, and once more on what it turned out to be.
    check(&real_path(&path), around)?;
    std::fs::create_dir_all(&path).map_err(|error| WorkspaceResolveError::Make(written.to_owned(), error))?;
    let path = std::fs::canonicalize(&path).map_err(|error| WorkspaceResolveError::Make(written.to_owned(), error))?;
    check(&path, around)?;
    Ok(path)
}

/// The same for read-only commands: a missing directory is not created.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where a person's path becomes a directory, before there is a mount"
)]
pub fn find_workspace(written: Option<&str>, around: &HostPaths) -> Result<PathBuf, WorkspaceResolveError> {
    let written = or_default(written);
    let path = around.current_dir.join(expand_home(written, around)?);
    let path = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => WorkspaceResolveError::Missing(written.to_owned()),
        _ => WorkspaceResolveError::Open(written.to_owned(), error),
    })?;
    check(&path, around)?;
    Ok(path)
}

/// The path of a workspace, whether it is a valid one or not.
pub fn workspace_path(written: Option<&str>, around: &HostPaths) -> Option<PathBuf> {
    let path = expand_home(or_default(written), around).ok()?;
    Some(real_path(&around.current_dir.join(path)))
}

/// The workspace directory where none was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkspaceDiscovery {
    /// Neither the current directory nor one above it is marked.
    None,
    Found {
        path: PathBuf,
        marker: &'static str,
    },
    /// One is marked, and it or its marker belongs to another user: that user would choose what agents here work on.
    Foreign {
        path: PathBuf,
        marker: &'static str,
    },
}

/// Looks for the nearest marked directory, from the current one upwards. The home directory, those that hold it and the
/// root of the file system are never one.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where a person's path becomes a directory, before there is a mount"
)]
pub fn discover_workspace(around: &HostPaths) -> WorkspaceDiscovery {
    let current = real_path(&around.current_dir);
    let home = around.home.as_deref().map(real_path);
    let may_be = |path: &Path| path.parent().is_some() && !home.as_ref().is_some_and(|home| home.starts_with(path));
    for path in current.ancestors().take_while(|path| may_be(path)) {
        for marker in WORKSPACE_MARKERS {
            let Ok(found) = std::fs::symlink_metadata(path.join(marker)) else { continue };
            // A worktree or a submodule has a file `.git`; a directory `ringfence.toml` says nothing.
            let is_marker = found.is_file() || (found.is_dir() && marker == ".git");
            if !is_marker {
                continue;
            }
            let is_ours = |owner: u32| owner == 0 || owner == geteuid().as_raw();
            let (path, ours) = (path.to_owned(), std::fs::metadata(path).is_ok_and(|found| is_ours(found.uid())));
            return match ours && is_ours(found.uid()) {
                true => WorkspaceDiscovery::Found { path, marker },
                false => WorkspaceDiscovery::Foreign { path, marker },
            };
        }
    }
    WorkspaceDiscovery::None
}

fn or_default(written: Option<&str>) -> &str {
    written.map(str::trim).filter(|text| !text.is_empty()).unwrap_or("~/.ringfence/workspace")
}

fn check(path: &Path, around: &HostPaths) -> Result<(), WorkspaceResolveError> {
    if path.parent().is_none() {
        return Err(WorkspaceResolveError::Root);
    }
    if around.home.as_deref().is_some_and(|home| real_path(home).starts_with(path)) {
        return Err(WorkspaceResolveError::Home);
    }
    if around.reserved.iter().map(|ours| real_path(ours)).any(|ours| ours.starts_with(path) || path.starts_with(&ours))
    {
        return Err(WorkspaceResolveError::Reserved);
    }
    Ok(())
}

/// Resolves the directory of a further mount, which has to exist.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where a person's path becomes a directory, before there is a mount"
)]
pub fn resolve_mount(written: &str, around: &HostPaths) -> Result<PathBuf, WorkspaceResolveError> {
    let path = around.current_dir.join(expand_home(written.trim(), around)?);
    let path = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => WorkspaceResolveError::MountMissing(written.to_owned()),
        _ => WorkspaceResolveError::OpenMount(written.to_owned(), error),
    })?;
    check(&path, around)?;
    Ok(path)
}

/// The resolved path, also when its end does not exist yet.
#[expect(clippy::disallowed_methods, reason = "the real names of directories that a person chose")]
pub fn real_path(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (std::fs::canonicalize(above), path.strip_prefix(above)) {
            // Joining nothing would add a slash, and a file with a slash is something else.
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

/// `~` and `~/…`; `~name` is a name like any other.
fn expand_home(written: &str, around: &HostPaths) -> Result<PathBuf, WorkspaceResolveError> {
    let rest = match written.strip_prefix('~') {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => return Ok(PathBuf::from(written)),
    };
    let home = around.home.as_deref().ok_or_else(|| WorkspaceResolveError::NoHome(written.to_owned()))?;
    Ok(if rest.is_empty() { home.to_owned() } else { home.join(rest) })
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::path::Path;

    use super::{HostPaths, WorkspaceResolveError, find_workspace, resolve_mount};

    /// The message of an error with its cause, if it has one.
    fn message(error: &WorkspaceResolveError) -> String {
        error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
    }

    fn check(current_dir: &Path, written: &str, workspace: &str, mount: &str) {
        let around = HostPaths { current_dir: current_dir.to_owned(), home: None, reserved: Vec::new() };
        assert_eq!(message(&find_workspace(Some(written), &around).unwrap_err()), workspace);
        assert_eq!(message(&resolve_mount(written, &around).unwrap_err()), mount);
    }

    #[test]
    fn a_missing_directory_is_named_without_the_systems_words_for_it() {
        let directory = tempfile::tempdir().unwrap();
        check(directory.path(), "none", "workspace `none` does not exist", "mount directory `none` not found");
        check(
            Path::new("/dev"),
            "null/below",
            "cannot open the workspace `null/below`: Not a directory (os error 20)",
            "cannot open the mount directory `null/below`: Not a directory (os error 20)",
        );
    }
}
