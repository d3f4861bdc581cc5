//! State of a newer version: it is refused with a sentence, and never written to.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ringfence_fs::{Fence, FenceError, FenceOptions, MountAccess, MountSpec};
use ringfence_kernel::ErrorKind;
use serde_json::json;

use super::journal_of;
use crate::fixture::FsFixture;
use crate::snapshot::snapshot;

/// What a newer version left in the state of the workspace.
type NewerState = fn(&FsFixture);

const NEWER_STATES: [(&str, NewerState); 6] = [
    ("the journal has a newer version", |world| write(&journal_of(world).join("version"), b"3\n")),
    ("the locks have a newer version", |world| write(&locks_of(world).join("version"), b"3\n")),
    ("the version is not a number", |world| write(&locks_of(world).join("version"), b"two")),
    ("a journal record of an unknown kind", |world| {
        append(&journal_of(world).join("log"), b"{\"record\":\"renamed\",\"change\":\"c-1\"}\n");
    }),
    ("a journal record with an unknown effect", |world| {
        let intent = json!({"record": "intent", "change": "c-1", "at": "2026-01-01T00:00:00.000Z", "session": "test",
            "call": "1", "tool": "write_file", "effects": [{"effect": "compressed", "path": "f"}]});
        append(&journal_of(world).join("log"), format!("{intent}\n").as_bytes());
    }),
    ("a journal record with an unknown step", |world| {
        let intent = json!({"record": "intent", "change": "c-1", "at": "2026-01-01T00:00:00.000Z", "session": "test",
            "call": "1", "tool": "write_file", "effects": [], "steps": [{"step": "clone", "name": "f"}]});
        append(&journal_of(world).join("log"), format!("{intent}\n").as_bytes());
    }),
];

fn locks_of(world: &FsFixture) -> PathBuf {
    let locks = std::fs::read_dir(world.host_path().join("state/locks")).unwrap();
    locks.last().unwrap().unwrap().path()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

fn append(path: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// The files in a directory that are not empty. Lock files are made and emptied by every change that is tried.
fn written_files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.map(|path| (path.clone(), std::fs::read(path).unwrap()));
    files.filter(|(_, bytes)| !bytes.is_empty()).collect()
}

/// A workspace with a change.
fn sample() -> FsFixture {
    let world = FsFixture::new();
    world.write("f", "one");
    world.change("write_file", &json!({"path": "f", "content": "two"}));
    world
}

fn open(world: &FsFixture) -> Result<Fence, FenceError> {
    let workspace = MountSpec { alias: "w".to_owned(), path: world.root.clone(), rights: MountAccess::ReadWrite };
    Fence::new(workspace, Vec::new(), &world.host_path().join("state"), FenceOptions::default())
}

#[test]
fn the_state_of_a_newer_version_is_not_opened() {
    for (what, newer) in NEWER_STATES {
        let world = sample();
        newer(&world);
        let before = snapshot(world.host_path());
        let refused = open(&world).map(drop).expect_err(what);
        assert_eq!(
            refused.to_string(),
            "the state of the mount `w` was written by a newer version of Ringfence; install the newer version, or use \
             another state directory",
            "{what}"
        );
        assert_eq!(snapshot(world.host_path()), before, "{what}");
    }
}

#[test]
fn a_process_that_is_running_changes_nothing_after_a_newer_version_wrote() {
    // The version of the locks is read once, when they are opened.
    for (what, newer) in
        NEWER_STATES.into_iter().filter(|(what, _)| !what.contains("locks") && !what.contains("number"))
    {
        let world = sample();
        newer(&world);
        let state = || [journal_of(&world), locks_of(&world)].map(|directory| written_files(&directory));
        let before = state();
        let answer = world.call("write_file", &json!({"path": "f", "content": "three"}));
        assert_eq!(answer.error, Some(ErrorKind::Unavailable), "{what}: {}", answer.text);
        assert!(answer.text.contains("install the newer version, or use another state directory"), "{}", answer.text);
        let answer = world.call("undo", &json!({}));
        assert!(answer.error.is_some(), "{what}: {}", answer.text);
        assert_eq!(world.read("f"), "two", "{what}");
        assert_eq!(state(), before, "{what}");
    }
}

#[test]
fn a_lock_note_of_a_newer_version_stops_the_change() {
    let world = sample();
    for stripe in 0..256 {
        write(&locks_of(&world).join(format!("{stripe:02x}")), b"clone\x007,8\0d\0f\0c-1\0.");
    }
    let answer = world.call("write_file", &json!({"path": "f", "content": "three"}));
    assert_eq!(answer.error, Some(ErrorKind::Unavailable), "{}", answer.text);
    assert_eq!(world.read("f"), "two");
}

#[test]
fn the_state_of_an_earlier_version_is_migrated() {
    let world = sample();
    let version = |directory: PathBuf| std::fs::read_to_string(directory.join("version")).unwrap();
    for earlier in [Some(&b"1\n"[..]), Some(b""), None] {
        for directory in [journal_of(&world), locks_of(&world)] {
            std::fs::remove_file(directory.join("version")).unwrap();
            if let Some(earlier) = earlier {
                write(&directory.join("version"), earlier);
            }
        }
        open(&world).unwrap();
        assert_eq!([version(journal_of(&world)), version(locks_of(&world))], ["2\n", "2\n"]);
    }
    world.value("undo", &json!({}));
    assert_eq!(world.read("f"), "one");
}

#[test]
fn an_interrupted_change_of_an_earlier_version_is_left_to_that_version() {
    type LeftBehind = fn(&FsFixture);
    let left: [LeftBehind; 2] = [
        |world| write(&locks_of(world).join("7f"), b"step\0\0c-1\0."),
        |world| write(&locks_of(world).join("batch-c-1"), b".\0"),
    ];
    for left in left {
        let world = sample();
        for directory in [journal_of(&world), locks_of(&world)] {
            std::fs::remove_file(directory.join("version")).unwrap();
        }
        left(&world);
        let before = snapshot(world.host_path());
        assert_eq!(
            open(&world).map(drop).unwrap_err().to_string(),
            "an earlier version of Ringfence was interrupted in a change of the mount `w`; start that version once, \
             which recovers it"
        );
        assert_eq!(snapshot(world.host_path()), before);
    }
}

#[test]
fn the_state_is_not_migrated_under_a_writer_of_an_earlier_version() {
    let world = sample();
    for directory in [journal_of(&world), locks_of(&world)] {
        std::fs::remove_file(directory.join("version")).unwrap();
    }
    // Every writer of that version holds the tree lock, and notes its change in it or in that of a file.
    let writer = std::fs::File::open(locks_of(&world).join("tree")).unwrap();
    writer.lock_shared().unwrap();
    assert_eq!(
        open(&world).map(drop).unwrap_err().to_string(),
        "an earlier version of Ringfence is changing the mount `w`; stop it, then try again"
    );
    drop(writer);
    open(&world).unwrap();
    assert!(journal_of(&world).join("version").exists());
}
