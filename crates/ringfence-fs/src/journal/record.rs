//! Write-ahead records: the steps of a transaction, as the journal's intent has them.
//!
//! A step names the entries that take part by identity, so that any process can tell from the file system how far it
//! came, and roll it back or finish it. There is one format for every change: writes, patches, moves, deletes, commits
//! of a program's changes, undo and redo.
//!
//! Not here: making steps and rolling them back (`txn/step.rs`).

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::journal::state::{FileState, FileStateKind};
use crate::path::name::{escape, unescape};
use crate::root::stat;
use crate::sys::file_ref::{BirthTime, FileRef};
use crate::sys::stat::{FileKind, FileStat};

/// One step, and the name that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TxnEntry {
    #[serde(flatten)]
    pub(crate) step: TxnStep,
    /// Directory below the root, empty for the root itself.
    #[serde(default, skip_serializing_if = "EscapedPath::is_empty")]
    pub(crate) parent: EscapedPath,
    /// Inode of the directory, which may be renamed meanwhile. `None` for one that an earlier step makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<u64>,
    pub(crate) name: EscapedPath,
}

/// The operation, with the entries that take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub(crate) enum TxnStep {
    /// The entry at the name and the one at the staging name change places. Where one of them is missing, the other
    /// moves; without both, the step reserves the staging name.
    Exchange {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        old: Option<FileIdentity>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        new: Option<FileIdentity>,
        staging: StagingName,
        /// Whether the new entry was made for this transaction: rolled back, it is deleted.
        #[serde(default, skip_serializing_if = "is_false")]
        fresh: bool,
        /// Whether the old entry is deleted once the transaction is committed.
        #[serde(default, skip_serializing_if = "is_false")]
        discard: bool,
    },
    /// The entry moves to another path. A file there goes to the image store, or is deleted if it has no name there.
    Move {
        entry: FileIdentity,
        to: EscapedPath,
        /// Inode of the directory that it moves to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_directory: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over: Option<FileIdentity>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<String>,
    },
    /// Bytes are added to the end of a file.
    Append { inode: u64, before: u64, content: String },
    /// A directory is created.
    MakeDirectory,
    /// A directory gets other permissions.
    Chmod { inode: u64, from: u32, to: u32 },
}

/// The name at which an entry waits to be published, and at which the one that it displaces stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StagingName {
    /// In the image store.
    Store(String),
    /// Beside the target.
    Beside(String),
}

impl StagingName {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Store(name) | Self::Beside(name) => name.as_bytes(),
        }
    }
}

/// A path below the root as bytes, stored in the text form of `path/name.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub(crate) struct EscapedPath(pub(crate) Vec<u8>);

impl EscapedPath {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<EscapedPath> for String {
    fn from(path: EscapedPath) -> Self {
        escape(&path.0)
    }
}

impl From<String> for EscapedPath {
    fn from(text: String) -> Self {
        Self(unescape(&text))
    }
}

impl From<&[u8]> for EscapedPath {
    fn from(path: &[u8]) -> Self {
        Self(path.to_vec())
    }
}

/// A file as it was when the record was written. An inode alone would not do: its number is reused. A directory changes
/// with its entries, and is known by its birth time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct FileIdentity {
    pub(crate) inode: u64,
    size: u64,
    modified: i128,
    birth_time: BirthTime,
}

impl FileIdentity {
    /// The identity of a file or a link.
    pub(crate) fn from_stat(stamp: &FileStat) -> Self {
        Self { inode: stamp.id.inode, size: stamp.size, modified: stamp.modified, birth_time: None }
    }

    /// The identity of an entry whose state the journal read at this path.
    pub(crate) fn from_state(state: &FileState, at: FileRef<'_>) -> Self {
        match state.kind {
            FileStateKind::Directory => Self { inode: state.inode, birth_time: at.birth_time(), ..Self::default() },
            _ => Self { inode: state.inode, size: state.size, modified: state.modified.into(), birth_time: None },
        }
    }

    /// The identity of the entry at a name, whose stat is known.
    pub(crate) fn at(at: FileRef<'_>, stamp: &FileStat) -> Self {
        match stamp.kind {
            FileKind::Directory => Self { inode: stamp.id.inode, birth_time: at.birth_time(), ..Self::default() },
            _ => Self::from_stat(stamp),
        }
    }

    /// The identity of the entry at a name.
    pub(crate) fn read_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Self>, Errno> {
        Ok(stat(parent, name)?.map(|stamp| Self::at(FileRef { fd: parent, name }, &stamp)))
    }

    /// Whether this is the entry at a name. On a file system without birth times, a directory is known by its inode.
    pub(crate) fn is_at(&self, (parent, name): (BorrowedFd<'_>, &[u8])) -> Result<bool, Errno> {
        let by_inode = Self { inode: self.inode, ..Self::default() };
        let found = Self::read_at(parent, name)?;
        Ok(found.is_some_and(|found| found == *self || (*self == by_inode && found.inode == self.inode)))
    }
}

impl From<FileIdentity> for String {
    fn from(FileIdentity { inode, size, modified, birth_time }: FileIdentity) -> Self {
        let born = birth_time.map_or_else(Self::new, |born| format!(":{born}"));
        format!("{inode}:{size}:{modified}{born}")
    }
}

impl TryFrom<String> for FileIdentity {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const INVALID: &str = "invalid file identity";
        let mut parts = text.split(':');
        let mut next = || parts.next().ok_or(INVALID);
        let (inode, size, modified) = (next()?, next()?, next()?);
        let birth_time = parts.next().map(str::parse).transpose().map_err(|_| INVALID)?;
        Ok(Self {
            inode: inode.parse().map_err(|_| INVALID)?,
            size: size.parse().map_err(|_| INVALID)?,
            modified: modified.parse().map_err(|_| INVALID)?,
            birth_time,
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "it is what `skip_serializing_if` gives")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::{EscapedPath, FileIdentity, StagingName, TxnEntry, TxnStep};

    #[test]
    fn steps_are_read_back_as_they_were_written() {
        let file = |inode| FileIdentity { inode, size: 5, modified: -3, birth_time: None };
        let directory = FileIdentity { inode: 5, birth_time: Some(-7), ..FileIdentity::default() };
        let staging = StagingName::Store("c-1-0".to_owned());
        let steps = [
            TxnStep::Exchange { old: Some(file(7)), new: Some(file(8)), staging, fresh: true, discard: false },
            TxnStep::Move {
                entry: directory,
                to: EscapedPath(b"a/\xff".to_vec()),
                to_directory: Some(3),
                over: None,
                image: None,
            },
            TxnStep::Append { inode: 9, before: 1, content: "two\n".to_owned() },
            TxnStep::MakeDirectory,
            TxnStep::Chmod { inode: 10, from: 0o755, to: 0o500 },
        ];
        let mut lines = String::new();
        for step in steps {
            let (parent, name) = (EscapedPath(b"a/b".to_vec()), EscapedPath(b"c\n".to_vec()));
            let entry = TxnEntry { step, parent, directory: Some(11), name };
            let line = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<TxnEntry>(&line).unwrap(), entry, "{line}");
            lines += &format!("{line}\n");
        }
        expect![[r#"
            {"step":"exchange","old":"7:5:-3","new":"8:5:-3","staging":{"store":"c-1-0"},"fresh":true,"parent":"a/b","directory":11,"name":"c\\x0a"}
            {"step":"move","entry":"5:0:0:-7","to":"a/\\xff","to_directory":3,"parent":"a/b","directory":11,"name":"c\\x0a"}
            {"step":"append","inode":9,"before":1,"content":"two\n","parent":"a/b","directory":11,"name":"c\\x0a"}
            {"step":"makedirectory","parent":"a/b","directory":11,"name":"c\\x0a"}
            {"step":"chmod","inode":10,"from":493,"to":320,"parent":"a/b","directory":11,"name":"c\\x0a"}
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn a_step_of_a_newer_version_is_not_skipped() {
        assert!(serde_json::from_str::<TxnEntry>(r#"{"step":"clone","name":"f"}"#).is_err());
        assert!(
            serde_json::from_str::<TxnEntry>(r#"{"step":"move","entry":"seven:0:0","to":"g","name":"f"}"#).is_err()
        );
    }
}
