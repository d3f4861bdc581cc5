//! `ringfence acp` through the binary: an editor that is lines of JSON, and a model that plays a script.

use ringfence_testkit::patience::PATIENCE;
use ringfence_testkit::stdio_process::StdioProcess;
use serde_json::{Value, json};

use crate::agent::{call, text};
use crate::site::TestSite;
use crate::terminal::approve_at_terminal;

/// An editor, and the agent that it started.
struct TestEditor {
    process: StdioProcess,
    last_id: u64,
    /// Everything that came in.
    received: Vec<Value>,
}

impl TestEditor {
    fn start(site: &TestSite, answers: &[Value], arguments: &[&str]) -> Self {
        let script: String = answers.iter().map(|answer| format!("{answer}\n")).collect();
        std::fs::write(site.current.join("script.jsonl"), script).unwrap();
        Self::start_without_model(site, &[&["acp", "--script", "script.jsonl"], arguments].concat())
    }

    fn start_without_model(site: &TestSite, arguments: &[&str]) -> Self {
        let process = StdioProcess::start(&mut site.command(arguments)).unwrap();
        let mut editor = Self { process, last_id: 0, received: Vec::new() };
        let hello = editor.request("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}}));
        assert_eq!(hello["result"]["protocolVersion"], 1, "{hello}");
        assert_eq!(hello["result"]["agentCapabilities"]["loadSession"], true);
        editor
    }

    fn send(&mut self, message: &Value) {
        self.process.send(format!("{message}\n"));
    }

    /// Sends a request, and does not wait.
    fn send_request(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
        self.last_id
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params);
        self.answer_to(id)
    }

    fn answer_to(&mut self, id: u64) -> Value {
        self.wait(|message| message["id"] == id && message.get("method").is_none())
    }

    fn wait(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.process.receive(PATIENCE).unwrap();
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line:.300}"));
            self.received.push(message.clone());
            if wanted(&message) {
                return message;
            }
        }
    }

    fn new_session(&mut self, site: &TestSite) -> String {
        let said = self.request("session/new", json!({"cwd": site.workspace, "mcpServers": []}));
        assert_eq!(said["result"]["modes"]["currentModeId"], "configured", "{said}");
        said["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    fn prompt(&mut self, session: &str, text: &str) -> u64 {
        self.send_request("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]}))
    }

    /// Waits for a question, and chooses an option.
    fn answer_permission(&mut self, option: &str) -> Value {
        let asked = self.wait(|message| message["method"] == "session/request_permission");
        let outcome = json!({"outcome": {"outcome": "selected", "optionId": option}});
        self.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": outcome}));
        asked
    }

    fn cancel(&mut self, session: &str) {
        self.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}));
    }

    /// The updates of a kind that came so far.
    fn updates(&self, kind: &str) -> Vec<&Value> {
        let updates = self.received.iter().map(|message| &message["params"]["update"]);
        updates.filter(|update| update["sessionUpdate"] == kind).collect()
    }

    /// The chunks of a kind, put together.
    fn chunks(&self, kind: &str) -> String {
        self.updates(kind).iter().map(|update| update["content"]["text"].as_str().unwrap()).collect()
    }

    /// Closes the input, and waits for the end.
    fn close(mut self) -> Option<i32> {
        self.process.close_input();
        self.process.child.wait().unwrap().code()
    }
}

fn write(path: &str, content: &str) -> Value {
    call("write_file", json!({"path": path, "content": content}))
}

#[test]
fn a_prompt_streams_text_and_thoughts_and_cards() {
    let site = TestSite::new();
    let answers = [
        json!({"reasoning": "Let me see.", "calls": [
            {"name": "write_file", "arguments": {"path": "a.txt", "content": "one\n"}},
            {"name": "read_file", "arguments": {"path": "nowhere.txt"}},
        ]}),
        text("It is done."),
    ];
    let mut editor = TestEditor::start(&site, &answers, &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "write a.txt");
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");
    assert_eq!(editor.chunks("agent_thought_chunk"), "Let me see.");
    let said = editor.chunks("agent_message_chunk");
    assert!(said.starts_with("It is done.") && said.contains("Actions taken:\n- created  a.txt"), "{said}");
    let cards = editor.updates("tool_call");
    assert_eq!((&cards[0]["kind"], &cards[1]["kind"]), (&json!("edit"), &json!("read")));
    assert_eq!(cards[0]["locations"][0]["path"], json!(site.workspace.join("a.txt")));
    let ends = editor.updates("tool_call_update");
    assert_eq!((&ends[0]["status"], &ends[1]["status"]), (&json!("completed"), &json!("failed")));
    let diff = json!({"type": "diff", "path": site.workspace.join("a.txt"), "oldText": null, "newText": "one\n"});
    assert_eq!(ends[0]["content"], json!([diff]));
    assert_eq!(site.read("a.txt"), "one\n");
    assert!(editor.received.iter().all(|message| message["jsonrpc"] == "2.0"));
    assert_eq!(editor.close(), Some(0));
}

#[test]
fn a_change_is_asked_about_with_its_diff_and_a_yes_makes_it() {
    let site = TestSite::new();
    site.write("a.txt", "one\ntwo\n");
    let mut editor = TestEditor::start(&site, &[write("a.txt", "one\n2\n"), text("ok")], &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "change it");
    let asked = editor.answer_permission("allow");
    let diff = json!({
        "type": "diff", "path": site.workspace.join("a.txt"), "oldText": "one\ntwo\n", "newText": "one\n2\n",
    });
    assert_eq!(asked["params"]["toolCall"]["content"][1], diff, "{asked}");
    assert_eq!(asked["params"]["toolCall"]["toolCallId"], "card-1");
    let kinds: Vec<&Value> =
        asked["params"]["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
    assert_eq!(kinds, ["allow_once", "reject_once"]);
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");
    assert_eq!(site.read("a.txt"), "one\n2\n");
    let records = site.run(&["audit", "show", "--json"]).out;
    assert!(records.contains("user of the editor") && records.contains("relayed"), "{records}");
}

#[test]
fn a_no_leaves_everything_as_it_is() {
    for option in ["reject", "always"] {
        let site = TestSite::new();
        site.write("a.txt", "one\n");
        let mut editor = TestEditor::start(&site, &[write("a.txt", "two\n"), text("ok")], &[]);
        let session = editor.new_session(&site);
        let id = editor.prompt(&session, "change it");
        editor.answer_permission(option);
        assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");
        assert_eq!(site.read("a.txt"), "one\n");
        let last = *editor.updates("tool_call_update").last().unwrap();
        assert_eq!(last["status"], "failed", "{last}");
        assert!(last.to_string().contains("denied by the user of the editor"), "{last}");
    }
}

#[test]
fn an_approval_that_needs_a_person_waits_outside_the_editor() {
    let site = TestSite::new();
    site.write(".env", "KEY=1\n");
    let read = call("read_file", json!({"path": ".env"}));
    let mut editor = TestEditor::start(&site, &[read, text("ok")], &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "read it");
    let waits = editor.wait(|message| message["params"]["update"]["status"] == "pending");
    assert!(waits.to_string().contains("ringfence approvals answer"), "{waits}");
    editor.cancel(&session);
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "cancelled");
    assert!(editor.received.iter().all(|message| message["method"] != "session/request_permission"));
    assert!(editor.received.iter().all(|message| !message.to_string().contains("KEY=1")));
}

#[test]
fn a_person_at_a_terminal_answers_what_the_editor_cannot() {
    let site = TestSite::new();
    site.write(".env", "KEY=1\n");
    let mut editor = TestEditor::start(&site, &[call("read_file", json!({"path": ".env"})), text("ok")], &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "read it");
    let waits = editor.wait(|message| message["params"]["update"]["status"] == "pending").to_string();
    let (_, after) = waits.split_once("ringfence approvals answer ").unwrap();
    approve_at_terminal(&site, after.split('`').next().unwrap());
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");
    assert_eq!(editor.updates("tool_call_update").last().unwrap()["status"], "completed");
    // An editor keeps what it shows, and it has no business with a secret, now or when it loads the session again.
    editor.request("session/load", json!({"sessionId": session, "cwd": site.workspace, "mcpServers": []}));
    assert!(editor.received.iter().all(|message| !message.to_string().contains("KEY=1")));
}

#[test]
fn a_cancelled_prompt_ends_at_once_and_the_session_goes_on() {
    let site = TestSite::new();
    site.write("a.txt", "one\n");
    let stalls = json!({"text": "I think", "stall": true});
    let mut editor = TestEditor::start(&site, &[stalls, write("a.txt", "two\n"), text("well")], &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "hello");
    editor.wait(|message| message["params"]["update"]["content"]["text"] == "think");
    let second = editor.prompt(&session, "and?");
    assert!(editor.answer_to(second)["error"]["message"].as_str().unwrap().contains("still running"));
    editor.cancel(&session);
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "cancelled");
    // The same while the user is asked: the request is withdrawn.
    let id = editor.prompt(&session, "change it");
    let asked = editor.wait(|message| message["method"] == "session/request_permission");
    editor.cancel(&session);
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "cancelled");
    let taken_back = editor.received.iter().find(|message| message["method"] == "$/cancel_request").unwrap();
    assert_eq!(taken_back["params"]["requestId"], asked["id"]);
    assert_eq!(site.read("a.txt"), "one\n");
    let id = editor.prompt(&session, "well?");
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");
}

#[test]
fn a_program_that_runs_ends_with_its_prompt() {
    let site = TestSite::new();
    let run = call("run_code", json!({"language": "bash", "code": "echo begun; exec sleep 600"}));
    let mut editor = TestEditor::start(&site, &[run], &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "run it");
    editor.wait(|message| message["params"]["update"]["content"][0]["content"]["text"] == "begun\n");
    editor.cancel(&session);
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "cancelled");
}

#[test]
fn sessions_are_cancelled_one_by_one_and_all_of_them_when_the_editor_leaves() {
    let site = TestSite::new();
    let mut editor = TestEditor::start(&site, &[json!({"text": "hm", "stall": true})], &[]);
    let sessions = [editor.new_session(&site), editor.new_session(&site)];
    let prompts = sessions.each_ref().map(|session| editor.prompt(session, "think"));
    for session in &sessions {
        let text = |message: &Value| message["params"]["update"]["content"]["text"] == "hm";
        if !editor.received.iter().any(|message| text(message) && message["params"]["sessionId"] == session.as_str()) {
            editor.wait(|message| text(message) && message["params"]["sessionId"] == session.as_str());
        }
    }
    editor.cancel(&sessions[1]);
    assert_eq!(editor.answer_to(prompts[1])["result"]["stopReason"], "cancelled");
    assert!(editor.received.iter().all(|message| message["id"] != prompts[0]));
    editor.process.close_input();
    assert_eq!(editor.answer_to(prompts[0])["result"]["stopReason"], "cancelled");
    assert_eq!(editor.close(), Some(0));
}

#[test]
fn a_model_that_goes_in_circles_goes_on_only_if_the_user_wants_it() {
    for (option, goes_on) in [("go-on", true), ("stop", false)] {
        let site = TestSite::new();
        let list = || call("list_directory", json!({"path": "."}));
        let mut editor = TestEditor::start(&site, &[list(), list(), list(), text("I see.")], &[]);
        let session = editor.new_session(&site);
        let id = editor.prompt(&session, "look");
        let asked = editor.answer_permission(option);
        assert!(asked.to_string().contains("3 times in a row"), "{asked}");
        assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");
        assert_eq!(editor.chunks("agent_message_chunk").contains("I see."), goes_on);
    }
}

#[test]
fn the_output_of_a_program_is_on_its_card_while_it_runs() {
    let site = TestSite::new();
    let run = call("run_code", json!({"language": "bash", "code": "echo hello; exit 3"}));
    let mut editor = TestEditor::start(&site, &[run, text("ok")], &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "run it");
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");
    assert_eq!(editor.updates("tool_call")[0]["kind"], "execute");
    let shown = editor.updates("tool_call_update");
    let text = |update: &Value| update["content"][0]["content"]["text"].clone();
    assert!(shown.iter().any(|update| update["status"].is_null() && text(update) == "hello\n"), "{shown:?}");
    assert_eq!(text(shown.last().unwrap()), "hello\n");
    assert!(editor.chunks("agent_message_chunk").contains("exit code 3"));
}

#[test]
fn every_end_has_its_stop_reason() {
    let cases: [(&[Value], &str); 5] = [
        (&[json!({"refusal": "I will not"})], "refusal"),
        (&[json!({"text": "so", "finish": "length"}), json!({"text": "so", "finish": "length"})], "max_tokens"),
        (&[text(""), text("")], "end_turn"),
        (&[call("list_directory", json!({"path": "."})), text("stopped")], "max_turn_requests"),
        (&[], "the script has no further answer"),
    ];
    for (answers, expected) in cases {
        let site = TestSite::new();
        let config = site.root().join("agent.toml");
        let steps = if expected == "max_turn_requests" { 1 } else { 5 };
        std::fs::write(&config, format!("[agents.defaults]\nmax_tool_iterations = {steps}\n")).unwrap();
        let mut editor = TestEditor::start(&site, answers, &["--config", config.to_str().unwrap()]);
        let session = editor.new_session(&site);
        let id = editor.prompt(&session, "go");
        let said = editor.answer_to(id);
        let found = said["result"]["stopReason"].as_str().or(said["error"]["message"].as_str()).unwrap();
        assert_eq!(found, expected);
        assert!(!editor.chunks("agent_message_chunk").trim().is_empty(), "{expected}: nothing was said");
    }
}

#[test]
fn a_session_is_loaded_with_what_was_said_and_resumed_without() {
    let site = TestSite::new();
    let mut editor = TestEditor::start(&site, &[write("a.txt", "one\n"), text("I wrote it.")], &[]);
    let session = editor.new_session(&site);
    let id = editor.prompt(&session, "write a.txt");
    editor.answer_to(id);
    assert_eq!(editor.close(), Some(0));

    let mut editor = TestEditor::start(&site, &[text("As I said.")], &[]);
    let listed = editor.request("session/list", json!({}));
    assert_eq!(listed["result"]["sessions"][0]["sessionId"], session.as_str(), "{listed}");
    assert_eq!(listed["result"]["sessions"][0]["title"], "write a.txt");
    let known = json!({"sessionId": session, "cwd": site.workspace, "mcpServers": []});
    let loaded = editor.request("session/load", known.clone());
    assert_eq!(loaded["result"]["modes"]["currentModeId"], "configured", "{loaded}");
    assert_eq!(editor.chunks("user_message_chunk"), "write a.txt");
    assert_eq!(editor.chunks("agent_message_chunk"), "I wrote it.");
    assert_eq!(editor.updates("tool_call")[0]["title"], "write_file a.txt");
    assert_eq!(editor.updates("tool_call_update")[0]["status"], "completed");
    let id = editor.prompt(&session, "and?");
    assert_eq!(editor.answer_to(id)["result"]["stopReason"], "end_turn");

    let before = editor.received.len();
    assert!(editor.request("session/resume", known)["result"].is_object());
    assert_eq!(editor.received.len(), before + 1);
    assert_eq!(editor.request("session/close", json!({"sessionId": session}))["result"], json!({}));
    let id = editor.prompt(&session, "and?");
    assert_eq!(editor.answer_to(id)["error"]["code"], -32002);
    let unknown = json!({"sessionId": "agent-nowhere", "cwd": site.workspace, "mcpServers": []});
    assert_eq!(editor.request("session/load", unknown)["error"]["code"], -32002);
}

#[test]
fn a_mode_tightens_and_goes_back_to_what_the_config_says() {
    let site = TestSite::new();
    let answers = [write("a.txt", "1"), text("ok"), write("b.txt", "2"), text("ok"), write("c.txt", "3"), text("ok")];
    let mut editor = TestEditor::start(&site, &answers, &[]);
    let session = editor.new_session(&site);
    let set = |editor: &mut TestEditor, mode: &str| {
        editor.request("session/set_mode", json!({"sessionId": session, "modeId": mode}))
    };
    assert_eq!(set(&mut editor, "read-only")["result"], json!({}));
    let id = editor.prompt(&session, "write");
    editor.answer_to(id);
    assert!(!site.workspace.join("a.txt").exists());
    assert!(editor.received.iter().any(|message| message.to_string().contains("`read-only` mode")));
    set(&mut editor, "ask");
    let id = editor.prompt(&session, "write");
    let asked = editor.answer_permission("allow");
    assert!(asked.to_string().contains("`ask` mode"), "{asked}");
    editor.answer_to(id);
    assert_eq!(site.read("b.txt"), "2");
    set(&mut editor, "configured");
    let id = editor.prompt(&session, "write");
    editor.answer_to(id);
    assert_eq!(site.read("c.txt"), "3");
    assert!(set(&mut editor, "yolo")["error"]["message"].as_str().unwrap().contains("configured, ask, read-only"));
}

#[test]
fn a_session_works_only_where_the_user_said_so() {
    let site = TestSite::new();
    let config = site.root().join("agent.toml");
    let declared = site.root().join("declared");
    std::fs::create_dir(&declared).unwrap();
    std::fs::write(&config, format!("[workspaces]\nother = {declared:?}\n")).unwrap();
    let mut editor =
        TestEditor::start(&site, &[write("a.txt", "x"), text("ok")], &["--config", config.to_str().unwrap()]);
    for cwd in [site.outside.to_str().unwrap(), "/", "relative", site.workspace.join("none").to_str().unwrap()] {
        let said = editor.request("session/new", json!({"cwd": cwd, "mcpServers": []}));
        let message = said["error"]["message"].as_str().unwrap();
        assert!(message.contains("[workspaces]") && !message.contains(site.root().to_str().unwrap()), "{message}");
    }
    let said = editor.request("session/new", json!({"cwd": declared, "mcpServers": []}));
    let session = said["result"]["sessionId"].as_str().unwrap().to_owned();
    let id = editor.prompt(&session, "write");
    editor.answer_to(id);
    assert!(declared.join("a.txt").exists() && !site.workspace.join("a.txt").exists());
}

#[test]
fn a_missing_model_says_the_three_ways() {
    let site = TestSite::new();
    let mut editor = TestEditor::start_without_model(&site, &["acp"]);
    let said = editor.request("session/new", json!({"cwd": site.workspace, "mcpServers": []}));
    for way in ["base_url = \"http://127.0.0.1", "api_key_env", "ringfence demo"] {
        assert!(said["error"]["message"].as_str().unwrap().contains(way), "no {way} in {said}");
    }
}

#[test]
fn every_input_line_gets_a_response() {
    let site = TestSite::new();
    let mut editor = TestEditor::start(&site, &[], &[]);
    let cases = [
        ("nonsense", -32700),
        ("[]", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"initialize\"}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":9,\"id\":9,\"method\":\"initialize\"}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"fs/nothing\"}", -32601),
        ("{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"session/new\",\"params\":{}}", -32602),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"x\",\"prompt\":[]}}",
            -32002,
        ),
    ];
    for (line, code) in cases {
        editor.process.send(format!("\n{line}\n"));
        let said = editor.wait(|_| true);
        assert_eq!(said["error"]["code"], code, "{line}: {said}");
    }
    // A response without a request, or an unknown notification, is ignored.
    editor.send(&json!({"jsonrpc": "2.0", "id": 77, "result": {}}));
    editor.send(&json!({"jsonrpc": "2.0", "method": "session/wave", "params": {}}));
    editor.request("initialize", json!({"protocolVersion": 1}));
    assert_eq!(editor.close(), Some(0));
}
