//! A call of the kernel that fails: the old contents stay, and the reply is an error that is so.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    CHANGING_SYSCALLS, CrashOperation, CrashOutcome, CrashPoint, CrashTamper, CrashTree, MAX_SYSCALLS,
    WORKSPACE_SYSCALLS, call_under_strace, has_strace, names, operations, trigger_recovery, undo_listed_changes,
    without_temp_files,
};
use crate::site::{CliOutput, PROGRAM, TestSite, run_with_input};

#[test]
fn a_call_of_the_kernel_that_fails_leaves_the_old_contents_and_an_error_reply() {
    if !has_strace() {
        return;
    }
    let mut problems = Vec::new();
    let mut failures = 0;
    for operation in operations() {
        let (before, after) = operation.trees();
        // The loader and the standard library use these too, and their failures are not ours to answer for.
        for call in
            CHANGING_SYSCALLS.iter().chain(WORKSPACE_SYSCALLS).filter(|call| !["pread64", "getrandom"].contains(call))
        {
            let errors: &[&str] = match *call {
                "write" | "pwrite64" | "openat" | "mkdirat" => &["ENOSPC", "EIO", "EDQUOT"],
                _ => &["EIO", "ENOSPC"],
            };
            for errno in errors {
                for nth in operation.may_fail(call) {
                    let point = CrashPoint { call, nth, tamper: CrashTamper::Fail(errno) };
                    let site = operation.site();
                    let ended = operation.run_tampered(&site, point);
                    if !ended.reached {
                        break;
                    }
                    failures += 1;
                    if let Err(problem) = check_after_failure(&site, &ended.output, &before, &after) {
                        problems.push(format!("{}: {point:?}: {problem}: {}", operation.name, ended.output.out));
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
fn check_after_failure(site: &TestSite, said: &CliOutput, before: &CrashTree, after: &CrashTree) -> Result<(), String> {
    let seen = without_temp_files(&site.tree());
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
        // It ran, and its end could not be recorded: there is no reply, but an error.
        Some(2) if said.err.contains("its end could not be recorded") && seen == *after => {}
        _ => return Err(format!("ended with {said:?}")),
    }
    let failed = said.code != Some(0);
    if failed && !site.temp_files().is_empty() {
        return Err(format!("an error, and {:?} is left", site.temp_files()));
    }
    trigger_recovery(site);
    match site.temp_files() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("the next call did not clean up {left:?}")),
    }
}

#[test]
fn a_disk_that_fills_up_half_way_leaves_the_old_contents() {
    if !has_strace() {
        return;
    }
    // Enough writes that the fourth and the fifth are the file's, and neither the reply's nor a wake-up.
    let operation = CrashOperation {
        name: "write a large file",
        tool: "write_file",
        arguments: json!({"path": "a.txt", "content": "n".repeat((4 << 20) + 500)}),
        files: vec![("a.txt", "old\n".to_owned())],
    };
    let (before, after) = operation.trees();
    // One call before, so that the audit log is there and its own first writes are not counted.
    let used = || {
        let site = operation.site();
        trigger_recovery(&site);
        site
    };
    for nth in [4, 5] {
        for errno in ["ENOSPC", "EIO", "EDQUOT"] {
            let site = used();
            let ended =
                operation.run_tampered(&site, CrashPoint { call: "write", nth, tamper: CrashTamper::Fail(errno) });
            assert!(ended.reached);
            assert_eq!(ended.output.error(), "IO_ERROR", "{errno}");
            assert_eq!(site.tree(), before, "{errno}");
        }
        let site = used();
        let ended =
            operation.run_tampered(&site, CrashPoint { call: "write", nth, tamper: CrashTamper::Fail("EINTR") });
        assert!(ended.reached);
        ended.output.value();
        assert!(site.tree() == after);
        let site = used();
        assert!(operation.run_tampered(&site, CrashPoint { call: "write", nth, tamper: CrashTamper::Kill }).reached);
        assert_eq!(site.tree(), before);
        assert_eq!((site.temp_files(), site.stored_files()), (Vec::new(), Vec::new()), "it has no name yet");
        trigger_recovery(&site);
        assert_eq!(site.tree(), before);
    }
}

#[test]
fn an_interrupted_call_of_the_kernel_is_made_again() {
    if !has_strace() {
        return;
    }
    let mut problems = Vec::new();
    let mut interrupts = 0;
    for operation in operations() {
        let (_, after) = operation.trees();
        // Of the others, the loader's and the standard library's own are not ours to make again.
        for call in CHANGING_SYSCALLS
            .iter()
            .chain(WORKSPACE_SYSCALLS)
            .filter(|call| !["pread64", "getrandom", "getdents64"].contains(call))
        {
            for nth in operation.may_fail(call) {
                let point = CrashPoint { call, nth, tamper: CrashTamper::Fail("EINTR") };
                let site = operation.site();
                let ended = operation.run_tampered(&site, point);
                if !ended.reached {
                    break;
                }
                interrupts += 1;
                if ended.output.code != Some(0) || site.tree() != after {
                    problems.push(format!("{}: {point:?}: {}{}", operation.name, ended.output.out, ended.output.err));
                }
            }
        }
    }
    println!("{interrupts} interrupts");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Makes a call under `strace`, and lets the n-th call of a kind about one file fail.
fn call_with_failing_file(
    site: &TestSite,
    path: &Path,
    point: CrashPoint,
    tool: &str,
    arguments: &Value,
) -> CrashOutcome {
    let CrashPoint { call, nth, tamper: CrashTamper::Fail(errno) } = point else { panic!("{point:?}") };
    let log = site.root().join("strace.log");
    let mut command = site.program("strace");
    command.args(["-f", "-o"]).arg(&log).arg("-P").arg(path);
    command.arg(format!("--trace={call}")).arg(format!("--inject={call}:error={errno}:when={nth}"));
    command.arg(PROGRAM).args(["--preset", "edits", "call", tool, "-"]).arg("--workspace").arg(&site.workspace);
    let said = run_with_input(command, arguments.to_string().as_bytes());
    let met = std::fs::read_to_string(&log).unwrap().contains("(INJECTED)");
    CrashOutcome { output: said, reached: met }
}

/// Without the hash of its result, an append could not be undone.
#[test]
fn a_file_that_cannot_be_read_is_not_appended_to() {
    if !has_strace() {
        return;
    }
    for errno in ["EDQUOT", "EIO"] {
        for nth in 1..MAX_SYSCALLS {
            let site = TestSite::in_memory();
            site.write("log.txt", "first\n");
            let before = site.tree();
            let point = CrashPoint { call: "pread64", nth, tamper: CrashTamper::Fail(errno) };
            let arguments = json!({"path": "log.txt", "content": "second\n"});
            let CrashOutcome { output: said, reached: met } =
                call_with_failing_file(&site, &site.workspace.join("log.txt"), point, "append_file", &arguments);
            let made = said.code == Some(0);
            assert!(met || (nth > 1 && made), "{errno}: {said:?}");
            if !made {
                assert_eq!((said.error().as_str(), site.tree()), ("IO_ERROR", before.clone()), "{errno}");
            }
            undo_listed_changes(&site, made, &before).unwrap();
            if !met {
                break;
            }
        }
    }
}

/// A shortage of descriptors does not lead to a request to approve a loss.
#[test]
fn a_journal_that_cannot_be_read_now_is_an_error_and_no_question() {
    if !has_strace() {
        return;
    }
    let mut failures = 0;
    for nth in 1..MAX_SYSCALLS {
        let site = TestSite::in_memory();
        site.write("a.txt", "old\n");
        trigger_recovery(&site);
        let journal = site.environment().state.unwrap().join("journal");
        let log = std::fs::read_dir(journal).unwrap().next().unwrap().unwrap().path().join("log");
        let point = CrashPoint { call: "fstat", nth, tamper: CrashTamper::Fail("EMFILE") };
        let arguments = json!({"path": "a.txt", "content": "new\n"});
        let CrashOutcome { output: said, reached: met } =
            call_with_failing_file(&site, &log, point, "write_file", &arguments);
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
    if !has_strace() {
        return;
    }
    let mut failures = 0;
    for call in ["openat", "openat2"] {
        for nth in 1..MAX_SYSCALLS {
            let site = TestSite::in_memory();
            site.write(".aws/credentials", "the key\n");
            site.write(".env", "the key\n");
            for (secret, name) in [(".env", "one.txt"), (".aws/credentials", "two.txt")] {
                std::fs::hard_link(site.workspace.join(secret), site.workspace.join(name)).unwrap();
            }
            let mut met = false;
            for name in ["one.txt", "two.txt"] {
                let point = CrashPoint { call, nth, tamper: CrashTamper::Fail("EMFILE") };
                let ended = call_with_failing_file(&site, &site.workspace, point, "read_file", &json!({"path": name}));
                assert!(!ended.output.out.contains("the key"), "{call} {nth}: {:?}", ended.output);
                met |= ended.reached;
                failures += usize::from(ended.output.out.contains("short of resources"));
            }
            if !met {
                break;
            }
        }
    }
    assert!(failures > 0, "nothing ever failed");
}

/// A pre-image is not discarded because the image store cannot be opened for a while.
#[test]
fn pre_images_survive_image_store_failures() {
    if !has_strace() {
        return;
    }
    let mut failures = 0;
    for operation in operations().into_iter().filter(|operation| operation.tool != "append_file") {
        let (before, after) = operation.trees();
        for nth in 1..MAX_SYSCALLS {
            let site = operation.site();
            let point = CrashPoint { call: "fstat", nth, tamper: CrashTamper::Fail("EIO") };
            let keep = site.workspace.join(".ringfence");
            let CrashOutcome { output: said, reached: met } =
                call_with_failing_file(&site, &keep, point, operation.tool, &operation.arguments);
            if !met {
                break;
            }
            failures += 1;
            trigger_recovery(&site);
            let cleaned = site.tree();
            let made = cleaned == after;
            assert!(made || cleaned == before, "{}: {nth}: {said:?}: {:?}", operation.name, names(&cleaned));
            undo_listed_changes(&site, made, &before)
                .unwrap_or_else(|problem| panic!("{}: {nth}: {problem}: {said:?}", operation.name));
        }
    }
    assert!(failures > 10, "only {failures} failures: the keep was not met");
}

#[test]
fn a_move_that_failed_leaves_no_order_to_remove_what_a_person_puts_there_later() {
    if !has_strace() {
        return;
    }
    for tamper in [CrashTamper::Fail("EIO"), CrashTamper::Kill] {
        let site = TestSite::in_memory();
        site.write("from.txt", "source\n");
        site.write("to.txt", "target\n");
        let arguments = json!({"from": "from.txt", "to": "to.txt", "overwrite": true});
        let ended = call_under_strace(&site, CrashPoint { call: "renameat2", nth: 1, tamper }, "move_file", &arguments);
        assert!(ended.reached);
        // A person does with their own tools what the move did not: the other way round.
        std::fs::rename(site.workspace.join("to.txt"), site.workspace.join("from.txt")).unwrap();
        trigger_recovery(&site);
        assert_eq!(site.tree(), [("from.txt".to_owned(), Some(b"target\n".to_vec()))], "{tamper:?}");
    }
}
