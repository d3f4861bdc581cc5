//! What `ringfence --version` says beside the version: which commit, for which machine, by which compiler.
//!
//! A build for work in progress names no commit: it would have to be made anew with each one.

#![expect(
    clippy::disallowed_methods,
    reason = "the program itself reads its environment elsewhere; this asks the build's"
)]

use std::process::Command;

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RINGFENCE_COMMIT");
    let named = variable("RINGFENCE_COMMIT");
    let commit = match (named.is_empty(), variable("PROFILE") == "release") {
        (false, _) => named,
        (true, true) => commit().unwrap_or_else(|| "unknown".to_owned()),
        (true, false) => "work in progress".to_owned(),
    };
    let compiler =
        command_output(Command::new(variable("RUSTC")).arg("--version")).unwrap_or_else(|| "unknown".to_owned());
    let (version, target) = (variable("CARGO_PKG_VERSION"), variable("TARGET"));
    println!("cargo::rustc-env=RINGFENCE_BUILD={version} ({commit}; {target}; {compiler})");
}

/// The commit of this tree, and whether something in it was changed since.
fn commit() -> Option<String> {
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/refs/heads");
    let hash = command_output(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    let changed = command_output(Command::new("git").args(["status", "--porcelain", "--untracked-files=no"]))?;
    Some(if changed.is_empty() { hash } else { format!("{hash}, changed since") })
}

fn command_output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
