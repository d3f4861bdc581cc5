//! Files of profiles: where the data of a profile comes from.
//!
//! A file of the machine's owner holds over one of the user, and both over what is compiled in.
//!
//! Not here: what is in a profile (`profile.rs`, `toolchain_profile.rs`).

use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::codec::io_text::IoText;
use crate::config::strict_modes::{UnsafePermissionsError, check_config};
use crate::config::{Environment, MAX_FILE_BYTES};

/// A kind of profile.
pub(crate) trait ProfileData: DeserializeOwned {
    /// Its name in messages.
    const KIND: &'static str;
    /// Directory of its files in a config directory.
    const DIRECTORY: &'static str;
    /// Those that are compiled in, by name.
    const EMBEDDED: &'static [(&'static str, &'static str)];

    /// Takes its name, and checks what is in it.
    fn complete(&mut self, name: &str, environment: &Environment) -> Result<(), String>;
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error("unknown {kind} `{name}`; available: {known}")]
    Unknown { kind: &'static str, name: String, known: String },
    #[error("the machine's managed config does not allow the {kind} `{name}`; it allows {allowed}")]
    NotAllowed { kind: &'static str, name: String, allowed: String },
    #[error("cannot read the {kind} `{name}`: {}", IoText(.source))]
    Read { kind: &'static str, name: String, source: std::io::Error },
    #[error(transparent)]
    Unsafe(#[from] UnsafePermissionsError),
    #[error("invalid {kind} `{name}`: {problem}")]
    Invalid { kind: &'static str, name: String, problem: String },
    #[error("a profile must be outside of the workspace, where programs cannot change it")]
    InWorkspace,
    #[error("`--toolchain none` cannot be combined with other toolchains")]
    NoneAndOthers,
}

/// The named profile, if there is one.
pub(crate) fn load<P: ProfileData>(name: &str, environment: &Environment) -> Result<Option<P>, ProfileError> {
    if let Some(own) = load_file(name, environment)? {
        return Ok(Some(own));
    }
    let embedded = P::EMBEDDED.iter().find(|(known, _)| *known == name);
    embedded.map(|(name, text)| parse(name, text, environment)).transpose()
}

/// From the config directory of the machine's owner, else of the user.
pub(crate) fn load_file<P: ProfileData>(name: &str, environment: &Environment) -> Result<Option<P>, ProfileError> {
    if !is_profile_name(name) {
        return Ok(None);
    }
    for directory in std::iter::once(&environment.managed).chain(&environment.config) {
        let file = directory.join(P::DIRECTORY).join(format!("{name}.toml"));
        if let Some(text) = read_profile::<P>(name, &file)? {
            return parse(name, &text, environment).map(Some);
        }
    }
    Ok(None)
}

/// Whether a profile is named by its file.
pub(crate) fn is_profile_file(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

/// From a file that the person names. Its name is that of the file.
pub(crate) fn load_path<P: ProfileData>(path: &Path, environment: &Environment) -> Result<P, ProfileError> {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    if !is_profile_name(name) {
        let problem = "the name of its file may have letters, digits, `-` and `_`, and ends in `.toml`".to_owned();
        return Err(ProfileError::Invalid { kind: P::KIND, name: name.to_owned(), problem });
    }
    let absent = || {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such file");
        ProfileError::Read { kind: P::KIND, name: name.to_owned(), source }
    };
    parse(name, &read_profile::<P>(name, path)?.ok_or_else(absent)?, environment)
}

/// Names of all profiles, sorted.
pub(crate) fn names<P: ProfileData>(environment: &Environment) -> BTreeSet<String> {
    let directories = std::iter::once(&environment.managed).chain(&environment.config);
    let files = directories.flat_map(|directory| std::fs::read_dir(directory.join(P::DIRECTORY)).into_iter().flatten());
    let own = files.flatten().filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        name.strip_suffix(".toml").filter(|name| is_profile_name(name)).map(str::to_owned)
    });
    own.chain(P::EMBEDDED.iter().map(|(name, _)| (*name).to_owned())).collect()
}

/// The error for a name that no profile has. `none` is always known.
pub(crate) fn unknown<P: ProfileData>(name: &str) -> ProfileError {
    let known = P::EMBEDDED.iter().map(|(name, _)| *name).chain(["none"]).collect::<Vec<_>>().join(", ");
    ProfileError::Unknown { kind: P::KIND, name: name.to_owned(), known }
}

/// The error for a profile that the machine's owner closed.
pub(crate) fn not_allowed<P: ProfileData>(name: &str, allowed: Option<&BTreeSet<String>>) -> ProfileError {
    let listed = allowed.into_iter().flatten().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let allowed = if listed.is_empty() { "none".to_owned() } else { listed };
    ProfileError::NotAllowed { kind: P::KIND, name: name.to_owned(), allowed }
}

/// Whether a path has plain names only.
pub(crate) fn is_below(path: &str) -> bool {
    !path.is_empty() && path.split('/').all(|name| !matches!(name, "" | "." | ".."))
}

/// Whether an absolute path has plain names only.
pub(crate) fn is_absolute(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(is_below)
}

fn is_profile_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn parse<P: ProfileData>(name: &str, text: &str, environment: &Environment) -> Result<P, ProfileError> {
    let invalid = |problem: String| ProfileError::Invalid { kind: P::KIND, name: name.to_owned(), problem };
    let mut profile: P = toml::from_str(text).map_err(|error| invalid(error.message().to_owned()))?;
    profile.complete(name, environment).map_err(invalid)?;
    Ok(profile)
}

fn read_profile<P: ProfileData>(name: &str, file: &Path) -> Result<Option<String>, ProfileError> {
    let failed = |source| ProfileError::Read { kind: P::KIND, name: name.to_owned(), source };
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
