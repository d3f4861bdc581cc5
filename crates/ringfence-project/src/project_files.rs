//! Files of a workspace view, for detection: manifests, read below the held directory.
//!
//! A manifest is a regular file that no link leads to and nothing masks. The contents go no further than to the decision
//! about a runner.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use ringfence_kernel::ExposedDir;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::{Errno, retry_on_intr};

use crate::detect::{EntryKind, ProjectFiles};

/// Bytes of a manifest.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Tries for a path whose directories are being moved.
const MAX_TRIES: usize = 8;

/// The files of a view.
#[derive(Debug)]
pub(crate) struct ViewFiles<'a> {
    pub(crate) directory: &'a ExposedDir,
}

impl ViewFiles<'_> {
    /// The text of a file of at most this length.
    pub(crate) fn read_up_to(&self, path: &str, most: u64) -> Option<String> {
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, ResolveFlags::NO_SYMLINKS)?;
        let stat = fstat(&file).ok()?;
        let is_short = u64::try_from(stat.st_size).is_ok_and(|size| size <= most);
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && is_short).then_some(())?;
        let mut text = String::new();
        File::from(file).take(most).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn open(&self, path: &str, flags: OFlags, resolve: ResolveFlags) -> Option<OwnedFd> {
        let is_below = |masked: &Path| Path::new(path).starts_with(masked);
        if self.directory.masked.iter().chain(&self.directory.hidden).any(|masked| is_below(masked)) {
            return None;
        }
        let path = if path.is_empty() { "." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        for _ in 0..MAX_TRIES {
            match retry_on_intr(|| openat2(&self.directory.directory, path, flags, Mode::empty(), resolve)) {
                Err(Errno::AGAIN) => {}
                opened => return opened.ok(),
            }
        }
        None
    }
}

impl ProjectFiles for ViewFiles<'_> {
    fn read(&self, path: &str) -> Option<String> {
        self.read_up_to(path, MAX_MANIFEST_BYTES)
    }

    fn kind(&self, path: &str) -> Option<EntryKind> {
        let entry = self.open(path, OFlags::PATH, ResolveFlags::empty())?;
        match FileType::from_raw_mode(fstat(&entry).ok()?.st_mode) {
            FileType::RegularFile => Some(EntryKind::File),
            FileType::Directory => Some(EntryKind::Directory),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use ringfence_kernel::ExposedDir;

    use super::ViewFiles;
    use crate::detect::{EntryKind, ProjectFiles as _};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the files")]
    fn only_plain_files_that_are_shown_are_read() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        fs::create_dir(root.path().join("secret")).unwrap();
        make("package.json", "{}");
        make("secret/package.json", "{}");
        make("a/long", &"x".repeat((1 << 20) + 1));
        make("a/binary", "\u{0}");
        fs::write(root.path().join("a/latin"), [0xff]).unwrap();
        symlink("../package.json", root.path().join("a/link")).unwrap();
        symlink("/etc/passwd", root.path().join("a/out")).unwrap();
        let directory = ExposedDir {
            alias: "workspace".to_owned(),
            directory: fs::File::open(root.path()).unwrap().into(),
            path: root.path().to_owned(),
            masked: vec![PathBuf::from("secret")],
            hidden: Vec::new(),
        };
        let files = ViewFiles { directory: &directory };
        for (path, kind, is_read) in [
            ("package.json", Some(EntryKind::File), true),
            ("a", Some(EntryKind::Directory), false),
            ("", Some(EntryKind::Directory), false),
            ("a/link", Some(EntryKind::File), false),
            ("a/out", None, false),
            ("a/long", Some(EntryKind::File), false),
            ("a/latin", Some(EntryKind::File), false),
            ("a/binary", Some(EntryKind::File), true),
            ("secret", None, false),
            ("secret/package.json", None, false),
            ("../package.json", None, false),
            ("/etc/passwd", None, false),
            ("absent", None, false),
        ] {
            assert_eq!((files.kind(path), files.read(path).is_some()), (kind, is_read), "{path}");
        }
    }
}
