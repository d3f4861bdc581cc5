//! Texts and wire formats: JSON-RPC, percent-encoding, renamed keys, I/O errors.

pub(crate) mod io_text;
pub(crate) mod jsonrpc;
pub(crate) mod percent;
pub(crate) mod renamed_keys;
