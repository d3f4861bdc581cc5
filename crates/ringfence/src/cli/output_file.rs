//! New files that a run writes for its person, outside of the workspace.
//!
//! Nothing is replaced, and only the person can read them.
//!
//! Not here: reports (`run_report.rs`), which are replaced at each run and may be anywhere.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A file that is not there yet, in a directory that is.
#[derive(Debug)]
pub(crate) struct OutputFile(PathBuf);

impl OutputFile {
    /// Nothing, if the file is in the workspace, where programs change it.
    pub(crate) fn outside(path: &Path, workspace: &Path) -> io::Result<Option<Self>> {
        let path = std::path::absolute(path)?;
        let directory = std::fs::canonicalize(path.parent().unwrap_or(Path::new("/")))?;
        if directory.starts_with(workspace) {
            return Ok(None);
        }
        let path = directory.join(path.file_name().unwrap_or_default());
        match path.symlink_metadata() {
            Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is there already; name a new one")),
            Err(_) => Ok(Some(Self(path))),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn create(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.0)
    }
}
