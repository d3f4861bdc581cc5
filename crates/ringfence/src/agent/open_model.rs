//! From what the config says to a model: the one place where a provider is chosen.
//!
//! Not here: how providers speak to their servers (`ringfence-agent`).

use std::path::PathBuf;
use std::sync::Arc;

use ringfence_agent::{BadScript, Model, Script};

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
  printf '%s\\n' '{{\"calls\":[{{\"name\":\"list_directory\",\"arguments\":{{\"path\":\".\"}}}}]}}' '{{\"text\":\"That is all.\"}}' > demo.jsonl
  ringfence agent --script demo.jsonl \"what is here?\""
    )]
    Missing,
    #[error("the model has no name: set `model` below `[agents.defaults]`, or use `--model NAME`")]
    NoName,
    #[error("`provider = \"{0}\"` is not built into this program")]
    NoProvider(&'static str),
    #[error("a scripted model needs its file: set `script`, or use `--script FILE`")]
    NoScript,
    #[error("the script cannot be read: {0}")]
    Script(std::io::Error),
    #[error(transparent)]
    BadScript(#[from] BadScript),
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
            Ok(Arc::new(Script::parse(&text)?))
        }
        Provider::OpenAi | Provider::Anthropic if settings.model.is_none() => Err(NoModel::NoName),
        Provider::OpenAi => Err(NoModel::NoProvider("openai")),
        Provider::Anthropic => Err(NoModel::NoProvider("anthropic")),
    }
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
