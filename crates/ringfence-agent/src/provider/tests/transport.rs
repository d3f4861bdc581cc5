//! Transport errors: connections, statuses and bodies that are not what they should be, on a real socket.

use std::time::Duration;

use expect_test::{Expect, expect};
use ringfence_testkit::patience::PATIENCE;

use super::canned_server::{AfterReply, CannedReply, CannedServer, reply};
use super::{
    KEY, ProviderProtocol, ProviderTimeouts, SecretString, ask, error_kind, history, model_request, open, provider,
    tools,
};
use crate::model::{LanguageModel, ModelError, ModelErrorKind};

const HELLO: &[u8] =
    b"data: {\"choices\":[{\"delta\":{\"content\":\"hello\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
const WHOLE: &[u8] = br#"{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}"#;
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

fn openai(server: &CannedServer) -> Box<dyn LanguageModel> {
    open(provider(ProviderProtocol::OpenAi, &format!("{}/v1/", server.url))).unwrap()
}

/// The error, with the server's address left out.
fn error_text(server: &CannedServer, error: &ModelError) -> String {
    format!("{:?}: {}", error.kind, error.message.replace(&server.url, "http://server"))
}

async fn assert_fails(status: &str, kind: &str, body: &[u8], expected: Expect) {
    let server = CannedServer::with_body(status, kind, body).await;
    let error = ask(&*openai(&server)).await.unwrap_err();
    expected.assert_eq(&error_text(&server, &error));
}

#[tokio::test]
async fn an_error_names_the_place_and_no_key() {
    assert_fails(
        "500 Oops",
        JSON,
        b"",
        expect![
            "Server: POST http://server/v1/chat/completions: status 500 (Internal Server Error) and an empty message"
        ],
    )
    .await;
    assert_fails(
        "401 No",
        JSON,
        format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}."}}}}"#).as_bytes(),
        expect!["Denied: POST http://server/v1/chat/completions: status 401 (Unauthorized): Incorrect API key provided: [key].; check this provider's API key and its permissions"],
    )
    .await;
    assert_fails("404 Not Found", JSON, br#"{"error":{"message":"model `tiny` not found"}}"#, expect!["NoSuchModel: POST http://server/v1/chat/completions: status 404 (Not Found): model `tiny` not found; check the name of the model and the base URL"]).await;
    assert_fails("429 Slow", JSON, br#"{"error":{"message":"slow down"}}"#, expect!["Busy { retry_after: None }: POST http://server/v1/chat/completions: status 429 (Too Many Requests): slow down"]).await;
    assert_fails("503 Wait", JSON, br#"{"error":{"message":"Loading model"}}"#, expect!["Busy { retry_after: Some(5s) }: POST http://server/v1/chat/completions: status 503 (Service Unavailable): Loading model"]).await;
    assert_fails("400 Bad", JSON, br#"{"error":{"message":"context","code":"context_length_exceeded"}}"#, expect!["TooLong: POST http://server/v1/chat/completions: status 400 (Bad Request): context; the conversation exceeds the model's context length"]).await;
    assert_fails(
        "204 No Content",
        JSON,
        b"",
        expect!["Server: POST http://server/v1/chat/completions: status 204 (No Content) and an empty message"],
    )
    .await;
}

#[tokio::test]
async fn a_query_of_the_base_is_sent_and_not_shown() {
    let server = CannedServer::with_body("500 Oops", JSON, b"").await;
    let model =
        open(provider(ProviderProtocol::OpenAi, &format!("{}/v1?api-version=7&code=hidden", server.url))).unwrap();
    let error = ask(&*model).await.unwrap_err();
    assert!(!error.message.contains("hidden"), "{error}");
    assert!(server.requests()[0].starts_with("POST /v1/chat/completions?api-version=7&code=hidden HTTP/1.1\r\n"));
}

#[tokio::test]
async fn an_html_page_is_an_error() {
    assert_fails("200 OK", "text/html", b"<html>Please log in</html>", expect!["Garbled: POST http://server/v1/chat/completions: answered with a page: `<html>Please log in</html>`; is this the URL of a model API?"]).await;
    assert_fails("200 OK", EVENTS, b"<html>Please log in</html>", expect!["Garbled: POST http://server/v1/chat/completions: answered with a page: `<html>Please log in</html>`; is this the URL of a model API?"]).await;
    assert_fails("200 OK", "text/plain", b"OK", expect!["Garbled: POST http://server/v1/chat/completions: answered with something other than an answer: `OK`; is this the URL of a model API?"]).await;
}

#[tokio::test]
async fn an_empty_body_is_cut() {
    assert_fails(
        "200 OK",
        EVENTS,
        b"",
        expect!["Cut: POST http://server/v1/chat/completions: answered with an empty body"],
    )
    .await;
    assert_fails(
        "200 OK",
        JSON,
        b"",
        expect!["Cut: POST http://server/v1/chat/completions: answered with an empty body"],
    )
    .await;
}

#[tokio::test]
async fn an_unrequested_body_format_is_accepted() {
    for stream in [true, false] {
        for (kind, body) in [(EVENTS, HELLO), (JSON, WHOLE), ("text/plain", HELLO), (EVENTS, WHOLE), ("", WHOLE)] {
            let server = CannedServer::with_body("200 OK", kind, body).await;
            let mut provider = provider(ProviderProtocol::OpenAi, &server.url);
            provider.stream = stream;
            assert_eq!(ask(&*open(provider).unwrap()).await.unwrap().text, "hello");
            assert_eq!(server.last_body()["stream"], stream);
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let gone = {
        let server = CannedServer::start(vec![]).await;
        server.url.clone()
    };
    // The listener goes with its task.
    tokio::task::yield_now().await;
    let error = ask(&*open(provider(ProviderProtocol::OpenAi, &gone)).unwrap()).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Unreachable);
    assert!(error.message.contains("is the server running?"), "{error}");
    // A host name that is too long to be resolved: it is refused without a name server.
    let nowhere = open(provider(ProviderProtocol::OpenAi, &format!("http://{}/v1", "a".repeat(70)))).unwrap();
    assert_eq!(error_kind(ask(&*nowhere).await), ModelErrorKind::Unreachable);
}

#[tokio::test]
async fn a_server_without_tls_is_unreachable() {
    let server = CannedServer::with_body("200 OK", JSON, WHOLE).await;
    let url = server.url.replace("http://", "https://");
    // A machine without certificates says so at once.
    let error = match open(provider(ProviderProtocol::OpenAi, &url)) {
        Ok(model) => ask(&*model).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind, ModelErrorKind::Unreachable, "{error}");
    assert!(error.message.contains("TLS") || error.message.contains("certificates"), "{error}");
}

#[tokio::test]
async fn a_dropped_connection_is_cut() {
    let call = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"read_file\",\"arguments\":\"{}\"}}]}}]}\n\n";
    let chunked = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{call}\r\n", call.len());
    let short = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{call}");
    for bytes in [chunked, short, String::new(), "HTTP/1.1 200 OK\r\nContent-Ty".to_owned()] {
        let server =
            CannedServer::start(vec![CannedReply { bytes: bytes.clone().into_bytes(), after: AfterReply::Close }])
                .await;
        assert_eq!(error_kind(ask(&*openai(&server)).await), ModelErrorKind::Cut, "{bytes}");
    }
    let server =
        CannedServer::start(vec![CannedReply { bytes: b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), after: AfterReply::Close }])
            .await;
    assert_eq!(error_kind(ask(&*openai(&server)).await), ModelErrorKind::Garbled);
}

#[tokio::test]
async fn a_whole_answer_survives_a_dropped_connection() {
    for body in [HELLO, WHOLE] {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
        let server =
            CannedServer::start(vec![CannedReply { bytes: [head, body].concat(), after: AfterReply::Close }]).await;
        assert_eq!(ask(&*openai(&server)).await.unwrap().text, "hello");
    }
}

#[tokio::test]
async fn silence_has_an_end() {
    let soon = Duration::from_millis(60);
    let begun = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    let half = format!("{begun}data: {{\"choices\":[{{\"delta\":{{\"content\":\"hel");
    for bytes in ["", begun, &half] {
        let server =
            CannedServer::start(vec![CannedReply { bytes: bytes.as_bytes().to_vec(), after: AfterReply::Hold }]).await;
        let mut provider = provider(ProviderProtocol::OpenAi, &server.url);
        provider.timeouts = ProviderTimeouts { first_byte: soon, idle: soon, ..provider.timeouts };
        assert_eq!(error_kind(ask(&*open(provider).unwrap()).await), ModelErrorKind::Stalled, "{bytes}");
    }
    // The timeout after the first byte is shorter.
    let server = CannedServer::start(vec![CannedReply { bytes: half.into_bytes(), after: AfterReply::Hold }]).await;
    let mut provider = provider(ProviderProtocol::OpenAi, &server.url);
    provider.timeouts = ProviderTimeouts { first_byte: Duration::from_secs(600), idle: soon, ..provider.timeouts };
    assert_eq!(error_kind(ask(&*open(provider).unwrap()).await), ModelErrorKind::Stalled);
}

#[tokio::test]
async fn pings_are_life_and_no_progress() {
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n".to_vec();
    let server = CannedServer::start(vec![CannedReply { bytes, after: AfterReply::Ping }]).await;
    let mut provider = provider(ProviderProtocol::OpenAi, &server.url);
    provider.timeouts = ProviderTimeouts {
        first_byte: Duration::from_millis(1600),
        // Many times the pause between two pings, for a busy machine.
        idle: Duration::from_millis(1500),
        ..provider.timeouts
    };
    let error = ask(&*open(provider).unwrap()).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Stalled);
    assert!(error.message.contains("for 1.6 s"), "{error}");
}

#[tokio::test]
async fn a_whole_answer_is_not_held_back_by_a_server_that_stays() {
    let server = CannedServer::start(vec![reply("200 OK", EVENTS, HELLO, AfterReply::Hold)]).await;
    assert_eq!(ask(&*openai(&server)).await.unwrap().text, "hello");
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed() {
    let to = |location: &str, status: &str| CannedReply {
        bytes: format!("HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .into_bytes(),
        after: AfterReply::Close,
    };
    let hello = || reply("200 OK", EVENTS, HELLO, AfterReply::Close);
    let server = CannedServer::start(vec![to("/v2/chat?x=1", "307 There"), hello()]).await;
    assert_eq!(ask(&*openai(&server)).await.unwrap().text, "hello");
    assert!(server.requests()[1].starts_with("POST /v2/chat?x=1 HTTP/1.1\r\n"));
    let rounds = (0..4).map(|_| to("/v1/chat/completions", "308 There")).collect();
    let server = CannedServer::start(rounds).await;
    assert_eq!(error_kind(ask(&*openai(&server)).await), ModelErrorKind::NoSuchModel);
}

#[tokio::test]
async fn a_redirect_to_elsewhere_is_not_followed() {
    let other = CannedServer::with_body("200 OK", EVENTS, HELLO).await;
    for (location, status) in [
        (format!("{}/v1?token=hidden", other.url), "307 There"),
        ("https://127.0.0.1/v1".to_owned(), "308 There"),
        ("//evil.example/v1".to_owned(), "307 There"),
        ("/v2".to_owned(), "302 Found"),
        (String::new(), "301 Moved"),
    ] {
        let bytes = format!("HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n").into_bytes();
        let server = CannedServer::start(vec![CannedReply { bytes, after: AfterReply::Close }]).await;
        let error = ask(&*openai(&server)).await.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::NoSuchModel, "{error}");
        assert!(!error.message.contains("hidden"), "{error}");
    }
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn packed_contents_are_refused() {
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n\x1f\x8b\x08".to_vec();
    let server = CannedServer::start(vec![CannedReply { bytes, after: AfterReply::Close }]).await;
    let error = ask(&*openai(&server)).await.unwrap_err();
    expect!["Garbled: POST http://server/v1/chat/completions: answered with content encoding `gzip`, which was not requested"].assert_eq(&error_text(&server, &error));
    assert!(server.requests()[0].contains("accept-encoding: identity\r\n"));
}

#[tokio::test]
async fn an_endless_answer_is_given_up() {
    let text = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "x".repeat(10_000));
    for part in [&text, ": x", "{ "] {
        let body = part.repeat(17 * 1024 * 1024 / part.len());
        let server = CannedServer::with_body("200 OK", EVENTS, body.as_bytes()).await;
        assert_eq!(error_kind(ask(&*openai(&server)).await), ModelErrorKind::Garbled);
    }
}

#[tokio::test]
async fn a_dropped_answer_closes_the_connection() {
    let begun = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"hel\"}}]}\n\n";
    for bytes in ["", begun] {
        let mut server =
            CannedServer::start(vec![CannedReply { bytes: bytes.as_bytes().to_vec(), after: AfterReply::Hold }]).await;
        let model = openai(&server);
        let (messages, tools) = (history(), tools());
        let mut ignore = |_: crate::model::ResponsePart<'_>| {};
        let answer = model.respond(model_request(&messages, &tools), &mut ignore);
        tokio::select! {
            answer = answer => panic!("there is no end of the answer: {answer:?}"),
            held = server.held.recv() => held.unwrap(),
        }
        tokio::time::timeout(PATIENCE, server.disconnected.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_connection_is_kept_and_a_dead_one_replaced() {
    let server = CannedServer::start(vec![
        reply("200 OK", JSON, WHOLE, AfterReply::Next),
        reply("200 OK", EVENTS, HELLO, AfterReply::Next),
        // It says good-bye without a word, as servers do to what was idle.
        CannedReply { bytes: Vec::new(), after: AfterReply::Close },
        reply("200 OK", JSON, WHOLE, AfterReply::Close),
    ])
    .await;
    let model = openai(&server);
    for _ in 0..3 {
        assert_eq!(ask(&*model).await.unwrap().text, "hello");
    }
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn an_invalid_base_url_is_reported_before_sending() {
    for url in ["", "localhost:8080", "ftp://host/v1", "http://", "http://me:secretword@host/v1", "/v1", "http://a b"] {
        let error = open(provider(ProviderProtocol::OpenAi, url)).unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::BadRequest, "{url}");
        assert!(!error.message.contains("secretword"), "{error}");
    }
    let mut wrong = provider(ProviderProtocol::OpenAi, "http://localhost/v1");
    wrong.key = Some(SecretString::new("sk-with\nnewline"));
    let error = open(wrong).unwrap_err();
    assert!(!error.message.contains("newline") && error.message.contains("authorization"), "{error}");
}

#[tokio::test]
async fn headers_that_a_person_adds_are_sent_and_not_told() {
    let body = br#"{"error":{"message":"unknown tenant t-123456"}}"#;
    let server = CannedServer::with_body("403 No", JSON, body).await;
    let mut provider = provider(ProviderProtocol::OpenAi, &server.url);
    provider.headers = vec![("X-Tenant".to_owned(), SecretString::new("t-123456"))];
    let error = ask(&*open(provider).unwrap()).await.unwrap_err();
    assert!(error.message.contains("unknown tenant [key]"), "{error}");
    assert!(server.requests()[0].contains("x-tenant: t-123456\r\n"));
}

#[tokio::test]
async fn a_key_that_was_cut_is_not_told_either() {
    for space in 250..420 {
        let page = format!("<html>{}{KEY}{}", "x".repeat(space), "y".repeat(200));
        for (status, body) in
            [("200 OK", page.clone()), ("500 Oops", page.clone()), ("400 No", format!(r#"{{"error":"{page}"}}"#))]
        {
            let server = CannedServer::with_body(status, JSON, body.as_bytes()).await;
            let error = ask(&*openai(&server)).await.unwrap_err();
            assert!(!error.message.contains(&KEY[..8]), "{error}");
        }
    }
}

#[test]
fn a_key_of_any_form_is_hidden() {
    let hidden = |key: &str, text: &str| SecretString::new(key).redact_from(text.to_owned());
    assert_eq!(hidden("sk-0123456789", "a sk-0123456789, sk-01234567 and sk-0123"), "a [key], [key] and sk-0123");
    assert_eq!(hidden("[key]", "a [key] b"), "a [key] b");
    assert_eq!(hidden("schlüssel-ä", "schlüssel-ö schlüssel-ä"), "[key]ö [key]");
    assert_eq!(hidden("abc", "abc"), "abc");
    assert_eq!(hidden("", "abc"), "abc");
    assert_eq!(hidden(" sk-0123456789\n", "sk-0123456789"), "[key]");
}

#[tokio::test]
async fn debug_text_has_no_key() {
    for kind in [ProviderProtocol::OpenAi, ProviderProtocol::Anthropic] {
        let text = format!("{:?}", open(provider(kind, "http://localhost/v1")).unwrap());
        assert!(text.contains("tiny") && !text.contains(KEY), "{text}");
    }
}
