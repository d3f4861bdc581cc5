//! Scratch workspaces: an empty directory for programs that see nothing of the workspace, and what such a program leaves.
//!
//! Not here: running the program (`program_runner.rs`).

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::SystemTime;

use ringfence_kernel::{ErrorKind, ExposedDir, ToolError, WorkspaceView};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// A view of an empty directory, which is made if it is missing and stays empty.
pub fn empty_view(directory: &Path) -> Result<WorkspaceView, ToolError> {
    let failed = |_| ToolError::new(ErrorKind::Io, "cannot create an empty directory in the state directory");
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let workspace = ExposedDir {
        alias: "workspace".to_owned(),
        directory: File::open(directory).map_err(failed)?.into(),
        path: directory.to_owned(),
        masked: Vec::new(),
        hidden: Vec::new(),
    };
    Ok(WorkspaceView { workspace, read_only_mounts: Vec::new(), started: SystemTime::now() })
}

/// A file that a program left at the top of its directory; `None` if there is none. Links are not followed.
pub fn read_upper_file(upper: &OwnedFd, name: &str, most: u64) -> Result<Option<Vec<u8>>, ToolError> {
    let failed = || ToolError::new(ErrorKind::Io, format!("cannot read `{name}`, which the program left"));
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(upper, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(_) => return Err(failed()),
    };
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(failed());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|_| failed())?;
    if bytes.len() as u64 > most {
        return Err(ToolError::new(
            ErrorKind::ReadLimit,
            format!("`{name}`, which the program left, exceeds {most} bytes"),
        ));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_within_the_limit_are_read() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "four").unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("link")).unwrap();
        std::fs::create_dir(directory.path().join("directory")).unwrap();
        let upper = OwnedFd::from(File::open(directory.path()).unwrap());
        assert_eq!(read_upper_file(&upper, "file", 4), Ok(Some(b"four".to_vec())));
        assert_eq!(read_upper_file(&upper, "absent", 4), Ok(None));
        assert_eq!(read_upper_file(&upper, "file", 3).unwrap_err().kind, ErrorKind::ReadLimit);
        for name in ["link", "directory"] {
            assert_eq!(read_upper_file(&upper, name, 4).unwrap_err().kind, ErrorKind::Io, "{name}");
        }
    }
}
