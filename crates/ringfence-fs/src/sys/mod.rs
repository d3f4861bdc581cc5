//! System calls, errno mapping and stat. Nothing here knows a mount or a tool.

pub(crate) mod errno;
pub(crate) mod stat;
pub(crate) mod syscall;
