//! `cargo xtask test --model URL NAME`: a live model works through the agent: it makes a file, reads it and edits it. What
//! counts is what is in the workspace and in the ledger, not what the model says.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{print_status, root};

/// One thing to do, and what is there when it is done.
struct ModelTask {
    prompt: &'static str,
    /// Contents of `greeting.txt` afterwards.
    contents: &'static str,
    /// A word of the ledger.
    ledger: Option<&'static str>,
    /// A word of the answer.
    answer: Option<&'static str>,
}

const TASKS: [ModelTask; 3] = [
    ModelTask {
        prompt: "Create the file greeting.txt with exactly this content: hello world",
        contents: "hello world",
        ledger: Some("greeting.txt"),
        answer: None,
    },
    ModelTask {
        prompt: "Read the file greeting.txt with the tool and tell me its content.",
        contents: "hello world",
        ledger: None,
        answer: Some("hello world"),
    },
    ModelTask {
        prompt: "Use edit_file to change the word world to the word fence in greeting.txt.",
        contents: "hello fence",
        ledger: Some("greeting.txt"),
        answer: None,
    },
];

/// Attempts of each: a small model does not always succeed.
const TRIES: usize = 3;

/// False where the model did not do one of them.
pub(crate) fn run(url: &str, model: &str) -> bool {
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let dir = root().join("target/tmp/live-model");
    let (workspace, config) = (dir.join("workspace"), dir.join("config.toml"));
    // It is not there the first time.
    let _ = std::fs::remove_dir_all(&dir);
    let settings = format!(
        "preset = \"edits\"\ndialect = \"miniclaw\"\n[agents.defaults]\nprovider = \"openai\"\nbase_url = {url:?}\nmodel = {model:?}\n\
         temperature = 0.2\nmax_tool_iterations = 8\n[tools]\nallow = [\"read_file\", \"write_file\", \"edit_file\"]\n"
    );
    let made = std::fs::create_dir_all(&workspace).and_then(|()| std::fs::write(&config, settings));
    if made.is_err() {
        print_status("cannot create the workspace");
        return false;
    }
    TASKS.iter().all(|task| (0..TRIES).any(|_| run_task(task, &dir, &workspace)))
}

fn run_task(task: &ModelTask, dir: &Path, workspace: &Path) -> bool {
    let mut command = Command::new(root().join("target/debug/ringfence"));
    command.env("RINGFENCE_STATE_DIR", dir.join("state")).current_dir(dir).stdin(Stdio::null());
    command.args(["agent", "--json", "-p", task.prompt, "--config"]).arg(dir.join("config.toml"));
    let Ok(printed_text) = command.arg("--workspace").arg(workspace).output() else {
        print_status("cannot start the agent");
        return false;
    };
    let text = String::from_utf8_lossy(&printed_text.stdout);
    let last = text.lines().last().unwrap_or_default();
    let contents = std::fs::read_to_string(workspace.join("greeting.txt")).unwrap_or_default();
    let ledger = last.split_once("\"ledger\":").map(|(_, ledger)| ledger).unwrap_or_default();
    let holds = [
        ("the file", contents.trim_end() == task.contents),
        ("the ledger", task.ledger.is_none_or(|word| ledger.contains(word))),
        ("the answer", task.answer.is_none_or(|word| last.contains(word))),
    ];
    let missing: Vec<&str> = holds.iter().filter(|(_, holds)| !holds).map(|(what, _)| *what).collect();
    match missing.is_empty() {
        true => print_status(&format!("ok: {}", task.prompt)),
        false => print_status(&format!("failed ({} is wrong): {}", missing.join(", "), task.prompt)),
    }
    missing.is_empty()
}
