//! Wrapped runs over the API and on the page in a real browser: what a program draws is text, and a person acts on the run.
//!
//! Not here: attaching a terminal (`attached_run.rs`).

use ringfence_kernel::AuthScope;
use ringfence_testkit::patience::{wait_for, wait_until};
use serde_json::{Value, json};

use crate::api::token;
use crate::api_client::{ApiTestClient, TestApiServer};
use crate::attached_run::{detached, layer_state, records};
use crate::browser::TestBrowser;
use crate::page::{ASKED, TestPageServer, person};
use crate::site::TestSite;

/// A program that shows markup, changes files, reaches for a host on demand and echoes lines.
const PROGRAM: &str = "printf '<img src=x onerror=\"document.title=1\"><b>bold</b>\\r\\n\\033[31mred\\033[m\\r\\n'; \
    printf '<script>alert(1)</script>\\n' > made.html; echo changed > old.txt; \
    while read -r line; do echo \"<$line>\"; \
    [ \"$line\" = reach ] && curl -s -m 5 http://unknown.ringfence-test.org/; done";

fn started(site: &TestSite, options: &[&str]) -> String {
    site.write("old.txt", "before\n");
    detached(site, options, PROGRAM)
}

/// The screen of a run, when this is on it.
fn screen(client: &ApiTestClient<'_>, id: &str, text: &str) -> Value {
    wait_for(text, || {
        let run = client.get(&format!("/v1/wrapped-runs/{id}"));
        run["screen"].as_array().unwrap().iter().any(|line| line.as_str().unwrap().contains(text)).then_some(run)
    })
}

#[test]
fn a_run_is_viewed_typed_to_and_ended_by_scope() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let page = server.page();
    assert_eq!(page.get("/v1/wrapped-runs"), json!({"runs": []}));
    let id = started(&site, &[]);
    let listed = page.get("/v1/wrapped-runs");
    assert_eq!(listed["runs"][0]["layer"], id.as_str(), "{listed}");
    assert_eq!((&listed["runs"][0]["detached"], &listed["runs"][0]["program"]), (&json!(true), &json!("sh")));
    let shown = screen(&page, &id, "red");
    assert_eq!(shown["screen"][0], "<img src=x onerror=\"document.title=1\"><b>bold</b>");
    // An agent's token finds none of it, and one that only approves does not act.
    let agent = server.agent(&site, "robot");
    let viewer = token(&server, &site, "viewer", &[AuthScope::Approve]);
    let base = format!("/v1/wrapped-runs/{id}");
    for (method, path, body) in [
        ("GET", "/v1/wrapped-runs".to_owned(), None),
        ("GET", base.clone(), None),
        ("GET", format!("{base}/changes"), None),
        ("POST", format!("{base}/stop"), Some(json!({}))),
        ("POST", format!("{base}/checkpoint"), Some(json!({}))),
        ("POST", format!("{base}/input"), Some(json!({"text": "x\r"}))),
    ] {
        let got = agent.send(method, &path, body.as_ref());
        assert_eq!(got.status, 404, "{method} {path}");
        assert!(!String::from_utf8_lossy(&got.body).contains(&id), "{method} {path}");
        let expected = if method == "GET" { 200 } else { 403 };
        assert_eq!(viewer.send(method, &path, body.as_ref()).status, expected, "{method} {path}");
    }
    assert_eq!(page.post(&format!("{base}/input"), &json!({"text": "typed\r"})).status, 200);
    screen(&page, &id, "<typed>");
    let writers = records(&site, "terminal-writer");
    assert_eq!(writers.len(), 1, "{writers:?}");
    let refused = page.post(&format!("{base}/checkpoint"), &json!({}));
    assert_eq!(refused.status, 409, "{refused:?}");
    let changes = page.get(&format!("{base}/changes"));
    assert_eq!(changes["layer"]["state"], "running", "{changes}");
    assert!(changes.to_string().contains("made.html") && changes.to_string().contains("before"), "{changes}");
    assert_eq!(page.post(&format!("{base}/stop"), &json!({})).status, 200);
    wait_until("the end", || page.send("GET", &base, None).status == 404);
    wait_until("the end of the layer", || layer_state(&site, &id).as_deref() == Some("ended"));
}

#[test]
fn the_page_shows_a_run_as_text_and_acts_on_it() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = TestSite::new();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let id = started(&site, &["--live", "--checkpoint", "100000"]);
    browser.run("location.hash = '#/wrapped'");
    browser.until(&format!("document.querySelector('.rows a[href=\"#/wrapped/{id}\"]') !== null"));
    browser.run(&format!("location.hash = '#/wrapped/{id}'"));
    browser.until("document.querySelector('pre.code')?.innerText.includes('red')");
    // Markup is text: no element came of it, and nothing ran.
    assert!(browser.text("pre.code").contains("<b>bold</b>"), "{}", browser.text("pre.code"));
    assert_eq!(browser.run("return document.querySelectorAll('main img, main b, main script').length"), 0);
    assert_eq!(browser.run("return document.title.includes('Ringfence')"), true);
    // A line is typed, and the program waits for a host that is asked about.
    browser.run("document.querySelector('input[name=line]').focus()");
    browser.press(&format!("reach{}", crate::browser::ENTER));
    browser.until("document.querySelector('pre.code').innerText.includes('[y] yes')");
    click(&browser, "Answer…");
    browser.until(ASKED);
    browser.press("d");
    browser.until("document.activeElement.name === 'reason'");
    browser.press(crate::browser::ENTER);
    browser.until("document.querySelector('pre.code').innerText.includes('<reach>')");
    browser.until("document.querySelector('table.hosts')?.innerText.includes('unknown.ringfence-test.org')");
    // What it changed so far, by file.
    click(&browser, "Show changes");
    browser.until("[...document.querySelectorAll('details summary')].some(one => one.innerText.includes('old.txt'))");
    browser.run("document.querySelectorAll('details.card').forEach(one => (one.open = true))");
    browser.until("document.querySelector('.line.add .words') !== null");
    assert_eq!(browser.run("return document.querySelectorAll('main script').length"), 0);
    click(&browser, "Make a checkpoint");
    wait_until("the checkpoint", || site.workspace.join("made.html").exists());
    click(&browser, "Undo the last checkpoint…");
    browser.until("document.querySelector('dialog.small[open]') !== null");
    browser.run("[...document.querySelectorAll('dialog.small button')].find(one => one.innerText === 'Undo').click()");
    wait_until("the undo", || !site.workspace.join("made.html").exists());
    click(&browser, "End…");
    browser.until("document.querySelector('dialog.small[open]') !== null");
    browser.run("[...document.querySelectorAll('dialog.small button')].find(one => one.innerText === 'End').click()");
    browser.until("document.querySelector('.title .badge')?.innerText === 'ended'");
    wait_until("the end of the layer", || layer_state(&site, &id).as_deref() != Some("running"));
}

/// Clicks the button with this label.
fn click(browser: &TestBrowser, label: &str) {
    let find = format!("[...document.querySelectorAll('main button')].find(one => one.innerText === '{label}')");
    browser.until(&format!("{find} !== undefined"));
    browser.run(&format!("{find}.click()"));
}
