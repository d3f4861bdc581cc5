//! The API of `ringfence serve`: responses by token, and stored state.

use std::sync::Arc;

use ringfence::store::SqliteStore;
use ringfence::store::tokens::TokenStore;
use ringfence_kernel::AuthScope;
use ringfence_testkit::patience::wait_for;
use serde_json::{Value, json};

use crate::agent_requests::ModelStub;
use crate::api_client::{ApiTestClient, TestApiServer};
use crate::site::TestSite;

#[test]
fn a_call_through_the_api_says_what_the_command_line_says() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "one\n").unwrap();
    let server = TestApiServer::start(&site, &[]);
    let agent = server.agent(&site, "agent");
    for dialect in ["standard", "miniclaw", "crewagent"] {
        let session = agent.create_session(&json!({"dialect": dialect}));
        let (tool, path) = if dialect == "crewagent" { ("fs.read", "@project/a.txt") } else { ("read_file", "a.txt") };
        for path in [path, "../outside/secret", "missing"] {
            let arguments = json!({"path": path});
            let said = site.run(&["--dialect", dialect, "call", tool, &arguments.to_string()]);
            let got = agent.call(&session, tool, arguments);
            assert_eq!(got["reply"].as_str().unwrap(), said.out, "{dialect} {path}");
            assert_eq!(got["error"].is_null(), said.code == Some(0), "{got}");
        }
    }
}

#[test]
fn the_calls_of_a_message_are_answered_in_their_order() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "one\n").unwrap();
    let server = TestApiServer::start(&site, &["--preset", "edits"]);
    let agent = server.agent(&site, "agent");
    let session = agent.create_session(&json!({}));
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [
        call("c1", "write_file", json!({"path": "b.txt", "content": "two\n"})),
        call("c2", "read_file", json!({"path": "b.txt"})),
        call("c3", "no_such_tool", json!({})),
        {"id": "c4", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\":"}},
        call("c5", "read_file", json!({"path": "a.txt"})),
    ]});
    let got = agent.post(&format!("/v1/sessions/{session}/messages"), &message).json();
    let messages = got["messages"].as_array().unwrap();
    let ids: Vec<&str> = messages.iter().map(|message| message["tool_call_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["c1", "c2", "c3", "c4", "c5"]);
    assert!(messages.iter().all(|message| message["role"] == "tool"));
    let content = |index: usize| messages[index]["content"].as_str().unwrap();
    assert!(content(1).contains("two") && content(4).contains("one"), "{got}");
    assert!(content(2).contains("UNKNOWN_TOOL") || content(2).contains("unknown tool"), "{got}");
    assert!(content(3).contains("INVALID_ARGS"), "{got}");
    let twice = json!({"tool_calls": [call("c", "read_file", json!({})), call("c", "read_file", json!({}))]});
    assert_eq!(agent.post(&format!("/v1/sessions/{session}/messages"), &twice).status, 400);
}

#[test]
fn an_agents_token_makes_sessions_on_declared_workspaces_alone_and_sees_its_own() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let (one, other) = (server.agent(&site, "one"), server.agent(&site, "other"));
    let mine = one.create_session(&json!({}));
    other.create_session(&json!({}));
    let listed = one.get("/v1/sessions");
    let ids: Vec<&str> = listed["sessions"].as_array().unwrap().iter().map(|s| s["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [mine.as_str()]);
    for elsewhere in ["elsewhere", "/etc", "..", site.outside.to_str().unwrap()] {
        assert_eq!(one.post("/v1/sessions", &json!({"workspace": elsewhere})).status, 404, "{elsewhere}");
    }
}

#[test]
fn sessions_are_begun_on_declared_workspaces_and_limits_only_tighten() {
    let site = TestSite::new();
    let second = site.root().join("second");
    std::fs::create_dir(&second).unwrap();
    std::fs::write(second.join("b.txt"), "from the second\n").unwrap();
    let config = site.current.join("config.toml");
    std::fs::write(&config, format!("[workspaces]\nsecond = {:?}\n", second.to_str().unwrap())).unwrap();
    let server = TestApiServer::start(&site, &["--config", config.to_str().unwrap()]);
    let agent = server.agent(&site, "agent");
    assert_eq!(agent.get("/v1/me")["workspaces"], json!(["main", "second"]));
    let session = agent.create_session(&json!({"workspace": "second"}));
    assert!(
        agent.call(&session, "read_file", json!({"path": "b.txt"}))["reply"].to_string().contains("from the second")
    );
    let tight = agent.create_session(&json!({"workspace": "second", "limits": {"max_read_bytes": 4}}));
    assert!(
        agent.call(&tight, "read_file", json!({"path": "b.txt"}))["reply"].to_string().contains("truncated\\\":true")
    );
    let loose = agent.create_session(&json!({"limits": {"max_read_bytes": 1_000_000_000_000_u64}}));
    std::fs::write(site.workspace.join("large"), vec![b'x'; 11 << 20]).unwrap();
    assert!(
        agent.call(&loose, "read_file", json!({"path": "large"}))["reply"].to_string().contains("truncated\\\":true")
    );
    assert_eq!(agent.post("/v1/sessions", &json!({"limits": {"no_such": 1}})).status, 400);
}

/// An overwrite that waits, in a thread of its own.
fn overwrite<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    agent: &'scope ApiTestClient<'_>,
    session: &'scope str,
) -> std::thread::ScopedJoinHandle<'scope, Value> {
    scope.spawn(move || agent.call(session, "write_file", json!({"path": "a.txt", "content": "new\n"})))
}

#[test]
fn an_overwrite_waits_for_a_person_and_can_be_undone() {
    let site = TestSite::new();
    let file = site.workspace.join("a.txt");
    let contents = || std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "old\n").unwrap();
    let server = TestApiServer::start(&site, &[]);
    let (agent, page) = (server.agent(&site, "agent"), server.page());
    let session = agent.create_session(&json!({}));
    std::thread::scope(|scope| {
        let call = overwrite(scope, &agent, &session);
        let request = page.request();
        assert!(request["preview"].as_str().unwrap().contains("-old\n+new"), "{request}");
        assert_eq!(page.answer(&request, &json!({"approved": false, "reason": "not today"})).status, 200);
        let got = call.join().unwrap();
        assert!(got["error"] == "APPROVAL_DENIED" && got["reply"].to_string().contains("not today"), "{got}");
    });
    assert_eq!(contents(), "old\n");
    std::thread::scope(|scope| {
        let call = overwrite(scope, &agent, &session);
        assert_eq!(page.answer(&page.request(), &json!({"approved": true})).status, 200);
        assert_eq!(call.join().unwrap()["error"], Value::Null);
    });
    assert_eq!(contents(), "new\n");
    std::thread::scope(|scope| {
        let call = overwrite(scope, &agent, &session);
        let changed = json!({"path": "a.txt", "content": "edited\n"});
        assert_eq!(page.answer(&page.request(), &json!({"approved": true, "modifiedArgs": changed})).status, 200);
        assert_eq!(call.join().unwrap()["error"], Value::Null);
    });
    assert_eq!(contents(), "edited\n");
    let changes = page.get("/v1/changes");
    let newest = changes["changes"][0]["change"].as_str().unwrap();
    assert!(page.get(&format!("/v1/changes/{newest}"))["diff"].to_string().contains("+edited"));
    assert!(page.post("/v1/undo", &json!({"dryRun": true})).json()["diff"].to_string().contains("-edited"));
    assert_eq!(contents(), "edited\n");
    assert_eq!(page.post("/v1/undo", &json!({})).status, 200);
    assert_eq!(contents(), "new\n");
    assert_eq!(page.post("/v1/redo", &json!({})).status, 200);
    assert_eq!(contents(), "edited\n");
    std::fs::write(&file, "by hand\n").unwrap();
    let conflict = page.post("/v1/undo", &json!({}));
    assert_eq!((conflict.status, contents().as_str()), (409, "by hand\n"));
    assert_eq!(page.post("/v1/undo", &json!({"session": session, "force": true})).status, 200);
    assert_eq!(contents(), "old\n");
}

#[test]
fn of_two_answers_at_once_one_counts() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "old\n").unwrap();
    let server = TestApiServer::start(&site, &[]);
    let (agent, page) = (server.agent(&site, "agent"), server.page());
    for _ in 0..5 {
        // A session that hears no too often is paused.
        let session = agent.create_session(&json!({}));
        std::thread::scope(|scope| {
            let call = overwrite(scope, &agent, &session);
            let request = page.request();
            let answers = [true, false].map(|approved| {
                let (page, request) = (page.clone(), request.clone());
                scope.spawn(move || page.answer(&request, &json!({"approved": approved})).status)
            });
            let statuses = answers.map(|answer| answer.join().unwrap());
            let done = call.join().unwrap();
            let lost = |status: u16| status == 409 || status == 404;
            match statuses {
                [200, second] if lost(second) => assert_eq!(done["error"], Value::Null),
                [first, 200] if lost(first) => assert_eq!(done["error"], "APPROVAL_DENIED"),
                _ => panic!("{statuses:?}"),
            }
        });
    }
}

#[test]
fn acknowledged_state_survives_a_kill() {
    let site = TestSite::new();
    let file = site.workspace.join("a.txt");
    std::fs::write(&file, "old\n").unwrap();
    let mut server = TestApiServer::start(&site, &[]);
    let (token, session, put_off) = {
        let agent = server.agent(&site, "agent");
        let session = agent.create_session(&json!({"label": "kept"}));
        let call =
            json!({"id": "c1", "name": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}, "wait": 0});
        let put_off = agent.post(&format!("/v1/sessions/{session}/calls"), &call).json();
        (agent.token, session, put_off["suspended"].clone())
    };
    assert!(put_off["token"].is_string(), "{put_off}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = TestApiServer::start(&site, &[]);
    let (agent, page) = (ApiTestClient { server: &server, token }, server.page());
    let kept = agent.get(&format!("/v1/sessions/{session}"));
    assert_eq!((&kept["label"], &kept["ended"]), (&json!("kept"), &Value::Null));
    let request = page.request();
    assert_eq!(request["id"], put_off["request"]);
    assert_eq!(page.answer(&request, &json!({"approved": true})).status, 200);
    let back = json!({"token": put_off["token"], "id": "c1", "name": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}});
    let got = agent.post(&format!("/v1/sessions/{session}/calls/resume"), &back).json();
    assert_eq!(got["error"], Value::Null, "{got}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "new\n");
    // A second time it is good for nothing.
    let again = agent.post(&format!("/v1/sessions/{session}/calls/resume"), &back).json();
    assert_eq!(again["error"], "APPROVAL_DENIED", "{again}");
    assert_eq!(agent.send("DELETE", &format!("/v1/sessions/{session}"), None).status, 200);
    let call = json!({"name": "read_file", "arguments": {"path": "a.txt"}});
    assert_eq!(agent.post(&format!("/v1/sessions/{session}/calls"), &call).status, 410);
}

#[test]
fn events_tell_in_order_what_happens_and_can_be_taken_up_again() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "contents of a\n").unwrap();
    let server = TestApiServer::start(&site, &[]);
    let (one, other, page) = (server.agent(&site, "one"), server.agent(&site, "other"), server.page());
    let (mine, theirs) = (one.create_session(&json!({})), other.create_session(&json!({})));
    let mut watching = one.events("/v1/events");
    let mut all = page.events("/v1/events");
    other.call(&theirs, "read_file", json!({"path": "a.txt"}));
    one.call(&mine, "read_file", json!({"path": "a.txt"}));
    let (kind, first) = watching.next();
    assert_eq!((kind.as_str(), &first["session"]), ("begin", &json!(mine)), "the other's is not heard");
    let (kind, end) = watching.next();
    assert_eq!((kind.as_str(), &end["error"]), ("end", &Value::Null));
    assert!(end["reply"].to_string().contains("contents of a"));
    assert_eq!(all.next_of("begin")["session"], theirs);
    assert_eq!(all.next_of("begin")["session"], mine);
    let mut later = one.events(&format!("/v1/sessions/{mine}/events?after={}", first["id"]));
    assert_eq!(later.next().1["id"], end["id"]);
    assert_eq!(one.events("/v1/events?after=1").next().0, "gap");
    std::thread::scope(|scope| {
        let call = overwrite(scope, &one, &mine);
        let request = all.next_of("request")["request"].clone();
        assert!(request["preview"].to_string().contains("+new"), "{request}");
        page.answer(&request, &json!({"approved": false}));
        call.join().unwrap();
        assert_eq!(all.next_of("answered")["request"], request["id"]);
    });
    one.send("DELETE", &format!("/v1/sessions/{mine}"), None);
    assert!(all.next_of("session")["session"]["ended"].is_string());
}

#[test]
fn a_call_that_is_cancelled_or_whose_client_leaves_ends_its_program() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--preset", "edits"]);
    let (agent, page) = (server.agent(&site, "agent"), server.page());
    let session = agent.create_session(&json!({}));
    let mut all = page.events("/v1/events");
    let endless = json!({"language": "bash", "code": "echo begun; while :; do :; done"});
    let call = json!({"id": "endless", "name": "run_code", "arguments": endless});
    std::thread::scope(|scope| {
        let running = scope.spawn(|| agent.post(&format!("/v1/sessions/{session}/calls"), &call).json());
        let begun = all.next_of("progress");
        assert_eq!(begun["text"], "begun\n");
        let cancelled = agent.post(&format!("/v1/sessions/{session}/calls/endless/cancel"), &json!({}));
        assert_eq!(cancelled.status, 200);
        assert_eq!(running.join().unwrap()["error"], "CANCELLED");
    });
    let token = format!("Bearer {}", agent.token);
    let path = format!("/v1/sessions/{session}/calls");
    let gone = server.open("POST", &path, &[("Authorization", &token)], Some(&call.to_string()));
    all.next_of("progress");
    drop(gone);
    loop {
        let (kind, data) = all.next();
        if kind == "end" && data["callId"] == "endless" && data["error"] == "CANCELLED" {
            break;
        }
    }
}

#[test]
fn foreign_hosts_origins_and_large_bodies_are_rejected() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--rate", "5"]);
    let agent = server.agent(&site, "agent");
    let good = format!("Bearer {}", agent.token);
    let port = server.address.rsplit(':').next().unwrap();
    let status = |method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>| {
        server.send(method, path, headers, body).status
    };
    for path in ["/v1/me", "/", "/page/main.js"] {
        assert_eq!(status("GET", path, &[("Authorization", &good), ("Host", "evil.example")], None), 421, "{path}");
        assert_eq!(status("GET", path, &[("Authorization", &good), ("Origin", "http://evil.example")], None), 403);
    }
    let (own, other) = (format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}"));
    assert_eq!(status("GET", "/v1/me", &[("Authorization", &good), ("Origin", &own)], None), 200);
    assert_eq!(status("GET", "/v1/me", &[("Authorization", &good), ("Origin", &other)], None), 403);
    for bad in ["", "Bearer", "Bearer rft_0", &format!("Basic {}", agent.token)] {
        assert_eq!(status("GET", "/v1/me", &[("Authorization", bad)], None), 401, "{bad}");
    }
    assert_eq!(status("GET", "/v1/nothing", &[], None), 404);
    let page = server.send("GET", "/", &[], None);
    let policy = page.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(page.header("set-cookie").is_none());
    let login = |body: &str, kind: &str| status("POST", "/v1/login", &[("Content-Type", kind)], Some(body));
    assert_eq!(login("{\"code\":\"x\"}", "application/json"), 401);
    assert_eq!(login("{\"code\":\"x\",\"code\":\"y\"}", "application/json"), 400);
    assert_eq!(login("[\"x\"]", "application/json"), 400);
    assert_eq!(login("{\"code\":\"x\"}", "text/plain"), 415);
    assert_eq!(login(&format!("{{\"code\":\"{}\"}}", "x".repeat(40 << 20)), "application/json"), 413);
    let code = json!({"code": server.code}).to_string();
    assert_eq!(login(&code, "application/json"), 200);
    assert_eq!(login(&code, "application/json"), 401, "a link is good once");
    let statuses: Vec<u16> = (0..30).map(|_| status("GET", "/v1/me", &[("Authorization", &good)], None)).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[test]
fn the_document_has_every_path_and_every_path_is_there() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let document = server.send("GET", "/v1/openapi.json", &[], None).json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 20);
    let page = server.page();
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            // A method that a path does not have says so; one that it has does not.
            let path = path.replace(['{', '}'], "");
            if path.ends_with("/events") {
                continue;
            }
            let got = page.send(&method.to_uppercase(), &path, (method == "post").then_some(&json!({"x": 1})));
            assert_ne!(got.status, 405, "{method} {path}");
            assert!(got.status < 500, "{method} {path}: {}", String::from_utf8_lossy(&got.body));
        }
        let got = page.send("PATCH", &path.replace(['{', '}'], ""), None);
        assert_eq!(got.status, 405, "{path}");
        assert!(got.header("allow").is_some());
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.send("GET", path, &[], None).status, 200, "{path}");
    }
    let metrics = page.send("GET", "/metrics", None);
    assert!(String::from_utf8_lossy(&metrics.body).contains("ringfence_requests_total"));
}

#[test]
fn a_person_sees_files_the_log_and_the_rules() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.bin"), [0, 159, 146, 150]).unwrap();
    std::fs::write(site.workspace.join("a.txt"), "<script>alert(1)</script>").unwrap();
    let server = TestApiServer::start(&site, &[]);
    let page = server.page();
    assert!(page.get("/v1/files").to_string().contains("a.txt"));
    assert!(page.get("/v1/files/text?path=a.txt")["content"].to_string().contains("<script>"));
    let raw = page.send("GET", "/v1/files/raw?path=a.bin", None);
    assert_eq!((raw.status, raw.body.as_slice()), (200, [0, 159, 146, 150].as_slice()));
    assert_eq!(raw.header("content-disposition"), Some("attachment"));
    assert_eq!(
        (raw.header("content-type"), raw.header("x-content-type-options")),
        (Some("application/octet-stream"), Some("nosniff"))
    );
    for outside in ["..%2Foutside%2Fsecret", "%2Fetc%2Fpasswd", "no"] {
        let got = page.send("GET", &format!("/v1/files/text?path={outside}"), None);
        assert!(
            (400..500).contains(&got.status) && !String::from_utf8_lossy(&got.body).contains("SECRET"),
            "{outside}"
        );
    }
    let records = page.get("/v1/audit?limit=3");
    assert_eq!(records["records"].as_array().unwrap().len(), 3);
    assert_eq!(page.get("/v1/audit?after=0&limit=1")["records"][0]["seq"], 1);
    assert_eq!(page.get("/v1/audit/verify")["ok"], true);
    assert!(page.get("/v1/policy")["layers"].as_array().is_some_and(|layers| !layers.is_empty()));
    let judged = json!({"tool": "write_file", "arguments": {"path": "a.txt", "content": "x"}});
    assert_eq!(page.post("/v1/policy/explain", &judged).json()["decision"], "ask");
}

#[test]
fn renamed_keys_are_sent_under_both_names_for_one_release() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let page = server.page();
    let report = page.get("/v1/doctor");
    assert!(!report["isolation"].as_array().unwrap().is_empty());
    assert_eq!(report["isolation"], report["walls"]);
    let mechanism = &report["isolation"][0];
    assert!(mechanism["mechanism"].is_string() && mechanism["available"].is_boolean(), "{mechanism}");
    assert_eq!([&mechanism["mechanism"], &mechanism["available"]], [&mechanism["wall"], &mechanism["stands"]]);
    let tools = page.get("/v1/tools")["tools"].clone();
    let read = tools.as_array().unwrap().iter().find(|tool| tool["name"] == "read_file").unwrap();
    assert_eq!([&read["readOnly"], &read["onlyReads"]], [true, true]);
    let both = json!({
        "readOnly": true, "onlyReads": true, "destructive": false, "destroys": false,
        "openWorld": false, "reachesOut": false, "idempotent": true, "sameAgain": true,
    });
    assert_eq!(read["effect"], both);
    let document = page.get("/v1/openapi.json");
    let effect = &document["components"]["schemas"]["ToolEffect"]["properties"];
    assert_eq!(effect["reachesOut"]["deprecated"], true);
    assert!(effect["openWorld"].get("deprecated").is_none(), "{effect}");
}

/// A config with a model that writes a file and then says so.
pub(crate) fn scripted_model_config(site: &TestSite) -> String {
    let script = site.current.join("script.jsonl");
    let lines = [
        json!({"text": "I write it.", "calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "new\n"}}]}),
        json!({"text": "It is written."}),
    ];
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let config = site.current.join("config.toml");
    let text = format!("[agents.defaults]\nprovider = \"script\"\nscript = {:?}\n", script.to_str().unwrap());
    std::fs::write(&config, text).unwrap();
    config.to_str().unwrap().to_owned()
}

/// Waits until a run is over, and gives it.
pub(crate) fn wait_for_run(caller: &ApiTestClient<'_>, run: &str) -> Value {
    wait_for("the end of the run", || {
        let run = caller.get(&format!("/v1/runs/{run}"));
        (run["state"] != "running").then_some(run)
    })
}

#[test]
fn a_run_asks_at_the_page_and_tells_what_was_truly_done() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "old\n").unwrap();
    let config = scripted_model_config(&site);
    let server = TestApiServer::start(&site, &["--config", &config]);
    let (agent, other, page) = (server.agent(&site, "agent"), server.agent(&site, "other"), server.page());
    assert_eq!(page.get("/v1/runs")["available"], true);
    let begun = agent.post("/v1/runs", &json!({"prompt": "write it"}));
    assert_eq!(begun.status, 201, "{}", String::from_utf8_lossy(&begun.body));
    let run = begun.json()["id"].as_str().unwrap().to_owned();
    let request = page.request();
    assert!(request["preview"].to_string().contains("+new"), "{request}");
    assert_eq!(other.send("GET", &format!("/v1/runs/{run}"), None).status, 404);
    assert_eq!(other.post(&format!("/v1/runs/{run}/cancel"), &json!({})).status, 404);
    assert_eq!(other.get("/v1/runs")["runs"], json!([]));
    assert_eq!(page.answer(&request, &json!({"approved": true})).status, 200);
    let done = wait_for_run(&agent, &run);
    assert_eq!((&done["state"], &done["outcome"]["text"]), (&json!("answered"), &json!("It is written.")), "{done}");
    assert!(done["outcome"]["ledger"].to_string().contains("a.txt"), "{done}");
    assert_eq!(std::fs::read_to_string(site.workspace.join("a.txt")).unwrap(), "new\n");
    let mut told = agent.events(&format!("/v1/runs/{run}/events?after=0"));
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "finished") {
        kinds.push(told.next().1["type"].as_str().unwrap().to_owned());
    }
    for kind in ["step", "text", "call", "waiting", "result", "finished"] {
        assert!(kinds.iter().any(|told| told == kind), "{kind}: {kinds:?}");
    }
}

#[test]
fn a_run_has_the_tools_of_its_model_s_family() {
    let site = TestSite::new();
    let model = ModelStub::with_message(json!({"content": "Hello."}));
    let config = site.current.join("config.toml");
    std::fs::write(&config, model.config("dialect = \"auto\"\n", "claude-opus-4-8")).unwrap();
    let server = TestApiServer::start(&site, &["--config", config.to_str().unwrap()]);
    let agent = server.agent(&site, "agent");
    let begun = agent.post("/v1/runs", &json!({"prompt": "hello"})).json();
    let done = wait_for_run(&agent, begun["id"].as_str().unwrap());
    assert_eq!(done["outcome"]["text"], "Hello.", "{done}");
    let tools = model.tools(0);
    assert!(tools.contains(&"Read".to_owned()) && !tools.contains(&"read_file".to_owned()), "{tools:?}");
    // Sessions of programs are not of a model.
    let session = agent.create_session(&json!({}));
    assert_eq!(agent.call(&session, "list_directory", json!({"path": "."}))["error"], Value::Null);
}

#[test]
fn a_run_that_was_cut_off_is_known_and_goes_on() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "old\n").unwrap();
    let config = scripted_model_config(&site);
    let mut server = TestApiServer::start(&site, &["--config", &config]);
    let run = {
        let page = server.page();
        let run = page.post("/v1/runs", &json!({"prompt": "write it"})).json()["id"].as_str().unwrap().to_owned();
        page.request();
        run
    };
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = TestApiServer::start(&site, &["--config", &config]);
    let page = server.page();
    assert_eq!(page.get(&format!("/v1/runs/{run}"))["state"], "interrupted");
    let again = page.post(&format!("/v1/runs/{run}/resume"), &json!({}));
    assert_eq!(again.status, 200, "{}", String::from_utf8_lossy(&again.body));
    assert_eq!(page.answer(&page.request(), &json!({"approved": true})).status, 200);
    assert_eq!(wait_for_run(&page, &run)["state"], "answered");
    let cancelled = page.post("/v1/runs", &json!({"prompt": "again"})).json()["id"].as_str().unwrap().to_owned();
    page.request();
    assert_eq!(page.post(&format!("/v1/runs/{cancelled}/cancel"), &json!({})).status, 200);
    assert_eq!(wait_for_run(&page, &cancelled)["state"], "cancelled");
}

#[test]
fn without_a_model_a_run_says_how_to_get_one() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let page = server.page();
    assert_eq!(page.get("/v1/runs")["available"], false);
    let got = page.post("/v1/runs", &json!({"prompt": "hello"}));
    assert_eq!(got.status, 503);
    assert!(got.json()["error"]["message"].to_string().contains("base_url"));
}

/// A token with these scopes, which a person would have made at a terminal.
pub(crate) fn token<'a>(
    server: &'a TestApiServer,
    site: &TestSite,
    name: &str,
    scopes: &[AuthScope],
) -> ApiTestClient<'a> {
    let token = TokenStore::new(Arc::new(SqliteStore::new(&site.state)))
        .create(name, scopes.iter().copied().collect())
        .unwrap();
    ApiTestClient { server, token }
}

#[test]
fn a_caller_chooses_the_dialect_and_not_the_policy() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "old\n").unwrap();
    let server = TestApiServer::start(&site, &["--wait", "0"]);
    let agent = server.agent(&site, "agent");
    for (dialect, tool, path) in [("miniclaw", "write_file", "a.txt"), ("crewagent", "fs.write", "@project/a.txt")] {
        let session = agent.create_session(&json!({"dialect": dialect}));
        let got = agent.call(&session, tool, json!({"path": path, "content": "new\n"}));
        assert!(!got["error"].is_null(), "{got}");
        assert_eq!(std::fs::read_to_string(site.workspace.join("a.txt")).unwrap(), "old\n", "{dialect}");
    }
    drop(server);
    let config = site.current.join("agents.toml");
    std::fs::write(&config, "[agents.tight.tools]\ndeny = [\"write_file\"]\n[agents.loose]\n").unwrap();
    let server = TestApiServer::start(&site, &["--config", config.to_str().unwrap(), "--agent", "tight"]);
    let agent = server.agent(&site, "other");
    assert_eq!(agent.post("/v1/sessions", &json!({"agent": "loose"})).status, 403);
    assert_eq!(agent.send("GET", "/v1/tools?agent=loose", None).status, 403);
    assert_eq!(agent.post("/v1/runs", &json!({"agent": "loose", "prompt": "x"})).status, 403);
    assert!(!agent.get("/v1/tools?agent=tight").to_string().contains("\"write_file\""));
}

#[test]
fn the_word_of_a_script_is_not_a_persons() {
    let site = TestSite::new();
    std::fs::write(site.workspace.join(".env"), "KEY=old\n").unwrap();
    std::fs::write(site.workspace.join("a.txt"), "old\n").unwrap();
    let config = scripted_model_config(&site);
    let server = TestApiServer::start(&site, &["--config", &config]);
    let (agent, page) = (server.agent(&site, "agent"), server.page());
    let session = agent.create_session(&json!({}));
    std::thread::scope(|scope| {
        let secret = json!({"path": ".env", "content": "KEY=topsecret\n"});
        let call = scope.spawn(|| agent.call(&session, "write_file", secret));
        assert_eq!(page.answer(&page.request(), &json!({"approved": true})).status, 200);
        assert_eq!(call.join().unwrap()["error"], Value::Null);
    });
    let change = page.get("/v1/changes")["changes"][0]["change"].as_str().unwrap().to_owned();
    let path = format!("/v1/changes/{change}");
    assert!(page.get(&path).to_string().contains("topsecret"));
    let undoer = token(&server, &site, "undoer", &[AuthScope::Undo]);
    assert_eq!(undoer.get("/v1/changes")["changes"][0]["change"], change);
    let got = undoer.send("GET", &path, None);
    assert!(got.status == 403 && !String::from_utf8_lossy(&got.body).contains("topsecret"), "{got:?}");
    assert_eq!(undoer.post("/v1/undo", &json!({"force": true})).status, 403);
    assert_eq!(std::fs::read_to_string(site.workspace.join(".env")).unwrap(), "KEY=topsecret\n");
    let both = token(&server, &site, "both", &[AuthScope::Call, AuthScope::Approve]);
    assert_eq!(both.post("/v1/runs", &json!({"prompt": "write it"})).status, 201);
    assert_eq!(both.answer(&both.request(), &json!({"approved": true})).status, 403, "its own run's request");
    assert_eq!(std::fs::read_to_string(site.workspace.join("a.txt")).unwrap(), "old\n");
}

#[test]
fn without_a_terminal_no_link_is_printed_unasked() {
    let site = TestSite::new();
    let mut command = site.command(&["serve", "--address", "127.0.0.1:0"]);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let said = format!("{}\n{}", lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.contains("ringfence token link") && !said.contains("#login="), "{said}");
}
