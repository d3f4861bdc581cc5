//! `ringfence mcp install`: the entry in a client's settings, and how to turn off its built-in tools.
//!
//! An entry is put into the text of the file as it is, and nothing else of it changes: where that cannot be done safely, the
//! entry is printed for the user to put in. Nothing is written that was not shown before.
//!
//! Not here: which files those are (`clients.rs`), and how they are read and replaced (`settings_file.rs`).

pub(crate) mod builtin_tools;
pub(crate) mod clients;
pub(crate) mod jsonc;
pub(crate) mod settings_file;

use std::path::{Path, PathBuf};

use ringfence_front_matter::yaml_mapping;
use ringfence_kernel::Dialect;
use serde_json::{Map, Value, json};

use crate::mcp::install::builtin_tools::advice;
use crate::mcp::install::clients::{
    ClientSettingsDirs, ClientSettingsFormat, ENTRY_NAME, McpClientApp, McpInstallScope,
};
use crate::mcp::install::settings_file::{ClientSettingsContents, ClientSettingsFile, ClientSettingsFileError};

/// Failure to plan or write an entry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("cannot find the client's settings: the home directory is unknown")]
    NoHome,
    #[error("{file} was not changed: {why}; add this entry yourself:\n\n{entry}")]
    NotWritten { file: String, why: ClientSettingsFileError, entry: String },
    #[error("{file} cannot be edited safely; add this entry yourself:\n\n{entry}")]
    ManualEdit { file: String, entry: String },
}

/// One file, and what would be in it.
#[derive(Debug)]
pub(crate) struct ClientSettingsChange {
    file: PathBuf,
    settings_file: ClientSettingsFile,
    before: ClientSettingsContents,
    /// The entry that is added or updated.
    entry: String,
    after: String,
    client: McpClientApp,
}

impl ClientSettingsChange {
    /// Whether the entry is there already, as it would be written.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.before.text == self.after
    }

    /// Description of the change, for the user.
    pub(crate) fn describe(&self) -> String {
        let Self { file, entry, client, .. } = self;
        let state = if self.is_up_to_date() { " (up to date)" } else { "" };
        let scope = match client.scope() {
            McpInstallScope::Project => {
                "This file is shared with the project, so it contains no local path: `ringfence` must be on the \
                 client's PATH."
            }
            McpInstallScope::User => {
                "The entry applies to every project: the workspace is the directory that the client is started in."
            }
        };
        let gate = "Turn off the client's built-in file and shell tools, or it can bypass Ringfence";
        let dialect = client_dialect(*client).name();
        let tools = format!("Its models get the tools of the dialect `{dialect}`, unless your config sets `dialect`.");
        format!("in {}{state}:\n\n{entry}\n\n{scope}\n\n{tools}\n\n{gate}:\n{}\n", file.display(), advice(*client))
    }

    /// Writes it, all or nothing.
    pub(crate) fn write(&self) -> Result<(), InstallError> {
        if self.is_up_to_date() {
            return Ok(());
        }
        let untouched =
            |why| InstallError::NotWritten { file: self.file.display().to_string(), why, entry: self.entry.clone() };
        self.settings_file.replace(&self.before, &self.after).map_err(untouched)
    }
}

/// Finds out what would have to be written for a client, which starts this program.
pub(crate) fn plan(
    client: McpClientApp,
    program: &Path,
    dirs: ClientSettingsDirs<'_>,
) -> Result<ClientSettingsChange, InstallError> {
    let file = client.entry_files(dirs).into_iter().next().ok_or(InstallError::NoHome)?;
    let name = file.display().to_string();
    let server = server_entry(client, program);
    let with = |before: &str| match client.format() {
        ClientSettingsFormat::Toml => with_table(before, &server),
        ClientSettingsFormat::Yaml => with_extension(before, &server),
        ClientSettingsFormat::Json => with_member(before, client.servers_key(), &server),
    };
    let read = || {
        let at = ClientSettingsFile::locate(&file, dirs.workspace)?;
        let before = at.read()?;
        Ok((at, before))
    };
    let (at, before) = read().map_err(|why| InstallError::NotWritten { file: name.clone(), why, entry: with("").0 })?;
    match with(&before.text) {
        (entry, Some(after)) => Ok(ClientSettingsChange { file, settings_file: at, before, entry, after, client }),
        (entry, None) => Err(InstallError::ManualEdit { file: name, entry }),
    }
}

/// The entry that starts the server. In a project's file nothing is specific to one machine; in a user's file the
/// workspace is the directory that the client works in, and never that of another project.
fn server_entry(client: McpClientApp, program: &Path) -> Map<String, Value> {
    let command = match client.scope() {
        McpInstallScope::Project => ENTRY_NAME.to_owned(),
        McpInstallScope::User => program.display().to_string(),
    };
    let workspace = match client {
        // It starts servers in another directory.
        McpClientApp::Vscode => "${workspaceFolder}",
        _ => ".",
    };
    let arguments = ["mcp", "--default-dialect", client_dialect(client).name(), "--workspace", workspace];
    let server = match client {
        // Its model is not shown the tools of other servers until it searches for them.
        McpClientApp::ClaudeCode => json!({"command": command, "args": arguments, "alwaysLoad": true}),
        // Approval is requested by Ringfence. Programs may run for minutes.
        McpClientApp::Codex => json!({
            "command": command, "args": arguments, "default_tools_approval_mode": "approve", "tool_timeout_sec": 300,
        }),
        McpClientApp::Crush | McpClientApp::Vscode => json!({"type": "stdio", "command": command, "args": arguments}),
        McpClientApp::Gemini | McpClientApp::Zed => json!({"command": command, "args": arguments}),
        McpClientApp::Goose => json!({
            "name": ENTRY_NAME, "type": "stdio", "enabled": true, "cmd": command, "args": arguments, "envs": {}, "timeout": 300,
        }),
        McpClientApp::Opencode => {
            let whole: Vec<&str> = std::iter::once(command.as_str()).chain(arguments).collect();
            json!({"type": "local", "command": whole, "enabled": true})
        }
    };
    server.as_object().cloned().unwrap_or_default()
}

/// The dialect of the models that a client is mostly used with. String replacement and a shell are what most models of
/// other families were trained with too.
fn client_dialect(client: McpClientApp) -> Dialect {
    match client {
        McpClientApp::Codex => Dialect::Codex,
        McpClientApp::Gemini => Dialect::Gemini,
        McpClientApp::ClaudeCode
        | McpClientApp::Crush
        | McpClientApp::Goose
        | McpClientApp::Opencode
        | McpClientApp::Vscode
        | McpClientApp::Zed => Dialect::Claude,
    }
}

/// An entry that is there with ours over it: what its user added stays.
fn updated(old: Option<&Value>, server: &Map<String, Value>) -> Map<String, Value> {
    let mut entry = old.and_then(Value::as_object).cloned().unwrap_or_default();
    entry.extend(server.clone());
    entry
}

/// Appends a TOML table, or replaces the existing one.
fn with_table(before: &str, server: &Map<String, Value>) -> (String, Option<String>) {
    const KEY: &str = "mcp_servers";
    let old = before.parse::<toml::Table>().ok().and_then(|table| serde_json::to_value(table).ok());
    let entry = updated(old.as_ref().and_then(|old| old[KEY].get(ENTRY_NAME)), server);
    let text = toml::to_string(&json!({KEY: {ENTRY_NAME: entry}})).unwrap_or_default();
    let Some(mut wanted) = old else { return (text, None) };
    if !wanted[KEY].is_null() && !wanted[KEY].is_object() {
        return (text, None);
    }
    let (was, entry) = (wanted[KEY].get(ENTRY_NAME).cloned(), Value::Object(entry));
    // In any order of its keys it is up to date.
    if was.as_ref() == Some(&entry) {
        return (text, Some(before.to_owned()));
    }
    let is_there = was.is_some();
    wanted[KEY][ENTRY_NAME] = entry;
    let (above, below) = if is_there {
        around_table(before, &format!("{KEY}.{ENTRY_NAME}"))
    } else {
        (before.to_owned(), String::new())
    };
    let line = if above.is_empty() || above.ends_with('\n') { "" } else { "\n" };
    let gap = if above.is_empty() || above.ends_with("\n\n") { "" } else { "\n" };
    let after = format!("{above}{line}{gap}{text}{below}");
    let is_fine = after
        .parse::<toml::Table>()
        .ok()
        .and_then(|new| serde_json::to_value(new).ok())
        .is_some_and(|new| new == wanted);
    (text, is_fine.then_some(after))
}

/// The text before and after a table with its subtables. Blank lines and comments above the next table are that one's.
fn around_table(text: &str, name: &str) -> (String, String) {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_ours = |line: &&str| line.trim() == format!("[{name}]") || line.trim().starts_with(&format!("[{name}."));
    let start = lines.iter().position(is_ours).unwrap_or(lines.len());
    let is_next = |line: &&str| line.trim_start().starts_with('[') && !is_ours(line);
    let mut end = lines.iter().skip(start).position(is_next).map_or(lines.len(), |at| start + at);
    while end > start
        && end < lines.len()
        && (lines[end - 1].trim().is_empty() || lines[end - 1].trim_start().starts_with('#'))
    {
        end -= 1;
    }
    (lines[..start].concat(), lines[end..].concat())
}

/// An extension of Goose: a block below `extensions`, which is made at the end if it is not there.
fn with_extension(before: &str, server: &Map<String, Value>) -> (String, Option<String>) {
    const KEY: &str = "extensions";
    let old = if before.trim().is_empty() { Some(Map::new()) } else { yaml_mapping(before) };
    let entry = updated(old.as_ref().and_then(|old| old.get(KEY)?.get(ENTRY_NAME)), server);
    let block = |deep: &str| {
        // The order in which goose itself writes them.
        let ours = ["name", "type", "enabled", "cmd", "args", "envs", "timeout"];
        let first = ours.iter().filter_map(|key| Some((*key, entry.get(*key)?)));
        let rest = entry.iter().map(|(key, value)| (key.as_str(), value)).filter(|(key, _)| !ours.contains(key));
        let line = |(key, value): (&str, &Value)| match (key, value.as_str()) {
            ("name" | "type", Some(word)) => format!("{deep}  {key}: {word}\n"),
            _ => format!("{deep}  {key}: {}\n", spaced(value)),
        };
        format!("{deep}{ENTRY_NAME}:\n") + &first.chain(rest).map(line).collect::<String>()
    };
    let text = format!("{KEY}:\n{}", block("  "));
    let Some(mut wanted) = old else { return (text, None) };
    let lines: Vec<&str> = before.split_inclusive('\n').collect();
    let after = match lines.iter().position(|line| line.trim_end() == format!("{KEY}:")) {
        None => format!("{before}{}{text}", if before.is_empty() || before.ends_with('\n') { "" } else { "\n" }),
        Some(at) => {
            let (above, below) = lines.split_at(at + 1);
            let depth = |line: &str| line.len() - line.trim_start_matches(' ').len();
            // As deep as what stands there.
            let first = below.iter().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
            let deep = first.map_or(0, |line| depth(line));
            let is_ours = |line: &&str| depth(line) == deep && line.trim() == format!("{ENTRY_NAME}:");
            let start = below.iter().position(is_ours).unwrap_or_default();
            let is_part = |line: &&&str| !line.trim().is_empty() && depth(line) > deep;
            let old_lines = match below.get(start).is_some_and(is_ours) {
                true => 1 + below.iter().skip(start + 1).take_while(is_part).count(),
                false => 0,
            };
            let kept = [&below[..start], &below[start + old_lines..]];
            format!("{}{}{}{}", above.concat(), kept[0].concat(), block(&" ".repeat(deep)), kept[1].concat())
        }
    };
    match wanted.entry(KEY).or_insert_with(|| Value::Object(Map::new())) {
        Value::Object(extensions) => extensions.insert(ENTRY_NAME.to_owned(), Value::Object(entry.clone())),
        _ => return (text, None),
    };
    let is_fine = yaml_mapping(&after).is_some_and(|new| new == wanted);
    (text, is_fine.then_some(after))
}

/// A value as YAML and JSON both read it. Lists have a space after each comma.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        value => value.to_string(),
    }
}

/// A member of the object that a client has its servers in.
fn with_member(before: &str, key: &str, server: &Map<String, Value>) -> (String, Option<String>) {
    // Offsets in the blanked text are valid in the original.
    let blanked = jsonc::blank_comments(before);
    let is_new = before.trim().is_empty();
    let old = if is_new { Some(Map::new()) } else { serde_json::from_str::<Map<String, Value>>(&blanked).ok() };
    let entry = updated(old.as_ref().and_then(|old| old.get(key)?.get(ENTRY_NAME)), server);
    let text = pretty(&json!({key: {ENTRY_NAME: entry}}));
    if is_new {
        return (text.clone(), Some(text + "\n"));
    }
    let Some(old) = old else { return (text, None) };
    let mut wanted = old.clone();
    let servers = wanted.entry(key).or_insert_with(|| Value::Object(Map::new()));
    let Some(servers) = servers.as_object_mut() else { return (text, None) };
    let is_first = servers.is_empty();
    let is_there = servers.insert(ENTRY_NAME.to_owned(), Value::Object(entry.clone())).is_some();
    let server = Value::Object(entry);
    let comma = |is_first: bool| if is_first { "" } else { "," };
    // The result must be the old text and our entry, or it is not written.
    let candidates: Vec<String> = match old.contains_key(key) {
        // Replaces the existing value.
        true if is_there => {
            let quoted = format!("\"{ENTRY_NAME}\"");
            let values = blanked.match_indices(&quoted).filter_map(|(at, name)| {
                let rest = blanked[at + name.len()..].trim_start().strip_prefix(':')?.trim_start();
                let start = blanked.len() - rest.len();
                let mut value = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
                value.next()?.ok()?;
                Some((start, start + value.byte_offset()))
            });
            values.map(|(start, end)| format!("{}{server}{}", &before[..start], &before[end..])).collect()
        }
        // Right behind the brace that opens the object.
        true => {
            let member = format!("\n    \"{ENTRY_NAME}\": {server}{}", comma(is_first));
            let opens = |at: usize| blanked[at..].find('{').map(|brace| at + brace + 1);
            let quoted = format!("\"{key}\"");
            let found = blanked.match_indices(&quoted).filter_map(|(at, _)| opens(at));
            found.map(|at| format!("{}{member}{}", &before[..at], &before[at..])).collect()
        }
        false => {
            let member = format!("\n  \"{key}\": {}{}", json!({ENTRY_NAME: server}), comma(old.is_empty()));
            blanked.find('{').map(|at| format!("{}{member}{}", &before[..=at], &before[at + 1..])).into_iter().collect()
        }
    };
    let wanted = Value::Object(wanted);
    if is_there && jsonc::parse_jsonc(before).as_ref() == Some(&wanted) {
        return (text, Some(before.to_owned()));
    }
    (text, candidates.into_iter().find(|candidate| jsonc::parse_jsonc(candidate).as_ref() == Some(&wanted)))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Map, Value};

    use super::{
        ClientSettingsDirs, InstallError, McpClientApp, plan, server_entry, with_extension, with_member, with_table,
    };

    const PROGRAM: &str = "/bin/ringfence";

    fn entry(client: McpClientApp) -> Map<String, Value> {
        server_entry(client, Path::new(PROGRAM))
    }

    #[track_caller]
    fn check(before: &str, expected: Option<&str>) {
        let (_, after) = with_member(before, "mcpServers", &entry(McpClientApp::ClaudeCode));
        assert_eq!(after.as_deref(), expected, "{before}");
    }

    const SERVER: &str =
        r#"{"command":"ringfence","args":["mcp","--default-dialect","claude","--workspace","."],"alwaysLoad":true}"#;

    #[test]
    fn an_entry_is_put_in_and_nothing_else_changes() {
        check(
            "{\n  \"z\": 1,\n  \"mcpServers\": {\n    \"other\": {}\n  },\n  \"a\": 2\n}\n",
            Some(&format!(
                "{{\n  \"z\": 1,\n  \"mcpServers\": {{\n    \"ringfence\": {SERVER},\n    \"other\": {{}}\n  }},\n  \"a\": 2\n}}\n"
            )),
        );
        check("{\"mcpServers\": {}}", Some(&format!("{{\"mcpServers\": {{\n    \"ringfence\": {SERVER}}}}}")));
        check("{\"z\": {}}", Some(&format!("{{\n  \"mcpServers\": {{\"ringfence\":{SERVER}}},\"z\": {{}}}}")));
        // The same word in another position is not the key.
        check(
            r#"{"note": "\"mcpServers\": {", "mcpServers": {"b": {}}}"#,
            Some(&format!(
                r#"{{"note": "\"mcpServers\": {{", "mcpServers": {{{}    "ringfence": {SERVER},"b": {{}}}}}}"#,
                "\n"
            )),
        );
    }

    #[test]
    fn comments_and_lone_commas_stay_where_they_are() {
        check(
            "// {\n{\n  // \"mcpServers\": {\n  \"mcpServers\": { // mine\n    \"b\": {},\n  },\n}\n",
            Some(&format!(
                "// {{\n{{\n  // \"mcpServers\": {{\n  \"mcpServers\": {{\n    \"ringfence\": {SERVER}, // mine\n    \"b\": {{}},\n  }},\n}}\n"
            )),
        );
        check("{ /* é */ }", Some(&format!("{{\n  \"mcpServers\": {{\"ringfence\":{SERVER}}} /* é */ }}")));
    }

    #[test]
    fn an_entry_that_is_there_is_updated_and_keeps_what_its_user_added() {
        check(
            "{ // mine\n \"ringfence\": {}, \"mcpServers\": {\"ringfence\": {\"command\": \"/old\"}, \"b\": {},},}",
            Some(&format!(
                "{{ // mine\n \"ringfence\": {{}}, \"mcpServers\": {{\"ringfence\": {SERVER}, \"b\": {{}},}},}}"
            )),
        );
        let own = SERVER.replace("\"command\":\"ringfence\"", "\"command\":\"ringfence\",\"env\":{\"A\":\"b\"}");
        check(
            r#"{"mcpServers": {"ringfence": {"command": "/old", "env": {"A": "b"}}}}"#,
            Some(&format!(r#"{{"mcpServers": {{"ringfence": {own}}}}}"#)),
        );
        let same = format!("{{\"mcpServers\": {{ \"ringfence\" : {} }}}}", SERVER.replace(',', " , "));
        check(&same, Some(&same));
    }

    #[test]
    fn an_unreadable_file_is_left_alone() {
        check("{ // a comment }", None);
        check(r#"{"mcpServers": 7}"#, None);
        check("[]", None);
    }

    #[test]
    fn a_table_is_put_at_the_end_or_where_it_was() {
        let server = entry(McpClientApp::Codex);
        let text = "[mcp_servers.ringfence]\ncommand = \"/bin/ringfence\"\nargs = [\"mcp\", \"--default-dialect\", \"codex\", \"--workspace\", \".\"]\n\
            default_tools_approval_mode = \"approve\"\ntool_timeout_sec = 300\n";
        for (before, gap) in [("", ""), ("a = 1\n", "\n"), ("a = 1", "\n\n"), ("[mcp_servers.b]\nc = 1\n\n", "")] {
            let (_, after) = with_table(before, &server);
            assert_eq!(after, Some(format!("{before}{gap}{text}")), "{before:?}");
            assert_eq!(with_table(after.as_ref().unwrap(), &server).1, after, "it is there already");
        }
        let old = "# mine\n[mcp_servers.ringfence]\ncommand = \"/old\"\n\n[mcp_servers.ringfence.env]\nA = \"b\"\n\n# c\n[x]\ny = 1\n";
        let new = format!("# mine\n\n{text}\n[mcp_servers.ringfence.env]\nA = \"b\"\n\n# c\n[x]\ny = 1\n");
        assert_eq!(with_table(old, &server).1, Some(new));
        for other in ["a = ", "mcp_servers = 1\n", "[mcp_servers]\nringfence = {command = \"x\"}\n"] {
            assert_eq!(with_table(other, &server).1, None, "{other}");
        }
    }

    #[test]
    fn an_extension_stands_among_the_others() {
        let block = |deep: &str, more: &str| {
            let lines = [
                "ringfence:",
                "  name: ringfence",
                "  type: stdio",
                "  enabled: true",
                "  cmd: \"/bin/ringfence\"",
                "  args: [\"mcp\", \"--default-dialect\", \"claude\", \"--workspace\", \".\"]",
                "  envs: {}",
                "  timeout: 300",
            ];
            lines.map(|line| format!("{deep}{line}\n")).concat() + more
        };
        let (two, server) = (block("  ", ""), entry(McpClientApp::Goose));
        let old = "extensions:\n  a: {}\n  ringfence:\n    cmd: /old\n    bundled: null\n\n  b: {}\n";
        let cases = [
            (String::new(), format!("extensions:\n{two}")),
            ("A: b # c".to_owned(), format!("A: b # c\nextensions:\n{two}")),
            (
                "A: b\nextensions:\n    # mine\n    memory:\n        enabled: true\nZ: 1\n".to_owned(),
                format!(
                    "A: b\nextensions:\n{}    # mine\n    memory:\n        enabled: true\nZ: 1\n",
                    block("    ", "")
                ),
            ),
            (old.to_owned(), format!("extensions:\n  a: {{}}\n{}\n  b: {{}}\n", block("  ", "    bundled: null\n"))),
        ];
        for (before, after) in cases {
            assert_eq!(with_extension(&before, &server).1, Some(after.clone()), "{before:?}");
            assert_eq!(with_extension(&after, &server).1, Some(after), "it is there already");
        }
        for other in ["extensions: {}\n", "extensions:\n", "a: [", "---\na: 1\n", "extensions: [1]\n"] {
            assert_eq!(with_extension(other, &server).1, None, "{other}");
        }
    }

    #[test]
    fn every_client_gets_what_its_documentation_asks_for() {
        let entry = |client: McpClientApp| {
            let directory = tempfile::tempdir().unwrap();
            let at = directory.path();
            let dirs = ClientSettingsDirs {
                workspace: Some(at),
                home: Some(at),
                config: Some(at),
                system: None,
                variables: None,
            };
            let change = plan(client, Path::new(PROGRAM), dirs).unwrap();
            change.write().unwrap();
            assert!(plan(client, Path::new(PROGRAM), dirs).unwrap().is_up_to_date(), "{client:?}");
            // A path of this machine is nowhere but in a file of this user.
            let is_own = matches!(client, McpClientApp::Codex | McpClientApp::Goose | McpClientApp::Zed);
            assert_eq!(change.after.contains(PROGRAM), is_own, "{client:?}: {}", change.after);
            assert!(!change.after.contains(at.to_str().unwrap()), "{client:?}: {}", change.after);
            let file = change.file.strip_prefix(at).unwrap().display().to_string();
            format!("{file}: {}", change.after.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let shared = r#""command": "ringfence", "args": [ "mcp", "--default-dialect", "claude", "--workspace", "." ]"#;
        let own =
            r#""command": "/bin/ringfence", "args": [ "mcp", "--default-dialect", "claude", "--workspace", "." ]"#;
        let gemini = shared.replace("claude", "gemini");
        let cases = [
            (
                McpClientApp::ClaudeCode,
                format!(r#".mcp.json: {{ "mcpServers": {{ "ringfence": {{ {shared}, "alwaysLoad": true }} }} }}"#),
            ),
            (
                McpClientApp::Codex,
                r#".codex/config.toml: [mcp_servers.ringfence] command = "/bin/ringfence" args = ["mcp", "--default-dialect", "codex", "--workspace", "."] default_tools_approval_mode = "approve" tool_timeout_sec = 300"#
                    .to_owned(),
            ),
            (McpClientApp::Crush, format!(r#"crush.json: {{ "mcp": {{ "ringfence": {{ "type": "stdio", {shared} }} }} }}"#)),
            (McpClientApp::Gemini, format!(r#".gemini/settings.json: {{ "mcpServers": {{ "ringfence": {{ {gemini} }} }} }}"#)),
            (
                McpClientApp::Goose,
                r#"goose/config.yaml: extensions: ringfence: name: ringfence type: stdio enabled: true cmd: "/bin/ringfence" args: ["mcp", "--default-dialect", "claude", "--workspace", "."] envs: {} timeout: 300"#
                    .to_owned(),
            ),
            (
                McpClientApp::Opencode,
                r#"opencode.json: { "mcp": { "ringfence": { "type": "local", "command": [ "ringfence", "mcp", "--default-dialect", "claude", "--workspace", "." ], "enabled": true } } }"#
                    .to_owned(),
            ),
            (
                McpClientApp::Vscode,
                r#".vscode/mcp.json: { "servers": { "ringfence": { "type": "stdio", "command": "ringfence", "args": [ "mcp", "--default-dialect", "claude", "--workspace", "${workspaceFolder}" ] } } }"#
                    .to_owned(),
            ),
            (McpClientApp::Zed, format!(r#"zed/settings.json: {{ "context_servers": {{ "ringfence": {{ {own} }} }} }}"#)),
        ];
        for (client, expected) in cases {
            assert_eq!(entry(client), expected);
        }
        let nowhere = ClientSettingsDirs { workspace: None, home: None, config: None, system: None, variables: None };
        assert!(matches!(plan(McpClientApp::Codex, Path::new(PROGRAM), nowhere), Err(InstallError::NoHome)));
    }
}
