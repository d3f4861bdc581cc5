//! Pre-images of a mount: its store, and copies in it that stay as sensitive as their sources.

use ringfence_kernel::{CallContext, ToolError};
use rustix::io::Errno;

use crate::journal::{FileState, PreImageStore};
use crate::mount::Mount;
use crate::root::FileToReplace;
use crate::sys::file_ref::FileRef;

impl Mount {
    /// Fails where another program's directory has the name of the image store.
    pub(crate) fn check_image_store(&self) -> Result<(), ToolError> {
        self.undo_journal().map_or(Ok(()), |journal| journal.check_image_store(self))
    }

    /// The directory if there is one and it is ours.
    pub(crate) fn image_store(&self) -> Option<PreImageStore> {
        self.undo_journal()?.image_store(self)
    }

    /// The same where it matters why there is none: what belongs there is not thrown away because it cannot be opened now.
    pub(crate) fn find_image_store(&self) -> Result<Option<PreImageStore>, Errno> {
        self.undo_journal().map_or(Ok(None), |journal| journal.find_image_store(self))
    }

    /// A copy of the first `length` bytes of a file in the store. What is copied from a secret is one.
    pub(crate) fn copy_image(
        &self,
        keep: &PreImageStore,
        old: &FileToReplace,
        length: u64,
        image: &str,
        cx: &CallContext<'_>,
    ) -> Result<FileState, ToolError> {
        let observe = |copy: FileRef<'_>, stamp: &_| {
            let known = self.sensitive_files.lookup(FileRef::open(&old.fd), &old.stat);
            self.classify(known, copy, stamp);
        };
        keep.copy(old, length, image, observe, cx)
    }
}
