//! A real browser for tests: Chromium without a window, driven through chromedriver by the few commands of the WebDriver
//! protocol that they need.
//!
//! Nothing here sleeps. What a test waits for, the page itself looks for, until it is there or the time is over.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::{Value, json};

/// For keys other than letters.
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";

/// The time that a page has to become what a test waits for. Two cores may have to do everything at once.
const PAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// The name by which the protocol hands elements over.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Size of the window, and its user's colour scheme.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BrowserWindow {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) dark: bool,
}

pub(crate) const DESKTOP: BrowserWindow = BrowserWindow { width: 1280, height: 820, dark: false };

/// A browser with a profile of its own.
#[derive(Debug)]
pub(crate) struct TestBrowser {
    driver: Child,
    port: u16,
    session: String,
}

impl TestBrowser {
    /// A browser, or nothing where this machine has none; then the test says so and is skipped.
    pub(crate) fn start() -> Option<Self> {
        let chromium = ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(in_path);
        let (Some(chromium), Some(driver)) = (chromium, in_path("chromedriver")) else {
            skip_without(
                Requirement::Browser,
                "there is no Chromium with its chromedriver; `cargo xtask test --full` as root installs them on Debian",
            );
            return None;
        };
        Some(Self::with(&chromium, &driver))
    }

    fn with(chromium: &Path, driver: &Path) -> Self {
        let mut driver =
            Command::new(driver).arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let said = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = said.filter_map(|line| line.split("successfully on port ").nth(1).map(str::to_owned)).next();
        let port = port.unwrap().trim_end_matches('.').parse().unwrap();
        let mut browser = Self { driver, port, session: String::new() };
        let options = json!({
            "binary": chromium,
            // As root, and in many containers, Chromium has no sandbox of its own.
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                "--no-first-run", "--disable-background-networking", "--disable-component-update"],
        });
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options,
            "timeouts": {"script": PAGE_TIMEOUT.as_millis()},
        }}});
        browser.session = browser.send("POST", "/session", &wanted)["sessionId"].as_str().unwrap().to_owned();
        browser.set_window(DESKTOP);
        browser
    }

    pub(crate) fn set_window(&self, look: BrowserWindow) {
        let BrowserWindow { width, height, dark } = look;
        let scheme = if dark { "dark" } else { "light" };
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}),
        );
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        );
    }

    pub(crate) fn open(&self, address: &str) {
        self.command("POST", "/url", &json!({"url": address}));
    }

    /// The result of a piece of JavaScript.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression holds, and says what it is then.
    #[track_caller]
    pub(crate) fn until(&self, expression: &str) -> Value {
        let script = format!(
            "const done = arguments[0];
             const look = () => {{
                 let found = null;
                 try {{ found = ({expression}); }} catch {{ found = null; }}
                 if (found) done(found); else setTimeout(look, 15);
             }};
             look();"
        );
        let answer = self.raw("POST", "/execute/async", &json!({"script": script, "args": []}));
        let value = answer.get("value").cloned().unwrap_or_default();
        if let Some(error) = value.get("error").filter(|_| value.get("stacktrace").is_some()) {
            let page = self.run("return document.body.innerText");
            panic!("never so: {expression} ({error}); the page says: {}", page.as_str().unwrap_or_default());
        }
        value
    }

    /// Waits until the page, or an element of it, has a text to be seen.
    #[track_caller]
    pub(crate) fn until_text(&self, selector: &str, text: &str) {
        self.until(&format!(
            "[...document.querySelectorAll({})].some(found => found.innerText.includes({}))",
            json!(selector),
            json!(text)
        ));
    }

    /// The text of the first such element, as it is seen.
    #[track_caller]
    pub(crate) fn text(&self, selector: &str) -> String {
        let found = self.until(&format!("document.querySelector({})?.innerText", json!(selector)));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks, as a hand would: where the element is, if nothing lies above it.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        self.use_element(&query(selector), &[("click", json!({}))]);
    }

    /// Clicks the button that says this.
    #[track_caller]
    pub(crate) fn click_button(&self, says: &str) {
        let button = format!(
            "[...document.querySelectorAll('button')].find(one =>
                 one.innerText.startsWith({}) && one.checkVisibility() && !one.closest('dialog:not([open])'))",
            json!(says)
        );
        self.use_element(&button, &[("click", json!({}))]);
    }

    /// Empties a field and writes into it.
    #[track_caller]
    pub(crate) fn write(&self, selector: &str, text: &str) {
        self.use_element(&query(selector), &[("clear", json!({})), ("value", json!({"text": text}))]);
    }

    /// Presses keys, one after the other, on whatever has the focus.
    pub(crate) fn press(&self, keys: &str) {
        let press = |key: char| [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})];
        let actions: Vec<Value> = keys.chars().flat_map(press).collect();
        self.command("POST", "/actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}));
    }

    /// A picture of the window, as PNG.
    pub(crate) fn screenshot(&self) -> Vec<u8> {
        let taken = self.command("GET", "/screenshot", &Value::Null);
        STANDARD.decode(taken.as_str().unwrap()).unwrap()
    }

    /// Waits for the element that an expression finds, and does something to it. If it is redrawn in between, the new one is
    /// looked for and everything is done to that.
    #[track_caller]
    fn use_element(&self, expression: &str, commands: &[(&str, Value)]) {
        let deadline = Instant::now() + PAGE_TIMEOUT;
        'redrawn: while Instant::now() < deadline {
            let found = self.until(expression);
            let element = found[ELEMENT].as_str().unwrap_or_else(|| panic!("{expression} is {found}"));
            for (command, body) in commands {
                let answer = self.raw("POST", &format!("/element/{element}/{command}"), body);
                match answer["value"]["error"].as_str() {
                    None => {}
                    Some("stale element reference") => continue 'redrawn,
                    Some(error) => panic!("{command} of {expression}: {error} {}", answer["value"]["message"]),
                }
            }
            return;
        }
        panic!("{expression} is redrawn all the time");
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    #[track_caller]
    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send(method, &format!("/session/{}{path}", self.session), body)
    }

    fn raw(&self, method: &str, path: &str, body: &Value) -> Value {
        self.exchange(method, &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.exchange(method, path, body);
        let value = answer["value"].clone();
        let failed = value.get("stacktrace").and(value.get("error"));
        assert!(failed.is_none(), "{method} {path}: {} {}", value["error"], value["message"]);
        value
    }

    fn exchange(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PAGE_TIMEOUT * 2)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        // The driver keeps connections open, whatever it is asked: the head says how much there is to read.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        let mut line = String::new();
        while answer.read_line(&mut line).unwrap() > 2 {
            if let Some(said) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = said.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }
}

impl Drop for TestBrowser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // It ends the browser; a driver that is killed would leave it behind.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.raw("DELETE", "", &Value::Null)));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// The first element of a selector.
fn query(selector: &str) -> String {
    format!("document.querySelector({})", json!(selector))
}
