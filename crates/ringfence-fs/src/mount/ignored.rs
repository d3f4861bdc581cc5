//! Ignore rules above a path: those of the directories from the root of its mount to it.
//!
//! Not here: the rules (`read/ignore.rs`).

use std::os::fd::AsFd as _;

use ringfence_kernel::{CallContext, IoMode, PolicyResource};
use rustix::fs::OFlags;

use crate::mount::LocatedPath;
use crate::path::guest::GuestPath;
use crate::path::name::unescape;
use crate::read::ignore::IgnoreRules;
use crate::sys::own_files::SAFE_OPEN;

impl LocatedPath {
    /// The ignore rules of the directories above the one that is searched, whose resource is `place`.
    pub(crate) fn ignore_rules_above(&self, place: &PolicyResource, cx: &CallContext<'_>) -> IgnoreRules {
        let mut rules = IgnoreRules::default();
        let bytes = unescape(place.resolved_path.as_deref().unwrap_or(&place.requested_path));
        if bytes == b"." {
            return rules;
        }
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in std::iter::once(0).chain(ends) {
            let (above, below) = (&bytes[..end], bytes[end..].strip_prefix(b"/").unwrap_or(&bytes[end..]));
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
            if let Ok(directory) = self.mount.lookup(&GuestPath::from_kernel(above), flags, IoMode::Blocking) {
                rules.enter_above(&self.mount, directory.fd.as_fd(), below, cx);
            }
        }
        rules
    }
}
