//! Fault injection into a running program at one of its system calls, by `strace`.
//!
//! It is attached when the program waits for the call that is tried: startup is not counted. `strace` counts by thread,
//! so the first thread that makes the n-th call of a kind is hit.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, thread};

/// One system call of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyscallPoint {
    pub(super) call: String,
    /// Index among the calls of its kind, by thread.
    pub(super) nth: usize,
    /// Whether it is about a file, and neither a pipe, a socket nor memory, in every thread that makes it.
    pub(super) on_file: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StraceTamper<'a> {
    Kill(&'a SyscallPoint),
    Stop(&'a SyscallPoint),
    Fail(&'a SyscallPoint, &'a str),
    /// Nothing: every call is listed.
    Watch,
}

#[derive(Debug)]
pub(crate) struct Tracer {
    child: Child,
    log: PathBuf,
}

impl Tracer {
    /// Comes back when every thread of the program is followed.
    pub(crate) fn attach(id: u32, log: &Path, tamper: StraceTamper<'_>) -> io::Result<Self> {
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-p", &id.to_string(), "-o"]).arg(log);
        let (point, how) = match tamper {
            StraceTamper::Kill(point) => (Some(point), "signal=SIGKILL".to_owned()),
            StraceTamper::Stop(point) => (Some(point), "signal=SIGSTOP".to_owned()),
            StraceTamper::Fail(point, error) => (Some(point), format!("error={error}")),
            StraceTamper::Watch => (None, String::new()),
        };
        if let Some(SyscallPoint { call, nth, .. }) = point {
            // Not with `--seccomp-bpf`: strace 6.1 then sends a signal at the first call only, whatever `when` says.
            command.arg(format!("--trace={call}")).arg(format!("--inject={call}:{how}:when={nth}"));
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut first = String::new();
        for line in lines.by_ref() {
            first = line;
            if first.contains("attached") {
                // It goes on talking, and must not find the pipe closed.
                thread::spawn(move || lines.for_each(drop));
                return Ok(Self { child, log: log.to_owned() });
            }
        }
        child.wait()?;
        Err(io::Error::other(format!("strace cannot follow a program here: {first}")))
    }

    /// Whether the program was stopped, and waits.
    pub(super) fn has_stopped(&self) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|log| log.contains("stopped by SIGSTOP"))
    }

    /// Detaches from the program, which stays stopped until it is continued.
    pub(super) fn detach(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// The log about a program that is gone.
    pub(crate) fn log(mut self) -> io::Result<String> {
        self.child.wait()?;
        Ok(String::from_utf8_lossy(&fs::read(&self.log)?).into_owned())
    }
}

/// Calls that are about a path or a file's descriptor.
const FILE_SYSCALLS: &[&str] = &[
    "access",
    "chmod",
    "close",
    "copy_file_range",
    "faccessat",
    "faccessat2",
    "fallocate",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "fcntl",
    "fdatasync",
    "fgetxattr",
    "flistxattr",
    "flock",
    "fremovexattr",
    "fsetxattr",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getdents64",
    "lgetxattr",
    "linkat",
    "llistxattr",
    "lseek",
    "lstat",
    "mkdir",
    "mkdirat",
    "name_to_handle_at",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "pread64",
    "preadv2",
    "pwrite64",
    "pwritev",
    "read",
    "readlink",
    "readlinkat",
    "readv",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "sendfile",
    "stat",
    "statfs",
    "statx",
    "symlinkat",
    "sync_file_range",
    "syncfs",
    "unlink",
    "unlinkat",
    "utimensat",
    "write",
    "writev",
];

/// Names of descriptors that are not files.
const NON_FILE_DESCRIPTORS: &[&str] =
    &["<pipe:", "<socket:", "<anon_inode:", "<UNIX", "<TCP", "</dev/null>", "<pidfd:"];

/// Every call of a run, as the points at which it can be met.
pub(super) fn points(log: &str) -> Vec<SyscallPoint> {
    let mut made: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut points: Vec<SyscallPoint> = Vec::new();
    for (thread, call, line) in log.lines().filter_map(parse_syscall_entry) {
        let nth = made.entry((thread, call)).and_modify(|nth| *nth += 1).or_insert(1);
        let on_file = is_on_file(call, line);
        match points.iter_mut().find(|point| point.call == call && point.nth == *nth) {
            Some(point) => point.on_file &= on_file,
            None => points.push(SyscallPoint { call: call.to_owned(), nth: *nth, on_file }),
        }
    }
    points
}

/// Whether what failed by order was about files, in every thread. Nothing where nothing failed.
pub(super) fn failed_on_file(log: &str) -> Option<bool> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = None;
    for line in log.lines() {
        let thread = line.split_whitespace().next().unwrap_or_default();
        if line.contains("<unfinished ...>") {
            begun.insert(thread, line);
        }
        if line.contains("(INJECTED)") {
            let line = if line.contains(" resumed>") { begun.get(thread).copied().unwrap_or(line) } else { line };
            let on_file = parse_syscall_entry(line).is_some_and(|(_, call, line)| is_on_file(call, line));
            found = Some(found.unwrap_or(true) && on_file);
        }
    }
    found
}

/// The thread, the name of the call that it enters, and the line.
fn parse_syscall_entry(line: &str) -> Option<(&str, &str, &str)> {
    let (thread, rest) = line.split_once(char::is_whitespace)?;
    let (call, _) = rest.trim_start().split_once('(')?;
    let is_name = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && !call.is_empty();
    is_name.then_some((thread, call, line))
}

fn is_on_file(call: &str, line: &str) -> bool {
    FILE_SYSCALLS.contains(&call) && !NON_FILE_DESCRIPTORS.iter().any(|name| line.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
11 read(0<pipe:[5]>, \"{}\", 8) = 2
12 openat(3</ws>, \"a\", O_RDONLY) = 4</ws/a>
12 read(4</ws/a>, \"old\", 8) = 3
12 write(9<anon_inode:[eventfd]>, \"\", 8 <unfinished ...>
11 futex(0x7f, FUTEX_WAIT) = 0
12 <... write resumed>) = 8
12 write(5</ws/b>, \"new\", 3) = 3
12 +++ exited with 0 +++
";

    #[test]
    fn every_call_of_a_run_is_a_point_once() {
        let shown: Vec<String> =
            points(LOG).iter().map(|it| format!("{} {} {}", it.call, it.nth, it.on_file)).collect();
        assert_eq!(shown, ["read 1 false", "openat 1 true", "write 1 false", "futex 1 false", "write 2 true"]);
    }

    #[test]
    fn a_failure_counts_only_on_a_file() {
        let cases = [
            (LOG, None),
            ("7 write(5</ws/b>, \"new\", 3) = -1 EIO (Input/output error) (INJECTED)\n", Some(true)),
            ("7 write(1<pipe:[5]>, \"new\", 3) = -1 EIO (Input/output error) (INJECTED)\n", Some(false)),
            (
                "7 fsync(5</b> <unfinished ...>\n8 fsync(6</c>) = 0\n7 <... fsync resumed>) = -1 EIO (INJECTED)\n",
                Some(true),
            ),
            ("7 fsync(5</b>) = -1 EIO (INJECTED)\n8 fsync(1<pipe:[5]>) = -1 EIO (INJECTED)\n", Some(false)),
            ("7 write(1<pipe:[5]>, \"\" <unfinished ...>\n7 <... write resumed>) = -1 EIO (INJECTED)\n", Some(false)),
        ];
        for (log, expected) in cases {
            assert_eq!(failed_on_file(log), expected, "{log}");
        }
    }
}
