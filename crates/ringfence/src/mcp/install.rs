//! Telling a client about this server: the entry in its settings, and how its own open gates are closed.
//!
//! An entry is put into the text of the file as it is, and nothing else of it changes: where that cannot be done safely, the
//! entry is printed for the user to put in. Nothing is written that was not shown before.
//!
//! Not here: which files those are (`clients.rs`), and how they are read and replaced (`settings_file.rs`).

use std::path::{Path, PathBuf};

use ringfence_fs::yaml_mapping;
use serde_json::{Map, Value, json};

use super::clients::{Client, Format, NAME, Places};
use super::jsonc;
use super::settings_file::{Contents, SettingsFile, Untouched};

/// Why nothing was planned or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("the home directory is not known, so neither is the client's file")]
    NoHome,
    #[error("{file} is left as it is: {why}; put this in yourself:\n\n{entry}")]
    Untouched { file: String, why: Untouched, entry: String },
    #[error("{0} has an entry `{NAME}` already; take it out first to have a new one")]
    There(String),
    #[error("{file} is not written in a way that can be added to safely; put this in yourself:\n\n{entry}")]
    ByHand { file: String, entry: String },
}

/// What a client shall start.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) program: &'a Path,
    pub(crate) workspace: &'a Path,
}

/// One file, and what would be in it.
#[derive(Debug)]
pub(crate) struct Change {
    file: PathBuf,
    at: SettingsFile,
    before: Contents,
    /// What is added.
    entry: String,
    after: String,
    /// How the client's own tools are turned off.
    advice: &'static str,
}

impl Change {
    /// What would be done, for the user to read.
    pub(crate) fn shown(&self) -> String {
        let Self { file, entry, advice, .. } = self;
        let gate = "A fence beside an open gate fences nothing. Turn off the client's own file and shell tools";
        format!("in {}:\n\n{entry}\n\n{gate}:\n{advice}\n", file.display())
    }

    /// Writes it, all or nothing.
    pub(crate) fn write(&self) -> Result<(), InstallError> {
        let untouched =
            |why| InstallError::Untouched { file: self.file.display().to_string(), why, entry: self.entry.clone() };
        self.at.replace(&self.before, &self.after).map_err(untouched)
    }
}

/// Finds out what would have to be written for a client.
pub(crate) fn plan(client: Client, setting: &Setting<'_>, places: Places<'_>) -> Result<Change, InstallError> {
    let file = client.files(places).into_iter().next().ok_or(InstallError::NoHome)?;
    let name = file.display().to_string();
    let with = |before: &str| match client.format() {
        Format::Toml => with_table(before, setting),
        Format::Yaml => with_extension(before, setting),
        Format::Json => with_member(before, client, setting),
    };
    let read = || {
        let at = SettingsFile::at(&file, places.workspace)?;
        let before = at.read()?;
        Ok((at, before))
    };
    let (at, before) = read().map_err(|why| InstallError::Untouched { file: name.clone(), why, entry: with("").0 })?;
    let (entry, after) = with(&before.text);
    match after {
        Added::Text(after) => Ok(Change { file, at, before, entry, after, advice: client.advice() }),
        Added::There => Err(InstallError::There(name)),
        Added::Cannot => Err(InstallError::ByHand { file: name, entry }),
    }
}

/// What became of a text.
#[derive(Debug, PartialEq, Eq)]
enum Added {
    Text(String),
    There,
    Cannot,
}

fn arguments(setting: &Setting<'_>) -> Vec<String> {
    ["mcp".to_owned(), "--workspace".to_owned(), setting.workspace.display().to_string()].into()
}

/// A TOML table at the end.
fn with_table(before: &str, setting: &Setting<'_>) -> (String, Added) {
    let mut table = toml::Table::new();
    table.insert("command".to_owned(), setting.program.display().to_string().into());
    table.insert("args".to_owned(), arguments(setting).into());
    let entry = format!("[mcp_servers.{NAME}]\n{table}");
    let Ok(old) = before.parse::<toml::Table>() else { return (entry, Added::Cannot) };
    let has = |table: &toml::Table| table.get("mcp_servers").and_then(|servers| servers.get(NAME)).is_some();
    if has(&old) {
        return (entry, Added::There);
    }
    let gap = if before.is_empty() || before.ends_with("\n\n") { "" } else { "\n" };
    let line = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    let after = format!("{before}{line}{gap}{entry}");
    let fine = after.parse::<toml::Table>().is_ok_and(|new| has(&new));
    (entry, if fine { Added::Text(after) } else { Added::Cannot })
}

/// An extension of Goose: a block below `extensions`, which is made at the end if it is not there.
fn with_extension(before: &str, setting: &Setting<'_>) -> (String, Added) {
    const KEY: &str = "extensions";
    let arguments: Vec<String> = arguments(setting).iter().map(|argument| quoted(argument)).collect();
    let block = |deep: &str| {
        let lines = [
            format!("{NAME}:"),
            format!("  name: {NAME}"),
            "  type: stdio".to_owned(),
            "  enabled: true".to_owned(),
            format!("  cmd: {}", quoted(&setting.program.display().to_string())),
            format!("  args: [{}]", arguments.join(", ")),
            "  envs: {}".to_owned(),
            "  timeout: 300".to_owned(),
        ];
        lines.map(|line| format!("{deep}{line}\n")).concat()
    };
    let entry = format!("{KEY}:\n{}", block("  "));
    if before.trim().is_empty() {
        return (entry.clone(), Added::Text(entry));
    }
    let Some(old) = yaml_mapping(before) else { return (entry, Added::Cannot) };
    if old.get(KEY).and_then(|all| all.get(NAME)).is_some() {
        return (entry, Added::There);
    }
    let after = match before.split_inclusive('\n').position(|line| line.trim_end() == format!("{KEY}:")) {
        None => format!("{before}{}{entry}", if before.ends_with('\n') { "" } else { "\n" }),
        Some(at) => {
            let lines: Vec<&str> = before.split_inclusive('\n').collect();
            let (above, below) = lines.split_at(at + 1);
            // As deep as what stands there.
            let first = below.iter().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
            let deep = first.map_or(0, |line| line.len() - line.trim_start_matches(' ').len());
            format!("{}{}{}", above.concat(), block(&" ".repeat(deep)), below.concat())
        }
    };
    let added = yaml_mapping(&block("")).unwrap_or_default();
    let mut wanted = old;
    match wanted.entry(KEY).or_insert_with(|| Value::Object(Map::new())) {
        Value::Object(extensions) => extensions.extend(added),
        _ => return (entry, Added::Cannot),
    }
    let fine = yaml_mapping(&after).is_some_and(|new| new == wanted);
    (entry, if fine { Added::Text(after) } else { Added::Cannot })
}

/// A text as YAML and JSON both read it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A member of the object that a client has its servers in.
fn with_member(before: &str, client: Client, setting: &Setting<'_>) -> (String, Added) {
    let (command, arguments) = (setting.program.display().to_string(), arguments(setting));
    let (key, server) = (
        client.servers(),
        match client {
            Client::Vscode | Client::Crush => json!({"type": "stdio", "command": command, "args": arguments}),
            Client::Opencode => {
                let whole: Vec<String> = std::iter::once(command).chain(arguments).collect();
                json!({"type": "local", "command": whole, "enabled": true})
            }
            _ => json!({"command": command, "args": arguments}),
        },
    );
    let entry = pretty(&json!({key: {NAME: server}}));
    if before.trim().is_empty() {
        return (entry.clone(), Added::Text(entry + "\n"));
    }
    // Places in the blanked text are places in the real one.
    let blanked = jsonc::blanked(before);
    let Ok(Value::Object(old)) = serde_json::from_str::<Value>(&blanked) else { return (entry, Added::Cannot) };
    if old.get(key).and_then(|servers| servers.get(NAME)).is_some() {
        return (entry, Added::There);
    }
    let mut wanted = old.clone();
    let servers = wanted.entry(key).or_insert_with(|| Value::Object(Map::new()));
    let Some(servers) = servers.as_object_mut() else { return (entry, Added::Cannot) };
    let is_first = servers.is_empty();
    servers.insert(NAME.to_owned(), server.clone());
    let comma = |is_first: bool| if is_first { "" } else { "," };
    // Right behind the brace that opens the object; what comes out must be the old text and our entry, or it is not done.
    let candidates: Vec<String> = match old.contains_key(key) {
        true => {
            let member = format!("\n    \"{NAME}\": {server}{}", comma(is_first));
            let opens = |at: usize| blanked[at..].find('{').map(|brace| at + brace + 1);
            let quoted = format!("\"{key}\"");
            let found = blanked.match_indices(&quoted).filter_map(|(at, _)| opens(at));
            found.map(|at| format!("{}{member}{}", &before[..at], &before[at..])).collect()
        }
        false => {
            let member = format!("\n  \"{key}\": {}{}", json!({NAME: server}), comma(old.is_empty()));
            blanked.find('{').map(|at| format!("{}{member}{}", &before[..=at], &before[at + 1..])).into_iter().collect()
        }
    };
    let wanted = Value::Object(wanted);
    match candidates.into_iter().find(|text| jsonc::value(text).as_ref() == Some(&wanted)) {
        Some(after) => (entry, Added::Text(after)),
        None => (entry, Added::Cannot),
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Added, Client, InstallError, Places, Setting, plan, with_extension, with_member, with_table};

    fn setting() -> Setting<'static> {
        Setting { program: Path::new("/bin/ringfence"), workspace: Path::new("/w") }
    }

    fn check(before: &str, expected: Option<&str>) {
        let (_, added) = with_member(before, Client::ClaudeCode, &setting());
        match expected {
            Some(text) => assert_eq!(added, Added::Text(text.to_owned()), "{before}"),
            None => assert!(!matches!(added, Added::Text(_)), "{before}: {added:?}"),
        }
    }

    #[test]
    fn an_entry_is_put_in_and_nothing_else_changes() {
        let server = r#"{"args":["mcp","--workspace","/w"],"command":"/bin/ringfence"}"#;
        check(
            "{\n  \"z\": 1,\n  \"mcpServers\": {\n    \"other\": {}\n  },\n  \"a\": 2\n}\n",
            Some(&format!(
                "{{\n  \"z\": 1,\n  \"mcpServers\": {{\n    \"ringfence\": {server},\n    \"other\": {{}}\n  }},\n  \"a\": 2\n}}\n"
            )),
        );
        check("{\"mcpServers\": {}}", Some(&format!("{{\"mcpServers\": {{\n    \"ringfence\": {server}}}}}")));
        check("{\"z\": {}}", Some(&format!("{{\n  \"mcpServers\": {{\"ringfence\":{server}}},\"z\": {{}}}}")));
        // The same word elsewhere is not the place.
        check(
            r#"{"note": "\"mcpServers\": {", "mcpServers": {"b": {}}}"#,
            Some(&format!(
                r#"{{"note": "\"mcpServers\": {{", "mcpServers": {{{}    "ringfence": {server},"b": {{}}}}}}"#,
                "\n"
            )),
        );
    }

    #[test]
    fn comments_and_lone_commas_stay_where_they_are() {
        let server = r#"{"args":["mcp","--workspace","/w"],"command":"/bin/ringfence"}"#;
        check(
            "// {\n{\n  // \"mcpServers\": {\n  \"mcpServers\": { // mine\n    \"b\": {},\n  },\n}\n",
            Some(&format!(
                "// {{\n{{\n  // \"mcpServers\": {{\n  \"mcpServers\": {{\n    \"ringfence\": {server}, // mine\n    \"b\": {{}},\n  }},\n}}\n"
            )),
        );
        check("{ /* é */ }", Some(&format!("{{\n  \"mcpServers\": {{\"ringfence\":{server}}} /* é */ }}")));
    }

    #[test]
    fn what_is_there_or_cannot_be_read_is_left_alone() {
        check(r#"{"mcpServers": {"ringfence": {}}}"#, None);
        check("{ // a comment }", None);
        check(r#"{"mcpServers": 7}"#, None);
        check("[]", None);
    }

    #[test]
    fn a_table_is_put_at_the_end() {
        let entry =
            "[mcp_servers.ringfence]\nargs = [\"mcp\", \"--workspace\", \"/w\"]\ncommand = \"/bin/ringfence\"\n";
        for (before, gap) in [("", ""), ("a = 1\n", "\n"), ("a = 1", "\n\n"), ("[mcp_servers.b]\nc = 1\n\n", "")] {
            let (_, added) = with_table(before, &setting());
            assert_eq!(added, Added::Text(format!("{before}{gap}{entry}")), "{before:?}");
        }
        assert_eq!(with_table("[mcp_servers.ringfence]\n", &setting()).1, Added::There);
        assert_eq!(with_table("a = ", &setting()).1, Added::Cannot);
    }

    #[test]
    fn an_extension_stands_among_the_others() {
        let block = |deep: &str| {
            let lines = [
                "ringfence:",
                "  name: ringfence",
                "  type: stdio",
                "  enabled: true",
                "  cmd: \"/bin/ringfence\"",
                "  args: [\"mcp\", \"--workspace\", \"/w\"]",
                "  envs: {}",
                "  timeout: 300",
            ];
            lines.map(|line| format!("{deep}{line}\n")).concat()
        };
        let two = block("  ");
        let cases = [
            (String::new(), format!("extensions:\n{two}")),
            ("A: b # c".to_owned(), format!("A: b # c\nextensions:\n{two}")),
            (
                "A: b\nextensions:\n    # mine\n    memory:\n        enabled: true\nZ: 1\n".to_owned(),
                format!("A: b\nextensions:\n{}    # mine\n    memory:\n        enabled: true\nZ: 1\n", block("    ")),
            ),
        ];
        for (before, after) in cases {
            assert_eq!(with_extension(&before, &setting()).1, Added::Text(after), "{before:?}");
        }
        assert_eq!(with_extension("extensions:\n  ringfence:\n    enabled: true\n", &setting()).1, Added::There);
        for other in ["extensions: {}\n", "extensions:\n", "a: [", "---\na: 1\n", "extensions: [1]\n"] {
            assert_eq!(with_extension(other, &setting()).1, Added::Cannot, "{other}");
        }
    }

    #[test]
    fn every_client_gets_what_its_documentation_asks_for() {
        let entry = |client: Client| {
            let directory = tempfile::tempdir().unwrap();
            let at = directory.path();
            let places = Places { workspace: Some(at), home: Some(at), config: Some(at) };
            let change = plan(client, &setting(), places).unwrap();
            change.write().unwrap();
            assert!(matches!(plan(client, &setting(), places), Err(InstallError::There(_))), "{client:?}");
            let file = change.file.strip_prefix(at).unwrap().display().to_string();
            format!("{file}: {}", change.after.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let arguments = r#""args": [ "mcp", "--workspace", "/w" ], "command": "/bin/ringfence""#;
        let command = r#""command": [ "/bin/ringfence", "mcp", "--workspace", "/w" ]"#;
        let cases = [
            (Client::ClaudeCode, format!(r#".mcp.json: {{ "mcpServers": {{ "ringfence": {{ {arguments} }} }} }}"#)),
            (
                Client::Codex,
                r#".codex/config.toml: [mcp_servers.ringfence] args = ["mcp", "--workspace", "/w"] command = "/bin/ringfence""#
                    .to_owned(),
            ),
            (
                Client::Crush,
                format!(r#"crush.json: {{ "mcp": {{ "ringfence": {{ {arguments}, "type": "stdio" }} }} }}"#),
            ),
            (
                Client::Goose,
                r#"goose/config.yaml: extensions: ringfence: name: ringfence type: stdio enabled: true cmd: "/bin/ringfence" args: ["mcp", "--workspace", "/w"] envs: {} timeout: 300"#
                    .to_owned(),
            ),
            (
                Client::Opencode,
                format!(r#"opencode.json: {{ "mcp": {{ "ringfence": {{ {command}, "enabled": true, "type": "local" }} }} }}"#),
            ),
            (
                Client::Vscode,
                format!(r#".vscode/mcp.json: {{ "servers": {{ "ringfence": {{ {arguments}, "type": "stdio" }} }} }}"#),
            ),
            (
                Client::Zed,
                format!(r#"zed/settings.json: {{ "context_servers": {{ "ringfence": {{ {arguments} }} }} }}"#),
            ),
        ];
        for (client, expected) in cases {
            assert_eq!(entry(client), expected);
        }
        let nowhere = Places { workspace: None, home: None, config: None };
        assert!(matches!(plan(Client::Codex, &setting(), nowhere), Err(InstallError::NoHome)));
    }
}
