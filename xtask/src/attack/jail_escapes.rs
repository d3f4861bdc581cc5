//! The escape suite: the programs that try to get out of our jail, in our jail and in those of others.
//!
//! The programs are those of the jail's own tests. Each is run bare first; what does not work there shows nothing, and is
//! counted and left out. Root runs everything twice, as root and as a plain user. Not here: attempts whose success would
//! harm the machine, which the jail's own tests make in our jail alone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringfence_testkit::escape_attempts::{AttemptControl, EscapeAttempt, GROUPS, PRELUDE};
use serde_json::{Value, json};

use super::peer_sandboxes::{PeerSandbox, SandboxKind, SandboxTools};
use super::resource_abuse;
use super::scoreboard::{AttackOutcome, ScoreCell, ScoreRow, Scoreboard};
use crate::print_status;

/// An unused user ID.
const PLAIN_UID: u32 = 60_602;

/// Attempts at a time: most of the time is spent waiting for sandboxes to start.
const WORKERS: usize = 4;

/// A variable in the environment of the process that starts the programs.
const ENV_MARKER: (&str, &str) = ("RINGFENCE_ATTACK_TOKEN", "mark-77ab02c4");

/// One board, or two where this is root.
pub(crate) fn run(ours: &Path) -> io::Result<Vec<Scoreboard>> {
    // Not below `/tmp`, which sandboxes replace: what is not there would count as held.
    let dir = JailAttackDir(PathBuf::from(format!("/var/tmp/ringfence-attack-{}", std::process::id())));
    fs::create_dir_all(&dir.0)?;
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o755))?;
    let tools = SandboxTools::fetch(ours, &dir.0)?;
    let is_root = fs::metadata("/proc/self")?.uid() == 0;
    let users: &[Option<u32>] = if is_root { &[Some(PLAIN_UID), None] } else { &[None] };
    users.iter().map(|user| board(&dir.0, &tools, *user, is_root && user.is_none())).collect()
}

/// A directory that goes when the run is over.
struct JailAttackDir(PathBuf);

impl Drop for JailAttackDir {
    fn drop(&mut self) {
        // A directory that cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn board(dir: &Path, tools: &SandboxTools, user: Option<u32>, is_root: bool) -> io::Result<Scoreboard> {
    let host = JailAttackHost::new(dir, user)?;
    let mut notes = tools.notes.clone();
    let mut sandboxes = Vec::new();
    for sandbox in tools.sandboxes() {
        match run_attempt(&host, &sandbox, "attempt(lambda: True)")? {
            EscapeResult::Escaped(_) => sandboxes.push(sandbox),
            other => notes.push(format!("skipped: `{}`, which runs no program here ({other})", sandbox.title)),
        }
    }
    let bare = PeerSandbox::bare();
    let groups: Vec<_> = GROUPS.into_iter().chain(resource_abuse::GROUPS).collect();
    let all: Vec<(usize, EscapeAttempt)> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, (_, attempts))| attempts.iter().map(move |attempt| (group, *attempt)))
        .filter(|(_, attempt)| is_applicable(attempt, is_root))
        .collect();
    let (mut rows, mut through, mut not_shown) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut cells: Vec<Vec<Vec<AttackOutcome>>> = groups.iter().map(|_| vec![Vec::new(); sandboxes.len()]).collect();
    for ((group, attempt), outcomes) in all.iter().zip(try_all(&host, &bare, &sandboxes, &all)?) {
        let Some(outcomes) = outcomes else {
            not_shown.push(attempt.name);
            continue;
        };
        for ((sandbox, outcome), cell) in sandboxes.iter().zip(outcomes).zip(&mut cells[*group]) {
            if outcome == AttackOutcome::Leaked {
                through.entry(sandbox.title).or_insert_with(Vec::new).push(attempt.name);
            }
            cell.push(outcome);
        }
    }
    for ((group, _), cells) in groups.iter().zip(cells) {
        let shown = cells.first().map_or(0, Vec::len);
        if shown == 0 {
            continue;
        }
        let mut cells: Vec<ScoreCell> = cells.iter().map(|outcomes| count_outcomes(outcomes)).collect();
        cells.push(ScoreCell::new(AttackOutcome::Leaked, format!("{shown} of {shown}")));
        rows.push(ScoreRow { name: (*group).to_owned(), cells });
    }
    for (title, names) in through {
        notes.push(format!("attempts that succeeded in {title}: {}", names.join("; ")));
    }
    if !not_shown.is_empty() {
        notes.push(format!("skipped, because they do not work bare on this machine either: {}", not_shown.join("; ")));
    }
    let who = if is_root { "root" } else { "a plain user" };
    let columns = sandboxes.iter().chain([&bare]).map(|sandbox| sandbox.title.to_owned()).collect();
    Ok(Scoreboard { title: format!("Escapes, started by {who}"), columns, rows, notes })
}

/// The result of each attempt in each sandbox; none for an attempt that does not work bare.
fn try_all(
    host: &JailAttackHost,
    bare: &PeerSandbox,
    sandboxes: &[PeerSandbox],
    all: &[(usize, EscapeAttempt)],
) -> io::Result<Vec<Option<Vec<AttackOutcome>>>> {
    let (next, tried) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || -> io::Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((_, attempt)) = all.get(at) else { return Ok(()) };
            let outcomes = match run_attempt(host, bare, attempt.code)? {
                EscapeResult::Escaped(_) => {
                    Some(sandboxes.iter().map(|one| attempt_outcome(host, one, attempt)).collect::<io::Result<_>>()?)
                }
                _ => None,
            };
            print_status(&format!("  {}", attempt.name));
            tried.lock().map_err(|_| io::Error::other("another thread failed"))?.insert(at, outcomes);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| io::Error::other("a thread failed"))?)
    })?;
    let tried = tried.into_inner().map_err(|_| io::Error::other("a thread failed"))?;
    Ok(tried.into_values().collect())
}

fn attempt_outcome(host: &JailAttackHost, sandbox: &PeerSandbox, attempt: &EscapeAttempt) -> io::Result<AttackOutcome> {
    Ok(match run_attempt(host, sandbox, attempt.code)? {
        EscapeResult::Escaped(_) => AttackOutcome::Leaked,
        EscapeResult::Held(_) => AttackOutcome::Held,
        EscapeResult::NotStarted(_) => AttackOutcome::NotApplicable,
    })
}

fn is_applicable(attempt: &EscapeAttempt, is_root: bool) -> bool {
    match attempt.control {
        AttemptControl::Works => true,
        AttemptControl::WorksForRoot => is_root,
        AttemptControl::Untried => false,
    }
}

fn count_outcomes(outcomes: &[AttackOutcome]) -> ScoreCell {
    let count = |wanted: AttackOutcome| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    let (tried, leaked) = (outcomes.len() - count(AttackOutcome::NotApplicable), count(AttackOutcome::Leaked));
    match (tried, leaked) {
        (0, _) => ScoreCell::new(AttackOutcome::NotApplicable, ""),
        (_, 0) => ScoreCell::new(AttackOutcome::Held, format!("0 of {tried}")),
        _ => ScoreCell::new(AttackOutcome::Leaked, format!("{leaked} of {tried}")),
    }
}

/// The result of an attempt.
enum EscapeResult {
    Escaped(String),
    Held(String),
    /// The program did not even start.
    NotStarted(String),
}

impl std::fmt::Display for EscapeResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Escaped(text) | Self::Held(text) | Self::NotStarted(text)) = self;
        write!(f, "{}", text.lines().last().unwrap_or_default().chars().take(120).collect::<String>())
    }
}

fn run_attempt(host: &JailAttackHost, sandbox: &PeerSandbox, code: &str) -> io::Result<EscapeResult> {
    let stage = JailTestbed::new(host)?;
    let before = stage.outside_state()?;
    let printed_text = program_output(host, &stage, sandbox, code)?;
    let is_changed = stage.outside_state()? != before;
    let survivor = resource_abuse::leaves_process(code) && resource_abuse::kill_survivors();
    Ok(match printed_text {
        printed_text if printed_text.contains("ESCAPED") || is_changed || survivor => {
            EscapeResult::Escaped(printed_text)
        }
        printed_text if printed_text.contains("started\n") => EscapeResult::Held(printed_text),
        printed_text => EscapeResult::NotStarted(printed_text),
    })
}

/// The output of the program.
fn program_output(host: &JailAttackHost, stage: &JailTestbed, sandbox: &PeerSandbox, code: &str) -> io::Result<String> {
    let beside = match sandbox.jail {
        SandboxKind::Ours => PathBuf::from("/mnt/beside"),
        _ => stage.path("beside"),
    };
    let text = stage.program_source(host, code, &beside);
    let program = stage.path("program.py");
    fs::write(&program, &text)?;
    let words = sandbox.command_line(&stage.base, &text);
    // A hang ends the attempt.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).args(words).current_dir(stage.path("ws")).env_remove("VIRTUAL_ENV");
    command
        .env("HOME", stage.path("home"))
        .env("RINGFENCE_STATE_DIR", stage.path("state"))
        .env(ENV_MARKER.0, ENV_MARKER.1);
    command.env("XDG_CONFIG_HOME", stage.path("config")).env("TMPDIR", stage.path("tmp"));
    command.env("PATH", sandbox.search_path()).stdin(Stdio::null());
    if let Some(libraries) = &sandbox.libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    if let Some(user) = host.user {
        command.uid(user).gid(user);
    }
    let ended = command.output()?;
    let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
    if sandbox.jail != SandboxKind::Ours {
        return Ok(printed + &String::from_utf8_lossy(&ended.stderr));
    }
    let reply: Value = serde_json::from_str(&printed).unwrap_or_default();
    // A program that was ended printed something too.
    let dirs = [&reply["value"], &reply["error"]["details"]];
    let streams = dirs.into_iter().find(|dir| dir["stdout"].is_string());
    let stream = |name: &str| streams.and_then(|streams| streams[name].as_str()).unwrap_or_default();
    Ok(if streams.is_some() { format!("{}{}", stream("stdout"), stream("stderr")) } else { printed })
}

/// Targets on the host.
struct JailAttackHost {
    dir: PathBuf,
    user: Option<u32>,
    port: u16,
    socket: String,
    stages: AtomicUsize,
}

impl JailAttackHost {
    /// Starts listeners that greet every client, for the lifetime of this process.
    fn new(dir: &Path, user: Option<u32>) -> io::Result<Self> {
        let who = user.map_or("self".to_owned(), |user| user.to_string());
        let dir = dir.join(who);
        fs::create_dir(&dir)?;
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        let port = tcp.local_addr()?.port();
        let socket = format!("ringfence-attack-{}-{port}", std::process::id());
        let nameless = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?;
        let named = UnixListener::bind(dir.join("socket"))?;
        fs::set_permissions(dir.join("socket"), fs::Permissions::from_mode(0o777))?;
        std::thread::spawn(move || tcp.incoming().flatten().for_each(|mut client| drop(client.write_all(b"hello"))));
        for listener in [nameless, named] {
            std::thread::spawn(move || {
                listener.incoming().flatten().for_each(|mut client| drop(client.write_all(b"hello")));
            });
        }
        let host = Self { dir, user, port, socket, stages: AtomicUsize::new(0) };
        host.chown_to_user(&host.dir)?;
        host.chown_to_user(&host.dir.join("socket"))?;
        Ok(host)
    }

    /// To the user who runs the programs.
    fn chown_to_user(&self, path: &Path) -> io::Result<()> {
        match self.user {
            Some(user) => std::os::unix::fs::lchown(path, Some(user), Some(user)),
            None => Ok(()),
        }
    }
}

/// A workspace with secrets in it, and files beside it.
struct JailTestbed {
    base: PathBuf,
    /// The host has pipes open, one of them with data in it, and locked files. A program that notices them has escaped.
    _held: Vec<File>,
}

impl JailTestbed {
    fn new(host: &JailAttackHost) -> io::Result<Self> {
        let number = host.stages.fetch_add(1, Ordering::Relaxed);
        let base = host.dir.join(format!("stage-{number}"));
        let write = |name: &str, text: &str| {
            let path = base.join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, text)
        };
        for name in ["outside/secret.txt", "outside/secret.txt.spare", "home/.ssh/id_ed25519", "beside/shown.txt"] {
            write(name, "secret of the host")?;
        }
        for name in ["ws/.env", "ws/deep/er/id_rsa"] {
            write(name, "masked secret")?;
        }
        write("ws/plain.txt", "open")?;
        fs::create_dir(base.join("tmp"))?;
        let settings = json!({
            "network": {"allowedDomains": [], "deniedDomains": []},
            "filesystem": {"denyRead": [base.join("home/.ssh")], "allowWrite": [base.join("ws")], "denyWrite": []},
        });
        write("settings.json", &settings.to_string())?;
        symlink(base.join("outside/secret.txt"), base.join("ws/planted-link"))?;
        symlink(base.join("outside"), base.join("ws/planted-directory-link"))?;
        symlink(".env", base.join("ws/link-to-env"))?;
        for name in ["ws/pipe", "beside/pipe", "beside/filled"] {
            Command::new("mkfifo").arg("--mode=600").arg(base.join(name)).status()?;
        }
        for dir in ["ws", "beside"] {
            fs::hard_link(host.dir.join("socket"), base.join(dir).join("socket"))?;
        }
        let hold = |name: &str| File::options().read(true).write(true).open(base.join(name));
        let mut held = vec![hold("ws/pipe")?, hold("beside/pipe")?];
        let mut filled = hold("beside/filled")?;
        filled.write_all(b"of the host")?;
        held.push(filled);
        for name in ["ws/plain.txt", "beside/shown.txt"] {
            let locked = hold(name)?;
            locked.lock()?;
            held.push(locked);
        }
        let stage = Self { base, _held: held };
        walk(&stage.base, &mut |path, _| host.chown_to_user(path))?;
        host.chown_to_user(&stage.base)?;
        Ok(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    fn program_source(&self, host: &JailAttackHost, code: &str, beside: &Path) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let words = [
            ("{OUT}", self.path("outside/secret.txt").display().to_string()),
            ("{HOME}", self.path("home").display().to_string()),
            ("{ROOT}", self.base.display().to_string()),
            ("{BESIDE}", beside.display().to_string()),
            ("{PATH}", host.dir.join("socket").display().to_string()),
            ("{PORT}", host.port.to_string()),
            ("{SOCKET}", host.socket.clone()),
            ("{MARK}", ENV_MARKER.1.to_owned()),
            ("{PROCESS}", "xtask".to_owned()),
            ("{HOSTNAME}", name.trim().to_owned()),
        ];
        let text = format!("{PRELUDE}\nprint('started', flush=True)\n{code}\n");
        words.iter().fold(text, |text, (word, value)| text.replace(word, value))
    }

    /// The visible state of everything outside of the workspace and of the server's own files.
    fn outside_state(&self) -> io::Result<BTreeMap<PathBuf, String>> {
        let mut found = BTreeMap::new();
        for name in ["outside", "home/.ssh", "beside"] {
            walk(&self.base.join(name), &mut |path, it| {
                let contents = match it.is_file() {
                    true => fs::read_to_string(path)?,
                    false => String::new(),
                };
                let looks =
                    format!("{:o} {} {:?} {contents}", it.mode(), it.uid(), it.is_file().then(|| it.modified().ok()));
                found.insert(path.to_owned(), looks);
                Ok(())
            })?;
        }
        Ok(found)
    }
}

impl Drop for JailTestbed {
    fn drop(&mut self) {
        // A directory that cannot be removed goes with its parent.
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// Everything below a directory, links and sockets as what they are.
fn walk(directory: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let it = fs::symlink_metadata(&path)?;
        if !it.file_type().is_socket() {
            visit(&path, &it)?;
        }
        if it.is_dir() {
            walk(&path, visit)?;
        }
    }
    Ok(())
}
