//! Undo and redo: the plan, the virtual tree, the preview and its application.

pub(crate) mod apply;
pub(crate) mod plan;
pub(crate) mod preview;
mod removed_objects;
pub(crate) mod tree;
