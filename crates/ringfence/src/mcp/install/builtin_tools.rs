//! Detection of MCP clients' built-in file and shell tools, which bypass Ringfence.
//!
//! Every settings file that the client merges counts, in whatever order it merges them: a tool is off where one file
//! turns it off and none turns it on again, also not for an agent that the model can start. A means by which the model
//! itself turns tools on is a tool too. Where the settings are inconclusive, the state is unknown, never off.
//!
//! Not here: the paths of the files (`clients.rs`).

use serde_json::{Map, Value};

use crate::mcp::install::clients::McpClientApp;

/// State of one tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltinToolState {
    On,
    Off,
    Unknown,
}

/// The tools by which a client reaches files, programs and the network itself, and what its settings say about each.
/// Nothing where they say nothing at all.
pub(crate) fn tool_states(client: McpClientApp, layers: &[Value]) -> Option<Vec<(&'static str, BuiltinToolState)>> {
    let state: &dyn Fn(&str) -> BuiltinToolState = match client {
        McpClientApp::Vscode => return None,
        McpClientApp::ClaudeCode => &|tool| off_if(layers.iter().any(|layer| claude_denies(layer, tool))),
        McpClientApp::Codex => &|tool| codex_state(layers, tool),
        McpClientApp::Crush => {
            &|tool| off_if(layers.iter().any(|layer| list_contains(&layer["options"]["disabled_tools"], tool)))
        }
        McpClientApp::Gemini => &|tool| gemini_state(layers, tool),
        McpClientApp::Goose => &|tool| goose_state(layers, tool),
        McpClientApp::Opencode => &|tool| opencode_state(layers, tool),
        McpClientApp::Zed => &|tool| zed_state(layers, tool),
    };
    Some(builtin_tools(client).iter().map(|tool| (*tool, state(tool))).collect())
}

fn builtin_tools(client: McpClientApp) -> &'static [&'static str] {
    match client {
        McpClientApp::ClaudeCode => &[
            "Bash",
            "DesignSync",
            "Edit",
            "EnterWorktree",
            "Glob",
            "Grep",
            "Monitor",
            "NotebookEdit",
            "Read",
            "WebFetch",
            "WebSearch",
            "Write",
        ],
        McpClientApp::Codex => &["apply_patch", "shell", "view_image", "web_search"],
        McpClientApp::Crush => &[
            "agentic_fetch",
            "bash",
            "download",
            "edit",
            "fetch",
            "glob",
            "grep",
            "ls",
            "lsp_call_hierarchy",
            "lsp_definition",
            "lsp_diagnostics",
            "lsp_references",
            "lsp_rename",
            "lsp_replace_symbol",
            "lsp_restart",
            "lsp_symbols",
            "multiedit",
            "sourcegraph",
            "view",
            "write",
        ],
        McpClientApp::Gemini => &[
            "glob",
            "google_web_search",
            "grep_search",
            "invoke_agent",
            "list_directory",
            "read_file",
            "read_many_files",
            "replace",
            "run_shell_command",
            "web_fetch",
            "write_file",
        ],
        McpClientApp::Goose => &GOOSE_EXTENSIONS,
        McpClientApp::Opencode => {
            &["bash", "codesearch", "edit", "glob", "grep", "list", "lsp", "read", "task", "webfetch", "websearch"]
        }
        McpClientApp::Vscode => &[],
        McpClientApp::Zed => &[
            "copy_path",
            "create_directory",
            "delete_path",
            "edit_file",
            "fetch",
            "find_path",
            "grep",
            "list_directory",
            "move_path",
            "open",
            "read_file",
            "save_file",
            "spawn_agent",
            "terminal",
            OTHER_TOOLS,
        ],
    }
}

/// Advice for turning its own tools off.
pub(crate) fn advice(client: McpClientApp) -> &'static str {
    match client {
        McpClientApp::ClaudeCode => {
            "in .claude/settings.json: {\"permissions\": {\"deny\": [\"Bash\", \"DesignSync\", \"Edit\", \"EnterWorktree\", \
             \"Glob\", \"Grep\", \"Monitor\", \"NotebookEdit\", \"Read\", \"WebFetch\", \"WebSearch\", \"Write\"]}}"
        }
        McpClientApp::Codex => {
            "in ~/.codex/config.toml: `sandbox_mode = \"read-only\"`, which makes `apply_patch` ask, `web_search = \
             \"disabled\"`, and `shell_tool = false` and `view_image = false` under `[features]`"
        }
        McpClientApp::Crush => {
            "in crush.json: \"options\": {\"disabled_tools\": [\"agentic_fetch\", \"bash\", \"download\", \"edit\", \"fetch\", \"glob\", \
             \"grep\", \"ls\", \"lsp_call_hierarchy\", \"lsp_definition\", \"lsp_diagnostics\", \
             \"lsp_references\", \"lsp_rename\", \"lsp_replace_symbol\", \"lsp_restart\", \
             \"lsp_symbols\", \"multiedit\", \"sourcegraph\", \"view\", \"write\"]}"
        }
        McpClientApp::Gemini => {
            "in .gemini/settings.json: \"tools\": {\"core\": [\"mcp_ringfence_*\"]}, which leaves no tool but ours; \
             `tools.exclude` would remove the tools of the same names from every server too"
        }
        McpClientApp::Goose => {
            "in goose/config.yaml: `enabled: false` for the extensions `analyze`, `computercontroller`, `developer`, \
             `extensionmanager` (by which the model turns others on) and `summon`"
        }
        McpClientApp::Opencode => "in opencode.json: \"permission\": {\"*\": \"deny\", \"ringfence_*\": \"allow\"}",
        McpClientApp::Vscode => {
            "VS Code does not store this choice in a file: remove the built-in tools under Configure Tools in the chat, or use a \
             custom agent in .github/agents/ringfence.agent.md with `tools: ['ringfence/*']`"
        }
        McpClientApp::Zed => {
            "in zed/settings.json: \"agent\": {\"default_profile\": \"ringfence\", \"profiles\": {\"ringfence\": \
             {\"name\": \"Ringfence\", \"tools\": {}, \"enable_all_context_servers\": true}}}"
        }
    }
}

fn off_if(is_off: bool) -> BuiltinToolState {
    if is_off { BuiltinToolState::Off } else { BuiltinToolState::On }
}

fn list_contains(list: &Value, tool: &str) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|name| name == tool))
}

/// Whether a layer denies all of a tool's calls; a rule for a part leaves the others. Denials of every layer hold.
fn claude_denies(layer: &Value, tool: &str) -> bool {
    let denied = &layer["permissions"]["deny"];
    list_contains(denied, tool) || list_contains(denied, &format!("{tool}(*)"))
}

/// Whether a tool is not among the only ones that Gemini CLI has, or is excluded; but an excluded name excludes ours too.
/// The list may have names of classes and narrowed names, and lists of several files are merged.
fn gemini_state(layers: &[Value], tool: &str) -> BuiltinToolState {
    let excludes =
        |layer: &Value| list_contains(&layer["tools"]["exclude"], tool) || list_contains(&layer["excludeTools"], tool);
    let lists = layers.iter().flat_map(|layer| [&layer["tools"]["core"], &layer["coreTools"]]);
    let lists: Vec<&Vec<Value>> = lists.filter_map(Value::as_array).collect();
    let mut names = lists.iter().copied().flatten().filter_map(Value::as_str);
    let is_of_a_server = |name: &str| name.starts_with("mcp_");
    let is_it = |name: &str| name == tool || name.strip_prefix(tool).is_some_and(|rest| rest.starts_with('('));
    if layers.iter().any(excludes) {
        return BuiltinToolState::Off;
    }
    match () {
        () if lists.is_empty() || names.clone().any(is_it) => BuiltinToolState::On,
        () if names.all(|name| is_of_a_server(name) || builtin_tools(McpClientApp::Gemini).contains(&name)) => {
            BuiltinToolState::Off
        }
        // A name of a class, such as `ReadFileTool`, or one that is not known here.
        () => BuiltinToolState::Unknown,
    }
}

/// Merges the layers about one setting: off where one turns it off and none turns it on.
fn merge_states(states: impl Iterator<Item = bool>) -> BuiltinToolState {
    let states: Vec<bool> = states.collect();
    off_if(!states.is_empty() && states.iter().all(|is_off| *is_off))
}

fn codex_state(layers: &[Value], tool: &str) -> BuiltinToolState {
    // A profile that a layer selects is a layer above it.
    let chosen = layers.iter().filter_map(|layer| layer["profile"].as_str());
    let chosen: Vec<&Value> =
        chosen.flat_map(|name| layers.iter().filter_map(move |layer| layer["profiles"].get(name))).collect();
    let all = || layers.iter().chain(chosen.iter().copied());
    let feature =
        |name: &str| merge_states(all().filter_map(|layer| layer["features"].get(name)).map(|on| on == false));
    let key = |name: &'static str, off: &'static str| {
        merge_states(all().filter_map(move |layer| layer.get(name)).map(move |value| value == off))
    };
    let state = match tool {
        // It runs programs of the model, with or without a shell.
        "shell" if all().any(|layer| layer["features"]["js_repl"] == true) => BuiltinToolState::On,
        "shell" => feature("shell_tool"),
        "view_image" => feature("view_image"),
        "web_search" => key("web_search", "disabled"),
        // Permissions of the newer kind replace the sandbox's mode.
        _ if all().any(|layer| layer.get("default_permissions").is_some()) => BuiltinToolState::Unknown,
        _ => key("sandbox_mode", "read-only"),
    };
    // An agent whose settings are in a file of their own may have any of them on.
    match state {
        BuiltinToolState::Off if all().any(has_agent_files) => BuiltinToolState::Unknown,
        state => state,
    }
}

/// Whether settings of Codex name a further file with those of an agent.
fn has_agent_files(layer: &Value) -> bool {
    let agents = layer["agents"].as_object();
    agents.is_some_and(|agents| agents.values().any(|agent| agent.get("config_file").is_some()))
}

/// Extensions of goose with tools that reach around us. The first ones are on unless they are turned off.
const GOOSE_EXTENSIONS: [&str; 8] = [
    "analyze",
    "developer",
    "extensionmanager",
    "summon",
    "code_execution",
    "computercontroller",
    "orchestrator",
    "other extensions",
];

/// Number of those that are on by default.
const GOOSE_DEFAULT_ON: usize = 4;

/// Extensions that come with goose and reach nothing of the workspace.
const GOOSE_HARMLESS: [&str; 8] =
    ["apps", "autovisualiser", "chatrecall", "memory", "skills", "todo", "tom", "tutorial"];

fn goose_state(layers: &[Value], tool: &str) -> BuiltinToolState {
    let states = layers.iter().filter_map(|layer| layer["extensions"][tool]["enabled"].as_bool());
    let states: Vec<bool> = states.collect();
    match GOOSE_EXTENSIONS.iter().position(|name| *name == tool) {
        Some(at) if at < GOOSE_DEFAULT_ON => merge_states(states.iter().map(|is_on| !is_on)),
        Some(_) if tool != "other extensions" => off_if(!states.contains(&true)),
        // Extensions that come with goose and that are not known here.
        _ => {
            let is_known = |name: &String| GOOSE_EXTENSIONS.contains(&&**name) || GOOSE_HARMLESS.contains(&&**name);
            let comes_with = |settings: &Value| matches!(settings["type"].as_str(), Some("builtin" | "platform"));
            let is_new = |(name, settings): (&String, &Value)| {
                !is_known(name) && comes_with(settings) && settings["enabled"] != false
            };
            let all = layers.iter().filter_map(|layer| layer["extensions"].as_object());
            if all.flatten().any(is_new) { BuiltinToolState::Unknown } else { BuiltinToolState::Off }
        }
    }
}

/// Rules of opencode about a tool: by its name, and by patterns that match it. True where they deny.
#[derive(Default)]
struct OpencodeRules {
    exact: Vec<bool>,
    patterns: Vec<bool>,
}

impl OpencodeRules {
    fn add(&mut self, settings: &Value, tool: &str) {
        let rules = &settings["permission"];
        if rules.is_string() {
            self.patterns.push(rules == "deny");
        }
        for (name, states) in rules.as_object().into_iter().flatten() {
            let denies = |states: &Value| states == "deny";
            // Patterns of arguments are all to be denied, the one for everything among them.
            let by_argument = |all: &Map<String, Value>| all.contains_key("*") && all.values().all(denies);
            let is_denied = denies(states) || states.as_object().is_some_and(by_argument);
            match name == tool {
                true => self.exact.push(is_denied),
                false if is_match(name, tool) => self.patterns.push(is_denied),
                false => {}
            }
        }
        // The older form, before there were rules.
        let is_off = |name: &str| settings["tools"].get(name).map(|on| on == false);
        match (tool, is_off(tool), is_off("write")) {
            // Two tools then, one rule now.
            ("edit", Some(edit), Some(write)) => self.exact.push(edit && write),
            ("edit", Some(false), None) | ("edit", None, Some(false)) => self.exact.push(false),
            ("edit", ..) | (_, None, _) => {}
            (_, Some(is_off), _) => self.exact.push(is_off),
        }
        self.patterns.extend(is_off("*"));
    }
}

fn opencode_state(layers: &[Value], tool: &str) -> BuiltinToolState {
    let mut rules = OpencodeRules::default();
    layers.iter().for_each(|layer| rules.add(layer, tool));
    // The model starts agents, and each has rules of its own above the others.
    let mut of_agents = OpencodeRules::default();
    let agents = layers.iter().flat_map(|layer| [&layer["agent"], &layer["mode"]]);
    agents.filter_map(Value::as_object).flatten().for_each(|(_, agent)| of_agents.add(agent, tool));
    // Rules of the second generation are not read here.
    if layers.iter().any(|layer| layer.get("permissions").is_some()) {
        return BuiltinToolState::Unknown;
    }
    let opens = |states: &[bool]| states.contains(&false);
    if opens(&rules.exact) || opens(&of_agents.exact) || opens(&of_agents.patterns) {
        return BuiltinToolState::On;
    }
    match (rules.exact.is_empty(), opens(&rules.patterns)) {
        (true, is_open) => off_if(!is_open && !rules.patterns.is_empty()),
        // The rule that stands last wins, which depends on how the files are merged.
        (false, true) => BuiltinToolState::Unknown,
        (false, false) => BuiltinToolState::Off,
    }
}

/// Whether a pattern with `*` and `?` matches a name.
fn is_match(pattern: &str, name: &str) -> bool {
    match pattern.chars().next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = &pattern[1..];
            name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| is_match(rest, &name[at..]))
        }
        Some(first) => {
            let mut letters = name.chars();
            let is_same = letters.next().is_some_and(|letter| first == '?' || first == letter);
            is_same && is_match(&pattern[first.len_utf8()..], letters.as_str())
        }
    }
}

/// Stands for the tools of a client that are not known here.
const OTHER_TOOLS: &str = "other tools";

/// Tools of Zed that read no file and run nothing.
const ZED_HARMLESS: [&str; 3] = ["diagnostics", "now", "thinking"];

/// Zed has its tools by profile; the default profiles of new threads count.
fn zed_state(layers: &[Value], tool: &str) -> BuiltinToolState {
    let begins: Vec<&str> = layers.iter().filter_map(|all| all["agent"]["default_profile"].as_str()).collect();
    let begins = if begins.is_empty() { vec!["write"] } else { begins };
    if tool == OTHER_TOOLS {
        return zed_other_state(layers, &begins);
    }
    let is_on = |profile: &&str| {
        let states: Vec<&Value> = layers.iter().filter_map(|all| all["agent"]["profiles"].get(*profile)).collect();
        match *profile {
            "minimal" if states.is_empty() => false,
            _ if states.is_empty() => true,
            // Zed's defaults apply to the keys that such a profile leaves out.
            "write" | "write-full-access" | "ask" | "minimal" => {
                states.iter().any(|states| states["tools"][tool] != false)
            }
            _ => states.iter().any(|states| states["tools"][tool] == true),
        }
    };
    off_if(!begins.iter().any(is_on))
}

/// Whether a profile turns on a tool that is neither known as harmless nor listed by its name. Unknown where Zed's own
/// profile is changed: it may have tools that are not known here.
fn zed_other_state(layers: &[Value], begins: &[&str]) -> BuiltinToolState {
    let is_known = |tool: &String| {
        builtin_tools(McpClientApp::Zed).contains(&tool.as_str()) || ZED_HARMLESS.contains(&tool.as_str())
    };
    let profiles = || begins.iter().flat_map(|name| layers.iter().map(move |all| &all["agent"]["profiles"][*name]));
    let turned_on = |profile: &Value| {
        let tools = profile["tools"].as_object().into_iter().flatten();
        tools.into_iter().any(|(tool, is_on)| is_on != false && !is_known(tool))
    };
    let is_changed = |name: &&str| {
        matches!(*name, "write" | "write-full-access" | "ask")
            && layers.iter().any(|all| all["agent"]["profiles"].get(*name).is_some())
    };
    match profiles().any(turned_on) {
        true => BuiltinToolState::On,
        false if begins.iter().any(is_changed) => BuiltinToolState::Unknown,
        false => BuiltinToolState::Off,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{BuiltinToolState, tool_states};
    use crate::mcp::install::clients::McpClientApp;

    /// The tools of Gemini CLI that are in a state.
    fn gemini(layers: &[Value], state: BuiltinToolState) -> Vec<&'static str> {
        let states = tool_states(McpClientApp::Gemini, layers).unwrap();
        states.into_iter().filter(|(_, it)| *it == state).map(|(tool, _)| tool).collect()
    }

    #[test]
    fn gemini_is_closed_by_a_list_of_the_only_tools() {
        use BuiltinToolState::{Off, On, Unknown};
        let only = |names: Value| json!({"tools": {"core": names}});
        assert_eq!(gemini(&[], Off), [""; 0]);
        for names in [json!(["mcp_ringfence_*"]), json!([])] {
            assert_eq!((gemini(&[only(names.clone())], On), gemini(&[only(names)], Unknown)), (vec![], vec![]));
        }
        let some = only(json!(["mcp_ringfence_*", "glob", "run_shell_command(git)"]));
        assert_eq!(gemini(&[some], On), ["glob", "run_shell_command"]);
        // Lists of several files are merged.
        let both = [only(json!(["mcp_ringfence_*"])), only(json!(["write_file"]))];
        assert_eq!(gemini(&both, On), ["write_file"]);
        assert_eq!(gemini(&[only(json!(["ReadFileTool"]))], Off), [""; 0]);
        assert_eq!(gemini(&[json!({"coreTools": ["mcp_ringfence_*"]})], On), [""; 0]);
    }
}
