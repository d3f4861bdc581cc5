//! Escape tests: every attempt, in a jail, where it must fail, and outside, where it should work.
//!
//! The scoreboard is printed with `--nocapture`, with every control that this machine cannot show.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::SystemTime;

use ringfence_kernel::{ExposedDir, WorkspaceView};
use ringfence_sandbox::Toolchain;
use ringfence_testkit::escape_attempts::{AttemptControl, EscapeAttempt, GROUPS, PRELUDE};
use ringfence_testkit::requirement::print_note;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flistxattr, flock, mkfifoat, open, openat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::geteuid;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tempfile::TempDir;

use crate::fixture::{
    MARK, OutputObserver, SandboxFixture, as_each_user, as_each_user_isolated, exposed_dir, skip_without_opt,
};

#[test]
fn every_attempt_is_held() {
    as_each_user_isolated("escapes::every_attempt_is_held", || {
        let (host, world, board) = (HostFixture::new(), SandboxFixture::new(), AttemptTally::default());
        let (all, next) = (all_attempts(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(attempt) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let inside = try_inside(&host, &EscapeFixture::new(&host), &world, attempt);
                        board.record(attempt, inside, try_outside(&host, attempt));
                    }
                });
            }
        });
        board.assert_held(all.len());
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

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum AttemptOutcome {
    Escaped(String),
    /// By an error of the system.
    Refused(String),
    /// Nothing was there.
    Nothing,
    /// The program is wrong, or something was changed.
    Wrong(String),
}

impl AttemptOutcome {
    fn read(printed: &str) -> Self {
        let last = printed.lines().last().unwrap_or_default();
        match last.strip_prefix("held: ") {
            _ if printed.contains("ESCAPED") => Self::Escaped(printed.to_owned()),
            _ if printed.lines().count() != 1 => Self::Wrong(printed.to_owned()),
            Some("nothing") => Self::Nothing,
            Some(why) => Self::Refused(why.to_owned()),
            None => Self::Wrong(printed.to_owned()),
        }
    }
}

fn try_inside(
    host: &HostFixture,
    stage: &EscapeFixture,
    world: &SandboxFixture,
    attempt: &EscapeAttempt,
) -> AttemptOutcome {
    let before = stage.everything();
    let program = stage.program(host, attempt.code, Path::new("/mnt/beside"));
    let ended = world
        .run_with(&stage.view(), &["python3", "/run/ringfence/main"], &program, &OutputObserver::default())
        .unwrap();
    if stage.everything() != before {
        return AttemptOutcome::Wrong("something outside the jail changed".to_owned());
    }
    AttemptOutcome::read(&(ended.stdout.text() + &ended.stderr.text()))
}

/// Every attempt in jails of this world, each on a stage that was prepared for it.
pub(crate) fn try_all(
    host: &HostFixture,
    world: &SandboxFixture,
    prepare: impl Fn(&EscapeFixture) + Sync,
) -> Vec<(&'static str, AttemptOutcome)> {
    let (all, next, outcomes) = (all_attempts(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(attempt) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let stage = EscapeFixture::new(host);
                    prepare(&stage);
                    let outcome = try_inside(host, &stage, world, attempt);
                    outcomes.lock().unwrap().push((attempt.name, outcome));
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

fn try_outside(host: &HostFixture, attempt: &EscapeAttempt) -> Option<AttemptOutcome> {
    let tried = match attempt.control {
        AttemptControl::Works => true,
        AttemptControl::WorksForRoot => geteuid().is_root(),
        AttemptControl::Untried => false,
    };
    tried.then(|| {
        let stage = EscapeFixture::new(host);
        let program = stage.program(host, attempt.code, &stage.path("beside"));
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
    fn record(&self, attempt: &EscapeAttempt, inside: AttemptOutcome, outside: Option<AttemptOutcome>) {
        let name = attempt.name;
        let wrong = |what: String| self.wrong.lock().unwrap().push(format!("{name}: {what}"));
        match inside {
            AttemptOutcome::Refused(_) | AttemptOutcome::Nothing => drop(self.held.fetch_add(1, Ordering::Relaxed)),
            AttemptOutcome::Escaped(what) | AttemptOutcome::Wrong(what) => wrong(what),
        }
        match outside {
            None => {}
            Some(AttemptOutcome::Escaped(_)) => drop(self.confirmed.fetch_add(1, Ordering::Relaxed)),
            Some(AttemptOutcome::Refused(why)) => self.unconfirmed.lock().unwrap().push(format!("{name} ({why})")),
            Some(AttemptOutcome::Nothing) => wrong("finds nothing outside either, so it shows nothing".to_owned()),
            Some(AttemptOutcome::Wrong(why)) => wrong(format!("outside: {why}")),
        }
    }

    fn assert_held(self, attempts: usize) {
        let (held, shown) = (self.held.into_inner(), self.confirmed.into_inner());
        let (not_shown, wrong) = (self.unconfirmed.into_inner().unwrap(), self.wrong.into_inner().unwrap());
        let user = geteuid().as_raw();
        print_note(&format!(
            "user {user}: {attempts} attempts, {held} held, {shown} controls shown, {} not",
            not_shown.len()
        ));
        not_shown.iter().for_each(|control| print_note(&format!("  works nowhere on this machine: {control}")));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(held, attempts);
        assert!(shown > not_shown.len(), "too few of the attempts are real ones");
    }
}

/// Targets on the host.
pub(crate) struct HostFixture {
    pub(crate) directory: TempDir,
    port: u16,
    socket: String,
}

impl HostFixture {
    /// Starts listeners that greet every client, for the lifetime of the test process.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        // As unique as the directory, also for tests in other processes.
        let socket = format!("ringfence-test{}", directory.path().file_name().unwrap().to_str().unwrap());
        let nameless = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket).unwrap()).unwrap();
        let named = UnixListener::bind(directory.path().join("socket")).unwrap();
        thread::spawn(move || tcp.incoming().for_each(|client| drop(client.unwrap().write_all(b"hello"))));
        for listener in [nameless, named] {
            thread::spawn(move || listener.incoming().for_each(|client| drop(client.unwrap().write_all(b"hello"))));
        }
        Self { directory, port, socket }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

/// A workspace with secrets in it, and files beside it.
pub(crate) struct EscapeFixture {
    pub(crate) directory: TempDir,
    /// The host has pipes open, one of them with data in it, and locked files. A program that notices them has escaped.
    _open_fds: Vec<OwnedFd>,
}

impl EscapeFixture {
    pub(crate) fn new(host: &HostFixture) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in ["outside/secret.txt", "outside/secret.txt.spare", "home/.ssh/id_ed25519", "beside/shown.txt"] {
            write(name, "secret of the host");
        }
        for name in ["ws/.env", "ws/deep/er/id_rsa", "ws/.ringfence/kept"] {
            write(name, "masked secret");
        }
        write("ws/plain.txt", "open");
        symlink(root.join("outside/secret.txt"), root.join("ws/planted-link")).unwrap();
        symlink(root.join("outside"), root.join("ws/planted-directory-link")).unwrap();
        symlink(".env", root.join("ws/link-to-env")).unwrap();
        let hold = |name: &str, flags| open(root.join(name), flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let pipe = |name: &str, flags| {
            mkfifoat(CWD, root.join(name), Mode::from_raw_mode(0o600)).unwrap();
            hold(name, flags)
        };
        let mut held = Vec::new();
        for place in ["ws", "beside"] {
            fs::hard_link(host.path(), root.join(place).join("socket")).unwrap();
            held.push(pipe(&format!("{place}/pipe"), OFlags::RDONLY | OFlags::NONBLOCK));
        }
        let filled = pipe("beside/filled", OFlags::RDWR);
        rustix::io::write(&filled, b"of the host").unwrap();
        held.push(filled);
        for name in ["ws/plain.txt", "beside/shown.txt"] {
            let locked = hold(name, OFlags::RDONLY);
            flock(&locked, FlockOperation::LockExclusive).unwrap();
            held.push(locked);
        }
        Self { directory, _open_fds: held }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn view(&self) -> WorkspaceView {
        let workspace = ExposedDir {
            masked: vec![".env".into(), "deep/er/id_rsa".into()],
            hidden: vec![".ringfence".into()],
            ..exposed_dir("w", &self.path("ws"))
        };
        WorkspaceView {
            workspace,
            read_only_mounts: vec![exposed_dir("beside", &self.path("beside"))],
            started: SystemTime::now(),
        }
    }

    fn program(&self, host: &HostFixture, code: &str, beside: &Path) -> String {
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let words = [
            ("{OUT}", self.path("outside/secret.txt").display().to_string()),
            ("{HOME}", self.path("home").display().to_string()),
            ("{ROOT}", self.directory.path().display().to_string()),
            ("{BESIDE}", beside.display().to_string()),
            ("{PATH}", host.path().display().to_string()),
            ("{PORT}", host.port.to_string()),
            ("{SOCKET}", host.socket.clone()),
            ("{MARK}", MARK.1.to_owned()),
            ("{PROCESS}", "every_attempt_is_held".to_owned()),
            ("{HOSTNAME}", hostname),
        ];
        words.iter().fold(format!("{PRELUDE}\n{code}\n"), |text, (word, value)| text.replace(word, value))
    }

    /// Every entry with what can be seen of it.
    fn everything(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.directory.path().to_owned()];
        while let Some(path) = left.pop() {
            let it = fs::symlink_metadata(&path).unwrap();
            let contents = match it.file_type() {
                kind if kind.is_file() => fs::read_to_string(&path).unwrap(),
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                kind if kind.is_fifo() || kind.is_socket() => String::new(),
                _ => {
                    left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                    String::new()
                }
            };
            // The names of the socket are as many as there are stages.
            let names = if it.file_type().is_socket() { 0 } else { it.nlink() };
            let looks = format!("{:o} {} {}:{} {names} {:?}", it.mode(), it.ino(), it.uid(), it.gid(), it.modified());
            found.insert(path, looks + &contents);
        }
        found
    }
}
