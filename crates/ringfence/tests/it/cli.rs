//! Output and exit codes of the command line.

use std::fs::File;
use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

use expect_test::{Expect, expect};
use ringfence_testkit::patience::wait_until;
use serde_json::{Value, json};

use crate::site::{CliOutput, PROGRAM, TestSite, cli_output, run_with_input};

/// A workspace with a few files.
fn site() -> TestSite {
    let site = TestSite::new();
    site.write("README.md", "# Hi\n");
    site.write("notes/a.txt", "one\ntwo\n");
    site.write(".env", "PASSWORD=hunter2\n");
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for path in ["README.md", "notes/a.txt"] {
        File::options().write(true).open(site.workspace.join(path)).unwrap().set_modified(then).unwrap();
    }
    site
}

/// Runs the program and compares the exit code, the reply, and standard error.
#[track_caller]
fn check(arguments: &[&str], expected: Expect) {
    expected.assert_eq(&format_output(&site().run(arguments)));
}

fn format_output(said: &CliOutput) -> String {
    let CliOutput { code, out, err, .. } = said;
    let code = code.map_or("signal".to_owned(), |code| code.to_string());
    let err = if err.is_empty() { String::new() } else { format!("\nstderr: {err}") };
    format!("exit {code}\n{out}{err}")
}

#[test]
fn a_missing_file_is_reported_in_words() {
    let site = TestSite::new();
    let commands: [(&[&str], &str); 4] = [
        (&["tools", "--config", "/missing/file"], "cannot read the config file /missing/file: "),
        (&["audit", "verify", "--heads", "/missing/file"], "cannot read the heads file: "),
        (&["agent", "hello", "--script", "/missing/file"], "cannot read the script: "),
        (&["man", "/missing/directory"], "cannot write the manual pages: "),
    ];
    for (command, message) in commands {
        let said = cli_output(site.program_without_arguments().args(command).output().unwrap());
        assert_eq!(said.code, Some(2), "{command:?} {said:?}");
        let expected = format!("ringfence: {message}no such file or directory\n");
        assert!(said.err.ends_with(&expected), "{command:?} {said:?}");
    }
}

#[test]
fn an_invalid_number_is_reported_with_what_is_expected() {
    let site = TestSite::new();
    let commands = [
        (["serve", "--wait", "x"], "expected a number of seconds"),
        (["serve", "--rate", "x"], "expected a number of requests per second"),
        (["mcp", "--wait", "x"], "expected a number of seconds"),
    ];
    for (command, expected) in commands {
        let said = cli_output(site.program_without_arguments().args(command).output().unwrap());
        assert!(said.code == Some(2) && said.err.contains(expected), "{command:?} {said:?}");
    }
}

#[test]
fn a_reply_is_printed_as_it_is_and_its_kind_is_the_exit_code() {
    check(
        &["call", "read_file", r#"{"path":"README.md"}"#],
        expect![[r##"
            exit 0
            {"ok":true,"value":{"content":"# Hi\n","size":5,"modified":"2023-11-14T22:13:20.000Z","sha256":"19812277b04a5a988e4dc361617bcb927d4297c47353da93aa992ac007f1f3cf","truncated":false}}"##]],
    );
    check(
        &["call", "read_file", r#"{"path":"none.txt"}"#],
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"FILE_NOT_FOUND","message":"`none.txt` does not exist"}}"#]],
    );
    check(
        &["call", "list_directory", r#"{"path":"notes"}"#],
        expect![[r#"
            exit 0
            {"ok":true,"value":{"entries":[{"name":"a.txt","type":"file","size":8,"modified":"2023-11-14T22:13:20.000Z"}]}}"#]],
    );
}

#[test]
fn miniclaw_replies_in_text() {
    let site = site();
    let say = |tool: &str, arguments: Value| {
        let said = site.run(&["--dialect", "miniclaw", "call", tool, &arguments.to_string()]);
        (said.code.unwrap(), said.out)
    };
    let ok = |text: &str| (0, text.to_owned());
    assert_eq!(say("read_file", json!({"path": "README.md"})), ok("ok: read 5 bytes from README.md\n# Hi\n"));
    assert_eq!(say("write_file", json!({"path": "n/e/w", "content": "é"})), ok("ok: wrote 2 bytes to n/e/w"));
    assert_eq!(
        say("append_file", json!({"path": "n/e/w", "content": "!"})),
        ok("ok: appended 1 bytes to n/e/w (size=3)")
    );
    assert_eq!(
        say("edit_file", json!({"path": "notes/a.txt", "old_text": "two", "new_text": "2"})),
        ok("ok: replaced 1 match(es) in notes/a.txt")
    );
    assert_eq!(say("list_dir", json!({"path": ""})).1.lines().next(), Some("ok: listed 4 entries in ."));
    assert_eq!(say("list_dir", json!({"path": "notes"})), ok("ok: listed 1 entries in notes\n- a.txt\tfile\t6"));
    let refused = |text: &str| (1, text.to_owned());
    assert_eq!(say("read_file", json!({"path": "none"})), refused("path_not_found: `none` does not exist"));
    assert_eq!(
        say("edit_file", json!({"path": "notes/a.txt", "old_text": "", "new_text": "x"})),
        refused("invalid_path: old_text must not be empty")
    );
    assert_eq!(
        say("rm", json!({})),
        refused("tool not found: rm. Available tools: read_file, write_file, append_file, list_dir, edit_file")
    );
}

#[test]
fn arguments_are_read_from_standard_input() {
    let site = site();
    let feed = |input: &[u8]| run_with_input(site.command(&["call", "read_file", "-"]), input);
    assert_eq!(feed(br#"{"path":"README.md"}"#).value()["content"], "# Hi\n");
    assert_eq!(feed(b" \n{\"path\":\"README.md\"}\n\n").value()["content"], "# Hi\n");
    assert_eq!(feed(b"").error(), "INVALID_ARGS");
    assert_eq!(feed(b"{").error(), "INVALID_ARGS");
    // Invalid UTF-8 never gets as far as a call.
    let bad = feed(b"{\"path\":\"\xff\"}");
    assert_eq!((bad.code, bad.out.as_str()), (Some(2), ""));
    let content = "x".repeat(3 << 20);
    let big = json!({"path": "big.txt", "content": content}).to_string();
    assert_eq!(run_with_input(site.command(&["call", "write_file", "-"]), big.as_bytes()).value()["size"], 3 << 20);
}

#[test]
fn a_change_of_many_files_is_not_bound_by_the_limit_that_a_shell_sets() {
    let site = TestSite::new();
    let patch: String = (0..120).map(|number| format!("*** Add File: f{number}\n+x\n")).collect();
    let arguments = json!({"input": format!("*** Begin Patch\n{patch}*** End Patch")}).to_string();
    let mut shell = site.program_at_terminal("sh");
    shell.args(["-c", "ulimit -Sn 128; exec \"$@\"", "sh", PROGRAM, "--workspace"]).arg(&site.workspace);
    shell.args(["--dialect", "codex", "--preset", "edits", "call", "apply_patch", &arguments]);
    let said = cli_output(shell.output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(site.read("f119"), "x\n");
}

#[test]
fn more_input_than_a_call_may_have_is_refused_without_reading_it_all() {
    let site = site();
    std::fs::write(site.root().join("small.toml"), "[limits]\nmax_argument_bytes = 100\n").unwrap();
    let config = site.root().join("small.toml");
    let command = site.command(&["--config", config.to_str().unwrap(), "call", "read_file", "-"]);
    let said = run_with_input(command, "x".repeat(200_000).as_bytes());
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
    assert!(said.err.contains("larger than 100 bytes"), "{said:?}");
}

#[test]
fn invalid_arguments_are_explained() {
    let call = |json: &str, expected: Expect| check(&["call", "read_file", json], expected);
    call(
        "{",
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"INVALID_ARGS","message":"the arguments are not valid JSON: EOF while parsing an object at line 1 column 1"}}"#]],
    );
    call(
        "",
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"INVALID_ARGS","message":"missing field `path`"}}"#]],
    );
    call(
        "[]",
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"INVALID_ARGS","message":"the arguments must be a JSON object"}}"#]],
    );
    call(
        r#"{"path":"README.md","path":"none"}"#,
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"INVALID_ARGS","message":"duplicate field `path`"}}"#]],
    );
    call(
        r#"{"pth":"README.md"}"#,
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"INVALID_ARGS","message":"unknown field `pth`, expected one of `path`, `encoding`, `startLine`, `endLine`; did you mean `path`?"}}"#]],
    );
    call(
        r#"{"path":1}"#,
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"INVALID_ARGS","message":"invalid type: integer `1`, expected a string"}}"#]],
    );
    call(
        r#"{"path":"a\u0000b"}"#,
        expect![[r#"
        exit 1
        {"ok":false,"error":{"code":"INVALID_PATH","message":"the path contains a NUL byte"}}"#]],
    );
}

#[test]
fn bad_usage_is_exit_code_2_and_names_what_is_allowed() {
    let told = |arguments: &[&str], words: &[&str]| {
        let said = site().run(arguments);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{arguments:?}: {said:?}");
        for word in words {
            assert!(said.err.contains(word), "{arguments:?} does not say {word:?}: {}", said.err);
        }
    };
    told(&[], &["call", "tools"]);
    told(&["frobnicate"], &["frobnicate"]);
    told(&["call"], &["<TOOL>"]);
    told(&["tools", "--dialect", "klingon"], &["klingon", "standard", "miniclaw"]);
    told(&["tools", "--preset", "yolo"], &["yolo", "ask", "edits", "read-only"]);
    told(&["tools", "--format", "xml"], &["xml", "openai", "functions", "list"]);
    told(&["tools", "--preset", "edits", "--read-only"], &["--read-only", "--preset"]);
    told(&["tools", "--allow-tool", "red_file"], &["red_file", "did you mean `read_file`?"]);
    told(&["tools", "--deny-tool", "list_dir"], &["list_dir", "standard"]);
    told(&["tools", "--dialect", "miniclaw", "--deny-tool", "list-dir"], &["list-dir", "did you mean `list_dir`?"]);
    told(&["tools", "--bogus"], &["--bogus"]);
}

#[test]
fn help_and_version_are_a_success() {
    for flag in ["--help", "--version"] {
        let said = cli_output(site().program_without_arguments().arg(flag).output().unwrap());
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{flag}");
        assert!(said.out.contains("ringfence"), "{flag}: {}", said.out);
    }
}

const MINICLAW: [&str; 5] = ["read_file", "write_file", "append_file", "list_dir", "edit_file"];

/// The functions of a dialect, as `tools --format` prints them.
fn functions(dialect: &str, format: &str) -> Vec<Value> {
    let said = site().run(&["tools", "--dialect", dialect, "--format", format]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert!(said.out.ends_with('\n'));
    serde_json::from_str(&said.out).unwrap()
}

#[test]
fn tools_are_printed_in_both_forms_and_in_the_order_of_the_contract() {
    for dialect in ["standard", "miniclaw"] {
        let bare = functions(dialect, "functions");
        let wrapped = functions(dialect, "openai");
        let around = |function: &Value| json!({"type": "function", "function": function});
        assert_eq!(wrapped, bare.iter().map(around).collect::<Vec<_>>());
        for function in &bare {
            check_function(function);
        }
        let names: Vec<&str> = bare.iter().map(|function| function["name"].as_str().unwrap()).collect();
        let listed = site().run(&["tools", "--dialect", dialect]).out;
        let first_words: Vec<&str> = listed.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(names, first_words);
        match dialect {
            "miniclaw" => assert_eq!(names, MINICLAW),
            _ => {
                assert!(["delete_file", "move_file", "find_files"].iter().all(|name| names.contains(name)), "{names:?}")
            }
        }
    }
}

#[track_caller]
fn check_function(function: &Value) {
    let keys: Vec<&String> = function.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "description", "parameters"], "{function}");
    assert!(!function["description"].as_str().unwrap().is_empty());
    check_schema(&function["parameters"]);
    assert!(!function.to_string().contains("$ref"), "{function}");
}

/// Every object of a schema is closed, and everything in it is described.
#[track_caller]
fn check_schema(schema: &Value) {
    if let Some(properties) = schema["properties"].as_object() {
        assert_eq!(schema["additionalProperties"], false, "{schema}");
        for (name, property) in properties {
            assert!(property["description"].as_str().is_some_and(|text| !text.is_empty()), "{name} of {schema}");
            check_schema(property);
            check_schema(&property["items"]);
        }
    }
}

#[test]
fn a_tool_that_is_not_offered_is_unknown() {
    let run = |options: &[&str]| {
        let mut arguments = options.to_vec();
        arguments.extend(["call", "write_file", r#"{"path":"n","content":""}"#]);
        site().run(&arguments)
    };
    assert_eq!(run(&["--deny-tool", "write_file"]).error(), "UNKNOWN_TOOL");
    assert_eq!(run(&["--allow-tool", "read_file", "--allow-tool", "edit_file"]).error(), "UNKNOWN_TOOL");
    assert_eq!(run(&["--allow-tool", "write_file", "--deny-tool", "write_file"]).error(), "UNKNOWN_TOOL");
    assert_eq!(run(&["--allow-tool", "write_file"]).value()["created"], true);
    let said = run(&["--dialect", "miniclaw", "--deny-tool", "write_file"]);
    assert!(said.out.starts_with("tool not found: write_file. Available tools: read_file, append_file"), "{said:?}");
    assert_eq!(said.code, Some(1));
    let names = site().run(&["tools", "--deny-tool", "delete_file", "--format", "functions"]).out;
    assert!(!names.contains("\"delete_file\""));
}

#[test]
fn a_preset_decides_what_is_done_without_asking() {
    let outcome = |options: &[&str], tool: &str, arguments: Value| {
        let mut all = options.to_vec();
        let arguments = arguments.to_string();
        all.extend(["call", tool, &arguments]);
        let said = site().run(&all);
        if said.code == Some(0) { "ok".to_owned() } else { said.error() }
    };
    let cases = [
        ("write_file", json!({"path": "new", "content": ""}), ["ok", "ok", "PERMISSION_DENIED"]),
        ("write_file", json!({"path": "README.md", "content": ""}), ["APPROVAL_DENIED", "ok", "PERMISSION_DENIED"]),
        ("delete_file", json!({"path": "README.md"}), ["APPROVAL_DENIED", "ok", "PERMISSION_DENIED"]),
        ("read_file", json!({"path": "README.md"}), ["ok", "ok", "ok"]),
        ("read_file", json!({"path": ".env"}), ["APPROVAL_DENIED"; 3]),
    ];
    for (tool, arguments, [ask, edits, read_only]) in cases {
        assert_eq!(outcome(&[], tool, arguments.clone()), ask, "{tool} {arguments}");
        assert_eq!(outcome(&["--preset", "ask"], tool, arguments.clone()), ask, "{tool} {arguments}");
        assert_eq!(outcome(&["--preset", "edits"], tool, arguments.clone()), edits, "{tool} {arguments}");
        assert_eq!(outcome(&["--preset", "read-only"], tool, arguments.clone()), read_only, "{tool} {arguments}");
        assert_eq!(outcome(&["--read-only"], tool, arguments.clone()), read_only, "{tool} {arguments}");
    }
}

#[test]
fn miniclaw_leaves_one_line_of_json_for_each_call_and_standard_none() {
    let cases = [
        ("read_file", json!({"path": "notes/a.txt"}), Some("notes/a.txt"), None),
        ("write_file", json!({"path": "new.txt", "content": "hunter2"}), Some("new.txt"), None),
        ("append_file", json!({"path": "notes/a.txt", "content": "hunter2"}), Some("notes/a.txt"), None),
        (
            "edit_file",
            json!({"path": "notes/a.txt", "old_text": "hunter2", "new_text": ""}),
            Some("notes/a.txt"),
            Some("edit_not_found"),
        ),
        (
            "edit_file",
            json!({"path": "notes/a.txt", "old_text": "o", "new_text": ""}),
            Some("notes/a.txt"),
            Some("ambiguous_edit"),
        ),
        ("list_dir", json!({}), Some("."), None),
        ("read_file", json!({"path": "none"}), Some("none"), Some("path_not_found")),
        ("read_file", json!({"path": "notes"}), Some("notes"), Some("io_error")),
        ("read_file", json!({"path": "../../etc"}), Some("../../etc"), Some("outside_workspace")),
        ("read_file", json!({"path": "/etc/passwd"}), None, Some("outside_workspace")),
        ("read_file", json!({"path": ".env"}), Some(".env"), Some("permission_denied")),
        ("read_file", json!({"path": ""}), None, Some("invalid_path")),
        ("read_file", json!({"path": "line\nbreak"}), Some("line\\x0abreak"), Some("path_not_found")),
        ("write_file", json!({"path": "new.txt"}), None, Some("invalid parameters")),
        ("no_such_tool", json!({}), None, Some("tool not found")),
    ];
    for (tool, arguments, path, error) in cases {
        let site = site();
        let run = |dialect: &str| site.run(&["--dialect", dialect, "call", tool, &arguments.to_string()]);
        assert_eq!(run("standard").err, "", "{tool} {arguments}");
        let said = site.run(&["--dialect", "miniclaw", "call", tool, &arguments.to_string()]);
        assert_eq!(said.err.lines().count(), 1, "{tool} {arguments}: {}", said.err);
        assert!(said.err.ends_with('\n'));
        assert!(!said.err.contains("hunter2") && !said.err.contains(site.root().to_str().unwrap()), "{}", said.err);
        let line: Value = serde_json::from_str(&said.err).unwrap();
        assert_eq!(line["tool"], tool);
        assert_eq!(line["path"].as_str(), path, "{tool} {arguments}: {line}");
        assert_eq!(line["ok"], error.is_none(), "{tool} {arguments}: {line}");
        assert_eq!(line["error"].as_str(), error, "{tool} {arguments}: {line}");
        assert!(line["durationMs"].as_f64().unwrap() >= 0.0);
        let known = ["ts", "session", "call", "tool", "path", "ok", "durationMs", "error"];
        assert!(line.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{line}");
    }
}

/// Holds every lock of the workspace, so that a change has to wait.
fn hold_all_locks(site: &TestSite) -> Vec<File> {
    site.call("write_file", &json!({"path": "first", "content": ""})).value();
    let mount = std::fs::read_dir(site.state.join("locks")).unwrap().next().unwrap().unwrap().path();
    let hold = |stripe: u32| {
        let path = mount.join(format!("{stripe:02x}"));
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path).unwrap();
        file.lock().unwrap();
        file
    };
    (0..256).map(hold).collect()
}

/// Whether the process has a lock file open and would not die of an interrupt: then it waits for the lock.
fn waits_for_a_lock(child: &Child) -> bool {
    let process = std::path::PathBuf::from(format!("/proc/{}", child.id()));
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
    let caught = caught.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    const INTERRUPT_AND_TERMINATE: u64 = 1 << 1 | 1 << 14;
    let Ok(open) = std::fs::read_dir(process.join("fd")) else { return false };
    let is_stripe = |path: std::path::PathBuf| path.iter().rev().nth(2).is_some_and(|name| name == "locks");
    caught & INTERRUPT_AND_TERMINATE == INTERRUPT_AND_TERMINATE
        && open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).any(is_stripe)
}

#[test]
fn an_interrupt_or_a_request_to_end_cancels_the_call_and_nothing_happens() {
    let site = site();
    let locks = hold_all_locks(&site);
    let before = site.tree();
    for signal in ["INT", "TERM"] {
        let mut command =
            site.command(&["--preset", "edits", "call", "write_file", r#"{"path":"README.md","content":"new"}"#]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("a call that waits for a lock", || {
            assert!(child.try_wait().unwrap().is_none(), "it does not wait");
            waits_for_a_lock(&child)
        });
        let kill = site.program("sh").args(["-c", r#"kill -"$0" "$1""#, signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let said = CliOutput { out, ..cli_output(child.wait_with_output().unwrap()) };
        assert_eq!(said.error(), "CANCELLED");
        assert_eq!(said.reply()["error"]["details"]["committed"], false);
        assert_eq!(site.tree(), before);
    }
    drop(locks);
    site.call("write_file", &json!({"path": "README.md", "content": "new"})).value();
}

#[test]
fn a_call_that_waits_for_a_lock_gives_up_at_its_deadline() {
    let site = site();
    let locks = hold_all_locks(&site);
    let config = site.root().join("quick.toml");
    std::fs::write(&config, "[limits]\nmax_tool_operation_duration = \"300ms\"\n").unwrap();
    let arguments = json!({"path": "README.md", "content": "new"});
    let said = site.call_with(&["--config", config.to_str().unwrap()], "write_file", &arguments);
    assert_eq!(said.error(), "TIMEOUT");
    assert_eq!(site.read("README.md"), "# Hi\n");
    // Reading takes no lock.
    assert_eq!(site.call("read_file", &json!({"path": "README.md"})).value()["content"], "# Hi\n");
    drop(locks);
}

#[test]
fn a_limit_on_file_sizes_is_an_error_reply_and_not_the_end() {
    // Many times, because the signal that comes with it has to find its taker at once.
    for _ in 0..10 {
        let site = site();
        let before = site.tree();
        let run = |tool: &str, path: &str| {
            let mut command = site.program("sh");
            command.args(["-c", r#"ulimit -f 8; exec "$0" "$@""#, PROGRAM]);
            command.args(["--preset", "edits", "call", tool, "-"]).arg("--workspace").arg(&site.workspace);
            run_with_input(command, json!({"path": path, "content": "x".repeat(100_000)}).to_string().as_bytes())
        };
        for (tool, path) in [("write_file", "new"), ("write_file", "README.md"), ("append_file", "notes/a.txt")] {
            let said = run(tool, path);
            assert_eq!(said.signal, None, "{tool} {path}: {said:?}");
            assert_eq!(said.error(), "WRITE_LIMIT", "{tool} {path}");
            assert_eq!(site.tree(), before, "{tool} {path}");
        }
    }
}

#[test]
fn a_closed_stdout_does_not_panic() {
    let site = site();
    let mut command = site.program("sh");
    command.args(["-c", r#""$0" "$@" | true"#, PROGRAM, "tools", "--format", "openai"]);
    let said = cli_output(command.arg("--workspace").arg(&site.workspace).output().unwrap());
    assert!(!said.err.contains("panicked"), "{}", said.err);
}
