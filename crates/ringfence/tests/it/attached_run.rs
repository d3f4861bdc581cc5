//! `ringfence run --detach` and `ringfence layers attach`: runs that outlive the terminal that started them, and persons who
//! attach to them from others.
//!
//! Not here: the attach server with connections of the tests' own (`wrapped_run/attach_tests.rs`).

use std::os::unix::fs::PermissionsExt as _;

use ringfence_testkit::patience::{wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::site::{CliOutput, PROGRAM, TestSite, cli_output};
use crate::terminal::{TestTerminal, terminal};
use crate::wrapped_terminal::TmuxTerminal;

/// The program on a terminal of its own, with everything that it prints there.
fn at_terminal(site: &TestSite, user: &str, arguments: &[&str]) -> TestTerminal {
    let mut command = site.program_at_terminal("setsid");
    command.arg("--ctty").arg(PROGRAM).arg("--workspace").arg(&site.workspace).args(arguments).env("USER", user);
    TestTerminal::all_on_screen(terminal(), command)
}

/// A detached run of a shell. Gives its layer.
#[track_caller]
pub(crate) fn detached(site: &TestSite, options: &[&str], script: &str) -> String {
    let ended = start_detached(site, options, &["sh", "-c", script]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out.trim_end().to_owned()
}

fn start_detached(site: &TestSite, options: &[&str], command: &[&str]) -> CliOutput {
    let mut program = site.program_without_arguments();
    program.arg("--workspace").arg(&site.workspace).args(["run", "--detach"]).args(options).arg("--").args(command);
    cli_output(program.output().unwrap())
}

/// The audit records of an event.
pub(crate) fn records(site: &TestSite, event: &str) -> Vec<Value> {
    let shown = site.run(&["audit", "show", "--json"]).out;
    let records = shown.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["event"] == event).collect()
}

/// The state of a layer.
pub(crate) fn layer_state(site: &TestSite, id: &str) -> Option<String> {
    let listed: Value = serde_json::from_str(&site.run(&["layers", "list", "--json"]).out).unwrap();
    let layers = listed["layers"].as_array().unwrap();
    layers.iter().find(|layer| layer["layer"] == id).map(|layer| layer["state"].as_str().unwrap().to_owned())
}

/// The process of a detached run: the leader of the session that its program's name is in.
fn run_process(mark: &str) -> Option<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).into_owned();
        (command.contains("--detached-process") && command.contains(mark)).then_some(id)
    });
    found.min().and_then(Pid::from_raw)
}

/// A word that no other process has in its command line.
fn mark(site: &TestSite) -> String {
    format!("run-{}", site.root().file_name().unwrap().to_str().unwrap())
}

#[test]
fn a_run_survives_its_starter_and_is_attached_to_from_another_terminal() {
    let site = TestSite::new();
    let mark = mark(&site);
    let script = format!(": {mark}; while read -r line; do echo \"<$line>\"; echo \"$line\" >> lines; done; exit 7");
    // The terminal that starts it is gone before anybody attaches.
    let mut starter = at_terminal(&site, "tess", &["run", "--detach", "--", "sh", "-c", &script]);
    starter.until("attaches this terminal");
    starter.until("l-");
    assert!(starter.child.wait().unwrap().success());
    drop(starter);
    let process = run_process(&mark).unwrap();
    let id = wait_for("the layer", || {
        let listed: Value = serde_json::from_str(&site.run(&["layers", "list", "--json"]).out).unwrap();
        Some(listed["layers"][0]["layer"].as_str()?.to_owned())
    });
    let mut first = at_terminal(&site, "tess", &["layers", "attach", &id]);
    first.press("one\r");
    first.until("<one>");
    // The key, twice: the program goes on.
    first.press("\x1c");
    first.press("\x1c");
    first.until("detached;");
    assert_eq!(first.end().code, Some(0));
    // A window that closes leaves it running, too.
    let mut second = at_terminal(&site, "tess", &["layers", "attach", &id[..8]]);
    second.until("<one>");
    second.press("two\r");
    second.until("<two>");
    let mut child = second.child;
    drop(second.master);
    child.wait().unwrap();
    assert!(test_kill_process(process).is_ok());
    assert_eq!(layer_state(&site, &id).as_deref(), Some("running"));
    let mut third = at_terminal(&site, "tess", &["layers", "attach", &id]);
    third.until("<one>");
    third.until("<two>");
    third.press("\x04");
    third.until("1 new, 0 changed, 0 deleted");
    third.until(&format!("kept as layer {id}"));
    third.until("ended with exit code 7");
    assert_eq!(third.end().code, Some(7));
    assert_eq!(layer_state(&site, &id).as_deref(), Some("ended"));
    assert_eq!(site.run(&["layers", "keep", &id, "lines"]).code, Some(0));
    assert_eq!(site.read("lines"), "one\ntwo\n");
    let writers: Vec<Value> = records(&site, "terminal-writer").iter().map(|record| record["writer"].clone()).collect();
    assert_eq!(writers, ["tess at the terminal"; 3]);
}

#[test]
fn one_types_and_others_view_until_they_take_over() {
    let site = TestSite::new();
    let id = detached(&site, &[], "while read -r line; do echo \"<$line>\"; done");
    let mut ana = at_terminal(&site, "ana", &["layers", "attach", &id]);
    ana.press("one\r");
    ana.until("<one>");
    let mut viewer = at_terminal(&site, "vic", &["layers", "attach", "--view", &id]);
    viewer.until("<one>");
    viewer.press("ignored\r");
    let mut bob = at_terminal(&site, "bob", &["layers", "attach", &id]);
    ana.until("bob at the terminal types now");
    ana.press("ignored too\r");
    bob.until("<one>");
    bob.press("two\r");
    for terminal in [&mut bob, &mut ana, &mut viewer] {
        terminal.until("<two>");
    }
    let writers: Vec<Value> = records(&site, "terminal-writer").iter().map(|record| record["writer"].clone()).collect();
    assert_eq!(writers, ["ana at the terminal", "bob at the terminal"]);
    assert_eq!(site.run(&["layers", "stop", &id]).code, Some(0));
    for mut terminal in [ana, bob, viewer] {
        terminal.until("ended with exit code 143");
        assert_eq!(terminal.end().code, Some(143));
    }
    assert_eq!(site.run(&["audit", "verify"]).code, Some(0));
}

#[test]
fn nothing_of_the_sockets_is_visible_in_the_jail() {
    let site = TestSite::new();
    let attach = site.state.join("attach");
    let script = format!(
        "ls -d {state} {attach} > seen 2>/dev/null; grep attach /proc/net/unix >> seen; echo looked >> seen; read -r _",
        state = site.state.display(),
        attach = attach.display()
    );
    let id = detached(&site, &[], &script);
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(attach.clone()), mode(attach.join(&id))), (0o700, 0o600));
    let mut terminal = at_terminal(&site, "tess", &["layers", "attach", &id]);
    terminal.press("\r");
    terminal.until("ended with exit code 0");
    assert_eq!(site.run(&["layers", "keep", &id, "seen"]).code, Some(0));
    assert_eq!(site.read("seen"), "looked\n");
    wait_until("the end of the socket", || !attach.join(&id).exists());
}

#[test]
fn a_killed_run_leaves_a_socket_that_confuses_nobody() {
    let site = TestSite::new();
    let mark = mark(&site);
    let id = detached(&site, &[], &format!(": {mark}; echo text > made; echo made; read -r _"));
    let mut terminal = at_terminal(&site, "tess", &["layers", "attach", &id]);
    terminal.until("made");
    kill_process(run_process(&mark).unwrap(), Signal::KILL).unwrap();
    terminal.until("the process of the run is gone");
    assert_eq!(terminal.end().code, Some(1));
    let socket = site.state.join("attach").join(&id);
    assert!(socket.exists());
    let stopped = site.run(&["layers", "stop", &id]);
    assert!(stopped.err.contains("no running program has the layer"), "{stopped:?}");
    wait_until("the end of its program", || layer_state(&site, &id).as_deref() == Some("interrupted"));
    let other = detached(&site, &[], "read -r _");
    assert!(!socket.exists());
    assert_eq!(site.run(&["layers", "stop", &other]).code, Some(0));
    assert_eq!(site.run(&["layers", "keep", &id, "made"]).code, Some(0));
    assert_eq!(site.read("made"), "text\n");
}

#[test]
fn what_goes_wrong_at_the_start_is_said_by_the_starter() {
    let site = TestSite::new();
    for (options, command, code, expected) in [
        (&[][..], &["no-such-program"][..], 2, "no-such-program"),
        (&["--profile", "unknown"], &["true"], 2, "unknown profile"),
        (&["--end", "review"], &["true"], 2, "a detached run has no terminal for a review"),
        (&["--memory", "x"], &["true"], 2, "expected a size"),
    ] {
        let ended = start_detached(&site, options, command);
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{ended:?}");
        assert_eq!(ended.err.matches(expected).count(), 1, "{ended:?}");
    }
    let config = site.config.join("ringfence/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(config, "[[rules]]\nname = \"no runs\"\ndecision = \"deny\"\ntool = \"run_program\"\n").unwrap();
    let ended = start_detached(&site, &[], &["true"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(125), ""), "{ended:?}");
    assert!(ended.err.contains("no runs"), "{ended:?}");
}

#[test]
fn a_run_at_a_terminal_is_viewed_from_another_one() {
    let site = TestSite::new();
    let mut run = at_terminal(
        &site,
        "tess",
        &["run", "--end", "later", "--", "sh", "-c", "echo begun; read -r line; echo \"<$line>\""],
    );
    run.until("begun");
    let id = wait_for("the layer", || {
        let listed: Value = serde_json::from_str(&site.run(&["layers", "list", "--json"]).out).unwrap();
        Some(listed["layers"][0]["layer"].as_str()?.to_owned())
    });
    let mut viewer = at_terminal(&site, "vic", &["layers", "attach", "--view", &id]);
    viewer.until("begun");
    let mut writer = at_terminal(&site, "bob", &["layers", "attach", &id]);
    writer.until("only the terminal that started this run types to it");
    assert_eq!(writer.end().code, Some(2));
    run.press("typed\r");
    viewer.until("<typed>");
    viewer.until("ended with exit code 0");
    assert_eq!((viewer.end().code, run.end().code), (Some(0), Some(0)));
    assert_eq!(records(&site, "terminal-writer"), [Value::Null; 0]);
}

/// A full-screen program in tmux: it is drawn again and resized where it is typed to.
#[test]
fn a_full_screen_program_is_attached_to_and_resized() {
    let site = TestSite::new();
    site.write("screen.py", crate::wrapped_terminal::FULL_SCREEN);
    let Some(terminal) = TmuxTerminal::start(&site) else { return };
    let id = detached(&site, &[], "exec python3 screen.py");
    terminal.until("ready>");
    terminal.line(&format!("{PROGRAM} layers attach {id}"));
    terminal.until("SIZE 100x30");
    terminal.key("a");
    terminal.until("KEYS a.");
    terminal.run(&["resize-window", "-x", "90", "-y", "25"]);
    terminal.until("SIZE 90x25");
    terminal.until("KEYS a.");
    terminal.key("C-\\");
    terminal.key("C-\\");
    terminal.until("detached;");
    terminal.line("stty size");
    terminal.until("25 90");
    terminal.line(&format!("{PROGRAM} layers attach {id}"));
    terminal.until("KEYS a.");
    terminal.key("b");
    terminal.until("KEYS ab.");
    terminal.key("q");
    terminal.until("ended with exit code 7");
}
