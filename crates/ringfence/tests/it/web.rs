//! The web's tools as callers have them: by the command line, with a config, against servers on this machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite, cli_output};

/// A server that answers each request with this, until the test ends.
pub(crate) fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> SocketAddr {
    serve_at("127.0.0.1", move |line| answer(line).into_bytes())
}

fn serve_at(address: &str, answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let _ = stream.write_all(&answer(head.first().map(String::as_str).unwrap_or_default()));
        }
    });
    at
}

pub(crate) fn page(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn call(site: &TestSite, tool: &str, arguments: &Value) -> CliOutput {
    let mut command = site.command(&["call", tool, &arguments.to_string()]);
    cli_output(command.output().unwrap())
}

fn configure(site: &TestSite, text: &str) {
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), text).unwrap();
}

fn code_of(said: &CliOutput) -> Value {
    serde_json::from_str::<Value>(&said.out).unwrap()["error"]["code"].clone()
}

#[test]
fn a_host_of_ones_own_is_fetched_where_the_config_allows_it() {
    let at = serve(|_| page("text/html", "<h1>Wiki</h1>"));
    let site = TestSite::new();
    let url = json!({"url": format!("http://{at}/"), "format": "markdown"});
    assert_eq!(code_of(&call(&site, "web_fetch", &url)), "NETWORK_ERROR");
    configure(&site, &format!("[web]\nallow_private = [\"{at}\"]\n"));
    assert_eq!(code_of(&call(&site, "web_fetch", &url)), "APPROVAL_DENIED");
    configure(&site, &format!("[web]\nallow_private = [\"{at}\"]\n[[rules]]\ndecision = \"allow\"\nhost = \"{at}\"\n"));
    assert_eq!(call(&site, "web_fetch", &url).value()["body"], "# Wiki");
}

#[test]
fn a_workspace_allows_no_private_host_and_no_engine() {
    let site = TestSite::new();
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
    let site = TestSite::new();
    assert_eq!(code_of(&call(&site, "web_search", &json!({"query": "ring fence"}))), "UNAVAILABLE");
    configure(&site, &format!("[web.search]\nengine = \"searxng\"\nurl = \"http://{at}/\"\n"));
    let value = call(&site, "web_search", &json!({"query": "ring fence"})).value();
    assert_eq!(value["results"], json!([{"title": "A", "url": "https://a.org/", "snippet": "b"}]));
}

/// Connections of a program in the jail with these hosts granted.
const FETCH_SCRIPT: &str = r#"
import os, socket, sys, urllib.error, urllib.request
def reach(url):
    try:
        return urllib.request.urlopen(url, timeout=10).read().decode()
    except urllib.error.HTTPError as error:
        return f"refused {error.code}"
    except Exception as error:
        return f"nothing ({type(error).__name__})"
granted, other = sys.argv[1:]
print(reach(f"http://{granted}/a"))
print(reach(f"http://{other}/a"))
print(reach("http://169.254.169.254/latest/meta-data/"))
host, port = granted.split(":")
try:
    socket.create_connection((host, int(port)), timeout=5)
    print("around the proxy")
except OSError as error:
    print("no way around")
"#;

#[test]
fn a_program_reaches_the_hosts_that_it_was_granted_and_nothing_else() {
    // Not the address that programs keep for themselves.
    let [granted, other] =
        ["granted", "other"].map(|name| serve_at("127.0.0.2", move |_| page("text/plain", name).into_bytes()));
    let site = TestSite::new();
    let config = format!("[web]\nallow_private = [\"{granted}\", \"{other}\"]\n");
    configure(&site, &config);
    let mut program = json!({
        "language": "python", "code": FETCH_SCRIPT, "args": [granted.to_string(), other.to_string()], "network": [granted.to_string()],
    });
    assert_eq!(code_of(&call(&site, "run_code", &program)), "APPROVAL_DENIED");
    configure(&site, &format!("{config}[[rules]]\ndecision = \"allow\"\nhost = \"{granted}\"\n"));
    let value = call(&site, "run_code", &program).value();
    assert_eq!(value["stdout"], "granted\nrefused 403\nrefused 403\nno way around\n", "{value}");
    let recorded = audit_of(&site);
    let reached = |place: &str, ok: bool| {
        let of_place = |line: &&Value| line["event"] == "access" && line["accesses"][0]["path"] == place;
        recorded.iter().filter(of_place).any(|line| line["ok"] == ok)
    };
    assert!(reached(&granted.to_string(), true) && reached(&other.to_string(), false), "{recorded:?}");
    assert!(reached("169.254.169.254", false), "{recorded:?}");
    // Where a rule is about a part of a host, the part that an encrypted connection is for is unknown.
    configure(&site, &format!("{config}[[rules]]\ndecision = \"allow\"\nhost = \"{granted}/a\"\n"));
    assert_eq!(code_of(&call(&site, "run_code", &program)), "APPROVAL_DENIED");
    program["network"] = json!([]);
    let value = call(&site, "run_code", &program).value();
    assert!(value["stdout"].as_str().unwrap().starts_with("nothing (URLError)\n"), "{value}");
    program["network"] = json!(["http://x/"]);
    assert_eq!(code_of(&call(&site, "run_code", &program)), "INVALID_ARGS");
}

const LOOPBACK_SCRIPT: &str = r#"
import http.server, sys, threading, urllib.request
at = sys.argv[1]
for path in ("/a?b", "/other"):
    try: print(urllib.request.urlopen(f"http://{at}{path}", timeout=20).read().decode())
    except OSError as error: print("nothing")
# Its own servers are its own.
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").status)
"#;

#[test]
fn a_server_of_this_machines_loopback_is_reached_where_its_owner_names_it() {
    let at = serve(|line| page("text/plain", line.split(' ').nth(1).unwrap_or_default()));
    let site = TestSite::new();
    let program = json!({
        "language": "python", "code": LOOPBACK_SCRIPT, "args": [at.to_string()], "network": [at.to_string()],
    });
    let rule = format!("[[rules]]\ndecision = \"allow\"\nhost = \"{at}\"\n");
    configure(&site, &rule);
    assert_eq!(code_of(&call(&site, "run_code", &program)), "NETWORK_ERROR");
    for named in [at.to_string(), "127.0.0.0/8".to_owned(), format!("127.0.0.1/32:{}", at.port())] {
        configure(&site, &format!("[web]\nallow_private = [\"{named}\"]\n{rule}"));
        let value = call(&site, "run_code", &program).value();
        assert_eq!(value["stdout"], "/a?b\n/other\n200\n", "{named}: {value}");
    }
    let of_server = |line: &Value| line["event"] == "access" && line["accesses"][0]["path"] == at.to_string();
    assert!(audit_of(&site).iter().any(of_server));
    // Without the grant it is as if it were not there.
    let program = json!({"language": "python", "code": LOOPBACK_SCRIPT, "args": [at.to_string()]});
    let value = call(&site, "run_code", &program).value();
    assert_eq!(value["stdout"], "nothing\nnothing\n200\n", "{value}");
}

const FLOOD_SCRIPT: &str = r#"
import os, socket, sys, urllib.parse, urllib.request
granted, other = sys.argv[1:]
proxy = urllib.parse.urlparse(os.environ["HTTP_PROXY"])
for _ in range(1100):
    with socket.create_connection((proxy.hostname, proxy.port)) as knock:
        knock.sendall(f"GET http://{other}/ HTTP/1.1\r\nHost: {other}\r\nConnection: close\r\n\r\n".encode())
        while knock.recv(4096): pass
for _ in range(3):
    print(urllib.request.urlopen(f"http://{granted}/", timeout=20).read().decode())
"#;

#[test]
fn a_program_that_knocks_without_end_does_not_fill_the_log() {
    let [granted, other] =
        ["granted", "other"].map(|name| serve_at("127.0.0.2", move |_| page("text/plain", name).into_bytes()));
    let site = TestSite::new();
    let rule = format!("[[rules]]\ndecision = \"allow\"\nhost = \"{granted}\"\n");
    configure(&site, &format!("[web]\nallow_private = [\"{granted}\", \"{other}\"]\n{rule}"));
    let program = json!({
        "language": "python", "code": FLOOD_SCRIPT, "args": [granted.to_string(), other.to_string()], "network": [granted.to_string()],
    });
    let value = call(&site, "run_code", &program).value();
    assert_eq!(value["stdout"], "granted\ngranted\ngranted\n", "{value}");
    let recorded = audit_of(&site);
    let reached = |place: &str| {
        let of_place = |line: &&Value| line["event"] == "access" && line["accesses"][0]["path"] == place;
        recorded.iter().filter(of_place).count()
    };
    assert_eq!((reached(&other.to_string()), reached(&granted.to_string())), (1000, 1));
    let unlisted = recorded.iter().position(|line| line["event"] == "access-unlisted").unwrap();
    assert_eq!((&recorded[unlisted]["count"], &recorded[unlisted]["refused"]), (&json!(102), &json!(100)));
    assert_eq!(recorded[unlisted + 1]["event"], "end");
}

const WHEEL_SCRIPT: &str = r#"
import zipfile
with zipfile.ZipFile("tiny-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny.py", "")
    wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("tiny-1.0.dist-info/RECORD", "")
"#;

/// An index of packages that has one, and notes what it is asked.
fn index(wheel: Vec<u8>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    let at = serve_at("127.0.0.2", move |line| {
        notes.lock().unwrap().push(line.to_owned());
        if line.starts_with("GET /simple/tiny/ ") {
            let name = "tiny-1.0-py3-none-any.whl";
            return page("text/html", &format!("<a href='/files/{name}'>{name}</a>")).into_bytes();
        }
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/zip\r\nContent-Length: {}\r\n\r\n", wheel.len());
        [head.as_bytes(), &wheel].concat()
    });
    (at, asked)
}

#[test]
fn pip_downloads_from_the_index_that_it_was_granted_and_from_no_other() {
    let site = TestSite::new();
    let made = call(&site, "run_code", &json!({"language": "python", "code": WHEEL_SCRIPT})).value();
    assert_eq!(made["committed"], "all", "{made}");
    let wheel = std::fs::read(site.workspace.join("tiny-1.0-py3-none-any.whl")).unwrap();
    let [(granted, asked), (other, asked_elsewhere)] = [index(wheel.clone()), index(wheel.clone())];
    configure(
        &site,
        &format!(
            "[web]\nallow_private = [\"{granted}\", \"{other}\"]\n[[rules]]\ndecision = \"allow\"\nhost = \"{granted}\"\n"
        ),
    );
    let download = |from: SocketAddr, to: &str| {
        let pip = "python3 -m pip --version >/dev/null 2>&1 || exit 77; python3 -m pip download --retries 0 --no-deps --no-cache-dir";
        let code = format!("{pip} --trusted-host {} --index-url http://{from}/simple/ -d {to} tiny 2>&1", from.ip());
        call(&site, "run_code", &json!({"language": "bash", "code": code, "network": [granted.to_string()]})).value()
    };
    let value = download(granted, "out");
    if value["exitCode"] == 77 {
        return skip_without(Requirement::Pip, "the jail has no pip");
    }
    assert_eq!(value["exitCode"], 0, "{value}");
    assert_eq!(std::fs::read(site.workspace.join("out/tiny-1.0-py3-none-any.whl")).unwrap(), wheel);
    assert!(asked.lock().unwrap().iter().any(|line| line.starts_with("GET /files/")));
    let value = download(other, "elsewhere");
    assert_ne!(value["exitCode"], 0, "{value}");
    assert!(asked_elsewhere.lock().unwrap().is_empty());
}

/// Every line of the audit log.
fn audit_of(site: &TestSite) -> Vec<Value> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(site.state.join("audit")).unwrap() {
        let text = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        lines.extend(String::from_utf8_lossy(&text).lines().filter_map(|line| serde_json::from_str(line).ok()));
    }
    lines
}
