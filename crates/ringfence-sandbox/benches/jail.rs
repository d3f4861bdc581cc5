//! Benchmark of a small program in a jail: bare, ours, and other sandboxes, interleaved.
//!
//! `cargo xtask bench sandbox` runs it. Printed are tables with the best and the median time of each, also as multiples
//! of a bare start of the same program, and the isolation of each. As root everything is measured twice: as root, and
//! as an unused user.
//!
//! Not here: what programs do once they run (`cargo xtask bench sandbox --builds`).

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a bench says what it finds, or stops")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use ringfence_kernel::{ExposedDir, WorkspaceView};
use ringfence_sandbox::{
    Isolation, JailJob, JailLimits, OutputCapture, OutputStream, ProgramObserver, Sandbox, SandboxSettings,
    run_helper_if_requested,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;

const ROUNDS: usize = 200;

/// A sandbox that needs longer than this for nothing takes part in every tenth round only.
const SLOW: Duration = Duration::from_millis(50);
const SLOW_INTERVAL: usize = 10;

/// Pause between two runs, so that cleanup of the one before, or building ahead, is not timed.
const PAUSE: Duration = Duration::from_millis(5);

/// An unused user ID.
const PLAIN_UID: u32 = 60_601;

const PROGRAMS: [&[&str]; 3] = [&["/bin/true"], &["/bin/bash", "-c", "true"], &["/usr/bin/python3", "-c", "pass"]];

/// The same environment for each, as far as it can be set.
const ENVIRONMENT: [(&str, &str); 3] =
    [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("PYTHONDONTWRITEBYTECODE", "1")];

fn main() -> ExitCode {
    if let Some(code) = run_helper_if_requested() {
        return code;
    }
    // `cargo test --benches` only asks whether this builds and starts.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    measure(if geteuid().is_root() { "as root" } else { "as a plain user" });
    if geteuid().is_root() {
        println!();
        as_plain_user();
    }
    ExitCode::SUCCESS
}

/// Runs this bench once more as another user.
fn as_plain_user() {
    let stage = bench_dir();
    // Where the build lies, a plain user may not be.
    let binary = stage.path().join("jail");
    fs::copy(std::env::current_exe().expect("our own path"), &binary).expect("a copy of ourselves");
    let home = stage.path().join("home");
    fs::create_dir(&home).expect("a home");
    rustix::fs::chown(&home, Some(rustix::fs::Uid::from_raw(PLAIN_UID)), Some(rustix::fs::Gid::from_raw(PLAIN_UID)))
        .expect("root may");
    let mut command = Command::new(binary);
    command.current_dir(&home).env("HOME", &home).uid(PLAIN_UID).gid(PLAIN_UID);
    let status = command.status().expect("ourselves once more");
    assert!(status.success(), "as a plain user: {status}");
}

/// On a disk, and where some sandboxes do not refuse to work because it is a directory for temporary files.
fn bench_dir() -> tempfile::TempDir {
    let stage = tempfile::tempdir_in("/var/tmp").or_else(|_| tempfile::tempdir()).expect("a directory");
    fs::set_permissions(stage.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    stage
}

/// Runs a program with its arguments.
type BenchRunFn = Box<dyn Fn(&[&str])>;

/// One way to run a program.
struct BenchSandbox {
    name: &'static str,
    isolation: Vec<Isolation>,
    run: BenchRunFn,
    /// Interval of the rounds in which it takes part.
    every: usize,
}

fn measure(who: &str) {
    let stage = bench_dir();
    let workspace = stage.path().join("workspace");
    fs::create_dir(&workspace).expect("a workspace");
    let ways = contenders(&workspace);
    let mut rows: Vec<Vec<String>> = ways.iter().map(|_| Vec::new()).collect();
    for program in PROGRAMS {
        if !Path::new(program[0]).exists() {
            println!("{}: not on this machine, left out", program[0]);
            continue;
        }
        let mut taken: Vec<Vec<Duration>> = ways.iter().map(|_| Vec::new()).collect();
        // The first of each fills caches.
        for round in 0..=ROUNDS {
            for (way, taken) in ways.iter().zip(&mut taken) {
                if round % way.every == 0 {
                    let began = Instant::now();
                    (way.run)(program);
                    let time = began.elapsed();
                    if round > 0 {
                        taken.push(time);
                    }
                    sleep(PAUSE);
                }
            }
        }
        add_times(&mut rows, &program.join(" "), taken);
    }
    println!("| {who} | isolation mechanisms | program | best | median | best, × bare | median, × bare |");
    println!("|---|---:|---|---:|---:|---:|---:|");
    for (way, cells) in ways.iter().zip(&rows) {
        cells.iter().for_each(|cells| println!("| {} | {} | {cells} |", way.name, way.isolation.len()));
    }
    println!();
    print_isolation(&ways);
}

/// Best and median time of each sandbox, and both as multiples of the first, which is bare.
fn add_times(rows: &mut [Vec<String>], program: &str, taken: Vec<Vec<Duration>>) {
    let mut bare = None;
    for (row, mut taken) in rows.iter_mut().zip(taken) {
        taken.sort();
        let (best, median) = (taken[0].as_secs_f64(), taken[taken.len() / 2].as_secs_f64());
        let (bare_best, bare_median) = *bare.get_or_insert((best, median));
        row.push(format!(
            "`{program}` | {:.2} ms | {:.2} ms | {:.2} | {:.2}",
            best * 1e3,
            median * 1e3,
            best / bare_best,
            median / bare_median
        ));
    }
}

/// Ours are those that the last run reported; those of others are what they ask the kernel for.
fn print_isolation(ways: &[BenchSandbox]) {
    for way in ways.iter().filter(|way| !way.isolation.is_empty()) {
        let names: Vec<String> = way.isolation.iter().map(ToString::to_string).collect();
        println!("- {}: {}", way.name, names.join(", "));
    }
}

fn contenders(workspace: &Path) -> Vec<BenchSandbox> {
    let mut ways = vec![
        BenchSandbox { name: "bare", isolation: Vec::new(), run: bare(workspace), every: 1 },
        ringfence_jail("ours, from the pool", 2, workspace),
        ringfence_jail("ours, built per run", 0, workspace),
    ];
    let others = [
        ExternalSandbox {
            name: "bubblewrap",
            command: bubblewrap,
            isolation: &[
                Isolation::UserNamespace,
                Isolation::MountNamespace,
                Isolation::PidNamespace,
                Isolation::NetNamespace,
                Isolation::IpcNamespace,
                Isolation::UtsNamespace,
                Isolation::CgroupNamespace,
                Isolation::Proc,
            ],
            advice: "install the package `bubblewrap`",
        },
        ExternalSandbox {
            name: "Codex's helper",
            command: codex,
            isolation: &[
                Isolation::UserNamespace,
                Isolation::MountNamespace,
                Isolation::PidNamespace,
                Isolation::NetNamespace,
                Isolation::IpcNamespace,
                Isolation::Proc,
                Isolation::Seccomp,
            ],
            advice: "`npm install -g @openai/codex`",
        },
        ExternalSandbox {
            name: "sandbox-runtime (srt)",
            command: srt,
            isolation: &[
                Isolation::UserNamespace,
                Isolation::MountNamespace,
                Isolation::PidNamespace,
                Isolation::NetNamespace,
                Isolation::Proc,
                Isolation::Seccomp,
            ],
            advice: "`npm install -g @anthropic-ai/sandbox-runtime`, with `bubblewrap`, `socat` and `ripgrep`",
        },
    ];
    for other in others {
        match other.contender(workspace) {
            Some(way) => ways.push(way),
            None => println!("{} is not here, or does not work, and is left out: {}", other.name, other.advice),
        }
    }
    ways
}

fn bare(workspace: &Path) -> BenchRunFn {
    let workspace = workspace.to_owned();
    Box::new(move |program| {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).env_clear().envs(ENVIRONMENT).current_dir(&workspace);
        succeed(&mut command);
    })
}

#[track_caller]
fn succeed(command: &mut Command) {
    let ended = command.stdin(Stdio::null()).output().expect("a program that was there before");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

struct NullObserver;

impl ProgramObserver for NullObserver {
    fn on_output(&self, _: OutputStream, _: &[u8]) {}

    fn should_stop(&self) -> bool {
        false
    }
}

fn ringfence_jail(name: &'static str, pool: u32, workspace: &Path) -> BenchSandbox {
    let sandbox = Sandbox::start(SandboxSettings { pool, ..SandboxSettings::new() }).expect("a sandbox");
    let view = view(workspace);
    let run = move |program: &[&str]| {
        let job = JailJob {
            argv: program.iter().map(Into::into).collect(),
            files: Vec::new(),
            masked: Vec::new(),
            env: ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            limits: JailLimits::default(),
            view: &view,
            toolchains: &[],
            egress: None,
            stdin: None,
            output: OutputCapture::Separate,
            directory_report: None,
            network: None,
            wrapped: None,
        };
        let ended = sandbox.run(&job, &NullObserver).expect("a run");
        assert_eq!(ended.exit_code, 0, "{}", ended.stderr.text());
        ended.isolation
    };
    let isolation = run(&["/bin/true"]);
    let run = Box::new(move |program: &[&str]| _ = run(program));
    BenchSandbox { name, isolation, run, every: 1 }
}

fn view(workspace: &Path) -> WorkspaceView {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let workspace = ExposedDir {
        alias: "workspace".to_owned(),
        directory: open(workspace, flags, Mode::empty()).expect("a workspace"),
        path: workspace.to_owned(),
        masked: Vec::new(),
        hidden: Vec::new(),
    };
    WorkspaceView { workspace, read_only_mounts: Vec::new(), started: SystemTime::now() }
}

/// A sandbox that is a program of its own.
struct ExternalSandbox {
    name: &'static str,
    command: fn(&Path, &[&str]) -> Command,
    isolation: &'static [Isolation],
    advice: &'static str,
}

impl ExternalSandbox {
    /// Nothing, where it cannot run a program that does nothing.
    fn contender(&self, workspace: &Path) -> Option<BenchSandbox> {
        let (command, workspace): (_, PathBuf) = (self.command, workspace.to_owned());
        let ready = move |program: &[&str]| {
            let mut command = command(&workspace, program);
            command.current_dir(&workspace);
            command
        };
        let attempt = || {
            let began = Instant::now();
            let ended = ready(PROGRAMS[0]).stdin(Stdio::null()).output().ok()?;
            ended.status.success().then(|| began.elapsed())
        };
        let (first, second) = (attempt()?, attempt()?);
        let every = if first.min(second) > SLOW { SLOW_INTERVAL } else { 1 };
        let run = Box::new(move |program: &[&str]| succeed(&mut ready(program)));
        Some(BenchSandbox { name: self.name, isolation: self.isolation.to_vec(), run, every })
    }
}

/// With the mounts of our jail, as far as possible: no overlay, and so the workspace itself is written.
fn bubblewrap(workspace: &Path, program: &[&str]) -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]);
    for (name, value) in ENVIRONMENT {
        command.args(["--setenv", name, value]);
    }
    command.args(["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = Path::new("/").join(name);
        match fs::read_link(&path) {
            Ok(target) => command.arg("--symlink").args([&target, &path]),
            Err(_) if path.is_dir() => command.arg("--ro-bind").args([&path, &path]),
            Err(_) => &mut command,
        };
    }
    for path in ["/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs"].map(Path::new) {
        command.arg("--ro-bind-try").args([path, path]);
    }
    command.arg("--bind").arg(workspace).args(["/workspace", "--chdir", "/workspace", "--"]).args(program);
    command
}

fn codex(_: &Path, program: &[&str]) -> Command {
    let mut command = Command::new("codex");
    command.args(["sandbox", "--"]).args(program);
    command
}

/// It takes one line for a shell. None of our words needs a quote.
fn srt(_: &Path, program: &[&str]) -> Command {
    let mut command = Command::new("srt");
    command.args(["-c", &program.join(" ")]);
    command
}
