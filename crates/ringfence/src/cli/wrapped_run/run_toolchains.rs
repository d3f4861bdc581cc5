//! Toolchains of a wrapped run: what their profiles come to on this machine.
//!
//! Programs are shown if they are found, caches are opened, and hosts are named as a group. A cache that cannot be used is
//! left out with a note: its layer starts empty.
//!
//! Not here: the choice of toolchains (`toolchain_profile.rs`), and the layers on caches.

use std::collections::BTreeMap;
use std::path::Path;

use ringfence_sandbox::{HostGroup, PlacedFile, ToolCache, Toolchain};

use crate::cli::wrapped_run::program_location::ProgramSearch;
use crate::cli::wrapped_run::run_environment::matches_name;
use crate::cli::wrapped_run::toolchain_profile::ToolchainProfile;
use crate::cli::wrapped_run::with_default_port;
use crate::config::Environment;

/// What a run has of its toolchains.
#[derive(Debug, Default)]
pub(crate) struct RunToolchains {
    pub(crate) programs: Vec<Toolchain>,
    pub(crate) host_groups: Vec<HostGroup>,
    pub(crate) caches: Vec<ToolCache>,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) files: Vec<PlacedFile>,
    pub(crate) notes: Vec<String>,
}

impl RunToolchains {
    pub(crate) fn new(profiles: &[ToolchainProfile], search: &ProgramSearch<'_>, environment: &Environment) -> Self {
        let mut run = Self::default();
        for profile in profiles {
            // A version manager may have a script for it in front, which finds nothing inside.
            let missing = profile.programs.iter().filter(|program| !search.is_in_toolchain(program));
            // One that is not there, or that cannot be shown, is missing inside as on any machine without it.
            let found = missing.filter_map(|program| search.find(program).ok());
            run.programs.extend(found.flat_map(|location| location.packages));
            run.programs.dedup();
            if !profile.hosts.is_empty() {
                run.host_groups.push(HostGroup {
                    name: profile.name.clone(),
                    hosts: profile.hosts.iter().map(|host| with_default_port(host)).collect(),
                });
            }
            let files = profile.files.iter();
            run.files.extend(files.map(|(path, text)| PlacedFile { path: path.into(), contents: text.clone().into() }));
            run.add_variables(profile, search.home, environment);
            profile.caches.iter().for_each(|cache| run.add_cache(Path::new(cache), search));
        }
        if !profiles.is_empty() {
            let names = profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>().join(", ");
            run.notes.insert(0, format!("toolchains: {names} (`--toolchain none` for none)"));
        }
        run
    }

    fn add_variables(&mut self, profile: &ToolchainProfile, home: &Path, environment: &Environment) {
        let passed = environment
            .variables
            .0
            .iter()
            .filter(|(name, _)| profile.environment.pass.iter().any(|pattern| matches_name(pattern, name)));
        self.variables.extend(passed.map(|(name, value)| (name.clone(), value.clone())));
        let Some(home) = home.to_str() else { return };
        let set = profile.environment.set.iter();
        self.variables.extend(set.map(|(name, value)| (name.clone(), value.replace("${home}", home))));
    }

    fn add_cache(&mut self, path: &Path, search: &ProgramSearch<'_>) {
        let whole = search.home.join(path);
        if whole.starts_with(search.workspace) || search.workspace.starts_with(&whole) {
            self.notes
                .push(format!("the cache `~/{}` has no layer: the workspace is in it, or it in that", path.display()));
            return;
        }
        // Two toolchains may share one, and one inside another is there with that.
        if self.caches.iter().any(|known| path.starts_with(&known.path) || known.path.starts_with(path)) {
            return;
        }
        let (cache, problem) = ToolCache::find(search.home, path);
        if let Some(problem) = problem {
            self.notes.push(format!("your cache `~/{}` is not used: {problem}", path.display()));
        }
        self.caches.push(cache);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;

    fn profile(name: &str, text: &str) -> ToolchainProfile {
        ToolchainProfile { name: name.to_owned(), ..toml::from_str(text).unwrap() }
    }

    #[test]
    fn a_run_has_what_is_found_of_its_toolchains() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        let (home, workspace) = (root.join("home"), root.join("home/.linked/work"));
        for made in [".local/bin", ".own/cache", ".linked/work", "elsewhere"] {
            fs::create_dir_all(home.join(made)).unwrap();
        }
        symlink("elsewhere", home.join(".link")).unwrap();
        fs::write(home.join(".local/bin/tool"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(home.join(".local/bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = home.join(".local/bin");
        let search = ProgramSearch {
            path: path.as_os_str(),
            current: &workspace,
            home: &home,
            workspace: &workspace,
            toolchains: &[],
        };
        let profiles = [
            profile(
                "one",
                "programs = [\"tool\", \"absent\"]\nhosts = [\"a.example\"]\ncaches = [\".own/cache\", \".link\", \".linked\"]\n\
                 [environment.set]\nTOOL_HOME = \"${home}/.own\"",
            ),
            profile("two", "caches = [\".own/cache\", \".own\", \".new\"]"),
        ];
        let run = RunToolchains::new(&profiles, &search, &Environment::isolated(&root, "/proc/self/exe"));
        let shown: Vec<&PathBuf> = run.programs.iter().flat_map(|program| &program.shown).collect();
        assert_eq!(shown, [&home.join(".local/bin")]);
        assert_eq!(run.host_groups, [HostGroup { name: "one".to_owned(), hosts: vec!["a.example:443".to_owned()] }]);
        assert_eq!(run.variables["TOOL_HOME"], home.join(".own").to_str().unwrap());
        let caches: Vec<(&str, bool)> =
            run.caches.iter().map(|cache| (cache.path.to_str().unwrap(), cache.is_present())).collect();
        assert_eq!(caches, [(".own/cache", true), (".link", false), (".new", false)]);
        assert_eq!(
            run.notes,
            [
                "toolchains: one, two (`--toolchain none` for none)",
                "your cache `~/.link` is not used: it is a symbolic link, or below one",
                "the cache `~/.linked` has no layer: the workspace is in it, or it in that",
            ]
        );
    }
}
