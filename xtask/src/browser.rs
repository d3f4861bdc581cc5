//! The browser that the tests of the page drive: installed where it can be, and asked for pictures.

use std::path::PathBuf;

use crate::external_tools::{has_program, install_debian_packages};
use crate::{print_status, root, run_cargo};

/// Installs Chromium where it is missing and this is root on a Debian. On other systems the tests report that they were
/// skipped.
pub(crate) fn install() {
    if has_program("chromedriver")
        && (has_program("chromium") || has_program("chromium-browser") || has_program("google-chrome"))
    {
        return;
    }
    if !install_debian_packages(&["chromium", "chromium-driver", "fonts-dejavu-core"]) {
        print_status("cannot install Chromium (requires root and Debian); the web UI tests will be skipped");
    }
}

/// Makes the screenshots of the README again.
pub(crate) fn screenshots() -> bool {
    install();
    let directory: PathBuf = root().join("docs/images");
    let Some(directory) = directory.to_str() else { return false };
    run_cargo(&["test", "-p", "ringfence", "--test", "it", "page_screenshots"], &[("RINGFENCE_PICTURES", directory)])
}
