//! `run_code` over MCP: which changes the result says were kept, and how long their approval is waited for.

use ringfence_testkit::mcp_client::{StdioMcpClient, text};
use serde_json::{Value, json};

use crate::site::TestSite;

const BOTH: &str = "echo new > a.txt; echo new > fresh";

fn site() -> TestSite {
    let site = TestSite::new();
    site.write("a.txt", "old\n");
    site
}

fn bash(code: &str, mode: &str) -> Value {
    json!({"language": "bash", "code": code, "mode": mode})
}

/// The start of the text of a result, words that follow, and the files that the program changed.
struct Expected {
    starts: &'static str,
    contains: &'static [&'static str],
    changed: &'static [&'static str],
}

const ALL: Expected =
    Expected { starts: "[exit 0, changed 2 files (c-", contains: &["a.txt fresh]"], changed: &["a.txt", "fresh"] };
const DISCARDED: Expected =
    Expected { starts: "[exit 0, discarded changes of 2 files: a.txt fresh]", contains: &[], changed: &[] };
const NONE: Expected = Expected {
    starts: "not kept: `a.txt`, `fresh`: ",
    contains: &["none of the program's changes were kept\n[exit 0]"],
    changed: &[],
};

#[track_caller]
fn check(site: &TestSite, result: &Value, expected: &Expected) {
    let said = text(result);
    assert!(said.starts_with(expected.starts), "{said}");
    expected.contains.iter().for_each(|words| assert!(said.contains(words), "{words}: {said}"));
    assert_eq!(result["isError"], said.starts_with("not kept: "), "{said}");
    for hidden in ["committed", "totalKept", "totalNotKept", "rule:", "layer:", "walls"] {
        assert!(!said.contains(hidden), "{hidden}: {said}");
    }
    for path in ["a.txt", "fresh"] {
        let is_new = std::fs::read_to_string(site.workspace.join(path)).is_ok_and(|text| text == "new\n");
        assert_eq!(is_new, expected.changed.contains(&path), "{path}: {said}");
    }
}

#[test]
fn a_result_says_which_changes_were_kept_in_every_mode() {
    let some = Expected {
        starts: "not kept: `a.txt`: not approved: no answer while the call waited (overwrite `a.txt`); 1 other change was kept\n",
        contains: &["[exit 0, changed 1 file (c-", "): fresh]"],
        changed: &["fresh"],
    };
    let nothing = Expected { starts: "[exit 0]", contains: &[], changed: &[] };
    let denied = Expected { starts: "not kept: `a.txt`: ", contains: &["none of the program's changes"], changed: &[] };
    for (preset, mode, code, expected) in [
        ("edits", "auto", BOTH, &ALL),
        ("ask", "auto", BOTH, &some),
        ("ask", "auto", "echo new > a.txt", &denied),
        ("read-only", "auto", BOTH, &NONE),
        ("edits", "review", BOTH, &NONE),
        ("ask", "review", BOTH, &NONE),
        ("edits", "discard", BOTH, &DISCARDED),
        ("ask", "discard", BOTH, &DISCARDED),
        ("read-only", "discard", BOTH, &DISCARDED),
        ("edits", "auto", "true", &nothing),
        ("edits", "discard", "true", &nothing),
    ] {
        let site = site();
        let mut client = StdioMcpClient::with_handshake(&site, &["--preset", preset, "--wait", "0"], json!({}));
        check(&site, &client.call("run_code", bash(code, mode)), expected);
    }
}

#[test]
fn approved_changes_are_kept_in_every_mode_that_asks() {
    let some = Expected {
        starts: "not kept: `a.txt`: denied by ",
        contains: &["[exit 0, changed 1 file (c-"],
        changed: &["fresh"],
    };
    for (preset, mode, denied) in [("ask", "auto", &some), ("ask", "review", &NONE), ("edits", "review", &NONE)] {
        for (approve, expected) in [(true, &ALL), (false, denied)] {
            let site = site();
            let forms = json!({"elicitation": {"form": {}}});
            let mut client = StdioMcpClient::with_handshake(&site, &["--preset", preset], forms);
            let id = client.send_tool_call("run_code", bash(BOTH, mode));
            let asked = client.next_of_method("elicitation/create");
            let answer = json!({"action": "accept", "content": {"approve": approve}});
            client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer}));
            check(&site, &client.result(id), expected);
        }
    }
}

/// A call behind it runs as soon as the program's reply is there.
#[test]
fn changes_of_a_program_wait_for_an_answer_as_long_as_the_caller_says() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask", "--wait", "0"], json!({}));
    let run = client.send_tool_call("run_code", bash(BOTH, "auto"));
    let write = client.send_tool_call("write_file", json!({"path": "behind", "content": "new\n"}));
    assert_eq!(client.result(run)["isError"], true);
    assert_eq!(client.result(write)["isError"], false);
    assert_eq!((site.read("a.txt").as_str(), site.read("fresh").as_str()), ("old\n", "new\n"));
}

#[test]
fn a_cancelled_client_keeps_what_needs_no_answer() {
    let site = site();
    let forms = json!({"elicitation": {"form": {}}});
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], forms);
    let id = client.send_tool_call("run_code", bash(BOTH, "auto"));
    client.next_of_method("elicitation/create");
    client.notify("notifications/cancelled", json!({"requestId": id}));
    // Calls run one at a time, so this one begins when the cancelled one is over.
    client.call("write_file", json!({"path": "behind", "content": "new\n"}));
    assert_eq!((site.read("a.txt").as_str(), site.read("fresh").as_str()), ("old\n", "new\n"));
}
