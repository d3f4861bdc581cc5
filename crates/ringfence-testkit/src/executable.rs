//! Executable files that a test installs and then runs.
//!
//! The kernel refuses to execute a file that any process has open for writing (`ETXTBSY`). A test that writes the file
//! itself has such a descriptor, and a child that another thread forks at the same time holds a copy of it until it
//! calls `exec`. So another process writes every executable, and no descriptor for writing exists in the test process.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Copies a program to `to`, with mode 0755.
///
/// # Panics
/// If the program cannot be copied.
#[track_caller]
pub fn copy_executable(from: &Path, to: &Path) {
    let copied = Command::new("install").args(["-m", "755", "--"]).arg(from).arg(to).status().expect("install starts");
    assert!(copied.success(), "install of an executable failed: {copied}");
}

/// Writes a script to `path`, with mode 0755. A file that is there is replaced.
///
/// # Panics
/// If the script cannot be written.
#[track_caller]
pub fn write_script(path: &Path, script: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "--", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install starts");
    install.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("install reads the script");
    let written = install.wait().expect("install ends");
    assert!(written.success(), "install of a script failed: {written}");
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Installs and runs a program until one run is refused, or `rounds` times, while other threads start processes.
    fn is_refused_as_busy(rounds: usize, install: impl Fn(&Path, &Path)) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        Command::new("true").current_dir("/").status().unwrap();
                    }
                });
            }
            let refused = (0..rounds).any(|round| {
                let program = directory.path().join(format!("program-{round}"));
                install(Path::new("/bin/true"), &program);
                let run = Command::new(&program).status();
                std::fs::remove_file(&program).unwrap();
                run.is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy)
            });
            is_over.store(true, Ordering::Relaxed);
            refused
        })
    }

    #[test]
    fn an_installed_program_runs_while_other_threads_start_processes() {
        // The control: with a descriptor of this process, it is refused sooner or later.
        let by_this_process = |from: &Path, to: &Path| {
            std::fs::copy(from, to).unwrap();
        };
        assert!(is_refused_as_busy(100_000, by_this_process), "the race was never lost");
        assert!(!is_refused_as_busy(500, copy_executable));
    }

    #[test]
    fn an_installed_script_replaces_one_that_is_there_and_runs() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        for text in ["one", "two"] {
            write_script(&script, &format!("#!/bin/sh\necho {text}\n"));
            let output = Command::new(&script).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{text}\n"));
        }
    }
}
