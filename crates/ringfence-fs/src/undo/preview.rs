//! Undo previews: the difference in contents, each path once.
//!
//! Where several changes of one file are undone, its current contents are compared with those at the end.
//!
//! Not here: what has to be done (`plan.rs`), and how a diff looks (`preview.rs` of the crate).

use std::collections::HashMap;
use std::os::fd::AsFd as _;

use ringfence_kernel::{CallContext, ToolError};

use crate::journal::state::{FileState, FileStateKind};
use crate::mount::Mount;
use crate::mount::node_source::FileEntryLocation;
use crate::path::name::escape;
use crate::preview::{DiffPreview, FileContents};
use crate::undo::apply::UndoPlan;
use crate::undo::tree::{TreeNode, open_source};

/// Most paths that are shown.
const MOST_PATHS: usize = 200;

/// The visible outcome of an undo.
#[derive(Debug, Default)]
pub(crate) struct UndoPreview {
    items: Vec<UndoPreviewItem>,
    /// The position of each path, since the last move.
    positions: HashMap<Vec<u8>, usize>,
}

#[derive(Debug)]
enum UndoPreviewItem {
    Change { path: Vec<u8>, before: Option<Box<UndoPreviewSide>>, after: Option<Box<UndoPreviewSide>> },
    Move { from: Vec<u8>, to: Vec<u8> },
}

/// Something, and where it is at present.
#[derive(Debug)]
struct UndoPreviewSide {
    state: FileState,
    source: FileEntryLocation,
}

impl UndoPreviewSide {
    fn new(thing: &TreeNode) -> Box<Self> {
        Box::new(Self { state: thing.state.clone(), source: thing.source.clone() })
    }
}

impl UndoPreview {
    /// Notes what would come to stand at a path instead of something else.
    pub(crate) fn add_change(&mut self, path: &[u8], before: Option<&TreeNode>, after: Option<&TreeNode>) {
        let after = after.map(UndoPreviewSide::new);
        let earlier = self.positions.get(path).and_then(|place| self.items.get_mut(*place));
        if let Some(UndoPreviewItem::Change { after: last, .. }) = earlier {
            *last = after;
            return;
        }
        self.positions.insert(path.to_vec(), self.items.len());
        self.items.push(UndoPreviewItem::Change {
            path: path.to_vec(),
            before: before.map(UndoPreviewSide::new),
            after,
        });
    }

    pub(crate) fn add_move(&mut self, from: &[u8], to: &[u8]) {
        self.positions.clear();
        self.items.push(UndoPreviewItem::Move { from: from.to_vec(), to: to.to_vec() });
    }
}

impl UndoPlan {
    /// Adds the difference in contents. Reads as much as can be shown.
    pub(crate) fn add_preview(
        &self,
        diffs: &mut DiffPreview,
        mount: &Mount,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        let shown = |path: &[u8]| mount.display_path(&escape(path));
        let all = &self.preview.items;
        for (index, sight) in all.iter().enumerate() {
            cx.check()?;
            if index >= MOST_PATHS || diffs.is_full() {
                diffs.add_note(&format!("… and {} more", all.len() - index));
                break;
            }
            match sight {
                UndoPreviewItem::Move { from, to } => {
                    diffs.add_note(&format!("move `{}` to `{}`", shown(from), shown(to)))
                }
                UndoPreviewItem::Change { before: None, after: None, .. } => {}
                UndoPreviewItem::Change { path, before, after } => {
                    add_diff(diffs, mount, &shown(path), [before.as_deref(), after.as_deref()], cx)?;
                }
            }
        }
        Ok(())
    }
}

fn add_diff(
    diffs: &mut DiffPreview,
    mount: &Mount,
    shown: &str,
    sides: [Option<&UndoPreviewSide>; 2],
    cx: &CallContext<'_>,
) -> Result<(), ToolError> {
    let is_file = |side: &Option<&UndoPreviewSide>| side.is_none_or(|seen| seen.state.kind == FileStateKind::File);
    if !sides.iter().all(is_file) {
        let [before, after] = sides.map(|side| side.map_or_else(|| "nothing".to_owned(), |seen| seen.state.describe()));
        diffs.add_note(&format!("`{shown}`: {before} becomes {after}"));
        return Ok(());
    }
    let contents = |UndoPreviewSide { state, source }: &UndoPreviewSide| match open_source(mount, source, shown) {
        Ok(fd) => FileContents::read_head(fd.as_fd(), state.size, shown, cx),
        // It may not be ours to read, and can be renamed all the same.
        Err(_) => Ok(FileContents::of_size(state.size)),
    };
    let [before, after] = sides.map(|side| side.map(contents).transpose());
    diffs.add(shown, before?.as_ref(), after?.as_ref());
    Ok(())
}
