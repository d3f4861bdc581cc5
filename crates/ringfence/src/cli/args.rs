//! Command-line arguments: commands, flags, value parsers and help texts.
//!
//! Manual pages and shell completions are generated from these types. Not here: running the commands (`mod.rs`).

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ringfence_audit::ExternalAuditHead;
use ringfence_kernel::{Dialect, Taint};

use crate::acp::AcpOptions;
use crate::cli::agent::AgentOptions;
use crate::cli::approvals::{ApprovalsCommand, GrantsCommand};
use crate::cli::common_options::{CommonOptions, one_of};
use crate::cli::demo::DemoOptions;
use crate::cli::gc::GcOptions;
use crate::cli::init::InitOptions;
use crate::cli::layers::LayersCommand;
use crate::cli::run::RunOptions;
use crate::cli::serve::{McpCommand, ServeOptions, TokenCommand};
use crate::cli::sessions::SessionsCommand;
use crate::cli::why::WhyOptions;

/// The version and the commit that was built, from `build.rs`.
const BUILD: &str = env!("RINGFENCE_BUILD");

/// The commands as `ringfence --help` groups them.
const COMMAND_GROUPS: [(&str, &[&str]); 5] = [
    ("Set-up commands", &["demo", "init", "doctor", "completions", "man"]),
    ("Agent commands", &["run", "mcp", "agent", "acp", "serve", "token", "sessions"]),
    ("Tool commands", &["call", "tools", "workflow"]),
    ("Change commands", &["layers", "gc", "log", "diff", "undo", "redo"]),
    ("Policy and audit commands", &["policy", "approvals", "audit", "why"]),
];

/// Commands that only some of the global flags have an effect on, and those flags. They parse all of them. A command
/// without a line has those of the command above it.
const EFFECTIVE_FLAGS: [(&str, &[&str]); 25] = [
    ("demo", &[]),
    ("init", &["workspace", "config"]),
    ("doctor", &["workspace", "config"]),
    ("completions", &[]),
    ("man", &[]),
    ("run", &["workspace", "config", "preset", "read_only", "approve"]),
    ("layers", &["workspace", "config"]),
    ("gc", &["config"]),
    ("mcp install", &["workspace", "config"]),
    ("token", &["config"]),
    ("sessions", &["workspace", "config"]),
    ("tools", OFFER_FLAGS),
    ("workflow", &["workspace", "mount", "workflow_run", "graph", "config"]),
    ("log", CHANGE_FLAGS),
    ("diff", CHANGE_FLAGS),
    ("undo", CHANGE_FLAGS),
    ("redo", CHANGE_FLAGS),
    ("policy", &["workspace", "config"]),
    ("policy explain", OFFER_FLAGS),
    ("policy show", &["workspace", "workflow_run", "graph", "agent", "config", "preset", "read_only"]),
    ("policy grants", &["config"]),
    ("policy trust", &["workspace", "config"]),
    ("approvals", &["config"]),
    ("audit", &["config"]),
    ("why", &["config"]),
];

/// Where a session's tools and rules are shown and no call is made: nothing is approved.
const OFFER_FLAGS: &[&str] = &[
    "workspace",
    "mount",
    "workflow_run",
    "graph",
    "agent",
    "dialect",
    "config",
    "preset",
    "read_only",
    "allow_tool",
    "deny_tool",
    "toolset",
];

/// A person views and reverts changes with every tool, whatever agents have.
const CHANGE_FLAGS: &[&str] = &["workspace", "mount", "workflow_run", "graph", "config"];

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
    describe_help(command.mut_subcommands(|command| hide_global_flags(command, "", None)))
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

/// Hides the global flags without an effect on a command, and on those below it. `shown` are the flags of the command above.
fn hide_global_flags(command: Command, above: &str, shown: Option<&'static [&'static str]>) -> Command {
    let path = format!("{above} {}", command.get_name()).trim_start().to_owned();
    let shown = EFFECTIVE_FLAGS.iter().find(|(name, _)| *name == path).map(|(_, flags)| *flags).or(shown);
    let hidden = |id: &str| shown.is_some_and(|shown| !shown.contains(&id)) && CommonOptions::has_flag(id);
    let command = command.mut_args(|arg| match hidden(arg.get_id().as_str()) {
        true => arg.hide(true),
        false => arg,
    });
    command.mut_subcommands(|command| hide_global_flags(command, &path, shown))
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
    /// Run an agent or a program in the sandbox, and review its changes.
    #[command(after_help = "\
The program sees the workspace at its own path, and works on a layer above it. When it ends, you decide about each
file. Known agents (claude, codex, opencode, gemini, goose, aider, crush) may reach their own API, with a key
that stays outside the sandbox.

Examples:
  ringfence run -- claude                         review at the end
  ringfence run --end keep -- codex exec \"fix it\"   keep what the policy allows
  ringfence run --allow-host docs.rs -- make test

Exit codes:
  125  the program could not be started
  N    the exit code of the program; 128 and the number of its signal")]
    Run(Box<RunOptions>),
    /// List, review, keep, commit and drop layers of wrapped programs.
    #[command(after_help = "\
Examples:
  ringfence layers list
  ringfence layers review ID             decide by file and hunk
  ringfence layers keep ID src/main.rs   keep one file
  ringfence layers branch ID             commit it to a branch of its own
  ringfence layers drop ID")]
    Layers {
        #[command(subcommand)]
        command: LayersCommand,
    },
    /// Remove unused home directories, caches and remains of layers.
    #[command(after_help = "\
Undecided layers are listed and never removed. A run does the same at its end, once a day.

Example:
  ringfence gc --dry-run            list what would be removed
  ringfence gc --max-size 5G        keep no more than that")]
    Gc(GcOptions),
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
    #[command(after_help = "\
Example:
  ringfence acp --workspace .   what an editor starts")]
    Acp(AcpOptions),
    #[command(flatten)]
    Changes(ChangesCommand),
    /// List and answer pending approval requests.
    #[command(after_help = "\
Examples:
  ringfence approvals list         pending requests
  ringfence approvals answer ID    show one and decide")]
    Approvals {
        #[command(subcommand)]
        command: ApprovalsCommand,
    },
    /// Check sandbox support, and find clients that bypass Ringfence.
    #[command(after_help = "\
Examples:
  ringfence doctor          exits with 1 if programs cannot be run
  ringfence doctor --json   for programs")]
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show and verify the audit log.
    #[command(after_help = "\
Examples:
  ringfence audit show --follow           print records as they are written
  ringfence audit head > head.txt         keep the head on another machine
  ringfence audit verify --head \"$(cat head.txt)\"")]
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Show what was refused in a run, and what to do about it.
    #[command(after_help = "\
Examples:
  ringfence why          the last run
  ringfence why --json   for programs")]
    Why(WhyOptions),
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
        #[arg(long, value_name = "SECONDS", default_value_t = 25, value_parser = seconds)]
        wait: u64,
        /// Return structured content with output schemas, for programs, instead of plain text for models.
        #[arg(long)]
        structured: bool,
        /// The dialect to use where no config sets one; `ringfence mcp install` writes it.
        #[arg(
            long, value_name = "NAME",
            value_parser = one_of(CLIENT_DIALECTS.map(Dialect::name), Dialect::from_name)
        )]
        default_dialect: Option<Dialect>,
    },
    /// Serve the web UI, the HTTP API and MCP over HTTP.
    #[command(after_help = "\
Examples:
  ringfence serve                                           on loopback, with a sign-in link
  ringfence serve --public-url https://rf.example.org       behind a reverse proxy with TLS")]
    Serve(ServeOptions),
    /// Create and revoke access tokens for `ringfence serve`.
    #[command(after_help = "\
Examples:
  ringfence token new my-agent   print a token that may make calls
  ringfence token link           print a sign-in link to the web UI")]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// List, show and export agent sessions.
    #[command(after_help = "\
Examples:
  ringfence sessions list
  ringfence sessions export ID --format md > session.md")]
    Sessions {
        #[command(subcommand)]
        command: SessionsCommand,
    },
    /// Create workflow runs.
    #[command(after_help = "\
Example:
  ringfence workflow new --mount pkg=DIR --graph @pkg/workflow.graph.json")]
    Workflow {
        #[command(subcommand)]
        command: WorkflowCommand,
    },
    /// Show, explain and trust policy rules and grants.
    #[command(after_help = "\
Examples:
  ringfence policy show
  ringfence policy explain delete_file '{\"path\": \"README.md\"}'
  ringfence policy grants revoke ID")]
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Print the tools and their schemas.
    #[command(after_help = "\
Formats:
  list       one line per tool, for people
  full       JSON with reply schemas, effects and whether calls require approval
  openai     the `tools` list of OpenAI's chat completions
  functions  the function definitions only: name, description, parameters
  prompt     the system prompt text about the tools, paths and limits

Example:
  ringfence tools --dialect miniclaw --format openai")]
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
            | Self::Run(_)
            | Self::Layers { .. }
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
            Self::Gc(_) | Self::Approvals { .. } | Self::Audit { .. } | Self::Why(_) | Self::Token { .. } => false,
        }
    }
}

/// Commands that list, show, undo and redo changes.
#[derive(Debug, Subcommand)]
pub(crate) enum ChangesCommand {
    /// List changes in the workspace, newest first.
    #[command(after_help = "\
Examples:
  ringfence log
  ringfence log --session ID --json")]
    Log {
        /// Only changes of this session.
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the diff of a change.
    #[command(after_help = "\
Example:
  ringfence diff ID   an id from `ringfence log`")]
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
    #[command(after_help = "\
Examples:
  ringfence redo      the last undo
  ringfence redo ID   an undo from `ringfence log`")]
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
        head: Option<ExternalAuditHead>,
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
    /// Create a run and print its id: `--workflow-run` sets the id, and `--graph` the workflow graph that it follows.
    New,
}

// The help of `tools` describes them: a description of a value switches the whole help to a longer layout.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ToolListFormat {
    List,
    Full,
    Openai,
    Functions,
    Prompt,
}

/// Dialects that the entry of a client may ask for: those with the limits and presets of `standard`.
const CLIENT_DIALECTS: [Dialect; 4] = [Dialect::Standard, Dialect::Claude, Dialect::Codex, Dialect::Gemini];

fn known_head(text: &str) -> Result<ExternalAuditHead, String> {
    let parsed = text.trim().split_once(':').and_then(|(number, hash)| Some((number.parse().ok()?, hash)));
    match parsed {
        Some((number @ 1.., hash)) if hash.len() == 64 => Ok(ExternalAuditHead { number, hash: hash.to_owned() }),
        _ => Err("expected NUMBER:HASH, as printed by `ringfence audit head`".to_owned()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a number of seconds".to_owned())
}

fn time(text: &str) -> Result<String, String> {
    match humantime::parse_rfc3339_weak(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("expected a time such as `2026-01-31T12:00:00Z`".to_owned()),
    }
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
        let help = |path: &str| {
            let mut command = help_command();
            let found = path.split(' ').fold(&mut command, |command, name| command.find_subcommand_mut(name).unwrap());
            found.render_help().to_string()
        };
        let cases = [
            ("man", "--workspace", false),
            ("init", "--workspace", true),
            ("init", "--workflow-run", false),
            ("call", "--workflow-run", true),
            ("log", "--workspace", true),
            ("log", "--allow-tool", false),
            ("sessions list", "--approve", false),
            ("policy explain", "--preset", true),
            ("policy explain", "--approve", false),
            ("policy grants list", "--workspace", false),
            ("mcp", "--approve", true),
            ("mcp install", "--approve", false),
        ];
        for (name, flag, shown) in cases {
            assert_eq!(help(name).contains(flag), shown, "{name} {flag}");
        }
        assert!(CliArgs::try_parse_from(["ringfence", "man", "x", "--workspace", "y"]).is_ok());
    }

    #[test]
    fn every_line_of_effective_flags_names_a_command_and_its_flags() {
        for (path, flags) in EFFECTIVE_FLAGS {
            let root = CliArgs::command();
            let found = path.split(' ').try_fold(&root, |command, name| command.find_subcommand(name));
            assert!(found.is_some(), "{path}");
            assert!(flags.iter().all(|flag| CommonOptions::has_flag(flag)), "{path} {flags:?}");
        }
    }

    #[test]
    fn every_command_has_one_layout_of_help() {
        // What makes clap print the longer one for `--help`.
        fn check(command: &Command) {
            assert!(command.get_long_about().is_none(), "{}", command.get_name());
            for arg in command.get_arguments() {
                let has_help = arg.get_possible_values().iter().any(|value| value.get_help().is_some());
                assert!(arg.get_long_help().is_none() && !has_help, "{} {}", command.get_name(), arg.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&CliArgs::command());
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
