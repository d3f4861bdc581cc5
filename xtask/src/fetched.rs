//! Programs of others that a command needs: fetched below `target` on the first run, and ended with the command.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::say;

/// A process that ends with this value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a command could be run, and succeeded.
pub(crate) fn done(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// An environment of Python with a package in it, by its programs. `None`, and said why, if it cannot be had.
pub(crate) fn python(place: &Path, package: &str) -> Option<PathBuf> {
    let programs = place.join("venv/bin");
    let python = programs.join("python");
    let there = python.exists() || done(Command::new("python3").args(["-m", "venv"]).arg(place.join("venv")));
    if !there || !done(Command::new(&python).args(["-m", "pip", "install", "--quiet", package])) {
        say(&format!("{package} was not tried: `python3 -m venv` and once the network are needed"));
        return None;
    }
    Some(programs)
}

/// Packages of Node, by the directory that they are in. `None`, and said why, if they cannot be had.
pub(crate) fn node(place: &Path, packages: &[&str]) -> Option<PathBuf> {
    if !done(Command::new("npm").args(["install", "--silent", "--prefix"]).arg(place).args(packages)) {
        say(&format!("{} was not tried: `npm` and once the network are needed", packages[0]));
        return None;
    }
    Some(place.join("node_modules"))
}

/// Whether there is such a program.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Installs packages of Debian, which takes root. False if that cannot be.
pub(crate) fn debian(packages: &[&str]) -> bool {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|said| said.stdout.trim_ascii() == b"0");
    if !is_root || !has("apt-get") {
        return false;
    }
    say(&format!("apt-get install {}", packages.join(" ")));
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        done(command.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()))
    };
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    // Lists that are old, or that are not there yet, are asked for where the packages are not found.
    apt(&install) || (apt(&["update"]) && apt(&install))
}
