//! Objects of a git repository that an undo would remove: nothing that stays may use them.
//!
//! Git stores an object once for all its users: a later commit of the same file, a branch that was merged, or the index may
//! need an object that a change made. A file of the workspace would be a conflict if it changed; an object never changes, so
//! its users are looked for here.
//!
//! Not here: what an undo does (`plan.rs`), and objects in packs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ringfence_kernel::CallContext;

use crate::git::{
    GitFile, GitIndex, GitOid, GitReadBudget, GitReadError, GitRefStore, RepositoryFiles, objects_named_in, parse_oid,
};
use crate::mount::Mount;
use crate::mount::repository_files::LowerRepositoryFiles;
use crate::path::name::escape;
use crate::path::relative::join;
use crate::sys::stat::FileStat;
use crate::sys::syscall::fstat;
use crate::undo::apply::{UndoConflict, UndoStep, UndoStepKind};

/// A new object whose file is longer is the contents of a file, which names no other object.
const LONGEST_NAMING_OBJECT: u64 = 16 << 20;

const OBJECTS: &[u8] = b"objects";

/// A conflict for each repository that still uses an object that these steps remove.
pub(super) fn used_object_conflicts(mount: &Mount, steps: &[UndoStep], cx: &CallContext<'_>) -> Vec<UndoConflict> {
    let goes = |step: &&UndoStep| step.kind == UndoStepKind::StoreImage;
    let mut roots: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    for step in steps.iter().filter(goes) {
        if let Some((root, below)) = split_repository(&step.path).filter(|(_, below)| below.len() > OBJECTS.len()) {
            roots.entry(root.to_vec()).or_default().push(below.to_vec());
        }
    }
    // Of a path that gets its old contents back, neither those nor these are users.
    let changes = |step: &&UndoStep| !matches!(step.kind, UndoStepKind::Chmod { .. });
    let changed = steps.iter().filter(changes).map(|step| step.path.as_slice()).collect::<BTreeSet<_>>();
    let conflict = |(root, removed): (Vec<u8>, Vec<Vec<u8>>)| {
        let lower = LowerRepositoryFiles { mount, root: &root };
        let files = RemainingRepositoryFiles { lower, changed: &changed };
        let found = match find_user(&files, &removed, cx) {
            Ok(user) => user?.to_owned(),
            Err(GitReadError(why)) => format!("a repository that cannot be read ({why})"),
        };
        let expected = "a repository in which nothing else uses the objects of this change".to_owned();
        Some(UndoConflict { path: escape(&root), expected, found })
    };
    roots.into_iter().filter_map(conflict).collect()
}

/// The repository that a path of objects is in, and the path below it.
fn split_repository(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.windows(b".git/objects".len()).position(|part| part == b".git/objects")?;
    let is_name = start == 0 || path.get(start - 1) == Some(&b'/');
    let (root, below) = path.split_at_checked(start + b".git".len()).filter(|_| is_name)?;
    Some((root, below.get(1..)?))
}

/// Describes something that uses one of the removed objects.
fn find_user(
    files: &RemainingRepositoryFiles<'_>,
    removed: &[Vec<u8>],
    cx: &CallContext<'_>,
) -> Result<Option<&'static str>, GitReadError> {
    let (mut objects, mut oldest) = (HashSet::new(), i128::MAX);
    let mut note = |path: &[u8]| -> Result<(), GitReadError> {
        let Some(oid) = oid_of_path(path) else { return Ok(()) };
        if let Some(file) = files.lower.open(path)? {
            oldest = oldest.min(changed_at(&file)?);
            objects.insert(oid);
        }
        Ok(())
    };
    for path in removed {
        note(path)?;
        // A directory that goes with everything in it.
        files.lower.names(path)?.iter().try_for_each(|name| note(&join(path, name)))?;
    }
    if objects.is_empty() {
        return Ok(None);
    }
    let budget = GitReadBudget::new(cx);
    if GitRefStore::open(files, &budget)?.values()?.iter().any(|oid| objects.contains(oid)) {
        return Ok(Some("a branch or tag that leads to one of its commits"));
    }
    if let Some(index) = files.open(b"index")? {
        let index = GitIndex::parse(&index.read_whole(&budget)?)?;
        if index.entries.values().any(|entry| objects.contains(&entry.oid)) {
            return Ok(Some("an index that has one of its files"));
        }
    }
    for directory in files.names(OBJECTS)?.iter().filter(|name| name.len() == 2) {
        let directory = join(OBJECTS, directory);
        for name in files.names(&directory)? {
            let path = join(&directory, &name);
            if oid_of_path(&path).is_none_or(|oid| objects.contains(&oid)) {
                continue;
            }
            let Some(file) = files.open(&path)? else { continue };
            budget.spend(0)?;
            let is_later = file.size <= LONGEST_NAMING_OBJECT && changed_at(&file)? >= oldest;
            if is_later && objects_named_in(&file, &budget)?.iter().any(|named| objects.contains(named)) {
                return Ok(Some("a later commit that has one of its objects"));
            }
        }
    }
    Ok(None)
}

fn oid_of_path(path: &[u8]) -> Option<GitOid> {
    let digits: Vec<u8> = path.strip_prefix(b"objects/")?.iter().copied().filter(|byte| *byte != b'/').collect();
    parse_oid(&digits)
}

/// When the file got its name.
fn changed_at(file: &GitFile) -> Result<i128, GitReadError> {
    let stat = fstat(&file.fd).map_err(|_| GitReadError("a file cannot be read"))?;
    Ok(FileStat::from_stat(&stat).changed)
}

/// A repository without the paths that an undo changes.
struct RemainingRepositoryFiles<'a> {
    lower: LowerRepositoryFiles<'a>,
    /// From the top of the workspace.
    changed: &'a BTreeSet<&'a [u8]>,
}

impl RemainingRepositoryFiles<'_> {
    fn is_changed(&self, path: &[u8]) -> bool {
        let full = join(self.lower.root, path);
        let ends = full.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([full.len()]).filter_map(|end| full.get(..end)).any(|above| self.changed.contains(above))
    }
}

impl RepositoryFiles for RemainingRepositoryFiles<'_> {
    fn open(&self, path: &[u8]) -> Result<Option<GitFile>, GitReadError> {
        if self.is_changed(path) { Ok(None) } else { self.lower.open(path) }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, GitReadError> {
        if self.is_changed(path) { Ok(Vec::new()) } else { self.lower.names(path) }
    }
}

#[cfg(test)]
mod tests {
    use super::split_repository;

    #[test]
    fn objects_belong_to_the_repository_above_them() {
        for (path, expected) in [
            (".git/objects/ab/cd", Some((".git", "objects/ab/cd"))),
            ("sub/.git/objects/ab", Some(("sub/.git", "objects/ab"))),
            ("a.git/objects/ab", None),
            (".git/refs/heads/x", None),
            ("objects/ab", None),
        ] {
            let expected = expected.map(|(root, below)| (root.as_bytes(), below.as_bytes()));
            assert_eq!(split_repository(path.as_bytes()), expected, "{path}");
        }
    }
}
