//! Directory dump: names, types and contents, to detect changes of a tree.
//!
//! Names, types, modes, owners, contents and where links lead. What cannot be read is noted as such.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One look at a directory and everything below it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectoryDump {
    entries: BTreeMap<Vec<u8>, String>,
}

/// Whether a rewrite with the same contents counts as a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeComparison {
    Compared,
    Ignored,
}

impl DirectoryDump {
    pub(crate) fn of(root: &Path, times: TimeComparison) -> Self {
        Self::excluding(root, &[], times)
    }

    /// All but some names at the top.
    pub(crate) fn excluding(root: &Path, left_out: &[&str], times: TimeComparison) -> Self {
        let mut tree = Self::default();
        let mut to_see = vec![root.to_path_buf()];
        while let Some(path) = to_see.pop() {
            // What the journal keeps to undo changes is its own.
            to_see.extend(tree.record(root, &path, times).into_iter().filter(|path| !path.ends_with(".ringfence")));
            if path == root {
                to_see.retain(|path| !left_out.iter().any(|name| path.ends_with(name)));
            }
        }
        tree
    }

    pub(crate) fn temporary(&self) -> Vec<&[u8]> {
        let is_temporary =
            |path: &&[u8]| path.rsplit(|byte| *byte == b'/').any(|name| name.starts_with(b".ringfence-"));
        self.entries.keys().map(Vec::as_slice).filter(is_temporary).collect()
    }

    /// The differences, a line each. Empty when there are none.
    pub(crate) fn difference(&self, before: &Self) -> String {
        let mut text = String::new();
        for (path, now) in &self.entries {
            if before.entries.get(path) != Some(now) {
                let _ = writeln!(text, "{} is {now}", path.escape_ascii());
            }
        }
        for path in before.entries.keys().filter(|path| !self.entries.contains_key(*path)) {
            let _ = writeln!(text, "{} is gone", path.escape_ascii());
        }
        text
    }

    /// Notes one entry, and says what is in it.
    fn record(&mut self, root: &Path, path: &Path, times: TimeComparison) -> Vec<PathBuf> {
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let Ok(found) = path.symlink_metadata() else {
            self.entries.insert(name, "out of reach".to_owned());
            return Vec::new();
        };
        let mut seen = format!("{:o} {}:{}", found.mode(), found.uid(), found.gid());
        if found.is_file() {
            let content = if found.len() > 16 << 20 {
                format!("{} bytes", found.len())
            } else {
                std::fs::read(path).map_or_else(|_| "unreadable".to_owned(), |bytes| summary(&bytes))
            };
            let _ = write!(seen, " {content}");
        }
        if found.is_symlink() {
            let _ = write!(seen, " to {:?}", std::fs::read_link(path).unwrap());
        }
        if times == TimeComparison::Compared {
            let _ = write!(seen, " at {}.{}", found.mtime(), found.mtime_nsec());
        }
        self.entries.insert(name, seen);
        // What the kernel makes up is different at every look, and has no end.
        let made_up = || rustix::fs::statfs(path).is_ok_and(|found| found.f_type == rustix::fs::PROC_SUPER_MAGIC);
        if !found.is_dir() || made_up() {
            return Vec::new();
        }
        match std::fs::read_dir(path) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => Vec::new(),
        }
    }
}

/// Short contents as they are, long ones by a number that tells them apart.
fn summary(bytes: &[u8]) -> String {
    if bytes.len() <= 64 {
        return format!("{:?}", bytes.escape_ascii().to_string());
    }
    let sum = bytes.chunks(8).fold(0u64, |sum, chunk| {
        chunk.iter().fold(sum.rotate_left(5), |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    });
    format!("{} bytes, sum {sum:x}", bytes.len())
}
