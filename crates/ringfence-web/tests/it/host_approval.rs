//! Approval of hosts: who decides, when, and what is recorded.

use ringfence_kernel::Taint;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{
    ScriptedResolver, TestHttpServer, WebTestHost, WebTestSetup, event_channel, path_of, redirect_to, text_page,
};

/// A server on the loopback that may be reached by two names.
fn world_with_rules(
    setup: impl FnOnce(&TestHttpServer) -> WebTestSetup,
    script: impl Fn(&str, u16) -> String + Send + Sync + 'static,
) -> (WebTestHost, TestHttpServer) {
    let server = TestHttpServer::start("127.0.0.1:0", move |head, stream| {
        let port = head.lines().find_map(|line| line.strip_prefix("host: ")?.rsplit_once(':')?.1.parse().ok());
        stream.write_all(script(head, port.unwrap_or(80)).as_bytes())
    });
    let names = ScriptedResolver::default();
    names.add("one.example.org", &[&["127.0.0.1"]]);
    names.add("two.example.org", &[&["127.0.0.1"]]);
    let port = server.address.port();
    let private = vec![format!("one.example.org:{port}"), format!("two.example.org:{port}")];
    let world = WebTestSetup { names, private, ..setup(&server) }.build();
    (world, server)
}

fn allow(hosts: &[&str], server: &TestHttpServer) -> WebTestSetup {
    let hosts: Vec<String> =
        hosts.iter().map(|host| host.replace(":PORT", &format!(":{}", server.address.port()))).collect();
    let rules = if hosts.is_empty() { Vec::new() } else { vec![json!({"decision": "allow", "host": hosts})] };
    WebTestSetup { rules, ..WebTestSetup::default() }
}

#[test]
fn no_name_is_looked_up_before_approval() {
    let (world, server) = world_with_rules(|server| allow(&[], server), |_, _| text_page("x"));
    let url = format!("http://one.example.org:{}/a?q=1", server.address.port());
    assert_eq!(world.error(json!({"url": url})).0, "APPROVAL_DENIED");
    assert!(world.names.asked().is_empty());
    assert_eq!(server.hits(), 0);
    let asked = world.asked.lock().unwrap();
    assert!(asked[0].preview.text().contains(&url), "{}", asked[0].preview.text());
    assert!(!world.session.taint.contains(Taint::SawUntrusted) && !world.session.taint.contains(Taint::HasEgress));
}

#[test]
fn a_host_that_is_allowed_is_not_asked_about_and_what_it_says_is_a_strangers() {
    for method in ["GET", "HEAD", "POST"] {
        let (world, server) =
            world_with_rules(|server| allow(&["one.example.org:PORT"], server), |_, _| text_page("x"));
        let reply =
            world.fetch(json!({"url": format!("http://one.example.org:{}/", server.address.port()), "method": method}));
        assert_eq!(reply["value"]["status"], 200, "{reply}");
        assert!(world.asked.lock().unwrap().is_empty());
        assert!(world.session.taint.contains(Taint::SawUntrusted) && world.session.taint.contains(Taint::HasEgress));
        assert!(server.heads()[0].starts_with(&format!("{method} / HTTP/1.1\r\n")), "{}", server.heads()[0]);
    }
}

#[test]
fn a_rule_can_mean_a_part_of_a_host() {
    let (world, server) =
        world_with_rules(|server| allow(&["one.example.org:PORT/docs/"], server), |head, _| text_page(path_of(head)));
    let url = |path: &str| format!("http://one.example.org:{}{path}", server.address.port());
    assert_eq!(world.body(&url("/docs/a")), "/docs/a");
    assert_eq!(world.body(&url("/x/../docs/b")), "/docs/b");
    for path in ["/", "/docsx", "/docs/../x", "/docs/%2e%2e/x", "/docs/..%2fx", "/docs//x", "/DOCS/a"] {
        assert_eq!(world.error(json!({"url": url(path)})).0, "APPROVAL_DENIED", "{path}");
    }
}

#[test]
fn a_redirect_target_is_asked_about_and_recorded_before_it_is_requested() {
    let script = |head: &str, port: u16| match path_of(head) {
        "/go" => redirect_to(&format!("http://two.example.org:{port}/there")),
        path => text_page(&format!("at {path}")),
    };
    let (denied, server) = world_with_rules(|server| allow(&["one.example.org:PORT"], server), script);
    let url = format!("http://one.example.org:{}/go", server.address.port());
    let (code, message) = denied.error(json!({"url": url}));
    assert_eq!(code, "APPROVAL_DENIED");
    assert!(message.contains("redirects to `two.example.org:"), "{message}");
    assert_eq!((server.hits(), denied.names.asked()), (1, vec!["one.example.org".to_owned()]));

    let (world, server) =
        world_with_rules(|server| WebTestSetup { approves: true, ..allow(&["one.example.org:PORT"], server) }, script);
    let port = server.address.port();
    let reply = world.fetch(json!({"url": format!("http://one.example.org:{port}/go")}));
    assert_eq!(reply["value"]["body"], "at /there", "{reply}");
    assert_eq!(reply["value"]["finalUrl"], format!("http://two.example.org:{port}/there"));
    assert_eq!(reply["value"]["redirects"], json!([format!("http://one.example.org:{port}/go")]));
    let summary = world.asked.lock().unwrap()[0].preview.text();
    assert!(summary.contains(&format!("redirected from http://one.example.org:{port}/go")), "{summary}");
    let trace = world.trace.event_paths();
    assert_eq!(
        trace,
        [
            format!("begin one.example.org:{port}/go"),
            format!("begin two.example.org:{port}/there"),
            format!("end ok two.example.org:{port}/there"),
        ]
    );
}

/// Rules that allow `/public` of a host and say something else to `/private`, and a `POST` that is sent on by 307.
fn redirect_within_host(to: &'static str, private: &str, approves: bool) -> (WebTestHost, TestHttpServer, Value) {
    let (world, server) = world_with_rules(
        |server| {
            let host = format!("one.example.org:{}", server.address.port());
            let rules = vec![
                json!({"decision": "allow", "host": [format!("{host}/public")]}),
                json!({"decision": private, "host": [format!("{host}/private")]}),
            ];
            WebTestSetup { rules, approves, ..WebTestSetup::default() }
        },
        move |head, _| match path_of(head) {
            "/public/x" => format!("HTTP/1.1 307 x\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"),
            path => text_page(&format!("at {path}")),
        },
    );
    let url = format!("http://one.example.org:{}/public/x", server.address.port());
    let reply = world.fetch(json!({"url": url, "method": "POST", "body": "BODY"}));
    (world, server, reply)
}

#[test]
fn a_redirect_within_what_is_allowed_is_followed_without_a_question_and_recorded() {
    let (world, server, reply) = redirect_within_host("/public/y?z", "deny", false);
    assert_eq!(reply["value"]["body"], "at /public/y?z", "{reply}");
    assert!(server.heads()[1].starts_with("POST /public/y?z ") && server.heads()[1].ends_with("BODY"));
    assert!(world.asked.lock().unwrap().is_empty());
    let host = format!("one.example.org:{}", server.address.port());
    assert_eq!(
        world.trace.event_paths(),
        [format!("begin {host}/public/x"), format!("begin {host}/public/y"), format!("end ok {host}/public/y"),]
    );
}

#[test]
fn a_redirect_to_a_part_of_the_host_that_is_denied_is_not_followed() {
    let (world, server, reply) = redirect_within_host("/private/collect", "deny", true);
    assert_eq!(reply["error"]["code"], "PERMISSION_DENIED", "{reply}");
    let message = reply["error"]["message"].as_str().unwrap();
    let host = format!("one.example.org:{}", server.address.port());
    assert!(message.contains(&format!("redirects to `{host}/private/collect`, which was not fetched")), "{message}");
    assert_eq!(server.hits(), 1);
    assert!(world.asked.lock().unwrap().is_empty());
    assert_eq!(
        world.trace.event_paths(),
        [format!("begin {host}/public/x"), format!("end PermissionDenied {host}/public/x")]
    );
}

#[test]
fn a_redirect_to_a_part_of_the_host_that_is_asked_about_waits_for_a_yes() {
    let (world, server, reply) = redirect_within_host("/private/collect", "ask", false);
    assert_eq!(reply["error"]["code"], "APPROVAL_DENIED", "{reply}");
    assert_eq!((server.hits(), world.asked.lock().unwrap().len()), (1, 1));

    let (world, server, reply) = redirect_within_host("/private/collect", "ask", true);
    assert_eq!(reply["value"]["body"], "at /private/collect", "{reply}");
    let host = format!("one.example.org:{}", server.address.port());
    let shown = world.asked.lock().unwrap()[0].preview.text();
    for words in [format!("POST http://{host}/private/collect"), format!("redirected from http://{host}/public/x")] {
        assert!(shown.contains(&words), "{shown}");
    }
    assert!(world.trace.event_paths().contains(&format!("begin {host}/private/collect")));
}

#[test]
fn changed_arguments_do_not_change_a_redirect_target() {
    let (world, server) = world_with_rules(
        |server| {
            let changes = Some(json!({"url": format!("http://two.example.org:{}/other", server.address.port())}));
            WebTestSetup { approves: true, changes, ..allow(&["one.example.org:PORT"], server) }
        },
        |_, port| redirect_to(&format!("http://two.example.org:{port}/there")),
    );
    let (code, message) = world.error(json!({"url": format!("http://one.example.org:{}/go", server.address.port())}));
    assert_eq!(code, "APPROVAL_DENIED");
    assert!(message.starts_with("the call has started, so its arguments cannot be changed"), "{message}");
    assert!(message.contains("redirects to `two.example.org:"), "{message}");
    assert_eq!(server.hits(), 1);
}

#[test]
fn credentials_are_not_sent_to_another_host() {
    let script = |head: &str, port: u16| match path_of(head) {
        "/same" => "HTTP/1.1 307 x\r\nLocation: /end\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "/other" => {
            format!("HTTP/1.1 307 x\r\nLocation: http://two.example.org:{port}/end\r\nContent-Length: 0\r\n\r\n")
        }
        "/found" => redirect_to("/end"),
        _ => text_page("end"),
    };
    let (world, server) =
        world_with_rules(|server| allow(&["one.example.org:PORT", "two.example.org:PORT"], server), script);
    let headers = json!({"Authorization": "Bearer token", "Cookie": "a=b", "X-Api-Key": "key", "X-Other": "y", "Accept-Language": "de", "Content-Type": "application/json"});
    let post = |path: &str| {
        let url = format!("http://one.example.org:{}{path}", server.address.port());
        let reply = world.fetch(json!({"url": url, "method": "POST", "headers": headers, "body": "BODY"}));
        assert_eq!(reply["value"]["body"], "end", "{reply}");
        server.heads().last().unwrap().to_lowercase()
    };
    let same = post("/same");
    assert!(same.starts_with("post /end") && same.contains("bearer token") && same.ends_with("body"), "{same}");
    let found = post("/found");
    assert!(found.starts_with("get /end") && found.contains("bearer token") && !found.ends_with("body"), "{found}");
    let other = post("/other");
    assert!(other.starts_with("get /end") && other.contains("accept-language: de"), "{other}");
    for gone in ["bearer", "cookie", "x-api-key", "x-other", "content-type", "body"] {
        assert!(!other.contains(gone), "{gone}: {other}");
    }
}

#[test]
fn redirects_have_a_bound() {
    let (world, server) = world_with_rules(
        |server| allow(&["one.example.org:PORT"], server),
        |head, _| match path_of(head).len() {
            7.. => text_page("end"),
            _ => redirect_to(&format!("{}x", path_of(head))),
        },
    );
    let url = |path: &str| format!("http://one.example.org:{}{path}", server.address.port());
    assert_eq!(world.body(&url("/x")), "end");
    let (code, message) = world.error(json!({"url": url("/")}));
    assert_eq!(code, "NETWORK_ERROR");
    assert!(message.contains("more than 5 redirects"), "{message}");
}

#[test]
fn headers_that_speak_for_the_connection_are_refused_before_anybody_is_asked() {
    let (world, server) = world_with_rules(|server| allow(&["one.example.org:PORT"], server), |_, _| text_page("x"));
    let url = format!("http://one.example.org:{}/", server.address.port());
    for (name, value) in [
        ("Host", "two.example.org"),
        ("Content-Length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("transfer-encoding", " chunked"),
        ("TE", "trailers"),
        ("Connection", "keep-alive"),
        ("Connection", "close, x-other"),
        ("Upgrade", "websocket"),
        ("Proxy-Authorization", "x"),
        ("Expect", "100-continue"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Original-URL", "/admin"),
        ("Metadata-Flavor", "Google"),
        ("X-aws-ec2-metadata-token", "x"),
        ("X-A", "b\r\nTransfer-Encoding: chunked"),
        ("X-A", "b\r\n\r\nGET /admin HTTP/1.1"),
        ("X-A\r\nHost: x", "b"),
        ("X A", "b"),
        ("X-A:", "b"),
        ("", "b"),
        ("X-A", "b\0"),
    ] {
        let (code, message) = world.error(json!({"url": url, "headers": {name: value}}));
        assert_eq!(code, "INVALID_ARGS", "{name}: {message}");
    }
    let twice = json!({"url": url, "headers": {"X-A": "b", "x-a": "c"}});
    assert_eq!(world.error(twice).0, "INVALID_ARGS");
    assert_eq!(world.error(json!({"url": url, "body": "x"})).0, "INVALID_ARGS");
    assert_eq!(world.error(json!({"url": url, "method": "DELETE"})).0, "INVALID_ARGS");
    assert_eq!(world.error(json!({"url": url, "timeout": 0})).0, "INVALID_ARGS");
    assert_eq!(world.error(json!({"url": url, "timeout": 31})).0, "INVALID_ARGS");
    assert_eq!(server.hits(), 0);
}

#[test]
fn cancelling_ends_the_connection() {
    let (arrived, hears_arrival) = event_channel();
    let (gone, hears_end) = event_channel();
    let server = TestHttpServer::start("127.0.0.1:0", move |_, stream| {
        arrived.lock().unwrap().send(()).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")?;
        // Comes back when the other end is closed.
        let end = stream.read(&mut [0]);
        gone.lock().unwrap().send(matches!(end, Ok(0) | Err(_))).unwrap();
        Ok(())
    });
    let at = server.address.to_string();
    let rules = vec![json!({"decision": "allow", "host": &at})];
    let world = WebTestSetup { private: vec![at.clone()], rules, ..WebTestSetup::default() }.build();
    let cancel = CancellationToken::new();
    let canceller = cancel.clone();
    let waits = std::thread::spawn(move || {
        hears_arrival.recv().unwrap();
        canceller.cancel();
    });
    let reply = world.call_until("web_fetch", &json!({"url": format!("http://{at}/")}), &cancel);
    assert_eq!(reply["error"]["code"], "CANCELLED", "{reply}");
    waits.join().unwrap();
    assert!(hears_end.recv().unwrap());
}
