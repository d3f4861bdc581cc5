//! A scan after a change of a large root finds what a listing of it finds.

#![expect(clippy::disallowed_methods, reason = "the workspace changes without a mount, as others change it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode};

use super::{LEAST_WATCHED, RootEntries};
use crate::mount::Mount;
use crate::sys::file_ref::{FileRef, InodeIdentity};
use crate::{Fence, FenceOptions, MountAccess, MountSpec};

struct LargeRoot {
    directory: tempfile::TempDir,
    mount: Arc<Mount>,
}

impl LargeRoot {
    /// A root that is large enough to be watched, after the scans that it takes.
    fn watched() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = directory.path().join("ws");
        fs::create_dir(&root).unwrap();
        (0..LEAST_WATCHED).for_each(|number| fs::write(root.join(format!("file-{number}")), "x").unwrap());
        let spec = MountSpec { alias: "workspace".to_owned(), path: root, rights: MountAccess::ReadWrite };
        let fence = Fence::new(spec, Vec::new(), &directory.path().join("own"), FenceOptions::default()).unwrap();
        let fixture = Self { directory, mount: Arc::clone(&fence.mounts()[0]) };
        fixture.scan();
        fs::write(fixture.at("another"), "x").unwrap();
        fixture.scan();
        fixture
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join("ws").join(path)
    }

    fn scan(&self) {
        assert!(self.scan_with(IoMode::Blocking));
    }

    fn scan_with(&self, io_mode: IoMode) -> bool {
        let (limits, commit_state) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
        self.mount.scan_root(&CallContext::new(&limits, io_mode, &commit_state)).is_ok()
    }

    fn is_secret(&self, path: &Path) -> bool {
        let file = fs::File::open(path).unwrap().into();
        let stat = crate::sys::stat::FileStat::from_stat(&rustix::fs::fstat(&file).unwrap());
        self.mount.sensitive_files.is_secret(InodeIdentity::of(FileRef::open(&file), &stat))
    }

    /// Names that the next scan looks at, and those that a listing finds now.
    fn names(&self) -> [Vec<String>; 2] {
        let sorted = |entries: &RootEntries| {
            let mut names: Vec<String> =
                entries.entries.iter().map(|entry| format!("{} {}", entry.name, entry.is_link)).collect();
            names.sort_unstable();
            names
        };
        let last = self.mount.sensitive_files.root_scan.0.lock();
        [sorted(&last.as_ref().unwrap().entries), sorted(&RootEntries::list(&self.mount).unwrap())]
    }

    fn is_watched(&self) -> bool {
        self.mount.sensitive_files.root_scan.0.lock().as_ref().is_some_and(|last| last.watch.is_some())
    }
}

#[test]
fn a_scan_of_what_was_reported_finds_what_a_listing_finds() {
    let root = LargeRoot::watched();
    let changes: [(&str, &dyn Fn()); 8] = [
        ("an ordinary file", &|| fs::write(root.at("plain"), "x").unwrap()),
        ("a secret", &|| fs::write(root.at(".env"), "x").unwrap()),
        ("a directory of settings", &|| fs::create_dir(root.at(".vscode")).unwrap()),
        ("a link", &|| symlink("file-1", root.at("link")).unwrap()),
        ("a file in the place of a link", &|| fs::rename(root.at("plain"), root.at("link")).unwrap()),
        ("a secret that is moved", &|| fs::rename(root.at(".env"), root.at("id_rsa")).unwrap()),
        ("a secret that is removed", &|| fs::remove_file(root.at("id_rsa")).unwrap()),
        ("directories that are exchanged", &|| {
            fs::rename(root.at(".vscode"), root.at(".git")).unwrap();
            fs::create_dir(root.at(".vscode")).unwrap();
        }),
    ];
    for (what, change) in changes {
        change();
        assert!(!root.scan_with(IoMode::NonBlocking) && !root.scan_with(IoMode::NonBlocking), "{what}: looked at it");
        root.scan();
        let [scanned, listed] = root.names();
        assert_eq!(scanned, listed, "{what}");
        assert!(root.is_watched() && root.scan_with(IoMode::NonBlocking), "{what}: is not as it was");
    }
}

#[test]
fn a_secret_that_comes_to_a_watched_root_is_known_by_its_other_names() {
    let root = LargeRoot::watched();
    fs::write(root.at("innocent"), "x").unwrap();
    root.scan();
    assert!(!root.is_secret(&root.at("innocent")));
    fs::hard_link(root.at("innocent"), root.at(".env")).unwrap();
    root.scan();
    fs::remove_file(root.at(".env")).unwrap();
    root.scan();
    assert!(root.is_secret(&root.at("innocent")));
    fs::create_dir(root.at("cfg")).unwrap();
    symlink("cfg", root.at(".vscode")).unwrap();
    root.scan();
    assert!(root.mount.sensitive_files.linked().sensitivity(b"cfg/tasks.json").protected);
}

#[test]
fn a_link_that_leads_somewhere_by_another_change_is_followed_again() {
    let root = LargeRoot::watched();
    symlink("cfg", root.at(".vscode")).unwrap();
    root.scan();
    assert!(!root.mount.sensitive_files.linked().sensitivity(b"cfg/tasks.json").protected);
    fs::create_dir(root.at("cfg")).unwrap();
    root.scan();
    assert!(root.mount.sensitive_files.linked().sensitivity(b"cfg/tasks.json").protected);
}

#[test]
fn a_change_that_is_not_reported_has_the_root_listed_again() {
    let root = LargeRoot::watched();
    if let Some(last) = root.mount.sensitive_files.root_scan.0.lock().as_mut() {
        last.watch = super::watch_root(&root.mount).map(|mut watch| {
            watch.forget(b"");
            watch
        });
    }
    fs::write(root.at(".env"), "x").unwrap();
    root.scan();
    assert!(root.is_secret(&root.at(".env")));
}

#[test]
fn a_small_root_is_not_watched() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let spec = |path| MountSpec { alias: "workspace".to_owned(), path, rights: MountAccess::ReadWrite };
    let root = directory.path().join("ws");
    fs::create_dir(&root).unwrap();
    let fence = Fence::new(spec(root), Vec::new(), &directory.path().join("own"), FenceOptions::default()).unwrap();
    let fixture = LargeRoot { mount: Arc::clone(&fence.mounts()[0]), directory };
    for name in ["a", "b", ".env"] {
        fs::write(fixture.at(name), "x").unwrap();
        fixture.scan();
        assert!(!fixture.is_watched());
    }
    assert!(fixture.is_secret(&fixture.at(".env")));
}
