//! Who is asked about the calls of a client, and what their answers are worth.

use serde_json::{Value, json};

use crate::mcp_client::{Mcp, text};
use crate::mcp_traps::check_waits;
use crate::site::Site;
use crate::terminal::say_yes;

fn site() -> Site {
    let site = Site::new();
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
        let mut client = Mcp::with_handshake(&site, &["--preset", "ask"], forms());
        let id = client.ask_tool("write_file", overwrite());
        let asked = client.heard("elicitation/create");
        let message = asked["params"]["message"].as_str().unwrap();
        assert!(message.contains("-old") && message.contains("+new"), "{message}");
        assert_eq!(asked["params"]["requestedSchema"]["properties"]["approve"]["type"], "boolean");
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": said}));
        assert_eq!(client.result(id)["isError"], content == "old\n", "{said}");
        assert_eq!(site.read("a"), content, "{said}");
    }
}

#[test]
fn a_question_is_taken_back_when_its_call_is_cancelled() {
    let site = site();
    let mut client = Mcp::with_handshake(&site, &["--preset", "ask"], forms());
    let id = client.ask_tool("write_file", overwrite());
    let asked = client.heard("elicitation/create");
    client.notify("notifications/cancelled", json!({"requestId": id}));
    assert_eq!(client.heard("notifications/cancelled")["params"]["requestId"], asked["id"]);
}

#[test]
fn a_call_that_waits_for_its_client_does_not_outlive_it() {
    let site = site();
    let mut client = Mcp::with_handshake(&site, &["--preset", "ask"], forms());
    client.ask_tool("write_file", overwrite());
    client.heard("elicitation/create");
    let (code, _, _) = client.close();
    assert_eq!(code, Some(0));
    assert_eq!(site.read("a"), "old\n");
    assert_eq!(site.run(&["approvals", "list", "--json"]).out.trim(), "[]");
}

/// The first half of a call of a stateless client: what it is asked, and what it has to bring back.
fn asked(client: &mut Mcp) -> (Value, Value) {
    let result = client.call("write_file", overwrite());
    assert_eq!(result["resultType"], "input_required", "{result}");
    (result["inputRequests"]["approval"].clone(), result["requestState"].clone())
}

fn come_back(client: &mut Mcp, arguments: Value, said: Value, state: &Value) -> Value {
    let params = json!({"name": "write_file", "arguments": arguments, "inputResponses": {"approval": said}, "requestState": state});
    let id = client.ask("tools/call", params);
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
        let mut client = Mcp::stateless(&site, &["--preset", "ask"], forms());
        let (question, state) = asked(&mut client);
        assert_eq!(question["method"], "elicitation/create", "{question}");
        assert!(question["params"]["message"].as_str().unwrap().contains("+new"), "{question}");
        let result = come_back(&mut client, overwrite(), said.clone(), &state);
        assert_eq!(result["isError"], content == "old\n", "{result}");
        assert_eq!(site.read("a"), content);
        // The same state again is good for nothing.
        site.write("a", "old\n");
        let result = come_back(&mut client, overwrite(), said, &state);
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(site.read("a"), "old\n");
    }
}

#[test]
fn an_answer_counts_for_the_call_that_was_asked_about_and_for_no_other() {
    let site = site();
    let mut client = Mcp::stateless(&site, &["--preset", "ask"], forms());
    let (_, state) = asked(&mut client);
    let yes = json!({"action": "accept", "content": {"approve": true}});
    for (arguments, state) in [
        (json!({"path": "a", "content": "evil\n"}), state.clone()),
        (overwrite(), json!(format!("{}A", state.as_str().unwrap()))),
        (overwrite(), json!("made up")),
    ] {
        let result = come_back(&mut client, arguments, yes.clone(), &state);
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(site.read("a"), "old\n");
    }
    // What was asked about may have changed meanwhile.
    site.write("a", "other\n");
    let result = come_back(&mut client, overwrite(), yes, &state);
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(site.read("a"), "other\n");
}

#[test]
fn a_state_of_another_session_is_good_for_nothing() {
    let site = site();
    let mut first = Mcp::stateless(&site, &["--preset", "ask"], forms());
    let (_, state) = asked(&mut first);
    let mut second = Mcp::stateless(&site, &["--preset", "ask"], forms());
    let yes = json!({"action": "accept", "content": {"approve": true}});
    let result = come_back(&mut second, overwrite(), yes, &state);
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(site.read("a"), "old\n");
}

#[test]
fn where_a_persons_word_is_needed_the_client_is_not_asked_but_told() {
    for start in [Mcp::with_handshake, Mcp::stateless] {
        let site = site();
        let mut client = start(&site, &["--preset", "ask"], forms());
        let params = json!({"name": "read_file", "arguments": {"path": ".env"}, "_meta": {"progressToken": "p"}});
        let id = client.ask("tools/call", params);
        let told = client.heard("notifications/progress");
        let message = told["params"]["message"].as_str().unwrap();
        let request = check_waits(&site);
        assert!(message.contains(&format!("ringfence approvals answer {request}")), "{message}");
        assert!(!client.so_far().iter().any(|message| message["method"] == "elicitation/create"));
        client.notify("notifications/cancelled", json!({"requestId": id}));
    }
}

#[test]
fn an_answer_from_elsewhere_ends_the_wait() {
    let site = site();
    for forms in [json!({}), forms()] {
        site.write("a", "old\n");
        let mut client = Mcp::with_handshake(&site, &["--preset", "ask"], forms);
        let id = client.ask_tool("write_file", overwrite());
        let request = check_waits(&site);
        let said = site.run(&["approvals", "answer", &request, "--yes"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(client.result(id)["isError"], false);
        assert_eq!(site.read("a"), "new\n");
    }
}

#[test]
fn a_client_that_cannot_wait_comes_again() {
    let site = site();
    let mut client = Mcp::with_handshake(&site, &["--preset", "ask", "--wait", "0"], json!({}));
    let first = client.call("write_file", overwrite());
    assert_eq!(first["isError"], true, "{first}");
    let request = check_waits(&site);
    let advice = first["content"][1]["text"].as_str().unwrap();
    assert!(advice.contains(&format!("ringfence approvals answer {request}")), "{first}");
    assert!(text(&first).contains("nothing was done yet"), "{first}");
    assert_eq!(site.run(&["approvals", "answer", &request, "--yes"]).code, Some(0));
    let second = client.call("write_file", overwrite());
    assert_eq!(second["isError"], false, "{second}");
    assert_eq!(site.read("a"), "new\n");
}

#[test]
fn a_request_ends_with_the_client_that_it_was_put_off_for() {
    for kill in [false, true] {
        let site = site();
        let mut client = Mcp::with_handshake(&site, &["--preset", "ask", "--wait", "0"], json!({}));
        let first = client.call("write_file", overwrite());
        assert!(first.to_string().contains("nothing was done yet"), "{first}");
        let request = check_waits(&site);
        assert!(site.run(&["approvals", "show", &request]).out.contains("when it calls again"));
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
        let mut client = Mcp::with_handshake(&site, &["--preset", "ask"], forms());
        let id = client.ask_tool("write_file", overwrite());
        let asked = client.heard("elicitation/create");
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": action}}));
        let said = client.result(id).to_string();
        assert!(said.contains("no person is known to have answered") && !said.contains("the user"), "{said}");
    }
}

#[test]
fn what_a_program_prints_is_heard_also_when_its_call_was_put_off() {
    let site = site();
    let rules = "[approval]\nunattended = true\n[[rules]]\ndecision = \"ask\"\ntool = \"run_code\"\n";
    std::fs::write(site.config.join("ringfence/config.toml"), rules).unwrap();
    let mut client = Mcp::with_handshake(&site, &["--preset", "ask", "--wait", "0"], json!({}));
    let program = json!({"language": "bash", "code": "echo begun; sleep 60"});
    let first = client.call("run_code", program.clone());
    assert!(text(&first).contains("nothing was done yet"), "{first}");
    let request = check_waits(&site);
    say_yes(&site, &request);
    let params = json!({"name": "run_code", "arguments": program, "_meta": {"progressToken": "p"}});
    let id = client.ask("tools/call", params);
    let is_output = |message: &Value| message["params"]["message"].as_str().is_some_and(|text| text.contains("begun"));
    client.until(|message| message["method"] == "notifications/progress" && is_output(message));
    client.notify("notifications/cancelled", json!({"requestId": id}));
}

#[test]
fn where_nobody_shall_be_asked_nobody_is() {
    let site = site();
    let mut client = Mcp::with_handshake(&site, &["--preset", "ask", "--approve", "never"], forms());
    assert_eq!(client.call("write_file", overwrite())["isError"], true);
    assert_eq!(site.read("a"), "old\n");
}
