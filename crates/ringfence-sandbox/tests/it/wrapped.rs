//! Mounts of wrapped programs: real paths, a home directory above the person's, and layers that stay on disk.
//!
//! Not here: terminals (`terminal.rs`), names (`name_network.rs`), and what is kept of a layer (`ringfence-fs`).

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use ringfence_sandbox::{JailError, PlacedFile};

use crate::fixture::as_each_user;
use crate::wrapped_fixture::WrappedFixture;

#[test]
fn the_workspace_has_its_own_path_and_changes_stay_in_the_layer() {
    as_each_user("wrapped::the_workspace_has_its_own_path_and_changes_stay_in_the_layer", || {
        let place = WrappedFixture::new();
        place.world.write("kept", "old\n");
        place.world.write("gone", "old\n");
        assert_eq!(
            place.stdout_of("pwd; cat kept; echo new > kept; echo more > added; rm gone; mkdir -p d/e; ls"),
            "/home/me/project\nold\nadded\nd\nkept\n"
        );
        let in_workspace = |name: &str| fs::read_to_string(place.world.path().join(name)).ok();
        assert_eq!(in_workspace("kept").as_deref(), Some("old\n"));
        assert_eq!((in_workspace("gone").as_deref(), in_workspace("added")), (Some("old\n"), None));
        assert_eq!(place.names_in("workspace/upper"), ["added", "d", "gone", "kept"]);
        assert!(fs::symlink_metadata(place.layer("workspace/upper/gone")).unwrap().file_type().is_char_device());
        // The next program on the layer goes on where this one ended.
        assert_eq!(place.stdout_of("cat kept added; ls"), "new\nmore\nadded\nd\nkept\n");
    });
}

#[test]
fn the_program_is_the_person_by_name_and_number() {
    as_each_user("wrapped::the_program_is_the_person_by_name_and_number", || {
        let place = WrappedFixture::new();
        place.world.write("mine", "");
        assert_eq!(
            place.stdout_of(
                "id -u; id -g; id -un; id -gn; echo ~; stat -c %u:%g . mine ~; touch new; stat -c %u:%g new"
            ),
            "4321\n4322\nme\nme\n/home/me\n4321:4322\n4321:4322\n4321:4322\n4321:4322\n"
        );
        // Outside it is the owner of the workspace.
        let owner = fs::metadata(place.world.path()).unwrap();
        let made = fs::metadata(place.layer("workspace/upper/new")).unwrap();
        assert_eq!((made.uid(), made.gid()), (owner.uid(), owner.gid()));
    });
}

#[test]
fn a_home_directory_starts_with_its_files_and_keeps_what_was_written() {
    as_each_user("wrapped::a_home_directory_starts_with_its_files_and_keeps_what_was_written", || {
        let place = WrappedFixture::new();
        fs::write(place.layer("home/start/.agentrc"), "first\n").unwrap();
        fs::set_permissions(place.layer("home/start/.agentrc"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(
            place.stdout_of("cd; ls -A; cat .agentrc; echo second > .agentrc; echo x > .new"),
            ".agentrc\nproject\nfirst\n"
        );
        assert_eq!(fs::read_to_string(place.layer("home/start/.agentrc")).unwrap(), "first\n");
        // The mount point of the workspace is not a change of the program.
        assert_eq!(place.names_in("home/upper"), [".agentrc", ".new"]);
        assert_eq!(place.stdout_of("cd; cat .agentrc .new"), "second\nx\n");
    });
}

#[test]
fn placed_files_are_there_and_are_not_changed() {
    as_each_user("wrapped::placed_files_are_there_and_are_not_changed", || {
        let placed = |path: &str, text: &str| PlacedFile { path: path.into(), contents: text.as_bytes().to_vec() };
        let mut place = WrappedFixture::new();
        place.files = vec![
            placed("/etc/agent/managed.json", "{}\n"),
            placed("/etc/passwd", "other:x:1:1::/:/bin/sh\n"),
            placed("/home/me/.config/agent.toml", "a = 1\n"),
        ];
        assert_eq!(
            place.stdout_of(
                "cat /etc/agent/managed.json ~/.config/agent.toml; grep -c . /etc/passwd\n\
                 for file in /etc/agent/managed.json ~/.config/agent.toml; do\n\
                 (echo x > $file) 2>/dev/null || echo refused; rm -f $file 2>/dev/null || echo stays; done"
            ),
            "{}\na = 1\n1\nrefused\nstays\nrefused\nstays\n"
        );
        assert!(!place.layer("home/upper/.config/agent.toml").exists());
    });
}

#[test]
fn secrets_of_the_workspace_are_masked_at_its_own_path() {
    as_each_user("wrapped::secrets_of_the_workspace_are_masked_at_its_own_path", || {
        let mut place = WrappedFixture::new();
        place.world.write(".env", "KEY=7f3a9c\n");
        place.world.write("sub/.env", "KEY=7f3a9c\n");
        place.world.write(".ringfence/trash", "KEY=7f3a9c\n");
        place.world.masked = vec![".env".into(), "sub/.env".into()];
        place.world.hidden = vec![".ringfence".into()];
        assert_eq!(
            place.stdout_of("cat .env sub/.env; ls -A .ringfence 2>/dev/null; grep -r 7f3a9c . || echo clean"),
            "clean\n"
        );
        let ended =
            place.try_run(&["bash", "/run/ringfence/main"], "mv sub other; cat other/.env; echo y > .env").unwrap();
        assert!(!ended.stdout.text().contains("7f3a9c"), "{}", ended.stdout.text());
        assert_eq!(fs::read_to_string(place.world.path().join(".env")).unwrap(), "KEY=7f3a9c\n");
    });
}

/// Links where the host mounts, as an earlier program left them.
#[test]
fn links_in_a_home_directory_lead_no_mount_elsewhere() {
    as_each_user("wrapped::links_in_a_home_directory_lead_no_mount_elsewhere", || {
        for planted in ["project", ".config"] {
            let mut place = WrappedFixture::new();
            place.world.write("a", "of the workspace\n");
            let contents = b"placed\n".to_vec();
            place.files = vec![PlacedFile { path: "/home/me/.config/agent.toml".into(), contents }];
            symlink("/etc", place.layer("home/upper").join(planted)).unwrap();
            let script = "ls -d /etc/a /etc/agent.toml 2>/dev/null; cat ~/project/a ~/.config/agent.toml 2>/dev/null";
            match place.try_run(&["bash", "/run/ringfence/main"], script) {
                Ok(ended) => assert!(!ended.stdout.text().contains("/etc/"), "{planted}: {}", ended.stdout.text()),
                Err(error) => {
                    assert!(matches!(error, JailError::Unavailable { .. } | JailError::Io(..)), "{error:?}")
                }
            }
        }
    });
}

#[test]
fn a_place_that_the_jail_needs_itself_is_refused() {
    let check = |workspace: &str, home: &str, message: &str| {
        let mut place = WrappedFixture::new();
        place.workspace_path = workspace.into();
        place.identity.home = home.into();
        let error = place.try_run(&["true"], "").unwrap_err().to_string();
        assert!(error.contains(message), "{workspace}, {home}: {error}");
    };
    for path in ["/", "/etc", "/usr", "/tmp", "/proc/self", "/dev/shm/w", "/run/ringfence/w", "relative", "/home/../x"]
    {
        check(path, "/home/me", "cannot show a workspace at this path");
        check("/home/me/project", path, "cannot show a home directory at the user's path");
    }
    check("/home/me", "/home/me", "the workspace is the home directory itself");
    let mut place = WrappedFixture::new();
    for path in ["relative", "/proc/x", "/run/ringfence/main", "/etc/../x"] {
        place.files = vec![PlacedFile { path: Path::new(path).to_owned(), contents: Vec::new() }];
        let error = place.try_run(&["true"], "").unwrap_err().to_string();
        assert!(error.contains("a file cannot be placed"), "{path}: {error}");
    }
    place.files.clear();
    for name in ["", "a:b", "a\nb"] {
        place.identity.name = name.to_owned();
        let error = place.try_run(&["true"], "").unwrap_err().to_string();
        assert!(error.contains("the name or a path of the user"), "{name:?}: {error}");
    }
}
