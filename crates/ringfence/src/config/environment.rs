//! Process environment: directories, names and variables, read once here and passed on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::ConfigError;

/// The environment of this user and machine.
#[derive(Clone, Debug)]
pub struct Environment {
    pub home: Option<PathBuf>,
    pub current: PathBuf,
    /// Config directory of the machine's owner.
    pub managed: PathBuf,
    /// Config directory of this user.
    pub config: Option<PathBuf>,
    /// State directory of this user's programs.
    pub state: Option<PathBuf>,
    /// A config file named by `$RINGFENCE_CONFIG`.
    pub config_file: Option<PathBuf>,
    /// Name of this user, for records.
    pub user: Option<String>,
    /// Their editor: `$VISUAL` or `$EDITOR`.
    pub editor: Option<String>,
    /// They want no colours: `$NO_COLOR`.
    pub no_color: bool,
    /// Every variable, for keys whose names the config says.
    pub variables: EnvironmentVariables,
    /// The program that starts jails: our own, or another whose `main` begins with `ringfence::run_helper_if_requested`.
    pub program: PathBuf,
}

/// The variables of the environment. Nothing shows their values, because keys are among them.
#[derive(Clone, Default)]
pub struct EnvironmentVariables(pub BTreeMap<String, String>);

impl fmt::Debug for EnvironmentVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// Reads the environment, once.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn read() -> Result<Self, ConfigError> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let home = variable("HOME").filter(|home| home.is_absolute());
        let below_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let config =
            absolute("XDG_CONFIG_HOME").or_else(|| below_home(".config")).map(|config| config.join("ringfence"));
        let state =
            absolute("XDG_STATE_HOME").or_else(|| below_home(".local/state")).map(|state| state.join("ringfence"));
        Ok(Self {
            current: std::env::current_dir().map_err(ConfigError::NoCurrentDirectory)?,
            managed: PathBuf::from("/etc/ringfence"),
            config,
            state: absolute("RINGFENCE_STATE_DIR").or(state),
            config_file: variable("RINGFENCE_CONFIG"),
            user: text("USER").or_else(|| text("LOGNAME")),
            editor: text("VISUAL").or_else(|| text("EDITOR")),
            no_color: variable("NO_COLOR").is_some(),
            variables: EnvironmentVariables(std::env::vars_os().filter_map(utf8_variable).collect()),
            program: PathBuf::from("/proc/self/exe"),
            home,
        })
    }

    /// One that has nothing of this user's: no config and no variables, and what is kept goes below a directory.
    pub fn isolated(directory: &Path, program: impl Into<PathBuf>) -> Self {
        Self {
            home: Some(directory.join("home")),
            current: directory.to_owned(),
            managed: directory.join("managed"),
            config: None,
            state: Some(directory.join("state")),
            config_file: None,
            user: None,
            editor: None,
            no_color: true,
            variables: EnvironmentVariables::default(),
            program: program.into(),
        }
    }
}

fn utf8_variable((name, value): (OsString, OsString)) -> Option<(String, String)> {
    name.into_string().ok().zip(value.into_string().ok().filter(|value| !value.trim().is_empty()))
}
