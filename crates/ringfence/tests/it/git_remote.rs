//! Fetch and push, against a real git server on this machine's loopback.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use ringfence::app::{App, build_app};
use ringfence::config::{CliFlags, load};
use ringfence_kernel::{Approver, Preset, ToolCall};
use ringfence_testkit::approver::ScriptedApprover;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::crash::has_strace;
use crate::run_code_git::{git, repository, seen};
use crate::site::{PROGRAM, TestSite, cli_output};

const TOKEN: &str = "token-of-the-person";

/// `git http-backend` behind a server that asks for the token.
struct GitServer {
    at: SocketAddr,
    repository: PathBuf,
    /// The first line of each request.
    requests: Arc<Mutex<Vec<String>>>,
}

impl GitServer {
    fn start(site: &TestSite) -> Self {
        let root = site.outside.join("srv");
        let repository = root.join("x.git");
        std::fs::create_dir_all(&root).unwrap();
        host_git(&root, &["init", "-q", "--bare", "-b", "main", "x.git"]);
        host_git(&repository, &["config", "http.receivepack", "true"]);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (at, requests) = (listener.local_addr().unwrap(), Arc::default());
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &root, &seen);
            }
        });
        Self { at, repository, requests }
    }

    fn head(&self, branch: &str) -> String {
        host_git(&self.repository, &["rev-parse", &format!("refs/heads/{branch}")])
    }
}

fn host_git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(directory).args(arguments).env_clear().env("PATH", std::env::var("PATH").unwrap());
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    for name in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
        command.env(name, "other");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// One request, by CGI.
fn answer(mut stream: TcpStream, root: &Path, seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    seen.lock().unwrap().push(first.trim().to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = Vec::new();
    if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).unwrap();
            body.extend(&chunk[..size]);
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = headers.get("content-length") {
        body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
    }
    let expected = base64::engine::general_purpose::STANDARD.encode(format!("git:{TOKEN}"));
    if headers.get("authorization") != Some(&format!("Basic {expected}")) {
        let _ = stream.write_all(
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        return;
    }
    let (head, content) = http_backend(root, &first, &|name| headers.get(name).map(String::as_str), &body);
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
    let reply =
        format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
    let _ = stream.write_all(reply.as_bytes()).and_then(|()| stream.write_all(&content));
}

/// What git's own server says to a request, by CGI: the head and the body of its answer.
pub(crate) fn http_backend<'h>(
    root: &Path,
    request: &str,
    header: &dyn Fn(&str) -> Option<&'h str>,
    body: &[u8],
) -> (String, Vec<u8>) {
    let mut parts = request.split(' ');
    let (method, target) = (parts.next().unwrap(), parts.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut backend = Command::new("git");
    backend.arg("http-backend").env_clear().env("PATH", std::env::var("PATH").unwrap());
    backend.env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1").env("REMOTE_USER", "git");
    backend.env("REQUEST_METHOD", method).env("PATH_INFO", path).env("QUERY_STRING", query);
    backend.env("CONTENT_LENGTH", body.len().to_string());
    for (variable, name) in [
        ("CONTENT_TYPE", "content-type"),
        ("HTTP_CONTENT_ENCODING", "content-encoding"),
        ("HTTP_GIT_PROTOCOL", "git-protocol"),
    ] {
        if let Some(value) = header(name) {
            backend.env(variable, value);
        }
    }
    let mut child = backend.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(body).unwrap();
    let output = child.wait_with_output().unwrap().stdout;
    let split = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    (String::from_utf8_lossy(&output[..split]).into_owned(), output[split + 4..].to_vec())
}

/// A repository whose remote is on the server, and a session on it.
struct RemoteFixture {
    site: TestSite,
    server: GitServer,
}

impl RemoteFixture {
    fn new() -> Self {
        let site = repository();
        let server = GitServer::start(&site);
        let url = format!("http://{}/x.git", server.at);
        git(&site, &["remote", "add", "origin", &url]);
        host_git(&server.repository, &["fetch", "-q", site.workspace.to_str().unwrap(), "main:main"]);
        git(&site, &["update-ref", "refs/remotes/origin/main", "main"]);
        Self { site, server }
    }

    fn app(&self, approver: Box<dyn Approver>, token: Option<&str>) -> App {
        let mut environment = self.site.environment();
        environment.variables.0.extend(token.map(|token| ("GIT_TOKEN".to_owned(), token.to_owned())));
        let flags = CliFlags {
            config: Some(self.config()),
            workspace: Some(self.site.workspace.to_str().unwrap().to_owned()),
            toolsets: vec!["git".to_owned()],
            preset: Some(Preset::Edits),
            ..CliFlags::default()
        };
        build_app(load(&flags, &environment).unwrap(), &environment, approver).unwrap()
    }

    /// A config that has a token for the server, and allows to reach it.
    fn config(&self) -> PathBuf {
        let at = self.server.at;
        let config = self.site.root().join("config.toml");
        let text = format!(
            "[web]\nallow_private = [\"{at}\"]\n[git.hosts.\"{at}\"]\ntoken_env = \"GIT_TOKEN\"\n\
             [[rules]]\ndecision = \"allow\"\nhost = \"{at}\"\n"
        );
        std::fs::write(&config, text).unwrap();
        config
    }

    /// A commit on the server that the workspace does not have.
    fn commit_on_server(&self, path: &str) -> String {
        let clone = self.site.outside.join("clone");
        if !clone.exists() {
            host_git(&self.site.outside, &["clone", "-q", self.server.repository.to_str().unwrap(), "clone"]);
        }
        std::fs::create_dir_all(clone.join(path).parent().unwrap()).unwrap();
        std::fs::write(clone.join(path), "of others\n").unwrap();
        host_git(&clone, &["add", "-A"]);
        host_git(&clone, &["commit", "-qm", path]);
        host_git(&clone, &["push", "-q", "origin", "main"]);
        self.server.head("main")
    }

    fn commit_here(&self, path: &str) -> String {
        self.site.write(path, "mine\n");
        git(&self.site, &["add", "-A"]);
        git(&self.site, &["commit", "-qm", path]);
        git(&self.site, &["rev-parse", "HEAD"]).trim().to_owned()
    }
}

fn call(app: &App, tool: &str, arguments: &Value) -> Value {
    let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap();
    serde_json::from_str(&reply.text).unwrap()
}

#[track_caller]
fn check_error(reply: &Value, code: &str, message: &str) {
    assert_eq!(reply["error"]["code"], code, "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains(message), "{reply}");
    assert!(!reply.to_string().contains(TOKEN), "{reply}");
}

#[test]
fn a_push_is_always_asked_about_and_sends_what_was_shown() {
    let remote = RemoteFixture::new();
    remote.site.write(".env", "KEY=1\n");
    let head = remote.commit_here(".github/workflows/release.yml");
    let before = remote.site.tree();

    // A rule allows the host, and the call is asked about all the same.
    let denying = ScriptedApprover::denying();
    check_error(
        &call(&remote.app(Box::new(denying.clone()), Some(TOKEN)), "git_push", &json!({})),
        "APPROVAL_DENIED",
        "cannot be recalled",
    );
    assert_ne!(remote.server.head("main"), head);
    let asked = denying.asked.lock().unwrap();
    let shown = asked[0].preview.text();
    assert!(shown.starts_with("push to `main` of http://127.0.0.1:"), "{shown}");
    assert!(shown.contains("1 commit and 2 files"), "{shown}");
    let [secret, protected, commit] = [
        "may hold secrets: .env",
        "settings that other programs act on: .github",
        ".github/workflows/release.yml +1 -0",
    ]
    .map(|part| shown.find(part).unwrap_or_else(|| panic!("no {part} in {shown}")));
    assert!(secret < protected && protected < commit, "{shown}");

    let reply = call(&remote.app(Box::new(ScriptedApprover::approving()), Some(TOKEN)), "git_push", &json!({}));
    assert_eq!(reply["value"]["commit"], head.as_str(), "{reply}");
    assert_eq!(remote.server.head("main"), head);
    assert_eq!(remote.site.tree(), before, "nothing changes here");
    let again =
        call(&remote.app(Box::new(ScriptedApprover::approving()), Some(TOKEN)), "git_push", &json!({"branch": "main"}));
    assert_eq!(again["value"]["upToDate"], true, "{again}");
}

/// Makes a secret part of `main`, and hides it from git in one way.
type HideSecret = fn(&RemoteFixture);

/// Commits a secret, and removes it again.
fn commit_and_remove(remote: &RemoteFixture) -> (String, String) {
    let base = git(&remote.site, &["rev-parse", "HEAD"]).trim().to_owned();
    remote.commit_here(".env");
    git(&remote.site, &["rm", "-q", ".env"]);
    git(&remote.site, &["commit", "-qm", "removed"]);
    (base, git(&remote.site, &["rev-parse", "HEAD"]).trim().to_owned())
}

/// What is sent are the objects, so what is shown must not depend on anything that stands in for one.
#[test]
fn nothing_of_the_repository_hides_what_a_push_sends() {
    let ways: [(&str, HideSecret); 6] = [
        ("replaced commit", |remote| {
            let base = git(&remote.site, &["rev-parse", "HEAD"]);
            let secret = remote.commit_here(".env");
            let tree = git(&remote.site, &["rev-parse", &format!("{}^{{tree}}", base.trim())]);
            let harmless = git(&remote.site, &["commit-tree", tree.trim(), "-p", base.trim(), "-m", "harmless"]);
            git(&remote.site, &["replace", &secret, harmless.trim()]);
        }),
        ("grafts", |remote| {
            let (base, head) = commit_and_remove(remote);
            remote.site.write(".git/info/grafts", format!("{head} {base}\n"));
        }),
        ("shallow", |remote| {
            let (_, head) = commit_and_remove(remote);
            remote.site.write(".git/shallow", format!("{head}\n"));
        }),
        ("commit graph", |remote| {
            let raw = |name: &str| {
                let id = git(&remote.site, &["rev-parse", name]);
                (0..20).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect::<Vec<u8>>()
            };
            let harmless = raw("HEAD^{tree}");
            remote.commit_here(".env");
            git(&remote.site, &["commit-graph", "write", "--reachable"]);
            let path = remote.site.workspace.join(".git/objects/info/commit-graph");
            let (mut graph, secret) = (std::fs::read(&path).unwrap(), raw("HEAD^{tree}"));
            let at = graph.windows(20).position(|window| window == secret).unwrap();
            graph[at..at + 20].copy_from_slice(&harmless);
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, graph).unwrap();
        }),
        ("merge", |remote| {
            git(&remote.site, &["merge", "-q", "--no-ff", "--no-commit", "other"]);
            remote.commit_here(".env");
        }),
        ("quoted name", |remote| {
            remote.commit_here("a\tb/.env");
        }),
    ];
    for (way, hide) in ways {
        let remote = RemoteFixture::new();
        hide(&remote);
        let denying = ScriptedApprover::denying();
        call(&remote.app(Box::new(denying.clone()), Some(TOKEN)), "git_push", &json!({}));
        let asked = denying.asked.lock().unwrap();
        let shown = asked.first().unwrap_or_else(|| panic!("{way}: not asked")).preview.text();
        assert!(shown.contains("may hold secrets: "), "{way}: {shown}");
    }
}

/// A remote-tracking branch is a file of the workspace, and may say that the remote has what it does not have.
#[test]
fn a_push_sends_no_commit_that_was_not_shown() {
    let remote = RemoteFixture::new();
    let before = remote.server.head("main");
    let head = remote.commit_here(".env");
    git(&remote.site, &["update-ref", "refs/remotes/origin/forged", "HEAD"]);
    let app = remote.app(Box::new(ScriptedApprover::approving()), Some(TOKEN));
    check_error(&call(&app, "git_push", &json!({})), "CONFLICT", "1 commit that was not shown");
    assert_eq!(remote.server.head("main"), before);
    git(&remote.site, &["update-ref", "-d", "refs/remotes/origin/forged"]);
    // What the remote has by another name need not be shown.
    host_git(&remote.server.repository, &["update-ref", "refs/heads/other", "main"]);
    assert_eq!(call(&app, "git_push", &json!({}))["value"]["commit"], head.as_str());
}

/// A remote-tracking branch that leads to another reference does not lead a fetch there.
#[test]
fn a_fetch_changes_no_branch_of_the_repository() {
    let remote = RemoteFixture::new();
    let own = git(&remote.site, &["rev-parse", "main"]);
    git(&remote.site, &["symbolic-ref", "refs/remotes/origin/main", "refs/heads/main"]);
    let head = remote.commit_on_server("one.rs");
    let app = remote.app(Box::new(ScriptedApprover::approving()), Some(TOKEN));
    let reply = call(&app, "git_fetch", &json!({}));
    assert_eq!(git(&remote.site, &["rev-parse", "refs/heads/main"]), own, "{reply}");
    assert_eq!(git(&remote.site, &["rev-parse", "refs/remotes/origin/main"]).trim(), head, "{reply}");
}

#[test]
fn a_push_that_would_lose_commits_needs_force() {
    let remote = RemoteFixture::new();
    let theirs = remote.commit_on_server("theirs");
    let mine = remote.commit_here("mine");
    let approver = ScriptedApprover::approving();
    let app = remote.app(Box::new(approver.clone()), Some(TOKEN));
    check_error(&call(&app, "git_push", &json!({})), "CONFLICT", "commits of `main`");
    assert_eq!(remote.server.head("main"), theirs);
    check_error(&call(&app, "git_push", &json!({"force": true})), "CONFLICT", "this repository does not have");
    assert_eq!(call(&app, "git_fetch", &json!({}))["ok"], true);
    check_error(&call(&app, "git_push", &json!({})), "CONFLICT", "commits of `main`");
    let reply = call(&app, "git_push", &json!({"force": true}));
    assert_eq!(reply["ok"], true, "{reply}");
    assert_eq!(remote.server.head("main"), mine);
    let asked = approver.asked.lock().unwrap();
    let lost = asked.last().unwrap().preview.text();
    assert!(lost.contains("commits that only the remote has are lost"), "{lost}");
}

#[test]
fn a_fetch_is_one_change_and_undone_to_the_byte() {
    let remote = RemoteFixture::new();
    let app = remote.app(Box::new(ScriptedApprover::denying()), Some(TOKEN));
    let mut last = None;
    for path in ["one.rs", "two.rs"] {
        let head = remote.commit_on_server(path);
        let tree = remote.site.tree();
        let reply = call(&app, "git_fetch", &json!({}));
        let main = json!({"name": "refs/remotes/origin/main", "commit": head});
        assert_eq!(reply["value"]["updated"], json!([main]), "{reply}");
        assert_eq!(git(&remote.site, &["rev-parse", "refs/remotes/origin/main"]).trim(), head);
        seen(&remote.site);
        last = Some((reply["value"]["change"].as_str().unwrap().to_owned(), tree));
    }
    let again = call(&app, "git_fetch", &json!({"branch": "main"}));
    assert_eq!(again["value"]["updated"], json!([]), "{again}");
    let (change, tree) = last.unwrap();
    assert_eq!(remote.site.run(&["undo", &change]).code, Some(0));
    assert_eq!(remote.site.tree(), tree);
    seen(&remote.site);
}

/// A branch with another version of a protected path is not kept unasked, even if it is not checked out.
#[test]
fn a_fetch_of_a_protected_path_asks() {
    let remote = RemoteFixture::new();
    remote.commit_on_server(".github/workflows/ci.yml");
    let before = remote.site.tree();
    let app = remote.app(Box::new(ScriptedApprover::denying()), Some(TOKEN));
    check_error(&call(&app, "git_fetch", &json!({})), "APPROVAL_DENIED", "refs/remotes/origin/main");
    assert_eq!(remote.site.tree(), before);
}

/// Settings of the workspace neither run a program nor lead the courier elsewhere.
#[test]
fn the_courier_reads_no_setting_of_the_workspace() {
    let remote = RemoteFixture::new();
    let head = remote.commit_here("mine");
    let decoy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = remote.server.at;
    let evil = format!(
        "[url \"http://{}/\"]\n\tinsteadOf = http://{at}/\n\tpushInsteadOf = http://{at}/\n[http]\n\tproxy = http://{}/\n\
         [core]\n\thooksPath = planted\n\tsshCommand = ./evil.sh\n\taskPass = ./evil.sh\n[credential]\n\thelper = !./evil.sh\n\
         [remote \"origin\"]\n\treceivepack = ./evil.sh\n\tuploadpack = ./evil.sh\n\tproxy = http://{}/\n",
        decoy.local_addr().unwrap(),
        decoy.local_addr().unwrap(),
        decoy.local_addr().unwrap(),
    );
    for (path, contents) in [("evil.sh", "#!/bin/sh\n: > RAN\n"), ("planted/pre-push", "#!/bin/sh\n: > RAN\nexit 1\n")]
    {
        remote.site.write(path, contents);
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(remote.site.workspace.join(path), executable).unwrap();
    }
    let config = remote.site.workspace.join(".git/config");
    let own = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, own + &evil).unwrap();
    let app = remote.app(Box::new(ScriptedApprover::approving()), Some(TOKEN));
    let reply = call(&app, "git_push", &json!({}));
    assert_eq!(reply["value"]["commit"], head.as_str(), "{reply}");
    assert_eq!(call(&app, "git_fetch", &json!({}))["ok"], true);
    assert!(remote.server.requests.lock().unwrap().iter().all(|line| line.contains("/x.git/")));
    decoy.set_nonblocking(true).unwrap();
    assert!(decoy.accept().is_err(), "nothing came to another server");
    assert!(!remote.site.workspace.join("RAN").exists());
}

/// Every file that the courier's processes opened, as the kernel was asked for it.
#[test]
fn the_courier_opens_no_config_but_its_own() {
    if !has_strace() {
        return;
    }
    let remote = RemoteFixture::new();
    let log = remote.site.root().join("trace");
    let mut command = remote.site.program("strace");
    command.args(["-f", "-qq", "-s", "300", "--trace=execve,open,openat,openat2", "-o"]).arg(&log).arg(PROGRAM);
    command.args(["call", "git_fetch", "{}", "--preset", "edits", "--toolset", "git", "--workspace"]);
    command.arg(&remote.site.workspace).arg("--config").arg(remote.config()).env("GIT_TOKEN", TOKEN);
    let said = cli_output(command.output().unwrap());
    assert_eq!(said.value()["updated"], json!([]), "{said:?}");
    let log = std::fs::read_to_string(log).unwrap();
    // Nothing is new, so that no other program runs after the courier.
    let courier = log.lines().skip_while(|line| !line.contains("GIT_DIR=/tmp/courier.git"));
    let opened = courier.filter(|line| line.contains(" open")).filter_map(|line| line.split('"').nth(1));
    let configs: BTreeSet<&str> = opened.filter(|path| path.contains("config") || path.contains("workspace")).collect();
    assert_eq!(
        configs.into_iter().filter(|path| !path.ends_with(".lock")).collect::<Vec<_>>(),
        ["/run/ringfence/gitconfig", "/tmp/courier.git/config"]
    );
}

#[test]
fn a_token_is_for_its_host_and_in_no_jail_of_the_workspace() {
    let remote = RemoteFixture::new();
    remote.commit_here("mine");
    let app = remote.app(Box::new(ScriptedApprover::approving()), Some(TOKEN));
    let code = "env; cat /run/ringfence/*; grep -rs token-of-the /tmp /run /workspace /mnt; true";
    let reply = call(&app, "run_code", &json!({"code": code, "mode": "discard"}));
    assert_eq!(reply["ok"], true, "{reply}");
    assert!(!reply["value"]["stdout"].as_str().unwrap().replace(code, "").contains("token-of"), "{reply}");
    for token in [None, Some("wrong")] {
        let app = remote.app(Box::new(ScriptedApprover::approving()), token);
        check_error(&call(&app, "git_push", &json!({})), "NETWORK_ERROR", "[git.hosts]");
    }
    check_error(&call(&app, "git_push", &json!({"branch": "--all"})), "INVALID_ARGS", "plain name");
    let ssh = format!("git@127.0.0.1:{}/x.git", remote.server.at.port());
    git(&remote.site, &["remote", "set-url", "origin", &ssh]);
    check_error(&call(&app, "git_push", &json!({})), "INVALID_ARGS", "https");
    check_error(&call(&app, "git_fetch", &json!({"remote": "absent"})), "INVALID_ARGS", "absent");
}
