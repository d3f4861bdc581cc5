//! Credentials of a wrapped run: keys read outside, placeholders for the inside.
//!
//! A key is read once, at the start. The program gets a placeholder, and requests with it get the key outside of the jail.
//!
//! Not here: the replacement (`ringfence-web`), and the settings (`config/credentials.rs`).

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use ringfence_web::{CredentialBinding, SecretText, placeholder_like};
use serde_json::Value;

use crate::codec::io_text::IoText;
use crate::config::Environment;
use crate::config::credentials::{CredentialSetting, CredentialSource};
use crate::process::program_launcher::ProgramLauncher;

/// No key is longer.
const MAX_KEY_BYTES: u64 = 64 << 10;

/// A key that could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    #[error("credential `{name}`: {problem}")]
    Invalid { name: String, problem: String },
    #[error("credential `{name}`: cannot read its file: {}", IoText(.source))]
    File { name: String, source: std::io::Error },
    #[error("credential `{name}`: `{program}` failed: {}", IoText(.source))]
    Command { name: String, program: String, source: std::io::Error },
    #[error("cannot make a placeholder: {0}")]
    Random(getrandom::Error),
}

/// Keys with their placeholders.
#[derive(Debug, Default)]
pub(crate) struct RunCredentials {
    pub(crate) bindings: Vec<CredentialBinding>,
    /// Variables of the program, with placeholders.
    pub(crate) variables: BTreeMap<String, String>,
    /// Names of credentials without a key.
    pub(crate) missing: Vec<String>,
}

impl RunCredentials {
    /// Reads the keys. A credential without a key is left out.
    pub(crate) fn read(
        settings: &[CredentialSetting],
        environment: &Environment,
        launcher: &ProgramLauncher,
    ) -> Result<Self, CredentialError> {
        let mut credentials = Self::default();
        for setting in settings {
            match read_key(setting, environment, launcher)? {
                Some(key) => credentials.add(setting, key)?,
                None => credentials.missing.push(setting.name.clone()),
            }
        }
        Ok(credentials)
    }

    fn add(&mut self, setting: &CredentialSetting, key: String) -> Result<(), CredentialError> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(CredentialError::Random)?;
        let placeholder = placeholder_like(&setting.placeholder, &random);
        let headers = setting.header_kinds().map_err(|problem| invalid(setting, problem))?;
        let asked = setting.asked_requests().map_err(|problem| invalid(setting, problem))?;
        for variable in setting.variables() {
            self.variables.insert(variable.to_owned(), placeholder.clone());
        }
        self.bindings.push(CredentialBinding {
            name: setting.name.clone(),
            hosts: setting.hosts.clone(),
            paths: setting.paths.clone(),
            websocket_paths: setting.websocket_paths.clone(),
            headers,
            asked,
            placeholder,
            secret: SecretText::new(key),
        });
        Ok(())
    }

    /// The placeholder of a credential that has a key.
    pub(crate) fn placeholder(&self, name: &str) -> Option<&str> {
        self.bindings.iter().find(|binding| binding.name == name).map(|binding| binding.placeholder.as_str())
    }
}

fn invalid(setting: &CredentialSetting, problem: impl Into<String>) -> CredentialError {
    CredentialError::Invalid { name: setting.name.clone(), problem: problem.into() }
}

/// The key of the first source that has one.
fn read_key(
    setting: &CredentialSetting,
    environment: &Environment,
    launcher: &ProgramLauncher,
) -> Result<Option<String>, CredentialError> {
    let sources = setting.sources(environment.home.as_deref()).map_err(|problem| invalid(setting, problem))?;
    for source in sources {
        let key = match source {
            CredentialSource::Variable(name) => environment.variables.0.get(&name).cloned(),
            CredentialSource::File { path, key } => read_file(setting, &path, key.as_deref())?,
            CredentialSource::Command(words) => {
                let failed = |source| CredentialError::Command {
                    name: setting.name.clone(),
                    program: words.first().cloned().unwrap_or_default(),
                    source,
                };
                let printed = launcher.read_line(&words).map_err(failed)?;
                Some(printed)
            }
        };
        let key = key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        if let Some(key) = key {
            if key.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return Err(invalid(setting, "the key contains white space or control characters"));
            }
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// The text of a file, or of a key of a JSON file. `None` where there is no such file or key.
fn read_file(setting: &CredentialSetting, path: &Path, key: Option<&str>) -> Result<Option<String>, CredentialError> {
    let failed = |source| CredentialError::File { name: setting.name.clone(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(MAX_KEY_BYTES).read_to_string(&mut text).map_err(failed)?;
    let Some(key) = key else { return Ok(Some(text)) };
    let value: Value = serde_json::from_str(&text).map_err(|_| invalid(setting, "its file is not JSON"))?;
    let found = key.split('.').try_fold(&value, |value, name| value.get(name));
    Ok(found.and_then(Value::as_str).map(str::to_owned))
}
