//! Operations under test: one call of every tool that changes something, a prompt of the agent, and an unsafe control.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use serde_json::{Value, json};

use super::json_lines::{JsonLineClient, JsonLineReply};
use super::site::FaultSite;

/// Made by a call that was answered before the fault. It must be there ever after.
pub(super) const ACKNOWLEDGED: (&str, &str) = ("acknowledged.txt", "this was answered\n");

/// The agent's last text, in its script.
pub(super) const FINAL_ANSWER: &str = "The line is there.";

/// The way that most programs write a file: over the old contents, and not synced.
const NAIVE_WRITE_SCRIPT: &str = r#"read -r line && cat "$1" > "$2" && echo '{"id": 1, "result": {}}'"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultFrontend {
    Mcp,
    /// The agent with a script, for an editor.
    Acp,
    /// No front of ours: a shell that writes a file.
    Control,
}

#[derive(Debug)]
pub(super) struct FaultOperation {
    pub(super) name: &'static str,
    pub(super) front: FaultFrontend,
    files: Vec<(&'static str, String)>,
    /// The run in whose state it is made.
    run: Option<&'static str>,
    /// Calls that are made and answered before.
    setup_calls: Vec<(&'static str, Value)>,
    tool: &'static str,
    arguments: Value,
    /// The command that undoes it.
    pub(super) undo_command: &'static str,
}

pub(super) fn operations() -> Vec<FaultOperation> {
    let text = |text: &str| text.to_owned();
    let of = |name, tool, files: &[(&'static str, &str)], arguments| FaultOperation {
        name,
        front: FaultFrontend::Mcp,
        files: files.iter().map(|(path, content)| (*path, text(content))).collect(),
        run: None,
        setup_calls: Vec::new(),
        tool,
        arguments,
        undo_command: "undo",
    };
    // More than one write takes.
    let big = "n".repeat((1 << 20) + 500);
    let patch = "--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-old\n+new\n\
        --- /dev/null\n+++ b/x/y/new.txt\n@@ -0,0 +1 @@\n+new\n\
        --- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n\
        --- a/d/two.txt\n+++ b/d/two.txt\n@@ -1 +1 @@\n-old\n+new\n";
    let update = json!({"operation": "updateFrontmatter", "update": {"variables": {"set": {"b": 2}}}});
    let code = "printf new > a.txt; rm gone.txt; mkdir -p n/s; printf t > n/s/t; rm -r d";
    let two = [("a.txt", "old\n"), ("d/b.txt", "old\n")];
    let both = json!({"patch": "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-old\n+new\n--- d/b.txt\n+++ d/b.txt\n@@ -1 +1 @@\n-old\n+new\n"});
    vec![
        of("write_file", "write_file", &[("a.txt", "old\n")], json!({"path": "a.txt", "content": big})),
        of(
            "write_file, new",
            "write_file",
            &[],
            json!({"path": "x/y/new.txt", "content": "new\n", "createDirs": true}),
        ),
        of("append_file", "append_file", &[("log.txt", "first\n")], json!({"path": "log.txt", "content": "second\n"})),
        of(
            "edit_file",
            "edit_file",
            &[("d/a.txt", "one\ntwo\nthree\n")],
            json!({"path": "d/a.txt", "oldText": "two", "newText": "2"}),
        ),
        of(
            "apply_patch",
            "apply_patch",
            &[("one.txt", "old\n"), ("gone.txt", "old\n"), ("d/two.txt", "old\n")],
            json!({"patch": patch}),
        ),
        FaultOperation {
            run: Some("one"),
            ..of("front matter", "apply_patch", &[], json!({"path": "@state/workflow.md", "patch": update}))
        },
        of("copy_file", "copy_file", &[("a.txt", "old\n")], json!({"from": "a.txt", "to": "b.txt"})),
        of(
            "move_file",
            "move_file",
            &[("d/from.txt", "source\n"), ("to.txt", "target\n")],
            json!({"from": "d/from.txt", "to": "to.txt", "overwrite": true}),
        ),
        of("create_directory", "create_directory", &[("a.txt", "old\n")], json!({"path": "x"})),
        of(
            "delete_file",
            "delete_file",
            &[("d/a.txt", "a\n"), ("d/e/b.txt", "b\n"), ("keep.txt", "keep\n")],
            json!({"path": "d", "recursive": true}),
        ),
        FaultOperation {
            // The jail's own processes are started by this one, and are not what is tried.
            setup_calls: vec![("run_code", json!({"language": "bash", "code": "printf warm > warm.txt"}))],
            ..of(
                "run_code",
                "run_code",
                &[("a.txt", "old\n"), ("gone.txt", "old\n"), ("d/e/b.txt", "b\n")],
                json!({"language": "bash", "code": code}),
            )
        },
        FaultOperation {
            setup_calls: vec![("apply_patch", both.clone())],
            undo_command: "redo",
            ..of("undo", "undo", &two, json!({}))
        },
        FaultOperation {
            setup_calls: vec![("apply_patch", both), ("undo", json!({}))],
            ..of("redo", "redo", &two, json!({}))
        },
        FaultOperation {
            front: FaultFrontend::Acp,
            ..of("agent, with the store", "session/prompt", &[("log.txt", "first\n")], Value::Null)
        },
        FaultOperation {
            front: FaultFrontend::Control,
            files: vec![("a.txt", "o".repeat(big.len()))],
            ..of("a naive write", "", &[], json!(big))
        },
    ]
}

impl FaultOperation {
    pub(super) fn set_up(&self, site: &mut FaultSite) -> io::Result<()> {
        self.run.map_or(Ok(()), |run| site.begin_run(run))?;
        self.files.iter().try_for_each(|(path, content)| site.write(path, content))?;
        match self.front {
            FaultFrontend::Mcp => Ok(()),
            FaultFrontend::Acp => {
                let call = json!({"calls": [{"name": "append_file", "arguments": {"path": "log.txt", "content": "second\n"}}]});
                let write = json!({"calls": [{"name": "write_file", "arguments": {
                    "path": ACKNOWLEDGED.0, "content": ACKNOWLEDGED.1}}]});
                let (done, last) = (json!({"text": "Done."}), json!({"text": FINAL_ANSWER}));
                fs::write(site.root().join("home/script.jsonl"), format!("{write}\n{done}\n{call}\n{last}\n"))
            }
            FaultFrontend::Control => {
                fs::write(site.root().join("new"), self.arguments.as_str().unwrap_or_default())?;
                site.write(ACKNOWLEDGED.0, ACKNOWLEDGED.1)
            }
        }
    }

    /// Starts the program, and does everything that comes before the call that is tried.
    pub(super) fn prepare(&self, site: &FaultSite, clock: Option<&Path>) -> io::Result<PreparedOperation> {
        let mut command = match self.front {
            FaultFrontend::Mcp => site.ringfence(&["mcp", "--structured"]),
            FaultFrontend::Acp => site.ringfence(&["acp", "--script", "script.jsonl"]),
            FaultFrontend::Control => {
                let mut command = site.command("sh");
                command
                    .args(["-c", NAIVE_WRITE_SCRIPT, "sh"])
                    .arg(site.root().join("new"))
                    .arg(site.workspace().join("a.txt"));
                command
            }
        };
        if let Some(clock) = clock {
            fake_clock(&mut command, clock);
        }
        let mut client = JsonLineClient::start(command)?;
        let (method, params) = match self.front {
            FaultFrontend::Mcp => {
                let client_info = json!({"name": "faults", "version": "1"});
                let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client_info});
                expect_result(client.request("initialize", &hello))?;
                client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
                let acknowledged = json!({"path": ACKNOWLEDGED.0, "content": ACKNOWLEDGED.1});
                expect_result(client.request("tools/call", &call("write_file", &acknowledged)))?;
                for (tool, arguments) in &self.setup_calls {
                    expect_result(client.request("tools/call", &call(tool, arguments)))?;
                }
                ("tools/call", call(self.tool, &self.arguments))
            }
            FaultFrontend::Acp => {
                expect_result(client.request("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}})))?;
                let session =
                    expect_result(client.request("session/new", &json!({"cwd": site.workspace(), "mcpServers": []})))?;
                let say = json!({"sessionId": session["sessionId"], "prompt": [{"type": "text", "text": "go on"}]});
                expect_result(client.request("session/prompt", &say))?;
                ("session/prompt", say)
            }
            FaultFrontend::Control => ("", Value::Null),
        };
        Ok(PreparedOperation { client, method, params })
    }
}

/// A program that waits for the call that is tried.
#[derive(Debug)]
pub(super) struct PreparedOperation {
    pub(super) client: JsonLineClient,
    pub(super) method: &'static str,
    pub(super) params: Value,
}

pub(super) fn call(tool: &str, arguments: &Value) -> Value {
    json!({"name": tool, "arguments": arguments})
}

/// The claim of an answer about the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerClaim {
    Made,
    NotMade,
    /// It says that it does not know, or that the call was carried out and something else went wrong.
    Unknown,
}

/// The claim of an answer: a tool's result, a tool's error, or an error of the protocol.
pub(super) fn answer_claim(answer: &Value) -> AnswerClaim {
    let result = &answer["result"];
    if let Some(error) = answer.get("error") {
        return if error.to_string().contains("its end could not be recorded") {
            AnswerClaim::Unknown
        } else {
            AnswerClaim::NotMade
        };
    }
    if result["isError"] != true {
        // A program ran, and nothing that it changed was kept.
        let is_dropped = result["structuredContent"]["value"]["committed"] == "none";
        return if is_dropped { AnswerClaim::NotMade } else { AnswerClaim::Made };
    }
    let reply: Value =
        result["content"][0]["text"].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    match &reply["error"]["details"]["committed"] {
        Value::Bool(true) => AnswerClaim::Made,
        Value::String(word) if word == "all" || word == "some" => AnswerClaim::Made,
        Value::String(word) if word == "unknown" => AnswerClaim::Unknown,
        _ => AnswerClaim::NotMade,
    }
}

/// The result of a request that must go well for a trial to begin.
fn expect_result(reply: JsonLineReply) -> io::Result<Value> {
    match reply {
        JsonLineReply::Answer(answer) if answer_claim(&answer) == AnswerClaim::Made => Ok(answer["result"].clone()),
        other => Err(io::Error::other(format!("before the fault: {other:.500?}"))),
    }
}

/// Debian's path of the library that shows programs another time.
pub(super) const FAKE_CLOCK: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The program takes the time from a file that says how far it is off.
fn fake_clock(command: &mut Command, clock: &Path) {
    command
        .env("LD_PRELOAD", FAKE_CLOCK)
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}
