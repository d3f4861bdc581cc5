//! Commands that only apply a patch: `apply_patch <<'EOF'`, as GPT models write them in place of a call of `apply_patch`.
//!
//! Codex takes such a command for the call, since no such program exists. The whole command is a here-document, or one behind
//! `cd DIRECTORY &&`. A command that does anything else besides is a command.

use serde::Deserialize;
use serde_json::json;

use ringfence_kernel::{CallForward, Dialect};

/// Names of the program that models know.
const PROGRAMS: [&str; 2] = ["apply_patch", "applypatch"];

/// In the dialect of these models, such a command is a call of `apply_patch`.
pub(super) const FORWARD: CallForward =
    CallForward { dialect: Dialect::Codex, from: "exec_command", to: "apply_patch", arguments: patch_arguments };

/// The part of a command's arguments that says what is done where.
#[derive(Deserialize)]
struct PatchCommandArgs {
    #[serde(alias = "command", alias = "code")]
    cmd: String,
    #[serde(default, alias = "cwd", alias = "dir_path")]
    workdir: Option<String>,
}

/// The arguments of the patch that a command is.
fn patch_arguments(arguments: &str) -> Option<String> {
    let PatchCommandArgs { cmd, workdir } = serde_json::from_str(arguments).ok()?;
    let (directory, patch) = split_command(&cmd)?;
    let workdir = match (workdir.filter(|workdir| !workdir.is_empty()), directory) {
        (Some(above), Some(below)) if !below.starts_with('/') => Some(format!("{above}/{below}")),
        (above, below) => below.map(str::to_owned).or(above),
    };
    Some(json!({"input": patch, "workdir": workdir}).to_string())
}

/// The directory and the here-document of a command, if that is all of it.
fn split_command(command: &str) -> Option<(Option<&str>, &str)> {
    let command = command.trim_start();
    let (directory, rest) = match command.strip_prefix("cd ") {
        Some(rest) => {
            let (directory, rest) = rest.split_once("&&")?;
            (Some(plain_word(directory.trim())?), rest.trim_start())
        }
        None => (None, command),
    };
    let rest = PROGRAMS.iter().find_map(|program| rest.strip_prefix(program))?;
    let (delimiter, body) = rest.trim_start().strip_prefix("<<")?.split_once('\n')?;
    let delimiter = plain_word(delimiter.trim())?;
    let (patch, rest) = split_at_line(body, delimiter)?;
    rest.trim().is_empty().then_some((directory, patch))
}

/// A word that the shell takes as it is, without its quotes.
fn plain_word(word: &str) -> Option<&str> {
    let quoted = ['\'', '"'].iter().find_map(|quote| word.strip_prefix(*quote)?.strip_suffix(*quote));
    let is_plain = |c: char| c.is_alphanumeric() || "_-./".contains(c) || (quoted.is_some() && c == ' ');
    let word = quoted.unwrap_or(word);
    (!word.is_empty() && word.chars().all(is_plain) && !word.starts_with('-')).then_some(word)
}

/// The lines above the one that is the delimiter, and what is below it.
fn split_at_line<'t>(text: &'t str, delimiter: &str) -> Option<(&'t str, &'t str)> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches(['\r', '\n']) == delimiter {
            return Some((&text[..at], &text[at + line.len()..]));
        }
        at += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::patch_arguments;

    fn arguments(call: &Value) -> Option<Value> {
        patch_arguments(&call.to_string()).map(|arguments| serde_json::from_str(&arguments).unwrap())
    }

    #[test]
    fn a_command_that_only_applies_a_patch_is_one() {
        let patch = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n";
        for (command, workdir) in [
            (format!("apply_patch <<'EOF'\n{patch}EOF"), None),
            (format!("apply_patch <<EOF\n{patch}EOF\n"), None),
            (format!("applypatch << \"PATCH\"\n{patch}PATCH\n\n"), None),
            (format!("cd src && apply_patch <<'EOF'\n{patch}EOF\n"), Some("src")),
            (format!("cd 'my src' && apply_patch <<'EOF'\n{patch}EOF\n"), Some("my src")),
        ] {
            let expected = json!({"input": patch, "workdir": workdir});
            assert_eq!(arguments(&json!({"cmd": command})), Some(expected), "{command}");
        }
        let command = format!("cd src && apply_patch <<'EOF'\n{patch}EOF\n");
        let within = arguments(&json!({"command": command, "cwd": "lib", "yield_time_ms": 10})).unwrap();
        assert_eq!(within["workdir"], "lib/src");
        let absolute = command.replace("src", "/workspace/src");
        assert_eq!(arguments(&json!({"cmd": absolute, "workdir": "lib"})).unwrap()["workdir"], "/workspace/src");
    }

    #[test]
    fn any_other_command_is_one() {
        for command in [
            "apply_patch",
            "apply_patch a.patch",
            "apply_patch --help",
            "ls; apply_patch <<'EOF'\n*** Begin Patch\nEOF",
            "cd src; apply_patch <<'EOF'\n*** Begin Patch\nEOF",
            "cd $HOME && apply_patch <<'EOF'\n*** Begin Patch\nEOF",
            "cd a b && apply_patch <<'EOF'\n*** Begin Patch\nEOF",
            "cd -P && apply_patch <<'EOF'\n*** Begin Patch\nEOF",
            "apply_patch <<'EOF' && cargo test\n*** Begin Patch\nEOF",
            "apply_patch <<'EOF'\n*** Begin Patch\nEOF\ncargo test\n",
            "apply_patch <<'EOF'\n*** Begin Patch\n",
            "apply_patcher <<'EOF'\n*** Begin Patch\nEOF",
            "apply_patch <<<EOF\n*** Begin Patch\nEOF",
        ] {
            assert_eq!(arguments(&json!({"cmd": command})), None, "{command}");
        }
        assert_eq!(patch_arguments("{"), None);
    }
}
