//! Agent config: `agents.defaults`, and named agents that override it.
//!
//! The managed file overrides the user's file, and a named agent the defaults of the same file. Limits and tools of an
//! agent only tighten. Addresses of models and names of keys come from these files alone: a workspace cannot have them.
//!
//! Not here: opening a model (`agent/model.rs`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_agent::CallRepair;
use ringfence_agent::provider::ProviderTimeouts;
use serde::Deserialize;

use crate::config::dialect::DialectSetting;
use crate::config::limits::{ConfigDuration, LimitsConfigSection};
use crate::config::{NamedSetting, NamedValues, named_value};

/// An agent, or `defaults` for what holds without one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AgentConfigSection {
    pub(crate) workspace: Option<String>,
    pub(crate) restrict_to_workspace: Option<bool>,
    pub(crate) max_tool_iterations: Option<i64>,
    pub(crate) tools: AgentToolsConfigSection,
    pub(crate) limits: LimitsConfigSection,
    dialect: Option<NamedSetting<DialectSetting>>,
    provider: Option<NamedSetting<ProviderChoice>>,
    base_url: Option<String>,
    api_key_env: Option<String>,
    model: Option<String>,
    script: Option<PathBuf>,
    temperature: Option<f64>,
    max_tokens: Option<u64>,
    context_tokens: Option<u64>,
    max_prompt_tokens: Option<u64>,
    max_prompt_duration: Option<ConfigDuration>,
    system_prompt: Option<String>,
    project_instructions: Option<bool>,
    repair_tool_calls: Option<bool>,
    connect_timeout: Option<ConfigDuration>,
    first_byte_timeout: Option<ConfigDuration>,
    idle_timeout: Option<ConfigDuration>,
    answer_timeout: Option<ConfigDuration>,
    /// MiniClaw's kinds of agents. There is one here.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AgentToolsConfigSection {
    pub(crate) fs: FsConfigSection,
    pub(crate) allow: Option<BTreeSet<String>>,
    pub(crate) deny: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct FsConfigSection {
    pub(crate) enabled: Option<bool>,
    pub(crate) max_read_bytes: Option<u64>,
    pub(crate) max_write_bytes: Option<u64>,
}

/// API of a model's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderChoice {
    /// Chat completions, as OpenAI has them and most servers understand them.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// A file with answers, for tests and to try the agent.
    Script,
}

impl NamedValues for ProviderChoice {
    const VALUES: &'static [(&'static str, Self)] =
        &[("openai", Self::OpenAi), ("anthropic", Self::Anthropic), ("script", Self::Script)];
}

/// The model of an agent, and how it is used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSettings {
    pub provider: Option<ProviderChoice>,
    pub base_url: Option<String>,
    /// The variable of the environment that has the key.
    pub api_key_env: Option<String>,
    /// The name that the provider has for it.
    pub model: Option<String>,
    /// The file of a scripted one.
    pub script: Option<PathBuf>,
    pub temperature: Option<f64>,
    pub max_tokens: Option<u64>,
    pub context_tokens: Option<u64>,
    pub max_prompt_tokens: Option<u64>,
    pub max_prompt_duration: Option<Duration>,
    pub system_prompt: Option<String>,
    /// Whether the system prompt has the workspace's `AGENTS.md`.
    pub project_instructions: bool,
    /// Whether slightly wrong calls of the model are corrected.
    pub repair_tool_calls: CallRepair,
    /// Timeouts of its server.
    pub timeouts: ProviderTimeouts,
}

impl AgentConfigSection {
    /// An agent with nothing but these keys.
    pub(crate) fn with_files(fs: FsConfigSection) -> Self {
        Self { tools: AgentToolsConfigSection { fs, ..AgentToolsConfigSection::default() }, ..Self::default() }
    }

    /// The keys that are set here, and the others of `other`. Not the tables that tighten: those all hold.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            workspace: self.workspace.or(other.workspace),
            restrict_to_workspace: self.restrict_to_workspace.or(other.restrict_to_workspace),
            max_tool_iterations: self.max_tool_iterations.or(other.max_tool_iterations),
            tools: self.tools,
            limits: self.limits,
            dialect: self.dialect.or(other.dialect),
            provider: self.provider.or(other.provider),
            base_url: self.base_url.or(other.base_url),
            api_key_env: self.api_key_env.or(other.api_key_env),
            model: self.model.or(other.model),
            script: self.script.or(other.script),
            temperature: self.temperature.or(other.temperature),
            max_tokens: self.max_tokens.or(other.max_tokens),
            context_tokens: self.context_tokens.or(other.context_tokens),
            max_prompt_tokens: self.max_prompt_tokens.or(other.max_prompt_tokens),
            max_prompt_duration: self.max_prompt_duration.or(other.max_prompt_duration),
            system_prompt: self.system_prompt.or(other.system_prompt),
            project_instructions: self.project_instructions.or(other.project_instructions),
            repair_tool_calls: self.repair_tool_calls.or(other.repair_tool_calls),
            connect_timeout: self.connect_timeout.or(other.connect_timeout),
            first_byte_timeout: self.first_byte_timeout.or(other.first_byte_timeout),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            answer_timeout: self.answer_timeout.or(other.answer_timeout),
            kind: self.kind.or(other.kind),
        }
    }

    pub(crate) fn dialect(&self) -> Option<DialectSetting> {
        named_value(self.dialect)
    }

    /// Most steps of one prompt.
    pub(crate) fn max_steps(&self) -> u32 {
        let count = self.max_tool_iterations.and_then(|count| u32::try_from(count).ok());
        count.filter(|count| *count > 0).unwrap_or(20)
    }

    pub(crate) fn model(self) -> ModelSettings {
        let usual = ProviderTimeouts::default();
        let time = |span: Option<ConfigDuration>, usual: Duration| span.map_or(usual, ConfigDuration::duration);
        ModelSettings {
            timeouts: ProviderTimeouts {
                connect: time(self.connect_timeout, usual.connect),
                first_byte: time(self.first_byte_timeout, usual.first_byte),
                idle: time(self.idle_timeout, usual.idle),
                answer: self.answer_timeout.map(ConfigDuration::duration),
            },
            provider: named_value(self.provider),
            base_url: self.base_url,
            api_key_env: self.api_key_env,
            model: self.model,
            script: self.script,
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            context_tokens: self.context_tokens,
            max_prompt_tokens: self.max_prompt_tokens,
            max_prompt_duration: self.max_prompt_duration.map(ConfigDuration::duration),
            system_prompt: self.system_prompt,
            project_instructions: self.project_instructions.unwrap_or(true),
            repair_tool_calls: match self.repair_tool_calls {
                Some(true) => CallRepair::Unambiguous,
                Some(false) | None => CallRepair::Never,
            },
        }
    }
}
