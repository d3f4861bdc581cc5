//! `[project]` of the config: the test runner and the formatter of projects.

use ringfence_project::ProjectSettings;
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProjectConfigSection {
    test: Option<String>,
    format: Option<String>,
}

/// The settings of both layers; the managed ones hold.
pub(crate) fn merge_project(managed: ProjectConfigSection, user: ProjectConfigSection) -> ProjectSettings {
    ProjectSettings { test: managed.test.or(user.test), format: managed.format.or(user.format) }
}
