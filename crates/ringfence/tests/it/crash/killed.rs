//! A process that dies: the old or the new is there, and the next call cleans up.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{
    CHANGING, Ended, IDLE, MANY, Operation, Point, Tamper, Tree, WITHIN, full, look_in, names, operations,
    strace_is_here, traced, undo_what_is_listed, visible,
};
use crate::site::{PROGRAM, Site, fed};

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
