//! Profiles of toolchains: data about a compiler or a package manager, such as its registry and its caches.
//!
//! They are chosen by files of the workspace or by name, and come to the profile of the agent. A toolchain grants nothing
//! that policy denies.
//!
//! Not here: its file (`profile_files.rs`), and what a run gets of it (`run_toolchains.rs`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::cli::wrapped_run::profile::ProfileEnvironment;
use crate::cli::wrapped_run::profile_files::{
    ProfileData, ProfileError, is_absolute, is_below, load, names, not_allowed, unknown,
};
use crate::config::Environment;
use crate::config::credentials::CredentialSetting;
use crate::config::run::WrappedProgramSettings;

/// The name that stands for no toolchain.
pub(crate) const NO_TOOLCHAIN: &str = "none";

/// Data about one toolchain.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolchainProfile {
    /// Its name, from the name of its file.
    #[serde(skip)]
    pub(crate) name: String,
    /// Programs that are shown if they are found.
    pub(crate) programs: Vec<String>,
    /// Files of a workspace that choose it.
    pub(crate) workspace_files: Vec<String>,
    /// Hosts of its registry, each with a port if it is not 443.
    pub(crate) hosts: Vec<String>,
    /// Directories below the home directory that get a cache layer.
    pub(crate) caches: Vec<String>,
    /// Variables, with `${home}` in their values.
    pub(crate) environment: ProfileEnvironment,
    /// Keys that its programs use and never see.
    pub(crate) credentials: Vec<CredentialSetting>,
    /// Read-only files at absolute paths.
    pub(crate) files: BTreeMap<String, String>,
}

impl ProfileData for ToolchainProfile {
    const KIND: &'static str = "toolchain";
    const DIRECTORY: &'static str = "toolchains";
    const EMBEDDED: &'static [(&'static str, &'static str)] = &[
        ("gh", include_str!("toolchains/gh.toml")),
        ("go", include_str!("toolchains/go.toml")),
        ("java", include_str!("toolchains/java.toml")),
        ("node", include_str!("toolchains/node.toml")),
        ("python", include_str!("toolchains/python.toml")),
        ("rust", include_str!("toolchains/rust.toml")),
    ];

    fn complete(&mut self, name: &str, environment: &Environment) -> Result<(), String> {
        name.clone_into(&mut self.name);
        self.credentials.iter().try_for_each(|credential| credential.check(environment.home.as_deref()))?;
        if !self.credentials.is_empty() && !self.workspace_files.is_empty() {
            return Err("one with `credentials` must not be chosen by `workspace_files`, but by name".to_owned());
        }
        if let Some(path) = self.files.keys().find(|path| !is_absolute(path)) {
            return Err(format!("`{path}` must be an absolute path without `..`"));
        }
        if let Some(path) = self.caches.iter().find(|path| !is_below(path)) {
            return Err(format!("`{path}` must be a path below the home directory, such as `.cache/tool`"));
        }
        let is_name = |name: &str| is_below(name) && !name.contains('/');
        match self.programs.iter().chain(&self.workspace_files).find(|name| !is_name(name)) {
            Some(name) => Err(format!("`{name}` must be the name of a file, without a `/`")),
            None => Ok(()),
        }
    }
}

/// The toolchains of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ToolchainChoice<'a> {
    /// Those of the command line.
    Named(&'a [String]),
    /// Those that have a file in one of these directories of the workspace.
    ByFiles(&'a [&'a Path]),
}

impl ToolchainProfile {
    /// The chosen toolchains, by name.
    pub(crate) fn find(
        choice: ToolchainChoice<'_>,
        settings: &WrappedProgramSettings,
        environment: &Environment,
    ) -> Result<Vec<Self>, ProfileError> {
        match choice {
            ToolchainChoice::Named([name]) if name == NO_TOOLCHAIN => Ok(Vec::new()),
            ToolchainChoice::Named(named) => {
                let mut named: Vec<&String> = named.iter().collect();
                named.sort();
                named.dedup();
                named.into_iter().map(|name| Self::named(name, settings, environment)).collect()
            }
            ToolchainChoice::ByFiles(directories) => {
                let mut chosen = Vec::new();
                for name in names::<Self>(environment) {
                    if settings.allows_toolchain(&name)
                        && let Some(profile) = load::<Self>(&name, environment)?
                        && profile.is_chosen_in(directories)
                    {
                        chosen.push(profile);
                    }
                }
                Ok(chosen)
            }
        }
    }

    fn named(name: &str, settings: &WrappedProgramSettings, environment: &Environment) -> Result<Self, ProfileError> {
        if name == NO_TOOLCHAIN {
            return Err(ProfileError::NoneAndOthers);
        }
        let profile = load(name, environment)?.ok_or_else(|| unknown::<Self>(name))?;
        match settings.allows_toolchain(name) {
            true => Ok(profile),
            false => Err(not_allowed::<Self>(name, settings.toolchains.as_ref())),
        }
    }

    fn is_chosen_in(&self, directories: &[&Path]) -> bool {
        directories.iter().any(|directory| self.workspace_files.iter().any(|name| directory.join(name).is_file()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CliFlags, load as load_settings};

    fn environment(directory: &Path) -> Environment {
        Environment { config: Some(directory.join("config")), ..Environment::isolated(directory, "/proc/self/exe") }
    }

    fn write(directory: &Path, path: &str, text: &str) {
        let file = directory.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    fn find(choice: ToolchainChoice<'_>, environment: &Environment) -> Result<Vec<String>, String> {
        let settings = load_settings(&CliFlags::default(), environment).unwrap();
        let found = ToolchainProfile::find(choice, &settings.wrapped, environment);
        found.map(|found| found.into_iter().map(|profile| profile.name).collect()).map_err(|error| error.to_string())
    }

    fn named(names: &[&str], environment: &Environment) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        find(ToolchainChoice::Named(&names), environment)
    }

    #[test]
    fn files_of_the_workspace_choose_toolchains() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        let (workspace, below) = (directory.path().join("w"), directory.path().join("w/web"));
        let by_files = || find(ToolchainChoice::ByFiles(&[&workspace, &below]), &environment).unwrap();
        assert_eq!(by_files(), Vec::<String>::new());
        write(&workspace, "Cargo.toml", "");
        write(&workspace, "requirements.txt", "");
        write(&workspace, "deep/er/go.mod", "");
        write(&below, "package.json", "{}");
        assert_eq!(by_files(), ["node", "python", "rust"]);
        for (name, file) in
            [("go", "go.mod"), ("java", "pom.xml"), ("java", "build.gradle"), ("python", "pyproject.toml")]
        {
            let one = directory.path().join(file);
            write(&one, file, "");
            assert_eq!(find(ToolchainChoice::ByFiles(&[&one]), &environment).unwrap(), [name]);
        }
        // One of the user's own.
        write(directory.path(), "config/toolchains/ruby.toml", "workspace_files = [\"Gemfile\"]\ncaches = [\".gem\"]");
        write(&workspace, "Gemfile", "");
        assert_eq!(by_files(), ["node", "python", "ruby", "rust"]);
    }

    #[test]
    fn toolchains_are_named_and_the_owner_of_the_machine_closes_them() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        assert_eq!(named(&["rust", "go", "rust"], &environment).unwrap(), ["go", "rust"]);
        assert_eq!(named(&["none"], &environment).unwrap(), Vec::<String>::new());
        assert_eq!(
            named(&["none", "go"], &environment).unwrap_err(),
            "`--toolchain none` cannot be combined with other toolchains"
        );
        assert_eq!(
            named(&["cobol"], &environment).unwrap_err(),
            "unknown toolchain `cobol`; available: gh, go, java, node, python, rust, none"
        );
        write(directory.path(), "managed/config.toml", "[run]\ntoolchains = [\"node\"]\n");
        assert_eq!(
            named(&["go"], &environment).unwrap_err(),
            "the machine's managed config does not allow the toolchain `go`; it allows `node`"
        );
        write(directory.path(), "w/go.mod", "");
        write(directory.path(), "w/package.json", "");
        let workspace = directory.path().join("w");
        assert_eq!(find(ToolchainChoice::ByFiles(&[&workspace]), &environment).unwrap(), ["node"]);
    }

    #[test]
    fn an_invalid_toolchain_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let environment = environment(directory.path());
        for (text, problem) in [
            ("cache = []", "unknown field `cache`"),
            ("caches = [\"../x\"]", "`../x` must be a path below the home directory"),
            ("caches = [\"/x\"]", "`/x` must be a path below the home directory"),
            (
                "workspace_files = [\"x\"]\n[[credentials]]\nname = \"a\"\nhosts = [\"h\"]\nheaders = [\"x\"]\nsource = [\"env:K\"]",
                "one with `credentials` must not be chosen by `workspace_files`",
            ),
            ("[files]\n\"etc/x\" = \"\"", "`etc/x` must be an absolute path without `..`"),
            ("programs = [\"bin/x\"]", "`bin/x` must be the name of a file"),
            ("workspace_files = [\"..\"]", "`..` must be the name of a file"),
        ] {
            write(directory.path(), "config/toolchains/mine.toml", text);
            let error = named(&["mine"], &environment).unwrap_err();
            assert!(error.starts_with(&format!("invalid toolchain `mine`: {problem}")), "{error}");
        }
    }
}
