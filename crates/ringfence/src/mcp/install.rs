//! Telling a client about this server: the entry in its settings, and how its own open gates are closed.
//!
//! An entry is put into the text of the file as it is, and nothing else of it changes: where that cannot be done safely, the
//! entry is printed for the user to put in. Nothing is written that was not shown before.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value, json};

/// What our entry is called.
const NAME: &str = "ringfence";

const LONGEST_FILE: u64 = 4 << 20;

/// A client that is known well enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Client {
    ClaudeCode,
    Codex,
    Crush,
    Opencode,
    Vscode,
}

/// Why nothing was planned or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("the home directory is not known, so neither is the client's file")]
    NoHome,
    #[error("{0} cannot be read")]
    Read(String, #[source] io::Error),
    #[error("{0} cannot be written")]
    Write(String, #[source] io::Error),
    #[error("{0} has an entry `{NAME}` already; take it out first to have a new one")]
    There(String),
    #[error("{file} is not written in a way that can be added to safely; put this in yourself:\n\n{entry}")]
    ByHand { file: String, entry: String },
}

/// Where a client runs, and what it shall start.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) program: &'a Path,
    pub(crate) workspace: &'a Path,
    pub(crate) home: Option<&'a Path>,
}

/// One file, and what would be in it.
#[derive(Debug)]
pub(crate) struct Change {
    file: PathBuf,
    /// What is added.
    entry: String,
    after: String,
    /// How the client's own tools are turned off.
    advice: &'static str,
}

impl Change {
    /// What would be done, for the user to read.
    pub(crate) fn shown(&self) -> String {
        format!("in {}:\n\n{}\n\n{}\n", self.file.display(), self.entry, self.advice)
    }

    /// Writes it, all or nothing.
    pub(crate) fn write(&self) -> Result<(), InstallError> {
        let name = self.file.display().to_string();
        let write = || {
            let directory = self.file.parent().ok_or(io::ErrorKind::InvalidInput)?;
            fs::create_dir_all(directory)?;
            let new = directory.join(format!(".{NAME}-{}.tmp", std::process::id()));
            let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
            file.write_all(self.after.as_bytes())?;
            file.sync_all()?;
            // What a user made private stays so.
            if let Ok(old) = fs::metadata(&self.file) {
                file.set_permissions(old.permissions())?;
            }
            fs::rename(&new, &self.file)
        };
        write().map_err(|error| InstallError::Write(name, error))
    }
}

/// Finds out what would have to be written for a client.
pub(crate) fn plan(client: Client, setting: &Setting<'_>) -> Result<Change, InstallError> {
    let file = file_of(client, setting)?;
    let name = file.display().to_string();
    let before = match read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(InstallError::Read(name, error)),
    };
    let (entry, after) = match client {
        Client::Codex => with_table(&before, setting),
        _ => with_member(&before, client, setting),
    };
    match after {
        Added::Text(after) => Ok(Change { file, entry, after, advice: advice(client) }),
        Added::There => Err(InstallError::There(name)),
        Added::Cannot => Err(InstallError::ByHand { file: name, entry }),
    }
}

fn read(file: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    fs::File::open(file)?.take(LONGEST_FILE).read_to_string(&mut text)?;
    Ok(text)
}

fn file_of(client: Client, setting: &Setting<'_>) -> Result<PathBuf, InstallError> {
    let home = |path: &str| setting.home.map(|home| home.join(path)).ok_or(InstallError::NoHome);
    match client {
        Client::ClaudeCode => Ok(setting.workspace.join(".mcp.json")),
        Client::Vscode => Ok(setting.workspace.join(".vscode/mcp.json")),
        Client::Opencode => Ok(setting.workspace.join("opencode.json")),
        Client::Crush => Ok(setting.workspace.join("crush.json")),
        Client::Codex => home(".codex/config.toml"),
    }
}

fn advice(client: Client) -> &'static str {
    match client {
        Client::ClaudeCode => {
            "A fence beside an open gate fences nothing. Put this into .claude/settings.json to turn off the tools that go \
             around it:\n\n{\"permissions\": {\"deny\": [\"Bash\", \"Read\", \"Edit\", \"Write\", \"NotebookEdit\"]}}"
        }
        Client::Opencode => {
            "A fence beside an open gate fences nothing. Put this into opencode.json to turn off the tools that go around \
             it:\n\n\"tools\": {\"bash\": false, \"read\": false, \"edit\": false, \"write\": false, \"patch\": false}"
        }
        Client::Codex | Client::Crush | Client::Vscode => {
            "A fence beside an open gate fences nothing: turn off the client's own file and shell tools in its settings."
        }
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

/// A member of the object that a client has its servers in.
fn with_member(before: &str, client: Client, setting: &Setting<'_>) -> (String, Added) {
    let (command, arguments) = (setting.program.display().to_string(), arguments(setting));
    let (key, server) = match client {
        Client::ClaudeCode => ("mcpServers", json!({"command": command, "args": arguments})),
        Client::Vscode => ("servers", json!({"type": "stdio", "command": command, "args": arguments})),
        Client::Crush => ("mcp", json!({"type": "stdio", "command": command, "args": arguments})),
        Client::Opencode | Client::Codex => {
            let whole: Vec<String> = std::iter::once(command).chain(arguments).collect();
            ("mcp", json!({"type": "local", "command": whole, "enabled": true}))
        }
    };
    let entry = pretty(&json!({key: {NAME: server}}));
    if before.trim().is_empty() {
        return (entry.clone(), Added::Text(entry + "\n"));
    }
    let Ok(Value::Object(old)) = serde_json::from_str::<Value>(before) else { return (entry, Added::Cannot) };
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
            let opens = |at: usize| before[at..].find('{').map(|brace| at + brace + 1);
            let quoted = format!("\"{key}\"");
            let found = before.match_indices(&quoted).filter_map(|(at, _)| opens(at));
            found.map(|at| format!("{}{member}{}", &before[..at], &before[at..])).collect()
        }
        false => {
            let member = format!("\n  \"{key}\": {}{}", json!({NAME: server}), comma(old.is_empty()));
            before.find('{').map(|at| format!("{}{member}{}", &before[..=at], &before[at + 1..])).into_iter().collect()
        }
    };
    let wanted = Value::Object(wanted);
    let is_it = |text: &String| serde_json::from_str::<Value>(text).is_ok_and(|value| value == wanted);
    match candidates.into_iter().find(is_it) {
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

    use super::{Added, Client, InstallError, Setting, plan, with_member, with_table};

    fn setting() -> Setting<'static> {
        Setting { program: Path::new("/bin/ringfence"), workspace: Path::new("/w"), home: None }
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
    fn what_is_there_or_cannot_be_read_is_left_alone() {
        check(r#"{"mcpServers": {"ringfence": {}}}"#, None);
        check("{ // a comment\n}", None);
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
    fn a_plan_is_written_whole_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let setting = Setting { workspace: directory.path(), ..setting() };
        for client in [Client::ClaudeCode, Client::Vscode, Client::Crush, Client::Opencode] {
            let change = plan(client, &setting).unwrap();
            assert!(change.shown().contains("/bin/ringfence"));
            change.write().unwrap();
            assert!(matches!(plan(client, &setting), Err(InstallError::There(_))), "{client:?}");
        }
        assert!(matches!(plan(Client::Codex, &setting), Err(InstallError::NoHome)));
    }
}
