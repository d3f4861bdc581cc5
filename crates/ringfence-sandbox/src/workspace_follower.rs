//! Overlay synchronisation of a run: its thread has the overlay brought up to date, records what is in conflict, and tells the
//! person.
//!
//! It works on the thread of the run, which has the call, and only after a report of a change: the descriptor of the
//! watches is one of those that this thread waits for anyway.
//!
//! Not here: what is done to the overlay. The workspace's `LowerSync` does it.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringfence_kernel::{
    CallContext, ErrorKind, LowerSync, LowerSyncNotice, ResourceAccess, ToolError, WorkspaceLayer, sanitize_line,
};

use crate::mounted_overlay::MountedOverlay;

/// News for the person while a wrapped program runs.
pub trait RunNews: Send + Sync + std::fmt::Debug {
    /// One line, in plain text.
    fn tell(&self, line: &str);
}

/// News of one run. Further conflicts are in the review.
const MOST_NEWS: usize = 100;

/// The synchronisation of one run, from when its overlay is mounted.
#[derive(Debug)]
pub(crate) struct WorkspaceFollower<'a> {
    layer: &'a dyn WorkspaceLayer,
    news: &'a dyn RunNews,
    cx: &'a CallContext<'a>,
    sync: RefCell<Option<Box<dyn LowerSync>>>,
    told: Cell<usize>,
}

impl<'a> WorkspaceFollower<'a> {
    pub(crate) fn new(layer: &'a dyn WorkspaceLayer, news: &'a dyn RunNews, cx: &'a CallContext<'a>) -> Self {
        Self { layer, news, cx, sync: RefCell::new(None), told: Cell::new(0) }
    }

    pub(crate) fn start(&self, mount: MountedOverlay) {
        match self.layer.follow_lower(Box::new(mount)) {
            Ok(sync) => *self.sync.borrow_mut() = sync,
            Err(error) => self.handle(&LowerSyncNotice::NotFollowed(error.message)),
        }
    }

    pub(crate) fn wake_source(&self) -> Option<Arc<OwnedFd>> {
        self.sync.borrow().as_ref().and_then(|sync| sync.wake_source())
    }

    pub(crate) fn wake(&self) {
        if let Some(sync) = &mut *self.sync.borrow_mut() {
            sync.wake();
        }
    }

    pub(crate) fn update(&self) {
        let notices = self.sync.borrow_mut().as_mut().map(|sync| sync.update(self.cx)).unwrap_or_default();
        notices.iter().for_each(|notice| self.handle(notice));
    }

    /// Tells the person, and records what happened to a path.
    fn handle(&self, notice: &LowerSyncNotice) {
        let shown = |access: &ResourceAccess| sanitize_line(&access.resource.display_path);
        let (access, kind, line) = match notice {
            LowerSyncNotice::Conflict(access) => {
                let line = format!(
                    "conflict: `{}` was changed in the workspace and by the program; both versions are kept",
                    shown(access)
                );
                (Some(access), ErrorKind::Conflict, line)
            }
            LowerSyncNotice::InUse(access) => {
                let line = format!(
                    "`{}` was changed in the workspace, and the program sees its old state until it closes it",
                    shown(access)
                );
                (Some(access), ErrorKind::Conflict, line)
            }
            LowerSyncNotice::Masked(access) => {
                let line = format!("`{}` is a secret that came later; the program does not see it", shown(access));
                (Some(access), ErrorKind::PermissionDenied, line)
            }
            LowerSyncNotice::Exposed(access) => {
                let line = format!(
                    "`{}` is a secret that came later, and could not be hidden from the program",
                    shown(access)
                );
                (Some(access), ErrorKind::PermissionDenied, line)
            }
            LowerSyncNotice::NotFollowed(reason) => {
                let line = format!(
                    "changes of yours in the workspace are not followed: {reason}; the program may see old files, and what both \
                     change is in the review"
                );
                (None, ErrorKind::Unavailable, line)
            }
        };
        if let Some(access) = access {
            // The record of the end, which cannot be written then either, fails the call.
            let _ = self.cx.record_layer_conflict(access, &ToolError::new(kind, line.clone()));
        }
        match self.told.replace(self.told.get() + 1) {
            told if told < MOST_NEWS => self.news.tell(&line),
            MOST_NEWS => self.news.tell("there are more changes like these; all conflicts are in the review"),
            _ => {}
        }
    }
}
