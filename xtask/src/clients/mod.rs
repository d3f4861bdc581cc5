//! `cargo xtask clients`: real clients against our server.
//!
//! `clients mcp` has every client, or the one that is named: Claude Code, Codex, Gemini CLI, goose and opencode with a
//! scripted model, the official Python SDK and the Inspector by themselves. They are fetched below `target/tmp/clients` on
//! the first run, which needs the network, `npm` and `python3`; a client that is there is not fetched again. A client that
//! cannot be had counts as a failure: nothing was shown then. `clients run` has agents inside `ringfence run`,
//! `clients run tui` the full screen of Claude Code, `clients run time` the time of a task of it beside the same one bare, and
//! `clients run login` Claude Code and Codex with a login instead of a key.

mod full_screen;
mod login;
mod model;
mod real;
mod replay;
mod sdk;
mod wire_formats;
mod wrapped;

use std::path::{Path, PathBuf};

use crate::{print_status, root};

/// A check of a client without a model: where it is fetched to, and our program.
type SdkCheck = fn(&Path, &Path) -> bool;

const SDKS: [(&str, SdkCheck); 2] = [("python-sdk", sdk::with_python), ("inspector", sdk::with_inspector)];

/// False if a client failed, or could not be had.
pub(crate) fn run(words: &[&str]) -> bool {
    match words {
        [] | ["mcp"] => check(None),
        ["mcp", name] => check(Some(name)),
        ["run"] => wrapped::run(None),
        ["run", name] => wrapped::run(Some(name)),
        _ => {
            print_status("usage: cargo xtask clients [mcp [NAME] | run [NAME | tui | time | login]]");
            false
        }
    }
}

fn check(wanted: Option<&str>) -> bool {
    let names = real::CLIENTS.iter().map(|client| client.name).chain(SDKS.iter().map(|(name, _)| *name));
    if let Some(name) = wanted.filter(|wanted| !names.clone().any(|name| name == *wanted)) {
        print_status(&format!("unknown client `{name}`; available: {}", names.collect::<Vec<_>>().join(", ")));
        return false;
    }
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let (dir, program) = (root().join("target/tmp/clients"), root().join("target/debug/ringfence"));
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let sdks = SDKS.iter().filter(|(name, _)| is_wanted(name)).map(|(_, check)| check(&dir, &program));
    let sdks_are_fine = sdks.collect::<Vec<_>>().iter().all(|fine| *fine);
    let mut reports = Vec::new();
    for client in real::CLIENTS.iter().filter(|client| is_wanted(client.name)) {
        print_status(&format!("{} …", client.name));
        reports.push((client.name, client.check(&dir, &program)));
    }
    if !reports.is_empty() {
        real::print_table(&reports);
    }
    sdks_are_fine && reports.iter().all(|(_, report)| report.passed())
}

/// An empty directory for one run.
fn empty_directory(dir: &Path, name: &str) -> Option<PathBuf> {
    let directory = dir.join("runs").join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).ok().map(|()| directory)
}
