//! Package managers: the project of a call, and the commands that resolve packages and install what a lockfile says.
//!
//! No command runs a script of a package or of the project, and no setting of the project decides where packages come from:
//! its settings files are empty for the manager, and ours come as options and variables.
//!
//! Not here: the jail, and what a person is asked (`install_package.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use ringfence_kernel::{ErrorKind, ToolError};
use ringfence_sandbox::JailFile;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::detect::{EntryKind, ProjectFiles, ancestors};
use crate::package_registry::{PackageRegistries, PackageRegistry};
use crate::package_spec::PackageEcosystem;

/// Days that a release must be old, where the manager can be told so.
pub(crate) const MIN_RELEASE_DAYS: u32 = 7;

/// The command is not in the jail.
pub(crate) const MISSING_PROGRAM: i32 = 127;

/// A file is not the one that was shown.
pub(crate) const FILE_CHANGED: i32 = 91;

/// The manager did not keep to the manifest and the lockfile.
pub(crate) const LOCK_CHANGED: i32 = 92;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PackageManager {
    Cargo,
    Npm,
    Pnpm,
    Pip,
    Uv,
}

/// The project that packages are installed into. Paths are relative to the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackageProject {
    pub(crate) manager: PackageManager,
    /// The directory of the manifest; empty for the workspace.
    pub(crate) directory: String,
    /// The directory of the lockfile, which is the same one or above it.
    lock_directory: String,
}

impl PackageManager {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cargo => "cargo",
            Self::Npm => "npm",
            Self::Pnpm => "pnpm",
            Self::Pip => "pip",
            Self::Uv => "uv",
        }
    }

    pub(crate) const fn ecosystem(self) -> PackageEcosystem {
        match self {
            Self::Cargo => PackageEcosystem::Cargo,
            Self::Npm | Self::Pnpm => PackageEcosystem::Npm,
            Self::Pip | Self::Uv => PackageEcosystem::Python,
        }
    }

    const fn manifest(self) -> &'static str {
        match self {
            Self::Cargo => "Cargo.toml",
            Self::Npm | Self::Pnpm => "package.json",
            Self::Pip => "requirements.in",
            Self::Uv => "pyproject.toml",
        }
    }

    const fn lockfile(self) -> &'static str {
        match self {
            Self::Cargo => "Cargo.lock",
            Self::Npm => "package-lock.json",
            Self::Pnpm => "pnpm-lock.yaml",
            Self::Pip => "requirements.txt",
            Self::Uv => "uv.lock",
        }
    }

    /// The directory that packages are installed into; `None` for cargo, which has them outside of the project.
    pub(crate) const fn installs_into(self) -> Option<&'static str> {
        match self {
            Self::Cargo => None,
            Self::Npm | Self::Pnpm => Some("node_modules"),
            Self::Pip | Self::Uv => Some(".venv"),
        }
    }

    /// Settings files of a directory that would decide where packages come from, or what runs.
    const fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Cargo => &[".cargo/config.toml", ".cargo/config"],
            Self::Npm => &[".npmrc"],
            Self::Pnpm => &[".npmrc", ".pnpmfile.cjs", ".pnpmfile.mjs", "pnpm-workspace.yaml"],
            Self::Pip => &["pip.conf"],
            Self::Uv => &["uv.toml", "pip.conf", ".python-version", ".python-versions"],
        }
    }

    /// Whether the manager was told the minimum age of a release. `version` is what it says of itself.
    pub(crate) fn has_min_age(self, version: &str) -> bool {
        let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or_default());
        let version = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        match self {
            Self::Npm => version >= (11, 10),
            Self::Pnpm => version >= (10, 16),
            Self::Uv => true,
            Self::Cargo | Self::Pip => false,
        }
    }

    /// The script that changes the manifest and the lockfile, and nothing else. Its arguments are options and packages; of pip
    /// the packages come in `requirements.in`.
    pub(crate) fn resolve_script(self) -> &'static str {
        match self {
            // The second command writes the lockfile without a download.
            Self::Cargo => {
                "cargo --version | sed 's/^cargo \\([^ ]*\\).*/version: \\1/'\n\
                 cargo add --quiet \"$@\" && exec cargo update --quiet --workspace"
            }
            Self::Npm => {
                "npm --version | sed 's/^/version: /'\n\
                 exec npm install --package-lock-only --ignore-scripts \"$@\""
            }
            Self::Pnpm => {
                "pnpm --version | sed 's/^/version: /'\n\
                 exec pnpm add --lockfile-only --ignore-scripts --ignore-workspace --ignore-pnpmfile \"$@\""
            }
            // In isolated mode python does not look for modules in the project.
            Self::Pip => {
                "python3 -I -m pip --version | sed 's/^pip \\([^ ]*\\).*/version: \\1/'\n\
                 cat /run/ringfence/requirements.in > requirements.in\n\
                 if python3 -I -m pip install --isolated --quiet --dry-run --ignore-installed --no-cache-dir \
                 --only-binary :all: --report /tmp/report.json --index-url \"$REGISTRY\" -r requirements.in; then\n\
                 python3 -I /run/ringfence/lock.py /tmp/report.json > requirements.txt\n\
                 else code=$?; python3 -I /run/ringfence/missing.py \"$REGISTRY\" \"$@\"; exit $code; fi"
            }
            Self::Uv => {
                "uv --version | sed 's/^uv \\([^ ]*\\).*/version: \\1/'\n\
                 UV_PYTHON=$(command -v python3) UV_PROJECT_ENVIRONMENT=/tmp/environment exec uv add --quiet --no-sync --no-build \
                 --exclude-newer \"$(date -u -d \"@$(($(date +%s) - 604800))\" +%Y-%m-%dT%H:%M:%SZ)\" \"$@\""
            }
        }
    }

    /// The script that fetches and unpacks what the lockfile says, in the directory of the lockfile. It starts without what was
    /// installed before: of that nothing runs, and nothing is left.
    pub(crate) fn install_script(self) -> &'static str {
        match self {
            Self::Cargo => "cargo fetch --quiet --locked",
            Self::Npm => "npm ci --ignore-scripts",
            Self::Pnpm => {
                "rm -rf node_modules\n\
                 pnpm install --frozen-lockfile --ignore-scripts --ignore-workspace --ignore-pnpmfile"
            }
            Self::Pip => {
                "rm -rf .venv\n\
                 python3 -I -m venv --without-pip .venv\n\
                 python3 -I -m pip --python .venv/bin/python install --isolated --quiet --no-cache-dir --no-deps --no-compile \
                 --require-hashes --only-binary :all: --index-url \"$REGISTRY\" -r requirements.txt"
            }
            Self::Uv => {
                "rm -rf .venv\n\
                 uv venv --quiet --relocatable --python \"$(command -v python3)\"\n\
                 uv sync --quiet --frozen --no-build --no-install-project"
            }
        }
    }

    /// Variables of both scripts.
    pub(crate) fn environment(self, registry: &PackageRegistry) -> BTreeMap<String, String> {
        let days = MIN_RELEASE_DAYS.to_string();
        let minutes = (MIN_RELEASE_DAYS * 24 * 60).to_string();
        let url = registry.url();
        let pairs: Vec<(&str, &str)> = match self {
            Self::Cargo => vec![("CARGO_HOME", "/tmp/packages"), ("RUSTUP_AUTO_INSTALL", "0")],
            Self::Npm => vec![
                ("npm_config_registry", url),
                ("npm_config_min_release_age", &days),
                ("npm_config_ignore_scripts", "true"),
                ("npm_config_audit", "false"),
                ("npm_config_fund", "false"),
                ("npm_config_git", "/bin/false"),
                ("npm_config_userconfig", "/tmp/npm-user"),
                ("npm_config_globalconfig", "/tmp/npm-global"),
                ("npm_config_loglevel", "error"),
                ("npm_config_fetch_retry_mintimeout", "500"),
                ("npm_config_fetch_retry_maxtimeout", "2000"),
            ],
            Self::Pnpm => vec![
                ("CI", "true"),
                ("npm_config_registry", url),
                ("pnpm_config_registry", url),
                ("npm_config_minimum_release_age", &minutes),
                ("pnpm_config_minimum_release_age", &minutes),
                ("npm_config_store_dir", "/tmp/store"),
                ("pnpm_config_store_dir", "/tmp/store"),
                ("npm_config_userconfig", "/tmp/npm-user"),
                ("npm_config_manage_package_manager_versions", "false"),
                ("pnpm_config_manage_package_manager_versions", "false"),
                ("COREPACK_ENABLE_PROJECT_SPEC", "0"),
            ],
            Self::Pip => vec![("PIP_CONFIG_FILE", "/dev/null"), ("PIP_NO_INPUT", "1")],
            Self::Uv => vec![
                ("UV_DEFAULT_INDEX", url),
                ("UV_NO_CONFIG", "1"),
                ("UV_NO_ENV_FILE", "1"),
                ("UV_PYTHON_DOWNLOADS", "never"),
                ("UV_CACHE_DIR", "/tmp/uv"),
                ("UV_LINK_MODE", "copy"),
                ("UV_KEYRING_PROVIDER", "disabled"),
            ],
        };
        let registry = std::iter::once(("REGISTRY", url));
        pairs.into_iter().chain(registry).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl PackageProject {
    /// The project that is nearest to a directory: the first one upward with a manifest of a manager.
    pub(crate) fn find(
        files: &dyn ProjectFiles,
        directory: &str,
        wanted: Option<PackageManager>,
    ) -> Result<Self, ToolError> {
        if !directory.is_empty() && files.kind(directory) != Some(EntryKind::Directory) {
            return Err(ToolError::new(ErrorKind::NotFound, format!("`{directory}` is not a directory")));
        }
        if let Some(manager) = wanted {
            // A list of requirements may be made.
            let has_manifest = |directory: &&str| {
                is_file(files, directory, manager.manifest()) || is_file(files, directory, manager.lockfile())
            };
            let found = ancestors(directory).find(has_manifest);
            let found = found.or((manager == PackageManager::Pip).then_some(directory));
            return match found {
                Some(directory) => Self::new(files, directory, manager),
                None => Err(no_manifest(&format!("`{}` was not found", manager.manifest()))),
            };
        }
        for directory in ancestors(directory) {
            let managers = managers_in(files, directory)?;
            match managers.as_slice() {
                [] => {}
                [manager] => return Self::new(files, directory, *manager),
                several => {
                    let names: Vec<&str> = several.iter().map(|manager| manager.name()).collect();
                    let problem = format!("is missing, and the project has several: {}", names.join(", "));
                    return Err(ToolError::invalid("manager", &problem));
                }
            }
        }
        Err(no_manifest("no Cargo.toml, package.json, pyproject.toml or requirements.in was found"))
    }

    fn new(files: &dyn ProjectFiles, directory: &str, manager: PackageManager) -> Result<Self, ToolError> {
        let unsupported = |message: &str| Err(ToolError::new(ErrorKind::Unavailable, message));
        if manager == PackageManager::Pip
            && !is_file(files, directory, "requirements.in")
            && is_file(files, directory, "requirements.txt")
        {
            return unsupported(
                "`requirements.txt` is to be the list with versions and hashes that is made from `requirements.in`, which does not \
                 exist; rename `requirements.txt` to `requirements.in` first",
            );
        }
        if manager != PackageManager::Pip && !is_file(files, directory, manager.manifest()) {
            return Err(no_manifest(&format!("`{}` was not found", manager.manifest())));
        }
        let mut above = ancestors(directory);
        if manager == PackageManager::Pnpm && above.any(|above| is_file(files, above, "pnpm-workspace.yaml")) {
            return unsupported(
                "projects with `pnpm-workspace.yaml` are not supported; its settings would be left out",
            );
        }
        let has_lockfile = |above: &&str| is_file(files, above, manager.lockfile());
        let is_workspace = |above: &&str| {
            let manifest = files.read(&join(above, "Cargo.toml"));
            manager == PackageManager::Cargo && manifest.is_some_and(|text| text.contains("[workspace]"))
        };
        let found = match manager {
            // Each has its own next to the manifest.
            PackageManager::Pip | PackageManager::Pnpm => None,
            PackageManager::Cargo | PackageManager::Npm | PackageManager::Uv => {
                ancestors(directory).find(has_lockfile).or_else(|| ancestors(directory).find(is_workspace))
            }
        };
        let lock_directory = found.unwrap_or(directory).to_owned();
        Ok(Self { manager, directory: directory.to_owned(), lock_directory })
    }

    pub(crate) fn manifest(&self) -> String {
        join(&self.directory, self.manager.manifest())
    }

    pub(crate) fn lockfile(&self) -> String {
        join(&self.lock_directory, self.manager.lockfile())
    }

    pub(crate) fn lock_directory(&self) -> &str {
        &self.lock_directory
    }

    /// Whether an installation may change this path.
    pub(crate) fn may_change(&self, path: &str) -> bool {
        let is_installed = |directory: &str| {
            self.manager.installs_into().is_some_and(|into| {
                let into = join(directory, into);
                path.strip_prefix(into.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        path == self.manifest()
            || path == self.lockfile()
            || is_installed(&self.lock_directory)
            || is_installed(&self.directory)
    }

    /// Settings files that the manager finds empty, and the repository, so that no git reads its config.
    pub(crate) fn masked(&self) -> Vec<PathBuf> {
        let directories = ancestors(&self.directory);
        let settings = directories.flat_map(|directory| {
            let names = self.manager.settings().iter().chain([&".git"]);
            names.map(move |name| PathBuf::from(join(directory, name)))
        });
        settings.collect()
    }

    /// Files of the run: settings of the manager, and what stands in for files of the project.
    pub(crate) fn files(
        &self,
        files: &dyn ProjectFiles,
        registry: &PackageRegistry,
    ) -> Result<Vec<JailFile>, ToolError> {
        match self.manager {
            PackageManager::Cargo => {
                // Cargo takes a replacement of its own registry by itself for an error.
                let config = match registry == &PackageRegistries::default().cargo {
                    true => String::new(),
                    false => format!(
                        "[source.crates-io]\nreplace-with = \"chosen\"\n[source.chosen]\nregistry = \"sparse+{}\"\n",
                        registry.url()
                    ),
                };
                let mut made = vec![JailFile::new("config.toml", config)];
                for (number, directory) in ancestors(&self.directory).enumerate() {
                    for name in ["rust-toolchain.toml", "rust-toolchain"] {
                        let path = join(directory, name);
                        let text = toolchain_file(files, &path)?;
                        let over = Some(PathBuf::from(&path));
                        made.push(JailFile { over, ..JailFile::new(&format!("{name}-{number}"), text) });
                    }
                }
                Ok(made)
            }
            PackageManager::Pip => {
                Ok(vec![JailFile::new("lock.py", LOCK_SCRIPT), JailFile::new("missing.py", MISSING_SCRIPT)])
            }
            PackageManager::Npm | PackageManager::Pnpm | PackageManager::Uv => Ok(Vec::new()),
        }
    }

    /// Commands before either script: the program is there, and has its settings.
    pub(crate) fn prepare_script(&self) -> String {
        let program = if self.manager == PackageManager::Pip { "python3" } else { self.manager.name() };
        let settings = match self.manager {
            PackageManager::Cargo => {
                "mkdir -p \"$CARGO_HOME\" && cat /run/ringfence/config.toml > \"$CARGO_HOME/config.toml\"\n"
            }
            _ => "",
        };
        format!(
            "command -v {program} > /dev/null || {{ echo 'missing: {program}'; exit {MISSING_PROGRAM}; }}\n{SYSTEM_CERTIFICATES}{settings}"
        )
    }
}

/// Certificates that the machine trusts, for programs that bring their own.
const SYSTEM_CERTIFICATES: &str =
    "for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    if [ -f $bundle ]; then export NODE_EXTRA_CA_CERTS=$bundle SSL_CERT_FILE=$bundle; break; fi
done
";

/// The toolchain file of a project as rustup is to see it: the channel, and no directory with programs of the project.
fn toolchain_file(files: &dyn ProjectFiles, path: &str) -> Result<String, ToolError> {
    let default = || Ok("[toolchain]\nchannel = \"stable\"\n".to_owned());
    if files.kind(path).is_none() {
        return default();
    }
    let text = files.read(path).unwrap_or_default();
    let channel = match text.parse::<toml::Table>() {
        Ok(table) => {
            let toolchain = table.get("toolchain").and_then(toml::Value::as_table);
            let toolchain = toolchain.filter(|toolchain| !toolchain.contains_key("path"));
            toolchain.and_then(|toolchain| toolchain.get("channel")).and_then(toml::Value::as_str).map(str::to_owned)
        }
        // The older form is the name by itself.
        Err(_) => Some(text.trim().to_owned()),
    };
    let is_plain = |channel: &String| {
        !channel.is_empty() && channel.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    match channel.filter(is_plain) {
        Some(channel) => Ok(format!("[toolchain]\nchannel = \"{channel}\"\n")),
        None => Err(ToolError::new(
            ErrorKind::Unavailable,
            format!("`{path}` names no channel; a toolchain of the project is not run to install packages"),
        )),
    }
}

fn managers_in(files: &dyn ProjectFiles, directory: &str) -> Result<Vec<PackageManager>, ToolError> {
    let has = |name: &str| is_file(files, directory, name);
    let unsupported = |lockfile: &str, supported: &str| {
        let message = format!("the project has `{lockfile}`, whose package manager is not supported; {supported} are");
        Err(ToolError::new(ErrorKind::Unavailable, message))
    };
    let mut found = Vec::new();
    found.extend(has("Cargo.toml").then_some(PackageManager::Cargo));
    if has("package.json") {
        match ["yarn.lock", "bun.lock", "bun.lockb"].into_iter().find(|name| has(name)) {
            Some(other) => return unsupported(other, "npm and pnpm"),
            None if has("pnpm-lock.yaml") || has("pnpm-workspace.yaml") => found.push(PackageManager::Pnpm),
            None => found.push(PackageManager::Npm),
        }
    }
    if has("pyproject.toml") {
        match ["poetry.lock", "pdm.lock", "Pipfile.lock"].into_iter().find(|name| has(name)) {
            Some(other) => return unsupported(other, "pip and uv"),
            None if has("requirements.in") && !has("uv.lock") => found.push(PackageManager::Pip),
            None => found.push(PackageManager::Uv),
        }
    } else if has("requirements.in") || has("requirements.txt") {
        found.push(PackageManager::Pip);
    }
    Ok(found)
}

fn is_file(files: &dyn ProjectFiles, directory: &str, name: &str) -> bool {
    files.kind(&join(directory, name)) == Some(EntryKind::File)
}

fn no_manifest(message: &str) -> ToolError {
    ToolError::new(ErrorKind::NotFound, message.to_owned())
        .hint("name the directory of a project in `directory`, or create its manifest first")
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Prints the packages of pip's report with their digests.
const LOCK_SCRIPT: &str = "import json, re, sys
packages = []
for item in json.load(open(sys.argv[1]))['install']:
    archive = item['download_info'].get('archive_info') or {}
    digest = (archive.get('hashes') or {}).get('sha256') or archive.get('hash', '').partition('sha256=')[2]
    if not re.fullmatch('[0-9a-f]{64}', digest):
        sys.exit('no digest: ' + item['metadata']['name'])
    packages.append((re.sub('[-_.]+', '-', item['metadata']['name']).lower(), item['metadata']['version'], digest))
print('# Made by install_package from requirements.in.')
for name, version, digest in sorted(packages):
    print(name + '==' + version + ' \\\\\\n    --hash=sha256:' + digest)
";

/// Prints which packages the index does not have at all: pip says the same of those without a wheel.
const MISSING_SCRIPT: &str = "import sys, urllib.error, urllib.request
for name in sys.argv[2:]:
    try:
        urllib.request.urlopen(sys.argv[1] + name + '/', timeout=20).close()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            print('absent: ' + name)
    except OSError:
        pass
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{PackageManager, PackageProject};
    use crate::detect::{EntryKind, ProjectFiles};
    use crate::package_registry::{PackageRegistries, PackageRegistry};

    struct TestFiles(BTreeMap<&'static str, &'static str>);

    impl ProjectFiles for TestFiles {
        fn read(&self, path: &str) -> Option<String> {
            self.0.get(path).map(|text| (*text).to_owned())
        }

        fn kind(&self, path: &str) -> Option<EntryKind> {
            let is_directory =
                self.0.keys().any(|file| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')));
            match self.0.contains_key(path) {
                true => Some(EntryKind::File),
                false => is_directory.then_some(EntryKind::Directory),
            }
        }
    }

    #[track_caller]
    fn check(files: &[(&'static str, &'static str)], directory: &str, manager: Option<PackageManager>, expected: &str) {
        let files = TestFiles(files.iter().copied().collect());
        let found = match PackageProject::find(&files, directory, manager) {
            Ok(found) => format!("{} {} {}", found.manager.name(), found.manifest(), found.lockfile()),
            Err(error) => error.message,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_nearest_manifest_decides() {
        use PackageManager::{Cargo, Pip};
        check(&[("Cargo.toml", "")], "", None, "cargo Cargo.toml Cargo.lock");
        check(
            &[("Cargo.toml", "[workspace]"), ("a/Cargo.toml", ""), ("a/src/x", "")],
            "a/src",
            None,
            "cargo a/Cargo.toml Cargo.lock",
        );
        check(
            &[("Cargo.toml", ""), ("web/package.json", "")],
            "web",
            None,
            "npm web/package.json web/package-lock.json",
        );
        check(&[("Cargo.toml", ""), ("web/package.json", "")], "web", Some(Cargo), "cargo Cargo.toml Cargo.lock");
        check(&[("package.json", ""), ("pnpm-lock.yaml", "")], "", None, "pnpm package.json pnpm-lock.yaml");
        check(
            &[("package.json", ""), ("package-lock.json", ""), ("a/package.json", "")],
            "a",
            None,
            "npm a/package.json package-lock.json",
        );
        check(&[("pyproject.toml", "")], "", None, "uv pyproject.toml uv.lock");
        check(&[("requirements.in", "")], "", None, "pip requirements.in requirements.txt");
        check(&[("a/x", "")], "a", Some(Pip), "pip a/requirements.in a/requirements.txt");
    }

    #[test]
    fn what_cannot_be_installed_is_said() {
        use PackageManager::Cargo;
        let hint = "name the directory of a project in `directory`, or create its manifest first";
        let none = "no Cargo.toml, package.json, pyproject.toml or requirements.in was found";
        check(&[], "", None, &format!("{none}; {hint}"));
        check(&[], "", Some(Cargo), &format!("`Cargo.toml` was not found; {hint}"));
        check(&[("a", "")], "a", None, "`a` is not a directory");
        check(
            &[("Cargo.toml", ""), ("package.json", "")],
            "",
            None,
            "manager is missing, and the project has several: cargo, npm",
        );
        check(
            &[("package.json", ""), ("yarn.lock", "")],
            "",
            None,
            "the project has `yarn.lock`, whose package manager is not supported; npm and pnpm are",
        );
        check(
            &[("package.json", ""), ("pnpm-workspace.yaml", "")],
            "",
            None,
            "projects with `pnpm-workspace.yaml` are not supported; its settings would be left out",
        );
        check(
            &[("requirements.txt", "a==1")],
            "",
            None,
            "`requirements.txt` is to be the list with versions and hashes that is made from `requirements.in`, which does not \
             exist; rename `requirements.txt` to `requirements.in` first",
        );
    }

    #[test]
    fn a_toolchain_of_the_project_is_not_run() {
        for (text, expected) in [
            ("[toolchain]\nchannel = \"1.80\"\ncomponents = [\"x\"]\n", Some("1.80")),
            ("nightly-2025-01-01\n", Some("nightly-2025-01-01")),
            ("[toolchain]\npath = \"evil\"\n", None),
            ("[toolchain]\nchannel = \"1.80\"\npath = \"evil\"\n", None),
            ("[toolchain]\nchannel = \"../evil\"\n", None),
            ("/workspace/evil", None),
            ("", None),
        ] {
            let files = TestFiles(BTreeMap::from([("rust-toolchain.toml", text)]));
            let made = super::toolchain_file(&files, "rust-toolchain.toml").ok();
            let expected = expected.map(|channel| format!("[toolchain]\nchannel = \"{channel}\"\n"));
            assert_eq!(made, expected, "{text}");
        }
    }

    #[test]
    fn another_registry_of_crates_replaces_the_public_one() {
        let project =
            PackageProject { manager: PackageManager::Cargo, directory: String::new(), lock_directory: String::new() };
        let config = |registry: &PackageRegistry| {
            let files = project.files(&TestFiles(BTreeMap::new()), registry).unwrap();
            let config = files.into_iter().find(|file| file.name == "config.toml").unwrap();
            String::from_utf8(config.bytes).unwrap()
        };
        assert_eq!(config(&PackageRegistries::default().cargo), "");
        let other = PackageRegistry::new("https://crates.example.org/index", &[]).unwrap();
        assert_eq!(
            config(&other),
            "[source.crates-io]\nreplace-with = \"chosen\"\n[source.chosen]\nregistry = \"sparse+https://crates.example.org/index/\"\n"
        );
    }

    #[test]
    fn an_installation_changes_its_own_directory_and_no_other() {
        let project = PackageProject {
            manager: PackageManager::Npm,
            directory: "a/b".to_owned(),
            lock_directory: "a".to_owned(),
        };
        for (path, expected) in [
            ("a/b/package.json", true),
            ("a/package-lock.json", true),
            ("a/node_modules", true),
            ("a/node_modules/x/index.js", true),
            ("a/b/node_modules/x", true),
            ("node_modules/x", false),
            ("a/node_modules_x", false),
            ("a/package.json", false),
            ("a/b/src/index.js", false),
            (".npmrc", false),
        ] {
            assert_eq!(project.may_change(path), expected, "{path}");
        }
        let masked: Vec<String> = project.masked().iter().map(|path| path.display().to_string()).collect();
        assert_eq!(masked, ["a/b/.npmrc", "a/b/.git", "a/.npmrc", "a/.git", ".npmrc", ".git"]);
    }

    #[test]
    fn the_age_of_releases_is_limited_where_the_manager_can() {
        for (manager, version, expected) in [
            (PackageManager::Npm, "11.19.1", true),
            (PackageManager::Npm, "11.9.0", false),
            (PackageManager::Npm, "", false),
            (PackageManager::Pnpm, "10.16.0", true),
            (PackageManager::Pnpm, "9.0.0", false),
            (PackageManager::Cargo, "1.95.0", false),
        ] {
            assert_eq!(manager.has_min_age(version), expected, "{version}");
        }
    }
}
