//! Client settings file: read completely or not at all, and replaced atomically.
//!
//! The workspace is untrusted and may have a link at the file's path. Nothing below the workspace is written through
//! one, and nothing is read through one into a file that tools can read. A file outside of it is the user's own, who
//! may have linked it: then the target is the one that is meant.
//!
//! Not here: the paths of the files (`clients.rs`), and the entries (`mod.rs`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// Largest settings file.
const MAX_FILE_BYTES: u64 = 4 << 20;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// Reason for leaving a settings file as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientSettingsFileError {
    #[error("`{0}` is a symbolic link")]
    Link(String),
    #[error("not a regular file")]
    NotRegular,
    #[error("larger than {MAX_FILE_BYTES} bytes")]
    TooLong,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for ClientSettingsFileError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A file that may be there.
#[derive(Debug)]
pub(crate) struct ClientSettingsFile {
    /// The workspace and the way from there, or the directory that the file is in.
    base: PathBuf,
    directories: Vec<OsString>,
    name: OsString,
}

/// The contents of a file, with its permissions.
#[derive(Debug, Default)]
pub(crate) struct ClientSettingsContents {
    pub(crate) text: String,
    mode: Option<Mode>,
}

impl ClientSettingsFile {
    pub(crate) fn locate(file: &Path, workspace: Option<&Path>) -> Result<Self, ClientSettingsFileError> {
        let nowhere = || ClientSettingsFileError::Io(io::ErrorKind::InvalidInput.into());
        let within = workspace.and_then(|workspace| Some((workspace, file.strip_prefix(workspace).ok()?)));
        let Some((workspace, relative)) = within else {
            let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
            let (base, name) = (file.parent().ok_or_else(nowhere)?, file.file_name().ok_or_else(nowhere)?);
            return Ok(Self { base: base.to_owned(), directories: Vec::new(), name: name.to_owned() });
        };
        let part = |part: Component<'_>| match part {
            Component::Normal(name) => Ok(name.to_owned()),
            _ => Err(nowhere()),
        };
        let mut relative = relative.components().map(part).collect::<Result<Vec<_>, _>>()?;
        let name = relative.pop().ok_or_else(nowhere)?;
        Ok(Self { base: workspace.to_owned(), directories: relative, name })
    }

    /// The current contents; empty where there is no file.
    pub(crate) fn read(&self) -> Result<ClientSettingsContents, ClientSettingsFileError> {
        match self.open() {
            Ok(file) => read_contents(file),
            Err(ClientSettingsFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                Ok(ClientSettingsContents::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the contents that were read, atomically. A private file stays private.
    pub(crate) fn replace(&self, before: &ClientSettingsContents, text: &str) -> Result<(), ClientSettingsFileError> {
        if self.directories.is_empty() {
            fs::create_dir_all(&self.base)?;
        }
        let directory =
            self.directory(|directory, part| match mkdirat(directory, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(errno),
            })?;
        self.check(&directory)?;
        let new = format!(".ringfence-{}.tmp", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Without an old file there is nothing in the new one but our entry.
        let mode = Mode::from_raw_mode(if before.mode.is_some() { 0o600 } else { 0o666 });
        let file = File::from(openat(&directory, new.as_str(), flags, mode)?);
        write_contents(file, before.mode, text)
            .and_then(|()| Ok(renameat(&directory, new.as_str(), &directory, &self.name)?))
            .inspect_err(|_| {
                // It is our own temporary file.
                let _ = unlinkat(&directory, new.as_str(), AtFlags::empty());
            })
    }

    fn open(&self) -> Result<File, ClientSettingsFileError> {
        let directory = self.directory(|_, _| Ok(()))?;
        self.check(&directory)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(&directory, &self.name, flags, Mode::empty())
            .map(File::from)
            .map_err(|errno| link_error(errno, &self.name))
    }

    /// The directory that the file is in, held. Nothing on the way below the workspace is a link.
    fn directory(
        &self,
        prepare: impl Fn(&File, &OsString) -> Result<(), Errno>,
    ) -> Result<File, ClientSettingsFileError> {
        let mut directory = File::from(openat(CWD, &self.base, DIRECTORY, Mode::empty())?);
        for part in &self.directories {
            prepare(&directory, part)?;
            let next = openat(&directory, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
            directory = File::from(next.map_err(|errno| match is_link(&directory, part) {
                true => ClientSettingsFileError::Link(part.display().to_string()),
                false => errno.into(),
            })?);
        }
        Ok(directory)
    }

    /// Fails where something else than a regular file has the name.
    fn check(&self, directory: &File) -> Result<(), ClientSettingsFileError> {
        match statat(directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok(()),
                FileType::Symlink => Err(ClientSettingsFileError::Link(self.name.display().to_string())),
                _ => Err(ClientSettingsFileError::NotRegular),
            },
        }
    }
}

/// Sets the permissions before writing the contents.
fn write_contents(mut file: File, mode: Option<Mode>, text: &str) -> Result<(), ClientSettingsFileError> {
    if let Some(mode) = mode {
        fchmod(&file, mode)?;
    }
    file.write_all(text.as_bytes())?;
    Ok(file.sync_all()?)
}

fn is_link(directory: &File, name: &OsString) -> bool {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

fn link_error(errno: Errno, name: &OsString) -> ClientSettingsFileError {
    match errno {
        Errno::LOOP => ClientSettingsFileError::Link(name.display().to_string()),
        errno => errno.into(),
    }
}

/// The contents of a file, through any links: for inspection, and never for copying.
pub(crate) fn read_text(file: &Path) -> Result<String, ClientSettingsFileError> {
    // Opening a device can do something by itself.
    if !fs::metadata(file)?.is_file() {
        return Err(ClientSettingsFileError::NotRegular);
    }
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    Ok(read_contents(fs::OpenOptions::new().read(true).custom_flags(flags).open(file)?)?.text)
}

fn read_contents(file: File) -> Result<ClientSettingsContents, ClientSettingsFileError> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ClientSettingsFileError::NotRegular);
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ClientSettingsFileError::TooLong);
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(ClientSettingsContents { text, mode: Some(Mode::from_raw_mode(metadata.mode() & 0o777)) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use super::{ClientSettingsFile, ClientSettingsFileError, MAX_FILE_BYTES, read_text};

    /// Puts a text into a file of a workspace, beside which there is a file `outside/private`.
    fn replaced(prepare: impl FnOnce(&Path), name: &str) -> (tempfile::TempDir, Result<(), ClientSettingsFileError>) {
        let directory = tempfile::tempdir().unwrap();
        let workspace = directory.path().join("ws");
        for made in ["ws", "outside"] {
            fs::create_dir(directory.path().join(made)).unwrap();
        }
        fs::write(directory.path().join("outside/private"), "PRIVATE").unwrap();
        prepare(&workspace);
        let replace = || {
            let file = ClientSettingsFile::locate(&workspace.join(name), Some(&workspace))?;
            let before = file.read()?;
            file.replace(&before, &format!("{}+", before.text))
        };
        let result = replace();
        (directory, result)
    }

    #[test]
    fn no_link_below_the_workspace_is_followed() {
        type PrepareWorkspace = fn(&Path);
        let cases: [(&str, PrepareWorkspace, &str); 4] = [
            (".mcp.json", |ws| symlink("../outside/private", ws.join(".mcp.json")).unwrap(), ".mcp.json"),
            (".mcp.json", |ws| symlink("../outside/new", ws.join(".mcp.json")).unwrap(), ".mcp.json"),
            (".vscode/mcp.json", |ws| symlink("../outside", ws.join(".vscode")).unwrap(), ".vscode"),
            (".vscode/mcp.json", |ws| symlink("nowhere", ws.join(".vscode")).unwrap(), ".vscode"),
        ];
        for (name, prepare, link) in cases {
            let (directory, result) = replaced(prepare, name);
            assert!(matches!(&result, Err(ClientSettingsFileError::Link(part)) if part == link), "{name}: {result:?}");
            assert!(fs::symlink_metadata(directory.path().join("ws").join(link)).unwrap().is_symlink(), "{name}");
            assert_eq!(fs::read_dir(directory.path().join("outside")).unwrap().count(), 1, "{name}");
            assert_eq!(fs::read_dir(directory.path().join("ws")).unwrap().count(), 1, "{name}");
        }
    }

    #[test]
    fn only_regular_files_are_read_and_replaced() {
        let (_directory, result) = replaced(|ws| fs::create_dir(ws.join("crush.json")).unwrap(), "crush.json");
        assert!(matches!(result, Err(ClientSettingsFileError::NotRegular)), "{result:?}");
        let pipe = |ws: &Path| {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                ws.join("crush.json"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR,
                0,
            )
            .unwrap();
        };
        let (directory, result) = replaced(pipe, "crush.json");
        assert!(matches!(result, Err(ClientSettingsFileError::NotRegular)), "{result:?}");
        let result = read_text(&directory.path().join("ws/crush.json"));
        assert!(matches!(result, Err(ClientSettingsFileError::NotRegular)), "{result:?}");
    }

    #[test]
    fn a_file_that_is_too_long_is_left_whole() {
        let long = usize::try_from(MAX_FILE_BYTES).unwrap();
        for (length, fits) in [(long, true), (long + 1, false)] {
            let write = |ws: &Path| fs::write(ws.join("a"), "é".repeat(length / 2) + &"x".repeat(length % 2)).unwrap();
            let (directory, result) = replaced(write, "a");
            assert_eq!(result.is_ok(), fits, "{result:?}");
            let left = fs::metadata(directory.path().join("ws/a")).unwrap().len();
            assert_eq!(left, MAX_FILE_BYTES + 1, "{length}");
        }
    }

    #[test]
    fn a_private_file_stays_private() {
        for mode in [0o600, 0o640, 0o664] {
            let write = |ws: &Path| {
                fs::write(ws.join("a"), "x").unwrap();
                fs::set_permissions(ws.join("a"), fs::Permissions::from_mode(mode)).unwrap();
            };
            let (directory, result) = replaced(write, "a");
            result.unwrap();
            let file = directory.path().join("ws/a");
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, mode);
            assert_eq!(fs::read_to_string(file).unwrap(), "x+");
        }
    }

    #[test]
    fn a_link_of_the_users_own_stays_and_what_it_leads_to_changes() {
        let directory = tempfile::tempdir().unwrap();
        let (link, file) = (directory.path().join("config.toml"), directory.path().join("dotfiles.toml"));
        fs::write(&file, "x").unwrap();
        symlink("dotfiles.toml", &link).unwrap();
        let settings = ClientSettingsFile::locate(&link, Some(Path::new("/another/workspace"))).unwrap();
        settings.replace(&settings.read().unwrap(), "y").unwrap();
        assert!(fs::symlink_metadata(link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(file).unwrap(), "y");
    }
}
