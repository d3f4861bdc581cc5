//! Synthetic OAuth server: rotates refresh tokens, ends access tokens after a few uses, and answers as badly as a test wants.
//!
//! A refresh token is good for one use, as with the real ones: who uses an old one has lost the login.
//!
//! Not here: connections.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// The end of the path of the token endpoint.
pub const TOKEN_PATH: &str = "/oauth/token";

/// The form of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticTokenForm {
    /// As those of Claude.
    Opaque,
    /// JSON web tokens with an ID token, as those of ChatGPT.
    Jwt,
}

/// How the token endpoint answers a good request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAnswerStyle {
    Plain,
    /// Compressed, whatever was asked for.
    Gzip,
    /// In pieces, without a length.
    Chunked,
    /// Some megabytes long.
    Huge,
    /// Not JSON.
    NotJson,
    /// A token that is not a string.
    WrongType,
    /// The access token in another member.
    EchoInBody,
    /// Both tokens in headers.
    EchoInHeader,
    /// The tokens in an error.
    InError,
    /// Another secret in a member of its own.
    OtherMember,
}

/// An answer: everything after the head's first line and before its end, and the body.
#[derive(Clone, Debug)]
pub struct SyntheticAnswer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The server's side of logins.
#[derive(Debug)]
pub struct SyntheticOAuth {
    form: SyntheticTokenForm,
    uses: usize,
    state: Mutex<SyntheticOAuthState>,
}

#[derive(Debug, Default)]
struct SyntheticOAuthState {
    number: usize,
    uses_left: usize,
    access: String,
    refresh: String,
    id: String,
    /// Every token that there was.
    issued: Vec<String>,
    styles: VecDeque<TokenAnswerStyle>,
    requests: Vec<String>,
    /// Uses of a refresh token that was used before.
    reuses: usize,
}

impl SyntheticOAuth {
    /// A server whose access tokens are good for this number of uses.
    pub fn new(form: SyntheticTokenForm, uses: usize) -> Self {
        let server = Self { form, uses, state: Mutex::default() };
        server.rotate(&mut server.state());
        server
    }

    fn state(&self) -> MutexGuard<'_, SyntheticOAuthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rotate(&self, state: &mut SyntheticOAuthState) {
        state.number += 1;
        state.uses_left = self.uses;
        let number = state.number;
        let token = |kind: &str| match self.form {
            SyntheticTokenForm::Opaque => format!("sk-ant-o{kind}01-real-{number:04}-5c1a77e09b"),
            SyntheticTokenForm::Jwt => jwt(kind, number),
        };
        (state.access, state.id) = (token("a"), token("i"));
        state.refresh = format!("sk-ant-ort01-real-{number:04}-77b0cc41d2");
        let issued = [state.access.clone(), state.refresh.clone(), state.id.clone()];
        state.issued.extend(issued);
    }

    /// The tokens that are good now: access, refresh, ID.
    pub fn tokens(&self) -> (String, String, String) {
        let state = self.state();
        (state.access.clone(), state.refresh.clone(), state.id.clone())
    }

    /// Every token that there was.
    pub fn issued(&self) -> Vec<String> {
        self.state().issued.clone()
    }

    /// Requests as they came: the head and the body.
    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// Times that a refresh token was used again.
    pub fn reuses(&self) -> usize {
        self.state().reuses
    }

    /// Refreshes that there were.
    pub fn refreshes(&self) -> usize {
        self.state().number - 1
    }

    /// The next refreshes are answered like this.
    pub fn answer_with(&self, styles: impl IntoIterator<Item = TokenAnswerStyle>) {
        self.state().styles.extend(styles);
    }

    /// Whether a request has the access token, which has one use less then.
    pub fn admits(&self, head: &str) -> bool {
        self.state().admit(head)
    }

    /// The answer to a request.
    pub fn answer(&self, head: &str, body: &[u8]) -> SyntheticAnswer {
        let body = String::from_utf8_lossy(body);
        let mut state = self.state();
        state.requests.push(format!("{head}\r\n\r\n{body}"));
        let path = head.split(' ').nth(1).unwrap_or_default();
        if path.split('?').next().is_some_and(|path| path.ends_with(TOKEN_PATH)) {
            return self.answer_refresh(&mut state, &body);
        }
        if !state.admit(head) {
            return json_answer(401, &json!({"error": "unauthorized"}));
        }
        match path {
            "/v1/echo" => json_answer(200, &json!({"you sent": head})),
            _ => json_answer(200, &json!({"answer": state.number})),
        }
    }

    fn answer_refresh(&self, state: &mut SyntheticOAuthState, body: &str) -> SyntheticAnswer {
        let request: Value = serde_json::from_str(body).unwrap_or_default();
        let token = request["refresh_token"].as_str().unwrap_or_default().to_owned();
        if token != state.refresh {
            state.reuses += usize::from(state.issued.contains(&token));
            return json_answer(400, &json!({"error": "invalid_grant"}));
        }
        let style = state.styles.pop_front().unwrap_or(TokenAnswerStyle::Plain);
        self.rotate(state);
        let mut grant = json!({
            "access_token": state.access, "refresh_token": state.refresh, "token_type": "Bearer", "expires_in": 28_800,
            "scope": "user:inference user:profile",
        });
        if self.form == SyntheticTokenForm::Jwt {
            grant["id_token"] = Value::from(state.id.as_str());
        }
        let mut answer = json_answer(200, &grant);
        match style {
            TokenAnswerStyle::Plain => {}
            TokenAnswerStyle::Gzip => {
                answer.body = stored_gzip(&answer.body);
                answer.headers.push(("content-encoding".to_owned(), "gzip".to_owned()));
            }
            TokenAnswerStyle::Chunked => {
                let chunks = answer
                    .body
                    .chunks(7)
                    .map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
                answer.body = chunks.chain([b"0\r\n\r\n".to_vec()]).collect::<Vec<_>>().concat();
                answer.headers.push(("transfer-encoding".to_owned(), "chunked".to_owned()));
            }
            TokenAnswerStyle::Huge => {
                grant["filler"] = Value::from("x".repeat(4 << 20));
                answer = json_answer(200, &grant);
            }
            TokenAnswerStyle::NotJson => answer.body = format!("access_token={}", state.access).into_bytes(),
            TokenAnswerStyle::WrongType => {
                grant["access_token"] = json!([state.access]);
                answer = json_answer(200, &grant);
            }
            TokenAnswerStyle::EchoInBody => {
                grant["scope"] = Value::from(format!("a {} b", state.access));
                answer = json_answer(200, &grant);
            }
            TokenAnswerStyle::EchoInHeader => {
                answer.headers.push(("x-token".to_owned(), state.access.clone()));
                answer.headers.push(("set-cookie".to_owned(), format!("refresh={}", state.refresh)));
            }
            TokenAnswerStyle::InError => answer.status = 400,
            TokenAnswerStyle::OtherMember => {
                grant["session_token"] = Value::from(state.id.as_str());
                answer = json_answer(200, &grant);
            }
        }
        answer
    }
}

impl SyntheticOAuthState {
    fn admit(&mut self, head: &str) -> bool {
        let bearer = format!("authorization: bearer {}", self.access.to_ascii_lowercase());
        let is_admitted = self.uses_left > 0 && head.to_ascii_lowercase().lines().any(|line| line.trim() == bearer);
        self.uses_left -= usize::from(is_admitted);
        is_admitted
    }
}

fn json_answer(status: u16, value: &Value) -> SyntheticAnswer {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    SyntheticAnswer { status, headers, body: value.to_string().into_bytes() }
}

/// A JSON web token whose signature is a text of its own.
fn jwt(kind: &str, number: usize) -> String {
    let claims = json!({
        "exp": 4_000_000_000_u64 + number as u64, "email": "ada@example.org", "sub": format!("private-{kind}"),
        "https://api.openai.com/auth": {"chatgpt_plan_type": "plus", "chatgpt_account_id": "account-1"},
    });
    let part = |text: &str| base64_url(text.as_bytes());
    format!(
        "{}.{}.{}",
        part("{\"alg\":\"RS256\",\"typ\":\"JWT\"}"),
        part(&claims.to_string()),
        part(&format!("real signature {kind} {number:04} 0c9e12"))
    )
}

fn base64_url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let wide = chunk.iter().fold(0_u32, |wide, byte| wide << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(wide >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text
}

/// The bytes as gzip that compresses nothing.
fn stored_gzip(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    packed.extend(length.to_le_bytes());
    packed.extend((!length).to_le_bytes());
    packed.extend(bytes);
    let crc = bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    });
    packed.extend((!crc).to_le_bytes());
    packed.extend(u32::from(length).to_le_bytes());
    packed
}
