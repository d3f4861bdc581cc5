//! Refused overlays: entries that no program may leave, so that nothing is committed.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::Path;

use ringfence_fs::MountAccess;
use ringfence_kernel::{
    CallCommitState, CallContext, CallLimits, ChangeGroup, ChangeGroupDecision, Dialect, ErrorKind, IoMode, Preset,
    ToolError,
};
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use super::{ConcurrentWriter, OverlayFixture, OverlayProgram, fence_changes, image_names, set_xattr, setup};
use crate::fixture::{FsFixture, FsFixtureConfig};

#[test]
fn pipes_sockets_and_devices_are_refused() {
    let shapes: [(&str, ConcurrentWriter); 3] = [
        ("a pipe", |path| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap()),
        ("a socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
        ("a device", |path| {
            let null = rustix::fs::makedev(1, 3);
            if mknodat(CWD, path, FileType::CharacterDevice, Mode::RWXU, null).is_err() {
                skip_without(Requirement::Devices, "without the right to make a device, a pipe is tested twice");
                mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }
        }),
    ];
    for (what, make) in shapes {
        let layered = OverlayFixture::new(&[("a", "a")]);
        layered.write("a", "changed").directory("d");
        make(&layered.upper.join("d/thing"));
        layered.check_refused(ErrorKind::WrongType, "`d/thing` is ");
        eprintln!("{what} is refused");
    }
}

#[test]
fn both_ends_of_a_rename_are_refused_together() {
    let renames: [(&str, OverlayProgram); 4] = [
        // `mv a/l1 l2`, after which the link leads outside.
        ("l2", |layered| {
            layered.whiteout("a/l1");
            symlink("../b", layered.upper.join("l2")).unwrap();
        }),
        // `mv d/a c`, with a link in it that leads outside then.
        ("c/l1", |layered| {
            layered.whiteout("d/a").directory("c");
            symlink("../../b", layered.upper.join("c/l1")).unwrap();
        }),
        ("new", |layered| _ = layered.whiteout("empty").directory("new")),
        ("new/inner", |layered| _ = layered.whiteout("full").directory("new/inner")),
    ];
    for (to, rename) in renames {
        let world = FsFixture::in_memory(setup());
        world.write("b", "b");
        for directory in ["a", "d/a", "empty", "full/inner"] {
            fs::create_dir_all(world.root.join(directory)).unwrap();
        }
        symlink("../b", world.root.join("a/l1")).unwrap();
        symlink("../../b", world.root.join("d/a/l1")).unwrap();
        let layered = OverlayFixture::start_over(world);
        rename(&layered);
        let mut work = fence_changes(&layered).unwrap();
        let groups = work.groups();
        let is_refused = |group: &ChangeGroup| group.accesses.iter().any(|access| access.resource.requested_path == to);
        assert!(groups.iter().any(is_refused), "{to}");
        let refusal = ChangeGroupDecision::Refuse(ToolError::new(ErrorKind::WrongType, "no"));
        let wanted = |group| if is_refused(group) { refusal.clone() } else { ChangeGroupDecision::Keep };
        let decided = work.reconcile(groups.iter().map(wanted).collect());
        assert!(decided.iter().all(|decision| matches!(decision, ChangeGroupDecision::Refuse(_))), "{to}: {decided:?}");
    }
}

#[test]
fn links_that_lead_outside_are_refused() {
    let outside = [
        ("/etc/passwd", "x"),
        ("/usr", "x"),
        ("/usr/../etc/passwd", "x"),
        ("/usrx/y", "x"),
        ("/workspace/a", "x"),
        ("..", "x"),
        ("../outside", "x"),
        ("../../x", "d/x"),
        ("inner/../../../x", "d/x"),
        ("here/..", "x"),
        ("none/../a", "x"),
        ("up/secret", "x"),
        ("d/up/secret", "x"),
    ];
    for (target, at) in outside {
        let layered = OverlayFixture::new(&[("a", "a"), ("d/inner/b", "b")]);
        // Links from before.
        symlink(".", layered.world.root.join("here")).unwrap();
        symlink("../outside", layered.world.root.join("up")).unwrap();
        symlink("../up", layered.world.root.join("d/up")).unwrap();
        let layered = OverlayFixture::start_over(layered.world);
        layered.directory("d");
        symlink(target, layered.upper.join(at)).unwrap();
        layered.check_refused(ErrorKind::WrongType, "is a link that leads outside the workspace");
    }
    let inside = [("a", "x"), ("../a", "d/x"), ("nowhere", "x"), ("inner/b", "d/x"), ("x", "x"), (".", "d/x")];
    // A virtual environment has links to the system's interpreter.
    for (target, at) in inside.into_iter().chain([("/usr/bin/python3", "d/x"), ("/bin/sh", "x")]) {
        let layered = OverlayFixture::new(&[("a", "a"), ("d/inner/b", "b")]);
        layered.directory("d");
        symlink(target, layered.upper.join(at)).unwrap();
        layered.check(&[&format!("{at} link")]);
    }
}

#[test]
fn an_overlay_redirect_is_refused() {
    for attribute in ["redirect", "metacopy"] {
        let layered = OverlayFixture::new(&[("d/a", "a")]);
        layered.write("d/a", "b").attribute("d/a", attribute, "/etc/passwd");
        layered.check_refused(ErrorKind::WrongType, "reference to another file");
        let layered = OverlayFixture::new(&[("d/a", "a")]);
        layered.directory("d").attribute("d", attribute, "x");
        layered.check_refused(ErrorKind::WrongType, "reference to another file");
    }
}

#[test]
fn a_file_that_claims_to_be_huge_is_refused() {
    let layered = OverlayFixture::new(&[("a", "a")]);
    let file = fs::File::create(layered.upper.join("huge")).unwrap();
    file.set_len((1 << 62) + 5).unwrap();
    layered.check_refused(ErrorKind::WriteLimit, "`huge`");
}

#[test]
fn directories_that_are_too_deep_are_refused_and_deep_ones_are_not() {
    let layered = OverlayFixture::new(&[("a", "a")]);
    deepen(&layered.upper, 4096);
    layered.check_refused(ErrorKind::InvalidPath, "is too long");
    cut(&layered.upper);
    let layered = OverlayFixture::new(&[("a", "a")]);
    deepen(&layered.upper, 900);
    let (said, change) = layered.committed();
    assert_eq!(said.len(), 900);
    layered.world.value("undo", &json!({"change": change}));
    assert_eq!(layered.tree().len(), 1);
    // What is kept can no longer be reached by the path of a host, and would stay behind.
    cut(&layered.upper);
}

/// Directories in each other, made without ever naming the whole path.
fn deepen(root: &Path, depth: usize) {
    let mut at = rustix::fs::open(root, rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
}

fn cut(root: &Path) {
    let status = std::process::Command::new("rm").arg("-rf").arg(root.join("d")).status().unwrap();
    assert!(status.success());
}

#[test]
fn names_that_hide_what_they_are_are_refused() {
    for name in [&b"a\nb"[..], b"\xff\xfe", "a\u{202e}b".as_bytes()] {
        let layered = OverlayFixture::new(&[("a", "a")]);
        fs::write(layered.upper.join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
        layered.check_refused(ErrorKind::InvalidPath, "such names cannot be created");
    }
    for name in [".ringfence", ".ringfence-tmp-1", "d/.ringfence"] {
        let layered = OverlayFixture::new(&[("a", "a")]);
        layered.write(name, "x");
        layered.check_refused(ErrorKind::WrongType, "is reserved by the host");
    }
}

#[test]
fn the_keep_never_goes() {
    let layered = OverlayFixture::new(&[("a", "a"), ("b", "b")]);
    layered.world.value("write_file", &json!({"path": "a", "content": "2"}));
    let layered = OverlayFixture::start_over(layered.world);
    set_xattr(&layered.upper, "opaque", "y");
    layered.whiteout(".ringfence").write("b", "b");
    let (said, _) = layered.committed();
    assert_eq!(said, ["a deleted"]);
    assert!(image_names(&layered.world.root).len() > 1);
}

#[test]
fn a_read_only_preset_and_a_read_only_mount_change_nothing() {
    let layered = OverlayFixture::with(FsFixtureConfig { preset: Preset::ReadOnly, ..setup() }, &[("a", "a")]);
    layered.write("a", "b");
    layered.check_refused(ErrorKind::PermissionDenied, "read-only");
    let mounts = vec![("docs", MountAccess::ReadOnly), ("state", MountAccess::ReadWrite)];
    let world = FsFixture::with(FsFixtureConfig { mounts, ..setup() });
    assert!(world.fence.workspace("state").is_none() && world.fence.workspace("nothing").is_none());
    let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    let docs = world.fence.workspace("docs").unwrap();
    let view = docs.view(&cx).unwrap();
    assert_eq!(view.read_only_mounts.iter().map(|shown| shown.alias.as_str()).collect::<Vec<_>>(), ["workspace"]);
    let upper = tempfile::tempdir().unwrap();
    fs::write(upper.path().join("x"), "x").unwrap();
    let changes = docs.changes(&view, fs::File::open(upper.path()).unwrap().into(), &cx).unwrap();
    let refused: Vec<_> = changes.groups().into_iter().map(|group| group.refusal.unwrap().kind).collect();
    assert_eq!(refused, [ErrorKind::ReadOnly]);
}

#[test]
fn a_file_that_grew_beyond_what_may_be_committed_at_once_is_refused() {
    let limits = CallLimits { copy_bytes: 10, ..CallLimits::for_dialect(Dialect::Standard) };
    let layered = OverlayFixture::with(FsFixtureConfig { limits, ..setup() }, &[("a", "a")]);
    layered.write("x", "123456").write("y", "123456");
    layered.check_refused(ErrorKind::WriteLimit, "exceed the 10 bytes");
    let limits = CallLimits { walk_entries: 5, ..CallLimits::for_dialect(Dialect::Standard) };
    let layered = OverlayFixture::with(FsFixtureConfig { limits, ..setup() }, &[]);
    (0..9).for_each(|n| _ = layered.write(&n.to_string(), "x"));
    layered.check_refused(ErrorKind::ReadLimit, "entries");
}

#[test]
fn nothing_is_opened_that_is_not_a_file() {
    // Opening a pipe without a writer for reading would block.
    let layered = OverlayFixture::new(&[("a", "a")]);
    let pipe = layered.upper.join("a");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let writer = fs::OpenOptions::new().write(true).custom_flags(0o4000).open(&pipe);
    assert!(writer.is_err());
    layered.check_refused(ErrorKind::WrongType, "`a` is a pipe");
}
