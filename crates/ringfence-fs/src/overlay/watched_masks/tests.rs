//! Watched masks are what a search of everything finds, whatever happened between two programs.

#![expect(clippy::disallowed_methods, reason = "the workspace changes without a mount, as others change it")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, IoMode};

use super::{
    CacheState, MaskUpdate, MaskWatches, TreeConditions, ViewMasks, WatchedDirectories, WatchedMasks, search_all,
};
use crate::mount::Mount;
use crate::sys::directory_watch::WatchScope;
use crate::{Fence, FenceOptions, MountAccess, MountSpec};

/// The queue of reports has at most this many, unless a machine's owner set another limit.
const QUEUE_LIMIT: usize = 16_384;

const WATCHES: MaskWatches = MaskWatches { scope: WatchScope::Entries, most: None };

struct MaskFixture {
    directory: tempfile::TempDir,
    mount: Arc<Mount>,
    limits: CallLimits,
    commit_state: CallCommitState,
}

impl MaskFixture {
    fn new(files: &[&str]) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let (root, outside) = (directory.path().join("ws"), directory.path().join("outside"));
        [&root, &outside].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let spec = MountSpec { alias: "workspace".to_owned(), path: root, rights: MountAccess::ReadWrite };
        let options = FenceOptions::default();
        let fence = Fence::new(spec, Vec::new(), &directory.path().join("own"), options).unwrap();
        let (limits, commit_state) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
        let fixture = Self { directory, mount: Arc::clone(&fence.mounts()[0]), limits, commit_state };
        files.iter().for_each(|path| fixture.write(path));
        fixture
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join("ws").join(path)
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.directory.path().join("outside").join(path)
    }

    fn write(&self, path: &str) {
        write(&self.at(path), "x");
    }

    fn cx(&self) -> CallContext<'_> {
        CallContext::new(&self.limits, IoMode::Blocking, &self.commit_state)
    }

    fn search(&self) -> WatchedMasks {
        self.mount.scan_root(&self.cx()).unwrap();
        let root = self.at("");
        let conditions = TreeConditions::now(&self.mount, root.to_str().unwrap().as_bytes(), &self.cx()).unwrap();
        match WatchedMasks::search(&self.mount, WATCHES, &conditions, &self.cx()).unwrap() {
            CacheState::Watched(found) => *found,
            state => panic!("{state:?}"),
        }
    }

    /// Updates masks, as before a program; searches everything where the update says so.
    fn update(&self, masks: &mut WatchedMasks) -> MaskUpdate {
        self.mount.scan_root(&self.cx()).unwrap();
        let update = masks.update(&self.mount, &self.cx()).unwrap();
        if update == MaskUpdate::SearchAll {
            *masks = self.search();
        }
        update
    }

    /// The masks by a search of everything that knows nothing before.
    fn searched(&self) -> Vec<String> {
        let mut masks = ViewMasks::default();
        search_all(&self.mount, &self.cx(), &mut masks, None).unwrap();
        names(&masks)
    }
}

fn names(masks: &ViewMasks) -> Vec<String> {
    masks.masked().into_iter().chain(masks.hidden()).map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

fn write(path: &Path, contents: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

/// One way to bring a secret into a workspace.
struct PlantingCase {
    name: &'static str,
    plant: fn(&MaskFixture),
    masked: &'static str,
}

const PLANTINGS: [PlantingCase; 14] = [
    PlantingCase { name: "a file at the root", plant: |ws| ws.write(".env"), masked: ".env" },
    PlantingCase { name: "a file deep in it", plant: |ws| ws.write("a/b/c/.env"), masked: "a/b/c/.env" },
    PlantingCase { name: "new directories", plant: |ws| ws.write("n/e/w/.env"), masked: "n/e/w/.env" },
    PlantingCase {
        name: "a file renamed in it",
        plant: |ws| fs::rename(ws.at("a/b/c/plain"), ws.at("a/b/c/.env")).unwrap(),
        masked: "a/b/c/.env",
    },
    PlantingCase {
        name: "a directory renamed in it",
        plant: |ws| fs::rename(ws.at("keys"), ws.at(".ssh")).unwrap(),
        masked: ".ssh",
    },
    PlantingCase {
        name: "a directory moved into it",
        plant: |ws| {
            write(&ws.outside("d/deep/.env"), "x");
            fs::rename(ws.outside("d"), ws.at("a/d")).unwrap();
        },
        masked: "a/d/deep/.env",
    },
    PlantingCase {
        name: "a file in a directory that was moved before",
        plant: |ws| {
            fs::rename(ws.at("a/b"), ws.at("z")).unwrap();
            ws.write("z/c/.env");
        },
        masked: "z/c/.env",
    },
    PlantingCase {
        name: "two directories that were exchanged",
        plant: |ws| {
            ws.write("keys/.env");
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let (from, to) = (ws.at("a/b"), ws.at("keys"));
            rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags).unwrap();
        },
        masked: "a/b/.env",
    },
    PlantingCase {
        name: "a link to a file",
        plant: |ws| symlink("a/b/c/plain", ws.at("deploy.env")).unwrap(),
        masked: "a/b/c/plain",
    },
    PlantingCase {
        name: "another name of a file",
        plant: |ws| fs::hard_link(ws.at("a/b/c/plain"), ws.at("z.env")).unwrap(),
        masked: "a/b/c/plain",
    },
    PlantingCase {
        name: "another name of a secret",
        plant: |ws| fs::hard_link(ws.at("old/.env"), ws.at("a/b/innocent")).unwrap(),
        masked: "a/b/innocent",
    },
    PlantingCase {
        name: "another process",
        plant: |ws| {
            let script = "mkdir -p p/q && echo x > p/q/tmp && mv p/q/tmp p/q/id_rsa";
            assert!(Command::new("sh").current_dir(ws.at("")).args(["-c", script]).status().unwrap().success());
        },
        masked: "p/q/id_rsa",
    },
    PlantingCase {
        name: "a file without a name that gets one",
        plant: |ws| {
            let (flags, mode) = (rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY, 0o600.into());
            let file = rustix::fs::open(ws.at("a"), flags, mode).unwrap();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            let (cwd, follow) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
            rustix::fs::linkat(cwd, path, cwd, ws.at("a/.env"), follow).unwrap();
        },
        masked: "a/.env",
    },
    PlantingCase {
        name: "a directory that cannot be listed any more",
        plant: |ws| fs::set_permissions(ws.at("a/b/c"), fs::Permissions::from_mode(0o000)).unwrap(),
        masked: "a/b/c",
    },
];

#[test]
fn a_secret_planted_between_two_programs_is_masked() {
    for case in PLANTINGS {
        let ws = MaskFixture::new(&["a/b/c/plain", "keys/server", "old/.env"]);
        let mut masks = ws.search();
        (case.plant)(&ws);
        // The control: without the reports of the watch it is not known.
        assert!(!names(&masks.masks).contains(&case.masked.to_owned()), "{}", case.name);
        ws.update(&mut masks);
        assert!(names(&masks.masks).contains(&case.masked.to_owned()), "{}: {:?}", case.name, masks.masks);
        assert_eq!(names(&masks.masks), ws.searched(), "{}", case.name);
    }
}

#[test]
fn a_program_after_another_has_only_reported_entries_looked_at() {
    let ws = MaskFixture::new(&["a/b/c/plain", "keys/server", "old/.env"]);
    let mut masks = ws.search();
    for plant in [".env", "a/b/c/.env", "n/e/w/.env"] {
        ws.write(plant);
        assert_eq!(ws.update(&mut masks), MaskUpdate::Complete, "{plant}");
    }
    fs::remove_file(ws.at(".env")).unwrap();
    assert_eq!(ws.update(&mut masks), MaskUpdate::Complete);
    assert_eq!(names(&masks.masks), ["a/b/c/.env", "n/e/w/.env", "old/.env"]);
}

/// Nothing of this is an entry that is added to a directory or removed from one.
#[test]
fn masks_follow_contents_targets_and_permissions() {
    let ws = MaskFixture::new(&["a/config", "t/plain", "shut/.env", "b/config"]);
    symlink("u/plain", ws.at("x.env")).unwrap();
    fs::set_permissions(ws.at("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    let mut masks = ws.search();
    assert_eq!(names(&masks.masks), ["shut"]);
    fs::write(ws.at("a/config"), "url = https://me:hunter2@example.com/x").unwrap();
    ws.update(&mut masks);
    assert_eq!(names(&masks.masks), ["a/config", "shut"]);
    fs::set_permissions(ws.at("shut"), fs::Permissions::from_mode(0o700)).unwrap();
    ws.update(&mut masks);
    assert_eq!(names(&masks.masks), ["a/config", "shut/.env"]);
    fs::rename(ws.at("t"), ws.at("u")).unwrap();
    ws.update(&mut masks);
    assert_eq!(names(&masks.masks), ["a/config", "shut/.env", "u/plain"]);
}

#[test]
fn a_secret_that_appears_during_the_search_is_masked() {
    let ws = MaskFixture::new(&["a/b/plain", "c/plain"]);
    ws.mount.scan_root(&ws.cx()).unwrap();
    let conditions = TreeConditions::now(&ws.mount, b"/", &ws.cx()).unwrap();
    let (mut masks, mut directories) = (ViewMasks::default(), WatchedDirectories::new(WatchScope::Entries).unwrap());
    let known = search_all(&ws.mount, &ws.cx(), &mut masks, Some(&mut directories)).unwrap();
    // The directory was passed, and the search is not over.
    ws.write("a/b/.env");
    let mut found = WatchedMasks { watches: WATCHES, conditions, masks, directories, known };
    assert_eq!(found.update(&ws.mount, &ws.cx()).unwrap(), MaskUpdate::Complete);
    assert_eq!(names(&found.masks), ["a/b/.env"]);
}

#[test]
fn a_committed_secret_is_known_as_long_as_an_index_has_it() {
    let ws = MaskFixture::new(&["plain", "sub/.env", "sub/other"]);
    fs::create_dir(ws.at("index")).unwrap();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        let command =
            command.current_dir(ws.at("sub")).args(arguments).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/");
        assert!(command.status().unwrap().success(), "{arguments:?}");
    };
    let mut masks = ws.search();
    let mut check = |expected: Option<&str>| {
        ws.update(&mut masks);
        let found = |masks: &ViewMasks| masks.committed.first().map(|path| String::from_utf8(path.to_vec()).unwrap());
        let mut searched = ViewMasks::default();
        search_all(&ws.mount, &ws.cx(), &mut searched, None).unwrap();
        assert_eq!((found(&masks.masks).as_deref(), found(&searched).as_deref()), (expected, expected));
    };
    check(None);
    git(&["init", "-q"]);
    git(&["add", "other"]);
    check(None);
    git(&["add", ".env"]);
    check(Some("sub/.env"));
    fs::remove_file(ws.at("sub/.env")).unwrap();
    check(Some("sub/.env"));
    git(&["rm", "-q", "--cached", ".env"]);
    check(None);
    // Written in place, of which no directory tells.
    fs::write(ws.at("sub/.git/index"), "DIRC?").unwrap();
    check(Some("sub/.git/index"));
    fs::rename(ws.at("sub"), ws.at("moved")).unwrap();
    check(Some("moved/.git/index"));
    fs::remove_file(ws.at("moved/.git/HEAD")).unwrap();
    check(None);
    ws.write("moved/.git/HEAD");
    check(Some("moved/.git/index"));
    fs::remove_dir_all(ws.at("moved")).unwrap();
    check(None);
}

#[test]
fn lost_reports_mean_a_search_of_everything() {
    let ws = MaskFixture::new(&["a/plain"]);
    let mut masks = ws.search();
    for number in 0..QUEUE_LIMIT {
        let path = ws.at(&format!("a/f{number}"));
        fs::write(&path, "").unwrap();
        fs::remove_file(path).unwrap();
    }
    ws.write("a/.env");
    assert_eq!(ws.update(&mut masks), MaskUpdate::SearchAll);
    assert_eq!(names(&masks.masks), ["a/.env"]);
}

/// As another process would have told it: the file had the name of a secret for a moment.
#[test]
fn a_file_that_becomes_known_as_a_secret_means_a_search_of_everything() {
    let ws = MaskFixture::new(&["a/plain"]);
    let mut masks = ws.search();
    fs::rename(ws.at("a/plain"), ws.at("a/.env")).unwrap();
    fs::rename(ws.at("a/.env"), ws.at("a/plain")).unwrap();
    assert_eq!(ws.update(&mut masks), MaskUpdate::Complete);
    assert!(names(&masks.masks).is_empty());
    fs::rename(ws.at("a/plain"), ws.at(".env")).unwrap();
    ws.mount.scan_root(&ws.cx()).unwrap();
    fs::rename(ws.at(".env"), ws.at("a/plain")).unwrap();
    assert_eq!(ws.update(&mut masks), MaskUpdate::Complete);
    assert_eq!(names(&masks.masks), ["a/plain"]);
}

/// Random changes, with an update after every few: the masks are those of a search of everything.
#[test]
fn watched_masks_equal_a_search_of_everything() {
    for seed in 1..25_u64 {
        let ws = MaskFixture::new(&["a/b/plain", "c/config", "d/.env"]);
        let mut masks = ws.search();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        for step in 0..120 {
            let names_of = ["a", "b", "c", "d", ".env", ".ssh", "config", "plain", "x.env"];
            let mut path = || {
                let parts: Vec<&str> = (0..=next(3)).map(|_| names_of[next(names_of.len())]).collect();
                ws.at(&parts.join("/"))
            };
            let (from, to) = (path(), path());
            // Whatever fails has changed nothing.
            let _ = match next(8) {
                0 => fs::create_dir_all(&from),
                1 => fs::write(&from, "x"),
                2 => fs::write(&from, "token = abc"),
                3 => fs::rename(&from, &to),
                4 => fs::remove_file(&from).or_else(|_| fs::remove_dir_all(&from)),
                5 => fs::hard_link(&from, &to),
                6 => symlink(&from, &to),
                _ => symlink(["plain", "../c", "b/plain"][step % 3], &to),
            };
            if next(4) == 0 {
                ws.update(&mut masks);
                assert_eq!(names(&masks.masks), ws.searched(), "seed {seed}, step {step}");
            }
        }
    }
}
