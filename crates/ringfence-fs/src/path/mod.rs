//! Guest paths, names and workspace discovery.

pub(crate) mod guest;
pub(crate) mod name;
pub(crate) mod relative;
pub(crate) mod workspace;
