//! Answers through the API: previews of other arguments, calls that wait for their callers, runs of workflows.

use std::thread;

use serde_json::{Value, json};

use crate::api_client::TestApiServer;
use crate::site::TestSite;

fn site() -> TestSite {
    let site = TestSite::new();
    site.write("a.txt", "old\n");
    site
}

#[test]
fn modified_arguments_are_previewed_before_approval() {
    let site = site();
    let server = TestApiServer::start(&site, &[]);
    let (agent, page) = (server.agent(&site, "agent"), server.page());
    let session = agent.create_session(&json!({}));
    thread::scope(|scope| {
        let write = json!({"path": "a.txt", "content": "new\n"});
        let call = scope.spawn(|| agent.call(&session, "write_file", write));
        let request = page.request();
        let path = format!("/v1/approvals/{}/preview", request["id"].as_str().unwrap());
        let preview = |args: Value| page.post(&path, &json!({"modifiedArgs": args}));
        let shown = preview(json!({"path": "a.txt", "content": "other\n"}));
        assert_eq!(shown.status, 200, "{shown:?}");
        assert!(shown.json()["preview"].as_str().unwrap().contains("-old\n+other"), "{}", shown.json());
        for bad in [json!({"path": "../x", "content": ""}), json!({"content": "x"})] {
            let got = preview(bad.clone());
            assert_eq!(got.status, 400, "{bad}: {got:?}");
        }
        assert_eq!(site.read("a.txt"), "old\n");
        let yes = json!({"approved": true, "modifiedArgs": {"path": "a.txt", "content": "other\n"}});
        let answered = page.answer(&request, &yes);
        assert_eq!((answered.status, &answered.json()["waitsForCaller"]), (200, &json!(false)));
        assert_eq!(call.join().unwrap()["error"], Value::Null);
    });
    assert_eq!(site.read("a.txt"), "other\n");
}

#[test]
fn a_yes_to_a_call_whose_caller_is_away_says_so_and_ends_with_the_session() {
    let site = site();
    let server = TestApiServer::start(&site, &["--wait", "0"]);
    let (agent, page) = (server.agent(&site, "agent"), server.page());
    let session = agent.create_session(&json!({}));
    let write = json!({"path": "a.txt", "content": "new\n"});
    let pending = agent.call(&session, "write_file", write.clone());
    assert_eq!(pending["error"], "APPROVAL_PENDING", "{pending}");
    assert!(pending["reply"].as_str().unwrap().contains("\"code\":\"APPROVAL_PENDING\""), "{pending}");
    let request = page.request();
    assert_eq!(request["suspended"], true, "{request}");
    let path = format!("/v1/approvals/{}/preview", request["id"].as_str().unwrap());
    assert_eq!(page.post(&path, &json!({"modifiedArgs": write})).status, 409);
    let answered = page.answer(&request, &json!({"approved": true}));
    assert_eq!((answered.status, &answered.json()["waitsForCaller"]), (200, &json!(true)));
    assert_eq!(site.read("a.txt"), "old\n");
    // An unanswered one is withdrawn with the session: no call waits for an answer.
    let second = agent.create_session(&json!({}));
    agent.call(&second, "write_file", write);
    let request = page.request_of(&second);
    assert_eq!(agent.send("DELETE", &format!("/v1/sessions/{second}"), None).status, 200);
    assert_eq!(page.answer(&request, &json!({"approved": true})).status, 404);
}

/// What a program left exists in its call only, so the call is not deferred.
#[test]
fn changes_of_a_program_wait_as_long_as_the_caller_says() {
    let site = site();
    let server = TestApiServer::start(&site, &[]);
    let agent = server.agent(&site, "agent");
    let session = agent.create_session(&json!({}));
    let arguments = json!({"language": "bash", "code": "echo new > a.txt; echo new > fresh"});
    let body = json!({"name": "run_code", "arguments": arguments, "wait": 0});
    let made = agent.post(&format!("/v1/sessions/{session}/calls"), &body).json();
    assert_eq!((&made["error"], &made["suspended"]), (&json!("APPROVAL_DENIED"), &Value::Null), "{made}");
    let reply: Value = serde_json::from_str(made["reply"].as_str().unwrap()).unwrap();
    let details = &reply["error"]["details"];
    assert_eq!((&details["committed"], &details["notKept"][0]["path"]), (&json!("some"), &json!("a.txt")), "{reply}");
    assert_eq!((site.read("a.txt").as_str(), site.read("fresh").as_str()), ("old\n", "new\n"));
}

#[test]
fn a_session_is_begun_in_a_run_of_its_own() {
    let site = site();
    for run in ["one", "two"] {
        assert_eq!(site.run(&["workflow", "new", "--run", run]).code, Some(0));
    }
    let server = TestApiServer::start(&site, &[]);
    let agent = server.agent(&site, "agent");
    let begin = |run: &str| agent.create_session(&json!({"dialect": "crewagent", "run": run}));
    let (one, two) = (begin("one"), begin("two"));
    for (session, run) in [(&one, "one"), (&two, "two")] {
        let read = agent.call(session, "fs.read", json!({"path": "@state/workflow.md"}));
        assert!(read["reply"].as_str().unwrap().contains(&format!("runId: \\\"{run}\\\"")), "{read}");
        assert_eq!(agent.get(&format!("/v1/sessions/{session}"))["run"], run);
    }
    let none = agent.create_session(&json!({"dialect": "crewagent"}));
    assert_ne!(agent.call(&none, "fs.read", json!({"path": "@state/workflow.md"}))["error"], Value::Null);
    let missing = agent.post("/v1/sessions", &json!({"dialect": "crewagent", "run": "three"}));
    assert_eq!(missing.status, 404, "{missing:?}");
    assert_eq!(agent.post("/v1/sessions", &json!({"run": "../one"})).status, 400);
}

#[test]
fn listings_say_whether_calls_require_approval() {
    let site = site();
    for (preset, expected) in [
        (
            "ask",
            [
                ("list_directory", "never"),
                ("read_file", "sometimes"),
                ("write_file", "sometimes"),
                ("delete_file", "always"),
            ],
        ),
        (
            "edits",
            [
                ("list_directory", "never"),
                ("read_file", "sometimes"),
                ("write_file", "sometimes"),
                ("delete_file", "sometimes"),
            ],
        ),
    ] {
        let server = TestApiServer::start(&site, &["--preset", preset]);
        let agent = server.agent(&site, &format!("agent-{preset}"));
        let by_api = agent.get("/v1/tools?format=full")["tools"].clone();
        let by_cli = site.run(&["tools", "--format", "full", "--preset", preset]).out;
        let by_cli: Value = serde_json::from_str(&by_cli).unwrap();
        for listing in [by_api, by_cli] {
            for (name, requires) in expected {
                let tool = listing.as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
                assert_eq!(tool["requiresApproval"], requires, "{preset} {name}");
            }
        }
    }
}
