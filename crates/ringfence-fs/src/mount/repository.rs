//! Git repositories and other directories that make programs act, whatever they are called.
//!
//! Git runs the commands that the config and the hooks of a repository name, and looks for a repository in every
//! directory above it. One without a `.git` is not known by its name: a program that makes one, be it piece by piece,
//! would have git run its commands later. Hooks are in the directory that `core.hooksPath` of a repository names, or
//! that a link `.git/hooks` leads to. And a shell runs the files in the `bin` of a virtual environment or of
//! `node_modules` under the names of ordinary commands. Settings can be reached through links of their name
//! (`sensitive/linked_directories.rs`).
//!
//! Such a directory comes to be by the last of several changes, each of them harmless when it was planned. So it is asked
//! twice: for the plan, and once more under the lock of the tree, right before any change is made (`Mount::enter`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};

use ringfence_kernel::{ErrorKind, Ticket, ToolError};
use rustix::fs::OFlags;

use crate::journal::{FileState, FileStateKind, JournalEffect};
use crate::mount::Mount;
use crate::mount::node_source::FileEntryLocation;
use crate::path::name::{escape, unescape};
use crate::path::relative::{relative_to, split};
use crate::root::{open_no_follow, stat};
use crate::sys::syscall::{pread, readlinkat};

/// Entries that make a directory a repository, all of them together or `HEAD` with the second.
const REPOSITORY_ENTRIES: [&[u8]; 4] = [b"HEAD", b"commondir", b"objects", b"refs"];

/// Whether something of this name can complete a repository.
pub(crate) fn is_repository_entry(name: &[u8]) -> bool {
    REPOSITORY_ENTRIES.iter().any(|piece| piece.eq_ignore_ascii_case(name))
}

/// The pieces of a repository that a directory was found to have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RepositoryEntrySet([bool; REPOSITORY_ENTRIES.len()]);

impl RepositoryEntrySet {
    /// Whether this name makes a repository of the directory.
    pub(crate) fn completed_by(&mut self, name: &[u8]) -> bool {
        let was_repository = self.are_repository();
        for (found, piece) in self.0.iter_mut().zip(REPOSITORY_ENTRIES) {
            *found |= piece.eq_ignore_ascii_case(name);
        }
        !was_repository && self.are_repository()
    }

    fn are_repository(self) -> bool {
        let [head, common, objects, refs] = self.0;
        head && (common || (objects && refs))
    }
}

/// The paths among these that can complete a repository, as the worst file system compares them.
fn folded_repository_entries<'a>(paths: impl Iterator<Item = &'a [u8]>) -> HashSet<Vec<u8>> {
    paths.filter(|path| is_repository_entry(split(path).1)).map(<[u8]>::to_ascii_lowercase).collect()
}

/// The workspace as it is going to be, asked about such directories.
pub(crate) struct RepositoryDetector<'a> {
    mount: &'a Mount,
    resulting_tree: ResultingTree<'a>,
    /// Whether a directory is one or lies in one.
    cache: HashMap<Vec<u8>, bool>,
    /// Hooks directories of worktrees that do not have them in their `.git`.
    hooks: HashSet<Vec<u8>>,
}

/// The tree after a change.
enum ResultingTree<'a> {
    /// The pieces of repositories that are there after it, by folded path: not every file system tells `head` from `HEAD`.
    Items(HashSet<Vec<u8>>),
    /// The same, of a tool that changes single files. It does not install anything: a path that has the name of a
    /// directory for commands is taken for one, whether it exists or not.
    Files(HashSet<Vec<u8>>),
    /// The journal's effects of the change, as far as they can make a repository: very many files are changed at once,
    /// and each directory is checked against all of them.
    Effects(Vec<&'a JournalEffect>),
}

impl<'a> RepositoryDetector<'a> {
    pub(crate) fn new(mount: &'a Mount, paths: impl Iterator<Item = &'a [u8]>) -> Self {
        Self {
            mount,
            resulting_tree: ResultingTree::Items(folded_repository_entries(paths)),
            cache: HashMap::new(),
            hooks: HashSet::new(),
        }
    }

    /// The workspace with these paths, and the directories above them, in it.
    pub(crate) fn with_paths(mount: &'a Mount, paths: impl Iterator<Item = &'a [u8]>) -> Self {
        let above = |path: &'a [u8]| {
            let next = |path: &&'a [u8]| Some(split(path).0).filter(|above| !above.is_empty());
            std::iter::successors(Some(path), next)
        };
        Self {
            mount,
            resulting_tree: ResultingTree::Files(folded_repository_entries(paths.flat_map(above))),
            cache: HashMap::new(),
            hooks: HashSet::new(),
        }
    }

    /// The workspace after a change that the journal describes so.
    pub(crate) fn after_effects(mount: &'a Mount, effects: &'a [JournalEffect]) -> Self {
        let is_directory = |state: &FileState| state.kind == FileStateKind::Directory;
        let is_telling = |effect: &&JournalEffect| match effect {
            JournalEffect::Moved { .. } => true,
            JournalEffect::Created { path, after: state, .. }
            | JournalEffect::Removed { path, before: state, .. }
            | JournalEffect::Replaced { path, after: state, .. } => {
                is_directory(state) || is_repository_entry(split(path.as_bytes()).1)
            }
            JournalEffect::Appended { .. } | JournalEffect::Lost { .. } | JournalEffect::Mode { .. } => false,
        };
        Self {
            mount,
            resulting_tree: ResultingTree::Effects(effects.iter().filter(is_telling).collect()),
            cache: HashMap::new(),
            hooks: HashSet::new(),
        }
    }

    /// Whether a path lies in one.
    pub(crate) fn contains(&mut self, path: &[u8]) -> bool {
        let (above, name) = split(path);
        let mut directory = above;
        // Each directory is asked about once, however deep the tree.
        let mut unknown = Vec::new();
        let mut inside = loop {
            if let Some(known) = self.cache.get(directory) {
                break *known;
            }
            unknown.push(directory);
            if directory.is_empty() {
                break false;
            }
            directory = split(directory).0;
        };
        for directory in unknown.into_iter().rev() {
            inside =
                inside || self.is_repository(directory) || self.has_commands(directory) || self.has_hooks(directory);
            self.cache.insert(directory.to_vec(), inside);
        }
        let linked = self.mount.sensitive_files.linked();
        inside
            || (is_environment_config(name) && self.exists_on_disk(above, name))
            || linked.sensitivity(path).protected
            || (linked.affects(path) && self.exists_on_disk(above, name))
    }

    /// As git sees it: the rest may be anything, a link too.
    fn is_repository(&self, directory: &[u8]) -> bool {
        let has = |name: &[u8]| self.will_exist(directory, name);
        has(b"HEAD") && (has(b"commondir") || (has(b"objects") && has(b"refs")))
    }

    /// Whether a shell finds commands there: by the name of a directory that is there already, so that a whole new
    /// environment can be installed, or of one that single files are written to.
    fn has_commands(&self, directory: &[u8]) -> bool {
        let (above, name) = split(directory);
        let is_named = |names: &[&[u8]], name: &[u8]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let is_bin = is_named(&[b"bin", b"Scripts"], name);
        let by_name = (name == b".bin" && split(above).1 == b"node_modules")
            || (is_bin && is_named(&[b"venv", b".venv", b"virtualenv", b".virtualenv"], split(above).1));
        match &self.resulting_tree {
            ResultingTree::Files(_) if by_name => true,
            _ if by_name => self.exists_on_disk(above, name),
            _ => is_bin && self.exists_on_disk(above, name) && self.exists_on_disk(above, b"pyvenv.cfg"),
        }
    }

    /// Whether the repository of a worktree that the directory lies in runs its hooks from there. The directories above were
    /// asked about before: a deep tree would take long if each directory asked about all of them.
    fn has_hooks(&mut self, directory: &[u8]) -> bool {
        let is_inside = |hooks: &Vec<u8>| directory.is_empty() || relative_to(hooks, directory).is_some();
        self.hooks.extend(hooks_outside(self.mount, directory).filter(is_inside));
        self.hooks.contains(directory)
    }

    /// Whether it will be there.
    fn will_exist(&self, directory: &[u8], name: &[u8]) -> bool {
        let path = if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() };
        match &self.resulting_tree {
            ResultingTree::Items(items) | ResultingTree::Files(items) => {
                items.contains(&path.to_ascii_lowercase()) || self.exists_on_disk(directory, name)
            }
            ResultingTree::Effects(effects) => self.exists_after(effects, path),
        }
    }

    fn exists_on_disk(&self, directory: &[u8], name: &[u8]) -> bool {
        if directory.is_empty() {
            return exists_at(self.mount.root.as_fd(), name);
        }
        let directory = open_no_follow(self.mount, directory);
        directory.is_some_and(|directory| exists_at(directory.as_fd(), name))
    }

    /// Goes through the effects from the last to the first, to where what will be at a path is now.
    fn exists_after(&self, effects: &[&JournalEffect], mut path: Vec<u8>) -> bool {
        for effect in effects.iter().rev() {
            match effect {
                JournalEffect::Created { path: at, image, .. } => {
                    let at = unescape(at);
                    match (relative_to(&path, &at), image) {
                        // Not every file system tells `head` from `HEAD`.
                        _ if path.eq_ignore_ascii_case(&at) => return true,
                        (Some(rest), Some(image)) => return self.is_in_image(image, rest),
                        (Some(_), None) => return false,
                        (None, _) => {}
                    }
                }
                JournalEffect::Removed { path: at, .. } if relative_to(&path, &unescape(at)).is_some() => return false,
                JournalEffect::Replaced { path: at, .. } if path == unescape(at) => return true,
                JournalEffect::Moved { from, to, .. } => {
                    let (from, to) = (unescape(from), unescape(to));
                    if path.eq_ignore_ascii_case(&to) {
                        return true;
                    }
                    if let Some(rest) = relative_to(&path, &to) {
                        path = [&from, b"/".as_slice(), rest].concat();
                    } else if relative_to(&path, &from).is_some() {
                        return false;
                    }
                }
                // A lost entry may have been replaced: then the path still exists.
                JournalEffect::Removed { .. }
                | JournalEffect::Replaced { .. }
                | JournalEffect::Appended { .. }
                | JournalEffect::Lost { .. }
                | JournalEffect::Mode { .. } => {}
            }
        }
        let (directory, name) = split(&path);
        self.exists_on_disk(directory, name)
    }

    fn is_in_image(&self, image: &str, rest: &[u8]) -> bool {
        let source = FileEntryLocation::Image(image.to_owned(), rest.to_vec());
        source.open_parent(self.mount).is_some_and(|(parent, name)| exists_at(parent.as_fd(), &name))
    }
}

impl Mount {
    /// Fails where a change is about to make or to extend such a directory and its plan did not say so: then the policy
    /// judged another change than this one. To be called under the lock of the tree.
    pub(crate) fn check_foreseen(&self, effects: &[JournalEffect], ticket: &Ticket<'_>) -> Result<(), ToolError> {
        let mut repositories = RepositoryDetector::after_effects(self, effects);
        let mut judged: Option<BTreeSet<&str>> = None;
        for path in effects
            .iter()
            .filter(|effect| !matches!(effect, JournalEffect::Removed { .. }))
            .flat_map(JournalEffect::paths)
        {
            if !repositories.contains(&unescape(path)) {
                continue;
            }
            let judged = judged.get_or_insert_with(|| self.repository_paths(ticket));
            if !covers(judged, path) {
                let shown = self.display_path(&escape(&unescape(path)));
                let message = format!(
                    "`{shown}` became a path that other programs act on since the call was planned; nothing was changed"
                );
                return Err(ToolError::new(ErrorKind::Conflict, message).hint("try again to request approval"));
            }
        }
        Ok(())
    }

    /// Paths that the plan of a call declared as protected, or as data of an existing repository.
    fn repository_paths<'a>(&self, ticket: &Ticket<'a>) -> BTreeSet<&'a str> {
        let accesses = ticket
            .accesses()
            .iter()
            .filter(|access| access.action.changes_files() && *access.resource.mount == *self.alias);
        let protected = accesses
            .map(|access| &access.resource)
            .filter(|place| place.effective_sensitivity().protected || place.repository_data);
        protected.map(|place| place.resolved_path.as_deref().unwrap_or(&place.requested_path)).collect()
    }
}

/// Whether one of the paths is this one, a directory above it, or something in it.
fn covers(paths: &BTreeSet<&str>, path: &str) -> bool {
    let mut above = std::iter::successors(Some(path), |path| path.rsplit_once('/').map(|(above, _)| above));
    let inside = format!("{path}/");
    above.any(|path| paths.contains(path))
        || paths.range(inside.as_str()..).next().is_some_and(|next| next.starts_with(&inside))
}

/// The directory that the repository of a worktree has its hooks in, where that is not below its `.git`. An absolute one is
/// not known by its path here.
fn hooks_outside(mount: &Mount, worktree: &[u8]) -> Option<Vec<u8>> {
    const MOST_CONFIG_BYTES: usize = 64 << 10;
    let git = if worktree.is_empty() { b".git".to_vec() } else { [worktree, b"/.git"].concat() };
    let directory = open_no_follow(mount, &git)?;
    if let Ok(target) = readlinkat(&directory, "hooks") {
        return joined_path(&git, target.to_bytes());
    }
    let config = mount.open_at(directory.as_fd(), b"config", OFlags::RDONLY).ok()?;
    let mut bytes = vec![0; MOST_CONFIG_BYTES];
    let length = pread(&config, &mut bytes, 0).ok()?;
    joined_path(worktree, hooks_path(&String::from_utf8_lossy(bytes.get(..length)?))?.as_bytes())
}

/// The last `core.hooksPath` of a config.
fn hooks_path(config: &str) -> Option<String> {
    let (mut in_core, mut found) = (false, None);
    for line in config.lines().map(str::trim) {
        let mut setting = line;
        if let Some((section, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            in_core = section.trim().eq_ignore_ascii_case("core");
            setting = rest.trim();
        }
        if let Some((key, value)) = setting.split_once('=').filter(|_| in_core)
            && key.trim().eq_ignore_ascii_case("hookspath")
        {
            let value = value.split(['#', ';']).next().unwrap_or_default();
            found = Some(value.trim().replace('"', ""));
        }
    }
    found
}

/// Resolves a relative path from a directory by its text. `None` above the root.
fn joined_path(directory: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    if path.starts_with(b"/") || path.starts_with(b"~") {
        return None;
    }
    let mut names: Vec<&[u8]> = directory.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        match name {
            b".." => _ = names.pop()?,
            name => names.push(name),
        }
    }
    Some(names.join(&b'/')).filter(|path| !path.is_empty())
}

/// It says where the interpreter of a virtual environment is.
fn is_environment_config(name: &[u8]) -> bool {
    name == b"pyvenv.cfg"
}

fn exists_at(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    matches!(stat(directory, name), Ok(Some(_)))
}
