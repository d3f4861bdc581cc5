//! System calls, file stat, private state files, and the redo log of their appends.
//!
//! Not here: mounts, tools, and the text of an error.

pub mod commit_log;
pub mod directory_watch;
pub mod own_files;
pub mod stat;
pub mod syscall;
