//! Denial diagnosis: which isolation mechanism refused what, from a program's output.
//!
//! Programs say "Permission denied" and leave the reader to guess. Where the output identifies the isolation mechanism
//! with certainty, this names it, with an alternative. Otherwise it says nothing: a wrong hint is worse than none.
//!
//! Not here: knowing what was really refused. A program can print such messages without any isolation.

use serde::Serialize;

/// Paths that a run may write to.
pub const WRITABLE: &[&str] = &["/workspace", "/tmp"];
/// The same where the system's `bwrap` built the jail.
pub const WRITABLE_BY_BWRAP: &[&str] = &["/tmp"];

/// A refusal, explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SandboxDenial {
    /// The mechanism that refused it.
    #[serde(rename = "wall")]
    pub kind: SandboxDenialKind,
    /// For the reader.
    pub message: String,
    /// Paths where it would have been allowed.
    pub writable: &'static [&'static str],
}

/// Kinds of refusals that can be identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxDenialKind {
    /// A write outside what is writable.
    Files,
    /// There is no network.
    Network,
    /// The workspace's overlay or `/tmp` is full.
    Space,
    /// A system call that is refused.
    Kernel,
    /// There were as many processes as a run may have.
    Processes,
}

/// A denial that is certain without the output: a run that had too many processes.
pub fn process_limit_denial(most: u64, writable: &'static [&'static str]) -> SandboxDenial {
    let message = format!("the run reached its limit of {most} processes and threads");
    SandboxDenial { kind: SandboxDenialKind::Processes, message, writable }
}

/// Looks at what a program printed as errors, the last lines first: they say why it ended.
pub fn diagnose_stderr(stderr: &str, writable: &'static [&'static str]) -> Option<SandboxDenial> {
    let (kind, message) = stderr.lines().rev().find_map(|line| diagnose_line(line, writable))?;
    Some(SandboxDenial { kind, message, writable })
}

fn diagnose_line(line: &str, writable: &[&str]) -> Option<(SandboxDenialKind, String)> {
    let lower = line.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if says(&["read-only file system", "erofs"]) {
        return Some((SandboxDenialKind::Files, not_writable(last_path(line), writable)));
    }
    if says(&["no space left on device", "enospc"]) {
        let message = "the run used all of the disk space that its limits allow; write less, or raise the limit";
        return Some((SandboxDenialKind::Space, message.to_owned()));
    }
    if says(&["file too large", "efbig"]) {
        return Some((SandboxDenialKind::Space, "a file is larger than the run's limits allow".to_owned()));
    }
    if says(NO_NETWORK) {
        let message = "the run has no network access; put what it needs into the workspace or a toolchain";
        return Some((SandboxDenialKind::Network, message.to_owned()));
    }
    if says(&["permission denied", "operation not permitted", "eacces", "eperm"]) {
        return diagnose_permission(line, &lower, writable);
    }
    None
}

/// Messages of programs that connect to other hosts. A refused connection is not among these: that is a missing server
/// on the run's own loopback.
const NO_NETWORK: &[&str] = &[
    "network is unreachable",
    "temporary failure in name resolution",
    "could not resolve host",
    "name or service not known",
    "enetunreach",
    "eai_again",
    "getaddrinfo enotfound",
];

/// These words have many reasons. Only a path that a run can never write to, or a program that only ever does what the
/// kernel is not asked for here, leaves one.
fn diagnose_permission(line: &str, lower: &str, writable: &[&str]) -> Option<(SandboxDenialKind, String)> {
    if let Some(path) = last_path(line).filter(|path| is_read_only_path(path)) {
        return Some((SandboxDenialKind::Files, not_writable(Some(path), writable)));
    }
    let has = |word: &str| lower.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|other| other == word);
    let call = DENIED_PROGRAMS.iter().find(|call| has(call))?;
    Some((SandboxDenialKind::Kernel, format!("`{call}` is not available: processes of a run have no privileges")))
}

/// Programs and calls that need what no run has.
const DENIED_PROGRAMS: [&str; 11] = [
    "mount",
    "umount",
    "unshare",
    "ptrace",
    "strace",
    "chroot",
    "setns",
    "pivot_root",
    "sudo",
    "perf_event_open",
    "bpf",
];

fn not_writable(path: Option<&str>, writable: &[&str]) -> String {
    let what = path.map_or_else(|| "that path".to_owned(), |path| format!("`{path}`"));
    format!("{what} is read-only in a run; write under `{}`", writable.join("` or `"))
}

/// The last absolute path of a line, without what surrounds it. The first is often the program's own.
fn last_path(line: &str) -> Option<&str> {
    let ends = |c: char| {
        c.is_whitespace() || c.is_control() || matches!(c, '\'' | '"' | '`' | '‘' | '’' | ':' | ',' | ')' | ';')
    };
    let starts = line.char_indices().filter(|(at, c)| {
        *c == '/' && line[..*at].chars().next_back().is_none_or(|before| ends(before) || matches!(before, '(' | '='))
    });
    let mut paths = starts.map(|(at, _)| &line[at..]).map(|rest| rest.split(ends).next().unwrap_or_default());
    paths.rfind(|path| (2..200).contains(&path.len()))
}

/// Whether a path is read-only in the jail. A path with `..` could lead anywhere.
fn is_read_only_path(path: &str) -> bool {
    const SYSTEM: [&str; 14] = [
        "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/nix", "/mnt", "/proc", "/sys", "/boot", "/var",
        "/run",
    ];
    let below =
        |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    !path.split('/').any(|part| part == "..") && SYSTEM.iter().any(|directory| below(directory))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{SandboxDenialKind, WRITABLE, WRITABLE_BY_BWRAP, diagnose_stderr};

    #[track_caller]
    fn check(stderr: &str, expected: Option<(SandboxDenialKind, &str)>) {
        let found = diagnose_stderr(stderr, WRITABLE);
        let found = found.as_ref().map(|denied| (denied.kind, denied.message.as_str()));
        assert_eq!(found, expected, "{stderr}");
    }

    const NO_NETWORK: Option<(SandboxDenialKind, &str)> = Some((
        SandboxDenialKind::Network,
        "the run has no network access; put what it needs into the workspace or a toolchain",
    ));

    #[test]
    fn a_write_outside_is_explained() {
        let usr =
            Some((SandboxDenialKind::Files, "`/usr/x` is read-only in a run; write under `/workspace` or `/tmp`"));
        check("touch: cannot touch '/usr/x': Read-only file system", usr);
        check("touch: cannot touch ‘/usr/x’: Permission denied", usr);
        check("bash: line 1: /usr/x: Read-only file system", usr);
        check(
            "Traceback (most recent call last):\n  File \"/run/ringfence/main.py\", line 1, in <module>\nPermissionError: [Errno 13] Permission denied: '/usr/x'\n",
            usr,
        );
        check("OSError: [Errno 30] Read-only file system: '/usr/x'", usr);
        check("Error: EROFS: read-only file system, open '/usr/x'", usr);
        check(
            "error: Read-only file system (os error 30)",
            Some((SandboxDenialKind::Files, "that path is read-only in a run; write under `/workspace` or `/tmp`")),
        );
    }

    #[test]
    fn a_workspace_that_is_read_only_is_not_advised() {
        let denied = diagnose_stderr("touch: cannot touch 'x': Read-only file system", WRITABLE_BY_BWRAP).unwrap();
        assert_eq!(denied.message, "that path is read-only in a run; write under `/tmp`");
        assert_eq!(denied.writable, ["/tmp"]);
    }

    #[test]
    fn the_network_is_explained() {
        check("curl: (6) Could not resolve host: example.org", NO_NETWORK);
        check("socket.gaierror: [Errno -3] Temporary failure in name resolution", NO_NETWORK);
        check("ping: connect: Network is unreachable", NO_NETWORK);
        check("npm error code EAI_AGAIN", NO_NETWORK);
        check("ConnectionRefusedError: [Errno 111] Connection refused", None);
    }

    #[test]
    fn space_is_explained() {
        let full = "the run used all of the disk space that its limits allow; write less, or raise the limit";
        check("dd: error writing 'x': No space left on device", Some((SandboxDenialKind::Space, full)));
    }

    #[test]
    fn calls_are_explained() {
        let message = "`unshare` is not available: processes of a run have no privileges";
        check("unshare: unshare failed: Operation not permitted", Some((SandboxDenialKind::Kernel, message)));
    }

    #[test]
    fn an_ambiguous_error_is_not_explained() {
        for unsure in [
            "",
            "error: something else",
            "cat: /workspace/secret: Permission denied",
            "bash: ./script.sh: Permission denied",
            "cat: /usr/../workspace/x: Permission denied",
            "PermissionError: [Errno 1] Operation not permitted",
            "/usrx: Permission denied",
            "the amount: Permission denied",
        ] {
            check(unsure, None);
        }
    }

    #[test]
    fn the_last_word_counts() {
        check("touch: '/usr/x': Read-only file system\ncurl: (6) Could not resolve host: a\nbye", NO_NETWORK);
    }

    proptest! {
        #[test]
        fn any_text_can_be_looked_at(text in "(\\PC|/|\n|permission denied|read-only file system|'){0,80}") {
            if let Some(denied) = diagnose_stderr(&text, WRITABLE) {
                prop_assert!(denied.message.lines().count() == 1 && denied.message.len() < 400);
            }
        }
    }
}
