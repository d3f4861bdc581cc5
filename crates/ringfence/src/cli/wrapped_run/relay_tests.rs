//! Tests of the relay with real terminals: one of the test for the person, one for the program.

use std::path::Path;

use ringfence_testkit::patience::wait_for;
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::process::{Signal, kill_process};

use crate::cli::wrapped_run::person_terminal::PersonTerminal;
use crate::cli::wrapped_run::relay_fixture::{
    PID_NAMESPACE, RelayTerminal, has_pid_namespaces, relay_command, run_relay_process,
};

/// A full-screen program: draws its size, says each key that it reads, and does what some of them say.
const FULL_SCREEN: &str = r#"exec python3 - 4<&0 <<'PYTHON'
import os, signal, sys, termios, tty
def write(text): os.write(1, text.encode())
def paint(*_):
    size = os.get_terminal_size(4)
    write("\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[H\x1b[2JPAINT %dx%d\r\n" % (size.lines, size.columns))
def leave(): write("\x1b[?2004l\x1b[?25h\x1b[?1049l"); termios.tcsetattr(4, termios.TCSADRAIN, before)
def enter(): tty.setraw(4); paint()
before = termios.tcgetattr(4)
signal.signal(signal.SIGWINCH, paint)
enter()
while True:
    for key in os.read(4, 100):
        write("KEY %02x\r\n" % key)
        if key == ord("q"): leave(); sys.exit(7)
        if key == 0x1a: leave(); os.kill(0, signal.SIGTSTP); enter(); write("BACK\r\n")
        if key == ord("?"): os.write(3, b"ask\n")
        if key == ord("!"): os.write(3, b"panic\n")
        if key == ord("c"): write("\x1b]52;c;?\x07\x1b[21tQUERIED\r\n")
PYTHON
"#;

fn has_python() -> bool {
    let found = ["/usr/bin/python3", "/usr/local/bin/python3"].iter().any(|path| Path::new(path).exists());
    if !found {
        skip_without(Requirement::Python, "a full-screen program is written in it");
    }
    found
}

#[test]
fn a_process_without_a_terminal_has_no_person_at_it() {
    // In another process this is the relay of another test.
    if !run_relay_process() {
        // Whether the tests were started at a terminal or not: opening it changes nothing.
        drop(PersonTerminal::open());
    }
}

#[test]
fn size_output_input_and_the_exit_code_are_relayed() {
    let mut terminal = RelayTerminal::start("tty; stty size; read -r line; echo \"<$line>\"; exit 3");
    terminal.until("/dev/pts/");
    terminal.until("24 80\r\n");
    terminal.press("hällo\r");
    terminal.until("hällo\r\n<hällo>\r\n");
    assert_eq!(terminal.end(), "end 3 true");
}

#[test]
fn a_new_size_reaches_the_program() {
    let program = "trap 'stty size; exit 0' WINCH; read -r _; echo ready; while :; do sleep 0.01; done";
    let mut terminal = RelayTerminal::start(program);
    // Only a program in the foreground reads, and hears of a new size.
    terminal.press("\r");
    terminal.until("ready");
    terminal.resize(40, 132);
    terminal.until("40 132");
    assert_eq!(terminal.end(), "end 0 true");
}

#[test]
fn an_interrupt_is_a_key_that_the_program_terminal_obeys() {
    let mut terminal =
        RelayTerminal::start("trap 'echo interrupted; exit 9' INT; echo ready; while :; do read -r _; done");
    terminal.until("ready");
    terminal.press("\x03");
    terminal.until("interrupted");
    assert_eq!(terminal.end(), "end 9 true");
}

#[test]
fn output_is_neither_lost_nor_waited_behind_by_input() {
    let program = "seq 1 300000 & read -r line; echo \"$line\" > \"$DIRECTORY/line\"; wait; echo LAST";
    let mut terminal = RelayTerminal::start(program);
    terminal.until("\n100\r\n");
    // Nothing is read from the screen meanwhile: every buffer of the output fills up.
    terminal.press("typed\r");
    let line = terminal.directory.path().join("line");
    wait_for("the line", || std::fs::read_to_string(&line).ok().filter(|line| line == "typed\n"));
    let shown = terminal.until("LAST");
    let numbers: Vec<u32> = shown.lines().filter_map(|line| line.parse().ok()).collect();
    // The echo of what was typed is in the middle of some line.
    assert!(numbers.len() >= 299_890 && shown.contains("\r\n300000\r\n"), "{}", numbers.len());
    assert_eq!(terminal.end(), "end 0 true");
}

#[test]
fn input_that_the_program_does_not_read_yet_is_not_lost() {
    let program =
        "stty raw -echo; echo ready; read -r go < \"$DIRECTORY/continue\"; head -c 60000 | tr -d a | wc -c; stty sane";
    let mut terminal = RelayTerminal::start(program);
    terminal.until("ready");
    let continues = terminal.directory.path().join("continue");
    let writer = std::thread::spawn(move || std::fs::write(continues, "go\n").unwrap());
    terminal.press(&"a".repeat(60_000));
    writer.join().unwrap();
    terminal.until("0\n");
    assert_eq!(terminal.end(), "end 0 true");
}

#[test]
fn a_full_screen_program_stops_to_the_shell_and_comes_back() {
    if !has_python() {
        return;
    }
    let mut terminal = RelayTerminal::start_in_shell(FULL_SCREEN);
    let command = relay_command(terminal.directory.path());
    terminal.press("stty -g\r");
    terminal.until("stty -g\r\n");
    let settings = terminal.until("\r\n");
    terminal.until("shell> ");
    terminal.press(&format!("{command}\r"));
    terminal.until("PAINT 24x80");
    terminal.press("a");
    terminal.until("KEY 61");
    for size in [(30, 100), (20, 60), (24, 80)] {
        terminal.press("\x1a");
        terminal.until("KEY 1a");
        terminal.until("\x1b[?1049l");
        terminal.until("Stopped");
        terminal.until("shell> ");
        // The shell sets the terminal for its own line editor, and restores it for programs.
        terminal.press("stty -g\r");
        terminal.until(&format!("stty -g\r\n{settings}\r\n"));
        terminal.resize(size.0, size.1);
        terminal.until("shell> ");
        terminal.press("fg\r");
        terminal.until(&format!("PAINT {}x{}", size.0, size.1));
        terminal.until("BACK");
        terminal.press("b");
        terminal.until("KEY 62");
    }
    terminal.press("q");
    terminal.until("\x1b[?1049l");
    terminal.until("shell> ");
    terminal.press("stty -g\r");
    terminal.until(&format!("stty -g\r\n{settings}\r\n"));
    terminal.until("shell> ");
    terminal.press("exit\r");
    assert_eq!(terminal.end(), "end 7 true");
}

#[test]
fn a_stop_where_no_shell_can_continue_us_is_undone_at_once() {
    if !has_python() {
        return;
    }
    let mut terminal = RelayTerminal::start(FULL_SCREEN);
    terminal.until("PAINT 24x80");
    for _ in 0..3 {
        terminal.press("\x1a");
        terminal.until("BACK");
    }
    terminal.press("q");
    assert_eq!(terminal.end(), "end 7 true");
}

#[test]
fn a_signal_from_outside_reaches_the_program_and_a_second_one_ends_it() {
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::QUIT, "QUIT"), (Signal::HUP, "HUP")] {
        let program =
            format!("trap 'echo got {name}; exit 5' {name}; read -r _; echo ready; while :; do sleep 0.01; done");
        let mut terminal = RelayTerminal::start(&program);
        terminal.press("\r");
        terminal.until("ready");
        kill_process(terminal.pid(), signal).unwrap();
        terminal.until(&format!("got {name}"));
        assert_eq!(terminal.end(), "end 5 true");
    }
    let mut terminal =
        RelayTerminal::start("trap 'echo got it' TERM; read -r _; echo ready; while :; do sleep 0.01; done");
    terminal.press("\r");
    terminal.until("ready");
    kill_process(terminal.pid(), Signal::TERM).unwrap();
    terminal.until("got it");
    kill_process(terminal.pid(), Signal::TERM).unwrap();
    assert_eq!(terminal.end(), "gone true");
}

#[test]
fn a_terminal_that_is_closed_hangs_the_program_up() {
    let program = "trap 'echo hung up > \"$DIRECTORY/hup\"; exit 0' HUP; echo ready; while :; do sleep 0.01; done";
    let mut terminal = RelayTerminal::start(program);
    terminal.until("ready");
    let hup = terminal.directory.path().join("hup");
    terminal.close();
    wait_for("the hang-up", || std::fs::read_to_string(&hup).ok().filter(|text| text == "hung up\n"));
    terminal.wait();
    assert_eq!(std::fs::read_to_string(terminal.directory.path().join("end")).unwrap(), "end 0 true");
}

#[test]
fn a_panic_leaves_the_terminal_as_it_was() {
    if !has_python() {
        return;
    }
    let mut terminal = RelayTerminal::start(FULL_SCREEN);
    terminal.until("PAINT 24x80");
    terminal.press("!");
    terminal.until("\x1b[?1049l");
    assert!(!terminal.wait().success());
    assert!(terminal.is_restored());
}

#[test]
fn a_program_that_is_killed_on_the_alternate_screen_leaves_a_plain_terminal() {
    let mut terminal = RelayTerminal::start(r"printf '\033[?1049h\033[?25l\033[?1003hdrawn'; kill -9 $$");
    terminal.until("drawn");
    terminal.until("\x1b[?25h\x1b[?1003l\x1b[?1049l\x1b[m");
    assert_eq!(terminal.end(), "end 137 true");
}

#[test]
fn a_question_is_asked_in_place_and_the_program_draws_again() {
    if !has_python() {
        return;
    }
    let mut terminal = RelayTerminal::start(FULL_SCREEN);
    terminal.until("PAINT 24x80");
    terminal.press("?");
    // The program's modes are off, and the dialog has its own screen.
    terminal.until("\x1b[?25h\x1b[?2004l\x1b[?1049l");
    terminal.until("`an agent` wants to call `fetch_url`");
    // What was typed for the program, and what the terminal replies, do not answer.
    terminal.press("y");
    terminal.press("\x1b[?2026;2$");
    terminal.press("y");
    terminal.until("[y] yes");
    terminal.press("y");
    terminal.until("fetch_url: approved");
    let before = terminal.until("PAINT 23x80");
    assert!(before.contains("\x1b[?1049h\x1b[?25l\x1b[?2004h"), "{before:?}");
    terminal.until("PAINT 24x80");
    let answers = terminal.directory.path().join("answers");
    assert_eq!(std::fs::read_to_string(answers).unwrap(), "yes\n");
    // No key of the question came to the program.
    terminal.press("z");
    assert!(!terminal.until("KEY 7a").contains("KEY"));
    terminal.press("q");
    assert_eq!(terminal.end(), "end 7 true");
}

#[test]
fn a_question_is_asked_where_the_session_is_outside_of_the_pid_namespace() {
    if !has_python() || !has_pid_namespaces() {
        return;
    }
    let shell = format!("exec {} ", PID_NAMESPACE.join(" "));
    let mut terminal = RelayTerminal::start_with(FULL_SCREEN, &shell);
    terminal.until("PAINT 24x80");
    terminal.press("?");
    terminal.until("[y] yes");
    terminal.press("y");
    terminal.until("fetch_url: approved");
    terminal.until("PAINT 24x80");
    terminal.press("\x1a");
    terminal.until("BACK");
    terminal.press("q");
    assert_eq!(terminal.end(), "end 7 true");
}

#[test]
fn a_raw_terminal_is_relayed_unfiltered_and_asked_nothing() {
    if !has_python() {
        return;
    }
    let mut terminal = RelayTerminal::start_with(FULL_SCREEN, "export RINGFENCE_TEST_RELAY_RAW=1; exec ");
    terminal.until("PAINT 24x80");
    terminal.press("c");
    terminal.until("\x1b]52;c;?\x07\x1b[21tQUERIED");
    terminal.press("?");
    let answers = terminal.directory.path().join("answers");
    wait_for("the answer", || std::fs::read_to_string(&answers).ok().filter(|text| text == "no\n"));
    terminal.press("q");
    assert_eq!(terminal.end(), "end 7 true");
}

#[test]
fn queries_that_speak_to_the_terminal_are_removed_on_their_way() {
    if !has_python() {
        return;
    }
    let mut terminal = RelayTerminal::start(FULL_SCREEN);
    terminal.until("PAINT 24x80");
    terminal.press("c");
    let before = terminal.until("QUERIED");
    assert!(!before.contains("52;") && !before.contains("21t"), "{before:?}");
    terminal.press("q");
    assert_eq!(terminal.end(), "end 7 true");
}
