//! Git objects: commits, trees, tags and blobs by their names, and what differs between two trees.
//!
//! Every object that is read has the contents that its name stands for, or is an error: then it does not matter which of two
//! copies git would take.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::ZlibDecoder;
use ringfence_kernel::settings_through_link;
use sha1::{Digest as _, Sha1};

use super::pack::Pack;
use super::{Budget, HeldFile, Oid, RepositoryFiles, Unreadable, hex, parse_oid};

/// An object that is larger is not read: trees and commits are small.
pub(super) const MOST_OBJECT_BYTES: u64 = 64 << 20;

/// Tags lead to tags no further than this.
const MOST_TAGS: usize = 5;

/// Directories of a tree are no deeper than this.
const DEEPEST: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Commit,
    Tree,
    Blob,
    Tag,
}

impl ObjectKind {
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
    pub(super) kind: ObjectKind,
    pub(super) data: Vec<u8>,
}

impl GitObject {
    pub(super) fn oid(&self) -> Oid {
        oid_of(self.kind.name(), &self.data)
    }
}

pub(super) fn oid_of(kind: &str, data: &[u8]) -> Oid {
    let mut hasher = Sha1::new();
    hasher.update(format!("{kind} {}\0", data.len()));
    hasher.update(data);
    hasher.finalize().into()
}

/// The objects of a repository.
pub(crate) struct ObjectStore<'a> {
    files: &'a dyn RepositoryFiles,
    budget: &'a Budget<'a>,
    packs: RefCell<Option<Vec<Pack>>>,
    /// Packs that were checked object by object, by name.
    checked: RefCell<BTreeMap<String, bool>>,
}

/// A path of which two trees have not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeDifference {
    pub(crate) path: Vec<u8>,
    /// What the new tree has there.
    pub(crate) oid: Option<Oid>,
}

/// The name of an empty file: e69de29bb2d1d6434b8b29ae775ad8c2e48c5391.
pub(crate) const EMPTY_BLOB: Oid = [
    0xe6, 0x9d, 0xe2, 0x9b, 0xb2, 0xd1, 0xd6, 0x43, 0x4b, 0x8b, 0x29, 0xae, 0x77, 0x5a, 0xd8, 0xc2, 0xe4, 0x8c, 0x53,
    0x91,
];

/// An entry of a tree.
type TreeEntry = (u32, Oid);

const DIRECTORY: u32 = 0o040_000;
pub(crate) const LINK: u32 = 0o120_000;

impl<'a> ObjectStore<'a> {
    /// Objects that lie in another repository are not followed.
    pub(crate) fn open(files: &'a dyn RepositoryFiles, budget: &'a Budget<'a>) -> Result<Self, Unreadable> {
        for elsewhere in [b"objects/info/alternates".as_slice(), b"commondir"] {
            if files.open(elsewhere)?.is_some() {
                return Err(Unreadable("the repository uses another one"));
            }
        }
        Ok(Self { files, budget, packs: RefCell::default(), checked: RefCell::default() })
    }

    pub(super) fn read(&self, oid: &Oid) -> Result<GitObject, Unreadable> {
        let object = self.find(oid, 0)?.ok_or(Unreadable("an object is missing"))?;
        if object.oid() == *oid { Ok(object) } else { Err(Unreadable("an object is not what its name says")) }
    }

    /// Whether there is an object of this name, whatever is in it.
    pub(crate) fn has(&self, oid: &Oid) -> Result<bool, Unreadable> {
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

    pub(super) fn find(&self, oid: &Oid, depth: usize) -> Result<Option<GitObject>, Unreadable> {
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

    fn open_packs(&self) -> Result<(), Unreadable> {
        if self.packs.borrow().is_none() {
            let packs = Pack::open_all(self.files, self.budget)?;
            *self.packs.borrow_mut() = Some(packs);
        }
        Ok(())
    }

    fn open_loose(&self, oid: &Oid) -> Result<Option<HeldFile>, Unreadable> {
        let name = hex(oid);
        let (directory, file) = name.split_at(2);
        self.files.open(format!("objects/{directory}/{file}").as_bytes())
    }

    fn read_loose(&self, oid: &Oid) -> Result<Option<GitObject>, Unreadable> {
        let Some(file) = self.open_loose(oid)? else { return Ok(None) };
        inflate_loose(&file.read_whole(self.budget)?, self.budget).map(Some)
    }

    /// Whether a new file among the objects holds nothing but what its name says. A pack is checked object by object.
    pub(crate) fn is_honest(&self, path: &[u8]) -> Result<bool, Unreadable> {
        let text = std::str::from_utf8(path).map_err(|_| Unreadable("an unknown name among the objects"))?;
        if let Some(name) = text.strip_prefix("objects/pack/") {
            let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
            if let Some(checked) = self.checked.borrow().get(stem) {
                return Ok(*checked);
            }
            let pack = Pack::open(self.files, stem, self.budget)?;
            let is_honest = pack.map_or(Ok(false), |pack| pack.is_honest(self, self.budget))?;
            self.checked.borrow_mut().insert(stem.to_owned(), is_honest);
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
    pub(crate) fn tree_of(&self, oid: &Oid) -> Result<Oid, Unreadable> {
        let mut oid = *oid;
        for _ in 0..MOST_TAGS {
            let object = self.read(&oid)?;
            match object.kind {
                ObjectKind::Tree => return Ok(oid),
                ObjectKind::Commit => return header(&object.data, b"tree "),
                ObjectKind::Tag => oid = header(&object.data, b"object ")?,
                // A tag of a file leads to no tree.
                ObjectKind::Blob => return Err(Unreadable("a reference leads to no tree")),
            }
        }
        Err(Unreadable("a tag leads too far"))
    }

    /// The parents of a commit, in their order; none of anything else.
    pub(crate) fn parents_of(&self, oid: &Oid) -> Result<Vec<Oid>, Unreadable> {
        let object = self.read(oid)?;
        if object.kind != ObjectKind::Commit {
            return Ok(Vec::new());
        }
        let lines = object.data.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
        let parents = lines.filter_map(|line| line.strip_prefix(b"parent "));
        parents.map(|text| parse_oid(text).ok_or(Unreadable("a commit cannot be read"))).collect()
    }

    /// Every path that is in a tree and not the same in any of the old ones, or in the first of these and not in it.
    pub(crate) fn differences(&self, new: Option<Oid>, old: &[Oid]) -> Result<Vec<TreeDifference>, Unreadable> {
        let mut found = Vec::new();
        self.compare(new, old, &mut Vec::new(), 0, &mut found)?;
        Ok(found)
    }

    fn compare(
        &self,
        new: Option<Oid>,
        old: &[Oid],
        path: &mut Vec<u8>,
        depth: usize,
        found: &mut Vec<TreeDifference>,
    ) -> Result<(), Unreadable> {
        if depth > DEEPEST {
            return Err(Unreadable("a tree is too deep"));
        }
        if new.is_some_and(|new| old.contains(&new)) {
            return Ok(());
        }
        let entries = new.map(|new| self.entries(&new)).transpose()?.unwrap_or_default();
        let before = old.iter().map(|old| self.entries(old)).collect::<Result<Vec<_>, _>>()?;
        let gone = before.first().into_iter().flatten().filter(|(name, _)| !entries.contains_key(*name));
        let names = entries.iter().map(|(name, entry)| (name, Some(*entry))).chain(gone.map(|(name, _)| (name, None)));
        for (name, entry) in names {
            let olds: Vec<TreeEntry> = before.iter().filter_map(|entries| entries.get(name).copied()).collect();
            if entry.is_some_and(|entry| olds.contains(&entry)) {
                continue;
            }
            let length = path.len();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            let is_tree = |(mode, _): &TreeEntry| *mode == DIRECTORY;
            let trees: Vec<Oid> = olds.iter().filter(|entry| is_tree(entry)).map(|(_, oid)| *oid).collect();
            let new_tree = entry.filter(is_tree).map(|(_, oid)| oid);
            // The path itself counts, a directory that comes or goes too: a name is protected whatever stands there.
            let oid = entry.map(|(_, oid)| oid);
            found.push(TreeDifference { path: path.clone(), oid });
            if entry.is_some_and(|(mode, _)| mode == LINK) {
                found.extend(through_link(path).map(|path| TreeDifference { path, oid }));
            }
            if new_tree.is_some() || !trees.is_empty() {
                self.compare(new_tree, &trees, path, depth + 1, found)?;
            }
            path.truncate(length);
        }
        Ok(())
    }

    fn entries(&self, tree: &Oid) -> Result<BTreeMap<Vec<u8>, TreeEntry>, Unreadable> {
        let object = self.read(tree)?;
        if object.kind != ObjectKind::Tree {
            return Err(Unreadable("a tree is none"));
        }
        let broken = Unreadable("a tree cannot be read");
        let mut entries = BTreeMap::new();
        let mut rest = object.data.as_slice();
        while !rest.is_empty() {
            let space = rest.iter().position(|byte| *byte == b' ').ok_or(broken)?;
            let (mode, after) = (rest.get(..space).ok_or(broken)?, rest.get(space + 1..).ok_or(broken)?);
            let mode = std::str::from_utf8(mode).ok().and_then(|mode| u32::from_str_radix(mode, 8).ok());
            let end = after.iter().position(|byte| *byte == 0).ok_or(broken)?;
            let name = after.get(..end).ok_or(broken)?.to_vec();
            let oid = after.get(end + 1..end + 21).and_then(|oid| Oid::try_from(oid).ok()).ok_or(broken)?;
            rest = after.get(end + 21..).ok_or(broken)?;
            // Which of two equal names git takes is not defined.
            if name.is_empty() || name.contains(&b'/') || entries.insert(name, (mode.ok_or(broken)?, oid)).is_some() {
                return Err(broken);
            }
        }
        Ok(entries)
    }
}

/// What a link gives another program to act on, whatever it leads to.
pub(crate) fn through_link(path: &[u8]) -> Option<Vec<u8>> {
    let rest = settings_through_link(&String::from_utf8_lossy(path))?;
    Some([path, b"/", rest.as_bytes()].concat())
}

fn header(data: &[u8], key: &[u8]) -> Result<Oid, Unreadable> {
    let line = data.split(|byte| *byte == b'\n').next().and_then(|line| line.strip_prefix(key));
    line.and_then(parse_oid).ok_or(Unreadable("a commit or tag cannot be read"))
}

fn inflate_loose(bytes: &[u8], budget: &Budget<'_>) -> Result<GitObject, Unreadable> {
    let broken = Unreadable("an object cannot be read");
    let mut data = Vec::new();
    let read = ZlibDecoder::new(bytes).take(MOST_OBJECT_BYTES + 64).read_to_end(&mut data).map_err(|_| broken)?;
    budget.spend(read as u64)?;
    let end = data.iter().position(|byte| *byte == 0).ok_or(broken)?;
    let head = data.get(..end).and_then(|head| std::str::from_utf8(head).ok()).ok_or(broken)?;
    let (kind, size) = head.split_once(' ').ok_or(broken)?;
    let kind = ObjectKind::ALL.into_iter().find(|one| one.name() == kind).ok_or(broken)?;
    let size = size.parse::<usize>();
    let contents = data.split_off(end + 1);
    if size == Ok(contents.len()) { Ok(GitObject { kind, data: contents }) } else { Err(broken) }
}
