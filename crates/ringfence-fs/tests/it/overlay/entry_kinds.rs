//! Entry kinds of an overlay, and what each becomes in the workspace.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::json;

use super::{OverlayFixture, fence_changes, setup, tree};
use crate::snapshot::snapshot;

#[test]
fn files_come_change_and_go() {
    let layered =
        OverlayFixture::new(&[("a.txt", "old\n"), ("gone.txt", "gone\n"), ("d/same.txt", "same\n"), ("d/e/x", "x")]);
    layered.write("a.txt", "new\n").write("b/c/new.txt", "new\n").whiteout("gone.txt").write("d/same.txt", "same\n");
    layered.whiteout("d/e").whiteout("d/never-was");
    layered.check(&[
        "a.txt modified 4",
        "b created",
        "b/c created",
        "b/c/new.txt created 4",
        "d/e deleted",
        "gone.txt deleted",
    ]);
    assert_eq!(layered.world.read("a.txt"), "new\n");
    assert_eq!(layered.world.read("b/c/new.txt"), "new\n");
}

#[test]
fn a_layer_without_changes_changes_nothing() {
    let layered = OverlayFixture::new(&[("a.txt", "same\n"), ("d/b.txt", "same\n")]);
    layered.write("a.txt", "same\n").directory("d").whiteout("x/y");
    fs::remove_dir_all(layered.upper.join("x")).unwrap();
    let before = snapshot(&layered.world.root);
    let work = fence_changes(&layered).unwrap();
    assert!(work.changed_paths().is_empty() && work.groups().is_empty());
    assert_eq!(snapshot(&layered.world.root), before);
}

#[test]
fn a_directory_that_was_removed_and_made_again_hides_nothing() {
    let layered =
        OverlayFixture::new(&[("d/a", "a"), ("d/b", "b"), ("d/sub/x", "x"), ("d/sub/y", "y"), ("other", "o")]);
    layered.opaque("d").write("d/b", "B").write("d/sub/x", "x").write("d/new", "n");
    layered.check(&["d/a deleted", "d/b modified 1", "d/new created 1", "d/sub/y deleted"]);
}

#[test]
fn opaque_directories_lie_in_each_other() {
    let layered = OverlayFixture::new(&[("d/a", "a"), ("d/e/b", "b"), ("d/e/f/c", "c"), ("d/e/f/g/h", "h")]);
    layered.directory("d").opaque("d/e").opaque("d/e/f").opaque("d/e/f/g").write("d/e/f/g/i", "i").opaque("x/y");
    layered.check(&[
        "d/e/b deleted",
        "d/e/f/c deleted",
        "d/e/f/g/h deleted",
        "d/e/f/g/i created 1",
        "x created",
        "x/y created",
    ]);
}

#[test]
fn one_kind_of_thing_takes_the_place_of_another() {
    let layered =
        OverlayFixture::new(&[("file", "f"), ("dir/a", "a"), ("dir/b/c", "c"), ("to-link", "l"), ("e/x", "x")]);
    symlink("file", layered.world.root.join("link")).unwrap();
    let layered = OverlayFixture::start_over(layered.world);
    layered.write("file/inner/x", "x").write("dir", "now a file").write("link", "now a file");
    symlink("dir", layered.upper.join("to-link")).unwrap();
    symlink("to-link", layered.upper.join("e")).unwrap();
    layered.check(&[
        "dir modified 10",
        "e link",
        "file modified",
        "file/inner created",
        "file/inner/x created 1",
        "link modified 10",
        "to-link link",
    ]);
}

#[test]
fn modes_change_and_special_bits_do_not_come_along() {
    let layered = OverlayFixture::new(&[("run.sh", "#!/bin/sh\n"), ("suid", "s"), ("d/x", "x"), ("shared/x", "x")]);
    let mode =
        |root: &Path, path: &str, mode| fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    mode(&layered.world.root, "shared", 0o2775);
    let layered = OverlayFixture::start_over(layered.world);
    layered.write("run.sh", "#!/bin/sh\n").write("suid", "S").directory("d").write("new", "n").directory("shared");
    layered.write("closed/x", "x");
    for (path, bits) in
        [("run.sh", 0o755), ("suid", 0o4755), ("d", 0o700), ("new", 0o6711), ("shared", 0o750), ("closed", 0o555)]
    {
        mode(&layered.upper, path, bits);
    }
    layered.check(&[
        "closed created",
        "closed/x created 1",
        "d mode",
        "new created 1",
        "run.sh mode 10",
        "shared mode",
        "suid modified 1",
    ]);
    let bits = |path: &str| fs::metadata(layered.world.root.join(path)).unwrap().mode() & 0o7777;
    assert_eq!([bits("run.sh"), bits("suid"), bits("d")], [0o755, 0o755, 0o700]);
    assert_eq!([bits("new"), bits("shared"), bits("closed")], [0o711, 0o2750, 0o555]);
}

#[test]
fn a_file_without_write_permission_can_be_replaced_as_a_program_can_replace_it() {
    let layered = OverlayFixture::new(&[("pack.idx", "old"), ("shut", "old")]);
    let mode = |root: &Path, path: &str, mode| {
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&layered.world.root, "pack.idx", 0o444);
    mode(&layered.world.root, "shut", 0o000);
    let layered = OverlayFixture::start_over(layered.world);
    layered.write("pack.idx", "new").write("shut", "open");
    mode(&layered.upper, "pack.idx", 0o444);
    let (said, change) = layered.committed();
    assert_eq!(said, ["pack.idx modified 3", "shut modified 4"]);
    layered.world.value("undo", &json!({"change": change}));
    assert_eq!(layered.world.read("pack.idx"), "old");
    assert_eq!(fs::metadata(layered.world.root.join("shut")).unwrap().mode() & 0o777, 0o000);
}

#[test]
fn a_committed_file_has_the_time_that_the_program_gave_it() {
    let layered = OverlayFixture::new(&[("a", "a")]);
    layered.write("a", "b").write("d/x", "x");
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in ["a", "d/x"] {
        fs::File::options().write(true).open(layered.upper.join(path)).unwrap().set_modified(time).unwrap();
    }
    layered.check(&["a modified 1", "d created", "d/x created 1"]);
    for path in ["a", "d/x"] {
        assert_eq!(fs::metadata(layered.world.root.join(path)).unwrap().modified().unwrap(), time);
    }
}

#[test]
fn a_file_that_has_another_name_now_is_listed_once() {
    let layered = OverlayFixture::new(&[("old.txt", "contents"), ("d/two", "two!")]);
    layered.whiteout("old.txt").write("new.txt", "contents").attribute("new.txt", "origin", "");
    layered.whiteout("d/two").write("d/copy", "two?");
    layered.check(&["d/copy created 4", "d/two deleted", "new.txt from old.txt 8"]);
}

#[test]
fn whiteouts_by_attribute_count_where_the_directory_says_so() {
    let layered = OverlayFixture::new(&[("d/a", "a"), ("e/a", "a")]);
    layered.write("d/a", "").attribute("d/a", "whiteout", "").attribute("d", "opaque", "x");
    layered.write("e/a", "").attribute("e/a", "whiteout", "");
    layered.check(&["d/a deleted", "e/a modified 0"]);
}

#[test]
fn hard_links_become_files_of_their_own() {
    let layered = OverlayFixture::new(&[("a", "a"), ("other", "a")]);
    let root = &layered.world.root;
    fs::hard_link(root.join("a"), root.join("second")).unwrap();
    let layered = OverlayFixture::start_over(layered.world);
    let root = &layered.world.root;
    layered.write("x", "xx").write("a", "new");
    fs::hard_link(layered.upper.join("x"), layered.upper.join("y")).unwrap();
    layered.check(&["a modified 3", "x created 2", "y created 2"]);
    assert_eq!(fs::metadata(root.join("x")).unwrap().nlink(), 1);
    assert_eq!((layered.world.read("a"), layered.world.read("second")), ("new".to_owned(), "a".to_owned()));
}

#[test]
fn an_unreadable_upper_entry_is_read() {
    let layered = OverlayFixture::new(&[("d/x", "x")]);
    layered.write("shut/in/f", "secretive").write("d/g", "g").write("d/x", "y");
    for (path, mode) in [("shut/in/f", 0o000), ("shut/in", 0o000), ("shut", 0o300), ("d/g", 0o200), ("d/x", 0o644)] {
        fs::set_permissions(layered.upper.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let (said, _) = layered.committed();
    let expected = ["d/g created 1", "d/x modified 1", "shut created", "shut/in created", "shut/in/f created 9"];
    assert_eq!(said, expected);
    let mode = |path: &str| fs::symlink_metadata(layered.world.root.join(path)).unwrap().mode() & 0o777;
    assert_eq!([mode("shut"), mode("shut/in"), mode("d/g"), mode("shut/in/f")], [0o700, 0o500, 0o200, 0o000]);
}

#[test]
fn new_things_belong_to_whom_the_workspace_belongs() {
    if !rustix::process::geteuid().is_root() {
        return skip_without(Requirement::Root, "only root gives files to another user");
    }
    let layered = OverlayFixture::new(&[("a", "a"), ("team/b", "b")]);
    std::os::unix::fs::chown(layered.world.root.join("team"), Some(1234), Some(99)).unwrap();
    fs::set_permissions(layered.world.root.join("team"), fs::Permissions::from_mode(0o2775)).unwrap();
    std::os::unix::fs::chown(&layered.world.root, Some(1234), Some(2345)).unwrap();
    std::os::unix::fs::chown(layered.world.root.join("a"), Some(77), Some(88)).unwrap();
    let layered = OverlayFixture::start_over(layered.world);
    layered.write("a", "b").write("d/x", "x").write("team/d/x", "x");
    fs::set_permissions(layered.upper.join("team"), fs::Permissions::from_mode(0o775)).unwrap();
    symlink("x", layered.upper.join("d/l")).unwrap();
    layered.committed();
    let owner =
        |path: &str| fs::symlink_metadata(layered.world.root.join(path)).map(|meta| (meta.uid(), meta.gid())).unwrap();
    assert_eq!(
        [owner("a"), owner("d"), owner("d/x"), owner("d/l")],
        [(77, 88), (1234, 2345), (1234, 2345), (1234, 2345)]
    );
    // A directory that gives its group to what is made in it does so here too.
    assert_eq!([owner("team/d"), owner("team/d/x")], [(1234, 99), (1234, 99)]);
    assert_eq!(fs::metadata(layered.world.root.join("team/d")).unwrap().mode() & 0o7000, 0o2000);
}

#[test]
fn a_real_overlay_leaves_what_it_showed() {
    let scripts = [
        "echo new > a; rm gone; mkdir -p x/y; echo z > x/y/z; mv d/one d/two; ln -s a l; chmod 755 run",
        "rm -rf d; mkdir d; echo 1 > d/fresh",
        "rm -rf d; echo file > d; rm a; mkdir a; echo in > a/in",
        "mv d e || { cp -a d e && rm -rf d; }",
        "ln a hard; echo more >> hard",
        "chmod 700 d; touch a; touch -d '2001-01-01' gone",
        "rm -rf d gone a; mkdir -p d/s/t; echo q > d/s/t/q; rm -rf d/s; mkdir d/s",
    ];
    for script in scripts {
        let files = [("a", "a\n"), ("gone", "gone\n"), ("d/one", "1\n"), ("d/s/deep", "deep\n"), ("run", "r\n")];
        let layered = OverlayFixture::with(setup(), &files);
        let shown = layered.world.host_path().join("shown");
        let Some(()) = run_in_overlay(&layered, script, &shown) else {
            return skip_without(Requirement::Overlayfs, "a user mounts an overlay");
        };
        let before = layered.tree();
        let (_, change) = layered.committed();
        assert_eq!(layered.tree(), tree(&shown), "{script}");
        layered.world.value("undo", &json!({"change": change}));
        assert_eq!(layered.tree(), before, "{script}");
    }
}

/// Runs a script above the workspace, and copies what it saw in the end.
fn run_in_overlay(layered: &OverlayFixture, script: &str, shown: &Path) -> Option<()> {
    let at = |name: &str| layered.world.host_path().join(name);
    for name in ["work", "merged"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    let whole = format!(
        "set -e; mount -t overlay overlay -o userxattr,lowerdir={},upperdir={},workdir={} {}; cd {}; {script}; cp -a . {}",
        layered.world.root.display(),
        layered.upper.display(),
        at("work").display(),
        at("merged").display(),
        at("merged").display(),
        shown.display(),
    );
    let output = std::process::Command::new("unshare").args(["-Urm", "sh", "-c", &whole]).output().ok()?;
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success().then_some(())
}

#[test]
fn many_files_are_committed_in_one_go() {
    let count = 2000;
    let layered = OverlayFixture::new(&[("a", "a")]);
    for n in 0..count {
        layered.write(&format!("d{}/f{n}", n % 50), format!("{n}\n"));
    }
    let (said, change) = layered.committed();
    assert_eq!(said.len(), count + 50);
    layered.world.value("undo", &json!({"change": change}));
    assert_eq!(layered.tree().len(), 1);
}
