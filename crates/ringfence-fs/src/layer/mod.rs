//! The workspace as programs work on it: what they see, and what becomes of what they changed.
//!
//! A program changes a layer above the workspace and never the workspace itself. What it left is read as what it is, the work
//! of a stranger; becomes a list of changes that is judged, shown and committed as one; or is dropped with the layer.
//!
//! Not here: running a program (`ringfence-sandbox`).

mod commit;
mod compare;
mod review;
mod stage;
mod step;
mod upper;
mod view;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ringfence_kernel::{Changes, Context, ErrorKind, ToolError, Touch, View, Workspace};

use self::compare::{Item, compare};
pub(crate) use self::step::{clear, permit_directory, take_back};
use self::upper::Upper;
use crate::Fence;
use crate::digest::Digest;
use crate::mount::{Mount, Rights};
use crate::slot::STATE_ALIAS;

impl Fence {
    /// A mount as programs work on it, with the others beside it to be read. There is none for the state of a run, which
    /// is no program's business.
    pub fn workspace(&self, alias: &str) -> Option<Arc<dyn Workspace>> {
        let others = self.mounts().iter().filter(|mount| &*mount.alias != STATE_ALIAS);
        let (mut own, beside): (Vec<_>, Vec<_>) = others.cloned().partition(|mount| &*mount.alias == alias);
        Some(Arc::new(Files { mount: own.pop()?, beside }))
    }
}

/// The files that programs work on.
#[derive(Debug)]
struct Files {
    mount: Arc<Mount>,
    beside: Vec<Arc<Mount>>,
}

impl Workspace for Files {
    fn view(&self, cx: &Context<'_>) -> Result<View, ToolError> {
        self.mount.check_in_place(cx.pace)?;
        let workspace = view::show_mount(&self.mount, cx)?;
        let beside = self.beside.iter().map(|mount| view::show_mount(mount, cx)).collect::<Result<Vec<_>, _>>()?;
        // Last: whatever happened until now, the program sees.
        Ok(View { workspace, beside, started: view::start(&self.mount)? })
    }

    fn changes(&self, view: &View, upper: OwnedFd, cx: &Context<'_>) -> Result<Box<dyn Changes>, ToolError> {
        // A file in a directory that goes is named where the policy says more to it than to the directory: both as here.
        let cx = &cx.in_jail();
        self.mount.look_around(cx)?;
        let since = view.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = i128::try_from(since.as_nanos()).unwrap_or_default();
        let upper = Upper::new(upper);
        let found = compare(&self.mount, &upper, started, cx)?;
        if !found.items.is_empty() && self.mount.rights == Rights::ReadOnly {
            let message = "the program wrote to a workspace that is read-only; nothing was changed";
            return Err(ToolError::new(ErrorKind::ReadOnly, message));
        }
        let mut left = Left {
            mount: Arc::clone(&self.mount),
            upper,
            items: found.items,
            stale: found.stale,
            touches: Vec::new(),
            renamed: HashMap::new(),
            previewed: HashMap::new(),
        };
        left.find_touches(cx)?;
        left.find_renames(cx)?;
        Ok(Box::new(left))
    }
}

/// What a program left, compared with the workspace.
#[derive(Debug)]
struct Left {
    mount: Arc<Mount>,
    upper: Upper,
    items: Vec<Item>,
    /// Paths that somebody else changed since the program started.
    stale: BTreeSet<String>,
    touches: Vec<Touch>,
    /// New files by the path that had the same contents and is gone.
    renamed: HashMap<Vec<u8>, Vec<u8>>,
    /// What a person was shown of the files that are there now.
    previewed: HashMap<Vec<u8>, Digest>,
}
