//! System calls, file stat, and private state files.
//!
//! Not here: mounts, tools, and the text of an error.

pub mod directory_watch;
pub mod own_files;
pub mod stat;
pub mod syscall;
