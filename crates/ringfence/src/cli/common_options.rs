//! Global options of the command line.
//!
//! Not here: commands and the options of each (`args.rs`), and which of these have an effect on which command.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Args, Command};
use ringfence_kernel::{Dialect, Preset};

use crate::config::{ApprovalMode, CliFlags, MountSetting};

/// Options of every command.
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
    #[arg(long, alias = "run", global = true, value_name = "ID")]
    workflow_run: Option<String>,
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
    /// Offer the tools of this toolset too: git, project or code (repeatable).
    #[arg(long, global = true, value_name = "TOOLSET")]
    toolset: Vec<String>,
}

impl CommonOptions {
    /// Whether one of them has this name.
    pub(super) fn has_flag(id: &str) -> bool {
        Self::augment_args(Command::default()).get_arguments().any(|arg| arg.get_id() == id)
    }

    /// For the settings.
    pub(crate) fn flags(&self) -> CliFlags {
        CliFlags {
            config: self.config.clone(),
            workspace: self.workspace.clone(),
            dialect: self.dialect,
            preset: if self.read_only { Some(Preset::ReadOnly) } else { self.preset },
            allow: self.allow_tool.clone(),
            deny: self.deny_tool.clone(),
            toolsets: self.toolset.clone(),
            mounts: self.mount.clone(),
            agent: self.agent.clone(),
            run: self.workflow_run.clone(),
            graph: self.graph.clone(),
            approve: self.approve,
        }
    }
}

/// A parser of names that lists them in help and errors.
pub(super) fn one_of<T, const N: usize>(names: [&'static str; N], from_name: fn(&str) -> Option<T>) -> ValueParser
where
    T: Clone + Send + Sync + 'static,
{
    let parser = PossibleValuesParser::new(names);
    ValueParser::new(parser.try_map(move |name: String| from_name(&name).ok_or("unknown name")))
}
