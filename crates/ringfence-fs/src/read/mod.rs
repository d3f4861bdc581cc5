//! Reading: contents, digests, search and ignore rules.

pub(crate) mod content;
pub(crate) mod digest;
pub(crate) mod ignore;
pub(crate) mod image;
pub(crate) mod search;
