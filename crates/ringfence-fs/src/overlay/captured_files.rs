//! Captured files: private copies of what a running program wrote.
//!
//! A program may write to a file at any moment, also between a decision about it and its commit. So a checkpoint copies
//! each changed file first. The copy is what is examined, judged and committed. A file that changed since the comparison
//! began, or that has other contents by now, is left for the next checkpoint.
//!
//! Not here: what of it is committed (`layer_checkpoint.rs`).

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ringfence_kernel::{CallContext, ErrorKind, ToolError};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::mount::Mount;
use crate::overlay::ChangeSet;
use crate::overlay::checkpoint_memory::LiveComparison;
use crate::overlay::compare::{OverlayChange, OverlayComparison, OverlayUpperState, RejectedPath, display_path};
use crate::overlay::store_directory::errno_store_error;
use crate::overlay::tree_removal::remove_tree;
use crate::overlay::upper::{UpperLayer, open_file};
use crate::path::relative::split;
use crate::read::content::read_chunk;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::sys::own_files::{open_own_file, open_private_dir, write_all};
use crate::sys::syscall::unlinkat;

/// Their directory, in that of the layer.
const CAPTURED: &str = "captured";

/// Bytes that are copied at once.
const CHUNK: usize = 256 << 10;

/// Copies by the path of the file. They are removed when this is dropped.
#[derive(Debug)]
pub(super) struct CapturedFiles {
    layer: Arc<OwnedFd>,
    directory: OwnedFd,
    numbers: HashMap<Vec<u8>, usize>,
    /// Copies that were made, also of files that had other contents.
    made: usize,
    /// Whether something is left for the next checkpoint that the workspace does not have.
    pub(super) misses_new: bool,
}

impl CapturedFiles {
    /// Copies the new contents of everything that was found. What cannot be copied is rejected.
    pub(super) fn of(
        mount: &Mount,
        upper: &UpperLayer,
        found: &mut OverlayComparison,
        live: &LiveComparison,
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        // What a process left there that died.
        let _ = remove_tree(live.layer.as_fd(), CAPTURED.as_bytes(), cx);
        let directory = open_private_dir(&live.layer, CAPTURED.as_bytes()).map_err(errno_store_error)?;
        let is_moved = |error: &ToolError| matches!(error.kind, ErrorKind::Conflict | ErrorKind::NotFound);
        let misses_new = found.rejected.iter().any(|rejected| is_moved(&rejected.error));
        let layer = Arc::clone(&live.layer);
        let mut captured = Self { layer, directory, numbers: HashMap::new(), made: 0, misses_new };
        let mut items = Vec::with_capacity(found.items.len());
        for item in std::mem::take(&mut found.items) {
            let shown = display_path(mount, &item.path);
            match captured.capture(upper, &item, live.began, &shown, cx) {
                Ok(()) => items.push(item),
                Err(error) if is_moved(&error) => {
                    captured.misses_new |= item.lower.is_none();
                    found.rejected.push(RejectedPath { path: item.path, error });
                }
                Err(error) => return Err(error),
            }
        }
        found.items = items;
        Ok(captured)
    }

    /// The copy of a file, if there is one.
    pub(super) fn open(&self, path: &[u8]) -> Option<Result<OwnedFd, Errno>> {
        let number = self.numbers.get(path)?;
        Some(self.open_numbered(*number, OFlags::empty()))
    }

    fn capture(
        &mut self,
        upper: &UpperLayer,
        item: &OverlayChange,
        began: i128,
        shown: &str,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let Some(OverlayUpperState::File { seen, digest, .. }) = &item.upper else { return Ok(()) };
        let moved = || {
            let message = format!("`{shown}` was being changed, and is left for the next checkpoint");
            ToolError::new(ErrorKind::Conflict, message)
        };
        if seen.changed >= began {
            return Err(moved());
        }
        let (above, name) = split(&item.path);
        let directory = upper.open_directory(above).map_err(|_| moved())?;
        let from = open_file(directory.as_fd(), name, seen, shown)?.fd;
        let number = self.made;
        self.made += 1;
        if self.copy(&from, number, seen.size, cx)? != *digest {
            return Err(moved());
        }
        self.numbers.insert(item.path.clone(), number);
        Ok(())
    }

    /// Copies at most this many bytes, and returns the digest of the copy.
    fn copy(&self, from: &OwnedFd, number: usize, size: u64, cx: &CallContext<'_>) -> Result<Digest, ToolError> {
        let copy = self.open_numbered(number, OFlags::CREATE | OFlags::TRUNC).map_err(errno_store_error)?;
        let mut buffer = vec![0; usize::try_from(size).unwrap_or(CHUNK).min(CHUNK)];
        let (mut hasher, mut done) = (Sha256Hasher::default(), 0);
        while done < size {
            cx.check()?;
            let wanted = usize::try_from(size - done).unwrap_or(usize::MAX).min(buffer.len());
            let length = read_chunk(from.as_fd(), &mut buffer[..wanted], done, cx).map_err(errno_store_error)?;
            if length == 0 {
                break;
            }
            hasher.update(&buffer[..length]);
            write_all(copy.as_fd(), &buffer[..length]).map_err(errno_store_error)?;
            done += length as u64;
        }
        Ok(hasher.finish())
    }

    fn open_numbered(&self, number: usize, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_own_file(&self.directory, Path::new(&number.to_string()), flags)
    }
}

impl ChangeSet {
    /// Groups with a new entry that the program, which still runs, has removed since it was found.
    pub(super) fn removed_since(&self) -> Vec<(usize, ToolError)> {
        if self.captured.is_none() {
            return Vec::new();
        }
        let removed = self.items.iter().filter(|item| item.is_new_name() && !self.upper.has(&item.path));
        let refusal = |item: &OverlayChange| {
            let message = format!("`{}` was removed by the program meanwhile", display_path(&self.mount, &item.path));
            (item.group, ToolError::new(ErrorKind::Conflict, message))
        };
        removed.map(refusal).collect()
    }
}

impl Drop for CapturedFiles {
    fn drop(&mut self) {
        for number in 0..self.made {
            let _ = unlinkat(&self.directory, number.to_string().as_str(), AtFlags::empty());
        }
        // What stays is removed by the next one.
        let _ = unlinkat(&*self.layer, CAPTURED, AtFlags::REMOVEDIR);
    }
}
