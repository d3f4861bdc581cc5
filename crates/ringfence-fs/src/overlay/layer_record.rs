//! Layer records: `about.json`, the description of a kept layer.
//!
//! It is written by this program alone, whole and durably, beside the directories that the wrapped program writes to. It
//! says what the layer was made for and when, how the program ended, and what of it was kept. A record of a newer version
//! is not read.
//!
//! Not here: where the layers are (`layer_store.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_kernel::LayerSummary;
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::overlay::accepted_versions::AcceptedVersions;
use crate::overlay::upper::ClosedModes;
use crate::path::name::{escape, unescape};
use crate::sys::own_files::{open_own_file, write_all};
use crate::sys::syscall::{fdatasync, fsync, pread, renameat};

const ABOUT: &str = "about.json";
const ABOUT_NEW: &str = "about.new";

/// Version of the format.
const RECORD_VERSION: u32 = 1;

/// A longer record is not read.
const LONGEST_RECORD: u64 = 64 << 20;

/// Conflicts that are recorded while a program runs. All of them are found at its end.
const MOST_RUNNING_CONFLICTS: usize = 1000;

/// The description of a layer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LayerRecord {
    version: u32,
    /// Identity of the workspace's directory, as the journal knows it.
    pub(super) workspace: String,
    /// Its path, for people.
    pub(super) workspace_path: String,
    pub(super) program: String,
    pub(super) profile: String,
    /// Session and principal that started it.
    pub(super) session: String,
    pub(super) principal: String,
    /// Nanoseconds since 1970, by the clock of the workspace's file system.
    pub(super) started: u64,
    /// Paths that the program saw empty, escaped.
    masked: Vec<String>,
    /// Missing for a program that still runs, and for one whose end was not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<LayerEndRecord>,
    /// Counts as of the end, or of the last keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) summary: Option<LayerCounts>,
    /// Digests by escaped path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    accepted: BTreeMap<String, Vec<String>>,
    /// Versions of entries that others made while the program ran, and that it found, by escaped path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    synced: BTreeMap<String, String>,
    /// Secrets that came while the program ran, and were hidden from it, escaped. They are among `masked` too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    hidden: BTreeSet<String>,
    /// Conflicts that were found while the program runs, escaped.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) running_conflicts: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    closed_modes: BTreeMap<String, u32>,
}

/// The end of a wrapped program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LayerEndRecord {
    /// Nanoseconds since 1970.
    pub(super) at: u64,
    pub(super) exit_code: i32,
}

/// Counts of the changes in a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerCounts {
    pub(super) created: u64,
    pub(super) changed: u64,
    pub(super) deleted: u64,
    pub(super) conflicts: u64,
}

impl LayerRecord {
    pub(super) fn new(workspace: String, masked: &[Vec<u8>]) -> Self {
        let masked = masked.iter().map(|path| escape(path)).collect();
        Self { version: RECORD_VERSION, workspace, masked, ..Self::default() }
    }

    pub(super) fn masked(&self) -> impl Iterator<Item = Vec<u8>> {
        self.masked.iter().map(|path| unescape(path))
    }

    pub(super) fn accepted(&self) -> AcceptedVersions {
        AcceptedVersions::from_stored(&self.accepted)
    }

    pub(super) fn set_accepted(&mut self, accepted: &AcceptedVersions) {
        self.accepted = accepted.to_stored();
    }

    pub(super) fn synced(&self) -> BTreeMap<Vec<u8>, String> {
        self.synced.iter().map(|(path, version)| (unescape(path), version.clone())).collect()
    }

    pub(super) fn set_synced(&mut self, versions: impl Iterator<Item = (Vec<u8>, String)>) {
        self.synced = versions.map(|(path, version)| (escape(&path), version)).collect();
    }

    /// Secrets that were removed from the program's view by a deletion.
    pub(super) fn hidden(&self) -> BTreeSet<Vec<u8>> {
        self.hidden.iter().map(|path| unescape(path)).collect()
    }

    pub(super) fn add_hidden(&mut self, path: &[u8]) {
        if self.hidden.insert(escape(path)) {
            self.masked.push(escape(path));
        }
    }

    pub(super) fn add_conflict(&mut self, path: &[u8]) {
        if self.running_conflicts.len() < MOST_RUNNING_CONFLICTS {
            self.running_conflicts.insert(escape(path));
        }
    }

    pub(super) fn closed_modes(&self) -> ClosedModes {
        self.closed_modes.iter().map(|(path, mode)| (unescape(path), *mode)).collect()
    }

    /// Returns whether there are others now.
    pub(super) fn set_closed_modes(&mut self, modes: &ClosedModes) -> bool {
        let modes = modes.iter().map(|(path, mode)| (escape(path), *mode)).collect();
        let is_new = self.closed_modes != modes;
        self.closed_modes = modes;
        is_new
    }

    /// Reads the record in the directory of a layer.
    pub(super) fn load(directory: &OwnedFd) -> io::Result<Self> {
        let record: Self = read_json(directory, ABOUT)?;
        if record.version == RECORD_VERSION { Ok(record) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// On disk when it returns.
    pub(super) fn save(&self, directory: &OwnedFd) -> io::Result<()> {
        write_json(directory, [ABOUT_NEW, ABOUT], self)
    }
}

impl LayerCounts {
    pub(super) fn total(self) -> u64 {
        self.created + self.changed + self.deleted + self.conflicts
    }
}

impl From<LayerCounts> for LayerSummary {
    fn from(LayerCounts { created, changed, deleted, conflicts }: LayerCounts) -> Self {
        Self { created, changed, deleted, conflicts }
    }
}

/// Reads a file of our own.
pub(super) fn read_json<T: DeserializeOwned>(directory: &OwnedFd, name: &str) -> io::Result<T> {
    let file = open_own_file(directory, Path::new(name), OFlags::empty())?;
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let length = pread(&file, &mut chunk, bytes.len() as u64)?;
        if length == 0 {
            return serde_json::from_slice(&bytes).map_err(|_| io::ErrorKind::InvalidData.into());
        }
        bytes.extend_from_slice(&chunk[..length]);
        if bytes.len() as u64 > LONGEST_RECORD {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Replaces a file of our own, durably.
pub(super) fn write_json(directory: &OwnedFd, [new, name]: [&str; 2], value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    if text.len() as u64 > LONGEST_RECORD {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file = open_own_file(directory, Path::new(new), OFlags::CREATE | OFlags::TRUNC)?;
    write_all(file.as_fd(), &text)?;
    fdatasync(&file)?;
    renameat(directory, new, directory, name)?;
    Ok(fsync(directory)?)
}
