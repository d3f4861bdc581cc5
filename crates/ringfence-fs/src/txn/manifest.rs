//! Directory manifests: the contents of a directory to delete or move, for the approver and the policy.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_kernel::{
    Assurance, CallContext, Decision, ErrorKind, PolicyAction, PolicyResource, PreviewBody, PreviewEntry, PreviewList,
    ResourceAccess, Sensitivity, ToolError, entry_sensitivity,
};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::mount::Mount;
use crate::mount::repository::RepositoryEntrySet;
use crate::path::name::escape;
use crate::read::digest::{Digest, Sha256Hasher};
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep};
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::{accessat, statat};

/// Most sensitive entries of each kind that are named; one is enough to require approval.
const MOST_SENSITIVE: usize = 100;

/// Everything below a directory.
#[derive(Debug)]
pub(crate) struct TreeManifest {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// The first entries, by their paths from the directory, as many as a reply lists.
    pub(crate) listed: Vec<PreviewEntry>,
    /// A directory that has entries and lets none of them go; empty for the directory itself.
    pub(crate) locked_directory: Option<String>,
    /// Paths that the policy wants to know about, and what is known of each whatever it is called: some of every kind.
    pub(crate) sensitive: Vec<(String, Sensitivity)>,
    /// Another one means that something was added, removed or changed.
    pub(crate) digest: Digest,
    /// When the last entry was changed in any way, in nanoseconds since 1970.
    pub(crate) newest: i128,
}

impl TreeManifest {
    /// For the person who is asked.
    pub(crate) fn to_body(&self) -> PreviewBody {
        let more = self.entries.saturating_sub(self.listed.len() as u64);
        PreviewBody::List(PreviewList { entries: self.listed.clone(), more })
    }
}

/// Reasons for which an entry is reported to the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct EntryReportReasons {
    /// Sensitivity by its names: the current one, and the one after a move.
    names: [Sensitivity; 2],
    /// The policy's decision about it, where that is stricter than the one about the whole.
    stricter: Option<(Decision, Assurance)>,
}

/// A directory to which something is done, with all that is in it.
#[derive(Debug)]
pub(crate) struct RecursiveAccess {
    access: ResourceAccess,
    /// The policy's decision about the directory itself.
    decision: (Decision, Assurance),
}

impl RecursiveAccess {
    pub(crate) fn new(action: PolicyAction, place: &PolicyResource, cx: &CallContext<'_>) -> Self {
        let access = ResourceAccess { action, resource: place.clone() };
        let decision = cx.evaluate(&access).strictness();
        Self { access, decision }
    }
}

impl EntryReportReasons {
    /// The properties of `path` below each of these.
    pub(crate) fn of(wholes: &[RecursiveAccess], path: &str, cx: &CallContext<'_>) -> Self {
        let mut class = Self::default();
        for (RecursiveAccess { access: ResourceAccess { action, resource: place }, decision: of_whole }, name) in
            wholes.iter().zip(&mut class.names)
        {
            *name = sensitive_below(place, path);
            let said = cx.evaluate(&ResourceAccess { action: *action, resource: place.join(path) }).strictness();
            class.stricter = class.stricter.max(Some(said).filter(|said| said > of_whole));
        }
        class
    }
}

/// Looks at everything below `start`. Something mounted in there is an error: it can neither go nor move along.
pub(crate) fn scan_tree(
    mount: &Mount,
    start: OwnedFd,
    shown: &str,
    classify: impl Fn(&str) -> EntryReportReasons,
    cx: &CallContext<'_>,
) -> Result<TreeManifest, ToolError> {
    let mut manifest = TreeManifest {
        entries: 0,
        bytes: 0,
        listed: Vec::new(),
        locked_directory: None,
        sensitive: Vec::new(),
        digest: Digest::of(b""),
        newest: 0,
    };
    let mut hasher = Sha256Hasher::default();
    let mut left = cx.limits.list_bytes;
    let mut kinds: HashMap<EntryReportReasons, usize> = HashMap::new();
    // For each directory from the start to the current one, whether it lets nothing go, and what it has of a repository.
    let mut closed = vec![denies_removal(start.as_fd(), c".").map_err(|errno| errno_error(errno, shown))?];
    let mut pieces = vec![RepositoryEntrySet::default()];
    // Files that are being staged there are seen too: a directory is not moved from under them.
    let mut walk = TreeWalk::with_temp_visibility(TempVisibility::Visible, mount, start, shown, cx)?;
    while let Some(step) = walk.next()? {
        let entry = match step {
            WalkStep::Entry(entry) => entry,
            WalkStep::Leave(_) => {
                closed.pop();
                pieces.pop();
                continue;
            }
        };
        let Some(stamp) = walk.stat(&entry)? else { continue };
        let path = walk.path_of(&entry.name);
        // The time of the last change of any kind cannot be set back.
        let FileStat { id, kind, size, modified, changed, .. } = stamp;
        manifest.newest = manifest.newest.max(changed);
        hasher.update(format!("{}\0{kind:?}\0{size}\0{modified}\0{changed}\0", id.inode).as_bytes());
        hasher.update(&path);
        if manifest.locked_directory.is_none() && closed.last() == Some(&true) {
            let above = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &path[..slash]);
            manifest.locked_directory = Some(escape(above));
        }
        let path = escape(&path);
        manifest.entries += 1;
        // The size of a directory itself depends on the file system and is not reported.
        let size = if stamp.kind == FileKind::Directory { 0 } else { stamp.size };
        manifest.bytes = manifest.bytes.saturating_add(size);
        let mut class = classify(&path);
        let mut known = mount.classify(class.names[0], FileRef { fd: walk.directory()?, name: &entry.name }, &stamp);
        known.protected |= pieces.last_mut().is_some_and(|pieces| pieces.completed_by(&entry.name));
        class.names[0] = class.names[0].union(known);
        if class != EntryReportReasons::default() {
            let seen = kinds.entry(class).or_default();
            *seen += 1;
            if *seen <= MOST_SENSITIVE {
                manifest.sensitive.push((path.clone(), known));
            }
        }
        if (manifest.listed.len() as u64) < cx.limits.delete_names && path.len() as u64 <= left {
            left -= path.len() as u64;
            manifest.listed.push(PreviewEntry { path, size, kind: stamp.kind.name().into() });
        }
        if walk.is_directory(&entry)? {
            pieces.push(RepositoryEntrySet::default());
            closed.push(
                denies_removal(walk.directory()?, entry.name.as_slice()).map_err(|errno| errno_error(errno, shown))?,
            );
            walk.descend(&entry)?.map_err(|errno| match errno {
                Errno::XDEV => {
                    ToolError::new(ErrorKind::WrongType, format!("`{shown}` contains a mounted file system"))
                }
                other => errno_error(other, shown),
            })?;
        }
    }
    manifest.digest = hasher.finish();
    Ok(manifest)
}

/// Whether entries cannot be removed from a directory: by mode bits that hold for root too, or for this user.
fn denies_removal(parent: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<bool, Errno> {
    let mode = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
    if mode & 0o222 == 0 || mode & 0o111 == 0 {
        return Ok(true);
    }
    match accessat(parent, name, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(false),
        Err(Errno::ACCESS | Errno::ROFS) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Accesses to the sensitive entries below `place`.
pub(crate) fn accesses_below(
    place: &PolicyResource,
    paths: &[(String, Sensitivity)],
    action: PolicyAction,
) -> Vec<ResourceAccess> {
    let access = |(path, known): &(String, Sensitivity)| {
        let place = place.join(path);
        ResourceAccess { action, resource: PolicyResource { sensitivity: place.sensitivity.union(*known), ..place } }
    };
    paths.iter().map(access).collect()
}

/// Sensitivity of the name of an entry below `place`.
///
/// Only its last names are examined: the directories above it were entries themselves, and examining the whole path of
/// every entry would be slow in a deep tree.
fn sensitive_below(place: &PolicyResource, path: &str) -> Sensitivity {
    let mut found = Sensitivity::default();
    for directory in place.names() {
        let here = entry_sensitivity(&format!("{directory}/{path}"));
        found = found.union(here);
    }
    found
}
