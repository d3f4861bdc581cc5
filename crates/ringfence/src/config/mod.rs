//! Configuration: managed, user and workspace files, flags and environment.
//!
//! Only this module reads the environment. Layers: the managed config (`/etc/ringfence`) overrides the command line,
//! the command line overrides the user's file, that overrides the defaults. A `ringfence.toml` inside the workspace can
//! only tighten, but for the rules of a trusted one.
//!
//! Not here: using it (`app/mod.rs`).

pub mod agents;
mod approval_mode;
pub mod credentials;
pub(crate) mod dialect;
mod environment;
mod git;
pub(crate) mod host;
pub(crate) mod limits;
pub mod mcp_servers;
mod project;
pub(crate) mod rules;
pub mod run;
mod run_code;
pub(crate) mod strict_modes;
mod tools;
pub mod web;
pub mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use ringfence_crewagent::STATE_ALIAS;
use ringfence_fs::{Durability, MountAccess, NameRule};
use ringfence_git::GitCredentials;
use ringfence_kernel::{
    CallLimits, Decision, Dialect, HOME_MOUNT, LAYER_MOUNT, LayeredRules, MCP_MOUNT, NET_MOUNT, PolicyLayer,
    PolicyRule, Preset, REGISTRY_MOUNT, RuleText, SEARCH_MOUNT, ToolFilter, WORKSPACE_MOUNTS, nearest_name,
    sanitize_line,
};
use ringfence_project::ProjectSettings;
use ringfence_sandbox::JailFallback;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::codec::io_text::IoText;
use crate::config::agents::{AgentConfigSection, FsConfigSection, ModelSettings};
pub use crate::config::approval_mode::ApprovalMode;
use crate::config::credentials::{CredentialSetting, merge_credentials};
use crate::config::dialect::{DialectSetting, DialectSource};
pub use crate::config::environment::{Environment, EnvironmentVariables};
use crate::config::git::{GitConfigSection, merge_git};
use crate::config::limits::LimitsConfigSection;
use crate::config::mcp_servers::{McpServerConfig, McpServerConfigSection, merge_servers};
use crate::config::project::{ProjectConfigSection, merge_project};
use crate::config::rules::{RuleFile, RuleFileFormat};
use crate::config::run::{RunConfigSection, WrappedProgramSettings, merge_run};
use crate::config::run_code::{RunCodeConfigSection, merge_run_code};
use crate::config::strict_modes::{UnsafePermissionsError, check_config, check_state};
use crate::config::tools::{ToolsConfigSection, narrow_tools, tool_filter};
use crate::config::web::{WebConfigSection, WebSettings, merge_web};
use crate::config::workspace::{WorkspaceSource, choose_workspace};

/// The file in a workspace that can tighten what its user allows.
pub const WORKSPACE_FILE: &str = "ringfence.toml";

/// No workspace's settings are longer than this.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct CliFlags {
    pub config: Option<PathBuf>,
    pub workspace: Option<String>,
    pub dialect: Option<Dialect>,
    pub preset: Option<Preset>,
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub toolsets: Vec<String>,
    pub mounts: Vec<MountSetting>,
    pub agent: Option<String>,
    pub run: Option<String>,
    pub graph: Option<String>,
    pub approve: Option<ApprovalMode>,
}

/// A directory that tools may reach as `@alias/…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSetting {
    pub alias: String,
    /// As it was written: `~` is the home directory, a relative path starts at the current directory.
    pub path: String,
    pub rights: MountAccess,
}

impl MountSetting {
    /// Parses `alias=DIR`, `alias=DIR:ro` or `alias=DIR:rw`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (alias, rest) = text.split_once('=').ok_or("expected ALIAS=DIR[:ro|rw], such as `pkg=DIR:ro`")?;
        let (path, rights) = match rest.rsplit_once(':') {
            Some((path, "ro")) => (path, MountAccess::ReadOnly),
            Some((path, "rw")) => (path, MountAccess::ReadWrite),
            _ => (rest, MountAccess::ReadOnly),
        };
        if alias.is_empty() || path.is_empty() {
            return Err("expected ALIAS=DIR[:ro|rw], such as `pkg=DIR:ro`".to_owned());
        }
        Ok(Self { alias: alias.to_owned(), path: path.to_owned(), rights })
    }
}

/// The effective settings of all layers.
#[derive(Clone, Debug)]
pub struct AppSettings {
    pub workspace: Option<String>,
    pub workspace_source: WorkspaceSource,
    pub state: PathBuf,
    /// The config file that was named, if one was. No tool may reach it.
    pub config_file: Option<PathBuf>,
    pub dialect: Dialect,
    pub(crate) dialect_source: DialectSource,
    /// Tokens for fetch and push.
    pub git_credentials: GitCredentials,
    /// The preset of the command line or the user's file, or the managed one where that is stricter.
    pub preset: Preset,
    /// The managed preset, which overrides the user's rules.
    pub managed_preset: Option<Preset>,
    /// The preset of the workspace, where that is stricter.
    pub workspace_preset: Option<Preset>,
    pub managed_rules: Vec<PolicyRule>,
    pub user_rules: Vec<PolicyRule>,
    /// Persistent grants.
    pub grants: Vec<PolicyRule>,
    /// Allow rules of the workspace, where its file is trusted.
    pub trusted_rules: Vec<PolicyRule>,
    pub workspace_rules: Vec<PolicyRule>,
    pub limits: CallLimits,
    pub tools: ToolFilter,
    /// Tools that were named on the command line, where the dialect is known.
    pub named_tools: Vec<String>,
    /// Further directories, by their aliases.
    pub mounts: Vec<MountSetting>,
    pub agent: Option<String>,
    /// Tables about each named agent, for a run whose workflow names one.
    pub(crate) agent_tables: BTreeMap<String, Vec<AgentConfigSection>>,
    /// The workflow run whose state is `@state`.
    pub run: Option<String>,
    /// The graph of its workflow, such as `@pkg/workflow.graph.json`.
    pub graph: Option<String>,
    pub durability: Durability,
    pub names: NameRule,
    pub log: LogTarget,
    /// File for copies of signed heads of the audit log.
    pub audit_heads: Option<PathBuf>,
    /// Handling of calls that require approval.
    pub approve: ApprovalMode,
    /// A program may answer for the user.
    pub unattended: bool,
    /// Most steps of an agent for one prompt.
    pub max_tool_iterations: u32,
    /// The model that the agent is driven by.
    pub model: ModelSettings,
    pub run_code: RunCodeSettings,
    /// Wrapped programs.
    pub wrapped: WrappedProgramSettings,
    /// Test runner and formatter of projects.
    pub project: ProjectSettings,
    /// Workspaces that sessions of `ringfence serve` and `ringfence acp` can be begun on, by their names.
    pub workspaces: BTreeMap<String, String>,
    pub web: WebSettings,
    /// Keys that wrapped programs use and never see.
    pub credentials: Vec<CredentialSetting>,
    /// Programs whose tools join ours.
    pub mcp_servers: Vec<McpServerConfig>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Settings of `run_code`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCodeSettings {
    /// Number of jails that are built ahead.
    pub waiting_jails: u32,
    /// Whether programs see the toolchains that are found in the home directory.
    pub detect_toolchains: bool,
    /// Further directories of programs that they see.
    pub toolchains: Vec<PathBuf>,
    /// Fallback where this machine denies us namespaces.
    pub fallback: JailFallback,
}

/// Destination of the log line of each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Discard,
    StandardError,
    File(PathBuf),
}

/// Invalid settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the config file {file}: {}", IoText(.source))]
    Read { file: String, source: std::io::Error },
    #[error(transparent)]
    Unsafe(#[from] UnsafePermissionsError),
    #[error("invalid config file {file}: {problem}")]
    Wrong { file: String, problem: String },
    #[error("there is no agent `{0}` in the config{1}")]
    NoAgent(String, String),
    #[error("`agents.{0}` may not set `{1}`: only `agents.defaults` can")]
    AgentKey(String, &'static str),
    #[error("`--approve always` requires `unattended = true` under `[approval]` in your config")]
    NotUnattended,
    #[error("invalid config: {0}")]
    Table(String),
    #[error("no state directory: set HOME or RINGFENCE_STATE_DIR")]
    NoStateDirectory,
    #[error("cannot determine the current directory: {}", IoText(.0))]
    NoCurrentDirectory(std::io::Error),
}

/// A config file. The keys are the seeds' own where they have one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConfigFile {
    agents: BTreeMap<String, AgentConfigSection>,
    mounts: BTreeMap<String, MountConfigSection>,
    workspaces: BTreeMap<String, String>,
    policy: PolicyConfigSection,
    dialect: Option<NamedSetting<DialectSetting>>,
    preset: Option<NamedSetting<Preset>>,
    durability: Option<NamedSetting<Durability>>,
    names: Option<NamedSetting<NameRule>>,
    log: Option<String>,
    audit_heads: Option<String>,
    limits: LimitsConfigSection,
    tools: ToolsConfigSection,
    toolsets: Option<BTreeSet<String>>,
    approval: ApprovalConfigSection,
    run_code: RunCodeConfigSection,
    run: RunConfigSection,
    project: ProjectConfigSection,
    web: WebConfigSection,
    git: GitConfigSection,
    credentials: Vec<CredentialSetting>,
    mcp_servers: BTreeMap<String, McpServerConfigSection>,
    rules: Vec<RuleText>,
    /// The rules, once they were checked.
    #[serde(skip)]
    checked_rules: Vec<PolicyRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ApprovalConfigSection {
    unattended: Option<bool>,
    pause_after_denials: Option<NonZeroU64>,
}

/// File permissions of agents in the crewagent dialect.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PolicyConfigSection {
    fs: Option<FsConfigSection>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MountConfigSection {
    path: String,
    #[serde(default)]
    mode: MountMode,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum MountMode {
    #[default]
    #[serde(rename = "ro")]
    ReadOnly,
    #[serde(rename = "rw")]
    ReadWrite,
}

/// Keys that a workspace's own file may have.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WorkspaceFile {
    preset: Option<NamedSetting<Preset>>,
    limits: LimitsConfigSection,
    tools: ToolsConfigSection,
    rules: Vec<RuleText>,
}

/// Loads the layers above the workspace.
pub fn load(flags: &CliFlags, environment: &Environment) -> Result<AppSettings, ConfigError> {
    let managed = find_config_file(Some(&environment.managed))?;
    let named = flags.config.as_ref().or(environment.config_file.as_ref());
    let named = named.map(|file| environment.current.join(file));
    let user = match &named {
        Some(file) => Some(read_file(file)?),
        None => find_config_file(environment.config.as_deref())?,
    };
    let has_config = managed.is_some() || user.is_some();
    let (managed, user) = (managed.unwrap_or_default(), user.unwrap_or_default());
    check_agents(&managed)?;
    check_agents(&user)?;
    let mut warnings = Vec::new();
    let (managed_agent, user_agent) = (selected_agent(&managed, flags), selected_agent(&user, flags));
    let agent = managed_agent.clone().or(user_agent.clone());
    let dialect = named_value(managed.dialect)
        .or(flags.dialect.map(DialectSetting::Named))
        .or(agent.dialect())
        .or(named_value(user.dialect));
    let (dialect, dialect_source) = match dialect {
        Some(DialectSetting::Named(dialect)) => (dialect, DialectSource::Setting),
        Some(DialectSetting::Auto) => (Dialect::default(), DialectSource::Auto),
        // The models of a config that says nothing had this one before there were others.
        None if has_config => (Dialect::default(), DialectSource::Default),
        None => (Dialect::default(), DialectSource::Auto),
    };
    let overruled = |what: &str, holds: &str, wanted: Option<&str>| {
        let wanted = wanted.filter(|wanted| *wanted != holds)?;
        Some(format!("{what}: the machine's managed config sets `{holds}`, which overrides `{wanted}`"))
    };
    warnings.extend(overruled("dialect", dialect.name(), flags.dialect.map(Dialect::name)));
    // The strictest of the layers holds.
    let wanted = flags.preset.or(named_value(user.preset));
    let preset = named_value(managed.preset).into_iter().chain(wanted).max().unwrap_or(match dialect {
        Dialect::Standard | Dialect::Claude | Dialect::Codex | Dialect::Gemini => Preset::Ask,
        // These dialects have no approvals: what may be done is done.
        Dialect::Miniclaw | Dialect::Crewagent => Preset::Edits,
    });
    warnings.extend(overruled("preset", preset.name(), flags.preset.map(Preset::name)));
    if agent.restrict_to_workspace == Some(false) {
        warnings.push("restrict_to_workspace = false has no effect: tools stay inside the workspace".to_owned());
    }
    if let Some(kind) = &agent.kind {
        let kind = sanitize_line(kind);
        warnings.push(format!("`agents.defaults.type` is `{kind}` and has no effect: there is only one agent type"));
    }
    let toolsets = managed.toolsets.clone().or(user.toolsets.clone()).unwrap_or_default();
    let mut tools = tool_filter([&managed.tools, &user.tools], toolsets, flags);
    let rules = FsConfigLayers { files: [&managed, &user], agent: flags.agent.as_deref(), dialect };
    let mut limits = managed.limits.apply_to(&user.limits.apply_to(&rules.base_limits()));
    rules.apply(&mut limits, &mut tools)?;
    let agent_tables = rules.by_agent();
    let denials = managed.approval.pause_after_denials.or(user.approval.pause_after_denials);
    limits.denials_in_a_row = denials.map_or(limits.denials_in_a_row, NonZeroU64::get);
    let approve = flags.approve.unwrap_or_default();
    let unattended = managed.approval.unattended.or(user.approval.unattended).unwrap_or(false);
    if approve == ApprovalMode::Always && !unattended {
        return Err(ConfigError::NotUnattended);
    }
    let run_code = merge_run_code(&managed.run_code, &user.run_code);
    let wrapped = merge_run(&managed.run, &user.run);
    let (web, without) = merge_web(&managed.web, &user.web, |name| environment.variables.0.get(name).cloned())
        .map_err(ConfigError::Table)?;
    warnings.extend(without);
    let (git_credentials, without) =
        merge_git(&managed.git, &user.git, |name| environment.variables.0.get(name).cloned())
            .map_err(ConfigError::Table)?;
    warnings.extend(without);
    let credentials = merge_credentials(&managed.credentials, &user.credentials, environment.home.as_deref())
        .map_err(ConfigError::Table)?;
    let project = merge_project(managed.project.clone(), user.project.clone()).map_err(ConfigError::Table)?;
    let (mcp_servers, without) =
        merge_servers(&managed.mcp_servers, &user.mcp_servers, &environment.variables).map_err(ConfigError::Table)?;
    warnings.extend(without);
    let audit_heads = managed.audit_heads.as_deref().or(user.audit_heads.as_deref());
    let log = managed.log.as_deref().or(user.log.as_deref());
    let mounts = mounts_of(flags, &managed, &user);
    warnings.extend(
        managed.checked_rules.iter().chain(&user.checked_rules).filter_map(|rule| unknown_mount_warning(rule, &mounts)),
    );
    let (workspace, workspace_source) =
        choose_workspace(managed_agent.workspace.or(flags.workspace.clone()).or(user_agent.workspace), environment);
    let state = environment.state.clone().ok_or(ConfigError::NoStateDirectory)?;
    check_state(&state)?;
    Ok(AppSettings {
        workspace,
        workspace_source,
        state,
        config_file: named,
        dialect,
        dialect_source,
        git_credentials,
        preset,
        managed_preset: named_value(managed.preset),
        workspace_preset: None,
        managed_rules: managed.checked_rules,
        user_rules: user.checked_rules,
        grants: Vec::new(),
        trusted_rules: Vec::new(),
        workspace_rules: Vec::new(),
        limits,
        tools,
        named_tools: flags.allow.iter().chain(&flags.deny).cloned().collect(),
        mounts,
        agent: flags.agent.clone(),
        agent_tables,
        run: flags.run.clone(),
        graph: flags.graph.clone(),
        durability: named_value(managed.durability).or(named_value(user.durability)).unwrap_or_default(),
        names: named_value(managed.names).or(named_value(user.names)).unwrap_or_default(),
        log: log_target(log, dialect),
        audit_heads: audit_heads.filter(|file| *file != "none").map(|file| environment.current.join(file)),
        approve,
        unattended,
        max_tool_iterations: agent.max_steps(),
        model: agent.model(),
        run_code,
        wrapped,
        project,
        // A name of the machine's owner holds for every user.
        workspaces: user.workspaces.into_iter().chain(managed.workspaces).collect(),
        web,
        credentials,
        mcp_servers,
        warnings,
    })
}

fn agent_keys(file: &ConfigFile, id: &str) -> AgentConfigSection {
    file.agents.get(id).cloned().unwrap_or_default()
}

/// The agent that was chosen, with the defaults for what it does not say.
fn selected_agent(file: &ConfigFile, flags: &CliFlags) -> AgentConfigSection {
    let named = flags.agent.as_deref().map(|id| agent_keys(file, id)).unwrap_or_default();
    named.or(agent_keys(file, "defaults"))
}

/// Fails where an agent's table changes the workspace boundary, which holds for all agents.
fn check_agents(file: &ConfigFile) -> Result<(), ConfigError> {
    match file.agents.iter().find(|(id, keys)| *id != "defaults" && keys.restrict_to_workspace.is_some()) {
        Some((id, _)) => Err(ConfigError::AgentKey(id.clone(), "restrict_to_workspace")),
        None => Ok(()),
    }
}

/// The layers with keys about an agent's file access.
struct FsConfigLayers<'a> {
    files: [&'a ConfigFile; 2],
    agent: Option<&'a str>,
    dialect: Dialect,
}

impl FsConfigLayers<'_> {
    /// The limits before any table: the dialect's own, or those of the tables `policy.fs`.
    fn base_limits(&self) -> CallLimits {
        let mut limits = CallLimits::for_dialect(self.dialect);
        let policies: Vec<&FsConfigSection> = self.files.iter().filter_map(|file| file.policy.fs.as_ref()).collect();
        if self.dialect == Dialect::Crewagent && !policies.is_empty() {
            let least = |pick: fn(&FsConfigSection) -> Option<u64>, default| {
                policies.iter().map(|keys| pick(keys).unwrap_or(default)).min()
            };
            limits.read_bytes = least(|keys| keys.max_read_bytes, 524_288).unwrap_or(limits.read_bytes);
            limits.write_bytes = least(|keys| keys.max_write_bytes, 2_097_152).unwrap_or(limits.write_bytes);
            limits.edit_bytes = limits.write_bytes;
        }
        limits
    }

    /// Every table that can only tighten: the policy, the defaults of agents, and the agent's own.
    fn tables(&self) -> Result<Vec<AgentConfigSection>, ConfigError> {
        let mut tables = Vec::new();
        if self.dialect == Dialect::Crewagent {
            let policies = self.files.iter().filter_map(|file| file.policy.fs.clone());
            tables.extend(policies.map(AgentConfigSection::with_files));
        }
        if let Some(id) = self.agent {
            let known = self.files.iter().flat_map(|file| file.agents.keys()).filter(|id| *id != "defaults");
            let known: BTreeSet<&str> = known.map(String::as_str).collect();
            if !known.contains(id) {
                let guess =
                    nearest_name(id, known).map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
                return Err(ConfigError::NoAgent(id.to_owned(), guess));
            }
        }
        let agents = std::iter::once("defaults").chain(self.agent);
        tables.extend(agents.flat_map(|id| self.files.map(|file| agent_keys(file, id))));
        Ok(tables)
    }

    /// Applies every table to limits and tools.
    fn apply(&self, limits: &mut CallLimits, tools: &mut ToolFilter) -> Result<(), ConfigError> {
        self.tables()?.into_iter().for_each(|table| apply_table(table, limits, tools));
        Ok(())
    }

    /// The tables of every agent that has a name.
    fn by_agent(&self) -> BTreeMap<String, Vec<AgentConfigSection>> {
        let mut tables: BTreeMap<String, Vec<AgentConfigSection>> = BTreeMap::new();
        for (id, table) in self.files.iter().flat_map(|file| &file.agents).filter(|(id, _)| *id != "defaults") {
            tables.entry(id.clone()).or_default().push(table.clone());
        }
        tables
    }
}

/// Applies one table to limits and tools.
fn apply_table(table: AgentConfigSection, limits: &mut CallLimits, tools: &mut ToolFilter) {
    let AgentConfigSection { tools: table, limits: keys, .. } = table;
    narrow_tools(tools, &ToolsConfigSection { allow: table.allow, deny: table.deny });
    *limits = limits.tightened(&keys.apply_to(limits));
    let FsConfigSection { enabled, max_read_bytes, max_write_bytes } = table.fs;
    if enabled == Some(false) {
        tools.allow = Some(BTreeSet::new());
    }
    limits.read_bytes = limits.read_bytes.min(max_read_bytes.unwrap_or(u64::MAX));
    let most = max_write_bytes.unwrap_or(u64::MAX);
    limits.write_bytes = limits.write_bytes.min(most);
    limits.edit_bytes = limits.edit_bytes.min(most);
    limits.append_bytes = limits.append_bytes.min(most);
}

/// Mounts of the machine's owner hold; the command line comes before the user's file.
fn mounts_of(flags: &CliFlags, managed: &ConfigFile, user: &ConfigFile) -> Vec<MountSetting> {
    let of_file = |file: &ConfigFile| {
        let mount = |(alias, keys): (&String, &MountConfigSection)| MountSetting {
            alias: alias.clone(),
            path: keys.path.clone(),
            rights: match keys.mode {
                MountMode::ReadOnly => MountAccess::ReadOnly,
                MountMode::ReadWrite => MountAccess::ReadWrite,
            },
        };
        file.mounts.iter().map(mount).collect::<Vec<_>>()
    };
    let mut mounts = of_file(managed);
    for layer in [flags.mounts.clone(), of_file(user)] {
        // An alias of a higher layer is taken; one that is given twice in the same layer is a mistake, and found when
        // the mounts are opened.
        let taken: BTreeSet<String> = mounts.iter().map(|mount| mount.alias.clone()).collect();
        mounts.extend(layer.into_iter().filter(|mount| !taken.contains(&mount.alias)));
    }
    mounts
}

/// A rule about a mount that is not there may be a rule for another day, or a slip.
fn unknown_mount_warning(rule: &PolicyRule, mounts: &[MountSetting]) -> Option<String> {
    let known: Vec<&str> = mounts
        .iter()
        .map(|mount| mount.alias.as_str())
        .chain(WORKSPACE_MOUNTS)
        .chain([STATE_ALIAS, HOME_MOUNT, LAYER_MOUNT, MCP_MOUNT, NET_MOUNT, SEARCH_MOUNT, REGISTRY_MOUNT])
        .collect();
    let missing = rule.mount_names().find(|name| !known.contains(name))?;
    let guess = nearest_name(missing, known).map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
    let source = rule.source().unwrap_or_default();
    Some(format!("{source}: the rule `{}` names the mount `{missing}`, which does not exist{guess}", rule.name()))
}

impl AppSettings {
    /// Every rule that holds.
    pub fn rules(&self) -> LayeredRules {
        let mut rules =
            LayeredRules::from_preset(self.preset).with_layer(PolicyLayer::Managed, self.managed_rules.clone());
        if let Some(preset) = self.managed_preset {
            rules = rules.with_managed_preset(preset);
        }
        if let Some(preset) = self.workspace_preset {
            rules = rules.with_workspace_preset(preset);
        }
        rules
            .with_layer(PolicyLayer::User, self.user_rules.clone())
            .with_layer(PolicyLayer::Grants, self.grants.clone())
            .with_layer(PolicyLayer::Trusted, self.trusted_rules.clone())
            .with_layer(PolicyLayer::Workspace, self.workspace_rules.clone())
    }

    /// Applies the tables of an agent that was not named on the command line: the one of the workflow's current node.
    /// An agent without a table changes nothing.
    pub(crate) fn apply_agent(&mut self, id: String) {
        for table in self.agent_tables.get(&id).cloned().unwrap_or_default() {
            apply_table(table, &mut self.limits, &mut self.tools);
        }
        self.agent = Some(id);
    }

    /// Applies the workspace's own file, which can only tighten. Returns its allow rules, for `trusted_rules`, if the
    /// file is trusted.
    pub fn tighten(&mut self, file: &[u8]) -> Result<Vec<PolicyRule>, ConfigError> {
        let text = std::str::from_utf8(file).ok().filter(|text| !text.contains('\0'));
        let text = text.ok_or_else(|| wrong_file(WORKSPACE_FILE, "the file is binary, not UTF-8 text"))?;
        let file: WorkspaceFile = parse_toml(text, WORKSPACE_FILE)?;
        self.workspace_preset = named_value(file.preset).filter(|preset| *preset > self.preset);
        let source = RuleFile { name: WORKSPACE_FILE, text, format: RuleFileFormat::Toml };
        let rules = source.check(file.rules)?.into_iter();
        let (allowing, tightening) = rules.partition(|rule| rule.decision() == Decision::Allow);
        self.workspace_rules = tightening;
        self.limits = self.limits.tightened(&file.limits.apply_to(&self.limits));
        narrow_tools(&mut self.tools, &file.tools);
        Ok(allowing)
    }
}

fn log_target(log: Option<&str>, dialect: Dialect) -> LogTarget {
    match (log, dialect) {
        (Some("stderr"), _) | (None, Dialect::Miniclaw) => LogTarget::StandardError,
        (Some("none"), _) | (None, _) => LogTarget::Discard,
        (Some(file), _) => LogTarget::File(PathBuf::from(file)),
    }
}

fn find_config_file(directory: Option<&Path>) -> Result<Option<ConfigFile>, ConfigError> {
    let Some(directory) = directory else { return Ok(None) };
    for name in ["config.toml", "config.json"] {
        let file = directory.join(name);
        // Only a file that is surely not there is passed over: one that cannot be reached may forbid something.
        match std::fs::symlink_metadata(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(ConfigError::Read { file: file.display().to_string(), source }),
            Ok(_) => return read_file(&file).map(Some),
        }
    }
    Ok(None)
}

fn read_file(path: &Path) -> Result<ConfigFile, ConfigError> {
    let file = path.display().to_string();
    check_config(path)?;
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { file: file.clone(), source })?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let format = if is_json { RuleFileFormat::Json } else { RuleFileFormat::Toml };
    let mut config: ConfigFile = match format {
        RuleFileFormat::Json => serde_json::from_str(&text).map_err(|error| wrong_file(&file, &error.to_string()))?,
        RuleFileFormat::Toml => parse_toml(&text, &file)?,
    };
    let source = RuleFile { name: &file, text: &text, format };
    config.checked_rules = source.check(std::mem::take(&mut config.rules))?;
    Ok(config)
}

fn parse_toml<C: DeserializeOwned>(text: &str, file: &str) -> Result<C, ConfigError> {
    toml::from_str(text).map_err(|error| wrong_file(file, error.to_string().trim_end()))
}

/// Adds the nearest key to a complaint about one that is unknown.
fn wrong_file(file: &str, problem: &str) -> ConfigError {
    let mut quoted = problem.split_once("unknown field `").map(|(_, rest)| rest.split('`')).into_iter().flatten();
    let guess = quoted.next().and_then(|unknown| nearest_name(unknown, quoted.skip(1).step_by(2)));
    let guess = guess.map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
    ConfigError::Wrong { file: file.to_owned(), problem: format!("{problem}{guess}") }
}

/// A setting that is one of a few words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedSetting<T>(T);

pub(crate) fn named_value<T>(name: Option<NamedSetting<T>>) -> Option<T> {
    name.map(|NamedSetting(value)| value)
}

/// The words of a setting and what they mean.
pub(crate) trait NamedValues: Sized + Copy + 'static {
    const VALUES: &'static [(&'static str, Self)];
}

impl NamedValues for Preset {
    const VALUES: &'static [(&'static str, Self)] =
        &[(Self::Ask.name(), Self::Ask), (Self::Edits.name(), Self::Edits), (Self::ReadOnly.name(), Self::ReadOnly)];
}

impl NamedValues for Durability {
    const VALUES: &'static [(&'static str, Self)] = &[("full", Self::Full), ("ordered", Self::Ordered)];
}

impl NamedValues for JailFallback {
    const VALUES: &'static [(&'static str, Self)] = &[("bwrap", Self::Bwrap), ("none", Self::None)];
}

impl NamedValues for NameRule {
    const VALUES: &'static [(&'static str, Self)] = &[("native", Self::Native), ("portable", Self::Portable)];
}

impl<'de, T: NamedValues> Deserialize<'de> for NamedSetting<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let found = T::VALUES.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| Self(*value)).ok_or_else(|| {
            let names: Vec<&str> = T::VALUES.iter().map(|(name, _)| *name).collect();
            serde::de::Error::custom(format!("unknown value `{text}`; expected one of {}", names.join(", ")))
        })
    }
}
