//! Profiles of wrapped programs: data about an agent, such as its hosts, its keys and the files that it starts with.
//!
//! A profile of the machine's owner holds over one of the user, and both over the ones that are compiled in. A profile
//! grants nothing that policy denies.
//!
//! Not here: using it (`mod.rs`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::codec::io_text::IoText;
use crate::config::Environment;
use crate::config::MAX_FILE_BYTES;
use crate::config::credentials::CredentialSetting;
use crate::config::strict_modes::{UnsafePermissionsError, check_config};

/// The profile of a program that has none: no hosts, no keys, an empty home directory.
pub(crate) const NO_PROFILE: &str = "none";

/// Profiles that are compiled in, by name.
const EMBEDDED_PROFILES: [(&str, &str); 7] = [
    ("aider", include_str!("profiles/aider.toml")),
    ("claude", include_str!("profiles/claude.toml")),
    ("codex", include_str!("profiles/codex.toml")),
    ("crush", include_str!("profiles/crush.toml")),
    ("gemini", include_str!("profiles/gemini.toml")),
    ("goose", include_str!("profiles/goose.toml")),
    ("opencode", include_str!("profiles/opencode.toml")),
];

/// Directory of profiles in a config directory.
const PROFILES_DIRECTORY: &str = "profiles";

/// Data about one agent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AgentProfile {
    /// Its name, from the name of its file.
    #[serde(skip)]
    pub(crate) name: String,
    /// Names of programs that choose it.
    pub(crate) programs: Vec<String>,
    /// Arguments before those of the command line.
    pub(crate) arguments: Vec<String>,
    /// Hosts that it may reach, each with a port if it is not 443.
    pub(crate) hosts: Vec<String>,
    pub(crate) credentials: Vec<CredentialSetting>,
    pub(crate) environment: ProfileEnvironment,
    pub(crate) home: ProfileHome,
    /// Read-only files at absolute paths.
    pub(crate) files: BTreeMap<String, String>,
}

/// Environment variables of a profile.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProfileEnvironment {
    pub(crate) set: BTreeMap<String, String>,
    /// Variables of the person that it gets. A star stands for any ending.
    pub(crate) pass: Vec<String>,
}

/// The home directory that an agent starts with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProfileHome {
    /// Files and directories of the person's home directory that are copied.
    pub(crate) copy: Vec<String>,
    /// Files that go back into the person's home directory: what no agent acts on, such as transcripts. A star stands for any
    /// text in a name, and `${workspace:dashes}` for the path of the workspace with `-` for all but letters and digits.
    pub(crate) keep: Vec<String>,
    /// Files by their paths, with `${workspace}` and `${placeholder:NAME:LENGTH}`.
    pub(crate) files: BTreeMap<String, String>,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error("unknown profile `{name}`; available: {known}")]
    Unknown { name: String, known: String },
    #[error("the machine's managed config does not allow the profile `{0}`; it allows {1}")]
    NotAllowed(String, String),
    #[error("cannot read the profile `{name}`: {}", IoText(.source))]
    Read { name: String, source: std::io::Error },
    #[error(transparent)]
    Unsafe(#[from] UnsafePermissionsError),
    #[error("invalid profile `{name}`: {problem}")]
    Invalid { name: String, problem: String },
}

impl AgentProfile {
    /// The named profile; without a name, the one for this program.
    pub(crate) fn find(name: Option<&str>, program: &str, environment: &Environment) -> Result<Self, ProfileError> {
        match name {
            Some(NO_PROFILE) => Ok(Self { name: NO_PROFILE.to_owned(), ..Self::default() }),
            Some(name) => Self::load(name, environment)?.ok_or_else(|| ProfileError::Unknown {
                name: name.to_owned(),
                known: EMBEDDED_PROFILES
                    .iter()
                    .map(|(name, _)| *name)
                    .chain([NO_PROFILE])
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
            None => Self::for_program(program, environment),
        }
    }

    fn for_program(program: &str, environment: &Environment) -> Result<Self, ProfileError> {
        if let Some(own) = Self::load_file(program, environment)? {
            return Ok(own);
        }
        for (name, _) in EMBEDDED_PROFILES {
            if let Some(profile) = Self::load(name, environment)?
                && profile.programs.iter().any(|known| known == program)
            {
                return Ok(profile);
            }
        }
        Ok(Self { name: NO_PROFILE.to_owned(), ..Self::default() })
    }

    fn load(name: &str, environment: &Environment) -> Result<Option<Self>, ProfileError> {
        if let Some(own) = Self::load_file(name, environment)? {
            return Ok(Some(own));
        }
        let embedded = EMBEDDED_PROFILES.iter().find(|(known, _)| *known == name);
        embedded.map(|(name, text)| Self::parse(name, text, environment)).transpose()
    }

    /// From the config directory of the machine's owner, else of the user.
    fn load_file(name: &str, environment: &Environment) -> Result<Option<Self>, ProfileError> {
        let is_plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        if !is_plain {
            return Ok(None);
        }
        for directory in std::iter::once(&environment.managed).chain(&environment.config) {
            let file = directory.join(PROFILES_DIRECTORY).join(format!("{name}.toml"));
            if let Some(text) = read_profile(name, &file)? {
                return Self::parse(name, &text, environment).map(Some);
            }
        }
        Ok(None)
    }

    fn parse(name: &str, text: &str, environment: &Environment) -> Result<Self, ProfileError> {
        let invalid = |problem: String| ProfileError::Invalid { name: name.to_owned(), problem };
        let mut profile: Self = toml::from_str(text).map_err(|error| invalid(error.message().to_owned()))?;
        profile.name = name.to_owned();
        for credential in &profile.credentials {
            credential.check(environment.home.as_deref()).map_err(invalid)?;
        }
        let relative = profile.home.copy.iter().chain(&profile.home.keep).chain(profile.home.files.keys());
        if let Some(path) = relative.into_iter().find(|path| !is_below(path)) {
            return Err(invalid(format!("`{path}` must be a path below the home directory, such as `.config/agent`")));
        }
        if let Some(path) = profile.home.keep.iter().find(|path| path.split('/').any(|name| name == "**")) {
            return Err(invalid(format!("`{path}` must have a name or a pattern such as `*.jsonl` between slashes")));
        }
        if let Some(path) =
            profile.files.keys().find(|path| path.strip_prefix('/').is_none_or(|below| !is_below(below)))
        {
            return Err(invalid(format!("`{path}` must be an absolute path without `..`")));
        }
        Ok(profile)
    }
}

/// Whether a path has plain names only.
fn is_below(path: &str) -> bool {
    !path.is_empty() && path.split('/').all(|name| !matches!(name, "" | "." | ".."))
}

fn read_profile(name: &str, file: &Path) -> Result<Option<String>, ProfileError> {
    let failed = |source| ProfileError::Read { name: name.to_owned(), source };
    match std::fs::metadata(file) {
        Ok(found) if found.len() > MAX_FILE_BYTES => Err(failed(std::io::Error::other("the file is too large"))),
        Ok(_) => {
            check_config(file)?;
            std::fs::read_to_string(file).map(Some).map_err(failed)
        }
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(directory: &Path) -> Environment {
        Environment { config: Some(directory.join("config")), ..Environment::isolated(directory, "/proc/self/exe") }
    }

    fn write(directory: &Path, path: &str, text: &str) {
        let file = directory.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    #[test]
    fn every_embedded_profile_is_valid_and_chosen_by_its_programs() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        for (name, _) in EMBEDDED_PROFILES {
            let profile = AgentProfile::find(Some(name), "", &environment).unwrap();
            assert_eq!(profile.name, name);
            for program in &profile.programs {
                assert_eq!(AgentProfile::find(None, program, &environment).unwrap().name, name);
            }
            // Nothing goes back that an agent acts on: files of transcripts have names of their own.
            let is_transcript = |file: &String| file.ends_with("*.jsonl") || file.ends_with("/chats/session-*.json");
            assert!(profile.home.keep.iter().all(is_transcript), "{name}");
            // A key goes only to a host that the profile allows.
            for credential in &profile.credentials {
                assert!(credential.hosts.iter().all(|host| profile.hosts.contains(host)), "{name}");
            }
        }
        assert_eq!(AgentProfile::find(None, "make", &environment).unwrap().name, NO_PROFILE);
        assert_eq!(AgentProfile::find(Some("none"), "claude", &environment).unwrap().hosts, Vec::<String>::new());
    }

    #[test]
    fn the_owner_s_profile_holds_over_the_user_s_and_both_over_ours() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        let hosts = || AgentProfile::find(None, "claude", &environment).unwrap().hosts;
        assert_eq!(hosts(), ["api.anthropic.com"]);
        write(directory.path(), "config/profiles/claude.toml", "programs = [\"claude\"]\nhosts = [\"user.example\"]");
        assert_eq!(hosts(), ["user.example"]);
        write(directory.path(), "managed/profiles/claude.toml", "hosts = [\"owner.example\"]");
        assert_eq!(hosts(), ["owner.example"]);
    }

    #[test]
    fn an_invalid_profile_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        for (text, problem) in [
            ("host = []", "unknown field `host`"),
            ("[home]\ncopy = [\"../x\"]", "`../x` must be a path below the home directory"),
            ("[home.files]\n\"/etc/x\" = \"\"", "`/etc/x` must be a path below the home directory"),
            ("[home]\nkeep = [\"a/**\"]", "`a/**` must have a name or a pattern"),
            ("[home]\nkeep = [\"/x\"]", "`/x` must be a path below the home directory"),
            ("[files]\n\"etc/x\" = \"\"", "`etc/x` must be an absolute path"),
            ("[files]\n\"/etc/../x\" = \"\"", "`/etc/../x` must be an absolute path"),
            ("[[credentials]]\nname = \"a\"\nhosts = []\nheaders = []\nsource = []", "credential `a`: `hosts` must"),
        ] {
            write(directory.path(), "config/profiles/mine.toml", text);
            let error = AgentProfile::find(Some("mine"), "", &environment).unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid profile `mine`: {problem}")), "{error}");
        }
        let error = AgentProfile::find(Some("absent"), "", &environment).unwrap_err().to_string();
        assert!(error.starts_with("unknown profile `absent`; available: aider, claude,"), "{error}");
    }
}
