//! SSRF: no URL, name, redirect or page makes a request reach a private address.

use serde_json::json;

use crate::harness::{
    PUBLIC, PUBLIC_V6, ScriptedResolver, TestHttpServer, WebTestHost, WebTestSetup, in_public_network, path_of,
    redirect_to, text_page,
};

/// Addresses that no name may lead to.
const PRIVATE_ADDRESSES: &[&str] = &[
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.5",
    "172.16.0.1",
    "172.31.255.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.0.7",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "192.88.99.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:203.0.114.10",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::cb00:720a",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::1",
    "2001:0:7f00:1::1",
    "2001:db8::1",
    "2001:2::1",
    "100::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "2600::5efe:7f00:1",
    "3fff::1",
];

/// Hosts that lead inward as they are written.
const ADDRESS_SPELLINGS: &[&str] = &[
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "%31%32%37.0.0.1",
    "0",
    "0.0.0.0",
    "10.0.0.5",
    "10.5",
    "0xa000005",
    "169.254.169.254",
    "0xa9fea9fe",
    "2852039166",
    "0251.0376.0251.0376",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "a.localhost",
    "printer.local",
    "metadata.google.internal",
    "intranet",
    "nas.lan",
    "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
    "127\u{3002}0.0.1",
    "user@127.0.0.1",
    "good.example.org@127.0.0.1",
    "127.0.0.1:80",
    "[::1]:80",
    "203.0.114.10:22",
    "good.example.org:6379",
    "good.example.org:25",
];

fn world() -> (WebTestHost, Vec<TestHttpServer>) {
    let names = ScriptedResolver::default();
    names.add("good.example.org", &[&[PUBLIC]]);
    names.add("six.example.org", &[&[PUBLIC_V6]]);
    names.add("both.example.org", &[&[PUBLIC_V6, PUBLIC]]);
    names.add("one-inward.example.org", &[&[PUBLIC, "127.0.0.1"]]);
    names.add("inward-first.example.org", &[&["10.0.0.5", PUBLIC]]);
    names.add("rebinding.example.org", &[&[PUBLIC], &["127.0.0.1"]]);
    names.add("empty.example.org", &[&[]]);
    names.add("down.example.org", &[&["203.0.114.11"]]);
    for (number, address) in PRIVATE_ADDRESSES.iter().enumerate() {
        names.add(&format!("n{number}.example.org"), &[&[address]]);
    }
    let inward = text_page("SECRET");
    let listening =
        ["127.0.0.1:80", "[::1]:80", "10.0.0.5:80", "169.254.169.254:80", "127.0.0.1:8080", "127.0.0.1:443"];
    let inner = listening.map(|at| TestHttpServer::with_answer(at, &inward));
    (WebTestSetup { names, ..WebTestSetup::default() }.build(), inner.to_vec())
}

/// One public server whose paths send on to wherever they say.
fn public_server(at: &str) -> TestHttpServer {
    TestHttpServer::start(at, |head, stream| {
        let path = path_of(head);
        let answer = match path.split_once("?to=") {
            Some((_, to)) => redirect_to(&percent_decoded(to)),
            None if path.starts_with("/chain/") => match path.trim_start_matches("/chain/").parse::<u32>() {
                Ok(0) => redirect_to("http://127.0.0.1/secret"),
                Ok(left) => redirect_to(&format!("/chain/{}", left - 1)),
                Err(_) => text_page("end"),
            },
            None => text_page(&format!("public {path}")),
        };
        stream.write_all(answer.as_bytes())
    })
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        match (first, tail) {
            (b'%', [a, b, tail @ ..]) => {
                bytes.push(u8::from_str_radix(&String::from_utf8_lossy(&[*a, *b]), 16).unwrap());
                rest = tail;
            }
            _ => bytes.push(first),
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn no_request_reaches_a_private_address() {
    in_public_network("ssrf::no_request_reaches_a_private_address", || {
        let (world, inner) = world();
        let outer = public_server(&format!("{PUBLIC}:80"));
        let _six = public_server(&format!("[{PUBLIC_V6}]:80"));
        let mut cases = 0;
        let mut refused = |url: &str| {
            let (code, message) = world.error(json!({"url": url}));
            let known = ["NETWORK_ERROR", "INVALID_ARGS"].contains(&code.as_str());
            assert!(known, "{url}: {code} {message}");
            // The addresses of a name are not revealed.
            let is_name = url.contains("example.org/") && !url.contains("?to=");
            for address in ["127.0.0.1", "10.0.0.5", "169.254"] {
                assert!(!is_name || url.contains("/chain/") || !message.contains(address), "{url}: {message}");
            }
            for server in &inner {
                assert_eq!(server.hits(), 0, "{url} reached {}", server.address);
            }
            cases += 1;
        };
        for host in ADDRESS_SPELLINGS {
            refused(&format!("http://{host}/"));
        }
        for number in 0..PRIVATE_ADDRESSES.len() {
            refused(&format!("http://n{number}.example.org/"));
        }
        for host in ADDRESS_SPELLINGS {
            refused(&format!("http://good.example.org/go?to={}", percent_encoded(&format!("http://{host}/"))));
        }
        for number in (0..PRIVATE_ADDRESSES.len()).step_by(3) {
            let to = percent_encoded(&format!("http://n{number}.example.org/"));
            refused(&format!("http://good.example.org/go?to={to}"));
        }
        for to in [
            "file:///etc/passwd",
            "javascript:1",
            "//127.0.0.1/",
            "\\\\127.0.0.1\\",
            "ftp://good.example.org/",
            "http://a:b@good.example.org/",
            "/\t/127.0.0.1/",
        ] {
            refused(&format!("http://good.example.org/go?to={}", percent_encoded(to)));
        }
        for url in [
            "http://one-inward.example.org/",
            "http://inward-first.example.org/",
            "http://empty.example.org/",
            "http://unknown.example.org/",
            "http://down.example.org/",
            "http://good.example.org/chain/3",
            "http://good.example.org/chain/4",
            "http://good.example.org/chain/9",
            "https://127.0.0.1/",
            "http://rebinding.example.org/go?to=http://rebinding.example.org:8080/",
        ] {
            refused(url);
        }
        assert!(cases >= 120, "{cases} cases");
        println!("{cases} ways inward were refused");

        // What is outside is reached all the same, so that the cases above mean something.
        assert!(outer.hits() > 0);
        for (url, body) in [
            ("http://good.example.org/a", "public /a"),
            ("http://six.example.org/a", "public /a"),
            ("http://both.example.org/a", "public /a"),
            (&format!("http://{PUBLIC}/a"), "public /a"),
            ("http://3405804042/a", "public /a"),
            (&format!("http://[{PUBLIC_V6}]/a"), "public /a"),
            ("http://good.example.org/go?to=/b/../c", "public /c"),
            ("http://good.example.org/go?to=http://six.example.org/d", "public /d"),
        ] {
            assert_eq!(world.body(url), body, "{url}");
        }
    });
}

#[test]
fn a_name_that_leads_elsewhere_the_next_time_is_judged_again_and_never_asked_twice() {
    in_public_network("ssrf::a_name_that_leads_elsewhere_the_next_time_is_judged_again_and_never_asked_twice", || {
        let (world, inner) = world();
        let _outer = public_server(&format!("{PUBLIC}:80"));
        assert_eq!(world.body("http://rebinding.example.org/a"), "public /a");
        assert_eq!(world.names.asked(), ["rebinding.example.org"], "a name is looked up once for a request");
        let (code, _) = world.error(json!({"url": "http://rebinding.example.org/a"}));
        assert_eq!(code, "NETWORK_ERROR");
        assert!(inner.iter().all(|server| server.hits() == 0));
    });
}

#[test]
fn a_private_host_is_reached_where_the_user_allows_it_and_only_there() {
    let private = TestHttpServer::with_answer("127.0.0.1:0", &text_page("mine"));
    let other = TestHttpServer::with_answer("127.0.0.1:0", &text_page("not mine"));
    let names = ScriptedResolver::default();
    names.add("wiki.internal", &[&["127.0.0.1"]]);
    let ports = [private.address.port(), other.address.port()];
    let hosts: Vec<String> =
        ports.iter().flat_map(|port| [format!("127.0.0.1:{port}"), format!("wiki.internal:{port}")]).collect();
    let rules = vec![json!({"decision": "allow", "host": hosts})];
    let allowed = vec![private.address.to_string(), format!("wiki.internal:{}", private.address.port())];
    let world = WebTestSetup { names, rules, private: allowed, ..WebTestSetup::default() }.build();
    assert_eq!(world.body(&format!("http://{}/", private.address)), "mine");
    assert_eq!(world.body(&format!("http://wiki.internal:{}/", private.address.port())), "mine");
    let (code, message) = world.error(json!({"url": format!("http://{}/", other.address)}));
    assert_eq!(code, "NETWORK_ERROR");
    assert!(message.contains(&format!("allow_private = [\"{}\"]", other.address)), "{message}");
    assert_eq!(other.hits(), 0);
}
