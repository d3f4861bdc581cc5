//! Git objects by name: commits, trees, tags and blobs, and differences between trees.
//!
//! Every object that is read has the contents that its name stands for, or is an error: then it does not matter which of two
//! copies git would take.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::ZlibDecoder;
use ringfence_kernel::settings_through_link;
use sha1::{Digest as _, Sha1};

use crate::git::pack::GitPack;
use crate::git::{GitFile, GitOid, GitReadBudget, GitReadError, RepositoryFiles, hex, parse_oid};

/// An object that is larger is not read: trees and commits are small.
pub(super) const MOST_OBJECT_BYTES: u64 = 64 << 20;

/// Tags lead to tags no further than this.
const MOST_TAGS: usize = 5;

/// Deepest directory of a tree that is read.
const MAX_TREE_DEPTH: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GitObjectKind {
    Commit,
    Tree,
    Blob,
    Tag,
}

impl GitObjectKind {
    const ALL: [Self; 4] = [Self::Commit, Self::Tree, Self::Blob, Self::Tag];

    const fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }
}

/// An object, as it is.
#[derive(Clone, Debug)]
pub(super) struct GitObject {
    pub(super) kind: GitObjectKind,
    pub(super) data: Vec<u8>,
}

impl GitObject {
    pub(super) fn oid(&self) -> GitOid {
        oid_of(self.kind.name(), &self.data)
    }
}

pub(super) fn oid_of(kind: &str, data: &[u8]) -> GitOid {
    let mut hasher = Sha1::new();
    hasher.update(format!("{kind} {}\0", data.len()));
    hasher.update(data);
    hasher.finalize().into()
}

/// The names that a file's contents may have as an object: as they are and, where git may have converted the ends of lines
/// on their way into the worktree, with those of the repository.
pub(crate) fn blob_names(contents: &[u8]) -> Vec<GitOid> {
    let mut names = vec![oid_of("blob", contents)];
    if contents.windows(2).any(|pair| pair == b"\r\n") {
        let mut converted = Vec::with_capacity(contents.len());
        for (at, byte) in contents.iter().enumerate() {
            if !(*byte == b'\r' && contents.get(at + 1) == Some(&b'\n')) {
                converted.push(*byte);
            }
        }
        names.push(oid_of("blob", &converted));
    }
    names
}

/// The objects of a repository.
pub(crate) struct GitObjectStore<'a> {
    files: &'a dyn RepositoryFiles,
    budget: &'a GitReadBudget<'a>,
    packs: RefCell<Option<Vec<GitPack>>>,
    /// Packs that were checked object by object, by name.
    checked_packs: RefCell<BTreeMap<String, bool>>,
}

/// A path of which two trees have not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GitTreeDifference {
    pub(crate) path: Vec<u8>,
    /// The object in the new tree.
    pub(crate) oid: Option<GitOid>,
}

/// The name of an empty file: e69de29bb2d1d6434b8b29ae775ad8c2e48c5391.
pub(crate) const EMPTY_BLOB: GitOid = [
    0xe6, 0x9d, 0xe2, 0x9b, 0xb2, 0xd1, 0xd6, 0x43, 0x4b, 0x8b, 0x29, 0xae, 0x77, 0x5a, 0xd8, 0xc2, 0xe4, 0x8c, 0x53,
    0x91,
];

/// An entry of a tree.
type GitTreeEntry = (u32, GitOid);

const DIRECTORY_MODE: u32 = 0o040_000;
pub(crate) const LINK_MODE: u32 = 0o120_000;

impl<'a> GitObjectStore<'a> {
    /// Objects that lie in another repository are not followed.
    pub(crate) fn open(files: &'a dyn RepositoryFiles, budget: &'a GitReadBudget<'a>) -> Result<Self, GitReadError> {
        for elsewhere in [b"objects/info/alternates".as_slice(), b"commondir"] {
            if files.open(elsewhere)?.is_some() {
                return Err(GitReadError("unsupported hash algorithm"));
            }
        }
        Ok(Self { files, budget, packs: RefCell::default(), checked_packs: RefCell::default() })
    }

    pub(super) fn read(&self, oid: &GitOid) -> Result<GitObject, GitReadError> {
        let object = self.find(oid, 0)?.ok_or(GitReadError("an object is missing"))?;
        if object.oid() == *oid { Ok(object) } else { Err(GitReadError("an object does not match its name")) }
    }

    /// Whether there is an object of this name, whatever is in it.
    pub(crate) fn contains(&self, oid: &GitOid) -> Result<bool, GitReadError> {
        if self.open_loose(oid)?.is_some() {
            return Ok(true);
        }
        self.open_packs()?;
        let packs = self.packs.borrow();
        for pack in packs.iter().flatten() {
            if pack.find(oid, self.budget)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn find(&self, oid: &GitOid, depth: usize) -> Result<Option<GitObject>, GitReadError> {
        self.budget.spend_object()?;
        if let Some(object) = self.read_loose(oid)? {
            return Ok(Some(object));
        }
        self.open_packs()?;
        let packs = self.packs.borrow();
        for pack in packs.iter().flatten() {
            if let Some(offset) = pack.find(oid, self.budget)? {
                return pack.read(offset, self, self.budget, depth).map(Some);
            }
        }
        Ok(None)
    }

    fn open_packs(&self) -> Result<(), GitReadError> {
        if self.packs.borrow().is_none() {
            let packs = GitPack::open_all(self.files, self.budget)?;
            *self.packs.borrow_mut() = Some(packs);
        }
        Ok(())
    }

    fn open_loose(&self, oid: &GitOid) -> Result<Option<GitFile>, GitReadError> {
        let name = hex(oid);
        let (directory, file) = name.split_at(2);
        self.files.open(format!("objects/{directory}/{file}").as_bytes())
    }

    fn read_loose(&self, oid: &GitOid) -> Result<Option<GitObject>, GitReadError> {
        let Some(file) = self.open_loose(oid)? else { return Ok(None) };
        inflate_loose(&file.read_whole(self.budget)?, self.budget).map(Some)
    }

    /// Whether a new file among the objects holds nothing but what its name says. A pack is checked object by object.
    pub(crate) fn is_intact(&self, path: &[u8]) -> Result<bool, GitReadError> {
        let text = std::str::from_utf8(path).map_err(|_| GitReadError("an unexpected file among the objects"))?;
        if let Some(name) = text.strip_prefix("objects/pack/") {
            let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
            if let Some(checked) = self.checked_packs.borrow().get(stem) {
                return Ok(*checked);
            }
            let pack = GitPack::open(self.files, stem, self.budget)?;
            let is_honest = pack.map_or(Ok(false), |pack| pack.is_intact(self, self.budget))?;
            self.checked_packs.borrow_mut().insert(stem.to_owned(), is_honest);
            return Ok(is_honest);
        }
        let Some((directory, file)) = text.strip_prefix("objects/").and_then(|name| name.split_once('/')) else {
            return Ok(false);
        };
        let Some(oid) = parse_oid(format!("{directory}{file}").as_bytes()) else { return Ok(false) };
        self.budget.spend_object()?;
        Ok(self.read_loose(&oid)?.is_some_and(|object| object.oid() == oid))
    }

    /// The tree that a commit, a tag of one, or a tree stands for.
    pub(crate) fn tree_of(&self, oid: &GitOid) -> Result<GitOid, GitReadError> {
        let mut oid = *oid;
        for _ in 0..MOST_TAGS {
            let object = self.read(&oid)?;
            match object.kind {
                GitObjectKind::Tree => return Ok(oid),
                GitObjectKind::Commit => return header(&object.data, b"tree "),
                GitObjectKind::Tag => oid = header(&object.data, b"object ")?,
                // A tag of a file leads to no tree.
                GitObjectKind::Blob => return Err(GitReadError("a reference does not lead to a tree")),
            }
        }
        Err(GitReadError("a tag chain is too long"))
    }

    /// The parents of a commit, in their order; none of anything else.
    pub(crate) fn parents_of(&self, oid: &GitOid) -> Result<Vec<GitOid>, GitReadError> {
        let object = self.read(oid)?;
        if object.kind != GitObjectKind::Commit {
            return Ok(Vec::new());
        }
        let lines = object.data.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
        let parents = lines.filter_map(|line| line.strip_prefix(b"parent "));
        parents.map(|text| parse_oid(text).ok_or(GitReadError("a commit cannot be read"))).collect()
    }

    /// Every path that is in a tree and not the same in any of the old ones, or in the first of these and not in it.
    pub(crate) fn differences(
        &self,
        new: Option<GitOid>,
        old: &[GitOid],
    ) -> Result<Vec<GitTreeDifference>, GitReadError> {
        let mut found = Vec::new();
        self.compare(new, old, &mut Vec::new(), 0, &mut found)?;
        Ok(found)
    }

    fn compare(
        &self,
        new: Option<GitOid>,
        old: &[GitOid],
        path: &mut Vec<u8>,
        depth: usize,
        found: &mut Vec<GitTreeDifference>,
    ) -> Result<(), GitReadError> {
        if depth > MAX_TREE_DEPTH {
            return Err(GitReadError("a tree is too deep"));
        }
        if new.is_some_and(|new| old.contains(&new)) {
            return Ok(());
        }
        let entries = new.map(|new| self.entries(&new)).transpose()?.unwrap_or_default();
        let before = old.iter().map(|old| self.entries(old)).collect::<Result<Vec<_>, _>>()?;
        let gone = before.first().into_iter().flatten().filter(|(name, _)| !entries.contains_key(*name));
        let names = entries.iter().map(|(name, entry)| (name, Some(*entry))).chain(gone.map(|(name, _)| (name, None)));
        for (name, entry) in names {
            let olds: Vec<GitTreeEntry> = before.iter().filter_map(|entries| entries.get(name).copied()).collect();
            if entry.is_some_and(|entry| olds.contains(&entry)) {
                continue;
            }
            let length = path.len();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            let is_tree = |(mode, _): &GitTreeEntry| *mode == DIRECTORY_MODE;
            let trees: Vec<GitOid> = olds.iter().filter(|entry| is_tree(entry)).map(|(_, oid)| *oid).collect();
            let new_tree = entry.filter(is_tree).map(|(_, oid)| oid);
            // The path itself counts, a directory that comes or goes too: a name is protected whatever stands there.
            let oid = entry.map(|(_, oid)| oid);
            found.push(GitTreeDifference { path: path.clone(), oid });
            if entry.is_some_and(|(mode, _)| mode == LINK_MODE) {
                found.extend(through_link(path).map(|path| GitTreeDifference { path, oid }));
            }
            if new_tree.is_some() || !trees.is_empty() {
                self.compare(new_tree, &trees, path, depth + 1, found)?;
            }
            path.truncate(length);
        }
        Ok(())
    }

    fn entries(&self, tree: &GitOid) -> Result<BTreeMap<Vec<u8>, GitTreeEntry>, GitReadError> {
        let object = self.read(tree)?;
        match object.kind {
            GitObjectKind::Tree => parse_tree(&object.data),
            _ => Err(GitReadError("an object is not a tree")),
        }
    }
}

/// The objects that an object names which is in a file of its own: those that go with it.
pub(crate) fn objects_named_in(loose: &GitFile, budget: &GitReadBudget<'_>) -> Result<Vec<GitOid>, GitReadError> {
    let object = inflate_loose(&loose.read_whole(budget)?, budget)?;
    let named = |key: &'static [u8]| {
        let lines = object.data.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
        lines.filter_map(move |line| line.strip_prefix(key)).filter_map(parse_oid)
    };
    Ok(match object.kind {
        GitObjectKind::Blob => Vec::new(),
        GitObjectKind::Tree => parse_tree(&object.data)?.into_values().map(|(_, oid)| oid).collect(),
        GitObjectKind::Commit => named(b"tree ").chain(named(b"parent ")).collect(),
        GitObjectKind::Tag => named(b"object ").collect(),
    })
}

fn parse_tree(data: &[u8]) -> Result<BTreeMap<Vec<u8>, GitTreeEntry>, GitReadError> {
    let broken = GitReadError("a tree cannot be read");
    let mut entries = BTreeMap::new();
    let mut rest = data;
    while !rest.is_empty() {
        let space = rest.iter().position(|byte| *byte == b' ').ok_or(broken)?;
        let (mode, after) = (rest.get(..space).ok_or(broken)?, rest.get(space + 1..).ok_or(broken)?);
        let mode = std::str::from_utf8(mode).ok().and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let end = after.iter().position(|byte| *byte == 0).ok_or(broken)?;
        let name = after.get(..end).ok_or(broken)?.to_vec();
        let oid = after.get(end + 1..end + 21).and_then(|oid| GitOid::try_from(oid).ok()).ok_or(broken)?;
        rest = after.get(end + 21..).ok_or(broken)?;
        // Which of two equal names git takes is not defined.
        if name.is_empty() || name.contains(&b'/') || entries.insert(name, (mode.ok_or(broken)?, oid)).is_some() {
            return Err(broken);
        }
    }
    Ok(entries)
}

/// The path that a symbolic link exposes to programs that follow it, whatever its target.
pub(crate) fn through_link(path: &[u8]) -> Option<Vec<u8>> {
    let rest = settings_through_link(&String::from_utf8_lossy(path))?;
    Some([path, b"/", rest.as_bytes()].concat())
}

fn header(data: &[u8], key: &[u8]) -> Result<GitOid, GitReadError> {
    let line = data.split(|byte| *byte == b'\n').next().and_then(|line| line.strip_prefix(key));
    line.and_then(parse_oid).ok_or(GitReadError("a commit or tag cannot be read"))
}

fn inflate_loose(bytes: &[u8], budget: &GitReadBudget<'_>) -> Result<GitObject, GitReadError> {
    let broken = GitReadError("an object cannot be read");
    let mut data = Vec::new();
    let read = ZlibDecoder::new(bytes).take(MOST_OBJECT_BYTES + 64).read_to_end(&mut data).map_err(|_| broken)?;
    budget.spend(read as u64)?;
    let end = data.iter().position(|byte| *byte == 0).ok_or(broken)?;
    let head = data.get(..end).and_then(|head| std::str::from_utf8(head).ok()).ok_or(broken)?;
    let (kind, size) = head.split_once(' ').ok_or(broken)?;
    let kind = GitObjectKind::ALL.into_iter().find(|one| one.name() == kind).ok_or(broken)?;
    let size = size.parse::<usize>();
    let contents = data.split_off(end + 1);
    if size == Ok(contents.len()) { Ok(GitObject { kind, data: contents }) } else { Err(broken) }
}
