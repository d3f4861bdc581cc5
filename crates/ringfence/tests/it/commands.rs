//! Command tools of the model families, and background jobs: real shells in real jails, and the texts that a model reads.

use std::collections::BTreeSet;

use ringfence::app::{App, build_app};
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, load};
use ringfence_kernel::{Approver, Dialect, Preset, ToolCall};
use ringfence_testkit::approver::ScriptedApprover;
use ringfence_testkit::mcp_client::StdioMcpClient;
use ringfence_testkit::patience::wait_until;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::wait_for_run;
use crate::api_client::TestApiServer;
use crate::site::TestSite;

/// First part of a job that goes on only after `CommandSite::release`, which reaches it on the loopback of the session.
const GATE: &str = "python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 8999)).accept()'";

/// A command that connects to it.
const RELEASE: &str = "until (exec 3<>/dev/tcp/127.0.0.1/8999) 2>/dev/null; do :; done";

/// A session in a dialect, on a workspace of its own.
struct CommandSite {
    site: TestSite,
    app: App,
}

impl CommandSite {
    fn new(dialect: Dialect) -> Self {
        Self::with_config(dialect, "")
    }

    fn with_config(dialect: Dialect, config: &str) -> Self {
        Self::with_approver(dialect, config, Box::new(deny_all()))
    }

    fn with_approver(dialect: Dialect, config: &str, approver: Box<dyn Approver>) -> Self {
        let site = TestSite::new();
        let environment = site.environment();
        let workspace = Some(site.workspace.to_str().unwrap().to_owned());
        let file = site.root().join("config.toml");
        std::fs::write(&file, config).unwrap();
        let flags = CliFlags { config: Some(file), workspace, preset: Some(Preset::Edits), ..CliFlags::default() };
        let mut settings = load(&flags, &environment).unwrap();
        settings.dialect = dialect;
        let app = build_app(settings, &environment, approver).unwrap();
        Self { site, app }
    }

    /// The text that the model reads, and whether the call succeeded.
    fn call(&self, tool: &str, arguments: &Value) -> (String, bool) {
        let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let reply = runtime.block_on(self.app.host.call(&self.app.session, call, &CancellationToken::new())).unwrap();
        (reply.text, reply.outcome.is_ok())
    }

    #[track_caller]
    fn text(&self, tool: &str, arguments: &Value) -> String {
        let (text, is_ok) = self.call(tool, arguments);
        assert!(is_ok, "{tool} {arguments}: {text}");
        without_times(&text)
    }

    #[track_caller]
    fn error(&self, tool: &str, arguments: &Value) -> String {
        let (text, is_ok) = self.call(tool, arguments);
        assert!(!is_ok, "{tool} {arguments}: {text}");
        without_times(&text)
    }

    #[track_caller]
    fn bash(&self, command: &str) -> String {
        self.text("Bash", &json!({"command": command}))
    }

    /// Lets a job go on that waits at `GATE`.
    #[track_caller]
    fn release(&self) {
        match self.app.session.dialect {
            Dialect::Gemini => self.text("run_shell_command", &json!({"command": RELEASE})),
            _ => self.bash(RELEASE),
        };
    }

    /// Starts a job, and waits until it has printed `ready`.
    #[track_caller]
    fn start_ready(&self, start: (&str, &Value), look: (&str, &Value)) {
        if !self.text(start.0, start.1).contains("ready\n") {
            self.output_with(look.0, look.1, "ready\n");
        }
    }

    /// Asks until the output so far has this in it.
    #[track_caller]
    fn output_with(&self, tool: &str, arguments: &Value, wanted: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            seen += &self.text(tool, arguments);
        }
        seen
    }
}

/// A reply without the time that it took and the ID of its change, which differ.
pub(crate) fn without_times(text: &str) -> String {
    let Some((body, line)) = text.rsplit_once('[') else { return text.to_owned() };
    let mut kept: Vec<String> = Vec::new();
    for part in line.split(", ") {
        let is_time = part.trim_end_matches(']').strip_suffix(" s").is_some_and(|number| number.parse::<f64>().is_ok());
        match part.split_once("(c-") {
            _ if is_time && part.ends_with(']') => {
                if let Some(last) = kept.last_mut() {
                    last.push(']');
                }
            }
            _ if is_time => {}
            Some((before, after)) => {
                kept.push(format!("{before}(c-…{}", after.find(')').map_or("", |end| &after[end..])));
            }
            None => kept.push(part.to_owned()),
        }
    }
    format!("{body}[{}", kept.join(", "))
}

#[test]
fn a_command_is_its_output_and_one_line() {
    let site = CommandSite::new(Dialect::Claude);
    assert_eq!(site.bash("echo out; echo err >&2; echo more"), "out\nerr\nmore\n[exit 0]");
    assert_eq!(site.bash("true"), "[exit 0]");
    assert_eq!(site.bash("exit 3"), "[exit 3]");
    assert_eq!(site.bash("kill -SEGV $$"), "[exit 139 (signal 11)]");
    let wrong = site.bash("if then");
    assert!(wrong.contains("syntax error near unexpected token") && wrong.ends_with("\n[exit 2]"), "{wrong}");
    assert_eq!(site.bash("mkdir src; echo a > src/a; echo b > b"), "[exit 0, changed 3 files (c-…): b src src/a]");
    assert_eq!(site.site.read("src/a"), "a\n");
    assert_eq!(site.bash("echo $0 $#; cat <<E\nx\nE"), "bash 0\nx\n[exit 0]");
    let long = site.bash("seq 1 100000");
    assert!(long.starts_with("1\n2\n") && long.ends_with("\n99999\n100000\n[exit 0]"), "{}", &long[..100]);
    assert!(long.contains(" bytes omitted; the whole output is @output/") && long.len() < 32_000, "{}", long.len());
    for name in ["cmd", "code"] {
        assert_eq!(site.text("Bash", &json!({name: "echo x", "timeout": "5000", "description": "d"})), "x\n[exit 0]");
    }
}

#[test]
fn the_working_directory_is_carried_and_falls_back_to_the_workspace() {
    let site = CommandSite::new(Dialect::Claude);
    site.site.write("src/deep/a", "");
    assert_eq!(site.bash("cd src; pwd"), "/workspace/src\n[exit 0, now in src]");
    assert_eq!(site.bash("ls; cd deep; exit 4"), "deep\n[exit 4, now in src/deep]");
    assert_eq!(site.bash("pwd; cd /tmp"), "/workspace/src/deep\n[exit 0, now in /tmp]");
    assert_eq!(site.bash("pwd; cd /workspace/src/deep"), "/tmp\n[exit 0, now in src/deep]");
    std::fs::remove_dir_all(site.site.workspace.join("src")).unwrap();
    let gone = site.bash("pwd");
    assert_eq!(gone, "[the directory `src/deep` is gone; this ran in the workspace]\n/workspace\n[exit 0]");
    assert_eq!(site.bash("pwd"), "/workspace\n[exit 0]");
    // A program that says something else than a directory changes nothing.
    assert_eq!(site.bash("echo nonsense >&10; exec true"), "[exit 0]");
    assert_eq!(site.bash("cd .. && pwd"), "/\n[exit 0, now in /]");
}

#[test]
fn the_report_of_the_directory_reaches_no_file_of_the_command() {
    let site = CommandSite::new(Dialect::Claude);
    site.site.write("src/a", "");
    for descriptor in [9, 10] {
        let command = format!("cd src; exec {descriptor}>.lock; flock {descriptor}; echo held >&{descriptor}");
        let text = site.bash(&command);
        assert!(text.contains("changed 1 file (c-…): src/.lock]"), "{text}");
        assert_eq!(site.site.read("src/.lock"), "held\n", "{descriptor}");
        std::fs::remove_file(site.site.workspace.join("src/.lock")).unwrap();
        site.bash("cd /workspace");
    }
    assert_eq!(
        site.bash("cd src; exec 9>.lock; set | grep -c ^d="),
        "0\n[exit 1, now in src, changed 1 file (c-…): src/.lock]"
    );
}

#[test]
fn what_was_not_kept_is_the_first_line_of_an_error() {
    let site = CommandSite::new(Dialect::Claude);
    let text = site.error("Bash", &json!({"command": "mkdir .vscode; echo '{}' > .vscode/settings.json; echo done"}));
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("not kept: `.vscode"), "{text}");
    assert_eq!(lines.collect::<Vec<_>>(), ["done", "[exit 0]"]);
    let text = site.error("Bash", &json!({"command": "echo begun; sleep 60", "timeout": 3000}));
    assert_eq!(text, "the program was terminated after 3 s; its changes were discarded\nbegun");
    let text = site.error("Bash", &json!({"command": "true", "timeout": 700_000}));
    assert_eq!(text, "timeout must be at most 600 seconds");
}

#[test]
fn a_command_that_only_applies_a_patch_is_a_call_of_apply_patch() {
    let patch = "apply_patch <<'PATCH'\n*** Begin Patch\n*** Update File: a\n@@\n-one\n+1\n*** End Patch\nPATCH";
    let site = CommandSite::new(Dialect::Codex);
    site.site.write("src/a", "one\n");
    for command in [json!({"cmd": patch, "workdir": "src"}), json!({"cmd": format!("cd src && {patch}")})] {
        site.site.write("src/a", "one\n");
        let said = site.text("exec_command", &command);
        assert!(said.starts_with("M src/a (c-"), "{said}");
        assert_eq!(site.site.read("src/a"), "1\n");
    }
    let (outside, is_ok) = site.call("exec_command", &json!({"cmd": patch, "workdir": "../.."}));
    assert_eq!((outside.as_str(), is_ok), ("`../../a` leads outside the workspace", false));
    // Another program in the same command: the shell knows no such program.
    let both = site.text("exec_command", &json!({"cmd": format!("{patch}\necho done")}));
    assert!(both.ends_with("done\n[exit 0]") && both.contains("apply_patch"), "{both}");
    // The rules are those of the tool that changes files.
    let rule = "[[rules]]\ndecision = \"deny\"\ntool = \"apply_patch\"\neffect = \"overwrite\"\n";
    let site = CommandSite::with_config(Dialect::Codex, rule);
    site.site.write("a", "one\n");
    let (said, is_ok) = site.call("exec_command", &json!({"cmd": patch}));
    assert!(!is_ok && site.site.read("a") == "one\n", "{said}");
    // Without that tool it is a command.
    let site = CommandSite::with_config(Dialect::Codex, "[tools]\ndeny = [\"apply_patch\"]\n");
    let (said, _) = site.call("exec_command", &json!({"cmd": patch}));
    assert!(said.ends_with("[exit 127]"), "{said}");
}

#[test]
fn each_family_has_its_own_names_and_arguments() {
    let site = CommandSite::new(Dialect::Codex);
    site.site.write("src/a", "");
    assert_eq!(site.text("exec_command", &json!({"cmd": "pwd; ls", "workdir": "src"})), "/workspace/src\na\n[exit 0]");
    let absolute = json!({"command": "pwd; cd /", "workdir": "/workspace/src", "yield_time_ms": 60_000});
    assert_eq!(site.text("exec_command", &absolute), "/workspace/src\n[exit 0]");
    assert_eq!(site.text("exec_command", &json!({"cmd": "pwd"})), "/workspace\n[exit 0]");
    let missing = site.text("exec_command", &json!({"cmd": "echo ran", "workdir": "none"}));
    assert!(missing.contains("No such file or directory") && missing.ends_with("\n[exit 1]"), "{missing}");
    let short = site.text("exec_command", &json!({"cmd": "seq 1 1000", "max_output_tokens": "250"}));
    assert!(short.contains("bytes omitted; the whole output is @output/") && short.len() < 1100, "{short}");
    let site = CommandSite::new(Dialect::Gemini);
    site.site.write("src/a", "");
    let listed = site.text("run_shell_command", &json!({"command": "ls", "dir_path": "src", "description": "list"}));
    assert_eq!(listed, "a\n[exit 0]");
}

#[test]
fn a_server_is_started_asked_and_stopped_in_four_calls() {
    const SERVER: &str = "echo hello > index.html; exec python3 -u -m http.server 8000 --bind 127.0.0.1";
    const ASK: &str =
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8000/index.html\").read())'";
    let site = CommandSite::new(Dialect::Claude);
    let started = site.text("Bash", &json!({"command": SERVER, "run_in_background": true}));
    assert!(started.contains("[running in the background: task_id 1; TaskOutput has its output"), "{started}");
    assert!(started.contains("127.0.0.1"), "said with the first job: {started}");
    if !started.contains("Serving HTTP") {
        site.output_with("TaskOutput", &json!({"task_id": "1", "block": false}), "Serving HTTP");
    }
    assert_eq!(site.bash(ASK), "b'hello\\n'\n[exit 0]");
    let seen = site.output_with("TaskOutput", &json!({"task_id": 1, "timeout": 10}), "GET /index.html");
    assert!(seen.ends_with("[task_id 1 is running]"), "{seen}");
    let stopped = site.text("TaskStop", &json!({"task_id": "1"}));
    assert_eq!(stopped, "[stopped, discarded changes of 1 file: index.html]");
    assert!(!site.site.workspace.join("index.html").exists());
    let refused = site.bash(&format!("{ASK} 2>&1 | tail -1"));
    assert!(refused.contains("refused"), "{refused}");
    assert_eq!(site.error("TaskOutput", &json!({"task_id": "1"})), "job 1 has ended, and its end was reported");
}

#[test]
fn changes_of_a_job_are_kept_when_it_ended_by_itself() {
    let site = CommandSite::new(Dialect::Gemini);
    let job = format!("{GATE}; echo new > a; echo done");
    site.text("run_shell_command", &json!({"command": job, "is_background": true}));
    site.release();
    let ended = site.text("read_background_output", &json!({"pid": 1, "delay_ms": 600_000}));
    assert_eq!(ended, "done\n[exit 0, changed 1 file (c-…): a]");
    assert_eq!(site.site.read("a"), "new\n");
    // One that ends at once has ended with the call that started it.
    let short = site.text("run_shell_command", &json!({"command": "echo short > b", "is_background": true}));
    if short.starts_with("[running") {
        site.output_with("read_background_output", &json!({"pid": 2, "delay_ms": 1000}), "changed 1 file");
    }
    assert_eq!(site.site.read("b"), "short\n");
    // A stopped one can be kept by choice.
    let job = json!({"command": "echo c > c; echo ready; sleep 1000", "is_background": true});
    site.start_ready(("run_shell_command", &job), ("read_background_output", &json!({"pid": 3})));
    let kept = json!({"pid": 3, "keep_changes": true});
    assert_eq!(site.text("stop_background_command", &kept), "[stopped, changed 1 file (c-…): c]");
    assert_eq!(site.site.read("c"), "c\n");
    // What may not be kept is an error, as with any command.
    let job = format!("mkdir .vscode; echo > .vscode/tasks.json; {GATE}");
    site.text("run_shell_command", &json!({"command": job, "is_background": true}));
    site.release();
    let refused = site.error("read_background_output", &json!({"pid": 4, "delay_ms": 600_000}));
    assert!(refused.starts_with("not kept: `.vscode"), "{refused}");
}

#[test]
fn a_job_starts_where_the_session_is_and_does_not_move_it() {
    let site = CommandSite::new(Dialect::Claude);
    site.site.write("src/deep/a", "");
    site.bash("cd src");
    site.text("Bash", &json!({"command": format!("{GATE}; pwd; cd deep"), "run_in_background": true}));
    site.release();
    let ended = site.text("TaskOutput", &json!({"task_id": "1", "timeout": 600_000}));
    assert_eq!(ended, "/workspace/src\n[exit 0]");
    assert_eq!(site.bash("pwd"), "/workspace/src\n[exit 0, now in src]");
    std::fs::remove_dir_all(site.site.workspace.join("src")).unwrap();
    site.text("Bash", &json!({"command": format!("{GATE}; pwd"), "run_in_background": true}));
    site.release();
    let ended = site.output_with("TaskOutput", &json!({"task_id": "2", "timeout": 600_000}), "[exit 0]");
    assert!(ended.ends_with("/workspace\n[exit 0]"), "{ended}");
}

#[test]
fn rules_about_a_run_hold_for_the_changes_of_its_job() {
    for tool in ["run_code", "Bash"] {
        let rule = format!("[[rules]]\ndecision = \"deny\"\ntool = \"{tool}\"\neffect = \"delete\"\n");
        let site = CommandSite::with_config(Dialect::Claude, &rule);
        site.site.write("a", "");
        let refused = site.error("Bash", &json!({"command": "rm a"}));
        assert!(refused.starts_with("not kept: `a`"), "{refused}");
        site.text("Bash", &json!({"command": format!("{GATE}; rm a; echo b > b"), "run_in_background": true}));
        site.release();
        let refused = site.error("TaskOutput", &json!({"task_id": "1", "timeout": 600_000}));
        assert!(refused.starts_with("not kept: `a`") && refused.contains("1 other change was kept"), "{refused}");
        assert!(site.site.workspace.join("a").exists() && site.site.workspace.join("b").exists());
    }
}

#[test]
fn a_cancelled_start_leaves_no_job() {
    let site = CommandSite::new(Dialect::Codex);
    let cancel = CancellationToken::new();
    let call = ToolCall {
        id: "1".to_owned(),
        name: "exec_command".to_owned(),
        arguments: json!({"cmd": "echo x > x; sleep 1000", "yield_time_ms": 600_000}).to_string(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let jobs = || site.app.commands.jobs(&site.app.session.id).len();
    let reply = runtime.block_on(async {
        let stop = cancel.clone();
        let started = async {
            while jobs() == 0 {
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        tokio::join!(site.app.host.call(&site.app.session, call, &cancel), started).0.unwrap()
    });
    assert!(reply.outcome.is_err(), "{}", reply.text);
    wait_until("the end of the job", || jobs() == 0);
}

#[test]
fn a_file_that_changed_under_a_job_is_a_conflict() {
    let site = CommandSite::new(Dialect::Claude);
    site.site.write("a", "old\n");
    let job = json!({"command": format!("read x < a; echo $x job > a; echo ready; {GATE}"), "run_in_background": true});
    site.start_ready(("Bash", &job), ("TaskOutput", &json!({"task_id": "1", "block": false})));
    site.site.write("a", "another writer's\n");
    site.release();
    let text = site.error("TaskOutput", &json!({"task_id": "1", "timeout": 600_000}));
    assert!(text.starts_with("not kept: `a`"), "{text}");
    assert_eq!(site.site.read("a"), "another writer's\n");
}

#[test]
fn a_command_that_goes_on_is_polled_written_to_and_interrupted() {
    let site = CommandSite::new(Dialect::Codex);
    let started = site
        .text("exec_command", &json!({"cmd": "while read l; do echo got $l; done", "yield_time_ms": 10, "tty": true}));
    assert!(started.contains("session_id 1"), "{started}");
    let write = |chars: &str| json!({"session_id": 1, "chars": chars, "yield_time_ms": 10});
    let mut seen = site.text("write_stdin", &write("one\n"));
    while !seen.contains("got one") {
        seen += &site.text("write_stdin", &write(""));
    }
    let polled = site.text("write_stdin", &write(""));
    assert_eq!(polled, "[session_id 1 is running]", "only what is new");
    assert_eq!(site.text("write_stdin", &write("\u{3}")), "[stopped]");
    // Without a terminal there is nothing to read.
    assert_eq!(site.text("exec_command", &json!({"cmd": "cat", "yield_time_ms": 60_000})), "[exit 0]");
    site.text("exec_command", &json!({"cmd": "sleep 1000", "yield_time_ms": 10}));
    let refused = site.error("write_stdin", &json!({"session_id": 3, "chars": "x"}));
    assert!(refused.starts_with("job 3 has no standard input"), "{refused}");
}

#[test]
fn input_of_a_job_is_code_and_asked_about_as_its_start() {
    const ASK: &str = "[[rules]]\ndecision = \"ask\"\ntool = \"exec_command\"\neffect = \"run\"\n";
    let shown = ScriptedApprover::approving();
    let site = CommandSite::with_approver(Dialect::Codex, ASK, Box::new(shown.clone()));
    site.text("exec_command", &json!({"cmd": "exec bash", "yield_time_ms": 10, "tty": true}));
    let write = |chars: &str, wait: u64| json!({"session_id": 1, "chars": chars, "yield_time_ms": wait});
    site.text("write_stdin", &write("", 10));
    let ended = site.text("write_stdin", &write("echo made > a; exit\n", 600_000));
    assert_eq!(ended, "[exit 0, changed 1 file (c-…): a]");
    let shown: Vec<String> = shown.asked.lock().unwrap().iter().map(|request| request.preview.text()).collect();
    assert_eq!(shown.len(), 2, "a look is not asked about: {shown:?}");
    assert!(shown[0].contains("later calls may write to its standard input"), "{}", shown[0]);
    assert!(shown[1].contains("write to the standard input of background job 1"), "{}", shown[1]);
    assert!(shown[1].contains("exec bash") && shown[1].contains("echo made > a; exit"), "{}", shown[1]);
    // A rule about the tool that writes holds as well.
    let deny = "[[rules]]\ndecision = \"deny\"\ntool = \"write_stdin\"\neffect = \"run\"\n";
    let site = CommandSite::with_config(Dialect::Codex, deny);
    site.text("exec_command", &json!({"cmd": "exec bash", "yield_time_ms": 10, "tty": true}));
    let refused = site.error("write_stdin", &write("echo made > a\n", 10));
    assert!(refused.starts_with("this would run `bash`, and the rule `rule 1` of your config denies it"), "{refused}");
    site.text("write_stdin", &write("", 10));
    assert_eq!(site.text("write_stdin", &write("\u{3}", 10)), "[stopped]");
}

#[test]
fn the_first_job_of_a_session_says_how_jobs_behave() {
    let site = CommandSite::new(Dialect::Codex);
    site.text("exec_command", &json!({"cmd": "true", "yield_time_ms": 600_000}));
    let sleep = json!({"cmd": "sleep 1000", "yield_time_ms": 10});
    let (first, second) = (site.text("exec_command", &sleep), site.text("exec_command", &sleep));
    let explains = |text: &str| text.contains("files that it changes reach the workspace");
    assert!(explains(&first) && !explains(&second), "{first}\n{second}");
}

#[test]
fn limits_of_the_config_hold_for_jobs() {
    let site = CommandSite::with_config(Dialect::Codex, "[limits]\nmax_job_duration = 1\n");
    let started = site.text("exec_command", &json!({"cmd": "sleep 1000", "yield_time_ms": 0}));
    assert!(started.contains("session_id 1"), "{started}");
    let ended = site.error("write_stdin", &json!({"session_id": 1, "yield_time_ms": 600_000}));
    assert!(ended.starts_with("the program was terminated after 1 s"), "{ended}");
    // A call stays no longer than a run may take, and then leaves a job instead of ending the command.
    let limits = "[limits]\nmax_run_duration = 1\nmax_tool_operation_duration = 1\n";
    let site = CommandSite::with_config(Dialect::Codex, limits);
    let started = site.text("exec_command", &json!({"cmd": "sleep 1000", "yield_time_ms": 600_000}));
    assert!(started.contains("session_id 1"), "{started}");
}

#[test]
fn a_call_that_waits_for_a_job_holds_up_no_other_call() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--preset", "edits"]);
    let agent = server.agent(&site, "agent");
    let session = agent.create_session(&json!({"dialect": "claude"}));
    let mut events = agent.events(&format!("/v1/sessions/{session}/events?after=0"));
    agent.call(&session, "Bash", json!({"command": "echo b > b; sleep 1000", "run_in_background": true}));
    std::thread::scope(|scope| {
        let look = json!({"task_id": "1", "timeout": 600_000});
        let waiting = scope.spawn(|| agent.call(&session, "TaskOutput", look));
        while events.next_of("begin")["tool"] != "TaskOutput" {}
        let other = agent.call(&session, "Bash", json!({"command": "echo other"}));
        assert!(other.to_string().contains("other"), "{other}");
        let stopped = agent.call(&session, "TaskStop", json!({"task_id": "1", "keep_changes": true}));
        let waited = waiting.join().unwrap();
        // One of the two calls reports the end, by the choice of the stop, and the other one is told so.
        let both = format!("{stopped} {waited}");
        assert!(both.contains("another call reports its end") || both.contains("its end was reported"), "{both}");
        assert!(both.contains("[stopped, changed 1 file"), "{both}");
    });
    assert_eq!(site.read("b"), "b\n");
}

#[test]
fn a_session_has_eight_jobs_and_sees_no_others() {
    let site = CommandSite::new(Dialect::Claude);
    let sleep = json!({"command": "sleep 1000", "run_in_background": true});
    for id in 1..=8 {
        assert!(site.text("Bash", &sleep).contains(&format!("task_id {id}")));
    }
    let refused = site.error("Bash", &sleep);
    assert!(
        refused.starts_with("there are 8 background jobs already; read or stop one first: 1 (`sleep 1000`)"),
        "{refused}"
    );
    assert_eq!(site.app.commands.jobs(&site.app.session.id).len(), 8);
    site.text("TaskStop", &json!({"task_id": "3"}));
    assert!(site.text("Bash", &sleep).contains("task_id 9"));
    let other = site.app.session.for_principal("other", ringfence_kernel::Principal::agent("other")).into();
    let call = ToolCall { id: "1".into(), name: "TaskOutput".into(), arguments: r#"{"task_id":"1"}"#.into() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(site.app.host.call(&other, call, &CancellationToken::new())).unwrap();
    assert_eq!(reply.text, "there is no job 1, and none is running");
    // Those of a principal have a bound too, however many sessions it has.
    let twin = site.app.session.for_principal("twin", site.app.session.principal.clone()).into();
    let start = |_| {
        let call = ToolCall { id: "1".into(), name: "Bash".into(), arguments: sleep.to_string() };
        runtime.block_on(site.app.host.call(&twin, call, &CancellationToken::new())).unwrap().text
    };
    let started: Vec<String> = (0..5).map(start).collect();
    assert!(started[3].contains("task_id 4") && started[4].contains("has 12 background jobs already"), "{started:?}");
    site.app.session.catalog.end_session("twin");
    // With the session all of them end.
    site.app.session.catalog.end_session(&site.app.session.id);
    assert!(site.app.commands.jobs(&site.app.session.id).is_empty());
}

#[test]
fn output_that_nobody_looks_at_is_bounded() {
    let site = CommandSite::new(Dialect::Claude);
    let chatter = "seq 1 1000000; echo last; sleep 1000";
    site.text("Bash", &json!({"command": format!("{GATE}; {chatter}"), "run_in_background": true}));
    site.release();
    let bytes = |site: &CommandSite| site.app.commands.jobs(&site.app.session.id)[0].unread_bytes;
    while bytes(&site) < 256 << 10 {
        std::thread::yield_now();
    }
    let seen = site.output_with("TaskOutput", &json!({"task_id": "1", "block": false}), "last\n");
    assert!(seen.contains(" earlier bytes were dropped]\n"), "{}", &seen[..80]);
}

#[test]
fn the_standard_dialect_has_jobs_by_number() {
    let site = CommandSite::new(Dialect::Standard);
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap()["value"].clone();
    let started = value(&site.text("run_code", &json!({"command": "read x; echo got $x > a", "background": true})));
    assert_eq!((&started["job"], &started["endedBy"], started.get("exitCode")), (&json!(1), &json!("running"), None));
    let ended = value(&site.text("job_output", &json!({"job": 1, "input": "it\n", "wait": 600})));
    assert_eq!((&ended["job"], &ended["exitCode"], &ended["committed"]), (&json!(1), &json!(0), &json!("all")));
    assert_eq!(site.site.read("a"), "got it\n");
    site.text("run_code", &json!({"language": "bash", "code": "echo x > b; sleep 1000", "background": true}));
    let stopped = value(&site.text("stop_job", &json!({"job": "2"})));
    assert_eq!((&stopped["endedBy"], &stopped["discarded"]), (&json!("cancelled"), &json!(true)));
    let network = json!({"code": "true", "background": true, "network": ["example.org"]});
    assert!(site.error("run_code", &network).contains("a background job has no network"));
}

/// The number of the process of the machine that has this name.
pub(crate) fn process_named(name: &str) -> Option<u32> {
    let mut processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let has_name = |line: Vec<u8>| line.split(|byte| *byte == 0).next() == Some(name.as_bytes());
    let found = processes.find(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(has_name))?;
    found.file_name().to_str()?.parse().ok()
}

fn is_running(name: &str) -> bool {
    process_named(name).is_some()
}

#[test]
fn jobs_end_with_their_session_and_with_a_killed_server() {
    let site = TestSite::new();
    site.write("a", "old\n");
    let before = site.tree();
    let mut server = TestApiServer::start(&site, &["--preset", "edits"]);
    let name = |number: u32| format!("job-{number}-of-{}", site.workspace.to_str().unwrap().replace('/', "-"));
    let job = |number| {
        let command = format!("echo new > a; echo b > b; exec -a {} sleep 1000", name(number));
        json!({"command": command, "run_in_background": true})
    };
    {
        let agent = server.agent(&site, "agent");
        let session = agent.create_session(&json!({"dialect": "claude"}));
        agent.call(&session, "Bash", job(1));
        wait_until("the first job", || is_running(&name(1)));
        let jobs = agent.get(&format!("/v1/sessions/{session}/jobs"))["jobs"].clone();
        assert_eq!(
            (&jobs[0]["id"], &jobs[0]["exitCode"], jobs.as_array().unwrap().len()),
            (&json!(1), &Value::Null, 1)
        );
        assert!(jobs[0]["command"].as_str().unwrap().starts_with("echo new > a"), "{jobs}");
        // A token sees its own, and the person all of this server.
        let own = agent.get("/v1/jobs")["jobs"].clone();
        assert_eq!((&own[0]["session"], &own[0]["command"]), (&json!(session), &jobs[0]["command"]), "{own}");
        assert_eq!(server.page().get("/v1/jobs")["jobs"], own);
        assert_eq!(server.agent(&site, "other").get("/v1/jobs"), json!({"jobs": []}));
        assert_eq!(agent.send("DELETE", &format!("/v1/sessions/{session}"), None).status, 200);
        wait_until("the end of the first job", || !is_running(&name(1)));
        assert_eq!(agent.send("GET", &format!("/v1/sessions/{session}/jobs"), None).status, 410);
        let session = agent.create_session(&json!({"dialect": "claude"}));
        agent.call(&session, "Bash", job(2));
        wait_until("the second job", || is_running(&name(2)));
    }
    // The spawner, the first process of each jail, and the program.
    let processes = descendants(server.child.id());
    assert!(processes.len() >= 4, "{processes:?}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    wait_until("the end of the second job", || !is_running(&name(2)));
    wait_until("the end of every process", || !processes.iter().any(is_alive));
    assert_eq!(site.tree(), before, "nothing of a job is in the workspace, and nothing is torn");
}

#[test]
fn jobs_end_with_the_run_that_started_them() {
    let site = TestSite::new();
    let name = format!("run-job-of-{}", site.workspace.to_str().unwrap().replace('/', "-"));
    let command = format!("exec -a {name} sleep 1000");
    let write = json!({"name": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}});
    let script = site.current.join("script.jsonl");
    let lines = [
        json!({"text": "", "calls": [{"name": "run_code", "arguments": {"code": command, "background": true}}]}),
        json!({"text": "", "calls": [write]}),
        json!({"text": "It runs."}),
    ];
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let config = site.current.join("config.toml");
    let text = format!("[agents.defaults]\nprovider = \"script\"\nscript = {:?}\n", script.to_str().unwrap());
    std::fs::write(&config, text).unwrap();
    site.write("a.txt", "old\n");
    let server = TestApiServer::start(&site, &["--config", config.to_str().unwrap()]);
    let page = server.page();
    for is_cancelled in [false, true] {
        site.write("a.txt", "old\n");
        let run = page.post("/v1/runs", &json!({"prompt": "start it"})).json()["id"].as_str().unwrap().to_owned();
        // The second call asks, so the job runs by now.
        let request = page.request();
        wait_until("the job", || is_running(&name));
        let jobs = page.get("/v1/jobs")["jobs"].clone();
        assert_eq!((jobs.as_array().unwrap().len(), &jobs[0]["command"]), (1, &json!(command)), "{jobs}");
        let expected = if is_cancelled {
            assert_eq!(page.post(&format!("/v1/runs/{run}/cancel"), &json!({})).status, 200);
            "cancelled"
        } else {
            assert_eq!(page.answer(&request, &json!({"approved": true})).status, 200);
            "answered"
        };
        assert_eq!(wait_for_run(&page, &run)["state"], expected);
        wait_until("the end of the job", || !is_running(&name));
        assert_eq!(page.get("/v1/jobs"), json!({"jobs": []}));
    }
}

/// The processes below one, by their start time too: numbers are used again.
fn descendants(of: u32) -> BTreeSet<(u32, String)> {
    let stat = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may have any character, and ends with the last parenthesis.
        let fields: Vec<String> = text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect();
        Some((fields[1].parse::<u32>().ok()?, fields[19].clone()))
    };
    let numbers =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<(u32, u32, String)> =
        numbers.filter_map(|pid| stat(pid).map(|(parent, start)| (pid, parent, start))).collect();
    let (mut found, mut parents) = (BTreeSet::new(), vec![of]);
    while let Some(parent) = parents.pop() {
        for (pid, _, start) in all.iter().filter(|(_, of, _)| *of == parent) {
            found.insert((*pid, start.clone()));
            parents.push(*pid);
        }
    }
    found
}

/// Whether the process with this number and start time is there, and no zombie.
fn is_alive((pid, start): &(u32, String)) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| {
        let fields: Vec<&str> = rest.split(' ').collect();
        fields[0] != "Z" && fields[19] == start
    })
}

#[test]
fn a_server_killed_while_it_commits_a_job_tears_nothing() {
    const FILES: usize = 2000;
    let site = TestSite::new();
    site.write("a", "old\n");
    let before = site.tree();
    let mut server = TestApiServer::start(&site, &["--preset", "edits"]);
    let agent = server.agent(&site, "agent");
    let session = agent.create_session(&json!({"dialect": "standard"}));
    let code = format!("read x; mkdir d; for i in $(seq {FILES}); do echo $i > d/$i; done; echo new > a");
    agent.call(&session, "run_code", json!({"code": code, "background": true}));
    let (address, token) = (server.address.clone(), agent.token.clone());
    let look = json!({"name": "job_output", "arguments": {"job": 1, "input": "\n", "wait": 600}});
    let body = look.to_string();
    let mut stream = server.open(
        "POST",
        &format!("/v1/sessions/{session}/calls"),
        &[("Authorization", &format!("Bearer {token}")), ("Content-Type", "application/json")],
        Some(&body),
    );
    // Its steps are made one by one, and this is in the middle of them, or just behind.
    wait_until("the first file of the commit", || site.workspace.join("d").exists());
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    drop(server);
    let server = TestApiServer::start_at(&site, &address, &["--preset", "edits"]);
    let agent = server.agent(&site, "other");
    agent.call(&agent.create_session(&json!({"dialect": "standard"})), "list_directory", json!({}));
    let files = std::fs::read_dir(site.workspace.join("d")).map_or(0, Iterator::count);
    match files {
        0 => assert_eq!(site.tree(), before),
        _ => assert_eq!((files, site.read("a").as_str()), (FILES, "new\n")),
    }
}

#[test]
fn jobs_end_with_the_connection_of_an_mcp_client() {
    let site = TestSite::new();
    let name = format!("mcp-job-of-{}", site.workspace.to_str().unwrap().replace('/', "-"));
    let options = ["--preset", "edits", "--dialect", "claude"];
    let mut client = StdioMcpClient::with_handshake(&site, &options, json!({}));
    client.call("Bash", json!({"command": format!("exec -a {name} sleep 1000"), "run_in_background": true}));
    wait_until("the job", || is_running(&name));
    client.close();
    wait_until("the end of the job", || !is_running(&name));
}
