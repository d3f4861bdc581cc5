//! The clients that people have: where their settings are, and whether their own file and shell tools are still on.
//!
//! A fence beside an open gate fences nothing. Where the settings cannot tell, that is said, and never that all is well.
//!
//! Not here: changing settings (`install.rs`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ringfence_fs::yaml_mapping;
use serde::Serialize;
use serde_json::Value;

use super::jsonc;
use super::settings_file::look;
use crate::config::Environment;

/// What our entry is called.
pub(super) const NAME: &str = "ringfence";

/// A client that is known well enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Client {
    ClaudeCode,
    Codex,
    Crush,
    Goose,
    Opencode,
    Vscode,
    Zed,
}

/// Where clients look for their settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    pub(crate) workspace: Option<&'a Path>,
    pub(crate) home: Option<&'a Path>,
    /// Where programs of this user keep their config.
    pub(crate) config: Option<&'a Path>,
}

impl<'a> Places<'a> {
    pub(crate) fn of(environment: &'a Environment, workspace: Option<&'a Path>) -> Self {
        // Ours is one among those of others.
        let config = environment.config.as_deref().and_then(Path::parent);
        Self { workspace, home: environment.home.as_deref(), config }
    }
}

/// How a file of settings is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Toml,
    Yaml,
}

/// What is known of a client's own tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Gate {
    Open,
    Closed,
    /// The settings do not say.
    Unknown,
}

/// A client that has our entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Found {
    pub(crate) client: Client,
    pub(crate) own_tools: Gate,
    /// Those that are still on.
    pub(crate) on: Vec<&'static str>,
    /// What to do about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<&'static str>,
}

/// The clients whose settings name us, for this workspace or for all.
pub(crate) fn find(places: Places<'_>) -> Vec<Found> {
    Client::value_variants().iter().filter_map(|client| client.found(places)).collect()
}

impl Client {
    pub(super) fn format(self) -> Format {
        match self {
            Self::Codex => Format::Toml,
            Self::Goose => Format::Yaml,
            Self::ClaudeCode | Self::Crush | Self::Opencode | Self::Vscode | Self::Zed => Format::Json,
        }
    }

    /// The key under which this client has its servers.
    pub(super) fn servers(self) -> &'static str {
        match self {
            Self::ClaudeCode => "mcpServers",
            Self::Codex => "mcp_servers",
            Self::Crush | Self::Opencode => "mcp",
            Self::Goose => "extensions",
            Self::Vscode => "servers",
            Self::Zed => "context_servers",
        }
    }

    /// The files that may have our entry. It is put into the first.
    pub(super) fn files(self, places: Places<'_>) -> Vec<PathBuf> {
        let workspace = |name: &str| places.workspace.map(|directory| directory.join(name));
        let home = |name: &str| places.home.map(|directory| directory.join(name));
        let config = |name: &str| places.config.map(|directory| directory.join(name));
        let files = match self {
            Self::ClaudeCode => vec![workspace(".mcp.json"), home(".claude.json")],
            Self::Codex => vec![home(".codex/config.toml")],
            Self::Crush => vec![workspace("crush.json"), workspace(".crush.json"), config("crush/crush.json")],
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

    fn found(self, places: Places<'_>) -> Option<Found> {
        let settings: Vec<Value> = self.files(places).iter().filter_map(|file| self.read(file)).collect();
        if !settings.iter().any(|settings| self.names_us(settings, places)) {
            return None;
        }
        let on = self.still_on(&settings, places);
        let own_tools = match &on {
            None => Gate::Unknown,
            Some(on) if on.is_empty() => Gate::Closed,
            Some(_) => Gate::Open,
        };
        let advice = (own_tools != Gate::Closed).then(|| self.advice());
        Some(Found { client: self, own_tools, on: on.unwrap_or_default(), advice })
    }

    /// What a file says, as far as it can be read.
    fn read(self, file: &Path) -> Option<Value> {
        let text = look(file).ok()?;
        match self.format() {
            Format::Json => jsonc::value(&text),
            Format::Toml => serde_json::to_value(text.parse::<toml::Table>().ok()?).ok(),
            Format::Yaml => yaml_mapping(&text).map(Value::Object),
        }
    }

    fn names_us(self, settings: &Value, places: Places<'_>) -> bool {
        let servers = &settings[self.servers()];
        let is_there = |servers: &Value| servers.get(NAME).is_some();
        match self {
            // Clients of the second generation have another level.
            Self::Opencode => is_there(servers) || is_there(&servers["servers"]),
            Self::ClaudeCode => {
                let workspace = places.workspace.and_then(Path::to_str).unwrap_or_default();
                is_there(servers) || is_there(&settings["projects"][workspace][self.servers()])
            }
            _ => is_there(servers),
        }
    }

    /// The tools that go around us and are not turned off, or nothing where that cannot be known.
    fn still_on(self, settings: &[Value], places: Places<'_>) -> Option<Vec<&'static str>> {
        let without = |off: &BTreeSet<&str>| -> Vec<&'static str> {
            self.own_tools().iter().filter(|tool| !off.contains(**tool)).copied().collect()
        };
        match self {
            Self::Vscode => None,
            Self::ClaudeCode => {
                let names = [".claude/settings.json", ".claude/settings.local.json"];
                let here = names.iter().filter_map(|name| Some(places.workspace?.join(name)));
                let everywhere = places.home.map(|home| home.join(names[0]));
                let rules: Vec<Value> = here.chain(everywhere).filter_map(|file| self.read(&file)).collect();
                let denied = rules.iter().flat_map(|rules| texts(&rules["permissions"]["deny"]));
                Some(without(&denied.collect()))
            }
            Self::Codex => {
                let says = |key: &str| settings.iter().map(|settings| &settings[key]).find(|value| !value.is_null());
                let has_no_shell = says("features").is_some_and(|features| features["shell_tool"] == false);
                let asks_first = says("sandbox_mode").is_some_and(|mode| mode == "read-only");
                let off = [("shell", has_no_shell), ("apply_patch", asks_first)];
                Some(without(&off.iter().filter(|(_, is_off)| *is_off).map(|(tool, _)| *tool).collect()))
            }
            Self::Crush => {
                let off = settings.iter().flat_map(|settings| texts(&settings["options"]["disabled_tools"]));
                Some(without(&off.collect()))
            }
            Self::Goose => {
                let enabled = |name: &str| settings.iter().find_map(|all| all["extensions"][name]["enabled"].as_bool());
                // This one is on unless it is turned off; the other one has to be turned on.
                let on = [
                    ("developer", enabled("developer") != Some(false)),
                    ("computercontroller", enabled("computercontroller") == Some(true)),
                ];
                Some(on.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect())
            }
            Self::Opencode => {
                // Rules of the second generation are not read here.
                let can_be_known = settings.iter().all(|settings| settings.get("permissions").is_none());
                let is_on = |tool: &&&str| !settings.iter().find_map(|all| opencode_denies(all, tool)).unwrap_or(false);
                can_be_known.then(|| self.own_tools().iter().filter(is_on).copied().collect())
            }
            Self::Zed => Some(zed_tools(settings, self.own_tools())),
        }
    }

    /// The tools by which a client reaches files and programs itself.
    fn own_tools(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &["Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "Write"],
            Self::Codex => &["apply_patch", "shell"],
            Self::Crush => &["bash", "download", "edit", "glob", "grep", "ls", "multiedit", "view", "write"],
            Self::Goose => &["computercontroller", "developer"],
            Self::Opencode => &["bash", "edit", "glob", "grep", "list", "read"],
            Self::Vscode => &[],
            Self::Zed => &[
                "copy_path",
                "create_directory",
                "delete_path",
                "edit_file",
                "find_path",
                "grep",
                "list_directory",
                "move_path",
                "read_file",
                "terminal",
            ],
        }
    }

    /// How its own tools are turned off.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::ClaudeCode => {
                "in .claude/settings.json: {\"permissions\": {\"deny\": [\"Bash\", \"Edit\", \"Glob\", \"Grep\", \
                 \"NotebookEdit\", \"Read\", \"Write\"]}}"
            }
            Self::Codex => {
                "in ~/.codex/config.toml: `sandbox_mode = \"read-only\"`, which makes `apply_patch` ask, and \
                 `shell_tool = false` under `[features]`"
            }
            Self::Crush => {
                "in crush.json: \"options\": {\"disabled_tools\": [\"bash\", \"download\", \"edit\", \"glob\", \"grep\", \
                 \"ls\", \"multiedit\", \"view\", \"write\"]}"
            }
            Self::Goose => {
                "in goose/config.yaml: `enabled: false` for the extensions `developer` and `computercontroller`, or \
                 `goose configure`, Toggle Extensions"
            }
            Self::Opencode => {
                "in opencode.json: \"permission\": {\"bash\": \"deny\", \"edit\": \"deny\", \"glob\": \"deny\", \
                 \"grep\": \"deny\", \"list\": \"deny\", \"read\": \"deny\"}"
            }
            Self::Vscode => {
                "VS Code keeps this choice to itself: take the built-in tools away under Configure Tools in the chat, or \
                 work with an agent of your own in .github/agents/ringfence.agent.md that has `tools: ['ringfence/*']`"
            }
            Self::Zed => {
                "in zed/settings.json: \"agent\": {\"default_profile\": \"ringfence\", \"profiles\": {\"ringfence\": \
                 {\"name\": \"Ringfence\", \"tools\": {}, \"enable_all_context_servers\": true}}}"
            }
        }
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Whether a file turns a tool off for good, or says nothing about it.
fn opencode_denies(settings: &Value, tool: &str) -> Option<bool> {
    let rules = &settings["permission"];
    let said = rules.get(tool).or_else(|| rules.get("*"));
    if let Some(said) = said.or_else(|| rules.is_string().then_some(rules)) {
        let denies = |said: &Value| said == "deny";
        // Patterns are all to be denied, the one for everything among them.
        let by_pattern = |all: &serde_json::Map<String, Value>| all.contains_key("*") && all.values().all(denies);
        return Some(denies(said) || said.as_object().is_some_and(by_pattern));
    }
    // How it was said before there were rules.
    let is_off = |name: &str| settings["tools"].get(name).map(|on| on == false);
    match tool {
        "edit" => Some(is_off("edit")? && is_off("write")?),
        _ => is_off(tool),
    }
}

/// Zed has its tools by profile; the one that a new thread begins with counts.
fn zed_tools(settings: &[Value], own: &[&'static str]) -> Vec<&'static str> {
    let profile = settings.iter().find_map(|all| all["agent"]["default_profile"].as_str()).unwrap_or("write");
    let of_user = settings.iter().find_map(|all| all["agent"]["profiles"].get(profile));
    let is_on = |tool: &&&str| match (profile, of_user) {
        ("minimal", None) => false,
        // What such a profile does not say, Zed says for it.
        ("write" | "write-full-access" | "ask" | "minimal", Some(said)) => said["tools"][**tool] != false,
        (_, Some(said)) => said["tools"][**tool] == true,
        (_, None) => true,
    };
    own.iter().filter(is_on).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::ValueEnum as _;

    use super::{Client, Found, Gate, Places, find};

    /// Files of a home that is also the workspace, and what is found there.
    fn found(files: &[(&str, &str)]) -> Vec<Found> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = directory.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let config = directory.path().join(".config");
        find(Places { workspace: Some(directory.path()), home: Some(directory.path()), config: Some(&config) })
    }

    #[track_caller]
    fn check(client: Client, files: &[(&str, &str)], gate: Gate, on: &[&str]) {
        let found = found(files);
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((only.client, only.own_tools, only.on.as_slice()), (client, gate, on));
        assert_eq!(only.advice.is_some(), gate != Gate::Closed);
    }

    /// Whoever changes what a client acts on changes what goes through the fence.
    #[test]
    fn every_settings_file_of_a_client_is_protected() {
        let places = Places {
            workspace: Some(Path::new("workspace")),
            home: Some(Path::new("home")),
            config: Some(Path::new("home/.config")),
        };
        for client in Client::value_variants() {
            for file in client.files(places) {
                // Files of the user lie outside of a workspace, unless their home is one.
                let name = file.strip_prefix("workspace").or_else(|_| file.strip_prefix("home")).unwrap();
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
        assert_eq!(find(Places { workspace: None, home: None, config: Some(Path::new("/nowhere")) }), []);
    }

    #[test]
    fn claude_code_is_closed_by_rules_that_deny_whole_tools() {
        let entry = (".mcp.json", r#"{"mcpServers": {"ringfence": {}}}"#);
        let (client, rules) = (Client::ClaudeCode, ".claude/settings.json");
        check(client, &[entry], Gate::Open, client.own_tools());
        let some =
            r#"{"permissions": {"deny": ["Edit", "Glob", "Grep", "NotebookEdit", "Read", "Write", "Bash(rm *)"]}}"#;
        check(client, &[entry, (rules, some)], Gate::Open, &["Bash"]);
        let local = (".claude/settings.local.json", r#"{"permissions": {"deny": ["Bash"]}}"#);
        check(client, &[entry, (rules, some), local], Gate::Closed, &[]);
        check(client, &[(".claude.json", r#"{"mcpServers": {"ringfence": {}}}"#)], Gate::Open, client.own_tools());
    }

    #[test]
    fn codex_is_closed_without_its_shell_and_with_a_workspace_that_it_asks_about() {
        let file = |more: &str| format!("{more}\n[mcp_servers.ringfence]\ncommand = \"x\"\n");
        let name = ".codex/config.toml";
        check(Client::Codex, &[(name, &file(""))], Gate::Open, &["apply_patch", "shell"]);
        let asks = "sandbox_mode = \"read-only\"\n";
        check(Client::Codex, &[(name, &file(asks))], Gate::Open, &["shell"]);
        let both = format!("{asks}[features]\nshell_tool = false");
        check(Client::Codex, &[(name, &file(&both))], Gate::Closed, &[]);
    }

    #[test]
    fn crush_is_closed_by_its_list() {
        let entry =
            r#"{"mcp": {"ringfence": {}}, "options": {"disabled_tools": ["bash", "edit", "multiedit", "write"]}}"#;
        let rest = ["download", "glob", "grep", "ls", "view"];
        check(Client::Crush, &[("crush.json", entry)], Gate::Open, &rest);
        let more = r#"{"options": {"disabled_tools": ["download", "glob", "grep", "ls", "view"]}}"#;
        check(Client::Crush, &[("crush.json", entry), (".config/crush/crush.json", more)], Gate::Closed, &[]);
    }

    #[test]
    fn goose_has_its_own_tools_unless_it_is_told_otherwise() {
        let file = |more: &str| format!("GOOSE_MODE: auto\nextensions:\n  ringfence:\n    enabled: true\n{more}");
        let name = ".config/goose/config.yaml";
        check(Client::Goose, &[(name, &file(""))], Gate::Open, &["developer"]);
        let off = "  developer:\n    enabled: false\n    type: builtin\n";
        check(Client::Goose, &[(name, &file(off))], Gate::Closed, &[]);
        let other = format!("{off}  computercontroller: {{enabled: true}}\n");
        check(Client::Goose, &[(name, &file(&other))], Gate::Open, &["computercontroller"]);
    }

    #[test]
    fn opencode_is_closed_by_rules_old_and_new() {
        let file = |more: &str| format!("{{// mine\n\"mcp\": {{\"ringfence\": {{}}}}, {more}}}");
        let name = "opencode.json";
        let (all, client) = (Client::Opencode.own_tools(), Client::Opencode);
        check(client, &[(name, &file(""))], Gate::Open, all);
        let denied = r#""permission": {"*": "deny", "bash": {"*": "deny", "git *": "allow"}, "ringfence_*": "allow"}"#;
        check(client, &[(name, &file(denied))], Gate::Open, &["bash"]);
        let each = r#""permission": {"bash": "deny", "edit": {"*": "deny"}, "glob": "deny", "grep": "deny",
            "list": "deny", "read": "deny"}"#;
        check(client, &[(name, &file(each))], Gate::Closed, &[]);
        let old =
            r#""tools": {"bash": false, "edit": false, "glob": false, "grep": false, "list": false, "read": false}"#;
        check(client, &[(name, &file(old))], Gate::Open, &["edit"]);
        let new = r#"{"mcp": {"servers": {"ringfence": {}}}, "permissions": []}"#;
        check(client, &[(name, new)], Gate::Unknown, &[]);
    }

    #[test]
    fn the_settings_of_vs_code_do_not_tell() {
        check(Client::Vscode, &[(".vscode/mcp.json", r#"{"servers": {"ringfence": {}}}"#)], Gate::Unknown, &[]);
    }

    #[test]
    fn zed_counts_by_the_profile_that_it_begins_with() {
        let file = |agent: &str| format!("// Zed settings\n{{\"context_servers\": {{\"ringfence\": {{}}}}, {agent}}}");
        let name = ".config/zed/settings.json";
        let (all, client) = (Client::Zed.own_tools(), Client::Zed);
        check(client, &[(name, &file(""))], Gate::Open, all);
        let own = r#""agent": {"default_profile": "ringfence", "profiles": {"ringfence": {"tools": {}}}}"#;
        check(client, &[(name, &file(own))], Gate::Closed, &[]);
        let some = r#""agent": {"default_profile": "p", "profiles": {"p": {"tools": {"grep": true, "now": true}}}}"#;
        check(client, &[(name, &file(some))], Gate::Open, &["grep"]);
        check(client, &[(name, &file(r#""agent": {"default_profile": "minimal"}"#))], Gate::Closed, &[]);
        check(client, &[(name, &file(r#""agent": {"default_profile": "gone"}"#))], Gate::Open, all);
    }
}
