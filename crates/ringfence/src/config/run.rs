//! `[run]` of the config: bounds of wrapped programs, and the profiles and toolchains that may be used.
//!
//! A bound of the machine's owner is the most that anyone can have; one of the user is a default that the command line may
//! replace.
//!
//! Not here: profiles themselves (`cli/wrapped_run/profile.rs`).

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;

use crate::config::limits::ConfigDuration;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunConfigSection {
    profiles: Option<BTreeSet<String>>,
    own_profiles: Option<bool>,
    toolchains: Option<BTreeSet<String>>,
    max_kept_bytes: Option<u64>,
    keep_home: Option<bool>,
    follow_workspace: Option<bool>,
    max_memory_bytes: Option<u64>,
    max_disk_bytes: Option<u64>,
    max_processes: Option<u64>,
    max_duration: Option<ConfigDuration>,
}

/// Settings of wrapped programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedProgramSettings {
    /// The profiles that may be used; all of them if it is not set.
    pub profiles: Option<BTreeSet<String>>,
    /// Whether a user's files of profiles and toolchains are read.
    pub own_profiles: bool,
    /// The toolchains that may be used; all of them if it is not set.
    pub toolchains: Option<BTreeSet<String>>,
    /// Bytes of all layers, home directories and caches that are kept.
    pub kept_bytes: ProgramBound,
    /// Whether files that a profile names go back into the person's home directory.
    pub keep_home: bool,
    /// Whether changes of others in the workspace are followed while a program runs.
    pub follow_workspace: bool,
    pub memory_bytes: ProgramBound,
    pub disk_bytes: ProgramBound,
    pub processes: ProgramBound,
    pub seconds: ProgramBound,
}

/// A bound with the layers that set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramBound {
    most: Option<u64>,
    default: Option<u64>,
}

impl ProgramBound {
    /// The bound for a run; `wanted` is the command line's, and `otherwise` holds where nothing says another.
    pub(crate) fn resolve(self, wanted: Option<u64>, otherwise: u64) -> u64 {
        let bound = wanted.or(self.default).unwrap_or(otherwise);
        self.most.map_or(bound, |most| most.min(bound))
    }
}

impl WrappedProgramSettings {
    /// Whether the machine's owner lets this profile be used.
    pub(crate) fn allows_profile(&self, name: &str) -> bool {
        self.profiles.as_ref().is_none_or(|allowed| allowed.contains(name))
    }

    /// Whether the machine's owner lets this toolchain be used.
    pub(crate) fn allows_toolchain(&self, name: &str) -> bool {
        self.toolchains.as_ref().is_none_or(|allowed| allowed.contains(name))
    }
}

/// The settings of both layers.
pub(crate) fn merge_run(managed: &RunConfigSection, user: &RunConfigSection) -> WrappedProgramSettings {
    let bound = |of: fn(&RunConfigSection) -> Option<u64>| ProgramBound { most: of(managed), default: of(user) };
    let both = |of: fn(&RunConfigSection) -> &Option<BTreeSet<String>>| match (of(managed), of(user)) {
        (Some(most), Some(own)) => Some(most.intersection(own).cloned().collect()),
        (most, own) => most.as_ref().or(own.as_ref()).cloned(),
    };
    WrappedProgramSettings {
        profiles: both(|section| &section.profiles),
        own_profiles: managed.own_profiles.or(user.own_profiles).unwrap_or(true),
        toolchains: both(|section| &section.toolchains),
        kept_bytes: bound(|section| section.max_kept_bytes),
        keep_home: managed.keep_home.unwrap_or(true) && user.keep_home.unwrap_or(true),
        follow_workspace: user.follow_workspace.or(managed.follow_workspace).unwrap_or(true),
        memory_bytes: bound(|section| section.max_memory_bytes),
        disk_bytes: bound(|section| section.max_disk_bytes),
        processes: bound(|section| section.max_processes),
        seconds: bound(|section| section.max_duration.map(|span| Duration::as_secs(&span.duration()).max(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> RunConfigSection {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_bound_of_the_owner_is_never_exceeded() {
        let merged = merge_run(&section("max_processes = 100"), &section("max_processes = 50\nmax_duration = \"2m\""));
        for (wanted, expected) in [(None, 50), (Some(20), 20), (Some(80), 80), (Some(500), 100)] {
            assert_eq!(merged.processes.resolve(wanted, 4096), expected, "{wanted:?}");
        }
        assert_eq!(merge_run(&section("max_processes = 100"), &section("")).processes.resolve(None, 4096), 100);
        assert_eq!(merged.memory_bytes.resolve(None, 7), 7);
        assert_eq!(merged.seconds.resolve(None, u64::MAX), 120);
    }

    #[test]
    fn either_layer_closes_the_home_directory() {
        for (owner, user, expected) in [
            ("", "", true),
            ("keep_home = true", "", true),
            ("", "keep_home = false", false),
            ("keep_home = false", "keep_home = true", false),
        ] {
            assert_eq!(merge_run(&section(owner), &section(user)).keep_home, expected, "{owner} {user}");
        }
    }

    #[test]
    fn profiles_are_those_of_both_layers() {
        let owner = section("profiles = [\"claude\", \"none\"]\nown_profiles = false");
        let merged = merge_run(&owner, &section("profiles = [\"claude\", \"codex\"]\nown_profiles = true"));
        assert!(merged.allows_profile("claude"));
        assert!(!merged.allows_profile("codex") && !merged.allows_profile("none") && !merged.own_profiles);
        assert!(merge_run(&section(""), &section("")).allows_profile("mine"));
        let closed = merge_run(&section("toolchains = []"), &section("toolchains = [\"node\"]"));
        assert!(!closed.allows_toolchain("node") && merge_run(&section(""), &section("")).allows_toolchain("node"));
    }
}
