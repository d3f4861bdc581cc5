//! Real clients with a scripted model: whether our tools, and what our server says, reach the model.
//!
//! Each client is fetched by its name, gets a home of its own with the entry that `ringfence mcp install` writes, and is run
//! without a terminal, once with its own tools off and once with them on. Every tool of the dialect that the entry asks for
//! has to be in its first request, or in the list that the client gives to a search where it keeps tools back. Its model
//! reads a file, one that does not exist, and a long one in parts, and changes a line; the replies to the model are checked:
//! the bytes of the files and the sentence of the error.
//!
//! Not here: the comparison with the client's own tools (`replay.rs`).

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::model::{CallObserver, LoggedRequest, ScriptedCall, ScriptedModel, find_our_tool};
use super::replay::{self, ReplayReport};
use crate::external_tools::{ChildGuard, fetch_node_packages, succeeds};
use crate::{print_status, root};

/// Text that the model has to receive unchanged: quotes, a backslash, a tab, line breaks, a character of two bytes.
const PROOF: &str = "proof \"7f3a\" \\ back\n\ttab é\nlast line\n";

/// The long file: 99 kB, more than a result of any client.
const LONG_LINES: usize = 1980;

/// Parts in which it is read, so that each fits into a result.
const LONG_PARTS: usize = 4;

fn long_line(number: usize) -> String {
    format!("line {number:04} of a long file, with forty bytes more..")
}

/// The tools of a client's entry.
#[derive(Clone, Copy, Debug)]
enum ClientTools {
    Claude,
    Codex,
    Gemini,
}

impl ClientTools {
    /// The dialect of the entry.
    fn dialect(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
        }
    }

    fn read(self, file: &str, first: usize, count: usize) -> ScriptedCall {
        let last = first + count - 1;
        let (tool, arguments) = match self {
            Self::Claude => ("Read", json!({"file_path": file, "offset": first, "limit": count})),
            Self::Codex => ("exec_command", json!({"cmd": format!("sed -n {first},{last}p {file}")})),
            Self::Gemini => ("read_file", json!({"file_path": file, "start_line": first, "end_line": last})),
        };
        ScriptedCall::ours(tool, arguments)
    }

    /// The calls of the model: proof, missing file, the long file whole and in parts, a change.
    fn script(self) -> Vec<ScriptedCall> {
        let whole = |file: &str| match self {
            Self::Claude => ("Read", json!({"file_path": file})),
            Self::Codex => ("exec_command", json!({"cmd": format!("cat {file}")})),
            Self::Gemini => ("read_file", json!({"file_path": file})),
        };
        let change = match self {
            Self::Claude => {
                ("Edit", json!({"file_path": "proof.txt", "old_string": "last line", "new_string": "changed line"}))
            }
            Self::Codex => (
                "apply_patch",
                json!({"input": "*** Begin Patch\n*** Update File: proof.txt\n@@\n-last line\n+changed line\n*** End Patch"}),
            ),
            Self::Gemini => (
                "replace",
                json!({"file_path": "proof.txt", "instruction": "change the last line", "old_string": "last line",
                    "new_string": "changed line"}),
            ),
        };
        let count = LONG_LINES / LONG_PARTS;
        let parts = (0..LONG_PARTS).map(|part| self.read("long.txt", part * count + 1, count));
        let ours = |(tool, arguments): (&str, Value)| ScriptedCall::ours(tool, arguments);
        let first = [whole("proof.txt"), whole("missing.txt"), whole("long.txt")];
        first.into_iter().map(ours).chain(parts).chain([ours(change)]).collect()
    }

    /// The text of lines as a read prints it.
    fn printed<'a>(self, lines: impl Iterator<Item = (usize, Cow<'a, str>)>) -> String {
        match self {
            Self::Claude | Self::Gemini => lines.map(|(number, line)| format!("{number}\t{line}\n")).collect(),
            Self::Codex => lines.map(|(_, line)| format!("{line}\n")).collect(),
        }
    }

    fn printed_proof(self) -> String {
        self.printed(PROOF.lines().enumerate().map(|(at, line)| (at + 1, line.into())))
    }

    fn printed_part(self, part: usize) -> String {
        let count = LONG_LINES / LONG_PARTS;
        let lines = part * count + 1..=(part + 1) * count;
        self.printed(lines.map(|number| (number, long_line(number).into())))
    }
}

/// Time limit of a client for its three steps.
const MAX_RUN_TIME: Duration = Duration::from_secs(240);

const PROMPT: &str =
    "Read proof.txt, missing.txt and long.txt, say what is in them, and change the last line of the first.";

/// A client, and how it is pointed at a model of our own. `{URL}` stands for the model's address.
pub(super) struct RealClient {
    pub(super) name: &'static str,
    tools: ClientTools,
    package: &'static str,
    /// Below `node_modules/.bin`.
    program: &'static str,
    /// Files below the run's directory that are there before the entry is installed, with the client's own tools off.
    tools_off: &'static [(&'static str, &'static str)],
    /// The same with its own tools on, and allowed.
    tools_on: &'static [(&'static str, &'static str)],
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
    /// The calls of `replay.rs`, as JSON.
    pub(super) calls: &'static str,
}

/// Whether a client has its own tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnTools {
    Off,
    On,
}

pub(super) const CLIENTS: [RealClient; 5] = [
    RealClient {
        name: "claude-code",
        tools: ClientTools::Claude,
        package: "@anthropic-ai/claude-code@2.1.325",
        program: "claude",
        tools_off: &[
            ("home/.claude/settings.json", r#"{"enableAllProjectMcpServers": true}"#),
            (
                "workspace/.claude/settings.json",
                r#"{"permissions": {"deny": ["Bash", "DesignSync", "Edit", "EnterWorktree", "Glob", "Grep", "Monitor",
                  "NotebookEdit", "Read", "WebFetch", "WebSearch", "Write"]}}"#,
            ),
        ],
        tools_on: &[("home/.claude/settings.json", r#"{"enableAllProjectMcpServers": true}"#)],
        variables: &[
            ("ANTHROPIC_BASE_URL", "{URL}"),
            ("ANTHROPIC_API_KEY", "placeholder"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
        ],
        arguments: &["-p", PROMPT, "--allowedTools", "mcp__ringfence,Bash,Edit,Glob,Grep,Read,Write"],
        calls: include_str!("../../clients/replay/claude-code.json"),
    },
    RealClient {
        name: "codex",
        tools: ClientTools::Codex,
        package: "@openai/codex@0.166.0",
        program: "codex",
        tools_off: &[(
            "home/.codex/config.toml",
            "model_provider = \"scripted\"\nmodel = \"gpt-5.5\"\nsandbox_mode = \"read-only\"\n\
             web_search = \"disabled\"\n\n[features]\nshell_tool = false\nview_image = false\n\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{URL}/v1\"\n\
             env_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\n",
        )],
        tools_on: &[(
            "home/.codex/config.toml",
            "model_provider = \"scripted\"\nmodel = \"gpt-5.5\"\nsandbox_mode = \"danger-full-access\"\n\
             web_search = \"disabled\"\n\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{URL}/v1\"\n\
             env_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\n",
        )],
        variables: &[("OPENAI_API_KEY", "placeholder")],
        arguments: &["exec", "--skip-git-repo-check", PROMPT],
        calls: include_str!("../../clients/replay/codex.json"),
    },
    RealClient {
        name: "gemini",
        tools: ClientTools::Gemini,
        package: "@google/gemini-cli@0.61.0",
        program: "gemini",
        tools_off: &[(
            "home/.gemini/settings.json",
            r#"{"security": {"auth": {"selectedType": "gemini-api-key"}}, "model": {"disableLoopDetection": true}, "tools": {"core": ["mcp_ringfence_*"]}}"#,
        )],
        tools_on: &[(
            "home/.gemini/settings.json",
            r#"{"security": {"auth": {"selectedType": "gemini-api-key"}}, "model": {"disableLoopDetection": true}}"#,
        )],
        variables: &[
            ("GEMINI_API_KEY", "placeholder"),
            ("GOOGLE_GEMINI_BASE_URL", "{URL}"),
            ("GEMINI_SANDBOX", "false"),
            ("GEMINI_CLI_TRUST_WORKSPACE", "true"),
            ("GEMINI_TELEMETRY_ENABLED", "false"),
        ],
        arguments: &["--yolo", "-m", "gemini-2.5-flash", "-p", PROMPT],
        calls: include_str!("../../clients/replay/gemini.json"),
    },
    RealClient {
        name: "goose",
        tools: ClientTools::Claude,
        package: "@aaif/goose-acp@1.50.0",
        program: "goose-binary-linux-x64",
        tools_off: &[(
            "home/.config/goose/config.yaml",
            "extensions:\n  analyze: {enabled: false, type: platform, name: analyze}\n  \
             developer: {enabled: false, type: builtin, name: developer}\n  \
             extensionmanager: {enabled: false, type: platform, name: extensionmanager}\n  \
             summon: {enabled: false, type: platform, name: summon}\n",
        )],
        tools_on: &[("home/.config/goose/config.yaml", "GOOSE_TELEMETRY_ENABLED: false\n")],
        variables: &[
            ("GOOSE_PROVIDER", "anthropic"),
            ("GOOSE_MODEL", "scripted"),
            ("GOOSE_MODE", "auto"),
            ("GOOSE_DISABLE_KEYRING", "1"),
            ("ANTHROPIC_HOST", "{URL}"),
            ("ANTHROPIC_API_KEY", "placeholder"),
        ],
        arguments: &["run", "--no-session", "-t", PROMPT],
        calls: include_str!("../../clients/replay/goose.json"),
    },
    RealClient {
        name: "opencode",
        tools: ClientTools::Claude,
        package: "opencode-ai@1.18.33",
        program: "opencode",
        tools_off: &[(
            "home/.config/opencode/opencode.json",
            r#"{"provider": {"scripted": {"npm": "@ai-sdk/openai-compatible", "name": "scripted",
              "options": {"baseURL": "{URL}/v1", "apiKey": "placeholder"}, "models": {"scripted": {"name": "scripted"}}}},
              "permission": {"*": "deny", "ringfence_*": "allow"}}"#,
        )],
        tools_on: &[(
            "home/.config/opencode/opencode.json",
            r#"{"provider": {"scripted": {"npm": "@ai-sdk/openai-compatible", "name": "scripted",
              "options": {"baseURL": "{URL}/v1", "apiKey": "placeholder"}, "models": {"scripted": {"name": "scripted"}}}},
              "permission": {"*": "allow"}}"#,
        )],
        variables: &[("OPENCODE_DISABLE_AUTOUPDATE", "1"), ("OPENCODE_DISABLE_MODELS_FETCH", "1")],
        arguments: &["run", "-m", "scripted/scripted", PROMPT],
        calls: include_str!("../../clients/replay/opencode.json"),
    },
];

/// The report about one client.
#[derive(Debug, Default)]
pub(super) struct ClientReport {
    /// Our tools that the model was offered with a schema, by whether the client's own tools are off or on.
    pub(super) offered: [usize; 2],
    /// Tools of the dialect that it was not offered.
    pub(super) missing: Vec<String>,
    pub(super) bytes: bool,
    pub(super) sentence: bool,
    /// Every line of the long file reached the model, in parts.
    pub(super) long_file: bool,
    /// The change was made.
    pub(super) changed: bool,
    /// The comparison with its own tools.
    pub(super) replay: ReplayReport,
    /// Path of the requests, and the reason for a missing part.
    pub(super) note: String,
}

impl ClientReport {
    pub(super) fn passed(&self) -> bool {
        let has_all = self.missing.is_empty() && self.offered.iter().all(|count| *count > 0);
        has_all && self.bytes && self.sentence && self.long_file && self.changed && self.replay.passed()
    }
}

/// One run of a client.
pub(super) struct ClientRun {
    pub(super) directory: PathBuf,
    pub(super) requests: Vec<LoggedRequest>,
    /// How it ended, and where its requests are.
    pub(super) note: String,
}

impl RealClient {
    pub(super) fn check(&self, dir: &Path, ringfence: &Path) -> ClientReport {
        self.try_check(dir, ringfence).unwrap_or_else(|note| ClientReport { note, ..ClientReport::default() })
    }

    fn try_check(&self, dir: &Path, ringfence: &Path) -> Result<ClientReport, String> {
        let modules = self.install(dir)?;
        let setup = ClientSetup { client: self, dir, ringfence, modules: &modules };
        let off = setup.run(OwnTools::Off, "off", self.proof_run())?;
        let every = setup.dialect_tools(&off.directory)?;
        let mut report = report(&off.requests, self.tools, &every);
        report.note = off.note;
        let changed =
            fs::read_to_string(off.directory.join("workspace/proof.txt")).map_err(|error| error.to_string())?;
        report.changed = changed == PROOF.replace("last line", "changed line");
        let on = setup.run(OwnTools::On, "on", self.proof_run())?;
        let with_own = self::report(&on.requests, self.tools, &every);
        report.offered[1] = with_own.offered[0];
        report.missing.extend(with_own.missing.iter().map(|name| format!("{name} (own tools on)")));
        report.replay = replay::compare(&setup, self.calls)?;
        Ok(report)
    }

    fn proof_run(&self) -> RunPlan<'_> {
        RunPlan {
            script: Box::new(|_| self.tools.script()),
            fill: Box::new(write_proof),
            observer: Box::new(|_| CallObserver(Box::new(|_| ()))),
        }
    }

    /// Its package, below `target`. One that is there already is not fetched again.
    fn install(&self, dir: &Path) -> Result<PathBuf, String> {
        let dir = dir.join(self.name);
        let modules = dir.join("node_modules");
        let stamp = dir.join("installed");
        if fs::read_to_string(&stamp).is_ok_and(|package| package == self.package) {
            return Ok(modules);
        }
        fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        fetch_node_packages(&dir, &[self.package]).ok_or_else(|| format!("cannot install {}", self.package))?;
        fs::write(stamp, self.package).map_err(|error| error.to_string())?;
        Ok(modules)
    }
}

/// A part of a run that depends on the path of its workspace.
type ByWorkspace<'a, T> = Box<dyn FnOnce(&Path) -> T + 'a>;

/// The calls of a run's model, the files that are there, and who hears of the results.
pub(super) struct RunPlan<'a> {
    pub(super) script: ByWorkspace<'a, Vec<ScriptedCall>>,
    pub(super) fill: ByWorkspace<'a, io::Result<()>>,
    pub(super) observer: ByWorkspace<'a, CallObserver>,
}

/// A client that is installed, and what it is run with.
pub(super) struct ClientSetup<'a> {
    client: &'a RealClient,
    dir: &'a Path,
    ringfence: &'a Path,
    modules: &'a Path,
}

impl ClientSetup<'_> {
    pub(super) fn name(&self) -> &'static str {
        self.client.name
    }

    /// Runs the client in a new workspace.
    pub(super) fn run(&self, own: OwnTools, name: &str, plan: RunPlan<'_>) -> Result<ClientRun, String> {
        let name = format!("{}-{name}", self.client.name);
        let directory = super::empty_directory(self.dir, &name).ok_or("cannot create a directory for the run")?;
        let io = |error: io::Error| error.to_string();
        let workspace = directory.join("workspace");
        let observer = (plan.observer)(&workspace);
        let requests = directory.join("requests");
        let model = ScriptedModel::start((plan.script)(&workspace), &requests, observer).map_err(io)?;
        self.prepare(own, &directory, &model.url()).map_err(io)?;
        (plan.fill)(&workspace).map_err(io)?;
        let mut install = self.command(self.ringfence, &directory, &model.url());
        install.args(["mcp", "install", self.client.name, "--workspace", ".", "--yes"]).stdout(Stdio::null());
        if !succeeds(&mut install) {
            return Err(format!("`ringfence mcp install {}` failed", self.client.name));
        }
        let mut command = self.command(&self.modules.join(".bin").join(self.client.program), &directory, &model.url());
        let end = run_within(command.args(self.client.arguments).current_dir(&workspace), &directory).map_err(io)?;
        let log = directory.strip_prefix(root()).unwrap_or(&directory).display().to_string();
        Ok(ClientRun { requests: model.requests(), note: format!("{end}; requests in {log}"), directory })
    }

    /// The names of all tools of the dialect.
    fn dialect_tools(&self, directory: &Path) -> Result<Vec<String>, String> {
        let mut command = self.command(self.ringfence, directory, "");
        command.args(["tools", "--format", "functions", "--workspace", ".", "--dialect", self.client.tools.dialect()]);
        let printed = command.output().map_err(|error| error.to_string())?.stdout;
        let tools: Vec<Value> = serde_json::from_slice(&printed).map_err(|error| error.to_string())?;
        Ok(tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect())
    }

    fn prepare(&self, own: OwnTools, directory: &Path, url: &str) -> io::Result<()> {
        for made in ["workspace", "home/.config", "state"] {
            fs::create_dir_all(directory.join(made))?;
        }
        // Approval of changes and programs is another matter.
        fs::create_dir_all(directory.join("home/.config/ringfence"))?;
        fs::write(directory.join("home/.config/ringfence/config.toml"), "dialect = \"auto\"\npreset = \"edits\"\n")?;
        let settings = match own {
            OwnTools::Off => self.client.tools_off,
            OwnTools::On => self.client.tools_on,
        };
        for (name, text) in settings {
            let file = directory.join(name);
            fs::create_dir_all(file.parent().unwrap_or(directory))?;
            fs::write(file, text.replace("{URL}", url))?;
        }
        Ok(())
    }

    /// A program with the run's own home, and nothing of ours but the search path.
    fn command(&self, program: &Path, directory: &Path, url: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let ours = std::iter::once(root().join("target/debug"));
        let path = std::env::join_paths(ours.chain(std::env::split_paths(&path))).unwrap_or(path);
        let home = directory.join("home");
        let mut command = Command::new(program);
        command.env_clear().env("PATH", path).env("HOME", &home).env("XDG_CONFIG_HOME", home.join(".config"));
        command.env("RINGFENCE_STATE_DIR", directory.join("state")).env("LANG", "C.UTF-8").env("TERM", "dumb");
        command.envs(self.client.variables.iter().map(|(name, value)| (*name, value.replace("{URL}", url))));
        command.current_dir(directory.join("workspace")).stdin(Stdio::null());
        command
    }
}

/// The files of the check.
fn write_proof(workspace: &Path) -> io::Result<()> {
    fs::write(workspace.join("proof.txt"), PROOF)?;
    let long: String = (1..=LONG_LINES).map(|number| long_line(number) + "\n").collect();
    fs::write(workspace.join("long.txt"), long)
}

/// Runs a client, with what it prints in a file, and says how it ended.
fn run_within(command: &mut Command, directory: &Path) -> io::Result<String> {
    let output = fs::File::create(directory.join("output.txt"))?;
    let errors = output.try_clone()?;
    let mut running = ChildGuard(command.stdout(output).stderr(errors).spawn()?);
    let until = Instant::now() + MAX_RUN_TIME;
    loop {
        if let Some(status) = running.0.try_wait()? {
            return Ok(status.to_string());
        }
        if Instant::now() > until {
            return Ok(format!("ended after {} s", MAX_RUN_TIME.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Builds the report from the requests of a client, and the tools that its model should have.
fn report(requests: &[LoggedRequest], tools: ClientTools, every: &[String]) -> ClientReport {
    let mut report = ClientReport { missing: every.to_vec(), ..ClientReport::default() };
    // A client that keeps tools back lists them in its second request.
    let with_tools = requests.iter().filter(|request| !request.format.tools(&request.body).is_empty());
    let Some(first) = with_tools.clone().find(|request| !request.format.can_search_tools(&request.body)) else {
        report.note = "no request with tools".to_owned();
        return report;
    };
    let offered = first.format.tools(&first.body);
    let is_offered = |name: &String| find_our_tool(&offered, name).is_some_and(|tool| tool.has_schema);
    report.missing.retain(|name| !is_offered(name));
    report.offered[0] = every.len() - report.missing.len();
    let results = requests.iter().map(|request| request.format.results(&request.body));
    let results: Vec<Value> = results.max_by_key(Vec::len).unwrap_or_default();
    let texts_of = |at: usize| results.get(at).map(texts).unwrap_or_default();
    let has = |at: usize, wanted: &str| texts_of(at).iter().any(|text| text.contains(wanted));
    // A client may trim the end of a text.
    report.bytes = has(0, tools.printed_proof().trim_end());
    report.long_file = (0..LONG_PARTS).all(|part| has(3 + part, tools.printed_part(part).trim_end()));
    let is_sentence = |text: &String| text.contains("missing.txt") && !text.contains("\"ok\"");
    report.sentence = texts_of(1).iter().any(is_sentence);
    report
}

/// Every text in a value. A text that is JSON in itself stays one: a model would read it so.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(fields) => fields.values().flat_map(texts).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

/// The results as a table.
pub(super) fn print_table(reports: &[(&str, ClientReport)]) {
    let word = |fine: bool| if fine { "yes" } else { "NO" };
    print_status(
        "| client | our tools, own tools off / on | file | error | long file | change | same as its own tools |",
    );
    print_status("|---|---|---|---|---|---|---|");
    for (name, report) in reports {
        let ClientReport { offered, missing, bytes, sentence, long_file, changed, replay, .. } = report;
        let all = if missing.is_empty() { "all" } else { "NOT ALL" };
        let [off, on] = offered;
        print_status(&format!(
            "| {name} | {off} / {on}, {all} | {} | {} | {} | {} | {replay} |",
            word(*bytes),
            word(*sentence),
            word(*long_file),
            word(*changed)
        ));
    }
    for (name, report) in reports {
        print_status(&format!("{name}: {}", report.note));
        if !report.missing.is_empty() {
            print_status(&format!("{name}: not offered: {}", report.missing.join(", ")));
        }
        report.replay.details.iter().for_each(|line| print_status(&format!("{name}: {line}")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ClientTools, LONG_PARTS, report};
    use crate::clients::model::LoggedRequest;
    use crate::clients::wire_formats::WireFormat;

    const TOOLS: [&str; 2] = ["Read", "TaskStop"];

    /// The requests of a client whose model got these two results.
    fn requests(format: WireFormat, first: &str, second: &str) -> Vec<LoggedRequest> {
        let named: Vec<Value> = TOOLS.iter().map(|name| json!(format!("mcp__ringfence__{name}"))).collect();
        let schema = json!({"type": "object", "properties": {}});
        let tool = |name: &Value| match format {
            WireFormat::Chat => json!({"type": "function", "function": {"name": name, "parameters": schema}}),
            WireFormat::Gemini => json!({"functionDeclarations": [{"name": name, "parametersJsonSchema": schema}]}),
            WireFormat::Anthropic => json!({"name": name, "input_schema": schema}),
            WireFormat::Responses => json!({"type": "function", "name": name, "parameters": schema}),
        };
        let tools: Vec<Value> = named.iter().map(tool).collect();
        let result = |text: &str| match format {
            WireFormat::Anthropic => json!({"role": "user", "content": [{"type": "tool_result", "content": text}]}),
            WireFormat::Chat => json!({"role": "tool", "content": text}),
            WireFormat::Responses => json!({"type": "function_call_output", "output": text}),
            WireFormat::Gemini => json!({"parts": [{"functionResponse": {"response": {"output": text}}}]}),
        };
        let key = match format {
            WireFormat::Anthropic | WireFormat::Chat => "messages",
            WireFormat::Responses => "input",
            WireFormat::Gemini => "contents",
        };
        let body = |results: Vec<Value>| json!({"tools": tools, key: results});
        vec![
            LoggedRequest { format, body: json!({"messages": []}) },
            LoggedRequest { format, body: body(vec![]) },
            LoggedRequest {
                format,
                body: body(
                    [result(first), result(second), result("cut")]
                        .into_iter()
                        .chain((0..LONG_PARTS).map(|part| result(&ClientTools::Claude.printed_part(part))))
                        .collect(),
                ),
            },
        ]
    }

    #[test]
    fn a_result_counts_when_the_model_reads_it_as_it_is() {
        for format in [WireFormat::Anthropic, WireFormat::Chat, WireFormat::Responses, WireFormat::Gemini] {
            let (tools, proof) = (ClientTools::Claude, ClientTools::Claude.printed_proof());
            let every = TOOLS.map(str::to_owned);
            let fine = report(&requests(format, &proof, "there is no `missing.txt`"), tools, &every);
            assert!(fine.bytes && fine.sentence && fine.long_file, "{format:?}: {fine:?}");
            assert!(fine.missing.is_empty() && fine.offered[0] == TOOLS.len(), "{format:?}: {fine:?}");
            let more = report(&requests(format, &proof, ""), tools, &["Read".to_owned(), "Undo".to_owned()]);
            assert_eq!(more.missing, ["Undo"], "{format:?}");
            let quoted = json!({"content": proof}).to_string();
            let code = r#"{"ok":false,"error":{"message":"there is no `missing.txt`"}}"#;
            let hidden = report(&requests(format, &quoted, code), tools, &every);
            assert!(!hidden.bytes && !hidden.sentence, "{format:?}: {hidden:?}");
            let placeholder = report(&requests(format, "The result is in structuredContent.", ""), tools, &every);
            assert!(!placeholder.bytes && !placeholder.sentence, "{format:?}: {placeholder:?}");
        }
        assert!(!report(&[], ClientTools::Codex, &[]).passed());
    }
}
