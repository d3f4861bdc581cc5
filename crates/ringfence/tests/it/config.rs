//! What people can say in files, flags and environment, who holds against whom, and where the workspace is.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence::agents_config::{ModelSettings, Provider};
use ringfence::config::{ConfigError, Environment, Flags, LogTo, Mounted, RunCode, Settings, Variables, load};
use ringfence_fs::{Durability, NameRule};
use ringfence_kernel::{Dialect, Limits, Preset};
use ringfence_sandbox::Fallback;
use ringfence_web::{Engine, Key, Kind, PrivateHosts};
use serde_json::json;

use crate::site::{Said, Site, said};

/// Layers of config in a temporary directory, heard by the library itself.
pub(crate) struct Layers {
    directory: tempfile::TempDir,
}

impl Layers {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn environment(&self) -> Environment {
        let below = |name: &str| self.directory.path().join(name);
        Environment {
            current: below("current"),
            config: Some(below("config")),
            no_color: false,
            variables: Variables([("SEARCH_KEY".to_owned(), "k-secret".to_owned())].into()),
            ..Environment::apart(self.directory.path(), env!("CARGO_BIN_EXE_ringfence"))
        }
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn load(&self, flags: &Flags) -> Result<Settings, ConfigError> {
        load(flags, &self.environment())
    }
}

const EVERY_KEY: &str = r#"
dialect = "miniclaw"
preset = "read-only"
durability = "ordered"
names = "portable"
log = "none"

[agents.defaults]
workspace = "~/work"
restrict_to_workspace = true
max_tool_iterations = 7
provider = "openai"
base_url = "http://127.0.0.1:8080/v1"
api_key_env = "MY_KEY"
model = "small"
script = "answers.jsonl"
temperature = 0.5
max_tokens = 30
context_tokens = 31
max_prompt_tokens = 32
max_prompt_duration = "33s"
system_prompt = "Be brief."
project_instructions = false
repair_tool_calls = true

[limits]
max_argument_bytes = 1
max_read_bytes = 2
max_hash_bytes = 3
max_write_bytes = 4
max_edit_bytes = 5
max_append_bytes = 6
max_appended_file_bytes = 7
max_copy_bytes = 8
max_list_entries = 9
max_list_bytes = 17
max_find_results = 10
max_search_matches = 15
max_search_bytes = 16
max_delete_names = 11
max_walk_entries = 12
max_undo_session_bytes = 18
max_undo_bytes = 19
max_run_memory_bytes = 20
max_run_disk_bytes = 21
max_run_tmp_bytes = 22
max_run_file_bytes = 23
max_run_output_bytes = 24
max_run_processes = 25
max_run_open_files = 26
run_duration = "27s"
max_run_duration = 28
max_run_cpu_duration = 29
max_fetch_bytes = 33
max_fetch_text_bytes = 34
max_fetch_header_bytes = 35
max_fetch_redirects = 36
max_fetch_duration = 37
max_fetch_connect_duration = 38
max_fetch_first_byte_duration = 39
max_mcp_duration = 40
max_mcp_bytes = 41
max_reply_bytes = 42
max_tool_operation_duration = "13s"
max_approval_duration = 14

[run_code]
waiting_jails = 5
detect_toolchains = false
toolchains = ["/opt/go"]
fallback = "none"

[web]
allow_private = ["wiki.internal:443"]
[web.search]
engine = "searxng"
url = "http://127.0.0.1:8888/"
key_env = "SEARCH_KEY"

[mcp_servers.far]
command = "far"
args = ["-x"]
env = ["SEARCH_KEY"]
jail = false
timeout = "40s"
[mcp_servers.near]
command = "near"
workspace = "read"
network = ["a.example", "b.example:80"]
[mcp_servers.web]
url = "http://127.0.0.1:8888/mcp"
key_env = "SEARCH_KEY"

[tools]
allow = ["read_file", "list_dir"]
deny = ["write_file"]

[approval]
pause_after_denials = 20

[workspaces]
site = "~/site"

[mounts.pkg]
path = "~/pkg"
[mounts.data]
path = "/data"
mode = "rw"
"#;

fn every_key_as_json() -> String {
    r#"{
        "dialect": "miniclaw", "preset": "read-only", "durability": "ordered", "names": "portable", "log": "none",
        "agents": {"defaults": {
            "workspace": "~/work", "restrict_to_workspace": true, "max_tool_iterations": 7, "provider": "openai",
            "base_url": "http://127.0.0.1:8080/v1", "api_key_env": "MY_KEY", "model": "small", "script": "answers.jsonl",
            "temperature": 0.5, "max_tokens": 30, "context_tokens": 31, "max_prompt_tokens": 32,
            "max_prompt_duration": 33, "system_prompt": "Be brief.", "project_instructions": false,
            "repair_tool_calls": true
        }},
        "limits": {
            "max_argument_bytes": 1, "max_read_bytes": 2, "max_hash_bytes": 3, "max_write_bytes": 4,
            "max_edit_bytes": 5, "max_append_bytes": 6, "max_appended_file_bytes": 7, "max_copy_bytes": 8,
            "max_list_entries": 9, "max_list_bytes": 17, "max_find_results": 10, "max_search_matches": 15, "max_search_bytes": 16,
            "max_delete_names": 11, "max_walk_entries": 12, "max_undo_session_bytes": 18, "max_undo_bytes": 19,
            "max_run_memory_bytes": 20, "max_run_disk_bytes": 21, "max_run_tmp_bytes": 22, "max_run_file_bytes": 23, "max_run_output_bytes": 24, "max_run_processes": 25, "max_run_open_files": 26,
            "run_duration": "27s", "max_run_duration": 28, "max_run_cpu_duration": 29,
            "max_fetch_bytes": 33, "max_fetch_text_bytes": 34, "max_fetch_header_bytes": 35, "max_fetch_redirects": 36,
            "max_fetch_duration": 37, "max_fetch_connect_duration": 38, "max_fetch_first_byte_duration": 39,
            "max_mcp_duration": 40, "max_mcp_bytes": 41, "max_reply_bytes": 42,
            "max_tool_operation_duration": "13s", "max_approval_duration": 14
        },
        "run_code": {"waiting_jails": 5, "detect_toolchains": false, "toolchains": ["/opt/go"], "fallback": "none"},
        "web": {"allow_private": ["wiki.internal:443"], "search": {"engine": "searxng", "url": "http://127.0.0.1:8888/", "key_env": "SEARCH_KEY"}},
        "mcp_servers": {
            "far": {"command": "far", "args": ["-x"], "env": ["SEARCH_KEY"], "jail": false, "timeout": "40s"},
            "near": {"command": "near", "workspace": "read", "network": ["a.example", "b.example:80"]},
            "web": {"url": "http://127.0.0.1:8888/mcp", "key_env": "SEARCH_KEY"}
        },
        "tools": {"allow": ["read_file", "list_dir"], "deny": ["write_file"]},
        "approval": {"pause_after_denials": 20},
        "workspaces": {"site": "~/site"},
        "mounts": {"pkg": {"path": "~/pkg"}, "data": {"path": "/data", "mode": "rw"}}
    }"#
    .to_owned()
}

#[track_caller]
fn check_every_key(settings: &Settings) {
    assert_eq!(settings.dialect, Dialect::Miniclaw);
    assert_eq!(settings.preset, Preset::ReadOnly);
    assert_eq!(settings.durability, Durability::Ordered);
    assert_eq!(settings.names, NameRule::Portable);
    assert_eq!(settings.log, LogTo::Nowhere);
    assert_eq!(settings.workspace.as_deref(), Some("~/work"));
    assert_eq!(settings.max_tool_iterations, 7);
    let model = ModelSettings {
        provider: Some(Provider::OpenAi),
        base_url: Some("http://127.0.0.1:8080/v1".to_owned()),
        api_key_env: Some("MY_KEY".to_owned()),
        model: Some("small".to_owned()),
        script: Some("answers.jsonl".into()),
        temperature: Some(0.5),
        max_tokens: Some(30),
        context_tokens: Some(31),
        max_prompt_tokens: Some(32),
        max_prompt_duration: Some(Duration::from_secs(33)),
        system_prompt: Some("Be brief.".to_owned()),
        project_instructions: false,
        repair_tool_calls: ringfence_agent::Repair::OneMeaning,
    };
    assert_eq!(settings.model, model);
    assert_eq!(settings.workspaces, std::collections::BTreeMap::from([("site".to_owned(), "~/site".to_owned())]));
    let run_code = RunCode {
        waiting_jails: 5,
        detect_toolchains: false,
        toolchains: vec!["/opt/go".into()],
        fallback: Fallback::None,
    };
    assert_eq!(settings.run_code, run_code);
    assert_eq!(settings.warnings, [] as [&str; 0]);
    let limits = Limits {
        argument_bytes: 1,
        read_bytes: 2,
        hash_bytes: 3,
        write_bytes: 4,
        edit_bytes: 5,
        append_bytes: 6,
        appended_file_bytes: 7,
        copy_bytes: 8,
        list_entries: 9,
        list_bytes: 17,
        find_results: 10,
        search_matches: 15,
        search_bytes: 16,
        delete_names: 11,
        walk_entries: 12,
        undo_session_bytes: 18,
        undo_bytes: 19,
        run_memory_bytes: 20,
        run_disk_bytes: 21,
        run_tmp_bytes: 22,
        run_file_bytes: 23,
        run_output_bytes: 24,
        run_processes: 25,
        run_open_files: 26,
        run_time: Duration::from_secs(27),
        longest_run_time: Duration::from_secs(28),
        run_cpu_time: Duration::from_secs(29),
        fetch_bytes: 33,
        fetch_text_bytes: 34,
        fetch_header_bytes: 35,
        fetch_redirects: 36,
        fetch_time: Duration::from_secs(37),
        fetch_connect_time: Duration::from_secs(38),
        fetch_first_byte_time: Duration::from_secs(39),
        mcp_time: Duration::from_secs(40),
        mcp_bytes: 41,
        reply_bytes: 42,
        call_time: Duration::from_secs(13),
        approval_time: Duration::from_secs(14),
        denials_in_a_row: 20,
    };
    assert_eq!(settings.limits, limits);
    let engine = Engine::new(Kind::SearXng, Some("http://127.0.0.1:8888/"), Some(Key::new("k-secret".to_owned())));
    assert_eq!(settings.web.engine, Some(engine.unwrap()));
    assert_eq!(settings.web.private, PrivateHosts::parse(&["wiki.internal:443".to_owned()]).unwrap());
    // Of variables and keys nothing is shown but that they are there.
    let servers = r#"[ForeignServer { name: "far", way: Program(Program { command: "far", args: ["-x"], env: {"SEARCH_KEY"}, jail: false, files: None, network: [] }), timeout: Some(40s) }, ForeignServer { name: "near", way: Program(Program { command: "near", args: [], env: {}, jail: true, files: Read, network: ["a.example:443", "b.example:80"] }), timeout: None }, ForeignServer { name: "web", way: Url { url: "http://127.0.0.1:8888/mcp", key: Some(Key(..)) }, timeout: None }]"#;
    assert_eq!(format!("{:?}", settings.mcp_servers), servers);
    let mounts = ["data=/data:rw", "pkg=~/pkg:ro"].map(|text| Mounted::parse(text).unwrap());
    assert_eq!(settings.mounts, mounts);
    assert_eq!(settings.tools.allow, Some(["read_file", "list_dir"].map(str::to_owned).into()));
    assert_eq!(settings.tools.deny, ["write_file".to_owned()].into());
}

#[test]
fn every_key_is_heard_in_toml_and_in_json_by_user_and_owner() {
    for (file, text) in [("config.toml", EVERY_KEY.to_owned()), ("config.json", every_key_as_json())] {
        for layer in ["config", "managed"] {
            let layers = Layers::new();
            layers.write(&format!("{layer}/{file}"), &text);
            check_every_key(&layers.load(&Flags::default()).unwrap());
        }
    }
}

#[test]
fn a_server_of_others_is_named_plainly_and_reached_in_one_way() {
    let cases = [
        ("[mcp_servers.a]\n", "it has no `command` and no `url`"),
        ("[mcp_servers.a]\ncommand = \"x\"\nurl = \"http://x/\"\n", "is one or the other"),
        ("[mcp_servers.a]\nurl = \"http://x/\"\njail = false\n", "are for a `command`"),
        ("[mcp_servers.a]\nurl = \"http://x/\"\nworkspace = \"read\"\n", "are for a `command`"),
        ("[mcp_servers.a]\ncommand = \"x\"\njail = false\nworkspace = \"read\"\n", "are for the jail"),
        ("[mcp_servers.a]\ncommand = \"x\"\njail = false\nnetwork = [\"a.example\"]\n", "are for the jail"),
        ("[mcp_servers.a]\ncommand = \"x\"\nworkspace = \"write\"\n", "`write` is none of none, read"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"https://a.example/\"]\n", "`network` lists hosts such as"),
        (
            "[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"b.example\", \"a.example:99999\"]\n",
            "`mcp_servers.a`: `network` lists hosts such as `pypi.org` or `pypi.org:80`, and `a.example:99999` is none",
        ),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"a.example:0\"]\n", "`a.example:0` is none"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"a.example:\"]\n", "`a.example:` is none"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"a.example:80:80\"]\n", "`a.example:80:80` is none"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"::1\"]\n", "`::1` is none"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"\"]\n", "`` is none"),
        ("[mcp_servers.a]\ncommand = \"x\"\nkey_env = \"K\"\n", "`key_env` is for a `url`"),
        ("[mcp_servers.a]\ncommand = \"./x\"\n", "an absolute path"),
        ("[mcp_servers.a]\ncommand = \"\"\n", "`command` is empty"),
        ("[mcp_servers.a__b]\ncommand = \"x\"\n", "`mcp_servers.a__b`: a name is at most 20"),
        ("[mcp_servers.\"a/b\"]\ncommand = \"x\"\n", "a name is at most 20"),
        ("[mcp_servers.A]\ncommand = \"x\"\n", "a name is at most 20"),
        ("[mcp_servers.a]\ncommand = \"x\"\nenv = \"K\"\n", "expected a sequence"),
    ];
    for (text, problem) in cases {
        let layers = Layers::new();
        layers.write("config/config.toml", text);
        let error = layers.load(&Flags::default()).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let layers = Layers::new();
    layers.write("config/config.toml", "[mcp_servers.a]\ncommand = \"x\"\nenv = [\"NOT_SET\"]\n");
    layers.write("managed/config.toml", "[mcp_servers.a]\ncommand = \"owners\"\n");
    let settings = layers.load(&Flags::default()).unwrap();
    let shown = format!("{:?}", settings.mcp_servers);
    assert!(shown.contains("owners") && shown.contains("jail: true") && settings.warnings.is_empty(), "{shown}");
}

#[test]
fn a_session_pauses_after_some_denials_and_not_after_none() {
    let layers = Layers::new();
    let path = layers.write("config/config.toml", "[approval]\npause_after_denials = 0\n");
    let error = layers.load(&Flags::default()).unwrap_err().to_string();
    assert!(error.contains("nonzero"), "{error}");
    std::fs::write(path, "[approval]\npause_after_denials = 9\n").unwrap();
    assert_eq!(layers.load(&Flags::default()).unwrap().limits.denials_in_a_row, 9);
    layers.write("managed/config.toml", "[approval]\npause_after_denials = 2\n");
    assert_eq!(layers.load(&Flags::default()).unwrap().limits.denials_in_a_row, 2);
}

#[test]
fn the_examples_say_the_defaults() {
    let examples = ["../../config/ringfence.example.toml", "../../config/config.example.json"];
    for example in examples.map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(name)) {
        let layers = Layers::new();
        let plain = layers.load(&Flags::default()).unwrap();
        let said = layers.load(&Flags { config: Some(example), ..Flags::default() }).unwrap();
        assert_eq!((said.dialect, said.preset, said.limits), (plain.dialect, plain.preset, plain.limits));
        assert_eq!((said.durability, said.names, said.log), (plain.durability, plain.names, plain.log));
        assert_eq!((said.audit_heads, said.unattended), (plain.audit_heads, plain.unattended));
        assert_eq!(
            (said.tools.allow, said.tools.deny, said.mounts),
            (plain.tools.allow, plain.tools.deny, plain.mounts)
        );
        assert_eq!((said.max_tool_iterations, said.warnings), (plain.max_tool_iterations, plain.warnings));
        assert_eq!(said.model, plain.model);
        assert_eq!(said.workspace.as_deref(), Some("~/.ringfence/workspace"));
        assert!(said.user_rules.is_empty());
        assert_eq!((said.web.private, said.web.engine), (plain.web.private, plain.web.engine));
    }
}

#[test]
fn what_is_wrong_about_the_web_is_said() {
    for (text, problem) in [
        ("[web]\nallow_private = [\"wiki\"]\n", "`web.allow_private`: `wiki` is no host and port"),
        ("[web.search]\nengine = \"bing\"\n", "`engine` is `bing`"),
        ("[web.search]\nengine = \"searxng\"\n", "needs `url`"),
        ("[web.search]\nengine = \"brave\"\n", "key_env"),
        ("[web.search]\nurl = \"http://a.org\"\n", "`engine` is missing"),
    ] {
        let layers = Layers::new();
        layers.write("config/config.toml", text);
        let error = layers.load(&Flags::default()).unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
    let layers = Layers::new();
    layers.write("config/config.toml", "[web.search]\nengine = \"brave\"\nkey_env = \"NOT_SET\"\n");
    let settings = layers.load(&Flags::default()).unwrap();
    assert!(settings.web.engine.is_none() && settings.warnings[0].contains("`NOT_SET`"), "{:?}", settings.warnings);
    let shown = format!("{:?}", layers.environment());
    assert!(shown.contains("SEARCH_KEY") && !shown.contains("k-secret"), "{shown}");
}

#[test]
fn the_rules_that_the_example_shows_can_be_used() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/ringfence.example.toml");
    let text = std::fs::read_to_string(example).unwrap();
    let (_, shown) = text.split_once("# [[rules]]").unwrap();
    let rules: String = shown.lines().map(|line| format!("{}\n", line.trim_start_matches("# "))).collect();
    let layers = Layers::new();
    layers.write("config/config.toml", &format!("[[rules]]{rules}"));
    let names = layers.load(&Flags::default()).unwrap().user_rules;
    let names: Vec<&str> = names.iter().map(ringfence_kernel::Rule::name).collect();
    assert_eq!(names, ["generated", "notes", "documentation"]);
}

const CREW: &str = r#"
[policy.fs]
maxReadBytes = 1000
[agents.reader.tools.fs]
maxReadBytes = 2000
maxWriteBytes = 10
[agents.idle.tools.fs]
enabled = false
"#;

#[test]
fn an_agent_can_only_tighten_what_the_policy_allows() {
    let layers = Layers::new();
    let crew = |agent: Option<&str>| Flags {
        dialect: Some(Dialect::Crewagent),
        agent: agent.map(str::to_owned),
        ..Flags::default()
    };
    let limits = |layers: &Layers, agent| {
        layers.load(&crew(agent)).map(|said| (said.limits.read_bytes, said.limits.write_bytes))
    };
    assert_eq!(limits(&layers, None).unwrap(), (50_000, 100_000));
    layers.write("config/config.toml", "policy.fs = {}");
    assert_eq!(limits(&layers, None).unwrap(), (524_288, 2_097_152));
    layers.write("config/config.toml", CREW);
    assert_eq!(limits(&layers, None).unwrap(), (1000, 2_097_152));
    assert_eq!(limits(&layers, Some("reader")).unwrap(), (1000, 10));
    let error = limits(&layers, Some("raeder")).unwrap_err().to_string();
    assert!(error.contains("did you mean `reader`?"), "{error}");
    assert_eq!(layers.load(&crew(Some("idle"))).unwrap().tools.allow, Some([].into()));
}

#[test]
fn the_stricter_word_holds_whoever_said_it() {
    let read_only = Flags { preset: Some(Preset::ReadOnly), ..Flags::default() };
    let layers = Layers::new();
    layers.write("managed/config.toml", "preset = \"edits\"");
    assert_eq!(layers.load(&read_only).unwrap().preset, Preset::ReadOnly);
    layers.write("config/config.toml", "preset = \"ask\"");
    assert_eq!(layers.load(&Flags::default()).unwrap().preset, Preset::Ask);
}

#[test]
fn a_table_about_files_never_loosens_a_limit_that_was_set() {
    let layers = Layers::new();
    let crew = Flags { dialect: Some(Dialect::Crewagent), ..Flags::default() };
    layers.write("managed/config.toml", "limits.max_read_bytes = 10");
    layers.write("config/config.toml", "policy.fs = {}");
    assert_eq!(layers.load(&crew).unwrap().limits.read_bytes, 10);
    layers.write("config/config.toml", "agents.defaults.tools.fs.maxReadBytes = 5");
    assert_eq!(layers.load(&crew).unwrap().limits.read_bytes, 5);
    layers.write("config/config.toml", "agents.defaults.tools.fs.enabled = false");
    assert_eq!(layers.load(&crew).unwrap().tools.allow, Some([].into()));
    layers.write("config/config.toml", "agents.writer.restrict_to_workspace = false");
    let error = layers.load(&crew).unwrap_err().to_string();
    assert!(error.contains("agents.writer") && error.contains("restrict_to_workspace"), "{error}");
}

#[test]
fn a_named_agent_says_what_is_different_for_it_and_can_only_tighten() {
    let layers = Layers::new();
    let defaults = "[agents.defaults]\nmodel = \"large\"\nbase_url = \"http://a/v1\"\nmax_tool_iterations = 9\nworkspace = \"shared\"\n";
    let named = "[agents.writer]\nmodel = \"small\"\ndialect = \"miniclaw\"\nmax_tool_iterations = 3\nworkspace = \"own\"\n\
                 [agents.writer.limits]\nmax_read_bytes = 10\nmax_write_bytes = 99999999999\n\
                 [agents.writer.tools]\nallow = [\"read_file\", \"write_file\"]\ndeny = [\"write_file\"]\n";
    layers.write("config/config.toml", &format!("{defaults}{named}"));
    let writer = Flags { agent: Some("writer".to_owned()), ..Flags::default() };
    let settings = layers.load(&writer).unwrap();
    assert_eq!((settings.dialect, settings.max_tool_iterations), (Dialect::Miniclaw, 3));
    assert_eq!((settings.model.model.as_deref(), settings.workspace.as_deref()), (Some("small"), Some("own")));
    assert_eq!(settings.model.base_url.as_deref(), Some("http://a/v1"));
    let base = Limits::of(Dialect::Miniclaw);
    assert_eq!((settings.limits.read_bytes, settings.limits.write_bytes), (10, base.write_bytes));
    assert_eq!(settings.tools.allow.unwrap().len(), 2);
    assert!(settings.tools.deny.contains("write_file"));
    let settings = layers.load(&Flags::default()).unwrap();
    assert_eq!((settings.model.model.as_deref(), settings.max_tool_iterations), (Some("large"), 9));
    assert_eq!(settings.limits, Limits::of(Dialect::Standard));
    // What the owner of the machine says holds, and the command line against the user's agent.
    layers.write("managed/config.toml", "[agents.defaults]\nmodel = \"ours\"\n");
    let flags = Flags { dialect: Some(Dialect::Standard), workspace: Some("here".to_owned()), ..writer };
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.model.model.as_deref(), settings.dialect), (Some("ours"), Dialect::Standard));
    assert_eq!(settings.workspace.as_deref(), Some("here"));
}

#[test]
fn nothing_said_is_the_default() {
    let layers = Layers::new();
    let settings = layers.load(&Flags::default()).unwrap();
    assert_eq!((settings.dialect, settings.preset), (Dialect::Standard, Preset::Ask));
    assert_eq!(settings.limits, Limits::of(Dialect::Standard));
    assert_eq!((settings.workspace, settings.log), (None, LogTo::Nowhere));
    assert_eq!(settings.max_tool_iterations, 20);
    let flags = Flags { dialect: Some(Dialect::Miniclaw), ..Flags::default() };
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.preset, settings.log), (Preset::Edits, LogTo::StandardError));
    for count in ["0", "-5"] {
        layers.write("config/config.toml", &format!("agents.defaults.max_tool_iterations = {count}"));
        assert_eq!(layers.load(&Flags::default()).unwrap().max_tool_iterations, 20);
    }
}

#[test]
fn a_limit_for_writes_is_one_for_edits_and_appends_too() {
    let layers = Layers::new();
    layers.write("config/config.toml", "[limits]\nmax_write_bytes = 10\nmax_append_bytes = 3\n");
    let limits = layers.load(&Flags::default()).unwrap().limits;
    assert_eq!((limits.write_bytes, limits.edit_bytes, limits.append_bytes), (10, 10, 3));
}

#[test]
fn the_owner_of_the_machine_holds_against_flags_and_flags_against_the_user() {
    let layers = Layers::new();
    let flags = Flags {
        preset: Some(Preset::Edits),
        dialect: Some(Dialect::Standard),
        workspace: Some("flag".to_owned()),
        ..Flags::default()
    };
    layers.write(
        "config/config.toml",
        "preset = \"ask\"\ndialect = \"miniclaw\"\nagents.defaults.workspace = \"user\"\n[limits]\nmax_read_bytes = 10\nmax_copy_bytes = 20",
    );
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.preset, settings.dialect), (Preset::Edits, Dialect::Standard));
    assert_eq!(settings.workspace.as_deref(), Some("flag"));
    let settings = layers.load(&Flags::default()).unwrap();
    assert_eq!((settings.preset, settings.dialect), (Preset::Ask, Dialect::Miniclaw));
    assert_eq!(settings.workspace.as_deref(), Some("user"));

    layers.write(
        "managed/config.toml",
        "preset = \"read-only\"\nagents.defaults.workspace = \"owner\"\n[limits]\nmax_read_bytes = 5\n[tools]\ndeny = [\"read_file\"]",
    );
    let settings = layers.load(&flags).unwrap();
    assert_eq!((settings.preset, settings.dialect), (Preset::ReadOnly, Dialect::Standard));
    assert_eq!(settings.workspace.as_deref(), Some("owner"));
    assert_eq!((settings.limits.read_bytes, settings.limits.copy_bytes), (5, 20));
    assert!(settings.tools.deny.contains("read_file"));
    let [warning] = &settings.warnings[..] else { panic!("{:?}", settings.warnings) };
    assert!(warning.contains("preset") && warning.contains("read-only") && warning.contains("edits"), "{warning}");
}

#[test]
fn tools_can_only_become_fewer_from_layer_to_layer() {
    let layers = Layers::new();
    layers.write("managed/config.toml", "tools.allow = [\"read_file\", \"edit_file\"]");
    layers.write("config/config.toml", "tools.allow = [\"read_file\", \"write_file\"]\ntools.deny = [\"copy_file\"]");
    let flags = Flags { allow: vec!["write_file".to_owned()], deny: vec!["move_file".to_owned()], ..Flags::default() };
    let tools = layers.load(&Flags::default()).unwrap().tools;
    assert_eq!(tools.allow, Some(["read_file".to_owned()].into()));
    let tools = layers.load(&flags).unwrap().tools;
    assert_eq!(tools.allow, Some([].into()));
    assert_eq!(tools.deny, ["copy_file", "move_file"].map(str::to_owned).into());
}

#[test]
fn an_owner_s_file_that_cannot_be_read_or_understood_is_never_passed_over() {
    let layers = Layers::new();
    let managed = layers.write("managed/config.toml", "preset = \"nonsense\"");
    assert!(layers.load(&Flags::default()).is_err());
    std::fs::remove_file(&managed).unwrap();
    assert!(layers.load(&Flags::default()).is_ok());
    // A link to a file that is not there now, perhaps because its disk is not.
    symlink("/nowhere/config.toml", &managed).unwrap();
    assert!(layers.load(&Flags::default()).is_err());
    std::fs::remove_file(&managed).unwrap();
    std::fs::create_dir(&managed).unwrap();
    assert!(layers.load(&Flags::default()).is_err());
}

#[test]
fn a_length_of_time_is_a_number_of_seconds_or_a_text() {
    let layers = Layers::new();
    let time = |written: &str| {
        layers.write("config/config.toml", &format!("limits.max_tool_operation_duration = {written}"));
        layers.load(&Flags::default()).map(|settings| settings.limits.call_time)
    };
    assert_eq!(time("5").unwrap(), Duration::from_secs(5));
    assert_eq!(time("\"250ms\"").unwrap(), Duration::from_millis(250));
    assert_eq!(time("\"2m\"").unwrap(), Duration::from_secs(120));
    for wrong in ["0", "-1", "\"0s\"", "\"soon\"", "true", "1.5"] {
        assert!(time(wrong).is_err(), "{wrong}");
    }
}

/// Runs `tools --format list` with what the environment says, and no flag of ours.
fn listed(site: &Site, arguments: &[&str], environment: &[(&str, &Path)]) -> Said {
    let mut command = site.bare();
    command.args(["tools"]).args(arguments).envs(environment.iter().copied());
    said(command.output().unwrap())
}

#[test]
fn the_file_is_the_flag_s_or_the_variable_s_or_the_user_s_own() {
    let site = Site::new();
    let file = |path: PathBuf, tool: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = match path.extension().is_some_and(|extension| extension == "json") {
            true => json!({"tools": {"allow": [tool]}}).to_string(),
            false => format!("[tools]\nallow = [\"{tool}\"]\n"),
        };
        std::fs::write(&path, text).unwrap();
        path
    };
    #[track_caller]
    fn check(said: Said, tool: &str) {
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.out.split(' ').next(), Some(tool), "{said:?}");
        assert_eq!(said.out.lines().count(), 1);
    }
    let json = file(site.config.join("ringfence/config.json"), "copy_file");
    check(listed(&site, &[], &[]), "copy_file");
    file(site.config.join("ringfence/config.toml"), "edit_file");
    check(listed(&site, &[], &[]), "edit_file");
    let variable = file(site.root().join("variable.toml"), "move_file");
    check(listed(&site, &[], &[("RINGFENCE_CONFIG", &variable)]), "move_file");
    let flag = file(site.root().join("flag.json"), "find_files");
    check(listed(&site, &["--config", flag.to_str().unwrap()], &[("RINGFENCE_CONFIG", &variable)]), "find_files");
    // A relative name is one from where the program was started.
    file(site.current.join("here.toml"), "read_file");
    check(listed(&site, &["--config", "here.toml"], &[]), "read_file");
    std::fs::remove_dir_all(json.parent().unwrap()).unwrap();
    // Without XDG_CONFIG_HOME, or with one that is not absolute, it is `~/.config`.
    file(site.home.join(".config/ringfence/config.toml"), "append_file");
    for elsewhere in ["", "relative"] {
        check(listed(&site, &[], &[("XDG_CONFIG_HOME", Path::new(elsewhere))]), "append_file");
    }
    let missing = listed(&site, &["--config", "none.toml"], &[]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.err.contains("none.toml"), "{missing:?}");
}

#[test]
fn a_wrong_file_is_exit_code_2_and_says_where_and_what_was_meant() {
    let site = Site::new();
    let told = |name: &str, text: &str, words: &[&str]| {
        let path = site.root().join(name);
        std::fs::write(&path, text).unwrap();
        let said = listed(&site, &["--config", path.to_str().unwrap()], &[]);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{text}: {said:?}");
        for word in words.iter().chain([&name]) {
            assert!(said.err.contains(word), "{text:?} does not say {word:?}: {}", said.err);
        }
    };
    told("a.toml", "\n[limits]\nmax_raed_bytes = 5\n", &["max_raed_bytes", "did you mean `max_read_bytes`?", "line 3"]);
    told("a.toml", "presett = \"ask\"", &["presett", "did you mean `preset`?", "line 1"]);
    told("a.toml", "[agents.defaults]\nworkspce = \"x\"", &["workspce", "did you mean `workspace`?"]);
    told("a.toml", "preset = \"yolo\"", &["yolo", "ask", "edits", "read-only", "line 1"]);
    told("a.toml", "dialect = \"klingon\"", &["klingon", "standard", "miniclaw"]);
    told("a.toml", "durability = \"some\"", &["some", "full", "ordered"]);
    told("a.toml", "names = \"any\"", &["any", "native", "portable"]);
    told("a.toml", "preset = 5", &["line 1"]);
    told("a.toml", "[limits]\nmax_read_bytes = -1", &["line 2"]);
    told("a.toml", "preset = \"ask\"\npreset = \"ask\"", &["line 2", "preset"]);
    told("a.toml", "preset = ", &["line 1"]);
    told("a.json", "{\"limits\":\n{\"max_raed_bytes\": 5}}", &["max_raed_bytes", "`max_read_bytes`?", "line 2"]);
    told("a.json", "{\"preset\":\"yolo\"}", &["yolo", "read-only", "line 1"]);
    told("a.json", "{", &["line 1"]);
}

#[test]
fn a_tool_in_config_that_does_not_exist_names_the_nearest() {
    let site = Site::new();
    let path = site.root().join("a.toml");
    std::fs::write(&path, "[tools]\ndeny = [\"red_file\"]").unwrap();
    let said = listed(&site, &["--config", path.to_str().unwrap()], &[]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("did you mean `read_file`?"), "{said:?}");
}

#[test]
fn not_restricting_to_the_workspace_warns_and_opens_nothing() {
    let site = Site::new();
    let path = site.root().join("open.toml");
    std::fs::write(&path, "[agents.defaults]\nrestrict_to_workspace = false\n").unwrap();
    symlink(site.outside.join("secret"), site.workspace.join("out")).unwrap();
    let secret = site.outside.join("secret");
    for path_out in ["../outside/secret", "out", secret.to_str().unwrap()] {
        let said = site.call_with(&["--config", path.to_str().unwrap()], "read_file", &json!({"path": path_out}));
        assert_eq!(said.error(), "INVALID_PATH", "{path_out}");
        assert!(said.err.contains("warning: restrict_to_workspace = false does not open the host"), "{said:?}");
        assert!(!said.out.contains("SECRET"));
    }
}

/// Writes a file by way of a workspace that is given in these words; tells where it came to be, or why not.
fn workspace_of(site: &Site, written: Option<&str>) -> Result<PathBuf, String> {
    let mut command = site.bare();
    command.args(["call", "write_file", r#"{"path":"here-it-is","content":""}"#]);
    if let Some(written) = written {
        command.args(["--workspace", written]);
    }
    let said = said(command.output().unwrap());
    if said.code == Some(2) {
        return Err(said.err);
    }
    said.value();
    let mut left = vec![std::fs::canonicalize(site.root()).unwrap()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            if entry.file_name() == "here-it-is" {
                std::fs::remove_file(entry.path()).unwrap();
                return Ok(directory);
            }
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
        }
    }
    panic!("the file is nowhere");
}

#[test]
fn a_workspace_is_trimmed_expanded_made_absolute_and_created() {
    let site = Site::new();
    let absolute = site.root().join("made/just/now");
    let cases = [
        (None, site.home.join(".ringfence/workspace")),
        (Some(""), site.home.join(".ringfence/workspace")),
        (Some("   "), site.home.join(".ringfence/workspace")),
        (Some("~/work"), site.home.join("work")),
        (Some("  ~/work\n"), site.home.join("work")),
        (Some("~//work"), site.home.join("work")),
        (Some("relative/dir"), site.current.join("relative/dir")),
        (Some("."), site.current.clone()),
        (Some("../beside"), site.root().join("beside")),
        (Some("~name"), site.current.join("~name")),
        (Some("a~/b"), site.current.join("a~/b")),
        (Some("with space"), site.current.join("with space")),
        (Some(absolute.to_str().unwrap()), absolute.clone()),
    ];
    for (written, expected) in cases {
        assert_eq!(workspace_of(&site, written), Ok(expected), "{written:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_a_workspace_is_refused() {
    let site = Site::new();
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::create_dir_all(&site.state).unwrap();
    std::fs::write(site.root().join("file"), "").unwrap();
    symlink(&site.home, site.root().join("link-home")).unwrap();
    symlink(&site.state, site.root().join("link-state")).unwrap();
    let at = |path: &Path| path.to_str().unwrap().to_owned();
    let cases = [
        ("/".to_owned(), "root of the file system"),
        ("/tmp/..".to_owned(), "root of the file system"),
        ("~".to_owned(), "home directory"),
        ("~/".to_owned(), "home directory"),
        (at(&site.home), "home directory"),
        (at(&site.root().join("link-home")), "home directory"),
        (at(&site.config.join("ringfence")), "ringfence's own"),
        (at(&site.config.join("ringfence/below")), "ringfence's own"),
        (at(&site.config), "ringfence's own"),
        (at(&site.state), "ringfence's own"),
        (at(&site.state.join("locks")), "ringfence's own"),
        (at(site.root()), "home directory"),
        (at(&site.root().join("link-state")), "ringfence's own"),
        (at(&site.root().join("file")), "cannot be made"),
        (at(&site.root().join("file/below")), "cannot be made"),
    ];
    for (written, reason) in cases {
        let refused = workspace_of(&site, Some(&written)).unwrap_err();
        assert!(refused.contains(reason), "{written}: {refused}");
    }
}

#[test]
fn a_state_directory_that_is_not_there_yet_counts_by_where_it_will_be() {
    let site = Site::new();
    let link = site.root().join("link");
    symlink(&site.outside, &link).unwrap();
    let mut command = site.bare();
    command.args(["tools", "--workspace"]).arg(&site.outside).env("RINGFENCE_STATE_DIR", link.join("not/yet"));
    let said = said(command.output().unwrap());
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("ringfence's own"), "{said:?}");
}

#[test]
fn a_refused_workspace_inside_our_own_directories_is_not_created() {
    let site = Site::new();
    let inside = site.config.join("ringfence/sub");
    workspace_of(&site, Some(inside.to_str().unwrap())).unwrap_err();
    assert!(!inside.exists());
}

#[test]
fn a_config_file_that_the_agent_could_write_is_refused() {
    let site = Site::new();
    site.write("ours.toml", "preset = \"read-only\"\n");
    let config = site.workspace.join("ours.toml");
    let said = site.run(&["--config", config.to_str().unwrap(), "tools"]);
    assert_eq!(said.code, Some(2), "{said:?}");
}

#[test]
fn without_a_home_a_workspace_below_it_is_refused_and_another_works() {
    let site = Site::new();
    let run = |workspace: &Path| {
        let mut command = site.bare();
        command.env_remove("HOME").args(["tools", "--workspace"]).arg(workspace);
        said(command.output().unwrap())
    };
    let refused = run(Path::new("~/work"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("home directory"), "{refused:?}");
    assert_eq!(run(&site.workspace).code, Some(0));
}

/// What a write of 100 bytes over a file ends with, when the workspace says this about itself.
fn tightened(user: &str, workspace: &str) -> String {
    let site = Site::new();
    site.write("old.txt", "old");
    site.write("ringfence.toml", workspace);
    let config = site.root().join("user.toml");
    std::fs::write(&config, user).unwrap();
    let arguments = json!({"path": "old.txt", "content": "x".repeat(100)}).to_string();
    let said = site.run(&["--config", config.to_str().unwrap(), "call", "write_file", &arguments]);
    if said.code == Some(0) { "ok".to_owned() } else { said.error() }
}

#[test]
fn a_workspace_can_only_tighten() {
    let edits = "preset = \"edits\"\n";
    assert_eq!(tightened(edits, ""), "ok");
    // Stricter words hold.
    assert_eq!(tightened(edits, "preset = \"ask\""), "APPROVAL_DENIED");
    assert_eq!(tightened(edits, "preset = \"read-only\""), "PERMISSION_DENIED");
    assert_eq!(tightened(edits, "[limits]\nmax_write_bytes = 50"), "WRITE_LIMIT");
    assert_eq!(tightened(edits, "[tools]\ndeny = [\"write_file\"]"), "UNKNOWN_TOOL");
    assert_eq!(tightened(edits, "[tools]\nallow = [\"read_file\"]"), "UNKNOWN_TOOL");
    // Looser ones do not.
    assert_eq!(tightened("preset = \"ask\"", "preset = \"edits\""), "APPROVAL_DENIED");
    assert_eq!(tightened("preset = \"read-only\"", "preset = \"edits\""), "PERMISSION_DENIED");
    let tight = "preset = \"edits\"\n[limits]\nmax_write_bytes = 50\n";
    assert_eq!(tightened(tight, "[limits]\nmax_write_bytes = 1000"), "WRITE_LIMIT");
    let denied = "preset = \"edits\"\n[tools]\ndeny = [\"write_file\"]\n";
    assert_eq!(tightened(denied, "[tools]\nallow = [\"write_file\"]"), "UNKNOWN_TOOL");
    let few = "preset = \"edits\"\n[tools]\nallow = [\"read_file\"]\n";
    assert_eq!(tightened(few, "[tools]\nallow = [\"write_file\"]"), "UNKNOWN_TOOL");
}

#[test]
fn a_workspace_s_own_file_that_cannot_be_used_stops_everything_and_shows_no_host_path() {
    let told = |make: &dyn Fn(&Site), words: &[&str]| {
        let site = Site::new();
        make(&site);
        let said = site.run(&["call", "list_directory", r#"{"path":"."}"#]);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{words:?}: {said:?}");
        for word in words.iter().chain([&"ringfence.toml"]) {
            assert!(said.err.contains(word), "it does not say {word:?}: {}", said.err);
        }
        assert!(!said.err.contains(site.root().to_str().unwrap()) && !said.err.contains("SECRET"), "{}", said.err);
    };
    let with = |text: &'static str| move |site: &Site| site.write("ringfence.toml", text);
    told(&with("dialect = \"miniclaw\""), &["dialect"]);
    told(&with("log = \"x\""), &["log"]);
    told(&with("durability = \"ordered\""), &["durability"]);
    told(&with("names = \"native\""), &["names"]);
    told(&with("[agents.defaults]\nworkspace = \"/\""), &["agents"]);
    told(&with("presett = \"ask\""), &["presett", "did you mean `preset`?", "line 1"]);
    told(&with("preset = \"yolo\""), &["yolo", "read-only"]);
    // Trusted or not, these are for others to say.
    told(&with("[approval]\nunattended = true"), &["approval"]);
    told(&with("[approval]\npause_after_denials = 9"), &["approval"]);
    told(&with("[mounts.x]\npath = \"/\""), &["mounts"]);
    told(&with("[tools]\ndeny = [\"red_file\"]"), &[]);
    told(&|site| site.write("ringfence.toml", vec![b'#'; (1 << 20) + 1]), &["1048576"]);
    told(&|site| site.write("ringfence.toml", b"preset = \"ask\"\0"), &["binary"]);
    told(&|site| site.write("ringfence.toml", b"# \xff\xfe"), &["UTF-8"]);
    told(&|site| symlink("../outside/secret", site.workspace.join("ringfence.toml")).unwrap(), &["outside"]);
    told(&|site| symlink(site.outside.join("secret"), site.workspace.join("ringfence.toml")).unwrap(), &[]);
    told(&|site| std::fs::create_dir(site.workspace.join("ringfence.toml")).unwrap(), &["directory"]);
}

#[test]
fn heads_of_the_audit_log_go_to_a_second_place_too_and_it_must_not_be_inside() {
    let site = Site::new();
    site.write("f", "x");
    let (second, config) = (site.root().join("heads.jsonl"), site.root().join("heads.toml"));
    let call = |heads: &Path| {
        std::fs::write(&config, format!("audit_heads = {}", json!(heads))).unwrap();
        site.run(&["call", "read_file", r#"{"path":"f"}"#, "--config", config.to_str().unwrap()])
    };
    assert_eq!(call(&second).code, Some(0));
    assert_eq!(call(&second).code, Some(0));
    assert_eq!(std::fs::read_to_string(&second).unwrap().lines().count(), 2);
    let check = || site.run(&["audit", "verify", "--heads", second.to_str().unwrap()]).code;
    assert_eq!(check(), Some(0));
    std::fs::remove_dir_all(site.state.join("audit")).unwrap();
    assert_eq!(call(Path::new("none")).code, Some(0));
    assert_eq!((site.run(&["audit", "verify"]).code, check()), (Some(0), Some(1)));
    assert_eq!(call(&site.workspace.join("heads.jsonl")).code, Some(2));
}

#[test]
fn a_log_goes_where_config_says() {
    let site = Site::new();
    site.write("a.txt", "hunter2");
    let log = site.root().join("calls.jsonl");
    let config = site.root().join("log.toml");
    let call = |log: &str| {
        std::fs::write(&config, format!("log = {}", json!(log))).unwrap();
        site.call_with(&["--config", config.to_str().unwrap()], "read_file", &json!({"path": "a.txt"}))
    };
    assert_eq!(call("none").err, "");
    assert_eq!(call("stderr").err.lines().count(), 1);
    for _ in 0..2 {
        assert_eq!(call(log.to_str().unwrap()).err, "");
    }
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(!text.contains("hunter2"));
    assert_eq!(call("/nowhere/at/all.jsonl").code, Some(2));
    // Where every record is lost, no reply is given.
    assert_eq!(call("/dev/full").code, Some(2));
}
