//! From what the config says to a model: the one place where a provider is chosen.
//!
//! Not here: how providers speak to their servers (`ringfence-agent`).

use std::path::PathBuf;
use std::sync::Arc;

use ringfence_agent::provider::{self, Kind, Secret, Timeouts};
use ringfence_agent::{Model, ModelError};

use crate::agents_config::{ModelSettings, Provider};
use crate::config::Environment;

/// No script is longer than this.
const LONGEST_SCRIPT: u64 = 16 << 20;

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum NoModel {
    #[error(
        "no model is configured; three ways to get one, each for your config file (`~/.config/ringfence/config.toml`):\n
  # a server on this machine, such as llama.cpp, Ollama or vLLM
  [agents.defaults]
  provider = \"openai\"
  base_url = \"http://127.0.0.1:11434/v1\"
  model = \"qwen3:8b\"\n
  # a hosted one; the key stays in the environment
  [agents.defaults]
  provider = \"anthropic\"
  api_key_env = \"ANTHROPIC_API_KEY\"
  model = \"claude-sonnet-4-5\"\n
  # none at all, to see how it works
  ringfence demo"
    )]
    Missing,
    #[error("the model has no name: set `model` below `[agents.defaults]`, or use `--model NAME`")]
    NoName,
    #[error("the key is not there: set the variable `{0}` of the environment, or another name as `api_key_env`")]
    NoKey(String),
    #[error(transparent)]
    Provider(#[from] ModelError),
    #[error("a scripted model needs its file: set `script`, or use `--script FILE`")]
    NoScript,
    #[error("the script cannot be read: {0}")]
    Script(std::io::Error),
}

/// Opens the model that the settings name. Nothing is asked of it yet.
pub(crate) fn open_model(settings: &ModelSettings, environment: &Environment) -> Result<Arc<dyn Model>, NoModel> {
    let provider = match (settings.provider, &settings.script) {
        (Some(provider), _) => provider,
        (None, Some(_)) => Provider::Script,
        (None, None) => return Err(NoModel::Missing),
    };
    match provider {
        Provider::Script => {
            let file = settings.script.as_ref().ok_or(NoModel::NoScript)?;
            let text = read_script(&environment.current.join(file)).map_err(NoModel::Script)?;
            let model = settings.model.clone().unwrap_or_else(|| "script".to_owned());
            Ok(Arc::from(provider::open(provider_of(Kind::Scripted(text), String::new(), model))?))
        }
        Provider::OpenAi => at_server(Kind::OpenAi, "https://api.openai.com/v1", settings, environment),
        Provider::Anthropic => at_server(Kind::Anthropic, "https://api.anthropic.com", settings, environment),
    }
}

fn at_server(
    kind: Kind,
    usual_url: &str,
    settings: &ModelSettings,
    environment: &Environment,
) -> Result<Arc<dyn Model>, NoModel> {
    let model = settings.model.clone().ok_or(NoModel::NoName)?;
    let key = match &settings.api_key_env {
        None => None,
        Some(name) => {
            let found = environment.variables.0.get(name).ok_or_else(|| NoModel::NoKey(name.clone()))?;
            Some(Secret::new(found))
        }
    };
    let base_url = settings.base_url.clone().unwrap_or_else(|| usual_url.to_owned());
    let timeouts = settings.timeouts;
    let provider = provider::Provider { key, timeouts, ..provider_of(kind, base_url, model) };
    Ok(Arc::from(provider::open(provider)?))
}

pub(super) fn provider_of(kind: Kind, base_url: String, model: String) -> provider::Provider {
    let (key, headers, timeouts) = (None, Vec::new(), Timeouts::default());
    provider::Provider { kind, base_url, model, key, headers, timeouts, stream: true }
}

fn read_script(file: &PathBuf) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(file)?.take(LONGEST_SCRIPT + 1).read_to_string(&mut text)?;
    match text.len() as u64 > LONGEST_SCRIPT {
        true => Err(std::io::Error::other(format!("it has more than {LONGEST_SCRIPT} bytes"))),
        false => Ok(text),
    }
}
