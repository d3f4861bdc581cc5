//! Command-line arguments: commands, flags, value parsers and help texts.
//!
//! Manual pages and shell completions are generated from these types. Not here: running the commands (`cli.rs`).

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use clap::error::ErrorKind;
use clap::{Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ringfence_audit::KnownHead;
use ringfence_kernel::{Dialect, Preset, Taint};

use crate::acp::AcpOptions;
use crate::cli::agent::AgentOptions;
use crate::cli::approvals::{ApprovalsCommand, GrantsCommand};
use crate::cli::demo::DemoOptions;
use crate::cli::init::InitOptions;
use crate::cli::serve::{McpCommand, ServeOptions, TokenCommand};
use crate::cli::sessions::SessionsCommand;
use crate::config::ApprovalMode;
use crate::config::{CliFlags, MountSetting};

/// The version and the commit that was built, from `build.rs`.
const BUILD: &str = env!("RINGFENCE_BUILD");

/// The commands as `ringfence --help` groups them.
const COMMAND_GROUPS: [(&str, &[&str]); 5] = [
    ("Set-up commands", &["demo", "init", "doctor", "completions", "man"]),
    ("Agent commands", &["mcp", "agent", "acp", "serve", "token", "sessions"]),
    ("Tool commands", &["call", "tools", "workflow"]),
    ("Change commands", &["log", "diff", "undo", "redo"]),
    ("Policy and audit commands", &["policy", "approvals", "audit"]),
];

/// Commands that only some of the global flags have an effect on, and those flags. They parse all of them.
const EFFECTIVE_FLAGS: [(&str, &[&str]); 7] = [
    ("demo", &[]),
    ("init", &["workspace", "config"]),
    ("completions", &[]),
    ("man", &[]),
    ("token", &["config"]),
    ("approvals", &["config"]),
    ("audit", &["config"]),
];

/// File, shell and web tools for AI agents: confined to a workspace, with approval and undo.
#[derive(Debug, Parser)]
#[command(
    name = "ringfence",
    version = BUILD,
    after_help = "\
Examples:
  ringfence demo                                    see a session; needs no model
  ringfence mcp install claude-code --workspace .   add the tools to Claude Code
  ringfence agent \"summarize the notes\"             run the built-in agent here
  ringfence serve                                   start the web UI and the API
  ringfence undo                                    undo the last change"
)]
pub(crate) struct CliArgs {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

impl CliArgs {
    /// Parses the process's arguments. Exits after help, the version or an error.
    pub(crate) fn parse_or_exit() -> Self {
        Self::try_parse().unwrap_or_else(|error| {
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand) {
                // The tree for help is built only when it is shown.
                help_command().get_matches();
            }
            error.exit()
        })
    }
}

/// The command tree for `--help`: commands in groups, and no global flags without an effect.
fn help_command() -> Command {
    let mut command = CliArgs::command();
    command.build();
    let command = command.help_template(help_template(&CliArgs::command()));
    let command = EFFECTIVE_FLAGS.into_iter().fold(command, |command, (name, flags)| {
        command.mut_subcommand(name, |command| hide_global_flags(command, flags))
    });
    describe_help(command)
}

fn help_template(command: &Command) -> String {
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (heading, names) in COMMAND_GROUPS {
        template.push_str(&format!("{heading}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about).cloned().unwrap_or_default();
            template.push_str(&format!("  {name:<11}  {about}\n"));
        }
        template.push('\n');
    }
    template + "Options:\n{options}{after-help}"
}

fn hide_global_flags(command: Command, shown: &[&str]) -> Command {
    let hidden = |id: &str| !shown.contains(&id) && CommonOptions::has_flag(id);
    let command = command.mut_args(|arg| match hidden(arg.get_id().as_str()) {
        true => arg.hide(true),
        false => arg,
    });
    command.mut_subcommands(|command| hide_global_flags(command, shown))
}

/// Words the text of every `help` command as the rest is worded.
fn describe_help(command: Command) -> Command {
    command.mut_subcommands(|command| match command.get_name() {
        "help" => command.about("Print this message or the help of a command"),
        _ => describe_help(command),
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    #[command(flatten)]
    Standalone(StandaloneCommand),
    #[command(flatten)]
    Configured(ConfiguredCommand),
}

/// Commands that read no config.
#[derive(Debug, Subcommand)]
pub(crate) enum StandaloneCommand {
    /// Show a session with an attempted escape, an approval and an undo.
    #[command(after_help = "\
The demo runs in a temporary workspace with a scripted model. It needs no API key and leaves
nothing behind.")]
    Demo(DemoOptions),
    /// Write a commented config file; never overwrites one.
    #[command(after_help = "\
Examples:
  ringfence init           write `ringfence.toml` in the workspace
  ringfence init --user    write your own config, with every key
  ringfence init --print   print the file only")]
    Init(InitOptions),
    /// Print a shell completion script.
    #[command(after_help = "\
Example:
  ringfence completions bash > ~/.local/share/bash-completion/completions/ringfence")]
    Completions {
        /// The shell to generate the script for.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write manual pages into a directory.
    Man {
        /// An existing directory.
        directory: PathBuf,
    },
}

/// Commands that read the config.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfiguredCommand {
    /// Call one tool and print the reply.
    #[command(after_help = "\
Examples:
  ringfence call read_file '{\"path\": \"README.md\"}'
  echo '{\"path\": \"a.txt\", \"content\": \"text\"}' | ringfence call write_file -")]
    Call {
        /// The tool, such as `read_file`.
        tool: String,
        /// The arguments as a JSON object; `-` reads them from standard input.
        #[arg(default_value = "{}")]
        json: String,
    },
    /// Run the built-in agent on a prompt, or chat with it.
    #[command(after_help = "\
Examples:
  ringfence agent                             chat
  ringfence agent \"fix the failing test\"      one prompt
  ringfence agent --resume -p \"now the docs\"  continue the last session
  ringfence agent --health                    check the model

Exit codes:
  0    the agent answered
  1    the run ended without an answer
  3    the model is unavailable
  130  the run was cancelled")]
    Agent(AgentOptions),
    /// Serve the agent to an editor (Agent Client Protocol on stdio).
    Acp(AcpOptions),
    #[command(flatten)]
    Changes(ChangesCommand),
    /// List and answer pending approval requests.
    Approvals {
        #[command(subcommand)]
        command: ApprovalsCommand,
    },
    /// Check sandbox support, and find clients that bypass Ringfence.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show and verify the audit log.
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Serve the tools to an agent (Model Context Protocol on stdio).
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "\
Examples:
  ringfence mcp --workspace .                               what a client starts
  ringfence mcp install claude-code --workspace .           show the change to its settings
  ringfence mcp install claude-code --workspace . --yes     make it"
    )]
    Mcp {
        #[command(subcommand)]
        command: Option<McpCommand>,
        /// How long a call waits for approval before it is deferred and its client must call again. Most clients time
        /// out after a minute.
        #[arg(long, value_name = "SECONDS", default_value_t = 25)]
        wait: u64,
        /// Return structured content with output schemas, for programs, instead of plain text for models.
        #[arg(long)]
        structured: bool,
    },
    /// Serve the web UI, the HTTP API and MCP over HTTP.
    #[command(after_help = "\
Examples:
  ringfence serve                                           on loopback, with a sign-in link
  ringfence serve --public-url https://rf.example.org       behind a reverse proxy with TLS")]
    Serve(ServeOptions),
    /// Create and revoke access tokens for `ringfence serve`.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// List, show and export agent sessions.
    Sessions {
        #[command(subcommand)]
        command: SessionsCommand,
    },
    /// Create workflow runs.
    Workflow {
        #[command(subcommand)]
        command: WorkflowCommand,
    },
    /// Show, explain and trust policy rules and grants.
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Print the tools and their schemas.
    Tools {
        /// The output format.
        #[arg(long, value_enum, default_value_t = ToolListFormat::List)]
        format: ToolListFormat,
    },
}

impl ConfiguredCommand {
    /// Whether it depends on which directory is the workspace.
    pub(crate) fn works_in_workspace(&self) -> bool {
        match self {
            Self::Call { .. }
            | Self::Agent(_)
            | Self::Acp(_)
            | Self::Changes(_)
            | Self::Mcp { .. }
            | Self::Serve(_)
            | Self::Workflow { .. }
            | Self::Policy { .. }
            | Self::Sessions { .. }
            | Self::Doctor { .. }
            | Self::Tools { .. } => true,
            Self::Approvals { .. } | Self::Audit { .. } | Self::Token { .. } => false,
        }
    }
}

/// Commands that list, show, undo and redo changes.
#[derive(Debug, Subcommand)]
pub(crate) enum ChangesCommand {
    /// List changes in the workspace, newest first.
    Log {
        /// Only changes of this session.
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the diff of a change.
    Diff {
        /// The change id, from `ringfence log`.
        change: String,
    },
    /// Undo the last change, a named one, or many at once.
    #[command(after_help = "\
Undo restores all files or none. It refuses if a file changed since, unless `--force` is given.

Examples:
  ringfence undo --dry-run                       preview
  ringfence undo                                 the last change
  ringfence undo --session ID                    every change of a session
  ringfence undo --since 2026-01-31T12:00:00Z    every change since then")]
    Undo {
        /// The change id, from `ringfence log`.
        #[arg(conflicts_with_all = ["session", "since"])]
        change: Option<String>,
        /// Undo every change of a session.
        #[arg(long, value_name = "ID", conflicts_with = "since")]
        session: Option<String>,
        /// Undo every change since a time, such as `2026-01-31T12:00:00Z`.
        #[arg(long, value_name = "TIME", value_parser = time)]
        since: Option<String>,
        /// Show what would be undone, without doing it.
        #[arg(long)]
        dry_run: bool,
        /// Undo even if files changed since. Their current contents are kept for `redo`, unless they are too large.
        #[arg(long)]
        force: bool,
    },
    /// Redo the last undo, or a named one.
    Redo {
        /// The id of the undo, from `ringfence log`.
        change: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Print the records, oldest first.
    Show {
        /// Print the records as stored, as JSON Lines.
        #[arg(long)]
        json: bool,
        /// Keep printing new records.
        #[arg(long)]
        follow: bool,
    },
    /// Verify every record, the hash chain and the signed heads; exits with 1 if the log was changed.
    Verify {
        /// Also compare with a head that was printed by `ringfence audit head`.
        #[arg(long, value_name = "NUMBER:HASH", value_parser = known_head)]
        head: Option<KnownHead>,
        /// Also compare with a file of signed heads, as written by `audit_heads` in the config.
        #[arg(long, value_name = "FILE")]
        heads: Option<PathBuf>,
    },
    /// Print the current head of the log, to be stored on another machine.
    Head,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Explain how a call would be decided and by which rule, without running it.
    #[command(after_help = "\
Example:
  ringfence policy explain write_file '{\"path\": \"README.md\", \"content\": \"\"}'")]
    Explain {
        /// The tool, such as `write_file`.
        tool: String,
        /// The arguments as a JSON object; `-` reads them from standard input.
        #[arg(default_value = "{}")]
        json: String,
        /// Assume a session with this taint (repeatable).
        #[arg(long, value_name = "TAINT", value_parser = one_of(Taint::ALL.map(Taint::name), Taint::from_name))]
        when: Vec<Taint>,
    },
    /// Print every rule, in order of precedence.
    Show,
    /// List and revoke persistent grants.
    Grants {
        #[command(subcommand)]
        command: Option<GrantsCommand>,
    },
    /// Trust the allow rules of the workspace's ringfence.toml until it changes; asks for confirmation at this terminal.
    Trust {
        /// Revoke the trust.
        #[arg(long)]
        revoke: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkflowCommand {
    /// Create a run and print its id: `--run` sets the id, and `--graph` the workflow graph that it follows.
    New,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct CommonOptions {
    /// The directory that tools work in; created if missing.
    #[arg(long, global = true, value_name = "DIR")]
    workspace: Option<String>,
    /// Mount another directory as `@ALIAS/…`, read-only unless `rw` (repeatable).
    #[arg(long, global = true, value_name = "ALIAS=DIR[:ro|rw]", value_parser = MountSetting::parse)]
    mount: Vec<MountSetting>,
    /// The workflow run whose state is `@state`.
    #[arg(long, global = true, value_name = "ID")]
    run: Option<String>,
    /// The graph that a new run follows, on a read-only mount.
    #[arg(long, global = true, value_name = "@PKG/FILE")]
    graph: Option<String>,
    /// The agent, defined in the config, whose limits apply.
    #[arg(long, global = true, value_name = "ID")]
    agent: Option<String>,
    /// The tool names and formats to use.
    #[arg(
        long, global = true, value_name = "NAME",
        value_parser = one_of(Dialect::ALL.map(Dialect::name), Dialect::from_name)
    )]
    dialect: Option<Dialect>,
    /// Use this config file instead of your own.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What may be done without approval.
    #[arg(
        long, global = true, value_name = "NAME",
        value_parser = one_of(Preset::ALL.map(Preset::name), Preset::from_name)
    )]
    preset: Option<Preset>,
    /// How to answer approval requests; `always` requires `unattended = true` in your config.
    #[arg(
        long, global = true, value_name = "HOW",
        value_parser = one_of(ApprovalMode::ALL.map(ApprovalMode::name), ApprovalMode::from_name)
    )]
    approve: Option<ApprovalMode>,
    /// Allow no changes; the same as `--preset read-only`.
    #[arg(long, global = true, conflicts_with = "preset")]
    read_only: bool,
    /// Offer only this tool (repeatable).
    #[arg(long, global = true, value_name = "TOOL")]
    allow_tool: Vec<String>,
    /// Do not offer this tool (repeatable).
    #[arg(long, global = true, value_name = "TOOL")]
    deny_tool: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ToolListFormat {
    /// The `tools` list of OpenAI's chat completions.
    Openai,
    /// The function definitions only: name, description, parameters.
    Functions,
    /// JSON with reply schemas, effects and whether calls require approval.
    Full,
    /// One line per tool, for people.
    List,
    /// The system prompt text about the tools, paths and limits.
    Prompt,
}

impl CommonOptions {
    fn has_flag(id: &str) -> bool {
        Self::augment_args(Command::default()).get_arguments().any(|arg| arg.get_id() == id)
    }

    pub(crate) fn flags(&self) -> CliFlags {
        CliFlags {
            config: self.config.clone(),
            workspace: self.workspace.clone(),
            dialect: self.dialect,
            preset: if self.read_only { Some(Preset::ReadOnly) } else { self.preset },
            allow: self.allow_tool.clone(),
            deny: self.deny_tool.clone(),
            mounts: self.mount.clone(),
            agent: self.agent.clone(),
            run: self.run.clone(),
            graph: self.graph.clone(),
            approve: self.approve,
        }
    }
}

fn known_head(text: &str) -> Result<KnownHead, String> {
    let parsed = text.trim().split_once(':').and_then(|(number, hash)| Some((number.parse().ok()?, hash)));
    match parsed {
        Some((number @ 1.., hash)) if hash.len() == 64 => Ok(KnownHead { number, hash: hash.to_owned() }),
        _ => Err("expected NUMBER:HASH, as printed by `ringfence audit head`".to_owned()),
    }
}

fn time(text: &str) -> Result<String, String> {
    match humantime::parse_rfc3339_weak(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("expected a time such as `2026-01-31T12:00:00Z`".to_owned()),
    }
}

/// A parser of names that lists them in help and errors.
fn one_of<T, const N: usize>(names: [&'static str; N], from_name: fn(&str) -> Option<T>) -> ValueParser
where
    T: Clone + Send + Sync + 'static,
{
    let parser = PossibleValuesParser::new(names);
    ValueParser::new(parser.try_map(move |name: String| from_name(&name).ok_or("unknown name")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn command_tree_is_consistent() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn help_groups_name_every_command_once() {
        let command = CliArgs::command();
        let grouped: Vec<&str> = COMMAND_GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let defined: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        assert_eq!(grouped.len(), defined.len(), "{grouped:?}");
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), defined);
    }

    #[test]
    fn flags_without_effect_are_hidden_and_still_parsed() {
        let help = |name: &str| {
            let mut command = help_command();
            command.find_subcommand_mut(name).unwrap().render_help().to_string()
        };
        let cases = [
            ("man", "--workspace", false),
            ("init", "--workspace", true),
            ("init", "--run", false),
            ("call", "--run", true),
        ];
        for (name, flag, shown) in cases {
            assert_eq!(help(name).contains(flag), shown, "{name} {flag}");
        }
        assert!(CliArgs::try_parse_from(["ringfence", "man", "x", "--workspace", "y"]).is_ok());
    }

    #[test]
    fn help_fits_a_terminal_and_names_every_command() {
        let help = help_command().term_width(80).render_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(help.contains("Create and revoke access tokens for `ringfence serve`"), "{help}");
    }
}
