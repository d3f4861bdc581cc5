//! Review of an installation: what a person is told besides the diff, and what a failure of the package manager means.
//!
//! Names and versions come from a registry, so they are data: a preview shows them without control characters.
//!
//! Not here: running the package manager (`install_package.rs`).

use ringfence_kernel::{ErrorKind, ToolError};
use ringfence_sandbox::ProgramReport;

use crate::lockfile::{LockedPackage, LockfileDiff};
use crate::package_manager::{MIN_RELEASE_DAYS, PackageManager};
use crate::package_spec::{PackageSpec, python_key};
use crate::well_known_packages::lookalike;

/// Packages that a line names.
const MAX_NAMED: usize = 50;

/// What an installation changes.
#[derive(Debug)]
pub(crate) struct InstallReview {
    pub(crate) manager: PackageManager,
    /// Names of the call.
    pub(crate) requested: Vec<String>,
    diff: LockfileDiff,
    has_min_age: bool,
}

impl InstallReview {
    pub(crate) fn new(
        manager: PackageManager,
        resolved: &ProgramReport,
        requested: Vec<String>,
        diff: LockfileDiff,
    ) -> Self {
        let version = resolved.stdout().lines().find_map(|line| line.strip_prefix("version: ")).unwrap_or_default();
        Self { manager, requested, diff, has_min_age: manager.has_min_age(version.trim()) }
    }

    /// Name and version of each package that is new or another one.
    pub(crate) fn added(&self) -> impl Iterator<Item = (&str, &str)> {
        self.diff.added.iter().map(|package| (package.name.as_str(), package.version.as_str()))
    }

    pub(crate) fn summary(&self) -> String {
        let is_requested =
            |package: &&LockedPackage| self.requested.iter().any(|name| python_key(name) == python_key(&package.name));
        let named: Vec<String> = self.diff.added.iter().filter(is_requested).map(named).collect();
        let named = if named.is_empty() { self.requested.join(", ") } else { named.join(", ") };
        match self.diff.added.iter().filter(|package| !is_requested(package)).count() {
            0 => format!("install {named}"),
            1 => format!("install {named} and 1 package that it depends on"),
            others => format!("install {named} and {others} packages that they depend on"),
        }
    }

    /// For the person who is asked, the alarming ones first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let ecosystem = self.manager.ecosystem();
        for package in &self.diff.added {
            if let Some(known) = lookalike(&package.name, ecosystem) {
                lines.push(format!("check the name: `{}` looks like the well-known `{known}`", package.name));
            }
        }
        lines.extend(self.script_line());
        lines.extend(listed("new packages", self.diff.added.iter().map(named)));
        lines.extend(listed(
            "no longer there",
            self.diff.removed.iter().map(|(name, version)| format!("{name} {version}")),
        ));
        lines.push(match (self.has_min_age, self.manager) {
            (true, _) => format!("no release is younger than {MIN_RELEASE_DAYS} days"),
            (false, PackageManager::Cargo | PackageManager::Pip) => {
                format!("{} has no minimum age of releases: a release may be of today", self.manager.name())
            }
            (false, manager) => {
                format!("this version of {} has no minimum age of releases: a release may be of today", manager.name())
            }
        });
        match self.manager {
            PackageManager::Cargo => lines.push(
                "build scripts and macros of crates run when the project is built, which is in the sandbox".to_owned(),
            ),
            PackageManager::Npm | PackageManager::Pnpm => {
                lines.push("`node_modules` is made again from the lockfile".to_owned());
            }
            PackageManager::Pip | PackageManager::Uv => {
                lines.push("`.venv` is made again from the lockfile".to_owned())
            }
        }
        lines
    }

    /// For the reply.
    pub(crate) fn reply_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.script_line().into_iter().collect();
        if self.manager == PackageManager::Cargo {
            lines.push(
                "the crates were checked and are not kept: a build in the sandbox needs network access to the registry, or \
                 `cargo fetch` outside of it"
                    .to_owned(),
            );
        }
        lines
    }

    fn script_line(&self) -> Option<String> {
        let scripts = self.diff.added.iter().filter(|package| package.has_install_script).map(named);
        listed("install scripts that do not run", scripts)
    }
}

fn named(package: &LockedPackage) -> String {
    format!("{} {}", package.name, package.version)
}

fn listed(what: &str, mut names: impl Iterator<Item = String>) -> Option<String> {
    let first: Vec<String> = names.by_ref().take(MAX_NAMED).collect();
    let more = names.count();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!first.is_empty()).then(|| format!("{what}: {}{more}", first.join(", ")))
}

/// The error for a package that the registry does not have, or not in this version; `None` for any other failure.
pub(crate) fn resolve_error(manager: PackageManager, printed: &str, requested: &[PackageSpec]) -> Option<ToolError> {
    let between = |start: &str, end: &str| {
        let (_, rest) = printed.split_once(start)?;
        let (name, _) = rest.split_once(end)?;
        Some(name.split_whitespace().last().unwrap_or_default().to_owned())
    };
    let absent = match manager {
        PackageManager::Cargo => {
            between("the crate `", "` could not be found").or_else(|| between("no matching package named `", "` found"))
        }
        PackageManager::Npm if printed.contains("code E404") => {
            between("The requested resource '", "'").map(|spec| match spec.rsplit_once('@') {
                Some((name, _)) if !name.is_empty() => name.to_owned(),
                _ => spec,
            })
        }
        PackageManager::Npm => None,
        PackageManager::Pnpm if printed.contains("404") => between("latest version of ", ":")
            .or_else(|| between("GET ", ":").and_then(|url| url.rsplit('/').next().map(str::to_owned)))
            .or_else(|| requested.first().map(|package| package.name.clone())),
        PackageManager::Pnpm => None,
        PackageManager::Pip => between("absent: ", "\n"),
        PackageManager::Uv => between("Because ", " was not found in the package registry")
            .or_else(|| between("cause: ", " was not found in the package registry")),
    };
    if let Some(name) = absent {
        let error = ToolError::new(ErrorKind::NotFound, format!("the registry has no package `{name}`"));
        return Some(error.hint("check the name; nothing was changed"));
    }
    let no_version = match manager {
        PackageManager::Cargo => {
            printed.contains("failed to select a version") || printed.contains("could not be found")
        }
        PackageManager::Npm => printed.contains("code ENOVERSIONS") || printed.contains("code ETARGET"),
        PackageManager::Pnpm => {
            printed.contains("ERR_PNPM_NO_MATURE") || printed.contains("ERR_PNPM_NO_MATCHING_VERSION")
        }
        PackageManager::Pip => printed.contains("No matching distribution found"),
        PackageManager::Uv => printed.contains("No solution found"),
    };
    no_version.then(|| {
        let condition = match manager {
            PackageManager::Cargo => "fits",
            PackageManager::Pip => "fits and is a wheel for this Python; packages without one are not built",
            PackageManager::Uv => "fits, is at least 7 days old, and is a wheel; packages without one are not built",
            PackageManager::Npm | PackageManager::Pnpm => "fits and is at least 7 days old",
        };
        let named = requested.iter().map(|package| package.name.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("the registry has no release for {named} that {condition}; nothing was changed");
        ToolError::new(ErrorKind::NotFound, message)
    })
}

#[cfg(test)]
mod tests {
    use super::resolve_error;
    use crate::package_manager::PackageManager::{self, Cargo, Npm, Pip, Pnpm, Uv};
    use crate::package_spec::PackageSpec;

    #[track_caller]
    fn check(manager: PackageManager, printed: &str, expected: Option<&str>) {
        let requested = [PackageSpec::parse("asked", manager.ecosystem()).unwrap()];
        let message = resolve_error(manager, printed, &requested).map(|error| error.message);
        assert_eq!(message.as_deref(), expected, "{printed}");
    }

    #[test]
    fn a_package_that_the_registry_does_not_have_is_named() {
        let absent = Some("the registry has no package `invented`; check the name; nothing was changed");
        check(Cargo, "error: the crate `invented` could not be found in registry index.", absent);
        check(Cargo, "error: no matching package named `invented` found\nlocation searched: x", absent);
        let npm = "npm error code E404\nnpm error 404  The requested resource 'invented@*' could not be found or";
        check(Npm, npm, absent);
        check(
            Npm,
            &npm.replace("invented", "@a/b"),
            Some("the registry has no package `@a/b`; check the name; nothing was changed"),
        );
        check(
            Pnpm,
            "× adding\n╰─▶ Failed to resolve the latest version of invented: Failed to fetch: HTTP status client error (404 Not Found)",
            absent,
        );
        check(Pip, "ERROR: No matching distribution found for invented\nabsent: invented\n", absent);
        check(
            Uv,
            "  cause: No solution found when resolving dependencies\n  cause: Because invented was not found in the package registry and",
            absent,
        );
        check(Npm, "npm error code ECONNREFUSED", None);
    }

    #[test]
    fn a_version_that_the_registry_does_not_have_is_said() {
        let old = "the registry has no release for asked that fits and is at least 7 days old; nothing was changed";
        check(Npm, "npm error code ENOVERSIONS\nnpm error No versions available for asked", Some(old));
        check(Pnpm, "Error: ERR_PNPM_NO_MATURE_MATCHING_VERSION", Some(old));
        check(
            Cargo,
            "error: failed to select a version for the requirement `asked = \"^9\"`",
            Some("the registry has no release for asked that fits; nothing was changed"),
        );
        check(
            Pip,
            "ERROR: No matching distribution found for asked",
            Some(
                "the registry has no release for asked that fits and is a wheel for this Python; packages without one are not built; \
                 nothing was changed",
            ),
        );
    }
}
