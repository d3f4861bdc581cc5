//! Known MCP clients: their settings files, and whether they contain our entry.
//!
//! A client's own tools bypass the fence, so for a client with our entry it is reported whether they are off.
//!
//! Not here: changing settings (`mod.rs`), and settings about tools (`builtin_tools.rs`).

use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ringfence_front_matter::yaml_mapping;
use serde::Serialize;
use serde_json::{Value, json};

use crate::config::{Environment, EnvironmentVariables};
use crate::mcp::install::builtin_tools::{BuiltinToolState, advice, tool_states};
use crate::mcp::install::jsonc;
use crate::mcp::install::settings_file::{ClientSettingsFileError, read_text};

/// Name of our entry.
pub(crate) const ENTRY_NAME: &str = "ringfence";

/// A client that is known well enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum McpClientApp {
    ClaudeCode,
    Codex,
    Crush,
    Gemini,
    Goose,
    Opencode,
    Vscode,
    Zed,
}

/// Directories of clients' settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSettingsDirs<'a> {
    pub(crate) workspace: Option<&'a Path>,
    pub(crate) home: Option<&'a Path>,
    /// Config directory of this user.
    pub(crate) config: Option<&'a Path>,
    /// Config directory of the machine's owner.
    pub(crate) system: Option<&'a Path>,
    /// Variables by which clients get further settings.
    pub(crate) variables: Option<&'a EnvironmentVariables>,
}

impl<'a> ClientSettingsDirs<'a> {
    pub(crate) fn from_environment(environment: &'a Environment, workspace: Option<&'a Path>) -> Self {
        // Ours is one among those of others.
        let config = environment.config.as_deref().and_then(Path::parent);
        let system = environment.managed.parent();
        let variables = Some(&environment.variables);
        Self { workspace, home: environment.home.as_deref(), config, system, variables }
    }
}

/// Format of a settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientSettingsFormat {
    Json,
    Toml,
    Yaml,
}

/// State of a client's own tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientBypassState {
    Open,
    Closed,
    /// The settings do not say.
    Unknown,
}

/// A client that has our entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DetectedClient {
    pub(crate) client: McpClientApp,
    pub(crate) own_tools: ClientBypassState,
    /// Those that are still on.
    pub(crate) on: Vec<&'static str>,
    /// Settings that are there and cannot be read or evaluated: files and environment variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unread: Vec<String>,
    /// Advice about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<&'static str>,
}

/// The clients whose settings name us, for this workspace or for all.
pub(crate) fn detect_clients(dirs: ClientSettingsDirs<'_>) -> Vec<DetectedClient> {
    McpClientApp::value_variants().iter().filter_map(|client| client.detect(dirs)).collect()
}

/// Scope of the file that gets an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum McpInstallScope {
    /// A file of the project, which others get with it.
    Project,
    /// A file of this user, for every project.
    User,
}

impl McpClientApp {
    pub(crate) fn format(self) -> ClientSettingsFormat {
        match self {
            Self::Codex => ClientSettingsFormat::Toml,
            Self::Goose => ClientSettingsFormat::Yaml,
            Self::ClaudeCode | Self::Crush | Self::Gemini | Self::Opencode | Self::Vscode | Self::Zed => {
                ClientSettingsFormat::Json
            }
        }
    }

    /// The key under which this client has its servers.
    pub(crate) fn servers_key(self) -> &'static str {
        match self {
            Self::ClaudeCode | Self::Gemini => "mcpServers",
            Self::Codex => "mcp_servers",
            Self::Crush | Self::Opencode => "mcp",
            Self::Goose => "extensions",
            Self::Vscode => "servers",
            Self::Zed => "context_servers",
        }
    }

    pub(crate) fn scope(self) -> McpInstallScope {
        match self {
            Self::Codex | Self::Goose | Self::Zed => McpInstallScope::User,
            Self::ClaudeCode | Self::Crush | Self::Gemini | Self::Opencode | Self::Vscode => McpInstallScope::Project,
        }
    }

    /// The files that may have our entry. It is put into the first.
    pub(crate) fn entry_files(self, dirs: ClientSettingsDirs<'_>) -> Vec<PathBuf> {
        let workspace = |name: &str| dirs.workspace.map(|directory| directory.join(name));
        let home = |name: &str| dirs.home.map(|directory| directory.join(name));
        let config = |name: &str| dirs.config.map(|directory| directory.join(name));
        let files = match self {
            Self::ClaudeCode => vec![workspace(".mcp.json"), home(".claude.json")],
            Self::Codex => vec![home(".codex/config.toml"), workspace(".codex/config.toml")],
            Self::Crush => vec![workspace("crush.json"), workspace(".crush.json"), config("crush/crush.json")],
            Self::Gemini => vec![workspace(".gemini/settings.json"), home(".gemini/settings.json")],
            Self::Goose => vec![config("goose/config.yaml")],
            Self::Opencode => vec![
                workspace("opencode.json"),
                workspace("opencode.jsonc"),
                workspace(".opencode/opencode.json"),
                workspace(".opencode/opencode.jsonc"),
                config("opencode/opencode.json"),
                config("opencode/opencode.jsonc"),
            ],
            Self::Vscode => vec![workspace(".vscode/mcp.json"), config("Code/User/mcp.json")],
            Self::Zed => vec![config("zed/settings.json"), workspace(".zed/settings.json")],
        };
        files.into_iter().flatten().collect()
    }

    /// Every file that this client merges into the settings of its own tools.
    fn settings_layers(self, dirs: ClientSettingsDirs<'_>) -> Vec<PathBuf> {
        let workspace = |name: &str| dirs.workspace.map(|directory| directory.join(name));
        let home = |name: &str| dirs.home.map(|directory| directory.join(name));
        let system = |name: &str| dirs.system.map(|directory| directory.join(name));
        let more = match self {
            Self::ClaudeCode => {
                let managed =
                    system("claude-code/managed-settings.d").map(|directory| files_with_ending(&directory, "json"));
                let own = [
                    workspace(".claude/settings.json"),
                    workspace(".claude/settings.local.json"),
                    home(".claude/settings.json"),
                    system("claude-code/managed-settings.json"),
                ];
                return own.into_iter().flatten().chain(managed.into_iter().flatten()).collect();
            }
            Self::Codex => return codex_layers(dirs),
            Self::Crush => vec![home(".local/share/crush/crush.json")],
            Self::Gemini => vec![system("gemini-cli/settings.json"), system("gemini-cli/system-defaults.json")],
            Self::Goose => vec![system("goose/config.yaml")],
            Self::Opencode => return opencode_layers(dirs),
            Self::Vscode | Self::Zed => Vec::new(),
        };
        self.entry_files(dirs).into_iter().chain(more.into_iter().flatten()).collect()
    }

    /// Files that this client executes for its settings. What they set is not known without running them.
    fn executed_files(self, dirs: ClientSettingsDirs<'_>) -> Vec<PathBuf> {
        let Self::Crush = self else { return Vec::new() };
        let above = dirs.workspace.into_iter().flat_map(Path::ancestors);
        let in_projects = above.flat_map(|directory| ["crushrc", ".crushrc"].map(|name| directory.join(name)));
        in_projects.chain(dirs.config.map(|config| config.join("crush/crushrc"))).collect()
    }

    /// Variables that add settings to this client, or make it read other files.
    fn settings_variables(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &["CLAUDE_CONFIG_DIR"],
            Self::Codex => &["CODEX_HOME"],
            Self::Crush => &["CRUSH_GLOBAL_CONFIG", "CRUSH_GLOBAL_DATA"],
            Self::Gemini => &["GEMINI_CLI_HOME", "GEMINI_CLI_SYSTEM_DEFAULTS_PATH", "GEMINI_CLI_SYSTEM_SETTINGS_PATH"],
            Self::Goose => &["GOOSE_ADDITIONAL_CONFIG_FILES", "GOOSE_PATH_ROOT"],
            Self::Opencode => &[
                "OPENCODE_CONFIG",
                "OPENCODE_CONFIG_CONTENT",
                "OPENCODE_CONFIG_DIR",
                "OPENCODE_DISABLE_PROJECT_CONFIG",
                "OPENCODE_PERMISSION",
            ],
            Self::Vscode | Self::Zed => &[],
        }
    }

    /// Settings of this client that are there and are not evaluated.
    fn unevaluated_settings(self, dirs: ClientSettingsDirs<'_>) -> Vec<String> {
        let exists = |file: &PathBuf| std::fs::symlink_metadata(file).is_ok();
        let files = self.executed_files(dirs).into_iter().filter(exists).map(|file| short_name(&file));
        let is_set = |name: &&&str| dirs.variables.is_some_and(|variables| variables.0.contains_key(**name));
        files.chain(self.settings_variables().iter().filter(is_set).map(|name| format!("${name}"))).collect()
    }

    fn detect(self, dirs: ClientSettingsDirs<'_>) -> Option<DetectedClient> {
        let entries = self.entry_files(dirs).into_iter().filter_map(|file| self.read(&file)?.ok());
        if !entries.into_iter().any(|settings| self.has_our_entry(&settings, dirs)) {
            return None;
        }
        let (mut layers, mut unread) = (Vec::new(), self.unevaluated_settings(dirs));
        for file in self.settings_layers(dirs) {
            match self.read(&file) {
                Some(Ok(settings)) => layers.push(settings),
                Some(Err(name)) => unread.push(name),
                None => {}
            }
        }
        let states = tool_states(self, &layers);
        let with = |wanted: BuiltinToolState| {
            let states = states.iter().flatten().filter(move |(_, state)| *state == wanted);
            states.map(|(tool, _)| *tool).collect::<Vec<_>>()
        };
        let own_tools = match (with(BuiltinToolState::On).is_empty(), with(BuiltinToolState::Unknown).is_empty()) {
            (false, _) => ClientBypassState::Open,
            (true, true) if states.is_some() && unread.is_empty() => ClientBypassState::Closed,
            (true, _) => ClientBypassState::Unknown,
        };
        let advice = (own_tools != ClientBypassState::Closed).then(|| advice(self));
        Some(DetectedClient { client: self, own_tools, on: with(BuiltinToolState::On), unread, advice })
    }

    /// The contents of a file; its name, where it cannot be read; `None`, where it does not exist.
    fn read(self, file: &Path) -> Option<Result<Value, String>> {
        let text = match read_text(file) {
            Ok(text) => text,
            Err(ClientSettingsFileError::Io(error))
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                return None;
            }
            Err(_) => return Some(Err(short_name(file))),
        };
        let is_markdown = file.extension().is_some_and(|extension| extension == "md");
        let value = match self.format() {
            // An agent of its own, with its settings above its text.
            _ if is_markdown => front_matter(&text).map(|settings| json!({"agent": {"own": settings}})),
            ClientSettingsFormat::Json if text.trim().is_empty() => Some(json!({})),
            ClientSettingsFormat::Json => jsonc::parse_jsonc(&text),
            ClientSettingsFormat::Toml => {
                text.parse::<toml::Table>().ok().and_then(|table| serde_json::to_value(table).ok())
            }
            ClientSettingsFormat::Yaml if text.trim().is_empty() => Some(json!({})),
            ClientSettingsFormat::Yaml => yaml_mapping(&text).map(Value::Object),
        };
        Some(value.ok_or_else(|| short_name(file)))
    }

    fn has_our_entry(self, settings: &Value, dirs: ClientSettingsDirs<'_>) -> bool {
        let servers = &settings[self.servers_key()];
        let is_there = |servers: &Value| servers.get(ENTRY_NAME).is_some();
        match self {
            // Clients of the second generation have another level.
            Self::Opencode => is_there(servers) || is_there(&servers["servers"]),
            Self::ClaudeCode => {
                let workspace = dirs.workspace.and_then(Path::to_str).unwrap_or_default();
                is_there(servers) || is_there(&settings["projects"][workspace][self.servers_key()])
            }
            _ => is_there(servers),
        }
    }
}

/// The directories from the workspace up to that of its repository.
fn project_directories(dirs: ClientSettingsDirs<'_>) -> Vec<&Path> {
    let mut directories = Vec::new();
    for directory in dirs.workspace.into_iter().flat_map(Path::ancestors) {
        directories.push(directory);
        if directory.join(".git").exists() {
            break;
        }
    }
    directories
}

/// Codex reads `.codex` in the directories of the project and in the home; each has settings, and agents that the model can
/// start, with settings of their own.
fn codex_layers(dirs: ClientSettingsDirs<'_>) -> Vec<PathBuf> {
    let above = project_directories(dirs).into_iter().chain(dirs.home).map(|directory| directory.join(".codex"));
    let mut files = Vec::new();
    for directory in above.chain(dirs.system.map(|system| system.join("codex"))) {
        files.extend(["config.toml", "managed_config.toml"].map(|name| directory.join(name)));
        files.extend(files_with_ending(&directory.join("agents"), "toml"));
    }
    files
}

/// opencode reads the directories of the project, those of the user and of the machine; each has settings and agents.
fn opencode_layers(dirs: ClientSettingsDirs<'_>) -> Vec<PathBuf> {
    let above = project_directories(dirs).into_iter();
    let mut directories: Vec<PathBuf> =
        above.flat_map(|directory| [directory.to_owned(), directory.join(".opencode")]).collect();
    directories.extend(dirs.home.map(|home| home.join(".opencode")));
    directories.extend(dirs.config.map(|config| config.join("opencode")));
    directories.extend(dirs.system.map(|system| system.join("opencode")));
    let mut files = Vec::new();
    for directory in directories {
        files.extend(["opencode.json", "opencode.jsonc"].map(|name| directory.join(name)));
        // The others belong to other programs, which may have files of that kind too.
        if directory.file_name().is_some_and(|name| name == ".opencode" || name == "opencode") {
            files.push(directory.join("config.json"));
            let agents =
                ["agent", "agents", "mode", "modes"].map(|name| files_with_ending(&directory.join(name), "md"));
            files.extend(agents.into_iter().flatten());
        }
    }
    files
}

/// The files of a directory with such an ending, in the order of their names.
fn files_with_ending(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|file| file.extension().is_some_and(|end| end == ending)).collect();
    found.sort();
    found
}

/// The mapping between two lines of dashes at the beginning. A text without one has no settings.
fn front_matter(text: &str) -> Option<Value> {
    let Some(rest) = text.strip_prefix("---") else { return Some(json!({})) };
    let (settings, _) = rest.split_once("\n---")?;
    if settings.trim().is_empty() {
        return Some(json!({}));
    }
    yaml_mapping(settings.trim_start_matches(['\r', '\n'])).map(Value::Object)
}

/// A file by its name and that of its directory: no path of the machine.
fn short_name(file: &Path) -> String {
    let parts: Vec<_> = file.components().rev().take(2).map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::ValueEnum as _;

    use super::{ClientBypassState, ClientSettingsDirs, DetectedClient, McpClientApp, detect_clients};
    use crate::config::EnvironmentVariables;
    use crate::mcp::install::builtin_tools::advice;

    /// Files of a home that is also the workspace, and what is found there. The machine's own are below `etc`.
    fn found(files: &[(&str, &str)]) -> Vec<DetectedClient> {
        found_with(files, &[])
    }

    /// The same, with variables in the environment.
    fn found_with(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Vec<DetectedClient> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let variables = EnvironmentVariables(variables.collect());
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = directory.path().join("r/ws").join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let home = directory.path().join("r/ws");
        std::fs::create_dir_all(directory.path().join("r/.git")).unwrap();
        let (config, system) = (home.join(".config"), home.join("etc"));
        detect_clients(ClientSettingsDirs {
            workspace: Some(&home),
            home: Some(&home),
            config: Some(&config),
            system: Some(&system),
            variables: Some(&variables),
        })
    }

    #[track_caller]
    fn check(client: McpClientApp, files: &[(&str, &str)], gate: ClientBypassState, on: &[&str]) {
        let found = found(files);
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((only.client, only.own_tools, only.on.as_slice()), (client, gate, on), "{files:?}");
        assert_eq!(only.advice.is_some(), gate != ClientBypassState::Closed);
    }

    /// A client of which nothing is turned off: everything that it has is on.
    #[track_caller]
    fn all_tools_on(client: McpClientApp, files: &[(&str, &str)]) -> Vec<&'static str> {
        let found = found(files);
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((only.client, only.own_tools), (client, ClientBypassState::Open));
        only.on.clone()
    }

    /// A change of a client's settings changes what goes through the fence.
    #[test]
    fn every_settings_file_of_a_client_is_protected() {
        let dirs = ClientSettingsDirs {
            workspace: Some(Path::new("workspace")),
            home: Some(Path::new("home")),
            config: Some(Path::new("home/.config")),
            system: None,
            variables: None,
        };
        for client in McpClientApp::value_variants() {
            let layers = client.settings_layers(dirs).into_iter().chain(client.executed_files(dirs));
            for file in client.entry_files(dirs).into_iter().chain(layers) {
                // Files of the user lie outside of a workspace, unless their home is one. Directories above have the same.
                let name = file.strip_prefix("workspace").or_else(|_| file.strip_prefix("home")).unwrap_or(&file);
                let name = name.to_str().unwrap();
                assert!(ringfence_kernel::sensitivity(name).protected, "{client:?}: {name}");
                assert!(ringfence_kernel::acting_program(name).is_some(), "{client:?}: {name}");
            }
        }
    }

    #[test]
    fn a_client_that_does_not_name_us_is_not_spoken_of() {
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[(".mcp.json", r#"{"mcpServers": {"other": {}}}"#), ("crush.json", "nonsense")]), []);
        let nowhere = Some(Path::new("/nowhere"));
        let dirs =
            ClientSettingsDirs { workspace: None, home: None, config: nowhere, system: nowhere, variables: None };
        assert_eq!(detect_clients(dirs), []);
    }

    #[test]
    fn claude_code_is_closed_by_rules_that_deny_whole_tools() {
        let entry = (".mcp.json", r#"{"mcpServers": {"ringfence": {}}}"#);
        let (client, rules) = (McpClientApp::ClaudeCode, ".claude/settings.json");
        let all = all_tools_on(client, &[entry]);
        assert!(["Bash", "EnterWorktree", "WebFetch", "WebSearch"].iter().all(|tool| all.contains(tool)), "{all:?}");
        assert_eq!(all_tools_on(client, &[(".claude.json", r#"{"mcpServers": {"ringfence": {}}}"#)]), all);
        let denying = |tools: &[&str]| serde_json::json!({"permissions": {"deny": tools}}).to_string();
        let others: Vec<&str> = all.iter().copied().filter(|tool| *tool != "Bash").chain(["Bash(rm *)"]).collect();
        let some = denying(&others);
        check(client, &[entry, (rules, &some)], ClientBypassState::Open, &["Bash"]);
        let bash = denying(&["Bash"]);
        for layer in [
            ".claude/settings.local.json",
            "etc/claude-code/managed-settings.json",
            "etc/claude-code/managed-settings.d/10-tools.json",
        ] {
            check(client, &[entry, (rules, &some), (layer, &bash)], ClientBypassState::Closed, &[]);
            check(
                client,
                &[entry, (rules, &some), (layer, &bash.replace("Bash", "Bash(*)"))],
                ClientBypassState::Closed,
                &[],
            );
            check(client, &[entry, (rules, &denying(&all)), (layer, "{nonsense")], ClientBypassState::Unknown, &[]);
        }
    }

    #[test]
    fn codex_is_closed_without_its_shell_and_with_a_workspace_that_it_asks_about() {
        let (client, name) = (McpClientApp::Codex, ".codex/config.toml");
        let file = |more: &str| format!("{more}\n[mcp_servers.ringfence]\ncommand = \"x\"\n");
        check(
            client,
            &[(name, &file(""))],
            ClientBypassState::Open,
            &["apply_patch", "shell", "view_image", "web_search"],
        );
        let keys = "sandbox_mode = \"read-only\"\nweb_search = \"disabled\"\n";
        check(client, &[(name, &file(keys))], ClientBypassState::Open, &["shell", "view_image"]);
        let off = format!("{keys}[features]\nshell_tool = false\nview_image = false");
        check(client, &[(name, &file(&off))], ClientBypassState::Closed, &[]);
        let managed = "etc/codex/managed_config.toml";
        check(
            client,
            &[(name, &file(&off)), (managed, "[features]\nshell_tool = true")],
            ClientBypassState::Open,
            &["shell"],
        );
        check(
            client,
            &[(name, &file(&off)), (managed, "sandbox_mode = \"workspace-write\"")],
            ClientBypassState::Open,
            &["apply_patch"],
        );
        check(client, &[(name, &file(&off)), (managed, "nonsense")], ClientBypassState::Unknown, &[]);
        let profile = format!("profile = \"p\"\n{off}\n[profiles.p]\nsandbox_mode = \"danger-full-access\"");
        check(client, &[(name, &file(&profile))], ClientBypassState::Open, &["apply_patch"]);
        check(
            client,
            &[(name, &file(&format!("default_permissions = \"p\"\n{off}")))],
            ClientBypassState::Unknown,
            &[],
        );
        // Settings of the directories above, and of agents that the model can start.
        for (other, text, on) in [
            ("../.codex/config.toml", "[features]\nshell_tool = true", "shell"),
            (".codex/agents/own.toml", "sandbox_mode = \"danger-full-access\"", "apply_patch"),
            ("../.codex/agents/own.toml", "web_search = \"live\"", "web_search"),
            ("../.codex/config.toml", "[features]\njs_repl = true", "shell"),
        ] {
            check(client, &[(name, &file(&off)), (other, text)], ClientBypassState::Open, &[on]);
        }
        let named = format!("{off}\n[agents.own]\nconfig_file = \"/own.toml\"");
        check(client, &[(name, &file(&named))], ClientBypassState::Unknown, &[]);
    }

    #[test]
    fn crush_is_closed_by_its_list() {
        let entry = r#"{"mcp": {"ringfence": {}}, "options": {"disabled_tools": ["bash", "edit", "multiedit", "write",
            "fetch", "agentic_fetch", "lsp_call_hierarchy", "lsp_definition", "lsp_diagnostics", "lsp_references",
            "lsp_restart", "lsp_symbols", "sourcegraph"]}}"#;
        let rest = ["download", "glob", "grep", "ls", "lsp_rename", "lsp_replace_symbol", "view"];
        check(McpClientApp::Crush, &[("crush.json", entry)], ClientBypassState::Open, &rest);
        let more = serde_json::json!({"options": {"disabled_tools": rest}}).to_string();
        let more = more.as_str();
        for layer in [".config/crush/crush.json", ".local/share/crush/crush.json"] {
            check(McpClientApp::Crush, &[("crush.json", entry), (layer, more)], ClientBypassState::Closed, &[]);
        }
    }

    /// Crush runs such a file at its start, and it may turn a tool on.
    #[test]
    fn crush_is_unknown_with_settings_that_it_executes() {
        let advised = advice(McpClientApp::Crush).strip_prefix("in crush.json: ").unwrap();
        let entry = format!(r#"{{"mcp": {{"ringfence": {{}}}}, {advised}}}"#);
        check(McpClientApp::Crush, &[("crush.json", &entry)], ClientBypassState::Closed, &[]);
        for layer in ["crushrc", ".crushrc", "../.crushrc", ".config/crush/crushrc"] {
            check(McpClientApp::Crush, &[("crush.json", &entry), (layer, "")], ClientBypassState::Unknown, &[]);
        }
    }

    #[test]
    fn a_client_with_settings_in_the_environment_is_unknown() {
        let codex = "sandbox_mode = \"read-only\"\nweb_search = \"disabled\"\n[features]\nshell_tool = false\n\
            view_image = false\n[mcp_servers.ringfence]\ncommand = \"x\"\n";
        let opencode = r#"{"mcp": {"ringfence": {}}, "permission": {"*": "deny", "ringfence_*": "allow"}}"#;
        for (file, variables) in [
            ((".codex/config.toml", codex), &["CODEX_HOME"][..]),
            (
                ("opencode.json", opencode),
                &["OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG_DIR", "OPENCODE_PERMISSION"],
            ),
        ] {
            assert_eq!(found(&[file])[0].own_tools, ClientBypassState::Closed, "{file:?}");
            for name in variables {
                let found = found_with(&[file], &[(name, "x")]);
                assert_eq!(found[0].own_tools, ClientBypassState::Unknown, "{name}");
                assert_eq!(found[0].unread, [format!("${name}")]);
            }
        }
    }

    #[test]
    fn gemini_cannot_be_closed_by_excluding_names_that_ours_have_too() {
        let entry = |more: &str| format!(r#"{{"mcpServers": {{"ringfence": {{}}}}, {more} "x": 1}}"#);
        let name = ".gemini/settings.json";
        let all = all_tools_on(McpClientApp::Gemini, &[(name, &entry(""))]);
        let off = r#""tools": {"exclude": ["glob", "google_web_search", "grep_search", "invoke_agent",
            "read_many_files", "replace", "run_shell_command"]},"#;
        let left = ["list_directory", "read_file", "web_fetch", "write_file"];
        check(McpClientApp::Gemini, &[(name, &entry(off))], ClientBypassState::Open, &left);
        assert!(left.iter().all(|tool| all.contains(tool)), "{all:?}");
    }

    #[test]
    fn goose_is_open_where_the_model_can_turn_extensions_on() {
        let file = |more: &str| format!("GOOSE_MODE: auto\nextensions:\n  ringfence:\n    enabled: true\n{more}");
        let (client, name) = (McpClientApp::Goose, ".config/goose/config.yaml");
        let on = ["analyze", "developer", "extensionmanager", "summon"];
        check(client, &[(name, &file(""))], ClientBypassState::Open, &on);
        let developer = "  developer:\n    enabled: false\n    type: builtin\n";
        check(client, &[(name, &file(developer))], ClientBypassState::Open, &["analyze", "extensionmanager", "summon"]);
        let off = on.map(|name| format!("  {name}: {{enabled: false, type: platform}}\n")).concat();
        check(client, &[(name, &file(&off))], ClientBypassState::Closed, &[]);
        let other = format!("{off}  computercontroller: {{enabled: true}}\n");
        check(client, &[(name, &file(&other))], ClientBypassState::Open, &["computercontroller"]);
        let unknown = format!("{off}  brandnew: {{enabled: true, type: platform}}\n");
        check(client, &[(name, &file(&unknown))], ClientBypassState::Unknown, &[]);
        let system = ("etc/goose/config.yaml", "extensions:\n  developer: {enabled: true}\n");
        check(client, &[(name, &file(&off)), system], ClientBypassState::Open, &["developer"]);
    }

    #[test]
    fn opencode_is_closed_by_rules_old_and_new() {
        let file = |more: &str| format!("{{// mine\n\"mcp\": {{\"ringfence\": {{}}}}, {more}}}");
        let (client, name) = (McpClientApp::Opencode, "opencode.json");
        let all = all_tools_on(client, &[(name, &file(""))]);
        let denied = r#""permission": {"*": "deny", "bash": {"*": "deny", "git *": "allow"}, "ringfence_*": "allow"}"#;
        check(client, &[(name, &file(denied))], ClientBypassState::Open, &["bash"]);
        let each = serde_json::Value::from_iter(all.iter().map(|tool| (*tool, "deny")));
        check(client, &[(name, &file(&format!("\"permission\": {each}")))], ClientBypassState::Closed, &[]);
        let old = serde_json::Value::from_iter(all.iter().map(|tool| (*tool, false)));
        check(client, &[(name, &file(&format!("\"tools\": {old}")))], ClientBypassState::Open, &["edit"]);
        let new = r#"{"mcp": {"servers": {"ringfence": {}}}, "permissions": []}"#;
        check(client, &[(name, new)], ClientBypassState::Unknown, &[]);
    }

    /// The denial in one file holds only where no other one takes it away.
    #[test]
    fn opencode_is_open_where_any_layer_or_agent_allows_a_tool() {
        let client = McpClientApp::Opencode;
        let entry = r#"{"mcp": {"ringfence": {}}, "permission": {"*": "deny", "ringfence_*": "allow"}}"#;
        check(client, &[("opencode.json", entry)], ClientBypassState::Closed, &[]);
        let bash = r#"{"permission": {"bash": "allow"}}"#;
        for layer in [
            "opencode.jsonc",
            ".opencode/opencode.json",
            ".opencode/opencode.jsonc",
            "../opencode.json",
            ".config/opencode/opencode.jsonc",
            ".config/opencode/config.json",
            "etc/opencode/opencode.json",
        ] {
            check(client, &[("opencode.json", entry), (layer, bash)], ClientBypassState::Open, &["bash"]);
            check(client, &[("opencode.json", entry), (layer, "{nonsense")], ClientBypassState::Unknown, &[]);
        }
        let cases = [
            (r#"{"permission": {"ba*": "allow"}}"#, ClientBypassState::Open),
            (r#"{"tools": {"bash": true}}"#, ClientBypassState::Open),
            (r#"{"agent": {"reviewer": {"permission": {"bash": "ask"}}}}"#, ClientBypassState::Open),
            (r#"{"mode": {"build": {"tools": {"bash": true}}}}"#, ClientBypassState::Open),
            (r#"{"agent": {"reviewer": {"permission": {"edit": "deny"}}}}"#, ClientBypassState::Closed),
        ];
        for (text, gate) in cases {
            let on: &[&str] = if gate == ClientBypassState::Open { &["bash"] } else { &[] };
            check(client, &[("opencode.json", entry), ("opencode.jsonc", text)], gate, on);
        }
        for agent in [".opencode/agent/a.md", ".opencode/agents/a.md", ".config/opencode/agent/a.md"] {
            let text = "---\ndescription: x\ntools:\n  bash: true\n---\nYou review.\n";
            check(client, &[("opencode.json", entry), (agent, text)], ClientBypassState::Open, &["bash"]);
            check(client, &[("opencode.json", entry), (agent, "Only words.\n")], ClientBypassState::Closed, &[]);
            check(client, &[("opencode.json", entry), (agent, "---\na: [\n---\n")], ClientBypassState::Unknown, &[]);
        }
        // Which of the two wins depends on the order in which they are merged.
        let exact = entry.replace("\"*\": \"deny\"", "\"*\": \"deny\", \"bash\": \"deny\"");
        let later = r#"{"permission": {"*": "allow"}}"#;
        let found = found(&[("opencode.json", &exact), ("opencode.jsonc", later)]);
        assert!(found[0].own_tools == ClientBypassState::Open && !found[0].on.contains(&"bash"), "{found:?}");
    }

    #[test]
    fn the_settings_of_vs_code_do_not_tell() {
        check(
            McpClientApp::Vscode,
            &[(".vscode/mcp.json", r#"{"servers": {"ringfence": {}}}"#)],
            ClientBypassState::Unknown,
            &[],
        );
    }

    #[test]
    fn zed_counts_by_the_profile_that_it_begins_with() {
        let file = |agent: &str| format!("// Zed settings\n{{\"context_servers\": {{\"ringfence\": {{}}}}, {agent}}}");
        let (client, name) = (McpClientApp::Zed, ".config/zed/settings.json");
        let all = all_tools_on(client, &[(name, &file(""))]);
        let own = r#""agent": {"default_profile": "ringfence", "profiles": {"ringfence": {"tools": {}}}}"#;
        check(client, &[(name, &file(own))], ClientBypassState::Closed, &[]);
        let some = r#""agent": {"default_profile": "p", "profiles": {"p": {"tools": {"grep": true, "now": true}}}}"#;
        check(client, &[(name, &file(some))], ClientBypassState::Open, &["grep"]);
        let unheard =
            r#""agent": {"default_profile": "p", "profiles": {"p": {"tools": {"new_tool": true, "now": true}}}}"#;
        check(client, &[(name, &file(unheard))], ClientBypassState::Open, &["other tools"]);
        let own_off: serde_json::Value = all.iter().map(|tool| (*tool, false)).collect();
        let changed = format!(r#""agent": {{"profiles": {{"write": {{"tools": {own_off}}}}}}}"#);
        check(client, &[(name, &file(&changed))], ClientBypassState::Unknown, &[]);
        check(client, &[(name, &file(r#""agent": {"default_profile": "minimal"}"#))], ClientBypassState::Closed, &[]);
        check(client, &[(name, &file(r#""agent": {"default_profile": "gone"}"#))], ClientBypassState::Open, &all);
        let other = (".zed/settings.json", r#"{"agent": {"default_profile": "write"}}"#);
        check(client, &[(name, &file(own)), other], ClientBypassState::Open, &all);
    }

    #[test]
    fn unreadable_settings_are_reported() {
        let entry = r#"{"mcp": {"ringfence": {}}, "permission": {"*": "deny"}}"#;
        let found = found(&[("opencode.json", entry), (".config/opencode/opencode.json", "{")]);
        assert_eq!(
            (found[0].own_tools, found[0].unread.as_slice()),
            (ClientBypassState::Unknown, &["opencode/opencode.json".to_owned()][..])
        );
    }
}
