//! Ordinary programs, which find in a jail what they expect of a machine.

use std::process::Command;

use ringfence_sandbox::Isolation;
use ringfence_testkit::requirement::{Requirement, skip_without};

use crate::fixture::{SandboxFixture, as_each_user, program, with_umask};

/// Whether a jail of this machine has such a program.
fn has(world: &SandboxFixture, requirement: Requirement, program: &str) -> bool {
    let found = world.bash(&format!("command -v {program}")).exit_code == 0;
    if !found {
        skip_without(requirement, &format!("the jail has no `{program}`"));
    }
    found
}

/// A program ran, so none of these was refused.
#[test]
fn isolation_that_programs_run_in_is_reported_as_available() {
    as_each_user("programs::isolation_that_programs_run_in_is_reported_as_available", || {
        assert_eq!(SandboxFixture::new().stdout_of("echo well"), "well\n");
        let required = [Isolation::Seccomp, Isolation::Landlock, Isolation::Overlay, Isolation::PidNamespace];
        for status in ringfence_sandbox::probe(&program()) {
            assert!(status.available || !required.contains(&status.mechanism), "{status:?}");
        }
    });
}

#[test]
fn interfaces_can_be_listed_and_are_the_loopback() {
    as_each_user(
        "programs::interfaces_can_be_listed_and_are_the_loopback",
        || check_interfaces(&SandboxFixture::new()),
    );
}

pub(crate) fn check_interfaces(world: &SandboxFixture) {
    let ended = world.python(
        "import ctypes, socket\nprint(socket.if_nameindex())\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         p = ctypes.c_void_p(); print(libc.getifaddrs(ctypes.byref(p)))",
    );
    assert_eq!(ended.stdout.text(), "[(1, 'lo')]\n0\n", "{}", ended.stderr.text());
    if has(world, Requirement::Node, "node") {
        let script =
            "node -e 'const n = require(\"os\").networkInterfaces(); console.log(Object.keys(n), n.lo[0].address)'";
        assert_eq!(world.stdout_of(script), "[ 'lo' ] 127.0.0.1\n");
    }
}

#[test]
fn terminals_can_be_made() {
    as_each_user("programs::terminals_can_be_made", || check_terminals(&SandboxFixture::new()));
}

pub(crate) fn check_terminals(world: &SandboxFixture) {
    let ended = world.python(
        "import os, pty, sys\na, b = pty.openpty(); os.write(b, b'through'); print(os.read(a, 100), os.ttyname(b))\n\
         pid, fd = pty.fork()\nif pid == 0:\n    open('/dev/tty', 'w').write('to my terminal'); os._exit(3)\n\
         print(os.read(fd, 100), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    );
    let expected = "b'through' /dev/pts/0\nb'to my terminal' 3\n";
    assert_eq!(ended.stdout.text(), expected, "{}", ended.stderr.text());
    if has(world, Requirement::Script, "script") {
        let said = world.stdout_of("script -qec 'test -t 0 && echo terminal' /dev/null < /dev/null");
        assert!(said.contains("terminal"), "{said}");
    }
}

#[test]
fn a_jail_cannot_use_up_the_machines_terminals() {
    as_each_user("programs::a_jail_cannot_use_up_the_machines_terminals", || {
        let ended = SandboxFixture::new().python(
            "import pty\nheld = []\ntry:\n    while len(held) < 400: held += pty.openpty()\n\
             except OSError: print(len(held))",
        );
        assert_eq!(ended.stdout.text(), "128\n", "{}", ended.stderr.text());
    });
}

#[test]
fn the_umask_is_that_of_a_plain_system() {
    as_each_user("programs::the_umask_is_that_of_a_plain_system", check_umask);
}

/// A service may have been started with one that leaves nothing to others.
#[test]
fn the_umask_of_the_host_does_not_matter() {
    with_umask("077", "programs::the_umask_of_the_host_does_not_matter", check_umask);
}

fn check_umask() {
    let script = "umask; touch /tmp/f; mkdir /tmp/d; stat -c %a /tmp/f /tmp/d; touch f; mkdir d; stat -c %a f d";
    assert_eq!(SandboxFixture::new().stdout_of(script), "0022\n644\n755\n644\n755\n");
}

/// A setuid program of root's that lies in the workspace, and those of the system, run as the jail's own user.
#[test]
fn setuid_programs_gain_nothing() {
    as_each_user("programs::setuid_programs_gain_nothing", || check_setuid_gains_nothing(&SandboxFixture::new()));
}

pub(crate) fn check_setuid_gains_nothing(world: &SandboxFixture) {
    let id = world.path().join("id");
    ringfence_testkit::executable::copy_executable("/usr/bin/id".as_ref(), &id);
    // As root, it is root's.
    let mode = Command::new("chmod").arg("6755").arg(&id).status().unwrap();
    assert!(mode.success());
    let said = world.stdout_of("./id -u; ./id -ru; grep NoNewPrivs /proc/self/status | tr -d '\\t'");
    assert_eq!(said, "1000\n1000\nNoNewPrivs:1\n");
    let mounts = world.stdout_of("cat /proc/self/mountinfo");
    let obeyed: Vec<&str> = mounts.lines().filter(|line| !line.contains("nosuid")).collect();
    assert!(obeyed.is_empty(), "{obeyed:?}");
}
