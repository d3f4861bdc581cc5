//! `cargo xtask bench sandbox`: starting a program in our jail, and in the sandboxes of others.
//!
//! Those are fetched on the first run, where that can be: by apt as root, and by npm below `target`. The bench says which of
//! them it did without.

use std::ffi::OsString;
use std::process::Command;

use crate::external_tools::{fetch_node_packages, has_program, install_debian_packages, succeeds};
use crate::{print_status, root};

const PACKAGES: [&str; 2] = ["@openai/codex", "@anthropic-ai/sandbox-runtime"];

/// False if the bench failed.
pub(crate) fn run() -> bool {
    let missing: Vec<&str> = [("bwrap", "bubblewrap"), ("socat", "socat"), ("rg", "ripgrep")]
        .into_iter()
        .filter_map(|(program, package)| (!has_program(program)).then_some(package))
        .collect();
    if !missing.is_empty() && !install_debian_packages(&missing) {
        print_status(&format!("{} could not be installed (that takes root and Debian)", missing.join(", ")));
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["bench", "-p", "ringfence-sandbox", "--bench", "jail"]).current_dir(root());
    if let Some(modules) = fetch_node_packages(&root().join("target/tmp/bench-sandbox"), &PACKAGES) {
        let mut path = OsString::from(modules.join(".bin"));
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        cargo.env("PATH", path);
    }
    succeeds(&mut cargo)
}
