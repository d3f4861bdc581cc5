//! `docs/reference/tools`: a page for each tool, from its types, with calls that were really made.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use ringfence::app::{App, build_app};
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, MountSetting, load};
use ringfence_kernel::{Dialect, Preset, ToolCall, ToolDefinition};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{ReferencePages, check, directory, head, opening, row};
use crate::commands::without_times;
use crate::package_registry::RegistryServer;
use crate::project_tools::{rust_toolchain, write_package};
use crate::run_code_git::git;
use crate::site::TestSite;
use crate::web::{page as web_page, serve};

/// Names that are not the standard dialect's for the same tool.
const OTHER_NAMES: [(&str, &str); 27] = [
    ("list_dir", "list_directory"),
    ("fs.list", "list_directory"),
    ("fs.read", "read_file"),
    ("fs.search", "search_files"),
    ("fs.write", "write_file"),
    ("fs.apply_patch", "apply_patch"),
    ("Read", "read_file"),
    ("view_image", "read_file"),
    ("Write", "write_file"),
    ("Edit", "edit_file"),
    ("replace", "edit_file"),
    ("Glob", "find_files"),
    ("glob", "find_files"),
    ("Grep", "search_files"),
    ("grep_search", "search_files"),
    ("Undo", "undo"),
    ("WebFetch", "web_fetch"),
    ("WebSearch", "web_search"),
    ("google_web_search", "web_search"),
    ("Bash", "run_code"),
    ("exec_command", "run_code"),
    ("run_shell_command", "run_code"),
    ("TaskOutput", "job_output"),
    ("write_stdin", "job_output"),
    ("read_background_output", "job_output"),
    ("TaskStop", "stop_job"),
    ("stop_background_command", "stop_job"),
];

/// Fields of a reply that differ from time to time and from machine to machine.
const VARYING: [&str; 14] = [
    "mode",
    "change",
    "modified",
    "changed",
    "time",
    "session",
    "duration",
    "walls",
    "undone",
    "sha256Before",
    "sha256After",
    "headers",
    "commit",
    "output",
];

/// A call, and the calls of the same session before it.
struct ReferenceCall {
    dialect: Dialect,
    before: &'static [(&'static str, &'static str)],
    tool: &'static str,
    arguments: &'static str,
}

const fn reference_call(dialect: Dialect, tool: &'static str, arguments: &'static str) -> ReferenceCall {
    ReferenceCall { dialect, before: &[], tool, arguments }
}

const fn standard(tool: &'static str, arguments: &'static str) -> ReferenceCall {
    reference_call(Dialect::Standard, tool, arguments)
}

const fn miniclaw(tool: &'static str, arguments: &'static str) -> ReferenceCall {
    reference_call(Dialect::Miniclaw, tool, arguments)
}

const fn claude(tool: &'static str, arguments: &'static str) -> ReferenceCall {
    reference_call(Dialect::Claude, tool, arguments)
}

const fn codex(tool: &'static str, arguments: &'static str) -> ReferenceCall {
    reference_call(Dialect::Codex, tool, arguments)
}

const fn gemini(tool: &'static str, arguments: &'static str) -> ReferenceCall {
    reference_call(Dialect::Gemini, tool, arguments)
}

const fn crewagent(tool: &'static str, arguments: &'static str) -> ReferenceCall {
    reference_call(Dialect::Crewagent, tool, arguments)
}

/// After a change of `notes/today.md`.
const fn after_edit(tool: &'static str, arguments: &'static str) -> ReferenceCall {
    ReferenceCall { before: &[("edit_file", RYE)], ..standard(tool, arguments) }
}

const RYE: &str = r#"{"path":"notes/today.md","oldText":"bread","newText":"rye bread"}"#;

/// A PNG image of one pixel.
const PIXEL: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\nIDATx\x9cc`\0\0\0\x02\0\x01H\xaf\xa4q\0\0\0\0IEND\xaeB`\x82";

/// `HOST` is a server of the test, `CHANGE` the last change.
const CALLS: &[ReferenceCall] = &[
    standard("read_file", r#"{"path":"notes/today.md"}"#),
    standard("read_file", r#"{"path":"../.ssh/id_ed25519"}"#),
    miniclaw("read_file", r#"{"path":"notes/today.md"}"#),
    crewagent("fs.read", r#"{"path":"@project/notes/today.md","startLine":2,"endLine":2}"#),
    claude("Read", r#"{"file_path":"notes/today.md"}"#),
    claude("Read", r#"{"file_path":"."}"#),
    codex("read_file", r#"{"path":"notes/today.md","offset":2}"#),
    codex("view_image", r#"{"path":"pixel.png"}"#),
    gemini("read_file", r#"{"file_path":"notes/today.md","start_line":2,"end_line":2}"#),
    standard("write_file", r#"{"path":"notes/new.md","content":"hello\n"}"#),
    standard("write_file", r#"{"path":"drafts/new.md","content":"hello\n"}"#),
    miniclaw("write_file", r#"{"path":"drafts/new.md","content":"hello\n"}"#),
    crewagent("fs.write", r#"{"path":"@project/drafts/new.md","content":"hello\n"}"#),
    crewagent("fs.write", r#"{"path":"@pkg/README.md","content":"hello\n"}"#),
    claude("Write", r#"{"file_path":"drafts/new.md","content":"hello\n"}"#),
    claude("Write", r#"{"file_path":"README.md","content":"hello\n"}"#),
    gemini("write_file", r#"{"file_path":"drafts/new.md","content":"hello\n"}"#),
    standard("append_file", r#"{"path":"notes/today.md","content":"butter\n"}"#),
    miniclaw("append_file", r#"{"path":"notes/today.md","content":"butter\n"}"#),
    standard("list_directory", r#"{"path":".","recursive":true}"#),
    miniclaw("list_dir", "{}"),
    crewagent("fs.list", r#"{"path":"@project"}"#),
    gemini("list_directory", r#"{"dir_path":"notes"}"#),
    standard("edit_file", RYE),
    standard("edit_file", r#"{"path":"notes/today.md","oldText":"cheese","newText":"ham"}"#),
    miniclaw("edit_file", r#"{"path":"notes/today.md","old_text":"bread","new_text":"rye bread"}"#),
    claude("Edit", r#"{"file_path":"notes/today.md","old_string":"bread","new_string":"rye bread"}"#),
    claude("Edit", r#"{"file_path":"notes/today.md","old_string":"cheese","new_string":"ham"}"#),
    gemini(
        "replace",
        r#"{"file_path":"notes/today.md","instruction":"rye","old_string":"bread","new_string":"rye bread"}"#,
    ),
    codex(
        "apply_patch",
        r#"{"input":"*** Begin Patch\n*** Update File: notes/today.md\n@@\n-bread\n+rye bread\n*** End Patch"}"#,
    ),
    standard(
        "apply_patch",
        r#"{"patch":"--- a/notes/today.md\n+++ b/notes/today.md\n@@ -1,2 +1,2 @@\n milk\n-bread\n+rye bread\n"}"#,
    ),
    crewagent(
        "fs.apply_patch",
        r#"{"path":"@state/workflow.md","patch":{"operation":"updateFrontmatter","update":{"stepsCompleted":{"append":["gather"]}}}}"#,
    ),
    standard("delete_file", r#"{"path":"notes","recursive":true}"#),
    standard("delete_file", r#"{"path":"notes"}"#),
    standard("move_file", r#"{"from":"notes/today.md","to":"notes/yesterday.md"}"#),
    standard("copy_file", r#"{"from":"notes/today.md","to":"notes/copy.md"}"#),
    standard("copy_file", r#"{"from":"notes/today.md","to":"README.md"}"#),
    standard("create_directory", r#"{"path":"drafts/2026"}"#),
    standard("get_file_info", r#"{"path":"notes/today.md"}"#),
    standard("find_files", r#"{"path":".","glob":"*.md"}"#),
    standard("search_files", r#"{"path":".","pattern":"bread"}"#),
    crewagent("fs.search", r#"{"path":"@project","pattern":"/BREAD/i"}"#),
    claude("Glob", r#"{"pattern":"**/*.md","path":"notes"}"#),
    gemini("glob", r#"{"pattern":"**/*.md","dir_path":"notes"}"#),
    claude("Grep", r#"{"pattern":"bread","output_mode":"content"}"#),
    gemini("grep_search", r#"{"pattern":"bread"}"#),
    ReferenceCall {
        before: &[("Edit", r#"{"file_path":"notes/today.md","old_string":"bread","new_string":"rye bread"}"#)],
        ..claude("Undo", "{}")
    },
    ReferenceCall {
        before: &[("apply_patch", r#"{"input":"*** Begin Patch\n*** Delete File: README.md\n*** End Patch"}"#)],
        ..codex("undo", "{}")
    },
    ReferenceCall {
        before: &[("write_file", r#"{"file_path":"new.md","content":"hello\n"}"#)],
        ..gemini("undo", "{}")
    },
    after_edit("undo", "{}"),
    ReferenceCall { before: &[("edit_file", RYE), ("undo", "{}")], ..standard("redo", "{}") },
    after_edit("list_changes", "{}"),
    after_edit("show_change", r#"{"change":"CHANGE"}"#),
    standard("run_code", r#"{"language":"bash","code":"wc -l notes/*; echo butter >> notes/today.md"}"#),
    ReferenceCall {
        before: &[("run_code", r#"{"code":"read name; echo hello $name","background":true}"#)],
        ..standard("job_output", r#"{"job":1,"input":"you\n","wait":60}"#)
    },
    ReferenceCall {
        before: &[("run_code", r#"{"code":"sleep 60","background":true}"#)],
        ..standard("stop_job", r#"{"job":1}"#)
    },
    claude("Bash", r#"{"command":"cd notes; wc -l *; echo butter >> today.md"}"#),
    claude("Bash", r#"{"command":"sleep 60","run_in_background":true}"#),
    codex("exec_command", r#"{"cmd":"wc -l *; exit 3","workdir":"notes"}"#),
    codex("exec_command", r#"{"cmd":"sleep 60","yield_time_ms":100}"#),
    gemini("run_shell_command", r#"{"command":"wc -l *","dir_path":"notes"}"#),
    ReferenceCall {
        before: &[
            (
                "Bash",
                r#"{"command":"python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 8999)).accept()'; echo done","run_in_background":true}"#,
            ),
            ("Bash", r#"{"command":"until (exec 3<>/dev/tcp/127.0.0.1/8999) 2>/dev/null; do :; done"}"#),
        ],
        ..claude("TaskOutput", r#"{"task_id":"1"}"#)
    },
    ReferenceCall {
        before: &[("Bash", r#"{"command":"sleep 60","run_in_background":true}"#)],
        ..claude("TaskStop", r#"{"task_id":"1"}"#)
    },
    ReferenceCall {
        before: &[("exec_command", r#"{"cmd":"read name; echo hello $name","yield_time_ms":100,"tty":true}"#)],
        ..codex("write_stdin", r#"{"session_id":1,"chars":"you\n","yield_time_ms":30000}"#)
    },
    ReferenceCall {
        before: &[
            (
                "run_shell_command",
                r#"{"command":"python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 8999)).accept()'; echo done","is_background":true}"#,
            ),
            ("run_shell_command", r#"{"command":"until (exec 3<>/dev/tcp/127.0.0.1/8999) 2>/dev/null; do :; done"}"#),
        ],
        ..gemini("read_background_output", r#"{"pid":1,"delay_ms":30000}"#)
    },
    ReferenceCall {
        before: &[("run_shell_command", r#"{"command":"sleep 60","is_background":true}"#)],
        ..gemini("stop_background_command", r#"{"pid":1}"#)
    },
    standard("git_status", "{}"),
    claude("git_status", "{}"),
    codex("git_status", "{}"),
    gemini("git_status", "{}"),
    standard("git_diff", r#"{"paths":["notes"]}"#),
    standard("git_diff", r#"{"range":"HEAD","stat":true}"#),
    claude("git_diff", "{}"),
    codex("git_diff", r#"{"stat":true}"#),
    gemini("git_diff", r#"{"staged":true}"#),
    standard("git_log", r#"{"limit":5}"#),
    standard("git_log", r#"{"range":"--all"}"#),
    claude("git_log", r#"{"patch":true}"#),
    codex("git_log", "{}"),
    gemini("git_log", r#"{"paths":["README.md"]}"#),
    standard("git_commit", r#"{"message":"Add butter","paths":["notes"]}"#),
    claude("git_commit", r#"{"message":"Add butter"}"#),
    codex("git_commit", r#"{"message":"Add butter"}"#),
    gemini("git_commit", r#"{"message":"Add butter"}"#),
    standard("git_fetch", "{}"),
    claude("git_fetch", r#"{"remote":"upstream"}"#),
    codex("git_fetch", "{}"),
    gemini("git_fetch", "{}"),
    standard("git_push", "{}"),
    claude("git_push", r#"{"branch":"main"}"#),
    codex("git_push", "{}"),
    gemini("git_push", "{}"),
    standard("run_tests", "{}"),
    standard("run_tests", r#"{"path":"src","name":"added"}"#),
    standard("run_tests", r#"{"path":"absent"}"#),
    claude("run_tests", "{}"),
    codex("run_tests", r#"{"name":"added"}"#),
    gemini("run_tests", r#"{"path":"src/lib.rs"}"#),
    standard("format_code", r#"{"paths":["src/lib.rs"]}"#),
    standard("format_code", r#"{"paths":["src/lib.rs"],"check":true}"#),
    standard("format_code", r#"{"paths":["README"]}"#),
    claude("format_code", r#"{"paths":["src/lib.rs"]}"#),
    codex("format_code", r#"{"paths":["src/lib.rs"],"check":true}"#),
    gemini("format_code", r#"{"paths":["src/lib.rs"]}"#),
    standard("install_package", r#"{"packages":["serde@1"]}"#),
    standard("install_package", r#"{"packages":["serd"]}"#),
    standard("install_package", r#"{"packages":["git+https://git.example.org/x"]}"#),
    claude("install_package", r#"{"packages":["--force"]}"#),
    codex("install_package", r#"{"packages":["serde"],"manager":"npm"}"#),
    gemini("install_package", r#"{"packages":["serde"],"directory":"absent"}"#),
    standard("search_code", r#"{"query":"add two numbers"}"#),
    standard("search_code", r#"{"query":"Till::add","language":"cobol"}"#),
    claude("search_code", r#"{"query":"add two numbers"}"#),
    codex("search_code", r#"{"query":"Till::add","path":"src"}"#),
    gemini("search_code", r#"{"query":"refund","maxResults":3}"#),
    standard("web_fetch", r#"{"url":"http://HOST/","format":"markdown"}"#),
    standard("web_fetch", r#"{"url":"http://169.254.169.254/latest/meta-data/"}"#),
    claude("WebFetch", r#"{"url":"http://HOST/"}"#),
    gemini("web_fetch", r#"{"prompt":"http://HOST/"}"#),
    claude("WebSearch", r#"{"query":"ring fence"}"#),
    gemini("google_web_search", r#"{"query":"ring fence"}"#),
    standard("web_search", r#"{"query":"ring fence","numResults":1}"#),
];

/// Code to be searched.
const TILL: &str = "/// Money in a till.
pub struct Till {
    cents: u64,
}

impl Till {
    /// Adds two amounts.
    pub fn add(&mut self, cents: u64) -> u64 {
        self.cents += cents;
        self.cents
    }
}
";

/// A server that is a site and a search engine.
fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let found = r#"{"results":[{"url":"https://example.org/","title":"Fences","content":"All about them."}]}"#;
        let at = serve(move |line| match line.starts_with("GET /search") {
            true => web_page("application/json", found),
            false => web_page("text/html", "<title>Fences</title><h1>Fences</h1><p>They keep things in."),
        });
        at.to_string()
    })
}

/// A registry of crates with `serde`, on a host of this machine.
fn registry() -> &'static RegistryServer {
    static SERVER: OnceLock<RegistryServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = RegistryServer::start();
        server.krate("serde", &[], &[]);
        server
    })
}

/// A workspace with a few files, and a host on it.
fn test_app(site: &TestSite, dialect: Dialect) -> App {
    site.write("README.md", "# Demo\n");
    site.write("notes/today.md", "milk\nbread\n");
    if dialect == Dialect::Codex {
        site.write("pixel.png", PIXEL);
    }
    std::fs::write(site.outside.join("README.md"), "# A package\n").unwrap();
    let at = host();
    let config = site.root().join("config.toml");
    let text = format!(
        "log = \"none\"\n[web]\nallow_private = [\"{at}\", \"{}\"]\n[web.search]\nengine = \"searxng\"\nurl = \"http://{at}/\"\n\
         [project.registries.cargo]\nurl = \"{}\"\n[[rules]]\ndecision = \"allow\"\nhost = \"{at}\"\n{}",
        registry().at,
        registry().url("cargo/index/"),
        rust_toolchain()
    );
    std::fs::write(&config, text).unwrap();
    let run = (dialect == Dialect::Crewagent).then(|| "demo".to_owned());
    if run.is_some() {
        let made = site.run(&["workflow", "new", "--run", "demo"]);
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    let flags = CliFlags {
        config: Some(config),
        workspace: Some(site.workspace.display().to_string()),
        dialect: Some(dialect),
        preset: Some(Preset::Edits),
        mounts: vec![MountSetting::parse(&format!("pkg={}", site.outside.display())).unwrap()],
        run,
        toolsets: vec!["git".to_owned(), "project".to_owned(), "code".to_owned()],
        ..CliFlags::default()
    };
    let environment = site.environment();
    build_app(load(&flags, &environment).unwrap(), &environment, Box::new(deny_all())).unwrap()
}

/// The reply to a call, with varying fields blanked out.
fn reply(shown: &ReferenceCall) -> String {
    let site = TestSite::new();
    let app = test_app(&site, shown.dialect);
    if shown.tool.starts_with("git_") {
        git(&site, &["init", "-q", "-b", "main"]);
        git(&site, &["config", "user.name", "A Person"]);
        git(&site, &["config", "user.email", "person@example.org"]);
        git(&site, &["remote", "add", "origin", "https://git.example.org/x.git"]);
        git(&site, &["add", "README.md", "notes"]);
        git(&site, &["commit", "-qm", "Add notes"]);
        site.write("notes/today.md", "milk\nbread\nbutter\n");
    }
    if ["run_tests", "format_code", "install_package"].contains(&shown.tool) {
        write_package(&site);
    }
    if shown.tool == "search_code" {
        site.write("src/till.rs", TILL);
    }
    if shown.tool == "format_code" {
        site.write("src/lib.rs", "pub fn  one( )->u32{ 1 }\n");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut change = String::new();
    let mut last = String::new();
    for (tool, arguments) in shown.before.iter().copied().chain([(shown.tool, shown.arguments)]) {
        let arguments = arguments.replace("HOST", host()).replace("CHANGE", &change);
        let call = ToolCall { id: "call-1".to_owned(), name: tool.to_owned(), arguments };
        last = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap().text;
        let made = serde_json::from_str::<Value>(&last).unwrap_or_default();
        made["value"]["change"].as_str().unwrap_or_default().clone_into(&mut change);
    }
    let last = last.replace(host(), "127.0.0.1:8080");
    if shown.dialect.is_model_family() {
        return blank_run(&blank_ids(&without_times(&last)));
    }
    VARYING.iter().fold(last, |text, field| blank(&text, field))
}

/// A text with every ID of a change replaced.
fn blank_ids(text: &str) -> String {
    let mut parts = text.split("c-");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |blanked, part| {
        let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits < 8 { blanked + "c-" + part } else { blanked + "c-…" + &part[digits..] }
    })
}

/// A text without the time in the first line of a test run, and without the ID of its output.
fn blank_run(text: &str) -> String {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let first = match first.rsplit_once(" in ") {
        Some((counts, time)) if time.ends_with(" s") => format!("{counts} in … s"),
        _ => first.to_owned(),
    };
    let text = if rest.is_empty() { first } else { format!("{first}\n{rest}") };
    match text.split_once("@output/") {
        Some((before, id)) if id.len() > 8 => format!("{before}@output/…{}", &id[8..]),
        _ => text,
    }
}

/// A text of JSON with every value of this field replaced.
fn blank(text: &str, field: &str) -> String {
    let key = format!("\"{field}\":");
    let mut parts = text.split(&key);
    let mut blanked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut values = serde_json::Deserializer::from_str(part).into_iter::<Value>();
        let value = values.next().unwrap().unwrap();
        let instead = match value {
            Value::String(_) => "\"…\"",
            Value::Array(_) => "[…]",
            Value::Object(_) => "{…}",
            // Whether something was changed is not a time.
            Value::Bool(_) | Value::Null => &part[..values.byte_offset()],
            Value::Number(_) => "…",
        };
        blanked.push_str(&format!("{key}{instead}{}", &part[values.byte_offset()..]));
    }
    blanked
}

/// A schema in words; what it refers to is in `root`.
fn kind(schema: &Value, root: &Value) -> String {
    let schema = resolved(schema, root);
    let several = |list: &Vec<Value>| {
        let kinds = list.iter().map(|each| kind(each, root)).filter(|kind| kind != "null");
        let kinds: Vec<String> = kinds.collect();
        kinds.join(" or ")
    };
    if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return several(choices);
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().filter(|word| !word.is_null()).map(|word| format!("`{word}`")).collect();
        return words.join(", ");
    }
    if let Some(one) = schema.get("const") {
        return format!("`{one}`");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null").and_then(Value::as_str).unwrap_or("any"),
        kind => kind.as_str().unwrap_or("any"),
    };
    match kind {
        "array" => format!("list of {}", self::kind(&schema["items"], root)),
        kind => match (schema.get("minimum").filter(|least| **least != json!(0)), schema.get("maximum")) {
            (None, None) => kind.to_owned(),
            (Some(least), None) => format!("{kind}, at least {least}"),
            (None, Some(most)) => format!("{kind}, at most {most}"),
            (Some(least), Some(most)) => format!("{kind}, {least} to {most}"),
        },
    }
}

fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|reference| root.pointer(reference.trim_start_matches('#'))) {
        Some(named) => named,
        None => schema,
    }
}

/// The object that a field is, or has a list of, or may be.
fn object<'a>(schema: &'a Value, root: &'a Value) -> Option<(&'static str, &'a Map<String, Value>, &'a Value)> {
    let schema = resolved(schema, root);
    if let Some(fields) = schema["properties"].as_object() {
        return Some((".", fields, schema));
    }
    if schema["items"].is_object() {
        return object(&schema["items"], root).map(|(_, fields, schema)| ("[].", fields, schema));
    }
    let choices = schema["anyOf"].as_array().or(schema["oneOf"].as_array())?;
    choices.iter().find_map(|choice| object(choice, root))
}

/// Every field with its name, its schema and whether it has to be there; those of objects in objects behind them.
fn fields(schema: &Value, root: &Value, above: &str) -> Vec<(String, Value, bool)> {
    let Some((_, own, holder)) = object(schema, root) else { return Vec::new() };
    let required = |name: &str| holder["required"].as_array().is_some_and(|all| all.iter().any(|each| each == name));
    let mut found = Vec::new();
    for (name, field) in own {
        let path = format!("{above}{name}");
        found.push((path.clone(), field.clone(), required(name)));
        if let Some((joint, ..)) = object(field, root) {
            found.extend(fields(field, root, &format!("{path}{joint}")));
        }
    }
    found
}

fn arguments(definition: &ToolDefinition) -> String {
    let root = definition.parameters();
    let mut text = head(["argument", "type", "required", "default", "meaning"]);
    let all = fields(root, root, "");
    for (name, field, required) in &all {
        let default = field.get("default").filter(|default| !default.is_null());
        let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
        let needed = if *required { "yes" } else { "" };
        let meaning = meaning(field, root);
        text.push_str(&row([&format!("`{name}`"), &kind(field, root), needed, &default, &meaning]));
    }
    if all.is_empty() { "\nIt takes no arguments.\n".to_owned() } else { text }
}

fn meaning(field: &Value, root: &Value) -> String {
    let said = field["description"].as_str().or(resolved(field, root)["description"].as_str());
    said.unwrap_or_default().to_owned()
}

fn results(root: &Value) -> String {
    let mut text = head(["field of the reply", "type", "always", "meaning"]);
    for (name, field, required) in fields(root, root, "") {
        let always = if required { "yes" } else { "" };
        text.push_str(&row([&format!("`{name}`"), &kind(&field, root), always, &meaning(&field, root)]));
    }
    text
}

fn effects(definition: &ToolDefinition) -> String {
    let effect = definition.capabilities;
    let verbs: Vec<String> = effect.actions.iter().map(|verb| format!("`{}`", verb.as_str())).collect();
    let only_reads = effect.is_read_only();
    let mut hints = vec![format!("`readOnlyHint: {only_reads}`")];
    if !only_reads {
        hints.push(format!("`destructiveHint: {}`", effect.is_destructive()));
        hints.push(format!("`idempotentHint: {}`", effect.idempotent));
    }
    hints.push(format!("`openWorldHint: {}`", effect.is_open_world()));
    format!("\nPossible effects: {}. MCP hints: {}.\n", verbs.join(", "), hints.join(", "))
}

/// The page of a tool, by its bindings.
fn page(name: &str, faces: &[ToolDefinition]) -> String {
    let first = &faces[0];
    let what = "For errors see [errors](../errors.md), for limits [the config](../config.md#limits).";
    let mut text = opening(&format!("`{name}`"), "the types of the tool", what);
    text.push_str(&effects(first));
    for face in faces {
        assert_eq!(face.capabilities, first.capabilities, "`{}` is not the same tool as `{name}`", face.name);
        text.push_str(&format!("\n## In `{}`: `{}`\n\n{}\n", face.dialect.name(), face.name, face.description()));
        text.push_str(&arguments(face));
        if let Some(output) = face.output() {
            text.push_str(&results(output));
        }
        let calls: Vec<&ReferenceCall> =
            CALLS.iter().filter(|shown| shown.dialect == face.dialect && shown.tool == face.name).collect();
        assert!(!calls.is_empty(), "there is no example of `{}` in {}", face.name, face.dialect.name());
        for shown in calls {
            let asked = shown.arguments.replace("HOST", "127.0.0.1:8080").replace("CHANGE", "…");
            let asked = format!("{} {asked}", shown.tool);
            text.push_str(&format!("\n```text\n{asked}\n\n{}\n```\n", reply(shown).trim_end()));
        }
    }
    text.push_str("\n## Schemas\n");
    for face in faces {
        let shown = |schema: &Value| serde_json::to_string_pretty(schema).unwrap();
        text.push_str(&format!("\nArguments in `{}`:\n\n", face.dialect.name()));
        text.push_str(&format!("```json\n{}\n```\n", shown(face.parameters())));
        if let Some(output) = face.output() {
            text.push_str(&format!(
                "\nThe reply's value in `{}`:\n\n```json\n{}\n```\n",
                face.dialect.name(),
                shown(output)
            ));
        }
    }
    text
}

/// Every tool by its name on pages, with its bindings.
fn tools() -> Vec<(String, Vec<ToolDefinition>)> {
    let mut found: Vec<(String, Vec<ToolDefinition>)> = Vec::new();
    for dialect in Dialect::ALL {
        let site = TestSite::new();
        for definition in test_app(&site, dialect).session.catalog.list() {
            let other = OTHER_NAMES.iter().find(|(name, _)| *name == definition.name);
            let name = other.map_or(definition.name.as_ref(), |(_, page)| *page);
            match found.iter_mut().find(|(known, _)| known == name) {
                Some((_, faces)) => faces.push(definition.clone()),
                None => found.push((name.to_owned(), vec![definition.clone()])),
            }
        }
    }
    found
}

fn index(tools: &[(String, Vec<ToolDefinition>)]) -> String {
    let what = "\
Every tool, and what each dialect calls it. `ringfence tools` prints those of a dialect, and `--format openai` their schemas. The
examples were made by calls in a workspace with a `README.md` and a `notes/today.md`, with the preset `edits`; `…` stands for
what differs from time to time.
";
    let mut text = opening("Tools", "the types of the tools", what);
    let columns = Dialect::ALL.map(|dialect| format!("`{}`", dialect.name()));
    let [standard, miniclaw, crewagent, claude, codex, gemini] = columns.each_ref().map(String::as_str);
    text.push_str(&head([standard, miniclaw, crewagent, claude, codex, gemini, "what it does"]));
    for (name, faces) in tools {
        let called = |dialect: Dialect| match faces.iter().find(|face| face.dialect == dialect) {
            Some(face) => format!("[`{}`]({name}.md)", face.name),
            None => String::new(),
        };
        let names = Dialect::ALL.map(called);
        let [standard, miniclaw, crewagent, claude, codex, gemini] = names.each_ref().map(String::as_str);
        let first = faces[0].description().split(". ").next().unwrap_or_default();
        text.push_str(&row([
            standard,
            miniclaw,
            crewagent,
            claude,
            codex,
            gemini,
            &format!("{}.", first.trim_end_matches('.')),
        ]));
    }
    text
}

#[test]
fn every_tool_has_a_page_that_says_what_its_types_say() {
    let tools = tools();
    let mut pages = ReferencePages::from([("tools/index.md".to_owned(), index(&tools))]);
    for (name, faces) in &tools {
        let text = page(name, faces);
        // Where no jail can be made, or only one that keeps no changes, what a program would have come to is not known.
        if text.contains("\"code\":\"UNAVAILABLE\"") || text.contains("\"committed\":false") {
            println!("the page of `{name}` was not compared: it cannot be called here");
            continue;
        }
        pages.insert(format!("tools/{name}.md"), text);
    }
    check(&pages);
    let known: BTreeSet<String> =
        tools.iter().map(|(name, _)| format!("{name}.md")).chain(["index.md".to_owned()]).collect();
    for entry in std::fs::read_dir(directory().join("tools")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(known.contains(&name), "docs/reference/tools/{name} is about no tool");
    }
}
