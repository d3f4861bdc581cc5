//! `cargo xtask mutants`: mutation testing of the policy and approval code.
//!
//! `cargo-mutants` changes one thing at a time in the files that decide, in a copy of the repository, and runs the
//! kernel's tests on each. Missed mutants are printed, and make the command fail. It takes about an hour.

use std::process::Command;

/// The files that decide: the policy, the gate, and what stands between a question and its answer.
const FILES: [&str; 20] = [
    "ask_approval",
    "taint",
    "inbox",
    "approval",
    "approver",
    "ticket",
    "grant",
    "granted_rules",
    "pattern",
    "policy",
    "preset",
    "verdict",
    "resume",
    "rule",
    "rule_parser",
    "rule_text",
    "layered_rules",
    "resume_token",
    "approval_queue",
    "approval_turn",
];

/// Mutants that no test can tell apart, and why.
const EQUIVALENT_MUTANTS: [(&str, &str); 3] = [
    (
        r"replace match guard self\.is_empty\(\) with false in PathGlobs::matches",
        "a set without patterns contains nothing anyway; the guard saves the folding of a name",
    ),
    (
        r"replace && with \|\| in narrowest_grant",
        "accesses that differ are not all covered by one rule, which is checked once more at the end",
    ),
    (
        r"replace && with \|\| in is_grantable",
        "secrets and protected paths have no grant in their verdict, and what another layer asks is asked with the \
         grant too: each is refused twice",
    ),
];

/// Time limit of the tests. A longer run means that a test waits for an answer that does not come, which counts as
/// caught.
const TEST_TIMEOUT_SECONDS: &str = "30";

/// Exit code of `cargo-mutants` where some of the tests timed out.
const TIMED_OUT: i32 = 3;

/// False if a mutant was let through.
pub(crate) fn run() -> bool {
    if !has("mutants") {
        crate::print_status("installing cargo-mutants");
        if !crate::run_cargo(&["install", "cargo-mutants", "--locked"], &[]) {
            return false;
        }
    }
    let files = FILES.map(|file| format!("crates/ringfence-kernel/src/{file}.rs"));
    let mut command = Command::new("cargo");
    command.args(["mutants", "--package", "ringfence-kernel", "--cap-lints", "true"]);
    command.args(["--timeout", TEST_TIMEOUT_SECONDS, "--output", "target/mutants"]);
    for file in &files {
        command.args(["--file", file]);
    }
    for (mutant, why) in EQUIVALENT_MUTANTS {
        crate::print_status(&format!("skipped: {mutant}: {why}"));
        command.args(["--exclude-re", mutant]);
    }
    command.args(["--", "--lib", "--tests"]);
    // Lines in backtraces are of no use here, and hundreds of cases are for one run and not for hundreds.
    match command.env("CARGO_PROFILE_DEV_DEBUG", "false").env("PROPTEST_CASES", "64").status() {
        Ok(status) => status.success() || status.code() == Some(TIMED_OUT),
        Err(error) => {
            crate::print_status(&format!("cannot run cargo: {error}"));
            false
        }
    }
}

/// Whether cargo has this command.
fn has(command: &str) -> bool {
    Command::new("cargo").args([command, "--version"]).output().is_ok_and(|output| output.status.success())
}
