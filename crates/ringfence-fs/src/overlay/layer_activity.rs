//! Layer activity: whether a running program changes its layer, without reading a file.
//!
//! Two looks that are the same mean that nothing was written in between, as far as names, sizes, times and permissions
//! tell. A directory that its owner may not list counts as one entry.
//!
//! Not here: what was written (`compare.rs`), and when something is done about it (the command line).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode};
use rustix::fs::{AtFlags, OFlags};

use crate::overlay::layer_store::{LayerState, LayerStore};
use crate::overlay::store_directory::UPPER;
use crate::overlay::upper::open_beneath;
use crate::path::relative::join;
use crate::root::walk::{TempVisibility, read_directory};
use crate::sys::own_files::{SAFE_OPEN, open_private_dir};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::statat;

/// The layer of a running program, to be looked at.
#[derive(Clone, Debug)]
pub struct LayerWatch {
    id: String,
    upper: Arc<OwnedFd>,
}

/// One look at a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerActivity {
    /// Of names, and of what they name.
    pub(super) structure: u64,
    /// Of sizes, times and permissions.
    contents: u64,
}

impl Default for LayerActivity {
    /// A look at an empty layer.
    fn default() -> Self {
        let nothing = DefaultHasher::new().finish();
        Self { structure: nothing, contents: nothing }
    }
}

impl LayerStore {
    /// The layer of the program that a session runs, once it is made.
    pub fn watch(&self, session: &str) -> Option<LayerWatch> {
        let is_it = |state: LayerState, of: &str| state == LayerState::Running && of == session;
        let found = self.layers().ok()?.into_iter().find(|layer| is_it(layer.state, &layer.record.session))?;
        LayerWatch::new(&found.id, &self.layer_directory(&found.id).ok()?)
    }
}

impl LayerWatch {
    pub(super) fn new(id: &str, layer: &OwnedFd) -> Option<Self> {
        let upper = Arc::new(open_private_dir(layer, UPPER).ok()?);
        Some(Self { id: id.to_owned(), upper })
    }

    /// The id of the layer.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Looks at all of it.
    pub fn look(&self) -> LayerActivity {
        let (limits, state) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
        let cx = CallContext::new(&limits, IoMode::Blocking, &state);
        let (mut structure, mut contents) = (DefaultHasher::new(), DefaultHasher::new());
        let mut left = vec![Vec::new()];
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | SAFE_OPEN;
        while let Some(path) = left.pop() {
            let Ok(directory) = open_beneath(self.upper.as_fd(), &path, flags) else { continue };
            let listed = read_directory(directory.as_fd(), TempVisibility::Visible, limits.walk_entries, ".", &cx);
            let mut entries = listed.unwrap_or_default();
            entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            for entry in entries {
                let Ok(found) = statat(&directory, entry.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
                let found = FileStat::from_stat(&found);
                let path = join(&path, &entry.name);
                (&path, found.id.inode, found.kind.name()).hash(&mut structure);
                found.mode.hash(&mut contents);
                match found.kind {
                    FileKind::Directory => left.push(path),
                    // The time of a status change is left out: whiteouts share one file, and a file that its owner may not
                    // read is made readable for a moment.
                    _ => (found.size, found.modified).hash(&mut contents),
                }
            }
        }
        LayerActivity { structure: structure.finish(), contents: contents.finish() }
    }
}
