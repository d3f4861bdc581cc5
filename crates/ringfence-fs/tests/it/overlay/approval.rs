//! Approval of a program's changes, and the prompt.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;

use ringfence_fs::{Fence, FenceOptions, MountAccess, MountSpec};
use ringfence_kernel::{CallLimits, Dialect, ErrorKind, Preset, ToolError};
use ringfence_testkit::approver::ScriptedApprover;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use super::{ConcurrentWriter, OverlayFixture, image_names, setup};
use crate::fixture::{FsFixture, FsFixtureConfig};

#[test]
fn protected_paths_are_asked_about_and_others_are_not() {
    let asked = [
        ".git/hooks/pre-commit",
        ".git/config",
        ".git",
        "sub/.git",
        ".gitattributes",
        ".envrc",
        ".mcp.json",
        ".vscode/tasks.json",
        ".claude/settings.json",
        ".github/workflows/ci.yml",
        ".GIT/hooks/x",
        "sitecustomize.py",
        "usercustomize.py",
        "nested/HEAD",
    ];
    for path in asked {
        let layered = OverlayFixture::with(FsFixtureConfig { preset: Preset::Edits, ..setup() }, &[("a", "a")]);
        layered.write(path, "x").write("a", "b");
        if path == "nested/HEAD" {
            layered
                .write("nested/config", "[core]\nfsmonitor = evil\n")
                .directory("nested/objects")
                .directory("nested/refs");
        }
        layered.check_refused(ErrorKind::ApprovalDenied, "a setting that other programs act on");
    }
    for path in ["Makefile", "package.json", "conftest.py", "model.pth", "src/.gitignore", "d/HEAD", "config"] {
        let layered = OverlayFixture::new(&[("a", "a")]);
        layered.write(path, "x");
        layered.committed();
    }
}

#[test]
fn a_secret_that_goes_with_its_directory_is_asked_about() {
    let layered = OverlayFixture::new(&[("d/e/.env", "KEY=1"), ("d/x", "x")]);
    layered.whiteout("d");
    layered.check_refused(ErrorKind::ApprovalDenied, "which may hold secrets");
}

#[test]
fn a_name_that_was_linked_to_a_protected_file_is_asked_about() {
    let layered = OverlayFixture::new(&[(".git/config", "[core]\n")]);
    fs::hard_link(layered.world.root.join(".git/config"), layered.world.root.join("notes")).unwrap();
    let layered = OverlayFixture::start_over(layered.world);
    layered.write("notes", "[core]\nfsmonitor = evil\n");
    layered.check_refused(ErrorKind::ApprovalDenied, "`notes`");
}

#[test]
fn a_change_past_the_quota_needs_approval() {
    let limits = CallLimits { undo_session_bytes: 100, ..CallLimits::for_dialect(Dialect::Standard) };
    let layered =
        OverlayFixture::with(FsFixtureConfig { limits: limits.clone(), ..setup() }, &[("a", &"a".repeat(200))]);
    layered.write("a", "b");
    layered.check_refused(ErrorKind::ApprovalDenied, "the current contents are not kept");
    let person = ScriptedApprover::approving();
    let asked = FsFixtureConfig { limits, person: Some(person), ..setup() };
    let layered = OverlayFixture::with(asked, &[("a", &"a".repeat(200)), ("d/x", "x")]);
    layered.write("a", "b").whiteout("d").write("n", "n");
    let (_, change) = layered.committed();
    assert_eq!(layered.world.read("a"), "b");
    assert_eq!(image_names(&layered.world.root), [".gitignore", &format!("{change}-2")][..1]);
    assert_eq!(layered.world.error("undo", &json!({"change": change})), ErrorKind::Conflict);
}

#[test]
fn a_person_sees_what_is_protected_however_much_else_there_is() {
    let person = ScriptedApprover::approving();
    let layered =
        OverlayFixture::with(FsFixtureConfig { person: Some(person.clone()), ..setup() }, &[("z/.git/hooks/a", "a")]);
    for number in 0..1200 {
        layered.write(&format!("a/{number}"), "x");
    }
    layered.write("z/.vscode/tasks.json", "planted\n").whiteout("z/.git");
    layered.committed();
    let shown = person.last_request().preview.text();
    for words in ["+planted\n", "delete the directory `z/.git` with", "more changes"] {
        assert!(shown.contains(words), "{words}\n{}", &shown[..2000]);
    }
}

#[test]
fn a_person_sees_what_would_change_and_gets_what_they_saw() {
    let person = ScriptedApprover::approving();
    let layered = OverlayFixture::with(
        FsFixtureConfig { preset: Preset::Ask, person: Some(person.clone()), ..setup() },
        &[("a.txt", "one\ntwo\n"), ("gone", "g"), ("d/x", "x"), ("run", "r")],
    );
    layered.write("a.txt", "one\n2\n").write("new.bin", b"\0\0").whiteout("gone").whiteout("d").write("run", "r");
    fs::set_permissions(layered.upper.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    layered.committed();
    let shown = person.last_request().preview.text();
    for words in [
        "commit a program's changes: 1 new, 2 changed, 2 deleted",
        "-two\n+2\n",
        "`new.bin` is not shown as text: nothing become 2 bytes",
        "delete `gone` (1 bytes)",
        "delete the directory `d` with 1 entries (1 bytes)",
        "change the mode of `run` from 644 to 755",
    ] {
        assert!(shown.contains(words), "{words}\n{shown}");
    }
}

#[test]
fn a_guard_checks_changes_of_programs_too() {
    #[derive(Debug)]
    struct RejectBadRule;
    impl ringfence_fs::ChangeRule for RejectBadRule {
        fn judge(&self, change: &ringfence_fs::GuardedChange<'_>) -> Result<(), ToolError> {
            match change.after {
                Some(after) if after.starts_with(b"good") => Ok(()),
                _ => Err(ToolError::new(ErrorKind::Schema, format!("`{}` must be good", change.shown))),
            }
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (root, upper) = (directory.path().join("ws"), directory.path().join("upper"));
    let spec = || MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: MountAccess::ReadWrite };
    let cases: [(&str, Option<ErrorKind>, ConcurrentWriter); 7] = [
        ("good", None, |upper| fs::write(upper.join("d/guarded"), "good too").unwrap()),
        ("bad", Some(ErrorKind::Schema), |upper| fs::write(upper.join("d/guarded"), "bad").unwrap()),
        ("gone", Some(ErrorKind::Schema), |upper| {
            mknodat(CWD, upper.join("d/guarded"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }),
        ("a directory", Some(ErrorKind::PermissionDenied), |upper| fs::create_dir(upper.join("d/guarded")).unwrap()),
        ("a link", Some(ErrorKind::PermissionDenied), |upper| symlink("x", upper.join("d/guarded")).unwrap()),
        ("alike", Some(ErrorKind::PermissionDenied), |upper| fs::write(upper.join("d/GUARDED"), "good").unwrap()),
        ("the directory of it", Some(ErrorKind::PermissionDenied), |upper| {
            fs::remove_dir(upper.join("d")).unwrap();
            mknodat(CWD, upper.join("d"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }),
    ];
    for (what, expected, program) in cases {
        for made in [&root, &upper] {
            let _ = fs::remove_dir_all(made);
            fs::create_dir_all(made.join("d")).unwrap();
        }
        fs::write(root.join("d/guarded"), "good").unwrap();
        let state = directory.path().join(format!("state-{what}"));
        let mut fence = Fence::new(spec(), Vec::new(), &state, FenceOptions::default()).unwrap();
        fence.guard("workspace", "d/guarded", Arc::new(RejectBadRule)).unwrap();
        let world = FsFixture::with_fence(fence, setup());
        let layered = OverlayFixture::restart_over(world, upper.clone());
        program(&upper);
        let answer = layered.commit();
        assert_eq!(answer.error, expected, "{what}: {}", answer.text);
    }
}
