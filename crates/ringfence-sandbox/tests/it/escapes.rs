//! Escape tests: every attempt, in a jail, where it must fail, and outside, where it should work.
//!
//! The scoreboard is printed with `--nocapture`, with every control that this machine cannot show.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::SystemTime;

use ringfence_kernel::{ExposedDir, WorkspaceView};
use ringfence_sandbox::Toolchain;
use ringfence_testkit::escape_attempts::{AttemptControl, EscapeAttempt, GROUPS};
use ringfence_testkit::escape_stage::{AttemptOutcome, EscapeHost, EscapeStage};
use ringfence_testkit::requirement::print_note;
use rustix::fs::{Mode, OFlags, flistxattr, openat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::geteuid;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::fixture::{
    JailVariant, MARK, OutputObserver, SandboxFixture, as_each_user, as_each_user_isolated, exposed_dir,
    skip_without_opt,
};

#[test]
fn every_attempt_is_held() {
    as_each_user_isolated("escapes::every_attempt_is_held", || {
        let (host, all) = (EscapeHost::new(), all_attempts());
        let (next, board) = (AtomicUsize::new(0), AttemptTally::default());
        let worlds = JailVariant::ALL.map(JailVariant::world);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(attempt) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                        for world in &worlds {
                            let inside = try_inside(&host, &EscapeStage::new(&host), world, attempt);
                            board.record_inside(&format!("{} ({:?})", attempt.name, world.variant), inside);
                        }
                        board.record_control(attempt.name, try_outside(&host, attempt));
                    }
                });
            }
        });
        board.assert_held(all.len(), worlds.len());
    });
}

/// Only root can have a directory for toolchains that is gone afterwards.
#[test]
fn a_socket_in_a_toolchain_reaches_no_listener() {
    const PLACE: &str = "/opt";
    if !geteuid().is_root() || !Path::new(PLACE).is_dir() {
        return skip_without_opt("root makes a socket among the toolchains");
    }
    // This thread, and the spawner that it starts, see another `/opt` than the rest of the machine.
    // SAFETY: no descriptors are unshared, only what this thread sees of the files.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount("none", PLACE, "tmpfs", MountFlags::empty(), None).unwrap();
    let tools = Path::new(PLACE).join("tools");
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("tool"), "works").unwrap();
    let listener = UnixListener::bind(tools.join("socket")).unwrap();
    listener.set_nonblocking(true).unwrap();
    fs::set_permissions(tools.join("socket"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut world = SandboxFixture::new();
    world.toolchains =
        vec![Toolchain { name: "tools".into(), shown: vec![tools.clone()], path: Vec::new(), env: Vec::new() }];
    let ended = world.python(
        "import os, socket\nprint(sorted(os.listdir('/opt/tools')), open('/opt/tools/tool').read())\n\
         try: socket.socket(socket.AF_UNIX).connect('/opt/tools/socket'); print('ESCAPED')\n\
         except ConnectionRefusedError: print('held')",
    );
    assert_eq!(ended.stdout.text(), "['socket', 'tool'] works\nheld\n", "{}", ended.stderr.text());
    assert!(listener.accept().is_err());
}

/// Toolchains are visible in any case: their contents, and no mount of the host's own.
#[test]
fn toolchains_are_seen_through_an_overlay() {
    as_each_user("escapes::toolchains_are_seen_through_an_overlay", || {
        const PLACE: &str = "/var/lib";
        let mut names: Vec<String> =
            fs::read_dir(PLACE).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let mut world = SandboxFixture::new();
        world.toolchains =
            vec![Toolchain { name: "lib".into(), shown: vec![PLACE.into()], path: Vec::new(), env: Vec::new() }];
        let shown = world.stdout_of(&format!("ls -A {PLACE} | LC_ALL=C sort; stat -f -c %T {PLACE}"));
        assert_eq!(shown, names.join("\n") + "\noverlayfs\n");
    });
}

#[test]
fn marks_of_the_layer_cannot_be_forged() {
    as_each_user("escapes::marks_of_the_layer_cannot_be_forged", || {
        let world = SandboxFixture::new();
        world.write("old/file", "text");
        let ended = world.python(
            "import os\nos.mkdir('new')\nfor place in ('old', 'new', 'old/file', '.'):\n    \
             for name in ('opaque', 'redirect', 'metacopy', 'whiteout', 'origin', 'impure', 'upper', 'nlink', 'protattr'):\n        \
             for prefix in ('user.overlay.', 'trusted.overlay.'):\n            \
             try: os.setxattr(place, prefix + name, b'y')\n            except OSError: pass\n\
             open('old/file', 'a').close(); os.utime('old'); print('tried')",
        );
        assert_eq!(ended.stdout.text(), "tried\n", "{}", ended.stderr.text());
        let upper = ended.upper.unwrap();
        for place in [".", "old", "new", "old/file"] {
            let place = openat(&upper, place, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let mut names = vec![0; 4096];
            let length = flistxattr(&place, &mut names).unwrap();
            let names = String::from_utf8(names[..length].to_vec()).unwrap();
            // Its own are those that say where something came from. What a program writes is kept under longer names.
            let forged = names.split_terminator('\0').filter(|name| {
                let own = ["user.overlay.uuid", "user.overlay.origin", "user.overlay.impure"];
                !own.contains(name) && !name.starts_with("user.overlay.overlay.")
            });
            assert_eq!(forged.collect::<Vec<_>>(), Vec::<&str>::new());
        }
    });
}

fn all_attempts() -> Vec<EscapeAttempt> {
    GROUPS.map(|(_, attempts)| attempts).concat()
}

fn try_inside(
    host: &EscapeHost,
    stage: &EscapeStage,
    world: &SandboxFixture,
    attempt: &EscapeAttempt,
) -> AttemptOutcome {
    let before = stage.everything();
    let program = stage.program(host, attempt.code, &words(Path::new("/mnt/beside")));
    let ended = world
        .run_with(&view_of(stage), &["python3", "/run/ringfence/main"], &program, &OutputObserver::default())
        .unwrap();
    if stage.everything() != before {
        return AttemptOutcome::Wrong("something outside the jail changed".to_owned());
    }
    AttemptOutcome::read(&(ended.stdout.text() + &ended.stderr.text()))
}

/// Every attempt in jails of this world, each on a stage that was prepared for it.
pub(crate) fn try_all(
    host: &EscapeHost,
    world: &SandboxFixture,
    prepare: impl Fn(&EscapeStage) + Sync,
) -> Vec<(&'static str, AttemptOutcome)> {
    let (all, next, outcomes) = (all_attempts(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(attempt) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let stage = EscapeStage::new(host);
                    prepare(&stage);
                    let outcome = try_inside(host, &stage, world, attempt);
                    outcomes.lock().unwrap().push((attempt.name, outcome));
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

fn try_outside(host: &EscapeHost, attempt: &EscapeAttempt) -> Option<AttemptOutcome> {
    let tried = match attempt.control {
        AttemptControl::Works => true,
        AttemptControl::WorksForRoot => geteuid().is_root(),
        AttemptControl::Untried => false,
    };
    tried.then(|| {
        let stage = EscapeStage::new(host);
        let program = stage.program(host, attempt.code, &words(&stage.path("beside")));
        let mut python = Command::new("python3");
        python.args(["-c", &program]).current_dir(stage.path("ws")).stdin(Stdio::null());
        let ended = python.output().unwrap();
        AttemptOutcome::read(&(String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr)))
    })
}

/// Counts of held and of shown attempts.
#[derive(Default)]
struct AttemptTally {
    held: AtomicUsize,
    confirmed: AtomicUsize,
    unconfirmed: Mutex<Vec<String>>,
    wrong: Mutex<Vec<String>>,
}

impl AttemptTally {
    fn record_inside(&self, name: &str, inside: AttemptOutcome) {
        match inside {
            AttemptOutcome::Refused(_) | AttemptOutcome::Nothing => drop(self.held.fetch_add(1, Ordering::Relaxed)),
            AttemptOutcome::Escaped(what) | AttemptOutcome::Wrong(what) => self.record_wrong(name, &what),
        }
    }

    fn record_wrong(&self, name: &str, what: &str) {
        self.wrong.lock().unwrap().push(format!("{name}: {what}"));
    }

    fn record_control(&self, name: &str, outside: Option<AttemptOutcome>) {
        let wrong = |what: &str| self.record_wrong(name, what);
        match outside {
            None => {}
            Some(AttemptOutcome::Escaped(_)) => drop(self.confirmed.fetch_add(1, Ordering::Relaxed)),
            Some(AttemptOutcome::Refused(why)) => self.unconfirmed.lock().unwrap().push(format!("{name} ({why})")),
            Some(AttemptOutcome::Nothing) => wrong("finds nothing outside either, so it shows nothing"),
            Some(AttemptOutcome::Wrong(why)) => wrong(&format!("outside: {why}")),
        }
    }

    fn assert_held(self, attempts: usize, jails: usize) {
        let (held, shown) = (self.held.into_inner(), self.confirmed.into_inner());
        let (not_shown, wrong) = (self.unconfirmed.into_inner().unwrap(), self.wrong.into_inner().unwrap());
        let user = geteuid().as_raw();
        print_note(&format!(
            "user {user}: {attempts} attempts in {jails} kinds of jail, {held} held, {shown} controls shown, {} not",
            not_shown.len()
        ));
        not_shown.iter().for_each(|control| print_note(&format!("  works nowhere on this machine: {control}")));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(held, attempts * jails);
        assert!(shown > not_shown.len(), "too few of the attempts are real ones");
    }
}

/// The words of an attempt that this test gives.
fn words(beside: &Path) -> [(&'static str, String); 3] {
    let process = "every_attempt_is_held".to_owned();
    [("{BESIDE}", beside.display().to_string()), ("{MARK}", MARK.1.to_owned()), ("{PROCESS}", process)]
}

fn view_of(stage: &EscapeStage) -> WorkspaceView {
    let workspace = ExposedDir {
        masked: vec![".env".into(), "deep/er/id_rsa".into()],
        hidden: vec![".ringfence".into()],
        ..exposed_dir("w", &stage.path("ws"))
    };
    WorkspaceView {
        workspace,
        read_only_mounts: vec![exposed_dir("beside", &stage.path("beside"))],
        started: SystemTime::now(),
    }
}
