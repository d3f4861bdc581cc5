//! Home files: the files of an agent's home layer that patterns name, and those of the person beside them.
//!
//! The layer is untrusted: its links, pipes and directories are left, and nothing is followed out of either directory.
//!
//! Not here: what becomes of a file (`home_keep.rs`, `home_review.rs`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ringfence_kernel::{CallContext, ErrorKind, HOME_MOUNT, PolicyResource, ToolError};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::mount::Mount;
use crate::overlay::layer_home::{HOMES, START, idle_homes};
use crate::overlay::layer_store::{LayerStore, workspace_id};
use crate::overlay::store_directory::{StoreLock, UPPER, errno_store_error};
use crate::overlay::upper::{UpperEntryKind, UpperLayer, open_beneath, open_file};
use crate::path::name::escape;
use crate::path::relative::{join, split};
use crate::read::content::read_up_to;
use crate::root::stat;
use crate::sys::errno::errno_error;
use crate::sys::own_files::{SAFE_OPEN, open_private_dir};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{fstat, openat};

/// Most entries of a home layer that one search looks at.
const MOST_ENTRIES: u64 = 100_000;

/// Parts of a pattern, and so the depth of a file.
const MOST_PARTS: usize = 16;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(SAFE_OPEN);

/// Home layers of a profile in a workspace in which no program runs. They are locked until this is dropped.
#[derive(Debug)]
pub(super) struct HomeLayers {
    layers: Vec<HomeLayer>,
}

/// One of them.
#[derive(Debug)]
struct HomeLayer {
    /// It has the directory that the agent started with.
    directory: OwnedFd,
    upper: UpperLayer,
    _lock: StoreLock,
}

/// What a pattern names in a home layer.
#[derive(Debug)]
pub(super) struct FoundHomeFile {
    /// The layer that has it.
    layer: usize,
    pub(super) path: Vec<u8>,
    /// Nothing where it is not a plain file.
    pub(super) stat: Option<FileStat>,
}

impl HomeLayers {
    pub(super) fn open(store: &LayerStore, mount: &Mount, profile: &str) -> Result<Self, ToolError> {
        let mut layers = Vec::new();
        for (directory, lock) in idle_homes(&store.open(HOMES)?, &workspace_id(mount), profile)? {
            let upper = UpperLayer::new(open_private_dir(&directory, UPPER).map_err(errno_store_error)?);
            layers.push(HomeLayer { directory, upper, _lock: lock });
        }
        Ok(Self { layers })
    }

    /// What the patterns name, layer by layer. One search looks at a limited number of entries.
    pub(super) fn find(
        &self,
        patterns: &[HomePattern<'_>],
        cx: &CallContext<'_>,
    ) -> Result<Vec<FoundHomeFile>, ToolError> {
        let mut files = Vec::new();
        for (layer, HomeLayer { upper, .. }) in self.layers.iter().enumerate() {
            let mut search = HomeSearch { layer, upper, files: &mut files, entries: MOST_ENTRIES, cx };
            patterns.iter().try_for_each(|pattern| search.find(&[], &pattern.0))?;
        }
        Ok(files)
    }

    /// Opens a file with its stat, if it is still what was found.
    pub(super) fn open_file(&self, found: &FoundHomeFile, stat: &FileStat) -> Result<OwnedFd, ToolError> {
        let (above, name) = split(&found.path);
        let shown = shown_path(&found.path);
        let fail = |errno| errno_error(errno, &shown);
        let HomeLayer { upper, .. } = self.layers.get(found.layer).ok_or(Errno::NOENT).map_err(fail)?;
        let directory = upper.open_directory(above).map_err(fail)?;
        Ok(open_file(directory.as_fd(), name, stat, &shown)?.fd)
    }

    /// What the agent started with in its place: a file of ours. Nothing where it is missing or longer.
    pub(super) fn start_file(
        &self,
        found: &FoundHomeFile,
        longest: u64,
        cx: &CallContext<'_>,
    ) -> Result<Option<Vec<u8>>, ToolError> {
        let fail = |errno| errno_error(errno, &shown_path(&found.path));
        let HomeLayer { directory, .. } = self.layers.get(found.layer).ok_or(Errno::NOENT).map_err(fail)?;
        let start = open_private_dir(directory, START).map_err(errno_store_error)?;
        match open_beneath(start.as_fd(), &found.path, OFlags::RDONLY | OFlags::NOFOLLOW | SAFE_OPEN) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(fail(errno)),
            Ok(file) => {
                let text = read_up_to(&file, longest + 1, cx).map_err(fail)?;
                Ok(Some(text).filter(|text| text.len() as u64 <= longest))
            }
        }
    }
}

/// A search in one home layer.
struct HomeSearch<'a> {
    layer: usize,
    upper: &'a UpperLayer,
    files: &'a mut Vec<FoundHomeFile>,
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
            let stat = match entry.kind {
                UpperEntryKind::Directory if !rest.is_empty() => {
                    self.find(&path, rest)?;
                    continue;
                }
                // It hides what the agent started with, which is not the person's file.
                UpperEntryKind::Whiteout => continue,
                UpperEntryKind::File if rest.is_empty() => Some(entry.stat),
                _ => None,
            };
            self.files.push(FoundHomeFile { layer: self.layer, path, stat });
        }
        Ok(())
    }
}

/// The person's file beside one of the layer.
#[derive(Debug)]
pub(super) enum PersonFile {
    Missing,
    /// One that only this user has, by one name.
    Plain {
        directory: OwnedFd,
        stat: FileStat,
    },
    /// It stays as it is.
    Unusable(&'static str),
}

impl PersonFile {
    pub(super) fn find(home: &OwnedFd, path: &[u8]) -> Result<Self, ToolError> {
        let fail = |errno| errno_error(errno, &shown_path(path));
        let (above, name) = split(path);
        let directory = match open_beneath(home.as_fd(), above, DIRECTORY) {
            Err(Errno::NOENT) => return Ok(Self::Missing),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
                return Ok(Self::Unusable("a directory above it is a link or another mount in your home directory"));
            }
            opened => opened.map_err(fail)?,
        };
        Ok(match stat(directory.as_fd(), name).map_err(fail)? {
            None => Self::Missing,
            Some(found) if is_plain_file(&found) => Self::Plain { directory, stat: found },
            Some(_) => Self::Unusable("it is a link, has another owner or has several names in your home directory"),
        })
    }
}

/// Opens a person's file in its directory, and nothing that a link leads to.
pub(super) fn open_person_file(directory: BorrowedFd<'_>, name: &[u8], access: OFlags) -> Result<OwnedFd, Errno> {
    openat(directory, name, access | OFlags::NOFOLLOW | SAFE_OPEN, Mode::empty())
}

/// Parts of a path below the home directory: plain names, in which a star stands for any text without a slash.
#[derive(Debug)]
pub(super) struct HomePattern<'a>(Vec<&'a str>);

impl<'a> HomePattern<'a> {
    pub(super) fn parse(pattern: &'a str) -> Result<Self, ToolError> {
        let parts: Vec<&str> = pattern.split('/').collect();
        let is_plain = |part: &&str| !matches!(*part, "" | "." | ".." | "**") && !part.contains('\0');
        if parts.len() <= MOST_PARTS && parts.iter().all(is_plain) {
            return Ok(Self(parts));
        }
        Err(ToolError::invalid("files", "must be paths below the home directory, such as `.agent/sessions/*.jsonl`"))
    }
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
pub(super) fn open_home(path: &Path) -> Result<OwnedFd, ToolError> {
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
pub(super) fn make_home_directories(home: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
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
pub(super) fn is_plain_file(found: &FileStat) -> bool {
    found.kind == FileKind::File && found.links == 1 && found.owner.0 == geteuid().as_raw()
}

pub(super) fn shown_path(path: &[u8]) -> String {
    format!("~/{}", escape(path))
}

pub(super) fn home_resource(path: &str) -> PolicyResource {
    PolicyResource {
        mount: Arc::from(HOME_MOUNT),
        requested_path: path.to_owned(),
        display_path: format!("~/{path}"),
        ..PolicyResource::default()
    }
}

#[cfg(test)]
mod tests {
    use super::{HomePattern, matches_part};

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
            assert!(HomePattern::parse(pattern).is_err(), "{pattern}");
        }
        assert_eq!(HomePattern::parse(".a/*/b.jsonl").unwrap().0, [".a", "*", "b.jsonl"]);
    }
}
