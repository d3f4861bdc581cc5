//! System calls, errno mapping and stat. Nothing here knows a mount or a tool.

pub(crate) mod errno;
pub(crate) mod file_ref;

pub(crate) use ringfence_sys::{directory_watch, own_files, stat, syscall};
