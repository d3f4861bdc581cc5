//! The search engine that the tests ask: Debian's package `searx`, where there is none yet and root can install it.

use std::path::Path;

use crate::external_tools::install_debian_packages;
use crate::print_status;

/// Installs it, or says why the test will be skipped.
pub(crate) fn install() {
    if Path::new("/usr/share/doc/searx").exists() {
        return;
    }
    if !install_debian_packages(&["searx"]) {
        print_status("cannot install SearXNG (requires root and Debian); its test will be skipped");
    }
}
