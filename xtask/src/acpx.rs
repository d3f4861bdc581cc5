//! `cargo xtask acpx`: a third-party ACP client drives `ringfence acp`, and answers permission requests.
//!
//! It is fetched into `target/tmp/acpx` on the first run, with a Node that it runs on, which needs the network and
//! `npm`. A failed download is reported, and counts as a failure: nothing was tested then. The result is judged by the
//! workspace afterwards.

use std::path::Path;
use std::process::Command;

use crate::external_tools::fetch_node_packages;
use crate::{print_status, root};

const ACPX: &str = "acpx@0.19.1";
const NODE: &str = "node@22.23.3";

const SCRIPT: &str = r#"{"text":"I will write.","calls":[{"name":"write_file","arguments":{"path":"a.txt","content":"two\n"}}]}
{"text":"That is all."}
"#;

/// An answer to every question, and what a file is after it that was `one`.
struct AcpxCase {
    flag: &'static str,
    expected_contents: &'static str,
    expected_message: &'static str,
}

/// False if the client failed, or could not be had.
pub(crate) fn run() -> bool {
    let dir = root().join("target/tmp/acpx");
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    if fetch_node_packages(&dir, &[ACPX, NODE]).is_none() {
        return false;
    }
    let cases = [
        AcpxCase { flag: "--approve-all", expected_contents: "two\n", expected_message: "\"status\":\"completed\"" },
        AcpxCase {
            flag: "--deny-all",
            expected_contents: "one\n",
            expected_message: "denied by the user of the editor",
        },
    ];
    cases.iter().all(|case| run_case(&dir, case))
}

fn run_case(dir: &Path, case: &AcpxCase) -> bool {
    let AcpxCase { flag, expected_contents: left, expected_message } = case;
    let directory = dir.join("runs").join(format!("{}-{}", flag.trim_start_matches('-'), std::process::id()));
    let (workspace, script) = (directory.join("workspace"), directory.join("script.jsonl"));
    let made = std::fs::create_dir_all(&workspace)
        .and_then(|()| std::fs::write(workspace.join("a.txt"), "one\n"))
        .and_then(|()| std::fs::write(&script, SCRIPT));
    if let Err(error) = made {
        print_status(&format!("cannot create the workspace: {error}"));
        return false;
    }
    let program = root().join("target/debug/ringfence");
    let agent = format!("{} acp --workspace {} --script {}", program.display(), workspace.display(), script.display());
    let mut command = Command::new(dir.join("node_modules/node/bin/node"));
    command.arg(dir.join("node_modules/acpx/dist/cli.js")).args(["--agent", &agent, "--cwd"]).arg(&workspace);
    command.args([flag, "--format", "json", "--timeout", "120", "exec", "write a.txt"]);
    command.env("RINGFENCE_STATE_DIR", directory.join("state")).env("HOME", &directory);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            print_status(&format!("cannot start acpx: {error}"));
            return false;
        }
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    let found = std::fs::read_to_string(workspace.join("a.txt")).unwrap_or_default();
    let fine = found == *left && printed.contains(expected_message) && printed.contains("\"stopReason\":\"end_turn\"");
    let word = if fine { "ok" } else { "failed" };
    print_status(&format!("{word}: acpx {flag}, and a.txt is {found:?}"));
    if !fine {
        print_status(&format!("{printed}\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    fine
}
