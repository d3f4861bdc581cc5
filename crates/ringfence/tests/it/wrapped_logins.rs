//! OAuth logins in `ringfence run`: real runs against a synthetic OAuth server on loopback, over TLS.
//!
//! Not here: real agents (`cargo xtask clients run`).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ringfence_testkit::oauth_server::{SyntheticOAuth, SyntheticTokenForm, TokenAnswerStyle};
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite, cli_output};
use crate::tls_server::TlsTestServer;

/// What the program does: a client with a login, as a script of one word for each step. It prints all that it sees.
const CLIENT: &str = r#"
import base64, json, os, sys, urllib.error, urllib.request
for name in ("no_proxy", "NO_PROXY"): os.environ.pop(name, None)
base, file = sys.argv[1], os.path.expanduser("~/.agent/login.json")
def call(path, body=None, headers={}, method=None):
    request = urllib.request.Request(base + path, data=body and body.encode(), headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer: result = answer.status, str(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error: result = error.code, str(error.headers), error.read().decode()
    except OSError as error: result = 0, "", str(error)
    print(*result, flush=True)
    return result[0], result[2]
def tokens(): return json.load(open(file))["tokens"]
def bearer(): return {"authorization": "Bearer " + tokens()["access"]}
def exchange(form="application/json", path="/oauth/token", **members):
    return call(path, json.dumps(members), {"content-type": form})
def refresh():
    status, text = exchange(grant_type="refresh_token", refresh_token=tokens()["refresh"], client_id="c", scope="less")
    if status == 200:
        whole, new = json.load(open(file)), json.loads(text)
        whole["tokens"].update({name[:-6]: new[name] for name in new if name.endswith("_token")})
        json.dump(whole, open(file, "w"))
    return status
for step in sys.argv[2:]:
    print('#', step)
    if step == "show": print(open(file).read() if os.path.exists(file) else "no file")
    elif step == "claims": print(base64.urlsafe_b64decode(tokens()["id"].split(".")[1] + "=="))
    elif step == "api": call("/v1/messages", headers=bearer())
    elif step == "refresh": refresh()
    elif step == "work":
        if call("/v1/messages", headers=bearer())[0] != 200 and (refresh() != 200 or call("/v1/messages", headers=bearer())[0] != 200):
            sys.exit("the login is lost")
    elif step == "again":
        for _ in range(8): refresh() == 200 or sys.exit("the login is lost")
    elif step == "echo": call("/v1/echo", headers=bearer())
    elif step == "code": exchange(grant_type="authorization_code", code="abc", redirect_uri="http://localhost/")
    elif step == "foreign": exchange(grant_type="refresh_token", refresh_token="another-refresh-token")
    elif step == "query": call("/v1/messages?t=" + tokens()["refresh"], headers=bearer())
    elif step == "header": call("/v1/messages", headers={"authorization": "Bearer " + tokens()["refresh"]})
    elif step == "body": call("/v1/messages", "x" + tokens()["refresh"], bearer())
    elif step == "client": exchange(grant_type="refresh_token", refresh_token=tokens()["refresh"], client_id=tokens()["access"])
    elif step == "get": call("/oauth/token", headers=bearer())
"#;

/// A site with a server, and a person who is logged in to it.
struct LoginSite {
    site: TestSite,
    server: Arc<SyntheticOAuth>,
    port: u16,
}

/// Python, which the client needs.
fn has_python() -> bool {
    Command::new("python3").arg("--version").output().is_ok_and(|ended| ended.status.success())
}

impl LoginSite {
    fn new(form: SyntheticTokenForm, uses: usize) -> Self {
        let site = TestSite::new();
        let server = Arc::new(SyntheticOAuth::new(form, uses));
        let listening = Arc::clone(&server);
        let tls = TlsTestServer::start("localhost", move |head, body| listening.answer(head, body)).unwrap();
        fs::write(site.root().join("ca.pem"), &tls.authority_pem).unwrap();
        let directory = site.config.join("ringfence");
        fs::create_dir_all(&directory).unwrap();
        let config = format!("preset = \"edits\"\n[web]\nallow_private = [\"localhost:{}\"]\n", tls.port);
        fs::write(directory.join("config.toml"), config).unwrap();
        let login = format!(
            "[[logins]]\nname = \"agent-login\"\nfile = \".agent/login.json\"\nhosts = [\"localhost:{port}\"]\n\
             lock_directory = \".agent/refresh.lock\"\nlock_file = \".agent/login.lock\"\n\
             paths = [\"/v1/**\"]\nheaders = [\"authorization: Bearer\"]\ntoken_endpoint = \"localhost:{port}/oauth/token\"\n\
             answer = [\"expires_in\", \"scope\", \"token_type\"]\naccess_token = \"/tokens/access\"\n\
             refresh_token = \"/tokens/refresh\"\nid_token = \"/tokens/id\"\nexpires_at = \"/tokens/expires\"\n\
             copied = [\"/tokens/plan\", \"/tokens/expires\"]\nclaims = [\"exp\", \"https://api.openai.com/auth\"]\n\
             placeholders = {{ access_token = \"sk-ant-oat01-\", refresh_token = \"sk-ant-ort01-\" }}\n",
            port = tls.port
        );
        fs::create_dir_all(directory.join("profiles")).unwrap();
        fs::write(directory.join("profiles/agent.toml"), login).unwrap();
        let logged_in = Self { site, server, port: tls.port };
        let (access, refresh, id) = logged_in.server.tokens();
        let mut tokens =
            json!({"access": access, "refresh": refresh, "expires": 1, "plan": "max", "secret": "of-a-person-7d1"});
        if form == SyntheticTokenForm::Jwt {
            tokens["id"] = Value::from(id);
        }
        fs::create_dir_all(logged_in.site.home.join(".agent")).unwrap();
        fs::write(logged_in.file(), json!({"other": {"kept": [1]}, "tokens": tokens}).to_string()).unwrap();
        fs::set_permissions(logged_in.file(), fs::Permissions::from_mode(0o640)).unwrap();
        logged_in
    }

    fn file(&self) -> PathBuf {
        self.site.home.join(".agent/login.json")
    }

    fn command(&self, steps: &[&str]) -> Command {
        let mut program = self.site.program_without_arguments();
        program.arg("--workspace").arg(&self.site.workspace).args(["--approve", "never", "run", "--end", "later"]);
        // By the shell: a version manager in front of it is not inside.
        program.args(["--profile", "agent", "--", "sh", "-c", r#"exec python3 -c "$0" "$@""#, CLIENT]);
        program.arg(format!("https://localhost:{}", self.port));
        program.args(steps).env("SSL_CERT_FILE", self.site.root().join("ca.pem"));
        program
    }

    /// Runs the client, which sees no real token: not in what it prints, nor in what it leaves.
    #[track_caller]
    fn run(&self, steps: &[&str]) -> CliOutput {
        let ended = cli_output(self.command(steps).output().unwrap());
        self.assert_unseen(&ended);
        ended
    }

    #[track_caller]
    fn assert_unseen(&self, ended: &CliOutput) {
        let files = files_below(self.site.root());
        for token in self.server.issued() {
            let parts: Vec<&str> = token.split('.').collect();
            let part = parts.last().unwrap();
            assert!(!ended.out.contains(part) && !ended.err.contains(part), "{token}: {ended:?}");
            for (path, contents) in files.iter().filter(|(path, _)| *path != self.file()) {
                let is_in = contents.windows(part.len()).any(|bytes| bytes == part.as_bytes());
                assert!(!is_in, "{token} is in {}", path.display());
            }
        }
    }

    fn person(&self) -> Value {
        serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap()
    }

    /// The person's file has the tokens that are good now, and all else as before.
    #[track_caller]
    fn assert_valid(&self) {
        let (access, refresh, id) = self.server.tokens();
        let person = self.person();
        assert_eq!((&person["tokens"]["access"], &person["tokens"]["refresh"]), (&access.into(), &refresh.into()));
        if person["tokens"]["id"].is_string() {
            assert_eq!(person["tokens"]["id"], id);
        }
        assert_eq!((&person["other"]["kept"][0], &person["tokens"]["plan"]), (&1.into(), &"max".into()));
        assert_eq!(fs::metadata(self.file()).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(self.server.reuses(), 0);
        let beside = fs::read_dir(self.site.home.join(".agent")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut beside: Vec<_> = beside.map(|name| name.into_string().unwrap()).collect();
        beside.retain(|name| name != "login.lock");
        assert_eq!(beside, ["login.json"], "nothing is left beside it");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.site.state.join("audit/000001.jsonl")).unwrap()
    }
}

fn files_below(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(path) = left.pop() {
        match fs::symlink_metadata(&path) {
            // The work directory of an overlay is closed to a plain user, and empty.
            Ok(stat) if stat.is_dir() => {
                left.extend(fs::read_dir(&path).into_iter().flatten().map(|entry| entry.unwrap().path()));
            }
            Ok(stat) if stat.is_file() => found.push((path.clone(), fs::read(&path).unwrap())),
            _ => {}
        }
    }
    found
}

#[test]
fn a_login_is_refreshed_outside_and_never_seen_inside() {
    if !has_python() {
        return skip_without(Requirement::Python, "a client with a login");
    }
    for form in [SyntheticTokenForm::Opaque, SyntheticTokenForm::Jwt] {
        // Three uses of a token, so that it ends twice in the run.
        let login = LoginSite::new(form, 3);
        let ended = login.run(&["show", "work", "work", "work", "work", "work", "work", "work", "show"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(login.server.refreshes(), 2, "{ended:?}");
        login.assert_valid();
        assert!(login.person()["tokens"]["expires"].as_u64().unwrap() > 1_000_000_000_000, "{}", login.person());
        assert!(!ended.out.contains("of-a-person-7d1") && ended.out.contains("\"plan\""), "{ended:?}");
        for request in login.server.requests() {
            assert!(!request.contains("-rf") && !request.contains("placeholder"), "{request}");
            assert!(!request.contains("less"), "the scope is the one that was granted: {request}");
        }
        let log = login.log();
        assert!(log.contains("POST /oauth/token with credential `agent-login`"), "{log}");
        assert!(log.contains("GET /v1/messages with credential `agent-login`"), "{log}");
        // The next run starts with a file of its own, whatever the first one left.
        let again = login.run(&["work", "work", "show"]);
        assert_eq!(again.code, Some(0), "{again:?}");
        login.assert_valid();
        // The person's own client goes on with the file.
        let refresh = login.person()["tokens"]["refresh"].as_str().unwrap().to_owned();
        let request = json!({"grant_type": "refresh_token", "refresh_token": refresh}).to_string();
        assert_eq!(login.server.answer("POST /oauth/token HTTP/1.1", request.as_bytes()).status, 200);
    }
}

#[test]
fn a_program_reads_the_claims_of_a_web_token_that_are_named() {
    if !has_python() {
        return skip_without(Requirement::Python, "a client with a login");
    }
    let login = LoginSite::new(SyntheticTokenForm::Jwt, 100);
    let ended = login.run(&["claims", "refresh", "claims"]);
    assert_eq!(ended.out.matches("\"chatgpt_plan_type\":\"plus\"").count(), 2, "{ended:?}");
    assert!(ended.out.contains("\"exp\":4000000001") && ended.out.contains("\"exp\":4000000002"), "{ended:?}");
    assert!(!ended.out.contains("private-") && !ended.out.contains("ada@example.org"), "{ended:?}");
    login.assert_valid();
}

#[test]
fn two_runs_at_once_and_the_person_do_not_lose_the_login() {
    if !has_python() {
        return skip_without(Requirement::Python, "a client with a login");
    }
    let login = LoginSite::new(SyntheticTokenForm::Opaque, 1000);
    let runs = std::thread::scope(|scope| {
        let runs = [0; 3].map(|_| scope.spawn(|| cli_output(login.command(&["again", "api"]).output().unwrap())));
        runs.map(|run| run.join().unwrap())
    });
    for ended in &runs {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        login.assert_unseen(ended);
    }
    assert_eq!(login.server.refreshes(), 24);
    login.assert_valid();
}

/// However the token endpoint answers, the program sees no token. What can be read is stored: the old tokens are worth nothing.
#[test]
fn a_hostile_answer_is_cut_and_does_not_lose_the_login() {
    if !has_python() {
        return skip_without(Requirement::Python, "a client with a login");
    }
    for (style, passes, is_stored) in [
        (TokenAnswerStyle::Gzip, true, true),
        (TokenAnswerStyle::Chunked, true, true),
        (TokenAnswerStyle::EchoInHeader, true, true),
        (TokenAnswerStyle::OtherMember, true, true),
        (TokenAnswerStyle::EchoInBody, false, true),
        (TokenAnswerStyle::Huge, false, false),
        (TokenAnswerStyle::NotJson, false, false),
        (TokenAnswerStyle::WrongType, false, false),
        (TokenAnswerStyle::InError, false, false),
    ] {
        let login = LoginSite::new(SyntheticTokenForm::Opaque, 100);
        let before = login.person();
        login.server.answer_with([style]);
        let ended = login.run(&["refresh", "api"]);
        let refreshed = ended.out.split("# api").next().unwrap();
        assert_eq!(refreshed.contains("# refresh\n200"), passes, "{style:?}: {ended:?}");
        assert_eq!(ended.out.contains("# api\n200"), is_stored, "{style:?}: {ended:?}");
        match is_stored {
            true => login.assert_valid(),
            false => assert_eq!(login.person(), before, "{style:?}"),
        }
        assert!(!ended.out.contains("x-token") && !ended.out.contains("session_token"), "{style:?}: {ended:?}");
    }
}

#[test]
fn tokens_elsewhere_and_new_logins_are_refused_with_a_sentence() {
    if !has_python() {
        return skip_without(Requirement::Python, "a client with a login");
    }
    let login = LoginSite::new(SyntheticTokenForm::Opaque, 100);
    let steps = ["code", "foreign", "query", "header", "body", "client", "get", "echo"];
    let ended = login.run(&steps);
    let said = |step: &str| ended.out.split(&format!("# {step}\n")).nth(1).unwrap().split("\n# ").next().unwrap();
    for (step, sentence) in [
        ("code", "a new login is not possible inside"),
        ("foreign", "the refresh token is not one of this run"),
        ("query", "placeholder of a credential in its URL"),
        ("header", "placeholder of a credential in its header `authorization`"),
        ("body", "placeholder of a credential in its body"),
        ("client", "placeholder of a credential in its body"),
        ("get", "takes the method POST only"),
    ] {
        assert!(said(step).contains(sentence), "{step}: {ended:?}");
    }
    let sent = login.server.requests();
    assert!(sent.iter().all(|request| !request.contains("/oauth/token")), "{sent:?}");
    assert!(login.log().contains("tripwire: placeholder in the header `authorization`"), "{}", login.log());
    login.assert_valid();
}

#[test]
fn without_a_login_none_is_made_inside() {
    if !has_python() {
        return skip_without(Requirement::Python, "a client with a login");
    }
    let login = LoginSite::new(SyntheticTokenForm::Opaque, 100);
    fs::remove_file(login.file()).unwrap();
    let host = format!("localhost:{}", login.port);
    let mut program = login.command(&["show", "code"]);
    // A person who allows the host.
    let config = login.site.config.join("ringfence/config.toml");
    let rule = format!("[[rules]]\nname = \"its host\"\ndecision = \"allow\"\nhost = \"{host}\"\n");
    fs::write(&config, fs::read_to_string(&config).unwrap() + &rule).unwrap();
    let ended = cli_output(program.output().unwrap());
    assert!(ended.out.contains("no file") && ended.out.contains("a new login is not possible inside"), "{ended:?}");
    assert!(login.server.requests().is_empty() && !login.file().exists());
    // One that cannot be used is said, and is not in the way.
    fs::write(login.file(), "not JSON").unwrap();
    let ended = cli_output(login.command(&["show"]).output().unwrap());
    assert!(ended.out.contains("no file") && ended.code == Some(0), "{ended:?}");
    let note = "note: the login `agent-login` is not used: the login file `~/.agent/login.json` cannot be read: it is not JSON";
    assert!(ended.err.contains(note), "{ended:?}");
}
