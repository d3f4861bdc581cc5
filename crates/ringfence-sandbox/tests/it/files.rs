//! File views of programs, and where their writes land.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_sandbox::JailFile;
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::fs::{Mode, OFlags, openat};

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user, chown_to_plain_user};

#[test]
fn writes_land_in_the_layer_above_the_workspace() {
    as_each_user("files::writes_land_in_the_layer_above_the_workspace", || {
        let world = SandboxFixture::new();
        world.write("kept", "old");
        world.write("d/gone", "old");
        let ended = world.bash("pwd; cat kept; echo new > kept; echo more > d/added; rm d/gone; cat kept");
        assert_eq!((ended.stdout.text().as_str(), ended.stderr.text().as_str()), ("/workspace\noldnew\n", ""));
        assert_eq!(fs::read_to_string(world.path().join("kept")).unwrap(), "old");
        assert!(world.path().join("d/gone").exists() && !world.path().join("d/added").exists());

        let upper = ended.upper.unwrap();
        let read = |path: &str| {
            let mut text = String::new();
            let file = openat(&upper, path, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty()).unwrap();
            fs::File::from(file).read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!((read("kept").as_str(), read("d/added").as_str()), ("new\n", "more\n"));
        let whiteout = rustix::fs::statat(&upper, "d/gone", rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert_eq!((whiteout.st_mode & 0o170_000, whiteout.st_rdev), (0o020_000, 0));
    });
}

#[test]
fn two_runs_share_nothing() {
    as_each_user("files::two_runs_share_nothing", || {
        let world = SandboxFixture::new();
        world.stdout_of("echo a > /tmp/a; echo b > b; echo c > /dev/shm/c; echo d > ~/d");
        assert_eq!(world.stdout_of("ls /tmp /dev/shm . ~ | grep -x '[abcd]' || true"), "");
    });
}

#[test]
fn the_workspace_is_the_programs_own() {
    as_each_user("files::the_workspace_is_the_programs_own", || {
        let world = SandboxFixture::new();
        world.write("private", "mine");
        fs::set_permissions(world.path().join("private"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(
            world.stdout_of("stat -c %u:%g . private; id -u; cat private; id -un"),
            "1000:1000\n1000:1000\n1000\nmineuser\n"
        );
    });
}

#[test]
fn files_of_others_can_be_read() {
    if !rustix::process::geteuid().is_root() {
        return skip_without(Requirement::Root, "only root gives a file to another user");
    }
    let world = SandboxFixture::new();
    world.write("theirs", "open");
    std::os::unix::fs::chown(world.path().join("theirs"), Some(12_345), Some(12_345)).unwrap();
    let ended = world.bash("cat theirs; echo x >> theirs; echo $?");
    assert_eq!(ended.stdout.text(), "open1\n", "{}", ended.stderr.text());
}

#[test]
fn secrets_are_covered() {
    as_each_user("files::secrets_are_covered", || {
        let mut world = SandboxFixture::new();
        for name in [".env", "d/key", ".ringfence/trash", "linked-to", "open"] {
            world.write(name, "secret");
        }
        std::os::unix::fs::symlink("linked-to", world.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", world.path().join("out")).unwrap();
        world.masked = vec![".env".into(), "d".into(), "link".into(), "out/passwd".into(), "absent".into()];
        world.hidden = vec![".ringfence".into()];
        let found = world.stdout_of(
            "cat .env linked-to link; ls -A d .ringfence; grep -c . /etc/passwd; \
             for f in .env d .ringfence linked-to; do rm -rf $f 2>/dev/null || mv $f x 2>/dev/null || ln $f x 2>/dev/null || echo held; done; \
             echo x 2>/dev/null > .env || echo no; ls d; cat open; mv d e 2>/dev/null; cat e/* 2>/dev/null || echo nothing",
        );
        assert_eq!(found, ".ringfence:\n\nd:\n2\nheld\nheld\nheld\nheld\nno\nsecretnothing\n");
        let layer = world.bash("true").upper.unwrap();
        let left: Vec<_> =
            rustix::fs::Dir::new(layer).unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
        assert_eq!(left.len(), 2, "covers are not changes: {left:?}");
    });
}

#[test]
fn files_of_a_run_are_mounted_over_those_of_the_workspace() {
    as_each_user("files::files_of_a_run_are_mounted_over_those_of_the_workspace", || {
        check_replaced(&SandboxFixture::new());
    });
}

/// A run shows its own contents at a path of the workspace, and what it masks is empty.
pub(crate) fn check_replaced(world: &SandboxFixture) {
    for name in ["repo/config", "repo/hooks/planted", "open"] {
        world.write(name, "planted");
    }
    chown_to_plain_user(world.path());
    let script = "cat repo/config /run/ringfence/config; ls repo; ls -A repo/hooks; cat open; \
                  (rm -f repo/config || echo x > repo/config || mv repo away) 2>/dev/null || echo held";
    let view = world.view();
    let over = |path: &str| JailFile { over: Some(path.into()), ..JailFile::new("config", "ours\n") };
    let mut job = world.job(&view, &["bash", "/run/ringfence/main"], script);
    job.files.extend([over("repo/config"), JailFile { name: "absent".to_owned(), ..over("repo/absent") }]);
    job.masked = vec!["repo/hooks".into(), "repo/nowhere".into()];
    let ended = world.sandbox.run(&job, &OutputObserver::default()).unwrap();
    let expected = "ours\nours\nconfig\nhooks\nplantedheld\n";
    assert_eq!((ended.stdout.text().as_str(), ended.stderr.text().as_str()), (expected, ""));
}

#[test]
fn the_workspace_below_the_layer_is_nowhere_to_be_found() {
    as_each_user("files::the_workspace_below_the_layer_is_nowhere_to_be_found", || {
        let mut world = SandboxFixture::new();
        world.write("covered.env", "secret");
        world.masked = vec!["covered.env".into()];
        let found = world.stdout_of(
            "find / -name covered.env -not -path '/workspace/*' -not -path '/proc/*' -size +0 2>/dev/null; \
             cat covered.env /proc/*/root/workspace/covered.env /proc/1/cwd/covered.env 2>/dev/null; true",
        );
        assert_eq!(found, "");
    });
}

#[test]
fn masked_files_are_masked_in_system_directories_too() {
    as_each_user("files::masked_files_are_masked_in_system_directories_too", || {
        let mut world = SandboxFixture::new();
        let full = |path: &PathBuf| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        let covered = fs::read_dir("/usr/share").unwrap().map(|entry| entry.unwrap().path()).find(full).unwrap();
        world.beside = vec![("share", "/usr/share".into())];
        world.masked = vec![covered.file_name().unwrap().into()];
        let name = world.masked[0].display();
        let found = world.stdout_of(&format!(
            "ls /mnt/share /usr/share | grep -cx {name}; ls -A /usr/share/{name} /mnt/share/{name}"
        ));
        assert_eq!(found, format!("2\n/mnt/share/{name}:\n\n/usr/share/{name}:\n"));
    });
}

#[test]
fn mounts_beside_the_workspace_are_read_only() {
    as_each_user("files::mounts_beside_the_workspace_are_read_only", || {
        let beside = tempfile::tempdir().unwrap();
        fs::write(beside.path().join("notes"), "read me").unwrap();
        let mut world = SandboxFixture::new();
        world.beside = vec![("other", beside.path().into())];
        let ended = world
            .bash("ls /mnt; cat /mnt/other/notes; echo x > /mnt/other/notes; echo x > /mnt/other/new; mkdir /mnt/x");
        assert_eq!(ended.stdout.text(), "other\nread me");
        assert_eq!(
            ended.stderr.text().lines().filter(|line| line.contains("Read-only")).count(),
            3,
            "{}",
            ended.stderr.text()
        );
        assert_eq!(SandboxFixture::new().stdout_of("ls -A /mnt"), "");
    });
}

#[test]
fn the_system_is_read_only_and_the_rest_is_not_there() {
    as_each_user("files::the_system_is_read_only_and_the_rest_is_not_there", || {
        let world = SandboxFixture::new();
        assert_eq!(
            world
                .stdout_of("ls -A / | tr '\\n' ' '")
                .split(' ')
                .filter(|name| !name.starts_with("lib"))
                .collect::<Vec<_>>()
                .join(" "),
            "bin dev etc mnt proc run sbin tmp usr var workspace "
        );
        let ended = world
            .bash("cat /etc/shadow; ls /root /home /sys; cat /dev/tty; touch /x /usr/x /etc/x /run/x /dev/x /proc/x");
        assert_eq!(ended.stdout.text(), "");
        assert_eq!(ended.stderr.text().lines().count(), 11, "{}", ended.stderr.text());
        assert_eq!(
            world.stdout_of("ls -A /dev | tr '\\n' ' '"),
            "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "
        );
        assert_eq!(
            world.stdout_of("cat /proc/sys/kernel/ostype; echo x > /dev/null; cat /proc/keys /proc/sysrq-trigger /proc/interrupts 2>/dev/null; ls /proc/bus"),
            "Linux\n"
        );
        let ended = world.bash("echo x > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger");
        assert_eq!(
            (ended.stdout.text().as_str(), ended.stderr.text().lines().count()),
            ("", 2),
            "{}",
            ended.stderr.text()
        );
        assert_eq!(
            world.stdout_of("echo $HOME; cd; pwd; hostname 2>/dev/null || cat /proc/sys/kernel/hostname"),
            "/tmp/home\n/tmp/home\njail\n"
        );
    });
}

#[test]
fn disk_is_bounded() {
    as_each_user("files::disk_is_bounded", || {
        let mut world = SandboxFixture::new();
        (world.limits.disk_bytes, world.limits.tmp_bytes) = (4 << 20, 2 << 20);
        let ended = world.bash("for d in . /tmp /dev/shm; do head -c 8M /dev/zero > $d/x; stat -c %s $d/x; done");
        let sizes: Vec<u64> = ended.stdout.text().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(sizes, [4 << 20, 2 << 20, 2 << 20], "{}", ended.stderr.text());
        let ended = world.bash("head -c 1M /dev/zero > a; head -c 3M /dev/zero > b; for i in $(seq 3000); do : > $i || break; done; ls | wc -l");
        assert!(ended.stdout.text().trim().parse::<u32>().unwrap() < 1100, "{}", ended.stdout.text());
    });
}

#[test]
fn a_directory_that_moved_is_not_mistaken_for_another() {
    as_each_user("files::a_directory_that_moved_is_not_mistaken_for_another", || {
        let world = SandboxFixture::new();
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("w");
        fs::create_dir(&place).unwrap();
        let held = fs::metadata(&place).unwrap().ino();
        let mut view = world.view();
        view.workspace.directory = crate::fixture::open_dir(&place);
        view.workspace.path = place.clone();
        fs::rename(&place, parent.path().join("moved")).unwrap();
        fs::create_dir(&place).unwrap();
        assert_ne!(held, fs::metadata(&place).unwrap().ino());
        check_moved(&world, &view, &place);
    });
}

/// Either it is the held one, or nothing is run.
fn check_moved(world: &SandboxFixture, view: &ringfence_kernel::WorkspaceView, place: &Path) {
    fs::write(place.join("wrong"), "").unwrap();
    let job = ringfence_sandbox::JailJob {
        argv: vec!["ls".into()],
        files: Vec::new(),
        masked: Vec::new(),
        env: Default::default(),
        limits: Default::default(),
        view,
        toolchains: &[],
        egress: None,
        stdin: None,
        output: ringfence_sandbox::OutputCapture::Separate,
        directory_report: None,
        network: None,
        wrapped: None,
    };
    match world.sandbox.run(&job, &OutputObserver::default()) {
        Ok(ended) => assert_eq!(ended.stdout.text(), ""),
        Err(failure) => assert!(failure.to_string().contains("moved or replaced"), "{failure}"),
    }
}
