//! A change is there or it is not, whenever the process dies and whatever the file system answers.
//!
//! `strace` kills the program as it enters a system call, or lets the call fail. Every point is tried: the first
//! call of a kind, the second, and so on until the program gets through. Counting is by thread, and the thread that
//! starts up opens hundreds of files, so calls that open or look are counted on the workspace's own directories only.
//!
//! With `RINGFENCE_FULL=1` calls that only start up, wait and end are killed at too.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::site::{PROGRAM, Said, Site, fed};

/// What is in a workspace: every path, with the contents of files.
type Tree = Vec<(String, Option<Vec<u8>>)>;

/// Calls that change something, or stand beside one that does.
const CHANGING: &[&str] = &[
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "renameat2",
    "renameat",
    "unlinkat",
    "ftruncate",
    "fchmod",
    "flock",
    "pread64",
    "getdents64",
    "getrandom",
    "faccessat2",
    "flistxattr",
];

/// Calls that are counted on the workspace's directories only.
const WITHIN: &[&str] = &["openat", "openat2", "mkdirat", "newfstatat", "fstat"];

/// Calls that start up, wait and end, for a run that takes its time.
const IDLE: &[&str] = &["statx", "close", "futex", "epoll_wait", "fcntl", "mmap"];

/// More calls of one kind than any of our operations makes.
const MANY: usize = 400;

/// One call of a tool, and the workspace that it is made in.
struct Operation {
    name: &'static str,
    tool: &'static str,
    arguments: Value,
    files: Vec<(&'static str, String)>,
}

fn operations() -> Vec<Operation> {
    // More than one write takes.
    let big = "n".repeat((1 << 20) + 500);
    vec![
        Operation {
            name: "write over a file",
            tool: "write_file",
            arguments: json!({"path": "a.txt", "content": big}),
            files: vec![("a.txt", "old\n".to_owned()), ("other.txt", "other\n".to_owned())],
        },
        Operation {
            name: "write a new file in new directories",
            tool: "write_file",
            arguments: json!({"path": "x/y/new.txt", "content": "new\n", "createDirs": true}),
            files: vec![("other.txt", "other\n".to_owned())],
        },
        Operation {
            name: "edit",
            tool: "edit_file",
            arguments: json!({"path": "d/a.txt", "oldText": "two", "newText": "2"}),
            files: vec![("d/a.txt", "one\ntwo\nthree\n".to_owned())],
        },
        Operation {
            name: "append",
            tool: "append_file",
            arguments: json!({"path": "log.txt", "content": "second line\n"}),
            files: vec![("log.txt", "first\n".to_owned())],
        },
        Operation {
            name: "move over a file",
            tool: "move_file",
            arguments: json!({"from": "d/from.txt", "to": "to.txt", "overwrite": true}),
            files: vec![("d/from.txt", "source\n".to_owned()), ("to.txt", "target\n".to_owned())],
        },
        Operation {
            name: "delete a directory",
            tool: "delete_file",
            arguments: json!({"path": "d", "recursive": true}),
            files: vec![
                ("d/a.txt", "a\n".to_owned()),
                ("d/e/b.txt", "b\n".to_owned()),
                ("d/e/f/c.txt", "c\n".to_owned()),
                ("keep.txt", "keep\n".to_owned()),
            ],
        },
        Operation {
            name: "patch several files",
            tool: "apply_patch",
            arguments: json!({"patch": "--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-old\n+new\n\
                --- /dev/null\n+++ b/x/y/new.txt\n@@ -0,0 +1 @@\n+new\n\
                --- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n\
                --- a/d/two.txt\n+++ b/d/two.txt\n@@ -1 +1 @@\n-old\n+new\n"}),
            files: vec![
                ("one.txt", "old\n".to_owned()),
                ("gone.txt", "old\n".to_owned()),
                ("d/two.txt", "old\n".to_owned()),
            ],
        },
    ]
}

/// What `strace` does to the call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tamper {
    Kill,
    Fail(&'static str),
    /// That one, and all of its kind after it.
    FailFrom(&'static str),
}

/// One call of the kernel, in one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) call: &'static str,
    /// Which call of its kind, by thread.
    pub(crate) nth: usize,
    pub(crate) tamper: Tamper,
}

/// How a run under `strace` ended.
#[derive(Debug)]
pub(crate) struct Ended {
    said: Said,
    /// Whether the call that was to be tampered with was ever made.
    pub(crate) met: bool,
}

impl Operation {
    fn site(&self) -> Site {
        let site = Site::in_memory();
        for (path, content) in &self.files {
            site.write(path, content);
        }
        site
    }

    /// The workspace before, and after nothing went wrong.
    fn trees(&self) -> (Tree, Tree) {
        let site = self.site();
        let before = site.tree();
        site.call(self.tool, &self.arguments).value();
        (before, site.tree())
    }

    /// Which calls of a kind may fail. A write is the file's: those of the reply, and those that wake a thread, are
    /// not ours to make again, and only a file that has its name already can be told from them.
    fn may_fail(&self, call: &str) -> std::ops::Range<usize> {
        if call == "write" && self.tool != "append_file" { 1..1 } else { 1..MANY }
    }

    /// Whether it takes several steps that others can see, and the next call takes back those of a dead one.
    fn has_steps(&self) -> bool {
        self.tool == "apply_patch"
    }

    fn tampered(&self, site: &Site, point: Point) -> Ended {
        traced(site, point, self.tool, &self.arguments)
    }
}

/// Makes a call under `strace`.
fn traced(site: &Site, point: Point, tool: &str, arguments: &Value) -> Ended {
    let appended = (tool == "append_file").then(|| site.workspace.join(arguments["path"].as_str().unwrap()));
    let program = ["--preset", "edits", "call", tool, "-"];
    traced_program(site, point, &program, arguments.to_string().as_bytes(), appended)
}

/// Runs a command under `strace`. Of writes, only those to one file are counted, if one is given.
pub(crate) fn traced_program(
    site: &Site,
    point: Point,
    program: &[&str],
    input: &[u8],
    written: Option<PathBuf>,
) -> Ended {
    let Point { call, nth, tamper } = point;
    let log = site.root().join("strace.log");
    let how = match tamper {
        Tamper::Kill => format!("signal=SIGKILL:when={nth}"),
        Tamper::Fail(errno) => format!("error={errno}:when={nth}"),
        Tamper::FailFrom(errno) => format!("error={errno}:when={nth}+"),
    };
    let mut command = site.program("strace");
    // Not with `--seccomp-bpf`: strace 6.1 then sends a signal at the first call only, whatever `when` says.
    command.args(["-f", "-o"]).arg(&log);
    command.arg(format!("--trace={call}")).arg(format!("--inject={call}:{how}"));
    if WITHIN.contains(&call) {
        for directory in directories(site) {
            command.arg("-P").arg(directory);
        }
    }
    if let (Some(written), "write") = (written, call) {
        command.arg("-P").arg(written);
    }
    command.arg(PROGRAM).args(program).arg("--workspace").arg(&site.workspace);
    let said = fed(command, input);
    let log = std::fs::read_to_string(&log).unwrap();
    let met = match tamper {
        Tamper::Kill => log.contains("killed by SIGKILL"),
        Tamper::Fail(_) | Tamper::FailFrom(_) => log.contains("(INJECTED)"),
    };
    Ended { said, met }
}

/// The workspace and every directory that it has or may get.
fn directories(site: &Site) -> Vec<PathBuf> {
    let there = site.tree().into_iter().filter(|(_, content)| content.is_none()).map(|(name, _)| name);
    let names = there.chain(["x".to_owned(), "x/y".to_owned()]);
    std::iter::once(site.workspace.clone()).chain(names.map(|name| site.workspace.join(name))).collect()
}

pub(crate) fn strace_is_here() -> bool {
    let here = Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success());
    if !here {
        println!("strace is not on this machine: nothing was tested");
    }
    here
}

pub(crate) fn full() -> bool {
    std::env::var_os("RINGFENCE_FULL").is_some_and(|value| value == "1")
}

/// What callers of tools see of a tree: temporary files are ours.
fn visible(tree: &Tree) -> Tree {
    tree.iter().filter(|(name, _)| !name.contains(".ringfence-tmp-")).cloned().collect()
}

/// Directories that were made for a file that never came are empty, and do no harm.
fn without_empty_new_directories(tree: &Tree, before: &Tree) -> Tree {
    let is_new = |name: &String| !before.iter().any(|(old, _)| old == name);
    let has_files =
        |name: &String| tree.iter().any(|(other, content)| content.is_some() && other.starts_with(&format!("{name}/")));
    tree.iter().filter(|(name, content)| content.is_some() || !is_new(name) || has_files(name)).cloned().collect()
}

/// The one moment that has a name of its own: the two files of a move changed places, and the one that was
/// overwritten still has the other's name. The next call takes it away.
fn swapped(operation: &Operation, before: &Tree) -> Option<Tree> {
    let (Some(from), Some(to)) = (operation.arguments["from"].as_str(), operation.arguments["to"].as_str()) else {
        return None;
    };
    let content = |path: &str| before.iter().find(|(name, _)| name == path).unwrap().1.clone();
    let (source, target) = (content(from), content(to));
    let placed = |name: &str, old: &Option<Vec<u8>>| match name {
        name if name == from => target.clone(),
        name if name == to => source.clone(),
        _ => old.clone(),
    };
    Some(before.iter().map(|(name, old)| (name.clone(), placed(name, old))).collect())
}

fn names(tree: &Tree) -> Vec<String> {
    let line = |(name, content): &(String, Option<Vec<u8>>)| match content {
        Some(content) => {
            let start = String::from_utf8_lossy(&content[..content.len().min(20)]).into_owned();
            format!("{name} ({} bytes: {start:?})", content.len())
        }
        None => format!("{name}/"),
    };
    tree.iter().map(line).collect()
}

/// The next call of anything, which opens the workspace and cleans up.
#[track_caller]
fn look_in(site: &Site) {
    site.call("list_directory", &json!({"path": "."})).value();
}

#[test]
fn a_kill_at_any_system_call_leaves_the_old_or_the_new_and_the_next_call_cleans_up() {
    if !strace_is_here() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for operation in operations() {
        let (before, after) = operation.trees();
        let between = swapped(&operation, &before);
        let idle = if full() { IDLE } else { &[] };
        for call in CHANGING.iter().chain(WITHIN).chain(idle) {
            for nth in 1..MANY {
                let point = Point { call, nth, tamper: Tamper::Kill };
                let site = operation.site();
                let ended = operation.tampered(&site, point);
                if !ended.met {
                    assert_eq!(ended.said.code, Some(0), "{}: {point:?}: {:?}", operation.name, ended.said);
                    break;
                }
                kills += 1;
                let left = without_empty_new_directories(&visible(&site.tree()), &before);
                let is_whole = left == before || left == after || Some(&left) == between.as_ref();
                if !is_whole && !operation.has_steps() {
                    problems.push(format!("{}: {point:?}: the kill left {:?}", operation.name, names(&left)));
                }
                look_in(&site);
                if !site.leftovers().is_empty() {
                    problems.push(format!("{}: {point:?}: not cleaned up: {:?}", operation.name, site.leftovers()));
                }
                let cleaned = without_empty_new_directories(&site.tree(), &before);
                if cleaned != before && cleaned != after {
                    problems.push(format!("{}: {point:?}: cleaning up left {:?}", operation.name, names(&cleaned)));
                }
                if left == after && cleaned != after && !operation.has_steps() {
                    problems.push(format!("{}: {point:?}: cleaning up undid a finished change", operation.name));
                }
                if let Err(problem) = undo_what_is_listed(&site, cleaned == after, &before) {
                    problems.push(format!("{}: {point:?}: {problem}", operation.name));
                }
            }
        }
    }
    println!("{kills} kills");
    assert!(kills > 120, "only {kills} kills: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What the log lists is what was made, and can be taken back.
fn undo_what_is_listed(site: &Site, made: bool, before: &Tree) -> Result<(), String> {
    let listed = site.run(&["log", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).map_err(|_| format!("the log cannot be read: {listed:?}"))?;
    let states: Vec<&str> =
        listed["changes"].as_array().unwrap().iter().map(|change| change["state"].as_str().unwrap()).collect();
    let expected: &[&str] = if made { &["done"] } else { &[] };
    if states != expected {
        return Err(format!("the log says {states:?}, and the change is {}", if made { "made" } else { "not made" }));
    }
    if !made {
        return Ok(());
    }
    let undone = site.run(&["undo"]);
    match undone.code {
        Some(0) if site.tree() == *before => Ok(()),
        Some(0) => Err(format!("the undo left {:?}", names(&site.tree()))),
        _ => Err(format!("the undo failed: {undone:?}")),
    }
}

/// Everything that was done is taken back at once.
const UNDO: [&str; 3] = ["undo", "--since", "2000-01-01T00:00:00Z"];

/// A workspace with changes of every kind, as it was before them.
fn changed_site() -> (Site, Tree) {
    let site = Site::in_memory();
    for (path, content) in [("one.txt", "old\n"), ("gone.txt", "old\n"), ("d/two.txt", "old\n"), ("log.txt", "old\n")] {
        site.write(path, content);
    }
    let first = site.tree();
    let patch = "--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-old\n+new\n--- /dev/null\n+++ b/x/new.txt\n@@ -0,0 +1 @@\n+new\n\
        --- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n";
    site.call("apply_patch", &json!({"patch": patch})).value();
    site.call("append_file", &json!({"path": "log.txt", "content": "more\n"})).value();
    site.call("move_file", &json!({"from": "d", "to": "x/e"})).value();
    site.call("delete_file", &json!({"path": "x/e/two.txt"})).value();
    (site, first)
}

#[test]
fn a_kill_at_any_system_call_of_an_undo_leaves_all_of_it_or_nothing() {
    if !strace_is_here() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for call in CHANGING.iter().chain(WITHIN) {
        for nth in 1..MANY {
            let (site, first) = changed_site();
            let last = site.tree();
            let point = Point { call, nth, tamper: Tamper::Kill };
            let ended = traced_program(&site, point, &UNDO, b"", None);
            if !ended.met {
                assert_eq!(ended.said.code, Some(0), "{point:?}: {:?}", ended.said);
                assert_eq!(site.tree(), first);
                break;
            }
            kills += 1;
            look_in(&site);
            let cleaned = site.tree();
            let (again, expected) = if cleaned == first { (&["redo"][..], &last) } else { (&UNDO[..], &first) };
            if cleaned != first && cleaned != last {
                problems.push(format!("{point:?}: the kill left {:?}", names(&cleaned)));
            }
            let said = site.run(again);
            if said.code != Some(0) || site.tree() != *expected {
                problems.push(format!("{point:?}: after it {again:?} gave {said:?} and {:?}", names(&site.tree())));
            }
            // Nothing of the dead one is left that could come over it later.
            look_in(&site);
            if site.tree() != *expected {
                problems.push(format!("{point:?}: and a look gave {:?}", names(&site.tree())));
            }
        }
    }
    println!("{kills} kills of an undo");
    assert!(kills > 40, "only {kills} kills: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_kill_while_an_undo_is_cleaned_up_is_cleaned_up_too() {
    if !strace_is_here() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for call in ["renameat2", "unlinkat", "write", "flock", "ftruncate", "openat2"] {
        for nth in 1..MANY {
            let (site, first) = changed_site();
            let last = site.tree();
            // Some of it is taken back, and some is not.
            let half = Point { call: "renameat2", nth: 4, tamper: Tamper::Kill };
            assert!(traced_program(&site, half, &UNDO, b"", None).met);
            let point = Point { call, nth, tamper: Tamper::Kill };
            if !traced(&site, point, "list_directory", &json!({"path": "."})).met {
                break;
            }
            kills += 1;
            look_in(&site);
            if site.tree() != last {
                problems.push(format!("{point:?} left {:?}", names(&site.tree())));
            }
            let said = site.run(&UNDO);
            if said.code != Some(0) || site.tree() != first {
                problems.push(format!("{point:?}: after it {said:?} and {:?}", names(&site.tree())));
            }
        }
    }
    println!("{kills} kills while an undo was cleaned up");
    assert!(kills > 10, "only {kills} kills: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_call_of_the_kernel_that_fails_in_an_undo_leaves_all_of_it_or_nothing() {
    if !strace_is_here() {
        return;
    }
    let mut problems = Vec::new();
    let mut failures = 0;
    for call in ["fsync", "fdatasync", "renameat2", "renameat", "unlinkat", "pwrite64", "openat2", "newfstatat"] {
        for nth in 1..MANY {
            let (site, first) = changed_site();
            let last = site.tree();
            let point = Point { call, nth, tamper: Tamper::Fail("EIO") };
            let ended = traced_program(&site, point, &UNDO, b"", None);
            if !ended.met {
                break;
            }
            failures += 1;
            let seen = site.tree();
            let fits = match ended.said.code {
                Some(0) => seen == first,
                _ => seen == last || (seen == first && ended.said.err.contains("is made")),
            };
            if !fits {
                problems.push(format!("{point:?}: {:?} and {:?}", ended.said, names(&seen)));
            }
        }
    }
    println!("{failures} failures in an undo");
    assert!(failures > 10, "only {failures} failures: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_kill_while_cleaning_up_is_cleaned_up_too() {
    if !strace_is_here() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for operation in operations().iter().filter(|operation| operation.tool != "append_file") {
        let (before, after) = operation.trees();
        // Here the change is made, or nearly, and what has to be removed is still there.
        let at = |call, nth| Point { call, nth, tamper: Tamper::Kill };
        let firsts = match operation.arguments["createDirs"].as_bool() {
            Some(true) => vec![at("renameat2", 1)],
            // Some of the files have their names, others not; or all of them have.
            _ if operation.has_steps() => vec![at("renameat2", 4), at("renameat2", 5)],
            _ if operation.tool == "delete_file" => vec![at("renameat2", 1)],
            _ => vec![at("renameat2", 2)],
        };
        for (first, call) in
            firsts.iter().flat_map(|first| CHANGING.iter().chain(WITHIN).map(move |call| (first, call)))
        {
            for nth in 1..MANY {
                let site = operation.site();
                assert!(operation.tampered(&site, *first).met, "{}", operation.name);
                let second = Point { call, nth, tamper: Tamper::Kill };
                let ended = traced(&site, second, "list_directory", &json!({"path": "."}));
                if !ended.met {
                    break;
                }
                kills += 1;
                look_in(&site);
                let cleaned = without_empty_new_directories(&site.tree(), &before);
                if cleaned != before && cleaned != after {
                    problems.push(format!("{}: {second:?} left {:?}", operation.name, names(&cleaned)));
                }
            }
        }
    }
    println!("{kills} kills while cleaning up");
    assert!(kills > 40, "only {kills} kills: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_file_that_got_a_part_of_what_was_appended_goes_back_to_what_it_was() {
    if !strace_is_here() {
        return;
    }
    let arguments = json!({"path": "log.txt", "content": "second line\n"});
    // Killed when the note is made and nothing is added; then as much is added as a kill half way would leave.
    // Or somebody else adds something, which stays.
    let cases = [
        ("", "first\n"),
        ("s", "first\n"),
        ("second lin", "first\n"),
        ("second line\n", "first\nsecond line\n"),
        ("other", "first\nother"),
        ("secother", "first\nsecother"),
    ];
    for (part, expected) in cases {
        let site = Site::in_memory();
        site.write("log.txt", "first\n");
        let point = Point { call: "write", nth: 1, tamper: Tamper::Kill };
        assert!(traced(&site, point, "append_file", &arguments).met);
        site.write("log.txt", format!("first\n{part}"));
        look_in(&site);
        assert_eq!(site.read("log.txt"), expected, "after {part:?}");
    }
}

/// Nobody adds to a part that somebody left, because it could then never be told from what was there before.
#[test]
fn a_file_that_cannot_be_cleaned_up_now_is_not_changed_before_it_is() {
    if !strace_is_here() {
        return;
    }
    let append = |content: &str| json!({"path": "log.txt", "content": content});
    let site = Site::in_memory();
    site.write("log.txt", "first\n");
    let killed = Point { call: "write", nth: 1, tamper: Tamper::Kill };
    assert!(traced(&site, killed, "append_file", &append("second line\n")).met);
    site.write("log.txt", "first\nsec");
    let failing = Point { call: "ftruncate", nth: 1, tamper: Tamper::FailFrom("EIO") };
    let Ended { said, met } = traced(&site, failing, "append_file", &append("third\n"));
    assert!(met && said.error() == "IO_ERROR", "{said:?}");
    assert_eq!(site.read("log.txt"), "first\nsec");
    site.call("append_file", &append("third\n")).value();
    assert_eq!(site.read("log.txt"), "first\nthird\n");
}

/// Somebody opens the keep to others, or takes it away, after a crash. What was displaced and is not in it yet stays.
#[test]
fn cleaning_up_takes_nothing_away_where_the_keep_cannot_be_used() {
    if !strace_is_here() {
        return;
    }
    let mut displaced = 0;
    for operation in
        operations().into_iter().filter(|operation| operation.name.contains("file") || operation.has_steps())
    {
        for is_taken_away in [false, true] {
            for nth in 1..MANY {
                let site = operation.site();
                let point = Point { call: "renameat2", nth, tamper: Tamper::Kill };
                if !operation.tampered(&site, point).met {
                    break;
                }
                let keep = site.workspace.join(".ringfence");
                match is_taken_away {
                    _ if !keep.exists() => continue,
                    true => std::fs::remove_dir_all(&keep).unwrap(),
                    false => std::fs::set_permissions(&keep, std::fs::Permissions::from_mode(0o755)).unwrap(),
                }
                let contents = || -> Vec<_> { site.tree().into_iter().filter_map(|(_, content)| content).collect() };
                let before = contents();
                displaced += usize::from(!site.leftovers().is_empty());
                look_in(&site);
                for (path, old) in &operation.files {
                    let is_there = |all: &[Vec<u8>]| all.iter().any(|content| content == old.as_bytes());
                    let lost = is_there(&before) && !is_there(&contents());
                    assert!(!lost, "{}: {point:?}: {path} is lost: {:?}", operation.name, names(&site.tree()));
                }
            }
        }
    }
    assert!(displaced > 3, "nothing stood at a temporary name");
}

#[test]
fn a_call_of_the_kernel_that_fails_leaves_the_old_contents_and_an_error_reply() {
    if !strace_is_here() {
        return;
    }
    let mut problems = Vec::new();
    let mut failures = 0;
    for operation in operations() {
        let (before, after) = operation.trees();
        // The loader and the standard library use these too, and their failures are not ours to answer for.
        for call in CHANGING.iter().chain(WITHIN).filter(|call| !["pread64", "getrandom"].contains(call)) {
            let errors: &[&str] = match *call {
                "write" | "pwrite64" | "openat" | "mkdirat" => &["ENOSPC", "EIO", "EDQUOT"],
                _ => &["EIO", "ENOSPC"],
            };
            for errno in errors {
                for nth in operation.may_fail(call) {
                    let point = Point { call, nth, tamper: Tamper::Fail(errno) };
                    let site = operation.site();
                    let ended = operation.tampered(&site, point);
                    if !ended.met {
                        break;
                    }
                    failures += 1;
                    if let Err(problem) = after_failure(&site, &ended.said, &before, &after) {
                        problems.push(format!("{}: {point:?}: {problem}: {}", operation.name, ended.said.out));
                    }
                }
            }
        }
    }
    println!("{failures} failures");
    assert!(failures > 60, "only {failures} failures: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A success means that the change is there. An error means that it is not, unless the reply says otherwise.
fn after_failure(site: &Site, said: &Said, before: &Tree, after: &Tree) -> Result<(), String> {
    let seen = visible(&site.tree());
    match said.code {
        Some(0) if seen != *after => return Err(format!("success, and there is {:?}", names(&seen))),
        Some(0) => {}
        Some(1) => {
            let reply = said.reply();
            let committed = reply["error"]["details"]["committed"] == true;
            if said.out.contains(site.root().to_str().unwrap()) {
                return Err("a host path in the reply".to_owned());
            }
            if !committed && seen != *before {
                return Err(format!("an error, and there is {:?}", names(&seen)));
            }
            if committed && (seen != *after || said.out.contains("nothing was")) {
                return Err(format!("it says that the change is there, and there is {:?}", names(&seen)));
            }
        }
        // The workspace was never opened, or the call could not be recorded and did not run.
        Some(2) if seen == *before => {}
        // It ran, and its end could not be recorded: there is no reply, but it is said.
        Some(2) if said.err.contains("was carried out") && seen == *after => {}
        _ => return Err(format!("ended with {said:?}")),
    }
    let failed = said.code != Some(0);
    if failed && !site.leftovers().is_empty() {
        return Err(format!("an error, and {:?} is left", site.leftovers()));
    }
    look_in(site);
    match site.leftovers() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("the next call did not clean up {left:?}")),
    }
}

#[test]
fn a_disk_that_fills_up_half_way_leaves_the_old_contents() {
    if !strace_is_here() {
        return;
    }
    // Enough writes that the fourth and the fifth are the file's, and neither the reply's nor a wake-up.
    let operation = Operation {
        name: "write a large file",
        tool: "write_file",
        arguments: json!({"path": "a.txt", "content": "n".repeat((4 << 20) + 500)}),
        files: vec![("a.txt", "old\n".to_owned())],
    };
    let (before, after) = operation.trees();
    // One call before, so that the audit log is there and its own first writes are not counted.
    let used = || {
        let site = operation.site();
        look_in(&site);
        site
    };
    for nth in [4, 5] {
        for errno in ["ENOSPC", "EIO", "EDQUOT"] {
            let site = used();
            let ended = operation.tampered(&site, Point { call: "write", nth, tamper: Tamper::Fail(errno) });
            assert!(ended.met);
            assert_eq!(ended.said.error(), "IO_ERROR", "{errno}");
            assert_eq!(site.tree(), before, "{errno}");
        }
        let site = used();
        let ended = operation.tampered(&site, Point { call: "write", nth, tamper: Tamper::Fail("EINTR") });
        assert!(ended.met);
        ended.said.value();
        assert!(site.tree() == after);
        let site = used();
        assert!(operation.tampered(&site, Point { call: "write", nth, tamper: Tamper::Kill }).met);
        assert_eq!(visible(&site.tree()), before);
        assert_eq!(site.leftovers().len(), 1);
        look_in(&site);
        assert_eq!(site.tree(), before);
    }
}

#[test]
fn an_interrupted_call_of_the_kernel_is_made_again() {
    if !strace_is_here() {
        return;
    }
    let mut problems = Vec::new();
    let mut interrupts = 0;
    for operation in operations() {
        let (_, after) = operation.trees();
        // Of the others, the loader's and the standard library's own are not ours to make again.
        for call in CHANGING.iter().chain(WITHIN).filter(|call| !["pread64", "getrandom", "getdents64"].contains(call))
        {
            for nth in operation.may_fail(call) {
                let point = Point { call, nth, tamper: Tamper::Fail("EINTR") };
                let site = operation.site();
                let ended = operation.tampered(&site, point);
                if !ended.met {
                    break;
                }
                interrupts += 1;
                if ended.said.code != Some(0) || site.tree() != after {
                    problems.push(format!("{}: {point:?}: {}{}", operation.name, ended.said.out, ended.said.err));
                }
            }
        }
    }
    println!("{interrupts} interrupts");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A power cut leaves what was synced, and a note that was not synced says nothing to whoever comes next.
#[test]
fn the_note_of_a_change_is_on_disk_before_what_it_is_about() {
    if !strace_is_here() {
        return;
    }
    let both = "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-old\n+new\n--- b.txt\n+++ b.txt\n@@ -1 +1 @@\n-other\n+new\n";
    let cases = [
        ("write_file", json!({"path": "a.txt", "content": "new"}), "openat", ".ringfence-tmp-"),
        ("write_file", json!({"path": "new.txt", "content": "new"}), "openat", ".ringfence-tmp-"),
        ("apply_patch", json!({"patch": both}), "openat", ".ringfence-tmp-"),
        ("append_file", json!({"path": "a.txt", "content": "new"}), "write", "/ws/a.txt>"),
        ("move_file", json!({"from": "b.txt", "to": "a.txt", "overwrite": true}), "renameat2", "RENAME_EXCHANGE"),
    ];
    for (tool, arguments, call, about) in cases {
        let site = Site::in_memory();
        site.write("a.txt", "old\n");
        site.write("b.txt", "other\n");
        let log = site.root().join("strace.log");
        let mut command = site.program("strace");
        command.args(["-f", "-y", "-o"]).arg(&log).arg(format!("--trace=fsync,fdatasync,{call}"));
        command.arg(PROGRAM).args(["--preset", "edits", "call", tool, "-"]).arg("--workspace").arg(&site.workspace);
        fed(command, arguments.to_string().as_bytes()).value();
        let log = std::fs::read_to_string(&log).unwrap();
        let at = |call: &str, about: &str| {
            log.lines().position(|line| line.contains(&format!("{call}(")) && line.contains(about))
        };
        let (noted, made) = (at("sync", "/state/locks/"), at(call, about));
        assert!(made.is_some(), "{tool}: {log}");
        assert!(noted.is_some() && noted < made, "{tool}: {log}");
    }
}

#[test]
fn what_cannot_be_cleaned_up_on_a_disk_that_is_read_only_is_cleaned_up_once_it_is_not() {
    if !strace_is_here() {
        return;
    }
    for operation in operations().into_iter().filter(|operation| ["write_file", "edit_file"].contains(&operation.tool))
    {
        let (before, _) = operation.trees();
        let site = operation.site();
        assert!(operation.tampered(&site, Point { call: "renameat2", nth: 1, tamper: Tamper::Kill }).met);
        assert_eq!(site.leftovers().len(), 1);
        let read_only = Point { call: "unlinkat", nth: 1, tamper: Tamper::Fail("EROFS") };
        assert!(traced(&site, read_only, "list_directory", &json!({"path": "."})).met);
        assert_eq!(site.leftovers().len(), 1, "{}", operation.name);
        look_in(&site);
        assert_eq!(without_empty_new_directories(&site.tree(), &before), before, "{}", operation.name);
    }
}

/// Makes a call under `strace`, and lets the n-th call of a kind about one file fail.
fn failing_on(site: &Site, path: &Path, point: Point, tool: &str, arguments: &Value) -> Ended {
    let Point { call, nth, tamper: Tamper::Fail(errno) } = point else { panic!("{point:?}") };
    let log = site.root().join("strace.log");
    let mut command = site.program("strace");
    command.args(["-f", "-o"]).arg(&log).arg("-P").arg(path);
    command.arg(format!("--trace={call}")).arg(format!("--inject={call}:error={errno}:when={nth}"));
    command.arg(PROGRAM).args(["--preset", "edits", "call", tool, "-"]).arg("--workspace").arg(&site.workspace);
    let said = fed(command, arguments.to_string().as_bytes());
    let met = std::fs::read_to_string(&log).unwrap().contains("(INJECTED)");
    Ended { said, met }
}

/// Without the hash of what it left, an append could not be taken back.
#[test]
fn a_file_that_cannot_be_read_is_not_appended_to() {
    if !strace_is_here() {
        return;
    }
    for errno in ["EDQUOT", "EIO"] {
        for nth in 1..MANY {
            let site = Site::in_memory();
            site.write("log.txt", "first\n");
            let before = site.tree();
            let point = Point { call: "pread64", nth, tamper: Tamper::Fail(errno) };
            let arguments = json!({"path": "log.txt", "content": "second\n"});
            let Ended { said, met } =
                failing_on(&site, &site.workspace.join("log.txt"), point, "append_file", &arguments);
            let made = said.code == Some(0);
            assert!(met || (nth > 1 && made), "{errno}: {said:?}");
            if !made {
                assert_eq!((said.error().as_str(), site.tree()), ("IO_ERROR", before.clone()), "{errno}");
            }
            undo_what_is_listed(&site, made, &before).unwrap();
            if !met {
                break;
            }
        }
    }
}

/// Nobody is asked whether something may be lost because the host is short of descriptors.
#[test]
fn a_journal_that_cannot_be_read_now_is_an_error_and_no_question() {
    if !strace_is_here() {
        return;
    }
    let mut failures = 0;
    for nth in 1..MANY {
        let site = Site::in_memory();
        site.write("a.txt", "old\n");
        look_in(&site);
        let journal = site.environment().state.unwrap().join("journal");
        let log = std::fs::read_dir(journal).unwrap().next().unwrap().unwrap().path().join("log");
        let point = Point { call: "fstat", nth, tamper: Tamper::Fail("EMFILE") };
        let arguments = json!({"path": "a.txt", "content": "new\n"});
        let Ended { said, met } = failing_on(&site, &log, point, "write_file", &arguments);
        assert!(said.code == Some(0) || said.error() == "IO_ERROR", "{nth}: {said:?}");
        failures += usize::from(said.code != Some(0));
        if !met {
            break;
        }
    }
    assert!(failures > 0, "the journal was never read");
}

/// A secret is known by its name wherever else it stands, also where descriptors run out while it is looked for.
#[test]
fn a_secret_under_another_name_is_not_read_because_the_host_is_short_of_descriptors() {
    if !strace_is_here() {
        return;
    }
    let mut failures = 0;
    for call in ["openat", "openat2"] {
        for nth in 1..MANY {
            let site = Site::in_memory();
            site.write(".aws/credentials", "the key\n");
            site.write(".env", "the key\n");
            for (secret, name) in [(".env", "one.txt"), (".aws/credentials", "two.txt")] {
                std::fs::hard_link(site.workspace.join(secret), site.workspace.join(name)).unwrap();
            }
            let mut met = false;
            for name in ["one.txt", "two.txt"] {
                let point = Point { call, nth, tamper: Tamper::Fail("EMFILE") };
                let ended = failing_on(&site, &site.workspace, point, "read_file", &json!({"path": name}));
                assert!(!ended.said.out.contains("the key"), "{call} {nth}: {:?}", ended.said);
                met |= ended.met;
                failures += usize::from(ended.said.out.contains("short of resources"));
            }
            if !met {
                break;
            }
        }
    }
    assert!(failures > 0, "nothing ever failed");
}

/// What belongs into the keep is not thrown away because the keep cannot be opened in that moment.
#[test]
fn what_was_displaced_can_be_brought_back_whatever_fails_on_the_keep() {
    if !strace_is_here() {
        return;
    }
    let mut failures = 0;
    for operation in operations().into_iter().filter(|operation| operation.tool != "append_file") {
        let (before, after) = operation.trees();
        for nth in 1..MANY {
            let site = operation.site();
            let point = Point { call: "fstat", nth, tamper: Tamper::Fail("EIO") };
            let keep = site.workspace.join(".ringfence");
            let Ended { said, met } = failing_on(&site, &keep, point, operation.tool, &operation.arguments);
            if !met {
                break;
            }
            failures += 1;
            look_in(&site);
            let cleaned = site.tree();
            let made = cleaned == after;
            assert!(made || cleaned == before, "{}: {nth}: {said:?}: {:?}", operation.name, names(&cleaned));
            undo_what_is_listed(&site, made, &before)
                .unwrap_or_else(|problem| panic!("{}: {nth}: {problem}: {said:?}", operation.name));
        }
    }
    assert!(failures > 10, "only {failures} failures: the keep was not met");
}

#[test]
fn a_move_that_failed_leaves_no_order_to_remove_what_a_person_puts_there_later() {
    if !strace_is_here() {
        return;
    }
    for tamper in [Tamper::Fail("EIO"), Tamper::Kill] {
        let site = Site::in_memory();
        site.write("from.txt", "source\n");
        site.write("to.txt", "target\n");
        let arguments = json!({"from": "from.txt", "to": "to.txt", "overwrite": true});
        let ended = traced(&site, Point { call: "renameat2", nth: 1, tamper }, "move_file", &arguments);
        assert!(ended.met);
        // A person does with their own tools what the move did not: the other way round.
        std::fs::rename(site.workspace.join("to.txt"), site.workspace.join("from.txt")).unwrap();
        look_in(&site);
        assert_eq!(site.tree(), [("from.txt".to_owned(), Some(b"target\n".to_vec()))], "{tamper:?}");
    }
}

#[test]
fn what_somebody_did_after_a_crash_in_a_batch_stays() {
    if !strace_is_here() {
        return;
    }
    let patch = "--- f1\n+++ f1\n@@ -1 +1 @@\n-one\n+ONE\n--- f2\n+++ f2\n@@ -1 +1 @@\n-two\n+TWO\n";
    let crashed = || {
        let site = Site::in_memory();
        site.write("f1", "one\n");
        site.write("f2", "two\n");
        let point = Point { call: "renameat2", nth: 2, tamper: Tamper::Kill };
        assert!(traced(&site, point, "apply_patch", &json!({"patch": patch})).met);
        assert_eq!((site.read("f1"), site.read("f2")), ("ONE\n".to_owned(), "two\n".to_owned()));
        site
    };
    let kept = |site: &Site| {
        let old = site.tree().into_iter().filter(|(name, _)| name.starts_with("conflict-"));
        old.map(|(_, content)| String::from_utf8(content.unwrap()).unwrap()).collect::<Vec<_>>()
    };
    // Nothing happened since: the first file goes back.
    let site = crashed();
    look_in(&site);
    assert_eq!((site.read("f1"), site.read("f2"), kept(&site)), ("one\n".to_owned(), "two\n".to_owned(), vec![]));
    // A person added a line.
    let site = crashed();
    let mut file = std::fs::OpenOptions::new().append(true).open(site.workspace.join("f1")).unwrap();
    std::io::Write::write_all(&mut file, b"of a person\n").unwrap();
    look_in(&site);
    assert_eq!((site.read("f1"), kept(&site)), ("ONE\nof a person\n".to_owned(), vec!["one\n".to_owned()]));
    // A person put another file there, which may well have got the number of the one that went.
    let site = crashed();
    std::fs::remove_file(site.workspace.join("f1")).unwrap();
    site.write("f1", "new\n");
    look_in(&site);
    assert_eq!((site.read("f1"), kept(&site)), ("new\n".to_owned(), vec!["one\n".to_owned()]));
    // A call that changes one of the files first takes back what the dead one did.
    let site = crashed();
    site.call("append_file", &json!({"path": "f1", "content": "more\n"})).value();
    assert_eq!((site.read("f1"), site.read("f2")), ("one\nmore\n".to_owned(), "two\n".to_owned()));
    assert_eq!(site.leftovers(), [""; 0]);
}

#[test]
fn a_batch_in_a_directory_that_was_moved_after_a_crash_is_cleaned_up_where_it_is() {
    if !strace_is_here() {
        return;
    }
    let patch = "--- d/f1\n+++ d/f1\n@@ -1 +1 @@\n-one\n+ONE\n--- d/f2\n+++ d/f2\n@@ -1 +1 @@\n-two\n+TWO\n";
    let crashed = |nth| {
        let site = Site::in_memory();
        site.write("d/f1", "one\n");
        site.write("d/f2", "two\n");
        let point = Point { call: "renameat2", nth, tamper: Tamper::Kill };
        assert!(traced(&site, point, "apply_patch", &json!({"patch": patch})).met);
        std::fs::create_dir(site.workspace.join("below")).unwrap();
        std::fs::rename(site.workspace.join("d"), site.workspace.join("below/e")).unwrap();
        site
    };
    let both = |site: &Site, directory: &str| ["f1", "f2"].map(|name| site.read(&format!("{directory}/{name}")));
    // Half of it was done: that half goes back, with another directory in the old place too.
    for another in [false, true] {
        let site = crashed(2);
        if another {
            site.write("d/f1", "of a person\n");
        }
        look_in(&site);
        assert_eq!(both(&site, "below/e"), ["one\n", "two\n"]);
        assert_eq!(site.leftovers(), [""; 0]);
        assert!(!another || site.read("d/f1") == "of a person\n");
    }
    // All of it was done: what it displaced is kept.
    let site = crashed(3);
    look_in(&site);
    assert_eq!(both(&site, "below/e"), ["ONE\n", "TWO\n"]);
    assert_eq!(site.leftovers(), [""; 0]);
    std::fs::rename(site.workspace.join("below/e"), site.workspace.join("d")).unwrap();
    assert_eq!(site.run(&["undo"]).code, Some(0));
    assert_eq!(both(&site, "d"), ["one\n", "two\n"]);
}

#[test]
fn what_somebody_did_after_a_crash_in_an_undo_stays() {
    if !strace_is_here() {
        return;
    }
    let crashed = || {
        let site = Site::in_memory();
        for name in ["f", "g"] {
            site.write(name, "old\n");
            site.call("write_file", &json!({"path": name, "content": "new\n"})).value();
        }
        let point = Point { call: "renameat2", nth: 2, tamper: Tamper::Kill };
        assert!(traced_program(&site, point, &UNDO, b"", None).met);
        assert_eq!((site.read("f"), site.read("g")), ("new\n".to_owned(), "old\n".to_owned()));
        site
    };
    let site = crashed();
    look_in(&site);
    assert_eq!((site.read("f"), site.read("g")), ("new\n".to_owned(), "new\n".to_owned()));
    // A person wrote to the file that had come back: with the same inode, it is not what the undo put there.
    let site = crashed();
    std::fs::write(site.workspace.join("g"), "of a person\n").unwrap();
    look_in(&site);
    assert_eq!((site.read("f"), site.read("g")), ("new\n".to_owned(), "of a person\n".to_owned()));
    let tree = site.tree();
    let beside: Vec<_> = tree.iter().filter(|(name, _)| name.starts_with("conflict-")).map(|(_, it)| it).collect();
    assert_eq!(beside, [&Some(b"new\n".to_vec())]);
}

#[test]
fn an_undo_on_two_mounts_that_fails_on_the_second_says_what_was_done_on_the_first() {
    if !strace_is_here() {
        return;
    }
    let site = Site::in_memory();
    let other = site.root().join("other");
    std::fs::create_dir(&other).unwrap();
    let mount = format!("other={}:rw", other.to_str().unwrap());
    let options = ["--mount", &mount];
    for path in ["f", "@other/g"] {
        site.call_with(&options, "write_file", &json!({"path": path, "content": "new\n"})).value();
    }
    let g = other.join("g");
    let undo = [&UNDO[..], &options].concat();
    let point = Point { call: "renameat2", nth: 2, tamper: Tamper::Fail("EIO") };
    let ended = traced_program(&site, point, &undo, b"", None);
    assert!(ended.met);
    let said = ended.said;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("what was on @workspace was undone, by `c-"), "{said:?}");
    assert_eq!((site.tree(), g.exists()), (vec![], true));
    // The rest can be tried again, and what was done can be brought back.
    assert_eq!(site.run(&undo).code, Some(0));
    assert!(!g.exists());
    assert_eq!(site.run(&[&["redo"], &options[..]].concat()).code, Some(0));
    assert_eq!(std::fs::read_to_string(&g).unwrap(), "new\n");
}

#[test]
fn a_batch_that_cannot_be_taken_back_says_so_and_is_taken_back_later() {
    if !strace_is_here() {
        return;
    }
    let site = Site::in_memory();
    site.write("f1", "one\n");
    site.write("f2", "two\n");
    let patch = "--- f1\n+++ f1\n@@ -1 +1 @@\n-one\n+ONE\n--- f2\n+++ f2\n@@ -1 +1 @@\n-two\n+TWO\n";
    let mut command = site.program("strace");
    command.args(["-f", "-o", "/dev/null", "--trace=renameat2", "--inject=renameat2:error=EIO:when=2+"]);
    command
        .arg(PROGRAM)
        .args(["--preset", "edits", "call", "apply_patch", "-"])
        .arg("--workspace")
        .arg(&site.workspace);
    let said = fed(command, json!({"patch": patch}).to_string().as_bytes());
    assert_eq!(said.error(), "IO_ERROR");
    assert_eq!(said.reply()["error"]["details"]["committed"], "unknown", "{said:?}");
    look_in(&site);
    assert_eq!((site.read("f1"), site.read("f2")), ("one\n".to_owned(), "two\n".to_owned()));
    assert_eq!(site.leftovers(), [""; 0]);
}

#[test]
fn an_undo_that_was_killed_and_made_again_is_not_taken_back_by_a_later_call() {
    if !strace_is_here() {
        return;
    }
    for nth in 1..5 {
        let site = Site::in_memory();
        site.write("sub/c", "old\n");
        site.call("write_file", &json!({"path": "sub/c", "content": "new\n"})).value();
        site.call("delete_file", &json!({"path": "sub", "recursive": true})).value();
        let point = Point { call: "renameat2", nth, tamper: Tamper::Kill };
        let killed = traced_program(&site, point, &UNDO, b"", None).met;
        assert!(killed || nth > 1);
        if killed {
            site.run(&UNDO);
        }
        assert_eq!(site.read("sub/c"), "old\n", "{nth}");
        site.write("sub/NEW.md", "hours of work\n");
        look_in(&site);
        assert_eq!((site.read("sub/c"), site.read("sub/NEW.md")), ("old\n".to_owned(), "hours of work\n".to_owned()));
    }
}
