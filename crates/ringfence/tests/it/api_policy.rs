//! The config holds for every client of the API, in any dialect and session.

use ringfence_testkit::mcp_client::LAST_HANDSHAKE;
use serde_json::{Value, json};

use crate::api::{scripted_model_config, wait_for_run};
use crate::api_client::{ApiTestClient, ApiTestResponse, TestApiServer};
use crate::site::TestSite;

/// Starts a server with a config of the user's.
fn serve(site: &TestSite, config: &str) -> TestApiServer {
    let file = site.current.join("config.toml");
    std::fs::write(&file, config).unwrap();
    TestApiServer::start(site, &["--config", file.to_str().unwrap(), "--wait", "0"])
}

/// Results of reading and overwriting a file, in every dialect: an error, or `None`.
#[track_caller]
fn check(config: &str, expected: [Option<&str>; 2]) {
    let site = TestSite::in_memory();
    let server = serve(&site, config);
    let agent = server.agent(&site, "agent");
    for (dialect, read, write, path) in [
        ("standard", "read_file", "write_file", "private/x"),
        ("miniclaw", "read_file", "write_file", "private/x"),
        ("crewagent", "fs.read", "fs.write", "@project/private/x"),
    ] {
        site.write("private/x", "old\n");
        let session = agent.create_session(&json!({"dialect": dialect}));
        let read = agent.call(&session, read, json!({"path": path}));
        let written = agent.call(&session, write, json!({"path": path, "content": "new\n"}));
        assert_eq!([&read, &written].map(|got| got["error"].as_str()), expected, "{dialect}: {config}{read} {written}");
        assert_eq!(read["reply"].to_string().contains("old"), expected[0].is_none(), "{dialect}: {config}{read}");
        assert_eq!(site.read("private/x") == "new\n", expected[1].is_none(), "{dialect}: {config}{written}");
    }
}

const DENIED: Option<&str> = Some("PERMISSION_DENIED");
const ASKED: Option<&str> = Some("APPROVAL_PENDING");
const UNKNOWN: Option<&str> = Some("UNKNOWN_TOOL");

#[test]
fn the_workspace_is_meant_by_either_of_its_names_in_every_dialect() {
    for mount in ["workspace", "project"] {
        let about = |decision: &str, keys: &str| {
            format!("[[rules]]\ndecision = \"{decision}\"\nmount = \"{mount}\"\npath = \"private/**\"\n{keys}")
        };
        check(&about("deny", ""), [DENIED, DENIED]);
        check(&about("ask", ""), [ASKED, ASKED]);
        check(&about("allow", ""), [None, None]);
        check(&about("deny", "effect = \"change\"\n"), [None, DENIED]);
    }
}

#[test]
fn a_tool_is_meant_by_each_of_its_names_in_every_dialect() {
    for [read, write] in [["read_file", "write_file"], ["fs.read", "fs.write"], ["fs-read", "fs-write"]] {
        let about = |decision: &str, tool: &str| format!("[[rules]]\ndecision = \"{decision}\"\ntool = \"{tool}\"\n");
        check(&about("deny", read), [DENIED, ASKED]);
        check(&about("ask", read), [ASKED, ASKED]);
        check(&about("deny", write), [None, DENIED]);
        check(&about("allow", write), [None, None]);
        check(&format!("[tools]\ndeny = [\"{write}\"]\n"), [None, UNKNOWN]);
        check(&format!("[tools]\nallow = [\"{read}\"]\n"), [None, UNKNOWN]);
    }
}

/// A new session of the Model Context Protocol.
pub(crate) fn initialize_mcp(caller: &ApiTestClient<'_>) -> String {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": LAST_HANDSHAKE, "capabilities": {}, "clientInfo": client});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    send_mcp(caller, &[], &message).header("mcp-session-id").unwrap().to_owned()
}

pub(crate) fn send_mcp(caller: &ApiTestClient<'_>, headers: &[(&str, &str)], message: &Value) -> ApiTestResponse {
    let token = format!("Bearer {}", caller.token);
    let ours = [("Authorization", token.as_str()), ("Accept", "application/json, text/event-stream")];
    caller.server.send("POST", "/mcp", &[&ours, headers].concat(), Some(&message.to_string()))
}

/// The result of a call in it.
fn call_tool_over_mcp(caller: &ApiTestClient<'_>, session: &str, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    let headers = [("Mcp-Session-Id", session), ("MCP-Protocol-Version", LAST_HANDSHAKE)];
    String::from_utf8(send_mcp(caller, &headers, &message).body).unwrap()
}

#[test]
fn a_token_s_sessions_on_a_workspace_share_taint() {
    let site = TestSite::new();
    let second = site.root().join("second");
    std::fs::create_dir(&second).unwrap();
    site.write(".env", "KEY=1\n");
    scripted_model_config(&site);
    let model = std::fs::read_to_string(site.current.join("config.toml")).unwrap();
    let rules = "[[rules]]\ndecision = \"allow\"\neffect = \"read\"\nsecret = true\n\
                 [[rules]]\ndecision = \"deny\"\neffect = \"create\"\nwhen = \"read-secret\"\n";
    let server = serve(&site, &format!("{rules}[workspaces]\nsecond = {:?}\n{model}", second.to_str().unwrap()));
    let (agent, other, third) = (server.agent(&site, "agent"), server.agent(&site, "other"), server.agent(&site, "3"));
    let secret = || json!({"path": ".env"});
    let mut count = 0;
    let mut create = |caller: &ApiTestClient<'_>, session: &str| {
        count += 1;
        let got = caller.call(session, "write_file", json!({"path": format!("new-{count}"), "content": ""}));
        got["error"].as_str().map(str::to_owned)
    };
    let before = agent.create_session(&json!({}));
    assert_eq!(create(&agent, &before), None);
    let reading = agent.create_session(&json!({}));
    assert_eq!(agent.call(&reading, "read_file", secret())["error"], Value::Null);
    for session in
        [before, reading, agent.create_session(&json!({})), agent.create_session(&json!({"dialect": "miniclaw"}))]
    {
        assert_eq!(create(&agent, &session).as_deref(), DENIED);
    }
    // It is theirs, and it is about these files.
    assert_eq!(create(&agent, &agent.create_session(&json!({"workspace": "second"}))), None);
    assert_eq!(create(&other, &other.create_session(&json!({}))), None);
    // The other protocol is the same server, and so is its agent.
    let said =
        call_tool_over_mcp(&agent, &initialize_mcp(&agent), "write_file", json!({"path": "by-mcp", "content": ""}));
    assert!(said.contains("PERMISSION_DENIED"), "{said}");
    let begun = agent.post("/v1/runs", &json!({"prompt": "write it"})).json();
    wait_for_run(&agent, begun["id"].as_str().unwrap());
    assert!(!site.workspace.join("by-mcp").exists() && !site.workspace.join("a.txt").exists());
    let session = initialize_mcp(&third);
    let said = call_tool_over_mcp(&third, &session, "read_file", secret());
    assert!(said.contains("KEY=1"), "{said}");
    assert_eq!(create(&third, &third.create_session(&json!({}))).as_deref(), DENIED);
}
