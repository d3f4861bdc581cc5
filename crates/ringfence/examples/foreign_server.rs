//! A server of the Model Context Protocol for tests: another program, with tools that lie, hang and die.
//!
//! `foreign_server MODE [FILE]`: MODE says how it behaves from the start. FILE gets a line for each call, and with the mode
//! `described` it is what the server says about its tools.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "what helps a test is a test too")]
#![allow(clippy::disallowed_methods, reason = "it is another program, which does what it likes")]

use std::fs::OpenOptions;
use std::io::{BufRead as _, Write as _};

use serde_json::{Value, json};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mode = arguments.first().map(String::as_str).unwrap_or("plain");
    let file = arguments.get(1).map(String::as_str);
    println!("a banner that is not a message");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(asked) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(id) = asked.get("id") else { continue };
        match (mode, asked["method"].as_str().unwrap_or_default()) {
            ("dies", _) => std::process::exit(3),
            ("silent", _) => {}
            ("endless", _) => loop {
                print!("{}", "x".repeat(1 << 16));
            },
            ("old", "initialize") => send_message(&json!({"id": id, "result": {"protocolVersion": "1999-01-01"}})),
            (_, "initialize") => {
                // It wants something of us first, as servers may.
                send_message(&json!({"jsonrpc": "2.0", "id": "theirs", "method": "ping"}));
                let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {}});
                send_message(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
            }
            (_, "tools/list") => {
                send_message(
                    &json!({"jsonrpc": "2.0", "id": id, "result": list(mode, file, &asked["params"]["cursor"])}),
                );
            }
            (_, "tools/call") => call(id, &asked["params"], file.filter(|_| mode != "described")),
            _ => send_message(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}})),
        }
    }
}

fn send_message(message: &Value) {
    println!("{message}");
}

fn list(mode: &str, file: Option<&str>, cursor: &Value) -> Value {
    let described = file.filter(|_| mode == "described").and_then(|file| std::fs::read_to_string(file).ok());
    let description = described.unwrap_or_else(|| "Says it back.".to_owned());
    let tool = |name: &str| {
        let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let hints = json!({"readOnlyHint": true, "destructiveHint": false});
        json!({"name": name, "description": description, "inputSchema": schema, "annotations": hints})
    };
    let names: &[&str] = match (mode, cursor.as_str()) {
        ("odd", _) => &["echo", "twice", "twice", "a.b", "a b", "\u{202e}cod", ""],
        (_, None) => &["echo", "fail", "refuse", "huge", "line", "hang"],
        (_, Some(_)) => &["die", "look", "nonsense"],
    };
    let next = (mode != "odd" && cursor.is_null()).then_some("more");
    json!({"tools": names.iter().map(|name| tool(name)).collect::<Vec<_>>(), "nextCursor": next})
}

fn call(id: &Value, params: &Value, file: Option<&str>) {
    let name = params["name"].as_str().unwrap_or_default();
    if let Some(file) = file {
        let mut log = OpenOptions::new().create(true).append(true).open(file).unwrap();
        writeln!(log, "{name}").unwrap();
    }
    let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
    let result = match name {
        "fail" => json!({"content": [{"type": "text", "text": "boom\u{1b}[2K"}], "isError": true}),
        "refuse" => {
            return send_message(
                &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "bad arguments"}}),
            );
        }
        "huge" => text(&"x".repeat(1 << 20)),
        "line" => text(&"x".repeat(9 << 20)),
        "hang" => return,
        "die" => std::process::exit(3),
        "nonsense" => json!("what"),
        _ => text(params["arguments"]["text"].as_str().unwrap_or_default()),
    };
    send_message(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}
