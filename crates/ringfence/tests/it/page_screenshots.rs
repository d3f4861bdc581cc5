//! Pictures of the page for the README: real views before a real server, in the state that a short story leaves them in.
//!
//! `cargo xtask screenshots` asks for them with `RINGFENCE_PICTURES`; without, nothing is made.

use std::path::PathBuf;

use serde_json::json;

use crate::browser::{BrowserWindow, DESKTOP, ESCAPE, TestBrowser};
use crate::page::{ASKED, NOT_ASKED, TestPageServer, person};
use crate::site::TestSite;

const DARK: BrowserWindow = BrowserWindow { dark: true, ..DESKTOP };
const PHONE: BrowserWindow = BrowserWindow { width: 360, height: 740, dark: false };

/// A picture in the README stays below this.
const LARGEST: usize = 200 << 10;

const CONFIG: &str = "\
//! Settings of a request.

use std::time::Duration;

pub struct Config {
    /// Time limit of a request.
    pub timeout: Duration,
    /// Attempts after the first one.
    pub retries: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), retries: 3 }
    }
}
";

#[test]
fn pictures_of_the_main_views_are_made_where_they_are_wanted() {
    let Some(directory) = std::env::var_os("RINGFENCE_PICTURES").map(PathBuf::from) else { return };
    let Some(browser) = TestBrowser::start() else { return };
    let site = TestSite::new();
    site.write("src/config.rs", CONFIG);
    site.write("src/main.rs", "mod config;\n\nfn main() {}\n");
    site.write("README.md", "# Courier\n\nFetches files, with retries.\n");
    let served = TestPageServer::start(&site);
    let keep = |name: &str| {
        let picture = browser.screenshot();
        assert!(picture.len() < LARGEST, "{name} has {} bytes", picture.len());
        std::fs::write(directory.join(format!("{name}.png")), picture).unwrap();
    };
    person(&browser, &served);

    let session = served.session("Make the timeout optional");
    served.call(&session, "search_files", &json!({"path": ".", "pattern": "timeout"}), 0);
    served.call(&session, "read_file", &json!({"path": "src/config.rs"}), 0);
    served.call(&session, "read_file", &json!({"path": "../../.ssh/id_ed25519"}), 0);
    served.call(&session, "write_file", &json!({"path": "CHANGES.md", "content": "- The timeout is optional.\n"}), 0);
    let edits = json!({"path": "src/config.rs", "edits": [
        {"oldText": "use std::time::Duration;", "newText": "use std::num::NonZeroU32;\nuse std::time::Duration;"},
        {"oldText": "    /// Time limit of a request.\n    pub timeout: Duration,",
         "newText": "    /// Time limit of a request; unlimited if absent.\n    pub timeout: Option<Duration>,"},
        {"oldText": "pub retries: u32", "newText": "pub retries: NonZeroU32"},
        {"oldText": "Duration::from_secs(30), retries: 3", "newText": "None, retries: NonZeroU32::MIN"},
    ]});
    let call = served.call_in_background(&session, "edit_file", edits);
    browser.until(ASKED);
    keep("approval");
    browser.set_window(PHONE);
    browser.until(ASKED);
    keep("approval-phone");
    browser.set_window(DESKTOP);
    browser.press(ESCAPE);
    browser.until(NOT_ASKED);

    browser.set_window(DARK);
    browser.run(&format!("location.hash = '#/sessions/{session}'"));
    browser.until_text(".call.waiting", "Review");
    browser.run("scrollTo(0, 0)");
    keep("session");
    browser.set_window(DESKTOP);
    browser.run("location.hash = '#/audit'");
    browser.until_text("main", "The hash chain is intact");
    keep("audit");

    // The answer, and the change that it makes.
    browser.click_button("1 pending");
    browser.until(ASKED);
    browser.press("a");
    browser.until(NOT_ASKED);
    call.join().unwrap();
    browser.run("document.getElementById('notices').replaceChildren()");
    browser.run("location.hash = '#/changes'");
    browser.until_text("main", "src/config.rs");
    browser.click_button("Undo");
    browser.until_text("dialog.small .line.remove", "-use std::num::NonZeroU32;");
    keep("undo");
}
