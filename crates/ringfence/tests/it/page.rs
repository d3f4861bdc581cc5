//! The page in a real browser, before a real server: what a person sees is what is asked, and their answer is what happens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ringfence_kernel::sanitize_line;
use ringfence_testkit::mcp_client::StdioMcpClient;
use ringfence_testkit::patience::wait_for;
use serde_json::{Value, json};

use crate::agent::{call, scripted_agent, text};
use crate::api::scripted_model_config;
use crate::api_client::{ApiTestClient, TestApiServer};
use crate::browser::{BrowserWindow, DESKTOP, ENTER, ESCAPE, TestBrowser};
use crate::commands::process_named;
use crate::site::TestSite;

/// A server, and a token of an agent.
pub(crate) struct TestPageServer {
    server: Arc<TestApiServer>,
    token: String,
}

impl TestPageServer {
    pub(crate) fn start(site: &TestSite) -> Self {
        Self::start_with(site, &[])
    }

    pub(crate) fn start_with(site: &TestSite, arguments: &[&str]) -> Self {
        let server = TestApiServer::start(site, arguments);
        let token = server.agent(site, "robot").token;
        Self { server: Arc::new(server), token }
    }

    /// The link to the page, that lets in once.
    fn link(&self) -> String {
        format!("{}#login={}", self.page(), self.server.code)
    }

    fn page(&self) -> String {
        format!("http://{}/", self.server.address)
    }

    /// Kills the server as a power cut would, and starts another at the same address.
    fn restart(self, site: &TestSite, meanwhile: impl FnOnce()) -> Self {
        let Self { server, token } = self;
        let address = server.address.clone();
        // A server with no other owner is killed when it is dropped.
        drop(Arc::into_inner(server).unwrap());
        meanwhile();
        Self { server: Arc::new(TestApiServer::start_at(site, &address, &[])), token }
    }

    /// A session of the agent.
    pub(crate) fn session(&self, label: &str) -> String {
        let begun = self.ask("/v1/sessions", &json!({"label": label}));
        begun["id"].as_str().unwrap_or_else(|| panic!("no session: {begun}")).to_owned()
    }

    /// A call of the agent, which waits for an answer for `wait` seconds.
    pub(crate) fn call(&self, session: &str, tool: &str, arguments: &Value, wait: u64) -> Value {
        let call = json!({"name": tool, "arguments": arguments, "wait": wait});
        self.ask(&format!("/v1/sessions/{session}/calls"), &call)
    }

    /// A call that waits while the test goes on.
    pub(crate) fn call_in_background(&self, session: &str, tool: &str, arguments: Value) -> JoinHandle<Value> {
        let aside = Self { server: Arc::clone(&self.server), token: self.token.clone() };
        let (session, tool) = (session.to_owned(), tool.to_owned());
        thread::spawn(move || aside.call(&session, &tool, &arguments, 50))
    }

    fn ask(&self, path: &str, body: &Value) -> Value {
        ApiTestClient { server: &self.server, token: self.token.clone() }.send("POST", path, Some(body)).json()
    }
}

/// The reply of a call, as the model gets it.
fn reply(answer: &Value) -> Value {
    serde_json::from_str(answer["reply"].as_str().unwrap_or_else(|| panic!("no reply: {answer}"))).unwrap()
}

/// A site with the file that every test changes.
fn site() -> TestSite {
    let site = TestSite::new();
    site.write("notes.md", "milk\nbread\n");
    site
}

fn overwrite(content: &str) -> Value {
    json!({"path": "notes.md", "content": content})
}

/// A browser whose person is in.
pub(crate) fn person(browser: &TestBrowser, served: &TestPageServer) {
    browser.open(&served.link());
    browser.until("document.body.dataset.connection === 'open'");
}

/// The dialog is open, and its quiet time is over.
pub(crate) const ASKED: &str = "document.querySelector('dialog.approval[open].settled') !== null";
pub(crate) const NOT_ASKED: &str = "document.querySelector('dialog.approval') === null";

#[test]
fn an_overwrite_waits_with_its_diff_and_a_no_leaves_the_file_as_it_is() {
    let Some(browser) = TestBrowser::start() else { return };
    let (site, browser) = (site(), browser);
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("shopping");
    let call = served.call_in_background(&session, "write_file", overwrite("milk\nrye bread\n"));
    browser.until(ASKED);
    assert!(browser.text("dialog h2").contains("notes.md"), "{}", browser.text("dialog h2"));
    assert_eq!(browser.text("dialog .line.remove .words"), "-bread");
    assert_eq!(browser.text("dialog .line.add .words"), "+rye bread");
    assert!(browser.text("dialog .who").contains("robot"));
    assert!(browser.text("dialog .why").contains("preset ask"));
    // The no has the focus, the tab says that something waits, and nothing happened yet.
    assert_eq!(browser.run("return document.activeElement.innerText.split('\\n')[0].trim().split(' ')[0]"), "Deny");
    assert_eq!(browser.run("return document.title.startsWith('(1) ')"), true);
    assert_eq!(browser.run("return document.getElementById('favicon').href.startsWith('data:image/svg')"), true);
    assert_eq!(site.read("notes.md"), "milk\nbread\n");
    browser.press("d");
    browser.until("document.activeElement.name === 'reason'");
    browser.press(&format!("no rye{ENTER}"));
    let answer = call.join().unwrap();
    assert_eq!(answer["error"], "APPROVAL_DENIED", "{answer}");
    assert!(answer["reply"].as_str().unwrap().contains("no rye"), "{answer}");
    browser.until(NOT_ASKED);
    browser.until("!document.title.startsWith('(')");
    assert_eq!(site.read("notes.md"), "milk\nbread\n");
}

#[test]
fn a_yes_writes_the_file_and_an_undo_brings_the_old_one_back() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("shopping");
    let call = served.call_in_background(&session, "write_file", overwrite("oats\n"));
    browser.until(ASKED);
    browser.press("a");
    let answer = call.join().unwrap();
    assert_eq!(reply(&answer)["ok"], true, "{answer}");
    assert_eq!(site.read("notes.md"), "oats\n");

    // The card of the call says who approved it, and leads to its change.
    browser.run(&format!("location.hash = '#/sessions/{session}'"));
    browser.until_text(".call.done", "approved by");
    browser.click(".call.done a[href^='#/changes/']");
    browser.until_text(".diff .line.add", "+oats");
    browser.click_button("Undo");
    // First what it would do, with the no in focus; nothing is done by looking.
    browser.until_text("dialog.small .line.add", "+milk");
    assert_eq!(browser.run("return document.activeElement.innerText"), "Cancel");
    assert_eq!(site.read("notes.md"), "oats\n");
    browser.click("dialog.small button.primary");
    browser.until_text("#notices", "Undone");
    assert_eq!(site.read("notes.md"), "milk\nbread\n");
    browser.run("location.hash = '#/changes'");
    browser.click_button("Redo");
    browser.click("dialog.small button.primary");
    browser.until_text("#notices", "Redone");
    assert_eq!(site.read("notes.md"), "oats\n");
}

#[test]
fn edited_arguments_are_used_instead_of_those_that_came() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("shopping");
    let call = served.call_in_background(&session, "write_file", overwrite("gin\n"));
    browser.until(ASKED);
    browser.press("e");
    browser.write("dialog textarea[name=content]", "tea\n");
    // They are seen before they can be approved.
    assert_eq!(browser.run("return document.querySelector('dialog').innerText.includes('Approve with')"), false);
    browser.click_button("Preview");
    browser.until_text("dialog .previewed .line.add", "+tea");
    assert_eq!(site.read("notes.md"), "milk\nbread\n");
    browser.until(ASKED);
    browser.click_button("Approve with these arguments");
    let answer = call.join().unwrap();
    assert_eq!(reply(&answer)["ok"], true, "{answer}");
    assert_eq!(site.read("notes.md"), "tea\n");
}

#[test]
fn the_remembered_rule_is_the_one_shown_and_can_be_revoked() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("shopping");
    let call = served.call_in_background(&session, "write_file", overwrite("one\n"));
    browser.until(ASKED);
    browser.press("r");
    let rule = browser.text("dialog .rule pre");
    assert!(rule.contains("notes.md\"") && rule.contains("decision = \"allow\""), "{rule}");
    browser.until(ASKED);
    browser.press("a");
    assert_eq!(reply(&call.join().unwrap())["ok"], true);
    // The same call needs no approval again.
    let again = served.call(&session, "write_file", &overwrite("two\n"), 0);
    assert_eq!(reply(&again)["ok"], true, "{again}");
    assert_eq!(site.read("notes.md"), "two\n");
    browser.run("location.hash = '#/policy'");
    browser.until_text(".rows code", "notes.md");
    browser.click_button("Revoke");
    browser.click("dialog.small button.danger");
    browser.until_text(".empty", "No persistent grants");
    let asked = served.call(&session, "write_file", &overwrite("three\n"), 0);
    assert!(asked["suspended"].is_object(), "{asked}");
}

#[test]
fn two_browsers_answer_at_once_and_exactly_one_wins() {
    let Some(first) = TestBrowser::start() else { return };
    let Some(second) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&first, &served);
    // The second is the same person on another device: the token is all that they have.
    let token = first.run("return localStorage.getItem('ringfence.token')");
    second.open(&format!("{}page/logo.svg", served.page()));
    second.run(&format!("localStorage.setItem('ringfence.token', {token})"));
    second.open(&served.page());
    second.until("document.body.dataset.connection === 'open'");
    let session = served.session("shopping");
    let call = served.call_in_background(&session, "write_file", overwrite("tea\n"));
    first.until(ASKED);
    second.until(ASKED);
    second.press("d");
    second.until("document.activeElement.name === 'reason'");
    thread::scope(|scope| {
        scope.spawn(|| first.press("a"));
        scope.spawn(|| second.press(ENTER));
    });
    let answer = call.join().unwrap();
    let outcome = "(document.querySelector('#notices')?.innerText ?? '').match(/Approved|Denied/)?.[0] \
                   ?? (document.querySelector('dialog.approval .problem')?.innerText ?? '').match(/answered/)?.[0]";
    let outcomes = [first.until(outcome), second.until(outcome)];
    match answer["error"].as_str() {
        None => {
            assert_eq!((outcomes, site.read("notes.md").as_str()), ([json!("Approved"), json!("answered")], "tea\n"))
        }
        Some(kind) => {
            assert_eq!((kind, outcomes), ("APPROVAL_DENIED", [json!("answered"), json!("Denied")]));
            assert_eq!(site.read("notes.md"), "milk\nbread\n");
        }
    }
}

#[test]
fn a_request_is_still_there_after_the_server_died_and_the_page_catches_up() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("shopping");
    let put_off = served.call(&session, "write_file", &overwrite("tea\n"), 0);
    assert!(put_off["suspended"].is_object(), "{put_off}");
    browser.until(ASKED);
    // A deferred call is not shown as refused.
    browser.run(&format!("location.hash = '#/sessions/{session}'"));
    browser.until_text(".call.waiting", "waiting for approval");
    let served = served.restart(&site, || {
        browser.until("document.querySelector('#connection .banner')?.innerText.includes('Connection lost')");
    });
    browser.until("document.body.dataset.connection === 'open'");
    assert_eq!(browser.run("return document.querySelector('#connection').innerText"), "");
    browser.until(ASKED);
    browser.until_text("dialog .why", "when the agent calls again");
    browser.press("a");
    browser.until_text("#notices", "Approved; runs when the agent calls again");
    assert_eq!(site.read("notes.md"), "milk\nbread\n");
    let back = json!({
        "token": put_off["suspended"]["token"], "id": put_off["callId"],
        "name": "write_file", "arguments": overwrite("tea\n"),
    });
    let done = served.ask(&format!("/v1/sessions/{session}/calls/resume"), &back);
    assert_eq!(reply(&done)["ok"], true, "{done}");
    assert_eq!(site.read("notes.md"), "tea\n");
    // What happens from now on is heard again.
    browser.run(&format!("location.hash = '#/sessions/{session}'"));
    browser.until_text(".call.done", "write_file");
    served.call(&session, "read_file", &json!({"path": "notes.md"}), 0);
    browser.until_text(".call.done", "read_file");
}

#[test]
fn an_automatic_call_is_not_shown_as_waiting() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    site.write("other.md", "old\n");
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("shopping");
    served.call(&session, "write_file", &overwrite("tea\n"), 0);
    browser.until(ASKED);
    browser.press(ESCAPE);
    browser.until(NOT_ASKED);
    browser.run(&format!("location.hash = '#/sessions/{session}'"));
    browser.until_text(".call.waiting", "waiting for approval");
    let second = served.call(&session, "write_file", &json!({"path": "other.md", "content": "new\n"}), 0);
    assert_eq!(second["error"], "APPROVAL_PENDING", "{second}");
    for _ in 0..2 {
        browser.until_text(".call.postponed", "not asked");
        assert_eq!(browser.run("return document.querySelectorAll('.call.waiting').length"), 1);
        assert!(browser.text(".call.waiting").contains("Review"));
        // The view from events is the same as from the records.
        browser.run("location.reload()");
        browser.until("document.body.dataset.connection === 'open'");
    }
}

#[test]
fn a_job_that_ends_by_itself_is_shown_as_ended() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("server");
    let name = format!("page-job-of-{}", site.workspace.to_str().unwrap().replace('/', "-"));
    served.call(&session, "run_code", &json!({"code": format!("exec -a {name} sleep 1000"), "background": true}), 0);
    browser.run(&format!("location.hash = '#/sessions/{session}'"));
    browser.until_text(".jobs", "running");
    // The list of sessions has the jobs of all of them.
    browser.run("location.hash = '#/sessions'");
    browser.until_text(".jobs", "running");
    follow_link(&browser, ".jobs a");
    browser.until_text("main h1", "server");
    browser.until_text(".jobs", "running");
    let process = wait_for("the job", || process_named(&name));
    let killed = std::process::Command::new("kill").args(["-9", &process.to_string()]).status().unwrap();
    assert!(killed.success());
    browser.until_text(".jobs", "exit 137");
}

#[test]
fn contents_of_secrets_are_shown_after_a_click() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    site.write(".env", "KEY=topsecret\n");
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let seen = "return document.body.innerText.includes('topsecret')";
    browser.run("location.hash = '#/files/text/.env'");
    browser.until_text(".empty", "may contain secrets");
    assert_eq!(browser.run(seen), false);
    browser.click_button("Show");
    browser.until_text(".file-text", "KEY=topsecret");
    // A file without any is shown at once.
    browser.run("location.hash = '#/files/text/notes.md'");
    browser.until_text(".file-text", "bread");
}

#[test]
fn keys_of_the_first_moment_and_escape_approve_nothing() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    // Keys that are on their way while the dialog opens, and go on: the page presses them itself, to be early enough.
    browser.run(
        "window.pressed = 0;
         new MutationObserver(() => {
             const dialog = document.querySelector('dialog.approval[open]');
             if (!dialog || window.pressed > 0) return;
             for (const key of ['a', 'Enter', 'a', ' ']) {
                 dialog.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
                 window.pressed++;
             }
             dialog.querySelector('.primary')?.click();
         }).observe(document.body, { childList: true });",
    );
    let session = served.session("shopping");
    served.call(&session, "write_file", &overwrite("tea\n"), 0);
    browser.until("window.pressed === 4");
    browser.until(ASKED);
    browser.press(ESCAPE);
    browser.until(NOT_ASKED);
    assert_eq!(site.read("notes.md"), "milk\nbread\n");
    // It still waits, and is found again.
    assert_eq!(browser.run("return document.title.startsWith('(1) ')"), true);
    browser.click_button("Review");
    browser.until(ASKED);
    // Escape goes back from a reason, keeps the dialog, and the second one leaves; neither is an answer.
    browser.press("d");
    browser.until("document.activeElement.name === 'reason'");
    browser.press(&format!("a{ESCAPE}"));
    browser.until(ASKED);
    browser.press(ESCAPE);
    browser.until(NOT_ASKED);
    let waiting = site.run(&["approvals", "list"]).out;
    assert!(waiting.contains("notes.md"), "{waiting}");
}

#[test]
fn text_of_models_and_files_is_shown_and_never_obeyed() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let evil = "<img src=x onerror=\"window.caught=1\"><script>window.caught=1</script>\u{202e}txt.exe \
                javascript:alert(1) https://evil.example/a?b=c \u{200b}";
    site.write("evil.txt", format!("{evil}\n"));
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session(evil);
    served.call(&session, "read_file", &json!({"path": "evil.txt"}), 0);
    served.call(&session, "write_file", &json!({"path": "notes.md", "content": evil}), 0);
    browser.until(ASKED);
    let shown = browser.text("dialog .line.add .words");
    assert!(
        shown.contains("<img src=x") && shown.contains("\\u{202e}txt.exe") && shown.contains("\\u{200b}"),
        "{shown}"
    );
    let ligatures = "getComputedStyle(document.querySelector('dialog .line.add .words')).fontVariantLigatures";
    assert_eq!(browser.run(&format!("return {ligatures}")), "none");
    browser.press(ESCAPE);
    browser.until(NOT_ASKED);
    for view in ["sessions", &format!("sessions/{session}"), "files/text/evil.txt", "audit", "waiting"] {
        browser.run(&format!("location.hash = '#/{view}'"));
        browser.until("document.querySelector('main h1') !== null && !document.querySelector('main').innerText.includes('Loading')");
    }
    browser.run(&format!("location.hash = '#/sessions/{session}'"));
    browser.until("document.querySelector('.call.done details')");
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })");
    browser.until_text(".call.done", "https://evil.example/a?b=c");
    // An address is a text with a button; there is no link that leads out, no image, no script.
    let leads_out =
        "[...document.querySelectorAll('a')].filter(one => !one.getAttribute('href').startsWith('#')).length";
    let foreign = "document.querySelectorAll('main img, main script, main iframe, dialog img').length";
    let raw = "/[\\u202a-\\u202e\\u2066-\\u2069\\u200b]/.test(document.body.textContent)";
    assert_eq!(
        browser.run(&format!("return [{leads_out}, {foreign}, {raw}, window.caught ?? null]")),
        json!([0, 0, false, null])
    );
    browser.click_button("open");
    browser.until_text("dialog.small", "evil.example");
    browser.press(ESCAPE);
    browser.until("document.querySelector('dialog.small') === null");
}

#[test]
fn a_link_lets_in_once_and_leaves_nothing_in_the_address() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let address = browser.run("return location.href");
    assert!(!address.as_str().unwrap().contains("login"), "{address}");
    assert_eq!(browser.run("return document.cookie"), "");
    browser.run("localStorage.clear()");
    browser.open("about:blank");
    browser.open(&served.link());
    browser.until_text("main", "already used");
    // An unknown token is refused too.
    browser.write("input[name=secret]", "rf-nonsense");
    browser.press(ENTER);
    browser.until_text("main .problem", "unknown token");
    assert_eq!(browser.run("return localStorage.getItem('ringfence.token')"), Value::Null);
}

#[test]
fn a_tool_is_called_by_hand_with_a_form_of_its_schema() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    browser.run("location.hash = '#/call/write_file'");
    browser.write("textarea[name=path]", "notes.md");
    browser.write("textarea[name=content]", "by hand\n");
    browser.click_button("Run");
    browser.until(ASKED);
    browser.press("a");
    browser.until_text(".result", "done");
    assert_eq!(site.read("notes.md"), "by hand\n");
    browser.run("location.hash = '#/call/read_file'");
    browser.write("textarea[name=path]", "../secret");
    browser.click_button("Run");
    browser.until_text(".result", "leads outside the workspace");
}

#[test]
fn every_view_is_there_and_fits_a_phone() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    site.write("src/deep/a_name_that_is_rather_long_and_has_no_place_to_break_at.rs", "x".repeat(300));
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    let session = served.session("A label that is long enough to need more than one line on a phone");
    served.call(&session, "write_file", &json!({"path": "new.md", "content": "x"}), 0);
    served.call(&session, "read_file", &json!({"path": "../out"}), 0);
    let session = format!("sessions/{session}");
    let views = [
        ("waiting", "No pending requests"),
        ("sessions", "A label"),
        (session.as_str(), "INVALID_PATH"),
        ("changes", "new.md"),
        ("files", "notes.md"),
        ("files/at/src/deep", "a_name"),
        ("files/text/notes.md", "bread"),
        ("call", "Run"),
        ("policy", "preset ask"),
        ("audit", "The hash chain is intact"),
        ("sandbox", "isolation mechanisms available"),
    ];
    for look in [BrowserWindow { width: 360, height: 740, dark: true }, DESKTOP] {
        browser.set_window(look);
        for (view, says) in views {
            browser.run(&format!("location.hash = '#/{view}'"));
            browser.until_text("main", says);
            let wide = browser.run("return document.documentElement.scrollWidth - window.innerWidth");
            assert_eq!(wide, 0, "{view} is wider than {}", look.width);
            let nameless = browser.run(
                "return [...document.querySelectorAll('main button, main input, main select, main textarea')]
                     .filter(one => !(one.innerText || one.labels?.length || one.ariaLabel)).length",
            );
            assert_eq!(nameless, 0, "{view} has something without a name");
        }
    }
}

#[test]
fn the_former_address_of_a_view_leads_to_the_view() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    browser.run("location.hash = '#/walls'");
    browser.until_text("main", "isolation mechanisms available");
    assert_eq!(browser.run("return location.hash"), "#/sandbox");
}

#[test]
fn the_page_and_the_kernel_agree_on_what_misleads() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    browser.open(&served.page());
    let found = browser.until(
        "window.found ?? (import('/page/visible.js').then(({ visibleLine }) => {
             const all = [];
             for (let point = 0; point <= 0x10ffff; point++) {
                 if (point >= 0xd800 && point <= 0xdfff) continue;
                 const one = String.fromCodePoint(point);
                 if (visibleLine(one) !== one) all.push(`${point} ${visibleLine(one)}`);
             }
             window.found = all;
         }), null)",
    );
    let page: BTreeSet<&str> = found.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let kernel: Vec<String> = ('\0'..=char::MAX)
        .filter_map(|one| {
            let text = sanitize_line(&one.to_string());
            (text != one.to_string()).then(|| format!("{} {text}", u32::from(one)))
        })
        .collect();
    assert!(kernel.len() > 4000, "{}", kernel.len());
    assert_eq!(page, kernel.iter().map(String::as_str).collect());
}

#[test]
fn a_diff_is_read_by_what_its_hunks_say() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    browser.open(&served.page());
    // A removed line `-- a` and an added `++ b` look like the names of files.
    let diff =
        "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a\n+++ b\n same\n\\ No newline at end of file\n@@ -9 +9 @@\n-c\n+d\n";
    let kinds = browser.until(&format!(
        "window.kinds ?? (import('/page/diff.js').then(({{ parse }}) => {{
             window.kinds = parse({}).map(line => `${{line.kind}} ${{line.old ?? '-'}} ${{line.new ?? '-'}}`);
         }}), null)",
        json!(diff)
    ));
    let expected = [
        "file - -",
        "file - -",
        "hunk - -",
        "remove 1 -",
        "add - 1",
        "same 2 2",
        "note - -",
        "hunk - -",
        "remove 9 -",
        "add - 9",
    ];
    assert_eq!(kinds, json!(expected));
}

#[test]
fn a_stream_that_broke_goes_on_behind_the_last_whole_event() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let served = TestPageServer::start(&site);
    browser.open(&served.page());
    browser.until_text("main", "not signed in");
    // The first connection ends within an event, the second fails, the third goes on.
    browser.run(
        r#"window.asked = [];
        window.heard = [];
        const first = 'id: 7\nevent: a\ndata: {"n":1}\n\n: ping\n\nid: 8\r\nevent: b\r\ndata: {"n":2}\r\n\r\nid: 9\nevent: c\nda';
        const rest = 'id: 9\nevent: c\ndata: {"n":3}\n\n';
        const open = new ReadableStream({ start: stream => stream.enqueue(new TextEncoder().encode(rest)) });
        window.fetch = async (address, { headers }) => {
            window.asked.push(headers['Last-Event-ID'] ?? null);
            if (window.asked.length === 2) throw new TypeError('nobody is there');
            return new Response(window.asked.length === 1 ? first : open);
        };
        import('/page/events.js').then(({ follow }) =>
            follow('/v1/events', { heard: (kind, { n }) => window.heard.push(`${kind}${n}`) }));"#,
    );
    browser.until("window.heard.length === 3");
    assert_eq!(browser.run("return [window.asked, window.heard]"), json!([[null, "8", "8"], ["a1", "b2", "c3"]]));
}

#[test]
fn a_run_is_started_followed_and_gone_on_with() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    site.write("a.txt", "old\n");
    let config = scripted_model_config(&site);
    let served = TestPageServer::start_with(&site, &["--config", &config]);
    person(&browser, &served);
    browser.click(".nav-runs");
    browser.write("textarea[name=prompt]", "write it");
    browser.click_button("Start");
    browser.until(ASKED);
    browser.press("a");
    browser.until_text(".outcome", "answered");
    assert_eq!(site.read("a.txt"), "new\n");
    let log = browser.text(".run-log");
    let order = ["I write it.", "write_file", "It is written."].map(|said| log.find(said));
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{log}");
    assert!(browser.text(".outcome").contains("a.txt"));
    // A second prompt in the same session is followed from its start.
    browser.click(".go-on:not([open]) summary");
    browser.write("textarea[name=more]", "once more");
    browser.click_button("Continue");
    browser.until_text(".prompt", "once more");
    browser.until(
        "document.querySelector('main .title .badge')?.innerText === 'running' \
                   || document.querySelector('.outcome') !== null",
    );
}

/// Follows a link as soon as it is drawn. It is found and clicked in one step, so that no redraw comes between.
fn follow_link(browser: &TestBrowser, selector: &str) {
    let find = format!("document.querySelector({})", json!(selector));
    browser.until(&format!("(() => {{ const link = {find}; link?.click(); return link !== null; }})()"));
}

#[test]
fn sessions_of_other_fronts_are_there_to_be_looked_at() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = site();
    let answers = [
        json!({"text": "I look.", "calls": [{"name": "read_file", "arguments": {"path": "notes.md"}}]}),
        text("There is <b>milk</b>."),
        call("read_file", json!({"path": "missing.md"})),
        text("It is not there."),
    ];
    for prompt in [&["what is there?"] as &[_], &["--resume", "-p", "and elsewhere?"]] {
        let answers = if prompt.len() == 1 { &answers[..2] } else { &answers[2..] };
        assert!(scripted_agent(&site, answers, prompt).output().unwrap().status.success());
    }
    let mut client = StdioMcpClient::with_handshake(&site, &[], json!({}));
    client.call("read_file", json!({"path": "notes.md"}));
    client.close();
    let served = TestPageServer::start(&site);
    person(&browser, &served);
    browser.click(".nav-sessions");
    browser.until_text("section[aria-label=\"Sessions of other clients\"]", "what is there?");
    browser.until_text("section[aria-label=\"Sessions of other clients\"]", "MCP client");
    follow_link(&browser, "a[href*=\"history/agent-\"]");
    browser.until_text("main", "It is not there.");
    let log = browser.text("main");
    let order = ["what is there?", "I look.", "read_file", "There is <b>milk</b>.", "and elsewhere?", "read_file"];
    let mut rest = log.as_str();
    for said in order {
        rest = rest.split_once(said).unwrap_or_else(|| panic!("no {said} in its place: {log}")).1;
    }
    browser.until_text(".call.failed", "read_file");
    // Nothing can be done to it here but to look again.
    let buttons = browser.run("return [...document.querySelectorAll('main .actions button')].map(b => b.innerText)");
    assert_eq!(buttons, json!(["Refresh"]));
    browser.click(".nav-sessions");
    follow_link(&browser, "a[href*=\"history/mcp-\"]");
    browser.until_text(".call.done", "notes.md");
}
