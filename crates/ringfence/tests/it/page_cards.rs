//! Results as cards on the page: what programs and repositories say is shown, and never obeyed.

use serde_json::{Value, json};

use crate::browser::{BrowserWindow, DESKTOP, TestBrowser};
use crate::page::{TestPageServer, person};
use crate::project_tools::rust_toolchain;
use crate::run_code_git::{git, repository};
use crate::site::TestSite;

const MARKUP: &str = "<img src=x onerror=document.title='owned'>";

/// Markup, what a terminal or a browser would obey, and more than fits.
fn hostile() -> String {
    format!("{MARKUP}\u{1b}[2J\u{202e}{}", "w".repeat(6000))
}

/// A session of an agent on the page.
struct CardPage {
    browser: TestBrowser,
    served: TestPageServer,
    session: String,
}

impl CardPage {
    /// `None` without a browser.
    fn open(site: &TestSite) -> Option<Self> {
        let browser = TestBrowser::start()?;
        std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
        let config = format!("toolsets = [\"git\", \"project\"]\n{}", rust_toolchain());
        std::fs::write(site.config.join("ringfence/config.toml"), config).unwrap();
        let served = TestPageServer::start_with(site, &["--preset", "edits"]);
        person(&browser, &served);
        let session = served.session("cards");
        browser.run(&format!("location.hash = '#/sessions/{session}'"));
        browser.until_text("main h1", "cards");
        Some(Self { browser, served, session })
    }

    /// Calls a tool, and looks at the card of its result: it says this, on a phone too, and nothing in it is markup.
    #[track_caller]
    fn check(&self, tool: &str, arguments: &Value, kind: &str, expected: &[&str]) {
        let answer = self.served.call(&self.session, tool, arguments, 0);
        assert_eq!(answer["error"], Value::Null, "{answer}");
        assert_eq!(answer["card"]["kind"], kind, "{answer}");
        assert!(answer["card"].to_string().len() < 200_000, "{tool}: {}", answer["card"].to_string().len());
        for window in [DESKTOP, BrowserWindow { width: 360, height: 740, dark: false }] {
            self.browser.set_window(window);
            let card = format!("main .transcript > li:last-child .reply-{kind}");
            for text in expected {
                self.browser.until_text(&card, text);
            }
            let wide = self.browser.run("return document.documentElement.scrollWidth - window.innerWidth");
            assert_eq!(wide, 0, "the card of {tool} is wider than {}", window.width);
        }
        self.browser.set_window(DESKTOP);
        let obeyed = "return [document.querySelectorAll('main img').length, document.title.includes('owned')]";
        assert_eq!(self.browser.run(obeyed), json!([0, false]), "{tool}");
    }
}

#[test]
fn commits_and_diffs_are_drawn_from_their_values() {
    let site = repository();
    site.write("README.md", format!("one\n{}\nthree\n", hostile()));
    let Some(page) = CardPage::open(&site) else { return };
    page.check("git_diff", &json!({}), "diff", &["+1 −1", MARKUP, "\\u{1b}[2J\\u{202e}w"]);
    assert_eq!(page.browser.text("main .transcript > li:last-child .reply-diff .line.remove .words"), "-two");

    let message = format!("{}\n\n{MARKUP}", hostile());
    page.check("git_commit", &json!({"message": message, "paths": ["README.md"]}), "commits", &[MARKUP, "\\u{1b}[2J"]);
    let id = git(&site, &["rev-parse", "--short", "HEAD"]);
    page.check("git_log", &json!({"limit": 2}), "commits", &[id.trim(), MARKUP, "\\u{202e}w", "first", "A Person"]);
    page.check("git_log", &json!({"limit": 1, "patch": true}), "commits", &[MARKUP, "Changes"]);
    page.browser.click("main .transcript > li:last-child .reply-commits summary");
    page.browser.until_text("main .transcript > li:last-child .reply-commits .line.remove", "-two");
    // The commit is a change, whose diff is read on demand.
    page.browser.run("document.querySelector('main .transcript > li:nth-child(2) .reply-card button').click()");
    page.browser.until_text("main .transcript > li:nth-child(2) .reply-card", "+1");
}

#[test]
fn test_runs_and_formatted_files_are_drawn_from_their_values() {
    let site = TestSite::new();
    site.write("Cargo.toml", "[package]\nname = \"basket\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
    site.write("Cargo.lock", "version = 4\n\n[[package]]\nname = \"basket\"\nversion = \"0.1.0\"\n");
    let test = format!("#[test]\nfn hostile() {{\n    panic!(\"{{}}\", {:?});\n}}\n", hostile());
    site.write("src/lib.rs", format!("#[test]\nfn fine() {{}}\n\n{test}"));
    site.write(&format!("src/{}.rs", MARKUP.replace('\'', "`")), "fn  unformatted( ) {}\n");
    let Some(page) = CardPage::open(&site) else { return };
    page.check(
        "run_tests",
        &json!({}),
        "tests",
        &["1 failed, 1 passed", "src/lib.rs:6", "hostile", MARKUP, "\\u{202e}w"],
    );
    let path = format!("src/{}.rs", MARKUP.replace('\'', "`"));
    page.check(
        "format_code",
        &json!({"paths": [path], "check": true}),
        "formatted",
        &["1 of 1 file not formatted", &path],
    );
    page.check("format_code", &json!({"paths": [path]}), "formatted", &["formatted 1 of 1 file", &path]);
    page.browser.click("main .transcript > li:last-child .reply-formatted button");
    page.browser.until_text("main .transcript > li:last-child .reply-formatted .line.add", "+fn unformatted() {}");
    page.check("format_code", &json!({"paths": [path]}), "formatted", &["1 file already formatted"]);
}
