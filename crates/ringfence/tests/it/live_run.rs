//! `ringfence run --live`: what lands while the program runs is what a bare run leaves, checkpoint by checkpoint, and each of
//! them is undone. With `RINGFENCE_FULL=1` for a minute with 1,000 files a second, for 5,000 tasks, and killed 20 times.
//!
//! Not here: what a checkpoint takes and leaves (`layers/live.rs` of `ringfence-fs`).

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ringfence_testkit::patience::{wait_for, wait_until};
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::Value;

use crate::site::{CliOutput, PROGRAM, TestSite, cli_output};
use crate::terminal::{TestTerminal, terminal};

/// Writes files at a rate: new ones, ones that are replaced, renamed and removed, and a log that grows. What is in a file
/// tells which it is.
const WRITER: &str = r#"
import os, shutil, sys, time
count, rate = int(sys.argv[1]), int(sys.argv[2])
start = time.monotonic()
for i in range(count):
    place = f"out/{i % 20}"
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/{i}", "w") as file: file.write(f"{i}\n" * (i % 40 + 1))
    if i % 3 == 0: os.rename(f"{place}/{i}", f"{place}/r{i}")
    if i % 7 == 0:
        with open("log", "a") as log: log.write(f"{i}\n")
        with open(".state", "w") as state: state.write(f"{i}\n" * (i % 40 + 1))
        os.rename(".state", "state")
    if i % 20 == 0:
        os.makedirs(f"made/{i}/in")
        with open(f"made/{i}/in/file", "w") as file: file.write(f"{i}\n" * (i % 40 + 1))
        if i >= 200: shutil.rmtree(f"made/{i - 200}")
    if i % 5 == 0 and i >= 100 and os.path.exists(f"out/{(i - 99) % 20}/{i - 99}"): os.unlink(f"out/{(i - 99) % 20}/{i - 99}")
    if i < 40: os.unlink(f"old/{i}")
    left = start + i / rate - time.monotonic()
    if left > 0: time.sleep(left)
"#;

fn is_full() -> bool {
    std::env::var_os("RINGFENCE_FULL").is_some()
}

fn has_python() -> bool {
    let mut command = Command::new("python3");
    let is_there = command.arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !is_there {
        skip_without(Requirement::Python, "a program that writes files at a rate");
    }
    is_there
}

/// A script for the system's interpreter.
fn python<'a>(script: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["sh", "-c", "exec python3 -c \"$@\"", "sh", script][..], arguments].concat()
}

/// A live run that lands what the preset `edits` allows.
fn live(site: &TestSite, options: &[&str], command: &[&str]) -> Command {
    let mut program = site.program_without_arguments();
    program.arg("--workspace").arg(&site.workspace).args(["--preset", "edits", "run", "--live"]).args(options);
    program.arg("--").args(command);
    program
}

fn layers(site: &TestSite) -> Vec<Value> {
    let listed = site.run(&["layers", "list", "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    serde_json::from_str::<Value>(&listed.out).unwrap()["layers"].as_array().unwrap().clone()
}

/// The records of the audit log about checkpoints.
fn checkpoint_records(site: &TestSite) -> Vec<Value> {
    let log = fs::read_to_string(site.state.join("audit/000001.jsonl")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["tool"] == "checkpoint_layer").collect()
}

/// A live run of a shell that follows lines.
struct LiveShell<'a> {
    site: &'a TestSite,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl<'a> LiveShell<'a> {
    fn start(site: &'a TestSite) -> Self {
        let mut command = live(site, &[], &["sh", "-c", "while read -r line; do eval \"$line\"; done"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { site, child, input, output }
    }

    fn line(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The output of a line.
    fn ask(&mut self, line: &str) -> String {
        self.line(line);
        let mut text = String::new();
        self.output.read_line(&mut text).unwrap();
        text
    }

    #[track_caller]
    fn until(&self, path: &str, text: &str) {
        wait_until(path, || fs::read_to_string(self.site.workspace.join(path)).is_ok_and(|found| found == text));
    }

    fn end(mut self) -> CliOutput {
        drop(self.input.take());
        cli_output(self.child.wait_with_output().unwrap())
    }
}

#[test]
fn changes_land_when_the_program_is_idle_and_what_is_undone_stays_undone() {
    let site = TestSite::new();
    site.write("a", "0\n");
    site.write("gone", "x\n");
    let before = site.tree();
    let mut shell = LiveShell::start(&site);
    shell.line("echo 1 > a; mkdir d; echo x > d/f; rm gone");
    shell.until("a", "1\n");
    assert_eq!((site.read("d/f").as_str(), site.workspace.join("gone").exists()), ("x\n", false));
    // The program's own view is as it was: what landed can be changed, renamed and removed.
    assert_eq!(shell.ask("cat a d/f | tr '\\n' ' '; ls | tr '\\n' ' '; echo"), "1 x a d \n");
    shell.line("echo 2 > a; mv d/f d/g; mkdir .claude; echo '{}' > .claude/settings.json");
    shell.until("a", "2\n");
    assert_eq!((site.read("d/g").as_str(), site.workspace.join("d/f").exists()), ("x\n", false));
    assert!(!site.workspace.join(".claude").exists());
    assert_eq!(shell.ask("ls d; "), "g\n");
    shell.line("rm -r d; echo 3 > c");
    shell.until("c", "3\n");
    assert!(!site.workspace.join("d").exists());
    // Nor does it see where changes are staged and what they replaced.
    assert_eq!(shell.ask("ls -A .ringfence | wc -l; "), "0\n");
    assert_eq!(shell.ask("ls -A | tr '\\n' ' '; echo"), ".claude .ringfence a c \n");
    // A person undoes one: the program goes on with its own version, and it does not land again.
    let undone = site.run(&["undo"]);
    assert_eq!(undone.code, Some(0), "{undone:?}");
    assert!(site.workspace.join("d/g").exists() && !site.workspace.join("c").exists());
    assert_eq!(shell.ask("cat c"), "3\n");
    shell.line("echo e > e");
    shell.until("e", "e\n");
    assert!(site.workspace.join("d/g").exists() && !site.workspace.join("c").exists());
    let ended = shell.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("4 checkpoints landed; `ringfence undo c-"), "{ended:?}");
    let layer = layers(&site)[0]["layer"].as_str().unwrap().to_owned();
    assert!(ended.err.contains(&format!("kept as layer {layer}")), "{ended:?}");
    let review = site.run(&["layers", "review", &layer, "--plain"]);
    for (path, is_listed) in [("settings.json", true), ("A c,", true), ("D d", true), ("  A e", false), ("M a", false)]
    {
        assert_eq!(review.out.contains(path), is_listed, "{path}: {review:?}");
    }
    // The record of each checkpoint has its change and its accesses.
    let records = checkpoint_records(&site);
    let changes = records.iter().filter(|record| record["change"].as_str().is_some_and(|change| !change.is_empty()));
    assert!(changes.count() >= 4, "{records:?}");
    assert!(records.iter().any(|record| record["accesses"].to_string().contains("d/g")), "{records:?}");
    assert_eq!(site.run(&["layers", "drop", &layer]).code, Some(0));
    undo_all(&site);
    assert_eq!(site.tree(), before);
}

/// Undoes every change, the last one first. Returns their number.
fn undo_all(site: &TestSite) -> u32 {
    (0..).take_while(|_| site.run(&["undo"]).code == Some(0)).count().try_into().unwrap()
}

#[test]
fn a_program_that_writes_without_end_leaves_what_a_bare_run_leaves_and_is_undone_to_the_first_tree() {
    if !has_python() {
        return;
    }
    let (count, rate, longest) = if is_full() { (60_000, 1000, "2") } else { (2000, 700, "1") };
    let [site, bare] = [TestSite::new(), TestSite::new()];
    for site in [&site, &bare] {
        (0..40).for_each(|number| site.write(&format!("old/{number}"), "old\n"));
        site.write("state", "old\n");
    }
    let before = site.tree();
    let (count, rate) = (count.to_string(), rate.to_string());
    let ended = live(&site, &["--checkpoint", longest], &python(WRITER, &[&count, &rate])).output().unwrap();
    let ended = cli_output(ended);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut program = bare.program("python3");
    assert!(program.args(["-c", WRITER, &count, "1000000"]).current_dir(&bare.workspace).status().unwrap().success());
    assert!(site.tree() == bare.tree(), "the trees differ: {ended:?}");
    assert_eq!(layers(&site), Vec::<Value>::new(), "{ended:?}");
    let undone = undo_all(&site);
    println!("{undone} checkpoints");
    assert!(undone >= if is_full() { 20 } else { 2 }, "{undone}: {ended:?}");
    assert!(site.tree() == before, "not the first tree after {undone} changes were undone");
    assert_eq!(site.temp_files(), Vec::<String>::new());
}

/// Whether every file that the writer made is whole.
#[track_caller]
fn check_whole(workspace: &Path) -> usize {
    let mut left = vec![workspace.join("out"), workspace.join("made")];
    let mut files = 0;
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let number: usize = text.lines().next().unwrap_or_default().parse().unwrap();
            assert_eq!(text, format!("{number}\n").repeat(number % 40 + 1), "{}", path.display());
            files += 1;
        }
    }
    files
}

#[test]
fn a_live_run_that_is_killed_at_any_moment_tears_nothing_and_its_layer_is_found() {
    if !has_python() {
        return;
    }
    for attempt in 0..if is_full() { 20 } else { 3 } {
        let site = TestSite::new();
        (0..40).for_each(|number| site.write(&format!("old/{number}"), "old\n"));
        let command = python(WRITER, &["1000000", "500"]);
        let mut child = live(&site, &["--checkpoint", "1"], &command).stderr(Stdio::null()).spawn().unwrap();
        wait_until("a checkpoint", || fs::read_dir(site.workspace.join("out")).is_ok());
        // While the next one is made: at its copies, or some time after they are there.
        let layer = fs::read_dir(site.state.join("layers")).unwrap().next().unwrap().unwrap().path();
        let copy = layer.join("captured").join((attempt * 37).to_string());
        wait_until("the next checkpoint", || copy.exists());
        if attempt % 2 == 1 {
            let journal = || fs::read_dir(site.workspace.join(".ringfence")).map_or(0, Iterator::count);
            let kept = journal();
            wait_until("staged files", || journal() != kept || !copy.exists());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let listed =
            wait_for("the end of the jail", || layers(&site).pop().filter(|layer| layer["state"] == "interrupted"));
        let undone_to = site.tree();
        assert_eq!(site.temp_files(), Vec::<String>::new());
        let landed = check_whole(&site.workspace);
        let id = listed["layer"].as_str().unwrap();
        let kept = site.run(&["--preset", "edits", "layers", "keep", id]);
        assert_eq!(kept.code, Some(0), "{kept:?}");
        let all = fs::read_to_string(site.workspace.join("log")).unwrap();
        assert!(all.lines().count() > 0, "{kept:?}");
        println!("attempt {attempt}: {landed} files had landed");
        // The keep, then every checkpoint.
        assert_eq!(site.run(&["undo"]).code, Some(0));
        assert!(site.tree() == undone_to, "attempt {attempt}");
        undo_all(&site);
        let left: Vec<String> =
            site.tree().into_iter().map(|(name, _)| name).filter(|name| !name.starts_with("old")).collect();
        assert_eq!(
            (left, fs::read_dir(site.workspace.join("old")).unwrap().count()),
            (Vec::new(), 40),
            "attempt {attempt}"
        );
    }
}

#[test]
fn a_key_makes_a_checkpoint_of_a_program_that_is_never_idle() {
    let site = TestSite::new();
    let (master, slave) = terminal();
    let mut command = site.program_at_terminal("setsid");
    command.arg("--ctty").arg(PROGRAM).arg("--workspace").arg(&site.workspace);
    command.args(["--preset", "edits", "run", "--live", "--end", "later", "--", "sh", "-c"]);
    command.arg("echo a > a; echo ready; (while [ ! -e stop ]; do echo x > busy; done) & read -r line; echo \"got $line\"; touch stop; wait");
    let mut shown = TestTerminal::all_on_screen((master, slave), command);
    shown.until("ready");
    assert!(!site.workspace.join("a").exists());
    shown.press("\x1d");
    wait_until("the checkpoint", || site.workspace.join("a").exists());
    // The key is not for the program.
    shown.press("text\r");
    shown.until("got text");
    shown.until("landed");
    shown.end();
    assert_eq!(site.read("a"), "a\n");
}

/// Each task changes some files out of a set, adds to a log and has temporary files.
const TASKS: &str = r#"
import os, sys, time
for task in range(int(sys.argv[1])):
    os.makedirs("src", exist_ok=True)
    for part in range(5):
        with open(f"src/{(task * 5 + part) % 200}", "w") as file: file.write(f"task {task}\n")
    with open("notes", "a") as notes: notes.write(f"task {task}\n")
    with open(f"tmp-{task}", "w") as file: file.write("x" * 10000)
    os.unlink(f"tmp-{task}")
    if task % 10 == 9:
        print(task + 1, flush=True)
        # As an agent that waits for its model.
        time.sleep(0.05)
"#;

/// Resident memory of a process in KiB.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn thousands_of_tasks_in_one_run_keep_memory_records_and_layer_bounded() {
    if !has_python() {
        return;
    }
    let tasks = if is_full() { 5000 } else { 300 };
    let site = TestSite::new();
    let mut command = live(&site, &["--checkpoint", "1"], &python(TASKS, &[&tasks.to_string()]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (mut early, mut late, mut record) = (0, 0, 0);
    for line in lines {
        let done: u64 = line.parse().unwrap();
        if done * 5 == tasks {
            early = resident(child.id());
        }
        if done + 10 == tasks {
            late = resident(child.id());
            let layer = fs::read_dir(site.state.join("layers")).unwrap().next().unwrap().unwrap().path();
            record = fs::metadata(layer.join("about.json")).unwrap().len();
        }
    }
    let ended = cli_output(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let checkpoints = checkpoint_records(&site);
    println!(
        "{tasks} tasks: {early} to {late} KiB, {} records of checkpoints, {record} bytes of record",
        checkpoints.len()
    );
    assert!(late < early + (32 << 10), "memory grew from {early} to {late} KiB");
    assert!((checkpoints.len() as u64) < tasks, "{}", checkpoints.len());
    assert!(record < 4 << 20, "{record} bytes");
    assert_eq!(site.read("notes").lines().count() as u64, tasks);
    assert_eq!(layers(&site), Vec::<Value>::new(), "{ended:?}");
}
