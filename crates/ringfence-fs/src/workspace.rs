//! Where the workspace is: from what a person wrote to a directory that exists.
//!
//! Not here: reading the environment. Home and current directory are arguments.

use std::path::{Path, PathBuf};

/// Where things are on this host, for understanding what a person wrote.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub home: Option<PathBuf>,
    pub current: PathBuf,
    /// Files and directories of our own that no workspace may contain or lie in: config, state, tokens.
    pub ours: Vec<PathBuf>,
}

/// Why a directory cannot be the workspace.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("the workspace `{0}` is below the home directory, and it is not known where that is")]
    NoHome(String),
    #[error("the root of the file system cannot be a workspace; name a directory in it")]
    Root,
    #[error("the home directory, or one that holds it, cannot be a workspace; name a directory in it")]
    Home,
    #[error("the workspace or a mount contains or lies in ringfence's own files, such as its config; choose another")]
    Ours,
    #[error("the directory `{0}` of a mount cannot be found")]
    Find(String, #[source] std::io::Error),
    #[error("there is no workspace `{0}`")]
    Missing(String, #[source] std::io::Error),
    #[error("the workspace `{0}` cannot be made")]
    Make(String, #[source] std::io::Error),
}

/// Resolves what a person wrote, makes the directory if it is missing, and gives its absolute path.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where a person's path becomes a directory, before there is a mount"
)]
pub fn resolve_workspace(written: Option<&str>, around: &Surroundings) -> Result<PathBuf, WorkspaceError> {
    let written = or_default(written);
    let path = around.current.join(expand_home(written, around)?);
    // Once so that nothing is made where nothing may be, and once more on what it turned out to be.
    check(&real(&path), around)?;
    std::fs::create_dir_all(&path).map_err(|error| WorkspaceError::Make(written.to_owned(), error))?;
    let path = std::fs::canonicalize(&path).map_err(|error| WorkspaceError::Make(written.to_owned(), error))?;
    check(&path, around)?;
    Ok(path)
}

/// The same for whoever only looks: a directory that is missing is not made.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where a person's path becomes a directory, before there is a mount"
)]
pub fn find_workspace(written: Option<&str>, around: &Surroundings) -> Result<PathBuf, WorkspaceError> {
    let written = or_default(written);
    let path = around.current.join(expand_home(written, around)?);
    let path = std::fs::canonicalize(path).map_err(|error| WorkspaceError::Missing(written.to_owned(), error))?;
    check(&path, around)?;
    Ok(path)
}

fn or_default(written: Option<&str>) -> &str {
    written.map(str::trim).filter(|text| !text.is_empty()).unwrap_or("~/.ringfence/workspace")
}

fn check(path: &Path, around: &Surroundings) -> Result<(), WorkspaceError> {
    if path.parent().is_none() {
        return Err(WorkspaceError::Root);
    }
    if around.home.as_deref().is_some_and(|home| real(home).starts_with(path)) {
        return Err(WorkspaceError::Home);
    }
    if around.ours.iter().map(|ours| real(ours)).any(|ours| ours.starts_with(path) || path.starts_with(&ours)) {
        return Err(WorkspaceError::Ours);
    }
    Ok(())
}

/// Resolves the directory of a further mount, which has to exist.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where a person's path becomes a directory, before there is a mount"
)]
pub fn resolve_mount(written: &str, around: &Surroundings) -> Result<PathBuf, WorkspaceError> {
    let path = around.current.join(expand_home(written.trim(), around)?);
    let path = std::fs::canonicalize(path).map_err(|error| WorkspaceError::Find(written.to_owned(), error))?;
    check(&path, around)?;
    Ok(path)
}

/// Where a path leads, also when its end is not there yet.
#[expect(clippy::disallowed_methods, reason = "the real names of directories that a person chose")]
fn real(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (std::fs::canonicalize(above), path.strip_prefix(above)) {
            // Joining nothing would add a slash, and a file with a slash is something else.
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

/// `~` and `~/…`; `~name` is a name like any other.
fn expand_home(written: &str, around: &Surroundings) -> Result<PathBuf, WorkspaceError> {
    let rest = match written.strip_prefix('~') {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => return Ok(PathBuf::from(written)),
    };
    let home = around.home.as_deref().ok_or_else(|| WorkspaceError::NoHome(written.to_owned()))?;
    Ok(if rest.is_empty() { home.to_owned() } else { home.join(rest) })
}
