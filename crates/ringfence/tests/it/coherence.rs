//! Overlay synchronisation in `ringfence run`: a person works in the workspace while a program does, each sees the other, and
//! what both changed is a conflict.
//!
//! Each test has one shell in a real jail that takes commands, so that it caches entries and holds files open like an agent.
//! With `RINGFENCE_FULL=1` 10,000 random edits instead of 300.
//!
//! Not here: comparison with the layer (`ringfence-fs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_testkit::patience::wait_until;
use serde_json::Value;

use crate::site::{PROGRAM, TestSite};
use crate::terminal::{TestTerminal, terminal};

/// An unused user ID.
const PLAIN_UID: u32 = 60_602;

/// A shell under `ringfence run`, which takes commands.
struct ShellAgent {
    site: TestSite,
    /// Nothing for the user of the tests.
    user: Option<u32>,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
    errors: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    commands: usize,
}

impl ShellAgent {
    fn start(site: TestSite) -> Self {
        Self::start_as(site, None)
    }

    fn start_as(site: TestSite, user: Option<u32>) -> Self {
        let mut program = program_of(&site, user);
        program.arg("--workspace").arg(&site.workspace).args(["run", "--end", "later", "--", "bash"]);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (lines, stream) = (Arc::clone(&errors), child.stderr.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut agent = Self { site, user, child, input, output, errors, reader: Some(reader), commands: 0 };
        agent.run("true");
        agent
    }

    /// Starts commands.
    fn send(&mut self, commands: &str) {
        self.commands += 1;
        let text = format!("{{ {commands}\n}} </dev/null 2>&1; echo; echo end-of-command-{}\n", self.commands);
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Their output.
    fn receive(&mut self) -> String {
        let (mut text, end) = (String::new(), format!("end-of-command-{}\n", self.commands));
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).unwrap();
            assert!(length > 0, "the shell ended after `{text}`: {:?}", self.errors.lock().unwrap());
            if line == end {
                text.pop();
                return text;
            }
            text.push_str(&line);
        }
    }

    fn run(&mut self, commands: &str) -> String {
        self.send(commands);
        self.receive()
    }

    /// Whether a line with this was printed for the person.
    fn was_told(&self, text: &str) -> bool {
        self.errors.lock().unwrap().iter().any(|line| line.contains(text))
    }

    fn messages(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.site.workspace.join(path)
    }

    fn command(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut program = program_of(&self.site, self.user);
        let ended = program.args(arguments).arg("--workspace").arg(&self.site.workspace).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    }

    /// The id of its layer.
    fn layer(&self) -> Option<String> {
        let (_, listed, _) = self.command(&["layers", "list", "--json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed["layers"][0]["layer"].as_str().map(str::to_owned)
    }

    /// Entries of its upper directory, but for directories.
    fn upper_entries(&self) -> BTreeSet<String> {
        let upper = self.site.state.join("layers").join(self.layer().unwrap()).join("upper");
        let (mut found, mut left) = (BTreeSet::new(), vec![upper.clone()]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => left.push(entry.path()),
                    false => _ = found.insert(entry.path().strip_prefix(&upper).unwrap().display().to_string()),
                }
            }
        }
        found
    }

    /// Ends the shell, and waits for the end of the run.
    fn end(&mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success(), "{:?}", self.messages());
        self.reader.take().unwrap().join().unwrap();
    }
}

impl Drop for ShellAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program as the user of the tests, or as another one, who has the whole site then.
fn program_of(site: &TestSite, user: Option<u32>) -> Command {
    let Some(user) = user else { return site.program_without_arguments() };
    let mut program = site.program(reachable_program(site));
    program.uid(user).gid(user);
    program
}

/// The program where every user reaches it.
fn reachable_program(site: &TestSite) -> PathBuf {
    let path = site.root().join("ringfence");
    if !path.exists() {
        fs::hard_link(PROGRAM, &path).or_else(|_| fs::copy(PROGRAM, &path).map(drop)).unwrap();
    }
    path
}

/// Gives everything in a site to a user.
fn give_to(site: &TestSite, user: u32) {
    let program = reachable_program(site);
    let mut left = vec![site.root().to_owned()];
    while let Some(path) = left.pop() {
        if path != program {
            std::os::unix::fs::lchown(&path, Some(user), Some(user)).unwrap();
        }
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

/// Runs a test as the current user and, if that is root, as a plain user too.
fn as_each_user(test: impl Fn(Option<u32>)) {
    test(None);
    if rustix::process::geteuid().is_root() {
        test(Some(PLAIN_UID));
    }
}

/// Works as a user, who is the person at the workspace.
fn as_user<T>(user: Option<u32>, work: impl FnOnce() -> T) -> T {
    let change = |id: u32| {
        rustix::thread::set_thread_res_gid(None, rustix::process::Gid::from_raw(id), None).unwrap();
        rustix::thread::set_thread_res_uid(None, rustix::process::Uid::from_raw(id), None).unwrap();
    };
    let Some(user) = user else { return work() };
    change(user);
    let result = work();
    rustix::thread::set_thread_res_uid(None, rustix::process::Uid::ROOT, None).unwrap();
    change(0);
    result
}

/// What there is by these names in a directory, and in its list.
fn describe(directory: &Path, names: &[&str]) -> String {
    let mut text = String::new();
    for name in names {
        let path = directory.join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => writeln!(text, "{name} directory {:o}", found.mode() & 0o777).unwrap(),
            Ok(found) => {
                let contents = fs::read_to_string(&path).unwrap();
                writeln!(text, "{name} file {:o} {}", found.mode() & 0o777, contents.trim_end()).unwrap();
            }
            Err(_) => writeln!(text, "{name} none").unwrap(),
        }
    }
    let mut list: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    list.sort();
    writeln!(text, "{}", list.join(" ")).unwrap();
    text
}

/// A shell function that prints the same inside.
fn describe_function(names: &[&str]) -> String {
    format!(
        "describe() {{ cd $1; for n in {}; do if [ -d $n ]; then echo $n directory $(stat -c %a $n); elif [ -e $n ]; then \
         echo $n file $(stat -c %a $n) $(cat $n); else echo $n none; fi; done; echo $(LC_ALL=C ls -A); cd - >/dev/null; }}",
        names.join(" ")
    )
}

const NAMES: [&str; 10] = ["f", "new", "made", "made/in", "d", "d/x", "d/sub", "d2", "d2/x", "d2/sub"];

/// The kinds of edits of a person.
const EDITS: [&str; 7] = ["write", "replace", "create", "delete", "mkdir", "rename-directory", "chmod"];

/// What the program did to the same file or directory before.
const STATES: [&str; 4] = ["untouched", "changed", "deleted", "opened"];

/// What a person does.
fn edit(directory: &Path, edit: &str) {
    let file = directory.join("f");
    match edit {
        "write" => fs::OpenOptions::new().append(true).open(file).unwrap().write_all(b"of the person").unwrap(),
        "replace" => {
            fs::write(directory.join(".f.new"), "of the person").unwrap();
            fs::set_permissions(directory.join(".f.new"), fs::Permissions::from_mode(0o640)).unwrap();
            fs::rename(directory.join(".f.new"), file).unwrap();
        }
        "create" => fs::write(directory.join("new"), "of the person").unwrap(),
        "delete" => fs::remove_file(file).unwrap(),
        "mkdir" => {
            fs::create_dir(directory.join("made")).unwrap();
            fs::write(directory.join("made/in"), "of the person").unwrap();
        }
        "rename-directory" => fs::rename(directory.join("d"), directory.join("d2")).unwrap(),
        "chmod" => fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap(),
        other => panic!("{other}"),
    }
}

/// What the program does before.
fn prepare(edit: &str, state: &str) -> String {
    let target = match edit {
        "create" => "new",
        "mkdir" => "made",
        "rename-directory" => "d",
        _ => "f",
    };
    match (state, edit) {
        ("untouched", _) => "true".to_owned(),
        ("changed", "mkdir") => "mkdir made; echo of the program > made/own".to_owned(),
        ("changed", "rename-directory") => "echo of the program > d/x".to_owned(),
        ("changed", _) => format!("echo of the program > {target}"),
        ("deleted", "create") => "echo x > new; rm new".to_owned(),
        ("deleted", "mkdir") => "mkdir made; echo x > made/in; rm -r made".to_owned(),
        ("deleted", _) => format!("rm -r {target}"),
        ("opened", "rename-directory") => "exec {held}<d/x".to_owned(),
        ("opened", "create" | "mkdir") => "exec {held}<.".to_owned(),
        ("opened", _) => "exec {held}<f".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Whether a conflict has to be told. Otherwise the program sees what the person has.
fn is_conflict(edit: &str, state: &str) -> bool {
    match (edit, state) {
        // A directory of both has the entries of both.
        ("mkdir", "changed") => false,
        (_, "changed") => true,
        // Both deleted it, or it went and came again before.
        ("delete" | "create" | "mkdir" | "rename-directory", "deleted") => false,
        (_, "deleted") => true,
        _ => false,
    }
}

#[test]
fn the_coherence_matrix_has_no_ghost() {
    as_each_user(|user| {
        let site = TestSite::new();
        let cases = || EDITS.into_iter().flat_map(|edit| STATES.map(|state| (edit, state)));
        let name = |edit: &str, state: &str| format!("{edit}-{state}");
        for (edit, state) in cases() {
            let directory = name(edit, state);
            site.write(&format!("{directory}/f"), "old ");
            site.write(&format!("{directory}/d/x"), "old ");
            site.write(&format!("{directory}/d/sub/y"), "old ");
        }
        if let Some(user) = user {
            give_to(&site, user);
        }
        let mut agent = ShellAgent::start_as(site, user);
        agent.run(&describe_function(&NAMES));
        for (edit, state) in cases() {
            let directory = name(edit, state);
            // Looking first makes the kernel cache what is there, and what is not.
            let said = agent.run(&format!(
                "describe {directory}; cd {directory}; {}; cd ..; describe {directory}",
                prepare(edit, state)
            ));
            assert!(!said.contains("No such"), "{directory}: {said}");
        }
        let mut slowest = Duration::ZERO;
        for (edit_kind, state) in cases() {
            let directory = name(edit_kind, state);
            let inside_before = agent.run(&format!("describe {directory}"));
            as_user(user, || edit(&agent.path(&directory), edit_kind));
            let (since, outside) = (Instant::now(), describe(&agent.path(&directory), &NAMES));
            if is_conflict(edit_kind, state) {
                wait_until(&format!("a conflict in {directory}"), || {
                    agent.was_told(&format!("conflict: `{directory}/"))
                });
                slowest = slowest.max(since.elapsed());
                if edit_kind != "rename-directory" {
                    assert_eq!(agent.run(&format!("describe {directory}")), inside_before, "{directory}");
                }
                assert_eq!(describe(&agent.path(&directory), &NAMES), outside, "{directory}");
            } else {
                let mut inside = String::new();
                wait_until(&format!("{directory} as outside:\n{outside}"), || {
                    inside = agent.run(&format!("describe {directory}"));
                    inside == outside
                });
                slowest = slowest.max(since.elapsed());
                assert!(!agent.was_told(&format!("`{directory}/")), "{directory}: {:?}", agent.messages());
            }
        }
        eprintln!("user {user:?}: the slowest of {} edits was seen after {slowest:?}", cases().count());
        // What the person did is not a change of the program.
        let own: BTreeSet<&str> = STATES[1..3].iter().copied().collect();
        for entry in agent.upper_entries() {
            assert!(own.iter().any(|state| entry.split('/').next().unwrap().ends_with(state)), "{entry}");
        }
        agent.end();
        let (_, review, _) = agent.command(&["layers", "review", &agent.layer().unwrap(), "--json"]);
        for (edit, state) in cases().filter(|(_, state)| matches!(*state, "untouched" | "opened")) {
            assert!(!review.contains(&name(edit, state)), "{edit} {state}: {review}");
        }
    });
}

/// The control: without synchronisation each of these is seen as it was.
#[test]
fn without_synchronisation_there_are_ghosts() {
    let site = TestSite::new();
    fs::create_dir_all(site.config.join("ringfence")).unwrap();
    fs::write(site.config.join("ringfence/config.toml"), "[run]\nfollow_workspace = false\n").unwrap();
    for edit in ["replace", "create", "delete", "rename-directory"] {
        site.write(&format!("{edit}/f"), "old ");
        site.write(&format!("{edit}/d/x"), "old ");
    }
    let mut agent = ShellAgent::start(site);
    agent.run(&describe_function(&["f", "new", "d/x"]));
    for edit_kind in ["replace", "create", "delete", "rename-directory"] {
        let by_name = |text: &str| text.lines().take(3).map(str::to_owned).collect::<Vec<_>>();
        let before = by_name(&agent.run(&format!("describe {edit_kind}")));
        edit(&agent.path(edit_kind), edit_kind);
        assert_eq!(by_name(&agent.run(&format!("describe {edit_kind}"))), before, "{edit_kind}");
        assert_ne!(by_name(&describe(&agent.path(edit_kind), &["f", "new", "d/x"])), before, "{edit_kind}");
    }
}

#[test]
fn what_the_program_saw_is_the_base_of_its_own_change() {
    let site = TestSite::new();
    for name in ["seen", "again", "gone/x", "gone/y", "moved/x"] {
        site.write(name, "one\n");
    }
    let mut agent = ShellAgent::start(site);
    agent.run("cat seen again gone/x moved/x moved/y");
    for name in ["seen", "again", "gone/x", "moved/y"] {
        fs::write(agent.path("next"), "two\n").unwrap();
        fs::rename(agent.path("next"), agent.path(name)).unwrap();
    }
    wait_until("the second versions", || agent.run("cat seen again gone/x moved/y") == "two\n".repeat(4));
    agent.run("echo three >> seen; echo three >> again; rm -r gone; mv moved/x moved/z");
    assert!(!agent.was_told("conflict"), "{:?}", agent.messages());
    fs::write(agent.path("again"), "four\n").unwrap();
    wait_until("a conflict", || agent.was_told("conflict: `again`"));
    let layer = agent.layer().unwrap();
    // At once in another terminal.
    let (_, listed, _) = agent.command(&["layers", "list"]);
    assert!(listed.contains("running") && listed.contains("1 in conflict so far"), "{listed}");
    let (code, shown, _) = agent.command(&["layers", "review", &layer, "--plain"]);
    assert!(code == Some(0) && shown.contains("cannot be kept: `again` changed in the workspace"), "{shown}");
    assert!(shown.contains("while it runs, a change of yours that the program has seen is listed"), "{shown}");
    agent.end();
    let (_, review, _) = agent.command(&["layers", "review", &layer, "--json"]);
    let review: Value = serde_json::from_str(&review).unwrap();
    let conflicts = review["sections"].as_array().unwrap().iter().find(|section| section["section"] == "conflicts");
    let paths: Vec<&str> =
        conflicts.unwrap()["items"].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["again"], "{review:#}");
    let (code, _, kept) = agent.command(&["layers", "keep", &layer, "seen", "gone", "moved"]);
    assert_eq!(code, Some(0), "{kept}");
    assert_eq!((agent.site.read("seen"), agent.site.read("again")), ("two\nthree\n".to_owned(), "four\n".to_owned()));
    assert!(!agent.path("gone").exists() && agent.path("moved/z").exists() && agent.path("moved/y").exists());
    // It is one change, which is undone as any other.
    assert_eq!(agent.command(&["undo"]).0, Some(0));
    assert_eq!((agent.site.read("seen"), agent.site.read("gone/x")), ("two\n".to_owned(), "two\n".to_owned()));
    let audit = agent.command(&["audit", "show", "--json"]).1;
    assert!(audit.contains("layer-conflict") && audit.contains("again"), "{audit}");
}

#[test]
fn a_secret_that_appears_later_is_hidden() {
    as_each_user(|user| {
        let site = TestSite::new();
        site.write("src/main.rs", "fn main() {}\n");
        site.write("config/.env", "KEY=first\n");
        if let Some(user) = user {
            give_to(&site, user);
        }
        let mut agent = ShellAgent::start_as(site, user);
        agent.run("cat .env src/.env config/.env; grep -r KEY .");
        for path in [".env", "src/.env"] {
            as_user(user, || fs::write(agent.path(path), "KEY=7f3a9c\n")).unwrap();
        }
        for path in [".env", "src/.env"] {
            wait_until(path, || agent.was_told(&format!("`{path}` is a secret that came later")));
        }
        assert_eq!(agent.run("cat .env src/.env config/.env 2>/dev/null; grep -r KEY . || echo clean"), "clean\n");
        // One that was masked at the start, in a directory that is replaced by a copy.
        as_user(user, || {
            fs::rename(agent.path("config"), agent.path("old")).unwrap();
            fs::create_dir(agent.path("config")).unwrap();
            fs::write(agent.path("config/.env"), "KEY=second\n").unwrap();
            fs::write(agent.path("config/plain"), "plain\n").unwrap();
        });
        wait_until("the new directory without its secret", || {
            agent.run("cat config/plain") == "plain\n" && agent.run("grep -r KEY . || echo clean") == "clean\n"
        });
        agent.run("echo own > src/main.rs");
        agent.end();
        // No deletion by the program.
        let layer = agent.layer().unwrap();
        let (_, review, _) = agent.command(&["layers", "review", &layer, "--plain"]);
        assert!(review.contains("src/main.rs") && !review.contains(".env"), "{review}");
        let (code, _, kept) = agent.command(&["layers", "keep", &layer, "src/main.rs"]);
        assert_eq!(code, Some(0), "{kept}");
        for path in [".env", "src/.env"] {
            assert_eq!(agent.site.read(path), "KEY=7f3a9c\n");
        }
        assert_eq!(agent.site.read("old/.env"), "KEY=first\n");
    });
}

#[test]
fn a_commit_of_the_person_is_seen_or_is_a_conflict() {
    let git = |directory: &Path, arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]);
        let ended = git.current_dir(directory).args(arguments).output().unwrap();
        assert!(ended.status.success(), "{arguments:?}: {ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    let site = TestSite::new();
    site.write("a", "one\n");
    git(&site.workspace, &["init", "-q", "-b", "main"]);
    git(&site.workspace, &["add", "a"]);
    git(&site.workspace, &["commit", "-q", "-m", "first"]);
    let mut agent = ShellAgent::start(site);
    agent.run("export GIT_OPTIONAL_LOCKS=0; git log --oneline; git status --short; git show HEAD:a");
    let commit = |agent: &ShellAgent, text: &str| {
        fs::write(agent.path("a"), text).unwrap();
        git(&agent.site.workspace, &["commit", "-q", "-a", "-m", text]);
        git(&agent.site.workspace, &["rev-parse", "HEAD"])
    };
    let second = commit(&agent, "two");
    wait_until("the commit inside", || agent.run("git rev-parse HEAD") == second);
    wait_until("a clean work tree inside", || agent.run("git status --short; git show HEAD:a") == "two");
    assert!(!agent.was_told("conflict"), "{:?}", agent.messages());
    // Both commit.
    agent.run(
        "git config user.name A; git config user.email a@example.org; echo own > b; git add b; git commit -q -m own",
    );
    commit(&agent, "three");
    wait_until("a conflict", || {
        agent.was_told("conflict: `.git/index`") && agent.was_told("conflict: `.git/refs/heads/main`")
    });
}

#[test]
fn a_conflict_under_a_program_on_the_terminal_is_a_notification_and_a_line_at_the_end() {
    let site = TestSite::new();
    site.write("f", "old\n");
    let mut command = site.program_at_terminal("setsid");
    command.arg("--ctty").arg(PROGRAM).arg("--workspace").arg(&site.workspace).args(["run", "--end", "later", "--"]);
    command.args(["sh", "-c", "echo own > f; echo rea''dy; read line; echo la''st"]);
    let mut terminal = TestTerminal::all_on_screen(terminal(), command);
    terminal.until("ready");
    fs::write(site.workspace.join("f"), "of the person\n").unwrap();
    terminal.until("\x1b]9;ringfence: conflict: `f` was changed in the workspace and by the program");
    terminal.press("\r");
    terminal.until("last");
    terminal.until("ringfence: conflict: `f`");
    assert_eq!(terminal.end().code, Some(0));
}

/// Reports that the kernel could not queue.
#[test]
fn lost_reports_are_made_up_for() {
    let site = TestSite::new();
    site.write("f", "old");
    site.write("both", "old");
    fs::create_dir(site.workspace.join("many")).unwrap();
    let mut agent = ShellAgent::start(site);
    agent.run("cat f new; echo own > both");
    let run = rustix::process::Pid::from_child(&agent.child);
    rustix::process::kill_process(run, rustix::process::Signal::STOP).unwrap();
    let queue: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for number in 0..=queue / 2 {
        fs::write(agent.path("many").join(number.to_string()), "x").unwrap();
    }
    fs::write(agent.path("f.new"), "new").unwrap();
    fs::rename(agent.path("f.new"), agent.path("f")).unwrap();
    fs::write(agent.path("new"), "new").unwrap();
    fs::write(agent.path("both"), "of the person").unwrap();
    fs::write(agent.path(".env"), "KEY=7f3a9c\n").unwrap();
    rustix::process::kill_process(run, rustix::process::Signal::CONT).unwrap();
    wait_until("the new contents", || agent.run("cat f new") == "newnew");
    wait_until("a conflict", || agent.was_told("conflict: `both`"));
    wait_until("no secret", || agent.run("grep -r KEY . || echo clean") == "clean\n");
}

/// A generator of numbers, the same for each run.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }
}

/// What the program has at a path that it changed.
type OwnVersions = BTreeMap<String, Option<String>>;

const MODEL_FILES: usize = 24;

fn model_path(number: usize) -> String {
    format!("d{}/f{}", number % 4, number / 4)
}

/// Edits of the person in a directory that the program only reads.
fn edit_tree(root: &Path, random: &mut Xorshift, text: &str) {
    let name = |number: usize| root.join(format!("t{number}"));
    let (one, other) = (name(random.below(4)), name(random.below(4)));
    match random.below(4) {
        0 if one.exists() && !other.exists() => fs::rename(one, other).unwrap(),
        1 => _ = fs::remove_dir_all(one),
        _ => {
            fs::create_dir_all(one.join("sub")).unwrap();
            fs::write(one.join(format!("sub/f{}", random.below(3))), text).unwrap();
            fs::write(one.join("g"), text).unwrap();
        }
    }
}

/// Files that are left as they are: `touched` at all, `held` under their names.
struct LeftAlone<'a> {
    touched: &'a BTreeSet<String>,
    held: &'a BTreeSet<String>,
}

fn edit_file(root: &Path, path: &str, left: &LeftAlone<'_>, random: &mut Xorshift, text: &str) {
    let (file, kind) = (root.join(path), random.below(5));
    match kind {
        0 => _ = fs::remove_file(file),
        1 if file.exists() => {
            let mode = [0o644, 0o600, 0o755][random.below(3)];
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        2 => {
            let other = model_path(random.below(MODEL_FILES));
            if !left.touched.contains(&other) && !left.held.contains(path) {
                let _ = fs::rename(&file, root.join(other));
            }
        }
        3 => fs::write(file, text).unwrap(),
        _ => {
            fs::write(root.join("d0/.temporary"), text).unwrap();
            fs::rename(root.join("d0/.temporary"), file).unwrap();
        }
    }
}

/// The tree that the program should see, a line each.
fn expected_tree(root: &Path, own: &OwnVersions) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let name = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if entry.path().is_dir() {
                lines.insert(name.clone());
                left.push(entry.path());
            } else if !own.contains_key(&name) {
                let contents = fs::read_to_string(entry.path()).unwrap();
                lines.insert(format!("{name} {:o} {contents}", entry.metadata().unwrap().mode() & 0o777));
            }
        }
    }
    for (path, text) in own {
        lines.extend(text.as_ref().map(|text| format!("{path} own {text}")));
    }
    lines
}

#[test]
fn random_edits_of_both_sides_come_to_the_tree_of_the_model() {
    const BATCH: usize = 10;
    let edits = if std::env::var_os("RINGFENCE_FULL").is_some() { 10_000 } else { 300 };
    let site = TestSite::new();
    for number in 0..MODEL_FILES {
        site.write(&model_path(number), "start");
    }
    let mut agent = ShellAgent::start(site);
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let mut own = OwnVersions::new();
    let root = agent.site.workspace.clone();
    // Contents by name and by list: an entry may be in the one and not in the other.
    let look = "look() { find . -mindepth 1 -type d -printf '%P\\n'; find . -type f | while read -r p; do p=${p#./}; \
                echo \"$p $(stat -c %a $p) $(cat $p)\"; done; for t in t0 t1 t2 t3; do for p in $t/g $t/sub/f0 $t/sub/f1 $t/sub/f2; do \
                [ -e $p ] && echo \"$p $(stat -c %a $p) $(cat $p)\"; done; done; \
                for d in d0 d1 d2 d3; do for n in 0 1 2 3 4 5; do p=$d/f$n; [ -e $p ] && echo \"$p $(stat -c %a $p) $(cat $p)\"; done; done; }";
    agent.run(look);
    let mut held_before = BTreeSet::new();
    for batch in 0..edits / BATCH {
        let (mut commands, mut touched, mut held) = (String::new(), BTreeSet::new(), BTreeSet::new());
        let close = "for held in $all; do exec {held}<&-; done; all=; ";
        commands.push_str(close);
        for number in 0..BATCH / 2 {
            let path = model_path(random.below(MODEL_FILES));
            touched.insert(path.clone());
            let text = format!("own-{batch}-{number}");
            match random.below(5) {
                0 => {
                    write!(commands, "echo -n x > {path}; rm {path}; ").unwrap();
                    match root.join(&path).exists() {
                        true => own.insert(path, None),
                        // Nothing of it is left.
                        false => own.remove(&path),
                    };
                }
                1 => {
                    write!(commands, "[ -e {path} ] && exec {{held}}<{path} && all=\"$all $held\"; ").unwrap();
                    held.insert(path);
                }
                _ => {
                    write!(commands, "echo -n {text} > {path}; ").unwrap();
                    own.insert(path, Some(text));
                }
            }
        }
        agent.send(&format!("{commands} cat d*/f* t*/g t*/sub/* >/dev/null"));
        held_before.extend(held.iter().cloned());
        let left = LeftAlone { touched: &touched, held: &held_before };
        for number in 0..BATCH / 2 {
            let text = format!("person-{batch}-{number}");
            match random.below(3) {
                0 => edit_tree(&root, &mut random, &text),
                _ => {
                    let path = model_path(random.below(MODEL_FILES));
                    // A deletion of both at once may come to either: what the program finds is its own to change.
                    if !touched.contains(&path) {
                        edit_file(&root, &path, &left, &mut random, &text);
                    }
                }
            }
        }
        agent.receive();
        held_before = held;
        let expected = expected_tree(&root, &own);
        let seen = |agent: &mut ShellAgent| -> BTreeSet<String> {
            let mut lines = BTreeSet::new();
            for line in agent.run("look").lines().filter(|line| !line.is_empty()) {
                let mut words = line.splitn(3, ' ');
                let (path, mode, text) = (words.next().unwrap(), words.next(), words.next());
                match (own.contains_key(path), mode, text) {
                    (true, Some(_), Some(text)) => _ = lines.insert(format!("{path} own {text}")),
                    _ => _ = lines.insert(line.to_owned()),
                }
            }
            lines
        };
        let since = Instant::now();
        let mut inside = BTreeSet::new();
        wait_until("the tree of the model", || {
            inside = seen(&mut agent);
            if since.elapsed() > Duration::from_secs(20) {
                let differing: Vec<_> = inside.symmetric_difference(&expected).collect();
                panic!("batch {batch}: {differing:#?}\n{commands}\n{:?}", agent.messages());
            }
            inside == expected
        });
    }
    // Nothing of the person's is in the upper directory.
    for entry in agent.upper_entries() {
        assert!(own.contains_key(&entry), "{entry}");
    }
    agent.end();
}
