//! The web's tools as callers have them: by the command line, with a config, against servers on this machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};

use crate::site::{Said, Site, said};

/// A server that answers each request with this, until the test ends.
fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let _ = stream.write_all(answer(head.first().map(String::as_str).unwrap_or_default()).as_bytes());
        }
    });
    at
}

fn page(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn call(site: &Site, tool: &str, arguments: &Value) -> Said {
    let mut command = site.command(&["call", tool, &arguments.to_string()]);
    said(command.output().unwrap())
}

fn configure(site: &Site, text: &str) {
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), text).unwrap();
}

fn code_of(said: &Said) -> Value {
    serde_json::from_str::<Value>(&said.out).unwrap()["error"]["code"].clone()
}

#[test]
fn a_host_of_ones_own_is_fetched_where_the_config_allows_it() {
    let at = serve(|_| page("text/html", "<h1>Wiki</h1>"));
    let site = Site::new();
    let url = json!({"url": format!("http://{at}/"), "format": "markdown"});
    assert_eq!(code_of(&call(&site, "web_fetch", &url)), "NETWORK_ERROR");
    configure(&site, &format!("[web]\nallow_private = [\"{at}\"]\n"));
    assert_eq!(code_of(&call(&site, "web_fetch", &url)), "APPROVAL_DENIED");
    configure(&site, &format!("[web]\nallow_private = [\"{at}\"]\n[[rules]]\ndecision = \"allow\"\nhost = \"{at}\"\n"));
    assert_eq!(call(&site, "web_fetch", &url).value()["body"], "# Wiki");
}

#[test]
fn a_workspace_allows_no_private_host_and_no_engine() {
    let site = Site::new();
    for text in [
        "[web]\nallow_private = [\"127.0.0.1:80\"]\n",
        "[web.search]\nengine = \"searxng\"\nurl = \"http://127.0.0.1/\"\n",
    ] {
        site.write("ringfence.toml", text);
        let said = call(&site, "web_search", &json!({"query": "x"}));
        assert!(said.code != Some(0) && said.err.contains("unknown field `web`"), "{said:?}");
    }
}

#[test]
fn a_search_goes_to_the_engine_that_the_config_names() {
    let at = serve(|line| match line {
        "GET /search?q=ring+fence&format=json HTTP/1.1" => {
            page("application/json", r#"{"results": [{"url": "https://a.org/", "title": "A", "content": "b"}]}"#)
        }
        other => panic!("{other}"),
    });
    let site = Site::new();
    assert_eq!(code_of(&call(&site, "web_search", &json!({"query": "ring fence"}))), "UNAVAILABLE");
    configure(&site, &format!("[web.search]\nengine = \"searxng\"\nurl = \"http://{at}/\"\n"));
    let value = call(&site, "web_search", &json!({"query": "ring fence"})).value();
    assert_eq!(value["results"], json!([{"title": "A", "url": "https://a.org/", "snippet": "b"}]));
}
