//! Releases of packages, from their registries by the programs of those: the files of one, and what its tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo;
use crate::external_tools::{fetch_node_packages, succeeds};
use crate::fixes::FixTrial;

/// Where packages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackageRegistry {
    Cargo,
    Python,
    Node,
}

/// The directory with the files of a release, which is fetched once.
pub(super) fn fetch(trial: &FixTrial, release: &str, base: &Path) -> Result<PathBuf, String> {
    let (files, download) = (base.join(release), base.join(format!("{release}.download")));
    if files.is_dir() {
        return Ok(files);
    }
    let failed = |why: &str| format!("{} {release}: {why}", trial.package);
    let _ = fs::remove_dir_all(&download);
    fs::create_dir_all(download.join("src")).map_err(|error| failed(&error.to_string()))?;
    let is_fetched = match trial.registry {
        PackageRegistry::Cargo => {
            let manifest = format!(
                "[package]\nname = \"fetched\"\nversion = \"0.0.0\"\n[dependencies]\n{} = \"={release}\"\n[workspace]\n",
                trial.package
            );
            let written = fs::write(download.join("Cargo.toml"), manifest)
                .and_then(|()| fs::write(download.join("src/lib.rs"), ""));
            let mut command = cargo();
            command.args(["vendor", "--quiet", "--versioned-dirs"]).arg("packages").current_dir(&download);
            written.is_ok() && succeeds(command.stdout(std::process::Stdio::null()))
        }
        PackageRegistry::Python => {
            let mut command = Command::new("python3");
            command.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest"]);
            succeeds(command.arg(&download).arg(format!("{}=={release}", trial.package)))
        }
        PackageRegistry::Node => {
            let mut command = Command::new("npm");
            command.args(["pack", "--silent", "--pack-destination"]).arg(&download);
            succeeds(command.arg(format!("{}@{release}", trial.package)).stdout(std::process::Stdio::null()))
        }
    };
    if !is_fetched {
        return Err(failed("cannot be fetched; the first run needs a network"));
    }
    let unpacked = match trial.registry {
        PackageRegistry::Cargo => {
            let vendored = download.join(format!("packages/{}-{release}", trial.package));
            fs::remove_file(vendored.join(".cargo-checksum.json")).map_err(|error| failed(&error.to_string()))?;
            vendored
        }
        PackageRegistry::Python | PackageRegistry::Node => {
            let archives = fs::read_dir(&download).map_err(|error| failed(&error.to_string()))?;
            let mut archives = archives.flatten().map(|entry| entry.path());
            let archive = archives.find(|path| path.is_file()).ok_or_else(|| failed("there is no archive"))?;
            let unpacked = download.join("unpacked");
            fs::create_dir(&unpacked).map_err(|error| failed(&error.to_string()))?;
            let mut command = Command::new("tar");
            if !succeeds(command.arg("-xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(&unpacked)) {
                return Err(failed("the archive cannot be unpacked"));
            }
            unpacked
        }
    };
    fs::rename(unpacked, &files).map_err(|error| failed(&error.to_string()))?;
    let _ = fs::remove_dir_all(&download);
    Ok(files)
}

/// Installs what the tests need beside the files.
pub(super) fn install_needs(trial: &FixTrial, files: &Path) -> Result<(), String> {
    let failed = || format!("what the tests of {} need cannot be installed", trial.package);
    match trial.registry {
        // The cargo home is in the sandbox.
        PackageRegistry::Cargo => succeeds(cargo().arg("fetch").current_dir(files)).then_some(()).ok_or_else(failed),
        PackageRegistry::Node => fetch_node_packages(files, trial.needs).map(|_| ()).ok_or_else(failed),
        PackageRegistry::Python => {
            let environment = files.join(".venv");
            let is_made = succeeds(Command::new("python3").args(["-m", "venv"]).arg(&environment));
            let mut pip = Command::new(environment.join("bin/python"));
            pip.args(["-m", "pip", "install", "--quiet"]).args(trial.needs);
            if !is_made || !succeeds(&mut pip) {
                return Err(failed());
            }
            // Where the sandbox has the workspace.
            let libraries = fs::read_dir(environment.join("lib")).map_err(|_| failed())?;
            let packages =
                libraries.flatten().map(|entry| entry.path().join("site-packages")).find(|path| path.is_dir());
            fs::write(packages.ok_or_else(failed)?.join("workspace.pth"), "/workspace/src\n/workspace\n")
                .map_err(|_| failed())
        }
    }
}
