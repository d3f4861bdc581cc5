//! The journal: every change of a mount, with the pre-images to undo it.
//!
//! A log in our state directory has a line for the intent, on disk before the change, and one for the outcome.
//! Pre-images are stored at the root of the mount (`images.rs`). A change whose process died is resolved by the process
//! that finds its intent: the state on disk shows whether it was made.
//!
//! Not here: undoing changes (`undo/`), and who may (`tools/undo.rs`).

mod checkpoint;
pub(crate) mod effect;
pub(crate) mod images;
pub(crate) mod index;
pub(crate) mod line;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod state;

use std::io;

use ringfence_kernel::{ErrorKind, ToolError};
use rustix::io::Errno;

pub(crate) use self::effect::JournalEffect;
pub(crate) use self::images::PreImageStore;
pub(crate) use self::line::{ChangeSequenceCounter, ChangeStatus, JournalChange, JournalEntry, JournalLine};
pub(crate) use self::log::{IntentFlush, Journal};
pub(crate) use self::record::{EscapedPath, FileIdentity, StagingName, TxnEntry, TxnStep};
pub(crate) use self::state::{FileState, FileStateDepth, FileStateKind, cost};
use crate::lock::INSTALL_NEWER;

/// Handling of a file that a change displaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DisplacedFileAction {
    /// It is deleted permanently.
    Discarded,
    Stored {
        image: String,
    },
    /// It has other hard links, or cannot be renamed into the image store: a copy is stored, and it is deleted.
    Copied {
        image: String,
    },
}

impl DisplacedFileAction {
    /// The name of the displaced file in the image store.
    pub(crate) fn image(&self) -> Option<&str> {
        match self {
            Self::Stored { image } => Some(image),
            Self::Discarded | Self::Copied { .. } => None,
        }
    }
}

/// One of the files that a change displaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DisplacementPosition {
    /// Its number among them.
    pub(crate) index: usize,
    /// Size of those before it, as the quota counts it.
    pub(crate) bytes_before: u64,
}

/// Retention of the entries that a change displaced, once it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Retention {
    #[default]
    Keep,
    /// There is no room for it, and a person agreed.
    Discard,
}

/// The name of a pre-image: unique, because it has the change in it.
pub(crate) fn image_name(change: &str, index: usize) -> String {
    format!("{change}-{index}")
}

pub(crate) fn not_kept_error() -> ToolError {
    let message =
        "the current contents became too large to keep, so the change could not be undone; nothing was changed";
    ToolError::new(ErrorKind::Conflict, message).hint("try again to request approval")
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
pub(crate) fn journal_read_error(error: io::Error) -> ToolError {
    let message = format!("cannot read the journal ({}); nothing was changed", describe_io_error(&error));
    if error.kind() == io::ErrorKind::Unsupported {
        return ToolError::new(ErrorKind::Unavailable, message).hint(INSTALL_NEWER);
    }
    ToolError::new(ErrorKind::Io, message).hint("try again")
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
pub(crate) fn journal_write_error(error: io::Error) -> ToolError {
    let message = format!("cannot write to the journal ({}); nothing was changed", describe_io_error(&error));
    if error.kind() == io::ErrorKind::Unsupported {
        return ToolError::new(ErrorKind::Unavailable, message).hint(INSTALL_NEWER);
    }
    if error.raw_os_error() == Some(Errno::FBIG.raw_os_error()) {
        return ToolError::new(ErrorKind::WriteLimit, "it exceeds the file size limit of this process");
    }
    let failed = ToolError::new(ErrorKind::Io, message);
    if error.kind() == io::ErrorKind::TimedOut { failed.hint("try again") } else { failed }
}

fn describe_io_error(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => format!("error {code}"),
        None if error.kind() == io::ErrorKind::TimedOut => "another process is using it".to_owned(),
        None if error.kind() == io::ErrorKind::Unsupported => "a newer version of Ringfence wrote it".to_owned(),
        None => "it is damaged".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use expect_test::expect;

    use super::journal_write_error;

    #[test]
    fn a_journal_error_names_its_cause() {
        let said = |error: io::Error| journal_write_error(error).to_string();
        expect!["cannot write to the journal (error 28); nothing was changed"]
            .assert_eq(&said(io::Error::from_raw_os_error(28)));
        expect!["cannot write to the journal (another process is using it); nothing was changed; try again"]
            .assert_eq(&said(io::ErrorKind::TimedOut.into()));
    }
}
