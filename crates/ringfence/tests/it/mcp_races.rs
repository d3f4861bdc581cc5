//! Concurrent clients, and changes behind a client's back.

use std::os::unix::fs::symlink;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ringfence_testkit::mcp_client::StdioMcpClient;
use ringfence_testkit::swap_race::PathSwapper;
use serde_json::{Value, json};

use crate::site::TestSite;

/// Duration of a race: longer with `cargo xtask test --full`.
fn race_time() -> Duration {
    Duration::from_secs(if std::env::var_os("RINGFENCE_FULL").is_some() { 20 } else { 1 })
}

#[test]
fn eight_clients_that_edit_one_file_lose_nothing() {
    const CLIENTS: usize = 8;
    const EDITS: usize = 12;
    let site = Arc::new(TestSite::in_memory());
    let lines: String = (0..CLIENTS * EDITS).map(|number| format!("line {number} old\n")).collect();
    site.write("shared", lines);
    let start = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (site, start) = (Arc::clone(&site), Arc::clone(&start));
            std::thread::spawn(move || {
                let mut server = StdioMcpClient::with_handshake(&*site, &["--preset", "edits"], json!({}));
                start.wait();
                let edit = |number: usize| {
                    json!({"path": "shared", "oldText": format!("line {number} old\n"), "newText": format!("line {number} new\n")})
                };
                let mine = (client * EDITS)..((client + 1) * EDITS);
                let acknowledged: Vec<usize> =
                    mine.filter(|number| server.call("edit_file", edit(*number))["isError"] == false).collect();
                acknowledged
            })
        })
        .collect();
    let acknowledged: Vec<usize> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    let text = site.read("shared");
    assert_eq!(acknowledged.len(), CLIENTS * EDITS, "none of them was in another's way");
    for number in acknowledged {
        assert!(text.contains(&format!("line {number} new\n")), "{number} was acknowledged and is lost");
    }
    assert_eq!(text.lines().count(), CLIENTS * EDITS);
    assert!(site.temp_files().is_empty());
}

/// `d` alternates between a directory and a link out of the workspace.
fn swap_directory_and_link(site: &TestSite) -> PathSwapper {
    let (name, link) = (site.workspace.join("d"), site.workspace.join("link"));
    std::fs::create_dir(&name).unwrap();
    std::fs::write(name.join("secret"), "inside\n").unwrap();
    symlink(&site.outside, &link).unwrap();
    PathSwapper::start(name, link)
}

#[test]
fn a_swapped_in_link_does_not_lead_out() {
    let tools: [(&str, Value); 7] = [
        ("read_file", json!({"path": "d/secret"})),
        ("list_directory", json!({"path": "d"})),
        ("search_files", json!({"path": ".", "pattern": "SECRET"})),
        ("write_file", json!({"path": "d/new", "content": "x"})),
        ("edit_file", json!({"path": "d/secret", "oldText": "SECRET", "newText": "taken"})),
        ("append_file", json!({"path": "d/secret", "content": "x"})),
        ("copy_file", json!({"from": "d/secret", "to": "copy", "overwrite": true})),
    ];
    for (tool, arguments) in tools {
        let site = TestSite::in_memory();
        let mut client = StdioMcpClient::with_handshake(&site, &["--preset", "edits"], json!({}));
        let swapped = swap_directory_and_link(&site);
        let (started, mut calls) = (Instant::now(), 0);
        // A busy machine may take longer for a few calls.
        while started.elapsed() < race_time() || calls <= 10 {
            let result = client.call(tool, arguments.clone());
            assert!(!result.to_string().contains("SECRET\\n"), "{tool} led out after {calls} calls: {result}");
            calls += 1;
        }
        drop(swapped);
        let outside: Vec<_> =
            std::fs::read_dir(&site.outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(outside, ["secret"], "{tool}");
        assert_eq!(std::fs::read_to_string(site.outside.join("secret")).unwrap(), "SECRET\n", "{tool}");
        let copied = std::fs::read_to_string(site.workspace.join("copy")).unwrap_or_default();
        assert!(!copied.contains("SECRET"), "{tool}");
        println!("{tool}: {calls} calls in {:.0?}, none led out", race_time());
    }
}
