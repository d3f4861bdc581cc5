//! Fuzzing of URLs, addresses, ClientHellos and proxy requests: whatever is accepted is on the public internet. Of pushes and
//! answers of token endpoints: what is shown is what is sent, and no token passes.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use ringfence_fuzz::FuzzTarget as Fuzz;
use ringfence_net::{TargetHost, check_public};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use url::Url;

use crate::client_hello::{self, ClientHello};
use crate::connector::WebConnector;
use crate::egress_proxy::proxy_target;
use crate::fetch_target::FetchTarget;
use crate::leak_scanner::LeakPatterns;
use crate::oauth_login::OAuthPlaceholders;
use crate::pack_commits::PackCommits;
use crate::private_hosts::PrivateHosts;
use crate::receive_pack::PushCommands;
use crate::token_message::TokenGrant;

fn fuzz(name: &'static str) -> Fuzz {
    Fuzz::new(name, env!("CARGO_MANIFEST_DIR"))
}

const URL_TOKENS: &[&str] = &[
    "http://",
    "https://",
    "//",
    "@",
    ":80",
    ":443",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "127.0.0.1",
    "0x7f.1",
    "0177.1",
    "2130706433",
    "localhost",
    ".internal",
    "%31",
    "%2e",
    "%00",
    "\\",
    "\u{3002}",
    "\u{ff11}",
    "\u{2460}",
    "\u{ad}",
    "xn--",
    "..",
    "?#",
    "10.0.0.1:8080",
];

/// Whether the standard library, or a second check of the prefix, classifies an address as not public.
fn is_not_public(address: IpAddr) -> bool {
    let v4 = |address: Ipv4Addr| {
        let [a, b, ..] = address.octets();
        address.is_private()
            || address.is_loopback()
            || address.is_link_local()
            || address.is_multicast()
            || address.is_broadcast()
            || address.is_documentation()
            || a == 0
            || a >= 240
            || (a == 100 && b & 0xc0 == 64)
            || (a == 198 && b & 0xfe == 18)
    };
    let v6 = |address: Ipv6Addr| {
        let [a, b, ..] = address.segments();
        address.is_loopback()
            || address.is_unspecified()
            || address.is_multicast()
            || address.is_unique_local()
            || address.is_unicast_link_local()
            || address.to_ipv4().is_some()
            || a == 0x64
            || a == 0x2002
            || (a == 0x2001 && (b < 0x200 || b == 0xdb8))
            || a & 0xe000 != 0x2000
    };
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    }
}

/// Properties of every accepted target. `allowed` is the only internal host.
fn check_accepted(target: &FetchTarget, allowed: &PrivateHosts) {
    match target.host() {
        host if allowed.contains(host, target.port()) => {}
        TargetHost::Address(address) => assert!(!is_not_public(*address), "{target} is taken"),
        TargetHost::Name(name) => {
            assert!(name.parse::<IpAddr>().is_err() && name.contains('.'), "{name} is taken for a name");
            let last = name.rsplit('.').next().unwrap();
            let hex = last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
            assert!(!hex && !last.bytes().all(|byte| byte.is_ascii_digit()), "{name} is a number to some");
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)), "{name}");
        }
    }
    let sent = [target.path_and_query(), &target.host_header(), &target.authority()].concat();
    assert!(sent.bytes().all(|byte| byte.is_ascii_graphic()), "{sent:?} goes into a request");
    assert!(target.path_and_query().starts_with('/'));
    let again = FetchTarget::parse(&target.to_string(), allowed).unwrap_or_else(|error| panic!("{target}: {error}"));
    assert_eq!((again.authority(), again.to_string()), (target.authority(), target.to_string()));
}

#[test]
fn no_accepted_url_is_misread_or_leads_to_a_private_address() {
    let (none, one) = (
        PrivateHosts::default(),
        PrivateHosts::parse(&["10.0.0.1:8080".to_owned(), "wiki.internal:80".to_owned()]).unwrap(),
    );
    fuzz("url").tokens(URL_TOKENS).check(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        // A second line is where a server would send on to.
        let (text, location) = text.split_once('\n').unwrap_or((&text, "/next"));
        for private in [&none, &one] {
            let Ok(target) = FetchTarget::parse(text, private) else { continue };
            check_accepted(&target, private);
            let url = Url::parse(text).unwrap();
            let host = url.host_str().unwrap().trim_end_matches('.');
            assert_eq!(host, target.host().to_string(), "{text}");
            assert_eq!(url.port_or_known_default(), Some(target.port()), "{text}");
            if let Ok(next) = target.join(location, private) {
                check_accepted(&next, private);
            }
        }
        // The port may be wrong, or the host, or more.
        FetchTarget::parse(text, &none).map(|target| target.to_string().len()).map_err(|error| {
            let error = error.to_string();
            error[..error.floor_char_boundary(40)].to_owned()
        })
    });
}

#[test]
fn no_private_address_passes() {
    fuzz("address").max_len(48).check(|bytes| {
        let mut sixteen = [0; 16];
        for (to, from) in sixteen.iter_mut().zip(bytes) {
            *to = *from;
        }
        let [a, b, c, d, ..] = sixteen;
        let v4 = Ipv4Addr::new(a, b, c, d);
        let written = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<IpAddr>().ok());
        let all = [Some(IpAddr::V4(v4)), Some(IpAddr::V6(Ipv6Addr::from(sixteen))), written];
        for carrier in [v4.to_ipv6_mapped(), v4.to_ipv6_compatible()] {
            assert!(check_public(carrier.into()).is_err(), "{carrier}");
        }
        all.map(|address| {
            let address = address?;
            let passes = check_public(address).is_ok();
            assert!(!(passes && is_not_public(address)), "{address} passes");
            // A URL with it is judged alike.
            let url = format!("http://{}/", TargetHost::Address(address));
            assert_eq!(FetchTarget::parse(&url, &PrivateHosts::default()).is_ok(), passes, "{url}");
            Some(check_public(address).err().map(|refused| refused.reason))
        })
    });
}

#[test]
fn a_client_hello_reads_the_same_however_it_is_split() {
    fuzz("hello").tokens(&["\u{16}\u{3}\u{1}", "\0\0", "\u{1}\0", "pypi.org"]).check(|bytes| {
        let whole = client_hello::parse_client_hello(bytes);
        // A known result never changes.
        let mut known = ClientHello::Partial;
        for end in 0..=bytes.len() {
            let now = client_hello::parse_client_hello(&bytes[..end]);
            assert!(known == ClientHello::Partial || known == now, "{known:?} became {now:?} at {end}");
            known = now;
        }
        assert_eq!(known, whole);
        match whole {
            ClientHello::Partial => "partial",
            ClientHello::Complete(Some(_)) => "named",
            ClientHello::Complete(None) => "unnamed",
            ClientHello::Refused(why) => why,
        }
    });
}

#[test]
fn no_proxy_request_leads_to_a_private_address() {
    let net = WebConnector::with_system_defaults(PrivateHosts::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tokens = &[
        "CONNECT ",
        "GET http://",
        " HTTP/1.1\r\n",
        "Host: ",
        "\r\n\r\n",
        ":443",
        "127.0.0.1",
        "[::1]",
        "localhost",
        "docs.rs",
        "@",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "%31",
        "\\",
    ];
    fuzz("proxy").tokens(tokens).check(|bytes| {
        let went = Mutex::new(Vec::new());
        let service = service_fn(|request: Request<_>| {
            let target = proxy_target(&request, &net);
            if let Ok(target) = &target {
                check_accepted(target, net.private_hosts());
                // The recorded target is that of the connection.
                let asked = request.uri().authority().unwrap().as_str().to_ascii_lowercase();
                assert!(!asked.contains('@'), "{asked}");
            }
            went.lock().unwrap().push(target.map(|target| target.port()).map_err(|error| error.to_string().len()));
            async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
        });
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(64 << 10);
            theirs.write_all(bytes).await.unwrap();
            theirs.shutdown().await.unwrap();
            let server = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(ours), service);
            // An invalid request gets an error response.
            let mut answers = Vec::new();
            let (_, received) = tokio::join!(server, theirs.read_to_end(&mut answers));
            received.unwrap();
        });
        went.into_inner().unwrap()
    });
}

#[test]
fn the_commands_of_a_push_are_the_same_however_it_is_split() {
    let tokens = &[
        "0000",
        "0001",
        "0004",
        "003f",
        "00ab",
        " refs/heads/main",
        "\0 report-status side-band-64k",
        "push-cert",
        "shallow ",
    ];
    fuzz("push").tokens(tokens).check(|bytes| {
        let whole = PushCommands::parse(bytes);
        let mut known = Ok(None);
        for end in 0..=bytes.len() {
            let now = PushCommands::parse(&bytes[..end]);
            assert!(known == Ok(None) || known == now, "{known:?} became {now:?} at {end}");
            known = now;
        }
        assert_eq!(known, whole);
        whole.map(|push| {
            push.map(|push| {
                let mut commits = PackCommits::default();
                commits.read(&bytes[push.length()..]);
                assert!(
                    push.lines(&commits)
                        .iter()
                        .chain(&push.losses(&commits))
                        .all(|line| !line.contains(char::is_control))
                );
                let report = push.refusal("no");
                (push.is_empty(), push.lines(&commits).len().min(3), report.is_some())
            })
        })
    });
}

#[test]
fn no_token_of_an_answer_reaches_a_program() {
    let tokens = &[
        "{",
        "}",
        "\"access_token\":",
        "\"refresh_token\":",
        "\"scope\":",
        "\"real-token-1234\"",
        ",",
        "null",
        "[",
        "]",
    ];
    let placeholders =
        OAuthPlaceholders { access: "placeholder-a".to_owned(), refresh: "placeholder-r".to_owned(), id: None };
    let passed = ["scope", "access_token", "refresh_token"].map(str::to_owned);
    fuzz("token-answer").tokens(tokens).check(|bytes| {
        let grant = TokenGrant::parse(bytes)?;
        let text = grant.for_program(&passed, &placeholders);
        let members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(members["access_token"], "placeholder-a");
        assert!(members.get("refresh_token").is_none_or(|token| token == "placeholder-r"));
        // A token in another member is found by the search for tokens.
        let secrets = LeakPatterns::new([grant.tokens.access.expose()]).unwrap();
        Some((members.len(), secrets.are_in(text.as_bytes()), grant.tokens.refresh.is_some()))
    });
}
