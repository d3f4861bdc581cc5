//! System calls, file stat, and private state files.
//!
//! Not here: mounts, tools, and the text of an error.

pub mod own_files;
pub mod stat;
pub mod syscall;
