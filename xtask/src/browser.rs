//! The browser that the tests of the page drive: installed where it can be, and asked for pictures.

use std::path::PathBuf;

use crate::fetched::{debian, has};
use crate::{root, run, say};

/// Installs Chromium where it is missing and this is root on a Debian. Elsewhere the tests say that they were skipped.
pub(crate) fn install() {
    if has("chromedriver") && (has("chromium") || has("chromium-browser") || has("google-chrome")) {
        return;
    }
    if !debian(&["chromium", "chromium-driver", "fonts-dejavu-core"]) {
        say("no Chromium could be installed (it takes root and Debian); the tests of the page will be skipped");
    }
}

/// Makes the pictures of the README anew.
pub(crate) fn screenshots() -> bool {
    install();
    let directory: PathBuf = root().join("docs/images");
    let Some(directory) = directory.to_str() else { return false };
    run(&["test", "-p", "ringfence", "--test", "it", "page_pictures"], &[("RINGFENCE_PICTURES", directory)])
}
