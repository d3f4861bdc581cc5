//! Approval of a client's calls, and the assurance of its answers.

use ringfence_testkit::mcp_client::{StdioMcpClient, text};
use serde_json::{Value, json};

use crate::mcp_malformed_input::wait_for_request;
use crate::site::TestSite;
use crate::terminal::approve_at_terminal;

fn site() -> TestSite {
    let site = TestSite::new();
    site.write("a", "old\n");
    site.write(".env", "KEY=hidden\n");
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), "[approval]\nunattended = true\n").unwrap();
    site
}

const FORMS: &str = r#"{"elicitation": {"form": {}}}"#;

fn forms() -> Value {
    serde_json::from_str(FORMS).unwrap()
}

fn overwrite() -> Value {
    json!({"path": "a", "content": "new\n"})
}

#[test]
fn a_client_with_forms_is_asked_and_its_user_sees_what_would_happen() {
    for (said, content) in [
        (json!({"action": "accept", "content": {"approve": true}}), "new\n"),
        (json!({"action": "accept", "content": {"approve": false}}), "old\n"),
        (json!({"action": "decline"}), "old\n"),
        (json!({"action": "cancel"}), "old\n"),
    ] {
        let site = site();
        let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], forms());
        let id = client.send_tool_call("write_file", overwrite());
        let asked = client.next_of_method("elicitation/create");
        let message = asked["params"]["message"].as_str().unwrap();
        assert!(message.contains("-old") && message.contains("+new"), "{message}");
        assert_eq!(asked["params"]["requestedSchema"]["properties"]["approve"]["type"], "boolean");
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": said}));
        assert_eq!(client.result(id)["isError"], content == "old\n", "{said}");
        assert_eq!(site.read("a"), content, "{said}");
    }
}

#[test]
fn a_call_behind_one_that_waits_for_approval_is_answered_first_unless_both_change_one_file() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], forms());
    let waiting = client.send_tool_call("write_file", overwrite());
    let asked = client.next_of_method("elicitation/create");
    let same_file = client.send_tool_call("append_file", json!({"path": "./a", "content": "more\n"}));
    let read = client.send_tool_call("read_file", json!({"path": "a"}));
    let other_file = client.send_tool_call("write_file", json!({"path": "b", "content": "b\n"}));
    assert_eq!(text(&client.result(read)), "1\told");
    assert_eq!(client.result(other_file)["isError"], false);
    assert_eq!((site.read("a"), site.read("b")), ("old\n".to_owned(), "b\n".to_owned()));
    let yes = json!({"action": "accept", "content": {"approve": true}});
    client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": yes}));
    assert_eq!(client.result(waiting)["isError"], false);
    let asked = client.next_of_method("elicitation/create");
    client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": yes}));
    assert_eq!(client.result(same_file)["isError"], false);
    assert_eq!(site.read("a"), "new\nmore\n");
}

#[test]
fn an_elicitation_is_cancelled_with_its_call() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], forms());
    let id = client.send_tool_call("write_file", overwrite());
    let asked = client.next_of_method("elicitation/create");
    client.notify("notifications/cancelled", json!({"requestId": id}));
    assert_eq!(client.next_of_method("notifications/cancelled")["params"]["requestId"], asked["id"]);
}

#[test]
fn a_call_that_waits_for_its_client_does_not_outlive_it() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], forms());
    client.send_tool_call("write_file", overwrite());
    client.next_of_method("elicitation/create");
    let (code, _, _) = client.close();
    assert_eq!(code, Some(0));
    assert_eq!(site.read("a"), "old\n");
    assert_eq!(site.run(&["approvals", "list", "--json"]).out.trim(), "[]");
}

/// The first half of a call of a stateless client: what it is asked, and what it has to bring back.
fn first_round(client: &mut StdioMcpClient) -> (Value, Value) {
    let result = client.call("write_file", overwrite());
    assert_eq!(result["resultType"], "input_required", "{result}");
    (result["inputRequests"]["approval"].clone(), result["requestState"].clone())
}

fn second_round(client: &mut StdioMcpClient, arguments: Value, said: Value, state: &Value) -> Value {
    let params = json!({"name": "write_file", "arguments": arguments, "inputResponses": {"approval": said}, "requestState": state});
    let id = client.send_request("tools/call", params);
    client.result(id)
}

#[test]
fn a_stateless_client_is_asked_in_the_result_and_comes_back_with_the_answer() {
    for (said, content) in [
        (json!({"action": "accept", "content": {"approve": true}}), "new\n"),
        (json!({"action": "accept", "content": {"approve": false}}), "old\n"),
        (json!({"action": "decline"}), "old\n"),
    ] {
        let site = site();
        let mut client = StdioMcpClient::stateless(&site, &["--preset", "ask"], forms());
        let (question, state) = first_round(&mut client);
        assert_eq!(question["method"], "elicitation/create", "{question}");
        assert!(question["params"]["message"].as_str().unwrap().contains("+new"), "{question}");
        let result = second_round(&mut client, overwrite(), said.clone(), &state);
        assert_eq!(result["isError"], content == "old\n", "{result}");
        assert_eq!(site.read("a"), content);
        // The same state again is good for nothing.
        site.write("a", "old\n");
        let result = second_round(&mut client, overwrite(), said, &state);
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(site.read("a"), "old\n");
    }
}

#[test]
fn an_answer_counts_for_the_call_that_was_asked_about_and_for_no_other() {
    let site = site();
    let mut client = StdioMcpClient::stateless(&site, &["--preset", "ask"], forms());
    let (_, state) = first_round(&mut client);
    let yes = json!({"action": "accept", "content": {"approve": true}});
    for (arguments, state) in [
        (json!({"path": "a", "content": "evil\n"}), state.clone()),
        (overwrite(), json!(format!("{}A", state.as_str().unwrap()))),
        (overwrite(), json!("made up")),
    ] {
        let result = second_round(&mut client, arguments, yes.clone(), &state);
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(site.read("a"), "old\n");
    }
    // What was asked about may have changed meanwhile.
    site.write("a", "other\n");
    let result = second_round(&mut client, overwrite(), yes, &state);
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(site.read("a"), "other\n");
}

#[test]
fn a_state_of_another_session_is_good_for_nothing() {
    let site = site();
    let mut first = StdioMcpClient::stateless(&site, &["--preset", "ask"], forms());
    let (_, state) = first_round(&mut first);
    let mut second = StdioMcpClient::stateless(&site, &["--preset", "ask"], forms());
    let yes = json!({"action": "accept", "content": {"approve": true}});
    let result = second_round(&mut second, overwrite(), yes, &state);
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(site.read("a"), "old\n");
}

#[test]
fn an_approval_that_needs_a_person_is_not_elicited() {
    for start in [StdioMcpClient::with_handshake, StdioMcpClient::stateless] {
        let site = site();
        let mut client = start(&site, &["--preset", "ask"], forms());
        let params = json!({"name": "read_file", "arguments": {"path": ".env"}, "_meta": {"progressToken": "p"}});
        let id = client.send_request("tools/call", params);
        let told = client.next_of_method("notifications/progress");
        let message = told["params"]["message"].as_str().unwrap();
        let request = wait_for_request(&site);
        assert!(message.contains(&format!("ringfence approvals answer {request}")), "{message}");
        assert!(!client.received().iter().any(|message| message["method"] == "elicitation/create"));
        client.notify("notifications/cancelled", json!({"requestId": id}));
    }
}

#[test]
fn an_answer_from_elsewhere_ends_the_wait() {
    let site = site();
    for forms in [json!({}), forms()] {
        site.write("a", "old\n");
        let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], forms);
        let id = client.send_tool_call("write_file", overwrite());
        let request = wait_for_request(&site);
        let said = site.run(&["approvals", "answer", &request, "--yes"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(client.result(id)["isError"], false);
        assert_eq!(site.read("a"), "new\n");
    }
}

#[test]
fn a_client_that_cannot_wait_comes_again() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask", "--wait", "0"], json!({}));
    let first = client.call("write_file", overwrite());
    assert_eq!(first["isError"], true, "{first}");
    let request = wait_for_request(&site);
    let advice = first["content"][1]["text"].as_str().unwrap();
    assert!(advice.contains(&format!("ringfence approvals answer {request}")), "{first}");
    assert!(text(&first).contains("nothing was done yet"), "{first}");
    assert_eq!(site.run(&["approvals", "answer", &request, "--yes"]).code, Some(0));
    let second = client.call("write_file", overwrite());
    assert_eq!(second["isError"], false, "{second}");
    assert_eq!(site.read("a"), "new\n");
}

#[test]
fn a_deferred_request_ends_with_its_client() {
    for kill in [false, true] {
        let site = site();
        let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask", "--wait", "0"], json!({}));
        let first = client.call("write_file", overwrite());
        assert!(first.to_string().contains("nothing was done yet"), "{first}");
        let request = wait_for_request(&site);
        assert!(site.run(&["approvals", "show", &request]).out.contains("when the caller calls again"));
        if kill {
            client.kill();
        } else {
            assert_eq!(client.close().0, Some(0));
        }
        assert_eq!(site.run(&["approvals", "list", "--json"]).out.trim(), "[]", "kill: {kill}");
        let late = site.run(&["approvals", "answer", &request, "--yes"]);
        assert_ne!(late.code, Some(0), "a yes would do nothing: {late:?}");
    }
}

#[test]
fn a_client_that_declines_by_itself_is_not_called_the_user() {
    for action in ["decline", "cancel"] {
        let site = site();
        let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask"], forms());
        let id = client.send_tool_call("write_file", overwrite());
        let asked = client.next_of_method("elicitation/create");
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": action}}));
        let said = client.result(id).to_string();
        assert!(said.contains("without a recorded answer") && !said.contains("the user"), "{said}");
    }
}

#[test]
fn program_output_is_streamed_after_a_deferred_approval() {
    let site = site();
    let rules = "[approval]\nunattended = true\n[[rules]]\ndecision = \"ask\"\ntool = \"run_code\"\n";
    std::fs::write(site.config.join("ringfence/config.toml"), rules).unwrap();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask", "--wait", "0"], json!({}));
    let program = json!({"language": "bash", "code": "echo begun; sleep 60"});
    let first = client.call("run_code", program.clone());
    assert!(text(&first).contains("nothing was done yet"), "{first}");
    let request = wait_for_request(&site);
    approve_at_terminal(&site, &request);
    let params = json!({"name": "run_code", "arguments": program, "_meta": {"progressToken": "p"}});
    let id = client.send_request("tools/call", params);
    let is_output = |message: &Value| message["params"]["message"].as_str().is_some_and(|text| text.contains("begun"));
    client.until(|message| message["method"] == "notifications/progress" && is_output(message));
    client.notify("notifications/cancelled", json!({"requestId": id}));
}

#[test]
fn approve_never_elicits_nothing() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "ask", "--approve", "never"], forms());
    assert_eq!(client.call("write_file", overwrite())["isError"], true);
    assert_eq!(site.read("a"), "old\n");
}
