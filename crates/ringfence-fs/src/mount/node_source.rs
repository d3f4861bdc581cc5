//! Node sources: the place on disk or among the pre-images where something is now.

use std::os::fd::{AsFd as _, OwnedFd};

use crate::mount::Mount;
use crate::path::relative::{join, split};
use crate::root::open_no_follow;

/// Present location of an entry.
#[derive(Clone, Debug)]
pub(crate) enum FileEntryLocation {
    /// Below the root.
    Disk(Vec<u8>),
    /// In the image store: the image, and a path below it.
    Image(String, Vec<u8>),
}

impl FileEntryLocation {
    pub(crate) fn join(&self, rest: &[u8]) -> Self {
        match self {
            Self::Disk(path) => Self::Disk(join(path, rest)),
            Self::Image(image, path) => Self::Image(image.clone(), join(path, rest)),
        }
    }

    /// The directory that has it, and its name there.
    pub(crate) fn open_parent(&self, mount: &Mount) -> Option<(OwnedFd, Vec<u8>)> {
        match self {
            Self::Disk(path) => {
                let (parent, name) = split(path);
                Some((open_no_follow(mount, parent)?, name.to_vec()))
            }
            Self::Image(image, path) => {
                let keep = mount.image_store()?;
                let whole = join(image.as_bytes(), path);
                let mut names = whole.split(|byte| *byte == b'/').collect::<Vec<_>>();
                let last = names.pop()?;
                let mut at = keep.fd().try_clone_to_owned().ok()?;
                for name in names {
                    at = mount.resolver.open_child(at.as_fd(), name).ok()?;
                }
                Some((at, last.to_vec()))
            }
        }
    }
}
