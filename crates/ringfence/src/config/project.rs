//! `[project]` of the config: the test runner and the formatter of projects, and the registries of packages.
//!
//! Only the owner of the machine and the user say these: a workspace cannot.

use ringfence_project::{PackageRegistries, PackageRegistry, ProjectSettings};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProjectConfigSection {
    test: Option<String>,
    format: Option<String>,
    registries: RegistriesConfigSection,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RegistriesConfigSection {
    cargo: Option<RegistryConfigSection>,
    npm: Option<RegistryConfigSection>,
    python: Option<RegistryConfigSection>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistryConfigSection {
    url: String,
    #[serde(default)]
    hosts: Vec<String>,
}

/// The settings of both layers; the managed ones hold. Fails with the invalid key.
pub(crate) fn merge_project(
    managed: ProjectConfigSection,
    user: ProjectConfigSection,
) -> Result<ProjectSettings, String> {
    let chosen = |name: &str, managed: Option<RegistryConfigSection>, user: Option<RegistryConfigSection>| {
        let Some(section) = managed.or(user) else { return Ok(None) };
        let registry = PackageRegistry::new(&section.url, &section.hosts);
        registry.map(Some).map_err(|error| format!("`project.registries.{name}`: {error}"))
    };
    let public = PackageRegistries::default();
    let (managed_registries, user_registries) = (managed.registries, user.registries);
    let registries = PackageRegistries {
        cargo: chosen("cargo", managed_registries.cargo, user_registries.cargo)?.unwrap_or(public.cargo),
        npm: chosen("npm", managed_registries.npm, user_registries.npm)?.unwrap_or(public.npm),
        python: chosen("python", managed_registries.python, user_registries.python)?.unwrap_or(public.python),
    };
    Ok(ProjectSettings { test: managed.test.or(user.test), format: managed.format.or(user.format), registries })
}

#[cfg(test)]
mod tests {
    use ringfence_project::{PackageRegistries, PackageRegistry};

    use super::{ProjectConfigSection, merge_project};

    fn section(text: &str) -> ProjectConfigSection {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_managed_registry_holds_and_the_others_are_public() {
        let user = "[registries.npm]\nurl = \"https://user.example/\"\n[registries.python]\nurl = \"https://user.example/simple\"\n";
        let managed = "[registries.npm]\nurl = \"https://owner.example/\"\nhosts = [\"files.example\"]\n";
        let registries = merge_project(section(managed), section(user)).unwrap().registries;
        let hosts = ["files.example".to_owned()];
        assert_eq!(registries.npm, PackageRegistry::new("https://owner.example/", &hosts).unwrap());
        assert_eq!(registries.python, PackageRegistry::new("https://user.example/simple/", &[]).unwrap());
        assert_eq!(registries.cargo, PackageRegistries::default().cargo);
    }

    #[test]
    fn an_invalid_registry_is_named() {
        let invalid = section("[registries.cargo]\nurl = \"http://packages.example/\"\n");
        let error = merge_project(ProjectConfigSection::default(), invalid).unwrap_err();
        assert!(error.starts_with("`project.registries.cargo`: invalid URL `http://packages.example/`"), "{error}");
    }
}
