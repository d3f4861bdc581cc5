//! `ringfence mcp` on standard input and output, as a client sees it.

use ringfence_testkit::mcp_client::{LAST_HANDSHAKE, STATELESS, StdioMcpClient, text};
use serde_json::{Value, json};

use crate::site::TestSite;

fn site() -> TestSite {
    let site = TestSite::new();
    std::fs::write(site.workspace.join("a.txt"), "one\ntwo\n").unwrap();
    site
}

/// A client of each era that can do nothing special.
fn of_both_eras(site: &TestSite, arguments: &[&str]) -> [StdioMcpClient; 2] {
    [StdioMcpClient::with_handshake(site, arguments, json!({})), StdioMcpClient::stateless(site, arguments, json!({}))]
}

#[test]
fn a_handshake_says_who_serves_and_in_which_version() {
    for (asked, agreed) in [("2024-11-05", "2024-11-05"), (LAST_HANDSHAKE, LAST_HANDSHAKE), (STATELESS, LAST_HANDSHAKE)]
    {
        let site = site();
        let mut client = StdioMcpClient::start(&site, &[]);
        let said = client.initialize(asked, json!({}));
        assert_eq!(said["result"]["protocolVersion"], agreed, "{said}");
        assert_eq!(said["result"]["serverInfo"]["name"], "ringfence");
        assert_eq!(said["result"]["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn discovery_says_who_serves_and_which_versions_there_are() {
    let site = site();
    let mut client = StdioMcpClient::stateless(&site, &[], json!({}));
    let said = client.request("server/discover", json!({}));
    let versions: Vec<&str> =
        said["result"]["supportedVersions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(versions.contains(&STATELESS) && versions.contains(&LAST_HANDSHAKE), "{said}");
    assert!(said.to_string().contains(r#""name":"ringfence""#), "{said}");
}

#[test]
fn every_tool_that_can_be_called_is_listed_with_what_a_client_shows() {
    let site = site();
    for mut client in of_both_eras(&site, &[]) {
        let said = client.request("tools/list", json!({}));
        let tools = said["result"]["tools"].as_array().unwrap();
        let line = site.run(&["tools", "--format", "functions"]).out;
        let functions: Vec<Value> = serde_json::from_str(&line).unwrap();
        let names = |list: &[Value]| list.iter().map(|tool| tool["name"].clone()).collect::<Vec<_>>();
        assert_eq!(names(tools), names(&functions));
        // No search engine is chosen here.
        assert!(!names(tools).contains(&json!("web_search")), "{said}");
        for tool in tools {
            assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
            assert!(tool.get("outputSchema").is_none(), "{tool}");
            assert!(tool["title"].as_str().is_some_and(|text| !text.contains('_')), "{tool}");
            assert!(tool["description"].as_str().is_some_and(|text| !text.is_empty()), "{tool}");
            assert!(!tool.to_string().contains("uint64"), "not a format that clients know: {tool}");
        }
        let unavailable = client.call("web_search", json!({"query": "x"}));
        assert_eq!(unavailable["_meta"]["ringfence/code"], "UNAVAILABLE", "{unavailable}");
    }
}

#[test]
fn the_list_of_tools_is_short() {
    const MOST: usize = 13_000;
    let (site, searching) = (site(), site());
    let engine = "[web.search]\nengine = \"searxng\"\nurl = \"http://127.0.0.1/\"\n";
    std::fs::create_dir_all(searching.config.join("ringfence")).unwrap();
    std::fs::write(searching.config.join("ringfence/config.toml"), engine).unwrap();
    for mut client in of_both_eras(&site, &[]).into_iter().chain(of_both_eras(&searching, &[])) {
        let said = client.request("tools/list", json!({}));
        let sizes = said["result"]["tools"].as_array().unwrap().iter();
        let sizes: Vec<_> = sizes.map(|tool| (tool["name"].to_string(), tool.to_string().len())).collect();
        let size = said.to_string().len();
        assert!(size <= MOST, "{size} bytes: {sizes:?}");
        assert!(!said.to_string().contains("updateFrontmatter"), "there is no run");
    }
    let made = site.run(&["workflow", "new", "--run", "first"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut client = StdioMcpClient::with_handshake(&site, &["--run", "first"], json!({}));
    let said = client.request("tools/list", json!({}));
    assert!(said.to_string().contains("updateFrontmatter"), "{said}");
}

/// Claude Code keeps the schemas of other tools back.
#[test]
fn the_core_tools_are_loaded_at_once() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &[], json!({}));
    let said = client.request("tools/list", json!({}));
    let is_core = |tool: &&Value| tool["_meta"]["anthropic/alwaysLoad"] == true;
    let core: Vec<&str> = said["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_core)
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    let expected = ["read_file", "write_file", "list_directory", "edit_file", "find_files", "search_files", "run_code"];
    assert_eq!(core, expected);
}

#[test]
fn a_model_is_told_how_paths_and_approvals_work() {
    let site = site();
    let docs = format!("docs={}", site.outside.display());
    let cases: [(&[&str], &[&str]); 7] = [
        (&[], &["relative to the workspace", "approval", "undo", "network"]),
        (&["--dialect", "claude"], &["relative to", "approval", "Undo reverts", "run by Bash have no network"]),
        (&["--dialect", "codex"], &["approval", "undo reverts", "run by exec_command have no network"]),
        (&["--dialect", "gemini"], &["approval", "undo reverts", "run by run_shell_command have no network"]),
        (&["--mount", &docs], &["@docs (read-only)"]),
        (&["--deny-tool", "run_code", "--deny-tool", "undo"], &["relative to the workspace"]),
        (&["--dialect", "crewagent"], &["@project"]),
    ];
    for (arguments, words) in cases {
        let mut client = StdioMcpClient::start(&site, arguments);
        let said = client.initialize(LAST_HANDSHAKE, json!({}));
        let text = said["result"]["instructions"].as_str().unwrap();
        words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
        assert!(text.chars().count() <= 600 && text.ends_with('.'), "{text}");
        assert!(!text.contains(site.root().to_str().unwrap()), "{text}");
        let denied = |tool: &str| arguments.contains(&tool) && text.contains(tool);
        assert!(!denied("run_code") && !denied("undo"), "{text}");
    }
    let mut client = StdioMcpClient::stateless(&site, &[], json!({}));
    let said = client.request("server/discover", json!({}));
    assert!(said["result"]["instructions"].is_string(), "{said}");
}

#[test]
fn hints_follow_from_what_a_tool_does() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &[], json!({}));
    let said = client.request("tools/list", json!({}));
    let reads =
        ["read_file", "list_directory", "find_files", "search_files", "get_file_info", "list_changes", "show_change"];
    // Destructive, and the same again changes nothing more.
    let changes = [
        ("write_file", true, true),
        ("edit_file", true, false),
        ("append_file", true, false),
        ("apply_patch", true, false),
        ("create_directory", false, true),
        ("copy_file", true, true),
        ("move_file", true, false),
        ("delete_file", true, true),
        ("undo", true, false),
        ("redo", true, false),
    ];
    for tool in said["result"]["tools"].as_array().unwrap() {
        let (name, hints) = (tool["name"].as_str().unwrap(), &tool["annotations"]);
        let expected = match changes.iter().find(|(changing, ..)| *changing == name) {
            Some((_, destructive, again)) => json!({
                "readOnlyHint": false, "destructiveHint": destructive, "idempotentHint": again, "openWorldHint": false,
            }),
            None if reads.contains(&name) => json!({"readOnlyHint": true, "openWorldHint": false}),
            // Tools of other services have their own tests.
            None => continue,
        };
        assert_eq!(hints, &expected, "{name}");
    }
}

/// Whatever the client is called: what clients show of other forms changes with their versions.
#[test]
fn a_model_gets_plain_text_and_nothing_else() {
    let site = site();
    for name in ["test", "claude-code", "codex-mcp-client", "opencode", "gemini-cli-mcp-client"] {
        for version in ["2025-03-26", LAST_HANDSHAKE] {
            let mut client = StdioMcpClient::start(&site, &["--preset", "edits"]);
            client.initialize_as(name, version, json!({}));
            let result = client.call("read_file", json!({"path": "a.txt"}));
            let content = json!([{"type": "text", "text": "1\tone\n2\ttwo"}]);
            assert_eq!(result, json!({"content": content, "isError": false}), "{name} {version}");
            let result = client.call("read_file", json!({"path": "missing"}));
            assert!(text(&result).contains("`missing`") && !text(&result).contains(['{', '"']), "{result}");
            assert_eq!(result["_meta"]["ringfence/code"], "FILE_NOT_FOUND", "{result}");
            assert!(result["isError"] == true && result.get("structuredContent").is_none(), "{result}");
        }
    }
}

#[test]
fn every_tool_answers_in_plain_text() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "edits"], json!({}));
    let calls = [
        ("write_file", json!({"path": "b", "content": "x\n"}), "created b, 2 bytes (c-"),
        ("edit_file", json!({"path": "b", "oldText": "x", "newText": "y"}), ""),
        ("append_file", json!({"path": "b", "content": "z\n"}), "appended to b, 4 bytes (c-"),
        ("list_directory", json!({"path": "."}), "a.txt\t8\nb\t4"),
        ("find_files", json!({"path": ".", "glob": "*.txt"}), "a.txt"),
        ("search_files", json!({"path": ".", "pattern": "two"}), "a.txt\n2\ttwo\n[1 match in 1 file]"),
        ("get_file_info", json!({"path": "b"}), "b: file, 4 bytes, mode 0644, modified "),
        ("copy_file", json!({"from": "b", "to": "c"}), "created c, 4 bytes (c-"),
        ("move_file", json!({"from": "c", "to": "d"}), "moved c to d (c-"),
        ("create_directory", json!({"path": "e"}), "created the directory e (c-"),
        ("delete_file", json!({"path": "d"}), "deleted d (c-"),
        ("apply_patch", json!({"patch": "--- a/b\n+++ b/b\n@@ -1,2 +1,2 @@\n-y\n+w\n z\n"}), ""),
        ("list_changes", json!({}), "c-"),
        ("undo", json!({}), "undid c-"),
        ("redo", json!({}), "reverted the undo c-"),
        ("run_code", json!({"language": "bash", "code": "echo hi; exit 3"}), "hi\n[exit 3]"),
    ];
    for (tool, arguments, expected) in calls {
        let result = client.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        assert!(text(&result).starts_with(expected) && !text(&result).contains(['{', '"']), "{tool}: {result}");
    }
}

#[test]
fn a_program_that_asks_for_it_gets_the_envelope_and_its_schema() {
    let site = site();
    for mut client in of_both_eras(&site, &["--structured"]) {
        let said = client.request("tools/list", json!({}));
        for tool in said["result"]["tools"].as_array().unwrap() {
            assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        }
        let result = client.call("read_file", json!({"path": "a.txt"}));
        assert_eq!(result["structuredContent"]["value"]["content"], "one\ntwo\n");
        assert_eq!(serde_json::from_str::<Value>(text(&result)).unwrap(), result["structuredContent"]);
        let result = client.call("read_file", json!({"path": "missing"}));
        assert_eq!((&result["isError"], &result["structuredContent"]["ok"]), (&json!(true), &json!(false)));
        assert_eq!(result["structuredContent"]["error"]["code"], "FILE_NOT_FOUND", "{result}");
    }
    let mut client = StdioMcpClient::start(&site, &["--structured"]);
    client.initialize("2025-03-26", json!({}));
    assert!(client.request("tools/list", json!({}))["result"]["tools"][0].get("outputSchema").is_none());
    let result = client.call("read_file", json!({"path": "a.txt"}));
    assert!(result.get("structuredContent").is_none() && text(&result).contains(r"one\ntwo\n"), "{result}");
}

#[test]
fn other_dialects_are_served_too() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &["--dialect", "miniclaw"], json!({}));
    let result = client.call("read_file", json!({"path": "a.txt"}));
    assert_eq!(text(&result), "ok: read 8 bytes from a.txt\none\ntwo\n");
    let mut client = StdioMcpClient::with_handshake(&site, &["--dialect", "crewagent"], json!({}));
    for name in ["fs-read", "fs.read"] {
        let result = client.call(name, json!({"path": "@project/a.txt"}));
        let reply: Value = serde_json::from_str(text(&result)).unwrap();
        assert_eq!((&reply["ok"], &reply["content"]), (&json!(true), &json!("one\ntwo\n")), "{result}");
        assert!(result.get("structuredContent").is_none(), "{result}");
    }
}

#[test]
fn tool_refusals_are_results_and_protocol_refusals_are_errors() {
    let site = site();
    for mut client in of_both_eras(&site, &[]) {
        for arguments in [json!({"path": "missing"}), json!({"path": 7}), json!({"file": "a.txt"}), json!({})] {
            let result = client.call("read_file", arguments);
            assert_eq!(result["isError"], true, "{result}");
        }
        let errors = [
            ("tools/call", json!({"name": "no_such_tool", "arguments": {}}), -32602),
            ("tools/call", json!({"arguments": {}}), -32602),
            ("tools/call", json!({"name": "read_file", "arguments": "a.txt"}), -32602),
            ("no/such/method", json!({}), -32601),
        ];
        for (method, params, code) in errors {
            let said = client.request(method, params.clone());
            assert_eq!(said["error"]["code"], code, "{method} {params}: {said}");
        }
    }
}

#[test]
fn a_request_without_client_info_gets_an_error_that_explains() {
    let site = site();
    let mut client = StdioMcpClient::start(&site, &[]);
    for method in ["tools/list", "tools/call"] {
        let said = client.request(method, json!({"name": "read_file", "arguments": {}}));
        assert_eq!(said["error"]["code"], -32600, "{said}");
        assert!(said["error"]["message"].as_str().unwrap().contains("initialize"), "{said}");
    }
    assert_eq!(client.initialize(LAST_HANDSHAKE, json!({}))["result"]["serverInfo"]["name"], "ringfence");
}

#[test]
fn a_second_handshake_is_refused() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &[], json!({}));
    assert_eq!(client.initialize(LAST_HANDSHAKE, json!({"elicitation": {}}))["error"]["code"], -32600);
}

#[test]
fn an_unsupported_version_is_refused() {
    let site = site();
    let mut client = StdioMcpClient::start(&site, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "1999-01-01",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let said = client.request("tools/list", json!({"_meta": meta}));
    assert_eq!(said["error"]["code"], -32022, "{said}");
}

#[test]
fn it_ends_when_its_input_closes_and_says_nothing_but_protocol() {
    let site = site();
    for mut client in of_both_eras(&site, &[]) {
        client.call("read_file", json!({"path": "a.txt"}));
        let (code, rest, complaints) = client.close();
        assert_eq!((code, rest, complaints.as_str()), (Some(0), vec![], ""));
    }
    let (code, rest, complaints) = StdioMcpClient::start(&site, &[]).close();
    assert_eq!((code, rest, complaints.as_str()), (Some(0), vec![], ""), "nothing was said");
}

#[test]
fn requests_sent_before_eof_are_answered() {
    let site = site();
    let mut client = StdioMcpClient::with_handshake(&site, &[], json!({}));
    let ids: Vec<i64> = (0..20).map(|_| client.send_tool_call("read_file", json!({"path": "a.txt"}))).collect();
    let (code, rest, _) = client.close();
    let answered = |id: &i64| rest.iter().any(|message| message["id"] == *id && message["result"]["isError"] == false);
    assert!(ids.iter().all(answered), "{rest:?}");
    assert_eq!(code, Some(0));
}

#[test]
fn calls_that_change_something_run_in_the_order_in_which_they_came() {
    let site = site();
    for mut client in of_both_eras(&site, &["--preset", "edits"]) {
        std::fs::write(site.workspace.join("log"), "").unwrap();
        let ids: Vec<i64> = (0..60)
            .map(|number| {
                client.send_tool_call("append_file", json!({"path": "log", "content": format!("{number}\n")}))
            })
            .collect();
        for id in ids {
            assert_eq!(client.result(id)["isError"], false);
        }
        let expected: String = (0..60).map(|number| format!("{number}\n")).collect();
        assert_eq!(std::fs::read_to_string(site.workspace.join("log")).unwrap(), expected);
    }
}

#[test]
fn a_client_is_told_about_the_server_only_after_the_change_was_shown() {
    let site = site();
    let file = site.workspace.join(".mcp.json");
    let shown = site.run(&["mcp", "install", "claude-code"]);
    assert!(shown.code == Some(0) && shown.out.contains("mcpServers") && shown.out.contains("\"deny\""), "{shown:?}");
    assert!(!file.exists());
    let written = site.run(&["mcp", "install", "claude-code", "--yes"]);
    assert_eq!(written.code, Some(0), "{written:?}");
    let entry: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(entry["mcpServers"]["ringfence"]["args"][0], "mcp");
    assert_eq!(entry["mcpServers"]["ringfence"]["alwaysLoad"], true);
    // Others get this file with the project.
    assert_eq!(entry["mcpServers"]["ringfence"]["command"], "ringfence");
    assert!(!entry.to_string().contains(site.root().to_str().unwrap()), "{entry}");
    let again = site.run(&["mcp", "install", "claude-code", "--yes"]);
    assert!(again.code == Some(0) && again.out.contains("up to date"), "{again:?}");
    std::fs::write(&file, entry.to_string().replace("alwaysLoad", "old")).unwrap();
    assert_eq!(site.run(&["mcp", "install", "claude-code", "--yes"]).code, Some(0));
    let updated: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(updated["mcpServers"]["ringfence"]["alwaysLoad"], true, "{updated}");
}

/// An entry in a file of the user is there for every project.
#[test]
fn an_entry_for_all_projects_serves_the_one_that_the_client_is_in() {
    let site = site();
    for (client, file) in
        [("codex", site.home.join(".codex/config.toml")), ("goose", site.config.join("goose/config.yaml"))]
    {
        let said = site.run(&["mcp", "install", client, "--yes"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let entry = std::fs::read_to_string(file).unwrap();
        assert!(!entry.contains(site.workspace.to_str().unwrap()), "{entry}");
        // It is started by another program, to which `/proc/self/exe` would be something else.
        let program = std::fs::canonicalize(crate::site::PROGRAM).unwrap();
        assert!(entry.contains(program.to_str().unwrap()), "{entry}");
    }
    let other = site.root().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("b.txt"), "of the other project\n").unwrap();
    // In a directory of its own, as a client starts it.
    let start_in = |directory: &std::path::Path| {
        let mut command = site.program_without_arguments();
        command.args(["mcp", "--workspace", "."]).current_dir(directory);
        StdioMcpClient::start_by(command)
    };
    let mut client = start_in(&other);
    client.initialize(LAST_HANDSHAKE, json!({}));
    assert_eq!(text(&client.call("read_file", json!({"path": "b.txt"}))), "1\tof the other project");
    for (directory, name) in
        [(site.home.as_path(), "the home directory"), (std::path::Path::new("/"), "the root directory")]
    {
        let (code, _, complaints) = start_in(directory).close();
        assert!(code == Some(2) && complaints.contains(name), "{complaints}");
    }
}

/// An untrusted workspace, with a link at the path of a client's settings, and the file that it leads to.
#[test]
fn settings_are_not_written_by_way_of_a_link_of_the_workspace() {
    let site = site();
    std::fs::write(site.outside.join("config.json"), r#"{"auths": {"registry": "SECRET"}}"#).unwrap();
    std::os::unix::fs::symlink("../outside/config.json", site.workspace.join(".mcp.json")).unwrap();
    std::os::unix::fs::symlink("../outside", site.workspace.join(".vscode")).unwrap();
    let before = walk(&site.outside);
    for (client, link) in [("claude-code", ".mcp.json"), ("vscode", ".vscode")] {
        for arguments in [&["mcp", "install", client] as &[&str], &["mcp", "install", client, "--yes"]] {
            let said = site.run(arguments);
            assert_eq!(said.code, Some(2), "{said:?}");
            let advice = format!("was not changed: `{link}` is a symbolic link; add this entry yourself:\n\n{{");
            assert!(said.err.contains(&advice) && said.err.contains("\"--workspace\""), "{}", said.err);
            assert!(!said.err.contains("SECRET") && !said.out.contains("SECRET"), "{said:?}");
            assert!(std::fs::symlink_metadata(site.workspace.join(link)).unwrap().is_symlink());
        }
    }
    assert_eq!(walk(&site.outside), before);
}

#[test]
fn settings_that_are_too_long_to_be_read_are_left_whole() {
    let site = site();
    let file = site.home.join(".codex/config.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let text = "# a comment that is a line of its own\n".repeat(120_000) + "last = true\n";
    std::fs::write(&file, &text).unwrap();
    let said = site.run(&["mcp", "install", "codex", "--yes"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("larger than 4194304 bytes; add this entry yourself"), "{}", said.err);
    assert_eq!(std::fs::read_to_string(&file).unwrap().len(), text.len());
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

/// The entries of a directory, with contents.
fn walk(directory: &std::path::Path) -> Vec<(std::ffi::OsString, String)> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let mut found: Vec<_> =
        entries.map(|entry| (entry.file_name(), std::fs::read_to_string(entry.path()).unwrap())).collect();
    found.sort();
    found
}

#[test]
fn doctor_names_the_clients_that_go_around_the_fence() {
    let site = site();
    for client in ["claude-code", "zed", "vscode"] {
        let said = site.run(&["mcp", "install", client, "--yes"]);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    let own = r#"{"default_profile": "mine", "profiles": {"mine": {"tools": {"now": true}}}}"#;
    let file = site.config.join("zed/settings.json");
    let mut settings: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    settings["agent"] = serde_json::from_str(own).unwrap();
    std::fs::write(&file, format!("// mine\n{settings}")).unwrap();
    let said = site.run(&["doctor"]).out;
    let lines = [
        "--  claude-code: built-in tools bypass Ringfence: Bash, DesignSync, Edit, EnterWorktree, ",
        "    in .claude/settings.json: {\"permissions\"",
        "??  vscode: unknown whether built-in tools are off: its settings do not say",
        "ok  zed: built-in file and shell tools are off",
    ];
    lines.iter().for_each(|line| assert!(said.contains(line), "{line}: {said}"));
    assert!(!said.contains(site.root().to_str().unwrap()), "{said}");
    let said: Value = serde_json::from_str(&site.run(&["doctor", "--json"]).out).unwrap();
    let gates: Vec<_> =
        said["clients"].as_array().unwrap().iter().map(|found| (&found["client"], &found["own_tools"])).collect();
    let expected = [("claude-code", "open"), ("vscode", "unknown"), ("zed", "closed")];
    assert_eq!(
        gates,
        expected.map(|(client, gate)| (json!(client), json!(gate))).iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );
}
