//! Attaching to a running wrapped program: its socket, and the protocol that is spoken there.
//!
//! The process of the run is the only server of its socket. Every other process of the same user may view its screen, and one
//! may type at a time.
//!
//! Not here: the server (`cli/wrapped_run`), the person's terminal (`cli`), and who may do it through the web UI (`api`).

pub(crate) mod attach_directory;
pub(crate) mod connection;
pub(crate) mod protocol;
