//! Real clients with a scripted model: whether what our server says reaches the model.
//!
//! Each client is fetched by its name, gets a home of its own with the settings that turn its own tools off and the
//! entry that `ringfence mcp install` writes, and is run without a terminal. Its model has the tools of the dialect that the
//! entry asks for. It reads a file, one that does not exist, and a long one in parts, and changes a line. The replies to
//! the model are checked: the bytes of the files, the sentence of the error, and the schemas of our core tools in the first
//! request.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::model::{LoggedRequest, ScriptedCall, ScriptedModel, find_our_tool};
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
    /// Every one of them has to be offered with its schema.
    fn core(self) -> &'static [&'static str] {
        match self {
            Self::Claude => &["Read", "Edit", "Write", "Bash", "Glob", "Grep", "Undo"],
            Self::Codex => &["exec_command", "write_stdin", "apply_patch", "undo"],
            Self::Gemini => {
                &["read_file", "replace", "write_file", "list_directory", "glob", "grep_search", "run_shell_command"]
            }
        }
    }

    fn read(self, file: &str, first: usize, count: usize) -> ScriptedCall {
        let last = first + count - 1;
        match self {
            Self::Claude => ("Read", json!({"file_path": file, "offset": first, "limit": count})),
            Self::Codex => ("exec_command", json!({"cmd": format!("sed -n {first},{last}p {file}")})),
            Self::Gemini => ("read_file", json!({"file_path": file, "start_line": first, "end_line": last})),
        }
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
        let first = [whole("proof.txt"), whole("missing.txt"), whole("long.txt")];
        first.into_iter().chain(parts).chain([change]).collect()
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
    /// Files below the run's directory that are there before the entry is installed.
    settings: &'static [(&'static str, &'static str)],
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
}

pub(super) const CLIENTS: [RealClient; 5] = [
    RealClient {
        name: "claude-code",
        tools: ClientTools::Claude,
        package: "@anthropic-ai/claude-code@2.1.325",
        program: "claude",
        settings: &[
            ("home/.claude/settings.json", r#"{"enableAllProjectMcpServers": true}"#),
            (
                "workspace/.claude/settings.json",
                r#"{"permissions": {"deny": ["Bash", "DesignSync", "Edit", "EnterWorktree", "Glob", "Grep", "Monitor",
                  "NotebookEdit", "Read", "WebFetch", "WebSearch", "Write"]}}"#,
            ),
        ],
        variables: &[
            ("ANTHROPIC_BASE_URL", "{URL}"),
            ("ANTHROPIC_API_KEY", "placeholder"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
        ],
        arguments: &["-p", PROMPT, "--allowedTools", "mcp__ringfence"],
    },
    RealClient {
        name: "codex",
        tools: ClientTools::Codex,
        package: "@openai/codex@0.166.0",
        program: "codex",
        settings: &[(
            "home/.codex/config.toml",
            "model_provider = \"scripted\"\nmodel = \"gpt-5.5\"\nsandbox_mode = \"read-only\"\n\
             web_search = \"disabled\"\n\n[features]\nshell_tool = false\nview_image = false\n\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{URL}/v1\"\n\
             env_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\n",
        )],
        variables: &[("OPENAI_API_KEY", "placeholder")],
        arguments: &["exec", "--skip-git-repo-check", PROMPT],
    },
    RealClient {
        name: "gemini",
        tools: ClientTools::Gemini,
        package: "@google/gemini-cli@0.61.0",
        program: "gemini",
        settings: &[(
            "home/.gemini/settings.json",
            r#"{"security": {"auth": {"selectedType": "gemini-api-key"}}, "tools": {"core": ["update_topic"]}}"#,
        )],
        variables: &[
            ("GEMINI_API_KEY", "placeholder"),
            ("GOOGLE_GEMINI_BASE_URL", "{URL}"),
            ("GEMINI_SANDBOX", "false"),
            ("GEMINI_CLI_TRUST_WORKSPACE", "true"),
            ("GEMINI_TELEMETRY_ENABLED", "false"),
        ],
        arguments: &["--yolo", "-m", "gemini-2.5-flash", "-p", PROMPT],
    },
    RealClient {
        name: "goose",
        tools: ClientTools::Claude,
        package: "@aaif/goose-acp@1.50.0",
        program: "goose-binary-linux-x64",
        settings: &[(
            "home/.config/goose/config.yaml",
            "extensions:\n  analyze: {enabled: false, type: platform, name: analyze}\n  \
             developer: {enabled: false, type: builtin, name: developer}\n  \
             extensionmanager: {enabled: false, type: platform, name: extensionmanager}\n  \
             summon: {enabled: false, type: platform, name: summon}\n",
        )],
        variables: &[
            ("GOOSE_PROVIDER", "anthropic"),
            ("GOOSE_MODEL", "scripted"),
            ("GOOSE_MODE", "auto"),
            ("GOOSE_DISABLE_KEYRING", "1"),
            ("ANTHROPIC_HOST", "{URL}"),
            ("ANTHROPIC_API_KEY", "placeholder"),
        ],
        arguments: &["run", "--no-session", "-t", PROMPT],
    },
    RealClient {
        name: "opencode",
        tools: ClientTools::Claude,
        package: "opencode-ai@1.18.33",
        program: "opencode",
        settings: &[(
            "home/.config/opencode/opencode.json",
            r#"{"provider": {"scripted": {"npm": "@ai-sdk/openai-compatible", "name": "scripted",
              "options": {"baseURL": "{URL}/v1", "apiKey": "placeholder"}, "models": {"scripted": {"name": "scripted"}}}},
              "permission": {"*": "deny", "ringfence_*": "allow"}}"#,
        )],
        variables: &[("OPENCODE_DISABLE_AUTOUPDATE", "1"), ("OPENCODE_DISABLE_MODELS_FETCH", "1")],
        arguments: &["run", "-m", "scripted/scripted", PROMPT],
    },
];

/// The report about one client.
#[derive(Debug, Default)]
pub(super) struct ClientReport {
    /// Number of our tools in the first request with tools.
    pub(super) offered: usize,
    pub(super) all_core: bool,
    pub(super) bytes: bool,
    pub(super) sentence: bool,
    /// Every line of the long file reached the model, in parts.
    pub(super) long_file: bool,
    /// The change was made.
    pub(super) changed: bool,
    /// Path of the requests, and the reason for a missing part.
    pub(super) note: String,
}

impl ClientReport {
    pub(super) fn passed(&self) -> bool {
        self.all_core && self.bytes && self.sentence && self.long_file && self.changed
    }
}

impl RealClient {
    pub(super) fn check(&self, dir: &Path, ringfence: &Path) -> ClientReport {
        self.try_check(dir, ringfence).unwrap_or_else(|note| ClientReport { note, ..ClientReport::default() })
    }

    fn try_check(&self, dir: &Path, ringfence: &Path) -> Result<ClientReport, String> {
        let modules = self.install(dir)?;
        let directory = super::empty_directory(dir, self.name).ok_or("cannot create a directory for the run")?;
        let io = |error: io::Error| error.to_string();
        let model = ScriptedModel::start(self.tools.script(), &directory.join("requests")).map_err(io)?;
        self.prepare(&directory, &model.url()).map_err(io)?;
        let workspace = directory.join("workspace");
        let mut install = self.command(ringfence, &directory, &model.url());
        install.args(["mcp", "install", self.name, "--workspace", ".", "--yes"]).stdout(Stdio::null());
        if !succeeds(&mut install) {
            return Err(format!("`ringfence mcp install {}` failed", self.name));
        }
        let mut command = self.command(&modules.join(".bin").join(self.program), &directory, &model.url());
        let end = run_within(command.args(self.arguments).current_dir(&workspace), &directory).map_err(io)?;
        let log = directory.strip_prefix(root()).unwrap_or(&directory).display().to_string();
        let mut report = report(&model.requests(), self.tools, &format!("{end}; requests in {log}"));
        let changed = fs::read_to_string(workspace.join("proof.txt")).map_err(io)?;
        report.changed = changed == PROOF.replace("last line", "changed line");
        Ok(report)
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

    fn prepare(&self, directory: &Path, url: &str) -> io::Result<()> {
        for made in ["workspace", "home/.config", "state"] {
            fs::create_dir_all(directory.join(made))?;
        }
        fs::write(directory.join("workspace/proof.txt"), PROOF)?;
        let long: String = (1..=LONG_LINES).map(|number| long_line(number) + "\n").collect();
        fs::write(directory.join("workspace/long.txt"), long)?;
        // Approval of changes and programs is another matter.
        fs::create_dir_all(directory.join("home/.config/ringfence"))?;
        fs::write(directory.join("home/.config/ringfence/config.toml"), "dialect = \"auto\"\npreset = \"edits\"\n")?;
        for (name, text) in self.settings {
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
        command.envs(self.variables.iter().map(|(name, value)| (*name, value.replace("{URL}", url))));
        command.current_dir(directory.join("workspace")).stdin(Stdio::null());
        command
    }
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

/// Builds the report from the requests of a client.
fn report(requests: &[LoggedRequest], tools: ClientTools, note: &str) -> ClientReport {
    let mut report = ClientReport { note: note.to_owned(), ..ClientReport::default() };
    let with_tools = requests.iter().map(|request| (request, request.format.tools(&request.body)));
    let Some((_, first)) = with_tools.into_iter().find(|(_, tools)| !tools.is_empty()) else {
        report.note = format!("no request with tools; {note}");
        return report;
    };
    let is_ours = |name: &str| name.contains("ringfence");
    report.offered =
        first.iter().filter(|tool| is_ours(&tool.name) || tool.namespace.as_deref().is_some_and(is_ours)).count();
    report.all_core = tools.core().iter().all(|name| find_our_tool(&first, name).is_some_and(|tool| tool.has_schema));
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
    print_status("client       our tools  core tools  bytes of a file  sentence of an error  long file  change");
    for (name, report) in reports {
        let ClientReport { offered, all_core, bytes, sentence, long_file, changed, note } = report;
        print_status(&format!(
            "{name:12} {offered:<10} {:11} {:16} {:21} {:10} {}",
            word(*all_core),
            word(*bytes),
            word(*sentence),
            word(*long_file),
            word(*changed)
        ));
        print_status(&format!("             {note}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ClientTools, LONG_PARTS, report};
    use crate::clients::model::LoggedRequest;
    use crate::clients::wire_formats::WireFormat;

    /// The requests of a client whose model got these two results.
    fn requests(format: WireFormat, first: &str, second: &str) -> Vec<LoggedRequest> {
        let named: Vec<Value> =
            ClientTools::Claude.core().iter().map(|name| json!(format!("mcp__ringfence__{name}"))).collect();
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
            let fine = report(&requests(format, &proof, "there is no `missing.txt`"), tools, "");
            assert!(fine.bytes && fine.sentence && fine.long_file, "{format:?}: {fine:?}");
            assert!(fine.all_core && fine.offered == tools.core().len(), "{format:?}: {fine:?}");
            let quoted = json!({"content": proof}).to_string();
            let code = r#"{"ok":false,"error":{"message":"there is no `missing.txt`"}}"#;
            let hidden = report(&requests(format, &quoted, code), tools, "");
            assert!(!hidden.bytes && !hidden.sentence, "{format:?}: {hidden:?}");
            let placeholder = report(&requests(format, "The result is in structuredContent.", ""), tools, "");
            assert!(!placeholder.bytes && !placeholder.sentence, "{format:?}: {placeholder:?}");
        }
        assert!(!report(&[], ClientTools::Codex, "").passed());
    }
}
