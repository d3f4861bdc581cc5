//! `ringfence run` with toolchains: caches of the person below layers, with real package managers.
//!
//! Inside there is no way to the registry: what is installed comes from the person's cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::install_package::{has_npm, has_pip};
use crate::package_registry::{NpmRelease, RegistryServer};
use crate::project_tools::rust_toolchain;
use crate::site::{CliOutput, TestSite, cli_output};

/// A run around a script, in a directory.
#[track_caller]
fn run_in(site: &TestSite, workspace: &Path, options: &[&str], script: &str) -> CliOutput {
    let mut program = site.program_without_arguments();
    program.current_dir(workspace).args(["run", "--end", "drop"]).args(options).args(["--", "sh", "-c", script]);
    cli_output(program.output().unwrap())
}

/// The same in the workspace.
#[track_caller]
fn run(site: &TestSite, options: &[&str], script: &str) -> CliOutput {
    run_in(site, &site.workspace, options, script)
}

/// A command of the person, without a sandbox.
#[track_caller]
fn as_person(command: &mut Command, directory: &Path) {
    let output = command.current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Every file below a directory.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap().is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(&path).unwrap_or_default())),
        }
    }
    found
}

/// Files of the cache layers that contain a text.
fn layered_files(site: &TestSite, text: &str) -> usize {
    let layers = files(&site.state.join("caches"));
    layers.values().filter(|contents| String::from_utf8_lossy(contents).contains(text)).count()
}

/// A copy of files of the workspace in another one.
fn other_workspace(site: &TestSite, names: &[&str]) -> PathBuf {
    let other = site.root().join("other");
    std::fs::create_dir_all(&other).unwrap();
    for name in names {
        let to = other.join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(site.workspace.join(name), to).unwrap();
    }
    other
}

/// A script that replaces every file of this name in a directory.
fn poison(directory: &str, name: &str) -> String {
    format!("find {directory} -type f -name '{name}' -exec sh -c 'chmod u+w \"$1\"; echo poisoned > \"$1\"' _ {{}} \\;")
}

#[test]
fn npm_installs_from_the_person_s_cache_and_poison_stays_in_the_workspace_s_layer() {
    if !has_npm() {
        return;
    }
    let (site, registry) = (TestSite::new(), RegistryServer::start());
    registry.npm("basket", NpmRelease::default());
    site.write(
        "package.json",
        "{\"name\": \"shop\", \"version\": \"1.0.0\", \"dependencies\": {\"basket\": \"1.0.0\"}}",
    );
    let at = format!("--registry={}", registry.url("npm/"));
    let install = ["install", &at, "--no-audit", "--no-fund"];
    as_person(site.program("npm").args(install), &site.workspace);
    std::fs::remove_dir_all(site.workspace.join("node_modules")).unwrap();
    let own = files(&site.home.join(".npm/_cacache"));
    assert!(!own.is_empty());
    let script = format!("npm ci {at} --no-audit --no-fund --fetch-retries=0 >&2 && node -p 'require(\"basket\")'");
    let warm = run(&site, &[], &script);
    assert_eq!((warm.code, warm.out.as_str()), (Some(0), "1\n"), "{warm:?}");
    assert!(warm.err.contains("note: toolchains: node"), "{warm:?}");
    // A package that was replaced in the cache is there for later runs in this workspace, and for no one else.
    let poisoned = run(&site, &[], &poison("~/.npm/_cacache/content-v2", "*"));
    assert_eq!(poisoned.code, Some(0), "{poisoned:?}");
    let contents = own.keys().filter(|path| path.to_str().unwrap().contains("/content-v2/")).count();
    assert_eq!(run(&site, &[], "grep -rl poisoned ~/.npm/_cacache | wc -l").out, format!("{contents}\n"));
    assert_eq!(layered_files(&site, "poisoned"), contents);
    assert_eq!(files(&site.home.join(".npm/_cacache")), own, "the person's cache is as it was");
    let other = other_workspace(&site, &["package.json", "package-lock.json"]);
    let clean = run_in(&site, &other, &[], &script);
    assert_eq!((clean.code, clean.out.as_str()), (Some(0), "1\n"), "{clean:?}");
    // Without the toolchain there is no cache.
    for options in [["--toolchain", "none"], ["--profile", "none"]] {
        let without = run_in(&site, &other, &options, "test -e ~/.npm/_cacache || echo absent");
        assert_eq!((without.out.as_str(), without.err.contains("toolchains")), ("absent\n", false), "{without:?}");
    }
}

#[test]
fn cargo_builds_from_the_person_s_cache_and_poison_stays_in_the_workspace_s_layer() {
    let (site, registry) = (TestSite::new(), RegistryServer::start());
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), rust_toolchain()).unwrap();
    registry.krate("basket", &[], &[]);
    site.write(
        "Cargo.toml",
        "[package]\nname = \"shop\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nbasket = \"1\"\n",
    );
    site.write("src/lib.rs", "pub use basket as _;\n");
    let source = format!(
        "[source.crates-io]\nreplace-with = \"local\"\n[source.local]\nregistry = \"sparse+{}\"\n",
        registry.url("cargo/index/")
    );
    site.write(".cargo/config.toml", source);
    let cargo = Path::new(env!("CARGO"));
    let path = std::env::join_paths(
        cargo.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    as_person(site.program(cargo).arg("fetch").env("PATH", path.unwrap()), &site.workspace);
    std::fs::write(site.home.join(".cargo/credentials.toml"), "[registry]\ntoken = \"7f3a9c\"\n").unwrap();
    let own = files(&site.home.join(".cargo"));
    let build = "cargo build 2>&1 && ls -A ~/.cargo && cat ~/.cargo/credentials.toml";
    let warm = run(&site, &[], build);
    assert!(warm.out.contains("Compiling basket v1.0.0") && warm.out.contains("Finished"), "{warm:?}");
    assert!(warm.out.contains("registry\n") && !warm.out.contains("7f3a9c"), "{warm:?}");
    let poisoned = run(&site, &[], &poison("~/.cargo/registry", "lib.rs"));
    assert_eq!(poisoned.code, Some(0), "{poisoned:?}");
    let broken = run(&site, &[], "cargo build 2>&1");
    assert!(broken.out.contains("poisoned"), "{broken:?}");
    assert_eq!(layered_files(&site, "poisoned"), 1);
    assert_eq!(files(&site.home.join(".cargo")), own, "the person's cache is as it was");
    let other = other_workspace(&site, &["Cargo.toml", "Cargo.lock", "src/lib.rs", ".cargo/config.toml"]);
    let clean = run_in(&site, &other, &[], build);
    assert!(clean.out.contains("Finished"), "{clean:?}");
}

#[test]
fn pip_installs_from_the_person_s_cache_and_poison_stays_in_the_workspace_s_layer() {
    if !has_pip() {
        return;
    }
    let (site, registry) = (TestSite::new(), RegistryServer::start());
    registry.is_cacheable.store(true, Ordering::Relaxed);
    registry.wheel("basket", &[], &[]);
    site.write("requirements.txt", registry.url("files/basket-1.0-py3-none-any.whl"));
    // It keeps nothing of a server without TLS that is not trusted.
    let install = "-m pip install --no-deps --retries=0 --trusted-host=127.0.0.1 -r requirements.txt --target";
    let outside = site.root().join("outside-lib");
    as_person(site.program("/usr/bin/python3").args(install.split(' ')).arg(&outside), &site.workspace);
    let own = files(&site.home.join(".cache/pip"));
    assert!(!own.is_empty());
    let script = format!(
        "/usr/bin/python3 {install} lib >&2 && PYTHONPATH=lib /usr/bin/python3 -c 'import basket; print(basket.x)'"
    );
    let warm = run(&site, &[], &script);
    assert_eq!((warm.code, warm.out.as_str()), (Some(0), "1\n"), "{warm:?}");
    let poisoned = run(&site, &[], &poison("~/.cache/pip", "*"));
    assert_eq!(poisoned.code, Some(0), "{poisoned:?}");
    assert!(layered_files(&site, "poisoned") > 0);
    assert_eq!(files(&site.home.join(".cache/pip")), own, "the person's cache is as it was");
    let other = other_workspace(&site, &["requirements.txt"]);
    let clean = run_in(&site, &other, &[], &script);
    assert_eq!((clean.code, clean.out.as_str()), (Some(0), "1\n"), "{clean:?}");
}

#[test]
fn keys_of_toolchains_are_not_visible() {
    let site = TestSite::new();
    let secret = "7f3a9c";
    for path in [
        ".npmrc",
        ".npm/_logs/debug-0.log",
        ".npm/_cacache/.npmrc",
        ".cargo/credentials.toml",
        ".cargo/credentials",
        ".m2/settings.xml",
        ".m2/settings-security.xml",
        ".m2/repository/settings.xml",
        ".gradle/gradle.properties",
        ".gradle/init.gradle",
        ".gradle/caches/gradle.properties",
        ".config/pip/pip.conf",
        ".netrc",
        "go/env",
        "go/pkg/mod/cache/vcs/ab12/config",
    ] {
        let path = site.home.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("password = https://me:{secret}@host/\n")).unwrap();
    }
    std::fs::write(site.home.join(".m2/repository/a.jar"), "jar").unwrap();
    std::os::unix::fs::symlink(".config", site.home.join(".cache")).unwrap();
    let all = ["node", "python", "rust", "go", "java"].map(|name| ["--toolchain", name]).concat();
    let script = format!("grep -r {secret} ~ /etc 2>/dev/null || echo clean; cat ~/.m2/repository/a.jar; ls -A ~/.npm");
    let looked = run(&site, &all, &script);
    assert_eq!(looked.out, "clean\njar_cacache\n_npx\n", "{looked:?}");
    assert!(looked.err.contains("your cache `~/.cache/pip` is not used: it is a symbolic link"), "{looked:?}");
}

#[test]
fn a_denied_registry_keeps_no_program_from_starting() {
    let site = TestSite::new();
    site.write("package.json", "{}");
    let rule = "[[rules]]\nname = \"no registry\"\ndecision = \"deny\"\nhost = [\"registry.npmjs.org\", \"registry.npmjs.org:80\"]\n";
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), rule).unwrap();
    // The proxy says it on port 80 without TLS.
    let refused = run(&site, &[], "curl -s http://registry.npmjs.org/");
    assert!(refused.out.contains("no registry"), "{refused:?}");
}

#[test]
fn old_cache_layers_go_at_the_end_of_a_run_and_by_gc() {
    let site = TestSite::new();
    site.write("package.json", "{}");
    let write = "head -c 20000 /dev/zero > ~/.npm/_cacache/data";
    assert_eq!(run(&site, &[], write).code, Some(0));
    let listed = site.run(&["gc", "--dry-run", "--max-size", "1000"]);
    assert!(
        listed.out.contains("would remove cache `~/.npm/_cacache` of `none`, last used 0 days ago, 20 kB"),
        "{listed:?}"
    );
    assert_eq!(layered_files(&site, "\0\0"), 1, "a dry run removes nothing");
    let age = |path: &Path, days: u64| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 3600)).unwrap();
    };
    // Another workspace's, so that the next run does not use it.
    let other = other_workspace(&site, &["package.json"]);
    for entry in std::fs::read_dir(site.state.join("caches")).unwrap() {
        let directory = entry.unwrap().path();
        age(&directory.join("lock"), 40);
        let about = directory.join("about.json");
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&about).unwrap()).unwrap();
        record["used"] = serde_json::json!(0);
        std::fs::write(about, record.to_string()).unwrap();
    }
    assert_eq!(run_in(&site, &other, &[], "true").code, Some(0));
    assert_eq!(layered_files(&site, "\0\0"), 1, "a collection was made today");
    age(&site.state.join("collected"), 2);
    assert_eq!(run_in(&site, &other, &[], write).code, Some(0));
    assert_eq!(layered_files(&site, "\0\0"), 1, "the old one is gone, the new one stays");
    let removed = site.run(&["gc", "--max-size", "1000"]);
    assert!(removed.out.contains("removed cache `~/.npm/_cacache`"), "{removed:?}");
    assert_eq!(layered_files(&site, "\0\0"), 0);
}
