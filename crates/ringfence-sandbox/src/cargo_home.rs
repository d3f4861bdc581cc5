//! Writable `CARGO_HOME` of a run, on top of the host's.
//!
//! With egress, cargo downloads and unpacks. The host's home is read-only, so a run gets one of its own, with links to
//! the settings and the downloaded packages of the host's: those are not fetched again. Indexes are, because cargo
//! updates them in place.
//!
//! Not here: setting `CARGO_HOME` (`environment.rs`).

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Fills `home` with links into `host`. Missing directories, and those that cannot be linked, are skipped.
pub(crate) fn link_cargo_home(host: &Path, home: &Path) {
    for settings in ["config.toml", "config"] {
        let _ = link(&host.join(settings), &home.join(settings));
    }
    let cache = Path::new("registry/cache");
    for registry in fs::read_dir(host.join(cache)).into_iter().flatten().flatten() {
        for package in fs::read_dir(registry.path()).into_iter().flatten().flatten() {
            let link_path = home.join(cache).join(registry.file_name()).join(package.file_name());
            let _ = link(&package.path(), &link_path);
        }
    }
}

fn link(target: &Path, link_path: &Path) -> io::Result<()> {
    fs::metadata(target)?;
    link_path.parent().map_or(Ok(()), fs::create_dir_all)?;
    symlink(target, link_path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::link_cargo_home;

    #[test]
    fn downloads_and_settings_are_linked_and_the_rest_is_writable() {
        let directory = tempfile::tempdir().unwrap();
        let (host, home) = (directory.path().join("host"), directory.path().join("home"));
        for (name, text) in [
            ("registry/cache/index.crates.io-1/serde-1.0.0.crate", "package"),
            ("registry/index/index.crates.io-1/config.json", "{}"),
            ("config.toml", "[net]"),
            ("credentials.toml", "token"),
        ] {
            fs::create_dir_all(host.join(name).parent().unwrap()).unwrap();
            fs::write(host.join(name), text).unwrap();
        }
        link_cargo_home(&host, &home);
        let read = |name: &str| fs::read_to_string(home.join(name)).unwrap_or_default();
        let cache = "registry/cache/index.crates.io-1";
        assert_eq!(read(&format!("{cache}/serde-1.0.0.crate")), "package");
        assert_eq!((read("config.toml").as_str(), read("credentials.toml").as_str()), ("[net]", ""));
        fs::write(home.join(cache).join("new-1.0.0.crate"), "x").unwrap();
        fs::create_dir_all(home.join("registry/index/index.crates.io-1")).unwrap();
        assert!(!host.join(cache).join("new-1.0.0.crate").exists());
        // A host without a cargo home is not an error.
        link_cargo_home(&directory.path().join("none"), &home);
    }
}
