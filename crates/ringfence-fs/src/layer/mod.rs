//! The workspace as programs work on it: what they see, and what becomes of what they changed.
//!
//! A program changes a layer above the workspace and never the workspace itself. What it left is read as what it is, the work
//! of a stranger; becomes groups of changes that are judged and shown; those that are kept are committed as one, and the rest goes with
//! the layer.
//!
//! Not here: running a program (`ringfence-sandbox`).

mod commit;
mod compare;
mod group;
mod masked_paths;
mod repository_data;
mod review;
mod stage;
mod step;
mod upper;
mod view;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ringfence_kernel::{ChangeGroup, Changes, Context, KeepDecision, ToolError, Touch, View, Workspace};

use self::compare::{Item, Unkeepable, compare};
use self::masked_paths::MaskedPaths;
use self::repository_data::RepositoryFindings;
pub(crate) use self::step::{clear, permit_directory, take_back};
use self::upper::Upper;
use crate::Fence;
use crate::digest::Digest;
use crate::mount::Mount;
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
        self.mount.look_around(cx)?;
        let since = view.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = i128::try_from(since.as_nanos()).unwrap_or_default();
        let upper = Upper::new(upper);
        let found = compare(&self.mount, &upper, started, cx)?;
        let mut left = Left {
            mount: Arc::clone(&self.mount),
            upper,
            items: found.items,
            unkeepable: Vec::new(),
            touches: Vec::new(),
            renamed: HashMap::new(),
            groups: Vec::new(),
            decided: Vec::new(),
            repositories: RepositoryFindings::default(),
            masked: MaskedPaths::of(&view.workspace),
            previewed: HashMap::new(),
        };
        left.judge_repositories(cx);
        left.find_touches(cx)?;
        let moved = left.find_renames(cx)?;
        left.form_groups(&moved, &found.stale, found.unkeepable);
        Ok(Box::new(left))
    }
}

/// What a program left, compared with the workspace.
#[derive(Debug)]
struct Left {
    mount: Arc<Mount>,
    upper: Upper,
    items: Vec<Item>,
    /// What cannot be committed, with its group.
    unkeepable: Vec<(Unkeepable, usize)>,
    /// For each item what the policy has to judge.
    touches: Vec<Vec<Touch>>,
    /// New files by the path that had the same contents and is gone.
    renamed: HashMap<Vec<u8>, Vec<u8>>,
    groups: Vec<ChangeGroup>,
    /// What becomes of each group.
    decided: Vec<KeepDecision>,
    repositories: RepositoryFindings,
    /// What the program saw empty.
    masked: MaskedPaths,
    /// What a person was shown of the files that are there now.
    previewed: HashMap<Vec<u8>, Digest>,
}
