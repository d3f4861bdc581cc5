//! Size of messages of `ringfence mcp`: at most 1 MiB, for every request and client.

use ringfence_kernel::MODEL_TEXT_BYTES;
use ringfence_testkit::mcp_client::{LAST_HANDSHAKE, StdioMcpClient, text};
use serde_json::{Value, json};

use crate::site::TestSite;

const MOST: usize = 1 << 20;

/// More than a read returns, of every kind of byte that JSON makes more of.
const FILES: [(&str, &str); 4] =
    [("letters", "x"), ("lines", "ab\n"), ("controls", "\u{1}"), ("mixed", "ü\t\"\\\u{1f}\r\n")];

fn site() -> TestSite {
    let site = TestSite::new();
    for (name, unit) in FILES {
        site.write(name, unit.repeat((MOST + 1000) / unit.len()));
    }
    site.write("bytes", vec![0; MOST + 1000]);
    // A name costs six times as much as it has bytes, and a path has several.
    let directory = format!("deep/{0}/{0}/{0}", "\u{1}".repeat(200));
    for number in 0..300 {
        site.write(&format!("{directory}/{number}{}", "\u{2}".repeat(240)), "x");
    }
    site.write("matches", format!("needle {}\n", "\u{1}".repeat(4000)).repeat(300));
    site
}

/// One of each: older and newer, and those that get plain text, JSON as text, or structured content too.
fn clients(site: &TestSite, arguments: &[&str]) -> Vec<(&'static str, StdioMcpClient)> {
    let greeted = |version: &str, more: &[&str]| {
        let mut client = StdioMcpClient::start(site, &[arguments, more].concat());
        client.initialize(version, json!({}));
        client
    };
    let structured: &[&str] = &["--structured"];
    vec![
        ("plain", greeted(LAST_HANDSHAKE, &[])),
        ("json", greeted("2025-03-26", structured)),
        ("structured", greeted(LAST_HANDSHAKE, structured)),
        ("plain, stateless", StdioMcpClient::stateless(site, arguments, json!({}))),
        ("structured, stateless", StdioMcpClient::stateless(site, &[arguments, structured].concat(), json!({}))),
    ]
}

/// The answer to a request, which is no longer than a message may be.
fn check(client: &mut StdioMcpClient, method: &str, params: Value) -> Value {
    let what = params.to_string().chars().take(200).collect::<String>();
    let answer = client.request(method, params);
    let size = answer.to_string().len();
    assert!(size <= MOST, "{size} bytes for {what}");
    answer
}

fn check_call(client: &mut StdioMcpClient, tool: &str, arguments: Value) -> Value {
    let answer = check(client, "tools/call", json!({"name": tool, "arguments": arguments}));
    assert!(answer.get("error").is_none(), "{:.300}", answer.to_string());
    answer["result"].clone()
}

/// The value of a result, in whichever form it came; the same in each. The last line of a plain text that is a part is its
/// `hint`.
fn value_of(result: &Value, kind: &str) -> Value {
    assert_eq!(result["isError"], false, "{:.300}", result.to_string());
    if kind.starts_with("plain") {
        let said = text(result);
        assert!(said.len() <= MODEL_TEXT_BYTES, "{}", said.len());
        let lines: Vec<&str> = said.lines().collect();
        let hint = lines.last().filter(|line| line.starts_with('[') && line.contains("; "));
        return json!({"content": said, "entries": lines, "matches": lines, "truncated": hint.is_some(), "hint": hint});
    }
    let structured = &result["structuredContent"];
    let said: Value = serde_json::from_str(text(result)).unwrap();
    assert!(structured.is_null() == (kind == "json") && (structured.is_null() || said == *structured), "{kind}");
    said["value"].clone()
}

#[test]
fn a_file_is_read_as_far_as_a_message_goes_and_says_so() {
    let site = site();
    for (kind, mut client) in clients(&site, &[]) {
        for (name, unit) in FILES {
            let value = value_of(&check_call(&mut client, "read_file", json!({"path": name})), kind);
            assert_eq!(value["truncated"], true, "{kind}, {name}");
            if kind.starts_with("plain") {
                continue;
            }
            let content = value["content"].as_str().unwrap();
            // The least that is left, of what costs most: thirteen bytes for one.
            assert!(content.len() > MOST / 16, "{kind}, {name}: {}", content.len());
            assert!(unit.repeat(content.len() / unit.len() + 1).starts_with(content), "{kind}, {name}");
        }
        let lines = json!({"path": "lines", "startLine": 2, "endLine": 340_000});
        let value = value_of(&check_call(&mut client, "read_file", lines), kind);
        assert_eq!(value["truncated"], true, "{kind}");
        let bytes = json!({"path": "bytes", "encoding": "base64"});
        let value = value_of(&check_call(&mut client, "read_file", bytes), kind);
        assert_eq!(value["truncated"], true, "{kind}");
        if kind.starts_with("plain") {
            assert!(value["hint"].as_str().unwrap().contains("; go on in @output/"), "{}", value["hint"]);
            continue;
        }
        assert_eq!(value["content"].as_str().unwrap().len() % 4, 0, "{kind}");
        assert!(value["hint"].as_str().unwrap().contains("1048576 bytes"), "{kind}: {}", value["hint"]);
    }
}

#[test]
fn a_file_that_fits_is_whole() {
    let site = TestSite::new();
    let whole = "some words in a line\n".repeat(1_000);
    site.write("file", &whole);
    for (kind, mut client) in clients(&site, &[]) {
        let value = value_of(&check_call(&mut client, "read_file", json!({"path": "file"})), kind);
        assert_eq!((&value["truncated"], &value["hint"]), (&json!(false), &Value::Null), "{kind}");
        let content = match kind.starts_with("plain") {
            true => whole.lines().enumerate().map(|(at, line)| format!("{}\t{line}\n", at + 1)).collect(),
            false => whole.clone(),
        };
        assert_eq!(value["content"].as_str().unwrap().trim_end(), content.trim_end(), "{kind}");
    }
}

#[test]
fn lists_searches_and_refusals_fit_too() {
    let site = site();
    let long = "l".repeat(3 << 20);
    for (kind, mut client) in clients(&site, &[]) {
        let list =
            value_of(&check_call(&mut client, "list_directory", json!({"path": "deep", "recursive": true})), kind);
        assert!(list["truncated"] == true && list["entries"].as_array().unwrap().len() > 10, "{kind}");
        let found = value_of(&check_call(&mut client, "find_files", json!({"path": ".", "glob": "**"})), kind);
        assert_eq!(found["truncated"], true, "{kind}");
        let search = json!({"path": "matches", "pattern": "needle", "maxMatches": 200, "before": 1, "after": 1});
        let found = value_of(&check_call(&mut client, "search_files", search), kind);
        assert!(found["truncated"] == true && !found["matches"].as_array().unwrap().is_empty(), "{kind}");
        for arguments in [json!({"path": long}), json!({"path": "letters", (long.as_str()): 1})] {
            assert_eq!(check_call(&mut client, "read_file", arguments)["isError"], true, "{kind}");
        }
        check(&mut client, "tools/call", json!({"name": long, "arguments": {}}));
        check(&mut client, &long, json!({}));
        let aside: usize = client.received().iter().map(|message| message.to_string().len()).max().unwrap_or(0);
        assert!(aside <= MOST, "{kind}: a message of {aside} bytes");
    }
}

#[test]
fn resources_fit_too() {
    let site = site();
    for (kind, mut client) in clients(&site, &[]) {
        for name in FILES.map(|(name, _)| name).into_iter().chain(["bytes"]) {
            let answer = check(&mut client, "resources/read", json!({"uri": format!("ringfence:///{name}")}));
            let contents = &answer["result"]["contents"][0];
            assert_eq!(contents["_meta"]["ringfence/truncated"], true, "{kind}, {name}");
            let content = contents["text"].as_str().or(contents["blob"].as_str()).unwrap();
            assert!(content.len() > MOST / 16, "{kind}, {name}: {}", content.len());
        }
        let long = "l".repeat(3 << 20);
        check(&mut client, "resources/read", json!({"uri": format!("ringfence:///{long}")}));
        check(&mut client, "resources/read", json!({"uri": long}));
    }
}

#[test]
fn plain_text_fits_and_says_beside_it_that_it_was_cut() {
    let site = site();
    site.write("small", "\u{1}".repeat(200_000));
    for (kind, mut client) in clients(&site, &["--dialect", "miniclaw"]) {
        let result = check_call(&mut client, "read_file", json!({"path": "small"}));
        assert!(text(&result).starts_with("ok: read 200000 bytes from small\n"), "{kind}");
        assert!(result["content"][1]["text"].as_str().unwrap().contains("was truncated"), "{kind}");
        check_call(&mut client, "list_dir", json!({"path": format!("deep/{0}/{0}/{0}", "\u{1}".repeat(200))}));
    }
}

#[test]
fn the_bound_is_set_by_the_config() {
    let site = site();
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), "[limits]\nmax_reply_bytes = 20000\n").unwrap();
    for (kind, mut client) in clients(&site, &[]) {
        let answer = client.request("tools/call", json!({"name": "read_file", "arguments": {"path": "lines"}}));
        let size = answer.to_string().len();
        assert!((15_000..=20_000).contains(&size), "{kind}: {size}");
    }
}
