//! Programs that take more than they were given, or leave something behind. Each has a bound of its own, for the sake of the
//! machine that it runs on bare.

use std::ffi::OsString;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use ringfence_testkit::escape_attempts::{AttemptControl, EscapeAttempt};

/// Sleep time of a process that is left behind, by which it is recognised.
const SURVIVOR_SLEEP: &str = "97.4711";

const fn works(name: &'static str, code: &'static str) -> EscapeAttempt {
    EscapeAttempt { name, control: AttemptControl::Works, code }
}

pub(crate) const GROUPS: [(&str, &[EscapeAttempt]); 2] = [
    (
        "read secrets in the workspace",
        &[
            works("read `.env`", r#"attempt(lambda: reads(".env"))"#),
            works("read a private key", r#"attempt(lambda: reads("deep/er/id_rsa"))"#),
            works("read `.env` by a link that was there", r#"attempt(lambda: reads("link-to-env"))"#),
            works("move `.env` and read it", r#"attempt(lambda: os.rename(".env", "moved") or reads("moved"))"#),
            works(
                "move its directory and read a private key",
                r#"attempt(lambda: os.rename("deep", "shallow") or reads("shallow/er/id_rsa"))"#,
            ),
        ],
    ),
    (
        "exhaust resources, or outlive the run",
        &[
            works(
                "leave a process behind",
                r#"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3): os.dup2(os.open(os.devnull, os.O_RDWR), number)
        os.execv("/bin/sleep", ["sleep", "97.4711"])
    os._exit(0)
os.wait()
print("held: left")"#,
            ),
            works(
                "have 600 processes",
                r#"
def many():
    pids = []
    try:
        for _ in range(600):
            pid = os.fork()
            if pid == 0: signal.pause(); os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    return len(pids)
attempt(many)"#,
            ),
            works(
                "take 3 GiB of memory",
                r#"
def taken():
    free = int(next(l for l in open("/proc/meminfo") if l.startswith("MemAvailable")).split()[1])
    if free < 8 << 20: return None
    held = [mmap.mmap(-1, 64 << 20) for _ in range(48)]
    for one in held:
        for page in range(0, len(one), 4096): one[page] = 1
    return len(held)
attempt(taken)"#,
            ),
            works(
                "write 1.25 GiB into the workspace",
                r#"
def filled():
    free = os.statvfs(".")
    if free.f_bavail * free.f_frsize < 8 << 30 and "/workspace" != os.getcwd(): return None
    with open("large", "wb") as file:
        for _ in range(1280): file.write(bytes(1 << 20))
    os.unlink("large")
    return True
attempt(filled)"#,
            ),
        ],
    ),
];

/// Whether this is the program that leaves a process behind.
pub(crate) fn leaves_process(code: &str) -> bool {
    code.contains(SURVIVOR_SLEEP)
}

/// Whether a process was left behind; it is ended. One that is about to end with its jail has a second for it.
pub(crate) fn kill_survivors() -> bool {
    let began = Instant::now();
    while !survivors().is_empty() && began.elapsed() < Duration::from_secs(1) {
        std::thread::yield_now();
    }
    let left = survivors();
    for process in &left {
        // It may have ended by itself.
        let _ = Command::new("kill").arg("-9").arg(process).status();
    }
    !left.is_empty()
}

fn survivors() -> Vec<OsString> {
    let wanted = format!("sleep\0{SURVIVOR_SLEEP}\0");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_it =
        |entry: &fs::DirEntry| fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes());
    processes.filter(is_it).map(|entry| entry.file_name()).collect()
}
