//! The search engine that the tests ask: Debian's package `searx`, where there is none yet and root can install it.

use std::path::Path;

use crate::fetched::debian;
use crate::say;

/// Installs it, or says why the test will be skipped.
pub(crate) fn install() {
    if Path::new("/usr/share/doc/searx").exists() {
        return;
    }
    if !debian(&["searx"]) {
        say("no SearXNG could be installed (it takes root and Debian); its test will be skipped");
    }
}
