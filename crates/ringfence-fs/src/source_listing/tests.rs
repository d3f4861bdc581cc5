//! A kept listing is what a walk finds, whatever happened since the last one.

#![expect(clippy::disallowed_methods, reason = "the workspace changes without a mount, as others change it")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode};

use super::{KeptSourceListing, ListingUpdate, SourceListing};
use crate::source_tree::SourceEntry;
use crate::{Fence, FenceOptions, MountAccess, MountSpec};

struct ListingFixture {
    directory: tempfile::TempDir,
    fence: Fence,
    limits: CallLimits,
    commit_state: CallCommitState,
    kept: KeptSourceListing,
}

impl ListingFixture {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = directory.path().join("ws");
        fs::create_dir_all(root.join("src/deep")).unwrap();
        fs::create_dir(root.join("lib")).unwrap();
        for path in ["src/a.rs", "src/b.rs", "src/deep/c.rs", "lib/d.rs", "lib/notes.txt"] {
            fs::write(root.join(path), path).unwrap();
        }
        let spec = MountSpec { alias: "workspace".to_owned(), path: root, rights: MountAccess::ReadWrite };
        let fence = Fence::new(spec, Vec::new(), &directory.path().join("own"), FenceOptions::default()).unwrap();
        let (limits, commit_state) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
        Self { directory, fence, limits, commit_state, kept: KeptSourceListing::default() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join("ws").join(path)
    }

    fn cx(&self) -> CallContext<'_> {
        CallContext::new(&self.limits, IoMode::Blocking, &self.commit_state)
    }

    fn list(&self) -> SourceListing {
        let tree = self.fence.source_tree(None, &self.cx()).unwrap();
        self.kept.list(tree, is_source, &self.cx()).unwrap()
    }

    fn walked(&self) -> Vec<SourceEntry> {
        let tree = self.fence.source_tree(None, &self.cx()).unwrap();
        tree.walk(is_source, None, &self.cx()).unwrap().entries
    }

    /// What the reports of a change mean for the listing, which is then what a walk finds.
    fn update_after(&self, change: impl FnOnce(&dyn Fn(&str) -> PathBuf)) -> ListingUpdate {
        change(&|path| self.at(path));
        let tree = self.fence.source_tree(None, &self.cx()).unwrap();
        let mut state = self.kept.0.lock().unwrap();
        let watched = state.watched.as_mut().unwrap();
        let update = watched.update(tree.mount(), &is_source, &self.cx()).unwrap();
        if update == ListingUpdate::WalkAgain {
            state.watched = None;
        }
        drop(state);
        assert_eq!(*self.list().entries, self.walked());
        update
    }
}

fn is_source(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

fn append(path: &Path) {
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(b"more").unwrap();
}

#[test]
fn a_listing_without_changes_is_the_same_one() {
    let ws = ListingFixture::new();
    let first = ws.list();
    assert_eq!(*first.entries, ws.walked());
    assert_eq!(first.entries.len(), 4);
    let second = ws.list();
    assert_eq!((second.version.is_some(), second.version), (true, first.version));
    append(&ws.at("src/a.rs"));
    let third = ws.list();
    assert_ne!(third.version, first.version);
    assert_eq!(*third.entries, ws.walked());
}

#[test]
fn written_files_are_looked_at_again_and_other_changes_are_walked() {
    let ws = ListingFixture::new();
    ws.list();
    let replace = |at: &dyn Fn(&str) -> PathBuf| {
        fs::write(at("src/a.tmp"), "replaced").unwrap();
        fs::rename(at("src/a.tmp"), at("src/a.rs")).unwrap();
    };
    let change_mode = |at: &dyn Fn(&str) -> PathBuf| {
        fs::set_permissions(at("lib"), fs::Permissions::from_mode(0o700)).unwrap();
    };
    use ListingUpdate::{Same, WalkAgain, Written};
    assert_eq!(ws.update_after(|at| append(&at("src/a.rs"))), Written);
    assert_eq!(ws.update_after(replace), Written, "as editors do");
    assert_eq!(ws.update_after(|at| fs::write(at("lib/other.txt"), "").unwrap()), Same, "no source");
    assert_eq!(ws.update_after(|at| fs::remove_file(at("lib/other.txt")).unwrap()), Same, "no source, gone");
    assert_eq!(ws.update_after(|at| fs::write(at("src/new.rs"), "").unwrap()), WalkAgain, "a new source");
    assert_eq!(ws.update_after(|at| fs::remove_file(at("src/new.rs")).unwrap()), WalkAgain, "a source, gone");
    assert_eq!(ws.update_after(|at| fs::write(at(".gitignore"), "b.rs\n").unwrap()), WalkAgain, "an ignore file");
    assert_eq!(ws.update_after(|at| fs::rename(at("src/deep"), at("lib/deep")).unwrap()), WalkAgain, "a directory");
    assert_eq!(ws.update_after(|at| symlink("d.rs", at("lib/link.rs")).unwrap()), WalkAgain, "a link");
    assert_eq!(ws.update_after(change_mode), WalkAgain, "permissions of a directory");
}

#[test]
fn files_with_several_names_are_looked_at_at_every_call() {
    let ws = ListingFixture::new();
    assert!(ws.list().version.is_some());
    let other_name = ws.at("lib/other-name.txt");
    fs::hard_link(ws.at("src/a.rs"), &other_name).unwrap();
    assert_eq!(ws.list().version, None);
    append(&other_name);
    assert_eq!(*ws.list().entries, ws.walked());
}

#[test]
fn a_source_that_becomes_a_secret_is_not_listed() {
    let ws = ListingFixture::new();
    ws.list();
    fs::create_dir(ws.at("src/.ssh")).unwrap();
    fs::rename(ws.at("src/b.rs"), ws.at("src/.ssh/id_rsa")).unwrap();
    fs::hard_link(ws.at("src/.ssh/id_rsa"), ws.at("lib/e.rs")).unwrap();
    assert_eq!(*ws.list().entries, ws.walked());
}

#[derive(Clone, Debug)]
enum TreeChange {
    Append(usize),
    Replace(usize),
    Create(usize),
    Remove(usize),
    MoveDirectory(usize, usize),
    Ignore(usize),
}

const FILES: [&str; 8] =
    ["src/a.rs", "src/b.rs", "src/deep/c.rs", "lib/d.rs", "lib/notes.txt", "e.rs", "lib/deep/f.rs", ".hidden/g.rs"];
const DIRECTORIES: [&str; 4] = ["src", "lib", "src/deep", "lib/deep"];

fn tree_change() -> impl Strategy<Value = TreeChange> {
    prop_oneof![
        (0..FILES.len()).prop_map(TreeChange::Append),
        (0..FILES.len()).prop_map(TreeChange::Replace),
        (0..FILES.len()).prop_map(TreeChange::Create),
        (0..FILES.len()).prop_map(TreeChange::Remove),
        (0..DIRECTORIES.len(), 0..DIRECTORIES.len()).prop_map(|(from, to)| TreeChange::MoveDirectory(from, to)),
        (0..FILES.len()).prop_map(TreeChange::Ignore),
    ]
}

impl ListingFixture {
    /// Makes a change, if that is possible.
    fn make(&self, change: &TreeChange) {
        let name = |at: usize| self.at(FILES[at]);
        let _ = match change {
            TreeChange::Append(at) => {
                fs::OpenOptions::new().append(true).open(name(*at)).and_then(|mut file| file.write_all(b"more"))
            }
            TreeChange::Replace(at) => {
                let temporary = name(*at).with_extension("tmp");
                fs::write(&temporary, "replaced").and_then(|()| fs::rename(&temporary, name(*at)))
            }
            TreeChange::Create(at) => {
                let made = name(*at).parent().map_or(Ok(()), fs::create_dir_all);
                made.and_then(|()| fs::write(name(*at), "created"))
            }
            TreeChange::Remove(at) => fs::remove_file(name(*at)),
            TreeChange::MoveDirectory(from, to) => fs::rename(self.at(DIRECTORIES[*from]), self.at(DIRECTORIES[*to])),
            TreeChange::Ignore(at) => fs::write(self.at(".gitignore"), format!("/{}\n", FILES[*at])),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_kept_listing_is_what_a_walk_finds(steps in proptest::collection::vec(
        proptest::collection::vec(tree_change(), 0..4), 1..12)) {
        let ws = ListingFixture::new();
        ws.list();
        for changes in steps {
            changes.iter().for_each(|change| ws.make(change));
            prop_assert_eq!(&*ws.list().entries, &ws.walked());
        }
    }
}
