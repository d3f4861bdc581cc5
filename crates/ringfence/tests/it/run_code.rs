//! `run_code` as callers have it: real programs in real jails, and what becomes of what they changed.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::sync::{Arc, Mutex};

use ringfence::app::{App, build_app};
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, load};
use ringfence_kernel::{Preset, ProgressListener, ProgressUpdate, ToolCall, ToolReply};
use ringfence_sandbox::{Isolation, JailFallback};
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::site::{CliOutput, PROGRAM, TestSite, cli_output};
use crate::terminal::{ASKED, TestTerminal};

/// Runs code that may change what is in the workspace.
fn run(site: &TestSite, arguments: &Value) -> CliOutput {
    run_with(site, &["--preset", "edits"], arguments)
}

pub(crate) fn run_with(site: &TestSite, options: &[&str], arguments: &Value) -> CliOutput {
    let mut command = site.command(options);
    command.args(["call", "run_code", &arguments.to_string()]);
    cli_output(command.output().unwrap())
}

pub(crate) fn bash(code: &str) -> Value {
    json!({"language": "bash", "code": code})
}

pub(crate) fn python(code: &str) -> Value {
    json!({"language": "python", "code": code})
}

/// The paths that a run changed, each with what happened to it.
fn changes(value: &Value) -> Vec<String> {
    let said = |change: &Value| format!("{} {}", change["kind"].as_str().unwrap(), change["path"].as_str().unwrap());
    value["changes"].as_array().unwrap().iter().map(said).collect()
}

/// A run of which nothing is kept because of this.
#[track_caller]
fn refused(site: &TestSite, options: &[&str], arguments: &Value, why: &str) {
    let before = site.tree();
    let error = run_with(site, options, arguments).reply()["error"].clone();
    assert_eq!(error["details"]["committed"], "none", "{error}");
    assert!(error["message"].as_str().unwrap().starts_with("not kept: "), "{error}");
    assert!(error["message"].as_str().unwrap().contains(why), "{error}");
    assert_eq!(site.tree(), before);
}

#[test]
fn the_reply_has_what_the_seed_says_and_what_was_changed() {
    let site = TestSite::new();
    site.write("a.txt", "old\n");
    let code = "import sys\nprint('out', sys.argv[1:])\nprint('err', file=sys.stderr)\nopen('a.txt','a').write('new\\n')\nopen('b.txt','w').write('b')";
    let mut arguments = python(code);
    arguments["args"] = json!(["one", "two words"]);
    let value = run(&site, &arguments).value();
    assert_eq!((&value["stdout"], &value["stderr"]), (&json!("out ['one', 'two words']\n"), &json!("err\n")));
    assert_eq!(
        (&value["exitCode"], &value["endedBy"], &value["truncated"]),
        (&json!(0), &json!("exit"), &json!(false))
    );
    assert!(value["duration"].is_u64());
    assert_eq!(
        (&value["committed"], changes(&value)),
        (&json!("all"), vec!["modified a.txt".to_owned(), "created b.txt".to_owned()])
    );
    assert!(value["walls"].as_array().unwrap().contains(&json!("seccomp filter")), "{value}");
    assert_eq!((site.read("a.txt"), site.read("b.txt")), ("old\nnew\n".to_owned(), "b".to_owned()));
}

#[test]
fn a_run_is_undone_and_brought_back_like_any_change() {
    let site = TestSite::new();
    for path in ["a", "d/one", "d/two"] {
        site.write(path, path);
    }
    let before = site.tree();
    let value =
        run(&site, &bash("echo changed > a; rm -rf d; mkdir -p new/deep; echo x > new/deep/x; ln -s a link")).value();
    let after = site.tree();
    assert_ne!(before, after);
    let change = value["change"].as_str().unwrap();
    assert_eq!(site.run(&["undo", change]).code, Some(0));
    assert_eq!(site.tree(), before);
    assert_eq!(site.run(&["redo"]).code, Some(0));
    assert_eq!(site.tree(), after);
}

#[test]
fn a_program_that_fails_is_a_success_with_its_code_and_a_signal_is_128_and_its_number() {
    let site = TestSite::new();
    let value = run(&site, &bash("echo kept > f; exit 7")).value();
    assert_eq!((&value["exitCode"], &value["committed"]), (&json!(7), &json!("all")));
    let value = run(&site, &bash("kill -SEGV $$")).value();
    assert_eq!((&value["exitCode"], &value["signal"], &value["endedBy"]), (&json!(139), &json!(11), &json!("signal")));
    assert_eq!(site.read("f"), "kept\n");
}

#[test]
fn an_aborted_run_reports_its_output_and_changes_nothing() {
    let site = TestSite::new();
    let config = site.root().join("config.toml");
    let options = ["--config", config.to_str().unwrap()];
    let endless = "print('begun', flush=True)\nopen('f','w').write('x')\n";
    let cases = [
        ("import time\ntime.sleep(60)", json!(0.5), "TIMEOUT", "timeout"),
        ("keep = []\nwhile True: keep.append(bytearray(1 << 20))", json!(30), "EXECUTION_ERROR", "memory"),
        ("while True: pass", json!(30), "EXECUTION_ERROR", "cpu"),
        ("while True: print('x' * 65536)", json!(30), "EXECUTION_ERROR", "output"),
    ];
    for (code, timeout, name, ended_by) in cases {
        // One limit in a case: near its memory limit a program spends processor time too.
        let limit = match ended_by {
            "memory" => "max_run_memory_bytes = 67108864",
            "cpu" => "max_run_cpu_duration = 1",
            _ => "",
        };
        std::fs::write(&config, format!("[limits]\n{limit}\n")).unwrap();
        let mut arguments = python(&format!("{endless}{code}"));
        arguments["timeout"] = timeout;
        let mut said = run_with(&site, &options, &arguments);
        // On a busy machine the time can be over before the program says something.
        while ended_by == "timeout" && said.reply()["error"]["details"]["stdout"] == "" {
            arguments["timeout"] = json!(arguments["timeout"].as_f64().unwrap() * 2.0);
            said = run_with(&site, &options, &arguments);
        }
        // Without control groups the kernel refuses memory, and the program hears of it and ends by itself.
        if ended_by == "memory" && said.code == Some(0) {
            let value = said.value();
            let has_groups = value["walls"].as_array().unwrap().contains(&json!("cgroup limits"));
            assert!(!has_groups && value["stderr"].as_str().unwrap().contains("MemoryError"), "{value}");
            std::fs::remove_file(site.workspace.join("f")).unwrap();
            continue;
        }
        assert_eq!(said.error(), name, "{code}");
        let details = &said.reply()["error"]["details"];
        assert!(details["stdout"].as_str().unwrap().starts_with("begun\n"), "{code}");
        assert_eq!((&details["endedBy"], &details["committed"]), (&json!(ended_by), &json!("none")), "{code}");
        assert_eq!(site.tree(), [], "{code}");
    }
}

#[test]
fn the_mode_only_tightens() {
    let site = TestSite::new();
    let mut arguments = bash("echo x > f");
    arguments["mode"] = json!("discard");
    let value = run(&site, &arguments).value();
    assert_eq!((&value["committed"], &value["exitCode"], site.tree()), (&json!("none"), &json!(0), vec![]));
    arguments["mode"] = json!("review");
    refused(&site, &[], &arguments, "requests a review");
    let unattended = site.root().join("unattended.toml");
    std::fs::write(&unattended, "[approval]\nunattended = true\n").unwrap();
    let always = ["--config", unattended.to_str().unwrap(), "--approve", "always"];
    let value = run_with(&site, &always, &arguments).value();
    assert_eq!((&value["committed"], site.read("f").as_str()), (&json!("all"), "x\n"));
    arguments["mode"] = json!("auto");
    refused(&site, &["--preset", "read-only"], &bash("echo y > f"), "read-only");
}

#[test]
fn protected_files_are_never_kept_without_approval() {
    let site = TestSite::new();
    site.write(".git/config", "[core]\n");
    for planted in [
        "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit",
        "echo x >> .git/config",
        "mkdir .vscode; echo x > .vscode/tasks.json",
        "mkdir .claude; echo x > .claude/settings.json",
        "echo x > .mcp.json",
        "echo x > .envrc",
        "mkdir -p .github/workflows; echo x > .github/workflows/ci.yml",
        "echo '*.c filter=x' > .gitattributes",
        "mkdir -p sub; echo 'gitdir: /elsewhere' > sub/.git",
        "mkdir -p bare/objects bare/refs; echo 'ref: x' > bare/HEAD; echo '[core]' > bare/config",
        "echo x > ringfence.toml",
    ] {
        for preset in ["ask", "edits"] {
            refused(&site, &["--preset", preset], &bash(planted), "not approved");
        }
    }
}

#[test]
fn rules_are_about_what_programs_do_too() {
    let site = TestSite::new();
    let config = site.root().join("config.toml");
    let options = ["--config", config.to_str().unwrap()];
    std::fs::write(&config, "[[rules]]\ndecision = \"deny\"\neffect = \"delete\"\npath = \"src/**\"\n").unwrap();
    site.write("src/main.rs", "fn main() {}\n");
    refused(&site, &options, &bash("rm src/main.rs"), "denies it");
    let options = [&options[..], &["--preset", "edits"]].concat();
    let value = run_with(&site, &options, &bash("echo >> src/main.rs")).value();
    assert_eq!(value["committed"], "all");
    std::fs::write(&config, "[[rules]]\ndecision = \"deny\"\neffect = \"run\"\n").unwrap();
    assert_eq!(run_with(&site, &options, &bash("true")).error(), "PERMISSION_DENIED");
}

#[test]
fn a_rule_about_one_file_holds_when_its_directory_goes() {
    let site = TestSite::new();
    let config = site.root().join("config.toml");
    std::fs::write(&config, "[[rules]]\ndecision = \"ask\"\neffect = \"delete\"\npath = \"d/x\"\n").unwrap();
    site.write("d/x", "x");
    site.write("d/y", "y");
    for (preset, why) in [("ask", "not approved"), ("edits", "requires approval")] {
        let options = ["--config", config.to_str().unwrap(), "--preset", preset];
        for code in ["rm d/x", "rm -rf d", "rm -rf d; echo > d", "mv d e"] {
            refused(&site, &options, &bash(code), why);
        }
    }
}

#[test]
fn programs_cannot_read_denied_files() {
    let site = TestSite::new();
    let config = site.root().join("config.toml");
    let options = ["--config", config.to_str().unwrap(), "--mount", &format!("data={}:rw", site.outside.display())];
    for path in ["private/x", "private/deep/y", "asked.txt", "open.txt", "unlisted/z"] {
        site.write(path, path);
    }
    std::os::unix::fs::symlink("private/x", site.workspace.join("link")).unwrap();
    let rules = "[[rules]]\ndecision = \"deny\"\neffect = \"read\"\npath = \"private/**\"\n\
                 [[rules]]\ndecision = \"ask\"\neffect = \"read\"\npath = \"asked.txt\"\n\
                 [[rules]]\ndecision = \"deny\"\neffect = \"list\"\npath = \"unlisted\"\n\
                 [[rules]]\ndecision = \"deny\"\neffect = \"read\"\nmount = \"data\"\n";
    std::fs::write(&config, rules).unwrap();
    let code = "cat private/x private/deep/y link unlisted/z 2>/dev/null; cat asked.txt open.txt /mnt/data/secret";
    let value = run_with(&site, &options, &bash(code)).value();
    assert_eq!((&value["stdout"], &value["stderr"]), (&json!("open.txt"), &json!("")), "{value}");
    assert_eq!(site.read("private/x"), "private/x");
}

#[test]
fn uncommittable_entries_are_refused_with_a_reason() {
    let site = TestSite::new();
    site.write("a", "a");
    refused(&site, &[], &bash("mkfifo pipe"), "`pipe`");
    refused(&site, &[], &bash("ln -s /etc/passwd out"), "`out`");
    refused(&site, &[], &bash("ln -s ../outside/secret out"), "`out`");
    refused(&site, &[], &python("import socket\nsocket.socket(socket.AF_UNIX).bind('sock')"), "`sock`");
    let value = run(&site, &bash("ln a b; chmod 4755 b || chmod 755 b; ln -s a c")).value();
    assert_eq!(value["committed"], "all", "{value}");
    let [one, other] = ["a", "b"].map(|name| std::fs::metadata(site.workspace.join(name)).unwrap());
    assert_ne!(one.ino(), other.ino());
    assert_eq!(other.permissions().mode() & 0o7000, 0);
}

#[test]
fn a_recreated_directory_hides_no_delete() {
    let site = TestSite::new();
    for path in ["d/one", "d/two", "d/deep/three"] {
        site.write(path, path);
    }
    let value = run(&site, &bash("rm -rf d; mkdir d; echo x > d/two")).value();
    let expected = ["deleted d/deep", "deleted d/one", "modified d/two"];
    assert_eq!(changes(&value), expected, "{value}");
    assert_eq!(site.tree(), [("d".to_owned(), None), ("d/two".to_owned(), Some(b"x\n".to_vec()))]);
}

#[test]
fn a_program_finds_secrets_empty_and_nothing_of_ours() {
    let site = TestSite::new();
    site.write(".env", "KEY=1\n");
    site.write("deep/id_rsa", "PRIVATE\n");
    site.call("write_file", &json!({"path": "f", "content": "x"})).value();
    let value = run(&site, &bash("cat .env deep/id_rsa; ls .ringfence | wc -l; ls / | tr '\\n' ' '")).value();
    assert!(value["stdout"].as_str().unwrap().starts_with("0\nbin "), "{value}");
    assert_eq!(value["totalChanges"], 0, "{value}");
    assert_eq!(site.read(".env"), "KEY=1\n");
}

#[test]
fn arguments_that_cannot_be_meant_are_refused_before_anything_runs() {
    let site = TestSite::new();
    let with = |key: &str, value: Value| {
        let mut arguments = bash("true");
        arguments[key] = value;
        run(&site, &arguments).error()
    };
    for (key, value) in [
        ("timeout", json!(0)),
        ("timeout", json!(-1)),
        ("timeout", json!(601)),
        ("language", json!("perl")),
        ("mode", json!("yolo")),
        ("args", json!(["a\u{0}b"])),
        ("env", json!({"LD_PRELOAD": "/workspace/evil.so"})),
        ("env", json!({"A=B": "c"})),
        ("stdin", json!("x")),
    ] {
        assert_eq!(with(key, value.clone()), "INVALID_ARGS", "{key} {value}");
    }
    assert_eq!(with("network", json!(["http://example.com/"])), "INVALID_ARGS");
    // A host is asked about before anything runs.
    assert_eq!(with("network", json!(["example.com"])), "APPROVAL_DENIED");
}

#[test]
fn a_host_is_judged_by_the_one_name_that_it_has_however_it_is_spelled() {
    let site = TestSite::new();
    let rule = |decision: &str, host: &str| format!("[[rules]]\ndecision = \"{decision}\"\nhost = \"{host}\"\n");
    let config = rule("deny", "93.184.216.34") + &rule("deny", "[2001:4860::8888]") + &rule("allow", "*");
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), config).unwrap();
    for host in ["93.184.216.34", "1572395042:80", "0x5db8d822:80", "93.12113954:443", "[2001:4860:0:0::8888]:443"] {
        let mut arguments = bash("true");
        arguments["network"] = json!([host]);
        assert_eq!(run(&site, &arguments).error(), "PERMISSION_DENIED", "{host}");
    }
}

#[test]
fn hosts_are_shown_before_anything_that_a_caller_makes_long() {
    let site = TestSite::new();
    let many: Vec<String> = (0..99).map(|number| format!("h{number}.{}.org", "a".repeat(20))).collect();
    for others in [&[] as &[String], &many] {
        let hosts: Vec<&str> = others.iter().map(String::as_str).chain(["evil.example.org"]).collect();
        let mut arguments = bash("true");
        arguments["args"] = json!(["x".repeat(3000)]);
        arguments["env"] = json!({"A": "y".repeat(3000)});
        arguments["network"] = json!(hosts);
        let mut terminal = TestTerminal::new(&site, &["call", "run_code", &arguments.to_string()]);
        terminal.until(&format!("run 1 line of bash code, which may reach {}:443", hosts[0]));
        terminal.until(ASKED);
        let waiting: Value = serde_json::from_str(&site.run(&["approvals", "list", "--json"]).out).unwrap();
        let (summary, preview) = (waiting[0]["summary"].as_str().unwrap(), waiting[0]["preview"].as_str().unwrap());
        assert_eq!(summary.contains(" more"), !others.is_empty(), "{summary}");
        assert!(!summary.contains("(cut: "), "{summary}");
        for host in hosts {
            assert!(preview.contains(&format!(" {host}:443")), "no {host} in {preview}");
        }
        for words in ["\nwith the arguments [\"xxx", "\nwith the variables {\"A\": \"yyy", "\ntrue"] {
            assert!(preview.contains(words), "no {words:?} in {preview}");
        }
        terminal.press("n");
        terminal.until("reason (optional");
        terminal.press("\r");
        assert_eq!(terminal.end().code, Some(1));
    }
}

#[test]
fn a_program_gets_its_variables_and_finds_the_modules_beside_it() {
    let site = TestSite::new();
    site.write("helper.py", "def word(): return 'helped'\n");
    let mut arguments = python(
        "import helper, os\nprint(helper.word(), os.environ['GREETING'], os.environ.get('RINGFENCE_STATE_DIR'))",
    );
    arguments["env"] = json!({"GREETING": "hello"});
    let value = run(&site, &arguments).value();
    assert_eq!((&value["stdout"], &value["totalChanges"]), (&json!("helped hello None\n"), &json!(0)), "{value}");
}

#[test]
fn isolation_denials_are_explained_and_odd_output_is_kept() {
    let site = TestSite::new();
    let value = run(&site, &bash("echo x > /usr/evil")).value();
    assert_eq!(value["denied"]["writable"], json!(["/workspace", "/tmp"]), "{value}");
    let value = run(&site, &bash(r"printf 'a\xffb\0c'")).value();
    assert_eq!(value["stdout"], "a\\xffb\u{0}c");
}

#[test]
fn other_mounts_are_beside_the_workspace_to_be_read() {
    let site = TestSite::new();
    let mount = format!("data={}:rw", site.outside.display());
    let code = "cat /mnt/data/secret; echo x > /mnt/data/new";
    let value = run_with(&site, &["--mount", &mount], &bash(code)).value();
    assert_eq!((&value["stdout"], &value["exitCode"]), (&json!("SECRET\n"), &json!(1)), "{value}");
    assert!(!site.outside.join("new").exists());
}

/// Does something as soon as the program prints.
struct OutputListener<F>(F, Mutex<String>);

impl<F> std::fmt::Debug for OutputListener<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnOutput")
    }
}

impl<F: Fn() + Send + Sync> ProgressListener for OutputListener<F> {
    fn on_progress(&self, progress: &ProgressUpdate<'_>) {
        self.1.lock().unwrap().push_str(progress.text);
        (self.0)();
    }
}

pub(crate) fn test_app(site: &TestSite) -> App {
    build_app_with(site, JailFallback::None)
}

fn build_app_with(site: &TestSite, fallback: JailFallback) -> App {
    let environment = site.environment();
    let workspace = Some(site.workspace.to_str().unwrap().to_owned());
    let flags = CliFlags { workspace, preset: Some(Preset::Edits), ..CliFlags::default() };
    let mut settings = load(&flags, &environment).unwrap();
    settings.run_code.fallback = fallback;
    build_app(settings, &environment, Box::new(deny_all())).unwrap()
}

/// Runs code, and does something when it prints.
pub(crate) fn run_with_listener(
    app: &App,
    arguments: &Value,
    cancel: &CancellationToken,
    act: impl Fn() + Send + Sync + 'static,
) -> (ToolReply, String) {
    let listener = Arc::new(OutputListener(act, Mutex::default()));
    let heard: Arc<dyn ProgressListener> = listener.clone();
    let call = ToolCall { id: "1".to_owned(), name: "run_code".to_owned(), arguments: arguments.to_string() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(app.host.call_with_progress(&app.session, call, cancel, Some(heard))).unwrap();
    let printed = listener.1.lock().unwrap().clone();
    (reply, printed)
}

#[test]
fn output_is_heard_as_it_comes_and_a_cancel_ends_the_program() {
    let site = TestSite::new();
    let app = test_app(&site);
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    let code = "print('begun', flush=True)\nopen('f','w').write('x')\nimport time\ntime.sleep(60)";
    let (reply, printed) = run_with_listener(&app, &python(code), &cancel, move || stop.cancel());
    let reply: Value = serde_json::from_str(&reply.text).unwrap();
    assert_eq!(reply["error"]["code"], "CANCELLED", "{reply}");
    assert_eq!((&reply["error"]["details"]["stdout"], printed.as_str()), (&json!("begun\n"), "begun\n"));
    assert_eq!(site.tree(), []);
}

#[test]
fn by_the_systems_bwrap_the_workspace_is_read_only_and_the_reply_says_so() {
    const PLAIN: u32 = 60_603;
    let bwrap = ringfence_sandbox::probe(std::path::Path::new(PROGRAM));
    if let Some(missing) = bwrap.iter().find(|status| status.mechanism == Isolation::Bwrap && !status.available) {
        return skip_without(Requirement::Bwrap, &missing.note);
    }
    let site = TestSite::new();
    site.write("a.txt", "old\n");
    site.write(".env", "SECRET=1");
    if rustix::process::geteuid().is_root() {
        // No program is root, and `bwrap` shows owners as they are.
        let above = site.workspace.ancestors().take_while(|path| path.starts_with(std::env::temp_dir()));
        let above = above.filter(|path| *path != std::env::temp_dir());
        above.for_each(|path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap());
        for path in [site.workspace.clone(), site.workspace.join("a.txt"), site.workspace.join(".env")] {
            chown(path, Some(PLAIN), Some(PLAIN)).unwrap();
        }
    }
    let app = build_app_with(&site, JailFallback::Forced);
    let code = bash("cat a.txt .env; id -u; echo new > b.txt");
    let (reply, printed) = run_with_listener(&app, &code, &CancellationToken::new(), || {});
    let reply: Value = serde_json::from_str(&reply.text).unwrap();
    let value = &reply["value"];
    assert_eq!((&value["stdout"], printed.contains("old")), (&json!("old\n1000\n"), true), "{reply}");
    assert_eq!((&value["exitCode"], &value["committed"], &value["changes"]), (&json!(1), &json!("none"), &json!([])));
    assert_eq!(value["denied"]["writable"], json!(["/tmp"]), "{reply}");
    let walls = value["walls"].as_array().unwrap();
    assert!(walls.contains(&json!("fallback to the system's bwrap, workspace read-only")), "{reply}");
    assert!(walls.contains(&json!("Landlock")) && !walls.contains(&json!("overlay in a user namespace")), "{reply}");
    assert!(!site.workspace.join("b.txt").exists());
}

#[test]
fn concurrent_edits_are_conflicts_and_stay() {
    let site = TestSite::new();
    for path in ["a", "b", "d/e"] {
        site.write(path, "old");
    }
    // The overlay remembers a missing name, so the sign is in a file that exists.
    site.write("sign", "");
    let app = test_app(&site);
    let root = site.workspace.clone();
    let code = "import time\nfor p in ('a','b','d/e'): open(p,'w').write('program')\nprint('begun', flush=True)\n\
                while not open('sign').read(): time.sleep(0.01)";
    let (reply, _) = run_with_listener(&app, &python(code), &CancellationToken::new(), move || {
        std::fs::write(root.join("b"), "person").unwrap();
        std::fs::write(root.join("sign"), "go").unwrap();
    });
    let reply: Value = serde_json::from_str(&reply.text).unwrap();
    let error = &reply["error"];
    assert_eq!((&error["code"], &error["details"]["committed"]), (&json!("CONFLICT"), &json!("some")), "{reply}");
    assert!(error["message"].as_str().unwrap().starts_with("not kept: `b`: "), "{reply}");
    let [a, b, e] = ["a", "b", "d/e"].map(|path| site.read(path));
    assert_eq!([a.as_str(), &b, &e], ["program", "person", "program"]);
}

#[test]
fn started_by_root_or_by_anybody_the_files_are_the_workspaces_owners() {
    const PLAIN: u32 = 60_602;
    if !rustix::process::geteuid().is_root() {
        return skip_without(Requirement::Root, "only root starts a program as another user");
    }
    let site = TestSite::new();
    // Started by root, on another user's workspace.
    for made in [&site.workspace, &site.home, &site.current, &site.config] {
        chown(made, Some(PLAIN), Some(PLAIN)).unwrap();
    }
    let owner = |name: &str| std::fs::metadata(site.workspace.join(name)).unwrap().uid();
    let value = run(&site, &bash("id -u; echo x > f; mkdir d; echo y > d/g")).value();
    assert_eq!((&value["stdout"], &value["committed"]), (&json!("1000\n"), &json!("all")), "{value}");
    assert_eq!(["f", "d", "d/g"].map(owner), [PLAIN; 3]);
    // Started by them.
    let stage = tempfile::tempdir().unwrap();
    std::fs::set_permissions(stage.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(site.root(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = stage.path().join("ringfence");
    ringfence_testkit::executable::copy_executable(PROGRAM.as_ref(), &program);
    let state = site.root().join("plain-state");
    std::fs::create_dir(&state).unwrap();
    chown(&state, Some(PLAIN), Some(PLAIN)).unwrap();
    let keep = site.workspace.join(".ringfence");
    std::fs::remove_dir_all(keep).unwrap();
    let mut command = site.program(program);
    command.env("RINGFENCE_STATE_DIR", &state).uid(PLAIN).gid(PLAIN).arg("--workspace").arg(&site.workspace);
    command.args(["--preset", "edits", "call", "run_code", &bash("id -u; echo z > h; rm f").to_string()]);
    let value = cli_output(command.output().unwrap()).value();
    assert_eq!((&value["stdout"], &value["committed"]), (&json!("1000\n"), &json!("all")), "{value}");
    assert_eq!((owner("h"), site.workspace.join("f").exists()), (PLAIN, false));
}

#[test]
fn doctor_names_every_wall_and_says_whether_programs_can_be_run() {
    let site = TestSite::new();
    let said = site.run(&["doctor"]);
    assert!(said.out.contains("user namespace") && said.out.contains("programs can"), "{said:?}");
    let said = site.run(&["doctor", "--json"]);
    let all: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(all["isolation"].as_array().unwrap().len(), Isolation::ALL.len());
    assert_eq!(all["clients"], json!([]));
}
