//! Tree snapshots, so that any change can be seen later.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Everything below a directory, by its path from there; the directory itself is the empty path.
pub(crate) type TreeSnapshot = BTreeMap<PathBuf, SnapshotEntry>;

/// One entry. The times of a directory tell of names that came and went in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotEntry {
    pub(crate) kind: SnapshotEntryKind,
    pub(crate) mode: u32,
    inode: u64,
    links: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotEntryKind {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
    Other,
}

/// Looks at everything below `root`, without following links. What the journal keeps there to undo changes is not looked
/// at.
pub(crate) fn snapshot(root: &Path) -> TreeSnapshot {
    let mut found = TreeSnapshot::new();
    visit(root, Path::new(""), &mut found);
    found
}

fn visit(root: &Path, below: &Path, found: &mut TreeSnapshot) {
    let path = if below.as_os_str().is_empty() { root.to_owned() } else { root.join(below) };
    let meta = std::fs::symlink_metadata(&path).unwrap();
    let what = match meta.file_type() {
        kind if kind.is_dir() => SnapshotEntryKind::Directory,
        kind if kind.is_symlink() => SnapshotEntryKind::Link(std::fs::read_link(&path).unwrap()),
        kind if kind.is_file() => SnapshotEntryKind::File(std::fs::read(&path).unwrap()),
        _ => SnapshotEntryKind::Other,
    };
    let is_directory = what == SnapshotEntryKind::Directory;
    let seen = SnapshotEntry {
        kind: what,
        mode: meta.permissions().mode() & 0o7777,
        inode: meta.ino(),
        links: meta.nlink(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    };
    found.insert(below.to_owned(), seen);
    if is_directory {
        for entry in std::fs::read_dir(&path).unwrap() {
            let name = entry.unwrap().file_name();
            if name != ".ringfence" {
                visit(root, &below.join(name), found);
            }
        }
    }
}
