//! Lockfiles of package managers: the packages in one, where each comes from, and whether it has a digest.
//!
//! A lockfile was written by a package manager in the jail, from what a registry answered. So every entry that is new must
//! come from that registry and have a digest, or nothing is installed.
//!
//! Not here: reading the file (`install_package.rs`).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::package_manager::PackageManager;
use crate::package_registry::{CRATES_IO_SOURCE, PackageRegistry};

/// A package in a lockfile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockedPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    origin: PackageOrigin,
    has_digest: bool,
    pub(crate) has_install_script: bool,
}

/// Where a package comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PackageOrigin {
    /// The registry, without saying where there.
    Registry,
    /// Files at these URLs.
    Urls(Vec<String>),
    /// The project itself, or a part of it.
    Project,
    /// Anything else, as the lockfile says it.
    Other(String),
}

/// A lockfile that cannot be read, or an entry that is not installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LockfileError {
    #[error("its format is unknown")]
    Format,
    #[error("`{0}` does not come from the registry, but from `{1}`")]
    Foreign(String, String),
    #[error("`{0}` has no digest")]
    NoDigest(String),
}

/// The difference between two lockfiles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockfileDiff {
    pub(crate) added: Vec<LockedPackage>,
    /// Name and version.
    pub(crate) removed: Vec<(String, String)>,
}

impl LockfileDiff {
    /// Compares two lockfiles, and refuses new entries that do not come from the registry.
    pub(crate) fn new(
        manager: PackageManager,
        old: Option<&str>,
        new: &str,
        registry: &PackageRegistry,
    ) -> Result<Self, LockfileError> {
        // An old lockfile that is not understood makes every entry a new one.
        let old = old.and_then(|old| packages(manager, old).ok()).unwrap_or_default();
        let new = packages(manager, new)?;
        let added: Vec<LockedPackage> = new.difference(&old).filter(|package| !package.is_project()).cloned().collect();
        for package in &added {
            package.check(registry)?;
        }
        let is_there =
            |package: &&LockedPackage| new.iter().any(|new| new.name == package.name && new.version == package.version);
        let removed = old.iter().filter(|package| !is_there(package));
        Ok(Self { added, removed: removed.map(|package| (package.name.clone(), package.version.clone())).collect() })
    }
}

impl LockedPackage {
    fn is_project(&self) -> bool {
        self.origin == PackageOrigin::Project
    }

    fn check(&self, registry: &PackageRegistry) -> Result<(), LockfileError> {
        let foreign = |origin: &str| Err(LockfileError::Foreign(self.name.clone(), origin.to_owned()));
        match &self.origin {
            PackageOrigin::Urls(urls) => {
                if let Some(url) = urls.iter().find(|url| !registry.serves(url)) {
                    return foreign(url);
                }
            }
            PackageOrigin::Other(origin) => return foreign(origin),
            PackageOrigin::Registry | PackageOrigin::Project => {}
        }
        if self.has_digest { Ok(()) } else { Err(LockfileError::NoDigest(self.name.clone())) }
    }
}

fn packages(manager: PackageManager, text: &str) -> Result<BTreeSet<LockedPackage>, LockfileError> {
    let found = match manager {
        PackageManager::Cargo => cargo_packages(text),
        PackageManager::Npm => npm_packages(text),
        PackageManager::Pnpm => pnpm_packages(text),
        PackageManager::Pip => pip_packages(text),
        PackageManager::Uv => uv_packages(text),
    };
    found.map(|found| found.into_iter().collect()).ok_or(LockfileError::Format)
}

fn cargo_packages(text: &str) -> Option<Vec<LockedPackage>> {
    let lock: toml::Table = text.parse().ok()?;
    let Some(entries) = lock.get("package") else { return Some(Vec::new()) };
    let package = |entry: &toml::Value| {
        let word = |key: &str| entry.get(key).and_then(toml::Value::as_str);
        Some(LockedPackage {
            name: word("name")?.to_owned(),
            version: word("version")?.to_owned(),
            origin: match word("source") {
                None => PackageOrigin::Project,
                Some(CRATES_IO_SOURCE) => PackageOrigin::Registry,
                Some(other) => PackageOrigin::Other(other.to_owned()),
            },
            has_digest: word("checksum").is_some_and(|digest| digest.len() == 64),
            has_install_script: false,
        })
    };
    entries.as_array()?.iter().map(package).collect()
}

fn npm_packages(text: &str) -> Option<Vec<LockedPackage>> {
    let lock: Value = serde_json::from_str(text).ok()?;
    let entries = lock.get("packages")?.as_object()?;
    let package = |(path, entry): (&String, &Value)| {
        let word = |key: &str| entry.get(key).and_then(Value::as_str);
        let is_set = |key: &str| entry.get(key).and_then(Value::as_bool).unwrap_or_default();
        let installed = path.rsplit_once("node_modules/").map(|(_, name)| name);
        let name = word("name").or(installed).unwrap_or(path).to_owned();
        let origin = match (installed, word("resolved")) {
            // The project, and directories of it. A link to one is an entry of its own.
            (None, _) => PackageOrigin::Project,
            (Some(_), Some(target)) if is_set("link") => PackageOrigin::Other(target.to_owned()),
            (Some(_), None) if is_set("inBundle") => PackageOrigin::Registry,
            (Some(_), Some(url)) => PackageOrigin::Urls(vec![url.to_owned()]),
            (Some(_), None) => PackageOrigin::Other("an unnamed source".to_owned()),
        };
        // A bundled package is a part of another one, which has the digest.
        let has_digest = word("integrity").is_some_and(is_strong_integrity) || is_set("inBundle");
        LockedPackage {
            version: word("version").unwrap_or_default().to_owned(),
            name,
            origin,
            has_digest,
            has_install_script: is_set("hasInstallScript"),
        }
    };
    Some(entries.iter().map(package).collect())
}

/// The entries below `packages:`, as pnpm writes them. What it does not write so is refused.
fn pnpm_packages(text: &str) -> Option<Vec<LockedPackage>> {
    text.starts_with("lockfileVersion: ").then_some(())?;
    let mut found: Vec<LockedPackage> = Vec::new();
    let section = text.lines().skip_while(|line| *line != "packages:").skip(1);
    for line in section.take_while(|line| line.is_empty() || line.starts_with(' ')) {
        let Some(entry) = line.strip_prefix("  ") else { continue };
        if !entry.starts_with(' ') {
            let key = entry.strip_suffix(':')?.trim_matches('\'');
            let (name, version) =
                key.char_indices().skip(1).find(|(_, c)| *c == '@').map(|(at, _)| key.split_at(at))?;
            let version = version.trim_start_matches('@');
            let is_version = version.starts_with(|c: char| c.is_ascii_digit());
            found.push(LockedPackage {
                name: name.to_owned(),
                version: version.to_owned(),
                origin: if is_version { PackageOrigin::Registry } else { PackageOrigin::Other(version.to_owned()) },
                has_digest: false,
                has_install_script: false,
            });
            continue;
        }
        let package = found.last_mut()?;
        match entry.trim_start().split_once(": ") {
            Some(("resolution", resolution)) => {
                for part in resolution.strip_prefix('{')?.strip_suffix('}')?.split(", ") {
                    match part.split_once(": ")? {
                        ("integrity", digest) => package.has_digest = is_strong_integrity(digest),
                        ("tarball", url) => package.origin = PackageOrigin::Urls(vec![url.to_owned()]),
                        (_, other) => package.origin = PackageOrigin::Other(other.to_owned()),
                    }
                }
            }
            Some(("requiresBuild", "true")) => package.has_install_script = true,
            _ => {}
        }
    }
    Some(found)
}

/// Of `requirements.txt`: `name==version` and digests, as this tool writes it.
fn pip_packages(text: &str) -> Option<Vec<LockedPackage>> {
    let lines = text.replace("\\\n", " ");
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let package = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, version) = words.next()?.split_once("==")?;
        let digests: Vec<&str> = words.map(|word| word.strip_prefix("--hash=sha256:")).collect::<Option<_>>()?;
        Some(LockedPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            origin: PackageOrigin::Registry,
            has_digest: !digests.is_empty() && digests.iter().all(|digest| digest.len() == 64),
            has_install_script: false,
        })
    };
    lines.map(package).collect()
}

fn uv_packages(text: &str) -> Option<Vec<LockedPackage>> {
    let lock: toml::Table = text.parse().ok()?;
    let Some(entries) = lock.get("package") else { return Some(Vec::new()) };
    let package = |entry: &toml::Value| {
        let word = |key: &str| entry.get(key).and_then(toml::Value::as_str).unwrap_or_default().to_owned();
        let files = entry.get("sdist").into_iter();
        let files: Vec<&toml::Value> =
            files.chain(entry.get("wheels").and_then(toml::Value::as_array).into_iter().flatten()).collect();
        let of_file = |file: &toml::Value, key: &str| file.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let source = entry.get("source").and_then(toml::Value::as_table)?;
        let (kind, target) = source.iter().next()?;
        let origin = match (kind.as_str(), target.as_str()) {
            ("virtual" | "editable", Some(".")) => PackageOrigin::Project,
            ("registry", Some(index)) => {
                let urls = files.iter().filter_map(|file| of_file(file, "url"));
                PackageOrigin::Urls(std::iter::once(index.to_owned()).chain(urls).collect())
            }
            (kind, target) => PackageOrigin::Other(target.unwrap_or(kind).to_owned()),
        };
        let is_digest = |file: &&toml::Value| of_file(file, "hash").is_some_and(|hash| hash.starts_with("sha256:"));
        Some(LockedPackage {
            name: word("name"),
            version: word("version"),
            origin,
            has_digest: !files.is_empty() && files.iter().all(is_digest),
            has_install_script: false,
        })
    };
    entries.as_array()?.iter().map(package).collect()
}

/// Subresource integrity with an algorithm that is not broken.
fn is_strong_integrity(integrity: &str) -> bool {
    integrity.starts_with("sha512-") || integrity.starts_with("sha384-") || integrity.starts_with("sha256-")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LockfileDiff, LockfileError};
    use crate::package_manager::PackageManager::{self, Cargo, Npm, Pip, Pnpm, Uv};
    use crate::package_registry::PackageRegistry;

    fn diff(manager: PackageManager, old: Option<&str>, new: &str) -> Result<LockfileDiff, LockfileError> {
        let registry = PackageRegistry::new("https://r.example/", &[]).unwrap();
        LockfileDiff::new(manager, old, new, &registry)
    }

    /// Added packages, or the error.
    #[track_caller]
    fn check(manager: PackageManager, text: &str, expected: &str) {
        let found = match diff(manager, None, text) {
            Ok(diff) => diff.added.iter().map(|package| format!("{} {};", package.name, package.version)).collect(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected, "{text}");
    }

    const CRATE: &str = "[[package]]\nname = \"app\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = SOURCE\n";

    #[test]
    fn crates_come_from_the_registry_with_a_checksum() {
        let lock = |source: &str, checksum: &str| CRATE.replace("SOURCE", source) + checksum;
        let checksum = format!("checksum = \"{}\"\n", "0".repeat(64));
        let public = format!("\"{}\"", super::CRATES_IO_SOURCE);
        check(Cargo, &lock(&public, &checksum), "a 1.0.0;");
        check(Cargo, &lock(&public, ""), "`a` has no digest");
        check(
            Cargo,
            &lock("\"git+https://r.example/a#1\"", &checksum),
            "`a` does not come from the registry, but from `git+https://r.example/a#1`",
        );
        check(
            Cargo,
            &lock("\"registry+https://r.example/\"", &checksum),
            "`a` does not come from the registry, but from `registry+https://r.example/`",
        );
        check(Cargo, "package = 1", "its format is unknown");
        check(Cargo, "[", "its format is unknown");
        check(Cargo, "version = 4\n", "");
    }

    #[test]
    fn npm_packages_come_from_the_registry_with_an_integrity() {
        let lock = |entry: &str| format!(r#"{{"packages": {{"": {{}}, "node_modules/a": {entry}}}}}"#);
        let sound = r#"{"version": "1.0.0", "resolved": "https://r.example/a.tgz", "integrity": "sha512-x"}"#;
        check(Npm, &lock(sound), "a 1.0.0;");
        check(Npm, &lock(&sound.replace("sha512", "sha1")), "`a` has no digest");
        check(
            Npm,
            &lock(&sound.replace("r.example", "evil.example")),
            "`a` does not come from the registry, but from `https://evil.example/a.tgz`",
        );
        check(
            Npm,
            &lock(r#"{"version": "1.0.0", "resolved": "git+ssh://git@r.example/a.git#1"}"#),
            "`a` does not come from the registry, but from `git+ssh://git@r.example/a.git#1`",
        );
        check(
            Npm,
            &lock(r#"{"resolved": "../a", "link": true}"#),
            "`a` does not come from the registry, but from `../a`",
        );
        check(
            Npm,
            &lock(r#"{"version": "1.0.0"}"#),
            "`a` does not come from the registry, but from `an unnamed source`",
        );
        check(Npm, &lock(&sound.replacen('{', r#"{"name": "real", "#, 1)), "real 1.0.0;");
        check(Npm, r#"{"lockfileVersion": 1, "dependencies": {}}"#, "its format is unknown");
        check(Npm, "[]", "its format is unknown");
    }

    #[test]
    fn pnpm_packages_come_from_the_registry_with_an_integrity() {
        let lock = |key: &str, resolution: &str| {
            format!(
                "lockfileVersion: '9.0'\n\nimporters:\n\n  .: {{}}\n\npackages:\n\n  {key}:\n    resolution: {{{resolution}}}\n\nsnapshots:\n\n  x@1: {{}}\n"
            )
        };
        check(Pnpm, &lock("a@1.0.0", "integrity: sha512-x"), "a 1.0.0;");
        check(Pnpm, &lock("'@s/a@1.0.0'", "integrity: sha512-x"), "@s/a 1.0.0;");
        check(Pnpm, &lock("a@1.0.0", "integrity: sha1-x"), "`a` has no digest");
        let evil = "integrity: sha512-x, tarball: https://evil.example/a.tgz";
        check(
            Pnpm,
            &lock("a@1.0.0", evil),
            "`a` does not come from the registry, but from `https://evil.example/a.tgz`",
        );
        check(Pnpm, &lock("a@file:x", "integrity: sha512-x"), "`a` does not come from the registry, but from `file:x`");
        check(
            Pnpm,
            &lock("a@1.0.0", "directory: x, type: directory"),
            "`a` does not come from the registry, but from `directory`",
        );
        check(Pnpm, "packages: 1", "its format is unknown");
    }

    #[test]
    fn python_packages_come_from_the_registry_with_a_digest() {
        let digest = "0".repeat(64);
        check(Pip, &format!("# comment\na==1.0 \\\n    --hash=sha256:{digest}\n"), "a 1.0;");
        check(Pip, "a==1.0\n", "`a` has no digest");
        check(Pip, "a>=1.0\n", "its format is unknown");
        check(Pip, "--extra-index-url https://evil.example/\n", "its format is unknown");
        let lock = |source: &str, url: &str, hash: &str| {
            format!(
                "[[package]]\nname = \"app\"\nversion = \"0\"\nsource = {{ virtual = \".\" }}\n[[package]]\nname = \"a\"\nversion = \"1.0\"\n\
                 source = {{ {source} }}\nwheels = [{{ url = \"{url}\", hash = \"{hash}\" }}]\n"
            )
        };
        let index = "registry = \"https://r.example/simple\"";
        check(Uv, &lock(index, "https://r.example/a.whl", "sha256:0"), "a 1.0;");
        check(Uv, &lock(index, "https://r.example/a.whl", ""), "`a` has no digest");
        check(
            Uv,
            &lock(index, "https://evil.example/a.whl", "sha256:0"),
            "`a` does not come from the registry, but from `https://evil.example/a.whl`",
        );
        check(
            Uv,
            &lock("git = \"https://r.example/a\"", "https://r.example/a.whl", "sha256:0"),
            "`a` does not come from the registry, but from `https://r.example/a`",
        );
        check(
            Uv,
            &lock("editable = \"../b\"", "https://r.example/a.whl", "sha256:0"),
            "`a` does not come from the registry, but from `../b`",
        );
    }

    #[test]
    fn only_new_entries_are_judged_and_listed() {
        let entry = |name: &str, version: &str, host: &str| {
            format!(
                r#""node_modules/{name}": {{"version": "{version}", "resolved": "https://{host}/x.tgz", "integrity": "sha512-x"}}"#
            )
        };
        let lock = |entries: &[String]| format!(r#"{{"packages": {{{}}}}}"#, entries.join(","));
        let other = entry("other", "1.0.0", "mirror.example");
        let old = lock(&[other.clone(), entry("a", "1.0.0", "r.example")]);
        let new = lock(&[other, entry("a", "1.1.0", "r.example"), entry("b", "2.0.0", "r.example")]);
        let found = diff(Npm, Some(&old), &new).unwrap();
        let added: Vec<&str> = found.added.iter().map(|package| package.name.as_str()).collect();
        assert_eq!((added, found.removed), (vec!["a", "b"], vec![("a".to_owned(), "1.0.0".to_owned())]));
        // An entry of the same name that comes from elsewhere now is a new one.
        let moved = lock(&[entry("a", "1.0.0", "evil.example")]);
        assert!(matches!(diff(Npm, Some(&old), &moved), Err(LockfileError::Foreign(..))));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(lockfileVersion: '9.0'\n|packages:\n|  a@1:\n|    resolution: \\{|integrity: sha512-x|, |\\}\n|tarball: |\\{\"packages\":|\"node_modules/a\":|\\{|\\}|\"|:|true|\\[\\[package\\]\\]\n|name = \"a\"\n|version = \"1\"\n|source = |\\{ registry = \"x\" \\}\n|a==1|--hash=sha256:| |\\\\\n|\n|@|')*") {
            for manager in [Cargo, Npm, Pip, Pnpm, Uv] {
                if let Ok(diff) = diff(manager, None, &text) {
                    prop_assert!(diff.added.iter().all(|package| package.has_digest), "{text}");
                }
            }
        }
    }
}
