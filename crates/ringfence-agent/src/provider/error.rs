//! Provider errors, classified by the possible reaction.
//!
//! An error quotes the server's own message or its first bytes, as one sanitised line. The client adds the URL and
//! removes keys (`http.rs`).

use std::time::Duration;

use ringfence_kernel::sanitize_line;
use ringfence_net::StatusCode;
use ringfence_net::header::{self, DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::model::ModelErrorKind;

/// Most characters of foreign text that are quoted.
const MAX_QUOTED_CHARS: usize = 300;

/// Delay for a server that is loading its model and does not set one.
const LOADING_RETRY: Duration = Duration::from_secs(5);

/// Lower-case messages of servers without tool support: Ollama, llama.cpp, vLLM, OpenRouter, and similar ones.
const NO_TOOLS_PHRASES: [&str; 8] = [
    "not support tool",
    "`tools` is not supported",
    "tools are not supported",
    "tools param requires",
    "tool choice requires --enable-auto-tool-choice",
    "support tool use",
    "not support function calling",
    "function calling is not supported",
];

/// A provider error, without the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderError {
    pub(crate) kind: ModelErrorKind,
    pub(crate) text: String,
    /// The server's full text about a request that it refused. Internal: it may repeat the request.
    pub(crate) server_text: String,
}

impl ProviderError {
    pub(crate) fn new(kind: ModelErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), server_text: String::new() }
    }

    /// A successful response with an invalid body. `what` is what the body looks like.
    pub(crate) fn invalid_body(what: &str, head: &[u8]) -> Self {
        Self::new(
            ModelErrorKind::Garbled,
            format!("answered with {what}: {}; is this the URL of a model API?", quote_bytes(head)),
        )
    }

    /// An unsuccessful status, with its body.
    pub(crate) fn from_status(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let server_message =
            message_of(&value).map_or_else(|| first_words(body), |message| format!(": {}", quote_text(&message)));
        let is_loading = || server_message.to_ascii_lowercase().contains("loading").then_some(LOADING_RETRY);
        let kind = match (kind_of_status(status, &value, &server_message), retry_after(headers)) {
            (ModelErrorKind::Busy { .. }, wait) => ModelErrorKind::Busy { retry_after: wait.or_else(is_loading) },
            // A server that sends Retry-After is overloaded, whatever its status.
            (ModelErrorKind::Server, Some(wait)) => ModelErrorKind::Busy { retry_after: Some(wait) },
            (kind, _) => kind,
        };
        let reason = status.canonical_reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let text = format!("status {}{reason}{server_message}{}", status.as_u16(), advice(kind));
        // The field that is meant comes first, where it is named by itself.
        let param = value.pointer("/error/param").and_then(Value::as_str).unwrap_or_default();
        Self { server_text: format!("{param} {}", String::from_utf8_lossy(body)), ..Self::new(kind, text) }
    }

    /// An error that came with a good status, or in the middle of a stream.
    pub(crate) fn from_error_body(error: &Value) -> Self {
        let server_message = message_of(error).unwrap_or_else(|| error.to_string());
        let kind = status_in(error)
            .map(|status| kind_of_status(status, error, &server_message))
            .or_else(|| kind_of_error(error, &server_message))
            .unwrap_or(ModelErrorKind::Server);
        Self::new(kind, format!("the server sent an error: {}{}", quote_text(&server_message), advice(kind)))
    }
}

/// Foreign text, shortened and sanitised.
pub(crate) fn quote_text(text: &str) -> String {
    let short: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", sanitize_line(short.trim()))
}

pub(crate) fn quote_bytes(bytes: &[u8]) -> String {
    let head = bytes.get(..MAX_QUOTED_CHARS).unwrap_or(bytes);
    format!("`{}`", quote_text(&String::from_utf8_lossy(head)))
}

fn first_words(body: &[u8]) -> String {
    if body.trim_ascii().is_empty() { " and an empty message".to_owned() } else { format!(": {}", quote_bytes(body)) }
}

fn kind_of_status(status: StatusCode, body: &Value, server_message: &str) -> ModelErrorKind {
    if let Some(kind @ (ModelErrorKind::TooLong | ModelErrorKind::Denied | ModelErrorKind::NoTools)) =
        kind_of_error(body, server_message)
    {
        return kind;
    }
    match status.as_u16() {
        401..=403 => ModelErrorKind::Denied,
        404 | 405 | 410 => ModelErrorKind::NoSuchModel,
        413 => ModelErrorKind::TooLong,
        429 | 503 | 529 => ModelErrorKind::Busy { retry_after: None },
        408 | 409 | 425 => ModelErrorKind::Server,
        400..=499 => ModelErrorKind::BadRequest,
        _ => ModelErrorKind::Server,
    }
}

/// The error kind by the text of an error, whatever its status.
fn kind_of_error(body: &Value, server_message: &str) -> Option<ModelErrorKind> {
    let error = body.get("error").filter(|error| error.is_object()).unwrap_or(body);
    let field = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
    for kind in [field("code"), field("type")] {
        match kind {
            "context_length_exceeded" | "exceed_context_size_error" | "request_too_large" => {
                return Some(ModelErrorKind::TooLong);
            }
            "insufficient_quota"
            | "billing_error"
            | "authentication_error"
            | "permission_error"
            | "invalid_api_key" => {
                return Some(ModelErrorKind::Denied);
            }
            "rate_limit_exceeded" | "rate_limit_error" | "overloaded_error" => {
                return Some(ModelErrorKind::Busy { retry_after: None });
            }
            "not_found_error" | "model_not_found" => return Some(ModelErrorKind::NoSuchModel),
            _ => {}
        }
    }
    let server_message = server_message.to_ascii_lowercase();
    let too_long = ["maximum context length", "context length", "context size", "context window", "prompt is too long"];
    if too_long.iter().any(|words| server_message.contains(words)) {
        return Some(ModelErrorKind::TooLong);
    }
    if NO_TOOLS_PHRASES.iter().any(|words| server_message.contains(words)) {
        return Some(ModelErrorKind::NoTools);
    }
    (field("type") == "invalid_request_error").then_some(ModelErrorKind::BadRequest)
}

/// A status that stands in the error itself, as gateways write it.
fn status_in(error: &Value) -> Option<StatusCode> {
    let inner = error.get("error").filter(|inner| inner.is_object()).unwrap_or(error);
    let number = |key: &str| {
        let value = inner.get(key)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    };
    let number = number("code").or_else(|| number("status"))?;
    StatusCode::from_u16(u16::try_from(number).ok()?).ok().filter(|status| status.as_u16() >= 400)
}

/// The message in an error, wherever servers put it.
fn message_of(value: &Value) -> Option<String> {
    let error = value.get("error").unwrap_or(value);
    let text = |value: &Value| value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned);
    ["message", "detail", "error"]
        .iter()
        .find_map(|key| error.get(*key).and_then(text))
        .or_else(|| text(error))
        .or_else(|| value.get("message").and_then(text))
}

/// Delay that a server requests. A date is compared with the server's own clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: header::HeaderName| headers.get(name)?.to_str().ok();
    let number = |text: &str, unit: f64| {
        let number: f64 = text.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * unit).ok()
    };
    if let Some(wait) = text(header::HeaderName::from_static("retry-after-ms")).and_then(|text| number(text, 0.001)) {
        return Some(wait);
    }
    let text_after = text(RETRY_AFTER)?;
    number(text_after, 1.0).or_else(|| {
        let until = httpdate::parse_http_date(text_after).ok()?;
        let now = httpdate::parse_http_date(text(DATE)?).ok()?;
        Some(until.duration_since(now).unwrap_or_default())
    })
}

fn advice(kind: ModelErrorKind) -> &'static str {
    match kind {
        ModelErrorKind::Denied => "; check this provider's API key and its permissions",
        ModelErrorKind::NoSuchModel => "; check the name of the model and the base URL",
        ModelErrorKind::TooLong => "; the conversation exceeds the model's context length",
        ModelErrorKind::NoTools => {
            "; the agent needs tools: choose a model that supports them, or enable them in its server (llama.cpp: \
                 `--jinja`, vLLM: `--enable-auto-tool-choice` with a `--tool-call-parser`)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::{Expect, expect};
    use ringfence_net::StatusCode;
    use ringfence_net::header::{HeaderMap, HeaderName, HeaderValue};

    use super::ProviderError;
    use crate::model::ModelErrorKind;

    #[track_caller]
    fn check(status: u16, body: &str, expected: Expect) {
        let fault =
            ProviderError::from_status(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.as_bytes());
        expected.assert_eq(&format!("{:?}: {}", fault.kind, fault.text));
    }

    #[test]
    fn a_status_says_what_can_be_done() {
        check(
            400,
            r#"{"error":{"message":"`tools` is not supported"}}"#,
            expect![
                "NoTools: status 400 (Bad Request): `tools` is not supported; the agent needs tools: choose a model that supports them, or enable them in its server (llama.cpp: `--jinja`, vLLM: `--enable-auto-tool-choice` with a `--tool-call-parser`)"
            ],
        );
        check(
            400,
            r#"{"error":{"message":"too many","code":"context_length_exceeded"}}"#,
            expect!["TooLong: status 400 (Bad Request): too many; the conversation exceeds the model's context length"],
        );
        check(
            400,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
            expect![
                "TooLong: status 400 (Bad Request): the request exceeds the available context size; the conversation exceeds the model's context length"
            ],
        );
        check(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}"#,
            expect![
                "TooLong: status 400 (Bad Request): prompt is too long: 9 > 8; the conversation exceeds the model's context length"
            ],
        );
        check(
            401,
            r#"{"error":"bad key"}"#,
            expect!["Denied: status 401 (Unauthorized): bad key; check this provider's API key and its permissions"],
        );
        check(
            403,
            "",
            expect![
                "Denied: status 403 (Forbidden) and an empty message; check this provider's API key and its permissions"
            ],
        );
        check(
            404,
            r#"{"error":{"message":"model 'x' not found"}}"#,
            expect![
                "NoSuchModel: status 404 (Not Found): model 'x' not found; check the name of the model and the base URL"
            ],
        );
        check(
            413,
            "",
            expect![
                "TooLong: status 413 (Payload Too Large) and an empty message; the conversation exceeds the model's context length"
            ],
        );
        check(
            422,
            r#"{"detail":"field required"}"#,
            expect!["BadRequest: status 422 (Unprocessable Entity): field required"],
        );
        check(
            429,
            r#"{"error":{"message":"slow down"}}"#,
            expect!["Busy { retry_after: None }: status 429 (Too Many Requests): slow down"],
        );
        check(
            429,
            r#"{"error":{"message":"pay first","type":"insufficient_quota"}}"#,
            expect![
                "Denied: status 429 (Too Many Requests): pay first; check this provider's API key and its permissions"
            ],
        );
        check(500, "", expect!["Server: status 500 (Internal Server Error) and an empty message"]);
        check(
            500,
            "<html>\n\x1b[2Joops",
            expect![[r#"Server: status 500 (Internal Server Error): `<html>\u{a}\u{1b}[2Joops`"#]],
        );
        check(502, r#"{"message":"bad gateway"}"#, expect!["Server: status 502 (Bad Gateway): bad gateway"]);
        check(
            503,
            r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#,
            expect!["Busy { retry_after: Some(5s) }: status 503 (Service Unavailable): Loading model"],
        );
        check(504, "", expect!["Server: status 504 (Gateway Timeout) and an empty message"]);
        check(
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            expect!["Busy { retry_after: None }: status 529: Overloaded"],
        );
    }

    #[test]
    fn retry_after_is_read_in_every_form() {
        let date = "Sun, 15 Nov 2026 12:00:00 GMT";
        for (headers, expected) in [
            (vec![("retry-after", "3")], Some(3000)),
            (vec![("retry-after", "0.5")], Some(500)),
            (vec![("retry-after-ms", "20"), ("retry-after", "3")], Some(20)),
            (vec![("date", date), ("retry-after", "Sun, 15 Nov 2026 12:00:07 GMT")], Some(7000)),
            (vec![("date", date), ("retry-after", "Sun, 15 Nov 2026 11:00:00 GMT")], Some(0)),
            (vec![("retry-after", "-3")], None),
            (vec![("retry-after", "soon")], None),
            (vec![("retry-after", "1e400")], None),
            (vec![], None),
        ] {
            let mut map = HeaderMap::new();
            for (name, value) in &headers {
                map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            let fault = ProviderError::from_status(StatusCode::TOO_MANY_REQUESTS, &map, b"");
            let retry_after = expected.map(Duration::from_millis);
            assert_eq!(fault.kind, ModelErrorKind::Busy { retry_after }, "{headers:?}");
            let fault = ProviderError::from_status(StatusCode::GATEWAY_TIMEOUT, &map, b"");
            let expected =
                retry_after.map_or(ModelErrorKind::Server, |wait| ModelErrorKind::Busy { retry_after: Some(wait) });
            assert_eq!(fault.kind, expected, "{headers:?}");
        }
    }
}
