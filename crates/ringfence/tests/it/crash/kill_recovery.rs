//! A process that dies: the old or the new is there, and the next call cleans up.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{
    CHANGING_SYSCALLS, CrashOperation, CrashOutcome, CrashPoint, CrashTamper, CrashTree, IDLE_SYSCALLS, MAX_SYSCALLS,
    WORKSPACE_SYSCALLS, call_under_strace, has_strace, is_full_run, names, operations, trigger_recovery,
    undo_listed_changes, without_temp_files,
};
use crate::site::{PROGRAM, TestSite, run_with_input};

/// Directories that were made for a file that never came are empty, and do no harm.
fn without_empty_new_directories(tree: &CrashTree, before: &CrashTree) -> CrashTree {
    let is_new = |name: &String| !before.iter().any(|(old, _)| old == name);
    let has_files =
        |name: &String| tree.iter().any(|(other, content)| content.is_some() && other.starts_with(&format!("{name}/")));
    tree.iter().filter(|(name, content)| content.is_some() || !is_new(name) || has_files(name)).cloned().collect()
}

/// The one intermediate state with a name of its own: the two files of a move are exchanged, and the one that was
/// overwritten still has the other's name. The next call removes it.
fn swapped_tree(operation: &CrashOperation, before: &CrashTree) -> Option<CrashTree> {
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

#[test]
fn a_kill_at_any_system_call_leaves_the_old_or_the_new_and_the_next_call_cleans_up() {
    if !has_strace() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for operation in operations() {
        let (before, after) = operation.trees();
        let between = swapped_tree(&operation, &before);
        let idle = if is_full_run() { IDLE_SYSCALLS } else { &[] };
        for call in CHANGING_SYSCALLS.iter().chain(WORKSPACE_SYSCALLS).chain(idle) {
            for nth in 1..MAX_SYSCALLS {
                let point = CrashPoint { call, nth, tamper: CrashTamper::Kill };
                let site = operation.site();
                let ended = operation.run_tampered(&site, point);
                if !ended.reached {
                    assert_eq!(ended.output.code, Some(0), "{}: {point:?}: {:?}", operation.name, ended.output);
                    break;
                }
                kills += 1;
                let left = without_empty_new_directories(&without_temp_files(&site.tree()), &before);
                let is_whole = left == before || left == after || Some(&left) == between.as_ref();
                if !is_whole && !operation.has_steps() {
                    problems.push(format!("{}: {point:?}: the kill left {:?}", operation.name, names(&left)));
                }
                trigger_recovery(&site);
                if !site.temp_files().is_empty() {
                    problems.push(format!("{}: {point:?}: not cleaned up: {:?}", operation.name, site.temp_files()));
                }
                let cleaned = without_empty_new_directories(&site.tree(), &before);
                if cleaned != before && cleaned != after {
                    problems.push(format!("{}: {point:?}: cleaning up left {:?}", operation.name, names(&cleaned)));
                }
                if left == after && cleaned != after && !operation.has_steps() {
                    problems.push(format!("{}: {point:?}: cleaning up undid a finished change", operation.name));
                }
                if let Err(problem) = undo_listed_changes(&site, cleaned == after, &before) {
                    problems.push(format!("{}: {point:?}: {problem}", operation.name));
                }
            }
        }
    }
    println!("{kills} kills");
    assert!(kills > 120, "only {kills} kills: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_kill_while_cleaning_up_is_cleaned_up_too() {
    if !has_strace() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for operation in operations().iter().filter(|operation| operation.tool != "append_file") {
        let (before, after) = operation.trees();
        // Here the change is made, or nearly, and what has to be removed is still there.
        let at = |call, nth| CrashPoint { call, nth, tamper: CrashTamper::Kill };
        let firsts = match operation.arguments["createDirs"].as_bool() {
            // The directories are there, and the file is not.
            Some(true) => vec![at("linkat", 1)],
            // Some of the files have their names, others not; or all of them have, and three are synced before that.
            _ if operation.has_steps() => vec![at("renameat2", 2), at("renameat2", 3), at("fsync", 4)],
            _ if operation.tool == "move_file" => vec![at("renameat2", 2)],
            // The new file waits in the image store, or the old one is about to go there.
            _ => vec![at("renameat2", 1)],
        };
        for (first, call) in firsts
            .iter()
            .flat_map(|first| CHANGING_SYSCALLS.iter().chain(WORKSPACE_SYSCALLS).map(move |call| (first, call)))
        {
            for nth in 1..MAX_SYSCALLS {
                let site = operation.site();
                // Files of ours are made, and their syncs not counted.
                trigger_recovery(&site);
                assert!(operation.run_tampered(&site, *first).reached, "{}", operation.name);
                let second = CrashPoint { call, nth, tamper: CrashTamper::Kill };
                let ended = call_under_strace(&site, second, "list_directory", &json!({"path": "."}));
                if !ended.reached {
                    break;
                }
                kills += 1;
                trigger_recovery(&site);
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
    if !has_strace() {
        return;
    }
    let arguments = json!({"path": "log.txt", "content": "second line\n"});
    // Killed when the intent is written and nothing is added; then as much is added as a kill half way would leave. Or
    // another program adds something, which stays.
    let cases = [
        ("", "first\n"),
        ("s", "first\n"),
        ("second lin", "first\n"),
        ("second line\n", "first\nsecond line\n"),
        ("other", "first\nother"),
        ("secother", "first\nsecother"),
    ];
    for (part, expected) in cases {
        let site = TestSite::in_memory();
        site.write("log.txt", "first\n");
        let point = CrashPoint { call: "write", nth: 1, tamper: CrashTamper::Kill };
        assert!(call_under_strace(&site, point, "append_file", &arguments).reached);
        site.write("log.txt", format!("first\n{part}"));
        trigger_recovery(&site);
        assert_eq!(site.read("log.txt"), expected, "after {part:?}");
    }
}

/// No call appends to a partial append that was left, because it could then not be distinguished from the earlier
/// contents.
#[test]
fn a_file_that_cannot_be_cleaned_up_now_is_not_changed_before_it_is() {
    if !has_strace() {
        return;
    }
    let append = |content: &str| json!({"path": "log.txt", "content": content});
    let site = TestSite::in_memory();
    site.write("log.txt", "first\n");
    let killed = CrashPoint { call: "write", nth: 1, tamper: CrashTamper::Kill };
    assert!(call_under_strace(&site, killed, "append_file", &append("second line\n")).reached);
    site.write("log.txt", "first\nsec");
    let failing = CrashPoint { call: "ftruncate", nth: 1, tamper: CrashTamper::FailFrom("EIO") };
    let CrashOutcome { output: said, reached: met } =
        call_under_strace(&site, failing, "append_file", &append("third\n"));
    assert!(met && said.error() == "IO_ERROR", "{said:?}");
    assert_eq!(site.read("log.txt"), "first\nsec");
    site.call("append_file", &append("third\n")).value();
    assert_eq!(site.read("log.txt"), "first\nthird\n");
}

/// The image store is opened to others, or removed, after a crash. A displaced file that is not in it yet stays.
#[test]
fn cleaning_up_takes_nothing_away_where_the_keep_cannot_be_used() {
    if !has_strace() {
        return;
    }
    let mut displaced = 0;
    for operation in
        operations().into_iter().filter(|operation| operation.name.contains("file") || operation.has_steps())
    {
        for is_taken_away in [false, true] {
            for nth in 1..MAX_SYSCALLS {
                let site = operation.site();
                let point = CrashPoint { call: "renameat2", nth, tamper: CrashTamper::Kill };
                if !operation.run_tampered(&site, point).reached {
                    break;
                }
                let keep = site.workspace.join(".ringfence");
                displaced += usize::from(!site.stored_files().is_empty());
                match is_taken_away {
                    _ if !keep.exists() => continue,
                    true => std::fs::remove_dir_all(&keep).unwrap(),
                    false => std::fs::set_permissions(&keep, std::fs::Permissions::from_mode(0o755)).unwrap(),
                }
                let contents = || -> Vec<_> { site.tree().into_iter().filter_map(|(_, content)| content).collect() };
                let before = contents();
                trigger_recovery(&site);
                for (path, old) in &operation.files {
                    let is_there = |all: &[Vec<u8>]| all.iter().any(|content| content == old.as_bytes());
                    let lost = is_there(&before) && !is_there(&contents());
                    assert!(!lost, "{}: {point:?}: {path} is lost: {:?}", operation.name, names(&site.tree()));
                }
            }
        }
    }
    assert!(displaced > 3, "nothing waited in the image store");
}

/// A power cut leaves only synced data: an intent that was not synced does not help recovery, and contents that were not
/// synced are lost.
#[test]
fn intent_and_contents_are_on_disk_before_anything_has_a_name() {
    if !has_strace() {
        return;
    }
    let both = "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-old\n+new\n--- b.txt\n+++ b.txt\n@@ -1 +1 @@\n-other\n+new\n";
    let cases = [
        ("write_file", json!({"path": "a.txt", "content": "new"}), "linkat", ".ringfence", true),
        ("write_file", json!({"path": "new.txt", "content": "new"}), "linkat", "new.txt", true),
        ("write_file", json!({"path": "d/new.txt", "content": "new", "createDirs": true}), "mkdirat", "\"d\"", true),
        ("apply_patch", json!({"patch": both}), "linkat", ".ringfence", true),
        ("append_file", json!({"path": "a.txt", "content": "new"}), "write", "/ws/a.txt>", false),
        ("move_file", json!({"from": "b.txt", "to": "a.txt", "overwrite": true}), "renameat2", "EXCHANGE", false),
        ("delete_file", json!({"path": "a.txt"}), "renameat2", "\"a.txt\"", false),
    ];
    for (tool, arguments, call, about, has_contents) in cases {
        let site = TestSite::in_memory();
        site.write("a.txt", "old\n");
        site.write("b.txt", "other\n");
        let log = site.root().join("strace.log");
        let mut command = site.program("strace");
        command.args(["-f", "-y", "-o"]).arg(&log).arg(format!("--trace=fsync,fdatasync,{call}"));
        command.arg(PROGRAM).args(["--preset", "edits", "call", tool, "-"]).arg("--workspace").arg(&site.workspace);
        run_with_input(command, arguments.to_string().as_bytes()).value();
        let log = std::fs::read_to_string(&log).unwrap();
        let at = |call: &str, about: &str| {
            log.lines().position(|line| line.contains(&format!("{call}(")) && line.contains(about))
        };
        let made = at(call, about);
        assert!(made.is_some(), "{tool}: {log}");
        // The first change of a process syncs both files themselves, later ones only the redo log.
        let logged = [at("sync", "/state/journal/"), at("sync", "/state/audit/")];
        assert!(logged.iter().all(|at| at.is_some() && *at < made), "{tool}: {log}");
        let contents = at("fsync", "(deleted)");
        assert!(!has_contents || contents.is_some() && contents < made, "{tool}: {log}");
    }
}

#[test]
fn recovery_on_a_read_only_disk_completes_once_it_is_writable() {
    if !has_strace() {
        return;
    }
    let overwrites =
        |operation: &CrashOperation| operation.name == "write over a file" || operation.tool == "edit_file";
    for operation in operations().into_iter().filter(overwrites) {
        let (before, _) = operation.trees();
        let site = operation.site();
        assert!(
            operation.run_tampered(&site, CrashPoint { call: "renameat2", nth: 1, tamper: CrashTamper::Kill }).reached
        );
        assert_eq!(site.stored_files().len(), 1);
        let read_only = CrashPoint { call: "unlinkat", nth: 1, tamper: CrashTamper::Fail("EROFS") };
        assert!(call_under_strace(&site, read_only, "list_directory", &json!({"path": "."})).reached);
        assert_eq!(site.stored_files().len(), 1, "{}", operation.name);
        trigger_recovery(&site);
        assert_eq!(site.stored_files(), [""; 0], "{}", operation.name);
        assert_eq!(without_empty_new_directories(&site.tree(), &before), before, "{}", operation.name);
    }
}
