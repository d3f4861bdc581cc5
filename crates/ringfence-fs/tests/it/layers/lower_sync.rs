//! Start of an overlay synchronisation, and the versions that it records.
//!
//! Not here: a mounted overlay. Runs in real jails have one (`coherence` of the program's tests).

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_fs::FollowedWatches;
use ringfence_kernel::{LowerSyncNotice, OverlayMount};

use super::{LayerFixture, description, setup, with_context};
use crate::fixture::FsFixture;

/// A directory that is not an overlay.
#[derive(Debug)]
struct PlainDirectory(OwnedFd);

impl OverlayMount for PlainDirectory {
    fn root(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn drop_cached_entries(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn rename_entry(&self, _: BorrowedFd<'_>, _: &[u8], _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What the person is told of a program that starts in a workspace with ten directories.
fn notices(watches: FollowedWatches) -> Vec<String> {
    let world = FsFixture::in_memory(setup());
    (0..10).for_each(|number| world.write(&format!("d{number}/f"), "x"));
    let workspace = world.fence.followed_workspace("workspace", watches).unwrap();
    with_context(|cx| {
        let layer = workspace.create_layer(&workspace.view(cx).unwrap(), &description(), cx).unwrap();
        let directory = std::fs::File::open(&world.root).unwrap().into();
        let mut sync = layer.follow_lower(Box::new(PlainDirectory(directory))).unwrap().unwrap();
        assert!(sync.wake_source().is_none());
        let notices = sync.update(cx);
        layer.finish(0, cx).unwrap();
        let text = |notice: &LowerSyncNotice| match notice {
            LowerSyncNotice::NotFollowed(reason) => reason.clone(),
            other => panic!("{other:?}"),
        };
        notices.iter().map(text).collect()
    })
}

#[test]
fn a_workspace_that_cannot_be_watched_is_not_followed_and_says_so() {
    let told = notices(FollowedWatches { most: Some(5) });
    assert!(told.len() == 1 && told[0].contains("raise `fs.inotify.max_user_watches`"), "{told:?}");
}

#[test]
fn nothing_is_synchronised_through_what_is_no_overlay() {
    let told = notices(FollowedWatches::default());
    assert!(told.len() == 1 && told[0].contains("cannot be reached"), "{told:?}");
}

#[test]
fn a_workspace_that_is_not_followed_has_no_synchronisation() {
    let mut layer = LayerFixture::new(&[("a", "old")]);
    let directory = std::fs::File::open(&layer.world.root).unwrap().into();
    let sync = layer.running.as_ref().unwrap().follow_lower(Box::new(PlainDirectory(directory)));
    assert!(sync.unwrap().is_none());
    layer.finish(0);
}
