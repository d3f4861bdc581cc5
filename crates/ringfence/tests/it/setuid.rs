//! A setuid program would do for every user what only its owner may.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use ringfence_testkit::requirement::{Requirement, skip_without};

#[test]
fn a_setuid_or_setgid_program_refuses_to_run() {
    if !rustix::process::geteuid().is_root() {
        return skip_without(Requirement::Root, "only root gives a file to another user");
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("ringfence");
    ringfence_testkit::executable::copy_executable(env!("CARGO_BIN_EXE_ringfence").as_ref(), &program);
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).unwrap();
    for mode in [0o4755, 0o2755] {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        // By every way in: the command line, and the helpers that are started by name.
        for arguments in [&["--version"][..], &["doctor"], &["call", "read_file", "path=x"]] {
            let ran = Command::new(&program).args(arguments).env_clear().output().unwrap();
            let said = String::from_utf8_lossy(&ran.stderr);
            if is_ignored(&directory) {
                return skip_without(Requirement::SetuidFiles, "this file system ignores the setuid bit");
            }
            assert_eq!(ran.status.code(), Some(2), "{mode:o} {arguments:?}: {said}");
            assert!(said.contains("setuid or setgid"), "{said}");
            assert!(ran.stdout.is_empty());
        }
    }
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ran = Command::new(&program).arg("--version").env_clear().output().unwrap();
    assert!(ran.status.success());
}

/// With capabilities of its file it would read and change the files of every user.
#[test]
fn a_program_with_file_capabilities_refuses_to_run() {
    if !rustix::process::geteuid().is_root() {
        return skip_without(Requirement::Root, "only root gives capabilities to a file");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    if is_ignored(&directory) {
        return skip_without(Requirement::SetuidFiles, "this file system ignores file capabilities");
    }
    let program = directory.path().join("ringfence");
    ringfence_testkit::executable::copy_executable(env!("CARGO_BIN_EXE_ringfence").as_ref(), &program);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = || Command::new(&program).arg("--version").env_clear().uid(65534).gid(65534).output().unwrap();
    assert!(run().status.success());
    // Version 2, effective: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, permitted.
    let words: [u32; 5] = [0x0200_0001, 0b110, 0, 0, 0];
    let capabilities: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::fs::setxattr(&program, "security.capability", &capabilities, rustix::fs::XattrFlags::empty()).unwrap();
    let ran = run();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("file capabilities") && ran.stdout.is_empty(), "{said}");
}

/// Whether the file system of a directory is mounted with `nosuid`.
fn is_ignored(directory: &tempfile::TempDir) -> bool {
    let flags = rustix::fs::statvfs(directory.path()).unwrap().f_flag;
    flags.contains(rustix::fs::StatVfsMountFlags::NOSUID)
}
