//! Toolchain discovery: compilers and interpreters outside `/usr`.
//!
//! Only directories that hold programs and libraries are shown, each at its own path and read-only. Keys and tokens that
//! lie beside them, such as cargo's credentials, are not among these directories and so never in the jail.
//!
//! Not here: where the home directory is. The caller says.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::toolchain_secrets::has_no_token;

/// One toolchain, as found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toolchain {
    /// For people.
    pub name: String,
    /// Files and directories that the jail shows, read-only, at the same path.
    pub shown: Vec<PathBuf>,
    /// Directories for the search path. Each is below one that is shown.
    pub path: Vec<PathBuf>,
    /// Environment variables of its programs.
    pub env: Vec<(String, String)>,
}

impl Toolchain {
    /// A directory that the user names. Its programs are in `bin`.
    pub fn declared(directory: &Path) -> Self {
        let shown = vec![directory.to_owned()];
        Self { name: directory.display().to_string(), path: vec![directory.join("bin")], shown, env: Vec::new() }
    }
}

/// Toolchains of this machine, for the user with this home directory.
pub fn detect(home: &Path) -> Vec<Toolchain> {
    let found = [cargo(home), rustup(home), pyenv(home), nvm(home), nix(home)];
    found.into_iter().flatten().chain(opt_packages(Path::new("/opt"), home)).collect()
}

/// The proxies and installed programs, and downloaded sources to build from. Without a network, cargo runs offline
/// instead of waiting for it.
fn cargo(home: &Path) -> Option<Toolchain> {
    let root = home.join(".cargo");
    let mut shown = directories(&root, &["bin", "registry", "git"]);
    let path = directories(&root, &["bin"]);
    shown.extend(["config.toml", "config"].map(|name| root.join(name)).into_iter().filter(|path| has_no_secret(path)));
    let env = vec![env_var("CARGO_HOME", &root)?, ("CARGO_NET_OFFLINE".to_owned(), "true".to_owned())];
    (!path.is_empty()).then_some(Toolchain { name: "cargo".to_owned(), shown, path, env })
}

fn rustup(home: &Path) -> Option<Toolchain> {
    let root = home.join(".rustup");
    // It asks for the second whenever one of its proxies is started, and gives up where it cannot make it.
    let mut shown = directories(&root, &["toolchains", "update-hashes"]);
    if !root.join("toolchains").is_dir() {
        return None;
    }
    shown.extend(Some(root.join("settings.toml")).filter(|path| path.is_file()));
    Some(Toolchain { name: "rustup".to_owned(), shown, path: Vec::new(), env: vec![env_var("RUSTUP_HOME", &root)?] })
}

/// The chosen versions themselves and not the shims, which are scripts that look for them each time.
fn pyenv(home: &Path) -> Option<Toolchain> {
    let root = home.join(".pyenv");
    let chosen = fs::read_to_string(root.join("version")).ok()?;
    let versions: Vec<PathBuf> = chosen
        .split([':', '\n'])
        .map(str::trim)
        .filter(|version| is_plain_name(version))
        .map(|version| root.join("versions").join(version))
        .filter(|path| path.is_dir())
        .collect();
    let path: Vec<PathBuf> = versions.iter().map(|version| version.join("bin")).collect();
    // A version may be a link to another one beside it.
    let shown = vec![root.join("versions")];
    (!path.is_empty()).then_some(Toolchain { name: "pyenv".to_owned(), shown, path, env: Vec::new() })
}

/// The default version if it can be determined, else the newest. Not its `etc`: npm keeps tokens there that are for all
/// projects.
fn nvm(home: &Path) -> Option<Toolchain> {
    let root = home.join(".nvm");
    let wanted = fs::read_to_string(root.join("alias/default")).unwrap_or_default();
    let wanted = wanted.trim().trim_start_matches('v');
    let mut versions: Vec<(Vec<u64>, PathBuf)> = entries(&root.join("versions/node"))
        .into_iter()
        .filter_map(|path| Some((version_number(path.file_name()?.to_str()?)?, path)))
        .collect();
    versions.sort();
    let wanted: Option<Vec<u64>> = version_number(wanted);
    let default = wanted.and_then(|wanted| versions.iter().rfind(|(number, _)| number.starts_with(&wanted)));
    let (_, version) = default.or(versions.last())?;
    let shown = directories(version, &["bin", "include", "lib", "share"]);
    let path = directories(version, &["bin"]);
    (!path.is_empty()).then_some(Toolchain { name: "nvm".to_owned(), shown, path, env: Vec::new() })
}

/// The store has no secrets by its own rules: it is world-readable. Profiles are links into it.
fn nix(home: &Path) -> Option<Toolchain> {
    let store = Path::new("/nix/store");
    let profiles = [home.join(".nix-profile"), PathBuf::from("/nix/var/nix/profiles/default")];
    let path = profiles
        .iter()
        .filter_map(|profile| fs::canonicalize(profile.join("bin")).ok())
        .filter(|bin| bin.starts_with(store))
        .collect();
    store.is_dir().then(|| Toolchain { name: "nix".to_owned(), shown: vec![store.to_owned()], path, env: Vec::new() })
}

/// Packages below `/opt` that have programs where programs belong: of each the parts that hold programs, and not its settings
/// and data. Some users live there: their home is not a package.
fn opt_packages(root: &Path, home: &Path) -> impl Iterator<Item = Toolchain> {
    entries(root).into_iter().filter(|package| !home.starts_with(package)).filter_map(|package| {
        let path = directories(&package, &["bin"]);
        if path.is_empty() {
            return None;
        }
        let name = package.file_name()?.to_str()?.to_owned();
        let mut shown = directories(&package, &PROGRAM_PARTS);
        // A Java runtime does not start without its settings. Other packages keep passwords in a directory of that name.
        let is_java = package.join("lib/modules").is_file() || package.join("lib/jrt-fs.jar").is_file();
        shown.extend(is_java.then(|| package.join("conf")));
        shown.extend(PROGRAM_FILES.map(|name| package.join(name)).into_iter().filter(|file| file.is_file()));
        Some(Toolchain { name, shown, path, env: Vec::new() })
    })
}

/// Directories of a package that hold programs, libraries, and what those read.
const PROGRAM_PARTS: [&str; 24] = [
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libexec",
    "include",
    "share",
    "man",
    "jre",
    "jmods",
    "legal",
    "nvvm",
    "targets",
    "src",
    "pkg",
    "api",
    "misc",
    "boot",
    "ssl",
    "condabin",
    "conda-meta",
    "modules",
    "plugins",
];

/// Files by which programs of a package know where they are.
const PROGRAM_FILES: [&str; 4] = ["release", "VERSION", "go.env", "pyvenv.cfg"];

/// Those of these names that are directories.
fn directories(root: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| root.join(name)).filter(|path| path.is_dir()).collect()
}

/// Sorted, so that two runs see the same.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    paths.sort();
    paths
}

fn env_var(name: &str, path: &Path) -> Option<(String, String)> {
    Some((name.to_owned(), path.to_str()?.to_owned()))
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains('/')
}

fn version_number(name: &str) -> Option<Vec<u64>> {
    name.trim_start_matches('v').split('.').map(|part| part.parse().ok()).collect()
}

/// Cargo's settings say where crates come from, and builds need that; they may also hold tokens. Then they are left out.
fn has_no_secret(settings: &Path) -> bool {
    fs::read_to_string(settings).is_ok_and(|text| has_no_token(&text))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Toolchain, detect, opt_packages};

    /// A home directory with these files.
    fn home(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for (name, contents) in files {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        home
    }

    fn detect_named(home: &Path, name: &str) -> Option<Toolchain> {
        detect(home).into_iter().find(|toolchain| toolchain.name == name)
    }

    fn below(home: &Path, paths: &[PathBuf]) -> Vec<String> {
        paths.iter().map(|path| path.strip_prefix(home).unwrap().display().to_string()).collect()
    }

    #[test]
    fn an_empty_home_has_none() {
        let home = home(&[]);
        assert!(
            detect(home.path()).iter().all(|toolchain| !toolchain.shown.iter().any(|p| p.starts_with(home.path())))
        );
    }

    #[test]
    fn cargo_is_shown_without_its_credentials() {
        let home = home(&[
            (".cargo/bin/cargo", ""),
            (".cargo/registry/index/x", ""),
            (".cargo/credentials.toml", "[registry]\ntoken = \"x\""),
            (".cargo/credentials", "x"),
            (".cargo/env", "x"),
            (".rustup/toolchains/stable/bin/rustc", ""),
            (".rustup/update-hashes/stable", ""),
            (".rustup/downloads/x", ""),
            (".rustup/settings.toml", ""),
        ]);
        let cargo = detect_named(home.path(), "cargo").unwrap();
        assert_eq!(below(home.path(), &cargo.shown), [".cargo/bin", ".cargo/registry"]);
        assert_eq!(below(home.path(), &cargo.path), [".cargo/bin"]);
        assert_eq!(cargo.env[0], ("CARGO_HOME".to_owned(), home.path().join(".cargo").display().to_string()));
        let rustup = detect_named(home.path(), "rustup").unwrap();
        let shown = [".rustup/toolchains", ".rustup/update-hashes", ".rustup/settings.toml"];
        assert_eq!(below(home.path(), &rustup.shown), shown);
    }

    #[test]
    fn settings_of_cargo_are_shown_only_without_secrets() {
        let check = |settings: &str, expected: bool| {
            let home = home(&[(".cargo/bin/cargo", ""), (".cargo/config.toml", settings)]);
            let shown = detect_named(home.path(), "cargo").unwrap().shown;
            assert_eq!(shown.contains(&home.path().join(".cargo/config.toml")), expected, "{settings}");
        };
        check("[source.crates-io]\nreplace-with = \"mirror\"\n[source.mirror]\nregistry = \"https://a/b@c\"", true);
        check("[registries.mine]\nToken = \"x\"", false);
        check("[http]\nproxy = \"http://me:x@proxy:80\"", false);
        check("[registry]\ncredential-provider = \"x\"", false);
    }

    #[test]
    fn the_chosen_python_comes_without_shims() {
        let versions = [(".pyenv/versions/3.12.1/bin/python3", ""), (".pyenv/versions/3.9.0/bin/python3", "")];
        let chosen = home(&[versions[0], versions[1], (".pyenv/version", "3.12.1\n../../..\nsystem\n")]);
        let pyenv = detect_named(chosen.path(), "pyenv").unwrap();
        assert_eq!(below(chosen.path(), &pyenv.path), [".pyenv/versions/3.12.1/bin"]);
        assert_eq!(below(chosen.path(), &pyenv.shown), [".pyenv/versions"]);
        assert_eq!(detect_named(home(&versions).path(), "pyenv"), None);
    }

    #[test]
    fn the_default_node_or_the_newest_is_taken() {
        let check = |alias: &str, expected: &str| {
            let versions =
                ["v9.1.0", "v18.2.0", "v18.10.0", "v22.0.0"].map(|v| format!(".nvm/versions/node/{v}/bin/node"));
            let npmrc = format!(".nvm/versions/node/{expected}/etc/npmrc");
            let mut files: Vec<(&str, &str)> = versions.iter().map(|file| (file.as_str(), "")).collect();
            files.extend([(".nvm/alias/default", alias), (&npmrc, "//registry/:_authToken=x")]);
            let home = home(&files);
            let nvm = detect_named(home.path(), "nvm").unwrap();
            assert_eq!(below(home.path(), &nvm.shown), [format!(".nvm/versions/node/{expected}/bin")], "{alias}");
        };
        check("18\n", "v18.10.0");
        check("v18.2.0", "v18.2.0");
        check("lts/*", "v22.0.0");
        check("17", "v22.0.0");
    }

    #[test]
    fn optional_packages_have_programs() {
        let opt = home(&[("tool/bin/tool", ""), ("data/file", ""), ("service/bin/x", ""), ("service/.ssh/id_rsa", "")]);
        let home = opt.path().join("service");
        let names: Vec<String> = opt_packages(opt.path(), &home).map(|toolchain| toolchain.name).collect();
        assert_eq!(names, ["tool"]);
    }

    #[test]
    fn of_an_optional_package_only_programs_are_shown() {
        let opt = home(&[
            ("app/bin/app", ""),
            ("app/lib/app.so", ""),
            ("app/.env", "KEY=x"),
            ("app/etc/app.conf", "password=x"),
            ("app/conf/settings.xml", "<password>x</password>"),
            ("app/data/customers.db", "x"),
            ("app/pyvenv.cfg", ""),
            ("jdk/bin/java", ""),
            ("jdk/lib/modules", ""),
            ("jdk/conf/security/java.security", ""),
        ]);
        let shown: Vec<_> =
            opt_packages(opt.path(), Path::new("/home/u")).map(|found| below(opt.path(), &found.shown)).collect();
        assert_eq!(shown, [vec!["app/bin", "app/lib", "app/pyvenv.cfg"], vec!["jdk/bin", "jdk/lib", "jdk/conf"]]);
    }
}
