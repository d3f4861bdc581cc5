//! `cargo xtask conformance`: the official conformance suite of the Model Context Protocol against `ringfence serve`.
//!
//! The server is a build with the fixtures that the suite calls by name. The suite and a new enough Node are fetched
//! into `target/tmp/conformance` on the first run, which needs `npm` and the network. The suite cannot send a token, so
//! it comes through a small proxy that adds one. Both frozen sets of requirements are run; what they leave unscored is:
//!
//! - `tasks-*`: an extension that we do not offer; a call of ours ends or is deferred with a resume token.
//! - `json-schema-2020-12` and `http-custom-header-server-validation`: pending in the suite, and about tools that we do not
//!   have (schemas with references, arguments that are mirrored in headers).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::external_tools::{ChildGuard, fetch_node_packages};
use crate::{print_status, root};

const PACKAGES: [&str; 2] = ["@modelcontextprotocol/conformance@0.2.0-alpha.12", "node@22"];
const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// Port that the suite connects to.
const PORT: &str = "7432";

/// False if a required check failed, or the suite could not be had.
pub(crate) fn run() -> bool {
    let dir = root().join("target/tmp/conformance");
    if fetch_node_packages(&dir, &PACKAGES).is_none() {
        return false;
    }
    let build = ["build", "--quiet", "--package", "ringfence"];
    let with_fixtures = crate::run_cargo(&[&build[..], &["--features", "conformance"]].concat(), &[])
        && std::fs::copy(root().join("target/debug/ringfence"), dir.join("ringfence")).is_ok();
    // A build with fixtures must not be mistaken for the program.
    if !crate::run_cargo(&build, &[]) || !with_fixtures {
        return false;
    }
    let Some((_server, _door)) = open(&dir) else {
        print_status("the server did not start");
        return false;
    };
    let mut all = true;
    for revision in REVISIONS {
        print_status(&format!("requirements of {revision}"));
        all &= suite(&dir, revision);
    }
    all
}

fn suite(dir: &Path, revision: &str) -> bool {
    let results = dir.join(format!("results-{revision}"));
    let mut command = Command::new(dir.join("node_modules/.bin/node"));
    command.arg(dir.join("node_modules/@modelcontextprotocol/conformance/dist/index.js"));
    command.args(["server", "--url", &format!("http://localhost:{PORT}/mcp"), "--requirements", revision, "-o"]);
    let Ok(output) = command.arg(results).output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print_status(text.split("=== SUMMARY ===").nth(1).unwrap_or(&text).trim());
    output.status.success()
}

/// Starts the server on a free port, and the proxy in front of it.
fn open(dir: &Path) -> Option<(ChildGuard, ChildGuard)> {
    let directory = dir.join(format!("run-{}", std::process::id()));
    let workspace = directory.join("workspace");
    std::fs::create_dir_all(&workspace).ok()?;
    let ours = || {
        let mut command = Command::new(dir.join("ringfence"));
        command.env("RINGFENCE_STATE_DIR", directory.join("state")).env("HOME", &directory);
        command
    };
    let token = relay_token(&dir.join("ringfence"), &directory)?;
    let origin = format!("http://localhost:{PORT}");
    let mut serve = ours();
    serve.args(["serve", "--address", "127.0.0.1:0", "--origin", &origin, "--workspace"]).arg(&workspace);
    let mut server = ChildGuard(serve.stderr(Stdio::piped()).spawn().ok()?);
    let mut line = String::new();
    BufReader::new(server.0.stderr.take()?).read_line(&mut line).ok()?;
    let url = line.split_whitespace().last()?.to_owned();
    let mut proxy = Command::new(dir.join("node_modules/.bin/node"));
    proxy.arg(root().join("xtask/clients/with_token.mjs")).args([url.as_str(), token.as_str(), PORT]);
    let mut proxy = ChildGuard(proxy.stdout(Stdio::piped()).spawn().ok()?);
    let mut opened = String::new();
    BufReader::new(proxy.0.stdout.take()?).read_line(&mut opened).ok()?;
    (opened.trim() == "open").then_some((server, proxy))
}

/// A token whose client may answer approval requests. Only a person at a terminal can make one, so this types the answer.
fn relay_token(program: &Path, directory: &Path) -> Option<String> {
    let mut typist = Command::new("script");
    typist.args(["-qefc", "\"$PROGRAM\" token new conformance --scope call --scope relay", "/dev/null"]);
    typist.env("PROGRAM", program).env("RINGFENCE_STATE_DIR", directory.join("state")).env("HOME", directory);
    let mut terminal = typist.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let mut keyboard = terminal.stdin.take()?;
    let mut screen = BufReader::new(terminal.stdout.take()?);
    let mut question = Vec::new();
    screen.read_until(b']', &mut question).ok()?;
    keyboard.write_all(b"yes\n").ok()?;
    let mut output = String::new();
    screen.read_to_string(&mut output).ok()?;
    terminal.wait().ok()?;
    output.lines().find_map(|line| line.trim().starts_with("rft_").then(|| line.trim().to_owned()))
}
