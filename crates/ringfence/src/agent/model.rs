//! Model provider selection from the config.
//!
//! Not here: the wire protocols of providers (`ringfence-agent`).

use std::path::PathBuf;
use std::sync::Arc;

use ringfence_agent::provider::{self, ProviderProtocol, ProviderTimeouts, SecretString};
use ringfence_agent::{LanguageModel, ModelError};

use crate::codec::io_text::IoText;
use crate::config::Environment;
use crate::config::agents::{ModelSettings, ProviderChoice};

/// No script is longer than this.
const MAX_SCRIPT_BYTES: u64 = 16 << 20;

/// Failure to select a model.
#[derive(Debug, thiserror::Error)]
pub enum OpenModelError {
    #[error(
        "no model is configured; three options for your config file (`~/.config/ringfence/config.toml`):\n
  # a local server, such as llama.cpp, Ollama or vLLM
  [agents.defaults]
  provider = \"openai\"
  base_url = \"http://127.0.0.1:11434/v1\"
  model = \"qwen3:8b\"\n
  # a hosted one; the key stays in the environment
  [agents.defaults]
  provider = \"anthropic\"
  api_key_env = \"ANTHROPIC_API_KEY\"
  model = \"claude-sonnet-4-5\"\n
  # no model, only a demonstration
  ringfence demo"
    )]
    NotConfigured,
    #[error("no model name: set `model` under `[agents.defaults]`, or use `--model NAME`")]
    MissingName,
    #[error("API key missing: set the environment variable `{0}`, or name another one with `api_key_env`")]
    MissingKey(String),
    #[error(transparent)]
    Provider(#[from] ModelError),
    #[error("a scripted model needs a file: set `script`, or use `--script FILE`")]
    MissingScript,
    #[error("cannot read the script: {}", IoText(.0))]
    Script(std::io::Error),
}

/// Opens the model that the settings name. Nothing is asked of it yet.
pub(crate) fn open_model(
    settings: &ModelSettings,
    environment: &Environment,
) -> Result<Arc<dyn LanguageModel>, OpenModelError> {
    let provider = match (settings.provider, &settings.script) {
        (Some(provider), _) => provider,
        (None, Some(_)) => ProviderChoice::Script,
        (None, None) => return Err(OpenModelError::NotConfigured),
    };
    match provider {
        ProviderChoice::Script => {
            let file = settings.script.as_ref().ok_or(OpenModelError::MissingScript)?;
            let text = read_script(&environment.current.join(file)).map_err(OpenModelError::Script)?;
            let model = settings.model.clone().unwrap_or_else(|| "script".to_owned());
            Ok(Arc::from(provider::open(provider_for(ProviderProtocol::Scripted(text), String::new(), model))?))
        }
        ProviderChoice::OpenAi => {
            http_model(ProviderProtocol::OpenAi, "https://api.openai.com/v1", settings, environment)
        }
        ProviderChoice::Anthropic => {
            http_model(ProviderProtocol::Anthropic, "https://api.anthropic.com", settings, environment)
        }
    }
}

fn http_model(
    kind: ProviderProtocol,
    usual_url: &str,
    settings: &ModelSettings,
    environment: &Environment,
) -> Result<Arc<dyn LanguageModel>, OpenModelError> {
    let model = settings.model.clone().ok_or(OpenModelError::MissingName)?;
    let key = match &settings.api_key_env {
        None => None,
        Some(name) => {
            let found = environment.variables.0.get(name).ok_or_else(|| OpenModelError::MissingKey(name.clone()))?;
            Some(SecretString::new(found))
        }
    };
    let base_url = settings.base_url.clone().unwrap_or_else(|| usual_url.to_owned());
    let timeouts = settings.timeouts;
    let provider = provider::ModelProvider { key, timeouts, ..provider_for(kind, base_url, model) };
    Ok(Arc::from(provider::open(provider)?))
}

pub(crate) fn provider_for(kind: ProviderProtocol, base_url: String, model: String) -> provider::ModelProvider {
    let (key, headers, timeouts) = (None, Vec::new(), ProviderTimeouts::default());
    provider::ModelProvider { kind, base_url, model, key, headers, timeouts, stream: true }
}

fn read_script(file: &PathBuf) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(file)?.take(MAX_SCRIPT_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_SCRIPT_BYTES {
        true => Err(std::io::Error::other(format!("the file is larger than {MAX_SCRIPT_BYTES} bytes"))),
        false => Ok(text),
    }
}
