//! The search engine that the tests ask: Debian's package `searx`, where there is none yet and root can install it.

use std::path::Path;
use std::process::Command;

use crate::say;

/// Installs it, or says why the test will be skipped.
pub(crate) fn install() {
    if Path::new("/usr/share/doc/searx").exists() {
        return;
    }
    say("apt-get install searx");
    let installed = Command::new("apt-get")
        .args(["install", "--yes", "--no-install-recommends", "searx"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        say("no SearXNG could be installed (it takes root and Debian); its test will be skipped");
    }
}
