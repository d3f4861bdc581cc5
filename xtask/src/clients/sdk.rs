//! Clients without a model: the official Python SDK and the Inspector.

use std::path::Path;
use std::process::Command;

use super::fresh;
use crate::fetched::{done, node, python};
use crate::{root, say};

const PYTHON_SDK: &str = "mcp==2.3.0";
const INSPECTOR: &str = "@modelcontextprotocol/inspector@0.15.0";

pub(super) fn with_python(place: &Path, program: &Path) -> bool {
    let Some(programs) = python(place, PYTHON_SDK) else { return false };
    let Some(directory) = fresh(place, "python") else { return false };
    done(
        Command::new(programs.join("python"))
            .arg(root().join("xtask/clients/python_sdk.py"))
            .arg(program)
            .arg(directory),
    )
}

pub(super) fn with_inspector(place: &Path, program: &Path) -> bool {
    let Some(modules) = node(place, &[INSPECTOR]) else { return false };
    let Some(directory) = fresh(place, "inspector") else { return false };
    let workspace = directory.join("workspace");
    if std::fs::create_dir_all(&workspace).and_then(|()| std::fs::write(workspace.join("a.txt"), "one")).is_err() {
        return false;
    }
    let cases: [(&[&str], &str); 3] = [
        (&["--method", "tools/list"], "\"readOnlyHint\": true"),
        (&["--method", "tools/call", "--tool-name", "read_file", "--tool-arg", "path=a.txt"], "\"text\": \"one\""),
        (&["--method", "resources/templates/list"], "ringfence:///{+path}"),
    ];
    cases.iter().all(|(arguments, expected)| {
        let mut command = Command::new(modules.join(".bin/mcp-inspector"));
        command.arg("--cli").arg(program).args(["mcp", "--workspace"]).arg(&workspace).args(*arguments);
        command.env("RINGFENCE_STATE_DIR", directory.join("state")).env("HOME", &directory);
        let said = command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let fine = said.as_ref().is_ok_and(|said| said.contains(expected));
        let word = if fine { "ok" } else { "failed" };
        say(&format!("{word}: inspector {}", arguments.join(" ")));
        fine
    })
}
