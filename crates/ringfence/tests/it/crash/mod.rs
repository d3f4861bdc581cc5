//! A change is there or it is not, whenever the process dies and whatever the file system answers.
//!
//! `strace` kills the program as it enters a system call, or lets the call fail. Every point is tried: the first
//! call of a kind, the second, and so on until the program gets through. Counting is by thread, and the thread that
//! starts up opens hundreds of files, so calls that open or look are counted on the workspace's own directories only.
//!
//! With `RINGFENCE_FULL=1` calls that only start up, wait and end are killed at too.

mod batch_recovery;
mod kill_recovery;
mod syscall_failures;
mod undo_recovery;

use std::path::PathBuf;
use std::process::Command;

use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::{Value, json};

use crate::site::{CliOutput, PROGRAM, TestSite, run_with_input};

/// The tree of a workspace: every path, with the contents of files.
type CrashTree = Vec<(String, Option<Vec<u8>>)>;

/// Calls that change something, or stand beside one that does.
const CHANGING_SYSCALLS: &[&str] = &[
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "renameat2",
    "renameat",
    "linkat",
    "unlinkat",
    "ftruncate",
    "fchmod",
    "flock",
    "pread64",
    "getdents64",
    "getrandom",
    "faccessat2",
    "flistxattr",
];

/// Calls that are counted on the workspace's directories only.
const WORKSPACE_SYSCALLS: &[&str] = &["openat", "openat2", "mkdirat", "newfstatat", "fstat"];

/// Calls that start up, wait and end, for a run that takes its time.
const IDLE_SYSCALLS: &[&str] = &["statx", "close", "futex", "epoll_wait", "fcntl", "mmap"];

/// More calls of one kind than any of our operations makes.
const MAX_SYSCALLS: usize = 400;

/// One call of a tool, and the workspace that it is made in.
struct CrashOperation {
    name: &'static str,
    tool: &'static str,
    arguments: Value,
    files: Vec<(&'static str, String)>,
}

fn operations() -> Vec<CrashOperation> {
    // More than one write takes.
    let big = "n".repeat((1 << 20) + 500);
    vec![
        CrashOperation {
            name: "write over a file",
            tool: "write_file",
            arguments: json!({"path": "a.txt", "content": big}),
            files: vec![("a.txt", "old\n".to_owned()), ("other.txt", "other\n".to_owned())],
        },
        CrashOperation {
            name: "write a new file in new directories",
            tool: "write_file",
            arguments: json!({"path": "x/y/new.txt", "content": "new\n", "createDirs": true}),
            files: vec![("other.txt", "other\n".to_owned())],
        },
        CrashOperation {
            name: "edit",
            tool: "edit_file",
            arguments: json!({"path": "d/a.txt", "oldText": "two", "newText": "2"}),
            files: vec![("d/a.txt", "one\ntwo\nthree\n".to_owned())],
        },
        CrashOperation {
            name: "append",
            tool: "append_file",
            arguments: json!({"path": "log.txt", "content": "second line\n"}),
            files: vec![("log.txt", "first\n".to_owned())],
        },
        CrashOperation {
            name: "move over a file",
            tool: "move_file",
            arguments: json!({"from": "d/from.txt", "to": "to.txt", "overwrite": true}),
            files: vec![("d/from.txt", "source\n".to_owned()), ("to.txt", "target\n".to_owned())],
        },
        CrashOperation {
            name: "delete a directory",
            tool: "delete_file",
            arguments: json!({"path": "d", "recursive": true}),
            files: vec![
                ("d/a.txt", "a\n".to_owned()),
                ("d/e/b.txt", "b\n".to_owned()),
                ("d/e/f/c.txt", "c\n".to_owned()),
                ("keep.txt", "keep\n".to_owned()),
            ],
        },
        CrashOperation {
            name: "patch several files",
            tool: "apply_patch",
            arguments: json!({"patch": "--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-old\n+new\n\
                --- /dev/null\n+++ b/x/y/new.txt\n@@ -0,0 +1 @@\n+new\n\
                --- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n\
                --- a/d/two.txt\n+++ b/d/two.txt\n@@ -1 +1 @@\n-old\n+new\n"}),
            files: vec![
                ("one.txt", "old\n".to_owned()),
                ("gone.txt", "old\n".to_owned()),
                ("d/two.txt", "old\n".to_owned()),
            ],
        },
    ]
}

/// The effect of `strace` on the call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CrashTamper {
    Kill,
    Fail(&'static str),
    /// That one, and all of its kind after it.
    FailFrom(&'static str),
}

/// One call of the kernel, in one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrashPoint {
    pub(crate) call: &'static str,
    /// Index of the call among its kind, by thread.
    pub(crate) nth: usize,
    pub(crate) tamper: CrashTamper,
}

/// The outcome of a run under `strace`.
#[derive(Debug)]
pub(crate) struct CrashOutcome {
    output: CliOutput,
    /// Whether the call that was to be tampered with was ever made.
    pub(crate) reached: bool,
}

impl CrashOperation {
    fn site(&self) -> TestSite {
        let site = TestSite::in_memory();
        for (path, content) in &self.files {
            site.write(path, content);
        }
        site
    }

    /// The workspace before, and after nothing went wrong.
    fn trees(&self) -> (CrashTree, CrashTree) {
        let site = self.site();
        let before = site.tree();
        site.call(self.tool, &self.arguments).value();
        (before, site.tree())
    }

    /// Calls of a kind that may fail. A write is the file's: those of the reply, and those that wake a thread, are not
    /// ours to repeat, and only a file that has its name already can be distinguished from them.
    fn may_fail(&self, call: &str) -> std::ops::Range<usize> {
        if call == "write" && self.tool != "append_file" { 1..1 } else { 1..MAX_SYSCALLS }
    }

    /// Whether it takes several visible steps, and the next call rolls back those of a crashed one.
    fn has_steps(&self) -> bool {
        self.tool == "apply_patch"
    }

    fn run_tampered(&self, site: &TestSite, point: CrashPoint) -> CrashOutcome {
        call_under_strace(site, point, self.tool, &self.arguments)
    }
}

/// Makes a call under `strace`.
fn call_under_strace(site: &TestSite, point: CrashPoint, tool: &str, arguments: &Value) -> CrashOutcome {
    let appended = (tool == "append_file").then(|| site.workspace.join(arguments["path"].as_str().unwrap()));
    let program = ["--preset", "edits", "call", tool, "-"];
    run_under_strace(site, point, &program, arguments.to_string().as_bytes(), appended)
}

/// Runs a command under `strace`. Of writes, only those to one file are counted, if one is given.
pub(crate) fn run_under_strace(
    site: &TestSite,
    point: CrashPoint,
    program: &[&str],
    input: &[u8],
    written: Option<PathBuf>,
) -> CrashOutcome {
    let CrashPoint { call, nth, tamper } = point;
    let log = site.root().join("strace.log");
    let how = match tamper {
        CrashTamper::Kill => format!("signal=SIGKILL:when={nth}"),
        CrashTamper::Fail(errno) => format!("error={errno}:when={nth}"),
        CrashTamper::FailFrom(errno) => format!("error={errno}:when={nth}+"),
    };
    let mut command = site.program("strace");
    // Not with `--seccomp-bpf`: strace 6.1 then sends a signal at the first call only, whatever `when` says.
    command.args(["-f", "-o"]).arg(&log);
    command.arg(format!("--trace={call}")).arg(format!("--inject={call}:{how}"));
    if WORKSPACE_SYSCALLS.contains(&call) {
        for directory in directories(site) {
            command.arg("-P").arg(directory);
        }
    }
    if let (Some(written), "write") = (written, call) {
        command.arg("-P").arg(written);
    }
    command.arg(PROGRAM).args(program).arg("--workspace").arg(&site.workspace);
    let said = run_with_input(command, input);
    let log = std::fs::read_to_string(&log).unwrap();
    let met = match tamper {
        CrashTamper::Kill => log.contains("killed by SIGKILL"),
        CrashTamper::Fail(_) | CrashTamper::FailFrom(_) => log.contains("(INJECTED)"),
    };
    CrashOutcome { output: said, reached: met }
}

/// The workspace and every directory that it has or may get.
fn directories(site: &TestSite) -> Vec<PathBuf> {
    let there = site.tree().into_iter().filter(|(_, content)| content.is_none()).map(|(name, _)| name);
    let names = there.chain(["x".to_owned(), "x/y".to_owned()]);
    std::iter::once(site.workspace.clone()).chain(names.map(|name| site.workspace.join(name))).collect()
}

pub(crate) fn has_strace() -> bool {
    let here =
        Command::new("strace").args(["-o", "/dev/null", "true"]).output().is_ok_and(|output| output.status.success());
    if !here {
        skip_without(Requirement::Strace, "`strace` kills the process, or lets its calls fail");
    }
    here
}

pub(crate) fn is_full_run() -> bool {
    std::env::var_os("RINGFENCE_FULL").is_some_and(|value| value == "1")
}

/// The tree as tools show it, without our temporary files.
fn without_temp_files(tree: &CrashTree) -> CrashTree {
    tree.iter().filter(|(name, _)| !name.contains(".ringfence-tmp-")).cloned().collect()
}

fn names(tree: &CrashTree) -> Vec<String> {
    let line = |(name, content): &(String, Option<Vec<u8>>)| match content {
        Some(content) => {
            let start = String::from_utf8_lossy(&content[..content.len().min(20)]).into_owned();
            format!("{name} ({} bytes: {start:?})", content.len())
        }
        None => format!("{name}/"),
    };
    tree.iter().map(line).collect()
}

/// The next call of anything, which opens the workspace and cleans up.
#[track_caller]
fn trigger_recovery(site: &TestSite) {
    site.call("list_directory", &json!({"path": "."})).value();
}

/// The log lists the changes that were made, and they can be undone.
fn undo_listed_changes(site: &TestSite, made: bool, before: &CrashTree) -> Result<(), String> {
    let listed = site.run(&["log", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).map_err(|_| format!("the log cannot be read: {listed:?}"))?;
    let states: Vec<&str> =
        listed["changes"].as_array().unwrap().iter().map(|change| change["state"].as_str().unwrap()).collect();
    let expected: &[&str] = if made { &["done"] } else { &[] };
    if states != expected {
        return Err(format!("the log says {states:?}, and the change is {}", if made { "made" } else { "not made" }));
    }
    if !made {
        return Ok(());
    }
    let undone = site.run(&["undo"]);
    match undone.code {
        Some(0) if site.tree() == *before => Ok(()),
        Some(0) => Err(format!("the undo left {:?}", names(&site.tree()))),
        _ => Err(format!("the undo failed: {undone:?}")),
    }
}
