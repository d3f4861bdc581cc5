//! Landing versions: the versions that the workspace has after a checkpoint of a running program.
//!
//! They are accepted before the checkpoint is made, as the newest of their paths: what the program does to them later does not
//! conflict, and an undo is known by them. Those of a checkpoint that is not made are forgotten.
//!
//! Not here: versions before a keep (`accepted_versions.rs`).

use crate::overlay::accepted_versions::{AcceptedVersions, link_version};
use crate::overlay::compare::{OverlayChange, OverlayUpperState};
use crate::read::digest::Digest;

/// A version that the workspace has after a checkpoint, if the checkpoint is made.
#[derive(Debug)]
pub(super) struct LandingVersion {
    pub(super) path: Vec<u8>,
    pub(super) digest: Digest,
    pub(super) group: usize,
    /// The workspace gets a name that it did not have, where the program sees the names of both.
    pub(super) is_new_name: bool,
}

/// Accepts the versions that a checkpoint makes, as the newest of their paths: the program may change them again, and an undo
/// is known by them.
pub(super) fn accept_landing(accepted: &mut AcceptedVersions, kept: &[&OverlayChange]) -> Vec<LandingVersion> {
    let landing = kept.iter().filter_map(|item| {
        let digest = landing_version(item)?;
        Some(LandingVersion { path: item.path.clone(), digest, group: item.group, is_new_name: item.is_new_name() })
    });
    let landing: Vec<LandingVersion> = landing.collect();
    landing.iter().for_each(|version| accepted.insert(&version.path, version.digest));
    landing
}

/// The version of an entry after its change. Nothing where only the mode of a directory is another.
pub(super) fn landing_version(item: &OverlayChange) -> Option<Digest> {
    match &item.upper {
        None => Some(Digest::of(b"absent\0")),
        Some(OverlayUpperState::File { digest, .. }) => Some(*digest),
        Some(OverlayUpperState::Link { target }) => Some(link_version(target)),
        Some(OverlayUpperState::Directory { .. }) => item.is_new_directory().then(|| Digest::of(b"new directory\0")),
    }
}
