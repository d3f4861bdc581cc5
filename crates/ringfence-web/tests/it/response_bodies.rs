//! Response bodies that are too large, too slow, wrong, or misleading.

use std::io::{self, Write as _};
use std::time::Duration;

use ringfence_kernel::{CallLimits, Dialect};
use ringfence_testkit::patience::PATIENCE;
use serde_json::{Value, json};

use crate::harness::{ServerStream, TestHttpServer, WebTestHost, WebTestSetup, response_with_type, text_page};

const MIB: usize = 1 << 20;

/// The time for a first byte, where it never comes.
const SOON: Duration = Duration::from_millis(300);

fn world(
    script: impl Fn(&str, &mut dyn ServerStream) -> io::Result<()> + Send + Sync + 'static,
) -> (WebTestHost, String) {
    impatient_world(PATIENCE, script)
}

/// One that waits only so long for the first byte.
fn impatient_world(
    fetch_first_byte_time: Duration,
    script: impl Fn(&str, &mut dyn ServerStream) -> io::Result<()> + Send + Sync + 'static,
) -> (WebTestHost, String) {
    let server = TestHttpServer::start("127.0.0.1:0", script);
    let at = server.address.to_string();
    let limits = CallLimits {
        fetch_bytes: MIB as u64,
        fetch_text_bytes: 100_000,
        fetch_header_bytes: 16 << 10,
        fetch_first_byte_time,
        ..CallLimits::for_dialect(Dialect::Standard)
    };
    let rules = vec![json!({"decision": "allow", "host": &at})];
    let world = WebTestSetup { private: vec![at.clone()], rules, limits, ..WebTestSetup::default() }.build();
    (world, format!("http://{at}/"))
}

/// The result of one response.
fn fetch_answer(bytes: impl Into<Vec<u8>>) -> Value {
    let bytes = bytes.into();
    let (world, url) = world(move |_, stream| stream.write_all(&bytes));
    world.fetch(json!({"url": url}))
}

fn compressed_response(encoding: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: {encoding}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn brotli(body: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    brotli::BrotliCompress(
        &mut &body[..],
        &mut packed,
        &brotli::enc::BrotliEncoderParams { quality: 5, ..Default::default() },
    )
    .unwrap();
    packed
}

fn zstd(body: &[u8]) -> Vec<u8> {
    zstd::encode_all(body, 3).unwrap()
}

#[test]
fn a_compressed_body_is_decompressed_up_to_the_bound() {
    let bomb = vec![b'0'; 16 * MIB];
    for (encoding, pack) in
        [("gzip", gzip as fn(&[u8]) -> Vec<u8>), ("x-gzip", gzip), ("deflate", deflate), ("br", brotli), ("zstd", zstd)]
    {
        let reply = fetch_answer(compressed_response(encoding, &pack(b"plain text")));
        assert_eq!(reply["value"]["body"], "plain text", "{encoding}: {reply}");
        let small = pack(&bomb);
        assert!(small.len() < MIB, "{encoding}: {}", small.len());
        let reply = fetch_answer(compressed_response(encoding, &small));
        assert_eq!(
            (&reply["value"]["truncated"], &reply["value"]["sha256"]),
            (&json!(true), &Value::Null),
            "{encoding}"
        );
        assert_eq!(reply["value"]["size"], MIB, "{encoding}");
    }
}

#[test]
fn a_body_compressed_twice_or_corrupt_is_refused() {
    let twice = gzip(&gzip(b"x"));
    for (encoding, body) in [
        ("gzip, gzip", twice.as_slice()),
        ("gzip,br", &twice),
        ("compress", b"x"),
        ("unknown", b"x"),
        ("gzip", b"no gzip"),
        ("br", b"\xff\xff\xff\xff\xff"),
        ("zstd", b"no zstd at all"),
        ("gzip", &gzip(&vec![b'x'; 1000])[..20]),
    ] {
        let reply = fetch_answer(compressed_response(encoding, body));
        assert_eq!(reply["error"]["code"], "NETWORK_ERROR", "{encoding}: {reply}");
        assert!(reply["error"]["message"].as_str().unwrap().contains("decompress"), "{encoding}: {reply}");
    }
    // One encoding is decoded, and the result is a body like any other.
    let reply = fetch_answer(compressed_response("gzip", &twice));
    assert_eq!(reply["value"]["encoding"], "base64");
    // A window that is larger than HTTP has.
    let mut large = zstd::Encoder::new(Vec::new(), 3).unwrap();
    large.window_log(27).unwrap();
    large.write_all(&vec![7; 16 * MIB]).unwrap();
    let reply = fetch_answer(compressed_response("zstd", &large.finish().unwrap()));
    assert_eq!(reply["error"]["code"], "NETWORK_ERROR", "{reply}");
}

#[test]
fn an_answer_that_does_not_end_is_cut() {
    let (world, url) = world(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")?;
        loop {
            stream.write_all(&[b'x'; 4096])?;
        }
    });
    let reply = world.fetch(json!({"url": url}));
    assert_eq!((&reply["value"]["truncated"], reply["value"]["body"].as_str().unwrap().len()), (&json!(true), 100_000));
    assert_eq!(reply["value"]["size"], MIB);
}

#[test]
fn headers_that_do_not_end_are_refused() {
    for start in ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n"] {
        let (world, url) = impatient_world(SOON, move |_, stream| {
            stream.write_all(start.as_bytes())?;
            loop {
                match start.contains("100") {
                    true => stream.write_all(start.as_bytes())?,
                    false => stream.write_all(b"X-More: and more of it\r\n")?,
                }
            }
        });
        let (code, message) = world.error(json!({"url": url}));
        assert!(["NETWORK_ERROR", "TIMEOUT"].contains(&code.as_str()), "{start}: {code} {message}");
    }
    let one_line = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(fetch_answer(one_line)["error"]["code"], "NETWORK_ERROR");
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(300));
    assert_eq!(fetch_answer(many)["error"]["code"], "NETWORK_ERROR");
}

#[test]
fn a_slow_host_times_out() {
    let says = |text: &'static str| {
        impatient_world(SOON, move |_, stream| {
            stream.write_all(text.as_bytes())?;
            // Until the other end has gone.
            stream.read(&mut [0]).map(drop)
        })
    };
    for head in ["", "H", "HTTP/1.1 200 OK\r\nX: ", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"] {
        let (world, url) = says(head);
        let (code, message) = world.error(json!({"url": url}));
        assert_eq!(
            (code.as_str(), message.contains("waiting for the response")),
            ("TIMEOUT", true),
            "{head}: {message}"
        );
    }
    for body in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let (world, url) = says(body);
        let (code, message) = world.error(json!({"url": url, "timeout": 0.3}));
        assert_eq!((code.as_str(), message.contains("0.3 s")), ("TIMEOUT", true), "{body}: {message}");
    }
}

#[test]
fn an_answer_that_contradicts_itself_is_refused() {
    for wrong in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "<html>a page from before there were heads</html>",
        "",
        "SSH-2.0-OpenSSH_9.9\r\n",
    ] {
        let reply = fetch_answer(wrong);
        assert_eq!(reply["error"]["code"], "NETWORK_ERROR", "{wrong}: {reply}");
    }
}

#[test]
fn a_reply_has_what_the_seed_has_and_what_it_came_from() {
    let reply = fetch_answer(
        "HTTP/1.1 418 Teapot\r\nContent-Type: text/plain; charset=utf-8\r\nX-A: b\r\nX-A: c\r\nContent-Length: 5\r\n\r\nshort",
    );
    let value = &reply["value"];
    assert_eq!((&reply["ok"], &value["status"], &value["body"]), (&json!(true), &json!(418), &json!("short")));
    assert_eq!(value["headers"]["x-a"], "b, c");
    assert_eq!(value["contentType"], "text/plain; charset=utf-8");
    assert_eq!(value["sha256"], "f9b0078b5df596d2ea19010c001bbd009e651de2c57e8fb7e355f31eb9d3f739");
    assert_eq!((&value["truncated"], &value["size"], &value["encoding"]), (&json!(false), &json!(5), &json!("utf-8")));
}

#[test]
fn a_page_comes_in_the_form_that_was_asked_for() {
    let html = "<title>T</title><h1>A</h1><p>b <a href='/c'>d</a></p><script>no</script>";
    let (world, url) = world(move |_, stream| stream.write_all(response_with_type("text/html", html).as_bytes()));
    let as_format = |format: &str| world.fetch(json!({"url": url, "format": format}))["value"].clone();
    assert_eq!(as_format("raw")["body"], html);
    assert_eq!(as_format("text")["body"], "A\n\nb d");
    let markdown = as_format("markdown");
    assert_eq!((&markdown["body"], &markdown["title"]), (&json!(format!("# A\n\nb [d]({url}c)")), &json!("T")));
}

#[test]
fn a_head_has_no_body_and_a_post_sends_one() {
    let (world, url) = world(|head, stream| match head.starts_with("HEAD") {
        true => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Encoding: gzip\r\n\r\n"),
        false => stream.write_all(text_page(head.rsplit("\r\n\r\n").next().unwrap_or_default()).as_bytes()),
    });
    let head = world.fetch(json!({"url": url, "method": "HEAD"}));
    assert_eq!(
        (&head["value"]["body"], &head["value"]["headers"]["content-length"]),
        (&json!(""), &json!("1000")),
        "{head}"
    );
    let post = world.fetch(json!({"url": url, "method": "POST", "body": "a=b"}));
    assert_eq!(post["value"]["body"], "a=b", "{post}");
}
