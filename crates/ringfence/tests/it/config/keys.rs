//! Every key takes effect, and an invalid one is an error.

use std::path::Path;
use std::time::Duration;

use ringfence::config::agents::{ModelSettings, ProviderChoice};
use ringfence::config::{AppSettings, CliFlags, LogTarget, MountSetting, RunCodeSettings};
use ringfence_agent::provider::ProviderTimeouts;
use ringfence_fs::{Durability, NameRule};
use ringfence_kernel::{CallLimits, Dialect, Preset};
use ringfence_sandbox::JailFallback;
use ringfence_web::{PrivateHosts, SearchEngine, SearchEngineKind, WebApiKey};

use super::ConfigLayers;

const EVERY_KEY: &str = r#"
dialect = "miniclaw"
preset = "read-only"
toolsets = ["git"]
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
connect_timeout = "43s"
first_byte_timeout = 44
idle_timeout = 45
answer_timeout = "46s"

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
max_job_duration = "47s"
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

[run]
max_memory_bytes = 48
max_disk_bytes = 49
max_processes = 50
max_duration = "51s"
profiles = ["claude"]
own_profiles = false
toolchains = ["rust"]
max_kept_bytes = 52
keep_home = false
follow_workspace = false

[[credentials]]
name = "far"
hosts = ["far.example"]
paths = ["/v1/**"]
websocket_paths = ["/v1/live"]
headers = ["x-api-key"]
source = ["env:FAR_KEY"]
variable = "FAR_KEY"
also = ["FAR_TOKEN"]
placeholder = "far-"

[project]
test = "cargo-nextest"
format = "black"

[web]
allow_private = ["wiki.internal:443"]
[web.search]
engine = "searxng"
url = "http://127.0.0.1:8888/"
key_env = "SEARCH_KEY"

[git.hosts."git.example"]
token_env = "SEARCH_KEY"
user = "me"

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
        "dialect": "miniclaw", "preset": "read-only", "durability": "ordered", "names": "portable", "log": "none", "toolsets": ["git"],
        "agents": {"defaults": {
            "workspace": "~/work", "restrict_to_workspace": true, "max_tool_iterations": 7, "provider": "openai",
            "base_url": "http://127.0.0.1:8080/v1", "api_key_env": "MY_KEY", "model": "small", "script": "answers.jsonl",
            "temperature": 0.5, "max_tokens": 30, "context_tokens": 31, "max_prompt_tokens": 32,
            "max_prompt_duration": 33, "system_prompt": "Be brief.", "project_instructions": false,
            "repair_tool_calls": true, "connect_timeout": 43, "first_byte_timeout": "44s", "idle_timeout": "45s",
            "answer_timeout": 46
        }},
        "limits": {
            "max_argument_bytes": 1, "max_read_bytes": 2, "max_hash_bytes": 3, "max_write_bytes": 4,
            "max_edit_bytes": 5, "max_append_bytes": 6, "max_appended_file_bytes": 7, "max_copy_bytes": 8,
            "max_list_entries": 9, "max_list_bytes": 17, "max_find_results": 10, "max_search_matches": 15, "max_search_bytes": 16,
            "max_delete_names": 11, "max_walk_entries": 12, "max_undo_session_bytes": 18, "max_undo_bytes": 19,
            "max_run_memory_bytes": 20, "max_run_disk_bytes": 21, "max_run_tmp_bytes": 22, "max_run_file_bytes": 23, "max_run_output_bytes": 24, "max_run_processes": 25, "max_run_open_files": 26,
            "run_duration": "27s", "max_run_duration": 28, "max_job_duration": 47, "max_run_cpu_duration": 29,
            "max_fetch_bytes": 33, "max_fetch_text_bytes": 34, "max_fetch_header_bytes": 35, "max_fetch_redirects": 36,
            "max_fetch_duration": 37, "max_fetch_connect_duration": 38, "max_fetch_first_byte_duration": 39,
            "max_mcp_duration": 40, "max_mcp_bytes": 41, "max_reply_bytes": 42,
            "max_tool_operation_duration": "13s", "max_approval_duration": 14
        },
        "run_code": {"waiting_jails": 5, "detect_toolchains": false, "toolchains": ["/opt/go"], "fallback": "none"},
        "run": {"max_memory_bytes": 48, "max_disk_bytes": 49, "max_processes": 50, "max_duration": "51s", "profiles": ["claude"], "own_profiles": false,
            "toolchains": ["rust"], "max_kept_bytes": 52, "keep_home": false, "follow_workspace": false},
        "credentials": [{"name": "far", "hosts": ["far.example"], "paths": ["/v1/**"], "websocket_paths": ["/v1/live"], "headers": ["x-api-key"],
            "source": ["env:FAR_KEY"], "variable": "FAR_KEY", "also": ["FAR_TOKEN"], "placeholder": "far-"}],
        "project": {"test": "cargo-nextest", "format": "black"},
        "web": {"allow_private": ["wiki.internal:443"], "search": {"engine": "searxng", "url": "http://127.0.0.1:8888/", "key_env": "SEARCH_KEY"}},
        "git": {"hosts": {"git.example": {"token_env": "SEARCH_KEY", "user": "me"}}},
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
fn check_every_key(settings: &AppSettings) {
    assert_eq!(settings.dialect, Dialect::Miniclaw);
    assert_eq!(settings.preset, Preset::ReadOnly);
    assert_eq!(settings.durability, Durability::Ordered);
    assert_eq!(settings.names, NameRule::Portable);
    assert_eq!(settings.log, LogTarget::Discard);
    assert_eq!(settings.workspace.as_deref(), Some("~/work"));
    assert_eq!(settings.max_tool_iterations, 7);
    let model = ModelSettings {
        provider: Some(ProviderChoice::OpenAi),
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
        repair_tool_calls: ringfence_agent::CallRepair::Unambiguous,
        timeouts: ProviderTimeouts {
            connect: Duration::from_secs(43),
            first_byte: Duration::from_secs(44),
            idle: Duration::from_secs(45),
            answer: Some(Duration::from_secs(46)),
        },
    };
    assert_eq!(settings.model, model);
    assert_eq!(settings.workspaces, std::collections::BTreeMap::from([("site".to_owned(), "~/site".to_owned())]));
    let run_code = RunCodeSettings {
        waiting_jails: 5,
        detect_toolchains: false,
        toolchains: vec!["/opt/go".into()],
        fallback: JailFallback::None,
    };
    assert_eq!(settings.run_code, run_code);
    assert!(settings.wrapped.profiles.as_ref().is_some_and(|names| names.len() == 1 && names.contains("claude")));
    assert!(!settings.wrapped.own_profiles && !settings.wrapped.keep_home);
    assert!(settings.wrapped.toolchains.as_ref().is_some_and(|names| names.len() == 1 && names.contains("rust")));
    let names: Vec<&str> = settings.credentials.iter().map(|credential| credential.name.as_str()).collect();
    assert_eq!(names, ["far"]);
    assert_eq!(settings.project.test.as_deref(), Some("cargo-nextest"));
    assert_eq!(settings.project.format.as_deref(), Some("black"));
    assert_eq!(settings.warnings, [] as [&str; 0]);
    let limits = CallLimits {
        argument_bytes: 1,
        read_bytes: 2,
        hash_bytes: 3,
        write_bytes: 4,
        edit_bytes: 5,
        append_bytes: 6,
        appended_file_bytes: 7,
        copy_bytes: 8,
        list_entries: 9,
        list_stats: u64::MAX,
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
        job_time: Duration::from_secs(47),
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
    let engine = SearchEngine::new(
        SearchEngineKind::SearXng,
        Some("http://127.0.0.1:8888/"),
        Some(WebApiKey::new("k-secret".to_owned())),
    );
    assert_eq!(settings.web.engine, Some(engine.unwrap()));
    assert_eq!(settings.web.private, PrivateHosts::parse(&["wiki.internal:443".to_owned()]).unwrap());
    // Of variables and keys nothing is shown but that they are there.
    let servers = r#"[McpServerConfig { name: "far", transport: Program(McpServerProgram { command: "far", args: ["-x"], env: {"SEARCH_KEY"}, jail: false, workspace: None, network: [] }), timeout: Some(40s) }, McpServerConfig { name: "near", transport: Program(McpServerProgram { command: "near", args: [], env: {}, jail: true, workspace: Read, network: ["a.example:443", "b.example:80"] }), timeout: None }, McpServerConfig { name: "web", transport: Url { url: "http://127.0.0.1:8888/mcp", key: Some(Key(..)) }, timeout: None }]"#;
    assert_eq!(format!("{:?}", settings.mcp_servers), servers);
    let mounts = ["data=/data:rw", "pkg=~/pkg:ro"].map(|text| MountSetting::parse(text).unwrap());
    assert_eq!(settings.mounts, mounts);
    assert_eq!(settings.tools.allow, Some(["read_file", "list_dir"].map(str::to_owned).into()));
    let credential = &settings.git_credentials.0["git.example"];
    assert_eq!((credential.user.as_str(), credential.token.is_empty()), ("me", false));
    assert_eq!(settings.tools.toolsets, ["git".to_owned()].into());
    assert_eq!(settings.tools.deny, ["write_file".to_owned()].into());
}

#[test]
fn every_key_is_heard_in_toml_and_in_json_by_user_and_owner() {
    for (file, text) in [("config.toml", EVERY_KEY.to_owned()), ("config.json", every_key_as_json())] {
        for layer in ["config", "managed"] {
            let layers = ConfigLayers::new();
            layers.write(&format!("{layer}/{file}"), &text);
            check_every_key(&layers.load(&CliFlags::default()).unwrap());
        }
    }
}

#[test]
fn a_server_of_others_is_named_plainly_and_reached_in_one_way() {
    let cases = [
        ("[mcp_servers.a]\n", "set `command` or `url`"),
        ("[mcp_servers.a]\ncommand = \"x\"\nurl = \"http://x/\"\n", "set either `command` or `url`, not both"),
        ("[mcp_servers.a]\nurl = \"http://x/\"\njail = false\n", "cannot be combined with `url`"),
        ("[mcp_servers.a]\nurl = \"http://x/\"\nworkspace = \"read\"\n", "cannot be combined with `url`"),
        ("[mcp_servers.a]\ncommand = \"x\"\njail = false\nworkspace = \"read\"\n", "require `jail = true`"),
        ("[mcp_servers.a]\ncommand = \"x\"\njail = false\nnetwork = [\"a.example\"]\n", "require `jail = true`"),
        (
            "[mcp_servers.a]\ncommand = \"x\"\nworkspace = \"write\"\n",
            "unknown value `write`; expected one of none, read",
        ),
        (
            "[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"https://a.example/\"]\n",
            "invalid host `https://a.example/` in `network`",
        ),
        (
            "[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"b.example\", \"a.example:99999\"]\n",
            "`mcp_servers.a`: invalid host `a.example:99999` in `network`: use a host such as `pypi.org` or `pypi.org:80`",
        ),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"a.example:0\"]\n", "invalid host `a.example:0`"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"a.example:\"]\n", "invalid host `a.example:`"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"a.example:80:80\"]\n", "invalid host `a.example:80:80`"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"::1\"]\n", "invalid host `::1`"),
        ("[mcp_servers.a]\ncommand = \"x\"\nnetwork = [\"\"]\n", "invalid host ``"),
        ("[mcp_servers.a]\ncommand = \"x\"\nkey_env = \"K\"\n", "`key_env` requires a `url`"),
        ("[mcp_servers.a]\ncommand = \"./x\"\n", "an absolute path"),
        ("[mcp_servers.a]\ncommand = \"\"\n", "`command` is empty"),
        ("[mcp_servers.a__b]\ncommand = \"x\"\n", "`mcp_servers.a__b`: a server name may have at most 20"),
        ("[mcp_servers.\"a/b\"]\ncommand = \"x\"\n", "a server name may have at most 20"),
        ("[mcp_servers.A]\ncommand = \"x\"\n", "a server name may have at most 20"),
        ("[mcp_servers.a]\ncommand = \"x\"\nenv = \"K\"\n", "expected a sequence"),
    ];
    for (text, problem) in cases {
        let layers = ConfigLayers::new();
        layers.write("config/config.toml", text);
        let error = layers.load(&CliFlags::default()).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let layers = ConfigLayers::new();
    layers.write("config/config.toml", "[mcp_servers.a]\ncommand = \"x\"\nenv = [\"NOT_SET\"]\n");
    layers.write("managed/config.toml", "[mcp_servers.a]\ncommand = \"owners\"\n");
    let settings = layers.load(&CliFlags::default()).unwrap();
    let shown = format!("{:?}", settings.mcp_servers);
    assert!(shown.contains("owners") && shown.contains("jail: true") && settings.warnings.is_empty(), "{shown}");
}

#[test]
fn a_session_pauses_after_some_denials_and_not_after_none() {
    let layers = ConfigLayers::new();
    let path = layers.write("config/config.toml", "[approval]\npause_after_denials = 0\n");
    let error = layers.load(&CliFlags::default()).unwrap_err().to_string();
    assert!(error.contains("nonzero"), "{error}");
    std::fs::write(path, "[approval]\npause_after_denials = 9\n").unwrap();
    assert_eq!(layers.load(&CliFlags::default()).unwrap().limits.denials_in_a_row, 9);
    layers.write("managed/config.toml", "[approval]\npause_after_denials = 2\n");
    assert_eq!(layers.load(&CliFlags::default()).unwrap().limits.denials_in_a_row, 2);
}

#[test]
fn the_examples_say_the_defaults() {
    let examples = ["../../config/ringfence.example.toml", "../../config/config.example.json"];
    for example in examples.map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(name)) {
        let layers = ConfigLayers::new();
        let plain = layers.load(&CliFlags::default()).unwrap();
        let said = layers.load(&CliFlags { config: Some(example), ..CliFlags::default() }).unwrap();
        assert_eq!((said.dialect, said.preset, said.limits), (plain.dialect, plain.preset, plain.limits));
        assert_eq!((said.durability, said.names, said.log), (plain.durability, plain.names, plain.log));
        assert_eq!((said.audit_heads, said.unattended), (plain.audit_heads, plain.unattended));
        assert_eq!(
            (said.tools.allow, said.tools.deny, said.mounts),
            (plain.tools.allow, plain.tools.deny, plain.mounts)
        );
        assert_eq!((said.max_tool_iterations, said.warnings), (plain.max_tool_iterations, plain.warnings));
        assert_eq!(said.model, plain.model);
        assert_eq!((said.workspace, said.workspace_source), (plain.workspace, plain.workspace_source));
        assert!(said.user_rules.is_empty());
        assert_eq!((said.web.private, said.web.engine), (plain.web.private, plain.web.engine));
    }
}

#[test]
fn an_example_with_another_dialect_has_that_dialect_s_defaults() {
    for name in ["ringfence.example.toml", "config.example.json"] {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(name);
        let example = std::fs::read_to_string(example).unwrap();
        for dialect in Dialect::ALL {
            let layers = ConfigLayers::new();
            let plain = layers.load(&CliFlags { dialect: Some(dialect), ..CliFlags::default() }).unwrap();
            let text = ["dialect = ", "\"dialect\": "].iter().fold(example.clone(), |text, key| {
                text.replace(&format!("{key}\"standard\""), &format!("{key}\"{}\"", dialect.name()))
            });
            let file = layers.write(name, &text);
            let said = layers.load(&CliFlags { config: Some(file), ..CliFlags::default() }).unwrap();
            assert_eq!(said.dialect, dialect, "{name}");
            assert_eq!(
                (said.limits, said.preset, said.log),
                (plain.limits, plain.preset, plain.log),
                "{name} {dialect:?}"
            );
        }
    }
}

#[test]
fn a_config_that_was_made_for_miniclaw_is_taken_as_it_is() {
    let layers = ConfigLayers::new();
    let text = r#"{"agents": {"defaults": {"type": "fantasy-agent", "workspace": "~/w", "max_tool_iterations": 5}}}"#;
    layers.write("config/config.json", text);
    let settings = layers.load(&CliFlags::default()).unwrap();
    assert_eq!((settings.workspace.as_deref(), settings.max_tool_iterations), (Some("~/w"), 5));
    assert!(
        settings.warnings[0].contains("`agents.defaults.type` is `fantasy-agent` and has no effect"),
        "{settings:?}"
    );
}

#[test]
fn invalid_web_settings_are_reported() {
    for (text, problem) in [
        ("[web]\nallow_private = [\"wiki\"]\n", "`web.allow_private`: invalid entry `wiki`"),
        ("[web.search]\nengine = \"bing\"\n", "unknown `engine` `bing`"),
        ("[web.search]\nengine = \"searxng\"\n", "needs `url`"),
        ("[web.search]\nengine = \"brave\"\n", "key_env"),
        ("[web.search]\nurl = \"http://a.org\"\n", "`engine` is missing"),
    ] {
        let layers = ConfigLayers::new();
        layers.write("config/config.toml", text);
        let error = layers.load(&CliFlags::default()).unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
    let layers = ConfigLayers::new();
    layers.write("config/config.toml", "[web.search]\nengine = \"brave\"\nkey_env = \"NOT_SET\"\n");
    let settings = layers.load(&CliFlags::default()).unwrap();
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
    let layers = ConfigLayers::new();
    layers.write("config/config.toml", &format!("[[rules]]{rules}"));
    let names = layers.load(&CliFlags::default()).unwrap().user_rules;
    let names: Vec<&str> = names.iter().map(ringfence_kernel::PolicyRule::name).collect();
    assert_eq!(names, ["generated", "notes", "documentation"]);
}

#[test]
fn a_length_of_time_is_a_number_of_seconds_or_a_text() {
    let layers = ConfigLayers::new();
    let time = |written: &str| {
        layers.write("config/config.toml", &format!("limits.max_tool_operation_duration = {written}"));
        layers.load(&CliFlags::default()).map(|settings| settings.limits.call_time)
    };
    assert_eq!(time("5").unwrap(), Duration::from_secs(5));
    assert_eq!(time("\"250ms\"").unwrap(), Duration::from_millis(250));
    assert_eq!(time("\"2m\"").unwrap(), Duration::from_secs(120));
    for wrong in ["0", "-1", "\"0s\"", "\"soon\"", "true", "1.5"] {
        assert!(time(wrong).is_err(), "{wrong}");
    }
}
