//! What the config says holds for whoever calls the API, in the words of whatever dialect they choose.

use serde_json::json;

use crate::api_client::Server;
use crate::site::Site;

/// Starts a server with a config of the user's.
fn serve(site: &Site, config: &str) -> Server {
    let file = site.current.join("config.toml");
    std::fs::write(&file, config).unwrap();
    Server::start(site, &["--config", file.to_str().unwrap(), "--wait", "0"])
}

/// What reading and overwriting a file come to, in every dialect: an error, or nothing.
#[track_caller]
fn check(config: &str, expected: [Option<&str>; 2]) {
    let site = Site::in_memory();
    let server = serve(&site, config);
    let agent = server.agent(&site, "agent");
    for (dialect, read, write, path) in [
        ("standard", "read_file", "write_file", "private/x"),
        ("miniclaw", "read_file", "write_file", "private/x"),
        ("crewagent", "fs.read", "fs.write", "@project/private/x"),
    ] {
        site.write("private/x", "old\n");
        let session = agent.begin(&json!({"dialect": dialect}));
        let read = agent.call(&session, read, json!({"path": path}));
        let written = agent.call(&session, write, json!({"path": path, "content": "new\n"}));
        assert_eq!([&read, &written].map(|got| got["error"].as_str()), expected, "{dialect}: {config}{read} {written}");
        assert_eq!(read["reply"].to_string().contains("old"), expected[0].is_none(), "{dialect}: {config}{read}");
        assert_eq!(site.read("private/x") == "new\n", expected[1].is_none(), "{dialect}: {config}{written}");
    }
}

const DENIED: Option<&str> = Some("PERMISSION_DENIED");
const ASKED: Option<&str> = Some("APPROVAL_DENIED");
const NOT_THERE: Option<&str> = Some("UNKNOWN_TOOL");

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
        check(&format!("[tools]\ndeny = [\"{write}\"]\n"), [None, NOT_THERE]);
        check(&format!("[tools]\nallow = [\"{read}\"]\n"), [None, NOT_THERE]);
    }
}
