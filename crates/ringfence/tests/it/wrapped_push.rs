//! Pushes over https in `ringfence run`: a real git, and a real `git http-backend` behind TLS on loopback.
//!
//! Not here: pushes by our own tool (`git_remote.rs`).

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use ringfence_testkit::oauth_server::SyntheticAnswer;
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::Value;

use crate::git_remote::http_backend;
use crate::site::{CliOutput, TestSite, cli_output};
use crate::terminal::{ASKED, TestTerminal};
use crate::tls_server::TlsTestServer;

/// The person's token, which is never inside.
const TOKEN: &str = "ghp_0b7c1e55a9d34f2281c6";

/// A workspace that is a repository, and its remote on a server that takes the token only.
struct PushSite {
    site: TestSite,
    port: u16,
    remote: PathBuf,
    /// First lines of requests that had the token.
    seen: Arc<Mutex<Vec<String>>>,
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(arguments);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// One request, by CGI.
fn answer(root: &Path, seen: &Mutex<Vec<String>>, head: &str, body: &[u8]) -> SyntheticAnswer {
    let header = |name: &str| {
        head.lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let first = head.lines().next().unwrap();
    let expected =
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("x-access-token:{TOKEN}")));
    if header("authorization").is_none_or(|(_, value)| value != expected) {
        let headers = vec![("www-authenticate".to_owned(), "Basic realm=\"x\"".to_owned())];
        return SyntheticAnswer { status: 401, headers, body: Vec::new() };
    }
    seen.lock().unwrap().push(first.to_owned());
    let (told, content) = http_backend(root, first, &|name| header(name).map(|(_, value)| value), body);
    let headers = told.lines().filter_map(|line| line.split_once(": "));
    let mut headers: Vec<(String, String)> =
        headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let status = headers.iter().position(|(name, _)| name == "status").map(|at| headers.remove(at).1);
    let status = status.and_then(|text| text.split(' ').next().and_then(|code| code.parse().ok())).unwrap_or(200);
    SyntheticAnswer { status, headers, body: content }
}

impl PushSite {
    fn new() -> Self {
        let site = TestSite::new();
        let root = site.root().join("served");
        let remote = root.join("o/r.git");
        fs::create_dir_all(&remote).unwrap();
        git(&remote, &["init", "--quiet", "--bare", "--initial-branch=main"]);
        git(&remote, &["config", "http.receivepack", "true"]);
        git(&remote, &["config", "receive.denyDeleteCurrent", "ignore"]);
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (served, log) = (root, Arc::clone(&seen));
        let tls = TlsTestServer::start("localhost", move |head, body| answer(&served, &log, head, body)).unwrap();
        let port = tls.port;
        fs::write(site.root().join("ca.pem"), &tls.authority_pem).unwrap();
        let directory = site.config.join("ringfence");
        fs::create_dir_all(directory.join("toolchains")).unwrap();
        let config = format!("preset = \"edits\"\n[web]\nallow_private = [\"localhost:{port}\"]\n");
        fs::write(directory.join("config.toml"), config).unwrap();
        // As the one for GitHub, but for the host.
        let hub = include_str!("../../src/cli/wrapped_run/toolchains/gh.toml");
        let hub = hub.replace("api.github.com", &format!("localhost:{port}"));
        let hub = hub.replace("uploads.github.com", &format!("localhost:{port}"));
        let hub = hub.replace("https://github.com", &format!("https://localhost:{port}"));
        let hub = hub.replace("\"github.com", &format!("\"localhost:{port}"));
        let hub = hub.replace("POST github.com/", &format!("POST localhost:{port}/"));
        // Its API is on another host.
        let hub = hub.replace(&format!("\"POST localhost:{port}/**\","), "");
        fs::write(directory.join("toolchains/hub.toml"), hub).unwrap();
        fs::write(site.home.join(".gitconfig"), "[user]\n\tname = Ada\n\temail = ada@example.org\n").unwrap();
        site.write("a.txt", "one\n");
        git(&site.workspace, &["init", "--quiet", "--initial-branch=main"]);
        git(&site.workspace, &["add", "a.txt"]);
        git(&site.workspace, &["commit", "--quiet", "-m", "first"]);
        git(&site.workspace, &["remote", "add", "origin", &format!("https://localhost:{port}/o/r.git")]);
        git(&site.workspace, &["push", "--quiet", remote.to_str().unwrap(), "main", "main:old"]);
        Self { site, port, remote, seen }
    }

    fn command(&self, options: &[&str], script: &str) -> Command {
        let mut program = self.site.program_without_arguments();
        program.arg("--workspace").arg(&self.site.workspace).args(options).args([
            "run",
            "--end",
            "later",
            "--toolchain",
            "hub",
        ]);
        // Loopback is reached without the proxy, unless a program is told otherwise.
        program.args(["--", "sh", "-c", &format!("unset no_proxy NO_PROXY; {script}")]);
        program.env("SSL_CERT_FILE", self.site.root().join("ca.pem")).env("GH_TOKEN", TOKEN);
        program
    }

    /// Runs a script whose one question is answered at a terminal. Returns the question as well.
    fn run_answered(&self, script: &str, approves: bool) -> (CliOutput, String) {
        let mut child = self.command(&[], script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let (mut err, mut shown) = (String::new(), String::new());
        while lines.read_line(&mut err).unwrap() > 0 {
            let last = err.lines().next_back().unwrap();
            if let Some((_, rest)) = last.split_once("approvals answer ") {
                let id = rest.split('`').next().unwrap();
                shown = self.site.run(&["approvals", "show", id]).out;
                let mut terminal = TestTerminal::new(&self.site, &["approvals", "answer", id]);
                terminal.until(ASKED);
                terminal.press(if approves { "y" } else { "n" });
                if !approves {
                    terminal.until("reason (optional");
                    terminal.press("\r");
                }
                terminal.end();
            }
        }
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let code = child.wait().unwrap().code();
        (CliOutput { code, signal: None, out, err }, shown)
    }

    fn refs(&self) -> Vec<String> {
        git(&self.remote, &["for-each-ref", "--format=%(refname) %(contents:subject)"])
            .lines()
            .map(str::to_owned)
            .collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.site.state.join("audit/000001.jsonl")).unwrap()
    }
}

const COMMIT: &str = "echo two > a.txt && git commit --quiet -am second";

#[test]
fn a_push_is_asked_about_with_its_refs_and_the_token_stays_outside() {
    let push = PushSite::new();
    let script = format!(
        "env; {COMMIT} && git fetch --quiet origin && git push origin main :old 2>&1; cat $GIT_CONFIG_SYSTEM ~/.gitconfig"
    );
    let (ended, question) = push.run_answered(&script, true);
    assert_eq!(ended.code, Some(0), "{ended:?}\n{question}");
    assert_eq!(push.refs(), ["refs/heads/main second"], "{ended:?}\n{question}");
    for shown in ["POST /o/r.git/git-receive-pack", "add to refs/heads/main, from ", "delete refs/heads/old, which is "]
    {
        assert!(question.contains(shown), "{shown}: {question}");
    }
    assert!(question.contains("1 deleted: commits that only they have are lost"), "{question}");
    assert!(!question.contains("moved"), "{question}");
    let everything = [&ended.out, &ended.err, &question, &push.log()].map(String::as_str).concat();
    assert!(!everything.contains(TOKEN) && ended.out.contains("GH_TOKEN=ghp_rf"), "{everything}");
    let sends: Vec<Value> = push.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sends = sends.iter().filter(|record| record["accesses"][0]["action"] == "send").count();
    assert!(sends > 0, "{}", push.log());
}

#[test]
fn a_forced_push_is_named_as_a_loss() {
    let push = PushSite::new();
    let script = "git commit --quiet --amend -m other && git push --force origin main 2>&1";
    let (ended, question) = push.run_answered(script, true);
    assert_eq!(ended.code, Some(0), "{ended:?}\n{question}");
    assert!(question.contains("move refs/heads/main from ") && question.contains("1 moved to where"), "{question}");
    assert_eq!(push.refs(), ["refs/heads/main other", "refs/heads/old first"]);
}

#[test]
fn a_push_that_is_not_approved_is_refused_as_git_says_it() {
    let push = PushSite::new();
    let script = format!("{COMMIT} && git push origin main 2>&1");
    let before = push.refs();
    let (ended, _) = push.run_answered(&script, false);
    assert!(ended.out.contains("[remote rejected]") && ended.out.contains("ringfence: "), "{ended:?}");
    assert_eq!((ended.code, push.refs()), (Some(1), before.clone()), "{ended:?}");
    let seen = push.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|first| !first.starts_with("POST")), "nothing was sent: {seen:?}");
    let why = push.site.program_without_arguments().args(["why", "--json"]).output().unwrap();
    let why: Value = serde_json::from_slice(&why.stdout).unwrap();
    let refusal = &why["refusals"][0];
    assert_eq!((&refusal["kind"], &refusal["error"]), (&"send".into(), &"APPROVAL_DENIED".into()), "{why}");
    assert!(refusal["detail"].as_str().unwrap().contains("/o/r.git/git-receive-pack refs/heads/main "), "{why}");
    // Without a person.
    let ended = cli_output(push.command(&["--approve", "never"], &script).output().unwrap());
    assert!(ended.out.contains("[remote rejected]"), "{ended:?}");
    assert_eq!(push.refs(), before);
}

#[test]
fn fetches_need_no_question_and_other_requests_are_asked_about_once() {
    let push = PushSite::new();
    let url = format!("https://localhost:{}", push.port);
    let ended =
        cli_output(push.command(&[], &format!("git clone --quiet {url}/o/r.git c && cat c/a.txt")).output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one\n"), "{ended:?}");
    assert!(!ended.err.contains("approval required"), "{ended:?}");
    if !Command::new("curl").arg("--version").output().is_ok_and(|ended| ended.status.success()) {
        return skip_without(Requirement::Curl, "requests to an API");
    }
    let delete = |path: &str| {
        let options = "-s -X DELETE --path-as-is -u \"x-access-token:$GH_TOKEN\" -o /dev/null -w '%{http_code} '";
        format!("curl {options} {url}{path}")
    };
    let script = format!("{one}; {one}; {}", delete("/o//r"), one = delete("/o/r.git/x"));
    let (ended, question) = push.run_answered(&script, true);
    assert_eq!(ended.err.matches("approval required").count(), 1, "{ended:?}");
    assert!(question.contains("DELETE /o/r.git/x"), "{question}");
    assert!(ended.out.ends_with("400 "), "{ended:?}");
    let seen = push.seen.lock().unwrap().clone();
    assert_eq!(seen.iter().filter(|first| first.starts_with("DELETE /o/r.git/x")).count(), 2, "{seen:?}");
}
