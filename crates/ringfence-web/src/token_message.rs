//! Messages of an OAuth token endpoint (RFC 6749): the request of a program with a real token in it, and the answer without one.
//!
//! Of a request to refresh, the members that it needs are sent, and nothing else that a program writes. Of an answer,
//! programs get placeholders, and the members that are named for the login.
//!
//! Not here: the exchange (`intercepted_connection.rs`), and what the tokens are (`oauth_login.rs`).

use std::io::{self, Write};

use http_body_util::{BodyExt as _, Limited};
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_ENCODING, HeaderValue};
use hyper::http::response::Parts;
use ringfence_net::ContentDecoder;
use serde_json::{Map, Value};
use url::form_urlencoded;

use crate::credential::{SecretText, fits_header};
use crate::leak_scanner::LeakPatterns;
use crate::oauth_login::{OAuthPlaceholders, RefreshedTokens};

/// No request to a token endpoint is longer.
pub(crate) const MAX_TOKEN_REQUEST: usize = 64 << 10;

/// No answer is longer.
pub(crate) const MAX_TOKEN_ANSWER: usize = 256 << 10;

/// The only grant that is exchanged.
const REFRESH_GRANT: &str = "refresh_token";

/// Members of messages that hold tokens.
const TOKEN_MEMBERS: [&str; 3] = ["access_token", "refresh_token", "id_token"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageForm {
    Json,
    UrlEncoded,
}

/// A request to refresh tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefreshRequest {
    form: MessageForm,
    client_id: Option<String>,
    /// What the program has for a refresh token.
    pub(crate) refresh_token: String,
}

impl RefreshRequest {
    /// Reads the request of a program. Fails with the reason for which it is not sent.
    pub(crate) fn parse(content_type: Option<&HeaderValue>, body: &[u8]) -> Result<Self, String> {
        let essence = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = essence.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let (form, members) = match essence.as_str() {
            "application/json" => (MessageForm::Json, json_members(body)),
            "application/x-www-form-urlencoded" => (MessageForm::UrlEncoded, form_members(body)),
            _ => return Err("a request for tokens must be JSON, or a form".to_owned()),
        };
        let members = members.ok_or("the request for tokens cannot be read")?;
        let member = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
        let grant = member("grant_type").unwrap_or_default();
        if grant != REFRESH_GRANT {
            return Err("a new login is not possible inside: its tokens would be here. Log in outside of the \
                        sandbox, and start the run again"
                .to_owned());
        }
        let refresh_token = member(REFRESH_GRANT).ok_or("the request has no refresh token")?;
        Ok(Self { form, client_id: member("client_id"), refresh_token })
    }

    /// The request as the host is to have it, with this refresh token. The scope is the one that was granted.
    pub(crate) fn body(&self, refresh_token: &str) -> String {
        let members = [
            ("grant_type", Some(REFRESH_GRANT)),
            (REFRESH_GRANT, Some(refresh_token)),
            ("client_id", self.client_id.as_deref()),
        ];
        let members = members.into_iter().filter_map(|(name, value)| Some((name, value?)));
        match self.form {
            MessageForm::Json => {
                let members = members.map(|(name, value)| (name.to_owned(), Value::from(value)));
                Value::Object(members.collect()).to_string()
            }
            MessageForm::UrlEncoded => form_urlencoded::Serializer::new(String::new()).extend_pairs(members).finish(),
        }
    }
}

fn json_members(body: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(body).ok()
}

/// `None` where a member is there twice.
fn form_members(body: &[u8]) -> Option<Map<String, Value>> {
    let mut members = Map::new();
    for (name, value) in form_urlencoded::parse(body) {
        if members.insert(name.into_owned(), Value::from(value.into_owned())).is_some() {
            return None;
        }
    }
    Some(members)
}

/// Reads the whole answer of a token endpoint, decoded. An error has its reason.
pub(crate) async fn read_answer(response: Response<Incoming>, most: usize) -> Result<(Parts, Bytes), String> {
    let (head, body) = response.into_parts();
    let collected = Limited::new(body, most).collect().await;
    let body = collected.map_err(|_| "the answer of the token endpoint is too long, or ended early")?.to_bytes();
    let encodings = head.headers.get_all(CONTENT_ENCODING).iter();
    let encodings: Vec<_> = encodings.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let unreadable = "the answer of the token endpoint cannot be decoded";
    let mut decoder = ContentDecoder::new(&encodings.join(","), BoundedSink { bytes: Vec::new(), most })
        .map_err(|_| unreadable.to_owned())?;
    decoder.push(&body).and_then(|()| decoder.finish()).map_err(|_| unreadable.to_owned())?;
    let decoded = std::mem::take(&mut decoder.sink_mut().bytes);
    Ok((head, Bytes::from(decoded)))
}

/// Takes a decoded body up to a number of bytes.
struct BoundedSink {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for BoundedSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::Error::other("the body decodes to too many bytes"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An answer of a token endpoint that has new tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenGrant {
    members: Map<String, Value>,
    pub(crate) tokens: RefreshedTokens,
}

impl TokenGrant {
    /// Reads the answer of the host. `None` if it is not one that has tokens.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let members = json_members(body)?;
        let token = |name: &str| match members.get(name) {
            None | Some(Value::Null) => Some(None),
            Some(Value::String(text)) if fits_header(text) => Some(Some(SecretText::new(text.clone()))),
            Some(_) => None,
        };
        let seconds = |name: &str| members.get(name).and_then(Value::as_u64);
        let tokens = RefreshedTokens {
            access: token("access_token")??,
            refresh: token("refresh_token")?,
            id: token("id_token")?,
            expires_in: seconds("expires_in"),
            refresh_expires_in: seconds("refresh_token_expires_in"),
        };
        Some(Self { members, tokens })
    }

    /// The answer as a program may have it: these members, and placeholders for the tokens that came.
    pub(crate) fn for_program(&self, passed: &[String], placeholders: &OAuthPlaceholders) -> String {
        let is_passed = |name: &String| passed.contains(name) && !TOKEN_MEMBERS.contains(&name.as_str());
        let members = self.members.iter().filter(|(name, _)| is_passed(name));
        let mut members: Map<String, Value> = members.map(|(name, value)| (name.clone(), value.clone())).collect();
        members.insert("access_token".to_owned(), Value::from(placeholders.access.as_str()));
        if self.tokens.refresh.is_some() {
            members.insert("refresh_token".to_owned(), Value::from(placeholders.refresh.as_str()));
        }
        if let (Some(_), Some(id)) = (&self.tokens.id, &placeholders.id) {
            members.insert("id_token".to_owned(), Value::from(id.as_str()));
        }
        Value::Object(members).to_string()
    }
}

/// Whether a program may have the answer of a token endpoint that refuses: it is JSON or text without a token.
pub(crate) fn is_plain_refusal(body: &[u8], secrets: &LeakPatterns) -> bool {
    fn has_token_member(value: &Value) -> bool {
        match value {
            Value::Object(members) => {
                members.iter().any(|(name, value)| TOKEN_MEMBERS.contains(&name.as_str()) || has_token_member(value))
            }
            Value::Array(items) => items.iter().any(has_token_member),
            _ => false,
        }
    }
    let has_tokens = serde_json::from_slice::<Value>(body).is_ok_and(|value| has_token_member(&value));
    !has_tokens && !secrets.are_in(body)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use serde_json::{Value, json};

    use super::{RefreshRequest, TokenGrant, is_plain_refusal};
    use crate::leak_scanner::LeakPatterns;
    use crate::oauth_login::OAuthPlaceholders;

    const JSON: &str = "application/json; charset=utf-8";
    const FORM: &str = "application/x-www-form-urlencoded";

    fn parse(content_type: &'static str, body: &str) -> Result<RefreshRequest, String> {
        RefreshRequest::parse(Some(&HeaderValue::from_static(content_type)), body.as_bytes())
    }

    #[test]
    fn a_request_has_what_it_needs_and_nothing_else() {
        let sent = |content_type, body: &str| parse(content_type, body).map(|request| request.body("real-token&"));
        let wide =
            r#"{"grant_type":"refresh_token","refresh_token":"p","client_id":"c","scope":"less","expires_in":1}"#;
        let expected = r#"{"client_id":"c","grant_type":"refresh_token","refresh_token":"real-token&"}"#;
        assert_eq!(
            serde_json::from_str::<Value>(&sent(JSON, wide).unwrap()).unwrap(),
            serde_json::from_str::<Value>(expected).unwrap()
        );
        assert_eq!(
            sent(FORM, "refresh_token=p&grant_type=refresh_token&scope=less").unwrap(),
            "grant_type=refresh_token&refresh_token=real-token%26"
        );
        assert_eq!(parse(JSON, wide).unwrap().refresh_token, "p");
    }

    #[test]
    fn other_requests_are_refused_with_a_sentence() {
        for (content_type, body, said) in [
            ("text/plain", "{}", "must be JSON, or a form"),
            (JSON, "[]", "cannot be read"),
            (JSON, "{", "cannot be read"),
            (FORM, "grant_type=refresh_token&grant_type=x&refresh_token=p", "cannot be read"),
            (JSON, "{}", "a new login is not possible inside"),
            (JSON, r#"{"grant_type":"authorization_code","code":"x"}"#, "Log in outside of the sandbox"),
            (FORM, "grant_type=urn:ietf:params:oauth:grant-type:device_code", "a new login is not possible inside"),
            (JSON, r#"{"grant_type":"refresh_token"}"#, "no refresh token"),
            (JSON, r#"{"grant_type":"refresh_token","refresh_token":1}"#, "no refresh token"),
        ] {
            let error = parse(content_type, body).unwrap_err();
            assert!(error.contains(said), "{body}: {error}");
        }
        assert!(RefreshRequest::parse(None, b"{}").is_err());
    }

    #[test]
    fn a_program_gets_placeholders_and_named_members_only() {
        let answer = json!({
            "access_token": "real-access-token", "refresh_token": "real-refresh-token", "id_token": null,
            "expires_in": 3600, "scope": "a b", "session_token": "another-secret", "account": {"uuid": "u"},
        });
        let grant = TokenGrant::parse(answer.to_string().as_bytes()).unwrap();
        assert_eq!((grant.tokens.expires_in, grant.tokens.access.expose()), (Some(3600), "real-access-token"));
        let placeholders =
            OAuthPlaceholders { access: "pa".to_owned(), refresh: "pr".to_owned(), id: Some("pi".to_owned()) };
        let passed = ["expires_in", "account", "access_token"].map(str::to_owned);
        let expected =
            json!({"access_token": "pa", "refresh_token": "pr", "expires_in": 3600, "account": {"uuid": "u"}});
        assert_eq!(serde_json::from_str::<Value>(&grant.for_program(&passed, &placeholders)).unwrap(), expected);
        let short = TokenGrant::parse(br#"{"access_token":"real-access-token"}"#).unwrap();
        assert_eq!(short.for_program(&[], &placeholders), r#"{"access_token":"pa"}"#);
    }

    #[test]
    fn an_answer_of_another_form_has_no_grant() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"access_token":1}"#,
            r#"{"access_token":"short"}"#,
            r#"{"access_token":"with a space in it"}"#,
            r#"{"access_token":"real-access-token","refresh_token":["real-refresh-token"]}"#,
            r#"{"access_token":"real-access-token"} "#.trim_end_matches(['}', ' ']),
        ] {
            assert!(TokenGrant::parse(body.as_bytes()).is_none(), "{body}");
        }
    }

    #[test]
    fn a_refusal_passes_without_tokens_only() {
        let secrets = LeakPatterns::new(["real-refresh-token"]).unwrap();
        for (body, expected) in [
            (r#"{"error":"invalid_grant","error_description":"expired"}"#, true),
            (r#"{"error":{"code":"refresh_token_reused"}}"#, true),
            ("busy", true),
            ("", true),
            (r#"{"error":"x","hint":"real-refresh-token"}"#, false),
            (r#"{"error":{"refresh_token":"a-new-one-0123"}}"#, false),
            (r#"[{"access_token":"a-new-one-0123"}]"#, false),
        ] {
            assert_eq!(is_plain_refusal(body.as_bytes(), &secrets), expected, "{body}");
        }
    }
}
