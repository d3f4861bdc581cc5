//! Redo: gives files back the bytes that a power cut took.
//!
//! Files are extended, and bytes that are zero are filled in; nothing else is changed, so that the order of the slots does not
//! matter and a second replay changes nothing. A record applies where the file has its context and differs from it
//! only by lost bytes. A power cut shortens a file, or leaves zeros where a block was not written; files that are
//! covered have no zero bytes of their own.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::slot::{RedoFileKey, RedoRecord, read_at, write_at};
use crate::own_files::open_own_file;
use crate::stat::{FileKind, FileStat};
use crate::syscall::fstat;

/// So much of a file is read at once.
const WINDOW: usize = 256 << 10;

/// Applies records, and flushes the files that they changed.
pub(super) fn replay<'r>(
    state: &OwnedFd,
    records: impl IntoIterator<Item = &'r RedoRecord>,
    sync: impl Fn(&OwnedFd) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut files: BTreeMap<&RedoFileKey, Vec<&RedoRecord>> = BTreeMap::new();
    for record in records {
        files.entry(&record.file).or_default().push(record);
    }
    for (key, mut records) in files {
        records.sort_by_key(|record| record.data_start());
        let Some(file) = open_covered(state, key)? else { continue };
        if extend(&file, &records)? {
            sync(&file)?;
        }
    }
    Ok(())
}

/// Opens a covered file. None if it is gone, or another file is in its place.
pub(super) fn open_covered(state: &OwnedFd, key: &RedoFileKey) -> Result<Option<OwnedFd>, Errno> {
    let file = match open_own_file(state, &key.path, OFlags::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NAMETOOLONG) => {
            return Ok(None);
        }
        file => file?,
    };
    let stat = FileStat::from_stat(&fstat(&file)?);
    Ok(Some(file).filter(|_| stat.kind == FileKind::File && stat.id.inode == key.inode))
}

/// Applies the records of one file, in order of their offsets. Returns whether it changed.
fn extend(file: &OwnedFd, records: &[&RedoRecord]) -> Result<bool, Errno> {
    let mut size = FileStat::from_stat(&fstat(file)?).size;
    let (mut window, mut window_start, mut has_changed) = (Vec::new(), 0, false);
    for record in records {
        if record.data_start() > size {
            // A gap: this record and those behind it do not continue the file.
            break;
        }
        let present = usize::try_from(size.min(record.end()) - record.offset).map_err(|_| Errno::FBIG)?;
        let at = |start: u64| usize::try_from(record.offset.checked_sub(start)?).ok();
        let slice = |window: &[u8], start| at(start).and_then(|at| Some(window.get(at..at + present)?.to_vec()));
        let found = match slice(&window, window_start) {
            Some(found) => found,
            None => {
                (window, window_start) = (read_at(file, record.offset, present.max(WINDOW))?, record.offset);
                slice(&window, window_start).unwrap_or_default()
            }
        };
        let has_only_losses = found.iter().zip(&record.bytes).all(|(found, byte)| found == byte || *found == 0);
        if found.len() < present || !has_only_losses || found == record.bytes {
            continue;
        }
        write_at(file, &record.bytes, record.offset)?;
        size = size.max(record.end());
        has_changed = true;
        window.clear();
    }
    Ok(has_changed)
}
