//! What can be typed: the commands, their flags, and how a value is read.
//!
//! The manual pages and the completions of shells are made from these types. Not here: doing any of it (`cli.rs`).

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ringfence_fs::KnownHead;
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

/// The version, and what exactly was built: `build.rs` says it.
const BUILD: &str = env!("RINGFENCE_BUILD");

/// The tool host between an AI agent and a machine.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version = BUILD, about)]
pub(crate) struct CliArgs {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    #[command(flatten)]
    Standalone(StandaloneCommand),
    #[command(flatten)]
    Configured(ConfiguredCommand),
}

/// What needs no config.
#[derive(Debug, Subcommand)]
pub(crate) enum StandaloneCommand {
    /// See a whole session in a temporary workspace: real tools, a question to you, attempts to get out, and an undo. No
    /// model and no key are needed, and nothing is left behind.
    Demo(DemoOptions),
    /// Write a commented `ringfence.toml` for this directory, or your own config. A file that is there stays as it is.
    Init(InitOptions),
    /// Print what a shell needs to complete commands and flags.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a manual page for each command into a directory.
    Man {
        /// The directory, which is there already.
        directory: PathBuf,
    },
}

/// What a config, or the defaults, hold for.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfiguredCommand {
    /// Make one tool call and print the reply.
    Call {
        /// The tool, such as `read_file`.
        tool: String,
        /// Its arguments as a JSON object; `-` reads them from standard input.
        #[arg(default_value = "{}")]
        json: String,
    },
    /// Let a model work on a prompt with the tools; without one, talk with it here. Exit code 0 is an answer, 1 a run that
    /// ended without one, 3 a model that cannot be had, 130 a cancelled run.
    Agent(AgentOptions),
    /// Serve the agent to an editor over the Agent Client Protocol, on standard input and output.
    Acp(AcpOptions),
    #[command(flatten)]
    Changes(ChangesCommand),
    /// See the calls that wait for a person's answer, and answer them.
    Approvals {
        #[command(subcommand)]
        command: ApprovalsCommand,
    },
    /// Try every wall that stands between programs and this machine, see which clients go around the fence with tools of
    /// their own, and say what to do about it.
    Doctor {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Look at the trace of every call, and check that nobody changed it.
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Serve the tools to an agent over the Model Context Protocol, on standard input and output.
    #[command(args_conflicts_with_subcommands = true)]
    Mcp {
        #[command(subcommand)]
        command: Option<McpCommand>,
        /// How long a call waits for a person before its client is told to come again. Most clients give up on a call
        /// after a minute.
        #[arg(long, value_name = "SECONDS", default_value_t = 25)]
        wait: u64,
        /// Send results as JSON with structured content and output schemas, for programs. Models get plain text.
        #[arg(long)]
        structured: bool,
    },
    /// Serve the tools to agents over HTTP, for those who show a token.
    Serve(ServeOptions),
    /// Make and take back the tokens that `serve` wants to see.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// See what was said and done in sessions of the agent, and keep it elsewhere.
    Sessions {
        #[command(subcommand)]
        command: SessionsCommand,
    },
    /// Make and look after runs of a workflow.
    Workflow {
        #[command(subcommand)]
        command: WorkflowCommand,
    },
    /// See what may be done without asking, and why.
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Print the tools of a dialect.
    Tools {
        /// The form to print them in.
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

/// What a person asks about changes, or wants done about them.
#[derive(Debug, Subcommand)]
pub(crate) enum ChangesCommand {
    /// List the changes that were made in the workspace, the newest first.
    Log {
        /// Only those of this session.
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// As a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show what one change did.
    Diff {
        /// The change, as `ringfence log` lists it.
        change: String,
    },
    /// Take back the last change, or those that are named: all of it, or, where something was changed since, nothing.
    Undo {
        /// The change, as `ringfence log` lists it.
        #[arg(conflicts_with_all = ["session", "since"])]
        change: Option<String>,
        /// Every change of a session.
        #[arg(long, value_name = "ID", conflicts_with = "since")]
        session: Option<String>,
        /// Every change since a time, such as `2026-01-31T12:00:00Z`.
        #[arg(long, value_name = "TIME", value_parser = time)]
        since: Option<String>,
        /// Only say what would be done.
        #[arg(long)]
        dry_run: bool,
        /// Take back also what was changed since. What is there now is kept, and `redo` brings it back, unless it is too
        /// large to be kept.
        #[arg(long)]
        force: bool,
    },
    /// Bring back what the last undo took back, or the one that is named.
    Redo {
        /// The undo, as `ringfence log` lists it.
        change: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Print the records, the oldest first.
    Show {
        /// As they are in the log, a JSON object a line.
        #[arg(long)]
        json: bool,
        /// Go on printing as calls are made.
        #[arg(long)]
        follow: bool,
    },
    /// Check every record, link and signed head. Exit code 1 and the first bad one if something was changed.
    Verify {
        /// A head that was kept elsewhere, as `ringfence audit head` printed it.
        #[arg(long, value_name = "NUMBER:HASH", value_parser = known_head)]
        head: Option<KnownHead>,
        /// A file that signed heads were sent to, as `audit_heads` in the config says.
        #[arg(long, value_name = "FILE")]
        heads: Option<PathBuf>,
    },
    /// Print how far the log reaches, to be kept elsewhere.
    Head,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Say what would be decided about a call, by which rule, without making it.
    Explain {
        /// The tool, such as `write_file`.
        tool: String,
        /// Its arguments as a JSON object; `-` reads them from standard input.
        #[arg(default_value = "{}")]
        json: String,
        /// As in a session that has been through this: read-secret, saw-untrusted or has-egress.
        #[arg(long, value_name = "TAINT", value_parser = taint)]
        when: Vec<Taint>,
    },
    /// Print every rule, in the order in which they decide.
    Show,
    /// See what was allowed for good by an answer, and take it back.
    Grants {
        #[command(subcommand)]
        command: Option<GrantsCommand>,
    },
    /// Let the rules of the workspace's own ringfence.toml allow what they say, until it changes. Shows them, and asks you
    /// at this terminal.
    Trust {
        /// Take the trust back.
        #[arg(long)]
        revoke: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkflowCommand {
    /// Make a run of the project, by the id that `--run` gives or a new one, and print its id. With `--graph` it stands
    /// at the entry of that workflow, and goes along its edges from there.
    New,
}

#[derive(Debug, Args)]
pub(crate) struct CommonOptions {
    /// The directory that tools work in. Created if it is missing.
    #[arg(long, global = true, value_name = "DIR")]
    workspace: Option<String>,
    /// A further directory that tools reach as `@ALIAS/…`: read-only, or `rw` to be written too.
    #[arg(long, global = true, value_name = "ALIAS=DIR[:ro|rw]", value_parser = MountSetting::parse)]
    mount: Vec<MountSetting>,
    /// The run whose state is `@state`.
    #[arg(long, global = true, value_name = "ID")]
    run: Option<String>,
    /// The graph that the run goes along, on a read-only mount. A run that was made with one keeps it.
    #[arg(long, global = true, value_name = "@PKG/FILE")]
    graph: Option<String>,
    /// The agent on whose behalf tools are called; its limits are those of the config.
    #[arg(long, global = true, value_name = "ID")]
    agent: Option<String>,
    /// The tool system to speak: standard, miniclaw or crewagent.
    #[arg(long, global = true, value_name = "NAME", value_parser = dialect)]
    dialect: Option<Dialect>,
    /// The config file to use instead of the user's own.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What may be done without asking: ask, edits or read-only.
    #[arg(long, global = true, value_name = "NAME", value_parser = preset)]
    preset: Option<Preset>,
    /// Where somebody has to be asked: ask at the terminal, never, only what the policy allows, or always.
    #[arg(long, global = true, value_name = "HOW", value_parser = approve)]
    approve: Option<ApprovalMode>,
    /// Allow no change at all; the same as `--preset read-only`.
    #[arg(long, global = true, conflicts_with = "preset")]
    read_only: bool,
    /// Offer only this tool, and others that are named so too.
    #[arg(long, global = true, value_name = "TOOL")]
    allow_tool: Vec<String>,
    /// Do not offer this tool.
    #[arg(long, global = true, value_name = "TOOL")]
    deny_tool: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ToolListFormat {
    /// The list that OpenAI's chat completions take as `tools`.
    Openai,
    /// The bare functions: name, description, parameters.
    Functions,
    /// With the schemas of replies, what calls can do, and whether they require approval, as JSON.
    Full,
    /// A line each, for people.
    List,
    /// What a model is told about them at the start: the tools, where they reach, and the limits that hold.
    Prompt,
}

impl CommonOptions {
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
        _ => Err("it looks like what `ringfence audit head` prints".to_owned()),
    }
}

fn time(text: &str) -> Result<String, String> {
    match humantime::parse_rfc3339_weak(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("it is a time such as `2026-01-31T12:00:00Z`".to_owned()),
    }
}

fn dialect(name: &str) -> Result<Dialect, String> {
    Dialect::from_name(name).ok_or_else(|| one_of(Dialect::ALL.map(Dialect::name)))
}

fn approve(name: &str) -> Result<ApprovalMode, String> {
    ApprovalMode::from_name(name).ok_or_else(|| one_of(ApprovalMode::ALL.map(ApprovalMode::name)))
}

fn taint(name: &str) -> Result<Taint, String> {
    Taint::from_name(name).ok_or_else(|| one_of(Taint::ALL.map(Taint::name)))
}

fn preset(name: &str) -> Result<Preset, String> {
    Preset::from_name(name).ok_or_else(|| one_of(Preset::ALL.map(Preset::name)))
}

fn one_of<const N: usize>(names: [&str; N]) -> String {
    format!("it is one of {}", names.join(", "))
}
