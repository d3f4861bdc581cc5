//! Terminals of wrapped programs: sizes, job control, signals, and what cannot be reached through them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};

use ringfence_sandbox::{ExitReason, OutputStream, ProgramObserver, TerminalRelay};

use crate::fixture::{OutputObserver, as_each_user};
use crate::wrapped_fixture::WrappedFixture;

const BASH: [&str; 2] = ["bash", "/run/ringfence/main"];

/// It leaves the terminal in its usual mode, so that what is typed is echoed at any time.
const INTERACTIVE_SHELL: [&str; 5] = ["bash", "--norc", "--noprofile", "--noediting", "-i"];

#[test]
fn a_program_has_a_terminal_of_its_own() {
    as_each_user("terminal::a_program_has_a_terminal_of_its_own", || {
        let place = WrappedFixture::new();
        let printed = place.printed_on_terminal(
            "tty; stty size; stty -a | grep -o ' iutf8'; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo streams\n\
             echo direct > /dev/tty; ls -1 /dev/pts; echo \"$TERM\"; ps -o pid=,pgid=,sid=,tpgid= -p $$ | tr -s ' '",
        );
        let lines: Vec<&str> = printed.lines().map(str::trim).collect();
        let expected = ["/dev/pts/0", "33 101", "iutf8", "streams", "direct", "0", "ptmx", "xterm", "2 2 1 2"];
        assert_eq!(lines, expected);
    });
}

#[test]
fn exit_codes_and_signals_are_those_of_a_shell() {
    as_each_user("terminal::exit_codes_and_signals_are_those_of_a_shell", || {
        let place = WrappedFixture::new();
        let check = |script: &str, code: i32, signal: Option<i32>| {
            let ended = place.on_terminal(&["sh", "-c", script], "", |_| {}).unwrap();
            assert_eq!((ended.exit_code, ended.signal), (code, signal), "{script}");
        };
        check("exit 7", 7, None);
        check("kill -TERM $$", 143, Some(libc::SIGTERM));
        check("kill -KILL $$", 137, Some(libc::SIGKILL));
    });
}

#[test]
fn a_new_size_arrives() {
    as_each_user("terminal::a_new_size_arrives", || {
        // A `read` would be restarted before the trap runs.
        let script = "trap 'stty size; exit 5' WINCH; sleep 1000 & echo ready; wait";
        let ended = WrappedFixture::new().on_terminal(&BASH, script, |relay| {
            relay.wait_for("ready");
            relay.resize(50, 132);
            relay.wait_for("50 132");
        });
        assert_eq!(ended.unwrap().exit_code, 5);
    });
}

#[test]
fn an_interrupt_reaches_the_program() {
    as_each_user("terminal::an_interrupt_reaches_the_program", || {
        let ended = WrappedFixture::new().on_terminal(&["cat"], "", |relay| {
            type_when_open(relay, "hello\n");
            relay.wait_for("hello\nhello");
            relay.type_in("\x03");
            assert!(relay.until_the_end().contains("^C"));
        });
        let ended = ended.unwrap();
        assert_eq!((ended.exit_code, ended.signal, ended.exit_reason), (130, Some(libc::SIGINT), ExitReason::Signal));
    });
}

fn type_when_open(relay: &crate::wrapped_fixture::TestRelay, text: &str) {
    relay.wait_until_open();
    relay.type_in(text);
}

#[test]
fn a_stopped_program_continues() {
    as_each_user("terminal::a_stopped_program_continues", || {
        let ended = WrappedFixture::new().on_terminal(&["sh", "-c", "cat; echo after; exit 3"], "", |relay| {
            type_when_open(relay, "one\n");
            relay.wait_for("one\none");
            relay.hold_stops();
            relay.type_in("\x1a");
            relay.wait_for_stop(1);
            relay.resume();
            relay.type_in("two\n");
            relay.wait_for("two\ntwo");
            relay.type_in("\x04");
            relay.wait_for("after");
        });
        assert_eq!(ended.unwrap().exit_code, 3);
    });
}

/// As a full-screen program does it: it sees the key itself, and stops its own process group.
const RAW_PROGRAM: &str = r#"
import os, signal, sys, termios, tty
cooked = termios.tcgetattr(0)
def raw(): tty.setraw(0); os.write(1, b"raw\r\n")
raw()
while True:
    key = os.read(0, 1)
    if key == b"\x1a":
        termios.tcsetattr(0, termios.TCSADRAIN, cooked)
        os.write(1, b"stopping\n")
        os.kill(0, signal.SIGTSTP)
        os.write(1, b"back\n")
        raw()
    elif key == b"q":
        break
    else:
        os.write(1, b"key " + key + b"\r\n")
sys.exit(6)
"#;

#[test]
fn a_raw_program_stops_itself_and_continues() {
    as_each_user("terminal::a_raw_program_stops_itself_and_continues", || {
        let ended = WrappedFixture::new().on_terminal(&["python3", "/run/ringfence/main"], RAW_PROGRAM, |relay| {
            relay.wait_for("raw");
            relay.type_in("a");
            relay.wait_for("key a");
            relay.hold_stops();
            relay.type_in("\x1a");
            relay.wait_for_stop(1);
            assert!(!relay.printed().contains("back"));
            relay.resume();
            relay.wait_for("back\nraw");
            relay.type_in("bq");
            relay.wait_for("key b");
        });
        assert_eq!(ended.unwrap().exit_code, 6);
    });
}

#[test]
fn jobs_of_a_shell_are_the_shells_own() {
    as_each_user("terminal::jobs_of_a_shell_are_the_shells_own", || {
        let ended = WrappedFixture::new().on_terminal(&INTERACTIVE_SHELL, "", |relay| {
            type_when_open(relay, "echo re''ady; cat\n");
            relay.wait_for("ready");
            relay.type_in("line\n");
            relay.wait_for("line\nline");
            relay.type_in("\x1a");
            relay.wait_for("Stopped");
            relay.type_in("fg\nother\n");
            // The shell names the job, which then reads.
            relay.wait_for("cat\nother");
            relay.type_in("\x04exit 9\n");
            relay.until_the_end();
            assert_eq!(relay.stops(), 0, "the shell itself was never stopped");
        });
        assert_eq!(ended.unwrap().exit_code, 9);
    });
}

#[test]
fn a_storm_of_stops_ends() {
    as_each_user("terminal::a_storm_of_stops_ends", || {
        let script = "i=0; while [ $i -lt 1000 ]; do kill -STOP $$; i=$((i+1)); done; echo counted $i";
        let ended = WrappedFixture::new().on_terminal(&["sh", "-c", script], "", |relay| {
            assert!(relay.until_the_end().contains("counted 1000"), "{}", relay.printed());
            assert_eq!(relay.stops(), 1000);
        });
        assert_eq!(ended.unwrap().exit_code, 0);
    });
}

/// Stops and continues it from inside as fast as that goes: not every stop is seen, and the end comes all the same.
#[test]
fn a_storm_from_inside_ends_too() {
    as_each_user("terminal::a_storm_from_inside_ends_too", || {
        let script =
            "(for i in $(seq 3000); do kill -STOP $$; kill -CONT $$; done; kill -TERM $$; kill -CONT $$) & wait; wait";
        let ended = WrappedFixture::new().on_terminal(&BASH, script, |relay| {
            relay.until_the_end();
        });
        assert_eq!(ended.unwrap().signal, Some(libc::SIGTERM));
    });
}

#[test]
fn terminals_nest() {
    as_each_user("terminal::terminals_nest", || {
        let place = WrappedFixture::new();
        let printed = place.printed_on_terminal(
            "script -qec 'tty; stty size' /dev/null\n\
             python3 -c 'import os, pty; print(os.ttyname(pty.openpty()[1]))'; tty",
        );
        assert_eq!(printed.lines().collect::<Vec<_>>(), ["/dev/pts/1", "33 101", "/dev/pts/1", "/dev/pts/0"]);
    });
}

#[test]
fn output_before_the_end_is_not_lost() {
    as_each_user("terminal::output_before_the_end_is_not_lost", || {
        let printed = WrappedFixture::new().printed_on_terminal("seq 1 20000");
        assert_eq!(printed.lines().count(), 20_000);
        assert_eq!(printed.lines().last(), Some("20000"));
    });
}

/// Sends one signal when it is told to.
#[derive(Default)]
struct SignalObserver {
    signal: AtomicI32,
}

impl ProgramObserver for SignalObserver {
    fn on_output(&self, _: OutputStream, bytes: &[u8]) {
        if bytes.starts_with(b"ready") {
            self.signal.store(libc::SIGTERM, Ordering::Relaxed);
        }
    }

    fn should_stop(&self) -> bool {
        false
    }

    fn signal(&self) -> Option<i32> {
        Some(self.signal.swap(0, Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

#[test]
fn signals_from_outside_reach_the_foreground() {
    as_each_user("terminal::signals_from_outside_reach_the_foreground", || {
        let place = WrappedFixture::new();
        let script =
            "trap 'echo heard; exit 4' TERM; trap 'echo quit' QUIT; echo ready; while :; do read -r line; done";
        let watch = SignalObserver::default();
        let ended = place.on_terminal_observed(&BASH, script, &watch, |relay| {
            relay.wait_for("ready");
            watch.signal.store(libc::SIGQUIT, Ordering::Relaxed);
            relay.wait_for("quit");
            watch.signal.store(libc::SIGTERM, Ordering::Relaxed);
            relay.wait_for("heard");
        });
        assert_eq!(ended.unwrap().exit_code, 4);
        // On pipes it is the program's own process group.
        let ended = place.run_observed("trap 'exit 5' TERM; echo ready; sleep 1000 & wait", &SignalObserver::default());
        assert_eq!(ended.unwrap().exit_code, 5);
        // A job in the foreground hears it, and the shell that waits for it too.
        let ended = place.on_terminal_observed(&INTERACTIVE_SHELL, "", &watch, |relay| {
            type_when_open(relay, "trap 'echo shell heard; exit 8' HUP; echo re''ady; cat\n");
            relay.wait_for("ready");
            relay.type_in("line\n");
            relay.wait_for("line\nline");
            watch.signal.store(libc::SIGHUP, Ordering::Relaxed);
            relay.wait_for("shell heard");
        });
        assert_eq!(ended.unwrap().exit_code, 8);
    });
}

#[test]
fn a_stopped_program_can_be_ended() {
    as_each_user("terminal::a_stopped_program_can_be_ended", || {
        let watch = OutputObserver::default();
        let ended = WrappedFixture::new().on_terminal_observed(&["cat"], "", &watch, |relay| {
            relay.wait_until_open();
            relay.hold_stops();
            relay.type_in("\x1a");
            relay.wait_for_stop(1);
            watch.stop();
            relay.resume();
        });
        assert_eq!(ended.unwrap().exit_reason, ExitReason::Cancelled);
    });
}

/// Closes the terminal at once, as when its window is closed.
#[derive(Debug)]
struct ClosingRelay;

impl TerminalRelay for ClosingRelay {
    fn on_opened(&self, master: OwnedFd) {
        drop(master);
    }

    fn on_stopped(&self) {}
}

#[test]
fn a_closed_terminal_hangs_up() {
    as_each_user("terminal::a_closed_terminal_hangs_up", || {
        let ended = WrappedFixture::new().with_relay(&["sh", "-c", "sleep 1000; exit 4"], &ClosingRelay).unwrap();
        assert_eq!(ended.signal, Some(libc::SIGHUP));
    });
}

#[test]
fn the_master_and_other_terminals_are_out_of_reach() {
    as_each_user("terminal::the_master_and_other_terminals_are_out_of_reach", || {
        let place = WrappedFixture::new();
        let probe = r#"
import errno, fcntl, glob, os, termios
print(sorted({os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}))
def tried(what):
    try: what(); return "done"
    except OSError as e: return errno.errorcode[e.errno]
print("push", tried(lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x")))
print("init", tried(lambda: os.listdir("/proc/1/fd")))
print("console", tried(lambda: os.open("/dev/console", os.O_RDWR)), tried(lambda: os.open("/dev/tty1", os.O_RDWR)))
print("terminals", sorted(os.listdir("/dev/pts")))
"#;
        let mut printed = String::new();
        let program = ["python3", "/run/ringfence/main"];
        place.on_terminal(&program, probe, |relay| printed = relay.until_the_end()).unwrap();
        let expected = "['/dev/pts/0']\npush EPERM\ninit EACCES\nconsole ENOENT ENOENT\nterminals ['0', 'ptmx']\n";
        assert_eq!(printed, expected);
        // Two at once have the same names and nothing in common.
        let other = WrappedFixture::new();
        place
            .on_terminal(&["cat"], "", |relay| {
                relay.wait_until_open();
                other.printed_on_terminal("for t in /dev/pts/*; do echo crossed > $t; done; ls /dev/pts");
                relay.type_in("own\n\x04");
                assert!(!relay.until_the_end().contains("crossed"));
            })
            .unwrap();
    });
}
