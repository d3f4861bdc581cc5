//! Environment of a wrapped program: real paths, the person's identity, layers on disk, a terminal.
//!
//! A program that a person wraps, such as a whole agent, lives where it would without the jail: its workspace has its own
//! path, its home is the person's by name, but neither is the person's own. What it writes is in layers that outlive it.
//!
//! Not here: who decides about the layers, and what the files contain, which the caller says; and what becomes of it
//! (`wrapped.rs`).

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ringfence_kernel::OverlayDirectories;
use serde::{Deserialize, Serialize};

use crate::terminal::{TerminalRelay, TerminalSize};
use crate::tool_caches::ToolCache;

/// The environment of one wrapped program.
#[derive(Debug)]
pub struct WrappedEnvironment<'a> {
    /// Path at which the program sees the workspace: its own path on the host.
    pub workspace_path: PathBuf,
    /// The user that the program sees itself as.
    pub identity: WrappedUser,
    /// The layer on the workspace.
    pub workspace_layer: &'a OverlayDirectories,
    /// Lower directory of the home's overlay.
    pub home_start: &'a OwnedFd,
    /// The layer on the home.
    pub home_layer: &'a OverlayDirectories,
    /// Caches below the home, each under a layer of its own.
    pub caches: Vec<WrappedCache<'a>>,
    /// Read-only files at absolute paths inside, over what is there or new, such as bundles of certificates.
    pub files: Vec<PlacedFile>,
    /// A terminal as standard input, output and error; `None` for pipes.
    pub terminal: Option<WrappedTerminal<'a>>,
    pub recorded: RecordedCalls,
}

/// Which calls of a run are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedCalls {
    /// Absolute paths that are looked for in vain.
    pub lookups: bool,
    /// Programs that are started.
    pub starts: bool,
}

impl RecordedCalls {
    pub(crate) const fn is_empty(self) -> bool {
        !self.lookups && !self.starts
    }
}

/// A cache of a toolchain, with the layer on it.
#[derive(Debug)]
pub struct WrappedCache<'a> {
    pub cache: &'a ToolCache,
    pub layer: &'a OverlayDirectories,
}

/// A user, as a wrapped program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedUser {
    pub name: String,
    /// Path of the home inside.
    pub home: PathBuf,
    /// The login shell.
    pub shell: PathBuf,
    pub uid: u32,
    pub gid: u32,
}

/// A read-only file inside.
#[derive(Clone, PartialEq, Eq)]
pub struct PlacedFile {
    /// Absolute.
    pub path: PathBuf,
    pub contents: Vec<u8>,
}

impl std::fmt::Debug for PlacedFile {
    /// Without the contents, which may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlacedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A terminal for a wrapped program.
#[derive(Debug)]
pub struct WrappedTerminal<'a> {
    /// Its size at the start.
    pub size: TerminalSize,
    pub relay: &'a dyn TerminalRelay,
}
