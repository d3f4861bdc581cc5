//! An undo is all of it or nothing, like any change.

use serde_json::json;

use super::{
    CHANGING_SYSCALLS, CrashPoint, CrashTamper, CrashTree, MAX_SYSCALLS, WORKSPACE_SYSCALLS, call_under_strace,
    has_strace, names, run_under_strace, trigger_recovery,
};
use crate::site::TestSite;

/// Everything is undone at once.
const UNDO: [&str; 3] = ["undo", "--since", "2000-01-01T00:00:00Z"];

/// A workspace with changes of every kind, as it was before them.
fn changed_site() -> (TestSite, CrashTree) {
    let site = TestSite::in_memory();
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
    if !has_strace() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for call in CHANGING_SYSCALLS.iter().chain(WORKSPACE_SYSCALLS) {
        for nth in 1..MAX_SYSCALLS {
            let (site, first) = changed_site();
            let last = site.tree();
            let point = CrashPoint { call, nth, tamper: CrashTamper::Kill };
            let ended = run_under_strace(&site, point, &UNDO, b"", None);
            if !ended.reached {
                assert_eq!(ended.output.code, Some(0), "{point:?}: {:?}", ended.output);
                assert_eq!(site.tree(), first);
                break;
            }
            kills += 1;
            trigger_recovery(&site);
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
            trigger_recovery(&site);
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
    if !has_strace() {
        return;
    }
    let mut problems = Vec::new();
    let mut kills = 0;
    for call in ["renameat2", "unlinkat", "write", "flock", "ftruncate", "openat2"] {
        for nth in 1..MAX_SYSCALLS {
            let (site, first) = changed_site();
            let last = site.tree();
            // Some of it is undone, and some is not.
            let half = CrashPoint { call: "renameat2", nth: 4, tamper: CrashTamper::Kill };
            assert!(run_under_strace(&site, half, &UNDO, b"", None).reached);
            let point = CrashPoint { call, nth, tamper: CrashTamper::Kill };
            if !call_under_strace(&site, point, "list_directory", &json!({"path": "."})).reached {
                break;
            }
            kills += 1;
            trigger_recovery(&site);
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
    if !has_strace() {
        return;
    }
    let mut problems = Vec::new();
    let mut failures = 0;
    for call in ["fsync", "fdatasync", "renameat2", "renameat", "unlinkat", "pwrite64", "openat2", "newfstatat"] {
        for nth in 1..MAX_SYSCALLS {
            let (site, first) = changed_site();
            let last = site.tree();
            let point = CrashPoint { call, nth, tamper: CrashTamper::Fail("EIO") };
            let ended = run_under_strace(&site, point, &UNDO, b"", None);
            if !ended.reached {
                break;
            }
            failures += 1;
            let seen = site.tree();
            let fits = match ended.output.code {
                Some(0) => seen == first,
                _ => seen == last || (seen == first && ended.output.err.contains("could not sync it to disk")),
            };
            if !fits {
                problems.push(format!("{point:?}: {:?} and {:?}", ended.output, names(&seen)));
            }
        }
    }
    println!("{failures} failures in an undo");
    assert!(failures > 10, "only {failures} failures: the program was not hit");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn edits_made_after_a_crash_in_an_undo_stay() {
    if !has_strace() {
        return;
    }
    let crashed = || {
        let site = TestSite::in_memory();
        for name in ["f", "g"] {
            site.write(name, "old\n");
            site.call("write_file", &json!({"path": name, "content": "new\n"})).value();
        }
        let point = CrashPoint { call: "renameat2", nth: 2, tamper: CrashTamper::Kill };
        assert!(run_under_strace(&site, point, &UNDO, b"", None).reached);
        assert_eq!((site.read("f"), site.read("g")), ("new\n".to_owned(), "old\n".to_owned()));
        site
    };
    let site = crashed();
    trigger_recovery(&site);
    assert_eq!((site.read("f"), site.read("g")), ("new\n".to_owned(), "new\n".to_owned()));
    // A person wrote to the file that had come back: with the same inode, it is not what the undo put there.
    let site = crashed();
    std::fs::write(site.workspace.join("g"), "of a person\n").unwrap();
    trigger_recovery(&site);
    assert_eq!((site.read("f"), site.read("g")), ("new\n".to_owned(), "of a person\n".to_owned()));
    let tree = site.tree();
    let beside: Vec<_> = tree.iter().filter(|(name, _)| name.starts_with("conflict-")).map(|(_, it)| it).collect();
    assert_eq!(beside, [&Some(b"new\n".to_vec())]);
}

#[test]
fn an_undo_on_two_mounts_that_fails_on_the_second_says_what_was_done_on_the_first() {
    if !has_strace() {
        return;
    }
    let site = TestSite::in_memory();
    let other = site.root().join("other");
    std::fs::create_dir(&other).unwrap();
    let mount = format!("other={}:rw", other.to_str().unwrap());
    let options = ["--mount", &mount];
    for path in ["f", "@other/g"] {
        site.call_with(&options, "write_file", &json!({"path": path, "content": "new\n"})).value();
    }
    let g = other.join("g");
    let undo = [&UNDO[..], &options].concat();
    let point = CrashPoint { call: "renameat2", nth: 2, tamper: CrashTamper::Fail("EIO") };
    let ended = run_under_strace(&site, point, &undo, b"", None);
    assert!(ended.reached);
    let said = ended.output;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("the changes on @workspace were undone by `c-"), "{said:?}");
    assert_eq!((site.tree(), g.exists()), (vec![], true));
    // The rest can be tried again, and what was done can be brought back.
    assert_eq!(site.run(&undo).code, Some(0));
    assert!(!g.exists());
    assert_eq!(site.run(&[&["redo"], &options[..]].concat()).code, Some(0));
    assert_eq!(std::fs::read_to_string(&g).unwrap(), "new\n");
}

#[test]
fn a_repeated_undo_is_not_rolled_back_by_a_later_call() {
    if !has_strace() {
        return;
    }
    for nth in 1..5 {
        let site = TestSite::in_memory();
        site.write("sub/c", "old\n");
        site.call("write_file", &json!({"path": "sub/c", "content": "new\n"})).value();
        site.call("delete_file", &json!({"path": "sub", "recursive": true})).value();
        let point = CrashPoint { call: "renameat2", nth, tamper: CrashTamper::Kill };
        let killed = run_under_strace(&site, point, &UNDO, b"", None).reached;
        assert!(killed || nth > 1);
        if killed {
            site.run(&UNDO);
        }
        assert_eq!(site.read("sub/c"), "old\n", "{nth}");
        site.write("sub/NEW.md", "hours of work\n");
        trigger_recovery(&site);
        assert_eq!((site.read("sub/c"), site.read("sub/NEW.md")), ("old\n".to_owned(), "hours of work\n".to_owned()));
    }
}
