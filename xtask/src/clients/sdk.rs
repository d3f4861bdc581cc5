//! Clients without a model: the official Python SDK and the Inspector.

use std::path::Path;
use std::process::Command;

use super::empty_directory;
use crate::external_tools::{fetch_node_packages, fetch_python_package, succeeds};
use crate::{print_status, root};

const PYTHON_SDK: &str = "mcp==2.3.0";
const INSPECTOR: &str = "@modelcontextprotocol/inspector@0.15.0";

pub(super) fn with_python(dir: &Path, program: &Path) -> bool {
    let Some(programs) = fetch_python_package(dir, PYTHON_SDK) else { return false };
    let Some(directory) = empty_directory(dir, "python") else { return false };
    succeeds(
        Command::new(programs.join("python"))
            .arg(root().join("xtask/clients/python_sdk.py"))
            .arg(program)
            .arg(directory),
    )
}

pub(super) fn with_inspector(dir: &Path, program: &Path) -> bool {
    let Some(modules) = fetch_node_packages(dir, &[INSPECTOR]) else { return false };
    let Some(directory) = empty_directory(dir, "inspector") else { return false };
    let workspace = directory.join("workspace");
    if std::fs::create_dir_all(&workspace).and_then(|()| std::fs::write(workspace.join("a.txt"), "one")).is_err() {
        return false;
    }
    let cases: [(&[&str], &str); 3] = [
        (&["--method", "tools/list"], "\"readOnlyHint\": true"),
        (&["--method", "tools/call", "--tool-name", "read_file", "--tool-arg", "path=a.txt"], "\"text\": \"1\\tone\""),
        (&["--method", "resources/templates/list"], "ringfence:///{+path}"),
    ];
    cases.iter().all(|(arguments, expected)| {
        let mut command = Command::new(modules.join(".bin/mcp-inspector"));
        command.arg("--cli").arg(program).args(["mcp", "--workspace"]).arg(&workspace).args(*arguments);
        command.env("RINGFENCE_STATE_DIR", directory.join("state")).env("HOME", &directory);
        let printed_text = command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let fine = printed_text.as_ref().is_ok_and(|printed_text| printed_text.contains(expected));
        let word = if fine { "ok" } else { "failed" };
        print_status(&format!("{word}: inspector {}", arguments.join(" ")));
        fine
    })
}
