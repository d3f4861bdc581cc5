//! `ringfence init`: commented config templates for a workspace or a user.
//!
//! Existing files are not changed. Every key is commented out or has its default, so that the file alone changes
//! nothing; it shows the possible settings, beside those that fit this directory.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::approvals::CommandOutcome;
use crate::codec::io_text::IoText;
use crate::config::{CliFlags, Environment, WORKSPACE_FILE};

/// Every key with its default, as the repository has it.
const EXAMPLE: &str = include_str!("../../../../config/ringfence.example.toml");

#[derive(Debug, Args)]
pub(crate) struct InitOptions {
    /// Write your user config, which applies to every workspace, instead of the workspace's
    #[arg(long)]
    user: bool,
    /// Print the file instead of writing it
    #[arg(long)]
    print: bool,
}

/// Failure to write a template.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("`{0}` already exists and was not changed; `ringfence init --print` shows what would be written")]
    AlreadyExists(String),
    #[error("cannot write `{}`: {}", .0, IoText(.1))]
    Write(String, std::io::Error),
    #[error("no config directory: set HOME or XDG_CONFIG_HOME")]
    NoHome,
}

pub(crate) fn init(
    flags: &CliFlags,
    environment: &Environment,
    options: &InitOptions,
) -> Result<CommandOutcome, InitError> {
    let workspace = match &flags.workspace {
        Some(directory) => environment.current.join(directory),
        None => environment.current.clone(),
    };
    let (text, next) = match options.user {
        true => (comment_out_keys(EXAMPLE), NEXT_FOR_USER),
        false => (workspace_template(&workspace), NEXT_FOR_WORKSPACE),
    };
    let location = if flags.workspace.is_some() && !options.user { " in that directory" } else { "" };
    if options.print {
        return Ok(CommandOutcome::Print(text));
    }
    let (shown, file) = match options.user {
        true => {
            let directory = environment.config.as_ref().ok_or(InitError::NoHome)?;
            let shown = "config.toml".to_owned();
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| InitError::Write(shown.clone(), error))?;
            (shown.clone(), directory.join(shown))
        }
        false => (WORKSPACE_FILE.to_owned(), workspace.join(WORKSPACE_FILE)),
    };
    write_new(&file, &text).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => InitError::AlreadyExists(shown.clone()),
        _ => InitError::Write(shown.clone(), error),
    })?;
    Ok(CommandOutcome::Print(format!(
        "Wrote `{shown}`. All settings are still at their defaults.\n\nNext{location}{next}"
    )))
}

/// The file makes the directory the workspace of what is typed in it.
const NEXT_FOR_WORKSPACE: &str = ":
  ringfence policy show               show the effective policy
  ringfence doctor                    check sandbox support
  ringfence mcp install claude-code   add the tools to your agent (or codex, zed, …)
  ringfence agent \"what is here?\"     or run the built-in agent
";

const NEXT_FOR_USER: &str = ": uncomment the settings to change, then try
  ringfence policy show                 show the effective policy
  ringfence agent --health              check the connection to your model
";

fn write_new(file: &PathBuf, text: &str) -> std::io::Result<()> {
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o644).open(file)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()
}

/// The example with every key commented out: tables stay, and are empty. The dialect stays open, as it is without a file:
/// older files without the key have `standard`.
fn comment_out_keys(example: &str) -> String {
    let comment = |line: &str| match line {
        "dialect = \"standard\"" => "dialect = \"auto\"\n".to_owned(),
        line if line.is_empty() || line.starts_with(['#', '[']) => format!("{line}\n"),
        line => format!("# {line}\n"),
    };
    example.lines().map(comment).collect()
}

/// Kind of a project, for suggested rules.
struct ProjectKind {
    /// The file by which it is known.
    marker_file: &'static str,
    rule: &'static str,
}

const PROJECT_KINDS: [ProjectKind; 5] = [
    ProjectKind {
        marker_file: "Cargo.toml",
        rule: r#"# [[rules]]
# name = "lock file"
# decision = "ask"
# effect = "change"
# path = "Cargo.lock"
# because = "cargo writes it"
"#,
    },
    ProjectKind {
        marker_file: "package.json",
        rule: r#"# [[rules]]
# name = "installed packages"
# decision = "deny"
# effect = "change"
# path = "node_modules/**"
# because = "change package.json instead"
"#,
    },
    ProjectKind {
        marker_file: "pyproject.toml",
        rule: r#"# [[rules]]
# name = "virtual environment"
# decision = "deny"
# effect = "change"
# path = ".venv/**"
# because = "change pyproject.toml instead"
"#,
    },
    ProjectKind {
        marker_file: "go.mod",
        rule: r#"# [[rules]]
# name = "sums"
# decision = "ask"
# effect = "change"
# path = "go.sum"
# because = "go writes it"
"#,
    },
    ProjectKind {
        marker_file: "Dockerfile",
        rule: r#"# [[rules]]
# name = "image"
# decision = "ask"
# effect = "change"
# path = "Dockerfile"
# because = "it is built and run on other machines"
"#,
    },
];

fn workspace_template(workspace: &Path) -> String {
    let here = PROJECT_KINDS.iter().filter(|kind| workspace.join(kind.marker_file).symlink_metadata().is_ok());
    let rules: Vec<&str> = here.map(|kind| kind.rule).collect();
    let rules = match rules.is_empty() {
        true => GENERAL_RULE.to_owned(),
        false => rules.join("#\n"),
    };
    format!("{TEMPLATE_HEADER}{rules}")
}

const TEMPLATE_HEADER: &str = r#"# Settings for agents in this directory. They can only tighten the user's own settings: `allow` rules in this file take
# effect once the user trusts it (`ringfence policy trust`), until it changes.
#
# All keys and rules: `ringfence init --user --print`. To test a decision: `ringfence policy explain TOOL JSON`.

# What tools, and programs that they run, may do without approval: "ask" (approval before anything is overwritten or
# deleted), "edits" (changes inside the workspace that can be undone) or "read-only".
# preset = "ask"

[limits]
# max_write_bytes = 1048576
# max_run_duration = "2m"

[tools]
# Offer only these tools (default: all).
# allow = ["read_file", "list_directory", "search_files"]
# Never offer these.
deny = []

# Rules. A `deny` from any source is final.
"#;

const GENERAL_RULE: &str = r#"# [[rules]]
# name = "generated"
# decision = "deny"
# effect = "change"
# path = "dist/**"
# because = "edit the sources instead"
"#;

#[cfg(test)]
mod tests {
    use super::{EXAMPLE, PROJECT_KINDS, comment_out_keys, workspace_template};

    /// The text with its keys and rules brought to life.
    fn uncommented(text: &str) -> String {
        let key = |line: &str| line.contains(" = ") || line.starts_with("[[");
        let lines = text.lines().map(|line| match line.strip_prefix("# ").filter(|rest| key(rest)) {
            Some(rest) if !rest.contains('`') => rest,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_template_parses_with_and_without_its_comments() {
        let directory = tempfile::tempdir().unwrap();
        for kind in &PROJECT_KINDS {
            std::fs::write(directory.path().join(kind.marker_file), "").unwrap();
        }
        let text = workspace_template(directory.path());
        assert_eq!(text.matches("[[rules]]").count(), PROJECT_KINDS.len());
        for text in [text.clone(), uncommented(&text), workspace_template(&directory.path().join("none"))] {
            let read = toml::from_str::<toml::Table>(&text);
            assert!(read.is_ok(), "{text}\n{read:?}");
        }
    }

    #[test]
    fn the_example_without_its_keys_leaves_the_dialect_open_and_says_nothing_else() {
        let mut table: toml::Table = toml::from_str(&comment_out_keys(EXAMPLE)).unwrap();
        assert_eq!(table.remove("dialect"), Some(toml::Value::from("auto")));
        assert!(table.values().all(|value| value.as_table().is_some_and(is_empty_config)), "{table:?}");
    }

    fn is_empty_config(table: &toml::Table) -> bool {
        table.values().all(|value| value.as_table().is_some_and(is_empty_config))
    }
}
