//! Programs of others that a command needs: fetched below `target` on the first run, and ended with the command.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::print_status;

/// A process that ends with this value.
pub(crate) struct ChildGuard(pub(crate) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a command could be run, and succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Installs a Python package into a virtual environment, and returns its directory of programs. `None`, with a message,
/// on failure.
pub(crate) fn fetch_python_package(dir: &Path, package: &str) -> Option<PathBuf> {
    let programs = dir.join("venv/bin");
    let python = programs.join("python");
    let there = python.exists() || succeeds(Command::new("python3").args(["-m", "venv"]).arg(dir.join("venv")));
    if !there || !succeeds(Command::new(&python).args(["-m", "pip", "install", "--quiet", package])) {
        print_status(&format!("skipped {package}: requires `python3 -m venv`, and network access for the first run"));
        return None;
    }
    Some(programs)
}

/// Installs Node packages, and returns their directory. `None`, with a message, on failure.
pub(crate) fn fetch_node_packages(dir: &Path, packages: &[&str]) -> Option<PathBuf> {
    if !succeeds(Command::new("npm").args(["install", "--silent", "--prefix"]).arg(dir).args(packages)) {
        print_status(&format!("skipped {}: requires `npm`, and network access for the first run", packages[0]));
        return None;
    }
    Some(dir.join("node_modules"))
}

/// Whether there is such a program.
pub(crate) fn has_program(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Installs packages of Debian, which takes root. False if that cannot be.
pub(crate) fn install_debian_packages(packages: &[&str]) -> bool {
    let is_root =
        Command::new("id").arg("-u").output().is_ok_and(|printed_text| printed_text.stdout.trim_ascii() == b"0");
    if !is_root || !has_program("apt-get") {
        return false;
    }
    print_status(&format!("apt-get install {}", packages.join(" ")));
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        succeeds(command.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()))
    };
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    // Lists that are old, or that are not there yet, are asked for where the packages are not found.
    apt(&install) || (apt(&["update"]) && apt(&install))
}
