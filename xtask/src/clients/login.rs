//! Claude Code and Codex inside `ringfence run` with a login instead of a key, and a synthetic OAuth server.
//!
//! The login has expired when the agent starts, and its tokens are good for a few requests only, so that the agent
//! refreshes them by itself. Afterwards the person's own file has the tokens that are good then, and no token is anywhere
//! else. Claude Code starts at a terminal as well, where it asks for no login.
//!
//! Not here: the network, and agents with a key (`wrapped.rs`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ringfence_testkit::oauth_server::{SyntheticOAuth, SyntheticTokenForm};
use serde_json::{Value, json};

use super::model::{ScriptedCall, ScriptedModel, ToolOwner};
use super::wrapped::{CONTENTS, FILE, Shell, Trial, WrappedAgent, contains, run_within};
use crate::external_tools::ChildGuard;
use crate::print_status;

/// Agents with a login.
pub(super) const NAMES: [&str; 2] = ["claude", "codex"];

/// Requests for which an access token is good.
const USES: usize = 2;

/// False if an agent failed.
pub(super) fn check(dir: &Path, agents: &[WrappedAgent]) -> bool {
    let logged_in = agents.iter().filter(|agent| NAMES.contains(&agent.name));
    let results = logged_in.map(|agent| {
        print_status(&format!("{} with a login …", agent.name));
        let mut result = check_agent(dir, agent);
        if agent.name == NAMES[0] {
            result = result.and_then(|refreshes| check_full_screen(dir, agent).map(|()| refreshes));
        }
        match &result {
            Ok(refreshes) => print_status(&format!(
                "{}: task done, {refreshes} refreshes, its file valid, no token elsewhere",
                agent.name
            )),
            Err(problem) => print_status(&format!("{}: {problem}", agent.name)),
        }
        result.is_ok()
    });
    results.collect::<Vec<_>>().iter().all(|fine| *fine)
}

/// One run of an agent whose person is logged in.
struct LoginTrial<'a> {
    trial: Trial<'a>,
    server: Arc<SyntheticOAuth>,
    /// The person's login.
    file: PathBuf,
    programs: PathBuf,
    _front: ChildGuard,
}

impl<'a> LoginTrial<'a> {
    fn new(dir: &Path, agent: &'a WrappedAgent, name: &str) -> Result<Self, String> {
        let io = |error: io::Error| error.to_string();
        let programs = agent.install(dir)?;
        let directory = super::empty_directory(dir, name).ok_or("cannot create a directory")?;
        let trial = Trial::new(agent, &directory, &dir.join("network"), programs.clone()).map_err(io)?;
        let is_claude = agent.name == NAMES[0];
        let form = if is_claude { SyntheticTokenForm::Opaque } else { SyntheticTokenForm::Jwt };
        let server = Arc::new(SyntheticOAuth::new(form, USES));
        let file = write_login(&trial.directory.join("home"), is_claude, &server).map_err(io)?;
        let Shell::Tool { name, argument } = agent.shell else { return Err("it has no tool for commands".to_owned()) };
        let command = format!(
            "echo '{CONTENTS}' > {FILE}; cat ~/.claude/.credentials.json ~/.codex/auth.json > login.out 2>/dev/null; env > env.out"
        );
        let mut arguments = json!({argument: command});
        if argument == "command" {
            arguments["description"] = json!("make the file");
        }
        let script = vec![ScriptedCall { owner: ToolOwner::Client, tool: name.to_owned(), arguments }];
        let requests = trial.directory.join("requests");
        let model = ScriptedModel::start_with_login(script, &requests, Arc::clone(&server)).map_err(io)?;
        let _front = trial.tls_front(model.port()).map_err(io)?;
        Ok(Self { trial, server, file, programs, _front })
    }

    /// Our program without a key.
    fn ringfence(&self) -> Command {
        let mut command = self.trial.ringfence();
        command.env_remove(self.trial.agent.key.0);
        command
    }
}

/// The first start of Claude Code at a terminal, which asks for no login.
fn check_full_screen(dir: &Path, agent: &WrappedAgent) -> Result<(), String> {
    let login = LoginTrial::new(dir, agent, "login-tui")?;
    let (program, made) = (login.programs.join(agent.program), login.trial.workspace().join(FILE));
    super::full_screen::check(&login.ringfence(), &program, &login.trial.directory, &made)
}

fn check_agent(dir: &Path, agent: &WrappedAgent) -> Result<usize, String> {
    let io = |error: io::Error| error.to_string();
    let login = LoginTrial::new(dir, agent, &format!("login-{}", agent.name))?;
    let LoginTrial { trial, server, file, programs, .. } = &login;
    let is_claude = agent.name == NAMES[0];
    let mut command = login.ringfence();
    command.args(["run", "--end", "keep", "--"]).arg(programs.join(agent.program));
    if !is_claude {
        // The scripted model reads requests as they are.
        command.args(["-c", "features.enable_request_compression=false"]);
    }
    command.args(agent.arguments);
    let output = trial.directory.join("output.txt");
    let ended = run_within(&mut command, &output).map_err(io)?;
    let read = |name: &str| fs::read_to_string(trial.workspace().join(name)).unwrap_or_default();
    if read(FILE).trim() != CONTENTS {
        return Err(format!("the task was not done: {ended}"));
    }
    if !read("login.out").contains("rf") {
        return Err("it found no login".to_owned());
    }
    let person: Value = serde_json::from_slice(&fs::read(file).map_err(io)?).map_err(|error| error.to_string())?;
    let (access, refresh, _) = server.tokens();
    let pointers = match is_claude {
        true => ["/claudeAiOauth/accessToken", "/claudeAiOauth/refreshToken"],
        false => ["/tokens/access_token", "/tokens/refresh_token"],
    };
    let found = pointers.map(|pointer| person.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned());
    if found != [access, refresh] || server.reuses() > 0 {
        return Err("its file does not have the tokens that are good now".to_owned());
    }
    if server.refreshes() == 0 {
        return Err("it refreshed nothing".to_owned());
    }
    fs::remove_file(file).map_err(io)?;
    for token in server.issued() {
        // Of a web token, the signature: claims are readable.
        let part = token.rsplit('.').next().unwrap_or(&token).to_owned();
        let parts = ["workspace", "state", "home", "output.txt"];
        if let Some(place) = parts.iter().find(|place| contains(&trial.directory.join(place), part.as_bytes())) {
            return Err(format!("a token is in `{place}`"));
        }
    }
    Ok(server.refreshes())
}

/// The file of a person who logged in long ago.
fn write_login(home: &Path, is_claude: bool, server: &SyntheticOAuth) -> io::Result<PathBuf> {
    let (access, refresh, id) = server.tokens();
    let (path, contents) = match is_claude {
        true => (
            ".claude/.credentials.json",
            json!({"claudeAiOauth": {
                "accessToken": access, "refreshToken": refresh, "expiresAt": 1, "scopes": ["user:inference", "user:profile"],
                "subscriptionType": "max", "rateLimitTier": "default_claude_max_5x",
            }}),
        ),
        false => (
            ".codex/auth.json",
            json!({
                "auth_mode": "chatgpt", "OPENAI_API_KEY": null, "last_refresh": "2025-01-01T00:00:00Z",
                "tokens": {"id_token": id, "access_token": access, "refresh_token": refresh, "account_id": "account-1"},
            }),
        ),
    };
    let path = home.join(path);
    fs::create_dir_all(path.parent().unwrap_or(home))?;
    fs::write(&path, contents.to_string())?;
    Ok(path)
}
