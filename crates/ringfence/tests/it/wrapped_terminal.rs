//! `ringfence run` at a real terminal: a full-screen program in tmux, below a shell with job control.
//!
//! Not here: the relay with terminals of the tests' own (`wrapped_run/relay_tests.rs`).

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ringfence_testkit::patience::{wait_for, wait_until};
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::Value;

use crate::site::{PROGRAM, TestSite, cli_output};

/// Draws its size and its keys on the whole screen. `h` reaches for a host, and then it answers every question on its own
/// terminal, as far as what is written to a terminal can.
pub(crate) const FULL_SCREEN: &str = r#"
import curses, os, subprocess, sys
keys, asked = "", None
def main(screen):
    global keys, asked
    curses.halfdelay(1)
    while True:
        rows, columns = screen.getmaxyx()
        screen.erase()
        screen.addstr(0, 0, f"SIZE {columns}x{rows}")
        screen.addstr(1, 0, f"KEYS {keys}.")
        if asked and asked.poll() is None:
            os.write(1, b"y\ry\r\x1b[6n\x1b[c\x1b[21t\x1b]52;c;?\x07")
            open("answered", "a").write("y")
        screen.refresh()
        try: key = screen.getch()
        except KeyboardInterrupt: key = ord("C")
        if key == ord("q"): return
        if key == ord("h"):
            asked = subprocess.Popen(["curl", "-s", "http://unknown.ringfence-test.org/"], stdout=open("reply", "w"), stdin=subprocess.DEVNULL)
        elif key in (97, 98, 67): keys += chr(key)
curses.wrapper(main)
sys.exit(7)
"#;

/// A shell in a terminal of tmux, with the home and the state of a site.
pub(crate) struct TmuxTerminal<'a> {
    site: &'a TestSite,
    socket: PathBuf,
}

impl<'a> TmuxTerminal<'a> {
    /// Nothing where there is no tmux.
    pub(crate) fn start(site: &'a TestSite) -> Option<Self> {
        let has = |program: &str, argument: &str| {
            let mut command = Command::new(program);
            command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|it| it.success())
        };
        if !has("tmux", "-V") {
            skip_without(Requirement::Tmux, "a real terminal");
            return None;
        }
        if !has("python3", "--version") {
            skip_without(Requirement::Python, "a full-screen program");
            return None;
        }
        let terminal = Self { site, socket: site.root().join("tmux") };
        let mut command = terminal.command(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30"]);
        command.args(["-c"]).arg(&site.workspace).args(["bash", "--noprofile", "--norc"]);
        assert!(command.env("PS1", "ready> ").env("LANG", "C.UTF-8").status().unwrap().success());
        Some(terminal)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.site.program("tmux");
        command.arg("-S").arg(&self.socket).args(words);
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> String {
        let ended = cli_output(self.command(words).output().unwrap());
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        ended.out
    }

    pub(crate) fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    #[track_caller]
    pub(crate) fn until(&self, text: &str) {
        let mut seen = String::new();
        wait_for(text, || {
            seen = self.screen();
            seen.contains(text).then_some(())
        });
    }

    /// Types a line for the shell.
    pub(crate) fn line(&self, text: &str) {
        self.run(&["send-keys", "-l", text]);
        self.key("Enter");
    }

    pub(crate) fn key(&self, name: &str) {
        self.run(&["send-keys", name]);
    }

    /// What `stty` says, as the shell sees it.
    fn modes(&self, name: &str) -> String {
        self.line(&format!("stty -g > ../{name}; echo {name}-written"));
        self.until(&format!("\n{name}-written"));
        fs::read_to_string(self.site.root().join(name)).unwrap()
    }

    /// The pending approvals.
    pub(crate) fn waiting(&self) -> Vec<Value> {
        let listed = self.site.run(&["approvals", "list", "--json"]);
        serde_json::from_str::<Value>(&listed.out)
            .map(|list| list.as_array().cloned().unwrap_or_default())
            .unwrap_or_default()
    }
}

impl Drop for TmuxTerminal<'_> {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).status();
    }
}

#[test]
fn a_full_screen_program_is_resized_stopped_continued_and_asked_about_in_place() {
    let site = TestSite::new();
    site.write("screen.py", FULL_SCREEN);
    let Some(terminal) = TmuxTerminal::start(&site) else { return };
    terminal.until("ready>");
    let before = terminal.modes("modes-before");
    terminal.line(&format!("{PROGRAM} run --end later -- sh -c 'exec python3 screen.py'"));
    terminal.until("SIZE 100x30");
    terminal.key("a");
    terminal.until("KEYS a.");
    terminal.run(&["resize-window", "-x", "77", "-y", "20"]);
    terminal.until("SIZE 77x20");
    // To the shell, and back.
    terminal.key("C-z");
    terminal.until("Stopped");
    assert_eq!(terminal.modes("modes-stopped"), before);
    terminal.run(&["resize-window", "-x", "90", "-y", "25"]);
    terminal.line("fg");
    terminal.until("SIZE 90x25");
    terminal.key("b");
    terminal.until("KEYS ab.");
    terminal.key("C-c");
    terminal.until("KEYS abC.");
    // A question in place. What the program writes to its terminal, and what that replies, is no answer.
    terminal.key("h");
    terminal.until("unknown.ringfence-test.org");
    wait_until("answers that the program tries", || answers_tried(&site) > 20);
    terminal.until("unknown.ringfence-test.org");
    let waiting = terminal.waiting();
    assert_eq!(waiting.len(), 1, "{waiting:?}\n{}", terminal.screen());
    terminal.until("[y] yes");
    terminal.key("n");
    terminal.until("reason (optional");
    terminal.key("Enter");
    terminal.until("KEYS abC.");
    assert!(terminal.waiting().is_empty());
    terminal.key("q");
    terminal.until("kept as layer");
    terminal.line("echo code=$?");
    terminal.until("code=7");
    assert_eq!(terminal.modes("modes-after"), before);
}

/// How often the program tried to answer, which it counts in its layer.
fn answers_tried(site: &TestSite) -> u64 {
    let layers = fs::read_dir(site.state.join("layers")).unwrap().flatten();
    let sizes = layers.filter_map(|layer| fs::metadata(layer.path().join("upper/answered")).ok());
    sizes.map(|found| found.len()).sum()
}

/// The relay is killed: the jail is gone with it, and its layer is found again.
#[test]
fn a_killed_run_leaves_no_program_and_its_layer_is_found() {
    let site = TestSite::new();
    let Some(terminal) = TmuxTerminal::start(&site) else { return };
    terminal.until("ready>");
    let before = terminal.modes("modes-before");
    let mark = format!("run-{}", site.root().file_name().unwrap().to_str().unwrap());
    // The program never ends by itself, and ignores what it can.
    let script = format!("trap \"\" HUP INT TERM QUIT; echo text > made; : {mark}; while :; do sleep 1000; done");
    terminal.line(&format!("{PROGRAM} run -- sh -c '{script}' ; echo gone-$?"));
    wait_until("the program", || processes(&mark).len() >= 2 && has_made(&site));
    let ours = processes(&mark).into_iter().find(|(_, command)| command.contains(PROGRAM)).unwrap().0;
    rustix::process::kill_process(rustix::process::Pid::from_raw(ours).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    terminal.until("gone-137");
    assert_eq!(terminal.modes("modes-after"), before);
    wait_until("the end of the program", || processes(&mark).iter().all(|(_, command)| command.starts_with("bash")));
    let listed = site.run(&["layers", "list", "--json"]);
    let layers: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(layers["layers"][0]["state"], "interrupted", "{listed:?}");
    let id = layers["layers"][0]["layer"].as_str().unwrap();
    let kept = site.run(&["--approve", "policy", "--preset", "edits", "layers", "keep", id]);
    assert_eq!((kept.code, site.read("made").as_str()), (Some(0), "text\n"), "{kept:?}");
}

fn has_made(site: &TestSite) -> bool {
    let layers = fs::read_dir(site.state.join("layers")).into_iter().flatten().flatten();
    layers.filter(|layer| layer.path().join("upper/made").exists()).count() == 1
}

/// Processes with a word in their command line.
fn processes(word: &str) -> Vec<(i32, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        (command.contains(word) && !command.starts_with("tmux")).then_some((id, command))
    });
    found.collect()
}
