//! Home keep: files of an agent's home layer that go back into the person's home directory.
//!
//! Only plain files that a profile names, such as transcripts, and only so that nothing of the person's is lost: a file that is
//! missing is made, one that is the beginning of the layer's gets the rest appended, and every other one stays as it is. The
//! layer is untrusted: its links, pipes and long files are left, and nothing is followed out of either directory.
//!
//! Not here: which files a profile names (`ringfence`), finding them (`home_files.rs`), and what a person chooses
//! (`home_review.rs`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use ringfence_kernel::{CallContext, PolicyAction, ResourceAccess, Ticket, ToolError};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use crate::mount::Mount;
use crate::overlay::home_files::{
    FoundHomeFile, HomeLayers, HomePattern, PersonFile, home_resource, is_plain_file, make_home_directories, open_home,
    open_person_file, shown_path,
};
use crate::overlay::layer_store::LayerStore;
use crate::path::name::escape;
use crate::path::relative::split;
use crate::read::content::read_chunk;
use crate::root::rename_noreplace;
use crate::sys::errno::errno_error;
use crate::sys::own_files::{open_own_file, write_all};
use crate::sys::stat::FileStat;
use crate::sys::syscall::{fdatasync, fstat, fsync, unlinkat};

/// Limits of what goes back at once.
const LONGEST_FILE: u64 = 64 << 20;
const MOST_FILES: usize = 2_000;
const MOST_BYTES: u64 = 256 << 20;

/// Most files that a reply names as left.
const MOST_LEFT: usize = 100;

/// Bytes that are compared and copied at once.
const CHUNK: usize = 256 << 10;

/// A planned keep. The home layers are locked until this is dropped.
#[derive(Debug)]
pub(crate) struct HomeKeep {
    home: OwnedFd,
    layers: HomeLayers,
    items: Vec<HomeKeepItem>,
    left: Vec<LeftHomeFile>,
}

/// A file of the layer of which the person's home directory has only the beginning, or nothing.
#[derive(Debug)]
struct HomeKeepItem {
    path: Vec<u8>,
    /// In the layer, open.
    file: OwnedFd,
    size: u64,
    /// The person's file, whose contents are the beginning.
    known: Option<FileStat>,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HomeKeepOutcome {
    /// Files that are new in the home directory, or longer.
    kept: Vec<KeptHomeFile>,
    /// Files that stay in the layer.
    left: Vec<LeftHomeFile>,
    /// What an undo does.
    note: &'static str,
}

/// A file that went back.
#[derive(Debug, Serialize, JsonSchema)]
struct KeptHomeFile {
    path: String,
    /// `created` or `extended`.
    kind: &'static str,
    /// Bytes that were written.
    bytes: u64,
}

/// A file that did not.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct LeftHomeFile {
    path: String,
    why: String,
}

const UNDO_NOTE: &str =
    "`undo` does not reach the home directory: nothing that was there is gone, and new files can be deleted";

impl HomeKeep {
    /// Finds the files that the patterns name and that the person's home directory has not, or not all of.
    pub(crate) fn plan(
        store: &LayerStore,
        mount: &Mount,
        (home, profile, patterns): (&Path, &str, &[String]),
        cx: &CallContext<'_>,
    ) -> Result<Self, ToolError> {
        let patterns = patterns.iter().map(|pattern| HomePattern::parse(pattern)).collect::<Result<Vec<_>, _>>()?;
        let (home, layers) = (open_home(home)?, HomeLayers::open(store, mount, profile)?);
        let mut keep = Self { home, layers, items: Vec::new(), left: Vec::new() };
        for found in keep.layers.find(&patterns, cx)? {
            keep.take(&found, cx)?;
        }
        Ok(keep)
    }

    /// What the policy has to judge.
    pub(crate) fn accesses(&self) -> Vec<ResourceAccess> {
        let access = |item: &HomeKeepItem| ResourceAccess {
            action: if item.known.is_some() { PolicyAction::Overwrite } else { PolicyAction::Create },
            resource: home_resource(&escape(&item.path)),
        };
        let home = ResourceAccess { action: PolicyAction::List, resource: home_resource(".") };
        std::iter::once(home).chain(self.items.iter().map(access)).collect()
    }

    /// Paths of the files that go back.
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        self.items.iter().map(|item| shown_path(&item.path))
    }

    /// Writes them. One that cannot be written stays in the layer.
    pub(crate) fn run(mut self, ticket: &Ticket<'_>) -> Result<HomeKeepOutcome, ToolError> {
        let cx = ticket.context();
        let mut kept = Vec::new();
        if !self.items.is_empty() {
            ticket.commit()?;
        }
        for item in std::mem::take(&mut self.items) {
            let path = shown_path(&item.path);
            match item.write(&self.home, cx) {
                Ok(bytes) => {
                    let kind = if item.known.is_some() { "extended" } else { "created" };
                    kept.push(KeptHomeFile { path, kind, bytes });
                }
                Err(Errno::EXIST) => self.leave(&item.path, CHANGED),
                Err(errno) => self.leave(&item.path, &errno_error(errno, &path).message),
            }
        }
        self.left.truncate(MOST_LEFT);
        Ok(HomeKeepOutcome { kept, left: self.left, note: UNDO_NOTE })
    }

    fn leave(&mut self, path: &[u8], why: &str) {
        self.left.push(LeftHomeFile { path: shown_path(path), why: why.to_owned() });
    }

    /// Plans a file of the layer, if there is room for it.
    fn take(&mut self, found: &FoundHomeFile, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let path = &found.path;
        let Some(stat) = &found.stat else {
            self.leave(path, "it is not a plain file");
            return Ok(());
        };
        let total: u64 = self.items.iter().map(|item| item.size).sum();
        if stat.size > LONGEST_FILE {
            self.leave(path, "it is too long");
        } else if self.items.len() >= MOST_FILES || total.saturating_add(stat.size) > MOST_BYTES {
            self.leave(path, "there are too many files");
        } else if self.items.iter().any(|item| item.path == *path) {
            self.leave(path, "another run wrote it too");
        } else if stat.size > 0 {
            self.consider(path, self.layers.open_file(found, stat)?, stat.size, cx)?;
        }
        Ok(())
    }

    /// Compares a file of the layer with the person's.
    fn consider(&mut self, path: &[u8], file: OwnedFd, size: u64, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let (directory, found) = match PersonFile::find(&self.home, path)? {
            PersonFile::Plain { directory, stat } => (directory, stat),
            PersonFile::Missing => {
                self.items.push(HomeKeepItem { path: path.to_vec(), file, size, known: None });
                return Ok(());
            }
            PersonFile::Unusable(why) => {
                self.leave(path, why);
                return Ok(());
            }
        };
        let Ok(theirs) = open_person_file(directory.as_fd(), split(path).1, OFlags::RDONLY) else {
            self.leave(path, "it cannot be read in your home directory");
            return Ok(());
        };
        let has_start = is_same_start(&theirs, &file, found.size.min(size), cx);
        if !has_start.map_err(|errno| errno_error(errno, &shown_path(path)))? {
            self.leave(path, CHANGED);
        } else if found.size < size {
            self.items.push(HomeKeepItem { path: path.to_vec(), file, size, known: Some(found) });
        }
        Ok(())
    }
}

const CHANGED: &str = "your home directory has another version of it";

impl HomeKeepItem {
    /// Returns the number of bytes. `EXIST` if the person's file is not what it was.
    fn write(&self, home: &OwnedFd, cx: &CallContext<'_>) -> Result<u64, Errno> {
        let (above, name) = split(&self.path);
        let directory = make_home_directories(home, above)?;
        match &self.known {
            Some(known) => self.extend((directory.as_fd(), name), known, cx),
            None => self.create(&directory, name, cx),
        }
    }

    /// Under a name of ours first: no other program sees a part of it.
    fn create(&self, directory: &OwnedFd, name: &[u8], cx: &CallContext<'_>) -> Result<u64, Errno> {
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
        let new = format!(".ringfence-{:016x}", u64::from_ne_bytes(random));
        let file = open_own_file(directory, Path::new(&new), OFlags::CREATE | OFlags::EXCL)?;
        let written = self.copy(&file, 0, cx).and_then(|bytes| {
            fdatasync(&file)?;
            rename_noreplace((directory.as_fd(), new.as_bytes()), (directory.as_fd(), name))?;
            fsync(directory)?;
            Ok(bytes)
        });
        if written.is_err() {
            let _ = unlinkat(directory, new.as_str(), AtFlags::empty());
        }
        written
    }

    /// Appends what is missing. After an interruption, the file is still a beginning.
    fn extend(
        &self,
        (directory, name): (BorrowedFd<'_>, &[u8]),
        known: &FileStat,
        cx: &CallContext<'_>,
    ) -> Result<u64, Errno> {
        let file = open_person_file(directory, name, OFlags::WRONLY | OFlags::APPEND)?;
        let now = FileStat::from_stat(&fstat(&file)?);
        if !is_plain_file(&now) || !now.same_content(known) {
            return Err(Errno::EXIST);
        }
        let bytes = self.copy(&file, known.size, cx)?;
        fdatasync(&file)?;
        Ok(bytes)
    }

    fn copy(&self, to: &OwnedFd, from: u64, cx: &CallContext<'_>) -> Result<u64, Errno> {
        let (mut buffer, mut at) = (vec![0; CHUNK], from);
        while at < self.size {
            let wanted = usize::try_from(self.size - at).unwrap_or(usize::MAX).min(CHUNK);
            let length = read_chunk(self.file.as_fd(), &mut buffer[..wanted], at, cx)?;
            if length == 0 {
                return Err(Errno::IO);
            }
            write_all(to.as_fd(), &buffer[..length])?;
            at += length as u64;
        }
        Ok(at - from)
    }
}

fn is_same_start(one: &OwnedFd, other: &OwnedFd, length: u64, cx: &CallContext<'_>) -> Result<bool, Errno> {
    let (mut left, mut right, mut at) = (vec![0; CHUNK], vec![0; CHUNK], 0);
    while at < length {
        let wanted = usize::try_from(length - at).unwrap_or(usize::MAX).min(CHUNK);
        let read = read_chunk(one.as_fd(), &mut left[..wanted], at, cx)?;
        let mut done = 0;
        while done < read {
            match read_chunk(other.as_fd(), &mut right[done..read], at + done as u64, cx)? {
                0 => return Ok(false),
                more => done += more,
            }
        }
        if read == 0 || left[..read] != right[..read] {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}
