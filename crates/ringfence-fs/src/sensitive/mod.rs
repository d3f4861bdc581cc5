//! Detection of secrets, protected files and git repositories below a mount.

pub(crate) mod credentials;
pub(crate) mod files;
pub(crate) mod linked_directories;
mod root_scan;
