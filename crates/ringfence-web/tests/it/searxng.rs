//! SearXNG for real, where it is installed (Debian's package `searx`; `cargo xtask test --full` installs it).

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ringfence_testkit::requirement::{Requirement, skip_without};
use ringfence_web::{SearchEngine, SearchEngineKind};
use serde_json::json;

use crate::harness::{TestHttpServer, WebTestSetup, path_of, response_with_type};

const SETTINGS: &str = "/usr/share/doc/searx/examples/settings.yml";
const PYTHON: &str = "/usr/bin/python3";

/// Ends with the test.
struct SearxngProcess(Child);

impl Drop for SearxngProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The settings of the package, with one engine that asks a server of ours.
fn settings(port: u16, source: &TestHttpServer) -> String {
    let text = std::fs::read_to_string(SETTINGS).unwrap();
    let (before, rest) = text.split_once("\nengines:\n").unwrap();
    let (_, after) = rest.split_once("\nlocales:\n").unwrap();
    let before =
        before.replace("port : 8888", &format!("port : {port}")).replace("ultrasecretkey", "a-key-of-this-test");
    let engine = format!(
        "  - name : ours\n    engine : json_engine\n    shortcut : ou\n    categories : general\n    enable_http : True\n    \
         search_url : http://{}/s?q={{query}}\n    results_query : found\n    url_query : link\n    title_query : name\n    \
         content_query : words\n",
        source.address
    );
    format!("{before}\nengines:\n{engine}\nlocales:\n{after}")
}

/// Starts it, and waits until it says that it runs. Nothing where another process took its port meanwhile.
fn start(settings: &Path) -> Option<SearxngProcess> {
    let mut command = Command::new(PYTHON);
    command.args(["-m", "searx.webapp"]).env("SEARX_SETTINGS_PATH", settings).env_remove("http_proxy");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = SearxngProcess(child);
    let mut said = String::new();
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let runs = lines.by_ref().map_while(Result::ok).any(|line| {
        said.push_str(&line);
        said.push('\n');
        line.contains("Running on")
    });
    if !runs && said.contains("Address already in use") {
        return None;
    }
    assert!(runs, "{said}");
    // What it says from here on must not fill the pipe.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    Some(running)
}

#[test]
fn a_real_searxng_answers_a_search() {
    let installed = Path::new(SETTINGS).is_file()
        && Command::new(PYTHON)
            .args(["-c", "import importlib.util as u; exit(u.find_spec('searx') is None)"])
            .status()
            .is_ok_and(|status| status.success());
    if !installed {
        return skip_without(Requirement::Searxng, "Debian's package `searx` is not installed");
    }
    let source = TestHttpServer::start("127.0.0.1:0", |head, stream| {
        assert!(path_of(head).starts_with("/s?q=ring"), "{head}");
        let found = r#"{"found": [{"link": "https://a.org/x", "name": "A <b>ring</b>", "words": "one &amp; two"}, {"link": "https://b.org/", "name": "B", "words": "c"}]}"#;
        stream.write_all(response_with_type("application/json", found).as_bytes())
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settings.yml");
    // It cannot be given a listener, nor does it say which port it was given.
    let (port, _running) = (0..10)
        .find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            std::fs::write(&file, settings(port, &source)).unwrap();
            Some((port, start(&file)?))
        })
        .expect("a port that is free");
    let engine =
        SearchEngine::new(SearchEngineKind::SearXng, Some(&format!("http://127.0.0.1:{port}/")), None).unwrap();
    let world = WebTestSetup { engine: Some(engine), rules: Vec::new(), ..WebTestSetup::default() }.build();
    let reply = world.call("web_search", &json!({"query": "ring fence"}));
    let found: Vec<(&str, &str)> = reply["value"]["results"]
        .as_array()
        .unwrap_or_else(|| panic!("{reply}"))
        .iter()
        .map(|hit| (hit["url"].as_str().unwrap(), hit["title"].as_str().unwrap()))
        .collect();
    assert_eq!(found, [("https://a.org/x", "A ring"), ("https://b.org/", "B")], "{reply}");
    assert!(source.hits() > 0);
}
