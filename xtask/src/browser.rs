//! The browser that the tests of the page drive: installed where it can be, and asked for pictures.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{root, run, say};

/// Installs Chromium where it is missing and this is root on a Debian. Elsewhere the tests say that they were skipped.
pub(crate) fn install() {
    if has("chromedriver") && (has("chromium") || has("chromium-browser") || has("google-chrome")) {
        return;
    }
    if !is_root() || !has("apt-get") {
        return say("there is no Chromium with its chromedriver, and it can only be installed as root with apt-get");
    }
    say("apt-get install chromium chromium-driver");
    let packages = ["install", "-y", "--no-install-recommends", "chromium", "chromium-driver", "fonts-dejavu-core"];
    // Lists that are old, or that are not there yet, are no reason to fail before the packages are.
    let _ = apt(&["update"]);
    if !apt(&packages) {
        say("it could not be installed; the tests of the page will be skipped");
    }
}

fn apt(arguments: &[&str]) -> bool {
    let status = Command::new("apt-get").args(arguments).stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Makes the pictures of the README anew.
pub(crate) fn screenshots() -> bool {
    install();
    let directory: PathBuf = root().join("docs/images");
    let Some(directory) = directory.to_str() else { return false };
    run(&["test", "-p", "ringfence", "--test", "it", "page_pictures"], &[("RINGFENCE_PICTURES", directory)])
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn is_root() -> bool {
    let said = Command::new("id").arg("-u").output();
    said.is_ok_and(|said| said.stdout.trim_ascii() == b"0")
}
