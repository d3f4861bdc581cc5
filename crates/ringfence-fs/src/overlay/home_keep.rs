//! Home keep: files of an agent's home layer that go back into the person's home directory.
//!
//! Only plain files that a profile names, such as transcripts, and only so that nothing of the person's is lost: a file that is
//! missing is made, one that is the beginning of the layer's gets the rest appended, and every other one stays as it is. The
//! layer is untrusted: its links, pipes and long files are left, and nothing is followed out of either directory.
//!
//! Not here: which files a profile names (`ringfence`), and changes of the workspace (`layer_keep.rs`).

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use ringfence_kernel::{
    CallContext, ErrorKind, HOME_MOUNT, PolicyAction, PolicyResource, ResourceAccess, Ticket, ToolError,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;
use schemars::JsonSchema;
use serde::Serialize;

use crate::mount::Mount;
use crate::overlay::layer_home::{HOMES, idle_homes};
use crate::overlay::layer_store::{LayerStore, workspace_id};
use crate::overlay::store_directory::{UPPER, errno_store_error};
use crate::overlay::upper::{UpperEntry, UpperEntryKind, UpperLayer, open_beneath, open_file};
use crate::path::name::escape;
use crate::path::relative::{join, split};
use crate::read::content::read_chunk;
use crate::root::{rename_noreplace, stat};
use crate::sys::errno::errno_error;
use crate::sys::own_files::{SAFE_OPEN, open_own_file, open_private_dir, write_all};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fdatasync, fstat, fsync, openat, unlinkat};

/// Limits of what goes back at once.
const LONGEST_FILE: u64 = 64 << 20;
const MOST_FILES: usize = 2_000;
const MOST_BYTES: u64 = 256 << 20;
const MOST_ENTRIES: u64 = 100_000;

/// Parts of a pattern, and so the depth of a file.
const MOST_PARTS: usize = 16;

/// Most files that a reply names as left.
const MOST_LEFT: usize = 100;

/// Bytes that are compared and copied at once.
const CHUNK: usize = 256 << 10;

/// A planned keep. The home layers are locked until this is dropped.
#[derive(Debug)]
pub(crate) struct HomeKeep {
    home: OwnedFd,
    items: Vec<HomeKeepItem>,
    left: Vec<LeftHomeFile>,
    _locks: Vec<OwnedFd>,
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
        let patterns = patterns.iter().map(|pattern| parse_pattern(pattern)).collect::<Result<Vec<_>, _>>()?;
        let home = open_home(home)?;
        let (mut uppers, mut locks) = (Vec::new(), Vec::new());
        for (directory, lock) in idle_homes(&store.open(HOMES)?, &workspace_id(mount), profile)? {
            let upper = open_private_dir(&directory, UPPER).map_err(errno_store_error)?;
            uppers.push(UpperLayer::new(upper));
            locks.push(lock);
        }
        let mut keep = Self { home, items: Vec::new(), left: Vec::new(), _locks: locks };
        for upper in &uppers {
            let mut search = HomeSearch { upper, keep: &mut keep, entries: MOST_ENTRIES, cx };
            patterns.iter().try_for_each(|pattern| search.find(&[], pattern))?;
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

    /// Compares a file of the layer with the person's.
    fn consider(&mut self, path: &[u8], file: OwnedFd, size: u64, cx: &CallContext<'_>) -> Result<(), ToolError> {
        let fail = |errno| errno_error(errno, &shown_path(path));
        let (above, name) = split(path);
        let known = match open_beneath(self.home.as_fd(), above, DIRECTORY) {
            Err(Errno::NOENT) => None,
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
                self.leave(path, "a directory above it is a link or another mount in your home directory");
                return Ok(());
            }
            Err(errno) => return Err(fail(errno)),
            Ok(directory) => match stat(directory.as_fd(), name).map_err(fail)? {
                None => None,
                Some(found) if !is_plain_file(&found) => {
                    self.leave(path, "it is a link, has another owner or has several names in your home directory");
                    return Ok(());
                }
                Some(found) => Some((directory, found)),
            },
        };
        let Some((directory, found)) = known else {
            self.items.push(HomeKeepItem { path: path.to_vec(), file, size, known: None });
            return Ok(());
        };
        let Ok(theirs) = openat(&directory, name, OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN, Mode::empty()) else {
            self.leave(path, "it cannot be read in your home directory");
            return Ok(());
        };
        if !is_same_start(&theirs, &file, found.size.min(size), cx).map_err(fail)? {
            self.leave(path, CHANGED);
        } else if found.size < size {
            self.items.push(HomeKeepItem { path: path.to_vec(), file, size, known: Some(found) });
        }
        Ok(())
    }
}

const CHANGED: &str = "your home directory has another version of it";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(SAFE_OPEN);

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
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | SAFE_OPEN;
        let file = openat(directory, OsStr::from_bytes(name), flags, Mode::empty())?;
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

/// A search in one home layer.
struct HomeSearch<'a> {
    upper: &'a UpperLayer,
    keep: &'a mut HomeKeep,
    entries: u64,
    cx: &'a CallContext<'a>,
}

impl HomeSearch<'_> {
    /// Takes the files that the rest of a pattern names in a directory. As deep as the pattern is long.
    fn find(&mut self, above: &[u8], pattern: &[&str]) -> Result<(), ToolError> {
        let [part, rest @ ..] = pattern else { return Ok(()) };
        self.cx.check()?;
        match self.upper.open_directory(above) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            opened => drop(opened.map_err(|errno| errno_error(errno, &shown_path(above)))?),
        }
        let listing = self.upper.list(above, self.entries, &shown_path(above), self.cx)?;
        self.entries = self.entries.saturating_sub(listing.entries.len() as u64);
        for entry in listing.entries.iter().filter(|entry| matches_part(part, &entry.name)) {
            let path = join(above, &entry.name);
            match entry.kind {
                UpperEntryKind::Directory if !rest.is_empty() => self.find(&path, rest)?,
                UpperEntryKind::File if rest.is_empty() => self.take((listing.fd.as_fd(), entry), &path)?,
                // It hides what the agent started with, which is not the person's file.
                UpperEntryKind::Whiteout => {}
                _ => self.keep.leave(&path, "it is not a plain file"),
            }
        }
        Ok(())
    }

    fn take(&mut self, (directory, entry): (BorrowedFd<'_>, &UpperEntry), path: &[u8]) -> Result<(), ToolError> {
        let size = entry.stat.size;
        let total: u64 = self.keep.items.iter().map(|item| item.size).sum();
        if size > LONGEST_FILE {
            self.keep.leave(path, "it is too long");
        } else if self.keep.items.len() >= MOST_FILES || total.saturating_add(size) > MOST_BYTES {
            self.keep.leave(path, "there are too many files");
        } else if self.keep.items.iter().any(|item| item.path == path) {
            self.keep.leave(path, "another run wrote it too");
        } else if size > 0 {
            let file = open_file(directory, &entry.name, &entry.stat, &shown_path(path))?.fd;
            self.keep.consider(path, file, size, self.cx)?;
        }
        Ok(())
    }
}

/// The parts of a pattern: plain names, in which a star stands for any text without a slash.
fn parse_pattern(pattern: &str) -> Result<Vec<&str>, ToolError> {
    let parts: Vec<&str> = pattern.split('/').collect();
    let is_plain = |part: &&str| !matches!(*part, "" | "." | ".." | "**") && !part.contains('\0');
    if parts.len() <= MOST_PARTS && parts.iter().all(is_plain) {
        return Ok(parts);
    }
    Err(ToolError::invalid("files", "must be paths below the home directory, such as `.agent/sessions/*.jsonl`"))
}

/// Whether a name is meant. A star does not stand for a dot at the beginning.
fn matches_part(pattern: &str, name: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    if name.starts_with('.') != pattern.starts_with('.') || name.chars().any(char::is_control) {
        return false;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            let Some((_, behind)) = rest.split_once(middle) else { return false };
            rest = behind;
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

/// The person's home directory. Refused if it is another user's.
fn open_home(path: &Path) -> Result<OwnedFd, ToolError> {
    let unusable = |_| ToolError::new(ErrorKind::Unavailable, "your home directory cannot be opened");
    let home = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN, Mode::empty()).map_err(unusable)?;
    let found = FileStat::from_stat(&fstat(&home).map_err(unusable)?);
    if found.owner.0 == geteuid().as_raw() {
        return Ok(home);
    }
    Err(ToolError::new(
        ErrorKind::Unavailable,
        "your home directory belongs to another user; nothing was written to it",
    ))
}

/// A directory below the home directory, made with those above it, through no link and on no other mount.
fn make_home_directories(home: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
    let mut directory = open_beneath(home.as_fd(), &[], DIRECTORY)?;
    for end in ends.filter(|end| *end > 0) {
        let path = &path[..end];
        directory = match open_beneath(home.as_fd(), path, DIRECTORY) {
            Err(Errno::NOENT) => open_private_dir(&directory, split(path).1)?,
            opened => opened?,
        };
    }
    Ok(directory)
}

/// A file that only this user has, by one name.
fn is_plain_file(found: &FileStat) -> bool {
    found.kind == FileKind::File && found.links == 1 && found.owner.0 == geteuid().as_raw()
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

fn shown_path(path: &[u8]) -> String {
    format!("~/{}", escape(path))
}

fn home_resource(path: &str) -> PolicyResource {
    PolicyResource {
        mount: Arc::from(HOME_MOUNT),
        requested_path: path.to_owned(),
        display_path: format!("~/{path}"),
        ..PolicyResource::default()
    }
}

#[cfg(test)]
mod tests {
    use super::{matches_part, parse_pattern};

    #[test]
    fn a_star_stands_for_any_text_within_a_name() {
        for (pattern, name, expected) in [
            ("*.jsonl", "a.jsonl", true),
            ("*.jsonl", ".a.jsonl", false),
            ("*.jsonl", "a.jsonl.sh", false),
            ("*", "a", true),
            ("*", ".claude.json", false),
            ("rollout-*.jsonl", "rollout-1.jsonl", true),
            ("a*a", "a", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXc", false),
            (".codex", ".codex", true),
            ("plain", "plain2", false),
            ("*.jsonl", "a\n.jsonl", false),
        ] {
            assert_eq!(matches_part(pattern, name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_stays_below_the_home_directory() {
        for pattern in ["", "/etc/x", "../x", "a/../x", "a//b", "a/**", "./a", "a/"] {
            assert!(parse_pattern(pattern).is_err(), "{pattern}");
        }
        assert_eq!(parse_pattern(".a/*/b.jsonl").unwrap(), [".a", "*", "b.jsonl"]);
    }
}
