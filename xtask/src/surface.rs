//! `cargo xtask surface`: the token cost of tools and results, by dialect, as a model gets them over MCP.
//!
//! A real server answers real calls; its texts are counted with the tokenizer `o200k_base` of the npm package
//! `gpt-tokenizer`, which is fetched below `target/tmp/surface` on the first run. Definitions are those that a client loads at
//! once: name, description and schema of the core tools. The session is the one that the formats were designed with: the
//! definitions, 12 reads, 6 searches, 3 lists, 8 edits and 8 programs. The search of `codex` is a command, so it takes ripgrep,
//! which is Debian's, installed where it is missing and can be.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::external_tools::{ChildGuard, fetch_node_packages, has_program, install_debian_packages};
use crate::{print_status, root};

pub(crate) const TOKENIZER: &str = "gpt-tokenizer@4.0.0";

/// Counts the tokens of each JSON string on its standard input.
const COUNT_SCRIPT: &str = "const {encode} = require('gpt-tokenizer/encoding/o200k_base');\
    const lines = require('fs').readFileSync(0, 'utf8').split('\\n').filter(Boolean);\
    for (const line of lines) console.log(encode(JSON.parse(line)).length);";

/// How often a session makes each call.
const SESSION: [(Operation, u64); 5] =
    [(Operation::Read, 12), (Operation::Search, 6), (Operation::List, 3), (Operation::Edit, 8), (Operation::Run, 8)];

const NAME_WORDS: [&str; 25] = [
    "app", "build", "cache", "client", "config", "data", "draw", "error", "event", "file", "index", "lexer", "main",
    "model", "parse", "query", "server", "state", "store", "test", "token", "types", "user", "util", "view",
];

/// Most tokens of a search, in every dialect.
const SEARCH_TOKENS: u64 = 1400;

/// Tokens of what ripgrep and grep themselves print in the workspace of the measurement. Models of `codex` search by commands,
/// and what a program prints is not changed, so these miss the target; they are held where they are.
const RIPGREP_TOKENS: u64 = 1440;
const GREP_TOKENS: u64 = 1760;

const MAX_SESSION_TOKENS: u64 = 40_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    List,
    Search,
    /// A search by a command, as the description of the tool names it.
    CommandSearch,
    /// The same by a command that every model knows.
    PlainSearch,
    Edit,
    Run,
}

impl Operation {
    const ALL: [Self; 7] =
        [Self::Read, Self::List, Self::Search, Self::CommandSearch, Self::PlainSearch, Self::Edit, Self::Run];

    fn title(self) -> &'static str {
        match self {
            Self::Read => "read 200 lines",
            Self::List => "list 100 entries",
            Self::Search => "search, 50 matches",
            Self::CommandSearch => "search, 50 matches, by `rg --heading -n`; 1400 wanted",
            Self::PlainSearch => "search, 50 matches, by `grep -rn`; 1400 wanted",
            Self::Edit => "edit one line",
            Self::Run => "run, 30 lines of output",
        }
    }

    fn max_tokens(self) -> u64 {
        match self {
            Self::Read => 2060,
            Self::List => 650,
            Self::Search => SEARCH_TOKENS,
            Self::CommandSearch => RIPGREP_TOKENS,
            Self::PlainSearch => GREP_TOKENS,
            Self::Edit => 25,
            Self::Run => 355,
        }
    }
}

/// A dialect, with the calls that do the same in it.
struct SurfaceDialect {
    name: &'static str,
    max_definition_tokens: Option<u64>,
    max_list_bytes: Option<u64>,
    call: fn(Operation) -> Option<(&'static str, Value)>,
}

const COMMAND: &str = "for i in $(seq 1 30); do echo \"test module_$i::case_$i ... ok\"; done";

const DIALECTS: [SurfaceDialect; 4] = [
    SurfaceDialect {
        name: "standard",
        max_definition_tokens: None,
        max_list_bytes: Some(13_000),
        call: |operation| {
            Some(match operation {
                Operation::Read => ("read_file", json!({"path": "source.rs"})),
                Operation::List => ("list_directory", json!({"path": "many"})),
                Operation::Search => ("search_files", json!({"pattern": "needle", "path": "searched"})),
                Operation::CommandSearch | Operation::PlainSearch => return None,
                Operation::Edit => (
                    "edit_file",
                    json!({"path": "edited.rs", "oldText": "let first = 1;", "newText": "let first = 2;"}),
                ),
                Operation::Run => ("run_code", json!({"language": "bash", "code": COMMAND})),
            })
        },
    },
    SurfaceDialect {
        name: "claude",
        max_definition_tokens: Some(900),
        max_list_bytes: Some(6000),
        call: |operation| {
            Some(match operation {
                Operation::Read => ("Read", json!({"file_path": "source.rs"})),
                Operation::List => ("Read", json!({"file_path": "many"})),
                Operation::Search => {
                    ("Grep", json!({"pattern": "needle", "path": "searched", "output_mode": "content"}))
                }
                Operation::CommandSearch | Operation::PlainSearch => return None,
                Operation::Edit => (
                    "Edit",
                    json!({"file_path": "edited.rs", "old_string": "let first = 1;", "new_string": "let first = 2;"}),
                ),
                Operation::Run => ("Bash", json!({"command": COMMAND})),
            })
        },
    },
    SurfaceDialect {
        name: "codex",
        max_definition_tokens: Some(500),
        max_list_bytes: None,
        call: |operation| {
            Some(match operation {
                Operation::Read => ("exec_command", json!({"cmd": "cat source.rs"})),
                Operation::List => ("exec_command", json!({"cmd": "ls many"})),
                Operation::Search => return None,
                Operation::CommandSearch => ("exec_command", json!({"cmd": "rg --heading -n needle searched"})),
                Operation::PlainSearch => ("exec_command", json!({"cmd": "grep -rn needle searched"})),
                Operation::Edit => (
                    "apply_patch",
                    json!({"input": "*** Begin Patch\n*** Update File: edited.rs\n@@\n-    let first = 1;\n+    let first = 2;\n*** End Patch\n"}),
                ),
                Operation::Run => ("exec_command", json!({"cmd": COMMAND})),
            })
        },
    },
    SurfaceDialect {
        name: "gemini",
        max_definition_tokens: Some(700),
        max_list_bytes: None,
        call: |operation| {
            Some(match operation {
                Operation::Read => ("read_file", json!({"file_path": "source.rs"})),
                Operation::List => ("list_directory", json!({"dir_path": "many"})),
                Operation::Search => ("grep_search", json!({"pattern": "needle", "dir_path": "searched"})),
                Operation::CommandSearch | Operation::PlainSearch => return None,
                Operation::Edit => (
                    "replace",
                    json!({"file_path": "edited.rs", "instruction": "change it", "old_string": "let first = 1;", "new_string": "let first = 2;"}),
                ),
                Operation::Run => ("run_shell_command", json!({"command": COMMAND})),
            })
        },
    },
];

/// What one dialect costs.
struct SurfaceCost {
    list_bytes: u64,
    core_tools: usize,
    all_tools: usize,
    definition_tokens: u64,
    /// Tokens of each operation, or its error.
    results: Vec<(Operation, Result<u64, String>)>,
}

/// False if something could not be counted, or costs more than it may.
pub(crate) fn run() -> bool {
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let dir = root().join("target/tmp/surface");
    let Some(modules) = fetch_node_packages(&dir, &[TOKENIZER]) else { return false };
    if !has_program("rg") && !install_debian_packages(&["ripgrep"]) {
        print_status("ripgrep (`rg`) is not here and could not be installed (that takes root and Debian)");
        return false;
    }
    let mut are_met = true;
    for dialect in &DIALECTS {
        match measure(dialect, &dir, &modules) {
            Some(cost) => are_met &= print_cost(dialect, &cost),
            None => {
                print_status(&format!("{}: the server or the tokenizer could not be run", dialect.name));
                are_met = false;
            }
        }
    }
    are_met
}

fn print_cost(dialect: &SurfaceDialect, cost: &SurfaceCost) -> bool {
    let mut are_met = true;
    let mut line = |title: &str, tokens: Result<u64, &str>, most: Option<u64>, unit: &str| {
        let verdict = match (tokens, most) {
            (Ok(tokens), Some(most)) if tokens > most => format!("at most {most}: missed"),
            (Ok(_), Some(most)) => format!("at most {most}: met"),
            (Ok(_), None) => String::new(),
            (Err(error), _) => format!("failed: {error}"),
        };
        are_met &= !verdict.ends_with("missed") && !verdict.starts_with("failed");
        let shown = tokens.map_or_else(|_| "-".to_owned(), |tokens| tokens.to_string());
        print_status(&format!("| {} | {title} | {shown} {unit} | {verdict} |", dialect.name));
    };
    print_status("| dialect | what | cost | target |\n|---|---|---:|---|");
    line(&format!("`tools/list`, {} tools", cost.all_tools), Ok(cost.list_bytes), dialect.max_list_bytes, "bytes");
    let title = format!("definitions of {} core tools", cost.core_tools);
    line(&title, Ok(cost.definition_tokens), dialect.max_definition_tokens, "tokens");
    let mut session = Ok(cost.definition_tokens);
    for (operation, tokens) in &cost.results {
        // Of two searches by commands, the session has the dearer one.
        let counted = if *operation == Operation::PlainSearch { Operation::Search } else { *operation };
        let times = SESSION.iter().find(|(it, _)| *it == counted).map_or(0, |(_, times)| *times);
        session = session.and_then(|sum: u64| Ok(sum + times * tokens.as_ref().map_err(|_| "a call failed")?));
        let tokens = tokens.as_ref().map(|tokens| *tokens).map_err(String::as_str);
        line(operation.title(), tokens, Some(operation.max_tokens()), "tokens");
    }
    line("the session", session, Some(MAX_SESSION_TOKENS), "tokens");
    are_met
}

fn measure(dialect: &SurfaceDialect, dir: &Path, modules: &Path) -> Option<SurfaceCost> {
    let base = dir.join(dialect.name);
    // Of an earlier run.
    let _ = fs::remove_dir_all(&base);
    make_workspace(&base.join("files")).ok()?;
    let mut server = SurfaceServer::start(dialect.name, &base)?;
    let list = server.request("tools/list", &json!({}))?;
    let tools = list.get("tools")?.as_array()?.clone();
    let is_core = |tool: &&Value| tool.pointer("/_meta/anthropic~1alwaysLoad") == Some(&Value::Bool(true));
    let core: Vec<Value> = tools.iter().filter(is_core).map(definition).collect();
    let mut texts = vec![Value::Array(core.clone()).to_string()];
    let mut results = Vec::new();
    for operation in Operation::ALL {
        let Some((tool, arguments)) = (dialect.call)(operation) else { continue };
        let reply = server.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        results.push((operation, reply.map_or_else(|| Err("no reply".to_owned()), |reply| result_text(&reply))));
    }
    texts.extend(results.iter().filter_map(|(_, result)| result.clone().ok()));
    let mut counts = count_tokens(&texts, modules)?.into_iter();
    let definition_tokens = counts.next()?;
    let results = results
        .into_iter()
        .map(|(operation, result)| {
            (operation, result.and_then(|_| counts.next().ok_or_else(|| "not counted".to_owned())))
        })
        .collect();
    let list_bytes = list.to_string().len() as u64;
    Some(SurfaceCost { list_bytes, core_tools: core.len(), all_tools: tools.len(), definition_tokens, results })
}

/// A definition as models' APIs take it.
fn definition(tool: &Value) -> Value {
    json!({"name": tool["name"], "description": tool["description"], "input_schema": tool["inputSchema"]})
}

/// The text blocks of a result, or the text of an error.
fn result_text(reply: &Value) -> Result<String, String> {
    let blocks = reply["content"].as_array().cloned().unwrap_or_default();
    let text = blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n");
    if reply["isError"] == true { Err(text.lines().next().unwrap_or_default().to_owned()) } else { Ok(text) }
}

pub(crate) fn count_tokens(texts: &[String], modules: &Path) -> Option<Vec<u64>> {
    let mut node = Command::new("node");
    node.args(["-e", COUNT_SCRIPT]).env("NODE_PATH", modules).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = node.spawn().ok()?;
    let mut input = child.stdin.take()?;
    for text in texts {
        writeln!(input, "{}", Value::String(text.clone())).ok()?;
    }
    drop(input);
    let output = child.wait_with_output().ok()?;
    let counts: Option<Vec<u64>> =
        String::from_utf8(output.stdout).ok()?.lines().map(|line| line.parse().ok()).collect();
    counts.filter(|counts| counts.len() == texts.len())
}

/// Files like those that the targets were set with: 200 lines of Rust of 1,787 tokens, 100 short names, and 50 matches that
/// `grep -rn` prints in about 1,800 tokens.
fn make_workspace(files: &Path) -> std::io::Result<()> {
    fs::create_dir_all(files.join("many"))?;
    fs::create_dir_all(files.join("searched/src/parser"))?;
    let source = fs::read_to_string(root().join("crates/ringfence/src/store/schema.rs"))?;
    let lines: Vec<&str> = source.lines().take(200).collect();
    fs::write(files.join("source.rs"), lines.join("\n") + "\n")?;
    fs::write(files.join("edited.rs"), "fn main() {\n    let first = 1;\n    let second = 2;\n}\n")?;
    for (number, word) in NAME_WORDS.iter().enumerate() {
        for (at, extension) in ["rs", "py", "ts", "go"].iter().enumerate() {
            fs::write(files.join(format!("many/{word}.{extension}")), "x".repeat(137 * (4 * number + at)))?;
        }
    }
    for file in 0..10 {
        let line = |number: u32| match number % 20 {
            7 => format!("    let needle_{number} = find_needle(&haystack, {number}).map(|found| found + {number});\n"),
            _ => format!("    let value_{number} = compute({number});\n"),
        };
        let text: String = (0..100).map(line).collect();
        fs::write(files.join(format!("searched/src/parser/module_{file}.rs")), text)?;
    }
    Ok(())
}

/// A server that shook hands.
pub(crate) struct SurfaceServer {
    _process: ChildGuard,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    last_id: u64,
}

impl SurfaceServer {
    pub(crate) fn start(dialect: &str, base: &Path) -> Option<Self> {
        let mut command = Command::new(root().join("target/debug/ringfence"));
        command.args(["mcp", "--preset", "edits", "--dialect", dialect, "--workspace"]).arg(base.join("files"));
        command.env("RINGFENCE_STATE_DIR", base.join("state")).env("HOME", base);
        Self::start_by(command)
    }

    /// A server that this command starts.
    pub(crate) fn start_by(mut command: Command) -> Option<Self> {
        let mut child: Child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut server = Self { _process: ChildGuard(child), input, output, last_id: 0 };
        let client = json!({"name": "surface", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        server.request("initialize", &hello)?;
        writeln!(server.input, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#).ok()?;
        Some(server)
    }

    /// The result of a request; nothing if the protocol refuses it.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> Option<Value> {
        self.last_id += 1;
        let id = self.last_id;
        writeln!(self.input, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).ok()?;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let message: Value = serde_json::from_str(&line).ok()?;
            if message["id"] == id && message.get("method").is_none() {
                return message.get("result").cloned();
            }
        }
    }
}
